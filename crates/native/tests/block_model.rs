//! A model of how inodes that share a block are changed, read and checkpointed at once, run by `shuttle` under thousands
//! of chosen schedules.
//!
//! It transcribes, compactly, and a change there must be made here too:
//! - of `nodes/inodes.rs`: `edit_inode`, `current_or_copy`; of `nodes.rs`: `current`, `copy`; of `nat.rs`: `locate`, `set`;
//! - of `locks.rs`: `wait_for_all`, and the counts of `lock_model.rs`; of `glimpse.rs`: `Seen::begin` and `holds`;
//! - of `core.rs`: how an epoch ends, and that blocks are given out again last.
//!
//! Two inodes share a block; each is two numbers that are stored one after the other and always the same. A block that is
//! free may hold anything. Each [`Fault`] plants a mistake that must be found: so the tests can fail.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicBool, AtomicU64};
use shuttle::sync::{Mutex, RwLock};
use shuttle::{Config, Runner, thread};
use vfs::torture::Torture;

/// Schedules of each kind for the model as it is, and for one with a fault, until it is found.
const SCHEDULES: usize = 2000;
const SCHEDULES_MAX: usize = 40_000;
const BLOCKS: usize = 5;
/// What a block that is given out again is filled with: neither number of a pair.
const OTHERS: [u64; 2] = [u64::MAX, u64::MAX - 1];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    VersionFirst, // the NAT entry gets the version before the pointer
    PointerFirst, // who wants to change something reads the pointer before the version
    CopyUnlocked, // the block is copied without its lock
    CopyTwice,    // who waited for the block's lock doesn't look again
    NoWait,       // blocks are given out again while somebody who had a lock still looks
    BlindGlimpse, // a glimpse doesn't ask whether the block moved
}

type Pair = [AtomicU64; 2];

#[derive(Default)]
struct Inode {
    lock: RwLock<()>,
    changes: AtomicU64,
}

struct Volume {
    fault: Fault,
    blocks: [[Pair; 2]; BLOCKS],
    used: [AtomicBool; BLOCKS],
    /// The NAT's entry.
    pointer: AtomicU64,
    version: AtomicU64,
    /// The running epoch.
    epoch: AtomicU64,
    gate: RwLock<()>,
    block_lock: Mutex<()>,
    inodes: [Inode; 2],
    /// Freed in the running epoch.
    freed: Mutex<Vec<u64>>,
}

impl Volume {
    fn new(fault: Fault) -> Volume {
        let volume = Volume {
            fault,
            blocks: Default::default(),
            used: Default::default(),
            pointer: AtomicU64::new(0),
            version: AtomicU64::new(0),
            epoch: AtomicU64::new(1),
            gate: RwLock::default(),
            block_lock: Mutex::default(),
            inodes: Default::default(),
            freed: Mutex::default(),
        };
        volume.used[0].store(true, SeqCst);
        volume
    }

    fn pair(&self, block: u64, ino: usize) -> &Pair {
        &self.blocks[block as usize][ino]
    }

    fn current(&self) -> Option<u64> {
        let (version, pointer) = match self.fault {
            Fault::PointerFirst => {
                let pointer = self.pointer.load(SeqCst);
                (self.version.load(SeqCst), pointer)
            }
            _ => (self.version.load(SeqCst), self.pointer.load(SeqCst)),
        };
        (version == self.epoch.load(SeqCst)).then_some(pointer)
    }

    fn copy(&self) -> u64 {
        let old = self.pointer.load(SeqCst);
        let free = |block: &usize| !self.used[*block].swap(true, SeqCst);
        let block = (0..BLOCKS).find(free).expect("a free block") as u64;
        for ino in 0..2 {
            for half in 0..2 {
                let value = self.pair(old, ino)[half].load(SeqCst);
                self.pair(block, ino)[half].store(value, SeqCst);
            }
        }
        let epoch = self.epoch.load(SeqCst);
        if self.fault == Fault::VersionFirst {
            self.version.store(epoch, SeqCst);
        }
        self.pointer.store(block, SeqCst);
        self.version.store(epoch, SeqCst);
        self.freed.lock().unwrap_or_else(PoisonError::into_inner).push(old);
        block
    }

    fn edit(&self) -> u64 {
        if let Some(block) = self.current() {
            return block;
        }
        let is_locked = self.fault != Fault::CopyUnlocked;
        let _lock = is_locked.then(|| self.block_lock.lock().unwrap_or_else(PoisonError::into_inner));
        match self.current() {
            Some(block) if self.fault != Fault::CopyTwice => block,
            _ => self.copy(),
        }
    }

    /// Counts inode `ino` up: one operation.
    fn change(&self, ino: usize) {
        let _gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let Inode { lock, changes } = &self.inodes[ino];
        let _lock = lock.write().unwrap_or_else(PoisonError::into_inner);
        changes.fetch_add(1, SeqCst);
        let pair = self.pair(self.edit(), ino);
        let next = pair[0].load(SeqCst) + 1;
        pair.iter().for_each(|half| half.store(next, SeqCst));
        changes.fetch_add(1, SeqCst);
    }

    /// Reads inode `ino` under its lock.
    fn read(&self, ino: usize) -> u64 {
        let _lock = self.inodes[ino].lock.read().unwrap_or_else(PoisonError::into_inner);
        let pair = self.pair(self.pointer.load(SeqCst), ino);
        let seen = pair.each_ref().map(|half| half.load(SeqCst));
        assert!(seen[0] == seen[1], "a torn read");
        seen[0]
    }

    /// Looks at inode `ino` without a lock.
    fn glimpse(&self, ino: usize) -> Option<u64> {
        let changes = &self.inodes[ino].changes;
        let before = Some(changes.load(SeqCst)).filter(|changes| changes.is_multiple_of(2))?;
        let (version, pointer) = (self.version.load(SeqCst), self.pointer.load(SeqCst));
        let seen = self.pair(pointer, ino).each_ref().map(|half| half.load(SeqCst));
        let moved = self.fault != Fault::BlindGlimpse && self.version.load(SeqCst) != version;
        if changes.load(SeqCst) != before || moved {
            return None;
        }
        assert!(seen[0] == seen[1], "a torn glimpse");
        Some(seen[0])
    }

    /// Makes a checkpoint, after which what it freed is given out again.
    fn checkpoint(&self) {
        let freed = {
            let _nobody = self.gate.write().unwrap_or_else(PoisonError::into_inner);
            self.epoch.fetch_add(1, SeqCst);
            std::mem::take(&mut *self.freed.lock().unwrap_or_else(PoisonError::into_inner))
        };
        if self.fault != Fault::NoWait {
            for inode in &self.inodes {
                drop(inode.lock.write().unwrap_or_else(PoisonError::into_inner));
            }
        }
        for block in freed {
            for ino in 0..2 {
                let halves = self.pair(block, ino).iter().zip(OTHERS);
                halves.for_each(|(half, other)| half.store(other, SeqCst));
            }
            assert!(self.used[block as usize].swap(false, SeqCst), "a block freed twice");
        }
    }
}

fn neighbours(fault: Fault) {
    let volume = Volume::new(fault);
    thread::scope(|scope| {
        scope.spawn(|| [0, 0].map(|ino| volume.change(ino)));
        scope.spawn(|| [1, 1].map(|ino| volume.change(ino)));
        scope.spawn(|| (0..2).for_each(|_| volume.checkpoint()));
        scope.spawn(|| {
            let seen = [0, 0].map(|ino| volume.read(ino));
            assert!(seen[0] <= seen[1] && seen[1] <= 2, "a change was taken back");
        });
        let seen: Vec<_> = (0..3).filter_map(|_| volume.glimpse(1)).collect();
        assert!(seen.is_sorted() && seen.iter().all(|value| *value <= 2), "a change was taken back");
    });
    assert_eq!([0, 1].map(|ino| volume.read(ino)), [2, 2], "a change was lost");
}

fn run(schedules: usize, model: impl Fn() + Copy + Send + Sync + 'static) {
    let seed = Torture::seed_from_environment();
    eprintln!("AMBERFS_SEED={seed}");
    let mut config = Config::new();
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new_from_seed(seed, schedules), config.clone()).run(model);
    Runner::new(PctScheduler::new_from_seed(seed, 3, schedules), config).run(model);
}

#[test]
fn neighbours_do_not_know_of_each_other() {
    run(SCHEDULES, || neighbours(Fault::None));
}

/// A test that `$fault` is found, whatever it breaks.
macro_rules! finds {
    ($name:ident, $fault:ident) => {
        #[test]
        #[should_panic(expected = "a ")]
        fn $name() {
            run(SCHEDULES_MAX, || neighbours(Fault::$fault));
        }
    };
}

finds!(a_version_before_its_pointer_is_found, VersionFirst);
finds!(a_pointer_read_before_its_version_is_found, PointerFirst);
finds!(copying_without_the_blocks_lock_is_found, CopyUnlocked);
finds!(copying_again_is_found, CopyTwice);
finds!(giving_out_too_early_is_found, NoWait);
finds!(a_glimpse_of_a_block_that_moved_is_found, BlindGlimpse);
