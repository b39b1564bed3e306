//! Making checkpoints: an epoch ends, and the tree that has its changes becomes the newest (HMFS §3.2).

use std::ops::Range;
use std::sync::atomic::Ordering;

use nvm::Flushed;
use parking_lot::MutexGuard;
use vfs::{Error, Result};

use super::transplant::Transplant;
use crate::allocator::Frozen;
use crate::checkpoint::{self, Changes, Checkpoint, Facts};
use crate::core::{Core, LAST_VERSION, Publisher};
use crate::fault::{self, Fault, planted};
use crate::kept::Record;
use crate::nat::Dirty;
use crate::removal::{Newest, Remover};
use crate::sit;
use crate::superblock::Left;

fn all_versions_used() -> Error {
    Error::Io(
        "the volume has made all the checkpoints that its format can number; copy its files to a new one"
            .into(),
    )
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

/// An epoch that has ended: what its checkpoint is made of.
struct Ended {
    facts: Facts,
    /// What it took and let go of.
    frozen: Frozen,
    dirty: Dirty,
    /// Where in the log transactions are that changed data in place.
    in_place: Vec<Range<u64>>,
}

impl Core {
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
        let _unwinding = self.watch_over();
        self.make_checkpoint(publisher, next_log, aim).inspect_err(|error| self.fail(error))
    }

    /// Waits for the checkpoint being made; none is made while the result is held.
    pub(crate) fn publisher(&self) -> MutexGuard<'_, Publisher> {
        self.publisher.lock()
    }

    fn make_checkpoint(&self, publisher: &mut Publisher, next_log: NextLog, aim: Aim<'_>) -> Result<()> {
        let is_due = next_log == NextLog::OncePublished || !matches!(aim, Aim::Newest);
        let (aim, mut moved) = match aim {
            Aim::Move(moved) => (Aim::Newest, *moved),
            aim => (aim, Transplant::default()),
        };
        let Some(ended) = self.end_epoch(&publisher.newest, next_log, &aim, &mut moved, is_due)? else {
            return Ok(());
        };
        let version = ended.facts.version;
        let frozen = self.write_out(publisher, ended, aim, &mut moved)?;
        // An inode's block may have been copied for a neighbour's sake while somebody looked at the old one.
        self.locks.wait_for_all();
        drop(self.orphans.lock());
        if !moved.is_empty() {
            self.views.reopen();
        }
        self.nodes.allocator.release(&frozen);
        if next_log == NextLog::OncePublished {
            self.begin_log(version + 1);
        }
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.check_versions();
        if self.snapshots.read().has_changes() {
            self.pressure.raise();
        }
        self.medium.check_media()
    }

    /// Ends the running epoch, and begins the next one, while nobody is in the middle of an operation. `None` if nothing was changed,
    /// and no checkpoint is due for another reason.
    fn end_epoch(
        &self,
        predecessor: &Checkpoint,
        next_log: NextLog,
        aim: &Aim<'_>,
        moved: &mut Transplant<'_>,
        is_due: bool,
    ) -> Result<Option<Ended>> {
        let nodes = &self.nodes;
        let mut lanes = self.lanes.all();
        let _unwinding = self.watch_over();
        // A checkpoint that failed, or an operation that was applied by halves, is not to be published over.
        if let Some(failure) = self.failure.get() {
            return Err(failure.clone());
        }
        lanes.iter_mut().for_each(|lane| nodes.allocator.give_back(&mut lane.stock));
        let has_changes = nodes.nat.dirty_count() > 0 || self.journal.has_transactions();
        if !is_due && !has_changes && !self.snapshots.read().has_changes() {
            // Operations that failed may have taken all of the log.
            self.journal.rewind(&mut lanes);
            return Ok(None);
        }
        moved.switch()?;
        let version = nodes.version();
        if version >= LAST_VERSION && next_log == NextLog::WithEpoch {
            return Err(all_versions_used());
        }
        let in_place = match next_log {
            NextLog::WithEpoch => self.journal.begin(version + 1, &mut lanes),
            NextLog::OncePublished => Vec::new(),
        };
        nodes.set_version(version + 1);
        nodes.refresh_nids();
        let facts = self.facts(version, predecessor, aim);
        if let Aim::Return(older) = aim {
            nodes.allocator.recount(older.body.blocks.get());
        }
        let frozen = nodes.allocator.freeze(version + 1, self.newest_kept(version, aim));
        Ok(Some(Ended { facts, frozen, dirty: nodes.nat.take_dirty(), in_place }))
    }

    /// What the checkpoint of an epoch that ends is to say. That of an older one's tree says what that did.
    fn facts(&self, version: u32, predecessor: &Checkpoint, aim: &Aim<'_>) -> Facts {
        let (nodes, before) = (&self.nodes, &predecessor.body);
        let mut facts = Facts {
            version,
            previous: before.version.get(),
            next_nid: match planted(Fault::HighWaterStale) {
                true => before.next_nid.get(),
                false => nodes.next_nid(),
            },
            nodes: nodes.node_count(),
            inodes: nodes.inode_count() as u32,
            sequence: match planted(Fault::SequenceStale) {
                true => before.sequence.get(),
                false => self.journal.next(),
            },
            blocks: 0, // known when its tree is
        };
        if let Aim::Return(Checkpoint { body, .. }) = aim {
            facts.next_nid = body.next_nid.get();
            (facts.nodes, facts.inodes) = (body.nodes.get(), body.inodes.get());
        }
        facts
    }

    /// The newest version that is kept from now on: it must not change any more; what is no longer kept may, as the list of snapshots has
    /// said so.
    fn newest_kept(&self, ending: u32, aim: &Aim<'_>) -> u32 {
        match aim {
            Aim::Keep(_) if !planted(Fault::KeptTooLate) => ending,
            _ if planted(Fault::KeptLoweredEarly) => {
                self.snapshots.read().kept().next_back().map_or(0, |record| record.version)
            }
            _ => self.snapshots.read().newest(),
        }
    }

    /// Writes the checkpoint of an epoch that ended, and makes it the newest. Gives what may be used again from now on.
    fn write_out(
        &self,
        publisher: &mut Publisher,
        ended: Ended,
        aim: Aim<'_>,
        moved: &mut Transplant<'_>,
    ) -> Result<Frozen> {
        let (nodes, medium) = (&self.nodes, &*self.medium);
        let predecessor = publisher.newest;
        let Ended { facts, mut frozen, dirty, in_place } = ended;
        let dirty = dirty.sorted();
        let (base, keep) = match aim {
            Aim::Newest | Aim::Move(_) => (predecessor.body.tree(), None),
            Aim::Keep(record) => (predecessor.body.tree(), Some(*record)),
            Aim::Return(older) => (older.body.tree(), None),
        };
        let touched = std::mem::take(&mut moved.touched);
        let list = |frozen: &mut Frozen, tree, block| {
            let newest = Newest { version: facts.version, block, tree };
            let remover = Remover { medium, allocator: &nodes.allocator, newest: &newest };
            let mut kept = self.snapshots.write();
            moved.records.drain(..).for_each(|record| kept.put(record));
            drop(moved.for_list.take()); // it is about to be used
            let (list, listed) =
                remover.update(&mut kept, frozen, keep, self.options.removal_steps.max(1))?;
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
            publisher.root.write_next(&medium.region, checkpoint.block, Left::InUse).ignore();
        }
        let settled = sit::settle(medium, &journal);
        fault::fence(&medium.region, Fault::SettleFence, settled).ignore();
        publisher.root.write_next(&medium.region, checkpoint.block, Left::InUse).ignore();
        publisher.newest = checkpoint;
        nodes.nat.publish(checkpoint.body.tree(), facts.version);
        Ok(frozen)
    }

    /// Lets nothing more be changed if the running epoch could have no checkpoint.
    pub(crate) fn check_versions(&self) {
        if self.nodes.version() >= LAST_VERSION {
            self.fail(&all_versions_used());
        }
    }

    /// Begins the log of the running epoch, whose number is `version`, which has no transactions yet.
    pub(crate) fn begin_log(&self, version: u32) {
        let _none_in_place = self.journal.begin(version, &mut self.lanes.all());
    }
}
