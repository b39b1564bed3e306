//! The native volume as a subject.

use native::{Durability, Error, FormatOptions, Journaling, MountOptions, Volume};
use nvm::{Region, VolumeKind, Zone};
use vfs::Snapshots;

use crate::ground::Chore;
use crate::operation::Operation;
use crate::subject::{Mounted, Promise, Subject};

/// The native volume of the smallest size, with the smallest log.
#[derive(Clone, Copy, Debug)]
pub struct Native {
    name: &'static str,
    journaling: Journaling,
    /// It is repaired before it is opened.
    repaired: bool,
}

impl Native {
    /// As it is by default.
    pub const ADAPTIVE: Native = Native::new("native", Journaling::Adaptive);
    /// The same, repaired whenever it is opened.
    pub(crate) const REPAIRED: Native = Native { repaired: true, ..Native::ADAPTIVE };
    /// With each way to log bytes.
    pub const ALL: [Native; 4] = [
        Native::ADAPTIVE,
        Native::new("native-block", Journaling::Block),
        Native::new("native-diff", Journaling::Difference),
        Native::new("native-block-switch", Journaling::BlockSwitch),
    ];

    const fn new(name: &'static str, journaling: Journaling) -> Native {
        Native { name, journaling, repaired: false }
    }

    /// The one that logs bytes in this way.
    pub fn journaling(journaling: Journaling) -> Option<&'static Native> {
        const { &Native::ALL }.iter().find(|native| native.journaling == journaling)
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Native> {
        const { &Native::ALL }.iter().find(|native| native.name == name)
    }

    fn mount(&self, region: &Region, promise: Promise, crowded: bool) -> Result<Box<dyn Mounted>, Error> {
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
            crowded,
            ..MountOptions::default()
        };
        Ok(Box::new(Volume::open(region.clone(), &options)?))
    }
}

impl Subject for Native {
    fn name(&self) -> &'static str {
        self.name
    }

    fn promises(&self) -> &'static [Promise] {
        &Promise::ALL
    }

    fn can(&self, operation: &Operation) -> bool {
        operation.chore().is_none_or(|chore| chore == Chore::Seal)
    }

    fn volume_bytes(&self) -> u64 {
        native::MIN_VOLUME_BYTES
    }

    fn format(&self, zone: &Zone, name: &str) -> Result<Region, String> {
        let region = zone
            .create_volume(name, VolumeKind::Native, Some(self.volume_bytes()))
            .map_err(|error| error.to_string())?;
        let options =
            FormatOptions { log_bytes: Some(1), hash_key: Some([1, 2]), ..FormatOptions::default() };
        native::format(&region, &options).map_err(|error| error.to_string())?;
        Ok(region)
    }

    fn number_this_thread(&self, number: usize) {
        native::number_this_thread(number);
    }

    fn open(&self, region: &Region, promise: Promise) -> Result<Box<dyn Mounted>, String> {
        if self.repaired {
            self.complete(region)?;
        }
        self.mount(region, promise, false).map_err(|error| error.to_string())
    }

    fn open_crowded(&self, region: &Region, promise: Promise) -> Result<Box<dyn Mounted>, String> {
        self.mount(region, promise, true).map_err(|error| error.to_string())
    }

    fn check(&self, region: &Region) -> Result<(), String> {
        let report = native::check(region, false).map_err(|error| error.to_string())?;
        match report.problems.first() {
            Some(problem) => Err(problem.what.clone()),
            None => Ok(()),
        }
    }

    fn find(&self, region: &Region, promise: Promise) -> Result<Option<Box<dyn Mounted>>, String> {
        match self.mount(region, promise, false) {
            Ok(volume) => Ok(Some(volume)),
            Err(Error::NotNative | Error::SuperblocksDamaged(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn complete(&self, region: &Region) -> Result<(), String> {
        let report = native::check(region, true).map_err(|error| error.to_string())?;
        if report.is_clean() { Ok(()) } else { Err(format!("{:?}", report.problems)) }
    }

    fn roll_back(&self, region: &Region, name: &str) -> vfs::Result<()> {
        self.number_this_thread(0);
        Ok(native::roll_back(region, name, true).map(drop)?)
    }

    fn clone_snapshot(&self, from: &Region, name: &str, to: &Region) -> vfs::Result<()> {
        self.number_this_thread(0);
        Ok(native::clone_snapshot(from, name, to, &mut |_, _| {})?)
    }
}

impl Mounted for Volume {
    fn as_snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn clear_snapshots(&self) -> Result<(), String> {
        let all = self.snapshots();
        let removed = all.iter().try_for_each(|snapshot| Volume::remove_snapshot(self, &snapshot.name));
        removed.and_then(|()| self.finish_removals()).map_err(|error| error.to_string())
    }

    fn clone_snapshot(&self, name: &str, to: &Region) -> vfs::Result<()> {
        Ok(Volume::clone_snapshot(self, name, to, &mut |_, _| {})?)
    }

    fn empty_segment(&self, segment: u32) -> vfs::Result<()> {
        Ok(Volume::empty_segment(self, segment).map(drop)?)
    }

    fn tend(&self, chore: Chore) -> vfs::Result<()> {
        if chore != Chore::Seal {
            return Err(vfs::Error::NotSupported);
        }
        self.seal();
        Ok(())
    }

    fn checkpoint(&self) -> vfs::Result<()> {
        Ok(Volume::checkpoint(self)?)
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
