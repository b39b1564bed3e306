//! Why a mount could not be made, served or ended.

use std::io;
use std::path::{Path, PathBuf};

/// What failed, and where that is known what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mount point is not a directory that can be reached.
    #[error("cannot mount on {}: {source}", dir.display())]
    MountPoint {
        /// The directory asked for.
        dir: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel offers no FUSE to this process.
    #[error("cannot open /dev/fuse: {0}{hint}", hint = hint(.0))]
    Device(io::Error),
    /// `fusermount3`, which mounts for ordinary users, is missing.
    #[error("cannot run fusermount3, which mounts for ordinary users: {0} (Debian package `fuse3`)")]
    NoFusermount(io::Error),
    /// `fusermount3` refused.
    #[error("fusermount3: {0}")]
    Fusermount(String),
    /// The kernel ended the mount before it answered.
    #[error("the mount on {} did not start: {source}", dir.display())]
    NotAnswering {
        /// The mount point.
        dir: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A server thread failed while serving.
    #[error("serving the mount failed: {0}")]
    Serving(io::Error),
    /// Something is in use below the mount point.
    #[error("{} is in use: close what is open there, or unmount lazily", .0.display())]
    Busy(PathBuf),
    /// Nothing is mounted there.
    #[error("{} is not a mount point", .0.display())]
    NotMounted(PathBuf),
    /// Any other reason not to unmount.
    #[error("cannot unmount {}: {source}", dir.display())]
    Unmount {
        /// The mount point.
        dir: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn mount_point(dir: &Path, source: impl Into<io::Error>) -> Error {
        Error::MountPoint { dir: dir.to_owned(), source: source.into() }
    }
}

/// What may be the matter, unless it is this process that may have no more open.
fn hint(error: &io::Error) -> &'static str {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE) => "",
        _ => " (is the `fuse` module loaded, and is the device in this container?)",
    }
}
