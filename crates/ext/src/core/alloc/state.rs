//! What is free, group by group, and what of it is withheld.

use std::ops::Range;

use vfs::{Error, Result};

use crate::core::{Core, Tables, bitmap, group};
use crate::features::Incompat;

/// What is kept for maps in bad cases: a part of the disk, but at least and at most so many blocks.
const KEPT_PART: u64 = 50;
const KEPT_MIN: u64 = 64;
const KEPT_MAX: u64 = 4096;
/// What a map takes for a block of data that is a piece of its own: an entry in a leaf that is half full.
const EXTENT_BYTES: u64 = 24;
/// What it takes for a block of data behind another.
const POINTER_BYTES: u64 = 4;

/// What an operation did, so that it can be undone.
#[derive(Clone, Debug)]
pub(super) enum Done {
    /// Blocks that somebody had picked are in use.
    Took(Range<u64>),
    /// Blocks that the operation itself picked are in use.
    Picked(Range<u64>),
    /// Blocks are free, and withheld.
    Freed(Range<u64>),
    /// Inodes given out: free ones and directories, as they were.
    Inodes { free: u64, directories: u64 },
    /// Of a group none of whose inodes had ever been used, the first.
    Began(u32),
}

/// A group.
#[derive(Default)]
pub(super) struct Room {
    /// Blocks that are free and not withheld.
    pub(super) available: u64,
    /// No run of available blocks is longer.
    pub(super) longest: u64,
    /// No block before this bit is available.
    pub(super) first: u64,
    /// The bitmap has been compared with the descriptor.
    pub(super) checked: bool,
    /// The bitmap of blocks is damaged, or the descriptor: no more of them are given out.
    shunned: bool,
    /// That of inodes is, or the descriptor.
    pub(super) has_no_inodes: bool,
    /// A bit for each block that is withheld, if any is, and how many are.
    withheld: Option<Box<[u64]>>,
    count: u64,
}

impl Room {
    pub(super) fn withheld(&self) -> Option<&[u64]> {
        self.withheld.as_deref()
    }
}

pub(super) struct State {
    pub(super) groups: Vec<Room>,
    /// Blocks that are free and not withheld, in all groups.
    pub(super) available: u64,
    pub(super) promised: u64,
    /// Of the withheld, those that were picked and are not in use yet: their map has yet to lead there.
    pub(super) picked: u64,
    /// Of the withheld, those that were freed by operations that have finished and are not taken to be committed.
    pub(super) freed: Vec<Range<u64>>,
    pub(super) operation: Vec<Done>,
    /// Bits for a group of which something is withheld, none of them set: mostly there is one such group, now and then.
    spare: Option<Box<[u64]>>,
    pub(super) free_inodes: u64,
    pub(super) directories: u64,
    /// Where the file system's own structures are, in order, none touching the next.
    fixed: Vec<Range<u64>>,
    layout: Layout,
}

/// Which blocks are which group's.
#[derive(Clone, Copy)]
struct Layout {
    first: u64,
    end: u64,
    per_group: u64,
}

impl Layout {
    /// The parts of `blocks` by group, as bits of its bitmap.
    fn parts(self, blocks: Range<u64>) -> impl Iterator<Item = (u32, Range<u64>)> {
        let mut at = blocks.start;
        std::iter::from_fn(move || {
            (at < blocks.end).then(|| {
                let number = (at - self.first) / self.per_group;
                let start = self.first + number * self.per_group;
                let end = blocks.end.min(start + self.per_group);
                let bits = at - start..end - start;
                at = end;
                (number as u32, bits)
            })
        })
    }
}

impl State {
    pub(super) fn load(core: &Core) -> Result<State> {
        let superblock = &core.superblock;
        let table = superblock.inode_table_blocks();
        let mut state = State {
            groups: Vec::with_capacity(superblock.groups as usize),
            available: 0,
            promised: 0,
            picked: 0,
            freed: Vec::new(),
            operation: Vec::new(),
            spare: None,
            free_inodes: 0,
            directories: 0,
            fixed: Vec::new(),
            layout: Layout {
                first: superblock.first_block,
                end: superblock.blocks,
                per_group: superblock.blocks_per_group,
            },
        };
        let mut fixed: Vec<Range<u64>> =
            superblock.mmp_block.map(|block| block..block + 1).into_iter().collect();
        let mut damage = None;
        for number in 0..superblock.groups {
            let start = superblock.group_start(number);
            fixed.push(start..start + superblock.group_reserve(number));
            let group = match group::read(core, number) {
                // Others are sound. Where it has its bitmaps and inodes is not known: they are in use in the bitmap of a sound one, or in its own.
                Err(Error::Corrupt(what)) => {
                    core.met.pass_over(number, &what);
                    damage = Some(what);
                    state.groups.push(Room { shunned: true, has_no_inodes: true, ..Room::default() });
                    continue;
                }
                group => group?,
            };
            fixed.extend([
                group.blocks.block..group.blocks.block + 1,
                group.inodes.block..group.inodes.block + 1,
                group.inode_table..group.inode_table + table,
            ]);
            let available = group.free_clusters;
            state.groups.push(Room { available, longest: available, ..Room::default() });
            state.available += available;
            state.free_inodes += u64::from(group.free_inodes);
            state.directories += u64::from(group.directories);
        }
        if let Some(what) = damage
            && state.groups.iter().all(|room| room.shunned)
        {
            return Err(Error::Corrupt(what));
        }
        fixed.retain(|blocks| !blocks.is_empty());
        fixed.sort_by_key(|blocks| blocks.start);
        for blocks in fixed {
            match state.fixed.last_mut() {
                Some(last) if last.end >= blocks.start => last.end = last.end.max(blocks.end),
                _ => state.fixed.push(blocks),
            }
        }
        Ok(state)
    }

    /// The group of a block of the disk, and its bit there.
    pub(super) fn locate(&self, block: u64) -> (u32, u64) {
        let block = block.clamp(self.layout.first, self.layout.end - 1) - self.layout.first;
        ((block / self.layout.per_group) as u32, block % self.layout.per_group)
    }

    /// The parts of `blocks` by group, as bits of its bitmap.
    pub(super) fn parts(&self, blocks: Range<u64>) -> impl Iterator<Item = (u32, Range<u64>)> + use<> {
        self.layout.parts(blocks)
    }

    /// The blocks that a group has.
    pub(super) fn blocks_of(&self, number: u32) -> Range<u64> {
        let start = self.layout.first + u64::from(number) * self.layout.per_group;
        start..self.layout.end.min(start + self.layout.per_group)
    }

    /// Bits of a group, as blocks of the disk.
    pub(super) fn on_disk(&self, number: u32, bits: &Range<u64>) -> Range<u64> {
        let start = self.blocks_of(number).start;
        start + bits.start..start + bits.end
    }

    pub(super) fn is_fixed(&self, blocks: &Range<u64>) -> bool {
        let behind = self.fixed.partition_point(|fixed| fixed.end <= blocks.start);
        self.fixed.get(behind).is_some_and(|fixed| fixed.start < blocks.end)
    }

    /// The bits of fixed metadata in a group.
    pub(super) fn fixed_in(&self, number: u32) -> impl Iterator<Item = Range<u64>> {
        let blocks = self.blocks_of(number);
        let first = self.fixed.partition_point(|fixed| fixed.end <= blocks.start);
        let here = self.fixed[first..].iter().take_while(move |fixed| fixed.start < blocks.end);
        let Range { start, end } = self.blocks_of(number);
        here.map(move |fixed| fixed.start.max(start) - start..fixed.end.min(end) - start)
    }

    /// What the bitmap of a group is before anybody writes it, of zeros: fixed metadata, and what is behind the end of the group.
    pub(super) fn initial(&self, number: u32, bytes: &mut [u8]) {
        let blocks = self.blocks_of(number);
        let behind = blocks.end - blocks.start..bytes.len() as u64 * 8;
        self.fixed_in(number).chain([behind]).flatten().for_each(|n| bitmap::set(bytes, n));
    }

    /// Blocks for which there is no map yet, and those that maps may need for them.
    pub(super) fn spoken_for(&self, core: &Core, more: u64) -> u64 {
        let promised = self.promised + more;
        promised + kept(core, promised + self.picked)
    }

    /// Available blocks are not, from now on.
    pub(super) fn withhold(&mut self, blocks: Range<u64>) {
        self.available -= blocks.end - blocks.start;
        for (number, bits) in self.parts(blocks) {
            self.groups[number as usize].available -= bits.end - bits.start;
            self.mark(number, bits);
        }
    }

    /// Withheld blocks are available, from now on.
    pub(super) fn let_go(&mut self, blocks: Range<u64>) {
        for (number, bits) in self.parts(blocks) {
            let room = &mut self.groups[number as usize];
            if !room.shunned {
                self.available += bits.end - bits.start;
                room.available += bits.end - bits.start;
                // It may join what is on both sides.
                room.longest = room.available;
                room.first = room.first.min(bits.start);
            }
            self.unmark(number, bits);
        }
    }

    /// No more blocks of a group are given out: what is free there is not known.
    pub(super) fn shun(&mut self, number: u32) {
        let room = &mut self.groups[number as usize];
        self.available -= room.available;
        (room.available, room.longest, room.shunned) = (0, 0, true);
    }

    /// Blocks that are in use stop being so, and are withheld.
    pub(super) fn mark(&mut self, number: u32, bits: Range<u64>) {
        let words = self.layout.per_group.div_ceil(64) as usize;
        let room = &mut self.groups[number as usize];
        room.count += bits.end - bits.start;
        let spare = &mut self.spare;
        let withheld =
            room.withheld.get_or_insert_with(|| spare.take().unwrap_or_else(|| vec![0; words].into()));
        each_word(bits, |n, mask| withheld[n] |= mask);
    }

    /// Withheld blocks are in use.
    pub(super) fn unmark(&mut self, number: u32, bits: Range<u64>) {
        let room = &mut self.groups[number as usize];
        room.count -= bits.end - bits.start;
        if let Some(withheld) = &mut room.withheld {
            each_word(bits, |n, mask| withheld[n] &= !mask);
        }
        if room.count == 0 {
            self.spare = room.withheld.take();
        }
    }

    pub(super) fn finish(&mut self) {
        for done in self.operation.drain(..) {
            if let Done::Freed(blocks) = done {
                self.freed.push(blocks);
            }
        }
    }

    pub(super) fn undo(&mut self, tables: &Tables) {
        let operation = std::mem::take(&mut self.operation);
        for done in operation.into_iter().rev() {
            match done {
                Done::Took(blocks) => {
                    self.picked += blocks.end - blocks.start;
                    self.parts(blocks).for_each(|(number, bits)| self.mark(number, bits));
                }
                Done::Picked(blocks) => {
                    self.parts(blocks.clone()).for_each(|(number, bits)| self.mark(number, bits));
                    self.let_go(blocks);
                }
                Done::Freed(blocks) => {
                    self.parts(blocks).for_each(|(number, bits)| self.unmark(number, bits));
                }
                Done::Inodes { free, directories } => {
                    (self.free_inodes, self.directories) = (free, directories);
                }
                Done::Began(number) => tables.forget(number),
            }
        }
    }
}

/// Blocks that are kept for the maps of `data` blocks of data. In the worst case each block has a leaf of its own, in a tree that grows, or
/// three blocks of pointers. That would be most of the disk for what is large; so beyond what data in one piece needs, or data in pieces
/// of a block one behind the other, no more is kept than a part of the disk.
fn kept(core: &Core, data: u64) -> u64 {
    let superblock = &core.superblock;
    let beyond = (superblock.blocks / KEPT_PART).clamp(KEPT_MIN, KEPT_MAX);
    match (data, superblock.features.incompat.contains(Incompat::EXTENTS)) {
        (0, _) => 0,
        (_, true) => (data + 4).min(data.div_ceil(superblock.block / EXTENT_BYTES) + beyond),
        (_, false) => (data * 3).min(data.div_ceil(superblock.block / POINTER_BYTES) + beyond),
    }
}

/// The words that bits are in, and which bits of them they are.
fn each_word(bits: Range<u64>, mut with: impl FnMut(usize, u64)) {
    let mut at = bits.start;
    while at < bits.end {
        let end = bits.end.min((at / 64 + 1) * 64);
        with((at / 64) as usize, !0 >> (64 - (end - at)) << (at % 64));
        at = end;
    }
}
