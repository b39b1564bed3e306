//! Changes of a map of pointers: down to those that it is about; a block of pointers that is left without any is given back.

use std::ops::Range;

use vfs::Result;

use super::{DIRECT, LEVELS, pointer, read, wrong};
use crate::core::inode::BLOCK_BYTES;
use crate::map::edit::{Change, Edit};
use crate::store::{Changing, Kind};

/// Changes the map; gives the inode's pointers.
pub(crate) fn edit(edit: &mut Edit<'_>) -> Result<[u8; BLOCK_BYTES]> {
    let mut pointers = edit.inode.block;
    let per_block = edit.core.superblock.block / 4;
    let mut start = 0;
    for n in 0..BLOCK_BYTES / 4 {
        let level = (n as u32 + 1).saturating_sub(DIRECT as u32);
        let end = start + per_block.pow(level);
        let new = slot(edit, pointer(&pointers, n), level, start..end)?;
        set(&mut pointers, n, new);
        start = end;
    }
    debug_assert_eq!(BLOCK_BYTES / 4, DIRECT as usize + LEVELS as usize);
    Ok(pointers)
}

fn set(bytes: &mut [u8], n: usize, block: u64) {
    bytes[n * 4..n * 4 + 4].copy_from_slice(&(block as u32).to_le_bytes());
}

/// What a pointer that stands for the blocks in `span`, `level` levels above data, is by the change.
fn slot(edit: &mut Edit<'_>, found: u64, level: u32, span: Range<u64>) -> Result<u64> {
    if !edit.touches(&span) {
        return Ok(found);
    }
    if level == 0 {
        return data(edit, found, span.start);
    }
    let (core, inode) = (edit.core, edit.inode);
    let mut pointers = match (found, edit.change) {
        (0, Change::Insert { .. }) => vec![0; core.superblock.block as usize],
        (0, _) => return Ok(0),
        (found, _) => edit.read(|| read(core, inode, found))?.to_vec(),
    };
    let each = (core.superblock.block / 4).pow(level - 1);
    let first = edit.range.start.saturating_sub(span.start) / each;
    let end = (edit.range.end.min(span.end) - span.start).div_ceil(each);
    let mut has_changed = false;
    for n in first..end {
        let at = span.start + n * each;
        let old = pointer(&pointers, n as usize);
        let new = slot(edit, old, level - 1, at..at + each)?;
        if new != old {
            has_changed = true;
            set(&mut pointers, n as usize, new);
        }
    }
    let (kind, store) = (Kind::Indirect(inode.number), &core.store);
    if pointers.iter().all(|byte| *byte == 0) {
        edit.free_node(found);
        return Ok(0);
    }
    if found == 0 {
        let block = edit.new_node()?;
        store.make(kind, block, |bytes| bytes.copy_from_slice(&pointers));
        return Ok(block);
    }
    if has_changed {
        let bytes = first as usize * 4..end as usize * 4;
        let write = |block: &mut Changing<'_>| block.at(bytes.clone()).copy_from_slice(&pointers[bytes]);
        store.change(kind, found, |_| Ok(()), write)?;
    }
    Ok(found)
}

/// What the pointer to block `at` of the file is.
fn data(edit: &mut Edit<'_>, found: u64, at: u64) -> Result<u64> {
    match (edit.change, found) {
        (Change::Insert { start, .. }, 0) => Ok(start + (at - edit.range.start)),
        (Change::Insert { .. }, _) => {
            Err(edit.damaged("what is replaced", format_args!("block {found} at {at}"), "a hole"))
        }
        // Nothing here is unwritten.
        (Change::Mark { .. }, _) => Ok(found),
        (Change::Remove, 0) => Ok(0),
        (Change::Remove, _) if !edit.core.superblock.has_blocks(found, 1) => Err(wrong(edit.inode, found)),
        (Change::Remove, _) => edit.free_data(found..found + 1).map(|()| 0),
    }
}
