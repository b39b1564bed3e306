//! Moving blocks that no snapshot has, as operations do (HMFS §3.4).
//!
//! - Data moves by the transaction that a write of the same bytes would log: its inode is locked, so nobody sees the move,
//!   and a crash finds the one block or the other.
//! - A node moves as by a change that changes nothing: it is copied, and the NAT cache points to the copy. No record
//!   says so: replay puts nodes where it likes.
//! - What a BIA entry says of a block is looked up, not believed: if the block is not there (any more), it stays where it is.

use vfs::{Error, Result};

use crate::allocator::Urgency;
use crate::bia::{BlockKind, Entry, is_node};
use crate::core::{Core, Operation};
use crate::geometry::{BLOCK, FILE_MAX};
use crate::index::{self, blocks_for};
use crate::inode::Layout;
use crate::pointer::DataPointer;
use crate::record::{Item, MAP_LOG};

/// Blocks that one transaction moves at most: their file is locked meanwhile.
const RUN_MAX: u64 = 64;

impl Core {
    /// Moves those of `blocks`, ascending, that no snapshot has and that lie in files or nodes, about `most` of them. What
    /// is damaged stays, and is told.
    pub(crate) fn relocate_young(&self, blocks: &[u64], most: usize) -> Result<()> {
        let (mut rest, mut moved) = (blocks, 0);
        while let Some((&block, others)) = rest.split_first().filter(|_| moved < most) {
            let entry = Entry::read(&self.medium, block);
            let mut length = 1;
            let kept = self.nodes.allocator.newest_kept();
            if entry.version > kept {
                let relocated = if entry.kind == BlockKind::Data as u8 {
                    let follows = |n: u64, other: u64| {
                        let next = Entry { place: entry.place + n, ..entry };
                        let found = Entry::read(&self.medium, other);
                        let is_next = Entry { version: entry.version, ..found } == next;
                        other == block + n && is_next && found.version > kept
                    };
                    let same = (1..RUN_MAX).zip(others).take_while(|(n, other)| follows(*n, **other));
                    length += same.count();
                    self.relocate_data(block, length as u64, &entry)
                } else {
                    self.relocate_node(block, &entry)
                };
                match relocated {
                    Ok(()) | Err(Error::Stale) => moved += length,
                    Err(error @ (Error::NoSpace | Error::ReadOnly)) => return Err(error),
                    Err(error) if self.failure().is_some() => return Err(error),
                    Err(error) => tracing::warn!("block {block} is not moved: {error}"),
                }
            }
            rest = &rest[length..];
        }
        Ok(())
    }

    /// Moves a run of blocks, as far as they are still the data that `entry` says the first is.
    fn relocate_data(&self, first: u64, length: u64, entry: &Entry) -> Result<()> {
        let ino = entry.owner;
        let log = (length as usize + 1) * MAP_LOG;
        let mut operation = self.begin(blocks_for(length), log, Urgency::Ordinary)?;
        let _op = nvm::operation("move");
        let _lock = self.locks.write(ino);
        let inode = match self.nodes.inode(ino) {
            Ok(inode) if inode.layout() == Layout::Mapped => inode,
            Ok(_) | Err(Error::Stale) => return Ok(()),
            Err(error) => return Err(error),
        };
        let kept = self.nodes.allocator.newest_kept();
        let mut done = 0;
        while done < length && entry.place + done < FILE_MAX / BLOCK {
            let at = entry.place + done;
            let (pointer, run) = index::run(&self.nodes, inode, at, length - done)?;
            if pointer.block() != first + done || Entry::read(&self.medium, first + done).version <= kept {
                done += 1; // it has gone, or a snapshot has it by now
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
        if !is_there()? || entry.version <= self.nodes.allocator.newest_kept() {
            return Ok(());
        }
        let header = self.nodes.any(nid)?.header();
        if header.kind == BlockKind::Inode as u8 {
            return self.nodes.copy_inodes(&operation.budget, nid, block);
        }
        let _lock = self.lock_owner(header.owner.get());
        if is_there()? {
            self.nodes.edit(&operation.budget, nid)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use nvm::{OpenOptions, Purpose, Region, VolumeKind, Zone};
    use vfs::{Caller, OpenFlags, ROOT_INO};

    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::core::NextLog;
    use crate::core::Transplant;
    use crate::inode::{nid_of, slot_of};
    use crate::node::ORPHANS;
    use crate::recovery::{self, Rest};
    use crate::superblock::Superblock;
    use crate::{FormatOptions, MountOptions, nat};

    const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

    fn formatted(zone: &Zone) -> Region {
        let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
        crate::format(&region, &FormatOptions::default()).unwrap();
        region
    }

    fn open(region: &Region) -> Core {
        let superblock = Superblock::read(region).unwrap();
        recovery::open(region.clone(), &superblock, &MountOptions::default(), Rest::Keep).unwrap().0
    }

    fn file(core: &Core, name: &str, bytes: usize) -> u32 {
        let root = Caller::root();
        let file = core.create(&root, ROOT_INO, name.as_bytes(), 0o644, RW).unwrap();
        core.write(&root, file.handle, 0, &vec![7; bytes]).unwrap();
        core.release(file.handle).unwrap();
        file.attr.ino as u32
    }

    fn block_of(core: &Core, ino: u32, index: u64) -> u64 {
        let inode = core.nodes.inode(ino).unwrap();
        index::run(&core.nodes, inode, index, 1).unwrap().0.block()
    }

    /// What cannot be read reads as zeros: moved, they became the file, durably, without anybody being told.
    #[test]
    fn what_cannot_be_read_does_not_move() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("zone");
        let zone = Zone::create(&path, 34 << 20, false, &OpenOptions::default()).unwrap();
        let region = formatted(&zone);
        let core = open(&region);
        let last = core.medium.geometry.segments - 1;
        let is_last = |block: u64| core.medium.geometry.segment_of(block).0 == last;
        let mut files: Vec<(String, u32)> = Vec::new();
        while !files.last().is_some_and(|(_, ino)| (0..15).all(|index| is_last(block_of(&core, *ino, index))))
        {
            let name = format!("file {}", files.len());
            files.push((name.clone(), file(&core, &name, 60_000)));
        }
        let (_, ino) = files.pop().unwrap();
        files.iter().for_each(|(name, _)| core.unlink(&Caller::root(), ROOT_INO, name.as_bytes()).unwrap());
        core.finish().unwrap();
        let end = (core.medium.geometry.segment_start(last)) * BLOCK;
        drop(core);
        let core = open(&region);
        let image = std::fs::read(&path).unwrap();
        // From now on the last segment cannot be read.
        std::fs::File::options().write(true).open(&path).unwrap().set_len(nvm::SEGMENT + end).unwrap();
        assert!(core.empty_segment(last).is_err() || core.failure().is_some());
        drop((core, region, zone));
        // It can be read again, and has what it had.
        let mut now = std::fs::read(&path).unwrap();
        now.extend(&image[now.len()..]);
        std::fs::write(&path, &now).unwrap();
        let zone = Zone::open(&path, &OpenOptions::default()).unwrap();
        let core = open(&zone.volume("v").unwrap());
        let handle = core.open(&Caller::root(), ino.into(), OpenFlags::READ).unwrap();
        let mut bytes = vec![1; 60_000];
        assert_eq!(core.read(handle, 0, &mut bytes).unwrap(), 60_000);
        assert!(bytes.iter().all(|byte| *byte == 7));
    }

    /// Whoever has an inode's lock may wait for the hidden directory; its nodes were locked the other way round.
    #[test]
    fn nodes_of_the_hidden_directory_move() {
        let zone = Zone::anonymous(66 << 20, &OpenOptions::default()).unwrap();
        let core = open(&formatted(&zone));
        let root = Caller::root();
        let opened = core.create(&root, ROOT_INO, b"file", 0o644, RW).unwrap();
        core.unlink(&root, ROOT_INO, b"file").unwrap();
        core.checkpoint(NextLog::WithEpoch).unwrap();
        let is_hidden = |block: &u64| {
            let entry = Entry::read(&core.medium, *block);
            entry.kind == BlockKind::Bucket as u8
                && core.nodes.any(entry.owner).is_ok_and(|node| node.header().owner.get() == ORPHANS)
        };
        let segments = 0..core.medium.geometry.segments;
        let bucket = segments.flat_map(|segment| core.nodes.allocator.blocks_in(segment)).find(is_hidden);
        let (locked, is_locked) = mpsc::channel();
        std::thread::scope(|scope| {
            let core = &core;
            scope.spawn(move || {
                // Of the stripe that the hidden directory would have.
                let _lock = core.locks.write(1024 + ORPHANS);
                locked.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(200));
                let _hidden = core.orphans.lock();
            });
            is_locked.recv().unwrap();
            core.relocate_young(&[bucket.unwrap()], 1).unwrap();
        });
        assert!(!is_hidden(&bucket.unwrap()) || core.nodes.nat.dirty_count() > 0);
        core.release(opened.handle).unwrap();
    }

    /// A file was damaged that a snapshot has sound: moving what both have failed the volume, after each mount anew.
    #[test]
    fn what_leads_through_damage_stays() {
        let zone = Zone::anonymous(34 << 20, &OpenOptions::default()).unwrap();
        let region = formatted(&zone);
        let core = open(&region);
        (0..40).for_each(|n| assert!(file(&core, &format!("filler {n}"), 0) > ORPHANS));
        let ino = file(&core, "file", 40 << 10);
        core.take_snapshot("s", "").unwrap();
        let neighbour = file(&core, "neighbour", 0);
        assert_eq!(nid_of(ino), nid_of(neighbour));
        let shared = block_of(&core, ino, 5);
        let inodes = core.nodes.nat.locate(nid_of(ino)).unwrap().pointer.block();
        core.finish().unwrap();
        drop(core);
        let at = inodes * BLOCK + slot_of(ino) as u64 * 256 + 16;
        region.store_u64(Purpose::Metadata, at, region.load_u64(at) ^ 1);
        let core = open(&region);
        assert!(core.nodes.inode(ino).is_err());
        let segment = core.medium.geometry.segment_of(shared).0;
        assert!(!core.empty_segment(segment).unwrap());
        assert!(core.failure().is_none(), "{:?}", core.failure());
        file(&core, "other", 5000);
    }

    /// An entry that does not say at what level its block of the NAT is led to a panic.
    #[test]
    fn an_entry_without_a_level_moves_nothing() {
        let zone = Zone::anonymous(34 << 20, &OpenOptions::default()).unwrap();
        let core = open(&formatted(&zone));
        (0..40).for_each(|n| assert!(file(&core, &format!("file {n}"), 0) > ORPHANS));
        core.take_snapshot("s", "").unwrap();
        let block = core.snapshots.read().find("s").unwrap().block;
        let tree = Checkpoint::read(&core.medium, block).unwrap().body.tree();
        let leaf = nat::pointer_to(&core.medium, tree, 0, 1).unwrap().block();
        for place in [0, 2, 77] {
            Entry { place, ..Entry::read(&core.medium, leaf) }.copy_soft(&core.medium, leaf);
            let moved = Transplant::prepare(&core, &core.publisher(), &[leaf], u64::MAX).unwrap();
            assert!(moved.is_empty() && moved.stuck == [leaf], "place {place}");
        }
        assert!(core.failure().is_none());
    }
}
