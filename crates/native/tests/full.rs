//! A full volume stays a volume: an operation that finds no space fails with `ENOSPC` and changes nothing, what is there
//! reads right, deleting is always possible, and all the space comes back, round after round.

use crate::volumes::*;
use native::{Durability, Volume};
use vfs::torture::{Limits, Torture};
use vfs::{
    Caller, Error, FallocateMode, FileSystem, Ino, InodeFlags, OpenFlags, ROOT_INO, Result, XattrMode,
};

const SIZES: [u64; 2] = [16 << 20, 64 << 20];
const ROUNDS: usize = 3;

/// Fills volumes round after round: `add` makes the `n`th thing below a directory, `until` there is no space. Deletes all
/// and expects the space back.
fn fills(what: &str, add: impl Fn(&dyn FileSystem, Ino, usize) -> Result<()>) {
    fills_volumes(&SIZES, what, add);
}

/// The same on volumes of some sizes only.
fn fills_volumes(sizes: &[u64], what: &str, add: impl Fn(&dyn FileSystem, Ino, usize) -> Result<()>) {
    let root = Caller::root();
    for &size in sizes {
        for durability in DURABILITIES {
            let (zone, region) = made(size);
            let volume = mount(&region, durability);
            let mut before = None;
            let mut counts = Vec::new();
            for round in 0..ROUNDS {
                let dir = volume.mkdir(&root, ROOT_INO, b"full", 0o755).unwrap().ino;
                let mut count = 0;
                let error = loop {
                    match add(&volume, dir, count) {
                        Ok(()) => count += 1,
                        Err(error) => break error,
                    }
                };
                assert_eq!(error, Error::NoSpace, "{what}, round {round}");
                assert_eq!(volume.statfs().unwrap().blocks, volume.stats().blocks_total);
                counts.push(count);
                if round == 1 {
                    volume.syncfs().unwrap();
                    assert_sound_if_crashed(&zone);
                }
                remove_all(&volume, ROOT_INO);
                volume.checkpoint().unwrap();
                let free = volume.stats().blocks_free;
                assert_eq!(*before.get_or_insert(free), free, "{what}: space leaks in round {round}");
            }
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 2 + most / 50, "{what}: every round another capacity: {counts:?}");
            assert!(*least > 3, "{what}: {counts:?} are not many");
            volume.close().unwrap();
            drop(volume);
            assert_sound(&region);
        }
    }
}

/// Removes what is below `dir`, as `rm -r` does, on a volume that may be full.
fn remove_all(fs: &dyn FileSystem, dir: Ino) {
    for (name, kind, ino) in names(fs, dir).unwrap() {
        if kind == vfs::FileKind::Directory {
            remove_all(fs, ino);
            fs.rmdir(&Caller::root(), dir, &name).unwrap();
        } else {
            fs.unlink(&Caller::root(), dir, &name).unwrap();
        }
    }
}

fn content(n: usize, length: usize) -> Vec<u8> {
    Random(n as u64).bytes(length)
}

#[test]
fn by_data() {
    fills("data", |fs, dir, n| {
        let length = 100_000 + n * 1000 % 50_000;
        match write_file(fs, dir, &format!("{n}"), &content(n, length)) {
            Ok(written) if written == length => {}
            Ok(_) => return Err(Error::NoSpace), // the rest
            Err(error) => return Err(error),
        }
        for earlier in [0, n / 2] {
            let bytes = read_file(fs, dir, &format!("{earlier}"))?;
            assert!(bytes == content(earlier, bytes.len()) && bytes.len() >= 100_000);
        }
        Ok(())
    });
}

#[test]
fn by_empty_files() {
    // Fifteen to a block: a larger volume takes them for minutes.
    fills_volumes(&SIZES[..1], "empty files", |fs, dir, n| {
        write_file(fs, dir, &format!("an empty file {n}"), b"").map(drop)
    });
}

#[test]
fn by_directories() {
    fills("directories", |fs, dir, n| {
        let made = fs.mkdir(&Caller::root(), dir, format!("{n}").as_bytes(), 0o755)?;
        fs.mkdir(&Caller::root(), made.ino, b"below", 0o755).map(drop)
    });
}

#[test]
fn by_extended_attributes() {
    fills("extended attributes", |fs, dir, n| {
        let file = fs.mknod(&Caller::root(), dir, format!("{n}").as_bytes(), 0o100_644, 0)?;
        fs.setxattr(&Caller::root(), file.ino, b"user.large", &content(n, 3000), XattrMode::Create)?;
        assert_eq!(fs.getxattr(&Caller::root(), file.ino, b"user.large")?, content(n, 3000));
        Ok(())
    });
}

#[test]
fn by_preallocation() {
    fills("preallocation", |fs, dir, n| {
        let root = Caller::root();
        let file = fs.create(&root, dir, format!("{n}").as_bytes(), 0o644, RW)?;
        let allocated = fs.fallocate(&root, file.handle, FallocateMode::empty(), 0, 300_000);
        // What was allocated can be written to without asking for more.
        let written = allocated.and_then(|()| fs.write(&root, file.handle, 0, &content(n, 300_000)));
        fs.release(file.handle)?;
        if let Ok(written) = written {
            assert_eq!(written, 300_000);
        }
        written.map(drop)
    });
}

/// Fills what is left with one file.
fn top_up(volume: &Volume) {
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, b"rest", 0o644, RW | OpenFlags::APPEND).unwrap();
    for length in [1 << 20, 64 << 10, 4096] {
        while volume.write(&root, file.handle, 0, &vec![7; length]).is_ok_and(|written| written == length) {}
    }
    volume.release(file.handle).unwrap();
}

/// An operation that finds no space changes nothing that can be seen.
#[test]
fn a_failure_changes_nothing() {
    let root = Caller::root();
    for durability in DURABILITIES {
        let (zone, region) = made(16 << 20);
        let volume = mount(&region, durability);
        write_file(&volume, ROOT_INO, "small", &content(1, 3000)).unwrap();
        write_file(&volume, ROOT_INO, "large", &content(2, 500_000)).unwrap();
        volume.mkdir(&root, ROOT_INO, b"dir", 0o755).unwrap();
        top_up(&volume);
        let mut before = tree(&volume).unwrap();
        let (small, large, dir) = (ino(&volume, "small"), ino(&volume, "large"), ino(&volume, "dir"));
        let handle = volume.open(&root, large, RW).unwrap();
        let small_handle = volume.open(&root, small, RW).unwrap();
        type Attempt<'a> = (&'a str, Box<dyn Fn() -> Result<()> + 'a>);
        let attempts: [Attempt<'_>; 8] = [
            ("create", Box::new(|| write_file(&volume, dir, "new", b"").map(drop))),
            ("mkdir", Box::new(|| volume.mkdir(&root, dir, b"new", 0o755).map(drop))),
            ("symlink", Box::new(|| volume.symlink(&root, dir, b"new", &[b'x'; 4095]).map(drop))),
            ("link", Box::new(|| volume.link(&root, small, dir, b"new").map(drop))),
            ("tmpfile", Box::new(|| volume.tmpfile(&root, dir, 0o644, RW).map(drop))),
            ("setxattr", Box::new(|| volume.setxattr(&root, dir, b"user.x", &[1; 3000], XattrMode::Either))),
            ("write", Box::new(|| volume.write(&root, handle, 300_000, &content(3, 400_000)).map(drop))),
            ("growing write", Box::new(|| volume.write(&root, small_handle, 3000, &[9; 90_000]).map(drop))),
        ];
        let mut failed = 0;
        for (what, attempt) in &attempts {
            match attempt() {
                Err(Error::NoSpace) => failed += 1,
                // It needs less than the write that found the volume full.
                Ok(()) if *what == "setxattr" => before = tree(&volume).unwrap(),
                other => panic!("{what} on a full volume gives {other:?}"),
            }
            assert_eq!(difference(&tree(&volume).unwrap(), &before), None, "{what} failed half");
        }
        assert!(failed + 1 >= attempts.len());
        drop(attempts);
        volume.syncfs().unwrap();
        assert_sound_if_crashed(&zone);
        // What frees is possible; and to write over what a file has.
        assert_eq!(volume.write(&root, handle, 100, &content(4, 400_000)), Ok(400_000));
        assert_eq!(volume.write(&root, small_handle, 0, &content(4, 3000)), Ok(3000));
        volume
            .fallocate(&root, handle, FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE, 1, 70_000)
            .unwrap();
        volume.rename(&root, ROOT_INO, b"small", dir, b"moved", vfs::RenameFlags::empty()).unwrap();
        let cut = vfs::SetAttr { size: Some(5000), ..vfs::SetAttr::default() };
        volume.setattr(&root, ino(&volume, "rest"), &cut, None).unwrap();
        assert_eq!(volume.write(&root, handle, 0, &content(3, 400_000)), Ok(400_000));
        volume.release(handle).unwrap();
        volume.release(small_handle).unwrap();
        remove_all(&volume, ROOT_INO);
        drop(volume);
        assert_sound(&region);
    }
}

/// Renames between directories made one of them grow, out of the blocks that are kept for deletions, until nothing could
/// be deleted any more.
#[test]
fn renames_took_what_is_kept_for_deletions() {
    let root = Caller::root();
    let (_zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    let file = volume.mknod(&root, ROOT_INO, b"file", 0o100_644, 0).unwrap().ino;
    let dir = |name: &str| volume.mkdir(&root, ROOT_INO, name.as_bytes(), 0o755).unwrap().ino;
    let (from, to) = (dir("from"), dir("to"));
    let names: Vec<String> = (0..8000).map(|n| format!("another name {n}")).collect();
    for name in &names {
        volume.link(&root, file, from, name.as_bytes()).unwrap();
    }
    top_up(&volume);
    let mut moved = 0;
    for name in &names {
        match volume.rename(&root, from, name.as_bytes(), to, name.as_bytes(), vfs::RenameFlags::empty()) {
            Ok(()) => moved += 1,
            Err(error) => assert_eq!(error, Error::NoSpace),
        }
    }
    assert!(moved > 10, "a rename that needs no space is possible: {moved}");
    for name in &names {
        let gone = volume.unlink(&root, from, name.as_bytes());
        let gone = gone.or_else(|_| volume.unlink(&root, to, name.as_bytes()));
        gone.unwrap_or_else(|error| panic!("deleting on a full volume, after {moved} renames: {error}"));
    }
    remove_all(&volume, ROOT_INO);
    drop(volume);
    assert_sound(&region);
}

/// Small files that were made longer moved out of their inodes, to blocks that are kept for deletions, until nothing could be
/// deleted any more.
#[test]
fn longer_files_took_what_is_kept_for_deletions() {
    let root = Caller::root();
    for durability in DURABILITIES {
        let (zone, region) = made(16 << 20);
        let volume = mount(&region, durability);
        let names: Vec<String> = (0..1000).map(|n| format!("small {n}")).collect();
        for name in &names {
            write_file(&volume, ROOT_INO, name, &content(1, 100)).unwrap();
        }
        top_up(&volume);
        let longer = vfs::SetAttr { size: Some(5000), ..vfs::SetAttr::default() };
        let mode = vfs::SetAttr { mode: Some(0o600), ..vfs::SetAttr::default() };
        for name in &names {
            let file = ino(&volume, name);
            match volume.setattr(&root, file, &longer, None) {
                Ok(_) => {}
                Err(error) => assert_eq!((error, volume.getattr(file).unwrap().size), (Error::NoSpace, 100)),
            }
            volume.setattr(&root, file, &mode, None).unwrap();
        }
        volume.syncfs().unwrap();
        assert_sound_if_crashed(&zone);
        for name in &names {
            let gone = volume.unlink(&root, ROOT_INO, name.as_bytes());
            gone.unwrap_or_else(|error| panic!("deleting on a full volume, {durability:?}: {error}"));
        }
        remove_all(&volume, ROOT_INO);
        drop(volume);
        assert_sound(&region);
    }
}

/// A change of mode copied blocks that a snapshot has, which do not come back: out of what is kept for deletions, until nothing
/// could be deleted any more.
#[test]
fn changes_under_a_snapshot_took_what_is_kept_for_deletions() {
    let root = Caller::root();
    for durability in DURABILITIES {
        let (zone, region) = made(16 << 20);
        let volume = mount(&region, durability);
        let names: Vec<String> = (0..3000).map(|n| format!("n{n}")).collect();
        for name in &names {
            volume.mknod(&root, ROOT_INO, name.as_bytes(), 0o100_644, 0).unwrap();
        }
        volume.take_snapshot("s", "").unwrap();
        top_up(&volume);
        let mode = vfs::SetAttr { mode: Some(0o600), ..vfs::SetAttr::default() };
        let change = |name: &String| volume.setattr(&root, ino(&volume, name), &mode, None);
        let refused = names.iter().filter_map(|name| change(name).err()).collect::<Vec<_>>();
        assert!(!refused.is_empty(), "a full volume under a snapshot has room for all changes");
        assert!(refused.iter().all(|error| *error == Error::NoSpace), "{refused:?}");
        assert_sound_if_crashed(&zone);
        for name in &names {
            let gone = volume.unlink(&root, ROOT_INO, name.as_bytes());
            gone.unwrap_or_else(|error| panic!("deleting on a full volume, {durability:?}: {error}"));
        }
        drop(volume);
        assert_sound(&region);
    }
}

/// Flags take nothing of what is kept for deletions, under a snapshot; and what is protected can be removed when there is room again.
#[test]
fn what_is_protected_is_freed_and_removed() {
    let root = Caller::root();
    for durability in DURABILITIES {
        let (zone, region) = made(16 << 20);
        let volume = mount(&region, durability);
        let names: Vec<String> = (0..3000).map(|n| format!("n{n}")).collect();
        let set = |name: &String, flags| volume.set_inode_flags(&root, ino(&volume, name), flags);
        for name in &names {
            volume.mknod(&root, ROOT_INO, name.as_bytes(), 0o100_644, 0).unwrap();
            set(name, InodeFlags::IMMUTABLE).unwrap();
        }
        volume.take_snapshot("s", "").unwrap();
        top_up(&volume);
        let refused =
            names.iter().filter(|name| set(name, InodeFlags::APPEND) == Err(Error::NoSpace)).count();
        assert_ne!(refused, 0, "a full volume under a snapshot has room for all changes");
        assert_sound_if_crashed(&zone);
        // What is free now is kept for deletions.
        volume.unlink(&root, ROOT_INO, b"rest").unwrap();
        volume.remove_snapshot("s").unwrap();
        for name in &names {
            set(name, InodeFlags::empty()).unwrap_or_else(|error| panic!("{name}, {durability:?}: {error}"));
            volume.unlink(&root, ROOT_INO, name.as_bytes()).unwrap();
        }
        drop(volume);
        assert_sound(&region);
    }
}

/// A file that was made shorter, and by that would have given back what nobody else has, said ENOSPC on a full volume with a
/// snapshot. What a snapshot has is not given back, and copies of it use up what is kept for deletions.
#[test]
fn cutting_what_no_snapshot_has_was_no_deletion() {
    let root = Caller::root();
    for durability in DURABILITIES {
        let (zone, region) = made(16 << 20);
        let volume = mount(&region, durability);
        let old: Vec<String> = (0..40).map(|n| format!("old {n}")).collect();
        for name in &old {
            write_file(&volume, ROOT_INO, name, &content(1, 100_000)).unwrap();
        }
        volume.take_snapshot("s", "").unwrap();
        write_file(&volume, ROOT_INO, "new", &content(2, 500_000)).unwrap();
        top_up(&volume);
        let cut = |name: &str, size| {
            let size = vfs::SetAttr { size: Some(size), ..vfs::SetAttr::default() };
            volume.setattr(&root, ino(&volume, name), &size, None).map(|attr| attr.size)
        };
        let refused = old.iter().filter(|name| cut(name, 5000) == Err(Error::NoSpace)).count();
        assert!(refused > old.len() / 2, "{durability:?}: {refused} of {}", old.len());
        assert_eq!(cut("new", 499_000), Err(Error::NoSpace), "it takes more than it gives");
        assert_eq!(cut("new", 600_000), Err(Error::NoSpace));
        assert_eq!(cut("new", 5000), Ok(5000), "{durability:?}");
        assert!(read_file(&volume, ROOT_INO, "new").unwrap() == content(2, 500_000)[..5000]);
        volume.checkpoint().unwrap();
        write_file(&volume, ROOT_INO, "more", &content(3, 300_000)).unwrap();
        assert_sound_if_crashed(&zone);
        remove_all(&volume, ROOT_INO);
        drop(volume);
        assert_sound(&region);
    }
}

/// Whoever compared a snapshot with a full volume was told that none can be taken.
#[test]
fn comparing_on_a_full_volume_spoke_of_taking() {
    let (_zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    volume.take_snapshot("s", "").unwrap();
    top_up(&volume);
    let full = (0..100).find(|n| volume.take_snapshot(&n.to_string(), "").is_err());
    assert!(full.is_some(), "checkpoints need what is left");
    let told = volume.diff("s", None).unwrap_err().to_string();
    assert!(told.contains("compared") && told.contains("no room"), "{told}");
    (0..full.unwrap()).for_each(|n| volume.remove_snapshot(&n.to_string()).unwrap());
    volume.finish_removals().unwrap();
    assert_eq!(volume.diff("s", None).unwrap().len(), 2);
}

/// Files without a name that are open have entries in a hidden directory, which grew into what is kept for deletions, until neither
/// they nor anything else could be deleted any more.
#[test]
fn open_files_without_names_took_what_is_kept_for_deletions() {
    let root = Caller::root();
    let (zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    let names: Vec<String> = (0..20_000).map(|n| format!("n{n}")).collect();
    for name in &names {
        volume.mknod(&root, ROOT_INO, name.as_bytes(), 0o100_644, 0).unwrap();
    }
    top_up(&volume);
    let open = |name: &String| volume.open(&root, ino(&volume, name), OpenFlags::READ).unwrap();
    let handles: Vec<_> = names.iter().map(open).collect();
    let unlinked = names.iter().map(|name| volume.unlink(&root, ROOT_INO, name.as_bytes()));
    let unlinked = unlinked.filter(|unlinked| *unlinked != Err(Error::NoSpace)).map(Result::unwrap).count();
    assert!(unlinked > 100, "an open file can be deleted: {unlinked}");
    assert_sound_if_crashed(&zone);
    for handle in handles {
        volume.release(handle).unwrap();
    }
    volume.unlink(&root, ROOT_INO, b"rest").unwrap();
    remove_all(&volume, ROOT_INO);
    drop(volume);
    assert_sound(&region);
}

/// A volume that is 95 % full can be overwritten at random, for as long as one likes.
#[test]
fn overwriting_goes_on() {
    let root = Caller::root();
    for durability in DURABILITIES {
        let (_zone, region) = made(16 << 20);
        let volume = mount(&region, durability);
        let file = volume.create(&root, ROOT_INO, b"data", 0o644, RW).unwrap();
        let blocks = volume.statfs().unwrap().blocks_available * 95 / 100;
        // Both halves of each block.
        let mut expected = vec![[0u64; 2]; blocks as usize];
        let half = |number: u64| number.to_le_bytes().repeat(256);
        for index in 0..blocks {
            assert_eq!(volume.write(&root, file.handle, index * 4096, &half(0).repeat(2)), Ok(4096));
        }
        let mut random = Random(blocks);
        for number in 1..20_000 {
            let index = random.below(blocks);
            let halves = [0..2, 0..1, 1..2][random.below(3) as usize].clone();
            let at = index * 4096 + halves.start as u64 * 2048;
            volume.write(&root, file.handle, at, &half(number).repeat(halves.len())).unwrap_or_else(
                |error| panic!("overwriting fails with {durability}, write {number}: {error}"),
            );
            expected[index as usize][halves].fill(number);
        }
        let mut found = vec![0; 4096];
        for (index, numbers) in expected.iter().enumerate() {
            assert_eq!(volume.read(file.handle, index as u64 * 4096, &mut found), Ok(4096));
            assert!(found == numbers.map(half).concat(), "block {index} is not what was written last");
        }
        drop(volume);
        assert_sound(&region);
    }
}

/// A write over bytes that a file had said ENOSPC on a full volume, since it takes blocks before it gives others back: what programs had
/// written to a mount's pages, and the kernel to nobody yet, was lost.
#[test]
fn writing_over_what_a_file_has_found_no_space() {
    let root = Caller::root();
    for durability in DURABILITIES {
        let (zone, region) = made(16 << 20);
        let volume = mount(&region, durability);
        let file = volume.create(&root, ROOT_INO, b"data", 0o644, RW).unwrap();
        let bytes = 3_000_000;
        assert_eq!(volume.write(&root, file.handle, 0, &content(1, bytes)), Ok(bytes));
        let allocated = volume.create(&root, ROOT_INO, b"allocated", 0o644, RW).unwrap();
        volume.fallocate(&root, allocated.handle, FallocateMode::empty(), 0, bytes as u64).unwrap();
        top_up(&volume);
        assert_eq!(write_file(&volume, ROOT_INO, "new", &content(1, 5000)), Err(Error::NoSpace));
        for round in 2..5 {
            for handle in [file.handle, allocated.handle] {
                assert_eq!(volume.write(&root, handle, 0, &content(round, bytes)), Ok(bytes), "{durability}");
            }
            // A hole, and what lies behind the end, are not the file's.
            let behind = volume.write(&root, file.handle, bytes as u64 + 4096, &content(round, 5000));
            assert_eq!(behind, Err(Error::NoSpace));
        }
        for block in 0..200 {
            let at = (block * 37 % 700) * 4096 + block % 2 * 1000;
            assert_eq!(volume.write(&root, file.handle, at, &content(4, 5000)), Ok(5000), "{durability}");
        }
        volume.syncfs().unwrap();
        assert_sound_if_crashed(&zone);
        assert_eq!(volume.write(&root, file.handle, 0, &content(9, bytes)), Ok(bytes));
        let mut found = vec![0; bytes];
        volume.read(file.handle, 0, &mut found).unwrap();
        assert!(found == content(9, bytes));
        volume.release(file.handle).unwrap();
        volume.release(allocated.handle).unwrap();
        remove_all(&volume, ROOT_INO);
        drop(volume);
        assert_sound(&region);
    }
}

/// Random operations on a volume that is full most of the time.
#[test]
fn torture_without_space() {
    for (index, durability) in [Durability::Operation, Durability::Snapshot].into_iter().enumerate() {
        let (mut zone, region) = made(16 << 20);
        let mut volume = mount(&region, durability);
        // Shorter than what one transaction writes: a longer write may be done in part.
        let limits = Limits { xattr_bytes: 900, file_bytes: 700_000, inodes: 900, ..Limits::default() };
        let mut torture =
            Torture::new(seed() + index as u64).with_limits(limits).tolerating(&[Error::NoSpace]);
        // Somebody else has taken most of it. Not in the root: the model has no such file.
        let ballast = volume.tmpfile(&Caller::root(), ROOT_INO, 0o600, RW).unwrap();
        let available = volume.statfs().unwrap().blocks_available;
        volume
            .fallocate(&Caller::root(), ballast.handle, FallocateMode::empty(), 0, (available - 900) * 4096)
            .unwrap();
        for round in 0..5 {
            torture.run(&volume, 5_000);
            volume.syncfs().unwrap();
            assert_sound_if_crashed(&zone);
            if round == 2 {
                torture.close(&volume);
                // The ballast goes with the unmount.
                volume.close().unwrap();
                drop(volume);
                zone = crashed(&zone).0;
                volume = mount(&zone.volume("v").unwrap(), durability);
                torture.compare(&volume);
                let ballast = volume.tmpfile(&Caller::root(), ROOT_INO, 0o600, RW).unwrap();
                let available = volume.statfs().unwrap().blocks_available;
                let length = available.saturating_sub(300).max(1) * 4096;
                volume.fallocate(&Caller::root(), ballast.handle, FallocateMode::empty(), 0, length).unwrap();
            }
        }
        assert!(torture.tolerated_count() > 100, "the volume was never full");
        torture.clear(&volume);
        drop(volume);
        assert_sound(&zone.volume("v").unwrap());
    }
}

/// It kept all that it had got before there was no more, for a file that was as short as before.
#[test]
fn who_asks_for_more_than_there_is_gets_nothing() {
    let root = &Caller::root();
    let (_zone, region) = made(64 << 20);
    let volume = mount(&region, Durability::Operation);
    let file = volume.create(root, ROOT_INO, b"f", 0o644, RW).unwrap();
    volume.write(root, file.handle, 10 << 20, &[1; 100_000]).unwrap();
    let before = (volume.statfs().unwrap().blocks_available, volume.getattr(file.attr.ino).unwrap());
    for (mode, offset) in [
        (FallocateMode::empty(), 0),
        (FallocateMode::KEEP_SIZE, 5 << 20),
        (FallocateMode::ZERO_RANGE | FallocateMode::KEEP_SIZE, 10 << 20),
    ] {
        assert_eq!(volume.fallocate(root, file.handle, mode, offset, 1 << 30), Err(Error::NoSpace));
        assert_eq!(
            (volume.statfs().unwrap().blocks_available, volume.getattr(file.attr.ino).unwrap()),
            before
        );
    }
    // What there is can be had.
    let half = before.0 * 4096 / 2;
    volume.fallocate(root, file.handle, FallocateMode::KEEP_SIZE, 0, half).unwrap();
    volume.close().unwrap();
    assert_sound(&region);
}

/// Where blocks were only waiting for a checkpoint, each write or two over what a file had made one.
#[test]
fn a_volume_that_is_nearly_full_is_written_over_with_few_checkpoints() {
    let root = &Caller::root();
    let (_zone, region) = made(64 << 20);
    let volume = mount(&region, Durability::Operation);
    let file = volume.create(root, ROOT_INO, b"f", 0o644, RW).unwrap().handle;
    volume.write(root, file, 0, &vec![1; 1 << 20]).unwrap();
    let rest = volume.create(root, ROOT_INO, b"rest", 0o644, RW).unwrap().handle;
    let length = (volume.statfs().unwrap().blocks_available - 20) * 4096;
    volume.fallocate(root, rest, FallocateMode::empty(), 0, length).unwrap();
    let before = volume.stats().checkpoints;
    for n in 0..400 {
        assert_eq!(volume.write(root, file, n % 256 * 4096, &[2; 4096]), Ok(4096));
    }
    let made = volume.stats().checkpoints - before;
    assert!(made < 20, "{made} checkpoints");
    volume.close().unwrap();
    assert_sound(&region);
}
