//! File systems of the kernel, and those that FUSE servers of others make of the same disks.

use std::ffi::CString;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, MountFlags, fsconfig_set_flag, fsconfig_set_string, fsopen};

use super::scaffold::{LoopDevice, Mount, PATIENCE, PAUSE, Reaped, make_dir, run, run_unless, touch};
use super::{Peer, Setup};
use crate::stage::Settle;
use crate::target::{Guard, Server, Target};

/// Without discarding, which would take the memory back. With the inode tables and the journal written now: the kernel would do it in the
/// background of what is measured, and be charged with the requests.
const MKE2FS: [&str; 4] = ["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"];
/// What mount(8) itself takes, and no file system sees.
const OF_MOUNT: [&str; 14] = [
    "defaults",
    "noatime",
    "atime",
    "relatime",
    "norelatime",
    "strictatime",
    "nodiratime",
    "diratime",
    "nodev",
    "dev",
    "nosuid",
    "suid",
    "noexec",
    "exec",
];

/// A loop device over a new file in `parent` with an ext4 on it. With `in_memory` its pages are there from the start.
pub(super) fn ext4_disk(
    peer: &Peer,
    parent: &Path,
    in_memory: bool,
    setup: &Setup,
) -> Result<LoopDevice, String> {
    let options: Vec<&str> = MKE2FS.into_iter().chain(peer.made_with()).collect();
    disk("ext4", &options, peer, parent, in_memory, setup)
}

fn disk(
    kind: &str,
    options: &[&str],
    peer: &Peer,
    parent: &Path,
    in_memory: bool,
    setup: &Setup,
) -> Result<LoopDevice, String> {
    let image = image(peer, parent, setup)?;
    run_unless(&setup.interrupted, Command::new(format!("mkfs.{kind}")).args(options).arg(&image))?;
    if in_memory {
        touch(&setup.interrupted, &image)?;
    }
    LoopDevice::over(&image)
}

/// A new file of as many bytes as a peer has.
fn image(peer: &Peer, parent: &Path, setup: &Setup) -> Result<PathBuf, String> {
    let image = parent.join(format!("{}.img", peer.slug()));
    let file = std::fs::File::create_new(&image).map_err(|error| format!("{}: {error}", image.display()))?;
    file.set_len(setup.bytes).map_err(|error| format!("{}: {error}", image.display()))?;
    Ok(image)
}

pub(super) fn tmpfs(peer: &Peer, memory: &Path, setup: &Setup) -> Result<Target, String> {
    let dir = make_dir(memory.join(peer.slug()))?;
    let size = vec![format!("size={}", setup.bytes)];
    let options = [size, peer.mount_options()].concat().join(",");
    if peer.mount_options().is_empty() {
        let options = CString::new(options).map_err(|error| error.to_string())?;
        let none = MountFlags::empty();
        let mounted = rustix::mount::mount("amberfs-bench", &dir, "tmpfs", none, Some(options.as_c_str()));
        mounted.map_err(|errno| format!("mount: {errno}"))?;
    } else {
        // Which of them are flags mount(8) knows.
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "amberfs-bench"]).arg(&dir))?;
    }
    directory(peer, &dir)
}

/// A file system of the kernel, as its mkfs makes it unless told otherwise, on a loop device over a file in `parent`.
pub(super) fn loop_mount(
    kind: &str,
    peer: &Peer,
    parent: &Path,
    in_memory: bool,
    setup: &Setup,
) -> Result<Target, String> {
    let disk = match kind {
        "ext4" => ext4_disk(peer, parent, in_memory, setup)?,
        "ext3" | "ext2" => disk(kind, &MKE2FS, peer, parent, in_memory, setup)?,
        _ => disk(kind, &["-q", "-f", "-K"], peer, parent, in_memory, setup)?,
    };
    let dir = make_dir(parent.join(peer.slug()))?;
    let mut mount = Command::new("mount");
    mount.args(["-t", kind]);
    if !peer.mount_options().is_empty() {
        mount.args(["-o", &peer.mount_options().join(",")]);
    }
    run(mount.arg(&disk.path).arg(&dir))?;
    let counters = disk.counters();
    Ok(directory(peer, &dir)?.over(Some(counters)).kept_by(vec![Box::new(disk) as Guard]))
}

fn directory(peer: &Peer, dir: &Path) -> Result<Target, String> {
    let mount = Mount { dir: dir.to_path_buf(), program: None };
    let target = Target::directory(&peer.name, dir, None).map_err(|error| error.to_string())?;
    Ok(target.kept_by(vec![Box::new(mount) as Guard]))
}

/// Why the kernel's `kind` does not take a mount option, if it says so. It is asked without a device; who may not ask is told nothing.
pub(super) fn complaint(kind: &str, option: &str) -> Option<String> {
    if OF_MOUNT.contains(&option) {
        return None;
    }
    let asked = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    let answer = match option.split_once('=') {
        Some((key, value)) => fsconfig_set_string(&asked, key, value),
        None => fsconfig_set_flag(&asked, option),
    };
    let Err(Errno::INVAL) = answer else { return None };
    // Its complaint can be read there: "e ext4: Unknown parameter 'x'".
    let mut text = [0; 256];
    let length = rustix::io::read(&asked, &mut text).unwrap_or(0);
    let text = String::from_utf8_lossy(&text[..length]).trim().to_string();
    let text = text.strip_prefix("e ").unwrap_or(&text);
    Some(if text.is_empty() { format!("{kind} does not take it") } else { text.to_string() })
}

pub(super) fn floor(peer: &Peer, memory: &Path) -> Result<Target, String> {
    let dir = make_dir(memory.join(peer.slug()))?;
    let session = crate::floor::mount(&dir).map_err(|error| error.to_string())?;
    let target = Target::directory(&peer.name, &dir, None).map_err(|error| error.to_string())?;
    Ok(target.kept_by(vec![Box::new(session) as Guard]))
}

/// A process of its own, which ends when it is unmounted.
pub(super) fn fuse2fs(peer: &Peer, memory: &Path, parent: &Path, setup: &Setup) -> Result<Target, String> {
    let disk = ext4_disk(peer, parent, parent == memory, setup)?;
    let dir = make_dir(memory.join(peer.slug()))?;
    let mut server = Command::new("fuse2fs");
    server.arg("-f");
    if !peer.mount_options().is_empty() {
        server.args(["-o", &peer.mount_options().join(",")]);
    }
    server.arg(&disk.path).arg(&dir).process_group(0);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let server = server.spawn();
    let server = server.map_err(|error| format!("fuse2fs: {error} (Debian: apt-get install fuse2fs)"))?;
    let mut server = Reaped(server);
    let mount = Mount { dir: dir.clone(), program: None };
    let device = |path: &Path| std::fs::metadata(path).map(|dir| dir.dev()).ok();
    let until = Instant::now() + PATIENCE;
    while device(&dir) == device(memory) {
        let is_over = Instant::now() > until || setup.interrupted.load(Ordering::Relaxed);
        if is_over || server.0.try_wait().is_ok_and(|ended| ended.is_some()) {
            let _ = server.0.kill();
            return Err("fuse2fs: it did not mount".to_string());
        }
        std::thread::sleep(PAUSE);
    }
    let pid = server.0.id();
    let guards = vec![Box::new(mount) as Guard, Box::new(server) as Guard];
    let device = disk.path.clone();
    // It writes to the device's pages, and syncs them when a file is synced, not when the file system is.
    let settle = move || std::fs::File::open(&device)?.sync_all();
    let settle: Settle = Box::new(move || settle().map_err(|error: std::io::Error| error.to_string()));
    let target = Target::directory(&peer.name, &dir, Some(Server { pid, settle: Some(settle) }));
    let target = target.map_err(|error| error.to_string())?.kept_by(guards);
    let counters = disk.counters();
    Ok(target.over(Some(counters)).kept_by(vec![Box::new(disk) as Guard]))
}
