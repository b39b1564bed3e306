//! Who makes what a test is about: the kernel below a directory where it has mounted something, or a volume of ours.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use ext::Volume;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, Timespec, Timestamps, UTIME_OMIT, XattrFlags,
};
use vfs::{
    Caller, FallocateMode, FileKind, FileSystem, Handle, Ino, OpenFlags, ROOT_INO, RenameFlags, SetAttr,
    SetTime, Time, XattrMode,
};

/// Makes things of all kinds, each of which must succeed. Paths are below the root, without a first slash.
pub(crate) trait Maker {
    /// An open file.
    type File;

    fn mkdir(&mut self, path: &[u8]);
    /// Opens a file for writing, which is there or made now; with `sync`, each write is on the disk before the next.
    fn open(&mut self, path: &[u8], sync: bool) -> Self::File;
    fn write_at(&mut self, file: &Self::File, bytes: &[u8], at: u64);
    fn set_len(&mut self, file: &Self::File, bytes: u64);
    fn fallocate(&mut self, file: &Self::File, mode: FallocateMode, at: u64, bytes: u64);
    fn close(&mut self, file: Self::File);
    fn link(&mut self, from: &[u8], to: &[u8]);
    fn symlink(&mut self, target: &[u8], path: &[u8]);
    fn unlink(&mut self, path: &[u8]);
    fn rmdir(&mut self, path: &[u8]);
    fn rename(&mut self, from: &[u8], to: &[u8]);
    fn mknod(&mut self, path: &[u8], kind: FileKind, device: (u32, u32));
    fn set_xattr(&mut self, path: &[u8], key: &[u8], value: &[u8]);
    fn remove_xattr(&mut self, path: &[u8], key: &[u8]);
    fn chown(&mut self, path: &[u8], uid: u32, gid: u32);
    fn chmod(&mut self, path: &[u8], mode: u32);
    /// Times of access and modification; the first may stay.
    fn set_times(&mut self, path: &[u8], access: Option<Time>, modify: Time);

    /// A file with these bytes.
    fn write(&mut self, path: &[u8], bytes: &[u8]) {
        let file = self.open(path, false);
        self.write_at(&file, bytes, 0);
        self.close(file);
    }
}

pub(crate) struct Kernel {
    root: PathBuf,
}

impl Kernel {
    pub(crate) fn below(root: &Path) -> Kernel {
        Kernel { root: root.into() }
    }

    fn at(&self, path: &[u8]) -> PathBuf {
        self.root.join(OsStr::from_bytes(path))
    }
}

impl Maker for Kernel {
    type File = File;

    fn mkdir(&mut self, path: &[u8]) {
        fs::create_dir(self.at(path)).unwrap();
    }

    fn open(&mut self, path: &[u8], sync: bool) -> File {
        let flags = if sync { rustix::fs::OFlags::DSYNC.bits() as i32 } else { 0 };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
        options.open(self.at(path)).unwrap()
    }

    fn write_at(&mut self, file: &File, bytes: &[u8], at: u64) {
        file.write_all_at(bytes, at).unwrap();
    }

    fn set_len(&mut self, file: &File, bytes: u64) {
        file.set_len(bytes).unwrap();
    }

    fn fallocate(&mut self, file: &File, mode: FallocateMode, at: u64, bytes: u64) {
        rustix::fs::fallocate(file, FallocateFlags::from_bits_retain(mode.bits()), at, bytes).unwrap();
    }

    fn close(&mut self, _: File) {}

    fn link(&mut self, from: &[u8], to: &[u8]) {
        fs::hard_link(self.at(from), self.at(to)).unwrap();
    }

    fn symlink(&mut self, target: &[u8], path: &[u8]) {
        symlink(OsStr::from_bytes(target), self.at(path)).unwrap();
    }

    fn unlink(&mut self, path: &[u8]) {
        fs::remove_file(self.at(path)).unwrap();
    }

    fn rmdir(&mut self, path: &[u8]) {
        fs::remove_dir(self.at(path)).unwrap();
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) {
        fs::rename(self.at(from), self.at(to)).unwrap();
    }

    fn mknod(&mut self, path: &[u8], kind: FileKind, (major, minor): (u32, u32)) {
        let kind = FileType::from_raw_mode(kind.mode_bits());
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(CWD, self.at(path), kind, Mode::from_raw_mode(0o640), device).unwrap();
    }

    fn set_xattr(&mut self, path: &[u8], key: &[u8], value: &[u8]) {
        let path = self.at(path);
        rustix::fs::lsetxattr(&path, OsStr::from_bytes(key), value, XattrFlags::empty())
            .unwrap_or_else(|error| panic!("{} {}: {error}", path.display(), String::from_utf8_lossy(key)));
    }

    fn remove_xattr(&mut self, path: &[u8], key: &[u8]) {
        rustix::fs::lremovexattr(self.at(path), OsStr::from_bytes(key)).unwrap();
    }

    fn chown(&mut self, path: &[u8], uid: u32, gid: u32) {
        chown(self.at(path), Some(uid), Some(gid)).unwrap();
    }

    fn chmod(&mut self, path: &[u8], mode: u32) {
        fs::set_permissions(self.at(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn set_times(&mut self, path: &[u8], access: Option<Time>, modify: Time) {
        let at = |time: Time| Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() };
        let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: access.map_or(omitted, at), last_modification: at(modify) };
        rustix::fs::utimensat(CWD, self.at(path), &times, AtFlags::empty()).unwrap();
    }
}

/// Root, at a volume.
pub(crate) struct Ours<'a> {
    volume: &'a Volume,
    caller: Caller,
    /// Where paths begin.
    root: Ino,
    /// Directories that were looked up: who makes things deep below does not look for them each time.
    known: HashMap<Vec<u8>, Ino>,
}

impl<'a> Ours<'a> {
    pub(crate) fn of(volume: &'a Volume) -> Ours<'a> {
        let known = HashMap::from([(Vec::new(), ROOT_INO)]);
        Ours { volume, caller: Caller::root(), root: ROOT_INO, known }
    }

    /// Below a directory of the root, which is made if it is not there.
    pub(crate) fn below(volume: &'a Volume, name: &str) -> Ours<'a> {
        let caller = Caller::root();
        let found = volume.lookup(&caller, ROOT_INO, name.as_bytes());
        let made = || volume.mkdir(&caller, ROOT_INO, name.as_bytes(), 0o755).unwrap();
        let root = found.unwrap_or_else(|_| made()).ino;
        Ours { root, known: HashMap::from([(Vec::new(), root)]), ..Ours::of(volume) }
    }

    /// The directory of a path, and the last name.
    fn split<'p>(&mut self, path: &'p [u8]) -> (Ino, &'p [u8]) {
        let Some(at) = path.iter().rposition(|byte| *byte == b'/') else { return (self.root, path) };
        let (dir, name) = (&path[..at], &path[at + 1..]);
        let ino = match self.known.get(dir) {
            Some(ino) => *ino,
            None => {
                let ino = self.ino(dir);
                self.known.insert(dir.to_vec(), ino);
                ino
            }
        };
        (ino, name)
    }

    fn ino(&mut self, path: &[u8]) -> Ino {
        let (dir, name) = self.split(path);
        self.volume
            .lookup(&self.caller, dir, name)
            .unwrap_or_else(|error| panic!("{}: {error}", String::from_utf8_lossy(path)))
            .ino
    }

    fn set(&mut self, path: &[u8], set: SetAttr) {
        let ino = self.ino(path);
        self.volume.setattr(&self.caller, ino, &set, None).unwrap();
    }
}

impl Maker for Ours<'_> {
    type File = (Ino, Handle);

    fn mkdir(&mut self, path: &[u8]) {
        let (dir, name) = self.split(path);
        self.volume.mkdir(&self.caller, dir, name, 0o755).unwrap();
    }

    fn open(&mut self, path: &[u8], sync: bool) -> (Ino, Handle) {
        let (dir, name) = self.split(path);
        let sync = if sync { OpenFlags::DSYNC } else { OpenFlags::empty() };
        let flags = OpenFlags::READ | OpenFlags::WRITE | sync;
        let created = self.volume.create(&self.caller, dir, name, 0o644, flags).unwrap();
        (created.attr.ino, created.handle)
    }

    fn write_at(&mut self, file: &(Ino, Handle), bytes: &[u8], at: u64) {
        assert_eq!(self.volume.write(&self.caller, file.1, at, bytes), Ok(bytes.len()));
    }

    fn set_len(&mut self, file: &(Ino, Handle), bytes: u64) {
        let set = SetAttr { size: Some(bytes), ..SetAttr::default() };
        self.volume.setattr(&self.caller, file.0, &set, Some(file.1)).unwrap();
    }

    fn fallocate(&mut self, file: &(Ino, Handle), mode: FallocateMode, at: u64, bytes: u64) {
        self.volume.fallocate(&self.caller, file.1, mode, at, bytes).unwrap();
    }

    fn close(&mut self, file: (Ino, Handle)) {
        self.volume.release(file.1).unwrap();
    }

    fn link(&mut self, from: &[u8], to: &[u8]) {
        let ino = self.ino(from);
        let (dir, name) = self.split(to);
        self.volume.link(&self.caller, ino, dir, name).unwrap();
    }

    fn symlink(&mut self, target: &[u8], path: &[u8]) {
        let (dir, name) = self.split(path);
        self.volume.symlink(&self.caller, dir, name, target).unwrap();
    }

    fn unlink(&mut self, path: &[u8]) {
        let (dir, name) = self.split(path);
        self.volume.unlink(&self.caller, dir, name).unwrap();
    }

    fn rmdir(&mut self, path: &[u8]) {
        let (dir, name) = self.split(path);
        self.volume.rmdir(&self.caller, dir, name).unwrap();
        self.known.clear();
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) {
        let ((dir, name), (new_dir, new_name)) = (self.split(from), self.split(to));
        self.volume.rename(&self.caller, dir, name, new_dir, new_name, RenameFlags::empty()).unwrap();
        self.known.clear();
    }

    fn mknod(&mut self, path: &[u8], kind: FileKind, (major, minor): (u32, u32)) {
        let (dir, name) = self.split(path);
        let device = minor & 0xFF | major << 8 | (minor & !0xFF) << 12;
        self.volume.mknod(&self.caller, dir, name, kind.mode_bits() | 0o640, device).unwrap();
    }

    fn set_xattr(&mut self, path: &[u8], key: &[u8], value: &[u8]) {
        let ino = self.ino(path);
        self.volume.setxattr(&self.caller, ino, key, value, XattrMode::Either).unwrap();
    }

    fn remove_xattr(&mut self, path: &[u8], key: &[u8]) {
        let ino = self.ino(path);
        self.volume.removexattr(&self.caller, ino, key).unwrap();
    }

    fn chown(&mut self, path: &[u8], uid: u32, gid: u32) {
        self.set(path, SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() });
    }

    fn chmod(&mut self, path: &[u8], mode: u32) {
        self.set(path, SetAttr { mode: Some(mode), ..SetAttr::default() });
    }

    fn set_times(&mut self, path: &[u8], access: Option<Time>, modify: Time) {
        let (atime, mtime) = (access.map(SetTime::At), Some(SetTime::At(modify)));
        self.set(path, SetAttr { atime, mtime, ..SetAttr::default() });
    }
}
