//! The segment information table and its journal (HMFS §2.2, §3.2).
//!
//! A SIT entry says which blocks of a segment are valid in the newest checkpoint, and how many. HMFS keeps the valid bit
//! in each block's BIA entry; here a segment's 512 bits stand together, under a checksum. Before a checkpoint is
//! published, the new entries of all segments it changed go to the SIT journal: with that, the second half of publishing
//! (entries into the SIT) can be done again after a crash, any number of times, without knowing how far it came.

use nvm::{Flushed, Purpose};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum;
use crate::error::corrupt;
use crate::fault::{self, Fault};
use crate::geometry::{BIA_ENTRY, BLOCK, Medium, SEGMENT_BLOCKS, SIT_ENTRY, SIT_JOURNAL_ENTRY};

/// A bit for each block of a segment.
pub(crate) type Bitmap = [u64; (SEGMENT_BLOCKS / 64) as usize];

/// How many bits are set.
pub(crate) fn count(bits: &Bitmap) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// The indices of the bits that are set, ascending.
pub(crate) fn ones(bits: &Bitmap) -> impl Iterator<Item = usize> + '_ {
    bits.iter().enumerate().flat_map(|(index, word)| {
        let mut left = *word;
        std::iter::from_fn(move || {
            (left != 0).then(|| {
                let bit = left.trailing_zeros() as usize;
                left &= left - 1;
                index * 64 + bit
            })
        })
    })
}

/// What blocks a segment takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SegmentKind {
    /// None yet.
    Free = 0,
    /// Bytes of files.
    Data = 1,
    /// Nodes, the NAT, checkpoints.
    Meta = 2,
}

/// State of one segment as of the newest checkpoint: two lines.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct SitEntry {
    /// CRC-32C of the segment's number and the rest: an entry that is torn, or another's, is none.
    crc: U32,
    /// Ones in `bitmap`, 0–512.
    pub(crate) valid: U16,
    /// A [`SegmentKind`].
    pub(crate) kind: u8,
    reserved: u8,
    /// Version of the checkpoint that changed the segment last (its age, for choosing victims).
    pub(crate) version: U32,
    reserved2: [u8; 52],
    /// Bit i: the newest checkpoint reaches block i of the segment.
    bitmap: [U64; 8],
}
const _: () = assert!(size_of::<SitEntry>() as u64 == SIT_ENTRY);

impl SitEntry {
    /// The entry of `segment` with these blocks valid; if there are none, it is free, whatever `kind` says.
    pub(crate) fn new(segment: u32, kind: SegmentKind, version: u32, bits: &Bitmap) -> SitEntry {
        let valid = count(bits) as u16;
        let mut entry = SitEntry {
            crc: 0.into(),
            valid: valid.into(),
            kind: if valid == 0 { SegmentKind::Free } else { kind } as u8,
            reserved: 0,
            version: version.into(),
            reserved2: [0; 52],
            bitmap: bits.map(U64::new),
        };
        entry.crc = entry.checksum(segment).into();
        entry
    }

    /// The blocks that are valid.
    pub(crate) fn bits(&self) -> Bitmap {
        self.bitmap.map(U64::get)
    }

    fn checksum(&self, segment: u32) -> u32 {
        checksum::append(checksum::of(&segment.to_le_bytes()), &self.as_bytes()[4..])
    }

    /// Reads and verifies a segment's entry.
    pub(crate) fn read(medium: &Medium, segment: u32) -> vfs::Result<SitEntry> {
        let at = medium.geometry.sit_at(segment);
        let entry: SitEntry = medium.region.load(at);
        if entry.checksum(segment) != entry.crc.get() {
            return Err(corrupt(
                "SIT",
                at / BLOCK,
                &format!("checksum of segment {segment}"),
                "wrong",
                "right",
            ));
        }
        if u64::from(entry.valid.get()) != count(&entry.bits()) || entry.kind > SegmentKind::Meta as u8 {
            return Err(corrupt(
                "SIT",
                at / BLOCK,
                &format!("entry of segment {segment}"),
                "impossible",
                "possible",
            ));
        }
        Ok(entry)
    }

    pub(crate) fn write(&self, medium: &Medium, segment: u32) -> Flushed {
        let at = medium.geometry.sit_at(segment);
        medium.region.store(Purpose::Allocation, at, self.as_bytes());
        fault::flush(&medium.region, Fault::SettleNotFlushed, Purpose::Allocation, at, SIT_ENTRY)
    }

    pub(crate) fn segment_kind(&self) -> SegmentKind {
        match self.kind {
            1 => SegmentKind::Data,
            2 => SegmentKind::Meta,
            _ => SegmentKind::Free,
        }
    }
}

/// One segment's next state, as journaled.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct JournalEntry {
    segment: U32,
    pub(crate) valid: U16,
    kind: u8,
    reserved: u8,
    pub(crate) version: U32,
    reserved2: [u8; 4],
    /// Bit i: block i of the segment is valid.
    bitmap: [U64; 8],
}
const _: () = assert!(size_of::<JournalEntry>() as u64 == SIT_JOURNAL_ENTRY);

impl JournalEntry {
    pub(crate) fn new(segment: u32, kind: SegmentKind, version: u32, bitmap: &Bitmap) -> JournalEntry {
        JournalEntry {
            segment: segment.into(),
            valid: (count(bitmap) as u16).into(),
            kind: kind as u8,
            reserved: 0,
            version: version.into(),
            reserved2: [0; 4],
            bitmap: bitmap.map(U64::new),
        }
    }

    pub(crate) fn segment(&self) -> u32 {
        self.segment.get()
    }

    fn bits(&self) -> Bitmap {
        self.bitmap.map(U64::get)
    }
}

/// Writes the journal; returns its checksum for the checkpoint block.
pub(crate) fn write_journal(medium: &Medium, entries: &[JournalEntry]) -> (u32, Flushed) {
    let bytes = entries.as_bytes();
    let at = medium.geometry.sit_journal_start * BLOCK;
    let sent = fault::stream(&medium.region, Fault::SitJournalNotSent, Purpose::Allocation, at, bytes);
    (checksum::of(bytes), sent)
}

/// Reads the journal that a checkpoint block describes, and verifies it.
pub(crate) fn read_journal(medium: &Medium, entries: u32, crc: u32) -> vfs::Result<Vec<JournalEntry>> {
    let block = medium.geometry.sit_journal_start;
    if entries > medium.geometry.segments {
        return Err(corrupt("SIT journal", block, "length", entries, medium.geometry.segments));
    }
    let bytes = medium.region.bytes(block * BLOCK, entries as usize * SIT_JOURNAL_ENTRY as usize);
    if checksum::of(bytes) != crc {
        medium.check_media()?;
        return Err(corrupt("SIT journal", block, "checksum", "wrong", format!("{crc:#010x}")));
    }
    let entries = <[JournalEntry]>::ref_from_bytes(bytes).expect("a whole number of entries").to_vec();
    match entries.iter().find(|entry| entry.segment.get() >= medium.geometry.segments) {
        Some(bad) => Err(corrupt("SIT journal", block, "segment", bad.segment.get(), "one that exists")),
        None => Ok(entries),
    }
}

/// The second half of publishing: what is journaled into the SIT. Re-entrant: the journal holds the result.
pub(crate) fn settle(medium: &Medium, entries: &[JournalEntry]) -> Flushed {
    let settled = entries.iter().map(|entry| {
        let (segment, version) = (entry.segment.get(), entry.version.get());
        SitEntry::new(segment, entry.segment_kind(), version, &entry.bits()).write(medium, segment)
    });
    settled.fold(Flushed::none(), Flushed::and)
}

impl JournalEntry {
    /// Of one that has valid blocks.
    pub(crate) fn segment_kind(&self) -> SegmentKind {
        if self.kind == SegmentKind::Data as u8 { SegmentKind::Data } else { SegmentKind::Meta }
    }
}

/// Flushes the soft BIA entries of the blocks in `new` of one segment.
pub(crate) fn flush_soft(medium: &Medium, segment: u32, new: &Bitmap) -> Flushed {
    let at = medium.geometry.bia_at(medium.geometry.segment_start(segment));
    let per_line = (nvm::LINE / BIA_ENTRY) as usize;
    let mut flushed = Flushed::none();
    let mut last = usize::MAX;
    for index in ones(new) {
        if index / per_line != last {
            last = index / per_line;
            flushed = flushed.and(fault::flush(
                &medium.region,
                Fault::SoftEntriesNotFlushed,
                Purpose::Allocation,
                at + last as u64 * nvm::LINE,
                nvm::LINE,
            ));
        }
    }
    flushed
}

#[cfg(test)]
mod tests {
    use nvm::{OpenOptions, VolumeKind, Zone};

    use super::*;
    use crate::geometry::Geometry;

    /// It reads as zeros then, and these are no journal: that was called damage, which a check can mend.
    #[test]
    fn a_journal_that_cannot_be_read_is_not_taken_for_damaged() {
        let path = tempfile::NamedTempFile::new_in("/dev/shm").unwrap().into_temp_path();
        let zone = Zone::create(&path, 20 << 20, true, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
        let geometry = Geometry::lay_out(region.len(), None).unwrap();
        let medium = Medium { region, geometry };

        let wrong = !checksum::of(medium.region.bytes(medium.geometry.sit_journal_start * BLOCK, 80));
        assert!(matches!(read_journal(&medium, 1, wrong), Err(vfs::Error::Corrupt(_))));
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
        assert!(matches!(read_journal(&medium, 1, wrong), Err(vfs::Error::Io(_))));
    }
}
