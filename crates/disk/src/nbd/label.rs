//! The beginning of a disk, by which it is told from another: there are tables of partitions, and superblocks with their UUIDs.

use std::io;

use super::unflushed::Unflushed;
use crate::SECTOR;
use crate::device::Geometry;

/// Bytes that are compared.
const BYTES: u64 = 4096;
/// Most sectors in doubt. Of more, different ones, which only a server can cause that goes on refusing writes, the oldest are forgotten.
const DOUBTS_MAX: usize = 4096;

/// The first bytes of a disk.
pub(super) struct Label {
    /// As they are durable.
    known: Vec<u8>,
    /// What sectors may be instead, because a write was not answered well: it may have been carried out, or begun.
    doubts: Vec<Doubt>,
}

struct Doubt {
    at: u64,
    bytes: [u8; SECTOR as usize],
    /// Number of the first unflushed write that began later.
    behind: u64,
}

impl Label {
    fn bytes_of(geometry: Geometry) -> u64 {
        BYTES.max(geometry.sector.into()).min(geometry.bytes)
    }

    /// Whether a write from a byte on touches it.
    pub(super) fn begins_within(geometry: Geometry, at: u64) -> bool {
        at < Label::bytes_of(geometry)
    }

    /// Reads it by `read`, from a byte on.
    pub(super) fn read(
        geometry: Geometry,
        read: impl FnOnce(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<Label> {
        let length = Label::bytes_of(geometry);
        let mut bytes = vec![0; length as usize];
        if length > 0 {
            let unknowable = |error: io::Error| {
                let what =
                    format!("its first {length} bytes, by which it is known again, cannot be read: {error}");
                io::Error::new(error.kind(), what)
            };
            read(0, &mut bytes).map_err(unknowable)?;
        }
        Ok(Label { known: bytes, doubts: Vec::new() })
    }

    /// A write is about to be sent, and numbers from `behind` on are of later ones. No other write of the same sectors may be sent before it is
    /// answered: of two at once nobody knows which the disk has at the end.
    pub(super) fn doubt(&mut self, at: u64, bytes: &[u8], behind: u64) {
        for (at, bytes) in sectors(at, bytes).take_while(|(at, _)| *at < self.known.len() as u64) {
            self.doubts.retain(|doubt| doubt.at != at || doubt.bytes != *bytes);
            self.doubts.push(Doubt { at, bytes: *bytes, behind });
        }
        let too_many = self.doubts.len().saturating_sub(DOUBTS_MAX);
        self.doubts.drain(..too_many);
    }

    /// The write that was last in doubt was answered well: it has been carried out, and is unflushed or durable.
    pub(super) fn answered(&mut self, at: u64, bytes: &[u8]) {
        for (at, bytes) in sectors(at, bytes).take_while(|(at, _)| *at < self.known.len() as u64) {
            self.doubts.retain(|doubt| doubt.at != at || doubt.bytes != *bytes);
        }
    }

    /// What was written is durable. The number is the write's if it was unflushed: what was in doubt before it began is no more.
    pub(super) fn durable(&mut self, number: Option<u64>, at: u64, bytes: &[u8]) {
        let Some(place) = usize::try_from(at).ok().and_then(|at| self.known.get_mut(at..)) else { return };
        place.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        let end = at + bytes.len() as u64;
        let is_older = |doubt: &Doubt| number.is_none_or(|number| doubt.behind <= number);
        self.doubts.retain(|doubt| !(at..end).contains(&doubt.at) || !is_older(doubt));
    }

    /// Whether a disk that begins with `found` can be this one: each sector as it was durable, or as something unflushed or in doubt made it.
    pub(super) fn is_of(&self, found: Label, unflushed: &Unflushed) -> bool {
        let (known, found) = (&self.known, &found.known);
        let sector = SECTOR as usize;
        let mut may_be: Vec<bool> =
            known.chunks(sector).zip(found.chunks(sector)).map(|(known, found)| known == found).collect();
        let unflushed = unflushed.writes().flat_map(|(at, bytes)| sectors(at, bytes));
        for (at, bytes) in unflushed.chain(self.doubts.iter().map(|doubt| (doubt.at, &doubt.bytes))) {
            if let (Some(may_be), Some(found)) =
                (may_be.get_mut((at / SECTOR) as usize), found.get(at as usize..))
            {
                *may_be |= found.starts_with(bytes);
            }
        }
        !known.is_empty() && known.len() == found.len() && may_be.iter().all(|may_be| *may_be)
    }
}

/// Where each sector of a write begins, and its bytes: writes are of whole ones.
fn sectors(at: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8; SECTOR as usize])> {
    (at..).step_by(SECTOR as usize).zip(bytes.as_chunks().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(change: impl FnOnce(&mut Vec<u8>)) -> Label {
        let mut bytes = vec![0; BYTES as usize];
        change(&mut bytes);
        Label { known: bytes, doubts: Vec::new() }
    }

    #[test]
    fn a_disk_is_known_by_what_was_durable_and_what_may_be() {
        let (mut known, mut unflushed) = (label(|bytes| bytes[1000] = 1), Unflushed::default());
        assert!(known.is_of(label(|bytes| bytes[1000] = 1), &unflushed));
        assert!(!known.is_of(label(|_| {}), &unflushed), "another disk");
        unflushed.push(512, &[2; 1024]);
        unflushed.push(1024, &[3; 512]);
        // Each sector for itself: some writes are there and some are not.
        let torn = |first: u8, second: u8| {
            label(|bytes| {
                bytes[512..1024].fill(first);
                bytes[1024..1536].fill(second);
            })
        };
        assert!(known.is_of(torn(2, 0), &unflushed) && known.is_of(torn(2, 2), &unflushed));
        assert!(known.is_of(torn(2, 3), &unflushed) && !known.is_of(torn(3, 3), &unflushed));
        let last = unflushed.last();
        unflushed.flushed(last, |number, at, bytes| known.durable(Some(number), at, bytes));
        assert!(known.is_of(torn(2, 3), &unflushed) && !known.is_of(torn(2, 2), &unflushed));
    }

    #[test]
    fn what_is_in_doubt_may_be_there_until_something_later_is_durable() {
        let (mut known, mut unflushed) = (label(|_| {}), Unflushed::default());
        let with = |first: u8, second: u8| {
            label(|bytes| {
                bytes[1024..1536].fill(first);
                bytes[1536..2048].fill(second);
            })
        };
        unflushed.push(1024, &[1; 512]);
        // Not answered well: each sector for itself.
        known.doubt(1024, &[2; 1024], unflushed.last());
        for (first, second) in [(0, 0), (1, 0), (2, 2), (1, 2), (2, 0)] {
            assert!(known.is_of(with(first, second), &unflushed), "{first} {second}");
        }
        assert!(!known.is_of(with(0, 1), &unflushed) && !known.is_of(with(3, 2), &unflushed));
        // What is durable is from before: the doubt is about what is there now.
        let last = unflushed.last();
        unflushed.flushed(last, |number, at, bytes| known.durable(Some(number), at, bytes));
        assert!(known.is_of(with(1, 0), &unflushed) && known.is_of(with(2, 2), &unflushed));
        // Answered well later, of one sector.
        known.doubt(1024, &[4; 512], unflushed.last());
        known.answered(1024, &[4; 512]);
        unflushed.push(1024, &[4; 512]);
        assert!(known.is_of(with(2, 2), &unflushed) && known.is_of(with(4, 0), &unflushed));
        let last = unflushed.last();
        unflushed.flushed(last, |number, at, bytes| known.durable(Some(number), at, bytes));
        assert!(known.is_of(with(4, 2), &unflushed) && !known.is_of(with(2, 2), &unflushed));
        // Durable at once.
        known.doubt(1536, &[5; 512], unflushed.last());
        known.durable(None, 1536, &[5; 512]);
        assert!(known.is_of(with(4, 5), &unflushed) && !known.is_of(with(4, 2), &unflushed));
    }

    #[test]
    fn doubts_are_bounded_and_the_same_counts_once() {
        let mut known = label(|_| {});
        for n in 0..2 * DOUBTS_MAX as u64 {
            known.doubt(0, &[n as u8; 512], n);
        }
        assert_eq!(known.doubts.len(), 256);
        for n in 0..2 * DOUBTS_MAX {
            let mut bytes = [0; 512];
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            known.doubt(512, &bytes, 0);
        }
        assert_eq!(known.doubts.len(), DOUBTS_MAX);
        known.doubt(BYTES, &[1; 512], 0);
        assert!(known.doubts.iter().all(|doubt| doubt.at == 512), "only what is compared");
    }
}
