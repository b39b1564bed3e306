//! A file's blocks: pointers in the inode, then in its map, then in direct nodes that the map names, and up to two levels
//! of indirect nodes above them (HMFS §2.2, after F2FS). Index nodes are named by NID, so that copying one changes no
//! other.
//!
//! ```text
//! inode payload: 16 data pointers
//! map:           128 data pointers │ 684 NIDs of direct nodes │ 64 NIDs of indirect nodes │ 16 NIDs of double ones
//! reach:         64 KiB + 512 KiB  │ + 1.3 GiB                │ + 127 GiB                 │ + 31 TiB
//! ```
//!
//! A file of up to 64 KiB has no index node; one block of the first 1.3 GiB is three steps away: inode, map, direct node.

pub(crate) mod differ;
mod hinted;
mod unmap;
mod walk;
pub(crate) mod whose;

pub(crate) use unmap::{free_all, unmap};
pub(crate) use walk::{ALL, check, walk};
pub(crate) use whose::data_pointers;

use crate::allocator::Budget;
use crate::bia::BlockKind;
use crate::geometry::{BLOCK, FILE_MAX};
use crate::inode::{self, Inode, InodeEdit, PAYLOAD, PAYLOAD_BYTES};
use crate::node::{Edit, HEADER, View};
use crate::nodes::Nodes;
use crate::pointer::DataPointer;
use crate::reader::Reader;

/// Data pointers in an inode.
const IN_INODE: u64 = PAYLOAD_BYTES as u64 / 8;
/// Data pointers in a map.
const IN_MAP: u64 = 128;
/// Blocks before those of the direct nodes.
const POINTED: u64 = IN_INODE + IN_MAP;
/// Data pointers in a direct node.
const IN_DIRECT: u64 = (BLOCK - HEADER as u64) / 8;
/// NIDs in an indirect node.
const IN_INDIRECT: u64 = (BLOCK - HEADER as u64) / 4;
/// NIDs in a map of trees of height 1, 2 and 3.
const ROOTS: [u64; 3] = [684, 64, 16];
/// Where these lie in the map.
const ROOTS_AT: [usize; 3] = {
    let first = HEADER + IN_MAP as usize * 8;
    [first, first + ROOTS[0] as usize * 4, first + (ROOTS[0] + ROOTS[1]) as usize * 4]
};
const _: () = assert!(ROOTS_AT[2] + ROOTS[2] as usize * 4 == BLOCK as usize);

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
    assert!(POINTED + ROOTS[0] * reach(1) + ROOTS[1] * reach(2) + ROOTS[2] * reach(3) >= FILE_MAX / BLOCK);

/// Blocks that changing `count` blocks of a file takes at most: themselves, and copies of their index nodes.
pub(crate) const fn blocks_for(count: u64) -> u64 {
    count + count / 256 + 12
}

/// Where the pointer of block `index` of a file is found.
enum Place {
    /// In the inode.
    Inode { slot: u64 },
    /// In the map.
    Map { slot: u64 },
    /// In tree `root` of `height`; `within` is the index in that tree.
    Tree { height: usize, root: u64, within: u64 },
}

#[inline]
fn place(index: u64) -> Place {
    if index < IN_INODE {
        return Place::Inode { slot: index };
    }
    if index < POINTED {
        return Place::Map { slot: index - IN_INODE };
    }
    let mut rest = index - POINTED;
    if rest < ROOTS[0] * IN_DIRECT {
        // Most files end here; divided by a constant.
        return Place::Tree { height: 1, root: rest / IN_DIRECT, within: rest % IN_DIRECT };
    }
    rest -= ROOTS[0] * IN_DIRECT;
    for height in 2..=3 {
        let all = ROOTS[height - 1] * reach(height);
        if rest < all {
            return Place::Tree { height, root: rest / reach(height), within: rest % reach(height) };
        }
        rest -= all;
    }
    unreachable!("block index {index} is beyond the largest file");
}

/// Where the pointer of a block is, for a reader that follows at most two NIDs.
pub(crate) enum PointerAt {
    /// At this byte of the inode.
    Inode { at: usize },
    /// At this byte of the map.
    Map { at: usize },
    /// At this byte of the direct node whose NID is at byte `root` of the map.
    Direct { root: usize, at: usize },
    /// Below indirect nodes.
    Deeper,
}

/// Where the pointer of block `index` is.
#[inline]
pub(crate) fn pointer_at(index: u64) -> PointerAt {
    match place(index) {
        Place::Inode { slot } => PointerAt::Inode { at: PAYLOAD + slot as usize * 8 },
        Place::Map { slot } => PointerAt::Map { at: HEADER + slot as usize * 8 },
        Place::Tree { height: 1, root, within } => {
            PointerAt::Direct { root: root_at(1, root), at: HEADER + within as usize * 8 }
        }
        Place::Tree { .. } => PointerAt::Deeper,
    }
}

fn root_at(height: usize, root: u64) -> usize {
    ROOTS_AT[height - 1] + root as usize * 4
}

/// Data pointers that lie side by side: those of the inode, the map or a direct node.
struct Leaf<'a> {
    /// Their bytes; what lies behind is holes.
    pointers: &'a [u8],
    slot: u64,
    slots: u64,
    /// The node they are in; `None`: where nothing is.
    node: Option<u32>,
    /// If that is not the inode's: its block, and the version that its NAT entry has.
    home: Option<(u64, u32)>,
}

/// A map or direct node in its copy of the running epoch: where it may be changed.
#[derive(Clone, Copy)]
pub(crate) struct CurrentLeaf {
    ino: u32,
    /// The file's blocks that it points to.
    first: u64,
    count: u64,
    block: u64,
}

/// The pointer in `slot` of those with these bytes; behind them are holes.
#[inline]
fn pointer_in(pointers: &[u8], slot: u64) -> DataPointer {
    match pointers.get(slot as usize * 8..slot as usize * 8 + 8) {
        Some(bytes) => DataPointer(u64::from_le_bytes(bytes.try_into().expect("8 bytes"))),
        None => DataPointer::HOLE,
    }
}

impl<'a> Leaf<'a> {
    /// That of a map or direct node.
    #[inline]
    fn in_node(nodes: &'a Reader, nid: u32, kind: BlockKind, slot: u64, slots: u64) -> vfs::Result<Leaf<'a>> {
        let (view, version) = nodes.view_of_version(nid, kind)?;
        let home = Some((view.block, version));
        Ok(Leaf { pointers: pointers_in(view, slots), slot, slots, node: Some(nid), home })
    }

    #[inline]
    fn pointer(&self, slot: u64) -> DataPointer {
        pointer_in(self.pointers, slot)
    }

    /// Where nothing is: `slots` holes.
    fn nothing(slots: u64) -> Leaf<'static> {
        Leaf { pointers: &[], slot: 0, slots, node: None, home: None }
    }
}

/// The pointers in a node, as far as it uses them.
fn pointers_in(view: View<'_>, slots: u64) -> &[u8] {
    &view.bytes[HEADER..view.used().clamp(HEADER, HEADER + slots as usize * 8)]
}

fn map<'a>(nodes: &'a Reader, inode: Inode<'a>) -> vfs::Result<Option<View<'a>>> {
    match inode.derived().body.get() {
        0 => Ok(None),
        nid => nodes.view(nid, BlockKind::Map).map(Some),
    }
}

fn leaf<'a>(nodes: &'a Reader, inode: Inode<'a>, index: u64) -> vfs::Result<Leaf<'a>> {
    let (height, root, within) = match place(index) {
        Place::Inode { slot } => {
            let node = Some(inode::nid_of(inode.ino));
            return Ok(Leaf { pointers: inode.payload(), slot, slots: IN_INODE, node, home: None });
        }
        Place::Map { slot } => {
            return match inode.derived().body.get() {
                0 => Ok(Leaf::nothing(IN_MAP - slot)),
                nid => Leaf::in_node(nodes, nid, BlockKind::Map, slot, IN_MAP),
            };
        }
        Place::Tree { height, root, within } => (height, root, within),
    };
    let Some(map) = map(nodes, inode)? else { return Ok(Leaf::nothing(FILE_MAX / BLOCK - index)) };
    let mut nid = map.u32_at(root_at(height, root));
    for level in (2..=height).rev() {
        if nid == 0 {
            return Ok(Leaf::nothing(reach(level) - within % reach(level)));
        }
        let view = nodes.view(nid, BlockKind::Indirect)?;
        nid = view.u32_at(HEADER + (within / reach(level - 1) % IN_INDIRECT) as usize * 4);
    }
    let slot = within % IN_DIRECT;
    if nid == 0 {
        return Ok(Leaf::nothing(IN_DIRECT - slot));
    }
    let leaf = Leaf::in_node(nodes, nid, BlockKind::Direct, slot, IN_DIRECT)?;
    if let Some((block, _)) = leaf.home {
        nodes.note_leaf(inode.ino, index, block, leaf.pointer(slot), false);
    }
    Ok(leaf)
}

/// The node that holds the pointer of block `index` of a mapped file, and the pointer; `None` if it has no such node.
pub(crate) fn holder(
    nodes: &Reader,
    inode: Inode<'_>,
    index: u64,
) -> vfs::Result<Option<(u32, DataPointer)>> {
    if index >= FILE_MAX / BLOCK {
        return Ok(None);
    }
    let leaf = leaf(nodes, inode, index)?;
    Ok(leaf.node.map(|node| (node, leaf.pointer(leaf.slot))))
}

/// Points block `index` of inode `ino`, which some node has a pointer to, elsewhere: what it was is another's affair.
pub(crate) fn repoint(
    nodes: &Nodes,
    budget: &Budget<'_>,
    ino: u32,
    index: u64,
    pointer: DataPointer,
) -> vfs::Result<()> {
    let Leaf { node, slot, .. } = leaf(nodes, nodes.inode(ino)?, index)?;
    let bytes = pointer.0.to_le_bytes();
    match node {
        Some(node) if node == inode::nid_of(ino) => {
            LeafEdit::Inode(&nodes.edit_inode(budget, ino)?).put(slot, &bytes, false);
        }
        Some(node) => LeafEdit::Node(nodes.edit(budget, node)?).put(slot, &bytes, false),
        None => {}
    }
    Ok(())
}

impl Reader {
    /// An error if a pointer found at block `index` of a file leads out of the Main Area.
    #[inline]
    fn check_pointer(&self, inode: Inode<'_>, index: u64, pointer: DataPointer) -> vfs::Result<()> {
        let field = format_args!("pointer {index}");
        self.medium.check_main("file index", inode.block, field, pointer.block())
    }
}

/// The pointer of block `index` of a mapped file, and how many blocks from there (at most `max`) continue it:
/// contiguous on the medium, or holes alike. A hole takes a step for each subtree that is not there, however large.
pub(crate) fn run(nodes: &Reader, inode: Inode<'_>, index: u64, max: u64) -> vfs::Result<(DataPointer, u64)> {
    run_in(nodes, inode, index, max, |_, _| ())
}

/// The same for who is about to change the pointers, holding a lane and the inode's lock; and the last leaf of the run, if it
/// may be changed where it is.
pub(crate) fn run_to_change(
    nodes: &Nodes,
    inode: Inode<'_>,
    index: u64,
    max: u64,
) -> vfs::Result<(DataPointer, u64, Option<CurrentLeaf>)> {
    let (version, mut current) = (nodes.version(), None);
    let (pointer, length) = run_in(nodes, inode, index, max, |leaf, index| {
        let home = leaf.home.filter(|home| home.1 == version);
        let (first, count) = (index - leaf.slot, leaf.slots);
        current = home.map(|(block, _)| CurrentLeaf { ino: inode.ino, first, count, block });
    })?;
    Ok((pointer, length, current))
}

/// The same; `visit` gets each leaf, and the block that it was looked up for.
#[inline]
fn run_in(
    nodes: &Reader,
    inode: Inode<'_>,
    index: u64,
    max: u64,
    mut visit: impl FnMut(&Leaf<'_>, u64),
) -> vfs::Result<(DataPointer, u64)> {
    if max <= 1 && index < FILE_MAX / BLOCK {
        let leaf = leaf(nodes, inode, index)?;
        visit(&leaf, index);
        let pointer = leaf.pointer(leaf.slot);
        if !pointer.is_hole() {
            nodes.check_pointer(inode, index, pointer)?;
        }
        return Ok((pointer, 1));
    }
    let mut first = None;
    let mut length = 0;
    let max = max.max(1);
    while length < max && index + length < FILE_MAX / BLOCK {
        let leaf = leaf(nodes, inode, index + length)?;
        visit(&leaf, index + length);
        let first = *first.get_or_insert_with(|| leaf.pointer(leaf.slot));
        let end = leaf.slots.min(leaf.slot + max - length);
        let there = (leaf.pointers.len() / 8) as u64;
        let mut slot = leaf.slot;
        if first.is_hole() {
            while slot < end.min(there) && leaf.pointer(slot).is_hole() {
                slot += 1;
            }
            if slot >= there {
                slot = end; // nothing is there
            }
        } else {
            while slot < end && leaf.pointer(slot) == first.plus(length + slot - leaf.slot) {
                slot += 1;
            }
        }
        length += slot - leaf.slot;
        if slot < end {
            break;
        }
    }
    let first = first.unwrap_or(DataPointer::HOLE);
    if !first.is_hole() {
        nodes.check_pointer(inode, index, first)?;
        if length > 1 {
            nodes.check_pointer(inode, index, first.plus(length - 1))?;
        }
    }
    Ok((first, length.max(1)))
}

/// Data pointers that lie side by side, open for change.
enum LeafEdit<'e, 'a> {
    Inode(&'e InodeEdit<'a>),
    Node(Edit<'a>),
}

impl LeafEdit<'_, '_> {
    fn pointer(&self, slot: u64) -> DataPointer {
        match self {
            LeafEdit::Inode(edit) => pointer_in(edit.inode().payload(), slot),
            LeafEdit::Node(edit) => DataPointer(edit.view().u64_at(HEADER + slot as usize * 8)),
        }
    }

    /// The bytes of the first `slots` pointers; what lies behind is holes. They must not be held while some are stored.
    fn pointers(&self, slots: u64) -> &[u8] {
        match self {
            LeafEdit::Inode(edit) => edit.inode().payload(),
            LeafEdit::Node(edit) => pointers_in(edit.view(), slots),
        }
    }

    /// Stores a pointer; a hole only if there is something.
    #[inline]
    fn put_one(&self, slot: u64, pointer: DataPointer) {
        let at = slot as usize * 8;
        match self {
            LeafEdit::Inode(edit) => edit.put_u64(at, pointer.0),
            LeafEdit::Node(edit) if pointer.is_hole() && HEADER + at >= edit.view().used() => {}
            LeafEdit::Node(edit) => edit.put_u64(HEADER + at, pointer.0),
        }
    }

    /// Stores pointers; `holes` only as far as there is something.
    fn put(&self, slot: u64, bytes: &[u8], holes: bool) {
        let at = slot as usize * 8;
        match self {
            LeafEdit::Inode(edit) => edit.put(at, bytes),
            LeafEdit::Node(edit) if holes => {
                let end = (HEADER + at + bytes.len()).min(edit.view().used());
                edit.store(HEADER + at, &bytes[..end.saturating_sub(HEADER + at)]);
            }
            LeafEdit::Node(edit) => edit.put(HEADER + at, bytes),
        }
    }
}

/// Points blocks `index .. index + count` of an inode to the run that begins with `pointer`, and frees what they
/// pointed to before. `current` may be a leaf of it.
pub(crate) fn set_run(
    nodes: &Nodes,
    budget: &Budget<'_>,
    inode: &InodeEdit<'_>,
    index: u64,
    count: u64,
    pointer: DataPointer,
    current: Option<CurrentLeaf>,
) -> vfs::Result<()> {
    let current = current.filter(|leaf| leaf.ino == inode.ino);
    let mut done = 0;
    while done < count {
        let at = index + done;
        let here = current.filter(|leaf| (leaf.first..leaf.first + leaf.count).contains(&at));
        debug_assert!(here.is_none_or(|here| {
            let found = leaf(nodes, inode.inode(), at).map(|leaf| (leaf.home, at - leaf.slot));
            found == Ok((Some((here.block, nodes.version())), here.first))
        }));
        let (leaf, slot, slots) = match (here, place(at)) {
            (Some(leaf), _) => (LeafEdit::Node(nodes.edit_current(leaf.block)), at - leaf.first, leaf.count),
            (None, Place::Inode { slot }) => (LeafEdit::Inode(inode), slot, IN_INODE),
            (None, Place::Map { slot }) => {
                let (map, _) = map_node(nodes, budget, inode)?;
                (LeafEdit::Node(nodes.edit(budget, map)?), slot, IN_MAP)
            }
            (None, Place::Tree { height, root, within }) => {
                let direct = direct_node(nodes, budget, inode, (height, root, within))?;
                (LeafEdit::Node(direct), within % IN_DIRECT, IN_DIRECT)
            }
        };
        let length = (slots - slot).min(count - done);
        inode.add_blocks(store_pointers(nodes, budget, &leaf, slot, length, pointer, done)?);
        done += length;
    }
    Ok(())
}

/// Stores `length` pointers, the first being `pointer` plus `skip`; frees the old blocks. Returns by how much the
/// file's blocks grew.
fn store_pointers(
    nodes: &Nodes,
    budget: &Budget<'_>,
    leaf: &LeafEdit<'_, '_>,
    slot: u64,
    length: u64,
    pointer: DataPointer,
    skip: u64,
) -> vfs::Result<i64> {
    let mut freed = FreeRun { nodes, budget: Some(budget), first: 0, length: 0 };
    if let (1, 0) = (length, skip) {
        return store_pointer(&mut freed, leaf, slot, pointer);
    }
    let mut delta = 0;
    let mut done = 0;
    while done < length {
        let mut bytes = [0; PIECE * 8];
        let piece = (length - done).min(PIECE as u64);
        let there = leaf.pointers(slot + length);
        for (n, bytes) in (0..piece).zip(bytes.chunks_exact_mut(8)) {
            let old = pointer_in(there, slot + done + n);
            let new = if pointer.is_hole() { pointer } else { pointer.plus(skip + done + n) };
            if !old.is_hole() && old.block() != new.block() {
                freed.add(old.block())?;
            }
            delta += i64::from(!new.is_hole()) - i64::from(!old.is_hole());
            bytes.copy_from_slice(&new.0.to_le_bytes());
        }
        leaf.put(slot + done, &bytes[..piece as usize * 8], pointer.is_hole());
        done += piece;
    }
    freed.flush()?;
    Ok(delta)
}

/// The same of one.
#[inline]
fn store_pointer(
    freed: &mut FreeRun<'_>,
    leaf: &LeafEdit<'_, '_>,
    slot: u64,
    pointer: DataPointer,
) -> vfs::Result<i64> {
    let old = leaf.pointer(slot);
    if !old.is_hole() && old.block() != pointer.block() {
        freed.add(old.block())?;
        freed.flush()?;
    }
    leaf.put_one(slot, pointer);
    Ok(i64::from(!pointer.is_hole()) - i64::from(!old.is_hole()))
}

/// Pointers that are stored at once.
const PIECE: usize = 32;

/// Frees what pointers of a node about to be removed point to; returns how many blocks.
fn free_pointers(nodes: &Nodes, pointers: &[u8]) -> vfs::Result<i64> {
    let mut freed = FreeRun { nodes, budget: None, first: 0, length: 0 };
    let mut count = 0;
    for pointer in pointers_of(pointers) {
        if !pointer.is_hole() {
            freed.add(pointer.block())?;
            count += 1;
        }
    }
    freed.flush()?;
    Ok(count)
}

fn pointers_of(bytes: &[u8]) -> impl Iterator<Item = DataPointer> + '_ {
    bytes.chunks_exact(8).map(|bytes| DataPointer(u64::from_le_bytes(bytes.try_into().expect("8 bytes"))))
}

/// Frees blocks, contiguous ones at once.
struct FreeRun<'a> {
    nodes: &'a Nodes,
    /// Whose operation lets go of a few blocks: the allocator is told later.
    budget: Option<&'a Budget<'a>>,
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
        match self.budget {
            _ if self.length == 0 => {}
            Some(budget) => budget.free(self.first, self.length),
            None => self.nodes.allocator.free(self.first, self.length),
        }
        self.length = 0;
        Ok(())
    }
}

/// An inode's map and its NID; made if there is none.
fn map_node<'a>(
    nodes: &'a Nodes,
    budget: &Budget<'_>,
    inode: &InodeEdit<'a>,
) -> vfs::Result<(u32, View<'a>)> {
    match inode.inode().derived().body.get() {
        0 => {
            let (nid, edit) = nodes.create(budget, BlockKind::Map, inode.ino, HEADER)?;
            inode.set_body(nid);
            inode.add_blocks(1);
            Ok((nid, edit.view()))
        }
        nid => Ok((nid, nodes.view(nid, BlockKind::Map)?)),
    }
}

/// The direct node at a place of a tree, for change; made, with all above it, if there is none.
fn direct_node<'a>(
    nodes: &'a Nodes,
    budget: &Budget<'_>,
    inode: &InodeEdit<'a>,
    (height, root, within): (usize, u64, u64),
) -> vfs::Result<Edit<'a>> {
    let (mut parent, mut view) = map_node(nodes, budget, inode)?;
    let mut at = root_at(height, root);
    for level in (1..=height).rev() {
        let kind = if level == 1 { BlockKind::Direct } else { BlockKind::Indirect };
        let mut nid = view.u32_at(at);
        if nid == 0 {
            let (new, edit) = nodes.create(budget, kind, inode.ino, HEADER)?;
            edit.set_level(level as u8 - 1);
            nodes.edit(budget, parent)?.put(at, &new.to_le_bytes());
            inode.add_blocks(1);
            nid = new;
        }
        if level == 1 {
            return nodes.edit_of(budget, nid, kind);
        }
        view = nodes.view(nid, kind)?;
        at = HEADER + (within / reach(level - 1) % IN_INDIRECT) as usize * 4;
        parent = nid;
    }
    unreachable!("a tree has a level")
}
