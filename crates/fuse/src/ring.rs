//! Messages by way of io_uring: the kernel's `Documentation/filesystems/fuse/fuse-io-uring.rst`.
//!
//! There is a queue for each processor, and a thread bound to that processor serves it. A request is put into the queue of the
//! processor on which it is made, so whoever asks and whoever answers take turns on one processor: no other has to be woken,
//! which is what a request by way of `/dev/fuse` mostly costs. An answer and the wait for the next request are one system call. What keeps
//! who asked on his processor when he is answered is in [`crate::priority`].
//!
//! Each queue has a few *entries*: memory for a header and for data, which belongs to the kernel from the moment it is given
//! until a completion says that a request is in it, and again from the moment the answer is committed.
//!
//! The kernel sends `forget`s, which nobody waits for, through `/dev/fuse` still.

#![allow(unsafe_code, reason = "memory is shared with the kernel")]

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};
use std::{fs, io};

use rustix::io::Errno;
use rustix::thread::CpuSet;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::abi::{
    InHeader, Opcode, OutHeader, RING_COMMIT_AND_FETCH, RING_REGISTER, RingCommand, RingHeader, WriteOut,
};
use crate::command_ring::{Command, CommandRing};
use crate::device::{Buffer, Device};
use crate::handshake::WRITE_MAX;
use crate::message::{Answerer, Message, Reply};
use crate::priority::{Priorities, Priority};
use crate::server::{Server, Session};

/// Entries of a queue. One is served at a time; into the others the kernel puts what comes meanwhile, and so the
/// thread finds it without going to sleep.
const ENTRIES: usize = 4;
/// Bytes of an entry's data, which the kernel wants to be what the largest request has. Pages that no request has used take
/// no memory.
const DATA: usize = WRITE_MAX as usize;

/// Pieces of memory that an entry consists of: the kernel wants to be told how many.
const PLACES: u32 = 2;

/// What a request is exchanged in.
struct Entry {
    header: NonNull<RingHeader>,
    data: NonNull<[u8]>,
    /// What tells the kernel of both (`struct iovec` twice), which it reads when the entry is registered.
    places: Box<[[u64; 2]; PLACES as usize]>,
}

impl Entry {
    /// # Errors
    /// There is no memory for it.
    fn new() -> io::Result<Entry> {
        // Without room for it the process does not end: there is another way for requests to come.
        let data = <[u8]>::new_box_zeroed_with_elems(DATA).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let data = NonNull::from(Box::leak(data));
        let header = NonNull::from(Box::leak(Box::new(RingHeader::default())));
        let places = Box::new([
            [header.as_ptr() as u64, size_of::<RingHeader>() as u64],
            [data.as_ptr().cast::<u8>() as u64, DATA as u64],
        ]);
        Ok(Entry { header, data, places })
    }

    /// The header and the data.
    ///
    /// # Safety
    ///
    /// A completion has said that the entry is the server's, and its answer has not been committed since.
    unsafe fn parts(&mut self) -> (&mut RingHeader, &mut [u8]) {
        // SAFETY: both were made by `new` and live until `drop`; the caller says that the kernel does not write to
        // them, and `&mut self` that nobody else does.
        unsafe { (self.header.as_mut(), self.data.as_mut()) }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: both were leaked from boxes by `new`, and a queue drops no entry while the kernel holds one.
        unsafe {
            drop(Box::from_raw(self.header.as_ptr()));
            drop(Box::from_raw(self.data.as_ptr()));
        }
    }
}

/// The queue of one processor.
///
/// The kernel writes to entries only within a system call of the thread that made the ring (`DEFER_TASKRUN` with
/// `SINGLE_ISSUER`), and so not while the thread works on one.
struct Queue {
    ring: CommandRing,
    number: u16,
    device: Arc<Device>,
    entries: Vec<Entry>,
    /// Entries that the kernel holds: it has a command for each and has not completed it.
    held: usize,
    /// Names of the request that is being served: the answer takes the place in which they came.
    names: Vec<u8>,
}

impl Queue {
    /// To be served by the thread that makes it.
    fn new(number: u16, device: Arc<Device>) -> io::Result<Queue> {
        let ring = CommandRing::new(ENTRIES as u32)?;
        let entries = (0..ENTRIES).map(|_| Entry::new()).collect::<io::Result<_>>()?;
        Ok(Queue { ring, number, device, entries, held: 0, names: Vec::new() })
    }

    /// Gives the kernel all entries, then serves what comes in them until the mount has ended.
    fn serve(mut self, server: &Server, priority: &mut Priority) -> io::Result<()> {
        for index in 0..self.entries.len() {
            self.submit(index, RING_REGISTER, 0)?;
        }
        // Also when the mount has ended: until each entry has been given back.
        let mut ended = Err(io::Error::other("the kernel gave all entries back"));
        while self.held > 0 {
            priority.answers();
            let come = self.ring.submit_and_wait();
            priority.goes_on();
            match come {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            while let Some(completion) = self.ring.completion() {
                self.held -= 1;
                match completion.result {
                    0 => priority.serves(self.exchange(completion.token as usize, server)?),
                    result => match Errno::from_raw_os_error(-result) {
                        Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED => ended = Ok(()),
                        // It ended while an answer was on its way, or something is wrong: all will tell.
                        errno if ended.is_err() => ended = Err(errno.into()),
                        _ => {}
                    },
                }
            }
        }
        ended
    }

    /// Serves the request in entry `index` and commits the answer. Gives the thread that asked.
    fn exchange(&mut self, index: usize, server: &Server) -> io::Result<u32> {
        // SAFETY: the entry's completion has come, and its answer is committed below, when these are not used any more.
        let (header, data) = unsafe { self.entries[index].parts() };
        let (about, _) = InHeader::read_from_prefix(header.in_out.as_bytes()).map_err(|_| cut_short())?;
        let opcode = Opcode::of(about.opcode);
        let arguments = header.arguments;
        let arguments =
            arguments.as_bytes().get(..opcode.map_or(0, Opcode::arguments)).ok_or_else(cut_short)?;
        let sent = header.entry.payload as usize;
        let answered = if let Some(Opcode::Write | Opcode::Setxattr) = opcode {
            // Data is used where it is; what is answered is short.
            let mut short = [0; size_of::<WriteOut>()];
            let message = Message::of_parts(about, arguments, data.get(..sent).ok_or_else(cut_short)?);
            let answered = answer(server, &message, &mut short);
            data[..short.len()].copy_from_slice(&short);
            answered
        } else {
            self.names.clear();
            self.names.extend_from_slice(data.get(..sent).ok_or_else(cut_short)?);
            answer(server, &Message::of_parts(about, arguments, &self.names), data)
        };
        header.entry.payload = answered.len - size_of::<OutHeader>() as u32;
        header.in_out.as_mut_bytes()[..size_of::<OutHeader>()].copy_from_slice(answered.as_bytes());
        let commit_id = header.entry.commit_id;
        self.submit(index, RING_COMMIT_AND_FETCH, commit_id)?;
        Ok(about.pid)
    }

    /// Puts a command about entry `index` where the kernel finds it when it is told next.
    fn submit(&mut self, index: usize, command: u32, commit_id: u64) -> io::Result<()> {
        let mut about = [0; 80];
        RingCommand { commit_id, queue: self.number, ..RingCommand::default() }
            .write_to_prefix(&mut about)
            .map_err(|_| cut_short())?;
        let command = Command {
            file: self.device.descriptor().as_fd(),
            operation: command,
            addr: self.entries[index].places.as_ptr() as u64,
            len: PLACES,
            about,
            token: index as u64,
        };
        // SAFETY: the descriptor is open as long as the queue has the device; the memory that the entry's places tell of lives until the
        // command is completed, which is what `held` counts.
        unsafe { self.ring.push(&command)? };
        self.held += 1;
        Ok(())
    }
}

impl Drop for Queue {
    /// What the kernel may still write to is left to it.
    fn drop(&mut self) {
        if self.held > 0 {
            std::mem::forget(std::mem::take(&mut self.entries));
        }
    }
}

fn cut_short() -> io::Error {
    io::Error::other("a request in a ring is not whole")
}

/// Has `message` served, the answer's data put into `place`. Gives the header that belongs before it.
fn answer(server: &Server, message: &Message<'_>, place: &mut [u8]) -> OutHeader {
    let mut given = Given { header: None, place };
    server.serve(message, Reply::new(message, &mut given));
    let len = size_of::<OutHeader>() as u32;
    let none = OutHeader { len, error: -Errno::IO.raw_os_error(), unique: message.header.unique };
    given.header.unwrap_or(none)
}

/// Where a request that came through a ring gets its answer.
struct Given<'a> {
    header: Option<OutHeader>,
    place: &'a mut [u8],
}

impl Answerer for Given<'_> {
    fn send(&mut self, header: OutHeader, parts: &[&[u8]]) -> io::Result<()> {
        let mut rest = &mut *self.place;
        for part in parts {
            let (place, after) = rest.split_at_mut_checked(part.len()).ok_or(Errno::MSGSIZE)?;
            place.copy_from_slice(part);
            rest = after;
        }
        self.header = Some(header);
        Ok(())
    }

    /// Nothing has been committed yet.
    fn take_back(&mut self, error: OutHeader) {
        self.header = Some(error);
    }
}

/// Threads with a queue each, and one for what comes beside them, which the kernel has not been told of yet.
pub(crate) struct Rings {
    threads: Vec<JoinHandle<io::Result<()>>>,
    go: Vec<SyncSender<()>>,
}

impl Rings {
    /// Makes a queue for each processor. Fails where io_uring cannot be used, or the process has no room for all that belongs to it: then nothing of it is
    /// left, and requests can come another way.
    pub(crate) fn new(device: &Arc<Device>, session: &Arc<Session>) -> io::Result<Rings> {
        let mut rings = Rings { threads: Vec::new(), go: Vec::new() };
        match rings.make(device, session) {
            Ok(()) => Ok(rings),
            Err(error) => {
                rings.give_up();
                Err(error)
            }
        }
    }

    fn make(&mut self, device: &Arc<Device>, session: &Arc<Session>) -> io::Result<()> {
        let count = processors()?;
        let priorities = Priorities::new(count).map(|(priorities, guard)| {
            self.threads.push(guard);
            priorities
        });
        for number in 0..count {
            let (made, is_made) = mpsc::sync_channel(1);
            let (device, session, priorities) = (device.clone(), session.clone(), priorities.clone());
            self.start(format!("ring-{number}"), move |told| {
                run(number, device, &session.0, priorities, &made, told)
            })?;
            is_made.recv().map_err(io::Error::other)??;
        }
        let (device, session, buffer) = (device.clone(), session.clone(), Buffer::new()?);
        self.start("fuse-0".to_owned(), move |told| run_beside(&device, &session.0, buffer, told))
    }

    /// Starts a thread that runs `work`, which is told when to begin.
    fn start(
        &mut self,
        name: String,
        work: impl FnOnce(&Receiver<()>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let (go, told) = mpsc::sync_channel(1);
        self.threads.push(thread::Builder::new().name(name).spawn(move || work(&told))?);
        self.go.push(go);
        Ok(())
    }

    /// Returns when all threads have ended: another try has to have their place, their descriptors and their memory.
    fn give_up(self) {
        drop(self.go);
        for thread in self.threads {
            let _ = thread.join(); // what failed is known
        }
    }

    /// Lets the threads begin, as the kernel has been told that they would.
    pub(crate) fn begin(self) -> Vec<JoinHandle<io::Result<()>>> {
        for go in &self.go {
            let _ = go.send(()); // a thread that is gone has said why
        }
        self.threads
    }
}

fn run(
    number: u16,
    device: Arc<Device>,
    server: &Server,
    priorities: Option<Arc<Priorities>>,
    made: &SyncSender<io::Result<()>>,
    told: &Receiver<()>,
) -> io::Result<()> {
    bind(number);
    let queue = match Queue::new(number, device.clone()) {
        Ok(queue) => queue,
        Err(error) => {
            let _ = made.send(Err(error));
            return Ok(());
        }
    };
    let _ = made.send(Ok(()));
    if told.recv().is_err() {
        return Ok(()); // another queue could not be made
    }
    let aborting = Aborting(&device);
    let served = queue.serve(server, &mut Priority::new(priorities, number));
    match &served {
        Ok(()) => std::mem::forget(aborting),
        Err(error) => tracing::error!("queue {number} of the mount failed, and so the mount ends: {error}"),
    }
    served
}

/// Serves what comes through `/dev/fuse` beside the rings, which nobody waits for. Without it, `forget`s would pile up in the kernel.
fn run_beside(device: &Device, server: &Server, buffer: Buffer, told: &Receiver<()>) -> io::Result<()> {
    if told.recv().is_err() {
        return Ok(()); // a queue could not be made
    }
    device.serve_gathered(buffer, |message, reply| server.serve(message, reply)).inspect_err(|error| {
        device.abort();
        tracing::error!("what tells of forgotten inodes failed, and so the mount ends: {error}");
    })
}

/// Ends the mount if a queue goes in any other way than with it: requests of its processor would wait for ever.
struct Aborting<'a>(&'a Device);

impl Drop for Aborting<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The calling thread runs on this processor alone; anywhere if that is not there (now).
fn bind(processor: u16) {
    let mut only = CpuSet::new();
    if usize::from(processor) < CpuSet::MAX_CPU {
        only.set(processor.into());
        let _ = rustix::thread::sched_setaffinity(None, &only);
    }
}

/// How many processors there may ever be, for each of which the kernel wants a queue.
fn processors() -> io::Result<u16> {
    let list = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count(list.trim()).ok_or_else(|| io::Error::other(format!("'{}' is no list of processors", list.trim())))
}

/// How many numbers a list like `0-3,8` has.
fn count(list: &str) -> Option<u16> {
    list.split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .try_fold(0u16, |sum, count| sum.checked_add(count?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3"), Some(4));
        assert_eq!(count("0-3,8-9,12"), Some(7));
        assert_eq!(count(""), None);
        assert_eq!(count("3-0"), None);
    }

    #[test]
    fn an_answer_that_is_too_long_is_refused() {
        let mut place = [0; 4];
        let mut given = Given { header: None, place: &mut place };
        assert!(given.send(OutHeader::default(), &[b"ab", b"cde"]).is_err());
        assert!(given.header.is_none());
        assert!(given.send(OutHeader::default(), &[b"ab", b"cd"]).is_ok());
        assert_eq!(&place, b"abcd");
    }
}
