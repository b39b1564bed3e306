//! Bitmaps and counts are right whatever is taken, freed and undone.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use vfs::{Caller, Error, Time};

use super::{free, free_inode, give_up, metadata, new_inode, pick, spared, take};
use crate::core::{group, inode};
use crate::scene::Scene;
use crate::superblock::ROOT;

/// All that has bitmaps of its own kind: without checksums, with either, with groups that were never used and short last groups.
pub(crate) const KINDS: [&[&str]; 6] = [
    &["-t", "ext2", "-b", "1024", "-I", "128", "-N", "2000"],
    &["-t", "ext3", "-b", "2048", "-g", "4096", "-N", "2000", "-J", "size=2"],
    &["-t", "ext4", "-b", "1024", "-g", "2048", "-N", "2000", "-O", "^metadata_csum,uninit_bg,^64bit"],
    &["-t", "ext4", "-b", "1024", "-N", "2000", "-J", "size=1"],
    &[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-g",
        "1024",
        "-N",
        "2000",
        "-O",
        "meta_bg,^resize_inode,^has_journal,^64bit",
    ],
    &["-t", "ext4", "-b", "4096", "-N", "2000", "-J", "size=4"],
];

fn all(test: impl Fn(&Scene)) {
    for options in KINDS {
        eprintln!("{options:?}");
        test(&Scene::new("31M", &[options, &["-E", "lazy_itable_init=1"]].concat(), 0));
    }
}

fn whole(runs: &[Range<u64>]) -> u64 {
    runs.iter().map(|run| run.end - run.start).sum()
}

/// Takes what is left, in runs of up to `most` blocks.
fn fill(scene: &Scene, most: u64) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    loop {
        match pick(scene.core(), 0, most) {
            Ok(run) => {
                assert!(run.start < run.end && run.end - run.start <= most);
                scene.change(|core| take(core, run.clone())).unwrap();
                runs.push(run);
            }
            Err(Error::NoSpace) => return runs,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn all_blocks_are_given_out_once_and_come_back() {
    all(|scene| {
        let (before, _) = scene.free();
        for most in [1, 7, 3000] {
            let runs = fill(scene, most);
            assert_eq!((whole(&runs), scene.free().0), (before, 0));
            let different: HashSet<u64> = runs.iter().cloned().flatten().collect();
            assert_eq!(different.len() as u64, before);
            scene.commit();
            for run in &runs {
                scene.change(|core| free(core, run.clone())).unwrap();
            }
            assert_eq!(scene.free().0, before);
            let early = pick(scene.core(), 0, 1);
            assert_eq!(early, Err(Error::NoSpace), "what frees them is not durable");
            scene.commit();
            let first = pick(scene.core(), 0, 1).unwrap();
            give_up(scene.core(), first.clone());
            assert_eq!(pick(scene.core(), 0, 1).as_ref(), Ok(&first), "where it was let go");
            give_up(scene.core(), first);
        }
        scene.fsck();
    });
}

#[test]
fn what_is_undone_has_not_been() {
    all(|scene| {
        let mine = pick(scene.core(), 3000, 50).unwrap();
        let other = pick(scene.core(), 3000, 10).unwrap();
        scene.change(|core| take(core, mine.clone())).unwrap();
        let (before, inodes) = scene.free();
        let failed = scene.change(|core| {
            free(core, mine.start + 5..mine.end - 5)?;
            take(core, other.clone())?;
            metadata(core, 0)?;
            new_inode(core, ROOT, true)?;
            new_inode(core, ROOT, false)?;
            Err::<(), _>(Error::TooBig)
        });
        assert_eq!((failed, scene.free()), (Err(Error::TooBig), (before, inodes)));
        give_up(scene.core(), other);
        let runs = fill(scene, 100);
        assert_eq!(whole(&runs), before);
        assert!(scene.core().space.take_freed().is_empty());
        for run in runs.into_iter().chain([mine]) {
            scene.change(|core| free(core, run.clone())).unwrap();
        }
        scene.fsck();
    });
}

/// Where they would be is remembered, once they are somewhere.
#[test]
fn inodes_of_a_group_that_was_not_begun_after_all_are_nowhere() {
    let seen = Cell::new(0);
    all(|scene| {
        let core = scene.core();
        let is_unused = |core: &_, number: u32| group::read(core, number).unwrap().inodes.unused;
        let Some(number) = (0..core.superblock.groups).find(|number| is_unused(core, *number)) else {
            return;
        };
        seen.set(seen.get() + 1);
        let first = number * core.superblock.inodes_per_group + 1;
        let begin = |core: &_| {
            while is_unused(core, number) {
                new_inode(core, ROOT, true)?;
            }
            inode::remains(core, first).map(drop)
        };
        let failed = scene.change(|core| begin(core).and(Err::<(), _>(Error::TooBig)));
        assert_eq!((failed, is_unused(core, number)), (Err(Error::TooBig), true));
        assert_eq!(inode::remains(core, first).err(), Some(Error::Stale));
        scene.change(|core| begin(core)).unwrap();
        assert!(inode::remains(core, first).is_ok());
    });
    assert!(seen.get() >= 3, "of kinds that know what was never used");
}

/// Or the directory that a new inode is for, or one that is used, would be zeroed.
#[test]
fn a_descriptor_by_which_a_directory_was_never_used_gives_out_nothing() {
    let seen = Cell::new(0);
    all(|scene| {
        let core = scene.core();
        let (first, per_group) = (group::read(core, 0).unwrap(), core.superblock.inodes_per_group);
        if core.superblock.groups == 1 {
            return;
        }
        let wrong = group::Group { unused_inodes: per_group - 1, ..first };
        scene.change(|core| group::write(core, 0, &wrong)).unwrap();
        if group::read(core, 0).unwrap().unused_inodes == first.unused_inodes {
            return;
        }
        seen.set(seen.get() + 1);
        let made = scene.change(|core| new_inode(core, ROOT, false)).unwrap();
        assert!(made > per_group, "{made}");
        assert!(core.met.damage.lock().first.contains("never used"));
        assert!(inode::read(core, ROOT).is_ok());
    });
    assert!(seen.get() >= 3, "of kinds that know what was never used");
}

#[test]
fn nothing_is_freed_that_no_file_has() {
    all(|scene| {
        let core = scene.core();
        let free_block = pick(core, 0, 1).unwrap();
        let table = group::read(core, 0).unwrap();
        for blocks in
            [0..1, free_block.clone(), table.inode_table - 1..table.inode_table + 1, 1 << 40..1 << 41]
        {
            let error = scene.change(|core| free(core, blocks.clone()));
            assert!(matches!(error, Err(Error::Corrupt(_))), "{blocks:?}");
        }
        assert!(core.space.is_fixed(core, &(table.blocks.block..table.blocks.block + 1)).unwrap());
        assert!(!core.space.is_fixed(core, &free_block).unwrap());
    });
}

#[test]
fn a_goal_is_met_and_runs_are_long() {
    all(|scene| {
        let core = scene.core();
        let first = pick(core, 9000, 64).unwrap();
        let next = pick(core, first.end, 64).unwrap();
        assert_eq!((first.end - first.start, next.start, next.end), (64, first.end, first.end + 64));
        // A hole that is too short is left for what fits.
        give_up(core, first.start + 8..first.start + 12);
        let long = pick(core, first.start + 8, 64).unwrap();
        assert_eq!(long.end - long.start, 64);
        assert_eq!(pick(core, first.start + 8, 4).unwrap(), first.start + 8..first.start + 12);
    });
}

#[test]
fn promises_are_kept() {
    all(|scene| {
        let core = scene.core();
        let (free_blocks, _) = scene.free();
        assert_eq!(core.space.promise(core, 0, free_blocks), Err(Error::NoSpace), "maps need some");
        let reserved = spared(core, &Caller::user(1000, 1000));
        assert_eq!(reserved, core.superblock.reserved_blocks);
        assert_eq!(core.space.promise(core, reserved, free_blocks - reserved), Err(Error::NoSpace));
        core.space.promise(core, reserved, free_blocks - reserved * 2).unwrap();
        core.space.release(free_blocks - reserved * 2);
        core.space.promise(core, 0, free_blocks - reserved).unwrap();
        core.space.release(free_blocks - reserved);
        core.space.promise(core, reserved, free_blocks / 5).unwrap();
        let mut taken = 0;
        while scene.change(|core| metadata(core, 0)).is_ok() {
            taken += 1;
        }
        let left = scene.free().0;
        assert!(taken > 0 && left >= free_blocks / 5);
        let given = pick(core, 0, u64::from(u32::MAX)).unwrap();
        core.space.release(free_blocks / 5);
        assert_eq!(core.space.promised(), 0);
        give_up(core, given);
        assert_eq!(whole(&fill(scene, 100)), left);
    });
}

#[test]
fn all_inodes_are_given_out_once_and_come_back() {
    all(|scene| {
        let (_, before) = scene.free();
        let mut files = HashSet::new();
        let mut make = |dir: bool| {
            let parent = files.iter().copied().max().unwrap_or(ROOT);
            scene.change(|core| new_inode(core, parent, dir)).map(|number| files.insert(number))
        };
        for _ in 0..before {
            assert!(make(false).unwrap());
        }
        assert_eq!((make(false), make(true)), (Err(Error::NoSpace), Err(Error::NoSpace)));
        assert_eq!(scene.free().1, 0);
        for number in files {
            scene.change(|core| free_inode(core, number, false)).unwrap();
            assert_eq!(inode::read(scene.core(), number).unwrap_err(), Error::Stale);
        }
        assert_eq!(scene.free().1, before);
        scene.fsck();
    });
}

#[test]
fn directories_are_spread_and_files_are_near() {
    let scene = Scene::new("64M", &["-t", "ext4", "-b", "1024", "-N", "4096", "-O", "^has_journal"], 0);
    let group_of = |number: u32| (number - 1) / scene.core().superblock.inodes_per_group;
    let make = |parent, is_dir| scene.change(|core| new_inode(core, parent, is_dir)).unwrap();
    let top: Vec<u32> = (0..16).map(|_| make(ROOT, true)).collect();
    let mut groups = BTreeMap::new();
    top.iter().for_each(|number| *groups.entry(group_of(*number)).or_insert(0) += 1);
    assert!(groups.len() >= 6 && groups.values().all(|count| *count <= 4), "{groups:?}");
    for parent in top {
        let (dir, file) = (make(parent, true), make(parent, false));
        assert_eq!([group_of(dir), group_of(file)], [group_of(parent); 2]);
    }
}

#[test]
fn inodes_are_written_as_they_are_read() {
    all(|scene| {
        let core = scene.core();
        let wide = core.superblock.inode_bytes > 128;
        let mut made = Vec::new();
        for n in 0..40u32 {
            let at = |sec| Time { sec, nsec: if wide { n * 1000 } else { 0 } };
            let inode = scene.change(|core| {
                let number = new_inode(core, ROOT, false)?;
                let mut inode =
                    inode::new(core, number, 0o100640, 70_000 + n, 80_000 + n, at(1_700_000_000))?;
                inode.links = 1;
                inode.size = if n % 3 == 0 { u64::from(n) << 28 } else { u64::from(n) };
                inode.times.access = at(if wide { 9_999_999_999 } else { 2_000_000_000 });
                inode.times.modify = at(-1);
                inode.tail = vec![0; inode.tail_bytes].into();
                if let Some(byte) = inode.tail.last_mut() {
                    *byte = 1;
                }
                inode::write(core, &inode)?;
                Ok(inode)
            });
            made.push(inode.unwrap());
        }
        scene.commit();
        let mut names = Vec::new();
        for inode in made {
            let mut found = inode::read(core, inode.number).unwrap();
            if !wide {
                found.times.birth = inode.times.birth;
            }
            assert_eq!(format!("{found:?}"), format!("{inode:?}"));
            names.push(format!("ln <{0}> name{0}", inode.number));
        }
        scene.fsck_after(&names);
    });
}

/// What a group's bitmap says wrongly costs the file system that group, and is told to whoever has the disk next; others give out what they have.
#[test]
fn a_group_whose_bitmap_is_damaged_is_passed_over() {
    let options = ["-t", "ext4", "-b", "1024", "-g", "2048", "-N", "2000", "-J", "size=1"];
    for inodes in [false, true] {
        let image = Scene::new("31M", &options, 0);
        let group = group::read(image.core(), 0).unwrap();
        let damaged = if inodes { group.inodes.block } else { group.blocks.block };
        let mut bytes = image.image();
        bytes[damaged as usize * 1024 + 10] ^= 1;
        let scene = Scene::of(bytes);
        let (free, _) = scene.free();
        let number = scene.change(|core| new_inode(core, ROOT, false)).unwrap();
        let here = (number - 1) / scene.core().superblock.inodes_per_group;
        assert_eq!(here > 0, inodes, "inode {number} of group {here}");
        let left = whole(&fill(&scene, 100));
        assert_eq!(left, free - if inodes { 0 } else { group.free_clusters });
        assert_eq!(scene.volume.damage().count, 1, "{:?}", scene.volume.damage());
        scene.volume.note_damage();
        assert!(scene.volume.has_errors().unwrap());
    }
}
