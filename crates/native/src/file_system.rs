//! A mounted volume as a file system: each call goes to the volume itself, or, for what is not its own, to a snapshot or
//! the directory of snapshots (see [`crate::views`]).

use vfs::{
    Attr, Caller, Created, DirEntry, Error, FallocateMode, FileSystem, Handle, Ino, InodeFlags, OpenFlags,
    ROOT_INO, RenameFlags, Result, SeekFrom, SetAttr, Snapshots, Statfs, XattrMode,
};

use crate::Volume;
use crate::core::{Core, NextLog};
use crate::handles::is_of_snapshot;
use crate::views::{self, is_directory, is_one_tree, is_own};

impl Volume {
    /// Every operation that looks at the medium: see [`Medium::vouched`](crate::geometry::Medium::vouched).
    #[inline]
    fn vouched<T>(&self, call: impl FnOnce(&Core) -> Result<T>) -> Result<T> {
        self.core.medium.vouched(|| call(&self.core))
    }
}

impl FileSystem for Volume {
    fn lookup(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.vouched(|core| {
            if !is_own(dir) {
                return core.lookup_outside(caller, dir, name);
            }
            if is_directory(dir, name) {
                return core.lookup_directory(caller);
            }
            core.lookup(caller, dir, name)
        })
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.vouched(|core| {
            if is_own(ino) { core.getattr(ino) } else { core.outside(ino, |tree| tree.getattr(ino)) }
        })
    }

    fn is_volatile(&self, ino: Ino) -> bool {
        ino == views::DIRECTORY
    }

    fn unlisted(&self, dir: Ino) -> Option<DirEntry<'static>> {
        (dir == ROOT_INO).then_some(views::UNLISTED)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr, handle: Option<Handle>) -> Result<Attr> {
        let _op = nvm::operation("setattr");
        self.vouched(|core| {
            if !is_own(ino) {
                return core.outside(ino, |tree| tree.setattr(caller, ino, set, handle));
            }
            core.setattr(caller, ino, set, handle)
        })
    }

    fn set_inode_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        let _op = nvm::operation("setflags");
        self.vouched(|core| {
            if !is_own(ino) {
                return core.outside(ino, |tree| tree.set_inode_flags(caller, ino, flags));
            }
            core.set_flags(caller, ino, flags)
        })
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.vouched(|core| {
            if is_own(ino) { core.readlink(ino) } else { core.outside(ino, |tree| tree.readlink(ino)) }
        })
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        self.vouched(|core| {
            if !is_own(ino) {
                return core.outside(ino, |tree| tree.access(caller, ino, mask));
            }
            core.access(caller, ino, mask)
        })
    }

    fn mknod(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        let _op = nvm::operation("mknod");
        self.vouched(|core| {
            if !is_own(dir) {
                return core.outside(dir, |tree| tree.mknod(caller, dir, name, mode, rdev));
            }
            core.check_free(caller, dir, name)?;
            core.mknod(caller, dir, name, mode, rdev)
        })
    }

    fn mkdir(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let _op = nvm::operation("mkdir");
        self.vouched(|core| {
            if !is_own(dir) {
                return core.outside(dir, |tree| tree.mkdir(caller, dir, name, mode));
            }
            core.check_free(caller, dir, name)?;
            core.mkdir(caller, dir, name, mode)
        })
    }

    fn symlink(&self, caller: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let _op = nvm::operation("symlink");
        self.vouched(|core| {
            if !is_own(dir) {
                return core.outside(dir, |tree| tree.symlink(caller, dir, name, target));
            }
            core.check_free(caller, dir, name)?;
            core.symlink(caller, dir, name, target)
        })
    }

    fn link(&self, caller: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let _op = nvm::operation("link");
        self.vouched(|core| {
            if !is_one_tree(ino, dir) {
                return Err(Error::CrossDevice);
            }
            if !is_own(dir) {
                return core.outside(dir, |tree| tree.link(caller, ino, dir, name));
            }
            core.check_free(caller, dir, name)?;
            core.link(caller, ino, dir, name)
        })
    }

    fn unlink(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        let _op = nvm::operation("unlink");
        self.vouched(|core| {
            if !is_own(dir) {
                return core.outside(dir, |tree| tree.unlink(caller, dir, name));
            }
            core.check_movable(caller, dir, name)?;
            core.unlink(caller, dir, name)
        })
    }

    fn rmdir(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        let _op = nvm::operation("rmdir");
        self.vouched(|core| {
            if !is_own(dir) {
                return core.outside(dir, |tree| tree.rmdir(caller, dir, name));
            }
            core.check_movable(caller, dir, name)?;
            core.rmdir(caller, dir, name)
        })
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
        self.vouched(|core| {
            if !is_one_tree(dir, new_dir) {
                return Err(Error::CrossDevice);
            }
            if !is_own(dir) {
                return core.outside(dir, |tree| tree.rename(caller, dir, name, new_dir, new_name, flags));
            }
            core.check_movable(caller, dir, name)?;
            if flags.contains(RenameFlags::NOREPLACE) {
                core.check_free(caller, new_dir, new_name)?;
            }
            core.check_movable(caller, new_dir, new_name)?;
            core.rename(caller, (dir, name), (new_dir, new_name), flags)
        })
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let _op = nvm::operation("open");
        self.vouched(|core| {
            if !is_own(ino) {
                return core.outside(ino, |tree| tree.open(caller, ino, flags));
            }
            core.open(caller, ino, flags)
        })
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, flags: OpenFlags) -> Result<Created> {
        let _op = nvm::operation("create");
        self.vouched(|core| {
            if !is_own(dir) {
                return core.outside(dir, |tree| tree.create(caller, dir, name, mode, flags));
            }
            match core.check_free(caller, dir, name) {
                Err(Error::Exists) if !flags.contains(OpenFlags::EXCLUSIVE) => Err(Error::IsDirectory),
                free => free.and_then(|()| core.create(caller, dir, name, mode, flags)),
            }
        })
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, flags: OpenFlags) -> Result<Created> {
        let _op = nvm::operation("tmpfile");
        self.vouched(|core| {
            if !is_own(dir) {
                return core.outside(dir, |tree| tree.tmpfile(caller, dir, mode, flags));
            }
            core.tmpfile(caller, dir, mode, flags)
        })
    }

    fn release(&self, handle: Handle) -> Result<()> {
        let _op = nvm::operation("release");
        if is_of_snapshot(handle) {
            return self.core.outside_opened(handle, |tree| tree.release(handle));
        }
        self.core.release(handle)
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.vouched(|core| {
            if is_of_snapshot(handle) {
                return core.outside_opened(handle, |tree| tree.read(handle, offset, buf));
            }
            core.read(handle, offset, buf)
        })
    }

    fn read_slices(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        self.vouched(|core| {
            if is_of_snapshot(handle) {
                return core.outside_opened(handle, |tree| tree.read_slices(handle, offset, len, sink));
            }
            core.read_slices(handle, offset, len, sink)
        })
    }

    fn write(&self, caller: &Caller, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let _op = nvm::operation("write");
        self.vouched(|core| {
            if is_of_snapshot(handle) {
                return core.outside_opened(handle, |tree| tree.write(caller, handle, offset, data));
            }
            core.write(caller, handle, offset, data)
        })
    }

    fn fsync(&self, handle: Handle, data_only: bool) -> Result<()> {
        let _op = nvm::operation("fsync");
        self.vouched(|core| {
            if is_of_snapshot(handle) {
                return core.outside_opened(handle, |tree| tree.fsync(handle, data_only));
            }
            core.fsync(handle)
        })
    }

    fn fsync_inode(&self, ino: Ino) -> Result<()> {
        let _op = nvm::operation("fsync");
        self.vouched(|core| {
            if !is_own(ino) {
                return core.outside(ino, |tree| tree.fsync_inode(ino));
            }
            core.fsync_inode(ino)
        })
    }

    fn syncfs(&self) -> Result<()> {
        let _op = nvm::operation("syncfs");
        self.vouched(|core| if core.options.read_only { Ok(()) } else { core.checkpoint(NextLog::WithEpoch) })
    }

    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.vouched(|core| {
            if !is_own(dir) {
                return core.outside(dir, |tree| tree.readdir(dir, from, sink));
            }
            core.readdir(dir, from, sink)
        })
    }

    fn statfs(&self) -> Result<Statfs> {
        self.core.statfs()
    }

    fn statfs_of(&self, ino: Ino) -> Result<Statfs> {
        if is_own(ino) { self.statfs() } else { self.vouched(|core| core.outside(ino, |tree| tree.statfs())) }
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.vouched(|core| {
            if !is_own(ino) {
                return core.outside(ino, |tree| tree.getxattr(caller, ino, name));
            }
            core.getxattr(caller, ino, name)
        })
    }

    fn setxattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let _op = nvm::operation("setxattr");
        self.vouched(|core| {
            if !is_own(ino) {
                return core.outside(ino, |tree| tree.setxattr(caller, ino, name, value, mode));
            }
            core.setxattr(caller, ino, name, value, mode)
        })
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.vouched(|core| {
            if !is_own(ino) {
                return core.outside(ino, |tree| tree.listxattr(caller, ino));
            }
            core.listxattr(caller, ino)
        })
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        let _op = nvm::operation("removexattr");
        self.vouched(|core| {
            if !is_own(ino) {
                return core.outside(ino, |tree| tree.removexattr(caller, ino, name));
            }
            core.removexattr(caller, ino, name)
        })
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
        self.vouched(|core| {
            if is_of_snapshot(handle) {
                return core.outside_opened(handle, |tree| tree.fallocate(caller, handle, mode, offset, len));
            }
            core.fallocate(caller, handle, mode, offset, len)
        })
    }

    fn seek(&self, handle: Handle, from: SeekFrom) -> Result<u64> {
        self.vouched(|core| {
            if is_of_snapshot(handle) {
                return core.outside_opened(handle, |tree| tree.seek(handle, from));
            }
            core.seek(handle, from)
        })
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
        self.vouched(|core| {
            if is_of_snapshot(to) {
                return Err(Error::BadHandle); // none is open for writing
            }
            if is_of_snapshot(from) {
                return core.outside_opened(from, |_| Err(Error::CrossDevice));
            }
            core.copy_file_range(caller, (from, from_offset), (to, to_offset), len)
        })
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
