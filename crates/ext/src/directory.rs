//! Directories: entries one after another in blocks, or in the inode; found by walking them or by a hash tree.

mod entries;
mod tree;

use vfs::{Error, FileKind, Result};

use crate::core::Core;
use crate::error::corrupt;
use crate::features::Compat;
use crate::inode::{BLOCK_BYTES, Flags, Inode};
use crate::store::{Block, Kind};
use crate::{map, xattr};
pub(crate) use entries::Entry;

/// Bytes before the entries of a directory in its inode: the parent's number.
const INLINE_PARENT: usize = 4;

/// The inode that `name` is of, in directory `dir`; [`Error::NotFound`] if there is no such name.
pub(crate) fn find(core: &Core, dir: &Inode, name: &[u8]) -> Result<u32> {
    if dir.is_inline() {
        let mut found = None;
        list(core, dir, 0, &mut |entry| {
            if entry.name == name {
                found = Some(entry.inode);
            }
            found.is_none()
        })?;
        return found.ok_or(Error::NotFound);
    }
    let indexed =
        dir.flags.contains(Flags::INDEX) && core.superblock.features.compat.contains(Compat::DIR_INDEX);
    // `.` and `..` are not in the tree.
    if indexed
        && name != b"."
        && name != b".."
        && let Some(found) = tree::find(core, dir, name)?
    {
        return found.ok_or(Error::NotFound);
    }
    let mut next = 0;
    while let Some((number, block)) = read_from(core, dir, next)? {
        if let Some(inode) = entries::find(core, dir, &block, name)? {
            return Ok(inode);
        }
        next = number + 1;
    }
    Err(Error::NotFound)
}

/// Gives the entries of `dir` behind `from` to `sink`, which says whether it wants more. An entry's `next` is the byte at which
/// the one behind it may begin.
pub(crate) fn list(
    core: &Core,
    dir: &Inode,
    from: u64,
    sink: &mut dyn FnMut(Entry<'_>) -> bool,
) -> Result<()> {
    if dir.is_inline() {
        return list_inline(core, dir, from, sink);
    }
    let block_bytes = core.superblock.block;
    let mut next = from / block_bytes;
    while let Some((number, block)) = read_from(core, dir, next)? {
        next = number + 1;
        let start = number * block_bytes;
        for entry in entries::walk(core, dir, &block) {
            let mut entry = entry?;
            entry.next += start;
            if entry.next > from && entry.inode != 0 && !sink(entry) {
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
    let mut start = dots.len() as u64;
    for part in [first, &rest] {
        for entry in entries::walk(core, dir, part) {
            let mut entry = entry?;
            entry.next += start;
            if entry.next > from && entry.inode != 0 && !sink(entry) {
                return Ok(());
            }
        }
        start += part.len() as u64;
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

/// An entry leads to an inode that there is.
fn check_inode(core: &Core, dir: &Inode, inode: u32) -> Result<()> {
    if inode <= core.superblock.inodes {
        return Ok(());
    }
    Err(damaged(dir, "an entry's inode", inode, format_args!("at most {}", core.superblock.inodes)))
}

fn damaged(
    dir: &Inode,
    field: &str,
    found: impl std::fmt::Display,
    expected: impl std::fmt::Display,
) -> Error {
    corrupt("directory", format_args!("inode {}", dir.number), field, found, expected)
}
