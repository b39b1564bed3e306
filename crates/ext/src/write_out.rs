//! Pages on their way to the disk: places for them, requests, and the operation that maps them.
//!
//! **The ordinary way** ([`Volume::write_out`], [`Volume::write_out_all`]), for whom nobody waits: places are picked, the bytes are written and
//! flushed, and one operation then maps them and sets the length. So no map ever leads to bytes that are not there. Between the copies that are
//! written and that operation the file is nobody's: what was changed meanwhile stays changed, what was cut off is not mapped.
//!
//! **By the log**: [`crate::logging`].
//!
//! **What could not be written stays as it was, alone**: what else was written is mapped, of the same file, too, as far as a length can cover
//! it. Who syncs has the log take what the disk refuses, if frames have room for it then ([`crate::refused`]); otherwise each `fsync` says so
//! until it can be written.

use std::ops::Range;

use vfs::{Error, Result};

use crate::core::inode::{self, Inode};
use crate::core::{Core, alloc};
use crate::dropped::Dropped;
use crate::fault::{Fault, planted};
use crate::files::{Held, State};
use crate::home::Home;
use crate::map;
use crate::pages::Site;
use crate::volume::Volume;
use crate::writer::{Writer, Written};

/// Files that are written with one flush.
const FILES_MAX: usize = 512;

/// What has been written and is to be mapped.
pub(crate) struct Handed {
    pages: Vec<HandedPage>,
    /// The length that covers all of them.
    size: Option<u64>,
    /// How often the file had been cut.
    cuts: u64,
}

#[derive(Clone, Copy)]
struct HandedPage {
    number: u64,
    born: u64,
    version: u64,
    site: Site,
}

impl HandedPage {
    /// Where the block is by now, if it is the same page still, in the same place. Somebody else may have mapped it.
    fn site_in(&self, state: &State) -> Option<Site> {
        let page = state.pages.get(self.number).filter(|page| page.born() == self.born)?;
        Some(page.site()).filter(|site| site.block() == self.site.block())
    }
}

/// What the disk refused first, if it refused anything, which is not too much for the log to take it.
pub(crate) type Refusal = Option<Error>;

impl Volume {
    /// Writes a file's pages to the disk, but for those that the log has. They are durable there; that they are the file's is so with the
    /// next commit.
    pub(crate) fn write_out(&self, file: &Held<'_>) -> Result<Refusal> {
        self.with_commit(|| self.write_out_some(std::slice::from_ref(file)))
    }

    /// Writes all files' pages to the disk, many files' with one flush, but for those that the log has. They are durable there; that they are
    /// the files' is so with the next commit. Called without locks; waits for whoever does the same.
    ///
    /// # Errors
    /// What failed first; the others are written.
    pub fn write_out_all(&self) -> Result<()> {
        self.write_out_what_it_takes()?.map_or(Ok(()), Err)
    }

    /// The same for who has the log take what the disk refuses.
    pub(crate) fn write_out_what_it_takes(&self) -> Result<Refusal> {
        let _one = self.writing_out.lock();
        let mut result = Ok(None);
        for files in self.files.all().chunks(FILES_MAX) {
            let written = self.with_commit(|| self.write_out_some(files));
            result = result.and_then(|refusal| Ok(refusal.or(written?)));
            self.commit_if_large()?;
            // Somebody may wait for that, and this may take long.
            result = result.and_then(|refusal| self.empty_full_half().map(|()| refusal));
        }
        result
    }

    fn write_out_some(&self, files: &[Held<'_>]) -> Result<Refusal> {
        let mut result = Ok(());
        for file in files {
            result = result.and(self.collect_logged(file));
        }
        let mut handed = Vec::new();
        let mut writer = self.writer()?;
        for file in files {
            match self.hand_over(&mut writer, file) {
                Ok(Some(some)) => handed.push((file, some)),
                Ok(None) => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        let written = writer.finish();
        // Also of a file that could not be handed over as a whole: what the disk took of it, and had refused before, waits for the flush.
        if written.is_nothing() {
            return result.map(|()| None);
        }
        if !planted(Fault::MappedTooEarly) {
            self.flush(&written)?;
        }
        for (file, handed) in handed {
            result = result.and(self.take_back(file, handed, &written));
        }
        result?;
        let has_room = |home: &Home| written.blocks_failed(&self.core) <= home.frames.room_for_refused();
        match written.result() {
            Err(error) if written.was_there() && self.home.as_ref().is_some_and(has_room) => Ok(Some(error)),
            refused => refused.map(|()| None),
        }
    }

    /// Gives places to the changed pages that the log does not have, and has them written.
    pub(crate) fn hand_over(&self, writer: &mut Writer<'_>, file: &Held<'_>) -> Result<Option<Handed>> {
        let mut state = file.alone();
        self.find_places(file.number, &mut state, |page| page.logged().is_none())?;
        // No length covers what waits for the log.
        let waits =
            state.pages.changed(0).find(|(_, page)| page.logged().is_some()).map(|(number, _)| number);
        let most = waits.map_or(u64::MAX, |number| number * self.core.superblock.block);
        let size = state.size.map(|size| size.min(most)).filter(|size| *size > 0);
        // Nothing is mapped behind the end that the disk will have: what lies there is written out when that does not wait any more.
        let end = match state.size {
            Some(_) => {
                self.reading(|| Ok(inode::read(&self.core, file.number)?.size))?.max(size.unwrap_or(0))
            }
            None => u64::MAX,
        };
        let end = end.div_ceil(self.core.superblock.block);
        let cuts = state.cuts;
        let mut state = state.into_shared();
        let (mut pages, mut from) = (Vec::new(), 0);
        loop {
            for (number, page) in state.pages.changed(from).filter(|(_, page)| page.logged().is_none()) {
                from = number;
                if writer.is_full() || number >= end {
                    break;
                }
                // What came since has no place yet.
                let (site, born, version) = (page.site(), page.born(), page.version());
                if let Some(block) = site.block() {
                    writer.add(block, page.bytes());
                    pages.push(HandedPage { number, born, version, site });
                }
                from += 1;
            }
            if !writer.is_full() {
                break;
            }
            drop(state);
            writer.send();
            state = file.shared();
        }
        Ok((!pages.is_empty() || size.is_some()).then_some(Handed { pages, size, cuts }))
    }

    /// Maps what has been written and flushed, in as many operations as have room in a transaction each. Called without locks.
    fn take_back(&self, file: &Held<'_>, mut handed: Handed, written: &Written) -> Result<()> {
        let block = self.core.superblock.block;
        let has_failed =
            |page: &HandedPage| page.site.block().is_some_and(|place| written.has_failed_at(place * block));
        if let Some(failed) = handed.pages.iter().find(|page| has_failed(page)).map(|page| page.number) {
            // No length covers it, and nothing is mapped behind the length.
            handed.size = handed.size.map(|size| size.min(failed * block));
            let end = match handed.size {
                Some(size) => self.reading(|| Ok(inode::read(&self.core, file.number)?.size))?.max(size),
                None => u64::MAX,
            };
            handed.pages.retain(|page| !has_failed(page) && page.number < end.div_ceil(block));
        }
        // Each may change a leaf of its own.
        let most = map::leaves_max(&self.core);
        let mut rest = &handed.pages[..];
        loop {
            let (here, behind) = rest.split_at(rest.len().min(most as usize));
            // No length covers what comes later.
            let covered = behind.first().map_or(u64::MAX, |page| page.number * block);
            self.commit_if_large()?;
            let size = handed.size.map(|size| size.min(covered));
            let taken = self.with_commit(|| self.take_back_some(file, here, size, handed.cuts));
            // What had no room is written again, to blocks that are mapped now.
            if self.or_zero(file, taken)?.is_none() || behind.is_empty() {
                return Ok(());
            }
            rest = behind;
        }
    }

    fn take_back_some(
        &self,
        file: &Held<'_>,
        handed: &[HandedPage],
        size: Option<u64>,
        cuts: u64,
    ) -> Result<()> {
        let mut state = file.alone();
        if state.cuts != cuts {
            // No length of then counts, and without one nothing is mapped behind the end. What is left is there still.
            return Ok(());
        }
        let here: Vec<(&HandedPage, Site)> =
            handed.iter().filter_map(|page| Some((page, page.site_in(&state)?))).collect();
        let sites: Vec<(u64, Site)> = here.iter().map(|(page, site)| (page.number, *site)).collect();
        if size.is_some() || sites.iter().any(|(_, site)| !matches!(site, Site::Mapped(_))) {
            let on_disk = self.change(|core| {
                let mut inode = inode::read(core, file.number)?;
                map_pages(core, &mut inode, &sites, &state.zeroed)?;
                inode.size = inode.size.max(size.unwrap_or(0));
                inode::write(core, &inode)?;
                Ok(inode.size)
            })?;
            state.size = state.size.filter(|size| *size != on_disk);
            state.map_zeroed(&sites);
        }
        for (page, _) in here {
            state.pages.map(page.number);
            state.pages.saved(page.number, page.version, &self.files.spare);
        }
        Ok(())
    }

    /// Picks blocks for the changed pages of a file that have none and that `which` wants.
    pub(crate) fn find_places(
        &self,
        number: u32,
        state: &mut State,
        which: impl Fn(&crate::pages::Page) -> bool,
    ) -> Result<()> {
        let core = &self.core;
        let homeless: Vec<u64> = state
            .pages
            .changed(0)
            .filter(|(_, page)| page.site() == Site::Promised && which(page))
            .map(|(number, _)| number)
            .collect();
        if homeless.is_empty() {
            return Ok(());
        }
        self.reading(|| {
            let mut rest = &homeless[..];
            while let Some(&first) = rest.first() {
                let together =
                    rest.iter().zip(first..).take_while(|(number, expected)| **number == *expected).count();
                let picked = alloc::pick(core, goal(core, number, state, first)?, together as u64)?;
                let count = picked.end - picked.start;
                for (number, block) in (first..).zip(picked) {
                    state.pages.settle(number, Site::Picked(block));
                }
                core.space.release(count);
                rest = &rest[count as usize..];
            }
            Ok(())
        })
    }

    /// Drops the pages of blocks that the file does not have any more; who frees the blocks of those that are mapped is the caller.
    /// `by` is the transaction that took them from the file; none that frees them is earlier.
    pub(crate) fn drop_pages(&self, state: &mut State, range: Range<u64>, by: u64) {
        state.zeroed.clear();
        let numbers: Vec<u64> = state.pages.range(range).map(|(number, _)| number).collect();
        for number in numbers {
            let Some(page) = state.pages.remove(number) else { continue };
            if let (Site::Mapped(block), Some(logged)) = (page.site(), page.logged()) {
                let bytes = page.share();
                self.files.dropped.lock().add(Dropped { by, logged: logged.first, block, bytes });
            }
            match page.site() {
                Site::Promised => self.core.space.release(1),
                Site::Picked(block) => alloc::give_up(&self.core, block..block + 1),
                Site::Unwritten(_) | Site::Mapped(_) => {}
            }
            self.files.spare.keep(page.into_bytes());
        }
    }

    /// Drops all that DRAM has of a file that has been removed, by who has its lock alone.
    pub(crate) fn give_up_contents(&self, state: &mut State, by: u64) {
        self.drop_pages(state, 0..map::END, by);
        state.size = None;
        state.cuts += 1;
    }
}

/// Where the block of a page of inode `file` should be: behind that of the block before it, or near the inode.
pub(crate) fn goal(core: &Core, file: u32, state: &State, number: u64) -> Result<u64> {
    if let Some(before) = number.checked_sub(1) {
        let of_page = state.pages.get(before).and_then(|page| page.site().block());
        let block = match of_page {
            None => map::block(core, &inode::read(core, file)?, before)?,
            some => some,
        };
        if let Some(block) = block {
            return Ok(block + 1);
        }
    }
    Ok(core.superblock.group_of_inode_start(file))
}

/// Part of an operation: the map leads to these pages, and knows that they are written. In the order of the file; those it leads to already
/// may be among them. With a block that is `zeroed` go those before it.
pub(crate) fn map_pages(
    core: &Core,
    inode: &mut Inode,
    pages: &[(u64, Site)],
    zeroed: &[Range<u64>],
) -> Result<()> {
    let (mut rest, mut marked) = (pages, 0);
    while let Some(&(first, site)) = rest.first() {
        let continues = |(n, page): &(u64, &(u64, Site))| page.0 == first + n && page.1 == moved(site, *n);
        let count = (0..).zip(rest).take_while(continues).count() as u64;
        match site {
            Site::Picked(block) => {
                alloc::take(core, block..block + count)?;
                map::insert(core, inode, first, block, count, true)?;
            }
            Site::Unwritten(_) => {
                let of = zeroed.iter().find(|range| range.contains(&first));
                let from = of.map_or(first, |range| range.start.max(marked));
                marked = first + count;
                map::mark_written(core, inode, from..marked)?;
            }
            Site::Mapped(_) | Site::Promised => {}
        }
        rest = &rest[count as usize..];
    }
    Ok(())
}

/// `blocks` further on.
fn moved(site: Site, blocks: u64) -> Site {
    match site {
        Site::Promised => Site::Promised,
        Site::Picked(block) => Site::Picked(block + blocks),
        Site::Unwritten(block) => Site::Unwritten(block + blocks),
        Site::Mapped(block) => Site::Mapped(block + blocks),
    }
}
