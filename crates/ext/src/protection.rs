//! What `chattr +i` and `chattr +a` forbid, to everybody (Linux's `IS_IMMUTABLE` and `IS_APPEND`): [`Error::NotPermitted`]; and what
//! chattr(1) may change.
//!
//! A mount is not told how a file is opened, nor in which order pages are filled that come from its cache. So its server (a trusted caller)
//! opens what may only grow for any write, and each write is looked at ([`keeps`]); and it brings times that the cache has kept.

use vfs::{Caller, Error, FallocateMode, FileKind, OpenFlags, Result, SetAttr, SetTime, rules};

use crate::core::inode::{Flags, Inode};

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

pub(crate) fn may_open(caller: &Caller, inode: &Inode, flags: OpenFlags) -> Result<()> {
    let truncates = flags.contains(OpenFlags::TRUNCATE);
    if flags.contains(OpenFlags::WRITE) || truncates {
        may_write(inode)?;
    }
    let overwrites =
        flags.contains(OpenFlags::WRITE) && !flags.contains(OpenFlags::APPEND) && !caller.trusted;
    if overwrites || truncates { refuse(inode, Flags::APPEND) } else { Ok(()) }
}

/// Whether `found` may become `written` in a file that may only grow. Zeros may: pages that are written back out of order leave them below them.
pub(crate) fn keeps(found: &[u8], written: &[u8]) -> Result<()> {
    let is_kept = found.iter().zip(written).all(|(found, written)| *found == 0 || found == written);
    if is_kept { Ok(()) } else { Err(Error::NotPermitted) }
}

pub(crate) fn may_allocate(inode: &Inode, mode: FallocateMode) -> Result<()> {
    may_write(inode)?;
    if (mode - FallocateMode::KEEP_SIZE).is_empty() { Ok(()) } else { refuse(inode, Flags::APPEND) }
}

pub(crate) fn may_set(caller: &Caller, inode: &Inode, set: &SetAttr) -> Result<()> {
    let is_from_cache = caller.trusted && set.ctime.is_some();
    let touches = is_from_cache || set.atime == Some(SetTime::Now) && set.mtime == Some(SetTime::Now);
    let sets_times = !touches && (set.atime.is_some() || set.mtime.is_some());
    if sets_times || set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some() {
        may_change(inode)
    } else if touches {
        may_write(inode)
    } else {
        Ok(())
    }
}

/// What lsattr(1) shows (Linux's `EXT4_FL_USER_VISIBLE`).
const SHOWN: Flags = Flags::from_bits_retain(0x725B_DFFF);
/// What chattr(1) changes, with the kernel (`EXT4_FL_USER_MODIFIABLE`).
const CHANGED_BY_KERNEL: Flags = Flags::from_bits_retain(0x624B_C0FF);
/// And here: `acdijstuADST`, which leave all else of a file as it is.
const CHANGED: Flags = Flags::from_bits_retain(0x3_C0FF);
/// Of these, what promises that each change is durable, or data in the journal, which is not so here: `S`, `D`, `j`. It can be taken away.
const NOT_KEPT: Flags = Flags::from_bits_retain(0x1_4008);
/// What only directories have, `T`, and what inodes have that are no files, either: `d`, `A`.
const OF_DIRECTORIES: Flags = Flags::from_bits_retain(0x2_0000);
const OF_OTHERS: Flags = Flags::from_bits_retain(0xC0);

pub(crate) fn shown(inode: &Inode) -> u32 {
    (inode.flags & SHOWN).bits()
}

/// The flags that `caller` changes who wants them to be `flags`. Others than chattr(1)'s don't count, as with the kernel.
pub(crate) fn changed(caller: &Caller, inode: &Inode, flags: u32) -> Result<Flags> {
    let wanted = Flags::from_bits_retain(flags);
    let changed = (wanted ^ inode.flags) & CHANGED_BY_KERNEL;
    let can_have = match inode.kind() {
        FileKind::Directory => CHANGED - NOT_KEPT,
        FileKind::Regular => CHANGED - NOT_KEPT - OF_DIRECTORIES,
        _ => OF_OTHERS,
    };
    if !SHOWN.contains(wanted) || !CHANGED.contains(changed) || !can_have.contains(changed & wanted) {
        return Err(Error::NotSupported);
    }
    let is_allowed = rules::is_owner(caller, &inode.attr())
        && (caller.is_privileged() || !changed.intersects(BOTH))
        && (changed.is_empty() || !(inode.flags & wanted).contains(Flags::IMMUTABLE));
    if is_allowed { Ok(changed) } else { Err(Error::NotPermitted) }
}
