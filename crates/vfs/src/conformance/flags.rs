//! What chattr(1) sets, and forbids.

use super::scene::{RW, Scene};
use crate::{
    Caller, Error, FallocateMode, FileKind, Ino, InodeFlags, OpenFlags, RenameFlags, Result, SetAttr,
    SetTime, Time, XattrMode,
};

const APPENDING: OpenFlags = RW.union(OpenFlags::APPEND);

/// Makes an inode's flags of those that all volumes keep `flags`.
fn set(s: &Scene<'_>, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
    let others = s.attr(ino).flags - InodeFlags::COMMON;
    s.fs.set_inode_flags(caller, ino, others | flags)
}

fn make(s: &Scene<'_>, ino: Ino, flags: InodeFlags) {
    set(s, &s.root, ino, flags).expect("the superuser sets flags");
}

fn common(s: &Scene<'_>, ino: Ino) -> InodeFlags {
    s.attr(ino).flags & InodeFlags::COMMON
}

fn forbidden<T: std::fmt::Debug>(result: Result<T>) {
    assert_eq!(result.map(drop), Err(Error::NotPermitted));
}

/// A case's directory is to be empty again in the end.
fn free(s: &Scene<'_>, all: &[Ino]) {
    all.iter().for_each(|ino| make(s, *ino, InodeFlags::empty()));
}

pub(super) fn letters_are_kept(s: &Scene<'_>) {
    let (file, dir) = (s.file("f", b"amber"), s.mkdir("d"));
    for ino in [file, dir] {
        assert_eq!(common(s, ino), InodeFlags::empty());
        for flags in [
            InodeFlags::NODUMP,
            InodeFlags::APPEND | InodeFlags::NOATIME,
            InodeFlags::COMMON,
            InodeFlags::APPEND,
        ] {
            make(s, ino, flags);
            assert_eq!(common(s, ino), flags);
        }
        make(s, ino, InodeFlags::empty());
    }
    // Any other change leaves them alone.
    make(s, file, InodeFlags::NODUMP);
    s.chmod(file, 0o600);
    s.set(file, SetAttr { size: Some(2), ..SetAttr::default() });
    s.fs.setxattr(&s.root, file, b"user.a", b"1", XattrMode::Either).unwrap();
    s.link(file, "g").unwrap();
    s.rename("f", "h", RenameFlags::empty()).unwrap();
    let handle = s.open(file, RW);
    s.write(handle, 0, &[7; 9000]);
    s.fs.fallocate(&s.root, handle, FallocateMode::empty(), 0, 20_000).unwrap();
    s.close(handle);
    assert_eq!(common(s, file), InodeFlags::NODUMP);
    let before = s.set(file, SetAttr { ctime: Some(crate::Time { sec: 5, nsec: 0 }), ..SetAttr::default() });
    make(s, file, InodeFlags::empty());
    assert!(s.attr(file).ctime > before.ctime, "it is a change of attributes");
}

pub(super) fn letters_are_handed_down(s: &Scene<'_>) {
    make(s, s.dir, InodeFlags::NODUMP | InodeFlags::NOATIME | InodeFlags::APPEND);
    let dir = s.mkdir("d");
    for ino in [s.file("f", b""), dir, s.file("g", &[1; 5000])] {
        assert_eq!(common(s, ino), InodeFlags::INHERITED);
    }
    let unnamed = s.kept(s.fs.tmpfile(&s.root, dir, 0o600, RW)).unwrap();
    assert_eq!(unnamed.attr.flags & InodeFlags::COMMON, InodeFlags::INHERITED);
    make(s, s.dir, InodeFlags::empty());
    assert_eq!(common(s, s.file("h", b"")), InodeFlags::empty());
}

pub(super) fn letters_are_the_owners(s: &Scene<'_>) {
    let file = s.create_as(&s.user, "f", 0o666).attr.ino;
    set(s, &s.user, file, InodeFlags::NODUMP).unwrap();
    forbidden(set(s, &s.other, file, InodeFlags::empty()));
    forbidden(set(s, &s.user, file, InodeFlags::NODUMP | InodeFlags::IMMUTABLE));
    forbidden(set(s, &s.user, file, InodeFlags::APPEND));
    make(s, file, InodeFlags::APPEND);
    forbidden(set(s, &s.user, file, InodeFlags::empty()));
    set(s, &s.user, file, InodeFlags::APPEND | InodeFlags::NOATIME).unwrap();
    make(s, file, InodeFlags::IMMUTABLE);
    forbidden(set(s, &s.root, file, InodeFlags::IMMUTABLE | InodeFlags::NODUMP));
    make(s, file, InodeFlags::IMMUTABLE);
    // Synchronous: that all is durable at once is not for a flag to say.
    make(s, file, InodeFlags::empty());
    let refused = set(s, &s.root, file, InodeFlags::from_bits_retain(0x8));
    assert_eq!(refused, Err(Error::NotSupported));
    let fifo = s.fs.mknod(&s.root, s.dir, b"p", FileKind::Fifo.mode_bits() | 0o600, 0).unwrap().ino;
    assert_eq!(set(s, &s.root, fifo, InodeFlags::IMMUTABLE), Err(Error::NotSupported));
    make(s, fifo, InodeFlags::NODUMP);
    assert_eq!(s.fs.set_inode_flags(&s.root, 1 << 30, InodeFlags::empty()), Err(Error::Stale));
}

pub(super) fn nobody_changes_what_is_immutable(s: &Scene<'_>) {
    let file = s.file("f", b"amber");
    s.fs.setxattr(&s.root, file, b"user.a", b"1", XattrMode::Either).unwrap();
    make(s, file, InodeFlags::IMMUTABLE);
    let before = s.attr(file);
    let checked = Caller::checked_by_kernel(0, 0, 0);
    for caller in [&s.root, &checked] {
        forbidden(s.fs.open(caller, file, RW));
        forbidden(s.fs.open(caller, file, APPENDING));
        forbidden(s.fs.open(caller, file, RW | OpenFlags::TRUNCATE));
        forbidden(s.fs.create(caller, s.dir, b"f", 0o644, RW));
        forbidden(s.fs.unlink(caller, s.dir, b"f"));
        forbidden(s.fs.link(caller, file, s.dir, b"g"));
        forbidden(s.fs.rename(caller, s.dir, b"f", s.dir, b"g", RenameFlags::empty()));
        s.file("other", b"");
        forbidden(s.fs.rename(caller, s.dir, b"other", s.dir, b"f", RenameFlags::empty()));
        forbidden(s.fs.rename(caller, s.dir, b"other", s.dir, b"f", RenameFlags::EXCHANGE));
        s.unlink("other").unwrap();
        forbidden(s.fs.setxattr(caller, file, b"user.a", b"2", XattrMode::Either));
        forbidden(s.fs.removexattr(caller, file, b"user.a"));
        let now = Some(SetTime::Now);
        for change in [
            SetAttr { mode: Some(0o600), ..SetAttr::default() },
            SetAttr { uid: Some(0), ..SetAttr::default() },
            SetAttr { size: Some(5), ..SetAttr::default() },
            SetAttr { mtime: now, ..SetAttr::default() },
            SetAttr { atime: now, mtime: now, ..SetAttr::default() },
        ] {
            forbidden(s.fs.setattr(caller, file, &change, None));
        }
    }
    forbidden(s.fs.access(&s.root, file, crate::rules::WRITE));
    assert_eq!(s.fs.access(&s.root, file, crate::rules::READ), Ok(()));
    assert_eq!((s.bytes(file), s.attr(file)), (b"amber".to_vec(), before));
    free(s, &[file]);
    s.unlink("f").unwrap();
}

pub(super) fn what_may_only_grow_grows(s: &Scene<'_>) {
    let file = s.file("f", b"amber");
    make(s, file, InodeFlags::APPEND);
    forbidden(s.fs.open(&s.root, file, RW));
    forbidden(s.fs.open(&s.root, file, APPENDING | OpenFlags::TRUNCATE));
    let handle = s.open(file, APPENDING);
    s.write(handle, 0, b" grows");
    forbidden(s.fs.fallocate(&s.root, handle, PUNCH, 0, 4096));
    forbidden(s.fs.fallocate(&s.root, handle, FallocateMode::ZERO_RANGE, 0, 4));
    s.fs.fallocate(&s.root, handle, FallocateMode::KEEP_SIZE, 0, 10_000).unwrap();
    let size = SetAttr { size: Some(5), ..SetAttr::default() };
    forbidden(s.fs.setattr(&s.root, file, &size, None));
    forbidden(s.fs.setattr(&s.root, file, &size, Some(handle)));
    let now = Some(SetTime::Now);
    s.set(file, SetAttr { atime: now, mtime: now, ..SetAttr::default() });
    forbidden(s.unlink("f"));
    forbidden(s.link(file, "g"));
    s.close(handle);
    assert_eq!(s.bytes(file), b"amber grows");
    free(s, &[file]);
    s.unlink("f").unwrap();
}

const PUNCH: FallocateMode = FallocateMode::PUNCH_HOLE.union(FallocateMode::KEEP_SIZE);

/// Whoever opened a file before it was protected changes it no more, but for the server of a cache: what that brings may be older.
pub(super) fn an_open_handle_is_bound(s: &Scene<'_>) {
    let made = s.create("f");
    let (file, handle) = (made.attr.ino, made.handle);
    s.write(handle, 0, b"amber");
    let source = s.file("source", b"other bytes");
    let from = s.open(source, OpenFlags::READ);
    let cache = Caller { from_cache: true, ..Caller::checked_by_kernel(0, 0, 0) };

    make(s, file, InodeFlags::IMMUTABLE);
    let before = s.attr(file);
    forbidden(s.fs.write(&s.root, handle, 0, b"AMBER"));
    forbidden(s.fs.write(&s.root, handle, 100_000, b"AMBER"));
    forbidden(s.fs.fallocate(&s.root, handle, FallocateMode::empty(), 0, 10_000));
    forbidden(s.fs.fallocate(&s.root, handle, PUNCH, 0, 4096));
    forbidden(s.fs.copy_file_range(&s.root, from, 0, handle, 0, 5));
    assert_eq!((s.bytes(file), s.attr(file)), (b"amber".to_vec(), before));
    let time = Some(SetTime::At(Time { sec: 9, nsec: 5_000_000 }));
    let kept = SetAttr { mtime: time, ctime: Some(before.ctime), ..SetAttr::default() };
    forbidden(s.fs.setattr(&Caller::checked_by_kernel(0, 0, 0), file, &kept, None));
    assert_eq!(s.fs.setattr(&cache, file, &kept, None).map(|attr| attr.mtime.sec), Ok(9));
    assert_eq!(s.fs.write(&cache, handle, 0, b"cache"), Ok(5));

    make(s, file, InodeFlags::APPEND);
    forbidden(s.fs.write(&s.root, handle, 0, b"AMBER"));
    forbidden(s.fs.copy_file_range(&s.root, from, 0, handle, 5, 5));
    let long = vec![b'x'; 3 << 20];
    s.write(handle, 2 << 20, &long);
    assert_eq!(s.fs.write(&s.root, handle, 5, b"cache keeps"), Ok(11), "where zeros were");
    let over = [b"cachecache keeps".to_vec(), vec![b'y'; 3 << 20]].concat();
    forbidden(s.fs.write(&s.root, handle, 0, &over));
    assert_eq!(s.bytes(file)[..20], *b"cachecache keeps\0\0\0\0");
    free(s, &[file]);
    s.write(handle, 0, b"free!");
    assert_eq!(s.bytes(file)[..5], *b"free!");
}

pub(super) fn directories_keep_their_names(s: &Scene<'_>) {
    let (fixed, growing) = (s.mkdir("fixed"), s.mkdir("growing"));
    let file = s.fs.mknod(&s.root, fixed, b"f", 0o644, 0).unwrap().ino;
    s.fs.mknod(&s.root, growing, b"f", 0o644, 0).unwrap();
    make(s, fixed, InodeFlags::IMMUTABLE);
    make(s, growing, InodeFlags::APPEND);
    let none = RenameFlags::empty();
    for dir in [fixed, growing] {
        forbidden(s.fs.unlink(&s.root, dir, b"f"));
        forbidden(s.fs.rename(&s.root, dir, b"f", s.dir, b"f", none));
        forbidden(s.fs.rename(&s.root, dir, b"f", dir, b"g", none));
    }
    forbidden(s.fs.mknod(&s.root, fixed, b"g", 0o644, 0));
    forbidden(s.fs.mkdir(&s.root, fixed, b"g", 0o755));
    forbidden(s.fs.symlink(&s.root, fixed, b"g", b"x"));
    forbidden(s.fs.link(&s.root, file, fixed, b"g"));
    forbidden(s.fs.create(&s.root, fixed, b"g", 0o644, RW));
    forbidden(s.fs.tmpfile(&s.root, fixed, 0o644, RW));
    let outside = s.file("outside", b"");
    forbidden(s.fs.rename(&s.root, s.dir, b"outside", fixed, b"g", none));
    s.fs.rename(&s.root, s.dir, b"outside", growing, b"g", none).unwrap();
    s.fs.link(&s.root, outside, growing, b"h").unwrap();
    forbidden(s.rmdir("fixed"));
    assert_eq!(
        (s.names(fixed), s.names(growing)),
        (vec!["f".into()], vec!["f".into(), "g".into(), "h".into()])
    );
    // What is in it is not protected.
    let handle = s.open(file, RW);
    s.write(handle, 0, b"bytes");
    s.close(handle);
    free(s, &[fixed, growing]);
    s.fs.unlink(&s.root, fixed, b"f").unwrap();
    s.rmdir("fixed").unwrap();
}
