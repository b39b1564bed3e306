//! Hash trees over the blocks of a directory.
//!
//! A node leads to blocks by the least hash of each. Names of one hash may fill several blocks: of those behind the first the
//! least hash is odd. Levels are counted down from the root's, so a look-up ends whatever the disk holds.

use vfs::Result;

use super::{damaged, read};
use crate::checksum::crc32c;
use crate::core::Core;
use crate::core::inode::Inode;
use crate::features::Incompat;
use crate::hash::NameHash;
use crate::store::Block;

/// Where the root says what it is: behind the entries of `.` and `..`.
pub(super) const ROOT_INFO: usize = 24;
/// Bytes of what it says.
const INFO: usize = 8;
/// Where the root's entries begin.
pub(super) const ROOT_ENTRIES: usize = ROOT_INFO + INFO;
/// Where a node's entries begin that is not the root: behind an empty entry that is as long as the block.
pub(super) const NODE_ENTRIES: usize = 8;
const ENTRY: usize = 8;
/// The checksum and what stands before it, behind the room for entries.
const TAIL: usize = 8;
/// Blocks of a directory that a tree can lead to.
pub(super) const BLOCKS_MAX: u64 = 1 << 28;

/// What a root says.
#[derive(Clone, Copy)]
pub(super) struct Root {
    pub(super) hash: NameHash,
    /// Levels of nodes below the root.
    pub(super) levels: u8,
}

/// Most levels of nodes below a root.
pub(super) fn levels_max(core: &Core) -> u8 {
    if core.superblock.features.incompat.contains(Incompat::LARGEDIR) { 2 } else { 1 }
}

/// The root of a directory that says it has a tree. Nothing where the tree is not one that is known here: then the directory is
/// to be walked.
pub(super) fn root(core: &Core, dir: &Inode) -> Result<Option<Root>> {
    read(core, dir, 0)?.map_or(Ok(None), |block| root_in(core, dir, &block))
}

/// The same, by the directory's first block.
pub(super) fn root_in(core: &Core, dir: &Inode, block: &[u8]) -> Result<Option<Root>> {
    let info = &block[ROOT_INFO..ROOT_ENTRIES];
    let (version, length, levels, flags) = (info[4], info[5], info[6], info[7]);
    let superblock = &core.superblock;
    let Some(hash) = NameHash::of_version(version, superblock.unsigned_hash, superblock.hash_seed) else {
        return Ok(None);
    };
    if flags & 1 != 0 || info[..4] != [0; 4] || usize::from(length) != INFO {
        return Ok(None);
    }
    let most = levels_max(core);
    if levels > most {
        return Err(damaged(
            dir,
            "the levels of its hash tree",
            levels,
            format_args!("at most {most} below the root"),
        ));
    }
    Ok(Some(Root { hash, levels }))
}

/// Writes a root behind the entries of `.` and `..`, without levels and with room for entries, of which it has none.
pub(super) fn write_root(core: &Core, bytes: &mut [u8], version: u8) {
    let rest = bytes.len() - 12;
    bytes[16..18].copy_from_slice(&(rest as u16).to_le_bytes()); // how long the entry of `..` is
    bytes[ROOT_INFO..].fill(0);
    bytes[ROOT_INFO + 4] = version;
    bytes[ROOT_INFO + 5] = INFO as u8;
    set_limits(bytes, ROOT_ENTRIES, room(core, bytes.len(), ROOT_ENTRIES), 0);
}

/// A root has one more level below it.
pub(super) fn add_level(bytes: &mut [u8]) {
    bytes[ROOT_INFO + 6] += 1;
}

/// A node that is not the root, without entries.
pub(super) fn write_node(core: &Core, bytes: &mut [u8]) {
    bytes.fill(0);
    let length = bytes.len() as u16;
    bytes[4..6].copy_from_slice(&length.to_le_bytes());
    set_limits(bytes, NODE_ENTRIES, room(core, bytes.len(), NODE_ENTRIES), 0);
}

/// An entry of a node: the least hash of what is below, and which block that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) least: u32,
    pub(super) number: u64,
}

/// A node, its counts checked.
pub(super) struct Node<'a> {
    bytes: &'a [u8],
    at: usize,
    pub(super) count: usize,
    pub(super) limit: usize,
}

impl<'a> Node<'a> {
    /// `at` is where its entries begin.
    pub(super) fn check(core: &Core, dir: &Inode, bytes: &'a [u8], at: usize) -> Result<Node<'a>> {
        let (limit, count) = limits(bytes, at);
        let room = room(core, bytes.len(), at);
        if count == 0 || count > limit || limit > room {
            return Err(damaged(
                dir,
                "the entries of a node of its hash tree",
                format_args!("{count} of {limit}"),
                format_args!("1 to {room}"),
            ));
        }
        Ok(Node { bytes, at, count, limit })
    }

    pub(super) fn child(&self, n: usize) -> Child {
        let entry = &self.bytes[self.at + n * ENTRY..self.at + (n + 1) * ENTRY];
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("four bytes"));
        // The first has the counts where the others have their hash.
        Child { least: if n == 0 { 0 } else { word(0) }, number: u64::from(word(4)) & (BLOCKS_MAX - 1) }
    }

    pub(super) fn children(&self) -> impl Iterator<Item = Child> {
        (0..self.count).map(|n| self.child(n))
    }

    /// The last child that begins at or before `hash`.
    pub(super) fn position(&self, hash: u32) -> usize {
        let (mut low, mut high) = (1, self.count);
        while low < high {
            let middle = (low + high) / 2;
            if self.child(middle).least > hash { high = middle } else { low = middle + 1 }
        }
        low - 1
    }
}

/// The children of a node, whose entries begin at `at`, are these; the least hash of the first is not written.
pub(super) fn set_children(bytes: &mut [u8], at: usize, children: &[Child]) {
    let (limit, _) = limits(bytes, at);
    for (n, child) in children.iter().enumerate() {
        let entry = &mut bytes[at + n * ENTRY..][..ENTRY];
        entry[..4].copy_from_slice(&child.least.to_le_bytes());
        entry[4..].copy_from_slice(&(child.number as u32).to_le_bytes());
    }
    set_limits(bytes, at, limit, children.len());
}

/// Entries for which a node has room.
fn room(core: &Core, bytes: usize, at: usize) -> usize {
    let tail = if core.superblock.features.has_metadata_csum() { TAIL } else { 0 };
    (bytes - at - tail) / ENTRY
}

fn limits(block: &[u8], at: usize) -> (usize, usize) {
    let half = |at: usize| usize::from(u16::from_le_bytes([block[at], block[at + 1]]));
    (half(at), half(at + 2))
}

fn set_limits(bytes: &mut [u8], at: usize, limit: usize, count: usize) {
    bytes[at..at + 2].copy_from_slice(&(limit as u16).to_le_bytes());
    bytes[at + 2..at + 4].copy_from_slice(&(count as u16).to_le_bytes());
}

/// A block that a tree leads to.
pub(super) fn read_child(core: &Core, dir: &Inode, number: u64) -> Result<Block> {
    let child = if number < dir.size / core.superblock.block { read(core, dir, number)? } else { None };
    child.ok_or_else(|| damaged(dir, "a block of its hash tree", number, "one of the directory's"))
}

/// Visits the blocks of entries in the order of the tree, from that on in which names with this hash begin, until `visit` gives false.
pub(super) fn leaves(
    core: &Core,
    dir: &Inode,
    root: Root,
    hash: u32,
    visit: &mut dyn FnMut(Child) -> Result<bool>,
) -> Result<()> {
    let Some(first) = read(core, dir, 0)? else { return Ok(()) };
    leaves_below(core, dir, &first, root, hash, visit)
}

/// The same, below the root in `first`.
pub(super) fn leaves_below(
    core: &Core,
    dir: &Inode,
    first: &[u8],
    root: Root,
    hash: u32,
    visit: &mut dyn FnMut(Child) -> Result<bool>,
) -> Result<()> {
    let mut walk = Walk { core, dir, hash, visit, looked_at: 0, least: 0 };
    walk.below(first, ROOT_ENTRIES, root.levels).map(drop)
}

struct Walk<'a> {
    core: &'a Core,
    dir: &'a Inode,
    hash: u32,
    visit: &'a mut dyn FnMut(Child) -> Result<bool>,
    looked_at: u64,
    /// Of the last block that was come to.
    least: u32,
}

impl Walk<'_> {
    /// Visits what is below a node whose entries begin at `at`, `levels` levels above the last nodes; false if that is enough.
    fn below(&mut self, block: &[u8], at: usize, levels: u8) -> Result<bool> {
        let (core, dir) = (self.core, self.dir);
        let node = Node::check(core, dir, block, at)?;
        for n in node.position(self.hash)..node.count {
            let child = node.child(n);
            // The least hash of a node's first child is the node's.
            let least = if n == 0 { self.least } else { child.least };
            if least < self.least {
                let found = format_args!("{least:#x} behind {:#x}", self.least);
                return Err(damaged(dir, "the order of its hash tree", found, "ascending"));
            }
            self.least = least;
            self.looked_at += 1;
            if self.looked_at > dir.size / core.superblock.block {
                return Err(damaged(dir, "its hash tree", "longer than the directory", "no block twice"));
            }
            let goes_on = match levels {
                0 => (self.visit)(Child { least, ..child })?,
                _ => {
                    let block = read_child(core, dir, child.number)?;
                    self.below(&block, NODE_ENTRIES, levels - 1)?
                }
            };
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Where a block of a tree has its checksum, and that which it should have; nothing if it is none.
pub(super) fn checksum(seed: u32, block: &[u8]) -> Option<(usize, u32)> {
    let length = |at: usize| usize::from(u16::from_le_bytes([block[at], block[at + 1]]));
    // An inner node begins with one entry over all of it; the root with `.`, and `..` over the rest.
    let at = if length(4) == block.len() {
        NODE_ENTRIES
    } else if length(4) == 12 && length(16) == block.len() - 12 {
        ROOT_ENTRIES
    } else {
        return None;
    };
    let (limit, count) = limits(block, at);
    let tail_at = at + limit * ENTRY;
    let tail = block.get(tail_at..)?.first_chunk::<TAIL>()?;
    let used = block.get(..at + count * ENTRY)?;
    let parts = [used, &tail[..4], &[0; 4]];
    Some((tail_at + 4, parts.iter().fold(seed, |sum, part| crc32c(sum, part))))
}
