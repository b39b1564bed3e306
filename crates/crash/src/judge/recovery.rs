//! Recoveries: what one does is known, or found out.

use std::rc::Rc;

use nvm::{Line, LineWords, Look, Recording, RecordingOptions};

use crate::hash;
use crate::judge::{Fault, Judge, Looked, State, guarded};
use crate::memo::Step;
use crate::subject::Mounted;

/// Steps that take as much as one stored line.
const STORED_STEPS: usize = size_of::<(LineWords, Line)>().div_ceil(size_of::<Step>());

/// What a recovery did.
pub(super) struct Recovered {
    /// The words that it stored, by their lines, and what they hold since.
    stored: Vec<(LineWords, Line)>,
    /// The hash of these.
    pub(super) hash: u64,
    /// The hash of its recording, if there is one.
    pub(super) recorded: Option<u64>,
}

impl Recovered {
    fn of(stored: Vec<(LineWords, Line)>, recording: Option<&Recording>) -> Recovered {
        let hash = stored.iter().fold(0, |sum, (words, held)| {
            let place = u64::from(words.line) << 8 | u64::from(words.words);
            hash::mix(hash::mix(sum, place), hash::of_words(words.words, held))
        });
        Recovered { stored, hash, recorded: recording.map(hash_of) }
    }

    /// Whether another one did something else.
    fn differs(&self, other: &Recovered) -> bool {
        let recorded = self.recorded.zip(other.recorded).is_some_and(|(this, other)| this != other);
        recorded || self.stored != other.stored
    }

    /// The words of a line that it stored.
    pub(super) fn words_stored(&self, line: u32) -> u8 {
        let found = self.stored.binary_search_by_key(&line, |(stored, _)| stored.line);
        found.map_or(0, |index| self.stored[index].0.words)
    }

    /// Of these words, those that it did not store.
    pub(super) fn left(&self, read: LineWords) -> Option<LineWords> {
        let words = read.words & !self.words_stored(read.line);
        (words != 0).then_some(LineWords { words, ..read })
    }
}

/// How a state was recovered.
pub(super) struct Recovery {
    pub(super) did: Rc<Recovered>,
    pub(super) looked: Looked,
    /// It happened just now, and all that it looked at is noted: it can be remembered.
    pub(super) is_new: bool,
    /// If it happened just now, and is to be crashed.
    pub(super) recording: Option<Recording>,
    /// If it happened just now.
    pub(super) opened: Option<Opened>,
}

/// A state that was recovered.
pub(super) struct Opened {
    pub(super) volume: Box<dyn Mounted>,
    /// The volume beside it, if there is one.
    pub(super) beside: Option<Box<dyn Mounted>>,
}

impl Opened {
    pub(super) fn abandon(self) {
        self.volume.abandon();
        if let Some(beside) = self.beside {
            beside.abandon();
        }
    }
}

impl Judge {
    /// Recovers the state in memory, or stores what that is known to store.
    pub(super) fn recovered(&mut self, state: &State<'_>) -> Result<Recovery, Fault> {
        let (differ, mut looks) = (|words| state.may_differ(words), Vec::new());
        let known = self.arena.known(&mut self.recoveries, state.number, differ, &mut looks);
        match known.filter(|did| !state.is_deep() || did.recorded.is_some()) {
            Some(did) if !self.doubts => {
                let list = self.gathered.last().map(|gathered| gathered.looks.list);
                let known = list.map(|list| self.arena.looks_of(&mut self.recoveries, list));
                self.arena.store(&did.stored);
                let looked = Looked { looks, known };
                Ok(Recovery { did, looked, is_new: false, recording: None, opened: None })
            }
            known => self.recover_anew(state, known),
        }
    }

    /// Recovers it. That must do what is `known` of it, if anything is.
    fn recover_anew(&mut self, state: &State<'_>, known: Option<Rc<Recovered>>) -> Result<Recovery, Fault> {
        let list = self.next_number();
        let known = known.map(|did| (did, self.arena.looks_of(&mut self.recoveries, list)));
        if state.is_deep() {
            self.arena.zone.start_recording(RecordingOptions::default());
        }
        self.arena.seek(self.universe.runs());
        let opened = guarded(|| self.open());
        let recording = self.arena.zone.stop_recording();
        let opened = opened.map_err(|what| Fault::of(format!("it does not open: {what}")))?;
        let looks = self.arena.looks();
        let did = Recovered::of(self.arena.stored_since(state.mark), recording.as_ref());
        let lines = did.stored.iter().map(|(words, _)| u64::from(words.line));
        let is_new = !self.cover(lines.map(|line| line..line + 1));
        if known.is_some_and(|(known, looks_then)| known.differs(&did) || looks_then != looks) {
            opened.abandon();
            return Err(Fault::of("its recovery is not what is known of it".into()));
        }
        let looked = Looked { looks, known: None };
        Ok(Recovery { did: Rc::new(did), looked, is_new, recording, opened: Some(opened) })
    }

    /// Remembers a recovery of the state in memory.
    pub(super) fn remember_recovery(&mut self, did: &Rc<Recovered>, looks: &[Look]) {
        let steps = self.recoveries.insert(&self.arena.steps(looks), did.clone());
        if steps > 0 {
            self.steps += steps + did.stored.len() * STORED_STEPS;
        }
    }

    /// Recovers the state in memory.
    pub(super) fn open(&self) -> Result<Opened, String> {
        let volume = self.subject.open(&self.arena.region, self.promise)?;
        let find = |region| self.subject.find(region, self.promise);
        let beside = self.arena.beside.as_ref().map(find).transpose();
        match beside {
            Ok(beside) => Ok(Opened { volume, beside: beside.flatten() }),
            Err(what) => Err(format!("the volume beside: {what}")),
        }
    }

    /// The same, of one that was recovered before.
    pub(super) fn open_again(&self) -> Result<Opened, Fault> {
        guarded(|| self.open()).map_err(|what| Fault::of(format!("it opens once, but not again: {what}")))
    }
}

/// What a recovery stored, in which order.
fn hash_of(recording: &Recording) -> u64 {
    recording.events.iter().fold(0, |sum, event| {
        let sum = hash::mix(hash::mix(sum, event.kind as u64 | event.length << 8), event.address);
        hash::mix_bytes(sum, recording.bytes_of(event).unwrap_or_default())
    })
}
