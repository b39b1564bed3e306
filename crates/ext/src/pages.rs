//! Pages: blocks of a file of which DRAM has newer bytes than the disk.
//!
//! - A page is the whole block. What of it lies behind the file's end is zeros.
//! - `changed` covers all bytes that are nowhere durable. Whoever makes them so takes that back only if the page is of the `version` that he
//!   has written.
//! - **A page that the log has is made durable by the log only, until the log has it no more**: after a crash the log is replayed over the
//!   disk, and older bytes of it would replace newer ones that went around it. So the ordinary way of writing pages out skips them.
//! - Of a page that the log has, DRAM does not let go: the disk does not have its bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::spare::Spare;

/// Where a page's block is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// Nowhere. A block is promised to it.
    Promised,
    /// Here, and only this page says so.
    Picked(u64),
    /// Here, and the file's map says that it was never written.
    Unwritten(u64),
    /// Here, by the file's map.
    Mapped(u64),
}

impl Site {
    pub(crate) fn block(self) -> Option<u64> {
        match self {
            Site::Promised => None,
            Site::Picked(block) | Site::Unwritten(block) | Site::Mapped(block) => Some(block),
        }
    }

    /// Whether the file's map leads to the block at all.
    fn is_in_map(self) -> bool {
        matches!(self, Site::Unwritten(_) | Site::Mapped(_))
    }
}

/// The transactions that logged bytes of a page which the disk does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

#[derive(Debug)]
pub(crate) struct Page {
    /// Who else has them (a transaction that is to log them) keeps them as they were.
    bytes: Arc<[u8]>,
    changed: Range<u32>,
    /// By which it is told from another of the same block, before or behind it.
    born: u64,
    version: u64,
    logged: Option<Logged>,
    site: Site,
}

impl Page {
    /// What a block holds, or zeros where nothing was written.
    pub(crate) fn new(bytes: Arc<[u8]>, site: Site) -> Page {
        Page { bytes, changed: 0..0, born: 0, version: 0, logged: None, site }
    }

    /// Takes the first bytes of its block from where they are.
    pub(crate) fn read<E>(
        &mut self,
        bytes: usize,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        read(&mut Arc::make_mut(&mut self.bytes)[..bytes])
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes as they are now, for who needs them later.
    pub(crate) fn share(&self) -> Arc<[u8]> {
        self.bytes.clone()
    }

    /// The bytes, when it is a page no longer.
    pub(crate) fn into_bytes(self) -> Arc<[u8]> {
        self.bytes
    }

    pub(crate) fn site(&self) -> Site {
        self.site
    }

    pub(crate) fn born(&self) -> u64 {
        self.born
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn logged(&self) -> Option<Logged> {
        self.logged
    }

    /// What of it is nowhere durable.
    pub(crate) fn changed(&self) -> Range<usize> {
        self.changed.start as usize..self.changed.end as usize
    }

    pub(crate) fn is_changed(&self) -> bool {
        !self.changed.is_empty()
    }
}

/// The pages of a file.
#[derive(Default)]
pub(crate) struct Pages {
    pages: BTreeMap<u64, Page>,
    /// Those that are changed: few, where the log has many.
    changed: BTreeSet<u64>,
    /// Versions given out.
    versions: u64,
    /// Pages to which the map does not lead.
    unmapped: u64,
    /// Pages that the log has.
    logged: u64,
}

impl Pages {
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Page> {
        self.pages.get(&number)
    }

    /// The first block behind `number` that has a page.
    pub(crate) fn next(&self, number: u64) -> Option<u64> {
        self.pages.range(number.saturating_add(1)..).next().map(|(number, _)| *number)
    }

    pub(crate) fn range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Page)> {
        self.pages.range(range).map(|(&number, page)| (number, page))
    }

    /// Those from a block on that have something that is nowhere durable.
    pub(crate) fn changed(&self, from: u64) -> impl Iterator<Item = (u64, &Page)> {
        self.changed.range(from..).filter_map(|number| Some((*number, self.get(*number)?)))
    }

    /// The last one of a range that has.
    pub(crate) fn last_changed(&self, range: Range<u64>) -> Option<u64> {
        self.changed.range(range).next_back().copied()
    }

    /// Pages that are nowhere but here.
    pub(crate) fn unsaved(&self) -> u64 {
        self.pages.len() as u64 - self.logged
    }

    /// Pages that the log has.
    pub(crate) fn logged(&self) -> u64 {
        self.logged
    }

    /// Pages to which the file's map does not lead.
    pub(crate) fn unmapped(&self) -> u64 {
        self.unmapped
    }

    pub(crate) fn insert(&mut self, number: u64, mut page: Page) {
        self.versions += 1;
        page.born = self.versions;
        self.unmapped += u64::from(!page.site.is_in_map());
        let was = self.pages.insert(number, page);
        debug_assert!(was.is_none(), "a block has one page");
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<Page> {
        let page = self.pages.remove(&number)?;
        self.changed.remove(&number);
        self.unmapped -= u64::from(!page.site.is_in_map());
        self.logged -= u64::from(page.logged.is_some());
        Some(page)
    }

    /// Changes bytes of a page that is there: `within` of its block, by `with`.
    pub(crate) fn change(&mut self, number: u64, within: Range<usize>, with: impl FnOnce(&mut [u8])) {
        let page = self.changing(number, &within);
        with(&mut Arc::make_mut(&mut page.bytes)[within]);
    }

    /// The same, to these bytes, from one on.
    pub(crate) fn write(&mut self, number: u64, start: usize, bytes: &[u8], spare: &Spare) {
        let within = start..start + bytes.len();
        let page = self.changing(number, &within);
        // Of what others have, nothing needs to be copied that is replaced.
        if bytes.len() == page.bytes.len() && Arc::get_mut(&mut page.bytes).is_none() {
            page.bytes = spare.copy(bytes);
        } else {
            spare.own(&mut page.bytes)[within].copy_from_slice(bytes);
        }
    }

    /// A page that is there, of which bytes are being changed.
    fn changing(&mut self, number: u64, within: &Range<usize>) -> &mut Page {
        let page = self.pages.get_mut(&number).expect("the page is there");
        self.changed.insert(number);
        self.versions += 1;
        page.version = self.versions;
        let within = within.start as u32..within.end as u32;
        page.changed = match page.changed.is_empty() {
            true => within,
            false => page.changed.start.min(within.start)..page.changed.end.max(within.end),
        };
        page
    }

    /// The file's map leads to a page.
    pub(crate) fn map(&mut self, number: u64) {
        if let Some(page) = self.pages.get_mut(&number)
            && let Some(block) = page.site.block()
        {
            self.unmapped -= u64::from(!page.site.is_in_map());
            page.site = Site::Mapped(block);
        }
    }

    /// A page's block is somewhere else than it was.
    pub(crate) fn settle(&mut self, number: u64, site: Site) {
        let page = self.pages.get_mut(&number).expect("the page is there");
        self.unmapped -= u64::from(!page.site.is_in_map());
        self.unmapped += u64::from(!site.is_in_map());
        page.site = site;
    }

    /// Its bytes, as they were when it had that version, are durable on the disk.
    pub(crate) fn saved(&mut self, number: u64, version: u64, spare: &Spare) {
        if self.get(number).is_some_and(|page| page.version == version && page.logged.is_none())
            && let Some(page) = self.remove(number)
        {
            spare.keep(page.bytes);
        }
    }

    /// All of its bytes are those of transaction `transaction`, and of those before.
    pub(crate) fn log(&mut self, number: u64, transaction: u64) {
        let page = self.pages.get_mut(&number).expect("the page is there");
        self.logged += u64::from(page.logged.is_none());
        let first = page.logged.map_or(transaction, |logged| logged.first);
        page.logged = Some(Logged { first, last: transaction });
        page.changed = 0..0;
        self.changed.remove(&number);
    }

    /// The log has nothing any more of transactions up to `transaction`, and the disk has what it had.
    pub(crate) fn retire(&mut self, transaction: u64, spare: &Spare) {
        let logged = &mut self.logged;
        self.pages.retain(|_, page| {
            let Some(Logged { first, last }) = page.logged else { return true };
            if last > transaction {
                page.logged = Some(Logged { first: first.max(transaction + 1), last });
                return true;
            }
            page.logged = None;
            *logged -= 1;
            if !page.is_changed() {
                spare.keep(std::mem::take(&mut page.bytes));
            }
            page.is_changed()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(site: Site) -> Pages {
        let mut pages = Pages::default();
        pages.insert(7, Page::new(vec![0; 1024].into(), site));
        pages
    }

    #[test]
    fn a_page_stays_while_it_has_what_the_disk_has_not() {
        let mut pages = pages(Site::Promised);
        pages.change(7, 10..20, |bytes| bytes.fill(1));
        let version = pages.get(7).unwrap().version();
        pages.change(7, 900..1000, |bytes| bytes.fill(2));
        assert_eq!(pages.get(7).unwrap().changed(), 10..1000);
        pages.settle(7, Site::Mapped(99));
        assert_eq!((pages.unmapped(), pages.unsaved()), (0, 1));
        pages.saved(7, version, &Spare::new(1));
        assert!(!pages.is_empty(), "an older version was written");
        let version = pages.get(7).unwrap().version();
        pages.saved(7, version, &Spare::new(1));
        assert!(pages.is_empty());
        assert_eq!((pages.unmapped(), pages.unsaved()), (0, 0));
    }

    #[test]
    fn whoever_has_the_bytes_of_a_page_keeps_them() {
        for length in [1024, 5] {
            let mut pages = pages(Site::Promised);
            pages.write(7, 0, &[1; 1024], &Spare::new(1));
            let [mine, others] = [(); 2].map(|()| pages.get(7).unwrap().share());
            pages.write(7, 0, &vec![2; length], &Spare::new(1));
            assert_eq!((&mine[..], &others[..]), (&[1; 1024][..], &[1; 1024][..]));
            let now = pages.get(7).unwrap().share();
            assert!(
                now[..length].iter().all(|byte| *byte == 2) && now[length..].iter().all(|byte| *byte == 1)
            );
        }
    }

    #[test]
    fn the_log_keeps_a_page_until_it_lets_go_of_all_of_it() {
        let mut pages = pages(Site::Mapped(99));
        pages.change(7, 0..10, |bytes| bytes.fill(1));
        pages.log(7, 3);
        assert!(!pages.get(7).unwrap().is_changed());
        let version = pages.get(7).unwrap().version();
        pages.saved(7, version, &Spare::new(1));
        pages.change(7, 20..30, |bytes| bytes.fill(1));
        pages.log(7, 6);
        assert_eq!(pages.unsaved(), 0);
        pages.retire(4, &Spare::new(1));
        assert_eq!(pages.get(7).unwrap().logged(), Some(Logged { first: 5, last: 6 }));
        pages.change(7, 40..50, |bytes| bytes.fill(1));
        pages.retire(6, &Spare::new(1));
        assert_eq!(pages.get(7).unwrap().logged(), None, "what changed since is here only");
        assert_eq!(pages.unsaved(), 1);
        pages.log(7, 9);
        pages.retire(9, &Spare::new(1));
        assert!(pages.is_empty());
    }
}
