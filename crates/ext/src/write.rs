//! Bytes into pages.
//!
//! What can fail comes first, blocks for what has no place included ([`crate::core::alloc::Space::promise`]); then an operation sets the times, if the
//! clock has moved on since the last write, and then nothing fails any more. So a write that fails has changed nothing, and one that has returned
//! finds its room on the disk later.

use std::ops::Range;
use std::time::{Duration, Instant};

use vfs::{Caller, Error, Handle, InodeFlags, OpenFlags, Result, Time, rules};

use crate::core::alloc;
use crate::core::inode::{self, Inode};
use crate::data;
use crate::files::{Held, State};
use crate::map::{self, Place};
use crate::pages::{Page, Site};
use crate::store::Store;
use crate::volume::Volume;
use crate::work::Task;

/// How long a disk that refuses what fills all pages is not offered it again: longer where offering it took longer, but a disk that is back is to
/// be found so.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(5);

/// Pages that a change of a file needs and that are not there yet.
#[derive(Default)]
pub(crate) struct Draft {
    /// The page, and how many bytes from its start are on the disk and stay.
    pages: Vec<(u64, Page, usize)>,
    tail: Option<Tail>,
}

/// The block of a file's end, where bytes may lie behind it.
struct Tail {
    number: u64,
    /// Where they begin.
    end: usize,
    /// The block needs a page whatever lies there.
    is_needed: bool,
}

impl Draft {
    /// Reads bytes that stay. `tree` is not needed for that: who has the file's lock knows that its blocks remain its.
    pub(crate) fn read(&mut self, store: &Store) -> Result<()> {
        for (_, page, kept) in &mut self.pages {
            if let (Site::Mapped(block), true) = (page.site(), *kept > 0) {
                page.read(*kept, |bytes| store.read_data(block, 0, bytes, 0))?;
            }
        }
        if let Some(Tail { number, end, is_needed }) = self.tail {
            let at = self.pages.iter().position(|(other, ..)| *other == number).expect("it has a page");
            if nvm::is_zero(&self.pages[at].1.bytes()[end..]) {
                self.tail = None;
                if !is_needed {
                    self.pages.remove(at);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Blocks that have no place.
    pub(crate) fn homeless(&self) -> u64 {
        self.pages.iter().filter(|(_, page, _)| page.site() == Site::Promised).count() as u64
    }

    /// Adds the pages to the file's.
    pub(crate) fn add_to(self, state: &mut State) {
        for (number, page, _) in self.pages {
            state.pages.insert(number, page);
        }
        if let Some(Tail { number, end, .. }) = self.tail {
            let block = state.pages.get(number).expect("it was added").bytes().len();
            state.pages.change(number, end..block, |bytes| bytes.fill(0));
        }
    }
}

/// Cuts a range of bytes at the ends of blocks: the number of each, the range in it.
pub(crate) fn blocks(range: Range<u64>, block: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
    let numbers = range.start / block..range.end.div_ceil(block);
    numbers.map(move |number| {
        let start = range.start.saturating_sub(number * block);
        (number, start as usize..(range.end - number * block).min(block) as usize)
    })
}

impl Volume {
    /// Writes through a handle, at its file's end if it appends.
    pub(crate) fn write_file(
        &self,
        caller: &Caller,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let (file, flags) = self.handles.get(handle)?;
        if !flags.contains(OpenFlags::WRITE) {
            return Err(Error::BadHandle);
        }
        if data.is_empty() {
            return Ok(0);
        }
        let file = self.files.hold(file);
        let offset = if flags.contains(OpenFlags::APPEND) { None } else { Some(offset) };
        let written = self.write_what_fits(caller, &file, offset, data)?;
        if flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC) {
            self.sync_file(&file)?;
        }
        Ok(written)
    }

    /// Writes as much as there is room for; [`Error::NoSpace`] if that is nothing. Maps may need nearly as much for what is in one write as that itself,
    /// and hardly ever do: so what is left on a disk is used in several steps, each of which has its places before the next one asks.
    fn write_what_fits(
        &self,
        caller: &Caller,
        file: &Held<'_>,
        offset: Option<u64>,
        data: &[u8],
    ) -> Result<usize> {
        match self.write_bytes(caller, file, offset, data) {
            Err(Error::NoSpace) => {}
            result => return result,
        }
        let block = self.core.superblock.block;
        let spared = self.reading_file(file, |inode| Ok(alloc::spared_for(&self.core, caller, inode)))?;
        let (mut done, mut most) = (0, data.len() as u64 / block + 1);
        while done < data.len() {
            let blocks = self.reading(|| self.core.space.room(&self.core, spared, most))?.max(1);
            let at = offset.map(|offset| offset + done as u64);
            // Up to the end of a block.
            let length = blocks * block - at.map_or(0, |at| at % block);
            let piece = &data[done..data.len().min(done + length as usize)];
            match self.write_bytes(caller, file, at, piece) {
                Ok(written) => {
                    done += written;
                    // At the end there may be another's bytes by now, and these are to stay together.
                    if offset.is_none() {
                        break;
                    }
                }
                // Somebody else was faster.
                Err(Error::NoSpace) if blocks > 1 => most = blocks / 2,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes at `offset`, or at the end: all that a file can have there. Gives how much that is.
    pub(crate) fn write_bytes(
        &self,
        caller: &Caller,
        file: &Held<'_>,
        offset: Option<u64>,
        bytes: &[u8],
    ) -> Result<usize> {
        self.make_room(file, bytes.len() as u64)?;
        self.go_on_cutting(file)?;
        self.with_room(|| {
            let mut state = file.alone();
            // What only goes to pages meets nothing that would ask.
            self.failure().check()?;
            self.end_cut(file, &state)?;
            let (range, size, mut draft, protected, is_inode_changed, spared) = self.reading(|| {
                let mut inode = self.newest(&state, file.number)?;
                let spared = alloc::spared_for(&self.core, caller, &inode);
                rules::may_write(caller, inode.shown_flags())?;
                let is_inode_changed = inode.rewritten(caller, Time::now());
                let may_only_grow = offset.is_some() && inode.shown_flags().contains(InodeFlags::APPEND);
                let offset = offset.unwrap_or(inode.size);
                let range = self.range_to_write(&inode, offset, bytes.len() as u64)?;
                let protected = match may_only_grow {
                    true => Some(data::find(&self.core, &inode, &state.pages, range.clone(), false)?),
                    false => None,
                };
                let mut draft = Draft::default();
                if range.start > inode.size {
                    self.draft_tail(&state, &inode, inode.size, &mut draft)?;
                }
                self.draft(&state, &inode, range.clone(), |_| true, &mut draft)?;
                Ok((range, inode.size, draft, protected, is_inode_changed, spared))
            })?;
            if let Some(protected) = protected {
                let mut found = vec![0; (range.end - range.start) as usize];
                let length = protected.read(&self.core.store, &state.pages, &mut found)?;
                rules::keeps(&found[..length], bytes)?;
            }
            draft.read(&self.core.store)?;
            self.promise_blocks(spared, draft.homeless())?;
            if is_inode_changed {
                self.touch(caller, file, &draft)?;
            }
            draft.add_to(&mut state);
            let mut rest = bytes;
            for (number, within) in blocks(range.clone(), self.core.superblock.block) {
                let (here, behind) = rest.split_at(within.len());
                state.pages.write(number, within.start, here, &self.files.spare);
                rest = behind;
            }
            if range.end > size {
                state.size = Some(range.end);
            }
            Ok((range.end - range.start) as usize)
        })
    }

    /// A range that a file can have.
    pub(crate) fn range(&self, inode: &Inode, offset: u64, length: u64) -> Result<Range<u64>> {
        let most = map::bytes_max(&self.core.superblock, inode);
        let end = offset.checked_add(length).filter(|end| *end <= most).ok_or(Error::FileTooLarge)?;
        Ok(offset..end)
    }

    /// What of a range a file can have: what comes first is written, as by the kernel.
    pub(crate) fn range_to_write(&self, inode: &Inode, offset: u64, length: u64) -> Result<Range<u64>> {
        let most = map::bytes_max(&self.core.superblock, inode);
        if offset < most {
            Ok(offset..offset.saturating_add(length).min(most))
        } else {
            Err(Error::FileTooLarge)
        }
    }

    /// Waits until there is room for `bytes` in pages. If nobody else makes it, the file's own make place first.
    pub(crate) fn make_room(&self, file: &Held<'_>, bytes: u64) -> Result<()> {
        let needed = bytes.div_ceil(self.core.superblock.block);
        let needs = |pages| self.files.unsaved() + needed > pages;
        let began = Instant::now();
        if let Some((until, why)) = self.refused.lock().rest.clone()
            && began < until
            && needs(self.pages_max)
        {
            return Err(why);
        }
        if needs(self.pages_max / 2) {
            self.work.ask(Task::WritePages);
        }
        // The first round may have begun before there was much.
        let mut is_tended = true;
        for _ in 0..2 {
            is_tended = !needs(self.pages_max) || self.work.wait_for_pages();
        }
        // What cannot be written of one file is for who syncs that to hear, unless it takes all the room.
        if needs(self.pages_max) && !is_tended {
            drop(self.write_out(file));
        }
        let written = if needs(self.pages_max) { self.write_out_all() } else { Ok(()) };
        if !needs(self.pages_max) {
            return Ok(());
        }
        // All of it was offered, which may have taken long; a program that goes on writing would have it offered with each write.
        if let Err(why) = &written {
            let rest = (2 * began.elapsed()).clamp(REST_MIN, REST_MAX);
            self.refused.lock().rest = Some((Instant::now() + rest, why.clone()));
        }
        written
    }

    /// Promises blocks, but for those `spared`, to what has no place.
    pub(crate) fn promise_blocks(&self, spared: u64, blocks: u64) -> Result<()> {
        if blocks == 0 {
            Ok(())
        } else {
            self.reading(|| self.core.space.promise(&self.core, spared, blocks))
        }
    }

    /// What a write by `caller` changes of the inode; blocks have been promised.
    fn touch(&self, caller: &Caller, file: &Held<'_>, draft: &Draft) -> Result<()> {
        let changed = self.change(|core| {
            let mut inode = inode::read(core, file.number)?;
            if inode.rewritten(caller, Time::now()) { inode::write(core, &inode) } else { Ok(()) }
        });
        if changed.is_err() {
            self.core.space.release(draft.homeless());
        }
        changed
    }

    /// Pages for what of `range` has none and is in a place that `wants` one. Called with `tree` held.
    pub(crate) fn draft(
        &self,
        state: &State,
        inode: &Inode,
        range: Range<u64>,
        wants: impl Fn(Place) -> bool,
        draft: &mut Draft,
    ) -> Result<()> {
        let block = self.core.superblock.block;
        let mut run: Option<(Range<u64>, Place)> = None;
        for (number, within) in blocks(range, block) {
            if state.pages.get(number).is_some() {
                continue;
            }
            let (of, place) = match run.take() {
                Some(known) if known.0.contains(&number) => known,
                _ => {
                    let found = map::run_to_write(&self.core, inode, number)?;
                    (number..number.saturating_add(found.blocks), found.place)
                }
            };
            if !wants(place) {
                run = Some((of, place));
                continue;
            }
            let used = inode.size.saturating_sub(number * block).min(block) as usize;
            let (site, kept) = match place {
                Place::Hole => (Site::Promised, 0),
                Place::Unwritten(start) => (Site::Unwritten(start + (number - of.start)), 0),
                Place::Mapped(start) => {
                    let site = Site::Mapped(start + (number - of.start));
                    let is_replaced = within.start == 0 && within.end >= used;
                    if used > 0
                        && within != (0..block as usize)
                        && used < block as usize
                        && draft.tail.is_none()
                    {
                        // Who changes the last block sees, too, to what lies behind the end there: a page has zeros, and the log
                        // is to have them where the disk has not.
                        draft.tail = Some(Tail { number, end: used, is_needed: true });
                        draft.pages.push((number, self.files.page(site), block as usize));
                        run = Some((of, place));
                        continue;
                    }
                    (site, if is_replaced { 0 } else { used })
                }
            };
            run = Some((of, place));
            match &mut draft.tail {
                Some(tail) if tail.number == number => tail.is_needed = true,
                _ => draft.pages.push((number, self.files.page(site), kept)),
            }
        }
        Ok(())
    }

    /// Before a file that ends at `end` grows, and after it was cut there: that what lies behind in its last block is zeros. Whoever
    /// wrote the disk need not have seen to it, and a crash may come between a file's cut and the zeros. Called with `tree` held.
    pub(crate) fn draft_tail(&self, state: &State, inode: &Inode, end: u64, draft: &mut Draft) -> Result<()> {
        let block = self.core.superblock.block;
        let (number, used) = (end / block, (end % block) as usize);
        if used == 0 || end >= map::END.saturating_mul(block) || state.pages.get(number).is_some() {
            return Ok(());
        }
        if let Place::Mapped(start) = map::run_to_write(&self.core, inode, number)?.place {
            draft.pages.push((number, self.files.page(Site::Mapped(start)), block as usize));
            draft.tail = Some(Tail { number, end: used, is_needed: false });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
