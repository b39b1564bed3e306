//! Nodes are made ready for a checkpoint before it is made.

use native::{Durability, Volume};
use nvm::Purpose;
use vfs::{Caller, FileSystem, ROOT_INO, SetAttr};

use crate::volumes::{assert_sound, made, mount, options};

const DIRS: u64 = 40;

/// Directories, each with a node of its own.
fn populate(volume: &Volume) {
    for n in 0..DIRS {
        let dir = volume.mkdir(&Caller::root(), ROOT_INO, format!("{n}").as_bytes(), 0o755).unwrap().ino;
        volume.mkdir(&Caller::root(), dir, b"below", 0o755).unwrap();
    }
    volume.checkpoint().unwrap();
}

/// Makes a directory in each of them, or removes it.
fn change(volume: &Volume, makes: bool) {
    for n in 0..DIRS {
        let dir = volume.lookup(&Caller::root(), ROOT_INO, format!("{n}").as_bytes()).unwrap().ino;
        if makes {
            volume.mkdir(&Caller::root(), dir, b"another", 0o755).unwrap();
        } else {
            volume.rmdir(&Caller::root(), dir, b"another").unwrap();
        }
    }
}

/// Lines of metadata that a checkpoint flushes.
fn flushed_by_checkpoint(volume: &Volume) -> u64 {
    let lines = || volume.region().account().of(Purpose::Metadata).lines_flushed;
    let before = lines();
    volume.checkpoint().unwrap();
    lines() - before
}

#[test]
fn a_checkpoint_leaves_alone_what_is_sealed() {
    let (zone, region) = made(32 << 20);
    let volume = mount(&region, Durability::Operation);
    populate(&volume);
    change(&volume, true);
    let unsealed = flushed_by_checkpoint(&volume);
    change(&volume, false);
    volume.seal();
    let sealed = flushed_by_checkpoint(&volume);
    assert!(unsealed > 2 * DIRS, "{unsealed} lines");
    assert!(sealed < DIRS / 2, "{sealed} lines of {unsealed}");
    // What is changed behind it is flushed again, and no more.
    change(&volume, true);
    volume.seal();
    volume
        .setattr(&Caller::root(), ROOT_INO, &SetAttr { mode: Some(0o700), ..SetAttr::default() }, None)
        .unwrap();
    let broken = flushed_by_checkpoint(&volume);
    assert!(
        broken > sealed && broken < unsealed / 2,
        "{broken} lines of {unsealed}, {sealed} if all is sealed"
    );
    drop(volume);
    assert_sound(&region);
    drop(zone);
}

/// Sealed, broken and sealed again, beyond how often that is done; each epoch's tree is what the next mount finds.
#[test]
fn what_is_changed_behind_a_seal_is_in_the_checkpoint() {
    let (_zone, region) = made(32 << 20);
    let volume = mount(&region, Durability::Operation);
    populate(&volume);
    for round in 0..8 {
        change(&volume, round % 2 == 0);
        volume.seal();
    }
    change(&volume, true);
    volume.checkpoint().unwrap();
    volume.abandon();
    assert_sound(&region);
    let volume = mount(&region, Durability::Operation);
    assert_eq!(volume.recovery().transactions_replayed, 0);
    for n in 0..DIRS {
        let dir = volume.lookup(&Caller::root(), ROOT_INO, format!("{n}").as_bytes()).unwrap();
        assert_eq!(dir.nlink, 4, "directory {n}");
    }
}

/// By itself, in the background, as soon as there is enough; but for what was changed last.
#[test]
fn a_volume_seals_in_the_background() {
    let (_zone, region) = made(64 << 20);
    let options = native::MountOptions {
        background: true,
        commit_interval: std::time::Duration::from_secs(3600),
        ..options(Durability::Operation)
    };
    let volume = Volume::open(region.clone(), &options).unwrap();
    for n in 0..600 {
        let dir = volume.mkdir(&Caller::root(), ROOT_INO, format!("{n}").as_bytes(), 0o755).unwrap().ino;
        volume.mkdir(&Caller::root(), dir, b"below", 0o755).unwrap();
    }
    let lines = || volume.region().account().of(Purpose::Metadata).lines_flushed;
    let begun = std::time::Instant::now();
    while lines() < 600 {
        assert!(begun.elapsed().as_secs() < 60, "nothing was sealed in a minute: {} lines", lines());
        std::thread::yield_now();
    }
    volume.close().unwrap();
    drop(volume);
    assert_sound(&region);
}
