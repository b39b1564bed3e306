//! Inodes: attributes, and what leads to their contents.

use std::hash::{BuildHasher, Hasher, RandomState};

use vfs::{Attr, Caller, Error, FileKind, Result, Time, rules};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum::crc32c;
use crate::core::Core;
use crate::error::corrupt;
use crate::features::{Incompat, RoCompat};
use crate::store::Kind;
use crate::superblock::{self, ROOT, Superblock};
use crate::{extents, group};

bitflags::bitflags! {
    /// What matters here of an inode's flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u32 {
        /// Nobody changes it.
        const IMMUTABLE = 0x10;
        /// It only grows.
        const APPEND = 0x20;
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

impl Flags {
    /// Of a directory's flags, those that what is made in it has, too: how it is to be written, dumped and compressed, of which most
    /// mean something to others only.
    pub(crate) fn inherited(self, kind: FileKind) -> Flags {
        let everywhere = Flags::from_bits_retain(0xC0);
        let with_contents = Flags::from_bits_retain(0x200_C40F);
        let in_directories = Flags::from_bits_retain(0x2001_0000);
        self & match kind {
            FileKind::Directory => everywhere | with_contents | in_directories,
            FileKind::Regular => everywhere | with_contents,
            _ => everywhere,
        }
    }
}

/// Bytes of an inode that all versions have.
pub(crate) const SHORT: usize = 128;
/// Bytes of an inode that are pointers, an extent tree's root, a short link, or contents.
pub(crate) const BLOCK_BYTES: usize = 60;
/// A larger file needs a feature of the file system.
const SIZE_MAX_WITHOUT_FEATURE: u64 = 0x7FFF_FFFF;
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
/// Bytes of these.
pub(crate) const EXTRA: usize = 32;
const _: () = assert!(size_of::<RawExtra>() == EXTRA);

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
    pub(crate) access: Time,
    pub(crate) modify: Time,
    pub(crate) change: Time,
    pub(crate) birth: Time,
}

/// Inode `number`; [`Error::Stale`] if there is none, or it is not in use.
pub(crate) fn read(core: &Core, number: u32) -> Result<Inode> {
    let (block, start) = locate(core, number)?;
    let block = core.store.read(Kind::Inodes, block, |_| Ok(()))?;
    decode(&core.superblock, number, &block[start..start + core.superblock.inode_bytes])
}

/// Part of an operation: writes an inode that is in use. Links of 0 are kept (an orphan); `next_orphan` stands where a removed one has its
/// time of removal. What of it is not known here stays. [`Error::FileTooLarge`] if it has more blocks than it can say.
pub(crate) fn write(core: &Core, inode: &Inode) -> Result<()> {
    let superblock = &core.superblock;
    change(core, inode.number, |bytes| encode(superblock, inode, bytes))??;
    let large = inode.kind() == FileKind::Regular && inode.size > SIZE_MAX_WITHOUT_FEATURE;
    if large && !superblock.features.ro_compat.contains(RoCompat::LARGE_FILE) {
        superblock::change(core, |raw| raw.ro_compat.set(raw.ro_compat.get() | RoCompat::LARGE_FILE.bits()))?;
    }
    Ok(())
}

/// A new inode in memory, for a number that [`crate::alloc::new_inode`] gave; the caller writes it. It has no link yet and no
/// contents: an empty extent tree where the file system has extents and the kind has a map. (A short symbolic link, which has none,
/// drops [`Flags::EXTENTS`].)
pub(crate) fn new(core: &Core, number: u32, mode: u32, uid: u32, gid: u32, now: Time) -> Inode {
    let superblock = &core.superblock;
    let mut inode = Inode {
        number,
        mode,
        links: 0,
        uid,
        gid,
        size: 0,
        blocks: 0,
        flags: Flags::empty(),
        // What says that a number is no longer the same file.
        generation: RandomState::new().build_hasher().finish() as u32,
        block: [0; BLOCK_BYTES],
        attributes: 0,
        next_orphan: 0,
        times: Times { access: now, modify: now, change: now, birth: now },
        tail: vec![0; superblock.inode_bytes - SHORT - superblock.inode_extra_bytes].into(),
    };
    let has_map = matches!(inode.kind(), FileKind::Regular | FileKind::Directory | FileKind::Symlink);
    if has_map && superblock.features.incompat.contains(Incompat::EXTENTS) {
        inode.flags |= Flags::EXTENTS;
        inode.block = extents::EMPTY;
    }
    inode
}

/// Part of an operation: zeroes an inode that is given out. One that `was_used` is not that of a file.
pub(crate) fn clear(core: &Core, number: u32, was_used: bool) -> Result<()> {
    change(core, number, |bytes| {
        let raw = RawInode::read_from_bytes(&bytes[..SHORT]).expect("the size fits");
        if was_used && raw.links.get() != 0 {
            return Err(corrupt(
                "bitmap",
                format_args!("inode {number}"),
                "its bit",
                "clear",
                "set: it has names",
            ));
        }
        bytes.fill(0);
        Ok(())
    })?
}

/// Part of an operation: zeroes the block that begins with an inode, none of which was ever used. What lies there is not asked for.
pub(crate) fn begin_block(core: &Core, number: u32) -> Result<()> {
    let (block, _) = locate(core, number)?;
    core.store.make(Kind::Inodes, block, |_| ());
    Ok(())
}

/// Part of an operation: an inode that is free leads nowhere, and has a time of removal.
pub(crate) fn retire(core: &Core, number: u32) -> Result<()> {
    let superblock = &core.superblock;
    change(core, number, |bytes| {
        let mut raw = RawInode::read_from_bytes(&bytes[..SHORT]).expect("the size fits");
        raw.mode.set(0);
        raw.links.set(0);
        raw.dtime.set(Time::now().sec.clamp(1, i64::from(u32::MAX)) as u32);
        bytes[..SHORT].copy_from_slice(raw.as_bytes());
        seal(superblock, number, bytes);
    })
}

/// How many names inode `number` has, whatever else may be wrong with it.
pub(crate) fn links(core: &Core, number: u32) -> Result<u32> {
    let (block, start) = locate(core, number)?;
    let block = core.store.read(Kind::Inodes, block, |_| Ok(()))?;
    let raw = RawInode::read_from_bytes(&block[start..start + SHORT]).expect("the size fits");
    Ok(u32::from(raw.links.get()))
}

/// The block that holds inode `number`, and where in it.
fn locate(core: &Core, number: u32) -> Result<(u64, usize)> {
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
    Ok((group.inode_table + at / superblock.block, (at % superblock.block) as usize))
}

/// Part of an operation: lets `with` change the bytes of an inode.
fn change<R>(core: &Core, number: u32, with: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
    let (block, start) = locate(core, number)?;
    let end = start + core.superblock.inode_bytes;
    core.store.change(Kind::Inodes, block, |_| Ok(()), |block| with(block.at(start..end)))
}

fn decode(superblock: &Superblock, number: u32, bytes: &[u8]) -> Result<Inode> {
    let raw = RawInode::read_from_bytes(&bytes[..SHORT]).expect("the size fits");
    if raw.mode.get() == 0 && raw.links.get() == 0 {
        return Err(Error::Stale);
    }
    let of = format_args!("{number}");
    let (extra, tail) = split_extra(superblock, &bytes[SHORT..]).map_err(|found| {
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
        tail,
    })
}

/// The fields that a large inode has, missing ones 0, and what is behind them; or the size that they cannot have.
fn split_extra(superblock: &Superblock, behind: &[u8]) -> std::result::Result<(RawExtra, Box<[u8]>), u16> {
    let Some(length) = behind.first_chunk().map(|length| u16::from_le_bytes(*length)) else {
        return Ok((RawExtra::default(), Box::default()));
    };
    let bytes = usize::from(length);
    if bytes > behind.len() || !bytes.is_multiple_of(4) {
        return Err(length);
    }
    if bytes == 0 {
        // Nobody has used that space: there is as much as in a new inode.
        let tail = vec![0; behind.len() - superblock.inode_extra_bytes];
        return Ok((RawExtra::default(), tail.into()));
    }
    let extra = extra_fields(&behind[..bytes]);
    Ok((extra, behind[bytes..].into()))
}

/// The fields that are in `bytes`, missing ones 0.
fn extra_fields(bytes: &[u8]) -> RawExtra {
    let mut whole = [0; EXTRA];
    let known = bytes.len().min(EXTRA);
    whole[..known].copy_from_slice(&bytes[..known]);
    RawExtra::read_from_bytes(&whole).expect("the size fits")
}

/// Puts an inode into its bytes of the table.
fn encode(superblock: &Superblock, inode: &Inode, bytes: &mut [u8]) -> Result<()> {
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
    raw.attributes_high.set((inode.attributes >> 32) as u16);
    raw.dtime.set(inode.next_orphan);
    let behind = &mut bytes[SHORT..];
    let extra_bytes = behind.len() - inode.tail.len();
    if behind.first_chunk() == Some(&[0, 0]) {
        behind.fill(0);
    }
    let (fields, tail) = behind.split_at_mut(extra_bytes);
    tail.copy_from_slice(&inode.tail);
    let mut extra = extra_fields(fields);
    extra.bytes.set(extra_bytes as u16);
    let wide = has_wide_times(extra_bytes);
    put_time(inode.times.access, wide, &mut raw.atime, &mut extra.atime);
    put_time(inode.times.modify, wide, &mut raw.mtime, &mut extra.mtime);
    put_time(inode.times.change, wide, &mut raw.ctime, &mut extra.ctime);
    put_time(inode.times.birth, wide, &mut extra.btime, &mut extra.btime_extra);
    let known = fields.len().min(EXTRA);
    fields[..known].copy_from_slice(&extra.as_bytes()[..known]);
    bytes[..SHORT].copy_from_slice(raw.as_bytes());
    seal(superblock, inode.number, bytes);
    Ok(())
}

/// Gives the bytes of an inode their checksum.
fn seal(superblock: &Superblock, number: u32, bytes: &mut [u8]) {
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
fn has_wide_times(extra_bytes: usize) -> bool {
    extra_bytes >= std::mem::offset_of!(RawExtra, btime)
}

/// A time as near as an inode can have it.
fn put_time(at: Time, wide: bool, seconds: &mut U32, extra: &mut U32) {
    let at = storable(at, wide);
    seconds.set(at.sec as u32);
    let above = (at.sec - i64::from(at.sec as i32)) >> 32;
    extra.set(at.nsec << 2 | above as u32 & 3);
}

fn storable(at: Time, wide: bool) -> Time {
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

    /// `caller` has changed the contents. Tells whether that changes the inode.
    pub(crate) fn rewritten(&mut self, caller: &Caller, now: Time) -> bool {
        let before = self.mode;
        self.mode = rules::mode_after_write(caller, before);
        if !caller.keeps_times {
            (self.times.modify, self.times.change) = (now, now);
        }
        !caller.keeps_times || self.mode != before
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

    /// Of a device node that is new.
    pub(crate) fn set_device(&mut self, device: u32) {
        let at = if device <= 0xFFFF { 0 } else { 4 };
        self.block[at..at + 4].copy_from_slice(&device.to_le_bytes());
    }

    /// Gives a new symbolic link its target, if that is short.
    pub(crate) fn set_fast_target(&mut self, target: &[u8]) -> bool {
        if target.len() >= BLOCK_BYTES {
            return false;
        }
        self.flags.remove(Flags::EXTENTS);
        self.block.fill(0);
        self.block[..target.len()].copy_from_slice(target);
        self.size = target.len() as u64;
        true
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
