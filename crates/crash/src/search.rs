//! Which states of a crash point are tried.
//!
//! Recovering and checking are functions of what they read. So the states that differ only in words nobody reads are
//! one state, and the search goes by reading order: a run with some choice of contents tells which words it read, in
//! order; the next run differs in the last of them that may hold something else, the words of the same unit that were read
//! before being what they were. When there is none left, every combination of versions of every unit has been accounted
//! for, exactly.

use std::collections::{BTreeSet, HashMap, HashSet};

use nvm::LineWords;

use crate::hash::{self, IdentityHasher};
use crate::random::Random;
use crate::unit::Units;
use crate::violation::Violation;

/// A crash point is searched wholly if the versions of the lines that are read have up to so many combinations.
pub(crate) const WHOLE: usize = 4096;
/// Also if those of the words that are read have up to so many: fewer than a selection takes.
const WHOLE_OF_WORDS: u64 = 512;
/// Torn contents tried of each unit.
const TORN: usize = 8;
/// Random states tried where not all can be.
const RANDOM: usize = 64;
/// Pairs tried at most where not all states can be.
const PAIRS: usize = 1024;

/// A choice of contents for each unit; see [`crate::unit::Unit::contents`].
pub(crate) type Choices = Vec<usize>;

/// What a run says: the words it read, in the order of their first reading.
pub(crate) trait Run {
    /// Tries a state; `Err` ends the search.
    fn run(&mut self, units: &Units, choices: &Choices) -> Result<Vec<LineWords>, Violation>;
}

/// Tries all states that differ, or a selection. `seed` chooses the random ones. Adds to `distinct` how many there were that differ in
/// something that was read.
pub(crate) fn search(
    units: &Units,
    seed: u64,
    run: &mut dyn Run,
    distinct: &mut u64,
) -> Result<(), Violation> {
    let mut search = Search {
        units,
        run,
        tried: HashSet::new(),
        first: HashMap::new(),
        read: BTreeSet::new(),
        words: vec![0; units.lines_count()],
        met: HashSet::default(),
    };
    let found = search.all(seed);
    // What the one that fails reads is not told.
    *distinct += search.met.len() as u64 + u64::from(found.is_err());
    found
}

struct Search<'a> {
    units: &'a Units,
    run: &'a mut dyn Run,
    tried: HashSet<Choices>,
    /// What the first runs read.
    first: HashMap<Choices, Vec<Query>>,
    /// Units that some run read.
    read: BTreeSet<usize>,
    /// The words that some run read, of each line of the units.
    words: Vec<u8>,
    /// What runs read and found, as hashes: those of which it is the same were of one state.
    met: HashSet<u64, IdentityHasher>,
}

/// A look at some words of a line of a unit.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Query {
    unit: usize,
    /// Of the unit.
    line: usize,
    words: u8,
}

/// A look on the way to a run, and the hashes of what it has found so far.
struct Asked {
    query: Query,
    found: Vec<u64>,
}

impl Search<'_> {
    fn all(&mut self, seed: u64) -> Result<(), Violation> {
        let units = self.units;
        for choices in
            [vec![0; units.all.len()], units.all.iter().map(|unit| unit.versions.len() - 1).collect()]
        {
            if !self.first.contains_key(&choices) {
                self.tried.insert(choices.clone());
                let read = self.run(&choices)?;
                self.first.insert(choices, read);
            }
        }
        if !self.is_small() || !self.whole()? {
            self.selection(seed)?;
        }
        self.torn(seed)
    }

    fn run(&mut self, choices: &Choices) -> Result<Vec<Query>, Violation> {
        let units = self.units;
        let read = self.run.run(units, choices)?;
        let query = |read: LineWords| {
            let unit = units.of_line(read.line)?;
            Some(Query { unit, line: (read.line - units.all[unit].first) as usize, words: read.words })
        };
        let read: Vec<Query> = read.into_iter().filter_map(query).collect();
        let mut met = 0;
        for query in &read {
            self.read.insert(query.unit);
            let place = units.start(query.unit) + query.line;
            self.words[place] |= query.words;
            let found = self.answer(query, choices[query.unit]);
            met = hash::mix(hash::mix(met, (place as u64) << 8 | u64::from(query.words)), found);
        }
        self.met.insert(met);
        Ok(read)
    }

    fn one(&mut self, choices: &Choices) -> Result<(), Violation> {
        if self.tried.insert(choices.clone()) {
            self.run(choices)?;
        }
        Ok(())
    }

    /// What a look finds in its unit with these contents.
    fn answer(&self, query: &Query, choice: usize) -> u64 {
        hash::of_words(query.words, &self.units.all[query.unit].contents(choice)[query.line])
    }

    /// Whether there are so few states, as far as is known what is read, that all can be tried.
    fn is_small(&self) -> bool {
        let versions = |unit: &usize| self.units.all[*unit].versions.len() as u64;
        let differing = |unit: &usize| {
            let lines = self.units.start(*unit)..;
            let held = |version: &Vec<nvm::Line>| {
                let all = lines.clone().zip(version);
                all.map(|(place, line)| hash::of_words(self.words[place], line)).collect::<Vec<_>>()
            };
            self.units.all[*unit].versions.iter().map(held).collect::<HashSet<_>>().len() as u64
        };
        self.read.iter().map(versions).fold(1, u64::saturating_mul) <= WHOLE as u64
            || self.read.iter().map(differing).fold(1, u64::saturating_mul) <= WHOLE_OF_WORDS
    }

    /// Depth first by reading order; false if there are too many.
    fn whole(&mut self) -> Result<bool, Violation> {
        let mut choices = vec![0; self.units.all.len()];
        let mut path: Vec<Asked> = Vec::new();
        let mut asked = vec![0u8; self.words.len()];
        for _ in 0..WHOLE {
            let read = match self.first.remove(&choices) {
                Some(read) => read,
                None => self.run(&choices)?,
            };
            asked.fill(0);
            for Asked { query, .. } in &path {
                asked[self.units.start(query.unit) + query.line] |= query.words;
            }
            for query in read {
                let asked = &mut asked[self.units.start(query.unit) + query.line];
                let query = Query { words: query.words & !*asked, ..query };
                if query.words != 0 {
                    *asked |= query.words;
                    let found = vec![self.answer(&query, choices[query.unit])];
                    path.push(Asked { query, found });
                }
            }
            loop {
                let Some(Asked { query, found }) = path.last() else { return Ok(true) };
                let unit = query.unit;
                // It is what it was wherever it was looked at before.
                let before: Vec<Query> =
                    path.iter().map(|asked| asked.query).filter(|asked| asked.unit == unit).collect();
                let before = &before[..before.len() - 1];
                let same = |version: &usize| {
                    before.iter().all(|it| self.answer(it, *version) == self.answer(it, choices[unit]))
                };
                let other = (0..self.units.all[unit].versions.len())
                    .find(|version| !found.contains(&self.answer(query, *version)) && same(version));
                match other {
                    Some(version) => {
                        let answer = self.answer(query, version);
                        choices[unit] = version;
                        path.last_mut().into_iter().for_each(|asked| asked.found.push(answer));
                        break;
                    }
                    None => {
                        if before.is_empty() {
                            choices[unit] = 0;
                        }
                        path.pop();
                    }
                }
            }
        }
        Ok(false)
    }

    /// Each alone, all but one, pairs, and random subsets with random prefixes.
    fn selection(&mut self, seed: u64) -> Result<(), Violation> {
        let units = self.units;
        let none = vec![0; units.all.len()];
        let newest: Choices = units.all.iter().map(|unit| unit.versions.len() - 1).collect();
        let read: Vec<usize> = self.read.iter().copied().collect();
        for &unit in &read {
            for version in 1..units.all[unit].versions.len() {
                let mut alone = none.clone();
                alone[unit] = version;
                self.one(&alone)?;
            }
            for version in 0..units.all[unit].versions.len() - 1 {
                let mut but = newest.clone();
                but[unit] = version;
                self.one(&but)?;
            }
        }
        let mut random = Random::new(seed);
        let pairs = read.len() * read.len().saturating_sub(1) / 2;
        let share = pairs.div_ceil(PAIRS).max(1) as u64;
        for (n, &a) in read.iter().enumerate() {
            for &b in &read[..n] {
                if random.below(share) == 0 {
                    let mut pair = none.clone();
                    (pair[a], pair[b]) = (newest[a], newest[b]);
                    self.one(&pair)?;
                }
            }
        }
        for _ in 0..RANDOM {
            let share = 1 + random.below(7);
            let some = units.all.iter().map(|unit| match random.below(8) < share {
                true => random.below(unit.versions.len() as u64) as usize,
                false => unit.versions.len() - 1,
            });
            self.one(&some.collect())?;
        }
        Ok(())
    }

    /// Torn stores: of one unit at a time beside the oldest and the newest of the others, and a few at random.
    fn torn(&mut self, seed: u64) -> Result<(), Violation> {
        let units = self.units;
        let none = vec![0; units.all.len()];
        let newest: Choices = units.all.iter().map(|unit| unit.versions.len() - 1).collect();
        let read: Vec<usize> = self.read.iter().copied().collect();
        let mut random = Random::new(!seed);
        for &index in &read {
            let unit = &units.all[index];
            let step = unit.torn.len().div_ceil(TORN).max(1);
            for torn in (0..unit.torn.len()).step_by(step) {
                for mut others in [none.clone(), newest.clone()] {
                    others[index] = unit.versions.len() + torn;
                    self.one(&others)?;
                }
            }
        }
        if read.len() > 1 && read.iter().any(|unit| !units.all[*unit].torn.is_empty()) {
            for _ in 0..8 {
                let mut some = none.clone();
                for &unit in &read {
                    some[unit] = random.below(units.all[unit].choices() as u64) as usize;
                }
                self.one(&some)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use nvm::Line;

    use super::*;
    use crate::unit::Unit;

    /// Words of lines, by line and word.
    type State = Vec<[u64; 8]>;

    /// A line that holds these words first, and zeros.
    fn line(words: &[u64]) -> Line {
        let mut line = [0; 64];
        words
            .iter()
            .zip(line.chunks_mut(8))
            .for_each(|(word, bytes)| bytes.copy_from_slice(&word.to_le_bytes()));
        line
    }

    /// Units of single lines 10, 20, 30 and so on, by the words of their versions.
    fn units(all: &[&[&[u64]]]) -> Units {
        let unit = |(index, versions): (usize, &&[&[u64]])| {
            let versions = versions.iter().map(|words| vec![line(words)]).collect();
            Rc::new(Unit { first: (index as u32 + 1) * 10, versions, torn: Vec::new() })
        };
        Units::of_all(all.iter().enumerate().map(unit).collect())
    }

    /// Reads words, by unit and word, in an order that follows from what they hold.
    type Function<'f> = dyn Fn(&mut dyn FnMut(usize, usize) -> u64) + 'f;

    /// What such a function found, in order: unit, word, and what that held.
    type Path = Vec<(usize, usize, u64)>;

    struct Reads<'f> {
        function: &'f Function<'f>,
        runs: Vec<Path>,
    }

    fn state_of(units: &Units, choices: &Choices) -> State {
        let held = |(unit, choice): (&Rc<Unit>, &usize)| {
            let words =
                unit.contents(*choice)[0].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            words.collect::<Vec<_>>().try_into().expect("eight words")
        };
        units.all.iter().zip(choices).map(held).collect()
    }

    fn found(function: &Function<'_>, state: &State) -> Path {
        let mut path = Vec::new();
        function(&mut |unit, word| {
            if !path.iter().any(|(u, w, _)| (*u, *w) == (unit, word)) {
                path.push((unit, word, state[unit][word]));
            }
            state[unit][word]
        });
        path
    }

    impl Run for Reads<'_> {
        fn run(&mut self, units: &Units, choices: &Choices) -> Result<Vec<LineWords>, Violation> {
            let path = found(self.function, &state_of(units, choices));
            let read = path
                .iter()
                .map(|(unit, word, _)| LineWords { line: units.all[*unit].first, words: 1 << word });
            let read = read.collect();
            self.runs.push(path);
            Ok(read)
        }
    }

    /// What [`search`] finds of a function, and what all combinations of versions have.
    fn whole(units: &Units, function: &Function<'_>) -> (Vec<Path>, BTreeSet<Path>) {
        let mut all = BTreeSet::new();
        let mut choices = vec![0; units.all.len()];
        loop {
            all.insert(found(function, &state_of(units, &choices)));
            let Some(next) =
                (0..choices.len()).find(|unit| choices[*unit] + 1 < units.all[*unit].versions.len())
            else {
                break;
            };
            choices[next] += 1;
            choices[..next].fill(0);
        }
        let mut reads = Reads { function, runs: Vec::new() };
        let mut distinct = 0;
        assert!(search(units, 7, &mut reads, &mut distinct).is_ok());
        assert_eq!(distinct, reads.runs.iter().collect::<BTreeSet<_>>().len() as u64);
        (reads.runs, all)
    }

    #[test]
    fn every_combination_that_reads_something_else_is_run_once() {
        let units = units(&[
            &[&[0], &[1], &[1, 5]],
            &[&[0, 0], &[3, 0], &[3, 9], &[4, 9]],
            &[&[0, 0, 0], &[0, 7, 0], &[0, 7, 8]],
            &[&[0], &[2]],
        ]);
        let function = |read: &mut dyn FnMut(usize, usize) -> u64| {
            if read(0, 0) == 0 {
                read(1, 0);
            } else if read(1, 1) == 9 {
                // Of one unit, a word after another: only versions with the first one's value are left.
                read(2, 2);
                read(2, 1);
                read(1, 0);
                read(0, 1);
            } else {
                read(3, 0);
                read(0, 0);
            }
        };
        let (runs, all) = whole(&units, &function);
        let distinct: BTreeSet<_> = runs.iter().cloned().collect();
        assert_eq!(distinct, all);
        // The run of the newest of all comes first, and may be met again.
        assert!(runs.len() <= all.len() + 1, "{runs:?}");
    }

    #[test]
    fn random_functions_are_searched_wholly() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let versions: Vec<Vec<Vec<u64>>> = (0..1 + random.below(4))
                .map(|_| {
                    let mut words = vec![0; 8];
                    let mut next = |_| {
                        words[random.below(8) as usize] = random.below(3);
                        words.clone()
                    };
                    (0..1 + seed % 5).map(&mut next).collect()
                })
                .collect();
            let versions: Vec<Vec<&[u64]>> =
                versions.iter().map(|unit| unit.iter().map(|words| &words[..]).collect()).collect();
            let versions: Vec<&[&[u64]]> = versions.iter().map(|unit| &unit[..]).collect();
            let units = units(&versions);
            let function = |read: &mut dyn FnMut(usize, usize) -> u64| {
                let mut sum = seed;
                for _ in 0..seed % 9 {
                    sum = hash::mix(sum, 1);
                    sum = hash::mix(sum, read(sum as usize % units.all.len(), sum as usize / 64 % 8));
                }
            };
            let (runs, all) = whole(&units, &function);
            let distinct: BTreeSet<_> = runs.iter().cloned().collect();
            assert_eq!(distinct, all, "seed {seed}");
            assert!(runs.len() <= all.len() + 1, "seed {seed}: {} runs for {} states", runs.len(), all.len());
        }
    }

    /// Torn contents that hold what a version holds, where it is read, are no other states.
    #[test]
    fn states_that_read_the_same_are_one() {
        let torn = vec![vec![line(&[1, 7])], vec![line(&[0, 7])], vec![line(&[2, 7])]];
        let unit = Unit { first: 10, versions: vec![vec![line(&[0])], vec![line(&[1])]], torn };
        let function = |read: &mut dyn FnMut(usize, usize) -> u64| {
            read(0, 0);
        };
        let (mut reads, mut distinct) = (Reads { function: &function, runs: Vec::new() }, 0);
        assert!(search(&Units::of_all(vec![Rc::new(unit)]), 7, &mut reads, &mut distinct).is_ok());
        assert_eq!((reads.runs.len(), distinct), (5, 3));
    }

    #[test]
    fn a_violation_ends_the_search() {
        struct Fails(usize);
        impl Run for Fails {
            fn run(&mut self, units: &Units, _: &Choices) -> Result<Vec<LineWords>, Violation> {
                self.0 += 1;
                let violation =
                    Violation { event: 0, lines: Vec::new(), disk: None, what: "it".into(), deeper: None };
                let all = units.all.iter().map(|unit| LineWords { line: unit.first, words: 1 });
                if self.0 == 3 { Err(violation) } else { Ok(all.collect()) }
            }
        }
        let units = units(&[&[&[0], &[1]], &[&[0], &[1]]]);
        let mut fails = Fails(0);
        let mut distinct = 0;
        let found = search(&units, 0, &mut fails, &mut distinct);
        assert_eq!(found.map_err(|violation| violation.what), Err("it".into()));
        assert_eq!(distinct, 3);
        assert_eq!(fails.0, 3);
    }
}
