//! What every volume must do, in all three durability modes: POSIX does not depend on what survives a power cut. And
//! what the cases made is there afterwards: the tree is the same after an unmount, and after a crash that
//! came when everything was synced.

use crate::volumes::*;
use native::Durability;
use vfs::conformance;

/// Cases allocate ranges of a gigabyte.
const BYTES: u64 = 4 << 30;

fn conforms(durability: Durability) {
    let (_zone, region) = made(BYTES);
    let volume = mount(&region, durability);
    for (name, case) in conformance::all() {
        eprintln!("{name}");
        case(&volume);
        assert_eq!(volume.stats().open_handles, 0, "{name} closes what it opens");
    }
    let before = tree(&volume).unwrap();
    vfs::FileSystem::syncfs(&volume).unwrap();
    volume.abandon();
    for was_clean in [false, true] {
        let volume = mount(&region, durability);
        assert_eq!(volume.recovery().was_clean, was_clean);
        assert_eq!(difference(&tree(&volume).unwrap(), &before), None);
        drop(volume);
        assert_sound(&region);
    }
}

/// A remount between any two cases changes no answer.
#[test]
fn across_remounts() {
    let (_zone, region) = made(BYTES);
    for (index, (name, case)) in conformance::all().iter().enumerate() {
        eprintln!("{name}");
        case(&mount(&region, DURABILITIES[index % 3]));
    }
    assert_sound(&region);
}

#[test]
fn with_durable_operations() {
    conforms(Durability::Operation);
}

#[test]
fn with_durable_fsyncs() {
    conforms(Durability::Fsync);
}

#[test]
fn with_durable_checkpoints() {
    conforms(Durability::Snapshot);
}
