//! The kernel's messages, one by one, in the order of their numbers.

use std::cell::RefCell;

use rustix::io::Errno;
use vfs::{Attr, Error, FileKind, Ino, InodeFlags, RenameFlags, Result, SeekFrom, XattrMode};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{
    self, BatchForgetIn, CopyFileRangeIn, CopyFileRangeOut, CreateIn, EntryOut, ExtendedFlags, FallocateIn,
    ForgetIn, ForgetOne, FsyncIn, GetattrIn, GetxattrIn, GetxattrOut, IoctlIn, IoctlOut, LinkIn, LseekIn,
    LseekOut, MkdirIn, MknodIn, Opcode, OpenOut, ReadIn, Rename2In, RenameIn, SetattrIn, SetxattrIn, Valid,
    WriteIn, WriteOut,
};
use crate::convert::{
    LASTING, attr_out, create_flags, entry_out, extended_flags, fallocate_mode, flags_of_extended,
    in_directory, no_entry_out, rename_flags, set_attr, statfs_out, statx_out,
};
use crate::credentials::caller;
use crate::message::{Handled, Message, Reply};
use crate::requests::Request;
use crate::server::Server;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
const XATTR_BOTH: u32 = XATTR_CREATE | XATTR_REPLACE;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

impl Server {
    /// Does what `message` asks for and answers it.
    pub(crate) fn serve(&self, message: &Message<'_>, reply: Reply<'_>) {
        let Some(opcode) = Opcode::of(message.header.opcode) else {
            return reply.error(Errno::NOSYS); // "never ask again"
        };
        let ino = message.ino();
        match opcode {
            Opcode::Lookup => reply.answer(self.handle(Request::Lookup, || self.found(message))),
            Opcode::Forget | Opcode::BatchForget => {
                // No answer; a panic has been logged.
                let _ = self.handle(Request::Forget, || self.forget(opcode, message));
            }
            Opcode::Getattr => reply.answer(self.handle(Request::Getattr, || {
                // In an open file's name the kernel asks before it lets somebody write to its pages.
                if self.writeback_cache && message.arguments::<GetattrIn>()?.flags & abi::GETATTR_OF_FILE != 0
                {
                    self.tell_writer(ino)?;
                }
                Ok(attr_out(&self.getattr(ino)?, self.ttl(ino)))
            })),
            Opcode::Statx if !self.birth_times => self.never(Request::Statx, reply),
            Opcode::Statx => reply
                .answer(self.handle(Request::Statx, || Ok(statx_out(&self.getattr(ino)?, self.ttl(ino))))),
            Opcode::Setattr => reply.answer(self.handle(Request::Setattr, || {
                let wanted = message.arguments::<SetattrIn>()?;
                let kill = Valid::from_bits_truncate(wanted.valid).contains(Valid::KILL_PRIVILEGES);
                let attr = self.setattr(&message.header, ino, set_attr(&wanted), kill)?;
                Ok(attr_out(&attr, self.ttl(ino)))
            })),
            Opcode::Readlink => {
                answer_bytes(reply, self.handle(Request::Readlink, || self.volume.readlink(ino)));
            }
            Opcode::Symlink => reply.answer(self.made(Request::Symlink, || {
                let (name, target) = message.names()?;
                self.volume.symlink(&caller(&message.header, 0), ino, name, target)
            })),
            Opcode::Mknod => reply.answer(self.made(Request::Mknod, || {
                let MknodIn { mode, rdev, umask, .. } = message.arguments()?;
                self.volume.mknod(&caller(&message.header, umask), ino, message.name()?, mode, rdev)
            })),
            Opcode::Mkdir => reply.answer(self.made(Request::Mkdir, || {
                let MkdirIn { mode, umask } = message.arguments()?;
                self.volume.mkdir(&caller(&message.header, umask), ino, message.name()?, mode)
            })),
            Opcode::Unlink => reply.answer(self.handle(Request::Unlink, || {
                let (caller, name) = (caller(&message.header, 0), message.name()?);
                self.removing(&caller, ino, name, || self.volume.unlink(&caller, ino, name))
            })),
            Opcode::Rmdir => reply.answer(self.handle(Request::Rmdir, || {
                let (caller, name) = (caller(&message.header, 0), message.name()?);
                self.removing(&caller, ino, name, || self.volume.rmdir(&caller, ino, name))
            })),
            Opcode::Rename => reply.answer(self.handle(Request::Rename, || {
                let RenameIn { newdir } = message.arguments()?;
                self.rename(message, newdir, 0)
            })),
            Opcode::Rename2 => reply.answer(self.handle(Request::Rename, || {
                let Rename2In { newdir, flags, .. } = message.arguments()?;
                self.rename(message, newdir, flags)
            })),
            Opcode::Link => reply.answer(self.made(Request::Link, || {
                let LinkIn { oldnodeid } = message.arguments()?;
                let linked =
                    self.volume.link(&caller(&message.header, 0), oldnodeid, ino, message.name()?)?;
                self.inodes.named(oldnodeid);
                Ok(linked)
            })),
            Opcode::Read => self.answer_read(message, reply),
            Opcode::Write => reply.answer(self.handle(Request::Write, || {
                let WriteIn { offset, size, write_flags, flags, .. } = message.arguments()?;
                let data = message.payload().get(..size as usize).ok_or(Error::Invalid)?;
                Ok(WriteOut {
                    size: self.write(&message.header, offset, data, write_flags, flags)? as u32,
                    padding: 0,
                })
            })),
            Opcode::Statfs => {
                reply.answer(self.handle(Request::Statfs, || Ok(statfs_out(&self.volume.statfs_of(ino)?))));
            }
            // "Never ask again", unless pages are kept back: those that the kernel cannot send, because the server is dead, it drops
            // without a word (`fuse_send_writepage`), and only this message, which cannot be sent either, makes an error of it.
            Opcode::Fsync if self.durable_operations && !self.writeback_cache => {
                self.never(Request::Fsync, reply);
            }
            Opcode::Fsync => reply.answer(self.handle(Request::Fsync, || {
                let FsyncIn { fsync_flags, .. } = message.arguments()?;
                self.fsync(ino, fsync_flags & abi::FSYNC_DATA != 0)
            })),
            Opcode::Setxattr => reply.answer(self.handle(Request::Setxattr, || self.setxattr(message))),
            Opcode::Getxattr => self.answer_xattr(message, reply, Request::Getxattr, || {
                let name = message.name()?;
                let value = self.volume.getxattr(&caller(&message.header, 0), ino, name);
                let asks_for_length = message.arguments::<GetxattrIn>()?.size == 0;
                if asks_for_length { self.or_pretended(ino, name, value) } else { value }
            }),
            Opcode::Listxattr => self.answer_xattr(message, reply, Request::Listxattr, || {
                let names = self.volume.listxattr(&caller(&message.header, 0), ino)?;
                Ok(if message.header.uid == 0 { names } else { without_trusted(&names) })
            }),
            Opcode::Removexattr => reply.answer(self.handle(Request::Removexattr, || {
                let name = message.name()?;
                let removed = self.volume.removexattr(&caller(&message.header, 0), ino, name);
                removed.map_err(|error| self.or_protection(ino, name, error))
            })),
            // "Never ask again": see `inodes.rs`.
            Opcode::Open => self.never(Request::Open, reply),
            Opcode::Opendir => self.never(Request::Opendir, reply),
            // The kernel has written dirty pages before it asks.
            Opcode::Flush if !self.checked_close => self.never(Request::Flush, reply),
            Opcode::Flush => reply.answer(self.handle(Request::Flush, || self.tell_at_close(ino))),
            // Does not come with `default_permissions`.
            Opcode::Access => self.never(Request::Access, reply),
            Opcode::Release => reply.answer(self.handle(Request::Release, || Ok(()))),
            Opcode::Releasedir => reply.answer(self.handle(Request::Releasedir, || Ok(()))),
            Opcode::Readdir => self.answer_list(message, reply, Request::Readdir),
            Opcode::Readdirplus => self.answer_list(message, reply, Request::Readdirplus),
            Opcode::Fsyncdir if self.durable_operations => self.never(Request::Fsyncdir, reply),
            Opcode::Fsyncdir => {
                reply.answer(self.handle(Request::Fsyncdir, || self.volume.fsync_inode(ino)));
            }
            // "Never ask again": then the kernel makes a file (`mknod`) and opens it without a message, and tells nobody when it is closed.
            Opcode::Create => self.never(Request::Create, reply),
            Opcode::Tmpfile => reply.answer(self.handle(Request::Tmpfile, || self.tmpfile(message))),
            Opcode::Fallocate => reply.answer(self.handle(Request::Fallocate, || {
                let FallocateIn { offset, length, mode, .. } = message.arguments()?;
                let (file, mode) = (self.inodes.file_to_change(ino)?, fallocate_mode(mode)?);
                self.changing(ino, &message.header, message.header.uid == 0, |caller| {
                    self.with_room(|| self.volume.fallocate(caller, file.handle(), mode, offset, length))
                })
            })),
            // The kernel asks without having written its dirty pages, so the volume's answer would be wrong.
            // With "never ask again", all of every file is data, up to an end that the kernel may know alone.
            Opcode::Lseek if self.writeback_cache => self.never(Request::Lseek, reply),
            Opcode::Lseek => reply.answer(self.handle(Request::Lseek, || self.seek(message))),
            Opcode::CopyFileRange => reply.answer(self.handle(Request::CopyFileRange, || {
                Ok(WriteOut { size: self.copy(message)? as u32, padding: 0 })
            })),
            Opcode::CopyFileRange64 => reply.answer(
                self.handle(Request::CopyFileRange, || Ok(CopyFileRangeOut { copied: self.copy(message)? })),
            ),
            Opcode::Ioctl => self.answer_ioctl(message, reply),
            // What waits here waits for a disk, and what is on its way there cannot be called back.
            Opcode::Interrupt => reply.error(Errno::NOSYS),
            Opcode::Destroy => reply.data(&[]),
            // Once, before anything else: see `handshake.rs`.
            Opcode::Init => reply.error(Errno::PROTO),
        }
    }

    /// "Never ask again."
    fn never(&self, request: Request, reply: Reply<'_>) {
        self.counters.count(request);
        reply.error(Errno::NOSYS);
    }

    /// Answers with what `make` made.
    fn made(&self, request: Request, make: impl FnMut() -> Result<Attr>) -> Handled<'_, EntryOut> {
        self.handle(request, || Ok(entry_out(&self.entry(make)?, LASTING)))
    }

    fn found(&self, message: &Message<'_>) -> Result<EntryOut> {
        let (dir, name) = (message.ino(), message.name()?);
        let caller = caller(&message.header, 0);
        // By these two names the kernel asks only about what it has a file handle of, and of which it knows nothing else: of any kind.
        let found = self.entry(|| match name {
            b"." => self.by_number(dir),
            b".." => self.above(&caller, dir, message.header.pid),
            _ => self.volume.lookup(&caller, dir, name),
        });
        match found {
            Ok(attr) => Ok(entry_out(&attr, self.belief(dir, attr.ino))),
            Err(Error::NotFound) => Ok(no_entry_out(self.ttl(dir))),
            Err(error) => Err(error),
        }
    }

    fn forget(&self, opcode: Opcode, message: &Message<'_>) -> Result<()> {
        if opcode == Opcode::Forget {
            let ForgetIn { nlookup } = message.arguments()?;
            self.inodes.forget(message.ino(), nlookup);
            return Ok(());
        }
        let BatchForgetIn { count, .. } = message.arguments()?;
        let each = message.payload().chunks_exact(size_of::<ForgetOne>());
        for one in each.take(count as usize) {
            if let Ok(ForgetOne { nodeid, nlookup }) = zerocopy::FromBytes::read_from_bytes(one) {
                self.inodes.forget(nodeid, nlookup);
            }
        }
        Ok(())
    }

    fn rename(&self, message: &Message<'_>, new_dir: Ino, flags: u32) -> Result<()> {
        let flags = rename_flags(flags)?;
        let (caller, (name, new_name)) = (caller(&message.header, 0), message.names()?);
        let rename =
            || self.with_room(|| self.volume.rename(&caller, message.ino(), name, new_dir, new_name, flags));
        if flags.intersects(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE) {
            rename().map_err(in_directory)?; // Neither flag lets an inode lose its name.
        } else {
            self.removing(&caller, new_dir, new_name, rename)?;
        }
        if new_dir != message.ino() {
            self.has_moved(&caller, new_dir, new_name);
            if flags.contains(RenameFlags::EXCHANGE) {
                self.has_moved(&caller, message.ino(), name);
            }
        }
        Ok(())
    }

    /// Handles are not used: see `inodes.rs`.
    fn tmpfile(&self, message: &Message<'_>) -> Result<Created> {
        let CreateIn { flags, mode, umask, .. } = message.arguments()?;
        let caller = caller(&message.header, umask);
        let make = || self.volume.tmpfile(&caller, message.ino(), mode, create_flags(flags));
        let created = self.with_room(make);
        let created = created.map_err(in_directory)?;
        self.inodes.remember_nameless(created.attr.ino, created.handle);
        let open_flags = abi::OPEN_KEEP_CACHE | abi::OPEN_NOFLUSH;
        Ok(Created {
            entry: entry_out(&created.attr, LASTING),
            open: OpenOut { fh: 0, open_flags, backing_id: 0 },
        })
    }

    fn answer_read(&self, message: &Message<'_>, reply: Reply<'_>) {
        thread_local! {
            static GATHERED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        let mut reply = reply;
        GATHERED.with_borrow_mut(|gathered| {
            gathered.clear();
            let handled = self.handle(Request::Read, || {
                let ReadIn { offset, size, .. } = message.arguments()?;
                self.read(message.ino(), offset, size as usize, &mut reply, gathered)
            });
            reply.conclude(handled.result, gathered);
        });
    }

    fn answer_list(&self, message: &Message<'_>, reply: Reply<'_>, request: Request) {
        let handled = self.handle(request, || {
            let ReadIn { offset, size, .. } = message.arguments()?;
            let limit = size as usize;
            match request {
                Request::Readdirplus => self.list_plus(message, offset, limit),
                _ => self.list(message, offset, limit),
            }
        });
        answer_bytes(reply, handled);
    }

    /// A size of 0 asks for the length only.
    fn answer_xattr(
        &self,
        message: &Message<'_>,
        reply: Reply<'_>,
        request: Request,
        get: impl FnOnce() -> Result<Vec<u8>>,
    ) {
        let mut wanted = 0;
        let handled = self.handle(request, || {
            wanted = message.arguments::<GetxattrIn>()?.size as usize;
            let value = get()?;
            if wanted != 0 && value.len() > wanted { Err(Error::Range) } else { Ok(value) }
        });
        match &handled.result {
            Ok(value) if wanted == 0 => {
                reply.data(zerocopy::IntoBytes::as_bytes(&GetxattrOut {
                    size: value.len() as u32,
                    padding: 0,
                }));
            }
            _ => answer_bytes(reply, handled),
        }
    }

    fn setxattr(&self, message: &Message<'_>) -> Result<()> {
        let SetxattrIn { size, flags, setxattr_flags, .. } = message.arguments()?;
        let (name, value) = message.name_and_data(size as usize)?;
        let mode = match flags {
            0 => XattrMode::Either,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            // No attribute can be both.
            XATTR_BOTH => {
                let there = self.volume.getxattr(&caller(&message.header, 0), message.ino(), name);
                return Err(there.err().unwrap_or(Error::Exists));
            }
            _ => return Err(Error::Invalid),
        };
        let caller = caller(&message.header, 0);
        // The kernel says so of default ACLs, too, for which the bit stays.
        if setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0 && name == ACCESS_ACL {
            self.without_set_group_id(&caller, message.ino())?;
        }
        self.with_room(|| self.volume.setxattr(&caller, message.ino(), name, value, mode))
    }

    fn seek(&self, message: &Message<'_>) -> Result<LseekOut> {
        let LseekIn { offset, whence, .. } = message.arguments()?;
        if i64::try_from(offset).is_err() {
            return Err(Error::NoSuchOffset);
        }
        let from = match whence {
            SEEK_DATA => SeekFrom::Data(offset),
            SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Error::Invalid),
        };
        let ino = message.ino();
        let file = self.inodes.file(ino)?;
        if !self.inodes.may_have_dirty_pages(ino, &file) {
            return Ok(LseekOut { offset: self.volume.seek(file.handle(), from)? });
        }
        // What is stored to a mapping is in the kernel's pages, over what are holes here: so nothing is a hole.
        let size = self.volume.getattr(ino)?.size;
        match from {
            _ if offset >= size => Err(Error::NoSuchOffset),
            SeekFrom::Data(_) => Ok(LseekOut { offset }),
            SeekFrom::Hole(_) => Ok(LseekOut { offset: size }),
        }
    }

    /// Flags of inodes, of which the kernel tells by itself what is asked of any file: it has seen to who may change which.
    fn answer_ioctl(&self, message: &Message<'_>, reply: Reply<'_>) {
        let ino = message.ino();
        let handled = self.handle(Request::Ioctl, || match message.arguments::<IoctlIn>()?.cmd {
            abi::IOCTL_GET_FLAGS => Ok(Some(self.volume.getattr(ino)?.flags.bits().as_bytes().to_vec())),
            abi::IOCTL_GET_EXTENDED_FLAGS => {
                Ok(Some(extended_flags(self.volume.getattr(ino)?.flags).as_bytes().to_vec()))
            }
            abi::IOCTL_SET_FLAGS => {
                let flags = message.payload().first_chunk().ok_or(Error::Invalid)?;
                self.set_flags(message, InodeFlags::from_bits_retain(u32::from_ne_bytes(*flags)))
            }
            abi::IOCTL_SET_EXTENDED_FLAGS => {
                let (wanted, _) =
                    ExtendedFlags::read_from_prefix(message.payload()).map_err(|_| Error::Invalid)?;
                self.set_flags(message, flags_of_extended(self.volume.getattr(ino)?.flags, &wanted)?)
            }
            _ => Ok(None),
        });
        match &handled.result {
            Ok(Some(answer)) => reply.parts(&[IoctlOut::default().as_bytes(), answer]),
            Ok(None) => reply.error(Errno::NOSYS), // "no such request": ENOTTY
            Err(errno) => reply.error(*errno),
        }
    }

    fn set_flags(&self, message: &Message<'_>, flags: InodeFlags) -> Result<Option<Vec<u8>>> {
        let (ino, caller) = (message.ino(), caller(&message.header, 0));
        // The kernel does not stamp this change, and believes nobody else about a time that it keeps.
        let caller = match self.volume.getattr(ino)?.kind() {
            FileKind::Regular => self.changing_contents(caller),
            _ => caller,
        };
        self.inodes.reopened(ino, || self.volume.set_inode_flags(&caller, ino, flags))?;
        // Else the next write to its pages would not ask whether there may be one (`refusals.rs`).
        self.invalidate_attributes(ino);
        Ok(Some(Vec::new()))
    }

    fn copy(&self, message: &Message<'_>) -> Result<u64> {
        let CopyFileRangeIn { off_in, nodeid_out, off_out, len, .. } = message.arguments()?;
        let (from, to) = (self.inodes.file(message.ino())?, self.inodes.file_to_change(nodeid_out)?);
        self.changing(nodeid_out, &message.header, message.header.uid == 0, |caller| {
            let len = len.min(COPY_MAX);
            self.with_room(|| {
                self.volume.copy_file_range(caller, from.handle(), off_in, to.handle(), off_out, len)
            })
        })
    }
}

/// The answer to a `create`.
#[repr(C)]
#[derive(zerocopy::IntoBytes, zerocopy::Immutable)]
struct Created {
    entry: EntryOut,
    open: OpenOut,
}

fn answer_bytes(reply: Reply<'_>, handled: Handled<'_, Vec<u8>>) {
    match &handled.result {
        Ok(bytes) => reply.data(bytes),
        Err(errno) => reply.error(*errno),
    }
}

/// What one request copies, so that others on its processor need not wait long: whoever copies more asks again.
const COPY_MAX: u64 = 64 << 20;

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
    use std::sync::Arc;

    use vfs::{Caller, FileSystem, SetAttr};

    use super::*;

    /// The kernel says of both kinds of ACL that the caller is not of the group.
    #[test]
    fn an_access_acl_takes_set_group_id_away_and_a_default_one_does_not() {
        let model = Arc::new(vfs::model::Model::new());
        let server = Server::new(model.clone(), &crate::MountOptions::default(), std::sync::Weak::new());
        let root = Caller::root();
        let set = |ino, name: &[u8]| {
            // Version 2; owner, group, others: tag, permissions, nobody's number.
            let value: Vec<u8> = [2, 0x7_0001, u32::MAX, 0x5_0004, u32::MAX, 0x5_0020, u32::MAX]
                .iter()
                .flat_map(|word: &u32| word.to_le_bytes())
                .collect();
            let wanted = SetxattrIn {
                size: value.len() as u32,
                setxattr_flags: abi::SETXATTR_ACL_KILL_SGID,
                ..SetxattrIn::default()
            };
            let header = abi::InHeader { nodeid: ino, uid: 0, opcode: 21, ..abi::InHeader::default() };
            let payload = [name, b"\0", &value].concat();
            server.setxattr(&Message::of_parts(header, wanted.as_bytes(), &payload)).unwrap();
            model.getattr(ino).unwrap().mode & 0o7777
        };
        let made = model.mkdir(&root, vfs::ROOT_INO, b"dir", 0o755).unwrap().ino;
        let bit = SetAttr { mode: Some(0o2755), ..SetAttr::default() };
        model.setattr(&root, made, &bit, None).unwrap();
        assert_eq!(set(made, b"system.posix_acl_default"), 0o2755);
        assert_eq!(set(made, b"system.posix_acl_access"), 0o755);
    }

    /// The kernel asks for `.` of whatever it has a file handle of: files were not found, since they are no directories.
    #[test]
    fn inodes_of_any_kind_are_found_by_their_number() {
        let model = Arc::new(vfs::model::Model::new());
        let server = Server::new(model.clone(), &crate::MountOptions::default(), std::sync::Weak::new());
        let root = Caller::root();
        let found = |ino| {
            let header = abi::InHeader { nodeid: ino, ..abi::InHeader::default() };
            server.found(&Message::of_parts(header, b"", b".\0")).unwrap()
        };
        let directory = model.mkdir(&root, vfs::ROOT_INO, b"dir", 0o755).unwrap();
        let link = model.symlink(&root, directory.ino, b"link", b"target").unwrap();
        let file = model.mknod(&root, directory.ino, b"file", 0o100_600, 0).unwrap();
        for attr in [directory, link, file] {
            let entry = found(attr.ino);
            assert_eq!((entry.nodeid, entry.generation), (attr.ino, u64::from(attr.generation)));
        }
        let of_root = vfs::Attr { generation: 7, ..model.getattr(vfs::ROOT_INO).unwrap() };
        assert_eq!(entry_out(&of_root, LASTING).generation, 0, "the kernel would complain");
        let open = model.open(&root, file.ino, vfs::OpenFlags::READ).unwrap();
        model.unlink(&root, directory.ino, b"file").unwrap();
        assert_eq!(found(file.ino).nodeid, 0, "without a name it is gone for who does not hold it");
        model.release(open).unwrap();
        assert_eq!(found(file.ino).nodeid, 0);
    }

    #[test]
    fn trusted_names_are_left_out() {
        assert_eq!(without_trusted(b"user.a\0trusted.b\0security.c\0"), b"user.a\0security.c\0");
        assert_eq!(without_trusted(b"trusted.b\0"), b"");
        assert_eq!(without_trusted(b""), b"");
    }
}
