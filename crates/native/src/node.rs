//! Nodes: blocks of inodes, maps, direct and indirect nodes, directory buckets and tables, attributes (HMFS §2.2).
//!
//! Invariant: a node block that the newest checkpoint reaches never changes. The first change in an epoch copies the
//! node to a block that is not yet valid and points the NAT cache there; further changes go to the copy, unflushed (unless it is sealed: `core/seal`):
//! what makes them durable is their record in the log, and the checkpoint that flushes them.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nvm::Purpose;
use parking_lot::Mutex;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::allocator::{Allocator, Budget};
use crate::alone::Alone;
use crate::bia::BlockKind;
use crate::checksum;
use crate::error::corrupt;
use crate::fault::{self, Fault, planted};
use crate::geometry::{BLOCK, Medium};
use crate::inode::{self, Inode};
use crate::nat::NID_BITS;
use crate::pointer::NodePointer;
use crate::reader::Reader;
use crate::slots::Slots;

/// Begins every node block.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct NodeHeader {
    /// A [`BlockKind`]: guards against a misdirected read.
    pub(crate) kind: u8,
    /// Bucket: how many bits of its table it tells apart. Indirect: height above the direct nodes. Else 0.
    pub(crate) level: u8,
    /// Inode block: bit *n* is set if slot *n* holds an inode. Else 0.
    pub(crate) slots: U16,
    /// The node's own NID.
    pub(crate) nid: U32,
    /// The inode it belongs to; 0 for a block of inodes.
    pub(crate) owner: U32,
    /// Bytes from the block's start that mean something; what follows reads as zeros.
    pub(crate) used: U32,
}
/// Bytes of a node header.
pub(crate) const HEADER: usize = 16;
const _: () = assert!(size_of::<NodeHeader>() == HEADER);
const USED_AT: usize = 12;

/// A node's block, or what it uses of that, verified.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) block: u64,
}

impl<'a> View<'a> {
    /// What the node in a block uses of it, to look something up: its header, and a line of what was looked for. Of a block of
    /// inodes the header: these are looked at one by one ([`Inode::on_medium`]).
    ///
    /// Where nobody watches, no more than what was looked for is touched.
    #[inline]
    pub(crate) fn of(medium: &'a Medium, block: u64) -> View<'a> {
        debug_assert!(medium.geometry.in_main(block));
        if medium.region.is_watched() {
            return View::watched(medium, block);
        }
        View { bytes: medium.region.bytes_of_which(2, block * BLOCK, BLOCK as usize), block }
    }

    #[cold]
    fn watched(medium: &'a Medium, block: u64) -> View<'a> {
        let header = header_of(medium, block);
        let is_of_inodes = header.kind == BlockKind::Inode as u8;
        let used = if is_of_inodes { HEADER } else { header.used.get() as usize };
        let used = used.clamp(HEADER, BLOCK as usize);
        View { bytes: medium.region.bytes_of_which(1, block * BLOCK, used), block }
    }

    pub(crate) fn header(&self) -> &'a NodeHeader {
        NodeHeader::ref_from_bytes(&self.bytes[..HEADER]).expect("a header's length")
    }

    pub(crate) fn used(&self) -> usize {
        self.header().used.get() as usize
    }

    /// The `u32` at `at`; 0 beyond what is used.
    #[inline]
    pub(crate) fn u32_at(&self, at: usize) -> u32 {
        if at + 4 > self.used().min(self.bytes.len()) {
            return 0;
        }
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("4 bytes"))
    }

    /// The `u64` at `at`; 0 beyond what is used.
    #[inline]
    pub(crate) fn u64_at(&self, at: usize) -> u64 {
        if at + 8 > self.used().min(self.bytes.len()) {
            return 0;
        }
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("8 bytes"))
    }
}

/// A node's copy of the running epoch, open for change. The owner's lock is held.
pub(crate) struct Edit<'a> {
    medium: &'a Medium,
    pub(crate) block: u64,
}

impl<'a> Edit<'a> {
    pub(crate) fn view(&self) -> View<'a> {
        View::of(self.medium, self.block)
    }

    fn used(&self) -> usize {
        header_of(self.medium, self.block).used.get() as usize
    }

    /// Stores within what is used.
    #[inline]
    pub(crate) fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BLOCK as usize, "a store beyond the node's block");
        self.medium.region.store(Purpose::Metadata, self.block * BLOCK + at as u64, bytes);
    }

    /// Makes at least `used` bytes mean something, the new ones zero.
    pub(crate) fn extend(&self, used: usize) {
        assert!(used <= BLOCK as usize, "a node longer than a block");
        let old = self.used();
        if used > old {
            let region = &self.medium.region;
            region.fill_zero(Purpose::Metadata, self.block * BLOCK + old as u64, (used - old) as u64);
            self.store(USED_AT, &(used as u32).to_le_bytes());
        }
    }

    /// Forgets what lies beyond `used`.
    pub(crate) fn shrink(&self, used: usize) {
        self.store(USED_AT, &(used as u32).to_le_bytes());
    }

    pub(crate) fn set_level(&self, level: u8) {
        self.store(1, &[level]);
    }

    /// Stores an aligned word, which those who look without a lock see as a whole; extends what is used as needed.
    #[inline]
    pub(crate) fn put_u64(&self, at: usize, word: u64) {
        self.extend(at + 8);
        self.medium.region.store_u64(Purpose::Metadata, self.block * BLOCK + at as u64, word);
    }

    /// Stores, extending what is used as needed.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        self.extend(at + bytes.len());
        self.store(at, bytes);
    }
}

/// Calls `part` with each part of a node that its checksum covers and a checkpoint flushes, ascending: `[0, used)`, or
/// an inode block's header and what its inodes use of their slots. False if the header contradicts itself. `bytes` gives bytes of
/// the node, by where they begin and how many they are.
fn each_part<'b>(bytes: impl Fn(usize, usize) -> &'b [u8], mut part: impl FnMut(usize, usize)) -> bool {
    let header = NodeHeader::ref_from_bytes(bytes(0, HEADER)).expect("a header's length");
    let used = header.used.get() as usize;
    if header.kind == BlockKind::Inode as u8 {
        // Neighbours that use all of their slots are one part.
        let (mut at, mut end) = (0, HEADER);
        for slot in inode::slots_in(header.slots.get()) {
            let next = slot * inode::SLOT;
            if next != end {
                part(at, end - at);
                at = next;
            }
            let start = Inode { ino: slot as u32, block: 0, bytes: bytes(next, inode::PAYLOAD) };
            end = next + start.used();
        }
        part(at, end - at);
        return used == BLOCK as usize;
    }
    part(0, used.min(BLOCK as usize));
    (HEADER..=BLOCK as usize).contains(&used)
}

/// Asks for what of a block of inodes says what they use, which is as good a guess for other nodes: all of it is on its way
/// before the first of it is looked at.
pub(crate) fn ask(medium: &Medium, block: u64) {
    for slot in (0..BLOCK).step_by(inode::SLOT) {
        medium.region.prefetch(block * BLOCK + slot);
        medium.region.prefetch(block * BLOCK + slot + nvm::LINE);
    }
}

/// Asks for all that its checksum covers of a node that was asked for before.
pub(crate) fn ask_all(medium: &Medium, block: u64) {
    each_part(on_medium(medium, block), |at, length| {
        for line in (at..at + length).step_by(nvm::LINE as usize) {
            medium.region.prefetch(block * BLOCK + line as u64);
        }
    });
}

/// The checksum of a node block; `None` if its header contradicts itself.
pub(crate) fn checksum(bytes: &[u8]) -> Option<u32> {
    checksum_of(|at, length| &bytes[at..at + length])
}

/// The same of the node in a block, of which no more is looked at than its checksum covers.
pub(crate) fn checksum_in(medium: &Medium, block: u64) -> Option<u32> {
    checksum_of(on_medium(medium, block))
}

fn checksum_of<'b>(bytes: impl Fn(usize, usize) -> &'b [u8]) -> Option<u32> {
    let mut crc = None;
    let sound = each_part(&bytes, |at, length| {
        let part = bytes(at, length);
        crc = Some(crc.map_or_else(|| checksum::of(part), |before| checksum::append(before, part)));
    });
    crc.filter(|_| sound)
}

/// Gives bytes of the node in a block.
fn on_medium<'b>(medium: &'b Medium, block: u64) -> impl Fn(usize, usize) -> &'b [u8] {
    move |at, length| medium.region.bytes(block * BLOCK + at as u64, length)
}

/// The header of the node in a block.
pub(crate) fn header_of(medium: &Medium, block: u64) -> NodeHeader {
    medium.region.load(block * BLOCK)
}

/// A copy of node `nid`, which is what its NAT entry says; zeros where it uses nothing.
pub(crate) fn verified(medium: &Medium, nid: u32, pointer: NodePointer) -> vfs::Result<[u8; BLOCK as usize]> {
    verify(medium, nid, pointer)?;
    let (mut copy, there) = ([0; BLOCK as usize], on_medium(medium, pointer.block()));
    each_part(&there, |at, length| copy[at..at + length].copy_from_slice(there(at, length)));
    Ok(copy)
}

/// `Ok` if node `nid` is what its NAT entry says.
pub(crate) fn verify(medium: &Medium, nid: u32, pointer: NodePointer) -> vfs::Result<()> {
    let block = pointer.block();
    medium.check_main("NAT", 0, format_args!("entry {nid}"), block)?;
    if checksum_in(medium, block).is_some_and(|crc| pointer.matches(crc)) {
        return Ok(());
    }
    medium.check_media()?;
    Err(corrupt(&format!("node {nid}"), block, "checksum", "wrong", "what the NAT holds"))
}

/// The checksum of a node that somebody may be changing, of which all that it covers is flushed; `None` if what was seen
/// contradicts itself. Who changes it breaks its seal, so that this is forgotten.
pub(crate) fn checksum_and_flush(medium: &Medium, block: u64) -> Option<(u32, nvm::Flushed)> {
    let mut copy = [0; BLOCK as usize];
    medium.region.read(block * BLOCK, &mut copy);
    Some((checksum(&copy)?, flush_parts(medium, block, |at, length| &copy[at..at + length])))
}

/// Flushes what a node's checksum covers.
pub(crate) fn flush(medium: &Medium, block: u64) -> nvm::Flushed {
    flush_parts(medium, block, on_medium(medium, block))
}

/// The same; `bytes` gives those of the node.
fn flush_parts<'b>(medium: &Medium, block: u64, bytes: impl Fn(usize, usize) -> &'b [u8]) -> nvm::Flushed {
    let mut flushed = nvm::Flushed::none();
    each_part(bytes, |at, length| {
        let tail = if planted(Fault::NodeTailNotFlushed) { nvm::LINE as usize } else { 0 };
        let (at, length) = (block * BLOCK + at as u64, length.saturating_sub(tail) as u64);
        let part = fault::flush(&medium.region, Fault::NodesNotFlushed, Purpose::Metadata, at, length);
        flushed = std::mem::replace(&mut flushed, nvm::Flushed::none()).and(part);
    });
    flushed
}

/// The nodes of a mounted volume.
pub(crate) struct Nodes {
    reader: Reader,
    pub(crate) allocator: Allocator,
    /// The running epoch: the version its checkpoint will have.
    version: AtomicU32,
    nids: Mutex<NidPool>,
    pub(crate) slots: Slots,
    /// Inodes that exist.
    pub(crate) inodes: Alone<AtomicU64>,
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
            nids: Mutex::new(NidPool {
                free: Vec::new(),
                next: next_nid,
                scan: FIRST_NID,
                scan_end: next_nid,
                holes: next_nid.saturating_sub(nodes),
                search_again: false,
                replaying: None,
            }),
            slots,
            inodes: Alone::new(AtomicU64::new(inodes.into())),
        }
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
        Ok(Edit { medium: &self.medium, block })
    }

    /// Opens a node for change whose copy of the running epoch is in `block`.
    #[inline]
    pub(crate) fn edit_current(&self, block: u64) -> Edit<'_> {
        Edit { medium: &self.medium, block }
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
        let edit = Edit { medium: &self.medium, block };
        if edit.view().bytes[0] != kind as u8 {
            return Err(self.wrong_kind(nid, kind, edit.view()));
        }
        Ok(edit)
    }

    /// The node's copy of the running epoch, if there is one that may be changed.
    #[inline]
    pub(crate) fn current(&self, nid: u32) -> vfs::Result<Option<u64>> {
        let located = self.nat.locate(nid)?;
        let is_current = located.version == self.version() && !located.pointer.is_null();
        Ok(is_current.then(|| located.pointer.block()))
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
        Ok((nid, Edit { medium: &self.medium, block }))
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
        if let Some(nid) = nids.free.pop() {
            return Ok(nid);
        }
        let end = nids.scan_end.min(nids.scan.saturating_add(1024));
        while nids.scan < end {
            if nids.holes == 0 {
                nids.scan = nids.scan_end; // there is nothing to be found
                break;
            }
            let nid = nids.scan;
            nids.scan += 1;
            if self.nat.locate(nid)?.pointer.is_null() && self.nat.promised(nid)? == 0 {
                nids.free.push(nid);
                nids.holes -= 1;
            }
        }
        if let Some(nid) = nids.free.pop() {
            return Ok(nid);
        }
        let nid = nids.next;
        if nid >> NID_BITS != 0 {
            return Err(vfs::Error::NoSpace);
        }
        nids.next = nid + 1;
        Ok(nid)
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

/// NID 0 is that of the block of inodes 1 (root directory) and 2 (orphans), so that as a reference to any other node it
/// can mean "none".
pub(crate) const FIRST_NID: u32 = 1;
/// The hidden directory of inodes without a name: open but unlinked, or made by `O_TMPFILE`.
pub(crate) const ORPHANS: u32 = 2;
