//! Threads that write.

use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::Carrier;
use crate::buffer::Buffer;
use crate::device::Device;

/// No more threads than these: they wait more than they work.
const THREADS_MAX: usize = 8;

type Job = (usize, u64, Buffer);
type Done = (usize, Buffer, io::Result<()>);

pub(super) struct Pool {
    /// Dropped to let the threads end.
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    device: Arc<dyn Device>,
    /// What was written by this thread, because there was no other.
    own: Vec<Done>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub(super) fn new(device: Arc<dyn Device>, depth: usize) -> Pool {
        let (jobs, waiting) = channel::<Job>();
        let (finished, done) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let start = |_| {
            let (device, waiting, finished) = (device.clone(), waiting.clone(), finished.clone());
            let work = move || {
                loop {
                    let job = waiting.lock().recv();
                    let Ok((slot, at, buffer)) = job else { break };
                    let result = write(&*device, at, &buffer);
                    if finished.send((slot, buffer, result)).is_err() {
                        break;
                    }
                }
            };
            std::thread::Builder::new().name("disk-write".into()).spawn(work).ok()
        };
        let count = if device.is_immediate() { 0 } else { depth.min(THREADS_MAX) };
        let threads: Vec<_> = (0..count).filter_map(start).collect();
        let jobs = (!threads.is_empty()).then_some(jobs);
        Pool { jobs, done, device: device.clone(), own: Vec::new(), threads }
    }
}

/// Writes; a panic is an error like any other: somebody waits for the answer.
fn write(device: &dyn Device, at: u64, buffer: &Buffer) -> io::Result<()> {
    let write = || device.write(at, &[IoSlice::new(buffer)], false);
    catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| Err(io::Error::other("writing to it panicked")))
}

impl Carrier for Pool {
    fn start(&mut self, slot: usize, at: u64, buffer: Buffer) {
        let job = (slot, at, buffer);
        let refused = match &self.jobs {
            Some(jobs) => jobs.send(job).err().map(|refused| refused.0),
            None => Some(job),
        };
        // The device needs none, or the system had no thread for us.
        if let Some((slot, at, buffer)) = refused {
            let result = write(&*self.device, at, &buffer);
            self.own.push((slot, buffer, result));
        }
    }

    fn wait(&mut self) -> Done {
        match self.own.pop() {
            Some(done) => done,
            None => self.done.recv().expect("a thread holds what it was given until it has answered"),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
