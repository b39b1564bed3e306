//! A client of network block devices, of the fixed newstyle protocol with simple replies.
//!
//! Requests of many threads are in flight at once on one connection; a thread of its own hands the replies out. What the
//! server says is not believed: lengths, flags and cookies are checked, and a server that breaks the protocol has vanished.
//! So has one that does not answer within [`PATIENCE`].

mod handshake;
mod wire;

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use crate::device::{Device, Geometry};
use crate::source::NbdAddress;
use handshake::Export;
use wire::{Command, Stream};

/// How long a server may take to answer one request.
const PATIENCE: Duration = Duration::from_secs(30);

/// An export of a server.
pub(crate) struct Nbd {
    export: Export,
    read_only: bool,
    sender: Mutex<Stream>,
    replies: Arc<Replies>,
    receiver: Option<JoinHandle<()>>,
}

/// Who waits for which reply.
struct Replies {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    last_cookie: u64,
    by_cookie: HashMap<u64, Waiter>,
    /// Why there is no connection any more.
    ended: Option<(io::ErrorKind, String)>,
}

struct Waiter {
    /// Bytes that a good reply brings.
    bytes: usize,
    answer: SyncSender<io::Result<Vec<u8>>>,
}

impl Nbd {
    pub(crate) fn connect(address: &NbdAddress, export: &str, read_only: bool) -> io::Result<Nbd> {
        let mut stream = Stream::connect(address, PATIENCE)?;
        let export = handshake::negotiate(&mut stream, export)?;
        stream.set_read_timeout(None)?;
        let mut incoming = stream.try_clone()?;
        let replies = Arc::new(Replies { waiting: Mutex::default() });
        let hand_out = {
            let replies = replies.clone();
            move || replies.hand_out(&mut incoming)
        };
        let receiver = std::thread::Builder::new().name("nbd-replies".into()).spawn(hand_out)?;
        let read_only = read_only || export.read_only;
        Ok(Nbd { export, read_only, sender: Mutex::new(stream), replies, receiver: Some(receiver) })
    }

    /// Sends one request and waits for its reply.
    fn ask(
        &self,
        command: Command,
        flags: u16,
        at: u64,
        length: u32,
        data: &[IoSlice<'_>],
    ) -> io::Result<Vec<u8>> {
        let (answer, answered) = sync_channel(1);
        let bytes = if matches!(command, Command::Read) { length as usize } else { 0 };
        let cookie = self.replies.expect(Waiter { bytes, answer })?;
        let sent = wire::send_request(&mut self.sender.lock(), command, flags, cookie, at, length, data);
        if let Err(error) = sent {
            // Half a request may be on its way: nothing can follow it.
            self.end(error.kind(), &error.to_string());
        }
        match answered.recv_timeout(PATIENCE) {
            Ok(reply) => reply,
            Err(RecvTimeoutError::Disconnected) => Err(self.replies.gone()),
            Err(RecvTimeoutError::Timeout) => {
                self.end(
                    io::ErrorKind::TimedOut,
                    &format!("the server did not answer within {} s", PATIENCE.as_secs()),
                );
                Err(self.replies.gone())
            }
        }
    }

    /// Ends the connection for everybody.
    fn end(&self, kind: io::ErrorKind, why: &str) {
        self.replies.end(kind, why);
        self.sender.lock().shut_down();
    }

    /// Cuts a range into requests that the server takes.
    fn pieces(&self, at: u64, length: u64) -> impl Iterator<Item = (u64, u32)> + use<> {
        let most = u64::from(self.export.request_max);
        (0..length.div_ceil(most)).map(move |n| (at + n * most, most.min(length - n * most) as u32))
    }
}

impl Replies {
    /// Enters somebody who waits; gives the cookie to send.
    fn expect(&self, waiter: Waiter) -> io::Result<u64> {
        let mut waiting = self.waiting.lock();
        if waiting.ended.is_some() {
            drop(waiting);
            return Err(self.gone());
        }
        waiting.last_cookie += 1;
        let cookie = waiting.last_cookie;
        waiting.by_cookie.insert(cookie, waiter);
        Ok(cookie)
    }

    fn hand_out(&self, incoming: &mut Stream) {
        let why = loop {
            let step = wire::receive_reply(incoming).and_then(|reply| {
                let waiter = self.waiting.lock().by_cookie.remove(&reply.cookie);
                let waiter = waiter.ok_or_else(|| wire::broken("a reply to nothing that was asked"))?;
                let answer = match reply.error {
                    0 => Ok(wire::receive_bytes(incoming, waiter.bytes)?),
                    errno => Err(wire::error_of(errno)),
                };
                let _ = waiter.answer.send(answer);
                Ok(())
            });
            if let Err(error) = step {
                break error;
            }
        };
        let kind = match why.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => io::ErrorKind::ConnectionAborted,
            kind => kind,
        };
        self.end(kind, &format!("the connection ended: {why}"));
        incoming.shut_down();
    }

    /// Whoever waits learns it, because nobody is left to answer.
    fn end(&self, kind: io::ErrorKind, why: &str) {
        let mut waiting = self.waiting.lock();
        waiting.ended.get_or_insert_with(|| (kind, why.to_string()));
        waiting.by_cookie.clear();
    }

    fn gone(&self) -> io::Error {
        let ended = self.waiting.lock().ended.clone();
        let (kind, why) = ended.unwrap_or((io::ErrorKind::ConnectionAborted, "the connection ended".into()));
        // Of whatever kind the failure was, the disk is not there any more.
        let kind = match kind {
            io::ErrorKind::TimedOut | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => kind,
            _ => io::ErrorKind::ConnectionAborted,
        };
        io::Error::new(kind, why)
    }
}

impl Device for Nbd {
    fn geometry(&self) -> Geometry {
        let sector = self.export.sector;
        let bytes = self.export.bytes - self.export.bytes % u64::from(sector);
        Geometry { bytes, sector, memory_alignment: 1, read_only: self.read_only }
    }

    fn read(&self, at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let length = into.iter().map(|part| part.len() as u64).sum();
        let mut rest = into;
        IoSliceMut::advance_slices(&mut rest, 0);
        for (at, length) in self.pieces(at, length) {
            let bytes = self.ask(Command::Read, 0, at, length, &[])?;
            let mut bytes = &bytes[..];
            while let (Some(part), false) = (rest.first_mut(), bytes.is_empty()) {
                let (here, behind) = bytes.split_at(bytes.len().min(part.len()));
                part[..here.len()].copy_from_slice(here);
                bytes = behind;
                IoSliceMut::advance_slices(&mut rest, here.len());
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, from: &[IoSlice<'_>], durable: bool) -> io::Result<()> {
        let whole;
        let length: u64 = from.iter().map(|part| part.len() as u64).sum();
        let one = match from {
            [one] => &one[..],
            _ => {
                whole = from.iter().flat_map(|part| part.iter().copied()).collect::<Vec<u8>>();
                &whole[..]
            }
        };
        let fua = durable && self.export.fua;
        for (piece, length) in self.pieces(at, length) {
            let data = &one[(piece - at) as usize..][..length as usize];
            self.ask(Command::Write, if fua { wire::FUA } else { 0 }, piece, length, &[IoSlice::new(data)])?;
        }
        if durable && !fua { self.flush() } else { Ok(()) }
    }

    /// A server that offers no flush has no cache that one could empty.
    fn flush(&self) -> io::Result<()> {
        if self.export.flush { self.ask(Command::Flush, 0, 0, 0, &[]).map(drop) } else { Ok(()) }
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        let stream = self.sender.get_mut();
        // The last request: it has no reply.
        let _ = wire::send_request(stream, Command::Disconnect, 0, 0, 0, 0, &[]);
        let _ = stream.flush();
        stream.shut_down();
        if let Some(receiver) = self.receiver.take() {
            let _ = receiver.join();
        }
    }
}
