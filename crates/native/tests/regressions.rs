//! Bugs that were, each with its story, so that none comes back.

use crate::volumes::*;
use native::{Durability, MountOptions, Volume};
use vfs::{Caller, Error, FallocateMode, FileSystem, OpenFlags, ROOT_INO, SetAttr, XattrMode, acl};

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
    // Behind what the file has are holes, which find no room.
    assert_eq!(volume.fallocate(&root, file.handle, zero, 1000, 3 << 20), Err(Error::NoSpace));
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

/// An ACL that had no room beside a file's bytes found some when the file was cut. A change of mode and size at once put it there
/// first, and then the size had no room: committed, and applied by nobody, also at the next mount.
#[test]
fn mode_and_size_of_a_file_with_an_acl_changed_at_once() {
    let root = Caller::root();
    let entries =
        [(1u16, 7u16, u32::MAX), (2, 6, 1000), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 4, u32::MAX)];
    let entry = |(tag, permissions, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let list = [2u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat();
    let (_zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap();
    volume.write(&root, file.handle, 0, &[7; 100]).unwrap();
    volume.setxattr(&root, file.attr.ino, acl::ACCESS, &list, XattrMode::Either).unwrap();
    for (size, mode) in
        [(10, None), (100, Some(0o640)), (20, Some(0o600)), (128, Some(0o644)), (0, None), (129, Some(0o640))]
    {
        let set = SetAttr { size: Some(size), mode, ..SetAttr::default() };
        let attr = volume.setattr(&root, file.attr.ino, &set, None).unwrap();
        assert_eq!((attr.size, mode.is_none_or(|mode| attr.perm() == mode)), (size, true));
        assert!(volume.getxattr(&root, file.attr.ino, acl::ACCESS).is_ok());
    }
    drop(volume);
    let volume = mount(&region, Durability::Operation);
    assert_eq!((volume.failure(), volume.getattr(file.attr.ino).unwrap().size), (None, 129));
    drop(volume);
    assert_sound(&region);
}

/// The part of an append that a file had room for was there, and the append said that it was not.
#[test]
fn an_append_that_meets_the_largest_length_tells_of_its_part() {
    let root = Caller::root();
    let (_zone, region) = made(32 << 20);
    let volume = mount(&region, Durability::Operation);
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW | OpenFlags::APPEND).unwrap();
    let largest = 16 << 40;
    let set = SetAttr { size: Some(largest - (1 << 20)), ..SetAttr::default() };
    volume.setattr(&root, file.attr.ino, &set, None).unwrap();
    assert_eq!(volume.write(&root, file.handle, 0, &vec![1; 2 << 20]), Ok(1 << 20));
    assert_eq!(volume.write(&root, file.handle, 0, &[1]), Err(Error::FileTooLarge));
    assert_eq!(volume.getattr(file.attr.ino).unwrap().size, largest);
}

/// Nothing of a file system changes by writing to a pipe, whose inode alone is there.
#[test]
fn pipes_can_be_written_to_where_files_cannot() {
    let root = Caller::root();
    let (_zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    let kinds =
        [(&b"pipe"[..], 0o010_644), (b"socket", 0o140_644), (b"device", 0o020_644), (b"file", 0o100_644)];
    let inos = kinds.map(|(name, mode)| volume.mknod(&root, ROOT_INO, name, mode, 0).unwrap().ino);
    drop(volume);
    let volume = Volume::open(region, &MountOptions { read_only: true, ..MountOptions::default() }).unwrap();
    let answers = inos.map(|ino| volume.access(&root, ino, 2));
    assert_eq!(answers, [Ok(()), Ok(()), Ok(()), Err(Error::ReadOnly)]);
}
