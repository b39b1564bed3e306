//! Looking at a volume that is not mounted, without changing it.

use std::collections::HashSet;
use std::sync::Arc;

use nvm::Region;
use vfs::Time;

use crate::checkpoint::Checkpoint;
use crate::geometry::{BLOCK, Medium, SEGMENT_BLOCKS};
use crate::kept::{Kept, Record};
use crate::reader::Reader;
use crate::scan::Log;
use crate::sit::{self, SitEntry};
use crate::superblock::{Left, Root, Superblock};
use crate::{Error, Snapshot};

/// What a volume says of itself.
#[derive(Clone, Debug)]
pub struct Info {
    /// Its identity.
    pub uuid: [u8; 16],
    /// Its name for people.
    pub label: String,
    /// When it was made.
    pub created: Time,
    /// Bytes of the whole volume.
    pub bytes: u64,
    /// Blocks that can hold files, in all.
    pub blocks: u64,
    /// Blocks not valid in the newest checkpoint.
    pub blocks_free: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Version of the newest checkpoint.
    pub checkpoint_version: u32,
    /// Whether it was closed: false while it is mounted, and after a crash.
    pub clean: bool,
    /// Inodes in the newest checkpoint, the hidden one included.
    pub inodes: u64,
}

/// An error if the medium could not give all that was asked of it: what it could not give read as zeros.
pub(crate) fn readable(region: &Region) -> Result<(), Error> {
    Ok(region.check().map_err(|error| vfs::Error::Io(error.to_string()))?)
}

/// The newest checkpoint of a volume at rest, seen without finishing what a crash interrupted.
pub(crate) struct AtRest {
    pub(crate) superblock: Superblock,
    pub(crate) medium: Arc<Medium>,
    pub(crate) root: Root,
    pub(crate) checkpoint: Checkpoint,
}

impl AtRest {
    /// What cannot be read is not taken for damaged: see [`Medium::vouched`].
    pub(crate) fn read(region: &Region) -> Result<AtRest, Error> {
        let read = AtRest::read_all(region);
        readable(region)?;
        read
    }

    fn read_all(region: &Region) -> Result<AtRest, Error> {
        let superblock = Superblock::read(region)?;
        let medium = Arc::new(Medium { region: region.clone(), geometry: superblock.geometry() });
        let root = Root::read(region)?;
        let mut checkpoint = Checkpoint::read(&medium, root.checkpoint.get())?;
        if let Some(successor) = checkpoint.successor(&medium)? {
            checkpoint = successor;
        }
        Ok(AtRest { superblock, medium, root, checkpoint })
    }

    /// The log since the checkpoint.
    pub(crate) fn log(&self) -> Log<'_> {
        let body = &self.checkpoint.body;
        let newest = (body.version.get(), body.sequence.get());
        Log::read(&self.medium, self.superblock.hash_key(), &self.root, newest)
    }

    /// Whether there is something to finish, or to replay from its `log`.
    pub(crate) fn needs_recovery(&self, log: &Log<'_>) -> bool {
        self.root.left() == Left::InUse
            || self.root.checkpoint.get() != self.checkpoint.block
            || log.has_transactions()
    }

    /// The segments whose SIT entries an interrupted publish has yet to settle.
    pub(crate) fn unsettled_segments(&self) -> HashSet<u32> {
        if self.root.checkpoint.get() == self.checkpoint.block {
            return HashSet::new();
        }
        let body = &self.checkpoint.body;
        let journal = sit::read_journal(&self.medium, body.journal_entries.get(), body.journal_crc.get());
        journal.into_iter().flatten().map(|entry| entry.segment()).collect()
    }

    /// The snapshot called `name`, whatever else of the list is damaged.
    pub(crate) fn snapshot(&self, name: &str) -> Result<Record, Error> {
        let (kept, damage) = Kept::of_newest(&self.medium, &self.checkpoint);
        match (kept.find(name), damage) {
            (Some(record), _) => Ok(record.clone()),
            (None, Some(error)) => Err(error.into()),
            (None, None) => Err(Error::NoSnapshot(name.into())),
        }
    }

    /// The nodes of the checkpoint.
    pub(crate) fn nodes(&self) -> Reader {
        let body = &self.checkpoint.body;
        Reader::new(self.medium.clone(), body.tree(), self.superblock.hash_key(), body.nodes.get())
    }
}

/// The snapshots of a volume that is not mounted, oldest first.
pub fn snapshots(region: &Region) -> Result<Vec<Snapshot>, Error> {
    let AtRest { medium, checkpoint, .. } = AtRest::read(region)?;
    match Kept::of_newest(&medium, &checkpoint) {
        (kept, None) => Ok(kept.kept().map(Snapshot::from).collect()),
        (_, Some(error)) => Err(error.into()),
    }
}

/// Whether a volume that is not mounted has something to finish, or to replay.
pub(crate) fn needs_recovery(region: &Region) -> Result<bool, Error> {
    let at_rest = AtRest::read(region)?;
    Ok(at_rest.needs_recovery(&at_rest.log()))
}

/// What the volume in `region` says of itself.
pub fn info(region: &Region) -> Result<Info, Error> {
    let at_rest = AtRest::read(region)?;
    let (superblock, geometry) = (&at_rest.superblock, &at_rest.medium.geometry);
    let mut valid = 0;
    for segment in 0..geometry.segments {
        valid += match SitEntry::read(&at_rest.medium, segment) {
            Ok(entry) => u64::from(entry.valid.get()),
            // Cut while it was settled, or damaged: then nothing is free there.
            Err(_) => SEGMENT_BLOCKS,
        };
    }
    readable(region)?;
    let label = superblock.label.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(Info {
        uuid: superblock.uuid,
        label: String::from_utf8_lossy(label).into_owned(),
        created: Time { sec: superblock.created.get() as i64, nsec: 0 },
        bytes: geometry.blocks * BLOCK,
        blocks: geometry.main_blocks(),
        blocks_free: geometry.main_blocks() - valid,
        log_bytes: 2 * geometry.log_half * BLOCK,
        checkpoint_version: at_rest.checkpoint.body.version.get(),
        clean: at_rest.root.left() != Left::InUse,
        inodes: at_rest.checkpoint.body.inodes.get().into(),
    })
}
