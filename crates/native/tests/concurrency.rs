//! Threads that work on the same things at once, with checkpoints all the while: what each of them sees is what some
//! order of the operations gives, nothing is lost or torn or seen twice, nobody waits for ever, and the volume is
//! sound at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::volumes::hammer::{hammer, restless};
use crate::volumes::*;
use native::{Durability, Volume};
use nvm::{Region, Zone};
use vfs::{Caller, Error, FileSystem, Handle, Ino, OpenFlags, ROOT_INO, RenameFlags};

fn close_and_check(volume: Volume, zone: &Zone, region: &Region) {
    volume.syncfs().unwrap();
    assert_sound_if_crashed(zone);
    volume.close().unwrap();
    drop(volume);
    assert_sound(region);
}

/// Each thread owns some names of a directory that all change; a name is there if and only if its owner left it there,
/// whoever looks, lists or changes other names meanwhile.
#[test]
fn one_directory() {
    for durability in [Durability::Operation, Durability::Fsync] {
        let (zone, region, volume) = restless(64 << 20, durability);
        let root = Caller::root();
        let dir = volume.mkdir(&root, ROOT_INO, b"d", 0o755).unwrap().ino;
        // Never touched again: every listing shows them.
        for n in 0..200 {
            volume.mknod(&root, dir, format!("always-{n}").as_bytes(), 0o100_644, 0).unwrap();
        }
        hammer(4, |thread, again| {
            let mut random = Random(thread as u64);
            let mut mine: BTreeMap<String, Ino> = BTreeMap::new();
            while again() {
                let name = format!("{thread}-{}", random.below(150));
                let found = volume.lookup(&root, dir, name.as_bytes()).map(|attr| attr.ino);
                assert_eq!(found.ok(), mine.get(&name).copied(), "{name}");
                match random.below(5) {
                    0 | 1 => {
                        let made = volume.mknod(&root, dir, name.as_bytes(), 0o100_644, 0);
                        assert_eq!(made.is_ok(), !mine.contains_key(&name), "{made:?}");
                        if let Ok(attr) = made {
                            mine.insert(name, attr.ino);
                        }
                    }
                    2 => {
                        let gone = volume.unlink(&root, dir, name.as_bytes());
                        assert_eq!(gone.is_ok(), mine.remove(&name).is_some(), "{gone:?}");
                    }
                    3 => {
                        let to = format!("{thread}-{}", random.below(150));
                        let (from, other) = (name.as_bytes(), to.as_bytes());
                        let moved = volume.rename(&root, dir, from, dir, other, RenameFlags::empty());
                        assert_eq!(moved.is_ok(), mine.contains_key(&name), "{moved:?}");
                        if let Some(ino) = mine.remove(&name) {
                            mine.insert(to, ino);
                        }
                    }
                    _ => {
                        let mut seen = BTreeSet::new();
                        for (name, _, _) in names(&volume, dir).unwrap() {
                            assert!(seen.insert(name), "a listing shows a name twice");
                        }
                        let always = (0..200).filter(|n| seen.contains(format!("always-{n}").as_bytes()));
                        assert_eq!(always.count(), 200, "a listing misses names nobody touched");
                        let prefix = format!("{thread}-").into_bytes();
                        let listed = seen.iter().filter(|name| name.starts_with(&prefix)).count();
                        assert_eq!(listed, mine.len(), "a listing is wrong on its caller's own names");
                    }
                }
            }
            for name in mine.keys() {
                volume.unlink(&root, dir, name.as_bytes()).unwrap();
            }
        });
        assert_eq!(names(&volume, dir).unwrap().len(), 200);
        close_and_check(volume, &zone, &region);
    }
}

/// A block that says which block it is, who wrote it and when, from its first word to its last.
fn stamped(index: u64, writer: u64, count: u64) -> Vec<u8> {
    let words = [0x5eed_b10c, index, writer, count].map(u64::to_le_bytes).concat();
    words.repeat(4096 / words.len())
}

fn assert_whole(block: &[u8], index: u64) {
    if nvm::is_zero(block) {
        return;
    }
    let word = |n: usize| u64::from_le_bytes(block[n * 8..n * 8 + 8].try_into().unwrap());
    let expected = stamped(index, word(2), word(3));
    assert!(block == expected, "block {index} is torn or foreign: it begins {:x?}", &block[..32]);
}

/// Overlapping reads and writes of one file: no block is ever torn, none shows another's bytes; while it is cut and
/// punched, too.
#[test]
fn one_file() {
    for durability in DURABILITIES {
        let (zone, region, volume) = restless(64 << 20, durability);
        let root = Caller::root();
        let file = volume.create(&root, ROOT_INO, b"f", 0o644, RW).unwrap();
        const BLOCKS: u64 = 300;
        hammer(4, |thread, again| {
            let mut random = Random(thread as u64);
            let mut count = 0;
            let mut buffer = vec![0; 64 * 4096];
            while again() {
                let index = random.below(BLOCKS);
                let length = 1 + random.below(16.min(BLOCKS - index));
                match random.below(if thread == 0 { 8 } else { 6 }) {
                    0..=2 => {
                        count += 1;
                        let bytes: Vec<u8> =
                            (index..index + length).flat_map(|i| stamped(i, thread as u64, count)).collect();
                        let written = volume.write(&root, file.handle, index * 4096, &bytes);
                        assert_eq!(written, Ok(bytes.len()));
                    }
                    6 => {
                        let size = Some(index * 4096);
                        let set = vfs::SetAttr { size, ..vfs::SetAttr::default() };
                        volume.setattr(&root, file.attr.ino, &set, None).unwrap();
                    }
                    7 => {
                        use vfs::FallocateMode as Mode;
                        let modes = [Mode::PUNCH_HOLE, Mode::ZERO_RANGE, Mode::empty()];
                        let mode = modes[random.below(3) as usize] | Mode::KEEP_SIZE;
                        volume.fallocate(&root, file.handle, mode, index * 4096, length * 4096).unwrap();
                    }
                    3 => {
                        let mut whole = Vec::new();
                        let sink = &mut |bytes: &[u8]| whole.extend_from_slice(bytes);
                        volume.read_slices(file.handle, index * 4096, length as usize * 4096, sink).unwrap();
                        for (at, block) in (index..).zip(whole.chunks_exact(4096)) {
                            assert_whole(block, at);
                        }
                    }
                    _ => {
                        let buffer = &mut buffer[..length as usize * 4096];
                        let read = volume.read(file.handle, index * 4096, buffer).unwrap();
                        for (n, block) in buffer[..read].chunks_exact(4096).enumerate() {
                            assert_whole(block, index + n as u64);
                        }
                    }
                }
            }
        });
        close_and_check(volume, &zone, &region);
    }
}

/// Blocks that one file gives up become another's soon, on a small volume: no reader ever sees another file's bytes, nor
/// bytes that its file had only before or will have only later than a neighbour's.
#[test]
fn blocks_that_change_owners() {
    let (zone, region, volume) = restless(16 << 20, Durability::Operation);
    let root = Caller::root();
    const BLOCKS: u64 = 24;
    let files: Vec<_> = (0..24)
        .map(|n| volume.create(&root, ROOT_INO, format!("f{n}").as_bytes(), 0o644, RW).unwrap().handle)
        .collect();
    // A write covers a file as a whole: all its blocks tell of the same write, whenever they are read.
    let whole = |file: u64, count| -> Vec<u8> { (0..BLOCKS).flat_map(|_| stamped(file, 0, count)).collect() };
    for (file, handle) in files.iter().enumerate() {
        volume.write(&root, *handle, 0, &whole(file as u64, 0)).unwrap();
    }
    hammer(4, |thread, again| {
        let mut random = Random(thread as u64);
        let mut count = thread as u64 * 1_000_000;
        let mut buffer = vec![0; BLOCKS as usize * 4096];
        while again() {
            let file = random.below(files.len() as u64);
            let handle = files[file as usize];
            if thread < 2 {
                count += 1;
                assert_eq!(volume.write(&root, handle, 0, &whole(file, count)), Ok(buffer.len()));
            } else {
                assert_eq!(volume.read(handle, 0, &mut buffer), Ok(buffer.len()));
                let first = u64::from_le_bytes(buffer[24..32].try_into().unwrap());
                assert!(buffer == whole(file, first), "a read of file {file} shows more than one write");
            }
        }
    });
    close_and_check(volume, &zone, &region);
}

/// Directories are moved into each other at random: never a cycle, nothing lost, nothing in two places.
#[test]
fn renames_across_directories() {
    let (zone, region, volume) = restless(64 << 20, Durability::Operation);
    let root = Caller::root();
    let mut all = vec![ROOT_INO];
    for n in 0..12 {
        let dir = volume.mkdir(&root, ROOT_INO, format!("d{n}").as_bytes(), 0o755).unwrap().ino;
        volume.mknod(&root, dir, format!("f{n}").as_bytes(), 0o100_644, 0).unwrap();
        all.push(dir);
    }
    hammer(4, |thread, again| {
        let mut random = Random(thread as u64);
        while again() {
            let (from, to) = (all[random.below(13) as usize], all[random.below(13) as usize]);
            let Some((name, ..)) = some_of(&mut names(&volume, from).unwrap(), &mut random) else { continue };
            let result = if random.one_in(3) {
                let Some((other, ..)) = some_of(&mut names(&volume, to).unwrap(), &mut random) else {
                    continue;
                };
                volume.rename(&root, from, &name, to, &other, RenameFlags::EXCHANGE)
            } else {
                volume.rename(&root, from, &name, to, &name, RenameFlags::NOREPLACE)
            };
            match result {
                Ok(()) | Err(Error::NotFound | Error::Invalid | Error::Exists) => {}
                Err(error) => panic!("rename gives {error}"),
            }
        }
    });
    let found = tree(&volume).unwrap();
    assert_eq!(found.len(), 25, "{:?}", found.keys());
    let last: BTreeSet<&str> = found.keys().map(|path| path.rsplit('/').nth(1).unwrap()).collect();
    assert_eq!(last.len(), 25, "something is in two places: {last:?}");
    close_and_check(volume, &zone, &region);
}

fn some_of<T>(all: &mut Vec<T>, random: &mut Random) -> Option<T> {
    (!all.is_empty()).then(|| all.swap_remove(random.below(all.len() as u64) as usize))
}

/// A few names are made, opened, written, renamed over, unlinked and closed by all threads at once: an open file
/// keeps its bytes until it is closed, and what nobody can reach any more is gone.
#[test]
fn open_files_without_names() {
    let (zone, region, volume) = restless(64 << 20, Durability::Operation);
    let root = Caller::root();
    hammer(4, |thread, again| {
        let mut random = Random(thread as u64);
        let mut open = Vec::new();
        let mut count = 0;
        while again() {
            let name = format!("n{}", random.below(3)).into_bytes();
            match random.below(8) {
                0..=2 => {
                    let file = volume.create(&root, ROOT_INO, &name, 0o644, RW).unwrap();
                    // A block of its own that no other thread writes.
                    count += 1;
                    let block = stamped(thread as u64, thread as u64, count);
                    assert_eq!(volume.write(&root, file.handle, thread as u64 * 4096, &block), Ok(4096));
                    open.push((file.handle, file.attr.ino));
                }
                3 => match volume.unlink(&root, ROOT_INO, &name) {
                    Ok(()) | Err(Error::NotFound) => {}
                    Err(error) => panic!("unlink gives {error}"),
                },
                4 => {
                    let other = format!("n{}", random.below(3));
                    let flags = RenameFlags::empty();
                    match volume.rename(&root, ROOT_INO, &name, ROOT_INO, other.as_bytes(), flags) {
                        Ok(()) | Err(Error::NotFound) => {}
                        Err(error) => panic!("rename gives {error}"),
                    }
                }
                5 => {
                    let made = volume.tmpfile(&root, ROOT_INO, 0o600, RW).unwrap();
                    if random.one_in(2) {
                        match volume.link(&root, made.attr.ino, ROOT_INO, &name) {
                            Ok(_) | Err(Error::Exists) => {}
                            Err(error) => panic!("link gives {error}"),
                        }
                    }
                    volume.release(made.handle).unwrap();
                }
                _ => {
                    let Some((handle, ino)) = some_of(&mut open, &mut random) else { continue };
                    let mut block = vec![0; 4096];
                    assert_eq!(volume.read(handle, thread as u64 * 4096, &mut block), Ok(4096));
                    assert_whole(&block, thread as u64);
                    assert_eq!(volume.getattr(ino).unwrap().ino, ino, "an open inode is gone");
                    volume.release(handle).unwrap();
                }
            }
            while open.len() > 6 {
                volume.release(open.remove(0).0).unwrap();
            }
        }
        for (handle, _) in open {
            volume.release(handle).unwrap();
        }
    });
    for (name, ..) in names(&volume, ROOT_INO).unwrap() {
        volume.unlink(&root, ROOT_INO, &name).unwrap();
    }
    let space = volume.statfs().unwrap();
    assert_eq!(space.files - space.files_free, 2, "inodes are left that nobody can reach");
    close_and_check(volume, &zone, &region);
}

/// Into a directory that is removed meanwhile, and held open, nothing is made or renamed: it would be lost. Renames did,
/// between the look at the directory and its lock.
#[test]
fn entries_of_a_dying_directory() {
    let (zone, region, volume) = restless(64 << 20, Durability::Operation);
    let root = Caller::root();
    volume.mknod(&root, ROOT_INO, b"traveller", 0o100_644, 0).unwrap();
    let current = AtomicU64::new(volume.mkdir(&root, ROOT_INO, b"dying", 0o755).unwrap().ino);
    hammer(3, |thread, again| {
        while again() {
            let dir = current.load(Ordering::Relaxed);
            if thread == 0 {
                let Ok(handle) = volume.open(&root, dir, OpenFlags::READ) else { continue };
                if volume.rmdir(&root, ROOT_INO, b"dying").is_ok() {
                    let next = volume.mkdir(&root, ROOT_INO, b"dying", 0o755).unwrap().ino;
                    current.store(next, Ordering::Relaxed);
                }
                volume.release(handle).unwrap();
            } else if thread == 1 {
                let there = (dir, b"traveller".as_slice());
                let moved =
                    volume.rename(&root, ROOT_INO, b"traveller", there.0, there.1, RenameFlags::empty());
                if moved.is_ok() {
                    volume
                        .rename(&root, dir, b"traveller", ROOT_INO, b"traveller", RenameFlags::empty())
                        .expect("what was moved into a directory is there");
                }
            } else if volume.mknod(&root, dir, b"made", 0o100_644, 0).is_ok() {
                volume.unlink(&root, dir, b"made").expect("what was made in a directory is there");
            }
        }
    });
    assert!(volume.lookup(&root, ROOT_INO, b"traveller").is_ok(), "the traveller is lost");
    close_and_check(volume, &zone, &region);
}

/// Many things at once, and then the server is killed: all that had returned is there.
#[test]
fn a_crash_in_the_crowd() {
    let (zone, region, volume) = restless(64 << 20, Durability::Operation);
    let root = Caller::root();
    hammer(4, |thread, again| {
        let mut random = Random(thread as u64);
        let dir = volume.mkdir(&root, ROOT_INO, format!("t{thread}").as_bytes(), 0o755).unwrap().ino;
        let mut n = 0;
        while again() {
            n += 1;
            let length = random.below(20_000) as usize;
            write_file(&volume, dir, &format!("{}", n % 40), &random.bytes(length)).unwrap();
            if n % 100 == 50 && thread == 0 {
                volume.syncfs().unwrap();
            }
            if n % 7 == 0 {
                volume.unlink(&root, dir, format!("{}", n % 40).as_bytes()).unwrap();
            }
        }
    });
    let before = tree(&volume).unwrap();
    // Not a copy of the zone: checkpoints go on while it is made, so it would be no state that ever was.
    volume.abandon();
    let volume = mount(&region, Durability::Operation);
    assert_eq!(difference(&tree(&volume).unwrap(), &before), None);
    close_and_check(volume, &zone, &region);
}

/// What an `fsync` said to be durable is there, also if the volume was being closed meanwhile; and it is closed cleanly.
#[test]
fn fsync_while_closing() {
    for durability in DURABILITIES {
        for round in 0..8 {
            let (_zone, region, volume) = restless(16 << 20, durability);
            let root = Caller::root();
            let acknowledged = [AtomicU64::new(0), AtomicU64::new(0)];
            std::thread::scope(|scope| {
                for (thread, acknowledged) in acknowledged.iter().enumerate() {
                    let (volume, root) = (&volume, &root);
                    let name = format!("{thread}");
                    let file = volume.create(root, ROOT_INO, name.as_bytes(), 0o644, RW).unwrap();
                    scope.spawn(move || {
                        for number in 1u64.. {
                            let written = volume.write(root, file.handle, 0, &number.to_le_bytes());
                            match written.and_then(|_| volume.fsync(file.handle, false)) {
                                Ok(()) => acknowledged.store(number, Ordering::Relaxed),
                                Err(error) => return assert_eq!(error, Error::ReadOnly),
                            }
                        }
                    });
                }
                std::thread::sleep(Duration::from_millis(2 + round));
                volume.close().unwrap();
            });
            drop(volume);
            assert_sound(&region);
            let volume = mount(&region, durability);
            assert!(volume.recovery().was_clean);
            for (thread, acknowledged) in acknowledged.iter().enumerate() {
                let bytes = read_file(&volume, ROOT_INO, &format!("{thread}")).unwrap();
                let found = bytes.try_into().map_or(0, u64::from_le_bytes);
                let said = acknowledged.load(Ordering::Relaxed);
                assert!(found >= said, "{durability}: {found} is there, {said} was durable");
            }
        }
    }
}

/// Closing removes what has no name, whoever has it open, while other threads still make files: these had its numbers then,
/// and whoever had it open read what was theirs.
#[test]
fn nothing_made_while_a_volume_closes_has_the_number_of_an_open_file() {
    let (_zone, region) = made(256 << 20);
    let volume = mount(&region, Durability::Operation);
    let root = &Caller::root();
    let open: Vec<Handle> = (0..3000)
        .map(|n| {
            let name = format!("unnamed-{n}");
            let file = volume.create(root, ROOT_INO, name.as_bytes(), 0o644, RW).unwrap();
            volume.write(root, file.handle, 0, b"mine").unwrap();
            volume.unlink(root, ROOT_INO, name.as_bytes()).unwrap();
            file.handle
        })
        .collect();
    let made = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            loop {
                let name = format!("other-{}", made.fetch_add(1, Ordering::Relaxed));
                match volume.create(root, ROOT_INO, name.as_bytes(), 0o644, RW) {
                    Ok(file) => drop(volume.write(root, file.handle, 0, b"others'")),
                    Err(error) => return error,
                }
            }
        });
        while made.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        volume.close().unwrap();
        assert_eq!(others.join().unwrap(), Error::ReadOnly, "behind {made:?} files");
    });
    let mut read = [0; 16];
    for handle in open {
        let answer = volume.read(handle, 0, &mut read);
        assert_eq!(answer, Err(Error::Stale), "{:?}", String::from_utf8_lossy(&read));
    }
    drop(volume);
    assert_sound(&region);
}
