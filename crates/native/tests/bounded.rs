//! Caches keep to the DRAM that they are given, and are right with next to none.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::volumes::*;
use native::{Durability, MountOptions, Volume, check};
use vfs::{Caller, Error, FileSystem, Handle, ROOT_INO, RenameFlags};

const BLOCK: u64 = 4096;

fn bounded(durability: Durability, cache_bytes: u64) -> MountOptions {
    MountOptions { cache_bytes: Some(cache_bytes), ..options(durability) }
}

fn within(volume: &Volume) -> u64 {
    let stats = volume.stats();
    let limit = stats.cache_limit_bytes.unwrap();
    assert!(stats.cache_bytes <= limit, "{} bytes of {limit}: {stats:?}", stats.cache_bytes);
    stats.nat_cache_bytes
}

/// Files are made, found, renamed and removed all over a tree that needs five times the pages that there may be.
#[test]
fn a_bound_is_kept_while_files_come_and_go() {
    const FILES: u64 = 120_000;
    const DIRS: u64 = 60;
    for durability in [Durability::Operation, Durability::Fsync] {
        let (zone, region) = made(192 << 20);
        // Half of it are four pages.
        let limit = 64 << 10;
        let volume = Volume::open(region.clone(), &bounded(durability, limit)).unwrap();
        let root = Caller::root();
        let dir = |n| volume.mkdir(&root, ROOT_INO, format!("d{n}").as_bytes(), 0o755).unwrap().ino;
        let dirs: Vec<_> = (0..DIRS).map(dir).collect();
        let of = |file: u64| dirs[(file % DIRS) as usize];
        let name = |file: u64, turn: u8| format!("{file}-{turn}").into_bytes();
        // How often each was renamed; none: it is not there.
        let mut files: Vec<Option<u8>> = vec![Some(0); FILES as usize];
        for file in 0..FILES {
            volume.mknod(&root, of(file), &name(file, 0), 0o100_644, 0).unwrap();
            if file % 1000 == 0 {
                within(&volume);
            }
        }
        let mut random = Random(seed());
        let mut most = 0;
        for turn in 0..60_000 {
            if turn % 20 == 0 {
                volume.seal(); // so that pages go with entries of nodes that are sealed
            }
            let file = random.below(FILES);
            let state = &mut files[file as usize];
            match (*state, random.below(3)) {
                (None, _) => {
                    volume.mknod(&root, of(file), &name(file, 0), 0o100_644, 0).unwrap();
                    *state = Some(0);
                }
                (Some(times), 0) => {
                    volume.unlink(&root, of(file), &name(file, times)).unwrap();
                    let gone = volume.lookup(&root, of(file), &name(file, times));
                    assert!(matches!(gone, Err(Error::NotFound)), "{gone:?}");
                    *state = None;
                }
                (Some(times), 1) => {
                    let (from, to) = (name(file, times), name(file, times.wrapping_add(1)));
                    volume.rename(&root, of(file), &from, of(file), &to, RenameFlags::empty()).unwrap();
                    *state = Some(times.wrapping_add(1));
                }
                (Some(times), _) => {
                    volume.lookup(&root, of(file), &name(file, times)).unwrap();
                }
            }
            if turn % 100 == 0 {
                most = most.max(within(&volume));
            }
        }
        assert!(most > limit / 4, "the bound is never near: {most}");
        volume.syncfs().unwrap();
        assert_sound_if_crashed(&zone);
        volume.close().unwrap();
        drop(volume);
        assert_sound(&region);

        let volume = mount(&region, durability);
        for (n, dir) in dirs.iter().enumerate() {
            let mine = (0..FILES).filter(|file| file % DIRS == n as u64);
            names(&volume, *dir)
                .unwrap()
                .iter()
                .for_each(|(_, _, ino)| assert!(volume.getattr(*ino).is_ok()));
            let mut expected: Vec<Vec<u8>> =
                mine.filter_map(|file| files[file as usize].map(|times| name(file, times))).collect();
            let mut found: Vec<Vec<u8>> =
                names(&volume, *dir).unwrap().into_iter().map(|(name, ..)| name).collect();
            expected.sort();
            found.sort();
            assert!(found == expected, "directory {n} has {} names, not {}", found.len(), expected.len());
        }
        assert_eq!(volume.stats().cache_limit_bytes, None);
        assert!(volume.stats().nat_cache_bytes > 2 * limit, "{:?}", volume.stats());
    }
}

/// A block that is all one number.
fn block_of(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK as usize / 8)
}

/// The number that a block is all of.
fn number_of(block: &[u8]) -> Option<u64> {
    let first = &block[..8];
    block.chunks_exact(8).all(|word| word == first).then(|| u64::from_le_bytes(first.try_into().unwrap()))
}

/// Threads share one page of the table between sparse files whose nodes fill ten, with a checkpoint every 10 ms: what
/// each wrote is there, and nobody sees half of a block, or an older one than was there when he began.
#[test]
fn threads_that_take_pages_from_each_other_see_what_there_is() {
    const THREADS: u64 = 4;
    const BLOCKS: u64 = 1300;
    /// A direct node leads to so much.
    const STRIDE: u64 = 2 << 20;
    for (durability, cache_bytes) in
        [(Durability::Operation, 0), (Durability::Fsync, 32 << 10), (Durability::Snapshot, 0)]
    {
        let (zone, region) = made(160 << 20);
        let options =
            MountOptions { commit_interval: Duration::from_millis(10), ..bounded(durability, cache_bytes) };
        let volume = Volume::open(region.clone(), &options).unwrap();
        let root = Caller::root();
        let create =
            |n| volume.create(&root, ROOT_INO, format!("f{n}").as_bytes(), 0o644, RW).unwrap().handle;
        let handles: Vec<Handle> = (0..THREADS).map(create).collect();
        // What each block is at least: written before it is told here.
        let told: Vec<AtomicU64> = (0..THREADS * BLOCKS).map(|_| AtomicU64::new(0)).collect();
        let end = Instant::now() + Duration::from_secs(3);
        let read = |file: u64, block: u64| {
            let at_least = told[(file * BLOCKS + block) as usize].load(Ordering::Acquire);
            let mut bytes = vec![0xee; BLOCK as usize];
            match volume.read(handles[file as usize], block * STRIDE, &mut bytes).unwrap() {
                0 => assert_eq!(at_least, 0, "block {block} of file {file} is not there"),
                _ => {
                    let number = number_of(&bytes);
                    assert!(number.is_some_and(|it| it >= at_least), "{number:?}, not {at_least} or more");
                }
            }
        };
        std::thread::scope(|scope| {
            for file in 0..THREADS {
                let (volume, handles, told, root, read) = (&volume, &handles, &told, &root, &read);
                scope.spawn(move || {
                    let mut random = Random(file);
                    for number in 1.. {
                        if Instant::now() > end {
                            break;
                        }
                        let block = random.below(BLOCKS);
                        let handle = handles[file as usize];
                        volume.write(root, handle, block * STRIDE, &block_of(number)).unwrap();
                        told[(file * BLOCKS + block) as usize].store(number, Ordering::Release);
                        read(file, block);
                        read(random.below(THREADS), random.below(BLOCKS));
                        // So that pages go with entries of nodes that are sealed.
                        if number % 16 == 0 {
                            volume.seal();
                        }
                        let name = format!("{file}-{}", random.below(300)).into_bytes();
                        match volume.unlink(root, ROOT_INO, &name) {
                            Err(Error::NotFound) => {
                                volume.mknod(root, ROOT_INO, &name, 0o100_644, 0).unwrap();
                            }
                            other => other.unwrap(),
                        }
                    }
                });
            }
        });
        for (file, handle) in (0..).zip(&handles) {
            (0..BLOCKS).for_each(|block| read(file, block));
            volume.release(*handle).unwrap();
        }
        volume.syncfs().unwrap();
        assert_sound_if_crashed(&zone);
        volume.close().unwrap();
        drop(volume);
        assert_sound(&region);
    }
}

/// What the allocator knows of segments goes when the medium has it, and comes again.
#[test]
fn segments_are_looked_up_again() {
    let (zone, region) = made(512 << 20);
    let volume = Volume::open(region.clone(), &bounded(Durability::Operation, 16 << 10)).unwrap();
    let root = Caller::root();
    let piece = vec![0x5a; 1 << 20];
    let file = |n: usize| format!("f{n}");
    for n in 0..400 {
        write_file(&volume, ROOT_INO, &file(n), &piece).unwrap();
    }
    volume.syncfs().unwrap();
    let free = volume.statfs().unwrap().blocks_free;
    for n in (0..400).step_by(2) {
        volume.unlink(&root, ROOT_INO, file(n).as_bytes()).unwrap();
    }
    volume.syncfs().unwrap();
    // An eighth are ten segments.
    assert!(volume.stats().segment_cache_bytes <= 2048, "{:?}", volume.stats());
    for n in (0..400).step_by(2) {
        write_file(&volume, ROOT_INO, &file(n), &piece).unwrap();
    }
    volume.syncfs().unwrap();
    // Of blocks of inodes that have room, few are remembered.
    let left = volume.statfs().unwrap().blocks_free;
    assert!(free.abs_diff(left) < 64, "{free} blocks were free, {left} are");
    for n in 0..400 {
        assert!(read_file(&volume, ROOT_INO, &file(n)).unwrap() == piece, "file {n}");
    }
    assert_sound_if_crashed(&zone);
    volume.close().unwrap();
    drop(volume);
    let report = check(&region, true).unwrap();
    assert!(report.problems.is_empty() && report.files == 400, "{report:#?}");
}
