//! What a panic leaves, and volumes that have failed.
//!
//! Who serves a volume catches panics, and goes on; so may whoever uses it in process. **What a panic leaves half done is never committed:**
//!
//! - An operation that ends by one is undone, like one that ends with an error ([`crate::volume::Volume::change`]): what it changed of metadata
//!   is known to the byte, whatever stopped it.
//! - Where it stopped in what DRAM alone knows, or between two states of NVM, nobody can tell what there is: which blocks are free, which pages a file
//!   has, what is on its way to the disk, the end of an operation, a commit, a checkpoint. Whoever is there holds a [`Whole`], and the
//!   volume **fails** before the lock is let go of that kept others from seeing it.
//!
//! Of a volume that has failed nothing is changed any more, in NVM or on the disk: no operation begins, none that has run is committed, no half of the log is
//! retired, no block is given out, nobody begins to write to the disk (who has begun goes on: to blocks that are given to nobody else). Whoever wants that is told. What it has can be read. What was committed is in NVM, where the next mount finds it, as
//! behind a power cut.

use std::sync::OnceLock;
use std::thread;

use vfs::{Error, Result};

/// Whether a volume has failed.
pub(crate) struct Failure {
    disk: String,
    /// At what.
    at: OnceLock<&'static str>,
}

impl Failure {
    /// Of the volume of `disk`: it has not.
    pub(crate) fn none(disk: &str) -> Failure {
        Failure { disk: disk.into(), at: OnceLock::new() }
    }

    /// The volume has failed, if it had not before.
    pub(crate) fn fail(&self, at: &'static str) {
        if self.at.set(at).is_ok()
            && let Err(error) = self.check()
        {
            tracing::error!("{error}");
        }
    }

    /// An error if it has. Asked with the lock held behind which something is to be changed: who failed there had it.
    pub(crate) fn check(&self) -> Result<()> {
        self.at.get().map_or(Ok(()), |at| {
            let disk = &self.disk;
            Err(Error::Io(format!(
                "{disk}: the volume has failed: a panic, which is an error in this program, left {at} half done; nothing is changed any more; what was \
                 committed before is in NVM, and what was not is lost; save what you need, unmount, mount again, and report this"
            )))
        })
    }

    /// Whoever holds it is `at` what a panic leaves half done.
    pub(crate) fn whole(&self, at: &'static str) -> Whole<'_> {
        Whole { failure: self, at, was_panicking: thread::panicking() }
    }
}

/// Something is half done as long as this lives: if a panic ends it, the volume has failed. Let go of before the lock that keeps others from that.
#[must_use]
pub(crate) struct Whole<'a> {
    failure: &'a Failure,
    at: &'static str,
    /// Somebody cleans up behind another panic.
    was_panicking: bool,
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        if thread::panicking() && !self.was_panicking {
            self.failure.fail(self.at);
        }
    }
}

#[cfg(test)]
mod tests;
