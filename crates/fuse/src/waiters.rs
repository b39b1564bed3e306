//! Who waits for room ([`crate::room`]), at most so many at once.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many threads may wait for room at once.
#[derive(Default)]
pub(crate) struct Waiters(AtomicUsize);

/// One that waits.
pub(crate) struct Waiting<'a>(&'a Waiters);

impl Waiters {
    /// From now on, so many may.
    pub(crate) fn allow(&self, threads: usize) {
        self.0.store(threads, Ordering::Relaxed);
    }

    /// `None` if as many wait already.
    pub(crate) fn enter(&self) -> Option<Waiting<'_>> {
        let take = |left: usize| left.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(|_| Waiting(self))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
    }
}
