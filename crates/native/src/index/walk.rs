//! All of a file's index, or what covers a range, in file order.

use std::ops::Range;

use super::{
    IN_DIRECT, IN_INDIRECT, IN_INODE, IN_MAP, POINTED, ROOTS, map, pointers_in, pointers_of, reach, root_at,
};
use crate::bia::BlockKind;
use crate::held::Held;
use crate::inode::Inode;
use crate::node::{HEADER, View};
use crate::pointer::DataPointer;
use crate::reader::Reader;

/// All blocks a file can have.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;

/// Calls `visit` for every index node that covers some of `blocks`, and `data` for every data pointer in those nodes
/// and in the inode, in file order. An index node that is met twice is an error: it ends walks over forged ones.
pub(crate) fn walk(
    nodes: &Reader,
    inode: Inode<'_>,
    blocks: Range<u64>,
    visit: &mut dyn FnMut(u32, BlockKind) -> vfs::Result<()>,
    data: &mut dyn FnMut(u64, DataPointer) -> vfs::Result<()>,
) -> vfs::Result<()> {
    let mut walk = Walk { nodes, blocks, visit, data, held: Held::default() };
    walk.pointers(inode.payload(), 0)?;
    let Some(map) = map(nodes, inode)? else { return Ok(()) };
    if walk.blocks.end <= IN_INODE {
        return Ok(());
    }
    (walk.visit)(inode.derived().body.get(), BlockKind::Map)?;
    walk.pointers(pointers_in(map, IN_MAP), IN_INODE)?;
    let mut first = POINTED;
    for height in 1..=3 {
        for root in roots_of(map, walk.blocks.clone(), height, first) {
            walk.tree(map.u32_at(root_at(height, root)), height, first + root * reach(height))?;
        }
        first += ROOTS[height - 1] * reach(height);
    }
    Ok(())
}

/// Of `count` slots of `span` blocks each, the first of which begins at block `first`: those that have some of these blocks.
pub(super) fn slots_of(blocks: Range<u64>, first: u64, span: u64, count: u64) -> Range<u64> {
    let low = blocks.start.saturating_sub(first) / span;
    let high = blocks.end.saturating_sub(first).div_ceil(span);
    low..high.min(count)
}

/// The same of a map's trees of `height`. Behind what it uses there are none.
pub(super) fn roots_of(map: View<'_>, blocks: Range<u64>, height: usize, first: u64) -> Range<u64> {
    let used = (map.used().saturating_sub(root_at(height, 0)) / 4) as u64;
    slots_of(blocks, first, reach(height), ROOTS[height - 1].min(used))
}

struct Walk<'a> {
    nodes: &'a Reader,
    blocks: Range<u64>,
    visit: &'a mut dyn FnMut(u32, BlockKind) -> vfs::Result<()>,
    data: &'a mut dyn FnMut(u64, DataPointer) -> vfs::Result<()>,
    held: Held,
}

impl Walk<'_> {
    fn pointers(&mut self, pointers: &[u8], first: u64) -> vfs::Result<()> {
        for (slot, pointer) in pointers_of(pointers).enumerate() {
            if !pointer.is_hole() {
                (self.data)(first + slot as u64, pointer)?;
            }
        }
        Ok(())
    }

    fn tree(&mut self, nid: u32, height: usize, start: u64) -> vfs::Result<()> {
        if nid == 0 || start >= self.blocks.end || start + reach(height) <= self.blocks.start {
            return Ok(());
        }
        self.held.meet(nid)?;
        if height == 1 {
            (self.visit)(nid, BlockKind::Direct)?;
            let view = self.nodes.view(nid, BlockKind::Direct)?;
            return self.pointers(pointers_in(view, IN_DIRECT), start);
        }
        (self.visit)(nid, BlockKind::Indirect)?;
        let view = self.nodes.view(nid, BlockKind::Indirect)?;
        let span = reach(height - 1);
        slots_of(self.blocks.clone(), start, span, IN_INDIRECT).try_for_each(|slot| {
            let child = view.u32_at(HEADER + slot as usize * 4);
            self.tree(child, height - 1, start + slot * span)
        })
    }
}

/// Reads the index of `blocks` of a file, so that what frees them later will not find it damaged.
pub(crate) fn check(nodes: &Reader, inode: Inode<'_>, blocks: Range<u64>) -> vfs::Result<()> {
    let in_main = |_, pointer: DataPointer| {
        nodes.medium.check_main("file index", inode.block, format_args!("pointer"), pointer.block())
    };
    walk(nodes, inode, blocks, &mut |_, _| Ok(()), &mut { in_main })
}
