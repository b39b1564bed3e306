//! Block allocation: log-structured, within segments (HMFS §2.2).
//!
//! Invariants:
//! - A block that the newest checkpoint reaches is never handed out: `used` has every block that is valid on the
//!   medium, until a checkpoint without it has been published.
//! - `next` is what will be valid once the running epoch's checkpoint is published.
//! - Nothing is scanned at mount but the SIT; a segment's bitmaps are read there when it is first touched.
//! - A segment whose SIT entry is damaged is in quarantine: as nobody knows what is free there, nothing is handed out
//!   from it, nothing freed in it becomes free, and its entry stays as it is until `fsck` has rebuilt it from the tree.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::bia::{BlockKind, Entry};
use crate::geometry::{Medium, SEGMENT_BLOCKS};
use crate::lanes::LANES;
use crate::sit::{self, Bitmap, JournalEntry, SegmentKind, SitEntry};

const NO_SEGMENT: u32 = u32::MAX;

/// Blocks that an operation may take without asking again. What is left returns when it is dropped.
#[must_use]
pub(crate) struct Budget<'a> {
    allocator: &'a Allocator,
    left: std::cell::Cell<i64>,
    /// They came from a lane's stock, and may go back there.
    from_stock: bool,
}

impl Drop for Budget<'_> {
    fn drop(&mut self) {
        if self.left.get() != 0 {
            self.allocator.free.fetch_add(self.left.get(), Relaxed);
        }
    }
}

/// Blocks that a lane keeps for its operations, so that most begin without asking. They are taken only while there are
/// many, never from the reserves, and are given back when an epoch ends or somebody finds none.
#[derive(Default)]
pub(crate) struct Stock(i64);

/// Who may go how deep into the last free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Whatever adds to the volume: leaves both reserves alone.
    Ordinary,
    /// Whatever frees more than it takes: may use the deletion reserve.
    Deletion,
    /// Checkpoints: may use everything.
    Checkpoint,
}

pub(crate) struct Allocator {
    medium: Arc<Medium>,
    /// Blocks neither used nor promised to a budget.
    free: Arc<AtomicI64>,
    /// Version that blocks allocated now belong to.
    version: AtomicU32,
    inner: Mutex<Inner>,
}

struct Inner {
    segments: Vec<Segment>,
    maps: Vec<Option<Box<Map>>>,
    /// Segments whose `next` differs from `valid`, perhaps.
    touched: Vec<u32>,
    cursors: [Cursor; 2],
    /// Blocks set in `next`, over all segments.
    live: u64,
    free: Arc<AtomicI64>,
}

#[derive(Clone, Copy)]
struct Segment {
    /// Blocks that can't be handed out.
    used: u16,
    kind: SegmentKind,
    /// The SIT entry is damaged.
    quarantined: bool,
}

impl Segment {
    /// All of it counts as in use.
    const QUARANTINED: Segment =
        Segment { used: SEGMENT_BLOCKS as u16, kind: SegmentKind::Meta, quarantined: true };
}

struct Map {
    valid: Bitmap,
    next: Bitmap,
    used: Bitmap,
    touched: bool,
}

#[derive(Clone, Copy)]
struct Cursor {
    segment: u32,
    at: usize,
}

/// The state of the segments that one epoch changed, taken when the epoch ended.
pub(crate) struct Frozen {
    segments: Vec<FrozenSegment>,
    index: std::collections::HashMap<u32, usize>,
}

struct FrozenSegment {
    segment: u32,
    kind: SegmentKind,
    valid: Bitmap,
    next: Bitmap,
    used: Bitmap,
}

impl Frozen {
    /// The journal entries of all segments that change.
    pub(crate) fn journal(&self, version: u32) -> Vec<JournalEntry> {
        self.segments.iter().map(|s| JournalEntry::new(s.segment, s.kind, version, &s.next)).collect()
    }

    /// Segments and the blocks in each that become valid.
    pub(crate) fn newly_valid(&self) -> impl Iterator<Item = (u32, Bitmap)> + '_ {
        self.segments.iter().map(|s| (s.segment, std::array::from_fn(|word| s.next[word] & !s.valid[word])))
    }
}

impl Allocator {
    /// Reads the SIT.
    pub(crate) fn open(medium: Arc<Medium>, version: u32) -> Allocator {
        let count = medium.geometry.segments;
        let mut segments = Vec::with_capacity(count as usize);
        let mut live = 0;
        for segment in 0..count {
            let segment = match SitEntry::read(&medium, segment) {
                Ok(entry) => {
                    Segment { used: entry.valid.get(), kind: entry.segment_kind(), quarantined: false }
                }
                Err(error) => {
                    tracing::error!("segment {segment} is not used: {error}; run fsck");
                    Segment::QUARANTINED
                }
            };
            live += u64::from(segment.used);
            segments.push(segment);
        }
        let free = Arc::new(AtomicI64::new((medium.geometry.main_blocks() - live) as i64));
        let cursor = Cursor { segment: NO_SEGMENT, at: 0 };
        let inner = Inner {
            maps: (0..count).map(|_| None).collect(),
            segments,
            touched: Vec::new(),
            cursors: [cursor; 2],
            live,
            free: free.clone(),
        };
        Allocator { medium, free, version: AtomicU32::new(version), inner: Mutex::new(inner) }
    }

    /// Blocks kept for checkpoints: enough to rewrite the whole NAT (one entry block per 512 nodes, and its tree).
    fn checkpoint_reserve(&self) -> i64 {
        (self.medium.geometry.main_blocks() / 256 + 16) as i64
    }

    /// Blocks kept so that deleting is always possible.
    fn deletion_reserve(&self) -> i64 {
        (self.medium.geometry.main_blocks() / 256 + 48) as i64
    }

    /// Promises `blocks` blocks, or `None` if there are not so many now.
    pub(crate) fn reserve(&self, blocks: u64, urgency: Urgency) -> Option<Budget<'_>> {
        let keep = match urgency {
            Urgency::Ordinary => self.checkpoint_reserve() + self.deletion_reserve(),
            Urgency::Deletion => self.checkpoint_reserve(),
            Urgency::Checkpoint => i64::MIN / 2,
        };
        self.take(blocks as i64, keep).then(|| self.budget(blocks as i64, false))
    }

    fn budget(&self, blocks: i64, from_stock: bool) -> Budget<'_> {
        Budget { allocator: self, left: std::cell::Cell::new(blocks), from_stock }
    }

    /// Takes `blocks` from what is free if `keep` are left.
    fn take(&self, blocks: i64, keep: i64) -> bool {
        let take = |free: i64| (free - blocks >= keep).then_some(free - blocks);
        self.free.fetch_update(Relaxed, Relaxed, take).is_ok()
    }

    /// Blocks in a full stock: 1/2048 of the Main Area, at most 1 MiB.
    fn stock_blocks(&self) -> i64 {
        (self.medium.geometry.main_blocks() / 2048).min(256) as i64
    }

    /// As [`Allocator::reserve`], from the stock of the caller's lane if it has as many. While there are many free
    /// blocks, an empty stock is filled.
    pub(crate) fn reserve_from(
        &self,
        stock: &mut Stock,
        blocks: u64,
        urgency: Urgency,
    ) -> Option<Budget<'_>> {
        let wanted = blocks as i64;
        if stock.0 >= wanted {
            stock.0 -= wanted;
            return Some(self.budget(wanted, true));
        }
        let full = self.stock_blocks();
        let reserves = self.checkpoint_reserve() + self.deletion_reserve();
        if self.take(wanted + full - stock.0, reserves + 2 * full * LANES as i64) {
            stock.0 = full;
            return Some(self.budget(wanted, true));
        }
        self.give_back(stock);
        self.reserve(blocks, urgency)
    }

    /// An operation ends: what it did not use goes back to where it came from.
    pub(crate) fn put_back(&self, stock: &mut Stock, budget: &Budget<'_>) {
        if budget.from_stock {
            stock.0 += budget.left.replace(0);
            if stock.0 > 2 * self.stock_blocks() {
                self.give_back(stock);
            }
        }
    }

    /// What a lane had in stock is free for all.
    pub(crate) fn give_back(&self, stock: &mut Stock) {
        if stock.0 != 0 {
            self.free.fetch_add(std::mem::take(&mut stock.0), Relaxed);
        }
    }

    /// Blocks an ordinary operation could still get, and all that the next checkpoint leaves unused.
    pub(crate) fn space(&self) -> (u64, u64) {
        let live = self.inner.lock().live;
        let free = self.medium.geometry.main_blocks() - live;
        let reserves = (self.checkpoint_reserve() + self.deletion_reserve()) as u64;
        (free.saturating_sub(reserves), free)
    }

    /// Whether the next checkpoint would make blocks available.
    pub(crate) fn has_pending(&self) -> bool {
        let inner = self.inner.lock();
        inner.segments.iter().map(|s| u64::from(s.used)).sum::<u64>() > inner.live
    }

    /// Bytes of DRAM the allocator holds.
    pub(crate) fn cache_bytes(&self) -> u64 {
        let inner = self.inner.lock();
        let maps = inner.maps.iter().flatten().count() * size_of::<Map>();
        (maps + inner.maps.len() * 8 + inner.segments.len() * size_of::<Segment>()) as u64
    }

    /// Allocates a run of up to `want` contiguous blocks and writes their BIA entries softly. Block `i` of the
    /// run gets `place + i` for data, 0 otherwise. Returns the first block and the run's length, at least 1.
    pub(crate) fn allocate(
        &self,
        budget: &Budget<'_>,
        kind: BlockKind,
        owner: u32,
        place: u64,
        want: u64,
    ) -> vfs::Result<(u64, u64)> {
        let group = if kind == BlockKind::Data { SegmentKind::Data } else { SegmentKind::Meta };
        let (first, length) =
            self.inner.lock().take_run(&self.medium, group, want.clamp(1, SEGMENT_BLOCKS))?;
        budget.left.set(budget.left.get() - length as i64);
        let version = self.version.load(Relaxed);
        for i in 0..length {
            let place = if kind == BlockKind::Data { place + i } else { 0 };
            Entry::write_soft(&self.medium, first + i, version, owner, kind, place);
        }
        Ok((first, length))
    }

    /// Takes one particular block that the log says was allocated: replay does this before anything else is
    /// allocated.
    pub(crate) fn claim(&self, block: u64, owner: u32, place: u64) {
        let (segment, index) = self.medium.geometry.segment_of(block);
        let (word, bit) = (index / 64, 1 << (index % 64));
        let mut inner = self.inner.lock();
        let map = inner.load(&self.medium, segment);
        map.next[word] |= bit;
        if map.used[word] & bit == 0 {
            map.used[word] |= bit;
            inner.touch(segment);
            inner.segments[segment as usize].used += 1;
            inner.segments[segment as usize].kind = SegmentKind::Data;
            inner.live += 1;
            self.free.fetch_sub(1, Relaxed);
        }
        // Whatever the entry says now, it may not have been flushed; that of a valid block was.
        let was_valid = !inner.segments[segment as usize].quarantined && is_valid(&inner, segment, index);
        drop(inner);
        let version = self.version.load(Relaxed);
        if !was_valid {
            Entry::write_soft(&self.medium, block, version, owner, BlockKind::Data, place);
        }
    }

    /// Gives a run of blocks back: they are free once the running epoch's checkpoint is published.
    pub(crate) fn free(&self, first: u64, length: u64) {
        let mut inner = self.inner.lock();
        for block in first..first + length {
            let (segment, index) = self.medium.geometry.segment_of(block);
            let (word, bit) = (index / 64, 1 << (index % 64));
            let map = inner.load(&self.medium, segment);
            if map.next[word] & bit == 0 {
                tracing::error!("block {block} is freed but not in use; run fsck");
                continue;
            }
            if inner.segments[segment as usize].quarantined {
                continue;
            }
            let map = inner.load(&self.medium, segment);
            map.next[word] &= !bit;
            inner.touch(segment);
            inner.live -= 1;
        }
    }

    /// Ends the epoch: what was allocated and freed so far goes into the checkpoint being made, what comes
    /// now into the next, whose version is `version`. The caller keeps operations out.
    pub(crate) fn freeze(&self, version: u32) -> Frozen {
        self.version.store(version, Relaxed);
        let mut inner = self.inner.lock();
        let touched = std::mem::take(&mut inner.touched);
        let mut frozen = Frozen { segments: Vec::with_capacity(touched.len()), index: Default::default() };
        for segment in touched {
            let kind = inner.segments[segment as usize].kind;
            let map = inner.maps[segment as usize].as_mut().expect("a touched segment is loaded");
            map.touched = false;
            frozen.index.insert(segment, frozen.segments.len());
            frozen.segments.push(FrozenSegment {
                segment,
                kind,
                valid: map.valid,
                next: map.next,
                used: map.used,
            });
        }
        frozen
    }

    /// Allocates a block for the checkpoint being made, which is `version`.
    pub(crate) fn allocate_into(
        &self,
        frozen: &mut Frozen,
        kind: BlockKind,
        version: u32,
    ) -> vfs::Result<u64> {
        let mut inner = self.inner.lock();
        let (block, _) = inner.take_run(&self.medium, SegmentKind::Meta, 1)?;
        self.free.fetch_sub(1, Relaxed);
        Entry::write_soft(&self.medium, block, version, 0, kind, 0);
        let (segment, index) = self.medium.geometry.segment_of(block);
        let entry = inner.frozen_segment(frozen, segment);
        entry.next[index / 64] |= 1 << (index % 64);
        entry.kind = SegmentKind::Meta;
        Ok(block)
    }

    /// Gives back a block that the checkpoint being made no longer needs.
    pub(crate) fn free_from(&self, frozen: &mut Frozen, block: u64) {
        let mut inner = self.inner.lock();
        let (segment, index) = self.medium.geometry.segment_of(block);
        let (word, bit) = (index / 64, 1 << (index % 64));
        let map = inner.load(&self.medium, segment);
        if map.next[word] & bit == 0 {
            tracing::error!("block {block} is freed but not in use; run fsck");
            return;
        }
        if inner.segments[segment as usize].quarantined {
            return;
        }
        inner.load(&self.medium, segment).next[word] &= !bit;
        inner.touch(segment);
        inner.live -= 1;
        let entry = inner.frozen_segment(frozen, segment);
        entry.next[word] &= !bit;
        entry.used[word] |= bit;
    }

    /// The checkpoint is published: what only its predecessor reached can be handed out again.
    pub(crate) fn release(&self, frozen: &Frozen) {
        let mut released = 0;
        let mut inner = self.inner.lock();
        for entry in &frozen.segments {
            let map = inner.maps[entry.segment as usize].as_mut().expect("a frozen segment is loaded");
            map.valid = entry.next;
            let dead: Bitmap = std::array::from_fn(|word| entry.used[word] & !entry.next[word]);
            for (used, dead) in map.used.iter_mut().zip(dead) {
                *used &= !dead;
            }
            let count = sit::count(&dead);
            let segment = &mut inner.segments[entry.segment as usize];
            segment.used -= count as u16;
            if segment.used == 0 {
                segment.kind = SegmentKind::Free;
            }
            released += count;
        }
        self.free.fetch_add(released as i64, Relaxed);
    }
}

impl Inner {
    /// The bitmaps of `segment`. If its SIT entry is not what it was when the volume was opened, it is damaged.
    fn load(&mut self, medium: &Medium, segment: u32) -> &mut Map {
        let slot = &mut self.maps[segment as usize];
        slot.get_or_insert_with(|| {
            let state = &mut self.segments[segment as usize];
            let entry = if state.quarantined { None } else { SitEntry::read(medium, segment).ok() };
            let valid = match entry.filter(|entry| entry.valid.get() == state.used) {
                Some(entry) => entry.bits(),
                None => {
                    let lost = SEGMENT_BLOCKS - u64::from(state.used);
                    if !state.quarantined {
                        tracing::error!(
                            "segment {segment} is not used any more: its SIT entry is damaged; run fsck"
                        );
                    }
                    *state = Segment::QUARANTINED;
                    self.live += lost;
                    self.free.fetch_sub(lost as i64, Relaxed);
                    [u64::MAX; 8]
                }
            };
            Box::new(Map { valid, next: valid, used: valid, touched: false })
        })
    }

    fn touch(&mut self, segment: u32) {
        let map = self.maps[segment as usize].as_mut().expect("loaded before it is touched");
        if !map.touched {
            map.touched = true;
            self.touched.push(segment);
        }
    }

    /// The frozen state of `segment`; if the epoch had not changed it, that is what is on the medium.
    fn frozen_segment<'f>(&self, frozen: &'f mut Frozen, segment: u32) -> &'f mut FrozenSegment {
        let index = *frozen.index.entry(segment).or_insert_with(|| {
            let map = self.maps[segment as usize].as_ref().expect("a touched segment is loaded");
            let kind = self.segments[segment as usize].kind;
            let (valid, next) = (map.valid, map.valid);
            frozen.segments.push(FrozenSegment { segment, kind, valid, next, used: map.valid });
            frozen.segments.len() - 1
        });
        &mut frozen.segments[index]
    }

    fn take_run(&mut self, medium: &Medium, group: SegmentKind, want: u64) -> vfs::Result<(u64, u64)> {
        let which = usize::from(group == SegmentKind::Meta);
        loop {
            let cursor = self.cursors[which];
            if cursor.segment != NO_SEGMENT {
                let map = self.load(medium, cursor.segment);
                if let Some((at, length)) = free_run(&map.used, cursor.at, want as usize) {
                    for index in at..at + length {
                        map.used[index / 64] |= 1 << (index % 64);
                        map.next[index / 64] |= 1 << (index % 64);
                    }
                    self.touch(cursor.segment);
                    let segment = &mut self.segments[cursor.segment as usize];
                    segment.used += length as u16;
                    segment.kind = group;
                    self.live += length as u64;
                    self.cursors[which].at = at + length;
                    return Ok((medium.geometry.segment_start(cursor.segment) + at as u64, length as u64));
                }
            }
            let segment = self.choose(group, which).ok_or_else(|| self.full())?;
            self.cursors[which] = Cursor { segment, at: 0 };
        }
    }

    /// Why no block is free, although one was promised: damage had left less room than there is.
    fn full(&self) -> vfs::Error {
        match self.segments.iter().filter(|segment| segment.quarantined).count() {
            0 => vfs::Error::NoSpace,
            count => vfs::Error::Io(format!(
                "no block is free: {count} segments are not used, because their SIT entries are damaged; run fsck"
            )),
        }
    }

    /// The next segment to fill: the first empty one, so that a volume keeps to the memory it has touched; else the
    /// emptiest of the group, else any with room.
    fn choose(&self, group: SegmentKind, which: usize) -> Option<u32> {
        let other = self.cursors[1 - which].segment;
        let count = self.segments.len();
        let free = |index: &usize| self.segments[*index].used == 0 && *index as u32 != other;
        if let Some(index) = (0..count).find(free) {
            return Some(index as u32);
        }
        let emptiest = |accept: &dyn Fn(usize) -> bool| {
            (0..count)
                .filter(|index| u64::from(self.segments[*index].used) < SEGMENT_BLOCKS && accept(*index))
                .min_by_key(|index| self.segments[*index].used)
                .map(|index| index as u32)
        };
        emptiest(&|index| self.segments[index].kind == group && index as u32 != other)
            .or_else(|| emptiest(&|index| index as u32 != other))
            .or_else(|| emptiest(&|_| true))
    }
}

/// Whether a block of a loaded segment is valid on the medium.
fn is_valid(inner: &Inner, segment: u32, index: usize) -> bool {
    let map = inner.maps[segment as usize].as_ref();
    map.is_some_and(|map| map.valid[index / 64] >> (index % 64) & 1 == 1)
}

/// The first clear bit at or after `from`, and how many clear bits follow it, at most `want`.
fn free_run(used: &Bitmap, from: usize, want: usize) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        if at >= SEGMENT_BLOCKS as usize {
            return None;
        }
        let word = !used[at / 64] >> (at % 64);
        if word != 0 {
            at += word.trailing_zeros() as usize;
            break;
        }
        at = (at / 64 + 1) * 64;
    }
    let mut length = 1;
    while length < want && at + length < SEGMENT_BLOCKS as usize {
        let index = at + length;
        if used[index / 64] >> (index % 64) & 1 == 1 {
            break;
        }
        length += 1;
    }
    Some((at, length))
}

#[cfg(test)]
mod tests {
    use nvm::{OpenOptions, Purpose, VolumeKind, Zone};
    use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO};

    use super::*;
    use crate::geometry::SIT_ENTRY;
    use crate::superblock::Superblock;
    use crate::{FormatOptions, MountOptions, Volume};

    /// A valid bit rotted away under a block in use. The segment was quarantined, and then a checkpoint wrote down the
    /// count of the wrong bits: at the next mount nothing looked wrong, and the block was handed out.
    #[test]
    fn a_damaged_segment_stays_in_quarantine() {
        let zone = Zone::anonymous(24 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
        crate::format(&region, &FormatOptions::default()).unwrap();
        let (root, rw) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
        let open = || Volume::open(region.clone(), &MountOptions::default()).unwrap();

        let volume = open();
        let file = volume.create(&root, ROOT_INO, b"f", 0o644, rw).unwrap();
        volume.write(&root, file.handle, 0, &[7; 40 << 10]).unwrap();
        volume.close().unwrap();
        drop(volume);

        let medium =
            Medium { region: region.clone(), geometry: Superblock::read(&region).unwrap().geometry() };
        let entry = |segment| SitEntry::read(&medium, segment).unwrap();
        let data = |segment: &u32| entry(*segment).segment_kind() == SegmentKind::Data;
        let segment = (0..medium.geometry.segments).find(data).unwrap();
        let bits = medium.geometry.sit_at(segment) + SIT_ENTRY / 2;
        let word = region.load_u64(bits);
        region.store_u64(Purpose::Allocation, bits, word & (word - 1));

        for round in 0..3u8 {
            let volume = open();
            let ino = volume.lookup(&root, ROOT_INO, b"f").unwrap().ino;
            let handle = volume.open(&root, ino, rw).unwrap();
            // Frees a block of the segment, and takes what others are free.
            volume.write(&root, handle, 36 << 10, &[round; 4096]).unwrap();
            let name = [b'a' + round];
            let other = volume.create(&root, ROOT_INO, &name, 0o644, rw).unwrap();
            while volume.write(&root, other.handle, 0, &[0xee; 1 << 20]).is_ok() {
                let size = volume.getattr(other.attr.ino).unwrap().size;
                if volume.write(&root, other.handle, size, &[0xee; 1 << 20]).is_err() {
                    break;
                }
            }
            let mut bytes = vec![0; 36 << 10];
            volume.read(handle, 0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 7), "round {round}: a block in use was handed out");
            volume.unlink(&root, ROOT_INO, &name).unwrap();
            volume.close().unwrap();
            drop(volume);
            assert!(SitEntry::read(&medium, segment).is_err(), "round {round}: the damage was papered over");
        }
        let report = crate::check(&region, true).unwrap();
        assert!(report.is_clean() && !report.problems.is_empty(), "{report:?}");
        assert!(crate::check(&region, false).unwrap().problems.is_empty());
        let valid = entry(segment).bits();
        assert_eq!(sit::count(&valid), 9, "what was freed meanwhile is free now");
    }
}
