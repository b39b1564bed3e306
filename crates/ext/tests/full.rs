//! Disks that are nearly full: what is there can be used, to the last blocks, and what is refused has changed nothing.

use std::sync::Arc;

use crate::support::Image;
use disk::Disk;
use ext::{Options, Room, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, Error, FallocateMode, FileSystem, Handle, OpenFlags, ROOT_INO, SetAttr, XattrMode};

const MIB: usize = 1 << 20;
/// Blocks that may be left: what a map may need for one more.
const LEFT: u64 = 8;

fn volume(disk: &Arc<Disk>, options: Options) -> Volume {
    let zone = Zone::anonymous(40 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(32 << 20)).unwrap();
    ext::attach(&region, disk).unwrap();
    Volume::mount(&region, disk.clone(), &options).unwrap()
}

fn disk(kind: &str) -> Arc<Disk> {
    let image = Image::make("32M", &["-t", kind, "-b", "4096", "-m", "0"]);
    Arc::new(Disk::memory(image.bytes()))
}

fn create(volume: &Volume, name: &str) -> Handle {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    volume.create(&Caller::root(), ROOT_INO, name.as_bytes(), 0o644, flags).unwrap().handle
}

/// Takes all that is left; the file that has it, and how much that is.
fn fill(volume: &Volume) -> (Handle, u64) {
    let filler = create(volume, "filler");
    let mut filled = 0;
    for piece in [MIB, 4096, 1] {
        while let Ok(some) = volume.write(&Caller::root(), filler, filled, &vec![1; piece]) {
            filled += some as u64;
        }
    }
    volume.syncfs().unwrap();
    (filler, filled)
}

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|n| ((n + seed) / 4096 * 7 + n) as u8).collect()
}

fn detached(volume: Volume, disk: &Arc<Disk>) -> Volume {
    volume.detach().unwrap();
    drop(volume);
    let mut image = vec![0; disk.bytes() as usize];
    disk.read(disk::Purpose::Data, 0, &mut image).unwrap();
    Image::of(&image).fsck();
    Volume::open(disk.clone(), &Options::default()).unwrap()
}

fn is(volume: &Volume, name: &str, expected: &[u8]) {
    let attr = volume.lookup(&Caller::root(), ROOT_INO, name.as_bytes()).unwrap();
    assert_eq!(attr.size, expected.len() as u64, "{name}");
    let handle = volume.open(&Caller::root(), attr.ino, OpenFlags::READ).unwrap();
    let mut found = vec![0; expected.len()];
    volume.read(handle, 0, &mut found).unwrap();
    assert!(found == expected, "{name}");
}

/// A write of a megabyte was refused as a whole as long as less than two were free.
#[test]
fn what_was_left_could_not_be_used_by_large_writes() {
    for (kind, sync_in_nvm) in [("ext4", true), ("ext4", false), ("ext2", true)] {
        let disk = disk(kind);
        let volume = volume(&disk, Options { sync_in_nvm, ..Options::default() });
        let handle = create(&volume, "file");
        let data = bytes(0, 33 * MIB);
        let mut done = 0;
        let error = loop {
            match volume.write(&Caller::root(), handle, done as u64, &data[done..done + MIB]) {
                Ok(some) => done += some,
                Err(error) => break error,
            }
            volume.fsync(handle, false).unwrap();
        };
        assert_eq!(error, Error::NoSpace);
        let space = volume.statfs().unwrap();
        assert!(space.blocks_free <= LEFT, "{kind}: {} blocks are left", space.blocks_free);
        // Without a change of what is there.
        assert_eq!(volume.write(&Caller::root(), handle, done as u64, &data[..MIB]), Err(Error::NoSpace));
        volume.release(handle).unwrap();
        is(&detached(volume, &disk), "file", &data[..done]);
    }
}

/// Several who filled a disk together were told that it was full while there was room for what all of them had.
#[test]
fn many_who_fill_a_disk_found_no_room_that_there_was() {
    const WRITERS: usize = 4;
    let disk = disk("ext4");
    let volume = volume(&disk, Options::default());
    let handles: Vec<_> = (0..WRITERS).map(|n| create(&volume, &format!("file-{n}"))).collect();
    let space = volume.statfs().unwrap();
    let each = (space.blocks_free - 20 * WRITERS as u64) as usize * 4096 / WRITERS / 4096 * 4096;
    std::thread::scope(|scope| {
        for (n, handle) in handles.iter().enumerate() {
            let volume = &volume;
            scope.spawn(move || {
                let data = bytes(n, each);
                let mut done = 0;
                while done < each {
                    let end = each.min(done + MIB / 2);
                    done += volume.write(&Caller::root(), *handle, done as u64, &data[done..end]).unwrap();
                }
                volume.fsync(*handle, false).unwrap();
            });
        }
    });
    for handle in handles {
        volume.release(handle).unwrap();
    }
    let plain = detached(volume, &disk);
    for n in 0..WRITERS {
        is(&plain, &format!("file-{n}"), &bytes(n, each));
    }
}

/// What fit of a large write to the end of a file, step by step, had others' bytes in between.
#[test]
fn what_is_appended_to_a_full_disk_stays_together() {
    (0..24).for_each(|round| append_to_a_full_disk(1 + round % 6));
}

fn append_to_a_full_disk(leave: u64) {
    const WRITERS: usize = 4;
    let disk = disk("ext4");
    let volume = volume(&disk, Options::default());
    let filler = create(&volume, "filler");
    let mut filled = 0;
    while volume.statfs().unwrap().blocks_free * 4096 > leave * MIB as u64 {
        filled += volume.write(&Caller::root(), filler, filled, &[1; 64 << 10]).unwrap() as u64;
        volume.fsync(filler, false).unwrap();
    }
    volume.release(filler).unwrap();
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::APPEND;
    let handle = volume.create(&Caller::root(), ROOT_INO, b"log", 0o644, flags).unwrap().handle;
    // Each write has a number of its own, all over it.
    let written: Vec<(u32, usize)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WRITERS as u32)
            .map(|writer| {
                let volume = &volume;
                let append = move |number: u32| {
                    let data = number.to_le_bytes().repeat(MIB / 8);
                    volume.write(&Caller::root(), handle, 0, &data).ok().map(|written| (number, written))
                };
                scope.spawn(move || (1..100).map_while(|n| append(writer << 16 | n)).collect::<Vec<_>>())
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    volume.release(handle).unwrap();
    let size = volume.lookup(&Caller::root(), ROOT_INO, b"log").unwrap();
    let handle = volume.open(&Caller::root(), size.ino, OpenFlags::READ).unwrap();
    let mut found = vec![0; size.size as usize];
    volume.read(handle, 0, &mut found).unwrap();
    let numbers: Vec<[u8; 4]> = found.chunks_exact(4).map(|number| number.try_into().unwrap()).collect();
    let runs: Vec<(u32, usize)> =
        numbers.chunk_by(|a, b| a == b).map(|run| (u32::from_le_bytes(run[0]), run.len() * 4)).collect();
    assert_eq!(runs.len(), written.len());
    assert!(written.iter().all(|write| runs.contains(write)), "{written:?}, but there are {runs:?}");
}

/// What has its blocks needs no room to be written over: nor where the map has to be split for what was allocated and never written.
#[test]
fn what_a_file_has_is_written_over_on_a_full_disk() {
    const ROOMS: [Option<Room>; 2] = [None, Some(Room { frames: 40, half_bytes: 256 << 10 })];
    for (kind, room) in [("ext4", ROOMS[0]), ("ext4", ROOMS[1]), ("ext2", ROOMS[0])] {
        let disk = disk(kind);
        let zone = Zone::anonymous(40 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("disk", VolumeKind::Ext, Some(32 << 20)).unwrap();
        ext::attach_within(&region, &disk, room).unwrap();
        let volume = Volume::mount(&region, disk.clone(), &Options::default()).unwrap();
        let root = Caller::root();
        let allocated = create(&volume, "allocated");
        let there = 8 * MIB;
        let is_allocated =
            volume.fallocate(&root, allocated, FallocateMode::empty(), 0, there as u64).is_ok();
        let written = create(&volume, "written");
        let mut data = bytes(1, 4 * MIB);
        assert_eq!(volume.write(&root, written, 0, &data).unwrap(), data.len());
        volume.fsync(written, false).unwrap();
        let (filler, filled) = fill(&volume);
        // Every other block, so that each is a piece of its own in the map.
        let mut expected = vec![0; if is_allocated { there } else { 0 }];
        for at in (0..expected.len()).step_by(8192) {
            expected[at..at + 4096].copy_from_slice(&bytes(at, 4096));
            assert_eq!(
                volume.write(&root, allocated, at as u64, &expected[at..at + 4096]),
                Ok(4096),
                "{kind} at {at}"
            );
        }
        for at in (0..data.len()).step_by(3 * 4096) {
            data[at + 7..at + 9].fill(7);
            assert_eq!(volume.write(&root, written, at as u64 + 7, &[7; 2]), Ok(2));
        }
        for handle in [allocated, written] {
            volume.fsync(handle, false).unwrap();
        }
        for handle in [allocated, written, filler] {
            volume.release(handle).unwrap();
        }
        let plain = detached(volume, &disk);
        is(&plain, "written", &data);
        is(&plain, "allocated", &expected);
        is(&plain, "filler", &vec![1; filled as usize]);
    }
}

/// Preallocated room behind the end of a file was refused where its extent had to be split: nothing there may be zeros that the map knows of.
#[test]
fn what_was_allocated_behind_the_end_is_written_on_a_full_disk() {
    for sync_in_nvm in [true, false] {
        for (synced_each, piece) in [(true, 4096), (false, 4096), (true, 3000), (false, 3000)] {
            let disk = disk("ext4");
            let volume = volume(&disk, Options { sync_in_nvm, ..Options::default() });
            let root = Caller::root();
            let allocated = create(&volume, "allocated");
            let there = MIB;
            volume.fallocate(&root, allocated, FallocateMode::KEEP_SIZE, 0, there as u64).unwrap();
            let (filler, filled) = fill(&volume);
            // What is left others take, one block each.
            let mut others = 0;
            while volume.mkdir(&root, ROOT_INO, format!("other-{others}").as_bytes(), 0o755).is_ok() {
                others += 1;
            }
            assert_eq!(volume.statfs().unwrap().blocks_free, 0);
            let mut expected = vec![0; there];
            let last = there - 8192 + piece;
            for at in (0..there).step_by(8192) {
                expected[at..at + piece].copy_from_slice(&bytes(at, piece));
                let written = volume.write(&root, allocated, at as u64, &expected[at..at + piece]);
                assert_eq!(written, Ok(piece), "at {at}");
                if synced_each {
                    volume.fsync(allocated, false).unwrap();
                }
            }
            volume.fsync(allocated, false).unwrap();
            for handle in [allocated, filler] {
                volume.release(handle).unwrap();
            }
            let plain = detached(volume, &disk);
            is(&plain, "allocated", &expected[..last]);
            is(&plain, "filler", &vec![1; filled as usize]);
        }
    }
}

/// On a mount the kernel's flusher brings what a user wrote, in root's name: any user could have all of the blocks that are kept for
/// root. And names, attributes and targets took of them, whoever made them.
#[test]
fn what_is_kept_for_root_is_not_for_users() {
    for kind in ["ext4", "ext2"] {
        let image = Image::make("32M", &["-t", kind, "-b", "4096", "-m", "25", "-N", "4096"]);
        let disk = Arc::new(Disk::memory(image.bytes()));
        let volume = volume(&disk, Options::default());
        let (root, user) = (&Caller::root(), &Caller::user(1000, 1000));
        let open = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        volume.setattr(root, ROOT_INO, &open, None).unwrap();
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let file = volume.create(user, ROOT_INO, b"file", 0o644, flags).unwrap().handle;
        let flusher = &Caller { from_cache: true, ..Caller::root() };
        let mut end = 0;
        for piece in [MIB, 4096] {
            while let Ok(some) = volume.write(flusher, file, end, &vec![1; piece]) {
                end += some as u64;
            }
        }
        assert_eq!(volume.fsync(file, false), Ok(()));
        let kept = 32 * MIB as u64 / 4096 / 4;
        let free = volume.statfs().unwrap().blocks_free;
        assert!((kept..kept + kept / 8).contains(&free), "{kind}: {free} blocks are free, {kept} are kept");
        // What is in use can be written over.
        assert_eq!(volume.write(flusher, file, 0, &[2; 4096]), Ok(4096));
        let mut made = 0;
        for n in 0..500 {
            let (dir, link, other) = (format!("dir{n}"), format!("link{n}"), format!("file{n}"));
            let other = volume.mknod(user, ROOT_INO, other.as_bytes(), 0o100_644, 0).ok();
            let attribute = |ino| volume.setxattr(user, ino, b"user.a", &[3; 900], XattrMode::Either);
            let done = [
                volume.mkdir(user, ROOT_INO, dir.as_bytes(), 0o755).is_ok(),
                volume.symlink(user, ROOT_INO, link.as_bytes(), &[b't'; 900]).is_ok(),
                other.is_some_and(|other| attribute(other.ino).is_ok()),
            ];
            made += done.iter().filter(|done| **done).count();
        }
        let free = volume.statfs().unwrap().blocks_free;
        assert!(free >= kept - LEFT, "{kind}: {made} were made, and {free} blocks are free");
        // What is kept is there for root, and what a user removes goes.
        volume.mkdir(root, ROOT_INO, b"for root", 0o755).unwrap();
        let own = create(&volume, "own");
        assert_eq!(volume.write(root, own, 0, &vec![4; MIB]), Ok(MIB));
        volume.fsync(own, false).unwrap();
        volume.release(own).unwrap();
        volume.unlink(user, ROOT_INO, b"file").unwrap();
        volume.release(file).unwrap();
        volume.syncfs().unwrap();
        volume.mkdir(user, ROOT_INO, b"for the user", 0o755).unwrap();
        detached(volume, &disk);
    }
}
