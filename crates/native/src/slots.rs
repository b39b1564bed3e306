//! Which numbers of inodes are free, and the locks of the blocks that inodes share.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::inode::number_of;
use crate::lanes;

/// Dispensers of numbers: threads of different dispensers fill different blocks.
const DISPENSERS: usize = crate::geometry::LANES;
/// Block locks of a volume at most, and at least: a small one is opened sooner with few.
const STRIPES_MAX: u64 = 256;
const STRIPES_MIN: u64 = 16;

#[derive(Default)]
#[repr(align(64))]
struct Dispenser {
    numbers: Mutex<Numbers>,
}

/// What one dispenser gives out.
#[derive(Default)]
struct Numbers {
    nid: u32,
    /// Slots of block `nid` that are promised to this dispenser.
    free: u16,
    /// Blocks with room.
    roomy: Vec<u32>,
}

#[derive(Default)]
#[repr(align(64))]
struct BlockLock(Mutex<()>);

/// Numbers of inodes, and the locks of their blocks.
///
/// A dispenser promises itself all free slots of a block; so nobody else gives them out, and the block's NID is not free
/// while one of them may still become an inode. Order of locks: a dispenser, a block, the NID pool.
pub(crate) struct Slots {
    dispensers: [Dispenser; DISPENSERS],
    blocks: Box<[BlockLock]>,
    /// Blocks with room in the dispensers' lists, and how many there may be.
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
            dispensers: Default::default(),
            blocks: (0..stripes).map(|_| BlockLock::default()).collect(),
            roomy: AtomicUsize::new(0),
            begun: Once::new(),
        }
    }

    /// The lock of a block of inodes.
    pub(crate) fn lock(&self, nid: u32) -> MutexGuard<'_, ()> {
        self.blocks[nid as usize & (self.blocks.len() - 1)].0.lock()
    }

    /// The calling thread's dispenser.
    fn dispenser(&self) -> &Dispenser {
        &self.dispensers[lanes::thread_number()]
    }

    /// A block with room, of the dispenser or, if it has none, of another.
    fn take_roomy(&self, numbers: &mut Numbers) -> Option<u32> {
        if self.roomy.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let other = || self.dispensers.iter().find_map(|dispenser| dispenser.numbers.try_lock()?.roomy.pop());
        let nid = numbers.roomy.pop().or_else(other)?;
        self.roomy.fetch_sub(1, Ordering::Relaxed);
        Some(nid)
    }

    /// Remembers a block with room; false if there is no room for that.
    pub(crate) fn remember(&self, nid: u32) -> bool {
        let mut numbers = self.dispenser().numbers.lock();
        if self.roomy.load(Ordering::Relaxed) >= self.roomy_max {
            return false;
        }
        numbers.roomy.push(nid);
        self.roomy.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Takes a number for a new inode. `promise` gives a block and which of its slots are free and now promised: of the one that is
    /// remembered, or of a new one. Before the first number, `begin` looks for blocks with room.
    pub(crate) fn take(
        &self,
        begin: impl FnOnce(),
        promise: impl Fn(Option<u32>) -> vfs::Result<(u32, u16)>,
    ) -> vfs::Result<u32> {
        self.begun.call_once(begin);
        let mut numbers = self.dispenser().numbers.lock();
        while numbers.free == 0 {
            let roomy = self.take_roomy(&mut numbers);
            (numbers.nid, numbers.free) = promise(roomy)?;
        }
        let slot = numbers.free.trailing_zeros();
        numbers.free &= numbers.free - 1;
        Ok(number_of(numbers.nid, slot))
    }
}
