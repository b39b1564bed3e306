//! What is measured: a directory, or a volume in this process; and what it takes to keep it there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use native::Volume;
use nvm::Zone;
use rustix::io::Errno;

use crate::block_device::BlockDevice;
use crate::directory::Directory;
use crate::error::{Error, Fault};
use crate::flow::Workload;
use crate::in_process::InProcess;
use crate::stage::{Below, Settle, Stage, Terms, prepare};

/// Something that is there as long as this lives, and is taken down when it is dropped.
pub type Guard = Box<dyn std::any::Any>;

enum Place {
    Directory(Directory, PathBuf),
    Volume(InProcess<Volume>, Arc<Volume>),
    /// A disk with its metadata in NVM, and what commits in the background.
    Ext(InProcess<ext::Volume>, Arc<ext::Volume>, ext::Background),
}

/// A process that serves a mount.
pub struct Server {
    /// Its number.
    pub pid: u32,
    /// Has what waits in its caches, or in NVM, brought to the disk, if it has one.
    pub settle: Option<Settle>,
}

/// One of the things compared.
pub struct Target {
    /// What reports call it.
    pub name: String,
    /// What it is, in a few words.
    pub about: String,
    below: Below,
    // Closed before what keeps it there goes.
    place: Place,
    _guards: Vec<Guard>,
}

impl Target {
    /// A directory of a mounted file system. `server` is the process that serves it, if one does.
    pub fn directory(name: &str, path: &Path, server: Option<Server>) -> Result<Target, Error> {
        let why = |errno: Errno| Error::Target { target: name.to_string(), why: errno.to_string() };
        let directory = Directory::open(path).map_err(why)?;
        let mut about = file_system(&directory).unwrap_or_else(|| "a directory".to_string());
        match server.as_ref().map(|server| server.pid) {
            Some(pid) => about.push_str(&format!(", served by process {pid}, whose CPU time counts")),
            None if about.starts_with("fuse") => about.push_str(", its server's CPU time not counted"),
            None => {}
        }
        let place = Place::Directory(directory, path.to_path_buf());
        let mut below = Below::default();
        if let Some(server) = server {
            (below.server, below.settle) = (Some(server.pid), server.settle);
        }
        Ok(Target { name: name.to_string(), about, below, place, _guards: Vec::new() })
    }

    /// A volume in this process, and its zone.
    pub fn volume(name: &str, about: &str, volume: Volume, zone: Zone) -> Target {
        let volume = Arc::new(volume);
        let place = Place::Volume(InProcess::new(Arc::clone(&volume)), volume);
        Target {
            name: name.to_string(),
            about: about.to_string(),
            below: Below::default(),
            place,
            _guards: vec![Box::new(zone)],
        }
    }

    /// A disk with its metadata in NVM, in this process, which commits every `interval`.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn ext_volume(
        name: &str,
        about: &str,
        volume: ext::Volume,
        interval: Duration,
    ) -> std::io::Result<Target> {
        let volume = Arc::new(volume);
        let background = ext::Background::begin(&volume, interval, |_| {})?;
        let settled = Arc::clone(&volume);
        let settle: Settle = Box::new(move || settled.checkpoint().map_err(|error| error.to_string()));
        Ok(Target {
            name: name.to_string(),
            about: about.to_string(),
            below: Below { settle: Some(settle), ..Below::default() },
            place: Place::Ext(InProcess::new(Arc::clone(&volume)), volume, background),
            _guards: Vec::new(),
        })
    }

    /// Counts what is asked of this disk, which nobody else uses.
    pub(crate) fn over(mut self, disk: Option<BlockDevice>) -> Target {
        self.below.disk = disk;
        self
    }

    pub(crate) fn named(mut self, about: String) -> Target {
        self.about = about;
        self
    }

    /// Has what keeps it there, which goes in this order.
    pub fn kept_by(mut self, guards: Vec<Guard>) -> Target {
        self._guards.extend(guards);
        self
    }

    /// Where programs find it; a volume in this process they don't.
    pub(crate) fn mounted(&self) -> Option<(&Directory, &Path)> {
        match &self.place {
            Place::Directory(directory, path) => Some((directory, path)),
            Place::Volume(..) | Place::Ext(..) => None,
        }
    }

    pub(crate) fn below(&self) -> &Below {
        &self.below
    }

    pub(crate) fn prepare<'a>(
        &'a self,
        workload: &'a Workload,
        terms: &Terms,
    ) -> Result<Box<dyn Stage + 'a>, Error> {
        let prepared = match &self.place {
            Place::Directory(directory, _) => prepare(directory, workload, &self.below, terms),
            Place::Volume(volume, _) => prepare(volume, workload, &self.below, terms),
            Place::Ext(volume, ..) => prepare(volume, workload, &self.below, terms),
        };
        prepared.map_err(|fault: Fault| Error::of(fault, &self.name, &workload.name))
    }

    /// Ends it, and tells what a volume in this process says when it is closed.
    pub fn close(self) -> Result<(), Error> {
        let closed = match self.place {
            Place::Directory(..) => return Ok(()),
            Place::Volume(_, volume) => volume.close().map_err(|error| error.to_string()),
            Place::Ext(_, volume, background) => {
                drop(background);
                volume.unmount().map_err(|error| error.to_string())
            }
        };
        closed.map_err(|why| Error::Target { target: self.name, why: format!("closing it: {why}") })
    }
}

/// The type of the file system that a directory is on, as the kernel calls it. The number of its mount tells which line of the table is its own:
/// paths are written there in a way of their own, and of several mounts on one directory one may be moved over a newer one.
fn file_system(directory: &Directory) -> Option<String> {
    let number = directory.mount().ok()?.to_string();
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let kind = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let is_its = fields.next()? == number.as_bytes();
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        is_its.then(|| String::from_utf8_lossy(kind).into_owned())
    };
    table.split(|byte| *byte == b'\n').find_map(kind)
}
