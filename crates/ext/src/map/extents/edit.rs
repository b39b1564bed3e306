//! Changes of an extent tree.
//!
//! A change goes down to the leaves that it is about, and comes back up: each node says by which entries its parent replaces the one that
//! led there: none if it is empty, two if it had to be split. So every entry of an inner node has the key of its child's first one, at any
//! height, and no node but the root is empty.
//!
//! A node that has become less than half full is joined with a neighbour below the same parent, if both together leave a quarter of a node free:
//! so what was taken out of the middle of a file leaves no tree of nearly empty nodes.

use std::ops::Range;

use vfs::{Error, Result};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::{DEPTH_MAX, ENTRY, MAGIC, Node, RawExtent, RawHeader, RawIndex, WRITTEN_MAX, ino_text};
use crate::checksum::crc32c;
use crate::core::inode::{self, BLOCK_BYTES};
use crate::error::corrupt;
use crate::map::END;
use crate::map::edit::{Change, Edit};
use crate::store::Kind;

/// Longest extent that is not written, blocks.
const UNWRITTEN_MAX: u16 = WRITTEN_MAX - 1;

/// An entry of a node as it is on the disk.
type Entry = [u8; ENTRY];

/// An entry of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    first: u64,
    blocks: u64,
    start: u64,
    written: bool,
}

impl Extent {
    fn end(&self) -> u64 {
        self.first + self.blocks
    }

    fn most(&self) -> u64 {
        u64::from(if self.written { WRITTEN_MAX } else { UNWRITTEN_MAX })
    }

    /// The part in `range`, which is not empty.
    fn part(&self, range: Range<u64>) -> Extent {
        let start = self.start + (range.start - self.first);
        Extent { first: range.start, blocks: range.end - range.start, start, ..*self }
    }

    fn encode(&self) -> Entry {
        let length = self.blocks as u16 + if self.written { 0 } else { WRITTEN_MAX };
        let raw = RawExtent {
            first: U32::new(self.first as u32),
            length: U16::new(length),
            start_high: U16::new((self.start >> 32) as u16),
            start_low: U32::new(self.start as u32),
        };
        zerocopy::transmute!(raw)
    }
}

/// Appends an extent: to the last one as far as they are neighbours in both places, and it has room.
fn push(extents: &mut Vec<Extent>, mut extent: Extent) {
    if let Some(last) = extents.last_mut()
        && (last.end(), last.start + last.blocks, last.written)
            == (extent.first, extent.start, extent.written)
    {
        let more = extent.blocks.min(last.most() - last.blocks);
        last.blocks += more;
        if more == extent.blocks {
            return;
        }
        extent = extent.part(extent.first + more..extent.end());
    }
    while extent.blocks > extent.most() {
        extents.push(extent.part(extent.first..extent.first + extent.most()));
        extent = extent.part(extent.first + extent.most()..extent.end());
    }
    extents.push(extent);
}

fn index(first: u64, node: u64) -> Entry {
    let raw = RawIndex {
        first: U32::new(first as u32),
        node_low: U32::new(node as u32),
        node_high: U16::new((node >> 32) as u16),
        unused: U16::new(0),
    };
    zerocopy::transmute!(raw)
}

fn key(entry: &Entry) -> u64 {
    u64::from(u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]))
}

/// Changes the tree; gives its new root.
pub(crate) fn edit(edit: &mut Edit<'_>) -> Result<[u8; BLOCK_BYTES]> {
    let mut root = edit.inode.block;
    let mut depth = Node::check(edit.inode.number, &root, None)?.depth;
    let mut tree = Tree { edit, behind_all: false };
    let Some(Changed { mut entries, .. }) = tree.changed(&root, None, 0..END)? else { return Ok(root) };
    while depth > 0 && entries.len() == 1 {
        // A node that fits into the root is not needed.
        let child = node_of(&entries[0]);
        let block = tree.read(child)?;
        let node = Node::check(tree.edit.inode.number, &block, Some(depth - 1))?;
        if node.entries > room(BLOCK_BYTES) {
            break;
        }
        entries = (0..node.entries).map(|n| node.entry(n)).collect();
        tree.edit.free_node(child);
        depth -= 1;
    }
    while entries.len() > room(BLOCK_BYTES) {
        if depth == DEPTH_MAX {
            return Err(Error::FileTooLarge);
        }
        entries = tree.put(None, depth, &entries)?;
        depth += 1;
    }
    encode(&mut root, if entries.is_empty() { 0 } else { depth }, &entries);
    Ok(root)
}

/// Entries that fit into a node of so many bytes.
fn room(bytes: usize) -> usize {
    bytes / ENTRY - 1
}

/// Makes a node of entries; what is behind them is zeros, but for a checksum's place.
fn encode(bytes: &mut [u8], depth: u16, entries: &[Entry]) {
    let most = room(bytes.len());
    let mut header = RawHeader::read_from_bytes(&bytes[..ENTRY]).expect("the size fits");
    header.magic.set(MAGIC);
    header.entries.set(entries.len() as u16);
    header.entries_max.set(most as u16);
    header.depth.set(depth);
    bytes[..ENTRY].copy_from_slice(header.as_bytes());
    let (used, rest) = bytes[ENTRY..ENTRY * (1 + most)].split_at_mut(ENTRY * entries.len());
    used.copy_from_slice(entries.as_flattened());
    rest.fill(0);
}

/// What a node has by the change.
struct Changed {
    entries: Vec<Entry>,
    /// They are fewer than before.
    shrank: bool,
}

/// A child of a node, by the change.
struct Child {
    /// What led there.
    entry: Entry,
    /// The blocks for which it stands.
    span: Range<u64>,
    changed: Option<Changed>,
}

impl Child {
    /// Where it is.
    fn block(&self) -> u64 {
        node_of(&self.entry)
    }
}

/// The node to which an entry of an inner node leads.
fn node_of(entry: &Entry) -> u64 {
    let raw = RawIndex::read_from_bytes(entry).expect("the size fits");
    u64::from(raw.node_low.get()) | u64::from(raw.node_high.get()) << 32
}

struct Tree<'a, 'b> {
    edit: &'a mut Edit<'b>,
    /// The change is behind all there was: more of that kind is likely to follow.
    behind_all: bool,
}

impl Tree<'_, '_> {
    /// The entries that a node has by the change, if it changes. It stands for the blocks in `span`.
    fn changed(&mut self, bytes: &[u8], depth: Option<u16>, span: Range<u64>) -> Result<Option<Changed>> {
        let node = Node::check(self.edit.inode.number, bytes, depth)?;
        let before = node.entries;
        let all = |entries: Vec<Entry>| Changed { shrank: entries.len() < before, entries };
        if node.depth == 0 {
            let extents = self.extents(&node, &span)?;
            let is_root = depth.is_none();
            let changed = self.leaf(extents, &span)?;
            // Nobody leaves one that is empty; it goes if somebody did.
            let empty = !is_root && node.entries == 0;
            let changed = changed.or(empty.then(Vec::new));
            return Ok(changed.map(|extents| all(extents.iter().map(Extent::encode).collect())));
        }
        let depth = node.depth - 1;
        let mut children = self.children(&node, &span)?;
        for child in &mut children {
            let is_touched = match self.edit.change {
                Change::Insert { .. } => child.span.contains(&self.edit.range.start),
                Change::Mark { .. } | Change::Remove => self.edit.touches(&child.span),
            };
            if is_touched {
                let block = self.read(child.block())?;
                child.changed = self.changed(&block, Some(depth), child.span.clone())?;
            }
        }
        if children.iter().all(|child| child.changed.is_none()) {
            return Ok(None);
        }
        self.join(&mut children, depth);
        let mut entries = Vec::with_capacity(children.len() + 1);
        for child in children {
            match &child.changed {
                Some(changed) => entries.extend(self.put(Some(child.block()), depth, &changed.entries)?),
                None => entries.push(child.entry),
            }
        }
        Ok(Some(all(entries)))
    }

    /// The children of an inner node that stands for the blocks in `span`: keys in order, within it.
    fn children(&self, node: &Node<'_>, span: &Range<u64>) -> Result<Vec<Child>> {
        let child = |n: usize| {
            let (entry, first) = (node.entry(n), node.first(n));
            let end = if n + 1 < node.entries { node.first(n + 1) } else { span.end };
            if first < span.start || first >= end {
                return Err(self.edit.damaged("the key of a node's entry", first, "one in order"));
            }
            // What is before the first is the first one's.
            let stands_for = if n == 0 { span.start..end } else { first..end };
            Ok(Child { entry, span: stands_for, changed: None })
        };
        (0..node.entries).map(child).collect()
    }

    /// Joins children that have become less than half full with a neighbour, where that fits well. What of them is empty goes later.
    fn join(&mut self, children: &mut Vec<Child>, depth: u16) {
        let most = room(self.edit.core.superblock.block as usize);
        let is_sparse = |child: &Child| {
            let shrunk = child.changed.as_ref().filter(|changed| changed.shrank);
            shrunk.is_some_and(|changed| (1..=most / 2).contains(&changed.entries.len()))
        };
        let mut n = 0;
        while n + 1 < children.len() {
            let joined = match is_sparse(&children[n]) || is_sparse(&children[n + 1]) {
                true => self.joined(&children[n], &children[n + 1], depth),
                false => None,
            };
            match joined.filter(|entries| entries.len() <= most * 3 / 4) {
                Some(entries) => {
                    let gone = children.remove(n + 1);
                    self.edit.free_node(gone.block());
                    children[n].span.end = gone.span.end;
                    children[n].changed = Some(Changed { entries, shrank: true });
                }
                None => n += 1,
            }
        }
    }

    /// The entries of two neighbours, if both have some. One that cannot be read stays as it is, for who asks for it.
    fn joined(&mut self, left: &Child, right: &Child, depth: u16) -> Option<Vec<Entry>> {
        let mut all = Vec::new();
        for child in [left, right] {
            match &child.changed {
                Some(changed) if changed.entries.is_empty() => return None,
                Some(changed) => all.extend_from_slice(&changed.entries),
                None => all.extend(self.entries(child, depth).ok()?),
            }
        }
        Some(all)
    }

    /// The entries of a child that does not change, each in order.
    fn entries(&mut self, child: &Child, depth: u16) -> Result<Vec<Entry>> {
        let block = self.read(child.block())?;
        let node = Node::check(self.edit.inode.number, &block, Some(depth))?;
        match depth {
            0 => Ok(self.extents(&node, &child.span)?.iter().map(Extent::encode).collect()),
            _ => Ok(self.children(&node, &child.span)?.into_iter().map(|child| child.entry).collect()),
        }
    }

    /// Makes nodes of entries, the first of them in `block` if there is one; gives what leads to them.
    fn put(&mut self, block: Option<u64>, depth: u16, entries: &[Entry]) -> Result<Vec<Entry>> {
        if entries.is_empty() {
            block.into_iter().for_each(|block| self.edit.free_node(block));
            return Ok(Vec::new());
        }
        let most = room(self.edit.core.superblock.block as usize);
        let nodes = entries.len().div_ceil(most);
        // Where more is appended, what is before stays full.
        let each = if self.behind_all { most } else { entries.len().div_ceil(nodes) };
        let mut blocks = Vec::with_capacity(nodes);
        for part in entries.chunks(each) {
            let superblock = &self.edit.core.superblock;
            let seed = inode::seed(superblock, self.edit.inode.number, self.edit.inode.generation);
            let has_checksum = superblock.features.has_metadata_csum();
            let fill = |bytes: &mut [u8]| {
                encode(bytes, depth, part);
                let at = ENTRY * (1 + most);
                if has_checksum {
                    let sum = crc32c(seed, &bytes[..at]);
                    bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
                }
            };
            let (kind, store) = (Kind::Extents(self.edit.inode.number), &self.edit.core.store);
            let number = match block.filter(|_| blocks.is_empty()) {
                Some(block) => {
                    store.change(kind, block, |_| Ok(()), |block| fill(block.all()))?;
                    block
                }
                None => {
                    let block = self.edit.new_node()?;
                    store.make(kind, block, fill);
                    block
                }
            };
            blocks.push(index(key(&part[0]), number));
        }
        Ok(blocks)
    }

    fn read(&mut self, number: u64) -> Result<crate::store::Block> {
        let (core, inode) = (self.edit.core, self.edit.inode);
        self.edit.read(|| super::read(core, inode, number))
    }

    /// All extents of a leaf, each in order and on the disk.
    fn extents(&self, node: &Node<'_>, span: &Range<u64>) -> Result<Vec<Extent>> {
        let mut extents = Vec::with_capacity(node.entries + 2);
        let mut from = span.start;
        for n in 0..node.entries {
            let raw = node.extent(n);
            let (first, blocks, start) = (node.first(n), raw.blocks(), raw.start());
            let extent = Extent { first, blocks, start, written: !raw.is_unwritten() };
            let has_blocks = self.edit.core.superblock.has_blocks(start, blocks);
            if blocks == 0 || first < from || extent.end() > span.end || !has_blocks {
                let found = format_args!("{blocks} blocks from {first} on, at {start}");
                let of = ino_text(self.edit.inode.number);
                return Err(corrupt("extent tree", of, "an extent", found, "some of the disk's, in order"));
            }
            from = extent.end();
            extents.push(extent);
        }
        Ok(extents)
    }

    /// The extents of a leaf by the change, if it is about them.
    fn leaf(&mut self, extents: Vec<Extent>, span: &Range<u64>) -> Result<Option<Vec<Extent>>> {
        let range = self.edit.range.clone();
        match self.edit.change {
            Change::Insert { start, written } => {
                let new = Extent { first: range.start, blocks: range.end - range.start, start, written };
                self.insert(extents, span, new).map(Some)
            }
            Change::Mark { written } => {
                let changes = |extent: &Extent| {
                    extent.written != written && extent.first < range.end && extent.end() > range.start
                };
                if !extents.iter().any(changes) {
                    return Ok(None);
                }
                let mut all = Vec::with_capacity(extents.len() + 2);
                for extent in extents {
                    let [before, within, behind] = cut(extent, &range);
                    let within = within.map(|within| Extent { written, ..within });
                    [before, within, behind].into_iter().flatten().for_each(|part| push(&mut all, part));
                }
                Ok(Some(all))
            }
            Change::Remove => {
                let mut rest = Vec::with_capacity(extents.len() + 1);
                let mut has_changed = false;
                for extent in extents {
                    let [before, within, behind] = cut(extent, &range);
                    if let Some(within) = within {
                        has_changed = true;
                        self.edit.free_data(within.start..within.start + within.blocks)?;
                    }
                    rest.extend(before.into_iter().chain(behind));
                }
                Ok(has_changed.then_some(rest))
            }
        }
    }

    fn insert(&mut self, mut extents: Vec<Extent>, span: &Range<u64>, new: Extent) -> Result<Vec<Extent>> {
        let at = extents.partition_point(|extent| extent.first <= new.first);
        let behind = extents.split_off(at);
        let end = behind.first().map_or(span.end, |next| next.first);
        if extents.last().is_some_and(|last| last.end() > new.first) || new.end() > end {
            let found = format_args!("not all holes from {} to {}", new.first, new.end() - 1);
            return Err(self.edit.damaged("what is replaced", found, "holes"));
        }
        self.behind_all = behind.is_empty() && span.end == END;
        push(&mut extents, new);
        behind.into_iter().for_each(|extent| push(&mut extents, extent));
        Ok(extents)
    }
}

/// The parts of an extent before, in and behind a range.
fn cut(extent: Extent, range: &Range<u64>) -> [Option<Extent>; 3] {
    let within = range.start.clamp(extent.first, extent.end())..range.end.clamp(extent.first, extent.end());
    if within.is_empty() {
        return [Some(extent), None, None];
    }
    let part = |range: Range<u64>| (!range.is_empty()).then(|| extent.part(range));
    [part(extent.first..within.start), part(within.clone()), part(within.end..extent.end())]
}
