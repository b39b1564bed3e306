//! Accounting: bytes stored, lines flushed and streamed, fences, per volume and purpose. Always on.
//!
//! A `lock`-prefixed instruction would drain the write-combining buffers of non-temporal stores, so threads
//! don't share counters: each leases a shard that is its own while it lives and adds by plain load and
//! store. Shards are recycled at thread exit; threads beyond the pool share one shard by `fetch_add`.

use std::cell::{Cell, RefCell};
use std::ops::Sub;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::LINE;

/// What a store is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// File contents.
    Data = 0,
    /// Inodes, directories, maps, superblocks.
    Metadata = 1,
    /// Journal and log records.
    Journal = 2,
    /// What says which space is in use.
    Allocation = 3,
    /// What a log had already, written to where it belongs.
    Checkpoint = 4,
}

impl Purpose {
    /// All of them.
    pub const ALL: [Purpose; 5] =
        [Purpose::Data, Purpose::Metadata, Purpose::Journal, Purpose::Allocation, Purpose::Checkpoint];
}

impl std::fmt::Display for Purpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Purpose::Data => "data",
            Purpose::Metadata => "metadata",
            Purpose::Journal => "journal",
            Purpose::Allocation => "allocation",
            Purpose::Checkpoint => "checkpoint",
        })
    }
}

/// What was written for one purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Bytes stored: cached, atomic, zeroed, copied or non-temporal.
    pub bytes: u64,
    /// Lines (64 B) flushed. A line flushed twice counts twice.
    pub lines_flushed: u64,
    /// Lines (64 B) written by non-temporal stores, which need no flush. Their bytes are in `bytes` too.
    pub lines_streamed: u64,
}

impl Written {
    /// Lines sent to the medium: flushed and streamed.
    pub fn lines(&self) -> u64 {
        self.lines_flushed + self.lines_streamed
    }
}

/// What one volume stored, flushed and fenced since its zone was opened. Subtract two to see an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Per purpose, indexed by `Purpose as usize`.
    pub written: [Written; Purpose::ALL.len()],
    /// Fences. A fence waits for whatever was flushed, so it has no purpose of its own.
    pub fences: u64,
}

impl Account {
    /// What was written for one purpose.
    pub fn of(&self, purpose: Purpose) -> Written {
        self.written[purpose as usize]
    }

    /// What was written for all purposes.
    pub fn total(&self) -> Written {
        self.written.iter().fold(Written::default(), |sum, written| Written {
            bytes: sum.bytes + written.bytes,
            lines_flushed: sum.lines_flushed + written.lines_flushed,
            lines_streamed: sum.lines_streamed + written.lines_streamed,
        })
    }

    /// Bytes stored for all purposes.
    pub fn bytes(&self) -> u64 {
        self.total().bytes
    }

    /// Lines flushed or streamed for all purposes.
    pub fn lines(&self) -> u64 {
        self.total().lines()
    }
}

impl Sub for Account {
    type Output = Account;

    /// What happened since `earlier`.
    fn sub(self, earlier: Account) -> Account {
        let mut difference = self;
        for (later, earlier) in difference.written.iter_mut().zip(earlier.written) {
            later.bytes = later.bytes.wrapping_sub(earlier.bytes);
            later.lines_flushed = later.lines_flushed.wrapping_sub(earlier.lines_flushed);
            later.lines_streamed = later.lines_streamed.wrapping_sub(earlier.lines_streamed);
        }
        difference.fences = difference.fences.wrapping_sub(earlier.fences);
        difference
    }
}

/// Shards that threads lease.
const SHARDS: usize = 128;
/// The shard that threads beyond the pool share.
const SHARED: u32 = SHARDS as u32;
const UNASSIGNED: u32 = u32::MAX;

const BYTES: usize = 0;
const FLUSHED: usize = 1;
const STREAMED: usize = 2;
const KINDS: usize = 3;
const FENCES: usize = KINDS * Purpose::ALL.len();

/// Two lines, so that the adjacent-line prefetcher doesn't join two threads' shards.
#[repr(align(128))]
struct Shard([AtomicU64; 16]);

/// The counters of one volume.
pub(crate) struct Ledger {
    /// Those that threads lease, and the one that the others share.
    shards: Box<[Shard; SHARDS + 1]>,
}

impl Ledger {
    pub(crate) fn new() -> Ledger {
        Ledger { shards: Box::new([const { Shard([const { AtomicU64::new(0) }; 16]) }; SHARDS + 1]) }
    }

    /// Adds to some cells of a shard.
    #[inline]
    fn add<const N: usize>(&self, counts: [(usize, u64); N]) {
        let shard = SHARD.get();
        if shard >= SHARED {
            return self.add_shared(&counts);
        }
        let cells = &self.shards[shard as usize].0;
        for (cell, count) in counts {
            cells[cell].store(cells[cell].load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
        }
    }

    /// The same of a thread that shares a shard with others, or has not asked for one yet.
    #[cold]
    fn add_shared(&self, counts: &[(usize, u64)]) {
        let cells = &self.shards[lease() as usize].0;
        for (cell, count) in counts {
            cells[*cell].fetch_add(*count, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn stored(&self, purpose: Purpose, bytes: u64) {
        self.add([(purpose as usize * KINDS + BYTES, bytes)]);
    }

    #[inline]
    pub(crate) fn flushed(&self, purpose: Purpose, lines: u64) {
        self.add([(purpose as usize * KINDS + FLUSHED, lines)]);
    }

    /// So many lines were stored past the caches.
    #[inline]
    pub(crate) fn streamed(&self, purpose: Purpose, lines: u64) {
        let first = purpose as usize * KINDS;
        self.add([(first + BYTES, lines * LINE), (first + STREAMED, lines)]);
    }

    #[inline]
    pub(crate) fn fenced(&self) {
        self.add([(FENCES, 1)]);
    }

    pub(crate) fn account(&self) -> Account {
        let sum = |cell: usize| {
            self.shards
                .iter()
                .fold(0u64, |sum, shard| sum.wrapping_add(shard.0[cell].load(Ordering::Relaxed)))
        };
        let written = Purpose::ALL.map(|purpose| Written {
            bytes: sum(purpose as usize * KINDS + BYTES),
            lines_flushed: sum(purpose as usize * KINDS + FLUSHED),
            lines_streamed: sum(purpose as usize * KINDS + STREAMED),
        });
        Account { written, fences: sum(FENCES) }
    }
}

thread_local! {
    /// This thread's shard. Without a destructor, so that reading it is one load.
    static SHARD: Cell<u32> = const { Cell::new(UNASSIGNED) };
    /// Returns the shard when the thread ends.
    static LEASE: RefCell<Option<Lease>> = const { RefCell::new(None) };
}

/// Shards free to lease. Its mutex also hands a shard's last values from one thread to the next.
static FREE: Mutex<Pool> = Mutex::new(Pool { returned: Vec::new(), unused: 0 });

struct Pool {
    returned: Vec<u32>,
    /// First shard that was never leased.
    unused: u32,
}

struct Lease(u32);

impl Drop for Lease {
    fn drop(&mut self) {
        // Stores that later destructors of this thread may make go to the shared shard.
        SHARD.set(SHARED);
        if let Ok(mut pool) = FREE.lock() {
            pool.returned.push(self.0);
        }
    }
}

/// This thread's shard.
fn lease() -> u32 {
    if SHARD.get() != UNASSIGNED {
        return SHARD.get();
    }
    let leased = FREE.lock().ok().and_then(|mut pool| {
        pool.returned.pop().or_else(|| {
            let unused = pool.unused;
            (unused < SHARED).then(|| {
                pool.unused += 1;
                unused
            })
        })
    });
    let shard = leased.unwrap_or(SHARED);
    SHARD.set(shard);
    if shard != SHARED {
        // Where the thread is already ending, the shard is simply not returned.
        let _ = LEASE.try_with(|lease| *lease.borrow_mut() = Some(Lease(shard)));
    }
    shard
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_shards_lose_no_count() {
        let ledger = Ledger::new();
        let all_in = std::sync::Barrier::new(SHARDS + 40);
        std::thread::scope(|scope| {
            for _ in 0..SHARDS + 40 {
                scope.spawn(|| {
                    ledger.fenced();
                    all_in.wait();
                    for _ in 0..1000 {
                        ledger.stored(Purpose::Journal, 3);
                        ledger.flushed(Purpose::Allocation, 1);
                    }
                });
            }
        });
        let threads = SHARDS as u64 + 40;
        let account = ledger.account();
        assert_eq!(account.of(Purpose::Journal).bytes, threads * 3000);
        assert_eq!(account.of(Purpose::Allocation).lines_flushed, threads * 1000);
        assert_eq!(account.fences, threads);
        assert_eq!(account.bytes(), threads * 3000);
    }

    /// Counts in a destructor that runs after the thread's lease was returned.
    #[test]
    fn a_thread_that_is_ending_does_not_count_in_a_returned_shard() {
        struct Late(std::sync::mpsc::Sender<u32>);
        impl Drop for Late {
            fn drop(&mut self) {
                let _ = self.0.send(lease());
            }
        }
        thread_local! {
            static BEFORE: RefCell<Option<Late>> = const { RefCell::new(None) };
            static AFTER: RefCell<Option<Late>> = const { RefCell::new(None) };
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // In whichever order destructors run, one of the two runs after the lease's.
            BEFORE.with(|late| *late.borrow_mut() = Some(Late(sender.clone())));
            lease();
            AFTER.with(|late| *late.borrow_mut() = Some(Late(sender)));
        })
        .join()
        .unwrap();
        assert!(receiver.iter().any(|shard| shard == SHARED));
    }

    #[test]
    fn shards_are_recycled() {
        let ledger = Ledger::new();
        for _ in 0..3 * SHARDS {
            std::thread::scope(|scope| {
                scope.spawn(|| ledger.streamed(Purpose::Data, 2));
            });
        }
        assert_eq!(ledger.account().of(Purpose::Data).lines_streamed, 6 * SHARDS as u64);
        assert!(FREE.lock().unwrap().unused <= SHARED);
    }

    #[test]
    fn a_difference_is_one_operation() {
        let ledger = Ledger::new();
        ledger.stored(Purpose::Data, 10);
        let before = ledger.account();
        ledger.stored(Purpose::Data, 5);
        ledger.fenced();
        let operation = ledger.account() - before;
        assert_eq!((operation.bytes(), operation.lines(), operation.fences), (5, 0, 1));
    }
}
