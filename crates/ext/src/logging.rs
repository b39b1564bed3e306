//! Pages by way of the log in NVM: an `fsync` costs no time of the disk.
//!
//! [`Volume::collect`] hands what changed of a file to the running transaction, in the operation that maps it and sets the length; when that
//! transaction is durable, so are they. From then on the pages are the log's (see [`crate::pages`]) until it lets go of them: first
//! [`Volume::drain_files`] writes them to the disk, then, behind a flush and when that part of the log is void, [`Volume::retired_files`] drops them.

use vfs::Result;

use crate::files::Held;
use crate::inode;
use crate::map;
use crate::pages::Site;
use crate::store::LogItem;
use crate::volume::Volume;
use crate::write_out::{map_pages, mapped};

impl Volume {
    /// Hands a file's changes to the running transaction.
    pub(crate) fn collect(&self, file: &Held<'_>) -> Result<()> {
        let mut state = file.alone();
        self.find_places(file.number, &mut state, |_| true)?;
        let changed = state.pages.range(0..map::END).filter(|(_, page)| page.is_changed());
        let pages: Vec<(u64, Site)> = changed.map(|(number, page)| (number, page.site())).collect();
        if pages.is_empty() && state.size.is_none() {
            return Ok(());
        }
        let items = pages.iter().filter_map(|(number, site)| {
            let page = state.pages.get(*number)?;
            let changed = page.changed();
            let fresh = !matches!(site, Site::Mapped(_));
            let offset = changed.start as u32;
            Some(LogItem { block: site.block()?, offset, bytes: page.bytes()[changed].into(), fresh })
        });
        let transaction = self.change(|core| {
            let mut inode = inode::read(core, file.number)?;
            map_pages(core, &mut inode, &pages)?;
            inode.size = state.size.unwrap_or(inode.size);
            inode::write(core, &inode)?;
            Ok(core.store.log_data(items))
        })?;
        state.size = None;
        for (number, _) in pages {
            mapped(&mut state, number);
            state.pages.log(number, transaction);
        }
        self.files.logged.lock().entry(transaction).or_default().insert(file.number);
        Ok(())
    }

    /// Writes to the disk what transactions up to `transaction`, which are durable, have logged of files. Behind a flush of the disk the
    /// log may do without it.
    pub(crate) fn drain_files(&self, transaction: u64) -> Result<()> {
        let queue = self.queue()?;
        let mut result = Ok(());
        for number in self.logged_up_to(transaction) {
            let Some(file) = self.files.find(number) else { continue };
            let state = file.shared();
            let pages = state.pages.range(0..map::END);
            let logged =
                pages.filter(|(_, page)| page.logged().is_some_and(|logged| logged.first <= transaction));
            result = result.and(self.write_pages(&queue, &state, logged.map(|(number, _)| number)));
        }
        result
    }

    /// The log has nothing any more of transactions up to `transaction`: what they had is on the disk, flushed.
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
