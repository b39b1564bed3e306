//! Blocks of files that the disk refuses: their bytes are in frames, as metadata's are, until it takes them.
//!
//! The log of NVM has synced bytes until the disk has them. A sector that cannot be written would keep a half of it, and with it everybody, for
//! ever. So what the disk refuses when a half is drained comes here before the half is retired: **the frame is the block then**. Who reads
//! the block reads the frame; what is written to the block later takes the ways that all bytes take, and when the disk has taken it, durably, the frame is
//! released at once, since it would stand above what is newer. A block that is freed takes its frame along, before it is given out.

use std::ops::Range;

use nvm::Purpose;

use super::{Frame, Frames, Relaxed};
use crate::kind::Kind;

/// One frame of how many may hold what the disk refuses.
const SHARE: u64 = 16;

/// A block that the disk refuses.
pub(super) struct Refused {
    /// Its frame.
    pub(super) n: u32,
    /// The disk has taken something newer, or the same, which no flush has followed yet.
    pub(super) is_old: bool,
}

impl Frames {
    /// How many blocks the disk refuses.
    pub(crate) fn refused_count(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// How many more blocks that it refuses have room.
    pub(crate) fn room_for_refused(&self) -> u64 {
        self.refused_most().saturating_sub(self.refused_count())
    }

    fn refused_most(&self) -> u64 {
        (self.area.frames / SHARE).max(1)
    }

    /// Whether the disk refuses anything.
    pub(crate) fn has_refused(&self) -> bool {
        self.refused_count() > 0
    }

    /// Keeps the bytes of a block of a file that the disk has refused; false if there is no room. Durable behind the next checkpoint; until then the
    /// log must have what is new of it.
    #[must_use]
    pub(crate) fn keep(&self, block: u64, bytes: &[u8]) -> bool {
        let state = &mut *self.state.write();
        let known = state.refused.get(&block).map(|refused| refused.n);
        let n = match known {
            Some(n) => n,
            None if state.refused.len() as u64 >= self.refused_most() => return false,
            None => {
                let spare = if state.free.len() > state.reserved { state.free.pop() } else { None };
                let Some(n) = spare.or_else(|| self.give_up_clean(state)) else { return false };
                state.forget(block);
                state.put(n, Kind::Refused, block, false);
                // Not among those that go to the disk when frames are wanted.
                state.frames[n as usize].dirty = true;
                n
            }
        };
        state.refused.insert(block, Refused { n, is_old: false });
        self.store(state, n, u64::MAX, bytes);
        self.count_refused(state.refused.len());
        true
    }

    /// Hands `visit` the bytes of at most `most` blocks that the disk refuses, from one on and then from the first on; gives the last of them.
    pub(crate) fn refused(&self, from: u64, most: usize, mut visit: impl FnMut(u64, &[u8])) -> Option<u64> {
        let state = self.state.read();
        let mut bytes = vec![0; self.area.block as usize];
        let mut last = None;
        // What the disk has newer bytes of, about to be durable, is not written over.
        let around = state.refused.range(from..).chain(state.refused.range(..from));
        for (block, refused) in around.filter(|(_, refused)| !refused.is_old).take(most) {
            self.region.read(self.area.frame_at(refused.n), &mut bytes);
            visit(*block, &bytes);
            last = Some(*block);
        }
        last
    }

    /// Those of a range of blocks that the disk refuses, and their bytes.
    pub(crate) fn refused_among(&self, range: Range<u64>) -> vfs::Result<Vec<(u64, Box<[u8]>)>> {
        let state = self.state.read();
        let found = state.refused.range(range).map(|(block, refused)| {
            let mut bytes = vec![0; self.area.block as usize].into_boxed_slice();
            self.region.read(self.area.frame_at(refused.n), &mut bytes);
            (*block, bytes)
        });
        let found = found.collect();
        drop(state);
        self.check()?;
        Ok(found)
    }

    /// The disk has taken a block, by who writes to it alone; whether it had refused it. A flush is to follow, and then
    /// [`Frames::release`], or [`Frames::refused_still`] if that fails.
    pub(crate) fn taken(&self, block: u64) -> bool {
        let refused = &mut self.state.write().refused;
        refused.get_mut(&block).map(|refused| refused.is_old = true).is_some()
    }

    /// What the disk took of a block is not durable for certain.
    pub(crate) fn refused_still(&self, blocks: &[u64]) {
        let refused = &mut self.state.write().refused;
        for block in blocks {
            refused.entry(*block).and_modify(|refused| refused.is_old = false);
        }
    }

    /// What the disk took of these blocks is durable: their frames hold nothing any more, durably.
    pub(crate) fn release(&self, blocks: &[u64]) {
        let state = &mut *self.state.write();
        for block in blocks {
            let Some(refused) = state.refused.get(block).filter(|refused| refused.is_old) else { continue };
            let n = refused.n;
            state.refused.remove(block);
            state.of.remove(block);
            let frame = &mut state.frames[n as usize];
            let listed = std::mem::replace(frame, Frame { stored: frame.stored, ..Frame::free() }).listed;
            if listed {
                self.region.persist_u64(Purpose::Allocation, self.area.entry_at(n), 0).ignore();
            }
            state.free.push(n);
        }
        self.count_refused(state.refused.len());
    }

    /// These blocks are nobody's any more, as the log says durably.
    pub(crate) fn forget_refused(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        if !self.has_refused() {
            return;
        }
        let state = &mut *self.state.write();
        for range in ranges {
            let blocks: Vec<u64> = state.refused.range(range).map(|(block, _)| *block).collect();
            blocks.into_iter().for_each(|block| state.forget(block));
        }
        self.count_refused(state.refused.len());
    }

    /// Called with the state held alone.
    fn count_refused(&self, count: usize) {
        self.refused.store(count as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;
    use std::sync::Arc;

    use disk::{Disk, Memory};
    use nvm::{OpenOptions, VolumeKind, Zone};

    use super::super::super::area::Area;
    use super::*;

    /// A frame that had been a dirty directory's was taken for that, still: a file's bytes went to the disk as metadata, and the frame counted as
    /// clean, and became another block's.
    #[test]
    fn a_refused_block_had_the_frame_of_a_dirty_one() {
        const BLOCK: u64 = 1024;
        let zone = Zone::anonymous(16 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("disk", VolumeKind::Ext, Some(10 << 20)).unwrap();
        let mut area = Area::lay_out(&region, BLOCK, 128, 8 << 20).unwrap();
        (area.frames, area.disk_bytes) = (4, BLOCK * 64);
        let memory = Arc::new(Memory::new(vec![0; (BLOCK * 64) as usize], false));
        let frames = Frames::empty(region, area, Arc::new(Disk::over("disk".into(), memory.clone())));
        let bytes = |fill| vec![fill; BLOCK as usize];
        let directories: Vec<_> = (10..14).map(|block| (block, bytes(block as u8))).collect();
        frames.reserve(10..14).unwrap();
        frames.apply(
            directories.iter().map(|(block, bytes)| (*block, Kind::Bitmap, u64::MAX, &bytes[..])),
            &[],
        );
        frames.apply([], &[10, 11, 12, 13]);
        frames.checkpoint().ignore();
        assert!(frames.keep(20, &bytes(20)));
        frames.write_all_to_disk().unwrap();
        frames.reserve(once(30)).unwrap();
        frames.apply(once((30, Kind::Bitmap, u64::MAX, &bytes(30)[..])), &[]);
        assert_eq!(frames.refused_among(20..21).unwrap(), [(20, bytes(20).into())]);
        assert!(nvm::is_zero(&memory.image()), "nothing was dirty");
    }
}
