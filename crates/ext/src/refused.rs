//! What the disk refuses of files: kept in NVM, and offered to it again.
//!
//! [`crate::home::Frames`] has it; here is who brings it there, when the log is emptied, and back.

use vfs::{Error, Result};

use crate::map;
use crate::volume::Volume;
use crate::writer::Written;

/// Blocks that are offered to the disk again at a time: each may take it long to refuse.
const OFFERED_MAX: usize = 64;

impl Volume {
    /// Keeps in frames what could not be written of pages that transactions up to `transaction` have logged. Fails with `error` if that
    /// is too much.
    ///
    /// Each is looked at again where it belongs, under a lock that who gives its block up must have had before: what has been given up
    /// meanwhile is nobody's, and what is given up later takes its frame along ([`crate::home::Above::settled`]).
    pub(crate) fn keep_refused(&self, transaction: u64, written: &Written, error: Error) -> Result<()> {
        let Some(home) = &self.home else { return Err(error) };
        self.refused.lock().why = Some(error.clone());
        // Who offers the disk what was kept before has written by now, or will offer this.
        let _queue = self.queue()?;
        let keep = |block, bytes: &[u8]| {
            let has_room = home.frames.keep(block, bytes);
            // The disk may have taken what was offered.
            self.core.store.clean.forget(block);
            has_room
        };
        let bytes = self.core.superblock.block;
        let has_failed = |block: u64| written.has_failed_at(block * bytes);
        let mut has_room = true;
        for number in self.logged_up_to(transaction) {
            let Some(file) = self.files.find(number) else { continue };
            let state = file.shared();
            for (_, page) in state.pages.range(0..map::END) {
                let is_due = page.logged().is_some_and(|logged| logged.first <= transaction);
                if let (true, Some(block)) = (is_due, page.site().block())
                    && has_failed(block)
                {
                    has_room &= keep(block, page.bytes());
                }
            }
        }
        self.files.dropped.lock().visit(transaction, |block, page| {
            if has_failed(block) {
                has_room &= keep(block, page);
            }
        });
        if !has_room {
            return Err(error);
        }
        Ok(())
    }

    /// Offers the disk some of what it has refused, others each time.
    pub(crate) fn offer_refused(&self) -> Result<()> {
        let Some(home) = self.home.as_ref().filter(|home| home.frames.has_refused()) else { return Ok(()) };
        let from = self.refused.lock().next;
        // Nobody is given a block from now on that is freed while it is offered.
        let mut writer = self.writer()?;
        let last = home.frames.refused(from, OFFERED_MAX, |block, bytes| writer.add(block, bytes));
        self.refused.lock().next = last.map_or(0, |last| last + 1);
        let written = writer.finish();
        if !written.is_nothing() {
            self.flush(&written)?;
        }
        let refused = written.result();
        let mut told = self.refused.lock();
        match (&refused, home.frames.has_refused()) {
            (Err(error), _) => told.why = Some(error.clone()),
            (Ok(()), false) => told.why = None,
            (Ok(()), true) => {}
        }
        refused
    }

    /// Offers the disk all that it has refused.
    pub(crate) fn offer_all_refused(&self) -> Result<()> {
        let Some(home) = &self.home else { return Ok(()) };
        self.refused.lock().next = 0;
        while home.frames.has_refused() {
            self.offer_refused()?;
        }
        Ok(())
    }

    /// Tells how much the disk refuses, if that is not as much as was told before.
    pub(crate) fn tell_of_refused(&self, told: &mut u64, tell: &dyn Fn(&str)) {
        let count = self.home.as_ref().map_or(0, |home| home.frames.refused_count());
        if std::mem::replace(told, count) == count {
            return;
        }
        let disk = self.disk().name();
        if count == 0 {
            return tell(&format!("{disk}: the disk has taken all that it had refused"));
        }
        let why = self.refusal().map(|why| format!("; {why}")).unwrap_or_default();
        tell(&format!(
            "{disk}: blocks of files that the disk refuses, kept in NVM and offered to it again: {count}{why}"
        ));
    }

    /// Why the disk refused what it did last, while it refuses something.
    pub fn refusal(&self) -> Option<String> {
        let told = self.refused.lock();
        let refuses = self.home.as_ref().is_some_and(|home| home.frames.has_refused());
        told.why.as_ref().filter(|_| refuses).map(Error::to_string)
    }
}

#[cfg(test)]
mod tests;
