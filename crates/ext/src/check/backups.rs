//! Backups of the superblock and of group descriptors: of use to e2fsck when the first ones are lost, if they say the same.

use disk::Purpose;

use super::Check;
use crate::core::group;
use crate::features::Incompat;
use crate::superblock::RawSuperblock;

impl Check<'_> {
    /// Compares what does not change while a file system is used: what is where. Counts in backups are old, and mean nothing.
    pub(super) fn backups(&mut self) {
        let superblock = &self.core.superblock;
        let Some(first) = self.report.note(self.core.newest_superblock()) else { return };
        for number in (1..superblock.groups).filter(|number| superblock.group_has_super(*number)) {
            let Some(block) = self.read(superblock.group_start(number)) else { continue };
            if let Some(field) =
                RawSuperblock::of_bytes(block.first_chunk().expect("the size fits")).differs(&first)
            {
                self.report.find(format!("the backup of the superblock in group {number} differs: {field}"));
            }
        }
        let per_block = superblock.block as u32 / superblock.descriptor_bytes as u32;
        for first in (0..superblock.groups).step_by(per_block as usize) {
            let blocks = self.backups_of(first, per_block);
            for block in blocks {
                self.descriptors(first, per_block, block);
            }
        }
    }

    /// Where the descriptors are once more that are in one block, from group `first` on.
    fn backups_of(&self, first: u32, per_block: u32) -> Vec<u64> {
        let superblock = &self.core.superblock;
        let number = first / per_block;
        let is_meta = superblock.features.incompat.contains(Incompat::META_BG);
        if is_meta && number >= superblock.first_meta_group {
            // In the second and the last of their groups.
            let groups =
                [first + 1, first + per_block - 1].into_iter().filter(|group| *group < superblock.groups);
            let block = |group| superblock.group_start(group) + u64::from(superblock.group_has_super(group));
            return groups.map(block).collect();
        }
        let groups = (1..superblock.groups).filter(|group| superblock.group_has_super(*group));
        groups.map(|group| superblock.group_start(group) + 1 + u64::from(number)).collect()
    }

    /// Compares a block with the descriptors of groups from `first` on.
    fn descriptors(&mut self, first: u32, per_block: u32, block: u64) {
        let superblock = &self.core.superblock;
        let Some(bytes) = self.read(block) else { return };
        for number in first..superblock.groups.min(first + per_block) {
            // What is wrong with the first ones is found elsewhere.
            let Ok(known) = group::read(self.core, number) else { continue };
            let places = |group: &group::Group| (group.blocks.block, group.inodes.block, group.inode_table);
            let backup = group::of_copy(superblock, number, &bytes);
            if backup.map(|backup| places(&backup)) != Ok(places(&known)) {
                self.report
                    .find(format!("the backup in block {block} of the descriptor of group {number} differs"));
            }
        }
    }

    pub(super) fn read(&mut self, block: u64) -> Option<Vec<u8>> {
        let superblock = &self.core.superblock;
        if !superblock.has_blocks(block, 1) {
            self.report.find(format!("block {block}, which should hold a copy of what the superblock or a descriptor says, is not on the disk"));
            return None;
        }
        let mut bytes = vec![0; superblock.block as usize];
        self.report.note(self.core.store.read_through(Purpose::Metadata, block, 0, &mut bytes))?;
        Some(bytes)
    }
}
