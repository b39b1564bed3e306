//! What the volume refused of what the kernel wrote back, and how who writes hears of it.
//!
//! With a writeback cache `write` puts bytes into the kernel's pages and returns. The kernel sends them later, and keeps a refusal for
//! `fsync` and `close`: who only writes would go on for ever on a full volume. But before each write to its cache it makes sure of
//! the file's attributes, *in the name of the open file*, and gives an error of that to the writer. So the server
//! remembers the refusal with the inode, tells the kernel not to believe the attributes that it has, and answers the
//! question that follows with the error. `stat` asks in nobody's name, and is answered; what it is told the kernel does not keep
//! as long as the refusal stands, since an invalidation comes between the question and the answer.

use vfs::{Error, Ino, Result};

use crate::server::Server;

/// What was refused of one inode, last.
#[derive(Debug)]
pub(crate) struct Refusal {
    error: Error,
    bytes: u64,
    is_told: bool,
}

impl Refusal {
    pub(crate) fn new(error: Error, bytes: u64) -> Refusal {
        Refusal { error, bytes, is_told: false }
    }

    /// The error that a writer is to be told: once in any case, and then for want of space as long as what was refused would not
    /// fit, of which there are `free` bytes.
    pub(crate) fn tell(&mut self, free: impl FnOnce() -> u64) -> Option<Error> {
        let is_news = !std::mem::replace(&mut self.is_told, true);
        let stands = is_news || self.error == Error::NoSpace && free() < self.bytes;
        stands.then(|| self.error.clone())
    }
}

impl Server {
    /// Writes what the kernel had in its pages: all of it, or it is an error, for the kernel does not look at how much was written.
    pub(crate) fn write_back(
        &self,
        ino: Ino,
        len: usize,
        write: impl Fn(usize) -> Result<usize>,
    ) -> Result<usize> {
        let mut done = 0;
        let written = loop {
            match write(done) {
                Ok(0) if done < len => break Err(Error::NoSpace),
                Ok(some) if done + some < len => done += some,
                Ok(_) => break Ok(len),
                Err(error) => break Err(error),
            }
        };
        if let (Err(error), true) = (&written, self.writeback_cache) {
            self.inodes.refused(ino, Refusal::new(error.clone(), len as u64));
            self.invalidate_attributes(ino);
        }
        written
    }

    fn invalidate_attributes(&self, ino: Ino) {
        if let Some(device) = self.device.upgrade() {
            // It fails if the kernel does not hold the inode any more: then nobody writes to it.
            let _ = device.invalidate_attributes(ino);
        }
    }

    /// The kernel is about to be told attributes of `ino` without a writer's asking.
    pub(crate) fn keep_refusal(&self, ino: Ino) {
        if self.inodes.has_refusal(ino) {
            self.invalidate_attributes(ino);
        }
    }

    /// An error if the next write to `ino` is to be refused, because one was that the kernel made in its pages.
    pub(crate) fn check_refusal(&self, ino: Ino) -> Result<()> {
        let free = || {
            self.volume.statfs_of(ino).map_or(0, |space| space.blocks_available * u64::from(space.block_size))
        };
        self.inodes.refusal(ino, free).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_once_and_while_there_is_no_room() {
        let mut full = Refusal::new(Error::NoSpace, 4096);
        assert_eq!(full.tell(|| 1 << 20), Some(Error::NoSpace), "nobody has heard of it yet");
        assert_eq!(full.tell(|| 4095), Some(Error::NoSpace));
        assert_eq!(full.tell(|| 4096), None);
        let mut failed = Refusal::new(Error::Io("of a test".into()), 4096);
        assert!(failed.tell(|| 0).is_some());
        assert_eq!(failed.tell(|| 0), None);
    }
}
