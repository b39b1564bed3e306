//! A walk over everything that a volume of whatever state gives, bounded: a damaged one may be as large as it likes.

use ext::Volume;
use vfs::{Caller, Error, FileKind, FileSystem, Ino, OpenFlags, ROOT_INO, SeekFrom};

/// Inodes that are looked at.
const INODES_MAX: usize = 400;
/// Entries of a directory that are looked at.
const ENTRIES_MAX: usize = 400;
/// Runs of data of a file that are looked for.
const RUNS_MAX: usize = 50;

/// Looks at all there is; gives how many inodes, and the errors on the way.
pub(crate) fn walk(volume: &Volume) -> (usize, Vec<Error>) {
    let caller = &Caller::user(1, 1);
    let mut errors = Vec::new();
    let mut todo = vec![ROOT_INO];
    let mut inodes = 0;
    while let Some(ino) = todo.pop() {
        if inodes == INODES_MAX {
            break;
        }
        inodes += 1;
        let attr = match volume.getattr(ino) {
            Ok(attr) => attr,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let _ = volume.access(caller, ino, 7);
        match volume.listxattr(&Caller::root(), ino) {
            Err(error) => errors.push(error),
            Ok(names) => {
                for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
                    errors.extend(volume.getxattr(&Caller::root(), ino, name).err());
                }
            }
        }
        match attr.kind() {
            FileKind::Directory => directory(volume, ino, &mut todo, &mut errors),
            FileKind::Regular => errors.extend(file(volume, ino).err()),
            FileKind::Symlink => errors.extend(volume.readlink(ino).err()),
            _ => {}
        }
    }
    errors.extend(volume.statfs().err());
    (inodes, errors)
}

fn directory(volume: &Volume, dir: Ino, todo: &mut Vec<Ino>, errors: &mut Vec<Error>) {
    let mut names = Vec::new();
    let listed = volume.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        if entry.name != b"." && entry.name != b".." && (names.len() < 30 || names.len() % 20 == 0) {
            todo.push(entry.ino);
        }
        names.len() < ENTRIES_MAX
    });
    errors.extend(listed.err());
    names.truncate(60);
    names.push(b"a name that is nowhere".to_vec());
    for name in names {
        errors.extend(
            volume.lookup(&Caller::root(), dir, &name).err().filter(|error| *error != Error::NotFound),
        );
    }
}

fn file(volume: &Volume, ino: Ino) -> vfs::Result<()> {
    let handle = volume.open(&Caller::root(), ino, OpenFlags::READ)?;
    let mut bytes = [0; 5000];
    volume.read(handle, 0, &mut bytes)?;
    volume.read(handle, 60_000, &mut bytes)?;
    volume.read(handle, u64::MAX / 2, &mut bytes)?;
    let mut at = 0;
    for _ in 0..RUNS_MAX {
        let start = match volume.seek(handle, SeekFrom::Data(at)) {
            Err(Error::NoSuchOffset) => break,
            start => start?,
        };
        volume.read(handle, start, &mut bytes)?;
        at = volume.seek(handle, SeekFrom::Hole(start))?;
    }
    volume.release(handle)
}
