//! Snapshots: taken and removed while the tree changes, across crashes; whole while they are kept, and without a trace
//! when they are gone.

use native::{Durability, Error, FormatOptions, MountOptions, Volume, check, format};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::torture::{Limits, Torture};
use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn new_zone(bytes: u64) -> Zone {
    let zone = Zone::anonymous(bytes, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    zone
}

fn open(zone: &Zone, options: &MountOptions) -> Volume {
    Volume::open(zone.volume("v").unwrap(), options).unwrap()
}

fn assert_sound(region: &nvm::Region) -> u64 {
    let report = check(region, true).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    report.blocks_used
}

/// What a server's death leaves.
fn copy_of(zone: &Zone) -> Zone {
    Zone::from_bytes(&zone.snapshot_image(), &OpenOptions::default()).unwrap()
}

/// Numbers that are the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Random operations; in between, snapshots come and go, and the server dies.
fn churn(seed: u64, durability: Durability, rounds: u64) {
    let mut zone = new_zone(256 << 20);
    let options = MountOptions { durability, background: false, ..MountOptions::default() };
    let mut volume = open(&zone, &options);
    let limits = Limits { xattr_bytes: 900, inodes: 200, file_bytes: 1 << 26, ..Limits::default() };
    let mut torture = Torture::new(seed).with_limits(limits);
    let mut random = Random(seed);
    let mut names: Vec<String> = Vec::new();
    for round in 0..rounds {
        torture.run(&volume, 200);
        match random.below(8) {
            0..4 => {
                let name = format!("round {round}");
                let taken = volume.take_snapshot(&name, "taken by a test").unwrap();
                assert_eq!(volume.snapshot(&name).unwrap(), taken);
                names.push(name);
            }
            4..7 if !names.is_empty() => {
                let name = names.swap_remove(random.below(names.len() as u64) as usize);
                let usage = volume.snapshot_usage(&name).unwrap();
                assert!(usage.own_blocks > 0, "{name}: {usage:?}");
                volume.remove_snapshot(&name).unwrap();
                assert!(matches!(volume.snapshot(&name), Err(Error::NoSnapshot(_))));
            }
            _ => volume.checkpoint().unwrap(),
        }
        if round % 5 == 4 {
            torture.close(&volume);
            if durability != Durability::Operation {
                volume.syncfs().unwrap();
            }
            zone = copy_of(&zone);
            assert_sound(&copy_of(&zone).volume("v").unwrap());
            volume.abandon();
            volume = open(&zone, &options);
            torture.compare(&volume);
            let mut found: Vec<String> = volume.snapshots().into_iter().map(|it| it.name).collect();
            found.sort();
            names.sort();
            assert_eq!(found, names);
        }
    }
    torture.clear(&volume);
    names.iter().for_each(|name| volume.remove_snapshot(name).unwrap());
    volume.finish_removals().unwrap();
    volume.close().unwrap();
    let used = assert_sound(volume.region());
    assert!(used < 64, "{used} blocks are in use when everything is gone");
}

#[test]
fn they_come_and_go_with_every_operation_durable() {
    churn(Torture::seed_from_environment(), Durability::Operation, 100);
}

#[test]
fn they_come_and_go_with_durable_fsyncs() {
    churn(Torture::seed_from_environment() + 1, Durability::Fsync, 100);
}

#[test]
fn they_come_and_go_with_durable_checkpoints() {
    churn(Torture::seed_from_environment() + 2, Durability::Snapshot, 100);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let zone = new_zone(24 << 20);
    let volume = open(&zone, &MountOptions::default());
    for name in ["", ".", "..", "a/b", "line\nfeed", &"x".repeat(256)] {
        assert!(matches!(volume.take_snapshot(name, ""), Err(Error::SnapshotText(_))), "{name:?}");
    }
    let long = "y".repeat(255);
    volume.take_snapshot(&long, &long).unwrap();
    assert!(matches!(volume.take_snapshot(&long, ""), Err(Error::SnapshotExists(_))));
    assert!(matches!(volume.take_snapshot("z", &"c".repeat(256)), Err(Error::SnapshotText(_))));
    assert!(matches!(volume.remove_snapshot("z"), Err(Error::NoSnapshot(_))));
    assert!(matches!(volume.release_snapshot(&long, "nobody"), Err(Error::SnapshotHold { .. })));
    volume.hold_snapshot(&long, "a backup").unwrap();
    assert!(matches!(volume.hold_snapshot(&long, "a backup"), Err(Error::SnapshotHold { .. })));
    assert!(matches!(volume.hold_snapshot(&long, &"t".repeat(250)), Err(Error::SnapshotHold { .. })));
    drop(volume);
    let volume = open(&zone, &MountOptions::default());
    let held = volume.remove_snapshot(&long);
    assert!(matches!(&held, Err(Error::SnapshotHeld { tags, .. }) if tags == &["a backup"]), "{held:?}");
    volume.release_snapshot(&long, "a backup").unwrap();
    volume.remove_snapshot(&long).unwrap();
    assert_eq!(volume.snapshots(), []);
}

/// The list grows by blocks, and shrinks again.
#[test]
fn a_thousand_come_back() {
    let zone = new_zone(64 << 20);
    let options = MountOptions { background: false, ..MountOptions::default() };
    let volume = open(&zone, &options);
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap();
    volume.checkpoint().unwrap();
    let before = volume.stats().blocks_free;
    for n in 0..1000u32 {
        volume.write(&root, file.handle, u64::from(n % 16) * 4096, &[n as u8; 4096]).unwrap();
        volume.take_snapshot(&format!("number {n}"), "").unwrap();
    }
    drop(volume);
    assert_sound(&copy_of(&zone).volume("v").unwrap());
    let volume = open(&zone, &options);
    assert_eq!(volume.snapshots().len(), 1000);
    assert!(volume.snapshots().windows(2).all(|pair| pair[0].version < pair[1].version));
    for n in (0..1000u32).filter(|n| n % 3 != 0).chain((0..1000).step_by(3)) {
        volume.remove_snapshot(&format!("number {n}")).unwrap();
    }
    volume.finish_removals().unwrap();
    let file = volume.lookup(&root, ROOT_INO, b"file").unwrap();
    let handle = volume.open(&root, file.ino, RW).unwrap();
    let set = vfs::SetAttr { size: Some(0), ..vfs::SetAttr::default() };
    volume.setattr(&root, file.ino, &set, Some(handle)).unwrap();
    volume.checkpoint().unwrap();
    assert_eq!(volume.stats().blocks_free, before);
    volume.close().unwrap();
    assert_sound(volume.region());
}

/// A volume whose space is a snapshot's: writing fails, nothing is lost, and removing the snapshot helps.
#[test]
fn a_full_volume_is_saved_by_removing_a_snapshot() {
    let zone = new_zone(24 << 20);
    let options = MountOptions { background: false, ..MountOptions::default() };
    let volume = open(&zone, &options);
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap();
    let mut blocks = 0;
    while volume.statfs().unwrap().blocks_free > 700 {
        volume.write(&root, file.handle, blocks * 4096, &[1; 4096]).unwrap();
        blocks += 1;
    }
    volume.take_snapshot("full", "").unwrap();
    let mut written = 0;
    let refused = loop {
        match volume.write(&root, file.handle, written * 4096, &[2; 4096]) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, vfs::Error::NoSpace);
    assert!(written > 0 && written < blocks, "{written} of {blocks}");
    // A change of a few bytes needs a block, too, where the snapshot has the old one.
    let few = |block: &u64| volume.write(&root, file.handle, block * 4096, &[3; 64]).is_err();
    let refused = (0..blocks).rev().find(few).unwrap();
    assert!(refused > written, "{} small changes found room", blocks - refused);
    let more = |n: &u32| volume.take_snapshot(&format!("another {n}"), "").is_err();
    let taken = (0..100).find(more).expect("checkpoints need what is left");
    assert!(matches!(volume.take_snapshot("another", ""), Err(Error::NoSpaceForSnapshot)));
    let mut bytes = vec![0; 4096];
    for block in 0..blocks {
        volume.read(file.handle, block * 4096, &mut bytes).unwrap();
        let expected = if block < written { 2 } else { 1 };
        let changed = if block > refused { 64 } else { 0 };
        assert!(bytes[..changed].iter().all(|byte| *byte == 3), "block {block}");
        assert!(bytes[changed..].iter().all(|byte| *byte == expected), "block {block}");
    }
    volume.remove_snapshot("full").unwrap();
    (0..taken).for_each(|n| volume.remove_snapshot(&format!("another {n}")).unwrap());
    volume.finish_removals().unwrap();
    for block in 0..blocks {
        volume.write(&root, file.handle, block * 4096, &[4; 4096]).unwrap();
    }
    volume.unlink(&root, ROOT_INO, b"file").unwrap();
    volume.close().unwrap();
    assert!(assert_sound(volume.region()) < 64);
}
