//! Hundreds of snapshots that are read at the same time, while files change, snapshots come and go, and blocks that they
//! have move: whoever reads a snapshot finds what was there when it was taken.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::volumes::hammer::{hammer, restless};
use crate::volumes::*;
use native::{Durability, Error, Volume};
use vfs::{Caller, FileSystem, Handle, Ino, OpenFlags, ROOT_INO};

const READ: OpenFlags = OpenFlags::READ;
/// Snapshots that stay: more than there are views, lanes or locks.
const KEPT: usize = 320;
/// Each of the files, blocks.
const BLOCKS: u64 = 12;
const FILES: [&str; 3] = ["first", "second", "third"];
/// Threads that read.
const READERS: usize = 3;

/// What a block of a file is filled with, by the number of the write that was the last one before a snapshot.
fn filled(file: usize, block: u64, write: u64) -> Vec<u8> {
    [file as u64, block, write, !write].map(u64::to_le_bytes).concat().repeat(4096 / 32)
}

/// Which writes the blocks of the files show.
type Shown = [[u64; BLOCKS as usize]; FILES.len()];

/// Files that are written block by block, and what they show.
struct Written<'a> {
    volume: &'a Volume,
    handles: Vec<Handle>,
    shown: Shown,
    writes: u64,
}

impl Written<'_> {
    fn write(&mut self, random: &mut Random) {
        let (file, block) = (random.below(FILES.len() as u64) as usize, random.below(BLOCKS));
        self.writes += 1;
        self.shown[file][block as usize] = self.writes;
        let bytes = filled(file, block, self.writes);
        let root = Caller::root();
        // A part of a block is a difference, or, where a snapshot has the block, a copy.
        let from = if random.one_in(3) { 0 } else { 3000 };
        for (at, part) in [(from, &bytes[from..]), (0, &bytes[..from])] {
            let written = self.volume.write(&root, self.handles[file], block * 4096 + at as u64, part);
            assert_eq!(written, Ok(part.len()));
        }
    }
}

fn top_of(volume: &Volume, name: &str) -> vfs::Result<Ino> {
    let root = Caller::root();
    let all = volume.lookup(&root, ROOT_INO, b".snapshots")?.ino;
    Ok(volume.lookup(&root, all, name.as_bytes())?.ino)
}

#[track_caller]
fn assert_shows(volume: &Volume, handle: Handle, file: usize, block: u64, write: u64) {
    let mut bytes = vec![0; 4096];
    assert_eq!(volume.read(handle, block * 4096, &mut bytes), Ok(4096));
    assert!(bytes == filled(file, block, write), "{}, block {block}: {:x?}", FILES[file], &bytes[..32]);
}

/// All of a snapshot, by a path of its own.
fn assert_all(volume: &Volume, name: &str, shown: &Shown) {
    let root = Caller::root();
    let top = top_of(volume, name).unwrap();
    for (file, blocks) in shown.iter().enumerate() {
        let ino = volume.lookup(&root, top, FILES[file].as_bytes()).unwrap().ino;
        let handle = volume.open(&root, ino, READ).unwrap();
        (0..).zip(blocks).for_each(|(block, write)| assert_shows(volume, handle, file, block, *write));
        volume.release(handle).unwrap();
    }
}

/// Never tried before: views of more snapshots at once than there is anything else of.
#[test]
fn hundreds_are_read_at_once_while_others_come_and_go() {
    let (zone, region, volume) = restless(96 << 20, Durability::Operation);
    let (root, mut random) = (Caller::root(), Random(seed()));
    let mut written = Written { volume: &volume, handles: Vec::new(), shown: Shown::default(), writes: 0 };
    for (file, name) in FILES.iter().enumerate() {
        let made = volume.create(&root, ROOT_INO, name.as_bytes(), 0o644, RW).unwrap();
        written.handles.push(made.handle);
        for block in 0..BLOCKS {
            volume.write(&root, made.handle, block * 4096, &filled(file, block, 0)).unwrap();
        }
    }
    let kept: Vec<Shown> = (0..KEPT)
        .map(|number| {
            (0..4).for_each(|_| written.write(&mut random));
            volume.take_snapshot(&format!("kept-{number}"), "").unwrap();
            written.shown
        })
        .collect();
    let open = |number: usize, file: usize| {
        let top = top_of(&volume, &format!("kept-{number}")).unwrap();
        let ino = volume.lookup(&root, top, FILES[file].as_bytes()).unwrap().ino;
        volume.open(&root, ino, READ).unwrap()
    };
    // So none of them can be removed.
    let held: Vec<Handle> = (0..KEPT).map(|number| open(number, 0)).collect();
    let written = Mutex::new((written, random));
    let (reads, removed, moved) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    hammer(READERS + 2, |thread, again| match thread {
        // Files of all snapshots are open at the same time, a share in each thread.
        0..READERS => {
            let mut random = Random(thread as u64);
            let mut mine: Vec<(usize, usize, Handle)> = (thread..KEPT)
                .step_by(READERS)
                .map(|number| (number, number % FILES.len(), open(number, number % FILES.len())))
                .collect();
            while again() {
                let chosen = random.below(mine.len() as u64) as usize;
                let (number, file, handle) = mine[chosen];
                let block = random.below(BLOCKS);
                assert_shows(&volume, handle, file, block, kept[number][file][block as usize]);
                reads.fetch_add(1, Ordering::Relaxed);
                if random.one_in(20) {
                    volume.release(handle).unwrap();
                    let file = random.below(FILES.len() as u64) as usize;
                    mine[chosen] = (number, file, open(number, file));
                }
            }
            mine.into_iter().for_each(|(_, _, handle)| volume.release(handle).unwrap());
        }
        READERS => {
            let (written, random) = &mut *written.lock().unwrap();
            let mut passing: Vec<(String, Shown)> = Vec::new();
            let mut taken = 0;
            while again() {
                (0..1 + random.below(4)).for_each(|_| written.write(random));
                if passing.len() < 30 && random.one_in(2) {
                    taken += 1;
                    let name = format!("passing-{taken}");
                    volume.take_snapshot(&name, "").unwrap();
                    passing.push((name, written.shown));
                } else if !passing.is_empty() {
                    let chosen = random.below(passing.len() as u64) as usize;
                    assert_all(&volume, &passing[chosen].0, &passing[chosen].1);
                    let (name, _) = passing.swap_remove(chosen);
                    volume.remove_snapshot(&name).unwrap();
                    removed.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(top_of(&volume, &name), Err(vfs::Error::NotFound));
                }
                // What is read stays.
                let number = random.below(KEPT as u64);
                let refused = volume.remove_snapshot(&format!("kept-{number}"));
                assert!(matches!(refused, Err(Error::SnapshotInUse(_))), "{refused:?}");
            }
        }
        _ => {
            let mut random = Random(99);
            while again() {
                volume.empty_segment(random.below(20) as u32).unwrap();
                moved.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    for count in [&reads, &removed, &moved] {
        assert!(count.load(Ordering::Relaxed) > 0, "{reads:?} reads, {removed:?} removed, {moved:?} moved");
    }
    eprintln!("{reads:?} reads, {removed:?} snapshots removed, {moved:?} segments emptied");
    let (written, _) = written.into_inner().unwrap();
    written.handles.iter().for_each(|handle| volume.release(*handle).unwrap());
    drop(written);
    held.into_iter().for_each(|handle| volume.release(handle).unwrap());
    let all = |volume: &Volume| {
        (0..).zip(&kept).for_each(|(number, shown)| assert_all(volume, &format!("kept-{number}"), shown));
    };
    all(&volume);
    assert_sound_if_crashed(&zone);
    volume.close().unwrap();
    drop(volume);
    assert_sound(&region);
    all(&mount(&region, Durability::Operation));
}

/// Who listed a closed volume's snapshots, and what each takes, read the whole list again for each: 10,000 took minutes.
#[test]
fn each_listed_one_cost_the_whole_list() {
    const COUNT: u32 = 1500;
    let (_zone, region) = made(64 << 20);
    let volume = mount(&region, Durability::Operation);
    for number in 0..COUNT {
        write_file(&volume, ROOT_INO, &format!("{}", number % 40), &[1; 200]).ok();
        volume.take_snapshot(&number.to_string(), "").unwrap();
    }
    let usages: Vec<_> =
        volume.snapshots().into_iter().map(|one| (volume.snapshot_usage(&one.name).ok(), one)).collect();
    volume.close().unwrap();
    drop(volume);
    let began = Instant::now();
    assert_eq!(native::snapshots(&region).unwrap().len(), usages.len());
    let reading = began.elapsed();
    let began = Instant::now();
    let listed: Vec<_> = native::snapshot_usages(&region).unwrap();
    let listing = began.elapsed();
    let listed: Vec<_> = listed.into_iter().map(|(one, usage)| (usage, one)).collect();
    // The newest one shares less with what closing wrote.
    assert_eq!(listed.len(), usages.len());
    assert_eq!(listed[..listed.len() - 1], usages[..usages.len() - 1]);
    assert!(listing < reading * (COUNT / 4), "{listing:?} to list them, {reading:?} to read the list");
}
