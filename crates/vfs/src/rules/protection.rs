//! What `chattr +i` and `chattr +a` forbid, to everybody (Linux's `IS_IMMUTABLE` and `IS_APPEND`): [`Error::NotPermitted`].
//!
//! The kernel that checks on behalf of a trusted caller does not know of them, so they bind that caller, too. But a mount is not told how a
//! file is opened, nor in which order pages are filled that come from its cache. So its server, a trusted caller, opens what may only grow
//! for any write, and each write is looked at ([`keeps`]); and it sets the times of what is written to that, which the kernel has kept. What
//! comes [from a cache](Caller::from_cache) may be older than the protection.

use crate::{Caller, Error, FallocateMode, InodeFlags, OpenFlags, Result, SetAttr, SetTime, rules};

fn refuse(flags: InodeFlags, forbidding: InodeFlags) -> Result<()> {
    if flags.intersects(forbidding) { Err(Error::NotPermitted) } else { Ok(()) }
}

/// Whether names, links and extended attributes of an inode with these flags may change.
pub(super) fn may_change(flags: InodeFlags) -> Result<()> {
    refuse(flags, InodeFlags::PROTECTION)
}

/// Whether it may get permission to write, if `mask` has that.
pub(super) fn may_access(flags: InodeFlags, mask: u32) -> Result<()> {
    if mask & rules::WRITE != 0 { refuse(flags, InodeFlags::IMMUTABLE) } else { Ok(()) }
}

pub(super) fn may_open(caller: &Caller, flags: InodeFlags, open: OpenFlags) -> Result<()> {
    let truncates = open.contains(OpenFlags::TRUNCATE);
    let overwrites = open.contains(OpenFlags::WRITE) && !open.contains(OpenFlags::APPEND) && !caller.trusted;
    if truncates || overwrites { refuse(flags, InodeFlags::APPEND) } else { Ok(()) }
}

pub(super) fn may_set(caller: &Caller, flags: InodeFlags, set: &SetAttr) -> Result<()> {
    if caller.from_cache {
        return Ok(());
    }
    // As the kernel brings those of its pages; and that "now" which it has looked up for both.
    let is_now = set.atime == Some(SetTime::Now) && set.mtime == set.ctime.map(SetTime::At);
    let are_kept = caller.trusted && set.ctime.is_some() && (set.atime.is_none() || is_now);
    let touches = are_kept || set.atime == Some(SetTime::Now) && set.mtime == Some(SetTime::Now);
    let sets_times = !touches && (set.atime.is_some() || set.mtime.is_some() || set.ctime.is_some());
    if sets_times || set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some() {
        may_change(flags)
    } else if touches {
        refuse(flags, InodeFlags::IMMUTABLE)
    } else {
        Ok(())
    }
}

/// Whether `caller` may write to a file that is open for that: it may have become immutable since.
pub fn may_write(caller: &Caller, flags: InodeFlags) -> Result<()> {
    if caller.from_cache { Ok(()) } else { refuse(flags, InodeFlags::IMMUTABLE) }
}

/// Whether `found` may become `written` in a file that may only grow. Zeros may: pages that are written back out of order leave them below them.
pub fn keeps(found: &[u8], written: &[u8]) -> Result<()> {
    let is_kept = found.iter().zip(written).all(|(found, written)| *found == 0 || found == written);
    if is_kept { Ok(()) } else { Err(Error::NotPermitted) }
}

/// Whether a range of a file that is open for writing may be allocated, punched or zeroed so.
pub fn may_allocate(flags: InodeFlags, mode: FallocateMode) -> Result<()> {
    let grows = (mode - FallocateMode::KEEP_SIZE).is_empty();
    refuse(flags, if grows { InodeFlags::IMMUTABLE } else { InodeFlags::PROTECTION })
}

/// Whether a range may be copied to a file that is open for writing, and not for appending.
pub fn may_copy_to(flags: InodeFlags) -> Result<()> {
    may_change(flags)
}

#[cfg(test)]
mod tests {
    use super::super::sample::{dir, file};
    use super::*;
    use crate::{Attr, rules};

    const FORBIDDEN: Result<()> = Err(Error::NotPermitted);
    const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

    fn with(attr: Attr, flags: InodeFlags) -> Attr {
        Attr { flags, ..attr }
    }

    fn everybody() -> [Caller; 3] {
        [Caller::root(), Caller::user(1, 2), Caller::checked_by_kernel(0, 0, 0)]
    }

    #[test]
    fn the_superuser_is_bound_too() {
        let fixed = with(file(0o666), InodeFlags::IMMUTABLE);
        let growing = with(file(0o666), InodeFlags::APPEND);
        let (fixed_dir, growing_dir) =
            (with(dir(0o777), InodeFlags::IMMUTABLE), with(dir(0o777), InodeFlags::APPEND));
        for caller in everybody() {
            let caller = &caller;
            assert_eq!(rules::may_access(caller, &fixed, None, rules::WRITE), FORBIDDEN);
            assert_eq!(rules::may_access(caller, &fixed, None, rules::READ), Ok(()));
            assert_eq!(rules::may_open(caller, &fixed, None, OpenFlags::READ), Ok(()));
            assert_eq!(rules::may_open(caller, &fixed, None, RW), FORBIDDEN);
            assert_eq!(rules::may_open(caller, &growing, None, RW | OpenFlags::APPEND), Ok(()));
            assert_eq!(rules::may_open(caller, &growing, None, RW | OpenFlags::TRUNCATE), FORBIDDEN);
            let overwrites = rules::may_open(caller, &growing, None, RW);
            assert_eq!(overwrites, if caller.trusted { Ok(()) } else { FORBIDDEN });
            assert_eq!(rules::may_create(caller, &fixed_dir, None), FORBIDDEN);
            assert_eq!(rules::may_create(caller, &growing_dir, None), Ok(()));
            for protected in [&fixed, &growing] {
                assert_eq!(rules::may_delete(caller, &dir(0o777), None, protected), FORBIDDEN);
                assert_eq!(rules::may_link(caller, protected), FORBIDDEN);
                let written = rules::xattr_permission(caller, protected, None, b"user.a", true);
                assert_eq!(written, FORBIDDEN);
                assert_eq!(rules::xattr_permission(caller, protected, None, b"user.a", false), Ok(()));
            }
            for protected in [&fixed_dir, &growing_dir] {
                assert_eq!(rules::may_delete(caller, protected, None, &file(0o666)), FORBIDDEN);
            }
        }
    }

    #[test]
    fn attributes_stay() {
        let (fixed, growing) =
            (with(file(0o666), InodeFlags::IMMUTABLE), with(file(0o666), InodeFlags::APPEND));
        let now = Some(SetTime::Now);
        let touch = SetAttr { atime: now, mtime: now, ..SetAttr::default() };
        let plan = |caller: &Caller, attr: &Attr, set: &SetAttr, by_handle| {
            rules::plan_setattr(caller, attr, None, set, by_handle, attr.ctime).map(drop)
        };
        for caller in everybody() {
            for set in [
                SetAttr { mode: Some(0o600), ..SetAttr::default() },
                SetAttr { uid: Some(1), ..SetAttr::default() },
                SetAttr { size: Some(0), ..SetAttr::default() },
                SetAttr { mtime: now, ..SetAttr::default() },
            ] {
                for by_handle in [false, true] {
                    assert_eq!(plan(&caller, &fixed, &set, by_handle), FORBIDDEN);
                    assert_eq!(plan(&caller, &growing, &set, by_handle), FORBIDDEN);
                }
            }
            assert_eq!(plan(&caller, &fixed, &touch, false), FORBIDDEN);
            assert_eq!(plan(&caller, &growing, &touch, false), Ok(()));
        }
        let kept = SetAttr { mtime: now, ctime: Some(fixed.ctime), ..SetAttr::default() };
        let server = Caller::checked_by_kernel(0, 0, 0);
        let with_atime = SetAttr { atime: Some(SetTime::At(fixed.atime)), ..kept };
        assert_eq!(plan(&server, &growing, &with_atime, false), FORBIDDEN);
        let touched = SetAttr { atime: now, mtime: Some(SetTime::At(growing.ctime)), ..kept };
        assert_eq!(plan(&server, &growing, &touched, false), Ok(()));
        let other = Some(SetTime::At(crate::Time { sec: 77, nsec: 0 }));
        assert_eq!(plan(&server, &growing, &SetAttr { mtime: other, ..touched }, false), FORBIDDEN);
        assert_eq!(plan(&server, &fixed, &touched, false), FORBIDDEN);
        assert_eq!(plan(&server, &fixed, &kept, false), FORBIDDEN);
        assert_eq!(plan(&Caller { from_cache: true, ..server.clone() }, &fixed, &kept, false), Ok(()));
        let changed = SetAttr { ctime: Some(fixed.ctime), ..SetAttr::default() };
        assert_eq!(plan(&Caller::user(1, 2), &growing, &changed, false), FORBIDDEN);
        assert_eq!(plan(&server, &growing, &kept, false), Ok(()), "times that a cache has kept");
        assert_eq!(plan(&Caller::root(), &growing, &kept, false), FORBIDDEN);
    }

    #[test]
    fn what_may_only_grow_keeps_its_bytes() {
        assert_eq!(keeps(b"amber", b"amber and more"), Ok(()));
        assert_eq!(keeps(b"am\0\0r", b"amber"), Ok(()));
        assert_eq!(keeps(b"amber", b"ambre"), FORBIDDEN);
        let (keep, punch) = (FallocateMode::KEEP_SIZE, FallocateMode::PUNCH_HOLE);
        assert_eq!(may_allocate(InodeFlags::APPEND, keep), Ok(()));
        assert_eq!(may_allocate(InodeFlags::APPEND, keep | punch), FORBIDDEN);
        assert_eq!(may_allocate(InodeFlags::IMMUTABLE, keep), FORBIDDEN);
        assert_eq!(may_copy_to(InodeFlags::APPEND), FORBIDDEN);
        assert_eq!(may_copy_to(InodeFlags::NODUMP), Ok(()));
    }
}
