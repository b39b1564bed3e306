//! Frames: blocks of the disk's metadata in NVM, and the table that says which.
//!
//! Blocks are fetched from the disk on first touch (FSMAC III.B: on demand) and changed in place by what the log has committed, unflushed: a
//! **checkpoint** makes their lines durable, and then their entries. FSMAC keeps a list of blocks and one of dirty blocks; here the table is
//! both.
//!
//! **An entry never says what its frame does not hold durably.** It is written behind a fence that follows the frame's bytes, and it is
//! cleared, durably, before the frame holds another block. The one exception is harmless: a block that is metadata no longer leaves its
//! entry until the next checkpoint, and its frame is not used before; the log, which says so, is not retired before.
//!
//! When all frames are taken, clean ones are given up, those not asked for lately first. If all are dirty, those changed longest ago go to the
//! disk first (a case that FSMAC leaves out).
//!
//! A block of a file that the disk refuses has a frame, too, until the disk takes it: [`refused`].

mod refused;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use disk::{Disk, Purpose as DiskPurpose};
use nvm::{Durable, Flushed, Purpose, Region};
use parking_lot::RwLock;
use vfs::{InoMap, Result};

use crate::error::{corrupt, io};
use crate::fault::{self, Fault, planted};
use crate::home::Area;
use crate::kind::Kind;
use refused::Refused;

/// Of an entry's first word: the disk has other bytes.
const DIRTY: u64 = 1 << 63;
/// Of an entry's first word: there is a block; its number is in the rest.
const USED: u64 = 1 << 62;
/// Dirty blocks that go to the disk at a time when there are only such.
const FLUSH_BATCH: usize = 256;
/// Frames whose entries are written, or whose lines are flushed, while readers wait.
const BATCH: usize = 1024;

struct Frame {
    /// Which block, if there is one.
    block: u64,
    /// Which of all that were put into frames: the same block may come to the same frame again, and its bytes anew.
    tenancy: u64,
    kind: Kind,
    used: bool,
    dirty: bool,
    /// Its entry on the medium says that it holds this block.
    listed: bool,
    /// Asked for since the hand passed.
    referenced: AtomicBool,
    /// Sub-blocks stored since the last checkpoint.
    stored: u64,
}

struct State {
    of: InoMap<u64, u32>,
    frames: Vec<Frame>,
    free: Vec<u32>,
    /// Held by blocks that are metadata no longer: free behind the next checkpoint.
    freed: Vec<u32>,
    /// Stored to since the last checkpoint.
    stored: Vec<u32>,
    /// Their entries are not what the medium has.
    unlisted: Vec<u32>,
    /// Dirty ones of metadata, by when they became so; some of them are no longer.
    dirty: VecDeque<u32>,
    refused: BTreeMap<u64, Refused>,
    hand: usize,
    /// Blocks that were put into frames so far.
    tenancies: u64,
    /// Free ones that are kept for what is being committed.
    reserved: usize,
}

/// What there is in an area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) frames: u64,
    pub(crate) used: u64,
    pub(crate) dirty: u64,
    /// Of the dirty ones, those of files.
    pub(crate) refused: u64,
}

pub(crate) struct Frames {
    region: Region,
    area: Area,
    disk: Arc<Disk>,
    state: RwLock<State>,
    /// How many are refused: mostly none, and then nobody who reads needs to ask.
    refused: AtomicU64,
}

impl Frames {
    /// No frame holds anything: the table is cleared.
    pub(crate) fn empty(region: Region, area: Area, disk: Arc<Disk>) -> Frames {
        let flushed =
            region.stream_zero(Purpose::Allocation, area.entry_at(0), area.frames * super::area::ENTRY);
        region.fence(flushed).ignore();
        let frames = (0..area.frames).map(|_| Frame::free()).collect();
        let free = (0..area.frames as u32).rev().collect();
        Frames::with(region, area, disk, frames, InoMap::default(), free)
    }

    fn with(
        region: Region,
        area: Area,
        disk: Arc<Disk>,
        frames: Vec<Frame>,
        of: InoMap<u64, u32>,
        free: Vec<u32>,
    ) -> Frames {
        let dirty = |n: &u32| frames[*n as usize].dirty && frames[*n as usize].kind != Kind::Refused;
        let dirty = (0..frames.len() as u32).filter(dirty).collect();
        let refused = of.iter().filter(|(_, n)| frames[**n as usize].kind == Kind::Refused);
        let refused: BTreeMap<u64, Refused> =
            refused.map(|(block, n)| (*block, Refused { n: *n, is_old: false })).collect();
        let count = AtomicU64::new(refused.len() as u64);
        let state = State {
            of,
            frames,
            free,
            freed: Vec::new(),
            stored: Vec::new(),
            unlisted: Vec::new(),
            dirty,
            refused,
            hand: 0,
            tenancies: 0,
            reserved: 0,
        };
        Frames { region, area, disk, state: RwLock::new(state), refused: count }
    }

    /// What the table on the medium says.
    pub(crate) fn listed(region: &Region, area: &Area) -> Counts {
        let entries = (0..area.frames as u32).map(|n| area.entry_at(n));
        let entries = entries.map(|at| (region.load_u64(at), region.load_u64(at + 8)));
        let used: Vec<(u64, u64)> = entries.filter(|(word, _)| word & USED != 0).collect();
        let dirty = used.iter().filter(|(word, _)| word & DIRTY != 0).count() as u64;
        let is_refused = |kind: u64| Kind::from_words(kind as u32, 0) == Some(Kind::Refused);
        let refused = used.iter().filter(|(_, kind)| is_refused(*kind)).count() as u64;
        Counts { frames: area.frames, used: used.len() as u64, dirty, refused }
    }

    /// Reads the table: 16 bytes a frame.
    pub(crate) fn open(region: Region, area: Area, disk: Arc<Disk>) -> Result<Frames> {
        let blocks = area.blocks();
        let (mut frames, mut of, mut free) = (Vec::new(), InoMap::default(), Vec::new());
        for n in 0..area.frames as u32 {
            let at = area.entry_at(n);
            let (word, kind) = (region.load_u64(at), region.load_u64(at + 8));
            if word & USED == 0 {
                frames.push(Frame::free());
                free.push(n);
                continue;
            }
            let block = word & !(USED | DIRTY);
            let wrong = |field: &str, found: u64, expected: &str| {
                Err(corrupt("frame table", format_args!("entry {n}"), field, found, expected))
            };
            let Some(kind) = Kind::from_words(kind as u32, (kind >> 32) as u32) else {
                return wrong("the kind", kind, "one that there is");
            };
            if block >= blocks {
                return wrong("the block", block, "one of the disk's");
            }
            if of.insert(block, n).is_some() {
                return wrong("the block", block, "no other entry's");
            }
            let dirty = word & DIRTY != 0;
            frames.push(Frame { block, kind, used: true, dirty, listed: true, ..Frame::free() });
        }
        free.reverse();
        Ok(Frames::with(region, area, disk, frames, of, free))
    }

    /// Frames that there are.
    pub(crate) fn count(&self) -> u64 {
        self.area.frames
    }

    pub(crate) fn counts(&self) -> Counts {
        let state = self.state.read();
        let dirty = state.frames.iter().filter(|frame| frame.dirty).count() as u64;
        let refused = state.refused.len() as u64;
        Counts { frames: self.area.frames, used: state.of.len() as u64, dirty, refused }
    }

    /// DRAM that the frames take, bytes.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let state = self.state.read();
        (state.of.capacity() * 16 + state.frames.capacity() * size_of::<Frame>()) as u64
    }

    /// Reads block `number`, which is a `kind`, from its frame. False if it has none.
    pub(crate) fn read(&self, kind: Kind, number: u64, into: &mut [u8]) -> Result<bool> {
        let state = self.state.read();
        let Some(&n) = state.of.get(&number) else { return Ok(false) };
        let frame = &state.frames[n as usize];
        if frame.kind != kind {
            return Err(corrupt("block", number, "its use", format!("{} and {kind}", frame.kind), "one"));
        }
        frame.referenced.store(true, Relaxed);
        self.region.read(self.area.frame_at(n), into);
        drop(state);
        self.check()?;
        Ok(true)
    }

    fn check(&self) -> Result<()> {
        self.region.check().map_err(|error| vfs::Error::Io(error.to_string()))
    }

    /// Gives a block that has just come from the disk a frame, if there is one that nobody misses.
    pub(crate) fn fill(&self, kind: Kind, number: u64, bytes: &[u8]) {
        let state = &mut *self.state.write();
        if state.of.contains_key(&number) {
            return;
        }
        let spare = if state.free.len() > state.reserved { state.free.pop() } else { None };
        let Some(n) = spare.or_else(|| self.give_up_clean(state)) else { return };
        state.put(n, kind, number, false);
        self.store(state, n, u64::MAX, bytes);
    }

    /// Sees to it that [`Frames::apply`] of so many blocks cannot fail: it comes when they are committed.
    ///
    /// # Errors
    /// [`vfs::Error::NoSpace`] if it takes a checkpoint before, that of the disk if dirty blocks had to go there and could not.
    pub(crate) fn reserve(&self, blocks: impl Iterator<Item = u64>) -> Result<()> {
        let state = &mut *self.state.write();
        // Those that have a frame may lose it meanwhile: they count, too.
        let count = blocks.count();
        while state.free.len() < count {
            match self.give_up_clean(state) {
                Some(n) => state.free.push(n),
                None => self.clean_some(state)?,
            }
        }
        state.reserved = count;
        Ok(())
    }

    /// Applies what is committed, for which there is room ([`Frames::reserve`]): sub-blocks of blocks, each with its block's newest bytes for those that have no frame; then what is
    /// metadata no longer.
    pub(crate) fn apply<'a>(
        &self,
        blocks: impl IntoIterator<Item = (u64, Kind, u64, &'a [u8])>,
        freed: &[u64],
    ) {
        let state = &mut *self.state.write();
        state.reserved = 0;
        for number in freed {
            state.forget(*number);
        }
        for (number, kind, parts, bytes) in blocks {
            let n = match state.of.get(&number).copied() {
                Some(n) if state.frames[n as usize].kind == kind => n,
                had => {
                    // Its entry, if it has one, tells of what it was: away with it, behind the next checkpoint.
                    if had.is_some() {
                        state.forget(number);
                    }
                    let n = state.free.pop().expect("room was reserved");
                    state.put(n, kind, number, true);
                    self.store(state, n, u64::MAX, bytes);
                    continue;
                }
            };
            state.make_dirty(n);
            self.store(state, n, parts, bytes);
        }
    }

    /// Which sub-blocks of a block its frame has otherwise; all, if it has none.
    pub(crate) fn differing(&self, number: u64, kind: Kind, bytes: &[u8]) -> u64 {
        let state = self.state.read();
        let Some(&n) = state.of.get(&number) else { return u64::MAX };
        if state.frames[n as usize].kind != kind {
            return u64::MAX;
        }
        let part = self.area.part as usize;
        let frame = self.region.bytes(self.area.frame_at(n), bytes.len());
        let pairs = frame.chunks(part).zip(bytes.chunks(part)).enumerate();
        pairs.filter(|(_, (one, other))| one != other).fold(0, |bits, (n, _)| bits | 1 << n)
    }

    /// Whether block `number` has a frame.
    pub(crate) fn holds(&self, number: u64) -> bool {
        self.state.read().of.contains_key(&number)
    }

    /// Block `number` as it is: its frame's, or the disk's.
    pub(crate) fn current(&self, number: u64, into: &mut [u8]) -> Result<()> {
        let state = self.state.read();
        match state.of.get(&number) {
            Some(&n) => self.region.read(self.area.frame_at(n), into),
            None => {
                self.disk
                    .read(DiskPurpose::Metadata, number * self.area.block, into)
                    .map_err(|error| io(&error))?;
            }
        }
        drop(state);
        self.check()
    }

    /// Stores sub-blocks of a frame.
    fn store(&self, state: &mut State, n: u32, parts: u64, bytes: &[u8]) {
        let frame = &mut state.frames[n as usize];
        if frame.stored == 0 {
            state.stored.push(n);
        }
        frame.stored |= parts;
        frame.referenced.store(true, Relaxed);
        let (at, part) = (self.area.frame_at(n), self.area.part as usize);
        if parts == u64::MAX {
            return self.region.store(Purpose::Metadata, at, bytes);
        }
        for run in runs(parts, bytes.len() / part) {
            let bytes = &bytes[run.start * part..run.end * part];
            self.region.store(Purpose::Metadata, at + (run.start * part) as u64, bytes);
        }
    }

    /// A clean frame, given up: not asked for since the hand came by last, if there is one.
    fn give_up_clean(&self, state: &mut State) -> Option<u32> {
        let count = state.frames.len();
        for _ in 0..2 * count {
            state.hand = (state.hand + 1) % count;
            let frame = &state.frames[state.hand];
            if !frame.used || frame.dirty || frame.referenced.swap(false, Relaxed) {
                continue;
            }
            let n = state.hand as u32;
            let frame = &mut state.frames[n as usize];
            debug_assert_ne!(frame.kind, Kind::Refused, "a file's bytes are nowhere else");
            state.of.remove(&frame.block);
            let listed = std::mem::replace(frame, Frame { stored: frame.stored, ..Frame::free() }).listed;
            if listed && !planted(Fault::EvictedStillListed) {
                self.region.persist_u64(Purpose::Allocation, self.area.entry_at(n), 0).ignore();
            }
            return Some(n);
        }
        None
    }

    /// Writes the blocks that have been dirty for longest to the disk, durably. One that it refuses stays dirty, and is the last to be asked for again.
    ///
    /// # Errors
    /// [`vfs::Error::NoSpace`] if there is none; that of the disk if it has taken none.
    fn clean_some(&self, state: &mut State) -> Result<()> {
        let (mut written, mut kept) = (Vec::new(), None);
        while written.len() < FLUSH_BATCH
            && let Some(n) = state.dirty.pop_front()
        {
            match &state.frames[n as usize] {
                // It was dirty as metadata's, before it was given up and taken for what the disk refuses.
                Frame { kind: Kind::Refused, .. } => {}
                // The disk's carries its mark, and goes last.
                Frame { dirty: true, kind: Kind::Superblock, .. } => kept = Some(n),
                Frame { dirty: true, .. } => written.push(n),
                _ => {}
            }
        }
        state.dirty.extend(kept);
        if written.is_empty() {
            // Every frame is held by a block that is gone, until the next checkpoint.
            return Err(vfs::Error::NoSpace);
        }
        written.sort_unstable_by_key(|n| state.frames[*n as usize].block);
        let taken = self.write_to_disk(state, &written);
        for n in written {
            match &taken {
                Ok(refused) if refused.contains(&n) => state.dirty.push_back(n),
                Ok(_) => {
                    let frame = &mut state.frames[n as usize];
                    frame.dirty = false;
                    state.unlisted.push(n);
                }
                Err(_) => state.dirty.push_front(n),
            }
        }
        taken.map(drop)
    }

    /// Writes blocks to the disk, durably; gives those that it refuses, which are not all.
    fn write_to_disk(&self, state: &State, frames: &[u32]) -> Result<Vec<u32>> {
        let mut bytes = vec![0; self.area.block as usize];
        let since = self.disk.since();
        let mut refused = Vec::new();
        for n in frames {
            self.region.read(self.area.frame_at(*n), &mut bytes);
            self.check()?;
            let at = state.frames[*n as usize].block * self.area.block;
            match self.disk.write(DiskPurpose::Metadata, at, &bytes) {
                Ok(()) => {}
                Err(error) if error.is_vanished() || refused.len() + 1 == frames.len() => {
                    return Err(io(&error));
                }
                Err(_) => refused.push(*n),
            }
        }
        if planted(Fault::EvictedTooEarly) {
            return Ok(refused);
        }
        self.disk.flush_since(since).map_err(|error| io(&error))?;
        Ok(refused)
    }

    /// Writes all metadata that the disk has not to it, durably, but for the superblock's block. The log must be empty.
    pub(crate) fn write_all_to_disk(&self) -> Result<()> {
        let state = &mut *self.state.write();
        loop {
            match self.clean_some(state) {
                Err(vfs::Error::NoSpace) => return Ok(()),
                other => other?,
            }
        }
    }

    /// Makes all that was applied before durable: then what the log has of it is needed no more.
    pub(crate) fn checkpoint(&self) -> Durable {
        let (stored, unlisted, freed) = {
            let state = &mut *self.state.write();
            let mut parts = Vec::new();
            for n in std::mem::take(&mut state.stored) {
                let frame = &mut state.frames[n as usize];
                parts.push((n, std::mem::take(&mut frame.stored)));
            }
            let unlisted: Vec<(u32, u64)> = std::mem::take(&mut state.unlisted)
                .into_iter()
                .map(|n| (n, state.frames[n as usize].tenancy))
                .collect();
            (parts, unlisted, std::mem::take(&mut state.freed))
        };
        let mut flushed = Flushed::none();
        for (n, parts) in stored {
            let (at, part) = (self.area.frame_at(n), self.area.part);
            for run in runs(parts, (self.area.block / part) as usize) {
                let bytes = (run.end - run.start) as u64 * part;
                let at = at + run.start as u64 * part;
                let fault = Fault::FramesNotFlushed;
                flushed = flushed.and(fault::flush(&self.region, fault, Purpose::Checkpoint, at, bytes));
            }
        }
        let bytes_are_there = self.region.fence(flushed);
        let cleared = self.clear_entries(&freed);
        let durable = self.write_entries(&unlisted, bytes_are_there.and(cleared));
        let state = &mut *self.state.write();
        for n in freed {
            state.frames[n as usize] = Frame::free();
            state.free.push(n);
        }
        durable
    }

    fn clear_entries(&self, freed: &[u32]) -> Durable {
        let mut flushed = Flushed::none();
        for n in freed {
            let at = self.area.entry_at(*n);
            self.region.store_u64(Purpose::Allocation, at, 0);
            flushed = flushed.and(self.region.flush(Purpose::Allocation, at, 8));
        }
        self.region.fence(flushed)
    }

    /// Writes the entries of frames that hold what they held, by its tenancy, before `_bytes` became durable: also if it was given up since
    /// and came again, the bytes of now are others.
    fn write_entries(&self, unlisted: &[(u32, u64)], _bytes: Durable) -> Durable {
        let mut flushed = Flushed::none();
        for batch in unlisted.chunks(BATCH) {
            let state = &mut *self.state.write();
            for (n, tenancy) in batch {
                let frame = &mut state.frames[*n as usize];
                if !frame.used || frame.tenancy != *tenancy {
                    continue;
                }
                frame.listed = true;
                let (which, ino) = frame.kind.to_words();
                let at = self.area.entry_at(*n);
                let dirty = if frame.dirty { DIRTY } else { 0 };
                // In one line, and so in this order.
                self.region.store_u64(Purpose::Allocation, at + 8, u64::from(which) | u64::from(ino) << 32);
                self.region.store_u64(Purpose::Allocation, at, USED | dirty | frame.block);
                let (fault, bytes) = (Fault::EntriesNotFlushed, super::area::ENTRY);
                flushed = flushed.and(fault::flush(&self.region, fault, Purpose::Allocation, at, bytes));
            }
        }
        self.region.fence(flushed)
    }
}

impl Frame {
    fn free() -> Frame {
        Frame {
            block: 0,
            tenancy: 0,
            kind: Kind::Bitmap,
            used: false,
            dirty: false,
            listed: false,
            referenced: AtomicBool::new(false),
            stored: 0,
        }
    }
}

impl State {
    /// A free frame holds a block now.
    fn put(&mut self, n: u32, kind: Kind, block: u64, dirty: bool) {
        let stored = self.frames[n as usize].stored;
        self.tenancies += 1;
        let tenancy = self.tenancies;
        self.frames[n as usize] = Frame { block, tenancy, kind, used: true, stored, ..Frame::free() };
        self.of.insert(block, n);
        self.unlisted.push(n);
        if dirty {
            self.make_dirty(n);
        }
    }

    fn make_dirty(&mut self, n: u32) {
        let frame = &mut self.frames[n as usize];
        if !frame.dirty {
            frame.dirty = true;
            self.unlisted.push(n);
            self.dirty.push_back(n);
        }
    }

    /// A block is metadata no longer.
    fn forget(&mut self, number: u64) {
        let Some(n) = self.of.remove(&number) else { return };
        self.refused.remove(&number);
        let frame = &mut self.frames[n as usize];
        frame.used = false;
        frame.dirty = false;
        self.freed.push(n);
    }
}

/// The runs of set bits among the first `count`.
fn runs(bits: u64, count: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut rest = if count < 64 { bits & ((1 << count) - 1) } else { bits };
    std::iter::from_fn(move || {
        let start = rest.trailing_zeros();
        // 64 if none is left.
        let end = start + rest.checked_shr(start)?.trailing_ones();
        rest &= (!0_u64).checked_shl(end).unwrap_or(0);
        Some(start as usize..end as usize)
    })
}
