//! Opening a volume: newest checkpoint, then replay (Shortcut-JFS §III.B). Nothing is scanned but the SIT and the log.
//!
//! Recovery can itself be cut short anywhere: until its own checkpoint is published it only repeats what a published
//! journal says, rewrites bytes in place that the log holds, and writes to blocks that nothing reaches.

use std::sync::Arc;
use std::time::Instant;

use nvm::{Flushed, Region};
use vfs::Result;

use crate::allocator::{Allocator, Urgency};
use crate::apply::{self, InPlace};
use crate::checkpoint::Checkpoint;
use crate::core::{Core, NextLog, Publisher};
use crate::geometry::Medium;
use crate::inode::nid_of;
use crate::journal::{Committed, Journal, Records};
use crate::nat::Nat;
use crate::node::Nodes;
use crate::record::{Item, Items};
use crate::superblock::{Root, Superblock};
use crate::{Error, MountOptions, Recovery};

/// The newest checkpoint of an unopened volume and the root slot that leads to it. If its publishing was cut short,
/// that is finished first, unless `read_only`.
pub(crate) fn newest(medium: &Medium, read_only: bool) -> std::result::Result<(Root, Checkpoint), Error> {
    let mut root = Root::read(&medium.region)?;
    let mut checkpoint = Checkpoint::read(medium, root.checkpoint.get())?;
    if let Some(successor) = checkpoint.successor(medium)? {
        if read_only {
            return Err(Error::NeedsRecovery);
        }
        // What is seen now decides: make it durable before acting on it.
        checkpoint.persist_state(medium).ignore();
        successor.settle_again(medium)?.ignore();
        root.write_next(&medium.region, successor.block, false).ignore();
        checkpoint = successor;
    }
    Ok((root, checkpoint))
}

/// Opens the volume that `superblock` describes, and removes what a crash left without a name.
pub(crate) fn open(
    region: Region,
    superblock: &Superblock,
    options: &MountOptions,
) -> std::result::Result<(Core, Recovery), Error> {
    let began = Instant::now();
    let (core, mut recovery) = open_bare(region, superblock, options)?;
    if !options.read_only {
        for orphan in core.orphan_list()? {
            match core.reclaim(orphan) {
                Ok(()) => recovery.orphans_reclaimed += 1,
                // It keeps its space; the files with names are not to suffer for it.
                Err(error) => tracing::error!("inode {orphan}, which has no name, stays: {error}"),
            }
        }
    }
    recovery.duration = began.elapsed();
    Ok((core, recovery))
}

/// Opens the volume that `superblock` describes, which may not have directories yet.
pub(crate) fn open_bare(
    region: Region,
    superblock: &Superblock,
    options: &MountOptions,
) -> std::result::Result<(Core, Recovery), Error> {
    let mounted = region.claim().ok_or(Error::Mounted)?;
    let medium = Arc::new(Medium { region, geometry: superblock.geometry() });
    let (mut root, checkpoint) = newest(&medium, options.read_only)?;
    let was_clean = root.clean.get() == 1;
    let published = checkpoint.body.version.get();
    let records = Records::since(&medium, published)?;
    let has_log = records.iter().any(|half| half.clone().next().is_some());
    if options.read_only && (!was_clean || has_log) {
        return Err(Error::NeedsRecovery);
    }
    let version = records.iter().map(|half| half.header.version.get()).max().unwrap_or(0).max(published) + 1;
    if !options.read_only {
        root.mounts = (root.mounts.get() + 1).into();
        root.write_next(&medium.region, checkpoint.block, false).ignore();
    }
    let allocator = Allocator::open(medium.clone(), version);
    let nat = Nat::new(medium.clone(), checkpoint.body.tree());
    let hash_key = [superblock.hash_key[0].get(), superblock.hash_key[1].get()];
    let body = &checkpoint.body;
    let counts = (body.nodes.get(), body.inodes.get());
    let nodes = Nodes::new(medium.clone(), nat, allocator, hash_key, version, body.next_nid.get(), counts);
    let mut recovery = Recovery { was_clean, ..Recovery::default() };
    let sequence = replay(&nodes, records, body.sequence.get(), &mut recovery)?;
    let journal = Journal::new(medium.clone(), options.durability, root.mounts.get(), sequence);
    let publisher = Publisher { root, newest: checkpoint };
    let core = Core::new(medium, nodes, journal, publisher, options.clone(), mounted);
    if !options.read_only {
        if has_log {
            // Also if its only transaction was dropped: then it must not be met again.
            core.checkpoint(NextLog::OncePublished)?;
        } else {
            core.journal.begin(version);
        }
    }
    Ok((core, recovery))
}

/// Applies all committed transactions that the checkpoint does not have; returns the sequence number that comes next.
fn replay(
    nodes: &Nodes,
    halves: Vec<Records<'_>>,
    mut sequence: u64,
    recovery: &mut Recovery,
) -> Result<u64> {
    let mut largest = 0;
    let flushed = halves.iter().map(|half| half.flush(&nodes.medium)).fold(Flushed::none(), Flushed::and);
    // First claim what the log says is in use, so that applying it does not hand it out again.
    let transactions = committed(nodes, halves, &mut sequence);
    // What is seen now may have been stored and not flushed, if the server died and not the power.
    nodes.medium.region.fence(flushed).ignore();
    for transaction in &transactions {
        for item in Items(transaction.items) {
            match item.map_err(|_| apply::malformed(nodes))? {
                Item::Map { ino, index, count, pointer } if !pointer.is_hole() => {
                    for n in 0..u64::from(count) {
                        let block = pointer.plus(n).block();
                        nodes.medium.check_main(
                            "log",
                            nodes.medium.geometry.log_start,
                            format_args!("data block"),
                            block,
                        )?;
                        nodes.allocator.claim(block, ino, index + n);
                    }
                }
                Item::Create { ino, .. } => largest = largest.max(nid_of(ino)),
                _ => {}
            }
        }
    }
    nodes.begin_replay(largest);
    let budget = nodes.allocator.reserve(0, Urgency::Checkpoint).ok_or(vfs::Error::NoSpace)?;
    for transaction in &transactions {
        apply::apply(nodes, &budget, transaction.items, InPlace::Now)?;
        recovery.transactions_replayed += 1;
        recovery.log_bytes_replayed += transaction.items.len() as u64;
    }
    nodes.end_replay();
    nodes.medium.check_media()?;
    Ok(sequence)
}

/// All transactions of the log, oldest first, without a last one whose data did not arrive. Moves `sequence` on
/// to the number that comes next.
fn committed<'a>(nodes: &Nodes, halves: Vec<Records<'a>>, sequence: &mut u64) -> Vec<Committed<'a>> {
    let mut transactions = Vec::new();
    for mut half in halves {
        transactions.extend(half.by_ref());
        *sequence = (*sequence).max(half.sequence());
    }
    match transactions.last() {
        Some(last) if !last.has_its_data(&nodes.medium) => drop(transactions.pop()),
        Some(last) => nodes.medium.region.fence(last.flush_data(&nodes.medium)).ignore(),
        None => {}
    }
    transactions
}
