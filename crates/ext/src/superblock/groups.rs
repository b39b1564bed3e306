//! Where groups begin, and which blocks at their start are not a file's.

use super::{AT, Superblock};
use crate::features::{Compat, Incompat, RoCompat};

impl Superblock {
    /// Bytes of a sub-block: those of an inode, but a 64th of a block at least.
    pub(crate) fn part(&self) -> u64 {
        (self.inode_bytes as u64).max(self.block / 64)
    }

    /// The first block of a group.
    pub(crate) fn group_start(&self, group: u32) -> u64 {
        self.first_block + u64::from(group) * self.blocks_per_group
    }

    /// The first block of the group that has inode `number`.
    pub(crate) fn group_of_inode_start(&self, number: u32) -> u64 {
        self.group_start(number.saturating_sub(1) / self.inodes_per_group)
    }

    /// Whether a group begins with a superblock or a backup of it.
    pub(crate) fn group_has_super(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.features.compat.contains(Compat::SPARSE_SUPER2) {
            return self.backup_groups.contains(&group);
        }
        if group == 1 || !self.features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            return true;
        }
        let is_power_of = |base: u32| {
            let mut rest = group;
            while rest.is_multiple_of(base) {
                rest /= base;
            }
            rest == 1
        };
        [3, 5, 7].into_iter().any(is_power_of)
    }

    /// Blocks at a group's start for superblock and descriptors, those reserved for more included.
    pub(crate) fn group_reserve(&self, group: u32) -> u64 {
        let per_block = self.block as u32 / self.descriptor_bytes as u32;
        let meta = self.features.incompat.contains(Incompat::META_BG);
        let super_block = u64::from(self.group_has_super(group));
        if meta && group / per_block >= self.first_meta_group {
            let within = group % per_block;
            return super_block + u64::from(within < 2 || within == per_block - 1);
        }
        let all = self.groups.div_ceil(per_block);
        let descriptors = u64::from(if meta { self.first_meta_group.min(all) } else { all });
        super_block * (1 + descriptors + self.reserved_descriptor_blocks)
    }

    /// Bytes of metadata whose place is fixed: the superblock, descriptors, bitmaps, inode tables; without backups.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        let table = (u64::from(self.inodes_per_group) * self.inode_bytes as u64).next_multiple_of(self.block);
        let descriptors =
            (u64::from(self.groups) * self.descriptor_bytes as u64).next_multiple_of(self.block);
        self.block + descriptors + u64::from(self.groups) * (table + 2 * self.block)
    }

    /// How many descriptors a block has, as a power of two: so are both their sizes.
    pub(crate) fn descriptors_log2(&self) -> u32 {
        self.block.trailing_zeros() - self.descriptor_bytes.trailing_zeros()
    }

    /// Blocks that the inodes of a group take.
    pub(crate) fn inode_table_blocks(&self) -> u64 {
        let bytes = u64::from(self.inodes_per_group) * self.inode_bytes as u64;
        (bytes + self.block - 1) >> self.block.trailing_zeros()
    }

    /// The block that holds the descriptor of a group.
    pub(crate) fn descriptor_block(&self, group: u32) -> u64 {
        let number = group >> self.descriptors_log2();
        let meta = self.features.incompat.contains(Incompat::META_BG);
        if !meta || number < self.first_meta_group {
            return (AT >> self.block.trailing_zeros()) + 1 + u64::from(number);
        }
        let first = number << self.descriptors_log2();
        // With 1 KiB blocks and block 0 in group 0, the superblock is the group's second block.
        let shifted = self.block == 1024 && number == 0 && self.first_block == 0;
        self.group_start(first) + u64::from(self.group_has_super(first)) + u64::from(shifted)
    }
}
