//! A page of directory entries: the payload of a small directory's inode, or the body of a bucket.
//!
//! ```text
//! │ count u16 │ heap u16 │ dead u16 │ 0 u16 │ slots: tag u16, offset u16 … →      ← … heap of entries │
//! entry: key u64 │ ino u32 │ kind u8 │ length u8 │ name
//! ```
//! Slots are unordered; a slot's tag is 16 bits of the entry's key, so that a look-up reads one entry, not all.
//! Offsets count from the page's start. A removed entry's bytes are dead until the page is compacted.
//! Pages are changed only in copies that are not yet valid, so their changes need no order among themselves.

use vfs::FileKind;

use crate::error::corrupt;
use crate::node::Edit;

const SLOTS: usize = 8;
const ENTRY_FIXED: usize = 14;

/// Where a page lies in a node block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) start: usize,
    pub(crate) length: usize,
}

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

/// The bits of a key that a slot shows.
#[inline]
fn tag(key: u64) -> u16 {
    (key >> 8) as u16
}

impl<'a> Page<'a> {
    pub(crate) fn new(block_bytes: &'a [u8], place: Place, block: u64) -> Page<'a> {
        Page { bytes: &block_bytes[place.start..place.start + place.length], block }
    }

    pub(crate) fn count(&self) -> usize {
        u16_at(self.bytes, 0).min((self.bytes.len() - SLOTS) / 4)
    }

    fn heap(&self) -> usize {
        match u16_at(self.bytes, 2) {
            0 => self.bytes.len(), // a page of zeros is an empty page
            heap => heap.min(self.bytes.len()),
        }
    }

    fn dead(&self) -> usize {
        u16_at(self.bytes, 4)
    }

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

    fn slot(&self, index: usize) -> (u16, usize) {
        let at = SLOTS + index * 4;
        (u16_at(self.bytes, at) as u16, u16_at(self.bytes, at + 2))
    }

    /// All entries, in no order.
    pub(crate) fn entries(self) -> impl Iterator<Item = vfs::Result<Entry<'a>>> {
        (0..self.count()).map(move |index| self.entry_at(self.slot(index).1))
    }

    /// The entries whose keys' tag is that of `key`.
    #[inline]
    pub(crate) fn candidates(self, key: u64) -> impl Iterator<Item = vfs::Result<(usize, Entry<'a>)>> {
        let wanted = tag(key).to_le_bytes();
        let slots = &self.bytes[SLOTS..SLOTS + self.count() * 4];
        let hits = slots.chunks_exact(4).enumerate().filter(move |(_, slot)| slot[..2] == wanted);
        hits.map(move |(index, slot)| Ok((index, self.entry_at(u16_at(slot, 2))?)))
    }

    /// The slot and entry with exactly `key`.
    pub(crate) fn find_key(self, key: u64) -> vfs::Result<Option<(usize, Entry<'a>)>> {
        for hit in self.candidates(key) {
            let (index, entry) = hit?;
            if entry.key == key {
                return Ok(Some((index, entry)));
            }
        }
        Ok(None)
    }

    /// Bytes left for another entry and its slot, counting dead ones.
    fn room(&self) -> usize {
        (self.heap() + self.dead()).saturating_sub(SLOTS + self.count() * 4)
    }
}

/// Adds an entry; false if there is no room for it.
pub(crate) fn add(edit: &Edit<'_>, place: Place, entry: &Entry<'_>) -> vfs::Result<bool> {
    let page = Page::new(edit.view().bytes, place, edit.block);
    if page.room() < entry.length() + 4 {
        return Ok(false);
    }
    if page.heap() < SLOTS + page.count() * 4 + entry.length() + 4 {
        compact(edit, place)?;
    }
    let page = Page::new(edit.view().bytes, place, edit.block);
    let (count, dead) = (page.count(), page.dead());
    let Some(offset) = page.heap().checked_sub(entry.length()).filter(|at| *at >= SLOTS + count * 4 + 4)
    else {
        return Err(corrupt("directory page", edit.block, "free bytes", page.room(), "fewer"));
    };
    let mut bytes = [0; ENTRY_FIXED + vfs::NAME_MAX];
    write_entry(&mut bytes, entry);
    edit.store(place.start + offset, &bytes[..entry.length()]);
    store_slot(edit, place, count, tag(entry.key), offset);
    store_header(edit, place, count + 1, offset, dead);
    Ok(true)
}

/// Removes the entry in slot `index`.
pub(crate) fn remove(edit: &Edit<'_>, place: Place, index: usize) -> vfs::Result<()> {
    let page = Page::new(edit.view().bytes, place, edit.block);
    let entry = page.entry_at(page.slot(index).1)?;
    let (last, heap, dead) = (page.count() - 1, page.heap(), page.dead() + entry.length());
    if index != last {
        let (tag, offset) = page.slot(last);
        store_slot(edit, place, index, tag, offset);
    }
    if last == 0 {
        store_header(edit, place, 0, place.length, 0);
    } else {
        store_header(edit, place, last, heap, dead);
    }
    Ok(())
}

/// Points the entry in slot `index` to another inode.
pub(crate) fn relink(edit: &Edit<'_>, place: Place, index: usize, ino: u32, kind: u8) {
    let offset = Page::new(edit.view().bytes, place, edit.block).slot(index).1;
    let mut bytes = [0; 5];
    bytes[..4].copy_from_slice(&ino.to_le_bytes());
    bytes[4] = kind;
    edit.store(place.start + offset + 8, &bytes);
}

/// Replaces all that is in a page by `entries`, which fit unless the page they come from was damaged.
pub(crate) fn fill(edit: &Edit<'_>, place: Place, entries: &[Entry<'_>]) -> vfs::Result<()> {
    let needed = SLOTS + entries.iter().map(|entry| entry.length() + 4).sum::<usize>();
    if needed > place.length {
        return Err(corrupt("directory page", edit.block, "bytes of its entries", needed, place.length));
    }
    let mut bytes = vec![0; place.length];
    let mut heap = place.length;
    for (index, entry) in entries.iter().enumerate() {
        heap -= entry.length();
        write_entry(&mut bytes[heap..], entry);
        let slot = SLOTS + index * 4;
        bytes[slot..slot + 2].copy_from_slice(&tag(entry.key).to_le_bytes());
        bytes[slot + 2..slot + 4].copy_from_slice(&(heap as u16).to_le_bytes());
    }
    bytes[..2].copy_from_slice(&(entries.len() as u16).to_le_bytes());
    bytes[2..4].copy_from_slice(&(heap as u16).to_le_bytes());
    edit.store(place.start, &bytes);
    Ok(())
}

fn compact(edit: &Edit<'_>, place: Place) -> vfs::Result<()> {
    // From a copy: `fill` stores where the entries are.
    let copy = edit.view().bytes.to_vec();
    let entries = Page::new(&copy, place, edit.block).entries().collect::<vfs::Result<Vec<_>>>()?;
    fill(edit, place, &entries)
}

fn write_entry(bytes: &mut [u8], entry: &Entry<'_>) {
    bytes[..8].copy_from_slice(&entry.key.to_le_bytes());
    bytes[8..12].copy_from_slice(&entry.ino.to_le_bytes());
    bytes[12] = entry.kind;
    bytes[13] = entry.name.len() as u8;
    bytes[ENTRY_FIXED..entry.length()].copy_from_slice(entry.name);
}

fn store_slot(edit: &Edit<'_>, place: Place, index: usize, tag: u16, offset: usize) {
    let mut bytes = [0; 4];
    bytes[..2].copy_from_slice(&tag.to_le_bytes());
    bytes[2..].copy_from_slice(&(offset as u16).to_le_bytes());
    edit.store(place.start + SLOTS + index * 4, &bytes);
}

fn store_header(edit: &Edit<'_>, place: Place, count: usize, heap: usize, dead: usize) {
    let mut bytes = [0; 6];
    bytes[..2].copy_from_slice(&(count as u16).to_le_bytes());
    bytes[2..4].copy_from_slice(&(heap as u16).to_le_bytes());
    bytes[4..].copy_from_slice(&(dead as u16).to_le_bytes());
    edit.store(place.start, &bytes);
}
