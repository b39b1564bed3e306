//! What operations are done on.

use vfs::{FileSystem, Snapshots};

/// What a volume does behind its users' backs, if it is tended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chore {
    /// Makes durable what has run, but for what files hold.
    Commit,
    /// Writes out what files hold and nobody has synced.
    WritePages,
    /// Has the older part of the log that is in use made durable elsewhere, and that part retired.
    EmptyLog,
    /// Makes nodes ready for the next checkpoint.
    Seal,
}

/// What operations are done on: a volume, or the model beside it.
pub trait Ground {
    /// The file system.
    fn file_system(&self) -> &dyn FileSystem;

    /// The same, if it keeps snapshots.
    fn snapshots(&self) -> Option<&dyn Snapshots>;

    /// Has the log retired, if the ground has one: nobody sees a difference.
    fn checkpoint(&self) -> vfs::Result<()>;

    /// Becomes what a snapshot is, without those that are newer. No file stays open.
    fn roll_back(&mut self, name: &str) -> vfs::Result<()>;

    /// Makes the volume beside it one with the tree of a snapshot; closes this one meanwhile unless it stays `mounted`.
    fn clone_snapshot(&mut self, name: &str, mounted: bool) -> vfs::Result<()>;

    /// Moves everything out of one segment, if the ground has segments: nobody sees a difference.
    fn empty_segment(&self, segment: u32) -> vfs::Result<()>;

    /// Does what is otherwise done in the background: nobody sees a difference.
    fn tend(&self, chore: Chore) -> vfs::Result<()>;
}
