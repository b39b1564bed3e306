//! No store bypasses `nvm`: replaying the recording of a run over the zone's bytes at its beginning gives the zone's
//! bytes at its end, to the last one. A store through any other door would be missing from the account, from the
//! wear, and from every crash that the explorer builds.

mod volumes;

use native::{Durability, FormatOptions, MountOptions, Volume, check, format};
use nvm::{OpenOptions, RecordingOptions, VolumeKind, Zone};
use vfs::torture::{Limits, Torture};
use volumes::*;

/// Records what `run` does to a zone and replays it.
fn recorded(zone: &Zone, what: &str, run: impl FnOnce()) {
    let mut image = zone.snapshot_image();
    zone.start_recording(RecordingOptions::default());
    run();
    let recording = zone.stop_recording().unwrap();
    assert!(recording.complete, "{what}: the recording ran out of memory");
    assert!(recording.events.iter().any(|event| event.kind.is_store()), "{what} stores nothing");
    recording.replay(&mut image, recording.events.len()).unwrap();
    let now = zone.snapshot_image();
    let differs = image.iter().zip(&now).position(|(replayed, real)| replayed != real);
    assert_eq!(differs, None, "{what}: the zone's byte at this address was stored behind nvm's back");
}

fn nothing_bypasses(durability: Durability) {
    let zone = Zone::anonymous(66 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    recorded(&zone, "formatting", || format(&region, &FormatOptions::default()).unwrap());
    let options = MountOptions { durability, ..MountOptions::default() };
    let limits = Limits { xattr_bytes: 900, file_bytes: 4 << 20, inodes: 300, ..Limits::default() };
    let mut torture = Torture::new(seed()).with_limits(limits);
    recorded(&zone, "a life", || {
        let volume = Volume::open(region.clone(), &options).unwrap();
        for _ in 0..4 {
            torture.run(&volume, 1_000);
            volume.checkpoint().unwrap();
        }
        torture.close(&volume);
        torture.run(&volume, 100);
        vfs::FileSystem::syncfs(&volume).unwrap();
        torture.run(&volume, 50);
        torture.close(&volume);
        volume.close().unwrap();
    });

    // Recovery, too.
    let volume = Volume::open(region.clone(), &options).unwrap();
    torture.run(&volume, 200);
    let (crashed_zone, crashed_region) = crashed(&zone);
    recorded(&crashed_zone, "recovery", || drop(Volume::open(crashed_region.clone(), &options).unwrap()));
    drop(volume);
    recorded(&zone, "a check that mends", || {
        let at = 4096 + 100; // in the second superblock
        let region = zone.volume("v").unwrap();
        region.store(nvm::Purpose::Metadata, at, &[0xff; 4]);
        assert!(check(&region, true).unwrap().is_clean());
    });
}

#[test]
fn with_durable_operations() {
    nothing_bypasses(Durability::Operation);
}

#[test]
fn with_durable_fsyncs() {
    nothing_bypasses(Durability::Fsync);
}

#[test]
fn with_durable_checkpoints() {
    nothing_bypasses(Durability::Snapshot);
}
