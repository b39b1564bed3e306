//! The segment information table and its journal (HMFS §2.2, §3.2).
//!
//! A SIT entry says how many blocks of a segment are valid in the newest checkpoint. Before a checkpoint is
//! published, the new entries of all segments it changed go to the SIT journal together with each segment's new
//! validity bitmap: with that, the second half of publishing (valid bits into the BIA, entries into the SIT)
//! can be done again after a crash, any number of times, without knowing how far it came.

use nvm::{Flushed, Purpose};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::bia::{self, Bitmap, Entry};
use crate::checksum;
use crate::error::corrupt;
use crate::geometry::{BIA_ENTRY, BLOCK, Medium, SEGMENT_BLOCKS, SIT_ENTRY, SIT_JOURNAL_ENTRY};

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

/// Usage of one segment as of the newest checkpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct SitEntry {
    /// CRC-32C of the rest and of the segment's number.
    crc: U32,
    /// Blocks valid in the newest checkpoint, 0–512.
    pub(crate) valid: U16,
    /// A [`SegmentKind`].
    pub(crate) kind: u8,
    reserved: u8,
    /// Version of the checkpoint that changed the segment last (its age, for choosing victims).
    pub(crate) version: U32,
    reserved2: [u8; 4],
}
const _: () = assert!(size_of::<SitEntry>() as u64 == SIT_ENTRY);

impl SitEntry {
    pub(crate) fn new(segment: u32, valid: u16, kind: SegmentKind, version: u32) -> SitEntry {
        let mut entry = SitEntry {
            crc: 0.into(),
            valid: valid.into(),
            kind: kind as u8,
            reserved: 0,
            version: version.into(),
            reserved2: [0; 4],
        };
        entry.crc = entry.checksum(segment).into();
        entry
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
        if u64::from(entry.valid.get()) > SEGMENT_BLOCKS || entry.kind > SegmentKind::Meta as u8 {
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
        medium.region.flush(Purpose::Allocation, at, SIT_ENTRY)
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
    valid: U16,
    kind: u8,
    reserved: u8,
    version: U32,
    reserved2: [u8; 4],
    /// Bit i: block i of the segment is valid.
    bitmap: [U64; 8],
}
const _: () = assert!(size_of::<JournalEntry>() as u64 == SIT_JOURNAL_ENTRY);

impl JournalEntry {
    pub(crate) fn new(segment: u32, kind: SegmentKind, version: u32, bitmap: &Bitmap) -> JournalEntry {
        JournalEntry {
            segment: segment.into(),
            valid: (bia::count(bitmap) as u16).into(),
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
    (checksum::of(bytes), medium.region.stream(Purpose::Allocation, at, bytes))
}

/// Reads the journal that a checkpoint block describes, and verifies it.
pub(crate) fn read_journal(medium: &Medium, entries: u32, crc: u32) -> vfs::Result<Vec<JournalEntry>> {
    let block = medium.geometry.sit_journal_start;
    if entries > medium.geometry.segments {
        return Err(corrupt("SIT journal", block, "length", entries, medium.geometry.segments));
    }
    let bytes = medium.region.bytes(block * BLOCK, entries as usize * SIT_JOURNAL_ENTRY as usize);
    if checksum::of(bytes) != crc {
        return Err(corrupt("SIT journal", block, "checksum", "wrong", format!("{crc:#010x}")));
    }
    let entries = <[JournalEntry]>::ref_from_bytes(bytes).expect("a whole number of entries").to_vec();
    match entries.iter().find(|entry| entry.segment.get() >= medium.geometry.segments) {
        Some(bad) => Err(corrupt("SIT journal", block, "segment", bad.segment.get(), "one that exists")),
        None => Ok(entries),
    }
}

/// The second half of publishing: valid bits into the BIA, counts into the SIT. Re-entrant. `before` gives the
/// valid bits a segment has on the medium, if known: only differences are stored then.
pub(crate) fn settle(
    medium: &Medium,
    entries: &[JournalEntry],
    before: impl Fn(u32) -> Option<Bitmap>,
) -> Flushed {
    let mut flushed = Flushed::none();
    for entry in entries {
        let segment = entry.segment.get();
        let first = medium.geometry.segment_start(segment);
        let (old, new) = (before(segment).unwrap_or_else(|| bia::valid_bits(medium, segment)), entry.bits());
        let changed: Bitmap = std::array::from_fn(|word| old[word] ^ new[word]);
        let mut line = u64::MAX;
        for index in bia::ones(&changed) {
            let block = first + index as u64;
            Entry::set_valid(medium, block, new[index / 64] >> (index % 64) & 1 == 1);
            let at = medium.geometry.bia_at(block);
            if line != u64::MAX && at / nvm::LINE != line {
                flushed = flushed.and(medium.region.flush(Purpose::Allocation, line * nvm::LINE, nvm::LINE));
            }
            line = at / nvm::LINE;
        }
        if line != u64::MAX {
            flushed = flushed.and(medium.region.flush(Purpose::Allocation, line * nvm::LINE, nvm::LINE));
        }
        if before(segment).is_none() {
            // What looks right may have been stored and not flushed, before a crash.
            let at = medium.geometry.bia_at(first);
            flushed = flushed.and(medium.region.flush(Purpose::Allocation, at, SEGMENT_BLOCKS * BIA_ENTRY));
        }
        let kind = if entry.valid.get() == 0 { SegmentKind::Free } else { entry.segment_kind() };
        let sit = SitEntry::new(segment, entry.valid.get(), kind, entry.version.get());
        flushed = flushed.and(sit.write(medium, segment));
    }
    flushed
}

impl JournalEntry {
    fn segment_kind(&self) -> SegmentKind {
        if self.kind == SegmentKind::Data as u8 { SegmentKind::Data } else { SegmentKind::Meta }
    }
}

/// Flushes the soft BIA entries of the blocks in `new` of one segment.
pub(crate) fn flush_soft(medium: &Medium, segment: u32, new: &Bitmap) -> Flushed {
    let at = medium.geometry.bia_at(medium.geometry.segment_start(segment));
    let per_line = (nvm::LINE / BIA_ENTRY) as usize;
    let mut flushed = Flushed::none();
    let mut last = usize::MAX;
    for index in bia::ones(new) {
        if index / per_line != last {
            last = index / per_line;
            flushed = flushed.and(medium.region.flush(
                Purpose::Allocation,
                at + last as u64 * nvm::LINE,
                nvm::LINE,
            ));
        }
    }
    flushed
}
