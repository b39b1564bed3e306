//! What a block was before an operation changed it (FSMAC III.C: the original version), for undoing it and for finding out what is new.
//!
//! A block is changed in place, through a [`Changing`] alone, which keeps the sub-blocks that are changed as they were. One that is made or given
//! up is kept as a whole, which costs nothing: nobody changes it then.

use std::ops::{Deref, Range};

use super::{Block, Kind};

/// What a block was as a whole: its kind, its bytes, and which transaction had changed it last.
pub(super) type Whole = (Kind, Block, u64);

pub(super) enum Before {
    /// Nothing, if it was no metadata, or nothing is kept.
    Whole(Option<Whole>),
    /// What it is now, but for these sub-blocks.
    Parts(Parts),
}

pub(super) struct Parts {
    /// Which transaction had changed the block last.
    pub(super) changed: u64,
    /// A bit for each sub-block that is kept.
    kept: u64,
    /// Their bytes, in order.
    bytes: Vec<u8>,
}

impl Parts {
    pub(super) fn new(changed: u64) -> Parts {
        Parts { changed, kept: 0, bytes: Vec::new() }
    }

    /// Keeps those sub-blocks of `part` bytes that a range is in, before it is changed for the first time.
    fn keep(&mut self, block: &[u8], range: &Range<usize>, part: usize) {
        for n in range.start / part..range.end.div_ceil(part) {
            if self.kept >> n & 1 == 0 {
                let at = (self.kept & !(!0 << n)).count_ones() as usize * part;
                self.bytes.extend_from_slice(&block[n * part..(n + 1) * part]);
                self.bytes[at..].rotate_right(part);
                self.kept |= 1 << n;
            }
        }
    }

    /// Those that are kept, and which they are.
    fn each(&self, part: usize) -> impl Iterator<Item = (usize, &[u8])> {
        let mut rest = self.kept;
        self.bytes.chunks_exact(part).map(move |bytes| {
            let n = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            (n, bytes)
        })
    }

    /// Makes a block what it was.
    pub(super) fn restore(&self, block: &mut [u8], part: usize) {
        for (n, bytes) in self.each(part) {
            block[n * part..(n + 1) * part].copy_from_slice(bytes);
        }
    }

    /// A bit for each sub-block in which a block is not what it was.
    pub(super) fn differing(&self, block: &[u8], part: usize) -> u64 {
        let differs = |(n, bytes): &(usize, &[u8])| block[n * part..(n + 1) * part] != **bytes;
        self.each(part).filter(differs).fold(0, |bits, (n, _)| bits | 1 << n)
    }
}

/// A block that is being changed: what is asked for to be changed is kept as it was.
pub(crate) struct Changing<'a> {
    bytes: &'a mut [u8],
    parts: Option<&'a mut Parts>,
    part: usize,
}

impl<'a> Changing<'a> {
    /// Of sub-blocks of `part` bytes.
    pub(super) fn of(bytes: &'a mut [u8], before: &'a mut Before, part: usize) -> Changing<'a> {
        let parts = match before {
            Before::Parts(parts) => Some(parts),
            Before::Whole(_) => None,
        };
        Changing { bytes, parts, part }
    }

    /// Of a block that is new: nothing is kept.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Changing<'a> {
        Changing { part: bytes.len(), bytes, parts: None }
    }

    /// These bytes, to be changed.
    pub(crate) fn at(&mut self, range: Range<usize>) -> &mut [u8] {
        if let Some(parts) = &mut self.parts {
            parts.keep(self.bytes, &range, self.part);
        }
        &mut self.bytes[range]
    }

    /// The whole block, to be changed.
    pub(crate) fn all(&mut self) -> &mut [u8] {
        self.at(0..self.bytes.len())
    }
}

impl Deref for Changing<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}
