//! What would be too large for one transaction goes in several: no sync fails for want of room in the log.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::support::Image;
use disk::Disk;
use ext::{Options, Room, Volume};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use vfs::{Caller, FallocateMode, FileSystem, OpenFlags, ROOT_INO, SetAttr};

const BLOCK: u64 = 1024;
const PIECES: u64 = 20_000;

/// A file in pieces of a block, of which so many are written between two syncs that each leaf of its map changes; then it is cut.
#[test]
fn a_file_in_pieces_is_synced_and_cut_with_little_nvm() {
    let image = Image::make("400M", &["-t", "ext4", "-b", "1024"]);
    let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
    let disk = Arc::new(Disk::memory(image.bytes()));
    ext::attach(&region, &disk).unwrap();
    let volume = Volume::mount(&region, disk.clone(), &Options::default()).unwrap();
    let root = Caller::root();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let file = volume.create(&root, ROOT_INO, b"pieces", 0o644, flags).unwrap();
    for phase in 0..8 {
        for piece in 0..PIECES {
            let at = (piece * 16 + phase * 2) * BLOCK;
            volume.write(&root, file.handle, at, &[1; BLOCK as usize]).unwrap();
        }
        volume.fsync(file.handle, false).unwrap();
    }
    let other = volume.create(&root, ROOT_INO, b"other", 0o644, flags).unwrap();
    let set = SetAttr { size: Some(10), ..SetAttr::default() };
    volume.setattr(&root, file.attr.ino, &set, Some(file.handle)).unwrap();
    volume.write(&root, file.handle, 0, &[2; 20]).unwrap();
    volume.fsync(file.handle, false).unwrap();
    volume.write(&root, other.handle, 0, &[3; 20]).unwrap();
    volume.fsync(other.handle, false).unwrap();
    volume.release(file.handle).unwrap();
    volume.release(other.handle).unwrap();
    volume.detach().unwrap();
    let mut bytes = vec![0; disk.bytes() as usize];
    disk.read(disk::Purpose::Data, 0, &mut bytes).unwrap();
    Image::of(&bytes).fsck();
}

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// Bytes of blocks that part of a bitmap tells of that is as long as an inode.
const PART: u64 = 256 * 8 * BLOCK;

/// A disk, and so little room in the log that few hundred inodes are more than half of it.
struct Scene {
    image: Image,
    region: Region,
}

impl Scene {
    fn new(size: &str) -> Scene {
        let image = Image::make(size, &["-t", "ext4", "-b", "1024", "-I", "256", "-E", "lazy_itable_init=1"]);
        let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
        let room = Room { frames: u64::MAX, half_bytes: 128 << 10 };
        ext::attach_within(&region, &image.disk(false), Some(room)).unwrap();
        Scene { image, region }
    }

    fn mount(&self) -> Volume {
        Volume::mount(&self.region, self.image.disk(false), &Options::default()).unwrap()
    }

    /// All of it can be committed, and is sound.
    fn end(self, volume: Volume) {
        let other = volume.create(&Caller::root(), ROOT_INO, b"other", 0o644, RW).unwrap();
        volume.fsync(other.handle, false).unwrap();
        volume.release(other.handle).unwrap();
        volume.commit_all().unwrap();
        assert!(ext::check_volume(&volume).unwrap().is_clean());
        volume.detach().unwrap();
        drop(volume);
        self.image.fsck();
    }
}

/// A file of which each block is in another part of a bitmap.
fn scatter(volume: &Volume, name: &str, blocks: u64) {
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, name.as_bytes(), 0o644, RW).unwrap();
    volume.fallocate(&root, file.handle, FallocateMode::empty(), 0, blocks * PART).unwrap();
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    for n in 0..blocks {
        volume.fallocate(&root, file.handle, punch, n * PART + BLOCK, PART - BLOCK).unwrap();
    }
    volume.release(file.handle).unwrap();
}

/// Many small orphans are as much as a large one: removing them all in one transaction kept the volume from ever being used again.
#[test]
fn many_orphans_are_removed_with_little_nvm() {
    let scene = Scene::new("64M");
    let volume = scene.mount();
    let root = Caller::root();
    for _ in 0..1000 {
        let file = volume.tmpfile(&root, ROOT_INO, 0o600, RW).unwrap();
        volume.write(&root, file.handle, 0, b"temporary").unwrap();
    }
    volume.syncfs().unwrap();
    drop(volume);
    let volume = scene.mount();
    assert_eq!(volume.replayed().orphans, 1000);
    scene.end(volume);
}

/// Each run of a file may change a part of a bitmap of its own, which takes as much of a record as an inode.
#[test]
fn a_file_all_over_the_disk_is_removed_with_little_nvm() {
    for is_open in [false, true] {
        let scene = Scene::new("1500M");
        let volume = scene.mount();
        let root = Caller::root();
        scatter(&volume, "scattered", 600);
        volume.syncfs().unwrap();
        let ino = volume.lookup(&root, ROOT_INO, b"scattered").unwrap().ino;
        let handle = is_open.then(|| volume.open(&root, ino, RW).unwrap());
        volume.unlink(&root, ROOT_INO, b"scattered").unwrap();
        if let Some(handle) = handle {
            volume.commit_all().unwrap();
            volume.release(handle).unwrap();
        }
        scene.end(volume);
    }
}

/// Each looks at what has run before it has the lock: all of them together are more than half of the log.
#[test]
fn files_are_removed_at_once_with_little_nvm() {
    let scene = Scene::new("3200M");
    let volume = scene.mount();
    let names: Vec<String> = (0..32).map(|n| format!("file-{n}")).collect();
    // They are seldom there at the same moment.
    for _ in 0..20 {
        names.iter().for_each(|name| scatter(&volume, name, 45));
        volume.syncfs().unwrap();
        volume.checkpoint().unwrap();
        let together = Barrier::new(names.len());
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| {
                    together.wait();
                    volume.unlink(&Caller::root(), ROOT_INO, name.as_bytes()).unwrap();
                });
            }
        });
        volume.commit_all().unwrap();
    }
    scene.end(volume);
}

/// A write into what is there changes the inode's times and nothing else: many of them, never synced, are much.
#[test]
fn many_files_are_touched_with_little_nvm() {
    let scene = Scene::new("64M");
    let volume = scene.mount();
    let root = Caller::root();
    let name = |n: u32| n.to_string().into_bytes();
    for n in 0..2000 {
        let file = volume.create(&root, ROOT_INO, &name(n), 0o644, RW).unwrap();
        volume.write(&root, file.handle, 0, b"contents").unwrap();
        volume.release(file.handle).unwrap();
    }
    volume.syncfs().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    for n in 0..2000 {
        let ino = volume.lookup(&root, ROOT_INO, &name(n)).unwrap().ino;
        let handle = volume.open(&root, ino, RW).unwrap();
        volume.write(&root, handle, 3, b"x").unwrap();
        volume.release(handle).unwrap();
    }
    volume.commit_all().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    for n in 0..2000 {
        let ino = volume.lookup(&root, ROOT_INO, &name(n)).unwrap().ino;
        volume.open(&root, ino, RW | OpenFlags::TRUNCATE).and_then(|handle| volume.release(handle)).unwrap();
    }
    scene.end(volume);
}

/// A file in more pieces than one operation frees is in the list of orphans until all of it is gone, open or not.
#[test]
fn a_file_in_many_pieces_is_removed_in_parts() {
    let scene = Scene::new("64M");
    let volume = scene.mount();
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, b"pieces", 0o644, RW).unwrap();
    for piece in 0..1000 {
        volume.write(&root, file.handle, piece * 2 * BLOCK, &[1; BLOCK as usize]).unwrap();
    }
    volume.syncfs().unwrap();
    volume.checkpoint().unwrap();
    volume.release(file.handle).unwrap();
    volume.unlink(&root, ROOT_INO, b"pieces").unwrap();
    scene.end(volume);
}

/// Zeroing makes all of a map's leaves others, each as long as a block.
#[test]
fn a_file_in_many_pieces_is_zeroed_with_little_nvm() {
    let scene = Scene::new("64M");
    let volume = scene.mount();
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, b"pieces", 0o644, RW).unwrap();
    const COUNT: u64 = 14_000;
    for piece in 0..COUNT {
        volume.write(&root, file.handle, piece * 2 * BLOCK, &[1; BLOCK as usize]).unwrap();
    }
    volume.syncfs().unwrap();
    let zero = FallocateMode::ZERO_RANGE | FallocateMode::KEEP_SIZE;
    volume.fallocate(&root, file.handle, zero, 0, COUNT * 2 * BLOCK).unwrap();
    volume.fsync(file.handle, false).unwrap();
    let mut found = vec![1; 64 << 10];
    volume.read(file.handle, 0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 0));
    volume.release(file.handle).unwrap();
    scene.end(volume);
}

/// Each block of a directory that is removed is told of in the record, since it was metadata: all of a large one's were more than the log has room
/// for, again with each part that was freed.
#[test]
fn a_large_directory_is_removed_with_little_nvm() {
    let image = Image::make("64M", &["-t", "ext4", "-b", "1024", "-I", "256", "-N", "1000"]);
    let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
    let half_bytes = 64 << 10;
    ext::attach_within(&region, &image.disk(false), Some(Room { frames: u64::MAX, half_bytes })).unwrap();
    let scene = Scene { image, region };
    let volume = scene.mount();
    let root = Caller::root();
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap();
    volume.release(file.handle).unwrap();
    let dir = volume.mkdir(&root, ROOT_INO, b"dir", 0o755).unwrap().ino;
    let name = |n: u32| format!("{n:0>250}").into_bytes();
    let mut count = 0;
    while volume.getattr(dir).unwrap().size < half_bytes / 8 * BLOCK * 9 / 8 {
        volume.link(&root, file.attr.ino, dir, &name(count)).unwrap();
        count += 1;
    }
    (0..count).for_each(|n| volume.unlink(&root, dir, &name(n)).unwrap());
    volume.commit_all().unwrap();
    volume.rmdir(&root, ROOT_INO, b"dir").unwrap();
    scene.end(volume);
}
