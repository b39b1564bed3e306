//! Random choices that a seed repeats.

/// Steele, Lea and Flood's SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    /// Says its seed, so that a failure can be repeated.
    pub(crate) fn new(seed: u64) -> Random {
        eprintln!("seed {seed}");
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Bytes that a name may have.
    #[allow(dead_code, reason = "for tests of the inside")]
    pub(crate) fn name(&mut self, length: u64) -> Vec<u8> {
        let byte = |random: &mut Random| match random.below(8) {
            0 => 1 + random.below(b'.' as u64) as u8,
            1 => 128 + random.below(128) as u8,
            _ => b'a' + random.below(26) as u8,
        };
        (0..length).map(|_| byte(self)).collect()
    }
}
