//! The open file system: its superblock and its blocks.

use crate::alloc::Space;
use crate::orphans::Before;
use crate::store::Store;
use crate::superblock::Superblock;

pub(crate) struct Core {
    pub(crate) superblock: Superblock,
    pub(crate) store: Store,
    pub(crate) space: Space,
    pub(crate) orphans: Before,
}

impl Core {
    /// Ends an operation: what it did is part of the running transaction.
    pub(crate) fn finish(&self) {
        self.store.finish();
        self.space.finish();
    }

    /// Ends an operation as if it had not been.
    pub(crate) fn undo(&self) {
        self.store.undo();
        self.space.undo();
    }
}
