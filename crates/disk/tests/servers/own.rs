//! An NBD server in the test's own process, which misbehaves as it is told: of 8 MiB, on a socket. Its threads end with the process.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use disk::Source;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const OPTION_GO: u32 = 7;
const REPLY: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const EIO: u32 = 5;

/// Offers no flush: it has no cache.
pub(crate) const PLAIN: u16 = 1;
/// Offers flushes.
pub(crate) const FLUSHES: u16 = 1 | 1 << 2;
const BYTES: usize = 8 << 20;

/// How it serves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// As it should.
    Well,
    /// Carries a write out and cuts the connection.
    CutsWrites,
    /// Carries a write out and says that it failed.
    FailsWrites,
    /// Of two writes that it has at the same time, carries the second out first, and answers in order.
    TurnsRound,
    /// Gives its greeting byte by byte.
    Dribbles,
    /// Takes what is written 4 KiB at a time, with rests.
    Sips,
}

struct State {
    image: Vec<u8>,
    manner: Manner,
    connections: Vec<UnixStream>,
}

pub(crate) struct OwnServer {
    pub(crate) source: Source,
    state: Arc<Mutex<State>>,
    _dir: tempfile::TempDir,
}

struct Request {
    kind: u16,
    cookie: u64,
    at: usize,
    length: usize,
    data: Vec<u8>,
}

impl OwnServer {
    pub(crate) fn new(flags: u16) -> OwnServer {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let state = State { image: vec![0; BYTES], manner: Manner::Well, connections: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let source = format!("nbd+unix:///?socket={}", socket.display()).parse().unwrap();
        let serves = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = serves.clone();
                state.lock().unwrap().connections.push(stream.try_clone().unwrap());
                std::thread::spawn(move || {
                    let mut stream = stream;
                    let _ = serve(&mut stream, &state, flags);
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        OwnServer { source, state, _dir: dir }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn behave(&self, manner: Manner) {
        self.state().manner = manner;
    }

    /// Cuts all connections.
    pub(crate) fn cut(&self) {
        for stream in self.state().connections.drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// What is on the disk.
    pub(crate) fn image(&self) -> Vec<u8> {
        self.state().image.clone()
    }

    /// Puts something there that the client does not know of.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        self.state().image[at..][..bytes.len()].copy_from_slice(bytes);
    }
}

fn serve(stream: &mut UnixStream, state: &Mutex<State>, flags: u16) -> io::Result<()> {
    let manner = || state.lock().unwrap().manner;
    greet(stream, flags, manner() == Manner::Dribbles)?;
    loop {
        let request = receive(stream, || manner() == Manner::Sips)?;
        let is_write = request.kind == WRITE;
        match manner() {
            Manner::CutsWrites if is_write => {
                carry_out(&request, state);
                return Ok(());
            }
            Manner::FailsWrites if is_write => {
                carry_out(&request, state);
                reply(stream, &request, EIO, &[])?;
            }
            Manner::TurnsRound if is_write => {
                stream.set_read_timeout(Some(Duration::from_millis(300)))?;
                let second = receive(stream, || false);
                stream.set_read_timeout(None)?;
                let requests = [Some(request), second.ok()];
                requests.iter().rev().flatten().for_each(|request| drop(carry_out(request, state)));
                requests.iter().flatten().try_for_each(|request| reply(stream, request, 0, &[]))?;
            }
            _ if request.kind == DISCONNECT => return Ok(()),
            _ => {
                let bytes = carry_out(&request, state);
                reply(stream, &request, 0, &bytes)?;
            }
        }
    }
}

fn greet(stream: &mut UnixStream, flags: u16, dribbles: bool) -> io::Result<()> {
    let say = |stream: &mut UnixStream, parts: &[&[u8]]| {
        for byte in parts.concat().chunks(if dribbles { 1 } else { 100 }) {
            stream.write_all(byte)?;
            if dribbles {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        io::Result::Ok(())
    };
    say(stream, &[&MAGIC.to_be_bytes(), &OPTION.to_be_bytes(), &3u16.to_be_bytes()])?;
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    let mut data = vec![0; u32::from_be_bytes(head[16..].try_into().unwrap()) as usize];
    stream.read_exact(&mut data)?;
    let about = [&OPTION_REPLY.to_be_bytes()[..], &OPTION_GO.to_be_bytes()].concat();
    let (info, bytes) = ([0, 0, 0, 3, 0, 0, 0, 12, 0, 0], (BYTES as u64).to_be_bytes());
    say(stream, &[&about, &info, &bytes, &flags.to_be_bytes()])?;
    say(stream, &[&about, &[0, 0, 0, 1, 0, 0, 0, 0]])
}

fn receive(stream: &mut UnixStream, sips: impl Fn() -> bool) -> io::Result<Request> {
    let mut head = [0; 28];
    stream.read_exact(&mut head)?;
    let kind = u16::from_be_bytes(head[6..8].try_into().unwrap());
    let number = |at: usize| u64::from_be_bytes(head[at..][..8].try_into().unwrap());
    let length = u32::from_be_bytes(head[24..].try_into().unwrap()) as usize;
    let mut data = vec![0; if kind == WRITE { length } else { 0 }];
    for part in data.chunks_mut(4096) {
        stream.read_exact(part)?;
        if sips() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(Request { kind, cookie: number(8), at: number(16) as usize, length, data })
}

/// Gives what is read.
fn carry_out(request: &Request, state: &Mutex<State>) -> Vec<u8> {
    let image = &mut state.lock().unwrap().image;
    let Request { kind, at, length, data, .. } = request;
    image[*at..][..data.len()].copy_from_slice(data);
    if *kind == READ { image[*at..][..*length].to_vec() } else { Vec::new() }
}

fn reply(stream: &mut UnixStream, request: &Request, error: u32, bytes: &[u8]) -> io::Result<()> {
    let head = [&REPLY.to_be_bytes()[..], &error.to_be_bytes(), &request.cookie.to_be_bytes()].concat();
    stream.write_all(&[&head[..], bytes].concat())
}
