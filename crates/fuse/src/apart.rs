//! Asking one's own mount.
//!
//! A process that is killed while a thread of its own waits for an answer of its own server would stay for ever: the thread waits for the
//! answer, whatever kills it, once the server has taken the request; and while it waits, its file table keeps the connection open, which
//! would otherwise end with the process. So who asks has a file table of his own, in which the connection is not. (His address space is the
//! process's, and nothing may keep the connection for as long as that: see [`crate::command_ring`].)

use std::io;
use std::thread;

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

/// Has no program that this process starts from now on get its files, but for the standard ones: whoever called it may have locks on them, or
/// wait for the end of a pipe. Files opened later are the business of who opens them.
pub fn keep_files_from_children() {
    // SAFETY: it closes nothing here. Where the kernel cannot do it (before 5.11), they are inherited.
    unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
}

fn leave_files() -> io::Result<()> {
    // SAFETY: nothing in this thread has a descriptor yet, and in the table that it gets here it opens its own; that of the
    // process stays as it is. That a close may fail, for a file of which pages could not be written back, is its owner's affair.
    let left = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE as libc::c_int) };
    if left == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
