//! The volume of an arena, at work: mounted, and now and then closed and opened again.

use std::sync::Arc;

use nvm::Region;
use vfs::{Error, FileSystem, Result, Snapshots};

use crate::arena::Arena;
use crate::ground::{Chore, Ground};
use crate::subject::{Mounted, Promise, Subject};

pub(crate) struct Running {
    subject: &'static dyn Subject,
    promise: Promise,
    region: Region,
    beside: Option<Region>,
    mounted: Option<Box<dyn Mounted>>,
    /// Checkpoints of earlier mounts.
    checkpoints: u64,
}

impl Running {
    /// Opens the volume of `arena`.
    pub(crate) fn open(
        subject: &'static dyn Subject,
        promise: Promise,
        arena: &Arena,
    ) -> std::result::Result<Running, String> {
        Running::in_region(subject, promise, &arena.region, arena.beside.clone())
    }

    /// The same, of a volume that goes about everything as if others always wanted the same.
    pub(crate) fn open_crowded(
        subject: &'static dyn Subject,
        promise: Promise,
        arena: &Arena,
    ) -> std::result::Result<Running, String> {
        let mounted = Some(subject.open_crowded(&arena.region, promise)?);
        let (region, beside) = (arena.region.clone(), arena.beside.clone());
        Ok(Running { subject, promise, region, beside, mounted, checkpoints: 0 })
    }

    /// Opens the volume in `region`.
    pub(crate) fn in_region(
        subject: &'static dyn Subject,
        promise: Promise,
        region: &Region,
        beside: Option<Region>,
    ) -> std::result::Result<Running, String> {
        let mounted = Some(subject.open(region, promise)?);
        Ok(Running { subject, promise, region: region.clone(), beside, mounted, checkpoints: 0 })
    }

    fn mounted(&self) -> &dyn Mounted {
        self.mounted.as_deref().expect("it is mounted but while it is rolled back or cloned")
    }

    /// Checkpoints published since it was opened first.
    pub(crate) fn checkpoints(&self) -> u64 {
        self.checkpoints + self.mounted().checkpoints()
    }

    /// Ends it cleanly.
    pub(crate) fn close(mut self) -> std::result::Result<(), String> {
        self.mounted.take().map_or(Ok(()), |mounted| mounted.close())
    }

    /// Ends it as a power cut does.
    pub(crate) fn abandon(mut self) {
        if let Some(mounted) = self.mounted.take() {
            mounted.abandon();
        }
    }

    /// Does something while it is closed.
    fn closed(&mut self, what: impl FnOnce(&Running) -> Result<()>) -> Result<()> {
        // The last one is published by closing it.
        self.checkpoints = self.checkpoints() + 1;
        let damaged = |what: String| Error::Corrupt(what);
        self.mounted.take().map_or(Ok(()), |mounted| mounted.close()).map_err(damaged)?;
        let done = what(self);
        self.mounted = Some(self.subject.open(&self.region, self.promise).map_err(damaged)?);
        done
    }
}

impl Ground for Running {
    fn file_system(&self) -> &dyn FileSystem {
        self.mounted()
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.mounted().as_snapshots()
    }

    fn checkpoint(&self) -> Result<()> {
        self.mounted().checkpoint()
    }

    fn roll_back(&mut self, name: &str) -> Result<()> {
        self.closed(|this| this.subject.roll_back(&this.region, name))
    }

    fn clone_snapshot(&mut self, name: &str, mounted: bool) -> Result<()> {
        let to = self.beside.clone().ok_or(Error::Invalid)?;
        if mounted {
            return self.mounted().clone_snapshot(name, &to);
        }
        self.closed(|this| this.subject.clone_snapshot(&this.region, name, &to))
    }

    fn empty_segment(&self, segment: u32) -> Result<()> {
        self.mounted().empty_segment(segment)
    }

    fn tend(&self, chore: Chore) -> Result<()> {
        self.mounted().tend(chore)
    }
}

/// A volume that several threads use at the same time.
impl Ground for Arc<dyn Mounted> {
    fn file_system(&self) -> &dyn FileSystem {
        &**self
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.as_snapshots()
    }

    fn checkpoint(&self) -> Result<()> {
        (**self).checkpoint()
    }

    fn roll_back(&mut self, _name: &str) -> Result<()> {
        Err(Error::Busy)
    }

    fn clone_snapshot(&mut self, _name: &str, _mounted: bool) -> Result<()> {
        Err(Error::Busy)
    }

    fn empty_segment(&self, segment: u32) -> Result<()> {
        (**self).empty_segment(segment)
    }

    fn tend(&self, chore: Chore) -> Result<()> {
        (**self).tend(chore)
    }
}
