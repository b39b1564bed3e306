//! The medium during a recorded run: what a power cut could leave of it.

use std::collections::{BTreeMap, HashMap};

use nvm::{EventKind, Recording};

use crate::volumes::Random;

const LINE: usize = nvm::LINE as usize;

/// A line as a store left it, and which event that was.
pub(crate) type Version = (usize, [u8; LINE]);

/// The medium during a recorded run: what is durable, and what may be.
pub(crate) struct Medium<'a> {
    pub(crate) recording: &'a Recording,
    pub(crate) durable: Vec<u8>,
    pub(crate) memory: Vec<u8>,
    /// By line: the versions that may have reached the medium, beside the durable one, oldest first.
    pub(crate) pending: BTreeMap<usize, Vec<Version>>,
    /// By thread: lines on their way, and the event that sent them.
    pub(crate) flushing: HashMap<u32, Vec<(usize, usize)>>,
    pub(crate) at: usize,
}

/// Which of the pending versions reach the medium.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    Nothing,
    Everything,
    /// Each line in a version of its own.
    Lines,
    /// Each word in a version of its own.
    Words,
    /// All lines but one.
    AllButOne,
    /// One line only.
    OnlyOne,
}

pub(crate) const CHOICES: [Choice; 6] =
    [Choice::Nothing, Choice::Everything, Choice::Lines, Choice::Words, Choice::AllButOne, Choice::OnlyOne];

impl<'a> Medium<'a> {
    pub(crate) fn new(recording: &'a Recording, image: &[u8]) -> Medium<'a> {
        Medium {
            recording,
            durable: image.to_vec(),
            memory: image.to_vec(),
            pending: BTreeMap::new(),
            flushing: HashMap::new(),
            at: 0,
        }
    }

    /// The medium when the server is killed now, and `recording` is of the next one: that sees what memory has, of which nothing is on its way.
    pub(crate) fn killed(&self, recording: &'a Recording) -> Medium<'a> {
        let before = |(_, bytes): &Version| (0, *bytes);
        let pending = self.pending.iter();
        Medium {
            recording,
            durable: self.durable.clone(),
            memory: self.memory.clone(),
            pending: pending.map(|(line, versions)| (*line, versions.iter().map(before).collect())).collect(),
            flushing: HashMap::new(),
            at: 0,
        }
    }

    /// Lets the next event happen.
    pub(crate) fn step(&mut self) {
        let event = &self.recording.events[self.at];
        let (start, end) = (event.address as usize, (event.address + event.length) as usize);
        let lines = start / LINE..end.div_ceil(LINE);
        if event.kind.is_store() {
            self.recording.apply(self.at, event, &mut self.memory).unwrap();
            for line in lines.clone() {
                let now = self.memory[line * LINE..(line + 1) * LINE].try_into().unwrap();
                self.pending.entry(line).or_default().push((self.at, now));
            }
        }
        let sent = matches!(event.kind, EventKind::Flush | EventKind::Stream | EventKind::StreamZero);
        if sent && event.length > 0 {
            let flushing = self.flushing.entry(event.thread).or_default();
            flushing.extend(lines.filter(|line| self.pending.contains_key(line)).map(|line| (line, self.at)));
        }
        if event.kind == EventKind::Fence {
            for (line, sent) in self.flushing.remove(&event.thread).unwrap_or_default() {
                let Some(versions) = self.pending.get_mut(&line) else { continue };
                let arrived = versions.partition_point(|(stored, _)| *stored <= sent);
                if let Some((_, bytes)) = versions[..arrived].last() {
                    self.durable[line * LINE..(line + 1) * LINE].copy_from_slice(bytes);
                }
                versions.drain(..arrived);
                if versions.is_empty() {
                    self.pending.remove(&line);
                }
            }
        }
        self.at += 1;
    }

    /// A state that a power cut before the next event could leave.
    pub(crate) fn state(&self, choice: Choice, random: &mut Random) -> Vec<u8> {
        if matches!(choice, Choice::Everything) {
            return self.memory.clone();
        }
        let mut image = self.durable.clone();
        let chosen = random.below(self.pending.len().max(1) as u64) as usize;
        let share = 1 + random.below(8);
        for (index, (line, versions)) in self.pending.iter().enumerate() {
            let target = &mut image[line * LINE..(line + 1) * LINE];
            let last = &versions.last().unwrap().1;
            let some = |random: &mut Random| {
                let version = random.below(versions.len() as u64 + 8) as usize;
                (random.below(8) < share).then(|| versions.get(version).map_or(last, |version| &version.1))
            };
            match choice {
                Choice::Lines => {
                    if let Some(version) = some(random) {
                        target.copy_from_slice(version);
                    }
                }
                Choice::Words => {
                    for word in (0..LINE).step_by(8) {
                        if let Some(version) = some(random) {
                            target[word..word + 8].copy_from_slice(&version[word..word + 8]);
                        }
                    }
                }
                Choice::AllButOne if index != chosen => target.copy_from_slice(last),
                Choice::OnlyOne if index == chosen => target.copy_from_slice(last),
                Choice::Nothing | Choice::Everything | Choice::AllButOne | Choice::OnlyOne => {}
            }
        }
        image
    }
}
