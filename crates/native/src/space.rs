//! Holes, preallocation, and the room that a file has: fallocate, seek, copy_file_range, writing over what is there.

use std::ops::Range;

use vfs::{Caller, Error, FallocateMode, Handle, OpenFlags, Result, SeekFrom, rules};

use crate::allocator::{Room, Urgency};
use crate::core::{Core, Operation};
use crate::data::end_of_range;
use crate::geometry::BLOCK;
use crate::index::{self, blocks_for};
use crate::inode::{Inode, Layout};
use crate::pointer::DataPointer;
use crate::reader::Reader;
use crate::record::{Item, MAP_LOG};

/// Blocks that one transaction preallocates at most.
const CHUNK_BLOCKS: u64 = 1024;
/// Bytes of a file's own blocks that one transaction writes over on a full volume: what that takes is there while deletions go on.
const OWN_CHUNK: usize = 64 << 10;
/// Bytes of log for the edges of a range and the inode.
const EDGES_LOG: usize = 4 * BLOCK as usize + 512;

/// Parts of a range: its edges, within a block each, and the whole blocks between.
struct Cut {
    head: Range<u64>,
    blocks: Range<u64>,
    tail: Range<u64>,
}

fn cut(range: &Range<u64>) -> Cut {
    let (first, last) = (range.start.next_multiple_of(BLOCK), range.end / BLOCK * BLOCK);
    if first > last {
        return Cut { head: range.clone(), blocks: 0..0, tail: 0..0 };
    }
    Cut { head: range.start..first, blocks: first / BLOCK..last / BLOCK, tail: last..range.end }
}

/// Blocks that preallocating takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Missing {
    holes: u64,
    /// In place of what has data.
    replaced: u64,
}

impl Missing {
    /// With copies of index nodes, and of blocks at the edges.
    fn blocks(&self) -> u64 {
        blocks_for(self.holes + self.replaced + 3)
    }
}

/// What is to be preallocated.
struct Wanted {
    blocks: Range<u64>,
    /// Of them, those that are to read as zeros.
    zeroed: Range<u64>,
    /// Where all of it ends.
    bytes_end: u64,
}

impl Wanted {
    /// Whether a small file's inode has room for it.
    fn is_inline_in(&self, inode: Inode<'_>) -> bool {
        inode.layout() == Layout::Inline && self.bytes_end <= inode.inline_capacity() as u64
    }

    /// The run from block `index` of a file on, up to `end`: all of it is to read as zeros, or none. An inline file has no blocks.
    fn run(&self, nodes: &Reader, inode: Inode<'_>, index: u64, end: u64) -> Result<(DataPointer, u64)> {
        let edges = [self.zeroed.start, self.zeroed.end].into_iter();
        let end = edges.filter(|at| *at > index).fold(end, u64::min);
        match inode.layout() {
            Layout::Mapped => index::run(nodes, inode, index, end - index),
            _ => Ok((DataPointer::HOLE, end - index)),
        }
    }
}

/// Logs that what an inline file has of `range` is zeros.
fn log_inline_zeros(operation: &mut Operation<'_>, inode: Inode<'_>, range: &Range<u64>) {
    static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
    if let Some(length) = range.end.min(inode.size()).checked_sub(range.start).filter(|length| *length > 0) {
        let bytes = &ZEROS[..length as usize];
        operation.log(&Item::Inline { ino: inode.ino, offset: range.start as u16, bytes });
    }
}

impl Core {
    /// Whether a file has room for these bytes already, and needs no more than copies of what it has.
    pub(crate) fn owns_all(&self, handle: Handle, offset: u64, length: usize) -> Result<bool> {
        let (ino, _lock) = self.open_for_look(handle, OpenFlags::WRITE)?;
        self.has_blocks(self.nodes.regular(ino)?, offset, length)
    }

    pub(crate) fn has_blocks(&self, inode: Inode<'_>, offset: u64, length: usize) -> Result<bool> {
        let end = end_of_range(offset, length as u64)?;
        if inode.layout() == Layout::Inline {
            return Ok(end <= inode.inline_capacity() as u64);
        }
        let (mut index, end) = (offset / BLOCK, end.div_ceil(BLOCK));
        while index < end {
            let (pointer, length) = index::run(&self.nodes, inode, index, end - index)?;
            if pointer.is_hole() {
                return Ok(false);
            }
            index += length;
        }
        Ok(true)
    }

    /// Writes over blocks that the file has, in transactions so small that they find room on a full volume: what each takes comes back with
    /// the next checkpoint. Gives the bytes that were written.
    pub(crate) fn write_over(
        &self,
        caller: &Caller,
        file: (Handle, u32),
        offset: u64,
        data: &[u8],
    ) -> (usize, Result<()>) {
        if let Err(error) = self.check_all(caller, file.0, offset, data) {
            return (0, Err(error));
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let room = OWN_CHUNK - (at as usize & (OWN_CHUNK - 1));
            let piece = &data[done..data.len().min(done + room)];
            if let Err(error) = self.write_chunk(caller, file, Some(at), piece, Urgency::Change) {
                return (done, Err(error));
            }
            done += piece.len();
        }
        (done, Ok(()))
    }

    pub(crate) fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let punch = mode.contains(FallocateMode::PUNCH_HOLE);
        let zero = mode.contains(FallocateMode::ZERO_RANGE);
        let keep_size = mode.contains(FallocateMode::KEEP_SIZE);
        if len == 0 {
            return Err(Error::Invalid);
        }
        if punch && (zero || !keep_size) {
            return Err(Error::NotSupported);
        }
        let opened = self.handles.get_for(handle, OpenFlags::WRITE)?;
        {
            let (ino, _lock) = self.open_for_look(handle, OpenFlags::WRITE)?;
            self.to_allocate(ino, mode)?;
        }
        let range = offset..end_of_range(offset, len)?;
        if punch {
            self.punch(caller, handle, mode, range)?;
        } else {
            self.preallocate(caller, handle, mode, range)?;
        }
        if opened.flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC) { self.sync() } else { Ok(()) }
    }

    /// How many of these blocks of a file no snapshot has. In time that follows those that it has there.
    pub(crate) fn own_blocks(&self, inode: Inode<'_>, blocks: Range<u64>) -> Result<u64> {
        if inode.layout() != Layout::Mapped {
            return Ok(0);
        }
        let mut own = 0;
        let count = &mut |index, pointer: DataPointer| {
            let field = format_args!("pointer");
            self.medium.check_main("file index", inode.block, field, pointer.block())?;
            own += u64::from(blocks.contains(&index) && !self.nodes.allocator.is_shared(pointer.block()));
            Ok(())
        };
        index::walk(&self.nodes, inode, blocks.clone(), &mut |_, _| Ok(()), count)?;
        Ok(own)
    }

    /// Makes a range read as zeros and its whole blocks holes, as one transaction. The file's length stays. It is a deletion, and may use what
    /// is kept for those, if it gives back more blocks that no snapshot has than it takes.
    fn punch(&self, caller: &Caller, handle: Handle, mode: FallocateMode, range: Range<u64>) -> Result<()> {
        const BLOCKS: u64 = blocks_for(4);
        let gives_back = |inode| Ok::<_, Error>(self.own_blocks(inode, cut(&range).blocks)? > BLOCKS);
        let (mut operation, has_to_give_back) = match self.begin(BLOCKS, EDGES_LOG, Urgency::Change) {
            Err(Error::NoSpace) => {
                {
                    let (ino, _lock) = self.open_for_look(handle, OpenFlags::WRITE)?;
                    if !gives_back(self.nodes.regular(ino)?)? {
                        return Err(Error::NoSpace);
                    }
                }
                (self.begin(BLOCKS, EDGES_LOG, Urgency::Deletion)?, true)
            }
            begun => (begun?, false),
        };
        let (ino, _lock) = self.open_for_change(handle, OpenFlags::WRITE)?;
        let inode = self.to_allocate(ino, mode)?;
        if has_to_give_back && !gives_back(inode)? {
            return Err(Error::NoSpace); // others were there before
        }
        let size = inode.size();
        match inode.layout() {
            Layout::Mapped => {
                let parts = cut(&range);
                self.log_zeros(&mut operation, inode, parts.head)?;
                self.log_zeros(&mut operation, inode, parts.tail)?;
                if !parts.blocks.is_empty() {
                    index::check(&self.nodes, inode, parts.blocks.clone())?;
                    operation.log(&Item::Unmap { ino, from: parts.blocks.start, to: parts.blocks.end });
                }
            }
            _ => log_inline_zeros(&mut operation, inode, &range),
        }
        self.log_changed(&mut operation, caller, inode, size);
        operation.commit()
    }

    /// Logs the inode's own change: contents changed by `caller`, and of this length.
    fn log_changed(&self, operation: &mut Operation<'_>, caller: &Caller, inode: Inode<'_>, size: u64) {
        let (ino, cold) = (inode.ino, inode.cold());
        operation.log_hot(inode, &inode.hot().rewritten(caller).sized(size));
        let mode = rules::mode_after_write(caller, cold.mode.get(), cold.gid.get());
        if mode != cold.mode.get() {
            operation.log(&Item::Cold { ino, cold: &cold.with_mode(mode) });
        }
    }

    /// `ENOSPC` if the holes among the blocks wanted are more than could be had: who is refused half-way keeps what they have got.
    fn check_room(&self, handle: Handle, wanted: &Wanted) -> Result<()> {
        if self.snapshots.read().is_giving_back() {
            return Ok(()); // more is to come
        }
        let (room, _) = self.space();
        let (ino, _lock) = self.open_for_look(handle, OpenFlags::WRITE)?;
        let missing = self.missing(self.nodes.regular(ino)?, wanted.blocks.clone(), wanted)?;
        if missing.holes <= room { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// What preallocating some of the blocks wanted takes.
    fn missing(&self, inode: Inode<'_>, blocks: Range<u64>, wanted: &Wanted) -> Result<Missing> {
        let mut missing = Missing::default();
        if wanted.is_inline_in(inode) {
            return Ok(missing);
        }
        let mut index = blocks.start;
        while index < blocks.end {
            let (old, length) = wanted.run(&self.nodes, inode, index, blocks.end)?;
            if old.is_hole() {
                missing.holes += length;
            } else if old.has_data() && wanted.zeroed.contains(&index) {
                missing.replaced += length;
            }
            index += length;
        }
        Ok(missing)
    }

    /// Begins to preallocate blocks from `index` on, with room for what that takes: little, where they are there. Gives up to which, and what it
    /// may take; the caller looks again under the lock.
    fn begin_to_allocate(
        &self,
        handle: Handle,
        index: u64,
        wanted: &Wanted,
    ) -> Result<(Operation<'_>, u64, Missing)> {
        for most in [CHUNK_BLOCKS, OWN_CHUNK as u64 / BLOCK] {
            let stop = wanted.blocks.end.min(index + most);
            let missing = {
                let (ino, _lock) = self.open_for_look(handle, OpenFlags::WRITE)?;
                self.missing(self.nodes.regular(ino)?, index..stop, wanted)?
            };
            let (blocks, log) = (missing.blocks(), EDGES_LOG + (stop - index) as usize * MAP_LOG);
            if missing.holes > 0 {
                return Ok((self.begin(blocks, log, Urgency::Ordinary)?, stop, missing));
            }
            // What replaces what it has comes back with the next checkpoint: as where it is written over, in pieces on a full volume.
            if missing.replaced <= OWN_CHUNK as u64 / BLOCK {
                return Ok((self.begin(blocks, log, Urgency::Change)?, stop, missing));
            }
            if self.nodes.allocator.room_for(blocks) == Room::Now {
                match self.begin(blocks, log, Urgency::Ordinary) {
                    Err(Error::NoSpace) => {} // others have got it
                    begun => return Ok((begun?, stop, missing)),
                }
            }
        }
        Err(Error::NoSpace)
    }

    /// Allocates blocks, not written yet, to all holes in a range, in transactions of bounded size; to zero it also in
    /// place of what has data, so that all of it reads as zeros. The file gets its new length with the last, so that a
    /// failure for want of space leaves the length as it was; and what one transaction covers fails as a whole.
    fn preallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: FallocateMode,
        range: Range<u64>,
    ) -> Result<()> {
        let zero = mode.contains(FallocateMode::ZERO_RANGE);
        let new_size = if mode.contains(FallocateMode::KEEP_SIZE) { 0 } else { range.end };
        let parts = cut(&range);
        let zeroed = if zero { parts.blocks } else { 0..0 };
        let end = range.end.div_ceil(BLOCK);
        let mut index = range.start / BLOCK;
        let wanted = Wanted { blocks: index..end, zeroed, bytes_end: range.end };
        if end - index > CHUNK_BLOCKS {
            self.check_room(handle, &wanted)?;
        }
        loop {
            let (mut operation, stop, expected) = self.begin_to_allocate(handle, index, &wanted)?;
            let (ino, _lock) = self.open_for_change(handle, OpenFlags::WRITE)?;
            let inode = self.to_allocate(ino, mode)?;
            if self.missing(inode, index..stop, &wanted)? != expected {
                continue; // others were there before
            }
            if wanted.is_inline_in(inode) {
                // A small file's space is its inode's.
                if zero {
                    log_inline_zeros(&mut operation, inode, &range);
                }
                self.log_changed(&mut operation, caller, inode, inode.size().max(new_size));
                return operation.commit();
            }
            let spills = inode.layout() == Layout::Inline;
            if spills {
                operation.log(&Item::Spill { ino });
                if inode.size() > 0 {
                    let mut bytes = inode.inline_bytes().to_vec();
                    let end = bytes.len();
                    if zero {
                        bytes[(range.start as usize).min(end)..(range.end as usize).min(end)].fill(0);
                    }
                    self.log_new_block(&mut operation, ino, 0, &bytes)?;
                    index = index.max(1); // block 0 is there now
                }
            }
            if zero && !spills && index == range.start / BLOCK {
                self.log_zeros(&mut operation, inode, parts.head.clone())?;
            }
            while index < stop {
                let (old, mut length) = wanted.run(&self.nodes, inode, index, stop)?;
                if old.is_hole() || (old.has_data() && wanted.zeroed.contains(&index)) {
                    let (block, got) = operation.allocate(ino, index, length)?;
                    let pointer = DataPointer::unwritten(block);
                    operation.log(&Item::Map { ino, index, count: got as u32, pointer });
                    length = got;
                }
                index += length;
            }
            let last = index >= end;
            if zero && !spills && last {
                self.log_zeros(&mut operation, inode, parts.tail.clone())?;
            }
            let size = if last { inode.size().max(new_size) } else { inode.size() };
            self.log_changed(&mut operation, caller, inode, size);
            operation.commit()?;
            if last {
                return Ok(());
            }
        }
    }

    pub(crate) fn seek(&self, handle: Handle, from: SeekFrom) -> Result<u64> {
        let (ino, _lock) = self.open_for_look(handle, OpenFlags::empty())?;
        self.nodes.seek(ino, from)
    }

    pub(crate) fn copy_file_range(
        &self,
        caller: &Caller,
        (from, from_offset): (Handle, u64),
        (to, to_offset): (Handle, u64),
        len: u64,
    ) -> Result<u64> {
        let source = self.handles.get_for(from, OpenFlags::READ)?;
        let sink = self.handles.get_for(to, OpenFlags::WRITE)?;
        if sink.flags.contains(OpenFlags::APPEND) {
            return Err(Error::BadHandle);
        }
        let size = {
            let (ino, _lock) = self.open_for_look(from, OpenFlags::READ)?;
            self.nodes.regular(ino)?.size()
        };
        {
            let (ino, _lock) = self.open_for_look(to, OpenFlags::WRITE)?;
            rules::may_copy_to(self.nodes.regular(ino)?.hot().flags())?;
        }
        let len = len.min(size.saturating_sub(from_offset));
        if len == 0 {
            return Ok(0);
        }
        let end = end_of_range(to_offset, len)?;
        if source.ino == sink.ino && to_offset < from_offset + len && from_offset < end {
            return Err(Error::Invalid);
        }
        // A block belongs to one file: what is copied is copied, at memory speed.
        let mut buf = vec![0; len.min(1 << 20) as usize];
        let mut done = 0;
        while done < len {
            let want = buf.len().min((len - done) as usize);
            let got = {
                let (ino, _lock) = self.open_for_look(from, OpenFlags::READ)?;
                self.nodes.read_into(self.nodes.regular(ino)?, from_offset + done, &mut buf[..want])?
            };
            if got == 0 {
                break;
            }
            match self.write(caller, to, to_offset + done, &buf[..got]) {
                Ok(written) if written == got => done += got as u64,
                Ok(written) => return Ok(done + written as u64),
                Err(Error::NoSpace | Error::NotPermitted) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}
