//! The native volume as a subject.

use native::{Durability, FormatOptions, Journaling, MountOptions, Volume};
use nvm::{Region, VolumeKind, Zone};
use vfs::FileSystem;

use crate::subject::{Ground, Mounted, Promise, Subject};

/// The native volume of the smallest size, with the smallest log.
#[derive(Clone, Copy, Debug)]
pub struct Native {
    name: &'static str,
    journaling: Journaling,
}

impl Native {
    /// As it is by default.
    pub const ADAPTIVE: Native = Native { name: "native", journaling: Journaling::Adaptive };
    /// With each way to log bytes.
    pub const ALL: [Native; 4] = [
        Native::ADAPTIVE,
        Native { name: "native-block", journaling: Journaling::Block },
        Native { name: "native-diff", journaling: Journaling::Difference },
        Native { name: "native-block-switch", journaling: Journaling::BlockSwitch },
    ];

    /// The one that logs bytes in this way.
    pub fn journaling(journaling: Journaling) -> Option<&'static Native> {
        const { &Native::ALL }.iter().find(|native| native.journaling == journaling)
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Native> {
        const { &Native::ALL }.iter().find(|native| native.name == name)
    }
}

impl Subject for Native {
    fn name(&self) -> &'static str {
        self.name
    }

    fn zone_bytes(&self) -> u64 {
        native::MIN_VOLUME_BYTES + nvm::SEGMENT
    }

    fn format(&self, zone: &Zone) -> Result<Region, String> {
        let region = zone.create_volume("v", VolumeKind::Native, None).map_err(|error| error.to_string())?;
        let options =
            FormatOptions { log_bytes: Some(1), hash_key: Some([1, 2]), ..FormatOptions::default() };
        native::format(&region, &options).map_err(|error| error.to_string())?;
        Ok(region)
    }

    fn number_this_thread(&self, number: usize) {
        native::number_this_thread(number);
    }

    fn open(&self, region: &Region, promise: Promise) -> Result<Box<dyn Mounted>, String> {
        self.number_this_thread(0);
        let durability = match promise {
            Promise::Operation => Durability::Operation,
            Promise::Fsync => Durability::Fsync,
            Promise::Snapshot => Durability::Snapshot,
        };
        let options = MountOptions {
            durability,
            journaling: self.journaling,
            // So few that removing a snapshot takes several checkpoints, here as on a large volume.
            removal_steps: 3,
            background: false,
            ..MountOptions::default()
        };
        match Volume::open(region.clone(), &options) {
            Ok(volume) => Ok(Box::new(volume)),
            Err(error) => Err(error.to_string()),
        }
    }

    fn check(&self, region: &Region) -> Result<(), String> {
        let report = native::check(region, false).map_err(|error| error.to_string())?;
        match report.problems.first() {
            Some(problem) => Err(problem.what.clone()),
            None => Ok(()),
        }
    }
}

impl Ground for Volume {
    fn file_system(&self) -> &dyn FileSystem {
        self
    }

    fn take_snapshot(&self, name: &str) -> vfs::Result<()> {
        Ok(Volume::take_snapshot(self, name, "").map(drop)?)
    }

    fn remove_snapshot(&self, name: &str) -> vfs::Result<()> {
        Ok(Volume::remove_snapshot(self, name)?)
    }
}

impl Mounted for Volume {
    fn clear_snapshots(&self) -> Result<(), String> {
        let all = self.snapshots();
        let removed = all.iter().try_for_each(|snapshot| Volume::remove_snapshot(self, &snapshot.name));
        removed.and_then(|()| self.finish_removals()).map_err(|error| error.to_string())
    }

    fn checkpoint(&self) -> Result<(), String> {
        Volume::checkpoint(self).map_err(|error| error.to_string())
    }

    fn checkpoints(&self) -> u64 {
        self.stats().checkpoints
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        Volume::close(&self).map_err(|error| error.to_string())
    }

    fn abandon(self: Box<Self>) {
        Volume::abandon(*self);
    }
}
