//! Blocks that were allocated and never written, on a disk that is full.
//!
//! **What has been allocated can be written, also when nothing is left for its map.** To write in the middle of an extent that is unwritten splits
//! it, which may take a node. Where there is no room for one, all of the extent is written as zeros and known as written: one entry stays one. The
//! kernel does the same (`EXT4_EXT_MAY_ZEROOUT`).

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

impl Volume {
    /// What became of an attempt to map what a file has in DRAM, for who tries again if it found no room and there is some now. Called without
    /// locks.
    pub(crate) fn or_zero<R>(&self, file: &Held<'_>, attempt: Result<R>) -> Result<Option<R>> {
        match attempt {
            Err(Error::NoSpace) if self.zero_unwritten(file)? => Ok(None),
            result => result.map(Some),
        }
    }

    /// Zeros for unwritten extents that have changed pages, at least one if there is any before the file's end; whether there was.
    fn zero_unwritten(&self, file: &Held<'_>) -> Result<bool> {
        // Nobody else has bytes on their way to these blocks, and whoever had any has them written again.
        let _queue = self.queue()?;
        let mut state = file.alone();
        let extents = self.unwritten(file, &state)?;
        if extents.is_empty() {
            return Ok(false);
        }
        state.cuts += 1;
        self.write_zeros(&extents)?;
        self.change(|core| {
            let mut inode = inode::read(core, file.number)?;
            for (from, _, blocks) in &extents {
                map::mark_written(core, &mut inode, *from..from + blocks)?;
            }
            inode::write(core, &inode)
        })?;
        for (from, start, blocks) in extents {
            let pages = state.pages.range(from..from + blocks);
            let numbers: Vec<u64> = pages.map(|(number, _)| number).collect();
            for number in numbers {
                state.pages.settle(number, Site::Mapped(start + (number - from)));
            }
        }
        Ok(true)
    }

    /// Such extents: block of the file, of the disk, and how many.
    fn unwritten(&self, file: &Held<'_>, state: &State) -> Result<Vec<(u64, u64, u64)>> {
        self.reading(|| {
            let inode = inode::read(&self.core, file.number)?;
            // Behind the end nothing is known as written.
            let end = inode.size / self.core.superblock.block;
            let (mut extents, mut zeroed, mut at) = (Vec::new(), 0, 0);
            while at < end && zeroed < ZEROED_MAX {
                let Run { place, blocks } = map::run_to_write(&self.core, &inode, at)?;
                let range = at..at.saturating_add(blocks);
                let is_changed = || state.pages.changed(at).next().is_some_and(|(n, _)| range.contains(&n));
                if let Place::Unwritten(start) = place
                    && range.end <= end
                    && is_changed()
                {
                    extents.push((at, start, blocks));
                    zeroed += blocks;
                }
                at = range.end;
            }
            Ok(extents)
        })
    }

    /// Durably. Called with the queue held.
    fn write_zeros(&self, extents: &[(u64, u64, u64)]) -> Result<()> {
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
