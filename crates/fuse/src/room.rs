//! Room that comes back when the kernel forgets an inode.
//!
//! The kernel says that it lets go of an inode (`forget`) when the call is about to return that took its last name, or its last descriptor, and waits for
//! no answer; until that has been read, a handle keeps the inode ([`crate::inodes`]). So who removes a file and makes another one, where there is room
//! for one of them, could be refused. **Nothing is refused for want of room that an inode takes which the kernel had let go of before**: what finds none waits
//! as long as there are inodes without a name and messages on their way, and tries again when one has gone. But of the threads that read `/dev/fuse`
//! one never waits, for somebody has to read: what it is asked then may be refused too early. Over rings another thread reads there.

use std::thread;
use std::time::{Duration, Instant};

use vfs::{Error, Result};

use crate::server::Server;

/// How long nothing may be on its way. A message that a thread has read, and has not begun with, is not seen.
const QUIET: Duration = Duration::from_millis(5);
/// How long anybody waits in all: others may remove files one after the other, and never is there enough.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often to look.
const STEP: Duration = Duration::from_micros(200);

impl Server {
    /// Runs `change`, which may need room.
    pub(crate) fn with_room<T>(&self, mut change: impl FnMut() -> Result<T>) -> Result<T> {
        let mut refused = None;
        loop {
            let gone = self.inodes.nameless_gone();
            let changed = change();
            if !matches!(changed, Err(Error::NoSpace))
                || !self.room_comes(gone, *refused.get_or_insert_with(Instant::now))
            {
                return changed;
            }
        }
    }

    /// Waits for an inode without a name to go, that `gone` does not count; false if none will. Room was `refused` then.
    fn room_comes(&self, gone: u64, refused: Instant) -> bool {
        let Some(_waiting) = self.waiters.enter() else { return false };
        let mut quiet_since = Instant::now();
        while self.inodes.nameless_gone() == gone {
            let is_on_its_way = self.inodes.is_forgetting()
                || self.device.upgrade().is_some_and(|device| device.has_message());
            if is_on_its_way {
                quiet_since = Instant::now();
            }
            let is_over = quiet_since.elapsed() > QUIET || refused.elapsed() > PATIENCE;
            if is_over || !self.inodes.has_nameless() {
                // One that was the last may have gone since.
                return self.inodes.nameless_gone() != gone;
            }
            thread::sleep(STEP);
        }
        refused.elapsed() <= PATIENCE
    }
}
