//! Zones of byte-addressable non-volatile memory (NVM), and the only way that Amberfs stores to them.
//!
//! A **zone** is one piece of NVM: a DAX device, a file on a DAX file system, a tmpfs or hugetlbfs file, a
//! plain file, or memory. It begins with an **entrance**, kept twice, that holds the **system index** of the
//! **volumes** in it. A volume sees its piece as a [`Region`], addressed from 0:
//!
//! ```
//! use nvm::{OpenOptions, Purpose, VolumeKind, Zone};
//!
//! let zone = Zone::anonymous(16 << 20, &OpenOptions::default())?;
//! let region = zone.create_volume("home", VolumeKind::Native, None)?;
//!
//! region.store(Purpose::Metadata, 4096, b"first the record,");
//! let record = region.flush(Purpose::Metadata, 4096, 17);
//! let durable = region.fence(record);
//! # fn publish(_region: &nvm::Region, _record: nvm::Durable) {}
//! publish(&region, durable); // ... then what makes it reachable, which takes the proof
//! # Ok::<(), nvm::Error>(())
//! ```
//!
//! What hardware promises, and so all that this crate promises: an aligned 8-byte store is atomic; between
//! fences, lines (64 B) reach the medium in any order, or not at all; after a fence, what the same thread
//! had flushed or streamed is there.
//!
//! Every store goes through [`Region`], so that one place counts ([`Account`]), wears ([`Wear`]), records
//! ([`Recording`]) and slows down ([`Technology`]). The layout is in `docs/format-zone.md`.

#![deny(unsafe_code)]

/// Bytes of a cache line, the unit of flushes.
pub const LINE: u64 = 64;
/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// Bytes of a segment, the unit in which a zone is given to volumes.
pub const SEGMENT: u64 = 2 << 20;

/// Whether there is nothing but zeros. Compared a block at a time: of a loop over bytes that may end early the compiler makes nothing wider.
pub fn is_zero(bytes: &[u8]) -> bool {
    static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
    bytes.chunks(ZEROS.len()).all(|piece| *piece == ZEROS[..piece.len()])
}

mod account;
mod backing;
#[allow(unsafe_code)]
mod bus_error;
mod durability;
mod entrance;
mod error;
mod holder;
mod info;
mod instruments;
mod lock;
#[allow(unsafe_code)]
mod mapping;
mod operation;
#[allow(unsafe_code)]
mod persist;
mod planted;
mod recording;
mod recording_file;
pub mod signature;
mod technology;
mod volume;
mod watch;
mod wear;
mod zone;

pub use account::{Account, Purpose, Written};
pub use backing::Backing;
pub use durability::{Durable, Flushed};
pub use entrance::{EntranceContent, EntranceCopy, EntranceHealth, VOLUMES_MAX, ZONE_BYTES_MIN};
pub use error::{Error, MediaError};
pub use holder::Holder;
pub use info::ZoneInfo;
pub use operation::{OperationGuard, operation};
pub use persist::PersistMethod;
#[doc(hidden)]
pub use persist::{floor_store_u64, floor_stream};
pub use recording::{Event, EventKind, RecordedVolume, Recording, RecordingOptions, ReplayError};
pub use recording_file::RecordingFileError;
pub use technology::{Latency, Technology};
pub use volume::{Mounted, VolumeEntry, VolumeKind};
pub use watch::{Line, LineWords, Look, Question, Watch, WatchMark};
pub use wear::Wear;
pub use zone::{OpenOptions, Region, Zone};
