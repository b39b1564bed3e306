//! Stands in for the crate of this name while fuzzing: all checksums are equal.

/// The checksum of anything.
pub fn crc32c(_: &[u8]) -> u32 {
    0
}

/// The checksum of anything with anything after it.
pub fn crc32c_append(_: u32, _: &[u8]) -> u32 {
    0
}
