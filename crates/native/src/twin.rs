//! The twinned traverse: which blocks one checkpoint reaches, and neither of its neighbours in the list of snapshots
//! (HMFS §3.3, Algorithm 1).
//!
//! The checkpoint's tree and that of the next one are descended side by side. What both point to at the same place is
//! *further referenced*, with all below it. A block that is not is the checkpoint's alone if its start version says that
//! it came behind the one before; if it is older, that one has it, with all below it. So the traverse goes no deeper than
//! the two trees differ.
//!
//! A block stays where it is pointed to from: data never moves from one slot of an index to another, nor a node to
//! another NID. So the same place is the only one to look at, and a start version never needs to be put off to a later
//! snapshot (the paper's *Postpone*): it is the block's birth, and stays true whichever snapshots go. Where Algorithm 1
//! asks whether a start version is newer than the previous snapshot and of no valid one, that is: born behind the previous
//! snapshot, as all snapshots since are gone.

use std::ops::Range;

use smallvec::SmallVec;

use crate::bia::BlockKind;
use crate::geometry::{BLOCK, Medium};
use crate::index;
use crate::nat::{self, FANOUT, Tree};
use crate::node;
use crate::pointer::{DataPointer, NodePointer};

/// The place in the other tree that corresponds to one of this.
#[derive(Clone, Copy)]
enum Twin {
    /// It has none.
    Absent,
    /// Its root is further down, as the first child of the first child and so on.
    Below(Tree),
    /// What it points to there.
    At(NodePointer),
}

impl Twin {
    fn of(tree: Tree, level: u32) -> Twin {
        match u32::from(tree.height) {
            _ if tree.root.is_null() => Twin::Absent,
            height if height == level => Twin::At(tree.root),
            _ => Twin::Below(tree),
        }
    }
}

/// Whether both trees have the same there.
fn is_same(pointer: NodePointer, twin: Twin) -> bool {
    matches!(twin, Twin::At(other) if other.block() == pointer.block())
}

/// A traverse of one tree beside another.
pub(crate) struct Traverse<'a> {
    pub(crate) medium: &'a Medium,
    /// The tree of the next checkpoint.
    pub(crate) next: Tree,
    /// NIDs below are dealt with.
    pub(crate) from: u32,
    /// How many pointers that differ may be looked at before it stops.
    pub(crate) steps: u64,
    /// Whether a block was born behind the previous checkpoint and not behind this one, and is in use.
    pub(crate) is_own: &'a dyn Fn(u64) -> bool,
    /// Gets each block that is this checkpoint's alone, a parent behind its children.
    pub(crate) visit: &'a mut dyn FnMut(u64, BlockKind),
}

impl Traverse<'_> {
    /// Traverses `tree`; returns the NID to go on from if it stopped.
    pub(crate) fn run(&mut self, tree: Tree) -> vfs::Result<Option<u32>> {
        if tree.root.is_null() {
            return Ok(None);
        }
        // Level by level down to where this root is, if the other tree is the higher one.
        let (mut level, mut next) = (u32::from(self.next.height), self.next);
        while level > u32::from(tree.height) && !next.root.is_null() {
            let block = nat::verify(self.medium, next.root, 0)?;
            level -= 1;
            next =
                Tree { root: NodePointer(self.medium.region.load_u64(block * BLOCK)), height: level as u8 };
        }
        let level = u32::from(tree.height);
        self.nat(tree.root, Twin::of(next, level), level, 0)
    }

    fn nat(&mut self, pointer: NodePointer, twin: Twin, level: u32, first: u64) -> vfs::Result<Option<u32>> {
        if !self.is_alone(pointer, twin)? {
            return Ok(None);
        }
        let block = nat::verify(self.medium, pointer, 0)?;
        let other = match twin {
            Twin::At(pointer) if !pointer.is_null() => Some(nat::verify(self.medium, pointer, 0)?),
            _ => None,
        };
        let span = FANOUT.pow(level - 1);
        let entry =
            |block: u64, index: u64| NodePointer(self.medium.region.load_u64(block * BLOCK + index * 8));
        let children: SmallVec<[(u64, NodePointer, Twin); 16]> = (0..FANOUT)
            .map(|index| {
                let twin = match (twin, other) {
                    (_, Some(other)) => Twin::At(entry(other, index)),
                    (Twin::Below(tree), _) if index == 0 => Twin::of(tree, level - 1),
                    _ => Twin::Absent,
                };
                (first + index * span, entry(block, index), twin)
            })
            .filter(|(at, child, _)| !child.is_null() && at + span > u64::from(self.from))
            .collect();
        for (at, child, twin) in children {
            if level > 1 {
                if let Some(stop) = self.nat(child, twin, level - 1, at)? {
                    return Ok(Some(stop));
                }
                continue;
            }
            if is_same(child, twin) {
                continue;
            }
            if self.steps == 0 {
                return Ok(Some(at as u32));
            }
            self.steps -= 1;
            if self.is_alone(child, twin)? {
                self.node(at as u32, child, twin)?;
            }
        }
        (self.visit)(block, nat::kind_of(level));
        Ok(None)
    }

    /// Whether what a pointer names is this checkpoint's alone.
    fn is_alone(&self, pointer: NodePointer, twin: Twin) -> vfs::Result<bool> {
        if is_same(pointer, twin) {
            return Ok(false);
        }
        self.medium.check_main("NAT", 0, format_args!("entry"), pointer.block())?;
        Ok((self.is_own)(pointer.block()))
    }

    fn node(&mut self, nid: u32, pointer: NodePointer, twin: Twin) -> vfs::Result<()> {
        let medium = self.medium;
        let bytes = node::verified(medium, nid, pointer)?;
        let other = match twin {
            Twin::At(twin) if !twin.is_null() => Some(node::verified(medium, nid, twin)?),
            _ => None,
        };
        let others: SmallVec<[Range<usize>; 15]> = match other {
            Some(other) if other[0] == bytes[0] => index::data_pointers(other),
            _ => SmallVec::new(),
        };
        let at = |bytes: &[u8], at: usize| {
            DataPointer(u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))).block()
        };
        for place in index::data_pointers(bytes).into_iter().flat_map(|range| range.step_by(8)) {
            let block = at(bytes, place);
            let is_shared = || {
                let same = |other: &[u8]| at(other, place) == block;
                others.iter().any(|range| range.contains(&place)) && other.is_some_and(same)
            };
            if block == 0 || is_shared() {
                continue;
            }
            self.steps = self.steps.saturating_sub(1);
            medium.check_main("file index", pointer.block(), format_args!("pointer"), block)?;
            if (self.is_own)(block) {
                (self.visit)(block, BlockKind::Data);
            }
        }
        (self.visit)(pointer.block(), BlockKind::from_u8(bytes[0]).unwrap_or(BlockKind::Inode));
        Ok(())
    }
}
