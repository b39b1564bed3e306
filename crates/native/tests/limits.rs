//! The largest and the longest of everything works, one more is refused with Linux's error, and all of it is there after
//! an unmount and after a crash.

use crate::volumes;
use std::collections::BTreeSet;

use crate::volumes::*;
use native::Durability;
use vfs::{
    Caller, Error, FallocateMode, FileKind, FileSystem, Ino, OpenFlags, ROOT_INO, SeekFrom, SetAttr, SetTime,
    Time, XattrMode,
};

/// Runs `look` on the volume as it is, after a crash, and after an unmount.
fn whatever_happens(bytes: u64, make: impl FnOnce(&dyn FileSystem), look: impl Fn(&dyn FileSystem)) {
    let (_zone, region) = made(bytes);
    let volume = mount(&region, Durability::Operation);
    make(&volume);
    look(&volume);
    volume.abandon();
    for was_clean in [false, true] {
        let volume = mount(&region, Durability::Operation);
        assert_eq!(volume.recovery().was_clean, was_clean);
        look(&volume);
        volume.close().unwrap();
    }
    assert_sound(&region);
}

fn longest(byte: u8) -> Vec<u8> {
    vec![byte; 255]
}

#[test]
fn names() {
    let root = &Caller::root();
    whatever_happens(
        16 << 20,
        |fs| {
            // Their hashes differ, their beginnings do not; and every byte but two may be in a name.
            for byte in (1..=255).filter(|byte| *byte != b'/') {
                let mut name = longest(b'x');
                name[254] = byte;
                fs.mknod(root, ROOT_INO, &name, 0o100_644, 0).unwrap();
            }
            let long = vec![b'x'; 256];
            let refused = Err(Error::NameTooLong);
            assert_eq!(fs.mknod(root, ROOT_INO, &long, 0o100_644, 0).map(drop), refused);
            assert_eq!(fs.mkdir(root, ROOT_INO, &long, 0o755).map(drop), refused);
            assert_eq!(fs.lookup(root, ROOT_INO, &long).map(drop), refused);
            assert_eq!(fs.unlink(root, ROOT_INO, &long), refused);
            let flags = vfs::RenameFlags::empty();
            assert_eq!(fs.rename(root, ROOT_INO, &longest(b'x'), ROOT_INO, &long, flags), refused);
        },
        |fs| {
            let listed = volumes::names(fs, ROOT_INO).unwrap();
            assert_eq!(listed.len(), 254);
            for (name, _, ino) in listed {
                assert_eq!(fs.lookup(root, ROOT_INO, &name).unwrap().ino, ino);
            }
        },
    );
}

#[test]
fn hard_links() {
    let root = &Caller::root();
    const LINKS: u32 = 66_000;
    whatever_happens(
        64 << 20,
        |fs| {
            let ino = fs.mknod(root, ROOT_INO, b"0", 0o100_644, 0).unwrap().ino;
            for n in 1..LINKS {
                fs.link(root, ino, ROOT_INO, n.to_string().as_bytes()).unwrap();
            }
        },
        |fs| {
            assert_eq!(fs.lookup(root, ROOT_INO, b"65999").unwrap().nlink, LINKS);
            assert_eq!(volumes::names(fs, ROOT_INO).unwrap().len(), LINKS as usize);
        },
    );
}

#[test]
fn the_largest_file() {
    let root = &Caller::root();
    const END: u64 = 16 << 40;
    whatever_happens(
        16 << 20,
        |fs| {
            let file = fs.create(root, ROOT_INO, b"f", 0o644, RW).unwrap();
            assert_eq!(fs.write(root, file.handle, END - 5, b"the end"), Err(Error::FileTooLarge));
            assert_eq!(fs.write(root, file.handle, u64::MAX - 1, b"the end"), Err(Error::FileTooLarge));
            assert_eq!(fs.getattr(file.attr.ino).unwrap().size, 0);
            for at in [5 << 30, 200 << 30, 2 << 40, END - 7] {
                assert_eq!(fs.write(root, file.handle, at, b"the end"), Ok(7));
            }
            let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
            assert_eq!(fs.setattr(root, file.attr.ino, &set(END + 1), None), Err(Error::FileTooLarge));
            let empty = vfs::FallocateMode::empty();
            assert_eq!(fs.fallocate(root, file.handle, empty, END - 1, 2), Err(Error::FileTooLarge));
            fs.release(file.handle).unwrap();
            // One without its last byte.
            let other = fs.create(root, ROOT_INO, b"g", 0o644, RW).unwrap();
            assert_eq!(fs.write(root, other.handle, END - 2, b"x"), Ok(1));
            fs.release(other.handle).unwrap();
        },
        |fs| {
            assert_eq!(fs.getattr(ino(fs, "f")).unwrap().size, END);
            assert_eq!(fs.getattr(ino(fs, "g")).unwrap().size, END - 1);
            let handle = fs.open(root, ino(fs, "f"), OpenFlags::READ).unwrap();
            let mut bytes = [0xee; 20];
            assert_eq!(fs.read(handle, END - 10, &mut bytes), Ok(10));
            assert_eq!(&bytes[..10], b"\0\0\0the end");
            assert_eq!(fs.read(handle, (2 << 40) - 1, &mut bytes), Ok(20));
            assert_eq!(&bytes[..9], b"\0the end\0");
            assert_eq!(fs.read(handle, 1 << 40, &mut bytes), Ok(20));
            assert_eq!(bytes, [0; 20]);
            assert_eq!(fs.read(handle, END, &mut bytes), Ok(0));
            assert_eq!(fs.seek(handle, SeekFrom::Data(3 << 40)), Ok(END - 4096));
            fs.release(handle).unwrap();
        },
    );
    // Cut and removed, it gives everything back.
    let (_zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    volume.mkdir(root, ROOT_INO, b"d", 0o755).unwrap(); // a directory keeps its buckets
    let before = volume.stats().blocks_free;
    let file = volume.create(root, ROOT_INO, b"f", 0o644, RW).unwrap();
    for at in (0..44).map(|bits| (1u64 << bits) - 1) {
        assert_eq!(volume.write(root, file.handle, at, b"x"), Ok(1));
    }
    for size in [END / 3, 300 << 30, 260 << 20, 800 << 10, 5] {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        assert_eq!(volume.setattr(root, file.attr.ino, &set, None).unwrap().size, size);
    }
    volume.release(file.handle).unwrap();
    volume.unlink(root, ROOT_INO, b"f").unwrap();
    volume.checkpoint().unwrap();
    assert_eq!(volume.stats().blocks_free, before);
}

/// A hole to the last byte that a file can have took the map, but not the index nodes below its last tree, which reaches
/// further: they were nobody's, and stayed when the file was gone.
#[test]
fn a_hole_to_the_largest_end() {
    let root = &Caller::root();
    const END: u64 = 16 << 40;
    let hole = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    let (_zone, region) = made(16 << 20);
    let volume = mount(&region, Durability::Operation);
    volume.mkdir(root, ROOT_INO, b"d", 0o755).unwrap();
    volume.close().unwrap();
    drop(volume);
    for from in [0, 5 << 12, 64 << 10, 576 << 10, 2 << 40, END - 4096] {
        let volume = mount(&region, Durability::Operation);
        let before = volume.stats().blocks_free; // a directory keeps its bucket
        let file = volume.create(root, ROOT_INO, b"f", 0o644, RW).unwrap();
        let places = || (0..44).map(|bits| (1u64 << bits) - 1).chain([END - 7]);
        for at in places() {
            assert_eq!(volume.write(root, file.handle, at, b"x"), Ok(1));
        }
        volume.fallocate(root, file.handle, hole, from, END - from).unwrap();
        assert_eq!(volume.seek(file.handle, SeekFrom::Data(from)), Err(Error::NoSuchOffset));
        if let Some(last) = places().filter(|at| *at < from).max() {
            let last = last / 4096 * 4096;
            assert_eq!(volume.seek(file.handle, SeekFrom::Data(last)), Ok(last));
            assert_eq!(volume.seek(file.handle, SeekFrom::Hole(last)), Ok(last + 4096));
        }
        volume.release(file.handle).unwrap();
        volume.close().unwrap();
        drop(volume);
        assert_sound(&region);
        let volume = mount(&region, Durability::Operation);
        volume.unlink(root, ROOT_INO, b"f").unwrap();
        volume.checkpoint().unwrap();
        assert_eq!(volume.stats().blocks_free, before, "a hole from {from}");
        volume.close().unwrap();
    }
    assert_sound(&region);
}

#[test]
fn deep_trees() {
    let root = &Caller::root();
    const LEVELS: usize = 1500;
    let deepest = |fs: &dyn FileSystem| {
        (0..LEVELS).fold(ROOT_INO, |dir, _| fs.lookup(root, dir, b"below").unwrap().ino)
    };
    whatever_happens(
        64 << 20,
        |fs| {
            (0..LEVELS).fold(ROOT_INO, |dir, _| fs.mkdir(root, dir, b"below", 0o755).unwrap().ino);
            // Not into its own depths.
            let flags = vfs::RenameFlags::empty();
            let moved = fs.rename(root, ROOT_INO, b"below", deepest(fs), b"x", flags);
            assert_eq!(moved, Err(Error::Invalid));
        },
        |fs| {
            let mut at = deepest(fs);
            for _ in 0..LEVELS {
                at = fs.lookup(root, at, b"..").unwrap().ino;
            }
            assert_eq!(at, ROOT_INO);
        },
    );
}

#[test]
fn a_huge_directory() {
    let root = &Caller::root();
    const ENTRIES: u64 = 200_000;
    let name = |n: u64| format!("entry number {n}").into_bytes();
    let (_zone, region) = made(512 << 20);
    // Without the log, so that it takes a second less.
    let volume = mount(&region, Durability::Snapshot);
    let file = volume.mknod(root, ROOT_INO, b"one file", 0o100_644, 0).unwrap().ino;
    let dir = volume.mkdir(root, ROOT_INO, b"d", 0o755).unwrap().ino;
    // Names of one file: inodes take room, names are what is tried here.
    for n in 0..ENTRIES {
        volume.link(root, file, dir, &name(n)).unwrap();
    }
    let mut left: BTreeSet<u64> = (0..ENTRIES).collect();
    let mut random = Random(3);
    while left.len() as u64 > ENTRIES / 4 {
        let from = random.below(ENTRIES);
        let Some(&n) = left.range(from..).next() else { continue };
        volume.unlink(root, dir, &name(n)).unwrap();
        left.remove(&n);
    }
    let look = |fs: &dyn FileSystem| {
        let listed: BTreeSet<Vec<u8>> =
            volumes::names(fs, dir).unwrap().into_iter().map(|entry| entry.0).collect();
        assert_eq!(listed, left.iter().map(|n| name(*n)).collect());
        for n in (0..ENTRIES).step_by(37) {
            assert_eq!(fs.lookup(root, dir, &name(n)).is_ok(), left.contains(&n));
        }
    };
    look(&volume);
    volume.close().unwrap();
    drop(volume);
    assert_sound(&region);
    let volume = mount(&region, Durability::Snapshot);
    look(&volume);
    for n in &left {
        volume.unlink(root, dir, &name(*n)).unwrap();
    }
    volume.rmdir(root, ROOT_INO, b"d").unwrap();
    volume.close().unwrap();
    drop(volume);
    assert_sound(&region);
}

#[test]
fn extended_attributes() {
    let root = &Caller::root();
    let long = [b"user.".as_slice(), &[b'n'; 250]].concat();
    let value = Random(4).bytes(3500);
    whatever_happens(
        16 << 20,
        |fs| {
            let ino = fs.mknod(root, ROOT_INO, b"f", 0o100_644, 0).unwrap().ino;
            fs.setxattr(root, ino, &long, &value, XattrMode::Create).unwrap();
            fs.setxattr(root, ino, b"user.empty", b"", XattrMode::Create).unwrap();
            let too_much = fs.setxattr(root, ino, b"user.more", &[1; 2000], XattrMode::Create);
            assert_eq!(too_much, Err(Error::NoSpace));
            let too_long = [long.as_slice(), b"n"].concat();
            assert_eq!(fs.setxattr(root, ino, &too_long, b"", XattrMode::Either), Err(Error::Range));
            let huge = vec![0; 65_537];
            assert_eq!(fs.setxattr(root, ino, b"user.huge", &huge, XattrMode::Either), Err(Error::TooBig));
            // Many small ones, from the inode to a node of their own and back.
            let many = fs.mknod(root, ROOT_INO, b"many", 0o100_644, 0).unwrap().ino;
            for n in 0..100 {
                fs.setxattr(root, many, format!("user.{n}").as_bytes(), &[n; 20], XattrMode::Create).unwrap();
            }
            for n in 10..100 {
                fs.removexattr(root, many, format!("user.{n}").as_bytes()).unwrap();
            }
        },
        |fs| {
            let f = ino(fs, "f");
            assert!(fs.getxattr(root, f, &long).unwrap() == value);
            assert_eq!(fs.getxattr(root, f, b"user.empty").unwrap(), b"");
            assert_eq!(fs.getxattr(root, f, b"user.more"), Err(Error::NoAttribute));
            let many = ino(fs, "many");
            for n in 0..10 {
                assert_eq!(fs.getxattr(root, many, format!("user.{n}").as_bytes()).unwrap(), [n; 20]);
            }
            assert_eq!(fs.getxattr(root, many, b"user.10"), Err(Error::NoAttribute));
        },
    );
}

#[test]
fn symbolic_links() {
    let root = &Caller::root();
    let lengths = [1, 60, 127, 128, 129, 4095];
    let target = |length: usize| vec![b'a' + (length % 26) as u8; length];
    whatever_happens(
        16 << 20,
        |fs| {
            for length in lengths {
                let name = length.to_string();
                fs.symlink(root, ROOT_INO, name.as_bytes(), &target(length)).unwrap();
            }
            let refused = fs.symlink(root, ROOT_INO, b"x", &target(4096)).map(drop);
            assert_eq!(refused, Err(Error::NameTooLong));
            assert_eq!(fs.symlink(root, ROOT_INO, b"x", b"").map(drop), Err(Error::NotFound));
        },
        |fs| {
            for length in lengths {
                let attr = fs.lookup(root, ROOT_INO, length.to_string().as_bytes()).unwrap();
                assert_eq!((attr.kind(), attr.size), (FileKind::Symlink, length as u64));
                assert!(fs.readlink(attr.ino).unwrap() == target(length));
            }
        },
    );
}

#[test]
fn times() {
    let root = &Caller::root();
    let times = [(-1, 999_999_999), (i64::MIN / 2, 1), (0, 0), (1 << 40, 123_456_789), (-2_208_988_800, 5)];
    whatever_happens(
        16 << 20,
        |fs| {
            for (n, (sec, nsec)) in times.into_iter().enumerate() {
                let ino = fs.mknod(root, ROOT_INO, n.to_string().as_bytes(), 0o100_644, 0).unwrap().ino;
                let time = |sec| Some(SetTime::At(Time { sec, nsec }));
                let set = SetAttr { atime: time(sec), mtime: time(sec + 1), ..SetAttr::default() };
                fs.setattr(root, ino, &set, None).unwrap();
            }
        },
        |fs| {
            for (n, (sec, nsec)) in times.into_iter().enumerate() {
                let attr = fs.getattr(ino(fs, &n.to_string())).unwrap();
                assert_eq!(attr.atime, Time { sec, nsec });
                assert_eq!(attr.mtime, Time { sec: sec + 1, nsec });
            }
        },
    );
}

/// Files without a name that were open when the server was killed are gone, with their space; one that had got a name
/// in time is there.
#[test]
fn files_without_names_after_a_crash() {
    let root = &Caller::root();
    for durability in DURABILITIES {
        let (_zone, region) = made(16 << 20);
        let volume = mount(&region, durability);
        let before = volume.stats().blocks_free;
        let mut inos: Vec<Ino> = Vec::new();
        for n in 0..200 {
            let file = match n % 2 {
                0 => volume.tmpfile(root, ROOT_INO, 0o600, RW).unwrap(),
                _ => {
                    let file = volume.create(root, ROOT_INO, b"f", 0o600, RW).unwrap();
                    volume.unlink(root, ROOT_INO, b"f").unwrap();
                    file
                }
            };
            volume.write(root, file.handle, 0, &Random(n).bytes(10_000)).unwrap();
            inos.push(file.attr.ino);
        }
        volume.mkdir(root, ROOT_INO, b"dir", 0o755).unwrap();
        let dir = ino(&volume, "dir");
        let _dir_handle = volume.open(root, dir, OpenFlags::READ).unwrap();
        volume.rmdir(root, ROOT_INO, b"dir").unwrap();
        volume.link(root, inos[0], ROOT_INO, b"linked").unwrap();
        assert_eq!(volume.link(root, inos[1], ROOT_INO, b"never"), Err(Error::NotFound));
        volume.syncfs().unwrap();
        volume.abandon();
        let volume = mount(&region, durability);
        assert_eq!(volume.recovery().orphans_reclaimed, 200);
        let bytes = read_file(&volume, ROOT_INO, "linked").unwrap();
        assert!(bytes == Random(0).bytes(10_000));
        assert_eq!(volumes::names(&volume, ROOT_INO).unwrap().len(), 1);
        assert_eq!(volume.getattr(inos[1]), Err(Error::Stale));
        volume.unlink(root, ROOT_INO, b"linked").unwrap();
        volume.checkpoint().unwrap();
        // The hidden directory keeps the buckets it once needed.
        let kept = before - volume.stats().blocks_free;
        assert!(kept <= 8, "{kept} blocks are not given back");
        drop(volume);
        assert_sound(&region);
    }
}
