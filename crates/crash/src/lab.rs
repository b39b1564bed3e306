//! One workload: it is recorded beside the model, and then every moment of it is crashed.

use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::rc::Rc;

use nvm::{EventKind, Recording, RecordingOptions, WatchMark};
use vfs::{Error, Time};

use crate::arena::Arena;
use crate::ground::Ground;
use crate::judge::{Counts, Judge, Point, STEPS_MAX, guarded};
use crate::lag::{Allowed, History, Lagging, SyncedFiles};
use crate::machine::Machine;
use crate::operation::{Actor, Operation, Synced};
use crate::oracle::Oracle;
use crate::running::Running;
use crate::scene::Scene;
use crate::subject::{Promise, Subject};
use crate::tree::Tree;
use crate::violation::Violation;
use crate::workload::{Id, Workload};

/// Names the mark that follows the opening of the volume.
pub(crate) const OPENED: &str = "opened";
/// Names the mark that follows each operation.
const RETURNED: &str = "returned";
/// Every so many workloads all of memory is compared with what it should be.
const COMPARE_EVERY: u64 = 16;
/// Bytes beyond those of an operation that a volume may want to be free: for its own nodes, and to stay able to free others.
const SPARE_BYTES: u64 = 512 << 10;

/// Why a workload says nothing about crashes: it goes wrong without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadError {
    /// The volume could not be made or opened, or it panicked.
    Volume(String),
    /// An operation's result is not the model's.
    Result {
        /// The operation.
        operation: String,
        /// What the volume says.
        found: String,
        /// What the model says.
        expected: String,
    },
    /// The volume has no room for an operation, and plenty for others.
    Room {
        /// The operation.
        operation: String,
        /// Bytes that the volume says are free.
        room: u64,
    },
    /// The tree is not the model's at the end.
    Tree(String),
    /// Something was stored behind `nvm`'s back: this byte of the zone.
    Bypass(u64),
    /// An identifier that names no state of the workload.
    Schedule(String),
}

impl fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkloadError::Volume(what) => write!(f, "the volume fails without a crash: {what}"),
            WorkloadError::Result { operation, found, expected } => {
                write!(f, "without a crash, {operation} gives {found}, and the model {expected}")
            }
            WorkloadError::Room { operation, room } => {
                write!(f, "without a crash, there is no room for {operation}, but {room} bytes are free")
            }
            WorkloadError::Tree(what) => {
                write!(f, "without a crash, the tree differs from the model's: {what}")
            }
            WorkloadError::Bypass(at) => write!(f, "byte {at} of the zone was stored behind nvm's back"),
            WorkloadError::Schedule(what) => write!(f, "no such state: {what}"),
        }
    }
}

/// What became of a workload.
#[derive(Clone, Debug)]
pub struct Explored {
    /// How many states there were.
    pub counts: Counts,
    /// Stores, flushes and fences.
    pub events: usize,
    /// The first state that breaks the promise.
    pub violation: Option<Violation>,
}

/// Explores workloads of one subject under one promise. Not shared by threads: each has its own.
pub struct Lab {
    subject: &'static dyn Subject,
    promise: Promise,
    depth: u32,
    stages: HashMap<Scene, Stage>,
    /// Changes a recording before it is explored: plants a fault of the medium.
    tamper: Option<Tamper>,
    doubts: bool,
    exact: bool,
}

/// Changes a recording.
type Tamper = Box<dyn Fn(&mut Recording)>;

/// A scene, set.
pub(crate) struct Stage {
    pub(crate) judge: Judge,
    pub(crate) base: WatchMark,
    image: Vec<u8>,
    /// The operations that made it, those that failed for want of space left out.
    pub(crate) made_by: Vec<(usize, Operation)>,
    workloads: u64,
}

/// A workload, recorded.
pub(crate) struct Life {
    recording: Recording,
    /// Before the first operation, after each, and what some of them leave in between; the prelude's included.
    trees: Vec<Rc<Tree>>,
    /// What is beside it, likewise.
    besides: Vec<Option<Rc<Tree>>>,
    /// By operation.
    allowed: Vec<Ranges>,
    /// Where what files hold is apart from all else.
    history: Option<Rc<History>>,
    /// Operations that there was no room for, or not for all of it.
    without_room: u64,
}

/// Which trees a crash may leave while an operation runs, and when it has returned.
#[derive(Clone)]
struct Ranges {
    /// Before the operation, what it leaves in between, and behind it.
    made: RangeInclusive<usize>,
    during: RangeInclusive<usize>,
    after: RangeInclusive<usize>,
    synced_during: SyncedFiles,
    synced_after: SyncedFiles,
    beside_during: RangeInclusive<usize>,
    beside_after: RangeInclusive<usize>,
}

impl Life {
    /// The trees that may be left at each moment, from when `first` operations had returned.
    fn allowed_from(&self, first: usize) -> impl FnMut(Moment<'_>) -> Option<Allowed> + '_ {
        let mut returned = 0;
        move |moment| {
            let allowed = self.allowed.get(returned)?;
            let (range, beside, synced) = match moment {
                Moment::Fence => (&allowed.during, &allowed.beside_during, &allowed.synced_during),
                Moment::Mark(RETURNED) => (&allowed.after, &allowed.beside_after, &allowed.synced_after),
                Moment::Mark(_) => return None,
            };
            let counts = returned >= first;
            returned += usize::from(moment != Moment::Fence);
            counts.then(|| match &self.history {
                None => self.with_beside(range, beside).into(),
                Some(history) => {
                    let trees = *range.start()..range.end() + 1;
                    Allowed::Lagging(Lagging::new(history.clone(), trees, synced.clone()))
                }
            })
        }
    }

    /// The trees that may be left if an operation is cut short: `closed`, if all that had returned is durable; else that may be lost, as far as
    /// the promise allows it.
    pub(crate) fn allowed_within(&self, operation: usize, closed: bool) -> Allowed {
        let Ranges { made, during, beside_during, synced_during, .. } = &self.allowed[operation];
        let trees = if closed { *made.start() } else { *during.start() }..=*made.end();
        match self.history.as_ref().filter(|_| !closed) {
            None => self.with_beside(&trees, beside_during).into(),
            Some(history) => {
                let trees = *trees.start()..trees.end() + 1;
                Allowed::Lagging(Lagging::new(history.clone(), trees, synced_during.clone()))
            }
        }
    }

    /// Each of the trees with each of what may be beside it: the two volumes promise nothing about each other.
    fn with_beside(&self, trees: &RangeInclusive<usize>, besides: &RangeInclusive<usize>) -> Vec<Rc<Tree>> {
        let trees = &self.trees[trees.clone()];
        if self.besides.is_empty() {
            return trees.to_vec();
        }
        let with = |beside: &Option<Rc<Tree>>| {
            let beside = beside.clone();
            trees.iter().map(move |tree| Rc::new(Tree::clone(tree).with_beside(beside.clone())))
        };
        self.besides[besides.clone()].iter().flat_map(with).collect()
    }
}

/// Where the power may be cut: all that could be left in between can be left here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment<'r> {
    /// Just before a fence, or a disk's sync.
    Fence,
    /// At the mark of this name.
    Mark(&'r str),
}

/// The clock in step `step` of a run. It is coarse, as the kernel's: each third step has the time of the one before.
pub(crate) fn clock(step: usize) -> Time {
    let ticks = step - usize::from(step % 3 == 2);
    Time { sec: 1_700_000_000 + ticks as i64, nsec: 250_000_000 }
}

impl Lab {
    /// A lab; recoveries are crashed down to `depth`, 1 being not at all.
    pub fn new(subject: &'static dyn Subject, promise: Promise, depth: u32) -> Lab {
        Lab { subject, promise, depth, stages: HashMap::new(), tamper: None, doubts: false, exact: false }
    }

    /// Records a workload and crashes it everywhere.
    pub fn explore(&mut self, workload: &Workload) -> Result<Explored, WorkloadError> {
        let explored = self.explored(workload);
        if explored.is_err() {
            // They may not be what they were.
            self.stages.clear();
        }
        explored
    }

    fn explored(&mut self, workload: &Workload) -> Result<Explored, WorkloadError> {
        let depth = self.depth;
        let (life, stage) = self.record(workload)?;
        stage.judge.begin();
        stage.judge.counts.without_room = life.without_room;
        let violation = stage.crash(&life, workload, depth).err();
        let explored =
            Explored { counts: stage.judge.counts, events: life.recording.events.len(), violation };
        stage.settle()?;
        Ok(explored)
    }

    /// Judges the one state that `id` names; `None` if it keeps the promise, or the name has no crash, and nothing is wrong without.
    pub fn replay(&mut self, workload: &Workload, id: &Id) -> Result<Option<Violation>, WorkloadError> {
        let (life, stage) = self.record(workload)?;
        if id.event == 0 {
            stage.settle()?;
            return Ok(None);
        }
        let found = stage.replay(&life, workload, id).map_err(WorkloadError::Schedule);
        stage.settle()?;
        found
    }

    /// Events of a workload's recording, for choosing where to plant a fault.
    pub fn recording(&mut self, workload: &Workload) -> Result<Recording, WorkloadError> {
        let (life, stage) = self.record(workload)?;
        stage.settle()?;
        Ok(life.recording)
    }

    /// Plants a fault of the medium: every recording is changed so before it is explored.
    pub fn tamper(&mut self, change: impl Fn(&mut Recording) + 'static) {
        self.tamper = Some(Box::new(change));
    }

    /// Crashes a recovery from now on for each difference that one which was cut short could see, however many states that takes; and not once for
    /// all that store the same and lead to the same tree, which is a selection.
    pub fn exact(&mut self) {
        self.exact = true;
    }

    /// Finds out anew from now on what is known of a state because an equal one was judged before, but for recoveries that were
    /// crashed once for all. A difference counts as a violation: the explorer is wrong then, or the volume does not do the same each time.
    pub fn doubt(&mut self) {
        self.doubts = true;
    }

    pub(crate) fn record(&mut self, workload: &Workload) -> Result<(Life, &mut Stage), WorkloadError> {
        let (subject, promise) = (self.subject, self.promise);
        // Of many scenes, each would remember as much as one may.
        if self.stages.values().map(|stage| stage.judge.steps()).sum::<usize>() > STEPS_MAX {
            let others = self.stages.iter_mut().filter(|(scene, _)| **scene != workload.scene);
            others.for_each(|(_, stage)| stage.judge.forget_known());
        }
        let stage = match self.stages.entry(workload.scene) {
            std::collections::hash_map::Entry::Occupied(stage) => stage.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(Stage::set(subject, promise, workload.scene)?)
            }
        };
        (stage.judge.doubts, stage.judge.exact) = (self.doubts, self.exact);
        let recorded = guarded(|| Ok(stage.record(workload)));
        Time::stop(None);
        stage.judge.arena.zone.stop_recording();
        stage.judge.arena.put_back(stage.base);
        let mut life = recorded.map_err(WorkloadError::Volume)??;
        if let Some(tamper) = &self.tamper {
            tamper(&mut life.recording);
        }
        Ok((life, stage))
    }
}

impl Stage {
    pub(crate) fn set(
        subject: &'static dyn Subject,
        promise: Promise,
        scene: Scene,
    ) -> Result<Stage, WorkloadError> {
        guarded(|| Ok(Stage::made(subject, promise, scene))).map_err(WorkloadError::Volume)?
    }

    fn made(subject: &'static dyn Subject, promise: Promise, scene: Scene) -> Result<Stage, WorkloadError> {
        let volume = |what: String| WorkloadError::Volume(what);
        Time::stop(Some(clock(0)));
        let beside = scene.beside();
        let arena = Arena::new(subject, beside.is_some()).map_err(volume)?;
        if let (Some(region), Some(operations)) = (&arena.beside, &beside) {
            let mounted = Running::in_region(subject, promise, region, None).map_err(volume)?;
            done_all(Actor::new(mounted), operations)?.close().map_err(volume)?;
        }
        let mounted = Running::open(subject, promise, &arena).map_err(volume)?;
        let mut actor = Actor::new(mounted);
        let mut made_by = Vec::new();
        let operations = scene.operations().into_iter().enumerate();
        for (number, operation) in operations.filter(|(_, operation)| subject.can(operation)) {
            Time::stop(Some(clock(number)));
            match actor.perform(number, &operation) {
                Ok(None) => made_by.push((number, operation)),
                Ok(Some(done)) => made_by.push((number, operation.shortened(done))),
                Err(Error::NoSpace) if scene == Scene::Full => {}
                Err(error) => return Err(WorkloadError::Volume(format!("{operation} gives {error}"))),
            }
        }
        actor.ground.close().map_err(volume)?;
        Time::stop(None);
        arena.restart();
        let base = arena.mark();
        let image = arena.zone.snapshot_image();
        Ok(Stage { judge: Judge::new(subject, Rc::new(arena), promise), base, image, made_by, workloads: 0 })
    }

    /// The model, and what is beside it.
    fn oracle(&self, scene: Scene) -> Result<Oracle, WorkloadError> {
        let mut oracle = Oracle::default();
        if let Some(operations) = scene.beside() {
            let made = done_all(Actor::new(Oracle::default()), &operations)?;
            let tree = made.tree().map_err(|error| WorkloadError::Tree(error.to_string()))?;
            oracle.besides.push(Some(Rc::new(tree)));
        }
        Ok(oracle)
    }

    /// The number of the first operation after those that made it.
    pub(crate) fn first_number(&self) -> usize {
        self.made_by.last().map_or(0, |(number, _)| number + 1)
    }

    /// Does the workload, on the volume and on the model.
    fn record(&mut self, workload: &Workload) -> Result<Life, WorkloadError> {
        let (arena, promise) = (self.judge.arena.clone(), self.judge.promise);
        Time::stop(Some(clock(0)));
        let mut theirs = Actor::new(self.oracle(workload.scene)?);
        arena.zone.start_recording(RecordingOptions::default());
        let mounted = Running::open(self.judge.subject, promise, &arena).map_err(WorkloadError::Volume)?;
        arena.zone.mark(OPENED);
        for (number, operation) in &self.made_by {
            Time::stop(Some(clock(*number)));
            theirs.perform(*number, operation).map_err(|error| {
                WorkloadError::Volume(format!("the model cannot do {operation} of the scene: {error}"))
            })?;
        }
        let first = self.first_number();
        let mut ours = Actor::new(mounted);
        let mut life = Life {
            recording: empty(),
            trees: Vec::new(),
            besides: Vec::new(),
            allowed: Vec::new(),
            history: None,
            without_room: 0,
        };
        let read = |tree: vfs::Result<Tree>| {
            tree.map(Rc::new).map_err(|error| WorkloadError::Tree(format!("it cannot be read: {error}")))
        };
        let mut low = 0;
        life.trees.push(read(theirs.ground.tree())?);
        let is_apart = self.judge.subject.keeps_contents_apart(promise);
        let mut history = is_apart.then(|| History::begin(life.trees[0].clone()));
        let operations = workload.prelude.iter().chain(&workload.operations);
        for (index, operation) in operations.enumerate() {
            let number = first + index;
            Time::stop(Some(clock(number)));
            let checkpoints = ours.ground.checkpoints();
            let (before, beside) = (life.trees.len() - 1, theirs.ground.besides.len().saturating_sub(1));
            let found = ours.perform(number, operation);
            arena.zone.mark(RETURNED);
            if let Some(wanted) = operation.bytes_without_room(&found) {
                life.without_room += 1;
                let room = ours.ground.file_system().statfs().map_or(0, |room| {
                    if room.files_free == 0 { 0 } else { room.blocks_available * u64::from(room.block_size) }
                });
                if room >= wanted.saturating_add(SPARE_BYTES) {
                    return Err(WorkloadError::Room { operation: operation.to_string(), room });
                }
            }
            if found != Err(Error::NoSpace) {
                // A volume may write what there is room for, and say how much that was.
                let expected = match found {
                    Ok(Some(done)) if done > 0 => theirs.perform(number, &operation.shortened(done)),
                    _ => theirs.perform(number, operation),
                };
                if found != expected {
                    return Err(WorkloadError::Result {
                        operation: operation.to_string(),
                        found: format!("{found:?}"),
                        expected: format!("{expected:?}"),
                    });
                }
            }
            let needed = promise != Promise::Operation || index + 1 >= workload.prelude.len();
            let after = if needed { read(theirs.ground.tree())? } else { life.trees[0].clone() };
            life.trees.extend(theirs.ground.take_between().into_iter().map(Rc::new));
            life.trees.push(after);
            let last = life.trees.len() - 1;
            let mut synced = operation.syncs() && found.is_ok();
            let synced_during = history.as_ref().map(|history| history.synced.clone()).unwrap_or_default();
            if let Some(history) = &mut history {
                let held = theirs.held_contents().map_err(|error| WorkloadError::Tree(error.to_string()))?;
                history.note(life.trees[last].clone(), held);
                let done = if found.is_ok() { theirs.synced(operation) } else { Synced::Nothing };
                history.sync(done);
                synced = done != Synced::Nothing;
            }
            let synced_after = history.as_ref().map(|history| history.synced.clone()).unwrap_or_default();
            let published = ours.ground.checkpoints() != checkpoints;
            let (during, after) = match promise {
                Promise::Operation => (before..=last, last..=last),
                Promise::Fsync => (low..=last, if synced { last } else { low }..=last),
                Promise::Snapshot if synced => (low..=last, last..=last),
                // It made room first.
                Promise::Snapshot if published => (low..=last, before..=last),
                Promise::Snapshot => {
                    let before = life.allowed.last().map_or(0..=0, |allowed| allowed.after.clone());
                    (before.clone(), before)
                }
            };
            low = *after.start();
            let beside_last = theirs.ground.besides.len().saturating_sub(1);
            let (beside_during, beside_after) = (beside..=beside_last, beside_last..=beside_last);
            let made = before..=last;
            let ranges =
                Ranges { made, during, after, synced_during, synced_after, beside_during, beside_after };
            life.allowed.push(ranges);
        }
        life.history = history.map(Rc::new);
        let last = &life.trees[life.trees.len() - 1];
        if let Some(difference) = read(Tree::of(ours.ground.file_system()))?.difference(last) {
            return Err(WorkloadError::Tree(difference));
        }
        life.recording = arena.zone.stop_recording().unwrap_or_else(empty);
        life.besides = theirs.ground.besides;
        ours.ground.abandon();
        Ok(life)
    }

    /// Crashes a recorded life everywhere.
    fn crash(&mut self, life: &Life, workload: &Workload, depth: u32) -> Result<(), Violation> {
        let first = workload.prelude.len() + workload.from;
        self.walk(&life.recording, life.allowed_from(first), |judge, machine, point| {
            let point = Point { depth, seed: workload.seed ^ point.event as u64, ..point };
            judge.point(machine, &point).map(|()| true)
        })
    }

    fn replay(&mut self, life: &Life, workload: &Workload, id: &Id) -> Result<Option<Violation>, String> {
        let mut found: Result<Option<Violation>, String> =
            Err(format!("event {} is no crash point of {}", id.event, workload.name));
        let walked = self.walk(&life.recording, life.allowed_from(0), |judge, machine, point| {
            if point.event != id.event {
                return Ok(true);
            }
            let point = Point { depth: id.depth, seed: workload.seed ^ point.event as u64, ..point };
            found = judge.replay(machine, &point, &id.lines).map(Result::err);
            Ok(false)
        });
        match walked {
            Ok(()) => found,
            Err(violation) => Ok(Some(violation)),
        }
    }

    /// Goes through the events of a recording and stops at each moment for which `allowed` has trees that a power cut may
    /// leave, until `at` says false.
    pub(crate) fn walk(
        &mut self,
        recording: &Recording,
        mut allowed: impl FnMut(Moment<'_>) -> Option<Allowed>,
        mut at: impl FnMut(&mut Judge, &Machine, Point<'_>) -> Result<bool, Violation>,
    ) -> Result<(), Violation> {
        let arena = self.judge.arena.clone();
        self.judge.cover_recording(recording);
        let mut machine = Machine::new(arena.disk.clone());
        for (index, event) in recording.events.iter().enumerate() {
            let allowed = match event.kind {
                EventKind::Fence | EventKind::DiskSync => allowed(Moment::Fence),
                EventKind::Mark => allowed(Moment::Mark(recording.operation_of(event))),
                _ => None,
            };
            if let Some(allowed) = allowed {
                let durable = arena.mark();
                let point = Point { event: index, durable, depth: 1, allowed: &allowed, seed: index as u64 };
                let go_on = at(&mut self.judge, &machine, point);
                arena.put_back(durable);
                if !go_on? {
                    break;
                }
            }
            machine.step(recording, index, |line| arena.line(line));
            arena.patch(machine.take_fresh().iter().map(|(line, bytes)| (*line, bytes)));
        }
        Ok(())
    }

    /// Puts memory back as it was, and now and then looks whether that is all that was stored.
    fn settle(&mut self) -> Result<(), WorkloadError> {
        let arena = &self.judge.arena;
        arena.put_back(self.base);
        self.workloads += 1;
        if self.workloads % COMPARE_EVERY == 1
            && let Some(at) = arena.difference(&self.image)
        {
            return Err(WorkloadError::Bypass(at));
        }
        Ok(())
    }
}

/// Does all of some operations.
fn done_all<G: Ground>(mut actor: Actor<G>, operations: &[Operation]) -> Result<G, WorkloadError> {
    for (number, operation) in operations.iter().enumerate() {
        Time::stop(Some(clock(number)));
        let done = actor.perform(number, operation);
        done.map_err(|error| WorkloadError::Volume(format!("{operation} gives {error}")))?;
    }
    Ok(actor.ground)
}

fn empty() -> Recording {
    Recording {
        zone_uuid: Default::default(),
        zone_bytes: 0,
        volumes: Vec::new(),
        operations: vec![String::new()],
        events: Vec::new(),
        bytes: Vec::new(),
        with_bytes: true,
        complete: true,
    }
}
