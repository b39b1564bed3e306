//! Two trees, descended side by side: where both point to the same block, all below it is the same, too. So what compares
//! them goes no deeper than they differ.
//!
//! [`differences`] tells which nodes are not the same. The twinned traverse tells which blocks one checkpoint reaches, and
//! neither of its neighbours in the list of snapshots (HMFS §3.3, Algorithm 1).
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

/// What a tree has at a place of which another tree has one, too.
#[derive(Clone, Copy)]
enum Place {
    /// Nothing.
    Absent,
    /// Its root is further down, as the first child of the first child and so on.
    Below(Tree),
    /// What it points to there.
    At(NodePointer),
}

impl Place {
    fn of(tree: Tree, level: u32) -> Place {
        match u32::from(tree.height) {
            _ if tree.root.is_null() => Place::Absent,
            height if height == level => Place::At(tree.root),
            _ => Place::Below(tree),
        }
    }

    /// What there is at the first level that has both roots, or something above them.
    fn roots(trees: [Tree; 2]) -> (u32, [Place; 2]) {
        let level = u32::from(trees[0].height.max(trees[1].height));
        (level, trees.map(|tree| Place::of(tree, level)))
    }

    /// Verifies the NAT block that is there.
    fn open(self, medium: &Medium) -> vfs::Result<Opened<'_>> {
        Ok(match self {
            Place::Absent => Opened::Nothing,
            Place::Below(tree) => Opened::First(tree),
            Place::At(pointer) => Opened::Block(medium.block(nat::verify(medium, pointer, 0)?)),
        })
    }

    /// Whether both have the same there.
    fn is_same(self, other: Place) -> bool {
        match (self, other) {
            (Place::Absent, Place::Absent) => true,
            (Place::At(one), Place::At(other)) => one.block() == other.block(),
            _ => false,
        }
    }
}

/// What is below a place of a NAT's tree.
enum Opened<'a> {
    Nothing,
    /// This tree, at the first of 512 places.
    First(Tree),
    /// What this block points to: no block of a published tree changes.
    Block(&'a [u8]),
}

impl Opened<'_> {
    /// What is below it, at `level`.
    fn child(&self, level: u32, index: u64) -> Place {
        match *self {
            Opened::First(tree) if index == 0 => Place::of(tree, level),
            Opened::Nothing | Opened::First(_) => Place::Absent,
            Opened::Block(block) => match nat::pointer_at(block, index) {
                pointer if pointer.is_null() => Place::Absent,
                pointer => Place::At(pointer),
            },
        }
    }
}

/// Calls `visit` with every NID that does not lead to the same block in two trees, ascending.
pub(crate) fn differences(
    medium: &Medium,
    trees: [Tree; 2],
    visit: &mut dyn FnMut(u32) -> vfs::Result<()>,
) -> vfs::Result<()> {
    fn below(
        medium: &Medium,
        [one, other]: [Place; 2],
        level: u32,
        first: u64,
        visit: &mut dyn FnMut(u32) -> vfs::Result<()>,
    ) -> vfs::Result<()> {
        if one.is_same(other) {
            return Ok(());
        }
        if level == 0 {
            return visit(first as u32);
        }
        let (one, other) = (one.open(medium)?, other.open(medium)?);
        (0..FANOUT).try_for_each(|index| {
            let places = [&one, &other].map(|side| side.child(level - 1, index));
            below(medium, places, level - 1, first + index * FANOUT.pow(level - 1), visit)
        })
    }
    let (level, places) = Place::roots(trees);
    below(medium, places, level, 0, visit)
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
    /// Gets each block that is this checkpoint's alone, a parent behind its children, and where it is pointed to from.
    pub(crate) visit: &'a mut dyn FnMut(u64, BlockKind, Spot),
}

/// Where a tree has a block.
#[derive(Clone, Copy)]
pub(crate) enum Spot {
    /// In its NAT: for NIDs from `first` on, at this level (0: as a node).
    Nat { first: u32, level: u32 },
    /// As data, by the pointer at byte `at` of node `nid`.
    Data { nid: u32, at: usize },
}

impl Traverse<'_> {
    /// Traverses `tree`; returns the NID to go on from if it stopped.
    pub(crate) fn run(&mut self, tree: Tree) -> vfs::Result<Option<u32>> {
        let (level, [place, twin]) = Place::roots([tree, self.next]);
        self.nat(place, twin, level, 0)
    }

    fn nat(&mut self, place: Place, twin: Place, level: u32, first: u64) -> vfs::Result<Option<u32>> {
        let medium = self.medium;
        let block = match place {
            Place::Absent => return Ok(None),
            Place::At(pointer) if !self.is_alone(pointer, twin)? => return Ok(None),
            Place::At(pointer) => Some(pointer.block()),
            Place::Below(_) => None,
        };
        let (own, other) = (place.open(medium)?, twin.open(medium)?);
        let span = FANOUT.pow(level - 1);
        for (at, index) in (0..FANOUT).map(|index| (first + index * span, index)) {
            if at + span <= u64::from(self.from) {
                continue;
            }
            let [child, twin] = [&own, &other].map(|side| side.child(level - 1, index));
            if level > 1 {
                if let Some(stop) = self.nat(child, twin, level - 1, at)? {
                    return Ok(Some(stop));
                }
                continue;
            }
            let Place::At(pointer) = child else { continue };
            if child.is_same(twin) {
                continue;
            }
            if self.steps == 0 {
                return Ok(Some(at as u32));
            }
            self.steps -= 1;
            if self.is_alone(pointer, twin)? {
                self.node(at as u32, pointer, twin)?;
            }
        }
        block.into_iter().for_each(|block| {
            (self.visit)(block, nat::kind_of(level), Spot::Nat { first: first as u32, level });
        });
        Ok(None)
    }

    /// Whether what a pointer names is this checkpoint's alone.
    fn is_alone(&self, pointer: NodePointer, twin: Place) -> vfs::Result<bool> {
        if Place::At(pointer).is_same(twin) {
            return Ok(false);
        }
        self.medium.check_main("NAT", 0, format_args!("entry"), pointer.block())?;
        Ok((self.is_own)(pointer.block()))
    }

    fn node(&mut self, nid: u32, pointer: NodePointer, twin: Place) -> vfs::Result<()> {
        let medium = self.medium;
        let bytes = node::verified(medium, nid, pointer)?;
        let other = match twin {
            Place::At(twin) => Some(node::verified(medium, nid, twin)?),
            _ => None,
        };
        let others: SmallVec<[Range<usize>; 15]> = match &other {
            Some(other) if other[0] == bytes[0] => index::data_pointers(other),
            _ => SmallVec::new(),
        };
        let at = |bytes: &[u8], at: usize| {
            DataPointer(u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))).block()
        };
        for place in index::data_pointers(&bytes).into_iter().flat_map(|range| range.step_by(8)) {
            let block = at(&bytes, place);
            let is_shared = || {
                let same = |other: &[u8; BLOCK as usize]| at(other, place) == block;
                others.iter().any(|range| range.contains(&place)) && other.as_ref().is_some_and(same)
            };
            if block == 0 || is_shared() {
                continue;
            }
            self.steps = self.steps.saturating_sub(1);
            medium.check_main("file index", pointer.block(), format_args!("pointer"), block)?;
            if (self.is_own)(block) {
                (self.visit)(block, BlockKind::Data, Spot::Data { nid, at: place });
            }
        }
        let kind = BlockKind::from_u8(bytes[0]).unwrap_or(BlockKind::Inode);
        (self.visit)(pointer.block(), kind, Spot::Nat { first: nid, level: 0 });
        Ok(())
    }
}
