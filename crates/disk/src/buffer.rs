//! Bytes in memory that a device can be handed as they are.

use std::ops::{Deref, DerefMut};

/// Where buffers begin: what any disk asks of memory that it reads or writes directly.
pub(crate) const ALIGNMENT: usize = 4096;

/// Owned bytes that begin at a multiple of 4096.
#[derive(Debug)]
pub struct Buffer {
    memory: Vec<u8>,
    /// Where in `memory` they begin. A vector that is never grown does not move.
    start: usize,
    length: usize,
}

impl Buffer {
    /// `length` zeros.
    pub fn zeroed(length: usize) -> Buffer {
        let memory = vec![0u8; length + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        assert!(start <= ALIGNMENT, "the platform can tell where memory is aligned");
        Buffer { memory, start, length }
    }

    /// A copy of `bytes`.
    pub fn of(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

/// Whether a slice begins where a device that asks for multiples of `alignment` can take it.
pub(crate) fn is_aligned(bytes: &[u8], alignment: u32) -> bool {
    alignment <= 1 || bytes.as_ptr().addr().is_multiple_of(alignment as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_begin_at_pages_and_hold_what_they_were_given() {
        for length in [0, 1, 511, 4096, 100_000] {
            let bytes: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let buffer = Buffer::of(&bytes);
            assert!(is_aligned(&buffer, ALIGNMENT as u32));
            assert_eq!(*buffer, *bytes);
        }
    }
}
