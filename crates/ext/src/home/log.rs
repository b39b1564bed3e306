//! The log: committed transactions whose changes are not durable anywhere else.
//!
//! FSMAC changes metadata in place and keeps what was, to undo it (III.C). Here the changed sub-blocks are logged and what was stays in its
//! frame until they are: a transaction is one record, whose checksum commits it, so it takes one fence; and a crash leaves nothing to
//! undo. The log has two halves. One fills while what the other has is made durable elsewhere; then its epoch is *retired*.
//!
//! **Records are in the order of their transactions, without a gap**: a record is begun when the fence of the one before has passed.
//! So the first that is not whole is the end; and if a whole one is behind it, it is damage, since no crash leaves that ([`FoundLog`]).

mod found;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use nvm::{Durable, Purpose, Region};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum::crc32c;
use crate::fault::{self, Fault};
use crate::home::Area;
use crate::kind::Kind;

pub(crate) use found::FoundLog;

/// Records begin on lines.
const LINE: u64 = nvm::LINE;

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawHalf {
    /// CRC-32C of all that follows, with the volume's UUID before it.
    crc: U32,
    reserved: U32,
    epoch: U64,
    /// Mixed into the checksum of every record: one left over from another use of the half is none.
    salt: U64,
    /// Number of the first record.
    first: U64,
    /// The salt of the epoch before, by which its records are found when its own header is damaged; 0 if that was not kept.
    before: U64,
    reserved2: [u8; 24],
}
const HEADER: u64 = 64;
/// More records, or epochs, than there can ever be.
const NUMBERS: u64 = 1 << 62;
/// The newest epoch that is retired where none was begun.
const FIRST_RETIRED: u64 = 2;
const _: () = assert!(size_of::<RawHalf>() as u64 == HEADER);

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawRecord {
    /// CRC-32C of the half's salt and all of the record that follows.
    crc: U32,
    /// Of the record, padding included.
    bytes: U32,
    /// One more than that of the record before: of the transaction, or of the record where some transactions have none.
    number: U64,
    blocks: U32,
    freed: U32,
    ranges: U32,
    items: U32,
}
const RECORD: usize = size_of::<RawRecord>();

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawBlock {
    number: U64,
    kind: U32,
    ino: U32,
    /// A bit for each sub-block whose bytes follow.
    parts: U64,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawItem {
    block: U64,
    offset: U32,
    /// Bytes that follow, padded to 8; the highest bit says that all else of the block is zeros.
    length: U32,
}
const FRESH: u32 = 1 << 31;

/// Bytes of a file's block that the log is to have, in the record of the transaction that maps the block or of a later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogItem {
    /// Which block of the disk, in use.
    pub(crate) block: u64,
    /// What it is to be as a whole, and the part of that which the log is to have.
    pub(crate) page: Arc<[u8]>,
    pub(crate) within: Range<usize>,
    /// Nothing of the block was on the disk before: all else in it is zeros.
    pub(crate) fresh: bool,
}

impl LogItem {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.page[self.within.clone()]
    }
}

/// What one record holds.
#[derive(Default)]
pub(crate) struct Transaction {
    /// Its number; its record has the log's.
    pub(crate) number: u64,
    /// Blocks of metadata, which of their sub-blocks changed, and their bytes as a whole.
    pub(crate) blocks: Vec<(u64, Kind, u64, Arc<[u8]>)>,
    /// Blocks that are metadata no longer.
    pub(crate) freed: Vec<u64>,
    /// Blocks that were freed, metadata or not: what the log has for them from earlier transactions counts no longer.
    pub(crate) ranges: Vec<Range<u64>>,
    pub(crate) items: Vec<LogItem>,
}

/// The sub-blocks of a block that a record has: number and bytes.
pub(crate) type Parts = Vec<(usize, Vec<u8>)>;

/// Bytes of a file's block that a record has: where they are in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// Which block of the disk.
    pub(crate) block: u64,
    /// Where in it.
    pub(crate) offset: u32,
    pub(crate) length: u32,
    /// All else in it is zeros.
    pub(crate) fresh: bool,
    /// Where in the region they begin.
    pub(crate) at: u64,
}

/// What a record holds, read back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) number: u64,
    /// Of its record.
    pub(crate) bytes: u64,
    /// Blocks of metadata.
    pub(crate) blocks: Vec<(u64, Kind, Parts)>,
    pub(crate) freed: Vec<u64>,
    pub(crate) ranges: Vec<Range<u64>>,
    /// Their bytes are left where they are.
    pub(crate) items: Vec<Item>,
}

/// There is no room for a record: the other half has to be retired first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// The running half.
pub(crate) struct Log {
    region: Region,
    area: Area,
    epoch: u64,
    salt: u64,
    /// Number of the next record.
    next: u64,
    /// Where in the half it begins.
    at: u64,
    buffer: Vec<u8>,
}

/// The epoch that is retired in an area whose log is emptied for a disk, by the one that was before.
pub(crate) fn retired_behind(before: u64) -> u64 {
    Some(before).filter(|before| *before < NUMBERS).unwrap_or(0) + FIRST_RETIRED
}

impl Log {
    /// A log that begins with an epoch which is newer than any that was retired, with record `first`.
    pub(crate) fn begin(region: Region, area: Area, first: u64) -> Log {
        let epoch = area.retired(&region);
        let before = RawHalf::at(&region, &area, epoch);
        let salt = before.map_or_else(|| Uuid::new_v4().as_u64_pair().0, |raw| raw.salt.get());
        let mut log = Log { region, area, epoch, salt, next: first, at: HEADER, buffer: Vec::new() };
        if before.is_none() {
            // The very first: what the next header says follows from one that is there.
            log.write_header(0);
        }
        log.switch();
        log
    }

    /// The epoch that fills.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Begins the next epoch in the other half, whose own one is retired.
    pub(crate) fn switch(&mut self) {
        self.epoch += 1;
        let before = self.salt;
        self.salt = salt_behind(before, self.epoch);
        self.write_header(before);
        self.at = HEADER;
    }

    fn write_header(&self, before: u64) {
        let mut raw = RawHalf {
            crc: 0.into(),
            reserved: 0.into(),
            epoch: self.epoch.into(),
            salt: self.salt.into(),
            first: self.next.into(),
            before: before.into(),
            reserved2: [0; 24],
        };
        raw.crc = raw.checksum(&self.region).into();
        let at = self.area.half_at(self.epoch % 2);
        let flushed =
            fault::stream(&self.region, Fault::HalfHeaderNotSent, Purpose::Journal, at, raw.as_bytes());
        // Before any record of it: the header makes the half's old records none.
        self.region.fence(flushed).ignore();
    }

    /// Bytes of the half that are filled, and that it has.
    pub(crate) fn fill(&self) -> (u64, u64) {
        (self.at, self.area.half)
    }

    /// Commits a transaction. `part` is the length of a sub-block.
    ///
    /// # Errors
    /// [`Full`] if the rest of the half has no room for it: nothing has happened.
    pub(crate) fn append(&mut self, transaction: &Transaction) -> Result<Durable, Full> {
        self.encode(transaction);
        let bytes = self.buffer.len() as u64;
        if self.at + bytes > self.area.half {
            return Err(Full);
        }
        let at = self.area.half_at(self.epoch % 2) + self.at;
        let flushed = fault::stream(&self.region, Fault::RecordNotSent, Purpose::Journal, at, &self.buffer);
        self.at += bytes;
        self.next += 1;
        Ok(fault::fence(&self.region, Fault::CommitFence, flushed))
    }

    fn encode(&mut self, transaction: &Transaction) {
        let buffer = &mut self.buffer;
        buffer.clear();
        buffer.resize(RECORD, 0);
        let part = self.area.part as usize;
        for (number, kind, parts, bytes) in &transaction.blocks {
            let parts = parts & all_parts(bytes.len(), part);
            let (kind, ino) = kind.to_words();
            let raw = RawBlock {
                number: (*number).into(),
                kind: kind.into(),
                ino: ino.into(),
                parts: parts.into(),
            };
            buffer.extend_from_slice(raw.as_bytes());
            let set = bytes.chunks(part).enumerate().filter(|(n, _)| parts >> n & 1 != 0);
            set.for_each(|(_, bytes)| buffer.extend_from_slice(bytes));
        }
        for number in &transaction.freed {
            buffer.extend_from_slice(&number.to_le_bytes());
        }
        for range in &transaction.ranges {
            buffer.extend_from_slice(&range.start.to_le_bytes());
            buffer.extend_from_slice(&range.end.to_le_bytes());
        }
        for item in &transaction.items {
            let fresh = if item.fresh { FRESH } else { 0 };
            let (offset, length) = (item.within.start as u32, item.within.len() as u32 | fresh);
            let raw = RawItem { block: item.block.into(), offset: offset.into(), length: length.into() };
            buffer.extend_from_slice(raw.as_bytes());
            buffer.extend_from_slice(item.bytes());
            buffer.resize(buffer.len().next_multiple_of(8), 0);
        }
        buffer.resize(buffer.len().next_multiple_of(LINE as usize), 0);
        let mut header = RawRecord {
            crc: 0.into(),
            bytes: (buffer.len() as u32).into(),
            number: self.next.into(),
            blocks: (transaction.blocks.len() as u32).into(),
            freed: (transaction.freed.len() as u32).into(),
            ranges: (transaction.ranges.len() as u32).into(),
            items: (transaction.items.len() as u32).into(),
        };
        buffer[..RECORD].copy_from_slice(header.as_bytes());
        header.crc = salted(self.salt, buffer).into();
        buffer[..RECORD].copy_from_slice(header.as_bytes());
    }
}

impl RawHalf {
    /// A header that is where that of an epoch would be, of whichever epoch: a whole one, of this volume.
    fn at(region: &Region, area: &Area, epoch: u64) -> Option<RawHalf> {
        let raw: RawHalf = region.load(area.half_at(epoch % 2));
        let is_one = raw.checksum(region) == raw.crc.get()
            && raw.first.get() < NUMBERS
            && raw.epoch.get() < NUMBERS
            && raw.epoch.get() % 2 == epoch % 2;
        is_one.then_some(raw)
    }

    fn checksum(&self, region: &Region) -> u32 {
        crc32c(crc32c(!0, region.uuid().as_bytes()), &self.as_bytes()[4..])
    }
}

/// The salt of an epoch: unlike any before, and to be foreseen by nobody who only knows what files hold. The first behind attaching is random, and each
/// follows from that in the other half's header, so that what a volume does follows from what is in NVM.
fn salt_behind(before: u64, epoch: u64) -> u64 {
    let mut salt = before.wrapping_add(epoch.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    salt = (salt ^ salt >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    salt = (salt ^ salt >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    salt ^ salt >> 31
}

fn salted(salt: u64, record: &[u8]) -> u32 {
    crc32c(crc32c(!0, &salt.to_le_bytes()), &record[4..])
}

/// A bit for each sub-block of a block.
fn all_parts(block: usize, part: usize) -> u64 {
    let parts = block / part;
    if parts >= 64 { u64::MAX } else { (1 << parts) - 1 }
}
