//! Between the kernel's words and `vfs`'s.

use std::time::Duration;

use rustix::io::Errno;
use vfs::{
    Attr, Error, FallocateMode, FileKind, InodeFlags, OpenFlags, ROOT_INO, RenameFlags, SetAttr, SetTime,
    Statfs, Time,
};

use crate::abi::{
    self, AttrOut, EntryOut, ExtendedFlags, SetattrIn, StatfsOut, Statx, StatxOut, StatxTime, Valid,
};

/// How long the kernel may believe what it is told: as long as it likes, where only this mount changes things.
pub(crate) const TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// `st_blksize`.
const BLOCK_SIZE: u32 = 4096;

pub(crate) fn errno(error: &Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

/// Operations by name in a directory that is gone find nothing, as Linux has it.
pub(crate) fn in_directory(error: Error) -> Error {
    match error {
        Error::Stale => Error::NotFound,
        other => other,
    }
}

fn attr(attr: &Attr) -> abi::Attr {
    abi::Attr {
        ino: attr.ino,
        size: attr.size,
        // Of a file without any, backups take it that all of it is a hole: but the kernel may have pages of which nobody here knows.
        blocks: if attr.kind() == FileKind::Regular { attr.blocks.max(1) } else { attr.blocks },
        // The kernel's own words for seconds before 1970.
        atime: attr.atime.sec as u64,
        mtime: attr.mtime.sec as u64,
        ctime: attr.ctime.sec as u64,
        atimensec: attr.atime.nsec,
        mtimensec: attr.mtime.nsec,
        ctimensec: attr.ctime.nsec,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// For how long the kernel may believe that an entry leads to an inode, and what it is told of that.
#[derive(Clone, Copy)]
pub(crate) struct Belief {
    pub(crate) entry: Duration,
    pub(crate) attr: Duration,
}

/// Whatever the kernel has changed itself, or hears of when it changes.
pub(crate) const LASTING: Belief = Belief { entry: TTL, attr: TTL };

/// An entry and its inode.
pub(crate) fn entry_out(of: &Attr, belief: Belief) -> EntryOut {
    EntryOut {
        nodeid: of.ino,
        // Of the root directory, which it has had from the beginning, the kernel wants to hear of no other.
        generation: if of.ino == ROOT_INO { 0 } else { u64::from(of.generation) },
        entry_valid: belief.entry.as_secs(),
        attr_valid: belief.attr.as_secs(),
        attr: attr(of),
        ..EntryOut::default()
    }
}

/// The answer "there is no such name", which the kernel remembers: an entry with inode number 0.
pub(crate) fn no_entry_out(ttl: Duration) -> EntryOut {
    EntryOut { entry_valid: ttl.as_secs(), ..EntryOut::default() }
}

pub(crate) fn attr_out(of: &Attr, ttl: Duration) -> AttrOut {
    AttrOut { attr_valid: ttl.as_secs(), attr: attr(of), ..AttrOut::default() }
}

/// All that there is to know of an inode: its creation, too.
pub(crate) fn statx_out(of: &Attr, ttl: Duration) -> StatxOut {
    /// `STATX_BASIC_STATS | STATX_BTIME`.
    const MASK: u32 = 0xfff;
    let time = |at: Time| StatxTime { sec: at.sec, nsec: at.nsec, padding: 0 };
    let stat = Statx {
        mask: MASK,
        blksize: BLOCK_SIZE,
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        mode: of.mode as u16,
        ino: of.ino,
        size: of.size,
        blocks: of.blocks,
        atime: time(of.atime),
        btime: time(of.btime),
        ctime: time(of.ctime),
        mtime: time(of.mtime),
        rdev_major: rustix::fs::major(u64::from(of.rdev)),
        rdev_minor: rustix::fs::minor(u64::from(of.rdev)),
        ..Statx::default()
    };
    StatxOut { attr_valid: ttl.as_secs(), stat, ..StatxOut::default() }
}

pub(crate) fn statfs_out(space: &Statfs) -> StatfsOut {
    StatfsOut {
        blocks: space.blocks,
        bfree: space.blocks_free,
        bavail: space.blocks_available,
        files: space.files,
        ffree: space.files_free,
        bsize: space.block_size,
        namelen: vfs::NAME_MAX as u32,
        frsize: space.block_size,
        ..StatfsOut::default()
    }
}

/// What a `setattr` is to change.
pub(crate) fn set_attr(wanted: &SetattrIn) -> SetAttr {
    let valid = Valid::from_bits_truncate(wanted.valid);
    let given = |flag, value| valid.contains(flag).then_some(value);
    let time = |flag, now, sec, nsec| {
        let at = if valid.contains(now) { SetTime::Now } else { SetTime::At(Time { sec, nsec }) };
        valid.contains(flag).then_some(at)
    };
    SetAttr {
        mode: given(Valid::MODE, wanted.mode & 0o7777),
        uid: given(Valid::UID, wanted.uid),
        gid: given(Valid::GID, wanted.gid),
        size: valid.contains(Valid::SIZE).then_some(wanted.size),
        atime: time(Valid::ATIME, Valid::ATIME_NOW, wanted.atime, wanted.atimensec),
        mtime: time(Valid::MTIME, Valid::MTIME_NOW, wanted.mtime, wanted.mtimensec),
        ctime: valid.contains(Valid::CTIME).then_some(Time { sec: wanted.ctime, nsec: wanted.ctimensec }),
    }
}

const O_WRONLY: u32 = 0o1;
const O_RDWR: u32 = 0o2;
const O_EXCL: u32 = 0o200;
const O_TRUNC: u32 = 0o1000;

/// The flags of a `create` that matter to the volume: the file is kept open for reading and writing on behalf
/// of all who open it (see [`crate::inodes`]), and the kernel computes the offset of appends and syncs after
/// `O_SYNC` writes itself.
pub(crate) fn create_flags(flags: u32) -> OpenFlags {
    let mut converted = OpenFlags::READ | OpenFlags::WRITE;
    converted.set(OpenFlags::EXCLUSIVE, flags & O_EXCL != 0);
    converted.set(OpenFlags::TRUNCATE, flags & O_TRUNC != 0 && flags & (O_WRONLY | O_RDWR) != 0);
    converted
}

/// `FS_*_FL` and the `FS_XFLAG_*` that is its name in `fsxattr`: sync, immutable, append, nodump, noatime, verity, dax, projinherit.
const FLAGS_AND_EXTENDED: [(u32, u32); 8] = [
    (0x8, 0x20),
    (0x10, 0x8),
    (0x20, 0x10),
    (0x40, 0x80),
    (0x80, 0x40),
    (0x10_0000, 0x2_0000),
    (0x200_0000, 0x8000),
    (0x2000_0000, 0x200),
];

/// An inode's flags as the kernel asks for them itself.
pub(crate) fn extended_flags(flags: InodeFlags) -> ExtendedFlags {
    let flags = flags.bits();
    let extended = FLAGS_AND_EXTENDED.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, flag)| flag);
    ExtendedFlags { flags: extended.sum(), ..ExtendedFlags::default() }
}

/// What an inode's flags become of `before`; those that have no other name stay.
pub(crate) fn flags_of_extended(before: InodeFlags, wanted: &ExtendedFlags) -> Result<InodeFlags, Error> {
    let ExtendedFlags { mut flags, extent_size, project, copy_extent_size, .. } = *wanted;
    let mut after = before.bits();
    for (flag, extended) in FLAGS_AND_EXTENDED {
        after = if flags & extended != 0 { after | flag } else { after & !flag };
        flags &= !extended;
    }
    let others = [flags, extent_size, project, copy_extent_size];
    if others != [0; 4] { Err(Error::NotSupported) } else { Ok(InodeFlags::from_bits_retain(after)) }
}

pub(crate) fn rename_flags(flags: u32) -> Result<RenameFlags, Error> {
    RenameFlags::from_bits(flags).ok_or(Error::Invalid)
}

pub(crate) fn fallocate_mode(mode: u32) -> Result<FallocateMode, Error> {
    FallocateMode::from_bits(mode).ok_or(Error::NotSupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_the_kernels() {
        let valid = (Valid::MTIME | Valid::CTIME).bits();
        let wanted = SetattrIn { valid, mtime: -2, mtimensec: 250_000_000, ctime: 5, ..SetattrIn::default() };
        let set = set_attr(&wanted);
        assert_eq!(set.mtime, Some(SetTime::At(Time { sec: -2, nsec: 250_000_000 })));
        assert_eq!(set.ctime, Some(Time { sec: 5, nsec: 0 }));
        assert_eq!((set.atime, set.size, set.mode), (None, None, None));
    }

    #[test]
    fn now_is_the_volumes() {
        let valid = (Valid::ATIME | Valid::ATIME_NOW).bits();
        let set = set_attr(&SetattrIn { valid, atime: 9, ..SetattrIn::default() });
        assert_eq!(set.atime, Some(SetTime::Now));
    }

    #[test]
    fn flags_have_two_numbers() {
        let immutable_and_append = 0x8 | 0x10;
        assert_eq!(
            extended_flags(InodeFlags::from_bits_retain(0x8_1030)).flags,
            immutable_and_append,
            "and what extents and trees have, none"
        );
        assert_eq!(size_of::<ExtendedFlags>(), 28, "as the number of the request says");
        let before = InodeFlags::from_bits_retain(0x8_1030);
        let nodump = ExtendedFlags { flags: 0x80, ..ExtendedFlags::default() };
        assert_eq!(flags_of_extended(before, &nodump), Ok(InodeFlags::from_bits_retain(0x8_1040)));
        let realtime = ExtendedFlags { flags: 0x81, ..ExtendedFlags::default() };
        assert_eq!(flags_of_extended(before, &realtime), Err(Error::NotSupported));
        let of_project = ExtendedFlags { project: 7, ..ExtendedFlags::default() };
        assert_eq!(flags_of_extended(before, &of_project), Err(Error::NotSupported));
    }

    #[test]
    fn unknown_flags_are_refused() {
        const RENAME_OF_LATER_KERNELS: u32 = 8;
        const FALLOC_FL_COLLAPSE_RANGE: u32 = 8;
        assert_eq!(rename_flags(RENAME_OF_LATER_KERNELS), Err(Error::Invalid));
        assert_eq!(fallocate_mode(FALLOC_FL_COLLAPSE_RANGE), Err(Error::NotSupported));
        assert_eq!(fallocate_mode(u32::MAX), Err(Error::NotSupported));
        assert_eq!(fallocate_mode(0x03), Ok(FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE));
    }
}
