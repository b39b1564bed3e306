//! A native volume, mounted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use vfs::{
    Attr, Caller, Created, DirEntry, FallocateMode, FileSystem, Handle, Ino, OpenFlags, RenameFlags, Result,
    SeekFrom, SetAttr, Statfs, XattrMode,
};

use crate::core::{Core, NextLog};
use crate::recovery::{self, Rest};
use crate::superblock::Superblock;
use crate::{Error, MountOptions, Recovery, Snapshot, SnapshotUsage, Stats};

/// A mounted native volume. Dropping it without [`Volume::close`] closes it as well.
pub struct Volume {
    core: Arc<Core>,
    recovery: Recovery,
    checkpointer: Mutex<Option<JoinHandle<()>>>,
}

impl Volume {
    /// Opens the volume in `region`, recovering it if it was not closed.
    pub fn open(region: nvm::Region, options: &MountOptions) -> std::result::Result<Volume, Error> {
        let superblock = Superblock::read(&region)?;
        let (core, recovery) = recovery::open(region, &superblock, options, Rest::Keep)?;
        let core = Arc::new(core);
        if core.snapshots.read().has_changes() {
            core.pressure.raise(); // a removal goes on
        }
        let checkpointer = (!options.read_only && options.background).then(|| {
            let (core, interval) = (core.clone(), options.commit_interval);
            std::thread::Builder::new()
                .name("checkpoint".into())
                .spawn(move || checkpoint_loop(&core, interval))
        });
        let checkpointer = checkpointer
            .transpose()
            .map_err(|error| Error::Volume(vfs::Error::Io(format!("no thread for checkpoints: {error}"))))?;
        Ok(Volume { core, recovery, checkpointer: Mutex::new(checkpointer) })
    }

    /// Ends it cleanly: what has no name is removed, the last checkpoint published, the volume marked clean. Further
    /// changes fail with `EROFS`. Closing twice does nothing.
    pub fn close(&self) -> std::result::Result<(), Error> {
        if self.core.options.read_only || self.core.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.core.is_unchanged() {
            self.stop();
            return Ok(());
        }
        for ino in self.core.orphan_list().unwrap_or_default() {
            // An open file goes, too: with the volume, its handles end.
            self.core.handles.forget(ino);
            if let Err(error) = self.core.reclaim(ino) {
                tracing::error!("inode {ino}, which has no name, stays: {error}");
            }
        }
        self.stop();
        Ok(self.core.finish()?)
    }

    /// Lets go of the volume as a server that is killed does: nothing more is written, and the next open recovers it.
    /// For tests and measurements.
    pub fn abandon(self) {
        self.stop();
    }

    /// Ends changes, and the thread that makes checkpoints.
    fn stop(&self) {
        self.core.closed.store(true, Ordering::Relaxed);
        self.core.pressure.raise();
        if self.checkpointer.lock().take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the checkpoint thread panicked");
        }
    }

    /// What opening the volume had to do.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Why nothing can be changed any more, after a failure that may have left memory and medium apart, or on a volume
    /// whose log could not be replayed to its end.
    pub fn failure(&self) -> Option<vfs::Error> {
        self.core.failure().cloned()
    }

    /// Makes and publishes a checkpoint of everything that returned before.
    pub fn checkpoint(&self) -> std::result::Result<(), Error> {
        Ok(self.core.checkpoint(NextLog::WithEpoch)?)
    }

    /// Takes a snapshot of the volume as it is: all operations that have returned are in it, none that begins later is.
    /// It is durable when this returns.
    pub fn take_snapshot(&self, name: &str, comment: &str) -> std::result::Result<Snapshot, Error> {
        let _op = nvm::operation("take-snapshot");
        self.core.take_snapshot(name, comment)
    }

    /// The snapshots that are kept, oldest first.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.core.list_snapshots()
    }

    /// The snapshot called `name`.
    pub fn snapshot(&self, name: &str) -> std::result::Result<Snapshot, Error> {
        self.core.snapshot(name)
    }

    /// What the snapshot called `name` takes; in time that follows how much it differs from its neighbours.
    pub fn snapshot_usage(&self, name: &str) -> std::result::Result<SnapshotUsage, Error> {
        self.core.snapshot_usage(name)
    }

    /// Removes a snapshot, durably. Its space comes back in the background, also if a power cut interrupts that.
    pub fn remove_snapshot(&self, name: &str) -> std::result::Result<(), Error> {
        let _op = nvm::operation("remove-snapshot");
        self.core.remove_snapshot(name)
    }

    /// Waits until the space of all removed snapshots has come back.
    pub fn finish_removals(&self) -> std::result::Result<(), Error> {
        let _op = nvm::operation("remove-snapshot");
        self.core.finish_removals()
    }

    /// Keeps a snapshot from being removed until `tag` is released.
    pub fn hold_snapshot(&self, name: &str, tag: &str) -> std::result::Result<(), Error> {
        let _op = nvm::operation("hold-snapshot");
        self.core.hold_snapshot(name, tag)
    }

    /// Takes a hold back.
    pub fn release_snapshot(&self, name: &str, tag: &str) -> std::result::Result<(), Error> {
        let _op = nvm::operation("release-snapshot");
        self.core.release_snapshot(name, tag)
    }

    /// Counters and sizes, now.
    pub fn stats(&self) -> Stats {
        let core = &self.core;
        let (_, blocks_free) = core.nodes.allocator.space();
        Stats {
            checkpoints: core.checkpoint_count(),
            log_bytes: core.journal.capacity(),
            log_used_bytes: core.journal.used_bytes(),
            transactions: core.journal.transactions(),
            nat_cache_bytes: core.nodes.nat.cache_bytes(),
            epoch_nodes: core.nodes.nat.dirty_count() as u64,
            segment_cache_bytes: core.nodes.allocator.cache_bytes(),
            open_handles: core.handles.count(),
            blocks_free,
            blocks_total: core.medium.geometry.main_blocks(),
        }
    }

    /// The region the volume lives in.
    pub fn region(&self) -> &nvm::Region {
        &self.core.medium.region
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!("closing the volume failed: {error}; the next mount recovers it");
        }
    }
}

/// Makes a checkpoint every `interval`, and when the log fills.
fn checkpoint_loop(core: &Core, interval: Duration) {
    loop {
        {
            let mut wanted = core.pressure.wanted.lock();
            if !*wanted {
                core.pressure.changed.wait_for(&mut wanted, interval);
            }
            *wanted = false;
        }
        if core.closed.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = core.checkpoint(NextLog::WithEpoch) {
            tracing::error!("checkpoint failed: {error}");
            return;
        }
    }
}

impl FileSystem for Volume {
    fn lookup(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.core.lookup(caller, dir, name)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.core.getattr(ino)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr, handle: Option<Handle>) -> Result<Attr> {
        let _op = nvm::operation("setattr");
        self.core.setattr(caller, ino, set, handle)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.core.readlink(ino)
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        self.core.access(caller, ino, mask)
    }

    fn mknod(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        let _op = nvm::operation("mknod");
        self.core.mknod(caller, dir, name, mode, rdev)
    }

    fn mkdir(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let _op = nvm::operation("mkdir");
        self.core.mkdir(caller, dir, name, mode)
    }

    fn symlink(&self, caller: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let _op = nvm::operation("symlink");
        self.core.symlink(caller, dir, name, target)
    }

    fn link(&self, caller: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let _op = nvm::operation("link");
        self.core.link(caller, ino, dir, name)
    }

    fn unlink(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        let _op = nvm::operation("unlink");
        self.core.unlink(caller, dir, name)
    }

    fn rmdir(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        let _op = nvm::operation("rmdir");
        self.core.rmdir(caller, dir, name)
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
        let _op = nvm::operation("rename");
        self.core.rename(caller, (dir, name), (new_dir, new_name), flags)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let _op = nvm::operation("open");
        self.core.open(caller, ino, flags)
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, flags: OpenFlags) -> Result<Created> {
        let _op = nvm::operation("create");
        self.core.create(caller, dir, name, mode, flags)
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, flags: OpenFlags) -> Result<Created> {
        let _op = nvm::operation("tmpfile");
        self.core.tmpfile(caller, dir, mode, flags)
    }

    fn release(&self, handle: Handle) -> Result<()> {
        let _op = nvm::operation("release");
        self.core.release(handle)
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.core.read(handle, offset, buf)
    }

    fn read_slices(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        self.core.read_slices(handle, offset, len, sink)
    }

    fn write(&self, caller: &Caller, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let _op = nvm::operation("write");
        self.core.write(caller, handle, offset, data)
    }

    fn fsync(&self, handle: Handle, _data_only: bool) -> Result<()> {
        let _op = nvm::operation("fsync");
        self.core.fsync(handle)
    }

    fn fsync_inode(&self, ino: Ino) -> Result<()> {
        let _op = nvm::operation("fsync");
        self.core.fsync_inode(ino)
    }

    fn syncfs(&self) -> Result<()> {
        let _op = nvm::operation("syncfs");
        if self.core.options.read_only { Ok(()) } else { self.core.checkpoint(NextLog::WithEpoch) }
    }

    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.core.readdir(dir, from, sink)
    }

    fn statfs(&self) -> Result<Statfs> {
        self.core.statfs()
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.core.getxattr(caller, ino, name)
    }

    fn setxattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let _op = nvm::operation("setxattr");
        self.core.setxattr(caller, ino, name, value, mode)
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.core.listxattr(caller, ino)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        let _op = nvm::operation("removexattr");
        self.core.removexattr(caller, ino, name)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let _op = nvm::operation("fallocate");
        self.core.fallocate(caller, handle, mode, offset, len)
    }

    fn seek(&self, handle: Handle, from: SeekFrom) -> Result<u64> {
        self.core.seek(handle, from)
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
        let _op = nvm::operation("copy_file_range");
        self.core.copy_file_range(caller, (from, from_offset), (to, to_offset), len)
    }
}
