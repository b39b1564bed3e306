//! The list of snapshots: which checkpoints are kept, under what names (HMFS §2.2, the checkpoint list).
//!
//! A checkpoint names the list's index, a block of pointers to blocks of records. The list belongs to the newest
//! checkpoint, is published with it, and is no part of what a snapshot keeps: so taking, naming or letting go of one is
//! as atomic as a checkpoint, and a change writes two blocks, however many snapshots there are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use nvm::{Flushed, Purpose};
use vfs::{Ino, Time};

use crate::allocator::{Allocator, Frozen};
use crate::bia::BlockKind;
use crate::checkpoint::Checkpoint;
use crate::checksum;
use crate::error::corrupt;
use crate::fault::{self, Fault};
use crate::geometry::{BLOCK, Medium};
use crate::pointer::NodePointer;
use crate::reader::Reader;

/// What errors call it.
const STRUCTURE: &str = "list of snapshots";
/// Begins a block of records.
const KIND: u32 = u32::from_le_bytes(*b"SNAP");
/// Bytes of a block before its first record: kind, and where the records end.
const LEAF_HEADER: usize = 16;
/// Bytes of a record without its texts.
const FIXED: usize = 48;
/// Blocks of records at most: as many pointers as the index holds.
const LEAVES_MAX: usize = BLOCK as usize / 8;
/// Longest name, comment, and all tags of one snapshot together, bytes.
pub(crate) const TEXT_MAX: usize = 255;

/// A record that the checksum vouches for, and that makes no sense.
fn impossible(block: u64) -> vfs::Error {
    corrupt(STRUCTURE, block, "a record", "impossible", "possible")
}

/// What becomes of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// It is kept.
    Kept = 0,
    /// It is to be removed, and still whole.
    Doomed = 1,
    /// It is being removed: blocks of it are free, others may be changed.
    Removing = 2,
}

/// One snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The checkpoint's, and so the snapshot's identity.
    pub(crate) version: u32,
    /// The checkpoint's block.
    pub(crate) block: u64,
    pub(crate) taken: Time,
    pub(crate) state: State,
    /// While it is being removed: what nodes below this NID held is dealt with.
    pub(crate) cursor: u32,
    pub(crate) name: String,
    pub(crate) comment: String,
    /// Why it must not be removed: the tags of those who hold it.
    pub(crate) holds: Vec<String>,
}

impl Record {
    /// The checkpoint, of which everything can be read while the snapshot is whole.
    pub(crate) fn checkpoint(&self, medium: &Medium) -> vfs::Result<Checkpoint> {
        let checkpoint = Checkpoint::read(medium, self.block)?;
        match checkpoint.body.version.get() {
            found if found == self.version => Ok(checkpoint),
            found => Err(corrupt("checkpoint", self.block, "version", found, self.version)),
        }
    }

    /// Reads its tree.
    pub(crate) fn reader(&self, medium: &Arc<Medium>, hash_key: [u64; 2]) -> vfs::Result<Reader> {
        let body = self.checkpoint(medium)?.body;
        Ok(Reader::new(medium.clone(), body.tree(), hash_key, body.nodes.get()))
    }

    fn tags(&self) -> String {
        self.holds.join("\0")
    }

    fn bytes(&self) -> usize {
        let texts = self.name.len() + self.comment.len() + self.tags().len();
        (FIXED + texts).next_multiple_of(8)
    }

    /// ```text
    ///  0 version u32      4 bytes of the record u16   6 length of the name u8    7 of the comment u8
    ///  8 block u64       16 taken, seconds i64       24 nanoseconds u32         28 of the tags u8   29 state u8   30 0
    /// 32 cursor u32      36 0                        48 name, comment, tags with NULs between
    /// ```
    fn write(&self, out: &mut Vec<u8>) {
        let (tags, end) = (self.tags(), out.len() + self.bytes());
        out.extend(self.version.to_le_bytes());
        out.extend((self.bytes() as u16).to_le_bytes());
        out.extend([self.name.len() as u8, self.comment.len() as u8]);
        out.extend(self.block.to_le_bytes());
        out.extend(self.taken.sec.to_le_bytes());
        out.extend(self.taken.nsec.to_le_bytes());
        out.extend([tags.len() as u8, self.state as u8, 0, 0]);
        out.extend(self.cursor.to_le_bytes());
        out.extend([0; 12]);
        out.extend(self.name.as_bytes().iter().chain(self.comment.as_bytes()).chain(tags.as_bytes()));
        out.resize(end, 0);
    }

    /// The record that `bytes` begins with, and its length; `None` if there can be none like that.
    fn read(bytes: &[u8]) -> Option<(Record, usize)> {
        let fixed = bytes.first_chunk::<FIXED>()?;
        let u32_at = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("8 bytes"));
        let mut rest = &bytes[FIXED..];
        let mut text = |length: u8| -> Option<String> {
            let (text, others) = rest.split_at_checked(length.into())?;
            rest = others;
            String::from_utf8(text.to_vec()).ok()
        };
        let (name, comment, tags) = (text(fixed[6])?, text(fixed[7])?, text(fixed[28])?);
        let state = match fixed[29] {
            0 => State::Kept,
            1 => State::Doomed,
            2 => State::Removing,
            _ => return None,
        };
        let record = Record {
            version: u32_at(0),
            block: u64_at(8),
            taken: Time { sec: u64_at(16) as i64, nsec: u32_at(24) },
            state,
            cursor: u32_at(32),
            name,
            comment,
            holds: tags.split('\0').filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
        };
        let length = usize::from(u16::from_le_bytes([fixed[4], fixed[5]]));
        (length == record.bytes() && record.version != 0 && !record.name.is_empty())
            .then_some((record, length))
    }
}

/// A block of records.
#[derive(Default)]
struct Leaf {
    pointer: NodePointer,
    versions: Vec<u32>,
    bytes: usize,
}

/// A snapshot that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What it is called: the name of a directory in `.snapshots`.
    pub name: String,
    /// What its taker wanted to say.
    pub comment: String,
    /// The checkpoint's version: no two snapshots of a volume ever have the same.
    pub version: u32,
    /// When it was taken.
    pub taken: Time,
    /// Why it must not be removed: the tags of those who hold it.
    pub holds: Vec<String>,
}

impl Snapshot {
    /// Whether inode `ino` of the mounted volume is in this snapshot.
    pub fn has_inode(&self, ino: Ino) -> bool {
        ino >> 32 == Ino::from(self.version)
    }
}

impl From<&Record> for Snapshot {
    fn from(record: &Record) -> Snapshot {
        Snapshot {
            name: record.name.clone(),
            comment: record.comment.clone(),
            version: record.version,
            taken: record.taken,
            holds: record.holds.clone(),
        }
    }
}

/// The list of a mounted volume. It changes in DRAM, and is written with the next checkpoint.
#[derive(Default)]
pub(crate) struct Kept {
    records: BTreeMap<u32, (Record, usize)>,
    /// Of those that are kept.
    names: HashMap<String, u32>,
    /// The others: they wait to be removed, or are being.
    doomed: BTreeSet<u32>,
    leaves: Vec<Leaf>,
    index: NodePointer,
    /// Leaves that differ from the medium.
    dirty: BTreeSet<usize>,
    /// Those that are being read as wholes, once for each reader: they stay whole, also if they are to be removed.
    in_use: Vec<u32>,
    /// Damage keeps the snapshot that is being removed from going.
    pub(crate) stuck: bool,
    /// Not 0 if some of the list could not be read: there may be more snapshots, up to this version.
    unknown: u32,
}

impl Kept {
    /// Reads as much of the newest checkpoint's list as can be read, and tells what is damaged first. Blocks of it that are
    /// damaged are as if they had no records, and to be written anew.
    ///
    /// A volume that was about to return to a snapshot, when the power went, has its own newest checkpoint among those that are
    /// being removed: it stays what it is.
    pub(crate) fn read(medium: &Medium, newest: &Checkpoint) -> (Kept, Option<vfs::Error>) {
        let (mut kept, damage) = Kept::read_all(medium, newest.body.snapshots());
        let is_it = |record: &&Record| record.block == newest.block && record.state == State::Removing;
        let version = kept.doomed().find(is_it).map(|record| record.version);
        version.into_iter().for_each(|version| kept.forget(version));
        (kept, damage)
    }

    /// The same to go on with: if something is damaged, the list cannot be changed, and all blocks of now count as a
    /// snapshot's, as they may be one's.
    pub(crate) fn of_newest(medium: &Medium, newest: &Checkpoint) -> (Kept, Option<vfs::Error>) {
        let (mut kept, damage) = Kept::read(medium, newest);
        if damage.is_some() {
            (kept.unknown, kept.stuck) = (newest.body.version.get(), true);
        }
        (kept, damage)
    }

    fn read_all(medium: &Medium, pointer: NodePointer) -> (Kept, Option<vfs::Error>) {
        let mut kept = Kept { index: pointer, ..Kept::default() };
        if pointer.is_null() {
            return (kept, None);
        }
        let index = match pointer.verified(medium, STRUCTURE, 0) {
            Ok(index) => index,
            Err(error) => {
                if !medium.geometry.in_main(pointer.block()) {
                    kept.index = NodePointer::default();
                }
                kept.leaves.push(Leaf { bytes: LEAF_HEADER, ..Leaf::default() });
                kept.dirty.insert(0);
                return (kept, Some(error));
            }
        };
        let mut damage = None;
        let mut blocks = vec![pointer.block()];
        let pointers: Vec<NodePointer> = crate::nat::pointers(index).collect();
        let used = pointers.iter().rposition(|pointer| !pointer.is_null()).map_or(0, |last| last + 1);
        kept.leaves.resize_with(used, || Leaf { bytes: LEAF_HEADER, ..Leaf::default() });
        for (number, pointer) in pointers[..used].iter().copied().enumerate() {
            if pointer.is_null() {
                continue;
            }
            let again = blocks.contains(&pointer.block());
            let records = match again {
                true => Err(impossible(kept.index.block())),
                false => kept.read_leaf(medium, pointer),
            };
            if !again && medium.geometry.in_main(pointer.block()) {
                kept.leaves[number].pointer = pointer;
                blocks.push(pointer.block());
            }
            match records {
                Ok(records) => records.into_iter().for_each(|record| kept.add(record, number)),
                Err(error) => {
                    kept.dirty.insert(number);
                    damage.get_or_insert(error);
                }
            }
        }
        (kept, damage)
    }

    /// The records of one block, none of which is there already.
    fn read_leaf(&self, medium: &Medium, pointer: NodePointer) -> vfs::Result<Vec<Record>> {
        let block = pointer.verified(medium, STRUCTURE, self.index.block())?;
        let damaged = || impossible(pointer.block());
        let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("4 bytes"));
        let end = word(4) as usize;
        if word(0) != KIND || !(LEAF_HEADER..=BLOCK as usize).contains(&end) {
            return Err(damaged());
        }
        let (mut at, mut records) = (LEAF_HEADER, Vec::<Record>::new());
        while at < end {
            let (record, length) = Record::read(&block[at..end]).ok_or_else(damaged)?;
            medium.check_main(STRUCTURE, pointer.block(), format_args!("checkpoint"), record.block)?;
            let same = |other: &Record| {
                let kept = record.state == State::Kept && other.state == State::Kept;
                other.version == record.version || (kept && other.name == record.name)
            };
            let has_name = record.state == State::Kept && self.names.contains_key(&record.name);
            if has_name || self.records.contains_key(&record.version) || records.iter().any(same) {
                return Err(damaged());
            }
            at += length;
            records.push(record);
        }
        Ok(records)
    }

    /// Adds a record that its block has on the medium.
    fn add(&mut self, record: Record, number: usize) {
        let leaf = &mut self.leaves[number];
        leaf.bytes += record.bytes();
        leaf.versions.push(record.version);
        self.note(&record);
        self.records.insert(record.version, (record, number));
    }

    /// Whether there may be snapshots that it does not tell of, so that it must not change.
    pub(crate) fn is_damaged(&self) -> bool {
        self.unknown != 0
    }

    /// All records, oldest first; also of snapshots that are to be removed.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.records.values().map(|(record, _)| record)
    }

    /// Those that are kept, oldest first.
    pub(crate) fn kept(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.all().filter(|record| record.state == State::Kept)
    }

    /// How many are kept.
    pub(crate) fn count(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Record> {
        self.names.get(name).and_then(|version| self.get(*version))
    }

    pub(crate) fn get(&self, version: u32) -> Option<&Record> {
        self.records.get(&version).map(|(record, _)| record)
    }

    /// The snapshot of `version` must not be removed before [`Kept::end_use`].
    pub(crate) fn begin_use(&mut self, version: u32) {
        self.in_use.push(version);
    }

    pub(crate) fn end_use(&mut self, version: u32) {
        if let Some(index) = self.in_use.iter().position(|used| *used == version) {
            self.in_use.swap_remove(index);
        }
    }

    /// Whether some snapshot is being read as a whole.
    pub(crate) fn is_anyone_in_use(&self) -> bool {
        !self.in_use.is_empty()
    }

    pub(crate) fn is_in_use(&self, version: u32) -> bool {
        self.in_use.contains(&version)
    }

    /// The newest snapshot whose blocks stay as they are: a block not newer than that belongs to some snapshot.
    pub(crate) fn newest(&self) -> u32 {
        let whole = |record: &&Record| record.state != State::Removing;
        self.all().rev().find(whole).map_or(0, |record| record.version).max(self.unknown)
    }

    /// All records behind `version`, oldest first.
    pub(crate) fn behind(&self, version: u32) -> impl Iterator<Item = &Record> {
        self.records.range((Bound::Excluded(version), Bound::Unbounded)).map(|(_, (record, _))| record)
    }

    /// The one before `version` that is whole; 0 if there is none.
    pub(crate) fn before(&self, version: u32) -> u32 {
        let mut before = self.records.range(..version).rev().map(|(_, (record, _))| record);
        before.find(|record| record.state != State::Removing).map_or(0, |record| record.version)
    }

    /// The one behind `version` that is whole.
    pub(crate) fn after(&self, version: u32) -> Option<&Record> {
        let mut after = self.behind(version);
        after.find(|record| record.state != State::Removing)
    }

    /// The one that is being removed: one at a time.
    pub(crate) fn removing(&self) -> Option<&Record> {
        self.doomed().find(|record| record.state == State::Removing)
    }

    /// Those that wait to be removed or are being, oldest first.
    pub(crate) fn doomed(&self) -> impl Iterator<Item = &Record> {
        self.doomed.iter().filter_map(|version| self.get(*version))
    }

    /// The one that is to be removed next: the oldest that nobody reads.
    pub(crate) fn next_to_remove(&self) -> Option<&Record> {
        self.doomed().find(|record| record.state == State::Doomed && !self.is_in_use(record.version))
    }

    /// Whether the next checkpoint has something to do: the list changed, or a snapshot can be removed.
    pub(crate) fn has_changes(&self) -> bool {
        self.is_dirty() || self.is_giving_back()
    }

    /// Whether the next checkpoint begins to remove a snapshot, or goes on with it.
    pub(crate) fn is_giving_back(&self) -> bool {
        !self.stuck && (self.removing().is_some() || self.next_to_remove().is_some())
    }

    /// Whether a snapshot waits to be removed, or is being.
    pub(crate) fn is_removing(&self) -> bool {
        !self.doomed.is_empty()
    }

    /// Whether there is room for a record, which may take the place of the one with its version.
    pub(crate) fn has_room(&self, record: &Record) -> bool {
        let fits = |(old, leaf): &(Record, usize)| {
            self.leaves[*leaf].bytes - old.bytes() + record.bytes() <= BLOCK as usize
        };
        self.records.get(&record.version).is_some_and(fits)
            || self.leaves.len() < LEAVES_MAX
            || self.leaf_with(record.bytes()).is_some()
    }

    fn leaf_with(&self, bytes: usize) -> Option<usize> {
        self.leaves.iter().rposition(|leaf| leaf.bytes + bytes <= BLOCK as usize)
    }

    /// Adds a record, or puts it in place of the one with its version. There is room.
    pub(crate) fn put(&mut self, record: Record) {
        let bytes = record.bytes();
        let leaf = match self.records.get(&record.version) {
            Some(&(ref old, leaf)) if self.leaves[leaf].bytes - old.bytes() + bytes <= BLOCK as usize => leaf,
            _ => self.leaf_with(bytes).unwrap_or_else(|| {
                self.leaves.push(Leaf { bytes: LEAF_HEADER, ..Leaf::default() });
                self.leaves.len() - 1
            }),
        };
        self.forget(record.version);
        self.leaves[leaf].bytes += bytes;
        self.leaves[leaf].versions.push(record.version);
        self.dirty.insert(leaf);
        self.note(&record);
        self.records.insert(record.version, (record, leaf));
    }

    /// Notes what a record is.
    fn note(&mut self, record: &Record) {
        if record.state == State::Kept {
            self.names.insert(record.name.clone(), record.version);
        } else {
            self.doomed.insert(record.version);
        }
    }

    /// Takes a record out.
    pub(crate) fn forget(&mut self, version: u32) {
        let Some((record, leaf)) = self.records.remove(&version) else { return };
        if !self.doomed.remove(&version) {
            self.names.remove(&record.name);
        }
        self.leaves[leaf].bytes -= record.bytes();
        self.leaves[leaf].versions.retain(|other| *other != version);
        self.dirty.insert(leaf);
    }

    /// Whether the medium has an older list.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() && !self.is_damaged()
    }

    /// Streams what changed to new blocks of the checkpoint being made; returns the new index.
    pub(crate) fn write(
        &mut self,
        medium: &Medium,
        allocator: &Allocator,
        frozen: &mut Frozen,
        version: u32,
    ) -> vfs::Result<(NodePointer, Flushed)> {
        let mut flushed = Flushed::none();
        if !self.is_dirty() {
            return Ok((self.index, flushed));
        }
        let mut put = |old: NodePointer, bytes: Vec<u8>, keep: bool| {
            if !old.is_null() {
                allocator.free_now(frozen, old.block());
            }
            if !keep {
                return Ok(NodePointer::default());
            }
            let block = allocator.allocate_into(frozen, BlockKind::Snapshots, version, (0, 0))?;
            let region = &medium.region;
            let streamed =
                fault::stream(region, Fault::ListNotSent, Purpose::Metadata, block * BLOCK, &bytes);
            flushed = std::mem::replace(&mut flushed, Flushed::none()).and(streamed);
            vfs::Result::Ok(NodePointer::new(block, checksum::of(&bytes)))
        };
        for number in std::mem::take(&mut self.dirty) {
            let leaf = &mut self.leaves[number];
            let mut bytes = Vec::with_capacity(BLOCK as usize);
            bytes.extend(KIND.to_le_bytes());
            bytes.extend((leaf.bytes as u32).to_le_bytes());
            bytes.resize(LEAF_HEADER, 0);
            leaf.versions.iter().for_each(|version| self.records[version].0.write(&mut bytes));
            bytes.resize(BLOCK as usize, 0);
            leaf.pointer = put(leaf.pointer, bytes, !leaf.versions.is_empty())?;
        }
        let mut bytes: Vec<u8> = self.leaves.iter().flat_map(|leaf| leaf.pointer.0.to_le_bytes()).collect();
        bytes.resize(BLOCK as usize, 0);
        self.index = put(self.index, bytes, !self.records.is_empty())?;
        Ok((self.index, flushed))
    }

    /// Those of `blocks` that are the list's are written anew with the next checkpoint.
    pub(crate) fn move_from(&mut self, blocks: &[u64]) {
        let has = |pointer: NodePointer| !pointer.is_null() && blocks.contains(&pointer.block());
        let moved = |number: &usize| has(self.leaves[*number].pointer);
        self.dirty.extend((0..self.leaves.len()).filter(moved));
        if has(self.index) {
            self.dirty.extend(self.leaves.iter().position(|leaf| !leaf.pointer.is_null()));
        }
    }

    /// Blocks of the list that the next checkpoint writes anew if records of these versions change, too.
    pub(crate) fn blocks_with(&self, versions: impl Iterator<Item = u32>) -> u64 {
        let changed = versions.filter_map(|version| self.records.get(&version)).map(|(_, leaf)| *leaf);
        let leaves: BTreeSet<usize> = changed.chain(self.dirty.iter().copied()).collect();
        leaves.len() as u64 + 1
    }

    /// Calls `visit` with each block of the list.
    pub(crate) fn blocks(&self, mut visit: impl FnMut(u64)) {
        let leaves = self.leaves.iter().map(|leaf| leaf.pointer);
        leaves
            .chain([self.index])
            .filter(|pointer| !pointer.is_null())
            .for_each(|pointer| visit(pointer.block()));
    }
}
