//! The time that the kernel stamps inodes with.
//!
//! That is its coarse clock or, where later, the newest time that any file system has taken of the finer one (Linux 6.13,
//! `Documentation/filesystems/multigrain-ts.rst`). No clock shows the second, but a stamp does: a pipe is stamped, and asked when that was. Else what a volume
//! stamps would be older than what the kernel has stamped before on the same mount, and `make` would find what it has just made out of date.

use std::io::PipeReader;
use std::sync::OnceLock;

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, fstat, futimens};
use vfs::Time;

/// Has volumes stamp with the kernel's time from now on.
pub(crate) fn follow() {
    // It takes a descriptor, of which there may be none when something has failed.
    now();
    Time::follow(now);
}

/// The kernel's time; its coarse clock, if it stamps nothing for us.
fn now() -> Time {
    static PIPE: OnceLock<Option<PipeReader>> = OnceLock::new();
    let pipe = PIPE.get_or_init(|| std::io::pipe().ok().map(|(reader, _writer)| reader));
    pipe.as_ref().and_then(|pipe| stamped(pipe).ok()).unwrap_or_else(Time::coarse)
}

fn stamped(pipe: &PipeReader) -> rustix::io::Result<Time> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    futimens(pipe, &Timestamps { last_access: now, last_modification: now })?;
    let stat = fstat(pipe)?;
    Ok(Time { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as u32 })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// The coarse clock is behind what the kernel has given to a file whose times somebody looked at.
    #[test]
    fn it_is_never_older_than_what_the_kernel_has_stamped() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = File::create(dir.path().join("file")).unwrap();
        for round in 0..1000 {
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
            file.set_len(round).unwrap();
            let stamp = file.metadata().unwrap();
            let stamp = Time { sec: stamp.mtime(), nsec: stamp.mtime_nsec() as u32 };
            let now = now();
            assert!(now >= stamp, "{now:?} is behind {stamp:?}");
        }
    }
}
