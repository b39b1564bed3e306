//! Hash trees over the blocks of a directory.
//!
//! A node leads to blocks by the least hash of each. Names of one hash may fill several blocks: of those behind the first the
//! least hash is odd. Levels are counted down from the root's, so a look-up ends whatever the disk holds.

use vfs::Result;

use super::{damaged, entries, read};
use crate::checksum::crc32c;
use crate::core::Core;
use crate::features::Incompat;
use crate::hash::NameHash;
use crate::inode::Inode;

/// Where the root says what it is: behind the entries of `.` and `..`.
const ROOT_INFO: usize = 24;
/// Where a node's entries begin that is not the root: behind an empty entry that is as long as the block.
const NODE_ENTRIES: usize = 8;
const ENTRY: usize = 8;
/// The checksum and what stands before it, behind the room for entries.
const TAIL: usize = 8;

/// What a root says.
struct Root {
    hash: NameHash,
    levels: u8,
    entries_at: usize,
}

/// The inode of `name`, found by the tree, if it has it. Nothing at all where the tree is not one that is known here: then the
/// directory is to be walked.
pub(super) fn find(core: &Core, dir: &Inode, name: &[u8]) -> Result<Option<Option<u32>>> {
    let Some(block) = read(core, dir, 0)? else { return Ok(None) };
    let Some(root) = root(core, dir, &block)? else { return Ok(None) };
    let hash = root.hash.of(name);
    let mut looked_at = 0;
    let found = descend(core, dir, &block, root.entries_at, root.levels, hash, name, &mut looked_at)?;
    Ok(Some(found))
}

fn root(core: &Core, dir: &Inode, block: &[u8]) -> Result<Option<Root>> {
    let info = &block[ROOT_INFO..ROOT_INFO + 8];
    let (version, length, levels, flags) = (info[4], info[5], info[6], info[7]);
    let superblock = &core.superblock;
    let Some(hash) = NameHash::of_version(version, superblock.unsigned_hash, superblock.hash_seed) else {
        return Ok(None);
    };
    if flags & 1 != 0 || info[..4] != [0; 4] || length != 8 {
        return Ok(None);
    }
    let most = if superblock.features.incompat.contains(Incompat::LARGEDIR) { 2 } else { 1 };
    if levels > most {
        return Err(damaged(
            dir,
            "the levels of its hash tree",
            levels,
            format_args!("at most {most} below the root"),
        ));
    }
    Ok(Some(Root { hash, levels, entries_at: ROOT_INFO + usize::from(length) }))
}

/// Looks for a name below a node whose entries begin at `at`, `levels` levels above the last nodes.
#[allow(clippy::too_many_arguments)]
fn descend(
    core: &Core,
    dir: &Inode,
    block: &[u8],
    at: usize,
    levels: u8,
    hash: u32,
    name: &[u8],
    looked_at: &mut u64,
) -> Result<Option<u32>> {
    let count = count(core, dir, block, at)?;
    let entry = |n: usize| {
        let entry = &block[at + n * ENTRY..at + (n + 1) * ENTRY];
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes"));
        // The first has the count where the others have their hash.
        (if n == 0 { 0 } else { word(0) }, word(4))
    };
    // The last entry that begins at or before the hash.
    let (mut low, mut high) = (1, count);
    while low < high {
        let middle = (low + high) / 2;
        if entry(middle).0 > hash { high = middle } else { low = middle + 1 }
    }
    for n in low - 1..count {
        let (least, number) = entry(n);
        // Behind the first, only those where this hash goes on.
        if n >= low && least != hash | 1 {
            break;
        }
        *looked_at += 1;
        if *looked_at > dir.size / core.superblock.block {
            return Err(damaged(dir, "its hash tree", "longer than the directory", "no block twice"));
        }
        let number = u64::from(number & 0x0FFF_FFFF);
        let child = if number * core.superblock.block < dir.size { read(core, dir, number)? } else { None };
        let Some(child) = child else {
            return Err(damaged(dir, "a block of its hash tree", number, "one of the directory's"));
        };
        let found = match levels {
            0 => entries::find(core, dir, &child, name)?,
            _ => descend(core, dir, &child, NODE_ENTRIES, levels - 1, hash, name, looked_at)?,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The number of entries of a node, at least one.
fn count(core: &Core, dir: &Inode, block: &[u8], at: usize) -> Result<usize> {
    let (limit, count) = limits(block, at);
    let tail = if core.superblock.features.has_metadata_csum() { TAIL } else { 0 };
    let room = (block.len() - at - tail) / ENTRY;
    if count == 0 || count > limit || limit > room {
        return Err(damaged(
            dir,
            "the entries of a node of its hash tree",
            format_args!("{count} of {limit}"),
            format_args!("1 to {room}"),
        ));
    }
    Ok(count)
}

fn limits(block: &[u8], at: usize) -> (usize, usize) {
    let half = |at: usize| usize::from(u16::from_le_bytes([block[at], block[at + 1]]));
    (half(at), half(at + 2))
}

/// The checksum that a block of a tree has, and that which it should have; nothing if it is none.
pub(super) fn checksum(seed: u32, block: &[u8]) -> Option<(u32, u32)> {
    let length = |at: usize| usize::from(u16::from_le_bytes([block[at], block[at + 1]]));
    // An inner node begins with one entry over all of it; the root with `.`, and `..` over the rest.
    let at = if length(4) == block.len() {
        NODE_ENTRIES
    } else if length(4) == 12 && length(16) == block.len() - 12 {
        ROOT_INFO + 8
    } else {
        return None;
    };
    let (limit, count) = limits(block, at);
    let tail = block.get(at + limit * ENTRY..)?.first_chunk::<TAIL>()?;
    let used = block.get(..at + count * ENTRY)?;
    let found = u32::from_le_bytes([tail[4], tail[5], tail[6], tail[7]]);
    let parts = [used, &tail[..4], &[0; 4]];
    Some((found, parts.iter().fold(seed, |sum, part| crc32c(sum, part))))
}
