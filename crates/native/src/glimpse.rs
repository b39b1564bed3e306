//! Reading a block of a file, looking at an inode's attributes, or opening it, without a lock.
//!
//! Everything here may be changed under the reader's eyes, so nothing is borrowed: words are loaded atomically, block
//! numbers are range-checked, bytes are copied; and all of it counts only if [`crate::locks::Glimpse::holds`] says
//! afterwards that nobody changed the inode meanwhile, and the NAT that its block was not moved for a neighbour's sake.
//! Whatever is unusual (an inline file, a node not yet verified, a hole) is left to the locked path.

use vfs::{Attr, Caller, FileKind, Handle, InodeFlags, OpenFlags, Result, rules};

use crate::bia::BlockKind;
use crate::core::Core;
use crate::geometry::{BLOCK, FILE_MAX};
use crate::index::{self, PointerAt};
use crate::inode::{self, Layout, PAYLOAD, SLOT, nid_of, slot_of};
use crate::locks::Glimpse;
use crate::nat::Sight;
use crate::pointer::DataPointer;
use crate::reader::Reader;

/// An inode seen without a lock.
struct Seen<'a> {
    glimpse: Glimpse<'a>,
    sight: Sight<'a>,
    version: u32,
    inode: SeenInode<'a>,
}

impl<'a> Seen<'a> {
    /// Begins looking at inode `ino`; `None` if it is not there, being changed, or not verified yet.
    #[inline]
    fn begin(core: &'a Core, ino: u32) -> Option<Seen<'a>> {
        let glimpse = core.locks.glimpse(ino)?;
        let (inode, sight, version) = core.nodes.seen_inode(ino)?;
        Some(Seen { glimpse, sight, version, inode })
    }

    /// Whether all that was seen is what the inode is.
    #[inline]
    fn holds(&self) -> bool {
        self.glimpse.holds() && self.sight.entry.version() == self.version && self.sight.holds()
    }
}

/// An inode in some block of a tree.
struct SeenInode<'a> {
    nodes: &'a Reader,
    ino: u32,
    /// Address of its slot.
    at: u64,
}

impl SeenInode<'_> {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.nodes.medium.region.load_u64(self.at + at as u64)
    }

    /// Where its bytes are from `offset` on; `None` if so many of them don't lie within one written block that the inode, its map or a
    /// direct node below it points to.
    #[inline]
    fn address(&self, offset: u64, bytes: usize) -> Option<u64> {
        let nodes = self.nodes;
        let (within, bytes) = (offset % BLOCK, bytes as u64);
        if bytes == 0 || within + bytes > BLOCK || offset >= FILE_MAX {
            return None;
        }
        let layout = (self.word(inode::LAYOUT_WORD) >> inode::LAYOUT_SHIFT) as u8;
        if layout != Layout::Mapped as u8
            || FileKind::from_mode(self.word(inode::MODE) as u32) != Some(FileKind::Regular)
            || offset + bytes > self.word(inode::SIZE)
        {
            return None;
        }
        let map = || nodes.seen_node(self.word(inode::BODY_WORD) as u32, BlockKind::Map);
        let word = match index::pointer_at(offset / BLOCK) {
            PointerAt::Inode { at } => self.word(at),
            PointerAt::Map { at } => map()?.word(at)?,
            PointerAt::Direct { root, at } => {
                let direct = map()?.nid(root)?;
                let leaf = nodes.seen_node(direct, BlockKind::Direct)?;
                let word = leaf.word(at)?;
                nodes.note_leaf(self.ino, offset / BLOCK, leaf.at / BLOCK, DataPointer(word), true);
                word
            }
            PointerAt::Deeper => return None,
        };
        let pointer = DataPointer(word);
        let is_there = pointer.has_data() && nodes.medium.geometry.in_main(pointer.block());
        is_there.then(|| pointer.block() * BLOCK + within)
    }
}

/// A node seen without a lock.
struct SeenNode<'a> {
    nodes: &'a Reader,
    /// Address of its block.
    at: u64,
    /// Bytes of it that mean something.
    used: u64,
}

impl Reader {
    /// Begins looking at inode `ino`; `None` if it is not there, or not verified yet. With it, what its block's entry in the NAT was.
    #[inline]
    fn seen_inode(&self, ino: u32) -> Option<(SeenInode<'_>, Sight<'_>, u32)> {
        let (sight, version, block) = self.nat.verified(nid_of(ino))?;
        let at = block * BLOCK + (slot_of(ino) * SLOT) as u64;
        self.medium.region.prefetch(at);
        let seen = SeenInode { nodes: self, ino, at };
        self.lives_in(block, ino).then_some((seen, sight, version))
    }

    /// Reads bytes of a tree that never changes, that lie within one written block of a mapped file; `None` if they don't, or if
    /// anything else is to be found out first.
    pub(crate) fn read_block(&self, ino: u32, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let (inode, ..) = self.seen_inode(ino)?;
        self.medium.region.read(inode.address(offset, buf.len())?, buf);
        Some(buf.len())
    }

    /// Begins looking at node `nid`; `None` if it is not of this kind, or not verified yet.
    #[inline]
    fn seen_node(&self, nid: u32, kind: BlockKind) -> Option<SeenNode<'_>> {
        let (_, _, block) = self.nat.verified(nid)?;
        let at = block * BLOCK;
        let (first, second) = (self.medium.region.load_u64(at), self.medium.region.load_u64(at + 8));
        (first & 0xff == kind as u64).then_some(SeenNode { nodes: self, at, used: second >> 32 })
    }
}

impl SeenNode<'_> {
    /// The aligned word at byte `at`; `None` beyond what the node uses.
    #[inline]
    fn word(&self, at: usize) -> Option<u64> {
        (at as u64 + 8 <= self.used).then(|| self.nodes.medium.region.load_u64(self.at + at as u64))
    }

    #[inline]
    fn nid(&self, at: usize) -> Option<u32> {
        let word = self.nodes.medium.region.load_u64(self.at + (at & !7) as u64);
        let nid = (word >> ((at & 4) * 8)) as u32;
        (at as u64 + 4 <= self.used && nid != 0).then_some(nid)
    }
}

impl Core {
    /// Reads bytes that lie within one written block of a mapped file; `None` if they don't, or if anything else
    /// makes the locked path necessary.
    pub(crate) fn read_glimpse(&self, ino: u32, offset: u64, buf: &mut [u8]) -> Option<usize> {
        let seen = Seen::begin(self, ino)?;
        self.medium.region.read(seen.inode.address(offset, buf.len())?, buf);
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
        self.medium.region.read(seen.inode.at, &mut bytes);
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

    /// Links and flags of inode `ino`; `None` if it is not there, or if anything makes the locked path necessary.
    pub(crate) fn links_and_flags_glimpse(&self, ino: u32) -> Option<(u32, InodeFlags)> {
        let seen = Seen::begin(self, ino)?;
        let word = seen.inode.word(inode::LINKS_WORD);
        seen.holds().then(|| (word as u32, InodeFlags::from_bits_retain((word >> 32) as u32)))
    }

    /// The attributes of inode `ino`; `None` if it is not there, or if anything makes the locked path necessary.
    pub(crate) fn attr_glimpse(&self, ino: u32) -> Option<Attr> {
        let seen = Seen::begin(self, ino)?;
        let mut bytes = [0; PAYLOAD];
        self.medium.region.read(seen.inode.at, &mut bytes);
        seen.holds().then(|| inode::attr(ino, &bytes))
    }
}
