//! Attributes, extended attributes and ACLs.

use vfs::{
    Attr, Caller, Error, Handle, Ino, InodeFlags, OpenFlags, Result, SetAttr, Statfs, Time, XattrMode, acl,
    rules,
};

use crate::allocator::Urgency;
use crate::core::{Core, Operation};
use crate::geometry::{BLOCK, FILE_MAX};
use crate::index::blocks_for;
use crate::inode::{Inode, Layout};
use crate::namespace::NAMES_BLOCKS;
use crate::node::number;
use crate::record::Item;
use crate::xattr;

/// Bytes that changing attributes logs at most: objects, an ACL, a moved inline file, a zeroed tail.
const LOG: usize = 3 * BLOCK as usize + xattr::TOTAL_MAX + 1024;

/// The same of flags, and the blocks that changing them takes: a copy of the inode's.
const FLAGS_LOG: usize = 256;
const FLAGS_BLOCKS: u64 = 1;

/// Blocks that changing attributes takes at most.
const BLOCKS: u64 = blocks_for(3);

/// For what a volume had room when a change of attributes began.
enum Room {
    Any,
    /// Out of what is kept for deletions: no file is to move out of its inode into that.
    ForChange,
    /// The same with a snapshot, which may have what is changed: only for what gives back more than it takes.
    ForDeletion,
}

impl Core {
    pub(crate) fn getattr(&self, ino: Ino) -> Result<Attr> {
        let ino = number(ino)?;
        if let Some(attr) = self.attr_glimpse(ino) {
            return Ok(attr);
        }
        let _lock = self.locks.read(ino);
        Ok(self.inode(ino)?.attr())
    }

    pub(crate) fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        let ino = number(ino)?;
        let _lock = self.locks.read(ino);
        let inode = self.inode(ino)?;
        if mask & rules::WRITE != 0 && self.options.read_only && inode.kind().is_stored() {
            return Err(Error::ReadOnly);
        }
        self.nodes.may_access(caller, inode, mask)
    }

    pub(crate) fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: &SetAttr,
        handle: Option<Handle>,
    ) -> Result<Attr> {
        let ino = number(ino)?;
        if let Some(handle) = handle.filter(|_| set.size.is_some()) {
            let opened = self.handles.get(handle)?;
            if opened.ino != ino || !opened.flags.contains(OpenFlags::WRITE) {
                return Err(Error::Invalid);
            }
        }
        let (mut operation, room) = self.begin_change(ino, set)?;
        let _lock = self.locks.write(ino);
        if let Some(handle) = handle.filter(|_| set.size.is_some()) {
            self.handles.get(handle)?; // released meanwhile, the number may be another file's
        }
        let inode = self.inode(ino)?;
        let is_longer = set.size.is_some_and(|size| size > inode.inline_capacity() as u64);
        let has_room = match room {
            Room::Any => true,
            Room::ForChange => !is_longer || inode.layout() != Layout::Inline,
            Room::ForDeletion => self.gives_back(inode, set)?,
        };
        if !has_room {
            return Err(Error::NoSpace);
        }
        self.change(&mut operation, caller, inode, set, handle.is_some())?;
        Ok(self.inode(ino)?.attr())
    }

    /// Begins to change attributes, on a full volume out of what is kept for deletions, and says for what there is room then.
    fn begin_change(&self, ino: u32, set: &SetAttr) -> Result<(Operation<'_>, Room)> {
        let begin = |urgency| self.begin(BLOCKS, LOG, urgency);
        match set.size {
            Some(0) => return Ok((begin(Urgency::Deletion)?, Room::Any)),
            None => return Ok((begin(Urgency::Change)?, Room::Any)),
            Some(_) => {}
        }
        match begin(Urgency::Ordinary) {
            Err(Error::NoSpace) => {}
            begun => return Ok((begun?, Room::Any)),
        }
        match begin(Urgency::Change) {
            Err(Error::NoSpace) => {}
            begun => return Ok((begun?, Room::ForChange)),
        }
        {
            let _lock = self.locks.read(ino);
            if !self.gives_back(self.inode(ino)?, set)? {
                return Err(Error::NoSpace);
            }
        }
        Ok((begin(Urgency::Deletion)?, Room::ForDeletion))
    }

    /// Whether a file is cut by more blocks that no snapshot has than that takes: then it is a deletion, and may use what is kept for
    /// those. In time that follows the blocks cut.
    fn gives_back(&self, inode: Inode<'_>, set: &SetAttr) -> Result<bool> {
        let Some(size) = set.size.filter(|size| *size <= inode.hot().size.get()) else { return Ok(false) };
        Ok(self.own_blocks(inode, size.div_ceil(BLOCK)..u64::MAX)? > BLOCKS)
    }

    /// Opens a file and empties it.
    pub(crate) fn open_truncating(&self, caller: &Caller, ino: u32, flags: OpenFlags) -> Result<Handle> {
        let mut operation = self.begin(BLOCKS, LOG, Urgency::Deletion)?;
        let lock = self.locks.write(ino);
        let inode = self.inode(ino)?;
        self.nodes.may_open(caller, inode, flags)?;
        // First: a file that cannot be opened keeps what it holds.
        let handle = self.handles.open(ino, flags)?;
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        let emptied = self.change(&mut operation, caller, inode, &empty, true);
        drop((lock, operation));
        self.or_release(handle, emptied.map(|()| handle))
    }

    /// Changes attributes of a locked inode; `by_handle` as in [`rules::plan_setattr`].
    fn change(
        &self,
        operation: &mut Operation<'_>,
        caller: &Caller,
        inode: Inode<'_>,
        set: &SetAttr,
        by_handle: bool,
    ) -> Result<()> {
        let ino = inode.ino;
        let (hot, cold) = (inode.hot(), inode.cold());
        let access = self.nodes.access_acl(inode)?;
        let changes = rules::plan_setattr(caller, &inode.attr(), access, set, by_handle, Time::now())?;
        if changes.size.is_some_and(|size| size > FILE_MAX) {
            return Err(Error::FileTooLarge);
        }
        if let Some(size) = changes.size {
            self.log_resize(operation, inode, size)?;
        }
        let size = changes.size.unwrap_or(hot.size.get());
        let new_hot = hot.sized(size).at_times(changes.mtime, changes.ctime);
        let new_cold =
            cold.with_mode(changes.mode).with_owner(changes.uid, changes.gid).with_atime(changes.atime);
        operation.log_hot(inode, &new_hot);
        if new_cold != cold {
            operation.log(&Item::Cold { ino, cold: &new_cold });
        }
        // Behind the size, which takes the room in the slot that it was found to have: what is left is for attributes.
        if let (Some(_), Some(raw)) = (set.mode, access) {
            let value = acl::with_mode(raw, changes.mode)?;
            operation.log(&Item::SetXattr { ino, name: acl::ACCESS, value: &value });
        }
        operation.commit()
    }

    pub(crate) fn set_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        let ino = number(ino)?;
        let mut operation = self.begin(FLAGS_BLOCKS, FLAGS_LOG, Urgency::Change)?;
        let _lock = self.locks.write(ino);
        let inode = self.inode(ino)?;
        rules::may_set_common_flags(caller, &inode.attr(), flags)?;
        let hot = inode.hot().with_flags(flags);
        operation.log_hot(inode, &if caller.keeps_times { hot } else { hot.changed(Time::now()) });
        operation.commit()
    }

    pub(crate) fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let ino = number(ino)?;
        let _lock = self.locks.read(ino);
        self.nodes.attribute(caller, ino, name)
    }

    pub(crate) fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        let ino = number(ino)?;
        let _lock = self.locks.read(ino);
        self.nodes.attribute_names(caller, ino)
    }

    pub(crate) fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let ino = number(ino)?;
        rules::check_xattr_value(value)?;
        if value.len() > xattr::TOTAL_MAX {
            self.getattr(ino.into())?;
            return Err(Error::NoSpace);
        }
        let mut operation = self.begin(blocks_for(3), LOG, Urgency::Ordinary)?;
        let _lock = self.locks.write(ino);
        let inode = self.inode(ino)?;
        rules::xattr_permission(caller, &inode.attr(), self.nodes.access_acl(inode)?, name, true)?;
        if acl::is_acl(name) {
            return self.set_acl(&mut operation, caller, inode, name, Some(value));
        }
        match (mode, xattr::get(&self.nodes, inode, name)?.is_some()) {
            (XattrMode::Create, true) => return Err(Error::Exists),
            (XattrMode::Replace, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        xattr::check_fits(&self.nodes, inode, name, value)?;
        operation.log(&Item::SetXattr { ino, name, value });
        operation.log_hot(inode, &inode.hot().changed(Time::now()));
        operation.commit()
    }

    pub(crate) fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        let ino = number(ino)?;
        let mut operation = self.begin(blocks_for(3), LOG, Urgency::Change)?;
        let _lock = self.locks.write(ino);
        let inode = self.inode(ino)?;
        rules::xattr_permission(caller, &inode.attr(), self.nodes.access_acl(inode)?, name, true)?;
        if acl::is_acl(name) {
            return self.set_acl(&mut operation, caller, inode, name, None);
        }
        xattr::get(&self.nodes, inode, name)?.ok_or(Error::NoAttribute)?;
        operation.log(&Item::RemoveXattr { ino, name });
        operation.log_hot(inode, &inode.hot().changed(Time::now()));
        operation.commit()
    }

    fn set_acl(
        &self,
        operation: &mut Operation<'_>,
        caller: &Caller,
        inode: Inode<'_>,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        let ino = inode.ino;
        let change = rules::plan_acl(caller, &inode.attr(), name, value)?;
        let was_there = xattr::get(&self.nodes, inode, name)?.is_some();
        match &change.store {
            Some(value) => {
                xattr::check_fits(&self.nodes, inode, name, value)?;
                operation.log(&Item::SetXattr { ino, name, value });
            }
            None if was_there => operation.log(&Item::RemoveXattr { ino, name }),
            None => {}
        }
        if value.is_some_and(|raw| !acl::is_empty(raw)) || was_there {
            operation.log_hot(inode, &inode.hot().changed(Time::now()));
        }
        let cold = inode.cold();
        if change.mode != cold.mode.get() {
            operation.log(&Item::Cold { ino, cold: &cold.with_mode(change.mode) });
        }
        operation.commit()
    }

    pub(crate) fn statfs(&self) -> Result<Statfs> {
        let (available, free) = self.space();
        // What there is for a name that is not made yet.
        let available = available.saturating_sub(NAMES_BLOCKS);
        let inodes = self.nodes.inode_count();
        Ok(Statfs {
            block_size: BLOCK as u32,
            blocks: self.medium.geometry.main_blocks(),
            blocks_free: free,
            blocks_available: available,
            files: inodes + available,
            files_free: available,
        })
    }
}
