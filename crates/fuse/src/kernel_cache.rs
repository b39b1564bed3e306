//! Taking back what the kernel was told.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use vfs::{Ino, ROOT_INO};

use crate::apart::apart;
use crate::device::Device;
use crate::inodes::Inodes;
use crate::server::Server;

/// How long the kernel may take to say that it has let go of an inode.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait before looking again whether it has: each time twice as long, up to a limit.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// Waits until the kernel holds no such inode; false if it takes too long, from `begun` on.
fn is_let_go(inodes: &Inodes, begun: Instant, is_such: &dyn Fn(Ino) -> bool) -> bool {
    let [mut pause, longest] = PAUSES;
    while inodes.holds_any(is_such) {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(pause);
        pause = longest.min(pause * 2);
    }
    true
}

/// What the kernel remembers of a [`crate::Mount`].
#[derive(Debug)]
pub struct KernelCache {
    device: Weak<Device>,
    server: Weak<Server>,
    mount_point: PathBuf,
}

impl KernelCache {
    pub(crate) fn new(device: Weak<Device>, server: Weak<Server>, mount_point: &Path) -> KernelCache {
        KernelCache { device, server, mount_point: mount_point.to_owned() }
    }

    /// Makes the kernel let go of what is at `path`, an entry of directory `dir` of the mount, and of all below it, which
    /// is all inodes that `is_below` says; handles that were kept open for it are closed. False if some of it is in use:
    /// a file is open or mapped, a directory is somebody's working directory. Not to be called by who answers the kernel.
    pub fn let_go(&self, path: &Path, dir: Ino, is_below: impl Fn(Ino) -> bool) -> bool {
        let (Some(device), Some(server)) = (self.device.upgrade(), self.server.upgrade()) else {
            return true;
        };
        // Nobody has looked at it: there is nothing to be taken back.
        if !server.inodes.holds_any(&is_below) {
            return true;
        }
        let begun = Instant::now();
        // What was in use the last time is below a directory that the kernel does not find by its name any more, until
        // somebody looks it up.
        let _ = apart(|| std::fs::symlink_metadata(self.mount_point.join(path)).map(drop));
        // It fails if the kernel does not know that name: then it has nothing below it either, but what is in use.
        let _ = device.invalidate_entry(dir, path.file_name().unwrap_or_default().as_bytes());
        is_let_go(&server.inodes, begun, &is_below)
    }

    /// The listing of directory `dir` is another one now, for those who have it open, too.
    pub fn forget_listing(&self, dir: Ino) {
        if let Some(device) = self.device.upgrade() {
            // It fails if the kernel does not know the directory: then it has kept no listing.
            let _ = device.invalidate_inode(dir);
        }
    }

    /// Runs `exchange`, which lets the volume show another tree, at a moment at which the kernel holds nothing of the mount
    /// but the root directory, and no request is being served; requests that come meanwhile wait. Afterwards the kernel
    /// believes nothing that was true of the former tree. `unlisted` are names in the root directory that this does not list.
    ///
    /// `None`, and nothing has happened, if a file is open or mapped, or a directory below the root is somebody's working
    /// directory or mounted somewhere. What is mounted *in* the mount comes off, so there should be nothing. Not to be called
    /// by who answers the kernel.
    pub fn exchange<T>(&self, unlisted: &[&str], exchange: impl FnOnce() -> T) -> Option<T> {
        let (device, server) = (self.device.upgrade()?, self.server.upgrade()?);
        let inodes = &server.inodes;
        let begun = Instant::now();
        let (exchanged, before) = loop {
            self.let_go_of_all(&device, inodes, unlisted, begun)?;
            let _none_served = server.serving.write().unwrap_or_else(PoisonError::into_inner);
            // Somebody may have looked a name up in between.
            if inodes.holds_any(&|_| true) {
                if begun.elapsed() > PATIENCE {
                    return None;
                }
                continue;
            }
            let before = inodes.in_root();
            break (exchange(), before);
        };
        // That a name is not there is believed only of one that was not.
        let before = before.unwrap_or_default().into_iter().map(|(_, name)| name).collect::<HashSet<_>>();
        for (_, name) in inodes.in_root().unwrap_or_default() {
            if !before.contains(&name) {
                let _ = device.invalidate_entry(ROOT_INO, &name);
            }
        }
        // Its attributes and its listing.
        let _ = device.invalidate_inode(ROOT_INO);
        Some(exchanged)
    }

    /// Makes the kernel let go of everything but the root directory; `None` if it does not.
    fn let_go_of_all(
        &self,
        device: &Device,
        inodes: &Inodes,
        unlisted: &[&str],
        begun: Instant,
    ) -> Option<()> {
        let listed = inodes.in_root().ok()?.into_iter();
        let held = listed.filter(|(ino, _)| inodes.holds(*ino)).map(|(_, name)| name);
        let names: Vec<_> = held.chain(unlisted.iter().map(|name| name.as_bytes().to_vec())).collect();
        for name in &names {
            let _ = device.invalidate_entry(ROOT_INO, name);
        }
        if !is_let_go(inodes, begun, &|_| true) {
            // The kernel finds what is in use by its name again when that has been looked up.
            let look_up = |name: &Vec<u8>| {
                drop(std::fs::symlink_metadata(self.mount_point.join(OsStr::from_bytes(name))));
            };
            let _ = apart(|| names.iter().for_each(look_up));
            return None;
        }
        Some(())
    }
}
