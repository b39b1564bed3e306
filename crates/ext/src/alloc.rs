//! Free space: which blocks and inodes are given out, and to whom.
//!
//! Bitmaps and counts say what is in use ([`take`], [`free`], [`new_inode`], [`free_inode`]: parts of an operation). Beside them, in
//! DRAM, stands what is *not to be given out although its bit is clear* ([`Space`]):
//!
//! - blocks that were picked for data which is being written, before their map may say so ([`pick`]);
//! - blocks that were freed by an operation whose transaction is not durable: their old owner may come back after a crash, so their
//!   bytes must not change ([`Space::reusable`] lets go of them);
//! - blocks promised to data that is only in DRAM and has no place yet ([`Space::promise`]), a count.

use std::ops::Range;

use vfs::Result;

use crate::core::Core;
use crate::superblock::Superblock;

pub(crate) struct Space {}

impl Space {
    pub(crate) fn new(_superblock: &Superblock) -> Space {
        Space {}
    }

    /// Promises `blocks` to data without a place; [`vfs::Error::NoSpace`] if so many are not left, beside what maps may need.
    pub(crate) fn promise(&self, _core: &Core, _blocks: u64) -> Result<()> {
        todo!()
    }

    /// Takes a promise back: they have a place now, or need none.
    pub(crate) fn release(&self, _blocks: u64) {
        todo!()
    }

    /// The operation that runs is undone: what it freed is not free, what it took is picked still.
    pub(crate) fn undo(&self) {
        todo!()
    }

    /// What was freed since the last call, by operations that have finished: the transaction that is now taken to be committed has
    /// it. Called alone (`tree`).
    pub(crate) fn take_freed(&self) -> Vec<Range<u64>> {
        todo!()
    }

    /// These blocks, of [`Space::take_freed`], may be given out again: their transaction is durable.
    pub(crate) fn reusable(&self, _freed: &[Range<u64>]) {
        todo!()
    }
}

/// Picks at least one and at most `most` neighbouring free blocks, near block `goal` of the disk if there are some. Nothing in the
/// metadata changes: nobody else is given them until [`take`] or [`give_up`]. Needs no operation.
pub(crate) fn pick(_core: &Core, _goal: u64, _most: u64) -> Result<Range<u64>> {
    todo!()
}

/// Gives picked blocks back.
pub(crate) fn give_up(_core: &Core, _blocks: Range<u64>) {
    todo!()
}

/// Part of an operation: picked blocks are in use.
pub(crate) fn take(_core: &Core, _blocks: Range<u64>) -> Result<()> {
    todo!()
}

/// Part of an operation: a block for metadata, picked and taken.
pub(crate) fn metadata(_core: &Core, _goal: u64) -> Result<u64> {
    todo!()
}

/// Part of an operation: these blocks are free, and [`Space`] keeps them from being given out. For metadata, [`crate::store::Store::forget`]
/// is called, too, by who knows that they are.
pub(crate) fn free(_core: &Core, _blocks: Range<u64>) -> Result<()> {
    todo!()
}

/// Part of an operation: an inode, zeroed in its table but for nothing; its number. Directories are spread over groups, all else stays near
/// `parent`.
pub(crate) fn new_inode(_core: &Core, _parent: u32, _is_dir: bool) -> Result<u32> {
    todo!()
}

/// Part of an operation: the inode is free.
pub(crate) fn free_inode(_core: &Core, _number: u32, _was_dir: bool) -> Result<()> {
    todo!()
}
