//! Damage to the header of a half of the log: what had been promised is there, or is missed.

use crate::volumes::*;
use native::{Durability, MountOptions, Volume, check, preen};
use nvm::{Purpose, Region};
use vfs::{FileSystem, ROOT_INO};

/// Where the halves begin in a volume of 16 MiB, bytes (docs/format-native.md).
const HALVES: [u64; 2] = [8 * 4096, 264 * 4096];

/// A volume that was killed with files in its log, behind `checkpoints` of them.
fn killed(durability: Durability, checkpoints: usize) -> (nvm::Zone, Region, usize) {
    let (zone, region) = made(16 << 20);
    let options = MountOptions { durability, background: false, ..MountOptions::default() };
    let volume = Volume::open(region.clone(), &options).unwrap();
    let mut files = 0;
    for turn in 0..=checkpoints {
        for _ in 0..20 {
            write_file(&volume, ROOT_INO, &format!("file-{files}"), &[turn as u8; 3000]).unwrap();
            files += 1;
        }
        if turn < checkpoints {
            volume.checkpoint().unwrap();
        }
    }
    volume.fsync_inode(ROOT_INO).unwrap();
    volume.abandon();
    (zone, region, files)
}

fn has_all(region: &Region, files: usize) {
    let volume = Volume::open(region.clone(), &MountOptions::default()).unwrap();
    assert_eq!(volume.failure(), None);
    for n in 0..files {
        let name = format!("file-{n}");
        assert_eq!(read_file(&volume, ROOT_INO, &name).unwrap(), [(n / 20) as u8; 3000], "{name}");
    }
    volume.close().unwrap();
}

/// It was taken for that of a half nobody had used: all that was in the log was left out, and nobody said so.
#[test]
fn its_transactions_say_what_it_was() {
    for durability in [Durability::Operation, Durability::Fsync] {
        for checkpoints in 0..3 {
            let half = HALVES[checkpoints % 2];
            let damages = (0..28).map(|at| vec![(at, 1)]).chain([(0..64).map(|at| (at, 0xff)).collect()]);
            for (n, damage) in damages.enumerate() {
                let (_zone, region, files) = killed(durability, checkpoints);
                for (at, bits) in damage {
                    let byte = region.bytes(half + at, 1)[0];
                    region.store(Purpose::Journal, half + at, &[byte ^ bits]);
                }
                if n % 4 == 0 {
                    let found = check(&region, false).unwrap();
                    assert!(found.needs_recovery);
                    let [problem] = &found.problems[..] else { panic!("{:?}", found.problems) };
                    assert!(problem.what.contains("header of half") && !problem.with_loss, "{problem:?}");
                    let mended = preen(&region).unwrap();
                    assert!(mended.problems.iter().all(|problem| problem.repaired), "{:?}", mended.problems);
                }
                has_all(&region, files);
                assert_sound(&region);
            }
        }
    }
}

/// A transaction is missing, and nothing says any more whether it may be.
#[test]
fn what_is_missing_behind_it_is_told() {
    for durability in [Durability::Operation, Durability::Fsync] {
        let (_zone, region, _) = killed(durability, 0);
        region.store(Purpose::Journal, HALVES[0], &[0; 64]);
        // Its records are of 64 to 256 bytes and more: one in the middle.
        let at = HALVES[0] + 64 * 40;
        let bytes: Vec<u8> = region.bytes(at, 64).iter().map(|byte| byte ^ 0x5a).collect();
        region.store(Purpose::Journal, at, &bytes);
        let found = check(&region, false).unwrap();
        assert!(
            found.problems.iter().any(|problem| problem.what.contains("missing")),
            "{:?}",
            found.problems
        );
        let before = region.bytes(0, region.len() as usize).to_vec();
        assert!(preen(&region).unwrap().problems.iter().any(|problem| !problem.repaired));
        assert!(region.bytes(0, region.len() as usize) == before, "who preens drops nothing");
        check(&region, true).unwrap();
        assert_sound(&region);
    }
}

/// Epochs and mounts go on where nothing is changed, or nothing can be.
#[test]
fn many_mounts_later_it_is_found() {
    for durability in [Durability::Operation, Durability::Fsync] {
        let (_zone, region) = made(16 << 20);
        let options = MountOptions { durability, background: false, ..MountOptions::default() };
        for _ in 0..100 {
            Volume::open(region.clone(), &options).unwrap().abandon();
        }
        let volume = Volume::open(region.clone(), &options).unwrap();
        for n in 0..20 {
            write_file(&volume, ROOT_INO, &format!("file-{n}"), &[0; 3000]).unwrap();
        }
        volume.fsync_inode(ROOT_INO).unwrap();
        volume.abandon();
        let middle = HALVES[0] + 64 * 30;
        let whole = region.bytes(middle, 64).to_vec();
        region.store(Purpose::Journal, HALVES[0], &[0; 64]);
        region.store(Purpose::Journal, middle, &[0x5a; 64]);
        for _ in 0..100 {
            let volume = Volume::open(region.clone(), &options).unwrap();
            assert!(volume.failure().is_some(), "what is missing is missed at every mount");
            volume.abandon();
        }
        region.store(Purpose::Journal, middle, &whole);
        has_all(&region, 20);
    }
}

/// What a volume that was there before has left looks like transactions of this one.
#[test]
fn what_another_volume_left_is_none() {
    let (_zone, region, _) = killed(Durability::Operation, 1);
    let old = region.bytes(HALVES[1], 256 * 4096).to_vec();
    native::format(&region, &native::FormatOptions::default()).unwrap();
    region.store(Purpose::Journal, HALVES[1], &old);
    mount(&region, Durability::Operation).abandon();
    assert!(check(&region, false).unwrap().problems.is_empty());
    has_all(&region, 0);
}

/// A half that was never used has no header, and what a power cut left of one has nothing behind it.
#[test]
fn a_half_without_transactions_is_no_damage() {
    let (_zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    volume.abandon();
    for torn in [8, 32, 64] {
        region.store(Purpose::Journal, HALVES[0], &vec![0xa5; torn]);
        region.store(Purpose::Journal, HALVES[1], &vec![0; torn]);
        assert!(check(&region, false).unwrap().problems.is_empty());
    }
    has_all(&region, 0);
}
