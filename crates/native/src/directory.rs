//! Directories: names to inodes, found and listed by key.
//!
//! An entry's *key* has 63 bits: 55 of a keyed hash of the name, and 8 that tell names of equal hash apart. Keys are
//! unique in a directory and never change while the entry exists, so they serve as `readdir` cookies.
//!
//! The entries lie in a trie over the key's bits, from the top. Its root is a slot in the inode, which names nothing (an
//! empty directory), one *bucket* with a page of entries (a small directory), or a *table* of 512 further slots, chosen by
//! 9 bits. A slot says by a bit whether it names a bucket or a table, so nobody has to look at a node to know what it
//! is. A bucket may serve a whole aligned run of slots; when it is full it splits in two, by the next bit (extendible
//! hashing, one table at a time, so that no split ever touches more than one table).

mod large;

use self::large::{Hashes, ask_for_bucket, ask_for_inode, hinted, note_bucket, note_inode};
use crate::allocator::Budget;
use crate::bia::BlockKind;
use crate::error::corrupt;
use crate::geometry::BLOCK;
use crate::held::Held;
use crate::inode::{Inode, InodeEdit, Layout};
use crate::node::{Edit, HEADER, View};
use crate::nodes::Nodes;
use crate::page::{self, Entry, KEY_BITS, Page};
use crate::reader::Reader;

const TABLE_BITS: u32 = 9;
/// Keys below are for `.` and `..`.
pub(crate) const FIRST_KEY: u64 = 1 << 8;

/// What a slot names: bits 0–27 a NID, bit 31 set if it is a table's. 0: nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name(u32);

impl Name {
    const TABLE: u32 = 1 << 31;

    fn nid(self) -> u32 {
        self.0 & !Name::TABLE
    }

    fn kind(self) -> BlockKind {
        if self.0 & Name::TABLE == 0 { BlockKind::Bucket } else { BlockKind::Table }
    }
}

/// Where an entry is, or would be. It stays there while its directory is locked and nothing else is entered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) dir: u32,
    pub(crate) key: u64,
    /// The bucket; 0 in a directory that has none.
    bucket: u32,
    /// If it is there: which of the bucket's entries.
    index: usize,
}

/// Two are the same if they are of one entry, wherever it was when it was looked for.
impl PartialEq for Spot {
    fn eq(&self, other: &Spot) -> bool {
        (self.dir, self.key) == (other.dir, other.key)
    }
}

/// The outcome of looking for a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Probe<'a> {
    /// It is there.
    Found(Entry<'a>, Spot),
    /// It is not; an entry with this name would be there.
    Vacant(Spot),
}

fn hash(nodes: &Reader, name: &[u8]) -> u64 {
    (sip_hash(nodes.hash_key, name) >> 1 & !0xff).max(FIRST_KEY)
}

/// SipHash-1-3 of bytes that are there as a whole: every operation by name waits for it.
#[inline]
fn sip_hash(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let round = |v: &mut [u64; 4]| {
        v[0] = v[0].wrapping_add(v[1]);
        v[2] = v[2].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].rotate_left(32).wrapping_add(v[3]);
        v[2] = v[2].wrapping_add(v[1]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    };
    let mut take = |word: u64| {
        v[3] ^= word;
        round(&mut v);
        v[0] ^= word;
    };
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| take(u64::from_le_bytes(*word)));
    let rest = match bytes.last_chunk::<8>() {
        _ if rest.is_empty() => 0,
        // The last eight, without those that were taken.
        Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
        None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    take(rest | (bytes.len() as u64) << 56);
    v[2] ^= 0xff;
    (0..3).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

/// A slot of the trie: in the inode (`table` is `None`) or in a table.
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

/// Goes down the trie to the bucket of `key`; `None` if the directory is empty.
fn descend<'a>(nodes: &'a Reader, dir: Inode<'a>, key: u64) -> vfs::Result<Option<(Slot, View<'a>)>> {
    let mut slot = Slot { table: None, index: 0, bits: 0, shift: KEY_BITS, bucket: 0 };
    let mut name = Name(dir.derived().body.get());
    if name.0 == 0 {
        return Ok(None);
    }
    loop {
        let view = part(nodes, name, slot.shift, dir.block)?;
        if name.kind() == BlockKind::Bucket {
            slot.bucket = name.nid();
            return Ok(Some((slot, view)));
        }
        slot.shift -= TABLE_BITS;
        slot.index = (key >> slot.shift) as usize & ((1 << TABLE_BITS) - 1);
        (slot.table, slot.bits) = (Some(name.nid()), TABLE_BITS);
        name = Name(view.u32_at(HEADER + slot.index * 4));
    }
}

/// The bucket or table that a slot names, above which `shift` bits of the key are left.
#[inline]
fn part(nodes: &Reader, name: Name, shift: u32, at: u64) -> vfs::Result<View<'_>> {
    if name.kind() == BlockKind::Table && shift < TABLE_BITS {
        return Err(corrupt("directory", at, "slot", name.nid(), "a bucket"));
    }
    match nodes.view(name.nid(), name.kind()) {
        Err(vfs::Error::Stale) => Err(corrupt("directory", at, "slot", name.nid(), "a bucket or table")),
        view => view,
    }
}

fn expect_directory(dir: Inode<'_>) -> vfs::Result<()> {
    if dir.layout() == Layout::Directory { Ok(()) } else { Err(vfs::Error::NotDirectory) }
}

/// Looks for `name`.
pub(crate) fn probe<'a>(nodes: &'a Reader, dir: Inode<'a>, name: &[u8]) -> vfs::Result<Probe<'a>> {
    expect_directory(dir)?;
    let base = hash(nodes, name);
    if let Some(hashes) = Hashes::of(nodes, dir, base) {
        return probe_large(nodes, dir, hashes, base, name);
    }
    match descend(nodes, dir, base)? {
        Some((slot, bucket)) => probe_in(nodes, (dir.ino, slot.bucket), bucket, base, name),
        None => Ok(nowhere(dir, base)),
    }
}

/// What is found in a directory without buckets.
fn nowhere<'a>(dir: Inode<'_>, key: u64) -> Probe<'a> {
    Probe::Vacant(Spot { dir: dir.ino, key, bucket: 0, index: 0 })
}

/// The same in a large directory, whose hints may know the way.
#[inline(never)]
fn probe_large<'a>(
    nodes: &'a Reader,
    dir: Inode<'a>,
    hashes: Hashes,
    base: u64,
    name: &[u8],
) -> vfs::Result<Probe<'a>> {
    ask_for_inode(nodes, hashes);
    let mut first = None;
    if let Some((bucket, view)) = hinted(nodes, dir, hashes) {
        let probed = probe_in(nodes, (dir.ino, bucket), view, base, name)?;
        if let Probe::Found(entry, _) = probed {
            note_bucket(nodes, hashes, bucket, view);
            note_inode(nodes, hashes, entry.ino);
            return Ok(probed);
        }
        first = Some((bucket, probed));
    }
    let Some((slot, view)) = descend(nodes, dir, base)? else { return Ok(nowhere(dir, base)) };
    let probed = match first {
        Some((bucket, probed)) if bucket == slot.bucket => probed,
        _ => probe_in(nodes, (dir.ino, slot.bucket), view, base, name)?,
    };
    note_bucket(nodes, hashes, slot.bucket, view);
    if let Probe::Found(entry, _) = probed {
        note_inode(nodes, hashes, entry.ino);
    }
    Ok(probed)
}

/// Looks for `name`, whose key begins with `base`, in bucket `bucket` of directory `dir`.
#[inline(always)]
fn probe_in<'a>(
    nodes: &Reader,
    (dir, bucket): (u32, u32),
    view: View<'a>,
    base: u64,
    name: &[u8],
) -> vfs::Result<Probe<'a>> {
    ask_for_bucket(nodes, view.block);
    let page = Page::new(view);
    let mut taken = [0u64; 4];
    for candidate in page.candidates(base) {
        let (index, entry) = candidate?;
        if entry.key & !0xff != base {
            continue;
        }
        if entry.name == name {
            return Ok(Probe::Found(entry, Spot { dir, key: entry.key, bucket, index }));
        }
        taken[(entry.key & 0xff) as usize / 64] |= 1 << (entry.key % 64);
    }
    let free = taken.iter().enumerate().find(|(_, word)| **word != u64::MAX);
    let (index, word) = free.ok_or(vfs::Error::NoSpace)?;
    let key = base + index as u64 * 64 + u64::from(word.trailing_ones());
    Ok(Probe::Vacant(Spot { dir, key, bucket, index: 0 }))
}

/// Looks for `name`; `None` if it is not there.
pub(crate) fn find<'a>(nodes: &'a Reader, dir: Inode<'a>, name: &[u8]) -> vfs::Result<Option<Entry<'a>>> {
    match probe(nodes, dir, name)? {
        Probe::Found(entry, _) => Ok(Some(entry)),
        Probe::Vacant(_) => Ok(None),
    }
}

/// Whether an entry with this name would find room without another bucket.
pub(crate) fn has_room(nodes: &Reader, spot: &Spot, name: &[u8]) -> vfs::Result<bool> {
    if spot.bucket == 0 {
        return Ok(false);
    }
    let view = nodes.view(spot.bucket, BlockKind::Bucket)?;
    Ok(Page::new(view).has_room(&Entry { key: spot.key, ino: 0, kind: 0, name }))
}

/// Adds an entry; at `spot`, if that was looked for.
pub(crate) fn enter(
    nodes: &Nodes,
    budget: &Budget<'_>,
    dir: InodeEdit<'_>,
    entry: &Entry<'_>,
    spot: Option<Spot>,
) -> vfs::Result<()> {
    expect_directory(dir.inode())?;
    let known = spot.map(|spot| spot.bucket).filter(|bucket| *bucket != 0);
    debug_assert!(known.is_none_or(|bucket| {
        descend(nodes, dir.inode(), entry.key)
            .is_ok_and(|found| found.is_some_and(|it| it.0.bucket == bucket))
    }));
    let added = known.map(|bucket| page::add(&nodes.edit(budget, bucket)?, entry)).transpose()?;
    if added != Some(true) {
        enter_anywhere(nodes, budget, &dir, entry)?;
    }
    if let Some(hashes) = Hashes::of(nodes, dir.inode(), entry.key) {
        note_inode(nodes, hashes, entry.ino);
    }
    dir.add_entries(1);
    Ok(())
}

/// Adds an entry to the bucket that it belongs to, which is split if it has no room.
fn enter_anywhere(
    nodes: &Nodes,
    budget: &Budget<'_>,
    edit: &InodeEdit<'_>,
    entry: &Entry<'_>,
) -> vfs::Result<()> {
    loop {
        let Some((slot, _)) = descend(nodes, edit.inode(), entry.key)? else {
            let (bucket, _) = nodes.create(budget, BlockKind::Bucket, edit.ino, BLOCK as usize)?;
            edit.set_body(bucket);
            edit.add_blocks(1);
            continue;
        };
        if page::add(&nodes.edit(budget, slot.bucket)?, entry)? {
            return Ok(());
        }
        split(nodes, budget, edit, slot)?;
    }
}

/// Opens the bucket with the entry `key` for change; at `spot`, if that was looked for. And which of its entries that is.
fn edit_entry<'a>(
    nodes: &'a Nodes,
    budget: &Budget<'_>,
    dir: Inode<'_>,
    key: u64,
    spot: Option<Spot>,
) -> vfs::Result<(Edit<'a>, usize)> {
    if let Some(Spot { bucket, index, .. }) = spot {
        let bucket = nodes.edit(budget, bucket)?;
        // Something was entered meanwhile, and the bucket split, if it is not.
        if Page::new(bucket.view()).has_at(index, key)? {
            return Ok((bucket, index));
        }
    }
    let (slot, bucket) = descend(nodes, dir, key)?.ok_or(vfs::Error::NotFound)?;
    let (index, _) = Page::new(bucket).find_key(key)?.ok_or(vfs::Error::NotFound)?;
    Ok((nodes.edit(budget, slot.bucket)?, index))
}

/// The entry with `key`, if there is one.
pub(crate) fn at_key<'a>(nodes: &'a Reader, dir: Inode<'a>, key: u64) -> vfs::Result<Option<Entry<'a>>> {
    expect_directory(dir)?;
    let Some((_, bucket)) = descend(nodes, dir, key)? else { return Ok(None) };
    Ok(Page::new(bucket).find_key(key)?.map(|(_, entry)| entry))
}

/// Removes the entry with `key`; at `spot`, if that was looked for.
pub(crate) fn leave(
    nodes: &Nodes,
    budget: &Budget<'_>,
    dir: InodeEdit<'_>,
    key: u64,
    spot: Option<Spot>,
) -> vfs::Result<()> {
    expect_directory(dir.inode())?;
    let (bucket, index) = edit_entry(nodes, budget, dir.inode(), key, spot)?;
    page::remove(&bucket, index)?;
    if let Some(Hashes { inode, .. }) = Hashes::of(nodes, dir.inode(), key) {
        nodes.inode_hints.forget(inode);
    }
    dir.add_entries(-1);
    Ok(())
}

/// Points the entry with `key` to another inode; at `spot`, if that was looked for.
pub(crate) fn relink(
    nodes: &Nodes,
    budget: &Budget<'_>,
    (dir, key): (u32, u64),
    (ino, kind): (u32, u8),
    spot: Option<Spot>,
) -> vfs::Result<()> {
    let inode = nodes.inode(dir)?;
    expect_directory(inode)?;
    let (bucket, index) = edit_entry(nodes, budget, inode, key, spot)?;
    page::relink(&bucket, index, ino, kind);
    Ok(())
}

/// Splits the bucket that `slot` names in two by the next bit of the keys; if its table tells no more bits apart, puts
/// a table in the bucket's place first.
fn split(nodes: &Nodes, budget: &Budget<'_>, dir: &InodeEdit<'_>, slot: Slot) -> vfs::Result<()> {
    let bucket = nodes.edit(budget, slot.bucket)?;
    let depth = u32::from(bucket.view().header().level);
    if depth >= slot.bits {
        if slot.shift < TABLE_BITS {
            return Err(vfs::Error::NoSpace); // more than a page of names whose hashes differ in the last bits only
        }
        let (table, edit) = nodes.create(budget, BlockKind::Table, dir.ino, HEADER)?;
        edit.put(HEADER, &slot.bucket.to_le_bytes().repeat(1 << TABLE_BITS));
        bucket.set_level(0);
        store_slots(nodes, budget, dir, &slot, slot.index..slot.index + 1, Name(table | Name::TABLE))?;
        dir.add_blocks(1);
        return Ok(());
    }
    // The bucket serves 2^(bits − depth) slots; the upper half of them goes to the new one.
    let span = 1usize << (slot.bits - depth);
    let first = slot.index & !(span - 1);
    let bit = slot.shift + slot.bits - depth - 1;
    let copy = bucket.view().bytes.to_vec();
    let page = Page::new(View { bytes: &copy, block: bucket.block });
    let entries = page.entries().collect::<vfs::Result<Vec<_>>>()?;
    let (upper, lower): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.key >> bit & 1 == 1);
    let (new, new_edit) = nodes.create(budget, BlockKind::Bucket, dir.ino, BLOCK as usize)?;
    page::fill(&new_edit, &upper)?;
    new_edit.set_level(depth as u8 + 1);
    page::fill(&bucket, &lower)?;
    bucket.set_level(depth as u8 + 1);
    store_slots(nodes, budget, dir, &slot, first + span / 2..first + span, Name(new))?;
    dir.add_blocks(1);
    Ok(())
}

fn store_slots(
    nodes: &Nodes,
    budget: &Budget<'_>,
    dir: &InodeEdit<'_>,
    slot: &Slot,
    range: std::ops::Range<usize>,
    name: Name,
) -> vfs::Result<()> {
    match slot.table {
        None => dir.set_body(name.0),
        Some(table) => {
            let bytes = name.0.to_le_bytes().repeat(range.len());
            nodes.edit(budget, table)?.store(HEADER + range.start * 4, &bytes);
        }
    }
    Ok(())
}

/// Calls `visit` for every entry with a key of at least `from`, keys ascending, until it returns false.
pub(crate) fn list(
    nodes: &Reader,
    dir: Inode<'_>,
    from: u64,
    visit: &mut dyn FnMut(&Entry<'_>) -> bool,
) -> vfs::Result<()> {
    expect_directory(dir)?;
    let mut from = from;
    if from >= 1 << KEY_BITS {
        return Ok(());
    }
    // A directory has no more buckets than the volume has nodes; one that seems to leads in a circle.
    let mut left = nodes.node_count();
    while let Some((slot, bucket)) = descend(nodes, dir, from)? {
        left = left
            .checked_sub(1)
            .ok_or_else(|| corrupt("directory", dir.block, "buckets", "too many", "fewer than nodes"))?;
        let depth = u32::from(bucket.header().level).min(slot.bits);
        // The bucket holds all keys that agree with `from` above this bit.
        let bit = slot.shift + slot.bits - depth;
        let mut entries = Page::new(bucket).entries().collect::<vfs::Result<Vec<_>>>()?;
        entries.retain(|entry| entry.key >= from && entry.key >> bit == from >> bit);
        entries.sort_unstable_by_key(|entry| entry.key);
        for entry in &entries {
            if !visit(entry) {
                return Ok(());
            }
        }
        from = ((from >> bit) + 1) << bit;
        if from >= 1 << KEY_BITS {
            break;
        }
    }
    Ok(())
}

/// Makes a damaged directory an empty one. What was below a damaged table is found by nobody any more.
pub(crate) fn begin_anew(nodes: &Nodes, budget: &Budget<'_>, dir: u32) -> vfs::Result<()> {
    let edit = nodes.edit_inode(budget, dir)?;
    expect_directory(edit.inode())?;
    // Some of its buckets may stay where they are, in no trie.
    nodes.bucket_hints.clear();
    let derived = *edit.inode().derived();
    let mut held = Held::default();
    let mut below = vec![(Name(derived.body.get()), KEY_BITS)];
    while let Some((name, shift)) = below.pop() {
        if name.0 == 0 || held.meet(name.nid()).is_err() {
            continue;
        }
        if name.kind() == BlockKind::Table
            && let Ok(table) = part(nodes, name, shift, edit.block)
        {
            let slots = (0..1 << TABLE_BITS).map(|index| Name(table.u32_at(HEADER + index * 4)));
            below.extend(slots.map(|slot| (slot, shift - TABLE_BITS)));
        }
        match nodes.discard(name.nid(), false) {
            Ok(()) | Err(vfs::Error::Stale) => {}
            Err(error) => return Err(error),
        }
    }
    edit.set_body(0);
    edit.add_blocks(-(derived.blocks.get() as i64));
    edit.add_entries(-(derived.entries.get() as i64));
    Ok(())
}

/// Calls `visit` for every table and bucket of a directory, each once, parents first. One that is met in two places is an
/// error: it ends walks over forged ones.
pub(crate) fn walk(
    nodes: &Reader,
    dir: Inode<'_>,
    visit: &mut dyn FnMut(u32, BlockKind) -> vfs::Result<()>,
) -> vfs::Result<()> {
    fn below(
        nodes: &Reader,
        name: Name,
        shift: u32,
        held: &mut Held,
        visit: &mut dyn FnMut(u32, BlockKind) -> vfs::Result<()>,
    ) -> vfs::Result<()> {
        let view = part(nodes, name, shift, 0)?;
        held.meet(name.nid())?;
        visit(name.nid(), name.kind())?;
        if name.kind() == BlockKind::Bucket {
            return Ok(());
        }
        let mut previous = Name(0);
        for index in 0..1 << TABLE_BITS {
            let name = Name(view.u32_at(HEADER + index * 4));
            if name != previous {
                below(nodes, name, shift - TABLE_BITS, held, visit)?;
            }
            previous = name;
        }
        Ok(())
    }
    match Name(dir.derived().body.get()) {
        Name(0) => Ok(()),
        name => below(nodes, name, KEY_BITS, &mut Held::default(), visit),
    }
}

#[cfg(test)]
mod tests {
    use siphasher::sip::SipHasher13;

    #[test]
    fn names_are_hashed_as_by_the_library() {
        let bytes: Vec<u8> = (0..=255u8).map(|byte| byte.wrapping_mul(37) ^ 0x5a).collect();
        for key in [[0, 0], [1, u64::MAX], [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]] {
            let library = SipHasher13::new_with_keys(key[0], key[1]);
            for length in 0..=bytes.len() {
                assert_eq!(
                    super::sip_hash(key, &bytes[..length]),
                    library.hash(&bytes[..length]),
                    "{length}"
                );
            }
        }
    }
}
