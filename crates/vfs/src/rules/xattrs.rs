//! Who may read and write which extended attributes.

use super::permission::{READ, WRITE, is_owner, may_access};
use super::{S_ISGID, S_ISVTX, protection};
use crate::{Attr, Caller, Error, FileKind, Result, acl};

/// Longest name of an extended attribute, with its namespace, bytes.
pub const XATTR_NAME_MAX: usize = 255;
/// Longest value of an extended attribute, bytes. A volume may have a lower limit (`ENOSPC`).
pub const XATTR_VALUE_MAX: usize = 65_536;

/// Whether `caller` may read (or, with `write`, set or remove) the attribute `name` of the inode with `attr` and
/// the access ACL `acl` (Linux's `xattr_permission` and what the namespaces' handlers add).
///
/// | name | read | write |
/// |---|---|---|
/// | empty or over [`XATTR_NAME_MAX`] | `ERANGE` | `ERANGE` |
/// | any, of what is immutable or may only grow | | `EPERM` |
/// | `user.*`, not on a file or directory | `ENODATA` | `EPERM` |
/// | `user.*` on a sticky directory | permission to read | owner (`EPERM`), permission to write |
/// | `user.*` | permission to read (`EACCES`) | permission to write (`EACCES`) |
/// | `trusted.*` | superuser (`ENODATA`) | superuser (`EPERM`) |
/// | `security.*` | everybody | superuser (`EPERM`) |
/// | `system.posix_acl_*` on a symbolic link | `EOPNOTSUPP` | `EOPNOTSUPP` |
/// | `system.posix_acl_*` | everybody | owner (`EPERM`); go on with [`plan_acl`] |
/// | a namespace alone (`user.`) | `EINVAL` | `EINVAL` |
/// | any other | `EOPNOTSUPP` | `EOPNOTSUPP` |
pub fn xattr_permission(
    caller: &Caller,
    attr: &Attr,
    acl: Option<&[u8]>,
    name: &[u8],
    write: bool,
) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(Error::Range);
    }
    if write {
        protection::may_change(attr.flags)?;
    }
    if acl::is_acl(name) {
        return acl_permission(caller, attr, name, write);
    }
    if name.starts_with(b"trusted.") {
        if !caller.is_privileged() {
            return Err(if write { Error::NotPermitted } else { Error::NoAttribute });
        }
        return check_suffix(name);
    }
    if name.starts_with(b"security.") {
        if write && !caller.is_privileged() {
            return Err(Error::NotPermitted);
        }
        return check_suffix(name);
    }
    if name.starts_with(b"user.") {
        if !matches!(attr.kind(), FileKind::Regular | FileKind::Directory) {
            return Err(if write { Error::NotPermitted } else { Error::NoAttribute });
        }
        if write && attr.is_dir() && attr.mode & S_ISVTX != 0 && !is_owner(caller, attr) {
            return Err(Error::NotPermitted);
        }
        may_access(caller, attr, acl, if write { WRITE } else { READ })?;
        return check_suffix(name);
    }
    Err(Error::NotSupported)
}

fn acl_permission(caller: &Caller, attr: &Attr, name: &[u8], write: bool) -> Result<()> {
    if attr.kind() == FileKind::Symlink {
        return Err(Error::NotSupported);
    }
    // A default ACL belongs to a directory; `plan_acl` answers for other kinds before ownership matters.
    let misplaced = name == acl::DEFAULT && !attr.is_dir();
    if write && !misplaced && !is_owner(caller, attr) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

fn check_suffix(name: &[u8]) -> Result<()> {
    if name.ends_with(b".") && name.iter().filter(|&&b| b == b'.').count() == 1 {
        Err(Error::Invalid)
    } else {
        Ok(())
    }
}

/// Checks a value's length: [`Error::TooBig`] over [`XATTR_VALUE_MAX`]. Comes before [`xattr_permission`].
pub fn check_xattr_value(value: &[u8]) -> Result<()> {
    if value.len() > XATTR_VALUE_MAX { Err(Error::TooBig) } else { Ok(()) }
}

/// Whether `listxattr` shows `name` to `caller`: only the superuser sees `trusted.*` (also where the front end has
/// checked permissions, since the kernel leaves this filter to the file system).
pub fn is_listed(caller: &Caller, name: &[u8]) -> bool {
    caller.uid == 0 || !name.starts_with(b"trusted.")
}

/// What setting or removing an ACL changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclChange {
    /// The inode's mode after it.
    pub mode: u32,
    /// The value to store; `None` to store none and remove one that is there.
    pub store: Option<Vec<u8>>,
}

/// What setting the ACL `name` to `value` does (`None`, or a list without entries, removes it), after
/// [`xattr_permission`] allowed it. An access ACL changes the mode, and is not stored if it says no more than the
/// mode. Only directories have a default ACL ([`Error::AccessDenied`]; removing one that cannot be there
/// succeeds, as does removing one that is not). Linux ignores `XATTR_CREATE` and `XATTR_REPLACE` for ACLs.
pub fn plan_acl(caller: &Caller, attr: &Attr, name: &[u8], value: Option<&[u8]>) -> Result<AclChange> {
    let Some(raw) = value.filter(|raw| !acl::is_empty(raw)) else {
        return Ok(AclChange { mode: attr.mode, store: None });
    };
    if name == acl::DEFAULT {
        if !attr.is_dir() {
            return Err(Error::AccessDenied);
        }
        acl::check(raw)?;
        return Ok(AclChange { mode: attr.mode, store: Some(raw.to_vec()) });
    }
    let mut mode = (attr.mode & !0o777) | acl::mode_of(raw)?;
    if !caller.in_group(attr.gid) && !caller.is_privileged() {
        mode &= !S_ISGID;
    }
    let store = acl::equivalent_mode(raw)?.is_none().then(|| raw.to_vec());
    Ok(AclChange { mode, store })
}

#[cfg(test)]
mod tests {
    use super::super::sample::{dir, file, inode};
    use super::*;

    fn read(caller: &Caller, attr: &Attr, name: &[u8]) -> Result<()> {
        xattr_permission(caller, attr, None, name, false)
    }

    fn write(caller: &Caller, attr: &Attr, name: &[u8]) -> Result<()> {
        xattr_permission(caller, attr, None, name, true)
    }

    fn owner() -> Caller {
        Caller::user(1, 2)
    }

    fn stranger() -> Caller {
        Caller::user(5, 5)
    }

    #[test]
    fn names_have_a_known_namespace() {
        let root = Caller::root();
        assert_eq!(read(&root, &file(0), b""), Err(Error::Range));
        assert_eq!(read(&root, &file(0), &[b'u'; 256]), Err(Error::Range));
        assert_eq!(read(&root, &file(0), b"color"), Err(Error::NotSupported));
        assert_eq!(read(&root, &file(0), b"userx.a"), Err(Error::NotSupported));
        assert_eq!(write(&root, &file(0), b"system.other"), Err(Error::NotSupported));
        assert_eq!(write(&root, &file(0), b"user."), Err(Error::Invalid));
        assert_eq!(write(&root, &file(0), b"user.a."), Ok(()));
        let long = [b"user.".as_slice(), &[b'x'; 250]].concat();
        assert_eq!(write(&root, &file(0), &long), Ok(()));
    }

    #[test]
    fn user_attributes_follow_the_files_permissions() {
        assert_eq!(read(&stranger(), &file(0o004), b"user.a"), Ok(()));
        assert_eq!(write(&stranger(), &file(0o004), b"user.a"), Err(Error::AccessDenied));
        assert_eq!(read(&stranger(), &file(0o660), b"user.a"), Err(Error::AccessDenied));
        assert_eq!(write(&owner(), &file(0o200), b"user.a"), Ok(()));
    }

    #[test]
    fn user_attributes_live_on_files_and_directories() {
        for kind in [FileKind::Symlink, FileKind::Fifo, FileKind::Socket, FileKind::CharDevice] {
            assert_eq!(write(&Caller::root(), &inode(kind, 0o777), b"user.a"), Err(Error::NotPermitted));
            assert_eq!(read(&Caller::root(), &inode(kind, 0o777), b"user.a"), Err(Error::NoAttribute));
        }
        assert_eq!(write(&stranger(), &dir(0o1777), b"user.a"), Err(Error::NotPermitted), "sticky");
        assert_eq!(write(&owner(), &dir(0o1777), b"user.a"), Ok(()));
        assert_eq!(write(&stranger(), &dir(0o777), b"user.a"), Ok(()));
    }

    #[test]
    fn trusted_and_security_attributes_are_the_superusers() {
        assert_eq!(read(&owner(), &file(0o777), b"trusted.a"), Err(Error::NoAttribute));
        assert_eq!(write(&owner(), &file(0o777), b"trusted.a"), Err(Error::NotPermitted));
        assert_eq!(write(&Caller::root(), &inode(FileKind::Symlink, 0o777), b"trusted.a"), Ok(()));
        assert_eq!(read(&stranger(), &file(0), b"security.a"), Ok(()));
        assert_eq!(write(&owner(), &file(0o777), b"security.a"), Err(Error::NotPermitted));
        assert!(!is_listed(&owner(), b"trusted.a") && is_listed(&owner(), b"user.a"));
        assert!(is_listed(&Caller::root(), b"trusted.a"));
        assert!(!is_listed(&Caller::checked_by_kernel(5, 5, 0), b"trusted.a"));
    }

    #[test]
    fn acls_are_the_owners_to_write() {
        assert_eq!(read(&stranger(), &file(0), acl::ACCESS), Ok(()));
        assert_eq!(write(&stranger(), &file(0o777), acl::ACCESS), Err(Error::NotPermitted));
        assert_eq!(write(&owner(), &file(0), acl::ACCESS), Ok(()));
        let link = inode(FileKind::Symlink, 0o777);
        assert_eq!(write(&Caller::root(), &link, acl::ACCESS), Err(Error::NotSupported));
    }

    const MINIMAL: [u8; 28] = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255,
        255, 255,
    ];

    #[test]
    fn an_access_acl_is_stored_if_it_says_more_than_the_mode() {
        let change = plan_acl(&owner(), &file(0o777), acl::ACCESS, Some(&MINIMAL)).unwrap();
        assert_eq!(change, AclChange { mode: 0o100_640, store: None });
        let mut masked = MINIMAL[..20].to_vec();
        masked.extend([16, 0, 6, 0, 255, 255, 255, 255]);
        masked.extend(&MINIMAL[20..]);
        let change = plan_acl(&owner(), &file(0o777), acl::ACCESS, Some(&masked)).unwrap();
        assert_eq!(change, AclChange { mode: 0o100_660, store: Some(masked.clone()) });
        let change = plan_acl(&Caller::user(1, 9), &file(0o2777), acl::ACCESS, Some(&masked)).unwrap();
        assert_eq!(change.mode, 0o100_660, "set-group-ID needs membership");
        let change = plan_acl(&owner(), &file(0o2660), acl::ACCESS, None).unwrap();
        assert_eq!(change, AclChange { mode: 0o102_660, store: None });
        let bad = plan_acl(&owner(), &file(0o777), acl::ACCESS, Some(&MINIMAL[..12]));
        assert_eq!(bad, Err(Error::Invalid));
    }

    #[test]
    fn only_directories_have_a_default_acl() {
        let change = plan_acl(&owner(), &dir(0o777), acl::DEFAULT, Some(&MINIMAL)).unwrap();
        assert_eq!(change, AclChange { mode: 0o040_777, store: Some(MINIMAL.to_vec()) });
        assert_eq!(write(&stranger(), &file(0), acl::DEFAULT), Ok(()));
        let denied = plan_acl(&stranger(), &file(0), acl::DEFAULT, Some(&MINIMAL));
        assert_eq!(denied, Err(Error::AccessDenied));
        assert_eq!(plan_acl(&owner(), &file(0), acl::DEFAULT, None).map(|c| c.store), Ok(None));
    }

    #[test]
    fn values_are_bounded() {
        assert_eq!(check_xattr_value(&vec![0; XATTR_VALUE_MAX]), Ok(()));
        assert_eq!(check_xattr_value(&vec![0; XATTR_VALUE_MAX + 1]), Err(Error::TooBig));
    }
}
