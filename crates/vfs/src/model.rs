//! The model file system: the simplest correct one, in memory.
//!
//! It is the oracle that every volume is tested against, so it is written to be read and believed: one lock around
//! maps, no caches, no cleverness. It shares [`crate::rules`] and [`crate::acl`] with the volumes and nothing else.
//!
//! Where POSIX and Linux leave a file system free, the model chooses; a volume may choose otherwise:
//!
//! - A range that `fallocate` allocated, and a range that was zeroed, is a hole for `seek` (as an unwritten extent
//!   is in ext4); a volume may call it data. Blocks are 4 KiB.
//! - Inode numbers are never reused; `readdir` lists in the order of creation.
//! - The lengths of directories, `blocks`, and when space runs out ([`Model::with_capacity`]).
//! - The longest file ([`MAX_FILE_BYTES`]) and the number of links ([`Model::with_max_links`]).
//! - Reads leave the access time alone, as the trait says.
//!
//! Its [`Snapshots`] are copies, which share what is equal. They are not to be found in `/.snapshots`, but are models of
//! their own ([`Model::snapshot`]).

mod contents;
mod data;
mod inode;
mod names;
mod snapshots;
mod state;
mod xattrs;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::{
    Attr, Caller, Created, DirEntry, FallocateMode, FileSystem, Handle, Ino, InodeFlags, OpenFlags,
    RenameFlags, Result, SeekFrom, SetAttr, Snapshots, Statfs, Time, XattrMode, rules,
};
use state::{Kept, State};

/// Longest file of a model, bytes: 16 TiB, as ext4 with blocks of 4 KiB.
pub const MAX_FILE_BYTES: u64 = 1 << 44;

/// Bytes of a block, the unit of allocation and of holes.
const BLOCK_BYTES: u64 = 4096;

/// An in-memory file system. See the [module's](self) documentation.
pub struct Model {
    state: Mutex<State>,
}

impl Default for Model {
    fn default() -> Model {
        Model::new()
    }
}

impl Model {
    /// An empty file system: a root directory of user 0 and group 0 with mode 0755.
    pub fn new() -> Model {
        Model { state: Mutex::new(State::new()) }
    }

    /// Limits the space to `bytes`. Each inode takes one block of 4 KiB, as does each block written.
    pub fn with_capacity(self, bytes: u64) -> Model {
        self.state().capacity_blocks = bytes / BLOCK_BYTES;
        self
    }

    /// Limits an inode's number of links, 4,000,000,000 unless told, to at least 2.
    pub fn with_max_links(self, max_links: u32) -> Model {
        self.state().max_links = max_links.max(2);
        self
    }

    /// Takes the time from `clock`, which is asked once an operation, instead of from the system.
    pub fn with_clock(self, clock: impl Fn() -> Time + Send + Sync + 'static) -> Model {
        self.state().set_clock(Arc::new(clock));
        self
    }

    /// Handles that are open: none after a front end that closes what it opens.
    pub fn open_handles(&self) -> usize {
        self.state().open_handles()
    }

    /// The snapshot called `name`, as a model of its own with the same inode numbers.
    pub fn snapshot(&self, name: &str) -> Option<Model> {
        let state = self.state().kept.get(name)?.state.copy();
        Some(Model { state: Mutex::new(state) })
    }

    /// The names of all snapshots.
    pub fn snapshot_names(&self) -> Vec<String> {
        self.state().kept.keys().cloned().collect()
    }

    /// Whether somebody holds a snapshot.
    pub fn is_held(&self, name: &str) -> bool {
        self.state().kept.get(name).is_some_and(Kept::is_held)
    }

    /// The snapshots taken after the one called `name`, oldest first.
    pub fn newer_snapshots(&self, name: &str) -> Result<Vec<String>> {
        self.state().newer_snapshots(name)
    }

    /// Becomes what the snapshot called `name` is, which stays; handles are closed. Fails with
    /// [`Error::Busy`](crate::Error::Busy) if there are newer snapshots.
    pub fn roll_back(&self, name: &str) -> Result<()> {
        self.state().roll_back(name)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Snapshots for Model {
    fn take_snapshot(&self, name: &str) -> Result<()> {
        self.state().take_snapshot(name)
    }

    fn remove_snapshot(&self, name: &str) -> Result<()> {
        self.state().remove_snapshot(name)
    }

    fn hold_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        self.state().hold_snapshot(name, tag)
    }

    fn release_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        self.state().release_snapshot(name, tag)
    }
}

impl FileSystem for Model {
    fn lookup(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.state().lookup(caller, dir, name)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.state().inode(ino)?.attr)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr, handle: Option<Handle>) -> Result<Attr> {
        self.state().setattr(caller, ino, set, handle)
    }

    fn set_inode_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        self.state().set_flags(caller, ino, flags)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.state().readlink(ino)
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        let state = self.state();
        let inode = state.inode(ino)?;
        rules::may_access(caller, &inode.attr, inode.acl(), mask)
    }

    fn mknod(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        self.state().mknod(caller, dir, name, mode, rdev)
    }

    fn mkdir(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        self.state().mkdir(caller, dir, name, mode)
    }

    fn symlink(&self, caller: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.state().symlink(caller, dir, name, target)
    }

    fn link(&self, caller: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.state().link(caller, ino, dir, name)
    }

    fn unlink(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        self.state().unlink(caller, dir, name)
    }

    fn rmdir(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        self.state().rmdir(caller, dir, name)
    }

    fn rename(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.state().rename(caller, (dir, name), (new_dir, new_name), flags)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        self.state().open(caller, ino, flags)
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, flags: OpenFlags) -> Result<Created> {
        self.state().create(caller, dir, name, mode, flags)
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, flags: OpenFlags) -> Result<Created> {
        self.state().tmpfile(caller, dir, mode, flags)
    }

    fn release(&self, handle: Handle) -> Result<()> {
        self.state().release(handle)
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.state().read(handle, offset, buf)
    }

    fn write(&self, caller: &Caller, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        self.state().write(caller, handle, offset, data)
    }

    fn fsync(&self, handle: Handle, _data_only: bool) -> Result<()> {
        self.state().opened(handle).map(drop)
    }

    fn fsync_inode(&self, ino: Ino) -> Result<()> {
        self.state().inode(ino).map(drop)
    }

    fn syncfs(&self) -> Result<()> {
        Ok(())
    }

    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.state().readdir(dir, from, sink)
    }

    fn statfs(&self) -> Result<Statfs> {
        Ok(self.state().statfs())
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.state().getxattr(caller, ino, name)
    }

    fn setxattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.state().setxattr(caller, ino, name, value, mode)
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.state().listxattr(caller, ino)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.state().removexattr(caller, ino, name)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.state().fallocate(caller, handle, mode, offset, len)
    }

    fn seek(&self, handle: Handle, from: SeekFrom) -> Result<u64> {
        self.state().seek(handle, from)
    }

    fn copy_file_range(
        &self,
        caller: &Caller,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.state().copy_file_range(caller, (from, from_offset), (to, to_offset), len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, ROOT_INO};

    fn root() -> Caller {
        Caller::root()
    }

    #[test]
    fn bytes_written_are_read() {
        let model = Model::new();
        let rw = OpenFlags::READ | OpenFlags::WRITE;
        let file = model.create(&root(), ROOT_INO, b"file", 0o644, rw).unwrap();
        assert_eq!(model.write(&root(), file.handle, 5000, b"amber"), Ok(5));
        let mut buf = [1; 20];
        assert_eq!(model.read(file.handle, 4990, &mut buf), Ok(15));
        assert_eq!(&buf[..15], b"\0\0\0\0\0\0\0\0\0\0amber");
        let attr = model.getattr(file.attr.ino).unwrap();
        assert_eq!((attr.size, attr.blocks), (5005, 8));
    }

    #[test]
    fn an_inode_lives_until_its_last_handle() {
        let model = Model::new();
        let file = model.create(&root(), ROOT_INO, b"file", 0o644, OpenFlags::WRITE).unwrap();
        model.unlink(&root(), ROOT_INO, b"file").unwrap();
        assert_eq!(model.getattr(file.attr.ino).map(|attr| attr.nlink), Ok(0));
        model.release(file.handle).unwrap();
        assert_eq!(model.getattr(file.attr.ino), Err(Error::Stale));
        assert_eq!(model.release(file.handle), Err(Error::BadHandle));
    }

    #[test]
    fn capacity_is_a_limit_that_removal_relieves() {
        let model = Model::new().with_capacity(4 * BLOCK_BYTES);
        let file = model.create(&root(), ROOT_INO, b"file", 0o644, OpenFlags::WRITE).unwrap();
        assert_eq!(model.statfs().unwrap().blocks_free, 2);
        assert_eq!(model.write(&root(), file.handle, 0, &[1; 8193]), Err(Error::NoSpace));
        assert_eq!(model.getattr(file.attr.ino).unwrap().size, 0);
        assert_eq!(model.write(&root(), file.handle, 0, &[1; 8192]), Ok(8192));
        assert_eq!(model.mkdir(&root(), ROOT_INO, b"dir", 0o755), Err(Error::NoSpace));
        model.release(file.handle).unwrap();
        model.unlink(&root(), ROOT_INO, b"file").unwrap();
        model.mkdir(&root(), ROOT_INO, b"dir", 0o755).unwrap();
    }

    #[test]
    fn links_have_a_limit() {
        let model = Model::new().with_max_links(2);
        let file = model.mknod(&root(), ROOT_INO, b"file", 0o644, 0).unwrap();
        model.link(&root(), file.ino, ROOT_INO, b"other").unwrap();
        assert_eq!(model.link(&root(), file.ino, ROOT_INO, b"third"), Err(Error::TooManyLinks));
        assert_eq!(model.mkdir(&root(), ROOT_INO, b"dir", 0o755), Err(Error::TooManyLinks));
    }

    #[test]
    fn snapshots_stay_as_they_were() {
        let model = Model::new();
        let rw = OpenFlags::READ | OpenFlags::WRITE;
        let file = model.create(&root(), ROOT_INO, b"file", 0o644, rw).unwrap();
        let nameless = model.tmpfile(&root(), ROOT_INO, 0o600, rw).unwrap();
        model.write(&root(), file.handle, 0, b"amber").unwrap();
        model.take_snapshot("one").unwrap();
        model.write(&root(), file.handle, 0, b"AM").unwrap();
        model.unlink(&root(), ROOT_INO, b"file").unwrap();
        model.take_snapshot("two").unwrap();
        let read = |name| {
            let copy = model.snapshot(name)?;
            assert_eq!(copy.getattr(nameless.attr.ino), Err(Error::Stale));
            let ino = copy.lookup(&root(), ROOT_INO, b"file").ok()?.ino;
            let handle = copy.open(&root(), ino, OpenFlags::READ).unwrap();
            let mut bytes = vec![0; 9];
            let count = copy.read(handle, 0, &mut bytes).unwrap();
            Some(bytes[..count].to_vec())
        };
        assert_eq!((read("one"), read("two")), (Some(b"amber".to_vec()), None));
        assert_eq!(model.take_snapshot("one"), Err(Error::Exists));
        model.hold_snapshot("two", "tag").unwrap();
        assert_eq!(model.hold_snapshot("two", "tag"), Err(Error::Busy));
        assert_eq!(model.remove_snapshot("two"), Err(Error::Busy));
        assert_eq!(model.roll_back("one"), Err(Error::Busy));
        model.release_snapshot("two", "tag").unwrap();
        model.remove_snapshot("two").unwrap();
        model.roll_back("one").unwrap();
        assert_eq!(model.read(file.handle, 0, &mut [0]), Err(Error::BadHandle));
        assert!(model.lookup(&root(), ROOT_INO, b"file").is_ok());
        assert_eq!((model.snapshot_names(), model.open_handles()), (vec!["one".to_owned()], 0));
    }

    #[test]
    fn the_clock_is_asked_once_an_operation() {
        let ticks = std::sync::atomic::AtomicI64::new(0);
        let model = Model::new().with_clock(move || Time {
            sec: ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            nsec: 0,
        });
        let file = model.mknod(&root(), ROOT_INO, b"file", 0o644, 0).unwrap();
        assert_eq!(file.mtime.sec, 1);
        assert_eq!(model.getattr(ROOT_INO).unwrap().mtime.sec, 1);
        model.setxattr(&root(), file.ino, b"user.a", b"b", XattrMode::Either).unwrap();
        assert_eq!(model.getattr(file.ino).unwrap().ctime.sec, 2);
    }
}
