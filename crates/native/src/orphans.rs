//! Inodes without a name: open but unlinked, or made by `O_TMPFILE`. A hidden directory names them, so that a crash
//! leaves none behind.

use std::sync::atomic::Ordering;

use vfs::{Error, FileKind, Handle, Result, Time};

use crate::allocator::Urgency;
use crate::bia::BlockKind;
use crate::core::{Core, NextLog, Operation};
use crate::directory::{self, Probe};
use crate::fault::{Fault, planted};
use crate::index;
use crate::inode::{Inode, Layout, number_of, slots_in};
use crate::namespace::{NAMES_BLOCKS, NAMES_LOG};
use crate::node::ORPHANS;
use crate::page::Entry;
use crate::record::Item;

/// Blocks beyond those of the deletion under way that are left for others when the hidden directory grows. Together they are more
/// than a deletion takes, and fewer than are kept for deletions on the smallest volume.
const LEFT_BLOCKS: u64 = 16;

impl Core {
    /// Logs that `victim` lost a name, and commits.
    pub(crate) fn commit_unnamed(
        &self,
        operation: &mut Operation<'_>,
        victim: Inode<'_>,
        at: Time,
    ) -> Result<()> {
        let ino = victim.ino;
        let hot = victim.hot().changed(at);
        let left = if victim.kind() == FileKind::Directory { 0 } else { hot.nlink.get().saturating_sub(1) };
        let hot = hot.with_links(left);
        if left > 0 {
            operation.log_hot(victim, &hot);
            return operation.commit();
        }
        if !self.handles.is_open(ino) {
            self.check_removable(victim)?;
            operation.log(&Item::Remove { ino });
            return operation.commit();
        }
        let _orphans = self.orphans.lock();
        operation.log_hot(victim, &hot);
        if !planted(Fault::OrphanNotNamed) {
            self.log_orphan(operation, ino)?;
        }
        operation.commit()
    }

    /// Reads what removing an inode will read: damage is found before the removal is committed, not after.
    pub(crate) fn check_removable(&self, inode: Inode<'_>) -> Result<()> {
        match inode.layout() {
            Layout::Mapped => index::check(&self.nodes, inode, index::ALL)?,
            Layout::Directory => directory::walk(&self.nodes, inode, &mut |_, _| Ok(()))?,
            Layout::Inline => {}
        }
        match inode.derived().xattr_nid.get() {
            0 => Ok(()),
            nid => self.nodes.view(nid, BlockKind::Xattr).map(drop),
        }
    }

    /// Logs the entry of an inode without a name in the hidden directory, whose lock is held. That does not grow into the last
    /// blocks that are kept for deletions: its entries could not be removed any more, nor anything else.
    pub(crate) fn log_orphan(&self, operation: &mut Operation<'_>, ino: u32) -> Result<()> {
        let (hidden, name) = (self.inode(ORPHANS)?, ino.to_string());
        let Probe::Vacant(spot) = directory::probe(&self.nodes, hidden, name.as_bytes())? else {
            return Err(Error::Exists);
        };
        let may_grow = || self.nodes.allocator.reserve(LEFT_BLOCKS, Urgency::Deletion).is_some();
        if !directory::has_room(&self.nodes, &spot, name.as_bytes())? && !may_grow() {
            return Err(Error::NoSpace);
        }
        let kind = FileKind::Regular as u8;
        operation.seen.note(spot);
        operation.log(&Item::Enter { dir: ORPHANS, key: spot.key, ino, kind, name: name.as_bytes() });
        Ok(())
    }

    /// Logs that inode `ino` is no longer without a name.
    pub(crate) fn log_adopted(&self, operation: &mut Operation<'_>, ino: u32) -> Result<()> {
        let hidden = self.inode(ORPHANS)?;
        if let Probe::Found(_, spot) = directory::probe(&self.nodes, hidden, ino.to_string().as_bytes())? {
            operation.seen.note(spot);
            operation.log(&Item::Leave { dir: ORPHANS, key: spot.key });
        }
        Ok(())
    }

    pub(crate) fn release(&self, handle: Handle) -> Result<()> {
        let (ino, last) = self.handles.close(handle)?;
        if !last {
            return Ok(());
        }
        // Who took the last name before the handle was closed had the lock by then; who does so later finds it closed.
        let unnamed = match self.links_and_flags_glimpse(ino) {
            Some((links, _)) => links == 0,
            None => {
                let _lock = self.locks.read(ino);
                self.inode(ino).is_ok_and(|inode| inode.hot().nlink.get() == 0)
            }
        };
        if !unnamed || self.options.read_only {
            return Ok(());
        }
        match self.reclaim(ino) {
            // Nobody would ask for that again: the thread that makes checkpoints does.
            Err(Error::NoSpace) => {
                self.owes_reclaims.store(true, Ordering::Relaxed);
                self.pressure.raise();
                Ok(())
            }
            reclaimed => reclaimed,
        }
    }

    /// What became of something done for whoever is to have a handle: who gets an error does not get the handle to close. No lane and
    /// no inode lock is held.
    pub(crate) fn or_release<R>(&self, handle: Handle, result: Result<R>) -> Result<R> {
        if result.is_err()
            && let Err(error) = self.release(handle)
        {
            tracing::error!("a handle that nobody has leaves something behind: {error}");
        }
        result
    }

    /// Removes inodes without a name that found no room to be removed when they were closed, as far as there is room now. What another thread
    /// is about is done, too, when this returns.
    pub(crate) fn reclaim_owed(&self) {
        let _reclaiming = self.reclaiming.lock();
        if !self.owes_reclaims.swap(false, Ordering::Relaxed) {
            return;
        }
        for ino in self.orphan_list().unwrap_or_default() {
            if self.handles.is_open(ino) {
                continue;
            }
            match self.reclaim(ino) {
                Ok(()) => {}
                Err(Error::NoSpace) => return self.owes_reclaims.store(true, Ordering::Relaxed),
                Err(error) => tracing::error!("inode {ino}, which has no name, stays: {error}"),
            }
        }
    }

    /// Removes inode `ino` if it has neither name nor handle.
    pub(crate) fn reclaim(&self, ino: u32) -> Result<()> {
        let mut operation = self.begin(NAMES_BLOCKS, NAMES_LOG, Urgency::Deletion)?;
        let _lock = self.locks.write(ino);
        let gone = match self.inode(ino) {
            Err(Error::Stale) => return Ok(()),
            inode => inode?.hot().nlink.get() == 0 && !self.handles.is_open(ino),
        };
        if !gone {
            return Ok(());
        }
        self.check_removable(self.inode(ino)?)?;
        let _orphans = self.orphans.lock();
        if !planted(Fault::HiddenEntryLeft) {
            self.log_adopted(&mut operation, ino)?;
        }
        operation.log(&Item::Remove { ino });
        operation.commit()
    }

    /// Makes the hidden directory anew, which is damaged, while nobody has opened anything; returns the inodes without a
    /// name, which it names. They are in it when it is published: who goes on after a crash finds it damaged, or with them all.
    pub(crate) fn renew_orphans(&self) -> Result<Vec<u32>> {
        let (nodes, unnamed) = (&self.nodes, self.unnamed());
        let budget = |blocks| nodes.allocator.reserve(blocks, Urgency::Checkpoint).ok_or(Error::NoSpace);
        directory::begin_anew(nodes, &budget(8)?, ORPHANS)?;
        for &ino in unnamed.iter().filter(|_| !planted(Fault::RenewedEmpty)) {
            let name = ino.to_string();
            let Probe::Vacant(spot) = directory::probe(nodes, self.inode(ORPHANS)?, name.as_bytes())? else {
                return Err(Error::Exists);
            };
            let entry = Entry { key: spot.key, ino, kind: FileKind::Regular as u8, name: name.as_bytes() };
            let budget = budget(NAMES_BLOCKS)?;
            directory::enter(nodes, &budget, nodes.edit_inode(&budget, ORPHANS)?, &entry, Some(spot))?;
        }
        self.checkpoint(NextLog::WithEpoch)?;
        Ok(unnamed)
    }

    /// Inodes without a name, as far as they can be read, in time that follows how many nodes there are.
    fn unnamed(&self) -> Vec<u32> {
        let (nodes, mut unnamed) = (&self.nodes, Vec::new());
        for nid in 0..nodes.next_nid() {
            // What cannot be read is told by the check that asked for this.
            let Ok(view) = nodes.view(nid, BlockKind::Inode) else { continue };
            let inodes = slots_in(view.header().slots.get()).map(|slot| number_of(nid, slot as u32));
            unnamed.extend(
                inodes.filter(|ino| self.inode(*ino).is_ok_and(|inode| inode.hot().nlink.get() == 0)),
            );
        }
        unnamed
    }

    /// Inodes without a name, open or left over from a crash.
    pub(crate) fn orphan_list(&self) -> Result<Vec<u32>> {
        let _orphans = self.orphans.lock();
        let mut orphans = Vec::new();
        directory::list(&self.nodes, self.inode(ORPHANS)?, 0, &mut |entry| {
            orphans.push(entry.ino);
            true
        })?;
        Ok(orphans)
    }
}
