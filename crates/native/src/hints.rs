//! Hints: where something of a large directory or file was when somebody last came there.
//!
//! The way from a name to an inode's attributes goes through the trie's tables and the NAT to a bucket, its tags, the entry, and
//! again through the NAT to the inode: each address is in what comes before, and among 10^6 names none of it is in the caches. So a
//! directory that has outgrown them has hints: for a name, its inode and the block that has it; for the upper bits of a
//! key, the bucket and the block that has it. With these, what lies at the end of the way is asked for at its beginning.
//!
//! *A hint is never believed.* Of an inode it only says what to ask for. In the bucket it names the entry is looked for first, and
//! found only if it is there, and the bucket one that the NAT knows and that belongs to the directory
//! ([`crate::directory`]); else the way goes through the trie. So hints need not be taken back, they may be torn or lost, and
//! nothing of them is on the medium.
//!
//! The table grows with what it is told (linear hashing): whenever a line gets full, the next of the older lines gives half of
//! its hints to a new one, so no operation pays for more than that.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Hints in a line.
const WAYS: usize = 5;
/// Lines of the smallest table, and as many as are made at a time.
const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;
/// Bytes of a chunk.
const CHUNK_BYTES: u64 = (CHUNK * size_of::<Line>()) as u64;
/// The largest table: 32 MiB, for some two million hints.
pub(crate) const BYTES_MAX: u64 = CHUNK_BYTES << 9;

/// What of so many bytes a table takes at most.
pub(crate) fn fitting(bytes: u64) -> u64 {
    bytes.min(BYTES_MAX) / CHUNK_BYTES * CHUNK_BYTES
}

/// What was found, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint {
    /// An inode's number, a bucket's NID, or the lower half of the block that a direct node's first one is in.
    pub(crate) number: u32,
    /// The block that had it; 0 if not known.
    pub(crate) block: u64,
}

#[repr(align(64))]
#[derive(Default)]
struct Line {
    /// Bits of the hash above [`CHUNK_BITS`]: they tell one hint from another, and who splits a line where each belongs.
    marks: [AtomicU32; WAYS],
    /// 0: there is none.
    numbers: [AtomicU32; WAYS],
    /// 0 if it is not known, or beyond 16 TiB.
    blocks: [AtomicU32; WAYS],
}

type Chunk = Box<[Line; CHUNK]>;

pub(crate) struct Hints {
    chunks: Box<[OnceLock<Chunk>]>,
    /// Lines in use, at least a chunk's.
    lines: AtomicU32,
}

/// A hash of a file's or directory's number, and of which of its parts: those that choose a line depend on both.
#[inline]
pub(crate) fn hash(of: u32, which: u64) -> u64 {
    let mixed = (u64::from(of) << 32 ^ which).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    // A product's lower bits know nothing of what is above them.
    mixed ^ mixed >> 32
}

#[inline]
fn mark(hash: u64) -> u32 {
    (hash >> CHUNK_BITS) as u32
}

impl Line {
    #[inline]
    fn find(&self, mark: u32) -> Option<usize> {
        (0..WAYS).find(|way| self.marks[*way].load(Relaxed) == mark && self.numbers[*way].load(Relaxed) != 0)
    }

    #[inline]
    fn get(&self, way: usize) -> Hint {
        let (number, block) = (&self.numbers[way], &self.blocks[way]);
        Hint { number: number.load(Relaxed), block: block.load(Relaxed).into() }
    }

    fn set(&self, way: usize, mark: u32, hint: &Hint) {
        self.marks[way].store(mark, Relaxed);
        self.blocks[way].store(u32::try_from(hint.block).unwrap_or(0), Relaxed);
        self.numbers[way].store(hint.number, Relaxed);
    }

    fn forget(&self, way: usize) {
        self.numbers[way].store(0, Relaxed);
    }
}

impl Hints {
    /// A table of at most `bytes`; of none, if they are too few.
    pub(crate) fn new(bytes: u64) -> Hints {
        let chunks = fitting(bytes) / CHUNK_BYTES;
        Hints { chunks: (0..chunks).map(|_| OnceLock::new()).collect(), lines: AtomicU32::new(CHUNK as u32) }
    }

    /// Whether nothing is ever remembered.
    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.chunks.is_empty()
    }

    #[inline]
    fn line(&self, number: usize) -> Option<&Line> {
        Some(&self.chunks.get(number >> CHUNK_BITS)?.get()?[number % CHUNK])
    }

    /// The line of `hash` in a table of so many.
    #[inline]
    fn number(hash: u64, lines: u32) -> usize {
        let high = u32::MAX >> (lines - 1).leading_zeros();
        let number = hash as u32 & high;
        (if number < lines { number } else { number & (high >> 1) }) as usize
    }

    /// The hint that was noted under this hash, or one much like it.
    #[inline]
    pub(crate) fn get(&self, hash: u64) -> Option<Hint> {
        let line = self.line(Self::number(hash, self.lines.load(Relaxed)))?;
        line.find(mark(hash)).map(|way| line.get(way))
    }

    /// Notes a hint; in another's place, if there is no room.
    pub(crate) fn set(&self, hash: u64, hint: &Hint) {
        let lines = self.lines.load(Relaxed);
        let number = Self::number(hash, lines);
        let Some(chunk) = self.chunks.get(number >> CHUNK_BITS) else { return };
        let line = &chunk.get_or_init(new_chunk)[number % CHUNK];
        let is_free = |way: &usize| line.numbers[*way].load(Relaxed) == 0;
        if let Some(way) = line.find(mark(hash)) {
            return line.set(way, mark(hash), hint);
        }
        let free = (0..WAYS).find(is_free);
        // Any other one: with these bits of the hash lines are not chosen.
        line.set(free.unwrap_or((hash >> 40) as usize % WAYS), mark(hash), hint);
        if free.is_none_or(|way| way + 1 == WAYS) {
            self.grow(lines);
        }
    }

    /// Forgets what was noted under this hash.
    pub(crate) fn forget(&self, hash: u64) {
        if let Some(line) = self.line(Self::number(hash, self.lines.load(Relaxed)))
            && let Some(way) = line.find(mark(hash))
        {
            line.forget(way);
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        let lines = self.chunks.iter().filter_map(OnceLock::get).flat_map(|chunk| chunk.iter());
        lines.for_each(|line| (0..WAYS).for_each(|way| line.forget(way)));
    }

    /// Adds a line to a table of `lines`, if nobody else does.
    #[cold]
    fn grow(&self, lines: u32) {
        let new = lines as usize;
        let Some(chunk) = self.chunks.get(new >> CHUNK_BITS) else { return };
        if self.lines.compare_exchange(lines, lines + 1, Relaxed, Relaxed).is_err() {
            return;
        }
        let to = &chunk.get_or_init(new_chunk)[new % CHUNK];
        // The line that had, up to now, what belongs into the new one.
        let old = new - (1 << new.ilog2());
        let Some(from) = self.line(old) else { return };
        for way in 0..WAYS {
            let mark = from.marks[way].load(Relaxed);
            let hash = u64::from(mark) << CHUNK_BITS | (old % CHUNK) as u64;
            if Self::number(hash, lines + 1) == new {
                to.set(way, mark, &from.get(way));
                from.forget(way);
            }
        }
    }

    /// Bytes of DRAM.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks.iter().filter(|chunk| chunk.get().is_some()).count() as u64 * CHUNK_BYTES
    }
}

fn new_chunk() -> Chunk {
    Box::new(std::array::from_fn(|_| Line::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> u64 {
        super::hash(0, n)
    }

    /// As many directories or files, each with one or a few hints.
    #[test]
    fn hints_of_many_do_not_displace_each_other() {
        for which in [0, 8, 1 << 20] {
            let hints = Hints::new(1 << 20);
            (1..=1000).for_each(|of| hints.set(super::hash(of, which), &hint(of)));
            let kept = (1..=1000).filter(|of| hints.get(super::hash(*of, which)) == Some(hint(*of))).count();
            assert!(kept > 950, "{kept} of 1000, {which}");
            assert_eq!(hints.bytes(), CHUNK_BYTES);
        }
    }

    fn hint(n: u32) -> Hint {
        Hint { number: n + 1, block: u64::from(n) + 11 }
    }

    /// Most are remembered, however much the table has grown since.
    #[test]
    fn a_table_grows_with_what_it_is_told() {
        let hints = Hints::new(BYTES_MAX);
        assert_eq!(hints.bytes(), 0);
        let mut kept = 0;
        for count in [1000u32, 30_000, 300_000] {
            (0..count).for_each(|n| hints.set(hash(n.into()), &hint(n)));
            kept = (0..count).filter(|n| hints.get(hash((*n).into())) == Some(hint(*n))).count();
            assert!(kept as u32 > count * 8 / 10, "{kept} of {count}");
        }
        assert!(hints.bytes() <= 300_000 * 24, "{} bytes", hints.bytes());
        (0..300_000u32).for_each(|n| hints.forget(hash(n.into())));
        let left = (0..300_000u32).filter(|n| hints.get(hash((*n).into())).is_some()).count();
        assert!(left < 300_000 - kept + 1000, "{left} of {kept} are still there");
        hints.clear();
        assert!((0..300_000u32).all(|n| hints.get(hash(n.into())).is_none()));
    }

    #[test]
    fn a_bound_is_kept() {
        for bytes in [0, CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES] {
            let hints = Hints::new(bytes);
            (0..100_000u32).for_each(|n| hints.set(hash(n.into()), &hint(n)));
            assert!(hints.bytes() <= fitting(bytes) && fitting(bytes) <= bytes);
            let kept = (0..100_000u32).filter(|n| hints.get(hash((*n).into())) == Some(hint(*n))).count();
            assert!(kept as u64 * 13 >= hints.bytes(), "{kept} in {bytes}");
        }
    }
}
