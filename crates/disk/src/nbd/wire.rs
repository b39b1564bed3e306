//! Requests and replies as they are on the wire: big-endian.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, socket_with,
};

use crate::source::NbdAddress;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Of a reply: the server is about to end (`ESHUTDOWN`).
pub(super) const SHUTS_DOWN: u32 = 108;
/// With a write: it is durable when the reply comes.
pub(super) const FUA: u16 = 1;

/// What a server is asked.
#[derive(Clone, Copy)]
#[repr(u16)]
pub(super) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
}

/// A connection of either kind. However few bytes at a time the server takes or gives, nobody waits for it longer than to the end.
pub(super) struct Stream {
    socket: OwnedFd,
    /// Until when it is waited for; without end if there is none.
    until: Option<Instant>,
}

impl Stream {
    pub(super) fn connect(address: &NbdAddress, until: Option<Instant>) -> io::Result<Stream> {
        let socket = match address {
            NbdAddress::Unix(path) => connect_to_socket(path, until)?,
            NbdAddress::Tcp(host, port) => {
                let mut failure = io::Error::new(io::ErrorKind::NotFound, format!("'{host}' has no address"));
                let mut found = None;
                for address in addresses_of(host, *port, until)? {
                    let connected = match left(until)? {
                        Some(patience) => TcpStream::connect_timeout(&address, patience),
                        None => TcpStream::connect(address),
                    };
                    match connected {
                        Ok(stream) => {
                            found = Some(stream);
                            break;
                        }
                        Err(error) => failure = error,
                    }
                }
                let stream = found.ok_or(failure)?;
                stream.set_nodelay(true)?;
                stream.into()
            }
        };
        Ok(Stream { socket, until })
    }

    pub(super) fn wait_until(&mut self, until: Option<Instant>) {
        self.until = until;
    }

    /// Another way to the same, which waits without end.
    pub(super) fn try_clone(&self) -> io::Result<Stream> {
        Ok(self.socket.try_clone()?.into())
    }

    /// Whoever reads from it or writes to it, by any clone, learns that it has ended.
    pub(super) fn shut_down(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Returns when there is something to read, or room to write, or no peer.
    fn wait(&self, what: PollFlags) -> io::Result<()> {
        loop {
            let timeout = left(self.until)?.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.socket, what)], timeout.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Threads of this process that resolve names, left to themselves or not; and how many there may be.
static RESOLVERS: AtomicUsize = AtomicUsize::new(0);
const RESOLVERS_MAX: usize = 16;

/// The addresses of a host. A resolver that reaches no name server takes as long as it likes, and cannot be interrupted: it is left to
/// itself then.
fn addresses_of(host: &str, port: u16, until: Option<Instant>) -> io::Result<Vec<SocketAddr>> {
    let host = (host.to_owned(), port);
    let resolve = move || -> io::Result<Vec<SocketAddr>> { Ok(host.to_socket_addrs()?.collect()) };
    let Some(patience) = left(until)? else { return resolve() };
    if RESOLVERS.fetch_add(1, Ordering::Relaxed) >= RESOLVERS_MAX {
        RESOLVERS.fetch_sub(1, Ordering::Relaxed);
        return Err(io::Error::other("names of hosts have been asked for, and nobody answers"));
    }
    let (found, finds) = channel();
    let resolver = move || {
        let _nobody_may_wait = found.send(resolve());
        RESOLVERS.fetch_sub(1, Ordering::Relaxed);
    };
    if let Err(error) = std::thread::Builder::new().name("resolver".into()).spawn(resolver) {
        RESOLVERS.fetch_sub(1, Ordering::Relaxed);
        return Err(error);
    }
    finds.recv_timeout(patience).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// What is left until then; fails if it is over.
fn left(until: Option<Instant>) -> io::Result<Option<Duration>> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    if left.is_some_and(|left| left.is_zero()) { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A server that takes no connections has a queue of them, which fills; who comes then waits.
fn connect_to_socket(path: &Path, until: Option<Instant>) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, left(until)?)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

impl From<OwnedFd> for Stream {
    fn from(socket: OwnedFd) -> Stream {
        Stream { socket, until: None }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let flags = if self.until.is_some() { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        loop {
            match rustix::net::recv(&self.socket, &mut *into, flags) {
                Ok((moved, _)) => return Ok(moved),
                Err(Errno::AGAIN) => self.wait(PollFlags::IN)?,
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(from)])
    }

    /// The kernel's own patience begins anew with each part that the peer takes: so it is not asked to wait.
    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::sendmsg(&self.socket, from, &mut SendAncillaryBuffer::default(), flags) {
                Ok(moved) => return Ok(moved),
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) fn broken(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server breaks the NBD protocol: {what}"))
}

pub(super) fn send_request(
    stream: &mut Stream,
    command: Command,
    flags: u16,
    cookie: u64,
    at: u64,
    length: u32,
    data: &[IoSlice<'_>],
) -> io::Result<()> {
    let mut head = Vec::with_capacity(28);
    head.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
    head.extend_from_slice(&flags.to_be_bytes());
    head.extend_from_slice(&(command as u16).to_be_bytes());
    head.extend_from_slice(&cookie.to_be_bytes());
    head.extend_from_slice(&at.to_be_bytes());
    head.extend_from_slice(&length.to_be_bytes());
    let mut parts: Vec<IoSlice<'_>> = vec![IoSlice::new(&head)];
    parts.extend(data.iter().map(|part| IoSlice::new(part)));
    let mut rest = &mut parts[..];
    while !rest.is_empty() {
        match stream.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(moved) => IoSlice::advance_slices(&mut rest, moved),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(super) struct Reply {
    pub(super) error: u32,
    pub(super) cookie: u64,
}

pub(super) fn receive_reply(stream: &mut Stream) -> io::Result<Reply> {
    let magic = receive_u32(stream)?;
    if magic != SIMPLE_REPLY_MAGIC {
        return Err(broken(format_args!("a reply begins with {magic:#x}")));
    }
    Ok(Reply { error: receive_u32(stream)?, cookie: receive_u64(stream)? })
}

pub(super) fn receive_bytes(stream: &mut Stream, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn receive_u16(stream: &mut Stream) -> io::Result<u16> {
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes)?;
    Ok(u16::from_be_bytes(bytes))
}

pub(super) fn receive_u32(stream: &mut Stream) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

pub(super) fn receive_u64(stream: &mut Stream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

/// The error numbers of the protocol are Linux's; any other is `EINVAL`.
pub(super) fn error_of(errno: u32) -> io::Error {
    const KNOWN: [u32; 8] = [1, 5, 12, 22, 28, 75, 95, SHUTS_DOWN];
    let errno = if KNOWN.contains(&errno) { errno } else { 22 };
    match errno {
        SHUTS_DOWN => io::Error::new(io::ErrorKind::ConnectionAborted, "the server shuts down"),
        errno => io::Error::from_raw_os_error(errno as i32),
    }
}
