//! Pages that the log has, of blocks that a file has no more once a transaction is durable that is not yet.
//!
//! Until then a crash brings the file back, with the bytes that were synced: they must not go with the part of the log that has them.

use std::collections::VecDeque;
use std::sync::Arc;

/// A page that has been dropped.
pub(crate) struct Dropped {
    /// By this transaction, or an earlier one that takes the file's name.
    pub(crate) by: u64,
    /// The first transaction that has a part of it.
    pub(crate) logged: u64,
    pub(crate) block: u64,
    pub(crate) bytes: Arc<[u8]>,
}

#[derive(Default)]
pub(crate) struct DroppedPages {
    /// In the order in which they came, and as which.
    pages: VecDeque<(u64, Dropped)>,
    count: u64,
    /// The newest transaction that is durable.
    settled: u64,
}

impl DroppedPages {
    /// One more; unless what dropped it has been made durable just now: its block may be another's already.
    pub(crate) fn add(&mut self, page: Dropped) {
        if page.by > self.settled {
            self.pages.push_back((self.count, page));
            self.count += 1;
        }
    }

    /// A transaction is durable. Called before what it freed is given out.
    pub(crate) fn settle(&mut self, transaction: u64) {
        self.settled = transaction;
        self.pages.retain(|(_, page)| page.by > transaction);
    }

    /// Hands `visit` the blocks and bytes of those that transactions up to `transaction` have logged.
    pub(crate) fn visit(&self, transaction: u64, mut visit: impl FnMut(u64, &[u8])) {
        let due = self.pages.iter().filter(|(_, page)| page.logged <= transaction);
        due.for_each(|(_, page)| visit(page.block, &page.bytes));
    }

    /// Hands `take` the blocks and bytes of those that transactions up to `transaction` have logged, from one on; if it takes no more, from
    /// which to go on.
    pub(crate) fn drain_some(
        &self,
        from: u64,
        transaction: u64,
        mut take: impl FnMut(u64, &[u8]) -> bool,
    ) -> Option<u64> {
        let first = self.pages.partition_point(|(n, _)| *n < from);
        let mut due = self.pages.range(first..).filter(|(_, page)| page.logged <= transaction);
        due.find(|(_, page)| !take(page.block, &page.bytes)).map(|(n, _)| *n)
    }
}
