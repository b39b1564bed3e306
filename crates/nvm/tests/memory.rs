//! Zones in memory that has no name, and in huge pages.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvm::{Backing, OpenOptions, Purpose, SEGMENT, VolumeKind, Zone};
use rustix::fs::{MemfdFlags, memfd_create};

const BYTES: u64 = 8 * SEGMENT;

/// Where an open file can be opened again.
fn path_of(file: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Makes a zone, uses it, opens it again, grows it.
fn live(path: &Path, is_expected: impl Fn(&Backing) -> bool, unit: u64) {
    let options = OpenOptions::default();
    {
        let zone = Zone::create(path, BYTES, false, &options).unwrap();
        assert!(is_expected(&zone.info().backing), "{:?}", zone.info().backing);
        assert_eq!(zone.info().bytes, BYTES.next_multiple_of(unit));
        let region = zone.create_volume("home", VolumeKind::Native, Some(3 * SEGMENT)).unwrap();
        region.fence(region.stream(Purpose::Data, 3 * SEGMENT - 5, b"hello")).ignore();
        region.store(Purpose::Data, 0, b"stored");
        region.check().unwrap();
        assert!(Zone::open(path, &options).is_err(), "it is locked");
    }
    let zone = Zone::open(path, &options).unwrap();
    let region = zone.volume("home").unwrap();
    assert_eq!((region.bytes(0, 6), region.bytes(region.len() - 5, 5)), (&b"stored"[..], &b"hello"[..]));
    zone.grow(2 * BYTES).unwrap();
    let new = zone.create_volume("new", VolumeKind::Native, Some(BYTES)).unwrap();
    new.store(Purpose::Data, BYTES - 8, &[7; 8]);
    assert_eq!(region.bytes(0, 6), b"stored");
    drop((region, new, zone));
    // What is cut off is unreadable, and what is left is not.
    let zone = Zone::open(path, &options).unwrap();
    let (home, new) = (zone.volume("home").unwrap(), zone.volume("new").unwrap());
    File::options().write(true).open(path).unwrap().set_len(BYTES).unwrap();
    assert_eq!(home.bytes(0, 6), b"stored");
    zone.check().unwrap();
    assert_eq!(new.bytes(BYTES - 8, 8), [0; 8]);
    assert!(zone.check().is_err());
}

#[test]
fn a_memfd_is_a_zone() {
    let memory = memfd_create("zone", MemfdFlags::CLOEXEC).unwrap();
    live(&path_of(&memory), |backing| *backing == Backing::Tmpfs, SEGMENT);
}

/// Huge pages of 2 MiB that this test has the kernel set aside; given back as it ends.
struct HugePages {
    before: u64,
}

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

impl HugePages {
    /// `None`, and it says so, where there can be none.
    fn reserve(wanted: u64) -> Option<HugePages> {
        let read = || fs::read_to_string(POOL).ok()?.trim().parse::<u64>().ok();
        let before = read();
        let reserved = before.and_then(|before| {
            fs::write(POOL, (before + wanted).to_string()).ok()?;
            let pages = HugePages { before };
            (read()? >= before + wanted).then_some(pages)
        });
        if reserved.is_none() {
            eprintln!(
                "LEFT OUT: zones on hugetlbfs: setting {wanted} huge pages aside in {POOL} needs root and unbroken memory"
            );
        }
        reserved
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        fs::write(POOL, self.before.to_string()).unwrap();
    }
}

/// A file system of huge pages, while this lives.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new() -> Mounted {
        let mounted = Mounted(tempfile::tempdir().unwrap());
        let mut mount = Command::new("mount");
        mount.args(["-t", "hugetlbfs", "-o", "pagesize=2M", "none"]);
        assert!(mount.arg(mounted.0.path()).status().unwrap().success());
        mounted
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.0.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()));
    }
}

#[test]
fn huge_pages_are_a_zone_by_name_and_without() {
    let Some(_pages) = HugePages::reserve(2 * (2 * BYTES / SEGMENT)) else { return };
    let huge = |backing: &Backing| *backing == Backing::Hugetlbfs { page: 2 << 20 };
    let mounted = Mounted::new();
    live(&mounted.0.path().join("zone"), huge, 2 << 20);
    let memory =
        memfd_create("zone", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB).unwrap();
    live(&path_of(&memory), huge, 2 << 20);
}
