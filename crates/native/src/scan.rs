//! Reading the log after a crash: which transactions are there, in what order, and whether any is missing.
//!
//! Lanes write side by side, so with `durability=op` a power cut can take a transaction and leave a later one: but only
//! such as were in flight, one in each lane, and none that another depends on. A transaction in flight is its lane's
//! last, and each says how many its lane had before: one that is missing before another of its lane is damage, and so are
//! more gaps than lanes explain; the log ends before the first. (A lane's last transaction that damage took looks like one
//! in flight.) With `durability=fsync` nothing behind a gap had been promised, and the log ends there, too.

mod lost_header;

use std::collections::HashSet;
use std::ops::Range;

use nvm::{Flushed, Purpose};
use smallvec::SmallVec;

use crate::checksum;
use crate::error::corrupt;
use crate::fault::{Fault, planted};
use crate::geometry::{BLOCK, LANES, Medium};
use crate::journal::{HALF_HEADER, HalfHeader, chunk_bytes, salted};
use crate::record::{ALIGN, BESIDE, CHECKS_DATA, Item, Items, LANE_SHIFT, TRANSACTION_HEADER, TURN_SHIFT};
use crate::superblock::{Left, Root};

/// A transaction of the log.
#[derive(Clone, Copy)]
pub(crate) struct Committed<'a> {
    pub(crate) number: u64,
    pub(crate) items: &'a [u8],
    lane: u32,
    /// How many transactions its lane had in the half before, as far as 16 bits tell.
    turn: u16,
    /// It says nothing of those before it that change the same inode.
    beside: bool,
    /// If it is its lane's last, it counts only if the blocks it maps have this checksum.
    data_crc: Option<u32>,
}

/// What the log has since a checkpoint.
pub(crate) struct Log<'a> {
    /// The epochs and the numbers of their first transactions, oldest first.
    pub(crate) epochs: Vec<(u32, u64)>,
    /// What is to be replayed, in order.
    pub(crate) transactions: Vec<Committed<'a>>,
    /// No transaction has this number or a larger one.
    pub(crate) next: u64,
    /// Transactions that are there and not to be replayed.
    pub(crate) left_out: u64,
    /// Why transactions that may have been promised are not among those to be replayed.
    pub(crate) broken: Option<vfs::Error>,
    /// What of it was damaged and could be told from the rest.
    pub(crate) lost_header: Option<String>,
    /// Where its bytes are.
    extents: Vec<Range<u64>>,
}

impl<'a> Log<'a> {
    /// Reads the log of the volume with hash key `key` since the checkpoint of version `published`, behind which `next` is
    /// the first transaction.
    pub(crate) fn read(
        medium: &'a Medium,
        key: [u64; 2],
        root: &Root,
        (published, next): (u32, u64),
    ) -> Log<'a> {
        let mut log = Log {
            epochs: Vec::new(),
            transactions: Vec::new(),
            next,
            left_out: 0,
            broken: None,
            lost_header: None,
            extents: Vec::new(),
        };
        let is_newer =
            |header: &HalfHeader| header.version.get() > published || planted(Fault::OldHalfReplayed);
        let (mut halves, mut damaged) = (Vec::new(), Vec::new());
        for half in 0..2 {
            match header_of(medium, key, half) {
                Some(header) if is_newer(&header) => halves.push(Half::read(medium, half, header)),
                Some(_) => {}
                None => damaged.push(half),
            }
        }
        // A half that was never used has no header either; a volume that was unmounted cleanly needs none.
        if root.left() == Left::InUse {
            for half in damaged {
                // Its epoch began behind the checkpoint, or behind the other half's, which did.
                let behind = halves.iter().find(|half| half.header.first.get() == next).map(Half::end);
                let first = behind.unwrap_or(next);
                let newest = (published, root.mounts.get());
                if let Some(header) = lost_header::find(medium, key, half, newest, first) {
                    log.lost_header = Some(format!(
                        "the header of half {half} of the log is damaged: its transactions say what it was"
                    ));
                    halves.push(Half { is_lost: true, ..Half::read(medium, half, header) });
                }
            }
        }
        halves.sort_by_key(|half| half.header.version.get());
        let firsts: Vec<u64> = halves.iter().map(|half| half.header.first.get()).collect();
        for (index, half) in halves.into_iter().enumerate() {
            log.add(medium, half, firsts.get(index + 1).copied());
        }
        log
    }

    /// The newest epoch that has begun; 0 if none has.
    pub(crate) fn version(&self) -> u32 {
        self.epochs.last().map_or(0, |(version, _)| *version)
    }

    /// Whether anything was committed, be it replayed or not.
    pub(crate) fn has_transactions(&self) -> bool {
        !self.transactions.is_empty() || self.left_out > 0 || self.broken.is_some()
    }

    /// Adds a half, the newest one or one that ends where the next begins.
    fn add(&mut self, medium: &'a Medium, half: Half<'a>, end: Option<u64>) {
        let first = half.header.first.get();
        let end_of_half = half.end();
        let Half { header, mut records, extents, is_lost } = half;
        self.epochs.push((header.version.get(), first));
        self.extents.extend(extents);
        let expected = self.next;
        self.next = self.next.max(end_of_half);
        if self.broken.is_some() {
            self.left_out += records.len() as u64;
            return;
        }
        if first != expected {
            self.left_out += records.len() as u64;
            self.broken = Some(broken(medium, expected, &format!("its next half begins with {first}")));
            return;
        }
        let found = records.len();
        let cut = match end {
            Some(end) => {
                let gap = gaps(first, end, &records).next();
                gap.map(|gap| (gap, Some(format!("its half ends with {}", end.wrapping_sub(1)))))
            }
            // What may be missing, the header alone had said.
            None if is_lost => {
                drop_without_data(medium, &mut records);
                let what = || "the header of its half is damaged".to_string();
                gaps(first, self.next, &records).next().map(|gap| (gap, Some(what())))
            }
            None if header.lanes.get() == 0 && planted(Fault::GapIgnored) => None,
            None if header.lanes.get() == 0 => gaps(first, self.next, &records).next().map(|gap| (gap, None)),
            None => {
                drop_without_data(medium, &mut records);
                let last = records.last().map_or(first, |last| last.number + 1);
                damage(first, &records, last)
                    .map(|gap| (gap, Some(format!("there are some up to {}", last - 1))))
            }
        };
        if let Some((gap, damage)) = cut {
            records.truncate(records.partition_point(|record| record.number < gap));
            self.broken = damage.map(|what| broken(medium, gap, &what));
        }
        self.left_out += (found - records.len()) as u64;
        self.transactions.append(&mut records);
    }

    /// Flushes all that was read, and the data that became durable with the last transactions.
    pub(crate) fn flush(&self, medium: &Medium) -> Flushed {
        let mut flushed = Flushed::none();
        for range in &self.extents {
            flushed =
                flushed.and(medium.region.flush(Purpose::Journal, range.start, range.end - range.start));
        }
        let mut seen = [false; LANES];
        for record in self.transactions.iter().rev() {
            let is_last = !std::mem::replace(&mut seen[record.lane as usize], true);
            if !is_last || record.data_crc.is_none() {
                continue;
            }
            for (block, count) in record.runs() {
                if medium.geometry.in_main(block) && medium.geometry.in_main(block + count - 1) {
                    flushed = flushed.and(medium.region.flush(Purpose::Data, block * BLOCK, count * BLOCK));
                }
            }
        }
        flushed
    }
}

fn broken(medium: &Medium, missing: u64, but: &str) -> vfs::Error {
    corrupt("log", medium.geometry.log_start, "transaction", format_args!("{missing} missing"), but)
}

/// The numbers from `first` to `end` that no record has. Records are in order, each number once.
fn gaps<'r>(first: u64, end: u64, records: &'r [Committed<'_>]) -> impl Iterator<Item = u64> + 'r {
    let mut next = first;
    let ends = records.iter().map(|record| record.number).chain([end]);
    ends.flat_map(move |number| {
        let gap = next..number;
        next = number + 1;
        gap
    })
}

/// Takes out what was in flight when the power went: a lane's last transaction whose data did not come.
fn drop_without_data(medium: &Medium, records: &mut Vec<Committed<'_>>) {
    let mut seen = [false; LANES];
    let mut index = records.len();
    while index > 0 {
        index -= 1;
        let record = records[index];
        let is_last = !std::mem::replace(&mut seen[record.lane as usize], true);
        if !is_last || record.has_its_data(medium) || planted(Fault::DataChecksumIgnored) {
            continue;
        }
        // If a later one that depends on it changed the same inode, it was durable, and its data may since have been
        // changed in place.
        let inodes: HashSet<u32> = Items(record.items).flatten().filter_map(|item| item.inode()).collect();
        let depends = |later: &Committed<'_>| {
            if later.beside {
                return false;
            }
            let mut items = Items(later.items).flatten().filter_map(|item| item.inode());
            items.any(|ino| inodes.contains(&ino))
        };
        if !records[index + 1..].iter().any(depends) {
            records.remove(index);
        }
    }
}

/// The first gap that cannot be a transaction in flight, or not with those before it: in flight are lanes' last, one of
/// each lane.
fn damage(first: u64, records: &[Committed<'_>], end: u64) -> Option<u64> {
    // By lane: its last transaction, and how many it has had.
    let mut last = [0; LANES];
    let mut turns = [0u16; LANES];
    // Behind these, transactions of a lane are missing that has later ones.
    let mut skipped: Option<u64> = None;
    for record in records {
        let lane = record.lane as usize;
        if record.turn != turns[lane] {
            skipped = Some(skipped.map_or(last[lane], |skipped| skipped.min(last[lane])));
        }
        (last[lane], turns[lane]) = (record.number, record.turn.wrapping_add(1));
    }
    if let Some(after) = skipped {
        // Without a gap there, turns contradict the numbers.
        return Some(gaps(first, end, records).find(|gap| *gap > after).unwrap_or(after.max(first)));
    }
    last.sort_unstable();
    let mut gaps = gaps(first, end, records).enumerate();
    let first_gap = gaps.next()?.1;
    let explained = |(index, gap): (usize, u64)| last.get(index).is_some_and(|last| *last < gap);
    let all = explained((0, first_gap)) && gaps.all(explained);
    (!all).then_some(first_gap)
}

/// The header of a half, if it has one that this volume wrote.
fn header_of(medium: &Medium, key: [u64; 2], half: usize) -> Option<HalfHeader> {
    let header: HalfHeader = medium.region.load(medium.geometry.log_at(half));
    (header.is_intact(key) && header.lanes.get() as usize <= LANES).then_some(header)
}

/// What one half has.
struct Half<'a> {
    header: HalfHeader,
    records: Vec<Committed<'a>>,
    extents: Vec<Range<u64>>,
    /// Its header was damaged.
    is_lost: bool,
}

impl<'a> Half<'a> {
    /// Reads what is in a half behind its header.
    fn read(medium: &'a Medium, half: usize, header: HalfHeader) -> Half<'a> {
        let at = medium.geometry.log_at(half);
        let (chunk, length) = (chunk_bytes(&medium.geometry), medium.geometry.log_half * BLOCK);
        let mut reader =
            HalfReader { medium, at, length, header: &header, records: Vec::new(), extents: Vec::new() };
        reader.extents.push(at..at + HALF_HEADER);
        // Chunks that begin with no record, behind the last that does: nobody has filled them, unless that is damage.
        let mut empty: SmallVec<[Range<u64>; 16]> = SmallVec::new();
        let mut start = HALF_HEADER;
        while start < length {
            let end = reader.follow(start);
            let next = (end.max(start + 1)).next_multiple_of(chunk).min(length);
            if end == start {
                empty.push(start..next);
            } else if header.lanes.get() > 0 {
                // A power cut leaves nothing behind a lane's last record; and who filled this had filled those before.
                empty.drain(..).for_each(|range| reader.look_through(range));
                reader.look_through(end..next);
            }
            start = next;
        }
        if header.lanes.get() > 0 {
            empty.drain(..).take(1).for_each(|range| reader.look_through(range));
        }
        let HalfReader { mut records, extents, .. } = reader;
        records.sort_unstable_by_key(|record| record.number);
        records.dedup_by_key(|record| record.number);
        if planted(Fault::LastRecordIgnored) {
            records.pop();
        }
        Half { header, records, extents, is_lost: false }
    }

    /// The number behind its last transaction.
    fn end(&self) -> u64 {
        self.records.last().map_or(self.header.first.get(), |last| last.number + 1)
    }
}

/// Records are sought behind damage up to this length: what lies there may be anything, and say that it is a long one.
const SOUGHT_MAX: u64 = 16 << 10;

/// What has been found of a half. Addresses count from its start.
struct HalfReader<'a, 'h> {
    medium: &'a Medium,
    at: u64,
    length: u64,
    header: &'h HalfHeader,
    records: Vec<Committed<'a>>,
    extents: Vec<Range<u64>>,
}

impl HalfReader<'_, '_> {
    /// The numbers that its records may have: every number has a place in the half, so none is further from the first than that.
    fn numbers(&self) -> [u64; 2] {
        let first = self.header.first.get();
        [first, first.saturating_add(self.length / ALIGN as u64)]
    }

    /// Takes the record at `from`, if one is there that ends before `end`; returns its length.
    fn take(&mut self, from: u64, end: u64) -> Option<u64> {
        let room = end.checked_sub(from)?;
        let record = parse(self.medium, self.at + from, room, self.header.salt.get(), self.numbers())?;
        self.records.push(record);
        Some((TRANSACTION_HEADER + record.items.len()) as u64)
    }

    /// Takes the records that follow one another from `start` on; returns where they end.
    fn follow(&mut self, start: u64) -> u64 {
        let mut end = start;
        while let Some(bytes) = self.take(end, self.length) {
            end += bytes;
        }
        if end > start {
            self.extents.push(self.at + start..self.at + end);
        }
        end
    }

    /// Takes what lies in `range` behind damage.
    fn look_through(&mut self, range: Range<u64>) {
        let first = range.start + ALIGN as u64;
        if first >= range.end {
            return;
        }
        let mut from = first;
        while from < range.end {
            let rest = (range.end - from) as usize;
            match self.medium.region.ask(self.at + from, rest, next_beginning, self.numbers()) {
                NONE => return,
                next => from += next,
            }
            match self.take(from, range.end.min(from + SOUGHT_MAX)) {
                Some(bytes) => {
                    self.extents.push(self.at + from..self.at + from + bytes);
                    from += bytes;
                }
                None => from += ALIGN as u64,
            }
        }
    }
}

/// The record at `at`, if one is there in the `room` that is left, with one of `numbers`, from the first to before the second. No
/// more of the log is read than that: what an older epoch has left, or a power cut, is asked no more than whether it is one.
fn parse(medium: &Medium, at: u64, room: u64, salt: u64, numbers: [u64; 2]) -> Option<Committed<'_>> {
    if room < ALIGN as u64 {
        return None;
    }
    let length = match medium.region.ask(at, ALIGN, beginning, numbers) {
        NONE => return None,
        length => length,
    };
    let is_here = || medium.region.ask(at, length as usize, is_whole, [salt, 0]) != 0;
    if length > room || !(is_here() || planted(Fault::RecordChecksumIgnored)) {
        return None;
    }
    let record = medium.region.bytes(at, length as usize);
    let flags = word(record, 20);
    Some(Committed {
        number: number_of(record),
        items: &record[TRANSACTION_HEADER..],
        lane: lane_of(flags),
        turn: (flags >> TURN_SHIFT) as u16,
        beside: flags & BESIDE != 0,
        data_crc: (flags & CHECKS_DATA != 0).then(|| word(record, 16)),
    })
}

/// What is answered if there is none.
const NONE: u64 = u64::MAX;

/// Asks the first bytes of what may be a record how many it has; [`NONE`] if it is none, or has not one of these numbers.
fn beginning(bytes: &[u8], numbers: [u64; 2]) -> u64 {
    let is_here = |_: &usize| {
        let number = number_of(bytes);
        numbers[0] <= number && number < numbers[1] && (lane_of(word(bytes, 20)) as usize) < LANES
    };
    length_of(bytes).filter(is_here).map_or(NONE, |length| length as u64)
}

/// Asks bytes where the first record in them may begin.
fn next_beginning(bytes: &[u8], numbers: [u64; 2]) -> u64 {
    let places = (0..bytes.len()).step_by(ALIGN).filter(|at| bytes.len() - at >= ALIGN);
    let mut begins = places.filter(|at| beginning(&bytes[*at..], numbers) != NONE);
    begins.next().map_or(NONE, |at| at as u64)
}

/// Asks a record in a half with this salt whether all of it is there.
fn is_whole(record: &[u8], [salt, _]: [u64; 2]) -> u64 {
    u64::from(word(record, 0) == salted(salt, record))
}

fn word(record: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(record[at..at + 4].try_into().expect("4 bytes"))
}

fn number_of(record: &[u8]) -> u64 {
    u64::from(word(record, 8)) | u64::from(word(record, 12)) << 32
}

fn lane_of(flags: u32) -> u32 {
    flags >> LANE_SHIFT & 0xff
}

/// How many bytes the record that `bytes` begins with says it has.
fn length_of(bytes: &[u8]) -> Option<usize> {
    let length = u32::from_le_bytes(bytes.get(4..8)?.try_into().expect("4 bytes")) as usize;
    (length >= ALIGN && length.is_multiple_of(ALIGN)).then_some(length)
}

/// Bytes of the log that are on their way while a record is read.
const AHEAD: u64 = 2048;

/// Calls `visit` for the items of all records in `range`, which this process wrote.
pub(crate) fn each_written(medium: &Medium, range: &Range<u64>, mut visit: impl FnMut(&Item<'_>)) {
    let mut bytes = medium.region.bytes(range.start, (range.end - range.start) as usize);
    // The log was streamed past the caches, and where a record ends is in the record: one miss would follow the other.
    let ask_for = |from: u64, to: u64| {
        (from..to.min(range.end)).step_by(nvm::LINE as usize).for_each(|at| medium.region.prefetch(at))
    };
    ask_for(range.start, range.start + AHEAD);
    while let Some(record) = length_of(bytes).and_then(|length| bytes.get(..length)) {
        let ahead = range.end - bytes.len() as u64 + AHEAD;
        ask_for(ahead, ahead + record.len() as u64);
        Items(&record[TRANSACTION_HEADER..]).flatten().for_each(|item| visit(&item));
        bytes = &bytes[record.len()..];
    }
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

    /// Whether the blocks it maps are on the medium. Only a lane's last transaction may say no: the fence that made
    /// it durable had not come before the power went.
    fn has_its_data(&self, medium: &Medium) -> bool {
        let Some(expected) = self.data_crc else { return true };
        // All but the last say what their checksum is, which goes into the next one's.
        let (mut crc, mut last) = (None, None);
        for (block, count) in self.runs() {
            if !medium.geometry.in_main(block) || !medium.geometry.in_main(block + count - 1) {
                return false;
            }
            if let Some((at, len)) = last.replace((block * BLOCK, (count * BLOCK) as usize)) {
                crc = Some(medium.region.ask(at, len, checksum_behind, [crc.unwrap_or(0), 0]));
            }
        }
        last.is_some_and(|(at, len)| {
            medium.region.ask(at, len, ends_checksum, [crc.unwrap_or(0), u64::from(expected)]) != 0
        })
    }
}

/// Asks bytes for the checksum of what has checksum `before` and is followed by them.
fn checksum_behind(bytes: &[u8], [before, _]: [u64; 2]) -> u64 {
    u64::from(checksum::append(before as u32, bytes))
}

/// The same, whether it is `expected`.
fn ends_checksum(bytes: &[u8], [before, expected]: [u64; 2]) -> u64 {
    u64::from(checksum_behind(bytes, [before, 0]) == expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records by number and lane, each lane's first being its first of the half.
    fn records(all: &[(u64, u32)]) -> Vec<Committed<'static>> {
        let mut turns = [0; LANES];
        let record = |&(number, lane): &(u64, u32)| {
            let turn = turns[lane as usize];
            turns[lane as usize] += 1;
            Committed { number, lane, turn, beside: false, items: &[], data_crc: None }
        };
        all.iter().map(record).collect()
    }

    fn first_damage(all: &[(u64, u32)]) -> Option<u64> {
        damage_in(&records(all))
    }

    fn damage_in(records: &[Committed<'_>]) -> Option<u64> {
        damage(10, records, records.last().map_or(10, |last| last.number + 1))
    }

    #[test]
    fn gaps_are_found() {
        let found = |all: &[(u64, u32)], end| gaps(10, end, &records(all)).collect::<Vec<_>>();
        assert_eq!(found(&[], 10), []);
        assert_eq!(found(&[], 12), [10, 11]);
        assert_eq!(found(&[(10, 0), (11, 0)], 12), []);
        assert_eq!(found(&[(12, 0), (14, 0)], 16), [10, 11, 13, 15]);
    }

    #[test]
    fn what_was_in_flight_is_no_damage() {
        assert_eq!(first_damage(&[]), None);
        assert_eq!(first_damage(&[(10, 0), (11, 1), (12, 0)]), None);
        // The transaction of a lane that has no other, and one of a lane that had been idle for long.
        assert_eq!(first_damage(&[(10, 0), (12, 0), (13, 0)]), None);
        assert_eq!(first_damage(&[(10, 1), (12, 0), (13, 0), (14, 2)]), None);
        // All lanes but one at once.
        assert_eq!(first_damage(&[(10, 0), (10 + LANES as u64, 0)]), None);
    }

    /// One thread had done all the work, and other lanes, that showed nothing, explained up to fifteen gaps.
    #[test]
    fn what_is_missing_before_another_of_its_lane_is_damage() {
        let all: Vec<_> = (10..30).map(|number| (number, 0)).chain([(30, 3), (31, 0)]).collect();
        for (missing, lane) in &all {
            let mut left = records(&all);
            left.retain(|record| record.number != *missing);
            let is_last = *missing >= 30;
            let expected = (!is_last).then_some(*missing);
            assert_eq!(damage_in(&left), expected, "without {missing} of lane {lane}");
        }
        // The first of a lane, and two in a row.
        let mut left = records(&[(10, 1), (11, 0), (12, 1), (13, 0), (14, 1), (15, 0)]);
        left.retain(|record| ![10, 12].contains(&record.number));
        assert_eq!(damage_in(&left), Some(10));
        // Turns go round.
        let mut many: Vec<_> = records(&[(10, 0), (11, 0), (12, 0)]);
        many.iter_mut().for_each(|record| record.turn = record.turn.wrapping_sub(2));
        assert_eq!(damage_in(&many), Some(10), "the first of a half has turn 0");
    }

    #[test]
    fn more_gaps_than_can_have_been_in_flight_are_damage() {
        assert_eq!(first_damage(&[(10, 0), (11 + LANES as u64, 0)]), Some(11));
        // Each lane went on behind the gap.
        let busy: Vec<_> =
            (0..LANES as u32).map(|lane| (12 + u64::from(lane), lane)).chain([(40, 0)]).collect();
        assert_eq!(first_damage(&[&[(10, 0)], &busy[..LANES]].concat()), Some(11));
        // Two gaps early on, and but one lane that has nothing behind them.
        let busy: Vec<_> = (1..LANES as u32).map(|lane| (12 + u64::from(lane), lane)).collect();
        assert_eq!(first_damage(&busy), Some(10));
        assert_eq!(first_damage(&[&[(10, 1), (11, 1)], &busy[1..]].concat()), None);
    }
}
