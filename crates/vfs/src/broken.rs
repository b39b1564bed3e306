//! Volumes that are wrong in one way each.

use crate::model::Model;
use crate::{
    Attr, Caller, Created, DirEntry, FallocateMode, FileSystem, Handle, Ino, InodeFlags, OpenFlags,
    RenameFlags, Result, SeekFrom, SetAttr, SetTime, Statfs, XattrMode,
};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Nothing,
    /// A write drops its last byte, and says nothing.
    LastByteDropped,
    /// Links are not counted.
    LinksNotCounted,
    /// A write leaves mtime as it was.
    ModificationUnnoticed,
    /// A change of the mode sets mtime.
    ModificationImagined,
    /// A new link leaves ctime as it was.
    LinkUnnoticed,
    /// A listing forgets an entry at the border of a piece.
    EntrySkipped,
    /// A write leaves set-user-ID.
    PrivilegeKept,
    /// There is no data.
    DataDenied,
    /// Holes are data's equals: whatever is asked for is a hole.
    HolesEverywhere,
    /// The umask is ignored.
    UmaskIgnored,
    /// The sticky bit is ignored.
    StickyIgnored,
    /// A file that is immutable is unlinked.
    ProtectionIgnored,
    /// An inode's flags are not changed, and nothing is said.
    FlagsForgotten,
    /// An attribute is replaced even if it is not there.
    ReplaceCreates,
    /// An exchange only renames.
    ExchangeRenames,
    /// A rename leaves no whiteout.
    WhiteoutForgotten,
    /// A file without a name outlives its last handle.
    OrphansKept,
    /// A hole that is punched keeps its first byte.
    PunchTooShort,
    /// A copy begins one byte late.
    CopyShifted,
    /// A failed creation leaves its trace in the directory's times.
    FailureLeavesTrace,
    /// Nanoseconds are lost.
    Coarse,
}

impl Fault {
    pub(crate) const ALL: [Fault; 21] = [
        Fault::LastByteDropped,
        Fault::LinksNotCounted,
        Fault::ModificationUnnoticed,
        Fault::ModificationImagined,
        Fault::LinkUnnoticed,
        Fault::EntrySkipped,
        Fault::PrivilegeKept,
        Fault::DataDenied,
        Fault::HolesEverywhere,
        Fault::UmaskIgnored,
        Fault::StickyIgnored,
        Fault::ProtectionIgnored,
        Fault::FlagsForgotten,
        Fault::ReplaceCreates,
        Fault::ExchangeRenames,
        Fault::WhiteoutForgotten,
        Fault::OrphansKept,
        Fault::PunchTooShort,
        Fault::CopyShifted,
        Fault::FailureLeavesTrace,
        Fault::Coarse,
    ];
}

/// A model with a fault.
pub(crate) struct Broken {
    model: Model,
    fault: Fault,
    handles: parking_lot::Mutex<std::collections::HashMap<u64, Ino>>,
}

impl Broken {
    pub(crate) fn new(fault: Fault) -> Broken {
        Broken { model: Model::new(), fault, handles: parking_lot::Mutex::default() }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn shown(&self, mut attr: Attr) -> Attr {
        if self.is(Fault::LinksNotCounted) && !attr.is_dir() {
            attr.nlink = attr.nlink.min(1);
        }
        attr
    }

    fn opened(&self, handle: Handle, ino: Ino) -> Handle {
        self.handles.lock().insert(handle.0, ino);
        handle
    }

    fn attr_of(&self, handle: Handle) -> Option<Attr> {
        let ino = self.handles.lock().get(&handle.0).copied()?;
        self.model.getattr(ino).ok()
    }

    /// Puts times back.
    fn restore(&self, before: Attr, mtime: bool) -> Result<()> {
        let mtime = mtime.then_some(SetTime::At(before.mtime));
        let set = SetAttr { mtime, ctime: Some(before.ctime), ..SetAttr::default() };
        self.model.setattr(&Caller::root(), before.ino, &set, None).map(drop)
    }
}

impl FileSystem for Broken {
    fn lookup(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.model.lookup(caller, dir, name).map(|attr| self.shown(attr))
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.model.getattr(ino).map(|attr| self.shown(attr))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr, handle: Option<Handle>) -> Result<Attr> {
        let mut set = *set;
        if self.is(Fault::ModificationImagined) && set.mode.is_some() && set.mtime.is_none() {
            set.mtime = Some(SetTime::Now);
        }
        if let (Fault::Coarse, Some(SetTime::At(at))) = (self.fault, &mut set.mtime) {
            at.nsec = 0;
        }
        self.model.setattr(caller, ino, &set, handle).map(|attr| self.shown(attr))
    }

    fn set_inode_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        let flags = if self.is(Fault::FlagsForgotten) { self.model.getattr(ino)?.flags } else { flags };
        self.model.set_inode_flags(caller, ino, flags)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.model.readlink(ino)
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        self.model.access(caller, ino, mask)
    }

    fn mknod(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        self.model.mknod(caller, dir, name, mode, rdev)
    }

    fn mkdir(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let mut caller = caller.clone();
        if self.is(Fault::UmaskIgnored) {
            caller.umask = 0;
        }
        let made = self.model.mkdir(&caller, dir, name, mode);
        if made.is_err() && self.is(Fault::FailureLeavesTrace) {
            let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
            let _ = self.model.setattr(&Caller::root(), dir, &set, None);
        }
        made
    }

    fn symlink(&self, caller: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.model.symlink(caller, dir, name, target)
    }

    fn link(&self, caller: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let before = self.model.getattr(ino);
        let linked = self.model.link(caller, ino, dir, name)?;
        if let (Ok(before), Fault::LinkUnnoticed) = (before, self.fault) {
            self.restore(before, false)?;
        }
        Ok(self.shown(linked))
    }

    fn unlink(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        let may = self.model.getattr(dir).and_then(|attr| self.model.access(caller, attr.ino, 3));
        let caller = if self.is(Fault::StickyIgnored) && may.is_ok() { &Caller::root() } else { caller };
        if self.is(Fault::ProtectionIgnored) {
            let victim = self.model.lookup(caller, dir, name)?.ino;
            self.model.set_inode_flags(&Caller::root(), victim, InodeFlags::empty())?;
        }
        self.model.unlink(caller, dir, name)
    }

    fn rmdir(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        self.model.rmdir(caller, dir, name)
    }

    fn rename(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        mut flags: RenameFlags,
    ) -> Result<()> {
        if self.is(Fault::ExchangeRenames) {
            flags.remove(RenameFlags::EXCHANGE);
        }
        if self.is(Fault::WhiteoutForgotten) {
            flags.remove(RenameFlags::WHITEOUT);
        }
        self.model.rename(caller, dir, name, new_dir, new_name, flags)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        self.model.open(caller, ino, flags).map(|handle| self.opened(handle, ino))
    }

    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, flags: OpenFlags) -> Result<Created> {
        let mut created = self.model.create(caller, dir, name, mode, flags)?;
        created.attr = self.shown(created.attr);
        self.opened(created.handle, created.attr.ino);
        Ok(created)
    }

    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, flags: OpenFlags) -> Result<Created> {
        let created = self.model.tmpfile(caller, dir, mode, flags)?;
        self.opened(created.handle, created.attr.ino);
        Ok(created)
    }

    fn release(&self, handle: Handle) -> Result<()> {
        if self.is(Fault::OrphansKept) && self.attr_of(handle).is_some_and(|attr| attr.nlink == 0) {
            return Ok(());
        }
        self.model.release(handle)
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.model.read(handle, offset, buf)
    }

    fn write(&self, caller: &Caller, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let before = self.attr_of(handle);
        let caller = if self.is(Fault::PrivilegeKept) { &Caller::root() } else { caller };
        let cut = usize::from(self.is(Fault::LastByteDropped)).min(data.len());
        let written = self.model.write(caller, handle, offset, &data[..data.len() - cut])?;
        if let (Some(before), Fault::ModificationUnnoticed) = (before, self.fault) {
            self.restore(before, true)?;
        }
        Ok(written + cut)
    }

    fn fsync(&self, handle: Handle, data_only: bool) -> Result<()> {
        self.model.fsync(handle, data_only)
    }

    fn fsync_inode(&self, ino: Ino) -> Result<()> {
        self.model.fsync_inode(ino)
    }

    fn syncfs(&self) -> Result<()> {
        self.model.syncfs()
    }

    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let mut skip = self.is(Fault::EntrySkipped) && from > 100;
        self.model.readdir(dir, from, &mut |entry| std::mem::take(&mut skip) || sink(entry))
    }

    fn statfs(&self) -> Result<Statfs> {
        self.model.statfs()
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.model.getxattr(caller, ino, name)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mut mode: XattrMode,
    ) -> Result<()> {
        if self.is(Fault::ReplaceCreates) {
            mode = XattrMode::Either;
        }
        self.model.setxattr(caller, ino, name, value, mode)
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.model.listxattr(caller, ino)
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.model.removexattr(caller, ino, name)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: FallocateMode,
        mut offset: u64,
        mut len: u64,
    ) -> Result<()> {
        if self.is(Fault::PunchTooShort) && mode.contains(FallocateMode::PUNCH_HOLE) && len > 1 {
            (offset, len) = (offset.saturating_add(1), len - 1);
        }
        self.model.fallocate(caller, handle, mode, offset, len)
    }

    fn seek(&self, handle: Handle, from: SeekFrom) -> Result<u64> {
        match (self.fault, from) {
            (Fault::DataDenied, SeekFrom::Data(_)) => Err(crate::Error::NoSuchOffset),
            (Fault::HolesEverywhere, SeekFrom::Hole(at)) => self.model.seek(handle, from).map(|_| at),
            _ => self.model.seek(handle, from),
        }
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
        let late = u64::from(self.is(Fault::CopyShifted));
        self.model.copy_file_range(caller, from, from_offset + late, to, to_offset, len)
    }
}
