//! POSIX ACLs: short on the disk, with an ID only where one is meant; in Linux's form for everybody else.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const DISK_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
/// Tags of entries with an ID.
const NAMED: [u16; 2] = [2, 8];
/// Tags of those without.
const UNNAMED: [u16; 4] = [1, 4, 16, 32];

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct Short {
    tag: U16,
    permissions: U16,
}

/// The list in Linux's form; nothing if it is damaged.
pub(crate) fn from_disk(bytes: &[u8]) -> Option<Vec<u8>> {
    let (version, mut rest) = U32::read_from_prefix(bytes).ok()?;
    if version.get() != DISK_VERSION {
        return None;
    }
    let mut list = XATTR_VERSION.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let (entry, behind) = Short::read_from_prefix(rest).ok()?;
        list.extend_from_slice(entry.as_bytes());
        rest = behind;
        if NAMED.contains(&entry.tag.get()) {
            let (id, behind) = rest.split_at_checked(4)?;
            list.extend_from_slice(id);
            rest = behind;
        } else if UNNAMED.contains(&entry.tag.get()) {
            list.extend_from_slice(&u32::MAX.to_le_bytes());
        } else {
            return None;
        }
    }
    Some(list)
}

/// The list, which is well-formed, in the disk's form.
pub(crate) fn to_disk(list: &[u8]) -> Vec<u8> {
    let mut bytes = DISK_VERSION.to_le_bytes().to_vec();
    for entry in list[4..].chunks_exact(8) {
        let is_named = NAMED.contains(&u16::from_le_bytes([entry[0], entry[1]]));
        bytes.extend_from_slice(if is_named { entry } else { &entry[..4] });
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_linux_has_an_id_everywhere() {
        let disk = [
            &[1, 0, 0, 0][..],
            &[1, 0, 6, 0],
            &[2, 0, 4, 0, 7, 0, 0, 0],
            &[4, 0, 4, 0],
            &[16, 0, 4, 0],
            &[32, 0, 0, 0],
        ];
        let linux = [
            &[2, 0, 0, 0][..],
            &[1, 0, 6, 0, 255, 255, 255, 255],
            &[2, 0, 4, 0, 7, 0, 0, 0],
            &[4, 0, 4, 0, 255, 255, 255, 255],
            &[16, 0, 4, 0, 255, 255, 255, 255],
            &[32, 0, 0, 0, 255, 255, 255, 255],
        ];
        assert_eq!(from_disk(&disk.concat()), Some(linux.concat()));
        assert_eq!(to_disk(&linux.concat()), disk.concat());
        vfs::acl::check(&linux.concat()).unwrap();
    }

    #[test]
    fn damaged_lists_are_none() {
        for bytes in [
            &[][..],
            &[2, 0, 0, 0],
            &[1, 0, 0, 0, 1],
            &[1, 0, 0, 0, 2, 0, 4, 0, 7],
            &[1, 0, 0, 0, 3, 0, 4, 0],
        ] {
            assert_eq!(from_disk(bytes), None, "{bytes:?}");
        }
    }
}
