//! What the kernel is asked to make: something of everything.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, Timespec, Timestamps, UTIME_OMIT, XattrFlags};

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

pub(crate) fn fill(root: &Path, scale: Scale) {
    names(root, scale);
    files(root, scale);
    links(root);
    attributes(root, scale);
    special(root);
    ownership(root);
}

fn names(root: &Path, scale: Scale) {
    let mut deep = root.to_path_buf();
    for level in 0..60 {
        deep.push(format!("level {level}"));
        fs::create_dir(&deep).unwrap();
    }
    fs::write(deep.join("bottom"), "here").unwrap();
    let large = root.join("large");
    fs::create_dir(&large).unwrap();
    for n in 0..scale.entries {
        // Of all lengths, and bytes that differ when signs do.
        let name = [
            format!("{n:05}").as_bytes(),
            &pattern(n as usize % 40, n.into()).iter().map(|byte| byte | 0x81).collect::<Vec<_>>(),
        ]
        .concat();
        File::create(large.join(OsStr::from_bytes(&name))).unwrap();
    }
    for n in (0..scale.entries).step_by(7) {
        let name = [
            format!("{n:05}").as_bytes(),
            &pattern(n as usize % 40, n.into()).iter().map(|byte| byte | 0x81).collect::<Vec<_>>(),
        ]
        .concat();
        fs::remove_file(large.join(OsStr::from_bytes(&name))).unwrap();
    }
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for n in 0..scale.directories {
        fs::create_dir(many.join(n.to_string())).unwrap();
    }
    let small = root.join("small");
    fs::create_dir(&small).unwrap();
    for name in ["a", "b", &"x".repeat(255), "-", "a name with spaces", "."] {
        if name != "." {
            fs::write(small.join(name), name).unwrap();
        }
    }
    let tiny = root.join("tiny");
    fs::create_dir(&tiny).unwrap();
    File::create(tiny.join("only")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
}

fn files(root: &Path, scale: Scale) {
    for length in [0, 1, 59, 60, 61, 100, 160, 1000, 1024, 4095, 4096, 4097, 60_000, 1_300_000] {
        fs::write(root.join(format!("file {length}")), pattern(length, length as u64)).unwrap();
    }
    let block = scale.block as u64;
    let pieces = File::create(root.join("every other block")).unwrap();
    for n in 0..scale.pieces {
        pieces.write_all_at(&pattern(scale.block, n), n * 2 * block).unwrap();
    }
    let sparse = File::create(root.join("sparse")).unwrap();
    for at in [3 * block, 11 * block, 12 * block, 13 * block, 300 * block, 70_000 * block, scale.far - 10] {
        sparse.write_all_at(&pattern(10, at), at).unwrap();
    }
    let hole = File::create(root.join("only a hole")).unwrap();
    hole.set_len(1 << 20).unwrap();
    if scale.extents {
        let allocated = File::create(root.join("preallocated")).unwrap();
        rustix::fs::fallocate(&allocated, FallocateFlags::empty(), 0, 40 * block).unwrap();
        allocated.write_all_at(&pattern(scale.block, 1), 7 * block).unwrap();
        allocated.write_all_at(&pattern(scale.block, 2), 20 * block).unwrap();
        let beyond = File::create(root.join("preallocated beyond its end")).unwrap();
        beyond.write_all_at(b"x", 0).unwrap();
        rustix::fs::fallocate(&beyond, FallocateFlags::KEEP_SIZE, 0, 100 * block).unwrap();
        let punched =
            OpenOptions::new().read(true).write(true).create_new(true).open(root.join("punched")).unwrap();
        punched.write_all_at(&pattern(50 * scale.block, 3), 0).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&punched, punch, 10 * block + 5, 20 * block).unwrap();
    }
    // Blocks of two files in turns, each on the disk before the next.
    let turns = ["first in turns", "second in turns"].map(|name| {
        let options = OpenOptions::new()
            .write(true)
            .create_new(true)
            .custom_flags(rustix::fs::OFlags::DSYNC.bits() as i32)
            .clone();
        options.open(root.join(name)).unwrap()
    });
    for n in 0..40 {
        turns[n as usize % 2].write_all_at(&pattern(scale.block, n), n / 2 * block).unwrap();
    }
}

fn links(root: &Path) {
    fs::write(root.join("named twice"), "contents").unwrap();
    fs::hard_link(root.join("named twice"), root.join("small/other name")).unwrap();
    for length in [1, 58, 59, 60, 61, 100, 250, 900] {
        symlink("t".repeat(length), root.join(format!("link {length}"))).unwrap();
    }
}

fn attributes(root: &Path, scale: Scale) {
    let set = |name: &str, key: &str, value: &[u8]| {
        let path = root.join(name);
        rustix::fs::lsetxattr(&path, key, value, XattrFlags::empty())
            .unwrap_or_else(|error| panic!("{name} {key}: {error}"));
    };
    for name in ["with one", "with many", "with a large one", "with acl"] {
        fs::write(root.join(name), name).unwrap();
    }
    set("with one", "user.one", b"1");
    for n in 0..8 {
        set("with many", &format!("user.number {n}"), &pattern(n * 9, n as u64));
    }
    set("with many", "trusted.secret", b"hidden");
    set("with many", "security.label", b"label\0");
    set("with a large one", "user.large", &pattern(scale.block - 200, 5));
    set("with a large one", "user.empty", b"");
    set("small", "user.of a directory", b"value");
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
    set("with acl", "system.posix_acl_access", &list);
    set("tiny", "system.posix_acl_default", &list);
    fs::write(root.join("tiny/inherits"), "x").unwrap();
    symlink("somewhere", root.join("link with attribute")).unwrap();
    set("link with attribute", "trusted.of a link", b"value");
}

fn special(root: &Path) {
    let make = |name: &str, kind: FileType, device: u64| {
        rustix::fs::mknodat(CWD, root.join(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
    };
    make("fifo", FileType::Fifo, 0);
    make("socket", FileType::Socket, 0);
    make("char device", FileType::CharacterDevice, rustix::fs::makedev(5, 1));
    make("block device", FileType::BlockDevice, rustix::fs::makedev(8, 255));
    make("large device", FileType::BlockDevice, rustix::fs::makedev(259, 70_000));
}

fn ownership(root: &Path) {
    for (n, mode) in [0o000, 0o4755, 0o2644, 0o1777, 0o600].into_iter().enumerate() {
        let path = root.join(format!("mode {mode:o}"));
        fs::write(&path, "x").unwrap();
        std::os::unix::fs::chown(&path, Some(70_000 * n as u32), Some(1000 + n as u32)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    // The last fits inodes of 256 bytes alone; others clamp it, here and there alike.
    for (n, seconds) in
        [-2_000_000_000, -1, 0, 1, 2_000_000_000, 4_000_000_000, 10_000_000_000].into_iter().enumerate()
    {
        let path = root.join(format!("time {n}"));
        fs::write(&path, "x").unwrap();
        let at = |nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: at(123_456_789), last_modification: at(999_999_999) };
        rustix::fs::utimensat(CWD, &path, &times, rustix::fs::AtFlags::empty()).unwrap();
    }
    let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let times = Timestamps { last_access: omitted, last_modification: Timespec { tv_sec: 5, tv_nsec: 7 } };
    rustix::fs::utimensat(CWD, root.join("empty"), &times, rustix::fs::AtFlags::empty()).unwrap();
}
