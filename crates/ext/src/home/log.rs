//! The log: committed transactions whose changes are not durable anywhere else.
//!
//! FSMAC changes metadata in place and keeps what was, to undo it (III.C). Here the changed sub-blocks are logged and what was stays in its
//! frame until they are: a transaction is one record, whose checksum commits it, so it takes one fence; and a crash leaves nothing to
//! undo. The log has two halves. One fills while what the other has is made durable elsewhere; then its epoch is *retired*.
//!
//! **Records are in the order of their transactions, without a gap**: a record is begun when the fence of the one before has passed.
//! So the first that is not whole is the end; and if a whole one is behind it, it is damage, since no crash leaves that ([`FoundLog`]).

mod found;

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

impl Log {
    /// A log that begins with an epoch which is newer than any that was retired, with record `first`.
    pub(crate) fn begin(region: Region, area: Area, first: u64) -> Log {
        let epoch = area.retired(&region);
        let salt = RawHalf::load(&region, &area, epoch).salt.get();
        let mut log = Log { region, area, epoch, salt, next: first, at: HEADER, buffer: Vec::new() };
        if salt == 0 {
            // The very first: what the next header says follows from one that is there.
            log.salt = Uuid::new_v4().as_u64_pair().0 | 1;
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
    /// What is where the header of an epoch would be.
    fn load(region: &Region, area: &Area, epoch: u64) -> RawHalf {
        region.load(area.half_at(epoch % 2))
    }

    /// Whether it is that header.
    fn is_of(&self, region: &Region, epoch: u64) -> bool {
        self.checksum(region) == self.crc.get() && self.epoch.get() == epoch
    }

    fn checksum(&self, region: &Region) -> u32 {
        crc32c(crc32c(!0, region.uuid().as_bytes()), &self.as_bytes()[4..])
    }
}

/// The salt of an epoch: unlike any before, and to be foreseen by nobody who only knows what files hold. The first is random and each
/// follows from one before, so that what a volume does follows from what is in NVM.
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

#[cfg(test)]
mod tests {
    use super::*;
    use nvm::{OpenOptions, VolumeKind, Zone};

    fn area() -> (Region, Area) {
        let zone = Zone::anonymous(64 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("disk", VolumeKind::Ext, Some(16 << 20)).unwrap();
        let area = Area::lay_out(&region, 1024, 128, 0).unwrap();
        (region, area)
    }

    fn transaction(number: u64) -> Transaction {
        Transaction {
            number,
            blocks: vec![
                (7, Kind::Directory(12), 0b101, vec![number as u8; 1024].into()),
                (9, Kind::Bitmap, u64::MAX, vec![3; 1024].into()),
            ],
            freed: vec![4, 5],
            ranges: vec![4..6, 100..101],
            items: vec![LogItem {
                block: 70,
                page: (*b"   hello  ").into(),
                within: 3..8,
                fresh: number.is_multiple_of(2),
            }],
        }
    }

    fn all(region: &Region, area: &Area) -> (Vec<Logged>, u64, Option<String>) {
        let log = FoundLog::of(region, area);
        let mut found = Vec::new();
        let each = log.each(|logged| {
            found.push(logged);
            Ok(())
        });
        each.unwrap();
        (found, log.next(), log.damage())
    }

    fn numbers(region: &Region, area: &Area) -> (Vec<u64>, u64, Option<String>) {
        let (found, next, damage) = all(region, area);
        (found.iter().map(|logged| logged.number).collect(), next, damage)
    }

    /// Turns all bits of a byte.
    fn turn(region: &Region, at: u64) {
        region.store(Purpose::Journal, at, &[!region.bytes(at, 1)[0]]);
    }

    #[test]
    fn what_is_appended_is_read_back() {
        let (region, area) = area();
        let mut log = Log::begin(region.clone(), area.clone(), 5);
        for number in 5..8 {
            log.append(&transaction(number)).unwrap().ignore();
        }
        log.switch();
        log.append(&transaction(8)).unwrap().ignore();
        let (found, next, damage) = all(&region, &area);
        assert_eq!((found.len(), next, damage), (4, 9, None));
        assert_eq!(found[1].blocks[0].2, [(0, vec![6; 128]), (2, vec![6; 128])]);
        assert_eq!(found[1].blocks[1].2.len(), 8);
        assert_eq!((&found[3].freed[..], &found[3].ranges[..]), (&[4, 5][..], &[4..6, 100..101][..]));
        let (item, expected) = (found[3].items[0], &transaction(8).items[0]);
        assert_eq!((item.block, item.offset, item.fresh), (expected.block, 3, expected.fresh));
        assert_eq!(region.bytes(item.at, item.length as usize), expected.bytes());
        area.retire(&region, 1, region.fence(nvm::Flushed::none())).ignore();
        assert_eq!(numbers(&region, &area), (vec![8], 9, None), "a retired epoch is none");
    }

    #[test]
    fn the_log_ends_at_what_is_torn() {
        let (region, area) = area();
        let mut log = Log::begin(region.clone(), area.clone(), 1);
        log.append(&transaction(1)).unwrap().ignore();
        let second = area.half_at(1) + log.at;
        log.append(&transaction(2)).unwrap().ignore();
        turn(&region, second + 100);
        assert_eq!(numbers(&region, &area), (vec![1], 3, None), "and what is torn has its number for itself");
    }

    #[test]
    fn a_full_half_takes_no_more() {
        let (region, area) = area();
        let mut log = Log::begin(region.clone(), area.clone(), 1);
        let mut number = 1;
        while log.append(&transaction(number)).is_ok() {
            number += 1;
        }
        let (filled, half) = log.fill();
        assert!(half - filled < 2048 && number > 500);
        assert_eq!(numbers(&region, &area), ((1..number).collect(), number, None));
    }

    /// Two epochs of ten records each, and where they begin.
    fn written(first: u64) -> (Region, Area, Vec<u64>) {
        let (region, area) = area();
        let mut log = Log::begin(region.clone(), area.clone(), first);
        let mut places = Vec::new();
        for n in 0..20 {
            if n == 10 {
                log.switch();
            }
            places.push(area.half_at(log.epoch % 2) + log.at);
            log.append(&transaction(first + n)).unwrap().ignore();
        }
        (region, area, places)
    }

    /// Whichever line of a record is damaged, and however many follow it: what is behind is found, and what is missing told.
    #[test]
    fn damage_is_not_taken_for_the_end() {
        let (_, _, places) = written(1);
        let bytes = places[1] - places[0];
        for (from, to) in [(0, 1), (3, 4), (3, 6), (9, 10), (8, 10), (10, 11), (15, 16), (0, 10), (10, 19)] {
            let (region, area, _) = written(1);
            let lines = (places[from]..places[to - 1] + bytes).step_by(64);
            lines.for_each(|line| turn(&region, line));
            let (found, next, damage) = numbers(&region, &area);
            let whole: Vec<u64> = (1..21).filter(|n| !(from + 1..=to).contains(&(*n as usize))).collect();
            assert_eq!((found, next), (whole, 21), "{from}..{to}");
            let damage = damage.unwrap();
            assert!(damage.contains(&format!("record {}", to + 1)), "{damage}");
        }
        for line in (0..bytes).step_by(64) {
            let (region, area, places) = written(1);
            turn(&region, places[4] + line + 17);
            let (found, _, damage) = numbers(&region, &area);
            assert_eq!(found.len(), 19, "{line}");
            assert_eq!(damage.unwrap(), "record 5, behind which record 6 is whole");
        }
    }

    /// Whatever byte of it: what follows is found by the salt that its neighbour tells.
    #[test]
    fn a_damaged_header_of_a_half_loses_no_record() {
        for (half, byte) in [0, 1].into_iter().flat_map(|half| (0..48).map(move |byte| (half, byte))) {
            let (region, area, _) = written(7);
            turn(&region, area.half_at(half) + byte);
            let (found, next, damage) = numbers(&region, &area);
            assert_eq!((found, next), ((7..27).collect(), 27), "byte {byte} of {half}");
            assert!(damage.unwrap().starts_with("the header of its epoch"));
        }
        // When the other half was not begun yet, too; but not of what was never begun.
        let (region, area) = area();
        let mut log = Log::begin(region.clone(), area.clone(), 3);
        log.append(&transaction(3)).unwrap().ignore();
        turn(&region, area.half_at(1) + 20);
        assert_eq!(numbers(&region, &area), (vec![3], 4, Some("the header of its epoch 1".into())));
        let (region, area) = self::area();
        Log::begin(region.clone(), area.clone(), 3);
        turn(&region, area.half_at(1) + 20);
        assert_eq!(numbers(&region, &area), (vec![], 1, None));
    }

    #[test]
    fn an_epoch_that_was_begun_behind_those_that_can_be_is_told() {
        let (region, area) = area();
        area.retire(&region, 8, region.fence(nvm::Flushed::none())).ignore();
        let mut log = Log::begin(region.clone(), area.clone(), 1);
        log.append(&transaction(1)).unwrap().ignore();
        turn(&region, area.half_at(0) + 16);
        area.retire(&region, 0, region.fence(nvm::Flushed::none())).ignore();
        let found = FoundLog::of(&region, &area);
        assert!(found.damage().unwrap().contains("epoch 9 was begun"), "{:?}", found.damage());
        assert_eq!(found.last_epoch(), 9);
    }

    /// What a half has from before is no record, though all of it is whole.
    #[test]
    fn what_is_left_of_another_epoch_is_nothing() {
        let (region, area, _) = written(1);
        area.retire(&region, 2, region.fence(nvm::Flushed::none())).ignore();
        assert_eq!(numbers(&region, &area), (vec![], 1, None));
        Log::begin(region.clone(), area.clone(), 21);
        assert_eq!(numbers(&region, &area), (vec![], 21, None));
    }
}
