//! Checkpoints: the block that is the root of one, and how one is made and published (HMFS §3.2).
//!
//! Making a checkpoint has two parts. First everything it reaches is written: node copies flushed, data changed in
//! place flushed, new NAT blocks, the SIT journal, the checkpoint block, and its address in its predecessor. Then one
//! atomic store of the predecessor's state byte publishes it: from there on, recovery goes forward. What remains
//! (SIT entries, the root slot) follows from the journal and can be done any number of times.

use std::ops::Range;

use nvm::{Durable, Flushed, Purpose};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::allocator::Frozen;
use crate::bia::BlockKind;
use crate::checksum;
use crate::error::corrupt;
use crate::fault::{self, Fault, planted};
use crate::geometry::{BLOCK, Medium, NUMBERS, VERSIONS};
use crate::nat::{self, Became, MAX_HEIGHT, Merge, NID_BITS, Tree};
use crate::node;
use crate::nodes::Nodes;
use crate::pointer::NodePointer;
use crate::record::Item;
use crate::scan;
use crate::sit;

/// Offset of the state word in a checkpoint block. The first line has what changes after the block is written.
const STATE: u64 = 0;
/// Offset of the successor's block number.
const NEXT: u64 = 8;
const BODY: u64 = 64;
/// This is the newest checkpoint.
const NORMAL: u64 = 1;
/// The successor is published; its journal may not have been settled.
const CHANGING: u64 = 2;
const KIND: u32 = u32::from_le_bytes(*b"CHKP");

/// What a checkpoint block says, from byte 64 on.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct Body {
    /// CRC-32C of all that follows and of the block's number.
    crc: U32,
    /// Guards against a misdirected read.
    kind: U32,
    pub(crate) version: U32,
    pub(crate) nat_height: U32,
    /// Root of the NAT index tree.
    nat_root: U64,
    /// NIDs from here on were never used.
    pub(crate) next_nid: U32,
    /// Entries in the SIT journal.
    pub(crate) journal_entries: U32,
    pub(crate) journal_crc: U32,
    /// The predecessor's version.
    pub(crate) previous: U32,
    pub(crate) inodes: U32,
    pub(crate) nodes: U32,
    /// Sequence number of the first transaction that is not in this checkpoint.
    pub(crate) sequence: U64,
    /// Seconds since the epoch.
    pub(crate) time: U64,
    /// Index of the list of snapshots.
    snapshots: U64,
    /// Blocks that the checkpoint reaches, its own included.
    pub(crate) blocks: U64,
    reserved: [u8; 48],
}
const _: () = assert!(size_of::<Body>() == 128);

impl Body {
    fn checksum(&self, block: u64) -> u32 {
        checksum::append(checksum::of(&block.to_le_bytes()), &self.as_bytes()[4..])
    }

    fn write(&self, medium: &Medium, block: u64) -> Flushed {
        let mut bytes = [0; BODY as usize + size_of::<Body>()];
        bytes[..8].copy_from_slice(&NORMAL.to_le_bytes());
        bytes[BODY as usize..].copy_from_slice(self.as_bytes());
        let (region, at) = (&medium.region, block * BLOCK);
        fault::stream(region, Fault::CheckpointNotSent, Purpose::Metadata, at, &bytes)
    }

    /// What another checkpoint of the same tree records, which follows none.
    pub(crate) fn facts(&self) -> Facts {
        Facts {
            version: self.version.get(),
            previous: 0,
            next_nid: self.next_nid.get(),
            inodes: self.inodes.get(),
            nodes: self.nodes.get(),
            sequence: self.sequence.get(),
            blocks: self.blocks.get(),
        }
    }

    pub(crate) fn tree(&self) -> Tree {
        Tree { root: NodePointer(self.nat_root.get()), height: self.nat_height.get() as u8 }
    }

    /// The index of the list of snapshots. That of a checkpoint that is not the newest means nothing any more.
    pub(crate) fn snapshots(&self) -> NodePointer {
        NodePointer(self.snapshots.get())
    }
}

/// What a new checkpoint records beside its tree and journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) version: u32,
    pub(crate) previous: u32,
    pub(crate) next_nid: u32,
    pub(crate) inodes: u32,
    pub(crate) nodes: u32,
    pub(crate) sequence: u64,
    pub(crate) blocks: u64,
}

/// What an epoch changed.
pub(crate) struct Changes<'a> {
    /// The tree that the changes are to be merged into.
    pub(crate) base: Tree,
    /// NIDs ascending, each with what became of its node.
    pub(crate) nodes: &'a [(u32, Became)],
    /// NIDs, ascending, on whose account the blocks of the NAT above them are written anew, changed or not.
    pub(crate) touched: &'a [u32],
    /// Where in the log transactions are that changed data in place.
    pub(crate) in_place: &'a [Range<u64>],
}

/// A checkpoint block, verified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint {
    pub(crate) block: u64,
    pub(crate) body: Body,
}

impl Checkpoint {
    /// Reads and verifies the checkpoint at `block`.
    pub(crate) fn read(medium: &Medium, block: u64) -> vfs::Result<Checkpoint> {
        medium.check_main("root slot", 2, format_args!("checkpoint"), block)?;
        let body: Body = medium.region.load(block * BLOCK + BODY);
        if body.kind.get() != KIND {
            return Err(corrupt("checkpoint", block, "kind", body.kind.get(), KIND));
        }
        if body.checksum(block) != body.crc.get() {
            return Err(corrupt("checkpoint", block, "checksum", "wrong", "right"));
        }
        let (height, rootless) = (body.nat_height.get(), body.tree().root.is_null());
        if height > u32::from(MAX_HEIGHT) || (height == 0 && !rootless) {
            return Err(corrupt("checkpoint", block, "NAT height", height, "one that fits its root"));
        }
        if !(1..VERSIONS).contains(&body.version.get())
            || !(node::FIRST_NID..=1 << NID_BITS).contains(&body.next_nid.get())
            || body.sequence.get() >= NUMBERS
        {
            return Err(corrupt(
                "checkpoint",
                block,
                "version, next NID or number of a transaction",
                "impossible",
                "possible",
            ));
        }
        Ok(Checkpoint { block, body })
    }

    /// The successor, if it was published.
    pub(crate) fn successor(&self, medium: &Medium) -> vfs::Result<Option<Checkpoint>> {
        match medium.region.load_u64(self.block * BLOCK + STATE) {
            NORMAL => return Ok(None),
            CHANGING => {}
            other => return Err(corrupt("checkpoint", self.block, "state", other, "normal or changing")),
        }
        let next = medium.region.load_u64(self.block * BLOCK + NEXT);
        medium.check_main("checkpoint", self.block, format_args!("successor"), next)?;
        Checkpoint::read(medium, next).map(Some)
    }

    /// Makes durable what this block says now: after the death of a server, as opposed to a power cut, it may have been
    /// stored and not flushed.
    pub(crate) fn persist_state(&self, medium: &Medium) -> Durable {
        medium.region.fence(medium.region.flush(Purpose::Metadata, self.block * BLOCK, BODY))
    }

    /// Does what follows from the checkpoint's journal, after a crash.
    pub(crate) fn settle_again(&self, medium: &Medium) -> vfs::Result<Durable> {
        let entries =
            sit::read_journal(medium, self.body.journal_entries.get(), self.body.journal_crc.get())?;
        Ok(medium.region.fence(sit::settle(medium, &entries)))
    }

    /// Writes the same checkpoint to another block, with a tree that has moved; unfenced.
    pub(crate) fn write_again(&self, medium: &Medium, block: u64, tree: Tree) -> Flushed {
        let mut body = Body { nat_root: tree.root.0.into(), ..self.body };
        body.crc = body.checksum(block).into();
        body.write(medium, block)
    }

    /// Writes a checkpoint block, unfenced.
    pub(crate) fn write(
        medium: &Medium,
        block: u64,
        tree: Tree,
        snapshots: NodePointer,
        facts: &Facts,
        journal: (u32, u32),
    ) -> (Checkpoint, Flushed) {
        let mut body = Body {
            crc: 0.into(),
            kind: KIND.into(),
            version: facts.version.into(),
            nat_height: u32::from(tree.height).into(),
            nat_root: tree.root.0.into(),
            next_nid: facts.next_nid.into(),
            journal_entries: journal.0.into(),
            journal_crc: journal.1.into(),
            previous: facts.previous.into(),
            inodes: facts.inodes.into(),
            nodes: facts.nodes.into(),
            sequence: facts.sequence.into(),
            time: (vfs::Time::now().sec as u64).into(),
            snapshots: snapshots.0.into(),
            blocks: facts.blocks.into(),
            reserved: [0; 48],
        };
        body.crc = body.checksum(block).into();
        (Checkpoint { block, body }, body.write(medium, block))
    }
}

/// By NID, ascending: what is to point to each node that was changed or touched. Those that were changed are on their way.
fn new_pointers(medium: &Medium, changed: &Changes<'_>) -> vfs::Result<(Vec<(u32, NodePointer)>, Flushed)> {
    let mut flushed = Flushed::none();
    let mut pointers = Vec::with_capacity(changed.nodes.len());
    for (index, &(nid, became)) in changed.nodes.iter().enumerate() {
        // They are as many as an epoch changed, so the caches have lost most of them.
        for (ahead, ask) in [(4, node::ask as fn(&Medium, u64)), (2, node::ask_all)] {
            if let Some((_, Became::Changed(soon))) = changed.nodes.get(index + ahead) {
                ask(medium, *soon);
            }
        }
        let pointer = match became {
            Became::Nothing => NodePointer::default(),
            Became::Sealed(pointer) => {
                debug_assert!(
                    node::checksum_in(medium, pointer.block()).is_some_and(|crc| pointer.matches(crc))
                );
                pointer
            }
            Became::Changed(block) => {
                let crc = node::checksum_in(medium, block).ok_or_else(|| {
                    corrupt(&format!("node {nid}"), block, "length", "impossible", "possible")
                })?;
                flushed = flushed.and(node::flush(medium, block));
                NodePointer::new(block, crc)
            }
        };
        pointers.push((nid, pointer));
    }
    for nid in changed.touched {
        if let Err(place) = pointers.binary_search_by_key(nid, |(nid, _)| *nid) {
            pointers.insert(place, (*nid, nat::pointer_to(medium, changed.base, *nid, 0)?));
        }
    }
    Ok((pointers, flushed))
}

/// All of the first part: after this, only the state byte separates the checkpoint from being the newest.
/// `list` brings the list of snapshots up to date, given the checkpoint's tree and block.
/// Returns it with its journal and the proof that all of it is durable.
pub(crate) fn prepare(
    nodes: &Nodes,
    predecessor: &Checkpoint,
    frozen: &mut Frozen,
    changed: &Changes<'_>,
    list: impl FnOnce(&mut Frozen, Tree, u64) -> vfs::Result<(NodePointer, Flushed)>,
    facts: &Facts,
) -> vfs::Result<(Checkpoint, Vec<sit::JournalEntry>, Durable)> {
    let medium = &*nodes.medium;
    let (changes, sent) = new_pointers(medium, changed)?;
    let mut flushed = flush_data(medium, changed.in_place).and(sent);
    let mut merge = Merge {
        medium,
        allocator: &nodes.allocator,
        frozen,
        version: facts.version,
        flushed: Flushed::none(),
    };
    let tree = merge.run(changed.base, &changes)?;
    flushed = flushed.and(merge.flushed);
    let block = nodes.allocator.allocate_into(frozen, BlockKind::Checkpoint, facts.version, (0, 0))?;
    if !planted(Fault::PredecessorNotFreed) {
        nodes.allocator.free_from(frozen, predecessor.block);
    }
    let (snapshots, listed) = list(frozen, tree, block)?;
    flushed = flushed.and(listed);
    for (segment, new) in frozen.newly_valid() {
        flushed = flushed.and(sit::flush_soft(medium, segment, &new));
    }
    if planted(Fault::FrozenTooLate) {
        nodes.allocator.freeze_again(frozen);
    }
    let entries = frozen.journal(facts.version);
    let (crc, journaled) = sit::write_journal(medium, &entries);
    let journal = (entries.len() as u32, crc);
    let facts = Facts { blocks: frozen.reached(), ..*facts };
    let (checkpoint, written) = Checkpoint::write(medium, block, tree, snapshots, &facts, journal);
    let at = predecessor.block * BLOCK + NEXT;
    medium.region.store_u64(Purpose::Metadata, at, block);
    let linked = medium.region.flush(Purpose::Metadata, at, 8);
    let flushed = flushed.and(journaled).and(written).and(linked);
    let durable = fault::fence(&medium.region, Fault::PrepareFence, flushed);
    medium.check_media()?;
    Ok((checkpoint, entries, durable))
}

/// Publishes: the predecessor's state byte changes, and with it what recovery finds.
pub(crate) fn publish(medium: &Medium, predecessor: &Checkpoint, _prepared: Durable) -> Durable {
    let (region, at) = (&medium.region, predecessor.block * BLOCK + STATE);
    region.store_u64(Purpose::Metadata, at, CHANGING);
    let flushed = fault::flush(region, Fault::PublishNotFlushed, Purpose::Metadata, at, 8);
    fault::fence(region, Fault::PublishFence, flushed)
}

/// Flushes the data blocks that transactions changed in place (Shortcut-JFS §III.A: out-place checkpointing of
/// differences, which here were rewritten when they were committed). `log` says where in the log these are.
fn flush_data(medium: &Medium, log: &[Range<u64>]) -> Flushed {
    let mut flushed = Flushed::none();
    for range in log {
        scan::each_written(medium, range, |item| {
            if let Item::Bytes { block, offset, bytes, .. } = *item {
                let at = block * BLOCK + u64::from(offset);
                let (region, length) = (&medium.region, bytes.len() as u64);
                let sent = fault::flush(region, Fault::InPlaceNotFlushed, Purpose::Checkpoint, at, length);
                flushed = std::mem::replace(&mut flushed, Flushed::none()).and(sent);
            }
        });
    }
    flushed
}
