//! What nobody uses: ends of bitmaps, removed inodes, and the blocks that are kept for more descriptors. The kernel does not mind it; e2fsck does,
//! and a disk on which that finds something is not clean.

use vfs::FileKind;

use super::Check;
use crate::core::bitmap::{self, Of};
use crate::core::inode::{self, Inode};
use crate::features::Compat;
use crate::store::Block;

/// The inode whose map leads to the blocks that are kept for more descriptors, so that the file system can grow.
pub(super) const GROWTH: u32 = 7;
/// Its only pointer: to pointers to pointers, the 14th of 15.
pub(super) const POINTER: usize = 13;

impl Check<'_> {
    /// Bits behind those that mean something, the first of which is `behind`, are set.
    pub(super) fn padding(&mut self, number: u32, of: Of, bits: &Block, behind: u64) {
        let end = bits.len() as u64 * 8;
        if bitmap::find(|n| bitmap::word(bits, n), false, behind, end) < end {
            let of = if of == Of::Inodes { "inodes" } else { "blocks" };
            self.report
                .find(format!("group {number}: not all bits behind the end of its bitmap of {of} are set"));
        }
    }

    /// An inode that is not in use, in the part of the table that was: links that it has, when it was removed, its checksum.
    pub(super) fn left_over(&mut self, number: u32) {
        let Some(left) = self.report.note(inode::remains(self.core, number)) else { return };
        if left.links > 0 {
            let links = left.links;
            self.report
                .find(format!("inode {number} has {links} links, and its bitmap says that it is free"));
        } else if left.is_timeless && !self.orphans.contains(&number) {
            self.report.find(format!("inode {number} was removed, and does not say when"));
        }
        self.sealed(number, &left);
    }

    /// The checksum of an inode that holds nothing.
    pub(super) fn sealed(&mut self, number: u32, left: &inode::Remains) {
        if !left.is_sealed {
            self.report.find(format!("inode {number}, which is not in use, has a wrong checksum"));
        }
    }

    /// The map for growth leads to the blocks behind the descriptors, and each of these to its copies.
    pub(super) fn growth(&mut self) {
        let superblock = &self.core.superblock;
        let found = inode::read(self.core, GROWTH);
        if !superblock.features.compat.contains(Compat::RESIZE_INODE) {
            if found.is_ok() {
                self.report
                    .find(format!("inode {GROWTH} is in use, and the file system is not made to grow"));
            }
            return;
        }
        let is_valid = match found {
            Ok(inode) if inode.kind() == FileKind::Regular && inode.links == 1 => {
                let words = pointers_of(&inode);
                let is_only = words.iter().enumerate().all(|(n, word)| (n == POINTER) == (*word != 0));
                is_only && self.leads_to_descriptors(words[POINTER])
            }
            _ => false,
        };
        if !is_valid {
            self.report.find(format!(
                "inode {GROWTH} does not lead to the blocks that are kept for more descriptors"
            ));
        }
    }

    fn leads_to_descriptors(&mut self, pointers: u64) -> bool {
        let superblock = &self.core.superblock;
        let descriptors = u64::from(superblock.groups).div_ceil(1 << superblock.descriptors_log2());
        let first = superblock.descriptor_block(0) + descriptors;
        let per_block = superblock.block / 4;
        let Some(all) = self.pointers(pointers) else { return false };
        for n in 0..superblock.reserved_descriptor_blocks {
            let block = first + n;
            if all.get(((descriptors + n) % per_block) as usize) != Some(&block) {
                return false;
            }
            let Some(copies) = self.pointers(block) else { return false };
            let with_copy = (1..superblock.groups).filter(|group| superblock.group_has_super(*group));
            let expected = with_copy.map(|group| block + u64::from(group) * superblock.blocks_per_group);
            if !expected.zip(copies).all(|(expected, copy)| expected == copy) {
                return false;
            }
        }
        true
    }

    fn pointers(&mut self, block: u64) -> Option<Vec<u64>> {
        let bytes = self.read(block)?;
        Some(numbers(&bytes))
    }
}

/// The pointers that an inode has itself.
pub(super) fn pointers_of(inode: &Inode) -> Vec<u64> {
    numbers(&inode.block)
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u64::from(u32::from_le_bytes(*word))).collect()
}
