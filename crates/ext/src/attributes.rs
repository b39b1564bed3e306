//! Attributes, extended attributes and ACLs.

use std::sync::Arc;

use vfs::{
    Attr, Caller, Error, Handle, Ino, InodeFlags, OpenFlags, Result, SetAttr, Time, XattrMode, acl, rules,
};

use crate::core::Core;
use crate::core::inode::{self, Inode};
use crate::files::File;
use crate::namespace::{access_acl, stored_acl, visible};
use crate::volume::Volume;
use crate::xattr;

/// Part of an operation: `caller` changes attributes of `inode`, which now are `attr`, as [`rules::plan_setattr`] has it. The caller sees to
/// the length, and writes the inode.
fn change(
    core: &Core,
    caller: &Caller,
    inode: &mut Inode,
    attr: &Attr,
    set: &SetAttr,
    by_handle: bool,
) -> Result<()> {
    let access = stored_acl(core, inode, acl::ACCESS)?;
    let changes = rules::plan_setattr(caller, attr, access.as_deref(), set, by_handle, Time::now())?;
    if let (Some(_), Some(list)) = (set.mode, access) {
        xattr::set(core, inode, acl::ACCESS, Some(&acl::with_mode(&list, changes.mode)?))?;
    }
    (inode.mode, inode.uid, inode.gid) = (changes.mode, changes.uid, changes.gid);
    (inode.times.access, inode.times.modify) = (changes.atime, changes.mtime);
    inode.times.change = changes.ctime;
    Ok(())
}

impl Volume {
    pub(crate) fn set_attributes(
        &self,
        caller: &Caller,
        ino: Ino,
        set: &SetAttr,
        handle: Option<Handle>,
    ) -> Result<Attr> {
        let number = inode::from_vfs(&self.core.superblock, ino)?;
        match set.size {
            None => self.operate(|core| {
                let mut inode = inode::read(core, number)?;
                self.check_writable()?;
                let attr = inode.attr();
                change(core, caller, &mut inode, &attr, set, false)?;
                inode::write(core, &inode)
            })?,
            Some(size) => {
                let opened = handle.map(|handle| self.handles.get(handle)).transpose()?;
                let can_write = |(file, flags): &(Arc<File>, OpenFlags)| {
                    file.number == number && flags.contains(OpenFlags::WRITE)
                };
                if !opened.iter().all(can_write) {
                    return Err(Error::Invalid);
                }
                self.commit_if_large()?;
                self.resize(&self.files.get(number), size, |core, inode, attr| {
                    self.check_writable()?;
                    change(core, caller, inode, attr, set, handle.is_some())
                })?;
            }
        }
        self.attr(number)
    }

    pub(crate) fn set_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        self.operate(|core| {
            let mut inode = visible(core, ino)?;
            self.check_writable()?;
            inode.set_shown_flags(caller, flags)?;
            if !caller.keeps_times {
                inode.times.change = Time::now();
            }
            inode::write(core, &inode)
        })
    }

    pub(crate) fn may_access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        self.reading(|| {
            let inode = visible(&self.core, ino)?;
            if mask & rules::WRITE != 0 {
                self.check_writable()?;
            }
            let list = access_acl(&self.core, caller, &inode)?;
            rules::may_access(caller, &inode.attr(), list.as_deref(), mask)
        })
    }

    pub(crate) fn xattr_value(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.reading(|| {
            let inode = visible(&self.core, ino)?;
            let list = access_acl(&self.core, caller, &inode)?;
            rules::xattr_permission(caller, &inode.attr(), list.as_deref(), name, false)?;
            xattr::get(&self.core, &inode, name)
        })
    }

    pub(crate) fn xattr_names(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        let names = self.reading(|| xattr::names(&self.core, &visible(&self.core, ino)?))?;
        let mut list = Vec::new();
        for name in names {
            if rules::is_listed(caller, &name) {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        Ok(list)
    }

    pub(crate) fn set_xattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        rules::check_xattr_value(value)?;
        self.change_xattr(caller, ino, name, Some(value), |was_there| match (mode, was_there) {
            (XattrMode::Create, true) => Err(Error::Exists),
            (XattrMode::Replace, false) => Err(Error::NoAttribute),
            _ => Ok(()),
        })
    }

    pub(crate) fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.change_xattr(
            caller,
            ino,
            name,
            None,
            |was_there| {
                if was_there { Ok(()) } else { Err(Error::NoAttribute) }
            },
        )
    }

    /// `check` is told whether the attribute is there; of ACLs nobody asks.
    fn change_xattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        check: impl Fn(bool) -> Result<()>,
    ) -> Result<()> {
        self.operate(|core| {
            let mut inode = visible(core, ino)?;
            self.check_writable()?;
            let list = access_acl(core, caller, &inode)?;
            rules::xattr_permission(caller, &inode.attr(), list.as_deref(), name, true)?;
            let _spared = core.space.spare(core, caller);
            if acl::is_acl(name) {
                return set_acl(core, caller, inode, name, value);
            }
            match xattr::get(core, &inode, name) {
                Err(Error::NoAttribute) => check(false)?,
                found => found.and_then(|_| check(true))?,
            }
            xattr::set(core, &mut inode, name, value)?;
            inode.times.change = Time::now();
            inode::write(core, &inode)
        })
    }
}

fn set_acl(core: &Core, caller: &Caller, mut inode: Inode, name: &[u8], value: Option<&[u8]>) -> Result<()> {
    let change = rules::plan_acl(caller, &inode.attr(), name, value)?;
    let was_there = stored_acl(core, &inode, name)?.is_some();
    if change.store.is_some() || was_there {
        xattr::set(core, &mut inode, name, change.store.as_deref())?;
    }
    if value.is_some_and(|raw| !acl::is_empty(raw)) || was_there {
        inode.times.change = Time::now();
    }
    inode.mode = change.mode;
    inode::write(core, &inode)
}
