//! Fifteen inodes share a block, and each is locked by itself: neighbours that are changed, made, removed and read at the
//! same time, with checkpoints all the while, see nothing of each other.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::volumes::*;
use native::{Durability, MountOptions, Volume};
use vfs::{Caller, FileSystem, Ino, OpenFlags, ROOT_INO, SetAttr};

/// Makes `count` empty files; those of one block follow each other.
fn files(volume: &Volume, count: usize) -> Vec<Ino> {
    let make = |n| volume.mknod(&Caller::root(), ROOT_INO, format!("{n}").as_bytes(), 0o100_644, 0).unwrap();
    (0..count).map(|n| make(n).ino).collect()
}

/// The block that an inode lies in, as its number says.
fn block_of(ino: Ino) -> Ino {
    ino >> 4
}

#[test]
fn inodes_made_in_a_row_share_blocks() {
    let (_zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    volume.mkdir(&Caller::root(), ROOT_INO, b"d", 0o755).unwrap();
    volume.checkpoint().unwrap();
    let before = volume.stats().blocks_free;
    let inos = files(&volume, 1500);
    volume.checkpoint().unwrap();
    let blocks: std::collections::BTreeSet<Ino> = inos.iter().copied().map(block_of).collect();
    assert!(blocks.len() <= 101, "{} blocks hold 1500 inodes", blocks.len());
    assert!(before - volume.stats().blocks_free <= 150, "with their directory and all");
    // Removed, they leave nothing; and what was removed here and there serves again, after a mount, too.
    for n in (0..1500).filter(|n| n % 3 != 0) {
        volume.unlink(&Caller::root(), ROOT_INO, format!("{n}").as_bytes()).unwrap();
    }
    volume.checkpoint().unwrap();
    let free = volume.stats().blocks_free;
    for n in 1500..2300 {
        volume.mknod(&Caller::root(), ROOT_INO, format!("{n}").as_bytes(), 0o100_644, 0).unwrap();
    }
    volume.checkpoint().unwrap();
    assert!(free - volume.stats().blocks_free <= 16, "new inodes go where others were");
    volume.close().unwrap();
    drop(volume);
    assert_sound(&region);
    for _ in 0..20 {
        let volume = mount(&region, Durability::Operation);
        let before = volume.stats().blocks_free;
        write_file(&volume, ROOT_INO, "one", b"small").unwrap();
        volume.unlink(&Caller::root(), ROOT_INO, b"one").unwrap();
        volume.close().unwrap();
        assert!(before <= volume.stats().blocks_free + 1, "a mount with a file takes no block for itself");
    }
    assert_sound(&region);
}

/// Threads change files of one block, each its own, while another makes and removes neighbours of theirs and a third
/// makes checkpoints: everyone finds what he wrote, now and after a crash.
#[test]
fn neighbours_are_changed_at_the_same_time() {
    for durability in DURABILITIES {
        let (zone, region) = made(16 << 20);
        // Checkpoints are made here, and none while the zone is copied below.
        let options = MountOptions { background: false, ..options(durability) };
        let volume = Volume::open(region.clone(), &options).unwrap();
        let root = Caller::root();
        let inos = files(&volume, 24);
        let end = AtomicBool::new(false);
        let start = Barrier::new(5);
        std::thread::scope(|scope| {
            for thread in 0..3usize {
                let (volume, inos, end, start) = (&volume, &inos, &end, &start);
                scope.spawn(move || {
                    let mine: Vec<_> = inos.iter().skip(thread).step_by(3).copied().collect();
                    let open = |ino: &Ino| volume.open(&Caller::root(), *ino, RW).unwrap();
                    let handles: Vec<_> = mine.iter().map(open).collect();
                    let mut random = Random(thread as u64);
                    let mut written = vec![Vec::new(); mine.len()];
                    start.wait();
                    while !end.load(Ordering::Relaxed) {
                        let n = random.below(mine.len() as u64) as usize;
                        if random.one_in(3) {
                            let bytes = random.next().to_le_bytes().repeat(random.below(15) as usize);
                            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
                            volume.setattr(&Caller::root(), mine[n], &cut, None).unwrap();
                            volume.write(&Caller::root(), handles[n], 0, &bytes).unwrap();
                            written[n] = bytes;
                        }
                        let n = random.below(mine.len() as u64) as usize;
                        assert_eq!(volume.getattr(mine[n]).unwrap().size, written[n].len() as u64);
                        let mut bytes = [0; 200];
                        let read = volume.read(handles[n], 0, &mut bytes).unwrap();
                        assert!(bytes[..read] == written[n], "file {} is not what was written", mine[n]);
                    }
                });
            }
            let others = scope.spawn(|| {
                start.wait();
                let mut n = 0u64;
                while !end.load(Ordering::Relaxed) {
                    let (name, old) = (format!("new {n}"), format!("new {}", n.wrapping_sub(7)));
                    volume.mknod(&root, ROOT_INO, name.as_bytes(), 0o100_600, 0).unwrap();
                    let _ = volume.unlink(&root, ROOT_INO, old.as_bytes());
                    n += 1;
                }
                n
            });
            start.wait();
            let until = Instant::now() + Duration::from_millis(700);
            while Instant::now() < until {
                volume.checkpoint().unwrap();
            }
            end.store(true, Ordering::Relaxed);
            assert!(others.join().unwrap() > 10);
        });
        let seen = tree(&volume).unwrap();
        assert_sound_if_crashed(&zone);
        volume.close().unwrap();
        drop(volume);
        assert_sound(&region);
        let volume = mount(&region, durability);
        assert_eq!(difference(&tree(&volume).unwrap(), &seen), None);
    }
}

/// A reader borrows the bytes of a small file. A neighbour's change moves the block meanwhile, a checkpoint is asked for,
/// and all free space is written to: the bytes that were borrowed stay what they are.
#[test]
fn what_is_borrowed_outlives_a_neighbours_move() {
    let root = Caller::root();
    let (_zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    let inos = files(&volume, 4);
    let expected = [b'r'; 100];
    let reader = volume.open(&root, inos[0], RW).unwrap();
    volume.write(&root, reader, 0, &expected).unwrap();
    assert_eq!(block_of(inos[0]), block_of(inos[1]));
    for _ in 0..3 {
        volume.checkpoint().unwrap();
        let borrowed = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                borrowed.wait();
                let other = volume.open(&Caller::root(), inos[1], RW).unwrap();
                volume.write(&Caller::root(), other, 0, &[b'w'; 50]).unwrap();
                volume.checkpoint().unwrap();
                let rest = volume.create(&Caller::root(), ROOT_INO, b"rest", 0o644, RW).unwrap();
                for at in 0.. {
                    if volume.write(&Caller::root(), rest.handle, at << 20, &[0xee; 1 << 20]) != Ok(1 << 20) {
                        break;
                    }
                }
                volume.unlink(&Caller::root(), ROOT_INO, b"rest").unwrap();
                volume.release(rest.handle).unwrap();
                volume.release(other).unwrap();
            });
            let read = volume.read_slices(reader, 0, 100, &mut |bytes| {
                borrowed.wait();
                let until = Instant::now() + Duration::from_millis(150);
                while Instant::now() < until {
                    assert!(bytes == expected, "borrowed bytes changed: their block was given out again");
                }
            });
            assert_eq!(read, Ok(100));
        });
    }
    let handle = volume.open(&root, inos[1], OpenFlags::READ).unwrap();
    let mut bytes = [0; 60];
    assert_eq!(volume.read(handle, 0, &mut bytes), Ok(50));
    volume.close().unwrap();
    drop(volume);
    assert_sound(&region);
}
