//! Hints on large directories: where a look-up will probably go, asked for before it gets there.

use nvm::LINE;

use crate::bia::BlockKind;
use crate::geometry::BLOCK;
use crate::hints::{self, Hint};
use crate::inode::{Inode, SLOT, nid_of, slot_of};
use crate::node::View;
use crate::page::{self, KEY_BITS};
use crate::reader::Reader;

/// Directories with more entries than this have outgrown the caches, and have hints.
const HINTED: u64 = 1 << 15;

/// Under what hints on an entry of a large directory are noted: that on its inode, and that on its bucket.
#[derive(Clone, Copy)]
pub(super) struct Hashes {
    pub(super) inode: u64,
    pub(super) bucket: u64,
}

impl Hashes {
    /// `None` for a directory that needs no hints, or of which there are none.
    #[inline]
    pub(super) fn of(nodes: &Reader, dir: Inode<'_>, key: u64) -> Option<Hashes> {
        let entries = dir.derived().entries.get();
        if entries < HINTED || nodes.inode_hints.is_none() {
            return None;
        }
        // As many bits as tell buckets of 32 to 64 names apart: no more than a bucket's own, mostly.
        let upper = key >> (KEY_BITS - (entries >> 5).ilog2().min(32));
        Some(Hashes { inode: key >> 8 ^ hints::hash(dir.ino, 0), bucket: hints::hash(dir.ino, upper) })
    }
}

/// Asks for what the hint on an entry says that a look at its inode will need.
#[inline]
pub(super) fn ask_for_inode(nodes: &Reader, hashes: Hashes) {
    let Some(hint) = nodes.inode_hints.get(hashes.inode) else { return };
    let slot = (slot_of(hint.number) * SLOT) as u64;
    let ask = |block: u64| {
        let lines = [0, slot, slot + LINE];
        lines.into_iter().for_each(|line| nodes.medium.region.prefetch(block * BLOCK + line));
    };
    if nodes.medium.geometry.in_main(hint.block) {
        ask(hint.block);
    }
    // Nothing waits for this look: it has the line of the NAT come, too.
    match nodes.nat.verified(nid_of(hint.number)) {
        Some((_, _, block)) if block != hint.block => ask(block),
        _ => {}
    }
}

/// The bucket that a hint names, of which what a look-up needs first is asked for.
///
/// What is found in it is the directory's: a bucket in the NAT that belongs to a directory is in its trie. What is not found
/// there may be in another.
#[inline]
pub(super) fn hinted<'a>(nodes: &'a Reader, dir: Inode<'_>, hashes: Hashes) -> Option<(u32, View<'a>)> {
    let hint = nodes.bucket_hints.get(hashes.bucket)?;
    if nodes.medium.geometry.in_main(hint.block) {
        ask_for_bucket(nodes, hint.block);
    }
    let (_, _, block) = nodes.nat.verified(hint.number)?;
    let view = View::of(&nodes.medium, block);
    let header = view.header();
    (header.kind == BlockKind::Bucket as u8 && header.owner.get() == dir.ino).then_some((hint.number, view))
}

#[inline]
pub(super) fn ask_for_bucket(nodes: &Reader, block: u64) {
    (0..page::FIRST_LINES).for_each(|line| nodes.medium.region.prefetch(block * BLOCK + line * LINE));
}

/// Notes in which bucket the entry `key` of a large directory is or would be.
#[inline]
pub(super) fn note_bucket(nodes: &Reader, hashes: Hashes, bucket: u32, view: View<'_>) {
    let hint = Hint { number: bucket, block: view.block };
    if nodes.bucket_hints.get(hashes.bucket) != Some(hint) {
        nodes.bucket_hints.set(hashes.bucket, &hint);
    }
}

/// Notes where the inode is that an entry of a large directory names.
#[inline]
pub(super) fn note_inode(nodes: &Reader, hashes: Hashes, ino: u32) {
    let block = nodes.nat.verified(nid_of(ino)).map_or(0, |(_, _, block)| block);
    let hint = Hint { number: ino, block };
    if nodes.inode_hints.get(hashes.inode) != Some(hint) {
        nodes.inode_hints.set(hashes.inode, &hint);
    }
}
