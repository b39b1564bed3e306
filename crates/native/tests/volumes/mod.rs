//! Volumes in memory for tests, what a crash of the server leaves of them, and what a whole tree looks like.

pub(crate) mod hammer;
pub(crate) mod watch;

use std::collections::BTreeMap;
use std::time::Duration;

use native::{Durability, FormatOptions, MountOptions, Volume, check, format};
use nvm::{OpenOptions, Region, VolumeKind, Zone};
use vfs::{Caller, FileKind, FileSystem, Ino, OpenFlags, ROOT_INO};

pub(crate) const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
pub(crate) const DURABILITIES: [Durability; 3] =
    [Durability::Operation, Durability::Fsync, Durability::Snapshot];

/// A new zone in memory with one formatted volume of `bytes`.
pub(crate) fn made(bytes: u64) -> (Zone, Region) {
    let zone = Zone::anonymous(bytes + nvm::SEGMENT, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    (zone, region)
}

pub(crate) fn zone_of(image: &[u8]) -> (Zone, Region) {
    let zone = Zone::from_bytes(image, &OpenOptions::default()).unwrap();
    let region = zone.volume("v").unwrap();
    (zone, region)
}

/// The zone's bytes, when who works in the background has come to rest: a copy takes time, and if somebody stores meanwhile, a checkpoint for example, it
/// is of no moment at all.
pub(crate) fn image_at_rest(zone: &Zone) -> Vec<u8> {
    let mut image = zone.snapshot_image();
    for _ in 0..100 {
        let again = zone.snapshot_image();
        if again == image {
            return image;
        }
        image = again;
    }
    panic!("somebody stores to the volume without end");
}

/// The volume as the next mount finds it if the server is killed now.
pub(crate) fn crashed(zone: &Zone) -> (Zone, Region) {
    zone_of(&image_at_rest(zone))
}

/// Checkpoints come when a test asks for one, or when the log fills: not by the clock.
pub(crate) fn options(durability: Durability) -> MountOptions {
    MountOptions { durability, commit_interval: Duration::from_secs(3600), ..MountOptions::default() }
}

pub(crate) fn mount(region: &Region, durability: Durability) -> Volume {
    Volume::open(region.clone(), &options(durability)).unwrap()
}

/// Nothing is wrong with the volume, which nobody has mounted.
#[track_caller]
pub(crate) fn assert_sound(region: &Region) {
    let report = check(region, true).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

/// Nothing is wrong with the volume as a crash would leave it now.
#[track_caller]
pub(crate) fn assert_sound_if_crashed(zone: &Zone) {
    assert_sound(&crashed(zone).1);
}

/// Names numbered pseudo-random choices, so that a run can be repeated.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(length).collect()
    }
}

/// The seed of this run: `AMBERFS_SEED`, or one of the clock's; printed, so that a failure can be repeated.
pub(crate) fn seed() -> u64 {
    let seed = vfs::torture::Torture::seed_from_environment();
    eprintln!("AMBERFS_SEED={seed}");
    seed
}

pub(crate) fn ino(fs: &dyn FileSystem, name: &str) -> Ino {
    fs.lookup(&Caller::root(), ROOT_INO, name.as_bytes()).unwrap().ino
}

pub(crate) fn write_file(fs: &dyn FileSystem, dir: Ino, name: &str, bytes: &[u8]) -> vfs::Result<usize> {
    let root = Caller::root();
    let file = fs.create(&root, dir, name.as_bytes(), 0o644, RW)?;
    let written = fs.write(&root, file.handle, 0, bytes);
    fs.release(file.handle)?;
    written
}

pub(crate) fn read_inode(fs: &dyn FileSystem, ino: Ino) -> vfs::Result<Vec<u8>> {
    let size = fs.getattr(ino)?.size;
    let handle = fs.open(&Caller::root(), ino, OpenFlags::READ)?;
    let mut bytes = vec![0xee; size.min(8 << 20) as usize + 1];
    let read = fs.read(handle, 0, &mut bytes);
    fs.release(handle)?;
    bytes.truncate(read?);
    Ok(bytes)
}

pub(crate) fn read_file(fs: &dyn FileSystem, dir: Ino, name: &str) -> vfs::Result<Vec<u8>> {
    read_inode(fs, fs.lookup(&Caller::root(), dir, name.as_bytes())?.ino)
}

/// The names in a directory but for the dots, in the order of the listing.
pub(crate) fn names(fs: &dyn FileSystem, dir: Ino) -> vfs::Result<Vec<(Vec<u8>, FileKind, Ino)>> {
    let mut all = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            all.push((entry.name.to_vec(), entry.kind, entry.ino));
        }
        true
    })?;
    Ok(all)
}

/// What a user sees of an inode, but for times.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    mode: u32,
    nlink: u32,
    owner: (u32, u32),
    size: u64,
    bytes: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Seen {
    /// Whether both are the same, the bytes of a regular file of more than an inode aside if `but_data`.
    pub(crate) fn same(&self, other: &Seen, but_data: bool) -> bool {
        let strip = |seen: &Seen| Seen { bytes: Vec::new(), ..seen.clone() };
        self == other || (but_data && strip(self) == strip(other) && self.size > 128)
    }

    pub(crate) fn is_dir(&self) -> bool {
        FileKind::from_mode(self.mode) == Some(FileKind::Directory)
    }

    pub(crate) fn is_file(&self) -> bool {
        FileKind::from_mode(self.mode) == Some(FileKind::Regular)
    }
}

pub(crate) type Tree = BTreeMap<String, Seen>;

/// All that can be reached from the root, by path.
pub(crate) fn tree(fs: &dyn FileSystem) -> vfs::Result<Tree> {
    tree_below(fs, ROOT_INO)
}

/// All that can be reached from directory `top`, by path.
pub(crate) fn tree_below(fs: &dyn FileSystem, top: Ino) -> vfs::Result<Tree> {
    let mut all = Tree::new();
    let mut todo = vec![(String::from("/"), top)];
    while let Some((path, ino)) = todo.pop() {
        let seen = seen(fs, ino)?;
        if seen.mode & 0o170_000 == 0o040_000 {
            for (name, _, ino) in names(fs, ino)? {
                todo.push((format!("{path}{}/", name.escape_ascii()), ino));
            }
        }
        all.insert(path, seen);
    }
    Ok(all)
}

pub(crate) fn seen(fs: &dyn FileSystem, ino: Ino) -> vfs::Result<Seen> {
    let root = Caller::root();
    let attr = fs.getattr(ino)?;
    let bytes = match attr.kind() {
        FileKind::Regular => read_inode(fs, ino)?,
        FileKind::Symlink => fs.readlink(ino)?,
        _ => Vec::new(),
    };
    let mut xattrs = BTreeMap::new();
    for name in fs.listxattr(&root, ino)?.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        xattrs.insert(name.to_vec(), fs.getxattr(&root, ino, name)?);
    }
    let size = if attr.is_dir() { 0 } else { attr.size };
    Ok(Seen { mode: attr.mode, nlink: attr.nlink, owner: (attr.uid, attr.gid), size, bytes, xattrs })
}

/// Where two trees differ, in words; `None` if nowhere.
pub(crate) fn difference(found: &Tree, expected: &Tree) -> Option<String> {
    if let Some(path) = expected.keys().find(|path| !found.contains_key(*path)) {
        return Some(format!("{path} is missing"));
    }
    found.iter().find_map(|(path, seen)| match expected.get(path) {
        None => Some(format!("{path} is too many")),
        Some(wanted) if wanted == seen => None,
        Some(wanted) => {
            let at = seen.bytes.iter().zip(&wanted.bytes).position(|(a, b)| a != b);
            let strip = |seen: &Seen| Seen { bytes: Vec::new(), ..seen.clone() };
            Some(format!(
                "{path} is {:?} ({} bytes), not {:?} ({} bytes); bytes differ from {at:?} on",
                strip(seen),
                seen.bytes.len(),
                strip(wanted),
                wanted.bytes.len()
            ))
        }
    })
}
