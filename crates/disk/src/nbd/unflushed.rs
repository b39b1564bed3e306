//! What a server was given and has not flushed: it may be lost with the server.

use std::collections::VecDeque;

/// Writes since the last flush, in order.
#[derive(Default)]
pub(super) struct Unflushed {
    writes: VecDeque<(u64, Box<[u8]>)>,
    /// Number of the first of them.
    first: u64,
    bytes: usize,
}

impl Unflushed {
    pub(super) fn push(&mut self, at: u64, bytes: &[u8]) {
        self.bytes += bytes.len();
        self.writes.push_back((at, bytes.into()));
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where each begins, and its bytes.
    pub(super) fn writes(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.writes.iter().map(|(at, bytes)| (*at, &bytes[..]))
    }

    pub(super) fn overlaps(&self, at: u64, length: usize) -> bool {
        self.writes().any(|(other, bytes)| at < other + bytes.len() as u64 && other < at + length as u64)
    }

    /// The number behind the last.
    pub(super) fn last(&self) -> u64 {
        self.first + self.writes.len() as u64
    }

    /// Those before number `last` are durable: each is told, with its number and where it begins, and forgotten.
    pub(super) fn flushed(&mut self, last: u64, mut tell: impl FnMut(u64, u64, &[u8])) {
        while self.first < last
            && let Some((at, bytes)) = self.writes.pop_front()
        {
            tell(self.first, at, &bytes);
            self.first += 1;
            self.bytes -= bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_of_what_was_written_before_it_began() {
        let mut unflushed = Unflushed::default();
        unflushed.push(0, &[1; 512]);
        let (last, mut told) = (unflushed.last(), Vec::new());
        unflushed.push(512, &[2; 1024]);
        unflushed.flushed(last, |number, at, bytes| told.push((number, at, bytes.len())));
        assert_eq!((told, unflushed.bytes()), (vec![(0, 0, 512)], 1024));
        // Another that began before it, and ends behind it.
        unflushed.flushed(last, |_, _, _| panic!("it was flushed"));
        assert!(unflushed.overlaps(1000, 1) && unflushed.overlaps(500, 13));
        assert!(!unflushed.overlaps(500, 12) && !unflushed.overlaps(1536, 9));
        assert_eq!(unflushed.writes().map(|(at, _)| at).collect::<Vec<_>>(), [512]);
    }
}
