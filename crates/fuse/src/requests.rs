//! Counters of what the kernel asks, which show what its caches answer alone.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! requests {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A kind of message from the kernel, in the kernel's words (`FUSE_LOOKUP` and so on).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        pub enum Request { $($(#[$doc])* $variant,)* }

        impl Request {
            /// All kinds.
            pub const ALL: &'static [Request] = &[$(Request::$variant,)*];

            /// The kernel's name, in small letters.
            pub fn name(self) -> &'static str {
                match self { $(Request::$variant => $name,)* }
            }
        }
    };
}

requests! {
    Lookup = "lookup",
    Forget = "forget",
    Getattr = "getattr",
    Setattr = "setattr",
    Readlink = "readlink",
    Mknod = "mknod",
    Mkdir = "mkdir",
    Unlink = "unlink",
    Rmdir = "rmdir",
    Symlink = "symlink",
    Rename = "rename",
    Link = "link",
    Open = "open",
    Read = "read",
    Write = "write",
    Flush = "flush",
    Release = "release",
    Fsync = "fsync",
    Opendir = "opendir",
    Readdir = "readdir",
    Readdirplus = "readdirplus",
    Releasedir = "releasedir",
    Fsyncdir = "fsyncdir",
    Statfs = "statfs",
    Setxattr = "setxattr",
    Getxattr = "getxattr",
    Listxattr = "listxattr",
    Removexattr = "removexattr",
    Access = "access",
    Create = "create",
    Fallocate = "fallocate",
    Lseek = "lseek",
    CopyFileRange = "copy_file_range",
    Tmpfile = "tmpfile",
    Statx = "statx",
    Ioctl = "ioctl",
}

/// How many requests of each kind have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCounts {
    counts: [u64; Request::ALL.len()],
}

impl RequestCounts {
    /// Requests of one kind.
    pub fn of(&self, request: Request) -> u64 {
        self.counts[request as usize]
    }

    /// All requests, without the `forget`s, which nobody waits for.
    pub fn total(&self) -> u64 {
        self.iter().filter(|(request, _)| *request != Request::Forget).map(|(_, count)| count).sum()
    }

    /// Each kind with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Request, u64)> + '_ {
        Request::ALL.iter().map(|&request| (request, self.of(request)))
    }

    /// What has come since `earlier`.
    pub fn since(&self, earlier: &RequestCounts) -> RequestCounts {
        let mut counts = self.counts;
        for (count, before) in counts.iter_mut().zip(earlier.counts) {
            *count = count.saturating_sub(before);
        }
        RequestCounts { counts }
    }
}

/// Only the kinds that came, as `lookup 3, read 1`.
impl fmt::Display for RequestCounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (request, count) in self.iter().filter(|(_, count)| *count > 0) {
            write!(out, "{}{} {count}", if first { "" } else { ", " }, request.name())?;
            first = false;
        }
        if first { write!(out, "none") } else { Ok(()) }
    }
}

/// The live counters.
pub(crate) struct Counters {
    counts: [AtomicU64; Request::ALL.len()],
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters { counts: [const { AtomicU64::new(0) }; Request::ALL.len()] }
    }

    pub(crate) fn count(&self, request: Request) {
        self.counts[request as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> RequestCounts {
        RequestCounts { counts: std::array::from_fn(|i| self.counts[i].load(Ordering::Relaxed)) }
    }
}
