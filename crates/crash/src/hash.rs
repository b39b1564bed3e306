//! Hashes of words and lines, the same in every process.

use nvm::Line;

const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes a word into a hash.
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word ^ MIX) * 0xd6e8_feb8_6659_fd93_u128;
    (product as u64) ^ (product >> 64) as u64
}

/// Mixes bytes into a hash.
pub(crate) fn mix_bytes(hash: u64, bytes: &[u8]) -> u64 {
    let mut hash = mix(hash, bytes.len() as u64);
    // Four at a time, as one product has to wait for the one before.
    let (fours, rest) = bytes.as_chunks::<32>();
    if !fours.is_empty() {
        let mut lanes = [hash, !hash, hash ^ MIX, !hash ^ MIX];
        for four in fours {
            for (lane, word) in lanes.iter_mut().zip(four.as_chunks::<8>().0) {
                *lane = mix(*lane, u64::from_le_bytes(*word));
            }
        }
        hash = lanes.into_iter().fold(hash, mix);
    }
    for chunk in rest.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash, u64::from_le_bytes(word));
    }
    hash
}

/// The hash of some words of a line.
pub(crate) fn of_words(words: u8, bytes: &Line) -> u64 {
    if words == u8::MAX {
        // Four products that don't wait for one another.
        let (pairs, _) = bytes.as_chunks::<16>();
        let product = |(pair, key): (&[u8; 16], u64)| {
            let pair = u128::from_le_bytes(*pair);
            let (low, high) = (pair as u64 ^ mix(key, 1), (pair >> 64) as u64 ^ mix(key, 2));
            let product = u128::from(low) * u128::from(high);
            (product as u64) ^ (product >> 64) as u64
        };
        return pairs
            .iter()
            .zip(1..)
            .map(product)
            .fold(u64::MAX, |sum, product| sum.rotate_left(13) ^ product);
    }
    let all = bytes.as_chunks::<8>().0.iter().enumerate();
    let some = all.filter(|(n, _)| words >> n & 1 == 1).map(|(_, word)| u64::from_le_bytes(*word));
    some.fold(u64::from(words), mix)
}

/// Takes hashes, words of 64 bits, for what they are, and mixes all else.
#[derive(Clone, Default)]
pub(crate) struct Identity(u64);

pub(crate) type IdentityHasher = std::hash::BuildHasherDefault<Identity>;

/// Something by lines' numbers.
pub(crate) type Lines<V> = std::collections::HashMap<u32, V, IdentityHasher>;

impl std::hash::Hasher for Identity {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = mix_bytes(self.0, bytes);
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = mix(0, u64::from(number));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
