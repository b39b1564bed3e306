//! Where two versions of a file differ: their indexes are descended side by side. A direct node that both have, and that
//! was not changed, is passed over with all of its blocks; so beside what changed it takes a look at the map, and at an
//! indirect node for each 2 GiB beyond the first 1.3.

use super::{
    IN_DIRECT, IN_INDIRECT, IN_INODE, IN_MAP, POINTED, ROOTS, map, pointer_in, pointers_in, reach, root_at,
};
use crate::bia::BlockKind;
use crate::held::Held;
use crate::inode::Inode;
use crate::node::{HEADER, View};
use crate::pointer::DataPointer;
use crate::reader::Reader;

/// Calls `visit` with both pointers of each of the first `end` blocks of a mapped file for which they differ, until it
/// returns true; whether it did. `is_changed` says whether a node is not the same in both trees.
pub(crate) fn differ(
    nodes: [&Reader; 2],
    inodes: [Inode<'_>; 2],
    end: u64,
    is_changed: &dyn Fn(u32) -> bool,
    visit: &mut dyn FnMut([DataPointer; 2]) -> vfs::Result<bool>,
) -> vfs::Result<bool> {
    let mut pair = Pair { nodes, end, is_changed, visit, held: Default::default() };
    if pair.pointers(inodes.map(|inode| inode.payload()), 0)? {
        return Ok(true);
    }
    let maps = [map(nodes[0], inodes[0])?, map(nodes[1], inodes[1])?];
    if pair.pointers(maps.map(|map| map.map_or(&[][..], |map| pointers_in(map, IN_MAP))), IN_INODE)? {
        return Ok(true);
    }
    let mut first = POINTED;
    for height in 1..=3 {
        for root in 0..ROOTS[height - 1] {
            let roots = maps.map(|map| map.map_or(0, |map| map.u32_at(root_at(height, root))));
            if pair.tree(roots, height, first + root * reach(height))? {
                return Ok(true);
            }
        }
        first += ROOTS[height - 1] * reach(height);
    }
    Ok(false)
}

struct Pair<'a> {
    nodes: [&'a Reader; 2],
    end: u64,
    is_changed: &'a dyn Fn(u32) -> bool,
    visit: &'a mut dyn FnMut([DataPointer; 2]) -> vfs::Result<bool>,
    held: [Held; 2],
}

impl<'a> Pair<'a> {
    fn pointers(&mut self, sides: [&[u8]; 2], first: u64) -> vfs::Result<bool> {
        let slots = (sides[0].len().max(sides[1].len()) / 8) as u64;
        for slot in 0..slots.min(self.end.saturating_sub(first)) {
            let pointers = sides.map(|pointers| pointer_in(pointers, slot));
            if pointers[0] != pointers[1] && (self.visit)(pointers)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A node of one side, if it is there.
    fn node(&mut self, side: usize, nid: u32, kind: BlockKind) -> vfs::Result<Option<View<'a>>> {
        if nid == 0 {
            return Ok(None);
        }
        self.held[side].meet(nid)?;
        self.nodes[side].view(nid, kind).map(Some)
    }

    fn tree(&mut self, nids: [u32; 2], height: usize, start: u64) -> vfs::Result<bool> {
        let is_leaf = height == 1;
        let is_same = nids[0] == nids[1] && (nids[0] == 0 || is_leaf && !(self.is_changed)(nids[0]));
        if is_same || start >= self.end {
            return Ok(false);
        }
        let kind = if is_leaf { BlockKind::Direct } else { BlockKind::Indirect };
        let views = [self.node(0, nids[0], kind)?, self.node(1, nids[1], kind)?];
        if is_leaf {
            let pointers = views.map(|view| view.map_or(&[][..], |view| pointers_in(view, IN_DIRECT)));
            return self.pointers(pointers, start);
        }
        for slot in 0..IN_INDIRECT {
            let at = HEADER + slot as usize * 4;
            let children = views.map(|view| view.map_or(0, |view| view.u32_at(at)));
            if self.tree(children, height - 1, start + slot * reach(height - 1))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
