//! The block of a node: of inodes, a map, a direct or indirect node, a directory's bucket or table, attributes (HMFS §2.2).

use nvm::Purpose;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bia::BlockKind;
use crate::checksum;
use crate::error::corrupt;
use crate::fault::{self, Fault, planted};
use crate::geometry::{BLOCK, Medium};
use crate::inode::{self, Inode};
use crate::pointer::NodePointer;

/// Begins every node block.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct NodeHeader {
    /// A [`BlockKind`]: guards against a misdirected read.
    pub(crate) kind: u8,
    /// Bucket: how many bits of its table it tells apart. Indirect: height above the direct nodes. Else 0.
    pub(crate) level: u8,
    /// Inode block: bit *n* is set if slot *n* holds an inode. Else 0.
    pub(crate) slots: U16,
    /// The node's own NID.
    pub(crate) nid: U32,
    /// The inode it belongs to; 0 for a block of inodes.
    pub(crate) owner: U32,
    /// Bytes from the block's start that mean something; what follows reads as zeros.
    pub(crate) used: U32,
}
/// Bytes of a node header.
pub(crate) const HEADER: usize = 16;
const _: () = assert!(size_of::<NodeHeader>() == HEADER);
const USED_AT: usize = 12;

/// NID 0 is that of the block of inodes 1 (root directory) and 2 (orphans), so that as a reference to any other node it
/// can mean "none".
pub(crate) const FIRST_NID: u32 = 1;
/// The hidden directory of inodes without a name: open but unlinked, or made by `O_TMPFILE`.
pub(crate) const ORPHANS: u32 = 2;

/// An inode number of this volume: not the hidden directory's.
pub(crate) fn number(ino: vfs::Ino) -> vfs::Result<u32> {
    match u32::try_from(ino) {
        Ok(0 | ORPHANS) | Err(_) => Err(vfs::Error::Stale),
        Ok(ino) => Ok(ino),
    }
}

/// A node's block, or what it uses of that, verified.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) block: u64,
}

impl<'a> View<'a> {
    /// What the node in a block uses of it, to look something up: its header, and a line of what was looked for. Of a block of
    /// inodes the header: these are looked at one by one ([`Inode::on_medium`]).
    ///
    /// Where nobody watches, no more than what was looked for is touched.
    #[inline]
    pub(crate) fn of(medium: &'a Medium, block: u64) -> View<'a> {
        debug_assert!(medium.geometry.in_main(block));
        if medium.region.is_watched() {
            return View::watched(medium, block);
        }
        View { bytes: medium.region.bytes_of_which(2, block * BLOCK, BLOCK as usize), block }
    }

    #[cold]
    fn watched(medium: &'a Medium, block: u64) -> View<'a> {
        let header = header_of(medium, block);
        let is_of_inodes = header.kind == BlockKind::Inode as u8;
        let used = if is_of_inodes { HEADER } else { header.used.get() as usize };
        let used = used.clamp(HEADER, BLOCK as usize);
        View { bytes: medium.region.bytes_of_which(1, block * BLOCK, used), block }
    }

    pub(crate) fn header(&self) -> &'a NodeHeader {
        NodeHeader::ref_from_bytes(&self.bytes[..HEADER]).expect("a header's length")
    }

    pub(crate) fn used(&self) -> usize {
        self.header().used.get() as usize
    }

    /// The `u32` at `at`; 0 beyond what is used.
    #[inline]
    pub(crate) fn u32_at(&self, at: usize) -> u32 {
        if at + 4 > self.used().min(self.bytes.len()) {
            return 0;
        }
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("4 bytes"))
    }

    /// The `u64` at `at`; 0 beyond what is used.
    #[inline]
    pub(crate) fn u64_at(&self, at: usize) -> u64 {
        if at + 8 > self.used().min(self.bytes.len()) {
            return 0;
        }
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("8 bytes"))
    }
}

/// A node's copy of the running epoch, open for change. The owner's lock is held.
pub(crate) struct Edit<'a> {
    medium: &'a Medium,
    pub(crate) block: u64,
}

impl<'a> Edit<'a> {
    pub(crate) fn new(medium: &'a Medium, block: u64) -> Edit<'a> {
        Edit { medium, block }
    }

    pub(crate) fn view(&self) -> View<'a> {
        View::of(self.medium, self.block)
    }

    fn used(&self) -> usize {
        header_of(self.medium, self.block).used.get() as usize
    }

    /// Stores within what is used.
    #[inline]
    pub(crate) fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BLOCK as usize, "a store beyond the node's block");
        self.medium.region.store(Purpose::Metadata, self.block * BLOCK + at as u64, bytes);
    }

    /// Makes at least `used` bytes mean something, the new ones zero.
    pub(crate) fn extend(&self, used: usize) {
        assert!(used <= BLOCK as usize, "a node longer than a block");
        let old = self.used();
        if used > old {
            let region = &self.medium.region;
            region.fill_zero(Purpose::Metadata, self.block * BLOCK + old as u64, (used - old) as u64);
            self.store(USED_AT, &(used as u32).to_le_bytes());
        }
    }

    /// Forgets what lies beyond `used`.
    pub(crate) fn shrink(&self, used: usize) {
        self.store(USED_AT, &(used as u32).to_le_bytes());
    }

    pub(crate) fn set_level(&self, level: u8) {
        self.store(1, &[level]);
    }

    /// Stores an aligned word, which those who look without a lock see as a whole; extends what is used as needed.
    #[inline]
    pub(crate) fn put_u64(&self, at: usize, word: u64) {
        self.extend(at + 8);
        self.medium.region.store_u64(Purpose::Metadata, self.block * BLOCK + at as u64, word);
    }

    /// Stores, extending what is used as needed.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        self.extend(at + bytes.len());
        self.store(at, bytes);
    }
}

/// Calls `part` with each part of a node that its checksum covers and a checkpoint flushes, ascending: `[0, used)`, or
/// an inode block's header and what its inodes use of their slots. False if the header contradicts itself. `bytes` gives bytes of
/// the node, by where they begin and how many they are.
pub(crate) fn each_part<'b>(
    bytes: impl Fn(usize, usize) -> &'b [u8],
    mut part: impl FnMut(usize, usize),
) -> bool {
    let header = NodeHeader::ref_from_bytes(bytes(0, HEADER)).expect("a header's length");
    let used = header.used.get() as usize;
    if header.kind == BlockKind::Inode as u8 {
        // Neighbours that use all of their slots are one part.
        let (mut at, mut end) = (0, HEADER);
        for slot in inode::slots_in(header.slots.get()) {
            let next = slot * inode::SLOT;
            if next != end {
                part(at, end - at);
                at = next;
            }
            let start = Inode { ino: slot as u32, block: 0, bytes: bytes(next, inode::PAYLOAD) };
            end = next + start.used();
        }
        part(at, end - at);
        return used == BLOCK as usize;
    }
    part(0, used.min(BLOCK as usize));
    (HEADER..=BLOCK as usize).contains(&used)
}

/// Asks for what of a block of inodes says what they use, which is as good a guess for other nodes: all of it is on its way
/// before the first of it is looked at.
pub(crate) fn ask(medium: &Medium, block: u64) {
    for slot in (0..BLOCK).step_by(inode::SLOT) {
        medium.region.prefetch(block * BLOCK + slot);
        medium.region.prefetch(block * BLOCK + slot + nvm::LINE);
    }
}

/// Asks for all that its checksum covers of a node that was asked for before.
pub(crate) fn ask_all(medium: &Medium, block: u64) {
    each_part(on_medium(medium, block), |at, length| {
        for line in (at..at + length).step_by(nvm::LINE as usize) {
            medium.region.prefetch(block * BLOCK + line as u64);
        }
    });
}

/// The checksum of a node block; `None` if its header contradicts itself.
pub(crate) fn checksum(bytes: &[u8]) -> Option<u32> {
    checksum_of(|at, length| &bytes[at..at + length])
}

/// The same of the node in a block, of which no more is looked at than its checksum covers.
pub(crate) fn checksum_in(medium: &Medium, block: u64) -> Option<u32> {
    checksum_of(on_medium(medium, block))
}

fn checksum_of<'b>(bytes: impl Fn(usize, usize) -> &'b [u8]) -> Option<u32> {
    let mut crc = None;
    let sound = each_part(&bytes, |at, length| {
        let part = bytes(at, length);
        crc = Some(crc.map_or_else(|| checksum::of(part), |before| checksum::append(before, part)));
    });
    crc.filter(|_| sound)
}

/// Gives bytes of the node in a block.
pub(crate) fn on_medium<'b>(medium: &'b Medium, block: u64) -> impl Fn(usize, usize) -> &'b [u8] {
    move |at, length| medium.region.bytes(block * BLOCK + at as u64, length)
}

/// The header of the node in a block.
pub(crate) fn header_of(medium: &Medium, block: u64) -> NodeHeader {
    medium.region.load(block * BLOCK)
}

/// A copy of node `nid`, which is what its NAT entry says; zeros where it uses nothing.
pub(crate) fn verified(medium: &Medium, nid: u32, pointer: NodePointer) -> vfs::Result<[u8; BLOCK as usize]> {
    verify(medium, nid, pointer)?;
    let (mut copy, there) = ([0; BLOCK as usize], on_medium(medium, pointer.block()));
    each_part(&there, |at, length| copy[at..at + length].copy_from_slice(there(at, length)));
    Ok(copy)
}

/// `Ok` if node `nid` is what its NAT entry says.
pub(crate) fn verify(medium: &Medium, nid: u32, pointer: NodePointer) -> vfs::Result<()> {
    let block = pointer.block();
    medium.check_main("NAT", 0, format_args!("entry {nid}"), block)?;
    if checksum_in(medium, block).is_some_and(|crc| pointer.matches(crc)) {
        return Ok(());
    }
    medium.check_media()?;
    Err(corrupt(&format!("node {nid}"), block, "checksum", "wrong", "what the NAT holds"))
}

/// The checksum of a node that somebody may be changing, of which all that it covers is flushed; `None` if what was seen
/// contradicts itself. Who changes it breaks its seal, so that this is forgotten.
pub(crate) fn checksum_and_flush(medium: &Medium, block: u64) -> Option<(u32, nvm::Flushed)> {
    let mut copy = [0; BLOCK as usize];
    medium.region.read(block * BLOCK, &mut copy);
    Some((checksum(&copy)?, flush_parts(medium, block, |at, length| &copy[at..at + length])))
}

/// Flushes what a node's checksum covers.
pub(crate) fn flush(medium: &Medium, block: u64) -> nvm::Flushed {
    flush_parts(medium, block, on_medium(medium, block))
}

/// The same; `bytes` gives those of the node.
fn flush_parts<'b>(medium: &Medium, block: u64, bytes: impl Fn(usize, usize) -> &'b [u8]) -> nvm::Flushed {
    let mut flushed = nvm::Flushed::none();
    each_part(bytes, |at, length| {
        let tail = if planted(Fault::NodeTailNotFlushed) { nvm::LINE as usize } else { 0 };
        let (at, length) = (block * BLOCK + at as u64, length.saturating_sub(tail) as u64);
        let part = fault::flush(&medium.region, Fault::NodesNotFlushed, Purpose::Metadata, at, length);
        flushed = std::mem::replace(&mut flushed, nvm::Flushed::none()).and(part);
    });
    flushed
}
