//! What a transaction logs: objects and differences (Shortcut-JFS §III.A, Table I).
//!
//! A record is self-describing and complete: applying its items to the state before it gives the state after it. The
//! running volume changes itself by applying the very records it logs, so replay cannot do anything else.
//!
//! ```text
//! transaction: crc u32 │ length u32 │ number u64 │ data crc u32 │ flags u32 │ items …, padded with zeros to 64 bytes
//! item:        tag u8 │ kind u8 │ length u16 │ inode u32 │ fixed part │ bytes, padded to 8
//! ```

use std::cell::Cell;

use zerocopy::{FromBytes, IntoBytes};

use crate::fault::{Fault, planted};
use crate::geometry::{BLOCK, FILE_MAX};
use crate::inode::{Cold, Hot, PAYLOAD_BYTES};
use crate::pointer::DataPointer;

/// Bytes of a transaction before its items.
pub(crate) const TRANSACTION_HEADER: usize = 24;
/// Flag of a transaction that is committed only if the blocks it maps have its data checksum.
pub(crate) const CHECKS_DATA: u32 = 1;
/// Flag of a transaction that was committed beside others that change the same inode: that it is there does not say that
/// those before it were durable.
pub(crate) const BESIDE: u32 = 2;
/// The flags' second byte is the number of the lane that the transaction was committed in.
pub(crate) const LANE_SHIFT: u32 = 8;
/// The flags' upper half is how many transactions the lane had committed in this half of the log before, as far as 16
/// bits tell.
pub(crate) const TURN_SHIFT: u32 = 16;
const ITEM_HEADER: usize = 8;
/// Bytes of [`Item::Map`].
pub(crate) const MAP_LOG: usize = ITEM_HEADER + 24;
/// Records begin at multiples of this: a line is never shared by two transactions.
pub(crate) const ALIGN: usize = nvm::LINE as usize;
const _: () = assert!(TRANSACTION_HEADER <= ALIGN);

/// One change. Inodes and directory entries are logged as objects, data below half a block as differences,
/// other data as a pointer to the new block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Item<'a> {
    /// A new inode.
    Create { ino: u32, cold: &'a Cold, hot: &'a Hot },
    /// An inode's often changing attributes.
    Hot { ino: u32, hot: &'a Hot },
    /// An inode's seldom changing attributes.
    Cold { ino: u32, cold: &'a Cold },
    /// A new directory entry.
    Enter { dir: u32, key: u64, ino: u32, kind: u8, name: &'a [u8] },
    /// A directory entry is gone.
    Leave { dir: u32, key: u64 },
    /// A directory entry names another inode.
    Relink { dir: u32, key: u64, ino: u32, kind: u8 },
    /// Blocks of a file lie at a run of the medium.
    Map { ino: u32, index: u64, count: u32, pointer: DataPointer },
    /// Blocks of a file are holes. To `u64::MAX`: from here to the end; from 0 on, the file may be inline again.
    Unmap { ino: u32, from: u64, to: u64 },
    /// Bytes of an inline file or symbolic link changed.
    Inline { ino: u32, offset: u16, bytes: &'a [u8] },
    /// An inline file becomes a mapped one, empty.
    Spill { ino: u32 },
    /// Bytes of a file's data block changed (differential logging). With 0 for the inode, the other items tell.
    Bytes { ino: u32, block: u64, offset: u16, bytes: &'a [u8] },
    /// An extended attribute is set.
    SetXattr { ino: u32, name: &'a [u8], value: &'a [u8] },
    /// An extended attribute is gone.
    RemoveXattr { ino: u32, name: &'a [u8] },
    /// An inode is gone, with all it held.
    Remove { ino: u32 },
}

/// What of its transaction's way to the medium an item's application must wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Waits {
    /// Nothing: what it changes is seen by nobody before the inode's lock is given back or, if it is given back early, by
    /// none who depends on it before the fence.
    Not,
    /// The fence (with `fsync`: its place in the order), because it gives away or makes known a number without a lock:
    /// a NID that becomes free may be another's at once, and an inode can be found by its number.
    ForFence,
    /// Until its record is durable, in any mode: the newest checkpoint reaches what it changes.
    UntilDurable,
}

impl Item<'_> {
    pub(crate) fn waits(&self) -> Waits {
        match self {
            Item::Hot { .. }
            | Item::Cold { .. }
            | Item::Enter { .. }
            | Item::Leave { .. }
            | Item::Relink { .. }
            | Item::Map { .. }
            | Item::Inline { .. }
            | Item::Spill { .. } => Waits::Not,
            // Freed NIDs: of index nodes, of an attribute node, of all the inode had.
            Item::Create { .. }
            | Item::Unmap { .. }
            | Item::SetXattr { .. }
            | Item::RemoveXattr { .. }
            | Item::Remove { .. } => Waits::ForFence,
            Item::Bytes { .. } => Waits::UntilDurable,
        }
    }

    /// The inode that it changes; `None` if only the other items of its transaction tell.
    pub(crate) fn inode(&self) -> Option<u32> {
        match *self {
            Item::Create { ino, .. }
            | Item::Hot { ino, .. }
            | Item::Cold { ino, .. }
            | Item::Map { ino, .. }
            | Item::Unmap { ino, .. }
            | Item::Inline { ino, .. }
            | Item::Spill { ino }
            | Item::SetXattr { ino, .. }
            | Item::RemoveXattr { ino, .. }
            | Item::Remove { ino } => Some(ino),
            Item::Enter { dir, .. } | Item::Leave { dir, .. } | Item::Relink { dir, .. } => Some(dir),
            Item::Bytes { ino, .. } => Some(ino).filter(|ino| *ino != 0),
        }
    }

    /// Whether the item stays within what it is about.
    fn is_possible(&self) -> bool {
        let blocks = FILE_MAX / BLOCK;
        match *self {
            Item::Create { hot, .. } | Item::Hot { hot, .. } => hot.is_possible(),
            Item::Map { index, count, pointer, .. } => {
                index < blocks && u64::from(count) <= blocks - index && !pointer.is_hole()
            }
            Item::Unmap { from, to, .. } => from <= blocks && from <= to,
            Item::Inline { offset, bytes, .. } => usize::from(offset) + bytes.len() <= PAYLOAD_BYTES,
            Item::Bytes { offset, bytes, .. } => usize::from(offset) + bytes.len() <= BLOCK as usize,
            Item::Enter { name, .. } => !name.is_empty() && name.len() <= vfs::NAME_MAX,
            _ => true,
        }
    }
}

/// A transaction being written: PENDING until the log has it.
pub(crate) struct Transaction {
    pub(crate) bytes: Vec<u8>,
    /// Items up to here may be applied while the record is on its way.
    early: usize,
    /// Some item waits for the fence, or longer; all that follow wait with it.
    waits: bool,
    /// Some item changes bytes where the newest checkpoint can see them.
    pub(crate) changes_in_place: bool,
    /// It depends on no other that changes the same inode.
    pub(crate) beside: bool,
}

thread_local! {
    /// The buffer of the thread's last transaction, for the next.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}
/// A larger buffer is not kept.
const SPARE_MAX: usize = 64 << 10;

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.bytes.capacity() <= SPARE_MAX {
            SPARE.set(std::mem::take(&mut self.bytes));
        }
    }
}

impl Transaction {
    pub(crate) fn new() -> Transaction {
        let mut bytes = SPARE.take();
        bytes.clear();
        bytes.resize(TRANSACTION_HEADER, 0);
        Transaction { bytes, early: TRANSACTION_HEADER, waits: false, changes_in_place: false, beside: false }
    }

    /// The items that may be applied while the record is on its way, and those that may not.
    pub(crate) fn items(&self) -> (&[u8], &[u8]) {
        let early = if planted(Fault::AppliedTooEarly) { self.bytes.len() } else { self.early };
        self.bytes[TRANSACTION_HEADER..].split_at(early - TRANSACTION_HEADER)
    }

    /// Adds an item.
    pub(crate) fn push(&mut self, item: &Item<'_>) {
        let out = &mut self.bytes;
        match *item {
            Item::Create { ino, cold, hot } => put(out, 1, 0, ino, [cold.as_bytes(), hot.as_bytes()]),
            Item::Hot { ino, hot } => put(out, 2, 0, ino, [hot.as_bytes()]),
            Item::Cold { ino, cold } => put(out, 3, 0, ino, [cold.as_bytes()]),
            Item::Enter { dir, key, ino, kind, name } => {
                let length = [name.len() as u8];
                put(out, 4, kind, dir, [&key.to_le_bytes(), &ino.to_le_bytes(), &length, name]);
            }
            Item::Leave { dir, key } => put(out, 5, 0, dir, [&key.to_le_bytes()]),
            Item::Relink { dir, key, ino, kind } => {
                put(out, 6, kind, dir, [&key.to_le_bytes(), &ino.to_le_bytes()]);
            }
            Item::Map { ino, index, count, pointer } => {
                let (index, pointer, count) =
                    (index.to_le_bytes(), pointer.0.to_le_bytes(), u64::from(count).to_le_bytes());
                put(out, 7, 0, ino, [&index, &pointer, &count]);
            }
            Item::Unmap { ino, from, to } => put(out, 8, 0, ino, [&from.to_le_bytes(), &to.to_le_bytes()]),
            Item::Inline { ino, offset, bytes } => {
                let length = (bytes.len() as u16).to_le_bytes();
                put(out, 9, 0, ino, [&offset.to_le_bytes(), &length, bytes]);
            }
            Item::Spill { ino } => put(out, 10, 0, ino, []),
            Item::Bytes { ino, block, offset, bytes } => {
                let length = (bytes.len() as u16).to_le_bytes();
                put(out, 11, 0, ino, [&block.to_le_bytes(), &offset.to_le_bytes(), &length, bytes]);
            }
            Item::SetXattr { ino, name, value } => {
                let length = (value.len() as u16).to_le_bytes();
                put(out, 12, name.len() as u8, ino, [&length, name, value]);
            }
            Item::RemoveXattr { ino, name } => put(out, 13, name.len() as u8, ino, [name]),
            Item::Remove { ino } => put(out, 14, 0, ino, []),
        }
        let waits = item.waits();
        self.changes_in_place |= waits == Waits::UntilDurable;
        self.waits |= waits != Waits::Not;
        if !self.waits {
            self.early = self.bytes.len();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() == TRANSACTION_HEADER
    }
}

/// Appends an item: its header, its parts one behind the other, and zeros up to a multiple of 8.
#[inline(always)]
fn put<const N: usize>(out: &mut Vec<u8>, tag: u8, kind: u8, ino: u32, parts: [&[u8]; N]) {
    let bytes = ITEM_HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
    let length = bytes.next_multiple_of(8);
    let start = out.len();
    out.resize(start + length, 0);
    let item = &mut out[start..];
    let header =
        u64::from(tag) | u64::from(kind) << 8 | (length as u64 & 0xffff) << 16 | u64::from(ino) << 32;
    item[..ITEM_HEADER].copy_from_slice(&header.to_le_bytes());
    let mut at = ITEM_HEADER;
    for part in parts {
        item[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
}

/// Takes items off the front of a transaction's bytes (after its header).
pub(crate) struct Items<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Items<'a> {
    /// `Err`: the bytes make no item, although the transaction's checksum was right.
    type Item = Result<Item<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.0;
        if bytes.len() < ITEM_HEADER || bytes[0] == 0 {
            return None;
        }
        let length = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        if length < ITEM_HEADER || length > bytes.len() {
            self.0 = &[];
            return Some(Err(Malformed));
        }
        let (item, rest) = bytes.split_at(length);
        self.0 = rest;
        Some(decode(item).filter(Item::is_possible).ok_or(Malformed))
    }
}

/// A record that no version of this program wrote.
#[derive(Debug)]
pub(crate) struct Malformed;

fn decode(item: &[u8]) -> Option<Item<'_>> {
    let mut rest = Fields(&item[ITEM_HEADER..]);
    let kind = item[1];
    let ino = u32::from_le_bytes(item[4..8].try_into().expect("4 bytes"));
    Some(match item[0] {
        1 => Item::Create {
            ino,
            cold: Cold::ref_from_bytes(rest.take(size_of::<Cold>())?).ok()?,
            hot: Hot::ref_from_bytes(rest.take(size_of::<Hot>())?).ok()?,
        },
        2 => Item::Hot { ino, hot: Hot::ref_from_bytes(rest.take(size_of::<Hot>())?).ok()? },
        3 => Item::Cold { ino, cold: Cold::ref_from_bytes(rest.take(size_of::<Cold>())?).ok()? },
        4 => {
            let (key, target) = (rest.u64()?, rest.u32()?);
            let length = usize::from(rest.take(1)?[0]);
            Item::Enter { dir: ino, key, ino: target, kind, name: rest.take(length)? }
        }
        5 => Item::Leave { dir: ino, key: rest.u64()? },
        6 => Item::Relink { dir: ino, key: rest.u64()?, ino: rest.u32()?, kind },
        7 => {
            let (index, pointer) = (rest.u64()?, DataPointer(rest.u64()?));
            Item::Map { ino, index, pointer, count: rest.u32()? }
        }
        8 => Item::Unmap { ino, from: rest.u64()?, to: rest.u64()? },
        9 => {
            let (offset, length) = (rest.u16()?, rest.u16()?);
            Item::Inline { ino, offset, bytes: rest.take(usize::from(length))? }
        }
        10 => Item::Spill { ino },
        11 => {
            let (block, offset, length) = (rest.u64()?, rest.u16()?, rest.u16()?);
            Item::Bytes { ino, block, offset, bytes: rest.take(usize::from(length))? }
        }
        12 => {
            let length = usize::from(rest.u16()?);
            Item::SetXattr { ino, name: rest.take(usize::from(kind))?, value: rest.take(length)? }
        }
        13 => Item::RemoveXattr { ino, name: rest.take(usize::from(kind))? },
        14 => Item::Remove { ino },
        _ => return None,
    })
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().expect("2 bytes")))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().expect("4 bytes")))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().expect("8 bytes")))
    }
}
