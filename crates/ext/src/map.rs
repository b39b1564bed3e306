//! From a file's blocks to the disk's: runs, whichever structure holds them.

pub(crate) mod edit;
mod extents;
mod indirect;
#[cfg(test)]
mod tests;

use std::ops::Range;

use vfs::{Error, Result};

use self::edit::{Change, Edit};
use crate::core::Core;
use crate::core::inode::{Flags, Inode};
use crate::error::corrupt;
use crate::features::RoCompat;
use crate::superblock::Superblock;

/// Where a file's blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the disk, from this block on.
    Mapped(u64),
    /// On the disk, from this block on, never written: they read as zeros.
    Unwritten(u64),
    /// Nowhere: they read as zeros.
    Hole,
}

/// Neighbouring blocks of a file that are in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) place: Place,
    /// At least 1.
    pub(crate) blocks: u64,
}

/// Blocks that no file has: numbers of blocks within a file are below.
pub(crate) const END: u64 = 1 << 32;
/// Blocks that one operation frees.
const FREED_MAX: u64 = 1 << 16;
/// In so many places, each of which takes room in its record, if the log is large.
const RUNS_MAX: u64 = 1 << 12;

/// Bytes that a record has of a leaf, beside it itself.
const LEAF_MORE: u64 = 256;

/// Blocks that a file may have in its map: block numbers are below, as the kernel has it (`s_maxbytes`, `s_bitmap_maxbytes`). Extents end where a
/// length from 0 on could not be told, pointers where they do; both where an inode could not count its sectors, of which its map's are some.
pub(crate) fn blocks_max(superblock: &Superblock, inode: &Inode) -> u64 {
    let counted = match superblock.features.ro_compat.contains(RoCompat::HUGE_FILE) {
        true => u64::MAX,
        false => u64::from(u32::MAX) / (superblock.block / 512),
    };
    match inode.flags.contains(Flags::EXTENTS) {
        // The kernel does not count the nodes of a tree.
        true => counted.min(END - 1),
        false => indirect::blocks_max(superblock, counted),
    }
}

/// Part of an operation: blocks `from..from + blocks` of a file, which are holes, are on the disk from `start` on, which has been taken.
/// `written` says whether their bytes are there; only extents know of others. Changes `inode` (its map, its count of sectors), which the
/// caller writes. [`Error::FileTooLarge`] past [`blocks_max`].
pub(crate) fn insert(
    core: &Core,
    inode: &mut Inode,
    from: u64,
    start: u64,
    blocks: u64,
    written: bool,
) -> Result<()> {
    if from.saturating_add(blocks) > blocks_max(&core.superblock, inode) {
        return Err(Error::FileTooLarge);
    }
    if !inode.flags.contains(Flags::EXTENTS) && !written {
        return Err(Error::NotSupported);
    }
    if !inode.flags.contains(Flags::EXTENTS) && start + blocks > END {
        // A pointer has 32 bits.
        return Err(Error::NoSpace);
    }
    change(core, inode, from..from + blocks, Change::Insert { start, written })
}

/// Part of an operation: blocks of a file that are there and unwritten, are written.
pub(crate) fn mark_written(core: &Core, inode: &mut Inode, range: Range<u64>) -> Result<()> {
    change(core, inode, range, Change::Mark { written: true })
}

/// Part of an operation: blocks of a file that are there are unwritten from now on: they read as zeros. Only extents know of such.
pub(crate) fn mark_unwritten(core: &Core, inode: &mut Inode, range: Range<u64>) -> Result<()> {
    if !inode.flags.contains(Flags::EXTENTS) {
        return Err(Error::NotSupported);
    }
    change(core, inode, range, Change::Mark { written: false })
}

/// Part of an operation: `range` of a file is a hole. What was there is freed, and what of the map leads nowhere then. Changes `inode`, which
/// the caller writes. Of a large file the end goes first, if it cannot all go in one operation.
pub(crate) fn remove(core: &Core, inode: &mut Inode, range: Range<u64>) -> Result<()> {
    change(core, inode, range.start..range.end.min(END), Change::Remove)
}

fn change(core: &Core, inode: &mut Inode, range: Range<u64>, change: Change) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let mut edit = Edit::new(core, inode, range, change);
    let block = match inode.flags.contains(Flags::EXTENTS) {
        true => extents::edit(&mut edit)?,
        false => indirect::edit(&mut edit)?,
    };
    (inode.blocks, inode.block) = (edit.finish()?, block);
    Ok(())
}

/// The longest that a file may be whose blocks this inode maps, bytes: as many [blocks](blocks_max), and what the file system's features allow.
pub(crate) fn bytes_max(superblock: &Superblock, inode: &Inode) -> u64 {
    let bytes = blocks_max(superblock, inode) * superblock.block;
    // The first large file brings the feature, where there can be features.
    match superblock.has_features || superblock.features.ro_compat.contains(RoCompat::LARGE_FILE) {
        true => bytes,
        false => bytes.min(i32::MAX as u64),
    }
}

/// The run from block `from` of a file on. Past the last block that is mapped there is one hole, up to [`END`].
pub(crate) fn run(core: &Core, inode: &Inode, from: u64) -> Result<Run> {
    if from >= END {
        return Ok(Run { place: Place::Hole, blocks: u64::MAX - from });
    }
    if inode.flags.contains(Flags::EXTENTS) {
        extents::run(core, inode, from)
    } else {
        indirect::run(core, inode, from)
    }
}

/// As [`run`], for who changes bytes there: a map that leads to structures of the file system itself is damaged.
pub(crate) fn run_to_write(core: &Core, inode: &Inode, from: u64) -> Result<Run> {
    let run = run(core, inode, from)?;
    if let Place::Mapped(start) | Place::Unwritten(start) = run.place
        && core.space.is_fixed(core, &(start..start + run.blocks))?
    {
        let (of, found) =
            (format_args!("inode {}", inode.number), format_args!("{} from {start} on", run.blocks));
        return Err(corrupt("block map", of, "blocks", found, "none of the file system's own structures"));
    }
    Ok(run)
}

/// The block of the disk that is block `number` of an inode, if there is one.
pub(crate) fn block(core: &Core, inode: &Inode, number: u64) -> Result<Option<u64>> {
    Ok(match run(core, inode, number)?.place {
        Place::Mapped(block) => Some(block),
        Place::Unwritten(_) | Place::Hole => None,
    })
}

/// Part of an operation: frees blocks from the start of `range` of a file on, as many as an operation should; what is left to be freed is left in
/// `range`.
pub(crate) fn free_some(core: &Core, inode: &mut Inode, range: &mut Range<u64>) -> Result<()> {
    let (mut end, mut freed, mut runs) = (range.start, 0, 0);
    let (runs_max, freed_max) = (runs_max(core), freed_max(core, inode));
    while end < range.end && freed < freed_max && runs < runs_max {
        let run = run(core, inode, end)?;
        let is_hole = run.place == Place::Hole;
        let blocks = if is_hole { run.blocks } else { run.blocks.min(freed_max - freed) };
        end = end.saturating_add(blocks).min(range.end);
        if !is_hole {
            freed += blocks;
            runs += 1;
        }
    }
    remove(core, inode, range.start..end)?;
    range.start = end;
    Ok(())
}

/// How many blocks of an inode one operation frees: of those that are metadata its record tells one by one.
fn freed_max(core: &Core, inode: &Inode) -> u64 {
    if inode.has_metadata() { FREED_MAX.min(core.store.forgotten_max()) } else { FREED_MAX }
}

/// In how many places one operation frees blocks: in each another part of a bitmap and of the descriptors may change, and another block.
fn runs_max(core: &Core) -> u64 {
    let (most, superblock) = (core.store.most(), &core.superblock);
    let by_bytes = most.bytes / core.store.freed_bytes();
    // No more than a bitmap for each group, and not as many blocks of descriptors.
    let by_blocks = if 2 * u64::from(superblock.groups) <= most.blocks { u64::MAX } else { most.blocks / 2 };
    RUNS_MAX.min(by_bytes).min(by_blocks).max(1)
}

/// Behind how many blocks from the start of `range` on there are as many runs as one operation may change, each in another leaf of the map: where that is,
/// or the end.
pub(crate) fn some_runs(core: &Core, inode: &Inode, range: &Range<u64>) -> Result<u64> {
    let most = leaves_max(core);
    let (mut end, mut runs) = (range.start, 0);
    while end < range.end && runs < most {
        let run = run(core, inode, end)?;
        end = end.saturating_add(run.blocks).min(range.end);
        runs += 1;
    }
    Ok(end)
}

/// As many leaves one operation may change.
pub(crate) fn leaves_max(core: &Core) -> u64 {
    (core.store.most().bytes / (core.superblock.block + LEAF_MORE)).max(1)
}

/// Calls `visit` for every block that an inode's map itself takes; below one for which it gives false nothing is looked at.
pub(crate) fn nodes(core: &Core, inode: &Inode, visit: &mut dyn FnMut(u64) -> bool) -> Result<()> {
    if inode.flags.contains(Flags::EXTENTS) {
        extents::nodes(core, inode, visit)
    } else {
        indirect::nodes(core, inode, visit)
    }
}
