//! What else a disk may hold: who has named the wrong one, or a whole disk instead of a partition, is told what it is.
//!
//! Only ever words of a message: nothing is decided by it.

use disk::{Disk, Purpose};

/// Bytes by which something is known, where they are, what it is, and what to do about it.
const KNOWN: [(u64, &[u8], &str); 17] = [
    (0, b"XFSB", "an XFS file system"),
    (65536 + 64, b"_BHRfS_M", "a btrfs file system"),
    (1024, &[0x10, 0x20, 0xF5, 0xF2], "an F2FS file system"),
    (0, b"hsqs", "a squashfs file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (82, b"FAT32   ", "a FAT file system"),
    (54, b"FAT", "a FAT file system"),
    (32769, b"CD001", "an ISO 9660 file system"),
    (0, b"LUKS\xBA\xBE", "a LUKS container: `cryptsetup open` it, and name what that makes"),
    (512, b"LABELONE", "a physical volume of LVM: name one of the logical volumes"),
    (4096, &[0xFC, 0x4E, 0x2B, 0xA9], "a member of a RAID (md): name the device that it is in"),
    (4086, b"SWAPSPACE2", "space to swap"),
    (8, b"AMBRZONE", "a zone of Amberfs"),
    (512, b"EFI PART", PARTITIONS),
    (4096, b"EFI PART", PARTITIONS),
    (510, &[0x55, 0xAA], PARTITIONS),
];

const PARTITIONS: &str = "a table of partitions: name one of them";

/// As much of a disk's beginning is looked at: all of the places.
const LOOKED_AT: usize = 72 << 10;

/// What `disk`, on which there is no ext, holds instead, to be said behind a comma; nothing if that is not known.
pub(crate) fn instead(disk: &Disk) -> String {
    let sector = u64::from(disk.sector());
    let length = (disk.bytes() / sector * sector).min((LOOKED_AT as u64).next_multiple_of(sector));
    let mut bytes = vec![0; length as usize];
    if bytes.is_empty() || disk.read(Purpose::Metadata, 0, &mut bytes).is_err() {
        return String::new();
    }
    if bytes.iter().all(|byte| *byte == 0) {
        return ", but zeros".into();
    }
    let is_here =
        |at: u64, magic: &[u8]| bytes.get(at as usize..).is_some_and(|rest| rest.starts_with(magic));
    let known = KNOWN.iter().find(|(at, magic, _)| is_here(*at, magic));
    known.map_or_else(String::new, |(.., what)| format!(", but {what}"))
}
