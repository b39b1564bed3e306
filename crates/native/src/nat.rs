//! The node address table: from node id (NID) to block (HMFS §2.2–2.4).
//!
//! On the medium it is an index tree with 512 pointers a block; on DRAM a page of 512 entries is cached when one
//! of them is first asked for ([`cache`]). A change goes to the cache and to the dirty list of the running epoch; making a
//! checkpoint merges the dirty list, sorted by NID, bottom-up into new tree blocks.

mod cache;
mod dirty;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use nvm::{Durable, Flushed, Purpose};
use parking_lot::{Mutex, RwLock};

pub(crate) use self::cache::Sight;
use self::cache::{Cache, Pinned};
pub(crate) use self::dirty::{Became, Dirty};
use crate::allocator::{Allocator, Frozen};
use crate::bia::BlockKind;
use crate::checksum;
use crate::fault::{self, Fault, planted};
use crate::geometry::{BLOCK, Medium, VERSIONS};
use crate::pointer::NodePointer;

/// Entries of a NAT block; the lower 9 bits of a NID (HMFS §2.3).
pub(crate) const FANOUT: u64 = 512;
/// NIDs have 28 bits: an inode's number has 4 more.
pub(crate) const NID_BITS: u32 = 28;
/// The height that covers every NID.
pub(crate) const MAX_HEIGHT: u8 = 4;

/// The index tree of one checkpoint. Height 1: the root is an entry block. An empty tree has a null root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) root: NodePointer,
    pub(crate) height: u8,
}

/// One cached entry.
#[derive(Default)]
pub(crate) struct CachedEntry {
    /// A [`NodePointer`]; its checksum counts only for a node not changed since the last checkpoint.
    pointer: AtomicU64,
    /// Version of the epoch that copied the node last, or of a checkpoint that was published since. Stored after the
    /// pointer and loaded before it: who sees the running epoch's version sees its copy. With [`SEALED`] it is no
    /// epoch's, so that who would change the node finds that out where he looks anyhow.
    version: AtomicU32,
    /// [`VERIFIED`], [`LISTED`].
    state: AtomicU32,
}

impl CachedEntry {
    #[inline]
    fn located(&self) -> Located {
        let version = self.version();
        let pointer = NodePointer(self.pointer.load(Ordering::Acquire));
        Located { pointer, version, verified: self.state.load(Ordering::Relaxed) & VERIFIED != 0 }
    }

    #[inline]
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    fn is_copy(&self, block: u64, version: u32) -> bool {
        self.version() == version && NodePointer(self.pointer.load(Ordering::Relaxed)).block() == block
    }
}

/// The node's checksum has been verified, or needs no verification.
const VERIFIED: u32 = 1;
/// The inode block is on a list of those that have room.
const LISTED: u32 = 2;

/// In an entry's version: the copy of that epoch is ready for its checkpoint, unless somebody breaks the seal.
const SEALED: u32 = VERSIONS;

/// The version of a cached entry without the seal.
fn epoch_of(version: u32) -> u32 {
    version & !SEALED
}

pub(crate) struct Nat {
    medium: Arc<Medium>,
    cache: Cache,
    /// The newest published tree, and its version. Held for reading while a page is loaded from it, so that its blocks
    /// are not reused meanwhile.
    published: RwLock<(Tree, u32)>,
    dirty: Mutex<Dirty>,
    /// How many changes it has, and how many copies that are not sealed.
    dirty_count: AtomicUsize,
    unsealed_count: AtomicUsize,
}

/// What the cache knows of a node.
#[derive(Clone, Copy, Default)]
pub(crate) struct Located {
    pub(crate) pointer: NodePointer,
    pub(crate) version: u32,
    pub(crate) verified: bool,
}

impl Nat {
    /// The table of the newest checkpoint, whose tree and version are `published`; keeps to about `cache_bytes`.
    pub(crate) fn new(medium: Arc<Medium>, published: (Tree, u32), cache_bytes: u64) -> Nat {
        Nat {
            medium,
            cache: Cache::new(cache_bytes),
            published: RwLock::new(published),
            dirty: Mutex::default(),
            dirty_count: AtomicUsize::new(0),
            unsealed_count: AtomicUsize::new(0),
        }
    }

    /// The entry of `nid`, which has [`NID_BITS`], to be changed.
    #[inline]
    fn entry(&self, nid: u32) -> vfs::Result<Pinned<'_>> {
        loop {
            match self.cache.pin(nid) {
                Some(entry) => return Ok(entry),
                None => self.load_page(nid)?,
            }
        }
    }

    /// Loads the page that `nid` is in.
    #[cold]
    fn load_page(&self, nid: u32) -> vfs::Result<()> {
        let page = nid as usize / FANOUT as usize;
        let published = self.published.read();
        let (tree, version) = *published;
        let block = find_page(&self.medium, tree, page as u64)?;
        let entries = block.into_iter().flat_map(|block| pointers(self.medium.block(block)));
        self.cache.load(page, version, entries);
        Ok(())
    }

    /// Where node `nid` is.
    #[inline]
    pub(crate) fn locate(&self, nid: u32) -> vfs::Result<Located> {
        if nid >> NID_BITS != 0 {
            return Ok(Located::default()); // no volume has so many
        }
        loop {
            if let Some(sight) = self.cache.see(nid) {
                let located = sight.entry.located();
                if sight.holds() {
                    return Ok(located);
                }
            } else {
                self.load_page(nid)?;
            }
        }
    }

    /// The cached entry of `nid`, its version, and then its block, if the node has been verified and lies where nodes can.
    /// For who looks without a lock: nothing is loaded into the cache.
    #[inline(always)]
    pub(crate) fn verified(&self, nid: u32) -> Option<(Sight<'_>, u32, u64)> {
        if nid >> NID_BITS != 0 {
            return None;
        }
        let sight = self.cache.see(nid)?;
        let located = sight.entry.located();
        let block = located.pointer.block();
        let is_there = located.verified && self.medium.geometry.in_main(block);
        (is_there && sight.holds()).then_some((sight, located.version, block))
    }

    /// Remembers that the node's checksum is right.
    pub(crate) fn set_verified(&self, nid: u32) -> vfs::Result<()> {
        self.entry(nid)?.state.fetch_or(VERIFIED, Ordering::Relaxed);
        Ok(())
    }

    /// Points `nid` to its copy of the running epoch (`block`), or to nothing (0).
    pub(crate) fn set(&self, nid: u32, block: u64, version: u32) -> vfs::Result<()> {
        let entry = self.entry(nid)?;
        entry.state.fetch_or(VERIFIED, Ordering::Relaxed);
        entry.pointer.store(NodePointer::new(block, 0).0, Ordering::Release);
        entry.version.store(version, Ordering::Release);
        self.change(|dirty| dirty.push(nid, block));
        Ok(())
    }

    /// Changes the dirty list, and says what it has.
    fn change<T>(&self, how: impl FnOnce(&mut Dirty) -> T) -> T {
        let mut dirty = self.dirty.lock();
        let changed = how(&mut dirty);
        self.dirty_count.store(dirty.count(), Ordering::Relaxed);
        self.unsealed_count.store(dirty.unsealed_count(), Ordering::Relaxed);
        changed
    }

    /// Takes up to `most` copies of the running epoch that are not sealed, but for the `youngest`; each with its block.
    pub(crate) fn take_unsealed(&self, most: usize, youngest: usize) -> Vec<(u32, u64)> {
        self.change(|dirty| dirty.take_unsealed(most, youngest))
    }

    /// How many there are.
    pub(crate) fn unsealed_count(&self) -> usize {
        self.unsealed_count.load(Ordering::Relaxed)
    }

    /// Marks the copy of node `nid` that the epoch of `version` has in `block`: who would change it has to break the seal
    /// from now on. Whether it is there, and cached. No operation runs.
    pub(crate) fn mark_sealed(&self, nid: u32, block: u64, version: u32) -> bool {
        let Some(entry) = self.cache.pin(nid) else { return false };
        let is_there = entry.is_copy(block, version);
        if is_there {
            entry.version.store(version | SEALED, Ordering::Release);
        }
        is_there
    }

    /// Of nodes that were marked, those count as sealed that nobody has changed since.
    pub(crate) fn add_seals(&self, seals: &[(u32, NodePointer)], version: u32, _sent: Durable) {
        self.change(|dirty| {
            for &(nid, pointer) in seals {
                let entry = self.cache.pin(nid);
                let is_whole = entry.is_some_and(|entry| entry.is_copy(pointer.block(), version | SEALED));
                if is_whole || planted(Fault::SealNotBroken) {
                    dirty.seal(nid, pointer);
                }
            }
        });
    }

    /// Breaks the seal of node `nid`, whose copy of the epoch of `version` in `block` is about to be changed; whether it
    /// has one. Nobody else changes it.
    pub(crate) fn break_seal(&self, nid: u32, block: u64, version: u32) -> vfs::Result<bool> {
        if self.locate(nid)?.version != version | SEALED {
            return Ok(false);
        }
        let entry = self.entry(nid)?;
        self.change(|dirty| {
            if !planted(Fault::SealNotBroken) {
                dirty.break_seal(nid, block);
            }
            entry.version.store(version, Ordering::Release);
        });
        Ok(true)
    }

    /// Notes that block `nid` of inodes is on a list; whether it was not. Like what follows, under the block's lock.
    pub(crate) fn list(&self, nid: u32) -> vfs::Result<bool> {
        Ok(self.entry(nid)?.state.fetch_or(LISTED, Ordering::Relaxed) & LISTED == 0)
    }

    /// Notes that the block is on no list.
    pub(crate) fn unlist(&self, nid: u32) -> vfs::Result<()> {
        self.entry(nid)?.state.fetch_and(!LISTED, Ordering::Relaxed);
        Ok(())
    }

    /// How many nodes changed places in the running epoch (an upper bound).
    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty_count.load(Ordering::Relaxed)
    }

    /// Takes the dirty list.
    pub(crate) fn take_dirty(&self) -> Dirty {
        self.change(std::mem::take)
    }

    /// Switches to the tree of a checkpoint just published, and its version.
    pub(crate) fn publish(&self, tree: Tree, version: u32) {
        *self.published.write() = (tree, version);
        self.cache.publish(version);
    }

    /// The newest published tree.
    pub(crate) fn tree(&self) -> Tree {
        self.published.read().0
    }

    /// Bytes of DRAM that the cache holds, and those of its tables.
    pub(crate) fn cache_bytes(&self) -> (u64, u64) {
        self.cache.bytes()
    }
}

/// The pointers in a NAT block.
pub(crate) fn pointers(block: &[u8]) -> impl Iterator<Item = NodePointer> + '_ {
    block.chunks_exact(8).map(|bytes| NodePointer(u64::from_le_bytes(bytes.try_into().expect("8 bytes"))))
}

/// The pointer at `index` of a NAT block.
#[inline]
pub(crate) fn pointer_at(block: &[u8], index: u64) -> NodePointer {
    let at = index as usize * 8;
    NodePointer(u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes")))
}

/// Verifies a NAT block that `pointer` names.
pub(crate) fn verify(medium: &Medium, pointer: NodePointer, parent: u64) -> vfs::Result<u64> {
    pointer.verified(medium, "NAT block", parent).map(|_| pointer.block())
}

/// The entry block of `page` (NID / 512) in `tree`, if there is one.
fn find_page(medium: &Medium, tree: Tree, page: u64) -> vfs::Result<Option<u64>> {
    let pointer = pointer_to(medium, tree, (page * FANOUT) as u32, 1)?;
    if pointer.is_null() { Ok(None) } else { verify(medium, pointer, 0).map(Some) }
}

/// What a NAT block of `level` is.
pub(crate) fn kind_of(level: u32) -> BlockKind {
    if level == 1 { BlockKind::NatEntries } else { BlockKind::NatNode }
}

/// The pointer in `tree` to its block of `level` (1: entries; 0: a node) for NID `first`; null if there is none.
pub(crate) fn pointer_to(medium: &Medium, tree: Tree, first: u32, level: u32) -> vfs::Result<NodePointer> {
    path_to(medium, tree, first, level, &mut |_| {})
}

/// The same; calls `visit` with each block of the NAT on the way.
pub(crate) fn path_to(
    medium: &Medium,
    tree: Tree,
    first: u32,
    level: u32,
    visit: &mut dyn FnMut(u64),
) -> vfs::Result<NodePointer> {
    let (mut pointer, mut parent, mut at) = (tree.root, 0, u32::from(tree.height));
    if at < level || u64::from(first) >= FANOUT.pow(at) {
        return Ok(NodePointer::default());
    }
    while at > level && !pointer.is_null() {
        let block = verify(medium, pointer, parent)?;
        visit(block);
        at -= 1;
        let index = u64::from(first) / FANOUT.pow(at) % FANOUT;
        (parent, pointer) = (block, NodePointer(medium.region.load_u64(block * BLOCK + index * 8)));
    }
    Ok(pointer)
}

/// Where new NAT blocks come from and old ones go, while a checkpoint is made.
pub(crate) struct Merge<'a> {
    pub(crate) medium: &'a Medium,
    pub(crate) allocator: &'a Allocator,
    pub(crate) frozen: &'a mut Frozen,
    pub(crate) version: u32,
    pub(crate) flushed: Flushed,
}

impl Merge<'_> {
    /// Merges changes (NIDs ascending, with the pointers to store) into `tree`; returns the new tree, whose
    /// blocks are streamed but not yet fenced.
    pub(crate) fn run(&mut self, tree: Tree, changes: &[(u32, NodePointer)]) -> vfs::Result<Tree> {
        let Some((last, _)) = changes.last() else { return Ok(tree) };
        let mut tree = Tree { height: tree.height.max(1), ..tree };
        while tree.height < MAX_HEIGHT && u64::from(*last) >= FANOUT.pow(u32::from(tree.height)) {
            // A new root above the old one.
            if !tree.root.is_null() {
                let mut block = vec![0; BLOCK as usize];
                block[..8].copy_from_slice(&tree.root.0.to_le_bytes());
                tree.root = self.write(&block, u32::from(tree.height) + 1, 0)?;
            }
            tree.height += 1;
        }
        let root = self.subtree(tree.root, u32::from(tree.height), 0, changes)?;
        Ok(Tree { root, height: tree.height })
    }

    fn subtree(
        &mut self,
        old: NodePointer,
        level: u32,
        first: u64,
        changes: &[(u32, NodePointer)],
    ) -> vfs::Result<NodePointer> {
        let mut block = match old.is_null() {
            true => vec![0; BLOCK as usize],
            false => self.medium.block(verify(self.medium, old, 0)?).to_vec(),
        };
        let span = FANOUT.pow(level - 1);
        let mut rest = changes;
        while let Some((nid, pointer)) = rest.first() {
            let index = (u64::from(*nid) - first) / span;
            let end = first + (index + 1) * span;
            let (mine, others) = rest.split_at(rest.partition_point(|(nid, _)| u64::from(*nid) < end));
            let place = index as usize * 8..index as usize * 8 + 8;
            let new = if level == 1 {
                *pointer
            } else {
                let child =
                    NodePointer(u64::from_le_bytes(block[place.clone()].try_into().expect("8 bytes")));
                self.subtree(child, level - 1, first + index * span, mine)?
            };
            block[place].copy_from_slice(&new.0.to_le_bytes());
            rest = others;
        }
        if !old.is_null() {
            self.allocator.free_from(self.frozen, old.block());
        }
        if nvm::is_zero(&block) {
            return Ok(NodePointer::default());
        }
        self.write(&block, level, first)
    }

    /// A new NAT block of `level`, for NIDs from `first` on.
    fn write(&mut self, block: &[u8], level: u32, first: u64) -> vfs::Result<NodePointer> {
        let place = (first as u32, u64::from(level));
        let at = self.allocator.allocate_into(self.frozen, kind_of(level), self.version, place)?;
        let region = &self.medium.region;
        let streamed = fault::stream(region, Fault::NatNotSent, Purpose::Metadata, at * BLOCK, block);
        self.flushed = std::mem::replace(&mut self.flushed, Flushed::none()).and(streamed);
        Ok(NodePointer::new(at, checksum::of(block)))
    }
}

/// Calls `visit` for every entry of `tree` that points to a node, NIDs ascending, and `block` for every block of
/// the tree itself, with its first NID and level. For checks and dumps.
pub(crate) fn walk(
    medium: &Medium,
    tree: Tree,
    block: &mut dyn FnMut(u64, u32, u32) -> vfs::Result<()>,
    visit: &mut dyn FnMut(u32, NodePointer) -> vfs::Result<()>,
) -> vfs::Result<()> {
    fn descend(
        medium: &Medium,
        pointer: NodePointer,
        level: u32,
        first: u64,
        block: &mut dyn FnMut(u64, u32, u32) -> vfs::Result<()>,
        visit: &mut dyn FnMut(u32, NodePointer) -> vfs::Result<()>,
    ) -> vfs::Result<()> {
        let at = verify(medium, pointer, 0)?;
        block(at, first as u32, level)?;
        let span = FANOUT.pow(level - 1);
        for (index, child) in pointers(medium.block(at)).enumerate() {
            let first = first + index as u64 * span;
            match (child.is_null(), level) {
                (true, _) => {}
                (false, 1) => visit(first as u32, child)?,
                (false, _) => descend(medium, child, level - 1, first, block, visit)?,
            }
        }
        Ok(())
    }
    if tree.root.is_null() {
        return Ok(());
    }
    descend(medium, tree.root, u32::from(tree.height), 0, block, visit)
}
