//! Extended attributes, ACLs among them.

use super::state::State;
use crate::{Caller, Error, Ino, Result, Time, XattrMode, acl, rules};

impl State {
    pub(super) fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        rules::xattr_permission(caller, &inode.attr, inode.acl(), name, false)?;
        inode.xattrs.get(name).cloned().ok_or(Error::NoAttribute)
    }

    pub(super) fn setxattr(
        &mut self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let now = self.now();
        let inode = self.inode_mut(ino)?;
        rules::check_xattr_value(value)?;
        rules::xattr_permission(caller, &inode.attr, inode.acl(), name, true)?;
        if acl::is_acl(name) {
            return self.set_acl(caller, ino, name, Some(value), now);
        }
        match (mode, inode.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Error::Exists),
            (XattrMode::Replace, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        inode.xattrs.insert(name.to_vec(), value.to_vec());
        inode.attr.ctime = now;
        Ok(())
    }

    fn set_acl(
        &mut self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        now: Time,
    ) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        let change = rules::plan_acl(caller, &inode.attr, name, value)?;
        inode.attr.mode = change.mode;
        let before = match change.store {
            Some(raw) => inode.xattrs.insert(name.to_vec(), raw),
            None => inode.xattrs.remove(name),
        };
        // Removing what is not there changes nothing.
        if value.is_some_and(|raw| !acl::is_empty(raw)) || before.is_some() {
            inode.attr.ctime = now;
        }
        Ok(())
    }

    pub(super) fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        let names = self.inode(ino)?.xattrs.keys().filter(|name| rules::is_listed(caller, name));
        Ok(names.flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    pub(super) fn removexattr(&mut self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        let now = self.now();
        let inode = self.inode_mut(ino)?;
        rules::xattr_permission(caller, &inode.attr, inode.acl(), name, true)?;
        if acl::is_acl(name) {
            return self.set_acl(caller, ino, name, None, now);
        }
        inode.xattrs.remove(name).ok_or(Error::NoAttribute)?;
        inode.attr.ctime = now;
        Ok(())
    }
}
