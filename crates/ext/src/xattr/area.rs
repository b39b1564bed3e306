//! Attributes in bytes: entries from the front, values from the back, and nothing between.

use vfs::Result;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::damaged;
use crate::core::inode::Inode;

const MAGIC: u32 = 0xEA02_0000;
/// Bytes of the magic number behind an inode's fields.
const TAIL_HEADER: usize = 4;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attribute {
    pub(super) namespace: u8,
    pub(super) name: Vec<u8>,
    pub(super) value: Vec<u8>,
}

impl Attribute {
    fn entry_bytes(&self) -> usize {
        (ENTRY + self.name.len()).next_multiple_of(4)
    }

    /// What the kernel looks for the same attributes by.
    fn hash(&self) -> u32 {
        let name = self.name.iter().fold(0u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
        self.value.chunks(4).fold(name, |hash, chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        })
    }
}

/// The attributes behind an inode's fields.
pub(super) fn decode_tail(inode: &Inode) -> Result<Vec<Attribute>> {
    match inode.tail.split_first_chunk() {
        // Values count from the first entry.
        Some((magic, entries)) if u32::from_le_bytes(*magic) == MAGIC => decode(inode, entries, 0),
        _ => Ok(Vec::new()),
    }
}

/// The attributes of a block.
pub(super) fn decode_block(inode: &Inode, block: &[u8]) -> Result<Vec<Attribute>> {
    decode(inode, block, HEADER)
}

/// The entries from byte `at` on; values are at places in the same bytes.
fn decode(inode: &Inode, bytes: &[u8], mut at: usize) -> Result<Vec<Attribute>> {
    let mut all = Vec::new();
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
        let attribute = Attribute { namespace: raw.namespace, name: name.to_vec(), value: value.to_vec() };
        at += attribute.entry_bytes();
        all.push(attribute);
    }
    Ok(all)
}

/// A tail of `bytes` bytes with these attributes, if they fit.
pub(super) fn encode_tail(all: &[Attribute], bytes: usize) -> Option<Box<[u8]>> {
    let mut tail = vec![0; bytes];
    if all.is_empty() {
        return Some(tail.into());
    }
    let (magic, entries) = tail.split_at_mut_checked(TAIL_HEADER)?;
    magic.copy_from_slice(&MAGIC.to_le_bytes());
    // Hashes are for finding blocks to share.
    encode(all.iter().map(|attribute| (attribute, 0)), entries, 0)?;
    Some(tail.into())
}

/// A block of `bytes` bytes with these attributes, if they fit, of one inode and without its checksum.
pub(super) fn encode_block(mut all: Vec<Attribute>, bytes: usize) -> Option<Vec<u8>> {
    all.sort_unstable_by(|a, b| {
        (a.namespace, a.name.len(), &a.name).cmp(&(b.namespace, b.name.len(), &b.name))
    });
    let hashes: Vec<u32> = all.iter().map(Attribute::hash).collect();
    let mut block = vec![0; bytes];
    encode(all.iter().zip(hashes.iter().copied()), &mut block, HEADER)?;
    // A hash of 0 says that the block is not to be shared.
    let hash = if hashes.contains(&0) {
        0
    } else {
        hashes.iter().fold(0u32, |hash, entry| hash.rotate_left(16) ^ entry)
    };
    let header = RawHeader {
        magic: MAGIC.into(),
        inodes: 1.into(),
        blocks: 1.into(),
        hash: hash.into(),
        checksum: 0.into(),
        reserved: [0.into(); 3],
    };
    block[..HEADER].copy_from_slice(header.as_bytes());
    Some(block)
}

/// Writes entries, each with its hash, from `at` on, and values from the end on, if there is room for all and four zeros between.
fn encode<'a>(
    all: impl Iterator<Item = (&'a Attribute, u32)>,
    bytes: &mut [u8],
    mut at: usize,
) -> Option<()> {
    let mut end = bytes.len();
    for (attribute, hash) in all {
        let length = attribute.value.len();
        let next = at + attribute.entry_bytes();
        end = end.checked_sub(length.next_multiple_of(4)).filter(|end| next + 4 <= *end)?;
        let raw = RawEntry {
            name_length: attribute.name.len() as u8, // at most 255
            namespace: attribute.namespace,
            value_at: if length == 0 { 0 } else { end as u16 }.into(),
            value_inode: 0.into(),
            value_length: (length as u32).into(),
            hash: hash.into(),
        };
        bytes[at..at + ENTRY].copy_from_slice(raw.as_bytes());
        bytes[at + ENTRY..][..attribute.name.len()].copy_from_slice(&attribute.name);
        bytes[end..end + length].copy_from_slice(&attribute.value);
        at = next;
    }
    Some(())
}

fn header(block: &[u8]) -> RawHeader {
    RawHeader::read_from_bytes(&block[..HEADER]).expect("the size fits")
}

/// A block of attributes is one.
pub(super) fn check_block(inode: &Inode, block: &[u8]) -> Result<()> {
    let header = header(block);
    if header.magic.get() != MAGIC || header.blocks.get() != 1 {
        let found = format_args!("{:#x}", header.magic.get());
        return Err(damaged(inode, "their block's magic number", found, "0xea020000"));
    }
    Ok(())
}

/// Inodes that share a block.
pub(super) fn owners(block: &[u8]) -> u32 {
    header(block).inodes.get()
}

pub(super) fn set_owners(block: &mut [u8], owners: u32) {
    let header = RawHeader { inodes: owners.into(), ..header(block) };
    block[..HEADER].copy_from_slice(header.as_bytes());
}

pub(super) fn checksum(block: &[u8]) -> u32 {
    header(block).checksum.get()
}

pub(super) fn set_checksum(block: &mut [u8], checksum: u32) {
    let header = RawHeader { checksum: checksum.into(), ..header(block) };
    block[..HEADER].copy_from_slice(header.as_bytes());
}
