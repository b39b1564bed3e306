//! Pointers on the medium.

use crate::checksum;
use crate::error::corrupt;
use crate::geometry::{BLOCK_BITS, Medium};

const BLOCK_MASK: u64 = (1 << BLOCK_BITS) - 1;

/// A pointer to a node or NAT block that carries the checksum of what it points to: bits 0–39 the block, 40–63
/// the low bits of the CRC-32C. So a block that was torn, misdirected or never written is found when it is read.
/// 0 points to nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodePointer(pub(crate) u64);

impl NodePointer {
    pub(crate) fn new(block: u64, crc: u32) -> NodePointer {
        NodePointer(block & BLOCK_MASK | u64::from(crc) << BLOCK_BITS)
    }

    pub(crate) fn block(self) -> u64 {
        self.0 & BLOCK_MASK
    }

    /// Whether `crc` is the checksum this pointer expects.
    pub(crate) fn matches(self, crc: u32) -> bool {
        self.0 >> BLOCK_BITS == u64::from(crc & 0xff_ffff)
    }

    pub(crate) fn is_null(self) -> bool {
        self.block() == 0
    }

    /// The bytes of the block it names, a whole one, if they are what it expects. In errors the block is called
    /// `structure`, and `parent` is where the pointer stands.
    pub(crate) fn verified<'m>(
        self,
        medium: &'m Medium,
        structure: &str,
        parent: u64,
    ) -> vfs::Result<&'m [u8]> {
        let block = self.block();
        medium.check_main(structure, parent, format_args!("pointer"), block)?;
        let bytes = medium.block(block);
        if self.matches(checksum::of(bytes)) {
            return Ok(bytes);
        }
        medium.check_media()?;
        Err(corrupt(structure, block, "checksum", "wrong", "what its parent holds"))
    }
}

/// A pointer to a file's data block: bits 0–39 the block, bit 63 set if the block is allocated but not written
/// (it reads as zeros). 0 is a hole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataPointer(pub(crate) u64);

const UNWRITTEN: u64 = 1 << 63;

impl DataPointer {
    pub(crate) const HOLE: DataPointer = DataPointer(0);

    pub(crate) fn written(block: u64) -> DataPointer {
        DataPointer(block)
    }

    pub(crate) fn unwritten(block: u64) -> DataPointer {
        DataPointer(block | UNWRITTEN)
    }

    pub(crate) fn block(self) -> u64 {
        self.0 & BLOCK_MASK
    }

    pub(crate) fn is_hole(self) -> bool {
        self.block() == 0
    }

    pub(crate) fn is_unwritten(self) -> bool {
        self.0 & UNWRITTEN != 0
    }

    /// Whether the block holds bytes of the file.
    pub(crate) fn has_data(self) -> bool {
        !self.is_hole() && !self.is_unwritten()
    }

    /// The same pointer to another block.
    pub(crate) fn moved(self, block: u64) -> DataPointer {
        DataPointer(self.0 & !BLOCK_MASK | block)
    }

    /// The pointer `n` blocks further, for runs.
    pub(crate) fn plus(self, n: u64) -> DataPointer {
        DataPointer(self.0 + n)
    }
}
