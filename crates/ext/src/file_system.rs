//! The [`FileSystem`] trait: which part of the volume does what.

use std::cell::RefCell;

use vfs::{
    Attr, Caller, Created, DirEntry, FallocateMode, FileSystem, Handle, Ino, InodeFlags, OpenFlags,
    RenameFlags, Result, SeekFrom, SetAttr, Statfs, XattrMode,
};

use crate::core::inode;
use crate::namespace::visible;
use crate::volume::Volume;

/// Bytes that a thread keeps for its next read.
const BUFFER_MAX: usize = 1 << 20;

impl FileSystem for Volume {
    fn lookup(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.lookup_name(caller, dir, name)
    }

    fn time_step_ns(&self) -> u32 {
        if inode::has_wide_times(self.core.superblock.inode_extra_bytes) { 1 } else { 1_000_000_000 }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.attributes(ino)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr, handle: Option<Handle>) -> Result<Attr> {
        self.changing_inode(ino, || self.set_attributes(caller, ino, set, handle))
    }

    fn set_inode_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        self.changing_inode(ino, || self.set_flags(caller, ino, flags))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.read_target(ino)
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        self.may_access(caller, ino, mask)
    }

    fn mknod(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        self.changing_names(|| self.make_node(caller, dir, name, mode, rdev))
    }

    fn mkdir(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        self.changing_names(|| self.make_directory(caller, dir, name, mode))
    }

    fn symlink(&self, caller: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.changing_names(|| self.make_link(caller, dir, name, target))
    }

    fn link(&self, caller: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.changing_names(|| self.add_name(caller, ino, dir, name))
    }

    fn unlink(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        self.changing_names(|| self.remove_name(caller, dir, name))
    }

    fn rmdir(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        self.changing_names(|| self.remove_directory(caller, dir, name))
    }

    fn rename(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.changing_names(|| self.rename_name(caller, (dir, name), (new_dir, new_name), flags))
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let number = inode::from_vfs(&self.core.superblock, ino)?;
        let handle = self.open_file(caller, number, flags)?;
        match flags.contains(OpenFlags::TRUNCATE) {
            true => self.or_close(handle, self.contents_changed(handle, Ok(handle))),
            false => Ok(handle),
        }
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, flags: OpenFlags) -> Result<Created> {
        self.ready_for_names()?;
        let created =
            self.create_file(caller, dir, name, mode, flags, |ino| self.open(caller, ino, flags))?;
        self.or_close(created.handle, self.names_changed(Ok(created)))
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, flags: OpenFlags) -> Result<Created> {
        self.ready_for_names()?;
        let created = self.make_unnamed(caller, dir, mode, flags)?;
        self.or_close(created.handle, self.names_changed(Ok(created)))
    }

    fn release(&self, handle: Handle) -> Result<()> {
        self.close(handle)
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_file(handle, offset, buf)
    }

    fn read_slices(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        // A new buffer for each request would cost more than copying to it: its pages come from the kernel, as zeros.
        thread_local! {
            static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        let mut buffer = BUFFER.take();
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let read = self.read(handle, offset, &mut buffer[..len]);
        if let Ok(length) = read {
            sink(&buffer[..length]);
        }
        buffer.truncate(BUFFER_MAX);
        buffer.shrink_to(BUFFER_MAX);
        BUFFER.set(buffer);
        read
    }

    fn write(&self, caller: &Caller, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        self.contents_changed(handle, self.write_file(caller, handle, offset, data))
    }

    fn fsync(&self, handle: Handle, _data_only: bool) -> Result<()> {
        let file = self.files.hold(self.handles.get(handle)?.0);
        self.sync_file(&file)
    }

    fn fsync_inode(&self, ino: Ino) -> Result<()> {
        let number = self.reading(|| Ok(visible(&self.core, ino)?.number))?;
        match self.files.find(number) {
            Some(file) => self.sync_file(&file),
            None => self.sync_rest(),
        }
    }

    fn syncfs(&self) -> Result<()> {
        self.syncfs_all()
    }

    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.list(dir, from, sink)
    }

    fn statfs(&self) -> Result<Statfs> {
        self.reading(|| self.space())
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.xattr_value(caller, ino, name)
    }

    fn setxattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.changing_inode(ino, || self.set_xattr(caller, ino, name, value, mode))
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.xattr_names(caller, ino)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.changing_inode(ino, || self.remove_xattr(caller, ino, name))
    }

    fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.contents_changed(handle, self.allocate_file(caller, handle, mode, offset, len))
    }

    fn seek(&self, handle: Handle, from: SeekFrom) -> Result<u64> {
        self.seek_file(handle, from)
    }

    fn copy_file_range(
        &self,
        caller: &Caller,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.contents_changed(to, self.copy_range(caller, (from, from_offset), (to, to_offset), len))
    }
}
