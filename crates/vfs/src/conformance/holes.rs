//! Files have holes.

use super::scene::Scene;
use crate::{Error, FallocateMode, SeekFrom, SetAttr};

const KEEP: FallocateMode = FallocateMode::KEEP_SIZE;
const PUNCH: FallocateMode = FallocateMode::PUNCH_HOLE.union(FallocateMode::KEEP_SIZE);
const ZERO: FallocateMode = FallocateMode::ZERO_RANGE;

pub(super) fn a_gap_is_zeros(s: &Scene<'_>) {
    let f = s.create("f");
    s.write(f.handle, 100_000, b"x");
    assert!(s.read(f.handle, 0, 100_000).iter().all(|&b| b == 0));
    assert_eq!(s.read(f.handle, 99_999, 10), b"\0x");
    s.set(f.attr.ino, SetAttr { size: Some(200_000), ..SetAttr::default() });
    assert!(s.read(f.handle, 100_001, 200_000) == vec![0; 99_999]);
}

pub(super) fn far_offsets(s: &Scene<'_>) {
    let f = s.create("f");
    // Files mapped by pointers in small blocks end earlier.
    let is_too_far = s.fs.write(&s.root, f.handle, 1 << 40, b"x") == Err(Error::FileTooLarge);
    let far: u64 = if is_too_far { 1 << 33 } else { 1 << 40 };
    let offsets = [far, (1 << 31) - 3, 1 << 32, 48 << 10, (4 << 20) + 48 * 1024, 5 << 30];
    for offset in offsets {
        s.write(f.handle, offset, &offset.to_le_bytes());
    }
    assert_eq!(s.attr(f.attr.ino).size, far + 8);
    for offset in offsets {
        assert_eq!(s.read(f.handle, offset, 8), offset.to_le_bytes());
        assert_eq!(s.read(f.handle, offset - 8, 8), [0; 8]);
    }
    let blocks = s.attr(f.attr.ino).blocks;
    assert!(blocks < 1 << 20, "{blocks} sectors for six pages");
    s.set(f.attr.ino, SetAttr { size: Some(48 << 10), ..SetAttr::default() });
    assert!(s.read(f.handle, 0, 100_000) == vec![0; 48 << 10]);
}

/// Whoever has preallocated trims what is left by setting the length that the file has.
pub(super) fn what_lies_behind_the_end_goes_with_a_cut_to_it(s: &Scene<'_>) {
    for size in [0, 100, 5000, 100_000] {
        let f = s.create(&format!("f-{size}"));
        s.write(f.handle, 0, &vec![1; size as usize]);
        match s.fs.fallocate(&s.root, f.handle, KEEP, 0, 4 << 20) {
            Err(Error::NotSupported) => return,
            allocated => allocated.unwrap(),
        }
        assert_eq!(s.attr(f.attr.ino).size, size);
        s.set(f.attr.ino, SetAttr { size: Some(size), ..SetAttr::default() });
        let sectors = s.attr(f.attr.ino).blocks;
        assert!(sectors <= (1 << 20) / 512, "{sectors} sectors are kept for {size} bytes");
        assert!(s.read(f.handle, 0, 200_000) == vec![1; size as usize]);
    }
}

/// Holes of 1 MiB must be found by a volume that has holes at all; one that calls all data is right, too.
pub(super) fn data_and_holes_are_found(s: &Scene<'_>) {
    const MIB: u64 = 1 << 20;
    let f = s.create("f");
    s.write(f.handle, MIB, &[1; 8192]);
    s.write(f.handle, 3 * MIB, &[2; 8192]);
    s.set(f.attr.ino, SetAttr { size: Some(5 * MIB), ..SetAttr::default() });
    let data = |at| s.fs.seek(f.handle, SeekFrom::Data(at));
    let hole = |at| s.fs.seek(f.handle, SeekFrom::Hole(at));
    if hole(0) == Ok(5 * MIB) {
        assert_eq!((data(0), data(2 * MIB)), (Ok(0), Ok(2 * MIB)), "no holes, so all is data");
        return;
    }
    assert_eq!(hole(0), Ok(0));
    assert_eq!((data(0), data(MIB), data(MIB + 5000)), (Ok(MIB), Ok(MIB), Ok(MIB + 5000)));
    assert_eq!((hole(MIB), hole(MIB + 8191)), (Ok(MIB + 8192), Ok(MIB + 8192)));
    assert_eq!(hole(2 * MIB), Ok(2 * MIB));
    assert_eq!(data(MIB + 8192), Ok(3 * MIB));
    assert_eq!(data(3 * MIB + 8192), Err(Error::NoSuchOffset));
    assert_eq!(hole(3 * MIB), Ok(3 * MIB + 8192));
}

pub(super) fn seeks_end_at_the_end(s: &Scene<'_>) {
    let f = s.create("f");
    assert_eq!(s.fs.seek(f.handle, SeekFrom::Data(0)), Err(Error::NoSuchOffset));
    assert_eq!(s.fs.seek(f.handle, SeekFrom::Hole(0)), Err(Error::NoSuchOffset));
    s.write(f.handle, 0, &[1; 5000]);
    assert_eq!(s.fs.seek(f.handle, SeekFrom::Data(4999)), Ok(4999));
    assert_eq!(s.fs.seek(f.handle, SeekFrom::Hole(0)), Ok(5000), "the end counts as a hole");
    for at in [5000, 5001, 1 << 40, u64::MAX] {
        assert_eq!(s.fs.seek(f.handle, SeekFrom::Data(at)), Err(Error::NoSuchOffset));
        assert_eq!(s.fs.seek(f.handle, SeekFrom::Hole(at)), Err(Error::NoSuchOffset));
    }
}

pub(super) fn allocation_extends(s: &Scene<'_>) {
    let f = s.create("f");
    let size = || s.attr(f.attr.ino).size;
    s.fs.fallocate(&s.root, f.handle, KEEP, 0, 100_000).unwrap();
    assert_eq!(size(), 0);
    s.fs.fallocate(&s.root, f.handle, FallocateMode::empty(), 1000, 49_000).unwrap();
    assert_eq!(size(), 50_000);
    s.fs.fallocate(&s.root, f.handle, FallocateMode::empty(), 0, 10).unwrap();
    assert_eq!(size(), 50_000, "it never shrinks");
    assert!(s.read(f.handle, 0, 100_000) == vec![0; 50_000]);
    s.fs.fallocate(&s.root, f.handle, ZERO, 49_000, 3_000).unwrap();
    assert_eq!(size(), 52_000);
    s.fs.fallocate(&s.root, f.handle, ZERO | KEEP, 49_000, 9_000).unwrap();
    assert_eq!(size(), 52_000);
}

pub(super) fn allocation_keeps_bytes(s: &Scene<'_>) {
    let f = s.create("f");
    s.write(f.handle, 10_000, &[7; 10_000]);
    s.fs.fallocate(&s.root, f.handle, FallocateMode::empty(), 0, 40_000).unwrap();
    let expected = [vec![0; 10_000], vec![7; 10_000], vec![0; 20_000]].concat();
    assert!(s.read(f.handle, 0, 50_000) == expected);
    s.write(f.handle, 30_000, b"x");
    assert_eq!(s.read(f.handle, 29_999, 3), b"\0x\0");
}

pub(super) fn punching_zeroes(s: &Scene<'_>) {
    punch(s, PUNCH);
}

pub(super) fn zeroing_zeroes(s: &Scene<'_>) {
    punch(s, ZERO | KEEP);
    punch(s, ZERO);
}

fn punch(s: &Scene<'_>, mode: FallocateMode) {
    for (offset, len) in
        [(0, 1), (4096, 4096), (100, 30_000), (4095, 2), (39_999, 1), (0, 40_000), (8192, 4097)]
    {
        let f = s.create(&format!("f{}-{offset}-{len}", mode.bits()));
        s.write(f.handle, 0, &[7; 40_000]);
        s.fs.fallocate(&s.root, f.handle, mode, offset as u64, len as u64).unwrap();
        let mut expected = vec![7; 40_000];
        expected[offset..offset + len].fill(0);
        assert!(s.read(f.handle, 0, 50_000) == expected, "{len} bytes at {offset}");
        s.write(f.handle, offset as u64, b"y");
        expected[offset] = b'y';
        assert!(s.read(f.handle, 0, 50_000) == expected, "{len} bytes at {offset}, written again");
        s.close(f.handle);
    }
    let f = s.create(&format!("beyond{}", mode.bits()));
    s.write(f.handle, 0, &[7; 5000]);
    if mode.contains(KEEP) {
        s.fs.fallocate(&s.root, f.handle, mode, 4000, 1 << 30).unwrap();
        s.fs.fallocate(&s.root, f.handle, mode, 1 << 30, 1 << 20).unwrap();
        assert!(s.bytes(f.attr.ino) == [vec![7; 4000], vec![0; 1000]].concat());
    }
    s.close(f.handle);
}

pub(super) fn bad_modes_and_ranges(s: &Scene<'_>) {
    let f = s.create("f");
    s.write(f.handle, 0, b"kept");
    let ask = |mode, offset, len| s.fs.fallocate(&s.root, f.handle, mode, offset, len);
    assert_eq!(ask(KEEP, 0, 0), Err(Error::Invalid));
    assert_eq!(ask(FallocateMode::PUNCH_HOLE, 0, 1), Err(Error::NotSupported));
    assert_eq!(ask(PUNCH | ZERO, 0, 1), Err(Error::NotSupported));
    assert_eq!(s.bytes(f.attr.ino), b"kept");
}
