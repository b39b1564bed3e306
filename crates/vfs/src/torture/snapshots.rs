//! Snapshots that come, are held and go between the operations, and are what they were whenever somebody looks.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::known::{self, Known};
use super::{Torture, compare};
use crate::{Caller, Error, FileSystem, Ino, ROOT_INO, Result, SNAPSHOTS, Snapshots};

/// Names that snapshots are given, the last two in vain.
const NAMES: [&str; 8] = ["a", "b", "c", "with a longer name, as people like them", "d", "e", "", "a/b"];
const TAGS: [&str; 2] = ["a backup", "a clone"];

/// An operation on snapshots.
#[derive(Clone, Copy, Debug)]
enum Change {
    Take(&'static str),
    Remove(&'static str),
    Hold(&'static str, &'static str),
    Release(&'static str, &'static str),
}

impl Change {
    fn perform(self, fs: &dyn Snapshots) -> Result<()> {
        match self {
            Change::Take(name) => fs.take_snapshot(name),
            Change::Remove(name) => fs.remove_snapshot(name),
            Change::Hold(name, tag) => fs.hold_snapshot(name, tag),
            Change::Release(name, tag) => fs.release_snapshot(name, tag),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Change::Take(_) => "take_snapshot",
            Change::Remove(_) => "remove_snapshot",
            Change::Hold(..) => "hold_snapshot",
            Change::Release(..) => "release_snapshot",
        }
    }
}

impl Torture {
    /// Does `steps` random operations, and now and then one on snapshots, after which all snapshots are compared; then
    /// compares the trees.
    pub fn run_with_snapshots(&mut self, volume: &dyn Snapshots, steps: u64) {
        self.start(volume);
        for _ in 0..steps {
            let changes = self.random.one_in(self.limits.between_snapshots);
            if changes {
                self.change_snapshots(volume);
            } else {
                let (caller, operation) = self.choose();
                self.apply(volume, caller, operation);
            }
            if changes || self.limits.watches_snapshots {
                self.compare_snapshots(volume);
            }
        }
        self.compare(volume);
        if let Some(name) = self.some_snapshot() {
            self.compare_snapshot(volume, &name);
        }
    }

    /// One of the snapshots there are.
    pub fn some_snapshot(&mut self) -> Option<String> {
        let names = self.model.snapshot_names();
        (!names.is_empty()).then(|| names[self.random.within(0..names.len() as u64) as usize].clone())
    }

    /// The volume, which was closed, has been returned to a snapshot, newer ones going; or that was refused with `error`.
    pub fn rolled_back(&mut self, volume: &dyn FileSystem, name: &str, error: Option<Error>) {
        self.note(0, Arc::new(format!("the volume is rolled back to {name:?}")));
        let newer = self.model.newer_snapshots(name).unwrap_or_default();
        let is_held = |name: &String| self.model.is_held(name);
        if error.is_some() || newer.iter().any(is_held) {
            if error != Some(Error::Busy) || !newer.iter().any(is_held) {
                self.fail(&format!("rolling back gives {error:?}, and the newer snapshots are {newer:?}"));
            }
        } else {
            let removed = newer.iter().try_for_each(|newer| self.model.remove_snapshot(newer));
            if let Err(error) = removed.and_then(|()| self.model.roll_back(name)) {
                self.fail(&format!("the model cannot be rolled back: {error}"));
            }
            match Known::of_tree(&self.model, volume, ROOT_INO, None) {
                Ok(known) => {
                    self.flagged = known.inodes().collect(); // those that have none are soon left out
                    self.known = known;
                }
                Err(difference) => self.fail(&format!("the trees differ: {difference}")),
            }
        }
        self.compare(volume);
        self.compare_snapshots(volume);
    }

    /// Compares the list of snapshots, and the whole tree of each.
    pub fn compare_snapshots(&mut self, volume: &dyn FileSystem) {
        let names = self.model.snapshot_names();
        let listed = directory(volume).and_then(|dir| known::entries(volume, dir));
        let found: Result<BTreeSet<_>> = listed.map(|all| all.into_iter().map(|(name, ..)| name).collect());
        let expected: BTreeSet<_> = names.iter().map(|name| name.clone().into_bytes()).collect();
        if found.as_ref() != Ok(&expected) {
            self.fail(&format!("the snapshots are {found:?}, not {names:?}"));
        }
        names.iter().for_each(|name| self.compare_snapshot(volume, name));
    }

    /// Releases and removes all snapshots.
    pub fn clear_snapshots(&mut self, volume: &dyn Snapshots) {
        for name in NAMES {
            TAGS.iter().for_each(|tag| self.change(volume, Change::Release(name, tag)));
            self.change(volume, Change::Remove(name));
        }
        self.compare_snapshots(volume);
    }

    /// Compares the whole tree of another volume, which was cloned from a snapshot.
    pub fn compare_clone(&self, clone: &dyn FileSystem, name: &str) {
        if let Err(difference) = self.compare_copy(clone, name, ROOT_INO, None) {
            self.fail(&format!("the clone of snapshot {name:?} differs: {difference}"));
        }
    }

    fn compare_snapshot(&self, volume: &dyn FileSystem, name: &str) {
        let compared = || {
            let above = directory(volume).map_err(|error| error.to_string())?;
            let root = volume.lookup(&Caller::root(), above, name.as_bytes());
            self.compare_copy(volume, name, root.map_err(|error| error.to_string())?.ino, Some(above))
        };
        if let Err(difference) = compared() {
            self.fail(&format!("snapshot {name:?} differs: {difference}"));
        }
    }

    /// Compares what is below `root`, which is in `above`, with the model's copy.
    fn compare_copy(
        &self,
        volume: &dyn FileSystem,
        name: &str,
        root: Ino,
        above: Option<Ino>,
    ) -> std::result::Result<(), String> {
        let copy = self.model.snapshot(name).ok_or("the model has none")?;
        let known = Known::of_tree(&copy, volume, root, above)?;
        compare::trees(&copy, volume, &known, &self.limits)
    }

    fn change_snapshots(&mut self, volume: &dyn Snapshots) {
        let name = self.random.of(&NAMES);
        let tag = self.random.of(&TAGS);
        let some = self.model.snapshot_names().len();
        let change = match self.random.within(0..10) {
            0..=4 if some < 6 => Change::Take(name),
            0..=7 => Change::Remove(name),
            8 => Change::Hold(name, tag),
            _ => Change::Release(name, tag),
        };
        self.change(volume, change);
    }

    fn change(&mut self, volume: &dyn Snapshots, change: Change) {
        self.note(0, Arc::new(change));
        let (ours, theirs) = (change.perform(volume), change.perform(&self.model));
        if ours != theirs {
            self.fail(&format!("the volume says {ours:?}, and the model {theirs:?}"));
        }
        let errno = theirs.as_ref().map_or_else(Error::errno, |()| 0);
        *self.tally.entry((change.name(), errno)).or_default() += 1;
    }
}

/// The directory of snapshots.
fn directory(volume: &dyn FileSystem) -> Result<Ino> {
    Ok(volume.lookup(&Caller::root(), ROOT_INO, SNAPSHOTS)?.ino)
}
