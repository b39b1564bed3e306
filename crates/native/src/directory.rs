//! Directories: names to inodes, found and listed by key.
//!
//! An entry's *key* has 63 bits: 55 of a keyed hash of the name, and 8 that tell names of equal hash apart. Keys are
//! unique in a directory and never change while the entry exists, so they serve as `readdir` cookies.
//!
//! A small directory is one page in its inode. A larger one is a trie over the key's bits, from the top: 9 bits choose
//! a slot in the inode, each further 9 bits a slot in a *table* node. A slot names a bucket or a table by NID. A
//! bucket may serve a whole aligned run of slots; when it is full it splits in two, by the next bit (extendible
//! hashing, one table at a time, so that no split ever touches more than one table).

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::allocator::Budget;
use crate::bia::BlockKind;
use crate::error::corrupt;
use crate::geometry::BLOCK;
use crate::inode::{Inode, InodeEdit, Layout, PAYLOAD, PAYLOAD_MIN};
use crate::node::{Edit, HEADER, Nodes, View};
use crate::page::{self, Entry, Page, Place};

const KEY_BITS: u32 = 63;
const ROOT_BITS: u32 = 9;
const TABLE_BITS: u32 = 9;
/// Keys below are for `.` and `..`.
pub(crate) const FIRST_KEY: u64 = 1 << 8;

/// The page of a small directory.
const INODE_PAGE: Place = Place { start: PAYLOAD, length: PAYLOAD_MIN & !7 };
/// The page of a bucket.
const BUCKET_PAGE: Place = Place { start: HEADER, length: BLOCK as usize - HEADER };
/// What an inode with a page, and with a trie, uses.
pub(crate) const PAGE_USED: usize = INODE_PAGE.start + INODE_PAGE.length;
const TRIE_USED: usize = PAYLOAD + (4 << ROOT_BITS);
const _: () = assert!(TRIE_USED <= PAGE_USED);
/// What a directory uses at least.
pub(crate) const LEAST_USED: usize = TRIE_USED;

/// The outcome of looking for a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Probe<'a> {
    /// It is there.
    Found(Entry<'a>),
    /// It is not; an entry with this name would have this key.
    Vacant(u64),
}

fn hash(nodes: &Nodes, name: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(nodes.hash_key[0], nodes.hash_key[1]);
    hasher.write(name);
    (hasher.finish() >> 1 & !0xff).max(FIRST_KEY)
}

/// A slot of the trie: in the inode (`node` is `None`) or in a table.
#[derive(Clone, Copy)]
struct Slot {
    table: Option<u32>,
    /// Which of the table's slots.
    index: usize,
    /// Bits that this table tells apart.
    bits: u32,
    /// Bits below this table's in the key.
    shift: u32,
    /// The bucket it names.
    bucket: u32,
}

impl Slot {
    fn at(&self, index: usize) -> usize {
        (if self.table.is_none() { PAYLOAD } else { HEADER }) + index * 4
    }
}

/// Goes down the trie to the bucket of `key`.
fn descend<'a>(nodes: &'a Nodes, dir: Inode<'a>, key: u64) -> vfs::Result<(Slot, View<'a>)> {
    let mut slot = Slot { table: None, index: 0, bits: ROOT_BITS, shift: KEY_BITS - ROOT_BITS, bucket: 0 };
    let mut view = dir.view;
    loop {
        slot.index = (key >> slot.shift) as usize & ((1 << slot.bits) - 1);
        let nid = view.u32_at(slot.at(slot.index));
        let next = match nodes.any(nid) {
            Ok(next) => next,
            Err(vfs::Error::Stale) => {
                return Err(corrupt("directory", view.block, "slot", nid, "a bucket or table"));
            }
            Err(error) => return Err(error),
        };
        if next.bytes[0] == BlockKind::Bucket as u8 {
            slot.bucket = nid;
            return Ok((slot, next));
        }
        if next.bytes[0] != BlockKind::Table as u8 || slot.shift < TABLE_BITS {
            return Err(corrupt("directory", next.block, "kind", next.bytes[0], "a bucket or table"));
        }
        (slot.table, slot.bits, slot.shift) = (Some(nid), TABLE_BITS, slot.shift - TABLE_BITS);
        view = next;
    }
}

/// The page that holds `key`, and where it is.
fn page_of<'a>(nodes: &'a Nodes, dir: Inode<'a>, key: u64) -> vfs::Result<(Page<'a>, u32, Place)> {
    match dir.layout() {
        Layout::Page => Ok((Page::new(dir.view.bytes, INODE_PAGE, dir.view.block), dir.nid(), INODE_PAGE)),
        Layout::Trie => {
            let (slot, view) = descend(nodes, dir, key)?;
            Ok((Page::new(view.bytes, BUCKET_PAGE, view.block), slot.bucket, BUCKET_PAGE))
        }
        _ => Err(vfs::Error::NotDirectory),
    }
}

/// Looks for `name`.
pub(crate) fn probe<'a>(nodes: &'a Nodes, dir: Inode<'a>, name: &[u8]) -> vfs::Result<Probe<'a>> {
    let base = hash(nodes, name);
    let (page, ..) = page_of(nodes, dir, base)?;
    let mut taken = [0u64; 4];
    for candidate in page.candidates(base) {
        let (_, entry) = candidate?;
        if entry.key & !0xff != base {
            continue;
        }
        if entry.name == name {
            return Ok(Probe::Found(entry));
        }
        taken[(entry.key & 0xff) as usize / 64] |= 1 << (entry.key % 64);
    }
    let free = taken.iter().enumerate().find(|(_, word)| **word != u64::MAX);
    match free {
        Some((index, word)) => Ok(Probe::Vacant(base + index as u64 * 64 + u64::from(word.trailing_ones()))),
        None => Err(vfs::Error::NoSpace),
    }
}

/// Looks for `name`; `None` if it is not there.
pub(crate) fn find<'a>(nodes: &'a Nodes, dir: Inode<'a>, name: &[u8]) -> vfs::Result<Option<Entry<'a>>> {
    match probe(nodes, dir, name)? {
        Probe::Found(entry) => Ok(Some(entry)),
        Probe::Vacant(_) => Ok(None),
    }
}

/// Adds an entry.
pub(crate) fn enter(nodes: &Nodes, budget: &Budget<'_>, dir: u32, entry: &Entry<'_>) -> vfs::Result<()> {
    let edit = nodes.edit(budget, dir)?;
    loop {
        let inode = Inode { view: edit.view() };
        if inode.layout() == Layout::Page {
            if page::add(&edit, INODE_PAGE, entry)? {
                break;
            }
            spread(nodes, budget, dir, &edit)?;
            continue;
        }
        let (slot, _) = descend(nodes, inode, entry.key)?;
        if page::add(&nodes.edit(budget, slot.bucket)?, BUCKET_PAGE, entry)? {
            break;
        }
        split(nodes, budget, dir, &edit, slot)?;
    }
    edit.add_entries(1);
    Ok(())
}

/// Removes the entry with `key`.
pub(crate) fn leave(nodes: &Nodes, budget: &Budget<'_>, dir: u32, key: u64) -> vfs::Result<()> {
    let edit = nodes.edit(budget, dir)?;
    let (page, nid, place) = page_of(nodes, Inode { view: edit.view() }, key)?;
    let (index, _) = page.find_key(key)?.ok_or(vfs::Error::NotFound)?;
    page::remove(&nodes.edit(budget, nid)?, place, index)?;
    edit.add_entries(-1);
    Ok(())
}

/// Points the entry with `key` to another inode.
pub(crate) fn relink(
    nodes: &Nodes,
    budget: &Budget<'_>,
    dir: u32,
    key: u64,
    ino: u32,
    kind: u8,
) -> vfs::Result<()> {
    let (page, nid, place) = page_of(nodes, Inode { view: nodes.view(dir, BlockKind::Inode)? }, key)?;
    let (index, _) = page.find_key(key)?.ok_or(vfs::Error::NotFound)?;
    page::relink(&nodes.edit(budget, nid)?, place, index, ino, kind);
    Ok(())
}

/// Turns a full page in the inode into a trie with one bucket.
fn spread(nodes: &Nodes, budget: &Budget<'_>, dir: u32, edit: &Edit<'_>) -> vfs::Result<()> {
    let copy = edit.view().bytes.to_vec();
    let entries = Page::new(&copy, INODE_PAGE, edit.block).entries().collect::<vfs::Result<Vec<_>>>()?;
    let (bucket, bucket_edit) = nodes.create(budget, BlockKind::Bucket, dir, BLOCK as usize)?;
    page::fill(&bucket_edit, BUCKET_PAGE, &entries)?;
    edit.store(PAYLOAD, &bucket.to_le_bytes().repeat(1 << ROOT_BITS));
    edit.shrink(TRIE_USED);
    edit.set_layout(Layout::Trie);
    edit.add_blocks(1);
    Ok(())
}

/// Splits the bucket that `slot` names in two by the next bit of the keys; if its table tells no more bits apart, puts
/// a table in the bucket's place first.
fn split(nodes: &Nodes, budget: &Budget<'_>, dir: u32, root: &Edit<'_>, slot: Slot) -> vfs::Result<()> {
    let bucket = nodes.edit(budget, slot.bucket)?;
    let depth = u32::from(bucket.view().header().level);
    if depth >= slot.bits {
        if slot.shift < TABLE_BITS {
            return Err(vfs::Error::NoSpace); // more than a page of names whose hashes differ in the last bits only
        }
        let (table, edit) = nodes.create(budget, BlockKind::Table, dir, HEADER)?;
        edit.put(HEADER, &slot.bucket.to_le_bytes().repeat(1 << TABLE_BITS));
        bucket.set_level(0);
        store_slots(nodes, budget, root, &slot, slot.index..slot.index + 1, table)?;
        root.add_blocks(1);
        return Ok(());
    }
    // The bucket serves 2^(bits − depth) slots; the upper half of them goes to the new one.
    let span = 1usize << (slot.bits - depth);
    let first = slot.index & !(span - 1);
    let bit = slot.shift + slot.bits - depth - 1;
    let copy = bucket.view().bytes.to_vec();
    let entries = Page::new(&copy, BUCKET_PAGE, bucket.block).entries().collect::<vfs::Result<Vec<_>>>()?;
    let (upper, lower): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.key >> bit & 1 == 1);
    let (new, new_edit) = nodes.create(budget, BlockKind::Bucket, dir, BLOCK as usize)?;
    page::fill(&new_edit, BUCKET_PAGE, &upper)?;
    new_edit.set_level(depth as u8 + 1);
    page::fill(&bucket, BUCKET_PAGE, &lower)?;
    bucket.set_level(depth as u8 + 1);
    store_slots(nodes, budget, root, &slot, first + span / 2..first + span, new)?;
    root.add_blocks(1);
    Ok(())
}

fn store_slots(
    nodes: &Nodes,
    budget: &Budget<'_>,
    root: &Edit<'_>,
    slot: &Slot,
    range: std::ops::Range<usize>,
    nid: u32,
) -> vfs::Result<()> {
    let bytes = nid.to_le_bytes().repeat(range.len());
    match slot.table {
        None => root.store(slot.at(range.start), &bytes),
        Some(table) => nodes.edit(budget, table)?.store(slot.at(range.start), &bytes),
    }
    Ok(())
}

/// Calls `visit` for every entry with a key of at least `from`, keys ascending, until it returns false.
pub(crate) fn list(
    nodes: &Nodes,
    dir: Inode<'_>,
    from: u64,
    visit: &mut dyn FnMut(&Entry<'_>) -> bool,
) -> vfs::Result<()> {
    let mut from = from;
    loop {
        let (page, end) = match dir.layout() {
            Layout::Page => (page_of(nodes, dir, from)?.0, 1 << KEY_BITS),
            Layout::Trie => {
                let (slot, view) = descend(nodes, dir, from)?;
                let depth = u32::from(view.header().level).min(slot.bits);
                // The bucket holds all keys that agree with `from` above this bit.
                let bit = slot.shift + slot.bits - depth;
                (Page::new(view.bytes, BUCKET_PAGE, view.block), ((from >> bit) + 1) << bit)
            }
            _ => return Err(vfs::Error::NotDirectory),
        };
        let mut entries = page.entries().collect::<vfs::Result<Vec<_>>>()?;
        entries.retain(|entry| entry.key >= from);
        entries.sort_unstable_by_key(|entry| entry.key);
        for entry in &entries {
            if !visit(entry) {
                return Ok(());
            }
        }
        if end >= 1 << KEY_BITS {
            return Ok(());
        }
        from = end;
    }
}

/// Calls `visit` for every table and bucket of a directory, each once, parents first.
pub(crate) fn walk(
    nodes: &Nodes,
    dir: Inode<'_>,
    visit: &mut dyn FnMut(u32, BlockKind) -> vfs::Result<()>,
) -> vfs::Result<()> {
    fn table(
        nodes: &Nodes,
        slots: &[u8],
        shift: u32,
        visit: &mut dyn FnMut(u32, BlockKind) -> vfs::Result<()>,
    ) -> vfs::Result<()> {
        let mut previous = 0;
        for slot in slots.chunks_exact(4) {
            let nid = u32::from_le_bytes(slot.try_into().expect("4 bytes"));
            if nid == previous {
                continue;
            }
            previous = nid;
            let view = nodes.any(nid)?;
            let kind = BlockKind::from_u8(view.bytes[0]).expect("verified");
            if kind != BlockKind::Bucket && (kind != BlockKind::Table || shift < TABLE_BITS) {
                return Err(corrupt("directory", view.block, "kind", view.bytes[0], "a bucket or table"));
            }
            visit(nid, kind)?;
            if kind == BlockKind::Table {
                let shift = shift - TABLE_BITS;
                table(nodes, &view.bytes[HEADER..HEADER + (4 << TABLE_BITS)], shift, visit)?;
            }
        }
        Ok(())
    }
    if dir.layout() != Layout::Trie {
        return Ok(());
    }
    table(nodes, &dir.view.bytes[PAYLOAD..TRIE_USED], KEY_BITS - ROOT_BITS, visit)
}
