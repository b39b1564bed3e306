//! A volume's piece of a zone: where every load, store, flush and fence of Amberfs goes through.

use std::sync::Arc;

use uuid::Uuid;
use zerocopy::FromBytes;

use super::Zone;
use crate::LINE;
use crate::account::{Account, Purpose};
use crate::durability::{Durable, Flushed};
use crate::error::MediaError;
use crate::instruments::{Instruments, MSYNC, RECORD, SPIN, WATCH, WEAR};
use crate::mapping::Window;
use crate::persist::{self, PersistMethod};
use crate::recording::EventKind;
use crate::volume::{Mounted, Volume, VolumeEntry, VolumeKind};
use crate::watch::Question;

/// One volume's piece of a zone. Addresses are byte offsets within it, from 0 to [`Region::len`].
///
/// Stores are cached unless named `stream`; they survive a power cut for certain only after
/// [`Region::flush`] and [`Region::fence`]. All methods take `&self` and may be called by any thread; the
/// volume's own locks keep one range from being stored to by two threads at once, or while somebody reads
/// it by [`Region::bytes`]. The 8-byte operations are atomic and need no lock.
///
/// # Panics
/// An address outside the region, a misaligned 8-byte access, and a store to a zone that was opened
/// read-only are bugs of the volume: every method panics on them. What comes from the medium must be
/// range-checked before it is used as an address.
#[derive(Clone)]
pub struct Region {
    window: Window,
    instruments: Arc<Instruments>,
    volume: Arc<Volume>,
    zone: Zone,
}

/// Bytes of which is asked at once whether anybody learns that they are looked at.
const SEARCHED_AT_ONCE: u64 = 4096;

/// Lines that `[at, at + len)` touches. Regions start on a line, so region addresses tell.
#[inline]
fn lines(at: u64, len: u64) -> u64 {
    if len == 0 { 0 } else { (at + len - 1) / LINE - at / LINE + 1 }
}

impl Region {
    pub(crate) fn new(
        window: Window,
        instruments: Arc<Instruments>,
        volume: Arc<Volume>,
        zone: Zone,
    ) -> Region {
        Region { window, instruments, volume, zone }
    }

    /// Claims the volume for one mount; `None` if somebody in this process has it mounted.
    pub fn claim(&self) -> Option<Mounted> {
        Mounted::claim(&self.volume)
    }

    /// Bytes of the region.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.window.len()
    }

    /// Bytes of the medium, without copying.
    ///
    /// The volume's locks must keep the range from being stored to while the slice lives. Where that
    /// cannot be had, use [`Region::read`] and verify what was read.
    #[inline]
    pub fn bytes(&self, at: u64, len: usize) -> &[u8] {
        if self.instruments.on(SPIN | WATCH) {
            self.read_slowly(at, len as u64, lines(at, len as u64));
        }
        self.window.bytes(at, len)
    }

    /// The same, where the caller will look at only so many lines of them: an emulated technology takes as long as for
    /// these.
    #[inline]
    pub fn bytes_of_which(&self, looked_at_lines: u64, at: u64, len: usize) -> &[u8] {
        if self.instruments.on(SPIN | WATCH) {
            self.read_slowly(at, len as u64, looked_at_lines);
        }
        self.window.bytes(at, len)
    }

    /// Whether somebody learns which bytes are looked at: who looks at more than they use has that count as read.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.instruments.on(WATCH)
    }

    /// What `len` bytes answer to a question, which is all that the caller learns of them: whether a checksum is right, say. To a
    /// watch, contents that give one answer are one.
    #[inline]
    pub fn ask(&self, at: u64, len: usize, question: Question, about: [u64; 2]) -> u64 {
        if self.instruments.on(SPIN | WATCH) {
            self.ask_slowly(at, len as u64, question, about);
        }
        question(self.window.bytes(at, len), about)
    }

    /// Copies bytes from the medium.
    #[inline]
    pub fn read(&self, at: u64, into: &mut [u8]) {
        if self.instruments.on(SPIN | WATCH) {
            self.read_slowly(at, into.len() as u64, lines(at, into.len() as u64));
        }
        self.window.read(at, into);
    }

    /// A structure from the medium, by copy.
    #[inline]
    pub fn load<T: FromBytes>(&self, at: u64) -> T {
        let bytes = self.bytes(at, size_of::<T>());
        match T::read_from_bytes(bytes) {
            Ok(value) => value,
            Err(_) => unreachable!("the slice has the structure's size"),
        }
    }

    /// An aligned 8-byte little-endian word, atomically, with acquire ordering.
    #[inline(always)]
    pub fn load_u64(&self, at: u64) -> u64 {
        if self.instruments.on(SPIN | WATCH) {
            self.read_slowly(at, 8, 1);
        }
        self.window.load_u64(at)
    }

    /// Where the first of the aligned words at `at`, `at + LINE` and so on is, below `end`, that is sought. As with
    /// [`Region::load_u64`] for each; but many lines of which nobody learns that they are looked at take little more than to come.
    pub fn find_u64(&self, at: u64, end: u64, is_sought: impl Fn(u64) -> bool) -> Option<u64> {
        let mut from = at;
        while from < end {
            let to = end.min(from + SEARCHED_AT_ONCE);
            let mut places = (from..to).step_by(LINE as usize);
            let found = match self.instruments.tells_of_reads(self.zone_address(from), to - from) {
                true => places.find(|at| is_sought(self.load_u64(*at))),
                false => places.find(|at| is_sought(self.window.load_u64(*at))),
            };
            if found.is_some() {
                return found;
            }
            from += SEARCHED_AT_ONCE;
        }
        None
    }

    /// Asks for the line of `at`, which will be read soon: it comes while something else is done.
    #[inline]
    pub fn prefetch(&self, at: u64) {
        self.window.prefetch(at);
    }

    /// Stores bytes, cached.
    #[inline]
    pub fn store(&self, purpose: Purpose, at: u64, bytes: &[u8]) {
        if self.instruments.on(RECORD | WATCH) {
            self.recorded(EventKind::Store, purpose, at, bytes.len() as u64, || self.window.store(at, bytes));
        } else {
            self.window.store(at, bytes);
        }
        self.volume.ledger.stored(purpose, bytes.len() as u64);
    }

    /// Stores an aligned 8-byte little-endian word atomically, with release ordering, cached.
    #[inline]
    pub fn store_u64(&self, purpose: Purpose, at: u64, value: u64) {
        if self.instruments.on(RECORD | WATCH) {
            self.recorded(EventKind::Atomic, purpose, at, 8, || self.window.store_u64(at, value));
        } else {
            self.window.store_u64(at, value);
        }
        self.volume.ledger.stored(purpose, 8);
    }

    /// Stores zeros, cached.
    #[inline]
    pub fn fill_zero(&self, purpose: Purpose, at: u64, len: u64) {
        if self.instruments.on(RECORD | WATCH) {
            self.recorded(EventKind::Zero, purpose, at, len, || self.window.fill_zero(at, len));
        } else {
            self.window.fill_zero(at, len);
        }
        self.volume.ledger.stored(purpose, len);
    }

    /// Copies bytes within the region, cached; the ranges may overlap.
    #[inline]
    pub fn copy_within(&self, purpose: Purpose, from: u64, to: u64, len: u64) {
        if self.instruments.on(SPIN | WATCH) {
            self.read_slowly(from, len, lines(from, len));
        }
        if self.instruments.on(RECORD | WATCH) {
            self.recorded(EventKind::Copy, purpose, to, len, || self.window.copy_within(from, to, len));
        } else {
            self.window.copy_within(from, to, len);
        }
        self.volume.ledger.stored(purpose, len);
    }

    /// Stores bytes by non-temporal stores, past the caches: the way for blocks. Whole lines are streamed;
    /// an unaligned head and tail are stored cached and flushed. `bytes` must not be a part of the range
    /// that is stored to.
    #[inline]
    pub fn stream(&self, purpose: Purpose, at: u64, bytes: &[u8]) -> Flushed {
        let len = bytes.len() as u64;
        if (at | len) & (LINE - 1) != 0 || self.instruments.on(RECORD | WEAR | SPIN | MSYNC | WATCH) {
            return self.stream_pieces(purpose, at, bytes);
        }
        self.window.stream_lines(at, bytes);
        self.volume.ledger.streamed(purpose, len / LINE);
        Flushed::new()
    }

    /// Stores zeros by non-temporal stores; head and tail as in [`Region::stream`].
    #[inline]
    pub fn stream_zero(&self, purpose: Purpose, at: u64, len: u64) -> Flushed {
        if (at | len) & (LINE - 1) != 0 || self.instruments.on(RECORD | WEAR | SPIN | MSYNC | WATCH) {
            return self.stream_zero_pieces(purpose, at, len);
        }
        self.window.stream_zero_lines(at, len);
        self.volume.ledger.streamed(purpose, len / LINE);
        Flushed::new()
    }

    /// Sends every line of the range on its way to the medium. On a zone that persists by `msync`, the
    /// pages are remembered for the fence.
    #[inline]
    pub fn flush(&self, purpose: Purpose, at: u64, len: u64) -> Flushed {
        if self.instruments.on(RECORD | WEAR | SPIN | MSYNC | WATCH) {
            return self.flush_watched(purpose, at, len);
        }
        self.window.flush(at, len);
        self.volume.ledger.flushed(purpose, lines(at, len));
        Flushed::new()
    }

    /// Waits until what this thread flushed and streamed is durable.
    ///
    /// On a zone that persists by `msync` this is when pages are written; if the system reports an error,
    /// [`Region::check`] says so from then on.
    #[inline]
    pub fn fence(&self, flushed: Flushed) -> Durable {
        let Flushed { .. } = flushed;
        persist::fence();
        self.volume.ledger.fenced();
        if self.instruments.on(RECORD | MSYNC) {
            self.fence_watched();
        }
        Durable::new()
    }

    /// Stores, flushes and fences 8 bytes: the shortest way to publish something by one word.
    #[inline]
    pub fn persist_u64(&self, purpose: Purpose, at: u64, value: u64) -> Durable {
        self.store_u64(purpose, at, value);
        let flushed = self.flush(purpose, at, 8);
        self.fence(flushed)
    }

    /// Whether the zone's medium is sound: an error once a load, a store or a write-back of the zone hit
    /// media that could not be accessed. What was read before a successful check was really there.
    #[inline]
    pub fn check(&self) -> Result<(), MediaError> {
        match self.window.poisoned_at() {
            None => Ok(()),
            Some(address) => Err(MediaError { address }),
        }
    }

    /// What was stored, flushed and fenced through this volume's regions since the zone was opened.
    pub fn account(&self) -> Account {
        self.volume.ledger.account()
    }

    /// The zone.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// The volume as the system index lists it.
    pub fn entry(&self) -> &VolumeEntry {
        &self.volume.entry
    }

    /// The volume's name.
    pub fn name(&self) -> &str {
        &self.volume.entry.name
    }

    /// The volume's kind.
    pub fn kind(&self) -> VolumeKind {
        self.volume.entry.kind
    }

    /// The volume's UUID, which a volume's superblock should carry: one with another UUID is left over from
    /// a volume that was there before.
    pub fn uuid(&self) -> Uuid {
        self.volume.entry.uuid
    }

    /// Whether the zone was opened read-only: stores would panic.
    pub fn is_read_only(&self) -> bool {
        self.zone.is_read_only()
    }

    /// How lines leave the caches here.
    pub fn persist_method(&self) -> PersistMethod {
        self.window.method()
    }

    /// Puts an event of the volume's disk or flash chip into the zone's recording, if there is one, so
    /// that one stream tells in which order NVM and disk were written. Addresses are the disk's or chip's; `bytes`
    /// are those written or programmed, empty for events that have none.
    ///
    /// # Panics
    /// If `kind` is an event of NVM, which only the other methods may record, or has bytes and they are not `length`.
    #[inline]
    pub fn note(&self, kind: EventKind, purpose: Purpose, address: u64, length: u64, bytes: &[u8]) {
        assert!(kind > EventKind::Mark, "{kind:?} is no event of a disk or a chip");
        let expected = if kind.has_bytes() { length } else { 0 };
        assert_eq!(bytes.len() as u64, expected, "the bytes of {kind:?}");
        if self.instruments.on(RECORD)
            && let Some(recorder) = self.instruments.recorder.lock().as_mut()
        {
            recorder.push(&self.volume.entry, kind, purpose, address, length, bytes);
        }
    }

    fn zone_address(&self, at: u64) -> u64 {
        self.volume.entry.start + at
    }

    #[cold]
    fn read_slowly(&self, at: u64, len: u64, lines: u64) {
        self.instruments.pass_read_gate();
        if self.instruments.on(WATCH) && self.instruments.seeks(self.zone_address(at), len) {
            self.instruments.watched(|watch| watch.reads(self.zone_address(at), len));
        }
        if let Some(spinner) = &self.instruments.spinner {
            spinner.read(lines);
        }
    }

    #[cold]
    fn ask_slowly(&self, at: u64, len: u64, question: Question, about: [u64; 2]) {
        self.instruments.pass_read_gate();
        if self.instruments.on(WATCH) && self.instruments.seeks(self.zone_address(at), len) {
            self.instruments.watched(|watch| watch.asks(self.zone_address(at), len, question, about));
        }
        if let Some(spinner) = &self.instruments.spinner {
            spinner.read(lines(at, len));
        }
    }

    /// Does `store`, and records it if a recording is made, as one critical section, so that events are in the order
    /// of memory.
    #[cold]
    fn recorded(&self, kind: EventKind, purpose: Purpose, at: u64, len: u64, store: impl FnOnce()) {
        if self.instruments.on(WATCH) && kind.is_store() {
            // Refuse what is out of range before it is looked up.
            let _ = self.window.bytes(at, len as usize);
            self.instruments.watched(|watch| watch.stores(self.zone_address(at), len));
        }
        if !self.instruments.on(RECORD) {
            return store();
        }
        self.instruments.pass_gate();
        let mut recorder = self.instruments.recorder.lock();
        store();
        if let Some(recorder) = recorder.as_mut() {
            let bytes: &[u8] = if kind.has_bytes() { self.window.bytes(at, len as usize) } else { &[] };
            recorder.push(&self.volume.entry, kind, purpose, self.zone_address(at), len, bytes);
        }
    }

    #[cold]
    fn flush_watched(&self, purpose: Purpose, at: u64, len: u64) -> Flushed {
        let flush = || {
            if !self.instruments.on(WATCH) {
                self.window.flush(at, len);
            }
        };
        if self.instruments.on(RECORD) {
            self.recorded(EventKind::Flush, purpose, at, len, flush);
        } else {
            flush();
        }
        self.volume.ledger.flushed(purpose, lines(at, len));
        self.sent(at, len);
        Flushed::new()
    }

    /// Lines of the range went to the medium: wear, latency, and what `msync` owes.
    fn sent(&self, at: u64, len: u64) {
        if let Some(wear) = &self.instruments.wear {
            wear.written(self.zone_address(at), len);
        }
        if let Some(spinner) = &self.instruments.spinner {
            spinner.write(lines(at, len));
        }
        if self.instruments.on(MSYNC) {
            self.instruments.owe(self.window.mapping(), self.zone_address(at), len);
        }
    }

    #[cold]
    fn fence_watched(&self) {
        if self.instruments.on(MSYNC) {
            self.instruments.settle();
        }
        if self.instruments.on(RECORD) {
            self.recorded(EventKind::Fence, Purpose::Metadata, 0, 0, || ());
        }
    }

    /// The range's whole lines, as an offset range in it: what can be streamed.
    fn whole_lines(at: u64, len: u64) -> (u64, u64) {
        let head = (at.next_multiple_of(LINE) - at).min(len);
        let body = (len - head) & !(LINE - 1);
        (head, head + body)
    }

    fn stream_pieces(&self, purpose: Purpose, at: u64, bytes: &[u8]) -> Flushed {
        let len = bytes.len() as u64;
        // Refuse what is out of range before the address arithmetic below, and as a whole.
        let _ = self.window.bytes(at, bytes.len());
        let (body, tail) = Self::whole_lines(at, len);
        let mut flushed = Flushed::new();
        if body > 0 {
            self.store(purpose, at, &bytes[..body as usize]);
            flushed = flushed.and(self.flush(purpose, at, body));
        }
        if tail > body {
            self.stream_body(purpose, at + body, tail - body, &bytes[body as usize..tail as usize]);
        }
        if len > tail {
            self.store(purpose, at + tail, &bytes[tail as usize..]);
            flushed = flushed.and(self.flush(purpose, at + tail, len - tail));
        }
        flushed
    }

    fn stream_body(&self, purpose: Purpose, at: u64, len: u64, bytes: &[u8]) {
        let store = || match self.window.method() {
            // Where the page cache stands before the medium, streaming past the CPU's caches gains nothing.
            PersistMethod::Msync => self.window.store(at, bytes),
            _ if self.instruments.on(WATCH) => self.window.store(at, bytes),
            _ => self.window.stream_lines(at, bytes),
        };
        if self.instruments.on(RECORD | WATCH) {
            self.recorded(EventKind::Stream, purpose, at, len, store);
        } else {
            store();
        }
        self.volume.ledger.streamed(purpose, len / LINE);
        self.sent(at, len);
    }

    fn stream_zero_pieces(&self, purpose: Purpose, at: u64, len: u64) -> Flushed {
        let _ = self.window.bytes(at, len as usize);
        let (body, tail) = Self::whole_lines(at, len);
        let mut flushed = Flushed::new();
        if body > 0 {
            self.fill_zero(purpose, at, body);
            flushed = flushed.and(self.flush(purpose, at, body));
        }
        if tail > body {
            let (at, len) = (at + body, tail - body);
            let store = || match self.window.method() {
                PersistMethod::Msync => self.window.fill_zero(at, len),
                _ if self.instruments.on(WATCH) => self.window.fill_zero(at, len),
                _ => self.window.stream_zero_lines(at, len),
            };
            if self.instruments.on(RECORD | WATCH) {
                self.recorded(EventKind::StreamZero, purpose, at, len, store);
            } else {
                store();
            }
            self.volume.ledger.streamed(purpose, len / LINE);
            self.sent(at, len);
        }
        if len > tail {
            self.fill_zero(purpose, at + tail, len - tail);
            flushed = flushed.and(self.flush(purpose, at + tail, len - tail));
        }
        flushed
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("entry", &self.volume.entry).finish_non_exhaustive()
    }
}
