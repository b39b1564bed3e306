//! Counts what users ask of a volume, so that it can be set against what that cost in NVM.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};
use vfs::{
    Attr, Caller, Created, DirEntry, Error, FallocateMode, FileSystem, Handle, Ino, InodeFlags, OpenFlags,
    RenameFlags, Result, SeekFrom, SetAttr, Statfs, XattrMode,
};

/// What users have asked for since the volume was mounted.
#[derive(Default)]
pub(crate) struct Meter {
    /// Bytes that `write` was given.
    pub(crate) bytes_written: AtomicU64,
    /// Bytes that `read` gave.
    pub(crate) bytes_read: AtomicU64,
    /// Operations that change something, `write` among them.
    pub(crate) changes: AtomicU64,
    /// `fsync`, `fdatasync`, `syncfs`.
    pub(crate) syncs: AtomicU64,
}

/// A volume with a meter before it, behind which it can be exchanged.
pub(crate) struct Metered {
    volume: RwLock<Option<Arc<dyn FileSystem>>>,
    meter: Arc<Meter>,
}

/// Held while the volume is asked something.
type Asked<'a> = MappedRwLockReadGuard<'a, Arc<dyn FileSystem>>;

impl Metered {
    pub(crate) fn new(volume: Arc<dyn FileSystem>, meter: Arc<Meter>) -> Metered {
        Metered { volume: RwLock::new(Some(volume)), meter }
    }

    /// Puts another volume in the place of this one, or none: then whatever is asked fails with `EIO`.
    pub(crate) fn exchange(&self, volume: Option<Arc<dyn FileSystem>>) {
        *self.volume.write() = volume;
    }

    fn volume(&self) -> Result<Asked<'_>> {
        let gone = |_| Error::Io("the volume is closed, or could not be opened again".into());
        RwLockReadGuard::try_map(self.volume.read(), Option::as_ref).map_err(gone)
    }

    fn read_done(&self, bytes: usize) -> usize {
        self.meter.bytes_read.fetch_add(bytes as u64, Relaxed);
        bytes
    }

    /// The volume, for a change.
    fn change(&self) -> Result<Asked<'_>> {
        self.meter.changes.fetch_add(1, Relaxed);
        self.volume()
    }

    /// The volume, to make something durable.
    fn sync(&self) -> Result<Asked<'_>> {
        self.meter.syncs.fetch_add(1, Relaxed);
        self.volume()
    }
}

impl FileSystem for Metered {
    fn lookup(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.volume()?.lookup(caller, dir, name)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.volume()?.getattr(ino)
    }

    fn is_volatile(&self, ino: Ino) -> bool {
        self.volume().is_ok_and(|volume| volume.is_volatile(ino))
    }

    fn time_step_ns(&self) -> u32 {
        self.volume().map_or(1, |volume| volume.time_step_ns())
    }

    fn unlisted(&self, dir: Ino) -> Option<DirEntry<'static>> {
        self.volume().ok().and_then(|volume| volume.unlisted(dir))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr, handle: Option<Handle>) -> Result<Attr> {
        self.change()?.setattr(caller, ino, set, handle)
    }

    fn set_inode_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        self.change()?.set_inode_flags(caller, ino, flags)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.volume()?.readlink(ino)
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        self.volume()?.access(caller, ino, mask)
    }

    fn mknod(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        self.change()?.mknod(caller, dir, name, mode, rdev)
    }

    fn mkdir(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        self.change()?.mkdir(caller, dir, name, mode)
    }

    fn symlink(&self, caller: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.change()?.symlink(caller, dir, name, target)
    }

    fn link(&self, caller: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.change()?.link(caller, ino, dir, name)
    }

    fn unlink(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        self.change()?.unlink(caller, dir, name)
    }

    fn rmdir(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        self.change()?.rmdir(caller, dir, name)
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
        self.change()?.rename(caller, dir, name, new_dir, new_name, flags)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        self.volume()?.open(caller, ino, flags)
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, flags: OpenFlags) -> Result<Created> {
        self.change()?.create(caller, dir, name, mode, flags)
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, flags: OpenFlags) -> Result<Created> {
        self.change()?.tmpfile(caller, dir, mode, flags)
    }

    fn release(&self, handle: Handle) -> Result<()> {
        self.volume()?.release(handle)
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.volume()?.read(handle, offset, buf).map(|bytes| self.read_done(bytes))
    }

    fn read_slices(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        self.volume()?.read_slices(handle, offset, len, sink).map(|bytes| self.read_done(bytes))
    }

    fn write(&self, caller: &Caller, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let written = self.change()?.write(caller, handle, offset, data)?;
        self.meter.bytes_written.fetch_add(written as u64, Relaxed);
        Ok(written)
    }

    fn fsync(&self, handle: Handle, data_only: bool) -> Result<()> {
        self.sync()?.fsync(handle, data_only)
    }

    fn fsync_inode(&self, ino: Ino) -> Result<()> {
        self.sync()?.fsync_inode(ino)
    }

    fn syncfs(&self) -> Result<()> {
        self.sync()?.syncfs()
    }

    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.volume()?.readdir(dir, from, sink)
    }

    fn statfs(&self) -> Result<Statfs> {
        self.volume()?.statfs()
    }

    fn statfs_of(&self, ino: Ino) -> Result<Statfs> {
        self.volume()?.statfs_of(ino)
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.volume()?.getxattr(caller, ino, name)
    }

    fn setxattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.change()?.setxattr(caller, ino, name, value, mode)
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.volume()?.listxattr(caller, ino)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change()?.removexattr(caller, ino, name)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.change()?.fallocate(caller, handle, mode, offset, len)
    }

    fn seek(&self, handle: Handle, from: SeekFrom) -> Result<u64> {
        self.volume()?.seek(handle, from)
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
        self.change()?.copy_file_range(caller, from, from_offset, to, to_offset, len)
    }
}
