//! Extended attributes: behind an inode's fields, and in a block that inodes may share.

use vfs::{Error, Result};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::acl;
use crate::checksum::crc32c;
use crate::core::Core;
use crate::error::corrupt;
use crate::inode::Inode;
use crate::store::{Block, Kind};

const MAGIC: u32 = 0xEA02_0000;

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

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawHeader {
    magic: U32,
    inodes: U32,
    blocks: U32,
    hash: U32,
    checksum: U32,
    reserved: [U32; 3],
}
const HEADER: usize = 32;
const _: () = assert!(size_of::<RawHeader>() == HEADER);

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawEntry {
    name_length: u8,
    namespace: u8,
    value_at: U16,
    value_inode: U32,
    value_length: U32,
    hash: U32,
}
const ENTRY: usize = 16;
const _: () = assert!(size_of::<RawEntry>() == ENTRY);

/// An attribute as it is on the disk.
struct Found<'a> {
    namespace: u8,
    name: &'a [u8],
    value: &'a [u8],
}

impl Found<'_> {
    /// The whole name, if users can see it.
    fn full_name(&self) -> Option<Vec<u8>> {
        if (self.namespace, self.name) == INLINE {
            return None;
        }
        let (_, prefix) = PREFIXES.iter().find(|(number, _)| *number == self.namespace)?;
        Some([prefix, self.name].concat())
    }

    fn is(&self, full_name: &[u8]) -> bool {
        self.full_name().is_some_and(|name| name == full_name)
    }
}

/// The value of an attribute, by its whole name: [`Error::NoAttribute`] if there is none.
pub(crate) fn get(core: &Core, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
    let mut value = None;
    each(core, inode, &mut |found| {
        if value.is_none() && found.is(name) {
            value = Some(if ACLS.contains(&found.namespace) {
                acl::from_disk(found.value)
            } else {
                Some(found.value.to_vec())
            });
        }
    })?;
    match value {
        None => Err(Error::NoAttribute),
        Some(Some(value)) => Ok(value),
        Some(None) => Err(damaged(inode, "an ACL", "no list", "one")),
    }
}

/// The whole names of all attributes that users can see.
pub(crate) fn names(core: &Core, inode: &Inode) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    each(core, inode, &mut |found| names.extend(found.full_name()))?;
    Ok(names)
}

/// The contents of the inode that did not fit between its fields.
pub(crate) fn inline_rest(core: &Core, inode: &Inode) -> Result<Vec<u8>> {
    let mut rest = None;
    each(core, inode, &mut |found| {
        if (found.namespace, found.name) == INLINE {
            rest.get_or_insert_with(|| found.value.to_vec());
        }
    })?;
    rest.ok_or_else(|| damaged(inode, "its contents in the inode", "not there", "there"))
}

fn each(core: &Core, inode: &Inode, visit: &mut dyn FnMut(Found<'_>)) -> Result<()> {
    if inode.tail.first_chunk().map(|magic| u32::from_le_bytes(*magic)) == Some(MAGIC) {
        // Values count from the first entry.
        let entries = &inode.tail[4..];
        walk(inode, entries, 0, visit)?;
    }
    if inode.attributes != 0 {
        let block = read_block(core, inode)?;
        walk(inode, &block, HEADER, visit)?;
    }
    Ok(())
}

fn read_block(core: &Core, inode: &Inode) -> Result<Block> {
    let number = inode.attributes;
    if !core.superblock.has_blocks(number, 1) {
        return Err(damaged(inode, "their block", number, "one of the disk's"));
    }
    core.store.read(Kind::Attributes, number, |bytes| {
        let header = RawHeader::read_from_bytes(&bytes[..HEADER]).expect("the size fits");
        if header.magic.get() != MAGIC || header.blocks.get() != 1 {
            return Err(damaged(
                inode,
                "their block's magic number",
                format_args!("{:#x}", header.magic.get()),
                "0xea020000",
            ));
        }
        if core.superblock.features.has_metadata_csum() {
            let parts = [&number.to_le_bytes()[..], &bytes[..16], &[0; 4], &bytes[20..]];
            let expected = parts.iter().fold(core.superblock.checksum_seed, |sum, part| crc32c(sum, part));
            if header.checksum.get() != expected {
                let found = format_args!("{:#x}", header.checksum.get());
                return Err(damaged(inode, "their block's checksum", found, format_args!("{expected:#x}")));
            }
        }
        Ok(())
    })
}

/// Visits the entries from byte `at` on; values are at places in the same bytes.
fn walk(inode: &Inode, bytes: &[u8], mut at: usize, visit: &mut dyn FnMut(Found<'_>)) -> Result<()> {
    // Four zeros end the list; so does the end of the bytes.
    while bytes.get(at..at + 4).is_some_and(|start| start != [0; 4]) {
        let cut = || damaged(inode, "an entry", format_args!("at byte {at}"), "one that fits");
        let (raw, rest) = RawEntry::read_from_prefix(&bytes[at..]).map_err(|_| cut())?;
        let name = rest.get(..usize::from(raw.name_length)).ok_or_else(cut)?;
        if raw.value_inode.get() != 0 {
            return Err(damaged(
                inode,
                "a value",
                format_args!("in inode {}", raw.value_inode.get()),
                "one of its own",
            ));
        }
        let (start, length) = (usize::from(raw.value_at.get()), raw.value_length.get() as usize);
        let value =
            if length == 0 { Some(&[][..]) } else { bytes.get(start..).and_then(|rest| rest.get(..length)) };
        let value = value.ok_or_else(|| {
            damaged(inode, "a value", format_args!("{length} bytes at {start}"), "one that fits")
        })?;
        visit(Found { namespace: raw.namespace, name, value });
        at += (ENTRY + name.len()).next_multiple_of(4);
    }
    Ok(())
}

fn damaged(
    inode: &Inode,
    field: &str,
    found: impl std::fmt::Display,
    expected: impl std::fmt::Display,
) -> vfs::Error {
    corrupt("extended attributes", format_args!("inode {}", inode.number), field, found, expected)
}
