//! What there is to do in the background.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// What the thread that makes checkpoints is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Checkpoint,
    Seal,
}

/// What it has been asked for.
#[derive(Default)]
struct Wanted {
    checkpoint: bool,
    seals: bool,
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

    /// Waits until there is something to do: when it is `due` at the latest, a checkpoint. Who asked for seals meanwhile
    /// has them behind it.
    pub(crate) fn wait(&self, due: Option<Instant>) -> Task {
        let mut wanted = self.wanted.lock();
        loop {
            let is_due = due.is_some_and(|due| Instant::now() >= due);
            if std::mem::take(&mut wanted.checkpoint) || is_due {
                return Task::Checkpoint;
            }
            if std::mem::take(&mut wanted.seals) {
                return Task::Seal;
            }
            match due {
                Some(due) => drop(self.changed.wait_until(&mut wanted, due)),
                None => self.changed.wait(&mut wanted),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Nobody asked for seals again, and none were made until the volume was unmounted.
    #[test]
    fn who_asks_beside_a_checkpoint_is_heard_behind_it() {
        let pressure = Pressure::default();
        pressure.raise_seals();
        pressure.raise();
        assert_eq!((pressure.wait(None), pressure.wait(None)), (Task::Checkpoint, Task::Seal));
    }

    #[test]
    fn a_checkpoint_that_is_due_goes_before_seals() {
        let pressure = Pressure::default();
        pressure.raise_seals();
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(pressure.wait(Some(Instant::now())), Task::Checkpoint);
        assert_eq!((pressure.wait(Some(soon)), pressure.wait(Some(soon))), (Task::Seal, Task::Checkpoint));
        assert!(Instant::now() >= soon);
    }
}
