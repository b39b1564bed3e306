//! Promises of blocks: who takes blocks has asked for them before, so that nothing fails half-way.

use std::sync::atomic::Ordering::Relaxed;

use super::Allocator;
use crate::lanes::LANES;

/// Blocks that an operation may take without asking again. What is left returns when it is dropped.
#[must_use]
pub(crate) struct Budget<'a> {
    allocator: &'a Allocator,
    pub(super) left: std::cell::Cell<i64>,
    /// They came from a lane's stock, and may go back there.
    from_stock: bool,
}

impl Drop for Budget<'_> {
    fn drop(&mut self) {
        if self.left.get() != 0 {
            self.allocator.free.fetch_add(self.left.get(), Relaxed);
        }
    }
}

/// Blocks that a lane keeps for its operations, so that most begin without asking. They are taken only while there are
/// many, never from the reserves, and are given back when an epoch ends or somebody finds none.
#[derive(Default)]
pub(crate) struct Stock(i64);

/// Who may go how deep into the last free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Whatever adds to the volume: leaves both reserves alone.
    Ordinary,
    /// Whatever frees more than it takes: may use the deletion reserve.
    Deletion,
    /// Checkpoints: may use everything.
    Checkpoint,
}

impl Allocator {
    /// Enough to rewrite the whole NAT: one entry block per 512 nodes, and its tree.
    fn whole_nat(&self) -> i64 {
        (self.medium.geometry.main_blocks() / 256 + 16) as i64
    }

    /// Blocks kept for checkpoints: for a whole new NAT, and as much again while that of now may stay a snapshot's.
    fn checkpoint_reserve(&self) -> i64 {
        if self.kept.load(Relaxed) == 0 { self.whole_nat() } else { 2 * self.whole_nat() }
    }

    /// Whether a snapshot can be taken so that checkpoints and deletions still find room afterwards.
    pub(crate) fn has_room_for_snapshot(&self) -> bool {
        self.free.load(Relaxed) >= 2 * self.whole_nat() + self.deletion_reserve()
    }

    /// Blocks kept so that deleting is always possible.
    fn deletion_reserve(&self) -> i64 {
        (self.medium.geometry.main_blocks() / 256 + 48) as i64
    }

    /// Promises `blocks` blocks, or `None` if there are not so many now.
    pub(crate) fn reserve(&self, blocks: u64, urgency: Urgency) -> Option<Budget<'_>> {
        let keep = match urgency {
            Urgency::Ordinary => self.checkpoint_reserve() + self.deletion_reserve(),
            Urgency::Deletion => self.checkpoint_reserve(),
            Urgency::Checkpoint => i64::MIN / 2,
        };
        self.take(blocks as i64, keep).then(|| self.budget(blocks as i64, false))
    }

    fn budget(&self, blocks: i64, from_stock: bool) -> Budget<'_> {
        Budget { allocator: self, left: std::cell::Cell::new(blocks), from_stock }
    }

    /// Takes `blocks` from what is free if `keep` are left.
    fn take(&self, blocks: i64, keep: i64) -> bool {
        let take = |free: i64| (free - blocks >= keep).then_some(free - blocks);
        self.free.fetch_update(Relaxed, Relaxed, take).is_ok()
    }

    /// Blocks in a full stock: 1/2048 of the Main Area, at most 1 MiB.
    fn stock_blocks(&self) -> i64 {
        (self.medium.geometry.main_blocks() / 2048).min(256) as i64
    }

    /// As [`Allocator::reserve`], from the stock of the caller's lane if it has as many. While there are many free
    /// blocks, an empty stock is filled.
    pub(crate) fn reserve_from(
        &self,
        stock: &mut Stock,
        blocks: u64,
        urgency: Urgency,
    ) -> Option<Budget<'_>> {
        let wanted = blocks as i64;
        if stock.0 >= wanted {
            stock.0 -= wanted;
            return Some(self.budget(wanted, true));
        }
        let full = self.stock_blocks();
        let reserves = self.checkpoint_reserve() + self.deletion_reserve();
        if self.take(wanted + full - stock.0, reserves + 2 * full * LANES as i64) {
            stock.0 = full;
            return Some(self.budget(wanted, true));
        }
        self.give_back(stock);
        self.reserve(blocks, urgency)
    }

    /// An operation ends: what it did not use goes back to where it came from.
    pub(crate) fn put_back(&self, stock: &mut Stock, budget: &Budget<'_>) {
        if budget.from_stock {
            stock.0 += budget.left.replace(0);
            if stock.0 > 2 * self.stock_blocks() {
                self.give_back(stock);
            }
        }
    }

    /// What a lane had in stock is free for all.
    pub(crate) fn give_back(&self, stock: &mut Stock) {
        if stock.0 != 0 {
            self.free.fetch_add(std::mem::take(&mut stock.0), Relaxed);
        }
    }

    /// Blocks an ordinary operation could still get, and all that the next checkpoint leaves unused.
    pub(crate) fn space(&self) -> (u64, u64) {
        let live = self.segments.lock().live;
        let free = self.medium.geometry.main_blocks() - live;
        let reserves = (self.checkpoint_reserve() + self.deletion_reserve()) as u64;
        (free.saturating_sub(reserves), free)
    }
}
