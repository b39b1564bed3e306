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

/// Sub-blocks as they were before an operation, of all of its blocks, one behind the other: the room for them is the next operation's, too.
pub(super) struct Kept {
    /// Bytes of a sub-block: a power of two, as blocks and inodes are.
    part: usize,
    bytes: Vec<u8>,
    /// For each which of its block it is, and which of these is the one that was kept of this block before it.
    each: Vec<(u32, u32)>,
}

/// There is none before.
const NONE: u32 = u32::MAX;

impl Kept {
    /// Nothing, of sub-blocks of `part` bytes.
    pub(super) fn new(part: usize) -> Kept {
        Kept { part, bytes: Vec::new(), each: Vec::new() }
    }

    pub(super) fn part(&self) -> usize {
        self.part
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.each.clear();
    }

    /// Keeps a sub-block, the `n`th of its block; `previous` is what was kept of that before. Where it is.
    fn push(&mut self, n: usize, bytes: &[u8], previous: u32) -> u32 {
        let at = self.each.len() as u32;
        self.bytes.extend_from_slice(bytes);
        self.each.push((n as u32, previous));
        at
    }
}

pub(super) struct Parts {
    /// Which transaction had changed the block last.
    pub(super) changed: u64,
    /// A bit for each sub-block that is kept.
    kept: u64,
    /// Where the last one is.
    last: u32,
}

impl Parts {
    pub(super) fn new(changed: u64) -> Parts {
        Parts { changed, kept: 0, last: NONE }
    }

    /// Keeps those sub-blocks that a range is in, before it is changed for the first time.
    fn keep(&mut self, into: &mut Kept, block: &[u8], range: &Range<usize>) {
        let (part, log2) = (into.part, into.part.trailing_zeros());
        for n in range.start >> log2..(range.end + part - 1) >> log2 {
            if self.kept >> n & 1 == 0 {
                self.last = into.push(n, &block[n * part..(n + 1) * part], self.last);
                self.kept |= 1 << n;
            }
        }
    }

    /// Those that are kept, and which they are.
    fn each<'a>(&self, kept: &'a Kept) -> impl Iterator<Item = (usize, &'a [u8])> + use<'a> {
        let mut next = self.last;
        std::iter::from_fn(move || {
            let at = next as usize;
            let (n, previous) = *kept.each.get(at)?;
            next = previous;
            Some((n as usize, &kept.bytes[at * kept.part..(at + 1) * kept.part]))
        })
    }

    /// Makes a block what it was.
    pub(super) fn restore(&self, kept: &Kept, block: &mut [u8]) {
        let part = kept.part;
        for (n, bytes) in self.each(kept) {
            block[n * part..(n + 1) * part].copy_from_slice(bytes);
        }
    }

    /// A bit for each sub-block in which a block is not what it was.
    pub(super) fn differing(&self, kept: &Kept, block: &[u8]) -> u64 {
        let part = kept.part;
        let differs = |(n, bytes): &(usize, &[u8])| block[n * part..(n + 1) * part] != **bytes;
        self.each(kept).filter(differs).fold(0, |bits, (n, _)| bits | 1 << n)
    }
}

/// A block that is being changed: what is asked for to be changed is kept as it was.
pub(crate) struct Changing<'a> {
    bytes: &'a mut [u8],
    parts: Option<(&'a mut Parts, &'a mut Kept)>,
}

impl<'a> Changing<'a> {
    pub(super) fn of(bytes: &'a mut [u8], before: &'a mut Before, kept: &'a mut Kept) -> Changing<'a> {
        let parts = match before {
            Before::Parts(parts) => Some((parts, kept)),
            Before::Whole(_) => None,
        };
        Changing { bytes, parts }
    }

    /// Of a block that is new: nothing is kept.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Changing<'a> {
        Changing { bytes, parts: None }
    }

    /// These bytes, to be changed.
    pub(crate) fn at(&mut self, range: Range<usize>) -> &mut [u8] {
        if let Some((parts, kept)) = &mut self.parts {
            parts.keep(kept, self.bytes, &range);
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
