//! The private directories in which servers listen: each is one user's, and nobody else can make anything in it.
//!
//! Root may talk to everybody's servers, and so looks into directories that others have made. One counts if it is a directory and no symbolic
//! link to one, if it belongs to the user in whose name it is looked at, and if nobody else may write to it; what is in it counts if it is a socket, and if who
//! listens there runs as that user. Directory and socket are opened once and used through what was opened: nothing can be put in
//! their place in between, and what waits to be opened (a pipe, say) is not opened.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::failure::Failure;

/// As many names are looked at in a directory of another user.
const NAMES_OF_OTHERS_MAX: usize = 1024;
/// How long a server whose queue is full may take to take a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// How long others may have the lock: who has it makes or removes a socket. Whoever may read the directory can hold it.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The user as whom this process acts.
pub(crate) fn this_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Who is at the other end of a connection: who connected, or who listens.
pub(crate) fn peer(stream: &UnixStream) -> io::Result<UnixCredentials> {
    Ok(getsockopt(stream, PeerCredentials)?)
}

/// Other users who may have servers that this one may talk to.
pub(crate) fn other_users() -> BTreeSet<u32> {
    if this_user() != 0 {
        return BTreeSet::new();
    }
    let names =
        |dir: &str| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let user_of = |name: &OsStr, prefix: &str| -> Option<u32> {
        let digits = name.to_str()?.strip_prefix(prefix)?;
        digits.parse().ok().filter(|user: &u32| user.to_string() == digits)
    };
    let logged_in = names("/run/user").filter_map(|name| user_of(&name, ""));
    let others = names("/tmp").filter_map(|name| user_of(&name, "amberfs-").zip(Some(name)));
    // Only who has made one in their own name has to be asked.
    let is_theirs = |user: u32, name: OsString| {
        std::fs::symlink_metadata(Path::new("/tmp").join(name)).is_ok_and(|found| found.uid() == user)
    };
    let others = others.filter_map(|(user, name)| is_theirs(user, name).then_some(user));
    logged_in.chain(others).filter(|user| *user != this_user()).collect()
}

/// Where this user's servers listen: in the first that can be had. The root of a user namespace has none in `/run`, and in `/tmp` anybody may have made one
/// first. What a login has in `/run/user` goes when the user logs out: it is the last, unless the user's environment names it.
fn own_paths() -> Vec<PathBuf> {
    let user = this_user();
    let named = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let named = named.map(|dir| PathBuf::from(dir).join("amberfs"));
    let of_all = PathBuf::from(format!("/tmp/amberfs-{user}"));
    match user {
        0 => [Some("/run/amberfs".into()), named, Some(of_all)].into_iter().flatten().collect(),
        _ => {
            let of_login = PathBuf::from(format!("/run/user/{user}/amberfs"));
            let last = Some(of_login).filter(|path| named.as_ref() != Some(path));
            [named, Some(of_all), last].into_iter().flatten().collect()
        }
    }
}

/// Where those of a user listen, as far as this one may talk to them.
fn paths_of(user: u32) -> Vec<PathBuf> {
    if user == this_user() {
        return own_paths();
    }
    match this_user() {
        0 => vec![format!("/run/user/{user}/amberfs").into(), format!("/tmp/amberfs-{user}").into()],
        _ => Vec::new(),
    }
}

/// A directory that is a user's own.
pub(crate) struct RuntimeDirectory {
    pub(crate) path: PathBuf,
    handle: OwnedFd,
    pub(crate) user: u32,
}

impl RuntimeDirectory {
    /// This user's, made if it is not there. If none can be had, why not the first.
    pub(crate) fn make() -> Result<RuntimeDirectory, Failure> {
        let mut paths = own_paths().into_iter().map(RuntimeDirectory::make_at);
        let first = paths.next().unwrap_or_else(|| Err(Failure::new("there is no place for it")));
        first.or_else(|failure| paths.find_map(Result::ok).ok_or(failure))
    }

    fn make_at(path: PathBuf) -> Result<RuntimeDirectory, Failure> {
        let remedy = "set XDG_RUNTIME_DIR to a directory of yours";
        let made = std::fs::DirBuilder::new().mode(0o700).recursive(true).create(&path);
        made.map_err(|error| Failure::new(format!("{}: {error}", path.display())).remedy(remedy))?;
        RuntimeDirectory::open(&path, this_user()).map_err(|error| {
            let failure = Failure::new(format!("{}: {error}", path.display()));
            let no_more = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
            match no_more.contains(&error.raw_os_error()) {
                true => failure,
                false => failure.remedy(format!("remove it, or {remedy}")),
            }
        })
    }

    /// Those of `user` that are there.
    pub(crate) fn of(user: u32) -> impl Iterator<Item = RuntimeDirectory> {
        paths_of(user).into_iter().filter_map(move |path| RuntimeDirectory::open(&path, user).ok())
    }

    /// Opens one, unless others than `user` could have made what is in it.
    pub(crate) fn open(path: &Path, user: u32) -> io::Result<RuntimeDirectory> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, how, Mode::empty())?;
        let stat = rustix::fs::fstat(&handle)?;
        if stat.st_uid != user || stat.st_mode & 0o022 != 0 {
            return Err(io::Error::other(format!("not a directory that only user {user} can write to")));
        }
        Ok(RuntimeDirectory { path: path.to_path_buf(), handle, user })
    }

    /// Whether it is another user's.
    pub(crate) fn is_others(&self) -> bool {
        self.user != this_user()
    }

    /// Names of what may be sockets in it.
    pub(crate) fn names(&self) -> Vec<OsString> {
        let entries = Dir::read_from(&self.handle).into_iter().flatten().map_while(Result::ok);
        let names = entries.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_os_string());
        let most = if self.is_others() { NAMES_OF_OTHERS_MAX } else { usize::MAX };
        names.take(most).filter(|name| Path::new(name).extension().is_some_and(|end| end == "sock")).collect()
    }

    /// Connects to the user's server that listens at `name`.
    pub(crate) fn connect(&self, name: &OsStr) -> io::Result<UnixStream> {
        let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::openat(&self.handle, name, how, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&socket)?.st_mode) != FileType::Socket {
            return Err(io::Error::other("not a socket"));
        }
        let stream =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&stream, Timeout::Send, Some(CONNECT_PATIENCE))?;
        let opened = format!("/proc/self/fd/{}", socket.as_raw_fd());
        rustix::net::connect(&stream, &SocketAddrUnix::new(opened)?)?;
        set_socket_timeout(&stream, Timeout::Send, None)?;
        let stream = UnixStream::from(stream);
        match peer(&stream)?.uid() {
            user if user == self.user => Ok(stream),
            user => Err(io::Error::other(format!("who listens runs as user {user}"))),
        }
    }

    /// Listens at `name`, where nothing is. The address of a socket is short, the directory's path may be long: so it is named by the handle.
    pub(crate) fn bind(&self, name: &str) -> io::Result<UnixListener> {
        let path = format!("/proc/self/fd/{}/{name}", self.handle.as_raw_fd());
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// Removes a socket.
    pub(crate) fn remove(&self, name: &OsStr) {
        let _ = rustix::fs::unlinkat(&self.handle, name, AtFlags::empty());
    }

    /// Held while a socket appears or a dead one is removed: between its binding and its listening, a live one looks dead.
    pub(crate) fn lock(&self) -> io::Result<File> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&self.handle, ".", how, Mode::empty())?;
        let patience = Instant::now() + LOCK_PATIENCE;
        loop {
            match rustix::fs::flock(lock.as_fd(), FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(lock.into()),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < patience => {
                    std::thread::sleep(LOCK_PAUSE)
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(io::Error::other(format!(
                        "somebody holds a lock on {}",
                        self.path.display()
                    )));
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever could read the directory could keep its user's servers and commands waiting for ever.
    #[test]
    fn a_lock_is_waited_for_so_long_and_no_longer() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = RuntimeDirectory::open(scratch.path(), this_user()).unwrap();
        let held = dir.lock().unwrap();
        let began = Instant::now();
        assert!(dir.lock().unwrap_err().to_string().contains("somebody holds a lock on"));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        drop(held);
        assert!(dir.lock().is_ok());
    }
}
