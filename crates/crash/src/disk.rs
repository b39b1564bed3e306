//! What a power cut may leave of a disk.
//!
//! A write that no sync has followed may be lost, or overtake another; each sector of 512 bytes is written as a whole or
//! not at all, and of several writes to one sector any may be the last that arrived. A sync that returned has made all
//! writes before it durable.

use std::collections::BTreeMap;

/// Bytes of which a disk writes all or none.
pub const SECTOR: usize = 512;

type Sector = [u8; SECTOR];

/// A disk while a recording is played: what is durable on it, and what may have reached it.
#[derive(Clone, Debug)]
pub struct Disk {
    durable: Vec<u8>,
    /// By sector: what was written since the last sync, oldest first.
    pending: BTreeMap<usize, Vec<Sector>>,
}

/// An event that this disk cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at {address} are not sectors of this disk, which has {disk_bytes} bytes")]
pub struct OutsideDisk {
    /// Byte offset on the disk.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Bytes of the disk.
    pub disk_bytes: u64,
}

impl Disk {
    /// A disk that holds `image`, whole sectors, durably.
    ///
    /// # Panics
    /// If they are not whole sectors.
    pub fn new(image: Vec<u8>) -> Disk {
        assert!(image.len().is_multiple_of(SECTOR), "a disk has whole sectors");
        Disk { durable: image, pending: BTreeMap::new() }
    }

    /// Writes whole sectors.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), OutsideDisk> {
        let refused =
            OutsideDisk { address, length: bytes.len() as u64, disk_bytes: self.durable.len() as u64 };
        let end = address.checked_add(bytes.len() as u64).ok_or(refused)?;
        if !(address | bytes.len() as u64).is_multiple_of(SECTOR as u64) || end > self.durable.len() as u64 {
            return Err(refused);
        }
        let first = address as usize / SECTOR;
        let (sectors, _) = bytes.as_chunks::<SECTOR>();
        for (sector, bytes) in (first..).zip(sectors) {
            self.pending.entry(sector).or_default().push(*bytes);
        }
        Ok(())
    }

    /// Makes all writes so far durable.
    pub fn sync(&mut self) {
        for (sector, versions) in std::mem::take(&mut self.pending) {
            if let Some(last) = versions.last() {
                self.durable[sector * SECTOR..][..SECTOR].copy_from_slice(last);
            }
        }
    }

    /// The sectors that are not durable, ascending, each with the number of writes that may be the last that arrived
    /// beside none of them.
    pub fn pending(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.pending.iter().map(|(sector, versions)| (*sector, versions.len()))
    }

    /// What a power cut leaves now if of each pending sector, in the order of [`Disk::pending`], the write arrived last
    /// that `choose` names: 0 for none, n for the n-th; numbers beyond the newest mean the newest.
    pub fn state(&self, mut choose: impl FnMut(usize) -> usize) -> Vec<u8> {
        let mut image = self.durable.clone();
        for (sector, versions) in &self.pending {
            let chosen = choose(*sector).min(versions.len());
            if chosen > 0 {
                image[sector * SECTOR..][..SECTOR].copy_from_slice(&versions[chosen - 1]);
            }
        }
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        Disk::new(vec![0; 4 * SECTOR])
    }

    #[test]
    fn what_was_not_synced_may_be_lost_or_overtake() {
        let mut disk = disk();
        disk.write(0, &[1; SECTOR]).unwrap();
        disk.write(SECTOR as u64, &[2; 2 * SECTOR]).unwrap();
        assert_eq!(disk.pending().collect::<Vec<_>>(), [(0, 1), (1, 1), (2, 1)]);
        let overtaken = disk.state(|sector| usize::from(sector == 2));
        assert_eq!((overtaken[0], overtaken[SECTOR], overtaken[2 * SECTOR]), (0, 0, 2));
    }

    #[test]
    fn of_several_writes_to_a_sector_any_may_be_the_last() {
        let mut disk = disk();
        (1..=3).for_each(|n| disk.write(0, &[n; SECTOR]).unwrap());
        let left: Vec<u8> = (0..=4).map(|n| disk.state(|_| n)[0]).collect();
        assert_eq!(left, [0, 1, 2, 3, 3]);
    }

    #[test]
    fn a_sync_leaves_nothing_to_chance() {
        let mut disk = disk();
        disk.write(0, &[1; SECTOR]).unwrap();
        disk.sync();
        assert_eq!(disk.pending().count(), 0);
        assert_eq!(disk.state(|_| 0)[..SECTOR], [1; SECTOR]);
    }

    #[test]
    fn what_is_no_sector_is_refused() {
        let mut disk = disk();
        for (address, length) in
            [(1, SECTOR), (0, 100), (4 * SECTOR as u64, SECTOR), (u64::MAX - 511, SECTOR)]
        {
            assert!(disk.write(address, &vec![0; length]).is_err(), "{address} {length}");
        }
    }
}
