//! What there is to do in the background.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// What the thread that makes checkpoints is to do.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wanted {
    pub(crate) checkpoint: bool,
    pub(crate) seals: bool,
}

/// Wakes that thread.
#[derive(Default)]
pub(crate) struct Pressure {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

impl Pressure {
    fn ask(&self, for_it: impl FnOnce(&mut Wanted) -> &mut bool) {
        if !std::mem::replace(for_it(&mut self.wanted.lock()), true) {
            self.changed.notify_one();
        }
    }

    pub(crate) fn raise(&self) {
        self.ask(|wanted| &mut wanted.checkpoint);
    }

    pub(crate) fn raise_seals(&self) {
        self.ask(|wanted| &mut wanted.seals);
    }

    /// Waits until a checkpoint is wanted; false if none is by then.
    pub(crate) fn wants_checkpoint_by(&self, until: Instant) -> bool {
        let mut wanted = self.wanted.lock();
        self.changed.wait_while_until(&mut wanted, |wanted| !wanted.checkpoint, until);
        wanted.checkpoint
    }

    /// Waits until something is wanted, at the latest until it is `due`, when a checkpoint is.
    pub(crate) fn wait(&self, due: Option<Instant>) -> Wanted {
        let mut wanted = self.wanted.lock();
        while !wanted.checkpoint && !wanted.seals {
            let Some(due) = due else {
                self.changed.wait(&mut wanted);
                continue;
            };
            if self.changed.wait_until(&mut wanted, due).timed_out() {
                wanted.checkpoint = true;
            }
        }
        std::mem::take(&mut *wanted)
    }
}
