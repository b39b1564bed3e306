//! Ranges that are zeroed, and files that grow large.

use crate::support;
use std::sync::Arc;

use crate::support::Image;
use disk::{Disk, Purpose};
use ext::{Options, Volume};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use vfs::{Caller, Error, FallocateMode, FileSystem, Handle, Ino, OpenFlags, ROOT_INO, SeekFrom, SetAttr};

fn attach(disk: &Arc<Disk>) -> (Zone, Region, Volume) {
    let zone = Zone::anonymous(40 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("disk", VolumeKind::Ext, Some(32 << 20)).unwrap();
    ext::attach(&region, disk).unwrap();
    let volume = mount(&region, disk);
    (zone, region, volume)
}

fn mount(region: &Region, disk: &Arc<Disk>) -> Volume {
    // Little room for pages, so that some are written out early.
    let options = Options { page_bytes: 256 << 10, ..Options::default() };
    Volume::mount(region, disk.clone(), &options).unwrap()
}

fn make(volume: &Volume, name: &str) -> (Ino, Handle) {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let made = volume.create(&Caller::root(), ROOT_INO, name.as_bytes(), 0o644, flags).unwrap();
    (made.attr.ino, made.handle)
}

/// All bytes of the file `name`.
fn read(volume: &Volume, name: &str) -> Vec<u8> {
    let attr = volume.lookup(&Caller::root(), ROOT_INO, name.as_bytes()).unwrap();
    let handle = volume.open(&Caller::root(), attr.ino, OpenFlags::READ).unwrap();
    let mut read = vec![0; attr.size as usize];
    assert_eq!(volume.read(handle, 0, &mut read), Ok(read.len()));
    volume.release(handle).unwrap();
    read
}

fn image_of(disk: &Disk) -> Vec<u8> {
    let mut bytes = vec![0; disk.bytes() as usize];
    disk.read(Purpose::Data, 0, &mut bytes).unwrap();
    bytes
}

/// Zeros over a range of a file with extents are not written to the disk, whether disk, DRAM or log have what was there.
#[test]
fn zeroed_ranges_are_unwritten() {
    let disk = Arc::new(Disk::memory(Image::make("48M", &["-t", "ext4", "-b", "1024"]).bytes()));
    let (zone, _, volume) = attach(&disk);
    let root = Caller::root();
    let (ino, handle) = make(&volume, "file");
    let mut expected: Vec<u8> = (0..6 << 20).map(|n: u32| (n / 7) as u8 | 1).collect();
    // The end of it is in the log, and what is before the end in part.
    for (n, part) in expected.chunks(60_000).enumerate() {
        assert_eq!(volume.write(&root, handle, n as u64 * 60_000, part), Ok(part.len()));
        match n % 4 {
            0 => volume.fsync(handle, false).unwrap(),
            1 => volume.syncfs().unwrap(),
            2 => volume.checkpoint().unwrap(),
            _ => {}
        }
    }
    let before = volume.getattr(ino).unwrap().blocks;
    let written = || disk.account().of(Purpose::Data).bytes_written;
    let written_before = written();
    let (from, to) = (700_001, 6_270_100);
    volume.fallocate(&root, handle, FallocateMode::ZERO_RANGE, from, to - from).unwrap();
    expected[from as usize..to as usize].fill(0);
    assert!(read(&volume, "file") == expected);
    volume.fsync(handle, false).unwrap();
    let zeroed = written() - written_before;
    assert!(zeroed < 2048, "{zeroed} bytes");
    assert_eq!(volume.getattr(ino).unwrap().blocks, before, "it keeps its blocks");
    assert!(volume.seek(handle, SeekFrom::Hole(from)).unwrap() < 710_000);
    // Written again in part, by either way; some of it where the log has what was before.
    for (at, by_log) in [(1_000_500, true), (2_000_500, false), (6_200_500, false), (6_250_500, true)] {
        volume.write(&root, handle, at, &[9; 3000]).unwrap();
        expected[at as usize..][..3000].fill(9);
        if by_log { volume.fsync(handle, false).unwrap() } else { volume.syncfs().unwrap() }
    }
    // Beyond the end it grows, or keeps blocks for later.
    volume.fallocate(&root, handle, FallocateMode::ZERO_RANGE, 6_290_000, 100_000).unwrap();
    expected.truncate(6_290_000);
    expected.resize(6_390_000, 0);
    let keeps = FallocateMode::ZERO_RANGE | FallocateMode::KEEP_SIZE;
    volume.fallocate(&root, handle, keeps, 6_380_000, 100_000).unwrap();
    assert!(read(&volume, "file") == expected);
    volume.syncfs().unwrap();

    // The power is cut, and the log replayed.
    let zone = Zone::from_bytes(&zone.snapshot_image(), &OpenOptions::default()).unwrap();
    let cut = Arc::new(Disk::memory(image_of(&disk)));
    assert!(read(&mount(&zone.volume("disk").unwrap(), &cut), "file") == expected);
    volume.release(handle).unwrap();
    volume.detach().unwrap();
    let image = Image::of(&image_of(&disk));
    image.fsck();
    assert!(read(&image.open(), "file") == expected);
}

/// A file of 2 GiB brings the feature that says so, where the file system is of a revision that has features.
#[test]
fn the_first_large_file_brings_its_feature() {
    let features = ["-t", "ext2", "-b", "1024", "-O", "^large_file"];
    let none = ["-t", "ext2", "-b", "1024", "-r", "0", "-O", "none"];
    for (options, may) in [(&features[..], true), (&none, false)] {
        let image = Image::make("16M", options);
        let shown = || support::run("dumpe2fs", &["-h", &image.path.display().to_string()]);
        assert!(!shown().contains("large_file"));
        let disk = image.disk(false);
        let (_zone, _, volume) = attach(&disk);
        let root = Caller::root();
        let ((_, first), (ino, second)) = (make(&volume, "written"), make(&volume, "grown"));
        volume.write(&root, first, (1 << 31) - 2, b"x").unwrap();
        let written = volume.write(&root, first, (1 << 31) - 1, b"xy");
        let size = SetAttr { size: Some(3 << 30), ..SetAttr::default() };
        let grown = volume.setattr(&root, ino, &size, Some(second)).map(|attr| attr.size);
        match may {
            true => assert_eq!((written, grown), (Ok(2), Ok(3 << 30))),
            false => assert_eq!((written, grown), (Err(Error::FileTooLarge), Err(Error::FileTooLarge))),
        }
        volume.release(first).unwrap();
        volume.release(second).unwrap();
        volume.detach().unwrap();
        drop((volume, disk));
        assert_eq!(shown().contains("large_file"), may);
        image.fsck();
    }
}

/// A hole that ended behind what a map of pointers can reach was refused, and nothing was punched.
#[test]
fn a_hole_may_end_behind_what_a_file_can_have() {
    for kind in ["ext3", "ext4"] {
        let image = Image::make("16M", &["-t", kind, "-b", "1024"]);
        let disk = image.disk(false);
        let (_zone, _, volume) = attach(&disk);
        let (_, handle) = make(&volume, "file");
        let root = Caller::root();
        volume.write(&root, handle, 0, &[7; 100_000]).unwrap();
        let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        volume.fallocate(&root, handle, punch, 50_000, 1 << 44).unwrap();
        volume.fallocate(&root, handle, punch, 1 << 50, 1 << 44).unwrap();
        assert_eq!(volume.fallocate(&root, handle, punch, 1, u64::MAX), Err(Error::FileTooLarge), "{kind}");
        assert!(read(&volume, "file") == [vec![7; 50_000], vec![0; 50_000]].concat(), "{kind}");
        volume.release(handle).unwrap();
        volume.detach().unwrap();
        drop((volume, disk));
        image.fsck();
    }
}
