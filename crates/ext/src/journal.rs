//! The journal of ext3 and ext4 (JBD2): what a crash left in it is replayed before anything else is read.
//!
//! A log is read once, forward from where its superblock says that it begins. What counts is a transaction with its commit block,
//! in the order of their numbers; the first that is missing, torn, or another's is the end. **Damage is told from the end**: blocks
//! that fail their checksum in a transaction that has its commit are damage, unless it is the last and its commit did not wait for
//! them. A block that a later transaction revoked is left out.

mod log;
mod record;

use std::collections::HashMap;
use std::sync::Arc;

use disk::{Disk, Purpose};
use zerocopy::FromBytes;

use crate::core::Core;
use crate::core::inode::{self, Inode};
use crate::error::Error;
use crate::features::{Compat, Incompat};
use crate::map::{self, Place};
use crate::store::{Logged, Store};
use crate::superblock::{self, Superblock};
use record::RawJournal;

/// DRAM for the metadata that finding the journal needs.
const CACHE_BYTES: u64 = 1 << 20;

/// Most blocks of a journal: what mke2fs makes at most.
const BLOCKS_MAX: u64 = 10_240_000;

/// What replaying a journal found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Transactions that were committed.
    pub transactions: u64,
    /// Blocks that they had, each counted once.
    pub blocks: u64,
    /// Blocks that they had and a later one took back.
    pub revoked: u64,
}

/// What a journal holds that has to be replayed: where on the disk the last copy of each block is.
pub(crate) struct Log {
    blocks: HashMap<u64, Logged>,
    recovery: Recovery,
    /// The number that the next transaction will have.
    next: u32,
}

impl Log {
    pub(crate) fn recovery(&self) -> Recovery {
        self.recovery
    }

    pub(crate) fn into_blocks(self) -> HashMap<u64, Logged> {
        self.blocks
    }

    /// The superblock as it is after the replay.
    fn superblock(&self, disk: &Disk, old: &Superblock) -> Result<Superblock, Error> {
        let at = superblock::AT;
        let Some(logged) = self.blocks.get(&(at / old.block)) else { return Ok(old.clone()) };
        superblock::load_at(disk, logged.at * old.block + at % old.block)?.verify(disk)
    }
}

/// The journal's place on the disk: a file that users don't see.
struct Journal<'a> {
    core: &'a Core,
    inode: Inode,
}

impl Journal<'_> {
    /// Blocks of the journal.
    fn blocks(&self) -> u64 {
        self.inode.size / self.core.superblock.block
    }

    /// Where block `number` of the journal is on the disk.
    fn place(&self, number: u64) -> Result<u64, Error> {
        match map::run(self.core, &self.inode, number)?.place {
            Place::Mapped(block) => Ok(block),
            _ => Err(self.cannot(format!("its block {number} is nowhere"))),
        }
    }

    fn read(&self, number: u64) -> Result<Vec<u8>, Error> {
        self.read_disk(self.place(number)?)
    }

    /// Its superblock, checked.
    fn superblock(&self) -> Result<RawJournal, Error> {
        let first = self.read(0)?;
        let raw = RawJournal::read_from_prefix(&first).map_err(|_| self.cannot("it has no superblock"))?.0;
        raw.check(self.core.superblock.block, self.blocks()).map_err(|why| self.cannot(why))?;
        Ok(raw)
    }

    fn read_disk(&self, block: u64) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; self.core.superblock.block as usize];
        self.core.store.read_through(Purpose::Metadata, block, 0, &mut bytes)?;
        Ok(bytes)
    }

    fn cannot(&self, why: impl Into<String>) -> Error {
        Error::Journal { disk: self.core.store.disk().name().into(), why: why.into() }
    }
}

/// Reads the journal of the file system; gives the superblock as it is after the replay, too.
pub(crate) fn read(disk: &Arc<Disk>, superblock: &Superblock) -> Result<(Log, Superblock), Error> {
    let core = core(disk, superblock);
    let log = log::read(&open(&core)?)?;
    let after = log.superblock(disk, superblock)?;
    Ok((log, after))
}

fn core(disk: &Arc<Disk>, superblock: &Superblock) -> Core {
    let store = Store::new(disk.clone(), superblock.block, superblock.inode_bytes, CACHE_BYTES);
    Core::of(superblock.clone(), store)
}

fn open(core: &Core) -> Result<Journal<'_>, Error> {
    let cannot = |why: String| Error::Journal { disk: core.store.disk().name().into(), why };
    if core.superblock.journal_inode == 0 {
        return Err(cannot("it is on another disk, which is not supported".into()));
    }
    let inode = inode::read(core, core.superblock.journal_inode);
    let inode = inode.map_err(|error| cannot(format!("its inode cannot be read ({error})")))?;
    let journal = Journal { core, inode };
    let most = BLOCKS_MAX.min(core.superblock.blocks);
    if journal.blocks() > most {
        return Err(cannot(format!(
            "it has {} blocks, more than the {most} that it may have",
            journal.blocks()
        )));
    }
    Ok(journal)
}

/// Whether the journal says that it ended with an error: the kernel notes that there first, and in the superblock when it mounts the next
/// time, as e2fsck(8) does. Until then **the superblock alone is no proof that a file system is sound**. A journal that cannot be read says
/// nothing of it: that is found by who replays it.
pub(crate) fn has_errors(disk: &Arc<Disk>, superblock: &Superblock) -> bool {
    let has_journal = superblock.features.compat.contains(Compat::HAS_JOURNAL);
    let recorded = || {
        let core = core(disk, superblock);
        let journal = open(&core)?;
        Ok::<_, Error>(journal.superblock()?.error.get() != 0)
    };
    has_journal && recorded().unwrap_or(false)
}

/// Replays the journal onto the disk: the blocks first, then, when they are durable, the log is marked as empty, and then the
/// superblock as replayed.
pub(crate) fn replay_onto(disk: &Arc<Disk>, superblock: &Superblock) -> Result<Recovery, Error> {
    let core = core(disk, superblock);
    let journal = open(&core)?;
    let log = log::read(&journal)?;
    // A superblock in the log that does not fit the disk is found before anything is written.
    log.superblock(disk, superblock)?;
    let mut first = journal.read(0)?;
    let raw =
        RawJournal::mut_from_prefix(&mut first).map_err(|_| journal.cannot("its superblock is too short"))?.0;
    raw.mark_empty(log.next);
    let first_at = journal.place(0)? * superblock.block;
    let mut blocks: Vec<_> = log.blocks.iter().collect();
    blocks.sort_unstable_by_key(|(number, _)| **number);
    for (number, logged) in blocks {
        let mut bytes = journal.read_disk(logged.at)?;
        if let Some(begins) = logged.begins {
            bytes[..begins.len()].copy_from_slice(&begins);
        }
        disk.write(Purpose::Metadata, number * superblock.block, &bytes)?;
    }
    disk.flush()?;
    disk.write(Purpose::Metadata, first_at, &first)?;
    disk.flush()?;
    mark_replayed(disk, superblock)?;
    disk.flush()?;
    Ok(log.recovery)
}

fn mark_replayed(disk: &Disk, superblock: &Superblock) -> Result<(), Error> {
    let mut raw = superblock::load(disk)?;
    let left = raw.features().incompat - Incompat::RECOVER;
    raw.incompat = left.bits().into();
    if superblock.features.has_metadata_csum() {
        raw.checksum = raw.own_checksum().into();
    }
    crate::mark::write_superblock(disk, &raw)
}
