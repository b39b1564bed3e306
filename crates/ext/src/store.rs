//! Metadata blocks: where all of the file system's structures come from.
//!
//! A block is asked for by what it is and by its number. **One block is one thing**: asked for as something else while it is
//! known, it is damage, found here for all structures. It is verified once, when it comes from the disk, and after that only
//! by who reads it in detail. For blocks that a journal has, its copies stand above the disk's ([`Store::overlay`]), for data as for
//! metadata.
//!
//! Here blocks are in DRAM, as many as fit; the least recently used go first, which nobody who holds one notices.
//!
//! **A change is all or nothing.** Who changes metadata does it between [`Store::begin`] and [`Store::finish`], alone (the volume's
//! lock `tree` sees to it: no reader is inside). Of a block that is changed what was is kept until the end ([`before`]), for
//! [`Store::undo`], and tells what of the block is new. What is finished is *running* until it is taken to be committed
//! ([`Store::take_running`]), and is not evicted before somebody says that it is at [`Store::settled`].

mod before;
mod cached;
mod contents;
mod operation;
mod size;

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use disk::{Disk, Purpose};
use parking_lot::{Mutex, RwLock};
use vfs::{InoMap, Result};

use crate::clean::Clean;
use crate::failure::Failure;
use crate::home::{Frames, LogItem, Transaction};
pub(crate) use crate::kind::Kind;
pub(crate) use before::Changing;
use before::{Before, Parts, Whole};
pub(crate) use cached::{Block, Sight};
use cached::{Cached, evict};
use operation::Operation;
pub(crate) use size::{LOG_FULL, Most};

/// The copy of a block that a journal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    /// The block of the disk where it is.
    pub(crate) at: u64,
    /// What it begins with, if that is not in the copy.
    pub(crate) begins: Option<[u8; 4]>,
}

/// Shards, so that threads seldom wait for each other.
const SHARDS: usize = 64;
/// Least blocks of a shard.
const SHARD_BLOCKS_MIN: usize = 16;

/// What has been finished and is not committed.
pub(crate) struct Running {
    /// Its number, from 1 up.
    pub(crate) transaction: u64,
    pub(crate) data: Vec<LogItem>,
    /// Blocks of metadata that have changed, and which of their sub-blocks.
    blocks: InoMap<u64, (Kind, u64)>,
    /// Blocks that were metadata, in this transaction or before, and are no longer.
    pub(crate) freed: BTreeSet<u64>,
    /// About how many bytes its record will have.
    bytes: u64,
}

/// What a record has for each block or piece of data beside its bytes, about.
const ITEM_HEAD: u64 = 32;
/// Bytes that a record has of a range of blocks that was given up, and of a block of metadata that was.
const RANGE: u64 = 16;
const FREED: u64 = 8;

pub(crate) struct Store {
    disk: Arc<Disk>,
    /// Of the volume.
    pub(crate) failure: Arc<Failure>,
    /// Where blocks are that are not here, while the disk is attached; the rest is on the disk.
    frames: Option<Arc<Frames>>,
    /// What has no frame gets one when it is read.
    fills: bool,
    block: u64,
    shards: Box<[RwLock<InoMap<u64, Cached>>]>,
    shard_blocks: usize,
    clock: AtomicU64,
    overlay: HashMap<u64, Logged>,
    /// Bytes of a sub-block: those of an inode (FSMAC III.C).
    part: usize,
    /// What was is kept until what is there instead is committed ([`crate::Options::versions`]).
    versions: bool,
    /// What a transaction may come to before it is to be committed.
    most: Most,
    /// Blocks of files.
    pub(crate) clean: Clean,
    operation: Mutex<Operation>,
    running: Mutex<Running>,
    /// All transactions up to this one are in the frames.
    settled: AtomicU64,
}

impl Store {
    /// Of blocks of `block` bytes, of which about `cache_bytes` are kept.
    pub(crate) fn new(disk: Arc<Disk>, block: u64, part: usize, cache_bytes: u64) -> Store {
        let shard_blocks = (cache_bytes / block) as usize / SHARDS;
        let part = part.max(block as usize / 64);
        Store {
            failure: Arc::new(Failure::none(disk.name())),
            disk,
            frames: None,
            fills: false,
            block,
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            shard_blocks: shard_blocks.max(SHARD_BLOCKS_MIN),
            clock: AtomicU64::new(0),
            overlay: HashMap::new(),
            part,
            versions: true,
            most: Most::ANY,
            clean: Clean::default(),
            operation: Mutex::new(Operation::none(part)),
            running: Mutex::new(Running {
                transaction: 1,
                data: Vec::new(),
                blocks: InoMap::default(),
                freed: BTreeSet::new(),
                bytes: 0,
            }),
            settled: AtomicU64::new(0),
        }
    }

    pub(crate) fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// Changes blocks in place from now on, once and for all.
    pub(crate) fn without_versions(&mut self) {
        self.versions = false;
    }

    /// Whether what was is kept.
    pub(crate) fn has_versions(&self) -> bool {
        self.versions
    }

    /// Keeps so many bytes of files' blocks, as the disk has them.
    pub(crate) fn keep_clean(&mut self, bytes: u64) {
        self.clean = Clean::new(bytes, self.block);
    }

    /// Has frames in NVM below, from transaction `next` on.
    pub(crate) fn attach(&mut self, frames: Arc<Frames>, next: u64) {
        self.frames = Some(frames);
        self.fills = true;
        self.running.get_mut().transaction = next;
        *self.settled.get_mut() = next - 1;
    }

    /// The same to look at what is at rest: the frames stay as they are.
    pub(crate) fn look_through(&mut self, frames: Arc<Frames>) {
        self.frames = Some(frames);
    }

    /// Puts a journal's copies above blocks of the disk, before anything was read.
    pub(crate) fn overlay(&mut self, blocks: HashMap<u64, Logged>) {
        self.overlay = blocks;
        self.shards.iter_mut().for_each(|shard| shard.get_mut().clear());
    }

    /// Block `number`, which is on the disk, as a `kind`. `verify` sees what came from the disk or a frame.
    pub(crate) fn read(
        &self,
        kind: Kind,
        number: u64,
        verify: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Block> {
        if let Some(cached) = self.shard(number).read().get(&number) {
            cached.check(kind, number)?;
            cached.used.store(self.tick(), Ordering::Relaxed);
            return Ok(cached.block.clone());
        }
        self.fetch(kind, number, verify)
    }

    /// As [`Store::read`], for who only looks at it, by `with`, which must not ask the store for anything: who changes other blocks waits with
    /// this one.
    pub(crate) fn look<R>(
        &self,
        kind: Kind,
        number: u64,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        with: impl FnOnce(&Sight<'_>) -> Result<R>,
    ) -> Result<R> {
        if let Some(cached) = self.shard(number).read().get(&number) {
            cached.check(kind, number)?;
            cached.used.store(self.tick(), Ordering::Relaxed);
            return with(&cached.sight(self.part));
        }
        let block = self.fetch(kind, number, verify)?;
        with(&Cached::new(kind, block, 0, 0).sight(self.part))
    }

    /// The next moment on the store's clock. Two may have the same: it need not be that exact.
    fn tick(&self) -> u64 {
        let now = self.clock.load(Ordering::Relaxed);
        self.clock.store(now + 1, Ordering::Relaxed);
        now
    }

    /// Block `number`, which is not here, from its frame or the disk.
    fn fetch(&self, kind: Kind, number: u64, verify: impl FnOnce(&[u8]) -> Result<()>) -> Result<Block> {
        let mut bytes = vec![0; self.block as usize];
        let framed = match &self.frames {
            Some(frames) => frames.read(kind, number, &mut bytes)?,
            None => false,
        };
        if !framed {
            self.read_through(Purpose::Metadata, number, 0, &mut bytes)?;
        }
        verify(&bytes)?;
        if let Some(frames) = &self.frames
            && !framed
            && self.fills
        {
            let _whole = self.failure.whole("the table of frames");
            frames.fill(kind, number, &bytes);
        }
        let block = Block::new(number, bytes);
        let mut shard = self.shard(number).write();
        if shard.len() >= self.shard_blocks {
            evict(&mut shard, self.settled.load(Ordering::Acquire));
        }
        shard.insert(number, Cached::new(kind, block.clone(), self.tick(), 0));
        Ok(block)
    }

    fn shard(&self, number: u64) -> &RwLock<InoMap<u64, Cached>> {
        &self.shards[(number as usize) % SHARDS]
    }

    /// Lets `with` change block `number`, which is on the disk, as a `kind`; gives what it gives. As [`Store::read`] otherwise.
    /// What `with` does is undone only with the whole operation: it must not fail half-way in a way that matters, nor ask the
    /// store for anything: other blocks wait with this one. Who else holds the block, a commit or who has read it, keeps it as it was.
    pub(crate) fn change<R>(
        &self,
        kind: Kind,
        number: u64,
        verify: impl FnOnce(&[u8]) -> Result<()>,
        with: impl FnOnce(&mut Changing<'_>) -> R,
    ) -> Result<R> {
        let mut operation = self.operation.lock();
        let operation = operation.running();
        let mut shard = self.shard(number).write();
        if !shard.contains_key(&number) {
            drop(shard);
            let block = self.fetch(kind, number, verify)?;
            shard = self.shard(number).write();
            // Who only looks, and takes no lock, may have had it evicted meanwhile.
            shard.entry(number).or_insert_with(|| Cached::new(kind, block, self.tick(), 0));
        }
        let cached = shard.get_mut(&number).expect("it is here");
        cached.check(kind, number)?;
        cached.used.store(self.tick(), Ordering::Relaxed);
        let before = operation.before.entry(number).or_insert_with(|| match self.versions {
            true => Before::Parts(Parts::new(cached.changed)),
            false => Before::Whole(None),
        });
        cached.changed = operation.transaction;
        Ok(with(&mut Changing::of(Arc::make_mut(&mut cached.block.bytes), before, &mut operation.kept)))
    }

    /// Makes block `number`, which has just been allocated, a `kind`, of zeros but for what `with` does.
    pub(crate) fn make<R>(&self, kind: Kind, number: u64, with: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut operation = self.operation.lock();
        let operation = operation.running();
        self.remember(operation, number);
        let mut bytes = vec![0; self.block as usize];
        let result = with(&mut bytes);
        let made = Cached::new(kind, Block::new(number, bytes), self.tick(), operation.transaction);
        self.shard(number).write().insert(number, made);
        result
    }

    /// Block `number` is metadata no longer: it has been freed.
    pub(crate) fn forget(&self, number: u64) {
        let mut operation = self.operation.lock();
        let operation = operation.running();
        self.remember(operation, number);
        self.shard(number).write().remove(&number);
        operation.freed.push(number);
    }

    /// Part of an operation: these bytes of files are to be durable in the same transaction, whose number is returned. A block that is
    /// freed takes what the log has of it along.
    pub(crate) fn log_data(&self, items: impl IntoIterator<Item = LogItem>) -> u64 {
        let mut operation = self.operation.lock();
        let operation = operation.running();
        operation.data.extend(items);
        operation.transaction
    }

    /// Part of an operation: a range of blocks is given up, which its record is to tell.
    pub(crate) fn note_freed(&self) {
        self.operation.lock().running().ranges += 1;
    }

    /// Keeps what block `number` is, before the operation makes something else of it.
    fn remember(&self, operation: &mut Operation, number: u64) {
        match operation.before.entry(number) {
            Entry::Vacant(entry) => drop(entry.insert(Before::Whole(self.whole(number)))),
            Entry::Occupied(mut entry) => {
                let Before::Parts(parts) = entry.get() else { return };
                let whole = self.whole(number).map(|(kind, mut block, _)| {
                    parts.restore(&operation.kept, Arc::make_mut(&mut block.bytes));
                    (kind, block, parts.changed)
                });
                entry.insert(Before::Whole(whole));
            }
        }
    }

    /// What block `number` is, if it is to be kept.
    fn whole(&self, number: u64) -> Option<Whole> {
        let shard = self.versions.then(|| self.shard(number).read())?;
        shard.get(&number).map(|cached| (cached.kind, cached.block.clone(), cached.changed))
    }

    /// Ends an operation: what it did is part of the running transaction.
    pub(crate) fn finish(&self) {
        let mut operation = self.operation.lock();
        let Operation { before, kept, freed, ranges, data, .. } = operation.running();
        let running = &mut *self.running.lock();
        running.bytes += data.iter().map(|item| item.within.len() as u64 + ITEM_HEAD).sum::<u64>();
        running.data.append(data);
        running.bytes += RANGE * *ranges + FREED * freed.len() as u64;
        for number in freed.drain(..) {
            let was = running.blocks.remove(&number);
            running.bytes -= was.map_or(0, |(_, parts)| self.recorded(parts));
            running.freed.insert(number);
        }
        for (number, before) in before.drain() {
            let mut shard = self.shard(number).write();
            let Some(now) = shard.get_mut(&number) else { continue };
            let (parts, changed) = match &before {
                _ if running.freed.contains(&number) => (u64::MAX, 0),
                Before::Whole(Some((kind, block, changed))) if *kind == now.kind => {
                    (self.differing(block, &now.block), *changed)
                }
                Before::Whole(_) => (u64::MAX, 0),
                Before::Parts(parts) => (parts.differing(kept, &now.block), parts.changed),
            };
            if parts == 0 {
                now.changed = changed;
            } else {
                let was = running.blocks.get(&number).map(|(_, parts)| *parts);
                let parts = parts | was.unwrap_or(0);
                running.bytes += self.recorded(parts) - was.map_or(0, |parts| self.recorded(parts));
                running.blocks.insert(number, (now.kind, parts));
            }
        }
        operation.end();
    }

    /// Bytes that a record has of a block of which these parts have changed.
    fn recorded(&self, parts: u64) -> u64 {
        if !self.versions {
            return 0;
        }
        ITEM_HEAD + (u64::from(parts.count_ones()) * self.part as u64).min(self.block)
    }

    /// Ends an operation as if it had not been.
    pub(crate) fn undo(&self) {
        if !self.versions {
            return self.finish();
        }
        let mut operation = self.operation.lock();
        let Operation { before, kept, freed, data, .. } = operation.running();
        freed.clear();
        data.clear();
        for (number, before) in before.drain() {
            let mut shard = self.shard(number).write();
            match before {
                Before::Parts(parts) => {
                    let Some(cached) = shard.get_mut(&number) else { continue };
                    parts.restore(kept, Arc::make_mut(&mut cached.block.bytes));
                    cached.restored(parts.changed);
                }
                Before::Whole(Some((kind, block, changed))) => {
                    shard.insert(number, Cached::new(kind, block, self.tick(), changed));
                }
                Before::Whole(None) => drop(shard.remove(&number)),
            }
        }
        operation.end();
    }

    /// A bit for each sub-block in which two versions of a block differ.
    fn differing(&self, one: &[u8], other: &[u8]) -> u64 {
        let pairs = one.chunks(self.part).zip(other.chunks(self.part)).enumerate();
        pairs.filter(|(_, (one, other))| one != other).fold(0, |bits, (n, _)| bits | 1 << n)
    }

    /// Takes what has run, alone, to be committed; nothing if nothing has. Its blocks stay here until it is settled.
    pub(crate) fn take_running(&self) -> Option<Transaction> {
        let running = &mut *self.running.lock();
        if running.blocks.is_empty() && running.freed.is_empty() && running.data.is_empty() {
            return None;
        }
        let changed = running.blocks.drain().map(|(number, (_, parts))| {
            let shard = self.shard(number).read();
            let cached = shard.get(&number).expect("what is dirty is there");
            (number, cached.kind, parts, cached.block.bytes.clone())
        });
        let mut blocks: Vec<_> = changed.collect();
        blocks.sort_unstable_by_key(|(number, ..)| *number);
        if running.blocks.capacity() > operation::ROOM_MAX {
            running.blocks = InoMap::default();
        }
        let transaction = Transaction {
            number: running.transaction,
            blocks,
            freed: std::mem::take(&mut running.freed).into_iter().collect(),
            ranges: Vec::new(),
            items: std::mem::take(&mut running.data),
        };
        running.transaction += 1;
        running.bytes = 0;
        Some(transaction)
    }

    /// A transaction, and all before it, is in the frames: its blocks need not be here, unless they have changed again.
    pub(crate) fn settled(&self, transaction: u64) {
        self.settled.store(transaction, Ordering::Release);
    }

    /// Whether block `number` was given up by the running transaction.
    #[cfg(test)]
    pub(crate) fn is_freed(&self, number: u64) -> bool {
        let in_operation = self.operation.lock().freed.contains(&number);
        in_operation || self.running.lock().freed.contains(&number)
    }

    /// All blocks that are here.
    #[cfg(test)]
    pub(crate) fn all(&self) -> std::collections::BTreeMap<u64, (Kind, Vec<u8>)> {
        let of = |(number, cached): (&u64, &Cached)| (*number, (cached.kind, cached.block.to_vec()));
        self.shards.iter().flat_map(|shard| shard.read().iter().map(of).collect::<Vec<_>>()).collect()
    }

    /// Writes what is running to the disk, each block where it belongs: for who keeps nothing of it elsewhere.
    #[cfg(test)]
    pub(crate) fn write_home(&self) {
        let mut running = self.running.lock();
        running.transaction += 1;
        running.bytes = 0;
        running.freed.clear();
        for item in std::mem::take(&mut running.data) {
            let mut bytes = vec![0; self.block as usize];
            if !item.fresh {
                self.disk.read(Purpose::Data, item.block * self.block, &mut bytes).unwrap();
            }
            bytes[item.within.clone()].copy_from_slice(item.bytes());
            self.disk.write(Purpose::Data, item.block * self.block, &bytes).unwrap();
        }
        for (number, _) in running.blocks.drain() {
            let shard = &mut *self.shard(number).write();
            let cached = shard.get_mut(&number).expect("what is dirty is there");
            self.disk.write(Purpose::Metadata, number * self.block, &cached.block).unwrap();
            cached.changed = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(blocks: usize) -> Store {
        let image = (0..blocks).flat_map(|n| vec![n as u8; 1024]).collect();
        Store::new(Arc::new(Disk::memory(image)), 1024, 128, 0)
    }

    #[test]
    fn blocks_are_verified_once_and_evicted_in_time() {
        let store = store(64 * 100);
        let mut seen = 0;
        for number in (0..64 * 100).step_by(64).chain([64 * 99]) {
            let block = store.read(Kind::Inodes, number, |_| {
                seen += 1;
                Ok(())
            });
            assert_eq!(block.unwrap()[0], number as u8);
        }
        assert_eq!(seen, 100, "the last one was known");
        assert!(store.shards[0].read().len() <= SHARD_BLOCKS_MIN);
        assert_eq!(store.disk.account().of(Purpose::Metadata).reads, 100);
    }

    #[test]
    fn a_sub_block_is_checked_once_if_it_is_right() {
        let store = store(4);
        let is_checked = |at, result: Result<()>| {
            let mut is_checked = false;
            let look = |block: &Sight<'_>| {
                block.check(at, || {
                    is_checked = true;
                    result
                })
            };
            let found = store.look(Kind::Inodes, 2, |_| Ok(()), look);
            (is_checked, found.is_ok())
        };
        drop(store.read(Kind::Inodes, 2, |_| Ok(())).unwrap());
        assert_eq!(is_checked(256, Err(vfs::Error::Stale)), (true, false));
        assert_eq!(is_checked(256, Ok(())), (true, true));
        assert_eq!(is_checked(383, Ok(())), (false, true));
        assert_eq!(is_checked(384, Ok(())), (true, true), "another one");
    }

    #[test]
    fn a_block_is_one_thing() {
        let store = store(4);
        store.read(Kind::Extents(12), 2, |_| Ok(())).unwrap();
        let error = store.read(Kind::Directory(13), 2, |_| Ok(())).err().unwrap();
        assert!(error.to_string().contains("extents of inode 12 and entries of directory 13"), "{error}");
    }

    impl Store {
        /// Changes the first bytes of block 2, alone.
        fn try_to_change(&self, byte: u8) {
            self.begin();
            self.change(Kind::Inodes, 2, |_| Ok(()), |block| block.at(0..8).fill(byte)).unwrap();
        }

        fn waits(&self) -> bool {
            self.shard(2).read()[&2].changed > self.settled.load(Ordering::Acquire)
        }
    }

    #[test]
    fn a_block_whose_change_is_undone_while_it_is_committed_is_clean_behind_that() {
        for is_settled_before in [false, true] {
            for undone in [false, true] {
                let store = store(4);
                store.try_to_change(7);
                store.finish();
                let transaction = store.take_running().unwrap();
                // Undone, or changed to what it was.
                store.try_to_change(if undone { 8 } else { 7 });
                if is_settled_before {
                    store.settled(transaction.number);
                }
                if undone {
                    store.undo()
                } else {
                    store.finish()
                };
                assert_eq!(store.waits(), !is_settled_before);
                store.settled(transaction.number);
                assert!(!store.waits(), "{is_settled_before} {undone}");
                assert!(store.take_running().is_none());
                assert_eq!(
                    store.read(Kind::Inodes, 2, |_| Ok(())).unwrap()[..9],
                    [7, 7, 7, 7, 7, 7, 7, 7, 2]
                );
                store.try_to_change(9);
                store.finish();
                assert!(store.waits());
            }
        }
    }

    #[test]
    fn what_a_journal_had_is_above_the_disk() {
        let mut store = store(4);
        store.overlay(HashMap::from([(2, Logged { at: 0, begins: Some([7, 8, 9, 10]) })]));
        let mut bytes = vec![0; 2048];
        store.read_through(Purpose::Data, 1, 512, &mut bytes).unwrap();
        assert_eq!(
            (bytes[511], &bytes[512..518], bytes[1535], bytes[1536]),
            (1, &[7, 8, 9, 10, 0, 0][..], 0, 3)
        );
        assert_eq!(store.read(Kind::Inodes, 2, |_| Ok(())).unwrap()[..5], [7, 8, 9, 10, 0]);
        let mut part = [1; 4];
        store.read_through(Purpose::Data, 2, 2, &mut part).unwrap();
        assert_eq!(part, [9, 10, 0, 0]);
    }
}
