//! Hashes of lines and of sets of lines, the same in every process.

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

/// The hash of one line's place and contents. Hashes of sets of lines are sums of these.
pub(crate) fn of_line(line: u32, bytes: &Line) -> u64 {
    mix_bytes(u64::from(line).wrapping_mul(MIX), bytes)
}

/// What the hash of a set of lines grows by when a line changes.
pub(crate) fn of_change(line: u32, before: &Line, now: &Line) -> u64 {
    of_line(line, now).wrapping_sub(of_line(line, before))
}

/// Takes hashes for what they are.
#[derive(Clone, Default)]
pub(crate) struct Identity(u64);

pub(crate) type IdentityHasher = std::hash::BuildHasherDefault<Identity>;

impl std::hash::Hasher for Identity {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = mix_bytes(self.0, bytes);
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
