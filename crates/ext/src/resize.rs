//! Lengths: files are cut and grow without being written to.
//!
//! A cut is one operation, but for what is freed: that may be more than one transaction should have, and then follows in several, the file
//! being in the list of orphans meanwhile, so that what a crash interrupts is finished behind it. It is done when the first has been: [`crate::unfinished`].

use std::ops::Range;

use vfs::{Attr, Caller, Error, FileKind, Result, Time};

use crate::core::Core;
use crate::core::inode::{self, Inode};
use crate::files::{Alone, Held, State};
use crate::map::{self, free_some};
use crate::orphans;
use crate::volume::Volume;
use crate::write::Draft;

impl Volume {
    /// Sets a file's length, in one operation with what `with` does to its inode, whose attributes it is told with the newest length. Called
    /// without locks.
    pub(crate) fn resize(
        &self,
        file: &Held<'_>,
        size: u64,
        with: impl Fn(&Core, &mut Inode, &Attr) -> Result<()>,
    ) -> Result<()> {
        self.go_on_cutting(file)?;
        self.with_room(|| self.resize_alone(file, &mut file.alone(), size, true, &with))?;
        if file.is_being_cut() {
            self.finish(file.number);
        }
        Ok(())
    }

    /// Frees what lies behind the end of a file that is being cut. Called without locks: the log may have to be drained.
    pub(crate) fn go_on_cutting(&self, file: &Held<'_>) -> Result<()> {
        while file.is_being_cut() {
            self.commit_if_large()?;
            self.with_log(|| self.cut_some(file, &file.alone()))?;
        }
        Ok(())
    }

    /// Frees some of what lies behind the end of a file that is being cut.
    fn cut_some(&self, file: &Held<'_>, state: &State) -> Result<()> {
        if !file.is_being_cut() {
            return Ok(());
        }
        self.change(|core| {
            let mut inode = inode::read(core, file.number)?;
            let size = state.size.unwrap_or(inode.size);
            let mut rest = size.div_ceil(core.superblock.block).min(map::END)..map::END;
            free_some(core, &mut inode, &mut rest)?;
            if rest.is_empty() && inode.links > 0 {
                orphans::remove(core, &mut inode)?;
            }
            inode::write(core, &inode)?;
            file.set_being_cut(!rest.is_empty());
            Ok(())
        })
    }

    /// Before a file grows: that nothing lies behind its end any more. Who has no lock yet [has gone on](Volume::go_on_cutting) with that, so that
    /// it is little.
    pub(crate) fn end_cut(&self, file: &Held<'_>, state: &State) -> Result<()> {
        while file.is_being_cut() {
            self.cut_some(file, state)?;
        }
        Ok(())
    }

    /// The same, for who has the file's lock. What is cut may have to be [freed](Volume::cut_some) behind it. If the length stays, what
    /// is allocated behind it goes if this `is_cut`.
    pub(crate) fn resize_alone(
        &self,
        file: &Held<'_>,
        state: &mut Alone<'_>,
        size: u64,
        is_cut: bool,
        with: &impl Fn(&Core, &mut Inode, &Attr) -> Result<()>,
    ) -> Result<()> {
        let block = self.core.superblock.block;
        self.end_cut(file, state)?;
        let (old, mut draft) = self.reading(|| {
            let inode = self.newest(state, file.number)?;
            let mut draft = Draft::default();
            if inode.kind() == FileKind::Regular && size != inode.size {
                self.draft_tail(state, &inode, size.min(inode.size), &mut draft)?;
            }
            Ok((inode.size, draft))
        })?;
        draft.read(&self.core.store)?;
        // Zeros, too, are on the disk before a length there covers them.
        let waits = !state.is_saved() || !draft.is_empty();
        let kept = size.div_ceil(block);
        let cuts = size < old || (is_cut && size == old);
        let (on_disk, by) = self.change(|core| {
            let mut inode = inode::read(core, file.number)?;
            let attr = Attr { size: old, ..inode.attr() };
            with(core, &mut inode, &attr)?;
            if size > map::bytes_max(&core.superblock, &inode) {
                return Err(Error::FileTooLarge);
            }
            let mut rest = 0..0;
            if cuts {
                rest = kept..map::END;
                inode.size = inode.size.min(size);
                free_some(core, &mut inode, &mut rest)?;
                // One that has no name is in the list already.
                if !rest.is_empty() && inode.links > 0 {
                    orphans::insert(core, &mut inode)?;
                }
            } else if !waits {
                inode.size = size;
            }
            inode::write(core, &inode)?;
            file.set_being_cut(!rest.is_empty());
            Ok((inode.size, core.store.running().number))
        })?;
        if cuts {
            self.drop_pages(state, kept..map::END, by);
            state.cuts += 1;
            zero(state, size..kept * block, block);
        }
        draft.add_to(state);
        state.size = Some(size).filter(|size| *size != on_disk);
        Ok(())
    }

    /// Sets a file's length, and what its being changed by `caller` sets.
    pub(crate) fn cut_file(&self, caller: &Caller, file: &Held<'_>, size: u64) -> Result<()> {
        self.resize(file, size, |_, inode, _| {
            inode.rewritten(caller, Time::now());
            Ok(())
        })
    }
}

/// Fills what of `range`, bytes of a file, has pages with zeros.
pub(crate) fn zero(state: &mut State, range: Range<u64>, block: u64) {
    for (number, within) in crate::write::blocks(range, block) {
        if state.pages.get(number).is_some() {
            state.pages.change(number, within, |bytes| bytes.fill(0));
        }
    }
}
