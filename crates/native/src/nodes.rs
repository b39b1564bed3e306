//! The nodes of a mounted volume, and how they are changed.
//!
//! Invariant: a node block that the newest checkpoint reaches never changes. The first change in an epoch copies the
//! node to a block that is not yet valid and points the NAT cache there; further changes go to the copy, unflushed (unless it is sealed: `core/seal`):
//! what makes them durable is their record in the log, and the checkpoint that flushes them.

mod inodes;

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use nvm::Purpose;
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::allocator::{Allocator, Budget};
use crate::alone::Alone;
use crate::bia::BlockKind;
use crate::fault::{Fault, planted};
use crate::geometry::BLOCK;
use crate::nat::{FANOUT, Located, NID_BITS};
use crate::node::{Edit, FIRST_NID, HEADER, NodeHeader, each_part, header_of, on_medium};
use crate::per_thread::PerThread;
use crate::reader::Reader;
use crate::slots::Slots;

/// The nodes of a mounted volume.
pub(crate) struct Nodes {
    reader: Reader,
    pub(crate) allocator: Allocator,
    /// The running epoch: the version its checkpoint will have.
    version: AtomicU32,
    nids: Alone<Mutex<NidPool>>,
    pub(crate) slots: Slots,
    /// Inodes that exist: what each thread has made of them, less what it has removed.
    inodes: PerThread<AtomicI64>,
}

/// Who may change nodes may read them.
impl Deref for Nodes {
    type Target = Reader;

    #[inline]
    fn deref(&self) -> &Reader {
        &self.reader
    }
}

/// Which NIDs are free.
///
/// A NID that was handed out has no NAT entry until its transaction is applied, so the search must never come across
/// one: it covers `[scan, scan_end)`, a range fixed while no operation ran, and what is freed in that range is left
/// for it to find.
struct NidPool {
    /// Some free NIDs outside the range that is still to be searched.
    free: Vec<u32>,
    /// NIDs from here on were never used.
    next: u32,
    scan: u32,
    scan_end: u32,
    /// Free NIDs in that range, at most.
    holes: u32,
    /// More were freed than are remembered: search again from the start, when no operation runs.
    search_again: bool,
    /// A log is being replayed that makes these inodes: NIDs below `next` may be theirs, so new ones are handed out, and
    /// below `next` only when there are none.
    replaying: Option<HashSet<u32>>,
}

/// Freed NIDs remembered at most; more are found again by searching.
const FREE_NIDS_MAX: usize = 64 << 10;

impl NidPool {
    /// Begins a search of all NIDs so far, of which `used` are in use. No operation runs.
    fn search(&mut self, used: u32) {
        (self.scan, self.scan_end, self.search_again) = (FIRST_NID, self.next, false);
        self.holes = self.next.saturating_sub(used);
    }

    /// The page of `nid`, which was looked at last, is damaged: goes on behind it.
    fn pass_over(&mut self, nid: u32, damage: &vfs::Error) {
        let behind = (nid / FANOUT as u32 + 1) * FANOUT as u32;
        tracing::error!("numbers {nid} to {} are given to no node: {damage}", behind - 1);
        for at in [&mut self.scan, &mut self.next] {
            if *at == nid + 1 {
                *at = behind;
            }
        }
    }

    fn give_back(&mut self, nid: u32) {
        if self.replaying.is_some() {
            return;
        }
        if self.scan <= nid && nid < self.scan_end {
            self.holes += 1; // the search will find it
            return;
        }
        if self.free.len() < FREE_NIDS_MAX {
            self.free.push(nid);
        } else {
            self.search_again = true;
        }
    }
}

impl Nodes {
    pub(crate) fn new(
        reader: Reader,
        allocator: Allocator,
        version: u32,
        next_nid: u32,
        inodes: u32,
        roomy: usize,
    ) -> Nodes {
        let nodes = reader.node_count();
        let slots = Slots::new(reader.medium.geometry.blocks, roomy);
        Nodes {
            reader,
            allocator,
            version: AtomicU32::new(version),
            nids: Alone::new(Mutex::new(NidPool {
                free: Vec::new(),
                next: next_nid,
                scan: FIRST_NID,
                scan_end: next_nid,
                holes: next_nid.saturating_sub(nodes),
                search_again: false,
                replaying: None,
            })),
            slots,
            inodes: PerThread::new(|thread| AtomicI64::new(if thread == 0 { inodes.into() } else { 0 })),
        }
    }

    /// Inodes that exist; exactly if nobody makes or removes any meanwhile.
    pub(crate) fn inode_count(&self) -> u64 {
        self.inodes.all().map(|count| count.load(Ordering::Relaxed)).sum::<i64>().max(0) as u64
    }

    fn count_inodes(&self, change: i64) {
        self.inodes.mine().fetch_add(change, Ordering::Relaxed);
    }

    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Relaxed)
    }

    /// Begins the epoch of `version`. The caller keeps operations out.
    pub(crate) fn set_version(&self, version: u32) {
        self.version.store(version, Ordering::Relaxed);
    }

    /// NIDs from here on were never used.
    pub(crate) fn next_nid(&self) -> u32 {
        self.nids.lock().next
    }

    /// Opens node `nid` of one inode, which is locked, for change, copying it if this is its first change in the running
    /// epoch.
    #[inline]
    pub(crate) fn edit(&self, budget: &Budget<'_>, nid: u32) -> vfs::Result<Edit<'_>> {
        let block = match self.current(nid)? {
            Some(block) => block,
            None => self.copy(budget, nid)?,
        };
        Ok(Edit::new(&self.medium, block))
    }

    /// Opens a node for change whose copy of the running epoch is in `block`.
    #[inline]
    pub(crate) fn edit_current(&self, block: u64) -> Edit<'_> {
        Edit::new(&self.medium, block)
    }

    /// Opens a node as [`Nodes::edit`] does; an error if it is not of `kind`.
    #[inline]
    pub(crate) fn edit_of(&self, budget: &Budget<'_>, nid: u32, kind: BlockKind) -> vfs::Result<Edit<'_>> {
        let block = match self.current(nid)? {
            Some(block) => block,
            None => {
                // Before it is copied.
                self.view(nid, kind)?;
                self.copy(budget, nid)?
            }
        };
        let edit = Edit::new(&self.medium, block);
        if edit.view().bytes[0] != kind as u8 {
            return Err(self.wrong_kind(nid, kind, edit.view()));
        }
        Ok(edit)
    }

    /// The node's copy of the running epoch, if there is one that may be changed.
    #[inline]
    pub(crate) fn current(&self, nid: u32) -> vfs::Result<Option<u64>> {
        Ok(self.current_of(&self.nat.locate(nid)?))
    }

    /// The same of a node that was looked up.
    #[inline]
    fn current_of(&self, located: &Located) -> Option<u64> {
        let is_current = located.version == self.version() && !located.pointer.is_null();
        is_current.then(|| located.pointer.block())
    }

    /// Copies a node, or breaks the seal of its copy. Nobody else does: its inode is locked or, if it is a block of
    /// inodes, that is.
    pub(crate) fn copy(&self, budget: &Budget<'_>, nid: u32) -> vfs::Result<u64> {
        let old = self.block_of(nid)?;
        if self.nat.break_seal(nid, old, self.version())? {
            return Ok(old);
        }
        let replays_in_place = || planted(Fault::ReplayedInPlace) && self.nids.lock().replaying.is_some();
        if planted(Fault::NodeChangedInPlace) || replays_in_place() {
            self.nat.set(nid, old, self.version())?;
            return Ok(old);
        }
        let kind = BlockKind::from_u8(header_of(&self.medium, old).kind).expect("verified");
        let (block, _) = self.allocator.allocate(budget, kind, nid, 0, 1)?;
        each_part(on_medium(&self.medium, old), |at, length| {
            let (from, to) = (old * BLOCK + at as u64, block * BLOCK + at as u64);
            self.medium.region.copy_within(Purpose::Metadata, from, to, length as u64);
        });
        self.nat.set(nid, block, self.version())?;
        budget.free(old, 1);
        Ok(block)
    }

    /// Makes a node of `kind` that belongs to inode `owner`, with `used` bytes, zero but for the header.
    pub(crate) fn create(
        &self,
        budget: &Budget<'_>,
        kind: BlockKind,
        owner: u32,
        used: usize,
    ) -> vfs::Result<(u32, Edit<'_>)> {
        let nid = self.take_nid()?;
        let (block, _) = self.allocator.allocate(budget, kind, nid, 0, 1)?;
        self.begin_block(block, kind, nid, owner, used);
        let length = (used - HEADER) as u64;
        self.medium.region.fill_zero(Purpose::Metadata, block * BLOCK + HEADER as u64, length);
        self.place(nid, block)?;
        Ok((nid, Edit::new(&self.medium, block)))
    }

    /// Points the NAT to a new node.
    pub(crate) fn place(&self, nid: u32, block: u64) -> vfs::Result<()> {
        self.reader.count.fetch_add(1, Ordering::Relaxed);
        self.nat.set(nid, block, self.version())
    }

    /// Writes a new node's header.
    pub(crate) fn begin_block(&self, block: u64, kind: BlockKind, nid: u32, owner: u32, used: usize) {
        let header = NodeHeader {
            kind: kind as u8,
            level: 0,
            slots: 0.into(),
            nid: nid.into(),
            owner: owner.into(),
            used: (used as u32).into(),
        };
        self.medium.region.store(Purpose::Metadata, block * BLOCK, header.as_bytes());
    }

    /// Removes node `nid`: its block and its number become free; the number not yet if it `is_promised`.
    pub(crate) fn remove(&self, nid: u32, is_promised: bool) -> vfs::Result<()> {
        self.block_of(nid)?;
        self.discard(nid, is_promised)
    }

    /// The same for a node that may be damaged: it is not looked at.
    pub(crate) fn discard(&self, nid: u32, is_promised: bool) -> vfs::Result<()> {
        let block = self.nat.locate(nid)?.pointer.block();
        if !self.medium.geometry.in_main(block) {
            return Err(vfs::Error::Stale);
        }
        self.allocator.free(block, 1);
        // Held from before the entry is empty: the search must not come across it in between.
        let mut nids = self.nids.lock();
        self.reader.count.fetch_sub(1, Ordering::Relaxed);
        self.nat.set(nid, 0, self.version())?;
        if !is_promised {
            nids.give_back(nid);
        }
        Ok(())
    }

    /// A NID that no node has is not needed after all.
    pub(crate) fn return_nid(&self, nid: u32) {
        self.nids.lock().give_back(nid);
    }

    /// Begins the search for free NIDs anew if some were forgotten. No operation runs.
    pub(crate) fn refresh_nids(&self) {
        let mut nids = self.nids.lock();
        if nids.search_again {
            nids.free.clear();
            nids.search(self.node_count());
        }
    }

    /// Takes a free NID: one given back, else one found below the high-water mark by a bounded search, else a new one.
    pub(crate) fn take_nid(&self) -> vfs::Result<u32> {
        let mut nids = self.nids.lock();
        if let Some(created) = &nids.replaying {
            if nids.next >> NID_BITS != 0 {
                // All numbers were used once. What is neither there nor made by the log is free.
                let mut rest = (nids.scan..1 << NID_BITS).filter(|nid| !created.contains(nid));
                let free = rest.find_map(|nid| match self.nat.locate(nid) {
                    Ok(located) => located.pointer.is_null().then_some(Ok(nid)),
                    Err(error) => Some(Err(error)),
                });
                let nid = free.ok_or(vfs::Error::NoSpace)??;
                nids.scan = nid + 1;
                return Ok(nid);
            }
            nids.next += 1;
            return Ok(nids.next - 1);
        }
        loop {
            let nid = self.pick_nid(&mut nids)?;
            // Who makes a node has committed to it, and could not enter it in a page that is damaged.
            match self.nat.locate(nid) {
                Ok(_) => return Ok(nid),
                Err(error @ vfs::Error::Corrupt(_)) => nids.pass_over(nid, &error),
                Err(error) => return Err(error),
            }
        }
    }

    /// A free NID, of whose page nothing is known.
    fn pick_nid(&self, nids: &mut NidPool) -> vfs::Result<u32> {
        if let Some(nid) = nids.free.pop() {
            return Ok(nid);
        }
        let all_used = nids.next >> NID_BITS != 0;
        let enough = nids.scan.saturating_add(1024);
        while nids.scan < nids.scan_end && (nids.scan < enough || all_used && nids.free.is_empty()) {
            if nids.holes == 0 {
                nids.scan = nids.scan_end; // there is nothing to be found
                break;
            }
            let nid = nids.scan;
            nids.scan += 1;
            match self.nat.locate(nid) {
                Ok(located) if !located.pointer.is_null() => {}
                Ok(_) => match self.slots.is_promised(nid) {
                    Some(true) => {}
                    Some(false) => {
                        nids.free.push(nid);
                        nids.holes -= 1;
                    }
                    None => nids.search_again = true,
                },
                Err(error @ vfs::Error::Corrupt(_)) => nids.pass_over(nid, &error),
                Err(error) => return Err(error),
            }
        }
        if let Some(nid) = nids.free.pop() {
            return Ok(nid);
        }
        if all_used {
            return Err(vfs::Error::NoSpace);
        }
        nids.next += 1;
        Ok(nids.next - 1)
    }

    /// Replay of a log that makes the inodes `created` begins.
    pub(crate) fn begin_replay(&self, created: HashSet<u32>) {
        let mut nids = self.nids.lock();
        let above = created.iter().copied().max().unwrap_or(0);
        nids.next = nids.next.max(above.saturating_add(1));
        nids.replaying = Some(created);
    }

    /// Replay is over: what it left free will be found.
    pub(crate) fn end_replay(&self) {
        let mut nids = self.nids.lock();
        nids.replaying = None;
        nids.search(self.node_count());
    }
}
