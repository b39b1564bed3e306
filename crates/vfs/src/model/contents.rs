//! A file's bytes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::BLOCK_BYTES;
use crate::SeekFrom;

/// The bytes of a file of any length: the blocks that were written. What is not in a block is zero; so are, always,
/// the bytes of the last block beyond the file's end.
#[derive(Clone, Default)]
pub(super) struct Contents {
    len: u64,
    /// Shared with copies of the file.
    blocks: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl Contents {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn block_count(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// How many blocks a write of `range` would add.
    pub(super) fn missing_blocks(&self, range: &Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let (first, last) = (range.start / BLOCK_BYTES, (range.end - 1) / BLOCK_BYTES);
        last - first + 1 - self.blocks.range(first..=last).count() as u64
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let end = self.len.min(offset.saturating_add(buf.len() as u64));
        let Some(len) = end.checked_sub(offset) else { return 0 };
        let buf = &mut buf[..len as usize];
        buf.fill(0);
        for (index, inside, piece) in pieces(offset..end) {
            if let Some(block) = self.blocks.get(&index) {
                buf[piece].copy_from_slice(&block[inside]);
            }
        }
        buf.len()
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        for (index, inside, piece) in pieces(offset..end) {
            let block = self.blocks.entry(index).or_insert_with(|| Arc::new(vec![0; BLOCK_BYTES as usize]));
            Arc::make_mut(block)[inside].copy_from_slice(&data[piece]);
        }
        self.len = self.len.max(end);
    }

    /// Makes the range zero, without changing the length. Blocks wholly in the range become holes.
    pub(super) fn zero(&mut self, range: Range<u64>) {
        let (first, last) = (range.start / BLOCK_BYTES, range.end / BLOCK_BYTES);
        let touched: Vec<u64> = self.blocks.range(first..=last).map(|(&index, _)| index).collect();
        for index in touched {
            let start = range.start.max(index * BLOCK_BYTES) - index * BLOCK_BYTES;
            let end = range.end.min((index + 1) * BLOCK_BYTES).saturating_sub(index * BLOCK_BYTES);
            if start == 0 && end == BLOCK_BYTES {
                self.blocks.remove(&index);
            } else if let Some(block) = self.blocks.get_mut(&index).filter(|_| start < end) {
                Arc::make_mut(block)[start as usize..end as usize].fill(0);
            }
        }
    }

    /// Cuts, or extends with a hole.
    pub(super) fn set_len(&mut self, len: u64) {
        self.blocks.split_off(&len.div_ceil(BLOCK_BYTES));
        if let Some(last) = self.blocks.get_mut(&(len / BLOCK_BYTES)) {
            Arc::make_mut(last)[(len % BLOCK_BYTES) as usize..].fill(0);
        }
        self.len = len;
    }

    /// The first offset that is data, or a hole; `None` if there is none.
    pub(super) fn seek(&self, from: SeekFrom) -> Option<u64> {
        match from {
            SeekFrom::Data(at) | SeekFrom::Hole(at) if at >= self.len => None,
            SeekFrom::Data(at) => {
                let (&index, _) = self.blocks.range(at / BLOCK_BYTES..).next()?;
                Some(at.max(index * BLOCK_BYTES)).filter(|&found| found < self.len)
            }
            SeekFrom::Hole(at) => {
                let mut index = at / BLOCK_BYTES;
                while self.blocks.contains_key(&index) {
                    index += 1;
                }
                Some(at.max(index * BLOCK_BYTES).min(self.len))
            }
        }
    }
}

/// Cuts a range of a file at block boundaries: each block's index, the range in the block, the range in the whole.
fn pieces(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let index = at / BLOCK_BYTES;
        let start = at % BLOCK_BYTES;
        let len = (BLOCK_BYTES - start).min(range.end - at);
        let done = (at - range.start) as usize;
        at += len;
        Some((index, start as usize..(start + len) as usize, done..done + len as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(contents: &Contents) -> Vec<u8> {
        let mut buf = vec![0xee; contents.len() as usize + 10];
        let n = contents.read(0, &mut buf);
        buf.truncate(n);
        buf
    }

    #[test]
    fn bytes_across_blocks_come_back() {
        let mut contents = Contents::default();
        let data: Vec<u8> = (0..10_000).map(|i| i as u8).collect();
        contents.write(4000, &data);
        assert_eq!(contents.len(), 14_000);
        assert_eq!(all(&contents), [vec![0; 4000], data].concat());
        assert_eq!(contents.read(14_000, &mut [0; 4]), 0);
        assert_eq!(contents.read(u64::MAX, &mut [0; 4]), 0);
    }

    #[test]
    fn what_was_cut_is_zero_when_it_is_back() {
        let mut contents = Contents::default();
        contents.write(0, &[7; 9000]);
        contents.set_len(5000);
        contents.set_len(9000);
        assert_eq!(all(&contents), [vec![7; 5000], vec![0; 4000]].concat());
        contents.set_len(4096);
        assert_eq!(contents.block_count(), 1);
        contents.set_len(0);
        assert_eq!(contents.block_count(), 0);
    }

    #[test]
    fn whole_zeroed_blocks_are_holes() {
        let mut contents = Contents::default();
        contents.write(0, &[7; 16_384]);
        contents.zero(100..12_300);
        assert_eq!(all(&contents), [vec![7; 100], vec![0; 12_200], vec![7; 4084]].concat());
        assert_eq!(contents.block_count(), 2);
        assert_eq!(contents.seek(SeekFrom::Data(5000)), Some(12_288));
        assert_eq!(contents.seek(SeekFrom::Hole(0)), Some(4096));
        assert_eq!(contents.seek(SeekFrom::Hole(13_000)), Some(16_384));
        assert_eq!(contents.seek(SeekFrom::Data(16_384)), None);
        contents.zero(4096..4096);
        contents.zero(12_288..12_288);
        assert_eq!(contents.block_count(), 2);
        contents.set_len(30_000);
        assert_eq!(contents.seek(SeekFrom::Data(16_384)), None);
        assert_eq!(contents.seek(SeekFrom::Hole(20_000)), Some(20_000));
    }

    #[test]
    fn missing_blocks_are_counted() {
        let mut contents = Contents::default();
        contents.write(4096, b"x");
        assert_eq!(contents.missing_blocks(&(0..1)), 1);
        assert_eq!(contents.missing_blocks(&(4095..8193)), 2);
        assert_eq!(contents.missing_blocks(&(5000..5000)), 0);
    }
}
