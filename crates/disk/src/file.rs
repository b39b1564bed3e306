//! Image files and block special files.

use std::fs::{File, FileType};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};

use crate::SECTOR;
use crate::device::{Device, Geometry};
use crate::error::Error;
use crate::source::OpenOptions;

/// Most parts of one request that the kernel takes (`IOV_MAX`).
const PARTS_MAX: usize = 1024;

/// An image file or a block special file. Of both the kernel's `fdatasync` is a flush of all caches on the way, the disk's own
/// included.
pub(crate) struct BlockFile {
    file: File,
    /// Of a loop device, the image that it shows, which nobody else has as long as this is open.
    image: Option<File>,
    geometry: Geometry,
}

impl BlockFile {
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<BlockFile, Error> {
        let disk = || path.display().to_string();
        let cannot = |source| Error::Open { disk: disk(), source };
        let kind = std::fs::metadata(path).map_err(cannot)?.file_type();
        let block = kind.is_block_device();
        if !block && !kind.is_file() {
            let what = match () {
                () if kind.is_dir() => "a directory",
                () if kind.is_char_device() => "a character device",
                () => "a pipe or socket",
            };
            return Err(Error::NotADisk { disk: disk(), what });
        }
        let direct = options.direct.unwrap_or(block);
        let (file, read_only) = open_as_asked(path, kind, direct, options.read_only).map_err(|source| {
            if source.raw_os_error() == Some(Errno::BUSY.raw_os_error()) {
                let by = "the kernel has it mounted, or as a part of another device, or as swap";
                return Error::Busy { disk: disk(), by: by.into() };
            }
            cannot(source)
        })?;
        let read_only = read_only || block && is_set_read_only(&file);
        let image = if block { loops::image_behind(&file) } else { None };
        match &image {
            Some((image, shown)) => lock(image, read_only, path, || {
                format!("another process has {} open, which it shows", shown.display())
            })?,
            None if block => {}
            None => claim_image(&file, path, read_only)?,
        }
        let bytes = bytes(&file).map_err(cannot)?;
        let logical = if block {
            rustix::fs::ioctl_blksszget(&file).map_err(|errno| cannot(errno.into()))?
        } else {
            0
        };
        // Direct I/O on an image wants what the disk below it wants; a page does for all.
        let sector = if block {
            logical
        } else if direct {
            4096
        } else {
            SECTOR as u32
        };
        if !sector.is_power_of_two() || !(SECTOR as u32..=65536).contains(&sector) {
            return Err(cannot(io::Error::other(format!(
                "its sectors have {sector} bytes, which no disk has"
            ))));
        }
        let geometry = Geometry {
            bytes: bytes - bytes % u64::from(sector),
            sector,
            memory_alignment: if direct { sector.min(4096) } else { 1 },
            read_only,
        };
        Ok(BlockFile { file, image: image.map(|(image, _)| image), geometry })
    }
}

/// The bytes that it has now. A block special file's status says nothing of its size, but its end is there.
pub(crate) fn bytes(file: impl AsFd) -> io::Result<u64> {
    Ok(rustix::fs::seek(file, SeekFrom::End(0))?)
}

/// Opens for reading and writing if that was asked for and is possible; says whether for reading only. A block special file is
/// opened exclusively: `O_EXCL` without `O_CREAT` fails if the kernel uses it, and keeps the kernel from mounting it.
fn open_as_asked(path: &Path, kind: FileType, direct: bool, read_only: bool) -> io::Result<(File, bool)> {
    // Nobody waits for the other end of a pipe that came in the place of what was looked at.
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    flags.set(OFlags::EXCL, kind.is_block_device());
    flags.set(OFlags::DIRECT, direct);
    let open = |write: bool| {
        let flags = flags.bits() as i32;
        let file = std::fs::OpenOptions::new().read(true).write(write).custom_flags(flags).open(path)?;
        if file.metadata()?.file_type() != kind {
            return Err(io::Error::other("something else has come in its place meanwhile"));
        }
        // Writes of a file that never waits fail with `EAGAIN` in the rings of some kernels (5.17 to 6.0).
        rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        Ok(file)
    };
    let open = |write| loops::when_let_go(|| open(write));
    if read_only {
        return open(false).map(|file| (file, true));
    }
    match open(true) {
        Ok(file) => Ok((file, false)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            open(false).map(|file| (file, true))
        }
        Err(error) => Err(error),
    }
}

/// Whether a block device cannot be written although it can be opened so. Where nobody says, writing it will fail.
fn is_set_read_only(device: &File) -> bool {
    let Ok(stat) = rustix::fs::fstat(device) else { return false };
    let number = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let told = std::fs::read_to_string(format!("/sys/dev/block/{}:{}/ro", number.0, number.1));
    told.is_ok_and(|told| told.trim() == "1")
}

/// Nobody else may have an image: no process that asks like this one, and no loop device.
fn claim_image(file: &File, path: &Path, read_only: bool) -> Result<(), Error> {
    lock(file, read_only, path, || "another process has the image open".into())?;
    match loops::device_of(file) {
        Some(device) => {
            let by = format!("it is the backing file of {}", device.display());
            Err(Error::Busy { disk: path.display().to_string(), by })
        }
        None => Ok(()),
    }
}

/// Locks the image of the disk at `path`, among those who only read if it is one of them.
fn lock(image: &File, read_only: bool, path: &Path, by: impl FnOnce() -> String) -> Result<(), Error> {
    let operation = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    rustix::fs::flock(image, operation).map_err(|errno| match errno {
        Errno::WOULDBLOCK => Error::Busy { disk: path.display().to_string(), by: by() },
        errno => Error::Open { disk: path.display().to_string(), source: errno.into() },
    })
}

impl Drop for BlockFile {
    /// Closing gives the lock back, too, but not while a process that another thread has just forked has yet to close its copy.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(self.image.as_ref().unwrap_or(&self.file), FlockOperation::Unlock);
    }
}

impl Device for BlockFile {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, mut at: u64, into: &mut [IoSliceMut<'_>]) -> io::Result<()> {
        let mut rest = into;
        IoSliceMut::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let parts = rest.len().min(PARTS_MAX);
            match rustix::io::preadv(&self.file, &mut rest[..parts], at) {
                // The image was cut, or the disk became smaller.
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(moved) => {
                    at += moved as u64;
                    IoSliceMut::advance_slices(&mut rest, moved);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn write(&self, mut at: u64, from: &[IoSlice<'_>], durable: bool) -> io::Result<()> {
        let mut parts = from.to_vec();
        let mut rest = &mut parts[..];
        IoSlice::advance_slices(&mut rest, 0);
        let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        while !rest.is_empty() {
            let parts = rest.len().min(PARTS_MAX);
            match rustix::io::pwritev2(&self.file, &rest[..parts], at, flags) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(moved) => {
                    at += moved as u64;
                    IoSlice::advance_slices(&mut rest, moved);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its writes failed with `EAGAIN` in the rings of some kernels.
    #[test]
    fn an_image_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, [0; 4096]).unwrap();
        for read_only in [false, true] {
            let options = OpenOptions { read_only, ..OpenOptions::default() };
            let disk = BlockFile::open(&path, &options).unwrap();
            let flags = rustix::fs::fcntl_getfl(&disk.file).unwrap();
            assert!(!flags.contains(OFlags::NONBLOCK), "{flags:?}");
        }
    }

    #[test]
    fn what_comes_in_the_place_of_an_image_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, [0; 4096]).unwrap();
        let kind = std::fs::metadata(&path).unwrap().file_type();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(open_as_asked(&path, kind, false, false).is_err());
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let error = open_as_asked(&path, kind, false, false).unwrap_err();
        assert!(error.to_string().contains("in its place"), "{error}");
    }
}
