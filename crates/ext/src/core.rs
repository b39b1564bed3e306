//! The open file system: its superblock and its blocks, what is where, and what is free.

pub(crate) mod alloc;
pub(crate) mod bitmap;
pub(crate) mod group;
pub(crate) mod inode;
mod met;
mod tables;
mod twins;

use parking_lot::Mutex;
use vfs::{InoMap, Result};
use zerocopy::IntoBytes;

use crate::features::Compat;
use crate::kind::Kind;
use crate::store::Store;
use crate::superblock::{AT, BYTES, RawSuperblock, Superblock};
use alloc::Space;
pub use met::Damage;
use met::Met;
use tables::Tables;
use twins::Twins;
pub(crate) use twins::least;

pub(crate) struct Core {
    pub(crate) superblock: Superblock,
    pub(crate) store: Store,
    pub(crate) space: Space,
    pub(crate) tables: Tables,
    /// Which inode stands before which in the list of orphans, as far as is remembered: nothing relies on it unseen.
    pub(crate) before_orphans: Mutex<InoMap<u32, u32>>,
    pub(crate) met: Met,
    /// What listings of directories remember.
    pub(crate) twins: Mutex<Twins>,
}

impl Core {
    pub(crate) fn of(superblock: Superblock, store: Store) -> Core {
        let tables = Tables::new(superblock.groups);
        let (before_orphans, twins) = (Mutex::default(), Mutex::default());
        let space = Space::new(store.failure.clone());
        Core { superblock, store, space, tables, before_orphans, met: Met::default(), twins }
    }

    /// Ends an operation: what it did is part of the running transaction.
    pub(crate) fn finish(&self) {
        self.store.finish();
        self.space.finish();
    }

    /// Ends an operation as if it had not been.
    pub(crate) fn undo(&self) {
        self.store.undo();
        self.space.undo(&self.tables);
    }

    /// The superblock as it is at present: some of it changes while the file system is open.
    pub(crate) fn newest_superblock(&self) -> Result<RawSuperblock> {
        let block = self.superblock.block;
        let bytes = self.store.read(Kind::Superblock, AT / block, |_| Ok(()))?;
        Ok(RawSuperblock::of_block(&bytes, block))
    }

    /// Part of an operation: changes the superblock.
    pub(crate) fn change_superblock(&self, with: impl FnOnce(&mut RawSuperblock)) -> Result<()> {
        let block = self.superblock.block;
        self.store.change(
            Kind::Superblock,
            AT / block,
            |_| Ok(()),
            |bytes| {
                let mut raw = RawSuperblock::of_block(bytes, block);
                with(&mut raw);
                raw.seal();
                let at = (AT % block) as usize;
                bytes.at(at..at + BYTES).copy_from_slice(raw.as_bytes());
            },
        )
    }

    /// Part of an operation: the file system has these features from now on, if it had them not.
    pub(crate) fn add_compat(&self, features: Compat) -> Result<()> {
        if self.superblock.features.compat.contains(features) {
            return Ok(());
        }
        self.change_superblock(|raw| raw.compat.set(raw.compat.get() | features.bits()))
    }
}
