//! The hashes by which directories are ordered: half MD4, TEA, and the first one, of signed or unsigned bytes.

/// How names are hashed: what a directory's root says, and whether bytes are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameHash {
    function: Function,
    unsigned: bool,
    seed: [u32; 4],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    Legacy,
    HalfMd4,
    Tea,
}

/// No name has this hash: it would mark the end of a directory.
const END: u32 = 0x7FFF_FFFF << 1;

impl NameHash {
    /// What `version` in a directory means: 0 to 2 the function, 3 to 5 the same of unsigned bytes. The file system says whether
    /// bytes are signed in 0 to 2.
    pub(crate) fn of_version(version: u8, unsigned: bool, seed: [u32; 4]) -> Option<NameHash> {
        let function = match version % 3 {
            _ if version > 5 => return None,
            0 => Function::Legacy,
            1 => Function::HalfMd4,
            _ => Function::Tea,
        };
        // A seed of zeros means none.
        let seed = if seed == [0; 4] { [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476] } else { seed };
        Some(NameHash { function, unsigned: unsigned || version > 2, seed })
    }

    /// A name's place in the order, an even number.
    pub(crate) fn of(&self, name: &[u8]) -> u32 {
        let hash = match self.function {
            Function::Legacy => legacy(name, self.unsigned),
            Function::HalfMd4 => {
                let mut state = self.seed;
                for chunk in chunks(name, 32) {
                    half_md4(&mut state, &self.words::<8>(chunk));
                }
                state[1]
            }
            Function::Tea => {
                let mut state = self.seed;
                for chunk in chunks(name, 16) {
                    tea(&mut state, &self.words::<4>(chunk));
                }
                state[0]
            }
        };
        match hash & !1 {
            END => END - 2,
            hash => hash,
        }
    }

    /// The words of a chunk: four characters each, what is missing filled with the length of all that is left.
    fn words<const N: usize>(&self, rest: &[u8]) -> [u32; N] {
        let length = rest.len() as u32;
        let padding = length | length << 8;
        let padding = padding | padding << 16;
        let chunk = &rest[..rest.len().min(N * 4)];
        let mut words = [padding; N];
        for (word, bytes) in words.iter_mut().zip(chunk.chunks(4)) {
            *word = bytes.iter().fold(padding, |word, byte| self.extend(*byte).wrapping_add(word << 8));
        }
        words
    }

    fn extend(&self, byte: u8) -> u32 {
        if self.unsigned { u32::from(byte) } else { i32::from(byte as i8) as u32 }
    }
}

/// What is left of a name at each step of so many bytes. An empty name has none.
fn chunks(name: &[u8], each: usize) -> impl Iterator<Item = &[u8]> {
    (0..name.len()).step_by(each).map(|at| &name[at..])
}

fn legacy(name: &[u8], unsigned: bool) -> u32 {
    let (mut hash, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
    for &byte in name {
        let value = if unsigned { i32::from(byte) } else { i32::from(byte as i8) };
        let product = value.wrapping_mul(7_152_373) as u32;
        let mut next = before.wrapping_add(hash ^ product);
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7fff_ffff);
        }
        (before, hash) = (hash, next);
    }
    hash << 1
}

/// The Tiny Encryption Algorithm, 16 rounds, used as a compression function.
fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let (mut left, mut right, mut sum) = (state[0], state[1], 0u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        let mix = |half: u32, a: u32, b: u32| {
            (half << 4).wrapping_add(a) ^ half.wrapping_add(sum) ^ (half >> 5).wrapping_add(b)
        };
        left = left.wrapping_add(mix(right, key[0], key[1]));
        right = right.wrapping_add(mix(left, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}

/// The three rounds of MD4, each with half of its steps.
fn half_md4(state: &mut [u32; 4], words: &[u32; 8]) {
    type Mix = fn(u32, u32, u32) -> u32;
    const ROUNDS: [(Mix, u32, [u32; 4], [usize; 8]); 3] = [
        (|x, y, z| z ^ (x & (y ^ z)), 0, [3, 7, 11, 19], [0, 1, 2, 3, 4, 5, 6, 7]),
        (|x, y, z| (x & y).wrapping_add((x ^ y) & z), 0x5A82_7999, [3, 5, 9, 13], [1, 3, 5, 7, 0, 2, 4, 6]),
        (|x, y, z| x ^ y ^ z, 0x6ED9_EBA1, [3, 9, 11, 15], [3, 7, 2, 6, 1, 5, 0, 4]),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (mix, constant, shifts, order) in ROUNDS {
        for (step, word) in order.into_iter().enumerate() {
            let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(words[word]).wrapping_add(constant);
            (a, b, c, d) = (d, sum.rotate_left(shifts[step % 4]), b, c);
        }
    }
    for (state, add) in state.iter_mut().zip([a, b, c, d]) {
        *state = state.wrapping_add(add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `debugfs -R "dx_hash -h VERSION -s 67452301-efcd-ab89-0022-446611335577 NAME"` has them.
    #[test]
    fn hashes_are_those_of_debugfs() {
        const NAMES: [&str; 5] = [
            "a",
            "abcdefgh",
            "exactly sixteen!",
            "exactly thirty-two bytes, is it..",
            "a name of more than thirty-two bytes, umlauts too: äöü",
        ];
        const EXPECTED: [[u32; 5]; 3] = [
            [0xe74b53e2, 0x730df612, 0x38a88f62, 0x8d97f1de, 0x5b886ace],
            [0xd13b9db2, 0xc89d81ba, 0x6f1ba33e, 0x86067a1e, 0x60eccfba],
            [0xa444ad1e, 0x2fe7659e, 0xd246890e, 0xfb1f4cec, 0x694eca46],
        ];
        let seed = [0x0123_4567, 0x89ab_cdef, 0x6644_2200, 0x7755_3311];
        for (version, expected) in (0..).zip(EXPECTED) {
            let hash = NameHash::of_version(version, false, seed).unwrap();
            assert_eq!(NAMES.map(|name| hash.of(name.as_bytes())), expected, "version {version}");
            // Bytes below 128 have no sign.
            let unsigned = NameHash::of_version(version + 3, false, seed).unwrap();
            let same = NAMES.map(|name| unsigned.of(name.as_bytes()) == hash.of(name.as_bytes()));
            assert_eq!(same, [true, true, true, true, false]);
        }
        assert!(NameHash::of_version(6, false, seed).is_none());
    }
}
