//! Taking back what the kernel was told.

use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::thread;
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};
use vfs::Ino;

use crate::inodes::Inodes;

/// How long the kernel may take to say that it has let go of an inode.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

/// What the kernel remembers of a [`crate::Mount`].
#[derive(Debug)]
pub struct KernelCache {
    notifier: Notifier,
    inodes: Weak<Inodes>,
    mount_point: PathBuf,
}

impl KernelCache {
    pub(crate) fn new(notifier: Notifier, inodes: Weak<Inodes>, mount_point: &Path) -> KernelCache {
        KernelCache { notifier, inodes, mount_point: mount_point.to_owned() }
    }

    /// Makes the kernel let go of what is at `path`, an entry of directory `dir` of the mount, and of all below it, which
    /// is all inodes that `is_below` says; handles that were kept open for it are closed. False if some of it is in use:
    /// a file is open or mapped, a directory is somebody's working directory. Not to be called by who answers the kernel.
    pub fn let_go(&self, path: &Path, dir: Ino, is_below: impl Fn(Ino) -> bool) -> bool {
        let Some(inodes) = self.inodes.upgrade() else { return true };
        // What was in use the last time is below a directory that the kernel does not find by its name any more, until
        // somebody looks it up.
        let _ = std::fs::symlink_metadata(self.mount_point.join(path));
        // It fails if the kernel does not know that name: then it has nothing below it either, but what is in use.
        let _ = self.notifier.inval_entry(INodeNo(dir), path.file_name().unwrap_or_default());
        let patience = Instant::now() + PATIENCE;
        while inodes.holds_any(&is_below) {
            if Instant::now() > patience {
                return false;
            }
            thread::sleep(PAUSE);
        }
        true
    }
}
