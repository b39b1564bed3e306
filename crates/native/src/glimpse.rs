//! Reading a block of a file without a lock.
//!
//! Everything here may be changed under the reader's eyes, so nothing is borrowed: words are loaded atomically, block
//! numbers are range-checked, bytes are copied; and all of it counts only if [`crate::locks::Glimpse::holds`]
//! says afterwards that nobody changed the inode meanwhile. Whatever is unusual (an inline file, a node not yet
//! verified, a hole) is left to the locked path.

use vfs::FileKind;

use crate::bia::BlockKind;
use crate::core::Core;
use crate::geometry::BLOCK;
use crate::index::{self, FILE_MAX, PointerAt};
use crate::inode::{self, Layout};
use crate::node::Nodes;
use crate::pointer::DataPointer;

impl Nodes {
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
        let glimpse = self.locks.glimpse(ino)?;
        let (nodes, region) = (&self.nodes, &self.medium.region);
        let inode = nodes.verified_block(ino, BlockKind::Inode)?;
        let size = region.load_u64(inode * BLOCK + inode::SIZE as u64);
        let mode = region.load_u64(inode * BLOCK + inode::MODE as u64) as u32;
        let layout =
            (region.load_u64(inode * BLOCK + inode::LAYOUT_WORD as u64) >> inode::LAYOUT_SHIFT) as u8;
        if layout != Layout::Mapped as u8
            || FileKind::from_mode(mode) != Some(FileKind::Regular)
            || offset + buf.len() as u64 > size
        {
            return None;
        }
        let word = match index::pointer_at(offset / BLOCK) {
            PointerAt::Inode { at } => nodes.word(inode, at)?,
            PointerAt::Direct { root, at } => {
                let direct = nodes.nid(inode, root)?;
                nodes.word(nodes.verified_block(direct, BlockKind::Direct)?, at)?
            }
            PointerAt::Deeper => return None,
        };
        let pointer = DataPointer(word);
        if !pointer.has_data() || !self.medium.geometry.in_main(pointer.block()) {
            return None;
        }
        region.read(pointer.block() * BLOCK + within, buf);
        glimpse.holds().then_some(buf.len())
    }
}
