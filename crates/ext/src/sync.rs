//! What is durable when.

use vfs::{FileSystem, Handle, Ino, Result};

use crate::fault::{Fault, planted};
use crate::files::Held;
use crate::volume::Volume;

/// Pages of a file that an `fsync` hands to the log. More go to the disk: it is as fast, and the log is not for everything.
const COLLECT_MAX: u64 = 256;

/// Which operations are durable when they return, without an `fsync` (FSMAC IV.D).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// None.
    #[default]
    Nosync,
    /// Those on names.
    Dirsync,
    /// All.
    Sync,
}

impl Volume {
    /// Behind an operation on names.
    pub(crate) fn names_changed<R>(&self, result: Result<R>) -> Result<R> {
        if result.is_ok() && self.sync != Sync::Nosync && !planted(Fault::NamesNotCommitted) {
            self.commit_all()?;
        }
        result
    }

    /// Behind an operation that changed an inode.
    pub(crate) fn inode_changed<R>(&self, ino: Ino, result: Result<R>) -> Result<R> {
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
            self.write_out(file)?;
        }
        self.collect(file)?;
        self.commit_all()
    }

    /// Makes everything durable that returned before, but for bytes of files.
    pub(crate) fn sync_rest(&self) -> Result<()> {
        if self.is_read_only() { Ok(()) } else { self.commit_all() }
    }

    /// Makes everything durable that returned before.
    pub(crate) fn syncfs_all(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.write_out_all()?;
        for file in self.files.all() {
            self.collect(&file)?;
            self.commit_if_large()?;
        }
        self.commit_all()
    }
}
