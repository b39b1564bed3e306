//! Mount namespaces: what is mounted is seen in one of them, and a server mounts in its own.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::failure::{Explain, Failure};

/// The mount namespace of process `pid`.
fn of(pid: &str) -> PathBuf {
    Path::new("/proc").join(pid).join("ns/mnt")
}

/// Enters a mount namespace, given as mount(8) takes it after `-N`: a process's number, or a file that stands for the
/// namespace. From then on all paths are that namespace's, those of programs and their libraries, too: so it must not be one that an ordinary
/// user has made, with a user namespace of theirs, who puts there what they like.
pub(crate) fn enter(namespace: &str) -> Result<(), Failure> {
    let is_pid = !namespace.is_empty() && namespace.bytes().all(|byte| byte.is_ascii_digit());
    let file = if is_pid { of(namespace) } else { PathBuf::from(namespace) };
    let doing = format!("entering the mount namespace {}", file.display());
    // Both looked up in one directory, so that both are one process's.
    let beside = file.parent().map(Path::to_path_buf).unwrap_or_default();
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let beside = rustix::fs::open(&beside, how, Mode::empty()).map_err(std::io::Error::from).doing(&doing)?;
    let name = file.file_name().unwrap_or_default();
    let opened = rustix::fs::openat(&beside, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let opened = opened.map_err(std::io::Error::from).doing(&doing)?;
    // Files that stand for a namespace elsewhere than in /proc only root can make.
    if let Ok(theirs) = rustix::fs::readlinkat(&beside, "user", Vec::new())
        && rustix::fs::readlink("/proc/self/ns/user", Vec::new()).ok() != Some(theirs)
    {
        let what = "it belongs to another user namespace, whose owner decides what programs are there";
        return Err(Failure::new(what).doing(&doing).remedy("run the command in it: nsenter(1)"));
    }
    move_into_link_name_space(opened.as_fd(), Some(LinkNameSpaceType::Mount))
        .map_err(std::io::Error::from)
        .doing(&doing)
}

/// Whether process `pid` is known to be in another mount namespace than this one.
pub(crate) fn is_other(pid: u32) -> bool {
    match (std::fs::read_link(of("self")), std::fs::read_link(of(&pid.to_string()))) {
        (Ok(ours), Ok(theirs)) => ours != theirs,
        _ => false,
    }
}
