//! The beginning of a disk, by which it is told from another: there are tables of partitions, and superblocks with their UUIDs.

use std::io;

use super::unflushed::Unflushed;
use crate::SECTOR;
use crate::device::Geometry;

/// Bytes that are compared.
const BYTES: u64 = 4096;

/// The first bytes of a disk.
pub(super) struct Label(Vec<u8>);

impl Label {
    /// Reads it by `read`, from a byte on.
    pub(super) fn read(
        geometry: Geometry,
        read: impl FnOnce(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<Label> {
        let length = BYTES.max(geometry.sector.into()).min(geometry.bytes);
        let mut bytes = vec![0; length as usize];
        if length > 0 {
            let unknowable = |error: io::Error| {
                let what =
                    format!("its first {length} bytes, by which it is known again, cannot be read: {error}");
                io::Error::new(error.kind(), what)
            };
            read(0, &mut bytes).map_err(unknowable)?;
        }
        Ok(Label(bytes))
    }

    /// What was written is durable.
    pub(super) fn durable(&mut self, at: u64, bytes: &[u8]) {
        if let Some(place) = usize::try_from(at).ok().and_then(|at| self.0.get_mut(at..)) {
            place.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        }
    }

    /// Whether a disk that begins with `found` can be this one: each sector as it was durable, or as something unflushed made it.
    pub(super) fn is_of(&self, found: Label, unflushed: &Unflushed) -> bool {
        let sector = SECTOR as usize;
        let mut may_be: Vec<bool> =
            self.0.chunks(sector).zip(found.0.chunks(sector)).map(|(known, found)| known == found).collect();
        let mut then = Label(self.0.clone());
        for (at, bytes) in unflushed.writes().filter(|(at, _)| *at < self.0.len() as u64) {
            then.durable(at, bytes);
            let sectors = then.0.chunks(sector).zip(found.0.chunks(sector));
            sectors.zip(&mut may_be).for_each(|((then, found), may_be)| *may_be |= then == found);
        }
        !self.0.is_empty() && self.0.len() == found.0.len() && may_be.iter().all(|may_be| *may_be)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(change: impl FnOnce(&mut Vec<u8>)) -> Label {
        let mut bytes = vec![0; BYTES as usize];
        change(&mut bytes);
        Label(bytes)
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
        unflushed.flushed(last, |at, bytes| known.durable(at, bytes));
        assert!(known.is_of(torn(2, 3), &unflushed) && !known.is_of(torn(2, 2), &unflushed));
    }
}
