//! Where groups have their inodes: that is fixed (FSMAC III.B), and asked for with every inode that is read or written. So it is remembered, once
//! a descriptor has said it.

use std::sync::atomic::{AtomicU64, Ordering};

/// For each group the first block of its inodes, or 0 while that is not known.
pub(crate) struct Tables(Box<[AtomicU64]>);

impl Tables {
    pub(crate) fn new(groups: u32) -> Tables {
        Tables((0..groups).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn get(&self, group: u32) -> Option<u64> {
        let block = self.0.get(group as usize)?.load(Ordering::Relaxed);
        (block != 0).then_some(block)
    }

    /// Remembers that a group whose inodes are in use has them there.
    pub(crate) fn set(&self, group: u32, block: u64) {
        if let Some(known) = self.0.get(group as usize) {
            known.store(block, Ordering::Relaxed);
        }
    }

    /// The group's inodes are not in use after all: the operation that began them has not been.
    pub(crate) fn forget(&self, group: u32) {
        self.set(group, 0);
    }
}
