//! Who may wait for room ([`crate::room`]).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long nobody waits behind one who has waited in vain.
const PAUSE: Duration = Duration::from_secs(1);

/// So many may at once as there are places.
#[derive(Default)]
pub(crate) struct Waiters {
    places: AtomicUsize,
    vain: Mutex<Option<Instant>>,
}

/// One that waits.
pub(crate) struct Waiting<'a>(&'a Waiters);

impl Waiters {
    /// Of so many threads that read `/dev/fuse` all but one may; if there are none, requests come over rings, and all may.
    pub(crate) fn allow(&self, readers: usize) {
        self.places.store(readers.checked_sub(1).unwrap_or(isize::MAX as usize), Ordering::Relaxed);
    }

    fn vain(&self) -> MutexGuard<'_, Option<Instant>> {
        self.vain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if it may not.
    pub(crate) fn enter(&self) -> Option<Waiting<'_>> {
        if self.vain().is_some_and(|at| at.elapsed() < PAUSE) {
            return None;
        }
        let take = |left: usize| left.checked_sub(1);
        self.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(|_| Waiting(self))
    }
}

impl Waiting<'_> {
    /// There was no room all the same.
    pub(crate) fn was_in_vain(self) {
        *self.0.vain() = Some(Instant::now());
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.places.fetch_add(1, Ordering::Relaxed);
    }
}
