//! A native volume, mounted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::core::{Core, NextLog, Task};
use crate::fault::{Fault, planted};
use crate::options::LISTED_CHANGE;
use crate::recovery::{self, Rest};
use crate::superblock::Superblock;
use crate::{Difference, Error, MountOptions, Recovery, Snapshot, SnapshotUsage, Stats};

/// A mounted native volume. Dropping it without [`Volume::close`] closes it as well.
pub struct Volume {
    pub(crate) core: Arc<Core>,
    recovery: Recovery,
    checkpointer: Mutex<Option<JoinHandle<()>>>,
}

impl Volume {
    /// Opens the volume in `region`, recovering it if it was not closed.
    pub fn open(region: nvm::Region, options: &MountOptions) -> std::result::Result<Volume, Error> {
        let superblock = Superblock::read(&region)?;
        let (core, recovery) = recovery::open(region, &superblock, options, Rest::Keep)?;
        let core = Arc::new(core);
        if core.snapshots.read().has_changes() {
            core.pressure.raise(); // a removal goes on
        }
        let checkpointer = (!options.read_only && options.background).then(|| {
            let (core, interval) = (core.clone(), options.commit_interval);
            std::thread::Builder::new()
                .name("checkpoint".into())
                .spawn(move || checkpoint_loop(&core, interval))
        });
        let checkpointer = checkpointer
            .transpose()
            .map_err(|error| Error::Volume(vfs::Error::Io(format!("no thread for checkpoints: {error}"))))?;
        Ok(Volume { core, recovery, checkpointer: Mutex::new(checkpointer) })
    }

    /// Ends it cleanly: what has no name is removed, the last checkpoint published, the volume marked clean. Further
    /// changes fail with `EROFS`. Closing twice does nothing.
    pub fn close(&self) -> std::result::Result<(), Error> {
        if self.core.options.read_only || self.core.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.core.is_unchanged() {
            self.stop();
            return Ok(());
        }
        self.core.begin_closing();
        for ino in self.core.orphan_list().unwrap_or_default() {
            if planted(Fault::OrphanNotReclaimed) {
                break;
            }
            // An open file goes, too: with the volume, its handles end.
            self.core.handles.forget(ino);
            if let Err(error) = self.core.reclaim(ino) {
                tracing::error!("inode {ino}, which has no name, stays: {error}");
            }
        }
        self.stop();
        // What cannot be read any more reads as zeros, which look like damage of any kind.
        Ok(self.core.finish().map_err(|error| self.core.medium.check_media().err().unwrap_or(error))?)
    }

    /// Lets go of the volume as a server that is killed does: nothing more is written, and the next open recovers it.
    /// For tests and measurements.
    pub fn abandon(self) {
        self.stop();
    }

    /// Ends changes, and the thread that makes checkpoints.
    fn stop(&self) {
        self.core.begin_closing();
        self.core.closed.store(true, Ordering::Relaxed);
        self.core.pressure.raise();
        if self.checkpointer.lock().take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the checkpoint thread panicked");
        }
    }

    /// What opening the volume had to do.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Why nothing can be changed any more, after a failure that may have left memory and medium apart, or on a volume
    /// whose log could not be replayed to its end.
    pub fn failure(&self) -> Option<vfs::Error> {
        self.core.failure().cloned()
    }

    /// Makes and publishes a checkpoint of everything that returned before, and then removes what had found no room to be
    /// removed.
    pub fn checkpoint(&self) -> std::result::Result<(), Error> {
        self.core.checkpoint(NextLog::WithEpoch)?;
        self.core.reclaim_owed();
        Ok(())
    }

    /// Makes ready for the next checkpoint what was changed since the last one, as the volume does by itself in the
    /// background with what it has left alone for a while: a checkpoint, or a snapshot, that follows takes less time.
    pub fn seal(&self) {
        self.core.seal_all();
    }

    /// Takes a snapshot of the volume as it is: all operations that have returned are in it, none that begins later is.
    /// It is durable when this returns.
    pub fn take_snapshot(&self, name: &str, comment: &str) -> std::result::Result<Snapshot, Error> {
        let _op = nvm::operation("take-snapshot");
        self.core.take_snapshot(name, comment)
    }

    /// The snapshots that are kept, oldest first; of a damaged list, those that can be read.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.core.list_snapshots()
    }

    /// An error if the list of snapshots is damaged, and there may be more than it tells of.
    pub fn check_snapshots(&self) -> std::result::Result<(), Error> {
        self.core.check_list()
    }

    /// The snapshot called `name`.
    pub fn snapshot(&self, name: &str) -> std::result::Result<Snapshot, Error> {
        self.core.snapshot(name)
    }

    /// Whether anything has changed since the snapshot called `name` was taken: makes a checkpoint and compares two
    /// pointers.
    pub fn has_changed_since(&self, name: &str) -> std::result::Result<bool, Error> {
        self.core.has_changed_since(name)
    }

    /// What the snapshot called `name` takes; in time that follows how much it differs from its neighbours.
    pub fn snapshot_usage(&self, name: &str) -> std::result::Result<SnapshotUsage, Error> {
        self.core.snapshot_usage(name)
    }

    /// What is different in snapshot `to`, or in what the volume is now, from what it is in snapshot `from`; by path. In
    /// time that follows how much it is.
    pub fn diff(&self, from: &str, to: Option<&str>) -> std::result::Result<Vec<Difference>, Error> {
        let _op = nvm::operation("diff");
        self.core.diff(from, to)
    }

    /// Removes a snapshot, durably. Its space comes back in the background, also if a power cut interrupts that.
    pub fn remove_snapshot(&self, name: &str) -> std::result::Result<(), Error> {
        let _op = nvm::operation("remove-snapshot");
        self.core.remove_snapshot(name)
    }

    /// Waits until the space of all removed snapshots has come back.
    pub fn finish_removals(&self) -> std::result::Result<(), Error> {
        let _op = nvm::operation("remove-snapshot");
        self.core.finish_removals()
    }

    /// The snapshot called `name`, if the volume can return to it by [`crate::roll_back`] once it is closed.
    pub fn check_roll_back(&self, name: &str, discard_newer: bool) -> std::result::Result<Snapshot, Error> {
        self.core.check_roll_back(name, discard_newer).map(|(snapshot, _)| snapshot)
    }

    /// Makes a volume of `to`, whatever was there, with the tree of the snapshot called `name`, by copying it. Calls
    /// `progress` with the bytes copied so far, and those to copy.
    pub fn clone_snapshot(
        &self,
        name: &str,
        to: &nvm::Region,
        progress: &mut dyn FnMut(u64, u64),
    ) -> std::result::Result<(), Error> {
        self.core.clone_snapshot(name, to, progress)
    }

    /// Keeps a snapshot from being removed until `tag` is released.
    pub fn hold_snapshot(&self, name: &str, tag: &str) -> std::result::Result<(), Error> {
        let _op = nvm::operation("hold-snapshot");
        self.core.hold_snapshot(name, tag)
    }

    /// Takes a hold back.
    pub fn release_snapshot(&self, name: &str, tag: &str) -> std::result::Result<(), Error> {
        let _op = nvm::operation("release-snapshot");
        self.core.release_snapshot(name, tag)
    }

    /// Empties segments that are partly used, as far as that brings something, as the volume does by itself while few
    /// are empty. Returns how many it emptied.
    pub fn collect_garbage(&self) -> std::result::Result<u64, Error> {
        let _op = nvm::operation("collect-garbage");
        self.core.check_changeable()?;
        Ok(self.core.collect_garbage(u32::MAX)?)
    }

    /// Moves all that moves out of one segment of the Main Area; whether nothing of it is in use then.
    pub fn empty_segment(&self, segment: u32) -> std::result::Result<bool, Error> {
        let _op = nvm::operation("collect-garbage");
        self.core.check_changeable()?;
        if segment >= self.core.medium.geometry.segments {
            return Err(vfs::Error::Invalid.into());
        }
        Ok(self.core.empty_segment(segment)?)
    }

    /// Counters and sizes, now.
    pub fn stats(&self) -> Stats {
        let core = &self.core;
        let (_, blocks_free) = core.space();
        let (views, view_pages, view_tables) = core.views.cached();
        let (nat, nat_tables) = core.nodes.nat.cache_bytes();
        let (segments, segment_tables) = core.nodes.allocator.cache_bytes();
        let hints = core.nodes.hint_bytes();
        let epoch_nodes = core.nodes.nat.dirty_count() as u64;
        Stats {
            checkpoints: core.checkpoint_count(),
            log_bytes: core.journal.capacity(),
            log_used_bytes: core.journal.used_bytes(),
            transactions: core.journal.transactions(),
            cache_limit_bytes: core.options.cache_bytes,
            cache_bytes: nat + segments + hints + view_pages + epoch_nodes * LISTED_CHANGE,
            table_bytes: nat_tables + segment_tables + view_tables + core.locks.bytes(),
            nat_cache_bytes: nat,
            segment_cache_bytes: segments,
            hint_cache_bytes: hints,
            epoch_nodes,
            open_handles: core.handles.count() + core.views.open_handles(),
            snapshot_views: views,
            snapshot_cache_bytes: view_pages + view_tables,
            blocks_free,
            blocks_total: core.medium.geometry.main_blocks(),
            segments_empty: core.nodes.allocator.empty_segments().into(),
            segments_emptied: core.collector.emptied.load(Ordering::Relaxed),
        }
    }

    /// The region the volume lives in.
    pub fn region(&self) -> &nvm::Region {
        &self.core.medium.region
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!("closing the volume failed: {error}; the next mount recovers it");
        }
    }
}

/// Makes a checkpoint every `interval`, and when the log fills; and what it can of the next one before that.
fn checkpoint_loop(core: &Core, interval: Duration) {
    let next = || Instant::now().checked_add(interval);
    let mut due = next();
    // Nobody else makes checkpoints, or tells that none are made any more.
    let _unwinding = core.watch_over();
    loop {
        let task = core.pressure.wait(due);
        if core.closed.load(Ordering::Relaxed) {
            return;
        }
        if task == Task::Seal {
            core.seal_older(due);
            continue;
        }
        due = next();
        if let Err(error) = core.checkpoint(NextLog::WithEpoch) {
            tracing::error!("checkpoint failed: {error}");
            return;
        }
        core.reclaim_owed();
        if let Err(error) = core.collect_if_needed() {
            tracing::error!("garbage collection stopped: {error}");
        }
    }
}
