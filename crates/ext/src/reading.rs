//! Open files: attributes and bytes as they are now, in pages or on the disk.

use vfs::{Attr, Error, FileKind, Handle, Ino, OpenFlags, Result, SeekFrom};

use crate::core::inode::{self, Inode};
use crate::data;
use crate::files::{Held, State};
use crate::volume::Volume;

impl Volume {
    /// Runs what reads metadata.
    pub(crate) fn reading<R>(&self, read: impl FnOnce() -> Result<R>) -> Result<R> {
        let _tree = self.tree.read();
        self.noting(read())
    }

    /// A file's inode with its newest length: for reading only. Called with `tree` held.
    pub(crate) fn newest(&self, state: &State, number: u32) -> Result<Inode> {
        let mut inode = inode::read(&self.core, number)?;
        inode.size = state.size.unwrap_or(inode.size);
        Ok(inode)
    }

    /// The attributes of inode `number`, with its newest length. Called without locks.
    pub(crate) fn attr(&self, number: u32) -> Result<Attr> {
        let Some(file) = self.files.find(number) else {
            return self.reading(|| Ok(inode::read(&self.core, number)?.attr()));
        };
        let state = file.shared();
        let mut attr = self.reading(|| Ok(self.newest(&state, number)?.attr()))?;
        attr.blocks += state.pages.unmapped() * (self.core.superblock.block / 512);
        Ok(attr)
    }

    /// The same, of an inode that users may see.
    pub(crate) fn attributes(&self, ino: Ino) -> Result<Attr> {
        self.attr(inode::from_vfs(&self.core.superblock, ino)?)
    }

    /// Reads through a handle.
    pub(crate) fn read_file(&self, handle: Handle, offset: u64, into: &mut [u8]) -> Result<usize> {
        let (file, flags) = self.handles.get(handle)?;
        if !flags.contains(OpenFlags::READ) {
            return Err(Error::BadHandle);
        }
        self.read_bytes(&self.files.hold(file), offset, into)
    }

    /// Reads what there is of a regular file.
    pub(crate) fn read_bytes(&self, file: &Held<'_>, offset: u64, into: &mut [u8]) -> Result<usize> {
        let state = file.shared();
        let range = offset..offset.saturating_add(into.len() as u64);
        let is_next = file.is_read_on(&range);
        let found = self.reading(|| {
            let inode = self.regular(&state, file.number)?;
            if inode.is_inline() {
                return data::read_inline(&self.core, &inode, offset, into).map(Err);
            }
            data::find(&self.core, &inode, &state.pages, range, is_next).map(Ok)
        })?;
        match found {
            Ok(found) => found.read(&self.core.store, &state.pages, into),
            Err(length) => Ok(length),
        }
    }

    /// Tells `read` a regular file's inode, with its newest length.
    pub(crate) fn reading_file<R>(
        &self,
        file: &Held<'_>,
        read: impl FnOnce(&Inode) -> Result<R>,
    ) -> Result<R> {
        let state = file.shared();
        self.reading(|| read(&self.regular(&state, file.number)?))
    }

    /// Finds data or a hole through a handle.
    pub(crate) fn seek_file(&self, handle: Handle, from: SeekFrom) -> Result<u64> {
        let file = self.files.hold(self.handles.get(handle)?.0);
        let state = file.shared();
        self.reading(|| data::seek(&self.core, &self.regular(&state, file.number)?, &state.pages, from))
    }

    /// As [`Volume::newest`], of a regular file.
    pub(crate) fn regular(&self, state: &State, number: u32) -> Result<Inode> {
        let inode = self.newest(state, number)?;
        if inode.kind() == FileKind::Regular { Ok(inode) } else { Err(Error::IsDirectory) }
    }
}
