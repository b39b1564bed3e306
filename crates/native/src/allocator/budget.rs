//! Promises of blocks: who takes blocks has asked for them before, so that nothing fails half-way.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::Relaxed;

use super::{Allocator, is_kept};
use crate::fault::{Fault, planted};
use crate::geometry::LANES;
use crate::sit::SegmentKind;

/// Blocks that an operation may take without asking again. What is left returns when it is dropped.
#[must_use]
pub(crate) struct Budget<'a> {
    allocator: &'a Allocator,
    pub(super) left: Cell<i64>,
    /// They came from a lane's stock, and may go back there.
    from_stock: bool,
    /// The lane's run, while the operation lasts; and how many blocks another may have when it is used up.
    run: Cell<Run>,
    next_run: Cell<i64>,
    /// What the lane lets go of, while the operation lasts.
    freed: RefCell<Freed>,
}

impl Drop for Budget<'_> {
    fn drop(&mut self) {
        if self.left.get() != 0 {
            self.allocator.free.fetch_add(self.left.get(), Relaxed);
        }
        debug_assert!(self.run.get().length == 0 && self.freed.borrow().is_empty(), "a lane's are put back");
    }
}

/// Blocks that a lane keeps for its operations, so that most begin without asking. They are taken only while there are
/// many, never from the reserves, and are given back when an epoch ends or somebody finds none.
///
/// Some of them have been chosen already, and what its operations let go of is collected: so writing over a block here and
/// there asks for the allocator's lock once in many times. Its atomic exchange would also wait for what was just streamed.
#[derive(Default)]
pub(crate) struct Stock {
    promised: i64,
    run: Run,
    freed: Freed,
}

/// Blocks side by side that are taken, and not allocated yet. No budget has to pay for them any more.
#[derive(Clone, Copy, Default)]
struct Run {
    first: u64,
    length: u64,
}

/// Runs of blocks that the running tree has let go of, and that the allocator has not been told of.
type Freed = Vec<(u64, u64)>;

/// Blocks chosen at once, at most.
const RUN_MAX: i64 = 64;
/// Who wants more than so many blocks side by side does not begin with what is left of a run.
const SMALL: u64 = 8;
/// Runs collected before the allocator is told.
const FREED_MAX: usize = 64;

/// Who may go how deep into the last free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Whatever adds to the volume: leaves both reserves alone.
    Ordinary,
    /// Whatever changes what is there. What it takes comes back with the next checkpoint, so it may use the deletion reserve;
    /// but not while there is a snapshot, which may have what was there before.
    Change,
    /// Whatever frees more than it takes: may use the deletion reserve.
    Deletion,
    /// Checkpoints: may use everything.
    Checkpoint,
}

/// Where an ordinary operation finds room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Now,
    /// The next checkpoint gives it back.
    BehindCheckpoint,
    Nowhere,
}

impl Budget<'_> {
    /// Takes up to `want` blocks of the lane's run, if there are any and no long run is wanted.
    #[inline]
    pub(super) fn small_run(&self, want: u64) -> Option<(u64, u64)> {
        if want > SMALL {
            return None;
        }
        if self.run.get().length == 0 && self.next_run.get() > 0 {
            let run = self.allocator.take_run(self.next_run.get() as u64);
            self.next_run.set(self.next_run.get() - run.length as i64);
            self.run.set(run);
        }
        let Run { first, length } = self.run.get();
        let taken = want.min(length);
        if taken == 0 {
            return None;
        }
        self.run.set(Run { first: first + taken, length: length - taken });
        Some((first, taken))
    }

    /// Lets go of a run of blocks, as [`Allocator::free`] does; the allocator is told later, at the latest when the epoch
    /// ends.
    pub(crate) fn free(&self, first: u64, length: u64) {
        if !self.from_stock || planted(Fault::FreedBlockReused) {
            return self.allocator.free(first, length);
        }
        let mut freed = self.freed.borrow_mut();
        match freed.last_mut() {
            Some(last) if last.0 + last.1 == first => last.1 += length,
            _ => freed.push((first, length)),
        }
    }
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
        let has_snapshots = self.kept.load(Relaxed) != 0;
        let keep = match urgency {
            Urgency::Change if !has_snapshots => self.checkpoint_reserve(),
            Urgency::Ordinary | Urgency::Change => self.checkpoint_reserve() + self.deletion_reserve(),
            Urgency::Deletion => self.checkpoint_reserve(),
            Urgency::Checkpoint => i64::MIN / 2,
        };
        self.take(blocks as i64, keep).then(|| self.budget(blocks as i64, false))
    }

    /// Where an ordinary operation finds so many blocks.
    #[inline]
    pub(crate) fn room_for(&self, blocks: u64) -> Room {
        let reserves = self.checkpoint_reserve() + self.deletion_reserve();
        let has = |free: i64| free - (blocks as i64) >= reserves;
        if has(self.free.load(Relaxed)) {
            return Room::Now;
        }
        let behind_checkpoint = self.medium.geometry.main_blocks() - self.segments.lock().live;
        if has(behind_checkpoint as i64) { Room::BehindCheckpoint } else { Room::Nowhere }
    }

    /// Promises `blocks` blocks to what moves, if that leaves as many to others as it takes: what it takes comes back with the
    /// checkpoint that publishes the move, and who finds none meanwhile waits for that.
    pub(crate) fn reserve_to_move(&self, blocks: u64) -> Option<Budget<'_>> {
        let keep = self.checkpoint_reserve() + self.deletion_reserve() + blocks as i64;
        self.take(blocks as i64, keep).then(|| self.budget(blocks as i64, false))
    }

    /// How many blocks may move at once.
    pub(super) fn room_to_move(&self) -> u64 {
        let reserves = self.checkpoint_reserve() + self.deletion_reserve();
        (self.free.load(Relaxed) - reserves).max(0) as u64 / 2
    }

    fn budget(&self, blocks: i64, from_stock: bool) -> Budget<'_> {
        Budget {
            allocator: self,
            left: Cell::new(blocks),
            from_stock,
            run: Cell::default(),
            next_run: Cell::new(0),
            freed: RefCell::default(),
        }
    }

    /// A budget out of `stock`, whose run and collection it has meanwhile.
    fn budget_from(&self, stock: &mut Stock, blocks: i64) -> Budget<'_> {
        let budget = self.budget(blocks, true);
        if stock.run.length == 0 {
            let next = (stock.promised / 2).min(RUN_MAX);
            stock.promised -= next;
            budget.next_run.set(next);
        }
        budget.run.set(std::mem::take(&mut stock.run));
        budget.freed.replace(std::mem::take(&mut stock.freed));
        budget
    }

    /// Takes up to `wanted` blocks side by side; none if damage has left less room than there is.
    #[cold]
    fn take_run(&self, wanted: u64) -> Run {
        let mut segments = self.segments.lock();
        match segments.take_run(&self.medium, SegmentKind::Data, wanted) {
            Ok((first, length)) => {
                segments.reached += length;
                Run { first, length }
            }
            Err(_) => Run::default(),
        }
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
        if stock.promised >= wanted {
            stock.promised -= wanted;
            return Some(self.budget_from(stock, wanted));
        }
        let full = self.stock_blocks();
        let reserves = self.checkpoint_reserve() + self.deletion_reserve();
        if self.take(wanted + full - stock.promised, reserves + 2 * full * LANES as i64) {
            stock.promised = full;
            return Some(self.budget_from(stock, wanted));
        }
        self.give_back(stock);
        self.reserve(blocks, urgency)
    }

    /// An operation ends: what it did not use goes back to where it came from.
    pub(crate) fn put_back(&self, stock: &mut Stock, budget: &Budget<'_>) {
        if !budget.from_stock {
            return;
        }
        stock.promised += budget.left.replace(0) + budget.next_run.take();
        stock.run = budget.run.take();
        stock.freed = budget.freed.take();
        if stock.promised > 2 * self.stock_blocks() {
            self.give_back(stock);
        } else if stock.freed.len() >= FREED_MAX {
            self.free_all(&mut stock.freed);
        }
    }

    /// What a lane had in stock is free for all, and what it has let go of is told.
    pub(crate) fn give_back(&self, stock: &mut Stock) {
        let Run { first, length } = std::mem::take(&mut stock.run);
        let promised = std::mem::take(&mut stock.promised) + length as i64;
        if length > 0 {
            let mut segments = self.segments.lock();
            segments.put_back_run(&self.medium, first, length);
            // Damage may have left the count too low.
            segments.reached = segments.reached.saturating_sub(length);
        }
        if promised != 0 {
            self.free.fetch_add(promised, Relaxed);
        }
        self.free_all(&mut stock.freed);
    }

    /// Lets go of all that was collected.
    fn free_all(&self, freed: &mut Freed) {
        if !freed.is_empty() {
            self.free_runs(freed);
            freed.clear();
        }
    }

    /// Blocks that count as in use, and would not if a lane gave back what it has.
    pub(crate) fn unused_in(&self, stock: &Stock) -> u64 {
        let kept = self.kept.load(Relaxed);
        let freed = stock.freed.iter().map(|(first, length)| match kept {
            0 => *length,
            _ => (*first..first + length).filter(|block| !is_kept(&self.medium, *block, kept)).count() as u64,
        });
        stock.run.length + freed.sum::<u64>()
    }

    /// Blocks an ordinary operation could still get, and all that the next checkpoint leaves unused, `in_stocks` of which lanes
    /// have.
    pub(crate) fn space(&self, in_stocks: u64) -> (u64, u64) {
        let live = self.segments.lock().live.saturating_sub(in_stocks);
        let free = self.medium.geometry.main_blocks() - live;
        let reserves = (self.checkpoint_reserve() + self.deletion_reserve()) as u64;
        (free.saturating_sub(reserves), free)
    }
}

#[cfg(test)]
mod tests {
    use vfs::{Caller, OpenFlags, ROOT_INO};

    use crate::{MountOptions, format};

    /// Whoever asked how much is free took from all lanes what they had in stock.
    #[test]
    fn asking_for_space_leaves_lanes_their_stocks() {
        let options = MountOptions { background: false, ..MountOptions::default() };
        let core = format::new_in_memory(256 << 20, &options);
        let (root, flags) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
        let file = core.create(&root, ROOT_INO, b"file", 0o644, flags).unwrap();
        for snapshot in [None, Some("s")] {
            for block in 0..20 {
                core.write(&root, file.handle, block << 12, &[1; 4096]).unwrap();
            }
            if let Some(name) = snapshot {
                core.take_snapshot(name, "").unwrap();
            }
            // Some of what goes is the snapshot's, some nobody's.
            for block in [3, 3, 7, 9, 9, 9] {
                core.write(&root, file.handle, block << 12, &[2; 4096]).unwrap();
            }
            let unused = core.unused_in_stocks();
            assert!(unused > 0, "lanes have nothing in stock");
            let told = core.space();
            assert_eq!(core.unused_in_stocks(), unused, "stocks were taken back");
            core.take_back_stocks();
            assert_eq!(told, core.nodes.allocator.space(0), "with the snapshot {snapshot:?}");
        }
    }
}
