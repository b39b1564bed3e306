//! Random operations beside the model, snapshots among them, with unmounts, crashes, rollbacks and checks in between.

mod volumes;

use native::{Durability, Journaling, MountOptions, Volume, check, roll_back};
use nvm::{Region, Zone};
use vfs::FileSystem;
use vfs::torture::{Limits, Torture};
use volumes::{assert_sound, assert_sound_if_crashed, made, zone_of};

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
        let image = zone.snapshot_image();
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
