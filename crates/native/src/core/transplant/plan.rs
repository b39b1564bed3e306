//! Which blocks move, which snapshots have them and how, and what of their trees that takes.
//!
//! Trees are asked one by one, oldest first, each once for all blocks. A block is in all snapshots from the first behind its
//! birth to the last before the running tree let go of it (invariant 18), so a tree is asked for what the one before it had;
//! and if both lead to one node, they have the same there.

use std::collections::HashSet;

use vfs::{Error, Result};

use crate::bia::{BlockKind, Entry};
use crate::checkpoint::Checkpoint;
use crate::core::Core;
use crate::geometry::Medium;
use crate::index;
use crate::inode::Layout;
use crate::kept::{Kept, Record};
use crate::nat::{self, FANOUT, MAX_HEIGHT};
use crate::pointer::{DataPointer, NodePointer};
use crate::reader::Reader;

/// Blocks that move with one checkpoint at most, in all and of data: nothing is changed while the running tree is told.
const MOVED_MAX: usize = 512;
const DATA_MAX: usize = 256;
/// Pairs of a block and a snapshot that may have it, with one checkpoint: they are kept in DRAM, 16 bytes each.
const PAIRS_MAX: usize = 1 << 18;

/// What moves, and the trees that have it.
pub(super) struct Plan {
    pub(super) blocks: Vec<Candidate>,
    pub(super) trees: Vec<Hosts>,
}

/// A block that is to move.
pub(super) struct Candidate {
    pub(super) block: u64,
    pub(super) entry: Entry,
    /// The last snapshot before its birth; 0: there is none.
    before: u32,
    state: State,
    /// Snapshots that have it.
    hosts: u32,
    /// The last of them reaches it as data that was written: its bytes stay as they are.
    pub(super) is_written: bool,
}

/// What is known of it, having asked the snapshots up to some one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// None had to have it yet.
    Unborn,
    /// The last one has it.
    Held(Hold),
    /// The last one has it no more.
    Gone,
    /// It stays where it is.
    Stuck,
}

/// How a tree has a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// As this node, or in it, and where that is.
    Node { nid: u32, block: u64 },
    /// As the NAT's block of a level, for NIDs from this one on.
    Nat { first: u32, level: u32 },
    /// As its checkpoint.
    Checkpoint,
}

/// What is written anew in a tree: the blocks on the way to these, the first NID of each and its level in the NAT (0: a node),
/// ascending.
pub(super) type Targets = [(u32, u32)];

/// A snapshot that has some of what moves.
pub(super) struct Hosts {
    pub(super) record: Record,
    pub(super) checkpoint: Checkpoint,
    /// Numbers of blocks, each with its target, if it is not the checkpoint itself.
    has: Vec<(u32, Option<(u32, u32)>)>,
}

impl Hosts {
    pub(super) fn targets(&self) -> Vec<(u32, u32)> {
        let mut targets: Vec<(u32, u32)> = self.has.iter().filter_map(|(_, target)| *target).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }
}

/// What the NAT's block of `level`, for NIDs from `first` on, has of `targets` below it: the places, each with its share.
pub(super) fn shares(targets: &Targets, level: u32, first: u64) -> Vec<(u64, Vec<(u32, u32)>)> {
    let span = FANOUT.pow(level - 1);
    let mut shares: Vec<(u64, Vec<(u32, u32)>)> = Vec::new();
    for target in targets.iter().filter(|(_, at)| *at < level) {
        let place = (u64::from(target.0) - first) / span;
        match shares.last_mut() {
            Some((last, share)) if *last == place => share.push(*target),
            _ => shares.push((place, vec![*target])),
        }
    }
    shares
}

impl Plan {
    /// Chooses which of `blocks` move, as far as that is bounded, and which never will while the snapshots are what they are.
    pub(super) fn make(core: &Core, kept: &Kept, blocks: &[u64], stuck: &mut Vec<u64>) -> Plan {
        let versions: Vec<u32> = kept.all().map(|record| record.version).collect();
        let mut plan = Plan { blocks: Vec::new(), trees: Vec::new() };
        let (mut pairs, mut data) = (0, 0);
        for &block in blocks {
            let entry = Entry::read(&core.medium, block);
            if entry.version > kept.newest() || entry.version == 0 {
                continue;
            }
            let older = versions.partition_point(|version| *version < entry.version);
            let is_data = entry.kind == BlockKind::Data as u8;
            let is_first = plan.blocks.is_empty();
            if is_data && data == DATA_MAX || !is_first && pairs + versions.len() - older > PAIRS_MAX {
                continue; // another time
            }
            if plan.blocks.len() == MOVED_MAX {
                break;
            }
            (pairs, data) = (pairs + versions.len() - older, data + usize::from(is_data));
            let before = older.checked_sub(1).map_or(0, |last| versions[last]);
            let (state, hosts, is_written) = (State::Unborn, 0, false);
            plan.blocks.push(Candidate { block, entry, before, state, hosts, is_written });
        }
        kept.all().for_each(|record| plan.ask(core, record));
        for candidate in &mut plan.blocks {
            if candidate.hosts == 0 {
                candidate.state = State::Stuck; // its entry cannot be right
            }
        }
        plan.leave_stuck(stuck);
        plan
    }

    /// Asks a snapshot, the next one, what it has.
    fn ask(&mut self, core: &Core, record: &Record) {
        let is_asked = |candidate: &Candidate| match candidate.state {
            State::Unborn => record.version >= candidate.before.max(1),
            State::Held(_) => true,
            State::Gone | State::Stuck => false,
        };
        let mut asked = self.blocks.iter_mut().enumerate().filter(|(_, one)| is_asked(one)).peekable();
        if asked.peek().is_none() {
            return;
        }
        let tree = Tree::open(core, record);
        let mut has = Vec::new();
        for (number, candidate) in asked {
            let hold = tree.as_ref().map_err(Error::clone).and_then(|tree| tree.hold(candidate));
            let was = std::mem::replace(&mut candidate.state, State::Stuck);
            let block = candidate.block;
            match hold {
                Err(error) => tracing::warn!(
                    "block {block} is not moved, because a snapshot that has it is damaged: {error}"
                ),
                Ok(Some(_)) if record.version < candidate.entry.version => {
                    tracing::warn!("block {block} is not moved: it is older than the BIA says; run fsck");
                }
                Ok(None) if record.version < candidate.entry.version => candidate.state = was,
                Ok(None) => candidate.state = State::Gone,
                Ok(Some((hold, is_written))) => {
                    (candidate.state, candidate.is_written) = (State::Held(hold), is_written);
                    candidate.hosts += 1;
                    let target = match hold {
                        Hold::Node { nid, .. } => Some((nid, 0)),
                        Hold::Nat { first, level } => Some((first, level)),
                        Hold::Checkpoint => None,
                    };
                    has.push((number as u32, target));
                }
            }
        }
        if let Ok(Tree { checkpoint, .. }) = tree
            && !has.is_empty()
        {
            self.trees.push(Hosts { record: record.clone(), checkpoint, has });
        }
    }

    /// Takes those out that stay where they are.
    fn leave_stuck(&mut self, stuck: &mut Vec<u64>) {
        let is_stuck = |candidate: &Candidate| candidate.state == State::Stuck;
        stuck.extend(self.blocks.iter().filter(|one| is_stuck(one)).map(|one| one.block));
        let mut left = 0..;
        let numbers: Vec<Option<u32>> =
            self.blocks.iter().map(|one| if is_stuck(one) { None } else { left.next() }).collect();
        self.blocks.retain(|candidate| !is_stuck(candidate));
        for tree in &mut self.trees {
            let moves = |(number, target): &(u32, _)| Some((numbers[*number as usize]?, *target));
            tree.has = tree.has.iter().filter_map(moves).collect();
        }
        self.trees.retain(|tree| !tree.has.is_empty());
    }

    /// Leaves out what `stays` says of.
    pub(super) fn leave_out(&mut self, stuck: &mut Vec<u64>, stays: impl Fn(&Candidate) -> bool) {
        for candidate in self.blocks.iter_mut().filter(|candidate| stays(candidate)) {
            candidate.state = State::Stuck;
        }
        self.leave_stuck(stuck);
    }

    /// Leaves out the half that most trees have.
    pub(super) fn leave_dearest(&mut self, stuck: &mut Vec<u64>) {
        let mut hosts: Vec<u32> = self.blocks.iter().map(|candidate| candidate.hosts).collect();
        hosts.sort_unstable();
        let Some(most) = hosts.get(hosts.len() / 2).copied() else { return };
        self.leave_out(stuck, |candidate| candidate.hosts >= most);
    }

    /// The blocks that are written anew, but for data: what leads to what moves in any tree, and what moves of that itself.
    pub(super) fn ways(&self, medium: &Medium) -> Result<HashSet<u64>> {
        let mut all = HashSet::new();
        for tree in &self.trees {
            all.insert(tree.checkpoint.block);
            let (targets, nat) = (tree.targets(), tree.checkpoint.body.tree());
            if !targets.is_empty() {
                add_ways(medium, (nat.root, u32::from(nat.height)), 0, &targets, &mut all)?;
            }
        }
        Ok(all)
    }
}

/// Adds what is written anew at and below a block of the NAT, unless another tree has that block, and so all below it.
fn add_ways(
    medium: &Medium,
    (pointer, level): (NodePointer, u32),
    first: u64,
    targets: &Targets,
    all: &mut HashSet<u64>,
) -> Result<()> {
    if !all.insert(pointer.block()) || level == 0 {
        return Ok(());
    }
    let block = medium.block(nat::verify(medium, pointer, 0)?);
    for (place, share) in shares(targets, level, first) {
        let child = (nat::pointer_at(block, place), level - 1);
        add_ways(medium, child, first + place * FANOUT.pow(level - 1), &share, all)?;
    }
    Ok(())
}

/// A snapshot's tree, while it is asked.
struct Tree {
    checkpoint: Checkpoint,
    reader: Reader,
}

impl Tree {
    fn open(core: &Core, record: &Record) -> Result<Tree> {
        let checkpoint = record.checkpoint(&core.medium)?;
        let (tree, nodes) = (checkpoint.body.tree(), checkpoint.body.nodes.get());
        Ok(Tree { checkpoint, reader: Reader::new(core.medium.clone(), tree, core.nodes.hash_key, nodes) })
    }

    /// How the snapshot has a block, if it has it where its entry says; and whether that is as data that was written.
    fn hold(&self, candidate: &Candidate) -> Result<Option<(Hold, bool)>> {
        let (block, entry) = (candidate.block, &candidate.entry);
        let (medium, tree) = (&*self.reader.medium, self.checkpoint.body.tree());
        // The same node as in the snapshot before, which has been looked at.
        if let State::Held(hold @ Hold::Node { nid, block }) = candidate.state
            && self.reader.nat.locate(nid)?.pointer.block() == block
        {
            return Ok(Some((hold, candidate.is_written)));
        }
        let hold = match BlockKind::from_u8(entry.kind) {
            Some(BlockKind::Data) => {
                let Some((nid, pointer)) = data_at(&self.reader, block, entry)? else { return Ok(None) };
                let node = self.reader.nat.locate(nid)?.pointer.block();
                return Ok(Some((Hold::Node { nid, block: node }, pointer.has_data())));
            }
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
                Some(Hold::Nat { first, level })
            }
            Some(BlockKind::Checkpoint) => (self.checkpoint.block == block).then_some(Hold::Checkpoint),
            Some(BlockKind::Snapshots) | None => None,
            Some(_) => match self.reader.any(entry.owner) {
                Ok(view) => (view.block == block).then_some(Hold::Node { nid: entry.owner, block }),
                Err(Error::Stale) => None,
                Err(error) => return Err(error),
            },
        };
        Ok(hold.map(|hold| (hold, false)))
    }
}

/// The node with the pointer to `block`, and the pointer, if `block` is where its entry says.
pub(super) fn data_at(reader: &Reader, block: u64, entry: &Entry) -> Result<Option<(u32, DataPointer)>> {
    let inode = match reader.inode(entry.owner) {
        Ok(inode) if inode.layout() == Layout::Mapped => inode,
        Ok(_) | Err(Error::Stale) => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = index::holder(reader, inode, entry.place)?;
    Ok(found.filter(|(_, pointer)| pointer.block() == block))
}
