//! When metadata comes from the disk to NVM, told by what the disk is asked for.

use crate::support;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use crate::support::Image;
use disk::{Device, Disk, Geometry, Memory, Purpose};
use ext::{Fetch, Options, Volume};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use vfs::{Caller, FileSystem, Ino, ROOT_INO};

const MIB: u64 = 1 << 20;

/// Eight groups, inodes in all of them; and which.
fn image() -> (Vec<u8>, Vec<Ino>) {
    let image = Image::make("64M", &["-t", "ext4", "-b", "1024", "-N", "4096"]);
    let disk = Arc::new(Disk::memory(image.bytes()));
    let (_zone, region) = nvm(16);
    ext::attach(&region, &disk).unwrap();
    let volume = mount(&region, disk.clone(), Fetch::Touch);
    let root = &Caller::root();
    let mut inodes = Vec::new();
    for dir in 0..64 {
        let dir = volume.mkdir(root, ROOT_INO, dir.to_string().as_bytes(), 0o755).unwrap().ino;
        inodes.push(dir);
        for n in 0..20 {
            inodes.push(volume.mknod(root, dir, n.to_string().as_bytes(), 0o100_644, 0).unwrap().ino);
        }
    }
    volume.detach().unwrap();
    let mut bytes = vec![0; disk.bytes() as usize];
    disk.read(Purpose::Data, 0, &mut bytes).unwrap();
    (bytes, inodes)
}

fn nvm(mib: u64) -> (Zone, Region) {
    let zone = Zone::anonymous((mib + 4) * MIB, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(mib * MIB)).unwrap();
    (zone, region)
}

fn mount(region: &Region, disk: Arc<Disk>, fetch: Fetch) -> Volume {
    Volume::mount(region, disk, &Options { fetch, ..Options::default() }).unwrap()
}

fn reads(disk: &Disk) -> u64 {
    disk.account().of(Purpose::Metadata).reads
}

/// Asks for all groups and these inodes; gives how many reads of the disk that took.
fn look_at(volume: &Volume, inodes: &[Ino]) -> u64 {
    let before = reads(volume.disk());
    volume.statfs().unwrap();
    assert!(inodes.iter().all(|ino| volume.getattr(*ino).is_ok()));
    reads(volume.disk()) - before
}

#[test]
fn what_is_fetched_at_mount_is_not_read_again() {
    let (image, inodes) = image();
    let attached = || {
        let (zone, region) = nvm(16);
        let disk = Arc::new(Disk::memory(image.clone()));
        ext::attach(&region, &disk).unwrap();
        (zone, region, disk)
    };
    let (_zone, region, disk) = attached();
    let volume = mount(&region, disk.clone(), Fetch::Touch);
    assert_eq!(volume.fetched().blocks, 0);
    let touched = look_at(&volume, &inodes);
    assert!(touched > 300, "{touched} reads, each of a block");

    let (_zone, region, disk) = attached();
    let before = reads(&disk);
    let volume = mount(&region, disk.clone(), Fetch::Eager);
    let fetched = volume.fetched();
    // The bitmaps, too, which nobody who looks at inodes asks for.
    assert!(fetched.blocks >= touched && fetched.left_out == 0, "{fetched:?}");
    let mounting = reads(&disk) - before;
    assert!(fetched.requests <= 12 && mounting <= fetched.requests + 6, "{mounting} reads, {fetched:?}");
    assert_eq!(look_at(&volume, &inodes), 0);
    // To make a file takes bitmaps, descriptor and inode, and one block of the directory.
    let before = reads(&disk);
    volume.mknod(&Caller::root(), ROOT_INO, b"new", 0o100_644, 0).unwrap();
    assert!(reads(&disk) - before <= 1);

    // What NVM has is not fetched again.
    volume.unmount().unwrap();
    drop(volume);
    assert!(ext::attachment(&region).unwrap().unwrap().frames_used > fetched.blocks);
    let volume = mount(&region, disk.clone(), Fetch::Eager);
    assert_eq!((volume.fetched().blocks, volume.fetched().requests), (0, 0));
    volume.detach().unwrap();
    drop(volume);
    let mut bytes = vec![0; disk.bytes() as usize];
    disk.read(Purpose::Data, 0, &mut bytes).unwrap();
    Image::of(&bytes).fsck();
}

/// With fewer frames than metadata, some are left to directories and maps, and nothing is given up for what is fetched.
#[test]
fn fetching_stops_before_frames_are_full() {
    let image = Image::make(
        "1G",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-N",
            "131072",
            "-E",
            "lazy_itable_init=0",
            "-O",
            "^uninit_bg,^metadata_csum",
        ],
    );
    let (_zone, region) = nvm(8);
    let disk = image.disk(false);
    ext::attach(&region, &disk).unwrap();
    let volume = mount(&region, disk.clone(), Fetch::Eager);
    let (fetched, stats) = (volume.fetched(), volume.stats());
    assert!(fetched.left_out > 20_000, "{fetched:?}");
    assert!(
        stats.frames_used <= stats.frames * 7 / 8 + 2 && fetched.blocks > stats.frames * 3 / 4,
        "{stats:?}"
    );
    for n in 0..200 {
        volume.mkdir(&Caller::root(), ROOT_INO, n.to_string().as_bytes(), 0o755).unwrap();
    }
    volume.detach().unwrap();
    drop(volume);
    image.fsck();
}

/// Blocks of inodes that nobody ever used are not asked for when files are made, whatever lies there.
#[test]
fn parts_of_tables_that_were_never_used_are_not_read() {
    let mut image = Image::make("64M", &["-t", "ext4", "-b", "1024", "-N", "4096"]).bytes();
    let shown = support::run("dumpe2fs", &[&Image::of(&image).path.display().to_string()]);
    let table = shown.lines().find_map(|line| line.trim().strip_prefix("Inode table at ")).unwrap();
    let table: usize = table.split('-').next().unwrap().parse().unwrap();
    // Inodes 1 to 12 are in use.
    image[(table + 3) * 1024..(table + 50) * 1024].fill(0xA5);
    let disk = Arc::new(Disk::memory(image));
    let (_zone, region) = nvm(16);
    ext::attach(&region, &disk).unwrap();
    let volume = mount(&region, disk.clone(), Fetch::Touch);
    let before = reads(&disk);
    for n in 0..400 {
        volume.mknod(&Caller::root(), ROOT_INO, n.to_string().as_bytes(), 0o100_644, 0).unwrap();
    }
    let asked = reads(&disk) - before;
    assert!(asked <= 12, "{asked} reads for 100 blocks of inodes");
    volume.detach().unwrap();
    let mut bytes = vec![0; disk.bytes() as usize];
    disk.read(Purpose::Data, 0, &mut bytes).unwrap();
    Image::of(&bytes).fsck();
}

/// A disk that fails large reads.
struct SmallReads(Memory);

impl Device for SmallReads {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let length: usize = into.iter().map(|part| part.len()).sum();
        if length > 4096 { Err(io::Error::other("too much at once")) } else { self.0.read(at, into) }
    }

    fn write(&self, at: u64, from: &[IoSlice<'_>], durable: bool) -> io::Result<()> {
        self.0.write(at, from, durable)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

/// What the disk does not give is left to who asks for it, who is told.
#[test]
fn what_cannot_be_fetched_comes_when_it_is_touched() {
    let (image, inodes) = image();
    let disk = Arc::new(Disk::over("disk".into(), Arc::new(SmallReads(Memory::new(image, false)))));
    let (_zone, region) = nvm(16);
    ext::attach(&region, &disk).unwrap();
    let volume = mount(&region, disk.clone(), Fetch::Eager);
    assert!(volume.fetched().left_out > 300, "{:?}", volume.fetched());
    assert!(look_at(&volume, &inodes) > 200);
    volume.detach().unwrap();
}
