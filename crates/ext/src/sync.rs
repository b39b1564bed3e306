//! What is durable when.

use vfs::{Error, FileSystem, Handle, Ino, Result};

use crate::fault::{Fault, planted};
use crate::files::Held;
use crate::options::Sync;
use crate::volume::Volume;

/// Pages of a file that an `fsync` hands to the log. More go to the disk: it is as fast, and the log is not for everything.
const COLLECT_MAX: u64 = 256;

impl Volume {
    /// Runs an operation on names.
    pub(crate) fn changing_names<R>(&self, change: impl FnOnce() -> Result<R>) -> Result<R> {
        self.ready_for_names()?;
        self.names_changed(change())
    }

    /// Runs an operation that changes an inode.
    pub(crate) fn changing_inode<R>(&self, ino: Ino, change: impl FnOnce() -> Result<R>) -> Result<R> {
        if self.sync == Sync::Sync {
            self.make_log_ready()?;
        }
        self.inode_changed(ino, change())
    }

    /// Before an operation on names.
    pub(crate) fn ready_for_names(&self) -> Result<()> {
        if self.sync == Sync::Nosync { Ok(()) } else { self.make_log_ready() }
    }

    /// Behind an operation on names.
    pub(crate) fn names_changed<R>(&self, result: Result<R>) -> Result<R> {
        if result.is_ok() && self.sync != Sync::Nosync && !planted(Fault::NamesNotCommitted) {
            self.commit_all()?;
        }
        result
    }

    fn inode_changed<R>(&self, ino: Ino, result: Result<R>) -> Result<R> {
        if result.is_ok() && self.sync == Sync::Sync {
            self.fsync_inode(ino)?;
        }
        result
    }

    /// Behind an operation that changed a file through a handle.
    pub(crate) fn contents_changed<R>(&self, handle: Handle, result: Result<R>) -> Result<R> {
        if result.is_ok() && self.sync == Sync::Sync && !planted(Fault::ContentsNotCommitted) {
            self.fsync(handle, false)?;
        }
        result
    }

    /// Makes durable what a file is.
    pub(crate) fn sync_file(&self, file: &Held<'_>) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        if !self.sync_in_nvm || file.shared().pages.unsaved() > COLLECT_MAX {
            // What the disk refuses of it the log has then.
            self.write_out(file)?;
        }
        self.collect(file)?;
        self.commit_all()
    }

    /// Makes everything durable that returned before, but for bytes of files.
    pub(crate) fn sync_rest(&self) -> Result<()> {
        if self.is_read_only() { Ok(()) } else { self.commit_all() }
    }

    /// Makes everything durable that returned before. What keeps one file from it keeps no other: all else is durable when that is told.
    pub(crate) fn syncfs_all(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        let written = self.write_out_what_it_takes();
        let mut result = written.as_ref().map(drop).map_err(Error::clone);
        for file in self.files.all() {
            // What the disk has not taken does not fill the log, which others need.
            let is_little = || file.shared().pages.unsaved() <= COLLECT_MAX && !self.is_checkpoint_due();
            if written.is_ok() || is_little() {
                result = result.and(self.collect(&file));
            }
            self.commit_if_large()?;
        }
        self.commit_all()?;
        result
    }
}
