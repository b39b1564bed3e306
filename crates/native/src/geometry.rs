//! Where the areas of a volume lie (HMFS §2.2): superblocks, log, SIT, SIT journal, BIA, Main Area.

use nvm::Region;

use crate::error::{Error, corrupt};

/// Bytes of a block.
pub(crate) const BLOCK: u64 = nvm::BLOCK;
/// Versions of checkpoints are below this: what is above it in 32 bits is free for use in DRAM.
pub(crate) const VERSIONS: u32 = 1 << 31;
/// Transactions and writes of a root have numbers below this, mounts below twice as much: one more of each in a nanosecond would take a century.
pub(crate) const NUMBERS: u64 = 1 << 62;
/// Blocks of a segment.
pub(crate) const SEGMENT_BLOCKS: u64 = nvm::SEGMENT / nvm::BLOCK;
/// Changing operations in flight at most: how many transactions may be missing in the middle of the log.
pub(crate) const LANES: usize = 16;
/// Largest file, bytes: 16 TiB.
pub(crate) const FILE_MAX: u64 = 1 << 44;
/// Block numbers have 40 bits in the medium's pointers: 4 PiB.
pub(crate) const BLOCK_BITS: u32 = 40;

/// Bytes of a BIA entry.
pub(crate) const BIA_ENTRY: u64 = 16;
/// Bytes of a SIT entry.
pub(crate) const SIT_ENTRY: u64 = 128;
/// Bytes of a SIT journal entry: a SIT entry's contents without its checksum.
pub(crate) const SIT_JOURNAL_ENTRY: u64 = 80;

/// Superblock and its backup.
pub(crate) const SUPERBLOCKS: [u64; 2] = [0, 1];
/// The two root slots, each alone in its block.
pub(crate) const ROOT_SLOTS: [u64; 2] = [2, 3];
const FIRST_FREE: u64 = 8;
/// Fewest segments of the Main Area that make a usable volume.
const MIN_MAIN_SEGMENTS: u64 = 4;

/// The areas of one volume. All fields are block numbers or counts of blocks unless named otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Blocks of the whole volume.
    pub(crate) blocks: u64,
    /// First block of the log; it has two halves.
    pub(crate) log_start: u64,
    /// Blocks of one half of the log.
    pub(crate) log_half: u64,
    /// First block of the SIT.
    pub(crate) sit_start: u64,
    /// First block of the SIT journal.
    pub(crate) sit_journal_start: u64,
    /// First block of the BIA.
    pub(crate) bia_start: u64,
    /// First block of the Main Area; a multiple of [`SEGMENT_BLOCKS`].
    pub(crate) main_start: u64,
    /// Segments of the Main Area.
    pub(crate) segments: u32,
}

impl Geometry {
    /// Lays out a volume of `bytes`, with a log of `log_bytes` (default: 1/32 of the volume, 2 MiB to 256 MiB).
    pub(crate) fn lay_out(bytes: u64, log_bytes: Option<u64>) -> Result<Geometry, Error> {
        let total = bytes / nvm::SEGMENT;
        let too_small = Error::TooSmall { bytes, minimum: crate::MIN_VOLUME_BYTES };
        if bytes < crate::MIN_VOLUME_BYTES {
            return Err(too_small);
        }
        let log = log_bytes.unwrap_or((bytes / 32).clamp(2 << 20, 256 << 20));
        if log > bytes / 2 {
            return Err(Error::LogTooLarge { log_bytes: log, bytes });
        }
        let half = (log / 2).max(256 << 10).div_ceil(BLOCK);
        (MIN_MAIN_SEGMENTS..total)
            .rev()
            .map(|main| Geometry::with_main(total, half, main))
            .find(|g| g.main_start + u64::from(g.segments) * SEGMENT_BLOCKS <= g.blocks)
            .ok_or(too_small)
    }

    fn with_main(total_segments: u64, log_half: u64, main_segments: u64) -> Geometry {
        let blocks = total_segments * SEGMENT_BLOCKS;
        let log_start = FIRST_FREE;
        let sit_start = log_start + 2 * log_half;
        let sit_journal_start = sit_start + (main_segments * SIT_ENTRY).div_ceil(BLOCK);
        let bia_start = sit_journal_start + (main_segments * SIT_JOURNAL_ENTRY).div_ceil(BLOCK);
        let end = bia_start + (main_segments * SEGMENT_BLOCKS * BIA_ENTRY).div_ceil(BLOCK);
        Geometry {
            blocks,
            log_start,
            log_half,
            sit_start,
            sit_journal_start,
            bia_start,
            main_start: end.next_multiple_of(SEGMENT_BLOCKS),
            segments: main_segments as u32,
        }
    }

    /// Whether a geometry read from a superblock is one that [`Geometry::lay_out`] could have made.
    pub(crate) fn is_sound(&self) -> bool {
        self.blocks <= 1 << BLOCK_BITS
            && self.blocks.is_multiple_of(SEGMENT_BLOCKS)
            && self.log_half >= 64
            && self.log_half < self.blocks
            && u64::from(self.segments) <= self.blocks / SEGMENT_BLOCKS
            && *self
                == Geometry::with_main(self.blocks / SEGMENT_BLOCKS, self.log_half, u64::from(self.segments))
            && self.main_start + self.main_blocks() <= self.blocks
    }

    /// Blocks of the Main Area.
    pub(crate) fn main_blocks(&self) -> u64 {
        u64::from(self.segments) * SEGMENT_BLOCKS
    }

    /// Whether `block` lies in the Main Area.
    pub(crate) fn in_main(&self, block: u64) -> bool {
        block >= self.main_start && block < self.main_start + self.main_blocks()
    }

    /// The segment of a Main Area block, and the block's place in it.
    pub(crate) fn segment_of(&self, block: u64) -> (u32, usize) {
        let index = block - self.main_start;
        ((index / SEGMENT_BLOCKS) as u32, (index % SEGMENT_BLOCKS) as usize)
    }

    /// The first block of a Main Area segment.
    pub(crate) fn segment_start(&self, segment: u32) -> u64 {
        self.main_start + u64::from(segment) * SEGMENT_BLOCKS
    }

    /// Byte address of a Main Area block's BIA entry.
    pub(crate) fn bia_at(&self, block: u64) -> u64 {
        self.bia_start * BLOCK + (block - self.main_start) * BIA_ENTRY
    }

    /// Byte address of a segment's SIT entry.
    pub(crate) fn sit_at(&self, segment: u32) -> u64 {
        self.sit_start * BLOCK + u64::from(segment) * SIT_ENTRY
    }

    /// Byte address of one half of the log.
    pub(crate) fn log_at(&self, half: usize) -> u64 {
        (self.log_start + half as u64 * self.log_half) * BLOCK
    }
}

/// A volume's region of NVM and its geometry: what every layer reads and writes through.
#[derive(Clone)]
pub(crate) struct Medium {
    /// The bytes.
    pub(crate) region: Region,
    /// Where things are.
    pub(crate) geometry: Geometry,
}

impl Medium {
    /// The bytes of a Main Area block.
    pub(crate) fn block(&self, block: u64) -> &[u8] {
        debug_assert!(self.geometry.in_main(block));
        self.region.bytes(block * BLOCK, BLOCK as usize)
    }

    /// `Ok` if `block`, read from `structure` at block `at`, lies in the Main Area.
    #[inline]
    pub(crate) fn check_main(
        &self,
        structure: &str,
        at: u64,
        field: std::fmt::Arguments<'_>,
        block: u64,
    ) -> vfs::Result<()> {
        if self.geometry.in_main(block) {
            return Ok(());
        }
        Err(corrupt(structure, at, &field.to_string(), block, "a block of the Main Area"))
    }

    /// `EIO` if the medium has failed under a load or store.
    #[inline]
    pub(crate) fn check_media(&self) -> vfs::Result<()> {
        self.region.check().map_err(|error| vfs::Error::Io(error.to_string()))
    }

    /// Runs an operation, whose answer, good or bad, counts only if all of the medium that it looked at could be read: what
    /// cannot reads as zeros, and these look like a name that is not there, an inode that is gone, an empty directory. On a
    /// medium that has failed it is not begun.
    #[inline]
    pub(crate) fn vouched<T>(&self, operation: impl FnOnce() -> vfs::Result<T>) -> vfs::Result<T> {
        self.check_media()?;
        let answer = operation();
        self.check_media()?;
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_lays_out_soundly_or_is_refused() {
        for mib in (1..200).chain([1024, 1500, 16384, 1 << 20]) {
            match Geometry::lay_out(mib << 20, None) {
                Ok(g) => {
                    assert!(g.is_sound(), "{mib} MiB: {g:?}");
                    assert!(mib >= 16);
                }
                Err(_) => assert!(mib < 16, "{mib} MiB refused"),
            }
        }
    }
}
