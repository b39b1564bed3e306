//! A change in the making: one transaction, from its reservations to its commit (Shortcut-JFS §III.A).

use std::sync::atomic::Ordering;

use nvm::{Flushed, Purpose};
use parking_lot::MutexGuard;
use smallvec::SmallVec;
use vfs::{Error, Result};

use super::unwinding::Unwinding;
use super::{Core, NextLog};
use crate::Durability;
use crate::allocator::{Budget, Urgency};
use crate::apply::{self, InPlace, Seen};
use crate::bia::BlockKind;
use crate::checksum;
use crate::fault::{self, Fault, planted};
use crate::geometry::LANES;
use crate::index;
use crate::inode::{Hot, Inode};
use crate::journal::{Data, Number};
use crate::lanes::Lane;
use crate::locks::{Exclusive, Settling};
use crate::pointer::DataPointer;
use crate::record::{Item, TRANSACTION_HEADER, Transaction};

/// Data on its way to blocks that nothing points to yet.
struct Streamed {
    flushed: Flushed,
    bytes: usize,
    /// Of all of it, if it is little enough to be checked.
    crc: u32,
}

/// Up to so many bytes, a checksum in the log costs less than a fence of their own.
const CHECKED_MAX: usize = 8 << 10;

/// A change in the making.
pub(crate) struct Operation<'a> {
    pub(crate) core: &'a Core,
    /// Let go of before the lane.
    _unwinding: Unwinding<'a>,
    pub(crate) budget: Budget<'a>,
    lane: MutexGuard<'a, Lane>,
    /// Taken before data is streamed that is to become durable with the transaction.
    number: Option<Number>,
    transaction: Transaction,
    pub(crate) seen: Seen<'a>,
    streamed: Option<Streamed>,
    /// Runs of blocks allocated; given back if the operation fails before it commits.
    allocated: SmallVec<[(u64, u64); 4]>,
    /// The new inode's number, given back likewise.
    made: Option<u32>,
    /// The inode shows a change of which nothing has been sent: it must be ended, or nothing may be changed any more.
    is_half_done: bool,
    /// Its transaction was committed, or is being: nothing is added to it any more.
    is_ended: bool,
}

impl Core {
    /// Begins an operation that takes at most `blocks` blocks and `log_bytes` bytes of items. No inode lock is held.
    pub(crate) fn begin(&self, blocks: u64, log_bytes: usize, urgency: Urgency) -> Result<Operation<'_>> {
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        let log_bytes = log_bytes + TRANSACTION_HEADER;
        let mut search = Search::default();
        let mut relieved = false;
        loop {
            let mut lane = self.lanes.enter();
            let unwinding = self.watch_over();
            self.check_open(urgency)?;
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
            self.ask_to_seal();
            if !has_room {
                drop(lane);
                self.checkpoint(NextLog::WithEpoch)?;
                continue;
            }
            if let Some(budget) = self.nodes.allocator.reserve_from(&mut lane.stock, blocks, urgency) {
                return Ok(Operation {
                    core: self,
                    _unwinding: unwinding,
                    lane,
                    budget,
                    number: None,
                    transaction: Transaction::new(),
                    seen: Seen::default(),
                    streamed: None,
                    allocated: SmallVec::new(),
                    made: None,
                    is_half_done: false,
                    is_ended: false,
                });
            }
            drop(lane);
            self.search_blocks(&mut search, urgency)?;
        }
    }

    /// An error if nothing may be changed any more: behind a failure, or behind the last checkpoint.
    fn check_open(&self, urgency: Urgency) -> Result<()> {
        if self.closing.load(Ordering::Relaxed)
            && (urgency != Urgency::Deletion || self.closed.load(Ordering::Relaxed))
        {
            return Err(Error::ReadOnly);
        }
        self.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Looks further for blocks that an operation did not find free: what others have in stock, or were promised and don't need, and
    /// then what a checkpoint gives back. `ENOSPC` if that was all.
    #[cold]
    fn search_blocks(&self, search: &mut Search, urgency: Urgency) -> Result<()> {
        let patience = if urgency == Urgency::Ordinary { 1 } else { LANES };
        if search.asked < patience {
            search.asked += 1;
            self.take_back_stocks();
            return Ok(());
        }
        // A snapshot that is being removed gives more back with each checkpoint.
        let comes_more = self.snapshots.read().is_giving_back();
        if search.checkpointed && !comes_more {
            if self.owes_reclaims.load(Ordering::Relaxed) {
                self.pressure.raise();
            }
            return Err(Error::NoSpace);
        }
        *search = Search { checkpointed: true, asked: 0 };
        if !comes_more && !self.nodes.allocator.has_pending() {
            // Nothing waits for a checkpoint; but one may just have been made, behind the look at what is free.
            return Ok(());
        }
        self.checkpoint(NextLog::WithEpoch)
    }
}

/// What an operation has done to find blocks.
#[derive(Default)]
struct Search {
    /// How often it has had others give back theirs, since it began or since a checkpoint.
    asked: usize,
    checkpointed: bool,
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

    /// Logs what is hot of a locked inode from now on, unless it is so already: the clock is coarse. That was durable, or comes
    /// before this in the log; who goes beside others, whose change may be neither, logs it in any case.
    pub(crate) fn log_hot(&mut self, inode: Inode<'_>, hot: &Hot) {
        if inode.hot() != *hot {
            self.log(&Item::Hot { ino: inode.ino, hot });
        }
    }

    /// Looks up where block `index` of a mapped file is, and how many of `max` blocks continue it ([`index::run`]), before its pointer is
    /// changed.
    #[inline]
    pub(crate) fn look_up(&mut self, inode: Inode<'_>, index: u64, max: u64) -> Result<(DataPointer, u64)> {
        let (pointer, length, leaf) = index::run_to_change(&self.core.nodes, inode, index, max)?;
        self.seen.leaf = leaf;
        Ok((pointer, length))
    }

    /// Allocates a run of blocks for a file's data.
    pub(crate) fn allocate(&mut self, ino: u32, index: u64, want: u64) -> Result<(u64, u64)> {
        let run = self.core.nodes.allocator.allocate(&self.budget, BlockKind::Data, ino, index, want)?;
        self.allocated.push(run);
        Ok(run)
    }

    /// Its commit begins: what was allocated for it is in use from now on, whatever comes of it.
    fn begin_commit(&mut self) {
        debug_assert!(!self.is_ended, "an operation is committed once");
        self.is_ended = true;
        self.allocated.clear();
        self.made = None;
    }

    /// Takes a number for the inode that the operation makes; it makes one at most.
    pub(crate) fn take_number(&mut self) -> Result<u32> {
        debug_assert_eq!(self.made, None, "an operation makes one inode");
        let ino = self.core.nodes.take_number()?;
        self.made = Some(ino);
        Ok(ino)
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

    /// Commits and applies the transaction, the last that is done with the operation. The locks of all inodes it concerns are held.
    ///
    /// It stays where it is: moving it takes as long as a look-up, and to read it in wide pieces waits for what was just stored
    /// there, which has to wait for all that was streamed before.
    pub(crate) fn commit(&mut self) -> Result<()> {
        if self.transaction.is_empty() && self.streamed.is_none() {
            return Ok(());
        }
        let core = self.core;
        let _unwinding = core.watch_over();
        // What cannot be read reads as zeros: what was put together from that must not become what the file has.
        core.medium.check_media().inspect_err(|error| core.fail(error))?;
        self.begin_commit();
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
        self.begin_commit();
        self.number = Some(core.journal.number());
        self.transaction.beside = !planted(Fault::BesideNotTold);
        self.is_half_done = true;
        Ok(())
    }

    /// What was begun so cannot be ended: pointers may lead to the places of `data` already. They are filled, so that no
    /// reader finds there what others had, and nothing is changed any more; the lock has to be held until this has returned.
    pub(crate) fn give_up_beside(&self, data: &[(u64, &[u8])]) {
        self.fail_half_done();
        for (at, bytes) in data {
            let region = &self.core.medium.region;
            region.fence(region.stream(Purpose::Data, *at, bytes)).ignore();
        }
    }

    fn fail_half_done(&self) {
        self.core.fail(&Error::Corrupt("a change was begun and could not be ended".to_string()));
    }

    /// Adds an item and applies it: a change of the locked inode, which no reader sees before it is durable.
    pub(crate) fn log_at_once(&mut self, item: &Item<'_>) -> Result<()> {
        let core = self.core;
        let _unwinding = core.watch_over();
        self.transaction.push(item);
        apply::apply_at_once(&core.nodes, &self.budget, &mut self.seen, item)
            .inspect_err(|error| core.fail(error))
    }

    /// Commits what was begun so: all was applied at once but for the first `later` bytes of items, which are applied behind
    /// the fence. Others may have `lock` meanwhile; `data` is streamed to where nobody looks before. Who depends on the
    /// change waits until what this returns is dropped.
    ///
    /// Every atomic exchange comes before the streams, and these are one behind the other: an exchange would wait for them,
    /// and the fence once more.
    pub(crate) fn commit_beside(
        &mut self,
        lock: Exclusive<'a>,
        later: usize,
        data: &[(u64, &[u8])],
    ) -> Result<Settling<'a>> {
        let core = self.core;
        let settling = lock.give_way();
        let _unwinding = core.watch_over();
        let number = self.number.take().unwrap_or_else(|| core.journal.number());
        data.iter().for_each(|(at, bytes)| self.stream(*at, bytes));
        let data = match self.streamed.take() {
            None => Data::None,
            Some(data) => Data::Checked(data.crc, data.flushed),
        };
        let flushed = core.journal.stream(&mut self.lane, number, &mut self.transaction, data);
        fault::fence(&core.medium.region, Fault::CommitFence, flushed).ignore();
        let rest = &self.transaction.bytes[TRANSACTION_HEADER..TRANSACTION_HEADER + later];
        apply::apply(&core.nodes, &self.budget, &mut self.seen, rest, InPlace::WithCheckpoint)
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
    fn commit_at_once(&mut self, data: Data) -> Result<()> {
        let core = self.core;
        let number = self.number.take().unwrap_or_else(|| core.journal.number());
        let flushed = core.journal.stream(&mut self.lane, number, &mut self.transaction, data);
        let (early, rest) = self.transaction.items();
        let (nodes, seen) = (&core.nodes, &mut self.seen);
        let applied = apply::apply(nodes, &self.budget, seen, early, InPlace::WithCheckpoint);
        fault::fence(&core.medium.region, Fault::CommitFence, flushed).ignore();
        applied?;
        if rest.is_empty() {
            return Ok(());
        }
        apply::apply(nodes, &self.budget, seen, rest, InPlace::WithCheckpoint)
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

    fn apply_all(&mut self, in_place: InPlace) -> Result<()> {
        let (early, rest) = self.transaction.items();
        let (nodes, seen) = (&self.core.nodes, &mut self.seen);
        apply::apply(nodes, &self.budget, seen, early, in_place)?;
        apply::apply(nodes, &self.budget, seen, rest, in_place)
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let core = self.core;
        if self.is_half_done {
            self.fail_half_done();
        }
        for (first, length) in self.allocated.drain(..) {
            core.nodes.allocator.free(first, length);
        }
        if let Some(ino) = self.made {
            core.nodes.return_number(ino);
        }
        if let Some(number) = self.number.take() {
            core.journal.abandon(&mut self.lane, number);
        }
        core.nodes.allocator.put_back(&mut self.lane.stock, &self.budget);
    }
}

#[cfg(test)]
mod tests {
    use crate::MountOptions;
    use crate::allocator::Urgency;
    use crate::format;
    use crate::inode::nid_of;

    #[test]
    fn the_number_of_an_inode_that_was_not_made_is_given_back() {
        let core = format::new_in_memory(18 << 20, &MountOptions::default());
        let first = core.nodes.next_nid();
        for _ in 0..1000 {
            let mut operation = core.begin(1, 0, Urgency::Ordinary).unwrap();
            let nid = nid_of(operation.take_number().unwrap());
            assert!(nid < first + 2, "{first} was the next, and {nid} was given");
        }
        core.finish().unwrap();
    }
}
