//! Two operations at the same time, under every schedule with up to two preemptions, and every power cut in each.
//!
//! What they do together must be what one after the other does, in an order that fits both results, and in which none comes
//! before one that had returned when it began. But the later one may have begun before, too: then it has found, or opened, what
//! it changes before the other one came. And what a power cut leaves is some of them, in such an order, with all that had
//! returned (`durability=op`).

use std::cell::OnceCell;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nvm::{Recording, RecordingOptions};
use vfs::{Error, FallocateMode, OpenFlags, RenameFlags, Time};

use crate::judge::{Counts, guarded};
use crate::lab::{Moment, Stage, WorkloadError, clock};
use crate::lag::Allowed;
use crate::operation::{Actor, Answer, Operation};
use crate::oracle::Oracle;
use crate::random::Random;
use crate::scene::Scene;
use crate::schedule::{self, Schedule, run_two, schedules};
use crate::subject::{Mounted, Promise, Subject};
use crate::tree::Tree;
use crate::violation::Violation;
use crate::workload::Id;

/// Two operations on a volume with [`Scene::Common`], or with [`Scene::Kept`] if one of them is about snapshots, or with
/// [`Scene::Shared`] if one reads, or writes what was preallocated, while the other moves blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Their places in the list of operations that are paired.
    places: [usize; 2],
    /// What is done.
    pub operations: [Operation; 2],
}

impl Pair {
    /// Which of the operations that are paired these are.
    pub fn places(&self) -> [usize; 2] {
        self.places
    }

    fn scene(&self) -> Scene {
        let is = |such: fn(&Operation) -> bool| self.operations.iter().any(such);
        if is(Operation::is_of_snapshots) {
            return Scene::Kept;
        }
        let moves = is(|operation| matches!(operation, Operation::EmptySegment(_)));
        let reads = is(|operation| matches!(operation, Operation::Read(..)));
        let fills = is(|operation| matches!(operation, Operation::Write(path, ..) if path == "/b/reserved"));
        if moves && (reads || fills) { Scene::Shared } else { Scene::Common }
    }
}

/// What became of a pair.
#[derive(Clone, Debug, Default)]
pub struct PairReport {
    /// Schedules that were run.
    pub schedules: usize,
    /// States, as of any workload.
    pub counts: Counts,
}

/// Why a pair is not as it should be.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PairFailure {
    /// It goes wrong without a crash, or the volume panics.
    #[error("schedule {schedule:?}: {error}")]
    Workload {
        /// The schedule; empty if it goes wrong before there is one.
        schedule: Vec<u32>,
        /// What goes wrong.
        error: WorkloadError,
    },
    /// Both wait for each other.
    #[error("schedule {0:?}: both operations wait for locks that the other one holds")]
    Deadlock(Vec<u32>),
    /// No order of the two explains what they did.
    #[error(
        "schedule {schedule:?}: the answers are {answers:?}, and the tree is that of no order: {difference}"
    )]
    NoOrder {
        /// The schedule.
        schedule: Vec<u32>,
        /// What the operations said.
        answers: [Result<Option<u64>, Error>; 2],
        /// How the tree differs from the last order tried.
        difference: String,
    },
    /// A power cut breaks the promise.
    #[error("schedule {schedule:?}, event {}: {}", .violation.event, .violation.what)]
    Violation {
        /// The schedule.
        schedule: Vec<u32>,
        /// The state.
        violation: Violation,
    },
}

/// What the model makes of a pair.
struct Expected {
    /// Of neither, one, and both in either order.
    outcomes: Vec<Outcome>,
    /// Neither sees what the other one does.
    beside: bool,
}

/// What some of the two operations leave, done in some order. Of two, the later one may have begun before the other: then it
/// changes what it had found by then. That is an outcome of its own, as a file that was opened may have another name, or none.
struct Outcome {
    order: Vec<usize>,
    /// The later of two had begun before.
    begun_before: bool,
    answers: Vec<Answer>,
    tree: Rc<Tree>,
}

impl Outcome {
    /// Whether it can be of two operations of which those that are `behind` began when the other one had returned.
    fn is_of(&self, behind: [bool; 2]) -> bool {
        let &[before, later] = &self.order[..] else { return false };
        !(behind[before] || self.begun_before && behind[later])
    }

    /// Whether it is there on the way to `whole`: beginning changes nothing.
    fn is_on_the_way_to(&self, whole: &Outcome) -> bool {
        std::ptr::eq(self, whole)
            || self.order.len() < whole.order.len() && whole.order.starts_with(&self.order)
    }
}

impl PairFailure {
    fn without_schedule(error: WorkloadError) -> PairFailure {
        PairFailure::Workload { schedule: Vec::new(), error }
    }

    /// The name by which [`replay_pair`] finds it again.
    pub fn id(&self, subject: &dyn Subject, pair: &Pair) -> Id {
        let (schedule, event, lines) = match self {
            PairFailure::Workload { schedule, .. }
            | PairFailure::Deadlock(schedule)
            | PairFailure::NoOrder { schedule, .. } => (schedule, 0, Vec::new()),
            PairFailure::Violation { schedule, violation } => {
                (schedule, violation.event, violation.lines.clone())
            }
        };
        let numbers: Vec<String> = schedule.iter().map(u32::to_string).collect();
        let workload = format!("two-{},{}@{}", pair.places[0], pair.places[1], numbers.join(","));
        let (subject, promise) = (subject.name().to_owned(), Promise::Operation);
        Id { subject, workload, promise, seed: 0, event, lines, depth: Id::DEPTH }
    }
}

/// The pair and the schedule that the workload of an [`Id`] names: `two-4,8@3,5`; `None` if it is no pair's.
fn named(workload: &str) -> Option<(Pair, Schedule)> {
    let (places, schedule) = workload.strip_prefix("two-")?.split_once('@')?;
    let (first, second) = places.split_once(',')?;
    let places = [first.parse().ok()?, second.parse().ok()?];
    let numbers = schedule.split(',').filter(|number| !number.is_empty());
    let schedule = numbers.map(str::parse).collect::<Result<Vec<u32>, _>>().ok()?;
    let pair = pairs().into_iter().find(|pair| pair.places == places)?;
    Some((pair, Schedule(schedule)))
}

/// Operations that have something to do with each other, each with each and with itself. Those that read step at each look at
/// the medium, the others at each change.
pub fn pairs() -> Vec<Pair> {
    use crate::operation::Operation::*;
    let path = |text: &str| text.to_owned();
    let all = [
        Create(path("/a/new")),
        Mkdir(path("/b/new")),
        Link(path("/a/small"), path("/a/new")),
        Unlink(path("/a/small")),
        Unlink(path("/a/file")),
        Rmdir(path("/b/e")),
        Rename(path("/a/file"), path("/b/new"), RenameFlags::empty()),
        Rename(path("/a/file"), path("/b/other"), RenameFlags::empty()),
        Write(path("/a/file"), 100, 200),
        Write(path("/a/file"), 4_096, 4_096),
        Write(path("/b/other"), 4_096, 5_000),
        Truncate(path("/a/file"), 100),
        Sync,
        TakeSnapshot(path("taken")),
        RemoveSnapshot(path("kept")),
        EmptySegment(0),
        EmptySegment(1),
        Create(path("/a/newer")),
        Mkdir(path("/b/newer")),
        Unlink(path("/a/new")),
        Rename(path("/a/small"), path("/a/new"), RenameFlags::empty()),
        Write(path("/a/file"), 0, 4_096),
        Write(path("/a/file"), 0, 8_192),
        WriteWith(path("/a/file"), 0, 4_096, OpenFlags::APPEND),
        Allocate(path("/a/file"), FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE, 4_096, 4_096),
        Read(path("/a/file"), 0, 9_000),
        Read(path("/a/file"), 4_096, 4_096),
        EmptySegment(2),
        Write(path("/a/file"), 8_192, 4_096),
        Write(path("/a/holes"), 4_096, 4_096),
        Write(path("/a/holes"), 40_960, 4_096),
        Write(path("/b/reserved"), 4_096, 4_096),
        Write(path("/b/reserved"), 5_000, 60),
    ];
    let places = (0..all.len()).flat_map(|n| (n..all.len()).map(move |m| [n, m]));
    places.map(|places| Pair { places, operations: places.map(|place| all[place].clone()) }).collect()
}

/// Explores `pair`: all schedules, or `limit` of them that `seed` chooses.
pub fn explore_pair(
    subject: &'static dyn Subject,
    pair: &Pair,
    limit: usize,
    seed: u64,
) -> Result<PairReport, PairFailure> {
    let told = PairFailure::without_schedule;
    let mut stage = Stage::set(subject, Promise::Operation, pair.scene()).map_err(told)?;
    let pair = &pair.operations;
    let expected = expected(&stage, pair).map_err(told)?;
    let mut report = PairReport::default();
    let [first, second] = run_whole(&mut stage, pair, &expected, &mut report)?;
    let all: Vec<Schedule> = schedules(first, second).skip(WHOLE).collect();
    let share = all.len().div_ceil(limit.max(1)).max(1);
    let start = Random::new(seed).below(share as u64) as usize;
    for schedule in all.iter().skip(start).step_by(share) {
        run(&mut stage, pair, &expected, schedule, &mut report)?;
    }
    Ok(report)
}

/// The schedules without a preemption, which come first.
const WHOLE: usize = 2;

/// Runs these, and returns the most steps that each operation made: one that the other makes impossible fails at once behind
/// it, and has all its steps only before it.
fn run_whole(
    stage: &mut Stage,
    pair: &[Operation; 2],
    expected: &Expected,
    report: &mut PairReport,
) -> Result<[u32; 2], PairFailure> {
    let mut most = [0; 2];
    for schedule in schedules(0, 0).take(WHOLE) {
        let steps = run(stage, pair, expected, &schedule, report)?;
        most = [0, 1].map(|who| most[who].max(steps[who]));
    }
    Ok(most)
}

/// Judges one state again, by its name: what breaks the promise, if anything does. Of a name without a crash, whether its
/// schedule still goes wrong, ends in a deadlock, or in what no order explains. `Err` says why the name is of no state.
pub fn replay_pair(subject: &'static dyn Subject, id: &Id) -> Result<Option<PairFailure>, String> {
    let (pair, schedule) = named(&id.workload).ok_or_else(|| format!("{:?} names no pair", id.workload))?;
    if (id.subject.as_str(), id.promise) != (subject.name(), Promise::Operation) {
        let (volume, promise) = (subject.name(), Promise::Operation);
        return Err(format!("{id}: two at a time are on the volume {volume}, with durability={promise}"));
    }
    let set = Stage::set(subject, Promise::Operation, pair.scene())
        .and_then(|stage| Ok((expected(&stage, &pair.operations)?, stage)));
    let (expected, mut stage) = match set {
        Ok(set) => set,
        Err(error) => return Ok(Some(PairFailure::without_schedule(error))),
    };
    let ran = match ran(&mut stage, &pair.operations, &expected, &schedule) {
        Ok(ran) => ran,
        Err(failure) => return Ok(Some(failure)),
    };
    if id.event == 0 {
        return Ok(None);
    }
    let mut found = Err(format!("event {} is no crash point of {}", id.event, id.workload));
    let walked = stage.walk(&ran.recording, ran.allowed(), |judge, machine, point| {
        if point.event != id.event {
            return Ok(true);
        }
        found = judge.replay(machine, &point, &id.lines).map(Result::err);
        Ok(false)
    });
    let violation = walked.map_or_else(|violation| Ok(Some(violation)), |()| found)?;
    Ok(violation.map(|violation| PairFailure::Violation { schedule: schedule.0, violation }))
}

/// Runs one schedule and crashes it everywhere; returns how many steps each operation made.
fn run(
    stage: &mut Stage,
    pair: &[Operation; 2],
    expected: &Expected,
    schedule: &Schedule,
    report: &mut PairReport,
) -> Result<[u32; 2], PairFailure> {
    let ran = ran(stage, pair, expected, schedule)?;
    stage.judge.counts = Counts::default();
    let walked = stage.walk(&ran.recording, ran.allowed(), |judge, machine, point| {
        judge.point(machine, &point).map(|()| true)
    });
    stage.judge.arena.put_back(stage.base);
    report.schedules += 1;
    report.counts.add(stage.judge.counts);
    match walked {
        Ok(()) => Ok(ran.steps),
        Err(violation) => Err(PairFailure::Violation { schedule: schedule.0.clone(), violation }),
    }
}

/// A schedule that was run, and the orders of the two operations that explain what they did.
struct Ran<'o> {
    pair: &'o [Operation; 2],
    expected: &'o Expected,
    recording: Recording,
    steps: [u32; 2],
    orders: Vec<&'o Outcome>,
}

impl Ran<'_> {
    /// The trees that may be left: of some of the operations, in such an order, with all that had returned. What came first in
    /// that order may be lost if the other one cannot have seen it: taking or removing a snapshot, unless that is
    /// another such; and what goes on beside others of its kind.
    fn allowed(&self) -> impl FnMut(Moment<'_>) -> Option<Allowed> {
        let mut returned = Vec::new();
        move |moment| {
            if let Moment::Mark(name) = moment {
                returned.push([0, 1].into_iter().find(|who| returned_mark(*who) == name)?);
            }
            let is_left = |outcome: &&Outcome| {
                returned.iter().all(|who| outcome.order.contains(who))
                    && self.orders.iter().any(|whole| {
                        let unseen = self.expected.beside
                            || self.pair[whole.order[0]].is_of_snapshots()
                                && !self.pair[whole.order[1]].is_of_snapshots();
                        outcome.is_on_the_way_to(whole) || (unseen && outcome.order == whole.order[1..])
                    })
            };
            let left = self.expected.outcomes.iter().filter(is_left);
            Some(left.map(|outcome| outcome.tree.clone()).collect::<Vec<_>>().into())
        }
    }
}

/// Runs one schedule, without crashes.
fn ran<'o>(
    stage: &mut Stage,
    pair: &'o [Operation; 2],
    expected: &'o Expected,
    schedule: &Schedule,
) -> Result<Ran<'o>, PairFailure> {
    let recorded = record(stage, pair, schedule);
    Time::stop(None);
    let zone = &stage.judge.arena.zone;
    zone.set_gate(None);
    zone.set_read_gate(None);
    zone.stop_recording();
    stage.judge.arena.put_back(stage.base);
    let Recorded { recording, answers, behind, steps, tree } = recorded?;
    let explains = |outcome: &&Outcome| {
        outcome.is_of(behind)
            && outcome.order.iter().zip(&outcome.answers).all(|(who, answer)| answers[*who] == *answer)
    };
    let mut orders: Vec<&Outcome> = expected.outcomes.iter().filter(explains).collect();
    let difference = orders.last().and_then(|outcome| tree.difference(&outcome.tree));
    orders.retain(|outcome| outcome.tree.hash() == tree.hash());
    if orders.is_empty() {
        let difference = difference.unwrap_or_else(|| "none gives these answers".to_owned());
        return Err(PairFailure::NoOrder { schedule: schedule.0.clone(), answers, difference });
    }
    Ok(Ran { pair, expected, recording, steps, orders })
}

/// The name of the mark that follows operation 0 or 1.
fn returned_mark(who: usize) -> &'static str {
    ["first returned", "second returned"][who]
}

struct Recorded {
    recording: Recording,
    answers: [Answer; 2],
    /// Which of them began when the other one had returned.
    behind: [bool; 2],
    steps: [u32; 2],
    tree: Tree,
}

/// The clock of each operation, the first being step `first`: two files are made in the same moment, as a coarse clock tells it.
fn clocks(first: usize, pair: &[Operation; 2]) -> [Time; 2] {
    let later = if matches!(pair, [Operation::Create(_), Operation::Create(_)]) { 0 } else { 1 };
    [clock(first), clock(first + later)]
}

fn record(stage: &mut Stage, pair: &[Operation; 2], schedule: &Schedule) -> Result<Recorded, PairFailure> {
    let failed = |error| PairFailure::Workload { schedule: schedule.0.clone(), error };
    let volume = |what: String| failed(WorkloadError::Volume(what));
    let arena = stage.judge.arena.clone();
    let (subject, first) = (stage.judge.subject, stage.first_number());
    let clocks = clocks(first, pair);
    Time::stop(Some(clocks[0]));
    arena.zone.start_recording(RecordingOptions::default());
    let opened = guarded(|| subject.open_crowded(&arena.region, Promise::Operation)).map_err(volume)?;
    // A volume that panicked is left as it is: who knows what it would do when it is closed.
    let mounted: ManuallyDrop<Arc<dyn Mounted>> = ManuallyDrop::new(Arc::from(opened));
    arena.zone.set_gate(Some(schedule::step_here));
    arena.zone.set_read_gate(Some(schedule::step_at_read));
    let returned = Arc::new([false, false].map(AtomicBool::new));
    let body = |who: usize| {
        let (mounted, zone, operation) = (Arc::clone(&mounted), arena.zone.clone(), pair[who].clone());
        let returned = returned.clone();
        move |turns: &Arc<schedule::Turns>, player: usize| {
            Time::stop(Some(clocks[who]));
            subject.number_this_thread(who);
            let is_behind = returned[1 - who].load(Ordering::SeqCst);
            let at_reads = matches!(operation, Operation::Read(..));
            let _steps = schedule::steps_here(turns, player, at_reads);
            let answer = Actor::new(mounted).perform(first + who, &operation);
            zone.mark(returned_mark(who));
            returned[who].store(true, Ordering::SeqCst);
            (answer, is_behind)
        }
    };
    let ran = guarded(|| Ok(run_two(schedule, body(0), body(1)))).map_err(volume)?;
    let (ended, steps) = ran.map_err(|_| PairFailure::Deadlock(schedule.0.clone()))?;
    let behind = [0, 1].map(|who| ended[who].1);
    let answers = ended.map(|(answer, _)| answer);
    let tree = guarded(|| Ok(Tree::of(&**mounted))).map_err(volume)?;
    let tree = tree.map_err(|error| failed(WorkloadError::Tree(error.to_string())))?;
    let recording = arena.zone.stop_recording().ok_or_else(|| volume("nobody recorded it".into()))?;
    // As a power cut ends it: nothing more is recorded.
    drop(ManuallyDrop::into_inner(mounted));
    Ok(Recorded { recording, answers, behind, steps, tree })
}

fn expected(stage: &Stage, pair: &[Operation; 2]) -> Result<Expected, WorkloadError> {
    let orders: [(&[usize], bool); 7] = [
        (&[], false),
        (&[0], false),
        (&[1], false),
        (&[0, 1], false),
        (&[1, 0], false),
        (&[0, 1], true),
        (&[1, 0], true),
    ];
    let first = stage.first_number();
    let clocks = clocks(first, pair);
    let mut beside = false;
    let outcome = |(order, begun_before): (&[usize], bool)| {
        Time::stop(Some(clock(0)));
        let mut actor = Actor::new(Oracle::default());
        for (number, operation) in &stage.made_by {
            Time::stop(Some(clock(*number)));
            actor.perform(*number, operation).map_err(|error| {
                WorkloadError::Volume(format!("the model cannot do {operation}: {error}"))
            })?;
        }
        beside = actor.go_beside(&pair[0], &pair[1]);
        let oracle = actor.ground;
        let perform = |who: usize, begun: &dyn Fn()| {
            Time::stop(Some(clocks[who]));
            Actor::new(&oracle).perform_with(first + who, &pair[who], begun)
        };
        let answers = match order {
            [other, late] if begun_before => {
                let between = OnceCell::new();
                let answer = perform(*late, &|| {
                    between.get_or_init(|| perform(*other, &|| ()));
                    Time::stop(Some(clocks[*late]));
                });
                between.into_inner().map(|other| vec![other, answer])
            }
            order => Some(order.iter().map(|who| perform(*who, &|| ())).collect()),
        };
        Time::stop(None);
        let tree = oracle.tree().map_err(|error| WorkloadError::Tree(error.to_string()))?;
        // It may come to nothing before anything could be between.
        Ok(answers.map(|answers| Outcome {
            order: order.to_vec(),
            begun_before,
            answers,
            tree: Rc::new(tree),
        }))
    };
    let outcomes: Vec<Option<Outcome>> = orders.into_iter().map(outcome).collect::<Result<_, _>>()?;
    Ok(Expected { outcomes: outcomes.into_iter().flatten().collect(), beside })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native_subject::Native;

    /// What a schedule does is the same in every run: so a name of a state means the same state.
    #[test]
    fn a_schedule_repeats_to_the_byte() {
        for workload in ["two-0,1@", "two-0,3@2,4", "two-8,9@0,3,2", "two-6,7@4", "two-8,14@0,20"] {
            let (pair, schedule) = named(workload).unwrap();
            let events = || {
                // In a thread of its own, which would have another lane.
                let (pair, schedule) = (pair.clone(), schedule.clone());
                let run = std::thread::spawn(move || {
                    let mut stage = Stage::set(&Native::ADAPTIVE, Promise::Operation, pair.scene()).unwrap();
                    let recorded = record(&mut stage, &pair.operations, &schedule).unwrap();
                    let shown = |event: &nvm::Event| (event.kind, event.address, event.length);
                    let all: Vec<_> = recorded.recording.events.iter().map(shown).collect();
                    (all, recorded.recording.bytes)
                });
                run.join().unwrap()
            };
            assert!(events() == events(), "{workload}");
        }
    }

    /// The second one fails behind the first one, and is interrupted all the same where it comes first.
    #[test]
    fn what_fails_behind_the_other_one_has_its_steps() {
        for places in [[4, 8], [3, 20], [6, 11]] {
            let pair = pairs().into_iter().find(|pair| pair.places == places).unwrap();
            let mut stage = Stage::set(&Native::ADAPTIVE, Promise::Operation, pair.scene()).unwrap();
            let expected = expected(&stage, &pair.operations).unwrap();
            let mut report = PairReport::default();
            let behind =
                ran(&mut stage, &pair.operations, &expected, &Schedule(Vec::new())).unwrap().steps[1];
            let most = run_whole(&mut stage, &pair.operations, &expected, &mut report).unwrap();
            assert!(behind == 0 && most[0] > 3 && most[1] > 3, "{places:?}: {behind}, {most:?}");
        }
    }

    /// What began behind the other one comes behind it, and has found what that left: a write, here, no file that has its old name.
    #[test]
    fn what_begins_behind_the_other_one_comes_behind_it() {
        let (pair, _) = named("two-6,8@").unwrap();
        let mut stage = Stage::set(&Native::ADAPTIVE, Promise::Operation, pair.scene()).unwrap();
        let expected = expected(&stage, &pair.operations).unwrap();
        for (schedule, behind, orders) in [
            (vec![], [false, true], vec![(vec![0, 1], false)]),
            (vec![0], [true, false], vec![(vec![1, 0], false)]),
            (vec![0, 1], [false, false], vec![(vec![0, 1], true)]),
        ] {
            let recorded = record(&mut stage, &pair.operations, &Schedule(schedule.clone())).unwrap();
            stage.judge.arena.put_back(stage.base);
            assert_eq!(recorded.behind, behind, "{schedule:?}");
            let ran = ran(&mut stage, &pair.operations, &expected, &Schedule(schedule)).unwrap();
            let told = ran.orders.iter().map(|outcome| (outcome.order.clone(), outcome.begun_before));
            assert_eq!(told.collect::<Vec<_>>(), orders);
        }
        let begun_before = expected.outcomes.iter().find(|outcome| outcome.begun_before).unwrap();
        assert!(begun_before.is_of([false; 2]) && !begun_before.is_of([false, true]));
    }

    #[test]
    fn states_of_pairs_have_names() {
        let pair = pairs().swap_remove(5);
        let violation =
            Violation { event: 7, lines: vec![(3, 1)], disk: None, what: String::new(), deeper: None };
        for schedule in [vec![], vec![0, 3, 2]] {
            let failure = PairFailure::Violation { schedule: schedule.clone(), violation: violation.clone() };
            let id = failure.id(&Native::ADAPTIVE, &pair);
            let read: Id = id.to_string().parse().unwrap();
            assert_eq!(read, id);
            assert_eq!(named(&read.workload), Some((pair.clone(), Schedule(schedule))));
        }
        for text in ["two-0,1", "two-9,3@", "two-0,99@", "two-0,1@x", "create"] {
            assert_eq!(named(text), None, "{text}");
        }
    }
}
