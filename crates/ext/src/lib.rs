//! ext2, ext3 and ext4, in user space, with their metadata in NVM.
//!
//! A [`Volume`] is a [`vfs::FileSystem`] over a [`disk::Disk`]. Whatever the disk holds is checked before it is believed: no number of
//! it becomes an index, a length or a depth unverified. `docs/format-ext.md` says what is supported, `docs/design.md` why things
//! are as they are.
//!
//! Layers, each using those below it:
//!
//! ```text
//! file_system, volume (handles), check the FileSystem trait; opening, info, recovery; everything against everything
//! fetch                                what is in NVM before it is asked for
//! damage                               what operations found damaged, and that the superblock says so
//! background, commit                   who makes durable what has run, and when
//! namespace, rename, attributes,       operations on names and inodes; what goes with its last name
//!   orphans, protection
//! reading, write, resize, allocate,    contents of open files
//!   copy, sync, opening
//! write_out, logging (writer,          pages on their way to the disk, or to the log
//!   unwritten)
//! files (pages, dropped, handles)      what DRAM has of files
//! directory, data, xattr (acl, hash)   names, contents, attributes
//! journal                              what a crash left
//! map (extents, indirect)              from a file's blocks to the disk's
//! alloc, inode, bitmap, group          what is where, and what is free
//! core, store (clean)                  metadata blocks; blocks of files as the disk has them
//! superblock, features, checksum, mmp, error, stranger
//! ```
#![forbid(unsafe_code)]

mod acl;
mod alloc;
mod allocate;
mod attach;
mod attributes;
mod background;
mod bitmap;
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
mod extents;
mod fault;
mod features;
mod fetch;
mod file_system;
mod files;
mod group;
mod handles;
mod hash;
mod home;
mod indirect;
mod inode;
mod journal;
mod kind;
mod logging;
mod map;
mod mark;
mod mmp;
mod namespace;
mod opening;
mod orphans;
mod pages;
mod protection;
mod reading;
mod refused;
mod rename;
mod replay;
mod resize;
#[cfg(test)]
mod scene;
mod store;
mod stranger;
mod superblock;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
mod sync;
mod unwritten;
mod volume;
mod write;
mod write_out;
mod writer;
mod xattr;

// What tests of the inside share with those of the outside calls it by its name.
#[cfg(test)]
extern crate self as ext;

pub use attach::{
    AtRest, Attachment, at_rest, attach, attach_within, attachment, check_attachable, force_from_disk,
};
pub use background::Background;
pub use check::{Report, check, check_volume};
pub use commit::Stats;
pub use damage::Damage;
pub use error::Error;
#[cfg(feature = "planted-faults")]
pub use fault::{Fault, plant};
pub use features::{Compat, Features, Incompat, RoCompat};
pub use fetch::{Fetch, Fetched};
pub use home::Room;
pub use replay::Replayed;
pub use sync::Sync;
pub use volume::{Info, Options, Recovery, Volume, info, recover};
