//! The [`FileSystem`] trait. What reads is complete; what would write is refused, with the error that Linux finds first on a file
//! system mounted read-only.

use std::cell::RefCell;

use vfs::{
    Attr, Caller, Created, DirEntry, Error, FallocateMode, FileKind, FileSystem, Handle, Ino, OpenFlags,
    RenameFlags, Result, SeekFrom, SetAttr, Statfs, XattrMode, rules,
};

use crate::inode::{self, Inode};
use crate::volume::Volume;
use crate::{data, directory, xattr};

/// Bytes that a thread keeps for its next read.
const BUFFER_MAX: usize = 1 << 20;
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

impl Volume {
    /// An inode that users may see.
    fn inode(&self, ino: Ino) -> Result<Inode> {
        inode::read(&self.core, inode::from_vfs(&self.core.superblock, ino)?)
    }

    /// The list that permissions depend on. For a caller whom nobody denies anything it is not looked up.
    pub(crate) fn access_acl(&self, caller: &Caller, inode: &Inode) -> Result<Option<Vec<u8>>> {
        if caller.is_privileged() {
            return Ok(None);
        }
        match xattr::get(&self.core, inode, ACCESS_ACL) {
            Ok(list) => Ok(Some(list)),
            Err(Error::NoAttribute) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn find(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Inode> {
        let dir = self.inode(dir)?;
        let list = if dir.is_dir() { self.access_acl(caller, &dir)? } else { None };
        rules::may_search(caller, &dir.attr(), list.as_deref())?;
        rules::check_name(name)?;
        let number = directory::find(&self.core, &dir, name)?;
        let found = inode::from_vfs(&self.core.superblock, inode::to_vfs(number))
            .and_then(|number| inode::read(&self.core, number));
        found.map_err(|error| self.dangling(&dir, name, number, error))
    }

    /// An entry that leads to an inode which is not in use, or not for users, is damage of the directory.
    fn dangling(&self, dir: &Inode, name: &[u8], number: u32, error: Error) -> Error {
        match error {
            Error::Stale => {
                let name = String::from_utf8_lossy(name).escape_debug().to_string();
                let what = format_args!("{number}, which is not in use");
                crate::error::corrupt(
                    "directory",
                    format_args!("inode {}", dir.number),
                    &format!("the inode of '{name}'"),
                    what,
                    "a file's",
                )
            }
            error => error,
        }
    }

    /// Why no entry `name` is made in `dir`: Linux looks whether it is there before it asks whether it could be made.
    fn refuse_new<R>(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<R> {
        match self.find(caller, dir, name) {
            Ok(_) => Err(Error::Exists),
            Err(Error::NotFound) => Err(Error::ReadOnly),
            Err(error) => Err(error),
        }
    }

    /// Why the inode is not changed.
    fn refuse_change<R>(&self, ino: Ino) -> Result<R> {
        self.inode(ino)?;
        Err(Error::ReadOnly)
    }
}

impl FileSystem for Volume {
    fn lookup(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        let number = self.reading(|| Ok(self.find(caller, dir, name)?.number))?;
        self.attr(number)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.attributes(ino)
    }

    fn setattr(&self, _: &Caller, ino: Ino, set: &SetAttr, _: Option<Handle>) -> Result<Attr> {
        match (set.size, self.inode(ino)?.kind()) {
            (None, _) | (_, FileKind::Regular) => Err(Error::ReadOnly),
            (_, FileKind::Directory) => Err(Error::IsDirectory),
            _ => Err(Error::Invalid),
        }
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        data::target(&self.core, &self.inode(ino)?)
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        let inode = self.inode(ino)?;
        if mask & rules::WRITE != 0 {
            return Err(Error::ReadOnly);
        }
        rules::may_access(caller, &inode.attr(), self.access_acl(caller, &inode)?.as_deref(), mask)
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
        self.inode(ino)?;
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
        self.inode(new_dir)?;
        self.refuse_change(dir)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let number = inode::from_vfs(&self.core.superblock, ino)?;
        self.open_file(caller, number, flags)
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], _: u32, flags: OpenFlags) -> Result<Created> {
        let inode = match self.find(caller, dir, name) {
            Ok(_) if flags.contains(OpenFlags::EXCLUSIVE) => return Err(Error::Exists),
            Err(Error::NotFound) => return Err(Error::ReadOnly),
            found => found?,
        };
        let attr = inode.attr();
        if attr.is_dir() {
            return Err(Error::IsDirectory);
        }
        Ok(Created { attr, handle: self.open(caller, attr.ino, flags)?, new: false })
    }

    fn tmpfile(&self, _: &Caller, dir: Ino, _: u32, flags: OpenFlags) -> Result<Created> {
        if !flags.contains(OpenFlags::WRITE) {
            return Err(Error::Invalid);
        }
        if self.inode(dir)?.is_dir() { Err(Error::ReadOnly) } else { Err(Error::NotDirectory) }
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
        self.write_file(caller, handle, offset, data)
    }

    fn fsync(&self, handle: Handle, _data_only: bool) -> Result<()> {
        let file = self.files.hold(self.handles.get(handle)?.0);
        self.sync_file(&file)
    }

    fn fsync_inode(&self, ino: Ino) -> Result<()> {
        let number = self.reading(|| Ok(self.inode(ino)?.number))?;
        match self.files.find(number) {
            Some(file) => self.sync_file(&file),
            None => self.sync_rest(),
        }
    }

    fn syncfs(&self) -> Result<()> {
        self.syncfs_all()
    }

    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let dir = self.inode(dir)?;
        if !dir.is_dir() {
            return Err(Error::NotDirectory);
        }
        let mut failure = None;
        directory::list(&self.core, &dir, from, &mut |entry| {
            // Entries of old file systems don't say what they lead to.
            let kind = match entry.kind {
                Some(kind) => Ok(kind),
                None => inode::read(&self.core, entry.inode).map(|inode| inode.kind()),
            };
            match kind {
                Ok(kind) => {
                    let ino = inode::to_vfs(entry.inode);
                    sink(DirEntry { ino, kind, next: entry.next, name: entry.name })
                }
                Err(error) => {
                    failure = Some(self.dangling(&dir, entry.name, entry.inode, error));
                    false
                }
            }
        })?;
        failure.map_or(Ok(()), Err)
    }

    fn statfs(&self) -> Result<Statfs> {
        self.space()
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let list = self.access_acl(caller, &inode)?;
        rules::xattr_permission(caller, &inode.attr(), list.as_deref(), name, false)?;
        xattr::get(&self.core, &inode, name)
    }

    fn setxattr(&self, _: &Caller, ino: Ino, name: &[u8], value: &[u8], _: XattrMode) -> Result<()> {
        rules::check_xattr_value(value)?;
        self.removexattr(&Caller::root(), ino, name)
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let mut list = Vec::new();
        for name in xattr::names(&self.core, &inode)? {
            if rules::is_listed(caller, &name) {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        Ok(list)
    }

    fn removexattr(&self, _: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        if name.is_empty() || name.len() > rules::XATTR_NAME_MAX {
            return Err(Error::Range);
        }
        self.refuse_change(ino)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.allocate_file(caller, handle, mode, offset, len)
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
        self.copy_range(caller, (from, from_offset), (to, to_offset), len)
    }
}
