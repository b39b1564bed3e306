//! Random operations beside the model, with unmounts, crashes and checks in between.

use native::{Durability, FormatOptions, MountOptions, Volume, check, format};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::torture::{Limits, Torture};

fn limits() -> Limits {
    // A native inode holds about 4 KiB of attributes; two of the largest fit.
    Limits { xattr_bytes: 900, ..Limits::default() }
}

/// 100,000 operations for each seed; every 5,000 the volume is closed and opened, or its zone is copied as a crash of
/// the server leaves it and the copy opened instead.
fn torture(seed: u64, durability: Durability, steps: u64) {
    let mut zone = Zone::anonymous(512 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let options = MountOptions { durability, ..MountOptions::default() };
    let mut volume = Volume::open(region, &options).unwrap();
    let mut torture = Torture::new(seed).with_limits(limits());
    let round = 5_000;
    for n in 0..steps / round {
        torture.run(&volume, round);
        torture.close(&volume);
        if n % 2 == 0 {
            volume.close().unwrap();
        } else if durability != Durability::Operation {
            vfs::FileSystem::syncfs(&volume).unwrap();
        }
        let image = zone.snapshot_image();
        drop(volume);
        let copy = Zone::from_bytes(&image, &OpenOptions::default()).unwrap();
        let report = check(&copy.volume("v").unwrap(), true).unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        drop(copy);
        zone = Zone::from_bytes(&image, &OpenOptions::default()).unwrap();
        volume = Volume::open(zone.volume("v").unwrap(), &options).unwrap();
        assert_eq!(volume.recovery().was_clean, n % 2 == 0);
        torture.compare(&volume);
    }
    torture.clear(&volume);
    volume.close().unwrap();
    let report = check(volume.region(), false).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    assert!(report.files == 0 && report.directories == 2, "{report:?}");
    assert!(report.blocks_used < 64, "space is lost: {report:?}");
}

#[test]
fn with_every_operation_durable() {
    torture(Torture::seed_from_environment(), Durability::Operation, 100_000);
}

#[test]
fn with_durable_fsyncs() {
    torture(Torture::seed_from_environment() + 1, Durability::Fsync, 100_000);
}

#[test]
fn with_durable_checkpoints() {
    torture(Torture::seed_from_environment() + 2, Durability::Snapshot, 100_000);
}
