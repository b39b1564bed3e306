//! Faults in the volume's logic that are planted on purpose: what a programmer may forget or do in the wrong order.
//! A test plants each in turn and requires of the crash explorer that it be found.
//!
//! Without the feature `planted-faults` there are none: [`planted`] is the constant `false`.

#![cfg_attr(not(feature = "planted-faults"), allow(unreachable_pub, reason = "a test is to name them"))]

use nvm::{Durable, Flushed, Purpose, Region};

macro_rules! faults {
    ($($(#[$what:meta])* $name:ident,)*) => {
        /// One thing that is not done, or not in its time.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault {
            $($(#[$what])* $name,)*
        }

        #[cfg(feature = "planted-faults")]
        impl Fault {
            /// All of them.
            pub const ALL: &[Fault] = &[$(Fault::$name,)*];
        }
    };
}

faults! {
    /// A record is not fenced before its operation returns.
    CommitFence,
    /// A record is stored, but not sent.
    RecordNotSent,
    /// A torn record is replayed.
    RecordChecksumIgnored,
    /// The header of a half of the log is stored, but not sent.
    HalfHeaderNotSent,
    /// Frames are changed before the record that says so is durable.
    AppliedTooEarly,
    /// An operation on names returns before it is committed.
    NamesNotCommitted,
    /// An operation on a file's contents returns before it is committed.
    ContentsNotCommitted,
    /// A checkpoint does not flush frames.
    FramesNotFlushed,
    /// A checkpoint does not flush the frames' entries.
    EntriesNotFlushed,
    /// A checkpoint retires a half whose bytes of files are not on the disk.
    NotDrained,
    /// A checkpoint does not flush the disk before it retires a half.
    DrainNotFlushed,
    /// A checkpoint retires a half first, and then makes durable what it had.
    RetiredTooEarly,
    /// Files' maps lead to blocks whose bytes are written to the disk and not flushed.
    MappedTooEarly,
    /// A record maps blocks whose bytes are neither in it nor on the disk.
    ItemsLeftOut,
    /// A dirty frame is given up when its block is written to the disk and not flushed.
    EvictedTooEarly,
    /// A frame is given up, and its entry says still what it held.
    EvictedStillListed,
    /// Replay leaves out bytes of files.
    DataNotReplayed,
    /// Replay writes bytes of files from the newest to the oldest.
    ItemsBackwards,
    /// Replay does not flush the disk before it retires the log.
    ReplayDiskNotFlushed,
    /// Replay retires the log first, and then makes durable what it had.
    ReplayRetiredFirst,
    /// Files without a name are not removed after a crash.
    OrphanNotReclaimed,
}

#[cfg(feature = "planted-faults")]
mod on {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::Fault;

    /// One more than the fault's number; 0 is none.
    static PLANTED: AtomicUsize = AtomicUsize::new(0);

    /// Plants a fault in all that this process does with volumes from now on.
    pub fn plant(fault: Option<Fault>) {
        PLANTED.store(fault.map_or(0, |fault| fault as usize + 1), Ordering::SeqCst);
    }

    pub(crate) fn planted(fault: Fault) -> bool {
        PLANTED.load(Ordering::Relaxed) == fault as usize + 1
    }
}
#[cfg(feature = "planted-faults")]
pub use on::plant;
#[cfg(feature = "planted-faults")]
pub(crate) use on::planted;

/// Whether `fault` is planted.
#[cfg(not(feature = "planted-faults"))]
#[inline]
pub(crate) const fn planted(_fault: Fault) -> bool {
    false
}

/// A fence, which `fault` leaves out.
#[inline]
pub(crate) fn fence(region: &Region, fault: Fault, flushed: Flushed) -> Durable {
    #[cfg(feature = "planted-faults")]
    if planted(fault) {
        return Durable::pretended(flushed);
    }
    let _ = fault;
    region.fence(flushed)
}

/// A flush, which `fault` leaves out.
#[inline]
pub(crate) fn flush(region: &Region, fault: Fault, purpose: Purpose, at: u64, len: u64) -> Flushed {
    if planted(fault) { Flushed::none() } else { region.flush(purpose, at, len) }
}

/// Streams bytes; with `fault` they are only stored.
#[inline]
pub(crate) fn stream(region: &Region, fault: Fault, purpose: Purpose, at: u64, bytes: &[u8]) -> Flushed {
    if planted(fault) {
        region.store(purpose, at, bytes);
        return Flushed::none();
    }
    region.stream(purpose, at, bytes)
}
