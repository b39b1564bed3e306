//! The native volume as a subject.

use native::{Durability, FormatOptions, MountOptions, Volume};
use nvm::{Region, VolumeKind, Zone};
use vfs::FileSystem;

use crate::subject::{Mounted, Promise, Subject};

/// The native volume of the smallest size, with the smallest log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Native;

impl Subject for Native {
    fn name(&self) -> &'static str {
        "native"
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
        let options = MountOptions { durability, background: false, ..MountOptions::default() };
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

impl Mounted for Volume {
    fn file_system(&self) -> &dyn FileSystem {
        self
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
