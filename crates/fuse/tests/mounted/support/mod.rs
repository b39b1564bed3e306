//! A mount of the model in a temporary directory, with a volume that watches what reaches it.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod asynchronous;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fuse::{Mount, MountOptions, RequestCounts};
use parking_lot::RwLock;
use tempfile::TempDir;
use vfs::model::Model;
use vfs::{
    Attr, Caller, Created, DirEntry, Error, FallocateMode, FileSystem, Handle, Ino, InodeFlags, OpenFlags,
    RenameFlags, Result, SeekFrom, SetAttr, Statfs, Time, XattrMode,
};

/// The name whose lookup makes the volume panic.
pub const PANICS: &str = "makes-the-volume-panic";
/// A directory that has this name cannot be listed to its end.
pub const DAMAGED: &str = "makes-the-listing-fail";
/// The name whose lookup is never answered.
pub const SILENCE: &str = "is-never-answered";

/// Held by who copies the table of open files: a program has it for a moment when it begins, and who mounts, or has the kernel let go of
/// something, asks in a thread that has one of its own ([`fuse::apart`]), which Linux fills with up to 64 files before it closes
/// them. Meanwhile no mount can be unmounted of which a test had a file open, and closing the copies is a message to each.
static FILES: RwLock<()> = RwLock::new(());

/// Until what it returns is dropped, no test does anything of that kind.
pub fn undisturbed() -> impl Drop {
    FILES.read_recursive()
}

/// Until what it returns is dropped, this test alone does, and none counts requests.
pub fn disturbing() -> impl Drop {
    FILES.write()
}

#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A model that counts its open handles and panics on demand.
pub struct Watched {
    model: Model,
    handles: AtomicI64,
    volatile: AtomicU64,
    protected: AtomicU64,
    failing: AtomicBool,
    is_late: AtomicBool,
    room: AtomicU64,
    has_room_for_one: AtomicBool,
}

impl Watched {
    pub fn new() -> Watched {
        Watched {
            model: Model::new(),
            handles: AtomicI64::new(0),
            volatile: AtomicU64::new(0),
            protected: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
            room: AtomicU64::new(u64::MAX),
            has_room_for_one: AtomicBool::new(false),
        }
    }

    pub fn open_handles(&self) -> i64 {
        self.handles.load(Ordering::SeqCst)
    }

    /// Inode `ino` will change otherwise than through the mount.
    pub fn make_volatile(&self, ino: Ino) {
        self.volatile.store(ino, Ordering::SeqCst);
    }

    /// Inode `ino` is as one of a snapshot: nobody can change it.
    pub fn protect(&self, ino: Ino) {
        self.protected.store(ino, Ordering::SeqCst);
    }

    fn may_change(&self, ino: Ino) -> Result<()> {
        if ino == self.protected.load(Ordering::SeqCst) { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// From now on, reads find out at their end that the medium gave nothing.
    pub fn fail_reads(&self) {
        self.failing.store(true, Ordering::SeqCst);
    }

    /// From now on, the clock by which changes are stamped shows another time than the kernel's.
    pub fn be_late(&self) {
        self.is_late.store(true, Ordering::SeqCst);
    }

    fn late<T>(&self, change: impl FnOnce() -> T) -> T {
        let now = Time::now();
        Time::stop(self.is_late.load(Ordering::SeqCst).then_some(Time { sec: now.sec + 1000, ..now }));
        let changed = change();
        Time::stop(None);
        changed
    }

    /// From now on, no file takes bytes at or behind `bytes`, and nothing else is free.
    pub fn set_room(&self, bytes: u64) {
        self.room.store(bytes, Ordering::SeqCst);
    }

    /// From now on, a file finds room while no other one is open.
    pub fn have_room_for_one(&self) {
        self.has_room_for_one.store(true, Ordering::SeqCst);
    }

    fn opened<T>(&self, result: Result<T>) -> Result<T> {
        self.handles.fetch_add(i64::from(result.is_ok()), Ordering::SeqCst);
        result
    }
}

macro_rules! as_the_model {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            self.late(|| self.model.$name($($argument),*))
        })*
    };
}

impl FileSystem for Watched {
    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let mut is_at_end = true;
        self.model.readdir(dir, from, &mut |entry| {
            is_at_end = sink(entry);
            is_at_end
        })?;
        match is_at_end && self.model.lookup(&Caller::root(), dir, DAMAGED.as_bytes()).is_ok() {
            true => Err(Error::Corrupt("what is behind its last name".into())),
            false => Ok(()),
        }
    }
    fn is_volatile(&self, ino: Ino) -> bool {
        ino == self.volatile.load(Ordering::SeqCst)
    }
    fn lookup(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        assert_ne!(name, PANICS.as_bytes(), "as asked for");
        if name == SILENCE.as_bytes() {
            let _ = writeln!(std::io::stderr(), "asked for {SILENCE}");
            loop {
                std::thread::park();
            }
        }
        self.model.lookup(caller, dir, name)
    }
    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            self.may_change(ino)?;
        }
        self.opened(self.model.open(caller, ino, flags))
    }
    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, flags: OpenFlags) -> Result<Created> {
        self.opened(self.model.create(caller, dir, name, mode, flags))
    }
    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, flags: OpenFlags) -> Result<Created> {
        self.opened(self.model.tmpfile(caller, dir, mode, flags))
    }
    fn release(&self, handle: Handle) -> Result<()> {
        self.handles.fetch_sub(1, Ordering::SeqCst);
        self.model.release(handle)
    }
    fn read_slices(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        let read = self.model.read_slices(handle, offset, len, sink)?;
        if self.failing.load(Ordering::SeqCst) { Err(Error::Io("of a test".into())) } else { Ok(read) }
    }
    fn write(&self, caller: &Caller, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let room = self.room.load(Ordering::SeqCst).saturating_sub(offset).min(data.len() as u64);
        if room == 0 && !data.is_empty() {
            return Err(Error::NoSpace);
        }
        self.late(|| self.model.write(caller, handle, offset, &data[..room as usize]))
    }
    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr, handle: Option<Handle>) -> Result<Attr> {
        self.may_change(ino)?;
        self.late(|| self.model.setattr(caller, ino, set, handle))
    }
    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.may_change(ino)?;
        self.late(|| self.model.removexattr(caller, ino, name))
    }
    fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        if self.has_room_for_one.load(Ordering::SeqCst) && self.open_handles() > 1 {
            return Err(Error::NoSpace);
        }
        self.late(|| self.model.fallocate(caller, handle, mode, offset, len))
    }
    fn statfs(&self) -> Result<Statfs> {
        let space = self.model.statfs()?;
        let is_full = self.room.load(Ordering::SeqCst) != u64::MAX;
        Ok(if is_full { Statfs { blocks_available: 0, ..space } } else { space })
    }
    as_the_model! {
        fn getattr(ino: Ino) -> Result<Attr>;
        fn set_inode_flags(caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()>;
        fn readlink(ino: Ino) -> Result<Vec<u8>>;
        fn access(caller: &Caller, ino: Ino, mask: u32) -> Result<()>;
        fn mknod(caller: &Caller, dir: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Attr>;
        fn mkdir(caller: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr>;
        fn symlink(caller: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr>;
        fn link(caller: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr>;
        fn unlink(caller: &Caller, dir: Ino, name: &[u8]) -> Result<()>;
        fn rmdir(caller: &Caller, dir: Ino, name: &[u8]) -> Result<()>;
        fn rename(
            caller: &Caller, dir: Ino, name: &[u8], new_dir: Ino, new_name: &[u8], flags: RenameFlags
        ) -> Result<()>;
        fn read(handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize>;
        fn fsync(handle: Handle, data_only: bool) -> Result<()>;
        fn fsync_inode(ino: Ino) -> Result<()>;
        fn syncfs() -> Result<()>;
        fn getxattr(caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        fn setxattr(caller: &Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
        fn listxattr(caller: &Caller, ino: Ino) -> Result<Vec<u8>>;
        fn seek(handle: Handle, from: SeekFrom) -> Result<u64>;
        fn copy_file_range(
            caller: &Caller, from: Handle, from_offset: u64, to: Handle, to_offset: u64, len: u64
        ) -> Result<u64>;
    }
}

/// A mounted model, unmounted when dropped.
pub struct Mounted {
    mount: Option<Mount>,
    pub volume: Arc<Watched>,
    dir: TempDir,
}

impl Mounted {
    pub fn new() -> Mounted {
        Mounted::with(&MountOptions::default())
    }

    pub fn writing_back() -> Mounted {
        Mounted::with(&MountOptions { writeback_cache: true, ..MountOptions::default() })
    }

    pub fn with(options: &MountOptions) -> Mounted {
        Mounted::of(Arc::new(Watched::new()), options)
    }

    /// The same volume, mounted anew by a kernel that knows nothing of it.
    pub fn again(self) -> Mounted {
        Mounted::of(self.end(), &MountOptions::default())
    }

    pub fn of(volume: Arc<Watched>, options: &MountOptions) -> Mounted {
        let dir = tempfile::tempdir().unwrap();
        let options = MountOptions { transport: crate::transport(), ..options.clone() };
        let _disturbed = disturbing();
        let mount = fuse::mount(volume.clone(), dir.path(), &options)
            .expect("these tests need /dev/fuse, and root or fusermount3");
        Mounted { mount: Some(mount), volume, dir }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn mount(&self) -> &Mount {
        self.mount.as_ref().expect("still mounted")
    }

    /// The requests that `action` causes.
    pub fn requests<T>(&self, action: impl FnOnce() -> T) -> (T, RequestCounts) {
        let _undisturbed = undisturbed();
        let before = self.mount().requests();
        let result = action();
        (result, self.mount().requests().since(&before))
    }

    /// Asserts that the kernel does `action` alone.
    #[track_caller]
    pub fn without_requests<T>(&self, action: impl FnOnce() -> T) -> T {
        let (result, requests) = self.requests(action);
        assert_eq!(requests.total(), 0, "requests: {requests}");
        result
    }

    /// Unmounts and waits for the server's end.
    pub fn end(mut self) -> Arc<Watched> {
        let undisturbed = undisturbed();
        self.mount().unmounter().unmount(false).unwrap();
        drop(undisturbed);
        self.mount.take().expect("still mounted").wait().unwrap();
        self.volume.clone()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            // Lazily: a failed test may have left files open.
            let _ = mount.unmounter().unmount(true);
        }
    }
}
