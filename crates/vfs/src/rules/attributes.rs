//! Who may change which attributes, and what changes with them.

use super::permission::{WRITE, is_owner, may_access};
use super::{S_ISGID, S_ISUID, S_IXGRP, protection};
use crate::{Attr, Caller, Error, FileKind, InodeFlags, Result, SetAttr, SetTime, Time};

/// An inode's attributes after a `setattr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Kind and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The new length, if one was asked for (it may be the old one).
    pub size: Option<u64>,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of contents or attributes.
    pub ctime: Time,
}

/// What the inode's attributes become if `caller` sets `set` (Linux's `notify_change` and `setattr_prepare`).
/// `by_handle`: the size changes through a handle opened for writing. `acl` is the inode's access ACL, which the
/// volume then changes with [`crate::acl::with_mode`] if `set.mode` is given.
///
/// - Owner: only the superuser changes it; the owner may set it to what it is. Group: the owner may set it to one
///   of the caller's ([`Error::NotPermitted`]). Either change of a file that is not a directory clears
///   set-user-ID, and set-group-ID if the group may execute or the caller is no member, also for the superuser,
///   unless `set.mode` says otherwise.
/// - Mode: by the owner; not of a symbolic link ([`Error::NotSupported`]). Set-group-ID is dropped if the caller is
///   no member of the group.
/// - Times: both to now needs ownership or permission to write ([`Error::AccessDenied`]); anything else
///   ownership ([`Error::NotPermitted`]).
/// - Size: of a regular file ([`Error::IsDirectory`], [`Error::Invalid`]), with permission to write unless
///   `by_handle`; then as [`mode_after_write`]. Sets mtime and ctime, except that setting the present size without a
///   handle changes nothing (`truncate(2)`), and a caller that keeps the times gives them. Whether the size is too large is the
///   volume's to say.
///
/// Any other change sets ctime to `now`, unless `set.ctime` is given. For a trusted caller nothing is denied and
/// given modes stand. Nobody changes what is immutable, and of what may only grow nothing but the times, to now
/// ([`Error::NotPermitted`]); but what a cache has kept of it is set.
pub fn plan_setattr(
    caller: &Caller,
    attr: &Attr,
    acl: Option<&[u8]>,
    set: &SetAttr,
    by_handle: bool,
    now: Time,
) -> Result<Changes> {
    check_arguments(attr, set)?;
    protection::may_set(caller, attr.flags, set)?;
    check_permission(caller, attr, acl, set, by_handle)?;

    let uid = set.uid.unwrap_or(attr.uid);
    let gid = set.gid.unwrap_or(attr.gid);
    let resizes = !caller.keeps_times && set.size.is_some_and(|size| by_handle || size != attr.size);
    let changes = set.mode.is_some()
        || set.uid.is_some()
        || set.gid.is_some()
        || set.atime.is_some()
        || set.mtime.is_some()
        || resizes;
    Ok(Changes {
        mode: new_mode(caller, attr, set, gid),
        uid,
        gid,
        size: set.size,
        atime: new_time(set.atime, attr.atime, now),
        mtime: new_time(set.mtime, if resizes { now } else { attr.mtime }, now),
        ctime: set.ctime.unwrap_or(if changes { now } else { attr.ctime }),
    })
}

fn check_arguments(attr: &Attr, set: &SetAttr) -> Result<()> {
    if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
        return Err(Error::Invalid);
    }
    let given = |time| if let Some(SetTime::At(at)) = time { Some(at) } else { None };
    let times = [given(set.atime), given(set.mtime), set.ctime];
    if times.into_iter().flatten().any(|at: Time| at.nsec >= 1_000_000_000) {
        return Err(Error::Invalid);
    }
    if set.size.is_some() {
        match attr.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid),
        }
    }
    if set.mode.is_some() && attr.kind() == FileKind::Symlink {
        return Err(Error::NotSupported);
    }
    Ok(())
}

fn check_permission(
    caller: &Caller,
    attr: &Attr,
    acl: Option<&[u8]>,
    set: &SetAttr,
    by_handle: bool,
) -> Result<()> {
    if caller.trusted {
        return Ok(());
    }
    if set.size.is_some() && !by_handle {
        may_access(caller, attr, acl, WRITE)?;
    }
    let touches = set.atime == Some(SetTime::Now) && set.mtime == Some(SetTime::Now);
    if touches && !is_owner(caller, attr) {
        may_access(caller, attr, acl, WRITE)?;
    }
    if caller.uid == 0 {
        return Ok(());
    }
    let owner = caller.uid == attr.uid;
    let sets_times = !touches && (set.atime.is_some() || set.mtime.is_some());
    let permitted = set.uid.is_none_or(|uid| owner && uid == attr.uid)
        && set.gid.is_none_or(|gid| owner && (gid == attr.gid || caller.in_group(gid)))
        && (owner || set.mode.is_none() && !sets_times && set.ctime.is_none());
    if permitted { Ok(()) } else { Err(Error::NotPermitted) }
}

fn new_mode(caller: &Caller, attr: &Attr, set: &SetAttr, gid: u32) -> u32 {
    if let Some(mode) = set.mode {
        let mode = (attr.mode & !0o7777) | (mode & 0o7777);
        let member = caller.in_group(gid) || caller.is_privileged();
        return if member { mode } else { mode & !S_ISGID };
    }
    let mut mode = attr.mode;
    if (set.uid.is_some() || set.gid.is_some()) && !attr.is_dir() {
        mode = without_set_ids(mode, caller.in_group(attr.gid) || caller.is_privileged());
    }
    if set.size.is_some() { mode_after_write(caller, mode, gid) } else { mode }
}

fn new_time(set: Option<SetTime>, old: Time, now: Time) -> Time {
    match set {
        None => old,
        Some(SetTime::Now) => now,
        Some(SetTime::At(at)) => at,
    }
}

/// The mode of a regular file of group `gid` after `caller` changed its contents (Linux's `file_remove_privs`): set-user-ID is
/// gone, and so is set-group-ID if the group may execute or the caller is no member. A privileged caller changes nothing.
pub fn mode_after_write(caller: &Caller, mode: u32, gid: u32) -> u32 {
    if caller.is_privileged() || FileKind::from_mode(mode) != Some(FileKind::Regular) {
        return mode;
    }
    without_set_ids(mode, caller.in_group(gid))
}

/// `mode` without set-user-ID, and without set-group-ID if the group may execute or who changes it is no `member`.
fn without_set_ids(mode: u32, member: bool) -> u32 {
    if mode & S_IXGRP != 0 || !member { mode & !(S_ISUID | S_ISGID) } else { mode & !S_ISUID }
}

/// Whether `caller` may make an inode's flags `wanted`: who owns it, the two that protect it who is privileged, and nothing else
/// as long as it stays immutable.
pub fn may_set_flags(caller: &Caller, attr: &Attr, wanted: InodeFlags) -> Result<()> {
    let changed = wanted ^ attr.flags;
    let is_allowed = is_owner(caller, attr)
        && (caller.is_privileged() || !changed.intersects(InodeFlags::PROTECTION))
        && (changed.is_empty() || !(attr.flags & wanted).contains(InodeFlags::IMMUTABLE));
    if is_allowed { Ok(()) } else { Err(Error::NotPermitted) }
}

/// The same of a volume that keeps what is [`COMMON`](InodeFlags::COMMON), and nothing else ([`Error::NotSupported`]). What is neither file
/// nor directory cannot be protected.
pub fn may_set_common_flags(caller: &Caller, attr: &Attr, wanted: InodeFlags) -> Result<()> {
    may_set_flags(caller, attr, wanted)?;
    let kept = match attr.kind() {
        FileKind::Regular | FileKind::Directory => InodeFlags::COMMON,
        _ => InodeFlags::INHERITED,
    };
    if kept.contains(wanted) { Ok(()) } else { Err(Error::NotSupported) }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{dir, file, inode};
    use super::*;

    const NOW: Time = Time { sec: 100, nsec: 5 };
    const THEN: Time = Time { sec: 50, nsec: 0 };

    fn plan(caller: &Caller, attr: &Attr, set: SetAttr) -> Result<Changes> {
        plan_setattr(caller, attr, None, &set, false, NOW)
    }

    fn owner() -> Caller {
        Caller::user(1, 2)
    }

    fn stranger() -> Caller {
        Caller::user(5, 5)
    }

    fn mode(mode: u32) -> SetAttr {
        SetAttr { mode: Some(mode), ..SetAttr::default() }
    }

    fn own(uid: Option<u32>, gid: Option<u32>) -> SetAttr {
        SetAttr { uid, gid, ..SetAttr::default() }
    }

    fn size(size: u64) -> SetAttr {
        SetAttr { size: Some(size), ..SetAttr::default() }
    }

    fn times(atime: Option<SetTime>, mtime: Option<SetTime>) -> SetAttr {
        SetAttr { atime, mtime, ..SetAttr::default() }
    }

    #[test]
    fn only_owners_change_the_mode() {
        let changes = plan(&owner(), &file(0o644), mode(0o4755)).unwrap();
        assert_eq!((changes.mode, changes.ctime, changes.mtime), (0o104_755, NOW, file(0).mtime));
        assert_eq!(plan(&Caller::root(), &file(0o644), mode(0o600)).unwrap().mode, 0o100_600);
        assert_eq!(plan(&stranger(), &file(0o666), mode(0o644)), Err(Error::NotPermitted));
        let link = inode(FileKind::Symlink, 0o777);
        assert_eq!(plan(&owner(), &link, mode(0o644)), Err(Error::NotSupported));
    }

    #[test]
    fn setgid_needs_membership() {
        let outside = Caller::user(1, 9);
        assert_eq!(plan(&outside, &file(0o644), mode(0o2755)).unwrap().mode, 0o100_755);
        assert_eq!(plan(&owner(), &file(0o644), mode(0o2755)).unwrap().mode, 0o102_755);
        assert_eq!(plan(&Caller::root(), &dir(0o755), mode(0o2755)).unwrap().mode, 0o042_755);
        assert_eq!(plan(&outside, &dir(0o755), mode(0o2755)).unwrap().mode, 0o040_755);
    }

    #[test]
    fn only_root_gives_files_away() {
        assert_eq!(plan(&owner(), &file(0o644), own(Some(5), None)), Err(Error::NotPermitted));
        assert_eq!(plan(&owner(), &file(0o644), own(Some(1), None)).unwrap().uid, 1);
        assert_eq!(plan(&stranger(), &file(0o644), own(Some(1), None)), Err(Error::NotPermitted));
        let given = plan(&Caller::root(), &file(0o644), own(Some(8), Some(9))).unwrap();
        assert_eq!((given.uid, given.gid, given.ctime), (8, 9, NOW));
        assert_eq!(plan(&Caller::root(), &file(0), own(Some(u32::MAX), None)), Err(Error::Invalid));
    }

    #[test]
    fn owners_choose_among_their_groups() {
        let mut member = owner();
        member.groups = [7].into();
        assert_eq!(plan(&member, &file(0o644), own(None, Some(7))).unwrap().gid, 7);
        assert_eq!(plan(&member, &file(0o644), own(None, Some(2))).unwrap().gid, 2);
        assert_eq!(plan(&member, &file(0o644), own(None, Some(8))), Err(Error::NotPermitted));
        let mut other = stranger();
        other.groups = [2].into();
        assert_eq!(plan(&other, &file(0o644), own(None, Some(2))), Err(Error::NotPermitted));
    }

    #[test]
    fn chown_clears_set_ids_of_all_but_directories() {
        let to = own(Some(1), Some(2));
        assert_eq!(plan(&owner(), &file(0o6755), to).unwrap().mode, 0o100_755);
        assert_eq!(plan(&Caller::root(), &file(0o6755), to).unwrap().mode, 0o100_755);
        assert_eq!(plan(&owner(), &file(0o6745), to).unwrap().mode, 0o102_745, "not executable by the group");
        assert_eq!(plan(&Caller::user(1, 9), &file(0o6745), own(Some(1), None)).unwrap().mode, 0o100_745);
        assert_eq!(plan(&Caller::root(), &dir(0o6755), to).unwrap().mode, 0o046_755);
        let kept = SetAttr { mode: Some(0o6755), ..to };
        assert_eq!(plan(&Caller::root(), &file(0o644), kept).unwrap().mode, 0o106_755, "a given mode stands");
    }

    #[test]
    fn touching_needs_write_permission_setting_needs_ownership() {
        let now = Some(SetTime::Now);
        let at = Some(SetTime::At(THEN));
        let touched = plan(&stranger(), &file(0o002), times(now, now)).unwrap();
        assert_eq!((touched.atime, touched.mtime, touched.ctime), (NOW, NOW, NOW));
        assert_eq!(plan(&stranger(), &file(0o664), times(now, now)), Err(Error::AccessDenied));
        assert_eq!(plan(&owner(), &file(0), times(now, now)).map(|c| c.mtime), Ok(NOW));
        assert_eq!(plan(&stranger(), &file(0o666), times(at, at)), Err(Error::NotPermitted));
        assert_eq!(plan(&stranger(), &file(0o666), times(now, None)), Err(Error::NotPermitted));
        let set = plan(&owner(), &file(0), times(at, None)).unwrap();
        assert_eq!((set.atime, set.mtime, set.ctime), (THEN, file(0).mtime, NOW));
        let bad = Some(SetTime::At(Time { sec: 0, nsec: 1_000_000_000 }));
        assert_eq!(plan(&owner(), &file(0), times(bad, None)), Err(Error::Invalid));
    }

    #[test]
    fn truncation_needs_a_writable_regular_file() {
        let cut = plan(&stranger(), &file(0o002), size(3)).unwrap();
        assert_eq!((cut.size, cut.mtime, cut.ctime, cut.atime), (Some(3), NOW, NOW, file(0).atime));
        assert_eq!(plan(&stranger(), &file(0o664), size(3)), Err(Error::AccessDenied));
        assert_eq!(plan(&owner(), &file(0o400), size(3)), Err(Error::AccessDenied));
        assert_eq!(plan(&owner(), &dir(0o700), size(3)), Err(Error::IsDirectory));
        assert_eq!(plan(&owner(), &inode(FileKind::Fifo, 0o600), size(3)), Err(Error::Invalid));
        let by_handle = plan_setattr(&stranger(), &file(0), None, &size(3), true, NOW);
        assert_eq!(by_handle.unwrap().size, Some(3));
    }

    #[test]
    fn the_present_size_changes_no_time_without_a_handle() {
        let same = plan(&owner(), &file(0o600), size(10)).unwrap();
        assert_eq!((same.mtime, same.ctime), (file(0).mtime, file(0).ctime));
        let same = plan_setattr(&owner(), &file(0o600), None, &size(10), true, NOW).unwrap();
        assert_eq!((same.mtime, same.ctime), (NOW, NOW));
    }

    #[test]
    fn who_keeps_the_times_gives_those_of_a_new_size() {
        let kernel = Caller::checked_by_kernel(0, 0, 0).keeping_times();
        let cut = |set| plan_setattr(&kernel, &file(0o600), None, &set, true, NOW).unwrap();
        let none = cut(size(3));
        assert_eq!((none.size, none.mtime, none.ctime), (Some(3), file(0).mtime, file(0).ctime));
        let given = cut(SetAttr { mtime: Some(SetTime::At(THEN)), ctime: Some(THEN), ..size(3) });
        assert_eq!((given.mtime, given.ctime), (THEN, THEN));
        assert_eq!(cut(mode(0o640)).ctime, NOW, "of anything else the volume keeps the times");
    }

    #[test]
    fn truncation_clears_set_ids_of_the_unprivileged() {
        assert_eq!(plan(&owner(), &file(0o6755), size(0)).unwrap().mode, 0o100_755);
        assert_eq!(plan(&Caller::root(), &file(0o6755), size(0)).unwrap().mode, 0o106_755);
    }

    #[test]
    fn trusted_callers_are_taken_at_their_word() {
        let kernel = Caller::checked_by_kernel(5, 5, 0);
        let all = SetAttr {
            mode: Some(0o6755),
            uid: Some(9),
            gid: Some(9),
            ..times(None, Some(SetTime::At(THEN)))
        };
        let changes = plan(&kernel, &file(0), all).unwrap();
        assert_eq!((changes.mode, changes.uid, changes.gid, changes.mtime), (0o106_755, 9, 9, THEN));
        assert_eq!(plan(&kernel, &file(0o4000), size(0)).unwrap().mode, 0o104_000);
        let ctime = SetAttr { ctime: Some(THEN), ..SetAttr::default() };
        assert_eq!(plan(&kernel, &file(0), ctime).unwrap().ctime, THEN);
        assert_eq!(plan(&stranger(), &file(0o777), ctime), Err(Error::NotPermitted));
    }

    #[test]
    fn an_empty_change_changes_nothing() {
        let none = plan(&stranger(), &file(0), SetAttr::default()).unwrap();
        assert_eq!((none.mode, none.ctime, none.size), (0o100_000, file(0).ctime, None));
    }

    #[test]
    fn writing_drops_privileges() {
        let (own, others) = (owner().gid, owner().gid + 1);
        assert_eq!(mode_after_write(&owner(), 0o106_755, own), 0o100_755);
        assert_eq!(mode_after_write(&owner(), 0o106_745, own), 0o102_745);
        assert_eq!(mode_after_write(&owner(), 0o106_745, others), 0o100_745);
        let member = Caller { groups: [others].into(), ..owner() };
        assert_eq!(mode_after_write(&member, 0o106_745, others), 0o102_745);
        assert_eq!(mode_after_write(&Caller::root(), 0o106_755, others), 0o106_755);
        assert_eq!(mode_after_write(&Caller::checked_by_kernel(5, 5, 0), 0o106_755, others), 0o106_755);
    }

    #[test]
    fn flags_are_the_owners_and_protection_the_superusers() {
        let forbidden = Err(Error::NotPermitted);
        let with = |attr: Attr, flags| Attr { flags, ..attr };
        let (owner, other, root) = (Caller::user(1, 2), Caller::user(5, 5), Caller::root());
        let (none, nodump, fixed) = (InodeFlags::empty(), InodeFlags::NODUMP, InodeFlags::IMMUTABLE);
        assert_eq!(may_set_flags(&owner, &file(0), nodump), Ok(()));
        assert_eq!(may_set_flags(&other, &file(0o777), nodump), forbidden);
        assert_eq!(may_set_flags(&owner, &file(0), fixed), forbidden);
        assert_eq!(may_set_flags(&root, &file(0), fixed), Ok(()));
        assert_eq!(may_set_flags(&owner, &with(file(0), fixed), none), forbidden);
        assert_eq!(may_set_flags(&root, &with(file(0), fixed), fixed | nodump), forbidden);
        assert_eq!(may_set_flags(&root, &with(file(0), fixed), nodump), Ok(()));
        let unknown = Err(Error::NotSupported);
        assert_eq!(may_set_common_flags(&root, &file(0), InodeFlags::from_bits_retain(8)), unknown);
        assert_eq!(may_set_common_flags(&root, &file(0), InodeFlags::COMMON), Ok(()));
        let link = inode(FileKind::Symlink, 0o777);
        assert_eq!(may_set_common_flags(&root, &link, fixed), unknown);
        assert_eq!(may_set_common_flags(&owner, &link, nodump), Ok(()));
    }
}
