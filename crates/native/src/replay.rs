//! Replaying the log: applying what the newest checkpoint does not have (Shortcut-JFS §III.B).

use crate::allocator::Urgency;
use crate::apply;
use crate::fault::{Fault, planted};
use crate::inode::nid_of;
use crate::nodes::Nodes;
use crate::record::{Item, Items};
use crate::scan::{Committed, Log};

/// The volume's state after replay.
pub(crate) struct Replayed {
    pub(crate) nodes: Nodes,
    /// Transactions applied.
    pub(crate) count: usize,
    /// Why the rest of the log was not: its next transaction is missing, or can't be applied.
    pub(crate) stopped: Option<vfs::Error>,
}

/// A transaction, by its place in the log, that cannot be applied.
struct Stuck {
    index: usize,
    error: vfs::Error,
}

/// Applies the log to the checkpoint that `open` opens: all of it, or if a transaction cannot be applied, all before
/// that one, on the checkpoint opened again. Until a checkpoint is published nothing of it is lost, and all of it can
/// be repeated.
pub(crate) fn replay(open: impl Fn() -> vfs::Result<Nodes>, log: &Log<'_>) -> vfs::Result<Replayed> {
    let mut transactions = &log.transactions[..];
    let mut stopped = log.broken.clone();
    loop {
        let nodes = open()?;
        let attempt = claim(&nodes, transactions).and_then(|()| apply_all(&nodes, transactions));
        nodes.medium.check_media()?;
        match attempt {
            Ok(()) => return Ok(Replayed { nodes, count: transactions.len(), stopped }),
            // No fault of the transaction: segments whose SIT entries are damaged give no room before they are mended.
            Err(Stuck { error: error @ (vfs::Error::NoSpace | vfs::Error::Io(_)), .. }) => return Err(error),
            Err(Stuck { index, error }) => {
                let number = transactions[index].number;
                stopped = Some(vfs::Error::Corrupt(format!(
                    "transaction {number} of the log cannot be applied: {error}"
                )));
                transactions = &transactions[..index];
            }
        }
    }
}

/// Takes every block and number that the log says is in use, so that applying it does not hand them out again; and looks
/// at every item before any is applied.
fn claim(nodes: &Nodes, transactions: &[Committed<'_>]) -> Result<(), Stuck> {
    let mut created = std::collections::HashSet::new();
    for (index, transaction) in transactions.iter().enumerate() {
        for item in Items(transaction.items) {
            let item = item.map_err(|_| Stuck { index, error: apply::malformed(nodes) })?;
            match item {
                Item::Map { ino, index: place, count, pointer } => {
                    for n in 0..u64::from(count) {
                        let (block, at) = (pointer.plus(n).block(), nodes.medium.geometry.log_start);
                        nodes
                            .medium
                            .check_main("log", at, format_args!("data block"), block)
                            .map_err(|error| Stuck { index, error })?;
                        if !planted(Fault::ReplayWithoutClaims) {
                            nodes.allocator.claim(block, ino, place + n);
                        }
                    }
                }
                Item::Bytes { block, .. } => {
                    apply::check_block(nodes, block).map_err(|error| Stuck { index, error })?;
                }
                Item::Create { ino, .. } => {
                    created.insert(nid_of(ino));
                }
                _ => {}
            }
        }
    }
    if !planted(Fault::NumbersNotClaimed) {
        nodes.begin_replay(created);
    }
    Ok(())
}

fn apply_all(nodes: &Nodes, transactions: &[Committed<'_>]) -> Result<(), Stuck> {
    let budget = nodes
        .allocator
        .reserve(0, Urgency::Checkpoint)
        .ok_or(Stuck { index: 0, error: vfs::Error::NoSpace })?;
    let last = transactions.len().saturating_sub(1);
    for index in 0..transactions.len() {
        let index = if planted(Fault::ReplayedBackwards) { last - index } else { index };
        apply::replay(nodes, &budget, transactions[index].items).map_err(|error| Stuck { index, error })?;
    }
    nodes.end_replay();
    Ok(())
}
