//! Garbage collection: emptying segments, so that there are empty ones to write to (HMFS §3.4).
//!
//! A block that is free can be had wherever it lies, so nothing depends on this but how contiguous files are and how long
//! it takes to find a block. It works while operations run: a file is locked for one transaction of up to 64 blocks, all
//! operations wait while the running tree is told of up to 64 blocks that snapshots have.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::{Error, Result};

use crate::core::{Aim, Core, NextLog};

/// Segments that are emptied together: between two checkpoints.
const BATCH: usize = 8;
/// Checkpoints that bring nothing, before what is left stays: what changed in one epoch moves in the next.
const IDLE_MAX: u32 = 2;
/// Blocks that a checkpoint is asked to move.
const BLOCKS_MAX: usize = 1024;

/// Garbage collection: one at a time.
#[derive(Default)]
pub(crate) struct Collector {
    memory: Mutex<Memory>,
    /// Segments emptied since the mount.
    pub(crate) emptied: AtomicU64,
}

/// What it remembers from one time to the next.
#[derive(Default)]
struct Memory {
    /// Segments with something in them that does not move, while the snapshots are these: the newest, how many.
    spared: BTreeSet<u32>,
    kept: (u32, usize),
}

impl Core {
    /// Empties segments while fewer than `wanted` are empty and it brings something; returns how many it emptied.
    pub(crate) fn collect_garbage(&self, wanted: u32) -> Result<u64> {
        let memory = &mut *self.collector.memory.lock();
        let allocator = &self.nodes.allocator;
        let mut emptied = 0;
        let kept = self.snapshots.read().extent();
        if kept != memory.kept {
            *memory = Memory { kept, spared: BTreeSet::new() };
        }
        while allocator.empty_segments() < wanted && self.may_change() {
            let victims = allocator.begin_emptying(BATCH, |segment| memory.spared.contains(&segment));
            if victims.is_empty() {
                break;
            }
            let left = match self.empty(&victims) {
                Err(Error::NoSpace) => break,
                Err(_) if !self.may_change() => break, // somebody else hears why
                left => left.inspect_err(|_| memory.spared.extend(&victims))?,
            };
            let now_empty = (victims.len() - left.len()) as u64;
            self.collector.emptied.fetch_add(now_empty, Ordering::Relaxed);
            emptied += now_empty;
            memory.spared.extend(left);
        }
        Ok(emptied)
    }

    /// Moves all that moves out of one segment, whatever that brings; whether it is empty then.
    pub(crate) fn empty_segment(&self, segment: u32) -> Result<bool> {
        let _alone = self.collector.memory.lock();
        self.nodes.allocator.begin_emptying_this(segment);
        Ok(self.empty(&[segment])?.is_empty())
    }

    /// Not with snapshots that nobody knows of: what they have must stay where they point to.
    fn may_change(&self) -> bool {
        self.check_list_changeable().is_ok()
    }

    /// Empties segments, of which nothing is handed out any more until this ends; returns those in which something is
    /// left.
    fn empty(&self, victims: &[u32]) -> Result<Vec<u32>> {
        let emptied = self.move_out(victims);
        self.nodes.allocator.end_emptying(victims);
        emptied?;
        let is_left = |victim: &u32| !self.nodes.allocator.blocks_in(*victim).is_empty();
        Ok(victims.iter().copied().filter(is_left).collect())
    }

    fn move_out(&self, victims: &[u32]) -> Result<()> {
        let allocator = &self.nodes.allocator;
        let in_use = || victims.iter().flat_map(|victim| allocator.blocks_in(*victim)).collect::<Vec<u64>>();
        let (mut before, mut idle) = (usize::MAX, 0);
        loop {
            let blocks = in_use();
            idle = if blocks.len() < before { 0 } else { idle + 1 };
            before = blocks.len();
            if blocks.is_empty() || idle == IDLE_MAX || !self.may_change() {
                return Ok(());
            }
            self.relocate_young(&blocks)?;
            let mut rest = in_use();
            rest.truncate(BLOCKS_MAX);
            let publisher = &mut self.publisher();
            self.checkpoint_for(publisher, NextLog::WithEpoch, Aim::Move(rest))?;
        }
    }
}
