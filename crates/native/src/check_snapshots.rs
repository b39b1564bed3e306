//! What of a volume's check is about snapshots: what each of them reaches beyond the running tree and the others.

use std::cell::RefCell;
use std::sync::Arc;

use vfs::{InoMap, InoSet};

use crate::bia::{BlockKind, Entry};
use crate::checkpoint::Checkpoint;
use crate::geometry::Medium;
use crate::index::{self, whose};
use crate::inode::Layout;
use crate::kept::{Kept, Record, State};
use crate::nat::Tree;
use crate::reader::Reader;
use crate::sit::SitEntry;
use crate::twin::{Spot, Traverse};

/// A snapshot of which something cannot be read.
pub(crate) struct Broken {
    pub(crate) version: u32,
    /// What is wrong, and with which snapshot.
    pub(crate) what: String,
    /// It is to go anyhow, or nothing of it can be read.
    pub(crate) is_lost: bool,
}

impl Broken {
    fn new(medium: &Medium, record: &Record, error: &vfs::Error) -> Broken {
        let (name, version) = (&record.name, record.version);
        let is_removed = record.state != State::Kept;
        let is_lost = is_removed || Checkpoint::read(medium, record.block).is_err();
        let what = match is_removed {
            true => format!("snapshot {name:?}, which was removed, keeps its space: {error}"),
            false if is_lost => format!("nothing of snapshot {name:?} can be read: {error}"),
            false => format!(
                "snapshot {name:?}: {error}; once what can be read of it is copied and it is removed, its space can be given back"
            ),
        };
        Broken { version, what, is_lost }
    }
}

/// What is reached, of all trees.
#[derive(Default)]
pub(crate) struct Reached {
    /// Blocks, and what they are.
    pub(crate) blocks: InoMap<u64, BlockKind>,
    /// Owner and place of those of which the BIA says something else.
    pub(crate) misplaced: InoMap<u64, (u32, u64)>,
}

impl Reached {
    /// Notes whose a block of the Main Area is, and where.
    pub(crate) fn place(&mut self, medium: &Medium, block: u64, (owner, place): (u32, u64)) {
        let entry = Entry::read(medium, block);
        if (entry.owner, entry.place) != (owner, place) {
            self.misplaced.insert(block, (owner, place));
        }
    }
}

/// Adds to what the newest checkpoint reaches what the list of snapshots and each snapshot do; gives those snapshots of
/// which something cannot be read. Calls `problem` with what else is wrong. An error if the list cannot be read.
pub(crate) fn reach_snapshots(
    (medium, hash_key): (&Arc<Medium>, [u64; 2]),
    newest: &Checkpoint,
    reached: &mut Reached,
    problem: &mut dyn FnMut(String),
) -> vfs::Result<Vec<Broken>> {
    let (kept, damage) = Kept::read(medium, newest);
    if let Some(error) = damage {
        return Err(error);
    }
    kept.blocks(|block| {
        if reached.blocks.insert(block, BlockKind::Snapshots).is_some() {
            problem(format!("block {block} of the list of snapshots has a second owner"));
        }
    });
    // One that is being removed says least of what it has: last.
    let order = |record: &&Record| record.state == State::Removing;
    let (removing, whole): (Vec<_>, Vec<_>) = kept.all().partition(order);
    let mut broken = Vec::new();
    for record in whole.into_iter().chain(removing) {
        let mut data = Vec::new();
        if let Err(error) = reach_one(medium, newest, &kept, record, reached, &mut data, problem) {
            broken.push(Broken::new(medium, record, &error));
        } else if let Err(error) = place_data((medium, hash_key), record, &data, reached) {
            broken.push(Broken::new(medium, record, &error));
        }
    }
    Ok(broken)
}

/// A block of data, and the pointer to it: node and byte.
type Data = (u64, u32, usize);

fn reach_one(
    medium: &Medium,
    newest: &Checkpoint,
    kept: &Kept,
    record: &Record,
    reached: &mut Reached,
    data: &mut Vec<Data>,
    problem: &mut dyn FnMut(String),
) -> vfs::Result<()> {
    let checkpoint = Checkpoint::read(medium, record.block)?;
    let found = checkpoint.body.version.get();
    if found != record.version {
        problem(format!("snapshot {:?} is version {}, its checkpoint {found}", record.name, record.version));
    }
    reached.blocks.insert(record.block, BlockKind::Checkpoint);
    let is_whole = record.state != State::Removing;
    let next = match kept.after(record.version) {
        _ if is_whole => Tree::default(),
        Some(next) => Checkpoint::read(medium, next.block)?.body.tree(),
        None => newest.body.tree(),
    };
    let previous = kept.before(record.version);
    let seen = RefCell::new(reached);
    let late = RefCell::new(Vec::new());
    let is_own = |block: u64| {
        let born = Entry::read(medium, block).version;
        let is_new = !seen.borrow().blocks.contains_key(&block);
        if is_whole {
            if is_new && born > record.version {
                late.borrow_mut().push(block);
            }
            return is_new;
        }
        is_new && born > previous && born <= record.version && is_valid(medium, block)
    };
    let visit = &mut |block, kind, spot| {
        let seen = &mut *seen.borrow_mut();
        seen.blocks.insert(block, kind);
        match spot {
            Spot::Nat { first, level } => seen.place(medium, block, (first, level.into())),
            Spot::Data { nid, at } => data.push((block, nid, at)),
        }
    };
    let mut traverse =
        Traverse { medium, next, from: record.cursor, steps: u64::MAX, is_own: &is_own, visit };
    let through = traverse.run(checkpoint.body.tree());
    for block in late.take() {
        problem(format!("block {block} of snapshot {:?} is newer than that, says the BIA", record.name));
    }
    through.map(drop)
}

/// Notes whose data is, and where. What a direct node is for, only what leads to it knows: that is looked up where the BIA
/// says it is; where it is wrong, all of the file's direct nodes are listed, once.
fn place_data(
    (medium, hash_key): (&Arc<Medium>, [u64; 2]),
    record: &Record,
    data: &[Data],
    reached: &mut Reached,
) -> vfs::Result<()> {
    if data.is_empty() || record.state == State::Removing {
        return Ok(()); // of what is not whole, what leads to it may be another's by now
    }
    let reader = record.reader(medium, hash_key)?;
    let mut firsts: InoMap<u32, u64> = InoMap::default();
    let mut listed: InoSet<u32> = InoSet::default();
    for &(block, nid, at) in data {
        let view = reader.any(nid)?;
        let (owner, mut place) = whose::owner_at(view, at);
        if view.header().kind == BlockKind::Direct as u8 {
            if !firsts.contains_key(&nid)
                && let Some(first) = first_of(&reader, nid, owner, Entry::read(medium, block).place, place)
            {
                firsts.insert(nid, first);
            } else if !firsts.contains_key(&nid) && listed.insert(owner) {
                let list = &mut |nid, first| {
                    firsts.insert(nid, first);
                };
                reader.inode(owner).and_then(|inode| whose::direct_nodes(&reader, inode, list))?;
            }
            match firsts.get(&nid) {
                Some(first) => place += first,
                None => continue, // no part of the file that it names
            }
        }
        reached.place(medium, block, (owner, place));
    }
    Ok(())
}

/// The first block that direct node `nid` is for, if it leads to its `slot`th by what may be its place in the file.
fn first_of(reader: &Reader, nid: u32, owner: u32, place: u64, slot: u64) -> Option<u64> {
    let first = place.checked_sub(slot)?;
    let inode = reader.inode(owner).ok().filter(|inode| inode.layout() == Layout::Mapped)?;
    let (node, _) = index::holder(reader, inode, place).ok()??;
    (node == nid && whose::slot_of(place) == slot).then_some(first)
}

/// Whether the SIT says so.
fn is_valid(medium: &Medium, block: u64) -> bool {
    let (segment, index) = medium.geometry.segment_of(block);
    SitEntry::read(medium, segment).is_ok_and(|entry| entry.bits()[index / 64] >> (index % 64) & 1 == 1)
}
