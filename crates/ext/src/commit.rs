//! Making what has run durable: commits, checkpoints, and who does them in the background.
//!
//! **Data before metadata, without metadata waiting for data** (FSMAC III.C): bytes join the transaction that maps them, or are on the disk
//! before it runs ([`crate::store`]); so a commit waits for nothing but its fence.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use vfs::{Error, Result};

use crate::home::{Above, Home, Transaction};
use crate::volume::Volume;

impl Volume {
    /// Makes all transactions up to `number` durable. Called without any of the volume's locks.
    pub(crate) fn commit(&self, number: u64) -> Result<()> {
        match &self.home {
            Some(home) => home.commit(self, number),
            None => Err(Error::ReadOnly),
        }
    }

    /// Makes everything that has run durable.
    pub(crate) fn commit_all(&self) -> Result<()> {
        self.commit(self.core.store.running().0)
    }

    /// Commits if so much has run that its record would not fit otherwise. Called without locks, behind operations.
    pub(crate) fn commit_if_large(&self) -> Result<()> {
        let Some(home) = &self.home else { return Ok(()) };
        let (number, bytes) = self.core.store.running();
        if bytes > home.record_bytes_max() { home.commit(self, number) } else { Ok(()) }
    }

    /// Empties the log: what it has of files goes to the disk, what it has of metadata is durable in its frames.
    pub fn checkpoint(&self) -> Result<()> {
        match &self.home {
            Some(home) => home.checkpoint(self),
            None => Ok(()),
        }
    }

    /// What the background does each time: everything that has waited goes where it belongs.
    fn tend(&self, home: &Home) -> Result<()> {
        self.write_out_all()?;
        self.commit_all()?;
        if home.is_checkpoint_due() { home.checkpoint(self) } else { Ok(()) }
    }
}

/// What a volume in use takes, and how far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Transactions committed since the disk was attached.
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
}

impl Volume {
    /// What the volume takes, and how far it is; zeros if its disk is not attached.
    pub fn stats(&self) -> Stats {
        let Some(home) = &self.home else { return Stats::default() };
        let (transactions, log_used_bytes, log_bytes) = home.progress();
        let frames = home.frames.counts();
        Stats {
            transactions,
            log_bytes,
            log_used_bytes,
            frames: frames.frames,
            frames_used: frames.used,
            frames_dirty: frames.dirty,
            table_bytes: home.frames.dram_bytes(),
            pages_unsaved: self.files.unsaved(),
        }
    }
}

impl Above for Volume {
    fn take(&self) -> Option<Transaction> {
        let _alone = self.tree.write();
        let mut transaction = self.core.store.take_running()?;
        transaction.ranges = self.core.space.take_freed();
        Some(transaction)
    }

    fn settled(&self, transaction: &Transaction) {
        self.core.store.settled(transaction);
        // Before their blocks are given out.
        self.files.dropped.lock().retain(|page| page.by > transaction.number);
        self.core.space.reusable(&transaction.ranges);
    }

    fn drain(&self, number: u64) -> Result<()> {
        self.drain_files(number)
    }

    fn retired(&self, number: u64) {
        self.retired_files(number);
    }
}

/// A thread that commits every so often and keeps the log from filling, as long as this lives.
pub struct Background {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Signal {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Background {
    /// Begins to tend `volume` every `interval`.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn begin(volume: &Arc<Volume>, interval: Duration) -> std::io::Result<Background> {
        let (signal, volume) = (Arc::new(Signal::default()), Arc::downgrade(volume));
        let seen = signal.clone();
        let run = move || loop {
            {
                let mut ended = seen.ended.lock();
                if !*ended {
                    seen.changed.wait_for(&mut ended, interval);
                }
                if *ended {
                    return;
                }
            }
            let Some(volume) = volume.upgrade() else { return };
            if let Some(home) = &volume.home {
                // What failed is there still, and is tried again; who syncs is told.
                drop(volume.tend(home));
            }
        };
        let thread = std::thread::Builder::new().name("ext commits".into()).spawn(run)?;
        Ok(Background { signal, thread: Some(thread) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        *self.signal.ended.lock() = true;
        self.signal.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
