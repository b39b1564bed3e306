//! Inodes without a name, which are there for the kernel alone until it forgets them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many there are, and were.
#[derive(Default)]
pub(crate) struct Nameless {
    held: AtomicUsize,
    /// Of these, those that the kernel has forgotten, and that are about to go.
    going: AtomicUsize,
    gone: AtomicU64,
    /// When the last one lost its name.
    newest: Mutex<Option<Instant>>,
}

impl Nameless {
    /// There is one more.
    pub(crate) fn hold(&self) {
        self.held.fetch_add(1, Ordering::SeqCst);
    }

    /// The same of one that has just lost its name.
    pub(crate) fn hold_new(&self) {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.hold();
    }

    /// One has been given a name.
    pub(crate) fn named(&self) {
        self.held.fetch_sub(1, Ordering::SeqCst);
    }

    /// One goes, by `go`.
    pub(crate) fn let_go(&self, go: impl FnOnce()) {
        self.going.fetch_add(1, Ordering::SeqCst);
        go();
        self.gone.fetch_add(1, Ordering::SeqCst);
        self.held.fetch_sub(1, Ordering::SeqCst);
        self.going.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether there are any, those that go included.
    pub(crate) fn any(&self) -> bool {
        self.held.load(Ordering::SeqCst) > 0
    }

    /// How long ago the last one lost its name, if one has.
    pub(crate) fn newest(&self) -> Option<Duration> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.map(|at| at.elapsed())
    }

    /// Whether any are about to go.
    pub(crate) fn is_going(&self) -> bool {
        self.going.load(Ordering::SeqCst) > 0
    }

    /// How many have gone.
    pub(crate) fn gone(&self) -> u64 {
        self.gone.load(Ordering::SeqCst)
    }
}
