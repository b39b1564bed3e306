//! Contents of files and links.

use std::ops::Range;

use vfs::{Error, FileKind, Result, SeekFrom};

use crate::core::Core;
use crate::core::inode::{BLOCK_BYTES, Inode};
use crate::error::corrupt;
use crate::map::{self, Place};
use crate::pages::Pages;
use crate::store::{Kind, Store};
use crate::xattr;

/// Bytes that are read of a file ahead of who reads one range behind the other: as many as the kernel does.
const AHEAD: u64 = 128 << 10;

/// Where a part of a file's bytes is.
enum Source {
    /// On the disk: in this block and behind it, from this byte on. So many blocks behind that are the file's, too.
    Disk {
        block: u64,
        from: u64,
        ahead: u64,
    },
    /// In the page of this block of the file.
    Page(u64),
    Zeros,
}

/// Where the bytes of a range of a file are, in order.
pub(crate) struct Found(Vec<(Range<u64>, Source)>);

/// Finds what there is of `offset..offset + length` of a file whose blocks are its `pages`, or else where its map leads. Neither may change
/// before it has been [read](Found::read); other metadata may. With `is_next`, what follows is likely to be read, too.
pub(crate) fn find(
    core: &Core,
    inode: &Inode,
    pages: &Pages,
    range: Range<u64>,
    is_next: bool,
) -> Result<Found> {
    let end = inode.size.min(range.end);
    let mut found = Vec::new();
    let block = core.superblock.block;
    // Of a small cache nobody takes more than a part ahead: it would be gone before it is asked for.
    let ahead_max = if is_next { AHEAD.min(core.store.clean.limit_bytes() / 4) / block } else { 0 };
    let mut at = range.start;
    while at < end {
        let number = at / block;
        let (source, blocks) = if pages.get(number).is_some() {
            (Source::Page(number), 1)
        } else {
            let run = map::run(core, inode, number)?;
            let blocks = run.blocks.min(pages.next(number).unwrap_or(u64::MAX) - number);
            let source = match run.place {
                Place::Mapped(start) => {
                    let there = number.saturating_add(blocks).min(inode.size.div_ceil(block));
                    let ahead = there.saturating_sub(end.div_ceil(block)).min(ahead_max);
                    Source::Disk { block: start, from: at % block, ahead }
                }
                Place::Unwritten(_) | Place::Hole => Source::Zeros,
            };
            (source, blocks)
        };
        let to = number.saturating_add(blocks).saturating_mul(block).min(end);
        found.push((at..to, source));
        at = to;
    }
    Ok(Found(found))
}

impl Found {
    /// Reads it; gives the bytes read.
    pub(crate) fn read(&self, store: &Store, pages: &Pages, into: &mut [u8]) -> Result<usize> {
        let mut rest = &mut into[..];
        for (range, source) in &self.0 {
            let length = (range.end - range.start) as usize;
            let (part, behind) = rest.split_at_mut(length);
            match source {
                Source::Disk { block, from, ahead } => store.read_data(*block, *from, part, *ahead)?,
                Source::Zeros => part.fill(0),
                Source::Page(number) => {
                    let page = pages.get(*number).expect("pages stay until it is read").bytes();
                    let within = range.start as usize % page.len();
                    part.copy_from_slice(&page[within..within + length]);
                }
            }
            rest = behind;
        }
        let left = rest.len();
        Ok(into.len() - left)
    }
}

/// Reads what there is of `offset..offset + into.len()` of a file whose contents are in its inode; gives the bytes read.
pub(crate) fn read_inline(core: &Core, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<usize> {
    let contents = inline(core, inode)?;
    let behind = contents.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or(&[]);
    let length = into.len().min(behind.len());
    into[..length].copy_from_slice(&behind[..length]);
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

/// Finds data or a hole. What was allocated and never written is a hole: it reads as zeros. What has a page is data.
pub(crate) fn seek(core: &Core, inode: &Inode, pages: &Pages, from: SeekFrom) -> Result<u64> {
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
        let (is_data, blocks) = if pages.get(number).is_some() {
            (true, 1)
        } else {
            let run = map::run(core, inode, number)?;
            let blocks = run.blocks.min(pages.next(number).unwrap_or(u64::MAX) - number);
            let is_mapped = matches!(run.place, Place::Mapped(_));
            mapped += if is_mapped { blocks } else { 0 };
            (is_mapped, blocks)
        };
        if is_data == wants_data {
            return Ok((number * block).max(offset));
        }
        number = number.saturating_add(blocks);
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
