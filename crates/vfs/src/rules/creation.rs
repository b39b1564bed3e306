//! What a new inode gets from its directory.

use super::{S_ISGID, S_ISUID, S_IXGRP};
use crate::{Attr, Caller, Error, FileKind, Result};

/// The mode and the group of an inode that `caller` makes in `dir`. `mode` has the kind and the permissions asked
/// for; what returns has them before the umask or the default ACL, which [`crate::acl::inherit`] applies.
///
/// In a set-group-ID directory the group is the directory's and a directory inherits the bit; a file loses the
/// bit if its group may execute it and the caller is no member (Linux's `mode_strip_sgid`). A directory is never
/// born with set-user-ID or with a set-group-ID of its own.
pub fn new_inode(caller: &Caller, dir: &Attr, mode: u32) -> (u32, u32) {
    let inherits = dir.mode & S_ISGID != 0;
    let gid = if inherits { dir.gid } else { caller.gid };
    if FileKind::from_mode(mode) == Some(FileKind::Directory) {
        let mode = mode & !(S_ISUID | S_ISGID);
        return (if inherits { mode | S_ISGID } else { mode }, gid);
    }
    let executable = mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
    if inherits && executable && !caller.in_group(dir.gid) && !caller.is_privileged() {
        return (mode & !S_ISGID, gid);
    }
    (mode, gid)
}

/// The mode, with its kind, and the device number that `mknod` makes: no kind means a regular file, and only
/// devices have a number. A directory is [`Error::NotPermitted`], a symbolic link [`Error::Invalid`]; a device
/// other than the character device 0 (a whiteout) is the superuser's to make ([`Error::NotPermitted`]).
pub fn may_mknod(caller: &Caller, mode: u32, rdev: u32) -> Result<(u32, u32)> {
    let kind = match mode & 0o170_000 {
        0 => FileKind::Regular,
        _ => FileKind::from_mode(mode).ok_or(Error::Invalid)?,
    };
    let mode = kind.mode_bits() | (mode & 0o7777);
    match kind {
        FileKind::Regular | FileKind::Fifo | FileKind::Socket => Ok((mode, 0)),
        FileKind::CharDevice if rdev == 0 => Ok((mode, 0)),
        FileKind::CharDevice | FileKind::BlockDevice if caller.is_privileged() => Ok((mode, rdev)),
        FileKind::CharDevice | FileKind::BlockDevice | FileKind::Directory => Err(Error::NotPermitted),
        FileKind::Symlink => Err(Error::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::dir;
    use super::*;

    #[test]
    fn devices_are_the_superusers_to_make() {
        let (root, user) = (Caller::root(), Caller::user(5, 5));
        assert_eq!(may_mknod(&user, 0o644, 7), Ok((0o100_644, 0)));
        assert_eq!(may_mknod(&user, 0o010_644, 7), Ok((0o010_644, 0)));
        assert_eq!(may_mknod(&root, 0o020_644, 7), Ok((0o020_644, 7)));
        assert_eq!(may_mknod(&user, 0o020_644, 7), Err(Error::NotPermitted));
        assert_eq!(may_mknod(&user, 0o060_644, 0), Err(Error::NotPermitted));
        assert_eq!(may_mknod(&user, 0o020_000, 0), Ok((0o020_000, 0)), "a whiteout");
        assert_eq!(may_mknod(&root, 0o040_755, 0), Err(Error::NotPermitted));
        assert_eq!(may_mknod(&root, 0o120_777, 0), Err(Error::Invalid));
        assert_eq!(may_mknod(&root, 0o170_000, 0), Err(Error::Invalid));
    }

    #[test]
    fn the_group_is_the_callers() {
        assert_eq!(new_inode(&Caller::user(5, 6), &dir(0o777), 0o100_644), (0o100_644, 6));
        assert_eq!(new_inode(&Caller::user(5, 6), &dir(0o777), 0o102_755), (0o102_755, 6));
        assert_eq!(new_inode(&Caller::user(5, 6), &dir(0o777), 0o047_755), (0o041_755, 6));
    }

    #[test]
    fn in_a_setgid_directory_it_is_the_directorys() {
        let shared = dir(0o2777);
        let stranger = Caller::user(5, 6);
        assert_eq!(new_inode(&stranger, &shared, 0o100_644), (0o100_644, 2));
        assert_eq!(new_inode(&stranger, &shared, 0o040_755), (0o042_755, 2));
        assert_eq!(new_inode(&stranger, &shared, 0o102_755), (0o100_755, 2));
        assert_eq!(new_inode(&stranger, &shared, 0o102_745), (0o102_745, 2), "group may not execute");
        assert_eq!(new_inode(&Caller::user(5, 2), &shared, 0o102_755), (0o102_755, 2), "a member");
        assert_eq!(new_inode(&Caller::root(), &shared, 0o102_755), (0o102_755, 2));
    }
}
