//! What is done with a state: recover it, check it, compare it, use it, and crash its recovery.

mod recovery;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use nvm::{Line, LineWords, Look, Recording, RecordingOptions, Region, WatchMark};
use vfs::Time;

use crate::arena::Arena;
use crate::cut;
use crate::hash::{self, IdentityHasher};
use crate::judge::recovery::{Crashed, Gathered, Looks, Recovery};
use crate::lag::Allowed;
use crate::machine::{Machine, lines_of};
use crate::memo::{Runs, Step, Universe};
use crate::search::{Choices, Run, search};
use crate::subject::{Mounted, Promise, Subject};
use crate::tree::Tree;
use crate::unit::Units;
use crate::usage;
use crate::violation::Violation;

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

    /// The words of a line that it stored.
    fn words_stored(&self, line: u32) -> u8 {
        let found = self.stored.binary_search_by_key(&line, |(stored, _)| stored.line);
        found.map_or(0, |index| self.stored[index].0.words)
    }

    /// Of these words, those that it did not store.
    fn left(&self, read: LineWords) -> Option<LineWords> {
        let words = read.words & !self.words_stored(read.line);
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
        let clock = Time::stopped();
        Time::stop(Some(JUDGEMENT_DAY));
        let mut distinct = 0;
        let found = search(&units, point.seed, &mut self.at(point), &mut distinct);
        self.counts.distinct += distinct;
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
        let units = cut::units(machine);
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
        let number = self.next_number();
        At { judge: self, point, number }
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

    /// Recovers the state in memory, one of the `number`th point, and judges it. Also says on which words of `units` it depends, in
    /// order.
    fn judge(&mut self, units: &Units, point: &Point<'_>, number: u64) -> (Verdict, Vec<LineWords>) {
        let arena = self.arena.clone();
        let (state, deep) = (arena.mark(), point.depth > 1);
        let in_units = |words: LineWords| units.of_line(words.line).is_some();
        // What is gathered is so when memory is at `state` again.
        let (mut all_looks, mut all_looked_at) = (Vec::new(), Vec::new());
        let mut looks: Vec<Look> = Vec::new();
        let known = arena.known(&mut self.recoveries, number, in_units, &mut looks);
        let known = known.filter(|it| !deep || it.recorded.is_some());
        let (mut opened, mut recording, mut is_new) = (None, None, false);
        let recovered = match known {
            Some(recovered) if !self.doubts => {
                if let Some(gathered) = self.gathered.last() {
                    all_looks = arena.looks_of(&mut self.recoveries, gathered.looks.list);
                }
                arena.store(&recovered.stored);
                recovered
            }
            known => {
                let list = self.next_number();
                let looks_then = known.as_ref().map(|_| arena.looks_of(&mut self.recoveries, list));
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
                let recovered =
                    Recovered { stored, hash, recorded: recording.as_ref().map(recovery::hash_of) };
                if !self.gathered.is_empty() {
                    all_looks.clone_from(&looks);
                }
                let looked_the_same = looks_then.is_none_or(|then| then == looks);
                if known.is_some_and(|known| known.differs(&recovered) || !looked_the_same) {
                    return (Err(Fault::of("its recovery is not what is known of it".into())), Vec::new());
                }
                Rc::new(recovered)
            }
        };
        let mut looked_at: Vec<Look> = Vec::new();
        let list = self.next_number();
        let lives = self.lives.entry(recovered.hash).or_default();
        let differ = |words| in_units(words) && recovered.left(words).is_some();
        let known = arena.known(lives, number, differ, &mut looked_at);
        let live = match known {
            Some(live) if !self.doubts => {
                if let Some(gathered) = self.gathered.last() {
                    all_looked_at = arena.looks_of(lives, gathered.looks.list);
                }
                if let Some(opened) = opened {
                    opened.abandon();
                }
                live
            }
            known => {
                self.counts.checked += 1;
                let looked_at_then = known.as_ref().map(|_| arena.looks_of(lives, list));
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
                if !self.gathered.is_empty() {
                    all_looked_at.clone_from(&looked_at);
                }
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
        if let Some(gathered) = self.gathered.last_mut() {
            gathered.add(&arena, &all_looks, None);
            gathered.add(&arena, &all_looked_at, Some(&recovered));
        }
        if is_new {
            let steps = self.recoveries.insert(&arena.steps(&looks), recovered.clone());
            if steps > 0 {
                self.steps += steps + recovered.stored.len() * STORED_STEPS;
            }
        }
        let mut read = arena.words_of(&looks, |line| units.has(line));
        let looked_at = arena.words_of(&looked_at, |line| units.has(line));
        read.extend(looked_at.into_iter().filter_map(|words| recovered.left(words)));
        let verdict = match (live, recovered.recorded) {
            (Ok(tree), Some(recorded)) if deep => {
                let recovery = Recovery { state, recorded, recording, tree: &tree };
                match self.crash_recovery(recovery, units, point, number) {
                    Ok(looks) => {
                        read.extend(arena.words_of(&looks, |line| units.has(line)));
                        Ok(tree)
                    }
                    Err(fault) => Err(fault),
                }
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

/// Runs what a damaged volume may break.
pub(crate) fn guarded<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        Err(format!("it panics: {}", text.unwrap_or_default()))
    })
}
