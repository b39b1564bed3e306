//! What a zone is made of: finds out, sizes it, maps it.

use std::fs::{File, Metadata, OpenOptions as FileOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, IFlags, OFlags};
use rustix::io::Errno;

use crate::error::Error;
use crate::mapping::{MapError, Mapping, Source};
use crate::persist::PersistMethod;
use crate::{SEGMENT, lock};

/// What a zone is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A DAX character device (`/dev/dax0.0`): the medium itself is mapped.
    DaxDevice {
        /// Bytes to which mappings must be aligned.
        align: u64,
    },
    /// A file on a DAX file system, mapped with MAP_SYNC: the medium itself is mapped.
    DaxFile,
    /// A file on tmpfs or ramfs: memory, which survives the process but not the machine.
    Tmpfs,
    /// A file on hugetlbfs: memory in huge pages.
    Hugetlbfs {
        /// Bytes of a huge page.
        page: u64,
    },
    /// A plain file: the kernel's page cache stands before the medium.
    PlainFile {
        /// The file system's name, or its magic in hexadecimal.
        filesystem: String,
    },
    /// A block device: the kernel's page cache stands before the medium.
    BlockDevice,
    /// This process's memory.
    Memory,
}

impl std::fmt::Display for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Backing::DaxDevice { align } => write!(f, "DAX device, aligned to {align} bytes"),
            Backing::DaxFile => f.write_str("file on a DAX file system (MAP_SYNC)"),
            Backing::Tmpfs => f.write_str("file in memory (tmpfs)"),
            Backing::Hugetlbfs { page } => write!(f, "file in memory (hugetlbfs, pages of {page} bytes)"),
            Backing::PlainFile { filesystem } => write!(f, "plain file on {filesystem}"),
            Backing::BlockDevice => f.write_str("block device"),
            Backing::Memory => f.write_str("this process's memory"),
        }
    }
}

/// An open file or device.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// What it is as far as is known before mapping: a plain file may turn out to be on DAX.
    pub(crate) backing: Backing,
    /// Bytes that are there.
    pub(crate) bytes: u64,
    /// Of a loop device, the image that it shows, locked as this is.
    image: Option<File>,
    /// Of a block device that is written to, opened so that the kernel gives it to nobody else.
    alone: Option<File>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // First what nobody waits for: who gets the lock gets the rest.
        self.alone = None;
        lock::give_back(&self.file);
        self.image.iter().for_each(lock::give_back);
    }
}

fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Io { doing, path: path.to_path_buf(), source }
}

/// Looked at before opening, too: some devices do things when they are opened.
fn may_be_mapped(path: &Path, metadata: &Metadata) -> Result<(), Error> {
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(Error::IsDirectory { path: path.to_path_buf() });
    }
    let what = if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() && dax_sysfs(metadata, "size").is_none() {
        "a character device that is not a DAX device"
    } else {
        return Ok(());
    };
    Err(Error::NotMappable { path: path.to_path_buf(), what })
}

impl Place {
    /// Opens a file or device; `create` makes an empty file where nothing is. Returns whether it did.
    pub(crate) fn open(path: &Path, writable: bool, create: bool) -> Result<(Place, bool), Error> {
        let mut made = false;
        match std::fs::metadata(path) {
            Ok(metadata) => may_be_mapped(path, &metadata)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && create => made = true,
            Err(error) => return Err(io("open it", path)(error)),
        }
        let mut how = FileOptions::new();
        // What a zone has is for who may read the files in it; and should a pipe have come in the place of what was just looked at, nobody
        // waits for its other end.
        how.read(true).write(writable).create_new(made).mode(0o600);
        how.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32);
        let file = how.open(path).map_err(io(if made { "create it" } else { "open it" }, path))?;
        may_be_mapped(path, &file.metadata().map_err(io("look at it", path))?)?;
        let (path, backing) = (path.to_path_buf(), Backing::BlockDevice);
        let mut place = Place { path, file, backing, bytes: 0, image: None, alone: None };
        place.look()?;
        Ok((place, made))
    }

    /// Locks it, for one who writes or among those who read, by whatever name others have it: the lock is on an inode, of which a device may
    /// have several, and a loop device shows a file.
    pub(crate) fn lock(&mut self, writable: bool) -> Result<(), Error> {
        lock::take(&self.file, &self.path, writable)?;
        let busy = |by| Err(Error::Busy { path: self.path.clone(), by });
        if self.is_file() {
            return match loops::device_of(&self.file) {
                Some(device) => busy(format!("it is the backing file of {}", device.display())),
                None => Ok(()),
            };
        }
        if self.backing != Backing::BlockDevice {
            return Ok(());
        }
        if let Some((image, shown)) = loops::image_behind(&self.file) {
            if let Err(error) = lock::take(&image, &self.path, writable) {
                return match error {
                    Error::Locked { .. } => {
                        busy(format!("another process has {}, which it shows", shown.display()))
                    }
                    error => Err(error),
                };
            }
            self.image = Some(image);
        }
        // Of the device, whichever inode leads to it (`O_EXCL` without `O_CREAT`), and against the kernel, too.
        let this = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = (OFlags::EXCL | OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
        let open = || FileOptions::new().read(true).write(writable).custom_flags(flags).open(&this);
        match loops::when_let_go(open) {
            Ok(alone) => self.alone = writable.then_some(alone),
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                return busy(
                    "the kernel has it mounted, or as a part of another device, or as swap; or another process has it by \
                     another name"
                        .into(),
                );
            }
            Err(error) => return Err(io("open it alone", &self.path)(error)),
        }
        Ok(())
    }

    /// Finds out kind and size.
    pub(crate) fn look(&mut self) -> Result<(), Error> {
        let metadata = self.file.metadata().map_err(io("look at it", &self.path))?;
        let kind = metadata.file_type();
        if kind.is_char_device() {
            self.bytes = dax_sysfs(&metadata, "size").unwrap_or(0);
            self.backing = Backing::DaxDevice { align: dax_sysfs(&metadata, "align").unwrap_or(SEGMENT) };
        } else if kind.is_block_device() {
            let end = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0));
            self.bytes = end.map_err(|errno| io("size it", &self.path)(errno.into()))?;
            self.backing = Backing::BlockDevice;
        } else {
            self.bytes = metadata.len();
            let statfs = rustix::fs::fstatfs(&self.file);
            let statfs = statfs.map_err(|errno| io("look at its file system", &self.path)(errno.into()))?;
            self.backing = match statfs.f_type as u32 {
                0x0102_1994 | 0x8584_58F6 => Backing::Tmpfs,
                0x9584_58F6 => Backing::Hugetlbfs { page: statfs.f_bsize as u64 },
                magic => Backing::PlainFile { filesystem: filesystem_name(magic) },
            };
        }
        Ok(())
    }

    /// The unit in which a zone here is sized.
    pub(crate) fn unit(&self) -> u64 {
        match self.backing {
            Backing::Hugetlbfs { page } => page.max(SEGMENT),
            Backing::DaxDevice { align } => align.max(SEGMENT),
            _ => SEGMENT,
        }
    }

    /// Whether its size can be changed.
    pub(crate) fn is_file(&self) -> bool {
        !matches!(self.backing, Backing::DaxDevice { .. } | Backing::BlockDevice)
    }

    /// Makes a file at least `bytes` large, with all of it allocated: a full file system is an error here,
    /// not a SIGBUS later. On error the file has the size that it had.
    pub(crate) fn extend(&mut self, bytes: u64) -> Result<(), Error> {
        let before = self.bytes;
        if before == 0 && matches!(&self.backing, Backing::PlainFile { filesystem } if filesystem == "btrfs")
        {
            // Else each store takes space anew, and there is none when the file system is full. It is for empty files alone.
            let _ = rustix::fs::ioctl_setflags(&self.file, IFlags::NOCOW);
        }
        let allocated = match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(before, bytes),
            done => done.map_err(Into::into),
        };
        if let Err(error) = allocated {
            let _ = self.file.set_len(before);
            return Err(io("allocate its space", &self.path)(error));
        }
        self.bytes = before.max(bytes);
        Ok(())
    }

    /// Gives a file the space that it has not: a copy may have left out what was zero, and a store there, when the file system has become full, is
    /// a SIGBUS, as that of a medium that fails.
    pub(crate) fn fill_holes(&self) -> Result<(), Error> {
        if !matches!(self.backing, Backing::Tmpfs | Backing::PlainFile { .. }) {
            return Ok(());
        }
        let look = |error| io("look at it", &self.path)(error);
        let there = self.file.metadata().map_err(look)?.blocks() * 512;
        let missing = self.bytes.saturating_sub(there);
        if missing == 0 {
            return Ok(());
        }
        // What is allocated before the last of it fails may stay, and fill the file system.
        let around = rustix::fs::fstatvfs(&self.file).map_err(|errno| look(errno.into()))?;
        let fits = missing <= around.f_bavail * around.f_frsize;
        let sparse = Err(Error::Sparse { path: self.path.clone(), missing });
        if !fits {
            return sparse;
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, self.bytes) {
            Err(Errno::NOSPC | Errno::DQUOT) => sparse,
            // Where that cannot be asked for, or space is counted otherwise, it is as it is.
            _ => Ok(()),
        }
    }

    /// The way of file systems without fallocate.
    fn write_zeros(&self, from: u64, to: u64) -> std::io::Result<()> {
        let zeros = vec![0; 1 << 20];
        let mut at = from;
        while at < to {
            let len = zeros.len().min((to - at) as usize);
            self.file.write_all_at(&zeros[..len], at)?;
            at += len as u64;
        }
        Ok(())
    }

    /// Gives back what [`Place::extend`] has added to `before`, which nobody has mapped.
    pub(crate) fn cut(&mut self, before: u64) {
        if self.is_file() && self.bytes > before && self.file.set_len(before).is_ok() {
            self.bytes = before;
        }
    }

    /// Reads from its start without mapping, as far as it goes; nothing of a DAX device, which cannot be read so.
    pub(crate) fn peek(&self, len: usize) -> Result<Option<Vec<u8>>, Error> {
        if let Backing::DaxDevice { .. } = self.backing {
            return Ok(None);
        }
        let mut start = vec![0; len.min(usize::try_from(self.bytes).unwrap_or(usize::MAX))];
        self.file.read_exact_at(&mut start, 0).map_err(io("read what is there", &self.path))?;
        Ok(Some(start))
    }

    /// Maps the first `bytes`, with MAP_SYNC where that is granted: then a plain file is a DAX file.
    pub(crate) fn map(
        &mut self,
        bytes: u64,
        writable: bool,
        earlier: Option<&Mapping>,
    ) -> Result<Mapping, Error> {
        let page = match self.backing {
            Backing::Hugetlbfs { page } => page,
            // Blanking a device's page takes unmapping what its page table maps as one.
            Backing::DaxDevice { align } => align,
            _ => 4096,
        };
        let map = |sync| {
            // In the page cache a huge page would be written back whole for every byte that a fence persists.
            let huge = sync || matches!(self.backing, Backing::Tmpfs | Backing::DaxDevice { .. });
            let source = Source::File { file: self.file.as_fd(), sync, huge };
            Mapping::new(source, bytes, self.unit(), page, writable, earlier)
        };
        let may_sync = matches!(
            self.backing,
            Backing::PlainFile { .. } | Backing::DaxFile | Backing::DaxDevice { .. } | Backing::BlockDevice
        );
        let synced = if may_sync { map(true).ok() } else { None };
        if let Some(mapping) = synced {
            if !matches!(self.backing, Backing::DaxDevice { .. }) {
                self.backing = Backing::DaxFile;
            }
            return Ok(mapping);
        }
        map(false).map_err(|error| match error {
            MapError::System(errno) => io("map it", &self.path)(errno.into()),
            MapError::Guard(error) => error,
        })
    }
}

impl Place {
    /// Maps the first `bytes` so that what is stored to them stays in this process; None where what is behind it allows no such
    /// mapping.
    pub(crate) fn map_copy(&self, bytes: u64) -> Option<Result<Mapping, Error>> {
        if matches!(self.backing, Backing::Hugetlbfs { .. } | Backing::DaxDevice { .. }) {
            return None;
        }
        let mapped = Mapping::new(Source::Copy(self.file.as_fd()), bytes, SEGMENT, 4096, true, None);
        Some(mapped.map_err(|error| match error {
            MapError::System(errno) => io("map it", &self.path)(errno.into()),
            MapError::Guard(error) => error,
        }))
    }
}

impl Backing {
    /// How lines persist here, and why.
    pub(crate) fn persist(
        &self,
        forced: Option<PersistMethod>,
    ) -> Result<(PersistMethod, &'static str), Error> {
        let best = PersistMethod::best();
        match (forced, self) {
            (Some(method), _) if !method.supported() => Err(Error::PersistUnsupported { method, best }),
            (Some(method), _) => Ok((method, "it was asked for")),
            (None, Backing::PlainFile { .. } | Backing::BlockDevice) => {
                Ok((PersistMethod::Msync, "the page cache stands before the medium: not on DAX"))
            }
            (None, _) => Ok((
                best,
                match best {
                    PersistMethod::Clwb => "the medium is mapped, and the processor has CLWB",
                    PersistMethod::Clflushopt => {
                        "the medium is mapped; the processor has CLFLUSHOPT, no CLWB"
                    }
                    _ => "the medium is mapped; the processor has neither CLWB nor CLFLUSHOPT",
                },
            )),
        }
    }
}

/// A number from a DAX device's directory in sysfs; None for other devices.
fn dax_sysfs(metadata: &std::fs::Metadata, attribute: &str) -> Option<u64> {
    let device = metadata.rdev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let directory = format!("/sys/dev/char/{major}:{minor}");
    let subsystem = std::fs::read_link(format!("{directory}/subsystem")).ok()?;
    if subsystem.file_name()? != "dax" {
        return None;
    }
    let text = std::fs::read_to_string(format!("{directory}/{attribute}")).ok()?;
    parse_number(text.trim())
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok(),
        None => text.parse().ok(),
    }
}

fn filesystem_name(magic: u32) -> String {
    match magic {
        0xEF53 => "ext2/ext3/ext4".to_string(),
        0x5846_5342 => "xfs".to_string(),
        0x9123_683E => "btrfs".to_string(),
        0xF2F5_2010 => "f2fs".to_string(),
        0x794C_7630 => "overlayfs".to_string(),
        0x6969 => "nfs".to_string(),
        0x6573_5546 => "fuse".to_string(),
        0x2FC1_2FC1 => "zfs".to_string(),
        0xCA45_1A4E => "bcachefs".to_string(),
        other => format!("file system {other:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysfs_numbers_are_decimal_or_hexadecimal() {
        assert_eq!(parse_number("4096"), Some(4096));
        assert_eq!(parse_number("0x200000"), Some(SEGMENT));
        assert_eq!(parse_number("big"), None);
    }

    #[test]
    fn only_what_is_mapped_directly_is_flushed_by_the_processor() {
        let plain = Backing::PlainFile { filesystem: "xfs".into() };
        assert_eq!(plain.persist(None).unwrap().0, PersistMethod::Msync);
        assert_eq!(Backing::BlockDevice.persist(None).unwrap().0, PersistMethod::Msync);
        assert_eq!(Backing::Tmpfs.persist(None).unwrap().0, PersistMethod::best());
        assert_eq!(plain.persist(Some(PersistMethod::Clflush)).unwrap().0, PersistMethod::Clflush);
    }
}
