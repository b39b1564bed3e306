//! What is measured: a directory, or a volume in this process; and what it takes to keep it there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use native::Volume;
use nvm::Zone;
use rustix::io::Errno;

use crate::directory::Directory;
use crate::error::{Error, Fault};
use crate::flow::Workload;
use crate::in_process::InProcess;
use crate::stage::{Stage, Terms, prepare};

/// Something that is there as long as this lives, and is taken down when it is dropped.
pub(crate) type Guard = Box<dyn std::any::Any>;

enum Place {
    Directory(Directory, PathBuf),
    Volume(InProcess<Volume>, Arc<Volume>),
}

/// One of the things compared.
pub struct Target {
    /// What reports call it.
    pub name: String,
    /// What it is, in a few words.
    pub about: String,
    /// Whose CPU time counts besides our own.
    server: Option<u32>,
    // Closed before what keeps it there goes.
    place: Place,
    _guards: Vec<Guard>,
}

impl Target {
    /// A directory of a mounted file system. `server` is the process that serves it, if one does.
    pub fn directory(name: &str, path: &Path, server: Option<u32>) -> Result<Target, Error> {
        let why = |errno: Errno| Error::Target { target: name.to_string(), why: errno.to_string() };
        let directory = Directory::open(path).map_err(why)?;
        let mut about = file_system(path).unwrap_or_else(|| "a directory".to_string());
        match server {
            Some(pid) => about.push_str(&format!(", served by process {pid}, whose CPU time counts")),
            None if about.starts_with("fuse") => about.push_str(", its server's CPU time not counted"),
            None => {}
        }
        let place = Place::Directory(directory, path.to_path_buf());
        Ok(Target { name: name.to_string(), about, server, place, _guards: Vec::new() })
    }

    /// A volume in this process, and its zone.
    pub fn volume(name: &str, about: &str, volume: Volume, zone: Zone) -> Target {
        let volume = Arc::new(volume);
        let place = Place::Volume(InProcess::new(Arc::clone(&volume)), volume);
        Target {
            name: name.to_string(),
            about: about.to_string(),
            server: None,
            place,
            _guards: vec![Box::new(zone)],
        }
    }

    pub(crate) fn named(mut self, about: String) -> Target {
        self.about = about;
        self
    }

    pub(crate) fn kept_by(mut self, guards: Vec<Guard>) -> Target {
        self._guards = guards;
        self
    }

    /// Where programs find it; a volume in this process they don't.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.place {
            Place::Directory(_, path) => Some(path),
            Place::Volume(..) => None,
        }
    }

    pub(crate) fn server(&self) -> Option<u32> {
        self.server
    }

    pub(crate) fn prepare<'a>(
        &'a self,
        workload: &'a Workload,
        terms: &Terms,
    ) -> Result<Box<dyn Stage + 'a>, Error> {
        let prepared = match &self.place {
            Place::Directory(directory, _) => prepare(directory, workload, self.server, terms),
            Place::Volume(volume, _) => prepare(volume, workload, None, terms),
        };
        prepared.map_err(|fault: Fault| Error::of(fault, &self.name, &workload.name))
    }

    /// Ends it, and tells what a volume in this process says when it is closed.
    pub fn close(self) -> Result<(), Error> {
        match &self.place {
            Place::Directory(..) => Ok(()),
            Place::Volume(_, volume) => volume.close().map_err(|error| Error::Target {
                target: self.name.clone(),
                why: format!("closing it: {error}"),
            }),
        }
    }
}

/// The type of the file system that a path is on, as the kernel calls it.
fn file_system(path: &Path) -> Option<String> {
    let path = std::fs::canonicalize(path).ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let entry = |line: &str| {
        let mut fields = line.split(' ');
        let (dir, kind) = (fields.nth(1)?, fields.next()?);
        // Blanks are written as octal numbers.
        let dir = PathBuf::from(dir.replace("\\040", " "));
        path.starts_with(&dir).then(|| (dir.components().count(), kind.to_string()))
    };
    // Of several on one directory the last is on top.
    let found = mounts.lines().filter_map(entry).enumerate().max_by_key(|(at, (depth, _))| (*depth, *at));
    found.map(|(_, (_, kind))| kind)
}
