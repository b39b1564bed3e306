//! What is at a path or on a disk already: what creating a zone there would destroy, or what was meant to be something else.

use std::fmt;

/// What a zone begins with, at byte 8 of each copy of its entrance.
pub(crate) const ZONE: [u8; 8] = *b"AMBRZONE";

/// Bytes that must be given to [`recognise`] for all signatures to be seen.
pub const LOOK_BYTES: usize = 2 << 20;

/// What a file or device holds, by the bytes at its beginning. `Display` names it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Content {
    /// A file system, an image, an archive: by its name.
    Known(&'static str),
    /// A table of partitions, by its name.
    Partitions(&'static str),
    /// What `cryptsetup` opens.
    Luks,
    /// What LVM makes logical volumes of.
    Lvm,
    /// What Linux (md) makes an array of.
    Raid,
    /// Anything else: where its first byte is that is not zero.
    Unknown(usize),
}

impl fmt::Display for Content {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Known(what) | Content::Partitions(what) => out.write_str(what),
            Content::Luks => out.write_str("a LUKS container"),
            Content::Lvm => out.write_str("an LVM physical volume"),
            Content::Raid => out.write_str("a Linux RAID member"),
            Content::Unknown(first) => {
                write!(out, "data of an unknown kind (its byte {first} is not zero)")
            }
        }
    }
}

/// A pattern at a byte offset, and what has it.
const SIGNATURES: &[(usize, &[u8], Content)] = &[
    (8, &ZONE, Content::Known("an Amberfs zone")),
    ((1 << 20) + 8, &ZONE, Content::Known("an Amberfs zone")),
    (1080, &[0x53, 0xEF], Content::Known("an ext2/ext3/ext4 file system")),
    (0, b"XFSB", Content::Known("an XFS file system")),
    (0x10040, b"_BHRfS_M", Content::Known("a btrfs file system")),
    (1024, &[0x10, 0x20, 0xF5, 0xF2], Content::Known("an F2FS file system")),
    (
        4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        Content::Known("a bcachefs file system"),
    ),
    (3, b"NTFS    ", Content::Known("an NTFS file system")),
    (3, b"EXFAT   ", Content::Known("an exFAT file system")),
    (0, b"hsqs", Content::Known("a squashfs image")),
    (32769, b"CD001", Content::Known("an ISO 9660 image")),
    (512, b"EFI PART", Content::Partitions("a GPT partition table")),
    (4096, b"EFI PART", Content::Partitions("a GPT partition table")),
    (0, b"LUKS\xba\xbe", Content::Luks),
    (512, b"LABELONE", Content::Lvm),
    (4096, &[0xFC, 0x4E, 0x2B, 0xA9], Content::Raid),
    (0, &[0xFC, 0x4E, 0x2B, 0xA9], Content::Raid),
    (4086, b"SWAPSPACE2", Content::Known("a swap area")),
    (0, b"SQLite format 3\0", Content::Known("an SQLite database")),
    (0, b"QFI\xfb", Content::Known("a QEMU disk image")),
    (0, b"KDMV", Content::Known("a VMDK disk image")),
    (4096, b"NVDIMM_PFN_INFO\0", Content::Known("an NVDIMM namespace's page map")),
    (4096, b"BTT_ARENA_INFO\0", Content::Known("an NVDIMM namespace's block translation table")),
    (0, b"PMEMPOOLSET", Content::Known("a PMDK pool set")),
    (0, b"PMEMOBJ", Content::Known("a PMDK pool")),
    (0, b"\x7fELF", Content::Known("an executable")),
    (0, b"\x1f\x8b", Content::Known("gzip data")),
    (0, b"PK\x03\x04", Content::Known("a zip archive")),
    (0, b"%PDF", Content::Known("a PDF document")),
    (82, b"FAT32   ", Content::Known("a FAT file system")),
    (54, b"FAT", Content::Known("a FAT file system")),
    // Last: boot sectors of several of the above end so too.
    (510, &[0x55, 0xAA], Content::Partitions("an MBR partition table")),
];

/// What the first bytes of a file or device are, or None if they are all zero.
pub fn recognise(start: &[u8]) -> Option<Content> {
    let is_there =
        |at: usize, pattern: &[u8]| start.get(at..).is_some_and(|bytes| bytes.starts_with(pattern));
    let known = SIGNATURES.iter().find(|(at, pattern, _)| is_there(*at, pattern));
    known
        .map(|(.., content)| *content)
        .or_else(|| start.iter().position(|byte| *byte != 0).map(Content::Unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_recognised_as_itself() {
        for &(at, pattern, content) in SIGNATURES {
            let mut start = vec![0; LOOK_BYTES];
            start[at..at + pattern.len()].copy_from_slice(pattern);
            assert_eq!(recognise(&start), Some(content), "{content} at {at}");
        }
    }

    /// A FAT file system has a boot sector, which ends as a table of partitions does.
    #[test]
    fn a_fat_file_system_is_no_table_of_partitions() {
        let mut start = vec![0; 4096];
        start[510..512].copy_from_slice(&[0x55, 0xAA]);
        assert_eq!(recognise(&start), Some(Content::Partitions("an MBR partition table")));
        start[54..62].copy_from_slice(b"FAT16   ");
        assert_eq!(recognise(&start), Some(Content::Known("a FAT file system")));
    }

    #[test]
    fn zeros_are_nothing_and_anything_else_is_something() {
        assert_eq!(recognise(&[0; 4096]), None);
        assert_eq!(recognise(&[]), None);
        let mut start = vec![0; 4096];
        start[4095] = 1;
        assert_eq!(recognise(&start), Some(Content::Unknown(4095)));
    }
}
