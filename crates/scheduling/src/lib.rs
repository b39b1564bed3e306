//! When the kernel runs a thread: usually, or only while a processor has nothing better to do (`sched(7)`).

use rustix::thread::Pid;

/// How a thread is scheduled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// `SCHED_OTHER`.
    Usual,
    /// `SCHED_IDLE`, the lowest priority there is. What such a thread starts has it, too, threads of the kernel included.
    Idle,
}

/// The policy of a thread of this process, or the calling one, if it is one of these.
pub fn policy(thread: Option<Pid>) -> Option<Policy> {
    // SAFETY: it takes and gives numbers.
    match unsafe { libc::sched_getscheduler(Pid::as_raw(thread)) } {
        libc::SCHED_OTHER => Some(Policy::Usual),
        libc::SCHED_IDLE => Some(Policy::Idle),
        _ => None,
    }
}

/// Gives a thread, or the calling one, a policy. Tells whether it has it: the usual one is had back only by who may (`RLIMIT_NICE`).
pub fn set(thread: Option<Pid>, policy: Policy) -> bool {
    let policy = match policy {
        Policy::Usual => libc::SCHED_OTHER,
        Policy::Idle => libc::SCHED_IDLE,
    };
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the parameters, which live until it returns, and a thread that is gone is an error.
    unsafe { libc::sched_setscheduler(Pid::as_raw(thread), policy, &raw const parameters) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel tells it, in field 41 of `/proc/PID/stat`: 0 and 5 (`proc(5)`, `sched.h`).
    fn told() -> String {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(41 - 3).unwrap().to_string()
    }

    #[test]
    fn a_thread_has_the_policy_that_it_is_given() {
        let thread = std::thread::spawn(|| {
            let before = (policy(None), told());
            assert!(set(None, Policy::Idle));
            (before, (policy(None), told()))
        });
        let (before, after) = thread.join().unwrap();
        assert_eq!(before, (Some(Policy::Usual), "0".into()));
        assert_eq!(after, (Some(Policy::Idle), "5".into()));
    }

    #[test]
    fn who_is_gone_has_none() {
        let gone = std::thread::spawn(rustix::thread::gettid).join().unwrap();
        // The kernel may take a moment to let go of it.
        while set(Some(gone), Policy::Usual) {
            std::thread::yield_now();
        }
        assert_eq!(policy(Some(gone)), None);
    }
}
