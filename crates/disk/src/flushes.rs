//! Flushes that several callers share.
//!
//! Whoever asks for a flush needs one that *begins* behind his writes. So who comes while one runs waits for the next, and one for all who
//! wait is enough.
//!
//! **A flush that failed is told to all who had written before**, whoever had asked for it: the kernel may tell only once, and take the
//! pages for clean (Rebello et al., ATC'20). Who writes remembers [`Disk::since`](crate::Disk::since) for that.

use std::io;

use parking_lot::{Condvar, Mutex};

/// A moment in the life of a disk: failures from then on count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    failures: u64,
}

#[derive(Default)]
pub(crate) struct Flushes {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Flushes that have begun, and those of them that have ended.
    begun: u64,
    ended: u64,
    failures: u64,
    /// How the last failure said it.
    error: Option<Told>,
}

/// An error that can be told more than once.
#[derive(Clone, Copy)]
struct Told {
    kind: io::ErrorKind,
    code: Option<i32>,
}

impl Told {
    fn of(error: &io::Error) -> Told {
        Told { kind: error.kind(), code: error.raw_os_error() }
    }

    fn error(self) -> io::Error {
        self.code.map_or_else(|| self.kind.into(), io::Error::from_raw_os_error)
    }
}

impl Flushes {
    pub(crate) fn since(&self) -> Since {
        Since { failures: self.state.lock().failures }
    }

    /// Sees to it that a `flush` begins behind this call and ends, by this thread or another.
    ///
    /// # Errors
    /// Any that failed since then.
    pub(crate) fn flush(&self, since: Since, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock();
        let needed = state.begun + 1;
        while state.begun > state.ended && state.ended < needed {
            self.ended.wait(&mut state);
        }
        if state.ended < needed {
            state.begun += 1;
            let outcome = parking_lot::MutexGuard::unlocked(&mut state, flush);
            state.ended = state.begun;
            if let Err(error) = &outcome {
                state.failures += 1;
                state.error = Some(Told::of(error));
            }
            self.ended.notify_all();
        }
        match state.error {
            Some(told) if state.failures > since.failures => Err(told.error()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Flushes that it takes when `askers` ask while one runs.
    fn flushes_for(askers: u64) -> u64 {
        let (flushes, done, asked) = (Flushes::default(), AtomicU64::new(0), AtomicU64::new(0));
        let (began, may_end) = (Barrier::new(2), Barrier::new(2));
        let count = || {
            done.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let first = flushes.flush(flushes.since(), || {
                    began.wait();
                    may_end.wait();
                    count()
                });
                first.unwrap();
            });
            began.wait();
            for _ in 0..askers {
                scope.spawn(|| {
                    asked.fetch_add(1, Ordering::SeqCst);
                    flushes.flush(flushes.since(), count).unwrap();
                });
            }
            while asked.load(Ordering::SeqCst) < askers {
                std::thread::yield_now();
            }
            may_end.wait();
        });
        done.into_inner()
    }

    /// Who is a little late begins one of his own; so it is tried more than once.
    #[test]
    fn who_waits_shares_the_next() {
        assert!((0..100).any(|_| flushes_for(8) == 2), "one for the first and one for the other eight");
        assert_eq!(flushes_for(0), 1);
    }

    #[test]
    fn a_failure_is_told_to_all_who_had_written_before_and_to_nobody_else() {
        let flushes = Flushes::default();
        let (one, other) = (flushes.since(), flushes.since());
        let error = flushes.flush(one, || Err(io::Error::from_raw_os_error(5))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5));
        assert_eq!(flushes.flush(other, || Ok(())).unwrap_err().raw_os_error(), Some(5));
        flushes.flush(flushes.since(), || Ok(())).unwrap();
    }
}
