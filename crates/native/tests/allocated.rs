//! `fallocate` on volumes that are full, or nearly.

use native::{Durability, Volume};
use nvm::{Region, Zone};
use vfs::{Caller, Error, FallocateMode, FileSystem, Handle, Ino, OpenFlags, ROOT_INO, SetAttr};

use crate::volumes::*;

const MIB: u64 = 1 << 20;
const PUNCH: FallocateMode = FallocateMode::PUNCH_HOLE.union(FallocateMode::KEEP_SIZE);

struct Full {
    _zone: Zone,
    region: Region,
    volume: Volume,
    file: Handle,
    ino: Ino,
}

/// A file of 4 MiB, and so much in another one that an ordinary operation finds no block any more, or about as many as are `left`. A snapshot has nothing of it.
fn full(has_snapshot: bool, left: u64) -> Full {
    let root = &Caller::root();
    let (zone, region) = made(64 << 20);
    let volume = mount(&region, Durability::Operation);
    if has_snapshot {
        volume.take_snapshot("s", "").unwrap();
    }
    let made = volume.create(root, ROOT_INO, b"f", 0o644, OpenFlags::READ | OpenFlags::WRITE).unwrap();
    volume.write(root, made.handle, 0, &vec![7; 4 << 20]).unwrap();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let rest = volume.create(root, ROOT_INO, b"rest", 0o644, flags).unwrap().handle;
    let blocks = volume.statfs().unwrap().blocks_available - left.max(30);
    volume.fallocate(root, rest, FallocateMode::empty(), 0, blocks * 4096).unwrap();
    let mut block = 20_000;
    for _ in 0..if left == 0 { 12 } else { 1 } {
        volume.syncfs().unwrap();
        let keep = FallocateMode::KEEP_SIZE;
        while left == 0 && volume.fallocate(root, rest, keep, block * 4096, 4096).is_ok() {
            block += 1;
        }
    }
    let (file, ino) = (made.handle, made.attr.ino);
    Full { _zone: zone, region, volume, file, ino }
}

impl Full {
    fn allocate(&self, mode: FallocateMode, offset: u64, length: u64) -> Result<(), Error> {
        self.volume.fallocate(&Caller::root(), self.file, mode, offset, length)
    }

    fn holds(self, expected: &[u8]) {
        let mut bytes = vec![0; expected.len()];
        assert_eq!(self.volume.read(self.file, 0, &mut bytes), Ok(expected.len()));
        assert!(bytes == expected);
        self.volume.close().unwrap();
        assert_sound(&self.region);
    }
}

/// Room was wanted for all of the range, also where nothing was missing.
#[test]
fn what_is_there_could_not_be_allocated_again() {
    let scene = full(false, 0);
    for (offset, length) in [(0, 4096), (5000, 10_000), (0, 4 * MIB)] {
        assert_eq!(scene.allocate(FallocateMode::empty(), offset, length), Ok(()), "{length} at {offset}");
    }
    assert_eq!(scene.allocate(FallocateMode::empty(), 0, 4 * MIB + 4096), Err(Error::NoSpace));
    assert_eq!(scene.volume.getattr(scene.ino).unwrap().size, 4 * MIB);
    scene.holds(&vec![7; 4 << 20]);
}

/// The same of a few holes in a range, when there is room for them and not for the range.
#[test]
fn a_few_holes_could_not_be_filled() {
    let scene = full(false, 900);
    let blocks = || scene.volume.getattr(scene.ino).unwrap().blocks;
    let before = blocks();
    for n in 0..10 {
        scene.allocate(PUNCH, n * 40_960, 4096).unwrap();
    }
    let available = scene.volume.statfs().unwrap().blocks_available;
    assert!(available < 1000, "{available} blocks are available");
    assert_eq!(scene.allocate(FallocateMode::empty(), 0, 4 * MIB), Ok(()));
    assert_eq!(blocks(), before);
    let mut expected = vec![7; 4 << 20];
    (0..10).for_each(|n| expected[n * 40_960..][..4096].fill(0));
    scene.holds(&expected);
}

/// What can be written over with zeros can be zeroed.
#[test]
fn what_is_there_could_not_be_zeroed() {
    let scene = full(false, 0);
    for (offset, length) in [(0, 4096), (10_000, 5), (MIB, 2 * MIB), (4 * MIB - 5000, 5000)] {
        assert_eq!(scene.allocate(FallocateMode::ZERO_RANGE, offset, length), Ok(()), "{length} at {offset}");
    }
    let mut expected = vec![7; 4 << 20];
    for (offset, length) in [(0, 4096), (10_000, 5), (1 << 20, 2 << 20), ((4 << 20) - 5000, 5000)] {
        expected[offset..][..length].fill(0);
    }
    scene.holds(&expected);
}

/// A hole gives back as much as cutting the file does.
#[test]
fn a_hole_in_what_no_snapshot_has_was_no_deletion() {
    let scene = full(true, 0);
    let mut expected = vec![7; 4 << 20];
    assert_eq!(scene.allocate(PUNCH, MIB, 2 * MIB), Ok(()));
    expected[1 << 20..3 << 20].fill(0);
    // It is given back with the next checkpoint.
    scene.volume.checkpoint().unwrap();
    let cut = SetAttr { size: Some(4 * MIB - 4096), ..SetAttr::default() };
    scene.volume.setattr(&Caller::root(), scene.ino, &cut, None).unwrap();
    expected.truncate((4 << 20) - 4096);
    scene.volume.write(&Caller::root(), scene.file, MIB, &[8; 1 << 20]).unwrap();
    expected[1 << 20..2 << 20].fill(8);
    scene.holds(&expected);
}
