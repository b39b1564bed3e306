//! File systems to be compared with: made, mounted, and taken down again when they are dropped, whatever happens.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use native::{FormatOptions, MountOptions, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

use crate::error::Error;
use crate::target::{Guard, Target};

/// Those that are set up unless some are named, in the order of reports: name, what it is.
pub const PEERS: [(&str, &str); 14] = [
    ("volume", "Amberfs in process, durability=op: no kernel, no FUSE"),
    ("amberfs", "Amberfs mounted, durability=fsync"),
    ("amberfs-op", "Amberfs mounted, durability=op"),
    ("amberfs-ext", "ext4 on a file in tmpfs, its metadata and synced writes in NVM by Amberfs"),
    (
        "fuse",
        "the floor under FUSE: a server that keeps names and sizes, by the library fuser (its CPU time is not counted)",
    ),
    ("tmpfs", "tmpfs"),
    ("ext4", "ext4 on a loop device over tmpfs"),
    ("xfs", "xfs on a loop device over tmpfs"),
    ("btrfs", "btrfs on a loop device over tmpfs"),
    ("fuse2fs", "ext4 by fuse2fs, on a file in tmpfs"),
    ("amberfs-ext-disk", "ext4 on a file on disk, its metadata and synced writes in NVM by Amberfs"),
    ("ext4-disk", "ext4 on a loop device over a file on disk"),
    ("xfs-disk", "xfs on a loop device over a file on disk"),
    ("btrfs-disk", "btrfs on a loop device over a file on disk"),
];

/// How long an unmount is tried while someone is still busy there.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes that are touched at a time.
const TOUCH_BYTES: usize = 2 << 20;

/// How peers are set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The program `amberfs`, for what is mounted.
    pub program: PathBuf,
    /// Bytes of each.
    pub bytes: u64,
    /// Where those on disk have their files.
    pub disk: PathBuf,
    /// Tells who serves a mount of Amberfs.
    pub server: fn(&Path) -> Option<u32>,
}

/// Peers, and what is to be said of those that are not there.
#[derive(Default)]
pub struct Peers {
    /// Those that are there.
    pub targets: Vec<Target>,
    /// Which are left out and why, a line each.
    pub notes: Vec<String>,
    // Dropped last: the memory in which they are.
    _memory: Option<Memory>,
    _disk: Option<TempDir>,
}

/// A directory in memory.
struct Memory {
    _mount: Option<Mount>,
    dir: TempDir,
}

/// A mount, and how it is ended.
struct Mount {
    dir: PathBuf,
    /// The program that ends it, if it is Amberfs.
    program: Option<PathBuf>,
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
fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
            Err(format!("{name}: {} ({})", line.trim_start_matches("amberfs: "), output.status))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!("{name} is not installed")),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

impl Peers {
    /// Sets up those that are named, one after the other, until `stop` says so.
    pub fn set_up(names: &[&str], setup: &Setup, stop: &dyn Fn() -> bool) -> Result<Peers, Error> {
        let mut peers = Peers::default();
        let memory = Memory::new(&mut peers.notes)
            .map_err(|error| Error::Target { target: "peers".to_string(), why: error.to_string() })?;
        let memory = peers._memory.insert(memory).dir.path().to_path_buf();
        for name in names {
            if stop() {
                return Err(Error::Interrupted);
            }
            let made = match name.strip_suffix("-disk") {
                Some("amberfs-ext") => {
                    peers.disk(&setup.disk).and_then(|disk| attached(name, &memory, &disk, setup))
                }
                None if *name == "amberfs-ext" => attached(name, &memory, &memory, setup),
                Some(kind) => peers.disk(&setup.disk).and_then(|disk| loop_device(kind, name, &disk, setup)),
                None if *name == "volume" => volume(&memory, setup),
                None if name.starts_with("amberfs") => mounted(name, &memory, setup),
                None if *name == "fuse" => floor(&memory),
                None if *name == "tmpfs" => tmpfs(&memory, setup),
                None if *name == "fuse2fs" => fuse2fs(&memory, setup),
                None => loop_device(name, name, &memory, setup),
            };
            match made {
                Ok(target) => peers.targets.push(target.named(about(name).to_string())),
                Err(why) => peers.notes.push(format!("left out: {name}: {why}")),
            }
        }
        Ok(peers)
    }

    fn disk(&mut self, parent: &Path) -> Result<PathBuf, String> {
        if self._disk.is_none() {
            let dir = tempfile::Builder::new().prefix("amberfs-bench-").tempdir_in(parent);
            self._disk = Some(dir.map_err(|error| format!("{}: {error}", parent.display()))?);
        }
        Ok(self._disk.as_ref().map(|dir| dir.path().to_path_buf()).unwrap_or_default())
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.targets.clear(); // before what they are in
    }
}

fn about(name: &str) -> &'static str {
    PEERS.iter().find(|(peer, _)| *peer == name).map_or("", |(_, about)| about)
}

fn make_dir(path: PathBuf) -> Result<PathBuf, String> {
    std::fs::create_dir(&path).map(|()| path).map_err(|error| error.to_string())
}

impl Memory {
    /// A tmpfs with pages of 2 MiB, as DAX has them, where that can be mounted; else a directory in `/dev/shm`.
    fn new(notes: &mut Vec<String>) -> std::io::Result<Memory> {
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

fn volume(memory: &Path, setup: &Setup) -> Result<Target, String> {
    let path = memory.join("volume-zone");
    let zone = Zone::create(&path, setup.bytes + nvm::SEGMENT, false, &OpenOptions::default());
    let zone = zone.map_err(|error| error.to_string())?;
    let region = zone
        .create_volume("bench", VolumeKind::Native, Some(setup.bytes))
        .map_err(|error| error.to_string())?;
    native::format(&region, &FormatOptions::default()).map_err(|error| error.to_string())?;
    touch(&path)?;
    let volume = Volume::open(region, &MountOptions::default()).map_err(|error| error.to_string())?;
    Ok(Target::volume("volume", "", volume, zone))
}

fn mounted(name: &str, memory: &Path, setup: &Setup) -> Result<Target, String> {
    let zone = memory.join(format!("{name}-zone"));
    let dir = make_dir(memory.join(name))?;
    let program = &setup.program;
    let size = (setup.bytes + nvm::SEGMENT).to_string();
    run(Command::new(program).args(["zone", "create"]).arg(&zone).args(["--size", &size]))?;
    let place = format!("{}:bench", zone.display());
    run(Command::new(program).args(["mkfs", &place]))?;
    touch(&zone)?;
    let durability = if name.ends_with("-op") { "durability=op" } else { "durability=fsync" };
    run(Command::new(program).args(["mount", "-o", durability, &place]).arg(&dir))?;
    let mount = Mount { dir: dir.clone(), program: Some(program.clone()) };
    directory(name, &dir, (setup.server)(&dir), mount)
}

/// Bytes of NVM for the metadata and synced writes of a disk.
const ATTACHED_NVM: u64 = 128 << 20;

/// A disk, which is a file in `parent`, with its metadata in NVM.
fn attached(name: &str, memory: &Path, parent: &Path, setup: &Setup) -> Result<Target, String> {
    let (zone, image) = (memory.join(format!("{name}-zone")), parent.join(format!("{name}.img")));
    ext4_image(&image, setup)?;
    if parent == memory {
        touch(&image)?;
    }
    let dir = make_dir(memory.join(name))?;
    let program = &setup.program;
    let size = (ATTACHED_NVM + nvm::SEGMENT).to_string();
    run(Command::new(program).args(["zone", "create"]).arg(&zone).args(["--size", &size]))?;
    let place = format!("{}:bench", zone.display());
    run(Command::new(program).args(["attach", &place]).arg(&image))?;
    touch(&zone)?;
    run(Command::new(program).args(["mount", &place]).arg(&dir))?;
    let mount = Mount { dir: dir.clone(), program: Some(program.clone()) };
    directory(name, &dir, (setup.server)(&dir), mount)
}

/// A new file with an ext4 on it.
fn ext4_image(image: &Path, setup: &Setup) -> Result<(), String> {
    let file = std::fs::File::create_new(image).map_err(|error| format!("{}: {error}", image.display()))?;
    file.set_len(setup.bytes).map_err(|error| format!("{}: {error}", image.display()))?;
    run(Command::new("mkfs.ext4").args(["-q", "-F", "-E", "nodiscard"]).arg(image))
}

fn tmpfs(memory: &Path, setup: &Setup) -> Result<Target, String> {
    let dir = make_dir(memory.join("tmpfs"))?;
    let options =
        std::ffi::CString::new(format!("size={}", setup.bytes)).map_err(|error| error.to_string())?;
    let mounted =
        rustix::mount::mount("amberfs-bench", &dir, "tmpfs", MountFlags::empty(), Some(options.as_c_str()));
    mounted.map_err(|errno| format!("mount: {errno}"))?;
    directory("tmpfs", &dir, None, Mount { dir: dir.clone(), program: None })
}

fn floor(memory: &Path) -> Result<Target, String> {
    let dir = make_dir(memory.join("fuse"))?;
    let session = crate::floor::mount(&dir).map_err(|error| error.to_string())?;
    let target = Target::directory("fuse", &dir, None).map_err(|error| error.to_string())?;
    Ok(target.kept_by(vec![Box::new(session) as Guard]))
}

/// A process of its own, which ends when it is unmounted.
fn fuse2fs(memory: &Path, setup: &Setup) -> Result<Target, String> {
    let image = memory.join("fuse2fs.img");
    ext4_image(&image, setup)?;
    touch(&image)?;
    let dir = make_dir(memory.join("fuse2fs"))?;
    let mut server = Command::new("fuse2fs");
    server.arg("-f").arg(&image).arg(&dir).process_group(0);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server =
        server.spawn().map_err(|error| format!("fuse2fs: {error} (Debian: apt-get install fuse2fs)"))?;
    let device = |path: &Path| std::fs::metadata(path).map(|dir| dir.dev()).ok();
    let until = Instant::now() + PATIENCE;
    while device(&dir) == device(memory) {
        if Instant::now() > until || server.try_wait().is_ok_and(|ended| ended.is_some()) {
            let _ = server.kill();
            let _ = server.wait();
            return Err("fuse2fs: it did not mount".to_string());
        }
        std::thread::sleep(PAUSE);
    }
    let (pid, mount) = (server.id(), Mount { dir: dir.clone(), program: None });
    let target = Target::directory("fuse2fs", &dir, Some(pid)).map_err(|error| error.to_string())?;
    Ok(target.kept_by(vec![Box::new(mount) as Guard, Box::new(Reaped(server)) as Guard]))
}

/// A process that ends by itself.
struct Reaped(Child);

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
/// has to be, too, or whoever first uses a page of it would pay for that.
fn touch(path: &Path) -> Result<(), String> {
    let touched = || -> std::io::Result<()> {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
        let mut piece = vec![0; TOUCH_BYTES];
        for at in (0..file.metadata()?.len()).step_by(TOUCH_BYTES) {
            let read = file.read_at(&mut piece, at)?;
            file.write_all_at(&piece[..read], at)?;
        }
        Ok(())
    };
    touched().map_err(|error| format!("{}: {error}", path.display()))
}

/// A file system of the kernel, as its mkfs makes it unless told otherwise, on a file in `parent`.
fn loop_device(kind: &str, name: &str, parent: &Path, setup: &Setup) -> Result<Target, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can mount it".to_string());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Err("there are no loop devices here (/dev/loop-control)".to_string());
    }
    let image = parent.join(format!("{kind}.img"));
    let file = std::fs::File::create_new(&image).map_err(|error| format!("{}: {error}", image.display()))?;
    file.set_len(setup.bytes).map_err(|error| format!("{}: {error}", image.display()))?;
    // Without discarding, which would take the memory back.
    let options: &[&str] =
        if kind == "ext4" { &["-q", "-F", "-E", "nodiscard"] } else { &["-q", "-f", "-K"] };
    run(Command::new(format!("mkfs.{kind}")).args(options).arg(&image))?;
    if name == kind {
        touch(&image)?;
    }
    let dir = make_dir(parent.join(kind))?;
    run(Command::new("mount").args(["-t", kind, "-o", "loop"]).arg(&image).arg(&dir))?;
    directory(name, &dir, None, Mount { dir: dir.clone(), program: None })
}

fn directory(name: &str, dir: &Path, server: Option<u32>, mount: Mount) -> Result<Target, String> {
    let target = Target::directory(name, dir, server).map_err(|error| error.to_string());
    target.map(|target| target.kept_by(vec![Box::new(mount) as Guard]))
}

/// Bytes of each peer that memory has room for: between 320 MiB, the least that xfs takes, and 1 GiB.
pub fn fitting_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    // Six are in memory, all of them there from the start; the machine keeps a quarter.
    ((kib.unwrap_or(0) << 10) / 8).clamp(320 << 20, 1 << 30) & !(nvm::SEGMENT - 1)
}
