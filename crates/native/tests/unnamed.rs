//! Inodes without a name for whose removal there is no room: it is made up for when there is.

use native::{Durability, check};
use vfs::{Caller, Error, FileSystem, Handle, Ino, OpenFlags, ROOT_INO};

use crate::volumes::*;

/// Of so many files some are opened and lose their names.
const FILES: usize = 3000;

/// A small volume whose snapshot has all there is, so that deleting gives nothing back. With a file of 3 MiB beside it, and no
/// room for anything but deletions.
fn filled(volume: &native::Volume) -> (Vec<Ino>, Handle) {
    let root = &Caller::root();
    let make = |n: usize| volume.mknod(root, ROOT_INO, n.to_string().as_bytes(), 0o100_644, 0).unwrap().ino;
    let files = (0..FILES).map(make).collect();
    volume.take_snapshot("s", "").unwrap();
    let large = volume.create(root, ROOT_INO, b"large", 0o644, RW).unwrap().handle;
    volume.write(root, large, 0, &vec![1; 3 << 20]).unwrap();
    let rest = volume.create(root, ROOT_INO, b"rest", 0o644, RW).unwrap().handle;
    let mut end = 0;
    for length in [1 << 20, 64 << 10, 4096] {
        while let Ok(written) = volume.write(root, rest, end, &vec![7; length]) {
            end += written as u64;
            if written < length {
                break;
            }
        }
    }
    volume.release(rest).unwrap();
    (files, large)
}

/// Opens files and removes their names until the last blocks for deletions are used up: each copies another block of inodes,
/// which stays the snapshot's.
fn use_up(volume: &native::Volume, files: &[Ino]) -> Vec<Handle> {
    let root = &Caller::root();
    let mut handles = Vec::new();
    for n in (0..FILES).step_by(16) {
        let handle = volume.open(root, files[n], OpenFlags::READ).unwrap();
        match volume.unlink(root, ROOT_INO, n.to_string().as_bytes()) {
            Ok(()) => handles.push(handle),
            Err(error) => {
                assert_eq!(error, Error::NoSpace);
                volume.release(handle).unwrap();
                return handles;
            }
        }
    }
    panic!("there was room for {} deletions", handles.len());
}

/// Closing said that there was no room, and nobody closes twice: the space came back with the next mount.
#[test]
fn what_was_closed_without_room_goes_when_there_is_some() {
    let root = &Caller::root();
    let (_zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    let (files, large) = filled(&volume);
    volume.unlink(root, ROOT_INO, b"large").unwrap();
    let handles = use_up(&volume, &files);
    let in_use = || {
        let statfs = volume.statfs().unwrap();
        statfs.files - statfs.files_free
    };
    let before = in_use();
    volume.release(large).unwrap();
    handles.iter().for_each(|handle| volume.release(*handle).unwrap());
    assert!(in_use() > before - handles.len() as u64 - 1, "there was room for all");
    volume.remove_snapshot("s").unwrap();
    volume.finish_removals().unwrap();
    volume.checkpoint().unwrap();
    assert_eq!(in_use(), before - handles.len() as u64 - 1);
    volume.checkpoint().unwrap();
    assert!(volume.statfs().unwrap().blocks_free > 768, "the large file's blocks have come back");
    volume.close().unwrap();
    assert_sound(&region);
}

/// It ended as if nobody was without a name, and the check found loss that no repair could mend.
#[test]
fn an_end_without_room_is_no_damage() {
    let (_zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    let (files, _large) = filled(&volume);
    use_up(&volume, &files);
    volume.close().unwrap();
    drop(volume);
    let report = check(&region, false).unwrap();
    assert!(report.problems.is_empty() && !report.needs_recovery, "{:#?}", report.problems);
    assert_sound(&region);
    let volume = mount(&region, Durability::Operation);
    assert!(volume.recovery().was_clean);
    volume.remove_snapshot("s").unwrap();
    volume.finish_removals().unwrap();
    volume.checkpoint().unwrap();
    let statfs = volume.statfs().unwrap();
    let named = names(&volume, ROOT_INO).unwrap().iter().filter(|(_, _, ino)| *ino != ROOT_INO).count();
    assert_eq!(statfs.files - statfs.files_free, named as u64 + 2, "they, the root and the hidden directory");
    volume.close().unwrap();
    assert_sound(&region);
}
