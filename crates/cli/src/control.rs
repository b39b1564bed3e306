//! The control socket, by which commands talk to the server of a zone.
//!
//! A server has one zone open and serves volumes of it. While it runs it listens on
//! `RUNTIME-DIRECTORY/ZONE-UUID.sock`, where only the user who mounted (and root) can connect. A connection carries
//! requests and responses in turn, each one line of JSON:
//!
//! ```text
//! {"request":"stats","volume":"home"}
//! {"ok":{...}}
//! {"request":"stats","volume":"hom"}
//! {"failed":{"what":"...","doing":null,"state":null,"remedy":"...","exit":1}}
//! ```
//!
//! An answer that may be long comes in parts, `{"more":[...]}`, before the response that ends it; so does what is told on the way to one,
//! `{"more":{"done":4096,"all":1048576}}`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::failure::Failure;
use crate::mount_table::{self, MountEntry};

/// Longest line that a server accepts.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Longest line that a server answers. Snapshots, of which a volume has 37,000 at most, are 5 MiB as text, or a little more with long
/// names.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// How long a server may take to say who it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(15);

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
    Snapshot { volume: String, ask: crate::commands::snapshot::Ask },
    /// As `amberfs snapshot diff`; answered in parts.
    SnapshotDiff { volume: String, pair: crate::commands::snapshot_diff::Pair },
    /// Serve another volume of the zone. Paths in the options are meant from `from`.
    Mount { volume: String, dir: PathBuf, options: Vec<String>, from: PathBuf, sloppy: bool },
    /// The volume is about to be remounted for changes, or has been so that there are none.
    Remount { volume: String, read_only: bool },
    /// What of the volume waits in NVM for its disk goes there; nothing of one that has none.
    Settle { volume: String },
    /// Answer when the volume is no longer served and has been closed; a part says that the request has been read.
    Ended { volume: String },
    /// Attach a disk to another volume of the zone, which is made of so many bytes if it is not there.
    Attach { volume: String, disk: String, bytes: Option<u64> },
    /// Make the disk of another volume of the zone a plain one again.
    Detach { volume: String, disk: Option<String> },
    /// Make a file system on another volume of the zone.
    Format { volume: String, settings: crate::commands::mkfs::Settings },
    /// Remove another volume of the zone.
    RemoveVolume { volume: String, force: bool },
    /// Grow the zone; 0 takes all that is there.
    Grow { bytes: u64 },
}

/// What a server says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) pid: u32,
    pub(crate) zone: PathBuf,
    /// Volumes served, and where they are mounted.
    pub(crate) mounts: Vec<(String, PathBuf)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Response {
    /// A part; others follow, and one of the other two.
    More(Json),
    Ok(Json),
    Failed(Failure),
}

/// Where this user's servers listen.
fn runtime_dir() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return "/run/amberfs".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir).join("amberfs"),
        _ => format!("/tmp/amberfs-{}", user.as_raw()).into(),
    }
}

/// Everywhere that servers this user may talk to can listen: root may talk to all.
fn runtime_dirs() -> Vec<PathBuf> {
    let mut dirs = vec![runtime_dir()];
    if rustix::process::geteuid().is_root() {
        let entries = |dir: &str| std::fs::read_dir(dir).into_iter().flatten().flatten();
        dirs.extend(entries("/run/user").map(|entry| entry.path().join("amberfs")));
        let ours = |entry: &std::fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b"amberfs-");
        dirs.extend(entries("/tmp").filter(ours).map(|entry| entry.path()));
    }
    dirs
}

/// Makes the runtime directory, and refuses one that others could have prepared.
fn prepare(dir: &Path) -> Result<(), Failure> {
    let made = std::fs::DirBuilder::new().mode(0o700).recursive(true).create(dir);
    let metadata = made.and_then(|()| std::fs::symlink_metadata(dir)).map_err(|error| {
        Failure::new(format!("{}: {error}", dir.display()))
            .remedy("set XDG_RUNTIME_DIR to a directory of yours")
    })?;
    let owner = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != owner || metadata.mode() & 0o022 != 0 {
        return Err(Failure::new(format!("{} is not a directory that only you can write to", dir.display()))
            .remedy("remove it, or set XDG_RUNTIME_DIR to a directory of yours"));
    }
    Ok(())
}

/// Held while a socket appears or a dead one is removed: between its binding and its listening, a live one looks dead.
fn lock(dir: &Path) -> std::io::Result<std::fs::File> {
    let directory = std::fs::File::open(dir)?;
    rustix::fs::flock(&directory, rustix::fs::FlockOperation::LockExclusive)?;
    Ok(directory)
}

/// Requests that are being answered: a server that is done ends behind the last answer.
#[derive(Default)]
pub(crate) struct Answering {
    count: Mutex<usize>,
    fewer: Condvar,
}

impl Answering {
    fn add(&self, change: isize) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_add_signed(change);
        self.fewer.notify_all();
    }

    /// Waits until there are none, but not for ever.
    pub(crate) fn wait(&self, limit: Duration) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.fewer.wait_timeout_while(count, limit, |count| *count > 0);
    }
}

/// A server's side: listens until dropped.
pub(crate) struct Listener {
    path: PathBuf,
}

/// Answers requests; called from a thread of each connection's own.
pub(crate) type Handler = Arc<dyn Fn(Request, &mut Parts<'_>) -> Result<Json, Failure> + Send + Sync>;

/// Takes parts of an answer; fails if nobody listens any more.
pub(crate) type Parts<'a> = dyn FnMut(Json) -> Result<(), Failure> + 'a;

impl Listener {
    /// Listens for the server of the zone with this UUID. The zone's lock is what keeps a second server away,
    /// so a socket that is there already belonged to a server that is gone.
    pub(crate) fn start(
        zone_uuid: &str,
        handler: Handler,
        answering: Arc<Answering>,
    ) -> Result<Listener, Failure> {
        let dir = runtime_dir();
        prepare(&dir)?;
        Listener::at(dir.join(format!("{zone_uuid}.sock")), handler, answering)
    }

    fn at(path: PathBuf, handler: Handler, answering: Arc<Answering>) -> Result<Listener, Failure> {
        let failed = |error| Failure::new(format!("cannot listen on {}: {error}", path.display()));
        let _lock = lock(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let socket = UnixListener::bind(&path).map_err(failed)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        std::thread::spawn(move || {
            for stream in socket.incoming().flatten() {
                let (handler, answering) = (handler.clone(), answering.clone());
                std::thread::spawn(move || answer(stream, &handler, &answering));
            }
        });
        Ok(Listener { path })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves one connection until its other end goes away.
fn answer(stream: UnixStream, handler: &Handler, answering: &Answering) {
    let Ok(mut out) = stream.try_clone() else { return };
    let mut lines = BufReader::new(stream);
    while let Ok(Some(line)) = read_line(&mut lines, REQUEST_BYTES_MAX) {
        answering.add(1);
        let result = match serde_json::from_str::<Request>(&line) {
            Ok(request) => handler(request, &mut |part| {
                say(&mut out, &Response::More(part))
                    .map_err(|error| Failure::new(format!("the answer cannot be sent: {error}")))
            }),
            Err(error) => Err(Failure::new(format!("the server does not know this request: {error}"))
                .remedy("client and server are of different versions: unmount and mount again")),
        };
        let response = match result {
            Ok(value) => Response::Ok(value),
            Err(failure) => Response::Failed(failure),
        };
        let said = say(&mut out, &response);
        answering.add(-1);
        if said.is_err() {
            return;
        }
    }
}

fn say(out: &mut UnixStream, response: &Response) -> std::io::Result<()> {
    let mut text = serde_json::to_string(response)?;
    text.push('\n');
    if text.len() as u64 > ANSWER_BYTES_MAX {
        return Err(std::io::Error::other(format!("{} bytes are too many for one line", text.len())));
    }
    out.write_all(text.as_bytes())
}

fn read_line(from: &mut BufReader<UnixStream>, bytes_max: u64) -> std::io::Result<Option<String>> {
    let mut line = String::new();
    from.take(bytes_max).read_line(&mut line)?;
    Ok(line.ends_with('\n').then_some(line))
}

/// A command's side.
pub(crate) struct Client {
    lines: BufReader<UnixStream>,
    pub(crate) hello: Hello,
}

impl Client {
    fn connect(path: &Path) -> std::io::Result<Client> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
        let nobody = Hello { pid: 0, zone: PathBuf::new(), mounts: Vec::new() };
        let mut client = Client { lines: BufReader::new(stream), hello: nobody };
        let answer = client.ask(&Request::Hello).map_err(|failure| std::io::Error::other(failure.what))?;
        client.hello = serde_json::from_value(answer)?;
        client.lines.get_ref().set_read_timeout(None)?;
        Ok(client)
    }

    /// Asks and waits for the answer.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Json, Failure> {
        self.ask_for_parts(request, &mut |_| Ok(()))
    }

    /// The same, of an answer that comes in parts, before its end.
    pub(crate) fn ask_for_parts(&mut self, request: &Request, take: &mut Parts<'_>) -> Result<Json, Failure> {
        self.send(request)?;
        loop {
            match self.response()? {
                Some(Response::More(part)) => take(part)?,
                Some(Response::Ok(value)) => return Ok(value),
                Some(Response::Failed(failure)) => return Err(failure),
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
        self.lines.get_mut().write_all(text.as_bytes()).map_err(|error| {
            Failure::new(format!("cannot reach the server (process {}): {error}", self.hello.pid))
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
        match read_line(&mut self.lines, ANSWER_BYTES_MAX) {
            Ok(Some(line)) => serde_json::from_str(&line).map(Some).map_err(Failure::new),
            Ok(None) => Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => {
                Err(Failure::new(format!("no answer from the server (process {}): {error}", self.hello.pid)))
            }
        }
    }

    /// Gives up waiting after `limit`: [`Client::receive`] fails then.
    pub(crate) fn limit_waiting(&self, limit: Duration) {
        let _ = self.lines.get_ref().set_read_timeout(Some(limit));
    }

    /// Waits until the server's process closes the connection, which it does by ending.
    pub(crate) fn wait_for_end(mut self) {
        let mut rest = Vec::new();
        let _ = self.lines.read_to_end(&mut rest);
    }

    /// The volume mounted on `dir`, if this server serves one there.
    pub(crate) fn volume_at(&self, dir: &Path) -> Option<&str> {
        self.hello.mounts.iter().find(|(_, at)| at == dir).map(|(volume, _)| volume.as_str())
    }
}

/// All servers that answer this user. Sockets of servers that are gone are removed.
pub(crate) fn servers() -> Vec<Client> {
    let files =
        runtime_dirs().into_iter().flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten().flatten());
    let sockets =
        files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "sock"));
    sockets.filter_map(|path| reach(&path)).collect()
}

/// Whoever listens on a socket. One that nobody listens on is removed.
fn reach(path: &Path) -> Option<Client> {
    let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    match Client::connect(path) {
        Err(error) if refused(&error) => {}
        answer => return answer.ok(),
    }
    // It may be a moment from listening, or have been replaced by one that does. With the lock, what is dead stays so.
    let lock = lock(path.parent()?).ok()?;
    match UnixStream::connect(path) {
        Err(error) if refused(&error) => {
            let _ = std::fs::remove_file(path);
            None
        }
        Err(_) => None,
        Ok(_) => {
            drop(lock);
            Client::connect(path).ok()
        }
    }
}

/// The server that has this zone open.
pub(crate) fn server_of_zone(zone: &Path) -> Option<Client> {
    let zone = std::fs::canonicalize(zone).ok()?;
    servers().into_iter().find(|client| client.hello.zone == zone)
}

/// The server of what is mounted on `dir` (a path without symbolic links).
pub(crate) fn server_of_mount(dir: &Path) -> Option<Client> {
    servers().into_iter().find(|client| client.volume_at(dir).is_some())
}

/// The same, and the volume's name; or why nobody answers for it.
pub(crate) fn volume_of_mount(dir: &Path) -> Result<(Client, String), Failure> {
    if let Some(client) = server_of_mount(dir) {
        let volume = client.volume_at(dir).unwrap_or_default().to_string();
        return Ok((client, volume));
    }
    let entry = mount_table::at(dir)?.filter(|entry| entry.kind == mount_table::TYPE);
    let failure = |what: String| Failure::new(what).doing("looking for its server");
    Err(match entry {
        None => failure(format!("no volume is served on {}", dir.display()))
            .remedy("name a volume as ZONE:VOLUME, or where it is mounted"),
        Some(MountEntry { user: Some(user), source, .. })
            if user != rustix::process::geteuid().as_raw() && !rustix::process::geteuid().is_root() =>
        {
            let who = if user == 0 { "root".to_string() } else { format!("user {user}") };
            failure(format!(
                "{source} is mounted on {} and served by {who}, whom only they and root may ask",
                dir.display()
            ))
            .remedy(format!("have {who} do it, or root"))
        }
        Some(MountEntry { source, .. }) => {
            failure(format!("{source} is mounted on {}, and its server does not answer", dir.display()))
                .remedy(format!(
                    "if it is gone: amberfs umount {}, then mount again: it recovers",
                    dir.display()
                ))
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    /// Who looks for servers while one begins to listen took its socket for a dead one's, and removed it.
    #[test]
    fn a_socket_about_to_listen_is_not_a_dead_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("zone.sock");
        let handler: Handler = Arc::new(|_, _| {
            let hello = Hello { pid: 1, zone: PathBuf::from("/zone"), mounts: Vec::new() };
            serde_json::to_value(hello).map_err(Failure::new)
        });
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        reach(&path);
                    }
                });
            }
            for round in 0..2000 {
                let listener = Listener::at(path.clone(), handler.clone(), Arc::default());
                let alive = listener.is_ok() && path.exists();
                done.store(!alive, Relaxed);
                assert!(alive, "round {round}");
            }
            done.store(true, Relaxed);
        });
        // What a server that was killed left behind goes.
        drop(UnixListener::bind(&path).unwrap());
        assert!(reach(&path).is_none() && !path.exists());
    }

    /// A list of some 7,000 snapshots was longer than a line of either side: the server hung up.
    #[test]
    fn a_long_list_ended_the_connection() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("zone.sock");
        let rows: Vec<String> = (0..37_000).map(|number| format!("{number:0<135}")).collect();
        let answer = rows.clone();
        let handler: Handler = Arc::new(move |request, _| match request {
            Request::Hello => {
                let hello = Hello { pid: 1, zone: PathBuf::from("/zone"), mounts: Vec::new() };
                serde_json::to_value(hello).map_err(Failure::new)
            }
            _ => serde_json::to_value(&answer).map_err(Failure::new),
        });
        let _listener = Listener::at(path.clone(), handler, Arc::default()).unwrap();
        let listed = reach(&path).unwrap().ask(&Request::Zone).unwrap();
        assert_eq!(serde_json::from_value::<Vec<String>>(listed).unwrap(), rows);
    }
}
