//! Reading a block of a file, looking at an inode's attributes, or opening it, without a lock.
//!
//! Everything here may be changed under the reader's eyes, so nothing is borrowed: words are loaded atomically, block
//! numbers are range-checked, bytes are copied; and all of it counts only if [`crate::locks::Glimpse::holds`] says
//! afterwards that nobody changed the inode meanwhile, and the NAT that its block was not moved for a neighbour's sake.
//! Whatever is unusual (an inline file, a node not yet verified, a hole) is left to the locked path.

use vfs::{Attr, Caller, FileKind, Handle, OpenFlags, Result, rules};

use crate::bia::BlockKind;
use crate::core::Core;
use crate::geometry::BLOCK;
use crate::index::{self, FILE_MAX, PointerAt};
use crate::inode::{self, Layout, PAYLOAD, SLOT, nid_of, slot_of};
use crate::locks::Glimpse;
use crate::nat::Located;
use crate::pointer::DataPointer;
use crate::reader::Reader;

/// An inode seen without a lock.
struct Seen<'a> {
    glimpse: Glimpse<'a>,
    nodes: &'a Reader,
    nid: u32,
    located: Located,
    /// Address of its slot.
    at: u64,
}

impl<'a> Seen<'a> {
    /// Begins looking at inode `ino`; `None` if it is not there, being changed, or not verified yet.
    #[inline]
    fn begin(core: &'a Core, ino: u32) -> Option<Seen<'a>> {
        let glimpse = core.locks.glimpse(ino)?;
        let (nodes, nid) = (&core.nodes, nid_of(ino));
        let located = nodes.nat.locate(nid).ok()?;
        let block = located.pointer.block();
        if !located.verified || !nodes.medium.geometry.in_main(block) {
            return None;
        }
        let at = block * BLOCK + (slot_of(ino) * SLOT) as u64;
        nodes.medium.region.prefetch(at);
        nodes.lives_in(block, ino).then_some(Seen { glimpse, nodes, nid, located, at })
    }

    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.nodes.medium.region.load_u64(self.at + at as u64)
    }

    /// Whether all that was seen is what the inode is.
    #[inline]
    fn holds(&self) -> bool {
        self.glimpse.holds()
            && self.nodes.nat.locate(self.nid).is_ok_and(|now| now.version == self.located.version)
    }
}

impl Reader {
    /// The block of node `nid`, if its checksum has been verified.
    #[inline]
    fn verified_block(&self, nid: u32, kind: BlockKind) -> Option<u64> {
        let located = self.nat.locate(nid).ok()?;
        let block = located.pointer.block();
        if !located.verified || !self.medium.geometry.in_main(block) {
            return None;
        }
        let first = self.medium.region.load_u64(block * BLOCK);
        (first & 0xff == kind as u64).then_some(block)
    }

    /// The aligned word at byte `at` of a block; `None` beyond what the node uses.
    #[inline]
    fn word(&self, block: u64, at: usize) -> Option<u64> {
        let used = self.medium.region.load_u64(block * BLOCK + 8) >> 32;
        (at as u64 + 8 <= used).then(|| self.medium.region.load_u64(block * BLOCK + at as u64))
    }

    #[inline]
    fn nid(&self, block: u64, at: usize) -> Option<u32> {
        let word = self.medium.region.load_u64(block * BLOCK + (at & !7) as u64);
        let used = self.medium.region.load_u64(block * BLOCK + 8) >> 32;
        let nid = (word >> ((at & 4) * 8)) as u32;
        (at as u64 + 4 <= used && nid != 0).then_some(nid)
    }
}

impl Core {
    /// Reads bytes that lie within one written block of a mapped file; `None` if they don't, or if anything else
    /// makes the locked path necessary.
    pub(crate) fn read_glimpse(&self, ino: u32, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let within = offset % BLOCK;
        if buf.is_empty() || within + buf.len() as u64 > BLOCK || offset >= FILE_MAX {
            return None;
        }
        let seen = Seen::begin(self, ino)?;
        let nodes = &self.nodes;
        let layout = (seen.word(inode::LAYOUT_WORD) >> inode::LAYOUT_SHIFT) as u8;
        if layout != Layout::Mapped as u8
            || FileKind::from_mode(seen.word(inode::MODE) as u32) != Some(FileKind::Regular)
            || offset + buf.len() as u64 > seen.word(inode::SIZE)
        {
            return None;
        }
        let map = || nodes.verified_block(seen.word(inode::BODY_WORD) as u32, BlockKind::Map);
        let word = match index::pointer_at(offset / BLOCK) {
            PointerAt::Inode { at } => seen.word(at),
            PointerAt::Map { at } => nodes.word(map()?, at)?,
            PointerAt::Direct { root, at } => {
                let direct = nodes.nid(map()?, root)?;
                nodes.word(nodes.verified_block(direct, BlockKind::Direct)?, at)?
            }
            PointerAt::Deeper => return None,
        };
        let pointer = DataPointer(word);
        if !pointer.has_data() || !self.medium.geometry.in_main(pointer.block()) {
            return None;
        }
        self.medium.region.read(pointer.block() * BLOCK + within, buf);
        seen.holds().then_some(buf.len())
    }

    /// Opens inode `ino`; `None` if it has extended attributes, which may forbid it, or if anything else makes the locked
    /// path necessary.
    ///
    /// Whoever takes an inode's last name asks under its lock whether it is open. The handle is counted before the look at
    /// the inode ends: so if he asked too early to hear of it, he had the lock by then, and that is seen here.
    pub(crate) fn open_glimpse(&self, caller: &Caller, ino: u32, flags: OpenFlags) -> Option<Result<Handle>> {
        let seen = Seen::begin(self, ino)?;
        let mut bytes = [0; PAYLOAD];
        self.medium.region.read(seen.at, &mut bytes);
        if inode::has_xattrs(&bytes) {
            return None;
        }
        if let Err(error) = rules::may_open(caller, &inode::attr(ino, &bytes), None, flags) {
            return seen.holds().then_some(Err(error));
        }
        let opened = self.handles.open(ino, flags);
        if seen.holds() {
            return Some(opened);
        }
        // Somebody may have spared the inode for this handle's sake, so it is given back as any other.
        if let Ok(handle) = opened
            && let Err(error) = self.release(handle)
        {
            tracing::error!("inode {ino}, which lost its name, stays: {error}");
        }
        None
    }

    /// The attributes of inode `ino`; `None` if it is not there, or if anything makes the locked path necessary.
    pub(crate) fn attr_glimpse(&self, ino: u32) -> Option<Attr> {
        let seen = Seen::begin(self, ino)?;
        let mut bytes = [0; PAYLOAD];
        self.medium.region.read(seen.at, &mut bytes);
        seen.holds().then(|| inode::attr(ino, &bytes))
    }
}
