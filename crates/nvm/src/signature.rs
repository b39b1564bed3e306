//! What is at a path already: content that creating a zone there would destroy.

use crate::entrance;

/// Bytes that must be given to [`recognise`] for all signatures to be seen.
pub(crate) const LOOK_BYTES: usize = 2 << 20;

/// A pattern at a byte offset, and what has it.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (8, &entrance::MAGIC, "an Amberfs zone"),
    ((1 << 20) + 8, &entrance::MAGIC, "an Amberfs zone"),
    (1080, &[0x53, 0xEF], "an ext2/ext3/ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (1024, &[0x10, 0x20, 0xF5, 0xF2], "an F2FS file system"),
    (
        4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        "a bcachefs file system",
    ),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (0, b"hsqs", "a squashfs image"),
    (32769, b"CD001", "an ISO 9660 image"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (512, b"LABELONE", "an LVM physical volume"),
    (4096, &[0xFC, 0x4E, 0x2B, 0xA9], "a Linux RAID member"),
    (0, &[0xFC, 0x4E, 0x2B, 0xA9], "a Linux RAID member"),
    (4086, b"SWAPSPACE2", "a swap area"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (0, b"QFI\xfb", "a QEMU disk image"),
    (0, b"KDMV", "a VMDK disk image"),
    (4096, b"NVDIMM_PFN_INFO\0", "an NVDIMM namespace's page map"),
    (4096, b"BTT_ARENA_INFO\0", "an NVDIMM namespace's block translation table"),
    (0, b"PMEMPOOLSET", "a PMDK pool set"),
    (0, b"PMEMOBJ", "a PMDK pool"),
    (0, b"\x7fELF", "an executable"),
    (0, b"\x1f\x8b", "gzip data"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"%PDF", "a PDF document"),
    // Last: boot sectors of several of the above end so too.
    (510, &[0x55, 0xAA], "an MBR partition table or a FAT file system"),
];

/// What the first bytes of a file or device are, or None if they are all zero.
pub(crate) fn recognise(start: &[u8]) -> Option<String> {
    let there = |&&(at, pattern, _): &&(usize, &[u8], &str)| {
        start.get(at..).is_some_and(|bytes| bytes.starts_with(pattern))
    };
    if let Some((_, _, what)) = SIGNATURES.iter().find(there) {
        return Some(what.to_string());
    }
    let first = start.iter().position(|&byte| byte != 0)?;
    Some(format!("data of an unknown kind (its byte {first} is not zero)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_recognised_as_itself() {
        for &(at, pattern, what) in SIGNATURES {
            let mut start = vec![0; LOOK_BYTES];
            start[at..at + pattern.len()].copy_from_slice(pattern);
            assert_eq!(recognise(&start).as_deref(), Some(what), "{what} at {at}");
        }
    }

    #[test]
    fn zeros_are_nothing_and_anything_else_is_something() {
        assert_eq!(recognise(&[0; 4096]), None);
        assert_eq!(recognise(&[]), None);
        let mut start = vec![0; 4096];
        start[4095] = 1;
        assert!(recognise(&start).unwrap().contains("4095"));
    }
}
