//! Which file operation a thread is in, for recordings.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

thread_local! {
    static CURRENT: Cell<Operation> = const { Cell::new(Operation { name: "", number: 0 }) };
    static STARTED: Cell<u64> = const { Cell::new(0) };
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// The operation that a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// Its name; empty outside any operation.
    pub(crate) name: &'static str,
    /// Counts the thread's operations from 1, so that two writes in a row are told apart; 0 outside.
    pub(crate) number: u64,
}

/// Says that this thread is in the file operation `name` until the guard is dropped.
///
/// Guards nest: an operation inside another one (a checkpoint inside a write) counts as itself while it
/// lasts. Costs three thread-local accesses, whether or not anybody records.
#[inline]
pub fn operation(name: &'static str) -> OperationGuard {
    let number = STARTED.get() + 1;
    STARTED.set(number);
    let outer = CURRENT.replace(Operation { name, number });
    OperationGuard { outer, stays_on_its_thread: PhantomData }
}

/// Ends its operation when dropped; see [`operation`].
#[must_use = "the operation ends when the guard is dropped: bind it to a name"]
#[derive(Debug)]
pub struct OperationGuard {
    outer: Operation,
    stays_on_its_thread: PhantomData<*const ()>,
}

impl Drop for OperationGuard {
    #[inline]
    fn drop(&mut self) {
        CURRENT.set(self.outer);
    }
}

pub(crate) fn current() -> Operation {
    CURRENT.get()
}

/// This thread's number in recordings, from 1, never used again.
pub(crate) fn thread() -> u32 {
    static THREADS: AtomicU32 = AtomicU32::new(1);
    if THREAD.get() == 0 {
        THREAD.set(THREADS.fetch_add(1, Ordering::Relaxed));
    }
    THREAD.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_nest_and_are_numbered() {
        assert_eq!(current(), Operation { name: "", number: 0 });
        let outer = operation("write");
        let first = current();
        {
            let _inner = operation("checkpoint");
            assert_eq!(current(), Operation { name: "checkpoint", number: first.number + 1 });
        }
        assert_eq!(current(), first);
        drop(outer);
        assert_eq!(current().name, "");
        let _again = operation("write");
        assert_eq!(current().number, first.number + 2);
    }

    #[test]
    fn threads_have_numbers_of_their_own() {
        let here = thread();
        let there = std::thread::spawn(thread).join().unwrap();
        assert_ne!(here, there);
        assert_eq!(here, thread());
    }
}
