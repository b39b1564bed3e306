//! The entries of one block, or of one part of an inode.
//!
//! A block is divided into slots, each as long as it says; a slot holds an entry, and perhaps room behind it, or nothing. Where an entry
//! begins never changes while it is in a block that is not ordered by hash.

use vfs::{Error, FileKind, Result};

use super::{Look, damaged, no_inode, tree};
use crate::checksum::{crc32c, crc32c_changed};
use crate::core::Core;
use crate::core::inode::{self, Inode};
use crate::features::Incompat;
use crate::store::Changing;

/// Bytes of an entry before its name.
const HEAD: usize = 8;
/// The entry that stands before a block's checksum: no inode, 12 bytes, no name, this kind.
const TAIL: usize = 12;
const TAIL_KIND: u8 = 0xDE;
const TAIL_HEAD: [u8; HEAD] = [0, 0, 0, 0, TAIL as u8, 0, 0, TAIL_KIND];

/// A part of a block that holds an entry, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot<'a> {
    /// Where it begins.
    pub(super) at: usize,
    pub(super) length: usize,
    /// 0 if it holds nothing.
    pub(super) inode: u32,
    /// What the entry says it leads to, if it does.
    pub(super) kind: Option<FileKind>,
    pub(super) name: &'a [u8],
}

impl Slot<'_> {
    fn end(&self) -> usize {
        self.at + self.length
    }
}

/// Bytes that an entry needs with a name of so many.
pub(super) fn needed(name_length: usize) -> usize {
    // The next multiple of 4, which is asked for of every entry that is passed.
    (HEAD + name_length + 3) & !3
}

/// The slots in `bytes`. Each is checked, and ends the walk if it is wrong.
pub(super) fn walk<'a>(
    core: &'a Core,
    dir: &'a Inode,
    bytes: &'a [u8],
) -> impl Iterator<Item = Result<Slot<'a>>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= bytes.len() {
            return None;
        }
        let slot = decode(core, dir, bytes, at);
        at = slot.as_ref().map_or(bytes.len(), Slot::end);
        Some(slot)
    })
}

/// What a slot begins with. Its length fits, and the inode is one that there can be: so the walk goes on behind it.
struct Head {
    inode: u32,
    length: usize,
    kind: u8,
    name_length: usize,
}

impl Head {
    /// Of the slot that `bytes` begin with.
    #[inline(always)]
    fn of(core: &Core, dir: &Inode, bytes: &[u8]) -> Result<Head> {
        let Some(head) = bytes.first_chunk::<HEAD>() else { return Err(cut(dir, bytes.len())) };
        // At once: a directory's slots are passed in their thousands.
        let word = u64::from_le_bytes(*head);
        let (inode, length) = (word as u32, usize::from((word >> 32) as u16));
        let (name_length, kind) = (usize::from((word >> 48) as u8), (word >> 56) as u8);
        if !length.is_multiple_of(4) || length < (HEAD + name_length).max(TAIL) || length > bytes.len() {
            return Err(cut(dir, length));
        }
        if inode > core.superblock.inodes {
            return Err(no_inode(core, dir, inode));
        }
        Ok(Head { inode, length, kind, name_length })
    }

    /// Bytes behind what the entry needs.
    fn room(&self) -> usize {
        let used = if self.inode == 0 { 0 } else { needed(self.name_length) };
        self.length - used
    }
}

#[cold]
fn cut(dir: &Inode, found: usize) -> Error {
    damaged(dir, "an entry's length", found, "what fits, a multiple of 4")
}

fn decode<'a>(core: &Core, dir: &Inode, bytes: &'a [u8], at: usize) -> Result<Slot<'a>> {
    let Head { inode, length, kind, name_length } = Head::of(core, dir, &bytes[at..])?;
    let name = &bytes[at + HEAD..at + HEAD + name_length];
    if inode != 0 && (name.is_empty() || name_length > vfs::NAME_MAX || !is_one_name(name)) {
        let text = String::from_utf8_lossy(name).escape_debug().to_string();
        return Err(damaged(dir, "a name", format_args!("'{text}'"), "1 to 255 bytes without '/' and NUL"));
    }
    let kind = if has_kinds(core) { kind_of(kind) } else { None };
    Ok(Slot { at, length, inode, kind, name })
}

/// Whether no byte is NUL or `/`: eight at a time, since all names of a directory are looked at when it is listed.
fn is_one_name(name: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let has_zero = |word: u64| word.wrapping_sub(ONES) & !word & (ONES << 7) != 0;
    let (eights, rest) = name.as_chunks::<8>();
    let is_clean = |eight: &[u8; 8]| {
        let word = u64::from_ne_bytes(*eight);
        !has_zero(word) && !has_zero(word ^ (ONES * u64::from(b'/')))
    };
    // The last eight again, rather than the rest by itself.
    let rest = if eights.is_empty() { rest } else { &[] };
    eights.iter().chain(name.last_chunk()).all(is_clean) && !rest.iter().any(|byte| matches!(byte, 0 | b'/'))
}

fn has_kinds(core: &Core) -> bool {
    core.superblock.features.incompat.contains(Incompat::FILETYPE)
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

fn number_of(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::CharDevice => 3,
        FileKind::BlockDevice => 4,
        FileKind::Fifo => 5,
        FileKind::Socket => 6,
        FileKind::Symlink => 7,
    }
}

/// Looks for a name in `bytes`: its entry, or where the first slot begins that has room for one. Entries that it passes are looked at as far as
/// it takes to pass them, as the kernel does it: whoever has their names checks those.
pub(super) fn look<'a>(
    core: &Core,
    dir: &Inode,
    bytes: &'a [u8],
    name: &[u8],
) -> Result<Look<Slot<'a>, usize>> {
    let (needed, end) = (needed(name.len()), usable(core, bytes.len()));
    let (mut rest, mut room) = (bytes, None);
    while !rest.is_empty() {
        let head = Head::of(core, dir, rest)?;
        let at = bytes.len() - rest.len();
        if head.name_length == name.len() && head.inode != 0 && is_name_at(&rest[HEAD..], name) {
            return decode(core, dir, bytes, at).map(Look::There);
        }
        if room.is_none() && head.room() >= needed && at + head.length <= end {
            room = Some(at);
        }
        rest = &rest[head.length..];
    }
    Ok(Look::Not(room))
}

/// Whether `bytes` begin with this name. Its end is looked at first: names of a directory often begin alike.
fn is_name_at(bytes: &[u8], name: &[u8]) -> bool {
    let bytes = &bytes[..name.len()];
    bytes.last() == name.last() && bytes == name
}

/// How much of a block of so many bytes entries may have: all but what stands before its checksum, and that.
pub(super) fn usable(core: &Core, bytes: usize) -> usize {
    if core.superblock.features.has_metadata_csum() { bytes - TAIL } else { bytes }
}

/// Where the slot begins that has room for an entry of `length` bytes, if one does.
pub(super) fn place(core: &Core, dir: &Inode, bytes: &[u8], length: usize) -> Result<Option<usize>> {
    let bytes = &bytes[..usable(core, bytes.len())];
    let mut rest = bytes;
    while !rest.is_empty() {
        let head = Head::of(core, dir, rest)?;
        if head.room() >= length {
            return Ok(Some(bytes.len() - rest.len()));
        }
        rest = &rest[head.length..];
    }
    Ok(None)
}

/// An entry by itself, as long as it needs to be.
pub(super) fn encode(core: &Core, inode: u32, kind: FileKind, name: &[u8]) -> Vec<u8> {
    let length = needed(name.len());
    let mut bytes = vec![0; length];
    bytes[..4].copy_from_slice(&inode.to_le_bytes());
    set_length(&mut bytes, 0, length);
    bytes[6] = name.len() as u8; // at most 255
    bytes[7] = if has_kinds(core) { number_of(kind) } else { 0 };
    bytes[HEAD..HEAD + name.len()].copy_from_slice(name);
    bytes
}

fn length_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]))
}

fn set_length(bytes: &mut [u8], at: usize, length: usize) {
    bytes[at + 4..at + 6].copy_from_slice(&(length as u16).to_le_bytes());
}

/// Bytes that the entry needs that is in the slot at `at`.
fn used_at(block: &[u8], at: usize) -> usize {
    let is_used = block[at..at + 4] != [0; 4];
    if is_used { needed(usize::from(block[at + 6])) } else { 0 }
}

/// Puts an entry where [`place`] or [`look`] found room.
pub(super) fn put(block: &mut Changing<'_>, at: usize, entry: &[u8]) {
    let (length, used) = (length_at(block, at), used_at(block, at));
    assert!(length >= used + entry.len(), "room was found");
    if used > 0 {
        set_length(block.at(at..at + HEAD), 0, used);
    }
    let slot = block.at(at + used..at + used + entry.len());
    slot.copy_from_slice(entry);
    set_length(slot, 0, length - used);
}

/// Removes the entry at `at`: its slot becomes part of the one before, or holds nothing.
pub(super) fn remove(block: &mut Changing<'_>, at: usize) {
    let length = length_at(block, at);
    let mut before = None;
    let mut next = 0;
    while next < at {
        before = Some(next);
        next += length_at(block, next);
    }
    block.at(at..at + length).fill(0);
    let (at, length) = before.map_or((at, length), |before| (before, length_at(block, before) + length));
    set_length(block.at(at..at + HEAD), 0, length);
}

/// Lets the entry at `at` lead elsewhere.
pub(super) fn set(core: &Core, block: &mut Changing<'_>, at: usize, inode: u32, kind: FileKind) {
    let head = block.at(at..at + HEAD);
    head[..4].copy_from_slice(&inode.to_le_bytes());
    head[7] = if has_kinds(core) { number_of(kind) } else { 0 };
}

/// Fills a block with these entries, in their order; the last one has what is left. They fit.
pub(super) fn fill<'a>(core: &Core, bytes: &mut [u8], all: impl IntoIterator<Item = &'a [u8]>) {
    let end = usable(core, bytes.len());
    bytes.fill(0);
    let (mut last, mut at) = (0, 0);
    for entry in all {
        bytes[at..at + entry.len()].copy_from_slice(entry);
        set_length(bytes, at, entry.len());
        (last, at) = (at, at + entry.len());
    }
    set_length(bytes, last, end - last);
    if end < bytes.len() {
        bytes[end..][..HEAD].copy_from_slice(&TAIL_HEAD);
    }
}

/// Verifies the checksum of block `number` of a directory: one of a hash tree has it behind its limit, one of entries in a last
/// entry of its own. (A root that was a block of entries before still has that entry, so it is looked at as a root first.)
pub(super) fn verify(core: &Core, dir: &Inode, number: u64, bytes: &[u8]) -> Result<()> {
    if !core.superblock.features.has_metadata_csum() {
        return Ok(());
    }
    let seed = inode::seed(&core.superblock, dir.number, dir.generation);
    if let Some((at, expected)) = tree::checksum(seed, bytes) {
        return compare(dir, number, &bytes[at..], expected);
    }
    let (entries, tail) = bytes.split_at(bytes.len() - TAIL);
    let (head, sum) = tail.split_at(HEAD);
    if head != TAIL_HEAD {
        return Err(damaged(dir, "the checksum of a block", "not there", format_args!("in block {number}")));
    }
    compare(dir, number, sum, crc32c(seed, entries))
}

/// Puts the checksum of a block right, of a tree or of entries.
pub(super) fn seal(core: &Core, dir: &Inode, block: &mut Changing<'_>) {
    if !core.superblock.features.has_metadata_csum() {
        return;
    }
    let seed = inode::seed(&core.superblock, dir.number, dir.generation);
    let end = block.len() - TAIL;
    let (at, sum) = tree::checksum(seed, block).unwrap_or_else(|| (end + HEAD, crc32c(seed, &block[..end])));
    block.at(at..at + 4).copy_from_slice(&sum.to_le_bytes());
}

/// Puts an entry into a block of entries where [`look`] found room, and the block's checksum right: by what changes, as the rest is in it.
pub(super) fn put_sealed(core: &Core, dir: &Inode, block: &mut Changing<'_>, at: usize, entry: &[u8]) {
    let seed = inode::seed(&core.superblock, dir.number, dir.generation);
    if !core.superblock.features.has_metadata_csum() || tree::checksum(seed, block).is_some() {
        put(block, at, entry);
        return seal(core, dir, block);
    }
    let (range, end) = (at..at + used_at(block, at) + entry.len(), block.len() - TAIL);
    let before = crc32c(0, &block[range.clone()]);
    put(block, at, entry);
    let after = crc32c(0, &block[range.clone()]);
    let sum = block.at(end + HEAD..end + TAIL);
    let was = sum.first_chunk().map_or(0, |sum| u32::from_le_bytes(*sum));
    sum.copy_from_slice(&crc32c_changed(was, before, after, end - range.end).to_le_bytes());
}

fn compare(dir: &Inode, number: u64, found: &[u8], expected: u32) -> Result<()> {
    let found = found.first_chunk().map_or(0, |found| u32::from_le_bytes(*found));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_at_to_its_last_byte() {
        for length in 1..40 {
            let mut name = vec![b'.' ^ 0x80; length];
            for at in 0..length {
                for (byte, expected) in [(b'/', false), (0, false), (1, true), (b'.', true), (0x80, true)] {
                    name[at] = byte;
                    assert_eq!(is_one_name(&name), expected, "{byte} at {at} of {length}");
                }
                name[at] = b'0' ^ at as u8;
                name[at] = if name[at] == b'/' { b'x' } else { name[at].max(1) };
            }
        }
    }
}
