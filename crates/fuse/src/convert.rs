//! Between the kernel's words and `vfs`'s.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, TimeOrNow};
use vfs::{Attr, Error, FallocateMode, FileKind, OpenFlags, RenameFlags, SetTime, Time};

/// How long the kernel may believe what it is told: as long as it likes, where only this mount changes things.
pub(crate) const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// `st_blksize`.
const BLOCK_SIZE: u32 = 4096;

pub(crate) fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.errno())
}

/// Operations by name in a directory that is gone find nothing, as Linux has it.
pub(crate) fn in_directory(error: Error) -> Error {
    match error {
        Error::Stale => Error::NotFound,
        other => other,
    }
}

pub(crate) fn generation(attr: &Attr) -> Generation {
    Generation(u64::from(attr.generation))
}

pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::Directory => FileType::Directory,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Regular => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Socket => FileType::Socket,
    }
}

pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.into(),
        mtime: attr.mtime.into(),
        ctime: attr.ctime.into(),
        crtime: attr.btime.into(),
        kind: file_type(attr.kind()),
        perm: attr.perm() as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// The answer "there is no such name", which the kernel remembers: an entry with inode number 0.
pub(crate) fn no_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The time in a request. The library has turned the kernel's pair (s, ns) with s < 0 into the instant
/// -(|s| + ns) instead of s + ns; this gives the pair back.
pub(crate) fn time(at: SystemTime) -> Time {
    match at.duration_since(UNIX_EPOCH) {
        Ok(_) => at.into(),
        Err(before) => {
            let before = before.duration();
            Time { sec: -(before.as_secs() as i64), nsec: before.subsec_nanos() }
        }
    }
}

pub(crate) fn set_time(at: TimeOrNow) -> SetTime {
    match at {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => SetTime::At(time(at)),
    }
}

const O_WRONLY: i32 = 0o1;
const O_RDWR: i32 = 0o2;
const O_EXCL: i32 = 0o200;
const O_TRUNC: i32 = 0o1000;

/// The flags of a `create` that matter to the volume: the file is kept open for reading and writing on behalf
/// of all who open it (see [`crate::inodes`]), and the kernel computes the offset of appends and syncs after
/// `O_SYNC` writes itself.
pub(crate) fn create_flags(flags: i32) -> OpenFlags {
    let mut converted = OpenFlags::READ | OpenFlags::WRITE;
    converted.set(OpenFlags::EXCLUSIVE, flags & O_EXCL != 0);
    converted.set(OpenFlags::TRUNCATE, flags & O_TRUNC != 0 && flags & (O_WRONLY | O_RDWR) != 0);
    converted
}

pub(crate) fn rename_flags(flags: fuser::RenameFlags) -> Result<RenameFlags, Error> {
    RenameFlags::from_bits(flags.bits()).ok_or(Error::Invalid)
}

pub(crate) fn fallocate_mode(mode: i32) -> Result<FallocateMode, Error> {
    u32::try_from(mode).ok().and_then(FallocateMode::from_bits).ok_or(Error::NotSupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_the_library() {
        // What the library makes of (-2 s, 250 ms).
        let instant = UNIX_EPOCH - Duration::new(2, 250_000_000);
        assert_eq!(time(instant), Time { sec: -2, nsec: 250_000_000 });
        let instant = UNIX_EPOCH + Duration::new(2, 250_000_000);
        assert_eq!(time(instant), Time { sec: 2, nsec: 250_000_000 });
    }

    #[test]
    fn unknown_flags_are_refused() {
        assert_eq!(rename_flags(fuser::RenameFlags::RENAME_WHITEOUT), Err(Error::Invalid));
        assert_eq!(fallocate_mode(0x08), Err(Error::NotSupported)); // FALLOC_FL_COLLAPSE_RANGE
        assert_eq!(fallocate_mode(-1), Err(Error::NotSupported));
        assert_eq!(fallocate_mode(0x03), Ok(FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE));
    }
}
