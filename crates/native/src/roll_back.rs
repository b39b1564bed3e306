//! Returning to a snapshot: its tree becomes the running one.
//!
//! What the volume is now becomes a snapshot that is being removed, the newest; the next checkpoint has the older tree.
//! A cut before that is published leaves the volume as it is. Behind it, what is given up is given back like any
//! snapshot's own blocks. Blocks live on from one birth to one death only if no newer snapshot stays in between: so newer
//! ones go first.

use nvm::Region;
use vfs::Time;

use crate::checkpoint::Checkpoint;
use crate::core::{Aim, Core, NextLog};
use crate::fault::{Fault, planted};
use crate::kept::{Record, Snapshot, State};
use crate::recovery::{self, Rest};
use crate::snapshots::named;
use crate::superblock::Superblock;
use crate::{Error, MountOptions};

/// Returns the volume in `region`, which nobody has mounted, to the snapshot called `name`, which stays. Newer snapshots
/// are removed if `discard_newer`; else they are an error.
pub fn roll_back(region: &Region, name: &str, discard_newer: bool) -> Result<Snapshot, Error> {
    let superblock = Superblock::read(region)?;
    let options = MountOptions { background: false, ..MountOptions::default() };
    let open = || recovery::open(region.clone(), &superblock, &options, Rest::Keep);
    let (core, _) = open()?;
    let returned = core.roll_back(name, discard_newer);
    match returned {
        Ok(_) => {
            // What it knows is gone. Opened again, as after a crash, it removes what had no name in the older tree.
            drop(core);
            open()?.0.finish()?;
        }
        Err(_) if core.failure().is_none() => core.finish()?,
        Err(_) => {}
    }
    returned
}

impl Core {
    /// The snapshot to return to, and newer ones, which have to go first; an error if they must not.
    pub(crate) fn check_roll_back(
        &self,
        name: &str,
        discard_newer: bool,
    ) -> Result<(Snapshot, Vec<Snapshot>), Error> {
        self.check_list_changeable()?;
        let snapshot = self.snapshot(name)?;
        let is_newer = |other: &Snapshot| other.version > snapshot.version;
        let newer: Vec<Snapshot> = self.list_snapshots().into_iter().filter(is_newer).collect();
        if let Some(held) = newer.iter().find(|other| !other.holds.is_empty()) {
            return Err(Error::SnapshotHeld { name: held.name.clone(), tags: held.holds.clone() });
        }
        if !newer.is_empty() && !discard_newer {
            let newer = newer.into_iter().map(|other| other.name).collect();
            return Err(Error::NewerSnapshots { name: name.into(), newer });
        }
        Ok((snapshot, newer))
    }

    /// Afterwards this `Core` knows a tree that is gone: it is to be dropped.
    fn roll_back(&self, name: &str, discard_newer: bool) -> Result<Snapshot, Error> {
        let (snapshot, newer) = self.check_roll_back(name, discard_newer)?;
        newer.iter().try_for_each(|other| self.remove_snapshot(&other.name))?;
        self.finish_removals()?;
        self.checkpoint(NextLog::WithEpoch)?;
        let mut publisher = self.publisher();
        let (older, given_up) = {
            let kept = self.snapshots.read();
            if kept.is_removing() {
                let what = "a snapshot cannot be removed, because of damage; run `amberfs fsck --repair`, and try again";
                return Err(vfs::Error::Corrupt(what.into()).into());
            }
            let record = named(&kept, name)?;
            let given_up = Record {
                version: 0, // known when its epoch ends, as is its block
                block: 0,
                taken: Time::now(),
                state: State::Removing,
                cursor: 0,
                name: name.into(),
                comment: String::new(),
                holds: Vec::new(),
            };
            if !kept.has_room(&given_up) {
                return Err(Error::TooManySnapshots);
            }
            (Checkpoint::read(&self.medium, record.block)?, given_up)
        };
        if !planted(Fault::GivenUpForgotten) {
            self.checkpoint_for(&mut publisher, NextLog::WithEpoch, Aim::Keep(given_up.into()))?;
        }
        self.checkpoint_for(&mut publisher, NextLog::WithEpoch, Aim::Return(older))?;
        Ok(snapshot)
    }
}
