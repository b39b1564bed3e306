//! POSIX access control lists in the binary form of Linux's `system.posix_acl_*` attributes.
//!
//! ```text
//! version: u32 = 2 | (tag: u16, perm: u16, id: u32) * n        all little-endian
//! ```
//!
//! Entries stand in the order of their tags: owner, named users, owning group, named groups, mask, other. The
//! semantics are those of Linux's `fs/posix_acl.c`; the functions here are pure and never see a medium.

use crate::{Attr, Caller, Error, Result};

/// The attribute of a file's own ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of the ACL that what is made in a directory inherits.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id of entries that name nobody.
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

impl Entry {
    fn permits(self, want: u32) -> bool {
        u32::from(self.perm) & want == want
    }

    fn set_perm(&mut self, bits: u32) {
        self.perm = (bits & 7) as u16;
    }
}

/// Whether `name` is one of the two ACL attributes.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Whether setting this value removes the ACL: it has no entries.
pub fn is_empty(raw: &[u8]) -> bool {
    raw.is_empty() || (raw.len() == HEADER_BYTES && raw[..] == VERSION.to_le_bytes())
}

/// Checks that `raw` is a well-formed ACL: [`Error::Invalid`] if not, [`Error::NotSupported`] if it is of
/// another version. An ACL without entries is not well-formed here; see [`is_empty`].
pub fn check(raw: &[u8]) -> Result<()> {
    parse(raw).map(drop)
}

/// The permission bits that say all the ACL says; `None` if it says more than a mode can, so that it must be
/// stored.
pub fn equivalent_mode(raw: &[u8]) -> Result<Option<u32>> {
    let entries = parse(raw)?;
    let extended = entries.iter().any(|e| matches!(e.tag, USER | GROUP | MASK));
    Ok((!extended).then(|| mode_of_entries(&entries)))
}

/// The permission bits (`& 0777`) an access ACL implies; the mask, if any, stands for the group.
pub fn mode_of(raw: &[u8]) -> Result<u32> {
    Ok(mode_of_entries(&parse(raw)?))
}

/// The ACL after a `chmod` to `mode`.
pub fn with_mode(raw: &[u8], mode: u32) -> Result<Vec<u8>> {
    let mut entries = parse(raw)?;
    let group_class = group_class_tag(&entries);
    for entry in &mut entries {
        match entry.tag {
            USER_OBJ => entry.set_perm(mode >> 6),
            OTHER => entry.set_perm(mode),
            tag if tag == group_class => entry.set_perm(mode >> 3),
            _ => {}
        }
    }
    Ok(serialize(&entries))
}

/// What a new inode gets from its directory's default ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// The mode to create the inode with.
    pub mode: u32,
    /// The access ACL to store with it.
    pub access: Option<Vec<u8>>,
    /// The default ACL to store with it (directories).
    pub default: Option<Vec<u8>>,
}

/// The mode and ACLs of an inode created with `mode` (its bits above 0777 pass through) in a directory. Without a
/// default ACL the `umask` applies; with one it does not. Symbolic links inherit nothing: don't ask.
pub fn inherit(default_of_dir: Option<&[u8]>, mode: u32, umask: u32, is_dir: bool) -> Result<Inherited> {
    let Some(raw) = default_of_dir else {
        return Ok(Inherited { mode: mode & !(umask & 0o777), access: None, default: None });
    };
    let mut entries = parse(raw)?;
    let group_class = group_class_tag(&entries);
    let mut class_bits = 0;
    for entry in &mut entries {
        let shift = match entry.tag {
            USER_OBJ => 6,
            OTHER => 0,
            tag if tag == group_class => 3,
            _ => continue,
        };
        entry.perm &= ((mode >> shift) & 7) as u16;
        class_bits |= u32::from(entry.perm) << shift;
    }
    let extended = entries.iter().any(|e| matches!(e.tag, USER | GROUP | MASK));
    Ok(Inherited {
        mode: (mode & !0o777) | class_bits,
        access: extended.then(|| serialize(&entries)),
        default: is_dir.then(|| raw.to_vec()),
    })
}

/// Whether the access ACL of the inode with `attr` permits `mask` (4 read, 2 write, 1 execute) to `caller`, no
/// privilege considered.
pub fn permits(raw: &[u8], caller: &Caller, attr: &Attr, mask: u32) -> Result<bool> {
    let entries = parse(raw)?;
    let want = mask & 7;
    let limit = entries.iter().find(|e| e.tag == MASK).copied();
    let masked = |entry: Entry| entry.permits(want) && limit.is_none_or(|limit| limit.permits(want));
    let mut in_some_group = false;
    for entry in entries {
        match entry.tag {
            USER_OBJ if attr.uid == caller.uid => return Ok(entry.permits(want)),
            USER if entry.id == caller.uid => return Ok(masked(entry)),
            GROUP_OBJ | GROUP => {
                let gid = if entry.tag == GROUP { entry.id } else { attr.gid };
                if caller.in_group(gid) {
                    in_some_group = true;
                    if entry.permits(want) {
                        return Ok(masked(entry));
                    }
                }
            }
            OTHER => return Ok(!in_some_group && entry.permits(want)),
            _ => {}
        }
    }
    Ok(false)
}

/// Linux's `posix_acl_from_xattr` and `posix_acl_valid`.
fn parse(raw: &[u8]) -> Result<Vec<Entry>> {
    let (version, body) = raw.split_first_chunk::<HEADER_BYTES>().ok_or(Error::Invalid)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(Error::NotSupported);
    }
    if body.len() % ENTRY_BYTES != 0 {
        return Err(Error::Invalid);
    }
    let entries: Vec<Entry> = body.chunks_exact(ENTRY_BYTES).map(entry).collect();
    check_order(&entries)?;
    Ok(entries)
}

fn entry(raw: &[u8]) -> Entry {
    let tag = u16::from_le_bytes([raw[0], raw[1]]);
    let perm = u16::from_le_bytes([raw[2], raw[3]]);
    let id = u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]);
    // The kernel ignores the id of entries that name nobody; keep what a reader would get back from it.
    Entry { tag, perm, id: if matches!(tag, USER | GROUP) { id } else { NO_ID } }
}

fn check_order(entries: &[Entry]) -> Result<()> {
    let mut expected = USER_OBJ;
    let mut needs_mask = false;
    let mut complete = false;
    for entry in entries {
        if entry.perm & !7 != 0 || complete {
            return Err(Error::Invalid);
        }
        match (entry.tag, expected) {
            (USER_OBJ, USER_OBJ) => expected = USER,
            (USER, USER) | (GROUP, GROUP) if entry.id != NO_ID => needs_mask = true,
            (GROUP_OBJ, USER) => expected = GROUP,
            (MASK, GROUP) => expected = OTHER,
            (OTHER, OTHER) => complete = true,
            (OTHER, GROUP) if !needs_mask => complete = true,
            _ => return Err(Error::Invalid),
        }
    }
    if complete { Ok(()) } else { Err(Error::Invalid) }
}

fn serialize(entries: &[Entry]) -> Vec<u8> {
    let mut raw = Vec::with_capacity(HEADER_BYTES + ENTRY_BYTES * entries.len());
    raw.extend(VERSION.to_le_bytes());
    for entry in entries {
        raw.extend(entry.tag.to_le_bytes());
        raw.extend(entry.perm.to_le_bytes());
        raw.extend(entry.id.to_le_bytes());
    }
    raw
}

/// The tag of the entry that the group bits of a mode show.
fn group_class_tag(entries: &[Entry]) -> u16 {
    if entries.iter().any(|e| e.tag == MASK) { MASK } else { GROUP_OBJ }
}

fn mode_of_entries(entries: &[Entry]) -> u32 {
    let group_class = group_class_tag(entries);
    entries.iter().fold(0, |mode, entry| {
        let perm = u32::from(entry.perm);
        mode | match entry.tag {
            USER_OBJ => perm << 6,
            OTHER => perm,
            tag if tag == group_class => perm << 3,
            _ => 0,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileKind, InodeFlags, Time};

    fn raw(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        serialize(&entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect::<Vec<_>>())
    }

    fn attr(uid: u32, gid: u32, perm: u32) -> Attr {
        let t = Time::default();
        Attr {
            ino: 2,
            generation: 0,
            mode: FileKind::Regular.mode_bits() | perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
            flags: InodeFlags::empty(),
        }
    }

    fn minimal() -> Vec<u8> {
        raw(&[(USER_OBJ, 6, NO_ID), (GROUP_OBJ, 4, NO_ID), (OTHER, 0, NO_ID)])
    }

    /// Owner rw, user 7 rwx, group r, group 9 rw, mask rw, other nothing.
    fn full() -> Vec<u8> {
        raw(&[
            (USER_OBJ, 6, NO_ID),
            (USER, 7, 7),
            (GROUP_OBJ, 4, NO_ID),
            (GROUP, 6, 9),
            (MASK, 6, NO_ID),
            (OTHER, 0, NO_ID),
        ])
    }

    #[test]
    fn well_formed_lists_pass() {
        check(&minimal()).unwrap();
        check(&full()).unwrap();
    }

    #[test]
    fn malformed_lists_are_invalid() {
        let bad: &[&[(u16, u16, u32)]] = &[
            &[],
            &[(USER_OBJ, 6, 0)],
            &[(USER_OBJ, 6, 0), (GROUP_OBJ, 4, 0)],
            &[(GROUP_OBJ, 4, 0), (USER_OBJ, 6, 0), (OTHER, 0, 0)],
            &[(USER_OBJ, 8, 0), (GROUP_OBJ, 4, 0), (OTHER, 0, 0)],
            &[(USER_OBJ, 6, 0), (USER, 6, 5), (GROUP_OBJ, 4, 0), (OTHER, 0, 0)],
            &[(USER_OBJ, 6, 0), (USER, 6, NO_ID), (GROUP_OBJ, 4, 0), (MASK, 7, 0), (OTHER, 0, 0)],
            &[(USER_OBJ, 6, 0), (GROUP_OBJ, 4, 0), (OTHER, 0, 0), (OTHER, 0, 0)],
            &[(USER_OBJ, 6, 0), (GROUP_OBJ, 4, 0), (MASK, 7, 0), (MASK, 7, 0), (OTHER, 0, 0)],
            &[(USER_OBJ, 6, 0), (USER_OBJ, 6, 0), (GROUP_OBJ, 4, 0), (OTHER, 0, 0)],
            &[(USER_OBJ, 6, 0), (GROUP_OBJ, 4, 0), (USER, 4, 5), (MASK, 7, 0), (OTHER, 0, 0)],
            &[(USER_OBJ, 6, 0), (GROUP_OBJ, 4, 0), (0x40, 4, 5), (OTHER, 0, 0)],
        ];
        for entries in bad {
            assert_eq!(check(&raw(entries)), Err(Error::Invalid), "{entries:?}");
        }
        let mut cut = minimal();
        cut.pop();
        assert_eq!(check(&cut), Err(Error::Invalid));
        assert_eq!(check(&[2, 0, 0]), Err(Error::Invalid));
        let mut version = minimal();
        version[0] = 1;
        assert_eq!(check(&version), Err(Error::NotSupported));
    }

    #[test]
    fn empty_lists_remove() {
        assert!(is_empty(b""));
        assert!(is_empty(&[2, 0, 0, 0]));
        assert!(!is_empty(&[1, 0, 0, 0]));
        assert!(!is_empty(&minimal()));
    }

    #[test]
    fn minimal_list_is_a_mode() {
        assert_eq!(equivalent_mode(&minimal()), Ok(Some(0o640)));
        assert_eq!(equivalent_mode(&full()), Ok(None));
        let masked = raw(&[(USER_OBJ, 6, 0), (GROUP_OBJ, 7, 0), (MASK, 4, 0), (OTHER, 1, 0)]);
        assert_eq!(equivalent_mode(&masked), Ok(None));
        assert_eq!(mode_of(&masked), Ok(0o641));
        assert_eq!(mode_of(&full()), Ok(0o660));
    }

    #[test]
    fn chmod_changes_the_mask_if_there_is_one() {
        let changed = with_mode(&full(), 0o751).unwrap();
        let expected = raw(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 7, 7),
            (GROUP_OBJ, 4, NO_ID),
            (GROUP, 6, 9),
            (MASK, 5, NO_ID),
            (OTHER, 1, NO_ID),
        ]);
        assert_eq!(changed, expected);
        let changed = with_mode(&minimal(), 0o4751).unwrap();
        assert_eq!(changed, raw(&[(USER_OBJ, 7, NO_ID), (GROUP_OBJ, 5, NO_ID), (OTHER, 1, NO_ID)]));
    }

    #[test]
    fn umask_applies_without_a_default_list_only() {
        let made = inherit(None, 0o100_666, 0o027, false).unwrap();
        assert_eq!(made, Inherited { mode: 0o100_640, access: None, default: None });
        let made = inherit(Some(&minimal()), 0o100_666, 0o777, false).unwrap();
        assert_eq!(made, Inherited { mode: 0o100_640, access: None, default: None });
    }

    #[test]
    fn directories_inherit_both_lists() {
        let made = inherit(Some(&full()), 0o042_755, 0o777, true).unwrap();
        let access = raw(&[
            (USER_OBJ, 6, NO_ID),
            (USER, 7, 7),
            (GROUP_OBJ, 4, NO_ID),
            (GROUP, 6, 9),
            (MASK, 4, NO_ID),
            (OTHER, 0, NO_ID),
        ]);
        assert_eq!(made, Inherited { mode: 0o042_640, access: Some(access), default: Some(full()) });
    }

    #[test]
    fn entries_are_tried_in_order() {
        let file = attr(1, 2, 0o660);
        let ask = |caller: &Caller, mask| permits(&full(), caller, &file, mask).unwrap();
        assert!(ask(&Caller::user(1, 50), 6), "owner");
        assert!(!ask(&Caller::user(1, 9), 1), "the owner's entry decides alone");
        assert!(ask(&Caller::user(7, 50), 6), "named user");
        assert!(!ask(&Caller::user(7, 50), 1), "the mask limits a named user");
        assert!(ask(&Caller::user(5, 2), 4), "owning group");
        assert!(!ask(&Caller::user(5, 2), 2), "owning group may not write");
        assert!(ask(&Caller::user(5, 9), 6), "named group");
        assert!(!ask(&Caller::user(5, 5), 4), "other");
        let mut both = Caller::user(5, 2);
        both.groups = [9].into();
        assert!(ask(&both, 6), "one of several groups suffices");
    }

    #[test]
    fn a_group_that_is_denied_does_not_fall_back_to_other() {
        let list = raw(&[(USER_OBJ, 6, 0), (GROUP_OBJ, 0, 0), (OTHER, 4, 0)]);
        let file = attr(1, 2, 0o604);
        assert!(!permits(&list, &Caller::user(5, 2), &file, 4).unwrap());
        assert!(permits(&list, &Caller::user(5, 3), &file, 4).unwrap());
    }
}
