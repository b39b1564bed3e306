//! Verdicts on volumes that were recovered, remembered: what follows a recovery depends on what it stored, and on those
//! of the lines under way that are read afterwards.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::hash::IdentityHasher;
use crate::judge::Verdict;

/// Lines remembered at most: some 100 MB.
const LINES_MAX: usize = 300_000;

/// When a verdict counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Of what is durable.
    pub(crate) durable: u64,
    /// Of the numbers of the lines under way: none of the others can differ.
    pub(crate) under_way: u64,
    /// Of what recovery stored.
    pub(crate) stored: u64,
    /// Whether recovery was crashed, too.
    pub(crate) deep: bool,
}

/// All that is known.
#[derive(Default)]
pub(crate) struct Memo {
    known: HashMap<Key, Known>,
    /// Lines in all of it.
    lines: usize,
}

/// Which line is looked at first is the same for all volumes with one key, and which next follows from what it holds.
enum Known {
    Verdict(Verdict),
    /// By the hash of what the line holds.
    Line(u32, HashMap<u64, Known, IdentityHasher>),
}

impl Known {
    /// What is known when `lines`, in this order, hold what they do.
    fn path(lines: &[(u32, u64)], verdict: Verdict) -> Known {
        lines.iter().rev().fold(Known::Verdict(verdict), |known, (line, hash)| {
            Known::Line(*line, HashMap::from_iter([(*hash, known)]))
        })
    }

    fn add(&mut self, lines: &[(u32, u64)], verdict: Verdict) {
        match (self, lines.split_first()) {
            (Known::Line(asked, cases), Some(((line, hash), rest))) if asked == line => {
                match cases.entry(*hash) {
                    Entry::Vacant(case) => drop(case.insert(Known::path(rest, verdict))),
                    Entry::Occupied(case) => case.into_mut().add(rest, verdict),
                }
            }
            // Read in another order: the newer one takes its place.
            (other, _) => *other = Known::path(lines, verdict),
        }
    }
}

impl Memo {
    /// The verdict on the volume in memory, of whose lines `hash` tells; and the lines that it depends on.
    pub(crate) fn get(&self, key: &Key, hash: impl Fn(u32) -> u64) -> Option<(Verdict, Vec<u32>)> {
        let mut lines = Vec::new();
        let mut known = self.known.get(key)?;
        loop {
            match known {
                Known::Verdict(verdict) => return Some((verdict.clone(), lines)),
                Known::Line(line, cases) => {
                    lines.push(*line);
                    known = cases.get(&hash(*line))?;
                }
            }
        }
    }

    /// Remembers a verdict, which depends on `lines`, in the order of their reading.
    pub(crate) fn insert(&mut self, key: Key, lines: &[(u32, u64)], verdict: Verdict) {
        self.lines += lines.len() + 1;
        match self.known.entry(key) {
            Entry::Vacant(place) => drop(place.insert(Known::path(lines, verdict))),
            Entry::Occupied(known) => known.into_mut().add(lines, verdict),
        }
    }

    /// Forgets all of it if it has become large.
    pub(crate) fn trim(&mut self) {
        if self.lines > LINES_MAX {
            *self = Memo::default();
        }
    }
}
