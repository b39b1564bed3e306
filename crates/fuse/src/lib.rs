//! Serves a volume as a mounted file system, through the kernel's FUSE.
//!
//! ```text
//! a program → kernel (VFS, FUSE, page cache) → /dev/fuse or io_uring → Server → vfs::FileSystem
//! ```
//!
//! The server is the only one who changes the volume while it is mounted, so the kernel may keep everything it
//! has learned: attributes, names, the absence of names, pages, symbolic links and directory listings. What
//! costs time on a FUSE mount is the round trip to the server, and most of this crate is about not needing one:
//!
//! - files and directories are opened and closed without a message (see `inodes.rs`);
//! - where the kernel offers io_uring, a message is handed over on the processor that it was made on (see `ring.rs`);
//! - closing sends no flush, `access` is checked by the kernel (`default_permissions`), POSIX ACLs included;
//! - with [`MountOptions::writeback_cache`], writes and `mtime` stay in the page cache until `fsync`, `close` or
//!   memory pressure sends them;
//! - with [`MountOptions::durable_operations`], `fsync` of a directory sends nothing; that of a file neither, unless there is a writeback cache.
//!
//! # What a mount does not have
//!
//! - what of written pages was refused `close` may not say unless [`MountOptions::checked_close`] is set: then it is asked for each time.
//! - `statx` gives no creation time unless [`MountOptions::birth_times`] is set: programs that ask for it pay a message for each file.
//! - `sync` and `syncfs` reach the volume only through the pages they write: the kernel has no such message for
//!   a FUSE server. `fsync` and unmounting are the points of durability; with [`MountOptions::durable_operations`] those pages are, too.
//! - `msync` and `fsync` fail when the server has died, as all does. But with [`MountOptions::durable_operations`] and no writeback cache, for what was
//!   stored to a shared mapping, the kernel may say of them that they succeeded until its coarse clock ticks (4 ms at 250 Hz): it drops pages that it cannot send.
//! - `SEEK_DATA` and `SEEK_HOLE` see every file that could be written to as data without holes, and with a writeback cache any file, because
//!   the kernel asks the server without sending the pages it still holds; for the same reason no regular file is said to have no blocks.
//! - Files cannot be opened by handle unless [`MountOptions::opens_by_handle`] is set.
//! - `atime` is not kept by the kernel; the volume may set it when a read reaches it.
//!
//! Locks (`flock`, `fcntl`) are kept by the kernel and hold between all processes of the machine.
#![deny(unsafe_code)]

mod abi;
#[allow(unsafe_code)]
mod apart;
mod attach;
mod clock;
mod command_ring;
mod convert;
mod credentials;
mod device;
mod directory;
mod dispatch;
mod error;
mod handshake;
mod inodes;
mod kernel_cache;
mod message;
mod mount;
mod mountinfo;
mod nameless;
mod options;
mod priority;
mod reconnect;
mod refusals;
mod refused;
mod requests;
mod ring;
mod room;
mod server;
mod waiters;

pub use apart::{apart, keep_files_from_children};
pub use attach::{MountPoint, remount, unmount};
pub use error::Error;
pub use kernel_cache::KernelCache;
pub use mount::{Mount, Unmounter, mount};
pub use mountinfo::unescape;
pub use options::{MountOptions, Transport};
pub use requests::{Request, RequestCounts};
