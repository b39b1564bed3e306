//! Multiple mount protection: whether another machine has the file system.

use disk::{Disk, Purpose};

use crate::checksum::crc32c;
use crate::error::Error;
use crate::superblock::Superblock;

const MAGIC: u32 = 0x004D_4D50;
/// The sequence number of one that nobody has.
const CLEAN: u32 = 0xFF4D_4D50;
const NODE_AT: usize = 16;
const NODE_BYTES: usize = 64;
const CHECKSUM_AT: usize = 1020;

/// Fails unless the block of multiple mount protection, if there is one, says that nobody has the file system.
pub(crate) fn check(disk: &Disk, superblock: &Superblock) -> Result<(), Error> {
    let Some(number) = superblock.mmp_block else { return Ok(()) };
    let mut block = [0; 1024];
    disk.read(Purpose::Metadata, number * superblock.block, &mut block)?;
    let word = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let damaged = |what: String| Error::Superblock { disk: disk.name().into(), what };
    if word(0) != MAGIC {
        return Err(damaged(format!("its block of multiple mount protection begins with {:#x}", word(0))));
    }
    if superblock.features.has_metadata_csum()
        && crc32c(superblock.checksum_seed, &block[..CHECKSUM_AT]) != word(CHECKSUM_AT)
    {
        return Err(damaged("its block of multiple mount protection has a wrong checksum".into()));
    }
    if word(4) == CLEAN {
        return Ok(());
    }
    let node: String = String::from_utf8_lossy(&block[NODE_AT..NODE_AT + NODE_BYTES])
        .chars()
        .take_while(|c| *c != '\0')
        .filter(|c| !c.is_control())
        .collect();
    Err(Error::InUse { disk: disk.name().into(), node })
}
