//! Two operations at the same time, under every schedule with up to two preemptions, and every power cut in each.
//!
//! What they do together must be what one after the other does, in an order that fits both results; and what a power cut
//! leaves is some of them, in such an order, with all that had returned (`durability=op`).

use std::rc::Rc;
use std::sync::Arc;

use nvm::{EventKind, Recording, RecordingOptions};
use vfs::{Error, RenameFlags, Time};

use crate::judge::{Counts, Point, Violation};
use crate::lab::{Stage, WorkloadError, clock};
use crate::machine::Machine;
use crate::operation::{Actor, Operation};
use crate::oracle::Oracle;
use crate::random::Random;
use crate::scene::Scene;
use crate::schedule::{self, Schedule, run_two, schedules};
use crate::subject::{Mounted, Promise, Subject};
use crate::tree::Tree;

type Answer = Result<(), Error>;

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
    /// It goes wrong without a crash.
    #[error("{0}")]
    Workload(WorkloadError),
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
        answers: [Answer; 2],
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

/// What some of the two operations leave, done in some order.
struct Outcome {
    order: Vec<usize>,
    answers: Vec<Answer>,
    tree: Rc<Tree>,
}

/// Operations of [`Scene::Common`] that have something to do with each other, each with each and with itself.
pub fn pairs() -> Vec<[Operation; 2]> {
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
    ];
    let with = |n: usize| all[n..].iter().map(move |other| (n, other.clone()));
    (0..all.len()).flat_map(with).map(|(n, other)| [all[n].clone(), other]).collect()
}

/// Explores `pair` on a volume with [`Scene::Common`]: all schedules, or `limit` of them that `seed` chooses.
pub fn explore_pair(
    subject: &'static dyn Subject,
    pair: &[Operation; 2],
    limit: usize,
    seed: u64,
) -> Result<PairReport, PairFailure> {
    let mut stage = Stage::set(subject, Promise::Operation, Scene::Common).map_err(PairFailure::Workload)?;
    let outcomes = outcomes(&stage, pair).map_err(PairFailure::Workload)?;
    let mut report = PairReport::default();
    let steps = run(&mut stage, pair, &outcomes, &Schedule(Vec::new()), &mut report)?;
    let all: Vec<Schedule> = schedules(steps[0], steps[1]).skip(1).collect();
    let share = all.len().div_ceil(limit.max(1)).max(1);
    let start = Random::new(seed).below(share as u64) as usize;
    for schedule in all.iter().skip(start).step_by(share) {
        run(&mut stage, pair, &outcomes, schedule, &mut report)?;
    }
    Ok(report)
}

/// Runs one schedule and crashes it everywhere; returns how many steps each operation made.
fn run(
    stage: &mut Stage,
    pair: &[Operation; 2],
    outcomes: &[Outcome],
    schedule: &Schedule,
    report: &mut PairReport,
) -> Result<[u32; 2], PairFailure> {
    let recorded = record(stage, pair, schedule);
    Time::stop(None);
    stage.judge.arena.zone.stop_recording();
    stage.judge.arena.put_back(stage.base);
    let Recorded { recording, answers, steps, tree } = recorded?;
    // The orders that explain the answers, and the tree.
    let fits = |outcome: &&Outcome| {
        outcome.order.len() == 2
            && outcome.order.iter().zip(&outcome.answers).all(|(who, answer)| answers[*who] == *answer)
    };
    let orders: Vec<&Outcome> = outcomes.iter().filter(fits).collect();
    if !orders.iter().any(|outcome| outcome.tree.hash() == tree.hash()) {
        let difference = orders.last().and_then(|outcome| tree.difference(&outcome.tree));
        let difference = difference.unwrap_or_else(|| "none gives these answers".to_owned());
        return Err(PairFailure::NoOrder { schedule: schedule.0.clone(), answers, difference });
    }
    let orders: Vec<&Outcome> =
        orders.into_iter().filter(|outcome| outcome.tree.hash() == tree.hash()).collect();
    stage.judge.counts = Counts::default();
    let walked = walk(stage, &recording, |returned| {
        let is_left = |outcome: &&Outcome| {
            returned.iter().all(|who| outcome.order.contains(who))
                && orders.iter().any(|whole| whole.order.starts_with(&outcome.order))
        };
        outcomes.iter().filter(is_left).map(|outcome| outcome.tree.clone()).collect()
    });
    stage.judge.arena.put_back(stage.base);
    report.schedules += 1;
    report.counts.add(stage.judge.counts);
    match walked {
        Ok(()) => Ok(steps),
        Err(violation) => Err(PairFailure::Violation { schedule: schedule.0.clone(), violation }),
    }
}

/// The name of the mark that follows operation 0 or 1.
fn returned_mark(who: usize) -> &'static str {
    ["first returned", "second returned"][who]
}

struct Recorded {
    recording: Recording,
    answers: [Answer; 2],
    steps: [u32; 2],
    tree: Tree,
}

fn record(stage: &mut Stage, pair: &[Operation; 2], schedule: &Schedule) -> Result<Recorded, PairFailure> {
    let volume = |what: String| PairFailure::Workload(WorkloadError::Volume(what));
    let arena = stage.judge.arena.clone();
    let (subject, first) = (stage.judge.subject, stage.first_number());
    Time::stop(Some(clock(first)));
    arena.zone.start_recording(RecordingOptions::default());
    let opened = subject.open(&arena.region, Promise::Operation).map_err(volume)?;
    let mounted: Arc<dyn Mounted> = Arc::from(opened);
    arena.zone.set_gate(Some(schedule::step_here));
    let body = |who: usize| {
        let (mounted, zone, operation) = (mounted.clone(), arena.zone.clone(), pair[who].clone());
        move |turns: &Arc<schedule::Turns>, player: usize| {
            Time::stop(Some(clock(first + who)));
            subject.number_this_thread(who);
            let _steps = schedule::steps_here(turns, player);
            let answer = Actor::new(&*mounted).perform(first + who, &operation);
            zone.mark(returned_mark(who));
            answer
        }
    };
    let ran = run_two(schedule, body(0), body(1));
    arena.zone.set_gate(None);
    let (answers, steps) = ran.map_err(|_| PairFailure::Deadlock(schedule.0.clone()))?;
    let tree = Tree::of(mounted.file_system())
        .map_err(|error| PairFailure::Workload(WorkloadError::Tree(error.to_string())))?;
    let recording = arena.zone.stop_recording().ok_or_else(|| volume("nobody recorded it".into()))?;
    // As a power cut ends it: nothing more is recorded.
    drop(mounted);
    Ok(Recorded { recording, answers, steps, tree })
}

/// What the model makes of neither, one, and both in either order.
fn outcomes(stage: &Stage, pair: &[Operation; 2]) -> Result<Vec<Outcome>, WorkloadError> {
    let orders: [&[usize]; 5] = [&[], &[0], &[1], &[0, 1], &[1, 0]];
    let first = stage.first_number();
    let outcome = |order: &[usize]| {
        Time::stop(Some(clock(0)));
        let oracle = Oracle::default();
        let mut actor = Actor::new(&oracle);
        for (number, operation) in &stage.made_by {
            Time::stop(Some(clock(*number)));
            actor.perform(*number, operation).map_err(|error| {
                WorkloadError::Volume(format!("the model cannot do {operation}: {error}"))
            })?;
        }
        let mut answers = Vec::new();
        for who in order {
            Time::stop(Some(clock(first + who)));
            answers.push(actor.perform(first + who, &pair[*who]));
        }
        Time::stop(None);
        let tree = oracle.tree().map_err(|error| WorkloadError::Tree(error.to_string()))?;
        Ok(Outcome { order: order.to_vec(), answers, tree: Rc::new(tree) })
    };
    orders.into_iter().map(outcome).collect()
}

/// Cuts the power before each fence and each return. `allowed` gives the trees that may be left when these operations
/// had returned.
fn walk(
    stage: &mut Stage,
    recording: &Recording,
    allowed: impl Fn(&[usize]) -> Vec<Rc<Tree>>,
) -> Result<(), Violation> {
    let arena = stage.judge.arena.clone();
    let mut machine = Machine::new(0);
    let mut returned = Vec::new();
    for (index, event) in recording.events.iter().enumerate() {
        let who = [0, 1].into_iter().find(|who| {
            event.kind == EventKind::Mark && recording.operation_of(event) == returned_mark(*who)
        });
        returned.extend(who);
        if event.kind == EventKind::Fence || who.is_some() {
            let durable = arena.mark();
            let point = Point {
                event: index,
                durable,
                durable_hash: machine.durable_hash,
                depth: 1,
                allowed: &allowed(&returned),
                seed: index as u64,
            };
            let judged = stage.judge.point(&machine, &point);
            arena.put_back(durable);
            judged?;
        }
        machine.step(recording, index, |line| arena.line(line));
        arena.patch(machine.take_fresh().iter().map(|(line, bytes)| (*line, bytes)));
    }
    Ok(())
}
