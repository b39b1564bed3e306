//! What the log has is applied again: whenever a volume is opened, so after a crash, too.
//!
//! Metadata goes to its frames in the order of transactions. Bytes of files go to the disk in its own order, neighbours as one request and several in
//! flight. Of them no more is in DRAM than where they are in the log, of a bounded number: the log is passed over once for each **window** of
//! the disk's blocks that has so many, from the lowest on.
//!
//! **Cut short anywhere, it is done again and gives the same.** The log is not changed before all of it is durable elsewhere, and what it has of a block
//! is whole or lies on what the disk, or a frame, has had durably since before.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use disk::{Buffer, Disk, Purpose, Queue, Write};
use nvm::{Durable, Region};

use zerocopy::IntoBytes;

use crate::error::Error;
use crate::fault::{Fault, planted};
use crate::home::{Area, FoundLog, Frames, Item, Logged};
use crate::kind::Kind;
use crate::superblock::{self, RawSuperblock};

/// Items of the log that DRAM has the places of at a time: about 100 bytes each, if each is of another block.
const ITEMS_MAX: usize = 1 << 18;
/// Bytes of a request.
const REQUEST_MAX: u64 = 1 << 20;
/// Bytes that are read, changed and written together.
const BATCH: u64 = 8 << 20;
/// Requests in flight.
const DEPTH: usize = 8;

/// What opening a volume found in its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Transactions that were committed and not in the frames for certain.
    pub transactions: u64,
    /// Bytes of files among them, which are on the disk now.
    pub data_bytes: u64,
    /// Bytes of the log that they took.
    pub log_bytes: u64,
    /// Files without a name that were removed.
    pub orphans: u64,
    /// How long it all took.
    pub duration: Duration,
}

/// Applies what the log has, but for what is damaged, and empties it. Cut short, it is done again and gives the same.
pub(crate) fn replay(
    region: &Region,
    area: &Area,
    log: &FoundLog<'_>,
    frames: &Frames,
    disk: &Arc<Disk>,
) -> Result<Replayed, Error> {
    replay_by(region, area, log, frames, disk, ITEMS_MAX)
}

/// The same, of which DRAM has no more than so many items at a time.
fn replay_by(
    region: &Region,
    area: &Area,
    log: &FoundLog<'_>,
    frames: &Frames,
    disk: &Arc<Disk>,
    items_max: usize,
) -> Result<Replayed, Error> {
    let mut replayed = Replayed::default();
    // A block that a later transaction gives up may be a file's on the disk by now: no frame with what it was goes there, whatever the room.
    let mut given_up = HashMap::<u64, u64>::new();
    log.each(|logged| {
        given_up.extend(logged.freed.iter().map(|number| (*number, logged.number)));
        Ok(())
    })?;
    frames.apply([], &given_up.keys().copied().collect::<Vec<u64>>());
    let mut window = Window::from(0, area.block, items_max);
    log.each(|mut logged| {
        logged.blocks.retain(|(number, ..)| given_up.get(number).is_none_or(|by| *by <= logged.number));
        replayed.transactions += 1;
        replayed.log_bytes += logged.bytes;
        replayed.data_bytes += logged.items.iter().map(|item| u64::from(item.length)).sum::<u64>();
        window.pass(&logged);
        // Their frames are cleared behind a checkpoint; what the log has for them later is another's.
        frames.forget_refused(logged.ranges.iter().cloned());
        apply_metadata(area, frames, &logged)
    })?;
    if planted(Fault::DataNotReplayed) {
        window = Window::from(0, area.block, items_max);
    }
    if planted(Fault::ReplayRetiredFirst) {
        let nothing = region.fence(nvm::Flushed::none());
        area.retire(region, log.last_epoch(), nothing).ignore();
    }
    let mut data = Data { region, area, frames, disk, queue: None };
    loop {
        data.write(&window)?;
        if window.blocks.end == u64::MAX {
            break;
        }
        window = Window::from(window.blocks.end, area.block, items_max);
        log.each(|logged| {
            window.pass(&logged);
            Ok(())
        })?;
    }
    if !planted(Fault::ReplayDiskNotFlushed) {
        disk.flush()?;
    }
    if log.damage().is_some() {
        note_damage(area, frames)?;
    }
    let in_frames: Durable = frames.checkpoint();
    // What could not be read of the log was not empty.
    region.check().map_err(|error| vfs::Error::Io(error.to_string()))?;
    area.retire(region, log.last_epoch(), in_frames).ignore();
    Ok(replayed)
}

/// Has the superblock say that there are errors, before the log that shows it is emptied.
fn note_damage(area: &Area, frames: &Frames) -> Result<(), Error> {
    let number = superblock::AT / area.block;
    let at = (superblock::AT % area.block) as usize..;
    reserve(frames, [number].into_iter())?;
    let mut block = vec![0; area.block as usize];
    let is_framed = frames.holds(number);
    frames.current(number, &mut block)?;
    let mut raw = match is_framed {
        true => RawSuperblock::of_block(&block, area.block),
        // The disk's has the mark.
        false => RawSuperblock::of_bytes(&area.superblock),
    };
    raw.set_errors();
    raw.seal();
    block[at][..superblock::BYTES].copy_from_slice(raw.as_bytes());
    frames.apply([(number, Kind::Superblock, u64::MAX, &block[..])], &[]);
    Ok(())
}

/// Sees to it that so many blocks can be applied.
fn reserve(frames: &Frames, numbers: impl Iterator<Item = u64> + Clone) -> vfs::Result<()> {
    match frames.reserve(numbers.clone()) {
        Err(vfs::Error::NoSpace) => {
            // Frames of blocks that are gone are free behind a checkpoint, which takes nothing from the log.
            frames.checkpoint().ignore();
            frames.reserve(numbers)
        }
        other => other,
    }
}

/// Applies to frames what a record has of metadata.
fn apply_metadata(area: &Area, frames: &Frames, logged: &Logged) -> vfs::Result<()> {
    reserve(frames, logged.blocks.iter().map(|(number, ..)| *number))?;
    let mut images = Vec::new();
    for (number, kind, parts) in &logged.blocks {
        let mut image = vec![0; area.block as usize];
        let bits = parts.iter().fold(0, |bits, (n, _)| bits | 1u64 << n);
        let whole = parts.len() as u64 * area.part == area.block;
        // What a frame holds is not looked at: some of it may be from transactions that come later in the log.
        if !whole && !frames.holds(*number) {
            frames.current(*number, &mut image)?;
        }
        for (n, bytes) in parts {
            image[n * area.part as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        images.push((*number, *kind, bits, image));
    }
    let images = images.iter().map(|(number, kind, bits, image)| (*number, *kind, *bits, &image[..]));
    frames.apply(images, &logged.freed);
    Ok(())
}

/// What the log has of files for some of the disk's blocks.
struct Window {
    /// Which: the end is lower the more items there are.
    blocks: Range<u64>,
    block_bytes: u64,
    /// Items that it has at most, if it has more than one block.
    most: usize,
    /// In the order of transactions.
    items: BTreeMap<u64, Vec<Item>>,
    count: usize,
}

impl Window {
    fn from(block: u64, block_bytes: u64, most: usize) -> Window {
        Window { blocks: block..u64::MAX, block_bytes, most, items: BTreeMap::new(), count: 0 }
    }

    /// Takes of a record what is in the window. Records come in their order.
    fn pass(&mut self, logged: &Logged) {
        for item in logged.items.iter().filter(|item| self.blocks.contains(&item.block)) {
            let items = self.items.entry(item.block).or_default();
            let is_whole = item.fresh || u64::from(item.length) == self.block_bytes;
            // Nothing that the block was before counts.
            if is_whole && !planted(Fault::ItemsBackwards) {
                self.count -= items.len();
                items.clear();
            }
            items.push(*item);
            self.count += 1;
        }
        for range in &logged.ranges {
            let dropped: Vec<u64> = self.items.range(range.clone()).map(|(block, _)| *block).collect();
            for block in dropped {
                self.count -= self.items.remove(&block).map_or(0, |items| items.len());
            }
        }
        while self.count > self.most
            && self.items.len() > 1
            && let Some((block, items)) = self.items.pop_last()
        {
            self.blocks.end = block;
            self.count -= items.len();
        }
    }
}

/// Neighbours on the disk, and what the log has for them.
struct Run<'a> {
    start: u64,
    items: Vec<&'a [Item]>,
    bytes: Buffer,
}

/// Brings bytes of files to the disk.
struct Data<'a> {
    region: &'a Region,
    area: &'a Area,
    frames: &'a Frames,
    disk: &'a Arc<Disk>,
    /// Made when there is more than one request at a time.
    queue: Option<Queue>,
}

impl Data<'_> {
    /// Writes what a window has. Durable behind a flush.
    fn write(&mut self, window: &Window) -> Result<(), Error> {
        let block = self.area.block;
        let (most, batch) = ((REQUEST_MAX / block).max(1) as usize, BATCH / block);
        let mut runs: Vec<Run<'_>> = Vec::new();
        let mut blocks = 0;
        for (&number, items) in &window.items {
            match runs.last_mut() {
                Some(run) if run.start + run.items.len() as u64 == number && run.items.len() < most => {
                    run.items.push(items);
                }
                _ => {
                    if blocks >= batch {
                        self.write_runs(std::mem::take(&mut runs))?;
                        blocks = 0;
                    }
                    runs.push(Run { start: number, items: vec![items], bytes: Buffer::zeroed(0) });
                }
            }
            blocks += 1;
        }
        self.write_runs(runs)
    }

    fn write_runs(&mut self, mut runs: Vec<Run<'_>>) -> Result<(), Error> {
        self.fill(&mut runs)?;
        let places: Vec<Range<u64>> =
            runs.iter().map(|run| run.start..run.start + run.items.len() as u64).collect();
        let mut refused = Vec::new();
        for (write, error) in self.submit(runs) {
            if error.is_vanished() {
                return Err(error.into());
            }
            refused.extend(self.write_blocks(&write)?);
        }
        if self.frames.has_refused() {
            // What the disk took. Their entries go behind the flush.
            let taken = places.into_iter().flatten().filter(|block| !refused.contains(block));
            self.frames.forget_refused(taken.map(|block| block..block + 1));
        }
        Ok(())
    }

    /// Makes of what blocks hold and what the log has for them what they are to hold.
    fn fill(&self, runs: &mut [Run<'_>]) -> Result<(), Error> {
        // Requests for what the disk has are waited for side by side.
        let threads = DEPTH.min(runs.iter().filter(|run| self.base(run).is_some()).count());
        if threads < 2 || self.disk.is_immediate() {
            return runs.iter_mut().try_for_each(|run| self.fill_run(run));
        }
        let rest = parking_lot::Mutex::new(runs.iter_mut());
        let fill_some = || {
            loop {
                let Some(run) = rest.lock().next() else { return Ok(()) };
                self.fill_run(run)?;
            }
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(fill_some)).collect();
            let mut result = fill_some();
            for other in others {
                result = result.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            result
        })
    }

    /// Which blocks of a run are needed as they are: from the first to the last of which the log has not all.
    fn base(&self, run: &Run<'_>) -> Option<Range<usize>> {
        let is_part = |items: &&[Item]| !items[0].fresh && u64::from(items[0].length) != self.area.block;
        let first = run.items.iter().position(is_part)?;
        let last = run.items.iter().rposition(is_part)?;
        Some(first..last + 1)
    }

    fn fill_run(&self, run: &mut Run<'_>) -> Result<(), Error> {
        let block = self.area.block as usize;
        run.bytes = Buffer::zeroed(run.items.len() * block);
        if let Some(base) = self.base(run) {
            let into = &mut run.bytes[base.start * block..base.end * block];
            self.read(run.start + base.start as u64, into)?;
        }
        for (items, bytes) in run.items.iter().zip(run.bytes.chunks_mut(block)) {
            let apply = |item: &Item| {
                if item.fresh {
                    bytes.fill(0);
                }
                let into = &mut bytes[item.offset as usize..][..item.length as usize];
                self.region.read(item.at, into);
            };
            match planted(Fault::ItemsBackwards) {
                true => items.iter().rev().for_each(apply),
                false => items.iter().for_each(apply),
            }
        }
        self.region.check().map_err(|error| vfs::Error::Io(error.to_string()))?;
        Ok(())
    }

    /// Reads blocks from where they are: frames have those that the disk refused, and what it may not give, either.
    fn read(&self, start: u64, into: &mut [u8]) -> Result<(), Error> {
        let block = self.area.block;
        let end = start + into.len() as u64 / block;
        let mut at = start;
        for (number, bytes) in self.frames.refused_among(start..end)? {
            let [from, here] = [at, number].map(|block_| ((block_ - start) * block) as usize);
            self.disk.read(Purpose::Data, at * block, &mut into[from..here])?;
            into[here..][..bytes.len()].copy_from_slice(&bytes);
            at = number + 1;
        }
        let from = ((at - start) * block) as usize;
        Ok(self.disk.read(Purpose::Data, at * block, &mut into[from..])?)
    }

    /// Writes runs; gives back what could not be written.
    fn submit(&mut self, runs: Vec<Run<'_>>) -> Vec<disk::Unwritten> {
        let block = self.area.block;
        let mut failed = Vec::new();
        if runs.is_empty() {
            return failed;
        }
        let queue = self.queue.get_or_insert_with(|| Queue::new(self.disk.clone(), DEPTH));
        for run in runs {
            let write = Write { purpose: Purpose::Data, at: run.start * block, buffer: run.bytes, token: 0 };
            failed.extend(queue.submit(write).err().map(|unwritten| *unwritten));
        }
        failed.extend(queue.drain().err().unwrap_or_default());
        failed
    }

    /// Writes what could not be written block by block; gives those that the disk refuses, which are in frames then.
    fn write_blocks(&self, write: &Write) -> Result<Vec<u64>, Error> {
        let block = self.area.block;
        let mut refused = Vec::new();
        for (bytes, number) in write.buffer.chunks(block as usize).zip(write.at / block..) {
            match self.disk.write(Purpose::Data, number * block, bytes) {
                Ok(()) => {}
                Err(error) if error.is_vanished() || !self.frames.keep(number, bytes) => {
                    return Err(error.into());
                }
                Err(_) => refused.push(number),
            }
        }
        Ok(refused)
    }
}

#[cfg(test)]
mod tests {
    use disk::Memory;
    use nvm::{OpenOptions, VolumeKind, Zone};
    use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO};

    use super::*;
    use crate::options::Options;
    use crate::support::Image;
    use crate::support::random::Random;
    use crate::volume::Volume;

    /// What the power left: a zone, a disk, and what its only file has to hold.
    fn left_by_cut(random: &mut Random) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let image = Image::make("16M", &["-t", "ext4", "-b", "1024"]);
        let zone = Zone::anonymous(12 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
        let memory = Arc::new(Memory::new(image.bytes(), false));
        let disk = Arc::new(Disk::over("disk".into(), memory.clone()));
        crate::attach(&region, &disk).unwrap();
        let volume = Volume::mount(&region, disk, &Options::default()).unwrap();
        let (root, flags) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
        let handle = volume.create(&root, ROOT_INO, b"file", 0o644, flags).unwrap().handle;
        let mut expected = vec![1; 200 << 10];
        volume.write(&root, handle, 0, &expected).unwrap();
        volume.fsync(handle, false).unwrap();
        volume.checkpoint().unwrap();
        for n in 0..300 {
            let at = random.below(190 << 10) as usize;
            let bytes = vec![n as u8; 1 + random.below(4_000) as usize];
            volume.write(&root, handle, at as u64, &bytes).unwrap();
            volume.fsync(handle, false).unwrap();
            expected[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        (zone.snapshot_image(), memory.image(), expected)
    }

    /// However small the windows are, and whatever the disk refuses, once or for ever.
    #[test]
    fn what_the_log_has_comes_to_the_disk_by_windows() {
        let mut random = Random::new(9);
        let (nvm, image, expected) = left_by_cut(&mut random);
        let mut images = Vec::new();
        for (items_max, refuses) in [(1 << 20, false), (50, false), (1, false), (50, true), (1, true)] {
            let zone = Zone::from_bytes(&nvm, &OpenOptions::default()).unwrap();
            let region = zone.volume("disk").unwrap();
            let memory = Arc::new(Memory::new(image.clone(), false));
            let disk = Arc::new(Disk::over("disk".into(), memory.clone()));
            let area = Area::read(&region).unwrap().unwrap();
            let place =
                image.windows(1024).step_by(1024).position(|block| block == [1; 1024]).unwrap() as u64;
            if refuses {
                memory.refuse((place + 20) * 1024..(place + 40) * 1024);
            }
            let frames = Frames::open(region.clone(), area.clone(), disk.clone()).unwrap();
            let log = FoundLog::of(&region, &area);
            let replayed = replay_by(&region, &area, &log, &frames, &disk, items_max).unwrap();
            assert!(replayed.data_bytes > 300_000, "{replayed:?}");
            assert_eq!(frames.refused_count() > 0, refuses);
            drop(frames);
            if !refuses {
                images.push(memory.image());
            }
            let volume = Volume::mount(&region, disk, &Options::default()).unwrap();
            let file = volume.lookup(&Caller::root(), ROOT_INO, b"file").unwrap();
            let handle = volume.open(&Caller::root(), file.ino, OpenFlags::READ).unwrap();
            let mut found = vec![0; expected.len()];
            assert_eq!(volume.read(handle, 0, &mut found).unwrap(), expected.len());
            assert!(found == expected, "{items_max} items at a time, {refuses}");
            assert_eq!(volume.replayed().log_bytes, 0, "all of it was durable");
        }
        assert!(images.windows(2).all(|pair| pair[0] == pair[1]));
    }

    /// The disk goes away between two windows: nothing is retired, and it is done again.
    #[test]
    fn a_recovery_that_the_disk_ends_is_done_again() {
        let mut random = Random::new(10);
        let (nvm, image, expected) = left_by_cut(&mut random);
        let zone = Zone::from_bytes(&nvm, &OpenOptions::default()).unwrap();
        let region = zone.volume("disk").unwrap();
        let memory = Arc::new(Memory::new(image, false));
        for requests in [0, 1, 2, 5, 9] {
            let left = std::sync::atomic::AtomicI64::new(requests);
            let goes = disk::Recorded::new(memory.clone(), {
                let memory = memory.clone();
                move |_| {
                    if left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) <= 0 {
                        memory.vanish(true);
                    }
                }
            });
            let disk = Arc::new(Disk::over("disk".into(), Arc::new(goes)));
            let area = Area::read(&region).unwrap().unwrap();
            let frames = Frames::open(region.clone(), area.clone(), disk.clone()).unwrap();
            let log = FoundLog::of(&region, &area);
            assert!(replay_by(&region, &area, &log, &frames, &disk, 20).is_err(), "{requests}");
            memory.vanish(false);
        }
        let disk = Arc::new(Disk::over("disk".into(), memory.clone()));
        let volume = Volume::mount(&region, disk, &Options::default()).unwrap();
        assert!(volume.replayed().log_bytes > 0);
        let file = volume.lookup(&Caller::root(), ROOT_INO, b"file").unwrap();
        let handle = volume.open(&Caller::root(), file.ino, OpenFlags::READ).unwrap();
        let mut found = vec![0; expected.len()];
        assert_eq!(volume.read(handle, 0, &mut found).unwrap(), expected.len());
        assert!(found == expected);
    }
}
