//! What garbage collection needs of the allocator: which segments to empty, and blocks that move (HMFS §3.4).
//!
//! A block that moves keeps its BIA entry, its start version above all: whose it is, and since when, is no matter of where
//! it lies.

use std::sync::atomic::Ordering::Relaxed;

use super::segments::{Segment, Segments, Standing};
use super::{Allocator, Budget};
use crate::bia::{BlockKind, Entry};
use crate::fault::{Fault, planted};
use crate::geometry::SEGMENT_BLOCKS;
use crate::sit::{self, SegmentKind};

/// Above this a segment is not emptied: moving three blocks or more to gain one costs more than it brings.
const USED_MAX: u64 = SEGMENT_BLOCKS * 3 / 4;
/// Segments looked at while others wait for the allocator: some microseconds.
const SLICE: usize = 1024;

impl Segments {
    /// Whether a segment may be emptied.
    fn is_candidate(&self, segment: u32) -> bool {
        let state = &self.states[segment as usize];
        (1..=USED_MAX).contains(&state.used())
            && state.standing == Standing::Usual
            && !self.is_filled(segment)
    }
}

impl Allocator {
    /// Segments of which no block is in use.
    pub(crate) fn empty_segments(&self) -> u32 {
        self.segments.lock().empty
    }

    /// How many should be empty: so that long runs are to be had, and what is written together lies together.
    pub(crate) fn empty_segments_wanted(&self) -> u32 {
        (self.medium.geometry.segments / 32).clamp(2, 256)
    }

    /// Chooses up to `count` segments to be emptied, those that bring most for what they cost, older ones first: free
    /// blocks, times how long the segment has not changed, by blocks to be read and written (the cost-benefit policy of
    /// log-structured file systems). Nothing is allocated in them until [`Allocator::end_emptying`]. `spared` are left
    /// alone, and so is what would take more than half of the room that there is. None are chosen if they would not empty one more
    /// than they fill.
    pub(crate) fn begin_emptying(&self, count: usize, spared: impl Fn(u32) -> bool) -> Vec<u32> {
        let version = self.version.load(Relaxed);
        let mut candidates: Vec<(u64, u32)> = Vec::new();
        for first in (0..self.medium.geometry.segments).step_by(SLICE) {
            let segments = self.segments.lock();
            let states = &segments.states[first as usize..];
            for (segment, state) in (first..).zip(states).take(SLICE) {
                if !segments.is_candidate(segment) || spared(segment) {
                    continue;
                }
                let (used, age) = (state.used(), u64::from(version.saturating_sub(state.version)).max(1));
                candidates.push(((SEGMENT_BLOCKS - used) * age * 1024 / (SEGMENT_BLOCKS + used), segment));
            }
            drop(segments);
            if candidates.len() > count {
                candidates.select_nth_unstable_by(count, |one, other| other.cmp(one));
                candidates.truncate(count);
            }
        }
        let mut segments = self.segments.lock();
        let victims = candidates.into_iter().map(|(_, segment)| segment);
        // Others went on meanwhile. When room is short, what would take much of it is left, too.
        let mut room = self.room_to_move();
        let mut fits = |victim: &u32| {
            let rest = room.checked_sub(segments.states[*victim as usize].used());
            room = rest.unwrap_or(room);
            rest.is_some() && segments.is_candidate(*victim)
        };
        let victims: Vec<u32> = victims.filter(|victim| fits(victim)).collect();
        let filled = [SegmentKind::Data, SegmentKind::Meta].map(|kind| {
            let states = victims.iter().map(|victim| &segments.states[*victim as usize]);
            let used: u64 = states.filter(|state| state.kind == kind).map(Segment::used).sum();
            used.div_ceil(SEGMENT_BLOCKS)
        });
        if filled[0] + filled[1] >= victims.len() as u64 {
            return Vec::new();
        }
        segments.stop_filling(&victims);
        victims
    }

    /// The same of this segment, whether it brings something or not.
    pub(crate) fn begin_emptying_this(&self, segment: u32) {
        self.segments.lock().stop_filling(&[segment]);
    }

    /// Blocks of a segment that cannot be handed out.
    pub(crate) fn used(&self, segment: u32) -> u64 {
        self.segments.lock().states[segment as usize].used()
    }

    /// Blocks may be allocated there again.
    pub(crate) fn end_emptying(&self, victims: &[u32]) {
        let mut segments = self.segments.lock();
        for victim in victims {
            let standing = &mut segments.states[*victim as usize].standing;
            if *standing == Standing::Emptied {
                *standing = Standing::Usual;
            }
        }
    }

    /// The blocks of a segment that will be valid once the running epoch's checkpoint is published.
    pub(crate) fn blocks_in(&self, segment: u32) -> Vec<u64> {
        let first = self.medium.geometry.segment_start(segment);
        let next = self.segments.lock().load(&self.medium, segment).next;
        sit::ones(&next).map(|index| first + index as u64).collect()
    }

    /// The newest snapshot's version; 0: there is none.
    pub(crate) fn newest_kept(&self) -> u32 {
        self.kept.load(Relaxed)
    }

    /// Allocates a new home for `block`, which has the same BIA entry.
    pub(crate) fn rehome(&self, budget: &Budget<'_>, block: u64) -> vfs::Result<u64> {
        let entry = Entry::read(&self.medium, block);
        let is_data = entry.kind == BlockKind::Data as u8;
        let group = if is_data { SegmentKind::Data } else { SegmentKind::Meta };
        let (home, _) = self.segments.lock().take_run(&self.medium, group, 1)?;
        budget.left.set(budget.left.get() - 1);
        let version = if planted(Fault::MovedIsNewborn) { self.version.load(Relaxed) } else { entry.version };
        Entry { version, ..entry }.copy_soft(&self.medium, home);
        Ok(home)
    }

    /// Nothing points to `block` any more once the running epoch's checkpoint is published: it has moved.
    pub(crate) fn leave(&self, block: u64) {
        self.segments.lock().give_up(&self.medium, block);
    }
}
