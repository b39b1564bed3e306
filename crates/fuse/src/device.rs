//! Messages by way of `/dev/fuse`: one `read` each, and one `writev` for the answer.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use zerocopy::IntoBytes;

use crate::abi::{NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NotifyInvalEntry, NotifyInvalInode, OutHeader};
use crate::attach::MountId;
use crate::handshake::WRITE_MAX;
use crate::message::{Message, Reply};

/// Bytes of the longest message: data, and before it a header and arguments.
const MESSAGE_MAX: usize = WRITE_MAX as usize + 4096;

/// How long `forget`s may wait for more of them.
const GATHERING: Duration = Duration::from_millis(1);

/// How long a thread for whose message the kernel had no memory lets others have some.
const SHORTAGE: Duration = Duration::from_millis(1);

/// Where a thread has its messages.
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// One for the longest message. **Whoever starts a thread has it before**: a server that ends for want of memory while one of its threads waits for an
    /// answer of its own mount (see [`crate::apart()`]) would wait for that thread, and it for the server.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn new() -> io::Result<Buffer> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(MESSAGE_MAX).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Buffer(bytes))
    }
}

/// The kernel's end of a mount. When it is closed, the mount is dead.
#[derive(Debug)]
pub(crate) struct Device {
    connection: OwnedFd,
    mount: MountId,
}

impl Device {
    pub(crate) fn new(connection: OwnedFd, mount: MountId) -> Device {
        Device { connection, mount }
    }

    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.connection
    }

    /// Ends the mount: whoever waits for an answer gets an error.
    pub(crate) fn abort(&self) {
        let minor = self.mount.device().rsplit(':').next().unwrap_or_default();
        let control = format!("/sys/fs/fuse/connections/{minor}/abort");
        let Err(error) = std::fs::write(&control, "1") else { return };
        // Where that is not mounted or not ours.
        let forced = self.mount.mounted_at().map(|dir| {
            dir.map(|dir| rustix::mount::unmount(dir, UnmountFlags::FORCE | UnmountFlags::DETACH))
        });
        if !matches!(forced, Ok(None | Some(Ok(())))) {
            tracing::error!(
                "{control}: {error}; who waits for this mount waits until it is unmounted with force"
            );
        }
    }

    /// Whether the kernel has a message that nobody has read.
    pub(crate) fn has_message(&self) -> bool {
        self.is_ready(PollFlags::IN)
    }

    /// Whether the mount has ended. The kernel gives its number to another one after that.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_ready(PollFlags::ERR)
    }

    fn is_ready(&self, events: PollFlags) -> bool {
        let mut polled = [PollFd::new(&self.connection, events)];
        let asked = rustix::event::poll(&mut polled, Some(&Timespec::default()));
        asked.is_ok() && polled[0].revents().intersects(events)
    }

    /// Has `serve` serve message after message, until the mount has ended.
    pub(crate) fn serve(&self, buffer: Buffer, serve: impl Fn(&Message<'_>, Reply<'_>)) -> io::Result<()> {
        self.serve_with_pauses(buffer, serve, None)
    }

    /// The same for those that nobody waits for. While this pauses, the kernel need not wake it for each.
    pub(crate) fn serve_gathered(
        &self,
        buffer: Buffer,
        serve: impl Fn(&Message<'_>, Reply<'_>),
    ) -> io::Result<()> {
        self.serve_with_pauses(buffer, serve, Some(GATHERING))
    }

    fn serve_with_pauses(
        &self,
        mut buffer: Buffer,
        serve: impl Fn(&Message<'_>, Reply<'_>),
        pause: Option<Duration>,
    ) -> io::Result<()> {
        while let Some(message) = self.next(&mut buffer)? {
            serve(&message, Reply::new(&message, &mut &self.connection));
            if let Some(pause) = pause {
                thread::sleep(pause);
            }
        }
        Ok(())
    }

    /// Waits for the next message and hands it to `handle`, of the first one of a mount.
    pub(crate) fn first<T>(
        &self,
        handle: impl FnOnce(&Message<'_>, Reply<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut buffer = Buffer::new()?;
        let message = self.next(&mut buffer)?.ok_or_else(|| io::Error::other("it was unmounted at once"))?;
        handle(&message, Reply::new(&message, &mut &self.connection))
    }

    /// Waits for the next message; `None` if the mount has ended.
    fn next<'b>(&self, buffer: &'b mut Buffer) -> io::Result<Option<Message<'b>>> {
        let Buffer(bytes) = buffer;
        loop {
            bytes.clear();
            match rustix::io::read(&self.connection, spare_capacity(bytes)) {
                Ok(_) => break,
                // Given up by who asked, before it was read.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                // The latter for whoever has taken a message while it was unmounted, or somebody ended it.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                // The kernel has answered it: who asked got an error.
                Err(Errno::NOMEM) => thread::sleep(SHORTAGE),
                Err(errno) => return Err(errno.into()),
            }
        }
        let not_whole = || io::Error::other(format!("a message of {} bytes is not whole", bytes.len()));
        Message::parse(bytes).map(Some).ok_or_else(not_whole)
    }

    /// The kernel may not believe what it knows of entry `name` of `dir` any more. Fails if it knows nothing of it.
    pub(crate) fn invalidate_entry(&self, dir: vfs::Ino, name: &[u8]) -> io::Result<()> {
        let about = NotifyInvalEntry { parent: dir, namelen: name.len() as u32, flags: 0 };
        self.notify(NOTIFY_INVAL_ENTRY, &[about.as_bytes(), name, b"\0"])
    }

    /// The kernel may not believe what it knows of `ino`, of its pages either, any more.
    pub(crate) fn invalidate_inode(&self, ino: vfs::Ino) -> io::Result<()> {
        let about = NotifyInvalInode { ino, off: 0, len: 0 };
        self.notify(NOTIFY_INVAL_INODE, &[about.as_bytes()])
    }

    /// The kernel may not believe the attributes of `ino` that it knows any more; its pages it keeps.
    pub(crate) fn invalidate_attributes(&self, ino: vfs::Ino) -> io::Result<()> {
        let about = NotifyInvalInode { ino, off: -1, len: 0 };
        self.notify(NOTIFY_INVAL_INODE, &[about.as_bytes()])
    }

    fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: len as u32, error: code, unique: 0 };
        let slices: Vec<_> = [header.as_bytes()].iter().chain(parts).map(|part| IoSlice::new(part)).collect();
        rustix::io::writev(&self.connection, &slices)?;
        Ok(())
    }
}
