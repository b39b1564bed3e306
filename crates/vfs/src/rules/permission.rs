//! Who may read, write, search, make and remove.

use super::{S_ISVTX, protection};
use crate::{Attr, Caller, Error, FileKind, OpenFlags, Result, acl};

/// Permission to read, in a mask.
pub const READ: u32 = 4;
/// Permission to write, in a mask.
pub const WRITE: u32 = 2;
/// Permission to execute, or to search a directory, in a mask.
pub const EXECUTE: u32 = 1;

/// Whether `caller` may do all of `mask` (Linux's `inode_permission`); [`Error::AccessDenied`] if not. `acl` is
/// the inode's `system.posix_acl_access` value, if it has one. The superuser may do everything but execute a
/// file that nobody may execute, and write what is immutable ([`Error::NotPermitted`]).
pub fn may_access(caller: &Caller, attr: &Attr, acl: Option<&[u8]>, mask: u32) -> Result<()> {
    protection::may_access(attr.flags, mask)?;
    if caller.trusted || class_permits(caller, attr, acl, mask & 7)? {
        return Ok(());
    }
    let overridable = attr.is_dir() || mask & EXECUTE == 0 || attr.mode & 0o111 != 0;
    if caller.uid == 0 && overridable { Ok(()) } else { Err(Error::AccessDenied) }
}

/// Linux's `acl_permission_check`: no privilege considered.
fn class_permits(caller: &Caller, attr: &Attr, acl: Option<&[u8]>, mask: u32) -> Result<bool> {
    if caller.uid == attr.uid {
        return Ok(mask & !(attr.mode >> 6) == 0);
    }
    if let Some(raw) = acl
        && attr.mode & 0o070 != 0
    {
        return acl::permits(raw, caller, attr, mask);
    }
    let class = if caller.in_group(attr.gid) { attr.mode >> 3 } else { attr.mode };
    Ok(mask & !class == 0)
}

/// Whether `caller` may look names up in `dir`; [`Error::NotDirectory`] if it is none.
pub fn may_search(caller: &Caller, dir: &Attr, acl: Option<&[u8]>) -> Result<()> {
    if !dir.is_dir() {
        return Err(Error::NotDirectory);
    }
    may_access(caller, dir, acl, EXECUTE)
}

/// Whether `caller` may make an entry in `dir`.
pub fn may_create(caller: &Caller, dir: &Attr, acl: Option<&[u8]>) -> Result<()> {
    if !dir.is_dir() {
        return Err(Error::NotDirectory);
    }
    may_access(caller, dir, acl, WRITE | EXECUTE)
}

/// Whether `caller` may remove or replace the entry of `victim` in `dir`: [`Error::AccessDenied`] without
/// permission to write `dir`, [`Error::NotPermitted`] if `dir` is sticky and neither it nor `victim` is the
/// caller's, or one of them is protected.
pub fn may_delete(caller: &Caller, dir: &Attr, acl: Option<&[u8]>, victim: &Attr) -> Result<()> {
    may_create(caller, dir, acl)?;
    protection::may_change(dir.flags)?;
    let sticky = dir.mode & S_ISVTX != 0;
    if sticky && !is_owner(caller, victim) && caller.uid != dir.uid {
        return Err(Error::NotPermitted);
    }
    protection::may_change(victim.flags)
}

/// Whether `caller` may give `source` another name: not if it is a directory or protected ([`Error::NotPermitted`]). (Linux's
/// `protected_hardlinks`, a setting of the kernel and not of a file system, is left to the front end.)
pub fn may_link(_caller: &Caller, source: &Attr) -> Result<()> {
    if source.is_dir() { Err(Error::NotPermitted) } else { protection::may_change(source.flags) }
}

/// Whether `caller` may open the inode so: [`Error::Loop`] for a symbolic link, [`Error::IsDirectory`] for a
/// directory to be written, [`Error::NoSuchOffset`] (`ENXIO`) for what is neither file nor directory,
/// [`Error::AccessDenied`], and [`Error::NotPermitted`] to write what is immutable or, unless it appends, what may only grow. [`Error::Invalid`] if it is to be opened neither for reading nor for writing. With `PATH` alone,
/// everybody may open everything.
pub fn may_open(caller: &Caller, attr: &Attr, acl: Option<&[u8]>, flags: OpenFlags) -> Result<()> {
    if flags == OpenFlags::PATH {
        return Ok(());
    }
    can_open(attr, flags)?;
    let read = if flags.contains(OpenFlags::READ) { READ } else { 0 };
    let write = if flags.intersects(WRITING) { WRITE } else { 0 };
    may_access(caller, attr, acl, read | write)?;
    protection::may_open(caller, attr.flags, flags)
}

const WRITING: OpenFlags = OpenFlags::WRITE.union(OpenFlags::TRUNCATE);

/// Whether anybody could open the inode so, as far as its kind tells: the first of what [`may_open`] asks.
pub fn can_open(attr: &Attr, flags: OpenFlags) -> Result<()> {
    if flags.contains(OpenFlags::PATH) || !flags.intersects(OpenFlags::READ | OpenFlags::WRITE) {
        return Err(Error::Invalid);
    }
    match attr.kind() {
        FileKind::Regular => Ok(()),
        FileKind::Directory if flags.intersects(WRITING) => Err(Error::IsDirectory),
        FileKind::Directory => Ok(()),
        FileKind::Symlink => Err(Error::Loop),
        _ => Err(Error::NoSuchOffset),
    }
}

/// Whether `caller` owns the inode or counts as its owner (Linux's `inode_owner_or_capable`).
pub fn is_owner(caller: &Caller, attr: &Attr) -> bool {
    caller.uid == attr.uid || caller.is_privileged()
}

#[cfg(test)]
mod tests {
    use super::super::sample::{dir, file, inode};
    use super::*;

    const DENIED: Result<()> = Err(Error::AccessDenied);

    #[test]
    fn the_first_class_that_fits_decides() {
        let owner = Caller::user(1, 2);
        let group = Caller::user(5, 2);
        let other = Caller::user(5, 5);
        assert_eq!(may_access(&owner, &file(0o077), None, READ), DENIED);
        assert_eq!(may_access(&owner, &file(0o400), None, READ), Ok(()));
        assert_eq!(may_access(&group, &file(0o707), None, READ), DENIED);
        assert_eq!(may_access(&group, &file(0o060), None, READ | WRITE), Ok(()));
        assert_eq!(may_access(&other, &file(0o770), None, READ), DENIED);
        assert_eq!(may_access(&other, &file(0o005), None, READ | EXECUTE), Ok(()));
        let mut member = Caller::user(5, 5);
        member.groups = [2].into();
        assert_eq!(may_access(&member, &file(0o040), None, READ), Ok(()));
        assert_eq!(may_access(&other, &file(0), None, 0), Ok(()));
    }

    #[test]
    fn root_executes_only_what_somebody_may() {
        let root = Caller::root();
        assert_eq!(may_access(&root, &file(0), None, READ | WRITE), Ok(()));
        assert_eq!(may_access(&root, &file(0o666), None, EXECUTE), DENIED);
        assert_eq!(may_access(&root, &file(0o001), None, EXECUTE), Ok(()));
        assert_eq!(may_access(&root, &dir(0), None, EXECUTE), Ok(()));
        assert_eq!(may_access(&Caller::checked_by_kernel(9, 9, 0), &file(0), None, 7), Ok(()));
    }

    #[test]
    fn an_acl_stands_before_the_group_class() {
        // Owner rw, user 7 r, group nothing, mask r, other nothing.
        let list: Vec<u8> = [
            &[2, 0, 0, 0][..],
            &[1, 0, 6, 0, 255, 255, 255, 255],
            &[2, 0, 4, 0, 7, 0, 0, 0],
            &[4, 0, 0, 0, 255, 255, 255, 255],
            &[16, 0, 4, 0, 255, 255, 255, 255],
            &[32, 0, 0, 0, 255, 255, 255, 255],
        ]
        .concat();
        let attr = file(0o640);
        assert_eq!(may_access(&Caller::user(7, 7), &attr, Some(&list), READ), Ok(()));
        assert_eq!(may_access(&Caller::user(5, 2), &attr, Some(&list), READ), DENIED);
        // With no bit in the group class the mask denies all named entries: Linux does not look at them.
        assert_eq!(may_access(&Caller::user(7, 7), &file(0o604), Some(&list), READ), Ok(()));
        assert_eq!(may_access(&Caller::user(1, 1), &attr, Some(&list), WRITE), Ok(()));
    }

    #[test]
    fn making_needs_write_and_search() {
        let other = Caller::user(5, 5);
        assert_eq!(may_create(&other, &dir(0o772), None), DENIED);
        assert_eq!(may_create(&other, &dir(0o771), None), DENIED);
        assert_eq!(may_create(&other, &dir(0o773), None), Ok(()));
        assert_eq!(may_create(&other, &file(0o777), None), Err(Error::NotDirectory));
        assert_eq!(may_search(&other, &dir(0o776), None), DENIED);
        assert_eq!(may_search(&other, &file(0o777), None), Err(Error::NotDirectory));
    }

    #[test]
    fn sticky_directories_protect_what_is_not_yours() {
        let mut mine = file(0o644);
        mine.uid = 5;
        let theirs = file(0o644);
        let other = Caller::user(5, 5);
        let mut tmp = dir(0o1777);
        tmp.uid = 0;
        assert_eq!(may_delete(&other, &tmp, None, &mine), Ok(()));
        assert_eq!(may_delete(&other, &tmp, None, &theirs), Err(Error::NotPermitted));
        assert_eq!(may_delete(&Caller::root(), &tmp, None, &theirs), Ok(()));
        tmp.uid = 5;
        assert_eq!(may_delete(&other, &tmp, None, &theirs), Ok(()), "the directory's owner may");
        tmp.mode &= !0o1000;
        tmp.uid = 0;
        assert_eq!(may_delete(&other, &tmp, None, &theirs), Ok(()));
        assert_eq!(
            may_delete(&other, &dir(0o1775), None, &theirs),
            DENIED,
            "no write permission comes first"
        );
    }

    #[test]
    fn directories_have_one_name() {
        assert_eq!(may_link(&Caller::root(), &dir(0o777)), Err(Error::NotPermitted));
        assert_eq!(may_link(&Caller::user(9, 9), &file(0)), Ok(()));
    }

    #[test]
    fn opening_depends_on_kind_and_permission() {
        let owner = Caller::user(1, 2);
        let (r, w) = (OpenFlags::READ, OpenFlags::WRITE);
        assert_eq!(may_open(&owner, &file(0o400), None, r), Ok(()));
        assert_eq!(may_open(&owner, &file(0o400), None, r | OpenFlags::TRUNCATE), DENIED);
        assert_eq!(may_open(&owner, &file(0o200), None, w), Ok(()));
        assert_eq!(may_open(&owner, &file(0o200), None, r | w), DENIED);
        assert_eq!(may_open(&owner, &dir(0o700), None, r), Ok(()));
        assert_eq!(may_open(&owner, &dir(0o700), None, r | w), Err(Error::IsDirectory));
        assert_eq!(may_open(&owner, &inode(FileKind::Symlink, 0o777), None, r), Err(Error::Loop));
        assert_eq!(may_open(&owner, &inode(FileKind::Socket, 0o777), None, r), Err(Error::NoSuchOffset));
        assert_eq!(may_open(&owner, &file(0o600), None, OpenFlags::APPEND), Err(Error::Invalid));
        for kind in [FileKind::Regular, FileKind::Symlink, FileKind::Socket, FileKind::CharDevice] {
            assert_eq!(may_open(&Caller::user(5, 5), &inode(kind, 0), None, OpenFlags::PATH), Ok(()));
        }
        assert_eq!(may_open(&owner, &file(0o600), None, r | OpenFlags::PATH), Err(Error::Invalid));
    }
}
