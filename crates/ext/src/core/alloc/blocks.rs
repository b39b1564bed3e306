//! Blocks: picked, taken, freed.

use std::ops::Range;
use std::sync::atomic::Ordering;

use vfs::{Error, Result};

use super::state::{Done, State};
use crate::core::{Core, bitmap, group};
use crate::error::corrupt;

/// A run as long as this is long enough for anybody.
const ENOUGH: u64 = 2048;
/// A shorter run than wanted is as good, if it goes on where the goal is.
const NEXT_TO_GOAL: u64 = 16;
/// Groups that are looked through for a run that is long enough, before the longest one found will do.
const GROUPS: usize = 8;

/// Picks at least one and at most `most` neighbouring free blocks, near block `goal` of the disk if there are some. Nothing in the
/// metadata changes: nobody else is given them until [`take`] or [`give_up`]. Needs no operation, but the caller holds `tree`. Of what is
/// promised nothing is spared: who picks has a promise.
/// [`Error::NoSpace`] goes away behind a commit, if that makes durable what freed some.
pub(crate) fn pick(core: &Core, goal: u64, most: u64) -> Result<Range<u64>> {
    let state = &mut *core.space.state(core)?;
    let picked = state.pick(core, goal, most)?;
    state.picked += length(&picked);
    Ok(picked)
}

/// Gives picked blocks back.
pub(crate) fn give_up(core: &Core, blocks: Range<u64>) {
    // Who has picked has loaded it.
    if let Some(mut state) = core.space.known() {
        state.picked -= length(&blocks);
    }
    core.space.let_go(&[blocks]);
}

/// Part of an operation: picked blocks are in use.
pub(crate) fn take(core: &Core, blocks: Range<u64>) -> Result<()> {
    let state = &mut *core.space.state(core)?;
    state.take(core, blocks, |blocks, state| {
        state.picked -= length(&blocks);
        Done::Took(blocks)
    })
}

/// Part of an operation: a block for metadata, picked and taken. What is promised to data is spared, and what the operation's caller
/// may not have.
pub(crate) fn metadata(core: &Core, goal: u64) -> Result<u64> {
    let spared = core.space.spared.load(Ordering::Relaxed);
    let state = &mut *core.space.state(core)?;
    if state.spoken_for(core, 0) + spared >= state.available {
        return Err(Error::NoSpace);
    }
    state.metadata(core, goal)
}

/// Part of an operation: as [`metadata`], for a map: promises have been made with that in mind.
pub(crate) fn node(core: &Core, goal: u64) -> Result<u64> {
    core.space.state(core)?.metadata(core, goal)
}

/// Part of an operation: these blocks are free, and [`super::Space`] keeps them from being given out. For metadata,
/// [`crate::store::Store::forget`] is called, too, by who knows that they are.
pub(crate) fn free(core: &Core, blocks: Range<u64>) -> Result<()> {
    let wrong = |found: &str| {
        let of = format_args!("blocks {} to {}", blocks.start, blocks.end - 1);
        Err(corrupt("map", of, "what they are", found, "a file's"))
    };
    if !core.superblock.has_blocks(blocks.start, blocks.end - blocks.start) {
        return wrong("not on the disk");
    }
    let state = &mut *core.space.state(core)?;
    if state.is_fixed(&blocks) {
        return wrong("the file system's own structures");
    }
    for (number, bits) in state.parts(blocks.clone()) {
        let initial = |bytes: &mut [u8]| state.initial(number, bytes);
        bitmap::change(core, number, bitmap::Of::Clusters, initial, |bytes, group| {
            state.check(number, bytes, group.free_clusters)?;
            let first_clear = bitmap::find(|n| bitmap::word(bytes, n), false, bits.start, bits.end);
            if first_clear < bits.end {
                return wrong("free");
            }
            group.free_clusters += bits.end - bits.start;
            bytes.fill(bits.clone(), false);
            Ok(())
        })?;
        state.groups[number as usize].checked = true;
        state.mark(number, bits.clone());
        state.operation.push(Done::Freed(state.on_disk(number, &bits)));
        core.store.note_freed();
    }
    Ok(())
}

impl State {
    fn pick(&mut self, core: &Core, goal: u64, most: u64) -> Result<Range<u64>> {
        let (home, from) = self.locate(goal);
        let want = most.min(ENOUGH);
        let mut best = 0..0;
        let mut looked = 0;
        // A run that is long enough, in a group where one may be; failing that, whatever there is.
        for least in [want, 1] {
            for n in 0..self.groups.len() {
                let number = (home as usize + n) % self.groups.len();
                if self.groups[number].longest < least {
                    continue;
                }
                let goal = (n == 0).then_some(from);
                let found = match self.search(core, number as u32, goal, want, most) {
                    // Others have room, and are sound.
                    Err(Error::Corrupt(what)) => {
                        core.met.note(&what);
                        self.shun(number as u32);
                        continue;
                    }
                    found => found?,
                };
                let next = goal.map(|from| self.on_disk(home, &(from..from)).start);
                let is_next = !found.is_empty() && next == Some(found.start);
                if is_next || length(&found) > length(&best) {
                    best = found;
                }
                looked += 1;
                if is_next || length(&best) >= least || looked >= GROUPS && !best.is_empty() {
                    break;
                }
            }
            if !best.is_empty() {
                self.withhold(best.clone());
                return Ok(best);
            }
        }
        Err(Error::NoSpace)
    }

    /// A run of `want` blocks or more, but not more than `most`, in a group; otherwise the longest one. The one at bit `goal`, if that
    /// is long enough or somewhat long; otherwise behind it, if possible.
    fn search(
        &mut self,
        core: &Core,
        number: u32,
        goal: Option<u64>,
        want: u64,
        most: u64,
    ) -> Result<Range<u64>> {
        let group = group::read(core, number)?;
        let block = bitmap::clusters(core, &group)?;
        let mut initial = Vec::new();
        let bytes = block.as_deref().unwrap_or_else(|| {
            initial.resize(core.superblock.block as usize, 0);
            self.initial(number, &mut initial);
            &initial
        });
        self.check(number, bytes, group.free_clusters)?;
        let end = length(&self.blocks_of(number));
        let room = &self.groups[number as usize];
        let withheld = room.withheld().unwrap_or(&[]);
        let used = |n: u64| bitmap::word(bytes, n) | withheld.get(n as usize).copied().unwrap_or(0);
        let run = |start: u64| start..bitmap::find(used, true, start, end.min(start + most));
        let mut longest = 0..0;
        if let Some(goal) = goal {
            let found = run(goal);
            if length(&found) >= want.min(NEXT_TO_GOAL) {
                return Ok(self.on_disk(number, &found));
            }
        }
        let first = bitmap::find(used, false, room.first, end);
        for from in goal.into_iter().chain([0]) {
            let mut at = bitmap::find(used, false, from.max(first), end);
            while at < end {
                let found = run(at);
                at = bitmap::find(used, false, found.end, end);
                if length(&found) > length(&longest) {
                    longest = found;
                }
                if length(&longest) >= want {
                    self.groups[number as usize].first = first;
                    return Ok(self.on_disk(number, &longest));
                }
            }
        }
        // All was seen, and nothing was cut at `most`, which is no less than what was wanted.
        let room = &mut self.groups[number as usize];
        (room.longest, room.first, room.checked) = (length(&longest), first, true);
        Ok(self.on_disk(number, &longest))
    }

    /// A bitmap is believed, once, that has as many free blocks as the descriptor says, and none where fixed metadata is.
    fn check(&self, number: u32, bytes: &[u8], expected: u64) -> Result<()> {
        if self.groups[number as usize].checked {
            return Ok(());
        }
        let bits = length(&self.blocks_of(number));
        let words = (0..bits.div_ceil(64)).map(|n| {
            let here = !0 >> (64 - (bits - n * 64).min(64));
            u64::from((!bitmap::word(bytes, n) & here).count_ones())
        });
        let free: u64 = words.sum();
        let of = format_args!("group {number}");
        if free != expected {
            return Err(corrupt("bitmap", of, "its free blocks", free, expected));
        }
        for fixed in self.fixed_in(number) {
            let clear = bitmap::find(|n| bitmap::word(bytes, n), false, fixed.start, fixed.end);
            if clear < fixed.end {
                let block = self.on_disk(number, &(clear..clear)).start;
                let field = format!("block {block}, which holds the file system's own structures,");
                return Err(corrupt("bitmap", of, &field, "free", "in use"));
            }
        }
        Ok(())
    }

    /// Sets the bits of blocks that are withheld.
    fn take(
        &mut self,
        core: &Core,
        blocks: Range<u64>,
        done: fn(Range<u64>, &mut State) -> Done,
    ) -> Result<()> {
        for (number, bits) in self.parts(blocks) {
            let initial = |bytes: &mut [u8]| self.initial(number, bytes);
            bitmap::change(core, number, bitmap::Of::Clusters, initial, |bytes, group| {
                self.check(number, bytes, group.free_clusters)?;
                group.free_clusters -= length(&bits);
                bytes.fill(bits.clone(), true);
                Ok(())
            })?;
            self.groups[number as usize].checked = true;
            self.unmark(number, bits.clone());
            let done = done(self.on_disk(number, &bits), self);
            self.operation.push(done);
        }
        Ok(())
    }

    fn metadata(&mut self, core: &Core, goal: u64) -> Result<u64> {
        let block = self.pick(core, goal, 1)?;
        let taken = self.take(core, block.clone(), |block, _| Done::Picked(block));
        if taken.is_err() {
            self.let_go(block.clone());
        }
        taken.map(|()| block.start)
    }
}

fn length(blocks: &Range<u64>) -> u64 {
    blocks.end - blocks.start
}
