//! Locks on inodes: a fixed number of them, shared by number, so that their DRAM is bounded.
//!
//! Order: a thread that holds several takes them by ascending stripe, each stripe once.
//!
//! Each stripe also counts its exclusive holders' comings and goings. A reader that finds the count even and the same
//! before and after has read what no one changed meanwhile, without storing anything itself: reads of
//! one file by many threads don't pass a cache line around, and none waits for another's.
//!
//! And each has a second lock, for those whose change is made and not durable yet: they hold it shared, having let go of
//! the first ([`Exclusive::give_way`]). Who takes a stripe waits until they are through, but for those that don't
//! depend on them ([`Locks::write_in_crowd`]). Whoever waits so has the first lock, so none come anew meanwhile; and who is
//! waited for needs no lock of any inode any more.
//!
//! `tests/lock_model` transcribes this file; a change here must be made there too.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::fault::{Fault, planted};

/// As many locks as a volume has at most; a small one has fewer, so that opening it costs little.
const STRIPES_MAX: usize = 1024;
const STRIPES_MIN: usize = 64;

#[repr(align(64))]
#[derive(Default)]
struct Stripe {
    lock: RwLock<()>,
    /// Held, shared, by those whose change others can see who have the lock, and which is not durable yet.
    settling: RwLock<()>,
    /// Odd while the lock is held exclusively.
    changes: AtomicU64,
}

impl Stripe {
    fn read(&self) -> RwLockReadGuard<'_, ()> {
        let guard = patiently(|| self.lock.try_read()).unwrap_or_else(|| self.lock.read());
        self.settle();
        guard
    }

    /// Locks it exclusively.
    fn write(&self) -> Exclusive<'_> {
        patiently(|| self.try_lock()).unwrap_or_else(|| self.change(self.lock.write()))
    }

    #[inline]
    fn try_lock(&self) -> Option<Exclusive<'_>> {
        if self.lock.is_locked() {
            return None;
        }
        Some(self.change(self.lock.try_write()?))
    }

    #[inline]
    fn change<'a>(&'a self, guard: RwLockWriteGuard<'a, ()>) -> Exclusive<'a> {
        self.changes.store(self.changes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // What the holder stores comes after the count is odd.
        fence(Ordering::Release);
        Exclusive { stripe: self, _guard: guard }
    }

    /// Waits until all that was changed here is durable. The caller has the lock: nothing new comes.
    #[inline]
    fn settle(&self) {
        if self.settling.is_locked() && !planted(Fault::NotSettled) {
            let is_settled = || (!self.settling.is_locked()).then_some(());
            patiently(is_settled).unwrap_or_else(|| drop(self.settling.write()));
        }
        fence(Ordering::Acquire);
    }
}

/// Looks at a lock while its thread keeps the processor, and then while others may have it, before it sleeps.
const SPINS: usize = 32;
const YIELDS: usize = 200;

/// Tries to have a lock for as long as who has it needs who works on, or has just lost the processor.
///
/// **Nobody sleeps for what is held for a microsecond.** With more threads than processors, one that loses its processor with a lock of a directory that many
/// use has all others come up behind it. If they slept, each would have to be woken for its turn, which takes longer than what it does then, and others come
/// meanwhile: the queue stays, and all go at the pace of switches from thread to thread.
#[inline]
fn patiently<T>(attempt: impl Fn() -> Option<T>) -> Option<T> {
    attempt().or_else(|| keep_trying(attempt))
}

#[cold]
fn keep_trying<T>(attempt: impl Fn() -> Option<T>) -> Option<T> {
    for n in 0..SPINS + YIELDS {
        if n < SPINS {
            // Not too often: each look takes the line from who is about to give the lock back.
            (0..4).for_each(|_| std::hint::spin_loop());
        } else {
            std::thread::yield_now();
        }
        if let Some(had) = attempt() {
            return Some(had);
        }
    }
    None
}

pub(crate) struct Locks {
    stripes: Box<[Stripe]>,
    /// It is crowded everywhere.
    crowded: bool,
}

/// An exclusive lock on one stripe.
pub(crate) struct Exclusive<'a> {
    stripe: &'a Stripe,
    _guard: RwLockWriteGuard<'a, ()>,
}

impl<'a> Exclusive<'a> {
    /// Waits until all that others changed is durable: for who took the lock beside them and depends on it after all.
    #[inline]
    pub(crate) fn settle(&self) {
        self.stripe.settle();
    }

    /// Lets others have the lock, who don't depend on what was changed. Those who do wait until what this returns is
    /// dropped, when it is durable.
    #[inline]
    pub(crate) fn give_way(self) -> Settling<'a> {
        // Nobody waits for it to be given back who has not the lock.
        Settling { _guard: self.stripe.settling.read() }
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        let changes = self.stripe.changes.load(Ordering::Relaxed);
        self.stripe.changes.store(changes + 1, Ordering::Release);
    }
}

/// What was changed is not durable yet.
pub(crate) struct Settling<'a> {
    _guard: RwLockReadGuard<'a, ()>,
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
    /// Locks for a volume of so many blocks. If `crowded`, they are as if others always wanted them.
    pub(crate) fn new(blocks: u64, crowded: bool) -> Locks {
        let stripes = (blocks / 64).clamp(STRIPES_MIN as u64, STRIPES_MAX as u64).next_power_of_two();
        Locks { stripes: (0..stripes).map(|_| Stripe::default()).collect(), crowded }
    }

    /// Bytes of DRAM of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(&*self.stripes) as u64
    }

    #[inline]
    fn stripe(&self, ino: u32) -> usize {
        ino as usize & (self.stripes.len() - 1)
    }

    pub(crate) fn read(&self, ino: u32) -> RwLockReadGuard<'_, ()> {
        self.stripes[self.stripe(ino)].read()
    }

    /// Shared locks on two inodes.
    pub(crate) fn read_two(&self, one: u32, other: u32) -> [Option<RwLockReadGuard<'_, ()>>; 2] {
        let (low, high) = (self.stripe(one.min(other)), self.stripe(one.max(other)));
        let (low, high) = (low.min(high), low.max(high));
        let first = self.stripes[low].read();
        [Some(first), (high != low).then(|| self.stripes[high].read())]
    }

    /// Waits until everybody who holds a lock now has let go of it. What nothing points to any more is then seen by
    /// nobody, but for readers without a lock, who notice.
    pub(crate) fn wait_for_all(&self) {
        // What was stored before is seen by whoever takes a lock after it was found free.
        fence(Ordering::SeqCst);
        for stripe in &self.stripes {
            let is_locked = stripe.lock.is_locked();
            // Whoever gave way in between is found settling.
            fence(Ordering::Acquire);
            if is_locked || stripe.settling.is_locked() {
                let held = stripe.lock.write();
                stripe.settle();
                drop(held);
            }
        }
    }

    /// Begins reading without a lock; `None` while somebody changes the inode, or what was changed is not durable.
    #[inline]
    pub(crate) fn glimpse(&self, ino: u32) -> Option<Glimpse<'_>> {
        let Stripe { settling, changes, .. } = &self.stripes[self.stripe(ino)];
        let seen = changes.load(Ordering::Acquire);
        // Who gave way held this before the count was even, and whoever does so later changes the count.
        let is_settled = !settling.is_locked();
        fence(Ordering::Acquire);
        (seen.is_multiple_of(2) && is_settled).then_some(Glimpse { changes, seen })
    }

    pub(crate) fn write(&self, ino: u32) -> Exclusive<'_> {
        self.write_stripe(self.stripe(ino))
    }

    fn write_stripe(&self, stripe: usize) -> Exclusive<'_> {
        let guard = self.stripes[stripe].write();
        guard.settle();
        guard
    }

    /// Locks `ino` beside those whose changes are not durable yet: for a change that does not depend on theirs, whatever
    /// they are. Who then looks at more than that must [`Exclusive::settle`]. And whether it is crowded there: somebody had the
    /// lock, or has a change that is not durable yet.
    #[inline]
    pub(crate) fn write_in_crowd(&self, ino: u32) -> (Exclusive<'_>, bool) {
        let stripe = &self.stripes[self.stripe(ino)];
        match stripe.try_lock() {
            Some(lock) => {
                let is_crowded = stripe.settling.is_locked() || self.crowded;
                fence(Ordering::Acquire);
                (lock, is_crowded)
            }
            None => (stripe.write(), true),
        }
    }

    /// Locks `ino` too, if that can be had at once, by a thread that holds `held`: whatever the order, nobody waits.
    /// `Some(None)`: it is among `held`.
    pub(crate) fn try_write(&self, ino: u32, held: &[u32]) -> Option<Option<Exclusive<'_>>> {
        let stripe = self.stripe(ino);
        if held.iter().any(|held| self.stripe(*held) == stripe) {
            return Some(None);
        }
        let guard = self.stripes[stripe].try_lock()?;
        guard.settle();
        Some(Some(guard))
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
            let _low = self.stripes[low].read();
            let _high = (high != low).then(|| self.stripes[high].read());
            let found = second()?;
            let stripe = self.stripe(found);
            if stripe == low || stripe == high {
                return then(found);
            }
            if stripe > high {
                let _found = self.stripes[stripe].read();
                return then(found);
            }
            guess = found;
        }
    }
}
