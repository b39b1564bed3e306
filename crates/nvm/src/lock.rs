//! One writer or many readers: the lock on a zone's file.
//!
//! `flock(2)`, which any file or device takes, which the kernel drops with the process, and whose holder
//! `/proc/locks` names.

use std::fs::File;
use std::path::Path;

use rustix::fs::FlockOperation;

use crate::error::Error;
use crate::holder::holder;

/// Gives the lock back. Closing the file does so, too, but not while a process that another thread has just forked has yet
/// to close its copy.
pub(crate) fn give_back(file: &File) {
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// Takes the lock without waiting; it lasts until it is given back or `file` is closed.
pub(crate) fn take(file: &File, path: &Path, exclusive: bool) -> Result<(), Error> {
    let operation = if exclusive {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    rustix::fs::flock(file, operation).map_err(|errno| match errno {
        rustix::io::Errno::WOULDBLOCK => Error::Locked { path: path.to_path_buf(), holder: holder(file) },
        errno => Error::Io { doing: "lock it", path: path.to_path_buf(), source: errno.into() },
    })
}
