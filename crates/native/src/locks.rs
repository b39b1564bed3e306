//! Locks on inodes: a fixed number of them, shared by number, so that their DRAM is bounded.
//!
//! Order: a thread that holds several takes them by ascending stripe, each stripe once.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

const STRIPES: usize = 1024;

#[repr(align(64))]
struct Stripe(RwLock<()>);

pub(crate) struct Locks {
    stripes: Box<[Stripe]>,
}

/// Exclusive locks on up to four inodes.
pub(crate) struct Exclusive<'a> {
    _guards: [Option<RwLockWriteGuard<'a, ()>>; 4],
}

impl Locks {
    pub(crate) fn new() -> Locks {
        Locks { stripes: (0..STRIPES).map(|_| Stripe(RwLock::new(()))).collect() }
    }

    fn stripe(ino: u32) -> usize {
        ino as usize % STRIPES
    }

    pub(crate) fn read(&self, ino: u32) -> RwLockReadGuard<'_, ()> {
        self.stripes[Locks::stripe(ino)].0.read()
    }

    pub(crate) fn write(&self, ino: u32) -> RwLockWriteGuard<'_, ()> {
        self.stripes[Locks::stripe(ino)].0.write()
    }

    /// Locks all of `inos` (0: none), at most four.
    pub(crate) fn write_all(&self, inos: &[u32]) -> Exclusive<'_> {
        let mut stripes = [usize::MAX; 4];
        for (slot, ino) in stripes.iter_mut().zip(inos.iter().filter(|ino| **ino != 0)) {
            *slot = Locks::stripe(*ino);
        }
        stripes.sort_unstable();
        let mut guards = [const { None }; 4];
        for (index, stripe) in stripes.iter().enumerate() {
            if *stripe != usize::MAX && (index == 0 || stripes[index - 1] != *stripe) {
                guards[index] = Some(self.stripes[*stripe].0.write());
            }
        }
        Exclusive { _guards: guards }
    }

    /// Shared locks on `first` and, while that is held, on the inode that `second` finds under it. Retries
    /// in the right order if they would be taken in the wrong one.
    pub(crate) fn read_both<T>(
        &self,
        first: u32,
        second: impl Fn() -> vfs::Result<u32>,
        then: impl FnOnce(u32) -> vfs::Result<T>,
    ) -> vfs::Result<T> {
        let mut guess = first;
        loop {
            let (low, high) = (
                Locks::stripe(first).min(Locks::stripe(guess)),
                Locks::stripe(first).max(Locks::stripe(guess)),
            );
            let _low = self.stripes[low].0.read();
            let _high = (high != low).then(|| self.stripes[high].0.read());
            let found = second()?;
            if found == guess || Locks::stripe(found) == low || Locks::stripe(found) == high {
                return then(found);
            }
            if Locks::stripe(found) > high {
                let _found = self.stripes[Locks::stripe(found)].0.read();
                return then(found);
            }
            guess = found;
        }
    }
}
