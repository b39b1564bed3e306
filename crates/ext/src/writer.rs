//! Blocks of files on their way to the disk.
//!
//! What is to be written is copied while its file is locked, and written when it is not: nobody who uses a file waits for the disk. In
//! between a block may be freed; nobody is given it before the write has ended ([`crate::core::alloc::Space::begin_writing`]).
//!
//! Blocks of many files are written in the order of the disk, neighbours as one request.
//!
//! One writes at a time: who has the queue ([`Volume::queue`]) takes files' locks, never the other way round.

use std::ops::Range;

use disk::{Buffer, Purpose, Queue, Since, Write};
use parking_lot::MutexGuard;
use vfs::{Error, Result};

use crate::core::Core;
use crate::error::io;
use crate::failure::Whole;
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
    /// Nobody knows what is in flight still if a panic ends it.
    whole: Option<Whole<'a>>,
}

/// What came of it. Durable behind a flush.
pub(crate) struct Written {
    since: Since,
    /// Bytes of the disk that could not be written.
    failed: Vec<Range<u64>>,
    error: Option<Error>,
    /// The disk was not there.
    has_vanished: bool,
    /// Blocks that it took and had refused before.
    taken: Vec<u64>,
    is_nothing: bool,
}

impl Volume {
    /// One that writes, when nobody else does.
    pub(crate) fn writer(&self) -> Result<Writer<'_>> {
        let queue = self.queue()?;
        self.core.space.begin_writing();
        let since = self.disk().since();
        let written = Written::nothing(since);
        let whole = Some(self.failure().whole("what was on its way to the disk"));
        Ok(Writer { volume: self, queue, places: Vec::new(), bytes: Vec::new(), written, whole })
    }

    /// Makes durable what was written. Without the queue, so that who writes next can share the flush.
    ///
    /// # Errors
    /// Any flush that has failed since the first of it was written.
    pub(crate) fn flush(&self, written: &Written) -> Result<()> {
        let _whole = self.failure().whole("what was on its way to the disk");
        let flushed = self.disk().flush_since(written.since).map_err(|error| io(&error));
        if let (Some(home), false) = (&self.home, written.taken.is_empty()) {
            match flushed {
                Ok(()) => home.frames.release(&written.taken),
                Err(_) => home.frames.refused_still(&written.taken),
            }
        }
        flushed
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
        let places = std::mem::take(&mut self.places);
        let mut rest = &places[..];
        while let Some(&(start, _)) = rest.first() {
            let most = REQUEST_MAX / block;
            let together =
                rest.iter().zip(start..).take(most).take_while(|(place, at)| place.0 == *at).count();
            let (run, behind) = rest.split_at(together);
            let mut buffer = Buffer::zeroed(together * block);
            for ((_, at), part) in run.iter().zip(buffer.chunks_mut(block)) {
                part.copy_from_slice(&self.bytes[*at..*at + block]);
            }
            self.submit(start * block as u64, buffer);
            rest = behind;
        }
        for (write, error) in self.queue.drain().err().unwrap_or_default() {
            // One sector does not make its neighbours fail.
            if write.buffer.len() <= block || error.is_vanished() {
                self.written.failed(&(write, error));
                continue;
            }
            for (at, part) in (write.at..).step_by(block).zip(write.buffer.chunks(block)) {
                let mut buffer = Buffer::zeroed(block);
                buffer.copy_from_slice(part);
                self.submit(at, buffer);
            }
        }
        for unwritten in self.queue.drain().err().unwrap_or_default() {
            self.written.failed(&unwritten);
        }
        self.note_clean(&places);
        self.note_taken(&places);
        self.bytes.clear();
        self.volume.core.space.end_writing();
        // Who waits for the queue need not wait for all of it.
        MutexGuard::bump(&mut self.queue);
        self.volume.core.space.begin_writing();
    }

    fn submit(&mut self, at: u64, buffer: Buffer) {
        let write = Write { purpose: Purpose::Data, at, buffer, token: at };
        if let Err(unwritten) = self.queue.submit(write) {
            self.written.failed(&unwritten);
        }
    }

    /// What the disk has taken is what it has. Before anybody else writes.
    fn note_clean(&self, places: &[(u64, usize)]) {
        let store = &self.volume.core.store;
        let block = self.volume.core.superblock.block;
        for (place, at) in places {
            match self.written.has_failed_at(place * block) {
                true => store.clean.forget(*place),
                false => store.clean.put(*place, &self.bytes[*at..*at + block as usize]),
            }
        }
    }

    /// What the disk had refused before, and has taken now, is newer there. Before anybody else writes.
    fn note_taken(&mut self, places: &[(u64, usize)]) {
        let Some(home) = self.volume.home.as_ref().filter(|home| home.frames.has_refused()) else { return };
        let block = self.volume.core.superblock.block;
        for (place, _) in places {
            if !self.written.has_failed_at(place * block) && home.frames.taken(*place) {
                self.written.taken.push(*place);
            }
        }
    }

    /// Writes the last of it.
    pub(crate) fn finish(mut self) -> Written {
        if !self.places.is_empty() {
            self.send();
        }
        let nothing = Written::nothing(self.written.since);
        std::mem::replace(&mut self.written, nothing)
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // Before the queue is let go of, and before what became free meanwhile is given out.
        drop(self.whole.take());
        self.volume.core.space.end_writing();
    }
}

impl Written {
    fn nothing(since: Since) -> Written {
        let (failed, taken) = (Vec::new(), Vec::new());
        Written { since, failed, error: None, has_vanished: false, taken, is_nothing: true }
    }

    fn failed(&mut self, (write, error): &disk::Unwritten) {
        self.failed.push(write.at..write.at + write.buffer.len() as u64);
        self.has_vanished |= error.is_vanished();
        self.error.get_or_insert_with(|| io(error));
    }

    /// Whether the disk was there, and refused only what it could not take.
    pub(crate) fn was_there(&self) -> bool {
        !self.has_vanished
    }

    /// Whether there was nothing to write.
    pub(crate) fn is_nothing(&self) -> bool {
        self.is_nothing
    }

    /// What was the matter with the first that could not be written.
    pub(crate) fn result(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Blocks that have not been written.
    pub(crate) fn blocks_failed(&self, core: &Core) -> u64 {
        let bytes: u64 = self.failed.iter().map(|range| range.end - range.start).sum();
        bytes / core.superblock.block
    }

    /// Whether this byte of the disk has not been written.
    pub(crate) fn has_failed_at(&self, at: u64) -> bool {
        self.failed.iter().any(|range| range.contains(&at))
    }
}
