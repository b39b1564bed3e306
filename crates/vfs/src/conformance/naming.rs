//! Names are found and made.

use super::scene::{RW, Scene};
use crate::{Error, FileKind, NAME_MAX, OpenFlags, SYMLINK_MAX};

pub(super) fn names_are_any_bytes(s: &Scene<'_>) {
    for name in [
        b"\xff\xfe".as_slice(),
        b" ",
        b"\n",
        b"...",
        b"..a",
        "Bernstein – янтарь".as_bytes(),
        b"-rf",
        b"\x01",
    ] {
        let made = s.fs.mknod(&s.root, s.dir, name, 0o644, 0).unwrap();
        assert_eq!(s.fs.lookup(&s.root, s.dir, name).map(|attr| attr.ino), Ok(made.ino), "{name:?}");
    }
    assert_eq!(s.find("A"), Err(Error::NotFound));
    s.file("a", b"");
    assert_eq!(s.find("A"), Err(Error::NotFound), "case matters");
    for name in [b"a/b".as_slice(), b"a\0", b"/"] {
        assert_eq!(s.fs.mknod(&s.root, s.dir, name, 0o644, 0), Err(Error::Invalid), "{name:?}");
    }
    assert_eq!(s.fs.mkdir(&s.root, s.dir, b"", 0o755), Err(Error::NotFound));
}

pub(super) fn names_have_a_limit(s: &Scene<'_>) {
    let longest = [b'x'; NAME_MAX];
    let made = s.fs.mkdir(&s.root, s.dir, &longest, 0o755).unwrap();
    assert_eq!(s.fs.lookup(&s.root, s.dir, &longest).unwrap().ino, made.ino);
    let other = [&longest[..NAME_MAX - 1], b"y"].concat();
    s.fs.rename(&s.root, s.dir, &longest, s.dir, &other, crate::RenameFlags::empty()).unwrap();
    assert_eq!(s.names(s.dir), [String::from_utf8(other).unwrap()]);
    let too_long = [b'x'; NAME_MAX + 1];
    let none = crate::RenameFlags::empty();
    assert_eq!(s.fs.lookup(&s.root, s.dir, &too_long), Err(Error::NameTooLong));
    assert_eq!(s.fs.mkdir(&s.root, s.dir, &too_long, 0o755), Err(Error::NameTooLong));
    assert_eq!(s.fs.symlink(&s.root, s.dir, &too_long, b"x"), Err(Error::NameTooLong));
    assert_eq!(s.fs.create(&s.root, s.dir, &too_long, 0o644, RW), Err(Error::NameTooLong));
    assert_eq!(s.fs.link(&s.root, s.file("f", b""), s.dir, &too_long), Err(Error::NameTooLong));
    assert_eq!(s.fs.rename(&s.root, s.dir, b"f", s.dir, &too_long, none), Err(Error::NameTooLong));
}

pub(super) fn dots_lead_around(s: &Scene<'_>) {
    let sub = s.mkdir("sub");
    assert_eq!(s.find_in(sub, ".").unwrap().ino, sub);
    assert_eq!(s.find_in(sub, "..").unwrap().ino, s.dir);
    assert_eq!(s.find_in(crate::ROOT_INO, "..").unwrap().ino, crate::ROOT_INO);
    assert_eq!(s.fs.mkdir(&s.root, sub, b".", 0o755), Err(Error::Exists));
    assert_eq!(s.fs.mknod(&s.root, sub, b"..", 0o644, 0), Err(Error::Exists));
    assert_eq!(s.fs.create(&s.root, sub, b"..", 0o644, RW), Err(Error::IsDirectory));
    assert_eq!(s.fs.unlink(&s.root, sub, b"."), Err(Error::IsDirectory));
    assert_eq!(s.fs.rmdir(&s.root, sub, b"."), Err(Error::Invalid));
    assert_eq!(s.fs.rmdir(&s.root, sub, b".."), Err(Error::NotEmpty));
}

pub(super) fn links_hold_4095_bytes(s: &Scene<'_>) {
    for len in [1, 59, 60, 61, 100, 1000, 4000, SYMLINK_MAX] {
        let target: Vec<u8> = (0..len).map(|i| b'a' + (i % 26) as u8).collect();
        let attr = match s.fs.symlink(&s.root, s.dir, format!("l{len}").as_bytes(), &target) {
            // On ext, a block must hold the target, and blocks may be small.
            Err(Error::NameTooLong) if len > 1000 => continue,
            made => made.unwrap(),
        };
        assert_eq!((attr.size, attr.kind(), attr.perm()), (len as u64, FileKind::Symlink, 0o777));
        assert_eq!(s.fs.readlink(attr.ino), Ok(target));
    }
    assert_eq!(s.fs.symlink(&s.root, s.dir, b"long", &[b'x'; SYMLINK_MAX + 1]), Err(Error::NameTooLong));
    assert_eq!(s.fs.symlink(&s.root, s.dir, b"empty", b""), Err(Error::NotFound));
    assert_eq!(s.fs.readlink(s.file("f", b"x")), Err(Error::Invalid));
    assert_eq!(s.fs.readlink(s.dir), Err(Error::Invalid));
}

pub(super) fn every_kind_is_made(s: &Scene<'_>) {
    let kinds = [
        (FileKind::Regular, 0),
        (FileKind::Fifo, 0),
        (FileKind::Socket, 0),
        (FileKind::CharDevice, 0x0000_0103),
        (FileKind::BlockDevice, 0xfff1_23ff),
    ];
    for (kind, rdev) in kinds {
        let name = format!("{kind:?}");
        let attr = s.fs.mknod(&s.root, s.dir, name.as_bytes(), kind.mode_bits() | 0o640, rdev).unwrap();
        assert_eq!((attr.kind(), attr.perm(), attr.rdev, attr.nlink), (kind, 0o640, rdev, 1), "{name}");
        assert_eq!(s.attr(attr.ino).rdev, rdev);
        assert_eq!(s.find(&name).unwrap().mode, attr.mode);
    }
    let made = s.fs.mknod(&s.root, s.dir, b"no kind", 0o644, 0).unwrap();
    assert_eq!(made.kind(), FileKind::Regular);
    let directory = FileKind::Directory.mode_bits();
    assert_eq!(s.fs.mknod(&s.root, s.dir, b"d", directory, 0), Err(Error::NotPermitted));
}

pub(super) fn making_what_exists_fails(s: &Scene<'_>) {
    let ino = s.file("f", b"kept");
    s.mkdir("d");
    for name in [b"f".as_slice(), b"d"] {
        assert_eq!(s.fs.mkdir(&s.root, s.dir, name, 0o755), Err(Error::Exists));
        assert_eq!(s.fs.mknod(&s.root, s.dir, name, 0o644, 0), Err(Error::Exists));
        assert_eq!(s.fs.symlink(&s.root, s.dir, name, b"x"), Err(Error::Exists));
        assert_eq!(s.fs.link(&s.root, ino, s.dir, name), Err(Error::Exists));
        let exclusive = RW | OpenFlags::EXCLUSIVE;
        assert_eq!(s.fs.create(&s.root, s.dir, name, 0o644, exclusive), Err(Error::Exists));
    }
    assert_eq!(s.bytes(ino), b"kept");
}

pub(super) fn create_opens_what_exists(s: &Scene<'_>) {
    let ino = s.file("f", b"kept");
    s.chmod(ino, 0o600);
    let opened = s.fs.create(&s.root, s.dir, b"f", 0o777, RW).unwrap();
    assert_eq!((opened.new, opened.attr.ino, opened.attr.perm()), (false, ino, 0o600));
    assert_eq!(s.read(opened.handle, 0, 10), b"kept");
    s.close(opened.handle);
    assert_eq!(s.fs.create(&s.user, s.dir, b"f", 0o777, RW), Err(Error::AccessDenied));
    s.mkdir("d");
    assert_eq!(s.fs.create(&s.root, s.dir, b"d", 0o644, OpenFlags::READ), Err(Error::IsDirectory));
    s.fs.symlink(&s.root, s.dir, b"l", b"f").unwrap();
    assert_eq!(s.fs.create(&s.root, s.dir, b"l", 0o644, RW), Err(Error::Loop));
}

pub(super) fn create_truncates(s: &Scene<'_>) {
    let ino = s.file("f", &[7; 10_000]);
    let opened = s.fs.create(&s.root, s.dir, b"f", 0o777, RW | OpenFlags::TRUNCATE).unwrap();
    assert_eq!((opened.new, opened.attr.ino, opened.attr.size), (false, ino, 0));
    s.write(opened.handle, 3, b"x");
    assert_eq!(s.bytes(ino), b"\0\0\0x");
    s.close(opened.handle);
    s.close(s.open(ino, OpenFlags::WRITE | OpenFlags::TRUNCATE));
    assert_eq!(s.attr(ino).size, 0);
}

pub(super) fn links_are_counted(s: &Scene<'_>) {
    let ino = s.file("f", b"one");
    assert_eq!(s.link(ino, "g").map(|attr| attr.nlink), Ok(2));
    let sub = s.mkdir("sub");
    assert_eq!(s.fs.link(&s.root, ino, sub, b"h").map(|attr| attr.nlink), Ok(3));
    assert_eq!(s.find("g").unwrap().ino, ino);
    let handle = s.open(s.find_in(sub, "h").unwrap().ino, OpenFlags::WRITE);
    s.write(handle, 0, b"two");
    s.close(handle);
    assert_eq!(s.bytes(ino), b"two");
    s.unlink("f").unwrap();
    assert_eq!(s.attr(ino).nlink, 2);
    let pointer = s.fs.symlink(&s.root, s.dir, b"l", b"x").unwrap();
    assert_eq!(s.link(pointer.ino, "m").map(|attr| attr.nlink), Ok(2), "links to links count, too");
}

pub(super) fn links_beyond_65000(s: &Scene<'_>) {
    let ino = s.file("f", b"");
    let mut count = 1;
    while count < 66_000 {
        match s.link(ino, &format!("link number {count}")) {
            Ok(attr) => count += 1_u32.min(attr.nlink),
            // ext4's limit, the lowest of a file system that anyone would use for mail or backups, is 65,000.
            Err(Error::TooManyLinks) if count >= 32_000 => break,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("after {count} links: {error}"),
        }
    }
    assert_eq!(s.attr(ino).nlink, count);
    assert_eq!(s.find(&format!("link number {}", count - 1)).unwrap().ino, ino);
    for number in 1..count {
        s.unlink(&format!("link number {number}")).unwrap();
    }
    assert_eq!(s.attr(ino).nlink, 1);
    assert_eq!(s.names(s.dir), ["f"]);
}

pub(super) fn links_are_denied(s: &Scene<'_>) {
    let sub = s.mkdir("sub");
    assert_eq!(s.link(sub, "other"), Err(Error::NotPermitted));
    let ino = s.file("f", b"");
    assert_eq!(s.fs.link(&s.root, sub, ino, b"x"), Err(Error::NotDirectory));
    assert_eq!(s.fs.link(&s.user, ino, sub, b"x"), Err(Error::AccessDenied));
    assert_eq!(s.attr(ino).nlink, 1);
}

pub(super) fn directories_count_their_children(s: &Scene<'_>) {
    assert_eq!(s.attr(s.dir).nlink, 2);
    let (a, b) = (s.mkdir("a"), s.mkdir("b"));
    assert_eq!((s.attr(s.dir).nlink, s.attr(a).nlink), (4, 2));
    s.file("f", b"");
    assert_eq!(s.attr(s.dir).nlink, 4, "files do not count");
    s.move_to(s.dir, "b", a, "b", crate::RenameFlags::empty()).unwrap();
    assert_eq!((s.attr(s.dir).nlink, s.attr(a).nlink, s.attr(b).nlink), (3, 3, 2));
    s.fs.rmdir(&s.root, a, b"b").unwrap();
    assert_eq!(s.attr(a).nlink, 2);
}

pub(super) fn directories_nest_deep(s: &Scene<'_>) {
    const DEPTH: usize = 600;
    let mut path = vec![s.dir];
    for depth in 0..DEPTH {
        path.push(s.mkdir_in(path[depth], "a directory"));
    }
    assert_eq!(s.find_in(path[DEPTH], "..").unwrap().ino, path[DEPTH - 1]);
    let below = s.move_to(s.dir, "a directory", path[DEPTH], "x", crate::RenameFlags::empty());
    assert_eq!(below, Err(Error::Invalid));
    for depth in (0..DEPTH).rev() {
        s.fs.rmdir(&s.root, path[depth], b"a directory").unwrap();
    }
}

pub(super) fn files_are_not_directories(s: &Scene<'_>) {
    let f = s.file("f", b"");
    let none = crate::RenameFlags::empty();
    assert_eq!(s.find_in(f, "x"), Err(Error::NotDirectory));
    assert_eq!(s.find_in(f, "."), Err(Error::NotDirectory));
    assert_eq!(s.fs.mkdir(&s.root, f, b"x", 0o755), Err(Error::NotDirectory));
    assert_eq!(s.fs.create(&s.root, f, b"x", 0o644, RW), Err(Error::NotDirectory));
    assert_eq!(s.fs.tmpfile(&s.root, f, 0o644, RW), Err(Error::NotDirectory));
    assert_eq!(s.fs.unlink(&s.root, f, b"x"), Err(Error::NotDirectory));
    assert_eq!(s.fs.rmdir(&s.root, s.dir, b"f"), Err(Error::NotDirectory));
    assert_eq!(s.move_to(f, "x", s.dir, "y", none), Err(Error::NotDirectory));
    assert_eq!(s.move_to(s.dir, "f", f, "y", none), Err(Error::NotDirectory));
    assert_eq!(s.fs.readdir(f, 0, &mut |_| true), Err(Error::NotDirectory));
}
