//! Maps of pointers: twelve direct ones, and blocks of pointers one, two and three levels deep.

mod edit;

use vfs::Result;

pub(crate) use self::edit::edit;
use crate::core::Core;
use crate::core::inode::Inode;
use crate::error::corrupt;
use crate::map::{END, Place, Run};
use crate::store::{Block, Kind};
use crate::superblock::Superblock;

const DIRECT: u64 = 12;
/// Levels of blocks of pointers.
const LEVELS: u32 = 3;

/// Blocks that pointers lead to, at most, if they and the blocks of pointers may be so many in all.
pub(crate) fn blocks_max(superblock: &Superblock, in_all: u64) -> u64 {
    let per_block = superblock.block / 4;
    let below: u64 = (1..=LEVELS).map(|level| per_block.pow(level)).sum();
    (DIRECT + below).min(in_all - tables(per_block, in_all))
}

/// Blocks of pointers above the first so many blocks.
fn tables(per_block: u64, blocks: u64) -> u64 {
    let mut rest = blocks.saturating_sub(DIRECT);
    let mut tables = 0;
    for level in 1..=LEVELS {
        let here = rest.min(per_block.pow(level));
        tables += (1..=level).map(|above| here.div_ceil(per_block.pow(above))).sum::<u64>();
        rest -= here;
    }
    tables
}

/// As [`crate::map::run`].
pub(crate) fn run(core: &Core, inode: &Inode, from: u64) -> Result<Run> {
    let of_inode = |n: u64| pointer(&inode.block, n as usize);
    if from < DIRECT {
        return in_pointers(core, inode, from, DIRECT - from, of_inode);
    }
    let per_block = core.superblock.block / 4;
    let mut start = DIRECT;
    for level in 1..=LEVELS {
        let blocks = per_block.pow(level);
        if from < start + blocks {
            return below(core, inode, of_inode(DIRECT + u64::from(level) - 1), level, from - start);
        }
        start += blocks;
    }
    // No pointer leads there.
    Ok(Run { place: Place::Hole, blocks: END.max(from + 1) - from })
}

/// The run from block `from` on of those below `pointer`, which is `level` levels above data.
fn below(core: &Core, inode: &Inode, mut number: u64, level: u32, mut from: u64) -> Result<Run> {
    let per_block = core.superblock.block / 4;
    for level in (1..=level).rev() {
        let each = per_block.pow(level - 1);
        if number == 0 {
            return Ok(Run { place: Place::Hole, blocks: each * per_block - from });
        }
        let block = read(core, inode, number)?;
        let index = from / each;
        if level == 1 {
            return in_pointers(core, inode, index, per_block - index, |n| pointer(&block, n as usize));
        }
        number = pointer(&block, index as usize);
        from %= each;
    }
    unreachable!("the last level gives a run")
}

/// Calls `visit` for every block of pointers, parents first; below one for which it gives false nothing is looked at.
pub(crate) fn nodes(core: &Core, inode: &Inode, visit: &mut dyn FnMut(u64) -> bool) -> Result<()> {
    for level in 1..=LEVELS {
        let number = pointer(&inode.block, (DIRECT + u64::from(level) - 1) as usize);
        nodes_below(core, inode, number, level, visit)?;
    }
    Ok(())
}

fn nodes_below(
    core: &Core,
    inode: &Inode,
    number: u64,
    level: u32,
    visit: &mut dyn FnMut(u64) -> bool,
) -> Result<()> {
    if number == 0 || !visit(number) || level == 1 {
        return Ok(());
    }
    let block = read(core, inode, number)?;
    for n in 0..core.superblock.block as usize / 4 {
        nodes_below(core, inode, pointer(&block, n), level - 1, visit)?;
    }
    Ok(())
}

/// The run from pointer `from` on, at most `most` long.
fn in_pointers(core: &Core, inode: &Inode, from: u64, most: u64, of: impl Fn(u64) -> u64) -> Result<Run> {
    let first = of(from);
    let follows = |n: u64| if first == 0 { 0 } else { first + n };
    let blocks = (1..most).find(|n| of(from + n) != follows(*n)).unwrap_or(most);
    if first == 0 {
        return Ok(Run { place: Place::Hole, blocks });
    }
    if !core.superblock.has_blocks(first, blocks) {
        return Err(wrong(inode, first));
    }
    Ok(Run { place: Place::Mapped(first), blocks })
}

fn read(core: &Core, inode: &Inode, number: u64) -> Result<Block> {
    if !core.superblock.has_blocks(number, 1) {
        return Err(wrong(inode, number));
    }
    core.store.read(Kind::Indirect(inode.number), number, |_| Ok(()))
}

fn wrong(inode: &Inode, number: u64) -> vfs::Error {
    corrupt("block map", format_args!("inode {}", inode.number), "a pointer", number, "a block of the disk")
}

fn pointer(bytes: &[u8], n: usize) -> u64 {
    let bytes = &bytes[n * 4..n * 4 + 4];
    u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}
