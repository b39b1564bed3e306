//! What a volume must be like: the model, and the tree of the volume beside it.

use std::rc::Rc;

use vfs::model::Model;
use vfs::{Error, FileSystem, Result, Snapshots};

use crate::ground::{Chore, Ground};
use crate::tree::Tree;

/// The model of a volume.
#[derive(Default)]
pub(crate) struct Oracle {
    model: Model,
    /// What an operation may leave halfway, since this was asked last.
    between: Vec<Tree>,
    /// What is beside it after each change there: nothing, or the tree of a volume. Empty if there is no room for one.
    pub(crate) besides: Vec<Option<Rc<Tree>>>,
}

impl Oracle {
    /// What there is to be seen, the snapshots' trees included.
    pub(crate) fn tree(&self) -> Result<Tree> {
        let snapshot = |name: String| {
            let kept = self.model.snapshot(&name).ok_or(Error::NotFound)?;
            Ok((name.into_bytes(), Rc::new(Tree::of(&kept)?)))
        };
        let snapshots = self.model.snapshot_names().into_iter().map(snapshot).collect::<Result<_>>()?;
        Ok(Tree::of(&self.model)?.with_snapshots(snapshots))
    }

    /// The trees between those before and after the operations done since this was asked last.
    pub(crate) fn take_between(&mut self) -> Vec<Tree> {
        std::mem::take(&mut self.between)
    }
}

impl Ground for Oracle {
    fn file_system(&self) -> &dyn FileSystem {
        &self.model
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(&self.model)
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    /// Newer snapshots go one after the other, and then the tree changes.
    fn roll_back(&mut self, name: &str) -> Result<()> {
        for newer in self.model.newer_snapshots(name)? {
            self.model.remove_snapshot(&newer)?;
            self.between.push(self.tree()?);
        }
        self.model.roll_back(name)
    }

    /// First what is there goes.
    fn empty_segment(&self, _segment: u32) -> Result<()> {
        Ok(())
    }

    fn tend(&self, _chore: Chore) -> Result<()> {
        Ok(())
    }

    fn clone_snapshot(&mut self, name: &str, _mounted: bool) -> Result<()> {
        let kept = self.model.snapshot(name).ok_or(Error::NotFound)?;
        if self.besides.is_empty() {
            return Err(Error::Invalid);
        }
        self.besides.extend([None, Some(Rc::new(Tree::of(&kept)?))]);
        Ok(())
    }
}

/// A model that two operations use in turns.
impl Ground for &Oracle {
    fn file_system(&self) -> &dyn FileSystem {
        &self.model
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(&self.model)
    }

    fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    fn roll_back(&mut self, _name: &str) -> Result<()> {
        Err(Error::Busy)
    }

    fn clone_snapshot(&mut self, _name: &str, _mounted: bool) -> Result<()> {
        Err(Error::Busy)
    }

    fn empty_segment(&self, _segment: u32) -> Result<()> {
        Ok(())
    }

    fn tend(&self, _chore: Chore) -> Result<()> {
        Ok(())
    }
}
