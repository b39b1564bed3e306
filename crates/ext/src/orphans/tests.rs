//! Orphans, ours and the kernel's.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::sync::Arc;

use disk::Disk;
use vfs::{Error, Time};

use super::{Told, first, insert, listed as listed_inode, reclaim, remove, remove_some};
use crate::core::{alloc, inode};
use crate::scene::Scene;
use crate::superblock::ROOT;
use crate::support::random::Random;
use crate::support::{Image, can_mount};
use crate::{directory, map, xattr};

fn listed(scene: &Scene) -> Vec<u32> {
    let mut all = Vec::new();
    let mut next = first(scene.core()).unwrap();
    while next != 0 {
        all.push(next);
        next = inode::read(scene.core(), next).unwrap().next_orphan;
    }
    all
}

#[test]
fn inodes_join_and_leave_the_list_anywhere() {
    for options in [&["-t", "ext2", "-b", "1024"][..], &["-t", "ext4", "-b", "4096"]] {
        let random = &mut Random::new(1);
        let scene = Scene::new("8M", options, 0);
        let mut expected = Vec::new();
        for _ in 0..500 {
            if expected.is_empty() || expected.len() < 60 && random.below(2) == 0 {
                let number = scene
                    .change(|core| {
                        let number = alloc::new_inode(core, ROOT, false)?;
                        let mut inode = inode::new(core, number, 0o100600, 0, 0, Time::now())?;
                        insert(core, &mut inode)?;
                        if number % 2 == 0 {
                            xattr::set(core, &mut inode, b"user.large", Some(&[7; 600]))?;
                        }
                        inode::write(core, &inode)?;
                        Ok(number)
                    })
                    .unwrap();
                expected.insert(0, number);
            } else {
                let number = expected.remove(random.below(expected.len() as u64) as usize);
                scene.change(|core| remove_some(core, inode::read(core, number)?, Told::InList)).unwrap();
                assert_eq!(inode::read(scene.core(), number).unwrap_err(), Error::Stale);
            }
            assert_eq!(listed(&scene), expected);
        }
        let stranger = scene.change(|core| {
            let mut inode = inode::read(core, ROOT)?;
            remove(core, &mut inode)
        });
        assert!(matches!(stranger, Err(Error::Corrupt(_))), "{stranger:?}");
        // What is in the list when it is opened again is removed.
        let again = Scene::of(scene.image());
        assert_eq!(again.volume.reclaim_orphans(), Ok(expected.len() as u64));
        assert_eq!(again.volume.reclaim_orphans(), Ok(0));
        assert_eq!(listed(&again), []);
        again.fsck();
    }
}

/// A list that leads in a circle, or to what is no orphan's, is damage, and no loop.
#[test]
fn a_damaged_list_comes_to_an_end() {
    let scene = Scene::new("8M", &["-t", "ext2", "-b", "1024"], 2);
    let (one, other) = (scene.file(0), scene.file(1));
    scene
        .change(|core| {
            for number in [one, other] {
                let mut inode = inode::read(core, number)?;
                insert(core, &mut inode)?;
                inode.next_orphan = if number == one { other } else { one };
                inode::write(core, &inode)?;
            }
            Ok(())
        })
        .unwrap();
    let found = scene.change(|core| remove(core, &mut inode::read(core, ROOT)?));
    assert!(matches!(found, Err(Error::Corrupt(_))), "{found:?}");
    assert!(scene.volume.reclaim_orphans().is_err() || listed(&scene).is_empty());
}

/// What is wrong with one of the list concerns that one alone, wherever it stands: without a name it keeps its place, with one it leaves the list.
#[test]
fn damage_in_one_leaves_the_others() {
    for links in [0, 1] {
        let scene = Scene::new("8M", &["-t", "ext2", "-b", "1024"], 3);
        let numbers = [0, 1, 2].map(|n| scene.file(n));
        for (n, number) in numbers.into_iter().enumerate() {
            scene
                .change(|core| {
                    let mut inode = inode::read(core, number)?;
                    inode.links = links;
                    if links == 0 {
                        directory::remove(core, &inode::read(core, ROOT)?, n.to_string().as_bytes())?;
                    }
                    if n == 1 {
                        let run = alloc::pick(core, 0, 1)?;
                        alloc::take(core, run.clone())?;
                        map::insert(core, &mut inode, 0, run.start, 1, true)?;
                        // The block is in use, and its group's bitmap says that it is not.
                        alloc::free(core, run)?;
                    }
                    insert(core, &mut inode)?;
                    inode::write(core, &inode)
                })
                .unwrap();
        }
        let left = if links == 0 { vec![numbers[1]] } else { vec![] };
        assert_eq!(scene.volume.reclaim_orphans(), Ok(2));
        assert_eq!(listed(&scene), left);
        assert!(
            crate::info(&Arc::new(Disk::memory(scene.image()))).unwrap().has_errors,
            "whoever has it next is told"
        );
        assert_eq!(scene.volume.reclaim_orphans(), Ok(0));
        assert_eq!(listed(&scene), left);
    }
}

/// The image of a file system on which the kernel has open files without names, as a crash would leave it.
fn left_by_the_kernel(options: &[&str]) -> Vec<u8> {
    let image = Image::make("16M", options);
    let mounted = image.mount("");
    let mut open = Vec::new();
    for n in 0..20 {
        let path = mounted.dir.join(n.to_string());
        let mut file = File::create_new(&path).unwrap();
        file.write_all(&vec![n as u8; n * 5000]).unwrap();
        if n % 2 == 0 {
            rustix::fs::fsetxattr(&file, "user.a", &[b'v'; 500], rustix::fs::XattrFlags::empty()).unwrap();
        }
        open.push(file);
    }
    fs::create_dir(mounted.dir.join("dir")).unwrap();
    open.push(File::open(mounted.dir.join("dir")).unwrap());
    fs::remove_dir(mounted.dir.join("dir")).unwrap();
    for n in 0..15 {
        fs::remove_file(mounted.dir.join(n.to_string())).unwrap();
    }
    rustix::fs::syncfs(&open[0]).unwrap();
    image.bytes()
}

#[test]
fn what_the_kernel_left_is_removed() {
    if !can_mount() {
        return;
    }
    for options in [
        &["-t", "ext3", "-b", "1024"][..],
        &["-t", "ext4", "-b", "4096"],
        &["-t", "ext4", "-b", "4096", "-O", "orphan_file"],
        &["-t", "ext4", "-b", "1024", "-O", "orphan_file,^metadata_csum"],
    ] {
        eprintln!("{options:?}");
        let image = Image::of(&left_by_the_kernel(options));
        // The journal is replayed as whoever attaches the disk does it.
        crate::recover(&image.disk(false)).unwrap();
        let scene = Scene::of(image.bytes());
        assert!(scene.volume.has_orphans());
        assert_eq!(scene.volume.reclaim_orphans(), Ok(16));
        scene.fsck();
        let again = Scene::of(scene.image());
        assert!(!again.volume.has_orphans());
        assert_eq!(again.volume.reclaim_orphans(), Ok(0));
        let left: BTreeSet<u32> = (15..20).map(|n| again.file(n)).collect();
        assert_eq!(left.len(), 5);
    }
}

/// What has more blocks than one operation should free goes in several, removed or cut.
#[test]
fn large_files_go_in_parts() {
    for options in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext2", "-b", "1024"]] {
        let scene = Scene::new("160M", options, 2);
        let before = scene.free().0;
        for (n, links) in [(0, 0), (1, 1)] {
            let number = scene.file(n);
            let mut at = 0;
            while at < 70_000 {
                let run = alloc::pick(scene.core(), 0, 70_000 - at).unwrap();
                let blocks = run.end - run.start;
                scene
                    .change(|core| {
                        let mut inode = inode::read(core, number)?;
                        alloc::take(core, run.clone())?;
                        map::insert(core, &mut inode, at, run.start, blocks, true)?;
                        inode.size = if links == 0 { (at + blocks) * 1024 } else { 3000 };
                        inode::write(core, &inode)
                    })
                    .unwrap();
                at += blocks;
            }
            scene
                .change(|core| {
                    let mut inode = inode::read(core, number)?;
                    if links == 0 {
                        inode.links = 0;
                        directory::remove(core, &inode::read(core, ROOT)?, b"0")?;
                    }
                    insert(core, &mut inode)?;
                    inode::write(core, &inode)
                })
                .unwrap();
        }
        let first = scene.change(|core| reclaim(core, listed_inode(core, scene.file(1))?, true));
        assert_eq!(first, Ok(false), "one operation is not enough");
        // Cut short there, it is gone on with.
        let again = Scene::of(scene.image());
        assert_eq!(again.volume.reclaim_orphans(), Ok(2));
        again.commit();
        assert_eq!(again.free().0, before - 3);
        again.fsck();
    }
}

/// What has more runs than one operation should free is in the list from the first of several on, whoever took its last name.
#[test]
fn a_file_in_many_runs_joins_the_list() {
    for (told, is_cut) in [(Told::Nowhere, false), (Told::Nowhere, true), (Told::InFile, false)] {
        let scene = Scene::new("32M", &["-t", "ext4", "-b", "1024"], 1);
        let (number, before) = (scene.file(0), scene.free().0);
        let mut places = Vec::new();
        while places.len() < 5000 {
            places.extend(alloc::pick(scene.core(), 0, 1000).unwrap().step_by(2));
        }
        scene
            .change(|core| {
                let mut inode = inode::read(core, number)?;
                for (n, &place) in places.iter().enumerate() {
                    alloc::take(core, place..place + 1)?;
                    map::insert(core, &mut inode, n as u64, place, 1, true)?;
                }
                inode.size = places.len() as u64 * 1024;
                inode::write(core, &inode)
            })
            .unwrap();
        let is_done = scene.change(|core| {
            directory::remove(core, &inode::read(core, ROOT)?, b"0")?;
            let inode = inode::Inode { links: 0, ..inode::read(core, number)? };
            remove_some(core, inode, told)
        });
        assert_eq!(is_done, Ok(false), "one operation is not enough");
        assert_eq!(listed(&scene), if told == Told::Nowhere { vec![number] } else { vec![] });
        if is_cut {
            let again = Scene::of(scene.image());
            assert_eq!(again.volume.reclaim_orphans(), Ok(1));
            again.commit();
            assert_eq!(again.free().0, before);
            again.fsck();
        } else {
            match told {
                Told::InFile => assert_eq!(scene.volume.reclaim_one(number, false, |_| Ok(())), Ok(true)),
                _ => scene.volume.remove_unnamed(&scene.volume.files.get(number)).unwrap(),
            }
            assert_eq!(listed(&scene), []);
            scene.commit();
            assert_eq!(scene.free().0, before);
        }
    }
}
