//! Asking one's own mount.
//!
//! A process that is killed while a thread of its own waits for an answer of its own server would stay for ever: the thread waits for the
//! answer, whatever kills it, once the server has taken the request; and while it waits, its file table keeps the connection open, which
//! would otherwise end with the process. So who asks has a file table of his own, in which the connection is not.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::thread;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Has a thread that shares no open files with the process do what asks a mount that the process itself serves. No descriptor of the
/// process means anything there.
///
/// # Errors
/// No thread can be had.
pub fn apart<R: Send>(ask: impl FnOnce() -> R + Send) -> io::Result<R> {
    let asks = || {
        // Where that is not to be had, it is asked all the same.
        let _ = leave_files();
        ask()
    };
    thread::scope(|scope| {
        let asking = thread::Builder::new().name("fuse-asks".into()).spawn_scoped(scope, asks)?;
        asking.join().map_err(|_| io::Error::other("the thread that asks the mount panicked"))
    })
}

fn leave_files() -> io::Result<()> {
    // SAFETY: nothing in this thread has a descriptor yet, and from now on none that it opens is known to others.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
    let numbers = std::fs::read_dir("/proc/thread-self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|number| *number > 2)
        .collect::<Vec<i32>>();
    for number in numbers {
        // But for the descriptor by which they were listed.
        if std::fs::read_link(format!("/proc/thread-self/fd/{number}")).is_err() {
            continue;
        }
        // SAFETY: these are copies in the table of this thread alone, which nobody else can use, and it has none of them.
        let copy = unsafe { OwnedFd::from_raw_fd(number) };
        // That it may fail, for a file of which pages could not be written back, is its owner's affair.
        drop(copy);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_has_none_of_the_files_of_the_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = file.path().display().to_string();
        let open = || {
            let all = std::fs::read_dir("/proc/thread-self/fd").unwrap();
            all.filter(|fd| {
                std::fs::read_link(fd.as_ref().unwrap().path())
                    .is_ok_and(|to| to.display().to_string() == name)
            })
            .count()
        };
        assert_eq!(open(), 1);
        assert_eq!(apart(open).unwrap(), 0);
        assert_eq!(open(), 1, "the process has its own still");
    }
}
