//! What can go wrong with a zone, each as its own variant that says what happened and what to do.

use std::path::PathBuf;

use crate::holder::Holder;
use crate::persist::PersistMethod;
use crate::signature::Content;

/// A size as people read it, without rounding.
fn bytes_or_mib(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    if bytes > 0 && bytes.is_multiple_of(MIB) {
        format!("{} MiB", bytes / MIB)
    } else {
        format!("{bytes} bytes")
    }
}

/// An error of a zone. Its text says what happened, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{path}: cannot {doing}: {source}", path = path.display())]
    Io {
        /// What this crate was doing, as a verb phrase.
        doing: &'static str,
        /// The zone's path.
        path: PathBuf,
        /// The system's own error.
        source: std::io::Error,
    },
    /// A directory was given where a zone belongs.
    #[error("{path} is a directory: name a file in it, for example {path}/zone", path = path.display())]
    IsDirectory {
        /// The path given.
        path: PathBuf,
    },
    /// The path is a pipe, a socket, a terminal or another thing that has no bytes to map.
    #[error("{path} is {what}, which cannot be mapped: name a file or a DAX device", path = path.display())]
    NotMappable {
        /// The path given.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Neither copy of the entrance carries a zone's magic.
    #[error("{path} is no Amberfs zone ({found}): check the path, or create a zone there", path = path.display())]
    NotAZone {
        /// The path given.
        path: PathBuf,
        /// What seems to be there instead.
        found: String,
    },
    /// A zone of a version, or with features, that this program doesn't know.
    #[error(
        "{path} is a zone of format version {found} with features {features:#x}; this program knows version \
         {known}: use a newer Amberfs", path = path.display()
    )]
    UnknownVersion {
        /// The path given.
        path: PathBuf,
        /// Its format version.
        found: u32,
        /// Its incompatible features, as a set of bits.
        features: u32,
        /// The version that this program knows.
        known: u32,
    },
    /// Both copies of the entrance are damaged.
    #[error(
        "{path}: both copies of the zone's entrance are damaged (first: {first}; second: {second}): its \
         volumes cannot be found; restore the first 2 MiB from a copy", path = path.display()
    )]
    EntranceCorrupt {
        /// The path given.
        path: PathBuf,
        /// What is wrong with the copy at 0.
        first: String,
        /// What is wrong with the copy at 1 MiB.
        second: String,
    },
    /// The file or device is smaller than its entrance says.
    #[error(
        "{path} was cut short: the zone has {recorded} bytes, {actual} are there; restore the rest, the \
         volumes need it", path = path.display()
    )]
    Truncated {
        /// The path given.
        path: PathBuf,
        /// Bytes that the entrance records.
        recorded: u64,
        /// Bytes that are there.
        actual: u64,
    },
    /// A file with holes, on a file system without room for them.
    #[error(
        "{path} has holes, as a sparse copy has: {missing} bytes of it have no space of their own, and its file system has no room for them; make \
         room there, or copy the zone to where there is some (cp --sparse=never)", path = path.display()
    )]
    Sparse {
        /// The path given.
        path: PathBuf,
        /// Bytes without space.
        missing: u64,
    },
    /// Too few bytes for a zone.
    #[error("{path}: {} are too few for a zone, which needs at least {}", bytes_or_mib(*.bytes), bytes_or_mib(*.min), path = path.display())]
    TooSmall {
        /// The path given.
        path: PathBuf,
        /// Bytes asked for or found.
        bytes: u64,
        /// The smallest zone.
        min: u64,
    },
    /// More bytes asked for than the device has, or than a zone can have.
    #[error("{path}: a zone of {bytes} bytes does not fit, {max} are there", path = path.display())]
    TooLarge {
        /// The path given.
        path: PathBuf,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes there are.
        max: u64,
    },
    /// Something is there already and `force` was not given.
    #[error(
        "{path} holds {content}: nothing was changed; name another place, or say --force if it may be lost",
        path = path.display()
    )]
    Occupied {
        /// The path given.
        path: PathBuf,
        /// What is there.
        content: Content,
    },
    /// Another process (or another opening in this one) has the zone.
    #[error(
        "{path} is in use by {holder}: a zone has one writer or many readers; end that first",
        path = path.display(), holder = describe(holder)
    )]
    Locked {
        /// The path given.
        path: PathBuf,
        /// Who has it, where the system tells.
        holder: Option<Holder>,
    },
    /// Somebody has it by another name.
    #[error("{path} is in use: {by}", path = path.display())]
    Busy {
        /// The path given.
        path: PathBuf,
        /// Who, or as what.
        by: String,
    },
    /// No volume has that name.
    #[error("the zone has no volume {name:?}; it has {}", if names.is_empty() { "none".to_string() } else { names.join(", ") })]
    NoSuchVolume {
        /// The name given.
        name: String,
        /// Names that there are.
        names: Vec<String>,
    },
    /// The volume is being made, or was.
    #[error(
        "volume {name:?} is unfinished: somebody makes it just now, or that was cut off, and then whatever opens the zone \
         for writing next removes it"
    )]
    Unfinished {
        /// The name given.
        name: String,
    },
    /// A volume has that name already.
    #[error("the zone has a volume {name:?} already: remove it first or choose another name")]
    VolumeExists {
        /// The name given.
        name: String,
    },
    /// A volume cannot have that name.
    #[error("{name:?} cannot name a volume: 1 to 31 bytes, no '/' and no control characters")]
    BadName {
        /// The name given.
        name: String,
    },
    /// The system index is full.
    #[error("the zone has {limit} volumes, which is all that its index can hold: remove one first")]
    IndexFull {
        /// Volumes that an index holds.
        limit: usize,
    },
    /// No gap is large enough.
    #[error(
        "{}",
        match largest {
            0 => "there is no room for another volume: grow the zone, or remove one".into(),
            _ => format!("no room for a volume of {wanted} bytes: the largest gap has {largest}; grow the zone or ask for less"),
        }
    )]
    NoSpace {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes of the largest gap.
        largest: u64,
    },
    /// The volume is open in this process.
    #[error("volume {name:?} is open: unmount it first")]
    VolumeInUse {
        /// The name given.
        name: String,
    },
    /// A change was asked of a zone that was opened read-only.
    #[error("{path} is open read-only: open it for writing to {doing}", path = path.display())]
    ReadOnly {
        /// The zone's path.
        path: PathBuf,
        /// What was asked, as a verb phrase.
        doing: &'static str,
    },
    /// The processor lacks the forced persist method.
    #[error("this processor has no {method}: leave the persist method to be detected ({best} here)")]
    PersistUnsupported {
        /// The method forced.
        method: PersistMethod,
        /// The one that would be detected.
        best: PersistMethod,
    },
    /// A zone of this backing cannot grow, or not to this size.
    #[error("{path} cannot grow to {bytes} bytes: {why}", path = path.display())]
    CannotGrow {
        /// The zone's path.
        path: PathBuf,
        /// Bytes asked for.
        bytes: u64,
        /// Why.
        why: &'static str,
    },
    /// Too many mappings in this process.
    #[error("this process has {limit} zones open, which is the limit: close one first")]
    TooManyZones {
        /// The limit.
        limit: usize,
    },
    /// The medium could not be read or written.
    #[error(transparent)]
    Media(#[from] MediaError),
}

fn describe(holder: &Option<Holder>) -> String {
    match holder {
        Some(holder) => holder.to_string(),
        None => "another process".to_string(),
    }
}

/// A load, a store or a write-back of this zone hit media that could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the medium failed at byte {address} of the zone: what was read there since is not to be trusted; stop \
     writing, copy what is readable, replace the medium"
)]
pub struct MediaError {
    /// Byte offset in the zone of the first failure.
    pub address: u64,
}
