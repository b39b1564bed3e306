//! Random operations beside the model, snapshots among them, with unmounts, crashes, rollbacks and checks in between.

use crate::volumes::{
    Random, assert_sound, assert_sound_if_crashed, crashed, image_at_rest, made, mount, zone_of,
};
use native::{Durability, FormatOptions, Journaling, MountOptions, Volume, check, format, roll_back};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use vfs::FileSystem;
use vfs::torture::{Limits, Torture};

/// Operations from one mount to the next: 10^5 of each seed.
const ROUND: u64 = 2_500;
const ROUNDS: usize = 40;

/// `rounds` of a mount each, at whose ends the volume is closed, or its zone is copied as a crash of the server leaves it
/// and the copy opened instead; now and then it is returned to a snapshot before it is opened.
fn torture(seed: u64, durability: Durability, rounds: usize) {
    let open = |region: &Region, round: usize| {
        // Each way to log bytes follows each other, at each kind of end.
        let journaling = Journaling::ALL[(round + round / 4) % 4];
        // And every third time there is room for next to nothing in the caches.
        let cache_bytes = (round % 3 == 1).then_some(0);
        let options = MountOptions { durability, journaling, cache_bytes, ..MountOptions::default() };
        Volume::open(region.clone(), &options).unwrap()
    };
    let (mut zone, mut region): (Zone, Region) = made(128 << 20);
    let mut volume = open(&region, 0);
    // An inode holds about 4 KiB of attributes; two of the largest fit.
    let limits = Limits { xattr_bytes: 900, inodes: 200, file_bytes: 1 << 26, ..Limits::default() };
    let mut torture = Torture::new(seed).with_limits(limits);
    for round in 0..rounds {
        torture.run_with_snapshots(&volume, ROUND);
        torture.close(&volume);
        let closes = round % 2 == 0;
        if closes {
            volume.close().unwrap();
        } else if durability != Durability::Operation {
            volume.syncfs().unwrap();
        }
        let image = image_at_rest(&zone);
        drop(volume);
        assert_sound(&zone_of(&image).1);
        (zone, region) = zone_of(&image);
        let snapshot = if round % 4 > 1 { torture.some_snapshot() } else { None };
        if let Some(name) = snapshot {
            let refused = roll_back(&region, &name, true).err().map(vfs::Error::from);
            assert_sound_if_crashed(&zone);
            volume = open(&region, round + 1);
            torture.rolled_back(&volume, &name, refused);
        } else {
            volume = open(&region, round + 1);
            assert_eq!(volume.recovery().was_clean, closes);
            torture.compare(&volume);
            torture.compare_snapshots(&volume);
        }
    }
    torture.clear(&volume);
    torture.clear_snapshots(&volume);
    volume.finish_removals().unwrap();
    volume.close().unwrap();
    let report = check(volume.region(), false).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    assert!(report.files == 0 && report.directories == 2, "{report:?}");
    assert!(report.blocks_used < 64, "space is lost: {report:?}");
    let tally = torture.tally();
    for name in ["take_snapshot", "remove_snapshot", "hold_snapshot", "release_snapshot"] {
        assert!(tally.contains_key(&(name, 0)), "{name} never succeeded: {tally:?}");
    }
}

/// Few files; after each operation every snapshot is compared with the model's copy, byte by byte. In between segments are emptied,
/// garbage is collected, snapshots are cloned over another volume, and the server is killed.
fn watched(seed: u64, durability: Durability) {
    const VOLUME: u64 = 40 << 20;
    let mut zone = Zone::anonymous(2 * VOLUME + nvm::SEGMENT, &OpenOptions::default()).unwrap();
    for name in ["v", "clone"] {
        let region = zone.create_volume(name, VolumeKind::Native, Some(VOLUME)).unwrap();
        format(&region, &FormatOptions::default()).unwrap();
    }
    let mut random = Random(seed);
    let open = |zone: &Zone, journaling| {
        let options = MountOptions { durability, journaling, background: false, ..MountOptions::default() };
        Volume::open(zone.volume("v").unwrap(), &options).unwrap()
    };
    let mut volume = open(&zone, Journaling::Adaptive);
    let limits = Limits {
        inodes: 16,
        file_bytes: 1 << 17,
        xattr_bytes: 900,
        handles: 8,
        between_snapshots: 12,
        watches_snapshots: true,
        ..Limits::default()
    };
    let mut torture = Torture::new(seed).with_limits(limits);
    let (mut emptied, mut cloned, mut collected) = (0, 0, 0);
    for round in 0..40 {
        torture.run_with_snapshots(&volume, 25);
        if random.one_in(2) {
            volume.finish_removals().unwrap();
        }
        for _ in 0..2 {
            emptied += u64::from(volume.empty_segment(random.below(4) as u32).unwrap());
            torture.compare_snapshots(&volume);
        }
        collected += volume.collect_garbage().unwrap();
        torture.compare(&volume);
        torture.compare_snapshots(&volume);
        if let Some(name) = torture.some_snapshot().filter(|_| round % 3 == 1) {
            let place = zone.volume("clone").unwrap();
            volume.clone_snapshot(&name, &place, &mut |_, _| {}).unwrap();
            torture.compare_clone(&mount(&place, durability), &name);
            assert_sound(&place);
            torture.compare_snapshots(&volume);
            cloned += 1;
        }
        if round % 8 == 7 {
            torture.close(&volume);
            if durability != Durability::Operation {
                volume.syncfs().unwrap();
            }
            let (copy, region) = crashed(&zone);
            assert_sound(&region);
            volume.abandon();
            zone = copy;
            volume = open(&zone, Journaling::ALL[(round / 8) % 4]);
            torture.compare(&volume);
            torture.compare_snapshots(&volume);
        }
    }
    assert!(emptied > 10 && cloned > 3, "{emptied} segments emptied, {collected} collected, {cloned} clones");
    torture.clear(&volume);
    torture.clear_snapshots(&volume);
    volume.finish_removals().unwrap();
    volume.close().unwrap();
    assert_sound(&zone.volume("v").unwrap());
}

#[test]
fn every_snapshot_after_each_operation_with_every_operation_durable() {
    watched(Torture::seed_from_environment() + 3, Durability::Operation);
}

#[test]
fn every_snapshot_after_each_operation_with_durable_fsyncs() {
    watched(Torture::seed_from_environment() + 4, Durability::Fsync);
}

#[test]
fn every_snapshot_after_each_operation_with_durable_checkpoints() {
    watched(Torture::seed_from_environment() + 5, Durability::Snapshot);
}

#[test]
fn with_every_operation_durable() {
    torture(Torture::seed_from_environment(), Durability::Operation, ROUNDS);
}

#[test]
fn with_durable_fsyncs() {
    torture(Torture::seed_from_environment() + 1, Durability::Fsync, ROUNDS);
}

#[test]
fn with_durable_checkpoints() {
    torture(Torture::seed_from_environment() + 2, Durability::Snapshot, ROUNDS);
}
