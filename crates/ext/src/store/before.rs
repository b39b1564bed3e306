//! What a block was before an operation changed it (FSMAC III.C: the original version), for undoing it and for finding out what is new.
//!
//! Who says which bytes it changes has the sub-blocks kept that these are in, and the block is changed in place; of who does not, it is kept as
//! a whole.

use std::ops::Range;

use super::{Block, Kind};

/// What a block was as a whole: its kind, its bytes, and whether they were nowhere else.
pub(super) type Whole = (Kind, Block, bool);

pub(super) enum Before {
    /// Nothing, if it was no metadata.
    Whole(Option<Whole>),
    /// What it is now, but for these sub-blocks.
    Parts(Parts),
}

pub(super) struct Parts {
    was_dirty: bool,
    kept: Vec<(usize, Box<[u8]>)>,
}

impl Parts {
    pub(super) fn new(was_dirty: bool) -> Parts {
        Parts { was_dirty, kept: Vec::new() }
    }

    /// Keeps those sub-blocks of `part` bytes that a range is in, before it is changed for the first time.
    pub(super) fn keep(&mut self, block: &[u8], range: &Range<usize>, part: usize) {
        for n in range.start / part..range.end.div_ceil(part) {
            if self.kept.iter().all(|(kept, _)| *kept != n) {
                self.kept.push((n, block[n * part..(n + 1) * part].into()));
            }
        }
    }

    /// Makes a block what it was; gives whether it was dirty.
    pub(super) fn restore(&self, block: &mut [u8], part: usize) -> bool {
        for (n, bytes) in &self.kept {
            block[n * part..(n + 1) * part].copy_from_slice(bytes);
        }
        self.was_dirty
    }

    /// A bit for each sub-block in which a block is not what it was.
    pub(super) fn differing(&self, block: &[u8], part: usize) -> u64 {
        let differs = |(n, bytes): &&(usize, Box<[u8]>)| block[n * part..(n + 1) * part] != **bytes;
        self.kept.iter().filter(differs).fold(0, |bits, (n, _)| bits | 1 << n)
    }
}
