//! Bugs that were, each with its story, so that none comes back.

use crate::volumes::*;
use native::Durability;
use vfs::{Caller, Error, FallocateMode, FileSystem, ROOT_INO};

/// `fallocate` with `ZERO_RANGE` first made the range a hole and then allocated it anew: on a full volume it failed with
/// `ENOSPC` and had zeroed the file all the same. Torture on a full volume found it.
#[test]
fn zeroing_on_a_full_volume_zeroed_and_failed() {
    let root = Caller::root();
    let (_zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap();
    let bytes = Random(1).bytes(200_000);
    volume.write(&root, file.handle, 0, &bytes).unwrap();
    let rest = volume.create(&root, ROOT_INO, b"rest", 0o644, RW).unwrap();
    for length in [1 << 20, 16 << 10] {
        while volume.write(&root, rest.handle, volume.getattr(rest.attr.ino).unwrap().size, &vec![7; length])
            == Ok(length)
        {}
    }
    let zero = FallocateMode::ZERO_RANGE | FallocateMode::KEEP_SIZE;
    assert_eq!(volume.fallocate(&root, file.handle, zero, 1000, 180_000), Err(Error::NoSpace));
    assert!(read_file(&volume, ROOT_INO, "file").unwrap() == bytes);
    // With space it zeroes, and the range stays allocated.
    volume.unlink(&root, ROOT_INO, b"rest").unwrap();
    volume.release(rest.handle).unwrap();
    let blocks = volume.getattr(file.attr.ino).unwrap().blocks;
    volume.fallocate(&root, file.handle, zero, 1000, 180_000).unwrap();
    let mut expected = bytes;
    expected[1000..181_000].fill(0);
    assert!(read_file(&volume, ROOT_INO, "file").unwrap() == expected);
    assert_eq!(volume.getattr(file.attr.ino).unwrap().blocks, blocks);
    drop(volume);
    assert_sound(&region);
}
