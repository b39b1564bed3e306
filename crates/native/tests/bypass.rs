//! No store bypasses `nvm`: replaying the recording of a run over the zone's bytes at its beginning gives the zone's
//! bytes at its end, to the last one. A store through any other door would be missing from the account, from the
//! wear, and from every crash that the explorer builds.

use std::cell::RefCell;

use crate::volumes::*;
use native::{Durability, FormatOptions, MountOptions, Volume, check, format};
use nvm::{OpenOptions, RecordingOptions, VolumeKind, Zone};
use vfs::torture::{Limits, Torture};
use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO, RenameFlags};

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
        volume.syncfs().unwrap();
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

thread_local! {
    /// The zone that is looked at, and the checksum of its bytes before each event.
    static LOOKED_AT: RefCell<Option<(Zone, Vec<u32>)>> = const { RefCell::new(None) };
}

/// Before every single event, a fence like any other, memory holds what was recorded until then, and nothing else: a store
/// that is recorded too late, or taken back before the end, would show.
#[test]
fn memory_is_what_was_recorded_at_every_event() {
    let zone = Zone::anonymous(native::MIN_VOLUME_BYTES + nvm::SEGMENT, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    format(&region, &FormatOptions { log_bytes: Some(1), ..FormatOptions::default() }).unwrap();
    let mut image = zone.snapshot_image();
    LOOKED_AT.set(Some((zone.clone(), Vec::new())));
    zone.start_recording(RecordingOptions::default());
    zone.set_gate(Some(|| {
        LOOKED_AT.with_borrow_mut(|looked_at| {
            if let Some((zone, checksums)) = looked_at {
                checksums.push(crc32c::crc32c(&zone.snapshot_image()));
            }
        });
    }));
    let options = MountOptions { background: false, ..MountOptions::default() };
    let volume = Volume::open(region, &options).unwrap();
    let (root, flags) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, flags).unwrap();
    volume.write(&root, file.handle, 0, &[1; 9_000]).unwrap();
    volume.write(&root, file.handle, 4_000, &[2; 300]).unwrap();
    volume.rename(&root, ROOT_INO, b"file", ROOT_INO, b"renamed", RenameFlags::empty()).unwrap();
    volume.checkpoint().unwrap();
    volume.unlink(&root, ROOT_INO, b"renamed").unwrap();
    volume.release(file.handle).unwrap();
    volume.close().unwrap();
    zone.set_gate(None);
    let recording = zone.stop_recording().unwrap();
    let (_, checksums) = LOOKED_AT.take().unwrap();
    assert_eq!(checksums.len(), recording.events.len());
    for (index, checksum) in checksums.into_iter().enumerate() {
        recording.replay(&mut image, index).unwrap();
        let event = &recording.events[index];
        assert_eq!(crc32c::crc32c(&image), checksum, "before event {index}, {event:?}");
    }
}
