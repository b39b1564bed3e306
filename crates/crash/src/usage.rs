//! Using a recovered volume: something is made, and then everything is removed.

use vfs::{Caller, FileSystem, Ino, InodeFlags, OpenFlags, ROOT_INO, RenameFlags, Result};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// Bytes written: some blocks and a piece.
const BYTES: usize = 9_000;

/// Makes, writes, renames and links files; then removes all there is. `Err` says what could not be done.
pub(crate) fn empty(fs: &dyn FileSystem) -> std::result::Result<(), String> {
    unprotect(fs, ROOT_INO).map_err(|error| format!("taking away flags: {error}"))?;
    match change(fs) {
        // A full volume is not to be blamed for being full: it can be emptied all the same.
        Ok(()) | Err((_, vfs::Error::NoSpace)) => {}
        Err((what, error)) => return Err(format!("{what}: {error}")),
    }
    remove_all(fs, ROOT_INO, 0).map_err(|error| format!("removing everything: {error}"))?;
    change(fs).map_err(|(what, error)| format!("{what} when all was removed: {error}"))?;
    remove_all(fs, ROOT_INO, 0).map_err(|error| format!("removing everything again: {error}"))?;
    let mut left = None;
    fs.readdir(ROOT_INO, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            left = Some(entry.name.escape_ascii().to_string());
        }
        left.is_none()
    })
    .map_err(|error| error.to_string())?;
    match left {
        Some(name) => Err(format!("{name} is still there when all was removed")),
        None => Ok(()),
    }
}

fn change(fs: &dyn FileSystem) -> std::result::Result<(), (&'static str, vfs::Error)> {
    let root = Caller::root();
    let dir = fs.mkdir(&root, ROOT_INO, b"used", 0o755).map_err(|error| ("mkdir", error))?.ino;
    let file = fs.create(&root, dir, b"file", 0o644, RW).map_err(|error| ("create", error))?;
    let bytes: Vec<u8> = (0..BYTES).map(|n| n as u8 ^ 0x5a).collect();
    let written = fs.write(&root, file.handle, 0, &bytes);
    let whole = *written.as_ref().unwrap_or(&0);
    let mut read = vec![0; BYTES];
    let same = fs.read(file.handle, 0, &mut read).map(|count| read[..count] == bytes[..whole]);
    fs.release(file.handle).map_err(|error| ("release", error))?;
    let is_same = same.map_err(|error| ("read", error))?;
    written.map_err(|error| ("write", error))?;
    if !is_same {
        return Err(("read", vfs::Error::Corrupt("not what was written".into())));
    }
    if whole < BYTES {
        return Err(("write", vfs::Error::NoSpace)); // what there was room for
    }
    fs.rename(&root, dir, b"file", ROOT_INO, b"used.file", RenameFlags::empty())
        .map_err(|error| ("rename", error))
}

/// Takes away what forbids changes.
fn unprotect(fs: &dyn FileSystem, ino: Ino) -> Result<()> {
    let flags = fs.getattr(ino)?.flags;
    if !flags.intersects(InodeFlags::PROTECTION) {
        return Ok(());
    }
    fs.set_inode_flags(&Caller::root(), ino, flags - InodeFlags::PROTECTION)
}

fn remove_all(fs: &dyn FileSystem, dir: Ino, depth: usize) -> Result<()> {
    let root = Caller::root();
    let mut entries = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            entries.push((entry.name.to_vec(), entry.ino, entry.kind));
        }
        true
    })?;
    for (name, ino, kind) in entries {
        unprotect(fs, ino)?;
        if kind == vfs::FileKind::Directory && depth < 64 {
            remove_all(fs, ino, depth + 1)?;
            fs.rmdir(&root, dir, &name)?;
        } else {
            fs.unlink(&root, dir, &name)?;
        }
    }
    Ok(())
}
