//! Trees that nobody can change, as file systems: what reads is the tree's own, and all that would change it is refused,
//! with the error that Linux finds first on a file system mounted read-only.

use vfs::{
    Attr, Caller, Created, DirEntry, Error, FallocateMode, FileSystem, Handle, Ino, InodeFlags, OpenFlags,
    RenameFlags, Result, SeekFrom, SetAttr, Statfs, XattrMode, rules,
};

/// What can be read of a tree. As in [`FileSystem`], where not said otherwise.
pub(crate) trait Readable: Send + Sync {
    /// The inode `name` of directory `dir`, which may be one beyond the tree: above its root.
    fn find(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Ino>;
    fn getattr(&self, ino: Ino) -> Result<Attr>;
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;
    /// `mask` does not ask for writing.
    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()>;
    /// `flags` do not ask for writing.
    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle>;
    fn release(&self, handle: Handle) -> Result<()>;
    /// The inode that `handle` is open on.
    fn opened(&self, handle: Handle) -> Result<Ino>;
    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize>;
    fn read_slices(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize>;
    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;
    fn statfs(&self) -> Result<Statfs>;
    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>>;
    fn seek(&self, handle: Handle, from: SeekFrom) -> Result<u64>;
}

/// A tree as a file system that is read-only.
pub(crate) struct ReadOnly<T>(pub(crate) T);

/// A file system that may be part of another, which is above its root.
pub(crate) trait Tree: FileSystem {
    /// As [`Readable::find`].
    fn find(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Ino>;
}

impl<T: Readable> Tree for ReadOnly<T> {
    fn find(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Ino> {
        self.0.find(caller, dir, name)
    }
}

impl<T: Readable> ReadOnly<T> {
    /// Why no entry `name` is made in `dir`: Linux looks whether it is there before it asks whether it could be made.
    fn refuse_new<R>(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<R> {
        match self.0.find(caller, dir, name) {
            Ok(_) => Err(Error::Exists),
            Err(Error::NotFound) => Err(Error::ReadOnly),
            Err(error) => Err(error),
        }
    }

    /// Why the inode is not changed.
    fn refuse_change<R>(&self, ino: Ino) -> Result<R> {
        self.0.getattr(ino)?;
        Err(Error::ReadOnly)
    }

    /// Why nothing is written to a handle: none is open for that.
    fn refuse_write<R>(&self, handle: Handle) -> Result<R> {
        self.0.opened(handle)?;
        Err(Error::BadHandle)
    }
}

impl<T: Readable> FileSystem for ReadOnly<T> {
    fn lookup(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.0.getattr(self.0.find(caller, dir, name)?)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.0.getattr(ino)
    }

    fn setattr(&self, _: &Caller, ino: Ino, set: &SetAttr, _: Option<Handle>) -> Result<Attr> {
        let kind = self.0.getattr(ino)?.kind();
        match (set.size, kind) {
            (None, _) | (_, vfs::FileKind::Regular) => Err(Error::ReadOnly),
            (_, vfs::FileKind::Directory) => Err(Error::IsDirectory),
            _ => Err(Error::Invalid),
        }
    }

    fn set_inode_flags(&self, _: &Caller, ino: Ino, _: InodeFlags) -> Result<()> {
        self.refuse_change(ino)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.0.readlink(ino)
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        if mask & rules::WRITE != 0 && self.0.getattr(ino)?.kind().is_stored() {
            return Err(Error::ReadOnly);
        }
        self.0.access(caller, ino, mask)
    }

    fn mknod(&self, caller: &Caller, dir: Ino, name: &[u8], _: u32, _: u32) -> Result<Attr> {
        self.refuse_new(caller, dir, name)
    }

    fn mkdir(&self, caller: &Caller, dir: Ino, name: &[u8], _: u32) -> Result<Attr> {
        self.refuse_new(caller, dir, name)
    }

    fn symlink(&self, caller: &Caller, dir: Ino, name: &[u8], _: &[u8]) -> Result<Attr> {
        self.refuse_new(caller, dir, name)
    }

    fn link(&self, caller: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.0.getattr(ino)?;
        self.refuse_new(caller, dir, name)
    }

    fn unlink(&self, _: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        rules::check_unlink_name(name)?;
        self.refuse_change(dir)
    }

    fn rmdir(&self, _: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        rules::check_rmdir_name(name)?;
        self.refuse_change(dir)
    }

    fn rename(
        &self,
        _: &Caller,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        rules::check_rename_names(name, new_name, flags)?;
        self.0.getattr(new_dir)?;
        self.refuse_change(dir)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            // Of a kind that cannot be opened so anyway, Linux says that first.
            rules::can_open(&self.0.getattr(ino)?, flags)?;
            return Err(Error::ReadOnly);
        }
        self.0.open(caller, ino, flags)
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], _: u32, flags: OpenFlags) -> Result<Created> {
        let ino = match self.0.find(caller, dir, name) {
            Ok(_) if flags.contains(OpenFlags::EXCLUSIVE) => return Err(Error::Exists),
            Err(Error::NotFound) => return Err(Error::ReadOnly),
            found => found?,
        };
        let attr = self.0.getattr(ino)?;
        if attr.is_dir() {
            return Err(Error::IsDirectory);
        }
        Ok(Created { attr, handle: self.open(caller, ino, flags)?, new: false })
    }

    fn tmpfile(&self, _: &Caller, dir: Ino, _: u32, flags: OpenFlags) -> Result<Created> {
        if !flags.contains(OpenFlags::WRITE) {
            return Err(Error::Invalid);
        }
        if self.0.getattr(dir)?.is_dir() { Err(Error::ReadOnly) } else { Err(Error::NotDirectory) }
    }

    fn release(&self, handle: Handle) -> Result<()> {
        self.0.release(handle)
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.0.read(handle, offset, buf)
    }

    fn read_slices(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        self.0.read_slices(handle, offset, len, sink)
    }

    fn write(&self, _: &Caller, handle: Handle, _: u64, _: &[u8]) -> Result<usize> {
        self.refuse_write(handle)
    }

    fn fsync(&self, handle: Handle, _data_only: bool) -> Result<()> {
        self.0.opened(handle).map(drop)
    }

    fn fsync_inode(&self, ino: Ino) -> Result<()> {
        self.0.getattr(ino).map(drop)
    }

    fn syncfs(&self) -> Result<()> {
        Ok(())
    }

    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.0.readdir(dir, from, sink)
    }

    fn statfs(&self) -> Result<Statfs> {
        self.0.statfs()
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.0.getxattr(caller, ino, name)
    }

    fn setxattr(&self, _: &Caller, ino: Ino, name: &[u8], value: &[u8], _: XattrMode) -> Result<()> {
        rules::check_xattr_value(value)?;
        self.removexattr(&Caller::root(), ino, name)
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.0.listxattr(caller, ino)
    }

    fn removexattr(&self, _: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        if name.is_empty() || name.len() > rules::XATTR_NAME_MAX {
            return Err(Error::Range);
        }
        self.refuse_change(ino)
    }

    fn fallocate(&self, _: &Caller, handle: Handle, _: FallocateMode, _: u64, len: u64) -> Result<()> {
        if len == 0 { Err(Error::Invalid) } else { self.refuse_write(handle) }
    }

    fn seek(&self, handle: Handle, from: SeekFrom) -> Result<u64> {
        self.0.seek(handle, from)
    }

    fn copy_file_range(&self, _: &Caller, from: Handle, _: u64, to: Handle, _: u64, _: u64) -> Result<u64> {
        self.0.opened(from)?;
        self.refuse_write(to)
    }
}
