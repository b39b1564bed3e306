//! Open files.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use vfs::{Error, Handle, InoMap, OpenFlags, Result};

/// Shards, by handle.
const SHARDS: u64 = 16;

/// What is open: an inode's number and how.
pub(crate) struct Handles {
    next: AtomicU64,
    shards: [RwLock<InoMap<u64, (u32, OpenFlags)>>; SHARDS as usize],
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles { next: AtomicU64::new(1), shards: Default::default() }
    }

    /// No handle is given out twice.
    pub(crate) fn open(&self, number: u32, flags: OpenFlags) -> Handle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(handle).write().insert(handle, (number, flags));
        Handle(handle)
    }

    pub(crate) fn get(&self, handle: Handle) -> Result<(u32, OpenFlags)> {
        self.shard(handle.0).read().get(&handle.0).copied().ok_or(Error::BadHandle)
    }

    pub(crate) fn release(&self, handle: Handle) -> Result<()> {
        self.shard(handle.0).write().remove(&handle.0).map(drop).ok_or(Error::BadHandle)
    }

    fn shard(&self, handle: u64) -> &RwLock<InoMap<u64, (u32, OpenFlags)>> {
        &self.shards[(handle % SHARDS) as usize]
    }
}
