//! What POSIX and Linux let whom do: the policy every volume shares.
//!
//! Pure functions on [`crate::Attr`] and [`crate::Caller`], without I/O. They follow `fs/namei.c`, `fs/attr.c`,
//! `fs/inode.c` and `fs/xattr.c` of Linux, named where a rule comes from. A trusted caller, whom a front end has
//! checked, is denied nothing but what chattr(1) forbids to all.
//!
//! The order in which Linux finds faults, which a volume keeps:
//!
//! 1. the directory: gone (`ESTALE`, or `ENOENT` for creation in a removed directory), not a directory (`ENOTDIR`);
//! 2. search permission on it (`EACCES`);
//! 3. the name: missing (`ENOENT`), or there when it must not be (`EEXIST`);
//! 4. write permission on the directory (`EACCES`), then the sticky bit (`EPERM`);
//! 5. the kind of the file found (`EISDIR`, `ENOTDIR`, `EPERM` for a link to a directory);
//! 6. what only the volume knows (`ENOTEMPTY`, `EMLINK`, `ENOSPC`).

mod attributes;
mod creation;
mod names;
mod permission;
mod protection;
mod rename;
mod xattrs;

pub use attributes::{Changes, may_set_common_flags, may_set_flags, mode_after_write, plan_setattr};
pub use creation::{may_mknod, new_inode};
pub use names::{check_name, check_new_name, check_rename_names, check_rmdir_name, check_unlink_name};
pub use permission::{
    EXECUTE, READ, WRITE, can_open, is_owner, may_access, may_create, may_delete, may_link, may_open,
    may_search,
};
pub use protection::{keeps, may_allocate, may_copy_to, may_write};
pub use rename::{Side, may_rename};
pub use xattrs::{
    AclChange, XATTR_NAME_MAX, XATTR_VALUE_MAX, check_xattr_value, is_listed, plan_acl, xattr_permission,
};

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_ISVTX: u32 = 0o1000;
const S_IXGRP: u32 = 0o010;

#[cfg(test)]
mod sample {
    use crate::{Attr, FileKind, InodeFlags, Time};

    /// An inode of `kind` owned by user 1 and group 2.
    pub(super) fn inode(kind: FileKind, perm: u32) -> Attr {
        let t = Time { sec: 1, nsec: 0 };
        Attr {
            ino: 2,
            generation: 0,
            mode: kind.mode_bits() | perm,
            nlink: 1,
            uid: 1,
            gid: 2,
            rdev: 0,
            size: 10,
            blocks: 8,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            flags: InodeFlags::empty(),
        }
    }

    pub(super) fn file(perm: u32) -> Attr {
        inode(FileKind::Regular, perm)
    }

    pub(super) fn dir(perm: u32) -> Attr {
        inode(FileKind::Directory, perm)
    }
}
