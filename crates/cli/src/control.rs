//! The control socket, by which commands talk to the server of a zone.
//!
//! A server has one zone open and serves volumes of it. While it runs it listens on `RUNTIME-DIRECTORY/ZONE-UUID.sock` (beside that of another which has
//! a copy of the zone), and answers the user as
//! whom it runs, and root. A connection carries requests and responses in turn, each one line of JSON:
//!
//! ```text
//! {"request":"stats","volume":"home"}
//! {"ok":{...}}
//! {"request":"stats","volume":"hom"}
//! {"failed":{"what":"...","doing":null,"state":null,"remedy":"...","exit":1}}
//! ```
//!
//! An answer that may be long comes in parts, `{"more":[...]}`, before the response that ends it; so does what is told on the way to one,
//! `{"more":{"done":4096,"all":1048576}}`. For the parts of an answer a server waits until they are read; what is told on the way is left out
//! while nobody reads it, since the work does not wait.
//!
//! Root also talks to servers of other users, which may be anything that these have written: they are waited for so long and no longer, and
//! what they say is text without control characters, of so many bytes and no more.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::admin::differences::Pair;
use crate::admin::format::Settings;
use crate::admin::snapshots::Ask;
use crate::failure::{Explain, Failure, guarded, printable};
use crate::mount_table::{self, Whereabouts};
use crate::place::VolumePlace;
use crate::report::{Fields, Form, Parts};
use crate::runtime_directory::{RuntimeDirectory, peer, this_user};
use crate::zone_file::ZoneFile;

/// Longest line that a server accepts.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Longest line that a server answers. Snapshots, of which a volume has 37,000 at most, are 5 MiB as text, or a little more with long
/// names.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// The same of what another user's may say, whose words take some sixty times as much to hold.
const ANSWER_OF_OTHERS_BYTES_MAX: u64 = 6 << 20;
/// The same of all parts of an answer of theirs: with each a difference or a problem, a million or more.
const PARTS_OF_OTHERS_BYTES_MAX: u64 = 256 << 20;
/// The same of who a server is.
const HELLO_BYTES_MAX: u64 = 64 << 10;
/// How long another user's server may take for an answer, or a part of one.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_secs(30);

/// What a server can be asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Who are you? Answered by [`Hello`].
    Hello,
    /// As `amberfs zone show`.
    Zone,
    /// As `amberfs info`.
    Info { volume: String },
    /// As `amberfs stats`.
    Stats { volume: String },
    /// As `amberfs snapshot`.
    Snapshot { volume: String, ask: Ask },
    /// As `amberfs snapshot diff`; answered in parts.
    SnapshotDiff { volume: String, pair: Pair },
    /// Serve another volume of the zone. Paths in the options are meant from `from`.
    Mount { volume: String, dir: PathBuf, options: Vec<String>, from: PathBuf, sloppy: bool },
    /// The volume is about to be remounted with these options (paths in them are meant from `from`), or has been.
    Remount { volume: String, options: Vec<String>, from: PathBuf, sloppy: bool },
    /// What of the volume waits in NVM for its disk goes there; nothing of one that has none.
    Settle { volume: String },
    /// Answer when the volume is no longer served and has been closed; a part says that the request has been read.
    Ended { volume: String },
    /// Attach a disk to another volume of the zone, which is made of so many bytes if it is not there.
    Attach { volume: String, disk: String, bytes: Option<u64> },
    /// Make the disk of another volume of the zone a plain one again.
    Detach { volume: String, disk: Option<String> },
    /// Make a file system on another volume of the zone.
    Format { volume: String, settings: Settings },
    /// Check another volume of the zone, and repair it or `preen` it: as `amberfs fsck`, with its problems in parts.
    Check {
        volume: String,
        repair: bool,
        #[serde(default)]
        preen: bool,
    },
    /// A structure of another volume of the zone, or its entrance: as `amberfs dump`, with text or JSON in parts.
    Dump { volume: Option<String>, structure: String, form: Form },
    /// Remove another volume of the zone.
    RemoveVolume { volume: String, force: bool },
    /// Grow the zone; 0 takes all that is there.
    Grow { bytes: u64 },
}

/// What a server says of itself.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) pid: u32,
    /// The path by which it opened the zone, or the disk; that may lead elsewhere by now.
    pub(crate) zone: PathBuf,
    /// Which file that was.
    pub(crate) file: Option<ZoneFile>,
    pub(crate) mounts: Vec<Mounted>,
}

/// A volume that is served.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Mounted {
    pub(crate) volume: String,
    /// Where it is mounted: now, as far as that is seen here; or where it was.
    pub(crate) dir: PathBuf,
    /// The mount's device, as the table of mounts has it; nothing when the mount has ended and the volume is being closed.
    pub(crate) device: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Response {
    /// A part; others follow, and one of the other two.
    More(Json),
    Ok(Json),
    Failed(Failure),
}

/// Requests that are being answered: a server that is done ends behind the last answer, and reads no other request. So who
/// hears nothing knows by the kernel whether what was asked has been read.
#[derive(Default)]
pub(crate) struct Answering {
    requests: Mutex<Requests>,
    fewer: Condvar,
}

#[derive(Default)]
struct Requests {
    count: usize,
    /// No other one is read.
    ended: bool,
}

impl Answering {
    /// Whether one more may be read.
    fn begin(&self) -> bool {
        let mut requests = self.requests.lock();
        requests.count += usize::from(!requests.ended);
        !requests.ended
    }

    fn end(&self) {
        self.requests.lock().count -= 1;
        self.fewer.notify_all();
    }

    /// Waits until there are none, but not for ever.
    pub(crate) fn wait(&self, limit: Duration) {
        let mut requests = self.requests.lock();
        self.fewer.wait_while_for(&mut requests, |requests| requests.count > 0, limit);
        requests.ended = true;
    }
}

/// A server's side: listens until dropped.
pub(crate) struct Listener {
    path: PathBuf,
}

/// Answers requests; called from a thread of each connection's own.
pub(crate) type Handler = Arc<dyn Fn(Request, &mut Asker) -> Result<Json, Failure> + Send + Sync>;

/// Whoever asked, to be told something before the answer ends.
pub(crate) struct Asker(UnixStream);

impl Asker {
    /// A part of the answer. Waits until there is room for it: not to be called by who keeps others waiting.
    pub(crate) fn tell(&mut self, part: Json) -> Result<(), Failure> {
        say(&mut self.0, &Response::More(part))
            .map_err(|error| Failure::new(format!("the answer cannot be sent: {error}")))
    }

    /// How the work goes on. Left out if nobody reads, so that nothing waits: where the kernel says that there is room, there is enough for
    /// some hundred bytes.
    pub(crate) fn tell_in_passing(&mut self, part: Json) {
        let mut room = [PollFd::new(&self.0, PollFlags::OUT)];
        if rustix::event::poll(&mut room, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            // Who no longer listens doesn't end it.
            let _ = self.tell(part);
        }
    }

    /// Tells how far copying has come, ten times a second.
    pub(crate) fn progress(&mut self) -> impl FnMut(u64, u64) {
        const PERIOD: Duration = Duration::from_millis(100);
        let mut told: Option<Instant> = None;
        move |done, all| {
            if done == all || told.is_none_or(|told| told.elapsed() >= PERIOD) {
                told = Some(Instant::now());
                self.tell_in_passing(json!(Copied { done, all }));
            }
        }
    }
}

/// How far copying has come, bytes: what a server tells meanwhile.
#[derive(Serialize, Deserialize)]
pub(crate) struct Copied {
    pub(crate) done: u64,
    pub(crate) all: u64,
}

/// Text and JSON, for an answer through the control socket: the server knows how to say both.
pub(crate) fn pack(fields: &Fields) -> Json {
    json!({ "text": fields.text(), "json": fields.json() })
}

/// What [`pack`] packed.
pub(crate) fn unpack(mut answer: Json) -> (String, Json) {
    let text = answer["text"].as_str().unwrap_or_default().to_string();
    (text, answer["json"].take())
}

impl Listener {
    /// Listens for the server of the zone with this UUID.
    pub(crate) fn start(
        zone_uuid: &str,
        handler: Handler,
        answering: Arc<Answering>,
    ) -> Result<Listener, Failure> {
        Listener::at(&RuntimeDirectory::make()?, zone_uuid, handler, answering)
    }

    /// The zone's lock keeps a second server away from its file; but a copy of that has the same UUID, and others may read a zone that nobody can
    /// write to: if somebody listens there, this one does beside it.
    pub(crate) fn at(
        dir: &RuntimeDirectory,
        zone_uuid: &str,
        handler: Handler,
        answering: Arc<Answering>,
    ) -> Result<Listener, Failure> {
        let failed = |error| Failure::new(format!("cannot listen in {}: {error}", dir.path.display()));
        // From the look at who listens on: of two that begin at once, the second sees the first.
        let _lock = dir.lock().map_err(failed)?;
        let mut name = format!("{zone_uuid}.sock");
        if dir.connect(OsStr::new(&name)).is_ok() {
            name = format!("{zone_uuid}-{}.sock", std::process::id());
        }
        let path = dir.path.join(&name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let socket = dir.bind(&name).map_err(failed)?;
        let listener = Listener { path };
        let listen = move || {
            // Nobody else can reach the socket; who does all the same is not answered.
            let may_ask = |stream: &UnixStream| {
                peer(stream).is_ok_and(|peer| peer.uid() == this_user() || peer.uid() == 0)
            };
            for stream in socket.incoming() {
                let Ok(stream) = stream else {
                    // There is no descriptor for it, most likely, and it will be there at once again.
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                };
                if !may_ask(&stream) {
                    continue;
                }
                let (handler, answering) = (handler.clone(), answering.clone());
                // Who asks where there is no thread to be had is hung up on; the others have theirs.
                let _ = Builder::new().spawn(move || answer(stream, &handler, &answering));
            }
        };
        Builder::new().spawn(listen).doing("starting a thread that listens")?;
        Ok(listener)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves one connection until its other end goes away.
fn answer(stream: UnixStream, handler: &Handler, answering: &Answering) {
    let Ok(out) = stream.try_clone() else { return };
    let mut asker = Asker(out);
    let mut lines = BufReader::new(stream);
    while has_something(&lines) && answering.begin() {
        let Ok(Some(line)) = read_line(&mut lines, REQUEST_BYTES_MAX, None) else {
            return answering.end();
        };
        let result = match serde_json::from_str::<Request>(&line) {
            Ok(request) => answered(handler, request, &mut asker),
            Err(error) => Err(Failure::new(format!("the server does not know this request: {error}"))
                .remedy("client and server are of different versions: unmount and mount again")),
        };
        let response = match result {
            Ok(value) => Response::Ok(value),
            Err(failure) => Response::Failed(failure),
        };
        let said = say(&mut asker.0, &response);
        answering.end();
        if said.is_err() {
            return;
        }
    }
}

/// Who asks gets an answer in any case. What had been done before a panic was done.
fn answered(handler: &Handler, request: Request, asker: &mut Asker) -> Result<Json, Failure> {
    let state = "it serves what it served; how far the command came is not known";
    guarded(state, || handler(request, asker))
}

/// Waits until there is something to read, or nothing ever; reads nothing.
fn has_something(lines: &BufReader<UnixStream>) -> bool {
    let mut stream = [PollFd::new(lines.get_ref(), PollFlags::IN)];
    // What came with the last request is here, not there.
    while lines.buffer().is_empty() {
        match rustix::event::poll(&mut stream, None) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return ready.is_ok(),
        }
    }
    true
}

fn say(out: &mut UnixStream, response: &Response) -> std::io::Result<()> {
    let mut text = serde_json::to_string(response)?;
    text.push('\n');
    if text.len() as u64 > ANSWER_BYTES_MAX {
        return Err(std::io::Error::other(format!("{} bytes are too many for one line", text.len())));
    }
    out.write_all(text.as_bytes())
}

/// A line of so many bytes at most, all of it there by `until`; none if the other end has gone away.
fn read_line(
    from: &mut BufReader<UnixStream>,
    bytes_max: u64,
    until: Option<Instant>,
) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    while line.len() as u64 <= bytes_max {
        wait_until(from.get_ref(), until)?;
        let there = match from.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            there => there?,
        };
        let end = there.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(there.len(), |end| end + 1);
        line.extend_from_slice(&there[..taken]);
        from.consume(taken);
        if end.is_some() {
            return String::from_utf8(line).map(Some).map_err(std::io::Error::other);
        }
        if taken == 0 {
            return Ok(None);
        }
    }
    Err(std::io::Error::other(format!("a line of more than {bytes_max} bytes")))
}

/// The next read fails behind `until`.
fn wait_until(stream: &UnixStream, until: Option<Instant>) -> std::io::Result<()> {
    let Some(until) = until else { return stream.set_read_timeout(None) };
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))
}

/// Without what could make a terminal do things.
fn tame(said: &mut Json) {
    match said {
        Json::String(text) => {
            *text = printable(text);
        }
        Json::Array(all) => all.iter_mut().for_each(tame),
        Json::Object(fields) => {
            for (name, mut value) in std::mem::take(fields) {
                tame(&mut value);
                fields.insert(printable(&name), value);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// A command's side.
pub(crate) struct Client {
    lines: BufReader<UnixStream>,
    pub(crate) hello: Hello,
    /// As whom the server runs.
    pub(crate) user: u32,
    /// How long it may take for a line.
    patience: Option<Duration>,
    /// How long a line may be, bytes.
    longest: u64,
    /// How many bytes all parts of an answer may still have.
    left: u64,
    /// The server has ended, and not read what it was asked last.
    is_unread: bool,
    /// An answer was not there in time.
    was_late: bool,
}

impl Client {
    /// Learns who the server of `user` is at the other end, within `patience`.
    pub(crate) fn meet(stream: UnixStream, user: u32, patience: Duration) -> Result<Client, Failure> {
        let pid = peer(&stream)?.pid().try_into().unwrap_or(0);
        let hello = Hello { pid, ..Hello::default() };
        let lines = BufReader::new(stream);
        let mut client = Client {
            lines,
            hello,
            user,
            patience: Some(patience),
            longest: HELLO_BYTES_MAX,
            left: 0,
            is_unread: false,
            was_late: false,
        };
        client.lines.get_ref().set_write_timeout(Some(patience))?;
        client.hello = serde_json::from_value(client.ask(&Request::Hello)?).map_err(Failure::new)?;
        // What number it has is not its own to say. (The kernel says 0 of a process that has none here.)
        if pid != 0 || client.is_others() {
            client.hello.pid = pid;
        }
        for mount in &mut client.hello.mounts {
            if let Whereabouts::Shown(dir) | Whereabouts::Covered(dir) =
                mount_table::whereabouts(&mount.device, &mount.dir)
            {
                mount.dir = dir;
            }
        }
        client.patience = client.is_others().then_some(PATIENCE_WITH_OTHERS);
        client.longest = if client.is_others() { ANSWER_OF_OTHERS_BYTES_MAX } else { ANSWER_BYTES_MAX };
        client.lines.get_ref().set_write_timeout(client.patience)?;
        Ok(client)
    }

    /// Whether another user runs it.
    pub(crate) fn is_others(&self) -> bool {
        self.user != this_user()
    }

    /// Asks and waits for the answer.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Json, Failure> {
        self.ask_for_parts(request, &mut |_| {
            Err(Failure::new("the server's answer has parts that nobody asked for"))
        })
    }

    /// The same, of an answer that comes in parts, before its end.
    pub(crate) fn ask_for_parts(&mut self, request: &Request, take: &mut Parts<'_>) -> Result<Json, Failure> {
        self.send(request)?;
        loop {
            match self.response()? {
                Some(Response::More(part)) => take(part)?,
                Some(Response::Ok(value)) => return Ok(value),
                Some(Response::Failed(failure)) => return Err(failure),
                None if self.is_unread => return Err(Failure::ending("the zone's server")),
                None => {
                    let pid = self.hello.pid;
                    return Err(Failure::new(format!(
                        "the server (process {pid}) went away before it answered"
                    )));
                }
            }
        }
    }

    pub(crate) fn send(&mut self, request: &Request) -> Result<(), Failure> {
        let mut text = serde_json::to_string(request).map_err(Failure::new)?;
        text.push('\n');
        self.left = if self.is_others() { PARTS_OF_OTHERS_BYTES_MAX } else { u64::MAX };
        self.lines.get_mut().write_all(text.as_bytes()).map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => Failure::ending("the zone's server"),
            _ => Failure::new(format!("cannot reach the server (process {}): {error}", self.hello.pid)),
        })
    }

    /// The next answer; None if the server has ended.
    pub(crate) fn receive(&mut self) -> Result<Option<Json>, Failure> {
        match self.response()? {
            Some(Response::Ok(value) | Response::More(value)) => Ok(Some(value)),
            Some(Response::Failed(failure)) => Err(failure),
            None => Ok(None),
        }
    }

    fn response(&mut self) -> Result<Option<Response>, Failure> {
        let until = self.patience.map(|patience| Instant::now() + patience);
        match read_line(&mut self.lines, self.longest, until) {
            Ok(Some(line)) => {
                let too_many =
                    || Failure::new(format!("an answer of more than {PARTS_OF_OTHERS_BYTES_MAX} bytes"));
                self.left = self.left.checked_sub(line.len() as u64).ok_or_else(too_many)?;
                let mut said: Json = serde_json::from_str(&line).map_err(Failure::new)?;
                if self.is_others() {
                    tame(&mut said);
                }
                let said = serde_json::from_value(said).map_err(Failure::new)?;
                Ok(Some(match said {
                    // What to do, and the exit code, are not for them to say.
                    Response::Failed(failure) if self.is_others() => {
                        Response::Failed(Failure::new(failure.what))
                    }
                    said => said,
                }))
            }
            Ok(None) => Ok(None),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                self.is_unread = true;
                Ok(None)
            }
            Err(error) => {
                let why = match (error.kind(), self.patience) {
                    (ErrorKind::TimedOut | ErrorKind::WouldBlock, Some(patience)) => {
                        self.was_late = true;
                        format!("none within {} s", patience.as_secs())
                    }
                    _ => error.to_string(),
                };
                Err(Failure::new(format!("no answer from the server (process {}): {why}", self.hello.pid)))
            }
        }
    }

    /// Takes no more of an answer than of a hello: where many are asked.
    pub(crate) fn limit_answers(&mut self) {
        self.longest = HELLO_BYTES_MAX;
    }

    /// Gives up waiting after `limit`: [`Client::receive`] fails then.
    pub(crate) fn limit_waiting(&mut self, limit: Duration) {
        self.patience = Some(limit);
        self.was_late = false;
    }

    /// The same until it says something.
    pub(crate) fn wait_without_limit(&mut self) {
        self.patience = None;
    }

    /// Whether it failed since it took too long.
    pub(crate) fn was_late(&self) -> bool {
        self.was_late
    }

    /// Waits until the server's process closes the connection, which it does by ending.
    pub(crate) fn wait_for_end(mut self) {
        let until = self.patience.map(|patience| Instant::now() + patience);
        let mut rest = [0; 512];
        while wait_until(self.lines.get_ref(), until).is_ok()
            && self.lines.read(&mut rest).is_ok_and(|read| read > 0)
        {}
    }

    /// What is mounted of a volume of its zone, as the table of mounts has it.
    pub(crate) fn source_of(&self, volume: &str) -> String {
        VolumePlace { zone: self.hello.zone.clone(), volume: volume.to_string() }.to_string()
    }

    /// The volume whose mount has this device, if this server serves it.
    pub(crate) fn volume_of(&self, device: &str) -> Option<&str> {
        self.hello.mounts.iter().find(|mount| mount.device == device).map(|mount| mount.volume.as_str())
    }

    /// How a volume is mounted, if it is.
    pub(crate) fn mount_of(&self, volume: &str) -> Option<&Mounted> {
        self.hello.mounts.iter().find(|mount| mount.volume == volume)
    }
}

#[cfg(test)]
mod tests;
