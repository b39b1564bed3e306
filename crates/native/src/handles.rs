//! Open files.
//!
//! A handle names a slot and the slot's use: looking it up is one atomic load, and a handle that was released, even if
//! its slot serves again, is nobody's. A file's slots and the count of how often it is open are in one shard, chosen by
//! its number, so that opening and closing take one lock each, which few others want.
//!
//! Files are known here by numbers of 64 bits: the volume's own have 32, those of its snapshots have the snapshot's version
//! in the upper half. Both have tables of their own, whose handles differ in a bit.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::{Error, Handle, Ino, InoMap, OpenFlags, Result};

const SHARD_BITS: u32 = 6;
const SHARDS: usize = 1 << SHARD_BITS;
/// Slots of a shard's first chunk; each further chunk has twice as many as the one before.
const FIRST_CHUNK: u32 = 64;
/// So one shard has 4,194,240 slots at most.
const CHUNKS: usize = 16;
/// Bits of a handle that number the slot (the shard in the lowest); the rest numbers the slot's use.
const SLOT_BITS: u32 = 32;
/// The bit that handles on files of snapshots have. No slot has so large a number.
const OF_SNAPSHOT: u32 = 1 << 31;

#[derive(Default)]
#[repr(align(64))]
struct Shard {
    table: Mutex<Table>,
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
}

/// What of a shard its lock protects.
#[derive(Default)]
struct Table {
    open: InoMap<Ino, Open>,
    given_back: Vec<u32>,
    /// Slots from here on were never used.
    next: u32,
}

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
    /// Which use of the slot this is: odd while it is open.
    used: AtomicU32,
    flags: AtomicU32,
    number: AtomicU64,
}

pub(crate) struct Handles {
    shards: Box<[Shard]>,
    /// Bits that all these handles have.
    mark: u32,
}

/// Whether `handle`, if it is one, is on a file of a snapshot.
#[inline]
pub(crate) fn is_of_snapshot(handle: Handle) -> bool {
    handle.0 as u32 & OF_SNAPSHOT != 0
}

/// The chunk of a shard's slot, and the slot's place in it.
#[inline]
fn place(slot: u32) -> (usize, usize) {
    let number = slot + FIRST_CHUNK;
    let chunk = (number / FIRST_CHUNK).ilog2();
    (chunk as usize, (number - (FIRST_CHUNK << chunk)) as usize)
}

impl Shard {
    /// A slot that was used before; `None` if it never was.
    #[inline]
    fn slot(&self, slot: u32) -> Option<&Slot> {
        let (chunk, at) = place(slot);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    /// A free slot. `EBUSY` if there is none.
    fn take_slot(&self, table: &mut Table) -> Result<(u32, &Slot)> {
        if let Some(slot) = table.given_back.pop() {
            return Ok((slot, self.slot(slot).ok_or(Error::Busy)?));
        }
        let (chunk, at) = place(table.next);
        let slots = self
            .chunks
            .get(chunk)
            .ok_or(Error::Busy)?
            .get_or_init(|| (0..(FIRST_CHUNK as usize) << chunk).map(|_| Slot::default()).collect());
        table.next += 1;
        Ok((table.next - 1, &slots[at]))
    }
}

/// What a handle says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) number: Ino,
    /// Its lower half: the inode's number in its tree.
    pub(crate) ino: u32,
    pub(crate) flags: OpenFlags,
}

/// A handle on a file that is about to be made: closed again, unless it is kept.
pub(crate) struct Opening<'a> {
    handles: &'a Handles,
    handle: Option<Handle>,
}

impl Opening<'_> {
    /// The file has been made.
    pub(crate) fn keep(mut self) -> Handle {
        self.handle.take().expect("it is kept once")
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            let _was_open = self.handles.close(handle);
        }
    }
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles { shards: (0..SHARDS).map(|_| Shard::default()).collect(), mark: 0 }
    }

    /// A table for files of snapshots.
    pub(crate) fn of_snapshots() -> Handles {
        Handles { mark: OF_SNAPSHOT, ..Handles::new() }
    }

    fn shard(&self, number: Ino) -> &Shard {
        &self.shards[number as usize % SHARDS]
    }

    /// The slot that `handle` names, and which use of it.
    #[inline]
    fn slot(&self, handle: Handle) -> Option<(&Slot, u32)> {
        let (index, used) = (handle.0 as u32 ^ self.mark, (handle.0 >> SLOT_BITS) as u32);
        let slot = self.shards[index as usize % SHARDS].slot(index >> SHARD_BITS)?;
        Some((slot, used)).filter(|_| used % 2 == 1)
    }

    /// Opens file `number`, whose lock is held, or which nobody can know yet, or of which it is verified afterwards that
    /// nobody removed it. `EBUSY` with four million handles open.
    pub(crate) fn open(&self, number: impl Into<Ino>, flags: OpenFlags) -> Result<Handle> {
        let number = number.into();
        let shard = self.shard(number);
        let mut table = shard.table.lock();
        let (index, slot) = shard.take_slot(&mut table)?;
        let used = slot.used.load(Ordering::Relaxed).wrapping_add(1);
        // Who sees either sees that the slot's last use has ended.
        slot.number.store(number, Ordering::Release);
        slot.flags.store(flags.bits(), Ordering::Release);
        table.open.entry(number).or_default().handles += 1;
        slot.used.store(used, Ordering::Release);
        let index = (index << SHARD_BITS) | (number % SHARDS as Ino) as u32 | self.mark;
        Ok(Handle(u64::from(used) << SLOT_BITS | u64::from(index)))
    }

    /// The same of a file that is about to be made.
    pub(crate) fn open_new(&self, ino: u32, flags: OpenFlags) -> Result<Opening<'_>> {
        Ok(Opening { handle: Some(self.open(ino, flags)?), handles: self })
    }

    /// What `handle` stands for; `EBADF` if it is not open, or only holds the inode.
    #[inline]
    pub(crate) fn get(&self, handle: Handle) -> Result<Opened> {
        let opened = self.held(handle)?;
        if opened.flags.contains(OpenFlags::PATH) { Err(Error::BadHandle) } else { Ok(opened) }
    }

    /// The same, whatever it was opened for.
    #[inline]
    pub(crate) fn held(&self, handle: Handle) -> Result<Opened> {
        let (slot, used) = self.slot(handle).ok_or(Error::BadHandle)?;
        if slot.used.load(Ordering::Acquire) != used {
            return Err(Error::BadHandle);
        }
        let number = slot.number.load(Ordering::Acquire);
        let flags = slot.flags.load(Ordering::Acquire);
        // Still the same use: what was read is this handle's.
        if slot.used.load(Ordering::Relaxed) != used {
            return Err(Error::BadHandle);
        }
        Ok(Opened { number, ino: number as u32, flags: OpenFlags::from_bits_truncate(flags) })
    }

    /// Whether `handle`, which was open, still is.
    #[inline]
    pub(crate) fn is_still_open(&self, handle: Handle) -> bool {
        self.slot(handle).is_some_and(|(slot, used)| slot.used.load(Ordering::Acquire) == used)
    }

    /// What `handle` stands for, if it was opened for `flags`.
    #[inline]
    pub(crate) fn get_for(&self, handle: Handle, flags: OpenFlags) -> Result<Opened> {
        let opened = self.get(handle)?;
        if opened.flags.contains(flags) { Ok(opened) } else { Err(Error::BadHandle) }
    }

    /// Closes a handle. Returns the file's number in its tree, and whether it was the file's last.
    pub(crate) fn close(&self, handle: Handle) -> Result<(u32, bool)> {
        let Opened { number, ino, .. } = self.held(handle)?;
        let (slot, used) = self.slot(handle).ok_or(Error::BadHandle)?;
        let mut table = self.shard(number).table.lock();
        // Of two that close the same handle, one wins.
        if slot.used.load(Ordering::Relaxed) != used {
            return Err(Error::BadHandle);
        }
        slot.used.store(used.wrapping_add(1), Ordering::Release);
        table.given_back.push((handle.0 as u32 ^ self.mark) >> SHARD_BITS);
        let Some(open) = table.open.get_mut(&number) else { return Ok((ino, false)) };
        open.handles -= 1;
        let last = open.handles == 0;
        if last {
            table.open.remove(&number);
        }
        Ok((ino, last))
    }

    /// Forgets that a file is open: its handles lead to an inode that is gone.
    pub(crate) fn forget(&self, number: impl Into<Ino>) {
        let number = number.into();
        self.shard(number).table.lock().open.remove(&number);
    }

    pub(crate) fn is_open(&self, number: impl Into<Ino>) -> bool {
        let number = number.into();
        self.shard(number).table.lock().open.contains_key(&number)
    }

    /// Whether any file is open whose number is such.
    pub(crate) fn any_open(&self, is_such: impl Fn(Ino) -> bool) -> bool {
        self.shards.iter().any(|shard| shard.table.lock().open.keys().any(|number| is_such(*number)))
    }

    /// Calls `visit` with the number of each file that is open.
    pub(crate) fn each_open(&self, mut visit: impl FnMut(Ino)) {
        self.shards.iter().for_each(|shard| shard.table.lock().open.keys().copied().for_each(&mut visit));
    }

    /// Lets a file, which is open and has no name, get one (or no longer).
    pub(crate) fn set_linkable(&self, number: impl Into<Ino>, linkable: bool) {
        let number = number.into();
        if let Some(open) = self.shard(number).table.lock().open.get_mut(&number) {
            open.linkable = linkable;
        }
    }

    pub(crate) fn is_linkable(&self, number: impl Into<Ino>) -> bool {
        let number = number.into();
        self.shard(number).table.lock().open.get(&number).is_some_and(|open| open.linkable)
    }

    /// Handles open in all.
    pub(crate) fn count(&self) -> u64 {
        let open = |shard: &Shard| -> u64 {
            shard.table.lock().open.values().map(|open| u64::from(open.handles)).sum()
        };
        self.shards.iter().map(open).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fill_chunk_after_chunk() {
        let mut expected = (0, 0);
        for slot in 0..100_000 {
            assert_eq!(place(slot), expected, "slot {slot}");
            expected.1 += 1;
            if expected.1 == (FIRST_CHUNK as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
    }

    #[test]
    fn a_handle_is_of_one_use_of_its_slot() {
        let handles = Handles::new();
        let first = handles.open(17u32, OpenFlags::READ).unwrap();
        let other = handles.open(17 + SHARDS as u32, OpenFlags::WRITE).unwrap();
        assert_eq!(handles.get(first).unwrap().ino, 17);
        assert_eq!(handles.close(first), Ok((17, true)));
        let second = handles.open(17u32, OpenFlags::WRITE).unwrap();
        assert_eq!(handles.get(first).map(drop), Err(Error::BadHandle));
        assert_eq!(handles.close(first), Err(Error::BadHandle));
        assert_eq!(handles.get(second).unwrap().flags, OpenFlags::WRITE);
        assert_eq!(handles.get(other).unwrap().ino, 17 + SHARDS as u32);
        let held = handles.open(17u32, OpenFlags::PATH).unwrap();
        assert_eq!(
            (handles.held(held).unwrap().ino, handles.get(held).map(drop)),
            (17, Err(Error::BadHandle))
        );
        assert_eq!(handles.close(held), Ok((17, false)));
        assert_eq!(handles.count(), 2);
        for bad in [0, 1, u64::MAX, 1 << 32 | 5, 2 << 32 | 17, u64::MAX >> 32] {
            assert_eq!(handles.get(Handle(bad)).map(drop), Err(Error::BadHandle));
        }
    }

    #[test]
    fn handles_of_the_volume_and_of_snapshots_are_not_mixed_up() {
        let (live, kept) = (Handles::new(), Handles::of_snapshots());
        let number = 9 << 32 | 17;
        let (one, other) =
            (live.open(17u32, OpenFlags::READ).unwrap(), kept.open(number, OpenFlags::READ).unwrap());
        assert!(!is_of_snapshot(one) && is_of_snapshot(other));
        assert_eq!(live.get(other).map(drop), Err(Error::BadHandle));
        assert_eq!(kept.get(one).map(drop), Err(Error::BadHandle));
        assert_eq!(kept.get(other).unwrap().number, number);
        assert!(kept.any_open(|open| open >> 32 == 9) && !kept.any_open(|open| open >> 32 == 17));
        assert_eq!(kept.close(other), Ok((17, true)));
        assert!(!kept.is_open(number) && live.is_open(17u32));
    }
}
