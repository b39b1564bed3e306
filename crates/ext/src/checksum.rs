//! The checksums of ext: CRC-32C without its usual last step, CRC-16 of group descriptors, and CRC-32 of old journals.

/// CRC-32C over `bytes`, going on from `seed`, neither of them complemented.
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

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
    }
}
