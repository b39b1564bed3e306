//! Pages on their way to the disk: places for them, requests, and the operation that maps them.
//!
//! **The ordinary way** ([`Volume::write_out`], [`Volume::write_out_all`]), for whom nobody waits: places are picked, the bytes are written and
//! flushed, and one operation then maps them and sets the length. So no map ever leads to bytes that are not there. Between the writes and
//! that operation the file is nobody's: what was changed meanwhile stays changed, what was cut off is not mapped.
//!
//! **By the log**: [`crate::logging`].
//!
//! One writes at a time: who has the queue ([`Volume::queue`]) takes files' locks, never the other way round.
//!
//! What could not be written stays as it was, and so does what it was to be: each `fsync` says so until it can.

use std::ops::Range;

use disk::{Buffer, Purpose, Queue, Write};
use vfs::Result;

use crate::alloc;
use crate::core::Core;
use crate::error::io;
use crate::files::{Dropped, Held, State};
use crate::inode::{self, Inode};
use crate::map;
use crate::pages::Site;
use crate::volume::Volume;

/// Bytes of a request.
const REQUEST_MAX: usize = 1 << 20;

/// Files that are written with one flush.
const FILES_MAX: usize = 512;

/// What has been written and is to be mapped.
struct Handed {
    pages: Vec<HandedPage>,
    /// The length that covers all of them.
    size: Option<u64>,
}

struct HandedPage {
    number: u64,
    born: u64,
    version: u64,
    site: Site,
}

impl HandedPage {
    /// Whether it is the same page still, and nobody else has mapped it.
    fn is_in(&self, state: &State) -> bool {
        state.pages.get(self.number).is_some_and(|page| page.born() == self.born && page.site() == self.site)
    }
}

impl Volume {
    /// Writes a file's pages to the disk, but for those that the log has. They are durable there; that they are the file's is so with the
    /// next commit.
    pub(crate) fn write_out(&self, file: &Held<'_>) -> Result<()> {
        self.with_commit(|| {
            let queue = self.queue()?;
            let Some(handed) = self.hand_over(&queue, file)? else { return Ok(()) };
            self.disk().flush().map_err(|error| io(&error))?;
            self.take_back(file, &handed)
        })
    }

    /// The same for all files, many of them with one flush of the disk. Fails with what failed first; the others are written.
    pub(crate) fn write_out_all(&self) -> Result<()> {
        let mut result = Ok(());
        for files in self.files.all().chunks(FILES_MAX) {
            result = result.and(self.with_commit(|| self.write_out_some(files)));
            self.commit_if_large()?;
        }
        result
    }

    fn write_out_some(&self, files: &[Held<'_>]) -> Result<()> {
        let queue = self.queue()?;
        let mut result = Ok(());
        let mut written = Vec::new();
        for file in files {
            match self.hand_over(&queue, file) {
                Ok(Some(handed)) => written.push((file, handed)),
                Ok(None) => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        if written.is_empty() {
            return result;
        }
        self.disk().flush().map_err(|error| io(&error))?;
        for (file, handed) in written {
            result = result.and(self.take_back(file, &handed));
        }
        result
    }

    /// Gives places to the changed pages that the log does not have, and writes them.
    fn hand_over(&self, queue: &Queue, file: &Held<'_>) -> Result<Option<Handed>> {
        let mut state = file.alone();
        self.find_places(file.number, &mut state, |page| page.logged().is_none())?;
        let pages: Vec<HandedPage> = state
            .pages
            .changed(0)
            .filter(|(_, page)| page.logged().is_none())
            .map(|(number, page)| {
                let (born, version) = (page.born(), page.version());
                HandedPage { number, born, version, site: page.site() }
            })
            .collect();
        // No length covers what waits for the log.
        let waits =
            state.pages.changed(0).find(|(_, page)| page.logged().is_some()).map(|(number, _)| number);
        let most = waits.map_or(u64::MAX, |number| number * self.core.superblock.block);
        let size = state.size.map(|size| size.min(most)).filter(|size| *size > 0);
        if pages.is_empty() && size.is_none() {
            return Ok(None);
        }
        state.least = u64::MAX;
        let state = state.into_shared();
        self.write_pages(queue, &state, pages.iter().map(|page| page.number))?;
        Ok(Some(Handed { pages, size }))
    }

    /// Maps what has been written and flushed.
    fn take_back(&self, file: &Held<'_>, handed: &Handed) -> Result<()> {
        let mut state = file.alone();
        let here: Vec<&HandedPage> = handed.pages.iter().filter(|page| page.is_in(&state)).collect();
        let unmapped: Vec<(u64, Site)> = here.iter().map(|page| (page.number, page.site)).collect();
        // None of a file that has been removed meanwhile.
        let size = handed.size.map(|size| size.min(state.least)).filter(|size| *size > 0);
        if size.is_some() || unmapped.iter().any(|(_, site)| !matches!(site, Site::Mapped(_))) {
            let on_disk = self.change(|core| {
                let mut inode = inode::read(core, file.number)?;
                map_pages(core, &mut inode, &unmapped)?;
                inode.size = inode.size.max(size.unwrap_or(0));
                inode::write(core, &inode)?;
                Ok(inode.size)
            })?;
            state.size = state.size.filter(|size| *size != on_disk);
        }
        for page in here {
            mapped(&mut state, page.number);
            state.pages.saved(page.number, page.version);
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
        let _tree = self.tree.read();
        let inode = inode::read(core, number)?;
        let mut rest = &homeless[..];
        while let Some(&first) = rest.first() {
            let together =
                rest.iter().zip(first..).take_while(|(number, expected)| **number == *expected).count();
            let picked = alloc::pick(core, goal(core, &inode, state, first)?, together as u64)?;
            let count = picked.end - picked.start;
            for (number, block) in (first..).zip(picked) {
                state.pages.settle(number, Site::Picked(block));
            }
            core.space.release(count);
            rest = &rest[count as usize..];
        }
        Ok(())
    }

    /// Drops the pages of blocks that the file does not have any more; who frees the blocks of those that are mapped is the caller.
    /// `by` is the transaction that took them from the file; none that frees them is earlier.
    pub(crate) fn drop_pages(&self, state: &mut State, range: Range<u64>, by: u64) {
        let numbers: Vec<u64> = state.pages.range(range).map(|(number, _)| number).collect();
        for number in numbers {
            let page = state.pages.remove(number);
            if let Some(page) = &page
                && let (Site::Mapped(block), Some(logged)) = (page.site(), page.logged())
            {
                let bytes = page.bytes().into();
                self.files.dropped.lock().push(Dropped { by, logged: logged.first, block, bytes });
            }
            match page.map(|page| page.site()) {
                Some(Site::Promised) => self.core.space.release(1),
                Some(Site::Picked(block)) => alloc::give_up(&self.core, block..block + 1),
                Some(Site::Unwritten(_) | Site::Mapped(_)) | None => {}
            }
        }
    }

    /// Drops all that DRAM has of a file that has been removed, by who has its lock alone.
    pub(crate) fn give_up_contents(&self, state: &mut State, by: u64) {
        self.drop_pages(state, 0..map::END, by);
        (state.size, state.least) = (None, 0);
    }

    /// Writes whole pages to their places, and waits until the disk has answered. Neighbours on the disk are one request.
    pub(crate) fn write_pages(
        &self,
        queue: &Queue,
        state: &State,
        numbers: impl Iterator<Item = u64>,
    ) -> Result<()> {
        let block = self.core.superblock.block;
        let mut places: Vec<(u64, u64)> =
            numbers.filter_map(|number| Some((state.pages.get(number)?.site().block()?, number))).collect();
        places.sort_unstable();
        let mut result = Ok(());
        let mut rest = &places[..];
        while let Some(&(start, _)) = rest.first() {
            let most = REQUEST_MAX / block as usize;
            let together =
                rest.iter().zip(start..).take(most).take_while(|(place, at)| place.0 == *at).count();
            let (run, behind) = rest.split_at(together);
            let mut buffer = Buffer::zeroed(together * block as usize);
            for ((_, number), part) in run.iter().zip(buffer.chunks_mut(block as usize)) {
                part.copy_from_slice(state.pages.get(*number).expect("nobody changes it").bytes());
            }
            let write = Write { purpose: Purpose::Data, at: start * block, buffer, token: start };
            result = result.and(queue.submit(write).map_err(|unwritten| io(&unwritten.1)));
            rest = behind;
        }
        let drained = queue.drain().map_err(|unwritten| io(&unwritten[0].1));
        result.and(drained)
    }
}

/// Where the block of a page should be: behind that of the block before it, or near the inode.
pub(crate) fn goal(core: &Core, inode: &Inode, state: &State, number: u64) -> Result<u64> {
    if let Some(before) = number.checked_sub(1) {
        let of_page = state.pages.get(before).and_then(|page| page.site().block());
        let block = match of_page {
            None => map::block(core, inode, before)?,
            some => some,
        };
        if let Some(block) = block {
            return Ok(block + 1);
        }
    }
    let superblock = &core.superblock;
    Ok(superblock.group_start((inode.number - 1) / superblock.inodes_per_group))
}

/// Part of an operation: the map leads to these pages, and knows that they are written. In the order of the file; those it leads to already
/// may be among them.
pub(crate) fn map_pages(core: &Core, inode: &mut Inode, pages: &[(u64, Site)]) -> Result<()> {
    let mut rest = pages;
    while let Some(&(first, site)) = rest.first() {
        let continues = |(n, page): &(u64, &(u64, Site))| page.0 == first + n && page.1 == moved(site, *n);
        let count = (0..).zip(rest).take_while(continues).count() as u64;
        match site {
            Site::Picked(block) => {
                alloc::take(core, block..block + count)?;
                map::insert(core, inode, first, block, count, true)?;
            }
            Site::Unwritten(_) => map::mark_written(core, inode, first..first + count)?,
            Site::Mapped(_) | Site::Promised => {}
        }
        rest = &rest[count as usize..];
    }
    Ok(())
}

/// The map leads to a page.
pub(crate) fn mapped(state: &mut State, number: u64) {
    if let Some(block) = state.pages.get(number).and_then(|page| page.site().block()) {
        state.pages.settle(number, Site::Mapped(block));
    }
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
