//! Requests and replies as they are on the wire: big-endian.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

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

/// A connection of either kind.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(super) fn connect(address: &NbdAddress, patience: Duration) -> io::Result<Stream> {
        let stream = match address {
            NbdAddress::Unix(path) => Stream::Unix(connect_to_socket(path, patience)?),
            NbdAddress::Tcp(host, port) => {
                let mut failure = io::Error::new(io::ErrorKind::NotFound, format!("'{host}' has no address"));
                let mut found = None;
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, patience) {
                        Ok(stream) => {
                            found = Some(stream);
                            break;
                        }
                        Err(error) => failure = error,
                    }
                }
                let stream = found.ok_or(failure)?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
        };
        stream.set_read_timeout(Some(patience))?;
        match &stream {
            Stream::Tcp(stream) => stream.set_write_timeout(Some(patience))?,
            Stream::Unix(stream) => stream.set_write_timeout(Some(patience))?,
        }
        Ok(stream)
    }

    pub(super) fn set_read_timeout(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(patience),
            Stream::Unix(stream) => stream.set_read_timeout(patience),
        }
    }

    pub(super) fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
        })
    }

    /// Whoever reads from it or writes to it learns that it has ended.
    pub(super) fn shut_down(&self) {
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// A server that takes no connections has a queue of them, which fills; who comes then waits.
fn connect_to_socket(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&stream, Timeout::Send, Some(patience))?;
    rustix::net::connect(&stream, &SocketAddrUnix::new(path)?)?;
    Ok(stream.into())
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(from),
            Stream::Unix(stream) => stream.write(from),
        }
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write_vectored(from),
            Stream::Unix(stream) => stream.write_vectored(from),
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
            // A send that timed out.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
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
    stream.read_exact(&mut bytes).map_err(late)?;
    Ok(bytes)
}

pub(super) fn receive_u16(stream: &mut Stream) -> io::Result<u16> {
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes).map_err(late)?;
    Ok(u16::from_be_bytes(bytes))
}

pub(super) fn receive_u32(stream: &mut Stream) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).map_err(late)?;
    Ok(u32::from_be_bytes(bytes))
}

pub(super) fn receive_u64(stream: &mut Stream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes).map_err(late)?;
    Ok(u64::from_be_bytes(bytes))
}

/// A read that timed out says that it would have blocked.
fn late(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
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
