//! Damage that operations meet: told, counted, and noted on the disk.
//!
//! **Whoever has the disk next is told**: an operation that finds a structure damaged fails, and the superblock says from then on that there are
//! errors (`s_state`), as the kernel has it do. Without that a detached disk would be clean for e2fsck(8), and stay damaged.

use std::sync::atomic::Ordering;

use vfs::{Error, Result};

use crate::core::Damage;
use crate::superblock::RawSuperblock;
use crate::volume::Volume;

impl Volume {
    /// Tells of damage that an operation met, whose result this is.
    pub(crate) fn noting<R>(&self, result: Result<R>) -> Result<R> {
        if let Err(Error::Corrupt(what)) = &result {
            self.core.met.note(what);
        }
        result
    }

    /// Has the superblock say so, if there is something to say and it does not yet. Called without locks; what keeps it from that is no news, and it is
    /// tried again.
    pub(crate) fn note_damage(&self) {
        let is_new = &self.core.met.is_new;
        if is_new.swap(false, Ordering::Relaxed)
            && self.change(|core| core.change_superblock(RawSuperblock::set_errors)).is_err()
        {
            is_new.store(true, Ordering::Relaxed);
        }
    }

    /// What was met since it was opened.
    pub fn damage(&self) -> Damage {
        self.core.met.damage.lock().clone()
    }

    /// Whether the superblock says that errors were found, now or before.
    ///
    /// # Errors
    /// What the medium says.
    pub fn has_errors(&self) -> std::result::Result<bool, crate::Error> {
        Ok(self.reading(|| self.core.newest_superblock())?.has_errors())
    }
}
