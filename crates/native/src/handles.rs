//! Open files. A handle is its inode number and flags, so that reading and writing look nothing up; the table counts
//! how often an inode is open.

use std::collections::HashMap;

use parking_lot::Mutex;
use vfs::{Error, Handle, OpenFlags, Result};

const SHARDS: usize = 64;
/// Marks a handle's number as one of ours: 0 and small numbers are nobody's handle.
const MARK: u64 = 0xA << 60;

#[derive(Default)]
#[repr(align(64))]
struct Shard(Mutex<HashMap<u32, Open>>);

/// How an inode is open.
#[derive(Clone, Copy, Default)]
struct Open {
    handles: u32,
    /// Made by `O_TMPFILE` and never linked: may get a first name.
    linkable: bool,
}

pub(crate) struct Handles {
    shards: Box<[Shard]>,
}

/// What a handle says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) ino: u32,
    pub(crate) flags: OpenFlags,
}

impl Opened {
    pub(crate) fn of(handle: Handle) -> Result<Opened> {
        if handle.0 & 0xF << 60 != MARK || handle.0 as u32 == 0 {
            return Err(Error::BadHandle);
        }
        let flags = OpenFlags::from_bits_truncate((handle.0 >> 32) as u32 & 0xffff);
        Ok(Opened { ino: handle.0 as u32, flags })
    }

    /// The handle's file, if it was opened for `flags`.
    pub(crate) fn with(handle: Handle, flags: OpenFlags) -> Result<Opened> {
        let opened = Opened::of(handle)?;
        if opened.flags.contains(flags) { Ok(opened) } else { Err(Error::BadHandle) }
    }
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    fn shard(&self, ino: u32) -> &Mutex<HashMap<u32, Open>> {
        &self.shards[ino as usize % SHARDS].0
    }

    /// Opens `ino`, whose lock is held.
    pub(crate) fn open(&self, ino: u32, flags: OpenFlags) -> Handle {
        self.shard(ino).lock().entry(ino).or_default().handles += 1;
        Handle(MARK | u64::from(flags.bits()) << 32 | u64::from(ino))
    }

    /// Closes a handle; true if it was the inode's last.
    pub(crate) fn close(&self, ino: u32) -> Result<bool> {
        let mut shard = self.shard(ino).lock();
        let open = shard.get_mut(&ino).ok_or(Error::BadHandle)?;
        open.handles -= 1;
        let last = open.handles == 0;
        if last {
            shard.remove(&ino);
        }
        Ok(last)
    }

    pub(crate) fn is_open(&self, ino: u32) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    /// Lets `ino`, which is open and has no name, get one (or no longer).
    pub(crate) fn set_linkable(&self, ino: u32, linkable: bool) {
        if let Some(open) = self.shard(ino).lock().get_mut(&ino) {
            open.linkable = linkable;
        }
    }

    pub(crate) fn is_linkable(&self, ino: u32) -> bool {
        self.shard(ino).lock().get(&ino).is_some_and(|open| open.linkable)
    }

    /// Handles open in all.
    pub(crate) fn count(&self) -> u64 {
        self.shards
            .iter()
            .map(|shard| shard.0.lock().values().map(|open| u64::from(open.handles)).sum::<u64>())
            .sum()
    }
}
