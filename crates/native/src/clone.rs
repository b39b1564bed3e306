//! Cloning a snapshot: a new volume that has its tree, and nothing of what the old one did afterwards.
//!
//! A block belongs to one volume, so the blocks are copied, each to its place in a volume of the same layout: no pointer
//! changes. A cut meanwhile leaves no volume, as when one is made: the superblocks come last. From then on it is a volume
//! as after a crash, and is recovered.

use nvm::{Flushed, Purpose, Region};
use vfs::Time;

use crate::bia::BlockKind;
use crate::checkpoint::Checkpoint;
use crate::checksum;
use crate::core::Core;
use crate::error::check_writable;
use crate::fault::{self, Fault, planted};
use crate::geometry::{BIA_ENTRY, BLOCK, Medium, SUPERBLOCKS};
use crate::inspect::AtRest;
use crate::kept::Record;
use crate::nat::Tree;
use crate::pointer::NodePointer;
use crate::recovery::{self, Rest};
use crate::sit::{self, Bitmap, SegmentKind, SitEntry};
use crate::superblock::{Left, Root, Superblock};
use crate::twin::Traverse;
use crate::{Error, MountOptions};

/// Makes a volume of `to`, whatever was there, with the tree of the snapshot called `name` of the volume in `from`, which
/// nobody has mounted and which is left as it is. Calls `progress` with the bytes copied so far, and those to copy.
pub fn clone_snapshot(
    from: &Region,
    name: &str,
    to: &Region,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    let _from = from.claim().ok_or(Error::Mounted)?;
    let at_rest = AtRest::read(from)?;
    clone_record(&at_rest.medium, &at_rest.snapshot(name)?, to, progress)
}

impl Core {
    /// The same, of a mounted volume; meanwhile the snapshot cannot be removed.
    pub(crate) fn clone_snapshot(
        &self,
        name: &str,
        to: &Region,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Error> {
        clone_record(&self.medium, &self.use_snapshot(name)?.record, to, progress)
    }
}

/// Blocks between two calls of the progress function.
const STEP: u64 = 4096;

fn clone_record(
    medium: &Medium,
    record: &Record,
    to: &Region,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Error> {
    check_writable(to, "copy a snapshot there")?;
    let claimed = to.claim().ok_or(Error::Mounted)?;
    let superblock = Superblock::read(&medium.region)?;
    let bytes = medium.geometry.blocks * BLOCK;
    if to.len() < bytes {
        return Err(Error::CloneTooSmall { bytes: to.len(), minimum: bytes });
    }
    let target = Medium { region: to.clone(), geometry: medium.geometry };
    let checkpoint = record.checkpoint(medium)?;
    if !planted(Fault::CloneOverOld) {
        let removed = SUPERBLOCKS.map(|at| to.stream_zero(Purpose::Metadata, at * BLOCK, BLOCK));
        to.fence(removed.into_iter().fold(Flushed::none(), Flushed::and)).ignore();
    }

    let mut copy = Copy {
        medium,
        target: &target,
        bits: vec![Bitmap::default(); medium.geometry.segments as usize],
        kinds: vec![SegmentKind::Meta; medium.geometry.segments as usize],
        flushed: Flushed::none(),
        done: 0,
        all: checkpoint.body.blocks.get(),
        progress,
    };
    let visit = &mut |block, kind, _| copy.block(block, kind == BlockKind::Data);
    let next = Tree::default();
    let mut traverse = Traverse { medium, next, from: 0, steps: u64::MAX, is_own: &|_| true, visit };
    traverse.run(checkpoint.body.tree())?;
    copy.block(record.block, false);
    let Copy { bits, kinds, flushed: copied, .. } = copy;

    let log = [0, 1].map(|half| to.stream_zero(Purpose::Journal, target.geometry.log_at(half), BLOCK));
    let mut flushed = log.into_iter().fold(copied, Flushed::and);
    let version = checkpoint.body.version.get();
    for (segment, (bits, kind)) in (0..).zip(bits.iter().zip(kinds)) {
        flushed = flushed.and(SitEntry::new(segment, kind, version, bits).write(&target, segment));
        flushed = flushed.and(sit::flush_soft(&target, segment, bits));
    }
    let body = &checkpoint.body;
    let (no_snapshots, no_journal) = (NodePointer::default(), (0, checksum::of(&[])));
    let (_, written) =
        Checkpoint::write(&target, record.block, body.tree(), no_snapshots, &body.facts(), no_journal);
    to.fence(flushed.and(written)).ignore();
    // The log's salts follow from the key, which is the origin's, and this number, which must be nobody's.
    let lives = uuid::Uuid::new_v4().as_u64_pair().0 >> 2;
    Root::new(record.block, lives).write_next(to, record.block, Left::InUse).ignore();
    medium.check_media()?;
    let (label, created) = (superblock.label, Time::now().sec as u64);
    let uuid = *to.uuid().as_bytes();
    let superblock = Superblock::new(uuid, label, created, superblock.hash_key(), &target.geometry);
    superblock.write(to).ignore();
    to.check().map_err(|error| Error::Volume(vfs::Error::Io(error.to_string())))?;
    drop(claimed);
    // It is as after a crash: opened, it removes what had no name when the snapshot was taken.
    let options = MountOptions { background: false, ..MountOptions::default() };
    Ok(recovery::open(to.clone(), &superblock, &options, Rest::Keep)?.0.finish()?)
}

struct Copy<'a> {
    medium: &'a Medium,
    target: &'a Medium,
    bits: Vec<Bitmap>,
    kinds: Vec<SegmentKind>,
    flushed: Flushed,
    done: u64,
    all: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl Copy<'_> {
    fn block(&mut self, block: u64, is_data: bool) {
        let (segment, index) = self.medium.geometry.segment_of(block);
        self.bits[segment as usize][index / 64] |= 1 << (index % 64);
        if is_data {
            self.kinds[segment as usize] = SegmentKind::Data;
        }
        let purpose = if is_data { Purpose::Data } else { Purpose::Metadata };
        let (region, bytes) = (&self.target.region, self.medium.block(block));
        let streamed = fault::stream(region, Fault::CloneNotSent, purpose, block * BLOCK, bytes);
        self.flushed = std::mem::replace(&mut self.flushed, Flushed::none()).and(streamed);
        let at = self.medium.geometry.bia_at(block);
        let entry = self.medium.region.bytes(at, BIA_ENTRY as usize);
        self.target.region.store(Purpose::Allocation, at, entry);
        self.done += 1;
        if self.done.is_multiple_of(STEP) || self.done == self.all {
            (self.progress)(self.done * BLOCK, self.all * BLOCK);
        }
    }
}
