//! Hints on large files ([`crate::hints`]): where a block's pointer and its bytes probably are, asked for before anybody gets there.
//!
//! The way to a block goes from the inode through its map to a direct node, each time by way of the NAT. In a file of a GiB all of
//! that is in the caches but what lies at its end, the pointer, and then the bytes. A hint says in which block a direct
//! node was, and where its first block would be if its blocks lay side by side: so both come while the locks are taken and
//! the way is gone.

use std::cell::Cell;

use nvm::LINE;

use super::{IN_DIRECT, POINTED};
use crate::geometry::BLOCK;
use crate::hints::{self, Hint};
use crate::node::HEADER;
use crate::pointer::DataPointer;
use crate::reader::Reader;

/// Blocks up to this one need no hints: the pointers to so many fit the caches.
const HINTED: u64 = POINTED + 8 * IN_DIRECT;

/// How a thread's hints on where bytes are did of late.
#[derive(Clone, Copy)]
struct Guesses {
    /// One more for each that was right, two less for each that was not; from 0 to [`LUCK_MAX`].
    luck: u8,
    /// How many were not, as far as 4 bits tell.
    wrong: u8,
}
const LUCK_MAX: u8 = 16;
/// With less luck, bytes are not asked for: a line in vain costs more than one in time gains.
const LUCKY: u8 = 8;

impl Guesses {
    const NONE: Guesses = Guesses { luck: 0, wrong: 0 };

    /// Counts one more; whether the hint is to be mended. Not for each that is wrong: who reads a file that was written in random order
    /// would store to the line of its hint each time, and nothing that he could say there is right.
    fn count(&mut self, is_right: bool) -> bool {
        if is_right {
            self.luck = (self.luck + 1).min(LUCK_MAX);
            return false;
        }
        self.luck = self.luck.saturating_sub(2);
        self.wrong = (self.wrong + 1) % 16;
        self.wrong == 0
    }
}

/// Counts a guess of this thread, as [`Guesses::count`] does.
#[inline]
fn is_to_be_mended(is_right: bool) -> bool {
    let mut guesses = GUESSES.get();
    let is_to_be_mended = guesses.count(is_right);
    GUESSES.set(guesses);
    is_to_be_mended
}

thread_local! {
    static GUESSES: Cell<Guesses> = const { Cell::new(Guesses::NONE) };
}

/// Under what the hint on a block's direct node is noted, and in which slot of the node its pointer is. `None` for a block that needs no
/// hint.
#[inline]
fn place(ino: u32, index: u64) -> Option<(u64, u32)> {
    if index < HINTED {
        return None;
    }
    let (node, slot) = ((index - POINTED) / IN_DIRECT, (index - POINTED) % IN_DIRECT);
    Some((hints::hash(ino, node), slot as u32))
}

impl Reader {
    /// Asks for the pointer to the block that has byte `offset` of a file; and, if `with_bytes`, for what is there from this byte on,
    /// unless the thread's hints on that were wrong of late, as they are of a file that was written in random order.
    #[inline]
    pub(crate) fn ask_for_block(&self, ino: u32, offset: u64, with_bytes: bool) {
        let Some((hash, slot)) = place(ino, offset / BLOCK) else { return };
        let Some(Hint { number: first, block }) = self.leaf_hints.get(hash) else { return };
        let (geometry, region) = (&self.medium.geometry, &self.medium.region);
        if geometry.in_main(block) {
            let pointer = HEADER as u64 + u64::from(slot) * 8;
            [0, pointer].into_iter().for_each(|at| region.prefetch(block * BLOCK + at));
        }
        let data = u64::from(first.wrapping_add(slot));
        if with_bytes && GUESSES.get().luck >= LUCKY && geometry.in_main(data) {
            // Two lines: what follows them the processor asks for by itself.
            let within = offset % BLOCK;
            let lines = (within..BLOCK.min(within + 2 * LINE)).step_by(LINE as usize);
            lines.for_each(|at| region.prefetch(data * BLOCK + at));
        }
    }

    /// Notes that the `pointer` of block `index` of a file is in a direct node in block `node`; a hole says nothing of the others. Only who
    /// `reads` tells how good guesses are, and mends them: what is written over is about to be elsewhere.
    #[inline]
    pub(crate) fn note_leaf(&self, ino: u32, index: u64, node: u64, pointer: DataPointer, reads: bool) {
        let Some((hash, slot)) = place(ino, index) else { return };
        // Beyond 16 TiB a hint has no room for numbers of blocks.
        if pointer.is_hole() || (pointer.block() | node) >> 32 != 0 {
            return;
        }
        let first = (pointer.block() as u32).wrapping_sub(slot);
        let is_known = self
            .leaf_hints
            .get(hash)
            .is_some_and(|hint| hint.block == node && !(reads && is_to_be_mended(hint.number == first)));
        if !is_known {
            self.leaf_hints.set(hash, &Hint { number: first, block: node });
        }
    }
}

#[cfg(test)]
mod tests {
    use vfs::{Caller, Handle, OpenFlags, ROOT_INO};

    use super::*;
    use crate::core::Core;
    use crate::geometry::SEGMENT_BLOCKS;
    use crate::index;
    use crate::{MountOptions, format};

    const BEGIN: u64 = HINTED * BLOCK;
    const PIECE: usize = 1 << 20;

    /// A volume with a file that begins with a hole, and has 4 MiB, piece by piece, where hints begin.
    fn volume() -> (Core, u32, Handle) {
        let options = MountOptions { background: false, ..MountOptions::default() };
        let core = format::new_in_memory(64 << 20, &options);
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let made = core.create(&Caller::root(), ROOT_INO, b"file", 0o644, flags).unwrap();
        for piece in 0..4 {
            let at = BEGIN + piece * PIECE as u64;
            assert_eq!(core.write(&Caller::root(), made.handle, at, &[piece as u8 + 1; PIECE]), Ok(PIECE));
        }
        (core, made.attr.ino as u32, made.handle)
    }

    fn read(core: &Core, file: Handle, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert_eq!(core.read(file, offset, &mut bytes), Ok(length));
        bytes
    }

    /// Where the direct node of a block is, and where its first block would be.
    fn truth(core: &Core, ino: u32, index: u64) -> Hint {
        let inode = core.nodes.inode(ino).unwrap();
        let (nid, pointer) = index::holder(&core.nodes, inode, index).unwrap().unwrap();
        let slot = (index - POINTED) % IN_DIRECT;
        Hint { number: (pointer.block() - slot) as u32, block: core.nodes.block_of(nid).unwrap() }
    }

    #[test]
    fn whoever_comes_to_a_block_notes_where_its_node_is() {
        let (core, ino, file) = volume();
        let index = HINTED + 300;
        let known = || core.nodes.leaf_hints.get(place(ino, index).unwrap().0);
        core.checkpoint(crate::core::NextLog::WithEpoch).unwrap();
        let before = truth(&core, ino, index);
        core.nodes.leaf_hints.clear();
        read(&core, file, index * BLOCK, 100);
        assert_eq!(known(), Some(before), "a read without a lock");
        core.nodes.leaf_hints.clear();
        core.read_slices(file, index * BLOCK, 100, &mut |_| ()).unwrap();
        assert_eq!(known(), Some(before), "a borrow");
        // The node is copied for the running epoch. One block less beside the others changes nothing of what is said of them.
        core.write(&Caller::root(), file, (index + 1) * BLOCK, &[9; BLOCK as usize]).unwrap();
        read(&core, file, index * BLOCK, 100);
        let after = truth(&core, ino, index);
        assert_eq!((known(), after.number), (Some(after), before.number));
        assert_ne!(after.block, before.block, "the node was not copied");
        assert!(core.nodes.hint_bytes() > 0);
        assert_eq!(place(ino, HINTED - 1), None);
        // Numbers of blocks that a hint has no room for.
        for (node, block) in [(1 << 32, 5000), (5000, 1 << 32)] {
            core.nodes.leaf_hints.clear();
            core.nodes.note_leaf(ino, index, node, DataPointer::written(block), true);
            assert_eq!(known(), None);
        }
        core.finish().unwrap();
    }

    #[test]
    fn bytes_are_asked_for_where_guesses_are_right() {
        let (core, _, file) = volume();
        let look = |blocks: std::ops::Range<u64>| {
            blocks.for_each(|block| drop(read(&core, file, BEGIN + block * BLOCK, 100)));
        };
        let luck = || GUESSES.get().luck;
        let write = |block: u64| {
            core.write(&Caller::root(), file, BEGIN + block * BLOCK, &[9; BLOCK as usize]).unwrap();
        };
        GUESSES.set(Guesses::NONE);
        look(0..100);
        assert_eq!(luck(), LUCK_MAX, "blocks side by side");
        (0..100).rev().for_each(write);
        look(0..100);
        assert!(luck() < LUCKY, "blocks in the order in which they were written: {}", luck());
        (0..100).for_each(write);
        look(0..100);
        assert_eq!(luck(), LUCK_MAX, "blocks side by side again, elsewhere");
        core.finish().unwrap();
    }

    #[test]
    fn wrong_hints_change_nothing() {
        let (core, ino, file) = volume();
        let geometry = &core.medium.geometry;
        let end = geometry.segment_start(geometry.segments - 1) + SEGMENT_BLOCKS;
        let blocks = [0, 1, geometry.segment_start(0), end - 1, end, u64::from(u32::MAX)];
        for (block, number) in blocks.into_iter().flat_map(|block| blocks.map(|number| (block, number))) {
            for (piece, within) in [(0u64, 0), (1, 4032), (2, 4095), (3, 17)] {
                // The last slot of a node, too, and bytes at a block's end.
                let index = HINTED + piece * (PIECE as u64 / BLOCK) + 250;
                let (hash, slot) = place(ino, index).unwrap();
                let mislead = || {
                    GUESSES.set(Guesses { luck: LUCK_MAX, ..Guesses::NONE });
                    let number = (number as u32).wrapping_sub(slot);
                    core.nodes.leaf_hints.set(hash, &Hint { number, block });
                };
                let offset = index * BLOCK + within;
                let expected = vec![piece as u8 + 1; 1];
                mislead();
                assert_eq!(read(&core, file, offset, 1), expected, "{block} {number} {piece}");
                mislead();
                core.write(&Caller::root(), file, offset, &expected).unwrap();
                mislead();
                core.read_slices(file, offset, 1, &mut |bytes| assert_eq!(bytes, expected)).unwrap();
            }
        }
        core.finish().unwrap();
    }
}
