//! The usual priority for what works on behalf of others.
//!
//! A thread that a front end has given the lowest priority for as long as nobody else computes (`SCHED_IDLE`) hands that on to what it
//! starts, and to the threads that the kernel starts for its `io_uring`s: those would have it for good.

use rustix::thread::{CpuSet, sched_setaffinity};
use scheduling::Policy;

/// As long as it lives, the calling thread has the usual priority, unless it has one that is neither that nor the lowest.
#[must_use]
pub(crate) struct Usual {
    was_lowest: bool,
}

impl Usual {
    pub(crate) fn for_now() -> Usual {
        let was_lowest = scheduling::policy(None) == Some(Policy::Idle);
        if was_lowest {
            scheduling::set(None, Policy::Usual);
        }
        Usual { was_lowest }
    }

    /// Until the thread ends. It may run anywhere, too.
    pub(crate) fn for_good() {
        std::mem::forget(Usual::for_now());
        let mut anywhere = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|processor| anywhere.set(processor));
        // The kernel takes those that are there and allowed.
        let _ = sched_setaffinity(None, &anywhere);
    }
}

impl Drop for Usual {
    fn drop(&mut self) {
        if self.was_lowest {
            scheduling::set(None, Policy::Idle);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn what_a_thread_of_the_lowest_priority_starts_can_have_the_usual_one() {
        let lowest = thread::spawn(|| {
            scheduling::set(None, Policy::Idle);
            let usual = Usual::for_now();
            let for_now = scheduling::policy(None);
            drop(usual);
            let started = thread::spawn(|| {
                Usual::for_good();
                scheduling::policy(None)
            });
            (for_now, scheduling::policy(None), started.join().unwrap())
        });
        // Only with the right to may the usual one be had back.
        let may = rustix::process::geteuid().is_root();
        let back = if may { Some(Policy::Usual) } else { Some(Policy::Idle) };
        assert_eq!(lowest.join().unwrap(), (back, Some(Policy::Idle), back));
    }
}
