//! Writing behind the caller's back: requests are handed over and their outcome is asked for later.
//!
//! **A write that overlaps one in flight waits for it**, so of two writes to one place the later one is the last. More is not
//! promised about order: who wants one thing on the disk before another drains and flushes in between.

mod pool;
#[allow(unsafe_code)]
mod ring;

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::account::Purpose;
use crate::buffer::Buffer;
use crate::disk::Disk;
use crate::error::{Doing, Error, Request};
use pool::Pool;
use ring::Ring;

/// A write that is handed over.
#[derive(Debug)]
pub struct Write {
    /// What it is for.
    pub purpose: Purpose,
    /// Byte offset, of a sector.
    pub at: u64,
    /// Whole sectors.
    pub buffer: Buffer,
    /// Anything by which the caller knows it again.
    pub token: u64,
}

/// Who carries writes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The kernel (`io_uring`): no thread waits.
    Uring,
    /// Threads of this process.
    Threads,
}

/// A write that failed, and why. Its bytes are still there.
pub type Unwritten = (Write, Error);

/// Writes in flight to one disk.
pub struct Queue {
    disk: Arc<Disk>,
    depth: usize,
    engine: Engine,
    state: Mutex<State>,
}

struct State {
    carrier: Box<dyn Carrier>,
    /// Purpose, range and token of what is in flight, by slot.
    in_flight: Vec<Option<(Purpose, u64, u64, u64)>>,
    failed: Vec<Unwritten>,
}

/// Something that carries writes out. At most one write is in a slot at a time.
trait Carrier: Send {
    /// Begins to write `buffer` at byte `at`.
    fn start(&mut self, slot: usize, at: u64, buffer: Buffer);

    /// Waits until a write has ended; there is one. Gives its buffer back.
    fn wait(&mut self) -> (usize, Buffer, io::Result<()>);
}

impl Queue {
    /// A queue to `disk` of at most `depth` writes in flight (at least 1). `io_uring` carries them where the disk is a file of
    /// the kernel and the kernel has and allows it, else threads do.
    pub fn new(disk: Arc<Disk>, depth: usize) -> Queue {
        let depth = depth.clamp(1, 1024);
        match Ring::new(&disk, depth) {
            Some(ring) => Queue::with(disk, depth, Engine::Uring, Box::new(ring)),
            None => Queue::with_threads(disk, depth),
        }
    }

    /// The same, carried by threads.
    pub fn with_threads(disk: Arc<Disk>, depth: usize) -> Queue {
        let depth = depth.clamp(1, 1024);
        let pool = Pool::new(disk.device().clone(), depth);
        Queue::with(disk, depth, Engine::Threads, Box::new(pool))
    }

    fn with(disk: Arc<Disk>, depth: usize, engine: Engine, carrier: Box<dyn Carrier>) -> Queue {
        let in_flight = (0..depth).map(|_| None).collect();
        Queue { disk, depth, engine, state: Mutex::new(State { carrier, in_flight, failed: Vec::new() }) }
    }

    /// Who carries the writes out.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Most writes in flight.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Hands a write over. Waits while there are as many in flight as there may be, or one that overlaps. Fails, giving the
    /// write back, only if the disk has no such place; how it went [`Queue::drain`] tells.
    pub fn submit(&self, write: Write) -> Result<(), Box<Unwritten>> {
        let length = write.buffer.len() as u64;
        if let Err(error) = self.disk.check_write(write.at, length) {
            return Err(Box::new((write, error)));
        }
        let Write { purpose, at, buffer, token } = write;
        let mut state = self.state.lock();
        let overlaps = |other: &(Purpose, u64, u64, u64)| at < other.1 + other.2 && other.1 < at + length;
        while state.in_flight.iter().flatten().any(overlaps) {
            state.reap(&self.disk);
        }
        let slot = loop {
            match state.in_flight.iter().position(Option::is_none) {
                Some(slot) => break slot,
                None => state.reap(&self.disk),
            }
        };
        state.in_flight[slot] = Some((purpose, at, length, token));
        state.carrier.start(slot, at, buffer);
        Ok(())
    }

    /// Waits until the disk has answered for all that was handed over. It is durable behind the next [`Disk::flush`]. What
    /// could not be written comes back, to be kept or tried again.
    pub fn drain(&self) -> Result<(), Vec<Unwritten>> {
        let mut state = self.state.lock();
        state.reap_all(&self.disk);
        let failed = std::mem::take(&mut state.failed);
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }
}

impl State {
    fn reap(&mut self, disk: &Disk) {
        let (slot, buffer, result) = self.carrier.wait();
        let Some((purpose, at, length, token)) = self.in_flight[slot].take() else { return };
        match result {
            Ok(()) => disk.count_written(purpose, length),
            Err(error) => {
                let error = disk.failed(Request { doing: Doing::Write, at, length }, error);
                self.failed.push((Write { purpose, at, buffer, token }, error));
            }
        }
    }

    fn reap_all(&mut self, disk: &Disk) {
        while self.in_flight.iter().any(Option::is_some) {
            self.reap(disk);
        }
    }
}

impl Drop for Queue {
    /// What is in flight is waited for: the kernel may be reading its memory.
    fn drop(&mut self) {
        let disk = self.disk.clone();
        self.state.get_mut().reap_all(&disk);
    }
}
