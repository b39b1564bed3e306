//! The nodes that a walk has met: each belongs to one place, so a walk that meets one again ends there, however the nodes
//! of a forged medium name one another.

use std::collections::HashSet;

use crate::error::corrupt;

/// Nodes met so far.
#[derive(Default)]
pub(crate) struct Held(HashSet<u32>);

impl Held {
    /// Meets node `nid`: an error if it was met before.
    pub(crate) fn meet(&mut self, nid: u32) -> vfs::Result<()> {
        match self.0.insert(nid) {
            true => Ok(()),
            false => Err(corrupt(&format!("node {nid}"), 0, "place in its inode", "two", "one")),
        }
    }
}
