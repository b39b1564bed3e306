//! Room that comes back when the kernel forgets an inode.
//!
//! The kernel says that it lets go of an inode (`forget`) when the call is about to return that took its last name, or its last descriptor, and waits for
//! no answer; until that has been read, a handle keeps the inode ([`crate::inodes`]). So who removes a file and makes another one, where there is room
//! for one of them, could be refused. What finds no room waits while an inode without a name is new, or going, or a message unread that may be of one, and
//! tries again when one has gone. **Nobody waits for what is merely held**, and who has waited in vain keeps all others from it for a second: on a full
//! volume each of thousands of pages may be refused. Of the threads that read `/dev/fuse` one never waits, for somebody has to read.

use std::thread;
use std::time::{Duration, Instant};

use vfs::{Error, Result};

use crate::server::Server;

/// How long a message may take: from when an inode has lost its last name, or from when it was seen unread, to what it is about.
const ON_ITS_WAY: Duration = Duration::from_millis(10);
/// How long anybody waits, but for one that is going.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long for that, as a large file takes.
const PATIENCE_WITH_ONE: Duration = Duration::from_secs(2);
/// How often to look.
const STEP: Duration = Duration::from_micros(200);

impl Server {
    /// Runs `change`, which may need room.
    pub(crate) fn with_room<T>(&self, mut change: impl FnMut() -> Result<T>) -> Result<T> {
        let gone = self.inodes.nameless.gone();
        let mut changed = change();
        if !matches!(changed, Err(Error::NoSpace))
            || !self.inodes.nameless.any() && self.has_gone(gone).is_none()
        {
            return changed;
        }
        let Some(waiting) = self.waiters.enter() else { return changed };
        let (refused, mut seen) = (Instant::now(), gone);
        while let Some(gone) = self.room_comes(seen, refused) {
            seen = gone;
            changed = change();
            if !matches!(changed, Err(Error::NoSpace)) {
                return changed;
            }
        }
        if refused.elapsed() > STEP {
            waiting.was_in_vain();
        }
        changed
    }

    /// How many inodes without a name have gone, if they are others than `seen`.
    fn has_gone(&self, seen: u64) -> Option<u64> {
        Some(self.inodes.nameless.gone()).filter(|gone| *gone != seen)
    }

    /// The same, when that is so. Room was `refused` then; `None` if none will come.
    fn room_comes(&self, seen: u64, refused: Instant) -> Option<u64> {
        let mut unread = None;
        loop {
            let is_going = self.inodes.nameless.is_going();
            if self.device.upgrade().is_some_and(|device| device.has_message()) {
                unread = Some(Instant::now());
            }
            let ages = [unread.map(|at| at.elapsed()), self.inodes.nameless.newest()];
            let may_come = is_going || ages.into_iter().flatten().any(|age| age < ON_ITS_WAY);
            let is_over = refused.elapsed() > if is_going { PATIENCE_WITH_ONE } else { PATIENCE };
            // Looked at last: what was going may have gone.
            let gone = self.has_gone(seen);
            if is_over || gone.is_some() || !may_come {
                return gone.filter(|_| !is_over);
            }
            thread::sleep(STEP);
        }
    }
}
