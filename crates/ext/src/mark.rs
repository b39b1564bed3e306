//! The mark that an attached disk carries: its newest metadata is in NVM.
//!
//! An *incompat* feature that neither the kernel nor e2fsck knows, so that both refuse the disk: marked as having errors instead, it would be
//! "repaired" to what it was when it was attached. Whose it is stands in reserved bytes of the superblock.

use disk::{Disk, Purpose};
use zerocopy::IntoBytes;

use crate::error::Error;
use crate::superblock::{self, Mark, RawSuperblock};

/// The mark of `disk`, if it has one.
pub(crate) fn read(disk: &Disk) -> Result<Option<Mark>, Error> {
    Ok(superblock::load(disk)?.mark())
}

/// Writes a superblock with this mark; durable when it returns. If it had none, **whoever finds the feature finds whose it is**: that
/// is there, in the superblock's second sector, before the feature, in its first.
pub(crate) fn write(disk: &Disk, mut raw: RawSuperblock, mark: Mark) -> Result<(), Error> {
    raw.set_owner(Some(mark));
    write_superblock(disk, &raw)?;
    disk.flush()?;
    if raw.is_attached() {
        return Ok(());
    }
    raw.set_attached(true);
    write_superblock(disk, &raw)?;
    Ok(disk.flush()?)
}

/// Takes the mark away from a disk whose newest metadata is lost, which is not clean then; durable when it returns.
pub(crate) fn remove(disk: &Disk) -> Result<(), Error> {
    let mut raw = superblock::load(disk)?;
    raw.set_attached(false);
    raw.set_owner(None);
    raw.set_unclean();
    write_superblock(disk, &raw)?;
    Ok(disk.flush()?)
}

/// Writes the superblock. Whole sectors: what shares one with it stays as it is.
pub(crate) fn write_superblock(disk: &Disk, raw: &RawSuperblock) -> Result<(), Error> {
    let sector = u64::from(disk.sector());
    let start = superblock::AT - superblock::AT % sector;
    let bytes = (superblock::AT + superblock::BYTES as u64 - start).next_multiple_of(sector);
    let mut around = vec![0; bytes as usize];
    disk.read(Purpose::Metadata, start, &mut around)?;
    around[(superblock::AT - start) as usize..][..superblock::BYTES].copy_from_slice(raw.as_bytes());
    Ok(disk.write(Purpose::Metadata, start, &around)?)
}
