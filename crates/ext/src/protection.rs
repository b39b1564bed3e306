//! What `chattr +i` and `chattr +a` forbid, to everybody (Linux's `IS_IMMUTABLE` and `IS_APPEND`): [`Error::NotPermitted`].

use vfs::{Error, OpenFlags, Result, SetAttr, SetTime};

use crate::inode::{Flags, Inode};

fn refuse(inode: &Inode, flags: Flags) -> Result<()> {
    if inode.flags.intersects(flags) { Err(Error::NotPermitted) } else { Ok(()) }
}

const BOTH: Flags = Flags::IMMUTABLE.union(Flags::APPEND);

/// Whether it may be written at all, or a directory get entries.
pub(crate) fn may_write(inode: &Inode) -> Result<()> {
    refuse(inode, Flags::IMMUTABLE)
}

/// Whether names, links and extended attributes may change.
pub(crate) fn may_change(inode: &Inode) -> Result<()> {
    refuse(inode, BOTH)
}

/// Whether an entry may be removed from `dir`, or lead to something else than `victim`.
pub(crate) fn may_remove(dir: &Inode, victim: &Inode) -> Result<()> {
    refuse(dir, BOTH)?;
    refuse(victim, BOTH)
}

pub(crate) fn may_open(inode: &Inode, flags: OpenFlags) -> Result<()> {
    let truncates = flags.contains(OpenFlags::TRUNCATE);
    if flags.contains(OpenFlags::WRITE) || truncates {
        may_write(inode)?;
    }
    let overwrites = flags.contains(OpenFlags::WRITE) && !flags.contains(OpenFlags::APPEND);
    if overwrites || truncates { refuse(inode, Flags::APPEND) } else { Ok(()) }
}

pub(crate) fn may_set(inode: &Inode, set: &SetAttr) -> Result<()> {
    let touches = set.atime == Some(SetTime::Now) && set.mtime == Some(SetTime::Now);
    let sets_times = !touches && (set.atime.is_some() || set.mtime.is_some());
    if sets_times || set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some() {
        may_change(inode)
    } else if touches {
        may_write(inode)
    } else {
        Ok(())
    }
}
