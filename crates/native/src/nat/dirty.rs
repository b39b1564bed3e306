//! What an epoch changed: nodes, and which of them are ready for its checkpoint.

use std::collections::{HashMap, VecDeque};

use crate::pointer::NodePointer;

/// A node is sealed so often in an epoch at most. One that is changed again and again would cost more than it brings.
const SEALS_MAX: u8 = 4;

/// What one epoch changed.
#[derive(Default)]
pub(crate) struct Dirty {
    /// Nodes with their new blocks (0: removed), oldest first.
    nodes: Vec<(u32, u64)>,
    /// Copies that are not sealed, with their blocks, in the order in which they were made or their seals were broken; some may have
    /// gone.
    unsealed: VecDeque<(u32, u64)>,
    seals: HashMap<u32, Seal>,
}

#[derive(Default)]
struct Seal {
    /// What is to point to the node, if it is sealed.
    pointer: NodePointer,
    /// How often it was, but for seals that were broken before they were there.
    times: u8,
}

/// What became of a node in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Became {
    Nothing,
    /// A copy in this block, of which nothing is known to be durable.
    Changed(u64),
    /// A durable copy.
    Sealed(NodePointer),
}

impl Dirty {
    /// Changes so far.
    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn unsealed_count(&self) -> usize {
        self.unsealed.len()
    }

    /// Node `nid` has a copy in `block` now, or is removed (0).
    pub(super) fn push(&mut self, nid: u32, block: u64) {
        self.nodes.push((nid, block));
        if block != 0 {
            self.unsealed.push_back((nid, block));
        }
    }

    /// Takes up to `most` copies that are not sealed, but for the `youngest`.
    pub(super) fn take_unsealed(&mut self, most: usize, youngest: usize) -> Vec<(u32, u64)> {
        let count = self.unsealed.len().saturating_sub(youngest).min(most);
        self.unsealed.drain(..count).collect()
    }

    pub(super) fn seal(&mut self, nid: u32, pointer: NodePointer) {
        let seal = self.seals.entry(nid).or_default();
        seal.pointer = pointer;
        // A number that is given to one node after the other is sealed as often as they are.
        seal.times = seal.times.saturating_add(1);
    }

    /// The copy of node `nid` in `block` is about to be changed.
    pub(super) fn break_seal(&mut self, nid: u32, block: u64) {
        let seal = self.seals.entry(nid).or_default();
        seal.pointer = NodePointer::default();
        if seal.times < SEALS_MAX {
            self.unsealed.push_back((nid, block));
        }
    }

    /// NIDs ascending, each with what became of it in the end.
    pub(crate) fn sorted(mut self) -> Vec<(u32, Became)> {
        // Stable, so that of several changes of one NID the last is the newest.
        self.nodes.sort_by_key(|(nid, _)| *nid);
        let mut last: Vec<(u32, Became)> = Vec::with_capacity(self.nodes.len());
        for (nid, block) in &self.nodes {
            let became = match self.seals.get(nid) {
                _ if *block == 0 => Became::Nothing,
                Some(seal) if seal.pointer.block() == *block => Became::Sealed(seal.pointer),
                _ => Became::Changed(*block),
            };
            match last.last_mut() {
                Some(previous) if previous.0 == *nid => previous.1 = became,
                _ => last.push((*nid, became)),
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_sealed_for_one_node_after_the_other() {
        let mut dirty = Dirty::default();
        for block in 1..=300 {
            dirty.push(7, block);
            assert_eq!(dirty.take_unsealed(8, 0), [(7, block)]);
            dirty.seal(7, NodePointer::new(block, 5));
            dirty.push(7, 0);
        }
        dirty.push(7, 301);
        assert_eq!(dirty.sorted(), [(7, Became::Changed(301))], "none of those seals is this node's");
    }
}
