//! Which numbers of inodes are free, and the locks of the blocks that inodes share.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::inode::number_of;
use crate::per_thread::PerThread;

/// Block locks of a volume at most, and at least: a small one is opened sooner with few.
const STRIPES_MAX: u64 = 256;
const STRIPES_MIN: u64 = 16;

/// What one thread gives out to itself: threads fill different blocks.
#[derive(Default)]
struct Numbers {
    nid: u32,
    /// Slots of block `nid` that are promised to this thread.
    free: u16,
    /// Blocks with room.
    roomy: Vec<u32>,
}

/// Which slots of the blocks of one lock are promised to inodes that are not made yet; each thread has one block at a time.
#[derive(Default)]
pub(crate) struct Promises(SmallVec<[(u32, u16); 2]>);

impl Promises {
    /// Those of block `nid`.
    pub(crate) fn of(&self, nid: u32) -> u16 {
        self.0.iter().find(|(block, _)| *block == nid).map_or(0, |(_, slots)| *slots)
    }

    /// Promises `slots` of block `nid`, too.
    pub(crate) fn add(&mut self, nid: u32, slots: u16) {
        match self.0.iter_mut().find(|(block, _)| *block == nid) {
            Some((_, promised)) => *promised |= slots,
            None => self.0.extend((slots != 0).then_some((nid, slots))),
        }
    }

    /// A promised slot (or one that never was, in a replay) is taken or given back; returns those that are left.
    pub(crate) fn redeem(&mut self, nid: u32, slot: usize) -> u16 {
        let Some(at) = self.0.iter().position(|(block, _)| *block == nid) else { return 0 };
        let left = self.0[at].1 & !(1 << slot);
        self.0[at].1 = left;
        if left == 0 {
            self.0.swap_remove(at);
        }
        left
    }
}

#[derive(Default)]
#[repr(align(64))]
struct BlockLock(Mutex<Promises>);

/// Numbers of inodes, and the locks of their blocks.
///
/// A thread promises itself all free slots of a block; so nobody else gives them out, and the block's NID is not free
/// while one of them may still become an inode. Order of locks: a thread's numbers, a block, the NID pool.
pub(crate) struct Slots {
    numbers: PerThread<Mutex<Numbers>>,
    blocks: Box<[BlockLock]>,
    /// Blocks with room in the threads' lists, and how many there may be.
    roomy: AtomicUsize,
    roomy_max: usize,
    /// The first number was asked for.
    begun: Once,
}

impl Slots {
    /// Of a volume of so many blocks; remembers `roomy` blocks with room.
    pub(crate) fn new(volume_blocks: u64, roomy: usize) -> Slots {
        let stripes = (volume_blocks / 256).clamp(STRIPES_MIN, STRIPES_MAX).next_power_of_two();
        Slots {
            roomy_max: roomy,
            numbers: PerThread::new(|_| Mutex::default()),
            blocks: (0..stripes).map(|_| BlockLock::default()).collect(),
            roomy: AtomicUsize::new(0),
            begun: Once::new(),
        }
    }

    fn block(&self, nid: u32) -> &Mutex<Promises> {
        &self.blocks[nid as usize & (self.blocks.len() - 1)].0
    }

    /// The lock of a block of inodes.
    pub(crate) fn lock(&self, nid: u32) -> MutexGuard<'_, Promises> {
        self.block(nid).lock()
    }

    /// Whether a slot of block `nid` is promised; `None` if somebody has the block's lock: who asks waits for nobody.
    pub(crate) fn is_promised(&self, nid: u32) -> Option<bool> {
        Some(self.block(nid).try_lock()?.of(nid) != 0)
    }

    /// A block with room, of the thread's or, if it has none, of another's.
    fn take_roomy(&self, numbers: &mut Numbers) -> Option<u32> {
        if self.roomy.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let other = || self.numbers.all().find_map(|numbers| numbers.try_lock()?.roomy.pop());
        let nid = numbers.roomy.pop().or_else(other)?;
        self.roomy.fetch_sub(1, Ordering::Relaxed);
        Some(nid)
    }

    /// Remembers a block with room; false if there is no room for that.
    pub(crate) fn remember(&self, nid: u32) -> bool {
        let mut numbers = self.numbers.mine().lock();
        if self.roomy.load(Ordering::Relaxed) >= self.roomy_max {
            return false;
        }
        numbers.roomy.push(nid);
        self.roomy.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// A slot of block `nid` was not needed after all: the thread that took it has it again, if it still gives out those of that block.
    pub(crate) fn give_back(&self, nid: u32, slot: usize) -> bool {
        let mut numbers = self.numbers.mine().lock();
        let is_mine = numbers.nid == nid;
        if is_mine {
            numbers.free |= 1 << slot;
        }
        is_mine
    }

    /// Takes a number for a new inode. `promise` gives a block and which of its slots are free and now promised: of the one that is
    /// remembered, or of a new one. Before the first number, `begin` looks for blocks with room.
    pub(crate) fn take(
        &self,
        begin: impl FnOnce(),
        promise: impl Fn(Option<u32>) -> vfs::Result<(u32, u16)>,
    ) -> vfs::Result<u32> {
        self.begun.call_once(begin);
        let mut numbers = self.numbers.mine().lock();
        while numbers.free == 0 {
            let roomy = self.take_roomy(&mut numbers);
            (numbers.nid, numbers.free) = promise(roomy)?;
        }
        let slot = numbers.free.trailing_zeros();
        numbers.free &= numbers.free - 1;
        Ok(number_of(numbers.nid, slot))
    }
}
