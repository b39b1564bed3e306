//! Names go, and what they named with them, or not yet.

use super::scene::{RW, Scene};
use crate::{Error, FileKind, OpenFlags, RenameFlags, SeekFrom, SetAttr};

pub(super) fn an_open_file_outlives_its_name(s: &Scene<'_>) {
    let made = s.create("f");
    s.write(made.handle, 0, b"before");
    s.unlink("f").unwrap();
    assert_eq!(s.find("f"), Err(Error::NotFound));
    assert_eq!(s.attr(made.attr.ino).nlink, 0);
    s.write(made.handle, 6, b" after");
    assert_eq!(s.read(made.handle, 0, 100), b"before after");
    let again = s.open(made.attr.ino, OpenFlags::READ);
    s.close(made.handle);
    assert_eq!(s.read(again, 0, 100), b"before after");
    assert_eq!(s.link(made.attr.ino, "g"), Err(Error::NotFound), "it gets no other name");
    s.file("f", b"another");
    assert_ne!(s.find("f").unwrap().ino, made.attr.ino);
    s.close(again);
}

/// The number of a fifo, a link, a socket or a device node was free for another file with the last name.
pub(super) fn what_is_held_outlives_its_name_whatever_it_is(s: &Scene<'_>) {
    use FileKind::{BlockDevice, CharDevice, Fifo, Regular, Socket};
    let node = |kind: FileKind| {
        let mode = kind.mode_bits() | 0o640;
        s.fs.mknod(&s.root, s.dir, format!("{kind:?}").as_bytes(), mode, 0x501).unwrap()
    };
    let link = |name: &[u8], target: &[u8]| s.fs.symlink(&s.root, s.dir, name, target).unwrap();
    let mut made: Vec<_> = [BlockDevice, CharDevice, Fifo, Regular, Socket].map(node).into();
    made.extend([link(b"inline", b"target"), link(b"long", &[b't'; 1000]), s.attr(s.mkdir("dir"))]);
    let held: Vec<_> = made.iter().map(|attr| s.open(attr.ino, OpenFlags::PATH)).collect();
    for name in s.names(s.dir) {
        if name == "dir" { s.rmdir(&name) } else { s.unlink(&name) }.unwrap();
    }
    for n in 0..2 * made.len() {
        let other = s.file(&n.to_string(), b"");
        assert!(made.iter().all(|attr| attr.ino != other), "{other} is used twice");
    }
    for (before, handle) in made.iter().zip(held) {
        let attr = s.set(before.ino, SetAttr { uid: Some(7), ..SetAttr::default() });
        assert_eq!((attr.mode, attr.rdev, attr.generation), (before.mode, before.rdev, before.generation));
        assert_eq!((attr.nlink, attr.uid), (0, 7));
        let is_link = before.kind() == FileKind::Symlink;
        let target_len = s.fs.readlink(before.ino).map(|target| target.len() as u64);
        assert_eq!(target_len, if is_link { Ok(before.size) } else { Err(Error::Invalid) });
        assert_eq!(s.fs.read(handle, 0, &mut [0]), Err(Error::BadHandle));
        assert_eq!(s.fs.seek(handle, SeekFrom::Hole(0)), Err(Error::BadHandle));
        assert_eq!(s.fs.fsync(handle, false), Err(Error::BadHandle));
        s.close(handle);
        assert_eq!(s.fs.getattr(before.ino), Err(Error::Stale));
    }
}

pub(super) fn a_gone_inode_is_stale(s: &Scene<'_>) {
    let made = s.create("f");
    s.unlink("f").unwrap();
    s.close(made.handle);
    let ino = made.attr.ino;
    assert_eq!(s.fs.getattr(ino), Err(Error::Stale));
    assert_eq!(s.fs.open(&s.root, ino, OpenFlags::READ), Err(Error::Stale));
    assert_eq!(s.link(ino, "g"), Err(Error::Stale));
    assert_eq!(s.fs.setattr(&s.root, ino, &crate::SetAttr::default(), None), Err(Error::Stale));
    let dir = s.mkdir("d");
    s.rmdir("d").unwrap();
    assert_eq!(s.fs.mkdir(&s.root, dir, b"x", 0o755), Err(Error::Stale));
    assert_eq!(s.find_in(dir, "x"), Err(Error::Stale));
    assert_eq!(s.fs.getattr(u64::MAX), Err(Error::Stale));
    assert_eq!(s.fs.getattr(0), Err(Error::Stale));
}

pub(super) fn one_name_of_two(s: &Scene<'_>) {
    let ino = s.file("f", b"kept");
    s.link(ino, "g").unwrap();
    s.unlink("f").unwrap();
    assert_eq!(s.names(s.dir), ["g"]);
    assert_eq!((s.attr(ino).nlink, s.bytes(ino)), (1, b"kept".to_vec()));
    s.unlink("g").unwrap();
    assert_eq!(s.fs.getattr(ino), Err(Error::Stale));
    assert_eq!(s.unlink("g"), Err(Error::NotFound));
}

pub(super) fn directories_are_not_unlinked(s: &Scene<'_>) {
    s.mkdir("d");
    assert_eq!(s.unlink("d"), Err(Error::IsDirectory));
    s.fs.symlink(&s.root, s.dir, b"l", b"d").unwrap();
    assert_eq!(s.rmdir("l"), Err(Error::NotDirectory));
    s.unlink("l").unwrap();
    s.rmdir("d").unwrap();
}

pub(super) fn only_empty_directories_go(s: &Scene<'_>) {
    let d = s.mkdir("d");
    let f = s.file("f", b"");
    s.fs.link(&s.root, f, d, b"x").unwrap();
    assert_eq!(s.rmdir("d"), Err(Error::NotEmpty));
    s.fs.unlink(&s.root, d, b"x").unwrap();
    s.mkdir_in(d, "sub");
    assert_eq!(s.rmdir("d"), Err(Error::NotEmpty));
    s.fs.rmdir(&s.root, d, b"sub").unwrap();
    s.rmdir("d").unwrap();
    assert_eq!(s.rmdir("d"), Err(Error::NotFound));
}

pub(super) fn a_removed_directory_takes_nothing(s: &Scene<'_>) {
    let d = s.mkdir("d");
    let f = s.file("f", b"");
    let handle = s.open(d, OpenFlags::READ);
    s.rmdir("d").unwrap();
    assert_eq!(s.attr(d).nlink, 0);
    assert_eq!(s.find_in(d, "x"), Err(Error::NotFound));
    assert_eq!(s.fs.mkdir(&s.root, d, b"x", 0o755), Err(Error::NotFound));
    assert_eq!(s.fs.create(&s.root, d, b"x", 0o644, RW), Err(Error::NotFound));
    assert_eq!(s.fs.link(&s.root, f, d, b"x"), Err(Error::NotFound));
    assert_eq!(s.move_to(s.dir, "f", d, "x", RenameFlags::empty()), Err(Error::NotFound));
    s.close(handle);
    assert_eq!(s.fs.getattr(d), Err(Error::Stale));
}

pub(super) fn an_unnamed_file_is_private(s: &Scene<'_>) {
    let made = s.fs.tmpfile(&s.user, s.dir, 0o600, RW).unwrap();
    assert_eq!((made.new, made.attr.nlink, made.attr.perm(), made.attr.uid), (true, 0, 0o600, 1001));
    assert!(s.names(s.dir).is_empty());
    s.write(made.handle, 0, b"scratch");
    assert_eq!(s.read(made.handle, 0, 10), b"scratch");
    s.close(made.handle);
    assert_eq!(s.fs.getattr(made.attr.ino), Err(Error::Stale));
    assert_eq!(s.fs.tmpfile(&s.root, s.dir, 0o600, OpenFlags::READ), Err(Error::Invalid));
    s.chmod(s.dir, 0o755);
    assert_eq!(s.fs.tmpfile(&s.user, s.dir, 0o600, RW), Err(Error::AccessDenied));
}

pub(super) fn an_unnamed_file_gets_a_name(s: &Scene<'_>) {
    let made = s.fs.tmpfile(&s.root, s.dir, 0o600, RW).unwrap();
    s.write(made.handle, 0, b"whole");
    let linked = s.link(made.attr.ino, "f").unwrap();
    assert_eq!((linked.ino, linked.nlink), (made.attr.ino, 1));
    s.close(made.handle);
    assert_eq!(s.bytes(s.find("f").unwrap().ino), b"whole");
    // Its first name was its only chance.
    let handle = s.open(made.attr.ino, OpenFlags::READ);
    s.unlink("f").unwrap();
    assert_eq!(s.link(made.attr.ino, "g"), Err(Error::NotFound));
    s.close(handle);
}

pub(super) fn an_unlinkable_file_gets_none(s: &Scene<'_>) {
    let made = s.fs.tmpfile(&s.root, s.dir, 0o600, RW | OpenFlags::UNLINKABLE).unwrap();
    assert_eq!(s.link(made.attr.ino, "f"), Err(Error::NotFound));
    s.close(made.handle);
    assert!(s.names(s.dir).is_empty());
}
