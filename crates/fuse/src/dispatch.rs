//! The kernel's requests, one by one, in the order of the library's trait.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, TimeOrNow, WriteFlags,
};
use vfs::{Attr, Error, SeekFrom, SetAttr, XattrMode};

use crate::convert::{
    TTL, create_flags, fallocate_mode, file_attr, generation, in_directory, no_entry, rename_flags, set_time,
    time,
};
use crate::requests::Request;
use crate::server::{Handled, Server, caller, content_changer};

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

const ACCESS_ACL: &str = "system.posix_acl_access";

/// Handles are not used: see `inodes.rs`.
const NO_HANDLE: FileHandle = FileHandle(0);

fn answer_entry(reply: ReplyEntry, handled: Handled<'_, Attr>) {
    match handled.result {
        Ok(attr) => reply.entry(&TTL, &file_attr(&attr), generation(&attr)),
        Err(errno) => reply.error(errno),
    }
}

/// Attributes that the kernel may believe for so long.
fn answer_attr(reply: ReplyAttr, ttl: Duration, handled: Handled<'_, Attr>) {
    match handled.result {
        Ok(attr) => reply.attr(&ttl, &file_attr(&attr)),
        Err(errno) => reply.error(errno),
    }
}

fn answer(reply: ReplyEmpty, handled: Handled<'_, ()>) {
    match handled.result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// `size` 0 asks for the length only.
fn answer_xattr(reply: ReplyXattr, size: u32, handled: Handled<'_, Vec<u8>>) {
    match handled.result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for Server {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        self.negotiate(config);
        Ok(())
    }

    fn destroy(&mut self) {
        self.inodes.clear();
    }

    fn lookup(&self, request: &fuser::Request, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let handled = self.handle(Request::Lookup, || {
            self.entry(|| self.volume.lookup(&caller(request, 0), dir.0, name.as_bytes()))
        });
        match handled.result {
            Ok(attr) => {
                reply.entry(&self.entry_ttl(dir.0, attr.ino), &file_attr(&attr), generation(&attr));
            }
            Err(errno) if errno == Errno::ENOENT => {
                reply.entry(&self.ttl(dir.0), &no_entry(), Generation(0));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _: &fuser::Request, ino: INodeNo, count: u64) {
        // No reply; a panic has been logged.
        let _ = self.handle(Request::Forget, || {
            self.inodes.forget(ino.0, count);
            Ok(())
        });
    }

    fn getattr(&self, _: &fuser::Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        answer_attr(reply, self.ttl(ino.0), self.handle(Request::Getattr, || Server::getattr(self, ino.0)));
    }

    fn setattr(
        &self,
        request: &fuser::Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let handled = self.handle(Request::Setattr, || {
            let set = SetAttr {
                mode: mode.map(|mode| mode & 0o7777),
                uid,
                gid,
                size,
                atime: atime.map(set_time),
                mtime: mtime.map(set_time),
                ctime: ctime.map(time),
            };
            Server::setattr(self, &caller(request, 0), ino.0, set)
        });
        answer_attr(reply, self.ttl(ino.0), handled);
    }

    fn readlink(&self, _: &fuser::Request, ino: INodeNo, reply: ReplyData) {
        match self.handle(Request::Readlink, || self.volume.readlink(ino.0)).result {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        request: &fuser::Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let handled = self.handle(Request::Mknod, || {
            self.entry(|| self.volume.mknod(&caller(request, umask), dir.0, name.as_bytes(), mode, rdev))
        });
        answer_entry(reply, handled);
    }

    fn mkdir(
        &self,
        request: &fuser::Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let handled = self.handle(Request::Mkdir, || {
            self.entry(|| self.volume.mkdir(&caller(request, umask), dir.0, name.as_bytes(), mode))
        });
        answer_entry(reply, handled);
    }

    fn unlink(&self, request: &fuser::Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let handled = self.handle(Request::Unlink, || {
            let (caller, name) = (caller(request, 0), name.as_bytes());
            self.removing(&caller, dir.0, name, || self.volume.unlink(&caller, dir.0, name))
        });
        answer(reply, handled);
    }

    fn rmdir(&self, request: &fuser::Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let handled = self.handle(Request::Rmdir, || {
            let (caller, name) = (caller(request, 0), name.as_bytes());
            self.removing(&caller, dir.0, name, || self.volume.rmdir(&caller, dir.0, name))
        });
        answer(reply, handled);
    }

    fn symlink(
        &self,
        request: &fuser::Request,
        dir: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let handled = self.handle(Request::Symlink, || {
            let target = target.as_os_str().as_bytes();
            self.entry(|| self.volume.symlink(&caller(request, 0), dir.0, name.as_bytes(), target))
        });
        answer_entry(reply, handled);
    }

    fn rename(
        &self,
        request: &fuser::Request,
        dir: INodeNo,
        name: &OsStr,
        new_dir: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let handled = self.handle(Request::Rename, || {
            let flags = rename_flags(flags)?;
            let (caller, name, new_name) = (caller(request, 0), name.as_bytes(), new_name.as_bytes());
            let rename = || self.volume.rename(&caller, dir.0, name, new_dir.0, new_name, flags);
            if flags.is_empty() {
                self.removing(&caller, new_dir.0, new_name, rename)
            } else {
                rename().map_err(in_directory) // Neither flag lets an inode lose its name.
            }
        });
        answer(reply, handled);
    }

    fn link(
        &self,
        request: &fuser::Request,
        ino: INodeNo,
        new_dir: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let handled = self.handle(Request::Link, || {
            self.entry(|| self.volume.link(&caller(request, 0), ino.0, new_dir.0, new_name.as_bytes()))
        });
        answer_entry(reply, handled);
    }

    /// "Never ask again."
    fn open(&self, _: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.counters.count(Request::Open);
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut reply = Some(reply);
        let handled =
            self.handle(Request::Read, || Server::read(self, ino.0, offset, size as usize, &mut reply));
        if let (Some(reply), Err(errno)) = (reply, handled.result) {
            reply.error(errno);
        }
    }

    fn write(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let handled = self.handle(Request::Write, || Server::write(self, ino.0, offset, data, write_flags));
        match handled.result {
            Ok(written) => reply.written(written as u32),
            Err(errno) => reply.error(errno),
        }
    }

    /// "Never ask again": the kernel has written dirty pages before it asks.
    fn flush(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.counters.count(Request::Flush);
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.counters.count(Request::Release);
        reply.ok();
    }

    fn fsync(&self, _: &fuser::Request, ino: INodeNo, _: FileHandle, data_only: bool, reply: ReplyEmpty) {
        if self.durable_operations {
            self.counters.count(Request::Fsync);
            return reply.error(Errno::ENOSYS); // "Never ask again": the pages have been written before.
        }
        let handled = self.handle(Request::Fsync, || Server::fsync(self, ino.0, data_only));
        answer(reply, handled);
    }

    /// "Never ask again."
    fn opendir(&self, _: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.counters.count(Request::Opendir);
        reply.error(Errno::ENOSYS);
    }

    fn readdir(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        match self.handle(Request::Readdir, || self.list(ino.0, offset, &mut reply)).result {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        match self.handle(Request::Readdirplus, || self.list_plus(ino.0, offset, &mut reply)).result {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn releasedir(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.counters.count(Request::Releasedir);
        reply.ok();
    }

    fn fsyncdir(&self, _: &fuser::Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if self.durable_operations {
            self.counters.count(Request::Fsyncdir);
            return reply.error(Errno::ENOSYS);
        }
        answer(reply, self.handle(Request::Fsyncdir, || self.volume.fsync_inode(ino.0)));
    }

    fn statfs(&self, _: &fuser::Request, _: INodeNo, reply: ReplyStatfs) {
        match self.handle(Request::Statfs, || self.volume.statfs()).result {
            Ok(space) => reply.statfs(
                space.blocks,
                space.blocks_free,
                space.blocks_available,
                space.files,
                space.files_free,
                space.block_size,
                vfs::NAME_MAX as u32,
                space.block_size,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn setxattr(
        &self,
        request: &fuser::Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let handled = self.handle(Request::Setxattr, || {
            let mode = match flags {
                0 => XattrMode::Either,
                XATTR_CREATE => XattrMode::Create,
                XATTR_REPLACE => XattrMode::Replace,
                _ => return Err(Error::Invalid),
            };
            let caller = caller(request, 0);
            if name == ACCESS_ACL && request.uid() != 0 {
                self.before_acl(&caller, request.pid(), ino.0)?;
            }
            self.volume.setxattr(&caller, ino.0, name.as_bytes(), value, mode)
        });
        answer(reply, handled);
    }

    fn getxattr(&self, request: &fuser::Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let handled = self
            .handle(Request::Getxattr, || self.volume.getxattr(&caller(request, 0), ino.0, name.as_bytes()));
        answer_xattr(reply, size, handled);
    }

    fn listxattr(&self, request: &fuser::Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let handled = self.handle(Request::Listxattr, || {
            let names = self.volume.listxattr(&caller(request, 0), ino.0)?;
            Ok(if request.uid() == 0 { names } else { without_trusted(&names) })
        });
        answer_xattr(reply, size, handled);
    }

    fn removexattr(&self, request: &fuser::Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let handled = self.handle(Request::Removexattr, || {
            self.volume.removexattr(&caller(request, 0), ino.0, name.as_bytes())
        });
        answer(reply, handled);
    }

    /// Does not come with `default_permissions`.
    fn access(&self, _: &fuser::Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        self.counters.count(Request::Access);
        reply.error(Errno::ENOSYS);
    }

    fn create(
        &self,
        request: &fuser::Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let handled = self.handle(Request::Create, || {
            let created = self
                .volume
                .create(&caller(request, umask), dir.0, name.as_bytes(), mode, create_flags(flags))
                .map_err(in_directory)?;
            self.inodes.remember_open(created.attr.ino, created.handle);
            Ok(created.attr)
        });
        let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
        match handled.result {
            Ok(attr) => reply.created(&TTL, &file_attr(&attr), generation(&attr), NO_HANDLE, flags),
            Err(errno) => reply.error(errno),
        }
    }

    fn fallocate(
        &self,
        request: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let handled = self.handle(Request::Fallocate, || {
            let mode = fallocate_mode(mode)?;
            let file = self.inodes.file(ino.0)?;
            self.volume.fallocate(&content_changer(request), file.handle(), mode, offset, length)
        });
        answer(reply, handled);
    }

    fn lseek(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        if self.writeback_cache {
            // The kernel asks without having written its dirty pages, so the volume's answer would be wrong.
            // With "never ask again", all of every file is data.
            self.counters.count(Request::Lseek);
            return reply.error(Errno::ENOSYS);
        }
        let handled = self.handle(Request::Lseek, || {
            let offset = u64::try_from(offset).map_err(|_| Error::NoSuchOffset)?;
            let from = match whence {
                SEEK_DATA => SeekFrom::Data(offset),
                SEEK_HOLE => SeekFrom::Hole(offset),
                _ => return Err(Error::Invalid),
            };
            self.volume.seek(self.inodes.file(ino.0)?.handle(), from)
        });
        match handled.result {
            Ok(offset) => reply.offset(offset as i64),
            Err(errno) => reply.error(errno),
        }
    }

    fn copy_file_range(
        &self,
        request: &fuser::Request,
        ino_in: INodeNo,
        _: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _: FileHandle,
        offset_out: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let handled = self.handle(Request::CopyFileRange, || {
            let (from, to) = (self.inodes.file(ino_in.0)?, self.inodes.file(ino_out.0)?);
            let len = len.min(COPY_MAX);
            let caller = content_changer(request);
            self.volume.copy_file_range(&caller, from.handle(), offset_in, to.handle(), offset_out, len)
        });
        match handled.result {
            Ok(copied) => reply.written(copied as u32),
            Err(errno) => reply.error(errno),
        }
    }
}

/// The reply has 32 bits for the length; whoever copies more asks again.
const COPY_MAX: u64 = 1 << 30;

/// Only the superuser sees attributes of the `trusted` namespace.
fn without_trusted(names: &[u8]) -> Vec<u8> {
    names
        .split_inclusive(|&byte| byte == 0)
        .filter(|name| !name.starts_with(b"trusted."))
        .flatten()
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trusted_names_are_left_out() {
        assert_eq!(without_trusted(b"user.a\0trusted.b\0security.c\0"), b"user.a\0security.c\0");
        assert_eq!(without_trusted(b"trusted.b\0"), b"");
        assert_eq!(without_trusted(b""), b"");
    }
}
