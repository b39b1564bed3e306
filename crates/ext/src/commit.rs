//! Making what has run durable: commits and checkpoints.
//!
//! **Data before metadata, without metadata waiting for data** (FSMAC III.C): bytes join the transaction that maps them, or are on the disk
//! before it runs ([`crate::store`]); so a commit waits for nothing but its fence.

use vfs::{Error, Result};

use crate::failure::Failure;
use crate::home::{Above, Home, Transaction};
use crate::volume::Volume;
use crate::work::Task;

impl Volume {
    /// Makes all transactions up to `number` durable. Called without any of the volume's locks.
    pub(crate) fn commit(&self, number: u64) -> Result<()> {
        match &self.home {
            Some(home) => home.commit(self, number),
            None => Err(Error::ReadOnly),
        }
    }

    /// Makes everything durable that has run: all that returned, but for bytes of files that were neither synced nor
    /// [written out](Volume::write_out_all).
    ///
    /// # Errors
    /// What the medium says.
    pub fn commit_all(&self) -> Result<()> {
        self.commit(self.core.store.running().number)
    }

    /// Commits if so much has run that its record would not fit otherwise, or not into the frames. Called without locks, behind operations.
    pub(crate) fn commit_if_large(&self) -> Result<()> {
        let Some(home) = &self.home else { return Ok(()) };
        let running = self.core.store.running();
        let is_large = running.bytes > home.record_bytes_max() || running.blocks > home.record_blocks_max();
        if is_large { home.commit(self, running.number) } else { Ok(()) }
    }

    /// Whether there is so much in the log that a checkpoint is due.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        self.home.as_ref().is_some_and(Home::is_checkpoint_due)
    }

    /// Sees to it, before an operation that is to be durable when it returns, that the log has room: an operation that the disk keeps from being made
    /// durable is better not done. Called without locks.
    ///
    /// # Errors
    /// What the disk says.
    pub(crate) fn make_log_ready(&self) -> Result<()> {
        match &self.home {
            Some(home) if !home.has_room() => {
                self.empty_full_half()?;
                self.commit_all()
            }
            _ => Ok(()),
        }
    }

    /// Empties the half of the log that is full, if one is.
    pub(crate) fn empty_full_half(&self) -> Result<()> {
        match &self.home {
            Some(home) if home.has_full_half() => home.empty_half(self),
            _ => Ok(()),
        }
    }

    /// Empties the older half of the log that is in use.
    ///
    /// # Errors
    /// What the disk says: the log has then what it had.
    pub fn empty_half(&self) -> Result<()> {
        self.home.as_ref().map_or(Ok(()), |home| home.empty_half(self))
    }

    /// Empties the log: what it has of files goes to the disk, what it has of metadata is durable in its frames.
    pub fn checkpoint(&self) -> Result<()> {
        match &self.home {
            Some(home) => home.checkpoint(self),
            None => Ok(()),
        }
    }
}

/// What a volume in use takes, and how far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of the last transaction committed since the disk was attached: as many, and those that a crash tore.
    pub transactions: u64,
    /// Bytes of a half of the log, and of the running one those that are filled.
    pub log_bytes: u64,
    /// Filled.
    pub log_used_bytes: u64,
    /// Blocks of metadata that the NVM has room for.
    pub frames: u64,
    /// Those that it holds.
    pub frames_used: u64,
    /// Those of which the disk has other bytes.
    pub frames_dirty: u64,
    /// DRAM for finding them.
    pub table_bytes: u64,
    /// Blocks of files that are nowhere but in DRAM.
    pub pages_unsaved: u64,
    /// Blocks of files that DRAM has because the log has something of them that the disk has not.
    pub pages_synced: u64,
    /// Blocks of files that are in NVM because the disk refuses them.
    pub blocks_refused: u64,
    /// DRAM that blocks of files may take as the disk has them, bytes.
    pub clean_limit_bytes: u64,
    /// That they take.
    pub clean_bytes: u64,
    /// Blocks of files that were read from there.
    pub clean_hits: u64,
    /// Blocks of files that were not there when they were read.
    pub clean_misses: u64,
}

impl Volume {
    /// What the volume takes, and how far it is; zeros if its disk is not attached.
    pub fn stats(&self) -> Stats {
        let Some(home) = &self.home else { return Stats::default() };
        let (transactions, log_used_bytes, log_bytes) = home.progress();
        let frames = home.frames.counts();
        let clean = self.core.store.clean.counts();
        Stats {
            transactions,
            log_bytes,
            log_used_bytes,
            frames: frames.frames,
            frames_used: frames.used,
            frames_dirty: frames.dirty,
            table_bytes: home.frames.dram_bytes(),
            pages_unsaved: self.files.unsaved(),
            pages_synced: self.files.synced(),
            blocks_refused: frames.refused,
            clean_limit_bytes: clean.limit_bytes,
            clean_bytes: clean.bytes,
            clean_hits: clean.hits,
            clean_misses: clean.misses,
        }
    }
}

impl Above for Volume {
    fn failure(&self) -> &Failure {
        Volume::failure(self)
    }

    fn take(&self) -> Result<Option<Transaction>> {
        let _alone = self.tree.write();
        self.failure().check()?;
        debug_assert!(self.core.store.is_within_half(), "a record has room in half of the log");
        let Some(mut transaction) = self.core.store.take_running() else { return Ok(None) };
        transaction.ranges = self.core.space.take_freed();
        Ok(Some(transaction))
    }

    fn settled(&self, transaction: &Transaction) {
        self.core.store.settled(transaction.number);
        // Before their blocks are given out; in this order ([`Volume::keep_refused`]).
        self.files.dropped.lock().settle(transaction.number);
        if let Some(home) = &self.home {
            home.frames.forget_refused(transaction.ranges.iter().cloned());
        }
        self.core.space.reusable(&transaction.ranges);
    }

    fn drain(&self, number: u64) -> Result<()> {
        self.drain_files(number)
    }

    fn retired(&self, number: u64) {
        self.retired_files(number);
    }

    fn half_filled(&self) {
        self.work.ask(Task::EmptyLog);
    }
}

#[cfg(test)]
mod tests {
    use nvm::{OpenOptions as ZoneOptions, VolumeKind, Zone};
    use vfs::{Caller, FileSystem, OpenFlags, ROOT_INO};

    use super::*;
    use crate::core::inode;
    use crate::home::Room;
    use crate::options::Options;
    use crate::store::LOG_FULL;
    use crate::support::Image;

    /// Whoever has looked at what has run before, or has not: an operation begins only if its record has room. Who has a file's lock, which keeps the
    /// log from being drained, is told.
    #[test]
    fn an_operation_begins_only_if_there_is_room_for_it() {
        let image = Image::make("64M", &["-t", "ext4", "-b", "1024", "-I", "256"]);
        let zone = Zone::anonymous(12 << 20, &ZoneOptions::default()).unwrap();
        let region = zone.create_volume("disk", VolumeKind::Ext, Some(8 << 20)).unwrap();
        let room = Room { frames: u64::MAX, half_bytes: 128 << 10 };
        crate::attach_within(&region, &image.disk(false), Some(room)).unwrap();
        let volume = Volume::mount(&region, image.disk(false), &Options::default()).unwrap();
        let root = Caller::root();
        let rw = OpenFlags::READ | OpenFlags::WRITE;
        let made = (0..400u32).map(|n| {
            let file = volume.create(&root, ROOT_INO, n.to_string().as_bytes(), 0o644, rw).unwrap();
            if n == 0 {
                volume.write(&root, file.handle, 0, b"synced").unwrap();
                volume.fsync(file.handle, false).unwrap();
            }
            volume.release(file.handle).unwrap();
            inode::from_vfs(&volume.core.superblock, file.attr.ino).unwrap()
        });
        let numbers: Vec<u32> = made.collect();
        let change = |n: u32| {
            volume.change(|core| {
                let mut inode = inode::read(core, numbers[n as usize % numbers.len()])?;
                inode.uid = n + 1;
                inode::write(core, &inode)
            })
        };
        let most = volume.core.store.most().bytes;
        let held = volume.files.get(numbers[0]);
        let lock = held.alone();
        let before = volume.stats().transactions;
        let refused = (0..100_000).find(|n| {
            let changed = change(*n);
            assert!(volume.core.store.running().bytes <= 2 * most + 1024);
            changed.inspect_err(|error| assert_eq!(*error, LOG_FULL)).is_err()
        });
        assert!(volume.stats().transactions > before, "what the log has room for is committed");
        drop(lock);
        let refused = refused.expect("both halves are full in the end");
        volume.with_log(|| change(refused)).unwrap();
        volume.commit_all().unwrap();
        assert!(crate::check_volume(&volume).unwrap().is_clean());
        drop(held);
        volume.detach().unwrap();
        drop(volume);
        image.fsck();
    }
}
