//! Of `locks.rs`: the stripes of inodes, and the mistakes that can be planted.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;

use shuttle::sync::atomic::AtomicU64;
use shuttle::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Inodes 1 and 5 share one, 2 and 6, 3 and 7.
const STRIPES: u32 = 4;
pub(crate) const INODES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Unsorted,      // `write_all` takes stripes in the order of its arguments
    VictimWaits,   // `with_victim` waits for the victim's lock, whatever the order
    SecondWaits,   // `read_both` takes the second lock in the wrong order instead of trying again
    SecondStale,   // `read_both` trusts its guess and doesn't look again
    CountedLate,   // the count is raised only when the holder goes
    OddGlimpse,    // a glimpse begins although the count is odd
    OpenSeenEarly, // `unlink` looks whether the inode is open before it locks it
    OpenUnlocked,  // `open` neither locks the inode nor looks whether somebody changed it
    OpenLate,      // `open` looks whether somebody changed the inode before it counts its handle
    ReclaimBlind,  // `reclaim` doesn't look again whether the inode is open
    LaneMissed,    // the end of an epoch leaves out a lane
    LaneInside,    // some operation locks its inode before it has a lane
    FailedLate,    // an operation that failed says so only when it has left its lane
    FailureEarly,  // the end of an epoch looks for a failure before it has all lanes
    AppliedEarly,  // an operation gives its inode's lock back before its record is durable
    NotSettled,    // who depends on what others changed does not wait until it is durable
    SettledLate,   // who gives way holds what others wait for only when the lock is given back
    GlimpseEarly,  // a glimpse begins although what was changed is not durable
    CrowdNotSeen,  // who comes to a lock beside others takes what he finds there for durable
    SealedBeside,  // a node is marked as sealed while operations run
    SealKept,      // who changes a node that is sealed does not forget the seal
    SealUnchecked, // a seal is kept without a look whether somebody has changed the node meanwhile
}

/// The lock, its count of changes, and the lock of those whose change is not durable.
type Stripe = (RwLock<()>, AtomicU64, RwLock<()>);

pub(crate) struct Locks {
    stripes: Vec<Stripe>,
    pub(crate) fault: Fault,
    queued: bool,
}

pub(crate) type Shared<'a> = (Option<RwLockReadGuard<'a, ()>>, Option<RwLockWriteGuard<'a, ()>>);

pub(crate) struct Exclusive<'a> {
    changes: &'a AtomicU64,
    settling: &'a RwLock<()>,
    fault: Fault,
    step: u64,
    _guard: RwLockWriteGuard<'a, ()>,
}

impl<'a> Exclusive<'a> {
    fn settle(&self) {
        if self.fault != Fault::NotSettled {
            drop(self.settling.write().unwrap_or_else(PoisonError::into_inner));
        }
    }

    pub(crate) fn give_way(self) -> RwLockReadGuard<'a, ()> {
        let (settling, fault) = (self.settling, self.fault);
        let settle = || settling.read().unwrap_or_else(PoisonError::into_inner);
        let early = (fault != Fault::SettledLate).then(settle);
        drop(self);
        early.unwrap_or_else(settle)
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.changes.store(self.changes.load(SeqCst) + self.step, SeqCst);
    }
}

impl Locks {
    pub(crate) fn new(fault: Fault, queued: bool) -> Locks {
        Locks { stripes: (0..STRIPES).map(|_| Stripe::default()).collect(), fault, queued }
    }

    fn stripe(&self, ino: u32) -> &Stripe {
        &self.stripes[(ino % STRIPES) as usize]
    }

    pub(crate) fn read(&self, ino: u32) -> Shared<'_> {
        let (lock, _, settling) = self.stripe(ino);
        let alone = self.queued.then(|| lock.write().unwrap_or_else(PoisonError::into_inner));
        let shared = (!self.queued).then(|| lock.read().unwrap_or_else(PoisonError::into_inner));
        if self.fault != Fault::NotSettled {
            drop(settling.write().unwrap_or_else(PoisonError::into_inner));
        }
        (shared, alone)
    }

    pub(crate) fn read_two(&self, one: u32, other: u32) -> [Option<Shared<'_>>; 2] {
        let (low, high) = if one % STRIPES < other % STRIPES { (one, other) } else { (other, one) };
        let first = self.read(low);
        [Some(first), (low % STRIPES != high % STRIPES).then(|| self.read(high))]
    }

    pub(crate) fn changes(&self, ino: u32) -> u64 {
        self.stripe(ino).1.load(SeqCst)
    }

    pub(crate) fn glimpse(&self, ino: u32) -> Option<u64> {
        let seen = self.changes(ino);
        let settled = self.fault == Fault::GlimpseEarly || self.stripe(ino).2.try_write().is_ok();
        Some(seen).filter(|seen| seen.is_multiple_of(2) && settled || self.fault == Fault::OddGlimpse)
    }

    fn hold<'a>(&self, stripe: &'a Stripe, guard: RwLockWriteGuard<'a, ()>) -> Exclusive<'a> {
        let (_, changes, settling) = stripe;
        let early = u64::from(self.fault != Fault::CountedLate);
        changes.store(changes.load(SeqCst) + early, SeqCst);
        Exclusive { changes, settling, fault: self.fault, step: 2 - early, _guard: guard }
    }

    pub(crate) fn write(&self, ino: u32) -> Exclusive<'_> {
        let (lock, _is_crowded) = self.write_in_crowd(ino);
        lock.settle();
        lock
    }

    pub(crate) fn write_in_crowd(&self, ino: u32) -> (Exclusive<'_>, bool) {
        let stripe = self.stripe(ino);
        let (lock, is_crowded) = match stripe.0.try_write() {
            Ok(guard) => (self.hold(stripe, guard), stripe.2.try_write().is_err()),
            Err(_) => (self.hold(stripe, stripe.0.write().unwrap_or_else(PoisonError::into_inner)), true),
        };
        (lock, is_crowded && self.fault != Fault::CrowdNotSeen)
    }

    pub(crate) fn try_write(&self, ino: u32, held: &[u32]) -> Option<Option<Exclusive<'_>>> {
        if held.iter().any(|held| held % STRIPES == ino % STRIPES) {
            return Some(None);
        }
        let stripe = self.stripe(ino);
        let waits = (self.fault == Fault::VictimWaits).then(|| self.write(ino));
        let held = waits.or_else(|| Some(self.hold(stripe, stripe.0.try_write().ok()?)))?;
        held.settle();
        Some(Some(held))
    }

    pub(crate) fn write_all(&self, inos: &[u32]) -> Vec<Exclusive<'_>> {
        let mut stripes: Vec<_> = inos.iter().map(|ino| ino % STRIPES).collect();
        if self.fault != Fault::Unsorted {
            stripes.sort_unstable();
        }
        let first = |(at, stripe)| (!stripes[..at].contains(stripe)).then(|| self.write(*stripe));
        stripes.iter().enumerate().filter_map(first).collect()
    }

    pub(crate) fn read_both(
        &self,
        first: u32,
        second: impl Fn() -> Option<u32>,
        then: impl FnOnce(u32),
    ) -> Option<()> {
        let mut guess = first;
        loop {
            let _both = self.read_two(first, guess);
            let is_stale = self.fault == Fault::SecondStale && guess != first;
            let found = if is_stale { guess } else { second()? };
            let held = [first, guess].iter().any(|ino| ino % STRIPES == found % STRIPES);
            let above = [first, guess].iter().all(|ino| ino % STRIPES < found % STRIPES);
            let above = above || self.fault == Fault::SecondWaits;
            let _found = (above && !held).then(|| self.read(found));
            if held || above {
                then(found);
                return Some(());
            }
            guess = found;
        }
    }

    pub(crate) fn with_victim(
        &self,
        dir: u32,
        find: impl Fn() -> Option<u32>,
    ) -> Option<(u32, Vec<Exclusive<'_>>)> {
        let lock = self.write(dir);
        let mut guess = find()?;
        if let Some(victim_lock) = self.try_write(guess, &[dir]) {
            return Some((guess, victim_lock.into_iter().chain([lock]).collect()));
        }
        drop(lock);
        loop {
            let locks = self.write_all(&[dir, guess]);
            match find()? {
                victim if victim == guess => return Some((victim, locks)),
                victim => guess = victim,
            }
        }
    }
}
