//! Blocks that were allocated and never written, on a disk that is full.
//!
//! **What has been allocated can be written, also when nothing is left for its map.** To write in the middle of an extent that is unwritten splits
//! it, which may take a node. Where there is no room for one, all of the extent is written as zeros and known as written: one entry stays one. The
//! kernel does the same (`EXT4_EXT_MAY_ZEROOUT`).
//!
//! Behind the file's end nothing may be known as written, so an extent that goes on there (`FALLOC_FL_KEEP_SIZE`) is made zeros and stays what it is.
//! The operation that maps a page in it, and has the length cover that, marks with it all that is before it in the extent: no piece of it is left between,
//! and behind what is written already not even one entry more is needed.

use disk::Purpose;
use vfs::{Error, Result};

use crate::core::inode;
use crate::error::io;
use crate::files::{Held, State};
use crate::map::{self, Place, Run};
use crate::pages::Site;
use crate::volume::Volume;

/// Blocks that are zeroed before others have their turn.
const ZEROED_MAX: u64 = 1 << 15;
/// Bytes of a request.
const PIECE: u64 = 1 << 20;

/// Unwritten extents, or what of them is before the last page that has changed: block of the file, of the disk, and how many.
#[derive(Default)]
struct Unwritten {
    /// Before the file's end.
    within: Vec<(u64, u64, u64)>,
    /// That go on behind it.
    across: Vec<(u64, u64, u64)>,
}

impl State {
    /// These pages have been mapped, and with them what was zeros before them.
    pub(crate) fn map_zeroed(&mut self, pages: &[(u64, Site)]) {
        for range in &mut self.zeroed {
            let mut here = pages
                .iter()
                .filter(|(number, site)| range.contains(number) && matches!(site, Site::Unwritten(_)));
            let Some((last, _)) = here.next_back() else { continue };
            let numbers: Vec<u64> =
                self.pages.range(range.start..last + 1).map(|(number, _)| number).collect();
            numbers.into_iter().for_each(|number| self.pages.map(number));
            range.start = last + 1;
        }
        self.zeroed.retain(|range| !range.is_empty());
    }
}

impl Volume {
    /// What became of an attempt to map what a file has in DRAM, for who tries again if it found no room and there is some now. Called without
    /// locks.
    pub(crate) fn or_zero<R>(&self, file: &Held<'_>, attempt: Result<R>) -> Result<Option<R>> {
        match attempt {
            Err(Error::NoSpace) if self.with_log(|| self.zero_unwritten(file))? => Ok(None),
            result => result.map(Some),
        }
    }

    /// Zeros for unwritten extents that have changed pages, at least one if there is any that is not zeros yet; whether there was.
    fn zero_unwritten(&self, file: &Held<'_>) -> Result<bool> {
        // Nobody else has bytes on their way to these blocks, and whoever had any has them written again.
        let _queue = self.queue()?;
        let mut state = file.alone();
        let Unwritten { within, across } = self.unwritten(file, &state)?;
        if within.is_empty() && across.is_empty() {
            return Ok(false);
        }
        state.cuts += 1;
        self.write_zeros(within.iter().chain(&across))?;
        self.change(|core| {
            let mut inode = inode::read(core, file.number)?;
            for (from, _, blocks) in &within {
                map::mark_written(core, &mut inode, *from..from + blocks)?;
            }
            inode::write(core, &inode)
        })?;
        state.zeroed.extend(across.iter().map(|(from, _, blocks)| *from..from + blocks));
        for (from, start, blocks) in within {
            let pages = state.pages.range(from..from + blocks);
            let numbers: Vec<u64> = pages.map(|(number, _)| number).collect();
            for number in numbers {
                state.pages.settle(number, Site::Mapped(start + (number - from)));
            }
        }
        Ok(true)
    }

    /// Those that have changed pages, and are not zeros yet.
    fn unwritten(&self, file: &Held<'_>, state: &State) -> Result<Unwritten> {
        self.reading(|| {
            let inode = inode::read(&self.core, file.number)?;
            let block = self.core.superblock.block;
            // Behind the disk's end nothing is known as written, and behind the newest one nothing has changed.
            let written_end = inode.size / block;
            let end = state.size.unwrap_or(0).max(inode.size).div_ceil(block);
            let (mut found, mut zeroed, mut at) = (Unwritten::default(), 0, 0);
            // Each may be in a leaf of its own.
            let most = map::leaves_max(&self.core) as usize;
            while at < end && zeroed < ZEROED_MAX && found.within.len() < most {
                let Run { place, blocks } = map::run_to_write(&self.core, &inode, at)?;
                let range = at..at.saturating_add(blocks);
                if let Place::Unwritten(start) = place
                    && let Some(last) = state.pages.last_changed(range.clone())
                {
                    if range.end <= written_end {
                        found.within.push((at, start, blocks));
                        zeroed += blocks;
                    } else if !state.zeroed.iter().any(|known| known.contains(&last)) {
                        found.across.push((at, start, last + 1 - at));
                        zeroed += last + 1 - at;
                    }
                }
                at = range.end;
            }
            Ok(found)
        })
    }

    /// Durably. Called with the queue held.
    fn write_zeros<'a>(&self, extents: impl Iterator<Item = &'a (u64, u64, u64)>) -> Result<()> {
        let (disk, block) = (self.disk(), self.core.superblock.block);
        let frames = self.home.as_ref().map(|home| &home.frames);
        let since = disk.since();
        let zeros = vec![0; PIECE as usize];
        let mut taken = Vec::new();
        for (_, start, blocks) in extents {
            let (mut at, end) = (start * block, (start + blocks) * block);
            while at < end {
                let piece = &zeros[..PIECE.min(end - at) as usize];
                disk.write(Purpose::Data, at, piece).map_err(|error| io(&error))?;
                at += piece.len() as u64;
            }
            for block in *start..start + blocks {
                self.core.store.clean.forget(block);
                taken.extend(frames.is_some_and(|frames| frames.taken(block)).then_some(block));
            }
        }
        let flushed = disk.flush_since(since).map_err(|error| io(&error));
        match (&flushed, frames) {
            (Ok(()), Some(frames)) => frames.release(&taken),
            (Err(_), Some(frames)) => frames.refused_still(&taken),
            (_, None) => {}
        }
        flushed
    }
}
