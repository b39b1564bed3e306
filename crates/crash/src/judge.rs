//! What is done with a state: recover it, check it, compare it, use it, and crash its recovery.

mod crashed;
mod life;
mod recovery;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use nvm::{LineWords, Look, Recording, WatchMark};
use vfs::Time;

use crate::arena::Arena;
use crate::cut;
use crate::hash::IdentityHasher;
use crate::judge::crashed::{Crashed, Gathered, Looks};
use crate::judge::recovery::{Recovered, Recovery};
use crate::lag::Allowed;
use crate::machine::{Machine, lines_of};
use crate::memo::{Runs, Universe};
use crate::search::{Choices, Run, search};
use crate::subject::{Promise, Subject};
use crate::tree::Tree;
use crate::unit::Units;
use crate::violation::Violation;

/// The clock while a state is judged: later than any workload's.
const JUDGEMENT_DAY: Time = Time { sec: 2_000_000_000, nsec: 0 };
/// Crashed recoveries remembered at most, when a workload begins.
const CRASHED_MAX: usize = 200_000;
/// Steps of runs remembered at most, when a point begins, or when a workload begins, of all scenes together: some 150 MB.
pub(crate) const STEPS_MAX: usize = 6_000_000;
/// Questions remembered at most, when a point begins: some 100 MB.
const QUESTIONS_MAX: usize = 1_000_000;

/// How many states there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Crash points: moments just before a fence or the return of an operation. All moments between have no states
    /// that these don't have.
    pub points: u64,
    /// States that the lines' versions make.
    pub built: u64,
    /// Those that differ from all others of their crash point in something that is read.
    pub distinct: u64,
    /// Those whose checks were not yet known from an equal state.
    pub checked: u64,
    /// Of the distinct ones, those of crashed recoveries.
    pub deep: u64,
    /// Operations of workloads that the volume had no room for, and left undone, or did a part of.
    pub without_room: u64,
}

impl Counts {
    /// Adds another's.
    pub fn add(&mut self, other: Counts) {
        self.points += other.points;
        self.built = self.built.saturating_add(other.built);
        self.distinct += other.distinct;
        self.checked += other.checked;
        self.deep += other.deep;
        self.without_room += other.without_room;
    }
}

/// The tree that a state recovers to, or what is wrong with it.
pub(crate) type Verdict = Result<Rc<Tree>, Fault>;

#[derive(Clone)]
pub(crate) struct Fault {
    what: String,
    deeper: Option<Box<Violation>>,
}

impl Fault {
    fn of(what: String) -> Fault {
        Fault { what, deeper: None }
    }
}

/// What is looked at by a recovery, or by what comes of it.
struct Looked {
    /// In order: all of it; or, if that was known, what may be something else in other states of the point.
    looks: Vec<Look>,
    /// If it was known, and is gathered: all that is not gathered yet.
    known: Option<Vec<Look>>,
}

impl Looked {
    fn to_gather(&self) -> &[Look] {
        self.known.as_ref().unwrap_or(&self.looks)
    }
}

/// Judges the states of one arena.
pub(crate) struct Judge {
    pub(crate) subject: &'static dyn Subject,
    pub(crate) arena: Rc<Arena>,
    pub(crate) promise: Promise,
    pub(crate) counts: Counts,
    /// All lines that differ from what they held when this was last emptied, and more.
    universe: Universe,
    /// What recoveries did, by what they read.
    recoveries: Runs<Rc<Recovered>>,
    /// What came of recovered volumes, by the hash of what their recovery stored, and what was read of them then.
    lives: HashMap<u64, Runs<Verdict>, IdentityHasher>,
    /// How much all these take, in steps of runs.
    steps: usize,
    /// How many crash points and lists of looks there were.
    numbers: u64,
    /// What is known is found out anew, and must be the same.
    pub(crate) doubts: bool,
    /// A recovery is crashed for each difference that one which was cut short could see, not once for all that store the same.
    pub(crate) exact: bool,
    /// Recoveries that were crashed and kept the promise, by what was looked at then if that is to be exact.
    crashed: HashMap<Crashed, Runs<()>>,
    /// What is looked at while recoveries are crashed, if that is to be exact: the innermost is last.
    gathered: Vec<Gathered>,
    /// The same of recoveries, of the states that these begin with.
    crashing: Vec<Looks>,
    /// How often all was forgotten.
    forgotten: u64,
    /// Trees that were found, by their hashes: one is the verdict of many states.
    trees: HashMap<u64, Rc<Tree>>,
}

/// One crash point.
pub(crate) struct Point<'p> {
    /// The event before which the power goes.
    pub(crate) event: usize,
    /// The state with nothing but durable lines.
    pub(crate) durable: WatchMark,
    /// How deep recoveries are crashed: 1 not at all, 2 once.
    pub(crate) depth: u32,
    /// What the recovered tree may be.
    pub(crate) allowed: &'p Allowed,
    pub(crate) seed: u64,
}

/// One state of a crash point.
struct State<'s> {
    point: &'s Point<'s>,
    /// The point's number, among all points.
    number: u64,
    /// What the point's states differ in.
    units: &'s Units,
    /// When memory is in this state.
    mark: WatchMark,
}

impl State<'_> {
    /// Whether other states of the point may hold something else in these words.
    fn may_differ(&self, words: LineWords) -> bool {
        self.units.of_line(words.line).is_some()
    }

    /// Whether its recovery is crashed.
    fn is_deep(&self) -> bool {
        self.point.depth > 1
    }
}

impl Judge {
    pub(crate) fn new(subject: &'static dyn Subject, arena: Rc<Arena>, promise: Promise) -> Judge {
        Judge {
            subject,
            arena,
            promise,
            counts: Counts::default(),
            universe: Universe::default(),
            recoveries: Runs::default(),
            lives: HashMap::default(),
            steps: 0,
            numbers: 0,
            doubts: false,
            exact: false,
            crashed: HashMap::new(),
            gathered: Vec::new(),
            crashing: Vec::new(),
            forgotten: 0,
            trees: HashMap::new(),
        }
    }

    /// Judges every state that a power cut now could leave.
    pub(crate) fn point(&mut self, machine: &Machine, point: &Point<'_>) -> Result<(), Violation> {
        if self.steps > STEPS_MAX || self.arena.questions() > QUESTIONS_MAX {
            self.forget_known();
        }
        let units = cut::units(machine);
        self.counts.points += 1;
        self.counts.built = self.counts.built.saturating_add(units.product());
        let mut distinct = 0;
        let found = self.later(point, |at| search(&units, point.seed, at, &mut distinct));
        self.counts.distinct += distinct;
        found
    }

    /// Judges one state of a crash point again: the one with these lines.
    pub(crate) fn replay(
        &mut self,
        machine: &Machine,
        point: &Point<'_>,
        lines: &[(u32, usize)],
    ) -> Result<Result<(), Violation>, String> {
        let units = cut::units(machine);
        let mut choices = vec![0; units.all.len()];
        let first = self.first_line();
        for (line, choice) in lines {
            let unit = units.of_line(line + first).filter(|unit| *choice < units.all[*unit].choices());
            choices[unit.ok_or_else(|| format!("line {line} has no choice {choice} there"))?] = *choice;
        }
        Ok(self.later(point, |at| at.run(&units, &choices).map(drop)))
    }

    /// Runs states of a point when the clock is later than all that was written. Afterwards clock and memory are as before.
    fn later<R>(&mut self, point: &Point<'_>, judge: impl FnOnce(&mut At<'_>) -> R) -> R {
        let (clock, number) = (Time::stopped(), self.next_number());
        Time::stop(Some(JUDGEMENT_DAY));
        let found = judge(&mut At { judge: self, point, number });
        Time::stop(clock);
        self.arena.put_back(point.durable);
        found
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn first_line(&self) -> u32 {
        (self.arena.region.entry().start / nvm::LINE) as u32
    }

    fn violation(&self, point: &Point<'_>, units: &Units, choices: &Choices, fault: Fault) -> Violation {
        let first = self.first_line();
        let lines = units.all.iter().zip(choices).filter(|(_, choice)| **choice != 0);
        Violation {
            event: point.event,
            lines: lines.map(|(unit, choice)| (unit.first - first, *choice)).collect(),
            disk: (!self.arena.disk.is_empty()).then(|| self.arena.disk.start - first),
            what: fault.what,
            deeper: fault.deeper,
        }
    }

    /// Recovers the state in memory, judges what comes of it, remembers all that, and crashes the recovery. Gives the words of the units that
    /// this depends on, in order.
    fn judge(&mut self, state: &State<'_>) -> Result<Vec<LineWords>, Fault> {
        let Recovery { did, looked, is_new, recording, opened } = self.recovered(state)?;
        let life = self.life_of(state, &did, opened)?;
        // What looks find in the state can only be told while memory is in it.
        self.arena.put_back(state.mark);
        if let Some(gathered) = self.gathered.last_mut() {
            gathered.add(&self.arena, looked.to_gather(), None);
            gathered.add(&self.arena, life.looked.to_gather(), Some(&did));
        }
        if is_new {
            self.remember_recovery(&did, &looked.looks);
        }
        let tree = life.verdict?;
        let mut read = self.words_of(&looked.looks, state);
        let looked_at = self.words_of(&life.looked.looks, state);
        read.extend(looked_at.into_iter().filter_map(|words| did.left(words)));
        if let Some(recorded) = did.recorded.filter(|_| state.is_deep()) {
            let looks = self.crash_recovery(state, recorded, recording, &tree)?;
            read.extend(self.words_of(&looks, state));
        }
        state.point.allowed.admits(&tree).map_err(Fault::of)?;
        Ok(read)
    }

    /// The words that looks are at, of lines that may be in a unit.
    fn words_of(&self, looks: &[Look], state: &State<'_>) -> Vec<LineWords> {
        self.arena.words_of(looks, |line| state.units.has(line))
    }

    /// Says that states differ in these lines, too. True if that is news: then nothing is known any more, as nobody looked at them.
    pub(crate) fn cover(&mut self, lines: impl IntoIterator<Item = std::ops::Range<u64>>) -> bool {
        let grown = self.universe.add(lines);
        if grown {
            self.forget_runs();
        }
        grown
    }

    /// The same, of all that is stored in a recording.
    pub(crate) fn cover_recording(&mut self, recording: &Recording) {
        let stores = recording.events.iter().filter(|event| event.length > 0 && event.kind.is_store());
        self.cover(stores.map(|event| {
            let lines = lines_of(event);
            u64::from(lines.start)..u64::from(lines.end)
        }));
    }

    fn forget_runs(&mut self) {
        (self.recoveries, self.lives, self.steps) = (Runs::default(), HashMap::default(), 0);
        self.trees.clear();
        if self.exact {
            self.crashed.clear();
            self.forgotten += 1;
        }
    }

    /// Forgets all that is remembered of runs, and what they asked: while nobody runs.
    pub(crate) fn forget_known(&mut self) {
        self.forget_runs();
        let gathered = self.gathered.iter_mut().map(|gathered| &mut gathered.looks);
        gathered.chain(&mut self.crashing).for_each(|looks| looks.forget_questions(&self.arena));
        self.arena.forget_questions();
    }

    /// How much all that takes, in steps.
    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    /// Begins a workload. Forgets which recoveries were crashed if they are many: those of other workloads seldom help.
    pub(crate) fn begin(&mut self) {
        self.counts = Counts::default();
        if self.crashed.len() > CRASHED_MAX {
            self.crashed.clear();
        }
    }

    /// Forgets all verdicts: what is in memory now is what states are told apart by.
    pub(crate) fn forget(&mut self) {
        self.counts = Counts::default();
        self.universe = Universe::default();
        self.forget_runs();
        self.crashed.clear();
    }
}

/// Runs states of one point.
struct At<'j> {
    judge: &'j mut Judge,
    point: &'j Point<'j>,
    /// Among all points.
    number: u64,
}

impl Run for At<'_> {
    fn run(&mut self, units: &Units, choices: &Choices) -> Result<Vec<LineWords>, Violation> {
        let (judge, point, number) = (&mut *self.judge, self.point, self.number);
        judge.arena.put_back(point.durable);
        let chosen = units.all.iter().zip(choices).filter(|(_, choice)| **choice != 0);
        judge.arena.patch(chosen.flat_map(|(unit, choice)| {
            unit.contents(*choice).iter().enumerate().map(|(n, bytes)| (unit.first + n as u32, bytes))
        }));
        let state = State { point, number, units, mark: judge.arena.mark() };
        judge.judge(&state).map_err(|fault| judge.violation(point, units, choices, fault))
    }
}

/// Runs what a damaged volume may break.
pub(crate) fn guarded<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        Err(format!("it panics: {}", text.unwrap_or_default()))
    })
}
