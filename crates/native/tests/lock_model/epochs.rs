//! Of `lanes.rs` and `core.rs`: operations in their lanes, and the end of an epoch.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;

use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use shuttle::sync::{Mutex, MutexGuard};
use shuttle::thread;

use crate::locks::*;

/// Lanes, and what they keep apart: epochs, failures, and what is durable.
struct Epochs {
    locks: Locks,
    lanes: [Mutex<()>; 2],
    epoch: AtomicU32,
    failed: AtomicBool,
    /// Some operation was applied by halves.
    halved: AtomicBool,
    next: AtomicU64,
    /// The number of the newest transaction that inode 1 shows, and how far the log is durable, by number.
    seen: AtomicU64,
    durable: [AtomicBool; 8],
}

impl Epochs {
    fn enter(&self, mine: usize) -> MutexGuard<'_, ()> {
        if let Ok(lane) = self.lanes[mine].try_lock() {
            return lane;
        }
        if let Ok(lane) = self.lanes[1 - mine].try_lock() {
            return lane;
        }
        self.lanes[mine].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn operate(&self, mine: usize, fails: bool) {
        let early = (self.locks.fault == Fault::LaneInside && mine == 1).then(|| self.locks.write(1));
        let lane = self.enter(mine);
        if self.failed.load(SeqCst) {
            return;
        }
        let epoch = self.epoch.load(SeqCst);
        let mut lock = early.or_else(|| Some(self.locks.write(1)));
        let before = self.seen.load(SeqCst);
        let number = self.next.fetch_add(1, SeqCst);
        assert!(before < number, "lanes: who depends on a transaction has a smaller number");
        self.seen.store(number, SeqCst);
        if self.locks.fault == Fault::AppliedEarly {
            lock = None;
        }
        let based_on_durable = before == 0 || self.durable[before as usize].load(SeqCst);
        assert!(based_on_durable, "lanes: a transaction depends on one that is not durable");
        self.durable[number as usize].store(true, SeqCst);
        self.halved.fetch_or(fails, SeqCst);
        let say = || self.failed.fetch_or(fails, SeqCst);
        if self.locks.fault != Fault::FailedLate {
            say();
        }
        assert_eq!(self.epoch.load(SeqCst), epoch, "lanes: an epoch ended in the middle of an operation");
        drop((lock, lane));
        say();
    }

    fn end(&self) {
        let early = self.failed.load(SeqCst);
        let count = if self.locks.fault == Fault::LaneMissed { 1 } else { 2 };
        let _nobody: Vec<_> = self.lanes[..count]
            .iter()
            .map(|lane| lane.lock().unwrap_or_else(PoisonError::into_inner))
            .collect();
        let failed = if self.locks.fault == Fault::FailureEarly { early } else { self.failed.load(SeqCst) };
        if !failed {
            assert!(!self.halved.load(SeqCst), "lanes: half an operation is published");
            self.epoch.fetch_add(1, SeqCst);
        }
    }
}

pub(crate) fn epochs(fault: Fault) {
    let epochs = Epochs {
        locks: Locks::new(fault, false),
        lanes: Default::default(),
        epoch: AtomicU32::new(1),
        failed: AtomicBool::new(false),
        halved: AtomicBool::new(false),
        next: AtomicU64::new(1),
        seen: AtomicU64::new(0),
        durable: Default::default(),
    };
    thread::scope(|scope| {
        scope.spawn(|| epochs.operate(0, false));
        scope.spawn(|| epochs.operate(1, false));
        scope.spawn(|| epochs.operate(1, true));
        scope.spawn(|| epochs.operate(0, false));
        scope.spawn(|| [(); 2].map(|()| epochs.end()));
    });
}
