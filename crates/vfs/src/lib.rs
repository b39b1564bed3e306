//! The contract between volumes and front ends.
//!
//! A volume implements [`FileSystem`]; a front end (FUSE, a library, a test) calls it. Both speak in inode
//! numbers, never in paths. Names are byte strings without `/` and NUL. Every method takes `&self`: an
//! implementation is thread-safe and has no global lock on its data path.
#![forbid(unsafe_code)]

pub mod acl;
mod attr;
#[cfg(test)]
mod broken;
mod caller;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod error;
mod file_system;
mod ino_map;
pub mod model;
pub mod rules;
mod snapshots;
#[cfg(any(test, feature = "testing"))]
pub mod torture;

pub use attr::{Attr, FileKind, Ino, InodeFlags, ROOT_INO, SetAttr, SetTime, Statfs, Time};
pub use caller::Caller;
pub use error::{Error, Result};
pub use file_system::{
    Created, DirEntry, FallocateMode, FileSystem, Handle, OpenFlags, RenameFlags, SeekFrom, XattrMode,
};
pub use ino_map::{InoHasher, InoMap, InoSet};
pub use snapshots::{SNAPSHOTS, Snapshots};

/// Longest name of a directory entry, bytes (Linux `NAME_MAX`).
pub const NAME_MAX: usize = 255;
/// Longest symbolic link target, bytes (Linux `PATH_MAX` less the terminating NUL).
pub const SYMLINK_MAX: usize = 4095;
