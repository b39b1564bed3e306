//! What watches a zone's stores: recording, wear, emulated latency, the pages that `msync` owes, and a watch.
//!
//! One word says which of them is on. A store tests it once; when all are off, that is all it costs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::mapping::{Mapping, Window};
use crate::recording::Recorder;
use crate::technology::Spinner;
use crate::watch::{self, WORD, Watch};
use crate::wear::WearMap;

/// Stores, flushes and fences are recorded.
pub(crate) const RECORD: u32 = 1;
/// Lines sent to the medium are counted per granule.
pub(crate) const WEAR: u32 = 2;
/// Reads and writes take longer.
pub(crate) const SPIN: u32 = 4;
/// Flushed pages are remembered, and written back by the next fence.
pub(crate) const MSYNC: u32 = 8;
/// Reads and stores are noted, and nothing is persisted.
pub(crate) const WATCH: u32 = 16;
/// Somebody is asked before each event that is recorded.
const GATE: u32 = 32;
/// Somebody is asked before each read.
const READ_GATE: u32 = 64;

pub(crate) struct Instruments {
    attention: AtomicU32,
    pub(crate) recorder: Mutex<Option<Recorder>>,
    watch: Mutex<Option<Watch>>,
    /// The words that a watch seeks.
    sought: OnceLock<watch::Words>,
    gate: Gate,
    read_gate: Gate,
    pub(crate) wear: Option<WearMap>,
    pub(crate) spinner: Option<Spinner>,
    owed: Mutex<Vec<Owed>>,
}

/// Who is asked.
#[derive(Default)]
struct Gate(Mutex<Option<fn()>>);

impl Gate {
    fn set(&self, gate: Option<fn()>) {
        *self.0.lock() = gate;
    }

    fn pass(&self) {
        // The lock is not held meanwhile.
        let gate = *self.0.lock();
        if let Some(gate) = gate {
            gate();
        }
    }
}

/// Pages that a fence has to write back.
struct Owed {
    mapping: Arc<Mapping>,
    first_page: u64,
    end_page: u64,
}

/// Bytes of the pages that `msync` works in.
const PAGE: u64 = 4096;

impl Instruments {
    pub(crate) fn new(wear: Option<WearMap>, spinner: Option<Spinner>, msync: bool) -> Instruments {
        let attention = if wear.is_some() { WEAR } else { 0 }
            | if spinner.is_some() { SPIN } else { 0 }
            | if msync { MSYNC } else { 0 };
        Instruments {
            attention: AtomicU32::new(attention),
            recorder: Mutex::new(None),
            watch: Mutex::new(None),
            sought: OnceLock::new(),
            gate: Gate::default(),
            read_gate: Gate::default(),
            wear,
            spinner,
            owed: Mutex::new(Vec::new()),
        }
    }

    /// Whether any of `which` is on.
    #[inline]
    pub(crate) fn on(&self, which: u32) -> bool {
        self.attention.load(Ordering::Relaxed) & which != 0
    }

    pub(crate) fn start(&self, recorder: Recorder) -> Option<Recorder> {
        let before = self.recorder.lock().replace(recorder);
        self.attention.fetch_or(RECORD, Ordering::SeqCst);
        before
    }

    pub(crate) fn stop(&self) -> Option<Recorder> {
        self.attention.fetch_and(!RECORD, Ordering::SeqCst);
        self.recorder.lock().take()
    }

    pub(crate) fn start_watch(&self, window: Window) {
        let sought = self.sought.get_or_init(|| watch::words(window.len() / WORD)).clone();
        *self.watch.lock() = Some(Watch::new(window, sought));
        self.attention.fetch_or(WATCH, Ordering::SeqCst);
    }

    pub(crate) fn stop_watch(&self) {
        self.attention.fetch_and(!WATCH, Ordering::SeqCst);
        *self.watch.lock() = None;
    }

    /// Whether the watch seeks a word of `[at, at + len)`: a glance without a lock, as most reads are of none.
    pub(crate) fn seeks(&self, at: u64, len: u64) -> bool {
        let sought = self.sought.get();
        len > 0 && sought.is_some_and(|sought| watch::has_any(sought, at / WORD, (at + len - 1) / WORD))
    }

    /// Whether it makes a difference to anybody that words of `[at, at + len)` are read.
    pub(crate) fn tells_of_reads(&self, at: u64, len: u64) -> bool {
        self.on(SPIN | READ_GATE) || self.on(WATCH) && self.seeks(at, len)
    }

    /// Gives the watch to `with`, if there is one.
    pub(crate) fn watched<R>(&self, with: impl FnOnce(&mut Watch) -> R) -> Option<R> {
        self.watch.lock().as_mut().map(with)
    }

    pub(crate) fn set_gate(&self, gate: Option<fn()>) {
        self.turn(GATE, gate.is_some());
        self.gate.set(gate);
    }

    pub(crate) fn set_read_gate(&self, gate: Option<fn()>) {
        self.turn(READ_GATE, gate.is_some());
        self.read_gate.set(gate);
    }

    fn turn(&self, which: u32, on: bool) {
        match on {
            true => self.attention.fetch_or(which, Ordering::SeqCst),
            false => self.attention.fetch_and(!which, Ordering::SeqCst),
        };
    }

    /// Asks before an event, in the thread that is about to make it.
    pub(crate) fn pass_gate(&self) {
        if self.on(GATE) {
            self.gate.pass();
        }
    }

    /// Asks before a read, likewise.
    pub(crate) fn pass_read_gate(&self) {
        if self.on(READ_GATE) {
            self.read_gate.pass();
        }
    }

    /// Remembers the pages of `[at, at + len)` of the mapping for the next fence.
    pub(crate) fn owe(&self, mapping: &Arc<Mapping>, at: u64, len: u64) {
        if len == 0 {
            return;
        }
        let (first_page, end_page) = (at / PAGE, (at + len).div_ceil(PAGE));
        let mut owed = self.owed.lock();
        if let Some(last) = owed.last_mut()
            && Arc::ptr_eq(&last.mapping, mapping)
            && first_page <= last.end_page
            && last.first_page <= end_page
        {
            last.first_page = last.first_page.min(first_page);
            last.end_page = last.end_page.max(end_page);
            return;
        }
        owed.push(Owed { mapping: mapping.clone(), first_page, end_page });
    }

    /// Writes back what is owed. The lock is held meanwhile: a fence that finds nothing owed must not
    /// overtake another thread's fence that is still writing this thread's pages.
    pub(crate) fn settle(&self) {
        let mut owed = self.owed.lock();
        owed.sort_by_key(|run| (run.mapping.start(), run.first_page));
        let mut runs = owed.drain(..).peekable();
        while let Some(mut run) = runs.next() {
            while let Some(next) = runs
                .next_if(|next| next.first_page <= run.end_page && Arc::ptr_eq(&next.mapping, &run.mapping))
            {
                run.end_page = run.end_page.max(next.end_page);
            }
            let (at, end) = (run.first_page * PAGE, (run.end_page * PAGE).min(run.mapping.len()));
            if run.mapping.msync(at, end - at).is_err() {
                run.mapping.poison(at);
            }
        }
    }
}
