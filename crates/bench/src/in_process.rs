//! A volume in this process: the same operations, as calls of the `FileSystem` trait.

use std::ffi::CStr;
use std::sync::Arc;

use rustix::io::Errno;
use vfs::{Caller, FileSystem, Handle, Ino, OpenFlags, ROOT_INO, RenameFlags, SetAttr};

use crate::ground::{Ground, Open, Result};

/// The root directory of a file system in this process.
#[derive(Debug)]
pub struct InProcess<F> {
    system: Arc<F>,
    caller: Caller,
}

/// An open file.
#[derive(Debug)]
pub struct File {
    ino: Ino,
    handle: Handle,
}

impl<F: FileSystem> InProcess<F> {
    /// Works in the root directory, as the superuser.
    pub fn new(system: Arc<F>) -> InProcess<F> {
        InProcess { system, caller: Caller::root() }
    }
}

fn errno(error: vfs::Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

fn flags(how: Open) -> OpenFlags {
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    if how == Open::Append { flags | OpenFlags::APPEND } else { flags }
}

impl<F: FileSystem> Ground for InProcess<F> {
    type Dir = Ino;
    type File = File;

    fn top(&self) -> &Ino {
        &ROOT_INO
    }

    fn open_dir(&self, dir: &Ino, name: &CStr) -> Result<Ino> {
        let attr = self.system.lookup(&self.caller, *dir, name.to_bytes()).map_err(errno)?;
        if attr.is_dir() { Ok(attr.ino) } else { Err(Errno::NOTDIR) }
    }

    fn make_dir(&self, dir: &Ino, name: &CStr) -> Result<()> {
        self.system.mkdir(&self.caller, *dir, name.to_bytes(), 0o755).map(drop).map_err(errno)
    }

    fn remove_dir(&self, dir: &Ino, name: &CStr) -> Result<()> {
        self.system.rmdir(&self.caller, *dir, name.to_bytes()).map_err(errno)
    }

    fn create(&self, dir: &Ino, name: &CStr, how: Open) -> Result<File> {
        let flags = flags(how) | OpenFlags::EXCLUSIVE;
        let made = self.system.create(&self.caller, *dir, name.to_bytes(), 0o644, flags).map_err(errno)?;
        Ok(File { ino: made.attr.ino, handle: made.handle })
    }

    fn open(&self, dir: &Ino, name: &CStr, how: Open) -> Result<File> {
        let attr = self.system.lookup(&self.caller, *dir, name.to_bytes()).map_err(errno)?;
        let handle = self.system.open(&self.caller, attr.ino, flags(how)).map_err(errno)?;
        Ok(File { ino: attr.ino, handle })
    }

    fn close(&self, file: File) -> Result<()> {
        self.system.release(file.handle).map_err(errno)
    }

    fn stat(&self, dir: &Ino, name: &CStr) -> Result<u64> {
        self.system.lookup(&self.caller, *dir, name.to_bytes()).map(|attr| attr.size).map_err(errno)
    }

    fn rename(&self, dir: &Ino, from: &CStr, to: &CStr) -> Result<()> {
        let (from, to) = (from.to_bytes(), to.to_bytes());
        self.system.rename(&self.caller, *dir, from, *dir, to, RenameFlags::empty()).map_err(errno)
    }

    fn unlink(&self, dir: &Ino, name: &CStr) -> Result<()> {
        self.system.unlink(&self.caller, *dir, name.to_bytes()).map_err(errno)
    }

    fn list(&self, dir: &Ino, sink: &mut dyn FnMut(&[u8], bool)) -> Result<()> {
        let mut each = |entry: vfs::DirEntry<'_>| {
            if entry.name != b"." && entry.name != b".." {
                sink(entry.name, entry.kind == vfs::FileKind::Directory);
            }
            true
        };
        self.system.readdir(*dir, 0, &mut each).map_err(errno)
    }

    fn read(&self, file: &File, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.system.read(file.handle, offset, into).map_err(errno)
    }

    fn write(&self, file: &File, offset: u64, bytes: &[u8]) -> Result<()> {
        self.system.write(&self.caller, file.handle, offset, bytes).map(drop).map_err(errno)
    }

    fn truncate(&self, file: &File, length: u64) -> Result<()> {
        let set = SetAttr { size: Some(length), ..SetAttr::default() };
        self.system.setattr(&self.caller, file.ino, &set, Some(file.handle)).map(drop).map_err(errno)
    }

    fn sync(&self, file: &File, data_only: bool) -> Result<()> {
        self.system.fsync(file.handle, data_only).map_err(errno)
    }

    fn sync_all(&self) -> Result<()> {
        self.system.syncfs().map_err(errno)
    }
}
