//! What is done with a state: recover it, check it, compare it, use it, and crash its recovery.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use nvm::{EventKind, Recording, RecordingOptions, Region, WatchMark};
use vfs::Time;

use crate::arena::Arena;
use crate::hash;
use crate::lag::Allowed;
use crate::machine::Machine;
use crate::memo::{Key, Memo};
use crate::search::{Choices, Run, search};
use crate::subject::{Mounted, Promise, Subject};
use crate::tree::Tree;
use crate::unit::Units;
use crate::usage;

/// The clock while a state is judged: later than any workload's.
const JUDGEMENT_DAY: Time = Time { sec: 2_000_000_000, nsec: 0 };
/// Crashed recoveries remembered at most, when a workload begins.
const CRASHED_MAX: usize = 200_000;
/// Trees remembered at most.
const TREES_MAX: usize = 500;

/// How many states there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Crash points: moments just before a fence or the return of an operation. All moments between have no states
    /// that these don't have.
    pub points: u64,
    /// States that the lines' versions make.
    pub built: u64,
    /// Those that differ in something that is read.
    pub distinct: u64,
    /// Those whose checks were not yet known from an equal state.
    pub checked: u64,
    /// Of the distinct ones, those of crashed recoveries.
    pub deep: u64,
}

impl Counts {
    /// Adds another's.
    pub fn add(&mut self, other: Counts) {
        self.points += other.points;
        self.built = self.built.saturating_add(other.built);
        self.distinct += other.distinct;
        self.checked += other.checked;
        self.deep += other.deep;
    }
}

/// A state that breaks the promise.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Index of the event before which the power went.
    pub event: usize,
    /// The first line of each unit that was not as it was durable, from the volume's start, and the choice.
    pub lines: Vec<(u32, usize)>,
    /// The first of the lines that stand for the volume's disk, eight a sector, if it has one.
    pub disk: Option<u32>,
    /// What is wrong.
    pub what: String,
    /// If the recovery of this state was crashed, where that was.
    pub deeper: Option<Box<Violation>>,
}

impl Violation {
    /// Of this state, or of the one of its recovery that is to blame.
    pub fn deepest(&self) -> &Violation {
        self.deeper.as_deref().map_or(self, Violation::deepest)
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

/// Judges the states of one arena.
pub(crate) struct Judge {
    pub(crate) subject: &'static dyn Subject,
    pub(crate) arena: Rc<Arena>,
    pub(crate) promise: Promise,
    pub(crate) counts: Counts,
    memo: Memo,
    /// Recoveries that were crashed, by what they stored in which order, and the tree they lead to.
    crashed: HashMap<(u64, u64), Result<(), Fault>>,
    /// Trees that were found, by their hashes: one is the verdict of many states.
    trees: HashMap<u64, Rc<Tree>>,
}

/// One crash point.
pub(crate) struct Point<'p> {
    /// The event before which the power goes.
    pub(crate) event: usize,
    /// The state with nothing but durable lines.
    pub(crate) durable: WatchMark,
    pub(crate) durable_hash: u64,
    /// How deep recoveries are crashed: 1 not at all, 2 once.
    pub(crate) depth: u32,
    /// What the recovered tree may be.
    pub(crate) allowed: &'p Allowed,
    pub(crate) seed: u64,
}

impl Judge {
    pub(crate) fn new(subject: &'static dyn Subject, arena: Rc<Arena>, promise: Promise) -> Judge {
        let (memo, crashed, trees) = (Memo::default(), HashMap::new(), HashMap::new());
        Judge { subject, arena, promise, counts: Counts::default(), memo, crashed, trees }
    }

    /// Judges every state that a power cut now could leave.
    pub(crate) fn point(&mut self, machine: &Machine, point: &Point<'_>) -> Result<(), Violation> {
        let units = Units::of(machine);
        self.counts.points += 1;
        self.counts.built = self.counts.built.saturating_add(units.product());
        let clock = Time::stopped();
        Time::stop(Some(JUDGEMENT_DAY));
        let found = search(&units, point.seed, &mut At { judge: self, point });
        Time::stop(clock);
        self.arena.put_back(point.durable);
        found
    }

    /// Judges one state of a crash point again: the one with these lines.
    pub(crate) fn replay(
        &mut self,
        machine: &Machine,
        point: &Point<'_>,
        lines: &[(u32, usize)],
    ) -> Result<Result<(), Violation>, String> {
        let units = Units::of(machine);
        let mut choices = vec![0; units.all.len()];
        let first = self.first_line();
        for (line, choice) in lines {
            let unit = units.of_line(line + first).filter(|unit| *choice < units.all[*unit].choices());
            choices[unit.ok_or_else(|| format!("line {line} has no choice {choice} there"))?] = *choice;
        }
        Time::stop(Some(JUDGEMENT_DAY));
        let found = At { judge: self, point }.run(&units, &choices).map(drop);
        self.arena.put_back(point.durable);
        Ok(found)
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

    /// Recovers the state in memory and judges it. Also says which candidate lines it depends on, in order.
    fn judge(&mut self, units: &Units, point: &Point<'_>) -> (Verdict, Vec<u32>) {
        let arena = self.arena.clone();
        let state = arena.mark();
        arena.seek(units.lines());
        let opened = guarded(|| self.open());
        let mut read = arena.take_read();
        let opened = match opened {
            Ok(opened) => opened,
            Err(what) => return (Err(Fault::of(format!("it does not open: {what}"))), read),
        };
        let stored = arena.hash_since(state);
        let key =
            Key { durable: point.durable_hash, under_way: units.lines_hash, stored, deep: point.depth > 1 };
        let hash = |line| hash::of_line(line, &arena.line(line));
        if let Some((verdict, depends)) = self.memo.get(&key, hash) {
            opened.abandon();
            read.extend(depends);
            return (verdict, read);
        }
        self.counts.checked += 1;
        let recovered = arena.mark();
        let live = self.live(opened, point);
        let mut verdict = live.map(|tree| self.interned(&tree)).map_err(Fault::of);
        arena.put_back(recovered);
        let depends: Vec<(u32, u64)> = arena.take_read().into_iter().map(|line| (line, hash(line))).collect();
        arena.put_back(state);
        if point.depth > 1
            && let Ok(tree) = &verdict
        {
            let tree = tree.clone();
            if let Err(fault) = self.crash_recovery(state, &tree, point) {
                verdict = Err(fault);
            }
        }
        read.extend(depends.iter().map(|(line, _)| line));
        self.memo.insert(key, &depends, verdict.clone());
        (verdict, read)
    }

    fn interned(&mut self, tree: &Rc<Tree>) -> Rc<Tree> {
        if self.trees.len() >= TREES_MAX {
            self.trees.clear();
        }
        self.trees.entry(tree.hash()).or_insert_with(|| tree.clone()).clone()
    }

    /// Reads a volume's tree; one that was met before is not put together again.
    fn tree_of(&self, mounted: &dyn Mounted) -> vfs::Result<Rc<Tree>> {
        match self.trees.get(&Tree::hash_of(mounted)?) {
            Some(tree) => Ok(tree.clone()),
            None => Tree::of(mounted).map(Rc::new),
        }
    }

    /// Forgets verdicts if there are many: those of other workloads seldom help.
    pub(crate) fn begin(&mut self) {
        self.counts = Counts::default();
        self.memo.trim();
        if self.crashed.len() > CRASHED_MAX {
            self.crashed.clear();
        }
    }

    /// Forgets all verdicts.
    pub(crate) fn forget(&mut self) {
        self.counts = Counts::default();
        self.memo = Memo::default();
        self.crashed.clear();
    }

    /// Recovers the state in memory.
    fn open(&self) -> Result<Opened, String> {
        let volume = self.subject.open(&self.arena.region, self.promise)?;
        let find = |region| self.subject.find(region, self.promise);
        let beside = self.arena.beside.as_ref().map(find).transpose();
        match beside {
            Ok(beside) => Ok(Opened { volume, beside: beside.flatten() }),
            Err(what) => Err(format!("the volume beside: {what}")),
        }
    }

    /// Reads the tree, checks, recovers again, and uses the volume, and the one beside it.
    fn live(&self, opened: Opened, point: &Point<'_>) -> Result<Rc<Tree>, String> {
        let tree = self.live_in(&self.arena.region, opened.volume, point, false)?;
        let (Some(mounted), Some(region)) = (opened.beside, &self.arena.beside) else { return Ok(tree) };
        let beside = self.live_in(region, mounted, point, true);
        let beside = beside.map_err(|what| format!("the volume beside: {what}"))?;
        Ok(Rc::new(Tree::clone(&tree).with_beside(Some(beside))))
    }

    /// The same, in one region. Of a volume that was just made, `is_new`, the last copy of something may be missing.
    fn live_in(
        &self,
        region: &Region,
        mounted: Box<dyn Mounted>,
        point: &Point<'_>,
        is_new: bool,
    ) -> Result<Rc<Tree>, String> {
        let subject = self.subject;
        let tree = guarded(|| {
            let tree = self.tree_of(&*mounted).map_err(|error| format!("its tree cannot be read: {error}"));
            mounted.abandon();
            tree
        })?;
        if is_new {
            guarded(|| subject.complete(region)).map_err(|what| format!("it cannot be completed: {what}"))?;
        }
        let check = |when: &str| {
            guarded(|| subject.check(region)).map_err(|what| format!("the check {when} finds: {what}"))
        };
        check("after recovery")?;
        let again = guarded(|| subject.open(region, self.promise))
            .map_err(|what| format!("it opens once, but not again: {what}"))?;
        guarded(move || {
            let unread = |error: vfs::Error| format!("its tree cannot be read again: {error}");
            if Tree::hash_of(&*again).map_err(unread)? != tree.hash() {
                let difference = Tree::of(&*again).map_err(unread)?.difference(&tree).unwrap_or_default();
                return Err(format!("recovering twice is not recovering once: {difference}"));
            }
            if point.depth > 0 {
                again.clear_snapshots().map_err(|what| format!("its snapshots cannot be removed: {what}"))?;
                usage::empty(&*again).map_err(|what| format!("it cannot be used: {what}"))?;
            }
            again.close().map_err(|what| format!("it cannot be closed: {what}"))?;
            Ok(tree)
        })
        .and_then(|tree| check("after use").map(|()| tree))
    }

    /// Records the recovery of the state in memory and crashes it everywhere.
    fn crash_recovery(&mut self, state: WatchMark, tree: &Rc<Tree>, outer: &Point<'_>) -> Result<(), Fault> {
        let arena = self.arena.clone();
        arena.zone.start_recording(RecordingOptions::default());
        let opened = guarded(|| self.open());
        let recording = arena.zone.stop_recording().expect("it was started");
        match opened {
            Ok(opened) => opened.abandon(),
            Err(what) => {
                return Err(Fault::of(format!("it opens once, but not when it is recorded: {what}")));
            }
        }
        arena.put_back(state);
        let key = (hash_of(&recording), tree.hash());
        if let Some(known) = self.crashed.get(&key) {
            return known.clone();
        }
        let before = self.counts.distinct;
        let allowed = Allowed::Trees(vec![tree.clone()]);
        let inner = Inner { recording: &recording, allowed: &allowed, seed: outer.seed };
        let found = self.crash_everywhere(&inner, outer).map_err(|violation| Fault {
            what: format!("its recovery was cut short, and then: {}", violation.what),
            deeper: Some(Box::new(violation)),
        });
        self.counts.deep += self.counts.distinct - before;
        arena.put_back(state);
        self.crashed.insert(key, found.clone());
        found
    }

    fn crash_everywhere(&mut self, inner: &Inner<'_>, outer: &Point<'_>) -> Result<(), Violation> {
        let arena = self.arena.clone();
        // What this state has beyond what was durable is durable now.
        let patched = arena.change_since(outer.durable);
        let mut machine = Machine::new(outer.durable_hash.wrapping_add(patched), arena.disk.clone());
        let events = &inner.recording.events;
        for index in 0..=events.len() {
            let settles = |event: &nvm::Event| matches!(event.kind, EventKind::Fence | EventKind::DiskSync);
            if events.get(index).is_none_or(settles) {
                let point = Point {
                    event: index,
                    durable: arena.mark(),
                    durable_hash: machine.durable_hash,
                    depth: outer.depth - 1,
                    allowed: inner.allowed,
                    seed: inner.seed ^ index as u64,
                };
                self.point(&machine, &point)?;
            }
            if index < events.len() {
                machine.step(inner.recording, index, |line| arena.line(line));
                arena.patch(machine.take_fresh().iter().map(|(line, bytes)| (*line, bytes)));
            }
        }
        Ok(())
    }
}

/// A state that was recovered.
struct Opened {
    volume: Box<dyn Mounted>,
    /// The volume beside it, if there is one.
    beside: Option<Box<dyn Mounted>>,
}

impl Opened {
    fn abandon(self) {
        self.volume.abandon();
        if let Some(beside) = self.beside {
            beside.abandon();
        }
    }
}

/// A recovery to be crashed.
struct Inner<'r> {
    recording: &'r Recording,
    allowed: &'r Allowed,
    seed: u64,
}

/// Runs states of one point.
struct At<'j, 'p> {
    judge: &'j mut Judge,
    point: &'j Point<'p>,
}

impl Run for At<'_, '_> {
    fn run(&mut self, units: &Units, choices: &Choices) -> Result<Vec<usize>, Violation> {
        let (judge, point) = (&mut *self.judge, self.point);
        judge.counts.distinct += 1;
        judge.arena.put_back(point.durable);
        let chosen = units.all.iter().zip(choices).filter(|(_, choice)| **choice != 0);
        judge.arena.patch(chosen.flat_map(|(unit, choice)| {
            unit.contents(*choice).iter().enumerate().map(|(n, bytes)| (unit.first + n as u32, bytes))
        }));
        let (verdict, read) = judge.judge(units, point);
        match verdict.and_then(|tree| point.allowed.admits(&tree).map_err(Fault::of)) {
            Ok(()) => {
                let mut met = vec![false; units.all.len()];
                let order = read.into_iter().filter_map(|line| units.of_line(line));
                Ok(order.filter(|unit| !std::mem::replace(&mut met[*unit], true)).collect())
            }
            Err(fault) => Err(judge.violation(point, units, choices, fault)),
        }
    }
}

/// What a recovery stored, in which order.
fn hash_of(recording: &Recording) -> u64 {
    recording.events.iter().fold(0, |sum, event| {
        let sum = hash::mix(hash::mix(sum, event.kind as u64 | event.length << 8), event.address);
        hash::mix_bytes(sum, recording.bytes_of(event).unwrap_or_default())
    })
}

/// Runs what a damaged volume may break.
pub(crate) fn guarded<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        Err(format!("it panics: {}", text.unwrap_or_default()))
    })
}
