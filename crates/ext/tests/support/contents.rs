//! What the kernel and volumes of ours are asked to make: something of everything.

use vfs::{FallocateMode, FileKind, Time};

use super::maker::Maker;

/// How much of it.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// Entries of the large directory.
    pub(crate) entries: u32,
    /// Directories in one directory.
    pub(crate) directories: u32,
    /// Pieces of the file that has every other block.
    pub(crate) pieces: u64,
    /// Where the last byte of the sparse file is.
    pub(crate) far: u64,
    /// Extents can be preallocated.
    pub(crate) extents: bool,
    /// Bytes of the block that holds extended attributes.
    pub(crate) block: usize,
}

pub(crate) fn pattern(length: usize, salt: u64) -> Vec<u8> {
    let mut state = salt.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

pub(crate) fn fill(maker: &mut impl Maker, scale: Scale) {
    names(maker, scale);
    files(maker, scale);
    links(maker);
    attributes(maker, scale);
    special(maker);
    ownership(maker);
}

/// Names of all lengths, and with bytes that differ when signs do.
fn name_in_large(n: u32) -> Vec<u8> {
    let tail = pattern(n as usize % 40, n.into()).into_iter().map(|byte| byte | 0x81);
    format!("large/{n:05}").into_bytes().into_iter().chain(tail).collect()
}

fn names(maker: &mut impl Maker, scale: Scale) {
    let mut deep = String::new();
    for level in 0..60 {
        deep = format!("{deep}{}level {level}", if level > 0 { "/" } else { "" });
        maker.mkdir(deep.as_bytes());
    }
    maker.write(format!("{deep}/bottom").as_bytes(), b"here");
    maker.mkdir(b"large");
    for n in 0..scale.entries {
        maker.write(&name_in_large(n), b"");
    }
    for n in (0..scale.entries).step_by(7) {
        maker.unlink(&name_in_large(n));
    }
    maker.mkdir(b"many");
    for n in 0..scale.directories {
        maker.mkdir(format!("many/{n}").as_bytes());
    }
    maker.mkdir(b"small");
    for name in ["a", "b", &"x".repeat(255), "-", "a name with spaces"] {
        maker.write(format!("small/{name}").as_bytes(), name.as_bytes());
    }
    maker.mkdir(b"tiny");
    maker.write(b"tiny/only", b"");
    maker.mkdir(b"empty");
}

fn files(maker: &mut impl Maker, scale: Scale) {
    for length in [0, 1, 59, 60, 61, 100, 160, 1000, 1024, 4095, 4096, 4097, 60_000, 1_300_000] {
        maker.write(format!("file {length}").as_bytes(), &pattern(length, length as u64));
    }
    let block = scale.block as u64;
    let pieces = maker.open(b"every other block", false);
    for n in 0..scale.pieces {
        maker.write_at(&pieces, &pattern(scale.block, n), n * 2 * block);
    }
    maker.close(pieces);
    let sparse = maker.open(b"sparse", false);
    for at in [3 * block, 11 * block, 12 * block, 13 * block, 300 * block, 70_000 * block, scale.far - 10] {
        maker.write_at(&sparse, &pattern(10, at), at);
    }
    maker.close(sparse);
    let hole = maker.open(b"only a hole", false);
    maker.set_len(&hole, 1 << 20);
    maker.close(hole);
    if scale.extents {
        let allocated = maker.open(b"preallocated", false);
        maker.fallocate(&allocated, FallocateMode::empty(), 0, 40 * block);
        maker.write_at(&allocated, &pattern(scale.block, 1), 7 * block);
        maker.write_at(&allocated, &pattern(scale.block, 2), 20 * block);
        maker.close(allocated);
        let beyond = maker.open(b"preallocated beyond its end", false);
        maker.write_at(&beyond, b"x", 0);
        maker.fallocate(&beyond, FallocateMode::KEEP_SIZE, 0, 100 * block);
        maker.close(beyond);
        let punched = maker.open(b"punched", false);
        maker.write_at(&punched, &pattern(50 * scale.block, 3), 0);
        let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        maker.fallocate(&punched, punch, 10 * block + 5, 20 * block);
        maker.close(punched);
    }
    // Blocks of two files in turns, each on the disk before the next.
    let turns = [b"first in turns".as_slice(), b"second in turns"].map(|name| maker.open(name, true));
    for n in 0..40 {
        maker.write_at(&turns[n as usize % 2], &pattern(scale.block, n), n / 2 * block);
    }
    turns.into_iter().for_each(|file| maker.close(file));
}

fn links(maker: &mut impl Maker) {
    maker.write(b"named twice", b"contents");
    maker.link(b"named twice", b"small/other name");
    for length in [1, 58, 59, 60, 61, 100, 250, 900] {
        maker.symlink("t".repeat(length).as_bytes(), format!("link {length}").as_bytes());
    }
}

fn attributes(maker: &mut impl Maker, scale: Scale) {
    for name in ["with one", "with many", "with a large one", "with acl"] {
        maker.write(name.as_bytes(), name.as_bytes());
    }
    maker.set_xattr(b"with one", b"user.one", b"1");
    for n in 0..8 {
        maker.set_xattr(b"with many", format!("user.number {n}").as_bytes(), &pattern(n * 9, n as u64));
    }
    maker.set_xattr(b"with many", b"trusted.secret", b"hidden");
    maker.set_xattr(b"with many", b"security.label", b"label\0");
    maker.set_xattr(b"with a large one", b"user.large", &pattern(scale.block - 200, 5));
    maker.set_xattr(b"with a large one", b"user.empty", b"");
    maker.set_xattr(b"small", b"user.of a directory", b"value");
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let list = [
        2u32.to_le_bytes().to_vec(),
        entry(1, 6, none),
        entry(2, 7, 1000),
        entry(2, 4, 70_000),
        entry(4, 4, none),
        entry(8, 6, 50),
        entry(16, 6, none),
        entry(32, 0, none),
    ]
    .concat();
    maker.set_xattr(b"with acl", b"system.posix_acl_access", &list);
    maker.set_xattr(b"tiny", b"system.posix_acl_default", &list);
    maker.write(b"tiny/inherits", b"x");
    maker.symlink(b"somewhere", b"link with attribute");
    maker.set_xattr(b"link with attribute", b"trusted.of a link", b"value");
}

fn special(maker: &mut impl Maker) {
    maker.mknod(b"fifo", FileKind::Fifo, (0, 0));
    maker.mknod(b"socket", FileKind::Socket, (0, 0));
    maker.mknod(b"char device", FileKind::CharDevice, (5, 1));
    maker.mknod(b"block device", FileKind::BlockDevice, (8, 255));
    maker.mknod(b"large device", FileKind::BlockDevice, (259, 70_000));
}

fn ownership(maker: &mut impl Maker) {
    for (n, mode) in [0o000, 0o4755, 0o2644, 0o1777, 0o600].into_iter().enumerate() {
        let path = format!("mode {mode:o}").into_bytes();
        maker.write(&path, b"x");
        maker.chown(&path, 70_000 * n as u32, 1000 + n as u32);
        maker.chmod(&path, mode);
    }
    // The last fits inodes of 256 bytes alone; others clamp it, here and there alike.
    for (n, sec) in
        [-2_000_000_000, -1, 0, 1, 2_000_000_000, 4_000_000_000, 10_000_000_000].into_iter().enumerate()
    {
        let path = format!("time {n}").into_bytes();
        maker.write(&path, b"x");
        let at = |nsec| Time { sec, nsec };
        maker.set_times(&path, Some(at(123_456_789)), at(999_999_999));
    }
    maker.set_times(b"empty", None, Time { sec: 5, nsec: 7 });
}

/// Changes what [`fill`] has made: something of everything goes, moves, shrinks and grows.
pub(crate) fn change(maker: &mut impl Maker, scale: Scale) {
    let block = scale.block as u64;
    // Entries go until whole blocks of the directory are empty, and some come again.
    for n in (0..scale.entries).filter(|n| n % 7 != 0 && n % 5 != 0) {
        maker.unlink(&name_in_large(n));
    }
    for n in (0..scale.entries).step_by(21) {
        maker.write(&name_in_large(n), b"again");
    }
    for n in (0..scale.directories).filter(|n| n % 3 != 0) {
        maker.rmdir(format!("many/{n}").as_bytes());
    }
    // A tree moves, a file takes another's place, a name goes and another stays.
    maker.rename(b"level 0/level 1/level 2", b"small/level 2");
    maker.rename(b"file 60000", b"file 1");
    maker.rename(b"small/a", b"tiny/a");
    maker.rename(b"tiny", b"empty/tiny");
    maker.unlink(b"named twice");
    maker.unlink(b"link 900");
    maker.unlink(b"large device");
    maker.unlink(b"with a large one");
    maker.remove_xattr(b"with many", b"user.number 3");
    maker.set_xattr(b"with many", b"user.number 4", b"shorter");
    maker.set_xattr(b"with one", b"user.two", &pattern(scale.block / 2, 6));
    // Pieces go from the middle, from the end, and come between.
    let pieces = maker.open(b"every other block", false);
    for n in (0..scale.pieces / 4).rev() {
        maker.write_at(&pieces, &pattern(scale.block, n), (n * 2 + 1) * block);
    }
    maker.set_len(&pieces, scale.pieces * block + 77);
    maker.close(pieces);
    let large = maker.open(b"file 1300000", false);
    if scale.extents {
        let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        maker.fallocate(&large, punch, 100_000, 700_001);
        maker.fallocate(&large, FallocateMode::ZERO_RANGE, 900_000, 70_000);
    }
    maker.write_at(&large, &pattern(100_000, 8), 1_250_000);
    maker.close(large);
    let sparse = maker.open(b"sparse", false);
    maker.set_len(&sparse, 300 * block + 5);
    maker.close(sparse);
    let short = maker.open(b"file 4097", false);
    maker.set_len(&short, 0);
    maker.write_at(&short, b"x", 5000);
    maker.close(short);
}
