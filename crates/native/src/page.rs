//! A page of directory entries: what a bucket holds.
//!
//! ```text
//! │ count u16 │ heap u16 │ dead u16 │ 0 u16 │ 168 tags u8 │ offsets u16 … →      ← … heap of entries │
//! entry: key u64 │ ino u32 │ kind u8 │ length u8 │ name
//! ```
//! Entries are in no order; a tag is 8 bits of the entry's key. The tags lie side by side, so that a look-up scans the
//! first three lines of a bucket and then reads one entry. Offsets count from the page's start. A removed entry's bytes are
//! dead until the page is compacted. Pages are changed only in copies that are not yet valid, so their changes need no
//! order among themselves.

use vfs::FileKind;

use crate::error::corrupt;
use crate::geometry::BLOCK;
use crate::node::{Edit, HEADER, View};

/// Where the page begins in its bucket.
const START: usize = HEADER;
/// Bytes of a page.
const LENGTH: usize = BLOCK as usize - HEADER;
const TAGS: usize = 8;
/// Entries of a page at most; tags end where a line does.
const ENTRIES_MAX: usize = 168;
const OFFSETS: usize = TAGS + ENTRIES_MAX;
const _: () = assert!((START + OFFSETS).is_multiple_of(64));
/// Lines of a bucket before its entries: headers, tags, and all but the last of the offsets. Which offset a look-up needs
/// it learns from the tags; to ask for all of them at once costs less than to wait twice.
pub(crate) const FIRST_LINES: u64 = (START + OFFSETS + ENTRIES_MAX * OFFSET) as u64 / 64;
const ENTRY_FIXED: usize = 14;
/// Bytes that an entry takes beside its own.
const OFFSET: usize = 2;

/// Bits of a key.
pub(crate) const KEY_BITS: u32 = 63;

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Unique in the directory; see [`crate::directory`].
    pub(crate) key: u64,
    pub(crate) ino: u32,
    pub(crate) kind: u8,
    pub(crate) name: &'a [u8],
}

impl Entry<'_> {
    pub(crate) fn file_kind(&self) -> FileKind {
        FileKind::from_d_type(self.kind).unwrap_or(FileKind::Regular)
    }

    fn length(&self) -> usize {
        ENTRY_FIXED + self.name.len()
    }
}

/// A page, read. Every offset in it is range-checked when used: a page under construction by replay is trusted no
/// more than one from the medium.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a> {
    bytes: &'a [u8],
    block: u64,
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// The bits of a key that are its tag.
#[inline]
fn tag(key: u64) -> u8 {
    (key >> 8) as u8
}

/// A bit for each of 8 bytes that is `wanted`: its highest. Above the first such byte there may be bits too many.
#[inline]
fn equal_bytes(bytes: u64, wanted: u8) -> u64 {
    let difference = bytes ^ u64::from_ne_bytes([wanted; 8]);
    difference.wrapping_sub(0x0101_0101_0101_0101) & !difference & 0x8080_8080_8080_8080
}

/// The entries of a page with a certain tag, and some others.
pub(crate) struct Candidates<'a> {
    page: Page<'a>,
    count: usize,
    tag: u8,
    /// Tags that were not looked at, by eights, and the first entry whose tag that is.
    tags: std::slice::Iter<'a, [u8; 8]>,
    next: usize,
    /// Those of the 8 before it that have the tag, as [`equal_bytes`] gives them.
    hits: u64,
}

impl<'a> Iterator for Candidates<'a> {
    type Item = vfs::Result<(usize, Entry<'a>)>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        while self.hits == 0 {
            self.hits = equal_bytes(u64::from_le_bytes(*self.tags.next()?), self.tag);
            self.next += 8;
        }
        let index = self.next - 8 + self.hits.trailing_zeros() as usize / 8;
        self.hits &= self.hits - 1;
        if index >= self.count {
            self.hits = 0; // a tag of an entry that was
            return None;
        }
        Some(self.page.entry_at(self.page.offset(index)).map(|entry| (index, entry)))
    }
}

impl<'a> Page<'a> {
    /// The page in a bucket.
    pub(crate) fn new(bucket: View<'a>) -> Page<'a> {
        Page { bytes: &bucket.bytes[START..], block: bucket.block }
    }

    pub(crate) fn count(&self) -> usize {
        u16_at(self.bytes, 0).min(ENTRIES_MAX)
    }

    fn heap(&self) -> usize {
        match u16_at(self.bytes, 2) {
            0 => LENGTH, // a page of zeros is an empty page
            heap => heap.min(LENGTH),
        }
    }

    fn dead(&self) -> usize {
        u16_at(self.bytes, 4)
    }

    #[inline]
    fn entry_at(&self, offset: usize) -> vfs::Result<Entry<'a>> {
        let damaged = || corrupt("directory page", self.block, "entry offset", offset, "one within the page");
        let fixed = self.bytes.get(offset..offset + ENTRY_FIXED).ok_or_else(damaged)?;
        let start = offset + ENTRY_FIXED;
        let name = self.bytes.get(start..start + usize::from(fixed[13])).ok_or_else(damaged)?;
        Ok(Entry {
            key: u64::from_le_bytes(fixed[..8].try_into().expect("8 bytes")),
            ino: u32::from_le_bytes(fixed[8..12].try_into().expect("4 bytes")),
            kind: fixed[12],
            name,
        })
    }

    #[inline]
    fn offset(&self, index: usize) -> usize {
        u16_at(self.bytes, OFFSETS + index * OFFSET)
    }

    /// All entries, in no order.
    pub(crate) fn entries(self) -> impl Iterator<Item = vfs::Result<Entry<'a>>> {
        (0..self.count()).map(move |index| self.entry_at(self.offset(index)))
    }

    /// The entries whose keys' tag is that of `key`, with their indices; others may be among them.
    #[inline]
    pub(crate) fn candidates(self, key: u64) -> Candidates<'a> {
        let count = self.count();
        let (tags, _) = self.bytes[TAGS..OFFSETS].as_chunks::<8>();
        let tags = tags[..count.div_ceil(8)].iter();
        Candidates { page: self, count, tag: tag(key), tags, next: 0, hits: 0 }
    }

    /// The index and entry with exactly `key`.
    pub(crate) fn find_key(self, key: u64) -> vfs::Result<Option<(usize, Entry<'a>)>> {
        for hit in self.candidates(key) {
            let (index, entry) = hit?;
            if entry.key == key {
                return Ok(Some((index, entry)));
            }
        }
        Ok(None)
    }

    /// Whether the entry at `index` has exactly `key`.
    pub(crate) fn has_at(&self, index: usize, key: u64) -> vfs::Result<bool> {
        Ok(index < self.count() && self.entry_at(self.offset(index))?.key == key)
    }

    /// Whether it can be added.
    pub(crate) fn has_room(&self, entry: &Entry<'_>) -> bool {
        self.room() >= entry.length() + OFFSET
    }

    /// Bytes left for another entry and its offset, counting dead ones; none if there are as many as can be.
    fn room(&self) -> usize {
        match self.count() {
            ENTRIES_MAX => 0,
            count => (self.heap() + self.dead()).saturating_sub(OFFSETS + count * OFFSET),
        }
    }
}

/// Adds an entry; false if there is no room for it.
pub(crate) fn add(edit: &Edit<'_>, entry: &Entry<'_>) -> vfs::Result<bool> {
    let page = Page::new(edit.view());
    if !page.has_room(entry) {
        return Ok(false);
    }
    if page.heap() < OFFSETS + page.count() * OFFSET + entry.length() + OFFSET {
        compact(edit)?;
    }
    let page = Page::new(edit.view());
    let (count, dead) = (page.count(), page.dead());
    let least = OFFSETS + (count + 1) * OFFSET;
    let Some(offset) = page.heap().checked_sub(entry.length()).filter(|at| *at >= least) else {
        return Err(corrupt("directory page", edit.block, "free bytes", page.room(), "fewer"));
    };
    let mut bytes = [0; ENTRY_FIXED + vfs::NAME_MAX];
    write_entry(&mut bytes, entry);
    edit.store(START + offset, &bytes[..entry.length()]);
    store_slot(edit, count, tag(entry.key), offset);
    store_header(edit, count + 1, offset, dead);
    Ok(true)
}

/// Removes the entry at `index`.
pub(crate) fn remove(edit: &Edit<'_>, index: usize) -> vfs::Result<()> {
    let page = Page::new(edit.view());
    let entry = page.entry_at(page.offset(index))?;
    let (last, heap, dead) = (page.count() - 1, page.heap(), page.dead() + entry.length());
    if index != last {
        store_slot(edit, index, page.bytes[TAGS + last], page.offset(last));
    }
    if last == 0 {
        store_header(edit, 0, LENGTH, 0);
    } else {
        store_header(edit, last, heap, dead);
    }
    Ok(())
}

/// Points the entry at `index` to another inode.
pub(crate) fn relink(edit: &Edit<'_>, index: usize, ino: u32, kind: u8) {
    let offset = Page::new(edit.view()).offset(index);
    let mut bytes = [0; 5];
    bytes[..4].copy_from_slice(&ino.to_le_bytes());
    bytes[4] = kind;
    edit.store(START + offset + 8, &bytes);
}

/// Replaces all that is in a page by `entries`, which fit unless the page they come from was damaged.
pub(crate) fn fill(edit: &Edit<'_>, entries: &[Entry<'_>]) -> vfs::Result<()> {
    let needed = OFFSETS + entries.iter().map(|entry| entry.length() + OFFSET).sum::<usize>();
    if needed > LENGTH || entries.len() > ENTRIES_MAX {
        return Err(corrupt("directory page", edit.block, "bytes of its entries", needed, LENGTH));
    }
    let mut bytes = vec![0; LENGTH];
    let mut heap = LENGTH;
    for (index, entry) in entries.iter().enumerate() {
        heap -= entry.length();
        write_entry(&mut bytes[heap..], entry);
        bytes[TAGS + index] = tag(entry.key);
        let at = OFFSETS + index * OFFSET;
        bytes[at..at + OFFSET].copy_from_slice(&(heap as u16).to_le_bytes());
    }
    bytes[..2].copy_from_slice(&(entries.len() as u16).to_le_bytes());
    bytes[2..4].copy_from_slice(&(heap as u16).to_le_bytes());
    edit.store(START, &bytes);
    Ok(())
}

fn compact(edit: &Edit<'_>) -> vfs::Result<()> {
    // From a copy: `fill` stores where the entries are.
    let copy = edit.view().bytes.to_vec();
    let page = Page::new(View { bytes: &copy, block: edit.block });
    let entries = page.entries().collect::<vfs::Result<Vec<_>>>()?;
    fill(edit, &entries)
}

fn write_entry(bytes: &mut [u8], entry: &Entry<'_>) {
    bytes[..8].copy_from_slice(&entry.key.to_le_bytes());
    bytes[8..12].copy_from_slice(&entry.ino.to_le_bytes());
    bytes[12] = entry.kind;
    bytes[13] = entry.name.len() as u8;
    bytes[ENTRY_FIXED..entry.length()].copy_from_slice(entry.name);
}

fn store_slot(edit: &Edit<'_>, index: usize, tag: u8, offset: usize) {
    edit.store(START + TAGS + index, &[tag]);
    edit.store(START + OFFSETS + index * OFFSET, &(offset as u16).to_le_bytes());
}

fn store_header(edit: &Edit<'_>, count: usize, heap: usize, dead: usize) {
    let mut bytes = [0; 6];
    bytes[..2].copy_from_slice(&(count as u16).to_le_bytes());
    bytes[2..4].copy_from_slice(&(heap as u16).to_le_bytes());
    bytes[4..].copy_from_slice(&(dead as u16).to_le_bytes());
    edit.store(START, &bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bytes_are_found_wherever_they_are() {
        for wanted in [0, 1, 0x7f, 0x80, 0xff] {
            for others in [0u8, 1, 0x7f, 0x80, 0x81, 0xfe, 0xff] {
                for places in 0..=255u8 {
                    let is_wanted = |at: usize| places >> at & 1 == 1;
                    let bytes: [u8; 8] =
                        std::array::from_fn(|at| if is_wanted(at) { wanted } else { others });
                    let found = equal_bytes(u64::from_le_bytes(bytes), wanted);
                    let is_found = |at: usize| found >> (at * 8) & 0xff == 0x80;
                    let first = (0..8).find(|at| bytes[*at] == wanted);
                    assert_eq!((0..8).find(|at| is_found(*at)), first, "{bytes:x?}: {wanted:x}");
                    assert!((0..8).all(|at| is_found(at) || bytes[at] != wanted), "{bytes:x?}: {wanted:x}");
                }
            }
        }
    }
}
