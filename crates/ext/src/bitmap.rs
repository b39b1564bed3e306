//! Bitmaps: which clusters and inodes of a group are in use.

use vfs::Result;

use crate::checksum::crc32c;
use crate::core::Core;
use crate::error::corrupt;
use crate::group::{Bitmap, Group};
use crate::store::{Block, Kind};

/// The bitmap of clusters of a group, verified; nothing if nobody has written it.
pub(crate) fn clusters(core: &Core, group: &Group) -> Result<Option<Block>> {
    read(core, &group.blocks, core.superblock.clusters_per_group)
}

/// The bitmap of inodes of a group, verified; nothing if nobody has written it.
pub(crate) fn inodes(core: &Core, group: &Group) -> Result<Option<Block>> {
    read(core, &group.inodes, u64::from(core.superblock.inodes_per_group))
}

fn read(core: &Core, bitmap: &Bitmap, bits: u64) -> Result<Option<Block>> {
    if bitmap.unused {
        return Ok(None);
    }
    let superblock = &core.superblock;
    let verify = |bytes: &[u8]| {
        if !superblock.features.has_metadata_csum() {
            return Ok(());
        }
        let sum = crc32c(superblock.checksum_seed, &bytes[..(bits / 8) as usize]);
        // Short descriptors have room for half of it.
        let expected = if superblock.descriptor_bytes >= 64 { sum } else { sum & 0xFFFF };
        if bitmap.checksum == expected {
            return Ok(());
        }
        let found = format_args!("{:#x}", bitmap.checksum);
        Err(corrupt(
            "bitmap",
            format_args!("block {}", bitmap.block),
            "its checksum",
            found,
            format_args!("{expected:#x}"),
        ))
    };
    core.store.read(Kind::Bitmap, bitmap.block, verify).map(Some)
}

/// Bit `n`.
pub(crate) fn is_set(bytes: &[u8], n: u64) -> bool {
    bytes[(n / 8) as usize] >> (n % 8) & 1 != 0
}
