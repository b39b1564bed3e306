//! What a check does in the end: compares what it has reached with what the SIT and the BIA say.

use nvm::Flushed;

use super::Walk;
use crate::bia::Entry;
use crate::geometry::BIA_ENTRY;
use crate::sit::{Bitmap, SegmentKind, SitEntry, ones};

impl Walk<'_> {
    /// Reached is valid, valid is reached; and the SIT counts it.
    pub(super) fn validity(&mut self, repair: bool) {
        let medium = &self.at_rest.medium;
        self.report.blocks_used = self.reached.blocks.len() as u64;
        if self.at_rest.root.checkpoint.get() != self.at_rest.checkpoint.block {
            return; // its publishing was interrupted: the journal has yet to be settled
        }
        // Rebuilding from a tree with a part missing would free what that part holds.
        let mend = repair && !self.lost && self.report.is_clean();
        let (mut flushed, mut leaked) = (Flushed::none(), Vec::new());
        for (segment, reached) in (0..).zip(self.reached_bits()) {
            flushed = flushed.and(self.entries_in(segment, &reached, mend));
            let mut found = Vec::new();
            let (kind, version, valid) = match SitEntry::read(medium, segment) {
                Ok(entry) => (entry.segment_kind(), entry.version.get(), entry.bits()),
                Err(error) => {
                    if repair {
                        found.push(error.to_string()); // else it was told already
                    }
                    (self.segment_kind(segment), self.at_rest.checkpoint.body.version.get(), reached)
                }
            };
            let differ = |one: &Bitmap, other: &Bitmap| std::array::from_fn(|word| one[word] & !other[word]);
            let first = medium.geometry.segment_start(segment);
            for index in ones(&differ(&reached, &valid)) {
                found.push(format!("block {} is in use but not valid", first + index as u64));
            }
            let unreached = if self.lost { Bitmap::default() } else { differ(&valid, &reached) };
            leaked.extend(ones(&unreached).map(|index| first + index as u64));
            if mend && (!found.is_empty() || unreached != Bitmap::default()) {
                let kind = if kind == SegmentKind::Free { self.segment_kind(segment) } else { kind };
                flushed = flushed.and(SitEntry::new(segment, kind, version, &reached).write(medium, segment));
            }
            found.into_iter().for_each(|what| self.report.derivable(what, mend));
        }
        medium.region.fence(flushed).ignore();
        let what = match leaked[..] {
            [] => return,
            [block] => format!("block {block} is valid but nothing reaches it"),
            [block, ..] => {
                format!("{} blocks are valid but nothing reaches them, block {block} the first", leaked.len())
            }
        };
        self.report.derivable(what, mend);
    }

    /// Compares what blocks are reached as, whose they are and where, with what the BIA says.
    fn entries_in(&mut self, segment: u32, reached: &Bitmap, mend: bool) -> Flushed {
        let medium = &self.at_rest.medium;
        let mut flushed = Flushed::none();
        for index in ones(reached) {
            let block = medium.geometry.segment_start(segment) + index as u64;
            let (kind, entry) = (self.reached.blocks[&block], Entry::read(medium, block));
            let misplaced = self.reached.misplaced.get(&block);
            if entry.kind == kind as u8 && misplaced.is_none() {
                continue;
            }
            let (owner, place) = *misplaced.unwrap_or(&(entry.owner, entry.place));
            if mend {
                Entry::write_soft(medium, block, entry.version, owner, kind, place);
                let at = medium.geometry.bia_at(block);
                flushed = flushed.and(medium.region.flush(nvm::Purpose::Allocation, at, BIA_ENTRY));
            }
            let what = match entry.kind == kind as u8 {
                true => format!(
                    "block {block} is owner {owner}'s at place {place}, the BIA says owner {}'s at {}",
                    entry.owner, entry.place
                ),
                false => format!("block {block} is {kind:?}, the BIA says kind {}", entry.kind),
            };
            self.report.derivable(what, mend);
        }
        flushed
    }
}
