//! Pages by way of the log in NVM: an `fsync` costs no time of the disk.
//!
//! [`Volume::collect`] hands what changed of a file to the running transaction, in the operation that maps it and sets the length; when that
//! transaction is durable, so are they. From then on the pages are the log's (see [`crate::pages`]) until it lets go of them: first
//! [`Volume::drain_files`] makes them durable on the disk, then, when that part of the log is void, [`Volume::retired_files`] drops them.

use vfs::{Error, Result};

use crate::background::Task;
use crate::fault::{Fault, planted};
use crate::files::Held;
use crate::home::Home;
use crate::inode;
use crate::map;
use crate::pages::Site;
use crate::store::LogItem;
use crate::volume::Volume;
use crate::write_out::{map_pages, mapped};
use crate::writer::Writer;

/// Bytes that one transaction gets of a file.
const COLLECTED_MAX: u64 = 1 << 20;

/// What became of a part of a file's changes.
enum Collected {
    /// It is in the running transaction; from this page on there is more.
    Upto(Option<u64>),
    /// The running transaction has no room for it: that is to be committed first.
    NotYet,
}

impl Volume {
    /// Hands a file's changes to the running transaction, or to several if that would be too large. Called without locks.
    pub(crate) fn collect(&self, file: &Held<'_>) -> Result<()> {
        let Some(home) = &self.home else { return Err(Error::ReadOnly) };
        self.make_room_for_synced(home)?;
        let most = COLLECTED_MAX.min(home.record_bytes_max()) / self.core.superblock.block;
        let mut next = Some(0);
        while let Some(from) = next {
            match self.with_commit(|| self.collect_some(file, from, most.max(1) as usize))? {
                Collected::Upto(rest) => next = rest,
                Collected::NotYet => self.commit_all()?,
            }
        }
        Ok(())
    }

    /// Waits until there is room in DRAM for more pages that the log has.
    fn make_room_for_synced(&self, home: &Home) -> Result<()> {
        let is_above = |pages| self.files.synced() >= pages;
        if is_above(self.synced_max / 2) {
            self.work.ask(Task::EmptyLog);
        }
        // Two halves; what is synced again all the time stays.
        for _ in 0..2 {
            if is_above(self.synced_max) {
                home.empty_half(self)?;
            }
        }
        Ok(())
    }

    /// The same, of at most so many pages from one on; tells from where to go on.
    fn collect_some(&self, file: &Held<'_>, from: u64, most: usize) -> Result<Collected> {
        let mut state = file.alone();
        self.find_places(file.number, &mut state, |_| true)?;
        let changed = state.pages.changed(from).map(|(number, page)| (number, page.site()));
        let mut pages: Vec<(u64, Site)> = changed.take(most + 1).collect();
        let next = if pages.len() > most { pages.pop().map(|(number, _)| number) } else { None };
        if pages.is_empty() && state.size.is_none() {
            return Ok(Collected::Upto(None));
        }
        let items = pages.iter().filter_map(|(number, site)| {
            let page = state.pages.get(*number)?;
            let changed = page.changed();
            let fresh = !matches!(site, Site::Mapped(_));
            let offset = changed.start as u32;
            Some(LogItem { block: site.block()?, offset, bytes: page.bytes()[changed].into(), fresh })
        });
        // No length covers bytes that are not in the transaction or before it, and no block lies behind the length.
        let covered = next.map_or(u64::MAX, |next| next * self.core.superblock.block);
        let limit = self.home.as_ref().map_or(0, |home| home.record_bytes_max());
        let collected = self.change(|core| {
            // Two records of this size and what else there is have room in half of the log, whoever else does the same.
            if core.store.running().bytes > limit {
                return Ok(None);
            }
            let mut inode = inode::read(core, file.number)?;
            map_pages(core, &mut inode, &pages)?;
            inode.size = inode.size.max(state.size.unwrap_or(0).min(covered));
            inode::write(core, &inode)?;
            let transaction = core.store.log_data(items);
            // Before it can be committed: a checkpoint looks here for what the log has.
            self.files.logged.lock().entry(transaction).or_default().insert(file.number);
            Ok(Some((transaction, inode.size)))
        })?;
        let Some((transaction, on_disk)) = collected else { return Ok(Collected::NotYet) };
        state.size = state.size.filter(|size| *size != on_disk);
        for (number, _) in pages {
            mapped(&mut state, number);
            state.pages.log(number, transaction);
        }
        Ok(Collected::Upto(next))
    }

    /// Makes durable on the disk what transactions up to `transaction`, which are in the log, have of files. Nobody who uses them waits.
    pub(crate) fn drain_files(&self, transaction: u64) -> Result<()> {
        let mut writer = self.writer()?;
        for number in self.logged_up_to(transaction) {
            // One that is not there has nothing that the disk has not, or it is among the dropped.
            if let Some(file) = self.files.find(number) {
                drain_file(&mut writer, &file, transaction);
            }
        }
        let drain_dropped = |writer: &mut _, from| {
            // Not locked while it is written.
            self.files.dropped.lock().drain_some(writer, from, transaction)
        };
        let mut from = drain_dropped(&mut writer, 0);
        while let Some(next) = from {
            writer.send();
            from = drain_dropped(&mut writer, next);
        }
        let written = writer.finish();
        written.result()?;
        let is_durable = written.is_nothing() || planted(Fault::DrainNotFlushed);
        if is_durable { Ok(()) } else { self.flush(&written) }
    }

    /// The log has nothing any more of transactions up to `transaction`: what they had is on the disk.
    pub(crate) fn retired_files(&self, transaction: u64) {
        for number in self.logged_up_to(transaction) {
            if let Some(file) = self.files.find(number) {
                file.alone().pages.retire(transaction);
            }
        }
        let logged = &self.files.logged;
        logged.lock().retain(|number, _| *number > transaction);
    }

    /// Files of which transactions up to `transaction` have logged pages.
    fn logged_up_to(&self, transaction: u64) -> vfs::InoSet<u32> {
        self.files.logged.lock().range(..=transaction).flat_map(|(_, files)| files.iter().copied()).collect()
    }
}

/// Has all pages of a file written of which transactions up to `transaction` have logged something.
fn drain_file(writer: &mut Writer<'_>, file: &Held<'_>, transaction: u64) {
    let mut from = 0;
    loop {
        let state = file.shared();
        for (number, page) in state.pages.range(from..map::END) {
            if writer.is_full() {
                break;
            }
            from = number + 1;
            let is_due = page.logged().is_some_and(|logged| logged.first <= transaction);
            if let (true, Some(block)) = (is_due, page.site().block()) {
                writer.add(block, page.bytes());
            }
        }
        if !writer.is_full() {
            return;
        }
        drop(state);
        writer.send();
    }
}
