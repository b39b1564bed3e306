//! What stands in a journal: big-endian, each block with a header or named by one that has.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum::crc32c;

pub(super) const MAGIC: u32 = 0xC03B_3998;

/// What a block with a header is.
pub(super) const DESCRIPTOR: u32 = 1;
pub(super) const COMMIT: u32 = 2;
pub(super) const SUPERBLOCK_1: u32 = 3;
pub(super) const SUPERBLOCK_2: u32 = 4;
pub(super) const REVOKE: u32 = 5;

bitflags::bitflags! {
    /// Features that who replays must know.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Incompat: u32 {
        /// Blocks may be revoked.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const SIXTY_FOUR_BIT = 0x2;
        /// A commit does not wait for its blocks.
        const ASYNC_COMMIT = 0x4;
        /// Checksums of everything, of blocks 16 bits.
        const CSUM_2 = 0x8;
        /// Checksums of everything.
        const CSUM_3 = 0x10;
        /// Behind the log there may be changes of inodes and names that are in no transaction.
        const FAST_COMMIT = 0x20;
        const _ = !0;
    }
}

/// The feature of whose commits have a checksum of all blocks, and nothing else has one.
pub(super) const COMPAT_CHECKSUM: u32 = 1;
/// The only kind of checksum of versions 2 and 3.
const CHECKSUM_CRC32C: u8 = 4;

#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(super) struct Header {
    magic: U32,
    pub(super) kind: U32,
    pub(super) number: U32,
}
pub(super) const HEADER: usize = 12;
const _: () = assert!(size_of::<Header>() == HEADER);

/// The header of a block of transaction `number`, if it has one.
pub(super) fn header(block: &[u8]) -> Option<Header> {
    let header = Header::read_from_prefix(block).ok()?.0;
    (header.magic.get() == MAGIC).then_some(header)
}

/// The journal's superblock.
#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(super) struct RawJournal {
    pub(super) header: Header,
    pub(super) block: U32,
    pub(super) blocks: U32,
    /// The first block of the log.
    pub(super) first: U32,
    /// The first transaction that the log may have.
    pub(super) number: U32,
    /// Where it begins; 0 if there is nothing to replay.
    pub(super) start: U32,
    /// Why the journal ended, as the kernel's negative error number; 0 if it did not.
    pub(super) error: U32,
    // What follows only the second kind has.
    pub(super) compat: U32,
    pub(super) incompat: U32,
    pub(super) ro_compat: U32,
    pub(super) uuid: [u8; 16],
    users: U32,
    copy: U32,
    transaction_max: U32,
    transaction_data_max: U32,
    pub(super) checksum_kind: u8,
    padding: [u8; 3],
    fast_blocks: U32,
    head: U32,
    reserved: [u8; 160],
    pub(super) checksum: U32,
    user_uuids: [u8; 768],
}
const _: () = assert!(size_of::<RawJournal>() == 1024);
const _: () = assert!(std::mem::offset_of!(RawJournal, checksum) == 0xFC);

impl RawJournal {
    pub(super) fn incompat(&self) -> Incompat {
        let second = self.header.kind.get() == SUPERBLOCK_2;
        Incompat::from_bits_retain(if second { self.incompat.get() } else { 0 })
    }

    pub(super) fn has_checksums(&self) -> bool {
        self.incompat().intersects(Incompat::CSUM_2 | Incompat::CSUM_3)
    }

    pub(super) fn has_commit_checksums(&self) -> bool {
        self.header.kind.get() == SUPERBLOCK_2 && self.compat.get() & COMPAT_CHECKSUM != 0
    }

    /// What the checksums of versions 2 and 3 start from.
    pub(super) fn seed(&self) -> u32 {
        crc32c(!0, &self.uuid)
    }

    fn own_checksum(&self) -> u32 {
        let mut clean = self.clone();
        clean.checksum = 0.into();
        crc32c(!0, clean.as_bytes())
    }

    /// Why it cannot be believed, if so.
    pub(super) fn check(&self, block: u64, blocks: u64) -> Result<(), String> {
        if self.header.magic.get() != MAGIC || !matches!(self.header.kind.get(), SUPERBLOCK_1 | SUPERBLOCK_2)
        {
            return Err("its superblock has not the magic number of one".into());
        }
        let known = Incompat::REVOKE
            | Incompat::SIXTY_FOUR_BIT
            | Incompat::ASYNC_COMMIT
            | Incompat::CSUM_2
            | Incompat::CSUM_3;
        let unknown = self.incompat() - known - Incompat::FAST_COMMIT;
        if !unknown.is_empty() {
            return Err(format!("it has features that are not known here ({:#x})", unknown.bits()));
        }
        if self.incompat().contains(Incompat::CSUM_2 | Incompat::CSUM_3)
            || self.has_checksums() && (self.has_commit_checksums() || self.checksum_kind != CHECKSUM_CRC32C)
        {
            return Err("it says of its checksums what cannot be".into());
        }
        if self.has_checksums() && self.own_checksum() != self.checksum.get() {
            return Err("its superblock has a wrong checksum".into());
        }
        if u64::from(self.block.get()) != block {
            return Err(format!("it has blocks of {} bytes", self.block.get()));
        }
        let (most, first, start) = (u64::from(self.blocks.get()), self.first.get(), self.start.get());
        if most > blocks
            || first == 0
            || u64::from(first) + 1 >= most
            || u64::from(start) >= most
            || start != 0 && start < first
        {
            return Err(format!(
                "its log is from block {first} on, begins at {start}, and has {most} of {blocks} blocks"
            ));
        }
        Ok(())
    }

    /// Says that there is nothing to replay, and that the next transaction is `next`.
    pub(super) fn mark_empty(&mut self, next: u32) {
        self.start = 0.into();
        self.number = next.into();
        if self.has_checksums() {
            self.checksum = self.own_checksum().into();
        }
    }
}

/// A commit block, as far as its fields go.
#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(super) struct RawCommit {
    header: Header,
    pub(super) checksum_kind: u8,
    pub(super) checksum_bytes: u8,
    padding: [u8; 2],
    pub(super) checksums: [U32; 8],
    seconds: U64,
    nanoseconds: U32,
}
/// Where the checksum of a commit block is.
const COMMIT_CHECKSUM_AT: usize = 16;
const _: () = assert!(std::mem::offset_of!(RawCommit, checksums) == COMMIT_CHECKSUM_AT);

/// Whether a block of version 2 or 3 has the checksum that it should have, at byte `at`.
fn is_intact(seed: u32, block: &[u8], at: usize) -> bool {
    let found = u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    [&block[..at], &[0; 4], &block[at + 4..]].iter().fold(seed, |sum, part| crc32c(sum, part)) == found
}

pub(super) fn commit_is_intact(seed: u32, block: &[u8]) -> bool {
    is_intact(seed, block, COMMIT_CHECKSUM_AT)
}

/// Of blocks that end with their checksum: descriptors and lists of revoked blocks.
pub(super) fn tail_is_intact(seed: u32, block: &[u8]) -> bool {
    is_intact(seed, block, block.len() - TAIL)
}

/// Bytes of the checksum at the end.
pub(super) const TAIL: usize = 4;

/// What a descriptor says of one block.
pub(super) struct Tag {
    /// Where the block belongs.
    pub(super) block: u64,
    /// Its first word is the journal's magic number, and is 0 in the log.
    pub(super) escaped: bool,
    /// Of all bits that the version has.
    pub(super) checksum: u32,
    last: bool,
    bytes: usize,
}

const TAG_ESCAPED: u32 = 1;
const TAG_SAME_UUID: u32 = 2;
const TAG_LAST: u32 = 8;

/// The tags of a descriptor. A block that is cut short has fewer.
pub(super) fn tags(incompat: Incompat, block: &[u8]) -> Vec<Tag> {
    let checksums = incompat.intersects(Incompat::CSUM_2 | Incompat::CSUM_3);
    let end = block.len() - if checksums { TAIL } else { 0 };
    let mut at = HEADER;
    let mut tags = Vec::new();
    while let Some(tag) = tag(incompat, &block[at..end]) {
        at += tag.bytes;
        let last = tag.last;
        tags.push(tag);
        if last {
            break;
        }
    }
    tags
}

fn tag(incompat: Incompat, bytes: &[u8]) -> Option<Tag> {
    let word =
        |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_be_bytes);
    let half = |at: usize| {
        bytes.get(at..at + 2).and_then(|half| half.try_into().ok()).map(u16::from_be_bytes).map(u32::from)
    };
    let low = u64::from(word(0)?);
    let wide = incompat.contains(Incompat::SIXTY_FOUR_BIT);
    let third = incompat.contains(Incompat::CSUM_3);
    let (checksum, flags) = if third { (word(12)?, word(4)?) } else { (half(4)?, half(6)?) };
    let high = if !wide { 0 } else { u64::from(word(8)?) };
    // The checksums of version 2 are in a field that was there before; yet its tags are two bytes longer.
    let base = 8 + if wide { 4 } else { 0 } + if incompat.contains(Incompat::CSUM_2) { 2 } else { 0 };
    let own = if third { 16 } else { base };
    let length = own + if flags & TAG_SAME_UUID == 0 { 16 } else { 0 };
    (length <= bytes.len()).then_some(Tag {
        block: low | high << 32,
        escaped: flags & TAG_ESCAPED != 0,
        checksum,
        last: flags & TAG_LAST != 0,
        bytes: length,
    })
}

/// The blocks that a list revokes; nothing if it is longer than its block.
pub(super) fn revoked(incompat: Incompat, block: &[u8]) -> Option<Vec<u64>> {
    const LIST: usize = HEADER + 4;
    let bytes = u32::from_be_bytes(block[HEADER..LIST].try_into().expect("four bytes")) as usize;
    let end = block.len() - if incompat.intersects(Incompat::CSUM_2 | Incompat::CSUM_3) { TAIL } else { 0 };
    let list = block[..end].get(LIST..bytes)?;
    Some(match incompat.contains(Incompat::SIXTY_FOUR_BIT) {
        true => list.as_chunks::<8>().0.iter().map(|number| u64::from_be_bytes(*number)).collect(),
        false => {
            list.as_chunks::<4>().0.iter().map(|number| u64::from(u32::from_be_bytes(*number))).collect()
        }
    })
}
