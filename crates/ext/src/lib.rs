//! ext2, ext3 and ext4, in user space, with their metadata in NVM.
//!
//! A [`Volume`] is a [`vfs::FileSystem`] over a [`disk::Disk`]. Whatever the disk holds is checked before it is believed: no number of
//! it becomes an index, a length or a depth unverified. `docs/format-ext.md` says what is supported, `docs/design.md` why things
//! are as they are.
//!
//! Which module uses which is drawn in `docs/design.md`, section 10.
#![forbid(unsafe_code)]

mod acl;
mod allocate;
mod attach;
mod attributes;
mod background;
mod check;
mod checksum;
mod clean;
mod commit;
mod copy;
mod core;
mod damage;
mod data;
mod directory;
mod dropped;
mod error;
mod failure;
mod fault;
mod features;
mod fetch;
mod file_system;
mod files;
mod handles;
mod hash;
mod home;
mod journal;
mod kind;
mod logging;
mod map;
mod mark;
mod mmp;
mod namespace;
mod opening;
mod options;
mod orphans;
mod pages;
mod reading;
mod refused;
mod rename;
mod replay;
mod resize;
#[cfg(test)]
mod scene;
mod spare;
mod store;
mod stranger;
mod superblock;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "tests of the outside use more of it")]
mod support;
mod sync;
mod unfinished;
mod unwritten;
mod volume;
mod work;
mod write;
mod write_out;
mod writer;
mod xattr;

// What tests of the inside share with those of the outside calls it by its name.
#[cfg(test)]
extern crate self as ext;

pub use crate::core::Damage;
pub use attach::{
    AtRest, Attachment, at_rest, attach, attach_within, attachment, check_attachable, force_from_disk,
    is_marked, is_plain, log_damage,
};
pub use background::Background;
pub use check::{Report, check, check_volume};
pub use commit::Stats;
pub use error::Error;
#[cfg(feature = "planted-faults")]
pub use fault::{Fault, plant};
pub use features::{Compat, Features, Incompat, RoCompat};
pub use home::Room;
pub use journal::Recovery;
pub use options::{Fetch, Options, Sync};
pub use replay::Replayed;
pub use volume::{Fetched, Info, Volume, info, recover};
