//! Finding the server that a command has to ask.
//!
//! **A command talks only to a server that runs as the user in whose private directory it listens, and believes what it says of a mount or a zone only if that
//! user may serve it**: a mount, which is told by its device, if the kernel says that this user mounted it; a zone, which is told by its file and not by a path,
//! if it is this process's user or owns that. So nobody
//! else is asked at all: who answers for a mount or a zone is looked for where these users' servers listen.
//!
//! What others have put there costs root two seconds at most: their directories are read, and their servers met, in threads of their own, that are not waited for
//! any longer. Of this user's own servers those that do not answer are told on standard error: what they serve is missing in whatever the command says then. Whoever
//! looks for a zone's server asks only those that have a file of its inode's number open, as the kernel tells: one that hangs holds up nobody who wants another's zone.

use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

use crate::control::Client;
use crate::failure::{Failure, tell};
use crate::mount_table::{self, MountEntry};
use crate::runtime_directory::{RuntimeDirectory, other_users, peer, this_user};
use crate::zone_file::ZoneFile;

/// How long this user's servers may take to say who they are, all together.
const PATIENCE: Duration = Duration::from_secs(15);
/// The same of other users' servers.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_secs(2);
/// As many servers of another user are asked.
const SERVERS_OF_OTHERS_MAX: usize = 64;

/// What is wanted of a server, if it is one that has it.
trait Take<T>: Fn(Client) -> Option<T> + Clone + Send + 'static {}
impl<T, F: Fn(Client) -> Option<T> + Clone + Send + 'static> Take<T> for F {}

/// Which servers are asked.
#[derive(Clone, Copy)]
enum Asked {
    All,
    /// Those that may have a file with this inode number open.
    WithInode(u64),
}

impl Asked {
    /// Who may serve what `zone` leads to.
    fn about(zone: &Path) -> Asked {
        let number = || {
            let file = rustix::fs::open(zone, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
            // Of a device there may be several nodes.
            let is_plain = FileType::from_raw_mode(rustix::fs::fstat(&file).ok()?.st_mode).is_file();
            let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
            inode_in(&about).filter(|_| is_plain)
        };
        number().map_or(Asked::All, Asked::WithInode)
    }

    /// Whether the server `pid` is asked. What the kernel does not tell of it, it may have.
    fn is_met(self, pid: i32) -> bool {
        let Asked::WithInode(ino) = self else { return true };
        let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return true };
        descriptors.flatten().any(|entry| match std::fs::read_to_string(entry.path()) {
            Ok(about) => inode_in(&about).is_none_or(|found| found == ino),
            Err(error) => error.kind() != ErrorKind::NotFound, // closed meanwhile
        })
    }
}

/// The kernel's own number (since Linux 5.14), which it tells without asking the file's file system: that may be a mount whose server hangs. On an overlay, what
/// `stat` gives is another.
fn inode_in(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix("ino:")?.trim().parse().ok())
}

/// What `take` takes of the servers of `users`, all of whom are asked side by side; as it comes, until they have had their time.
fn ask<T: Send + 'static>(users: Vec<u32>, asked: Asked, take: impl Take<T>) -> impl Iterator<Item = T> {
    let all_own = users.iter().all(|user| *user == this_user());
    let patience = if all_own { PATIENCE } else { PATIENCE_WITH_OTHERS };
    let until = Instant::now() + patience;
    let (taken, takes) = channel();
    let silent = Silent::default();
    for user in users {
        let (taken, take) = (taken.clone(), take.clone());
        if user == this_user() {
            // Here, so that sockets of servers that are gone are removed when we end.
            meet_all(user, asked, &silent, &take, &taken);
        } else {
            in_a_thread(move || meet_all(user, asked, &Silent::default(), &take, &taken));
        }
    }
    drop(taken);
    std::iter::from_fn(move || match takes.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(found) => Some(found),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => {
            for pid in silent.lock().iter() {
                let waited = patience.as_secs();
                tell(format_args!(
                    "amberfs: process {pid}, a server of yours, has not answered for {waited} s; what it serves is not told"
                ));
            }
            None
        }
    })
}

/// Servers that have not answered yet.
type Silent = Arc<Mutex<Vec<i32>>>;

/// Where no thread can be had, nobody is met.
fn in_a_thread(what: impl FnOnce() + Send + 'static) {
    let _ = std::thread::Builder::new().spawn(what);
}

fn meet_all<T: Send + 'static>(
    user: u32,
    asked: Asked,
    silent: &Silent,
    take: &impl Take<T>,
    taken: &Sender<T>,
) {
    let (most, patience) = match user == this_user() {
        // Longer than anybody waits, so that who is late then is among the silent still.
        true => (usize::MAX, 2 * PATIENCE),
        false => (SERVERS_OF_OTHERS_MAX, PATIENCE_WITH_OTHERS),
    };
    let streams = RuntimeDirectory::of(user).flat_map(|dir| {
        let names = dir.names();
        names.into_iter().filter_map(move |name| reach(&dir, &name))
    });
    for stream in streams.take(most) {
        let (silent, taken, take) = (silent.clone(), taken.clone(), take.clone());
        let Ok(pid) = peer(&stream).map(|peer| peer.pid()) else { continue };
        if !asked.is_met(pid) {
            continue;
        }
        silent.lock().push(pid);
        in_a_thread(move || {
            let met = Client::meet(stream, user, patience);
            silent.lock().retain(|other| *other != pid);
            if let Some(found) = met.ok().map(believed).and_then(take) {
                let _ = taken.send(found);
            }
        });
    }
}

/// The server, of another user without the mounts that are not theirs, as far as the kernel tells here.
fn believed(mut client: Client) -> Client {
    if client.is_others() {
        let (user, mounts) = (Some(client.user), mount_table::read().unwrap_or_default());
        let theirs = |mount: &MountEntry| mount.is_amberfs() && mount.user == user;
        let is_there = |device: &str| mounts.iter().any(|mount| mount.device == device && theirs(mount));
        client.hello.mounts.retain(|mount| is_there(&mount.device));
    }
    client
}

/// Whoever listens on a socket. One that nobody listens on is removed, if it is this user's.
fn reach(dir: &RuntimeDirectory, name: &OsStr) -> Option<UnixStream> {
    let refused = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
    match dir.connect(name) {
        Err(error) if refused(&error) && !dir.is_others() => {}
        stream => return stream.ok(),
    }
    // It may be a moment from listening, or have been replaced by one that does. With the lock, what is dead stays so.
    let _lock = dir.lock().ok()?;
    match dir.connect(name) {
        Err(error) if refused(&error) => {
            dir.remove(name);
            None
        }
        stream => stream.ok(),
    }
}

/// The first of this user's servers, or else of `other`'s, of which `take` takes something.
fn first<T: Send + 'static>(other: u32, asked: Asked, take: impl Take<T>) -> Option<T> {
    let own = ask(vec![this_user()], asked, take.clone()).next();
    own.or_else(|| if other == this_user() { None } else { ask(vec![other], asked, take).next() })
}

/// The server that has this zone open, by whatever path: one of this user's, or of the user who owns its file.
pub(crate) fn of_zone(zone: &Path) -> Option<Client> {
    let metadata = std::fs::metadata(zone).ok()?;
    let (owner, file) = (metadata.uid(), Some(ZoneFile::of(&metadata)));
    first(owner, Asked::about(zone), move |client| (client.hello.file == file).then_some(client))
}

/// The server of a mount, and its volume: one of the user who mounted it.
pub(crate) fn of_mount(entry: &MountEntry) -> Option<(Client, String)> {
    let device = entry.device.clone();
    let serves = move |client: Client| {
        let volume = client.volume_of(&device)?.to_string();
        Some((client, volume))
    };
    ask(vec![entry.user.filter(|_| entry.is_amberfs())?], Asked::All, serves).next()
}

/// Who owns the file that another user names, and which it is; unless looking at it could lead elsewhere, or wait for a server of theirs.
fn looked_at(path: &Path) -> Option<(u32, ZoneFile)> {
    // Also one that another mount hides, or seems to: which of them is looked up is not to be told from the table.
    let may_wait = |mount: &MountEntry| mount.kind.starts_with("fuse") && path.starts_with(&mount.dir);
    if mount_table::read().ok()?.iter().any(may_wait) {
        return None;
    }
    let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let plain = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = rustix::fs::openat2(rustix::fs::CWD, path, how, Mode::empty(), plain).ok()?;
    let metadata = File::from(opened).metadata().ok()?;
    Some((metadata.uid(), ZoneFile::of(&metadata)))
}

/// What `take` takes of all servers that have a zone open which they may serve.
pub(crate) fn of_all_zones<T: Send + 'static>(
    take: impl Fn(Client) -> Option<T> + Clone + Send + 'static,
) -> Vec<T> {
    let theirs = take.clone();
    let theirs = move |mut client: Client| {
        client.limit_answers();
        let (owner, file) = looked_at(&client.hello.zone)?;
        (owner == client.user && client.hello.file == Some(file)).then_some(client).and_then(&theirs)
    };
    let others: Vec<u32> = other_users().into_iter().collect();
    let mut all: Vec<T> = ask(vec![this_user()], Asked::All, take).collect();
    all.extend(ask(others, Asked::All, theirs));
    all
}

/// The server of what is mounted on `dir` (a path without symbolic links), and its volume; or why nobody answers for it.
pub(crate) fn volume_of_mount(dir: &Path) -> Result<(Client, String), Failure> {
    let entry = mount_table::at(dir)?.filter(MountEntry::is_amberfs);
    if let Some(found) = entry.as_ref().and_then(of_mount) {
        return Ok(found);
    }
    let failure = |what: String| Failure::new(what).doing("looking for its server");
    Err(match entry {
        None => failure(format!("no volume is served on {}", dir.display()))
            .remedy("name a volume as ZONE:VOLUME, or where it is mounted"),
        Some(MountEntry { user: Some(user), source, .. }) if user != this_user() && this_user() != 0 => {
            let who = if user == 0 { "root".to_string() } else { format!("user {user}") };
            failure(format!(
                "{source} is mounted on {} and served by {who}, whom only they and root may ask",
                dir.display()
            ))
            .remedy(match user {
                0 => "have root do it".to_string(),
                _ => format!("have {who} do it, or root"),
            })
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use crate::control::{Handler, Hello, Listener};

    use super::*;

    /// Who looks for servers while one begins to listen took its socket for a dead one's, and removed it.
    #[test]
    fn a_socket_about_to_listen_is_not_a_dead_one() {
        let scratch = tempfile::tempdir().unwrap();
        // Longer than the address of a socket can be.
        let directory = scratch.path().join("d".repeat(120));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("zone.sock");
        let name = OsStr::new("zone.sock");
        let dir = RuntimeDirectory::open(&directory, this_user()).unwrap();
        let handler: Handler = Arc::new(|_, _| {
            let hello = Hello { pid: 1, ..Hello::default() };
            serde_json::to_value(hello).map_err(Failure::new)
        });
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        reach(&dir, name);
                    }
                });
            }
            for round in 0..2000 {
                let listener = Listener::at(&dir, "zone", handler.clone(), Arc::default());
                let alive = listener.is_ok() && path.exists();
                done.store(!alive, Relaxed);
                assert!(alive, "round {round}");
            }
            done.store(true, Relaxed);
        });
        // What a server that was killed left behind goes.
        drop(dir.bind("zone.sock").unwrap());
        assert!(reach(&dir, name).is_none() && !path.exists());
        // What is no socket stays, and nobody waits for its other end.
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        assert!(reach(&dir, name).is_none() && path.exists());
    }
}
