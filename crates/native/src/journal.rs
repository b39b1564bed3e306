//! The redo log as it is written: transactions committed since the newest checkpoint (Shortcut-JFS §III.A–B).
//!
//! The log has two halves. The running epoch fills one; while its checkpoint is made, the next epoch already
//! fills the other. A half begins with a header that names its epoch and a salt that no other use of any log
//! ever had, and is handed out to lanes in chunks, so that threads write side by side. A transaction is COMMITTED when
//! its record is on the medium as a whole, which its checksum (salted) and its number tell, so a commit needs
//! one fence, and waits for nobody else's. Publishing the checkpoint of its epoch retires a half: its version is then
//! not newer than the checkpoint, and it need not be erased. [`crate::scan`] reads the log after a crash.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use nvm::{Durable, Flushed, Purpose};
use parking_lot::{Mutex, MutexGuard};
use siphasher::sip::SipHasher13;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Durability;
use crate::alone::Alone;
use crate::checksum;
use crate::fault::{self, Fault, planted};
use crate::geometry::{BLOCK, Geometry, LANES, Medium, NUMBERS, VERSIONS};
use crate::lanes::{Lane, LogPlace};
use crate::record::{ALIGN, BESIDE, CHECKS_DATA, LANE_SHIFT, TURN_SHIFT, Transaction};

/// Begins each half.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct HalfHeader {
    /// CRC-32C of the volume's hash key and all that follows: a header of another volume is none.
    crc: U32,
    /// The epoch whose transactions follow.
    pub(crate) version: U32,
    /// Mixed into every record's checksum.
    pub(crate) salt: U64,
    /// Number of the first transaction.
    pub(crate) first: U64,
    /// Lanes: how many transactions may be missing before the last. 0: none, what follows a gap counts as not there.
    pub(crate) lanes: U32,
    reserved: [u8; 36],
}
/// Bytes of a half before its first record.
pub(crate) const HALF_HEADER: u64 = 64;
const _: () = assert!(size_of::<HalfHeader>() as u64 == HALF_HEADER);

impl HalfHeader {
    /// One without its checksum.
    pub(crate) fn new(version: u32, salt: u64, first: u64, lanes: u32) -> HalfHeader {
        HalfHeader {
            crc: 0.into(),
            version: version.into(),
            salt: salt.into(),
            first: first.into(),
            lanes: lanes.into(),
            reserved: [0; 36],
        }
    }

    fn checksum(&self, key: [u64; 2]) -> u32 {
        checksum::append(checksum::of(key.as_bytes()), &self.as_bytes()[4..])
    }

    /// Whether it is one that this volume wrote.
    pub(crate) fn is_intact(&self, key: [u64; 2]) -> bool {
        self.checksum(key) == self.crc.get()
            && (1..VERSIONS).contains(&self.version.get())
            && self.first.get() < NUMBERS
    }
}

/// Bytes of a chunk: a 256th of a half, but 16 KiB at least and 256 KiB at most.
pub(crate) fn chunk_bytes(geometry: &Geometry) -> u64 {
    (geometry.log_half / 256).clamp(4, 64) * BLOCK
}

/// The checksum of a record in a half with this salt.
pub(crate) fn salted(salt: u64, record: &[u8]) -> u32 {
    checksum::append(salted_with(salt), &record[4..])
}

/// What the checksum of a record in a half with this salt begins with.
fn salted_with(salt: u64) -> u32 {
    checksum::of(&salt.to_le_bytes())
}

/// A number that no other use of any log has: of the volume's key, of the mount, of the epoch.
pub(crate) fn salt_of(key: [u64; 2], mounts: u64, version: u32) -> u64 {
    let words = [mounts, u64::from(version)];
    SipHasher13::new_with_keys(key[0], key[1]).hash(words.as_bytes())
}

pub(crate) struct Journal {
    medium: Arc<Medium>,
    durability: Durability,
    key: [u64; 2],
    mounts: u64,
    chunk: u64,
    /// Number of the first transaction since the mount.
    since: u64,
    /// Number of the next transaction.
    next: Alone<AtomicU64>,
    /// What follows changes only when an epoch ends, by who holds all lanes.
    half: AtomicU32,
    salt: AtomicU64,
    /// Number of the running half's first transaction.
    first: AtomicU64,
    /// Chunks of the running half that lanes have.
    taken: AtomicU64,
    /// Where the running half has changes in place, but for what lanes are filling.
    in_place: Mutex<Vec<Range<u64>>>,
    /// With `durability=fsync`: numbers and records are in one order, and what of them is not durable.
    order: Mutex<Order>,
}

/// Records not flushed yet.
#[derive(Default)]
struct Order {
    /// By lane, what it filled last.
    last: [Range<u64>; LANES],
    before: Vec<Range<u64>>,
}

/// The number of a transaction to come: it must be committed or abandoned.
#[must_use]
pub(crate) struct Number(u64);

/// Why a transaction may point to the data blocks it maps.
pub(crate) enum Data {
    /// It maps none.
    None,
    /// They are durable.
    Durable(Durable),
    /// They were streamed and have this checksum: the transaction's own fence makes them durable, and replay takes
    /// the last transaction of a lane only if they are what they should be.
    Checked(u32, Flushed),
}

impl Journal {
    /// The log of the volume with this hash key. Its first epoch is to be begun with [`Journal::begin`].
    pub(crate) fn new(
        medium: Arc<Medium>,
        durability: Durability,
        key: [u64; 2],
        mounts: u64,
        next: u64,
    ) -> Journal {
        let chunk = chunk_bytes(&medium.geometry);
        Journal {
            medium,
            durability,
            key,
            mounts,
            chunk,
            since: next,
            next: Alone::new(AtomicU64::new(next)),
            half: AtomicU32::new(1),
            salt: AtomicU64::new(0),
            first: AtomicU64::new(next),
            taken: AtomicU64::new(0),
            in_place: Mutex::default(),
            order: Mutex::default(),
        }
    }

    fn chunks(&self) -> u64 {
        self.medium.geometry.log_half * BLOCK / self.chunk
    }

    /// Bytes of one half that records can fill.
    pub(crate) fn capacity(&self) -> u64 {
        self.chunks() * self.chunk - HALF_HEADER
    }

    /// Bytes of the running half that lanes have taken.
    pub(crate) fn used_bytes(&self) -> u64 {
        (self.taken.load(Relaxed) * self.chunk).min(self.capacity())
    }

    /// The number that comes next.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// Transactions since the mount.
    pub(crate) fn transactions(&self) -> u64 {
        self.next() - self.since
    }

    /// Whether the running half has transactions. The caller holds all lanes.
    pub(crate) fn has_transactions(&self) -> bool {
        self.next() != self.first.load(Relaxed)
    }

    /// Begins the epoch of `version` in the other half, whose own epoch has been published. What was committed
    /// before is durable when this returns. The caller holds all lanes. Returns where the half that ends has changes in
    /// place.
    pub(crate) fn begin(&self, version: u32, lanes: &mut [MutexGuard<'_, Lane>]) -> Vec<Range<u64>> {
        if self.durability == Durability::Snapshot {
            return Vec::new();
        }
        self.force();
        for lane in lanes.iter_mut() {
            self.leave(&mut lane.place);
            lane.turn = 0;
        }
        let half = 1 - self.half.load(Relaxed);
        let salt = salt_of(self.key, self.mounts, version);
        let in_flight = if self.durability == Durability::Operation { LANES as u32 } else { 0 };
        let mut header = HalfHeader::new(version, salt, self.next(), in_flight);
        header.crc = header.checksum(self.key).into();
        let at = self.medium.geometry.log_at(half as usize);
        let region = &self.medium.region;
        let flushed =
            fault::stream(region, Fault::HalfHeaderNotSent, Purpose::Journal, at, header.as_bytes());
        region.fence(flushed).ignore();
        self.half.store(half, Relaxed);
        self.salt.store(salt, Relaxed);
        self.first.store(self.next(), Relaxed);
        self.taken.store(0, Relaxed);
        std::mem::take(&mut *self.in_place.lock())
    }

    /// Takes back what lanes have of a half without transactions. The caller holds all lanes.
    pub(crate) fn rewind(&self, lanes: &mut [MutexGuard<'_, Lane>]) {
        lanes.iter_mut().for_each(|lane| lane.place = LogPlace::default());
        self.taken.store(0, Relaxed);
    }

    /// Makes room at `place` for a transaction of up to `bytes`; false if a checkpoint must make room first. The second
    /// answer: whether more than half of the half is now taken, and was not before.
    pub(crate) fn reserve(&self, place: &mut LogPlace, bytes: usize) -> (bool, bool) {
        let bytes = bytes.next_multiple_of(ALIGN) as u64;
        if place.end - place.at >= bytes || self.durability == Durability::Snapshot {
            return (true, false);
        }
        self.take_chunks(place, (bytes + HALF_HEADER).div_ceil(self.chunk))
    }

    #[cold]
    fn take_chunks(&self, place: &mut LogPlace, count: u64) -> (bool, bool) {
        let chunks = self.chunks();
        let take = |taken: u64| (taken + count <= chunks).then_some(taken + count);
        let Ok(first) = self.taken.fetch_update(Relaxed, Relaxed, take) else { return (false, false) };
        self.leave(place);
        let at = self.medium.geometry.log_at(self.half.load(Relaxed) as usize);
        let start = at + (first * self.chunk).max(HALF_HEADER);
        let end = at + (first + count) * self.chunk;
        *place = LogPlace {
            start,
            at: start,
            end,
            salt_crc: salted_with(self.salt.load(Relaxed)),
            in_place: false,
        };
        (true, first * 2 <= chunks && (first + count) * 2 > chunks)
    }

    /// Nothing more is written to `place`.
    fn leave(&self, place: &mut LogPlace) {
        if place.in_place && !planted(Fault::InPlaceForgotten) {
            self.in_place.lock().push(place.start..place.at);
        }
        *place = LogPlace::default();
    }

    /// Whether data that a transaction maps may become durable with it, by one fence.
    pub(crate) fn checks_data(&self) -> bool {
        self.durability == Durability::Operation
    }

    /// The number of the next transaction, with `durability=op`. Taking it is an atomic exchange, which waits for
    /// whatever the thread has streamed: who streams data takes it before, so that the transaction's fence is the only
    /// wait. The locks of all inodes that the transaction concerns are held: so numbers of transactions that depend on
    /// each other are in their order.
    pub(crate) fn number(&self) -> Number {
        Number(self.next.fetch_add(1, Relaxed))
    }

    /// Streams a transaction, with `durability=op`. It is durable after the fence of what this returns. `data` says
    /// why what it points to is there.
    pub(crate) fn stream(
        &self,
        lane: &mut Lane,
        Number(number): Number,
        transaction: &mut Transaction,
        data: Data,
    ) -> Flushed {
        let (crc, streamed) = match data {
            Data::None | Data::Durable(_) => (None, Flushed::none()),
            Data::Checked(crc, streamed) => (Some(crc), streamed),
        };
        let (at, bytes) = self.seal(lane, number, transaction, crc);
        let region = &self.medium.region;
        if planted(Fault::RecordTailNotSent) {
            let (sent, tail) = bytes.split_at(bytes.len() - ALIGN);
            region.store(Purpose::Journal, at + sent.len() as u64, tail);
            return streamed.and(region.stream(Purpose::Journal, at, sent));
        }
        streamed.and(region.stream(Purpose::Journal, at, bytes))
    }

    /// Stores a transaction, with `durability=fsync`. It is durable when [`Journal::force`] has returned. What it
    /// points to is durable already.
    pub(crate) fn store(&self, lane: &mut Lane, transaction: &mut Transaction, data: Data) {
        let (Data::None | Data::Durable(_)) = data else {
            unreachable!("data comes with its fence only with op")
        };
        let mut order = self.order.lock();
        let number = self.next.fetch_add(1, Relaxed);
        let (at, bytes) = self.seal(lane, number, transaction, None);
        self.medium.region.store(Purpose::Journal, at, bytes);
        let (end, number) = (at + bytes.len() as u64, usize::from(lane.number));
        if order.last[number].end == at {
            order.last[number].end = end;
        } else {
            let before = std::mem::replace(&mut order.last[number], at..end);
            order.before.push(before);
        }
    }

    /// Fills in the header. Returns where the record goes, and its bytes.
    fn seal<'t>(
        &self,
        lane: &mut Lane,
        number: u64,
        transaction: &'t mut Transaction,
        data_crc: Option<u32>,
    ) -> (u64, &'t [u8]) {
        let bytes = &mut transaction.bytes;
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        let length = bytes.len();
        let place = &mut lane.place;
        // Before anything is changed: behind a panic the lane serves others.
        assert!(
            length as u64 <= place.end - place.at,
            "a transaction of {length} bytes is longer than what was reserved"
        );
        place.in_place |= transaction.changes_in_place;
        let flags = u32::from(lane.turn) << TURN_SHIFT
            | u32::from(lane.number) << LANE_SHIFT
            | if data_crc.is_some() { CHECKS_DATA } else { 0 }
            | if transaction.beside { BESIDE } else { 0 };
        lane.turn = lane.turn.wrapping_add(1);
        // By words, as the checksum reads them: what was stored in halves would have to be in the cache first.
        let word = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32).to_le_bytes();
        bytes[..8].copy_from_slice(&word(0, length as u32));
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        bytes[16..24].copy_from_slice(&word(data_crc.unwrap_or(0), flags));
        let crc = checksum::append(place.salt_crc, &bytes[4..]);
        bytes[..8].copy_from_slice(&word(crc, length as u32));
        let at = place.at;
        place.at += length as u64;
        (at, bytes)
    }

    /// Uses a number for nothing, so that no transaction is missed: an empty one has it.
    pub(crate) fn abandon(&self, lane: &mut Lane, number: Number) {
        let flushed = self.stream(lane, number, &mut Transaction::new(), Data::None);
        self.medium.region.fence(flushed).ignore();
    }

    /// Makes all transactions committed so far durable.
    pub(crate) fn force(&self) {
        let region = &self.medium.region;
        let mut order = self.order.lock();
        let Order { last, before } = &mut *order;
        let flushed = before
            .drain(..)
            .chain(last.iter_mut().map(std::mem::take))
            .filter(|range| !range.is_empty())
            .map(|range| {
                let length = range.end - range.start;
                fault::flush(region, Fault::ForceNotFlushed, Purpose::Journal, range.start, length)
            })
            .reduce(Flushed::and);
        if let Some(flushed) = flushed {
            // Within the lock: who comes later must not find nothing to do before this has arrived.
            fault::fence(region, Fault::ForceFence, flushed).ignore();
        }
    }
}
