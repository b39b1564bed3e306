//! Bytes of files: reading, and writing by adaptive logging (Shortcut-JFS §III.A, ADP-S) or one of the schemes that it
//! was compared with.
//!
//! Whole blocks, and parts of more than half a block, go to new blocks to which a logged pointer then switches (block
//! logging, in-place checkpointing). Smaller parts of a block that has data are logged as differences and
//! rewritten where they are, unless a snapshot has the block: then it is copied first (HMFS §3.1, Stacking Write). Bytes
//! beyond the end of a file's last block are zero, always.

mod part;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use parking_lot::RwLockReadGuard;
use smallvec::SmallVec;
use vfs::{Caller, Error, Handle, OpenFlags, Result, rules};

use self::part::{DIFFERENCE_MAX, Part, is_small};
use crate::allocator::{Room, Urgency};
use crate::bia;
use crate::core::{Core, Operation};
use crate::fault::{Fault, planted};
use crate::geometry::{BLOCK, FILE_MAX};
use crate::index::{self, blocks_for};
use crate::inode::{Hot, Inode, Layout};
use crate::locks::Exclusive;
use crate::node::number;
use crate::pointer::DataPointer;
use crate::record::{Item, MAP_LOG};
use crate::{Durability, Journaling};

/// Bytes one transaction writes at most.
const CHUNK: usize = 1 << 20;
/// The same, if all of them go through the log.
const LOGGED_CHUNK: usize = 128 << 10;
const _: () = assert!(CHUNK.is_power_of_two() && LOGGED_CHUNK.is_power_of_two());

/// Bytes of items that writing `bytes` logs at most.
fn log_for(bytes: usize, journaling: Journaling) -> usize {
    let blocks = bytes / BLOCK as usize + 3;
    if journaling.rewrites() {
        return blocks * (MAP_LOG + BLOCK as usize + 32) + 256;
    }
    // A run for each block, two differences, an inline file that moves out, the inode's objects.
    blocks * MAP_LOG + 2 * (DIFFERENCE_MAX + 32) + BLOCK as usize + 256
}

/// The end of a range that a file can have.
pub(crate) fn end_of_range(offset: u64, len: u64) -> Result<u64> {
    offset.checked_add(len).filter(|end| *end <= FILE_MAX).ok_or(Error::FileTooLarge)
}

/// Whole blocks of a mapped file that are written, and its attributes afterwards.
struct Blocks<'a> {
    ino: u32,
    index: u64,
    bytes: &'a [u8],
    hot: Hot,
}

impl Core {
    /// What was `found` in or of the inode that `handle` was open on, if it still is: if it was released meanwhile, the inode may be
    /// gone, and the number another file's.
    #[inline]
    fn if_still_open<T>(&self, handle: Handle, found: T) -> Result<T> {
        if self.handles.is_still_open(handle) { Ok(found) } else { Err(Error::BadHandle) }
    }

    /// Locks the file that `handle` is open for `flags` on, to change it.
    pub(crate) fn open_for_change(&self, handle: Handle, flags: OpenFlags) -> Result<(u32, Exclusive<'_>)> {
        let ino = self.handles.get_for(handle, flags)?.ino;
        self.if_still_open(handle, (ino, self.locks.write(ino)))
    }

    /// The same, to look at it.
    pub(crate) fn open_for_look(
        &self,
        handle: Handle,
        flags: OpenFlags,
    ) -> Result<(u32, RwLockReadGuard<'_, ()>)> {
        let ino = self.handles.get_for(handle, flags)?.ino;
        self.if_still_open(handle, (ino, self.locks.read(ino)))
    }

    pub(crate) fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let opened = self.handles.get_for(handle, OpenFlags::READ)?;
        self.nodes.ask_for_block(opened.ino, offset, true);
        if let Some(n) = self.read_glimpse(opened.ino, offset, buf) {
            return self.if_still_open(handle, n);
        }
        let _lock = self.if_still_open(handle, self.locks.read(opened.ino))?;
        self.nodes.read_into(self.nodes.regular(opened.ino)?, offset, buf)
    }

    pub(crate) fn read_slices(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        let opened = self.handles.get_for(handle, OpenFlags::READ)?;
        self.nodes.ask_for_block(opened.ino, offset, false);
        let _lock = self.if_still_open(handle, self.locks.read(opened.ino))?;
        self.nodes.lend(self.nodes.regular(opened.ino)?, offset, len, sink)
    }

    pub(crate) fn write(&self, caller: &Caller, handle: Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let opened = self.handles.get_for(handle, OpenFlags::WRITE)?;
        let appends = opened.flags.contains(OpenFlags::APPEND);
        if !appends {
            end_of_range(offset, data.len() as u64)?;
        }
        self.nodes.ask_for_block(opened.ino, offset, false);
        let mut done = 0;
        let most = if self.rewrites() { LOGGED_CHUNK } else { CHUNK };
        if !appends && data.len() > most - (offset as usize & (most - 1)) {
            self.check_all(caller, handle, offset, data)?;
        }
        while done < data.len() {
            let at = offset + done as u64;
            // Chunks end at multiples of their size, so that only the first and the last have partial blocks.
            let room = if appends { most } else { most - (at as usize & (most - 1)) };
            let chunk = &data[done..data.len().min(done + room)];
            let place = (!appends).then_some(at);
            let blocks = blocks_for(chunk.len() as u64 / BLOCK + 3);
            let found = if appends { Room::Now } else { self.nodes.allocator.room_for(blocks) };
            let replaces = found != Room::Now && self.owns_all(handle, at, chunk.len())?;
            let written = match found {
                // Not a checkpoint for each write, to find the same again.
                Room::Nowhere if replaces => Err(Error::NoSpace),
                // Nor one for each few, as long as the deletion reserve lasts.
                Room::BehindCheckpoint if replaces => {
                    self.write_chunk(caller, (handle, opened.ino), place, chunk, Urgency::Change)
                }
                _ => self.write_chunk(caller, (handle, opened.ino), place, chunk, Urgency::Ordinary),
            };
            match written {
                Ok(()) => done += chunk.len(),
                // What a file has can be written over whatever is free: a mount's kernel may have promised that long ago.
                Err(Error::NoSpace) if !appends && self.owns_all(handle, at, chunk.len())? => {
                    match self.write_over(caller, (handle, opened.ino), at, chunk) {
                        (written, Ok(())) => done += written,
                        (written, Err(Error::NoSpace | Error::NotPermitted)) if done + written > 0 => {
                            done += written;
                            break;
                        }
                        (_, Err(error)) => return Err(error),
                    }
                }
                // Somebody has protected it meanwhile, or made it as long as a file can be.
                Err(Error::NoSpace | Error::NotPermitted | Error::FileTooLarge) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        if data.is_empty() {
            let (ino, _lock) = self.open_for_look(handle, OpenFlags::WRITE)?;
            self.nodes.regular(ino)?;
        } else if opened.flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC) {
            self.sync()?;
        }
        Ok(done)
    }

    /// Writes up to [`CHUNK`] bytes at `place` (`None`: at the end) as one transaction; as a [`Urgency::Change`] only over what the file has.
    pub(crate) fn write_chunk(
        &self,
        caller: &Caller,
        (handle, ino): (Handle, u32),
        place: Option<u64>,
        data: &[u8],
        urgency: Urgency,
    ) -> Result<()> {
        let blocks = blocks_for(data.len() as u64 / BLOCK + 3);
        let journaling = self.options.journaling;
        let mut operation = self.begin(blocks, log_for(data.len(), journaling), urgency)?;
        // If it is crowded there, what others changed last may not be durable.
        let (lock, is_crowded) = self.if_still_open(handle, self.locks.write_in_crowd(ino))?;
        let (inode, current) = self.nodes.open_inode(ino)?;
        inode.check_regular()?;
        current.into_iter().for_each(|edit| operation.seen.note_inode(edit));
        let (hot, cold) = (inode.hot(), inode.cold());
        let size = hot.size.get();
        let offset = place.unwrap_or(size);
        if urgency == Urgency::Change && !self.has_blocks(inode, offset, data.len())? {
            return Err(Error::NoSpace); // somebody has cut it meanwhile
        }
        let end = end_of_range(offset, data.len() as u64)?;
        if !hot.flags().is_empty() {
            self.check_flags(caller, inode, place.is_none(), offset, data)?;
        }
        let new_hot = hot.rewritten(caller).sized(size.max(end));
        let mode = rules::mode_after_write(caller, cold.mode.get(), cold.gid.get());
        if is_crowded {
            let blocks = Blocks { ino, index: offset / BLOCK, bytes: data, hot: new_hot };
            let is_possible =
                mode == cold.mode.get() && !self.rewrites() && operation.may_be_beside(data.len());
            if is_possible
                && (offset | end).is_multiple_of(BLOCK)
                && are_replaced(&mut operation, inode, &blocks)?
            {
                return self.replace_blocks(&mut operation, lock, &blocks);
            }
            lock.settle();
        }
        if inode.layout() == Layout::Inline && size.max(end) <= inode.inline_capacity() as u64 {
            operation.log_hot(inode, &new_hot);
            operation.log(&Item::Inline { ino, offset: offset as u16, bytes: data });
        } else {
            let is_switched = journaling == Journaling::BlockSwitch || !is_small(data.len(), end > size);
            if !self.rewrites() && is_switched {
                operation.expect_data(data.len());
            }
            // A difference waits for its record, and what follows waits with it.
            let is_mapped = inode.layout() == Layout::Mapped;
            if is_mapped {
                operation.log_hot(inode, &new_hot);
            }
            self.log_write(&mut operation, inode, offset, data)?;
            if !is_mapped {
                operation.log_hot(inode, &new_hot);
            }
        }
        if mode != cold.mode.get() {
            operation.log(&Item::Cold { ino, cold: &cold.with_mode(mode) });
        }
        operation.commit()
    }

    /// Replaces blocks of a file beside others who do so. Two who replace the same block need not know of each other either:
    /// of those that survive, the one with the larger number counts.
    fn replace_blocks<'a>(
        &self,
        operation: &mut Operation<'a>,
        lock: Exclusive<'a>,
        blocks: &Blocks<'_>,
    ) -> Result<()> {
        let Blocks { ino, index, bytes, hot } = *blocks;
        let mut places: SmallVec<[(u64, &[u8]); 2]> = SmallVec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let done = ((bytes.len() - rest.len()) / BLOCK as usize) as u64;
            let (block, count) = operation.allocate(ino, index + done, rest.len() as u64 / BLOCK)?;
            let (run, others) = rest.split_at((count * BLOCK) as usize);
            places.push((block * BLOCK, run));
            rest = others;
        }
        operation.begin_beside()?;
        let change = || {
            operation.log_at_once(&Item::Hot { ino, hot: &hot })?;
            let mut index = index;
            for (at, run) in &places {
                let (pointer, count) = (DataPointer::written(at / BLOCK), run.len() as u64 / BLOCK);
                operation.log_at_once(&Item::Map { ino, index, count: count as u32, pointer })?;
                index += count;
            }
            Ok(())
        };
        // Also if it unwinds: pointers may lead to places that nobody has filled.
        let changed = catch_unwind(AssertUnwindSafe(change)).unwrap_or_else(|panic| {
            operation.give_up_beside(&places);
            resume_unwind(panic)
        });
        match changed {
            Ok(()) => operation.commit_beside(lock, 0, &places).map(drop),
            Err(error) => {
                operation.give_up_beside(&places);
                drop(lock);
                Err(error)
            }
        }
    }

    /// Logs a write to a file that is mapped, or is to be.
    pub(crate) fn log_write(
        &self,
        operation: &mut Operation<'_>,
        inode: Inode<'_>,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let moves_out = inode.layout() == Layout::Inline;
        if moves_out {
            operation.log(&Item::Spill { ino: inode.ino });
            if offset >= BLOCK && inode.size() > 0 {
                self.log_new_block(operation, inode.ino, 0, inode.inline_bytes())?;
            }
        }
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let (index, within) = (at / BLOCK, (at % BLOCK) as usize);
            let length = if within == 0 && rest.len() >= BLOCK as usize {
                let whole = rest.len() / BLOCK as usize;
                self.log_whole_blocks(operation, inode, index, &rest[..whole * BLOCK as usize])?
            } else {
                let length = rest.len().min(BLOCK as usize - within);
                self.log_part(operation, inode, &Part { index, offset: within, bytes: &rest[..length] })?;
                length
            };
            (rest, at) = (&rest[length..], at + length as u64);
        }
        Ok(())
    }

    /// Streams whole blocks, as many as one run takes; returns their bytes.
    fn log_whole_blocks(
        &self,
        operation: &mut Operation<'_>,
        inode: Inode<'_>,
        index: u64,
        data: &[u8],
    ) -> Result<usize> {
        let count = data.len() as u64 / BLOCK;
        let (old, length) = match inode.layout() {
            Layout::Mapped => operation.look_up(inode, index, count)?,
            _ => (DataPointer::HOLE, count),
        };
        let is_shared = |n: &u64| self.nodes.allocator.is_shared(old.block() + n);
        if old.has_data() && self.rewrites() && !is_shared(&0) {
            // Blocks side by side need not be of one age.
            let own = (1..length).find(is_shared).unwrap_or(length);
            for (n, bytes) in (0..own).zip(data.chunks_exact(BLOCK as usize)) {
                let block = old.block() + n;
                operation.log(&Item::Bytes { ino: inode.ino, block, offset: 0, bytes });
            }
            return Ok((own * BLOCK) as usize);
        }
        let (block, length) = if old.is_unwritten() {
            // Preallocated: nothing reads these blocks before the pointer changes.
            (old.block(), length)
        } else if old.has_data() && self.changes_in_place(old.block()) {
            operation.stream(old.block() * BLOCK, &data[..BLOCK as usize]);
            return Ok(BLOCK as usize);
        } else {
            operation.allocate(inode.ino, index, length)?
        };
        let bytes = (length * BLOCK) as usize;
        let pointer = DataPointer::written(block);
        self.log_run(operation, inode.ino, block, &data[..bytes]);
        operation.log(&Item::Map { ino: inode.ino, index, count: length as u32, pointer });
        Ok(bytes)
    }

    /// Brings the bytes of a run of blocks, which nothing reads yet, to where they belong: streams them there, or logs
    /// them, to be written there afterwards.
    fn log_run(&self, operation: &mut Operation<'_>, ino: u32, first: u64, bytes: &[u8]) {
        if !self.rewrites() {
            return operation.stream(first * BLOCK, bytes);
        }
        for (block, bytes) in (first..).zip(bytes.chunks(BLOCK as usize)) {
            operation.log(&Item::Bytes { ino, block, offset: 0, bytes });
        }
    }

    /// Whether bytes are logged first and written to where they belong afterwards, whatever changes.
    fn rewrites(&self) -> bool {
        self.options.journaling.rewrites() && self.options.durability != Durability::Snapshot
    }

    /// Whether the block belongs to the running epoch of a volume that promises nothing before its checkpoint: then it
    /// is written where it is (HMFS §3.1, Normal Write).
    fn changes_in_place(&self, block: u64) -> bool {
        self.options.durability == Durability::Snapshot
            && bia::Entry::read(&self.medium, block).version == self.nodes.version()
    }

    /// Brings `bytes`, filled up with zeros, to a new block and logs it as block `index` of the file.
    pub(crate) fn log_new_block(
        &self,
        operation: &mut Operation<'_>,
        ino: u32,
        index: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let mut block = [0; BLOCK as usize];
        block[..bytes.len()].copy_from_slice(bytes);
        let (at, _) = operation.allocate(ino, index, 1)?;
        self.log_run(operation, ino, at, &block);
        operation.log(&Item::Map { ino, index, count: 1, pointer: DataPointer::written(at) });
        Ok(())
    }

    /// Logs that `range` of a mapped file, within one block, reads as zeros.
    pub(crate) fn log_zeros(
        &self,
        operation: &mut Operation<'_>,
        inode: Inode<'_>,
        range: std::ops::Range<u64>,
    ) -> Result<()> {
        static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
        let (index, offset) = (range.start / BLOCK, (range.start % BLOCK) as usize);
        let length = (range.end - range.start) as usize;
        if length == 0 || !index::run(&self.nodes, inode, index, 1)?.0.has_data() {
            return Ok(());
        }
        self.log_part(operation, inode, &Part { index, offset, bytes: &ZEROS[..length] })
    }

    /// Logs all of a file's change to length `size` but the inode's own.
    pub(crate) fn log_resize(
        &self,
        operation: &mut Operation<'_>,
        inode: Inode<'_>,
        size: u64,
    ) -> Result<()> {
        let (ino, old) = (inode.ino, inode.size());
        match inode.layout() {
            // Also if it stays as long as it is: blocks allocated behind the end go.
            Layout::Mapped if size <= old => {
                // Damage is found before the change is committed, not after.
                index::check(&self.nodes, inode, size / BLOCK..u64::MAX)?;
                if size == 0 {
                    operation.log(&Item::Unmap { ino, from: 0, to: u64::MAX });
                    return Ok(());
                }
                if !planted(Fault::TailNotZeroed) {
                    self.log_zeros(operation, inode, size..old.min(size.next_multiple_of(BLOCK)))?;
                }
                operation.log(&Item::Unmap { ino, from: size.div_ceil(BLOCK), to: u64::MAX });
            }
            Layout::Inline if size > inode.inline_capacity() as u64 => {
                operation.log(&Item::Spill { ino });
                if old > 0 {
                    self.log_new_block(operation, ino, 0, inode.inline_bytes())?;
                }
            }
            // An inline file is as long as its inode says; a longer mapped one ends with a hole.
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn fsync(&self, handle: Handle) -> Result<()> {
        self.handles.get(handle)?;
        self.sync()
    }

    pub(crate) fn fsync_inode(&self, ino: vfs::Ino) -> Result<()> {
        let ino = number(ino)?;
        {
            let _lock = self.locks.read(ino);
            self.inode(ino)?;
        }
        self.sync()
    }
}

/// Whether a file has all of these blocks: then nothing but these and its times change.
fn are_replaced(operation: &mut Operation<'_>, inode: Inode<'_>, blocks: &Blocks<'_>) -> Result<bool> {
    let (mut at, end) = (blocks.index, blocks.index + blocks.bytes.len() as u64 / BLOCK);
    if inode.layout() != Layout::Mapped || end * BLOCK > inode.size() {
        return Ok(planted(Fault::AlwaysBeside) && inode.layout() == Layout::Mapped);
    }
    while at < end {
        let (pointer, length) = operation.look_up(inode, at, end - at)?;
        if !pointer.has_data() {
            return Ok(planted(Fault::AlwaysBeside));
        }
        at += length;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vfs::{Caller, Error, OpenFlags, ROOT_INO};

    use crate::{MountOptions, format};

    /// A write had looked its handle up and waited for the inode's lock; meanwhile the handle was released. Its inode
    /// could be gone by then, and the number another file's, which was written to.
    #[test]
    fn a_write_outlived_its_handle() {
        let (core, root) = (format::new_in_memory(18 << 20, &MountOptions::default()), Caller::root());
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let late = |what: &(dyn Fn(vfs::Handle) -> vfs::Result<usize> + Sync)| {
            let file = core.create(&root, ROOT_INO, b"file", 0o644, flags).unwrap();
            let result = std::thread::scope(|scope| {
                let lock = core.locks.write(file.attr.ino as u32);
                let other = scope.spawn(|| what(file.handle));
                std::thread::sleep(Duration::from_millis(50));
                core.handles.close(file.handle).unwrap();
                drop(lock);
                other.join().unwrap()
            });
            assert_eq!(result, Err(Error::BadHandle));
        };
        late(&|handle| core.write(&root, handle, 0, b"late"));
        late(&|handle| core.write(&root, handle, 0, b""));
        late(&|handle| core.read(handle, 0, &mut [0; 4]));
        let mode = vfs::FallocateMode::empty();
        late(&|handle| core.fallocate(&root, handle, mode, 0, 10_000).map(|()| 0));
        core.finish().unwrap();
    }
}
