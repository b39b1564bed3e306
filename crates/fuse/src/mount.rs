//! A running mount: starting, serving, ending.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::{fs, io};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use vfs::FileSystem;

use crate::apart::apart;
use crate::attach::{MountId, MountPoint, attach, unmount};
use crate::clock;
use crate::device::{Buffer, Device};
use crate::handshake::Agreement;
use crate::kernel_cache::KernelCache;
use crate::message::{Message, Reply};
use crate::options::Transport;
use crate::ring::Rings;
use crate::server::{Server, Session};
use crate::{Error, MountOptions, RequestCounts};

/// A mounted volume with its server threads. Dropping it leaves both running; see [`Mount::wait`] and
/// [`Mount::unmounter`].
pub struct Mount {
    threads: Threads,
    server: Arc<Server>,
    device: Arc<Device>,
    over_rings: bool,
    unmounter: Unmounter,
}

/// Unmounts a [`Mount`], from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    dir: PathBuf,
    /// By which it is told from others at the same place.
    id: MountId,
    /// Gone when nobody serves any more.
    session: Weak<Session>,
    device: Weak<Device>,
    /// One attempt at a time.
    turn: Arc<Mutex<()>>,
}

/// Mounts `volume` on `dir` and starts its server threads; returns once the mount answers.
pub fn mount(volume: Arc<dyn FileSystem>, dir: &Path, options: &MountOptions) -> Result<Mount, Error> {
    let dir = fs::canonicalize(dir).map_err(|source| Error::mount_point(dir, source))?;
    // Had before, since it takes a descriptor, of which there may be none when something has failed.
    let point = MountPoint::at(&dir).map_err(|error| match error {
        Error::Unmount { dir, source } => Error::mount_point(&dir, source),
        error => error,
    })?;
    clock::follow();
    let connection = attach(&dir, options)?;
    let id = MountId::of_new(&dir, &connection);
    let is_covered = id.as_ref().is_ok_and(MountId::is_covered);
    let not_answering = |source| {
        // Whatever failed, leave no dead mount behind; what covers it is another's.
        if !is_covered {
            let _ = point.unmount_whatever(true);
        }
        Error::NotAnswering { dir: dir.clone(), source }
    };
    let id = id.map_err(not_answering)?;
    let device = Arc::new(Device::new(connection, id.clone()));
    let server = Arc::new(Server::new(volume, options, Arc::downgrade(&device)));
    let session = Arc::new(Session(server.clone()));
    let serving = Arc::downgrade(&session);
    let (threads, over_rings) = start(session, &device, options).map_err(not_answering)?;
    // Asking for the root directory proves that the threads serve. Asking for its creation, too, the kernel learns whether
    // it need ever ask for one.
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    // No path leads to one that is covered.
    if !is_covered {
        let answer = apart(|| statx(CWD, &dir, AtFlags::STATX_FORCE_SYNC, wanted).map(drop));
        answer.and_then(|answer| Ok(answer?)).map_err(not_answering)?;
    }
    let unmounter =
        Unmounter { dir, id, session: serving, device: Arc::downgrade(&device), turn: Arc::default() };
    Ok(Mount { threads, server, device, over_rings, unmounter })
}

type Threads = Vec<JoinHandle<io::Result<()>>>;

/// Shakes hands with the kernel and starts the server threads; tells whether requests come through rings.
///
/// The kernel writes pages back through them when memory is short. As `IO_FLUSHER`s they get memory then without
/// waiting for a write-back, that is, for themselves. The flag goes from a thread to those that it starts, so a
/// thread of its own takes it. (It needs CAP_SYS_RESOURCE; without it the mount works, less safely.)
fn start(session: Arc<Session>, device: &Arc<Device>, options: &MountOptions) -> io::Result<(Threads, bool)> {
    let (device, options) = (device.clone(), options.clone());
    let starter = thread::Builder::new().name("fuse-start".to_owned()).spawn(move || {
        let _ = rustix::process::configure_io_flusher_behavior(true);
        let rings = shake_hands(&session, &device, &options)?;
        let over_rings = rings.is_some();
        let mut threads = rings.map(Rings::begin).unwrap_or_default();
        let readers = if over_rings { 0 } else { options.threads.max(1) };
        session.0.waiters.allow(readers);
        for number in 0..readers {
            let (session, device, buffer) = (session.clone(), device.clone(), Buffer::new()?);
            let reader = thread::Builder::new().name(format!("fuse-{number}"));
            threads.push(reader.spawn(move || {
                let serve = |message: &Message<'_>, reply: Reply<'_>| session.0.serve(message, reply);
                device.serve(buffer, serve).inspect_err(|error| {
                    tracing::error!(
                        "a thread of the mount failed, and does not serve it any more; when the last one has, the mount ends: \
                         {error}"
                    );
                })
            })?);
        }
        Ok((threads, over_rings))
    })?;
    starter.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
}

/// Answers the kernel's first message. Gives the rings that it was told of, if it was.
fn shake_hands(
    session: &Arc<Session>,
    device: &Arc<Device>,
    options: &MountOptions,
) -> io::Result<Option<Rings>> {
    device.first(|message, reply| {
        let mut agreement = Agreement::read(message, options, session.0.volume.time_step_ns())?;
        let rings = match options.transport {
            Transport::Device => None,
            Transport::Automatic if !agreement.ring_offered() => None,
            // They have to be there before the kernel is told: then it waits for them.
            Transport::Automatic => Rings::new(device, session)
                .inspect_err(|error| tracing::info!("io_uring cannot be used: {error}"))
                .ok(),
            Transport::Ring if !agreement.ring_offered() => {
                return Err(io::Error::other(
                    "the kernel does not offer FUSE over io_uring (Linux 6.14 and later do once 'Y' is in \
                     /sys/module/fuse/parameters/enable_uring)",
                ));
            }
            Transport::Ring => Some(Rings::new(device, session)?),
        };
        if rings.is_some() {
            agreement.with_rings();
        }
        agreement.answer(reply);
        Ok(rings)
    })
}

impl Mount {
    /// Serves until someone unmounts. When this returns, all server threads have ended and every handle on the
    /// volume is closed; the volume itself is the caller's to close.
    pub fn wait(self) -> Result<(), Error> {
        let mut served = Ok(());
        for thread in self.threads {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a server thread panicked")));
            served = served.and(ended);
        }
        served.map_err(Error::Serving)
    }

    /// A handle by which any thread can end the mount.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// What the kernel remembers of the mount.
    pub fn kernel_cache(&self) -> KernelCache {
        KernelCache::new(Arc::downgrade(&self.device), Arc::downgrade(&self.server), self.dir())
    }

    /// Whether requests come through io_uring, not `/dev/fuse`.
    pub fn over_io_uring(&self) -> bool {
        self.over_rings
    }

    /// How often the kernel has asked for what.
    pub fn requests(&self) -> RequestCounts {
        self.server.counters.read()
    }

    /// A function that gives [`Mount::requests`] after [`Mount::wait`], too.
    pub fn counts(&self) -> impl Fn() -> RequestCounts + Send + use<> {
        let counters = self.server.counters.clone();
        move || counters.read()
    }

    /// The device that the kernel has given the mount, as `major:minor`: where else it is shown has the same.
    pub fn device(&self) -> &str {
        self.unmounter.id.device()
    }

    /// The mount point, without symbolic links.
    pub fn dir(&self) -> &Path {
        &self.unmounter.dir
    }
}

impl Unmounter {
    /// Whether the mount has ended: its threads may not have. What has its [`Mount::device`] then is another mount.
    pub fn has_ended(&self) -> bool {
        self.device.upgrade().is_none_or(|device| device.has_ended())
    }

    /// Unmounts, wherever the mount has been moved to; nothing if that has happened already. Fails with
    /// [`Error::Busy`] if files are open, unless `lazy`: then it ends when the last of them is closed.
    pub fn unmount(&self, lazy: bool) -> Result<(), Error> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.session.strong_count() == 0 {
            return Ok(()); // what has its numbers now is another mount
        }
        let failed = |source| Error::Unmount { dir: self.dir.clone(), source };
        match self.id.mounted_at().map_err(failed)? {
            Some(dir) => unmount(&dir, lazy),
            None => Ok(()),
        }
    }
}
