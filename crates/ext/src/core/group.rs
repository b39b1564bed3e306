//! Group descriptors: where each group's bitmaps and inodes are.

use std::ops::Range;

use vfs::Result;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum::{crc16, crc32c};
use crate::core::Core;
use crate::error::corrupt;
use crate::features::RoCompat;
use crate::store::Kind;
use crate::superblock::Superblock;

/// Of `flags`: no inode was ever used; the bitmap of inodes was never written.
const INODES_UNINITIALISED: u16 = 1;
/// Of `flags`: the bitmap of blocks was never written: the group holds what it was made with.
const BLOCKS_UNINITIALISED: u16 = 2;
const CHECKSUM_AT: usize = 0x1E;
/// Bytes of a descriptor without `64bit`.
const SHORT: usize = 32;

#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawGroup {
    block_bitmap_low: U32,
    inode_bitmap_low: U32,
    inode_table_low: U32,
    free_blocks_low: U16,
    free_inodes_low: U16,
    directories_low: U16,
    flags: U16,
    exclude_bitmap_low: U32,
    block_bitmap_checksum_low: U16,
    inode_bitmap_checksum_low: U16,
    unused_inodes_low: U16,
    checksum: U16,
    block_bitmap_high: U32,
    inode_bitmap_high: U32,
    inode_table_high: U32,
    free_blocks_high: U16,
    free_inodes_high: U16,
    directories_high: U16,
    unused_inodes_high: U16,
    exclude_bitmap_high: U32,
    block_bitmap_checksum_high: U16,
    inode_bitmap_checksum_high: U16,
    reserved: U32,
}
const _: () = assert!(size_of::<RawGroup>() == 64);
const _: () = assert!(std::mem::offset_of!(RawGroup, checksum) == CHECKSUM_AT);

/// A bitmap of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bitmap {
    pub(crate) block: u64,
    /// Nobody has written it.
    pub(crate) unused: bool,
    /// Of its bytes, as many bits as descriptors have room for.
    pub(crate) checksum: u32,
}

/// A group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) blocks: Bitmap,
    pub(crate) inodes: Bitmap,
    pub(crate) directories: u32,
    /// Inodes at the end of the table that were never used.
    pub(crate) unused_inodes: u32,
    /// First block of its inodes.
    pub(crate) inode_table: u64,
    /// Free clusters.
    pub(crate) free_clusters: u64,
    pub(crate) free_inodes: u32,
}

/// The descriptor of group `number`, which there is.
pub(crate) fn read(core: &Core, number: u32) -> Result<Group> {
    let superblock = &core.superblock;
    let at = locate(superblock, number)?;
    core.store.look(Kind::Descriptors, at.block, verify(core, at.first), |block| {
        core.met.check_group(number)?;
        decode(superblock, number, &block[at.bytes.clone()])
    })
}

/// The block where the inodes of group `number` begin; nothing if none of them was ever used.
pub(crate) fn inode_table(core: &Core, number: u32) -> Result<Option<u64>> {
    core.met.check_group(number)?;
    if let Some(known) = core.tables.get(number) {
        return Ok(Some(known));
    }
    let superblock = &core.superblock;
    let at = locate(superblock, number)?;
    core.store.look(Kind::Descriptors, at.block, verify(core, at.first), |block| {
        core.met.check_group(number)?;
        let raw = RawGroup::of(&block[at.bytes.clone()]);
        let table = raw.inode_table(superblock, number)?;
        if raw.has_flag(superblock, INODES_UNINITIALISED) {
            return Ok(None);
        }
        core.tables.set(number, table);
        Ok(Some(table))
    })
}

/// What a copy of the block that holds the descriptor of group `number` says of it.
pub(crate) fn of_copy(superblock: &Superblock, number: u32, block: &[u8]) -> Result<Group> {
    decode(superblock, number, &block[locate(superblock, number)?.bytes])
}

/// Part of an operation: writes the descriptor of group `number`, which has been read, but for where things are, which does not change.
pub(crate) fn write(core: &Core, number: u32, group: &Group) -> Result<()> {
    let superblock = &core.superblock;
    let at = locate(superblock, number)?;
    core.store.change(Kind::Descriptors, at.block, verify(core, at.first), |block| {
        encode(superblock, number, group, block.at(at.bytes));
    })
}

/// Where a descriptor is.
struct Location {
    block: u64,
    /// The group of the first descriptor in the block.
    first: u32,
    bytes: Range<usize>,
}

fn locate(superblock: &Superblock, number: u32) -> Result<Location> {
    let block = superblock.descriptor_block(number);
    if block >= superblock.blocks {
        return Err(corrupt(
            "descriptor",
            format_args!("group {number}"),
            "its block",
            block,
            "one of the disk's",
        ));
    }
    let first = number >> superblock.descriptors_log2() << superblock.descriptors_log2();
    let start = (number - first) as usize * superblock.descriptor_bytes;
    Ok(Location { block, first, bytes: start..start + superblock.descriptor_bytes })
}

/// What sees a block of descriptors, the first of which is of group `first`: a group is out if the checksum of its descriptor is wrong, and the others
/// are what they are.
fn verify(core: &Core, first: u32) -> impl Fn(&[u8]) -> Result<()> {
    move |block| {
        let superblock = &core.superblock;
        for (number, bytes) in (first..superblock.groups).zip(block.chunks_exact(superblock.descriptor_bytes))
        {
            if let Err(error) = verify_one(superblock, number, bytes) {
                core.met.damaged_group(number, error);
            }
        }
        Ok(())
    }
}

fn verify_one(superblock: &Superblock, number: u32, bytes: &[u8]) -> Result<()> {
    let found = u16::from_le_bytes([bytes[CHECKSUM_AT], bytes[CHECKSUM_AT + 1]]);
    match checksum(superblock, number, bytes) {
        Some(expected) if expected != found => {
            let of = format_args!("group {number}");
            let (found, expected) = (format_args!("{found:#x}"), format_args!("{expected:#x}"));
            Err(corrupt("descriptor", of, "its checksum", found, expected))
        }
        _ => Ok(()),
    }
}

/// The checksum that a descriptor should have, if they have any.
fn checksum(superblock: &Superblock, number: u32, bytes: &[u8]) -> Option<u16> {
    let number = number.to_le_bytes();
    let (before, behind) = (&bytes[..CHECKSUM_AT], &bytes[CHECKSUM_AT + 2..]);
    if superblock.features.has_metadata_csum() {
        // Zeros for the checksum itself.
        let mut first = [0; 4 + CHECKSUM_AT + 2];
        first[..4].copy_from_slice(&number);
        first[4..4 + CHECKSUM_AT].copy_from_slice(before);
        Some(crc32c(crc32c(superblock.checksum_seed, &first), behind) as u16)
    } else if superblock.features.ro_compat.contains(RoCompat::GDT_CSUM) {
        let sum = [&superblock.uuid[..], &number, before, behind];
        Some(sum.iter().fold(!0, |sum, part| crc16(sum, part)))
    } else {
        None
    }
}

/// Whether descriptors say what was never used.
fn has_flags(superblock: &Superblock) -> bool {
    superblock.features.ro_compat.intersects(RoCompat::GDT_CSUM | RoCompat::METADATA_CSUM)
}

impl RawGroup {
    /// As far as a descriptor goes.
    fn of(bytes: &[u8]) -> RawGroup {
        let mut whole = [0; size_of::<RawGroup>()];
        let known = bytes.len().min(whole.len());
        whole[..known].copy_from_slice(&bytes[..known]);
        RawGroup::read_from_bytes(&whole).expect("the size fits")
    }

    fn inode_table(&self, superblock: &Superblock, number: u32) -> Result<u64> {
        let table = join(superblock, self.inode_table_low, self.inode_table_high);
        if superblock.has_blocks(table, superblock.inode_table_blocks()) {
            return Ok(table);
        }
        let of = format_args!("group {number}");
        Err(corrupt("descriptor", of, "its inode table", table, "blocks of the disk"))
    }

    fn has_flag(&self, superblock: &Superblock, flag: u16) -> bool {
        has_flags(superblock) && self.flags.get() & flag != 0
    }
}

/// A number of a block.
fn join(superblock: &Superblock, low: U32, high: U32) -> u64 {
    let wide = superblock.descriptor_bytes > SHORT;
    u64::from(low.get()) | if wide { u64::from(high.get()) << 32 } else { 0 }
}

fn decode(superblock: &Superblock, number: u32, bytes: &[u8]) -> Result<Group> {
    let raw = RawGroup::of(bytes);
    let wide = superblock.descriptor_bytes > SHORT;
    let count =
        |low: U16, high: U16| u32::from(low.get()) | if wide { u32::from(high.get()) << 16 } else { 0 };
    let inode_table = raw.inode_table(superblock, number)?;
    let of = format_args!("group {number}");
    let free_clusters = u64::from(count(raw.free_blocks_low, raw.free_blocks_high));
    let free_inodes = count(raw.free_inodes_low, raw.free_inodes_high);
    if free_clusters > superblock.clusters_per_group || free_inodes > superblock.inodes_per_group {
        let found = format_args!("{free_clusters} and {free_inodes}");
        return Err(corrupt(
            "descriptor",
            of,
            "its free clusters and inodes",
            found,
            "as many as a group has, or fewer",
        ));
    }
    let bitmap = |low, high, flag, checksum_low, checksum_high| {
        let (block, unused) = (join(superblock, low, high), raw.has_flag(superblock, flag));
        if !superblock.has_blocks(block, 1) {
            return Err(corrupt("descriptor", of, "a bitmap's block", block, "one of the disk's"));
        }
        Ok(Bitmap { block, unused, checksum: count(checksum_low, checksum_high) })
    };
    Ok(Group {
        blocks: bitmap(
            raw.block_bitmap_low,
            raw.block_bitmap_high,
            BLOCKS_UNINITIALISED,
            raw.block_bitmap_checksum_low,
            raw.block_bitmap_checksum_high,
        )?,
        inodes: bitmap(
            raw.inode_bitmap_low,
            raw.inode_bitmap_high,
            INODES_UNINITIALISED,
            raw.inode_bitmap_checksum_low,
            raw.inode_bitmap_checksum_high,
        )?,
        directories: count(raw.directories_low, raw.directories_high),
        unused_inodes: if has_flags(superblock) {
            count(raw.unused_inodes_low, raw.unused_inodes_high).min(superblock.inodes_per_group)
        } else {
            0
        },
        inode_table,
        free_clusters,
        free_inodes,
    })
}

/// Puts what changes of a group into its descriptor. What a descriptor has no room for is left out.
fn encode(superblock: &Superblock, number: u32, group: &Group, bytes: &mut [u8]) {
    let mut raw = RawGroup::of(bytes);
    let known = bytes.len().min(size_of::<RawGroup>());
    let split = |value: u32, low: &mut U16, high: &mut U16| {
        low.set(value as u16);
        high.set((value >> 16) as u16);
    };
    split(group.free_clusters as u32, &mut raw.free_blocks_low, &mut raw.free_blocks_high);
    split(group.free_inodes, &mut raw.free_inodes_low, &mut raw.free_inodes_high);
    split(group.directories, &mut raw.directories_low, &mut raw.directories_high);
    if has_flags(superblock) {
        split(group.unused_inodes, &mut raw.unused_inodes_low, &mut raw.unused_inodes_high);
        let flag = |set: bool, flag: u16| if set { flag } else { 0 };
        let others = raw.flags.get() & !(BLOCKS_UNINITIALISED | INODES_UNINITIALISED);
        let unused =
            flag(group.blocks.unused, BLOCKS_UNINITIALISED) | flag(group.inodes.unused, INODES_UNINITIALISED);
        raw.flags.set(others | unused);
    }
    if superblock.features.has_metadata_csum() {
        let (blocks, inodes) = (group.blocks.checksum, group.inodes.checksum);
        split(blocks, &mut raw.block_bitmap_checksum_low, &mut raw.block_bitmap_checksum_high);
        split(inodes, &mut raw.inode_bitmap_checksum_low, &mut raw.inode_bitmap_checksum_high);
    }
    bytes[..known].copy_from_slice(&raw.as_bytes()[..known]);
    if let Some(checksum) = checksum(superblock, number, bytes) {
        bytes[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&checksum.to_le_bytes());
    }
}
