//! The open file system: its superblock and its blocks.

use parking_lot::Mutex;

use crate::alloc::Space;
use crate::damage::Met;
use crate::directory::Twins;
use crate::orphans::Before;
use crate::store::Store;
use crate::superblock::Superblock;

pub(crate) struct Core {
    pub(crate) superblock: Superblock,
    pub(crate) store: Store,
    pub(crate) space: Space,
    pub(crate) orphans: Before,
    pub(crate) met: Met,
    /// What listings of directories remember.
    pub(crate) twins: Mutex<Twins>,
}

impl Core {
    pub(crate) fn of(superblock: Superblock, store: Store) -> Core {
        let (orphans, twins) = (Before::default(), Mutex::default());
        Core { superblock, store, space: Space::new(), orphans, met: Met::default(), twins }
    }

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
