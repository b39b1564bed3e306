//! What every way to reach blocks can do.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Its size, bytes: whole sectors.
    pub bytes: u64,
    /// Requests begin and end at multiples of this: a power of two from 512 to 65536, bytes.
    pub sector: u32,
    /// Memory that is read or written begins at multiples of this: a power of two up to 4096; 1 for anywhere.
    pub memory_alignment: u32,
    /// It cannot be written.
    pub read_only: bool,
}

/// A way to reach blocks. Ranges have been checked and aligned when they come here ([`crate::Disk`] does); a request moves all
/// of its bytes or fails. Requests may come from many threads at once; of two that overlap either may be the last.
pub trait Device: Send + Sync {
    /// What it is. Does not change while it is open.
    fn geometry(&self) -> Geometry;

    /// Fills `into` with what is there from byte `at`.
    fn read(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()>;

    /// Writes `from` from byte `at` on; with `durable`, it is durable when this returns (FUA).
    fn write(&self, at: u64, from: &[IoSlice<'_>], durable: bool) -> io::Result<()>;

    /// Makes all writes that returned before durable.
    fn flush(&self) -> io::Result<()>;

    /// Whether a write takes no longer than handing it to somebody else would: then a queue carries it out in its caller, in order.
    fn is_immediate(&self) -> bool {
        false
    }

    /// Why it cannot be reached, if it is known not to be. Waits for nothing.
    fn gone(&self) -> Option<String> {
        None
    }

    /// The file by which the kernel reaches the same bytes, if there is one, for writing them asynchronously.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
