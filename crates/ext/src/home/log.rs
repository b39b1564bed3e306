//! The log: committed transactions whose changes are not durable anywhere else.
//!
//! FSMAC changes metadata in place and keeps what was, to undo it (III.C). Here the changed sub-blocks are logged and what was stays in its
//! frame until they are: a transaction is one record, whose checksum commits it, so it takes one fence; and a crash leaves nothing to
//! undo. The log has two halves. One fills while what the other has is made durable elsewhere; then its epoch is *retired*.
//!
//! **Records are in the order of their transactions, without a gap**: a record is begun when the fence of the one before has passed.
//! So the first that is not whole is the end.

use std::ops::Range;
use std::sync::Arc;

use nvm::{Durable, Purpose, Region};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum::crc32c;
use crate::fault::{self, Fault, planted};
use crate::home::Area;
use crate::kind::Kind;

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
    /// Number of the first transaction.
    first: U64,
    reserved2: [u8; 32],
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
    transaction: U64,
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
    /// Its number.
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
    /// Where in the half the next record begins.
    at: u64,
    buffer: Vec<u8>,
}

impl Log {
    /// A log that begins with an epoch which is newer than any that was retired, transactions from `first` on.
    pub(crate) fn begin(region: Region, area: Area, first: u64) -> Log {
        let epoch = area.retired(&region);
        let before: RawHalf = region.load(area.half_at(epoch % 2));
        let mut log = Log { region, area, epoch, salt: before.salt.get(), at: 0, buffer: Vec::new() };
        log.switch(first);
        log
    }

    /// The epoch that fills.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Begins the next epoch in the other half, whose own one is retired; `first` is the number of its first transaction.
    pub(crate) fn switch(&mut self, first: u64) {
        self.epoch += 1;
        self.salt = salt_behind(self.salt, self.epoch);
        let mut raw = RawHalf {
            crc: 0.into(),
            reserved: 0.into(),
            epoch: self.epoch.into(),
            salt: self.salt.into(),
            first: first.into(),
            reserved2: [0; 32],
        };
        raw.crc = raw.checksum(&self.region).into();
        let at = self.area.half_at(self.epoch % 2);
        let flushed =
            fault::stream(&self.region, Fault::HalfHeaderNotSent, Purpose::Journal, at, raw.as_bytes());
        // Before any record of it: the header makes the half's old records none.
        self.region.fence(flushed).ignore();
        self.at = HEADER;
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
            transaction: transaction.number.into(),
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
    fn checksum(&self, region: &Region) -> u32 {
        crc32c(crc32c(!0, region.uuid().as_bytes()), &self.as_bytes()[4..])
    }
}

/// The salt of an epoch: unlike any before, and to be foreseen by nobody who only knows what files hold. The first is random and each
/// follows from one before, so that what a volume does follows from what is in NVM.
fn salt_behind(before: u64, epoch: u64) -> u64 {
    if before == 0 {
        return Uuid::new_v4().as_u64_pair().0 | 1;
    }
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

/// Hands `visit` the transactions that are committed and not retired, in their order; gives the number of the next one: one that not even
/// a torn record has. So what is left in a half from before is known for that by its number, and not read. The region is not changed.
pub(crate) fn read(
    region: &Region,
    area: &Area,
    mut visit: impl FnMut(Logged) -> vfs::Result<()>,
) -> vfs::Result<Option<u64>> {
    let retired = area.retired(region);
    let (mut next, mut is_torn) = (None, false);
    for epoch in retired + 1..=retired + 2 {
        let start = area.half_at(epoch % 2);
        let half: RawHalf = region.load(start);
        if half.checksum(region) != half.crc.get() || half.epoch.get() != epoch {
            break;
        }
        let mut number = half.first.get();
        // Of two epochs the first is whole: the second was begun behind its last fence.
        if next.is_some_and(|next| next != number) {
            let (found, expected) = (number, next.unwrap_or(0));
            return Err(crate::error::corrupt(
                "log",
                format_args!("epoch {epoch}"),
                "its first transaction",
                found,
                expected,
            ));
        }
        let mut at = HEADER;
        while let Some((logged, bytes)) = record(region, area, start, at, half.salt.get(), number) {
            visit(logged)?;
            at += bytes;
            number += 1;
        }
        next = Some(number);
        is_torn = header(region, area, start, at).is_some_and(|header| header.transaction.get() == number);
    }
    Ok(next.map(|next| next + u64::from(is_torn)))
}

/// What the record at `at` of a half begins with, if the half goes as far.
fn header(region: &Region, area: &Area, half: u64, at: u64) -> Option<RawRecord> {
    (at + RECORD as u64 <= area.half).then(|| region.load(half + at))
}

/// The record at `at` of a half, if it is transaction `number`, whole.
fn record(region: &Region, area: &Area, half: u64, at: u64, salt: u64, number: u64) -> Option<(Logged, u64)> {
    let header = header(region, area, half, at)?;
    let bytes = u64::from(header.bytes.get());
    if header.transaction.get() != number || bytes < RECORD as u64 || bytes > area.half - at {
        return None;
    }
    let record = region.bytes(half + at, bytes as usize);
    if salted(salt, record) != header.crc.get() && !planted(Fault::RecordChecksumIgnored) {
        return None;
    }
    let logged = decode(&header, &record[RECORD..], half + at + RECORD as u64, area)?;
    Some((logged, bytes))
}

/// What a record holds, whose bytes behind its header are at `start` of the region.
fn decode(header: &RawRecord, bytes: &[u8], start: u64, area: &Area) -> Option<Logged> {
    let all = bytes.len();
    let mut reader = Reader { rest: bytes };
    let part = area.part as usize;
    let mut logged =
        Logged { number: header.transaction.get(), bytes: header.bytes.get().into(), ..Logged::default() };
    for _ in 0..header.blocks.get() {
        let raw: RawBlock = reader.take()?;
        let kind = Kind::from_words(raw.kind.get(), raw.ino.get())?;
        let parts = raw.parts.get();
        if parts & !all_parts(area.block as usize, part) != 0 {
            return None;
        }
        let mut changed = Vec::new();
        for n in (0..64).filter(|n| parts >> n & 1 != 0) {
            changed.push((n, reader.bytes(part)?.to_vec()));
        }
        logged.blocks.push((raw.number.get(), kind, changed));
    }
    for _ in 0..header.freed.get() {
        logged.freed.push(reader.take::<U64>()?.get());
    }
    for _ in 0..header.ranges.get() {
        let [start, end] = reader.take::<[U64; 2]>()?;
        logged.ranges.push(start.get()..end.get());
    }
    for _ in 0..header.items.get() {
        let raw: RawItem = reader.take()?;
        let (length, fresh) = (raw.length.get() & !FRESH, raw.length.get() & FRESH != 0);
        let end = u64::from(raw.offset.get()) + u64::from(length);
        if end > area.block {
            return None;
        }
        let at = start + (all - reader.rest.len()) as u64;
        reader.bytes(length.next_multiple_of(8) as usize)?;
        logged.items.push(Item { block: raw.block.get(), offset: raw.offset.get(), length, fresh, at });
    }
    Some(logged)
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        T::read_from_bytes(self.bytes(size_of::<T>())?).ok()
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }
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

    fn all(region: &Region, area: &Area) -> (Vec<Logged>, Option<u64>) {
        let mut found = Vec::new();
        let next = read(region, area, |logged| {
            found.push(logged);
            Ok(())
        });
        (found, next.unwrap())
    }

    #[test]
    fn what_is_appended_is_read_back() {
        let (region, area) = area();
        let mut log = Log::begin(region.clone(), area.clone(), 5);
        for number in 5..8 {
            log.append(&transaction(number)).unwrap().ignore();
        }
        log.switch(8);
        log.append(&transaction(8)).unwrap().ignore();
        let (found, next) = all(&region, &area);
        assert_eq!((found.len(), next), (4, Some(9)));
        assert_eq!(found[1].blocks[0].2, [(0, vec![6; 128]), (2, vec![6; 128])]);
        assert_eq!(found[1].blocks[1].2.len(), 8);
        assert_eq!((&found[3].freed[..], &found[3].ranges[..]), (&[4, 5][..], &[4..6, 100..101][..]));
        let (item, expected) = (found[3].items[0], &transaction(8).items[0]);
        assert_eq!((item.block, item.offset, item.fresh), (expected.block, 3, expected.fresh));
        assert_eq!(region.bytes(item.at, item.length as usize), expected.bytes());
        area.retire(&region, 1, region.fence(nvm::Flushed::none())).ignore();
        let (found, next) = all(&region, &area);
        assert_eq!((found.len(), next), (1, Some(9)), "a retired epoch is none");
    }

    #[test]
    fn the_log_ends_at_what_is_torn() {
        let (region, area) = area();
        let mut log = Log::begin(region.clone(), area.clone(), 1);
        log.append(&transaction(1)).unwrap().ignore();
        let second = area.half_at(1) + log.at;
        log.append(&transaction(2)).unwrap().ignore();
        log.append(&transaction(3)).unwrap().ignore();
        let was = region.bytes(second + 100, 1)[0];
        region.store(Purpose::Journal, second + 100, &[!was]);
        let (found, next) = all(&region, &area);
        assert_eq!((found.len(), next), (1, Some(3)), "and what is torn has its number for itself");
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
        let (found, next) = all(&region, &area);
        assert_eq!((found.len() as u64, next), (number - 1, Some(number)));
    }
}
