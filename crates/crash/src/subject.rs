//! What is explored: a kind of volume, as far as the explorer has to know it.

use std::fmt;
use std::str::FromStr;

use nvm::{Region, Zone};
use vfs::{Error, FileSystem, Snapshots};

use crate::ground::Chore;
use crate::operation::Operation;

/// What a volume promises to survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Promise {
    /// Every operation that returned.
    Operation,
    /// Every operation that returned before something was synced; operations are atomic and in order.
    Fsync,
    /// Every operation that returned before the newest checkpoint.
    Snapshot,
}

impl Promise {
    /// All of them.
    pub const ALL: [Promise; 3] = [Promise::Operation, Promise::Fsync, Promise::Snapshot];
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Promise::Operation => "op",
            Promise::Fsync => "fsync",
            Promise::Snapshot => "snapshot",
        })
    }
}

impl FromStr for Promise {
    type Err = String;

    fn from_str(text: &str) -> Result<Promise, String> {
        let found = Promise::ALL.into_iter().find(|promise| promise.to_string() == text);
        found.ok_or_else(|| format!("durability is op, fsync or snapshot, not {text:?}"))
    }
}

/// A kind of volume. Everything it does must follow from the zone's bytes and the calls made, in the calling thread:
/// a run that is repeated must store the same.
pub trait Subject: fmt::Debug + Send + Sync {
    /// Its name, the first part of the names of failures.
    fn name(&self) -> &'static str;

    /// What it can promise.
    fn promises(&self) -> &'static [Promise];

    /// Whether, under this promise, what a file holds is durable when that file is synced, apart from all else, which is in the order
    /// in which it was done.
    fn keeps_contents_apart(&self, _promise: Promise) -> bool {
        false
    }

    /// Whether it has such an operation. Workloads that need others are left out, and counted.
    fn can(&self, operation: &Operation) -> bool;

    /// Bytes of its smallest volume, its disk included.
    fn volume_bytes(&self) -> u64;

    /// The piece of the zone that stands for the disk of the volume in `region`, if it has one. What is stored there is a
    /// write of whole sectors, whose noted syncs make it durable.
    fn disk(&self, _region: &Region) -> Result<Option<Region>, String> {
        Ok(None)
    }

    /// Makes a volume of this name, of the smallest size, in a zone that has room for it.
    fn format(&self, zone: &Zone, name: &str) -> Result<Region, String>;

    /// Makes the calling thread the `number`th of those that use a volume, so that what it does can be repeated.
    fn number_this_thread(&self, number: usize);

    /// Opens the volume, recovering it if it was not closed. The calling thread is the first to use it.
    fn open(&self, region: &Region, promise: Promise) -> Result<Box<dyn Mounted>, String>;

    /// Opens a volume that was closed for two threads, who have no time to find out that they want the same file: it goes
    /// about everything as if others always did.
    fn open_crowded(&self, region: &Region, promise: Promise) -> Result<Box<dyn Mounted>, String> {
        self.open(region, promise)
    }

    /// Checks a volume that nobody has open, from scratch and without changing it: `Err` says what is wrong. Space
    /// that is reached must equal the space that is allocated, link counts the names there are, and nothing may have
    /// two owners.
    fn check(&self, region: &Region) -> Result<(), String>;

    /// Opens the volume in a region that may have none, or one whose making was cut short: then that is no volume.
    fn find(&self, region: &Region, promise: Promise) -> Result<Option<Box<dyn Mounted>>, String> {
        self.open(region, promise).map(Some)
    }

    /// Mends a volume that nobody has open, of which the last copy of something may be missing, as its making was cut
    /// short: nothing else may be wrong with it.
    fn complete(&self, region: &Region) -> Result<(), String> {
        self.check(region)
    }

    /// Returns a volume that nobody has open to a snapshot; newer ones go.
    fn roll_back(&self, _region: &Region, _name: &str) -> vfs::Result<()> {
        Err(Error::NotSupported)
    }

    /// Makes a volume of `to`, with the tree of a snapshot of the volume in `from`, which nobody has open.
    fn clone_snapshot(&self, _from: &Region, _name: &str, _to: &Region) -> vfs::Result<()> {
        Err(Error::NotSupported)
    }
}

/// A volume that is open. If it keeps snapshots, it shows them in `/.snapshots`.
pub trait Mounted: FileSystem + Send + Sync {
    /// The same, if it keeps snapshots.
    fn as_snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }

    /// Removes all snapshots, and waits until what they had is free.
    fn clear_snapshots(&self) -> Result<(), String> {
        Ok(())
    }

    /// Makes a volume of `to`, with the tree of a snapshot.
    fn clone_snapshot(&self, _name: &str, _to: &Region) -> vfs::Result<()> {
        Err(Error::NotSupported)
    }

    /// Moves everything out of one segment.
    fn empty_segment(&self, _segment: u32) -> vfs::Result<()> {
        Err(Error::NotSupported)
    }

    /// Does what is otherwise done in the background.
    fn tend(&self, _chore: Chore) -> vfs::Result<()> {
        Err(Error::NotSupported)
    }

    /// Makes all that returned durable, without the log.
    fn checkpoint(&self) -> vfs::Result<()>;

    /// Checkpoints published since it was opened, where the promise is about those.
    fn checkpoints(&self) -> u64 {
        0
    }

    /// Ends it cleanly.
    fn close(self: Box<Self>) -> Result<(), String>;

    /// Ends it as a power cut does: nothing more is stored.
    fn abandon(self: Box<Self>);
}
