//! Lanes: what lets threads change a volume at the same time without sharing a line of memory.
//!
//! Every changing operation runs in a lane, alone. A lane has a place in the log that no other writes to, and a stock
//! of free blocks, so that beginning and committing touch nothing that other threads touch. There are as many
//! operations in flight as lanes at most, which is also how many transactions a power cut can take out of the middle
//! of the log. Who holds all lanes knows that nobody is in the middle of an operation: that is how an epoch ends, and how nodes are sealed.
//!
//! `tests/lock_model` transcribes this file; a change here must be made there too.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};

use crate::allocator::Stock;
use crate::alone::Alone;
use crate::geometry::LANES;

/// What an operation has to itself.
pub(crate) struct Lane {
    /// Which lane it is: in the header of each of its transactions.
    pub(crate) number: u8,
    /// Where its transactions go.
    pub(crate) place: Place,
    /// Those it has committed in the running half of the log, as far as 16 bits tell.
    pub(crate) turn: u16,
    /// Blocks that its operations may take without asking.
    pub(crate) stock: Stock,
}

/// Where a lane's records go: part of the running half. Byte addresses.
#[derive(Default)]
pub(crate) struct Place {
    pub(crate) start: u64,
    pub(crate) at: u64,
    pub(crate) end: u64,
    /// The checksum of the half's salt, with which those of records begin.
    pub(crate) salt_crc: u32,
    /// Some record since `start` changes bytes in place.
    pub(crate) in_place: bool,
}

pub(crate) struct Lanes(Box<[Alone<Mutex<Lane>>]>);

/// Spreads threads over the lanes.
static THREADS: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static NUMBER: Cell<usize> = Cell::new(THREADS.fetch_add(1, Relaxed) % LANES);
    /// The lane this thread used last.
    static MINE: Cell<usize> = Cell::new(NUMBER.get());
}

/// The calling thread's number, below [`LANES`].
fn thread_number() -> usize {
    NUMBER.get()
}

/// Gives the calling thread a number, from which follows which parts of a volume's log and numbers it uses. Threads
/// have one in the order in which they come; who wants to repeat a run to the byte chooses.
pub fn number_this_thread(number: usize) {
    NUMBER.set(number % LANES);
    MINE.set(number % LANES);
}

/// One for each number that threads have: who stores to the calling thread's takes its line from nobody, as long as there are
/// no more threads than numbers.
pub(crate) struct PerThread<T>(Box<[Alone<T>]>);

impl<T> PerThread<T> {
    /// `make` is told the thread's number.
    pub(crate) fn new(make: impl FnMut(usize) -> T) -> PerThread<T> {
        PerThread((0..LANES).map(make).map(Alone::new).collect())
    }

    /// The calling thread's.
    pub(crate) fn mine(&self) -> &T {
        &self.0[thread_number()]
    }

    /// Everybody's.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|one| &**one)
    }
}

impl Lanes {
    pub(crate) fn new() -> Lanes {
        let lane = |number| Lane { number, place: Place::default(), turn: 0, stock: Stock::default() };
        Lanes((0..LANES as u8).map(|number| Alone::new(Mutex::new(lane(number)))).collect())
    }

    /// A lane: the thread's own, another one if that is busy; waits if all are. No inode lock is held.
    pub(crate) fn enter(&self) -> MutexGuard<'_, Lane> {
        let mine = MINE.get();
        if let Some(lane) = self.0[mine].try_lock() {
            return lane;
        }
        for step in 1..LANES {
            let other = (mine + step) % LANES;
            if let Some(lane) = self.0[other].try_lock() {
                MINE.set(other);
                return lane;
            }
        }
        self.0[mine].lock()
    }

    /// All lanes, in order: nobody is in the middle of an operation. No lane and no inode lock is held.
    pub(crate) fn all(&self) -> Vec<MutexGuard<'_, Lane>> {
        self.0.iter().map(|lane| lane.lock()).collect()
    }

    /// Visits each lane when its operation has ended. No lane and no inode lock is held.
    pub(crate) fn each(&self, mut visit: impl FnMut(&mut Lane)) {
        self.0.iter().for_each(|lane| visit(&mut lane.lock()));
    }
}
