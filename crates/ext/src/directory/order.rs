//! Listing by hash: an entry's cookie is its name's place in the order, which stays the same wherever a tree that changes moves the
//! entry. So are the entries of a directory of one block listed that may get a tree.
//!
//! ```text
//! cookie: (hash / 2 + 1) << 32 | second hash (28 bits) << 4, and the number of the name among its twins; `.` is 1, `..` 2
//! ```

use vfs::Result;

use super::entries::Slot;
use super::tree::{self, Root};
use super::{Entry, Look, damaged, entries, read};
use crate::checksum::crc32c;
use crate::core::inode::{Flags, Inode};
use crate::core::{Core, least};
use crate::features::Compat;
use crate::hash::NameHash;
use crate::store::Block;

/// How a directory is ordered by hash.
pub(super) enum Order {
    Tree(Root),
    OneBlock(NameHash),
}

impl Order {
    /// Nothing if it is not ordered so.
    pub(super) fn of(core: &Core, dir: &Inode) -> Result<Option<Order>> {
        let superblock = &core.superblock;
        if !superblock.features.compat.contains(Compat::DIR_INDEX) {
            return Ok(None);
        }
        if dir.flags.contains(Flags::INDEX) {
            return Ok(tree::root(core, dir)?.map(Order::Tree));
        }
        let hash =
            NameHash::of_version(superblock.hash_version, superblock.unsigned_hash, superblock.hash_seed);
        Ok(hash.filter(|_| dir.size == superblock.block).map(Order::OneBlock))
    }

    fn hash(&self) -> NameHash {
        match self {
            Order::Tree(root) => root.hash,
            Order::OneBlock(hash) => *hash,
        }
    }
}

/// As [`super::list`].
pub(super) fn list(
    core: &Core,
    dir: &Inode,
    order: &Order,
    from: u64,
    sink: &mut dyn FnMut(Entry<'_>) -> bool,
) -> Result<()> {
    let Some(first) = read(core, dir, 0)? else { return Ok(()) };
    for (next, name) in [(1, &b"."[..]), (2, b"..")] {
        if next > from
            && let Look::There(slot) = entries::look(core, dir, &first, name)?
            && !sink(Entry { inode: slot.inode, kind: slot.kind, next, name })
        {
            return Ok(());
        }
    }
    let mut group = Group { core, dir, hash: order.hash(), from, blocks: Vec::new(), least: 0, shown: None };
    let Order::Tree(root) = order else {
        group.blocks.push(first);
        return group.list(u64::MAX, sink).map(drop);
    };
    let start = (from >> 32).checked_sub(1).map_or(0, |half| (half as u32) << 1);
    let mut wants_more = true;
    tree::leaves(core, dir, *root, start, &mut |leaf| {
        // Where the hash before goes on, it belongs to the blocks before.
        if leaf.least & 1 == 0 && !group.blocks.is_empty() {
            wants_more = group.list(leaf.least.into(), sink)?;
            group.blocks.clear();
        }
        if group.blocks.is_empty() {
            group.least = leaf.least & !1;
        }
        group.blocks.push(tree::read_child(core, dir, leaf.number)?);
        Ok(wants_more)
    })?;
    if wants_more { group.list(u64::MAX, sink).map(drop) } else { Ok(()) }
}

/// Neighbouring blocks that no other has a hash of.
struct Group<'a> {
    core: &'a Core,
    dir: &'a Inode,
    hash: NameHash,
    from: u64,
    blocks: Vec<Block>,
    least: u32,
    /// The last name that was listed in the groups before, and its cookie.
    shown: Option<(u64, Vec<u8>)>,
}

impl Group<'_> {
    /// Lists the group, all hashes of which are below `end`; false if that is enough.
    fn list(&mut self, end: u64, sink: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<bool> {
        let mut names = Vec::new();
        for block in &self.blocks {
            for slot in entries::walk(self.core, self.dir, block) {
                let slot = slot?;
                if slot.inode == 0 || slot.name == b"." || slot.name == b".." {
                    continue;
                }
                let hash = self.hash.of(slot.name);
                if hash < self.least || u64::from(hash) >= end {
                    let expected = format_args!("{:#x} or more, below {end:#x}", self.least);
                    return Err(damaged(self.dir, "a name's hash", format_args!("{hash:#x}"), expected));
                }
                names.push((cookie(hash, slot.name), slot));
            }
        }
        names.sort_unstable_by_key(|(cookie, slot)| (*cookie, slot.name));
        self.number(&mut names);
        let (mut last, mut shown, mut wants_more) = (0, None, true);
        for (cookie, slot) in names {
            // Of more twins than there are numbers, each has its own all the same.
            last = cookie.max(last + 1);
            let entry = Entry { inode: slot.inode, kind: slot.kind, next: last, name: slot.name };
            if last > self.from {
                wants_more = sink(entry);
                if !wants_more {
                    break;
                }
                shown = Some((last, slot.name));
            }
        }
        let shown = shown.map(|(cookie, name)| (cookie, name.to_vec()));
        let shown = shown.or(self.shown.take());
        if let (false, Some((cookie, name))) = (wants_more, &shown) {
            self.core.twins.lock().stop(self.dir.number, *cookie, name);
        }
        self.shown = shown;
        Ok(wants_more)
    }

    /// Adds to the least cookies, which are in order, and orders what has the same.
    fn number(&self, names: &mut [(u64, Slot<'_>)]) {
        let mut twins = self.core.twins.lock();
        for same in names.chunk_by_mut(|(one, _), (other, _)| one == other) {
            let (dir, least) = (self.dir.number, same[0].0);
            if same.len() == 1 && !twins.may_know(dir, least, self.from) {
                continue;
            }
            let bytes: Vec<&[u8]> = same.iter().map(|(_, slot)| slot.name).collect();
            let numbers = twins.numbers(dir, least, self.from, &bytes);
            same.iter_mut().zip(numbers).for_each(|((cookie, _), number)| *cookie += number);
            same.sort_unstable_by_key(|(cookie, _)| *cookie);
        }
    }
}

/// The least cookie of a name with this hash.
pub(super) fn cookie(hash: u32, name: &[u8]) -> u64 {
    least((u64::from(hash >> 1) + 1) << 32 | u64::from(crc32c(0, name)))
}
