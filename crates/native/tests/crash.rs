//! A power cut at any moment leaves a volume that opens, in which nothing is wrong, and whose tree is one that the
//! model had: with `durability=op` the tree after all operations that had returned, or also the one under way;
//! with `fsync` and `snapshot` the tree after some operation since the last that made everything durable.
//!
//! A run is recorded with its bytes. At every fence and at random events in between, states of the medium
//! are built: a line that was stored to since it was last made durable has reached the medium in any of its versions,
//! torn at 8 bytes, or not at all. Each state is recovered, checked and compared; some recoveries are recorded
//! and crashed in their turn. Two threads that work at once have a directory and a model each: then what was promised
//! to each of them must be there.
//!
//! A failure names its state: the seed, the event and the choice give it again.

mod medium;
mod operation;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

use crate::volumes::*;
use medium::{CHOICES, Choice, Medium};
use native::{Durability, FormatOptions, Volume, check, format};
use nvm::{Event, EventKind, OpenOptions, Recording, RecordingOptions, VolumeKind, Zone};
use operation::{Actor, Operation, choose};
use vfs::model::Model;
use vfs::{Caller, Error, FileSystem, ROOT_INO};

/// Marks that an operation of each thread returned.
const RETURNED: [&str; 2] = ["returned", "returned to the second"];
/// Marks an operation after which all that came before is durable in any mode.
const SYNCED: [&str; 2] = ["synced", "synced by the second"];

/// What one thread did, and what its directory looked like after each operation.
struct Life {
    /// Its directory in the volume, without the slash at its end.
    dir: &'static str,
    operations: Vec<(Operation, std::result::Result<(), Error>)>,
    trees: Vec<Tree>,
}

impl Life {
    /// Does `count` operations below `dir` beside a model.
    fn lead(zone: &Zone, volume: &Volume, thread: usize, dir: &'static str, seed: u64, count: usize) -> Life {
        let model = Model::new();
        let root = if dir.is_empty() { ROOT_INO } else { ino(volume, &dir[1..]) };
        let mut ours = Actor { fs: volume, root, held: Vec::new() };
        let mut theirs = Actor { fs: &model, root: ROOT_INO, held: Vec::new() };
        let mut random = Random(seed);
        let mut life = Life { dir, operations: Vec::new(), trees: vec![tree(&model).unwrap()] };
        for _ in 0..count {
            let operation = choose(&mut random, life.trees.last().unwrap());
            let (result, expected) = (ours.perform(&operation), theirs.perform(&operation));
            assert_eq!(result, expected, "seed {seed}: {operation:?}");
            let synced = matches!(operation, Operation::Fsync | Operation::Sync);
            zone.mark(if synced { SYNCED[thread] } else { RETURNED[thread] });
            life.trees.push(tree(&model).unwrap());
            life.operations.push((operation, result));
        }
        life
    }
}

/// What is below `dir` of a tree, as seen from there.
fn below(all: &Tree, dir: &str) -> Tree {
    let inside = |(path, seen): (&String, &Seen)| {
        let path = path.strip_prefix(dir).filter(|path| path.starts_with('/'))?;
        Some((path.to_owned(), seen.clone()))
    };
    all.iter().filter_map(inside).collect()
}

/// A recorded run: the zone before it, what happened, and each thread's life.
struct Run {
    seed: u64,
    image: Vec<u8>,
    recording: Recording,
    lives: Vec<Life>,
}

/// Ends the other thread when its holder returns or panics.
#[derive(Default)]
struct Done(Arc<AtomicBool>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Mounts, does `count` operations beside the model, and unmounts. With `concurrent`, another thread makes checkpoints
/// all the while, and seals nodes in between.
fn run(seed: u64, durability: Durability, count: usize, concurrent: bool) -> Run {
    record(seed, durability, &[], |zone, volume| {
        let done = Done::default();
        std::thread::scope(|scope| {
            let ends = done;
            if concurrent {
                let ended = ends.0.clone();
                scope.spawn(move || {
                    while !ended.load(Relaxed) {
                        volume.checkpoint().unwrap();
                        for _ in 0..3 {
                            std::thread::sleep(std::time::Duration::from_micros(100));
                            volume.seal();
                        }
                        std::thread::sleep(std::time::Duration::from_micros(300));
                    }
                });
            }
            vec![Life::lead(zone, volume, 0, "", seed, count)]
        })
    })
}

/// The same with two threads, each in a directory of its own.
fn run_together(seed: u64, durability: Durability, count: usize) -> Run {
    const DIRS: [&str; 2] = ["/one", "/other"];
    record(seed, durability, &DIRS, |zone, volume| {
        let start = std::sync::Barrier::new(DIRS.len());
        std::thread::scope(|scope| {
            let lead = |thread: usize| {
                start.wait();
                Life::lead(zone, volume, thread, DIRS[thread], seed + thread as u64, count)
            };
            let second = scope.spawn(move || lead(1));
            vec![lead(0), second.join().unwrap()]
        })
    })
}

/// Records `lead` on a volume with these directories.
fn record(
    seed: u64,
    durability: Durability,
    dirs: &[&str],
    lead: impl FnOnce(&Zone, &Volume) -> Vec<Life>,
) -> Run {
    let zone = Zone::anonymous(18 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    // The smallest log, so that it fills.
    format(&region, &FormatOptions { log_bytes: Some(1), ..FormatOptions::default() }).unwrap();
    if !dirs.is_empty() {
        let volume = mount(&region, durability);
        let mode = Model::new().getattr(ROOT_INO).unwrap().mode;
        for dir in dirs {
            volume.mkdir(&Caller::root(), ROOT_INO, &dir.as_bytes()[1..], mode).unwrap();
        }
        volume.close().unwrap();
    }
    let image = zone.snapshot_image();
    zone.start_recording(RecordingOptions::default());
    let volume = mount(&region, durability);
    let lives = lead(&zone, &volume);
    let all = tree(&volume).unwrap();
    for life in &lives {
        assert_eq!(difference(&below(&all, life.dir), life.trees.last().unwrap()), None, "seed {seed}");
    }
    volume.close().unwrap();
    let recording = zone.stop_recording().unwrap();
    assert!(recording.complete);
    Run { seed, image, recording, lives }
}

/// A state to be judged.
struct State {
    image: Vec<u8>,
    event: usize,
    choice: Choice,
    /// The trees that each life may have: after so many operations, both inclusive.
    bounds: Vec<(usize, usize)>,
    crash_recovery: bool,
}

/// What one directory of the volume may look like.
#[derive(Clone, Copy)]
struct Allowed<'a> {
    dir: &'a str,
    trees: &'a [Tree],
}

impl Allowed<'_> {
    /// The same with one tree only.
    fn only(&self, index: usize) -> Allowed<'_> {
        Allowed { dir: self.dir, trees: &self.trees[index..=index] }
    }
}

/// Recovers `image`; returns which of the trees each directory has.
fn judge(
    image: &[u8],
    allowed: &[Allowed<'_>],
    check_first: bool,
) -> std::result::Result<Vec<usize>, String> {
    let (_zone, region) = zone_of(image);
    let sound = |region: &nvm::Region, repair| match check(region, repair) {
        Err(error) => Err(format!("check fails: {error}")),
        Ok(report) if report.problems.is_empty() && !report.needs_recovery => Ok(()),
        Ok(report) => Err(format!("check finds {:#?}", report.problems)),
    };
    if check_first {
        sound(&region, true)?;
    }
    let volume = Volume::open(region.clone(), &options(Durability::Operation))
        .map_err(|error| format!("it does not open: {error}"))?;
    let indices = which(&volume, allowed)?;
    // It can be written to, and what is written stays.
    write_file(&volume, ROOT_INO, "after the crash", b"alive").map_err(|error| error.to_string())?;
    volume.close().map_err(|error| format!("closing fails: {error}"))?;
    sound(&region, false)?;
    Ok(indices)
}

fn which(volume: &Volume, allowed: &[Allowed<'_>]) -> std::result::Result<Vec<usize>, String> {
    let all = tree(volume).map_err(|error| format!("reading the tree fails: {error}"))?;
    let find = |Allowed { dir, trees }: &Allowed<'_>| {
        let found = below(&all, dir);
        if let Some(index) = trees.iter().position(|tree| *tree == found) {
            return Ok(index);
        }
        let differences = trees.iter().filter_map(|tree| difference(&found, tree)).collect::<Vec<_>>();
        Err(format!("the tree {dir}/ is none of those it may be:\n    {}", differences.join("\n    ")))
    };
    allowed.iter().map(find).collect()
}

/// Crashes the recovery of `image` at some of its events: it must find the same trees again.
fn crash_recovery(
    image: &[u8],
    expected: &[Allowed<'_>],
    random: &mut Random,
) -> std::result::Result<(), String> {
    let (zone, region) = zone_of(image);
    zone.start_recording(RecordingOptions::default());
    let volume = mount(&region, Durability::Operation);
    drop(volume);
    let recording = zone.stop_recording().unwrap();
    let mut medium = Medium::new(&recording, image);
    let points: Vec<usize> = (0..6).map(|_| random.below(recording.events.len() as u64) as usize).collect();
    for event in 0..recording.events.len() {
        if points.contains(&event) {
            let choice = CHOICES[random.below(6) as usize];
            judge(&medium.state(choice, random), expected, false)
                .map_err(|error| format!("recovery, cut at its event {event} with {choice:?}: {error}"))?;
        }
        medium.step();
    }
    Ok(())
}

impl Run {
    fn explain(&self, state: &State, what: &str) -> String {
        let shown = |life: &Life, index: usize| match life.operations.get(index) {
            Some((operation, result)) => {
                let text = format!("{operation:?}");
                format!("{}/ {index}: {} = {result:?}", life.dir, text.chars().take(300).collect::<String>())
            }
            None => format!("{}/ {index}: unmounting", life.dir),
        };
        let mut around = Vec::new();
        for (life, (low, high)) in self.lives.iter().zip(&state.bounds) {
            let last = (*high).min(life.operations.len());
            around.extend((low.saturating_sub(3)..=last).map(|index| shown(life, index)));
        }
        let event = &self.recording.events[state.event.min(self.recording.events.len() - 1)];
        format!(
            "AMBERFS_SEED={} event {} of {} ({:?} in {:?}), {:?}; {:?} operations are in: {what}\n  {}",
            self.seed,
            state.event,
            self.recording.events.len(),
            event.kind,
            self.recording.operation_of(event),
            state.choice,
            state.bounds,
            around.join("\n  ")
        )
    }

    /// Builds and judges states: two at each fence and `extra` at random events.
    fn explore(&self, durability: Durability, extra: usize) {
        let mut random = Random(self.seed ^ 0xc0ffee);
        let events = &self.recording.events;
        let (sender, receiver) = sync_channel::<State>(2);
        let receiver = Mutex::new(receiver);
        let failures = Mutex::new(Vec::new());
        let mut count = 0;
        std::thread::scope(|scope| {
            for worker in 0..2 {
                let (receiver, failures) = (&receiver, &failures);
                scope.spawn(move || self.judge_all(receiver, failures, Random(self.seed + worker)));
            }
            let mut medium = Medium::new(&self.recording, &self.image);
            let mut returned = vec![0; self.lives.len()];
            let mut synced = returned.clone();
            let share = (events.len() / extra.max(1)).max(1) as u64;
            for (index, event) in events.iter().enumerate() {
                let fence = event.kind == EventKind::Fence;
                for _ in 0..if fence { 2 } else { usize::from(random.one_in(share)) } {
                    let choice = CHOICES[random.below(6) as usize];
                    let state = State {
                        image: medium.state(choice, &mut random),
                        event: index,
                        choice,
                        bounds: self.bounds(durability, &returned, &synced),
                        crash_recovery: random.one_in(12),
                    };
                    count += 1;
                    if sender.send(state).is_err() {
                        break;
                    }
                }
                self.count(event, &mut returned, &mut synced);
                medium.step();
                if !failures.lock().unwrap().is_empty() {
                    break;
                }
            }
            drop(sender);
        });
        eprintln!("{durability}: {} events, {count} states", events.len());
        let failures = failures.into_inner().unwrap();
        assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    }

    /// Counts an operation that returned, if the event tells of one.
    fn count(&self, event: &Event, returned: &mut [usize], synced: &mut [usize]) {
        if event.kind != EventKind::Mark {
            return;
        }
        let mark = self.recording.operation_of(event);
        for (thread, count) in returned.iter_mut().enumerate() {
            if [RETURNED[thread], SYNCED[thread]].contains(&mark) {
                *count += 1;
            }
            if mark == SYNCED[thread] {
                synced[thread] = *count;
            }
        }
    }

    /// Kills the server at some events, above all before something is sent that was just stored, and cuts the power at each fence of who recovers what
    /// memory has then.
    fn kill(&self, durability: Durability) {
        let mut random = Random(self.seed ^ 0xdead);
        let mut medium = Medium::new(&self.recording, &self.image);
        let mut returned = vec![0; self.lives.len()];
        let mut synced = returned.clone();
        let mut count = 0;
        let mut stores = false;
        for (index, event) in self.recording.events.iter().enumerate() {
            let is_unsent =
                std::mem::replace(&mut stores, event.kind.is_store()) && event.kind == EventKind::Flush;
            if random.one_in(if is_unsent { 2 } else { 60 }) {
                let (zone, region) = zone_of(&medium.memory);
                zone.start_recording(RecordingOptions::default());
                drop(mount(&region, Durability::Operation));
                let recovery = zone.stop_recording().unwrap();
                let bounds = self.bounds(durability, &returned, &synced);
                let lives = self.lives.iter().zip(&bounds);
                let allowed: Vec<_> = lives
                    .map(|(life, (low, high))| Allowed { dir: life.dir, trees: &life.trees[*low..=*high] })
                    .collect();
                let mut left = medium.killed(&recovery);
                for (at, fence) in recovery.events.iter().enumerate() {
                    if fence.kind == EventKind::Fence {
                        let choice = CHOICES[random.below(6) as usize];
                        let image = left.state(choice, &mut random);
                        let judged = judge(&image, &allowed, random.one_in(2));
                        judged.unwrap_or_else(|error| {
                            let bounds = bounds.clone();
                            let state = State { image, event: index, choice, bounds, crash_recovery: false };
                            panic!(
                                "killed, and cut at event {at} of recovery: {}",
                                self.explain(&state, &error)
                            )
                        });
                        count += 1;
                    }
                    left.step();
                }
            }
            self.count(event, &mut returned, &mut synced);
            medium.step();
        }
        eprintln!("{durability}: {count} states");
        assert!(count > 0, "no state");
    }

    /// How many operations of each life are in a state at a moment when so many had returned, and been made durable.
    fn bounds(&self, durability: Durability, returned: &[usize], synced: &[usize]) -> Vec<(usize, usize)> {
        let low = if durability == Durability::Operation { returned } else { synced };
        let high =
            self.lives.iter().zip(returned).map(|(life, count)| (count + 1).min(life.operations.len()));
        low.iter().copied().zip(high).collect()
    }

    fn judge_all(&self, states: &Mutex<Receiver<State>>, failures: &Mutex<Vec<String>>, mut random: Random) {
        loop {
            let Ok(state) = states.lock().unwrap().recv() else { return };
            if !failures.lock().unwrap().is_empty() {
                continue;
            }
            let lives = self.lives.iter().zip(&state.bounds);
            let allowed: Vec<_> = lives
                .map(|(life, (low, high))| Allowed { dir: life.dir, trees: &life.trees[*low..=*high] })
                .collect();
            let judged = catch_unwind(AssertUnwindSafe(|| {
                let indices = judge(&state.image, &allowed, random.one_in(2))?;
                if state.crash_recovery {
                    let found: Vec<_> =
                        allowed.iter().zip(indices).map(|(all, index)| all.only(index)).collect();
                    crash_recovery(&state.image, &found, &mut random)?;
                }
                Ok(())
            }));
            let what = match judged {
                Ok(Ok(())) => continue,
                Ok(Err(what)) => what,
                Err(_) => "it panics".to_owned(),
            };
            failures.lock().unwrap().push(self.explain(&state, &what));
        }
    }
}

#[test]
fn with_every_operation_durable() {
    run(seed(), Durability::Operation, 60, false).explore(Durability::Operation, 100);
}

#[test]
fn with_durable_fsyncs() {
    run(seed() + 1, Durability::Fsync, 70, false).explore(Durability::Fsync, 120);
}

#[test]
fn with_durable_checkpoints() {
    run(seed() + 2, Durability::Snapshot, 70, false).explore(Durability::Snapshot, 100);
}

#[test]
fn while_checkpoints_are_made() {
    run(seed() + 3, Durability::Operation, 40, true).explore(Durability::Operation, 30);
}

#[test]
fn two_threads_with_every_operation_durable() {
    run_together(seed() + 4, Durability::Operation, 35).explore(Durability::Operation, 100);
}

#[test]
fn two_threads_with_durable_fsyncs() {
    run_together(seed() + 6, Durability::Fsync, 35).explore(Durability::Fsync, 100);
}

/// A server is killed, and the power goes while the next one recovers what it had stored: not all of that has reached the medium.
#[test]
fn behind_a_server_that_was_killed() {
    for (durability, seed) in DURABILITIES.into_iter().zip(seed() + 7..) {
        run(seed, durability, 60, false).kill(durability);
    }
}

/// A power cut while formatting leaves no volume or an empty one, never half of one.
#[test]
fn while_formatting() {
    let mut random = Random(seed());
    let zone = Zone::anonymous(18 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    // Something was there before.
    let volume = mount(&region, Durability::Operation);
    let model = Model::new();
    let empty = [tree(&model).unwrap()];
    let empty = [Allowed { dir: "", trees: &empty }];
    write_file(&volume, ROOT_INO, "old", b"old").unwrap();
    drop(volume);
    let image = zone.snapshot_image();
    zone.start_recording(RecordingOptions::default());
    format(&region, &FormatOptions::default()).unwrap();
    let recording = zone.stop_recording().unwrap();
    let mut medium = Medium::new(&recording, &image);
    let mut volumes = 0;
    for (index, event) in recording.events.iter().enumerate() {
        if index > 0 && (event.kind == EventKind::Fence || random.one_in(20)) {
            for choice in CHOICES {
                let image = medium.state(choice, &mut random);
                match Volume::open(zone_of(&image).1, &options(Durability::Operation)) {
                    // The old one, before its superblocks were removed.
                    Ok(volume) if read_file(&volume, ROOT_INO, "old").is_ok() => {}
                    Ok(_) => {
                        // The second superblock may be missing still: a check writes it again.
                        let (zone, region) = zone_of(&image);
                        assert!(check(&region, true).unwrap().is_clean());
                        judge(&zone.snapshot_image(), &empty, false)
                            .unwrap_or_else(|error| panic!("event {index}, {choice:?}: {error}"));
                        volumes += 1;
                    }
                    Err(native::Error::NotNative | native::Error::SuperblocksDamaged(_)) => {}
                    Err(error) => panic!("event {index}, {choice:?}: {error}"),
                }
            }
        }
        medium.step();
    }
    assert!(volumes > 0, "some state has the new volume");
}
