//! `fallocate`: blocks ahead of their bytes, holes, zeros.
//!
//! Where a map has extents, blocks that are allocated are unwritten, and those that are zeroed are so again; where it has pointers only, which
//! cannot say that, zeros are written, and nothing is allocated behind a file's end: a written block there would be damage.

use std::ops::Range;

use vfs::{Caller, Error, FallocateMode, Handle, OpenFlags, Result, Time, rules};

use crate::core::alloc;
use crate::core::inode::{self, Flags, Inode};
use crate::files::{Held, State};
use crate::map::{self, Place, free_some};
use crate::pages::{Page, Site};
use crate::resize::zero;
use crate::store::LOG_FULL;
use crate::volume::Volume;
use crate::write::{Draft, blocks};

/// Bytes that are zeroed at once.
const PIECE: u64 = 1 << 20;
/// Blocks that are allocated before others may commit.
const ALLOCATED_MAX: u64 = 1 << 16;
/// In so many pieces, each of which takes room in a record.
const PIECES_MAX: u64 = 1 << 10;

impl Volume {
    /// As `fallocate(2)`.
    pub(crate) fn allocate_file(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: FallocateMode,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let keeps_size = mode.contains(FallocateMode::KEEP_SIZE);
        let punches = mode.contains(FallocateMode::PUNCH_HOLE);
        let zeroes = mode.contains(FallocateMode::ZERO_RANGE);
        if length == 0 {
            return Err(Error::Invalid);
        }
        if punches && (zeroes || !keeps_size) {
            return Err(Error::NotSupported);
        }
        let (file, flags) = self.handles.get(handle)?;
        if !flags.contains(OpenFlags::WRITE) {
            return Err(Error::BadHandle);
        }
        let file = self.files.hold(file);
        self.reading_file(&file, |inode| rules::may_allocate(inode.shown_flags(), mode))?;
        if punches {
            self.punch(caller, &file, offset, length)?;
        } else {
            self.allocate(caller, &file, offset, length, keeps_size)?;
            if zeroes {
                self.zero(caller, &file, offset..offset + length)?;
            }
        }
        if flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC) { self.sync_file(&file) } else { Ok(()) }
    }

    /// Frees the blocks of a range, and fills the rest of it with zeros. A large range goes in parts. What no file can have is a hole.
    fn punch(&self, caller: &Caller, file: &Held<'_>, offset: u64, length: u64) -> Result<()> {
        let block = self.core.superblock.block;
        let most = self.reading_file(file, |inode| Ok(map::bytes_max(&self.core.superblock, inode)))?;
        let end = offset.checked_add(length).ok_or(Error::FileTooLarge)?.min(most);
        let range = offset.min(end)..end;
        self.with_room(|| {
            let mut state = file.alone();
            let mut draft = self.reading(|| {
                let inode = self.newest(&state, file.number)?;
                let mut draft = Draft::default();
                for edge in edges(range.clone(), block) {
                    self.draft(&state, &inode, edge, is_mapped, &mut draft)?;
                }
                Ok(draft)
            })?;
            draft.read(&self.core.store)?;
            self.change(|core| {
                let mut inode = inode::read(core, file.number)?;
                inode.rewritten(caller, Time::now());
                inode::write(core, &inode)
            })?;
            draft.add_to(&mut state);
            for edge in edges(range.clone(), block) {
                zero(&mut state, edge, block);
            }
            Ok(())
        })?;
        let mut from = range.start.div_ceil(block);
        let end = range.end / block;
        while from < end {
            self.commit_if_large()?;
            from = self.with_room(|| {
                let mut state = file.alone();
                let mut rest = from..end;
                let by = self.change(|core| {
                    let mut inode = inode::read(core, file.number)?;
                    free_some(core, &mut inode, &mut rest)?;
                    inode::write(core, &inode)?;
                    Ok(core.store.running().number)
                })?;
                self.drop_pages(&mut state, from..rest.start, by);
                Ok(rest.start)
            })?;
        }
        Ok(())
    }

    /// Sees to it that a range has blocks, and unless `keeps_size` that the file goes as far.
    fn allocate(
        &self,
        caller: &Caller,
        file: &Held<'_>,
        offset: u64,
        length: u64,
        keeps_size: bool,
    ) -> Result<()> {
        let (range, inode) =
            self.reading_file(file, |inode| Ok((self.range(inode, offset, length)?, inode.clone())))?;
        if inode.flags.contains(Flags::EXTENTS) {
            self.allocate_unwritten(alloc::spared_for(&self.core, caller, &inode), file, &range)?;
            return self.with_room(|| self.allocated(caller, file, &range, keeps_size));
        }
        let end = if keeps_size { range.end.min(inode.size) } else { range.end };
        let filled = range.start..end.max(range.start);
        let missing =
            self.holes(file, &file.shared(), &filled)?.iter().map(|hole| hole.end - hole.start).sum();
        // Nothing is done if it could not be finished.
        let spared = alloc::spared_for(&self.core, caller, &inode);
        self.with_room(|| self.promise_blocks(spared, missing))?;
        self.core.space.release(missing);
        self.with_room(|| self.allocated(caller, file, &range, true))?;
        self.fill(caller, file, filled, Filled::Holes { grows: !keeps_size })
    }

    /// A range has been allocated.
    fn allocated(
        &self,
        caller: &Caller,
        file: &Held<'_>,
        range: &Range<u64>,
        keeps_size: bool,
    ) -> Result<()> {
        let mut state = file.alone();
        let size = self.reading(|| Ok(self.newest(&state, file.number)?.size))?;
        let size = if keeps_size { size } else { size.max(range.end) };
        self.resize_alone(file, &mut state, size, false, &|_, inode: &mut Inode, _| {
            inode.rewritten(caller, Time::now());
            Ok(())
        })
    }

    /// Blocks of a range that are nowhere and have no page.
    pub(crate) fn holes(
        &self,
        file: &Held<'_>,
        state: &State,
        range: &Range<u64>,
    ) -> Result<Vec<Range<u64>>> {
        let block = self.core.superblock.block;
        let (mut at, end) = (range.start / block, range.end.div_ceil(block));
        self.reading(|| {
            let mut holes = Vec::new();
            let inode = inode::read(&self.core, file.number)?;
            while at < end {
                let run = map::run(&self.core, &inode, at)?;
                let to = at.saturating_add(run.blocks).min(end);
                if run.place == Place::Hole {
                    let mut from = at;
                    for (number, _) in state.pages.range(at..to) {
                        holes.push(from..number);
                        from = number + 1;
                    }
                    holes.push(from..to);
                }
                at = to;
            }
            holes.retain(|hole| !hole.is_empty());
            Ok(holes)
        })
    }

    fn allocate_unwritten(&self, spared: u64, file: &Held<'_>, range: &Range<u64>) -> Result<()> {
        let missing = self.holes(file, &file.shared(), range)?.iter().map(|hole| hole.end - hole.start).sum();
        self.with_room(|| self.promise_blocks(spared, missing))?;
        let mut promised = missing;
        let mut rest = range.clone();
        let mut result = Ok(());
        while !rest.is_empty() && result.is_ok() {
            result = self.commit_if_large().and_then(|()| self.go_on_cutting(file));
            result = result.and_then(|()| self.allocate_some(file, &mut rest, &mut promised));
            // What it has come to is found again.
            if result == Err(LOG_FULL) {
                result = self.commit_all();
            }
        }
        self.core.space.release(promised);
        result
    }

    /// Allocates blocks for holes from the start of a range on; what is left of it is left in `rest`.
    fn allocate_some(&self, file: &Held<'_>, rest: &mut Range<u64>, promised: &mut u64) -> Result<()> {
        let state = file.alone();
        self.end_cut(file, &state)?;
        let (mut allocated, mut pieces) = (0, 0);
        for mut hole in self.holes(file, &state, rest)? {
            while !hole.is_empty() {
                let count = self.allocate_run(file, &state, &hole)?;
                hole.start += count;
                allocated += count;
                pieces += 1;
                // Somebody else may have cut the file meanwhile: more is missing then than was promised.
                let kept = count.min(*promised);
                self.core.space.release(kept);
                *promised -= kept;
                if allocated >= ALLOCATED_MAX || pieces >= PIECES_MAX {
                    rest.start = (hole.start * self.core.superblock.block).min(rest.end);
                    return Ok(());
                }
            }
        }
        rest.start = rest.end;
        Ok(())
    }

    /// Allocates neighbouring blocks from the start of a hole on; how many.
    fn allocate_run(&self, file: &Held<'_>, state: &State, hole: &Range<u64>) -> Result<u64> {
        let picked = self.reading(|| {
            let inode = inode::read(&self.core, file.number)?;
            let goal = crate::write_out::goal(&self.core, inode.number, state, hole.start)?;
            alloc::pick(&self.core, goal, (hole.end - hole.start).min(ALLOCATED_MAX))
        })?;
        let count = picked.end - picked.start;
        let done = self.change(|core| {
            let mut inode = inode::read(core, file.number)?;
            alloc::take(core, picked.clone())?;
            map::insert(core, &mut inode, hole.start, picked.start, count, false)?;
            inode::write(core, &inode)
        });
        if done.is_err() {
            alloc::give_up(&self.core, picked);
        }
        done.map(|()| count)
    }

    /// Zeros for a range that has blocks.
    fn zero(&self, caller: &Caller, file: &Held<'_>, range: Range<u64>) -> Result<()> {
        let block = self.core.superblock.block;
        let (size, is_extents) =
            self.reading_file(file, |inode| Ok((inode.size, inode.flags.contains(Flags::EXTENTS))))?;
        let within = range.start..range.end.min(size).max(range.start);
        if !is_extents {
            return self.fill(caller, file, within, Filled::Blocks);
        }
        for edge in edges(within, block) {
            self.fill(caller, file, edge, Filled::Blocks)?;
        }
        let (mut from, end) = (range.start.div_ceil(block), range.end / block);
        while from < end {
            self.commit_if_large()?;
            let piece = from..end.min(from + ALLOCATED_MAX);
            from = self.with_room(|| self.unwrite(file, piece.clone()))?;
        }
        Ok(())
    }

    /// Blocks of a file are unwritten again, from the first on as many as an operation should change; up to which. What DRAM has of them alone goes,
    /// but for pages that hold a place which the map does not know, and pages that the log has, whose bytes would come back if something newer went
    /// to the disk around it: these are filled with zeros.
    fn unwrite(&self, file: &Held<'_>, mut blocks: Range<u64>) -> Result<u64> {
        let mut state = file.alone();
        blocks.end = self.reading(|| {
            let inode = inode::read(&self.core, file.number)?;
            map::some_runs(&self.core, &inode, &blocks)
        })?;
        let is_kept =
            |page: &Page| page.logged().is_some() || matches!(page.site(), Site::Promised | Site::Picked(_));
        let pages = state.pages.range(blocks.clone()).filter(|(_, page)| is_kept(page));
        let kept: Vec<u64> = pages.map(|(number, _)| number).collect();
        let mut from = blocks.start;
        let mut others = Vec::with_capacity(kept.len() + 1);
        for number in kept.iter().copied().chain([blocks.end]) {
            others.push(from..number);
            from = number + 1;
        }
        others.retain(|range| !range.is_empty());
        let by = self.change(|core| {
            let mut inode = inode::read(core, file.number)?;
            for range in &others {
                map::mark_unwritten(core, &mut inode, range.clone())?;
            }
            inode::write(core, &inode)?;
            Ok(core.store.running().number)
        })?;
        others.into_iter().for_each(|range| self.drop_pages(&mut state, range, by));
        let block = self.core.superblock.block as usize;
        kept.into_iter().for_each(|number| state.pages.change(number, 0..block, |bytes| bytes.fill(0)));
        Ok(blocks.end)
    }

    /// Fills a part of a range with zeros, before the file's end or up to which it grows: as far as there is room, if not all of it has.
    fn fill(&self, caller: &Caller, file: &Held<'_>, range: Range<u64>, filled: Filled) -> Result<()> {
        let block = self.core.superblock.block;
        let grows = filled == Filled::Holes { grows: true };
        let wants = |place| match filled {
            Filled::Holes { .. } => place == Place::Hole,
            Filled::Blocks => is_mapped(place),
        };
        let mut at = range.start;
        while at < range.end {
            let piece = at..range.end.min((at / PIECE + 1) * PIECE);
            at = piece.end;
            self.make_room(file, piece.end - piece.start)?;
            self.with_room(|| {
                let mut state = file.alone();
                if grows {
                    self.end_cut(file, &state)?;
                }
                let (piece, size, mut tail, mut draft, spared) = self.reading(|| {
                    let inode = self.newest(&state, file.number)?;
                    // Somebody may have cut it since the piece before.
                    let end = if grows { piece.end } else { piece.end.min(inode.size).max(piece.start) };
                    let (piece, mut tail, mut draft) = (piece.start..end, Draft::default(), Draft::default());
                    if grows && end > inode.size {
                        self.draft_tail(&state, &inode, inode.size, &mut tail)?;
                    }
                    self.draft(&state, &inode, piece.clone(), wants, &mut draft)?;
                    Ok((piece, inode.size, tail, draft, alloc::spared_for(&self.core, caller, &inode)))
                })?;
                if piece.is_empty() {
                    return Ok(());
                }
                tail.read(&self.core.store)?;
                draft.read(&self.core.store)?;
                self.promise_blocks(spared, draft.homeless())?;
                tail.add_to(&mut state);
                let known: Vec<u64> = match filled {
                    Filled::Blocks => Vec::new(),
                    Filled::Holes { .. } => {
                        let touched = piece.start / block..piece.end.div_ceil(block);
                        state.pages.range(touched).map(|(number, _)| number).collect()
                    }
                };
                draft.add_to(&mut state);
                for (number, within) in blocks(piece.clone(), block) {
                    if known.binary_search(&number).is_err() && state.pages.get(number).is_some() {
                        state.pages.change(number, within, |bytes| bytes.fill(0));
                    }
                }
                // As a write does it: the disk's length follows what it covers.
                if grows && piece.end > size {
                    state.size = Some(piece.end);
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// What of a range is filled with zeros.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filled {
    /// Holes; and the file `grows` with them.
    Holes { grows: bool },
    /// What has blocks, or pages.
    Blocks,
}

fn is_mapped(place: Place) -> bool {
    matches!(place, Place::Mapped(_))
}

/// What of a range is of blocks that are not wholly in it.
fn edges(range: Range<u64>, block: u64) -> impl Iterator<Item = Range<u64>> {
    let (first, last) = (range.start.next_multiple_of(block), range.end / block * block);
    let edges = if first > last { [range, 0..0] } else { [range.start..first, last..range.end] };
    edges.into_iter().filter(|edge| !edge.is_empty())
}
