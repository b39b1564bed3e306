//! What a volume must be like: the model, and copies of its trees for snapshots.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use vfs::model::Model;
use vfs::{Error, FileSystem, Result};

use crate::subject::Ground;
use crate::tree::Tree;

/// The model of a volume.
#[derive(Default)]
pub(crate) struct Oracle {
    model: Model,
    kept: RefCell<BTreeMap<Vec<u8>, Rc<Tree>>>,
}

impl Oracle {
    /// What there is to be seen, the snapshots' trees included.
    pub(crate) fn tree(&self) -> Result<Tree> {
        Ok(Tree::of(&self.model)?.with_snapshots(self.kept.borrow().clone()))
    }
}

impl Ground for Oracle {
    fn file_system(&self) -> &dyn FileSystem {
        &self.model
    }

    fn take_snapshot(&self, name: &str) -> Result<()> {
        if self.kept.borrow().contains_key(name.as_bytes()) {
            return Err(Error::Exists);
        }
        let tree = Rc::new(Tree::of(&self.model)?);
        self.kept.borrow_mut().insert(name.as_bytes().to_vec(), tree);
        Ok(())
    }

    fn remove_snapshot(&self, name: &str) -> Result<()> {
        self.kept.borrow_mut().remove(name.as_bytes()).map(drop).ok_or(Error::NotFound)
    }
}
