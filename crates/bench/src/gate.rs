//! Where threads wait until all are there, and are let go or sent home together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct State {
    /// Threads that are at the gate, or will never be.
    arrived: usize,
    /// Whether it is opened, and to go on.
    go: Option<bool>,
}

/// A barrier that can be given up: it waits neither for a thread that cannot be had nor for one that panics.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    /// Set when one thread fails or panics: the others stop.
    pub(crate) failed: AtomicBool,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's place at the gate, which it takes before all else.
    pub(crate) fn place(&self) -> Place<'_> {
        Place { gate: self, is_there: false }
    }

    /// Waits until so many threads are there.
    pub(crate) fn gather(&self, threads: usize) {
        let gathering = self.changed.wait_while(self.state(), |state| state.arrived < threads);
        drop(gathering.unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets them go on, or sends them home.
    pub(crate) fn open(&self, go: bool) {
        self.state().go = Some(go);
        self.changed.notify_all();
    }
}

/// Counts as there when it is dropped, too.
pub(crate) struct Place<'a> {
    gate: &'a Gate,
    is_there: bool,
}

impl Place<'_> {
    fn arrive(&mut self) {
        if !std::mem::replace(&mut self.is_there, true) {
            self.gate.state().arrived += 1;
            self.gate.changed.notify_all();
        }
    }

    /// Waits for the gate to open; false if it is given up.
    pub(crate) fn wait(&mut self) -> bool {
        self.arrive();
        let opened = self.gate.changed.wait_while(self.gate.state(), |state| state.go.is_none());
        opened.unwrap_or_else(PoisonError::into_inner).go == Some(true)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.gate.failed.store(true, Ordering::Relaxed);
        }
        self.arrive();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_opened_or_given_up() {
        for go in [true, false] {
            let gate = Gate::default();
            let answers: Vec<bool> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| gate.place().wait())).collect();
                if go {
                    gate.gather(3);
                }
                gate.open(go);
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(answers, [go; 3]);
        }
    }

    #[test]
    fn nobody_waits_for_one_that_panics() {
        let gate = Gate::default();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _place = gate.place();
                panic!("on purpose");
            });
            gate.gather(1);
            assert!(gate.failed.load(Ordering::Relaxed));
            assert!(thread.join().is_err());
        });
    }
}
