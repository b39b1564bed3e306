//! Inodes as the disk has them: 128 bytes, and what large ones have behind those.

use std::mem::offset_of;

use vfs::{Error, FileKind, Result, Time};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{BLOCK_BYTES, Flags, Inode, Place, SHORT, Times, seed};
use crate::checksum::crc32c;
use crate::error::corrupt;
use crate::features::{Incompat, RoCompat};
use crate::superblock::{INODE_EXTRA_BYTES, Superblock};

const CHECKSUM_LOW_AT: usize = 0x7C;
const CHECKSUM_HIGH_AT: usize = 0x82;
/// Bytes of an inode that its checksum takes in one piece: all of most.
const SUMMED_AT_ONCE: usize = 256;

#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(super) struct RawInode {
    pub(super) mode: U16,
    uid_low: U16,
    size_low: U32,
    atime: U32,
    ctime: U32,
    mtime: U32,
    pub(super) dtime: U32,
    gid_low: U16,
    pub(super) links: U16,
    blocks_low: U32,
    flags: U32,
    version: U32,
    block: [u8; BLOCK_BYTES],
    generation: U32,
    attributes_low: U32,
    size_high: U32,
    fragment: U32,
    blocks_high: U16,
    attributes_high: U16,
    uid_high: U16,
    gid_high: U16,
    checksum_low: U16,
    reserved: U16,
}
const _: () = assert!(size_of::<RawInode>() == SHORT);
const _: () = assert!(offset_of!(RawInode, checksum_low) == CHECKSUM_LOW_AT);

impl RawInode {
    pub(super) fn is_in_use(&self) -> bool {
        self.mode.get() != 0 || self.links.get() != 0
    }
}

/// What large inodes have in addition, as far as their `bytes` go.
#[repr(C)]
#[derive(Clone, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawExtra {
    bytes: U16,
    checksum_high: U16,
    ctime: U32,
    mtime: U32,
    atime: U32,
    btime: U32,
    btime_extra: U32,
    version_high: U32,
    project: U32,
}
/// Bytes of these.
const EXTRA: usize = INODE_EXTRA_BYTES;
const _: () = assert!(size_of::<RawExtra>() == EXTRA);

/// What the bytes of inode `number` say; [`Error::Stale`] if it is not in use. What compares its checksum is handed to `once`.
pub(super) fn decode(
    superblock: &Superblock,
    number: u32,
    place: Place,
    bytes: &[u8],
    once: impl FnOnce(&dyn Fn() -> Result<()>) -> Result<()>,
) -> Result<Inode> {
    let raw = RawInode::read_from_bytes(&bytes[..SHORT]).expect("the size fits");
    if !raw.is_in_use() {
        return Err(Error::Stale);
    }
    let of = format_args!("{number}");
    let (extra, tail_bytes) = split_extra(superblock, &bytes[SHORT..]).map_err(|found| {
        corrupt("inode", of, "the size of its fields", found, "a multiple of 4 that fits")
    })?;
    if superblock.checks_inodes {
        once(&|| {
            let (found, expected) =
                checksums(superblock, number, bytes, raw.generation.get(), extra.bytes.get());
            if found == expected {
                return Ok(());
            }
            let (found, expected) = (format_args!("{found:#x}"), format_args!("{expected:#x}"));
            Err(corrupt("inode", of, "its checksum", found, expected))
        })?;
    }
    let tail = &bytes[bytes.len() - tail_bytes..];
    let has_tail = tail.iter().fold(0, |any, byte| any | byte) != 0;
    // Where nothing is behind them there is room for all fields, as with the kernel.
    let room = bytes.len() - SHORT - superblock.inode_extra_bytes;
    let tail_bytes = if has_tail { tail_bytes } else { tail_bytes.min(room) };
    let mode = u32::from(raw.mode.get());
    let Some(kind) = FileKind::from_mode(mode) else {
        return Err(corrupt("inode", of, "its mode", format_args!("{mode:#o}"), "a kind of file"));
    };
    let join = |low: U16, high: U16| u32::from(low.get()) | u32::from(high.get()) << 16;
    let flags = Flags::from_bits_retain(raw.flags.get());
    check_flags(superblock, number, flags)?;
    let large = kind == FileKind::Regular
        || kind == FileKind::Directory && superblock.features.incompat.contains(Incompat::LARGEDIR);
    let size = u64::from(raw.size_low.get()) | if large { u64::from(raw.size_high.get()) << 32 } else { 0 };
    if size > i64::MAX as u64 {
        return Err(corrupt("inode", of, "its size", size, "less than 2^63"));
    }
    // A directory is in whole blocks: what is behind the last one nobody could have written.
    let whole = kind == FileKind::Directory && !flags.contains(Flags::INLINE_DATA);
    if whole && (!size.is_multiple_of(superblock.block) || size / superblock.block > superblock.blocks) {
        return Err(corrupt("inode", of, "its size", size, "whole blocks, no more than the disk has"));
    }
    Ok(Inode {
        number,
        place,
        mode,
        links: u32::from(raw.links.get()),
        uid: join(raw.uid_low, raw.uid_high),
        gid: join(raw.gid_low, raw.gid_high),
        size,
        blocks: sectors(superblock, &raw, flags),
        flags,
        generation: raw.generation.get(),
        block: raw.block,
        attributes: attributes(superblock, &raw),
        next_orphan: raw.dtime.get(),
        times: Times {
            access: time(raw.atime, extra.atime),
            modify: time(raw.mtime, extra.mtime),
            change: time(raw.ctime, extra.ctime),
            birth: time(extra.btime, extra.btime_extra),
        },
        tail: if has_tail && extra.bytes.get() != 0 { tail.into() } else { Box::default() },
        tail_bytes,
    })
}

/// What an inode's bytes tell also if it is not in use.
pub(crate) struct Remains {
    pub(crate) links: u32,
    /// It was removed, and does not say when.
    pub(crate) is_timeless: bool,
    /// Its checksum is right, or it has never held anything.
    pub(crate) is_sealed: bool,
}

pub(super) fn remains(superblock: &Superblock, number: u32, bytes: &[u8]) -> Remains {
    let raw = RawInode::read_from_bytes(&bytes[..SHORT]).expect("the size fits");
    let is_right = || {
        let (extra, _) = split_extra(superblock, &bytes[SHORT..]).ok()?;
        let (found, expected) = checksums(superblock, number, bytes, raw.generation.get(), extra.bytes.get());
        Some(found == expected)
    };
    let is_empty = bytes.iter().all(|byte| *byte == 0);
    Remains {
        links: raw.links.get().into(),
        is_timeless: raw.links.get() == 0 && raw.mode.get() != 0 && raw.dtime.get() == 0,
        is_sealed: !superblock.checks_inodes || is_empty || is_right() == Some(true),
    }
}

/// The fields that a large inode has, missing ones 0, and the bytes that are behind them; or the size that they cannot have.
fn split_extra(superblock: &Superblock, behind: &[u8]) -> std::result::Result<(RawExtra, usize), u16> {
    let Some(length) = behind.first_chunk().map(|length| u16::from_le_bytes(*length)) else {
        return Ok((RawExtra::default(), 0));
    };
    let bytes = usize::from(length);
    if bytes > behind.len() || !bytes.is_multiple_of(4) {
        return Err(length);
    }
    if bytes == 0 {
        // Nobody has used that space: there is as much as in a new inode.
        return Ok((RawExtra::default(), behind.len() - superblock.inode_extra_bytes));
    }
    let extra = extra_fields(&behind[..bytes]);
    Ok((extra, behind.len() - bytes))
}

/// The fields that are in `bytes`, missing ones 0.
fn extra_fields(bytes: &[u8]) -> RawExtra {
    let mut whole = [0; EXTRA];
    let known = bytes.len().min(EXTRA);
    whole[..known].copy_from_slice(&bytes[..known]);
    RawExtra::read_from_bytes(&whole).expect("the size fits")
}

/// Puts an inode into its bytes of the table.
pub(super) fn encode(superblock: &Superblock, inode: &Inode, bytes: &mut [u8]) -> Result<()> {
    let mut raw = RawInode::read_from_bytes(&bytes[..SHORT]).expect("the size fits");
    let split = |value: u32, low: &mut U16, high: &mut U16| {
        low.set(value as u16);
        high.set((value >> 16) as u16);
    };
    raw.mode.set(inode.mode as u16);
    raw.links.set(inode.links as u16);
    split(inode.uid, &mut raw.uid_low, &mut raw.uid_high);
    split(inode.gid, &mut raw.gid_low, &mut raw.gid_high);
    raw.size_low.set(inode.size as u32);
    raw.size_high.set((inode.size >> 32) as u32);
    put_sectors(superblock, inode, &mut raw)?;
    raw.generation.set(inode.generation);
    raw.block = inode.block;
    raw.attributes_low.set(inode.attributes as u32);
    if superblock.features.incompat.contains(Incompat::SIXTY_FOUR_BIT) {
        raw.attributes_high.set((inode.attributes >> 32) as u16);
    }
    raw.dtime.set(inode.next_orphan);
    let behind = &mut bytes[SHORT..];
    let extra_bytes = behind.len() - inode.tail_bytes;
    if behind.first_chunk() == Some(&[0, 0]) {
        behind.fill(0);
    }
    let (fields, tail) = behind.split_at_mut(extra_bytes);
    if inode.tail.is_empty() {
        tail.fill(0);
    } else {
        tail.copy_from_slice(&inode.tail);
    }
    let mut extra = extra_fields(fields);
    extra.bytes.set(extra_bytes as u16);
    // One may have the rest of some times, and not of others.
    let has = |at: usize| at < extra_bytes;
    put_time(inode.times.access, has(offset_of!(RawExtra, atime)), &mut raw.atime, &mut extra.atime);
    put_time(inode.times.modify, has(offset_of!(RawExtra, mtime)), &mut raw.mtime, &mut extra.mtime);
    put_time(inode.times.change, has(offset_of!(RawExtra, ctime)), &mut raw.ctime, &mut extra.ctime);
    put_time(
        inode.times.birth,
        has(offset_of!(RawExtra, btime_extra)),
        &mut extra.btime,
        &mut extra.btime_extra,
    );
    let known = fields.len().min(EXTRA);
    fields[..known].copy_from_slice(&extra.as_bytes()[..known]);
    bytes[..SHORT].copy_from_slice(raw.as_bytes());
    seal(superblock, inode.number, bytes);
    Ok(())
}

/// Gives the bytes of an inode their checksum.
pub(super) fn seal(superblock: &Superblock, number: u32, bytes: &mut [u8]) {
    if !superblock.features.has_metadata_csum() {
        return;
    }
    let generation = RawInode::read_from_bytes(&bytes[..SHORT]).expect("the size fits").generation.get();
    let extra = bytes[SHORT..].first_chunk().map_or(0, |length| u16::from_le_bytes(*length));
    let (_, sum) = checksums(superblock, number, bytes, generation, extra);
    bytes[CHECKSUM_LOW_AT..][..2].copy_from_slice(&(sum as u16).to_le_bytes());
    if bytes.len() > SHORT && extra >= 4 {
        bytes[CHECKSUM_HIGH_AT..][..2].copy_from_slice(&((sum >> 16) as u16).to_le_bytes());
    }
}

/// The checksum that an inode has, and that which it should have.
fn checksums(superblock: &Superblock, number: u32, bytes: &[u8], generation: u32, extra: u16) -> (u32, u32) {
    let low = u32::from(u16::from_le_bytes([bytes[CHECKSUM_LOW_AT], bytes[CHECKSUM_LOW_AT + 1]]));
    let has_high = bytes.len() > SHORT && extra >= 4;
    // In one piece, with zeros for both halves.
    let (first, rest) = bytes.split_at(bytes.len().min(SUMMED_AT_ONCE));
    let mut copy = [0; SUMMED_AT_ONCE];
    copy[..first.len()].copy_from_slice(first);
    copy[CHECKSUM_LOW_AT..][..2].fill(0);
    if has_high {
        copy[CHECKSUM_HIGH_AT..][..2].fill(0);
    }
    let sum = crc32c(seed(superblock, number, generation), &copy[..first.len()]);
    let expected = if rest.is_empty() { sum } else { crc32c(sum, rest) };
    if has_high {
        let high = u16::from_le_bytes([bytes[CHECKSUM_HIGH_AT], bytes[CHECKSUM_HIGH_AT + 1]]);
        (low | u32::from(high) << 16, expected)
    } else {
        (low, expected & 0xFFFF)
    }
}

fn check_flags(superblock: &Superblock, number: u32, flags: Flags) -> Result<()> {
    let incompat = superblock.features.incompat;
    let wrong = |what: &str| {
        Err(corrupt("inode", number, "its flags", what, "what the file system's features allow"))
    };
    if flags.contains(Flags::EXTENTS) && !incompat.contains(Incompat::EXTENTS) {
        return wrong("extents");
    }
    if flags.contains(Flags::INLINE_DATA) && !incompat.contains(Incompat::INLINE_DATA) {
        return wrong("inline data");
    }
    if flags.contains(Flags::EA_INODE) {
        return wrong("an attribute's value");
    }
    if flags.contains(Flags::ENCRYPT) { wrong("encryption") } else { Ok(()) }
}

/// Where attributes are. Without `64bit` the high bits are not of that: the Hurd has others of a file's mode there.
fn attributes(superblock: &Superblock, raw: &RawInode) -> u64 {
    let low = u64::from(raw.attributes_low.get());
    match superblock.features.incompat.contains(Incompat::SIXTY_FOUR_BIT) {
        true => low | u64::from(raw.attributes_high.get()) << 32,
        false => low,
    }
}

fn sectors(superblock: &Superblock, raw: &RawInode, flags: Flags) -> u64 {
    let low = u64::from(raw.blocks_low.get());
    if !superblock.features.ro_compat.contains(RoCompat::HUGE_FILE) {
        return low;
    }
    let count = low | u64::from(raw.blocks_high.get()) << 32;
    if flags.contains(Flags::HUGE_FILE) { count * (superblock.block / 512) } else { count }
}

/// Sectors have 32 bits; or 48, and then they may be blocks.
fn put_sectors(superblock: &Superblock, inode: &Inode, raw: &mut RawInode) -> Result<()> {
    let mut flags = inode.flags - Flags::HUGE_FILE;
    let mut count = inode.blocks;
    if superblock.features.ro_compat.contains(RoCompat::HUGE_FILE) {
        if count >> 48 != 0 {
            flags |= Flags::HUGE_FILE;
            count /= superblock.block / 512;
        }
        raw.blocks_high.set((count >> 32) as u16);
    } else if count >> 32 != 0 {
        return Err(Error::FileTooLarge);
    }
    raw.blocks_low.set(count as u32);
    raw.flags.set(flags.bits());
    Ok(())
}

/// Whether an inode with so many bytes of fields has the rest of its three times there.
pub(crate) fn has_wide_times(extra_bytes: usize) -> bool {
    extra_bytes >= offset_of!(RawExtra, btime)
}

/// A time as near as an inode can have it.
fn put_time(at: Time, wide: bool, seconds: &mut U32, extra: &mut U32) {
    let at = storable(at, wide);
    seconds.set(at.sec as u32);
    let above = (at.sec - i64::from(at.sec as i32)) >> 32;
    extra.set(at.nsec << 2 | above as u32 & 3);
}

/// What is found again of a time that is written.
pub(super) fn storable(at: Time, wide: bool) -> Time {
    let last = i64::from(i32::MAX) + if wide { 3 << 32 } else { 0 };
    let sec = at.sec.clamp(i64::from(i32::MIN), last);
    Time { sec, nsec: if wide && sec == at.sec { at.nsec } else { 0 } }
}

/// Seconds have 34 bits, two of them in the word of nanoseconds, and a sign.
fn time(seconds: U32, extra: U32) -> Time {
    let (extra, seconds) = (extra.get(), seconds.get() as i32);
    let nsec = extra >> 2;
    // More than a second's nanoseconds are nobody's.
    Time {
        sec: i64::from(seconds) + (i64::from(extra & 3) << 32),
        nsec: if nsec < 1_000_000_000 { nsec } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_34_bits_and_a_sign() {
        let at = |seconds: i64, extra: u32| time(U32::new(seconds as u32), U32::new(extra));
        assert_eq!(at(-1, 0), Time { sec: -1, nsec: 0 });
        assert_eq!(at(i64::from(i32::MIN), 1), Time { sec: 0x8000_0000, nsec: 0 }, "2038");
        assert_eq!(at(i64::from(i32::MAX), 3), Time { sec: 0x3_7FFF_FFFF, nsec: 0 }, "2446");
        assert_eq!(at(5, 999_999_999 << 2), Time { sec: 5, nsec: 999_999_999 });
        assert_eq!(at(5, 1_000_000_000 << 2).nsec, 0);
    }
}
