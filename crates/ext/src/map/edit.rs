//! A change of a map, whichever structure holds it.

use std::ops::Range;

use vfs::Result;

use crate::core::inode::Inode;
use crate::core::{Core, alloc};
use crate::error::corrupt;
use crate::store::Block;

/// What happens to the blocks of a file that are in a range.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// Holes get the blocks of the disk from `start` on.
    Insert { start: u64, written: bool },
    /// What is there is written, or reads as zeros again.
    Mark { written: bool },
    /// They are holes.
    Remove,
}

/// One change. What it frees is given back at the end.
pub(crate) struct Edit<'a> {
    pub(crate) core: &'a Core,
    /// As the inode was.
    pub(crate) inode: &'a Inode,
    pub(crate) range: Range<u64>,
    pub(crate) change: Change,
    /// Blocks that the map itself takes, those that were given up taken off.
    nodes: i64,
    looked_at: u64,
    data: Freed,
    old_nodes: Freed,
}

/// Blocks in runs.
#[derive(Default)]
struct Freed {
    runs: Vec<Range<u64>>,
    blocks: u64,
}

impl Freed {
    fn push(&mut self, blocks: Range<u64>) {
        self.blocks += blocks.end - blocks.start;
        match self.runs.last_mut() {
            Some(last) if last.end == blocks.start => last.end = blocks.end,
            _ => self.runs.push(blocks),
        }
    }
}

impl<'a> Edit<'a> {
    pub(crate) fn new(core: &'a Core, inode: &'a Inode, range: Range<u64>, change: Change) -> Edit<'a> {
        Edit {
            core,
            inode,
            range,
            change,
            nodes: 0,
            looked_at: 0,
            data: Freed::default(),
            old_nodes: Freed::default(),
        }
    }

    /// Whether what stands for the blocks in `span` has to be looked at.
    pub(crate) fn touches(&self, span: &Range<u64>) -> bool {
        self.range.start < span.end && span.start < self.range.end
    }

    /// A block for the map itself: among those that are near the inode, so that it parts no data.
    pub(crate) fn new_node(&mut self) -> Result<u64> {
        let superblock = &self.core.superblock;
        let group = (self.inode.number - 1) / superblock.inodes_per_group;
        self.nodes += 1;
        alloc::node(self.core, superblock.group_start(group))
    }

    /// A block of the map is needed no longer.
    pub(crate) fn free_node(&mut self, block: u64) {
        self.nodes -= 1;
        self.core.store.forget(block);
        self.old_nodes.push(block..block + 1);
    }

    /// Reads a block of the map. No map has more of them than the disk has blocks.
    pub(crate) fn read(&mut self, read: impl FnOnce() -> Result<Block>) -> Result<Block> {
        self.looked_at += 1;
        if self.looked_at > self.core.superblock.blocks {
            return Err(self.circle());
        }
        read()
    }

    /// Blocks of the disk hold contents no longer.
    pub(crate) fn free_data(&mut self, blocks: Range<u64>) -> Result<()> {
        self.data.push(blocks.clone());
        if self.data.blocks > self.core.superblock.blocks {
            return Err(self.circle());
        }
        if self.inode.has_metadata() {
            blocks.for_each(|block| self.core.store.forget(block));
        }
        Ok(())
    }

    fn circle(&self) -> vfs::Error {
        self.damaged("the blocks that it leads to", "more than the disk has", "each of them once")
    }

    pub(crate) fn damaged(
        &self,
        field: &str,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> vfs::Error {
        corrupt("block map", format_args!("inode {}", self.inode.number), field, found, expected)
    }

    /// Gives back what was freed; gives the sectors that the inode has now.
    pub(crate) fn finish(self) -> Result<u64> {
        for blocks in self.data.runs.iter().chain(&self.old_nodes.runs) {
            alloc::free(self.core, blocks.clone())?;
        }
        let inserted = match self.change {
            Change::Insert { .. } => self.range.end - self.range.start,
            Change::Mark { .. } | Change::Remove => 0,
        };
        let blocks = inserted as i64 + self.nodes - self.data.blocks as i64;
        let sectors = blocks * (self.core.superblock.block / 512) as i64;
        let found = self.inode.blocks;
        found.checked_add_signed(sectors).ok_or_else(|| {
            self.damaged("the sectors that the inode counts", found, format_args!("{} or more", -sectors))
        })
    }
}
