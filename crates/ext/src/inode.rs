//! Inodes: attributes, and what leads to their contents.

use vfs::{Attr, Caller, Error, FileKind, Result, Time, rules};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum::crc32c;
use crate::core::Core;
use crate::error::corrupt;
use crate::features::{Incompat, RoCompat};
use crate::group;
use crate::store::{Block, Kind};
use crate::superblock::{ROOT, Superblock};

bitflags::bitflags! {
    /// What matters here of an inode's flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u32 {
        /// Encrypted.
        const ENCRYPT = 0x800;
        /// A directory with a hash tree.
        const INDEX = 0x1000;
        /// `blocks` counts blocks of the file system.
        const HUGE_FILE = 0x4_0000;
        /// Mapped by extents.
        const EXTENTS = 0x8_0000;
        /// A value of a large extended attribute.
        const EA_INODE = 0x20_0000;
        /// Contents are in the inode.
        const INLINE_DATA = 0x1000_0000;
        const _ = !0;
    }
}

/// Bytes of an inode that all versions have.
pub(crate) const SHORT: usize = 128;
/// Bytes of an inode that are pointers, an extent tree's root, a short link, or contents.
pub(crate) const BLOCK_BYTES: usize = 60;
const CHECKSUM_LOW_AT: usize = 0x7C;
const CHECKSUM_HIGH_AT: usize = 0x82;

#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawInode {
    mode: U16,
    uid_low: U16,
    size_low: U32,
    atime: U32,
    ctime: U32,
    mtime: U32,
    dtime: U32,
    gid_low: U16,
    links: U16,
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
const _: () = assert!(std::mem::offset_of!(RawInode, checksum_low) == CHECKSUM_LOW_AT);

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
const _: () = assert!(size_of::<RawExtra>() == 32);

/// An inode in use.
#[derive(Clone, Debug)]
pub(crate) struct Inode {
    pub(crate) number: u32,
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    /// In units of 512 bytes.
    pub(crate) blocks: u64,
    pub(crate) flags: Flags,
    pub(crate) generation: u32,
    pub(crate) block: [u8; BLOCK_BYTES],
    /// The block of extended attributes, or 0.
    pub(crate) attributes: u64,
    pub(crate) times: Times,
    /// Of an orphan, the next one.
    pub(crate) next_orphan: u32,
    /// What lies behind its fields: extended attributes.
    pub(crate) tail: Box<[u8]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    access: Time,
    modify: Time,
    change: Time,
    birth: Time,
}

/// Inode `number`; [`Error::Stale`] if there is none, or it is not in use.
pub(crate) fn read(core: &Core, number: u32) -> Result<Inode> {
    let (block, start) = locate(core, number)?;
    decode(&core.superblock, number, &block[start..start + core.superblock.inode_bytes])
}

/// Part of an operation: writes an inode that is in use. Links of 0 are kept (an orphan); `next_orphan` stands where a removed one has its
/// time of removal.
pub(crate) fn write(_core: &Core, _inode: &Inode) -> Result<()> {
    todo!()
}

/// Part of an operation: a new inode in memory, for a number that [`crate::alloc::new_inode`] gave; the caller writes it. It has no
/// contents: an empty extent tree where the file system has extents and the kind has a map.
pub(crate) fn new(_core: &Core, _number: u32, _mode: u32, _uid: u32, _gid: u32, _now: Time) -> Inode {
    todo!()
}

/// How many names inode `number` has, whatever else may be wrong with it.
pub(crate) fn links(core: &Core, number: u32) -> Result<u32> {
    let (block, start) = locate(core, number)?;
    let raw = RawInode::read_from_bytes(&block[start..start + SHORT]).expect("the size fits");
    Ok(u32::from(raw.links.get()))
}

/// The block that holds inode `number`, and where in it.
fn locate(core: &Core, number: u32) -> Result<(Block, usize)> {
    let superblock = &core.superblock;
    if number == 0 || number > superblock.inodes {
        return Err(Error::Stale);
    }
    let index = u64::from(number - 1);
    let group = (index / u64::from(superblock.inodes_per_group)) as u32;
    let group = group::read(core, group)?;
    if group.inodes.unused {
        return Err(Error::Stale);
    }
    let at = index % u64::from(superblock.inodes_per_group) * superblock.inode_bytes as u64;
    let block = core.store.read(Kind::Inodes, group.inode_table + at / superblock.block, |_| Ok(()))?;
    Ok((block, (at % superblock.block) as usize))
}

fn decode(superblock: &Superblock, number: u32, bytes: &[u8]) -> Result<Inode> {
    let raw = RawInode::read_from_bytes(&bytes[..SHORT]).expect("the size fits");
    if raw.mode.get() == 0 && raw.links.get() == 0 {
        return Err(Error::Stale);
    }
    let of = format_args!("{number}");
    let (extra, tail) = split_extra(&bytes[SHORT..]).map_err(|found| {
        corrupt("inode", of, "the size of its fields", found, "a multiple of 4 that fits")
    })?;
    if superblock.features.has_metadata_csum() {
        let (found, expected) = checksums(superblock, number, bytes, raw.generation.get(), extra.bytes.get());
        if found != expected {
            return Err(corrupt(
                "inode",
                of,
                "its checksum",
                format_args!("{found:#x}"),
                format_args!("{expected:#x}"),
            ));
        }
    }
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
        mode,
        links: u32::from(raw.links.get()),
        uid: join(raw.uid_low, raw.uid_high),
        gid: join(raw.gid_low, raw.gid_high),
        size,
        blocks: sectors(superblock, &raw, flags),
        flags,
        generation: raw.generation.get(),
        block: raw.block,
        attributes: u64::from(raw.attributes_low.get()) | u64::from(raw.attributes_high.get()) << 32,
        next_orphan: raw.dtime.get(),
        times: Times {
            access: time(raw.atime, extra.atime),
            modify: time(raw.mtime, extra.mtime),
            change: time(raw.ctime, extra.ctime),
            birth: time(extra.btime, extra.btime_extra),
        },
        tail: tail.into(),
    })
}

/// The fields that a large inode has, missing ones 0, and what is behind them; or the size that they cannot have.
fn split_extra(behind: &[u8]) -> std::result::Result<(RawExtra, &[u8]), u16> {
    let Some(length) = behind.first_chunk().map(|length| u16::from_le_bytes(*length)) else {
        return Ok((RawExtra::default(), &[]));
    };
    let bytes = usize::from(length);
    if bytes > behind.len() || !bytes.is_multiple_of(4) {
        return Err(length);
    }
    let mut whole = [0; size_of::<RawExtra>()];
    let known = bytes.min(whole.len());
    whole[..known].copy_from_slice(&behind[..known]);
    whole[..2].copy_from_slice(&length.to_le_bytes());
    // Without fields there are no attributes behind them: nobody has used that space.
    let tail = if bytes == 0 { &[][..] } else { &behind[bytes..] };
    Ok((RawExtra::read_from_bytes(&whole).expect("the size fits"), tail))
}

/// The checksum that an inode has, and that which it should have.
fn checksums(superblock: &Superblock, number: u32, bytes: &[u8], generation: u32, extra: u16) -> (u32, u32) {
    let mut clean = bytes.to_vec();
    clean[CHECKSUM_LOW_AT..][..2].fill(0);
    let low = u32::from(u16::from_le_bytes([bytes[CHECKSUM_LOW_AT], bytes[CHECKSUM_LOW_AT + 1]]));
    let has_high = bytes.len() > SHORT && extra >= 4;
    if has_high {
        clean[CHECKSUM_HIGH_AT..][..2].fill(0);
    }
    let expected = crc32c(seed(superblock, number, generation), &clean);
    if has_high {
        let high = u16::from_le_bytes([bytes[CHECKSUM_HIGH_AT], bytes[CHECKSUM_HIGH_AT + 1]]);
        (low | u32::from(high) << 16, expected)
    } else {
        (low, expected & 0xFFFF)
    }
}

/// What the checksums of all blocks of an inode start from.
pub(crate) fn seed(superblock: &Superblock, number: u32, generation: u32) -> u32 {
    crc32c(crc32c(superblock.checksum_seed, &number.to_le_bytes()), &generation.to_le_bytes())
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

fn sectors(superblock: &Superblock, raw: &RawInode, flags: Flags) -> u64 {
    let low = u64::from(raw.blocks_low.get());
    if !superblock.features.ro_compat.contains(RoCompat::HUGE_FILE) {
        return low;
    }
    let count = low | u64::from(raw.blocks_high.get()) << 32;
    if flags.contains(Flags::HUGE_FILE) { count * (superblock.block / 512) } else { count }
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

impl Inode {
    pub(crate) fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    pub(crate) fn is_inline(&self) -> bool {
        self.flags.contains(Flags::INLINE_DATA)
    }

    /// `caller` has changed the contents.
    pub(crate) fn rewritten(&mut self, caller: &Caller, now: Time) {
        self.mode = rules::mode_after_write(caller, self.mode);
        (self.times.modify, self.times.change) = (now, now);
    }

    /// What `stat(2)` shows.
    pub(crate) fn attr(&self) -> Attr {
        // A small file shows that it has contents.
        let shows = self.is_inline() && self.kind() == FileKind::Regular;
        let inline = if shows { self.size.div_ceil(512) } else { 0 };
        Attr {
            ino: to_vfs(self.number),
            generation: self.generation,
            mode: self.mode,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: self.device(),
            size: self.size,
            blocks: self.blocks + inline,
            atime: self.times.access,
            mtime: self.times.modify,
            ctime: self.times.change,
            btime: self.times.birth,
        }
    }

    /// The device of a device node, as Linux's `dev_t` in 32 bits: in the old form, or in the new one behind it.
    fn device(&self) -> u32 {
        if !matches!(self.kind(), FileKind::CharDevice | FileKind::BlockDevice) {
            return 0;
        }
        let word = |n: usize| u32::from_le_bytes(self.block[n * 4..][..4].try_into().expect("four bytes"));
        match word(0) {
            0 => word(1),
            // Below 2^16 both forms are the same.
            old => old & 0xFFFF,
        }
    }

    /// A short target that stands where other inodes have pointers.
    pub(crate) fn fast_target(&self, superblock: &Superblock) -> Option<&[u8]> {
        let of_attributes =
            if self.attributes != 0 { superblock.cluster * superblock.block / 512 } else { 0 };
        let fast = !self.is_inline() && self.blocks.saturating_sub(of_attributes) == 0;
        if fast { self.block.get(..usize::try_from(self.size).ok()?) } else { None }
    }
}

/// The root directory is 1 in [`vfs`] and 2 on the disk, where 1 is the list of bad blocks: the two change places.
pub(crate) fn to_vfs(number: u32) -> vfs::Ino {
    match number {
        ROOT => vfs::ROOT_INO,
        1 => u64::from(ROOT),
        other => u64::from(other),
    }
}

/// The inode that a number of [`vfs`] means, if users may see it: the root directory, or one that is not reserved.
pub(crate) fn from_vfs(superblock: &Superblock, ino: vfs::Ino) -> Result<u32> {
    if ino == vfs::ROOT_INO {
        return Ok(ROOT);
    }
    u32::try_from(ino).ok().filter(|number| *number >= superblock.first_inode).ok_or(Error::Stale)
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

    #[test]
    fn root_and_bad_blocks_change_places() {
        for number in [1, 2, 3, 11, u32::MAX] {
            let there = to_vfs(number);
            assert_eq!(there == vfs::ROOT_INO, number == ROOT);
        }
        assert_ne!(to_vfs(1), to_vfs(2));
    }
}
