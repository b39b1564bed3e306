//! Fetching metadata to NVM before anybody asks for it.
//!
//! Where descriptors, bitmaps and inode tables are is fixed (FSMAC §III.B, §IV.B), so they can be read in large requests, in the order of the
//! disk, some at a time; asked for one by one, each block is a request of its own. What nobody has written is left out. Directories and maps
//! come when they are touched, and have an eighth of the frames to themselves.
//!
//! Nothing depends on it: a block that has no frame is read from the disk by whoever wants it first, who is also told what is wrong with it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use disk::Purpose;
use vfs::Result;

use crate::core::{Core, group};
use crate::home::{Frames, LEFT_PART};
use crate::store::Kind;
use crate::volume::{Fetched, Volume};

/// Bytes of a request, at most.
const REQUEST_MAX: u64 = 1 << 20;
/// Requests at a time: disks of many channels, and those at the end of a network, answer several in the time of one.
const AT_A_TIME: usize = 4;

type Block = (u64, Kind);

impl Volume {
    /// Fetches what has no frame yet, while nobody uses the volume.
    pub(crate) fn fetch(&self) -> Fetched {
        let started = Instant::now();
        let mut fetched = Fetched::default();
        let Some(home) = &self.home else { return fetched };
        let core = &self.core;
        self.fetch_blocks(&home.frames, descriptors(core), &mut fetched);
        // Of a group that cannot be read nothing is known.
        let groups = (0..core.superblock.groups).filter_map(|number| of_group(core, number).ok());
        let (bitmaps, tables): (Vec<_>, Vec<_>) = groups.unzip();
        let blocks = bitmaps.into_iter().chain(tables).flatten().collect();
        self.fetch_blocks(&home.frames, blocks, &mut fetched);
        fetched.duration = started.elapsed();
        fetched
    }

    /// Fetches blocks, those that stand first first if there is no room for all.
    fn fetch_blocks(&self, frames: &Frames, mut blocks: Vec<Block>, fetched: &mut Fetched) {
        blocks.retain(|(number, _)| !frames.holds(*number));
        let counts = frames.counts();
        let room = (counts.frames - counts.used).saturating_sub(counts.frames / LEFT_PART);
        let wanted = blocks.len() as u64;
        blocks.truncate(room as usize);
        blocks.sort_unstable_by_key(|(number, _)| *number);
        blocks.dedup_by_key(|(number, _)| *number);
        let runs = runs(&blocks, REQUEST_MAX / self.core.superblock.block);
        let (next, done, requests) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let work = || {
            while let Some(run) = runs.get(next.fetch_add(1, Relaxed)) {
                requests.fetch_add(1, Relaxed);
                if self.fetch_run(frames, run).is_err() {
                    // The others would not fare better.
                    next.store(runs.len(), Relaxed);
                    return;
                }
                done.fetch_add(run.len() as u64, Relaxed);
            }
        };
        std::thread::scope(|scope| {
            (1..AT_A_TIME.min(runs.len())).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        let done = done.into_inner();
        fetched.blocks += done;
        fetched.requests += requests.into_inner();
        fetched.left_out += wanted - done;
    }

    /// Fetches neighbouring blocks.
    fn fetch_run(&self, frames: &Frames, run: &[Block]) -> Result<()> {
        let block = self.core.superblock.block as usize;
        let mut bytes = vec![0; run.len() * block];
        self.core.store.read_through(Purpose::Metadata, run[0].0, 0, &mut bytes)?;
        for ((number, kind), bytes) in run.iter().zip(bytes.chunks(block)) {
            frames.fill(*kind, *number, bytes);
        }
        Ok(())
    }
}

/// Bytes of the metadata whose place is fixed and that is in use; groups that cannot be read count as empty.
pub(crate) fn bytes_in_use(core: &Core) -> u64 {
    let groups = (0..core.superblock.groups).filter_map(|number| of_group(core, number).ok());
    let blocks = groups.map(|(bitmaps, table)| bitmaps.len() + table.len()).sum::<usize>();
    (1 + descriptors(core).len() + blocks) as u64 * core.superblock.block
}

/// The blocks of group descriptors.
fn descriptors(core: &Core) -> Vec<Block> {
    let superblock = &core.superblock;
    let per_block = superblock.block as usize / superblock.descriptor_bytes;
    let blocks = (0..superblock.groups).step_by(per_block).map(|group| superblock.descriptor_block(group));
    blocks.filter(|block| superblock.has_blocks(*block, 1)).map(|block| (block, Kind::Descriptors)).collect()
}

/// The bitmaps of a group, and that part of its inode table which has been in use.
fn of_group(core: &Core, number: u32) -> Result<(Vec<Block>, Vec<Block>)> {
    let superblock = &core.superblock;
    let group = group::read(core, number)?;
    let bitmaps = [group.blocks, group.inodes].into_iter().filter(|bitmap| !bitmap.unused);
    let used = if group.inodes.unused { 0 } else { superblock.inodes_per_group - group.unused_inodes };
    let blocks = (u64::from(used) * superblock.inode_bytes as u64).div_ceil(superblock.block);
    let table = group.inode_table..group.inode_table + blocks;
    Ok((
        bitmaps.map(|bitmap| (bitmap.block, Kind::Bitmap)).collect(),
        table.map(|number| (number, Kind::Inodes)).collect(),
    ))
}

/// Cuts blocks in order into runs of neighbours, `most` blocks long at most.
fn runs(blocks: &[Block], most: u64) -> Vec<&[Block]> {
    let neighbours = blocks.chunk_by(|(one, _), (next, _)| one + 1 == *next);
    neighbours.flat_map(|run| run.chunks(most as usize)).collect()
}
