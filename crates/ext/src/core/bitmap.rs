//! Bitmaps: which clusters and inodes of a group are in use.

use std::ops::{Deref, Range};

use vfs::Result;

use crate::checksum::{crc32c, crc32c_changed};
use crate::core::Core;
use crate::core::group::{self, Bitmap, Group};
use crate::error::corrupt;
use crate::store::{Block, Changing, Kind};
use crate::superblock::Superblock;

/// One of the two bitmaps that a group has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Clusters,
    Inodes,
}

impl Of {
    fn in_group(self, group: &mut Group) -> &mut Bitmap {
        match self {
            Of::Clusters => &mut group.blocks,
            Of::Inodes => &mut group.inodes,
        }
    }

    /// Bits that mean something, the last group's too: a checksum is of as many.
    fn bits(self, superblock: &Superblock) -> u64 {
        match self {
            Of::Clusters => superblock.clusters_per_group,
            Of::Inodes => u64::from(superblock.inodes_per_group),
        }
    }
}

/// The bitmap of clusters of a group, verified; nothing if nobody has written it.
pub(crate) fn clusters(core: &Core, group: &Group) -> Result<Option<Block>> {
    read(core, &group.blocks, Of::Clusters)
}

/// The bitmap of inodes of a group, verified; nothing if nobody has written it.
pub(crate) fn inodes(core: &Core, group: &Group) -> Result<Option<Block>> {
    read(core, &group.inodes, Of::Inodes)
}

fn read(core: &Core, bitmap: &Bitmap, of: Of) -> Result<Option<Block>> {
    if bitmap.unused {
        return Ok(None);
    }
    core.store.read(Kind::Bitmap, bitmap.block, |bytes| verify(core, bitmap, of, bytes)).map(Some)
}

/// Part of an operation: lets `with` change a bitmap of group `number`, and what the group's descriptor says. Where nobody has written
/// the bitmap it is what `initial` makes of zeros, and is written now.
pub(crate) fn change<R>(
    core: &Core,
    number: u32,
    of: Of,
    initial: impl FnOnce(&mut [u8]),
    with: impl FnOnce(&mut Bits<'_, '_>, &mut Group) -> Result<R>,
) -> Result<R> {
    let mut group = group::read(core, number)?;
    let bitmap = *of.in_group(&mut group);
    let mut sum = 0;
    let change = |bytes: &mut Changing<'_>, known: Option<u32>| {
        let mut bits = Bits { bytes, summed: summed(core, of), sum: known };
        let result = with(&mut bits, &mut group);
        sum = bits.sum.unwrap_or_else(|| checksum(core, of, bits.bytes));
        result
    };
    let result = if bitmap.unused {
        core.store.make(Kind::Bitmap, bitmap.block, |bytes| {
            initial(bytes);
            change(&mut Changing::new(bytes), None)
        })
    } else {
        // It was right when the bitmap came.
        let known = has_whole_checksum(&core.superblock).then_some(bitmap.checksum);
        let verify = |bytes: &[u8]| verify(core, &bitmap, of, bytes);
        core.store.change(Kind::Bitmap, bitmap.block, verify, |bytes| change(bytes, known))?
    }?;
    *of.in_group(&mut group) = Bitmap { unused: false, checksum: sum, ..bitmap };
    group::write(core, number, &group)?;
    Ok(result)
}

fn verify(core: &Core, bitmap: &Bitmap, of: Of, bytes: &[u8]) -> Result<()> {
    let expected = checksum(core, of, bytes);
    if !core.superblock.features.has_metadata_csum() || bitmap.checksum == expected {
        return Ok(());
    }
    let found = format_args!("{:#x}", bitmap.checksum);
    let block = format_args!("block {}", bitmap.block);
    Err(corrupt("bitmap", block, "its checksum", found, format_args!("{expected:#x}")))
}

/// The checksum that a descriptor should have of a bitmap; 0 without checksums.
fn checksum(core: &Core, of: Of, bytes: &[u8]) -> u32 {
    let superblock = &core.superblock;
    if !superblock.features.has_metadata_csum() {
        return 0;
    }
    let sum = crc32c(superblock.checksum_seed, &bytes[..summed(core, of)]);
    if has_whole_checksum(superblock) { sum } else { sum & 0xFFFF }
}

/// Bytes that the checksum of a bitmap is of.
fn summed(core: &Core, of: Of) -> usize {
    (of.bits(&core.superblock) / 8) as usize
}

/// Whether descriptors have the checksums of bitmaps as a whole: short ones have room for half of it.
fn has_whole_checksum(superblock: &Superblock) -> bool {
    superblock.features.has_metadata_csum() && superblock.descriptor_bytes >= 64
}

/// A bitmap that is being changed.
pub(crate) struct Bits<'a, 'b> {
    bytes: &'a mut Changing<'b>,
    /// Bytes that its checksum is of.
    summed: usize,
    /// The checksum, if it is known.
    sum: Option<u32>,
}

impl Bits<'_, '_> {
    /// Sets or clears these bits.
    pub(crate) fn fill(&mut self, bits: Range<u64>, set: bool) {
        let range = (bits.start / 8) as usize..bits.end.div_ceil(8) as usize;
        let bytes = self.bytes.at(range.clone());
        // What was, by its checksum alone: the rest need not be looked at.
        let known = self.sum.filter(|_| range.end <= self.summed).map(|sum| (sum, crc32c(0, bytes)));
        for n in bits {
            let (byte, bit) = (&mut bytes[(n / 8) as usize - range.start], 1 << (n % 8));
            *byte = if set { *byte | bit } else { *byte & !bit };
        }
        self.sum =
            known.map(|(sum, before)| crc32c_changed(sum, before, crc32c(0, bytes), self.summed - range.end));
    }
}

impl Deref for Bits<'_, '_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

/// Bit `n`.
pub(crate) fn is_set(bytes: &[u8], n: u64) -> bool {
    bytes[(n / 8) as usize] >> (n % 8) & 1 != 0
}

pub(crate) fn set(bytes: &mut [u8], n: u64) {
    bytes[(n / 8) as usize] |= 1 << (n % 8);
}

/// Bits `64 * n` to `64 * n + 63`, the first one lowest. Bitmaps are whole blocks, so whole words.
pub(crate) fn word(bytes: &[u8], n: u64) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    u64::from_le_bytes(words[n as usize])
}

/// The first bit from `from` on, below `end`, that is `set` or not; `end` if none is. `word` gives 64 bits at a time.
pub(crate) fn find(word: impl Fn(u64) -> u64, set: bool, from: u64, end: u64) -> u64 {
    let mut at = from;
    while at < end {
        let bits = if set { word(at / 64) } else { !word(at / 64) } >> (at % 64);
        if bits != 0 {
            return end.min(at + u64::from(bits.trailing_zeros()));
        }
        at = (at / 64 + 1) * 64;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_found_across_words() {
        let mut bytes = vec![0; 64];
        for n in (3..70).chain(200..201).chain(256..512) {
            set(&mut bytes, n);
        }
        let find = |set, from, end| find(|n| word(&bytes, n), set, from, end);
        assert_eq!([find(true, 0, 512), find(false, 3, 512), find(true, 70, 512)], [3, 70, 200]);
        assert_eq!([find(true, 70, 190), find(false, 300, 512), find(false, 0, 512)], [190, 512, 0]);
        assert_eq!([find(true, 201, 512), find(true, 500, 501), find(true, 9, 9)], [256, 500, 9]);
        assert!(is_set(&bytes, 200) && !is_set(&bytes, 199));
        let sum = Some(crc32c(5, &bytes));
        let changing = &mut Changing::new(&mut bytes);
        let mut bits = Bits { bytes: changing, summed: 64, sum };
        bits.fill(199..203, true);
        bits.fill(200..202, false);
        assert_eq!([199, 200, 201, 202].map(|n| is_set(&bits, n)), [true, false, false, true]);
        assert_eq!(bits.sum, Some(crc32c(5, &bits)));
    }
}
