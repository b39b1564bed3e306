//! Open files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use vfs::{Error, Handle, InoMap, OpenFlags, Result};

use crate::files::File;

/// Shards, by handle.
const SHARDS: u64 = 16;

/// What is open, and how.
type Opened = (Arc<File>, OpenFlags);

pub(crate) struct Handles {
    next: AtomicU64,
    shards: [RwLock<InoMap<u64, Opened>>; SHARDS as usize],
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles { next: AtomicU64::new(1), shards: Default::default() }
    }

    /// No handle is given out twice.
    pub(crate) fn open(&self, file: Arc<File>, flags: OpenFlags) -> Handle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(handle).write().insert(handle, (file, flags));
        Handle(handle)
    }

    /// Of one that does not only hold the inode.
    pub(crate) fn get(&self, handle: Handle) -> Result<Opened> {
        let opened = self.shard(handle.0).read().get(&handle.0).cloned();
        opened.filter(|(_, flags)| !flags.contains(OpenFlags::PATH)).ok_or(Error::BadHandle)
    }

    pub(crate) fn release(&self, handle: Handle) -> Result<Opened> {
        self.shard(handle.0).write().remove(&handle.0).ok_or(Error::BadHandle)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.read().is_empty())
    }

    fn shard(&self, handle: u64) -> &RwLock<InoMap<u64, Opened>> {
        &self.shards[(handle % SHARDS) as usize]
    }
}
