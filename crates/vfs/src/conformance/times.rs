//! Which operation sets which times.

use std::thread::sleep;
use std::time::Duration;

use super::scene::{RW, Scene};
use crate::{
    Caller, Error, FallocateMode, Ino, InodeFlags, OpenFlags, RenameFlags, SeekFrom, SetAttr, SetTime, Time,
    XattrMode,
};

/// How long a volume's clock is given to move before it is looked at again.
const TICK: Duration = Duration::from_millis(4);

/// Waits until the volume's clock shows another time than it shows now. A kernel's coarse clock ticks every few
/// milliseconds, and on a busy virtual machine now and then not for many.
fn wait_for_tick(s: &Scene<'_>) {
    let probe = s.fs.tmpfile(&s.root, s.dir, 0o600, RW).unwrap();
    let touch = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    let now = || s.fs.setattr(&s.root, probe.attr.ino, &touch, None).unwrap().mtime;
    let first = now();
    // A second is enough for any clock; a volume whose times stand still is then caught by what is compared.
    for _ in 0..250 {
        if now() != first {
            break;
        }
        sleep(TICK);
    }
    s.fs.release(probe.handle).unwrap();
}

/// Which of the inodes' times `operation` sets: a for atime, m for mtime, c for ctime.
fn sets<T, const N: usize>(s: &Scene<'_>, inodes: [Ino; N], operation: impl FnOnce() -> T) -> [String; N] {
    let before = inodes.map(|ino| s.attr(ino));
    wait_for_tick(s);
    operation();
    std::array::from_fn(|i| {
        let (before, after) = (before[i], s.attr(inodes[i]));
        let times = [
            ("a", before.atime, after.atime),
            ("m", before.mtime, after.mtime),
            ("c", before.ctime, after.ctime),
        ];
        assert_eq!(before.btime, after.btime, "nothing sets the time of creation");
        times.into_iter().filter(|(_, before, after)| before != after).map(|(letter, ..)| letter).collect()
    })
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

pub(super) fn creation_sets_all(s: &Scene<'_>) {
    let file = s.fs.mknod(&s.root, s.dir, b"f", 0o644, 0).unwrap();
    assert!(file.atime == file.mtime && file.mtime == file.ctime, "one moment for all: {file:?}");
    let now = Time::now();
    let age = |time: Time| now.sec - time.sec;
    assert!((-1..100).contains(&age(file.mtime)), "the time is the clock's: {file:?}");
    assert_eq!(sets(s, [s.dir], || s.create("g")), ["mc"]);
    assert_eq!(sets(s, [s.dir], || s.mkdir("d")), ["mc"]);
    assert_eq!(sets(s, [s.dir], || s.fs.symlink(&s.root, s.dir, b"l", b"x").unwrap()), ["mc"]);
    assert_eq!(sets(s, [s.dir, file.ino], || s.link(file.ino, "h").unwrap()), ["mc", "c"]);
    assert_eq!(sets(s, [s.dir], || s.kept(s.fs.tmpfile(&s.root, s.dir, 0o600, RW)).unwrap()), [""]);
    assert_eq!(
        sets(s, [s.dir], || s.kept(s.fs.create(&s.root, s.dir, b"g", 0o600, RW)).unwrap()),
        [""],
        "it was there"
    );
}

pub(super) fn bytes_set_mtime_and_ctime(s: &Scene<'_>) {
    let f = s.create("f");
    let ino = f.attr.ino;
    assert_eq!(sets(s, [ino, s.dir], || s.write(f.handle, 0, b"bytes")), ["mc", ""]);
    assert_eq!(sets(s, [ino], || s.write(f.handle, 0, b"bytes")), ["mc"], "also the same bytes");
    assert_eq!(sets(s, [ino], || s.write(f.handle, 0, b"")), [""]);
    let allocate = |mode| s.fs.fallocate(&s.root, f.handle, mode, 0, 10_000).unwrap();
    assert_eq!(sets(s, [ino], || allocate(FallocateMode::empty())), ["mc"]);
    assert_eq!(sets(s, [ino], || allocate(FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE)), ["mc"]);
    assert_eq!(sets(s, [ino], || allocate(FallocateMode::ZERO_RANGE)), ["mc"]);
    let g = s.create("g");
    let copy = |len| s.fs.copy_file_range(&s.root, f.handle, 0, g.handle, 0, len).unwrap();
    assert_eq!(sets(s, [ino, g.attr.ino], || copy(8192)), ["", "mc"]);
    assert_eq!(sets(s, [ino, g.attr.ino], || copy(0)), ["", ""]);
}

pub(super) fn reading_sets_none(s: &Scene<'_>) {
    let f = s.create("f");
    s.write(f.handle, 0, b"bytes");
    let link = s.fs.symlink(&s.root, s.dir, b"l", b"x").unwrap().ino;
    let all = [f.attr.ino, link, s.dir];
    let read = || {
        s.read(f.handle, 0, 10);
        s.fs.read_slices(f.handle, 0, 10, &mut |_| {}).unwrap();
        s.fs.seek(f.handle, SeekFrom::Data(0)).unwrap();
        s.fs.readlink(link).unwrap();
        s.names(s.dir);
        s.find("f").unwrap();
        s.fs.access(&s.user, f.attr.ino, 4).unwrap();
        s.fs.fsync(f.handle, false).unwrap();
        s.fs.syncfs().unwrap();
        assert_eq!(s.fs.getxattr(&s.root, f.attr.ino, b"user.a"), Err(Error::NoAttribute));
        s.close(s.open(f.attr.ino, RW));
        s.fs.setattr(&s.root, f.attr.ino, &SetAttr::default(), None).unwrap();
    };
    assert_eq!(sets(s, all, read), ["", "", ""]);
}

pub(super) fn truncation(s: &Scene<'_>) {
    let f = s.create("f");
    let ino = [f.attr.ino];
    assert_eq!(sets(s, ino, || s.set(f.attr.ino, size(10_000))), ["mc"], "longer");
    assert_eq!(sets(s, ino, || s.set(f.attr.ino, size(10))), ["mc"], "shorter");
    assert_eq!(sets(s, ino, || s.set(f.attr.ino, size(10))), [""], "truncate(2) to the present length");
    let by_handle = |len| s.fs.setattr(&s.root, f.attr.ino, &size(len), Some(f.handle)).unwrap();
    assert_eq!(sets(s, ino, || by_handle(10)), ["mc"], "ftruncate(2) to the present length");
    let truncate = || s.close(s.open(f.attr.ino, OpenFlags::WRITE | OpenFlags::TRUNCATE));
    assert_eq!(sets(s, ino, truncate), ["mc"]);
    assert_eq!(sets(s, ino, truncate), ["mc"], "of an empty file, too");
}

pub(super) fn attributes_set_ctime(s: &Scene<'_>) {
    let ino = s.file("f", b"");
    let both = [ino, s.dir];
    assert_eq!(sets(s, both, || s.chmod(ino, 0o600)), ["c", ""]);
    assert_eq!(sets(s, both, || s.chmod(ino, 0o600)), ["c", ""], "also to what it is");
    assert_eq!(sets(s, both, || s.chown(ino, 1, 1)), ["c", ""]);
    let xattr = |value: &[u8]| s.fs.setxattr(&s.root, ino, b"user.a", value, XattrMode::Either).unwrap();
    assert_eq!(sets(s, both, || xattr(b"one")), ["c", ""]);
    assert_eq!(sets(s, both, || xattr(b"two")), ["c", ""]);
    assert_eq!(sets(s, both, || s.fs.removexattr(&s.root, ino, b"user.a").unwrap()), ["c", ""]);
}

pub(super) fn names_set_the_directories(s: &Scene<'_>) {
    let ino = s.file("f", b"");
    s.link(ino, "g").unwrap();
    assert_eq!(sets(s, [ino, s.dir], || s.unlink("f").unwrap()), ["c", "mc"]);
    s.mkdir("d");
    assert_eq!(sets(s, [ino, s.dir], || s.rmdir("d").unwrap()), ["", "mc"]);
    let handle = s.open(ino, OpenFlags::READ);
    assert_eq!(sets(s, [ino], || s.unlink("g").unwrap()), ["c"], "open, its last name gone");
    s.close(handle);
}

pub(super) fn renames_set_both_directories(s: &Scene<'_>) {
    let (a, b) = (s.mkdir("a"), s.mkdir("b"));
    let (file, sub) = (s.file("f", b""), s.mkdir("sub"));
    let none = RenameFlags::empty();
    let renamed = || s.rename("f", "g", none).unwrap();
    assert_eq!(sets(s, [file, s.dir, a], renamed), ["c", "mc", ""]);
    let moved = || s.move_to(s.dir, "g", a, "g", none).unwrap();
    assert_eq!(sets(s, [file, s.dir, a, b], moved), ["c", "mc", "mc", ""]);
    let moved = || s.move_to(s.dir, "sub", b, "sub", none).unwrap();
    assert_eq!(sets(s, [sub, s.dir, b], moved), ["c", "mc", "mc"]);
    let swapped = || s.move_to(a, "g", b, "sub", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(sets(s, [file, sub, a, b, s.dir], swapped), ["c", "c", "mc", "mc", ""]);
    let replaced = s.file("r", b"");
    s.link(replaced, "other").unwrap();
    let replace = || s.move_to(b, "sub", s.dir, "r", none).unwrap();
    assert_eq!(sets(s, [replaced, file, b, s.dir], replace), ["c", "c", "mc", "mc"]);
    let same = || s.rename("r", "r", none).unwrap();
    assert_eq!(sets(s, [file, s.dir], same), ["", ""]);
}

fn at(sec: i64, nsec: u32) -> Option<SetTime> {
    Some(SetTime::At(Time { sec, nsec }))
}

/// What a volume makes of a time that it is given: old inodes of ext have room for 32 bits of seconds only.
fn held(s: &Scene<'_>) -> impl Fn(i64, u32) -> Time + use<> {
    let ino = s.file("probe", b"");
    let is_fine = s.set(ino, SetAttr { mtime: at(1, 1), ..SetAttr::default() }).mtime.nsec == 1;
    move |sec, nsec| match is_fine {
        true => Time { sec, nsec },
        false => Time { sec: sec.min(i32::MAX.into()), nsec: 0 },
    }
}

pub(super) fn given_times_are_kept(s: &Scene<'_>) {
    let ino = s.file("f", b"");
    let held = held(s);
    for (sec, nsec) in
        [(0, 0), (1, 1), (1 << 30, 999_999_999), (-1, 999_999_999), (-(1 << 31), 5), ((1 << 33) - 1, 7)]
    {
        let set = SetAttr { atime: at(sec, nsec), mtime: at(sec, nsec / 2), ..SetAttr::default() };
        let attr = s.set(ino, set);
        let expected = (held(sec, nsec), held(sec, nsec / 2));
        assert_eq!((attr.atime, attr.mtime), expected);
        assert_eq!((s.attr(ino).atime, s.attr(ino).mtime), expected);
        assert!(attr.ctime.sec > 1 << 30, "ctime is now");
    }
    let only = |atime, mtime| sets(s, [ino], || s.set(ino, SetAttr { atime, mtime, ..SetAttr::default() }));
    assert_eq!(only(at(5, 5), None), ["ac"]);
    assert_eq!(only(None, at(5, 5)), ["mc"]);
    let bad = SetAttr { mtime: at(0, 1_000_000_000), ..SetAttr::default() };
    assert_eq!(s.fs.setattr(&s.root, ino, &bad, None), Err(Error::Invalid));
    let link = s.fs.symlink(&s.root, s.dir, b"l", b"x").unwrap().ino;
    assert_eq!(s.set(link, SetAttr { mtime: at(7, 7), ..SetAttr::default() }).mtime, held(7, 7));
}

/// 2^34 seconds are in the year 2514; ext4 ends in 2446, its old inodes in 2038, and then keep their last second, as Linux has it.
pub(super) fn far_times_are_kept_or_clamped(s: &Scene<'_>) {
    let ino = s.file("f", b"");
    for sec in [1 << 34, (1 << 34) + 1, -(1 << 35)] {
        let kept = s.set(ino, SetAttr { mtime: at(sec, 5), ..SetAttr::default() }).mtime;
        assert_eq!(s.attr(ino).mtime, kept);
        let clamped = kept.sec.abs() >= (1 << 31) - 1
            && kept.sec.abs() < sec.abs()
            && kept.sec.signum() == sec.signum();
        assert!(kept == Time { sec, nsec: 5 } || clamped, "{sec} became {kept:?}");
    }
}

pub(super) fn now_is_now(s: &Scene<'_>) {
    let ino = s.file("f", b"");
    s.set(ino, SetAttr { atime: at(5, 5), mtime: at(5, 5), ..SetAttr::default() });
    let now = Some(SetTime::Now);
    let attr = s.set(ino, SetAttr { atime: now, mtime: now, ..SetAttr::default() });
    assert!(attr.atime == attr.mtime && attr.mtime == attr.ctime && attr.ctime.sec > 1 << 30, "{attr:?}");
}

/// What a cache asks for has been done in its pages before, and by others: it sets the times of that itself.
pub(super) fn a_cache_keeps_times(s: &Scene<'_>) {
    let ino = s.file("f", &[1; 9000]);
    let written = s.open(ino, RW);
    let cache = Caller::checked_by_kernel(0, 0, 0).keeping_times();
    let write = |caller: &Caller, at, bytes: &[u8]| s.fs.write(caller, written, at, bytes).unwrap();
    assert_eq!(sets(s, [ino], || write(&cache, 0, &[2; 4096])), [""], "a block");
    assert_eq!(sets(s, [ino], || write(&cache, 5000, b"part of one")), [""]);
    assert_eq!(sets(s, [ino], || write(&cache, 8999, &[3; 5000])), [""], "the length changes");
    assert_eq!(s.attr(ino).size, 13_999);
    assert_eq!(sets(s, [ino], || write(&s.root, 0, &[4; 4096])), ["mc"]);
    // Privileges go as with anybody else's.
    s.set(ino, SetAttr { mode: Some(0o6755), ..SetAttr::default() });
    let unprivileged = s.user.clone().keeping_times();
    assert_eq!(sets(s, [ino], || write(&unprivileged, 0, b"x")), [""]);
    assert_eq!(s.attr(ino).perm(), 0o755);
    let mut bytes = [0; 3];
    s.fs.read(written, 4095, &mut bytes).unwrap();
    assert_eq!(bytes, [4, 1, 1]);
    let allocate = |mode| s.fs.fallocate(&cache, written, mode, 4096, 20_000).unwrap();
    for mode in [FallocateMode::KEEP_SIZE, FallocateMode::empty(), FallocateMode::ZERO_RANGE] {
        assert_eq!(sets(s, [ino], || allocate(mode)), [""], "{mode:?}");
    }
    let punch = FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE;
    assert_eq!(sets(s, [ino], || allocate(punch)), [""]);
    let source = s.file("source", &[4; 5000]);
    let from = s.open(source, OpenFlags::READ);
    let copy = || assert_eq!(s.fs.copy_file_range(&cache, from, 0, written, 0, 5000).unwrap(), 5000);
    assert_eq!(sets(s, [ino], copy), [""]);
    for length in [3, 13_999, 13_999] {
        let cut = || s.fs.setattr(&cache, ino, &size(length), Some(written)).map(drop).unwrap();
        assert_eq!(sets(s, [ino], cut), [""], "{length}");
    }
    let flags = s.attr(ino).flags;
    let set_flags = |flags| s.fs.set_inode_flags(&cache, ino, flags).unwrap();
    assert_eq!(sets(s, [ino], || set_flags(flags | InodeFlags::NODUMP)), [""]);
    set_flags(flags);
    s.close(from);
    s.close(written);
}

pub(super) fn failures_set_none(s: &Scene<'_>) {
    let f = s.file("f", b"bytes");
    let d = s.mkdir("d");
    s.mkdir_in(d, "sub");
    let reader = s.open(f, OpenFlags::READ);
    let none = RenameFlags::empty();
    let fail = || {
        assert!(s.fs.mkdir(&s.root, s.dir, b"f", 0o755).is_err());
        assert!(s.fs.link(&s.root, f, s.dir, b"d").is_err());
        assert!(s.unlink("d").is_err() && s.unlink("missing").is_err());
        assert!(s.rmdir("d").is_err() && s.rmdir("f").is_err());
        assert!(s.rename("f", "d", none).is_err() && s.rename("d", "f", none).is_err());
        assert!(s.move_to(s.dir, "d", d, "x", none).is_err());
        assert!(s.fs.write(&s.root, reader, 0, b"x").is_err());
        assert!(s.fs.setattr(&s.user, f, &size(0), None).is_err());
        assert!(s.fs.setxattr(&s.root, f, b"user.a", b"", XattrMode::Replace).is_err());
        assert!(s.fs.removexattr(&s.root, f, b"user.a").is_err());
    };
    assert_eq!(sets(s, [f, d, s.dir], fail), ["", "", ""]);
    s.close(reader);
}
