//! Garbage collection: emptying segments, so that there are empty ones to write to (HMFS §3.4).
//!
//! A block that is free can be had wherever it lies, so nothing depends on this but how contiguous files are and how long
//! it takes to find a block. It works while operations run: a file is locked for one transaction of up to 64 blocks, all
//! operations wait while the running tree is told what snapshots have and moved.
//!
//! Moving can take more than it brings: each checkpoint writes the way to what moved anew, in each tree. What counts is
//! how many segments are empty afterwards. Victims that brought nothing are spared until all others had their turn, and
//! after a pass that brought nothing the next one comes later and later.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vfs::{Error, Result};

use crate::core::{Aim, Core, Memory, NextLog, Transplant};
use crate::geometry::SEGMENT_BLOCKS;

/// Segments that are emptied together: between two checkpoints.
const BATCH: usize = 8;
/// Batches of one pass that bring nothing.
const IDLE_BATCHES: u32 = 4;
/// Checkpoints that move nothing, before what is left stays: what changed in one epoch moves in the next.
const IDLE_ROUNDS: u32 = 2;
/// Blocks of files and nodes that move before the next checkpoint, which others wait for.
const YOUNG_MAX: usize = 512;
/// How long after a pass that brought nothing the next one begins, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));

impl Core {
    /// The same as [`Core::collect_garbage`] if few segments are empty, and the last time was not in vain just now.
    pub(crate) fn collect_if_needed(&self) -> Result<u64> {
        let wanted = self.nodes.allocator.empty_segments_wanted();
        if self.nodes.allocator.empty_segments() >= wanted {
            return Ok(0);
        }
        let rests = |memory: &Memory| memory.rest.is_some_and(|(since, rest)| since.elapsed() < rest);
        if rests(&self.collector.memory.lock()) {
            return Ok(0);
        }
        self.collect_garbage(2 * wanted)
    }

    /// Empties segments while fewer than `wanted` are empty and it brings something; returns how many more are empty.
    pub(crate) fn collect_garbage(&self, wanted: u32) -> Result<u64> {
        let memory = &mut *self.collector.memory.lock();
        let (gained, ended) = self.pass(memory, wanted);
        self.collector.emptied.fetch_add(gained, Ordering::Relaxed);
        let longer = |(_, rest): (Instant, Duration)| (rest * 2).min(PAUSE.1);
        memory.rest = match (gained, &ended) {
            (1.., Ok(())) => None,
            // What ended it may well end the next one, too.
            _ => Some((Instant::now(), memory.rest.map_or(PAUSE.0, longer))),
        };
        ended.map(|()| gained)
    }

    /// One pass: how many more segments are empty, and what ended it, if that was an error.
    fn pass(&self, memory: &mut Memory, wanted: u32) -> (u64, Result<()>) {
        let allocator = &self.nodes.allocator;
        let (mut gained, mut idle) = (0, 0);
        // However fast others make garbage, a pass ends.
        let batches = self.medium.geometry.segments as usize / BATCH + 1;
        for _ in 0..batches {
            let before = allocator.empty_segments();
            if before >= wanted || idle == IDLE_BATCHES || !self.may_change() {
                break;
            }
            let victims = allocator.begin_emptying(BATCH, |segment| memory.spared.contains(&segment));
            if victims.is_empty() {
                memory.spared.clear();
                break;
            }
            // What is written anew on the way fills as much elsewhere, and leaves holes where it was.
            let gain = victims.iter().map(|victim| SEGMENT_BLOCKS - allocator.used(*victim)).sum();
            match self.empty(&victims, gain) {
                Err(Error::NoSpace) => break,
                Err(_) if !self.may_change() => break, // somebody else hears why
                Err(error) => {
                    memory.spared.extend(&victims);
                    return (gained, Err(error));
                }
                Ok(()) => {}
            }
            match u64::from(allocator.empty_segments().saturating_sub(before)) {
                0 => {
                    idle += 1;
                    memory.spared.extend(&victims);
                }
                more => {
                    gained += more;
                    memory.spared.extend(victims.into_iter().filter(|victim| allocator.used(*victim) > 0));
                }
            }
        }
        (gained, Ok(()))
    }

    /// Moves all that moves out of one segment, whatever that brings; whether it is empty then.
    pub(crate) fn empty_segment(&self, segment: u32) -> Result<bool> {
        let _alone = self.collector.memory.lock();
        self.nodes.allocator.begin_emptying_this(segment);
        self.empty(&[segment], u64::MAX)?;
        Ok(self.nodes.allocator.used(segment) == 0)
    }

    /// Not with snapshots that nobody knows of: what they have must stay where they point to.
    fn may_change(&self) -> bool {
        self.check_list_changeable().is_ok()
    }

    /// Empties segments, of which nothing is handed out any more until this ends.
    /// Of what is on the way to their blocks in snapshots' trees, `most` blocks are written anew at most.
    fn empty(&self, victims: &[u32], most: u64) -> Result<()> {
        let emptied = self.move_out(victims, most);
        self.nodes.allocator.end_emptying(victims);
        emptied
    }

    fn move_out(&self, victims: &[u32], mut most: u64) -> Result<()> {
        let allocator = &self.nodes.allocator;
        let mut stuck = HashSet::new();
        let (mut before, mut idle) = (usize::MAX, 0);
        loop {
            // No lane has blocks of theirs in stock, nor keeps to itself that they are free.
            self.take_back_stocks();
            let in_use = victims.iter().flat_map(|victim| allocator.blocks_in(*victim));
            let blocks: Vec<u64> = in_use.filter(|block| !stuck.contains(block)).collect();
            idle = if blocks.len() < before { 0 } else { idle + 1 };
            before = blocks.len();
            let is_over = blocks.is_empty() || idle == IDLE_ROUNDS;
            if !is_over {
                self.relocate_young(&blocks, YOUNG_MAX)?;
            }
            let publisher = &mut self.publisher();
            let _unwinding = self.watch_over();
            if !self.may_change() {
                return Ok(());
            }
            if is_over {
                // What is free by now is so for others only behind a checkpoint.
                return self.checkpoint_for(publisher, NextLog::WithEpoch, Aim::Newest);
            }
            let mut moved = Transplant::prepare(self, publisher, &blocks, most)?;
            most -= moved.ways;
            stuck.extend(moved.stuck.drain(..));
            self.checkpoint_for(publisher, NextLog::WithEpoch, Aim::Move(moved.into()))?;
        }
    }
}
