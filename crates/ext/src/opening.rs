//! Who has files open, and what becomes of files that nobody has.

use vfs::{Caller, Error, Handle, OpenFlags, Result, rules};

use crate::core::inode;
use crate::namespace::access_acl;
use crate::volume::Volume;

impl Volume {
    /// Opens inode `number` if `caller` may.
    pub(crate) fn open_file(&self, caller: &Caller, number: u32, flags: OpenFlags) -> Result<Handle> {
        let handle = self.reading(|| {
            let inode = inode::read(&self.core, number)?;
            if self.is_read_only() && flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
                // Of a kind that cannot be opened so anyway, Linux says that first.
                rules::can_open(&inode.attr(), flags)?;
                return Err(Error::ReadOnly);
            }
            let list = access_acl(&self.core, caller, &inode)?;
            rules::may_open(caller, &inode.attr(), list.as_deref(), flags)?;
            Ok(self.open_locked(number, flags))
        })?;
        if flags.contains(OpenFlags::TRUNCATE) {
            let file = self.files.get(number);
            self.or_close(handle, self.cut_file(caller, &file, 0))?;
        }
        Ok(handle)
    }

    /// What became of an operation that has opened a handle. Who gets an error does not get the handle to close.
    pub(crate) fn or_close<R>(&self, handle: Handle, result: Result<R>) -> Result<R> {
        if result.is_err() {
            // What failed first is told.
            drop(self.close(handle));
        }
        result
    }

    /// A handle for inode `number`, which is there. Called with `tree` held.
    pub(crate) fn open_locked(&self, number: u32, flags: OpenFlags) -> Handle {
        self.handles.open(self.files.opened(number), flags)
    }

    /// Whether somebody has inode `number` open. Asked with `tree` held alone, that stays so.
    pub(crate) fn is_open(&self, number: u32) -> bool {
        self.files.find(number).is_some_and(|file| file.is_open())
    }

    /// Whether inode `number` is in the list of orphans because it is being cut. Asked with `tree` held alone.
    pub(crate) fn is_being_cut(&self, number: u32) -> bool {
        self.files.find(number).is_some_and(|file| file.is_being_cut())
    }

    /// Whether DRAM may have something of inode `number`, which is to be [given up](Volume::give_up_contents) before the inode is removed.
    pub(crate) fn has_contents_in_memory(&self, number: u32) -> bool {
        self.files.find(number).is_some()
    }

    /// Closes a handle. An inode without a name goes with its last one.
    pub(crate) fn close(&self, handle: Handle) -> Result<()> {
        let number = {
            let file = self.files.hold(self.handles.release(handle)?.0);
            if !file.closed() || self.is_read_only() {
                return Ok(());
            }
            file.number
        };
        // Who took the last name before it was closed has seen it open; who does so later finds it closed.
        match self.reading(|| inode::links(&self.core, number)) {
            Ok(1..) | Err(Error::Stale) => {}
            // Whether it has a name is looked at again by who removes it.
            Ok(0) | Err(_) => self.finish(number),
        }
        Ok(())
    }

    /// Whether somebody has something open.
    pub(crate) fn has_handles(&self) -> bool {
        !self.handles.is_empty()
    }
}
