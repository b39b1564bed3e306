//! A mounted volume's state, and how an operation runs on it.
//!
//! Every change is one [`Operation`]: it reserves blocks and log space, locks inodes, streams data to new blocks, logs
//! one transaction, and applies it. Only reservations can fail for want of space, so a commit is never regretted.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nvm::{Flushed, Purpose};
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use smallvec::SmallVec;
use vfs::{Error, Result, Time};

use crate::allocator::{Budget, Frozen, Urgency};
use crate::apply::{self, InPlace};
use crate::checkpoint::{self, Changes, Checkpoint, Facts};
use crate::checksum;
use crate::collect::Collector;
use crate::fault::{self, Fault, planted};
use crate::geometry::Medium;
use crate::handles::Handles;
use crate::inode::Inode;
use crate::journal::{Data, Journal, Number};
use crate::kept::{Kept, Record};
use crate::lanes::{Alone, LANES, Lane, Lanes};
use crate::locks::{Exclusive, Locks, Settling};
use crate::node::Nodes;
use crate::options::Shares;
use crate::record::{Item, TRANSACTION_HEADER, Transaction};
use crate::removal::{Newest, Place};
use crate::superblock::Root;
use crate::transplant::Transplant;
use crate::views::Views;
use crate::{Durability, MountOptions, Recovery, bia::BlockKind, sit};

pub(crate) struct Core {
    pub(crate) medium: Arc<Medium>,
    pub(crate) nodes: Nodes,
    pub(crate) journal: Journal,
    pub(crate) locks: Locks,
    pub(crate) handles: Handles,
    pub(crate) options: MountOptions,
    pub(crate) shares: Shares,
    /// Each changing operation has one; all are held while one epoch ends and the next begins.
    lanes: Lanes,
    publisher: Mutex<Publisher>,
    /// The snapshots, as of the newest checkpoint; changed by who makes the next one.
    pub(crate) snapshots: RwLock<Kept>,
    pub(crate) views: Views,
    /// The first failure that left memory and medium apart; the volume is read-only from then on.
    failure: OnceLock<Error>,
    pub(crate) closed: AtomicBool,
    /// Mounted only to be read, because the log could not be replayed to its end.
    unchanged: AtomicBool,
    checkpoints: AtomicU64,
    generation: Alone<AtomicU32>,
    /// Serialises cross-directory renames: the tree's shape does not change under an ancestry check.
    pub(crate) tree_shape: Mutex<()>,
    /// Protects the orphan directory; taken after all inode locks.
    pub(crate) orphans: Mutex<()>,
    pub(crate) pressure: Pressure,
    pub(crate) collector: Collector,
    _mounted: nvm::Mounted,
}

/// One checkpoint is made at a time.
pub(crate) struct Publisher {
    pub(crate) root: Root,
    pub(crate) newest: Checkpoint,
}

/// Wakes the thread that makes checkpoints.
#[derive(Default)]
pub(crate) struct Pressure {
    pub(crate) wanted: Mutex<bool>,
    pub(crate) changed: Condvar,
}

impl Pressure {
    pub(crate) fn raise(&self) {
        let mut wanted = self.wanted.lock();
        if !*wanted {
            *wanted = true;
            self.changed.notify_one();
        }
    }
}

/// What a checkpoint is for.
pub(crate) enum Aim<'a> {
    /// The state of the running tree, until the next one.
    Newest,
    /// The same, and it is kept, under this record.
    Keep(Box<Record>),
    /// The same, in which blocks that snapshots have are elsewhere.
    Move(Box<Transplant<'a>>),
    /// The tree of this older checkpoint takes the running one's place. Nothing was changed since the last checkpoint,
    /// nothing is read or changed afterwards.
    Return(Checkpoint),
}

/// Whether the next epoch's log begins when the epoch does, or, after a crash, only when the log it was recovered from
/// is no longer needed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextLog {
    WithEpoch,
    OncePublished,
}

impl Core {
    pub(crate) fn new(
        medium: Arc<Medium>,
        nodes: Nodes,
        journal: Journal,
        publisher: Publisher,
        snapshots: Kept,
        options: MountOptions,
        mounted: nvm::Mounted,
    ) -> Core {
        let at = Time { sec: publisher.newest.body.time.get() as i64, nsec: 0 };
        let generation = (publisher.root.mounts.get() as u32).wrapping_mul(0x9E37_79B1);
        Core {
            locks: Locks::new(medium.geometry.blocks, options.crowded),
            medium,
            nodes,
            journal,
            handles: Handles::new(),
            shares: options.shares(),
            options,
            lanes: Lanes::new(),
            publisher: Mutex::new(publisher),
            snapshots: RwLock::new(snapshots),
            views: Views::new(at),
            failure: OnceLock::new(),
            closed: AtomicBool::new(false),
            unchanged: AtomicBool::new(false),
            checkpoints: AtomicU64::new(0),
            generation: Alone::new(AtomicU32::new(generation)),
            tree_shape: Mutex::new(()),
            orphans: Mutex::new(()),
            pressure: Pressure::default(),
            collector: Collector::default(),
            _mounted: mounted,
        }
    }

    /// Reads inode `ino`, whose lock the caller holds.
    #[inline]
    pub(crate) fn inode(&self, ino: u32) -> Result<Inode<'_>> {
        self.nodes.inode(ino)
    }

    /// A generation for a new inode, unlike those its number had before.
    pub(crate) fn next_generation(&self) -> u32 {
        self.generation.fetch_add(1, Ordering::Relaxed)
    }

    /// Begins an operation that takes at most `blocks` blocks and `log_bytes` bytes of items. No inode lock is held.
    pub(crate) fn begin(&self, blocks: u64, log_bytes: usize, urgency: Urgency) -> Result<Operation<'_>> {
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        let log_bytes = log_bytes + TRANSACTION_HEADER;
        let mut waits = 0;
        let (mut checkpointed, mut relieved) = (false, false);
        loop {
            let mut lane = self.lanes.enter();
            // Nothing is changed behind a failure, or behind the last checkpoint.
            if self.closed.load(Ordering::Relaxed) {
                return Err(Error::ReadOnly);
            }
            if let Some(failure) = self.failure.get() {
                return Err(failure.clone());
            }
            if !relieved && self.is_crowded(1) {
                drop(lane);
                self.checkpoint(NextLog::WithEpoch)?;
                relieved = true;
                continue;
            }
            let (has_room, is_filling) = self.journal.reserve(&mut lane.place, log_bytes);
            if is_filling || self.is_crowded(2) {
                self.pressure.raise();
            }
            if has_room {
                if let Some(budget) = self.nodes.allocator.reserve_from(&mut lane.stock, blocks, urgency) {
                    return Ok(Operation {
                        core: self,
                        lane,
                        budget,
                        number: None,
                        transaction: Transaction::new(),
                        streamed: None,
                        allocated: SmallVec::new(),
                        is_half_done: false,
                    });
                }
                drop(lane);
                // What others have in stock, or were promised and don't need: theirs first, then a checkpoint's.
                if waits < if urgency == Urgency::Deletion { LANES } else { 1 } {
                    waits += 1;
                    self.take_back_stocks();
                    continue;
                }
                // A snapshot that is being removed gives more back with each checkpoint.
                let comes_more = self.snapshots.read().is_giving_back();
                if checkpointed && !comes_more {
                    return Err(Error::NoSpace);
                }
                (checkpointed, waits) = (true, 0);
                if !comes_more && !self.nodes.allocator.has_pending() {
                    // Nothing waits for a checkpoint; but one may just have been made, behind the look at what is free.
                    continue;
                }
            } else {
                drop(lane);
            }
            self.checkpoint(NextLog::WithEpoch)?;
        }
    }

    /// Whether what a checkpoint makes room for takes this part of its share of DRAM: 1, all of it.
    fn is_crowded(&self, part: u64) -> bool {
        let (changes, maps) = (self.nodes.nat.dirty_count() as u64, self.nodes.allocator.maps());
        changes >= self.shares.changes / part || maps > self.shares.maps
    }

    /// Makes and publishes a checkpoint of everything that returned before (HMFS §3.2).
    pub(crate) fn checkpoint(&self, next_log: NextLog) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.checkpoint_for(&mut self.publisher.lock(), next_log, Aim::Newest)
    }

    /// The same, for whoever decides what it is for while nobody else makes one.
    pub(crate) fn checkpoint_for(
        &self,
        publisher: &mut Publisher,
        next_log: NextLog,
        aim: Aim<'_>,
    ) -> Result<()> {
        self.make_checkpoint(publisher, next_log, aim).inspect_err(|error| self.fail(error))
    }

    /// Waits for the checkpoint being made; none is made while the result is held.
    pub(crate) fn publisher(&self) -> MutexGuard<'_, Publisher> {
        self.publisher.lock()
    }

    fn make_checkpoint(&self, publisher: &mut Publisher, next_log: NextLog, aim: Aim<'_>) -> Result<()> {
        let nodes = &self.nodes;
        let medium = &*self.medium;
        let predecessor = publisher.newest;
        let is_plain = matches!(aim, Aim::Newest);
        let (aim, mut moved) = match aim {
            Aim::Move(moved) => (Aim::Newest, *moved),
            aim => (aim, Transplant::default()),
        };
        // The epoch ends: nobody is in the middle of an operation.
        let (mut frozen, dirty, facts, in_place) = {
            let mut lanes = self.lanes.all();
            // A checkpoint that failed, or an operation that was applied by halves, is not to be published over.
            if let Some(failure) = self.failure.get() {
                return Err(failure.clone());
            }
            lanes.iter_mut().for_each(|lane| nodes.allocator.give_back(&mut lane.stock));
            if nodes.nat.dirty_count() == 0
                && !self.journal.has_transactions()
                && next_log == NextLog::WithEpoch
                && is_plain
                && !self.snapshots.read().has_changes()
            {
                // Operations that failed may have taken all of the log.
                self.journal.rewind(&mut lanes);
                return Ok(());
            }
            moved.switch()?;
            let version = nodes.version();
            if version >= LAST_VERSION {
                return Err(Error::Io("the volume has made all the checkpoints that its format can number; copy its files to a new one".into()));
            }
            let in_place = match next_log {
                NextLog::WithEpoch => self.journal.begin(version + 1, &mut lanes),
                NextLog::OncePublished => Vec::new(),
            };
            nodes.set_version(version + 1);
            nodes.refresh_nids();
            let mut facts = Facts {
                version,
                previous: predecessor.body.version.get(),
                next_nid: if planted(Fault::HighWaterStale) {
                    predecessor.body.next_nid.get()
                } else {
                    nodes.next_nid()
                },
                nodes: nodes.node_count(),
                inodes: nodes.inodes.load(Ordering::Relaxed) as u32,
                sequence: if planted(Fault::SequenceStale) {
                    predecessor.body.sequence.get()
                } else {
                    self.journal.next()
                },
                blocks: 0, // known when its tree is
            };
            if let Aim::Return(Checkpoint { body, .. }) = &aim {
                facts.next_nid = body.next_nid.get();
                (facts.nodes, facts.inodes) = (body.nodes.get(), body.inodes.get());
                nodes.allocator.recount(body.blocks.get());
            }
            // What is to be kept must not change from now on; what is no longer kept may, as its list has said so.
            let kept = match aim {
                Aim::Keep(_) if !planted(Fault::KeptTooLate) => version,
                _ if planted(Fault::KeptLoweredEarly) => {
                    self.snapshots.read().kept().next_back().map_or(0, |record| record.version)
                }
                _ => self.snapshots.read().newest(),
            };
            (nodes.allocator.freeze(version + 1, kept), nodes.nat.take_dirty(), facts, in_place)
        };
        let dirty = dirty.sorted();
        let (base, keep) = match aim {
            Aim::Newest | Aim::Move(_) => (predecessor.body.tree(), None),
            Aim::Keep(record) => (predecessor.body.tree(), Some(*record)),
            Aim::Return(older) => (older.body.tree(), None),
        };
        let touched = std::mem::take(&mut moved.touched);
        let list = |frozen: &mut Frozen, tree, block| {
            let newest = Newest { version: facts.version, block, tree };
            let place = Place { medium, allocator: &nodes.allocator, newest: &newest };
            let mut kept = self.snapshots.write();
            moved.records.drain(..).for_each(|record| kept.put(record));
            drop(moved.for_list.take()); // it is about to be used
            let (list, listed) = place.update(&mut kept, frozen, keep, self.options.removal_steps.max(1))?;
            Ok((list, moved.flushed.take().unwrap_or_else(Flushed::none).and(listed)))
        };
        let changes = Changes { base, nodes: &dirty, touched: &touched, in_place: &in_place };
        let (checkpoint, journal, durable) =
            checkpoint::prepare(nodes, &predecessor, &mut frozen, &changes, list, &facts)?;
        if planted(Fault::SettledBeforePublished) {
            medium.region.fence(sit::settle(medium, &journal)).ignore();
        }
        checkpoint::publish(medium, &predecessor, durable).ignore();
        if planted(Fault::RootBeforeSettled) {
            publisher.root.write_next(&medium.region, checkpoint.block, false).ignore();
        }
        let settled = sit::settle(medium, &journal);
        fault::fence(&medium.region, Fault::SettleFence, settled).ignore();
        publisher.root.write_next(&medium.region, checkpoint.block, false).ignore();
        publisher.newest = checkpoint;
        nodes.nat.publish(checkpoint.body.tree(), facts.version);
        // An inode's block may have been copied for a neighbour's sake while somebody looked at the old one.
        self.locks.wait_for_all();
        drop(self.orphans.lock());
        if !moved.is_empty() {
            self.views.reopen();
        }
        nodes.allocator.release(&frozen);
        if next_log == NextLog::OncePublished {
            self.begin_log(facts.version + 1);
        }
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        if self.snapshots.read().has_changes() {
            self.pressure.raise();
        }
        medium.check_media()
    }

    /// Begins the log of the running epoch, whose number is `version`, which has no transactions yet.
    pub(crate) fn begin_log(&self, version: u32) {
        let _none_in_place = self.journal.begin(version, &mut self.lanes.all());
    }

    /// A clean end: everything is in the checkpoint, and the root slot says so.
    pub(crate) fn finish(&self) -> Result<()> {
        self.checkpoint(NextLog::WithEpoch)?;
        let mut publisher = self.publisher.lock();
        let block = publisher.newest.block;
        publisher.root.write_next(&self.medium.region, block, true).ignore();
        self.medium.check_media()
    }

    /// Blocks an ordinary operation could still get, and all that are free or will be at the next checkpoint. No lane is held.
    pub(crate) fn space(&self) -> (u64, u64) {
        self.nodes.allocator.space(self.unused_in_stocks())
    }

    /// Blocks that count as in use because a lane has them. No lane is held.
    pub(crate) fn unused_in_stocks(&self) -> u64 {
        let mut unused = 0;
        self.lanes.each(|lane| unused += self.nodes.allocator.unused_in(&lane.stock));
        unused
    }

    /// What lanes have in stock is free for all, and all that they have let go of is told. No lane is held.
    pub(crate) fn take_back_stocks(&self) {
        self.lanes.each(|lane| self.nodes.allocator.give_back(&mut lane.stock));
    }

    /// Makes everything that returned before durable.
    pub(crate) fn sync(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        if let Some(failure) = self.failure.get() {
            return Err(failure.clone());
        }
        match self.options.durability {
            Durability::Operation => self.medium.check_media(),
            Durability::Fsync => {
                self.journal.force();
                self.medium.check_media()
            }
            Durability::Snapshot => self.checkpoint(NextLog::WithEpoch),
        }
    }

    /// Memory and medium may be apart: nothing more is changed, what is durable stays.
    pub(crate) fn fail(&self, error: &Error) {
        if self.failure.set(error.clone()).is_ok() {
            tracing::error!("the volume is read-only from now on: {error}");
        }
    }

    /// The log could not be replayed to its end: what came before is there to be read, nothing is changed, and the next
    /// mount finds the same.
    pub(crate) fn fail_at_mount(&self, error: &Error, recovery: &Recovery) {
        let (left_out, replayed) = (recovery.transactions_left_out, recovery.transactions_replayed);
        let what = format!(
            "{error}; the volume is mounted read-only with the {replayed} transactions before it; \
             `amberfs fsck --repair` drops the {left_out} that are left of the log, and makes it writable again"
        );
        self.unchanged.store(true, Ordering::Relaxed);
        self.fail(&Error::Corrupt(what));
    }

    /// Why the volume is read-only, if a failure made it so.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Whether nothing is to be ended: the log is kept as it was found.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.unchanged.load(Ordering::Relaxed)
    }

    /// Checkpoints made since the mount.
    pub(crate) fn checkpoint_count(&self) -> u64 {
        self.checkpoints.load(Ordering::Relaxed)
    }
}

/// Data on its way to blocks that nothing points to yet.
struct Streamed {
    flushed: Flushed,
    bytes: usize,
    /// Of all of it, if it is little enough to be checked.
    crc: u32,
}

/// Checkpoints are numbered with 32 bits; recovery may skip a few.
const LAST_VERSION: u32 = u32::MAX - 1024;

/// Up to so many bytes, a checksum in the log costs less than a fence of their own.
const CHECKED_MAX: usize = 8 << 10;

/// A change in the making.
pub(crate) struct Operation<'a> {
    pub(crate) core: &'a Core,
    pub(crate) budget: Budget<'a>,
    lane: MutexGuard<'a, Lane>,
    /// Taken before data is streamed that is to become durable with the transaction.
    number: Option<Number>,
    transaction: Transaction,
    streamed: Option<Streamed>,
    /// Runs of blocks allocated; given back if the operation fails before it commits.
    allocated: SmallVec<[(u64, u64); 4]>,
    /// The inode shows a change of which nothing has been sent: it must be ended, or nothing may be changed any more.
    is_half_done: bool,
}

impl<'a> Operation<'a> {
    /// Says that the operation will stream `bytes` in all. The locks of all inodes it concerns are held.
    pub(crate) fn expect_data(&mut self, bytes: usize) {
        if bytes <= CHECKED_MAX && self.core.journal.checks_data() {
            self.number = Some(self.core.journal.number());
        }
    }

    /// Adds an item to the transaction.
    pub(crate) fn log(&mut self, item: &Item<'_>) {
        self.transaction.push(item);
    }

    /// Allocates a run of blocks for a file's data.
    pub(crate) fn allocate(&mut self, ino: u32, index: u64, want: u64) -> Result<(u64, u64)> {
        let run = self.core.nodes.allocator.allocate(&self.budget, BlockKind::Data, ino, index, want)?;
        self.allocated.push(run);
        Ok(run)
    }

    /// Streams file data to where nothing yet points.
    pub(crate) fn stream(&mut self, at: u64, bytes: &[u8]) {
        let flushed = self.core.medium.region.stream(Purpose::Data, at, bytes);
        self.sent(bytes, flushed);
    }

    /// The same, but the processor's caches keep what they can: for what is soon to be changed again.
    pub(crate) fn store(&mut self, at: u64, bytes: &[u8]) {
        let region = &self.core.medium.region;
        region.store(Purpose::Data, at, bytes);
        let flushed = region.flush(Purpose::Data, at, bytes.len() as u64);
        self.sent(bytes, flushed);
    }

    fn sent(&mut self, bytes: &[u8], flushed: Flushed) {
        let total = self.streamed.as_ref().map_or(0, |before| before.bytes) + bytes.len();
        self.streamed = Some(match self.streamed.take() {
            Some(before) => {
                let crc = if total <= CHECKED_MAX { checksum::append(before.crc, bytes) } else { 0 };
                Streamed { flushed: before.flushed.and(flushed), bytes: total, crc }
            }
            None => Streamed {
                flushed,
                bytes: total,
                crc: if total <= CHECKED_MAX { checksum::of(bytes) } else { 0 },
            },
        });
    }

    /// Commits and applies the transaction. The locks of all inodes it concerns are held.
    pub(crate) fn commit(mut self) -> Result<()> {
        if self.transaction.is_empty() {
            return Ok(());
        }
        let core = self.core;
        // What cannot be read reads as zeros: what was put together from that must not become what the file has.
        core.medium.check_media().inspect_err(|error| core.fail(error))?;
        self.allocated.clear();
        if planted(Fault::TransactionInTwo) {
            self.commit_first_item()?;
        }
        let data = match self.streamed.take() {
            None => Data::None,
            Some(data) if core.journal.checks_data() && data.bytes <= CHECKED_MAX => {
                Data::Checked(data.crc, data.flushed)
            }
            Some(data) => Data::Durable(fault::fence(&core.medium.region, Fault::DataFence, data.flushed)),
        };
        let applied = match core.options.durability {
            Durability::Operation => self.commit_at_once(data),
            Durability::Fsync => {
                core.journal.store(&mut self.lane, &mut self.transaction, data);
                if self.transaction.changes_in_place && !planted(Fault::InPlaceNotForced) {
                    // Bytes that a checkpoint reaches change only when their record is durable.
                    core.journal.force();
                }
                self.apply_all(InPlace::WithCheckpoint)
            }
            Durability::Snapshot => self.apply_all(InPlace::Now),
        };
        applied.and_then(|()| core.medium.check_media()).inspect_err(|error| core.fail(error))?;
        // If some other transaction could not be applied, replay may end before this one.
        core.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Begins the commit of a change to a locked inode beside others: it depends on none whose record may still be on its way,
    /// and no other such depends on it. What the inode shows is changed first, with [`Operation::log_at_once`]; then
    /// everything is sent ([`Operation::commit_beside`]).
    pub(crate) fn begin_beside(&mut self) -> Result<()> {
        let core = self.core;
        core.medium.check_media().inspect_err(|error| core.fail(error))?;
        self.allocated.clear();
        self.number = Some(core.journal.number());
        self.transaction.beside = !planted(Fault::BesideNotTold);
        self.is_half_done = true;
        Ok(())
    }

    /// What was begun so cannot be ended: pointers may lead to the places of `data` already. They are filled, so that no
    /// reader finds there what others had; the lock has to be held until this has returned.
    pub(crate) fn give_up_beside(self, data: &[(u64, &[u8])]) {
        for (at, bytes) in data {
            let region = &self.core.medium.region;
            region.fence(region.stream(Purpose::Data, *at, bytes)).ignore();
        }
    }

    /// Adds an item and applies it: a change of the locked inode, which no reader sees before it is durable.
    pub(crate) fn log_at_once(&mut self, item: &Item<'_>) -> Result<()> {
        let core = self.core;
        self.transaction.push(item);
        apply::apply_at_once(&core.nodes, &self.budget, item).inspect_err(|error| core.fail(error))
    }

    /// Commits what was begun so: all was applied at once but for the first `later` bytes of items, which are applied behind
    /// the fence. Others may have `lock` meanwhile; `data` is streamed to where nobody looks before. Who depends on the
    /// change waits until what this returns is dropped.
    ///
    /// Every atomic exchange comes before the streams, and these are one behind the other: an exchange would wait for them,
    /// and the fence once more.
    pub(crate) fn commit_beside(
        mut self,
        lock: Exclusive<'a>,
        later: usize,
        data: &[(u64, &[u8])],
    ) -> Result<Settling<'a>> {
        let core = self.core;
        let settling = lock.give_way();
        let data = match data {
            [] => Data::None,
            [(_, first), others @ ..] => {
                let append = |crc, (_, bytes): &(u64, &[u8])| checksum::append(crc, bytes);
                Data::Beside(others.iter().fold(checksum::of(first), append), data)
            }
        };
        let number = self.number.take().unwrap_or_else(|| core.journal.number());
        let flushed = core.journal.stream(&mut self.lane, number, &mut self.transaction, data);
        fault::fence(&core.medium.region, Fault::CommitFence, flushed).ignore();
        let rest = &self.transaction.bytes[TRANSACTION_HEADER..TRANSACTION_HEADER + later];
        apply::apply(&core.nodes, &self.budget, rest, InPlace::WithCheckpoint)
            .and_then(|()| core.medium.check_media())
            .inspect_err(|error| core.fail(error))?;
        self.is_half_done = false;
        core.failure.get().map_or(Ok(settling), |failure| Err(failure.clone()))
    }

    /// Bytes of items so far.
    pub(crate) fn logged(&self) -> usize {
        self.transaction.bytes.len() - TRANSACTION_HEADER
    }

    /// Whether it may be committed beside others, with so many bytes of data.
    pub(crate) fn may_be_beside(&self, bytes: usize) -> bool {
        let checks_data = self.core.journal.checks_data();
        checks_data && bytes <= CHECKED_MAX && self.streamed.is_none() && !planted(Fault::TransactionInTwo)
    }

    /// Streams the record, applies what may be applied while it is on its way, and the rest when it is durable.
    fn commit_at_once(&mut self, data: Data<'_>) -> Result<()> {
        let core = self.core;
        let number = self.number.take().unwrap_or_else(|| core.journal.number());
        let flushed = core.journal.stream(&mut self.lane, number, &mut self.transaction, data);
        let (early, rest) = self.transaction.items();
        let applied = apply::apply(&core.nodes, &self.budget, early, InPlace::WithCheckpoint);
        fault::fence(&core.medium.region, Fault::CommitFence, flushed).ignore();
        applied?;
        apply::apply(&core.nodes, &self.budget, rest, InPlace::WithCheckpoint)
    }

    /// Commits the first item alone: a fault.
    fn commit_first_item(&mut self) -> Result<()> {
        let whole = std::mem::replace(&mut self.transaction, Transaction::new());
        let mut items = crate::record::Items(&whole.bytes[TRANSACTION_HEADER..]).flatten();
        items.by_ref().take(1).for_each(|item| self.transaction.push(&item));
        self.commit_at_once(Data::None)?;
        self.transaction = Transaction::new();
        items.for_each(|item| self.transaction.push(&item));
        Ok(())
    }

    fn apply_all(&self, in_place: InPlace) -> Result<()> {
        let (early, rest) = self.transaction.items();
        apply::apply(&self.core.nodes, &self.budget, early, in_place)?;
        apply::apply(&self.core.nodes, &self.budget, rest, in_place)
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let core = self.core;
        if self.is_half_done {
            core.fail(&Error::Corrupt("a change was begun and could not be ended".to_string()));
        }
        for (first, length) in self.allocated.drain(..) {
            core.nodes.allocator.free(first, length);
        }
        if let Some(number) = self.number.take() {
            core.journal.abandon(&mut self.lane, number);
        }
        core.nodes.allocator.put_back(&mut self.lane.stock, &self.budget);
    }
}
