//! What is known of states: recovering and judging are functions of what they read.
//!
//! A function's runs are kept as a tree. Which words it reads first is the same for all states, and which next follows from
//! what these hold; so a state is found by looking at the same words in the same order, and what the function gave then it
//! would give again. Only words of the [`Universe`] are looked at: no other can differ.
//!
//! The states of one crash point differ in few words only. So each piece of the tree is looked through once a point: what is the
//! same in all its states is not looked at again.

use std::collections::HashMap;
use std::ops::Range;

use nvm::Look;

use crate::hash::IdentityHasher;

/// A look, and the hash of what was there, or the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) look: Look,
    pub(crate) found: u64,
}

/// The runs of one function, by what they read.
pub(crate) struct Runs<V> {
    root: Option<Node<V>>,
}

/// What all runs that came here read next, and where they part.
struct Node<V> {
    steps: Vec<Step>,
    end: End<V>,
    sieved: Sieved,
    /// The last list that has its looks.
    listed: u64,
}

/// Of a node's steps, those that tell the states of one crash point from one another.
#[derive(Default)]
struct Sieved {
    /// Of this point; 0 if of none.
    point: u64,
    /// Their places, unless one of the other steps finds something else, in all the states.
    open: Option<Vec<u32>>,
}

/// The states of a crash point, one of them being in memory.
pub(crate) trait States {
    /// Its number, from 1 on, which no other point has.
    fn point(&self) -> u64;

    /// What a look finds in the one in memory.
    fn find(&self, look: Look) -> u64;

    /// Whether it may find something else in another one.
    fn differ(&self, look: Look) -> bool;
}

enum End<V> {
    /// What the run gave.
    Gave(V),
    /// By what this look finds.
    Fork(Look, HashMap<u64, Node<V>, IdentityHasher>),
}

impl<V> Default for Runs<V> {
    fn default() -> Runs<V> {
        Runs { root: None }
    }
}

impl<V> Runs<V> {
    /// What the function gives, if it found the same in a run before. Those of its looks that may find something else in other
    /// states of the point are added to `looks`.
    pub(crate) fn get(&mut self, states: &impl States, looks: &mut Vec<Look>) -> Option<&V> {
        let mut node = self.root.as_mut()?;
        loop {
            if node.sieved.point != states.point() {
                node.sieve(states);
            }
            for step in node.sieved.open.as_ref()?.iter().map(|place| node.steps[*place as usize]) {
                if states.find(step.look) != step.found {
                    return None;
                }
                looks.push(step.look);
            }
            match &mut node.end {
                End::Gave(value) => return Some(value),
                End::Fork(look, cases) => {
                    node = cases.get_mut(&states.find(*look))?;
                    if states.differ(*look) {
                        looks.push(*look);
                    }
                }
            }
        }
    }

    /// The looks of the run that [`Runs::get`] found, but for those that list number `list` has from other runs, in which they found the same.
    pub(crate) fn looks(&mut self, find: impl Fn(Look) -> u64, list: u64) -> Vec<Look> {
        let (mut looks, mut next) = (Vec::new(), self.root.as_mut());
        while let Some(node) = next {
            let is_new = node.listed != list;
            node.listed = list;
            if is_new {
                looks.extend(node.steps.iter().map(|step| step.look));
            }
            next = match &mut node.end {
                End::Gave(_) => None,
                End::Fork(look, cases) => {
                    looks.push(*look);
                    cases.get_mut(&find(*look))
                }
            };
        }
        looks
    }

    /// Remembers a run: what it read, in order, and what it gave. Returns how much more room it takes now, in steps.
    pub(crate) fn insert(&mut self, run: &[Step], value: V) -> usize {
        match &mut self.root {
            Some(root) => root.insert(run, value),
            None => {
                self.root = Some(Node::of(run, value));
                run.len() + 1
            }
        }
    }
}

impl<V> Node<V> {
    /// Steps that take as much as a place for a node among the cases of a fork, half of which are empty.
    const PLACE_STEPS: usize = 2 * size_of::<Node<V>>() / size_of::<Step>();

    fn of(run: &[Step], value: V) -> Node<V> {
        Node { steps: run.to_vec(), end: End::Gave(value), sieved: Sieved::default(), listed: 0 }
    }

    fn sieve(&mut self, states: &impl States) {
        let mut open = Vec::new();
        let is_known = self.steps.iter().zip(0..).all(|(step, place)| match states.differ(step.look) {
            true => {
                open.push(place);
                true
            }
            false => states.find(step.look) == step.found,
        });
        self.sieved = Sieved { point: states.point(), open: is_known.then_some(open) };
    }

    fn insert(&mut self, mut run: &[Step], value: V) -> usize {
        let mut node = self;
        loop {
            let same = node.steps.iter().zip(run).take_while(|(known, step)| known == step).count();
            let (known, step) = (node.steps.get(same).copied(), run.get(same).copied());
            let rest = run.get(same + 1..).unwrap_or_default();
            match (known, step, &mut node.end) {
                // They part within.
                (Some(known), Some(step), _) if known.look == step.look => {
                    let steps = node.steps.split_off(same + 1);
                    node.steps.truncate(same);
                    node.steps.shrink_to_fit();
                    (node.sieved, node.listed) = (Sieved::default(), 0);
                    let end = std::mem::replace(&mut node.end, End::Fork(known.look, HashMap::default()));
                    if let End::Fork(_, cases) = &mut node.end {
                        cases.insert(known.found, Node { steps, end, sieved: Sieved::default(), listed: 0 });
                        cases.insert(step.found, Node::of(rest, value));
                    }
                    return rest.len() + 1 + 2 * Self::PLACE_STEPS;
                }
                (None, Some(step), End::Fork(look, cases))
                    if *look == step.look && !cases.contains_key(&step.found) =>
                {
                    cases.insert(step.found, Node::of(rest, value));
                    return rest.len() + 1 + Self::PLACE_STEPS;
                }
                (None, Some(step), End::Fork(look, _)) if *look == step.look => {}
                // It was known.
                (None, None, End::Gave(known)) => {
                    *known = value;
                    return 0;
                }
                // Read in another order: the newer run takes the older one's place.
                _ => {
                    *node = Node::of(run, value);
                    return run.len() + 1;
                }
            }
            let (End::Fork(_, cases), Some(step)) = (&mut node.end, step) else { return 0 };
            let Some(next) = cases.get_mut(&step.found) else { return 0 };
            (node, run) = (next, rest);
        }
    }
}

/// All lines in which states differ from one another, by blocks.
#[derive(Default)]
pub(crate) struct Universe {
    /// A bit for each block.
    blocks: Vec<u64>,
    runs: Vec<Range<u64>>,
}

/// Lines of a block.
const BLOCK_LINES: u64 = 64;

impl Universe {
    /// Adds the blocks of lines; whether any of them is new.
    pub(crate) fn add(&mut self, lines: impl IntoIterator<Item = Range<u64>>) -> bool {
        let mut grown = false;
        for run in lines.into_iter().filter(|run| !run.is_empty()) {
            for block in run.start / BLOCK_LINES..=(run.end - 1) / BLOCK_LINES {
                let (word, bit) = ((block / 64) as usize, 1 << (block % 64));
                if word >= self.blocks.len() {
                    self.blocks.resize(word + 1, 0);
                }
                grown |= self.blocks[word] & bit == 0;
                self.blocks[word] |= bit;
            }
        }
        if grown {
            self.runs.clear();
            let blocks = self.blocks.iter().enumerate().flat_map(|(index, word)| {
                (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index as u64 * 64 + bit)
            });
            for block in blocks {
                let run = block * BLOCK_LINES..(block + 1) * BLOCK_LINES;
                match self.runs.last_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => self.runs.push(run),
                }
            }
        }
        grown
    }

    /// The lines.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.iter().cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use nvm::LineWords;

    use super::*;
    use crate::random::Random;

    fn look(line: u32) -> Look {
        Look::Words(LineWords { line, words: 1 })
    }

    fn line_of(look: Look) -> u32 {
        match look {
            Look::Words(words) => words.line,
            Look::Asked(_) => unreachable!("nobody asks here"),
        }
    }

    /// A function of lines that reads 0; then 1 if that is 0, else 2; then, if that is 7, 3; and gives what it read last.
    fn run(lines: &[u64; 4]) -> (Vec<Step>, u64) {
        let mut steps = Vec::new();
        let mut read = |line: u32| {
            let found = lines[line as usize];
            steps.push(Step { look: look(line), found });
            found
        };
        let mut last = if read(0) == 0 { read(1) } else { read(2) };
        if last == 7 {
            last = read(3);
        }
        (steps, last)
    }

    /// States of four lines; those of one point differ in the lines that a mask has.
    struct Four {
        point: u64,
        lines: [u64; 4],
        differ: u8,
    }

    impl States for Four {
        fn point(&self) -> u64 {
            self.point
        }

        fn find(&self, look: Look) -> u64 {
            self.lines[line_of(look) as usize]
        }

        fn differ(&self, look: Look) -> bool {
            self.differ >> line_of(look) & 1 == 1
        }
    }

    /// At points in whose states any of the lines differ, each met by some states and left again.
    #[test]
    fn what_was_read_before_is_known_and_nothing_else() {
        let all: Vec<[u64; 4]> =
            (0..256).map(|n| [0, 2, 4, 6].map(|shift| [0, 1, 7, 8][n >> shift & 3])).collect();
        let (mut random, mut left_out) = (Random::new(5), 0);
        for differ in 0..16u8 {
            let (mut runs, mut met, mut hits, mut list) = (Runs::default(), HashSet::new(), 0, 0);
            for point in 1..400 {
                let durable = all[random.below(256) as usize];
                for _ in 0..1 + random.below(6) {
                    let other = all[random.below(256) as usize];
                    let lines =
                        std::array::from_fn(|line| [durable, other][usize::from(differ >> line & 1)][line]);
                    let states = Four { point, lines, differ };
                    let (steps, gives) = run(&lines);
                    let mut looks = Vec::new();
                    let known = runs.get(&states, &mut looks).copied();
                    let path: Vec<_> = steps.iter().map(|step| (line_of(step.look), step.found)).collect();
                    assert_eq!(known, met.contains(&path).then_some(gives), "{lines:?}, {differ}");
                    if known.is_some() {
                        hits += 1;
                        let all: Vec<Look> = steps.iter().map(|step| step.look).collect();
                        list += 1;
                        assert_eq!(runs.looks(|look| states.find(look), list), all);
                        // Where runs part, they find something else.
                        let again = runs.looks(|look| states.find(look), list);
                        assert!(again.iter().all(|look| all.contains(look)), "{again:?} of {all:?}");
                        left_out += all.len() - again.len();
                        let of_those = |look: &&Look| states.differ(**look);
                        assert_eq!(looks, all.iter().filter(of_those).copied().collect::<Vec<_>>());
                    } else {
                        runs.insert(&steps, gives);
                        met.insert(path);
                    }
                }
            }
            assert!(met.len() > 10 && hits > 100, "{} met, {hits} known", met.len());
        }
        assert!(left_out > 0, "a list has each look again and again");
    }

    #[test]
    fn a_run_in_another_order_takes_the_place() {
        let (mut runs, steps) = (Runs::default(), |lines: &[u32]| {
            lines.iter().map(|line| Step { look: look(*line), found: 5 }).collect::<Vec<_>>()
        });
        runs.insert(&steps(&[1, 2, 3]), 'a');
        let states = Four { point: 1, lines: [5; 4], differ: 0 };
        assert_eq!(runs.get(&states, &mut Vec::new()), Some(&'a'));
        runs.insert(&steps(&[1, 3]), 'b');
        assert_eq!(runs.get(&states, &mut Vec::new()), Some(&'b'));
    }

    #[test]
    fn a_universe_grows_by_blocks() {
        let mut universe = Universe::default();
        assert!(universe.add([70..71, 5000..5000]));
        assert!(!universe.add(std::iter::once(64..128)));
        assert!(universe.add([120..130, 640..641]));
        assert_eq!(universe.runs().collect::<Vec<_>>(), [64..192, 640..704]);
    }
}
