//! Writing to files that chattr(1) protects: a handle may be older than that ([`vfs::rules`]).

use vfs::{Caller, FallocateMode, Handle, InodeFlags, OpenFlags, Result, rules};

use crate::core::Core;
use crate::inode::Inode;

impl Core {
    /// What goes in several transactions is refused as a whole.
    pub(crate) fn check_all(&self, caller: &Caller, handle: Handle, offset: u64, data: &[u8]) -> Result<()> {
        let ino = self.handles.get_for(handle, OpenFlags::WRITE)?.ino;
        if self.links_and_flags_glimpse(ino).is_some_and(|(_, flags)| flags.is_empty()) {
            return Ok(());
        }
        let (ino, _lock) = self.open_for_look(handle, OpenFlags::WRITE)?;
        self.check_flags(caller, self.nodes.regular(ino)?, false, offset, data)
    }

    /// Whether what chattr(1) set allows `caller` to write this, at the end if it `appends`. The inode is locked.
    #[cold]
    pub(crate) fn check_flags(
        &self,
        caller: &Caller,
        inode: Inode<'_>,
        appends: bool,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let flags = inode.hot().flags();
        rules::may_write(caller, flags)?;
        if appends || !flags.contains(InodeFlags::APPEND) {
            return Ok(());
        }
        let mut found = vec![0; data.len()];
        let length = self.nodes.read_into(inode, offset, &mut found)?;
        rules::keeps(&found[..length], data)
    }

    /// A regular file, if what chattr(1) set allows its range to be allocated so.
    pub(crate) fn to_allocate(&self, ino: u32, mode: FallocateMode) -> Result<Inode<'_>> {
        let inode = self.nodes.regular(ino)?;
        rules::may_allocate(inode.hot().flags(), mode).map(|()| inode)
    }
}
