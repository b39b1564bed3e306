//! The entries of one block, or of one part of an inode.

use vfs::{FileKind, Result};

use super::{check_inode, damaged, tree};
use crate::checksum::crc32c;
use crate::core::Core;
use crate::features::Incompat;
use crate::inode::{self, Inode};

/// Bytes of an entry before its name.
const HEAD: usize = 8;
/// The entry that stands before a block's checksum: no inode, 12 bytes, no name, this kind.
const TAIL: usize = 12;
const TAIL_KIND: u8 = 0xDE;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// 0 of one that is not in use.
    pub(crate) inode: u32,
    /// What the entry says it leads to, if it does.
    pub(crate) kind: Option<FileKind>,
    /// Where it ends.
    pub(crate) next: u64,
    pub(crate) name: &'a [u8],
}

/// The entries in `bytes`, those not in use too. Each is checked, and ends the walk if it is wrong.
pub(super) fn walk<'a>(
    core: &'a Core,
    dir: &'a Inode,
    bytes: &'a [u8],
) -> impl Iterator<Item = Result<Entry<'a>>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= bytes.len() {
            return None;
        }
        let entry = decode(core, dir, bytes, at);
        at = entry.as_ref().map_or(bytes.len(), |entry| entry.next as usize);
        Some(entry)
    })
}

fn decode<'a>(core: &Core, dir: &Inode, bytes: &'a [u8], at: usize) -> Result<Entry<'a>> {
    let cut = |found: usize| damaged(dir, "an entry's length", found, "what fits, a multiple of 4");
    let head = bytes[at..].first_chunk::<HEAD>().ok_or_else(|| cut(bytes.len() - at))?;
    let inode = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let length = usize::from(u16::from_le_bytes([head[4], head[5]]));
    let has_kind = core.superblock.features.incompat.contains(Incompat::FILETYPE);
    let name_length = usize::from(head[6]) | if has_kind { 0 } else { usize::from(head[7]) << 8 };
    if !length.is_multiple_of(4) || length < (HEAD + name_length).max(TAIL) || length > bytes.len() - at {
        return Err(cut(length));
    }
    check_inode(core, dir, inode)?;
    let name = &bytes[at + HEAD..at + HEAD + name_length];
    if inode != 0
        && (name.is_empty()
            || name_length > vfs::NAME_MAX
            || name.iter().any(|byte| matches!(byte, 0 | b'/')))
    {
        let text = String::from_utf8_lossy(name).escape_debug().to_string();
        return Err(damaged(dir, "a name", format_args!("'{text}'"), "1 to 255 bytes without '/' and NUL"));
    }
    let kind = if has_kind { kind_of(head[7]) } else { None };
    Ok(Entry { inode, kind, next: (at + length) as u64, name })
}

/// The kinds as entries number them.
fn kind_of(number: u8) -> Option<FileKind> {
    Some(match number {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::CharDevice,
        4 => FileKind::BlockDevice,
        5 => FileKind::Fifo,
        6 => FileKind::Socket,
        7 => FileKind::Symlink,
        _ => return None,
    })
}

/// The inode of a name in `bytes`.
pub(super) fn find(core: &Core, dir: &Inode, bytes: &[u8], name: &[u8]) -> Result<Option<u32>> {
    for entry in walk(core, dir, bytes) {
        let entry = entry?;
        if entry.inode != 0 && entry.name == name {
            return Ok(Some(entry.inode));
        }
    }
    Ok(None)
}

/// Verifies the checksum of block `number` of a directory: one of a hash tree has it behind its limit, one of entries in a last
/// entry of its own. (A root that was a block of entries before still has that entry, so it is looked at as a root first.)
pub(super) fn verify(core: &Core, dir: &Inode, number: u64, bytes: &[u8]) -> Result<()> {
    if !core.superblock.features.has_metadata_csum() {
        return Ok(());
    }
    let seed = inode::seed(&core.superblock, dir.number, dir.generation);
    if let Some((found, expected)) = tree::checksum(seed, bytes) {
        return compare(dir, number, found, expected);
    }
    let (entries, tail) = bytes.split_at(bytes.len() - TAIL);
    let (head, sum) = tail.split_at(HEAD);
    if head != [0, 0, 0, 0, TAIL as u8, 0, 0, TAIL_KIND] {
        return Err(damaged(dir, "the checksum of a block", "not there", format_args!("in block {number}")));
    }
    let found = u32::from_le_bytes(sum.try_into().expect("four bytes"));
    compare(dir, number, found, crc32c(seed, entries))
}

fn compare(dir: &Inode, number: u64, found: u32, expected: u32) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(damaged(
        dir,
        "the checksum of a block",
        format_args!("{found:#x} in block {number}"),
        format_args!("{expected:#x}"),
    ))
}
