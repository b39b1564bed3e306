//! Blocks of files on their way to the disk.
//!
//! What is to be written is copied while its file is locked, and written when it is not: nobody who uses a file waits for the disk. In
//! between a block may be freed; nobody is given it before the write has ended ([`crate::alloc::Space::begin_writing`]).
//!
//! Blocks of many files are written in the order of the disk, neighbours as one request.
//!
//! One writes at a time: who has the queue ([`Volume::queue`]) takes files' locks, never the other way round.

use std::ops::Range;

use disk::{Buffer, Purpose, Queue, Since, Write};
use parking_lot::MutexGuard;
use vfs::{Error, Result};

use crate::error::io;
use crate::volume::Volume;

/// Bytes of a request.
const REQUEST_MAX: usize = 1 << 20;
/// Bytes that are copied before they are written.
const BATCH: usize = 8 << 20;

/// One that writes.
pub(crate) struct Writer<'a> {
    volume: &'a Volume,
    queue: MutexGuard<'a, Queue>,
    /// Blocks of the disk, and where in `bytes` what they are to hold begins.
    places: Vec<(u64, usize)>,
    bytes: Vec<u8>,
    written: Written,
}

/// What came of it. Durable behind a flush.
pub(crate) struct Written {
    since: Since,
    /// Bytes of the disk that could not be written.
    failed: Vec<Range<u64>>,
    error: Option<Error>,
    is_nothing: bool,
}

impl Volume {
    /// One that writes, when nobody else does.
    pub(crate) fn writer(&self) -> Result<Writer<'_>> {
        let queue = self.queue()?;
        self.core.space.begin_writing();
        let since = self.disk().since();
        let written = Written { since, failed: Vec::new(), error: None, is_nothing: true };
        Ok(Writer { volume: self, queue, places: Vec::new(), bytes: Vec::new(), written })
    }

    /// Makes durable what was written. Without the queue, so that who writes next can share the flush.
    ///
    /// # Errors
    /// Any flush that has failed since the first of it was written.
    pub(crate) fn flush(&self, written: &Written) -> Result<()> {
        self.disk().flush_since(written.since).map_err(|error| io(&error))
    }
}

impl Writer<'_> {
    /// Takes what a block is to hold.
    pub(crate) fn add(&mut self, block: u64, bytes: &[u8]) {
        self.places.push((block, self.bytes.len()));
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether it is time to [`Writer::send`].
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH
    }

    /// Writes what it has, and waits until the disk has answered. Called without files' locks.
    pub(crate) fn send(&mut self) {
        let block = self.volume.core.superblock.block as usize;
        self.written.is_nothing &= self.places.is_empty();
        // Of two that are to be in one place the later one is the last.
        self.places.sort_by_key(|(place, _)| *place);
        let mut rest = &self.places[..];
        while let Some(&(start, _)) = rest.first() {
            let most = REQUEST_MAX / block;
            let together =
                rest.iter().zip(start..).take(most).take_while(|(place, at)| place.0 == *at).count();
            let (run, behind) = rest.split_at(together);
            let mut buffer = Buffer::zeroed(together * block);
            for ((_, at), part) in run.iter().zip(buffer.chunks_mut(block)) {
                part.copy_from_slice(&self.bytes[*at..*at + block]);
            }
            let write = Write { purpose: Purpose::Data, at: start * block as u64, buffer, token: start };
            if let Err(unwritten) = self.queue.submit(write) {
                self.written.failed(&unwritten);
            }
            rest = behind;
        }
        for unwritten in self.queue.drain().err().unwrap_or_default() {
            self.written.failed(&unwritten);
        }
        self.places.clear();
        self.bytes.clear();
        self.volume.core.space.end_writing();
        // Who waits for the queue need not wait for all of it.
        MutexGuard::bump(&mut self.queue);
        self.volume.core.space.begin_writing();
    }

    /// Writes the last of it.
    pub(crate) fn finish(mut self) -> Written {
        if !self.places.is_empty() {
            self.send();
        }
        let nothing =
            Written { since: self.written.since, failed: Vec::new(), error: None, is_nothing: true };
        std::mem::replace(&mut self.written, nothing)
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.volume.core.space.end_writing();
    }
}

impl Written {
    fn failed(&mut self, (write, error): &disk::Unwritten) {
        self.failed.push(write.at..write.at + write.buffer.len() as u64);
        self.error.get_or_insert_with(|| io(error));
    }

    /// Whether there was nothing to write.
    pub(crate) fn is_nothing(&self) -> bool {
        self.is_nothing
    }

    /// What was the matter with the first that could not be written.
    pub(crate) fn result(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Whether this byte of the disk has not been written.
    pub(crate) fn has_failed_at(&self, at: u64) -> bool {
        self.failed.iter().any(|range| range.contains(&at))
    }
}
