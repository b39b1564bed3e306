//! The first message of a mount: what the kernel offers, and what this server takes of it.

use std::io;

use zerocopy::{FromBytes, IntoBytes};

use crate::MountOptions;
use crate::abi::{Features, InitIn, InitOut, MAJOR, MINOR, MINOR_MIN};
use crate::message::{Message, Reply};

/// Largest write request, bytes.
pub(crate) const WRITE_MAX: u32 = 1 << 20;
/// Requests that the kernel may have under way on its own account: readahead, writeback, forgets.
const BACKGROUND_MAX: u16 = 64;

/// What was agreed on.
pub(crate) struct Agreement {
    out: InitOut,
    offered: Features,
}

impl Agreement {
    /// Reads the kernel's first message. An error names what is wrong with it.
    /// Times of the volume are multiples of `time_step_ns`.
    pub(crate) fn read(
        message: &Message<'_>,
        options: &MountOptions,
        time_step_ns: u32,
    ) -> io::Result<Agreement> {
        let cut_short = || io::Error::other("the kernel's first message is cut short");
        // Older kernels send no more than these two and two others.
        let ([major, minor], _) = <[u32; 2]>::read_from_prefix(message.payload()).map_err(|_| cut_short())?;
        if major != MAJOR || minor < MINOR_MIN {
            return Err(io::Error::other(format!(
                "the kernel speaks FUSE {major}.{minor}, and this needs {MAJOR}.{MINOR_MIN}, which Linux 5.17 has"
            )));
        }
        let (offer, _) = InitIn::read_from_prefix(message.payload()).map_err(|_| cut_short())?;
        let offered = Features::from_bits_truncate(u64::from(offer.flags2) << 32 | u64::from(offer.flags));
        let taken = wanted(options) & offered;
        let out = InitOut {
            major: MAJOR,
            minor: MINOR,
            max_readahead: offer.max_readahead,
            flags: taken.bits() as u32,
            flags2: (taken.bits() >> 32) as u32,
            max_background: BACKGROUND_MAX,
            congestion_threshold: BACKGROUND_MAX / 4 * 3,
            max_write: WRITE_MAX,
            time_gran: time_step_ns,
            // Of no request more than of a write: a ring's entries have to hold it.
            max_pages: (WRITE_MAX as usize / rustix::param::page_size()).max(1) as u16,
            ..InitOut::default()
        };
        Ok(Agreement { out, offered })
    }

    /// Whether the kernel would hand requests over through io_uring.
    pub(crate) fn ring_offered(&self) -> bool {
        self.offered.contains(Features::OVER_IO_URING)
    }

    /// Requests are to come through rings, which are there.
    pub(crate) fn with_rings(&mut self) {
        self.out.flags2 |= (Features::OVER_IO_URING.bits() >> 32) as u32;
    }

    pub(crate) fn answer(&self, reply: Reply<'_>) {
        reply.data(self.out.as_bytes());
    }
}

fn wanted(options: &MountOptions) -> Features {
    let mut wanted = Features::INIT_EXT
        | Features::ASYNC_READ
        | Features::BIG_WRITES
        | Features::MAX_PAGES
        // The umask arrives with the request: a default ACL takes its place.
        | Features::DONT_MASK
        | Features::POSIX_ACL
        | Features::SETXATTR_EXT
        | Features::DO_READDIRPLUS
        | Features::READDIRPLUS_AUTO
        | Features::PARALLEL_DIROPS
        | Features::CACHE_SYMLINKS
        // Nobody else changes files: cached pages stay until the server says otherwise, which it never
        // has to, and so FUSE_AUTO_INVAL_DATA is not among these.
        | Features::EXPLICIT_INVAL_DATA
        // The volume takes set-user-ID, set-group-ID and file capabilities away on write, truncate and
        // chown. Without this flag, the kernel asks for `security.capability` before every single write.
        | Features::HANDLE_KILLPRIV_V2
        | Features::NO_OPEN_SUPPORT
        | Features::NO_OPENDIR_SUPPORT;
    // Not FUSE_ATOMIC_O_TRUNC: without open requests, truncation comes as a setattr, and with this flag it
    // would not come at all. Not FUSE_POSIX_LOCKS, FUSE_FLOCK_LOCKS: the kernel keeps locks itself.
    if options.keeps_written_pages() {
        wanted |= Features::WRITEBACK_CACHE;
    }
    // `.` of any inode and `..` of any directory can be looked up by number.
    wanted |= if options.opens_by_handle { Features::EXPORT_SUPPORT } else { Features::NO_EXPORT_SUPPORT };
    if options.async_direct_io {
        // One that would make a file longer and fails in the middle has the kernel cut the file to its length, which nobody else
        // changes meanwhile.
        wanted |= Features::ASYNC_DIO;
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_depends_on_options_is_asked_for_with_them_alone() {
        let usual = wanted(&MountOptions::default());
        assert!(usual.contains(Features::NO_EXPORT_SUPPORT));
        assert!(
            !usual.intersects(Features::EXPORT_SUPPORT | Features::ASYNC_DIO | Features::WRITEBACK_CACHE)
        );
        let exported = wanted(&MountOptions { opens_by_handle: true, ..MountOptions::default() });
        assert_eq!(usual ^ exported, Features::EXPORT_SUPPORT | Features::NO_EXPORT_SUPPORT);
        let asynchronous = wanted(&MountOptions { async_direct_io: true, ..MountOptions::default() });
        assert_eq!(usual ^ asynchronous, Features::ASYNC_DIO);
        let kept = MountOptions { writeback_cache: true, ..MountOptions::default() };
        assert_eq!(usual ^ wanted(&kept), Features::WRITEBACK_CACHE);
        assert_eq!(wanted(&MountOptions { read_only: true, ..kept }), usual);
    }
}
