//! Applying the items of a transaction: what the running volume does after each commit, and replay after a crash.

use nvm::Purpose;
use vfs::FileKind;

use crate::allocator::Budget;
use crate::directory::{self, Spot};
use crate::error::corrupt;
use crate::fault::{self, Fault};
use crate::geometry::BLOCK;
use crate::index::{self, CurrentLeaf};
use crate::inode::{Hot, InodeEdit, Layout, PAYLOAD_BYTES, nid_of};
use crate::node::ORPHANS;
use crate::nodes::Nodes;
use crate::page::Entry;
use crate::record::{Item, Items};
use crate::xattr;

/// When bytes changed in place reach the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InPlace {
    /// At the next checkpoint, which finds them in the log.
    WithCheckpoint,
    /// Now: there is no log to find them in.
    Now,
}

/// What has been seen of what items change, in its copy of the running epoch: it need not be looked for again. It stays there for
/// as long as the operation runs, which holds a lane and the locks of its inodes.
#[derive(Default)]
pub(crate) struct Seen<'a> {
    /// The inodes that the last items changed, or made, are mostly the next one's, too.
    inodes: [Option<InodeEdit<'a>>; 2],
    pub(crate) leaf: Option<CurrentLeaf>,
    /// Entries that are to be changed.
    spots: [Option<Spot>; 2],
}

impl<'a> Seen<'a> {
    #[inline]
    pub(crate) fn note_inode(&mut self, inode: InodeEdit<'a>) {
        self.inodes = [Some(inode), self.inodes[0]];
    }

    /// Inode `ino`, if it was noted of late.
    #[inline]
    pub(crate) fn inode(&self, ino: u32) -> Option<InodeEdit<'a>> {
        self.inodes.iter().flatten().find(|inode| inode.ino == ino).copied()
    }

    /// Notes where an entry is that an item will change, or where one is that it will make.
    #[inline]
    pub(crate) fn note(&mut self, spot: Spot) {
        self.spots = [Some(spot), self.spots[0]];
    }

    /// Where the entry is, if that was noted; an item may change what is so once.
    #[inline]
    fn spot(&mut self, dir: u32, key: u64) -> Option<Spot> {
        let is_it = |spot: &mut Spot| (spot.dir, spot.key) == (dir, key);
        self.spots.iter_mut().find_map(|spot| spot.take_if(is_it))
    }
}

/// Applies all items of a committed transaction, in order.
pub(crate) fn apply<'a>(
    nodes: &'a Nodes,
    budget: &Budget<'_>,
    seen: &mut Seen<'a>,
    items: &[u8],
    in_place: InPlace,
) -> vfs::Result<()> {
    for item in Items(items) {
        match &item {
            Ok(item) => apply_item(nodes, budget, seen, item, in_place)?,
            Err(_) => return Err(malformed(nodes)),
        }
    }
    Ok(())
}

/// Applies an item of a transaction that is not committed yet. An inode that it enters is made later, with a note of the
/// entry.
pub(crate) fn apply_at_once<'a>(
    nodes: &'a Nodes,
    budget: &Budget<'_>,
    seen: &mut Seen<'a>,
    item: &Item<'_>,
) -> vfs::Result<()> {
    match *item {
        Item::Enter { dir, key, ino, kind, name } => {
            enter(nodes, budget, seen, dir, &Entry { key, ino, kind, name })
        }
        _ => apply_item(nodes, budget, seen, item, InPlace::WithCheckpoint),
    }
}

/// Applies a transaction of the log, bytes in place last: what the newest checkpoint reaches is changed only if all else
/// can be, so that a transaction that cannot be applied leaves nothing there.
pub(crate) fn replay(nodes: &Nodes, budget: &Budget<'_>, items: &[u8]) -> vfs::Result<()> {
    for in_place in [false, true] {
        for item in Items(items) {
            let item = item.map_err(|_| malformed(nodes))?;
            if matches!(item, Item::Bytes { .. }) == in_place {
                apply_item(nodes, budget, &mut Seen::default(), &item, InPlace::Now)?;
            }
        }
    }
    Ok(())
}

pub(crate) fn malformed(nodes: &Nodes) -> vfs::Error {
    corrupt("log", nodes.medium.geometry.log_start, "an item", "malformed", "one this version writes")
}

fn apply_item<'a>(
    nodes: &'a Nodes,
    budget: &Budget<'_>,
    seen: &mut Seen<'a>,
    item: &Item<'_>,
    in_place: InPlace,
) -> vfs::Result<()> {
    match *item {
        Item::Create { ino, cold, hot } => {
            check_inline(ino, hot, cold.kind() == FileKind::Directory, PAYLOAD_BYTES)?;
            seen.note_inode(nodes.create_inode(budget, ino, cold, hot)?);
            Ok(())
        }
        Item::Hot { ino, hot } => set_hot(again(nodes, budget, seen, ino)?, hot),
        Item::Cold { ino, cold } => {
            again(nodes, budget, seen, ino)?.set_cold(cold);
            Ok(())
        }
        Item::Enter { dir, key, ino, kind, name } => {
            enter(nodes, budget, seen, dir, &Entry { key, ino, kind, name })?;
            note_entry(nodes, budget, seen, dir, key, ino)
        }
        Item::Leave { dir, key } => {
            let edit = again(nodes, budget, seen, dir)?;
            directory::leave(nodes, budget, edit, key, seen.spot(dir, key))
        }
        Item::Relink { dir, key, ino, kind } => {
            directory::relink(nodes, budget, (dir, key), (ino, kind), seen.spot(dir, key))?;
            note_entry(nodes, budget, seen, dir, key, ino)
        }
        Item::Map { ino, index, count, pointer } => {
            let inode = again(nodes, budget, seen, ino)?;
            index::set_run(nodes, budget, &inode, index, u64::from(count), pointer, seen.leaf)
        }
        Item::Unmap { ino, from, to } => {
            seen.leaf = None; // it may go
            let edit = nodes.edit_inode(budget, ino)?;
            if edit.inode().layout() != Layout::Mapped {
                return Ok(());
            }
            index::unmap(nodes, budget, ino, from, to)?;
            if from == 0 && to == u64::MAX {
                edit.set_layout(Layout::Inline);
            }
            Ok(())
        }
        Item::Inline { ino, offset, bytes } => {
            let edit = nodes.edit_inode(budget, ino)?;
            let (end, room) = (usize::from(offset) + bytes.len(), edit.inode().inline_capacity());
            if end > room || edit.inode().layout() != Layout::Inline {
                return Err(corrupt("log", edit.block, "end of an inline file's bytes", end, room));
            }
            edit.put(usize::from(offset), bytes);
            Ok(())
        }
        Item::Spill { ino } => {
            let edit = nodes.edit_inode(budget, ino)?;
            if edit.inode().layout() != Layout::Inline {
                return Err(corrupt("log", edit.block, "an inline file", "another inode", "one"));
            }
            xattr::move_out(nodes, budget, &edit)?;
            edit.zero(0..PAYLOAD_BYTES);
            edit.set_layout(Layout::Mapped);
            Ok(())
        }
        Item::Bytes { block, offset, bytes, .. } => {
            check_block(nodes, block)?;
            let at = block * BLOCK + u64::from(offset);
            let region = &nodes.medium.region;
            region.store(Purpose::Checkpoint, at, bytes);
            if in_place == InPlace::Now {
                let length = bytes.len() as u64;
                let flushed = fault::flush(region, Fault::BytesNotFlushed, Purpose::Checkpoint, at, length);
                region.fence(flushed).ignore();
            }
            Ok(())
        }
        Item::SetXattr { ino, name, value } => xattr::set(nodes, budget, ino, name, Some(value)),
        Item::RemoveXattr { ino, name } => xattr::set(nodes, budget, ino, name, None),
        Item::Remove { ino } => {
            *seen = Seen::default();
            remove(nodes, budget, ino)
        }
    }
}

/// Adds an entry to a directory.
fn enter<'a>(
    nodes: &'a Nodes,
    budget: &Budget<'_>,
    seen: &mut Seen<'a>,
    dir: u32,
    entry: &Entry<'_>,
) -> vfs::Result<()> {
    let edit = again(nodes, budget, seen, dir)?;
    directory::enter(nodes, budget, edit, entry, seen.spot(dir, entry.key))
}

/// Notes in an inode which entry names it, so that its path can be told; the hidden directory is no place to be found in.
fn note_entry<'a>(
    nodes: &'a Nodes,
    budget: &Budget<'_>,
    seen: &mut Seen<'a>,
    dir: u32,
    key: u64,
    ino: u32,
) -> vfs::Result<()> {
    if dir != ORPHANS {
        let edit = again(nodes, budget, seen, ino)?;
        // A new inode was made with it.
        if !edit.inode().cold().is_entered(dir, key) {
            edit.set_entry(dir, key);
        }
    }
    Ok(())
}

/// An error if a difference cannot be in this block.
pub(crate) fn check_block(nodes: &Nodes, block: u64) -> vfs::Result<()> {
    let log = nodes.medium.geometry.log_start;
    nodes.medium.check_main("log", log, format_args!("block of a difference"), block)
}

/// An error if an inode of this length cannot be an inline file of at most `room` bytes; directories have no bytes.
fn check_inline(ino: u32, hot: &Hot, is_dir: bool, room: usize) -> vfs::Result<()> {
    let size = hot.size.get();
    if !is_dir && size > room as u64 {
        return Err(corrupt(&format!("inode {ino}"), 0, "size", size, "one that fits an inline file"));
    }
    Ok(())
}

/// Inode `ino`, open for change; it is looked for if it was not seen.
#[inline]
fn again<'a>(
    nodes: &'a Nodes,
    budget: &Budget<'_>,
    seen: &mut Seen<'a>,
    ino: u32,
) -> vfs::Result<InodeEdit<'a>> {
    if let Some(edit) = seen.inode(ino) {
        debug_assert_eq!(nodes.current(nid_of(ino)), Ok(Some(edit.block)));
        return Ok(edit);
    }
    let edit = nodes.edit_inode(budget, ino)?;
    seen.note_inode(edit);
    Ok(edit)
}

/// An inline file's payload is as long as the file.
fn set_hot(edit: InodeEdit<'_>, hot: &Hot) -> vfs::Result<()> {
    let inode = edit.inode();
    if inode.layout() == Layout::Inline {
        check_inline(edit.ino, hot, false, inode.inline_capacity())?;
        let (old, new) = (inode.inline_bytes().len(), hot.size.get() as usize);
        edit.zero(old.min(new)..new);
    }
    edit.set_hot(hot);
    Ok(())
}

/// Frees everything an inode holds, and the inode.
fn remove(nodes: &Nodes, budget: &Budget<'_>, ino: u32) -> vfs::Result<()> {
    let inode = nodes.inode(ino)?;
    let mut held = Vec::new();
    match inode.layout() {
        Layout::Mapped => index::free_all(nodes, inode, &mut held)?,
        Layout::Directory => directory::walk(nodes, inode, &mut |nid, _| {
            held.push(nid);
            Ok(())
        })?,
        Layout::Inline => {}
    }
    held.extend(Some(inode.derived().xattr_nid.get()).filter(|nid| *nid != 0));
    for nid in held {
        nodes.remove(nid, false)?;
    }
    nodes.remove_inode(budget, ino)
}
