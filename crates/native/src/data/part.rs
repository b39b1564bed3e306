//! Changes of part of a block: which way they are logged, and that way (Shortcut-JFS §III.A).

use nvm::LINE;
use vfs::Result;

use crate::core::{Core, Operation};
use crate::fault::{Fault, planted};
use crate::geometry::BLOCK;
use crate::inode::{Inode, Layout};
use crate::pointer::DataPointer;
use crate::record::Item;
use crate::{Durability, Journaling};

/// Largest change of a block that is logged as a difference (Shortcut-JFS §III.A: half a block).
pub(super) const DIFFERENCE_MAX: usize = BLOCK as usize / 2;
/// A new block that begins with no more than this is soon changed again, in place: it is stored so that the caches keep
/// it, and not streamed past them.
const BEGINNING_MAX: usize = BLOCK as usize / 4;

/// Whether a change of `bytes` of a block is logged as a difference. Half a block is as many bytes either way: what stays of one to
/// which is `appended` was written lately, and is copied sooner than a difference is stored twice.
pub(super) fn is_small(bytes: usize, appended: bool) -> bool {
    bytes < DIFFERENCE_MAX || bytes == DIFFERENCE_MAX && !appended
}

/// Part of one block.
pub(super) struct Part<'a> {
    /// Which block of the file.
    pub(super) index: u64,
    pub(super) offset: usize,
    pub(super) bytes: &'a [u8],
}

impl Part<'_> {
    /// Where in the block it ends.
    fn end(&self) -> usize {
        self.offset + self.bytes.len()
    }

    /// Where in the file.
    fn end_in_file(&self) -> u64 {
        self.index * BLOCK + self.end() as u64
    }

    /// Whether nothing but whole lines is changed.
    fn is_lines(&self) -> bool {
        (self.offset | self.end()).is_multiple_of(LINE as usize)
    }
}

impl Core {
    /// Logs a change of part of a block: as a difference; or in a block that takes the place of the one there was, if there was one.
    pub(super) fn log_part(
        &self,
        operation: &mut Operation<'_>,
        inode: Inode<'_>,
        part: &Part<'_>,
    ) -> Result<()> {
        let old = match inode.layout() {
            Layout::Mapped => operation.look_up(inode, part.index, 1)?.0,
            _ => DataPointer::HOLE,
        };
        if !old.has_data() {
            return self.log_first_part(operation, inode, part, old);
        }
        if self.is_difference(inode, part, old.block()) || self.changes_in_place(old.block()) {
            self.log_difference(operation, inode.ino, part, old.block());
            return Ok(());
        }
        match !self.rewrites() && part.is_lines() {
            true => self.stream_around(operation, inode.ino, part, old.block()),
            false => self.log_copy(operation, inode.ino, part, old.block()),
        }
    }

    /// Whether a change of a block that has data is logged as a difference.
    fn is_difference(&self, inode: Inode<'_>, part: &Part<'_>, block: u64) -> bool {
        let is_wanted = match self.options.journaling {
            Journaling::Adaptive => is_small(part.bytes.len(), part.end_in_file() > inode.size()),
            Journaling::Difference => true,
            Journaling::Block | Journaling::BlockSwitch => false,
        };
        is_wanted
            && self.options.durability != Durability::Snapshot
            && (!self.nodes.allocator.is_shared(block) || planted(Fault::SharedChangedInPlace))
    }

    /// Logs bytes that are stored in the block once their record is durable.
    fn log_difference(&self, operation: &mut Operation<'_>, ino: u32, part: &Part<'_>, block: u64) {
        let at = block * BLOCK + part.offset as u64;
        // The lines come while the record is on its way.
        for line in (0..part.bytes.len() as u64).step_by(LINE as usize) {
            self.medium.region.prefetch(at + line);
        }
        operation.log(&Item::Bytes { ino, block, offset: part.offset as u16, bytes: part.bytes });
    }

    /// Streams whole lines straight to a new block, between those that stay, which come while it is looked for.
    fn stream_around(
        &self,
        operation: &mut Operation<'_>,
        ino: u32,
        part: &Part<'_>,
        old: u64,
    ) -> Result<()> {
        let (region, from, end) = (&self.medium.region, old * BLOCK, part.end());
        for line in (0..part.offset as u64).chain(end as u64..BLOCK).step_by(LINE as usize) {
            region.prefetch(from + line);
        }
        let (new, _) = operation.allocate(ino, part.index, 1)?;
        let at = new * BLOCK;
        operation.stream(at, region.bytes(from, part.offset));
        operation.stream(at + part.offset as u64, part.bytes);
        operation.stream(at + end as u64, region.bytes(from + end as u64, BLOCK as usize - end));
        operation.log(&Item::Map { ino, index: part.index, count: 1, pointer: DataPointer::written(new) });
        Ok(())
    }

    /// Logs the whole block as it is to be: to be written where it is, or as a new one.
    fn log_copy(&self, operation: &mut Operation<'_>, ino: u32, part: &Part<'_>, old: u64) -> Result<()> {
        let (region, from, end) = (&self.medium.region, old * BLOCK, part.end());
        let mut block = [0; BLOCK as usize];
        // Only what stays: reading costs, too.
        region.read(from, &mut block[..part.offset]);
        region.read(from + end as u64, &mut block[end..]);
        block[part.offset..end].copy_from_slice(part.bytes);
        if self.rewrites() && !self.nodes.allocator.is_shared(old) {
            operation.log(&Item::Bytes { ino, block: old, offset: 0, bytes: &block });
            return Ok(());
        }
        let (new, _) = operation.allocate(ino, part.index, 1)?;
        self.log_run(operation, ino, new, &block);
        operation.log(&Item::Map { ino, index: part.index, count: 1, pointer: DataPointer::written(new) });
        Ok(())
    }

    /// Logs a block in which nothing was: beside the part there are zeros, or what the file had in its inode. `old` may be preallocated.
    fn log_first_part(
        &self,
        operation: &mut Operation<'_>,
        inode: Inode<'_>,
        part: &Part<'_>,
        old: DataPointer,
    ) -> Result<()> {
        let ino = inode.ino;
        let mut block = [0; BLOCK as usize];
        if inode.layout() == Layout::Inline && part.index == 0 {
            let moved = inode.inline_bytes();
            block[..moved.len()].copy_from_slice(moved);
        }
        block[part.offset..part.end()].copy_from_slice(part.bytes);
        let at = match old.is_unwritten() {
            true => old.block(),
            false => operation.allocate(ino, part.index, 1)?.0,
        };
        match self.options.journaling {
            Journaling::Adaptive if part.bytes.len() <= BEGINNING_MAX => operation.store(at * BLOCK, &block),
            _ => self.log_run(operation, ino, at, &block),
        }
        operation.log(&Item::Map { ino, index: part.index, count: 1, pointer: DataPointer::written(at) });
        Ok(())
    }
}
