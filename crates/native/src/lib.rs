//! The native volume: a file system wholly in NVM.
//!
//! Its state is the newest checkpoint (a tree: checkpoint block → NAT index tree → node blocks → data blocks, after
//! HMFS) and the redo log of the transactions committed since (after Shortcut-JFS). Every operation is one
//! transaction. `docs/format-native.md` has the layout, `docs/design.md` the reasons.
//!
//! Which module uses which is drawn in `docs/design.md`, section 2.
#![forbid(unsafe_code)]

mod allocator;
mod alone;
mod apply;
mod attributes;
mod bia;
mod check;
mod check_report;
mod check_snapshots;
mod checkpoint;
mod checksum;
mod clone;
mod collect;
mod core;
mod data;
mod diff;
mod directory;
mod dump;
mod error;
#[cfg(test)]
mod extremes;
mod fault;
mod file_system;
mod format;
mod geometry;
mod glimpse;
mod handles;
mod held;
mod hints;
mod index;
mod inode;
mod inspect;
mod journal;
mod kept;
mod lanes;
mod locks;
mod look;
mod mend_snapshots;
mod namespace;
mod nat;
mod node;
mod nodes;
mod options;
mod orphans;
mod outside;
mod page;
mod paths;
mod per_thread;
mod pointer;
mod protection;
mod read_only;
mod reader;
mod record;
mod recovery;
mod relocate;
mod removal;
mod rename;
mod replay;
mod roll_back;
mod scan;
mod sit;
mod slots;
mod snapshots;
mod space;
mod superblock;
mod twin;
mod view;
mod views;
mod volume;
mod xattr;

pub use check::{check, preen};
pub use check_report::{CheckReport, Problem};
pub use clone::clone_snapshot;
pub use diff::{Aspect, Difference, DifferenceKind, diff};
pub use dump::{Datum, Shown, Structure, dump};
pub use error::Error;
#[cfg(feature = "planted-faults")]
pub use fault::{Fault, plant};
pub use format::format;
pub use inspect::{Info, info, snapshots};
pub use kept::Snapshot;
pub use lanes::number_this_thread;
pub use options::{Durability, FormatOptions, Journaling, MountOptions, Recovery, Stats};
pub use roll_back::roll_back;
pub use snapshots::{SnapshotUsage, snapshot_usages};
pub use view::open_snapshot;
pub use volume::Volume;

/// The smallest volume: 8 segments.
pub const MIN_VOLUME_BYTES: u64 = 16 << 20;

/// Whether `region` begins with a native volume's superblock, intact or not.
pub fn recognise(region: &nvm::Region) -> bool {
    let read = superblock::Superblock::read(region);
    // Of what cannot be read nobody knows that there is none.
    region.check().is_err()
        || !matches!(read, Err(Error::NotNative | Error::TooSmall { .. } | Error::Foreign(_)))
}
