//! Garbage collection: emptying segments, so that there are empty ones to write to (HMFS §3.4).
//!
//! A block that is free can be had wherever it lies, so nothing depends on this but how contiguous files are and how long
//! it takes to find a block. It works while operations run: a file is locked for one transaction of up to 64 blocks, all
//! operations wait while the running tree is told of up to 64 blocks that snapshots have.

use std::collections::BTreeSet;

use vfs::{Error, Result};

use crate::core::{Aim, Core, NextLog};

/// Segments that are emptied together: between two checkpoints.
const BATCH: usize = 8;
/// Checkpoints that bring nothing, before what is left stays: what changed in one epoch moves in the next.
const IDLE_MAX: u32 = 2;
/// Blocks that a checkpoint is asked to move.
const BLOCKS_MAX: usize = 1024;

/// What garbage collection remembers from one time to the next.
#[derive(Default)]
pub(crate) struct Collector {
    /// Segments with something in them that does not move, while the snapshots are these: the newest, how many.
    spared: BTreeSet<u32>,
    kept: (u32, usize),
    /// Segments emptied since the mount.
    pub(crate) emptied: u64,
}

impl Core {
    /// Empties segments while fewer than `wanted` are empty and it brings something; returns how many it emptied.
    pub(crate) fn collect_garbage(&self, wanted: u32) -> Result<u64> {
        let collector = &mut *self.collector.lock();
        let allocator = &self.nodes.allocator;
        let before = collector.emptied;
        let kept = self.snapshots.read().extent();
        if kept != collector.kept {
            (collector.kept, collector.spared) = (kept, BTreeSet::new());
        }
        while allocator.empty_segments() < wanted && self.may_change() {
            let victims = allocator.begin_emptying(BATCH, |segment| collector.spared.contains(&segment));
            if victims.is_empty() {
                break;
            }
            let left = self.empty(&victims);
            allocator.end_emptying(&victims);
            let left = match left {
                Err(Error::NoSpace) => break,
                left => left.inspect_err(|_| collector.spared.extend(&victims))?,
            };
            collector.emptied += (victims.len() - left.len()) as u64;
            collector.spared.extend(left);
        }
        Ok(collector.emptied - before)
    }

    fn may_change(&self) -> bool {
        self.check_changeable().is_ok()
    }

    /// Empties segments; returns those in which something is left.
    fn empty(&self, victims: &[u32]) -> Result<Vec<u32>> {
        let allocator = &self.nodes.allocator;
        let in_use = || victims.iter().flat_map(|victim| allocator.blocks_in(*victim)).collect::<Vec<u64>>();
        let (mut before, mut idle) = (usize::MAX, 0);
        loop {
            let blocks = in_use();
            idle = if blocks.len() < before { 0 } else { idle + 1 };
            before = blocks.len();
            if blocks.is_empty() || idle == IDLE_MAX || !self.may_change() {
                break;
            }
            self.relocate_young(&blocks)?;
            let mut rest = in_use();
            rest.truncate(BLOCKS_MAX);
            let publisher = &mut self.publisher();
            self.checkpoint_for(publisher, NextLog::WithEpoch, Aim::Move(rest))?;
        }
        Ok(victims.iter().copied().filter(|victim| !allocator.blocks_in(*victim).is_empty()).collect())
    }
}
