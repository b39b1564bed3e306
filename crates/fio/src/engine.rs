//! The volume that fio's jobs work on, and their files.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use native::{Durability, MountOptions, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, Error, FallocateMode, FileSystem, Handle, Ino, OpenFlags, ROOT_INO};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// Files are written in pieces of so many bytes before a run.
const PIECE: usize = 1 << 20;

/// What the options say.
#[derive(Clone, Default)]
struct Asked {
    zone: Option<String>,
    volume: Option<String>,
    durability: Option<String>,
}

#[derive(Default)]
struct Engine {
    asked: Asked,
    mounted: Weak<Mounted>,
    /// One for each job that has begun and not ended.
    jobs: Vec<Use>,
}

static ENGINE: Mutex<Engine> = Mutex::new(Engine {
    asked: Asked { zone: None, volume: None, durability: None },
    mounted: Weak::new(),
    jobs: Vec::new(),
});

fn engine() -> MutexGuard<'static, Engine> {
    ENGINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mounted volume. It is closed when this is dropped.
struct Mounted {
    volume: Volume,
    _zone: Zone,
    /// Who mounted it.
    process: u32,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A process that was made meanwhile has a copy of the object and none of the volume's threads.
        if self.process == std::process::id()
            && let Err(error) = self.volume.close()
        {
            eprintln!("amberfs: closing the volume: {error}; the next mount recovers it");
        }
    }
}

/// Keeps the volume mounted. The last one closes it under the engine's lock: who begins meanwhile waits, and does not find
/// the zone still locked by what is about to go.
struct Use(Option<Arc<Mounted>>);

impl Deref for Use {
    type Target = Mounted;

    fn deref(&self) -> &Mounted {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let _engine = engine();
        drop(self.0.take());
    }
}

/// What went wrong, for people, and its number.
pub(crate) struct Fault {
    pub(crate) what: String,
    pub(crate) errno: i32,
}

fn fault(what: String) -> Fault {
    Fault { what, errno: Error::Invalid.errno() }
}

fn fault_of(doing: &str, name: &str, error: &Error) -> Fault {
    Fault { what: format!("{doing} {name}: {error}"), errno: error.errno() }
}

/// Takes the value of one of the options. There is one of each for all jobs.
pub(crate) fn set(option: &str, value: &str) -> Result<(), Fault> {
    if option == "durability" {
        value.parse::<Durability>().map_err(fault)?;
    }
    let mut engine = engine();
    let Asked { zone, volume, durability } = &mut engine.asked;
    let known = match option {
        "zone" => zone,
        "volume" => volume,
        _ => durability,
    };
    match known {
        Some(known) if known != value => Err(fault(format!(
            "{option} is {known} already, and cannot be {value}, too: one run works on one volume"
        ))),
        _ => {
            *known = Some(value.to_string());
            Ok(())
        }
    }
}

/// The volume, which stays mounted as long as the result is there.
fn mounted() -> Result<Use, Fault> {
    let mut engine = engine();
    if let Some(mounted) = engine.mounted.upgrade() {
        if mounted.process == std::process::id() {
            return Ok(Use(Some(mounted)));
        }
        std::mem::forget(mounted); // it is another process's
        let what = "the volume is mounted by the process that fio made this one from: make threads of all jobs (thread=1)";
        return Err(fault(what.to_string()));
    }
    let Asked { zone, volume, durability } = engine.asked.clone();
    let (Some(path), Some(name)) = (zone, volume) else {
        return Err(fault(
            "the engine needs the options zone=FILE and volume=NAME, behind ioengine=".to_string(),
        ));
    };
    let io = |what: String| Fault { what, errno: libc::EIO };
    let zone = Zone::open(path.as_ref(), &OpenOptions::default()).map_err(|error| {
        let other_job =
            matches!(&error, nvm::Error::Locked { holder: Some(holder), .. } if is_other_job(holder.pid));
        let why = if other_job {
            "; jobs that are no threads (thread=1) keep the zone from each other"
        } else {
            ""
        };
        io(format!("{error}{why}"))
    })?;
    let region = zone.volume(&name).map_err(|error| io(format!("{path}:{name}: {error}")))?;
    let kind = region.kind();
    if kind != VolumeKind::Native {
        return Err(fault(format!(
            "{path}:{name} is of the kind '{kind}': the engine works on native volumes only; measure a mount of it with fio's \
             own engines"
        )));
    }
    let durability = durability.map_or(Ok(Durability::Operation), |text| text.parse()).map_err(fault)?;
    let options = MountOptions { durability, ..MountOptions::default() };
    let volume = Volume::open(region, &options).map_err(|error| io(format!("{path}:{name}: {error}")))?;
    let mounted = Arc::new(Mounted { volume, _zone: zone, process: std::process::id() });
    engine.mounted = Arc::downgrade(&mounted);
    Ok(Use(Some(mounted)))
}

/// Whether a process is another job of the same run: fio has made it, as it has made this one.
fn is_other_job(pid: u32) -> bool {
    let program = |pid: u32| -> Option<PathBuf> { std::fs::read_link(format!("/proc/{pid}/exe")).ok() };
    let parent_of = |pid: u32| -> Option<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
    };
    let (own, parent) = (std::process::id(), std::os::unix::process::parent_id());
    pid != own
        && parent_of(pid) == Some(parent)
        && program(own).is_some_and(|own| program(parent) == Some(own))
}

/// A job begins.
pub(crate) fn begin() -> Result<(), Fault> {
    let mounted = mounted()?;
    engine().jobs.push(mounted);
    Ok(())
}

/// A job has ended. The last one closes the volume.
pub(crate) fn end() {
    let job = engine().jobs.pop();
    drop(job); // which takes the lock itself
}

/// The directory of a path, made if it is not there and is to be, and the last name.
fn parent<'p>(volume: &Volume, path: &'p str, make: bool) -> vfs::Result<(Ino, &'p [u8])> {
    let root = Caller::root();
    let mut names = path.split('/').filter(|name| !name.is_empty() && *name != ".");
    let last = names.next_back().ok_or(Error::Invalid)?;
    let mut dir = ROOT_INO;
    for name in names {
        dir = match volume.lookup(&root, dir, name.as_bytes()) {
            Err(Error::NotFound) if make => volume.mkdir(&root, dir, name.as_bytes(), 0o755)?.ino,
            found => found?.ino,
        };
    }
    Ok((dir, last.as_bytes()))
}

/// The size of a file; none if it is not there.
pub(crate) fn size(path: &str) -> Result<Option<u64>, Fault> {
    let mounted = mounted()?;
    let found = parent(&mounted.volume, path, false)
        .and_then(|(dir, name)| mounted.volume.lookup(&Caller::root(), dir, name));
    match found {
        Ok(attr) => Ok(Some(attr.size)),
        Err(Error::NotFound) => Ok(None),
        Err(error) => Err(fault_of("looking for", path, &error)),
    }
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &str) -> Result<(), Fault> {
    let mounted = mounted()?;
    let removed = parent(&mounted.volume, path, false)
        .and_then(|(dir, name)| mounted.volume.unlink(&Caller::root(), dir, name));
    match removed {
        Err(Error::NotFound) => Ok(()),
        other => other.map_err(|error| fault_of("removing", path, &error)),
    }
}

/// A file that a job has open.
pub(crate) struct Opened {
    mounted: Use,
    handle: Handle,
}

impl Opened {
    /// Opens a file, and makes it if it is not there.
    pub(crate) fn new(path: &str) -> Result<Opened, Fault> {
        let mounted = mounted()?;
        let volume = &mounted.volume;
        let opened = parent(volume, path, true)
            .and_then(|(dir, name)| volume.create(&Caller::root(), dir, name, 0o644, RW));
        let handle = opened.map_err(|error| fault_of("opening", path, &error))?.handle;
        Ok(Opened { mounted, handle })
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> vfs::Result<usize> {
        self.mounted.volume.read(self.handle, offset, into)
    }

    /// Writes all of `bytes`.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> vfs::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            done += self.mounted.volume.write(&Caller::root(), self.handle, at, &bytes[done..])?;
        }
        Ok(done)
    }

    pub(crate) fn trim(&self, offset: u64, length: u64) -> vfs::Result<()> {
        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        self.mounted.volume.fallocate(&Caller::root(), self.handle, mode, offset, length)
    }

    pub(crate) fn sync(&self, data_only: bool) -> vfs::Result<()> {
        self.mounted.volume.fsync(self.handle, data_only)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Err(error) = self.mounted.volume.release(self.handle) {
            eprintln!("amberfs: closing a file: {error}");
        }
    }
}

/// Makes a file as long as `end`, with data in what it gets: a run reads and overwrites, it does not fill holes.
pub(crate) fn fill(path: &str, end: u64) -> Result<(), Fault> {
    let mut at = size(path)?.unwrap_or(0);
    if at >= end {
        return Ok(());
    }
    let file = Opened::new(path)?;
    let piece: Vec<u8> =
        (0..PIECE as u64 / 8).flat_map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()).collect();
    while at < end {
        let length = (end - at).min(PIECE as u64) as usize;
        at += file.write(at, &piece[..length]).map_err(|error| fault_of("writing", path, &error))? as u64;
    }
    Ok(())
}
