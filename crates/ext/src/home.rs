//! The volume's area in a zone of NVM: where metadata lives while the disk is attached (FSMAC III.B).
//!
//! Home of a block is a **frame** ([`Frames`]); what was committed since is in the **log**, too, until its lines in the frames
//! are durable. Nothing here knows what blocks mean.
//!
//! Two transactions at a time (FSMAC III.C): the *running* one is above, in DRAM. [`Home::commit`] takes it, and it is *committing* until a
//! fence has passed; meanwhile the next one runs. There is never a third.
//!
//! When a half of the log is full, the other one begins. A **checkpoint** has what the full one holds made durable elsewhere (files' bytes on
//! the disk: that is the caller's; metadata in its frames), and retires it. Commits go on meanwhile, until the other half is full, too: then
//! they wait.

mod area;
mod frames;
mod log;

use nvm::{Durable, Mounted, Region};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vfs::{Error, Result};

use crate::failure::Failure;
use crate::fault::{Fault, planted};

pub use area::Room;
pub(crate) use area::{Area, LEFT_PART, State, bytes_for_all, check_bytes, check_name};
pub(crate) use frames::Frames;
use log::Log;
pub(crate) use log::{FoundLog, Item, LogItem, Logged, Transaction, retired_behind};

/// What a checkpoint needs of who knows files.
pub(crate) trait Above {
    /// Whether a panic left something half done.
    fn failure(&self) -> &Failure;

    /// Takes what has run since the last time, alone; nothing if nothing has. Called in the order of transactions.
    ///
    /// # Errors
    /// Something of it is half done.
    fn take(&self) -> Result<Option<Transaction>>;

    /// A transaction is durable, and in its frames.
    fn settled(&self, transaction: &Transaction);

    /// Makes all bytes of files that the log has in transactions up to `number` durable on the disk.
    fn drain(&self, number: u64) -> Result<()>;

    /// The log has nothing of transactions up to `number` any longer.
    fn retired(&self, number: u64);

    /// A half of the log is full, and the other one fills: it is time for a checkpoint.
    fn half_filled(&self);
}

/// Bytes that the record of an operation on names or an inode seldom has.
const OPERATION_BYTES: u64 = 32 << 10;

struct Committing {
    log: Log,
    /// Taken, and too long for what is left of the running half.
    waiting: Option<Transaction>,
    /// Number of the last transaction that is durable.
    committed: u64,
    /// The same, when the running half began: the other half has none that is newer.
    committed_before: u64,
}

/// The area in use.
pub(crate) struct Home {
    region: Region,
    /// Nobody else in this process opens the area.
    _mounted: Mounted,
    pub(crate) area: Mutex<Area>,
    pub(crate) frames: Arc<Frames>,
    committing: Mutex<Committing>,
    checkpointing: Mutex<()>,
    /// The newest epoch of the log that is retired, durably.
    retired: AtomicU64,
    /// Metadata is committed by records.
    versions: bool,
}

impl Home {
    /// Begins with an empty log; `next` is the number of the next transaction.
    pub(crate) fn begin(
        region: Region,
        mounted: Mounted,
        area: Area,
        frames: Arc<Frames>,
        next: u64,
    ) -> Home {
        let log = Log::begin(region.clone(), area.clone(), next);
        let retired = AtomicU64::new(area.retired(&region));
        let committing = Committing { log, waiting: None, committed: next - 1, committed_before: next - 1 };
        Home {
            region,
            _mounted: mounted,
            area: Mutex::new(area),
            frames,
            committing: Mutex::new(committing),
            checkpointing: Mutex::new(()),
            retired,
            versions: true,
        }
    }

    /// Stores metadata to frames from now on, and has no records of it: what a crash leaves is anything.
    pub(crate) fn without_versions(&mut self) {
        self.versions = false;
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Makes all transactions up to `number` durable. Called without any lock of the volume.
    pub(crate) fn commit(&self, above: &dyn Above, number: u64) -> Result<()> {
        // One checkpoint is for a transaction before it that waits, a second for its own, which began to wait behind that. Then both halves and all
        // frames have been free, and what still finds no room never will.
        for _ in 0..3 {
            let epoch = {
                let committing = &mut *self.committing.lock();
                if committing.committed >= number {
                    return Ok(());
                }
                loop {
                    let some = self.commit_next(committing, above)?;
                    if committing.waiting.is_some() {
                        break self.retired() + 1;
                    }
                    if !some || committing.committed >= number {
                        return Ok(());
                    }
                }
            };
            self.checkpoint_after(above, epoch)?;
        }
        // No operation makes it so large (design 10.5, 6).
        let half = self.record_bytes_max() * 4;
        Err(Error::Io(format!(
            "{}: a transaction is larger than half of the log ({half} bytes), or than all frames: it cannot be committed",
            self.region.name()
        )))
    }

    /// Takes what runs, unless one waits that was taken before; what has room in the log is committed, and nothing is drained for the rest. So who has a
    /// file's lock may call it.
    pub(crate) fn commit_what_fits(&self, above: &dyn Above) -> Result<()> {
        let committing = &mut *self.committing.lock();
        if committing.waiting.is_some() {
            self.commit_next(committing, above)?;
        }
        if committing.waiting.is_none() {
            self.commit_next(committing, above)?;
        }
        Ok(())
    }

    /// Commits the next transaction, or leaves it waiting; false if there is none.
    fn commit_next(&self, committing: &mut Committing, above: &dyn Above) -> Result<bool> {
        above.failure().check()?;
        self.region.check().map_err(|error| Error::Io(error.to_string()))?;
        // Whether its record is whole, and how much of it is in the frames, is known behind all of this only: a panic leaves neither the transaction, which may be
        // committed, nor the log nor the frames to go on with. The next mount replays what is whole.
        let _whole = above.failure().whole("a commit");
        let taken = match committing.waiting.take() {
            None => above.take()?,
            waiting => waiting,
        };
        let Some(mut transaction) = taken else { return Ok(false) };
        let numbers = transaction.blocks.iter().map(|(number, ..)| *number);
        match self.frames.reserve(numbers) {
            Ok(()) => {}
            Err(Error::NoSpace) => {
                committing.waiting = Some(transaction);
                return Ok(true);
            }
            Err(error) => {
                committing.waiting = Some(transaction);
                return Err(error);
            }
        }
        let apply = |transaction: &Transaction| {
            let blocks = transaction.blocks.iter();
            let blocks = blocks.map(|(number, kind, parts, bytes)| (*number, *kind, *parts, &bytes[..]));
            self.frames.apply(blocks, &transaction.freed);
        };
        if planted(Fault::AppliedTooEarly) {
            apply(&transaction);
        }
        let appended = match self.versions {
            true => self.append(committing, above, &transaction),
            false => self.append_items(committing, above, &mut transaction),
        };
        match appended {
            Ok(durable) => durable.ignore(),
            Err(log::Full) => {
                committing.waiting = Some(transaction);
                return Ok(true);
            }
        }
        apply(&transaction);
        committing.committed = transaction.number;
        above.settled(&transaction);
        // Where lines are written back by the system, only now it says whether they were.
        self.region.check().map_err(|error| Error::Io(error.to_string()))?;
        Ok(true)
    }

    /// Appends to the half that runs, or to the other one, if that is free.
    fn append(
        &self,
        committing: &mut Committing,
        above: &dyn Above,
        transaction: &Transaction,
    ) -> std::result::Result<Durable, log::Full> {
        let appended = committing.log.append(transaction);
        if appended.is_ok() || !self.is_other_free(committing) {
            return appended;
        }
        committing.switch();
        above.half_filled();
        committing.log.append(transaction)
    }

    /// The same, of bytes of files alone; nothing if there are none. Of metadata it is found out which sub-blocks are to be stored.
    fn append_items(
        &self,
        committing: &mut Committing,
        above: &dyn Above,
        transaction: &mut Transaction,
    ) -> std::result::Result<Durable, log::Full> {
        let mut items = Transaction { number: transaction.number, ..Transaction::default() };
        std::mem::swap(&mut items.items, &mut transaction.items);
        let appended = match items.items.is_empty() {
            true => Ok(self.region.fence(nvm::Flushed::none())),
            false => self.append(committing, above, &items),
        };
        transaction.items = items.items;
        for (number, kind, parts, bytes) in &mut transaction.blocks {
            *parts = self.frames.differing(*number, *kind, bytes);
        }
        appended
    }

    fn is_other_free(&self, committing: &Committing) -> bool {
        self.retired() + 1 == committing.log.epoch()
    }

    /// Whether what one operation changes is likely to have room in the log as it is.
    pub(crate) fn has_room(&self) -> bool {
        let committing = self.committing.lock();
        let (filled, half) = committing.log.fill();
        let has_more = || self.is_other_free(&committing) || filled + OPERATION_BYTES.min(half / 4) <= half;
        committing.waiting.is_none() && has_more()
    }

    /// Whether a half of the log is full, and waits to be emptied.
    pub(crate) fn has_full_half(&self) -> bool {
        !self.is_other_free(&self.committing.lock())
    }

    /// Whether there is so much in the log that a checkpoint is due.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        let committing = self.committing.lock();
        let (filled, half) = committing.log.fill();
        filled > half / 2 || !self.is_other_free(&committing)
    }

    /// Transactions that are durable, and how full the running half of the log is: bytes, of so many.
    pub(crate) fn progress(&self) -> (u64, u64, u64) {
        let committing = self.committing.lock();
        let (filled, half) = committing.log.fill();
        (committing.committed, filled, half)
    }

    /// Bytes that one record may have so that two fit a half.
    pub(crate) fn record_bytes_max(&self) -> u64 {
        self.committing.lock().log.fill().1 / 4
    }

    /// Blocks of metadata that one transaction may have so that it, and the next, find frames.
    pub(crate) fn record_blocks_max(&self) -> u64 {
        self.frames.count() / 4
    }

    /// Empties the log: all that was committed before is durable elsewhere.
    pub(crate) fn checkpoint(&self, above: &dyn Above) -> Result<()> {
        let epoch = self.committing.lock().log.epoch();
        while self.retired() < epoch {
            self.checkpoint_after(above, epoch)?;
        }
        Ok(())
    }

    /// Empties the older half of the log that is in use.
    pub(crate) fn empty_half(&self, above: &dyn Above) -> Result<()> {
        self.checkpoint_after(above, self.retired() + 1)
    }

    fn retired(&self) -> u64 {
        self.retired.load(Ordering::Acquire)
    }

    /// Retires the older half that is in use, which may be that of `epoch`; nothing if somebody else has retired that meanwhile.
    fn checkpoint_after(&self, above: &dyn Above, epoch: u64) -> Result<()> {
        let _one = self.checkpointing.lock();
        // What is flushed and what of that is listed, DRAM forgets on the way.
        let _whole = above.failure().whole("a checkpoint");
        let area = self.area.lock().clone();
        let (running, number) = {
            let committing = &mut *self.committing.lock();
            let _whole = above.failure().whole("a checkpoint");
            if self.retired() >= epoch {
                return Ok(());
            }
            above.failure().check()?;
            // A header behind a record that is not durable would tell of damage.
            self.region.check().map_err(|error| Error::Io(error.to_string()))?;
            // One that failed half-way, when the disk did, is made up for: both halves are in use, and only the other one gets free.
            if self.is_other_free(committing) {
                committing.switch();
            }
            (committing.log.epoch(), committing.committed_before)
        };
        if planted(Fault::RetiredTooEarly) {
            area.retire(&self.region, running - 1, self.region.fence(nvm::Flushed::none())).ignore();
        }
        if !planted(Fault::NotDrained) {
            above.drain(number)?;
        }
        let in_frames = self.frames.checkpoint();
        // Else pages may be missing of those that were drained.
        above.failure().check()?;
        self.region.check().map_err(|error| Error::Io(error.to_string()))?;
        area.retire(&self.region, running - 1, in_frames).ignore();
        // Only now: the half is written over as soon as anybody sees it.
        self.retired.store(running - 1, Ordering::Release);
        above.retired(number);
        Ok(())
    }
}

impl Committing {
    /// Begins the half that is free.
    fn switch(&mut self) {
        self.committed_before = self.committed;
        self.log.switch();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use disk::Disk;
    use nvm::{OpenOptions, VolumeKind, Zone};

    use super::*;
    use crate::kind::Kind;
    use crate::store::{Changing, Store};

    const BLOCK: u64 = 1024;
    const BLOCKS: u64 = 512;

    /// What is above: blocks with nothing in them.
    struct Blocks {
        store: Store,
        home: Home,
        /// Taking or settling the transaction of this number panics.
        stops_at: [u64; 2],
    }

    impl Above for Blocks {
        fn failure(&self) -> &Failure {
            &self.store.failure
        }

        fn take(&self) -> Result<Option<Transaction>> {
            let taken = self.store.take_running();
            assert!(taken.as_ref().is_none_or(|taken| taken.number != self.stops_at[0]), "planted");
            Ok(taken)
        }

        fn settled(&self, transaction: &Transaction) {
            assert_ne!(transaction.number, self.stops_at[1], "planted");
            self.store.settled(transaction.number);
        }

        fn drain(&self, _: u64) -> Result<()> {
            Ok(())
        }

        fn retired(&self, _: u64) {}

        fn half_filled(&self) {}
    }

    impl Blocks {
        fn begin(region: Region, area: Area, frames: Frames, disk: &Arc<Disk>, next: u64) -> Blocks {
            let frames = Arc::new(frames);
            let mut store = Store::new(disk.clone(), BLOCK, area.part as usize, 0);
            store.attach(frames.clone(), next);
            let home = Home::begin(region.clone(), region.claim().unwrap(), area, frames, next);
            Blocks { store, home, stops_at: [0; 2] }
        }

        /// What every block begins with.
        fn words(&self, kinds: &BTreeMap<u64, Kind>) -> BTreeMap<u64, u64> {
            let word = |(number, kind): (&u64, &Kind)| {
                let block = self.store.read(*kind, *number, |_| Ok(())).unwrap();
                (*number, u64::from_le_bytes(block[..8].try_into().unwrap()))
            };
            kinds.iter().map(word).collect()
        }

        fn commit(&self) {
            self.home.commit(self, self.store.running().number).unwrap();
        }
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) % limit
        }
    }

    /// A transaction that was taken went with a panic, and later ones were committed without it.
    #[test]
    fn what_a_panic_took_from_a_commit_was_missing_in_those_behind_it() {
        for (stops_at, committed) in [([2, 0], 1), ([0, 2], 2)] {
            let zone = Zone::anonymous(16 << 20, &OpenOptions::default()).unwrap();
            let region = zone.create_volume("disk", VolumeKind::Ext, Some(10 << 20)).unwrap();
            let disk = Arc::new(Disk::memory(vec![0; (BLOCK * BLOCKS) as usize]));
            let mut area = Area::lay_out(&region, BLOCK, 128, 8 << 20).unwrap();
            area.disk_bytes = BLOCK * BLOCKS;
            let frames = Frames::empty(region.clone(), area.clone(), disk.clone());
            let mut blocks = Blocks::begin(region.clone(), area.clone(), frames, &disk, 1);
            blocks.stops_at = stops_at;
            let change = |block| {
                blocks.store.begin();
                blocks.store.make(Kind::Bitmap, block, |bytes| bytes[0] = 1);
                blocks.store.finish();
            };
            change(10);
            blocks.commit();
            change(20);
            let commit = || blocks.commit();
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(commit)).is_err());
            change(30);
            for result in [blocks.home.commit(&blocks, 3), blocks.home.checkpoint(&blocks)] {
                assert!(result.is_err_and(|error| error.to_string().contains("has failed")));
            }
            let log = FoundLog::of(&region, &area);
            let mut found = Vec::new();
            log.each(|logged| {
                found.extend(logged.blocks.iter().map(|(number, ..)| *number));
                Ok(())
            })
            .unwrap();
            assert_eq!((found, log.damage()), ([10, 20][..committed].to_vec(), None));
        }
    }

    /// Random changes with few frames, so that they are given up and dirty ones go to the disk; commits, checkpoints, and the end of the
    /// process at any time: what was committed is there, and nothing else. What is no longer metadata by then is a file's, and stays what the
    /// file has made of it.
    #[test]
    fn what_is_committed_is_there_whatever_was_given_up() {
        for seed in 0..20 {
            let mut random = Random(seed);
            let mut zone = Zone::anonymous(16 << 20, &OpenOptions::default()).unwrap();
            zone.create_volume("disk", VolumeKind::Ext, Some(10 << 20)).unwrap();
            let disk = Arc::new(Disk::memory(vec![0; (BLOCK * BLOCKS) as usize]));
            let mut area = Area::lay_out(&zone.volume("disk").unwrap(), BLOCK, 128, 8 << 20).unwrap();
            area.frames = 96;
            area.disk_bytes = BLOCK * BLOCKS;
            let mut kinds = BTreeMap::new();
            let mut committed = BTreeMap::new();
            let mut files = BTreeMap::new();
            for life in 0..6 {
                let region = zone.volume("disk").unwrap();
                let (frames, next) = match life {
                    0 => (Frames::empty(region.clone(), area.clone(), disk.clone()), 1),
                    _ => {
                        let frames = Frames::open(region.clone(), area.clone(), disk.clone()).unwrap();
                        let log = FoundLog::of(&region, &area);
                        crate::replay::replay(&region, &area, &log, &frames, &disk).unwrap();
                        let next = log.next();
                        (frames, next)
                    }
                };
                let blocks = Blocks::begin(region, area.clone(), frames, &disk, next);
                assert_eq!(blocks.words(&kinds), committed, "seed {seed}, life {life}");
                for (number, word) in &files {
                    let mut bytes = [0; 8];
                    disk.read(disk::Purpose::Data, number * BLOCK, &mut bytes).unwrap();
                    assert_eq!(u64::from_le_bytes(bytes), *word, "seed {seed}, life {life}, block {number}");
                }
                let mut now = (kinds.clone(), committed.clone());
                for step in 0..400 {
                    blocks.store.begin();
                    let mut then = now.clone();
                    for _ in 0..=random.below(4) {
                        let number = 1 + random.below(BLOCKS - 1);
                        let word = random.below(u64::MAX >> 34);
                        match then.0.get(&number).copied() {
                            Some(_) if random.below(6) == 0 && now.0.contains_key(&number) => {
                                blocks.store.forget(number);
                                then.0.remove(&number);
                                then.1.remove(&number);
                            }
                            Some(kind) => {
                                let at = (random.below(8) * 128) as usize;
                                // As a whole, or sub-block by sub-block, also both in one operation.
                                let as_a_whole = random.below(2) == 0;
                                let with = |block: &mut Changing<'_>| {
                                    for place in [at + 8..at + 16, 0..8] {
                                        if as_a_whole {
                                            block.all()[place].copy_from_slice(&word.to_le_bytes());
                                        } else {
                                            block.at(place).copy_from_slice(&word.to_le_bytes());
                                        }
                                    }
                                };
                                blocks.store.change(kind, number, |_| Ok(()), with).unwrap();
                                then.1.insert(number, word);
                            }
                            // What was given up in this transaction is not given out again.
                            None if now.0.contains_key(&number) || blocks.store.is_freed(number) => {}
                            None => {
                                let kind = Kind::Directory(step);
                                files.remove(&number);
                                blocks.store.make(kind, number, |bytes| {
                                    bytes[..8].copy_from_slice(&word.to_le_bytes())
                                });
                                then.0.insert(number, kind);
                                then.1.insert(number, word);
                            }
                        }
                    }
                    if random.below(5) == 0 {
                        blocks.store.undo();
                    } else {
                        blocks.store.finish();
                        now = then;
                    }
                    if random.below(8) == 0 || step % 24 == 0 {
                        blocks.commit();
                        for number in kinds.keys().filter(|number| !now.0.contains_key(number)) {
                            let word = random.below(u64::MAX >> 34);
                            let bytes = [&word.to_le_bytes()[..], &[0; 1016]].concat();
                            disk.write(disk::Purpose::Data, number * BLOCK, &bytes).unwrap();
                            files.insert(*number, word);
                        }
                        (kinds, committed) = now.clone();
                    }
                    if random.below(60) == 0 {
                        blocks.home.checkpoint(&blocks).unwrap();
                    }
                    if random.below(10) == 0 {
                        assert_eq!(blocks.words(&now.0), now.1, "seed {seed}, life {life}, step {step}");
                    }
                }
                let image = zone.snapshot_image();
                drop(blocks);
                zone = Zone::from_bytes(&image, &OpenOptions::default()).unwrap();
            }
        }
    }
}
