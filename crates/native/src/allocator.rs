//! Block allocation: log-structured, within segments (HMFS §2.2).
//!
//! Invariants:
//! - A block that the newest checkpoint reaches is never handed out: `used` has every block that is valid on the
//!   medium, until a checkpoint without it has been published.
//! - `next` is what will be valid once the running epoch's checkpoint is published.
//! - Nothing is scanned at mount but the SIT; a segment's bitmaps are read there when it is first touched.
//! - A block that a snapshot has is never handed out: what is not newer than the newest snapshot, by its start version,
//!   stays valid when the running tree lets go of it (HMFS §3.1), until the removal of the last snapshot that reaches it.
//! - A segment whose SIT entry is damaged is in quarantine: as nobody knows what is free there, nothing is handed out
//!   from it, nothing freed in it becomes free, and its entry stays as it is until `fsck` has rebuilt it from the tree.

mod budget;
mod segments;
mod victims;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

pub(crate) use self::budget::{Budget, Room, Stock, Urgency};
use self::segments::Segments;
use crate::bia::{BlockKind, Entry};
use crate::fault::{Fault, planted};
use crate::geometry::{Medium, SEGMENT_BLOCKS};
use crate::sit::{self, Bitmap, JournalEntry, SegmentKind};

pub(crate) struct Allocator {
    medium: Arc<Medium>,
    /// Blocks neither used nor promised to a budget.
    free: Arc<AtomicI64>,
    /// Maps of segments that are loaded.
    maps: Arc<AtomicU64>,
    /// Version that blocks allocated now belong to.
    version: AtomicU32,
    /// The newest snapshot's version; 0: there is none.
    kept: AtomicU32,
    segments: Mutex<Segments>,
}

/// The state of the segments that one epoch changed, taken when the epoch ended.
pub(crate) struct Frozen {
    segments: Vec<FrozenSegment>,
    index: std::collections::HashMap<u32, usize>,
    /// The newest snapshot before this epoch's checkpoint.
    kept: u32,
    /// Blocks that the checkpoint reaches.
    reached: u64,
}

struct FrozenSegment {
    segment: u32,
    kind: SegmentKind,
    valid: Bitmap,
    next: Bitmap,
    used: Bitmap,
}

impl Frozen {
    /// Blocks that the checkpoint reaches.
    pub(crate) fn reached(&self) -> u64 {
        self.reached
    }

    /// The journal entries of all segments that change.
    pub(crate) fn journal(&self, version: u32) -> Vec<JournalEntry> {
        self.segments.iter().map(|s| JournalEntry::new(s.segment, s.kind, version, &s.next)).collect()
    }

    /// Segments and the blocks in each that become valid.
    pub(crate) fn newly_valid(&self) -> impl Iterator<Item = (u32, Bitmap)> + '_ {
        self.segments.iter().map(|s| (s.segment, std::array::from_fn(|word| s.next[word] & !s.valid[word])))
    }
}

impl Allocator {
    /// Reads the SIT. The newest snapshot is `kept`, or 0; the newest checkpoint reaches `reached` blocks.
    pub(crate) fn open(medium: Arc<Medium>, version: u32, kept: u32, reached: u64) -> Allocator {
        let segments = Segments::open(&medium, reached);
        Allocator {
            free: segments.free.clone(),
            maps: segments.loaded.clone(),
            version: AtomicU32::new(version),
            kept: AtomicU32::new(kept),
            segments: Mutex::new(segments),
            medium,
        }
    }

    /// Keeps to so many maps of segments, if a checkpoint is made when there are more.
    pub(crate) fn keep_to(&mut self, maps: u64) {
        self.segments.get_mut().maps_max = maps;
    }

    /// Maps of segments that are loaded.
    pub(crate) fn maps(&self) -> u64 {
        self.maps.load(Relaxed)
    }

    /// Whether a snapshot has `block`, which the running tree reaches: its bytes must stay as they are.
    #[inline]
    pub(crate) fn is_shared(&self, block: u64) -> bool {
        is_kept(&self.medium, block, self.kept.load(Relaxed))
    }

    /// Whether the next checkpoint would make blocks available.
    pub(crate) fn has_pending(&self) -> bool {
        self.segments.lock().has_pending()
    }

    /// Bytes of DRAM of what the allocator has looked up, and those of its tables.
    pub(crate) fn cache_bytes(&self) -> (u64, u64) {
        self.segments.lock().cache_bytes()
    }

    /// Allocates a run of up to `want` contiguous blocks and writes their BIA entries softly. Block `i` of the
    /// run gets `place + i` for data, 0 otherwise. Returns the first block and the run's length, at least 1.
    pub(crate) fn allocate(
        &self,
        budget: &Budget<'_>,
        kind: BlockKind,
        owner: u32,
        place: u64,
        want: u64,
    ) -> vfs::Result<(u64, u64)> {
        let is_data = kind == BlockKind::Data;
        let (first, length) = match if is_data { budget.small_run(want) } else { None } {
            Some(run) => run,
            None => {
                let group = if is_data { SegmentKind::Data } else { SegmentKind::Meta };
                let mut segments = self.segments.lock();
                let run = segments.take_run(&self.medium, group, want.clamp(1, SEGMENT_BLOCKS))?;
                segments.reached += run.1;
                budget.left.set(budget.left.get() - run.1 as i64);
                run
            }
        };
        let (version, place) = (self.version.load(Relaxed), if is_data { place } else { 0 });
        if length == 1 || !is_data {
            (first..first + length)
                .for_each(|block| Entry::write_soft(&self.medium, block, version, owner, kind, place));
        } else {
            Entry { version, owner, kind: kind as u8, place }.write_run(&self.medium, first, length);
        }
        Ok((first, length))
    }

    /// Takes one particular block that the log says was allocated: replay does this before anything else is
    /// allocated.
    pub(crate) fn claim(&self, block: u64, owner: u32, place: u64) {
        let was_valid = self.segments.lock().claim(&self.medium, block);
        let version = self.version.load(Relaxed);
        // Whatever the entry says now, it may not have been flushed; that of a valid block was.
        if !was_valid {
            Entry::write_soft(&self.medium, block, version, owner, BlockKind::Data, place);
        }
    }

    /// Lets go of a run of blocks: those that no snapshot has are free once the running epoch's checkpoint is published.
    pub(crate) fn free(&self, first: u64, length: u64) {
        self.free_runs(&[(first, length)]);
    }

    /// The same of several runs.
    fn free_runs(&self, runs: &[(u64, u64)]) {
        let kept = self.kept.load(Relaxed);
        let mut segments = self.segments.lock();
        for (first, length) in runs {
            segments.reached = segments.reached.saturating_sub(*length);
            if kept == 0 && !planted(Fault::FreedBlockStaysValid) && !planted(Fault::FreedBlockReused) {
                segments.give_up_run(&self.medium, *first, *length);
                continue;
            }
            for block in *first..first + length {
                if is_kept(&self.medium, block, kept) || planted(Fault::FreedBlockStaysValid) {
                    continue;
                }
                let given_up = segments.give_up(&self.medium, block);
                if planted(Fault::FreedBlockReused) && given_up {
                    segments.hand_out_again(&self.medium, block);
                }
            }
        }
    }

    /// Ends the epoch: what was allocated and freed so far goes into the checkpoint being made, what comes
    /// now into the next, whose version is `version`, and for which `kept` is the newest snapshot. The caller keeps
    /// operations out.
    pub(crate) fn freeze(&self, version: u32, kept: u32) -> Frozen {
        let ended = self.version.swap(version, Relaxed);
        let kept_before = self.kept.swap(kept, Relaxed);
        let mut segments = self.segments.lock();
        let touched = std::mem::take(&mut segments.touched);
        let mut frozen = Frozen {
            segments: Vec::with_capacity(touched.len()),
            index: Default::default(),
            kept: kept_before,
            reached: segments.reached,
        };
        for segment in touched {
            segments.states[segment as usize].version = ended;
            let kind = segments.states[segment as usize].kind;
            let map = segments.maps[segment as usize].as_mut().expect("a touched segment is loaded");
            map.touched = false;
            frozen.index.insert(segment, frozen.segments.len());
            frozen.segments.push(FrozenSegment {
                segment,
                kind,
                valid: map.valid,
                next: map.next,
                used: map.used,
            });
        }
        frozen
    }

    /// Takes into the checkpoint being made what came behind its epoch, too: a fault.
    pub(crate) fn freeze_again(&self, frozen: &mut Frozen) {
        let segments = self.segments.lock();
        for segment in &segments.touched {
            let next = segments.maps[*segment as usize].as_ref().expect("a touched segment is loaded").next;
            segments.frozen_segment(frozen, *segment).next = next;
        }
    }

    /// The running tree reaches so many blocks: damage had left that unknown.
    pub(crate) fn recount(&self, blocks: u64) {
        self.segments.lock().reached = blocks;
    }

    /// Allocates a block for the checkpoint being made, which is `version`. Its BIA entry says so, and whose it is where.
    pub(crate) fn allocate_into(
        &self,
        frozen: &mut Frozen,
        kind: BlockKind,
        version: u32,
        (owner, place): (u32, u64),
    ) -> vfs::Result<u64> {
        let mut segments = self.segments.lock();
        let (block, _) = segments.take_run(&self.medium, SegmentKind::Meta, 1)?;
        self.free.fetch_sub(1, Relaxed);
        Entry::write_soft(&self.medium, block, version, owner, kind, place);
        if kind != BlockKind::Snapshots {
            segments.reached += 1;
            frozen.reached += 1;
        }
        let (segment, index) = self.medium.geometry.segment_of(block);
        let entry = segments.frozen_segment(frozen, segment);
        entry.next[index / 64] |= 1 << (index % 64);
        entry.kind = SegmentKind::Meta;
        Ok(block)
    }

    /// Lets go of a block that the checkpoint being made does not reach: it is free if no snapshot has it.
    pub(crate) fn free_from(&self, frozen: &mut Frozen, block: u64) {
        {
            let mut segments = self.segments.lock();
            segments.reached = segments.reached.saturating_sub(1);
        }
        frozen.reached = frozen.reached.saturating_sub(1);
        if !is_kept(&self.medium, block, frozen.kept) {
            self.free_now(frozen, block);
        }
    }

    /// Whether `block` is valid in the newest checkpoint, and stays so when the running epoch ends: one that was given
    /// back and handed out again is not, even if its BIA entry does not say so yet.
    pub(crate) fn stays_valid(&self, block: u64) -> bool {
        let (segment, index) = self.medium.geometry.segment_of(block);
        let mut segments = self.segments.lock();
        let map = segments.load(&self.medium, segment);
        (map.valid[index / 64] & map.next[index / 64]) >> (index % 64) & 1 == 1
    }

    /// Gives back a block that nothing reaches once the checkpoint being made is published.
    pub(crate) fn free_now(&self, frozen: &mut Frozen, block: u64) {
        let mut segments = self.segments.lock();
        if !segments.give_up(&self.medium, block) {
            return;
        }
        let (segment, index) = self.medium.geometry.segment_of(block);
        let (word, bit) = (index / 64, 1 << (index % 64));
        let entry = segments.frozen_segment(frozen, segment);
        entry.next[word] &= !bit;
        entry.used[word] |= bit;
    }

    /// The checkpoint is published: what only its predecessor reached can be handed out again.
    pub(crate) fn release(&self, frozen: &Frozen) {
        let mut released = 0;
        let mut segments = self.segments.lock();
        for entry in &frozen.segments {
            let map = segments.maps[entry.segment as usize].as_mut().expect("a frozen segment is loaded");
            map.valid = entry.next;
            let dead: Bitmap = std::array::from_fn(|word| entry.used[word] & !entry.next[word]);
            for (used, dead) in map.used.iter_mut().zip(dead) {
                *used &= !dead;
            }
            let count = sit::count(&dead);
            segments.add_used(entry.segment, -(count as i16));
            released += count;
        }
        segments.trim();
        self.free.fetch_add(released as i64, Relaxed);
    }
}

/// Whether some snapshot has a block that the running tree reaches: `kept` is the newest, or 0. Born before that, the block
/// has been there ever since.
#[inline]
fn is_kept(medium: &Medium, block: u64, kept: u32) -> bool {
    kept != 0 && Entry::read(medium, block).version <= kept && !planted(Fault::KeptFreed)
}

#[cfg(test)]
mod tests {
    use nvm::{OpenOptions, Purpose, VolumeKind, Zone};
    use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO};

    use super::*;
    use crate::geometry::SIT_ENTRY;
    use crate::sit::SitEntry;
    use crate::superblock::Superblock;
    use crate::{FormatOptions, MountOptions, Volume};

    /// A valid bit rotted away under a block in use. The segment was quarantined, and then a checkpoint wrote down the
    /// count of the wrong bits: at the next mount nothing looked wrong, and the block was handed out.
    #[test]
    fn a_damaged_segment_stays_in_quarantine() {
        let zone = Zone::anonymous(24 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
        crate::format(&region, &FormatOptions::default()).unwrap();
        let (root, rw) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
        let open = || Volume::open(region.clone(), &MountOptions::default()).unwrap();

        let volume = open();
        let file = volume.create(&root, ROOT_INO, b"f", 0o644, rw).unwrap();
        volume.write(&root, file.handle, 0, &[7; 40 << 10]).unwrap();
        volume.close().unwrap();
        drop(volume);

        let medium =
            Medium { region: region.clone(), geometry: Superblock::read(&region).unwrap().geometry() };
        let entry = |segment| SitEntry::read(&medium, segment).unwrap();
        let data = |segment: &u32| entry(*segment).segment_kind() == SegmentKind::Data;
        let segment = (0..medium.geometry.segments).find(data).unwrap();
        let bits = medium.geometry.sit_at(segment) + SIT_ENTRY / 2;
        let word = region.load_u64(bits);
        region.store_u64(Purpose::Allocation, bits, word & (word - 1));

        for round in 0..3u8 {
            let volume = open();
            let ino = volume.lookup(&root, ROOT_INO, b"f").unwrap().ino;
            let handle = volume.open(&root, ino, rw).unwrap();
            // Frees a block of the segment, and takes what others are free.
            volume.write(&root, handle, 36 << 10, &[round; 4096]).unwrap();
            let name = [b'a' + round];
            let other = volume.create(&root, ROOT_INO, &name, 0o644, rw).unwrap();
            while volume.write(&root, other.handle, 0, &[0xee; 1 << 20]).is_ok() {
                let size = volume.getattr(other.attr.ino).unwrap().size;
                if volume.write(&root, other.handle, size, &[0xee; 1 << 20]).is_err() {
                    break;
                }
            }
            let mut bytes = vec![0; 36 << 10];
            volume.read(handle, 0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 7), "round {round}: a block in use was handed out");
            volume.unlink(&root, ROOT_INO, &name).unwrap();
            volume.close().unwrap();
            drop(volume);
            assert!(SitEntry::read(&medium, segment).is_err(), "round {round}: the damage was papered over");
        }
        let report = crate::check(&region, true).unwrap();
        assert!(report.is_clean() && !report.problems.is_empty(), "{report:?}");
        assert!(crate::check(&region, false).unwrap().problems.is_empty());
        let valid = entry(segment).bits();
        assert_eq!(sit::count(&valid), 9, "what was freed meanwhile is free now");
    }
}
