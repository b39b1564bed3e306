//! What follows an operation that is done: an inode that has lost its last name is removed, and a file that was cut is freed behind its end, in
//! operations of their own.
//!
//! **That these fail is no failure of the operation**, which cannot be taken back: who was told so would believe that the name is still there. A
//! disk that is away for a moment, say, does not give the bitmaps that were not in NVM yet. What is left is in the list of orphans, and so is
//! finished at the next mount, if not before: it is gone on with whenever the volume is tended, and before a detach. What cannot be finished then, since a place of the disk cannot be read, is
//! said to be an error in the file system: e2fsck finds it in the list.

use vfs::{Error, Result};

use crate::volume::Volume;

impl Volume {
    /// Removes inode `number` if it has neither link nor handle, and frees what is behind its end if it is being cut; if that fails, later.
    /// Called without locks.
    pub(crate) fn finish(&self, number: u32) {
        let file = self.files.get(number);
        match self.go_on_cutting(&file).and_then(|()| self.remove_unnamed(&file)) {
            Ok(()) => {}
            // Noted: e2fsck is to have it.
            Err(Error::Corrupt(_)) => {}
            Err(error) => {
                tracing::warn!("inode {number} is to be removed or cut, which goes on later: {error}");
                self.unfinished.lock().insert(number, error);
            }
        }
    }

    /// Goes on with what is left. Called without locks.
    ///
    /// # Errors
    /// What keeps it from being done still.
    pub(crate) fn finish_rest(&self) -> Result<()> {
        let left = std::mem::take(&mut *self.unfinished.lock());
        left.into_keys().for_each(|number| self.finish(number));
        self.unfinished.lock().values().next().cloned().map_or(Ok(()), Err)
    }
}
