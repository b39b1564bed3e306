//! How large transactions get, and may get.
//!
//! **A record that has no room in half of the log would keep all that follow from being committed.** So an operation begins only if what runs leaves room
//! for it, which is seen with `tree` held alone; and what an operation adds is bounded, too.

use vfs::Error;

use super::{FREED, ITEM_HEAD, RANGE, Store};

/// What [`change`](crate::volume::Volume::change) says to those inside who can let go of their locks, wait for the log and try again
/// ([`with_log`](crate::volume::Volume::with_log)). Nobody else sees it: no ext has quotas here.
pub(crate) const LOG_FULL: Error = Error::QuotaExceeded;

/// How much of a transaction there is.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) number: u64,
    /// About how many its record will have.
    pub(crate) bytes: u64,
    /// Of metadata.
    pub(crate) blocks: u64,
}

/// What one operation may add to a transaction, and a transaction have before it is to be committed: two records of this size and what else there is have
/// room in half of the log, and their blocks in the frames.
#[derive(Clone, Copy)]
pub(crate) struct Most {
    pub(crate) bytes: u64,
    /// Of metadata.
    pub(crate) blocks: u64,
}

impl Most {
    /// Without a log.
    pub(super) const ANY: Most = Most { bytes: u64::MAX, blocks: u64::MAX };
}

impl Store {
    /// Has a log from now on whose records are to be no larger.
    pub(crate) fn limit(&mut self, most: Most) {
        self.most = most;
    }

    pub(crate) fn most(&self) -> Most {
        self.most
    }

    /// Whether the record of what runs has room in half of the log: of what [one operation may add](Most), four times that.
    pub(crate) fn is_within_half(&self) -> bool {
        self.running().bytes <= self.most.bytes.saturating_mul(4)
    }

    /// Bytes that a record may have for a part of a bitmap and one of a block of descriptors.
    pub(crate) fn freed_bytes(&self) -> u64 {
        2 * (ITEM_HEAD + self.part as u64) + RANGE
    }

    /// Blocks of metadata that one operation may free.
    pub(crate) fn forgotten_max(&self) -> u64 {
        (self.most.bytes / FREED).max(1)
    }

    /// Begins an operation. The caller holds the volume's lock `tree` alone until [`Store::finish`] or [`Store::undo`].
    #[cfg(test)]
    pub(crate) fn begin(&self) {
        assert!(self.begin_within(u64::MAX));
    }

    /// The same, unless the transaction has come to more than so many times [what it may](Most): then false, and nothing is begun.
    pub(crate) fn begin_within(&self, times: u64) -> bool {
        let Size { number, bytes, blocks } = self.running();
        let Most { bytes: bytes_max, blocks: blocks_max } = self.most;
        if bytes > bytes_max.saturating_mul(times) || blocks > blocks_max.saturating_mul(times) {
            return false;
        }
        let operation = &mut *self.operation.lock();
        assert!(!operation.is_running, "one operation at a time");
        (operation.is_running, operation.transaction) = (true, number);
        true
    }

    /// What the transaction that runs comes to.
    pub(crate) fn running(&self) -> Size {
        let running = self.running.lock();
        let blocks = running.blocks.len() as u64;
        Size { number: running.transaction, bytes: running.bytes, blocks }
    }
}
