//! Moving blocks that no snapshot has, as operations do (HMFS §3.4).
//!
//! - Data moves by the transaction that a write of the same bytes would log: its inode is locked, so nobody sees the move,
//!   and a crash finds the one block or the other.
//! - A node moves as by a change that changes nothing: it is copied, and the NAT cache points to the copy. No record
//!   says so: replay puts nodes where it likes.
//! - What a BIA entry says of a block is looked up, not believed: if the block is not there (any more), it stays where it is.

use vfs::{Error, Result};

use crate::allocator::Urgency;
use crate::bia::{BlockKind, Entry};
use crate::core::{Core, Operation};
use crate::data::{MAP_LOG, blocks_for};
use crate::geometry::BLOCK;
use crate::index;
use crate::inode::Layout;
use crate::node::ORPHANS;
use crate::pointer::DataPointer;
use crate::record::Item;

/// Blocks that one transaction moves at most: their file is locked meanwhile.
const RUN_MAX: u64 = 64;

impl Core {
    /// Moves those of `blocks`, ascending, that no snapshot has and that lie in files or nodes.
    pub(crate) fn relocate_young(&self, blocks: &[u64]) -> Result<()> {
        let kept = self.nodes.allocator.newest_kept();
        let mut rest = blocks;
        while let Some((&block, others)) = rest.split_first() {
            let entry = Entry::read(&self.medium, block);
            let mut length = 1;
            if entry.version > kept {
                if entry.kind == BlockKind::Data as u8 {
                    let follows = |n: u64, other: u64| {
                        let next = Entry { place: entry.place + n, ..entry };
                        let found = Entry::read(&self.medium, other);
                        other == block + n && Entry { version: entry.version, ..found } == next
                    };
                    let same = (1..RUN_MAX).zip(others).take_while(|(n, other)| follows(*n, **other));
                    length += same.count() as u64;
                    self.relocate_data(block, length, &entry)?;
                } else {
                    self.relocate_node(block, &entry)?;
                }
            }
            rest = &rest[length as usize..];
        }
        Ok(())
    }

    /// Moves a run of blocks, as far as they are still the data that `entry` says the first is.
    fn relocate_data(&self, first: u64, length: u64, entry: &Entry) -> Result<()> {
        let ino = entry.owner;
        let log = (length as usize + 1) * MAP_LOG;
        let mut operation = self.begin(blocks_for(length), log, Urgency::Ordinary)?;
        let _lock = self.locks.write(ino);
        let inode = match self.nodes.inode(ino) {
            Ok(inode) if inode.layout() == Layout::Mapped => inode,
            Ok(_) | Err(Error::Stale) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut done = 0;
        while done < length && entry.place + done < index::FILE_MAX / BLOCK {
            let at = entry.place + done;
            let (pointer, run) = index::run(&self.nodes, inode, at, length - done)?;
            if pointer.block() != first + done {
                done += 1;
                continue;
            }
            done += self.log_move(&mut operation, (ino, at), pointer, run)?;
        }
        operation.commit()
    }

    /// Logs that a run of blocks moves, as far as there is a run for it; returns how many do.
    fn log_move(
        &self,
        operation: &mut Operation<'_>,
        (ino, index): (u32, u64),
        pointer: DataPointer,
        length: u64,
    ) -> Result<u64> {
        let (home, length) = operation.allocate(ino, index, length)?;
        if pointer.has_data() {
            for n in 0..length {
                operation.stream((home + n) * BLOCK, self.medium.block(pointer.block() + n));
            }
        }
        operation.log(&Item::Map { ino, index, count: length as u32, pointer: pointer.moved(home) });
        Ok(length)
    }

    /// Moves a node, unless it changed in the running epoch: then its next change moves it.
    fn relocate_node(&self, block: u64, entry: &Entry) -> Result<()> {
        let nid = entry.owner;
        let is_there = || -> Result<bool> { Ok(self.nodes.nat.locate(nid)?.pointer.block() == block) };
        if !is_node(entry.kind) {
            return Ok(());
        }
        let operation = self.begin(1, 0, Urgency::Ordinary)?;
        if !is_there()? {
            return Ok(());
        }
        if entry.kind == BlockKind::Inode as u8 {
            return self.nodes.copy_inodes(&operation.budget, nid, block);
        }
        let owner = self.nodes.any(nid)?.header().owner.get();
        let _hidden = (owner == ORPHANS).then(|| self.orphans.lock());
        let _lock = self.locks.write(owner);
        if is_there()? {
            self.nodes.edit(&operation.budget, nid)?;
        }
        Ok(())
    }
}

/// Whether a block of this kind is named by a NID.
pub(crate) fn is_node(kind: u8) -> bool {
    use BlockKind::{Bucket, Direct, Indirect, Inode, Map, Table, Xattr};
    matches!(BlockKind::from_u8(kind), Some(Inode | Direct | Indirect | Bucket | Table | Xattr | Map))
}
