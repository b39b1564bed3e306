//! What peers stand in: mounts, memory, loop devices, processes. Each is taken down when it is dropped, whatever happens.

use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::block_device::BlockDevice;

/// How long an unmount is tried while someone is still busy there.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// Bytes that are touched at a time.
const TOUCH_BYTES: usize = 2 << 20;

/// A directory in memory.
pub(super) struct Memory {
    _mount: Option<Mount>,
    pub(super) dir: TempDir,
}

/// A mount, and how it is ended.
pub(super) struct Mount {
    pub(super) dir: PathBuf,
    /// The program that ends it, if it is Amberfs.
    pub(super) program: Option<PathBuf>,
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(program) = &self.program {
            let until = Instant::now() + PATIENCE;
            while Instant::now() < until {
                if run(Command::new(program).arg("umount").arg(&self.dir)).is_ok() {
                    return;
                }
                std::thread::sleep(PAUSE);
            }
            let _ = run(Command::new(program).args(["umount", "--lazy"]).arg(&self.dir));
            return;
        }
        let until = Instant::now() + PATIENCE;
        while rustix::mount::unmount(&self.dir, UnmountFlags::empty()) == Err(Errno::BUSY) {
            if Instant::now() > until {
                let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Runs a program in a process group of its own, so that Ctrl-C is ours alone, and gives the first line it complains in.
pub(super) fn run(command: &mut Command) -> Result<(), String> {
    output(command.stdout(Stdio::null())).map(drop)
}

/// The same of a program that may take long: it is asked to end if `interrupted`.
pub(super) fn run_unless(interrupted: &AtomicBool, command: &mut Command) -> Result<(), String> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut finish = || {
        let mut child = command.spawn()?;
        while child.try_wait()?.is_none() {
            if interrupted.load(Ordering::Relaxed) {
                kill_process(Pid::from_child(&child), Signal::TERM)?;
            }
            std::thread::sleep(PAUSE);
        }
        child.wait_with_output()
    };
    let finished = finish();
    answer(command, finished).map(drop)
}

/// The same as [`run`]; gives what the program answers.
fn output(command: &mut Command) -> Result<String, String> {
    let finished = command.stdin(Stdio::null()).process_group(0).output();
    answer(command, finished)
}

fn answer(command: &Command, finished: std::io::Result<Output>) -> Result<String, String> {
    let name = command.get_program().to_string_lossy();
    match finished {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
            Err(format!("{name}: {} ({})", line.trim_start_matches("amberfs: "), output.status))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!("{name} is not installed")),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

pub(super) fn make_dir(path: PathBuf) -> Result<PathBuf, String> {
    std::fs::create_dir(&path).map(|()| path).map_err(|error| error.to_string())
}

impl Memory {
    /// A tmpfs with pages of 2 MiB, as DAX has them, where that can be mounted; else a directory in `/dev/shm`.
    pub(super) fn new(notes: &mut Vec<String>) -> std::io::Result<Memory> {
        let builder = |parent: &Path| tempfile::Builder::new().prefix("amberfs-bench-").tempdir_in(parent);
        let dir = builder(&std::env::temp_dir())?;
        let options = Some(c"huge=always,size=90%,mode=700");
        match rustix::mount::mount("amberfs-bench", dir.path(), "tmpfs", MountFlags::empty(), options) {
            Ok(()) => {
                let mount = Mount { dir: dir.path().to_path_buf(), program: None };
                Ok(Memory { _mount: Some(mount), dir })
            }
            Err(errno) => {
                let dir = builder(Path::new("/dev/shm"))?;
                notes.push(format!(
                    "peers in memory are in /dev/shm, in small pages; a tmpfs of huge pages: {errno}"
                ));
                Ok(Memory { _mount: None, dir })
            }
        }
    }
}

/// A loop device over a file: a disk that nobody else uses, whose requests the kernel counts.
pub(super) struct LoopDevice {
    pub(super) path: PathBuf,
}

impl LoopDevice {
    pub(super) fn over(image: &Path) -> Result<LoopDevice, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root can set up a loop device".to_string());
        }
        if !Path::new("/dev/loop-control").exists() {
            return Err("there are no loop devices here (/dev/loop-control)".to_string());
        }
        let path = output(Command::new("losetup").args(["--find", "--show"]).arg(image))?;
        Ok(LoopDevice { path: PathBuf::from(path.trim()) })
    }

    /// Its counters.
    pub(super) fn counters(&self) -> BlockDevice {
        BlockDevice::named(&self.path.file_name().unwrap_or_default().to_string_lossy())
    }
}

impl Drop for LoopDevice {
    /// If somebody still has it, it goes when they let go of it.
    fn drop(&mut self) {
        let _ = run(Command::new("losetup").arg("--detach").arg(&self.path));
    }
}

/// A process that ends by itself.
pub(super) struct Reaped(pub(super) Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            if Instant::now() > until {
                let _ = self.0.kill();
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Writes a file over with what it holds, which allocates its holes. NVM is there before it is written to; memory that stands for it
/// has to be, too, or whoever first uses a page of it would pay for that. Ends early if `interrupted`.
pub(super) fn touch(interrupted: &AtomicBool, path: &Path) -> Result<(), String> {
    let touched = || -> std::io::Result<()> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
        let mut piece = vec![0; TOUCH_BYTES];
        for at in (0..file.metadata()?.len()).step_by(TOUCH_BYTES) {
            if interrupted.load(Ordering::Relaxed) {
                return Err(Errno::INTR.into());
            }
            let read = file.read_at(&mut piece, at)?;
            file.write_all_at(&piece[..read], at)?;
        }
        Ok(())
    };
    touched().map_err(|error| format!("{}: {error}", path.display()))
}
