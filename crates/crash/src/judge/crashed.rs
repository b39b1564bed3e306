//! Recoveries that are crashed in their turn.
//!
//! What comes of a recovery that is cut short follows from the states that this leaves: from what the recovery had stored by then, and from
//! what is looked at in these states that was there before. The latter is gathered, so that the same need not be found out twice, neither of a
//! whole recovery nor of one of its moments; and so that the search tries what else might have been there.

use std::collections::HashSet;
use std::rc::Rc;

use nvm::{Event, EventKind, Line, LineWords, Look, Recording, RecordingOptions};

use crate::arena::{self, Arena};
use crate::hash::{self, IdentityHasher, Lines};
use crate::judge::recovery::Recovered;
use crate::judge::{Fault, Judge, Point, State};
use crate::lag::Allowed;
use crate::machine::Machine;
use crate::tree::Tree;
use crate::violation::Violation;

/// What was crashed, but for what is looked at in the states that this leaves.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Crashed {
    what: What,
    /// The hash of the tree that a recovery leads to.
    tree: u64,
    /// How deep.
    depth: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    /// A recovery: the hash of what it stored, in its order.
    Whole(u64),
    /// One of its moments: the hash of what it has stored by then; see [`hash_at`].
    Moment(u64),
}

/// Looks at a state, each thing once, in order.
pub(super) struct Looks {
    /// A number that no other list of looks has.
    pub(super) list: u64,
    all: Vec<Look>,
    /// Of those: words by their lines, and questions.
    words: Lines<u8>,
    asked: HashSet<u32, IdentityHasher>,
}

impl Looks {
    fn new(list: u64) -> Looks {
        Looks { list, all: Vec::new(), words: Lines::default(), asked: HashSet::default() }
    }

    fn add(&mut self, look: Look) {
        match look {
            Look::Words(LineWords { line, words }) => {
                let known = self.words.entry(line).or_default();
                let words = words & !*known;
                if words != 0 {
                    *known |= words;
                    self.all.push(Look::Words(LineWords { line, words }));
                }
            }
            Look::Asked(number) => {
                if self.asked.insert(number) {
                    self.all.push(look);
                }
            }
        }
    }

    /// Has words in place of questions, which are about to be void.
    pub(super) fn forget_questions(&mut self, arena: &Arena) {
        self.asked.clear();
        for look in std::mem::take(&mut self.all) {
            match look {
                Look::Words(_) => self.all.push(look),
                Look::Asked(_) => {
                    let words = arena.words_of(&[look], |_| true);
                    words.into_iter().for_each(|words| self.add(Look::Words(words)));
                }
            }
        }
    }
}

/// What is looked at in the states that cutting a recovery short at one moment leaves, of that which was there before it.
pub(super) struct Gathered {
    pub(super) looks: Looks,
    /// The words that the recovery has made durable.
    arrived: Lines<u8>,
    /// The lines under way, as they are durable.
    pending: Lines<Line>,
}

impl Gathered {
    fn new(looks: Looks, machine: &Machine) -> Gathered {
        let pending = machine.pending.iter().map(|(line, pending)| (*line, pending.durable)).collect();
        Gathered { looks, arrived: machine.arrived.clone(), pending }
    }

    /// Adds looks at such a state, which is in memory, or at what its recovery, `recovered`, makes of it.
    pub(super) fn add(&mut self, arena: &Arena, looks: &[Look], recovered: Option<&Recovered>) {
        for look in looks {
            match look {
                Look::Words(words) => self.add_words(arena, *words, recovered),
                Look::Asked(_) => {
                    let words = arena.words_of(&[*look], |_| true);
                    if words.iter().all(|words| self.is_as_it_was(words.line, recovered)) {
                        self.looks.add(*look);
                    } else {
                        words.into_iter().for_each(|words| self.add_words(arena, words, recovered));
                    }
                }
            }
        }
    }

    fn add_words(&mut self, arena: &Arena, words: LineWords, recovered: Option<&Recovered>) {
        let words = recovered.map_or(Some(words), |it| it.left(words));
        if let Some(words) = words.and_then(|words| self.untouched(arena, words)) {
            self.looks.add(Look::Words(words));
        }
    }

    /// Whether nothing was stored to a line.
    fn is_as_it_was(&self, line: u32, recovered: Option<&Recovered>) -> bool {
        !self.arrived.contains_key(&line)
            && !self.pending.contains_key(&line)
            && recovered.is_none_or(|it| it.words_stored(line) == 0)
    }

    /// Of these words, those that may hold what they did before the recovery. What one holds that has been stored to since follows from
    /// what was stored.
    fn untouched(&self, arena: &Arena, read: LineWords) -> Option<LineWords> {
        let arrived = self.arrived.get(&read.line).copied().unwrap_or_default();
        let changed = self
            .pending
            .get(&read.line)
            .map(|before| arena::words_that_differ(before, &arena.line(read.line)));
        let words = read.words & !arrived & !changed.unwrap_or_default();
        (words != 0).then_some(LineWords { words, ..read })
    }
}

impl Judge {
    /// Crashes the recovery of the state in memory everywhere, unless it is known what comes of that. `recorded` is the hash of its recording,
    /// which is made again if it is not at hand; `tree` is what it leads to. Gives what that depends on in the state, if it is to be exact, beyond
    /// what the recovery does.
    pub(super) fn crash_recovery(
        &mut self,
        state: &State<'_>,
        recorded: u64,
        recording: Option<Recording>,
        tree: &Rc<Tree>,
    ) -> Result<Vec<Look>, Fault> {
        let arena = self.arena.clone();
        let crashed = Crashed { what: What::Whole(recorded), tree: tree.hash(), depth: state.point.depth };
        let (differ, mut looks) = (|words| state.may_differ(words), Vec::new());
        let mut runs = self.crashed.get_mut(&crashed);
        let known = runs.as_mut().and_then(|runs| arena.known(runs, state.number, differ, &mut looks));
        let is_known = known.is_some();
        if is_known && !(self.exact && self.doubts) {
            if let (Some(around), Some(runs)) = (self.gathered.last_mut(), runs) {
                around.add(&arena, &arena.looks_of(runs, around.looks.list), None);
            }
            return Ok(looks);
        }
        let recording = match recording {
            Some(recording) => recording,
            None => {
                arena.zone.start_recording(RecordingOptions::default());
                let opened = self.open_again();
                let recording = arena.zone.stop_recording().expect("it was started");
                opened?.abandon();
                arena.put_back(state.mark);
                recording
            }
        };
        self.cover_recording(&recording);
        let (counts, forgotten) = (self.counts, self.forgotten);
        let list = self.next_number();
        self.crashing.push(Looks::new(list));
        let found = self.crash_everywhere(&Inner { recording: &recording, tree, state });
        let looks = self.crashing.pop().map(|looks| looks.all).unwrap_or_default();
        arena.put_back(state.mark);
        if is_known {
            // It was counted then.
            self.counts = counts;
        } else {
            // Those deeper still are among them.
            self.counts.deep = counts.deep + (self.counts.distinct - counts.distinct);
        }
        found.map_err(|violation| Fault {
            what: format!("its recovery was cut short, and then: {}", violation.what),
            deeper: Some(Box::new(violation)),
        })?;
        if let Some(around) = self.gathered.last_mut() {
            around.add(&arena, &looks, None);
        }
        if is_known && self.forgotten == forgotten {
            let runs = self.crashed.entry(crashed).or_default();
            if arena.looks_of(runs, list) != looks {
                return Err(Fault::of("crashing its recovery is not what is known of it".into()));
            }
        }
        self.remember(crashed, &looks, forgotten);
        Ok(looks)
    }

    /// Remembers what was looked at in the state in memory, of which nothing bad came. Looks from before all was forgotten are void, and there may be
    /// too few of them.
    fn remember(&mut self, crashed: Crashed, looks: &[Look], forgotten: u64) {
        if self.forgotten == forgotten {
            let runs = self.crashed.entry(crashed).or_default();
            self.steps += runs.insert(&self.arena.steps(looks), ());
        }
    }

    fn crash_everywhere(&mut self, inner: &Inner<'_>) -> Result<(), Violation> {
        let arena = self.arena.clone();
        // What this state has beyond what was durable is durable now.
        let mut machine = Machine::new(arena.disk.clone());
        let allowed = Allowed::Trees(vec![inner.tree.clone()]);
        let outer = inner.state.point;
        let events = &inner.recording.events;
        for index in 0..=events.len() {
            let settles = |event: &Event| matches!(event.kind, EventKind::Fence | EventKind::DiskSync);
            if events.get(index).is_none_or(settles) {
                let point = Point {
                    event: index,
                    durable: arena.mark(),
                    depth: outer.depth - 1,
                    allowed: &allowed,
                    seed: outer.seed ^ index as u64,
                };
                if self.exact {
                    self.crash_at(&machine, &point, inner)?;
                } else {
                    self.point(&machine, &point)?;
                }
            }
            if index < events.len() {
                machine.step(inner.recording, index, |line| arena.line(line));
                arena.patch(machine.take_fresh().iter().map(|(line, bytes)| (*line, bytes)));
            }
        }
        Ok(())
    }

    /// Crashes a recovery at one moment, unless it is known what comes of that.
    fn crash_at(&mut self, machine: &Machine, point: &Point<'_>, inner: &Inner<'_>) -> Result<(), Violation> {
        let arena = self.arena.clone();
        let what = What::Moment(hash_at(machine, &arena));
        let crashed = Crashed { what, tree: inner.tree.hash(), depth: inner.state.point.depth };
        let (list, forgotten, counts) = (self.next_number(), self.forgotten, self.counts);
        let around = self.crashing.last().filter(|_| !self.doubts).map_or(list, |looks| looks.list);
        let known = self.crashed.get_mut(&crashed).and_then(|runs| {
            let differ = |words| inner.state.may_differ(words);
            let known = arena.known(runs, inner.state.number, differ, &mut Vec::new());
            known.map(|()| arena.looks_of(runs, around))
        });
        let looks = match known {
            Some(looks) if !self.doubts => looks,
            known => {
                let list = self.next_number();
                self.gathered.push(Gathered::new(Looks::new(list), machine));
                let found = self.point(machine, point);
                let looks = self.gathered.pop().map(|gathered| gathered.looks.all).unwrap_or_default();
                found?;
                if known.is_some() {
                    // It was counted then.
                    self.counts = counts;
                }
                if known.is_some_and(|known| known != looks) && self.forgotten == forgotten {
                    let what = "cutting it short here is not what is known of it".into();
                    return Err(Violation {
                        event: point.event,
                        lines: Vec::new(),
                        disk: None,
                        what,
                        deeper: None,
                    });
                }
                self.remember(crashed, &looks, forgotten);
                looks
            }
        };
        if let Some(around) = self.crashing.last_mut() {
            looks.into_iter().for_each(|look| around.add(look));
        }
        Ok(())
    }
}

/// A recovery that is being crashed.
struct Inner<'r> {
    recording: &'r Recording,
    tree: &'r Rc<Tree>,
    /// What it recovers from.
    state: &'r State<'r>,
}

/// The hash of what a recovery has stored by now: what its words hold that are durable, and what is under way.
fn hash_at(machine: &Machine, arena: &Arena) -> u64 {
    let of = |sum, line: u32, words: u8, held: &Line| {
        hash::mix(hash::mix(sum, u64::from(line) << 8 | u64::from(words)), hash::of_words(words, held))
    };
    let arrived = machine.arrived.iter().map(|(line, words)| of(0, *line, *words, &arena.line(*line)));
    let pending = machine
        .pending
        .iter()
        .flat_map(|(line, pending)| pending.versions.iter().map(move |version| (*line, version)));
    pending.fold(arrived.fold(0, u64::wrapping_add), |sum, (line, version)| {
        of(sum, line, version.words, &version.line)
    })
}
