//! Images that mke2fs makes and the kernel fills, and what both sides say is in them.

pub(crate) mod attached;
pub(crate) mod cases;
pub(crate) mod churn;
pub(crate) mod contents;
pub(crate) mod cuts;
pub(crate) mod maker;
pub(crate) mod random;
pub(crate) mod specimens;
pub(crate) mod tree;
pub(crate) mod walk;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use disk::{Disk, OpenOptions};
use ext::{Options, Volume};

/// Whether images can be mounted here; says so if not.
pub(crate) fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists();
    if !can {
        let _ = writeln!(std::io::stderr(), "LEFT OUT: mounting images needs root and /dev/loop-control");
    }
    can
}

/// Runs a program that must succeed; gives what it wrote.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| {
        panic!("{program} ({error}): scripts/install-deps.sh test installs what is missing")
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{out}{err}", output.status);
    out
}

/// A directory in memory, if there is room: a container's /dev/shm often has 64 MiB.
fn in_memory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(memory).is_ok_and(|fs| fs.f_bavail * fs.f_frsize >= 2 << 30);
    let in_memory = if room { tempfile::TempDir::new_in(memory).ok() } else { None };
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// An image and a directory to mount it on.
pub(crate) struct Image {
    dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Image {
    /// `size` as mke2fs takes it; `options` are mke2fs's.
    pub(crate) fn make(size: &str, options: &[&str]) -> Image {
        let image = Image::empty();
        let path = image.path.display().to_string();
        run("mke2fs", &[&["-q", "-F"], options, &[&path, size]].concat());
        image
    }

    pub(crate) fn empty() -> Image {
        let dir = in_memory();
        let path = dir.path().join("image");
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        Image { dir, path }
    }

    pub(crate) fn of(bytes: &[u8]) -> Image {
        let image = Image::empty();
        std::fs::write(&image.path, bytes).unwrap();
        image
    }

    /// Mounts it with the kernel's ext4, whatever it is, until what is returned is dropped.
    pub(crate) fn mount(&self, options: &str) -> Mounted {
        let dir = self.dir.path().join("mnt");
        let options = format!("loop,noatime{}{options}", if options.is_empty() { "" } else { "," });
        let (image, at) = (self.path.display().to_string(), dir.display().to_string());
        // Of two who look for a free loop device at once, one may come too late; and with much going on, again.
        let mut why = String::new();
        for _ in 0..1200 {
            let arguments = ["-t", "ext4", "-o", &options, &image, &at];
            let output = Command::new("mount").args(arguments).output().unwrap();
            if output.status.success() {
                return Mounted { dir };
            }
            why = String::from_utf8_lossy(&output.stderr).into_owned();
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("mount -o {options} {image}: {why}");
    }

    /// The disk. A loop device may take a moment to let go of it, or longer if others have the mount, too.
    pub(crate) fn disk(&self, read_only: bool) -> Arc<Disk> {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        for _ in 0..6000 {
            match Disk::open_path(&self.path, &options) {
                Err(disk::Error::Busy { .. }) => std::thread::sleep(Duration::from_millis(10)),
                opened => return Arc::new(opened.unwrap()),
            }
        }
        panic!("{} stays busy", self.path.display());
    }

    pub(crate) fn open(&self) -> Volume {
        Volume::open(self.disk(true), &Options::default()).unwrap()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }

    /// Fails unless e2fsck is content; gives what it said. The superblock's counts may be wrong: the kernel leaves them so, too.
    pub(crate) fn fsck(&self) -> String {
        run("e2fsck", &["-f", "-n", &self.path.display().to_string()])
    }
}

/// Something that is unmounted when it is dropped.
pub(crate) struct Mounted {
    pub(crate) dir: PathBuf,
}

impl Drop for Mounted {
    /// A process that another test has just forked may still have a copy of a file here. One that has a mount namespace of its own has the
    /// file system mounted still when it is unmounted here: so it is made read-only first, and the image is whole.
    fn drop(&mut self) {
        let _ = Command::new("mount").args(["-o", "remount,ro"]).arg(&self.dir).output();
        for _ in 0..500 {
            let output = Command::new("umount").arg(&self.dir).output().unwrap();
            if output.status.success() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if !std::thread::panicking() {
            panic!("{} stays mounted", self.dir.display());
        }
    }
}
