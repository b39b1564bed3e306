//! What the allocator knows of each segment, in DRAM, and which blocks it hands out next.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use super::{Frozen, FrozenSegment};
use crate::geometry::{Medium, SEGMENT_BLOCKS};
use crate::sit::{Bitmap, SegmentKind, SitEntry};

const NO_SEGMENT: u32 = u32::MAX;

pub(super) struct Segments {
    pub(super) states: Vec<Segment>,
    pub(super) maps: Vec<Option<Box<Map>>>,
    /// Segments whose `next` differs from `valid`, perhaps.
    pub(super) touched: Vec<u32>,
    cursors: [Cursor; 2],
    /// Blocks set in `next`, over all segments.
    pub(super) live: u64,
    /// Blocks that the running tree reaches: not those that only snapshots have, nor the list of these.
    pub(super) reached: u64,
    pub(super) free: Arc<AtomicI64>,
    /// Segments of which no block is in use.
    pub(super) empty: u32,
    /// How many maps are loaded, how many may be, and where the search for one to drop goes on.
    pub(super) loaded: Arc<AtomicU64>,
    pub(super) maps_max: u64,
    hand: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Segment {
    /// Version of the epoch that changed it last.
    pub(super) version: u32,
    /// Blocks that can't be handed out.
    used: u16,
    pub(super) kind: SegmentKind,
    pub(super) standing: Standing,
}

impl Segment {
    pub(super) fn used(&self) -> u64 {
        self.used.into()
    }

    fn is_quarantined(&self) -> bool {
        self.standing == Standing::Quarantined
    }

    /// All of it counts as in use.
    const QUARANTINED: Segment = Segment {
        version: 0,
        used: SEGMENT_BLOCKS as u16,
        kind: SegmentKind::Meta,
        standing: Standing::Quarantined,
    };
}

/// What is to be done with a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Blocks come and go.
    Usual,
    /// It is being emptied: nothing is handed out.
    Emptied,
    /// Its SIT entry is damaged.
    Quarantined,
}

pub(super) struct Map {
    pub(super) valid: Bitmap,
    pub(super) next: Bitmap,
    pub(super) used: Bitmap,
    pub(super) touched: bool,
}

#[derive(Clone, Copy)]
struct Cursor {
    segment: u32,
    at: usize,
}

impl Cursor {
    const NOWHERE: Cursor = Cursor { segment: NO_SEGMENT, at: 0 };
}

impl Segments {
    /// Reads the SIT.
    pub(super) fn open(medium: &Medium, reached: u64) -> Segments {
        let count = medium.geometry.segments;
        let mut states = Vec::with_capacity(count as usize);
        let mut live = 0;
        for segment in 0..count {
            let state = match SitEntry::read(medium, segment) {
                Ok(entry) => Segment {
                    version: entry.version.get(),
                    used: entry.valid.get(),
                    kind: entry.segment_kind(),
                    standing: Standing::Usual,
                },
                Err(error) => {
                    tracing::error!("segment {segment} is not used: {error}; run fsck");
                    Segment::QUARANTINED
                }
            };
            live += u64::from(state.used);
            states.push(state);
        }
        Segments {
            empty: states.iter().filter(|state| state.used == 0).count() as u32,
            states,
            maps: (0..count).map(|_| None).collect(),
            touched: Vec::new(),
            cursors: [Cursor::NOWHERE; 2],
            loaded: Arc::default(),
            maps_max: u64::MAX,
            hand: 0,
            live,
            reached,
            free: Arc::new(AtomicI64::new((medium.geometry.main_blocks() - live) as i64)),
        }
    }

    pub(super) fn has_pending(&self) -> bool {
        self.states.iter().map(|state| u64::from(state.used)).sum::<u64>() > self.live
    }

    pub(super) fn cache_bytes(&self) -> (u64, u64) {
        let tables = self.maps.len() * 8 + self.states.len() * size_of::<Segment>();
        (self.loaded.load(Relaxed) * size_of::<Map>() as u64, tables as u64)
    }

    /// Drops maps that say what the medium says, so that half as many are there as may be. No checkpoint is being made.
    pub(super) fn trim(&mut self) {
        for _ in 0..self.maps.len() {
            if self.loaded.load(Relaxed) <= self.maps_max / 2 {
                break;
            }
            let map = &mut self.maps[self.hand];
            if map.take_if(|map| !map.touched && map.next == map.valid && map.used == map.valid).is_some() {
                self.loaded.fetch_sub(1, Relaxed);
            }
            self.hand = (self.hand + 1) % self.maps.len();
        }
    }

    /// The bitmaps of `segment`. If its SIT entry is not what it was when the volume was opened, it is damaged.
    pub(super) fn load(&mut self, medium: &Medium, segment: u32) -> &mut Map {
        let slot = &mut self.maps[segment as usize];
        slot.get_or_insert_with(|| {
            let state = &mut self.states[segment as usize];
            let entry = if state.is_quarantined() { None } else { SitEntry::read(medium, segment).ok() };
            let valid = match entry.filter(|entry| entry.valid.get() == state.used) {
                Some(entry) => entry.bits(),
                None => {
                    let lost = SEGMENT_BLOCKS - u64::from(state.used);
                    if !state.is_quarantined() {
                        tracing::error!(
                            "segment {segment} is not used any more: its SIT entry is damaged; run fsck"
                        );
                    }
                    self.empty -= u32::from(state.used == 0);
                    *state = Segment::QUARANTINED;
                    self.live += lost;
                    self.free.fetch_sub(lost as i64, Relaxed);
                    [u64::MAX; 8]
                }
            };
            self.loaded.fetch_add(1, Relaxed);
            Box::new(Map { valid, next: valid, used: valid, touched: false })
        })
    }

    /// Block `block` is in use from now on. Whether it is valid on the medium.
    pub(super) fn claim(&mut self, medium: &Medium, block: u64) -> bool {
        let (segment, index) = medium.geometry.segment_of(block);
        let (word, bit) = (index / 64, 1 << (index % 64));
        let map = self.load(medium, segment);
        map.next[word] |= bit;
        let was_valid = map.valid[word] & bit != 0;
        if map.used[word] & bit == 0 {
            map.used[word] |= bit;
            self.touch(segment);
            self.add_used(segment, 1);
            self.states[segment as usize].kind = SegmentKind::Data;
            self.live += 1;
            self.reached += 1;
            self.free.fetch_sub(1, Relaxed);
        }
        was_valid && !self.states[segment as usize].is_quarantined()
    }

    /// Block `block` is not in the next checkpoint. False if it was not in use, or if nobody knows.
    pub(super) fn give_up(&mut self, medium: &Medium, block: u64) -> bool {
        let (segment, index) = medium.geometry.segment_of(block);
        let (word, bit) = (index / 64, 1 << (index % 64));
        let map = self.load(medium, segment);
        if map.next[word] & bit == 0 {
            tracing::error!("block {block} is freed but not in use; run fsck");
            return false;
        }
        if self.states[segment as usize].is_quarantined() {
            return false;
        }
        self.load(medium, segment).next[word] &= !bit;
        self.touch(segment);
        self.live -= 1;
        true
    }

    /// The same of blocks side by side.
    pub(super) fn give_up_run(&mut self, medium: &Medium, mut first: u64, mut length: u64) {
        if length == 1 {
            self.give_up(medium, first);
            return;
        }
        while length > 0 {
            let (segment, from) = medium.geometry.segment_of(first);
            let here = length.min(SEGMENT_BLOCKS - from as u64);
            self.give_up_in(medium, segment, from..from + here as usize);
            (first, length) = (first + here, length - here);
        }
    }

    /// The same of blocks of one segment.
    fn give_up_in(&mut self, medium: &Medium, segment: u32, blocks: Range<usize>) {
        let Range { start, end } = blocks;
        let words = || (start / 64..end.div_ceil(64)).map(|word| (word, mask(word, start, end)));
        self.load(medium, segment);
        let is_quarantined = self.states[segment as usize].is_quarantined();
        let map = self.maps[segment as usize].as_mut().expect("just loaded");
        if is_quarantined || !words().all(|(word, mask)| map.next[word] & mask == mask) {
            let first = medium.geometry.segment_start(segment);
            for index in blocks {
                self.give_up(medium, first + index as u64);
            }
            return;
        }
        words().for_each(|(word, mask)| map.next[word] &= !mask);
        if !map.touched {
            self.touch(segment);
        }
        self.live -= (end - start) as u64;
    }

    /// Block `block`, which was given up, is free at once: a fault.
    pub(super) fn hand_out_again(&mut self, medium: &Medium, block: u64) {
        let (segment, index) = medium.geometry.segment_of(block);
        self.load(medium, segment).used[index / 64] &= !(1 << (index % 64));
        self.add_used(segment, -1);
        self.cursors = [Cursor::NOWHERE; 2];
        self.free.fetch_add(1, Relaxed);
    }

    /// So many more blocks of `segment` can't be handed out.
    pub(super) fn add_used(&mut self, segment: u32, blocks: i16) {
        let state = &mut self.states[segment as usize];
        self.empty -= u32::from(state.used == 0);
        state.used = state.used.wrapping_add_signed(blocks);
        if state.used == 0 {
            self.empty += 1;
            state.kind = SegmentKind::Free;
        }
    }

    /// Hands out nothing more of these, but for those in quarantine, of which nothing is handed out anyway.
    pub(super) fn stop_filling(&mut self, victims: &[u32]) {
        for victim in victims {
            let state = &mut self.states[*victim as usize];
            if !state.is_quarantined() {
                state.standing = Standing::Emptied;
            }
            let filled = self.cursors.iter_mut().filter(|cursor| cursor.segment == *victim);
            filled.for_each(|cursor| *cursor = Cursor::NOWHERE);
        }
    }

    /// Whether blocks of `segment` are being handed out.
    pub(super) fn is_filled(&self, segment: u32) -> bool {
        self.cursors.iter().any(|cursor| cursor.segment == segment)
    }

    pub(super) fn touch(&mut self, segment: u32) {
        let map = self.maps[segment as usize].as_mut().expect("loaded before it is touched");
        if !map.touched {
            map.touched = true;
            self.touched.push(segment);
        }
    }

    /// The frozen state of `segment`; if the epoch had not changed it, that is what is on the medium.
    pub(super) fn frozen_segment<'f>(&self, frozen: &'f mut Frozen, segment: u32) -> &'f mut FrozenSegment {
        let index = *frozen.index.entry(segment).or_insert_with(|| {
            let map = self.maps[segment as usize].as_ref().expect("a touched segment is loaded");
            let kind = self.states[segment as usize].kind;
            let (valid, next) = (map.valid, map.valid);
            frozen.segments.push(FrozenSegment { segment, kind, valid, next, used: map.valid });
            frozen.segments.len() - 1
        });
        &mut frozen.segments[index]
    }

    pub(super) fn take_run(
        &mut self,
        medium: &Medium,
        group: SegmentKind,
        want: u64,
    ) -> vfs::Result<(u64, u64)> {
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
                    self.add_used(cursor.segment, length as i16);
                    self.states[cursor.segment as usize].kind = group;
                    self.live += length as u64;
                    self.cursors[which].at = at + length;
                    return Ok((medium.geometry.segment_start(cursor.segment) + at as u64, length as u64));
                }
            }
            let segment = self.choose(group, which).ok_or_else(|| self.full())?;
            self.cursors[which] = Cursor { segment, at: 0 };
        }
    }

    /// Blocks of a run that [`Segments::take_run`] gave out in the running epoch are as if they never had been.
    pub(super) fn put_back_run(&mut self, medium: &Medium, first: u64, length: u64) {
        let (segment, at) = medium.geometry.segment_of(first);
        let map = self.load(medium, segment);
        for index in at..at + length as usize {
            map.used[index / 64] &= !(1 << (index % 64));
            map.next[index / 64] &= !(1 << (index % 64));
        }
        self.add_used(segment, -(length as i16));
        self.live -= length;
        let end = at + length as usize;
        self.cursors
            .iter_mut()
            .filter(|cursor| cursor.segment == segment && cursor.at == end)
            .for_each(|it| it.at = at);
    }

    /// Why no block is free, although one was promised: damage had left less room than there is.
    fn full(&self) -> vfs::Error {
        match self.states.iter().filter(|segment| segment.is_quarantined()).count() {
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
        let count = self.states.len();
        let free = |index: &usize| {
            let state = &self.states[*index];
            state.used == 0 && state.standing == Standing::Usual && *index as u32 != other
        };
        if self.empty > 0
            && let Some(index) = (0..count).find(free)
        {
            return Some(index as u32);
        }
        let emptiest = |accept: &dyn Fn(usize) -> bool| {
            (0..count)
                .filter(|index| u64::from(self.states[*index].used) < SEGMENT_BLOCKS && accept(*index))
                .min_by_key(|index| self.states[*index].used)
                .map(|index| index as u32)
        };
        // What is promised is there to be had, if need be where it is in the way.
        let stays = |index: usize| self.states[index].standing != Standing::Emptied;
        emptiest(&|index| self.states[index].kind == group && index as u32 != other && stays(index))
            .or_else(|| emptiest(&|index| index as u32 != other && stays(index)))
            .or_else(|| emptiest(&|_| true))
    }
}

/// The bits of `word` that stand for blocks `from .. to` of a segment, of which it has some.
fn mask(word: usize, from: usize, to: usize) -> u64 {
    let (low, high) = (from.saturating_sub(word * 64), (to - word * 64).min(64));
    u64::MAX >> (64 - (high - low)) << low
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
