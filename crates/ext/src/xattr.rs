//! Extended attributes: behind an inode's fields, and in a block that inodes may share.
//!
//! Where they are is decided as the kernel does it: behind the fields if there is room, else in the block. Whichever of the two changes is
//! written anew. A block that others have, too, is not changed: the inode gets its own.

mod area;
#[cfg(test)]
mod tests;

use vfs::{Error, Result};

use crate::acl;
use crate::checksum::crc32c;
use crate::core::inode::Inode;
use crate::core::{Core, alloc};
use crate::error::corrupt;
use crate::features::Compat;
use crate::store::{Block, Kind};
use area::Attribute;

/// Namespaces by number: what stands before a name, and all of the name where none follows.
const PREFIXES: [(u8, &[u8]); 6] = [
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (6, b"security."),
    (7, b"system."),
];
/// The namespaces that hold ACLs.
const ACLS: [u8; 2] = [2, 3];
/// The namespace and name of contents that are in an inode.
const INLINE: (u8, &[u8]) = (7, b"data");

/// The whole name of an attribute, if users can see it.
fn full_name(found: &Attribute) -> Option<Vec<u8>> {
    if (found.namespace, &found.name[..]) == INLINE {
        return None;
    }
    let (_, prefix) = PREFIXES.iter().find(|(number, _)| *number == found.namespace)?;
    Some([prefix, &found.name[..]].concat())
}

fn is(found: &Attribute, name: &[u8]) -> bool {
    full_name(found).is_some_and(|full| full == name)
}

/// An attribute as the disk has it, by its whole name; [`Error::NotSupported`] if there is no such namespace.
fn to_disk(name: &[u8], value: &[u8]) -> Result<Attribute> {
    let is_whole = |prefix: &[u8]| !prefix.ends_with(b".");
    let fits = |prefix: &[u8]| if is_whole(prefix) { name == prefix } else { name.starts_with(prefix) };
    let (namespace, prefix) = PREFIXES.iter().find(|(_, prefix)| fits(prefix)).ok_or(Error::NotSupported)?;
    let value = if ACLS.contains(namespace) { acl::to_disk(value) } else { value.to_vec() };
    Ok(Attribute { namespace: *namespace, name: name[prefix.len()..].to_vec(), value })
}

/// The value of an attribute, by its whole name: [`Error::NoAttribute`] if there is none.
pub(crate) fn get(core: &Core, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
    let found = all(core, inode)?.into_iter().find(|found| is(found, name)).ok_or(Error::NoAttribute)?;
    if ACLS.contains(&found.namespace) {
        acl::from_disk(&found.value).ok_or_else(|| damaged(inode, "an ACL", "no list", "one"))
    } else {
        Ok(found.value)
    }
}

/// The whole names of all attributes that users can see.
pub(crate) fn names(core: &Core, inode: &Inode) -> Result<Vec<Vec<u8>>> {
    Ok(all(core, inode)?.iter().filter_map(full_name).collect())
}

/// The contents of the inode that did not fit between its fields.
pub(crate) fn inline_rest(core: &Core, inode: &Inode) -> Result<Vec<u8>> {
    let found = all(core, inode)?.into_iter().find(|found| (found.namespace, &found.name[..]) == INLINE);
    found
        .map(|found| found.value)
        .ok_or_else(|| damaged(inode, "its contents in the inode", "not there", "there"))
}

/// How many inodes the block of attributes that an inode has says that it has.
pub(crate) fn owners(core: &Core, inode: &Inode) -> Result<u32> {
    Ok(area::owners(&read_block(core, inode)?))
}

fn all(core: &Core, inode: &Inode) -> Result<Vec<Attribute>> {
    let mut all = area::decode_tail(inode)?;
    if inode.attributes != 0 {
        all.extend(area::decode_block(inode, &read_block(core, inode)?)?);
    }
    Ok(all)
}

/// Part of an operation: sets an attribute, or removes it, if there is no value. [`Error::NoSpace`] if it fits nowhere. The caller writes the
/// inode.
pub(crate) fn set(core: &Core, inode: &mut Inode, name: &[u8], value: Option<&[u8]>) -> Result<()> {
    let new = value.map(|value| to_disk(name, value)).transpose()?;
    let mut in_tail = area::decode_tail(inode)?;
    let mut in_block = match inode.attributes {
        0 => Vec::new(),
        _ => area::decode_block(inode, &read_block(core, inode)?)?,
    };
    let was_in_tail = in_tail.iter().any(|found| is(found, name));
    let was_in_block = in_block.iter().any(|found| is(found, name));
    in_tail.retain(|found| !is(found, name));
    in_block.retain(|found| !is(found, name));
    if let Some(new) = &new {
        in_tail.push(new.clone());
        if let Some(tail) = area::encode_tail(&in_tail, inode.tail_bytes) {
            inode.tail = tail;
            return if was_in_block { write_block(core, inode, in_block) } else { Ok(()) };
        }
        in_tail.pop();
    }
    if was_in_tail {
        inode.tail = area::encode_tail(&in_tail, inode.tail_bytes).ok_or(Error::NoSpace)?;
    }
    let is_kept = new.is_some();
    in_block.extend(new);
    if is_kept || was_in_block { write_block(core, inode, in_block) } else { Ok(()) }
}

/// Part of an operation: the inode, which is being removed, has no attributes any more.
pub(crate) fn release(core: &Core, inode: &mut Inode) -> Result<()> {
    if inode.attributes == 0 { Ok(()) } else { give_up_block(core, inode) }
}

/// The block of an inode has these attributes: its own block, a new one, or none.
fn write_block(core: &Core, inode: &mut Inode, all: Vec<Attribute>) -> Result<()> {
    let mut was = None;
    if inode.attributes != 0 {
        let owners = area::owners(&read_block(core, inode)?);
        if owners == 1 && !all.is_empty() {
            was = Some(inode.attributes);
        } else {
            give_up_block(core, inode)?;
        }
    }
    if all.is_empty() {
        return Ok(());
    }
    let bytes = area::encode_block(all, core.superblock.block as usize).ok_or(Error::NoSpace)?;
    let write = |number: u64, block: &mut [u8]| {
        block.copy_from_slice(&bytes);
        seal(core, number, block);
    };
    if let Some(number) = was {
        return core.store.change(Kind::Attributes, number, |_| Ok(()), |block| write(number, block.all()));
    }
    core.add_compat(Compat::EXT_ATTR)?;
    let number = alloc::metadata(core, core.superblock.group_of_inode_start(inode.number))?;
    core.store.make(Kind::Attributes, number, |block| write(number, block));
    inode.attributes = number;
    inode.blocks += core.superblock.block / 512;
    Ok(())
}

/// The inode is one fewer that has its block.
fn give_up_block(core: &Core, inode: &mut Inode) -> Result<()> {
    let number = inode.attributes;
    let owners = area::owners(&read_block(core, inode)?);
    if owners > 1 {
        core.store.change(
            Kind::Attributes,
            number,
            |_| Ok(()),
            |block| {
                area::set_owners(block.all(), owners - 1);
                seal(core, number, block.all());
            },
        )?;
    } else {
        alloc::free(core, number..number + 1)?;
        core.store.forget(number);
    }
    inode.attributes = 0;
    inode.blocks = inode.blocks.saturating_sub(core.superblock.block / 512);
    Ok(())
}

fn read_block(core: &Core, inode: &Inode) -> Result<Block> {
    let number = inode.attributes;
    if !core.superblock.has_blocks(number, 1) {
        return Err(damaged(inode, "their block", number, "one of the disk's"));
    }
    core.store.read(Kind::Attributes, number, |bytes| {
        area::check_block(inode, bytes)?;
        if core.superblock.features.has_metadata_csum() {
            let (found, expected) = (area::checksum(bytes), checksum(core, number, bytes));
            if found != expected {
                let found = format_args!("{found:#x}");
                return Err(damaged(inode, "their block's checksum", found, format_args!("{expected:#x}")));
            }
        }
        Ok(())
    })
}

/// The checksum that block `number` should have.
fn checksum(core: &Core, number: u64, bytes: &[u8]) -> u32 {
    let parts = [&number.to_le_bytes()[..], &bytes[..16], &[0; 4], &bytes[20..]];
    parts.iter().fold(core.superblock.checksum_seed, |sum, part| crc32c(sum, part))
}

fn seal(core: &Core, number: u64, bytes: &mut [u8]) {
    if core.superblock.features.has_metadata_csum() {
        let sum = checksum(core, number, bytes);
        area::set_checksum(bytes, sum);
    }
}

fn damaged(
    inode: &Inode,
    field: &str,
    found: impl std::fmt::Display,
    expected: impl std::fmt::Display,
) -> vfs::Error {
    corrupt("extended attributes", format_args!("inode {}", inode.number), field, found, expected)
}
