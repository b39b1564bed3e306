//! Which clusters are whose: each has one owner, and the bitmaps say so.

use vfs::FileKind;

use super::Check;
use super::unused::{GROWTH, POINTER, pointers_of};
use crate::core::bitmap::Of;
use crate::core::inode::Inode;
use crate::core::{bitmap, group};
use crate::map::{self, END, Place};
use crate::superblock::Superblock;
use crate::xattr;

/// Clusters that have an owner.
pub(super) struct Claims {
    bits: Vec<u64>,
    first_block: u64,
    cluster: u64,
}

impl Claims {
    pub(super) fn new(superblock: &Superblock) -> Claims {
        let clusters = (superblock.blocks - superblock.first_block).div_ceil(superblock.cluster);
        let bits = vec![0; clusters.div_ceil(64) as usize];
        Claims { bits, first_block: superblock.first_block, cluster: superblock.cluster }
    }

    fn cluster_of(&self, block: u64) -> u64 {
        (block - self.first_block) / self.cluster
    }

    /// Takes the cluster of a block; false if somebody has it.
    fn take(&mut self, cluster: u64) -> bool {
        let Some(word) = self.bits.get_mut((cluster / 64) as usize) else { return false };
        let bit = 1 << (cluster % 64);
        let free = *word & bit == 0;
        *word |= bit;
        free
    }

    fn is_taken(&self, cluster: u64) -> bool {
        self.bits.get((cluster / 64) as usize).is_some_and(|word| word >> (cluster % 64) & 1 != 0)
    }

    pub(super) fn count(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

impl Check<'_> {
    /// Metadata that has its place: superblocks, descriptors, bitmaps, inode tables. With bigalloc they share clusters.
    pub(super) fn fixed(&mut self) {
        let superblock = &self.core.superblock;
        let table = superblock.inode_table_blocks();
        for number in 0..superblock.groups {
            // The boot block, where it is in group 0.
            let before = u64::from(superblock.block == 1024 && superblock.first_block == 0 && number == 0);
            let start = superblock.group_start(number);
            self.take_fixed(start, superblock.group_reserve(number) + before);
            let Some(group) = self.report.note(group::read(self.core, number)) else { continue };
            self.take_fixed(group.blocks.block, 1);
            self.take_fixed(group.inodes.block, 1);
            self.take_fixed(group.inode_table, table);
        }
        if let Some(block) = superblock.mmp_block {
            self.take_fixed(block, 1);
        }
    }

    fn take_fixed(&mut self, start: u64, blocks: u64) {
        for block in start..(start + blocks).min(self.core.superblock.blocks) {
            let free = self.claims.take(self.claims.cluster_of(block));
            if !free && self.core.superblock.cluster == 1 {
                self.report.find(format!("block {block} holds two structures of the file system itself"));
            }
        }
    }

    /// Takes what an inode has, and compares it with what it says that it has.
    pub(super) fn blocks(&mut self, inode: &Inode) {
        let superblock = &self.core.superblock;
        if inode.number == GROWTH {
            // Of its own it has that alone: what it leads to is claimed with the descriptors.
            self.take_of(inode, pointers_of(inode)[POINTER], &mut None);
            return;
        }
        let mut clusters = self.mapped(inode);
        if inode.attributes != 0 {
            clusters += 1;
            self.attributes(inode);
        }
        let sectors = clusters * superblock.cluster * superblock.block / 512;
        if sectors != inode.blocks {
            let (number, says) = (inode.number, inode.blocks);
            self.report.find(format!("inode {number} has {sectors} sectors and says {says}"));
        }
    }

    /// Takes the block of an inode's attributes for all who share it.
    fn attributes(&mut self, inode: &Inode) {
        let block = inode.attributes;
        if let Some((_, found)) = self.attributes.get_mut(&block) {
            *found += 1;
        } else if let Some(says) = self.report.note(xattr::owners(self.core, inode)) {
            self.attributes.insert(block, (says, 1));
            self.take_of(inode, block, &mut None);
        }
    }

    /// Blocks of attributes count the inodes that have them.
    pub(super) fn sharers(&mut self) {
        for (block, (says, found)) in std::mem::take(&mut self.attributes) {
            if says != found {
                self.report
                    .find(format!("block {block} of attributes is that of {found} inodes and says {says}"));
            }
        }
    }

    /// Takes what the map of an inode leads to, itself included; gives the clusters.
    fn mapped(&mut self, inode: &Inode) -> u64 {
        let superblock = &self.core.superblock;
        let has_map = matches!(inode.kind(), FileKind::Regular | FileKind::Directory)
            || inode.kind() == FileKind::Symlink && inode.fast_target(superblock).is_none();
        if inode.is_inline() || !has_map {
            return 0;
        }
        let mut clusters = 0;
        let mut nodes = Vec::new();
        let mut seen = std::collections::HashSet::new();
        let walked = map::nodes(self.core, inode, &mut |block| {
            nodes.push(block);
            seen.insert(block)
        });
        if self.report.note(walked).is_none() {
            return 0;
        }
        let mut last = None;
        for block in nodes {
            clusters += u64::from(self.take_of(inode, block, &mut last));
        }
        let (mut at, mut last) = (0, None);
        while at < END {
            let Some(run) = self.report.note(map::run(self.core, inode, at)) else { break };
            if let Place::Mapped(start) | Place::Unwritten(start) = run.place {
                if clusters > superblock.blocks {
                    break; // in a circle, which has been found to be taken
                }
                for block in (start..start + run.blocks)
                    .step_by(superblock.cluster as usize)
                    .chain([start + run.blocks - 1])
                {
                    clusters += u64::from(self.take_of(inode, block, &mut last));
                }
            }
            at += run.blocks;
        }
        clusters
    }

    /// Takes a block for an inode, if it is not in the cluster that it had `last`; says whether that is another one.
    fn take_of(&mut self, inode: &Inode, block: u64, last: &mut Option<u64>) -> bool {
        if !self.core.superblock.has_blocks(block, 1) {
            self.report.find(format!("inode {} has block {block}, which the disk has not", inode.number));
            return false;
        }
        let cluster = self.claims.cluster_of(block);
        if last.replace(cluster) == Some(cluster) {
            return false;
        }
        if !self.claims.take(cluster) {
            self.report.find(format!("block {block} of inode {} is somebody else's, too", inode.number));
        }
        true
    }

    /// The bitmap of a group's clusters, and its count of free ones, against what was taken.
    pub(super) fn counts_of(&mut self, number: u32) {
        let core = self.core;
        let superblock = &core.superblock;
        let Some(group) = self.report.note(group::read(core, number)) else { return };
        let Some(bits) = self.report.note(bitmap::clusters(core, &group)) else { return };
        let first = u64::from(number) * superblock.clusters_per_group;
        let all = (superblock.blocks - superblock.first_block).div_ceil(superblock.cluster);
        let here = superblock.clusters_per_group.min(all - first);
        let mut free = 0;
        for n in 0..here {
            let taken = self.claims.is_taken(first + n);
            free += u64::from(!taken);
            let Some(bits) = &bits else { continue };
            if bitmap::is_set(bits, n) != taken {
                let block = superblock.first_block + (first + n) * superblock.cluster;
                let (is, says) = if taken { ("in use", "free") } else { ("free", "in use") };
                self.report.find(format!("block {block} is {is}, and its bitmap says that it is {says}"));
            }
        }
        if let Some(bits) = &bits {
            self.padding(number, Of::Clusters, bits, here);
        }
        if free != group.free_clusters {
            self.report
                .find(format!("group {number} has {free} free clusters and says {}", group.free_clusters));
        }
    }
}
