//! What the volume refused of what the kernel wrote back, and how who writes hears of it.
//!
//! With a writeback cache `write` puts bytes into the kernel's pages and returns. The kernel sends them later, and keeps a refusal for
//! `fsync` and `close`: who only writes would go on for ever on a full volume. But before each write to its cache it makes sure of
//! the file's attributes, *in the name of the open file*, and gives an error of that to the writer. So the server
//! remembers the refusal with the inode, tells the kernel not to believe the attributes that it has, and answers the
//! question that follows with the error, once: what does not fit then is refused again, and told again. So a writer goes on for no more
//! than the kernel keeps in its pages. `stat` asks in nobody's name, and is answered; what it is told the kernel does not keep
//! as long as nobody has heard of the refusal, since an invalidation comes between the question and the answer. Who reads behind what the
//! kernel takes for the end of the file asks in its name, too, and may be told in a writer's place.

use vfs::{Ino, Result};

use crate::server::{Server, write_all};

impl Server {
    /// Writes what the kernel had in its pages: all of it, or it is an error, for the kernel does not look at how much was written.
    pub(crate) fn write_back(
        &self,
        ino: Ino,
        len: usize,
        write: impl Fn(usize) -> Result<usize>,
    ) -> Result<usize> {
        let written = write_all(len, write);
        if let (Err(error), true) = (&written, self.writeback_cache) {
            self.inodes.refused(ino, error.clone());
            self.invalidate_attributes(ino);
        }
        written
    }

    pub(crate) fn invalidate_attributes(&self, ino: Ino) {
        if let Some(device) = self.device.upgrade() {
            // It fails if the kernel does not hold the inode any more: then it knows nothing of it.
            let _ = device.invalidate_attributes(ino);
        }
    }

    /// The kernel is about to be told attributes of `ino` without a writer's asking.
    pub(crate) fn keep_refusal(&self, ino: Ino) {
        if self.inodes.has_refusal(ino) {
            self.invalidate_attributes(ino);
        }
    }

    /// An error if a write to `ino` was refused that the kernel made in its pages, and nobody has been told.
    pub(crate) fn check_refusal(&self, ino: Ino) -> Result<()> {
        self.inodes.take_refusal(ino).map_or(Ok(()), Err)
    }
}
