//! A mounted volume as a file system: each call goes to the volume itself, or, for what is not its own, to a snapshot or
//! the directory of snapshots (see [`crate::views`]).

use vfs::{
    Attr, Caller, Created, DirEntry, Error, FallocateMode, FileSystem, Handle, Ino, OpenFlags, ROOT_INO,
    RenameFlags, Result, SeekFrom, SetAttr, Snapshots, Statfs, XattrMode,
};

use crate::Volume;
use crate::core::NextLog;
use crate::handles::is_of_snapshot;
use crate::views::{self, is_directory, is_one_tree, is_own};

impl FileSystem for Volume {
    fn lookup(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        if !is_own(dir) {
            return self.core.lookup_outside(caller, dir, name);
        }
        if is_directory(dir, name) {
            return self.core.lookup_directory(caller);
        }
        self.core.lookup(caller, dir, name)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        if is_own(ino) { self.core.getattr(ino) } else { self.core.outside(ino, |tree| tree.getattr(ino)) }
    }

    fn is_volatile(&self, ino: Ino) -> bool {
        ino == views::DIRECTORY
    }

    fn unlisted(&self, dir: Ino) -> Option<DirEntry<'static>> {
        (dir == ROOT_INO).then_some(views::UNLISTED)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr, handle: Option<Handle>) -> Result<Attr> {
        let _op = nvm::operation("setattr");
        if !is_own(ino) {
            return self.core.outside(ino, |tree| tree.setattr(caller, ino, set, handle));
        }
        self.core.setattr(caller, ino, set, handle)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        if is_own(ino) { self.core.readlink(ino) } else { self.core.outside(ino, |tree| tree.readlink(ino)) }
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        if !is_own(ino) {
            return self.core.outside(ino, |tree| tree.access(caller, ino, mask));
        }
        self.core.access(caller, ino, mask)
    }

    fn mknod(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        let _op = nvm::operation("mknod");
        if !is_own(dir) {
            return self.core.outside(dir, |tree| tree.mknod(caller, dir, name, mode, rdev));
        }
        self.core.check_free(caller, dir, name)?;
        self.core.mknod(caller, dir, name, mode, rdev)
    }

    fn mkdir(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let _op = nvm::operation("mkdir");
        if !is_own(dir) {
            return self.core.outside(dir, |tree| tree.mkdir(caller, dir, name, mode));
        }
        self.core.check_free(caller, dir, name)?;
        self.core.mkdir(caller, dir, name, mode)
    }

    fn symlink(&self, caller: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let _op = nvm::operation("symlink");
        if !is_own(dir) {
            return self.core.outside(dir, |tree| tree.symlink(caller, dir, name, target));
        }
        self.core.check_free(caller, dir, name)?;
        self.core.symlink(caller, dir, name, target)
    }

    fn link(&self, caller: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let _op = nvm::operation("link");
        if !is_one_tree(ino, dir) {
            return Err(Error::CrossDevice);
        }
        if !is_own(dir) {
            return self.core.outside(dir, |tree| tree.link(caller, ino, dir, name));
        }
        self.core.check_free(caller, dir, name)?;
        self.core.link(caller, ino, dir, name)
    }

    fn unlink(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        let _op = nvm::operation("unlink");
        if !is_own(dir) {
            return self.core.outside(dir, |tree| tree.unlink(caller, dir, name));
        }
        self.core.check_movable(caller, dir, name)?;
        self.core.unlink(caller, dir, name)
    }

    fn rmdir(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        let _op = nvm::operation("rmdir");
        if !is_own(dir) {
            return self.core.outside(dir, |tree| tree.rmdir(caller, dir, name));
        }
        self.core.check_movable(caller, dir, name)?;
        self.core.rmdir(caller, dir, name)
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
        let _op = nvm::operation("rename");
        if !is_one_tree(dir, new_dir) {
            return Err(Error::CrossDevice);
        }
        if !is_own(dir) {
            return self.core.outside(dir, |tree| tree.rename(caller, dir, name, new_dir, new_name, flags));
        }
        self.core.check_movable(caller, dir, name)?;
        if flags.contains(RenameFlags::NOREPLACE) {
            self.core.check_free(caller, new_dir, new_name)?;
        }
        self.core.check_movable(caller, new_dir, new_name)?;
        self.core.rename(caller, (dir, name), (new_dir, new_name), flags)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let _op = nvm::operation("open");
        if !is_own(ino) {
            return self.core.outside(ino, |tree| tree.open(caller, ino, flags));
        }
        self.core.open(caller, ino, flags)
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, flags: OpenFlags) -> Result<Created> {
        let _op = nvm::operation("create");
        if !is_own(dir) {
            return self.core.outside(dir, |tree| tree.create(caller, dir, name, mode, flags));
        }
        match self.core.check_free(caller, dir, name) {
            Err(Error::Exists) if !flags.contains(OpenFlags::EXCLUSIVE) => Err(Error::IsDirectory),
            free => free.and_then(|()| self.core.create(caller, dir, name, mode, flags)),
        }
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, flags: OpenFlags) -> Result<Created> {
        let _op = nvm::operation("tmpfile");
        if !is_own(dir) {
            return self.core.outside(dir, |tree| tree.tmpfile(caller, dir, mode, flags));
        }
        self.core.tmpfile(caller, dir, mode, flags)
    }

    fn release(&self, handle: Handle) -> Result<()> {
        let _op = nvm::operation("release");
        if is_of_snapshot(handle) {
            return self.core.outside_opened(handle, |tree| tree.release(handle));
        }
        self.core.release(handle)
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if is_of_snapshot(handle) {
            return self.core.outside_opened(handle, |tree| tree.read(handle, offset, buf));
        }
        self.core.read(handle, offset, buf)
    }

    fn read_slices(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        if is_of_snapshot(handle) {
            return self.core.outside_opened(handle, |tree| tree.read_slices(handle, offset, len, sink));
        }
        self.core.read_slices(handle, offset, len, sink)
    }

    fn write(&self, caller: &Caller, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let _op = nvm::operation("write");
        if is_of_snapshot(handle) {
            return self.core.outside_opened(handle, |tree| tree.write(caller, handle, offset, data));
        }
        self.core.write(caller, handle, offset, data)
    }

    fn fsync(&self, handle: Handle, data_only: bool) -> Result<()> {
        let _op = nvm::operation("fsync");
        if is_of_snapshot(handle) {
            return self.core.outside_opened(handle, |tree| tree.fsync(handle, data_only));
        }
        self.core.fsync(handle)
    }

    fn fsync_inode(&self, ino: Ino) -> Result<()> {
        let _op = nvm::operation("fsync");
        if !is_own(ino) {
            return self.core.outside(ino, |tree| tree.fsync_inode(ino));
        }
        self.core.fsync_inode(ino)
    }

    fn syncfs(&self) -> Result<()> {
        let _op = nvm::operation("syncfs");
        if self.core.options.read_only { Ok(()) } else { self.core.checkpoint(NextLog::WithEpoch) }
    }

    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        if !is_own(dir) {
            return self.core.outside(dir, |tree| tree.readdir(dir, from, sink));
        }
        self.core.readdir(dir, from, sink)
    }

    fn statfs(&self) -> Result<Statfs> {
        self.core.statfs()
    }

    fn statfs_of(&self, ino: Ino) -> Result<Statfs> {
        if is_own(ino) { self.statfs() } else { self.core.outside(ino, |tree| tree.statfs()) }
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        if !is_own(ino) {
            return self.core.outside(ino, |tree| tree.getxattr(caller, ino, name));
        }
        self.core.getxattr(caller, ino, name)
    }

    fn setxattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let _op = nvm::operation("setxattr");
        if !is_own(ino) {
            return self.core.outside(ino, |tree| tree.setxattr(caller, ino, name, value, mode));
        }
        self.core.setxattr(caller, ino, name, value, mode)
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        if !is_own(ino) {
            return self.core.outside(ino, |tree| tree.listxattr(caller, ino));
        }
        self.core.listxattr(caller, ino)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        let _op = nvm::operation("removexattr");
        if !is_own(ino) {
            return self.core.outside(ino, |tree| tree.removexattr(caller, ino, name));
        }
        self.core.removexattr(caller, ino, name)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let _op = nvm::operation("fallocate");
        if is_of_snapshot(handle) {
            return self
                .core
                .outside_opened(handle, |tree| tree.fallocate(caller, handle, mode, offset, len));
        }
        self.core.fallocate(caller, handle, mode, offset, len)
    }

    fn seek(&self, handle: Handle, from: SeekFrom) -> Result<u64> {
        if is_of_snapshot(handle) {
            return self.core.outside_opened(handle, |tree| tree.seek(handle, from));
        }
        self.core.seek(handle, from)
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
        let _op = nvm::operation("copy_file_range");
        if is_of_snapshot(to) {
            return Err(Error::BadHandle); // none is open for writing
        }
        if is_of_snapshot(from) {
            return self.core.outside_opened(from, |_| Err(Error::CrossDevice));
        }
        self.core.copy_file_range(caller, (from, from_offset), (to, to_offset), len)
    }
}

impl Snapshots for Volume {
    fn take_snapshot(&self, name: &str) -> Result<()> {
        Ok(Volume::take_snapshot(self, name, "").map(drop)?)
    }

    fn remove_snapshot(&self, name: &str) -> Result<()> {
        Ok(Volume::remove_snapshot(self, name)?)
    }

    fn hold_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        Ok(Volume::hold_snapshot(self, name, tag)?)
    }

    fn release_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        Ok(Volume::release_snapshot(self, name, tag)?)
    }
}
