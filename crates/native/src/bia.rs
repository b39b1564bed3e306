//! The block information area: for each Main Area block its start version, type, owner and place (HMFS §2.2).
//!
//! An entry is written when its block is allocated, *softly*: it says nothing until the block is valid, which the SIT
//! says, once a checkpoint that contains the block has been published (HMFS §3.1, §3.2). So a crash needs no undo.

use nvm::Purpose;

use zerocopy::IntoBytes;

use crate::geometry::Medium;

/// Entries that are stored at once.
const AT_ONCE: usize = 32;

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
    /// List of snapshots: its index, or a block of records.
    Snapshots = 12,
}

impl BlockKind {
    pub(crate) fn from_u8(value: u8) -> Option<BlockKind> {
        use BlockKind::*;
        [Data, Inode, Direct, Indirect, Bucket, Table, Xattr, NatEntries, NatNode, Checkpoint, Map, Snapshots]
            .into_iter()
            .find(|kind| *kind as u8 == value)
    }
}

/// A BIA entry: two words, each stored atomically.
///
/// ```text
/// word 0: bits 0–31 start version, 32–63 owner (data: inode; node: its NID; NAT: its first NID; else 0)
/// word 1: bits 0–7 kind, 8–63 place in the owner (data: block index in the file; NAT: height, 1 for entries; else 0)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) version: u32,
    pub(crate) owner: u32,
    pub(crate) kind: u8,
    pub(crate) place: u64,
}

impl Entry {
    /// The entry of `block` as it is on the medium.
    pub(crate) fn read(medium: &Medium, block: u64) -> Entry {
        let at = medium.geometry.bia_at(block);
        let (first, second) = (medium.region.load_u64(at), medium.region.load_u64(at + 8));
        Entry { version: first as u32, owner: (first >> 32) as u32, kind: second as u8, place: second >> 8 }
    }

    /// Writes this entry for `block`, as [`Entry::write_soft`] does.
    pub(crate) fn copy_soft(&self, medium: &Medium, block: u64) {
        let at = medium.geometry.bia_at(block);
        for (at, word) in [at, at + 8].into_iter().zip(self.words()) {
            medium.region.store_u64(Purpose::Allocation, at, word);
        }
    }

    /// Writes this entry for `block`, and for those up to `length` behind it with the places that follow. They were just
    /// allocated, so nobody else looks at them; as [`Entry::write_soft`] for one.
    pub(crate) fn write_run(&self, medium: &Medium, block: u64, length: u64) {
        let mut entries = [[0; 2]; AT_ONCE];
        let mut done = 0;
        while done < length {
            let count = (length - done).min(AT_ONCE as u64);
            for (place, entry) in (self.place + done..).zip(&mut entries[..count as usize]) {
                *entry = Entry { place, ..*self }.words().map(u64::to_le);
            }
            let at = medium.geometry.bia_at(block + done);
            medium.region.store(Purpose::Allocation, at, entries[..count as usize].as_bytes());
            done += count;
        }
    }

    fn words(&self) -> [u64; 2] {
        [u64::from(self.version) | u64::from(self.owner) << 32, u64::from(self.kind) | self.place << 8]
    }

    /// Writes the entry of a block just allocated. Not flushed: the checkpoint does that.
    pub(crate) fn write_soft(
        medium: &Medium,
        block: u64,
        version: u32,
        owner: u32,
        kind: BlockKind,
        place: u64,
    ) {
        Entry { version, owner, kind: kind as u8, place }.copy_soft(medium, block);
    }
}

/// Whether a block of this kind is named by a NID.
pub(crate) fn is_node(kind: u8) -> bool {
    use BlockKind::{Bucket, Direct, Indirect, Inode, Map, Table, Xattr};
    matches!(BlockKind::from_u8(kind), Some(Inode | Direct | Indirect | Bucket | Table | Xattr | Map))
}
