//! What `stat(2)`, `utimensat(2)` and `statfs(2)` speak of.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Inode number. 0 is never one.
pub type Ino = u64;

/// The root directory's inode number, on every volume.
pub const ROOT_INO: Ino = 1;

/// A point in time: seconds since the epoch (may be negative) and nanoseconds below 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970-01-01T00:00:00Z.
    pub sec: i64,
    /// Nanoseconds within the second, < 1,000,000,000.
    pub nsec: u32,
}

static CLOCK: OnceLock<fn() -> Time> = OnceLock::new();

thread_local! {
    static STOPPED: Cell<Option<Time>> = const { Cell::new(None) };
}

impl Time {
    /// The time that changes are stamped with: that of the kernel's coarse clock, or of the one that is [followed](Time::follow); or, in a
    /// thread that stopped its clock, when it stopped it.
    #[inline]
    pub fn now() -> Time {
        if let Some(stopped) = Time::stopped() {
            return stopped;
        }
        CLOCK.get().map_or_else(Time::coarse, |clock| clock())
    }

    /// Has the changes of all threads stamped by `clock` from now on: where the kernel stamps some, with the time that this does it with, so that
    /// who did what first can be told. The first one counts.
    pub fn follow(clock: fn() -> Time) {
        let _ = CLOCK.set(clock);
    }

    /// What the kernel's coarse clock shows.
    #[inline]
    pub fn coarse() -> Time {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Time { sec: now.tv_sec, nsec: now.tv_nsec as u32 }
    }

    /// Stops this thread's clock at a time, so that a run can be repeated exactly; `None` lets it go on.
    pub fn stop(at: Option<Time>) {
        STOPPED.set(at);
    }

    /// Where this thread's clock stands, if it was stopped.
    pub fn stopped() -> Option<Time> {
        STOPPED.get()
    }
}

impl From<SystemTime> for Time {
    fn from(at: SystemTime) -> Time {
        match at.duration_since(UNIX_EPOCH) {
            Ok(after) => Time { sec: after.as_secs() as i64, nsec: after.subsec_nanos() },
            Err(before) => {
                let before = before.duration();
                match before.subsec_nanos() {
                    0 => Time { sec: -(before.as_secs() as i64), nsec: 0 },
                    nsec => Time { sec: -(before.as_secs() as i64) - 1, nsec: 1_000_000_000 - nsec },
                }
            }
        }
    }
}

impl From<Time> for SystemTime {
    fn from(at: Time) -> SystemTime {
        use std::time::Duration;
        if at.sec >= 0 {
            UNIX_EPOCH + Duration::new(at.sec as u64, at.nsec)
        } else {
            UNIX_EPOCH - Duration::from_secs(at.sec.unsigned_abs()) + Duration::from_nanos(u64::from(at.nsec))
        }
    }
}

/// The seven kinds of file of POSIX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// Named pipe.
    Fifo = 1,
    /// Character device node.
    CharDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device node.
    BlockDevice = 6,
    /// Regular file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Unix-domain socket.
    Socket = 12,
}

impl FileKind {
    /// The kind in the `S_IFMT` bits of a mode; `None` if they name no kind.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        FileKind::from_d_type(((mode & 0o170_000) >> 12) as u8)
    }

    /// Whether who writes to such a file changes the file system: not with a pipe, a socket or a device.
    pub fn is_stored(self) -> bool {
        matches!(self, FileKind::Regular | FileKind::Directory | FileKind::Symlink)
    }

    /// The kind of a `d_type` byte (`DT_DIR` and so on), which is what a `repr(u8)` of this enum holds.
    pub fn from_d_type(d_type: u8) -> Option<FileKind> {
        Some(match d_type {
            1 => FileKind::Fifo,
            2 => FileKind::CharDevice,
            4 => FileKind::Directory,
            6 => FileKind::BlockDevice,
            8 => FileKind::Regular,
            10 => FileKind::Symlink,
            12 => FileKind::Socket,
            _ => return None,
        })
    }

    /// The `S_IFMT` bits of this kind.
    pub fn mode_bits(self) -> u32 {
        u32::from(self as u8) << 12
    }
}

bitflags::bitflags! {
    /// What lsattr(1) shows of an inode, in the bits of Linux's `FS_IOC_GETFLAGS`. These are kept by every volume; others may be there.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// `i`: nobody changes it.
        const IMMUTABLE = 0x10;
        /// `a`: it only grows.
        const APPEND = 0x20;
        /// `d`: dump(8) leaves it out.
        const NODUMP = 0x40;
        /// `A`: reading it is not to set its access time.
        const NOATIME = 0x80;
        const _ = !0;
    }
}

impl InodeFlags {
    /// What forbids changes, to everybody.
    pub const PROTECTION: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);
    /// What is made in a directory has these of it.
    pub const INHERITED: InodeFlags = InodeFlags::NODUMP.union(InodeFlags::NOATIME);
    /// What every volume keeps.
    pub const COMMON: InodeFlags = InodeFlags::PROTECTION.union(InodeFlags::INHERITED);
}

/// An inode's attributes, as `stat(2)` and lsattr(1) show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number; the root directory has [`crate::ROOT_INO`].
    pub ino: Ino,
    /// With `ino`, unique over the volume's life: a reused inode number has another generation.
    pub generation: u32,
    /// Kind and permission bits, as `st_mode`.
    pub mode: u32,
    /// Number of hard links; 0 for an unlinked file that is still open.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as Linux's `dev_t` in 32 bits (`new_encode_dev`); else 0.
    pub rdev: u32,
    /// Length, bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes, as `st_blocks`.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of contents or attributes.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// What chattr(1) sets.
    pub flags: InodeFlags,
}

impl Attr {
    /// The kind in `mode`.
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    /// Permission bits with set-user-ID, set-group-ID and sticky: `mode & 07777`.
    pub fn perm(&self) -> u32 {
        self.mode & 0o7777
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == FileKind::Directory
    }
}

/// A time to set: as `UTIME_NOW` or given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The moment of the call.
    Now,
    /// This moment.
    At(Time),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New permission bits (`& 07777`); the kind never changes.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New length: truncates or extends with a hole.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// New change time: only a front end that keeps times itself (FUSE with a writeback cache) sets it.
    pub ctime: Option<Time>,
}

/// A volume's space, as `statfs(2)` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// Size of a block, bytes.
    pub block_size: u32,
    /// Blocks that can hold files, in all.
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Blocks that an ordinary user may still take.
    pub blocks_available: u64,
    /// Inodes, used and free.
    pub files: u64,
    /// Inodes that are free.
    pub files_free: u64,
}
