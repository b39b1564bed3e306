//! Random choices that a seed repeats.

use std::ops::Range;

/// Steele, Lea and Flood's SplitMix64: small, quick and good enough to choose operations.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number of the range, which must not be empty.
    pub(super) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// True once in `n` times.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.within(0..n) == 0
    }

    /// One of the items, which must not be none.
    pub(super) fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.within(0..items.len() as u64) as usize]
    }

    /// A choice, by weight.
    pub(super) fn weighted<T: Copy>(&mut self, choices: &[(u64, T)]) -> T {
        let mut at = self.within(0..choices.iter().map(|choice| choice.0).sum());
        for &(weight, choice) in choices {
            if at < weight {
                return choice;
            }
            at -= weight;
        }
        unreachable!("the weights add up")
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `len` bytes that `fill` determines; 0 gives zeros.
pub(super) fn bytes(fill: u64, len: usize) -> Vec<u8> {
    if fill == 0 {
        return vec![0; len];
    }
    let words = (0..len.div_ceil(8) as u64).flat_map(|i| mix(fill.wrapping_add(i)).to_le_bytes());
    words.take(len).collect()
}
