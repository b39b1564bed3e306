//! Taking blocks out of a file's index: a range of it, or all.

use super::walk::{ALL, roots_of, slots_of, walk};
use super::{
    FreeRun, IN_DIRECT, IN_INDIRECT, IN_INODE, IN_MAP, LeafEdit, POINTED, ROOTS, free_pointers, map,
    pointers_in, reach, root_at, store_pointers,
};
use crate::allocator::Budget;
use crate::bia::BlockKind;
use crate::geometry::{BLOCK, FILE_MAX};
use crate::held::Held;
use crate::inode::{Inode, InodeEdit};
use crate::node::HEADER;
use crate::nodes::Nodes;
use crate::pointer::DataPointer;

/// Unmaps blocks `from .. to` of inode `ino`, and removes the index nodes that lie wholly within.
pub(crate) fn unmap(nodes: &Nodes, budget: &Budget<'_>, ino: u32, from: u64, to: u64) -> vfs::Result<()> {
    // The last trees reach further than the largest file: what goes to its end goes to theirs.
    let to = if to >= FILE_MAX / BLOCK { u64::MAX } else { to };
    let inode = nodes.edit_inode(budget, ino)?;
    if from < IN_INODE {
        let leaf = LeafEdit::Inode(&inode);
        let length = to.min(IN_INODE) - from;
        inode.add_blocks(store_pointers(nodes, budget, &leaf, from, length, DataPointer::HOLE, 0)?);
    }
    let Some(map) = map(nodes, inode.inode())? else { return Ok(()) };
    if to <= IN_INODE {
        return Ok(());
    }
    let nid = inode.inode().derived().body.get();
    let whole = from <= IN_INODE && to == u64::MAX;
    if whole {
        inode.add_blocks(-free_pointers(nodes, pointers_in(map, IN_MAP))?);
    } else if from < POINTED {
        let (low, high) = (from.max(IN_INODE) - IN_INODE, to.min(POINTED) - IN_INODE);
        let leaf = LeafEdit::Node(nodes.edit(budget, nid)?);
        inode.add_blocks(store_pointers(nodes, budget, &leaf, low, high - low, DataPointer::HOLE, 0)?);
    }
    let mut cut = Cut { nodes, budget, inode: &inode, from, to, held: Held::default() };
    let mut first = POINTED;
    let mut map = map;
    for height in 1..=3 {
        for root in roots_of(map, from..to, height, first) {
            let at = root_at(height, root);
            let child = map.u32_at(at);
            if child == 0 {
                continue;
            }
            if cut.tree(child, height, first + root * reach(height))? && !whole {
                nodes.edit(budget, nid)?.store(at, &0u32.to_le_bytes());
                map = nodes.view(nid, BlockKind::Map)?; // it may be a copy now
            }
        }
        first += ROOTS[height - 1] * reach(height);
    }
    if whole {
        nodes.remove(nid, false)?;
        inode.set_body(0);
        inode.add_blocks(-1);
    }
    Ok(())
}

/// Blocks being unmapped.
struct Cut<'a> {
    nodes: &'a Nodes,
    budget: &'a Budget<'a>,
    inode: &'a InodeEdit<'a>,
    from: u64,
    to: u64,
    held: Held,
}

impl Cut<'_> {
    /// Unmaps within one tree; true if it is gone as a whole.
    fn tree(&mut self, nid: u32, height: usize, start: u64) -> vfs::Result<bool> {
        let Cut { nodes, budget, inode, from, to, .. } = *self;
        self.held.meet(nid)?;
        let whole = from <= start && to >= start + reach(height);
        if height == 1 {
            let view = nodes.view(nid, BlockKind::Direct)?;
            let used_slots = (view.used().saturating_sub(HEADER) / 8) as u64;
            let (low, high) = (from.max(start) - start, (to.min(start + IN_DIRECT) - start).min(used_slots));
            if whole {
                inode.add_blocks(-free_pointers(nodes, pointers_in(view, IN_DIRECT))?);
            } else if low < high {
                let leaf = LeafEdit::Node(nodes.edit(budget, nid)?);
                inode.add_blocks(store_pointers(
                    nodes,
                    budget,
                    &leaf,
                    low,
                    high - low,
                    DataPointer::HOLE,
                    0,
                )?);
            }
        } else {
            let view = nodes.view(nid, BlockKind::Indirect)?;
            let span = reach(height - 1);
            for slot in slots_of(from..to, start, span, IN_INDIRECT) {
                let at = HEADER + slot as usize * 4;
                let child = view.u32_at(at);
                if child == 0 {
                    continue;
                }
                let gone = self.tree(child, height - 1, start + slot * span)?;
                if gone && !whole {
                    nodes.edit(budget, nid)?.store(at, &0u32.to_le_bytes());
                }
            }
        }
        if whole {
            nodes.remove(nid, false)?;
            inode.add_blocks(-1);
        }
        Ok(whole)
    }
}

/// Frees all data blocks of a mapped file that is about to be removed, and adds its index nodes to `held`.
pub(crate) fn free_all(nodes: &Nodes, inode: Inode<'_>, held: &mut Vec<u32>) -> vfs::Result<()> {
    let mut freed = FreeRun { nodes, budget: None, first: 0, length: 0 };
    let visit = &mut |nid, _| {
        held.push(nid);
        Ok(())
    };
    walk(nodes, inode, ALL, visit, &mut |_, pointer| freed.add(pointer.block()))?;
    freed.flush()
}
