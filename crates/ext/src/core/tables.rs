//! Where groups have their inodes: that is fixed (FSMAC III.B), and asked for with every inode that is read or written. So it is remembered, once
//! a descriptor has said it.

use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::FromZeros;

/// For each group the first block of its inodes, or 0 while that is not known; of none, if there is no memory for so many.
pub(crate) struct Tables(Box<[AtomicU64]>);

impl Tables {
    /// A superblock may say that there are 2^29 groups, which is not to cost anything before they are asked for: zeros come from the system.
    pub(crate) fn new(groups: u32) -> Tables {
        Tables(<[AtomicU64]>::new_box_zeroed_with_elems(groups as usize).unwrap_or_default())
    }

    pub(crate) fn get(&self, group: u32) -> Option<u64> {
        let block = self.0.get(group as usize)?.load(Ordering::Relaxed);
        (block != 0).then_some(block)
    }

    /// Remembers that a group whose inodes are in use has them there.
    pub(crate) fn set(&self, group: u32, block: u64) {
        if let Some(known) = self.0.get(group as usize) {
            known.store(block, Ordering::Relaxed);
        }
    }

    /// The group's inodes are not in use after all: the operation that began them has not been.
    pub(crate) fn forget(&self, group: u32) {
        self.set(group, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of memory that this process has.
    fn resident() -> u64 {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    #[test]
    fn groups_that_nobody_asks_for_take_no_memory() {
        const GROUPS: u32 = 1 << 27;
        let before = resident();
        let tables = Tables::new(GROUPS);
        if tables.0.is_empty() {
            eprintln!("LEFT OUT: there is no address space for {GROUPS} groups");
            return;
        }
        for group in [0, 77, GROUPS - 1] {
            assert_eq!(tables.get(group), None);
            tables.set(group, 5);
            assert_eq!(tables.get(group), Some(5));
            tables.forget(group);
            assert_eq!(tables.get(group), None);
        }
        tables.set(GROUPS, 5);
        assert_eq!(tables.get(GROUPS), None, "there is none");
        assert!(resident() < before + (u64::from(GROUPS) * 8 / 2));
    }
}
