//! A disk whose life is noted: every read, write and flush, in the order in which they took effect.
//!
//! A request and its note are one critical section, so while a disk is recorded its requests come one after another, and
//! what a note of a flush has before it is what the flush made durable. Who plays the notes back may lose any sector (512 B)
//! that no flush has followed, or let any of several writes to it be the last: all that a power cut may leave.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::{Device, Geometry};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Bytes were read.
    Read,
    /// Bytes were written.
    Write,
    /// All that was written before is durable.
    Flush,
}

/// One thing that happened to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// What.
    pub kind: EventKind,
    /// Byte offset; 0 for a flush.
    pub at: u64,
    /// Bytes; 0 for a flush.
    pub length: u64,
    /// What was written; nothing for the others.
    pub bytes: &'a [u8],
}

/// Who is told. It must not use the disk.
type Listener = dyn FnMut(Event<'_>) + Send;

/// A device that tells what happens to it. A write is told when it begins, so that one which fails may have arrived, too; a
/// read and a flush when they have succeeded. A durable write is told as a write and a flush of nothing else: see
/// [`Recorded::new`].
pub struct Recorded {
    device: Arc<dyn Device>,
    listener: Mutex<Box<Listener>>,
}

impl Recorded {
    /// `device`, and `listener` is told. Durable writes (FUA) reach `device` as a write and a flush, which is more than they
    /// promise: only so the notes can be played back without knowing which write a flush was for. Volumes that are to be
    /// explored should therefore flush.
    pub fn new(device: Arc<dyn Device>, listener: impl FnMut(Event<'_>) + Send + 'static) -> Recorded {
        Recorded { device, listener: Mutex::new(Box::new(listener)) }
    }
}

impl Device for Recorded {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let mut tell = self.listener.lock();
        self.device.read(at, into)?;
        let length = into.iter().map(|part| part.len() as u64).sum();
        tell(Event { kind: EventKind::Read, at, length, bytes: &[] });
        Ok(())
    }

    fn write(&self, at: u64, from: &[IoSlice<'_>], durable: bool) -> io::Result<()> {
        let mut tell = self.listener.lock();
        let bytes: Vec<u8> = from.iter().flat_map(|part| part.iter().copied()).collect();
        tell(Event { kind: EventKind::Write, at, length: bytes.len() as u64, bytes: &bytes });
        self.device.write(at, from, false)?;
        if durable {
            self.device.flush()?;
            tell(Event { kind: EventKind::Flush, at: 0, length: 0, bytes: &[] });
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut tell = self.listener.lock();
        self.device.flush()?;
        tell(Event { kind: EventKind::Flush, at: 0, length: 0, bytes: &[] });
        Ok(())
    }
}
