//! What the log has, found again.
//!
//! **Damage is not taken for the end.** A crash tears the last record at most, since each is begun behind the fence of the one before. So where one is
//! not whole, the next whole one is looked for, in what a record may have: by what the damaged one says of its length, and at each line. It has the
//! half's salt, which nobody knows who only knows what files hold; so bytes of a file are not taken for a record. The salt of a half whose
//! header is damaged follows from its neighbour.
//!
//! What stays: damage to the last record of all is not told from a record that was torn.

use std::mem::offset_of;
use std::ops::RangeInclusive;

use nvm::Region;
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::*;
use crate::fault::planted;

/// Where in a record its number is.
const NUMBER: u64 = offset_of!(RawRecord, number) as u64;
/// Bytes in which a whole record is looked for behind one that is not.
const SEARCHED_MAX: u64 = 4 << 20;
/// Bytes of what looks like records there whose checksums are tried, in all: who can write to NVM makes no mount last for ever.
const TRIED_MAX: u64 = 64 << 20;

/// The newest epoch that is retired is no further ahead of the newest that was begun: a mount that is cut short before it begins one brings it two further,
/// and so many of them do not come one behind the other, though something that tries again each time may be at work.
const AHEAD_MAX: u64 = 1 << 16;

/// The records that are not retired, in their order.
pub(crate) struct FoundLog<'a> {
    region: &'a Region,
    area: &'a Area,
    runs: Vec<Run>,
    /// The number behind that of the last whole one.
    next: Option<u64>,
    /// There is something that has that number.
    is_torn: bool,
    /// The newest that there can be.
    last_epoch: u64,
    /// What is left of [`TRIED_MAX`].
    to_try: u64,
    damage: Vec<String>,
}

/// Whole records, one behind the other.
struct Run {
    /// Where their half begins in the region.
    half: u64,
    /// Where in it the first begins and the last ends.
    from: u64,
    to: u64,
}

impl<'a> FoundLog<'a> {
    /// Finds what there is. Nothing is changed.
    pub(crate) fn of(region: &'a Region, area: &'a Area) -> FoundLog<'a> {
        let retired = area.retired(region);
        let first = retired.min(NUMBERS) + 1;
        let mut log = FoundLog {
            region,
            area,
            runs: Vec::new(),
            next: None,
            is_torn: false,
            last_epoch: first + 1,
            to_try: TRIED_MAX,
            damage: Vec::new(),
        };
        let begun = [first, first + 1].map(|epoch| RawHalf::at(region, area, epoch));
        let latest = begun.iter().flatten().map(|raw| raw.epoch.get()).max();
        let says = |begun: String| format!("its newest epoch that is emptied is {retired}, and {begun}");
        let damage = match latest {
            Some(later) if later > first + 1 => Some(format!("epoch {later} was begun")),
            Some(latest) if retired >= NUMBERS || latest + AHEAD_MAX < retired => {
                Some(format!("epoch {latest} the newest begun"))
            }
            None if retired >= NUMBERS => Some("none was begun".into()),
            _ => None,
        };
        if let Some(damage) = damage {
            // It cannot be known what is emptied. Who goes on begins the epoch behind that.
            log.last_epoch = latest.unwrap_or(FIRST_RETIRED);
            log.damage.push(says(damage));
            return log;
        }
        let headers = [0, 1].map(|n| begun[n].filter(|raw| raw.epoch.get() == first + n as u64));
        // Of the first, if its own header is not there: from that in the other half, of the epoch behind it or before it.
        let mut salt = match (&headers[1], &begun[1]) {
            (Some(next), _) => Some(next.before.get()).filter(|salt| *salt != 0),
            (None, Some(before)) => Some(salt_behind(before.salt.get(), first)),
            (None, None) => None,
        };
        let has_second = headers[1].is_some();
        for (epoch, header) in (first..).zip(headers) {
            salt = header.map(|header| header.salt.get()).or(salt);
            if !log.find_epoch(epoch, header.as_ref(), salt, epoch == first && has_second) {
                break;
            }
            salt = salt.map(|salt| salt_behind(salt, epoch + 1));
        }
        log
    }

    /// What is damaged, in words, if anything is.
    pub(crate) fn damage(&self) -> Option<String> {
        (!self.damage.is_empty()).then(|| self.damage.join("; "))
    }

    /// No record is in it that was ever whole.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.damage.is_empty()
    }

    /// The number of the next record: one that not even a torn one has. So what is left in a half from before is known for that by its
    /// number, and not read.
    pub(crate) fn next(&self) -> u64 {
        self.next.unwrap_or(1).max(1).saturating_add(u64::from(self.is_torn))
    }

    /// The newest epoch that there can be.
    pub(crate) fn last_epoch(&self) -> u64 {
        self.last_epoch
    }

    /// Hands `visit` what the records hold, in their order.
    pub(crate) fn each(&self, mut visit: impl FnMut(Logged) -> vfs::Result<()>) -> vfs::Result<()> {
        for run in &self.runs {
            let mut at = run.from;
            while at < run.to {
                // It was whole when it was found: if it is not, the medium gives it no more.
                let gone = || vfs::Error::Io("the log in NVM cannot be read again".into());
                let header = self.header(run.half, at).ok_or_else(gone)?;
                let length = u64::from(header.bytes.get());
                if length < RECORD as u64 || length > run.to - at {
                    return Err(gone());
                }
                let start = run.half + at + RECORD as u64;
                let bytes = self.region.bytes(start, length as usize - RECORD);
                visit(decode(&header, bytes, start, self.area).ok_or_else(gone)?)?;
                at += length;
            }
        }
        Ok(())
    }

    /// Finds what the half of an epoch has, and says whether it was ever begun. `is_certain`: it was, by what the next one says.
    fn find_epoch(
        &mut self,
        epoch: u64,
        header: Option<&RawHalf>,
        salt: Option<u64>,
        is_certain: bool,
    ) -> bool {
        let half = self.area.half_at(epoch % 2);
        let expected = self.next;
        let found = match (header, salt) {
            (Some(header), _) => Some((HEADER, header.first.get())),
            (None, Some(salt)) => self.search(half, HEADER, salt, expected.unwrap_or(1)..=NUMBERS),
            (None, None) => None,
        };
        if header.is_none() && (found.is_some() || is_certain) {
            self.damage.push(format!("the header of its epoch {epoch}"));
        }
        let (Some((mut at, mut number)), Some(salt)) = (found, salt) else { return is_certain };
        if let Some(expected) = expected.filter(|expected| *expected != number) {
            self.miss(expected, number, &format!("behind which epoch {epoch} begins"));
        }
        loop {
            let from = at;
            while let Some(bytes) = self.whole(half, at, salt, number..=number) {
                at += bytes;
                number += 1;
            }
            if at > from {
                self.runs.push(Run { half, from, to: at });
            }
            // None has a number that is not above that of the one before, and each takes a line.
            let most = number + (self.area.half - at) / LINE;
            let Some((behind, later)) = self.search(half, at, salt, number + 1..=most) else { break };
            self.miss(number, later, &format!("behind which record {later} is whole"));
            (at, number) = (behind, later);
        }
        self.next = Some(number);
        self.is_torn = self.header(half, at).is_some_and(|header| header.number.get() == number);
        true
    }

    /// Records `from` up to `to` are not there.
    fn miss(&mut self, from: u64, to: u64, behind: &str) {
        self.damage.push(match to.checked_sub(from) {
            Some(1) => format!("record {from}, {behind}"),
            Some(_) => format!("records {from} to {}, {behind}", to - 1),
            None => format!("record {to}, which comes where record {from} should"),
        });
    }

    /// The first whole record, with one of these numbers, behind one that begins at `at` and is not whole; where in the half, and its number.
    fn search(&mut self, half: u64, at: u64, salt: u64, numbers: RangeInclusive<u64>) -> Option<(u64, u64)> {
        let claimed = self.header(half, at).map(|header| at + u64::from(header.bytes.get()));
        let claimed = claimed.filter(|claimed| claimed.is_multiple_of(LINE));
        let end = at.saturating_add(SEARCHED_MAX);
        let mut next = at;
        loop {
            let found = self.numbered(half, next, end, &numbers);
            // Behind all that is searched, there may be the one that the damaged one speaks of.
            let Some(at) = found.or_else(|| claimed.filter(|claimed| *claimed >= end.max(next))) else {
                break;
            };
            next = at + LINE;
            let Some(header) = self.header(half, at) else { break };
            let bytes = u64::from(header.bytes.get());
            if bytes < LINE || !bytes.is_multiple_of(LINE) || bytes > self.area.half - at {
                continue;
            }
            if self.whole(half, at, salt, numbers.clone()).is_some() {
                return Some((at, header.number.get()));
            }
            let Some(left) = self.to_try.checked_sub(bytes) else {
                if !self.damage.is_empty() {
                    self.damage.push("what is behind it was not looked through".into());
                }
                break;
            };
            self.to_try = left;
        }
        None
    }

    /// Where in a half the first is, of what may be records from `at` up to `end`, that has one of these numbers.
    fn numbered(&self, half: u64, at: u64, end: u64, numbers: &RangeInclusive<u64>) -> Option<u64> {
        let end = end.min(self.area.half.saturating_sub(RECORD as u64 - 1));
        let found =
            self.region.find_u64(half + at + NUMBER, half + end + NUMBER, |number| numbers.contains(&number));
        found.map(|found| found - half - NUMBER)
    }

    /// What a record at `at` of a half begins with, if the half goes as far.
    fn header(&self, half: u64, at: u64) -> Option<RawRecord> {
        (at + RECORD as u64 <= self.area.half).then(|| self.region.load(half + at))
    }

    /// The bytes of the record at `at` of a half, if one is there, whole, with one of these numbers.
    fn whole(&self, half: u64, at: u64, salt: u64, numbers: RangeInclusive<u64>) -> Option<u64> {
        let header = self.header(half, at)?;
        let bytes = u64::from(header.bytes.get());
        if !numbers.contains(&header.number.get()) || bytes < RECORD as u64 || bytes > self.area.half - at {
            return None;
        }
        let record = self.region.bytes(half + at, bytes as usize);
        let is_right = salted(salt, record) == header.crc.get() || planted(Fault::RecordChecksumIgnored);
        let is_whole = is_right && decode(&header, &record[RECORD..], half + at, self.area).is_some();
        is_whole.then_some(bytes)
    }
}

/// What a record holds, whose bytes behind its header are at `start` of the region; nothing if nobody writes such a record: who goes by it relies on that all that
/// it is about is on the disk.
fn decode(header: &RawRecord, bytes: &[u8], start: u64, area: &Area) -> Option<Logged> {
    let all = bytes.len();
    let mut reader = Reader { rest: bytes };
    let part = area.part as usize;
    let on_disk = |block: U64| Some(block.get()).filter(|block| *block < area.blocks());
    let mut logged =
        Logged { number: header.number.get(), bytes: header.bytes.get().into(), ..Logged::default() };
    for _ in 0..header.blocks.get() {
        let raw: RawBlock = reader.take()?;
        let number = on_disk(raw.number)?;
        let kind = Kind::from_words(raw.kind.get(), raw.ino.get())?;
        let parts = raw.parts.get();
        if parts & !all_parts(area.block as usize, part) != 0 {
            return None;
        }
        let mut changed = Vec::new();
        for n in (0..64).filter(|n| parts >> n & 1 != 0) {
            changed.push((n, reader.bytes(part)?.to_vec()));
        }
        logged.blocks.push((number, kind, changed));
    }
    for _ in 0..header.freed.get() {
        logged.freed.push(on_disk(reader.take()?)?);
    }
    for _ in 0..header.ranges.get() {
        let [start, end] = reader.take::<[U64; 2]>()?.map(U64::get);
        if start > end || end > area.blocks() {
            return None;
        }
        logged.ranges.push(start..end);
    }
    for _ in 0..header.items.get() {
        let raw: RawItem = reader.take()?;
        let block = on_disk(raw.block)?;
        let (length, fresh) = (raw.length.get() & !FRESH, raw.length.get() & FRESH != 0);
        let end = u64::from(raw.offset.get()) + u64::from(length);
        if end > area.block {
            return None;
        }
        let at = start + (all - reader.rest.len()) as u64;
        reader.bytes(length.next_multiple_of(8) as usize)?;
        logged.items.push(Item { block, offset: raw.offset.get(), length, fresh, at });
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
