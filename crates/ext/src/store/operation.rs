//! The operation that runs.

use vfs::InoMap;

use super::before::{Before, Kept};
use crate::home::LogItem;

/// Blocks that most operations and transactions change are fewer: the room for more is not kept.
pub(super) const ROOM_MAX: usize = 256;

/// What an operation has done so far; between operations its room for that.
pub(super) struct Operation {
    pub(super) is_running: bool,
    /// The transaction that it is to be part of.
    pub(super) transaction: u64,
    /// What the blocks were that it changed, made or gave up.
    pub(super) before: InoMap<u64, Before>,
    /// Their sub-blocks.
    pub(super) kept: Kept,
    /// Blocks of metadata that it gave up.
    pub(super) freed: Vec<u64>,
    /// Ranges of blocks that it gave up.
    pub(super) ranges: u64,
    /// Bytes of files that are to be durable with it.
    pub(super) data: Vec<LogItem>,
}

impl Operation {
    /// None, of sub-blocks of `part` bytes.
    pub(super) fn none(part: usize) -> Operation {
        Operation {
            is_running: false,
            transaction: 0,
            before: InoMap::default(),
            kept: Kept::new(part),
            freed: Vec::new(),
            ranges: 0,
            data: Vec::new(),
        }
    }

    pub(super) fn running(&mut self) -> &mut Operation {
        assert!(self.is_running, "changes are made by an operation");
        self
    }

    /// It has been, and has let go of what it had.
    pub(super) fn end(&mut self) {
        if self.before.capacity() > ROOM_MAX {
            *self = Operation::none(self.kept.part());
        }
        self.kept.clear();
        (self.is_running, self.ranges) = (false, 0);
    }
}
