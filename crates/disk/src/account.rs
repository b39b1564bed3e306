//! What was read from a disk and written to it, data and metadata apart. Always on.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// File contents.
    Data = 0,
    /// All else.
    Metadata = 1,
}

impl Purpose {
    /// Both.
    pub const ALL: [Purpose; 2] = [Purpose::Data, Purpose::Metadata];
}

impl std::fmt::Display for Purpose {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Purpose::Data => "data",
            Purpose::Metadata => "metadata",
        })
    }
}

/// Requests and bytes of one purpose. A vectored request counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transferred {
    /// Read requests.
    pub reads: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
}

/// What went over a disk's wire since it was opened. Subtract two to see an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// By purpose, indexed by `Purpose as usize`.
    pub transferred: [Transferred; 2],
    /// Flushes. They are of all that was written, so they have no purpose.
    pub flushes: u64,
}

impl Account {
    /// What was moved for one purpose.
    pub fn of(&self, purpose: Purpose) -> Transferred {
        self.transferred[purpose as usize]
    }

    /// Requests of all kinds, flushes included.
    pub fn requests(&self) -> u64 {
        self.transferred.iter().map(|moved| moved.reads + moved.writes).sum::<u64>() + self.flushes
    }
}

impl Sub for Account {
    type Output = Account;

    /// What happened since `earlier`.
    fn sub(self, earlier: Account) -> Account {
        let mut difference = self;
        for (later, earlier) in difference.transferred.iter_mut().zip(earlier.transferred) {
            later.reads -= earlier.reads;
            later.bytes_read -= earlier.bytes_read;
            later.writes -= earlier.writes;
            later.bytes_written -= earlier.bytes_written;
        }
        difference.flushes -= earlier.flushes;
        difference
    }
}

/// The counters of one disk. A request takes microseconds at least; adding to a shared counter does not show.
#[derive(Default)]
pub(crate) struct Ledger {
    read: [[AtomicU64; 2]; 2],
    written: [[AtomicU64; 2]; 2],
    flushes: AtomicU64,
}

impl Ledger {
    pub(crate) fn read(&self, purpose: Purpose, bytes: u64) {
        add(&self.read[purpose as usize], bytes);
    }

    pub(crate) fn written(&self, purpose: Purpose, bytes: u64) {
        add(&self.written[purpose as usize], bytes);
    }

    pub(crate) fn flushed(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn account(&self) -> Account {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let transferred = Purpose::ALL.map(|purpose| {
            let (read, written) = (&self.read[purpose as usize], &self.written[purpose as usize]);
            Transferred {
                reads: load(&read[0]),
                bytes_read: load(&read[1]),
                writes: load(&written[0]),
                bytes_written: load(&written[1]),
            }
        });
        Account { transferred, flushes: load(&self.flushes) }
    }
}

fn add(counters: &[AtomicU64; 2], bytes: u64) {
    counters[0].fetch_add(1, Ordering::Relaxed);
    counters[1].fetch_add(bytes, Ordering::Relaxed);
}
