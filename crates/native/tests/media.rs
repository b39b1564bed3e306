//! Media that cannot be read: an error, and not a file that is missing.
//!
//! What cannot be read reads as zeros, and a mounted volume whose zone was cut short said of names that exist that they
//! did not, of its root that it was gone, and of directories that they were empty. So: a zone is cut at every other of its
//! MiB under a mounted volume, and each operation is the first one to meet that. Its answer is right, or an I/O error.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::volumes::*;
use native::{Durability, FormatOptions, Journaling, MountOptions, Volume, format, open_snapshot};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, Error, FileSystem, Ino, OpenFlags, ROOT_INO, RenameFlags, Result, SeekFrom, XattrMode};

const MIB: u64 = 1 << 20;
const ZONE: u64 = 18 * MIB;
const FILES: usize = 2000;

/// Inodes of what is in the volume; its snapshot has the same.
struct Known {
    dir: Ino,
    file: Ino,
    link: Ino,
    /// What the inodes of the snapshot have in the upper half of their numbers.
    snapshot: Ino,
    bytes: Vec<u8>,
}

/// Makes a zone at `path` with a volume that has a large directory, a large file, a long symbolic link, attributes beyond
/// an inode, and a snapshot of all that.
fn make(path: &Path) -> Known {
    let root = &Caller::root();
    let zone = Zone::create(path, ZONE, false, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    let volume = mount(&region, Durability::Operation);
    let dir = volume.mkdir(root, ROOT_INO, b"d", 0o755).unwrap().ino;
    for number in 0..FILES {
        write_file(&volume, dir, &format!("file-{number}"), b"small").unwrap();
    }
    let bytes = Random(1).bytes(3 << 20);
    write_file(&volume, ROOT_INO, "file", &bytes).unwrap();
    let link = volume.symlink(root, ROOT_INO, b"link", &[b's'; 4000]).unwrap().ino;
    let file = ino(&volume, "file");
    volume.setxattr(root, file, b"user.large", &[7; 2500], XattrMode::Create).unwrap();
    volume.take_snapshot("s", "").unwrap();
    let snapshots = ino(&volume, ".snapshots");
    let snapshot = volume.lookup(root, snapshots, b"s").unwrap().ino - ROOT_INO;
    volume.close().unwrap();
    Known { dir, file, link, snapshot, bytes }
}

/// An operation, and whether its answer is right.
type Try = fn(&dyn FileSystem, &Known) -> Result<bool>;

fn read_all(fs: &dyn FileSystem, known: &Known) -> Result<bool> {
    let handle = fs.open(&Caller::root(), known.file, OpenFlags::READ)?;
    let mut found = vec![0; known.bytes.len()];
    let read = fs.read(handle, 0, &mut found);
    let mut lent = Vec::new();
    fs.read_slices(handle, 0, found.len(), &mut |slice| lent.extend_from_slice(slice))?;
    fs.release(handle)?;
    Ok(read? == found.len() && found == known.bytes && lent == known.bytes)
}

/// A single block: read without a lock.
fn read_block(fs: &dyn FileSystem, known: &Known) -> Result<bool> {
    let handle = fs.open(&Caller::root(), known.file, OpenFlags::READ)?;
    let mut found = [0; 4096];
    fs.read(handle, 2 << 20, &mut found)?;
    Ok(found[..] == known.bytes[2 << 20..][..4096])
}

fn list(fs: &dyn FileSystem, known: &Known) -> Result<bool> {
    Ok(names(fs, known.dir)?.len() == FILES)
}

fn find_all(fs: &dyn FileSystem, known: &Known) -> Result<bool> {
    for number in (0..FILES).rev() {
        let attr = fs.lookup(&Caller::root(), known.dir, format!("file-{number}").as_bytes())?;
        if attr.size != 5 || fs.getattr(attr.ino)?.ino != attr.ino {
            return Ok(false);
        }
    }
    Ok(true)
}

fn find_nothing(fs: &dyn FileSystem, known: &Known) -> Result<bool> {
    match fs.lookup(&Caller::root(), known.dir, b"nothing") {
        // That is right where everything could be read: what is asked next would tell.
        Err(Error::NotFound) => Ok(fs.getattr(ROOT_INO).is_ok()),
        other => other.map(|_| false),
    }
}

/// What changes nothing: also in a snapshot.
const LOOKS: [(&str, Try); 12] = [
    ("root", |fs, _| Ok(fs.getattr(ROOT_INO)?.is_dir())),
    ("getattr", |fs, known| Ok(fs.getattr(known.file)?.size == known.bytes.len() as u64)),
    ("lookup", find_all),
    ("lookup of nothing", find_nothing),
    ("readdir", list),
    ("read", read_all),
    ("read of a block", read_block),
    ("readlink", |fs, known| Ok(fs.readlink(known.link)? == [b's'; 4000])),
    ("getxattr", |fs, known| Ok(fs.getxattr(&Caller::root(), known.file, b"user.large")? == [7; 2500])),
    ("listxattr", |fs, known| Ok(fs.listxattr(&Caller::root(), known.file)? == b"user.large\0")),
    ("access", |fs, known| fs.access(&Caller::root(), known.dir, 5).map(|()| true)),
    ("seek", |fs, known| {
        let handle = fs.open(&Caller::root(), known.file, OpenFlags::READ)?;
        Ok(fs.seek(handle, SeekFrom::Hole(0))? == known.bytes.len() as u64)
    }),
];

const CHANGES: [(&str, Try); 7] = [
    ("create", |fs, known| {
        let created = fs.create(&Caller::root(), known.dir, b"new", 0o644, RW)?;
        fs.release(created.handle).map(|()| created.new)
    }),
    ("create of what is there", |fs, known| {
        let created = fs.create(&Caller::root(), known.dir, b"file-1999", 0o644, RW)?;
        fs.release(created.handle).map(|()| !created.new)
    }),
    ("mkdir", |fs, known| Ok(fs.mkdir(&Caller::root(), known.dir, b"new", 0o755)?.is_dir())),
    ("link", |fs, known| Ok(fs.link(&Caller::root(), known.file, known.dir, b"new")?.nlink == 2)),
    ("unlink", |fs, known| fs.unlink(&Caller::root(), known.dir, b"file-1999").map(|()| true)),
    ("rename", |fs, known| {
        let (from, to) = (&b"file-1999"[..], &b"new"[..]);
        let none = RenameFlags::empty();
        fs.rename(&Caller::root(), known.dir, from, ROOT_INO, to, none).map(|()| true)
    }),
    ("write", |fs, known| {
        let handle = fs.open(&Caller::root(), known.file, OpenFlags::WRITE)?;
        Ok(fs.write(&Caller::root(), handle, 100, b"bytes")? == 5)
    }),
];

/// Has `operation` tried by itself on `open`ed volumes of a zone like that at `whole`, cut at every other MiB. Where it was cut the
/// most it must fail, and where nothing is missing it must not.
fn try_each(
    whole: &Path,
    name: &str,
    operation: Try,
    known: &Known,
    open: &dyn Fn(nvm::Region) -> Arc<dyn FileSystem>,
) {
    let path = whole.with_extension("cut");
    let mut failed = Vec::new();
    for mib in (1..ZONE / MIB).step_by(2).chain([ZONE / MIB]) {
        std::fs::copy(whole, &path).unwrap();
        let zone = Zone::open(&path, &OpenOptions::default()).unwrap();
        let fs = open(zone.volume("v").unwrap());
        File::options().write(true).open(&path).unwrap().set_len(mib * MIB).unwrap();
        match operation(&*fs, known) {
            Ok(true) => {}
            Err(Error::Io(_)) => failed.push(mib),
            wrong => panic!("{name}, {mib} MiB of the zone left: {wrong:?}"),
        }
    }
    assert_eq!(failed.first(), Some(&1), "{name}: {failed:?}");
    assert_ne!(failed.last(), Some(&(ZONE / MIB)), "{name}: {failed:?}");
}

/// A place for a zone, in memory where there is room.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

#[test]
fn names_on_unreadable_media_were_not_found() {
    let directory = directory();
    let whole = directory.path().join("zone");
    let known = make(&whole);
    let open = |region| -> Arc<dyn FileSystem> { Arc::new(mount(&region, Durability::Operation)) };
    for (name, operation) in LOOKS.into_iter().chain(CHANGES) {
        try_each(&whole, name, operation, &known, &open);
    }
}

#[test]
fn names_in_snapshots_on_unreadable_media_were_not_found() {
    let directory = directory();
    let whole = directory.path().join("zone");
    let known = make(&whole);
    let alone = |region| open_snapshot(&region, "s").unwrap();
    for (name, operation) in LOOKS {
        try_each(&whole, name, operation, &known, &alone);
    }
    // The same inodes, as the volume itself shows them.
    let Known { snapshot, .. } = known;
    let viewed = Known {
        dir: snapshot | known.dir,
        file: snapshot | known.file,
        link: snapshot | known.link,
        ..known
    };
    let volume = |region| -> Arc<dyn FileSystem> { Arc::new(mount(&region, Durability::Operation)) };
    for (name, operation) in LOOKS {
        try_each(&whole, name, operation, &viewed, &volume);
    }
}

/// A volume with a file of 3 MiB, whose zone loses all behind `cut` while `work` is done, and has again afterwards what it had before.
fn with_tail_lost(cut: u64, journaling: Journaling, work: impl FnOnce(&Volume, Ino)) -> (Volume, Vec<u8>) {
    let directory = directory();
    let path = directory.path().join("zone");
    let zone = Zone::create(&path, ZONE, false, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    format(&region, &FormatOptions::default()).unwrap();
    // Nobody stores to it while it is copied.
    let options = MountOptions { journaling, background: false, ..options(Durability::Operation) };
    let volume = Volume::open(region.clone(), &options).unwrap();
    let bytes = Random(1).bytes(3 << 20);
    write_file(&volume, ROOT_INO, "file", &bytes).unwrap();
    volume.checkpoint().unwrap();
    write_file(&volume, ROOT_INO, "new", &[5; 10_000]).unwrap();
    let number = ino(&volume, "file");
    let before = std::fs::read(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(cut).unwrap();
    work(&volume, number);
    drop((volume, region, zone));
    file.set_len(ZONE).unwrap();
    file.write_all_at(&before[cut as usize..], cut).unwrap();
    let zone = Zone::open(&path, &OpenOptions::default()).unwrap();
    let region = zone.volume("v").unwrap();
    assert_sound(&region);
    (mount(&region, Durability::Operation), bytes)
}

/// What was put together from zeros became what the file has.
#[test]
fn what_cannot_be_read_is_not_logged() {
    for mib in 4..ZONE / MIB {
        let (volume, mut expected) = with_tail_lost(mib * MIB, Journaling::Block, |volume, file| {
            for at in [10, MIB + 10, 2 * MIB + 10, 3 * MIB - 4000] {
                let written = volume
                    .open(&Caller::root(), file, RW)
                    .and_then(|handle| volume.write(&Caller::root(), handle, at, &[9; 3000]));
                drop(written); // whatever became of it
            }
        });
        let found = read_file(&volume, ROOT_INO, "file").unwrap();
        for at in [10, MIB + 10, 2 * MIB + 10, 3 * MIB - 4000].map(|at| at as usize) {
            if found[at] == 9 && found[at..at + 3000] == [9; 3000] {
                expected[at..at + 3000].fill(9);
            }
        }
        assert!(found == expected, "cut at {mib} MiB");
    }
}

#[test]
fn a_checkpoint_that_the_medium_has_not_taken_is_none() {
    // Where blocks of metadata go.
    for block in 1024..1064 {
        let cut = nvm::SEGMENT + block * nvm::BLOCK;
        let (volume, expected) = with_tail_lost(cut, Journaling::Adaptive, |volume, _| {
            drop(volume.checkpoint());
        });
        assert!(read_file(&volume, ROOT_INO, "file").unwrap() == expected, "cut at block {block}");
        assert_eq!(read_file(&volume, ROOT_INO, "new").unwrap(), [5; 10_000], "cut at block {block}");
    }
}
