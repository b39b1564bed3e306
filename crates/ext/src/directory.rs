//! Directories: entries one after another in blocks, or in the inode; found by walking them or by a hash tree.
//!
//! Names are looked for before they are inserted: nothing here looks whether a name is there twice. Of a directory's inode, what changes is its
//! size, its map and whether it has a tree; who inserts writes it. Directories in inodes are not changed.

mod entries;
mod growth;
mod order;
#[cfg(test)]
mod tests;
mod tree;

use vfs::{Error, FileKind, Result};

use crate::core::inode::{BLOCK_BYTES, Flags, Inode};
use crate::core::{Core, alloc};
use crate::error::corrupt;
use crate::features::{Compat, Incompat};
use crate::store::{Block, Changing, Kind};
use crate::{map, xattr};
use order::Order;

/// Bytes before the entries of a directory in its inode: the parent's number.
const INLINE_PARENT: usize = 4;

/// An entry as it is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) inode: u32,
    /// What the entry says it leads to, if it does.
    pub(crate) kind: Option<FileKind>,
    /// Where to go on behind it.
    pub(crate) next: u64,
    pub(crate) name: &'a [u8],
}

/// Where an entry is: in which block of the directory, and where there.
struct Place {
    number: u64,
    at: usize,
    inode: u32,
}

/// What is found where a name was looked for: its entry; or none, and where there is room for one, if that was seen.
pub(crate) enum Look<T, R> {
    There(T),
    Not(Option<R>),
}

impl<T, R> Look<T, R> {
    fn there(self) -> Result<T> {
        match self {
            Look::There(found) => Ok(found),
            Look::Not(_) => Err(Error::NotFound),
        }
    }
}

/// Where the entry of a name that was looked for, and is not there, has room, until the directory's entries change.
pub(crate) struct Gap {
    /// Of the directory, and of the disk.
    number: u64,
    block: u64,
    at: usize,
}

/// The inode that `name` is of, in directory `dir`; [`Error::NotFound`] if there is no such name.
pub(crate) fn find(core: &Core, dir: &Inode, name: &[u8]) -> Result<u32> {
    look(core, dir, name)?.there()
}

/// The same, for who may want to [insert](insert_at) it if it is not there.
pub(crate) fn look(core: &Core, dir: &Inode, name: &[u8]) -> Result<Look<u32, Gap>> {
    if dir.is_inline() {
        let mut found = None;
        list_inline(core, dir, 0, &mut |entry| {
            if entry.name == name {
                found = Some(entry.inode);
            }
            found.is_none()
        })?;
        return Ok(found.map_or(Look::Not(None), Look::There));
    }
    Ok(match locate(core, dir, name)? {
        Look::There(place) => Look::There(place.inode),
        Look::Not(gap) => Look::Not(gap),
    })
}

fn locate(core: &Core, dir: &Inode, name: &[u8]) -> Result<Look<Place, Gap>> {
    // `.` and `..` are not in the tree.
    if is_indexed(core, dir)
        && name != b"."
        && name != b".."
        && let Some(block) = read(core, dir, 0)?
        && let Some(root) = tree::root_in(core, dir, &block)?
    {
        return look_in_tree(core, dir, &block, root, name);
    }
    let (mut next, mut gap) = (0, None);
    while let Some((number, block)) = read_from(core, dir, next)? {
        match entries::look(core, dir, &block, name)? {
            Look::There(slot) => return Ok(Look::There(Place { number, at: slot.at, inode: slot.inode })),
            Look::Not(room) => gap = gap.or(room.map(|at| Gap { number, block: block.number(), at })),
        }
        next = number + 1;
    }
    // What says that it has a tree gets no entry before that is gone.
    Ok(Look::Not(gap.filter(|_| !dir.flags.contains(Flags::INDEX))))
}

/// Where the entry of `name` is, found by the tree whose root is in `first`; or where it would be.
fn look_in_tree(
    core: &Core,
    dir: &Inode,
    first: &[u8],
    root: tree::Root,
    name: &[u8],
) -> Result<Look<Place, Gap>> {
    let hash = root.hash.of(name);
    let mut found = Look::Not(None);
    let mut is_first = true;
    tree::leaves_below(core, dir, first, root, hash, &mut |leaf| {
        // Behind the first, only those where this hash goes on.
        let is_first = std::mem::take(&mut is_first);
        if !is_first && leaf.least != hash | 1 {
            return Ok(false);
        }
        let (number, block) = (leaf.number, tree::read_child(core, dir, leaf.number)?);
        match entries::look(core, dir, &block, name)? {
            Look::There(slot) => found = Look::There(Place { number, at: slot.at, inode: slot.inode }),
            // The first is where it is entered.
            Look::Not(Some(at)) if is_first => {
                found = Look::Not(Some(Gap { number, block: block.number(), at }));
            }
            Look::Not(_) => {}
        }
        Ok(matches!(found, Look::Not(_)))
    })?;
    Ok(found)
}

/// Whether a directory has a tree, as far as it says so itself.
pub(crate) fn is_indexed(core: &Core, dir: &Inode) -> bool {
    dir.flags.contains(Flags::INDEX) && core.superblock.features.compat.contains(Compat::DIR_INDEX)
}

/// Gives the entries of `dir` behind `from` to `sink`, which says whether it wants more. Where an entry is in the order of the list does
/// not change while it is there: it is by hash where there is a tree or may come to be one, and else by where entries begin.
pub(crate) fn list(
    core: &Core,
    dir: &Inode,
    from: u64,
    sink: &mut dyn FnMut(Entry<'_>) -> bool,
) -> Result<()> {
    if dir.is_inline() {
        return list_inline(core, dir, from, sink);
    }
    match Order::of(core, dir)? {
        Some(order) => order::list(core, dir, &order, from, sink),
        None => list_blocks(core, dir, from, sink),
    }
}

/// Gives all entries of `dir` to `sink`, block by block, whatever a tree says.
pub(crate) fn each(core: &Core, dir: &Inode, sink: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<()> {
    if dir.is_inline() { list_inline(core, dir, 0, sink) } else { list_blocks(core, dir, 0, sink) }
}

/// Whether a directory has nothing but `.` and `..`.
pub(crate) fn is_empty(core: &Core, dir: &Inode) -> Result<bool> {
    let mut is_empty = true;
    each(core, dir, &mut |entry| {
        is_empty = matches!(entry.name, b"." | b"..");
        is_empty
    })?;
    Ok(is_empty)
}

/// Part of an operation: adds the entry `name`, which is not there, to `dir`. [`Error::NoSpace`] if the disk is full or the
/// directory as large as one can be.
pub(crate) fn insert(core: &Core, dir: &mut Inode, name: &[u8], inode: u32, kind: FileKind) -> Result<()> {
    let entry = entries::encode(core, inode, kind, name);
    if is_indexed(core, dir) {
        match tree::root(core, dir)? {
            Some(root) => return growth::insert(core, dir, root, name, entry),
            // What its blocks hold would be taken for damage if it had no tree.
            None if core.superblock.features.has_metadata_csum() => {
                return Err(damaged(dir, "its hash tree", "of an unknown kind", "a known one"));
            }
            None => {}
        }
    }
    // Who knows nothing of trees may insert, and then there is none.
    dir.flags.remove(Flags::INDEX);
    let mut next = 0;
    while let Some((number, block)) = read_from(core, dir, next)? {
        if let Some(at) = entries::place(core, dir, &block, entry.len())? {
            drop(block); // or it would be copied, for who has it, before it is changed
            return change(core, dir, number, |bytes| entries::put(bytes, at, &entry));
        }
        next = number + 1;
    }
    let may_have_tree = core.superblock.features.compat.contains(Compat::DIR_INDEX);
    if may_have_tree && dir.size == core.superblock.block && growth::begin(core, dir, name, &entry)? {
        return Ok(());
    }
    append(core, dir, |bytes| entries::fill(core, bytes, [&entry[..]])).map(drop)
}

/// Part of an operation: the same, where [`look`] has found room, since when no entry of `dir` has changed.
pub(crate) fn insert_at(
    core: &Core,
    dir: &Inode,
    gap: &Gap,
    name: &[u8],
    inode: u32,
    kind: FileKind,
) -> Result<()> {
    let entry = entries::encode(core, inode, kind, name);
    let verify = |bytes: &[u8]| entries::verify(core, dir, gap.number, bytes);
    core.store.change(Kind::Directory(dir.number), gap.block, verify, |block| {
        entries::put_sealed(core, dir, block, gap.at, &entry);
    })
}

/// Part of an operation: removes the entry `name`; [`Error::NotFound`] if it is not there.
pub(crate) fn remove(core: &Core, dir: &Inode, name: &[u8]) -> Result<()> {
    let place = locate(core, dir, name)?.there()?;
    change(core, dir, place.number, |bytes| entries::remove(bytes, place.at))
}

/// Part of an operation: lets the entry `name` lead to another inode; [`Error::NotFound`] if it is not there.
pub(crate) fn replace(core: &Core, dir: &Inode, name: &[u8], inode: u32, kind: FileKind) -> Result<()> {
    let place = locate(core, dir, name)?.there()?;
    change(core, dir, place.number, |bytes| entries::set(core, bytes, place.at, inode, kind))
}

/// Part of an operation: gives a new directory its first block.
pub(crate) fn make(core: &Core, dir: &mut Inode, parent: u32) -> Result<()> {
    let dot = entries::encode(core, dir.number, FileKind::Directory, b".");
    let dots = entries::encode(core, parent, FileKind::Directory, b"..");
    append(core, dir, |bytes| entries::fill(core, bytes, [&dot[..], &dots])).map(drop)
}

/// As [`list`], block by block.
fn list_blocks(core: &Core, dir: &Inode, from: u64, sink: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<()> {
    let block_bytes = core.superblock.block;
    let mut next = from / block_bytes;
    while let Some((number, block)) = read_from(core, dir, next)? {
        next = number + 1;
        for slot in entries::walk(core, dir, &block) {
            let slot = slot?;
            let at = number * block_bytes + slot.at as u64;
            let entry = Entry { inode: slot.inode, kind: slot.kind, next: at + 1, name: slot.name };
            if at >= from && slot.inode != 0 && !sink(entry) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// In an inode, `.` and `..` have no entries, and the entries are in two parts.
fn list_inline(core: &Core, dir: &Inode, from: u64, sink: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<()> {
    let parent = u32::from_le_bytes(dir.block[..INLINE_PARENT].try_into().expect("four bytes"));
    check_inode(core, dir, parent)?;
    let dots = [(dir.number, &b"."[..]), (parent, b"..")];
    for (next, (inode, name)) in (1..).zip(dots) {
        if next > from && !sink(Entry { inode, kind: Some(FileKind::Directory), next, name }) {
            return Ok(());
        }
    }
    let size = usize::try_from(dir.size).unwrap_or(usize::MAX);
    let first = &dir.block[INLINE_PARENT..];
    let rest = if size > BLOCK_BYTES { xattr::inline_rest(core, dir)? } else { Vec::new() };
    let mut start = dots.len();
    for part in [first, &rest] {
        for slot in entries::walk(core, dir, part) {
            let slot = slot?;
            let next = (start + slot.at + 1) as u64;
            let entry = Entry { inode: slot.inode, kind: slot.kind, next, name: slot.name };
            if next > from && slot.inode != 0 && !sink(entry) {
                return Ok(());
            }
        }
        start += part.len();
    }
    Ok(())
}

/// The first block of a directory from `number` on, and its number. There may be holes.
fn read_from(core: &Core, dir: &Inode, mut number: u64) -> Result<Option<(u64, Block)>> {
    while number < dir.size / core.superblock.block {
        match read(core, dir, number)? {
            Some(block) => return Ok(Some((number, block))),
            None => number = number.saturating_add(map::run(core, dir, number)?.blocks),
        }
    }
    Ok(None)
}

/// Block `number` of a directory; nothing where there is a hole, which a directory may have.
fn read(core: &Core, dir: &Inode, number: u64) -> Result<Option<Block>> {
    let Some(at) = map::block(core, dir, number)? else { return Ok(None) };
    let verify = |bytes: &[u8]| entries::verify(core, dir, number, bytes);
    core.store.read(Kind::Directory(dir.number), at, verify).map(Some)
}

/// Lets `with` change block `number` of a directory, which has been read, and puts its checksum right.
fn change<R>(core: &Core, dir: &Inode, number: u64, with: impl FnOnce(&mut Changing<'_>) -> R) -> Result<R> {
    let at = map::block(core, dir, number)?
        .ok_or_else(|| damaged(dir, "block", format_args!("{number} nowhere"), "on the disk"))?;
    let verify = |bytes: &[u8]| entries::verify(core, dir, number, bytes);
    core.store.change(Kind::Directory(dir.number), at, verify, |bytes| {
        let result = with(bytes);
        entries::seal(core, dir, bytes);
        result
    })
}

/// Adds a block to the end of a directory, which `with` fills; its number.
fn append(core: &Core, dir: &mut Inode, with: impl FnOnce(&mut [u8])) -> Result<u64> {
    let superblock = &core.superblock;
    let number = dir.size / superblock.block;
    let is_large = superblock.features.incompat.contains(Incompat::LARGEDIR);
    let size = dir.size + superblock.block;
    // Without `large_dir`, a directory's size has 32 bits.
    if number >= tree::BLOCKS_MAX || !is_large && size > u64::from(u32::MAX) {
        return Err(Error::NoSpace);
    }
    let before = number.checked_sub(1).map(|last| map::block(core, dir, last)).transpose()?.flatten();
    let goal = before.map_or_else(|| superblock.group_of_inode_start(dir.number), |before| before + 1);
    let at = alloc::metadata(core, goal)?;
    map::insert(core, dir, number, at, 1, true)?;
    core.store.make(Kind::Directory(dir.number), at, |bytes| {
        with(bytes);
        entries::seal(core, dir, &mut Changing::new(bytes));
    });
    dir.size = size;
    Ok(number)
}

/// An entry leads to an inode that there is.
fn check_inode(core: &Core, dir: &Inode, inode: u32) -> Result<()> {
    if inode <= core.superblock.inodes { Ok(()) } else { Err(no_inode(core, dir, inode)) }
}

#[cold]
fn no_inode(core: &Core, dir: &Inode, inode: u32) -> Error {
    damaged(dir, "an entry's inode", inode, format_args!("at most {}", core.superblock.inodes))
}

fn damaged(
    dir: &Inode,
    field: &str,
    found: impl std::fmt::Display,
    expected: impl std::fmt::Display,
) -> Error {
    corrupt("directory", format_args!("inode {}", dir.number), field, found, expected)
}
