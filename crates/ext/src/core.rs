//! The open file system: its superblock and its blocks.

use crate::store::Store;
use crate::superblock::Superblock;

pub(crate) struct Core {
    pub(crate) superblock: Superblock,
    pub(crate) store: Store,
}
