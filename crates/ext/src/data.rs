//! Contents of files and links.

use disk::Purpose;
use vfs::{Error, FileKind, Result, SeekFrom};

use crate::core::Core;
use crate::error::corrupt;
use crate::inode::{BLOCK_BYTES, Inode};
use crate::map::{self, Place};
use crate::store::Kind;
use crate::xattr;

/// Reads what there is of `offset..offset + into.len()`; gives the bytes read.
pub(crate) fn read(core: &Core, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<usize> {
    let length = into.len().min(usize::try_from(inode.size.saturating_sub(offset)).unwrap_or(usize::MAX));
    let into = &mut into[..length];
    if inode.is_inline() {
        let contents = inline(core, inode)?;
        let from = offset as usize; // below the size, if there is anything to read
        if length > 0 {
            into.copy_from_slice(&contents[from..from + length]);
        }
        return Ok(length);
    }
    let block = core.superblock.block;
    let mut at = offset;
    let mut rest = into;
    while !rest.is_empty() {
        let run = map::run(core, inode, at / block)?;
        let within = at % block;
        let bytes = run.blocks.saturating_mul(block) - within;
        let here = rest.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
        let (part, behind) = rest.split_at_mut(here);
        match run.place {
            Place::Mapped(start) => core.store.read_through(Purpose::Data, start, within, part)?,
            Place::Unwritten(_) | Place::Hole => part.fill(0),
        }
        at += here as u64;
        rest = behind;
    }
    Ok(length)
}

/// All of the contents that are in the inode itself: as many bytes as its size says, zeros where nothing is.
fn inline(core: &Core, inode: &Inode) -> Result<Vec<u8>> {
    let mut contents = inode.block.to_vec();
    if inode.size > BLOCK_BYTES as u64 {
        contents.extend(xattr::inline_rest(core, inode)?);
    }
    let size = usize::try_from(inode.size).unwrap_or(usize::MAX);
    if size > contents.len() {
        let (of, expected) = (format_args!("{}", inode.number), format_args!("at most {}", contents.len()));
        return Err(corrupt("inode", of, "the size of its contents in the inode", size, expected));
    }
    contents.truncate(size);
    Ok(contents)
}

/// Finds data or a hole. What was allocated and never written is a hole: it reads as zeros.
pub(crate) fn seek(core: &Core, inode: &Inode, from: SeekFrom) -> Result<u64> {
    let (offset, wants_data) = match from {
        SeekFrom::Data(offset) => (offset, true),
        SeekFrom::Hole(offset) => (offset, false),
    };
    if offset >= inode.size {
        return Err(Error::NoSuchOffset);
    }
    if inode.is_inline() {
        return Ok(if wants_data { offset } else { inode.size });
    }
    let block = core.superblock.block;
    let mut number = offset / block;
    // A file has no more blocks than the disk: pointers in a circle are found when they have led to as many.
    let mut mapped = 0;
    while number.saturating_mul(block) < inode.size {
        let run = map::run(core, inode, number)?;
        let is_data = matches!(run.place, Place::Mapped(_));
        if is_data == wants_data {
            return Ok((number * block).max(offset));
        }
        number = number.saturating_add(run.blocks);
        mapped += if is_data { run.blocks } else { 0 };
        if mapped > core.superblock.blocks {
            let expected = format_args!("at most {}, as the disk has", core.superblock.blocks);
            return Err(corrupt(
                "block map",
                format_args!("inode {}", inode.number),
                "its blocks",
                mapped,
                expected,
            ));
        }
    }
    if wants_data { Err(Error::NoSuchOffset) } else { Ok(inode.size) }
}

/// A symbolic link's target.
pub(crate) fn target(core: &Core, inode: &Inode) -> Result<Vec<u8>> {
    if inode.kind() != FileKind::Symlink {
        return Err(Error::Invalid);
    }
    let wrong = |found: u64| {
        corrupt(
            "symbolic link",
            format_args!("inode {}", inode.number),
            "its length",
            found,
            "1 to what a block holds",
        )
    };
    if inode.size == 0 || inode.size >= core.superblock.block {
        return Err(wrong(inode.size));
    }
    let target = if inode.is_inline() {
        inline(core, inode)?
    } else if let Some(target) = inode.fast_target(&core.superblock) {
        target.to_vec()
    } else {
        let Some(at) = map::block(core, inode, 0)? else { return Err(wrong(0)) };
        let block = core.store.read(Kind::Symlink(inode.number), at, |_| Ok(()))?;
        block[..inode.size as usize].to_vec()
    };
    if target.contains(&0) {
        return Err(corrupt(
            "symbolic link",
            format_args!("inode {}", inode.number),
            "its target",
            "with a NUL",
            "without",
        ));
    }
    Ok(target)
}
