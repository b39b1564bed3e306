//! Names change.

use super::scene::Scene;
use crate::{Error, OpenFlags, RenameFlags};

const PLAIN: RenameFlags = RenameFlags::empty();
const EXCHANGE: RenameFlags = RenameFlags::EXCHANGE;
const WHITEOUT: RenameFlags = RenameFlags::WHITEOUT;

pub(super) fn a_file_replaces_a_file(s: &Scene<'_>) {
    let (a, b) = (s.file("a", b"new"), s.file("b", b"old"));
    s.rename("a", "b", PLAIN).unwrap();
    assert_eq!(s.names(s.dir), ["b"]);
    assert_eq!(s.find("b").unwrap().ino, a);
    assert_eq!(s.bytes(a), b"new");
    assert_eq!(s.fs.getattr(b), Err(Error::Stale));
    let sub = s.mkdir("sub");
    s.move_to(s.dir, "b", sub, "a name of quite another length, to be moved to", PLAIN).unwrap();
    assert_eq!(s.names(s.dir), ["sub"]);
    assert_eq!(s.attr(a).nlink, 1);
}

pub(super) fn an_open_target_lives_on(s: &Scene<'_>) {
    let old = s.create("b");
    s.write(old.handle, 0, b"old");
    s.file("a", b"new");
    s.rename("a", "b", PLAIN).unwrap();
    assert_eq!(s.attr(old.attr.ino).nlink, 0);
    assert_eq!(s.read(old.handle, 0, 10), b"old");
    s.close(old.handle);
    assert_eq!(s.fs.getattr(old.attr.ino), Err(Error::Stale));
}

pub(super) fn onto_itself(s: &Scene<'_>) {
    let (a, d) = (s.file("a", b"x"), s.mkdir("d"));
    s.rename("a", "a", PLAIN).unwrap();
    s.rename("d", "d", PLAIN).unwrap();
    s.rename("a", "a", EXCHANGE).unwrap();
    assert_eq!(s.rename("a", "a", RenameFlags::NOREPLACE), Err(Error::Exists));
    assert_eq!((s.find("a").unwrap().ino, s.find("d").unwrap().ino), (a, d));
}

pub(super) fn two_names_of_one_file(s: &Scene<'_>) {
    let a = s.file("a", b"x");
    s.link(a, "b").unwrap();
    s.rename("a", "b", PLAIN).unwrap();
    assert_eq!(s.names(s.dir), ["a", "b"], "POSIX wants both to stay");
    assert_eq!(s.attr(a).nlink, 2);
}

pub(super) fn noreplace_spares_the_target(s: &Scene<'_>) {
    s.file("a", b"a");
    let b = s.file("b", b"b");
    assert_eq!(s.rename("a", "b", RenameFlags::NOREPLACE), Err(Error::Exists));
    assert_eq!(s.bytes(b), b"b");
    s.rename("a", "c", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(s.names(s.dir), ["b", "c"]);
    assert_eq!(s.rename("b", "c", RenameFlags::all()), Err(Error::Invalid));
}

pub(super) fn a_whiteout_stays_behind(s: &Scene<'_>) {
    let (a, b, there) = (s.file("a", b"a"), s.file("b", b"b"), s.mkdir("there"));
    let sub = s.mkdir("sub");
    let is_whiteout = |name: &str, place: &str| {
        let attr = s.find(name).unwrap();
        assert_eq!((attr.mode, attr.rdev, attr.nlink, attr.size), (0o020_000, 0, 1, 0), "{name}, {place}");
        attr.ino
    };
    s.rename("a", "c", WHITEOUT).unwrap();
    let first = is_whiteout("a", "in place of a file");
    assert_eq!((s.find("c").unwrap().ino, s.bytes(a)), (a, b"a".to_vec()));
    s.rename("c", "b", WHITEOUT).unwrap();
    assert_eq!((s.find("b").unwrap().ino, s.fs.getattr(b)), (a, Err(Error::Stale)));
    is_whiteout("c", "in place of a file that replaced one");
    s.move_to(s.dir, "sub", there, "sub", WHITEOUT).unwrap();
    is_whiteout("sub", "in place of a directory");
    assert_eq!((s.attr(s.dir).nlink, s.attr(there).nlink), (3, 3));
    assert_eq!(s.find_in(sub, "..").unwrap().ino, there);
    assert_eq!(s.names(s.dir), ["a", "b", "c", "sub", "there"]);
    let devices = s.list(s.dir, 0, 100).into_iter().filter(|entry| entry.2 == crate::FileKind::CharDevice);
    assert_eq!(devices.count(), 3, "entries know the kinds of what they name now");

    s.rename("b", "a", WHITEOUT).unwrap();
    assert_eq!((s.find("a").unwrap().ino, s.fs.getattr(first)), (a, Err(Error::Stale)), "one is replaced");
    is_whiteout("b", "in place of what replaced one");
    assert_eq!(s.rename("a", "b", WHITEOUT | RenameFlags::NOREPLACE), Err(Error::Exists));
    s.rename("a", "d", WHITEOUT | RenameFlags::NOREPLACE).unwrap();
    is_whiteout("a", "where nothing may be replaced");
    s.rename("d", "d", WHITEOUT).unwrap();
    assert_eq!(s.find("d").unwrap().ino, a, "onto itself nothing changes");
    assert_eq!(s.rename("a", "d", WHITEOUT | EXCHANGE), Err(Error::Invalid));
    assert_eq!(s.rename("missing", "e", WHITEOUT), Err(Error::NotFound));
}

pub(super) fn exchange_swaps_any_kinds(s: &Scene<'_>) {
    let (file, here, there) = (s.file("file", b"x"), s.mkdir("here"), s.mkdir("there"));
    let full = s.mkdir_in(there, "full");
    s.mkdir_in(full, "sub");
    s.move_to(s.dir, "file", there, "full", EXCHANGE).unwrap();
    assert_eq!((s.find("file").unwrap().ino, s.find_in(there, "full").unwrap().ino), (full, file));
    assert_eq!(s.find_in(full, "..").unwrap().ino, s.dir);
    assert_eq!((s.attr(s.dir).nlink, s.attr(there).nlink), (5, 2));
    s.rename("here", "file", EXCHANGE).unwrap();
    assert_eq!((s.find("file").unwrap().ino, s.find("here").unwrap().ino), (here, full));
    assert_eq!(s.attr(s.dir).nlink, 5);
    assert_eq!(s.rename("here", "missing", EXCHANGE), Err(Error::NotFound));
    let kinds: Vec<bool> =
        s.list(s.dir, 0, 100).into_iter().map(|entry| entry.2 == crate::FileKind::Directory).collect();
    assert!(kinds.into_iter().all(|is_dir| is_dir), "entries know the kinds of what they name now");
}

pub(super) fn a_directory_replaces_an_empty_one(s: &Scene<'_>) {
    let (a, b) = (s.mkdir("a"), s.mkdir("b"));
    let sub = s.mkdir_in(a, "sub");
    assert_eq!(s.rename("b", "a", PLAIN), Err(Error::NotEmpty));
    s.rename("a", "b", PLAIN).unwrap();
    assert_eq!(s.find("b").unwrap().ino, a);
    assert_eq!(s.find_in(a, "sub").unwrap().ino, sub);
    assert_eq!(s.fs.getattr(b), Err(Error::Stale));
    assert_eq!(s.attr(s.dir).nlink, 3);
}

pub(super) fn kinds_must_fit(s: &Scene<'_>) {
    s.file("f", b"");
    s.mkdir("d");
    assert_eq!(s.rename("f", "d", PLAIN), Err(Error::IsDirectory));
    assert_eq!(s.rename("d", "f", PLAIN), Err(Error::NotDirectory));
    s.fs.symlink(&s.root, s.dir, b"l", b"d").unwrap();
    assert_eq!(s.rename("d", "l", PLAIN), Err(Error::NotDirectory));
    s.rename("l", "f", PLAIN).unwrap();
    assert_eq!(s.find("f").unwrap().kind(), crate::FileKind::Symlink);
}

pub(super) fn not_into_itself(s: &Scene<'_>) {
    let a = s.mkdir("a");
    let b = s.mkdir_in(a, "b");
    assert_eq!(s.move_to(s.dir, "a", a, "x", PLAIN), Err(Error::Invalid));
    assert_eq!(s.move_to(s.dir, "a", b, "x", PLAIN), Err(Error::Invalid));
    assert_eq!(s.move_to(s.dir, "a", a, "b", EXCHANGE), Err(Error::Invalid));
    assert_eq!(s.find("a").unwrap().ino, a);
}

pub(super) fn not_onto_an_ancestor(s: &Scene<'_>) {
    let a = s.mkdir("a");
    let b = s.mkdir_in(a, "b");
    s.mkdir_in(b, "c");
    assert_eq!(s.move_to(b, "c", s.dir, "a", PLAIN), Err(Error::NotEmpty));
    assert_eq!(s.move_to(b, "c", a, "b", PLAIN), Err(Error::NotEmpty));
    assert_eq!(s.move_to(b, "c", s.dir, "a", EXCHANGE), Err(Error::Invalid));
}

pub(super) fn a_directory_moves_with_its_parent(s: &Scene<'_>) {
    let (a, b) = (s.mkdir("a"), s.mkdir("b"));
    let moved = s.mkdir_in(a, "moved");
    let inside = s.mkdir_in(moved, "inside");
    let handle = s.open(moved, OpenFlags::READ);
    s.move_to(a, "moved", b, "moved", PLAIN).unwrap();
    assert_eq!(s.find_in(moved, "..").unwrap().ino, b);
    assert_eq!(s.find_in(inside, "..").unwrap().ino, moved);
    let dotdot = s.list(moved, 0, 2).pop().unwrap();
    assert_eq!((dotdot.0.as_str(), dotdot.1), ("..", b), "readdir agrees");
    assert_eq!((s.attr(a).nlink, s.attr(b).nlink), (2, 3));
    s.rmdir("a").unwrap();
    s.close(handle);
}

pub(super) fn missing_and_forbidden_names(s: &Scene<'_>) {
    let d = s.mkdir("d");
    s.file("f", b"");
    assert_eq!(s.rename("missing", "x", PLAIN), Err(Error::NotFound));
    assert_eq!(s.move_to(d, ".", s.dir, "x", PLAIN), Err(Error::Busy));
    assert_eq!(s.move_to(s.dir, "f", d, "..", PLAIN), Err(Error::Busy));
    s.chmod(d, 0o755);
    let denied = s.fs.rename(&s.user, s.dir, b"f", d, b"f", PLAIN);
    assert_eq!(denied, Err(Error::AccessDenied), "the new directory is not the user's");
    let up = s.fs.rename(&s.user, s.dir, b"d", s.dir, b"e", PLAIN);
    assert_eq!(up, Ok(()), "the directory they are in is everybody's");
    let sub = s.mkdir("sub");
    s.chmod(sub, 0o777);
    let moved = s.fs.rename(&s.user, s.dir, b"e", sub, b"e", PLAIN);
    assert_eq!(moved, Err(Error::AccessDenied), "its .. would change, and it is not the user's");
}
