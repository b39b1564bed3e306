//! Extended attributes: at the end of the inode's slot where they fit, else in one node of their own.
//!
//! ```text
//! each: name length u8 │ value length u16 │ name │ value
//! ```

use crate::allocator::Budget;
use crate::bia::BlockKind;
use crate::error::corrupt;
use crate::geometry::BLOCK;
use crate::inode::{Inode, InodeEdit};
use crate::node::HEADER;
use crate::nodes::Nodes;
use crate::reader::Reader;

/// Most bytes all attributes of an inode may take, names and values with 3 bytes each.
pub(crate) const TOTAL_MAX: usize = BLOCK as usize - HEADER;

/// One attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attribute<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
}

fn stored<'a>(nodes: &'a Reader, inode: Inode<'a>) -> vfs::Result<&'a [u8]> {
    match inode.derived().xattr_nid.get() {
        0 => Ok(inode.xattr_bytes()),
        nid => {
            let view = nodes.view(nid, BlockKind::Xattr)?;
            Ok(&view.bytes[HEADER..view.used()])
        }
    }
}

/// Calls `visit` for each attribute.
pub(crate) fn each<'a>(
    nodes: &'a Reader,
    inode: Inode<'a>,
    mut visit: impl FnMut(Attribute<'a>),
) -> vfs::Result<()> {
    let mut rest = stored(nodes, inode)?;
    while let [name_len, low, high, tail @ ..] = rest {
        let (name, value) = (usize::from(*name_len), usize::from(u16::from_le_bytes([*low, *high])));
        if tail.len() < name + value {
            let at = inode.block;
            return Err(corrupt(
                "extended attributes",
                at,
                "length",
                name + value,
                format!("≤ {}", tail.len()),
            ));
        }
        visit(Attribute { name: &tail[..name], value: &tail[name..name + value] });
        rest = &tail[name + value..];
    }
    Ok(())
}

/// Bytes that an attribute takes.
pub(crate) fn stored_bytes(name: &[u8], value: &[u8]) -> usize {
    3 + name.len() + value.len()
}

/// The value of attribute `name`.
pub(crate) fn get<'a>(nodes: &'a Reader, inode: Inode<'a>, name: &[u8]) -> vfs::Result<Option<&'a [u8]>> {
    if inode.derived().xattr_nid.get() == 0 && inode.xattr_bytes().is_empty() {
        return Ok(None);
    }
    let mut found = None;
    each(nodes, inode, |attribute| {
        if attribute.name == name {
            found = Some(attribute.value);
        }
    })?;
    Ok(found)
}

/// All attributes as they would be stored with `name` set to `value` (`None`: removed).
fn replaced(nodes: &Reader, inode: Inode<'_>, name: &[u8], value: Option<&[u8]>) -> vfs::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut push = |name: &[u8], value: &[u8]| {
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
    };
    each(nodes, inode, |attribute| {
        if attribute.name != name {
            push(attribute.name, attribute.value);
        }
    })?;
    if let Some(value) = value {
        push(name, value);
    }
    Ok(bytes)
}

/// `ENOSPC` if the attribute would not fit.
pub(crate) fn check_fits(nodes: &Reader, inode: Inode<'_>, name: &[u8], value: &[u8]) -> vfs::Result<()> {
    match replaced(nodes, inode, name, Some(value))?.len() {
        0..=TOTAL_MAX => Ok(()),
        _ => Err(vfs::Error::NoSpace),
    }
}

/// Sets (`None`: removes) an attribute of inode `ino`.
pub(crate) fn set(
    nodes: &Nodes,
    budget: &Budget<'_>,
    ino: u32,
    name: &[u8],
    value: Option<&[u8]>,
) -> vfs::Result<()> {
    let edit = nodes.edit_inode(budget, ino)?;
    let bytes = replaced(nodes, edit.inode(), name, value)?;
    if bytes.len() > TOTAL_MAX {
        return Err(corrupt("log", edit.block, "extended attributes of an inode", bytes.len(), TOTAL_MAX));
    }
    store(nodes, budget, &edit, &bytes, edit.inode().xattr_capacity())
}

/// Moves the attributes out of the inode's slot, if they are there: its payload is needed.
pub(crate) fn move_out(nodes: &Nodes, budget: &Budget<'_>, edit: &InodeEdit<'_>) -> vfs::Result<()> {
    let bytes = edit.inode().xattr_bytes().to_vec();
    if bytes.is_empty() { Ok(()) } else { store(nodes, budget, edit, &bytes, 0) }
}

/// Stores all attributes of an inode: in its slot if they take no more than `room`.
fn store(
    nodes: &Nodes,
    budget: &Budget<'_>,
    edit: &InodeEdit<'_>,
    bytes: &[u8],
    room: usize,
) -> vfs::Result<()> {
    let nid = edit.inode().derived().xattr_nid.get();
    if bytes.len() <= room {
        edit.set_inline_xattrs(bytes);
        if nid != 0 {
            nodes.remove(nid, false)?;
            edit.set_xattr_nid(0);
            edit.add_blocks(-1);
        }
        return Ok(());
    }
    let node = if nid == 0 {
        let (nid, node) = nodes.create(budget, BlockKind::Xattr, edit.ino, HEADER)?;
        edit.set_xattr_nid(nid);
        edit.set_inline_xattrs(&[]);
        edit.add_blocks(1);
        node
    } else {
        nodes.edit(budget, nid)?
    };
    node.shrink(HEADER + bytes.len());
    node.store(HEADER, bytes);
    Ok(())
}
