//! Open files.
//!
//! A handle names a slot and the slot's use: looking it up is one atomic load, and a handle that was released, even if
//! its slot serves again, is nobody's. Beside the slots, a table counts how often each inode is open.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::{Error, Handle, OpenFlags, Result};

const SHARDS: usize = 64;
const CHUNK_SLOTS: usize = 1024;
const CHUNKS: usize = 4096;
/// Bits of a handle that number the slot; the rest numbers the slot's use, from 1.
const SLOT_BITS: u32 = 32;

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

/// What one handle stands for.
#[derive(Default)]
struct Slot {
    /// Which use of the slot is open; 0 if none is.
    open: AtomicU32,
    /// Uses so far.
    uses: AtomicU32,
    /// Inode in the low half, flags in the high one.
    what: AtomicU64,
}

pub(crate) struct Handles {
    shards: Box<[Shard]>,
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    free: Mutex<FreeSlots>,
}

struct FreeSlots {
    given_back: Vec<u32>,
    /// Slots from here on were never used.
    next: u32,
}

/// What a handle says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) ino: u32,
    pub(crate) flags: OpenFlags,
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            free: Mutex::new(FreeSlots { given_back: Vec::new(), next: 0 }),
        }
    }

    fn shard(&self, ino: u32) -> &Mutex<HashMap<u32, Open>> {
        &self.shards[ino as usize % SHARDS].0
    }

    fn slot(&self, index: u32) -> Option<&Slot> {
        let chunk = self.chunks.get(index as usize / CHUNK_SLOTS)?;
        let slots = chunk.get_or_init(|| (0..CHUNK_SLOTS).map(|_| Slot::default()).collect());
        slots.get(index as usize % CHUNK_SLOTS)
    }

    fn take_slot(&self) -> Result<u32> {
        let mut free = self.free.lock();
        if let Some(index) = free.given_back.pop() {
            return Ok(index);
        }
        let index = free.next;
        if index as usize >= CHUNKS * CHUNK_SLOTS {
            return Err(Error::Busy);
        }
        free.next += 1;
        Ok(index)
    }

    /// Opens `ino`, whose lock is held, or which nobody can know yet. `EBUSY` with four million handles open.
    pub(crate) fn open(&self, ino: u32, flags: OpenFlags) -> Result<Handle> {
        let index = self.take_slot()?;
        let slot = self.slot(index).ok_or(Error::Busy)?;
        let used = slot.uses.load(Ordering::Relaxed).wrapping_add(1).max(1);
        slot.uses.store(used, Ordering::Relaxed);
        slot.what.store(u64::from(flags.bits()) << 32 | u64::from(ino), Ordering::Relaxed);
        self.shard(ino).lock().entry(ino).or_default().handles += 1;
        slot.open.store(used, Ordering::Release);
        Ok(Handle(u64::from(used) << SLOT_BITS | u64::from(index)))
    }

    /// What `handle` stands for; `EBADF` if it is not open.
    #[inline]
    pub(crate) fn get(&self, handle: Handle) -> Result<Opened> {
        let (index, used) = (handle.0 as u32, (handle.0 >> SLOT_BITS) as u32);
        let chunk = self.chunks.get(index as usize / CHUNK_SLOTS).and_then(OnceLock::get);
        let slot = &chunk.ok_or(Error::BadHandle)?[index as usize % CHUNK_SLOTS];
        if used == 0 || slot.open.load(Ordering::Acquire) != used {
            return Err(Error::BadHandle);
        }
        let what = slot.what.load(Ordering::Acquire);
        // Still the same use: what was read is this handle's.
        if slot.open.load(Ordering::Relaxed) != used {
            return Err(Error::BadHandle);
        }
        Ok(Opened { ino: what as u32, flags: OpenFlags::from_bits_truncate((what >> 32) as u32) })
    }

    /// What `handle` stands for, if it was opened for `flags`.
    #[inline]
    pub(crate) fn get_for(&self, handle: Handle, flags: OpenFlags) -> Result<Opened> {
        let opened = self.get(handle)?;
        if opened.flags.contains(flags) { Ok(opened) } else { Err(Error::BadHandle) }
    }

    /// Closes a handle. Returns its inode, and whether it was the inode's last.
    pub(crate) fn close(&self, handle: Handle) -> Result<(u32, bool)> {
        let opened = self.get(handle)?;
        let (index, used) = (handle.0 as u32, (handle.0 >> SLOT_BITS) as u32);
        let slot = self.slot(index).ok_or(Error::BadHandle)?;
        // Of two that close the same handle, one wins.
        if slot.open.compare_exchange(used, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return Err(Error::BadHandle);
        }
        self.free.lock().given_back.push(index);
        let mut shard = self.shard(opened.ino).lock();
        let Some(open) = shard.get_mut(&opened.ino) else { return Ok((opened.ino, false)) };
        open.handles -= 1;
        let last = open.handles == 0;
        if last {
            shard.remove(&opened.ino);
        }
        Ok((opened.ino, last))
    }

    /// Forgets that `ino` is open: its handles lead to an inode that is gone.
    pub(crate) fn forget(&self, ino: u32) {
        self.shard(ino).lock().remove(&ino);
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
        let open = |shard: &Shard| shard.0.lock().values().map(|open| u64::from(open.handles)).sum::<u64>();
        self.shards.iter().map(open).sum()
    }
}
