//! A mounted volume's state, its checkpoints, and how an operation runs on it.
//!
//! Every change is one [`Operation`]: it reserves blocks and log space, locks inodes, streams data to new blocks, logs
//! one transaction, and applies it. Only reservations can fail for want of space, so a commit is never regretted.

mod checkpointing;
mod collector;
mod operation;
mod pressure;
mod seal;
mod transplant;
mod unwinding;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use vfs::{Error, Result, Time};

use crate::checkpoint::Checkpoint;
use crate::fault::{Fault, planted};
use crate::geometry::{LANES, Medium, VERSIONS};
use crate::handles::Handles;
use crate::inode::Inode;
use crate::journal::Journal;
use crate::kept::Kept;
use crate::lanes::Lanes;
use crate::locks::Locks;
use crate::nodes::Nodes;
use crate::options::Shares;
use crate::per_thread::PerThread;
use crate::superblock::{Left, Root};
use crate::views::Views;
use crate::{Durability, MountOptions, Recovery};

pub(crate) use checkpointing::{Aim, NextLog};
use collector::Collector;
pub(crate) use collector::Memory;
pub(crate) use operation::Operation;
use pressure::Pressure;
pub(crate) use pressure::Task;
use seal::Sealing;
pub(crate) use transplant::Transplant;

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
    /// What has no name is being removed, whoever has it open: nothing is made that would have its number.
    pub(crate) closing: AtomicBool,
    pub(crate) closed: AtomicBool,
    /// Mounted only to be read, because the log could not be replayed to its end.
    unchanged: AtomicBool,
    checkpoints: AtomicU64,
    /// Of the next inode that each thread makes.
    generations: PerThread<AtomicU32>,
    /// Serialises cross-directory renames: the tree's shape does not change under an ancestry check.
    pub(crate) tree_shape: Mutex<()>,
    /// Protects the orphan directory; taken after all inode locks.
    pub(crate) orphans: Mutex<()>,
    /// Some inode without a name found no room to be removed.
    pub(crate) owes_reclaims: AtomicBool,
    /// One at a time makes up for that; taken before all others.
    pub(crate) reclaiming: Mutex<()>,
    pub(crate) pressure: Pressure,
    sealing: Sealing,
    pub(crate) collector: Collector,
    _mounted: nvm::Mounted,
}

/// Generations of one thread.
const GENERATIONS: u32 = u32::MAX / LANES as u32;

/// Recovery may skip a few versions.
pub(crate) const LAST_VERSION: u32 = VERSIONS - 1024;

/// One checkpoint is made at a time.
pub(crate) struct Publisher {
    pub(crate) root: Root,
    pub(crate) newest: Checkpoint,
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
        let sealing = Sealing::new(medium.region.persist_method(), options.background);
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
            closing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            unchanged: AtomicBool::new(false),
            checkpoints: AtomicU64::new(0),
            generations: PerThread::new(|thread| {
                AtomicU32::new(generation.wrapping_add(thread as u32 * GENERATIONS))
            }),
            tree_shape: Mutex::new(()),
            orphans: Mutex::new(()),
            owes_reclaims: AtomicBool::new(false),
            reclaiming: Mutex::new(()),
            pressure: Pressure::default(),
            sealing,
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
        self.generations.mine().fetch_add(1, Ordering::Relaxed)
    }

    /// Whether what a checkpoint makes room for takes this part of its share of DRAM: 1, all of it.
    fn is_crowded(&self, part: u64) -> bool {
        let (changes, maps) = (self.nodes.nat.dirty_count() as u64, self.nodes.allocator.maps());
        changes * part >= self.shares.changes || maps > self.shares.maps
    }

    /// A clean end: everything is in the checkpoint, and the root slot says so.
    pub(crate) fn finish(&self) -> Result<()> {
        self.checkpoint(NextLog::WithEpoch)?;
        // Of a hidden directory that is damaged the check tells.
        let unnamed = self.orphan_list().unwrap_or_default();
        let is_clean = unnamed.is_empty() || planted(Fault::OrphanNotReclaimed);
        let left = if is_clean { Left::Clean } else { Left::CleanButUnnamed };
        let mut publisher = self.publisher.lock();
        let block = publisher.newest.block;
        publisher.root.write_next(&self.medium.region, block, left).ignore();
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

    /// Lets nothing begin any more but removals, and waits for what has begun.
    pub(crate) fn begin_closing(&self) {
        self.closing.store(true, Ordering::Relaxed);
        self.lanes.each(|_| ());
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
