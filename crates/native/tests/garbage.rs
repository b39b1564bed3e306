//! Garbage collection: blocks move, in the volume and in its snapshots, and nobody notices.

use crate::volumes;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::volumes::{
    RW, Random, Tree, assert_sound, assert_sound_if_crashed, crashed, difference, made, tree, tree_below,
    write_file,
};
use native::{Durability, MountOptions, Volume};
use nvm::{Purpose, RecordingOptions, Region, Zone};
use vfs::torture::{Limits, Torture};
use vfs::{Caller, FallocateMode, FileSystem, Ino, OpenFlags, ROOT_INO};

fn open(region: &Region, durability: Durability) -> Volume {
    let options = MountOptions { durability, background: false, ..MountOptions::default() };
    Volume::open(region.clone(), &options).unwrap()
}

fn root_of(volume: &Volume, snapshot: &str) -> Ino {
    let root = Caller::root();
    let all = volume.lookup(&root, ROOT_INO, b".snapshots").unwrap().ino;
    volume.lookup(&root, all, snapshot.as_bytes()).unwrap().ino
}

#[track_caller]
fn assert_kept(volume: &Volume, kept: &[(String, Tree)]) {
    for (name, then) in kept {
        let now = tree_below(volume, root_of(volume, name)).unwrap();
        assert_eq!(difference(&now, then), None, "{name}");
    }
}

/// Files of a few blocks, of which two thirds go: no segment is empty, all are nearly so.
fn scattered(volume: &Volume) {
    for n in 0..900 {
        write_file(volume, ROOT_INO, &format!("file {n}"), &[n as u8; 60_000]).unwrap();
    }
    for n in (0..900).filter(|n| n % 3 != 0) {
        volume.unlink(&Caller::root(), ROOT_INO, format!("file {n}").as_bytes()).unwrap();
    }
    volume.checkpoint().unwrap();
}

#[test]
fn what_is_left_of_segments_comes_together() {
    for durability in volumes::DURABILITIES {
        let (zone, region) = made(96 << 20);
        let volume = open(&region, durability);
        scattered(&volume);
        let (empty, then) = (volume.stats().segments_empty, tree(&volume).unwrap());
        let emptied = volume.collect_garbage().unwrap();
        // 4500 blocks fit into 9 segments; two more are being written to.
        let now = volume.stats().segments_empty;
        assert!(
            now >= 46 - 12,
            "{durability:?}: {empty} segments were empty, {emptied} were emptied, {now} are"
        );
        assert_eq!(difference(&tree(&volume).unwrap(), &then), None);
        assert_eq!(volume.collect_garbage().unwrap(), 0, "there is nothing more to be had");
        assert_sound_if_crashed(&zone);
        let (_zone, copy) = crashed(&zone);
        assert_eq!(difference(&tree(&open(&copy, durability)).unwrap(), &then), None);
        volume.close().unwrap();
        assert_sound(&region);
    }
}

/// What lies in snapshots moves as well, in all that share it, while others look at them.
#[test]
fn what_snapshots_share_they_share_afterwards() {
    let (zone, region) = made(96 << 20);
    let volume = open(&region, Durability::Operation);
    scattered(&volume);
    let root = Caller::root();
    let mut kept = Vec::new();
    for round in 0..5u8 {
        let file = volume.lookup(&root, ROOT_INO, format!("file {}", round * 3).as_bytes()).unwrap();
        let handle = volume.open(&root, file.ino, RW).unwrap();
        volume.write(&root, handle, 9000, &[round; 5000]).unwrap();
        volume.release(handle).unwrap();
        volume.unlink(&root, ROOT_INO, format!("file {}", 300 + 3 * round as u32).as_bytes()).unwrap();
        let name = format!("snapshot {round}");
        volume.take_snapshot(&name, "").unwrap();
        kept.push((name, tree(&volume).unwrap()));
    }
    let handle = {
        let file = volume.lookup(&root, root_of(&volume, "snapshot 2"), b"file 600").unwrap();
        volume.open(&root, file.ino, OpenFlags::READ).unwrap()
    };
    let (empty, used) = (volume.stats().segments_empty, volume.stats().blocks_free);
    let emptied = volume.collect_garbage().unwrap();
    let stats = volume.stats();
    assert!(stats.segments_empty >= 30, "{empty} were empty, {emptied} were emptied: {stats:?}");
    let lost = used as i64 - stats.blocks_free as i64;
    assert!(lost < 40, "moving took {lost} blocks");
    let mut bytes = vec![0; 60_000];
    assert_eq!(volume.read(handle, 0, &mut bytes).unwrap(), 60_000);
    assert!(bytes.iter().all(|byte| *byte == 600u32 as u8));
    volume.release(handle).unwrap();
    assert_kept(&volume, &kept);
    assert_sound_if_crashed(&zone);
    drop(volume);
    assert_sound(&region);
    let volume = open(&region, Durability::Operation);
    assert_kept(&volume, &kept);
    // What each has alone is what it was: all of it comes back.
    while let Some((name, _)) = kept.pop() {
        volume.remove_snapshot(&name).unwrap();
        volume.finish_removals().unwrap();
        assert_kept(&volume, &kept);
    }
    for (name, ..) in volumes::names(&volume, ROOT_INO).unwrap() {
        volume.unlink(&root, ROOT_INO, &name).unwrap();
    }
    volume.close().unwrap();
    assert_sound(&region);
    let used = native::check(&region, false).unwrap().blocks_used;
    assert!(used < 64, "{used} blocks are in use when everything is gone");
}

/// Random operations, snapshots and crashes, with garbage collected in between.
fn churn(seed: u64, durability: Durability, rounds: u64) {
    let (mut zone, region): (Zone, Region) = made(128 << 20);
    let mut volume = open(&region, durability);
    let (inodes, file_bytes, between_snapshots) = (200, 1 << 26, 150);
    let limits = Limits { xattr_bytes: 900, inodes, file_bytes, between_snapshots, ..Limits::default() };
    let mut torture = Torture::new(seed).with_limits(limits);
    let mut random = Random(seed);
    let mut emptied = 0;
    for round in 0..rounds {
        torture.run_with_snapshots(&volume, 200);
        if random.one_in(2) {
            volume.finish_removals().unwrap();
        }
        emptied += volume.collect_garbage().unwrap();
        // With the model, which knows nothing of garbage.
        torture.compare(&volume);
        torture.compare_snapshots(&volume);
        if round % 5 == 4 {
            torture.close(&volume);
            if durability != Durability::Operation {
                volume.syncfs().unwrap();
            }
            assert_sound_if_crashed(&zone);
            let copy = crashed(&zone);
            volume.abandon();
            volume = open(&copy.1, durability);
            zone = copy.0;
            torture.compare(&volume);
            torture.compare_snapshots(&volume);
        }
    }
    assert!(emptied > 0, "nothing was emptied in {rounds} rounds");
    torture.clear(&volume);
    torture.clear_snapshots(&volume);
    volume.finish_removals().unwrap();
    volume.collect_garbage().unwrap();
    volume.close().unwrap();
    assert_sound(volume.region());
    let used = native::check(volume.region(), false).unwrap().blocks_used;
    assert!(used < 64, "{used} blocks are in use when everything is gone");
}

#[test]
fn it_is_not_noticed_with_every_operation_durable() {
    churn(volumes::seed(), Durability::Operation, 40);
}

#[test]
fn it_is_not_noticed_with_durable_fsyncs() {
    churn(volumes::seed() + 1, Durability::Fsync, 40);
}

#[test]
fn it_is_not_noticed_with_durable_checkpoints() {
    churn(volumes::seed() + 2, Durability::Snapshot, 40);
}

/// Threads write and read while segments are emptied under them, and snapshots taken and removed.
#[test]
fn it_goes_on_beside_operations() {
    let (zone, region) = made(96 << 20);
    let volume = open(&region, Durability::Operation);
    scattered(&volume);
    let (done, may_write) = (AtomicBool::new(false), AtomicU64::new(0));
    let volume = &volume;
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (done, may_write) = (&done, &may_write);
            scope.spawn(move || {
                let (root, mut random) = (Caller::root(), Random(thread));
                let mut bytes = vec![0; 60_000];
                let mut written = 0;
                while !done.load(Ordering::Relaxed) {
                    let n = 3 * (random.below(100) * 3 + thread);
                    let file = volume.lookup(&root, ROOT_INO, format!("file {n}").as_bytes()).unwrap();
                    let handle = volume.open(&root, file.ino, RW).unwrap();
                    assert_eq!(volume.read(handle, 0, &mut bytes).unwrap(), 60_000);
                    let wrong = bytes.iter().position(|byte| *byte != n as u8);
                    assert_eq!(wrong.map(|at| (at, bytes[at])), None, "file {n}");
                    if written < may_write.load(Ordering::Relaxed) {
                        let (at, length) = (random.below(55_000), random.below(5000));
                        volume.write(&root, handle, at, &bytes[..length as usize]).unwrap();
                        written += 1;
                    }
                    volume.release(handle).unwrap();
                }
            });
        }
        let mut random = Random(99);
        for round in 0..30 {
            // As much as fits, though all snapshots were kept.
            may_write.fetch_add(80, Ordering::Relaxed);
            volume.take_snapshot(&format!("{round}"), "").unwrap();
            volume.collect_garbage().unwrap();
            let gone = random.below(round + 1);
            if volume.remove_snapshot(&format!("{gone}")).is_ok() && random.one_in(2) {
                volume.finish_removals().unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(volume.failure().is_none(), "{:?}", volume.failure());
    assert_sound_if_crashed(&zone);
    volume.close().unwrap();
    assert_sound(&region);
}

/// A volume 95 % full goes on under random overwrites, while segments are emptied, with snapshots that come and go and without.
#[test]
fn a_nearly_full_volume_keeps_working() {
    for keeps_snapshots in [false, true] {
        let (_zone, region) = made(64 << 20);
        let volume = open(&region, Durability::Operation);
        let (root, mut random) = (Caller::root(), Random(5));
        let total = volume.stats().blocks_total;
        let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap();
        let block = |number: u64| number.to_le_bytes().repeat(512);
        let mut expected = Vec::new();
        while volume.stats().blocks_free * 20 > total {
            volume.write(&root, file.handle, expected.len() as u64 * 4096, &block(0)).unwrap();
            expected.push(0);
        }
        let (mut emptied, mut then) = (0, Vec::new());
        let segments = (total / 512) as u32;
        for round in 0..60u64 {
            if keeps_snapshots {
                if round > 0 {
                    assert_file(&volume, root_of(&volume, "kept"), &then);
                    volume.remove_snapshot("kept").unwrap();
                    volume.finish_removals().unwrap();
                }
                volume.take_snapshot("kept", "").unwrap();
                then.clone_from(&expected);
            }
            for n in 1..=150 {
                let (index, number) = (random.below(expected.len() as u64), round * 1000 + n);
                volume.write(&root, file.handle, index * 4096, &block(number)).unwrap();
                expected[index as usize] = number;
            }
            match volume.empty_segment(random.below(segments.into()) as u32) {
                Ok(is_empty) => emptied += u64::from(is_empty),
                // What moves is there twice for a while.
                Err(error) => assert_eq!(vfs::Error::from(error), vfs::Error::NoSpace),
            }
            volume.collect_garbage().unwrap();
        }
        assert!(emptied > 0, "snapshots: {keeps_snapshots}: no segment was emptied: {:?}", volume.stats());
        assert_file(&volume, ROOT_INO, &expected);
        volume.close().unwrap();
        assert_sound(&region);
    }
}

/// Each block of `file` in directory `dir` is full of its number.
fn assert_file(volume: &Volume, dir: Ino, numbers: &[u64]) {
    let file = volume.lookup(&Caller::root(), dir, b"file").unwrap();
    let handle = volume.open(&Caller::root(), file.ino, OpenFlags::READ).unwrap();
    let mut bytes = vec![0; 4096];
    for (index, number) in numbers.iter().enumerate() {
        assert_eq!(volume.read(handle, index as u64 * 4096, &mut bytes), Ok(4096));
        assert!(bytes == number.to_le_bytes().repeat(512), "block {index} is not what was written last");
    }
    volume.release(handle).unwrap();
}

/// Data that was copied while somebody may have had to wait, in blocks: at most for the lock on one file, and for all lanes.
#[derive(Debug, Default, PartialEq)]
struct Copied {
    with_a_file: u64,
    with_all: u64,
}

/// Collects garbage and looks at what was stored in each piece of it that others wait for.
fn copied(zone: &Zone, volume: &Volume) -> Copied {
    let options = RecordingOptions { bytes: false, ..RecordingOptions::default() };
    zone.start_recording(options);
    volume.collect_garbage().unwrap();
    let recording = zone.stop_recording().unwrap();
    assert!(recording.complete);
    let mut pieces = HashMap::<_, u64>::new();
    for event in recording.events.iter().filter(|event| event.purpose == Purpose::Data) {
        *pieces.entry((recording.operation_of(event), event.operation_number)).or_default() += event.length;
    }
    let most = |name| {
        let of_it = pieces.iter().filter(|((of, _), _)| *of == name);
        of_it.map(|(_, bytes)| bytes.div_ceil(4096)).max().unwrap_or(0)
    };
    Copied { with_a_file: most("move"), with_all: most("switch") }
}

/// Nobody waits for more than 64 blocks of a file, or 256 of those that snapshots have and that nobody has written yet, to be copied:
/// however much is to be moved, and however many snapshots have it.
#[test]
fn who_waits_for_it_waits_for_few_blocks() {
    for count in [0, 1, 10] {
        let (zone, region) = made(96 << 20);
        let volume = open(&region, Durability::Operation);
        let root = Caller::root();
        let half = |name: &str| {
            for n in 0..40 {
                let name = format!("{name} {n}");
                let file = volume.create(&root, ROOT_INO, name.as_bytes(), 0o644, RW).unwrap();
                match name.starts_with("reserved") {
                    true => {
                        volume.fallocate(&root, file.handle, FallocateMode::empty(), 0, 200 << 12).unwrap();
                    }
                    false => drop(volume.write(&root, file.handle, 0, &[n as u8; 200 << 12]).unwrap()),
                }
                volume.release(file.handle).unwrap();
            }
            for n in (0..40).filter(|n| n % 3 != 0) {
                volume.unlink(&root, ROOT_INO, format!("{name} {n}").as_bytes()).unwrap();
            }
        };
        half("written");
        half("reserved");
        volume.checkpoint().unwrap();
        snapshots(&volume, count);
        let then = tree(&volume).unwrap();
        let copied = copied(&zone, &volume);
        let expected = match count {
            0 => Copied { with_a_file: 64, with_all: 0 },
            _ => Copied { with_a_file: 0, with_all: 256 },
        };
        assert_eq!(copied, expected, "with {count} snapshots");
        assert_eq!(difference(&tree(&volume).unwrap(), &then), None);
        volume.close().unwrap();
        assert_sound(&region);
    }
}

/// Directories that each have a node, every other one gone.
fn half_gone(volume: &Volume, count: u32) {
    let root = Caller::root();
    for n in 0..count {
        let dir = volume.mkdir(&root, ROOT_INO, format!("dir {n}").as_bytes(), 0o755).unwrap();
        write_file(volume, dir.ino, "file", b"x").unwrap();
    }
    volume.checkpoint().unwrap();
    for n in (0..count).filter(|n| n % 2 != 0) {
        let dir = volume.lookup(&root, ROOT_INO, format!("dir {n}").as_bytes()).unwrap();
        volume.unlink(&root, dir.ino, b"file").unwrap();
        volume.rmdir(&root, ROOT_INO, format!("dir {n}").as_bytes()).unwrap();
    }
    volume.checkpoint().unwrap();
}

fn snapshots(volume: &Volume, count: u32) {
    for n in 0..count {
        write_file(volume, ROOT_INO, &format!("new {n}"), b"y").unwrap();
        volume.take_snapshot(&format!("s{n}"), "").unwrap();
    }
}

/// Segments of which all blocks were freed, behind the last checkpoint, were chosen again and again: they are not free, and
/// there is nothing in them to be moved.
#[test]
fn what_is_free_behind_the_next_checkpoint_is_waited_for() {
    let (_zone, region) = made(96 << 20);
    let volume = open(&region, Durability::Operation);
    for round in 0..2 {
        for n in 0..300 {
            let name = format!("file {n}");
            match round {
                0 => write_file(&volume, ROOT_INO, &name, &[n as u8; 60_000]).map(drop).unwrap(),
                _ => drop(volume.unlink(&Caller::root(), ROOT_INO, name.as_bytes())),
            }
        }
        if round == 0 {
            for n in (0..300).filter(|n| n % 3 != 0) {
                volume.unlink(&Caller::root(), ROOT_INO, format!("file {n}").as_bytes()).unwrap();
            }
            volume.checkpoint().unwrap();
        }
    }
    volume.collect_garbage().unwrap();
    assert!(volume.stats().segments_empty >= 40, "{:?}", volume.stats());
    volume.close().unwrap();
    assert_sound(&region);
}

/// In many trees moving takes more than it brings: the ways to what moved became the next garbage, and so on for ever.
#[test]
fn it_ends_where_moving_makes_more_garbage() {
    let (_zone, region) = made(128 << 20);
    let volume = open(&region, Durability::Operation);
    half_gone(&volume, 6000);
    snapshots(&volume, 30);
    let before = volume.stats();
    volume.collect_garbage().unwrap();
    let after = volume.stats();
    let made = after.checkpoints - before.checkpoints;
    assert!(made < 200 && after.segments_empty >= before.segments_empty, "{made} checkpoints: {after:?}");
    volume.close().unwrap();
    assert_sound(&region);
}

/// Blocks were promised to a move many times over, and whoever wrote meanwhile found none.
#[test]
fn who_writes_meanwhile_finds_room() {
    let (_zone, region) = made(128 << 20);
    let volume = open(&region, Durability::Operation);
    half_gone(&volume, 6000);
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, b"big", 0o644, RW).unwrap();
    let mut at = 0;
    while volume.stats().blocks_free > 11_500 {
        volume.write(&root, file.handle, at, &[1; 64 << 10]).unwrap();
        at += 64 << 10;
    }
    snapshots(&volume, 30);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            volume.collect_garbage().unwrap();
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            volume.write(&root, file.handle, 0, &[2; 1 << 20]).unwrap();
        }
    });
    volume.close().unwrap();
    assert_sound(&region);
}

/// What more snapshots share than may change at once stood before all that could move.
#[test]
fn what_does_not_move_is_not_in_the_way() {
    let (_zone, region) = made(96 << 20);
    let volume = open(&region, Durability::Operation);
    let half = |name: &str, count: u32| {
        for n in 0..count {
            write_file(&volume, ROOT_INO, &format!("{name} {n}"), &[n as u8; 60_000]).unwrap();
        }
        for n in (0..count).step_by(2) {
            volume.unlink(&Caller::root(), ROOT_INO, format!("{name} {n}").as_bytes()).unwrap();
        }
        volume.checkpoint().unwrap();
    };
    half("old", 170);
    snapshots(&volume, 66);
    half("new", 500);
    volume.take_snapshot("last", "").unwrap();
    let gained = volume.collect_garbage().unwrap();
    assert!(gained >= 5, "{gained} more segments are empty: {:?}", volume.stats());
    volume.close().unwrap();
    assert_sound(&region);
}

/// Hundreds of snapshots share what moves, in all of which somebody has a file open.
#[test]
fn what_hundreds_of_snapshots_share_moves() {
    const SNAPSHOTS: usize = 300;
    let (zone, region) = made(96 << 20);
    let volume = open(&region, Durability::Operation);
    let root = Caller::root();
    for n in 0..240 {
        write_file(&volume, ROOT_INO, &format!("file {n}"), &[n as u8; 60_000]).unwrap();
    }
    for n in (0..240).filter(|n| n % 4 != 0) {
        volume.unlink(&root, ROOT_INO, format!("file {n}").as_bytes()).unwrap();
    }
    // Written later than the snapshots before have it: its bytes were nobody's when these were taken.
    let late = volume.create(&root, ROOT_INO, b"late", 0o644, RW).unwrap();
    volume.fallocate(&root, late.handle, FallocateMode::empty(), 0, 40 << 12).unwrap();
    let mut kept = Vec::new();
    let mut handles = Vec::new();
    for n in 0..SNAPSHOTS {
        write_file(&volume, ROOT_INO, &format!("new {n}"), b"y").unwrap();
        if n % 10 == 5 {
            volume.write(&root, late.handle, (n as u64 / 10) << 12, &[n as u8; 4096]).unwrap();
        }
        let name = format!("s{n}");
        volume.take_snapshot(&name, "").unwrap();
        let file = volume.lookup(&root, root_of(&volume, &name), b"file 8").unwrap();
        handles.push(volume.open(&root, file.ino, OpenFlags::READ).unwrap());
        if n % 30 == 7 {
            kept.push((name, tree(&volume).unwrap()));
        }
    }
    let before = volume.stats();
    let gained = volume.collect_garbage().unwrap();
    let after = volume.stats();
    assert!(gained >= 3, "{gained} more segments are empty: {before:?} {after:?}");
    let mut bytes = vec![0; 60_000];
    for handle in handles {
        assert_eq!(volume.read(handle, 0, &mut bytes).unwrap(), 60_000);
        assert!(bytes.iter().all(|byte| *byte == 8));
        volume.release(handle).unwrap();
    }
    assert_kept(&volume, &kept);
    assert_sound_if_crashed(&zone);
    for n in 0..SNAPSHOTS {
        volume.remove_snapshot(&format!("s{n}")).unwrap();
    }
    volume.finish_removals().unwrap();
    volume.close().unwrap();
    assert_sound(&region);
}

/// Each snapshot's way to a block is written anew when it moves: with enough of them, more than the segments that get empty.
#[test]
fn what_would_cost_more_than_it_brings_stays() {
    let (_zone, region) = made(96 << 20);
    let volume = open(&region, Durability::Operation);
    for n in 0..400 {
        write_file(&volume, ROOT_INO, &format!("file {n}"), &[n as u8; 60_000]).unwrap();
    }
    for n in (0..400).filter(|n| n % 5 < 2) {
        volume.unlink(&Caller::root(), ROOT_INO, format!("file {n}").as_bytes()).unwrap();
    }
    snapshots(&volume, 1200);
    let written = || region.account().total().bytes;
    let (before, empty) = (written(), volume.stats().segments_empty);
    volume.collect_garbage().unwrap();
    let written = written() - before;
    let gained = volume.stats().segments_empty.saturating_sub(empty);
    assert!(written <= (gained + 2) * (8 << 20), "{written} bytes were written for {gained} segments");
    volume.close().unwrap();
    assert_sound(&region);
}

/// A volume that was cleaned up is not another one.
#[test]
fn nothing_changes_by_it() {
    let (_zone, region) = made(96 << 20);
    let volume = open(&region, Durability::Operation);
    half_gone(&volume, 4000);
    volume.take_snapshot("s", "").unwrap();
    assert!(!volume.has_changed_since("s").unwrap());
    assert!(volume.collect_garbage().unwrap() > 0);
    assert!(!volume.has_changed_since("s").unwrap());
    write_file(&volume, ROOT_INO, "new", b"y").unwrap();
    assert!(volume.has_changed_since("s").unwrap());
}
