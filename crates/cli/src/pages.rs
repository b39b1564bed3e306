//! The kernel's pages of a mount, written back to the volume without being in the way of whoever unmounts it: an open file keeps a
//! mount from ending, and writing gigabytes back takes its time.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::OpenTreeFlags;

/// Brings what programs have written to what is mounted on `dir`.
pub(crate) fn write_back(dir: &Path) -> io::Result<()> {
    // It is the process that asks which answers.
    match fuse::apart(|| open_apart(dir).map(rustix::fs::syncfs))? {
        Ok(synced) => Ok(synced?),
        // Not root. Where ordinary users may have no namespaces either, the mount is in use meanwhile.
        Err(_) if write_back_in_namespace(dir) => Ok(()),
        Err(_) => fuse::apart(|| Ok(rustix::fs::syncfs(std::fs::File::open(dir)?)?))?,
    }
}

/// Opens `dir` in a copy of the mount that nobody else sees, and that ends with the descriptor. Only for root.
fn open_apart(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copy = rustix::mount::open_tree(CWD, dir, flags)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(copy, ".", flags, Mode::empty())?)
}

/// The same by a child in namespaces of its own, in which all mounts are copies. Whether it could.
fn write_back_in_namespace(dir: &Path) -> bool {
    let child = Command::new("unshare")
        .args(["--user", "--mount", "--propagation=private", "sync", "--file-system", "--"])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    child.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use rustix::mount::{MountFlags, UnmountFlags};

    use super::*;

    /// A policy's snapshot, while it had pages written back, made an unmount fail.
    #[test]
    fn what_is_written_back_can_be_unmounted() {
        let dir = tempfile::tempdir().unwrap();
        if let Err(error) = rustix::mount::mount("none", dir.path(), "tmpfs", MountFlags::empty(), None) {
            return eprintln!("LEFT OUT: only root mounts: {error}");
        }
        std::fs::write(dir.path().join("file"), "in a page").unwrap();
        let apart = open_apart(dir.path());
        let ended = rustix::mount::unmount(dir.path(), UnmountFlags::empty());
        if ended.is_err() {
            let _ = rustix::mount::unmount(dir.path(), UnmountFlags::DETACH);
        }
        ended.unwrap();
        rustix::fs::syncfs(apart.unwrap()).unwrap();
    }

    #[test]
    fn whoever_is_not_root_has_pages_written_back_too() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        assert!(!write_back_in_namespace(&missing));
        assert_eq!(write_back(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
        write_back(dir.path()).unwrap();
        if !write_back_in_namespace(dir.path()) {
            eprintln!("LEFT OUT: ordinary users may have no namespaces here");
        }
    }
}
