//! Locks on inodes: a fixed number of them, shared by number, so that their DRAM is bounded.
//!
//! Order: a thread that holds several takes them by ascending stripe, each stripe once.
//!
//! Each stripe also counts its exclusive holders' comings and goings. A reader that finds the count even and the same
//! before and after has read what no one changed meanwhile, without storing anything itself: reads of
//! one file by many threads don't pass a cache line around, and none waits for another's.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// As many locks as a volume has at most; a small one has fewer, so that opening it costs little.
const STRIPES_MAX: usize = 1024;
const STRIPES_MIN: usize = 64;

#[repr(align(64))]
#[derive(Default)]
struct Stripe {
    lock: RwLock<()>,
    /// Odd while the lock is held exclusively.
    changes: AtomicU64,
}

pub(crate) struct Locks {
    stripes: Box<[Stripe]>,
}

/// An exclusive lock on one stripe.
pub(crate) struct Exclusive<'a> {
    changes: &'a AtomicU64,
    _guard: RwLockWriteGuard<'a, ()>,
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes + 1, Ordering::Release);
    }
}

/// What a reader without a lock has to check in the end.
#[derive(Clone, Copy)]
pub(crate) struct Glimpse<'a> {
    changes: &'a AtomicU64,
    seen: u64,
}

impl Glimpse<'_> {
    /// Whether nothing changed since.
    #[inline]
    pub(crate) fn holds(self) -> bool {
        fence(Ordering::Acquire);
        self.changes.load(Ordering::Relaxed) == self.seen
    }
}

impl Locks {
    /// Locks for a volume of so many blocks.
    pub(crate) fn new(blocks: u64) -> Locks {
        let stripes = (blocks / 8).clamp(STRIPES_MIN as u64, STRIPES_MAX as u64).next_power_of_two();
        Locks { stripes: (0..stripes).map(|_| Stripe::default()).collect() }
    }

    #[inline]
    fn stripe(&self, ino: u32) -> usize {
        ino as usize & (self.stripes.len() - 1)
    }

    pub(crate) fn read(&self, ino: u32) -> RwLockReadGuard<'_, ()> {
        self.stripes[self.stripe(ino)].lock.read()
    }

    /// Shared locks on two inodes.
    pub(crate) fn read_two(&self, one: u32, other: u32) -> [Option<RwLockReadGuard<'_, ()>>; 2] {
        let (low, high) = (self.stripe(one.min(other)), self.stripe(one.max(other)));
        let (low, high) = (low.min(high), low.max(high));
        let first = self.stripes[low].lock.read();
        [Some(first), (high != low).then(|| self.stripes[high].lock.read())]
    }

    /// Waits until everybody who holds a lock now has let go of it. What nothing points to any more is then seen by
    /// nobody, but for readers without a lock, who notice.
    pub(crate) fn wait_for_all(&self) {
        // What was stored before is seen by whoever takes a lock after it was found free.
        fence(Ordering::SeqCst);
        for Stripe { lock, .. } in &self.stripes {
            if lock.is_locked() {
                drop(lock.write());
            }
        }
    }

    /// Begins reading without a lock; `None` while somebody changes the inode.
    #[inline]
    pub(crate) fn glimpse(&self, ino: u32) -> Option<Glimpse<'_>> {
        let changes = &self.stripes[self.stripe(ino)].changes;
        let seen = changes.load(Ordering::Acquire);
        seen.is_multiple_of(2).then_some(Glimpse { changes, seen })
    }

    pub(crate) fn write(&self, ino: u32) -> Exclusive<'_> {
        self.write_stripe(self.stripe(ino))
    }

    fn write_stripe(&self, stripe: usize) -> Exclusive<'_> {
        let Stripe { lock, changes } = &self.stripes[stripe];
        let guard = lock.write();
        changes.store(changes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // What the holder stores comes after the count is odd.
        fence(Ordering::Release);
        Exclusive { changes, _guard: guard }
    }

    /// Locks `ino` too, if that can be had at once, by a thread that holds `held`: whatever the order, nobody waits.
    /// `Some(None)`: it is among `held`.
    pub(crate) fn try_write(&self, ino: u32, held: &[u32]) -> Option<Option<Exclusive<'_>>> {
        let stripe = self.stripe(ino);
        if held.iter().any(|held| self.stripe(*held) == stripe) {
            return Some(None);
        }
        let Stripe { lock, changes } = &self.stripes[stripe];
        let guard = lock.try_write()?;
        changes.store(changes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        Some(Some(Exclusive { changes, _guard: guard }))
    }

    /// Locks all of `inos` (0: none), at most four.
    pub(crate) fn write_all(&self, inos: &[u32]) -> [Option<Exclusive<'_>>; 4] {
        let mut stripes = [usize::MAX; 4];
        for (slot, ino) in stripes.iter_mut().zip(inos.iter().filter(|ino| **ino != 0)) {
            *slot = self.stripe(*ino);
        }
        stripes.sort_unstable();
        let mut guards = [const { None }; 4];
        for (index, stripe) in stripes.iter().enumerate() {
            if *stripe != usize::MAX && (index == 0 || stripes[index - 1] != *stripe) {
                guards[index] = Some(self.write_stripe(*stripe));
            }
        }
        guards
    }

    /// Runs `then` with shared locks on `first` and on the inode that `second` finds under it. Tries again with a
    /// better guess of the second if they would have to be taken in the wrong order.
    pub(crate) fn read_both<T>(
        &self,
        first: u32,
        second: impl Fn() -> vfs::Result<u32>,
        then: impl FnOnce(u32) -> vfs::Result<T>,
    ) -> vfs::Result<T> {
        let mut guess = first;
        loop {
            let (here, there) = (self.stripe(first), self.stripe(guess));
            let (low, high) = (here.min(there), here.max(there));
            let _low = self.stripes[low].lock.read();
            let _high = (high != low).then(|| self.stripes[high].lock.read());
            let found = second()?;
            let stripe = self.stripe(found);
            if stripe == low || stripe == high {
                return then(found);
            }
            if stripe > high {
                let _found = self.stripes[stripe].lock.read();
                return then(found);
            }
            guess = found;
        }
    }
}
