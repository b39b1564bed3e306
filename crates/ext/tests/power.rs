//! Power cuts at every moment, of NVM and disk at once: with every operation synchronous, what is found again is what was before or behind
//! the one in flight; recoveries are cut, too, and so are attaching, detaching and checkpoints.

use crate::support;
use std::sync::Arc;

use crate::support::Image;
use crate::support::cuts::{Luck, Machine};
use crate::support::random::Random;
use crate::support::tree::{self, Tree};
use disk::{Disk, EventKind as DiskEvent, Recorded};
use ext::{Options, Sync, Volume};
use nvm::{EventKind, OpenOptions, Purpose, Recording, RecordingOptions, Region, VolumeKind, Zone};
use vfs::{Caller, FallocateMode, FileSystem, Ino, OpenFlags, ROOT_INO, RenameFlags, SetAttr, XattrMode};

const ZONE: u64 = 12 << 20;
const AREA: u64 = 8 << 20;
/// What the disk refuses at a time, if it does, ends there: at its end. Fewer of its blocks are files' than NVM has room for.
const REFUSED: u64 = 4 << 20;

/// A zone and a disk whose lives are recorded together.
struct Rig {
    zone: Zone,
    disk: Arc<Disk>,
    memory: Arc<disk::Memory>,
}

impl Rig {
    fn new(zone: Zone, image: Vec<u8>) -> Rig {
        let memory = Arc::new(disk::Memory::new(image, false));
        let noted = zone.volume("disk").unwrap();
        let recorded = Recorded::new(memory.clone(), move |event| {
            let kind = match event.kind {
                DiskEvent::Read => return,
                DiskEvent::Write => EventKind::DiskWrite,
                DiskEvent::Flush => EventKind::DiskSync,
            };
            noted.note(kind, Purpose::Data, event.at, event.length, event.bytes);
        });
        Rig { zone, disk: Arc::new(Disk::over("disk".into(), Arc::new(recorded))), memory }
    }

    fn region(&self) -> Region {
        self.zone.volume("disk").unwrap()
    }

    fn mount(&self, sync: Sync) -> Result<Volume, ext::Error> {
        Volume::mount(&self.region(), self.disk.clone(), &Options { sync, ..Options::default() })
    }

    fn record(&self) {
        self.zone.start_recording(RecordingOptions::default());
    }

    /// From now on the disk refuses a part of itself, or nothing.
    fn refuse_some(&self, random: &mut Random) {
        let start = random.below(8) * (16 << 10);
        self.memory.refuse(if random.below(4) == 0 { 0..0 } else { start..REFUSED });
    }

    fn images(&self) -> (Vec<u8>, Vec<u8>) {
        (self.zone.snapshot_image(), self.memory.image())
    }
}

fn zone() -> Zone {
    let zone = Zone::anonymous(ZONE, &OpenOptions::default()).unwrap();
    zone.create_volume("disk", VolumeKind::Ext, Some(AREA)).unwrap();
    zone
}

/// A volume in use, and its tree behind every operation.
struct Life<'a> {
    volume: &'a Volume,
    zone: &'a Zone,
    trees: Vec<Tree>,
}

impl Life<'_> {
    fn operation<R>(&mut self, does: impl FnOnce(&Volume) -> R) -> R {
        self.zone.mark("operation");
        let result = does(self.volume);
        self.trees.push(tree::of_volume(self.volume).unwrap());
        result
    }

    /// One of many small changes. Whether it succeeds is not the point.
    fn change(&mut self, random: &mut Random) {
        let (root, flags) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
        let sub = |random: &mut Random| format!("dir-{}", random.below(4)).into_bytes();
        let dir = |random: &mut Random| -> Ino {
            self.volume.lookup(&root, ROOT_INO, &sub(random)).map_or(ROOT_INO, |attr| attr.ino)
        };
        let (at, to) = (dir(random), dir(random));
        let [one, other] = [0, 1].map(|_| format!("name-{}", random.below(9)).into_bytes());
        let there = self.volume.lookup(&root, at, &one).map(|attr| attr.ino);
        match (random.below(16), there) {
            (0, _) => self.operation(|volume| drop(volume.mkdir(&root, ROOT_INO, &sub(random), 0o755))),
            (1, _) => self.operation(|volume| drop(volume.rmdir(&root, ROOT_INO, &sub(random)))),
            (2, _) => {
                let target = vec![b'x'; 1 + random.below(100) as usize];
                self.operation(|volume| drop(volume.symlink(&root, at, &one, &target)));
            }
            (3, _) => self
                .operation(|volume| drop(volume.rename(&root, at, &one, to, &other, RenameFlags::empty()))),
            (4, _) => self
                .operation(|volume| drop(volume.rename(&root, at, &one, to, &other, RenameFlags::EXCHANGE))),
            (5 | 6, _) => self.operation(|volume| drop(volume.unlink(&root, at, &one))),
            (7, Ok(ino)) => self.operation(|volume| drop(volume.link(&root, ino, to, &other))),
            (8, Ok(ino)) => {
                let value = vec![7; random.below(600) as usize];
                self.operation(|volume| {
                    drop(volume.setxattr(&root, ino, b"user.some", &value, XattrMode::Either))
                });
            }
            (9, Ok(ino)) => {
                let set = SetAttr { size: Some(random.below(40_000)), ..SetAttr::default() };
                self.operation(|volume| drop(volume.setattr(&root, ino, &set, None)));
            }
            (kind, _) => {
                let made = self.operation(|volume| volume.create(&root, at, &one, 0o644, flags));
                let Ok(made) = made else { return };
                if kind == 10 {
                    let mode = FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE;
                    let (from, length) = (random.below(30_000), 1 + random.below(9_000));
                    self.operation(|volume| drop(volume.fallocate(&root, made.handle, mode, from, length)));
                } else {
                    let length = if random.below(4) == 0 { 20_000 } else { 300 };
                    let bytes = vec![1 + random.below(255) as u8; 1 + random.below(length) as usize];
                    let from = random.below(30_000);
                    self.operation(|volume| volume.write(&root, made.handle, from, &bytes).unwrap());
                }
                self.operation(|volume| volume.release(made.handle).unwrap());
            }
        }
    }
}

/// Opens what a cut left, checks it, and gives what `look` sees in it.
fn found<T>(rig: &Rig, look: &dyn Fn(&Volume) -> T) -> Result<T, String> {
    let volume = rig.mount(Sync::Nosync).map_err(|error| error.to_string())?;
    let report = ext::check_volume(&volume).map_err(|error| error.to_string())?;
    if !report.is_clean() {
        return Err(report.findings.join("; "));
    }
    Ok(look(&volume))
}

fn tree_of(volume: &Volume) -> Tree {
    tree::of_volume(volume).unwrap()
}

struct Explorer {
    random: Random,
    states: u64,
    recoveries: u64,
    /// Disks refuse a part of themselves, when they are used and when they are found again.
    refuses: bool,
    /// Most blocks that were refused at a time.
    refused: u64,
}

impl Explorer {
    fn new(seed: u64, refuses: bool) -> Explorer {
        Explorer { random: Random::new(seed), states: 0, recoveries: 0, refuses, refused: 0 }
    }

    /// Before every so many operations of a life.
    fn change_disk(&mut self, rig: &Rig, volume: &Volume, step: u64) {
        self.refused = self.refused.max(volume.stats().blocks_refused);
        if self.refuses && step.is_multiple_of(5) {
            rig.refuse_some(&mut self.random);
        }
    }

    /// Cuts a recording that began with these images wherever something is at stake, one cut in `one_in`; `judge` is told how many marks
    /// have passed, and what was found.
    fn explore<T>(
        &mut self,
        recording: &Recording,
        (nvm, disk): (Vec<u8>, Vec<u8>),
        one_in: u64,
        look: &dyn Fn(&Volume) -> T,
        judge: &dyn Fn(usize, Result<T, String>) -> Result<(), String>,
    ) {
        assert!(recording.complete);
        let mut machine = Machine::new(recording, nvm, disk);
        let mut marks = 0;
        for (n, event) in recording.events.iter().enumerate() {
            let decides = matches!(event.kind, EventKind::Fence | EventKind::DiskSync | EventKind::Mark);
            if (decides || self.random.below(20) == 0)
                && !machine.is_settled()
                && self.random.below(one_in) == 0
            {
                for luck in [Luck::None, Luck::All, Luck::Nvm, Luck::Disk, Luck::Some, Luck::Some] {
                    let left = machine.cut(luck, &mut self.random);
                    self.try_state(left, marks, look, judge).unwrap_or_else(|what| {
                        panic!(
                            "cut before event {n} ({:?}), {luck:?}, {marks} operations done: {what}",
                            event.kind
                        )
                    });
                }
            }
            marks += usize::from(event.kind == EventKind::Mark);
            machine.step(event);
        }
    }

    fn try_state<T>(
        &mut self,
        (nvm, disk): (Vec<u8>, Vec<u8>),
        marks: usize,
        look: &dyn Fn(&Volume) -> T,
        judge: &dyn Fn(usize, Result<T, String>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.states += 1;
        let rig = Rig::new(Zone::from_bytes(&nvm, &OpenOptions::default()).unwrap(), disk.clone());
        if self.refuses {
            rig.refuse_some(&mut self.random);
        }
        // One recovery in eight is cut itself.
        let deeper = self.random.below(8) == 0;
        if deeper {
            rig.record();
        }
        let seen = found(&rig, look);
        let recording = if deeper { rig.zone.stop_recording() } else { None };
        judge(marks, seen)?;
        let Some(recording) = recording else { return Ok(()) };
        let mut machine = Machine::new(&recording, nvm, disk);
        for event in &recording.events {
            if !machine.is_settled() && self.random.below(40) == 0 {
                let (nvm, disk) = machine.cut(Luck::Some, &mut self.random);
                let rig = Rig::new(Zone::from_bytes(&nvm, &OpenOptions::default()).unwrap(), disk);
                self.recoveries += 1;
                judge(marks, found(&rig, look)).map_err(|what| format!("its recovery cut, too: {what}"))?;
            }
            machine.step(event);
        }
        Ok(())
    }
}

fn explore(kind: &str, options: &[&str], seed: u64, refuses: bool) {
    let image = Image::make("4M", &[&["-t", kind, "-N", "256"], options].concat());
    let rig = Rig::new(zone(), std::fs::read(&image.path).unwrap());
    ext::attach(&rig.region(), &rig.disk).unwrap();
    let mut explorer = Explorer::new(seed, refuses);
    let start = rig.images();
    rig.record();
    let volume = rig.mount(Sync::Sync).unwrap();
    let mut life = Life { volume: &volume, zone: &rig.zone, trees: vec![tree::of_volume(&volume).unwrap()] };
    for step in 0..60 {
        explorer.change_disk(&rig, &volume, step);
        match step % 20 {
            19 => life.operation(|volume| volume.checkpoint().unwrap()),
            _ => life.change(&mut explorer.random),
        }
    }
    let mut trees = life.trees;
    volume.unmount().unwrap();
    rig.memory.refuse(0..0);
    drop(volume);
    let recording = rig.zone.stop_recording().unwrap();
    // Behind mark n, operation n is in flight.
    explorer.explore(&recording, start, 3, &tree_of, &|marks, tree| {
        let tree = tree?;
        let allowed = &trees[marks.saturating_sub(1)..=marks];
        if allowed.contains(&tree) {
            return Ok(());
        }
        let differs = |other: &Tree| {
            let names = tree.keys().chain(other.keys());
            let first = names.into_iter().find(|name| tree.get(*name) != other.get(*name))?;
            Some(format!(
                "{:?}: {:?}, not {:?}",
                String::from_utf8_lossy(first),
                tree.get(first),
                other.get(first)
            ))
        };
        Err(format!(
            "neither the tree before ({:?}) nor behind ({:?})",
            differs(&allowed[0]),
            differs(&allowed[allowed.len() - 1])
        ))
    });
    // Now it is detached, and that is cut; what is found is mounted again, or is a plain disk.
    let last = trees.pop().unwrap();
    let start = rig.images();
    rig.record();
    rig.mount(Sync::Sync).unwrap().detach().unwrap();
    let recording = rig.zone.stop_recording().unwrap();
    detached(&mut explorer, &recording, start, &last);
    let plain = Image::of(&rig.memory.image());
    support::run("e2fsck", &["-fn", &plain.path.display().to_string()]);
    eprintln!("{kind}: {} states, {} of recoveries", explorer.states, explorer.recoveries);
    assert!(explorer.states > 300 && explorer.recoveries > 20);
    assert_eq!(explorer.refused > 0, refuses);
}

fn detached(explorer: &mut Explorer, recording: &Recording, (nvm, disk): (Vec<u8>, Vec<u8>), last: &Tree) {
    let mut machine = Machine::new(recording, nvm, disk);
    for event in &recording.events {
        if matches!(event.kind, EventKind::Fence | EventKind::DiskSync) && !machine.is_settled() {
            for luck in [Luck::None, Luck::All, Luck::Nvm, Luck::Disk, Luck::Some] {
                let (nvm, disk) = machine.cut(luck, &mut explorer.random);
                explorer.states += 1;
                let rig = Rig::new(Zone::from_bytes(&nvm, &OpenOptions::default()).unwrap(), disk);
                let tree = match found(&rig, &tree_of) {
                    Ok(tree) => tree,
                    // The mark has gone: the disk is a plain one.
                    Err(what) if what.contains("has no disk") => {
                        let report = ext::check(rig.disk.clone(), &Options::default()).unwrap();
                        assert!(report.is_clean(), "{:?}", report.findings);
                        tree::of_volume(&Volume::open(rig.disk.clone(), &Options::default()).unwrap())
                            .unwrap()
                    }
                    Err(what) => panic!("{what}"),
                };
                assert!(tree == *last, "cut before {:?}, {luck:?}", event.kind);
            }
        }
        machine.step(event);
    }
}

#[test]
fn ext4() {
    explore("ext4", &["-b", "4096", "-I", "256"], 1, false);
}

#[test]
fn ext4_of_small_blocks() {
    explore("ext4", &["-b", "1024", "-I", "128", "-O", "^metadata_csum"], 2, false);
}

#[test]
fn ext3() {
    explore("ext3", &["-b", "1024", "-I", "256"], 3, false);
}

#[test]
fn ext2() {
    explore("ext2", &["-b", "2048", "-I", "128"], 4, false);
}

#[test]
fn ext4_on_a_disk_that_refuses_sectors() {
    explore("ext4", &["-b", "4096", "-I", "256"], 6, true);
}

#[test]
fn ext2_on_a_disk_that_refuses_sectors() {
    explore("ext2", &["-b", "1024", "-I", "128"], 7, true);
}

/// What of a file's bytes may be found; nothing if its name may be gone. Thousands of steps' sets have the same in them.
type Allowed = std::collections::BTreeSet<Option<Bytes>>;
type Bytes = Arc<[u8]>;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn contents(volume: &Volume) -> Vec<Option<Bytes>> {
    let root = Caller::root();
    let read = |name: &&str| {
        let attr = volume.lookup(&root, ROOT_INO, name.as_bytes()).ok()?;
        let handle = volume.open(&root, attr.ino, OpenFlags::READ).unwrap();
        let mut bytes = vec![0; attr.size as usize];
        assert_eq!(volume.read(handle, 0, &mut bytes).unwrap(), bytes.len());
        volume.release(handle).unwrap();
        Some(bytes.into())
    };
    NAMES.iter().map(read).collect()
}

/// Without any operation being synchronous: what was synced is found, or what a later operation on the same file made of it; no other bytes, and
/// no zeros where bytes were. Checkpoints come between operations that are not durable yet.
fn explore_synced(kind: &str, block: usize, seed: u64, refuses: bool) {
    let image = Image::make("4M", &["-N", "256", "-t", kind, "-b", &block.to_string()]);
    let rig = Rig::new(zone(), std::fs::read(&image.path).unwrap());
    ext::attach(&rig.region(), &rig.disk).unwrap();
    let mut explorer = Explorer::new(seed, refuses);
    let start = rig.images();
    rig.record();
    let volume = rig.mount(Sync::Nosync).unwrap();
    let (root, flags) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
    let mut allowed: Vec<Allowed> = NAMES.iter().map(|_| Allowed::from([None])).collect();
    let mut steps = vec![allowed.clone()];
    for step in 0..90 {
        explorer.change_disk(&rig, &volume, step);
        let random = &mut explorer.random;
        let (one, other) = (random.below(4) as usize, random.below(4) as usize);
        rig.zone.mark("operation");
        let there = volume.lookup(&root, ROOT_INO, NAMES[one].as_bytes()).ok();
        match (random.below(12), there) {
            // A new version, synced, in place or beside: the bytes of each differ.
            (0..=3, _) => {
                let bytes = vec![1 + random.below(255) as u8; 1 + random.below(9_000) as usize];
                let truncate = flags | OpenFlags::TRUNCATE;
                let made = volume.create(&root, ROOT_INO, NAMES[one].as_bytes(), 0o644, truncate).unwrap();
                volume.write(&root, made.handle, 0, &bytes).unwrap();
                volume.fsync(made.handle, false).unwrap();
                volume.release(made.handle).unwrap();
                // While it goes on, cut and not written yet, and any part of it.
                let mut meanwhile = allowed.clone();
                meanwhile[one].extend((0..=bytes.len()).map(|end| Some(bytes[..end].into())));
                allowed[one] = Allowed::from([Some(bytes.into())]);
                let last = steps.last_mut().unwrap();
                last[one].extend(meanwhile[one].iter().cloned());
            }
            (4 | 5, Some(attr)) => {
                let more = vec![1 + random.below(255) as u8; 1 + random.below(3_000) as usize];
                let handle = volume.open(&root, attr.ino, flags).unwrap();
                volume.write(&root, handle, attr.size, &more).unwrap();
                volume.release(handle).unwrap();
                let now = contents(&volume)[one].clone().unwrap();
                // Under any name: that it was renamed may not be durable.
                let parts: Vec<Option<Bytes>> =
                    (attr.size as usize..=now.len()).map(|end| Some(now[..end].into())).collect();
                allowed.iter_mut().for_each(|set| set.extend(parts.iter().cloned()));
            }
            (6, Some(attr)) => {
                let set = SetAttr { size: Some(random.below(attr.size + 1)), ..SetAttr::default() };
                volume.setattr(&root, attr.ino, &set, None).unwrap();
                let cut = set.size.unwrap() as usize;
                // The zeros behind the new end, to the end of its block, may be there before the length is.
                let zeroed = |bytes: &Bytes| {
                    let (mut zeroed, end) = (bytes.to_vec(), cut.next_multiple_of(block).min(bytes.len()));
                    zeroed[cut..end].fill(0);
                    zeroed.into()
                };
                for set in &mut allowed {
                    let cuts = set.iter().flatten().filter(|bytes| bytes.len() > cut);
                    let cuts = cuts.flat_map(|bytes| [Some(bytes[..cut].into()), Some(zeroed(bytes))]);
                    let cuts: Vec<_> = cuts.collect();
                    set.extend(cuts);
                }
            }
            (7, Some(_)) => {
                volume.unlink(&root, ROOT_INO, NAMES[one].as_bytes()).unwrap();
                allowed[one].insert(None);
            }
            (8 | 9, Some(_)) if one != other => {
                let [from, to] = [one, other].map(|name| NAMES[name].as_bytes());
                volume.rename(&root, ROOT_INO, from, ROOT_INO, to, RenameFlags::empty()).unwrap();
                let moved: Vec<_> = allowed[one].iter().filter(|bytes| bytes.is_some()).cloned().collect();
                allowed[other].extend(moved);
                allowed[one].insert(None);
            }
            _ => volume.checkpoint().unwrap(),
        }
        steps.push(allowed.clone());
    }
    rig.memory.refuse(0..0);
    volume.unmount().unwrap();
    drop(volume);
    let recording = rig.zone.stop_recording().unwrap();
    explorer.explore(&recording, start, 4, &contents, &|marks, seen| {
        for (n, bytes) in seen?.into_iter().enumerate() {
            let sets = &steps[marks.saturating_sub(1)..=marks];
            if !sets.iter().any(|allowed| allowed[n].contains(&bytes)) {
                let told = |bytes: &[u8]| {
                    bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect::<Vec<_>>()
                };
                return Err(format!("{} is {:?}", NAMES[n], bytes.as_deref().map(told)));
            }
        }
        Ok(())
    });
    eprintln!("{} states, {} of recoveries", explorer.states, explorer.recoveries);
    assert!(explorer.states > 100);
    assert_eq!(explorer.refused > 0, refuses);
}

#[test]
fn what_is_synced_stays_on_ext4() {
    for seed in 10..12 {
        explore_synced("ext4", 4096, seed, false);
    }
}

#[test]
fn what_is_synced_stays_on_ext2() {
    for seed in 20..22 {
        explore_synced("ext2", 1024, seed, false);
    }
}

#[test]
fn what_is_synced_stays_though_the_disk_refuses_sectors() {
    explore_synced("ext4", 4096, 30, true);
}
