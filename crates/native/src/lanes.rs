//! Lanes: what lets threads change a volume at the same time without sharing a line of memory.
//!
//! Every changing operation runs in a lane, alone. A lane has a place in the log that no other writes to, and a stock
//! of free blocks, so that beginning and committing touch nothing that other threads touch. There are as many
//! operations in flight as lanes at most, which is also how many transactions a power cut can take out of the middle
//! of the log. Who holds all lanes knows that nobody is in the middle of an operation: that is how an epoch ends, and how nodes are sealed.
//!
//! `tests/lock_model` transcribes this file; a change here must be made there too.

use std::cell::Cell;

use parking_lot::{Mutex, MutexGuard};

use crate::allocator::Stock;
use crate::alone::Alone;
use crate::geometry::LANES;
use crate::per_thread;

/// What an operation has to itself.
pub(crate) struct Lane {
    /// Which lane it is: in the header of each of its transactions.
    pub(crate) number: u8,
    /// Where its transactions go.
    pub(crate) place: LogPlace,
    /// Those it has committed in the running half of the log, as far as 16 bits tell.
    pub(crate) turn: u16,
    /// Blocks that its operations may take without asking.
    pub(crate) stock: Stock,
}

/// Where a lane's records go: part of the running half. Byte addresses.
#[derive(Default)]
pub(crate) struct LogPlace {
    pub(crate) start: u64,
    pub(crate) at: u64,
    pub(crate) end: u64,
    /// The checksum of the half's salt, with which those of records begin.
    pub(crate) salt_crc: u32,
    /// Some record since `start` changes bytes in place.
    pub(crate) in_place: bool,
}

pub(crate) struct Lanes(Box<[Alone<Mutex<Lane>>]>);

thread_local! {
    /// The lane this thread used last.
    static MINE: Cell<usize> = Cell::new(per_thread::number());
}

/// Gives the calling thread a number, from which follows which parts of a volume's log and numbers it uses. Threads
/// have one in the order in which they come; who wants to repeat a run to the byte chooses.
pub fn number_this_thread(number: usize) {
    per_thread::set_number(number);
    MINE.set(per_thread::number());
}

impl Lanes {
    pub(crate) fn new() -> Lanes {
        let lane = |number| Lane { number, place: LogPlace::default(), turn: 0, stock: Stock::default() };
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
