//! What is asked of every kind of disk, and what else, of loop devices.
//!
//! One test at a time, and no other test's processes beside it: a process that has just been forked has the devices open that its parent has,
//! and who looks for a free one claims it for a moment.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use disk::{Disk, Error, OpenOptions, Purpose};
use kinds::{MIB, behaves, image, open};

mod kinds;

static ALONE: Mutex<()> = Mutex::new(());

/// Until what it returns is dropped, no other test goes on.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A loop device.
struct LoopDevice {
    path: PathBuf,
    image: PathBuf,
}

/// What is unmounted when it is dropped.
struct Mounted(PathBuf);

impl LoopDevice {
    /// Nothing, said aloud, where nobody may attach one.
    fn attach(image: &Path, options: &[&str]) -> Option<LoopDevice> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            let _ = writeln!(std::io::stderr(), "LEFT OUT: loop devices need root and /dev/loop-control");
            return None;
        }
        let output =
            Command::new("losetup").args(["--find", "--show"]).args(options).arg(image).output().unwrap();
        assert!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        let path = String::from_utf8(output.stdout).unwrap().trim().into();
        Some(LoopDevice { path, image: image.canonicalize().unwrap() })
    }

    /// Whether the kernel has its image open.
    fn is_attached(&self) -> bool {
        let told = Path::new("/sys/block").join(self.path.file_name().unwrap()).join("loop/backing_file");
        std::fs::read_to_string(told).is_ok_and(|image| Path::new(image.trim_end_matches('\n')) == self.image)
    }

    fn try_mount(&self, dir: &Path) -> bool {
        std::fs::create_dir_all(dir).unwrap();
        Command::new("mount").arg(&self.path).arg(dir).stderr(Stdio::null()).status().unwrap().success()
    }

    fn mount(&self, dir: &Path) -> Mounted {
        assert!(self.try_mount(dir), "mount {}", self.path.display());
        Mounted(dir.into())
    }
}

impl Drop for LoopDevice {
    /// Returns when the kernel has let go of the image, which it does not while anybody has the device open.
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
        for _ in 0..1000 {
            if !self.is_attached() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn block_special_file() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::attach(&image(&dir, 16 * MIB), &[]) else { return };
    behaves(open(&device.path));
}

#[test]
fn block_special_file_with_large_sectors() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::attach(&image(&dir, 16 * MIB), &["--sector-size", "4096"]) else { return };
    let disk = open(&device.path);
    assert_eq!(disk.sector(), 4096);
    behaves(disk);
}

/// It was said to have 0 bytes.
#[test]
fn a_block_special_file_that_became_smaller_says_how_small() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 16 * MIB);
    let Some(device) = LoopDevice::attach(&path, &[]) else { return };
    let disk = open(&device.path);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(MIB).unwrap();
    assert!(Command::new("losetup").arg("--set-capacity").arg(&device.path).status().unwrap().success());
    let error = disk.read(Purpose::Data, 2 * MIB, &mut [0; 512]).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { bytes: MIB, .. }), "{error}");
}

#[test]
fn a_read_only_block_special_file_says_so() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let Some(device) = LoopDevice::attach(&image(&dir, 16 * MIB), &["--read-only"]) else { return };
    let disk = open(&device.path);
    assert!(disk.is_read_only());
    assert!(matches!(disk.write(Purpose::Data, 0, &[0; 512]), Err(Error::ReadOnly { .. })));
}

#[test]
fn a_mounted_disk_is_refused_by_device_and_by_image() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, 16 * MIB);
    assert!(Command::new("mke2fs").args(["-q", "-F"]).arg(&path).status().unwrap().success());
    let Some(device) = LoopDevice::attach(&path, &[]) else { return };
    let mounted = device.mount(&dir.path().join("mnt"));
    let busy = Disk::open_path(&device.path, &OpenOptions::default()).unwrap_err();
    assert!(matches!(busy, Error::Busy { .. }), "{busy}");
    drop(mounted);
    let busy = Disk::open_path(&path, &OpenOptions::default()).unwrap_err();
    assert!(busy.to_string().contains(&device.path.display().to_string()), "{busy}");
    // While it is open here, the kernel does not mount it.
    let disk = open(&device.path);
    assert!(!device.try_mount(&dir.path().join("mnt")));
    drop(disk);
    drop(device.mount(&dir.path().join("mnt")));
}

/// A loop device over an image that somebody had open was opened beside it, and so were two over the same image.
#[test]
fn an_image_was_in_use_by_its_name_only() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = image(&dir, MIB);
    let Some(device) = LoopDevice::attach(&path, &[]) else { return };
    let disk = open(&device.path);
    let Some(other) = LoopDevice::attach(&path, &[]) else { return };
    let busy = Disk::open_path(&other.path, &OpenOptions::default()).unwrap_err();
    assert!(matches!(&busy, Error::Busy { by, .. } if by.contains("image")), "{busy}");
    drop(disk);
    let disk = open(&other.path);
    let Some(part) = LoopDevice::attach(&path, &["-o", "524288"]) else { return };
    drop(open(&part.path));
    drop((disk, part, device, other));

    let disk = open(&path);
    let Some(device) = LoopDevice::attach(&path, &[]) else { return };
    let reading = OpenOptions { read_only: true, ..OpenOptions::default() };
    for options in [OpenOptions::default(), reading.clone()] {
        let busy = Disk::open_path(&device.path, &options).unwrap_err();
        assert!(busy.to_string().contains(&path.display().to_string()), "{busy}");
    }
    drop((disk, device));
    let _first = Disk::open_path(&path, &reading).unwrap();
    let Some(device) = LoopDevice::attach(&path, &[]) else { return };
    drop(Disk::open_path(&device.path, &reading).unwrap());
}
