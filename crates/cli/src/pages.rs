//! The kernel's pages of a mount, written back to the volume without being in the way of whoever unmounts it: an open file keeps a
//! mount from ending, and writing gigabytes back takes its time.
//!
//! A mount is reached by a path, and that may lead elsewhere by now: to what covers it, or to nothing. So what was opened has to have its device.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::OpenTreeFlags;

use crate::failure::Failure;
use crate::mount_table::{self, Whereabouts};

/// Brings what programs have written to the mount of `device`, which was mounted on `dir`.
///
/// # Errors
/// What the kernel says; or that no path leads to the mount: then what is in its pages cannot be had.
pub(crate) fn write_back(device: &str, dir: &Path) -> Result<(), Failure> {
    for entry in mount_table::showing(device)? {
        if write_back_at(device, &entry.dir)? {
            return Ok(());
        }
    }
    let lacks = "what programs have written and not synced cannot be had from the kernel";
    Err(match mount_table::whereabouts(device, dir) {
        Whereabouts::Covered(dir) => {
            let dir = dir.display();
            Failure::new(format!("something else is mounted over {dir}: {lacks}"))
                .remedy(format!("unmount what covers {dir}"))
        }
        // Nobody may use it, and it be a moment from being closed.
        _ => Failure {
            again: true,
            ..Failure::new(format!("the volume was detached from {}: {lacks}", dir.display()))
                .remedy("try again when it is mounted anew")
        },
    })
}

/// The same through `dir`; false if that leads elsewhere.
fn write_back_at(device: &str, dir: &Path) -> io::Result<bool> {
    let synced =
        |opened: OwnedFd| if is_of(device, &opened)? { sync(opened).map(|()| true) } else { Ok(false) };
    // It is the process that asks which answers.
    match fuse::apart(|| open_apart(dir).map(synced))? {
        Ok(synced) => synced,
        // Not root. Where ordinary users may have no namespaces either, the mount is in use meanwhile.
        Err(_) if write_back_in_namespace(dir) => Ok(true),
        Err(_) => fuse::apart(|| synced(std::fs::File::open(dir)?.into()))?,
    }
}

/// What was opened is what is meant.
fn is_of(device: &str, opened: impl AsFd) -> io::Result<bool> {
    let found = rustix::fs::fstat(opened)?.st_dev;
    Ok(device == format!("{}:{}", rustix::fs::major(found), rustix::fs::minor(found)))
}

/// An error of long ago that nobody was told yet is told once, to whoever syncs next: these pages have one only if it repeats. Who wrote
/// pages that were lost is told by an `fsync` of their own.
fn sync(opened: impl AsFd) -> io::Result<()> {
    match rustix::fs::syncfs(&opened) {
        Ok(()) => Ok(()),
        Err(errno) => {
            tracing::warn!("pages could not be written back, now or before: {}", io::Error::from(errno));
            Ok(rustix::fs::syncfs(opened)?)
        }
    }
}

/// Opens `dir` in a copy of the mount that nobody else sees, and that ends with the descriptor. Only for root.
fn open_apart(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copy = rustix::mount::open_tree(CWD, dir, flags)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(copy, ".", flags, Mode::empty())?)
}

/// The same by a child in namespaces of its own, in which all mounts are copies. Whether it could, at the second time at least.
fn write_back_in_namespace(dir: &Path) -> bool {
    sync_in_namespace(dir) || sync_in_namespace(dir)
}

fn sync_in_namespace(dir: &Path) -> bool {
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
        let found = rustix::fs::stat(dir.path()).unwrap().st_dev;
        let device = format!("{}:{}", rustix::fs::major(found), rustix::fs::minor(found));
        assert_eq!(write_back_at(&device, &missing).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(write_back_at(&device, dir.path()).unwrap());
        if !write_back_in_namespace(dir.path()) {
            eprintln!("LEFT OUT: ordinary users may have no namespaces here");
        }
    }
}
