//! CRC-32C, the checksum of everything on the medium.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

/// The checksum of `bytes`.
#[inline]
pub(crate) fn of(bytes: &[u8]) -> u32 {
    crc_fast::checksum(Crc32Iscsi, bytes) as u32
}

/// The checksum of what `crc` is the checksum of, followed by `bytes`.
#[inline]
pub(crate) fn append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appending_is_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..10_000u32).map(|n| (n * 7) as u8).collect();
        for (first, all) in [(0, 10), (5, 300), (64, 4160), (4096, 10_000), (9_999, 10_000)] {
            assert_eq!(
                append(of(&bytes[..first]), &bytes[first..all]),
                of(&bytes[..all]),
                "{first} of {all}"
            );
            assert_eq!(of(&bytes[..all]), crc32c::crc32c(&bytes[..all]));
        }
    }
}
