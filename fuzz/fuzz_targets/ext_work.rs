//! What is done with an attached ext file system, whatever it holds: everything there is, a little of each.

use std::sync::Arc;
use std::time::Duration;

use disk::Disk;
use ext::{Background, Fetch, Options, Sync, Volume};
use nvm::Region;
use vfs::{
    Caller, DirEntry, FallocateMode, FileKind, FileSystem, Handle, Ino, OpenFlags, ROOT_INO, RenameFlags,
    SeekFrom, SetAttr, XattrMode,
};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// Directories, and entries of each, in which something is done: a forged tree may be as large as it likes.
const DIRECTORIES: usize = 4;
const ENTRIES: usize = 14;
/// Files of each that are changed where they are.
const REWRITTEN: usize = 4;

/// How it is mounted.
pub(crate) struct Way {
    pub(crate) options: Options,
    /// Two threads do what otherwise is done by who needs it.
    pub(crate) is_tended: bool,
}

pub(crate) fn way(byte: u8) -> Way {
    let is = |bit: u8| byte >> bit & 1 != 0;
    let options = Options {
        cache_bytes: 1 << 20,
        page_bytes: 256 << 10,
        synced_bytes: 256 << 10,
        clean_bytes: if is(0) { 256 << 10 } else { 0 },
        sync: [Sync::Nosync, Sync::Dirsync, Sync::Nosync, Sync::Sync][usize::from(byte >> 1 & 3)],
        sync_in_nvm: !is(3),
        fetch: if is(4) { Fetch::Eager } else { Fetch::Touch },
        ..Options::default()
    };
    Way { options, is_tended: is(5) }
}

/// Entries of a directory, no more than are wanted.
fn list(volume: &Volume, dir: Ino) -> Vec<(Vec<u8>, Ino)> {
    let mut all = Vec::new();
    let mut note = |entry: DirEntry<'_>| {
        if entry.name != b"." && entry.name != b".." {
            all.push((entry.name.to_vec(), entry.ino));
        }
        all.len() < ENTRIES
    };
    let _ = volume.readdir(dir, 0, &mut note);
    all
}

/// Does something of everything in each directory that is found; what fails, fails. Gives a file that is open and has no name.
pub(crate) fn write_some(volume: &Volume) -> Option<Handle> {
    let root = &Caller::root();
    let mut dirs = vec![ROOT_INO];
    let mut at = 0;
    while at < dirs.len() && dirs.len() < DIRECTORIES {
        for (_, ino) in list(volume, dirs[at]) {
            if volume.getattr(ino).is_ok_and(|attr| attr.is_dir()) && dirs.len() < DIRECTORIES {
                dirs.push(ino);
            }
        }
        at += 1;
    }
    for (n, dir) in dirs.iter().enumerate() {
        let entries = list(volume, *dir);
        for (_, ino) in entries.iter().step_by(entries.len().div_ceil(REWRITTEN).max(1)) {
            if volume.getattr(*ino).is_ok_and(|attr| attr.kind() == FileKind::Regular) {
                rewrite(volume, *ino);
            }
        }
        make(volume, *dir, n);
        take_away(volume, *dir, dirs[(n + 1) % dirs.len()], &entries);
    }
    let _ = volume.syncfs();
    let unnamed = volume.tmpfile(root, ROOT_INO, 0o600, RW).ok()?;
    let _ = volume.write(root, unnamed.handle, 100_000, b"bytes");
    Some(unnamed.handle)
}

/// Changes what a file has, where it is.
fn rewrite(volume: &Volume, ino: Ino) {
    let root = &Caller::root();
    let Ok(handle) = volume.open(root, ino, RW) else { return };
    let size = volume.getattr(ino).map_or(0, |attr| attr.size);
    for at in [0, size / 2, size.saturating_sub(1), size.saturating_add(5_000)] {
        let _ = volume.write(root, handle, at, &[7; 1500]);
        let _ = volume.read(handle, at, &mut [0; 3000]);
    }
    let _ = volume.fsync(handle, false);
    for mode in [
        FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE,
        FallocateMode::ZERO_RANGE,
        FallocateMode::KEEP_SIZE,
    ] {
        let _ = volume.fallocate(root, handle, mode, size / 3, 20_000);
    }
    let _ = volume.write_out_all();
    for size in [size / 2 + 100, size.saturating_add(100), 70_000] {
        let _ = volume.setattr(root, ino, &SetAttr { size: Some(size), ..SetAttr::default() }, Some(handle));
    }
    let _ = volume.seek(handle, SeekFrom::Hole(0));
    let _ = volume.seek(handle, SeekFrom::Data(1));
    let _ = volume.copy_file_range(root, handle, 0, handle, 100_000, 30_000);
    let _ = volume.release(handle);
}

/// Names, files and attributes that were not there.
fn make(volume: &Volume, dir: Ino, n: usize) {
    let root = &Caller::root();
    for m in 0..5 {
        let name = format!("a new name that takes some room in its directory, the {n}th and {m}th");
        let Ok(made) = volume.create(root, dir, name.as_bytes(), 0o644, RW) else { continue };
        let _ = volume.write(root, made.handle, m * 7000, &[m as u8; 5000]);
        if m % 3 == 0 {
            let _ = volume.fsync(made.handle, m % 2 == 0);
        }
        let _ = volume.release(made.handle);
        let _ = volume.setxattr(root, made.attr.ino, b"user.a", &[7; 200], XattrMode::Either);
        let _ = volume.link(root, made.attr.ino, dir, format!("link {m}").as_bytes());
    }
    let _ = volume.mkdir(root, dir, b"new directory", 0o755);
    let _ = volume.symlink(root, dir, b"new link", &[b't'; 200]);
    let _ = volume.mknod(root, dir, b"new pipe", 0o010_644, 0);
    let _ = volume.empty_half();
}

/// Removes and moves what there was.
fn take_away(volume: &Volume, dir: Ino, other: Ino, entries: &[(Vec<u8>, Ino)]) {
    let root = &Caller::root();
    for (n, (name, ino)) in entries.iter().enumerate() {
        let _ = match n % 7 {
            0 => volume.unlink(root, dir, name),
            1 => volume.rename(root, dir, name, other, name, RenameFlags::empty()),
            2 => volume.rename(root, dir, name, dir, b"renamed", RenameFlags::empty()),
            3 => volume.setxattr(root, *ino, b"user.large", &[9; 300], XattrMode::Either),
            4 => volume.removexattr(root, *ino, b"user.name"),
            5 => volume.rename(root, dir, name, other, b"new link", RenameFlags::EXCHANGE),
            _ => volume.rmdir(root, dir, name),
        };
    }
}

pub(crate) fn mount(
    region: &Region,
    disk: &Arc<Disk>,
    way: &Way,
) -> Option<(Arc<Volume>, Option<Background>)> {
    let volume = Arc::new(Volume::mount(region, disk.clone(), &way.options).ok()?);
    let tended = way.is_tended.then(|| Background::begin(&volume, Duration::from_millis(1), |_| {}).unwrap());
    Some((volume, tended))
}
