//! What is done with a state: recover it, check it, compare it, use it, and crash its recovery.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use nvm::{EventKind, Line, LineWords, Look, Recording, RecordingOptions, Region, WatchMark};
use vfs::Time;

use crate::arena::Arena;
use crate::hash::{self, IdentityHasher};
use crate::lag::Allowed;
use crate::machine::{Machine, lines_of};
use crate::memo::{Runs, Step, Universe};
use crate::search::{Choices, Run, search};
use crate::subject::{Mounted, Promise, Subject};
use crate::tree::Tree;
use crate::unit::Units;
use crate::usage;

/// The clock while a state is judged: later than any workload's.
const JUDGEMENT_DAY: Time = Time { sec: 2_000_000_000, nsec: 0 };
/// Crashed recoveries remembered at most, when a workload begins.
const CRASHED_MAX: usize = 200_000;
/// Steps of runs remembered at most, when a point begins, or when a workload begins, of all scenes together: some 150 MB.
pub(crate) const STEPS_MAX: usize = 6_000_000;
/// Questions remembered at most, when a point begins: some 100 MB.
const QUESTIONS_MAX: usize = 1_000_000;
/// Steps that take as much as one stored line.
const STORED_STEPS: usize = size_of::<(LineWords, Line)>().div_ceil(size_of::<Step>());

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

/// What a recovery did.
struct Recovered {
    /// The words that it stored, by their lines, and what they hold since.
    stored: Vec<(LineWords, Line)>,
    /// The hash of these.
    hash: u64,
    /// The hash of its recording, if there is one.
    recorded: Option<u64>,
}

impl Recovered {
    /// Whether another one did something else.
    fn differs(&self, other: &Recovered) -> bool {
        let recorded = self.recorded.zip(other.recorded).is_some_and(|(this, other)| this != other);
        recorded || self.stored != other.stored
    }

    /// Of these words, those that it did not store.
    fn left(&self, read: LineWords) -> Option<LineWords> {
        let found = self.stored.binary_search_by_key(&read.line, |(stored, _)| stored.line);
        let stored = found.map_or(0, |index| self.stored[index].0.words);
        let words = read.words & !stored;
        (words != 0).then_some(LineWords { words, ..read })
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
    /// How many crash points there were.
    points: u64,
    /// What is known is found out anew, and must be the same.
    pub(crate) doubts: bool,
    /// Recoveries that were crashed, by what they stored in which order, the tree they lead to, and how deep.
    crashed: HashMap<(u64, u64, u32), Result<(), Fault>>,
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
            points: 0,
            doubts: false,
            crashed: HashMap::new(),
            trees: HashMap::new(),
        }
    }

    /// Judges every state that a power cut now could leave.
    pub(crate) fn point(&mut self, machine: &Machine, point: &Point<'_>) -> Result<(), Violation> {
        if self.steps > STEPS_MAX || self.arena.questions() > QUESTIONS_MAX {
            self.forget_known();
        }
        let units = Units::of(machine);
        self.counts.points += 1;
        self.counts.built = self.counts.built.saturating_add(units.product());
        let clock = Time::stopped();
        Time::stop(Some(JUDGEMENT_DAY));
        let found = search(&units, point.seed, &mut self.at(point));
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
        let found = self.at(point).run(&units, &choices).map(drop);
        self.arena.put_back(point.durable);
        Ok(found)
    }

    fn at<'j>(&'j mut self, point: &'j Point<'j>) -> At<'j> {
        self.points += 1;
        let number = self.points;
        At { judge: self, point, number }
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

    /// Recovers the state in memory, one of the `number`th point, and judges it. Also says on which words of `units` it depends, in
    /// order.
    fn judge(&mut self, units: &Units, point: &Point<'_>, number: u64) -> (Verdict, Vec<LineWords>) {
        let arena = self.arena.clone();
        let (state, deep) = (arena.mark(), point.depth > 1);
        let in_units = |words: LineWords| units.of_line(words.line).is_some();
        let mut looks: Vec<Look> = Vec::new();
        let known = arena.known(&mut self.recoveries, number, in_units, &mut looks);
        let known = known.filter(|it| !deep || it.recorded.is_some());
        let (mut opened, mut recording, mut is_new) = (None, None, false);
        let recovered = match known {
            Some(recovered) if !self.doubts => {
                arena.store(&recovered.stored);
                recovered
            }
            known => {
                let looks_then = known.as_ref().map(|_| arena.looks_of(&self.recoveries));
                if deep {
                    arena.zone.start_recording(RecordingOptions::default());
                }
                arena.seek(self.universe.runs());
                let found = guarded(|| self.open());
                recording = arena.zone.stop_recording();
                looks = arena.looks();
                match found {
                    Ok(found) => opened = Some(found),
                    Err(what) => return (Err(Fault::of(format!("it does not open: {what}"))), Vec::new()),
                }
                let stored = arena.stored_since(state);
                is_new = !self.cover(stored.iter().map(|(words, _)| line_run(words.line)));
                let hash = stored.iter().fold(0, |sum, (words, held)| {
                    let place = u64::from(words.line) << 8 | u64::from(words.words);
                    hash::mix(hash::mix(sum, place), hash::of_words(words.words, held))
                });
                let recovered = Recovered { stored, hash, recorded: recording.as_ref().map(hash_of) };
                let looked_the_same = looks_then.is_none_or(|then| then == looks);
                if known.is_some_and(|known| known.differs(&recovered) || !looked_the_same) {
                    return (Err(Fault::of("its recovery is not what is known of it".into())), Vec::new());
                }
                Rc::new(recovered)
            }
        };
        let mut looked_at: Vec<Look> = Vec::new();
        let lives = self.lives.entry(recovered.hash).or_default();
        let differ = |words| in_units(words) && recovered.left(words).is_some();
        let known = arena.known(lives, number, differ, &mut looked_at);
        let live = match known {
            Some(live) if !self.doubts => {
                if let Some(opened) = opened {
                    opened.abandon();
                }
                live
            }
            known => {
                self.counts.checked += 1;
                let looked_at_then = known.as_ref().map(|_| arena.looks_of(lives));
                let again = || {
                    arena.put_back(state);
                    guarded(|| self.open()).map_err(|what| format!("it opens once, but not again: {what}"))
                };
                let opened = match opened.map_or_else(again, Ok) {
                    Ok(opened) => opened,
                    Err(what) => return (Err(Fault::of(what)), Vec::new()),
                };
                let after = arena.mark();
                arena.seek(self.universe.runs());
                let live = self.live(opened).map(|tree| self.interned(&tree)).map_err(Fault::of);
                looked_at = arena.looks();
                arena.put_back(after);
                let hash = |live: &Verdict| {
                    live.as_ref().map(|tree| tree.hash()).map_err(|fault| fault.what.clone())
                };
                let looked_the_same = looked_at_then.is_none_or(|then| then == looked_at);
                if known.is_some_and(|known| hash(&known) != hash(&live) || !looked_the_same) {
                    return (Err(Fault::of("what comes of it is not what is known".into())), Vec::new());
                }
                let lives = self.lives.entry(recovered.hash).or_default();
                self.steps += lives.insert(&arena.steps(&looked_at), live.clone());
                live
            }
        };
        arena.put_back(state);
        if is_new {
            let steps = self.recoveries.insert(&arena.steps(&looks), recovered.clone());
            self.steps += steps + recovered.stored.len() * STORED_STEPS;
        }
        let mut read = arena.words_of(&looks, |line| units.has(line));
        let looked_at = arena.words_of(&looked_at, |line| units.has(line));
        read.extend(looked_at.into_iter().filter_map(|words| recovered.left(words)));
        let verdict = match (live, recovered.recorded) {
            (Ok(tree), Some(recorded)) if deep => {
                self.crash_recovery(state, recorded, recording, &tree, point).map(|()| tree)
            }
            (live, _) => live,
        };
        (verdict, read)
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
    }

    /// Forgets all that is remembered of runs, and what they asked: while nobody runs.
    pub(crate) fn forget_known(&mut self) {
        self.forget_runs();
        self.arena.forget_questions();
    }

    /// How much all that takes, in steps.
    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    fn interned(&mut self, tree: &Rc<Tree>) -> Rc<Tree> {
        let known = self.trees.entry(tree.hash()).or_insert_with(|| {
            self.steps += tree.bytes() / size_of::<Step>();
            tree.clone()
        });
        known.clone()
    }

    /// Reads a volume's tree; one that was met before is not put together again.
    fn tree_of(&self, mounted: &dyn Mounted) -> vfs::Result<Rc<Tree>> {
        match self.trees.get(&Tree::hash_of(mounted)?) {
            Some(tree) => Ok(tree.clone()),
            None => Tree::of(mounted).map(Rc::new),
        }
    }

    /// Forgets which recoveries were crashed if they are many: those of other workloads seldom help.
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
    fn live(&self, opened: Opened) -> Result<Rc<Tree>, String> {
        let tree = self.live_in(&self.arena.region, opened.volume, false)?;
        let (Some(mounted), Some(region)) = (opened.beside, &self.arena.beside) else { return Ok(tree) };
        let beside = self.live_in(region, mounted, true);
        let beside = beside.map_err(|what| format!("the volume beside: {what}"))?;
        Ok(Rc::new(Tree::clone(&tree).with_beside(Some(beside))))
    }

    /// The same, in one region. Of a volume that was just made, `is_new`, the last copy of something may be missing.
    fn live_in(&self, region: &Region, mounted: Box<dyn Mounted>, is_new: bool) -> Result<Rc<Tree>, String> {
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
            again.clear_snapshots().map_err(|what| format!("its snapshots cannot be removed: {what}"))?;
            usage::empty(&*again).map_err(|what| format!("it cannot be used: {what}"))?;
            again.close().map_err(|what| format!("it cannot be closed: {what}"))?;
            Ok(tree)
        })
        .and_then(|tree| check("after use").map(|()| tree))
    }

    /// Crashes the recovery of the state in memory everywhere. Its recording has the hash `recorded`; unless it is at hand, it is made
    /// again, should it be needed.
    fn crash_recovery(
        &mut self,
        state: WatchMark,
        recorded: u64,
        recording: Option<Recording>,
        tree: &Rc<Tree>,
        outer: &Point<'_>,
    ) -> Result<(), Fault> {
        let key = (recorded, tree.hash(), outer.depth);
        if let Some(known) = self.crashed.get(&key) {
            return known.clone();
        }
        let arena = self.arena.clone();
        let recording = match recording {
            Some(recording) => recording,
            None => {
                arena.zone.start_recording(RecordingOptions::default());
                let opened = guarded(|| self.open());
                let recording = arena.zone.stop_recording().expect("it was started");
                let opened =
                    opened.map_err(|what| Fault::of(format!("it opens once, but not again: {what}")))?;
                opened.abandon();
                arena.put_back(state);
                recording
            }
        };
        self.cover_recording(&recording);
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
        let mut machine = Machine::new(arena.disk.clone());
        let events = &inner.recording.events;
        for index in 0..=events.len() {
            let settles = |event: &nvm::Event| matches!(event.kind, EventKind::Fence | EventKind::DiskSync);
            if events.get(index).is_none_or(settles) {
                let point = Point {
                    event: index,
                    durable: arena.mark(),
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
struct At<'j> {
    judge: &'j mut Judge,
    point: &'j Point<'j>,
    /// Among all points.
    number: u64,
}

impl Run for At<'_> {
    fn run(&mut self, units: &Units, choices: &Choices) -> Result<Vec<LineWords>, Violation> {
        let (judge, point, number) = (&mut *self.judge, self.point, self.number);
        judge.counts.distinct += 1;
        judge.arena.put_back(point.durable);
        let chosen = units.all.iter().zip(choices).filter(|(_, choice)| **choice != 0);
        judge.arena.patch(chosen.flat_map(|(unit, choice)| {
            unit.contents(*choice).iter().enumerate().map(|(n, bytes)| (unit.first + n as u32, bytes))
        }));
        let (verdict, read) = judge.judge(units, point, number);
        match verdict.and_then(|tree| point.allowed.admits(&tree).map_err(Fault::of)) {
            Ok(()) => Ok(read),
            Err(fault) => Err(judge.violation(point, units, choices, fault)),
        }
    }
}

fn line_run(line: u32) -> std::ops::Range<u64> {
    u64::from(line)..u64::from(line) + 1
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
