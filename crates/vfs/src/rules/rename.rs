//! Who may rename what to where.

use super::permission::{WRITE, may_access, may_create, may_delete};
use crate::{Attr, Caller, Error, RenameFlags, Result};

/// One inode that a rename concerns, with its access ACL.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Its attributes.
    pub attr: &'a Attr,
    /// Its `system.posix_acl_access` value, if any.
    pub acl: Option<&'a [u8]>,
}

/// Whether `caller` may rename `source` in `dir` to a name in `new_dir` that is free or belongs to `target`, in the
/// order of Linux's `vfs_rename`: write permission and sticky bit of `dir`, then of `new_dir`; then a directory
/// replaces only a directory ([`Error::NotDirectory`]) and nothing else replaces one ([`Error::IsDirectory`]); then
/// a directory that changes its parent must be writable itself, since its `..` changes.
///
/// Before it, a volume has checked names, existence and ancestry, and has returned success if `source` and `target`
/// are one inode; after it, it checks that a replaced directory is empty.
pub fn may_rename(
    caller: &Caller,
    dir: Side<'_>,
    source: Side<'_>,
    new_dir: Side<'_>,
    target: Option<Side<'_>>,
    flags: RenameFlags,
) -> Result<()> {
    let exchange = flags.contains(RenameFlags::EXCHANGE);
    may_delete(caller, dir.attr, dir.acl, source.attr)?;
    match target {
        None => may_create(caller, new_dir.attr, new_dir.acl)?,
        Some(target) => {
            may_delete(caller, new_dir.attr, new_dir.acl, target.attr)?;
            match (source.attr.is_dir(), target.attr.is_dir()) {
                (true, false) if !exchange => return Err(Error::NotDirectory),
                (false, true) if !exchange => return Err(Error::IsDirectory),
                _ => {}
            }
        }
    }
    if dir.attr.ino != new_dir.attr.ino {
        let moved = [Some(source), target.filter(|_| exchange)];
        for side in moved.into_iter().flatten().filter(|side| side.attr.is_dir()) {
            may_access(caller, side.attr, side.acl, WRITE)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn side(attr: &Attr) -> Side<'_> {
        Side { attr, acl: None }
    }

    fn dir(ino: u64, perm: u32) -> Attr {
        Attr { ino, ..sample::dir(perm) }
    }

    fn ask(from: &Attr, source: &Attr, to: &Attr, target: Option<&Attr>, flags: RenameFlags) -> Result<()> {
        let caller = Caller::user(5, 5);
        may_rename(&caller, side(from), side(source), side(to), target.map(side), flags)
    }

    #[test]
    fn both_directories_must_be_writable() {
        let none = RenameFlags::empty();
        let (open, closed, file) = (dir(10, 0o777), dir(11, 0o775), sample::file(0));
        assert_eq!(ask(&open, &file, &open, None, none), Ok(()));
        assert_eq!(ask(&closed, &file, &open, None, none), Err(Error::AccessDenied));
        assert_eq!(ask(&open, &file, &closed, None, none), Err(Error::AccessDenied));
        let sticky = dir(12, 0o1777);
        assert_eq!(ask(&sticky, &file, &open, None, none), Err(Error::NotPermitted));
        assert_eq!(ask(&open, &file, &sticky, None, none), Ok(()));
        assert_eq!(ask(&open, &file, &sticky, Some(&file), none), Err(Error::NotPermitted));
    }

    #[test]
    fn kinds_must_match_unless_exchanged() {
        let none = RenameFlags::empty();
        let (open, file, sub) = (dir(10, 0o777), sample::file(0), dir(20, 0o755));
        assert_eq!(ask(&open, &file, &open, Some(&sub), none), Err(Error::IsDirectory));
        assert_eq!(ask(&open, &sub, &open, Some(&file), none), Err(Error::NotDirectory));
        assert_eq!(ask(&open, &sub, &open, Some(&file), RenameFlags::EXCHANGE), Ok(()));
        assert_eq!(ask(&open, &sub, &open, Some(&dir(21, 0)), none), Ok(()));
    }

    #[test]
    fn a_directory_that_moves_must_be_writable() {
        let none = RenameFlags::empty();
        let (here, there, sub, file) = (dir(10, 0o777), dir(11, 0o777), dir(20, 0o755), sample::file(0));
        assert_eq!(ask(&here, &sub, &here, None, none), Ok(()), "in place it need not");
        assert_eq!(ask(&here, &sub, &there, None, none), Err(Error::AccessDenied));
        assert_eq!(ask(&here, &dir(20, 0o757), &there, None, none), Ok(()));
        let swap = RenameFlags::EXCHANGE;
        assert_eq!(ask(&here, &file, &there, Some(&sub), swap), Err(Error::AccessDenied));
        assert_eq!(ask(&here, &dir(20, 0o757), &there, Some(&sub), none), Ok(()), "a replaced one need not");
    }
}
