//! Whose files are, and what others may do.

use super::scene::{RW, Scene};
use crate::{Attr, Caller, Error, FileKind, OpenFlags, RenameFlags, Result, SetAttr, SetTime, Time};

fn set(s: &Scene<'_>, caller: &Caller, attr: &Attr, change: SetAttr) -> Result<Attr> {
    s.fs.setattr(caller, attr.ino, &change, None)
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn owner(uid: Option<u32>, gid: Option<u32>) -> SetAttr {
    SetAttr { uid, gid, ..SetAttr::default() }
}

pub(super) fn new_files_are_the_callers(s: &Scene<'_>) {
    let file = s.create_as(&s.user, "f", 0o640).attr;
    let dir = s.fs.mkdir(&s.user, s.dir, b"d", 0o750).unwrap();
    let link = s.fs.symlink(&s.user, s.dir, b"l", b"x").unwrap();
    let fifo = s.fs.mknod(&s.user, s.dir, b"p", FileKind::Fifo.mode_bits() | 0o600, 0).unwrap();
    for attr in [file, dir, link, fifo] {
        let attr = s.attr(attr.ino);
        assert_eq!((attr.uid, attr.gid), (1001, 2001));
    }
    assert_eq!((file.mode, dir.mode, link.mode, fifo.mode), (0o100_640, 0o040_750, 0o120_777, 0o010_600));
}

pub(super) fn the_umask_applies(s: &Scene<'_>) {
    let masked = Caller { umask: 0o027, ..s.user.clone() };
    assert_eq!(s.create_as(&masked, "f", 0o6777).attr.perm(), 0o6750);
    assert_eq!(s.fs.mkdir(&masked, s.dir, b"d", 0o1777).unwrap().perm(), 0o1750);
    assert_eq!(s.fs.mknod(&masked, s.dir, b"n", 0o666, 0).unwrap().perm(), 0o640);
    assert_eq!(s.fs.symlink(&masked, s.dir, b"l", b"x").unwrap().perm(), 0o777);
    assert_eq!(s.kept(s.fs.tmpfile(&masked, s.dir, 0o666, RW)).unwrap().attr.perm(), 0o640);
}

pub(super) fn a_setgid_directory_gives_its_group(s: &Scene<'_>) {
    s.chown(s.dir, 0, 4000);
    s.chmod(s.dir, 0o2777);
    let file = s.create_as(&s.user, "f", 0o644).attr;
    assert_eq!((file.gid, file.perm()), (4000, 0o644));
    let dir = s.fs.mkdir(&s.user, s.dir, b"d", 0o755).unwrap();
    assert_eq!((dir.gid, dir.perm()), (4000, 0o2755), "directories inherit the bit");
    assert_eq!(s.fs.symlink(&s.user, s.dir, b"l", b"x").unwrap().gid, 4000);
    assert_eq!(s.create_as(&s.user, "x", 0o2755).attr.perm(), 0o755, "no privilege of a group not one's own");
    assert_eq!(s.create_as(&s.root, "y", 0o2755).attr.perm(), 0o2755);
    s.chown(s.dir, 0, 3000);
    s.chmod(s.dir, 0o2777);
    assert_eq!(s.create_as(&s.user, "z", 0o2755).attr.perm(), 0o2755, "a member");
}

pub(super) fn mkdir_takes_no_set_ids(s: &Scene<'_>) {
    assert_eq!(s.fs.mkdir(&s.root, s.dir, b"d", 0o7777).unwrap().perm(), 0o1777);
}

pub(super) fn a_sticky_directory_protects(s: &Scene<'_>) {
    s.chmod(s.dir, 0o1777);
    let theirs = s.create_as(&s.other, "theirs", 0o666).attr;
    s.fs.mkdir(&s.other, s.dir, b"their dir", 0o777).unwrap();
    s.create_as(&s.user, "mine", 0o600);
    let none = RenameFlags::empty();
    let denied = Err(Error::NotPermitted);
    assert_eq!(s.fs.unlink(&s.user, s.dir, b"theirs"), denied);
    assert_eq!(s.fs.rmdir(&s.user, s.dir, b"their dir"), denied);
    assert_eq!(s.fs.rename(&s.user, s.dir, b"theirs", s.dir, b"x", none), denied);
    assert_eq!(s.fs.rename(&s.user, s.dir, b"mine", s.dir, b"theirs", none), denied);
    assert_eq!(s.fs.rename(&s.user, s.dir, b"mine", s.dir, b"theirs", RenameFlags::EXCHANGE), denied);
    assert_eq!(
        s.fs.link(&s.user, theirs.ino, s.dir, b"link").map(|attr| attr.nlink),
        Ok(2),
        "adding is free"
    );
    assert_eq!(s.fs.rename(&s.user, s.dir, b"mine", s.dir, b"still mine", none), Ok(()));
    assert_eq!(s.fs.unlink(&s.user, s.dir, b"still mine"), Ok(()));
    s.chown(s.dir, 1001, 2001);
    assert_eq!(s.fs.unlink(&s.user, s.dir, b"theirs"), Ok(()), "the directory's owner may");
    assert_eq!(s.fs.rmdir(&s.root, s.dir, b"their dir"), Ok(()));
}

pub(super) fn classes_are_tried_in_order(s: &Scene<'_>) {
    let ino = s.create_as(&s.user, "f", 0o000).attr.ino;
    let may = |caller: &Caller, mode: u32, mask: u32| {
        s.chmod(ino, mode);
        s.fs.access(caller, ino, mask).is_ok()
    };
    assert!(may(&s.user, 0o400, 4) && !may(&s.user, 0o077, 4), "the owner");
    let member = Caller::user(5, 2001);
    assert!(may(&member, 0o060, 6) && !may(&member, 0o707, 4), "the group");
    assert!(may(&s.other, 0o005, 5) && !may(&s.other, 0o770, 4), "others");
    assert!(may(&s.root, 0, 6) && !may(&s.root, 0o666, 1) && may(&s.root, 0o010, 1), "the superuser");
    assert!(may(&s.other, 0, 0), "existence");
    s.chown(ino, 1001, 3000);
    assert!(may(&s.other, 0o040, 4), "a supplementary group");
    s.chmod(ino, 0o200);
    assert_eq!(s.fs.open(&s.user, ino, OpenFlags::READ), Err(Error::AccessDenied));
    assert_eq!(s.fs.open(&s.user, ino, RW), Err(Error::AccessDenied));
    s.close(s.fs.open(&s.user, ino, OpenFlags::WRITE).unwrap());
    s.chmod(ino, 0o400);
    let truncate = OpenFlags::READ | OpenFlags::TRUNCATE;
    assert_eq!(s.fs.open(&s.user, ino, truncate), Err(Error::AccessDenied));
}

pub(super) fn directories_need_search_and_write(s: &Scene<'_>) {
    let d = s.mkdir("d");
    let f = s.file("f", b"");
    s.fs.link(&s.root, f, d, b"f").unwrap();
    let denied = Err(Error::AccessDenied);
    s.chmod(d, 0o776);
    assert_eq!(s.fs.lookup(&s.user, d, b"f").map(drop), denied, "no search");
    assert_eq!(s.fs.unlink(&s.user, d, b"f"), denied);
    s.chmod(d, 0o775);
    assert_eq!(s.fs.lookup(&s.user, d, b"f").map(|attr| attr.ino), Ok(f));
    assert_eq!(s.fs.unlink(&s.user, d, b"f"), denied);
    assert_eq!(s.fs.unlink(&s.user, d, b"missing"), Err(Error::NotFound));
    assert_eq!(s.fs.mkdir(&s.user, d, b"x", 0o755).map(drop), denied);
    assert_eq!(s.fs.mkdir(&s.user, d, b"f", 0o755).map(drop), Err(Error::Exists));
    assert_eq!(s.fs.create(&s.user, d, b"x", 0o644, RW).map(drop), denied);
    let none = RenameFlags::empty();
    assert_eq!(s.fs.rename(&s.user, d, b"f", s.dir, b"x", none), denied);
    assert_eq!(s.fs.rename(&s.user, s.dir, b"f", d, b"x", none), denied);
    s.chmod(d, 0o773);
    assert_eq!(s.fs.unlink(&s.user, d, b"f"), Ok(()), "what it is in counts, not whose it is");
}

pub(super) fn an_open_file_needs_no_permission(s: &Scene<'_>) {
    let made = s.create_as(&s.user, "f", 0o000);
    assert_eq!(s.fs.write(&s.user, made.handle, 0, b"abc"), Ok(3), "its creator has it open");
    let size = SetAttr { size: Some(1), ..SetAttr::default() };
    assert_eq!(s.fs.setattr(&s.user, made.attr.ino, &size, None), Err(Error::AccessDenied));
    assert_eq!(s.fs.setattr(&s.user, made.attr.ino, &size, Some(made.handle)).map(|attr| attr.size), Ok(1));
    assert_eq!(s.fs.open(&s.user, made.attr.ino, OpenFlags::READ), Err(Error::AccessDenied));
}

pub(super) fn only_owners_change_attributes(s: &Scene<'_>) {
    let f = s.create_as(&s.user, "f", 0o666).attr;
    let at = Some(SetTime::At(Time { sec: 1, nsec: 0 }));
    let now = Some(SetTime::Now);
    let times = |atime, mtime| SetAttr { atime, mtime, ..SetAttr::default() };
    assert_eq!(set(s, &s.other, &f, mode(0o600)), Err(Error::NotPermitted));
    assert_eq!(set(s, &s.other, &f, owner(Some(1001), None)), Err(Error::NotPermitted));
    assert_eq!(set(s, &s.other, &f, times(at, at)), Err(Error::NotPermitted));
    assert_eq!(set(s, &s.other, &f, times(now, None)), Err(Error::NotPermitted));
    set(s, &s.other, &f, times(now, now)).unwrap();
    assert_eq!(set(s, &s.user, &f, mode(0o600)).map(|attr| attr.perm()), Ok(0o600));
    assert_eq!(set(s, &s.other, &f, times(now, now)), Err(Error::AccessDenied), "no longer writable");
    set(s, &s.user, &f, times(at, at)).unwrap();
    let link = s.fs.symlink(&s.user, s.dir, b"l", b"x").unwrap();
    assert_eq!(set(s, &s.root, &link, mode(0o600)), Err(Error::NotSupported));
}

pub(super) fn owners_choose_among_their_groups(s: &Scene<'_>) {
    let f = s.create_as(&s.user, "f", 0o644).attr;
    assert_eq!(set(s, &s.user, &f, owner(None, Some(3000))).map(|attr| attr.gid), Ok(3000));
    assert_eq!(set(s, &s.user, &f, owner(None, Some(2002))), Err(Error::NotPermitted));
    assert_eq!(set(s, &s.user, &f, owner(Some(1002), None)), Err(Error::NotPermitted));
    assert_eq!(set(s, &s.user, &f, owner(Some(1001), Some(2001))).map(|attr| attr.gid), Ok(2001));
    let given = set(s, &s.root, &f, owner(Some(70_000), Some(4_000_000_000))).unwrap();
    assert_eq!((given.uid, given.gid), (70_000, 4_000_000_000));
    s.chown(f.ino, 1001, 4000);
    assert_eq!(set(s, &s.user, &f, mode(0o2755)).map(|attr| attr.perm()), Ok(0o755), "not a member");
}

pub(super) fn chown_clears_set_ids(s: &Scene<'_>) {
    let f = s.create_as(&s.user, "f", 0o6755).attr;
    assert_eq!(f.perm(), 0o6755);
    assert_eq!(set(s, &s.user, &f, owner(None, Some(3000))).map(|attr| attr.perm()), Ok(0o755));
    s.chmod(f.ino, 0o6755);
    assert_eq!(set(s, &s.root, &f, owner(Some(0), None)).map(|attr| attr.perm()), Ok(0o755));
    s.chmod(f.ino, 0o6745);
    let kept = set(s, &s.root, &f, owner(Some(1001), None)).map(|attr| attr.perm());
    assert_eq!(kept, Ok(0o2745), "a group that may not execute has no privilege to lose");
    let d = s.mkdir("d");
    s.chmod(d, 0o6755);
    s.chown(d, 1001, 2001);
    assert_eq!(s.attr(d).perm(), 0o6755, "directories keep them");
}

pub(super) fn writing_clears_set_ids(s: &Scene<'_>) {
    let f = s.create_as(&s.user, "f", 0o777);
    let perm = || s.attr(f.attr.ino).perm();
    let arm = || s.chmod(f.attr.ino, 0o6777);
    arm();
    s.fs.write(&s.user, f.handle, 0, b"").unwrap();
    assert_eq!(perm(), 0o6777, "nothing written");
    s.fs.write(&s.user, f.handle, 0, b"x").unwrap();
    assert_eq!(perm(), 0o777);
    arm();
    s.write(f.handle, 0, b"x");
    assert_eq!(perm(), 0o6777, "the superuser may");
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    s.fs.setattr(&s.other, f.attr.ino, &size, None).unwrap();
    assert_eq!(perm(), 0o777);
    arm();
    s.fs.fallocate(&s.user, f.handle, crate::FallocateMode::empty(), 0, 100).unwrap();
    assert_eq!(perm(), 0o777);
    arm();
    let to = s.fs.open(&s.other, f.attr.ino, RW).unwrap();
    s.fs.copy_file_range(&s.other, f.handle, 0, to, 50, 50).unwrap();
    s.close(to);
    assert_eq!(perm(), 0o777);
    arm();
    s.close(s.fs.open(&s.other, f.attr.ino, OpenFlags::WRITE | OpenFlags::TRUNCATE).unwrap());
    assert_eq!(perm(), 0o777);
}

pub(super) fn trusted_callers_are_not_checked(s: &Scene<'_>) {
    let kernel = Caller::checked_by_kernel(1001, 2001, 0o022);
    s.chmod(s.dir, 0);
    let made = s.kept(s.fs.create(&kernel, s.dir, b"f", 0o666, RW)).unwrap();
    assert_eq!((made.attr.uid, made.attr.gid, made.attr.perm()), (1001, 2001, 0o644));
    s.chown(made.attr.ino, 0, 0);
    s.chmod(made.attr.ino, 0);
    s.close(s.fs.open(&kernel, made.attr.ino, RW).unwrap());
    assert_eq!(set(s, &kernel, &made.attr, mode(0o6755)).map(|attr| attr.perm()), Ok(0o6755));
    s.fs.write(&kernel, made.handle, 0, b"x").unwrap();
    assert_eq!(s.attr(made.attr.ino).perm(), 0o6755, "the kernel clears them itself");
    s.fs.unlink(&kernel, s.dir, b"f").unwrap();
}

pub(super) fn devices_are_the_superusers(s: &Scene<'_>) {
    let device = FileKind::BlockDevice.mode_bits() | 0o600;
    assert_eq!(s.fs.mknod(&s.user, s.dir, b"b", device, 0x801), Err(Error::NotPermitted));
    assert_eq!(s.fs.mknod(&s.root, s.dir, b"b", device, 0x801).map(|attr| attr.rdev), Ok(0x801));
}
