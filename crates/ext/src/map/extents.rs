//! Extent trees.
//!
//! A look-up goes down one path. At every step the node must be what its parent says: one level lower, with keys in order and
//! within its parent's; so no path is longer than the root is high, whatever the disk holds.

mod edit;

use vfs::Result;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(crate) use self::edit::edit;
use crate::checksum::crc32c;
use crate::core::Core;
use crate::core::inode::{self, Inode};
use crate::error::corrupt;
use crate::map::{END, Place, Run};
use crate::store::{Block, Kind};

const MAGIC: u16 = inode::EXTENT_MAGIC;
/// No tree is higher.
const DEPTH_MAX: u16 = 5;
const ENTRY: usize = inode::EXTENT_ENTRY;
/// Longest extent that is written, blocks; a longer length is of one that is not.
const WRITTEN_MAX: u16 = 1 << 15;

#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawHeader {
    magic: U16,
    entries: U16,
    entries_max: U16,
    depth: U16,
    generation: U32,
}
const _: () = assert!(size_of::<RawHeader>() == ENTRY);

/// An entry of a node: where blocks are, or where a node is.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawExtent {
    first: U32,
    length: U16,
    start_high: U16,
    start_low: U32,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawIndex {
    first: U32,
    node_low: U32,
    node_high: U16,
    unused: U16,
}
const _: () = assert!(size_of::<RawExtent>() == ENTRY && size_of::<RawIndex>() == ENTRY);

impl RawExtent {
    fn start(&self) -> u64 {
        u64::from(self.start_low.get()) | u64::from(self.start_high.get()) << 32
    }

    fn blocks(&self) -> u64 {
        let length = self.length.get();
        u64::from(if length > WRITTEN_MAX { length - WRITTEN_MAX } else { length })
    }

    fn is_unwritten(&self) -> bool {
        self.length.get() > WRITTEN_MAX
    }
}

/// A node in memory, its header checked.
struct Node<'a> {
    depth: u16,
    bytes: &'a [u8],
    entries: usize,
}

impl<'a> Node<'a> {
    /// `depth` is what the parent expects; a root has any.
    fn check(ino: u32, bytes: &'a [u8], depth: Option<u16>) -> Result<Node<'a>> {
        let wrong = |field: &str, found: u64, expected: &str| {
            Err(corrupt("extent tree", ino_text(ino), field, found, expected))
        };
        let header = RawHeader::read_from_bytes(&bytes[..ENTRY]).expect("the size fits");
        if header.magic.get() != MAGIC {
            return wrong("a node's magic number", header.magic.get().into(), "0xf30a");
        }
        let (entries, most) = (usize::from(header.entries.get()), usize::from(header.entries_max.get()));
        let room = bytes.len() / ENTRY - 1;
        if most == 0 || most > room || entries > most {
            return wrong("a node's number of entries", entries as u64, "what fits it");
        }
        let found = header.depth.get();
        if depth.is_some_and(|depth| depth != found) || found > DEPTH_MAX {
            return wrong("a node's depth", found.into(), "one less than its parent's, at most 5");
        }
        if entries == 0 && found > 0 {
            return wrong("an inner node's number of entries", 0, "some");
        }
        Ok(Node { depth: found, bytes: &bytes[ENTRY..], entries })
    }

    fn at(&self, n: usize) -> &'a [u8] {
        &self.bytes[n * ENTRY..(n + 1) * ENTRY]
    }

    fn entry(&self, n: usize) -> [u8; ENTRY] {
        self.at(n).try_into().expect("the size fits")
    }

    fn first(&self, n: usize) -> u64 {
        let bytes = self.at(n);
        u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn extent(&self, n: usize) -> RawExtent {
        RawExtent::read_from_bytes(self.at(n)).expect("the size fits")
    }

    fn child(&self, n: usize) -> u64 {
        let index = RawIndex::read_from_bytes(self.at(n)).expect("the size fits");
        u64::from(index.node_low.get()) | u64::from(index.node_high.get()) << 32
    }

    /// The last entry that begins at or before `block`. The one found, and its neighbours, are in order.
    fn position(&self, ino: u32, block: u64) -> Result<Option<usize>> {
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = (low + high) / 2;
            if self.first(middle) <= block { low = middle + 1 } else { high = middle }
        }
        let found = low.checked_sub(1);
        let from = found.unwrap_or(0).saturating_sub(1);
        for n in from + 1..(low + 1).min(self.entries) {
            if self.first(n - 1) >= self.first(n) {
                return Err(corrupt(
                    "extent tree",
                    ino_text(ino),
                    "the order of a node's entries",
                    self.first(n),
                    "ascending",
                ));
            }
        }
        Ok(found)
    }
}

fn ino_text(ino: u32) -> String {
    format!("inode {ino}")
}

/// As [`crate::map::run`].
pub(crate) fn run(core: &Core, inode: &Inode, from: u64) -> Result<Run> {
    let ino = inode.number;
    let root = Node::check(ino, &inode.block, None)?;
    // The blocks that the node speaks of.
    let (mut low, mut high) = (0, END);
    let mut step = descend(ino, &root, from, &mut low, &mut high)?;
    let mut depth = root.depth;
    loop {
        match step {
            Step::Found(run) => return check_run(core, ino, run),
            Step::Down(number) => {
                depth -= 1;
                let block = read(core, inode, number)?;
                let node = Node::check(ino, &block, Some(depth))?;
                if node.entries > 0 && node.first(0) < low {
                    return Err(corrupt(
                        "extent tree",
                        ino_text(ino),
                        "a node's first entry",
                        node.first(0),
                        format_args!("{low} or more"),
                    ));
                }
                step = descend(ino, &node, from, &mut low, &mut high)?;
            }
        }
    }
}

/// Calls `visit` for every block of the tree itself, parents first; below one for which it gives false nothing is looked at.
pub(crate) fn nodes(core: &Core, inode: &Inode, visit: &mut dyn FnMut(u64) -> bool) -> Result<()> {
    nodes_below(core, inode, &Node::check(inode.number, &inode.block, None)?, visit)
}

fn nodes_below(
    core: &Core,
    inode: &Inode,
    node: &Node<'_>,
    visit: &mut dyn FnMut(u64) -> bool,
) -> Result<()> {
    let children = if node.depth > 0 { node.entries } else { 0 };
    for number in (0..children).map(|n| node.child(n)) {
        if visit(number) {
            let block = read(core, inode, number)?;
            nodes_below(core, inode, &Node::check(inode.number, &block, Some(node.depth - 1))?, visit)?;
        }
    }
    Ok(())
}

fn read(core: &Core, inode: &Inode, number: u64) -> Result<Block> {
    if !core.superblock.has_blocks(number, 1) {
        let ino = ino_text(inode.number);
        return Err(corrupt("extent tree", ino, "a node's block", number, "one of the disk's"));
    }
    core.store.read(Kind::Extents(inode.number), number, |bytes| verify(core, inode, bytes))
}

enum Step {
    Found(Run),
    Down(u64),
}

/// One step down to block `from`, in a node that speaks of the blocks `low..high`, which it narrows.
fn descend(ino: u32, node: &Node<'_>, from: u64, low: &mut u64, high: &mut u64) -> Result<Step> {
    let position = node.position(ino, from)?;
    let next = position.map_or(0, |n| n + 1);
    if next < node.entries {
        *high = (*high).min(node.first(next));
    }
    let hole = |high: u64| Step::Found(Run { place: Place::Hole, blocks: high - from });
    if *high <= from {
        return Err(corrupt(
            "extent tree",
            ino_text(ino),
            "a node's range",
            format_args!("up to {high}"),
            format_args!("beyond {from}"),
        ));
    }
    let Some(n) = position else { return Ok(hole(*high)) };
    *low = node.first(n);
    if node.depth > 0 {
        return Ok(Step::Down(node.child(n)));
    }
    let extent = node.extent(n);
    let end = *low + extent.blocks();
    if extent.blocks() == 0 || end > *high {
        let found = format_args!("{} blocks from {low} on", extent.blocks());
        return Err(corrupt(
            "extent tree",
            ino_text(ino),
            "an extent's length",
            found,
            "some, not beyond the next",
        ));
    }
    if from >= end {
        return Ok(hole(*high));
    }
    let start = extent.start() + (from - *low);
    let place = if extent.is_unwritten() { Place::Unwritten(start) } else { Place::Mapped(start) };
    Ok(Step::Found(Run { place, blocks: end - from }))
}

fn check_run(core: &Core, ino: u32, run: Run) -> Result<Run> {
    match run.place {
        Place::Mapped(start) | Place::Unwritten(start) if !core.superblock.has_blocks(start, run.blocks) => {
            let found = format_args!("{} from {start} on", run.blocks);
            Err(corrupt("extent tree", ino_text(ino), "an extent's blocks", found, "blocks of the disk"))
        }
        _ => Ok(run),
    }
}

/// The checksum of a node's block stands behind the last entry that fits.
fn verify(core: &Core, inode: &Inode, bytes: &[u8]) -> Result<()> {
    let superblock = &core.superblock;
    if !superblock.features.has_metadata_csum() {
        return Ok(());
    }
    let header = RawHeader::read_from_bytes(&bytes[..ENTRY]).expect("the size fits");
    let at = ENTRY * (1 + usize::from(header.entries_max.get()));
    let found = bytes.get(at..at + 4).and_then(|found| found.try_into().ok()).map(u32::from_le_bytes);
    let seed = inode::seed(superblock, inode.number, inode.generation);
    let expected = bytes.get(..at).map(|bytes| crc32c(seed, bytes));
    if found.is_none() || found != expected {
        let found = format_args!("{:#x}", found.unwrap_or(0));
        return Err(corrupt(
            "extent tree",
            ino_text(inode.number),
            "a node's checksum",
            found,
            format_args!("{:#x}", expected.unwrap_or(0)),
        ));
    }
    Ok(())
}
