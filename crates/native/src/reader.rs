//! Reading a tree: that of the running epoch, or one that never changes (a checkpoint's).
//!
//! What reads nodes and what they hold takes a [`Reader`]; only what changes them needs the [`crate::nodes::Nodes`] around
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::alone::Alone;
use crate::bia::BlockKind;
use crate::error::corrupt;
use crate::geometry::{BLOCK, Medium};
use crate::hints::Hints;
use crate::inode::{self, Inode, nid_of, slot_of};
use crate::nat::{Nat, Tree};
use crate::node::{self, View};
use crate::pointer::NodePointer;

/// What reading a tree takes.
pub(crate) struct Reader {
    pub(crate) medium: Arc<Medium>,
    pub(crate) nat: Nat,
    pub(crate) hash_key: [u64; 2],
    /// Of large directories, by name: where inodes were. None of a tree that is read for a while.
    pub(crate) inode_hints: Hints,
    /// The same, by the upper bits of a key: where buckets were.
    pub(crate) bucket_hints: Hints,
    /// Of large files: where direct nodes and their blocks were ([`crate::index`]).
    pub(crate) leaf_hints: Hints,
    /// Nodes that exist.
    pub(crate) count: Alone<AtomicU32>,
}

/// The map of slots in an inode block's first word.
pub(crate) fn map_of(word: u64) -> u16 {
    (word >> 16) as u16
}

impl Reader {
    /// Reads `tree`, which has `nodes` nodes, for a while.
    pub(crate) fn new(medium: Arc<Medium>, tree: Tree, hash_key: [u64; 2], nodes: u32) -> Reader {
        Reader::kept(medium, (tree, 0), hash_key, nodes, u64::MAX)
    }

    /// Reads the tree of this version as long as a volume is mounted, with a cache of about `cache_bytes`.
    pub(crate) fn kept(
        medium: Arc<Medium>,
        tree: (Tree, u32),
        hash_key: [u64; 2],
        nodes: u32,
        cache_bytes: u64,
    ) -> Reader {
        let nat = Nat::new(medium.clone(), tree, cache_bytes);
        Reader {
            nat,
            medium,
            hash_key,
            inode_hints: Hints::new(0),
            bucket_hints: Hints::new(0),
            leaf_hints: Hints::new(0),
            count: Alone::new(AtomicU32::new(nodes)),
        }
    }

    /// Bytes of DRAM of hints.
    pub(crate) fn hint_bytes(&self) -> u64 {
        [&self.inode_hints, &self.bucket_hints, &self.leaf_hints].map(Hints::bytes).iter().sum()
    }

    /// Nodes that exist.
    pub(crate) fn node_count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Reads node `nid`, which must be of `kind`: `ESTALE` if there is none, an error if it is damaged.
    #[inline]
    pub(crate) fn view(&self, nid: u32, kind: BlockKind) -> vfs::Result<View<'_>> {
        Ok(self.view_of_version(nid, kind)?.0)
    }

    /// The same, and the version that its NAT entry has.
    #[inline]
    pub(crate) fn view_of_version(&self, nid: u32, kind: BlockKind) -> vfs::Result<(View<'_>, u32)> {
        let (block, version) = self.block_and_version(nid)?;
        let view = View::of(&self.medium, block);
        if view.bytes[0] != kind as u8 {
            return Err(self.wrong_kind(nid, kind, view));
        }
        Ok((view, version))
    }

    #[cold]
    pub(crate) fn wrong_kind(&self, nid: u32, kind: BlockKind, view: View<'_>) -> vfs::Error {
        corrupt(&format!("node {nid}"), view.block, "kind", view.bytes[0], format!("{kind:?}"))
    }

    /// Reads node `nid` of whatever kind.
    #[inline]
    pub(crate) fn any(&self, nid: u32) -> vfs::Result<View<'_>> {
        Ok(View::of(&self.medium, self.block_of(nid)?))
    }

    /// The block of node `nid`, which is sound.
    #[inline]
    pub(crate) fn block_of(&self, nid: u32) -> vfs::Result<u64> {
        Ok(self.block_and_version(nid)?.0)
    }

    /// The same, and the version that its NAT entry has.
    #[inline]
    fn block_and_version(&self, nid: u32) -> vfs::Result<(u64, u32)> {
        match self.nat.verified(nid) {
            Some((_, version, block)) => Ok((block, version)),
            None => self.find_node(nid),
        }
    }

    /// The same of a node that was not looked at since it was mounted, or is not there.
    #[cold]
    fn find_node(&self, nid: u32) -> vfs::Result<(u64, u32)> {
        let located = self.nat.locate(nid)?;
        if located.pointer.is_null() {
            return Err(vfs::Error::Stale);
        }
        if !located.verified {
            self.verify(nid, located.pointer)?;
        }
        Ok((located.pointer.block(), located.version))
    }

    #[cold]
    fn verify(&self, nid: u32, pointer: NodePointer) -> vfs::Result<()> {
        let block = pointer.block();
        node::verify(&self.medium, nid, pointer)?;
        let header = node::header_of(&self.medium, block);
        let name = || format!("node {nid}");
        if header.nid.get() != nid {
            return Err(corrupt(&name(), block, "NID", header.nid.get(), nid));
        }
        if BlockKind::from_u8(header.kind).is_none() {
            return Err(corrupt(&name(), block, "kind", header.kind, "a kind of node"));
        }
        if header.kind == BlockKind::Inode as u8 {
            let slots = header.slots.get();
            let possible = |slot| {
                Inode::on_medium(&self.medium, block, inode::number_of(nid, slot as u32)).is_possible()
            };
            if slots & !inode::ALL_SLOTS != 0 || !inode::slots_in(slots).all(possible) {
                return Err(corrupt(
                    &name(),
                    block,
                    "length, flags or layout of an inode",
                    "impossible",
                    "possible",
                ));
            }
        }
        self.nat.set_verified(nid)
    }

    /// The first word of inode block `block`: kind, map of slots, NID. Atomic: others make and remove inodes in it.
    #[inline]
    pub(crate) fn slots_word(&self, block: u64) -> u64 {
        self.medium.region.load_u64(block * BLOCK)
    }

    /// Reads inode `ino`, which is locked, or which nobody else knows: `ESTALE` if there is none, an error if its block
    /// is damaged.
    #[inline]
    pub(crate) fn inode(&self, ino: u32) -> vfs::Result<Inode<'_>> {
        Ok(self.inode_of_version(ino)?.0)
    }

    /// The same, and the version that its block's NAT entry has.
    #[inline]
    pub(crate) fn inode_of_version(&self, ino: u32) -> vfs::Result<(Inode<'_>, u32)> {
        let (block, version) = self.block_and_version(nid_of(ino))?;
        self.check_lives(block, ino)?;
        Ok((Inode::on_medium(&self.medium, block, ino), version))
    }

    /// `ESTALE` if the block has no such inode: also if it is a node of another kind.
    #[inline]
    pub(crate) fn check_lives(&self, block: u64, ino: u32) -> vfs::Result<()> {
        if self.lives_in(block, ino) { Ok(()) } else { Err(vfs::Error::Stale) }
    }

    /// Whether inode `ino` is in that block.
    #[inline]
    pub(crate) fn lives_in(&self, block: u64, ino: u32) -> bool {
        let word = self.slots_word(block);
        word & 0xff == BlockKind::Inode as u64 && map_of(word) >> slot_of(ino) & 1 == 1
    }
}
