//! An io_uring for commands of 128 bytes (`IORING_OP_URING_CMD`), in memory that the process brings along (`IORING_SETUP_NO_MMAP`).
//!
//! A ring that is mapped from its descriptor, as is usual, stays for as long as the address space does, and with it the commands that the
//! kernel holds and the file that they are for. So a server that was killed while one of its threads waited for an answer of its own mount
//! stayed for ever: the thread kept the address space, that the ring, that the connection, and nobody was left to answer. A ring
//! that nothing maps ends with the last descriptor.

#![allow(unsafe_code, reason = "memory is shared with the kernel")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::io_uring::{
    IoringEnterFlags, IoringSetupFlags, io_uring_cqe, io_uring_enter, io_uring_params, io_uring_ptr,
    io_uring_setup,
};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// `IORING_OP_URING_CMD`.
const COMMAND: u8 = 46;
/// What the kernel takes for its side of a ring, or for submissions, in one piece on every kernel.
const PAGE: usize = 4096;
/// So many commands, and twice as many completions, fit.
const ENTRIES_MAX: u32 = (PAGE / size_of::<Submission>()) as u32;

/// `struct io_uring_sqe` of a command, with `IORING_SETUP_SQE128`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Submission {
    opcode: u8,
    flags: u8,
    priority: u16,
    file: i32,
    operation: u32,
    reserved: u32,
    addr: u64,
    len: u32,
    command_flags: u32,
    token: u64,
    more: [u32; 2],
    about: [u8; 80],
}
const _: () = assert!(size_of::<Submission>() == 128 && std::mem::offset_of!(Submission, about) == 48);

/// A command for a file.
pub(crate) struct Command<'a> {
    pub(crate) file: BorrowedFd<'a>,
    pub(crate) operation: u32,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) about: [u8; 80],
    /// Comes back with the completion.
    pub(crate) token: u64,
}

/// That a command is done: its token, and zero or what it gives, or the negative number of an error.
pub(crate) struct Completion {
    pub(crate) token: u64,
    pub(crate) result: i32,
}

/// A page of zeros, shared with the kernel. What the kernel has of it when it is given back is the kernel's alone.
struct Page(NonNull<u8>);

impl Page {
    fn new() -> io::Result<Page> {
        // SAFETY: it is mapped where nothing is.
        let page = unsafe {
            mmap_anonymous(ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        NonNull::new(page.cast()).map(Page).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
    }

    fn place(&self) -> io_uring_ptr {
        io_uring_ptr::new(self.0.as_ptr().cast())
    }

    /// A number that both sides change.
    fn shared(&self, at: u32) -> &AtomicU32 {
        assert!(at as usize + 4 <= PAGE && at.is_multiple_of(4), "the kernel says where it is: {at}");
        // SAFETY: it is within the page, which is there as long as `self`; both sides use it as an atomic.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().add(at as usize).cast()) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `new` has mapped it, and nobody refers to it any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PAGE) };
    }
}

/// To be used by the thread that makes it, alone. The kernel works for it only within that thread's calls.
pub(crate) struct CommandRing {
    ring: OwnedFd,
    /// Heads, tails and completions.
    shared: Page,
    submissions: Page,
    params: io_uring_params,
}

impl CommandRing {
    /// A ring for up to `entries` commands at a time, a power of two.
    ///
    /// # Errors
    /// io_uring may not be used, is older than Linux 6.6, or the process has no room for it (descriptors, `RLIMIT_MEMLOCK`).
    pub(crate) fn new(entries: u32) -> io::Result<CommandRing> {
        assert!(entries.is_power_of_two() && entries <= ENTRIES_MAX);
        let (shared, submissions) = (Page::new()?, Page::new()?);
        let mut params = io_uring_params::default();
        params.flags = IoringSetupFlags::SINGLE_ISSUER
            | IoringSetupFlags::DEFER_TASKRUN
            | IoringSetupFlags::SQE128
            | IoringSetupFlags::NO_SQARRAY
            | IoringSetupFlags::NO_MMAP;
        params.cq_off.user_addr = shared.place();
        params.sq_off.user_addr = submissions.place();
        // SAFETY: both are pages, which is as much as the kernel takes for so few entries. It has the frames itself as long as it needs them,
        // whatever becomes of the mapping.
        let ring = unsafe { io_uring_setup(entries, &mut params)? };
        let completions =
            params.cq_off.cqes as usize + params.cq_entries as usize * size_of::<io_uring_cqe>();
        if params.sq_entries != entries || completions > PAGE {
            return Err(io::Error::other("the kernel made another ring than was asked for"));
        }
        Ok(CommandRing { ring, shared, submissions, params })
    }

    /// Puts a command where the kernel finds it with the next [`CommandRing::submit_and_wait`].
    ///
    /// # Errors
    /// As many as the ring has room for have not been submitted yet.
    ///
    /// # Safety
    /// The file stays open until the command has been submitted, and the memory that it tells of is the kernel's until its completion has come.
    pub(crate) unsafe fn push(&mut self, command: &Command<'_>) -> io::Result<()> {
        let tail = self.shared.shared(self.params.sq_off.tail);
        let at = tail.load(Relaxed);
        if at.wrapping_sub(self.shared.shared(self.params.sq_off.head).load(Acquire))
            == self.params.sq_entries
        {
            return Err(io::Error::other("a ring has no room for another command"));
        }
        let submission = Submission {
            opcode: COMMAND,
            flags: 0,
            priority: 0,
            file: command.file.as_raw_fd(),
            operation: command.operation,
            reserved: 0,
            addr: command.addr,
            len: command.len,
            command_flags: 0,
            token: command.token,
            more: [0; 2],
            about: command.about,
        };
        let index = at & (self.params.sq_entries - 1);
        // SAFETY: the page has room for `ENTRIES_MAX`; the kernel has read what was there, and reads this behind the new tail.
        unsafe { self.submissions.0.cast::<Submission>().add(index as usize).write(submission) };
        tail.store(at.wrapping_add(1), Release);
        Ok(())
    }

    /// Submits what was pushed, and waits until a completion is there.
    pub(crate) fn submit_and_wait(&mut self) -> io::Result<()> {
        let tail = self.shared.shared(self.params.sq_off.tail).load(Relaxed);
        let pushed = tail.wrapping_sub(self.shared.shared(self.params.sq_off.head).load(Acquire));
        // SAFETY: who pushed a command has said that its memory is the kernel's.
        unsafe { io_uring_enter(self.ring.as_fd(), pushed, 1, IoringEnterFlags::GETEVENTS)? };
        Ok(())
    }

    /// The next completion that is there.
    pub(crate) fn completion(&mut self) -> Option<Completion> {
        let head = self.shared.shared(self.params.cq_off.head);
        let at = head.load(Relaxed);
        if at == self.shared.shared(self.params.cq_off.tail).load(Acquire) {
            return None;
        }
        let index = at & (self.params.cq_entries - 1);
        let place = self.params.cq_off.cqes as usize + index as usize * size_of::<io_uring_cqe>();
        // SAFETY: `new` has seen that all are within the page; the kernel wrote this one before the tail, and leaves it until the head is
        // behind it. Its fields are plain numbers.
        let (token, result) = unsafe {
            let completion = self.shared.0.add(place).cast::<io_uring_cqe>().as_ref();
            (completion.user_data.u64_(), completion.res)
        };
        head.store(at.wrapping_add(1), Release);
        Some(Completion { token, result })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// `/dev/null` takes any command, and nothing else does; in the order in which they were asked, however often the ring goes around.
    #[test]
    fn commands_are_completed_with_their_tokens() {
        let mut ring = match CommandRing::new(4) {
            Ok(ring) => ring,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                let _ = writeln!(std::io::stderr(), "LEFT OUT: no io_uring here: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let nothing = std::fs::File::open("/dev/null").unwrap();
        let file = tempfile::tempfile().unwrap();
        for round in 0..5 {
            for n in 0..4 {
                let command = Command {
                    file: if n == 3 { file.as_fd() } else { nothing.as_fd() },
                    operation: 7,
                    addr: 0,
                    len: 0,
                    about: [0; 80],
                    token: round * 4 + n,
                };
                // SAFETY: it tells of no memory.
                unsafe { ring.push(&command).unwrap() };
            }
            let one_more =
                Command { file: nothing.as_fd(), operation: 7, addr: 0, len: 0, about: [0; 80], token: 99 };
            // SAFETY: as above.
            assert!(unsafe { ring.push(&one_more) }.is_err());
            let mut tokens = Vec::new();
            while tokens.len() < 4 {
                ring.submit_and_wait().unwrap();
                while let Some(done) = ring.completion() {
                    let expected = if done.token % 4 == 3 { -libc::EOPNOTSUPP } else { 0 };
                    assert_eq!(done.result, expected);
                    tokens.push(done.token);
                }
            }
            assert_eq!(tokens, (round * 4..round * 4 + 4).collect::<Vec<_>>());
        }
    }
}
