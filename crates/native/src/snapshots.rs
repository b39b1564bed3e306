//! Snapshots: taking one, naming and holding it, letting go of it (HMFS §3).
//!
//! A snapshot is whole from the moment in which its record is published until one is published that says it is being
//! removed. Blocks it has are neither freed nor changed in place meanwhile, nor in the epoch in which that changes.

use std::sync::atomic::Ordering;

use nvm::Region;
use vfs::Time;

use crate::Error;
use crate::bia::Entry;
use crate::checkpoint::Checkpoint;
use crate::core::{Aim, Core, NextLog, Publisher};
use crate::geometry::Medium;
use crate::inspect::AtRest;
use crate::kept::{Kept, Record, Snapshot, State, TEXT_MAX};
use crate::twin::{self, Traverse};

/// What a snapshot takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotUsage {
    /// Blocks that only it has: what removing it gives back.
    pub own_blocks: u64,
    /// Blocks that the snapshot before it, or the one behind it or the volume itself, has too.
    pub shared_blocks: u64,
}

/// Checks a text that a record is to have.
fn check_text(what: &str, text: &str, least: usize) -> Result<(), Error> {
    let wrong = |why: &str| Err(Error::SnapshotText(format!("{what} {text:?} of a snapshot {why}")));
    match text {
        _ if text.len() < least => wrong("is empty"),
        _ if text.len() > TEXT_MAX => wrong(&format!("has more than {TEXT_MAX} bytes")),
        _ if text.chars().any(char::is_control) => wrong("has control characters"),
        _ => Ok(()),
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    check_text("the name", name, 1)?;
    if name == "." || name == ".." || name.contains('/') {
        return Err(Error::SnapshotText(format!(
            "{name:?} cannot be a directory's name, so not a snapshot's either"
        )));
    }
    Ok(())
}

/// The snapshot called `name`. That there is none, a damaged list does not know.
pub(crate) fn named<'k>(kept: &'k Kept, name: &str) -> Result<&'k Record, Error> {
    match kept.find(name) {
        Some(record) => Ok(record),
        None if kept.is_damaged() => Err(list_damaged()),
        None => Err(Error::NoSnapshot(name.into())),
    }
}

fn list_damaged() -> Error {
    let what = "the list of snapshots is damaged: it may not tell of all there are, and none is taken, removed or changed; unmount the volume and \
                run `amberfs fsck --repair`";
    vfs::Error::Corrupt(what.into()).into()
}

/// A snapshot that is not removed while somebody reads it.
pub(crate) struct InUse<'a> {
    core: &'a Core,
    pub(crate) record: Record,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        let mut kept = self.core.snapshots.write();
        kept.end_use(self.record.version);
        let has_changes = kept.has_changes();
        drop(kept);
        if has_changes {
            self.core.pressure.raise();
        }
    }
}

impl Core {
    /// Publishes a checkpoint of everything that returned before, and keeps it (HMFS §3.2).
    pub(crate) fn take_snapshot(&self, name: &str, comment: &str) -> Result<Snapshot, Error> {
        check_name(name)?;
        check_text("the comment", comment, 0)?;
        self.keep(&mut self.publisher(), name, comment, State::Kept)?;
        self.views.note_change();
        self.snapshot(name)
    }

    /// The same for one that is in `state` from the beginning.
    fn keep(&self, publisher: &mut Publisher, name: &str, comment: &str, state: State) -> Result<(), Error> {
        self.check_list_changeable()?;
        let record = Record {
            version: 0, // known when its epoch ends, as is its block
            block: 0,
            taken: Time::now(),
            state,
            cursor: 0,
            name: name.into(),
            comment: comment.into(),
            holds: Vec::new(),
        };
        {
            let kept = self.snapshots.read();
            if state == State::Kept && kept.find(name).is_some() {
                return Err(Error::SnapshotExists(name.into()));
            }
            if !kept.has_room(&record) {
                return Err(Error::TooManySnapshots);
            }
        }
        if !self.nodes.allocator.has_room_for_snapshot() {
            self.checkpoint_for(publisher, NextLog::WithEpoch, Aim::Newest)?;
            if !self.nodes.allocator.has_room_for_snapshot() {
                return Err(Error::NoSpaceForSnapshot);
            }
        }
        Ok(self.checkpoint_for(publisher, NextLog::WithEpoch, Aim::Keep(record.into()))?)
    }

    /// The snapshot called `name`, to be read as a whole.
    pub(crate) fn use_snapshot(&self, name: &str) -> Result<InUse<'_>, Error> {
        // What is being taken is in the list, and may not be on the medium.
        let _publisher = self.publisher();
        let mut kept = self.snapshots.write();
        let record = named(&kept, name)?.clone();
        kept.begin_use(record.version);
        Ok(InUse { core: self, record })
    }

    /// What the volume is now, to be read as a whole: a snapshot that nobody sees and that is to be removed from the
    /// beginning, so that a mount removes it if a crash ends the reading. Where nothing can be changed, the newest
    /// checkpoint will do.
    pub(crate) fn use_now(&self) -> Result<InUse<'_>, Error> {
        let mut publisher = self.publisher();
        if !self.options.read_only {
            self.keep(&mut publisher, "now", "", State::Doomed)?;
        }
        let Checkpoint { body, block } = publisher.newest;
        let version = body.version.get();
        if self.options.read_only {
            self.snapshots.write().begin_use(version);
        }
        let record = Record {
            version,
            block,
            taken: Time { sec: body.time.get() as i64, nsec: 0 },
            state: State::Doomed,
            cursor: 0,
            name: "now".into(),
            comment: String::new(),
            holds: Vec::new(),
        };
        Ok(InUse { core: self, record })
    }

    /// The snapshots that are kept, oldest first.
    pub(crate) fn list_snapshots(&self) -> Vec<Snapshot> {
        self.snapshots.read().kept().map(Snapshot::from).collect()
    }

    /// The snapshot called `name`.
    pub(crate) fn snapshot(&self, name: &str) -> Result<Snapshot, Error> {
        let kept = self.snapshots.read();
        named(&kept, name).map(Snapshot::from)
    }

    /// Lets go of a snapshot. When this returns, it is gone for good; its space comes back with the checkpoints that
    /// follow.
    pub(crate) fn remove_snapshot(&self, name: &str) -> Result<(), Error> {
        self.change_record(name, |kept, record| {
            let mut tags = record.holds.clone();
            tags.extend(kept.is_in_use(record.version).then(|| "somebody who copies or compares it".into()));
            if !tags.is_empty() {
                return Err(Error::SnapshotHeld { name: name.into(), tags });
            }
            let in_use = |_| Error::SnapshotInUse(name.into());
            self.views.forget(record.version).map_err(in_use)?;
            record.state = State::Doomed;
            Ok(())
        })?;
        self.views.note_change();
        Ok(())
    }

    /// Keeps a snapshot from being removed until `tag` is released.
    pub(crate) fn hold_snapshot(&self, name: &str, tag: &str) -> Result<(), Error> {
        check_text("the tag", tag, 1)?;
        self.change_record(name, |_, record| {
            if record.holds.iter().any(|held| held == tag) {
                return Err(Error::SnapshotHold {
                    name: name.into(),
                    what: format!("is held by {tag:?} already"),
                });
            }
            record.holds.push(tag.into());
            match record.holds.join("\0").len() {
                0..=TEXT_MAX => Ok(()),
                _ => Err(Error::SnapshotHold {
                    name: name.into(),
                    what: format!("has so many holds that {tag:?} has no room"),
                }),
            }
        })
    }

    /// Takes a hold back.
    pub(crate) fn release_snapshot(&self, name: &str, tag: &str) -> Result<(), Error> {
        self.change_record(name, |_, record| {
            let before = record.holds.len();
            record.holds.retain(|held| held != tag);
            if record.holds.len() == before {
                return Err(Error::SnapshotHold {
                    name: name.into(),
                    what: format!("is not held by {tag:?}"),
                });
            }
            Ok(())
        })
    }

    /// Changes a record, durably.
    fn change_record(
        &self,
        name: &str,
        change: impl FnOnce(&Kept, &mut Record) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut publisher = self.publisher();
        self.check_list_changeable()?;
        {
            let mut kept = self.snapshots.write();
            let mut record = named(&kept, name)?.clone();
            change(&kept, &mut record)?;
            if !kept.has_room(&record) {
                return Err(Error::TooManySnapshots);
            }
            kept.put(record);
        }
        Ok(self.checkpoint_for(&mut publisher, NextLog::WithEpoch, Aim::Newest)?)
    }

    pub(crate) fn check_changeable(&self) -> Result<(), Error> {
        match self.failure() {
            Some(failure) => Err(failure.clone().into()),
            None if self.options.read_only || self.closed.load(Ordering::Relaxed) => {
                Err(vfs::Error::ReadOnly.into())
            }
            None => Ok(()),
        }
    }

    /// The same for the list of snapshots.
    pub(crate) fn check_list_changeable(&self) -> Result<(), Error> {
        self.check_changeable()?;
        self.check_list()
    }

    /// An error if there may be more snapshots than the list tells of.
    pub(crate) fn check_list(&self) -> Result<(), Error> {
        if self.snapshots.read().is_damaged() { Err(list_damaged()) } else { Ok(()) }
    }

    /// Makes checkpoints until nothing waits to be removed.
    pub(crate) fn finish_removals(&self) -> Result<(), Error> {
        self.check_list_changeable()?;
        while self.snapshots.read().has_changes() {
            self.checkpoint(NextLog::WithEpoch)?;
        }
        if self.snapshots.read().stuck {
            let what = "damage keeps the space of a removed snapshot from coming back; unmount the volume and run `amberfs fsck --repair`";
            return Err(vfs::Error::Corrupt(what.into()).into());
        }
        Ok(())
    }

    /// Whether the volume differs from what it was when the snapshot called `name` was taken. What is changed meanwhile
    /// counts or not.
    pub(crate) fn has_changed_since(&self, name: &str) -> Result<bool, Error> {
        self.check_changeable()?;
        self.checkpoint(NextLog::WithEpoch)?;
        // No checkpoint is made meanwhile: both trees stay.
        let publisher: &Publisher = &self.publisher();
        let kept = self.snapshots.read();
        let record = named(&kept, name)?;
        let trees = [record.checkpoint(&self.medium)?.body.tree(), publisher.newest.body.tree()];
        // What is above the nodes may be written anew for garbage collection's sake; a node that both have moves in both.
        let mut changed = false;
        twin::differences(&self.medium, trees, &mut |_| {
            changed = true;
            Ok(())
        })?;
        Ok(changed)
    }

    /// Counts what a snapshot has alone, in time that follows how much it differs from its neighbours.
    pub(crate) fn snapshot_usage(&self, name: &str) -> Result<SnapshotUsage, Error> {
        // No checkpoint is made meanwhile: what a snapshot has stays.
        let publisher: &Publisher = &self.publisher();
        let kept = self.snapshots.read();
        let record = named(&kept, name)?;
        Ok(usage(&self.medium, &kept, record, &publisher.newest)?)
    }
}

/// What a snapshot takes that is whole, of a volume that has this newest checkpoint.
fn usage(medium: &Medium, kept: &Kept, record: &Record, newest: &Checkpoint) -> vfs::Result<SnapshotUsage> {
    let checkpoint = record.checkpoint(medium)?;
    let previous = kept.before(record.version);
    let next = match kept.after(record.version) {
        Some(next) => next.checkpoint(medium)?.body.tree(),
        None => newest.body.tree(),
    };
    let mut own_blocks = 1;
    let is_own = |block: u64| Entry::read(medium, block).version > previous;
    let visit = &mut |_, _, _| own_blocks += 1;
    Traverse { medium, next, from: 0, steps: u64::MAX, is_own: &is_own, visit }
        .run(checkpoint.body.tree())?;
    let shared_blocks = checkpoint.body.blocks.get().saturating_sub(own_blocks);
    Ok(SnapshotUsage { own_blocks, shared_blocks })
}

/// The snapshots of a volume that nobody has mounted, oldest first, and what each takes, if it can be read; in time that follows
/// how much they differ from each other.
pub fn snapshot_usages(region: &Region) -> Result<Vec<(Snapshot, Option<SnapshotUsage>)>, Error> {
    let AtRest { medium, checkpoint, .. } = AtRest::read(region)?;
    let (kept, damage) = Kept::of_newest(&medium, &checkpoint);
    if let Some(error) = damage {
        return Err(error.into());
    }
    let usage = |record: &Record| usage(&medium, &kept, record, &checkpoint).ok();
    Ok(kept.kept().map(|record| (Snapshot::from(record), usage(record))).collect())
}
