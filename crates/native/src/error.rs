//! What can be wrong with a native volume as a whole; single operations fail with [`vfs::Error`].

/// Why a volume could not be formatted, opened, checked or closed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The region is smaller than [`crate::MIN_VOLUME_BYTES`].
    #[error("{bytes} bytes are too few for a native volume; it needs at least {minimum}")]
    TooSmall {
        /// The region's size.
        bytes: u64,
        /// The least that works.
        minimum: u64,
    },
    /// The log asked for does not fit.
    #[error(
        "a log of {log_bytes} bytes does not fit a volume of {bytes} bytes; leave at least half of it to files"
    )]
    LogTooLarge {
        /// What was asked for.
        log_bytes: u64,
        /// The region's size.
        bytes: u64,
    },
    /// There is no native volume: neither superblock has the magic number, and no root slot is intact.
    #[error("no native volume here: neither superblock has its magic number; `amberfs mkfs` makes one")]
    NotNative,
    /// Neither superblock is intact, of a volume that is there, or was.
    #[error("both superblocks are damaged ({0}); nothing was changed; restore the zone from a copy")]
    SuperblocksDamaged(String),
    /// The format is another one than this program's.
    #[error(
        "the volume has format version {found}, this program knows {known}; use the amberfs that it was made with"
    )]
    Version {
        /// What the superblock says.
        found: u32,
        /// What this program reads.
        known: u32,
    },
    /// The superblock is another volume's.
    #[error(
        "the superblock here belongs to volume {0}, not to the one that the zone's index names: parts of different zones were mixed"
    )]
    Foreign(String),
    /// The region is shorter than the volume recorded in its superblock.
    #[error(
        "the volume was made with {recorded} bytes but only {found} are here: the zone was cut short; nothing was changed"
    )]
    CutShort {
        /// Bytes the superblock records.
        recorded: u64,
        /// Bytes in the region.
        found: u64,
    },
    /// This process has the volume mounted already.
    #[error("the volume is mounted already, by this very process")]
    Mounted,
    /// A volume that needs recovery, in a zone that cannot be written to.
    #[error(
        "the volume was not unmounted cleanly, and its log must be replayed before it can be read, but the zone is open for reading only: \
         open it for writing once"
    )]
    NeedsRecovery,
    /// Something that has to write, in a zone that cannot be written to.
    #[error("the zone is open for reading only: to {0}, open it for writing")]
    ReadOnlyZone(&'static str),
    /// No snapshot can have this name, comment or tag.
    #[error("{0}")]
    SnapshotText(String),
    /// There is a snapshot of this name.
    #[error("there is a snapshot {0:?} already; choose another name, or remove that one")]
    SnapshotExists(String),
    /// There is no snapshot of this name.
    #[error("there is no snapshot {0:?}")]
    NoSnapshot(String),
    /// There is nothing to be shown.
    #[error("there is no {0}")]
    NoStructure(String),
    /// A snapshot is to be compared with itself.
    #[error(
        "snapshot {0:?} is no different from itself; name another one, or none for what the volume is now"
    )]
    SameSnapshot(String),
    /// Somebody holds the snapshot.
    #[error("snapshot {name:?} is held by {}; release it first", tags.join(", "))]
    SnapshotHeld {
        /// Its name.
        name: String,
        /// Who holds it.
        tags: Vec<String>,
    },
    /// The snapshot has no such hold, or has it already.
    #[error("snapshot {name:?} {what}")]
    SnapshotHold {
        /// Its name.
        name: String,
        /// What is wrong with the hold.
        what: String,
    },
    /// Files of the snapshot are open.
    #[error("files of snapshot {0:?} are open; close them first")]
    SnapshotInUse(String),
    /// There are newer snapshots than the one to return to.
    #[error("there are snapshots newer than {name:?}, and they would be lost: {}", newer.join(", "))]
    NewerSnapshots {
        /// The one to return to.
        name: String,
        /// The newer ones.
        newer: Vec<String>,
    },
    /// The region that a snapshot is to be cloned to is smaller than the volume it is of.
    #[error("{bytes} bytes are too few for a clone, which is as large as its origin; it needs {minimum}")]
    CloneTooSmall {
        /// The region's size.
        bytes: u64,
        /// The origin's.
        minimum: u64,
    },
    /// The list of snapshots is full.
    #[error("the volume's list of snapshots is full; remove some")]
    TooManySnapshots,
    /// So little is free that a snapshot would leave the volume without room for its own checkpoints.
    #[error("too little of the volume is free to take a snapshot; remove files or snapshots")]
    NoSpaceForSnapshot,
    /// What the volume is now cannot be kept while it is compared.
    #[error(
        "what the volume is now is kept while it is compared, as a snapshot is, and there is no room for one; remove files or snapshots, or compare two snapshots"
    )]
    NoRoomToCompare,
    /// Something below failed: a damaged structure, unreadable media.
    #[error("{0}")]
    Volume(#[from] vfs::Error),
}

impl From<Error> for vfs::Error {
    fn from(error: Error) -> vfs::Error {
        match error {
            Error::Volume(inner) => inner,
            Error::TooSmall { .. }
            | Error::LogTooLarge { .. }
            | Error::SnapshotText(_)
            | Error::SameSnapshot(_) => vfs::Error::Invalid,
            Error::SnapshotExists(_) => vfs::Error::Exists,
            Error::NoSnapshot(_) | Error::NoStructure(_) => vfs::Error::NotFound,
            Error::SnapshotHeld { .. }
            | Error::SnapshotHold { .. }
            | Error::SnapshotInUse(_)
            | Error::NewerSnapshots { .. } => vfs::Error::Busy,
            Error::TooManySnapshots
            | Error::NoSpaceForSnapshot
            | Error::NoRoomToCompare
            | Error::CloneTooSmall { .. } => vfs::Error::NoSpace,
            Error::ReadOnlyZone(_) => vfs::Error::ReadOnly,
            other => vfs::Error::Corrupt(other.to_string()),
        }
    }
}

/// An error if nothing can be stored to `region`, where a store panics. `doing` is what has to write.
pub(crate) fn check_writable(region: &nvm::Region, doing: &'static str) -> Result<(), Error> {
    if region.is_read_only() { Err(Error::ReadOnlyZone(doing)) } else { Ok(()) }
}

/// What an error of damage tells who has not checked the volume.
const ADVICE: &str = "; the volume is left as it is, run `amberfs fsck`";

/// An error's text for who is just checking the volume, and is not to be told to do that.
pub(crate) fn without_advice(error: impl std::fmt::Display) -> String {
    error.to_string().replace(ADVICE, "")
}

/// A damaged structure, in words: which, where, which field, what it holds and what it should.
pub(crate) fn corrupt(
    structure: &str,
    block: u64,
    field: &str,
    found: impl std::fmt::Display,
    expected: impl std::fmt::Display,
) -> vfs::Error {
    vfs::Error::Corrupt(format!(
        "{structure} at block {block} is damaged: {field} is {found}, expected {expected}{ADVICE}"
    ))
}
