//! Blocks that are here, and how they are looked at.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vfs::{InoMap, Result};

use super::Kind;
use crate::error::corrupt;

/// A block's bytes, as they were when it was asked for.
#[derive(Clone)]
pub(crate) struct Block {
    number: u64,
    pub(super) bytes: Arc<[u8]>,
}

impl Block {
    pub(super) fn new(number: u64, bytes: Vec<u8>) -> Block {
        Block { number, bytes: bytes.into() }
    }

    /// Which block of the disk.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

pub(super) struct Cached {
    pub(super) kind: Kind,
    pub(super) block: Block,
    /// When it was last asked for, on the store's clock.
    pub(super) used: AtomicU64,
    /// The transaction that changed it last, or 0. Before that is [settled](super::Store::settled), its changes are nowhere else, and it is not
    /// evicted.
    pub(super) changed: u64,
    /// A bit for each sub-block that was found right in detail since the block came. What is changed here stays right.
    checked: AtomicU64,
}

impl Cached {
    pub(super) fn new(kind: Kind, block: Block, used: u64, changed: u64) -> Cached {
        Cached { kind, block, used: AtomicU64::new(used), changed, checked: AtomicU64::new(0) }
    }

    /// It is again what transaction `changed` left, which need not be what was found right since.
    pub(super) fn restored(&mut self, changed: u64) {
        (self.changed, self.checked) = (changed, AtomicU64::new(0));
    }

    /// It is asked for as a `kind`: one block is one thing.
    pub(super) fn check(&self, kind: Kind, number: u64) -> Result<()> {
        if self.kind == kind {
            return Ok(());
        }
        Err(corrupt("block", number, "its use", format!("{} and {kind}", self.kind), "one"))
    }

    /// For who looks at it, in sub-blocks of `part` bytes.
    pub(super) fn sight(&self, part: usize) -> Sight<'_> {
        Sight { bytes: &self.block, part, checked: &self.checked }
    }
}

/// A block that is looked at where it is.
pub(crate) struct Sight<'a> {
    bytes: &'a [u8],
    /// Bytes of a sub-block.
    part: usize,
    checked: &'a AtomicU64,
}

impl Sight<'_> {
    /// Has the sub-block checked that byte `at` is in, unless that was done, and it was right, since the block came.
    pub(crate) fn check(&self, at: usize, check: impl FnOnce() -> Result<()>) -> Result<()> {
        let bit = 1 << (at / self.part);
        if self.checked.load(Ordering::Relaxed) & bit == 0 {
            check()?;
            self.checked.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Deref for Sight<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// Drops the quarter that was used least recently of those blocks of a shard that are elsewhere, too: their changes are `settled`.
pub(super) fn evict(shard: &mut InoMap<u64, Cached>, settled: u64) {
    let clean = shard.values().filter(|cached| cached.changed <= settled);
    let mut times: Vec<u64> = clean.map(|cached| cached.used.load(Ordering::Relaxed)).collect();
    if times.is_empty() {
        return;
    }
    let quarter = times.len() / 4;
    let (_, limit, _) = times.select_nth_unstable(quarter);
    let limit = *limit;
    shard.retain(|_, cached| cached.changed > settled || cached.used.load(Ordering::Relaxed) > limit);
}
