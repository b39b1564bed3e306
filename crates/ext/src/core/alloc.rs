//! Free space: which blocks and inodes are given out, and to whom.
//!
//! Bitmaps and counts say what is in use ([`take`], [`free`], [`new_inode`], [`free_inode`]: parts of an operation). Beside them, in
//! DRAM, stands what is *not to be given out although its bit is clear* ([`Space`]):
//!
//! - blocks that were picked for data which is being written, before their map may say so ([`pick`]);
//! - blocks that were freed by an operation whose transaction is not durable: their old owner may come back after a crash, so their
//!   bytes must not change ([`Space::reusable`] lets go of them);
//! - blocks that became free while bytes of files are on their way to the disk ([`Space::begin_writing`]): a write to one that has just been
//!   freed must have ended before anybody else has it;
//! - blocks promised to data that is only in DRAM and has no place yet ([`Space::promise`]), a count.
//!
//! A block is *available* when its bit is clear and it is none of the first three. So `available + withheld + in use` is all there is, at
//! any time. Taking and freeing move blocks between the last two; only picking, giving up and [`Space::reusable`] change what is
//! available.
//!
//! Where fixed metadata is (superblocks, descriptors, bitmaps, inode tables) is known from the descriptors: no bitmap and no map is
//! believed that would have a file there.

mod blocks;
mod inodes;
mod state;
#[cfg(test)]
mod tests;

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use vfs::{Caller, Error, Result};

pub(crate) use self::blocks::{free, give_up, metadata, node, pick, take};
pub(crate) use self::inodes::{free_inode, new_inode};
use self::state::State;
use crate::core::inode::Inode;
use crate::core::{Core, Tables};
use crate::failure::{Failure, Whole};

/// What is free, in DRAM: known from the first time that it is asked for.
pub(crate) struct Space {
    /// What became free while bytes of files are being written, which wait for that; nothing if none are.
    late: Mutex<Option<Vec<Range<u64>>>>,
    state: Mutex<Option<State>>,
    /// Blocks that the operation that runs may not have: see [`Space::spare`].
    spared: AtomicU64,
    failure: Arc<Failure>,
}

impl Space {
    pub(crate) fn new(failure: Arc<Failure>) -> Space {
        Space { late: Mutex::default(), state: Mutex::default(), spared: AtomicU64::new(0), failure }
    }

    fn state(&self, core: &Core) -> Result<Loaded<'_>> {
        let mut state = self.state.lock();
        if state.is_none() {
            *state = Some(State::load(core)?);
        }
        // Behind a panic blocks may be available that are somebody's, and not be undone.
        self.failure.check()?;
        Ok(self.loaded(state).expect("just loaded"))
    }

    /// The same, if it is known by now.
    fn known(&self) -> Option<Loaded<'_>> {
        self.loaded(self.state.lock())
    }

    fn loaded<'a>(&'a self, state: MutexGuard<'a, Option<State>>) -> Option<Loaded<'a>> {
        let state = MutexGuard::try_map(state, Option::as_mut).ok()?;
        Some(Loaded { _whole: self.failure.whole("what is known of free space"), state })
    }

    /// The operation that runs is `caller`'s: who may not have what the superblock reserves gets none of it for names, attributes and
    /// targets. Called alone (`tree`).
    pub(crate) fn spare(&self, core: &Core, caller: &Caller) -> Sparing<'_> {
        self.spared.store(spared(core, caller), Ordering::Relaxed);
        Sparing(&self.spared)
    }

    /// Promises `blocks` to data without a place; [`Error::NoSpace`] if so many are not left, beside what maps may need and those
    /// `spared`. There may be enough when what was freed is durable, and what has been promised has its place.
    pub(crate) fn promise(&self, core: &Core, spared: u64, blocks: u64) -> Result<()> {
        let mut state = self.state(core)?;
        if blocks > 0 && state.spoken_for(core, blocks) + spared > state.available {
            return Err(Error::NoSpace);
        }
        state.promised += blocks;
        Ok(())
    }

    /// How many blocks could be promised now beside those `spared`, up to `most`.
    pub(crate) fn room(&self, core: &Core, spared: u64, most: u64) -> Result<u64> {
        let state = self.state(core)?;
        let (mut fits, mut too_many) = (0, most + 1);
        while too_many - fits > 1 {
            let between = fits + (too_many - fits) / 2;
            match state.spoken_for(core, between) + spared > state.available {
                true => too_many = between,
                false => fits = between,
            }
        }
        Ok(fits)
    }

    /// Takes a promise back: they have a place now, or need none.
    pub(crate) fn release(&self, blocks: u64) {
        if let Some(mut state) = self.known() {
            state.promised -= blocks;
        }
    }

    /// Blocks that are promised.
    pub(crate) fn promised(&self) -> u64 {
        self.known().map_or(0, |state| state.promised)
    }

    /// Whether fixed metadata of the file system is in one of these blocks.
    pub(crate) fn is_fixed(&self, core: &Core, blocks: &Range<u64>) -> Result<bool> {
        Ok(self.state(core)?.is_fixed(blocks))
    }

    /// The operation that runs has been: what it freed is free when its transaction is durable.
    pub(crate) fn finish(&self) {
        if let Some(mut state) = self.known() {
            state.finish();
        }
    }

    /// The operation that runs is undone: what it freed is not free, what it took is picked still.
    pub(crate) fn undo(&self, tables: &Tables) {
        if let Some(mut state) = self.known() {
            state.undo(tables);
        }
    }

    /// What was freed since the last call, by operations that have finished: the transaction that is now taken to be committed has
    /// it. Called alone (`tree`).
    pub(crate) fn take_freed(&self) -> Vec<Range<u64>> {
        self.known().map_or_else(Vec::new, |mut state| std::mem::take(&mut state.freed))
    }

    /// These blocks, of [`Space::take_freed`], may be given out again: their transaction is durable.
    pub(crate) fn reusable(&self, freed: &[Range<u64>]) {
        self.let_go(freed);
    }

    fn let_go(&self, freed: &[Range<u64>]) {
        let late = &mut *self.late.lock();
        match late {
            Some(late) => late.extend_from_slice(freed),
            None => {
                if let Some(mut state) = self.known() {
                    freed.iter().for_each(|blocks| state.let_go(blocks.clone()));
                }
            }
        }
    }

    /// From now on bytes of files are on their way to blocks that are theirs now.
    pub(crate) fn begin_writing(&self) {
        let was = self.late.lock().replace(Vec::new());
        assert!(was.is_none(), "one writes at a time");
    }

    /// None are any longer.
    pub(crate) fn end_writing(&self) {
        let late = self.late.lock().take();
        self.let_go(&late.unwrap_or_default());
    }
}

/// Blocks that `caller` may not have: what the superblock reserves.
pub(crate) fn spared(core: &Core, caller: &Caller) -> u64 {
    let (user, group) = core.superblock.reserved_for;
    let may_have_all = caller.uid == 0 || caller.uid == user || group != 0 && caller.in_group(group);
    if may_have_all { 0 } else { core.superblock.reserved_blocks }
}

/// The same for the bytes of a file. Who brought them to a cache is not known, and who empties it may be anybody: then it is as if the
/// file's owner had.
pub(crate) fn spared_for(core: &Core, caller: &Caller, file: &Inode) -> u64 {
    match caller.from_cache {
        true => spared(core, &Caller::user(file.uid, file.gid)),
        false => spared(core, caller),
    }
}

/// What is free, to be changed.
struct Loaded<'a> {
    /// Let go of before the lock.
    _whole: Whole<'a>,
    state: MappedMutexGuard<'a, State>,
}

impl Deref for Loaded<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Loaded<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

/// Until it is dropped, metadata of the operation that runs spares so many blocks, too.
pub(crate) struct Sparing<'a>(&'a AtomicU64);

impl Drop for Sparing<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
