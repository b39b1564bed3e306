//! The block information area: for each Main Area block its start version, type, owner and valid bit (HMFS §2.2).
//!
//! An entry is written *softly* when its block is allocated: everything but the valid bit. The bit is set when a
//! checkpoint that contains the block has been published (HMFS §3.1, §3.2), so an entry whose block was allocated
//! after the newest checkpoint says nothing yet, and a crash needs no undo.

use nvm::Purpose;

use crate::geometry::{BIA_ENTRY, Medium, SEGMENT_BLOCKS};

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BlockKind {
    /// Bytes of a file.
    Data = 1,
    /// Inodes.
    Inode = 2,
    /// Pointers to data blocks.
    Direct = 3,
    /// NIDs of direct or indirect nodes.
    Indirect = 4,
    /// Entries of a large directory.
    Bucket = 5,
    /// NIDs of buckets or tables.
    Table = 6,
    /// Extended attributes.
    Xattr = 7,
    /// Leaf of the NAT index tree.
    NatEntries = 8,
    /// Inner node of the NAT index tree.
    NatNode = 9,
    /// Checkpoint.
    Checkpoint = 10,
    /// What a file has beyond its first blocks: pointers to data, NIDs of direct and indirect nodes.
    Map = 11,
}

impl BlockKind {
    pub(crate) fn from_u8(value: u8) -> Option<BlockKind> {
        use BlockKind::*;
        [Data, Inode, Direct, Indirect, Bucket, Table, Xattr, NatEntries, NatNode, Checkpoint, Map]
            .into_iter()
            .find(|kind| *kind as u8 == value)
    }
}

/// A BIA entry: two words, each stored atomically.
///
/// ```text
/// word 0: bits 0–31 start version, 32–63 owner (NID)
/// word 1: bit 0 valid, 1–7 kind, 8–63 place in the owner (data: block index in the file; else 0)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) version: u32,
    pub(crate) owner: u32,
    pub(crate) kind: u8,
    pub(crate) valid: bool,
    pub(crate) place: u64,
}

impl Entry {
    /// The entry of `block` as it is on the medium.
    pub(crate) fn read(medium: &Medium, block: u64) -> Entry {
        let at = medium.geometry.bia_at(block);
        let (first, second) = (medium.region.load_u64(at), medium.region.load_u64(at + 8));
        Entry {
            version: first as u32,
            owner: (first >> 32) as u32,
            valid: second & 1 == 1,
            kind: ((second >> 1) & 0x7f) as u8,
            place: second >> 8,
        }
    }

    /// Writes the entry of a block just allocated: all but the valid bit. Not flushed: the checkpoint does that.
    pub(crate) fn write_soft(
        medium: &Medium,
        block: u64,
        version: u32,
        owner: u32,
        kind: BlockKind,
        place: u64,
    ) {
        let at = medium.geometry.bia_at(block);
        let region = &medium.region;
        region.store_u64(Purpose::Allocation, at, u64::from(version) | u64::from(owner) << 32);
        region.store_u64(Purpose::Allocation, at + 8, u64::from(kind as u8) << 1 | place << 8);
    }

    /// Sets or clears the valid bit of `block`. Not flushed.
    pub(crate) fn set_valid(medium: &Medium, block: u64, valid: bool) {
        let at = medium.geometry.bia_at(block) + 8;
        let word = medium.region.load_u64(at);
        if (word & 1 == 1) != valid {
            medium.region.store_u64(Purpose::Allocation, at, word & !1 | u64::from(valid));
        }
    }
}

/// A bit for each block of a segment.
pub(crate) type Bitmap = [u64; (SEGMENT_BLOCKS / 64) as usize];

/// The valid bits of a segment, gathered from its 512 entries.
pub(crate) fn valid_bits(medium: &Medium, segment: u32) -> Bitmap {
    let at = medium.geometry.bia_at(medium.geometry.segment_start(segment));
    let entries = medium.region.bytes(at, (SEGMENT_BLOCKS * BIA_ENTRY) as usize);
    let mut bits = [0; (SEGMENT_BLOCKS / 64) as usize];
    for (index, entry) in entries.chunks_exact(BIA_ENTRY as usize).enumerate() {
        bits[index / 64] |= u64::from(entry[8] & 1) << (index % 64);
    }
    bits
}

/// How many bits are set.
pub(crate) fn count(bits: &Bitmap) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// The indices of the bits that are set, ascending.
pub(crate) fn ones(bits: &Bitmap) -> impl Iterator<Item = usize> + '_ {
    bits.iter().enumerate().flat_map(|(index, word)| {
        let mut left = *word;
        std::iter::from_fn(move || {
            (left != 0).then(|| {
                let bit = left.trailing_zeros() as usize;
                left &= left - 1;
                index * 64 + bit
            })
        })
    })
}
