//! How directories with hash trees take names: blocks of entries and nodes that are full are split in two, and a root that is
//! full gets a level below it.

use vfs::{Error, Result};

use super::tree::{self, Child, NODE_ENTRIES, Node, ROOT_ENTRIES, Root};
use super::{append, change, damaged, entries, read};
use crate::core::Core;
use crate::core::inode::{Flags, Inode};
use crate::hash::NameHash;

/// An entry and its place in the order.
type Hashed = (u32, Vec<u8>);

/// Adds an entry to a directory with a tree. [`Error::NoSpace`] if the tree is full.
pub(super) fn insert(core: &Core, dir: &mut Inode, root: Root, name: &[u8], entry: Vec<u8>) -> Result<()> {
    let mut growth = Growth { core, dir, root, hash: root.hash.of(name), entry, path: vec![0] };
    growth.below(0, ROOT_ENTRIES, root.levels).map(drop)
}

struct Growth<'a> {
    core: &'a Core,
    dir: &'a mut Inode,
    root: Root,
    hash: u32,
    entry: Vec<u8>,
    /// The blocks from the root down.
    path: Vec<u64>,
}

impl Growth<'_> {
    /// Adds the entry below node `number`, whose entries begin at `at`, `levels` levels above the last nodes. Gives the node that was
    /// split from it, if it was full.
    fn below(&mut self, number: u64, at: usize, levels: u8) -> Result<Option<Child>> {
        let core = self.core;
        let block = tree::read_child(core, self.dir, number)?;
        let node = Node::check(core, self.dir, &block, at)?;
        let n = node.position(self.hash);
        let child = node.child(n).number;
        if self.path.contains(&child) {
            return Err(damaged(self.dir, "its hash tree", "a circle", "none"));
        }
        self.path.push(child);
        let split = match levels {
            0 => self.leaf(child)?,
            _ => self.below(child, NODE_ENTRIES, levels - 1)?,
        };
        let Some(split) = split else { return Ok(None) };
        let mut children: Vec<Child> = node.children().collect();
        let is_after = n == 0 || children[n].least <= split.least;
        if !is_after || children.get(n + 1).is_some_and(|next| next.least < split.least) {
            let found = format_args!("{:#x} out of place", split.least);
            return Err(damaged(self.dir, "the order of its hash tree", found, "ascending"));
        }
        children.insert(n + 1, split);
        if children.len() <= node.limit {
            change(core, self.dir, number, |block| tree::set_children(block.all(), at, &children))?;
            return Ok(None);
        }
        if at == ROOT_ENTRIES {
            return self.level(&children).map(|()| None);
        }
        let upper = children.split_off(children.len() / 2);
        change(core, self.dir, number, |block| tree::set_children(block.all(), at, &children))?;
        self.node(&upper).map(|number| Some(Child { least: upper[0].least, number }))
    }

    /// Makes a node with these children.
    fn node(&mut self, children: &[Child]) -> Result<u64> {
        let core = self.core;
        append(core, self.dir, |bytes| {
            tree::write_node(core, bytes);
            tree::set_children(bytes, NODE_ENTRIES, children);
        })
    }

    /// Puts a level below the root, whose only child has these: other nodes have room for more than a root.
    fn level(&mut self, children: &[Child]) -> Result<()> {
        if self.root.levels == tree::levels_max(self.core) {
            return Err(Error::NoSpace);
        }
        let number = self.node(children)?;
        change(self.core, self.dir, 0, |bytes| {
            tree::set_children(bytes.all(), ROOT_ENTRIES, &[Child { least: 0, number }]);
            tree::add_level(bytes.all());
        })
    }

    /// Adds the entry to a block of entries; gives the block that was split from it, if it was full.
    fn leaf(&mut self, number: u64) -> Result<Option<Child>> {
        let core = self.core;
        let block = tree::read_child(core, self.dir, number)?;
        if let Some(at) = entries::place(core, self.dir, &block, self.entry.len())? {
            drop(block); // or it would be copied, for who has it, before it is changed
            change(core, self.dir, number, |bytes| entries::put(bytes, at, &self.entry))?;
            return Ok(None);
        }
        let mut all = hashed(core, self.dir, &block, self.root.hash)?;
        all.push((self.hash, std::mem::take(&mut self.entry)));
        let Halves { lower, upper, least } = halves(core, all);
        change(core, self.dir, number, |block| entries::fill(core, block.all(), bytes_of(&lower)))?;
        if upper.is_empty() {
            return Ok(None);
        }
        let number = append(core, self.dir, |bytes| entries::fill(core, bytes, bytes_of(&upper)))?;
        Ok(Some(Child { least, number }))
    }
}

/// Gives a directory of one block, which is full, a tree, and it the entry. False if it cannot have one.
pub(super) fn begin(core: &Core, dir: &mut Inode, name: &[u8], entry: &[u8]) -> Result<bool> {
    let superblock = &core.superblock;
    let version = superblock.hash_version;
    let Some(hash) = NameHash::of_version(version, superblock.unsigned_hash, superblock.hash_seed) else {
        return Ok(false);
    };
    let Some(block) = read(core, dir, 0)? else { return Ok(false) };
    // The root says what it is behind two entries of 12 bytes.
    let dots: Vec<_> = entries::walk(core, dir, &block).take(2).collect::<Result<_>>()?;
    let expected = [(0, &b"."[..]), (12, b"..")];
    if !dots.iter().map(|slot| (slot.at, slot.name)).eq(expected) {
        return Ok(false);
    }
    let mut all = hashed(core, dir, &block, hash)?;
    all.push((hash.of(name), entry.to_vec()));
    let Halves { lower, upper, least } = halves(core, all);
    let first = append(core, dir, |bytes| entries::fill(core, bytes, bytes_of(&lower)))?;
    let mut children = vec![Child { least: 0, number: first }];
    if !upper.is_empty() {
        let number = append(core, dir, |bytes| entries::fill(core, bytes, bytes_of(&upper)))?;
        children.push(Child { least, number });
    }
    change(core, dir, 0, |bytes| {
        tree::write_root(core, bytes.all(), version);
        tree::set_children(bytes.all(), ROOT_ENTRIES, &children);
    })?;
    dir.flags |= Flags::INDEX;
    Ok(true)
}

/// The entries of a block but for `.` and `..`.
fn hashed(core: &Core, dir: &Inode, block: &[u8], hash: NameHash) -> Result<Vec<Hashed>> {
    let mut all = Vec::new();
    for slot in entries::walk(core, dir, block) {
        let slot = slot?;
        if slot.inode != 0 && slot.name != b"." && slot.name != b".." {
            let end = slot.at + entries::needed(slot.name.len());
            all.push((hash.of(slot.name), block[slot.at..end].to_vec()));
        }
    }
    Ok(all)
}

fn bytes_of(all: &[Hashed]) -> impl Iterator<Item = &[u8]> {
    all.iter().map(|(_, entry)| &entry[..])
}

struct Halves {
    lower: Vec<Hashed>,
    /// Nothing, if all fit into one block.
    upper: Vec<Hashed>,
    /// The least hash of the upper half; odd if the lower one has entries with it, too.
    least: u32,
}

/// Entries of hardly more than one block, in order, in one block or two.
fn halves(core: &Core, mut all: Vec<Hashed>) -> Halves {
    all.sort_unstable();
    let bytes: usize = bytes_of(&all).map(<[u8]>::len).sum();
    if bytes <= entries::usable(core, core.superblock.block as usize) {
        return Halves { lower: all, upper: Vec::new(), least: 0 };
    }
    // No entry is longer than a quarter of a block and a bit: both halves fit, and neither is empty.
    let mut half = 0;
    let middle = all.iter().take_while(|(_, entry)| {
        half += entry.len();
        half <= bytes / 2
    });
    let middle = middle.count();
    let upper = all.split_off(middle);
    let goes_on = all.last().is_some_and(|(hash, _)| *hash == upper[0].0);
    Halves { least: upper[0].0 | u32::from(goes_on), lower: all, upper }
}
