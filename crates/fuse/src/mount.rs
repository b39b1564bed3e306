//! A running mount: starting, serving, ending.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::{fs, io, thread};

use fuser::{BackgroundSession, Config, Session, SessionACL};
use vfs::FileSystem;

use crate::attach::{MountId, attach, unmount};
use crate::inodes::Inodes;
use crate::kernel_cache::KernelCache;
use crate::requests::Counters;
use crate::server::Server;
use crate::{Error, MountOptions, RequestCounts};

/// A mounted volume with its server threads. Dropping it leaves both running; see [`Mount::wait`] and
/// [`Mount::unmounter`].
pub struct Mount {
    session: BackgroundSession,
    unmounter: Unmounter,
    counters: Arc<Counters>,
    inodes: Weak<Inodes>,
    serving: Arc<RwLock<()>>,
}

/// Unmounts a [`Mount`], from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    dir: PathBuf,
    /// By which it is told from others at the same place.
    id: MountId,
    /// Of the server: gone when that is.
    alive: Weak<()>,
    /// One attempt at a time.
    turn: Arc<Mutex<()>>,
}

/// Mounts `volume` on `dir` and starts its server threads; returns once the mount answers.
pub fn mount(volume: Arc<dyn FileSystem>, dir: &Path, options: &MountOptions) -> Result<Mount, Error> {
    let dir = fs::canonicalize(dir).map_err(|source| Error::mount_point(dir, source))?;
    let server = Server::new(volume, options);
    let (counters, alive) = (server.counters.clone(), Arc::downgrade(&server.alive));
    let (inodes, serving) = (Arc::downgrade(&server.inodes), server.serving.clone());
    let connection = attach(&dir, options)?;
    let not_answering = |source| {
        // Whatever failed, leave no dead mount behind.
        let _ = unmount(&dir, true);
        Error::NotAnswering { dir: dir.clone(), source }
    };
    let mut config = Config::default();
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = options.threads > 1;
    // The kernel itself refuses other users where `allow_other` is not set. The library must not: a write-back
    // comes from a kernel thread, which is root, on an ordinary user's mount, too.
    let session = start(server, connection, config).map_err(not_answering)?;
    // Asking for the root directory proves that the threads serve.
    let id = rustix::fs::statvfs(&dir)
        .map_err(Into::into)
        .and_then(|_| MountId::of(&dir))
        .map_err(not_answering)?;
    let unmounter = Unmounter { dir, id, alive, turn: Arc::default() };
    Ok(Mount { session, unmounter, counters, inodes, serving })
}

/// Shakes hands with the kernel and starts the server threads.
///
/// The kernel writes pages back through them when memory is short. As `IO_FLUSHER`s they get memory then without
/// waiting for a write-back, that is, for themselves. The flag goes from a thread to those that it starts, so a
/// thread of its own takes it. (It needs CAP_SYS_RESOURCE; without it the mount works, less safely.)
fn start(server: Server, connection: OwnedFd, config: Config) -> io::Result<BackgroundSession> {
    let starter = thread::Builder::new().name("fuse-start".to_owned()).spawn(move || {
        let _ = rustix::process::configure_io_flusher_behavior(true);
        Session::from_fd(server, connection, SessionACL::All, config).and_then(Session::spawn)
    })?;
    starter.join().unwrap_or_else(|_| Err(io::Error::other("the FUSE library panicked")))
}

impl Mount {
    /// Serves until someone unmounts. When this returns, all server threads have ended and every handle on the
    /// volume is closed; the volume itself is the caller's to close.
    pub fn wait(self) -> Result<(), Error> {
        self.session.join().map_err(Error::Serving)
    }

    /// A handle by which any thread can end the mount.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// What the kernel remembers of the mount.
    pub fn kernel_cache(&self) -> KernelCache {
        KernelCache::new(self.session.notifier(), self.inodes.clone(), self.serving.clone(), self.dir())
    }

    /// How often the kernel has asked for what.
    pub fn requests(&self) -> RequestCounts {
        self.counters.read()
    }

    /// A function that gives [`Mount::requests`] after [`Mount::wait`], too.
    pub fn counts(&self) -> impl Fn() -> RequestCounts + Send + use<> {
        let counters = self.counters.clone();
        move || counters.read()
    }

    /// The mount point, without symbolic links.
    pub fn dir(&self) -> &Path {
        &self.unmounter.dir
    }
}

impl Unmounter {
    /// Unmounts, wherever the mount has been moved to; nothing if that has happened already. Fails with
    /// [`Error::Busy`] if files are open, unless `lazy`: then it ends when the last of them is closed.
    pub fn unmount(&self, lazy: bool) -> Result<(), Error> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.alive.strong_count() == 0 {
            return Ok(()); // what has its numbers now is another mount
        }
        let failed = |source| Error::Unmount { dir: self.dir.clone(), source };
        match self.id.mounted_at().map_err(failed)? {
            Some(dir) => unmount(&dir, lazy),
            None => Ok(()),
        }
    }
}
