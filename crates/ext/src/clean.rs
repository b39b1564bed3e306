//! Blocks of files as the disk has them, in DRAM, for who uses a volume where no page cache of the kernel's is above it.
//!
//! **What is here of a block is what the disk has of it**, or, where the disk refuses it, its frame ([`crate::home::Frames`]). So it lies below pages
//! ([`crate::pages`]), which are newer, and below maps: what is unwritten is not looked for here. Two put blocks here:
//!
//! - Who reads the disk, while he holds the lock of the file that has the block: nobody changes the block meanwhile, since who does so has a
//!   page of it first, and nobody gives it to another file.
//! - Who writes to the disk ([`crate::writer`]), one at a time: what the disk has taken. What it has not is forgotten.
//!
//! A block that is freed stays until it is not missed: before its next file reads it, that file has written it. What stays is the library's to choose
//! (Clock-Pro: what is read once does not drive out what is read often; but what was read ahead and is then asked for counts as read twice, so a
//! large file that is read in smaller pieces than that does).

use std::hash::BuildHasherDefault;
use std::sync::Arc;

use quick_cache::sync::{Cache, DefaultLifecycle};
use vfs::InoHasher;

/// DRAM that a block takes beside its bytes, about: its entry, its place in the table, its counts.
const ENTRY: u64 = 96;

#[derive(Clone)]
struct Weighter;

impl quick_cache::Weighter<u64, Arc<[u8]>> for Weighter {
    fn weight(&self, _: &u64, bytes: &Arc<[u8]>) -> u64 {
        bytes.len() as u64 + ENTRY
    }
}

type Blocks = Cache<u64, Arc<[u8]>, Weighter, BuildHasherDefault<InoHasher>>;

/// The blocks; none at all if there is no room for any.
#[derive(Default)]
pub(crate) struct Clean(Option<Blocks>);

/// What there is of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// DRAM that it may take, bytes; and that it takes.
    pub(crate) limit_bytes: u64,
    pub(crate) bytes: u64,
    /// Blocks that were asked for and there; and not there.
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

impl Clean {
    /// With room for `bytes` of blocks of `block` bytes.
    pub(crate) fn new(bytes: u64, block: u64) -> Clean {
        let count = bytes / (block + ENTRY);
        let blocks = || {
            let lifecycle = DefaultLifecycle::default();
            Cache::with(count as usize, bytes, Weighter, BuildHasherDefault::default(), lifecycle)
        };
        Clean((count > 0).then(blocks))
    }

    /// Whether there is room for anything.
    pub(crate) fn has_room(&self) -> bool {
        self.0.is_some()
    }

    /// DRAM that it may take, bytes.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, Cache::capacity)
    }

    pub(crate) fn get(&self, block: u64) -> Option<Arc<[u8]>> {
        self.0.as_ref()?.get(&block)
    }

    /// Whether a block is here, without asking for it.
    pub(crate) fn has(&self, block: u64) -> bool {
        self.0.as_ref().is_some_and(|blocks| blocks.contains_key(&block))
    }

    /// The disk has these bytes of a block.
    pub(crate) fn put(&self, block: u64, bytes: &[u8]) {
        if let Some(blocks) = &self.0 {
            blocks.insert(block, bytes.into());
        }
    }

    /// It is not certain what the disk has of a block.
    pub(crate) fn forget(&self, block: u64) {
        if let Some(blocks) = &self.0 {
            blocks.remove(&block);
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.0.as_ref().map_or_else(Counts::default, |blocks| Counts {
            limit_bytes: blocks.capacity(),
            bytes: blocks.weight(),
            hits: blocks.hits(),
            misses: blocks.misses(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_stay_within_their_room() {
        let clean = Clean::new(1 << 20, 4096);
        for block in 0..10_000 {
            clean.put(block, &[block as u8; 4096]);
        }
        let bytes = clean.counts().bytes;
        assert!(bytes <= 1 << 20 && bytes > 1 << 19, "{bytes}");
        clean.put(7, &[1; 4096]);
        clean.put(7, &[2; 4096]);
        assert_eq!(clean.get(7).unwrap()[..], [2; 4096]);
        clean.forget(7);
        assert!(clean.get(7).is_none() && !clean.has(7));
        assert_eq!((clean.counts().hits, clean.counts().misses), (1, 1));
    }

    #[test]
    fn without_room_nothing_is_kept() {
        let clean = Clean::new(4096, 4096);
        clean.put(1, &[1; 4096]);
        assert!(!clean.has_room() && clean.get(1).is_none());
        assert_eq!(clean.counts(), Counts::default());
    }
}
