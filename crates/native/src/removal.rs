//! What a checkpoint does for the list of snapshots: takes up a new one, and gives back what only a removed one had
//! (HMFS §3.3).
//!
//! - One is removed at a time, between two neighbours that stay: those before and behind it in the list.
//! - What is given back and how far that came ([`Record::cursor`]) is published with one checkpoint: a crash repeats
//!   nothing and loses nothing.

use nvm::Flushed;

use crate::allocator::{Allocator, Frozen};
use crate::bia::Entry;
use crate::fault::{Fault, planted};
use crate::geometry::Medium;
use crate::kept::{Kept, Record, State};
use crate::nat::Tree;
use crate::pointer::NodePointer;
use crate::twin::Traverse;

/// The checkpoint being made.
pub(crate) struct Newest {
    pub(crate) version: u32,
    pub(crate) block: u64,
    pub(crate) tree: Tree,
}

/// Removes snapshots: where they are, and the checkpoint that is newer than all of them.
pub(crate) struct Remover<'a> {
    pub(crate) medium: &'a Medium,
    pub(crate) allocator: &'a Allocator,
    pub(crate) newest: &'a Newest,
}

impl Remover<'_> {
    /// The tree behind a snapshot's: that of the next one, or the newest, if that is the next.
    fn next(&self, kept: &Kept, record: &Record) -> vfs::Result<Tree> {
        match kept.after(record.version) {
            Some(next) if next.version != self.newest.version => {
                Ok(next.checkpoint(self.medium)?.body.tree())
            }
            _ => Ok(self.newest.tree),
        }
    }

    /// Visits what a snapshot has alone, but for its checkpoint block; returns where to go on.
    pub(crate) fn own(
        &self,
        kept: &Kept,
        record: &Record,
        steps: u64,
        visit: &mut dyn FnMut(u64),
    ) -> vfs::Result<Option<u32>> {
        let medium = self.medium;
        let previous = if planted(Fault::PreviousIgnored) { 0 } else { kept.before(record.version) };
        let next = if planted(Fault::NextIgnored) { Tree::default() } else { self.next(kept, record)? };
        let is_own = |block: u64| {
            let born = Entry::read(medium, block).version;
            born > previous && born <= record.version && self.allocator.stays_valid(block)
        };
        let tree = record.checkpoint(medium)?.body.tree();
        let visit = &mut |block, _, _| visit(block);
        Traverse { medium, next, from: record.cursor, steps, is_own: &is_own, visit }.run(tree)
    }

    /// Brings the list of snapshots up to date with the newest checkpoint, which is being made, and is kept if there is a
    /// record for it. A removal looks at `steps` pointers at most.
    pub(crate) fn update(
        &self,
        kept: &mut Kept,
        frozen: &mut Frozen,
        keep: Option<Record>,
        steps: u64,
    ) -> vfs::Result<(NodePointer, Flushed)> {
        let Newest { version, block, .. } = *self.newest;
        if let Some(record) = keep {
            if record.state == State::Doomed {
                kept.begin_use(version); // by whoever has it taken to read it
            }
            kept.put(Record { version, block, ..record });
        }
        if kept.is_removing() && !kept.is_damaged() {
            self.go_on(kept, frozen, steps);
        }
        kept.write(self.medium, self.allocator, frozen, version)
    }

    /// Goes on with the removal under way, or begins with the next.
    fn go_on(&self, kept: &mut Kept, frozen: &mut Frozen, steps: u64) {
        let at_once = |record: &&Record| record.state == State::Doomed && planted(Fault::RemovedAtOnce);
        let doomed_at_once = kept.doomed().find(at_once).cloned();
        match kept.removing().cloned().or(doomed_at_once) {
            // That it is being removed has been published: nothing of it is promised any more.
            Some(record) if !kept.stuck && record.version != self.newest.version => {
                self.give_back(kept, record, frozen, steps);
            }
            _ => {}
        }
        if kept.removing().is_none() {
            let doomed = kept.next_to_remove().cloned();
            doomed.into_iter().for_each(|doomed| kept.put(Record { state: State::Removing, ..doomed }));
        }
    }

    /// Gives back some of what a snapshot has alone, and when it has no more, forgets it.
    fn give_back(&self, kept: &mut Kept, record: Record, frozen: &mut Frozen, steps: u64) {
        match self.own(kept, &record, steps, &mut |block| self.allocator.free_now(frozen, block)) {
            Ok(Some(_)) if planted(Fault::CursorForgotten) => kept.forget(record.version),
            Ok(Some(cursor)) => kept.put(Record { cursor, ..record }),
            Ok(None) => {
                self.allocator.free_now(frozen, record.block);
                kept.forget(record.version);
            }
            Err(error) => {
                let name = &record.name;
                tracing::error!(
                    "the space of the removed snapshot {name:?} does not come back before `amberfs fsck --repair` has looked: {error}"
                );
                kept.stuck = true;
            }
        }
    }
}
