//! From a pointer to what it is for: whose it is, and which block of the file.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    IN_DIRECT, IN_INDIRECT, IN_INODE, IN_MAP, POINTED, Place, ROOTS, map, place, pointers_in, reach, root_at,
};
use crate::bia::BlockKind;
use crate::held::Held;
use crate::inode::{self, Inode, Layout, PAYLOAD};
use crate::node::{HEADER, View};
use crate::reader::Reader;

/// Whose the pointer to data at byte `at` of a node's block is, and for which block of the file; of a direct node's, for which
/// of those that the node has, since only what leads there knows where these begin.
pub(crate) fn owner_at(view: View<'_>, at: usize) -> (u32, u64) {
    let header = view.header();
    let slot = |first: usize| (at - first) as u64 / 8;
    match BlockKind::from_u8(header.kind) {
        Some(BlockKind::Inode) => {
            let inode = at / inode::SLOT;
            (inode::number_of(header.nid.get(), inode as u32), slot(inode * inode::SLOT + PAYLOAD))
        }
        Some(BlockKind::Map) => (header.owner.get(), IN_INODE + slot(HEADER)),
        _ => (header.owner.get(), slot(HEADER)),
    }
}

/// Which of its node's pointers is that of block `index`.
pub(crate) fn slot_of(index: u64) -> u64 {
    match place(index) {
        Place::Inode { slot } | Place::Map { slot } => slot,
        Place::Tree { within, .. } => within % IN_DIRECT,
    }
}

/// Calls `visit` with each direct node of a file, which is not looked at, and the first block that it is for.
pub(crate) fn direct_nodes(
    nodes: &Reader,
    inode: Inode<'_>,
    visit: &mut dyn FnMut(u32, u64),
) -> vfs::Result<()> {
    fn below(
        nodes: &Reader,
        held: &mut Held,
        (nid, height, first): (u32, usize, u64),
        visit: &mut dyn FnMut(u32, u64),
    ) -> vfs::Result<()> {
        if nid == 0 {
            return Ok(());
        }
        if height == 1 {
            visit(nid, first);
            return Ok(());
        }
        held.meet(nid)?;
        let view = nodes.view(nid, BlockKind::Indirect)?;
        (0..IN_INDIRECT).try_for_each(|slot| {
            let child = view.u32_at(HEADER + slot as usize * 4);
            below(nodes, held, (child, height - 1, first + slot * reach(height - 1)), visit)
        })
    }
    let (Some(map), mut held) = (map(nodes, inode)?, Held::default()) else { return Ok(()) };
    let mut first = POINTED;
    for height in 1..=3 {
        for root in 0..ROOTS[height - 1] {
            let nid = map.u32_at(root_at(height, root));
            below(nodes, &mut held, (nid, height, first + root * reach(height)), visit)?;
        }
        first += ROOTS[height - 1] * reach(height);
    }
    Ok(())
}

/// Where in a node's block the pointers to data are, whatever node it is.
pub(crate) fn data_pointers(block: &[u8]) -> SmallVec<[Range<usize>; 15]> {
    let view = View { bytes: block, block: 0 };
    let header = view.header();
    let used = |slots: u64| {
        let length = pointers_in(view, slots).len() / 8 * 8;
        std::iter::once(HEADER..HEADER + length).collect()
    };
    match BlockKind::from_u8(header.kind) {
        Some(BlockKind::Map) => used(IN_MAP),
        Some(BlockKind::Direct) => used(IN_DIRECT),
        Some(BlockKind::Inode) => inode::slots_in(header.slots.get())
            .filter(|slot| Inode::in_block(block, 0, *slot as u32).layout() == Layout::Mapped)
            .map(|slot| slot * inode::SLOT + PAYLOAD..(slot + 1) * inode::SLOT)
            .collect(),
        _ => SmallVec::new(),
    }
}
