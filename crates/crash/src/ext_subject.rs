//! An ext disk that is attached to NVM, as a subject: two media, whose lines and sectors are crashed together.

use std::process::Command;
use std::sync::{Arc, OnceLock};

use disk::Disk;
use ext::{Options, Room, Sync, Volume};
use nvm::{Purpose, Region, VolumeKind, Zone};
use vfs::{Caller, FallocateMode, FileSystem, ROOT_INO, SetAttr, SetTime, Time};

use crate::ground::Chore;
use crate::operation::Operation;
use crate::platter::Platter;
use crate::subject::{Mounted, Promise, Subject};

/// Bytes of the smallest area in NVM, and of a disk that has little more on it than what workloads make.
const AREA_BYTES: u64 = 8 << 20;
const DISK_BYTES: u64 = 4 << 20;
/// Inodes that are enough for every workload: a check looks at each of them.
const INODES: &str = "128";
/// Seconds since 1970 at which the disk is made.
const MADE: &str = "1700000000";

/// A small ext disk, its metadata in the smallest area there is; mounted with `-o sync`, so that every operation is durable when it returns, or as
/// it is by default.
#[derive(Debug)]
pub struct Ext {
    name: &'static str,
    /// The file system, for mke2fs.
    kind: &'static str,
    /// It has maps of extents, so space can be reserved and zeroed without writing.
    has_extents: bool,
    /// It has less room in NVM than there is.
    room: Option<Room>,
    /// What mke2fs made, once for all.
    image: OnceLock<Result<Vec<u8>, String>>,
}

/// So few frames that some are always given up, so little log that both halves are used again after a few operations.
const TIGHT: Room = Room { frames: 12, half_bytes: 128 << 10 };
/// Bytes that one transaction of such a log can have of a file, about: what is longer is written in several.
const TIGHT_BYTES: u64 = 20_000;

static EXT4: Ext = Ext::new("ext", "ext4", true, None);
static EXT2: Ext = Ext::new("ext2", "ext2", false, None);
static EXT4_TIGHT: Ext = Ext::new("ext-tight", "ext4", true, Some(TIGHT));

impl Ext {
    /// Ext4, ext2, and an ext4 with little room in NVM.
    pub const ALL: [&'static Ext; 3] = [&EXT4, &EXT2, &EXT4_TIGHT];
    /// An ext4.
    pub const FOUR: &'static Ext = &EXT4;
    /// An ext2: its files have block maps.
    pub const TWO: &'static Ext = &EXT2;
    /// An ext4 whose frames are never enough, and whose log is used again and again.
    pub const TIGHT: &'static Ext = &EXT4_TIGHT;

    const fn new(name: &'static str, kind: &'static str, has_extents: bool, room: Option<Room>) -> Ext {
        Ext { name, kind, has_extents, room, image: OnceLock::new() }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Ext> {
        Ext::ALL.into_iter().find(|ext| ext.name == name)
    }

    fn image(&self) -> Result<&[u8], String> {
        self.image.get_or_init(|| make(self.kind)).as_deref().map_err(Clone::clone)
    }

    fn mount(&self, region: &Region, sync: Sync) -> Result<Volume, String> {
        let disk = Disk::over("disk".into(), Arc::new(Platter(disk_of(region)?)));
        let options = Options { sync, ..Options::default() };
        Volume::mount(region, Arc::new(disk), &options).map_err(|error| error.to_string())
    }
}

/// The disk's piece of the zone.
fn disk_of(region: &Region) -> Result<Region, String> {
    region.zone().volume(&disk_name(region.name())).map_err(|error| error.to_string())
}

fn disk_name(volume: &str) -> String {
    format!("{volume}.disk")
}

/// A new file system, as mke2fs makes it, the same each time.
fn make(kind: &str) -> Result<Vec<u8>, String> {
    let told = |error: std::io::Error| format!("a file for mke2fs cannot be made: {error}");
    let file = tempfile::NamedTempFile::new().map_err(told)?;
    file.as_file().set_len(DISK_BYTES).map_err(told)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let made = Command::new("mke2fs")
        .env("PATH", std::env::join_paths(places).unwrap_or(path))
        .env("E2FSPROGS_FAKE_TIME", MADE)
        .args(["-q", "-F", "-t", kind, "-b", "4096", "-I", "256", "-N", INODES])
        .args(["-U", "6f6e6520-6469-736b-206f-6620616d6265"])
        .args(["-E", "hash_seed=6f6e6520-6861-7368-206f-6620616d6265,root_owner=0:0,lazy_itable_init=0"])
        .arg(file.path())
        .output()
        .map_err(|error| {
            format!("mke2fs, which makes the disk, cannot be run (is e2fsprogs installed?): {error}")
        })?;
    if !made.status.success() {
        return Err(format!("mke2fs fails: {}", String::from_utf8_lossy(&made.stderr).trim()));
    }
    std::fs::read(file.path()).map_err(told)
}

impl Subject for Ext {
    fn name(&self) -> &'static str {
        self.name
    }

    fn promises(&self) -> &'static [Promise] {
        &[Promise::Operation, Promise::Fsync]
    }

    fn keeps_contents_apart(&self, promise: Promise) -> bool {
        promise == Promise::Fsync
    }

    fn can(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Write(.., bytes) | Operation::WriteWith(_, _, bytes, _) if self.room.is_some() => {
                *bytes as u64 <= TIGHT_BYTES
            }
            Operation::Copy(.., bytes) if self.room.is_some() => *bytes <= TIGHT_BYTES,
            // Without extents there are no blocks that are reserved and read as zeros.
            Operation::Allocate(_, mode, ..) => self.has_extents || mode.contains(FallocateMode::PUNCH_HOLE),
            other => !other.needs_snapshots() && other.chore() != Some(Chore::Seal),
        }
    }

    fn volume_bytes(&self) -> u64 {
        AREA_BYTES + DISK_BYTES
    }

    fn disk(&self, region: &Region) -> Result<Option<Region>, String> {
        disk_of(region).map(Some)
    }

    fn format(&self, zone: &Zone, name: &str) -> Result<Region, String> {
        let told = |error: nvm::Error| error.to_string();
        let region = zone.create_volume(name, VolumeKind::Ext, Some(AREA_BYTES)).map_err(told)?;
        let disk = zone.create_volume(&disk_name(name), VolumeKind::Ext, Some(DISK_BYTES)).map_err(told)?;
        disk.store(Purpose::Data, 0, self.image()?);
        let platter = Arc::new(Disk::over("disk".into(), Arc::new(Platter(disk))));
        ext::attach_within(&region, &platter, self.room).map_err(|error| error.to_string())?;
        let volume = self.mount(&region, Sync::Nosync)?;
        empty_root(&volume).map_err(|error| format!("its root directory: {error}"))?;
        volume.unmount().map_err(|error| error.to_string())?;
        Ok(region)
    }

    fn number_this_thread(&self, _number: usize) {}

    fn open(&self, region: &Region, promise: Promise) -> Result<Box<dyn Mounted>, String> {
        match promise {
            Promise::Operation => Ok(Box::new(self.mount(region, Sync::Sync)?)),
            Promise::Fsync => Ok(Box::new(self.mount(region, Sync::Nosync)?)),
            Promise::Snapshot => Err(format!("{} does not promise {promise}", self.name)),
        }
    }

    fn check(&self, region: &Region) -> Result<(), String> {
        let volume = self.mount(region, Sync::Nosync)?;
        let report = ext::check_volume(&volume).map_err(|error| error.to_string())?;
        match report.findings.into_iter().next() {
            Some(finding) => Err(finding),
            // Nobody has anything open.
            None if report.orphans > 0 => Err(format!("{} files without a name are left", report.orphans)),
            None => Ok(()),
        }
    }
}

/// Makes the root directory the model's: `lost+found` goes, and it is as old as its first change.
fn empty_root(volume: &Volume) -> vfs::Result<()> {
    let root = Caller::root();
    volume.rmdir(&root, ROOT_INO, b"lost+found")?;
    let now = Some(SetTime::At(Time::now()));
    volume.setattr(&root, ROOT_INO, &SetAttr { atime: now, mtime: now, ..SetAttr::default() }, None).map(drop)
}

impl Mounted for Volume {
    fn checkpoint(&self) -> vfs::Result<()> {
        self.syncfs()?;
        Volume::checkpoint(self)
    }

    fn tend(&self, chore: Chore) -> vfs::Result<()> {
        match chore {
            Chore::Commit => self.commit_all(),
            Chore::WritePages => self.write_out_all(),
            Chore::EmptyLog => self.empty_half(),
            Chore::Seal => Err(vfs::Error::NotSupported),
        }
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        self.unmount().map_err(|error| error.to_string())
    }

    fn abandon(self: Box<Self>) {}
}
