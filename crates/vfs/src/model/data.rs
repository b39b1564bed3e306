//! Attributes and bytes of files.

use super::state::State;
use super::{BLOCK_BYTES, MAX_FILE_BYTES};
use crate::{
    Attr, Caller, Error, FallocateMode, Handle, Ino, InodeFlags, OpenFlags, Result, SeekFrom, SetAttr, acl,
    rules,
};

impl State {
    pub(super) fn setattr(
        &mut self,
        caller: &Caller,
        ino: Ino,
        set: &SetAttr,
        handle: Option<Handle>,
    ) -> Result<Attr> {
        self.inode(ino)?;
        let opened = handle.filter(|_| set.size.is_some()).map(|handle| self.opened(handle)).transpose()?;
        if let Some(opened) = opened
            && (opened.ino != ino || !opened.flags.contains(OpenFlags::WRITE))
        {
            return Err(Error::Invalid);
        }
        self.change(caller, ino, set, opened.is_some())
    }

    /// Changes attributes; `by_handle` as in [`rules::plan_setattr`].
    pub(super) fn change(
        &mut self,
        caller: &Caller,
        ino: Ino,
        set: &SetAttr,
        by_handle: bool,
    ) -> Result<Attr> {
        let now = self.now();
        let inode = self.inode_mut(ino)?;
        let changes = rules::plan_setattr(caller, &inode.attr, inode.acl(), set, by_handle, now)?;
        if changes.size.is_some_and(|size| size > MAX_FILE_BYTES) {
            return Err(Error::FileTooLarge);
        }
        if let (Some(_), Some(raw)) = (set.mode, inode.acl()) {
            let changed = acl::with_mode(raw, changes.mode)?;
            inode.xattrs.insert(acl::ACCESS.to_vec(), changed);
        }
        if let Some(size) = changes.size {
            inode.contents_mut()?.set_len(size);
        }
        let attr = &mut inode.attr;
        (attr.mode, attr.uid, attr.gid) = (changes.mode, changes.uid, changes.gid);
        (attr.atime, attr.mtime, attr.ctime) = (changes.atime, changes.mtime, changes.ctime);
        self.measure(ino)
    }

    pub(super) fn set_flags(&mut self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        let now = self.now();
        let attr = &mut self.inode_mut(ino)?.attr;
        rules::may_set_common_flags(caller, attr, flags)?;
        attr.flags = flags;
        if !caller.keeps_times {
            attr.ctime = now;
        }
        Ok(())
    }

    /// Brings a file's length and blocks in its attributes up to its contents.
    fn measure(&mut self, ino: Ino) -> Result<Attr> {
        let inode = self.inode_mut(ino)?;
        if let Ok(contents) = inode.contents() {
            (inode.attr.size, inode.attr.blocks) =
                (contents.len(), contents.block_count() * (BLOCK_BYTES / 512));
        }
        Ok(inode.attr)
    }

    /// `caller` changed the contents of file `ino`.
    fn rewritten(&mut self, caller: &Caller, ino: Ino) -> Result<()> {
        let now = self.now();
        let inode = self.inode_mut(ino)?;
        if !caller.keeps_times {
            inode.modified(now);
        }
        inode.attr.mode = rules::mode_after_write(caller, inode.attr.mode, inode.attr.gid);
        self.measure(ino).map(drop)
    }

    pub(super) fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let opened = self.opened_for(handle, OpenFlags::READ)?;
        Ok(self.inode(opened.ino)?.contents()?.read(offset, buf))
    }

    pub(super) fn write(
        &mut self,
        caller: &Caller,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let opened = self.opened_for(handle, OpenFlags::WRITE)?;
        let inode = self.inode(opened.ino)?;
        let contents = inode.contents()?;
        if data.is_empty() {
            return Ok(0);
        }
        let offset = if opened.flags.contains(OpenFlags::APPEND) { contents.len() } else { offset };
        let end = end_of_range(offset, data.len() as u64)?;
        rules::may_write(caller, inode.attr.flags)?;
        if inode.attr.flags.contains(InodeFlags::APPEND) {
            let mut found = vec![0; data.len()];
            contents.read(offset, &mut found);
            rules::keeps(&found, data)?;
        }
        self.check_space(contents.missing_blocks(&(offset..end)))?;
        self.inode_mut(opened.ino)?.contents_mut()?.write(offset, data);
        self.rewritten(caller, opened.ino)?;
        Ok(data.len())
    }

    pub(super) fn fallocate(
        &mut self,
        caller: &Caller,
        handle: Handle,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let keep_size = mode.contains(FallocateMode::KEEP_SIZE);
        let punch = mode.contains(FallocateMode::PUNCH_HOLE);
        let zero = mode.contains(FallocateMode::ZERO_RANGE);
        if len == 0 {
            return Err(Error::Invalid);
        }
        if punch && (zero || !keep_size) {
            return Err(Error::NotSupported);
        }
        let opened = self.opened_for(handle, OpenFlags::WRITE)?;
        let inode = self.inode(opened.ino)?;
        let contents = inode.contents()?;
        rules::may_allocate(inode.attr.flags, mode)?;
        let end = end_of_range(offset, len)?;
        if !punch {
            self.check_space(contents.missing_blocks(&(offset..end)))?;
        }
        let contents = self.inode_mut(opened.ino)?.contents_mut()?;
        if punch || zero {
            contents.zero(offset..end);
        }
        if !keep_size && end > contents.len() {
            contents.set_len(end);
        }
        self.rewritten(caller, opened.ino)
    }

    pub(super) fn seek(&self, handle: Handle, from: SeekFrom) -> Result<u64> {
        let opened = self.opened(handle)?;
        self.inode(opened.ino)?.contents()?.seek(from).ok_or(Error::NoSuchOffset)
    }

    pub(super) fn copy_file_range(
        &mut self,
        caller: &Caller,
        (from, from_offset): (Handle, u64),
        (to, to_offset): (Handle, u64),
        len: u64,
    ) -> Result<u64> {
        let source = self.opened_for(from, OpenFlags::READ)?;
        let sink = self.opened_for(to, OpenFlags::WRITE)?;
        if sink.flags.contains(OpenFlags::APPEND) {
            return Err(Error::BadHandle);
        }
        let contents = self.inode(source.ino)?.contents()?;
        rules::may_copy_to(self.inode(sink.ino)?.attr.flags)?;
        let len = len.min(contents.len().saturating_sub(from_offset));
        if len == 0 {
            return Ok(0);
        }
        let end = end_of_range(to_offset, len)?;
        if source.ino == sink.ino && to_offset < from_offset + len && from_offset < end {
            return Err(Error::Invalid);
        }
        self.check_space(self.inode(sink.ino)?.contents()?.missing_blocks(&(to_offset..end)))?;
        let mut done = 0;
        while done < len {
            let mut piece = vec![0; (len - done).min(1 << 20) as usize];
            self.inode(source.ino)?.contents()?.read(from_offset + done, &mut piece);
            self.inode_mut(sink.ino)?.contents_mut()?.write(to_offset + done, &piece);
            done += piece.len() as u64;
        }
        self.rewritten(caller, sink.ino)?;
        Ok(len)
    }
}

/// The end of a range that a file can have; `EFBIG` if it can not.
fn end_of_range(offset: u64, len: u64) -> Result<u64> {
    offset.checked_add(len).filter(|&end| end <= MAX_FILE_BYTES).ok_or(Error::FileTooLarge)
}
