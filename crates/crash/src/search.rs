//! Which states of a crash point are tried.
//!
//! Recovering and checking are functions of what they read. So the states that differ only in lines nobody reads are
//! one state, and the search goes by reading order: a run with some choice of contents tells which units it read, in
//! order; the next run differs in the last unit read that has a version left. When there is none left, every
//! combination of versions of every unit has been accounted for, exactly.

use std::collections::{BTreeSet, HashSet};

use crate::random::Random;
use crate::unit::Units;

/// Up to so many runs a crash point is searched wholly.
pub(crate) const WHOLE: usize = 4096;
/// Torn contents tried of each unit.
const TORN: usize = 8;
/// Random states tried where not all can be.
const RANDOM: usize = 64;
/// Pairs tried at most where not all states can be.
const PAIRS: usize = 1024;

/// A choice of contents for each unit; see [`crate::unit::Unit::contents`].
pub(crate) type Choices = Vec<usize>;

/// What a run says: the units it read, in the order of their first reading.
pub(crate) trait Run {
    /// Tries a state; `Err` ends the search.
    fn run(&mut self, units: &Units, choices: &Choices) -> Result<Vec<usize>, crate::judge::Violation>;
}

/// Tries all states that differ, or a selection. `seed` chooses the random ones.
pub(crate) fn search(units: &Units, seed: u64, run: &mut dyn Run) -> Result<(), crate::judge::Violation> {
    let mut search = Search { units, run, tried: HashSet::new(), read: BTreeSet::new() };
    let none = vec![0; units.all.len()];
    search.one(&none)?;
    search.one(&units.all.iter().map(|unit| unit.versions.len() - 1).collect())?;
    if search.product() > WHOLE as u64 || !search.whole()? {
        search.selection(seed)?;
    }
    search.torn(seed)
}

struct Search<'a> {
    units: &'a Units,
    run: &'a mut dyn Run,
    tried: HashSet<Choices>,
    /// Units that some run read.
    read: BTreeSet<usize>,
}

impl Search<'_> {
    fn one(&mut self, choices: &Choices) -> Result<(), crate::judge::Violation> {
        if self.tried.insert(choices.clone()) {
            let read = self.run.run(self.units, choices)?;
            self.read.extend(read);
        }
        Ok(())
    }

    fn product(&self) -> u64 {
        let versions = |index: &usize| self.units.all[*index].versions.len() as u64;
        self.read.iter().map(versions).fold(1, u64::saturating_mul)
    }

    /// Depth first by reading order; false if there are too many.
    fn whole(&mut self) -> Result<bool, crate::judge::Violation> {
        let mut choices = vec![0; self.units.all.len()];
        let mut path: Vec<usize> = Vec::new();
        for _ in 0..WHOLE {
            let read = self.run.run(self.units, &choices)?;
            self.read.extend(&read);
            path.extend(read.iter().filter(|unit| !path.contains(unit)).copied().collect::<Vec<_>>());
            loop {
                let Some(last) = path.last().copied() else { return Ok(true) };
                if choices[last] + 1 < self.units.all[last].versions.len() {
                    choices[last] += 1;
                    break;
                }
                choices[last] = 0;
                path.pop();
            }
        }
        Ok(false)
    }

    /// Each alone, all but one, pairs, and random subsets with random prefixes.
    fn selection(&mut self, seed: u64) -> Result<(), crate::judge::Violation> {
        let units = self.units;
        let none = vec![0; units.all.len()];
        let newest: Choices = units.all.iter().map(|unit| unit.versions.len() - 1).collect();
        let read: Vec<usize> = self.read.iter().copied().collect();
        for &unit in &read {
            for version in 1..units.all[unit].versions.len() {
                let mut alone = none.clone();
                alone[unit] = version;
                self.one(&alone)?;
            }
            for version in 0..units.all[unit].versions.len() - 1 {
                let mut but = newest.clone();
                but[unit] = version;
                self.one(&but)?;
            }
        }
        let mut random = Random::new(seed);
        let pairs = read.len() * read.len().saturating_sub(1) / 2;
        let share = pairs.div_ceil(PAIRS).max(1) as u64;
        for (n, &a) in read.iter().enumerate() {
            for &b in &read[..n] {
                if random.below(share) == 0 {
                    let mut pair = none.clone();
                    (pair[a], pair[b]) = (newest[a], newest[b]);
                    self.one(&pair)?;
                }
            }
        }
        for _ in 0..RANDOM {
            let share = 1 + random.below(7);
            let some = units.all.iter().map(|unit| match random.below(8) < share {
                true => random.below(unit.versions.len() as u64) as usize,
                false => unit.versions.len() - 1,
            });
            self.one(&some.collect())?;
        }
        Ok(())
    }

    /// Torn stores: of one unit at a time beside the oldest and the newest of the others, and a few at random.
    fn torn(&mut self, seed: u64) -> Result<(), crate::judge::Violation> {
        let units = self.units;
        let none = vec![0; units.all.len()];
        let newest: Choices = units.all.iter().map(|unit| unit.versions.len() - 1).collect();
        let read: Vec<usize> = self.read.iter().copied().collect();
        let mut random = Random::new(!seed);
        for &index in &read {
            let unit = &units.all[index];
            let step = unit.torn.len().div_ceil(TORN).max(1);
            for torn in (0..unit.torn.len()).step_by(step) {
                for mut others in [none.clone(), newest.clone()] {
                    others[index] = unit.versions.len() + torn;
                    self.one(&others)?;
                }
            }
        }
        if read.len() > 1 && read.iter().any(|unit| !units.all[*unit].torn.is_empty()) {
            for _ in 0..8 {
                let mut some = none.clone();
                for &unit in &read {
                    some[unit] = random.below(units.all[unit].choices() as u64) as usize;
                }
                self.one(&some)?;
            }
        }
        Ok(())
    }
}
