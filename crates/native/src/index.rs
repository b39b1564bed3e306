//! A file's blocks: direct pointers in the inode, direct nodes, and up to two levels of indirect nodes above them
//! (HMFS §2.2, after F2FS). Index nodes are named by NID, so that copying one changes no other.
//!
//! ```text
//! inode payload: 192 data pointers │ 128 NIDs of direct nodes │ 64 NIDs of indirect nodes │ 16 NIDs of double ones
//! reach:          768 KiB           │ + 255 MiB                │ + 127 GiB                 │ + 31 TiB
//! ```

use std::ops::Range;

use crate::allocator::Budget;
use crate::bia::BlockKind;
use crate::geometry::BLOCK;
use crate::inode::{Inode, InodeEdit, PAYLOAD};
use crate::node::{Edit, HEADER, Nodes, View};
use crate::pointer::DataPointer;

/// Data pointers in an inode.
const IN_INODE: u64 = 192;
/// Data pointers in a direct node.
const IN_DIRECT: u64 = (BLOCK - HEADER as u64) / 8;
/// NIDs in an indirect node.
const IN_INDIRECT: u64 = (BLOCK - HEADER as u64) / 4;
/// NIDs in an inode of trees of height 1, 2 and 3.
const ROOTS: [u64; 3] = [128, 64, 16];
/// Where these lie in the inode.
const ROOTS_AT: [usize; 3] = {
    let first = PAYLOAD + IN_INODE as usize * 8;
    [first, first + ROOTS[0] as usize * 4, first + (ROOTS[0] + ROOTS[1]) as usize * 4]
};
const _: () = assert!(ROOTS_AT[2] + ROOTS[2] as usize * 4 <= PAYLOAD + crate::inode::PAYLOAD_MIN);

/// Largest file, bytes: 16 TiB.
pub(crate) const FILE_MAX: u64 = 1 << 44;

/// Data blocks that a tree of `height` (1: a direct node) covers.
const fn reach(height: usize) -> u64 {
    let mut blocks = IN_DIRECT;
    let mut level = 1;
    while level < height {
        blocks *= IN_INDIRECT;
        level += 1;
    }
    blocks
}
const _: () =
    assert!(IN_INODE + ROOTS[0] * reach(1) + ROOTS[1] * reach(2) + ROOTS[2] * reach(3) >= FILE_MAX / BLOCK);

/// Where the pointer of block `index` of a file is found.
enum Place {
    /// In the inode.
    Inode { slot: u64 },
    /// In tree `root` of `height`; `within` is the index in that tree.
    Tree { height: usize, root: u64, within: u64 },
}

fn place(index: u64) -> Place {
    if index < IN_INODE {
        return Place::Inode { slot: index };
    }
    let mut rest = index - IN_INODE;
    for height in 1..=3 {
        let all = ROOTS[height - 1] * reach(height);
        if rest < all {
            return Place::Tree { height, root: rest / reach(height), within: rest % reach(height) };
        }
        rest -= all;
    }
    unreachable!("block index {index} is beyond the largest file");
}

/// Where the pointer of a block is, for a reader that follows at most one NID.
pub(crate) enum PointerAt {
    /// At this byte of the inode.
    Inode { at: usize },
    /// At this byte of the direct node whose NID is at byte `root` of the inode.
    Direct { root: usize, at: usize },
    /// Below indirect nodes.
    Deeper,
}

/// Where the pointer of block `index` is.
#[inline]
pub(crate) fn pointer_at(index: u64) -> PointerAt {
    match place(index) {
        Place::Inode { slot } => PointerAt::Inode { at: PAYLOAD + slot as usize * 8 },
        Place::Tree { height: 1, root, within } => {
            PointerAt::Direct { root: root_at(1, root), at: HEADER + within as usize * 8 }
        }
        Place::Tree { .. } => PointerAt::Deeper,
    }
}

fn root_at(height: usize, root: u64) -> usize {
    ROOTS_AT[height - 1] + root as usize * 4
}

/// The node that holds data pointers (the inode or a direct node), and the range of slots in it.
struct Leaf<'a> {
    /// `None`: a direct node that does not exist; all its blocks are holes.
    view: Option<View<'a>>,
    base: usize,
    slot: u64,
    slots: u64,
}

impl Leaf<'_> {
    fn pointer(&self, slot: u64) -> DataPointer {
        self.view.map_or(DataPointer::HOLE, |view| DataPointer(view.u64_at(self.base + slot as usize * 8)))
    }
}

fn leaf<'a>(nodes: &'a Nodes, inode: Inode<'a>, index: u64) -> vfs::Result<Leaf<'a>> {
    match place(index) {
        Place::Inode { slot } => Ok(Leaf { view: Some(inode.view), base: PAYLOAD, slot, slots: IN_INODE }),
        Place::Tree { height, root, within } => {
            let slot = within % IN_DIRECT;
            let mut nid = inode.view.u32_at(root_at(height, root));
            for level in (2..=height).rev() {
                if nid == 0 {
                    break;
                }
                let view = nodes.view(nid, BlockKind::Indirect)?;
                nid = view.u32_at(HEADER + (within / reach(level - 1) % IN_INDIRECT) as usize * 4);
            }
            let view = if nid == 0 { None } else { Some(nodes.view(nid, BlockKind::Direct)?) };
            Ok(Leaf { view, base: HEADER, slot, slots: IN_DIRECT })
        }
    }
}

/// The pointer of block `index` of a mapped file, and how many blocks from there (at most `max`) continue it:
/// contiguous on the medium, or holes alike.
pub(crate) fn run(nodes: &Nodes, inode: Inode<'_>, index: u64, max: u64) -> vfs::Result<(DataPointer, u64)> {
    let leaf = leaf(nodes, inode, index)?;
    let max = max.min(leaf.slots - leaf.slot).max(1);
    let first = leaf.pointer(leaf.slot);
    if !first.is_hole() {
        nodes.medium.check_main(
            "file index",
            inode.view.block,
            format_args!("pointer {index}"),
            first.block(),
        )?;
    } else if leaf.view.is_none() {
        return Ok((first, max));
    }
    let continues = |n: u64| {
        let next = leaf.pointer(leaf.slot + n);
        if first.is_hole() { next.is_hole() } else { next == first.plus(n) }
    };
    let length = (1..max).take_while(|n| continues(*n)).count() as u64 + 1;
    if !first.is_hole() && length > 1 {
        nodes.medium.check_main(
            "file index",
            inode.view.block,
            format_args!("pointer"),
            first.plus(length - 1).block(),
        )?;
    }
    Ok((first, length))
}

/// Points blocks `index .. index + count` of inode `ino` to the run that begins with `pointer` (a hole: to nothing),
/// and frees what they pointed to before.
pub(crate) fn set_run(
    nodes: &Nodes,
    budget: &Budget<'_>,
    ino: u32,
    index: u64,
    count: u64,
    pointer: DataPointer,
) -> vfs::Result<()> {
    let inode = nodes.edit(budget, ino)?;
    let mut done = 0;
    while done < count {
        let at = index + done;
        let (edit, base, slot, slots) = match place(at) {
            Place::Inode { slot } => (nodes.edit(budget, ino)?, PAYLOAD, slot, IN_INODE),
            Place::Tree { height, root, within } => {
                let slot = within % IN_DIRECT;
                match direct_node(nodes, budget, ino, &inode, (height, root, within), !pointer.is_hole())? {
                    Some(edit) => (edit, HEADER, slot, IN_DIRECT),
                    None => {
                        done += (IN_DIRECT - slot).min(count - done);
                        continue;
                    }
                }
            }
        };
        let length = (slots - slot).min(count - done);
        let delta = store_pointers(nodes, &edit, base, slot, length, pointer, done)?;
        inode.add_blocks(delta);
        done += length;
    }
    Ok(())
}

/// Stores `length` pointers, the first being `pointer` plus `skip`; frees the old blocks. Returns by how much the
/// file's blocks grew.
fn store_pointers(
    nodes: &Nodes,
    edit: &Edit<'_>,
    base: usize,
    slot: u64,
    length: u64,
    pointer: DataPointer,
    skip: u64,
) -> vfs::Result<i64> {
    let mut delta = 0;
    let mut freed = FreeRun { nodes, first: 0, length: 0 };
    let mut done = 0;
    while done < length {
        let mut bytes = [0; PIECE * 8];
        let piece = (length - done).min(PIECE as u64);
        let (view, at) = (edit.view(), base + (slot + done) as usize * 8);
        for n in 0..piece as usize {
            let old = DataPointer(view.u64_at(at + n * 8));
            let new = if pointer.is_hole() { pointer } else { pointer.plus(skip + done + n as u64) };
            if !old.is_hole() && old.block() != new.block() {
                freed.add(old.block())?;
            }
            delta += i64::from(!new.is_hole()) - i64::from(!old.is_hole());
            bytes[n * 8..][..8].copy_from_slice(&new.0.to_le_bytes());
        }
        let bytes = &bytes[..piece as usize * 8];
        if pointer.is_hole() {
            let end = (at + bytes.len()).min(view.used());
            edit.store(at, &bytes[..end.saturating_sub(at)]);
        } else {
            edit.put(at, bytes);
        }
        done += piece;
    }
    freed.flush()?;
    Ok(delta)
}

/// Pointers that are stored at once.
const PIECE: usize = 32;

/// Frees what the first `slots` pointers of a direct node, about to be removed, point to; returns how many blocks.
fn free_pointers(nodes: &Nodes, view: View<'_>, slots: u64) -> vfs::Result<i64> {
    let mut freed = FreeRun { nodes, first: 0, length: 0 };
    let mut count = 0;
    for slot in 0..slots {
        let pointer = DataPointer(view.u64_at(HEADER + slot as usize * 8));
        if !pointer.is_hole() {
            freed.add(pointer.block())?;
            count += 1;
        }
    }
    freed.flush()?;
    Ok(count)
}

/// Frees blocks, contiguous ones at once.
struct FreeRun<'a> {
    nodes: &'a Nodes,
    first: u64,
    length: u64,
}

impl FreeRun<'_> {
    fn add(&mut self, block: u64) -> vfs::Result<()> {
        self.nodes.medium.check_main("file index", 0, format_args!("pointer"), block)?;
        if self.length > 0 && block == self.first + self.length {
            self.length += 1;
            return Ok(());
        }
        self.flush()?;
        (self.first, self.length) = (block, 1);
        Ok(())
    }

    fn flush(&mut self) -> vfs::Result<()> {
        if self.length > 0 {
            self.nodes.allocator.free(self.first, self.length);
        }
        self.length = 0;
        Ok(())
    }
}

/// The direct node at a place of a tree, for change; made with all above it if `make`.
fn direct_node<'a>(
    nodes: &'a Nodes,
    budget: &Budget<'_>,
    ino: u32,
    inode: &Edit<'a>,
    (height, root, within): (usize, u64, u64),
    make: bool,
) -> vfs::Result<Option<Edit<'a>>> {
    let mut at = root_at(height, root);
    let mut parent: Option<u32> = None;
    let mut level = height;
    loop {
        let kind = if level == 1 { BlockKind::Direct } else { BlockKind::Indirect };
        let view = match parent {
            None => inode.view(),
            Some(nid) => nodes.view(nid, BlockKind::Indirect)?,
        };
        let mut nid = view.u32_at(at);
        if nid == 0 {
            if !make {
                return Ok(None);
            }
            let (new, edit) = nodes.create(budget, kind, ino, HEADER)?;
            edit.set_level(level as u8 - 1);
            match parent {
                None => inode.put(at, &new.to_le_bytes()),
                Some(parent) => nodes.edit(budget, parent)?.put(at, &new.to_le_bytes()),
            }
            inode.add_blocks(1);
            nid = new;
        }
        if level == 1 {
            nodes.view(nid, BlockKind::Direct)?;
            return Ok(Some(nodes.edit(budget, nid)?));
        }
        level -= 1;
        at = HEADER + (within / reach(level) % IN_INDIRECT) as usize * 4;
        parent = Some(nid);
    }
}

/// Unmaps blocks `from .. to` of inode `ino`, and removes the index nodes that lie wholly within.
pub(crate) fn unmap(nodes: &Nodes, budget: &Budget<'_>, ino: u32, from: u64, to: u64) -> vfs::Result<()> {
    let inode = nodes.edit(budget, ino)?;
    if from < IN_INODE {
        set_run(nodes, budget, ino, from, to.min(IN_INODE) - from, DataPointer::HOLE)?;
    }
    let mut first = IN_INODE;
    for height in 1..=3 {
        for root in 0..ROOTS[height - 1] {
            let (start, end) = (first + root * reach(height), first + (root + 1) * reach(height));
            let at = root_at(height, root);
            let nid = inode.view().u32_at(at);
            if nid == 0 || end <= from || start >= to {
                continue;
            }
            if unmap_tree(nodes, budget, &inode, (nid, height, start), from, to)? {
                inode.store(at, &0u32.to_le_bytes());
            }
        }
        first += ROOTS[height - 1] * reach(height);
    }
    Ok(())
}

/// Unmaps within one tree; true if it is gone as a whole.
fn unmap_tree(
    nodes: &Nodes,
    budget: &Budget<'_>,
    inode: &Edit<'_>,
    (nid, height, start): (u32, usize, u64),
    from: u64,
    to: u64,
) -> vfs::Result<bool> {
    let whole = from <= start && to >= start + reach(height);
    if height == 1 {
        let view = nodes.view(nid, BlockKind::Direct)?;
        let used_slots = (view.used().saturating_sub(HEADER) / 8) as u64;
        let (low, high) = (from.max(start) - start, (to.min(start + IN_DIRECT) - start).min(used_slots));
        if whole {
            inode.add_blocks(-free_pointers(nodes, view, high)?);
        } else if low < high {
            let edit = nodes.edit(budget, nid)?;
            inode.add_blocks(store_pointers(nodes, &edit, HEADER, low, high - low, DataPointer::HOLE, 0)?);
        }
    } else {
        let view = nodes.view(nid, BlockKind::Indirect)?;
        let span = reach(height - 1);
        for slot in 0..IN_INDIRECT {
            let at = HEADER + slot as usize * 4;
            let (child, child_start) = (view.u32_at(at), start + slot * span);
            if child == 0 || child_start + span <= from || child_start >= to {
                continue;
            }
            let gone = unmap_tree(nodes, budget, inode, (child, height - 1, child_start), from, to)?;
            if gone && !whole {
                nodes.edit(budget, nid)?.store(at, &0u32.to_le_bytes());
            }
        }
    }
    if whole {
        nodes.remove(nid)?;
        inode.add_blocks(-1);
    }
    Ok(whole)
}

/// Frees all data blocks of a mapped file that is about to be removed, and adds its index nodes to `held`.
pub(crate) fn free_all(nodes: &Nodes, inode: Inode<'_>, held: &mut Vec<u32>) -> vfs::Result<()> {
    let mut freed = FreeRun { nodes, first: 0, length: 0 };
    let visit = &mut |nid, _| {
        held.push(nid);
        Ok(())
    };
    walk(nodes, inode, ALL, visit, &mut |_, pointer| freed.add(pointer.block()))?;
    freed.flush()
}

/// Reads the index of `blocks` of a file, so that what frees them later will not find it damaged.
pub(crate) fn check(nodes: &Nodes, inode: Inode<'_>, blocks: Range<u64>) -> vfs::Result<()> {
    let in_main = |_, pointer: DataPointer| {
        nodes.medium.check_main("file index", inode.view.block, format_args!("pointer"), pointer.block())
    };
    walk(nodes, inode, blocks, &mut |_, _| Ok(()), &mut { in_main })
}

/// All blocks a file can have.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;

/// Calls `visit` for every index node that covers some of `blocks`, and `data` for every data pointer in those nodes
/// and in the inode, in file order.
pub(crate) fn walk(
    nodes: &Nodes,
    inode: Inode<'_>,
    blocks: Range<u64>,
    visit: &mut dyn FnMut(u32, BlockKind) -> vfs::Result<()>,
    data: &mut dyn FnMut(u64, DataPointer) -> vfs::Result<()>,
) -> vfs::Result<()> {
    for slot in 0..IN_INODE {
        let pointer = DataPointer(inode.view.u64_at(PAYLOAD + slot as usize * 8));
        if !pointer.is_hole() {
            data(slot, pointer)?;
        }
    }
    let mut walk = Walk { nodes, blocks, visit, data };
    let mut first = IN_INODE;
    for height in 1..=3 {
        for root in 0..ROOTS[height - 1] {
            let nid = inode.view.u32_at(root_at(height, root));
            walk.tree(nid, height, first + root * reach(height))?;
        }
        first += ROOTS[height - 1] * reach(height);
    }
    Ok(())
}

struct Walk<'a> {
    nodes: &'a Nodes,
    blocks: Range<u64>,
    visit: &'a mut dyn FnMut(u32, BlockKind) -> vfs::Result<()>,
    data: &'a mut dyn FnMut(u64, DataPointer) -> vfs::Result<()>,
}

impl Walk<'_> {
    fn tree(&mut self, nid: u32, height: usize, start: u64) -> vfs::Result<()> {
        if nid == 0 || start >= self.blocks.end || start + reach(height) <= self.blocks.start {
            return Ok(());
        }
        if height == 1 {
            (self.visit)(nid, BlockKind::Direct)?;
            let view = self.nodes.view(nid, BlockKind::Direct)?;
            for slot in 0..IN_DIRECT {
                let pointer = DataPointer(view.u64_at(HEADER + slot as usize * 8));
                if !pointer.is_hole() {
                    (self.data)(start + slot, pointer)?;
                }
            }
            return Ok(());
        }
        (self.visit)(nid, BlockKind::Indirect)?;
        let view = self.nodes.view(nid, BlockKind::Indirect)?;
        (0..IN_INDIRECT).try_for_each(|slot| {
            let child = view.u32_at(HEADER + slot as usize * 4);
            self.tree(child, height - 1, start + slot * reach(height - 1))
        })
    }
}
