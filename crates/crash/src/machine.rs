//! The x86 model: which contents each line of the medium may have if the power goes now.
//!
//! - A store is in the cache, and its line may reach the medium at any time from then on, flushed or not.
//! - Of one line, some prefix of its stores has reached the medium; a store of more than eight bytes arrives in aligned
//!   words of eight.
//! - Different lines arrive in any order.
//! - A flush promises nothing. A fence makes durable what the same thread had flushed or streamed before it.
//!
//! Some of the lines may stand for a disk, which has rules of its own:
//!
//! - A write may be lost, or overtake another, until a sync has followed it, which makes all writes before it durable, whose ever.
//! - A sector of 512 bytes, eight lines, is written as a whole or not at all; of several writes to it any may be the last that
//!   arrived.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;

use nvm::{Event, EventKind, LINE, Line, Purpose, Recording};

use crate::hash::Lines;
use crate::unit::Unit;

/// What a store made of a line.
pub(crate) struct Version {
    /// The store's index.
    event: u32,
    /// The words that it stored to, if only in part.
    pub(crate) words: u8,
    pub(crate) line: Line,
}

/// A line that is not durable.
pub(crate) struct Pending {
    /// As it was made durable last.
    pub(crate) durable: Line,
    /// After each store since.
    pub(crate) versions: Vec<Version>,
    /// Stores of file data, all of them: the line may be grouped with its neighbours.
    pub(crate) bulk: bool,
    /// The unit of so many lines, from this one on, that these contents make, if that was asked: from one crash point to the next, few
    /// lines change.
    unit: RefCell<Option<(usize, Option<Rc<Unit>>)>>,
}

impl Pending {
    /// A line that was stored to, each time as a whole.
    #[cfg(test)]
    pub(crate) fn stored(durable: Line, lines: &[Line]) -> Pending {
        let version = |(event, line): (u32, &Line)| Version { event, words: u8::MAX, line: *line };
        let versions = (0..).zip(lines).map(version).collect();
        Pending { durable, versions, bulk: false, unit: RefCell::default() }
    }

    /// Whether the same stores are on their way to it as to another one.
    pub(crate) fn has_stores_of(&self, other: &Pending) -> bool {
        let event = |version: &Version| version.event;
        self.versions.iter().map(event).eq(other.versions.iter().map(event))
    }

    /// The unit of `lines` lines that this one is the first of; `make` makes it. The others have the same stores.
    pub(crate) fn unit(&self, lines: usize, make: impl FnOnce() -> Option<Unit>) -> Option<Rc<Unit>> {
        let mut known = self.unit.borrow_mut();
        match &*known {
            Some((length, unit)) if *length == lines => unit.clone(),
            _ => {
                let unit = make().map(Rc::new);
                *known = Some((lines, unit.clone()));
                unit
            }
        }
    }
}

/// The medium and what is on its way to it.
pub(crate) struct Machine {
    /// The lines that stand for a disk.
    pub(crate) disk: Range<u32>,
    /// Lines whose durable contents differ from what they were at first, since they were asked for last.
    fresh: Vec<(u32, Line)>,
    /// The words of each line to which durable stores were made.
    pub(crate) arrived: Lines<u8>,
    /// What the processor sees, of lines that were ever stored to.
    memory: Lines<Line>,
    pub(crate) pending: BTreeMap<u32, Pending>,
    /// By thread: lines sent, and the event that sent them.
    sent: HashMap<u32, Vec<(u32, u32)>>,
}

/// A store that is at least this long is bulk, if it is file data.
const BULK_BYTES: u64 = 512;

impl Machine {
    /// A machine at rest, some of whose lines are a disk's.
    pub(crate) fn new(disk: Range<u32>) -> Machine {
        Machine {
            disk,
            fresh: Vec::new(),
            arrived: Lines::default(),
            memory: Lines::default(),
            pending: BTreeMap::new(),
            sent: HashMap::new(),
        }
    }

    /// Lets event `index` happen. `original` gives what a line held when the recording began.
    pub(crate) fn step(&mut self, recording: &Recording, index: usize, original: impl Fn(u32) -> Line) {
        let event = &recording.events[index];
        if event.length > 0 && event.kind.is_store() {
            self.store(recording, index as u32, event, original);
        }
        if matches!(event.kind, EventKind::Flush | EventKind::Stream | EventKind::StreamZero)
            && event.length > 0
        {
            let pending = &self.pending;
            let lines = lines_of(event).filter(|line| pending.contains_key(line));
            self.sent.entry(event.thread).or_default().extend(lines.map(|line| (line, index as u32)));
        }
        match event.kind {
            EventKind::Fence => self.fence(event.thread),
            EventKind::DiskSync => self.sync(),
            _ => {}
        }
    }

    fn store(&mut self, recording: &Recording, index: u32, event: &Event, original: impl Fn(u32) -> Line) {
        let bytes = recording.bytes_of(event);
        let bulk = event.purpose == Purpose::Data && event.length >= BULK_BYTES;
        for line in lines_of(event) {
            let memory = self.memory.entry(line).or_insert_with(|| original(line));
            let before = *memory;
            let start = (u64::from(line) * LINE).max(event.address);
            let end = (u64::from(line + 1) * LINE).min(event.address + event.length);
            let target = &mut memory[(start % LINE) as usize..=((end - 1) % LINE) as usize];
            match bytes {
                Some(bytes) => target.copy_from_slice(
                    &bytes[(start - event.address) as usize..(end - event.address) as usize],
                ),
                None => target.fill(0),
            }
            let words = (start % LINE / 8..=(end - 1) % LINE / 8).fold(0, |words, word| words | 1 << word);
            let version = Version { event: index, words, line: *memory };
            match self.pending.get_mut(&line) {
                Some(pending) => {
                    pending.bulk &= bulk;
                    pending.versions.push(version);
                    *pending.unit.get_mut() = None;
                }
                None => {
                    let (versions, unit) = (vec![version], RefCell::new(None));
                    self.pending.insert(line, Pending { durable: before, versions, bulk, unit });
                }
            }
        }
    }

    fn fence(&mut self, thread: u32) {
        for (line, sent) in self.sent.remove(&thread).unwrap_or_default() {
            self.arrive(line, sent);
        }
    }

    /// Makes all that was written to the disk durable.
    fn sync(&mut self) {
        let written: Vec<u32> = self.pending.range(self.disk.clone()).map(|(line, _)| *line).collect();
        written.into_iter().for_each(|line| self.arrive(line, u32::MAX));
    }

    /// Makes a line durable as it was after event `last`.
    fn arrive(&mut self, line: u32, last: u32) {
        let Some(pending) = self.pending.get_mut(&line) else { return };
        let arrived = pending.versions.partition_point(|version| version.event <= last);
        if let Some(newest) = pending.versions[..arrived].last() {
            pending.durable = newest.line;
            *pending.unit.get_mut() = None;
            self.fresh.push((line, newest.line));
            *self.arrived.entry(line).or_default() |=
                pending.versions[..arrived].iter().fold(0, |words, version| words | version.words);
        }
        pending.versions.drain(..arrived);
        if pending.versions.is_empty() {
            self.pending.remove(&line);
        }
    }

    /// The lines that became durable since this was asked last, oldest first.
    pub(crate) fn take_fresh(&mut self) -> Vec<(u32, Line)> {
        std::mem::take(&mut self.fresh)
    }
}

/// The lines that an event touches.
pub(crate) fn lines_of(event: &Event) -> std::ops::Range<u32> {
    (event.address / LINE) as u32..(event.address + event.length).div_ceil(LINE) as u32
}
