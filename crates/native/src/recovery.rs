//! Opening a volume: newest checkpoint, then replay (Shortcut-JFS §III.B). Nothing is scanned but the SIT and the log.
//!
//! Recovery can itself be cut short anywhere: until its own checkpoint is published it only repeats what a published
//! journal says, rewrites bytes in place that the log holds, and writes to blocks that nothing reaches.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nvm::Region;
use vfs::ROOT_INO;

use crate::allocator::Allocator;
use crate::checkpoint::{Body, Checkpoint};
use crate::core::{Core, NextLog, Publisher};
use crate::error::check_writable;
use crate::fault::{Fault, planted};
use crate::geometry::Medium;
use crate::hints::Hints;
use crate::journal::Journal;
use crate::kept::Kept;
use crate::nodes::Nodes;
use crate::reader::Reader;
use crate::replay::replay;
use crate::scan::Log;
use crate::superblock::{Left, Root, Superblock};
use crate::{Error, MountOptions, Recovery, inspect};

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
        root.write_next(&medium.region, successor.block, Left::InUse).ignore();
        checkpoint = successor;
    }
    Ok((root, checkpoint))
}

/// What to do if a transaction of the log is missing or can't be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Mount with everything before it, and change nothing.
    Keep,
    /// Open nothing, and change nothing.
    Refuse,
    /// Let go of it and of all that follow; and of a hidden directory that is damaged.
    Drop,
}

/// Opens the volume that `superblock` describes, and removes what a crash left without a name. One that is only to be read is recovered
/// first, where its zone can be written to; from then on nothing is changed.
pub(crate) fn open(
    region: Region,
    superblock: &Superblock,
    options: &MountOptions,
    rest: Rest,
) -> std::result::Result<(Core, Recovery), Error> {
    if !options.read_only || region.is_read_only() || !inspect::needs_recovery(&region)? {
        return open_as_it_is(region, superblock, options, rest);
    }
    let writing = MountOptions { read_only: false, background: false, ..options.clone() };
    let (core, recovery) = open_as_it_is(region.clone(), superblock, &writing, rest)?;
    if core.failure().is_some() {
        return Ok((core, recovery)); // it can only be read
    }
    core.finish()?;
    drop(core);
    let (core, _) = open_as_it_is(region, superblock, options, rest)?;
    Ok((core, recovery))
}

fn open_as_it_is(
    region: Region,
    superblock: &Superblock,
    options: &MountOptions,
    rest: Rest,
) -> std::result::Result<(Core, Recovery), Error> {
    let began = Instant::now();
    check_root(&region, superblock)?;
    let (core, mut recovery) = open_bare(region, superblock, options, rest)?;
    if !options.read_only && core.failure().is_none() {
        let orphans = match core.orphan_list() {
            _ if planted(Fault::OrphanNotReclaimed) => Vec::new(),
            Ok(orphans) => orphans,
            Err(_) if rest == Rest::Drop => core.renew_orphans()?,
            Err(error) => {
                // The files with names are not to suffer for it.
                tracing::error!(
                    "the hidden directory is damaged: inodes without a name stay, and an open file keeps its last name; \
                     `amberfs fsck --repair` makes it anew: {error}"
                );
                Vec::new()
            }
        };
        for orphan in orphans {
            match core.reclaim(orphan) {
                Ok(()) => recovery.orphans_reclaimed += 1,
                Err(vfs::Error::NoSpace) => core.owes_reclaims.store(true, Ordering::Relaxed),
                // It keeps its space; the files with names are not to suffer for it.
                Err(error) => tracing::error!("inode {orphan}, which has no name, stays: {error}"),
            }
        }
    }
    recovery.duration = began.elapsed();
    Ok((core, recovery))
}

/// An error if the root directory's inode cannot be read: nothing is stored to a volume that cannot be used.
fn check_root(region: &Region, superblock: &Superblock) -> std::result::Result<(), Error> {
    let medium = Arc::new(Medium { region: region.clone(), geometry: superblock.geometry() });
    let checkpoint = Checkpoint::read(&medium, Root::read(region)?.checkpoint.get())?;
    let (tree, nodes) = (checkpoint.body.tree(), checkpoint.body.nodes.get());
    Reader::new(medium, tree, superblock.hash_key(), nodes).inode(ROOT_INO as u32)?;
    Ok(())
}

/// The nodes of a checkpoint, for an epoch of `version` behind the newest snapshot's, `kept`.
fn nodes_at(
    medium: &Arc<Medium>,
    body: &Body,
    key: [u64; 2],
    (version, kept): (u32, u32),
    options: &MountOptions,
) -> Nodes {
    let shares = options.shares();
    let mut allocator = Allocator::open(medium.clone(), version, kept, body.blocks.get());
    allocator.keep_to(shares.maps);
    let tree = (body.tree(), body.version.get());
    let mut reader = Reader::kept(medium.clone(), tree, key, body.nodes.get(), shares.nat);
    // A bucket has some 80 names, and a direct node 510 blocks.
    reader.inode_hints = Hints::new(shares.hints - shares.hints / 16);
    reader.bucket_hints = Hints::new(shares.hints / 32);
    reader.leaf_hints = Hints::new(shares.hints / 32);
    Nodes::new(reader, allocator, version, body.next_nid.get(), body.inodes.get(), shares.roomy)
}

/// Opens the volume that `superblock` describes, which may not have directories yet.
pub(crate) fn open_bare(
    region: Region,
    superblock: &Superblock,
    options: &MountOptions,
    rest: Rest,
) -> std::result::Result<(Core, Recovery), Error> {
    if !options.read_only {
        check_writable(&region, "change the volume")?;
    }
    let mounted = region.claim().ok_or(Error::Mounted)?;
    let medium = Arc::new(Medium { region, geometry: superblock.geometry() });
    let (mut root, checkpoint) = newest(&medium, options.read_only)?;
    let was_clean = root.left() != Left::InUse;
    let published = checkpoint.body.version.get();
    let key = superblock.hash_key();
    let log = Log::read(&medium, key, &root, (published, checkpoint.body.sequence.get()));
    if let Some(what) = &log.lost_header {
        tracing::warn!("{what}");
    }
    if options.read_only && (!was_clean || log.has_transactions()) {
        return Err(Error::NeedsRecovery);
    }
    let version = log.version().max(published) + 1;
    if !options.read_only {
        root.mounts = (root.mounts.get() + 1).into();
        root.write_next(&medium.region, checkpoint.block, Left::InUse).ignore();
        // What is seen now may have been stored and not flushed, if the server died and not the power.
        medium.region.fence(log.flush(&medium)).ignore();
    }
    let body = checkpoint.body;
    let (kept, damage) = Kept::of_newest(&medium, &checkpoint);
    if let Some(error) = damage {
        tracing::error!(
            "{error}; until `amberfs fsck --repair` has mended the list of snapshots, those that can be read are shown, none is \
             taken, removed or changed, and what was there before keeps its space when it is deleted"
        );
    }
    let at_checkpoint = || Ok(nodes_at(&medium, &body, key, (version, kept.newest()), options));
    let replayed = replay(at_checkpoint, &log)?;
    let replayed_bytes = log.transactions[..replayed.count].iter().map(|it| it.items.len() as u64).sum();
    let last = replayed.count.checked_sub(1).map(|index| log.transactions[index].number);
    let left_out = log.next.saturating_sub(last.map_or(body.sequence.get(), |last| last + 1)).max(1);
    let recovery = Recovery {
        was_clean,
        transactions_replayed: replayed.count as u64,
        log_bytes_replayed: replayed_bytes,
        transactions_left_out: if replayed.stopped.is_some() { left_out } else { 0 },
        ..Recovery::default()
    };
    let (next, has_log) = (log.next, log.has_transactions());
    let journal = Journal::new(medium.clone(), options.durability, key, root.mounts.get(), next);
    let publisher = Publisher { root, newest: checkpoint };
    let core = Core::new(medium.clone(), replayed.nodes, journal, publisher, kept, options.clone(), mounted);
    match replayed.stopped {
        Some(error) if rest == Rest::Refuse => return Err(error.into()),
        Some(error) if rest == Rest::Keep => core.fail_at_mount(&error, &recovery),
        _ if options.read_only => {}
        // Also if its only transaction was left out: then it must not be met again.
        _ if has_log && planted(Fault::LogBegunTooEarly) => core.checkpoint(NextLog::WithEpoch)?,
        _ if has_log => core.checkpoint(NextLog::OncePublished)?,
        _ => core.begin_log(version),
    }
    core.check_versions();
    Ok((core, recovery))
}

/// Brings an unmounted volume that crashed to its newest state, as mounting it would. What of its log can't be
/// replayed is an error, or dropped. Returns how many transactions were.
pub(crate) fn recover(region: &Region, rest: Rest) -> std::result::Result<u64, Error> {
    let superblock = Superblock::read(region)?;
    let options = MountOptions::default();
    let (core, recovery) = open(region.clone(), &superblock, &options, rest)?;
    core.finish()?;
    Ok(recovery.transactions_left_out)
}

/// Publishes another checkpoint of a clean volume, which reaches `blocks` blocks, whatever the newest one says.
pub(crate) fn recount(region: &Region, blocks: u64) -> std::result::Result<(), Error> {
    let superblock = Superblock::read(region)?;
    let options = MountOptions::default();
    let (core, _) = open(region.clone(), &superblock, &options, Rest::Keep)?;
    core.nodes.allocator.recount(blocks);
    core.checkpoint(NextLog::OncePublished)?;
    Ok(core.finish()?)
}

/// Publishes a checkpoint of a clean volume with this list of snapshots, whatever the newest one's is.
pub(crate) fn replace_list(region: &Region, kept: Kept) -> std::result::Result<(), Error> {
    let superblock = Superblock::read(region)?;
    let options = MountOptions::default();
    let (core, _) = open(region.clone(), &superblock, &options, Rest::Keep)?;
    core.check_changeable()?;
    *core.snapshots.write() = kept;
    Ok(core.finish()?)
}
