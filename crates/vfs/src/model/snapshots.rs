//! The copies of itself that a model keeps.

use std::collections::BTreeSet;

use super::state::{Kept, State};
use crate::{Error, NAME_MAX, Result};

fn check_name(name: &str) -> Result<()> {
    let wrong = name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control);
    if wrong || [".", ".."].contains(&name) || name.contains('/') { Err(Error::Invalid) } else { Ok(()) }
}

impl State {
    fn kept(&mut self, name: &str) -> Result<&mut Kept> {
        self.kept.get_mut(name).ok_or(Error::NotFound)
    }

    pub(super) fn take_snapshot(&mut self, name: &str) -> Result<()> {
        check_name(name)?;
        if self.kept.contains_key(name) {
            return Err(Error::Exists);
        }
        self.taken += 1;
        let kept = Kept { number: self.taken, state: self.copy(), holds: BTreeSet::new() };
        self.kept.insert(name.into(), kept);
        Ok(())
    }

    pub(super) fn remove_snapshot(&mut self, name: &str) -> Result<()> {
        if self.kept(name)?.is_held() {
            return Err(Error::Busy);
        }
        self.kept.remove(name);
        Ok(())
    }

    pub(super) fn hold_snapshot(&mut self, name: &str, tag: &str) -> Result<()> {
        if self.kept(name)?.holds.insert(tag.into()) { Ok(()) } else { Err(Error::Busy) }
    }

    pub(super) fn release_snapshot(&mut self, name: &str, tag: &str) -> Result<()> {
        if self.kept(name)?.holds.remove(tag) { Ok(()) } else { Err(Error::Busy) }
    }

    /// The snapshots taken after the one called `name`, oldest first.
    pub(super) fn newer_snapshots(&mut self, name: &str) -> Result<Vec<String>> {
        let number = self.kept(name)?.number;
        let mut newer: Vec<_> = self.kept.iter().filter(|(_, kept)| kept.number > number).collect();
        newer.sort_by_key(|(_, kept)| kept.number);
        Ok(newer.into_iter().map(|(name, _)| name.clone()).collect())
    }

    pub(super) fn roll_back(&mut self, name: &str) -> Result<()> {
        if !self.newer_snapshots(name)?.is_empty() {
            return Err(Error::Busy);
        }
        let state = self.kept(name)?.state.copy();
        self.become_copy(state);
        Ok(())
    }
}
