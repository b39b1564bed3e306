//! A directory of any mounted file system, by system calls.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;

use crate::ground::{Ground, Open, Result};

/// Bytes that one `getdents64(2)` asks for: what the C library does.
const LISTING_BYTES: usize = 32 << 10;
const FILE_MODE: Mode = Mode::from_raw_mode(0o644);
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// A directory that system calls reach.
#[derive(Debug)]
pub struct Directory {
    top: OwnedFd,
}

impl Directory {
    /// Opens the directory at `path`.
    pub fn open(path: &Path) -> Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Directory { top: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// The number of the mount that it is in, as the table of mounts has it.
    pub(crate) fn mount(&self) -> Result<u64> {
        let found = rustix::fs::statx(&self.top, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
        Ok(found.stx_mnt_id)
    }
}

fn flags(how: Open) -> OFlags {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    if how == Open::Append { flags | OFlags::APPEND } else { flags }
}

impl Ground for Directory {
    type Dir = OwnedFd;
    type File = OwnedFd;

    fn top(&self) -> &OwnedFd {
        &self.top
    }

    fn open_dir(&self, dir: &OwnedFd, name: &CStr) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(dir, name, flags, Mode::empty())
    }

    fn make_dir(&self, dir: &OwnedFd, name: &CStr) -> Result<()> {
        rustix::fs::mkdirat(dir, name, DIRECTORY_MODE)
    }

    fn remove_dir(&self, dir: &OwnedFd, name: &CStr) -> Result<()> {
        rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
    }

    fn create(&self, dir: &OwnedFd, name: &CStr, how: Open) -> Result<OwnedFd> {
        rustix::fs::openat(dir, name, flags(how) | OFlags::CREATE | OFlags::EXCL, FILE_MODE)
    }

    fn open(&self, dir: &OwnedFd, name: &CStr, how: Open) -> Result<OwnedFd> {
        rustix::fs::openat(dir, name, flags(how), Mode::empty())
    }

    /// What `close(2)` says is lost; a file system that failed to write says so to the next `syncfs`, too.
    fn close(&self, file: OwnedFd) -> Result<()> {
        drop(file);
        Ok(())
    }

    fn stat(&self, dir: &OwnedFd, name: &CStr) -> Result<u64> {
        Ok(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_size as u64)
    }

    fn rename(&self, dir: &OwnedFd, from: &CStr, to: &CStr) -> Result<()> {
        rustix::fs::renameat(dir, from, dir, to)
    }

    fn unlink(&self, dir: &OwnedFd, name: &CStr) -> Result<()> {
        rustix::fs::unlinkat(dir, name, AtFlags::empty())
    }

    fn list(&self, dir: &OwnedFd, sink: &mut dyn FnMut(&[u8], bool)) -> Result<()> {
        let opened = self.open_dir(dir, c".")?;
        let mut room = Vec::with_capacity(LISTING_BYTES);
        let mut entries = RawDir::new(&opened, room.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let kind = match entry.file_type() {
                    // Not all file systems tell.
                    FileType::Unknown => {
                        let attributes =
                            rustix::fs::statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
                        FileType::from_raw_mode(attributes.st_mode)
                    }
                    known => known,
                };
                sink(name, kind == FileType::Directory);
            }
        }
        Ok(())
    }

    fn read(&self, file: &OwnedFd, offset: u64, into: &mut [u8]) -> Result<usize> {
        rustix::io::pread(file, into, offset)
    }

    fn write(&self, file: &OwnedFd, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match rustix::io::pwrite(file, bytes, offset)? {
                0 => return Err(Errno::IO),
                written => {
                    bytes = &bytes[written..];
                    offset += written as u64;
                }
            }
        }
        Ok(())
    }

    fn truncate(&self, file: &OwnedFd, length: u64) -> Result<()> {
        rustix::fs::ftruncate(file, length)
    }

    fn sync(&self, file: &OwnedFd, data_only: bool) -> Result<()> {
        if data_only { rustix::fs::fdatasync(file) } else { rustix::fs::fsync(file) }
    }

    fn sync_all(&self) -> Result<()> {
        rustix::fs::syncfs(&self.top)
    }
}
