//! A connection to a server, from its handshake to its end, which is for ever.
//!
//! Requests of many threads are in flight at once; a thread of its own hands the replies out. What the server says is not believed: lengths,
//! flags and cookies are checked, and a server that breaks the protocol has vanished. So has one that does not answer in time.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::handshake::{self, Export};
use super::wire::{self, Command, Stream};
use crate::device::Geometry;
use crate::source::NbdAddress;
use crate::usual::Usual;

/// A connection.
pub(super) struct Connection {
    export: Export,
    /// How long the server may take to answer one request.
    patience: Duration,
    sender: Mutex<Stream>,
    /// The same, for ending it while somebody sends.
    whole: Stream,
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

impl Connection {
    /// Begins to talk with a server, which may take `at_first` for the whole handshake, and then `patience` for each request and answer.
    pub(super) fn begin(
        address: &NbdAddress,
        export: &str,
        at_first: Duration,
        patience: Duration,
    ) -> io::Result<Connection> {
        let mut stream = Stream::connect(address, Instant::now().checked_add(at_first))?;
        let export = handshake::negotiate(&mut stream, export)?;
        Connection::over(stream, export, patience)
    }

    /// The connection on which `export` was agreed on.
    fn over(stream: Stream, export: Export, patience: Duration) -> io::Result<Connection> {
        let (mut incoming, whole) = (stream.try_clone()?, stream.try_clone()?);
        let replies = Arc::new(Replies { waiting: Mutex::default() });
        let hand_out = {
            let replies = replies.clone();
            move || {
                Usual::for_good();
                replies.hand_out(&mut incoming);
            }
        };
        let receiver = std::thread::Builder::new().name("nbd-replies".into()).spawn(hand_out)?;
        Ok(Connection {
            export,
            patience,
            sender: Mutex::new(stream),
            whole,
            replies,
            receiver: Some(receiver),
        })
    }

    pub(super) fn geometry(&self, read_only: bool) -> Geometry {
        let sector = self.export.sector;
        let bytes = self.export.bytes - self.export.bytes % u64::from(sector);
        Geometry { bytes, sector, memory_alignment: 1, read_only: read_only || self.export.read_only }
    }

    /// Whether single writes can be durable when they are answered.
    pub(super) fn has_fua(&self) -> bool {
        self.export.fua
    }

    /// Whether the server may have what is not durable, and can be asked to change that.
    pub(super) fn has_cache(&self) -> bool {
        self.export.flush
    }

    /// Why the connection has ended, if it has.
    pub(super) fn ended(&self) -> Option<io::Error> {
        let has_ended = self.replies.waiting.lock().ended.is_some();
        has_ended.then(|| self.replies.gone())
    }

    /// Sends one request and waits for its reply.
    pub(super) fn ask(
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
        let sent = {
            let mut sender = self.sender.lock();
            sender.wait_until(Instant::now().checked_add(self.patience));
            wire::send_request(&mut sender, command, flags, cookie, at, length, data)
        };
        if let Err(error) = sent {
            let why = match error.kind() {
                io::ErrorKind::TimedOut => {
                    format!("the server did not take a request within {} s", self.patience.as_secs_f64())
                }
                _ => error.to_string(),
            };
            // Half a request may be on its way: nothing can follow it.
            self.end(error.kind(), &why);
        }
        match answered.recv_timeout(self.patience) {
            Ok(reply) => reply,
            Err(RecvTimeoutError::Disconnected) => Err(self.replies.gone()),
            Err(RecvTimeoutError::Timeout) => {
                self.end(
                    io::ErrorKind::TimedOut,
                    &format!("the server did not answer within {} s", self.patience.as_secs_f64()),
                );
                Err(self.replies.gone())
            }
        }
    }

    /// Ends the connection for everybody, also for who sends at the time, and waits for none.
    fn end(&self, kind: io::ErrorKind, why: &str) {
        self.replies.end(kind, why);
        self.whole.shut_down();
    }

    /// Cuts a range into requests that the server takes.
    pub(super) fn pieces(&self, at: u64, length: u64) -> impl Iterator<Item = (u64, u32)> + use<> {
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
                // It answers nothing else any more, and may wait for us to go: whoever waits is told so, and looks for it anew.
                if reply.error == wire::SHUTS_DOWN {
                    return Err(wire::error_of(reply.error));
                }
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

impl Drop for Connection {
    fn drop(&mut self) {
        let stream = self.sender.get_mut();
        // The last request: it has no reply, and nobody waits for a server that has no room for it.
        stream.wait_until(Some(Instant::now()));
        let _ = wire::send_request(stream, Command::Disconnect, 0, 0, 0, 0, &[]);
        stream.shut_down();
        if let Some(receiver) = self.receiver.take() {
            let _ = receiver.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Who had no answer in time waited, before ending it, for who was sending to the same server.
    #[test]
    fn a_connection_ends_while_somebody_sends() {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let export = Export::new(1 << 20, 0);
        let connection =
            Connection::over(OwnedFd::from(ours).into(), export, Duration::from_secs(30)).unwrap();
        let sends = connection.sender.lock();
        std::thread::scope(|threads| {
            threads.spawn(|| connection.end(io::ErrorKind::TimedOut, "no answer"));
            let seen = peer.read(&mut [0]);
            drop(sends);
            assert_eq!(seen.ok(), Some(0), "the peer sees the end meanwhile");
        });
        assert_eq!(connection.ended().unwrap().kind(), io::ErrorKind::TimedOut);
    }
}
