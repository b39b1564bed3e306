//! Moving blocks that snapshots have: in all their trees at once (HMFS §3.4).
//!
//! What a snapshot reaches is never changed in place, so each block on the way from its checkpoint to a block that moves
//! moves, too, and is written anew with the pointers that changed: data, its node, the blocks of the NAT above that, the
//! checkpoint. What several snapshots share, they share afterwards: each block has one new home, whoever comes to it. Start
//! versions stay, so who has which block (invariants 18 and 19) is what it was.
//!
//! All of it is published with the checkpoint being made, by the list of snapshots that this has. A crash before that
//! finds everything where it was; what the paper's Algorithm 2 undoes was not done.

mod plan;

use std::collections::BTreeMap;

use nvm::{Flushed, Purpose};
use parking_lot::MutexGuard;
use vfs::{Error, Result};

use self::plan::{Hosts, Plan, Targets, data_at, shares};
use crate::allocator::{Budget, Urgency};
use crate::bia::{BlockKind, Entry, is_node};
use crate::checksum;
use crate::core::{Core, Publisher};
use crate::fault::{self, Fault, planted};
use crate::geometry::BLOCK;
use crate::index;
use crate::kept::Record;
use crate::locks::Exclusive;
use crate::nat::{self, FANOUT, Tree};
use crate::node::{self, ORPHANS};
use crate::pointer::{DataPointer, NodePointer};

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
    /// What has been written on the way to what moves.
    pub(crate) ways: u64,
    /// Data and nodes that moved, with their BIA entries.
    data: Vec<(u64, Entry)>,
    /// Data that may still change, because it was never written: it is copied when nobody is in an operation.
    late: Vec<u64>,
    nodes: Vec<(u64, Entry)>,
    /// NIDs on whose account the newest tree's NAT is written anew.
    pub(crate) touched: Vec<u32>,
    /// Snapshots, where their checkpoints are now, and blocks for the list that says so.
    pub(crate) records: Vec<Record>,
    pub(crate) for_list: Option<Budget<'a>>,
    /// What was written so far.
    pub(crate) flushed: Option<Flushed>,
}

impl<'a> Transplant<'a> {
    /// Writes the snapshots' trees anew without `blocks`, as far as that is bounded and takes no more than `most` blocks on the
    /// way to them; the running tree is told by [`Transplant::switch`]. Nobody else makes checkpoints or changes the list of
    /// snapshots meanwhile.
    pub(crate) fn prepare(
        core: &'a Core,
        publisher: &Publisher,
        blocks: &[u64],
        most: u64,
    ) -> Result<Transplant<'a>> {
        let medium = &*core.medium;
        let mut transplant = Transplant::default();
        transplant.core = Some(core);
        core.snapshots.write().move_from(blocks);
        let tree = publisher.newest.body.tree();
        for block in blocks {
            let Entry { kind, owner, place, .. } = Entry::read(medium, *block);
            let is_nat = [BlockKind::NatEntries as u8, BlockKind::NatNode as u8].contains(&kind);
            // What is damaged stays: whoever wants it hears of it.
            let is_it = |pointer: NodePointer| pointer.block() == *block;
            if is_nat && nat::pointer_to(medium, tree, owner, place as u32).is_ok_and(is_it) {
                transplant.touched.push(owner);
            }
        }
        transplant.touched.sort_unstable();
        transplant.touched.dedup();
        let stuck = &mut transplant.stuck;
        let (mut plan, list_blocks) = {
            let kept = core.snapshots.read();
            if kept.is_removing() || kept.is_anyone_in_use() {
                return Ok(transplant); // some trees are not whole, or are being read
            }
            let plan = Plan::make(core, &kept, blocks, stuck);
            let list_blocks = kept.blocks_with(plan.trees.iter().map(|tree| tree.record.version));
            (plan, list_blocks)
        };
        plan.leave_out(stuck, |candidate| !is_readable(core, candidate.block, &candidate.entry));
        // What is on the way is written once for all trees.
        let (all, beyond) = loop {
            let all = plan.ways(medium)?.len() as u64;
            let is_data = |entry: &Entry| entry.kind == BlockKind::Data as u8;
            let themselves = plan.blocks.iter().filter(|candidate| !is_data(&candidate.entry)).count() as u64;
            match all - themselves {
                beyond if beyond <= most => break (all, beyond),
                _ => plan.leave_dearest(stuck),
            }
        };
        if plan.blocks.is_empty() {
            return Ok(transplant);
        }
        let allocator = &core.nodes.allocator;
        // An inode and an index node in the running tree for each block of data.
        let budget = allocator.reserve_to_move(all + 3 * plan.blocks.len() as u64).ok_or(Error::NoSpace)?;
        transplant.for_list = Some(allocator.reserve(list_blocks, Urgency::Ordinary).ok_or(Error::NoSpace)?);
        transplant.ways = beyond;
        for candidate in plan.blocks.iter().filter(|one| one.entry.kind == BlockKind::Data as u8) {
            let block = candidate.block;
            let home = allocator.rehome(&budget, block)?;
            transplant.homes.insert(block, NodePointer::new(home, 0));
            transplant.data.push((block, candidate.entry));
            // One that was not written yet may be, where it is, until everybody waits.
            let is_ready = candidate.is_written || planted(Fault::ReservedFilledEarly);
            if is_ready && !planted(Fault::HomesFilledLate) {
                let bytes = medium.block(block);
                transplant.sent(medium.region.stream(Purpose::Data, home * BLOCK, bytes));
            } else {
                transplant.late.push(block);
            }
        }
        let mut rewrite = Rewrite { core, budget: &budget, to: &mut transplant };
        plan.trees.iter().try_for_each(|tree| rewrite.tree(tree))?;
        // No snapshot's home is what could not be read.
        medium.check_media()?;
        transplant.budget = Some(budget);
        Ok(transplant)
    }

    fn sent(&mut self, streamed: Flushed) {
        let before = self.flushed.take().unwrap_or_else(Flushed::none);
        self.flushed = Some(before.and(streamed));
    }

    /// Whether nothing moves that a snapshot has.
    pub(crate) fn is_empty(&self) -> bool {
        self.homes.is_empty()
    }

    /// Copies the rest of the data, and points the running tree to what moved, as far as it reaches it. No operation runs.
    pub(crate) fn switch(&mut self) -> Result<()> {
        let Some((core, budget)) = self.core.take().zip(self.budget.take()) else { return Ok(()) };
        let _op = nvm::operation("switch");
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

    /// Copies the rest of the data, and waits until that and all that was written before is durable.
    fn fill_homes(&mut self, core: &Core) {
        let region = &core.medium.region;
        for block in std::mem::take(&mut self.late) {
            let home = self.homes[&block].block() * BLOCK;
            self.sent(region.stream(Purpose::Data, home, core.medium.block(block)));
        }
        region.fence(self.flushed.take().unwrap_or_else(Flushed::none)).ignore();
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

/// Writes trees anew.
struct Rewrite<'r, 'a> {
    core: &'a Core,
    budget: &'r Budget<'a>,
    to: &'r mut Transplant<'a>,
}

impl Rewrite<'_, '_> {
    fn tree(&mut self, plan: &Hosts) -> Result<()> {
        let mut tree = plan.checkpoint.body.tree();
        let targets = plan.targets();
        if !targets.is_empty() {
            tree.root = self.nat(tree.root, u32::from(tree.height), 0, &targets)?;
        }
        self.checkpoint(plan, tree)
    }

    /// Writes node `nid` anew, with pointers to where the data has gone.
    fn node(&mut self, nid: u32, pointer: NodePointer) -> Result<NodePointer> {
        let old = pointer.block();
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
        let home = self.write(old, &bytes, crc)?;
        let entry = Entry::read(medium, old);
        if is_node(entry.kind) && entry.owner == nid {
            self.to.nodes.push((old, entry));
        } else {
            // The BIA is wrong of it; the node itself was verified.
            self.to.nodes.push((old, Entry { owner: nid, kind: bytes[0], ..entry }));
        }
        Ok(home)
    }

    /// Writes what is at and below a pointer of the NAT anew, as far as it leads to `targets`, unless that was done for another
    /// tree, which shares it.
    fn nat(
        &mut self,
        pointer: NodePointer,
        level: u32,
        first: u64,
        targets: &Targets,
    ) -> Result<NodePointer> {
        let old = pointer.block();
        if let Some(home) = self.to.homes.get(&old) {
            return Ok(*home);
        }
        if level == 0 {
            return self.node(first as u32, pointer);
        }
        let medium = &*self.core.medium;
        let mut bytes = medium.block(nat::verify(medium, pointer, 0)?).to_vec();
        for (place, share) in shares(targets, level, first) {
            let child = nat::pointer_at(&bytes, place);
            let new = self.nat(child, level - 1, first + place * FANOUT.pow(level - 1), &share)?;
            let at = place as usize * 8;
            bytes[at..at + 8].copy_from_slice(&new.0.to_le_bytes());
        }
        self.write(old, &bytes, checksum::of(&bytes))
    }

    /// Writes the new home of `old`.
    fn write(&mut self, old: u64, bytes: &[u8], crc: u32) -> Result<NodePointer> {
        let home = self.core.nodes.allocator.rehome(self.budget, old)?;
        let region = &self.core.medium.region;
        let streamed = fault::stream(region, Fault::HomeNotSent, Purpose::Metadata, home * BLOCK, bytes);
        self.to.sent(streamed);
        let pointer = NodePointer::new(home, crc);
        self.to.homes.insert(old, pointer);
        Ok(pointer)
    }

    /// Writes the snapshot's checkpoint anew, with the root of its new tree.
    fn checkpoint(&mut self, plan: &Hosts, tree: Tree) -> Result<()> {
        let old = plan.checkpoint.block;
        let home = self.core.nodes.allocator.rehome(self.budget, old)?;
        let written = plan.checkpoint.write_again(&self.core.medium, home, tree);
        self.to.sent(written);
        self.to.homes.insert(old, NodePointer::new(home, 0));
        self.to.records.push(Record { block: home, ..plan.record.clone() });
        Ok(())
    }
}
