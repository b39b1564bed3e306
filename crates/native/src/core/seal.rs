//! Sealing: nodes that an epoch changed and then left alone are made ready for its checkpoint while the epoch still runs,
//! so that whoever takes a snapshot waits for little more than what was changed last.
//!
//! A *seal* is what is to point to a node's copy of the running epoch, all of which is durable. It counts for as long as
//! nobody changes the copy:
//! - It is put on while no operation runs: all lanes are held for as long as it takes to mark some nodes in the NAT's cache.
//!   So whoever changes a node looks at its entry behind that, and finds that the copy is not his to change.
//! - He breaks the seal, which is forgotten then ([`crate::nodes::Nodes::copy`]), and changes the same copy.
//! - Checksum and flushes come behind the mark, beside operations. What they saw of a node that was being changed says
//!   nothing, and is not kept: its seal is broken before there is one.
//! - An epoch does not end meanwhile: who seals keeps checkpoints from being made.
//!
//! A node that is changed again and again is sealed a few times, and then left to the checkpoint.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nvm::{Flushed, PersistMethod};
use parking_lot::MutexGuard;

use super::Core;
use crate::node;
use crate::pointer::NodePointer;

/// Nodes sealed at a time: operations wait while they are marked, who makes a checkpoint until they are durable.
const BATCH: usize = 64;
/// Those copied last, or changed behind a seal, are left alone: many are changed again at once, as a block of inodes is by each file
/// that is made.
const YOUNGEST: usize = 32;

/// After some nodes nobody seals for so long. Thus it takes a few percent of a processor at most; and of what is changed again
/// and again in a burst, little is sealed before it is over.
const PAUSE: Duration = Duration::from_millis(2);

/// When nodes are to be sealed.
pub(super) struct Sealing {
    /// Somebody does so whenever he is asked to.
    is_on: bool,
    /// He has been.
    asked: AtomicBool,
}

impl Sealing {
    pub(super) fn new(method: PersistMethod, background: bool) -> Sealing {
        // By msync each fence is a write to a disk, and a page that is changed again is written again.
        Sealing { is_on: background && method != PersistMethod::Msync, asked: AtomicBool::new(false) }
    }
}

impl Core {
    fn has_to_seal(&self) -> bool {
        self.nodes.nat.unsealed_count() >= YOUNGEST + BATCH
    }

    /// Asks for nodes to be sealed, if there are enough and nobody has asked.
    #[inline]
    pub(super) fn ask_to_seal(&self) {
        let sealing = &self.sealing;
        if self.has_to_seal() && sealing.is_on && !sealing.asked.load(Relaxed) {
            sealing.asked.store(true, Relaxed);
            self.pressure.raise_seals();
        }
    }

    /// Seals what the running epoch has changed, but for what was copied last, with pauses; until a checkpoint is wanted,
    /// or `due`.
    pub(crate) fn seal_older(&self, due: Option<Instant>) {
        while self.has_to_seal() && self.seal_some(YOUNGEST) {
            let pause = Instant::now() + PAUSE;
            let pause = due.map_or(pause, |due| due.min(pause));
            if self.pressure.wants_checkpoint_by(pause) || due == Some(pause) {
                break;
            }
        }
        self.sealing.asked.store(false, Relaxed);
    }

    /// Seals all that the running epoch has changed.
    pub(crate) fn seal_all(&self) {
        while self.seal_some(0) {}
    }

    /// Seals some nodes, but for the `youngest`; whether there were any.
    fn seal_some(&self, youngest: usize) -> bool {
        if self.options.read_only || self.failure().is_some() {
            return false;
        }
        let (medium, nat) = (&*self.medium, &self.nodes.nat);
        let publisher = self.publisher();
        let _op = nvm::operation("seal");
        let _unwinding = self.watch_over();
        let mut nodes = nat.take_unsealed(BATCH, youngest);
        let has_some = !nodes.is_empty();
        let version = self.nodes.version();
        if has_some {
            let _nobody = self.lanes.all();
            let _unwinding = self.watch_over();
            nodes.retain(|(nid, block)| nat.mark_sealed(*nid, *block, version));
        }
        let mut sent = Flushed::none();
        let mut seals = Vec::with_capacity(nodes.len());
        for (index, &(nid, block)) in nodes.iter().enumerate() {
            if let Some((_, soon)) = nodes.get(index + 2) {
                node::ask(medium, *soon);
            }
            if let Some((crc, flushed)) = node::checksum_and_flush(medium, block) {
                sent = sent.and(flushed);
                seals.push((nid, NodePointer::new(block, crc)));
            }
        }
        if has_some {
            nat.add_seals(&seals, version, medium.region.fence(sent));
        }
        // Whoever waits to make a checkpoint is next.
        MutexGuard::unlock_fair(publisher);
        has_some
    }
}
