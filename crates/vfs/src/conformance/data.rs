//! Files have bytes.

use super::scene::{RW, Scene};
use crate::{Error, OpenFlags, SetAttr, SetTime};

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

pub(super) fn bytes_come_back(s: &Scene<'_>) {
    for len in [0, 1, 100, 4095, 4096, 4097, 65_536, 3_000_001] {
        let bytes = pattern(len, 1);
        let ino = s.file(&format!("f{len}"), &bytes);
        assert_eq!(s.attr(ino).size, len as u64);
        assert!(s.bytes(ino) == bytes, "{len} bytes");
    }
}

pub(super) fn reads_end_at_the_end(s: &Scene<'_>) {
    let f = s.create("f");
    s.write(f.handle, 0, &pattern(5000, 2));
    assert_eq!(s.read(f.handle, 4990, 100), pattern(5000, 2)[4990..]);
    assert!(s.read(f.handle, 5000, 1).is_empty());
    assert!(s.read(f.handle, 1 << 40, 1).is_empty());
    assert!(s.read(f.handle, u64::MAX - 1, 10).is_empty());
    assert!(s.read(f.handle, 0, 0).is_empty());
}

pub(super) fn unaligned_overwrites(s: &Scene<'_>) {
    let f = s.create("f");
    let mut expected = pattern(40_000, 3);
    s.write(f.handle, 0, &expected);
    for (offset, len) in
        [(1, 1), (4095, 2), (4096, 4096), (8191, 8194), (100, 30_000), (39_999, 1), (39_990, 500)]
    {
        let bytes = pattern(len, offset as u8);
        expected.resize(expected.len().max(offset + len), 0);
        expected[offset..offset + len].copy_from_slice(&bytes);
        s.write(f.handle, offset as u64, &bytes);
        assert!(s.read(f.handle, 0, 100_000) == expected, "after {len} bytes at {offset}");
    }
}

pub(super) fn appends_go_to_the_end(s: &Scene<'_>) {
    let ino = s.file("f", b"start");
    let one = s.open(ino, OpenFlags::WRITE | OpenFlags::APPEND);
    let two = s.open(ino, OpenFlags::WRITE | OpenFlags::APPEND);
    s.write(one, 0, b" one");
    s.write(two, 1 << 30, b" two");
    s.write(one, 3, b" three");
    assert_eq!(s.bytes(ino), b"start one two three");
    s.close(one);
    s.close(two);
}

pub(super) fn handles_share_the_file(s: &Scene<'_>) {
    let one = s.create("f");
    let two = s.open(one.attr.ino, RW);
    s.write(one.handle, 0, b"one");
    assert_eq!(s.read(two, 0, 10), b"one");
    s.fs.setattr(&s.root, one.attr.ino, &SetAttr { size: Some(1), ..SetAttr::default() }, Some(two)).unwrap();
    assert_eq!(s.read(one.handle, 0, 10), b"o");
    s.close(one.handle);
    s.write(two, 1, b"k");
    assert_eq!(s.read(two, 0, 10), b"ok");
    assert_eq!(s.fs.read(one.handle, 0, &mut [0]), Err(Error::BadHandle));
    s.close(two);
}

pub(super) fn handles_do_what_they_were_opened_for(s: &Scene<'_>) {
    let ino = s.file("f", b"kept");
    let (reader, writer) = (s.open(ino, OpenFlags::READ), s.open(ino, OpenFlags::WRITE));
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(s.fs.write(&s.root, reader, 0, b"x"), Err(Error::BadHandle));
    assert_eq!(s.fs.read(writer, 0, &mut [0]), Err(Error::BadHandle));
    let keep = crate::FallocateMode::KEEP_SIZE;
    assert_eq!(s.fs.fallocate(&s.root, reader, keep, 0, 10), Err(Error::BadHandle));
    assert_eq!(s.fs.setattr(&s.root, ino, &size, Some(reader)), Err(Error::Invalid));
    assert_eq!(s.fs.copy_file_range(&s.root, writer, 0, writer, 10, 1), Err(Error::BadHandle));
    assert_eq!(s.fs.copy_file_range(&s.root, reader, 0, reader, 10, 1), Err(Error::BadHandle));
    assert_eq!(s.bytes(ino), b"kept");
    s.close(reader);
    s.close(writer);
}

pub(super) fn cut_bytes_never_return(s: &Scene<'_>) {
    let f = s.create("f");
    for cut in [1, 100, 4095, 4096, 5000, 8192] {
        s.write(f.handle, 0, &[0xaa; 10_000]);
        s.set(f.attr.ino, SetAttr { size: Some(cut), ..SetAttr::default() });
        s.set(f.attr.ino, SetAttr { size: Some(10_000), ..SetAttr::default() });
        let expected = [vec![0xaa; cut as usize], vec![0; 10_000 - cut as usize]].concat();
        assert!(s.read(f.handle, 0, 20_000) == expected, "cut at {cut}");
        s.set(f.attr.ino, SetAttr { size: Some(cut), ..SetAttr::default() });
        s.write(f.handle, 9_999, b"x");
        assert!(s.read(f.handle, 0, 9_999) == expected[..9_999], "cut at {cut}, written beyond");
    }
}

pub(super) fn slices_are_the_bytes(s: &Scene<'_>) {
    let f = s.create("f");
    let bytes = pattern(50_000, 4);
    s.write(f.handle, 0, &bytes);
    s.set(f.attr.ino, SetAttr { size: Some(90_000), ..SetAttr::default() });
    let whole = [bytes, vec![0; 40_000]].concat();
    for (offset, len) in
        [(0, 90_000), (1, 4096), (49_000, 3_000), (60_000, 10), (89_000, 5_000), (90_000, 10)]
    {
        let mut all: Vec<u8> = Vec::new();
        let count = s.fs.read_slices(f.handle, offset as u64, len, &mut |slice| all.extend(slice));
        let end = whole.len().min(offset + len);
        assert!(all == whole[offset.min(end)..end] && count == Ok(all.len()), "{len} bytes at {offset}");
    }
}

pub(super) fn files_have_a_limit(s: &Scene<'_>) {
    let f = s.create("f");
    let ino = f.attr.ino;
    for size in [1 << 62, i64::MAX as u64, u64::MAX] {
        let set = SetAttr { size: Some(size), mtime: Some(SetTime::Now), ..SetAttr::default() };
        assert_eq!(s.fs.setattr(&s.root, ino, &set, None), Err(Error::FileTooLarge), "{size}");
    }
    assert_eq!(s.fs.write(&s.root, f.handle, 1 << 62, b"x"), Err(Error::FileTooLarge));
    assert_eq!(s.fs.write(&s.root, f.handle, u64::MAX, b"xy"), Err(Error::FileTooLarge));
    let keep = crate::FallocateMode::KEEP_SIZE;
    assert_eq!(s.fs.fallocate(&s.root, f.handle, keep, 1 << 62, 1), Err(Error::FileTooLarge));
    assert_eq!(s.fs.fallocate(&s.root, f.handle, keep, u64::MAX, 2), Err(Error::FileTooLarge));
    assert_eq!(s.attr(ino).size, 0);
}

pub(super) fn directories_have_no_bytes(s: &Scene<'_>) {
    let handle = s.open(s.dir, OpenFlags::READ);
    assert_eq!(s.fs.read(handle, 0, &mut [0]), Err(Error::IsDirectory));
    assert_eq!(s.fs.write(&s.root, handle, 0, b"x"), Err(Error::BadHandle));
    s.close(handle);
    assert_eq!(s.fs.open(&s.root, s.dir, RW), Err(Error::IsDirectory));
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(s.fs.setattr(&s.root, s.dir, &set, None), Err(Error::IsDirectory));
    let link = s.fs.symlink(&s.root, s.dir, b"l", b"x").unwrap();
    assert_eq!(s.fs.setattr(&s.root, link.ino, &set, None), Err(Error::Invalid));
    assert_eq!(s.fs.open(&s.root, link.ino, OpenFlags::READ), Err(Error::Loop));
}

pub(super) fn copies_are_independent(s: &Scene<'_>) {
    let bytes = pattern(100_000, 5);
    let from = s.open(s.file("from", &bytes), RW);
    let to = s.create("to");
    let copied = s.fs.copy_file_range(&s.root, from, 0, to.handle, 0, 100_000);
    assert_eq!(copied, Ok(100_000));
    assert!(s.bytes(to.attr.ino) == bytes);
    // Blocks may be shared now; a write must not be.
    s.write(from, 0, &[1; 5000]);
    s.write(to.handle, 50_000, &[2; 10]);
    let mut expected = bytes;
    expected[50_000..50_010].fill(2);
    assert!(s.bytes(to.attr.ino) == expected);
    s.unlink("from").unwrap();
    s.close(from);
    assert!(s.bytes(to.attr.ino) == expected, "the source is gone");
    let again = s.fs.copy_file_range(&s.root, to.handle, 10, to.handle, 200_001, 4_097);
    assert_eq!(again, Ok(4_097), "unaligned");
    assert!(s.read(to.handle, 200_001, 5_000) == expected[10..4_107]);
    assert!(s.read(to.handle, 100_000, 100_001).iter().all(|&b| b == 0), "a hole between");
}

pub(super) fn copies_end_with_the_source(s: &Scene<'_>) {
    let from = s.open(s.file("from", &pattern(10_000, 6)), OpenFlags::READ);
    let to = s.create("to");
    assert_eq!(s.fs.copy_file_range(&s.root, from, 9_000, to.handle, 100, 5_000), Ok(1_000));
    assert_eq!(s.attr(to.attr.ino).size, 1_100);
    assert_eq!(s.fs.copy_file_range(&s.root, from, 10_000, to.handle, 0, 10), Ok(0));
    assert_eq!(s.fs.copy_file_range(&s.root, from, 1 << 50, to.handle, 0, 10), Ok(0));
    assert_eq!(s.fs.copy_file_range(&s.root, from, 0, to.handle, 0, 0), Ok(0));
    assert_eq!(s.attr(to.attr.ino).size, 1_100);
    let append = s.open(to.attr.ino, OpenFlags::WRITE | OpenFlags::APPEND);
    assert_eq!(s.fs.copy_file_range(&s.root, from, 0, append, 0, 10), Err(Error::BadHandle));
}

pub(super) fn copies_within_a_file(s: &Scene<'_>) {
    let f = s.create("f");
    let bytes = pattern(20_000, 7);
    s.write(f.handle, 0, &bytes);
    let copy = |from, to, len| s.fs.copy_file_range(&s.root, f.handle, from, f.handle, to, len);
    assert_eq!(copy(0, 8_192, 8_192), Ok(8_192), "side by side");
    assert!(s.read(f.handle, 8_192, 8_192) == bytes[..8_192]);
    assert_eq!(copy(0, 8_191, 8_192), Err(Error::Invalid));
    assert_eq!(copy(8_191, 0, 8_192), Err(Error::Invalid));
    assert_eq!(copy(0, 0, 1), Err(Error::Invalid));
    assert_eq!(copy(19_000, 20_000, 5_000), Ok(1_000), "cut at the end, it does not overlap");
}

pub(super) fn syncs_succeed(s: &Scene<'_>) {
    let f = s.create("f");
    s.write(f.handle, 0, b"x");
    assert_eq!(s.fs.fsync(f.handle, true), Ok(()));
    assert_eq!(s.fs.fsync(f.handle, false), Ok(()));
    assert_eq!(s.fs.fsync_inode(s.dir), Ok(()));
    assert_eq!(s.fs.syncfs(), Ok(()));
    let handle = s.open(f.attr.ino, RW | OpenFlags::SYNC);
    s.write(handle, 0, b"durable");
    assert_eq!(s.read(f.handle, 0, 10), b"durable");
    s.close(handle);
    assert_eq!(s.fs.fsync(handle, false), Err(Error::BadHandle));
}
