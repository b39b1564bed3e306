//! Pages of the kernel that a direct write has overtaken.
//!
//! Before an `O_DIRECT` write the kernel drops the pages that it has of the range, and once more behind one that somebody waits for. Behind an
//! asynchronous one (libaio, io_uring; `FUSE_ASYNC_DIO`) it does not (`generic_file_direct_write` in `mm/filemap.c`): pages that somebody else read
//! in between would stay, older than the file, for as long as there is memory. Without asynchronous ones, a database would have half as many
//! writes a second. So **a direct write is answered when the kernel holds no page of the range that is older**, and the server asks it to drop them.
//!
//! Whoever drops a page waits for who reads it, who waits for the server. So none of the threads that serve may do it, nor wait for it: they
//! hand the answer to one that serves nobody. That costs more than the write, and so it is done only where there may be such pages:
//! the kernel has read or written pages of the file not long ago. It says of each message whether that came from an open file with
//! `O_DIRECT`. (A mapping of such a file is taken for direct reads.)

use std::io;
use std::os::fd::AsFd;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread;
use std::time::Duration;

use vfs::Ino;

use crate::device::Device;
use crate::message::Later;

/// For so long behind the last message about pages of a file, direct writes to it may have overtaken some: for a write that was on its way when
/// those pages were read can have waited before it was sent.
pub(crate) const PAGES_LAST: Duration = Duration::from_secs(10);

/// Bytes of a file.
pub(crate) struct Range {
    pub(crate) ino: Ino,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The thread that has pages dropped. It ends with this.
pub(crate) struct Dropper {
    jobs: Sender<(Range, Later)>,
    device: Weak<Device>,
}

impl Dropper {
    pub(crate) fn start(device: Weak<Device>) -> io::Result<Dropper> {
        let (jobs, taken) = channel();
        let dropping = device.clone();
        thread::Builder::new().name("fuse-dropper".to_owned()).spawn(move || run(&dropping, &taken))?;
        Ok(Dropper { jobs, device })
    }

    /// Has the kernel drop what it holds of `range`, then gives `answer`.
    pub(crate) fn answer_without(&self, range: Range, answer: Later) {
        if let Err(SendError((_, answer))) = self.jobs.send((range, answer))
            && let Some(device) = self.device.upgrade()
        {
            answer(device.descriptor().as_fd()); // the thread is gone, and somebody waits
        }
    }
}

fn run(device: &Weak<Device>, jobs: &Receiver<(Range, Later)>) {
    while let Ok((range, answer)) = jobs.recv() {
        // Without it there is no mount, and nobody waits.
        let Some(device) = device.upgrade() else { return };
        // It fails if the kernel does not hold the inode any more: then it has no pages of it.
        let _ = device.invalidate_pages(range.ino, range.offset, range.len);
        answer(device.descriptor().as_fd());
    }
}
