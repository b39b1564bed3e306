//! Why a disk did not do what it was asked.

use std::io;

use crate::source::SourceError;

/// What was being done to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Opening it.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making what was written durable.
    Flush,
}

impl std::fmt::Display for Doing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Doing::Open => "opening it",
            Doing::Read => "reading",
            Doing::Write => "writing",
            Doing::Flush => "flushing",
        })
    }
}

/// Why a disk did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is no disk's.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The system, or a server, refused.
    #[error("{disk}: {doing} {length} bytes at {at} failed: {source}")]
    Io {
        /// The disk.
        disk: String,
        /// What was being done.
        doing: Doing,
        /// Byte offset.
        at: u64,
        /// Bytes.
        length: u64,
        /// The reason given.
        source: io::Error,
    },
    /// It cannot be opened.
    #[error("{disk}: it cannot be opened: {source}")]
    Open {
        /// The disk.
        disk: String,
        /// The reason given.
        source: io::Error,
    },
    /// The device was unplugged, or its server is gone. What was not flushed before may be lost.
    #[error(
        "{disk}: the disk has vanished while {doing} {length} bytes at {at} ({source}); what was flushed is on it; bring it back: \
         the server of an NBD disk is found again, what is on another has to be mounted again"
    )]
    Vanished {
        /// The disk.
        disk: String,
        /// What was being done.
        doing: Doing,
        /// Byte offset.
        at: u64,
        /// Bytes.
        length: u64,
        /// The reason given.
        source: io::Error,
    },
    /// The range is not all on the disk.
    #[error("{disk}: {length} bytes at {at} are not all there: it has {bytes} bytes")]
    OutOfRange {
        /// The disk.
        disk: String,
        /// Byte offset.
        at: u64,
        /// Bytes.
        length: u64,
        /// The disk's bytes.
        bytes: u64,
    },
    /// A write is not of whole sectors.
    #[error("{disk}: {length} bytes at {at} are not whole sectors of {sector} bytes")]
    NotSectors {
        /// The disk.
        disk: String,
        /// Byte offset.
        at: u64,
        /// Bytes.
        length: u64,
        /// The disk's unit.
        sector: u32,
    },
    /// It was opened for reading only, or cannot be written.
    #[error("{disk}: it is read-only")]
    ReadOnly {
        /// The disk.
        disk: String,
    },
    /// Somebody else uses it.
    #[error("{disk}: it is in use: {by}; nothing was changed; unmount or detach it there first")]
    Busy {
        /// The disk.
        disk: String,
        /// By whom, as far as is known.
        by: String,
    },
    /// The path leads to something that has no blocks.
    #[error("{disk}: it is {what}, and no disk: give a block device, an image file or an NBD URI")]
    NotADisk {
        /// The disk.
        disk: String,
        /// What it is.
        what: &'static str,
    },
}

/// What a failed request was.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) doing: Doing,
    pub(crate) at: u64,
    pub(crate) length: u64,
}

impl Error {
    /// The failure of `request`: a device that is gone is told from one that fails.
    pub(crate) fn of(disk: &str, request: Request, source: io::Error) -> Error {
        let (disk, Request { doing, at, length }) = (disk.to_string(), request);
        if is_gone(&source) {
            Error::Vanished { disk, doing, at, length, source }
        } else {
            Error::Io { disk, doing, at, length, source }
        }
    }

    /// Whether the disk is not there any more.
    pub fn is_vanished(&self) -> bool {
        matches!(self, Error::Vanished { .. })
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut};
    use rustix::io::Errno;
    let gone = [Errno::NODEV, Errno::NXIO].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|errno| gone.contains(&errno))
        || matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | TimedOut)
}
