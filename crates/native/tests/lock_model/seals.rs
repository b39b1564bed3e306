//! Of `core/seal.rs`, `nat.rs` and `nat/dirty.rs`: a block of two inodes is sealed while operations change them, each its own.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;

use shuttle::sync::atomic::{AtomicBool, AtomicU64};
use shuttle::sync::{Mutex, MutexGuard};
use shuttle::thread;

use crate::locks::Fault;

struct Seals {
    fault: Fault,
    lanes: [Mutex<()>; 2],
    publisher: Mutex<()>,
    /// The block's lock.
    block: Mutex<()>,
    /// The version in the NAT's entry is no epoch's.
    is_marked: AtomicBool,
    slots: [AtomicU64; 2],
    /// What the seal says of the slots; in the list of changes.
    seal: Mutex<Option<[u64; 2]>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seals {
    /// Whoever changes an inode has its lock: these are two.
    fn operate(&self, slot: usize) {
        let _lane = lock(&self.lanes[slot]);
        if self.is_marked.load(SeqCst) {
            let _block = lock(&self.block);
            if self.is_marked.load(SeqCst) {
                let mut seal = lock(&self.seal);
                if self.fault != Fault::SealKept {
                    *seal = None;
                }
                self.is_marked.store(false, SeqCst);
            }
        }
        for _ in 0..2 {
            let word = self.slots[slot].load(SeqCst);
            self.slots[slot].store(word + 1, SeqCst);
        }
    }

    fn seal(&self) {
        let _publisher = lock(&self.publisher);
        {
            let _nobody = (self.fault != Fault::SealedBeside).then(|| self.lanes.each_ref().map(lock));
            self.is_marked.store(true, SeqCst);
        }
        let seen = self.slots.each_ref().map(|slot| slot.load(SeqCst));
        let mut seal = lock(&self.seal);
        if self.is_marked.load(SeqCst) || self.fault == Fault::SealUnchecked {
            *seal = Some(seen);
        }
    }

    /// The end of an epoch.
    fn end(&self) {
        let _publisher = lock(&self.publisher);
        let seal = {
            let _nobody = self.lanes.each_ref().map(lock);
            // The next epoch has a copy of its own, and changes that.
            self.is_marked.store(false, SeqCst);
            lock(&self.seal).take().map(|seal| (seal, self.slots.each_ref().map(|slot| slot.load(SeqCst))))
        };
        if let Some((seal, slots)) = seal {
            assert_eq!(seal, slots, "seals: a checkpoint has a checksum that is not the node's");
        }
    }
}

pub(crate) fn seals(fault: Fault) {
    let seals = Seals {
        fault,
        lanes: Default::default(),
        publisher: Mutex::default(),
        block: Mutex::default(),
        is_marked: AtomicBool::new(false),
        slots: Default::default(),
        seal: Mutex::new(None),
    };
    thread::scope(|scope| {
        scope.spawn(|| [(); 2].map(|()| seals.operate(0)));
        scope.spawn(|| [(); 2].map(|()| seals.operate(1)));
        scope.spawn(|| [(); 2].map(|()| seals.seal()));
        scope.spawn(|| [(); 2].map(|()| seals.end()));
    });
    seals.end();
}
