//! Applying the items of a transaction: what the running volume does after each commit, and replay after a crash.

use nvm::Purpose;
use vfs::FileKind;

use crate::allocator::Budget;
use crate::bia::BlockKind;
use crate::directory;
use crate::error::corrupt;
use crate::geometry::BLOCK;
use crate::index;
use crate::inode::{Hot, Inode, InodeEdit, Layout, PAYLOAD};
use crate::node::Nodes;
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

/// Applies all items of a committed transaction, in order.
pub(crate) fn apply(nodes: &Nodes, budget: &Budget<'_>, items: &[u8], in_place: InPlace) -> vfs::Result<()> {
    for item in Items(items) {
        let item = item.map_err(|_| malformed(nodes))?;
        apply_item(nodes, budget, &item, in_place)?;
    }
    Ok(())
}

pub(crate) fn malformed(nodes: &Nodes) -> vfs::Error {
    corrupt("log", nodes.medium.geometry.log_start, "an item", "malformed", "one this version writes")
}

fn apply_item(nodes: &Nodes, budget: &Budget<'_>, item: &Item<'_>, in_place: InPlace) -> vfs::Result<()> {
    match *item {
        Item::Create { ino, cold, hot } => {
            let directory = cold.kind() == FileKind::Directory;
            let used = if directory { directory::PAGE_USED } else { PAYLOAD };
            nodes.create_at(budget, ino, BlockKind::Inode, ino, used, |edit| {
                edit.set_cold(&cold);
                edit.set_hot(&hot);
                if directory {
                    edit.set_layout(Layout::Page);
                }
            })?;
            nodes.inodes.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        }
        Item::Hot { ino, hot } => set_hot(nodes, budget, ino, &hot),
        Item::Cold { ino, cold } => {
            edit_inode(nodes, budget, ino)?.set_cold(&cold);
            Ok(())
        }
        Item::Enter { dir, key, ino, kind, name } => {
            directory::enter(nodes, budget, dir, &Entry { key, ino, kind, name })
        }
        Item::Leave { dir, key } => directory::leave(nodes, budget, dir, key),
        Item::Relink { dir, key, ino, kind } => directory::relink(nodes, budget, dir, key, ino, kind),
        Item::Map { ino, index, count, pointer } => {
            index::set_run(nodes, budget, ino, index, u64::from(count), pointer)
        }
        Item::Unmap { ino, from, to } => {
            let edit = edit_inode(nodes, budget, ino)?;
            if (Inode { view: edit.view() }).layout() != Layout::Mapped {
                return Ok(());
            }
            index::unmap(nodes, budget, ino, from, to)?;
            if from == 0 && to == u64::MAX {
                edit.shrink(PAYLOAD);
                edit.set_layout(Layout::Inline);
            }
            Ok(())
        }
        Item::Inline { ino, offset, bytes } => {
            let edit = edit_inode(nodes, budget, ino)?;
            let (end, room) =
                (usize::from(offset) + bytes.len(), Inode { view: edit.view() }.inline_capacity());
            if end > room {
                return Err(corrupt("log", edit.block, "end of an inline file's bytes", end, room));
            }
            edit.put(PAYLOAD + usize::from(offset), bytes);
            Ok(())
        }
        Item::Spill { ino } => {
            let edit = edit_inode(nodes, budget, ino)?;
            edit.shrink(PAYLOAD);
            edit.set_layout(Layout::Mapped);
            Ok(())
        }
        Item::Bytes { block, offset, bytes } => {
            nodes.medium.check_main(
                "log",
                nodes.medium.geometry.log_start,
                format_args!("block of a difference"),
                block,
            )?;
            let at = block * BLOCK + u64::from(offset);
            let region = &nodes.medium.region;
            region.store(Purpose::Data, at, bytes);
            if in_place == InPlace::Now {
                let flushed = region.flush(Purpose::Data, at, bytes.len() as u64);
                region.fence(flushed).ignore();
            }
            Ok(())
        }
        Item::SetXattr { ino, name, value } => xattr::set(nodes, budget, ino, name, Some(value)),
        Item::RemoveXattr { ino, name } => xattr::set(nodes, budget, ino, name, None),
        Item::Remove { ino } => remove(nodes, ino),
    }
}

fn edit_inode<'a>(nodes: &'a Nodes, budget: &Budget<'_>, ino: u32) -> vfs::Result<crate::node::Edit<'a>> {
    nodes.edit(budget, ino)
}

/// An inline file's payload is as long as the file.
fn set_hot(nodes: &Nodes, budget: &Budget<'_>, ino: u32, hot: &Hot) -> vfs::Result<()> {
    let edit = edit_inode(nodes, budget, ino)?;
    let inode = Inode { view: edit.view() };
    if inode.layout() == Layout::Inline && inode.kind() != FileKind::Directory {
        let size = hot.size.get();
        if size > inode.inline_capacity() as u64 {
            return Err(corrupt(
                &format!("inode {ino}"),
                edit.block,
                "size",
                size,
                "one that fits an inline file",
            ));
        }
        let (used, wanted) = (edit.view().used(), PAYLOAD + size as usize);
        if wanted < used {
            edit.shrink(wanted);
        } else {
            edit.extend(wanted);
        }
    }
    edit.set_hot(hot);
    Ok(())
}

/// Frees everything an inode holds, and the inode.
fn remove(nodes: &Nodes, ino: u32) -> vfs::Result<()> {
    let inode = Inode { view: nodes.view(ino, BlockKind::Inode)? };
    let mut held = Vec::new();
    match inode.layout() {
        Layout::Mapped => index::free_all(nodes, inode, &mut held)?,
        Layout::Trie => directory::walk(nodes, inode, &mut |nid, _| {
            held.push(nid);
            Ok(())
        })?,
        Layout::Inline | Layout::Page => {}
    }
    held.extend(Some(inode.derived().xattr_nid.get()).filter(|nid| *nid != 0));
    for nid in held {
        nodes.remove(nid)?;
    }
    nodes.remove(ino)?;
    nodes.inodes.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    Ok(())
}
