//! What each thread has one of, in every volume: threads are numbered, and spread over as many as there are lanes.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::alone::Alone;
use crate::geometry::LANES;

/// Threads that have a number.
static THREADS: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static NUMBER: Cell<usize> = Cell::new(THREADS.fetch_add(1, Relaxed) % LANES);
}

/// The calling thread's number, below [`LANES`].
pub(crate) fn number() -> usize {
    NUMBER.get()
}

/// Gives it another one.
pub(crate) fn set_number(number: usize) {
    NUMBER.set(number % LANES);
}

/// One for each number that threads have: who stores to the calling thread's takes its line from nobody, as long as there are
/// no more threads than numbers.
pub(crate) struct PerThread<T>(Box<[Alone<T>]>);

impl<T> PerThread<T> {
    /// `make` is told the thread's number.
    pub(crate) fn new(make: impl FnMut(usize) -> T) -> PerThread<T> {
        PerThread((0..LANES).map(make).map(Alone::new).collect())
    }

    /// The calling thread's.
    pub(crate) fn mine(&self) -> &T {
        &self.0[number()]
    }

    /// Everybody's.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|one| &**one)
    }
}
