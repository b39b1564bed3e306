//! The redo log: transactions committed since the newest checkpoint (Shortcut-JFS §III.A–B).
//!
//! The log has two halves. The running epoch appends to one; while its checkpoint is made, the next epoch already
//! appends to the other. A half begins with a header that names its epoch and a salt that no other use of the log
//! ever had; a transaction is COMMITTED when its record is on the medium as a whole, which its checksum (salted) and
//! its sequence number tell, so a commit needs one fence. Publishing the checkpoint of its epoch retires a half: its
//! version is then not newer than the checkpoint, and it need not be erased.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use nvm::{Durable, Flushed, Purpose};
use parking_lot::{Mutex, MutexGuard};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Durability;
use crate::checksum;
use crate::error::corrupt;
use crate::geometry::{BLOCK, Medium};
use crate::record::{CHECKS_DATA, Item, Items, TRANSACTION_HEADER, Transaction};

/// Begins each half.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct HalfHeader {
    /// CRC-32C of all that follows.
    crc: U32,
    /// The epoch whose transactions follow.
    pub(crate) version: U32,
    /// Mixed into every record's checksum.
    pub(crate) salt: U64,
    /// Sequence number of the first transaction.
    pub(crate) first: U64,
    reserved: [u8; 40],
}
const HALF_HEADER: u64 = 64;
const _: () = assert!(size_of::<HalfHeader>() as u64 == HALF_HEADER);

/// Records begin at multiples of this: a line is never shared by two transactions.
const ALIGN: usize = nvm::LINE as usize;

pub(crate) struct Journal {
    medium: Arc<Medium>,
    durability: Durability,
    mounts: u64,
    /// Bytes of the running half neither used nor promised.
    space: AtomicI64,
    state: Mutex<State>,
    transactions: AtomicU64,
}

pub(crate) struct State {
    half: usize,
    /// Where the next record goes, bytes from the half's start.
    at: u64,
    /// Everything before is durable.
    durable: u64,
    sequence: u64,
    /// Sequence number of the half's first transaction.
    first_of_half: u64,
    salt: u64,
}

/// Why a transaction may point to the data blocks it maps.
pub(crate) enum Data {
    /// It maps none.
    None,
    /// They are durable.
    Durable(Durable),
    /// They were streamed and have this checksum: the transaction's own fence makes them durable, and replay takes
    /// the last transaction of the log only if they are what they should be.
    Checked(u32, Flushed),
}

/// The right to commit the next transaction.
pub(crate) struct Turn<'a>(MutexGuard<'a, State>);

/// Bytes of log that an operation may take. What is left returns when it is dropped.
#[must_use]
pub(crate) struct Space<'a> {
    journal: &'a Journal,
    left: i64,
}

impl Drop for Space<'_> {
    fn drop(&mut self) {
        self.journal.space.fetch_add(self.left, Relaxed);
    }
}

impl Journal {
    /// A log whose first epoch is to be begun with [`Journal::begin`].
    pub(crate) fn new(medium: Arc<Medium>, durability: Durability, mounts: u64, sequence: u64) -> Journal {
        let state = State { half: 1, at: 0, durable: 0, sequence, first_of_half: sequence, salt: 0 };
        Journal {
            medium,
            durability,
            mounts,
            space: AtomicI64::new(0),
            state: Mutex::new(state),
            transactions: AtomicU64::new(0),
        }
    }

    /// Bytes of one half that records can fill.
    pub(crate) fn capacity(&self) -> u64 {
        self.medium.geometry.log_half * BLOCK - HALF_HEADER
    }

    /// Bytes in use of the running half, transactions since the mount, and the sequence number that comes next.
    pub(crate) fn usage(&self) -> (u64, u64, u64) {
        let state = self.state.lock();
        (state.at.saturating_sub(HALF_HEADER), self.transactions.load(Relaxed), state.sequence)
    }

    /// Whether more than half of the running half is used or promised.
    pub(crate) fn is_filling(&self) -> bool {
        self.space.load(Relaxed) < self.capacity() as i64 / 2
    }

    /// Begins the epoch of `version` in the other half, whose own epoch has been published. What was committed
    /// before is durable when this returns. The caller keeps operations out.
    pub(crate) fn begin(&self, version: u32) {
        if self.durability == Durability::Snapshot {
            self.space.store(i64::MAX / 2, Relaxed);
            return;
        }
        let mut state = self.state.lock();
        self.make_durable(&mut state);
        state.half = 1 - state.half;
        state.first_of_half = state.sequence;
        state.salt = self.mounts << 32 | u64::from(version);
        let mut header = HalfHeader {
            crc: 0.into(),
            version: version.into(),
            salt: state.salt.into(),
            first: state.sequence.into(),
            reserved: [0; 40],
        };
        header.crc = checksum::of(&header.as_bytes()[4..]).into();
        let at = self.medium.geometry.log_at(state.half);
        let flushed = self.medium.region.stream(Purpose::Journal, at, header.as_bytes());
        self.medium.region.fence(flushed).ignore();
        (state.at, state.durable) = (HALF_HEADER, HALF_HEADER);
        self.space.store(self.capacity() as i64, Relaxed);
    }

    /// Promises room for a transaction of up to `bytes`, or `None` if a checkpoint must make room first.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<Space<'_>> {
        let bytes = bytes.next_multiple_of(ALIGN) as i64;
        let take = |space: i64| (space >= bytes).then_some(space - bytes);
        self.space.fetch_update(Relaxed, Relaxed, take).ok()?;
        Some(Space { journal: self, left: bytes })
    }

    /// Whether data that a transaction maps may become durable with it, by one fence.
    pub(crate) fn checks_data(&self) -> bool {
        self.durability == Durability::Operation
    }

    /// The right to commit next. Taking it is an atomic exchange, which waits for whatever the thread has streamed:
    /// who streams little takes it before, so that the transaction's fence is the only wait.
    pub(crate) fn turn(&self) -> Turn<'_> {
        Turn(self.state.lock())
    }

    /// Commits a transaction. `data` says why what it points to is there. With `durability=op` it is
    /// durable when this returns; with `fsync`, when [`Journal::force`] has returned.
    pub(crate) fn commit(
        &self,
        turn: Turn<'_>,
        space: &mut Space<'_>,
        transaction: &mut Transaction,
        data: Data,
    ) {
        if self.durability == Durability::Snapshot {
            return;
        }
        let bytes = &mut transaction.bytes;
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        let length = bytes.len();
        bytes[4..8].copy_from_slice(&(length as u32).to_le_bytes());
        space.left -= length as i64;
        let streamed = match data {
            Data::None | Data::Durable(_) => Flushed::none(),
            Data::Checked(crc, streamed) => {
                bytes[16..20].copy_from_slice(&crc.to_le_bytes());
                bytes[20..24].copy_from_slice(&CHECKS_DATA.to_le_bytes());
                streamed
            }
        };
        let region = &self.medium.region;
        let Turn(mut state) = turn;
        bytes[8..16].copy_from_slice(&state.sequence.to_le_bytes());
        let crc = salted(state.salt, bytes);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        let at = self.medium.geometry.log_at(state.half) + state.at;
        state.sequence += 1;
        state.at += length as u64;
        if self.durability == Durability::Operation {
            let flushed = region.stream(Purpose::Journal, at, bytes);
            // Within the lock: a transaction is durable only if all before it are.
            region.fence(flushed.and(streamed)).ignore();
            state.durable = state.at;
        } else {
            region.store(Purpose::Journal, at, bytes);
        }
        self.transactions.store(self.transactions.load(Relaxed) + 1, Relaxed);
    }

    /// Makes all transactions committed so far durable.
    pub(crate) fn force(&self) {
        self.make_durable(&mut self.state.lock());
    }

    fn make_durable(&self, state: &mut State) {
        if state.durable < state.at {
            let at = self.medium.geometry.log_at(state.half) + state.durable;
            let flushed = self.medium.region.flush(Purpose::Journal, at, state.at - state.durable);
            self.medium.region.fence(flushed).ignore();
            state.durable = state.at;
        }
    }

    /// The records of the half that is not running, for the checkpoint of their epoch.
    pub(crate) fn frozen(&self) -> Option<Records<'_>> {
        if self.durability == Durability::Snapshot {
            return None;
        }
        let (half, end) = {
            let state = self.state.lock();
            (1 - state.half, state.first_of_half)
        };
        let records = Records::of_half(&self.medium, half)?;
        Some(Records { written: Some(end), ..records })
    }
}

fn salted(salt: u64, record: &[u8]) -> u32 {
    checksum::append(checksum::of(&salt.to_le_bytes()), &record[4..])
}

/// A transaction of the log.
#[derive(Clone, Copy)]
pub(crate) struct Committed<'a> {
    pub(crate) items: &'a [u8],
    /// If it is the log's last, it counts only if the blocks it maps have this checksum.
    data_crc: Option<u32>,
}

impl Committed<'_> {
    /// The runs of blocks whose bytes came with the transaction: first block and count.
    fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        Items(self.items).flatten().filter_map(|item| match item {
            Item::Map { pointer, count, .. } if pointer.has_data() && count > 0 => {
                Some((pointer.block(), u64::from(count)))
            }
            _ => None,
        })
    }

    /// Whether the blocks it maps are on the medium. Only the log's last transaction may say no: the fence that made
    /// it durable had not come before the power went.
    pub(crate) fn has_its_data(&self, medium: &Medium) -> bool {
        let Some(expected) = self.data_crc else { return true };
        let mut crc: Option<u32> = None;
        for (block, count) in self.runs() {
            if !medium.geometry.in_main(block) || !medium.geometry.in_main(block + count - 1) {
                return false;
            }
            let bytes = medium.region.bytes(block * BLOCK, (count * BLOCK) as usize);
            crc = Some(crc.map_or_else(|| checksum::of(bytes), |before| checksum::append(before, bytes)));
        }
        crc == Some(expected)
    }

    /// Flushes the blocks it maps, if its own fence was to make them durable and may not have come.
    pub(crate) fn flush_data(&self, medium: &Medium) -> Flushed {
        if self.data_crc.is_none() {
            return Flushed::none();
        }
        let runs = self
            .runs()
            .map(|(block, count)| medium.region.flush(Purpose::Data, block * BLOCK, count * BLOCK));
        runs.fold(Flushed::none(), Flushed::and)
    }
}

/// The committed transactions of one half, oldest first.
#[derive(Clone)]
pub(crate) struct Records<'a> {
    pub(crate) header: HalfHeader,
    /// Byte address of the half.
    at: u64,
    bytes: &'a [u8],
    sequence: u64,
    /// Where the records end, if this process wrote them: they need no checking.
    written: Option<u64>,
}

impl<'a> Records<'a> {
    /// `None` if the half has no intact header.
    pub(crate) fn of_half(medium: &'a Medium, half: usize) -> Option<Records<'a>> {
        let at = medium.geometry.log_at(half);
        let header: HalfHeader = medium.region.load(at);
        if checksum::of(&header.as_bytes()[4..]) != header.crc.get() || header.version.get() == 0 {
            return None;
        }
        let bytes = medium.region.bytes(at, (medium.geometry.log_half * BLOCK) as usize);
        Some(Records {
            header,
            at,
            bytes: &bytes[HALF_HEADER as usize..],
            sequence: header.first.get(),
            written: None,
        })
    }

    /// The sequence number that would come next.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Flushes the half from its header to the end of its last transaction.
    pub(crate) fn flush(&self, medium: &Medium) -> Flushed {
        let mut end = self.clone();
        while end.next().is_some() {}
        let whole = (medium.geometry.log_half * BLOCK) as usize;
        medium.region.flush(Purpose::Journal, self.at, (whole - end.bytes.len()) as u64)
    }

    /// The halves whose epoch is newer than `published`, oldest first; an error if they don't join.
    pub(crate) fn since(medium: &'a Medium, published: u32) -> vfs::Result<Vec<Records<'a>>> {
        let mut halves: Vec<_> = (0..2)
            .filter_map(|half| Records::of_half(medium, half))
            .filter(|records| records.header.version.get() > published)
            .collect();
        halves.sort_by_key(|records| records.header.version.get());
        if let [older, newer] = &halves[..] {
            let mut end = older.clone();
            while end.next().is_some() {}
            if end.sequence != newer.header.first.get() {
                let block = medium.geometry.log_start;
                return Err(corrupt(
                    "log",
                    block,
                    "end of its older half",
                    end.sequence,
                    newer.header.first.get(),
                ));
            }
        }
        Ok(halves)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Committed<'a>;

    fn next(&mut self) -> Option<Committed<'a>> {
        if self.written.is_some_and(|end| self.sequence >= end) {
            return None;
        }
        let header = self.bytes.get(..TRANSACTION_HEADER)?;
        let length = u32::from_le_bytes(header[4..8].try_into().expect("4 bytes")) as usize;
        if length < ALIGN || !length.is_multiple_of(ALIGN) {
            return None;
        }
        let record = self.bytes.get(..length)?;
        if u64::from_le_bytes(header[8..16].try_into().expect("8 bytes")) != self.sequence
            || (self.written.is_none()
                && u32::from_le_bytes(header[..4].try_into().expect("4 bytes"))
                    != salted(self.header.salt.get(), record))
        {
            return None;
        }
        self.bytes = &self.bytes[length..];
        self.sequence += 1;
        let flags = u32::from_le_bytes(header[20..24].try_into().expect("4 bytes"));
        let data_crc = u32::from_le_bytes(header[16..20].try_into().expect("4 bytes"));
        Some(Committed {
            items: &record[TRANSACTION_HEADER..],
            data_crc: (flags & CHECKS_DATA != 0).then_some(data_crc),
        })
    }
}
