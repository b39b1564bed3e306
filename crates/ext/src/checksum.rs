//! The checksums of ext: CRC-32C without its usual last step, CRC-16 of group descriptors, and CRC-32 of old journals.

use crc_fast::{CrcAlgorithm, Digest};

/// From so many bytes on it is faster to multiply than to have the processor's own instruction take eight at a time.
const LONG: usize = 512;

/// CRC-32C over `bytes`, going on from `seed`, neither of them complemented.
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < LONG {
        return !crc32c::crc32c_append(!seed, bytes);
    }
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, seed.into());
    digest.update(bytes);
    !(digest.finalize() as u32)
}

/// What [`crc32c`] of bytes becomes when some of them change: those by themselves, going on from 0, came to `before` and come to `after`, and
/// `behind` bytes follow them, no more than a block can have. CRCs are linear: what differs is as it would be with zeros behind it.
pub(crate) fn crc32c_changed(sum: u32, before: u32, after: u32, behind: usize) -> u32 {
    sum ^ product(before ^ after, SHIFTS[behind])
}

/// The polynomial of CRC-32C, its highest power in the lowest bit, as all of its remainders.
const CASTAGNOLI: u32 = 0x82F6_3B78;

/// `factor` times x, as remainders by the polynomial.
const fn shifted(factor: u32) -> u32 {
    factor >> 1 ^ (CASTAGNOLI & (factor & 1).wrapping_neg())
}

/// Two remainders' product.
fn product(one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    for power in (0..u32::BITS).rev() {
        product ^= other & (one >> power & 1).wrapping_neg();
        other = shifted(other);
    }
    product
}

/// By which a remainder is multiplied when so many zeros follow: powers of x to the 8th.
static SHIFTS: [u32; 4097] = {
    let mut table = [1 << 31; 4097];
    let mut n = 1;
    while n < table.len() {
        let mut value = table[n - 1];
        let mut bit = 0;
        while bit < 8 {
            value = shifted(value);
            bit += 1;
        }
        table[n] = value;
        n += 1;
    }
    table
};

const CRC16: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut n = 0;
    while n < 256 {
        let mut value = n as u16;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 != 0 { value >> 1 ^ 0xA001 } else { value >> 1 };
            bit += 1;
        }
        table[n] = value;
        n += 1;
    }
    table
};

/// CRC-16 (ANSI, reflected) over `bytes`, going on from `seed`.
pub(crate) fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, byte| crc >> 8 ^ CRC16[usize::from(crc as u8 ^ byte)])
}

const CRC32_BIG: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut n = 0;
    while n < 256 {
        let mut value = (n as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            value = if value >> 31 != 0 { value << 1 ^ 0x04C1_1DB7 } else { value << 1 };
            bit += 1;
        }
        table[n] = value;
        n += 1;
    }
    table
};

/// CRC-32 with the highest bit first over `bytes`, going on from `seed`, neither complemented.
pub(crate) fn crc32_big(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, byte| crc << 8 ^ CRC32_BIG[(crc >> 24) as usize ^ usize::from(*byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the catalogue of CRC algorithms, for "123456789".
    #[test]
    fn checksums_are_the_published_ones() {
        let check = b"123456789";
        assert_eq!(!crc32c(!0, check), 0xE306_9283);
        assert_eq!(crc16(0xFFFF, check), 0x4B37, "CRC-16/MODBUS");
        assert_eq!(crc32_big(!0, check), 0x0376_E6E7, "CRC-32/MPEG-2");
        assert_eq!(crc32c(crc32c(7, b"1234"), b"56789"), crc32c(7, check));
        // By either way.
        let long: Vec<u8> = (0..3 * LONG as u32).map(|n| (n * 7) as u8).collect();
        for length in [LONG, LONG + 1, LONG + 77, 3 * LONG] {
            let pieces = long[..length].chunks(LONG - 1);
            assert_eq!(pieces.fold(7, crc32c), crc32c(7, &long[..length]), "{length}");
        }
    }

    #[test]
    fn a_change_is_all_that_a_checksum_has_to_be_told() {
        let bytes: Vec<u8> = (0..4096u32).map(|n| ((n * n) >> 3) as u8).collect();
        for (at, length) in [(0, 1), (0, 4096), (4095, 1), (17, 300), (2048, 8), (1, 0), (0, 0)] {
            let mut changed = bytes.clone();
            let part = at..at + length;
            changed[part.clone()].iter_mut().for_each(|byte| *byte = !*byte ^ 0x25);
            let [before, after] = [&bytes, &changed].map(|bytes| crc32c(0, &bytes[part.clone()]));
            assert_eq!(
                crc32c_changed(crc32c(9, &bytes), before, after, 4096 - part.end),
                crc32c(9, &changed)
            );
        }
    }
}
