//! The four ways to log bytes (Shortcut-JFS, Table I): each writes what it says. That each keeps the contract is
//! `torture.rs`'s.

use crate::volumes;
use crate::volumes::{RW, made};
use native::{Durability, Journaling, MountOptions, Volume};
use nvm::{Purpose, Region};
use vfs::{Caller, FileSystem, ROOT_INO, Time};

fn open(region: &Region, durability: Durability, journaling: Journaling) -> Volume {
    let options = MountOptions { durability, journaling, background: false, ..MountOptions::default() };
    Volume::open(region.clone(), &options).unwrap()
}

/// Bytes that reached NVM with each purpose: for the writes, and with the checkpoint behind them.
fn accounted(region: &Region, journaling: Journaling, parts: &[(u64, usize)]) -> [Vec<u64>; 2] {
    let volume = open(region, Durability::Operation, journaling);
    let root = Caller::root();
    let name = journaling.to_string();
    // What is written comes a second later than what was there, whatever the clock does meanwhile.
    let clock = |sec| Time::stop(Some(Time { sec, nsec: 0 }));
    clock(1_700_000_000);
    let file = volume.create(&root, ROOT_INO, name.as_bytes(), 0o644, RW).unwrap();
    volume.write(&root, file.handle, 0, &[1; 64 << 10]).unwrap();
    volume.checkpoint().unwrap();
    let before = region.account();
    let since = || {
        let now = region.account();
        Purpose::ALL.into_iter().map(|purpose| now.of(purpose).bytes - before.of(purpose).bytes).collect()
    };
    clock(1_700_000_001);
    for (offset, length) in parts {
        volume.write(&root, file.handle, *offset, &vec![2; *length]).unwrap();
    }
    let written = since();
    volume.checkpoint().unwrap();
    let found = [written, since()];
    volume.release(file.handle).unwrap();
    volume.close().unwrap();
    Time::stop(None);
    found
}

/// Bytes that reached NVM: data, log, rewritten at or for the checkpoint.
fn written(region: &Region, journaling: Journaling, parts: &[(u64, usize)]) -> [u64; 3] {
    let [written, _] = accounted(region, journaling, parts);
    let of = |purpose| written[Purpose::ALL.iter().position(|other| *other == purpose).unwrap()];
    [of(Purpose::Data), of(Purpose::Journal), of(Purpose::Checkpoint)]
}

/// The example of Shortcut-JFS §III.A, with blocks of 4 KiB instead of 1 KiB: a write of 3200 bytes over two blocks, 2400 in
/// the one and 800 in the other. A block that is logged counts as data where it stays, as log and checkpoint where not.
#[test]
fn each_writes_what_it_says() {
    let (_zone, region) = made(32 << 20);
    // Transaction and item headers, the inode's object, the line that a record ends in.
    let around = 192;
    let spans = |found: u64, bytes: u64| (bytes..=bytes + around).contains(&found);
    let across = &[(4096 + 1696, 3200)];

    let [data, log, again] = written(&region, Journaling::Block, across);
    assert!(data == 0 && spans(log, 8192) && again == 8192, "block: {data} {log} {again}");
    let [data, log, again] = written(&region, Journaling::Difference, across);
    assert!(data == 0 && spans(log, 3200) && again == 3200, "diff: {data} {log} {again}");
    let [data, log, again] = written(&region, Journaling::BlockSwitch, across);
    assert!(data == 8192 && spans(log, 0) && again == 0, "block-switch: {data} {log} {again}");
    let [data, log, again] = written(&region, Journaling::Adaptive, across);
    assert!(data == 4096 && spans(log, 800) && again == 800, "adaptive: {data} {log} {again}");
}

/// Half a block is as many bytes either way: a difference where there are others, a block where the file becomes longer.
#[test]
fn half_a_block_is_appended_as_a_block() {
    let (_zone, region) = made(32 << 20);
    let end = 64 << 10;
    let [data, _, again] = written(&region, Journaling::Adaptive, &[(end - 4096, 2048)]);
    assert_eq!((data, again), (0, 2048), "over others");
    let (_zone, region) = made(32 << 20);
    let [data, _, again] = written(&region, Journaling::Adaptive, &[(end, 2048), (end + 2048, 2047)]);
    assert_eq!((data, again), (4096, 2047), "less than half is a difference");
    let (_zone, region) = made(32 << 20);
    let [data, _, again] = written(&region, Journaling::Adaptive, &[(end, 2048), (end + 2048, 2048)]);
    assert_eq!((data, again), (8192, 0), "behind the end");
}

/// Adaptive logging writes no more than the best of the others, whatever the size, all purposes counted; with the checkpoint that follows no
/// more than 3 % above it.
#[test]
fn adaptive_is_the_least_of_all() {
    for length in [64, 256, 1024, 2048, 2049, 3000, 4096, 8192, 16_384] {
        let offset = if length < 4096 { 8192 + 17 } else { 8192 };
        let totals = |journaling| {
            // Each on a new volume: what allocating takes depends on what was before.
            let (_zone, region) = made(24 << 20);
            accounted(&region, journaling, &[(offset, length)]).map(|of| of.iter().sum::<u64>())
        };
        let others = Journaling::ALL.into_iter().filter(|other| *other != Journaling::Adaptive);
        let others: Vec<_> = others.map(totals).collect();
        let adaptive = totals(Journaling::Adaptive);
        let least = |at: usize| others.iter().map(|totals| totals[at]).min().unwrap();
        // At half a block, twice a difference and once a block are the same but for their headers, and for what a checkpoint says of a block
        // that is new.
        let is_least = adaptive[0] <= least(0) + 64 && adaptive[1] <= least(1) * 103 / 100;
        assert!(is_least, "{length} bytes: {adaptive:?}, and the others {others:?}");
    }
}

/// Two blocks side by side, the first of them newer than the snapshot: a write over both changed the second where the
/// snapshot has it.
#[test]
fn a_run_of_blocks_may_be_of_two_ages() {
    for journaling in Journaling::ALL {
        let (_zone, region) = made(24 << 20);
        let volume = open(&region, Durability::Operation, journaling);
        let root = Caller::root();
        let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap();
        // A gap before each block of the file, and no room elsewhere.
        let gaps = volume.create(&root, ROOT_INO, b"gaps", 0o644, RW).unwrap();
        for index in 0..200 {
            volume.write(&root, gaps.handle, index * 4096, &[7; 4096]).unwrap();
            volume.write(&root, file.handle, index * 4096, &[1; 4096]).unwrap();
        }
        let other = volume.create(&root, ROOT_INO, b"other", 0o644, RW).unwrap();
        let mut end = 0;
        while let Ok(written) = volume.write(&root, other.handle, end, &[8; 16 << 10]) {
            end += written as u64;
        }
        volume.release(gaps.handle).unwrap();
        volume.unlink(&root, ROOT_INO, b"gaps").unwrap();
        volume.close().unwrap();
        drop(volume);
        // Opened again, so that the gaps are what is given out next.
        let volume = open(&region, Durability::Operation, journaling);
        let handle = |name| volume.open(&root, volumes::ino(&volume, name), RW).unwrap();
        let (handle, other) = (handle("file"), handle("other"));
        volume.take_snapshot("kept", "").unwrap();
        let then = volumes::tree(&volume).unwrap();
        for index in (0..40).step_by(2) {
            // One gap to the other file, the next, which lies before block index + 1 of this one, to block index.
            volume.write(&root, other, index * 4096, &[9; 4096]).unwrap();
            volume.write(&root, handle, index * 4096, &[2; 4096]).unwrap();
        }
        for index in 0..40 {
            volume.write(&root, handle, index * 4096, &[3; 8192]).unwrap();
        }
        volume.release(handle).unwrap();
        volume.close().unwrap();
        drop(volume);
        native::roll_back(&region, "kept", false).unwrap();
        let volume = open(&region, Durability::Operation, journaling);
        let now = volumes::tree(&volume).unwrap();
        assert_eq!(volumes::difference(&now, &then), None, "{journaling}");
    }
}
