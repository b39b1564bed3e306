//! Inodes of one block, changed by several threads at once.
//!
//! Inodes are locked one by one, and 15 of them share a block. So:
//! - A slot is changed by who has its inode's lock (or makes it, so that nobody knows it yet), in the block's copy of the
//!   running epoch. Another's slot it never touches.
//! - The block is copied, and its map of slots changed, under the block's own lock. What is copied does not change
//!   meanwhile: a block that is not of the running epoch never does.
//! - Who looks at an inode may see the block before it was copied for another inode's sake. It stays what it was until
//!   the epoch's checkpoint is published and everybody who held a lock then has let go of it
//!   ([`crate::locks::Locks::wait_for_all`]); who holds none sees by the version that the block moved.

use nvm::Purpose;

use super::Nodes;
use crate::allocator::Budget;
use crate::bia::BlockKind;
use crate::error::corrupt;
use crate::geometry::BLOCK;
use crate::inode::{ALL_SLOTS, Cold, Hot, Inode, InodeEdit, nid_of, slot_of};
use crate::reader::map_of;

/// Free slots of a block that has room. With fewer, each new inode or two would take another block into the caches, and
/// have all of its neighbours copied.
const ROOM_MIN: u32 = 4;
/// The youngest NIDs that are looked through for blocks with room after a mount.
const YOUNGEST: u32 = 32;

impl Nodes {
    /// Opens inode `ino`, which is locked, for change, copying its block if this is the block's first change in the
    /// running epoch.
    #[inline]
    pub(crate) fn edit_inode(&self, budget: &Budget<'_>, ino: u32) -> vfs::Result<InodeEdit<'_>> {
        let nid = nid_of(ino);
        let block = match self.current(nid)? {
            Some(block) => block,
            None => {
                // Before it is copied: a node of another kind is no business of who has an inode's lock.
                self.inode(ino)?;
                let _lock = self.slots.lock(nid);
                self.current_or_copy(budget, nid)?
            }
        };
        self.check_lives(block, ino)?;
        Ok(InodeEdit::new(&self.medium, block, ino))
    }

    /// Reads inode `ino`, which is locked by who holds a lane, and opens it for change if that takes no copy.
    #[inline]
    pub(crate) fn open_inode(&self, ino: u32) -> vfs::Result<(Inode<'_>, Option<InodeEdit<'_>>)> {
        let (inode, version) = self.inode_of_version(ino)?;
        let is_current = version == self.version();
        Ok((inode, is_current.then(|| InodeEdit::new(&self.medium, inode.block, ino))))
    }

    /// Copies block `nid` of inodes, if it is in `block` and has no copy of the running epoch.
    pub(crate) fn copy_inodes(&self, budget: &Budget<'_>, nid: u32, block: u64) -> vfs::Result<()> {
        let _lock = self.slots.lock(nid);
        if self.nat.locate(nid)?.pointer.block() == block {
            self.current_or_copy(budget, nid)?;
        }
        Ok(())
    }

    /// Points the NAT to the new home of block `nid` of inodes, if it is in `block`.
    pub(crate) fn move_inodes(&self, nid: u32, block: u64, home: u64) -> vfs::Result<()> {
        let _lock = self.slots.lock(nid);
        if self.nat.locate(nid)?.pointer.block() == block {
            self.nat.set(nid, home, self.version())?;
        }
        Ok(())
    }

    /// The copy of the running epoch of a block whose lock is held.
    fn current_or_copy(&self, budget: &Budget<'_>, nid: u32) -> vfs::Result<u64> {
        match self.current(nid)? {
            Some(block) => Ok(block),
            None => self.copy(budget, nid),
        }
    }

    /// Stores the map of slots of a block whose lock is held.
    fn set_map(&self, block: u64, map: u16) {
        let word = self.slots_word(block) & !(0xffff << 16) | u64::from(map) << 16;
        self.medium.region.store_u64(Purpose::Metadata, block * BLOCK, word);
    }

    /// Makes inode `ino`, whose number [`Nodes::take_number`] gave (now or, in a replay, then), and its block if that is
    /// not there. Nobody finds the inode before it has its attributes.
    pub(crate) fn create_inode(
        &self,
        budget: &Budget<'_>,
        ino: u32,
        cold: &Cold,
        hot: &Hot,
    ) -> vfs::Result<InodeEdit<'_>> {
        let (nid, slot) = (nid_of(ino), slot_of(ino));
        let mut promises = self.slots.lock(nid);
        let located = self.nat.locate(nid)?;
        let is_new = located.pointer.is_null();
        let block = if is_new {
            let (block, _) = self.allocator.allocate(budget, BlockKind::Inode, nid, 0, 1)?;
            self.begin_block(block, BlockKind::Inode, nid, 0, BLOCK as usize);
            block
        } else {
            let current = self.current_of(&located);
            // Before it is copied: only replaying a forged log comes across a block that is something else.
            let word = self.slots_word(current.map_or_else(|| self.block_of(nid), Ok)?);
            if word & 0xff != BlockKind::Inode as u64 {
                return Err(corrupt("log", 0, "number of a new inode", ino, "one of a block of inodes"));
            }
            current.map_or_else(|| self.copy(budget, nid), Ok)?
        };
        let map = map_of(self.slots_word(block));
        if ALL_SLOTS >> slot & 1 == 0 || map >> slot & 1 == 1 {
            return Err(corrupt("log", 0, "number of a new inode", ino, "one that is free"));
        }
        let made = InodeEdit::new(&self.medium, block, ino);
        made.begin(cold, hot);
        self.set_map(block, map | 1 << slot);
        if is_new {
            self.place(nid, block)?;
        }
        promises.redeem(nid, slot);
        self.count_inodes(1);
        Ok(made)
    }

    /// Removes inode `ino`, which is locked and holds nothing any more; with the last one, its block.
    pub(crate) fn remove_inode(&self, budget: &Budget<'_>, ino: u32) -> vfs::Result<()> {
        let (nid, slot) = (nid_of(ino), slot_of(ino));
        let block = self.inode(ino)?.block;
        let promises = self.slots.lock(nid);
        let left = map_of(self.slots_word(self.current(nid)?.unwrap_or(block))) & !(1 << slot);
        if left == 0 {
            self.remove(nid, promises.of(nid) != 0)?;
        } else {
            let block = self.current_or_copy(budget, nid)?;
            self.set_map(block, left);
            let has_room = (ALL_SLOTS & !left).count_ones() >= ROOM_MIN;
            let is_first = has_room && self.nat.list(nid)?;
            drop(promises);
            if is_first {
                self.list_roomy(nid)?;
            }
        }
        self.count_inodes(-1);
        Ok(())
    }

    /// Remembers a block with room, noted as listed, if there is room to remember it.
    fn list_roomy(&self, nid: u32) -> vfs::Result<()> {
        if self.slots.remember(nid) { Ok(()) } else { self.nat.unlist(nid) }
    }

    /// Takes a number for a new inode.
    pub(crate) fn take_number(&self) -> vfs::Result<u32> {
        let promise = |roomy: Option<u32>| match roomy {
            Some(nid) => Ok((nid, self.promise_rest(nid)?)),
            None => {
                let nid = self.take_nid()?;
                let mut promises = self.slots.lock(nid);
                self.nat.unlist(nid)?;
                promises.add(nid, ALL_SLOTS);
                Ok((nid, ALL_SLOTS))
            }
        };
        self.slots.take(|| self.list_youngest(), promise)
    }

    /// Promises the slots of a listed block that are free; none if the block has gone or is damaged.
    fn promise_rest(&self, nid: u32) -> vfs::Result<u16> {
        let mut promises = self.slots.lock(nid);
        let word = match self.block_of(nid) {
            Ok(block) => self.slots_word(block),
            Err(_) => 0, // whoever wants one of its inodes hears of it
        };
        let is_block = word & 0xff == BlockKind::Inode as u64;
        self.nat.unlist(nid)?;
        let free = if is_block { ALL_SLOTS & !map_of(word) & !promises.of(nid) } else { 0 };
        promises.add(nid, free);
        Ok(free)
    }

    /// Lists the blocks among the youngest NIDs, and the first: they may have room.
    fn list_youngest(&self) {
        let next = self.next_nid();
        for nid in std::iter::once(0).chain(next.saturating_sub(YOUNGEST).max(1)..next) {
            let is_block = self.any(nid).is_ok_and(|view| view.bytes[0] == BlockKind::Inode as u8);
            if is_block && self.nat.list(nid).unwrap_or(false) {
                let _ = self.list_roomy(nid);
            }
        }
    }

    /// A number taken but not used after all.
    pub(crate) fn return_number(&self, ino: u32) {
        let nid = nid_of(ino);
        if self.slots.give_back(nid, slot_of(ino)) {
            return;
        }
        let mut promises = self.slots.lock(nid);
        let left = promises.redeem(nid, slot_of(ino));
        // If the NAT cannot be read, the number stays taken until the next mount.
        if left == 0 && self.nat.locate(nid).is_ok_and(|located| located.pointer.is_null()) {
            self.return_nid(nid);
        }
    }
}
