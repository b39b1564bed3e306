//! Inodes that are to be removed, or cut, by whoever comes next: unlinked and still open, made by `O_TMPFILE`, or not finished
//! before a crash.
//!
//! They are in a list: the superblock names the first, each inode the next one. Others may have left some in a file that some file systems
//! have for them; here nothing is put there.
//!
//! **An inode without a link is in the list, or is removed by the operation that took the last one.**

#[cfg(test)]
mod tests;

use std::fmt::Display;

use vfs::{Error, FileKind, InoSet, Result};

use crate::checksum::crc32c;
use crate::core::inode::{self, Inode};
use crate::core::{Core, alloc};
use crate::error::corrupt;
use crate::fault::{Fault, planted};
use crate::features::RoCompat;
use crate::files::Held;
use crate::map::{self, free_some};
use crate::store::{Block, Kind};
use crate::volume::Volume;
use crate::xattr;

/// An inode with more sectors than these is removed in several operations.
const SECTORS_MAX: u64 = 1 << 17;
/// Where the last bytes of a block of the orphan file begin, from its end, and what they begin with.
pub(crate) const FILE_TAIL: usize = 8;
const FILE_MAGIC: u32 = 0x0B10_CA04;

/// Where an inode that is to be removed is told of to who comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nowhere,
    InList,
    /// In the file of orphans: it joins no list beside that.
    InFile,
}

/// The first of the list, or 0.
pub(crate) fn first(core: &Core) -> Result<u32> {
    Ok(core.newest_superblock()?.last_orphan.get())
}

/// Part of an operation: `inode` joins the list. The caller writes it.
pub(crate) fn insert(core: &Core, inode: &mut Inode) -> Result<()> {
    inode.next_orphan = first(core)?;
    core.before_orphans.lock().insert(inode.next_orphan, inode.number);
    core.change_superblock(|raw| raw.last_orphan.set(inode.number))
}

/// Part of an operation: `inode` leaves the list. The caller writes it.
pub(crate) fn remove(core: &Core, inode: &mut Inode) -> Result<()> {
    let behind = std::mem::take(&mut inode.next_orphan);
    let remembered = core.before_orphans.lock().remove(&inode.number);
    if first(core)? == inode.number {
        return core.change_superblock(|raw| raw.last_orphan.set(behind));
    }
    let remembered = remembered.and_then(|number| inode::read(core, number).ok());
    let mut before = match remembered.filter(|before| before.next_orphan == inode.number) {
        Some(before) => before,
        None => search_before(core, inode.number)?,
    };
    before.next_orphan = behind;
    core.before_orphans.lock().insert(behind, before.number);
    inode::write(core, &before)
}

/// The inode that stands before `number` in the list.
fn search_before(core: &Core, number: u32) -> Result<Inode> {
    let mut at = first(core)?;
    // A list is no longer than there are inodes; one that is leads in a circle.
    for _ in 0..core.superblock.inodes {
        let before = listed(core, at)?;
        if before.next_orphan == number {
            return Ok(before);
        }
        at = before.next_orphan;
    }
    Err(damaged(at))
}

fn listed(core: &Core, number: u32) -> Result<Inode> {
    if number < core.superblock.first_inode {
        return Err(damaged(number));
    }
    inode::read(core, number).map_err(|error| if error == Error::Stale { damaged(number) } else { error })
}

fn damaged(number: u32) -> Error {
    corrupt("list", "orphans", "an inode", number, "one in use, and none twice")
}

/// Part of an operation: removes an inode that has no link, and what it has; or, if that is more than one operation should free, some of that.
/// False if there is more: what was told of nowhere is in the list then.
fn remove_some(core: &Core, mut inode: Inode, told: Told) -> Result<bool> {
    if has_map(core, &inode) {
        let mut rest = 0..map::END;
        free_some(core, &mut inode, &mut rest)?;
        if !rest.is_empty() {
            if told == Told::Nowhere {
                insert(core, &mut inode)?;
            }
            return inode::write(core, &inode).map(|()| false);
        }
    }
    xattr::release(core, &mut inode)?;
    if told == Told::InList {
        remove(core, &mut inode)?;
    }
    inode.size = 0;
    inode::write(core, &inode)?;
    alloc::free_inode(core, inode.number, inode.is_dir()).map(|()| true)
}

/// Part of an operation: `inode` has lost its last link. It is removed, or joins the list, if it is open or is to be removed by
/// [`Volume::finish`]; whether by that.
pub(crate) fn unlinked(volume: &Volume, core: &Core, mut inode: Inode) -> Result<bool> {
    let is_open = volume.is_open(inode.number);
    let is_large = inode.blocks > SECTORS_MAX;
    if !is_open && !is_large && !volume.has_contents_in_memory(inode.number) {
        return remove_some(core, inode, Told::Nowhere).map(|is_done| !is_done);
    }
    if inode.is_dir() {
        inode.size = 0; // nothing is found in it
    }
    if !volume.is_being_cut(inode.number) {
        insert(core, &mut inode)?;
    }
    inode::write(core, &inode)?;
    Ok(!is_open)
}

/// Whether an inode has blocks, or could have.
fn has_map(core: &Core, inode: &Inode) -> bool {
    match inode.kind() {
        FileKind::Regular | FileKind::Directory => !inode.is_inline(),
        FileKind::Symlink => !inode.is_inline() && inode.fast_target(&core.superblock).is_none(),
        _ => false,
    }
}

impl Volume {
    /// Removes an inode if it has neither link nor handle, with what it has.
    pub(crate) fn remove_unnamed(&self, file: &Held<'_>) -> Result<()> {
        let mut is_done = false;
        while !is_done {
            // Without the file's lock: the log may have to be drained.
            self.commit_if_large()?;
            let done = self.with_log(|| self.remove_some_unnamed(file))?;
            let Some(done) = done else { return Ok(()) };
            is_done = done;
        }
        Ok(())
    }

    /// One operation of that; whether it was the last one, nothing if there is nothing to remove.
    fn remove_some_unnamed(&self, file: &Held<'_>) -> Result<Option<bool>> {
        let number = file.number;
        let mut state = file.alone();
        let done = self.change(|core| match inode::read(core, number) {
            Ok(inode) if inode.links == 0 && !file.is_open() => {
                let is_done = remove_some(core, inode, Told::InList)?;
                if is_done {
                    self.linkable.lock().remove(&number);
                    file.set_being_cut(false);
                }
                Ok(Some((is_done, core.store.running().number)))
            }
            Ok(_) | Err(Error::Stale) => Ok(None),
            Err(error) => Err(error),
        })?;
        let Some((is_done, by)) = done else { return Ok(None) };
        self.give_up_contents(&mut state, by);
        Ok(Some(is_done))
    }

    /// Removes or cuts what others left: called once, before anything is open. Gives how many there were. **Damage in one of them keeps
    /// nobody from the others, or from the file system**: it stays, and errors are said to have been found.
    pub(crate) fn reclaim_orphans(&self) -> Result<u64> {
        if planted(Fault::OrphanNotReclaimed) {
            return Ok(0);
        }
        let mut count = 0;
        let mut stay = InoSet::default();
        let mut next = self.reading(|| first(&self.core))?;
        while next != 0 {
            let number = next;
            let entry = match stay.contains(&number) {
                true => Err(damaged(number)),
                false => self.reading(|| listed(&self.core, number)),
            };
            match entry {
                Ok(inode) => next = inode.next_orphan,
                Err(error) => {
                    let list = "the list of inodes that were to be removed or cut";
                    let what =
                        format!("{list} ends with {number}; those behind it stay, and keep their space");
                    self.leave(what, error)?;
                    break;
                }
            }
            if self.reclaim_one(number, true, |_| Ok(()))? {
                count += 1;
            } else {
                stay.insert(number);
            }
        }
        if self.core.superblock.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT) {
            count += self.reclaim_file()?;
        }
        self.note_damage();
        Ok(count)
    }

    /// Removes or cuts one of them. False if it stays: without a name it keeps its place, for the next to try; one with a name is only told of, and
    /// keeps what lies behind its end. `and` is part of the last operation.
    fn reclaim_one(&self, number: u32, is_listed: bool, and: impl Fn(&Core) -> Result<()>) -> Result<bool> {
        let some = |core: &Core| {
            let is_done = reclaim(core, listed(core, number)?, is_listed)?;
            if is_done { and(core).map(|()| true) } else { Ok(false) }
        };
        loop {
            // Many small ones come to as much as a large one.
            self.commit_if_large()?;
            match self.with_log(|| self.change(some)) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => {
                    if is_listed && matches!(error, Error::Io(_)) {
                        self.unfinished.lock().insert(number, error.clone());
                    }
                    self.leave(stays(number), error)?;
                    // Else it would join the list once more when it is cut or removed.
                    let leaves = |core: &Core| {
                        let mut inode = listed(core, number)?;
                        if inode.links > 0 && is_listed {
                            remove(core, &mut inode)?;
                            inode::write(core, &inode)?;
                        }
                        Ok(())
                    };
                    let left = self.with_log(|| self.change(leaves));
                    return left.or_else(|error| self.leave(stays(number), error)).map(|()| false);
                }
            }
        }
    }

    /// Goes on without an orphan, or several, if `error` is about these alone; `what` tells of that.
    fn leave(&self, what: impl Display, error: Error) -> Result<()> {
        tracing::error!("{what}: {error}");
        match self.noting::<()>(Err(error)) {
            // What could not be read now may be the next time.
            Err(Error::Corrupt(_) | Error::Io(_)) => Ok(()),
            other => other,
        }
    }

    /// The same, of those in the file; then it is empty, but for what stays.
    fn reclaim_file(&self) -> Result<u64> {
        let mut count = 0;
        let is_empty = match self.reclaim_blocks(&mut count) {
            Ok(is_empty) => is_empty,
            Err(error) => {
                let what = "the inodes of the orphan file that were not looked at stay, and keep their space";
                self.leave(what, error).map(|()| false)?
            }
        };
        if is_empty {
            let present = RoCompat::ORPHAN_PRESENT.bits();
            let empty =
                |core: &Core| core.change_superblock(|raw| raw.ro_compat.set(raw.ro_compat.get() & !present));
            self.with_log(|| self.change(empty))?;
        }
        Ok(count)
    }

    /// Adds to `count` how many were in the file's blocks. Whether none stays.
    fn reclaim_blocks(&self, count: &mut u64) -> Result<bool> {
        let mut is_empty = true;
        let file = inode::read(&self.core, self.core.superblock.orphan_file)?;
        let block = self.core.superblock.block;
        for number in 0..(file.size / block).min(self.core.superblock.blocks) {
            let Some(at) = map::block(&self.core, &file, number)? else { continue };
            let bytes = file_block(&self.core, &file, at)?;
            let (entries, _) = bytes[..bytes.len() - FILE_TAIL].as_chunks::<4>();
            for (n, orphan) in entries.iter().map(|word| u32::from_le_bytes(*word)).enumerate() {
                if orphan == 0 {
                    continue;
                }
                let leaves = |core: &Core| {
                    core.store.change(
                        Kind::Orphans,
                        at,
                        |_| Ok(()),
                        |bytes| {
                            bytes.at(n * 4..(n + 1) * 4).fill(0);
                            let sum = file_checksum(core, &file, at, bytes);
                            if core.superblock.features.has_metadata_csum() {
                                let end = block as usize;
                                bytes.at(end - 4..end).copy_from_slice(&sum.to_le_bytes());
                            }
                        },
                    )
                };
                // In one operation, since a commit may come between two: who reads the entry finds the inode.
                match self.reclaim_one(orphan, false, leaves)? {
                    true => *count += 1,
                    false => is_empty = false,
                }
            }
        }
        Ok(is_empty)
    }
}

fn stays(number: u32) -> impl Display {
    format!("inode {number}, which was to be removed or cut, stays, and keeps its space")
}

/// Part of an operation: removes an orphan, or, if it has a name, cuts what lies behind its end. False if there is more to do.
fn reclaim(core: &Core, mut inode: Inode, is_listed: bool) -> Result<bool> {
    if inode.links == 0 {
        return remove_some(core, inode, if is_listed { Told::InList } else { Told::InFile });
    }
    let mut rest = 0..0;
    if inode.kind() == FileKind::Regular && has_map(core, &inode) {
        rest = inode.size.div_ceil(core.superblock.block).min(map::END)..map::END;
        free_some(core, &mut inode, &mut rest)?;
    }
    if rest.is_empty() && is_listed {
        remove(core, &mut inode)?;
    }
    inode::write(core, &inode)?;
    Ok(rest.is_empty())
}

/// A block of the file of orphans.
pub(crate) fn file_block(core: &Core, file: &Inode, at: u64) -> Result<Block> {
    core.store.read(Kind::Orphans, at, |bytes| verify_file(core, file, at, bytes))
}

fn verify_file(core: &Core, file: &Inode, at: u64, bytes: &[u8]) -> Result<()> {
    let (magic, sum) = bytes[bytes.len() - FILE_TAIL..].split_at(4);
    let expected = file_checksum(core, file, at, bytes);
    let is_sealed = !core.superblock.features.has_metadata_csum() || sum == expected.to_le_bytes();
    if magic == FILE_MAGIC.to_le_bytes() && is_sealed {
        return Ok(());
    }
    Err(corrupt("orphan file", format_args!("block {at}"), "its checksum or magic number", "wrong", "right"))
}

fn file_checksum(core: &Core, file: &Inode, at: u64, bytes: &[u8]) -> u32 {
    let seed = inode::seed(&core.superblock, file.number, file.generation);
    crc32c(crc32c(seed, &at.to_le_bytes()), &bytes[..bytes.len() - FILE_TAIL])
}
