//! How a volume is mounted.

use std::fs;
use std::ops::RangeInclusive;
use std::thread::available_parallelism;

/// Options of one mount. `MountOptions::default()` is right for most; set [`MountOptions::fs_name`].
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What `/proc/mounts` shows as the source, for instance `/dev/pmem0:home`.
    pub fs_name: String,
    /// No changes: every modifying call fails with `EROFS`.
    pub read_only: bool,
    /// Others than the user who mounts may use it. By default true for root; for an ordinary user true if
    /// `/etc/fuse.conf` has `user_allow_other`.
    pub allow_other: bool,
    /// Threads that serve [`Transport::Device`], at least 1. By default one a CPU, but 2 to 4. What a single client pays hardly depends on
    /// it (`examples/latency.rs`), two clients gain, and a slow request doesn't hold up all others.
    pub threads: usize,
    /// By which way requests come.
    pub transport: Transport,
    /// The kernel keeps written pages until `fsync`, `close` or memory pressure. Only for a volume of which
    /// nobody expects a `write` to be durable when it returns.
    pub writeback_cache: bool,
    /// Whatever the volume has been asked is durable when it answers, so `fsync` of a directory need not be sent to it. Nor that of a
    /// file, but for a writeback cache: there it tells whether the server was still alive when it was sent the pages.
    pub durable_operations: bool,
    /// Show when inodes were created. A program that asks `statx` for it, as every one does that is written in Rust, then
    /// costs a message for each inode that it looks at, even if the kernel knows all else.
    pub birth_times: bool,
    /// Files can be opened by handle, as NFS servers do. Then Linux's overlayfs keeps handles, too, of what it copies up, and since FUSE 7.44 (Linux
    /// 6.16) the kernel takes no inode that was found by one for valid: all that was copied up is `ESTALE` when it has left the kernel's cache.
    pub opens_by_handle: bool,
    /// Direct I/O that nobody waits for (libaio, io_uring) goes on side by side. But behind such a write the kernel drops no pages: what
    /// somebody reads through its cache while one is under way stays there, older than the file, as long as there is memory.
    pub async_direct_io: bool,
    /// `close` says what was refused of a writeback cache that nobody has been told, also where somebody has asked the kernel first, which
    /// tells once. Costs a message for each `close` of any file; does nothing without a writeback cache.
    pub checked_close: bool,
    /// Ignore set-user-ID, set-group-ID and file capabilities. Always so for an ordinary user.
    pub nosuid: bool,
    /// Symbolic links lead nowhere.
    pub nosymfollow: bool,
    /// Device nodes cannot be opened. Always so for an ordinary user.
    pub nodev: bool,
    /// Programs cannot be run.
    pub noexec: bool,
    /// Show `noatime` in `/proc/mounts`. (The kernel never keeps access times on a FUSE mount itself.)
    pub noatime: bool,
}

/// The way that requests and answers take between the kernel and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// [`Transport::Ring`] if the kernel offers it, else [`Transport::Device`].
    #[default]
    Automatic,
    /// io_uring: a queue and a thread for each processor. Mounting fails where that cannot be had.
    Ring,
    /// `/dev/fuse`.
    Device,
}

/// So many server threads unless asked for. One alone cannot wait for room ([`crate::room`]).
const DEFAULT_THREADS: RangeInclusive<usize> = 2..=4;

impl Default for MountOptions {
    fn default() -> MountOptions {
        let root = is_root();
        MountOptions {
            fs_name: "amberfs".to_owned(),
            read_only: false,
            allow_other: root || users_may_allow_other(),
            threads: available_parallelism()
                .map_or(1, usize::from)
                .clamp(*DEFAULT_THREADS.start(), *DEFAULT_THREADS.end()),
            transport: Transport::Automatic,
            writeback_cache: false,
            durable_operations: false,
            birth_times: false,
            opens_by_handle: false,
            async_direct_io: false,
            checked_close: false,
            nosuid: !root,
            nosymfollow: false,
            nodev: !root,
            noexec: false,
            noatime: false,
        }
    }
}

impl MountOptions {
    /// Whether the kernel keeps what is written in its pages: of a mount that takes writes at all.
    pub(crate) fn keeps_written_pages(&self) -> bool {
        self.writeback_cache && !self.read_only
    }
}

/// Whether this process acts as the superuser.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether `/etc/fuse.conf` lets ordinary users mount with `allow_other`.
fn users_may_allow_other() -> bool {
    fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|conf| conf.lines().any(|line| line.trim() == "user_allow_other"))
}
