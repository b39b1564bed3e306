//! Mount namespaces: what is mounted is seen in one of them, and a server mounts in its own.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::failure::{Explain, Failure};

/// The mount namespace of process `pid`.
fn of(pid: &str) -> PathBuf {
    Path::new("/proc").join(pid).join("ns/mnt")
}

/// Enters a mount namespace, given as mount(8) takes it after `-N`: a process's number, or a file that stands for the
/// namespace. From then on all paths are that namespace's.
pub(crate) fn enter(namespace: &str) -> Result<(), Failure> {
    let is_pid = !namespace.is_empty() && namespace.bytes().all(|byte| byte.is_ascii_digit());
    let file = if is_pid { of(namespace) } else { PathBuf::from(namespace) };
    let doing = format!("entering the mount namespace {}", file.display());
    let opened = std::fs::File::open(&file).doing(&doing)?;
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
