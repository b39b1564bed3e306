//! Random numbers that a seed repeats, and sizes drawn by them.

/// SplitMix64: one word of state, good enough to choose files.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }

    /// In (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.word() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// The numbers below `count`, in an order of its own (Fisher-Yates).
    pub(crate) fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            numbers.swap(last, self.below(last as u64 + 1) as usize);
        }
        numbers
    }
}

/// How long files are, or pieces of them: bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Size {
    /// All alike.
    Exact(u64),
    /// Anything from 1 to this, all equally likely: Filebench's `appendfilerand`.
    UpTo(u64),
    /// Anything from the first to the second, all equally likely: PostMark's files.
    Between(u64, u64),
    /// Filebench's `cvar-gamma` of shape 1.5, with this mean.
    Gamma(u64),
    /// Sizes with their weights: FFSB's `size_weight`.
    Weighted(Vec<(u32, u64)>),
}

impl Size {
    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Size::Exact(bytes) => *bytes,
            Size::UpTo(most) => 1 + random.below((*most).max(1)),
            Size::Between(least, most) => least + random.below(most.saturating_sub(*least) + 1),
            Size::Gamma(mean) => {
                // Gamma(1.5) is Gamma(1), an exponential, plus Gamma(0.5), half a normal's square (Box-Muller).
                let exponential = -random.unit().ln();
                let normal =
                    (-2.0 * random.unit().ln()).sqrt() * (std::f64::consts::TAU * random.unit()).cos();
                let drawn = (exponential + normal * normal / 2.0) / 1.5 * *mean as f64;
                drawn.round().max(1.0) as u64
            }
            Size::Weighted(sizes) => {
                let all: u64 = sizes.iter().map(|(weight, _)| u64::from(*weight)).sum();
                let mut at = random.below(all.max(1));
                for (weight, bytes) in sizes {
                    match at.checked_sub(u64::from(*weight)) {
                        Some(rest) => at = rest,
                        None => return *bytes,
                    }
                }
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(size: &Size) -> f64 {
        let mut random = Random::new(7);
        (0..40_000).map(|_| size.draw(&mut random) as f64).sum::<f64>() / 40_000.0
    }

    #[test]
    fn sizes_have_the_means_of_their_distributions() {
        let near = |size: Size, expected: f64| {
            let mean = mean(&size);
            assert!((mean / expected - 1.0).abs() < 0.03, "{size:?}: {mean}, not {expected}");
        };
        near(Size::Exact(5), 5.0);
        near(Size::UpTo(1000), 500.5);
        near(Size::Between(500, 10_000), 5250.0);
        near(Size::Gamma(16 << 10), 16384.0);
        near(Size::Weighted(vec![(3, 100), (1, 500)]), 200.0);
    }

    #[test]
    fn an_order_has_every_number_once_and_a_seed_repeats_it() {
        let order = Random::new(3).shuffled(1000);
        assert_eq!(order, Random::new(3).shuffled(1000));
        assert_ne!(order, Random::new(4).shuffled(1000));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        assert_ne!(order, sorted);
    }
}
