//! What a file system that keeps snapshots does beside [`FileSystem`].

use crate::{FileSystem, Result};

/// The directory in the root in which a volume shows its snapshots, one directory each.
pub const SNAPSHOTS: &[u8] = b".snapshots";

/// A file system that keeps whole states of itself, under names.
///
/// All operations that have returned are in a snapshot, none that begins later is; of files without a name nothing is to be
/// seen there. The three that change what is kept are durable when they return.
pub trait Snapshots: FileSystem {
    /// Keeps all there is as `name`. [`Error::Exists`](crate::Error::Exists) if the name is taken, `Invalid` if it can be
    /// no directory's.
    fn take_snapshot(&self, name: &str) -> Result<()>;

    /// Lets go of a snapshot: `NotFound` if there is none, `Busy` if somebody holds it.
    fn remove_snapshot(&self, name: &str) -> Result<()>;

    /// Keeps a snapshot from being removed until `tag` is released: `Busy` if that tag holds it already.
    fn hold_snapshot(&self, name: &str, tag: &str) -> Result<()>;

    /// Takes a hold back: `Busy` if there is none of this tag.
    fn release_snapshot(&self, name: &str, tag: &str) -> Result<()>;
}
