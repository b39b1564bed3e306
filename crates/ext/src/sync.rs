//! What is durable when.

use vfs::Result;

use crate::files::Held;
use crate::volume::Volume;

/// Pages of a file that an `fsync` hands to the log. More go to the disk: it is as fast, and the log is not for everything.
const COLLECT_MAX: u64 = 256;

impl Volume {
    /// Makes durable what a file is.
    pub(crate) fn sync_file(&self, file: &Held<'_>) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        if file.shared().pages.unsaved() > COLLECT_MAX {
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
