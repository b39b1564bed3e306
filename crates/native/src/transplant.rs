//! Moving blocks that snapshots have: in all their trees at once (HMFS §3.4).
//!
//! What a snapshot reaches is never changed in place, so each block on the way from its checkpoint to a block that moves
//! moves, too, and is written anew with the pointers that changed: data, its node, the blocks of the NAT above that, the
//! checkpoint. What several snapshots share, they share afterwards: each block has one new home, whoever comes to it. Start
//! versions stay, so who has which block (invariants 18 and 19) is what it was.
//!
//! All of it is published with the checkpoint being made, by the list of snapshots that this has. A crash before that
//! finds everything where it was; what the paper's Algorithm 2 undoes was not done.

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use nvm::{Flushed, Purpose};
use parking_lot::MutexGuard;
use vfs::{Error, Result};

use crate::allocator::{Budget, Urgency};
use crate::bia::{BlockKind, Entry, is_node};
use crate::checkpoint::Checkpoint;
use crate::checksum;
use crate::core::{Core, Publisher};
use crate::error::corrupt;
use crate::fault::{self, Fault, planted};
use crate::geometry::BLOCK;
use crate::index;
use crate::inode::Layout;
use crate::kept::{Kept, Record};
use crate::locks::Exclusive;
use crate::nat::{self, FANOUT, MAX_HEIGHT, Tree};
use crate::node::{self, ORPHANS};
use crate::pointer::{DataPointer, NodePointer};
use crate::reader::Reader;

/// Blocks that move with one checkpoint at most, of data and in all: nothing is changed while data is copied and the running
/// tree is told.
const DATA_MAX: usize = 64;
const MOVED_MAX: usize = 512;
/// Snapshots whose trees change with one checkpoint at most. A block that more have stays where it is.
const TREES_MAX: usize = 64;

/// Blocks that move with the checkpoint being made.
#[derive(Default)]
pub(crate) struct Transplant<'a> {
    /// Who gave the homes, until they are published or given back.
    core: Option<&'a Core>,
    /// Blocks for what is still to be copied.
    budget: Option<Budget<'a>>,
    /// Blocks that don't move, whatever is tried while the snapshots are what they are.
    pub(crate) stuck: Vec<u64>,
    /// New homes, by block; of nodes and blocks of the NAT with their checksums. In order, so that a run can be repeated.
    homes: BTreeMap<u64, NodePointer>,
    /// Data and nodes that moved, with their BIA entries.
    data: Vec<(u64, Entry)>,
    nodes: Vec<(u64, Entry)>,
    /// NIDs on whose account the newest tree's NAT is written anew.
    pub(crate) touched: Vec<u32>,
    /// Snapshots, where their checkpoints are now.
    pub(crate) records: Vec<Record>,
    /// What was written so far.
    pub(crate) flushed: Option<Flushed>,
}

/// A snapshot's tree, and what is to change in it.
struct Plan {
    record: Record,
    checkpoint: Checkpoint,
    reader: Reader,
    /// Nodes that move or hold pointers to what moves.
    nids: BTreeSet<u32>,
    /// Blocks of the NAT that move: first NID and level.
    nat: BTreeSet<(u32, u32)>,
}

impl Plan {
    /// Adds all blocks of the tree that are to be written anew.
    fn paths(&self, all: &mut HashSet<u64>) -> Result<()> {
        let (medium, tree) = (&*self.reader.medium, self.checkpoint.body.tree());
        let nodes = self.nids.iter().map(|nid| (*nid, 0));
        for (first, level) in nodes.chain(self.nat.iter().copied()) {
            let pointer = nat::path_to(medium, tree, first, level, &mut |block| {
                all.insert(block);
            })?;
            all.insert(pointer.block());
        }
        all.insert(self.checkpoint.block);
        Ok(())
    }
}

/// By the snapshots' versions.
type Plans = BTreeMap<u32, Plan>;

/// How a tree has a block.
enum Hold {
    /// As this node, or in it.
    Node(u32),
    /// As the NAT's block of a level, for NIDs from this one on.
    Nat(u32, u32),
    /// As its checkpoint.
    Checkpoint,
}

impl Plan {
    fn open(core: &Core, record: &Record) -> Result<Plan> {
        let checkpoint = record.checkpoint(&core.medium)?;
        let (tree, nodes) = (checkpoint.body.tree(), checkpoint.body.nodes.get());
        let reader = Reader::new(core.medium.clone(), tree, core.nodes.hash_key, nodes);
        Ok(Plan { record: record.clone(), checkpoint, reader, nids: BTreeSet::new(), nat: BTreeSet::new() })
    }

    /// How the snapshot has `block`, if it has it where its entry says.
    fn hold(&self, block: u64, entry: &Entry) -> Result<Option<Hold>> {
        let (medium, tree) = (&*self.reader.medium, self.checkpoint.body.tree());
        Ok(match BlockKind::from_u8(entry.kind) {
            Some(BlockKind::Data) => data_at(&self.reader, block, entry)?.map(|(nid, _)| Hold::Node(nid)),
            Some(BlockKind::NatEntries | BlockKind::NatNode) => {
                let (first, level) = (entry.owner, entry.place as u32);
                if level == 0 || level > u32::from(MAX_HEIGHT) {
                    return Ok(None); // the entry does not say where to look
                }
                let pointer = nat::pointer_to(medium, tree, first, level)?;
                if pointer.block() != block {
                    return Ok(None);
                }
                nat::verify(medium, pointer, 0)?;
                Some(Hold::Nat(first, level))
            }
            Some(BlockKind::Checkpoint) => (self.checkpoint.block == block).then_some(Hold::Checkpoint),
            Some(BlockKind::Snapshots) | None => None,
            Some(_) => match self.reader.any(entry.owner) {
                Ok(view) => (view.block == block).then_some(Hold::Node(entry.owner)),
                Err(Error::Stale) => None,
                Err(error) => return Err(error),
            },
        })
    }
}

/// The node with the pointer to `block`, and the pointer, if `block` is where its entry says.
fn data_at(reader: &Reader, block: u64, entry: &Entry) -> Result<Option<(u32, DataPointer)>> {
    let inode = match reader.inode(entry.owner) {
        Ok(inode) if inode.layout() == Layout::Mapped => inode,
        Ok(_) | Err(Error::Stale) => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = index::holder(reader, inode, entry.place)?;
    Ok(found.filter(|(_, pointer)| pointer.block() == block))
}

impl<'a> Transplant<'a> {
    /// Writes the snapshots' trees anew without `blocks`, as far as that is bounded; the running tree is told by
    /// [`Transplant::switch`]. Nobody else makes checkpoints or changes the list of snapshots meanwhile.
    pub(crate) fn prepare(core: &'a Core, publisher: &Publisher, blocks: &[u64]) -> Result<Transplant<'a>> {
        let mut transplant = Transplant::default();
        transplant.core = Some(core);
        core.snapshots.write().move_from(blocks);
        let tree = publisher.newest.body.tree();
        for block in blocks {
            let Entry { kind, owner, place, .. } = Entry::read(&core.medium, *block);
            let is_nat = [BlockKind::NatEntries as u8, BlockKind::NatNode as u8].contains(&kind);
            // What is damaged stays: whoever wants it hears of it.
            let is_it = |pointer: NodePointer| pointer.block() == *block;
            if is_nat && nat::pointer_to(&core.medium, tree, owner, place as u32).is_ok_and(is_it) {
                transplant.touched.push(owner);
            }
        }
        transplant.touched.sort_unstable();
        transplant.touched.dedup();
        let (mut moved, plans) = {
            let kept = core.snapshots.read();
            if kept.is_removing() || kept.is_anyone_in_use() {
                return Ok(transplant); // some trees are not whole, or are being read
            }
            plan(core, &kept, blocks, &mut transplant.stuck)
        };
        moved.retain(|(block, entry)| {
            let readable = is_readable(core, *block, entry);
            transplant.stuck.extend((!readable).then_some(*block));
            readable
        });
        // Each block that a tree has on the way to what moves, once for all trees; an inode and an index node in the
        // running tree for each block of data.
        let mut paths = HashSet::new();
        plans.values().try_for_each(|plan| plan.paths(&mut paths))?;
        let allocator = &core.nodes.allocator;
        let budget = allocator.reserve((paths.len() + 3 * moved.len()) as u64, Urgency::Ordinary);
        let budget = match budget {
            Some(_) if moved.is_empty() => return Ok(transplant),
            Some(budget) => budget,
            None => return Err(Error::NoSpace),
        };
        for (block, entry) in moved {
            if entry.kind == BlockKind::Data as u8 {
                let home = allocator.rehome(&budget, block)?;
                transplant.homes.insert(block, NodePointer::new(home, 0));
                transplant.data.push((block, entry));
            }
        }
        let mut rewrite = Rewrite { core, budget: &budget, to: &mut transplant };
        plans.values().try_for_each(|plan| rewrite.tree(plan))?;
        // No snapshot's home is what could not be read.
        core.medium.check_media()?;
        transplant.budget = Some(budget);
        Ok(transplant)
    }

    /// Whether nothing moves that a snapshot has.
    pub(crate) fn is_empty(&self) -> bool {
        self.homes.is_empty()
    }

    /// Copies the data, and points the running tree to what moved, as far as it reaches it. No operation runs.
    pub(crate) fn switch(&mut self) -> Result<()> {
        let Some((core, budget)) = self.core.take().zip(self.budget.take()) else { return Ok(()) };
        let nodes = &core.nodes;
        // Readers have no lane: they come to a home as soon as anything leads there, and a node that moved leads to all of its.
        if !planted(Fault::HomesFilledLate) {
            self.fill_homes(core);
        }
        for (block, entry) in self.nodes.iter().filter(|_| !planted(Fault::MoveNotTold)) {
            let (nid, home) = (entry.owner, self.homes[block].block());
            if entry.kind == BlockKind::Inode as u8 {
                nodes.move_inodes(nid, *block, home)?;
                continue;
            }
            if nodes.nat.locate(nid)?.pointer.block() == *block {
                let _lock = core.lock_owner(nodes.any(nid)?.header().owner.get());
                nodes.nat.set(nid, home, nodes.version())?;
            }
        }
        if planted(Fault::HomesFilledLate) {
            self.fill_homes(core);
        }
        for (block, entry) in &self.data {
            let home = self.homes[block].block();
            let _lock = core.locks.write(entry.owner);
            // In a node that moved it has been repointed.
            if let Some((_, pointer)) = data_at(nodes, *block, entry)? {
                index::repoint(nodes, &budget, entry.owner, entry.place, pointer.moved(home))?;
            }
        }
        self.homes.keys().for_each(|block| nodes.allocator.leave(*block));
        if planted(Fault::MovesNotListed) {
            self.records.clear();
        }
        Ok(())
    }

    /// Copies the data, and waits until that and all that was written before is durable.
    fn fill_homes(&mut self, core: &Core) {
        let region = &core.medium.region;
        let mut flushed = self.flushed.take().unwrap_or_else(Flushed::none);
        for (block, _) in &self.data {
            let home = self.homes[block].block() * BLOCK;
            flushed = flushed.and(region.stream(Purpose::Data, home, core.medium.block(*block)));
        }
        region.fence(flushed).ignore();
        self.flushed = Some(Flushed::none());
    }
}

/// What was not published is given back.
impl Drop for Transplant<'_> {
    fn drop(&mut self) {
        if let Some(core) = self.core {
            self.homes.values().for_each(|home| core.nodes.allocator.leave(home.block()));
        }
    }
}

impl Core {
    /// Locks who owns a node that is no block of inodes: an inode, or the hidden directory, which has a lock of its own.
    pub(crate) fn lock_owner(&self, owner: u32) -> Owner<'_> {
        match owner {
            ORPHANS => Owner::Hidden(self.orphans.lock()),
            _ => Owner::Inode(self.locks.write(owner)),
        }
    }
}

/// The lock on a node's owner.
#[allow(dead_code, reason = "it is held, not looked at")]
pub(crate) enum Owner<'a> {
    Inode(Exclusive<'a>),
    Hidden(MutexGuard<'a, ()>),
}

/// Whether the running tree can be read where it would have a block: if not, the block stays.
fn is_readable(core: &Core, block: u64, entry: &Entry) -> bool {
    let nodes = &core.nodes;
    let read = if entry.kind == BlockKind::Data as u8 {
        let _lock = core.locks.read(entry.owner);
        data_at(nodes, block, entry).map(drop)
    } else if is_node(entry.kind) {
        match nodes.any(entry.owner) {
            Ok(_) | Err(Error::Stale) => Ok(()),
            Err(error) => Err(error),
        }
    } else {
        Ok(())
    };
    read.inspect_err(|error| tracing::warn!("block {block} is not moved: {error}")).is_ok()
}

/// Chooses which of `blocks` move, and says what that changes in which trees, and which of them never will move.
fn plan(core: &Core, kept: &Kept, blocks: &[u64], stuck: &mut Vec<u64>) -> (Vec<(u64, Entry)>, Plans) {
    let mut plans = Plans::new();
    let mut changed: HashSet<u32> = HashSet::new();
    let mut moved = Vec::new();
    let mut data = 0;
    for block in blocks {
        // What has been looked at without being changed is let go of now and then.
        if plans.len() > 2 * TREES_MAX {
            plans.retain(|version, _| changed.contains(version));
        }
        let entry = Entry::read(&core.medium, *block);
        if moved.len() == MOVED_MAX || data == DATA_MAX {
            break;
        }
        if entry.version > kept.newest() || entry.version == 0 {
            continue;
        }
        let holds = match holds(core, kept, (*block, &entry), &mut plans) {
            Ok(holds) if (1..=TREES_MAX).contains(&holds.len()) => holds,
            Ok(_) => {
                stuck.push(*block);
                continue;
            }
            Err(error) => {
                tracing::warn!(
                    "block {block} is not moved, because a snapshot that has it is damaged: {error}"
                );
                stuck.push(*block);
                continue;
            }
        };
        let more = holds.iter().filter(|(version, _)| !changed.contains(version)).count();
        if changed.len() + more > TREES_MAX {
            continue; // another time
        }
        for (version, hold) in holds {
            changed.insert(version);
            let plan = plans.get_mut(&version).expect("looked at above");
            match hold {
                Hold::Node(nid) => {
                    plan.nids.insert(nid);
                }
                Hold::Nat(first, level) => {
                    plan.nat.insert((first, level));
                }
                Hold::Checkpoint => {}
            }
        }
        data += usize::from(entry.kind == BlockKind::Data as u8);
        moved.push((*block, entry));
    }
    plans.retain(|version, _| changed.contains(version));
    (moved, plans)
}

/// The snapshots that have a block, and how, at most one more than may change; none if its entry cannot be right.
fn holds(
    core: &Core,
    kept: &Kept,
    (block, entry): (u64, &Entry),
    plans: &mut Plans,
) -> Result<Vec<(u32, Hold)>> {
    let mut hold = |record: &Record| -> Result<Option<Hold>> {
        let plan = match plans.entry(record.version) {
            Slot::Occupied(slot) => slot.into_mut(),
            Slot::Vacant(slot) => slot.insert(Plan::open(core, record)?),
        };
        plan.hold(block, entry)
    };
    if let Some(before) = kept.get(kept.before(entry.version))
        && hold(before)?.is_some()
    {
        tracing::warn!("block {block} is not moved: it is older than the BIA says; run fsck");
        return Ok(Vec::new());
    }
    let mut holds = Vec::new();
    for record in kept.behind(entry.version - 1).take(TREES_MAX + 1) {
        let Some(hold) = hold(record)? else { break };
        holds.push((record.version, hold));
    }
    Ok(holds)
}

/// Writes trees anew.
struct Rewrite<'r, 'a> {
    core: &'a Core,
    budget: &'r Budget<'a>,
    to: &'r mut Transplant<'a>,
}

impl Rewrite<'_, '_> {
    fn tree(&mut self, plan: &Plan) -> Result<()> {
        for nid in &plan.nids {
            self.node(&plan.reader, *nid)?;
        }
        let mut targets: Vec<(u32, u32)> = plan.nids.iter().map(|nid| (*nid, 0)).collect();
        targets.extend(&plan.nat);
        targets.sort_unstable();
        let mut tree = plan.checkpoint.body.tree();
        if !targets.is_empty() {
            tree.root = self.nat(tree.root, u32::from(tree.height), 0, &targets)?;
        }
        self.checkpoint(plan, tree)
    }

    /// Writes node `nid` anew, with pointers to where the data has gone.
    fn node(&mut self, reader: &Reader, nid: u32) -> Result<()> {
        let pointer = reader.nat.locate(nid)?.pointer;
        let old = pointer.block();
        if self.to.homes.contains_key(&old) {
            return Ok(());
        }
        let medium = &*self.core.medium;
        let mut bytes = node::verified(medium, nid, pointer)?.to_vec();
        for at in index::data_pointers(&bytes).into_iter().flat_map(|range| range.step_by(8)) {
            let place = at..at + 8;
            let pointer = DataPointer(u64::from_le_bytes(bytes[place.clone()].try_into().expect("8 bytes")));
            if let Some(home) = self.to.homes.get(&pointer.block()).filter(|_| !pointer.is_hole()) {
                bytes[place].copy_from_slice(&pointer.moved(home.block()).0.to_le_bytes());
            }
        }
        let crc = node::checksum(&bytes).expect("verified");
        self.write(old, &bytes, crc)?;
        let entry = Entry::read(medium, old);
        if is_node(entry.kind) && entry.owner == nid {
            self.to.nodes.push((old, entry));
        } else {
            // The BIA is wrong of it; the node itself was verified.
            self.to.nodes.push((old, Entry { owner: nid, kind: bytes[0], ..entry }));
        }
        Ok(())
    }

    /// Writes the NAT below `pointer` anew, as far as it leads to `targets`: NIDs, each with the level that changes.
    fn nat(
        &mut self,
        pointer: NodePointer,
        level: u32,
        first: u64,
        targets: &[(u32, u32)],
    ) -> Result<NodePointer> {
        let old = pointer.block();
        if let Some(home) = self.to.homes.get(&old) {
            return Ok(*home);
        }
        let medium = &*self.core.medium;
        let mut bytes = medium.block(nat::verify(medium, pointer, 0)?).to_vec();
        let span = FANOUT.pow(level - 1);
        let mut rest = targets;
        while let Some((nid, _)) = rest.first() {
            let index = (u64::from(*nid) - first) / span;
            let end = first + (index + 1) * span;
            let (mine, others) = rest.split_at(rest.partition_point(|(nid, _)| u64::from(*nid) < end));
            rest = others;
            let below: Vec<(u32, u32)> = mine.iter().copied().filter(|(_, at)| *at < level).collect();
            if below.is_empty() {
                continue;
            }
            let place = index as usize * 8..index as usize * 8 + 8;
            let child = NodePointer(u64::from_le_bytes(bytes[place.clone()].try_into().expect("8 bytes")));
            let new = match level {
                1 => match self.to.homes.get(&child.block()) {
                    Some(home) => *home,
                    None => {
                        return Err(corrupt("NAT block", old, "entry", child.block(), "a node that moves"));
                    }
                },
                _ => self.nat(child, level - 1, first + index * span, &below)?,
            };
            bytes[place].copy_from_slice(&new.0.to_le_bytes());
        }
        self.write(old, &bytes, checksum::of(&bytes))
    }

    /// Writes the new home of `old`.
    fn write(&mut self, old: u64, bytes: &[u8], crc: u32) -> Result<NodePointer> {
        let home = self.core.nodes.allocator.rehome(self.budget, old)?;
        let region = &self.core.medium.region;
        let streamed = fault::stream(region, Fault::HomeNotSent, Purpose::Metadata, home * BLOCK, bytes);
        self.sent(streamed);
        let pointer = NodePointer::new(home, crc);
        self.to.homes.insert(old, pointer);
        Ok(pointer)
    }

    fn sent(&mut self, streamed: Flushed) {
        let before = self.to.flushed.take().unwrap_or_else(Flushed::none);
        self.to.flushed = Some(before.and(streamed));
    }

    /// Writes the snapshot's checkpoint anew, with the root of its new tree.
    fn checkpoint(&mut self, plan: &Plan, tree: Tree) -> Result<()> {
        let old = plan.checkpoint.block;
        let home = self.core.nodes.allocator.rehome(self.budget, old)?;
        let written = plan.checkpoint.write_again(&self.core.medium, home, tree);
        self.sent(written);
        self.to.homes.insert(old, NodePointer::new(home, 0));
        self.to.records.push(Record { block: home, ..plan.record.clone() });
        Ok(())
    }
}
