//! Block devices: image files, block special files, NBD exports and memory, behind one type.
//!
//! [`Disk`] is what a volume holds: it checks ranges, aligns, and counts data and metadata apart. Below it is a [`Device`],
//! one for each way to reach blocks, which does no more than move them. [`Queue`] writes behind its caller's back.
//!
//! What a disk promises, and so all that is promised: a sector is written as a whole or not at all; a write that no
//! [`Disk::flush`] has followed may be lost, or overtake another; when a flush returns, all writes that had returned before it
//! began are durable. [`Recorded`] notes what is needed to try out all that this allows.
#![deny(unsafe_code)]

mod account;
mod buffer;
mod device;
mod disk;
mod error;
mod file;
mod flushes;
mod memory;
mod nbd;
mod queue;
mod recorded;
mod scratch;
mod source;
mod usual;

pub use account::{Account, Purpose, Transferred};
pub use buffer::Buffer;
pub use device::{Device, Geometry};
pub use disk::Disk;
pub use error::{Doing, Error};
pub use flushes::Since;
pub use memory::Memory;
pub use queue::{Engine, Queue, Unwritten, Write};
pub use recorded::{Event, EventKind, Recorded};
pub use source::{NbdAddress, OpenOptions, Source, SourceError};

/// The unit that every disk writes as a whole or not at all, bytes. A disk's own sectors may be larger.
pub const SECTOR: u64 = 512;
