//! Pages of NAT entries in DRAM, at most so many at a time.
//!
//! A page is found by its number: its slot says in which slot's frame it is, at first its own. Readers take no lock and
//! store nothing but a mark. While they look the frame may be given to another page, so what they saw counts only if its
//! [`Sight`] holds afterwards. Who changes an entry pins the frame meanwhile, which keeps it. When there are as many pages
//! as may be, one that was not asked for lately makes room. What its entries have and the medium has not is *set aside*,
//! entry by entry, until the page is loaded again or a checkpoint says it: so a page that has changes can go, too.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use super::{CachedEntry, FANOUT, NID_BITS, VERIFIED, epoch_of};
use crate::pointer::NodePointer;

/// Slots of the first group; each further group has as many as all before it and as many again as this.
const FIRST_GROUP: usize = 64;
const PAGES: usize = (1 << NID_BITS) / FANOUT as usize;
const GROUPS: usize = (PAGES / FIRST_GROUP).ilog2() as usize + 1;
/// Bytes of a page.
const PAGE: u64 = FANOUT * size_of::<CachedEntry>() as u64;
/// About what a tree takes of DRAM for an entry that is set aside.
const ASIDE: u64 = 48;

type Frame = Box<[CachedEntry; FANOUT as usize]>;

/// What is known of one page, and the frame that was made for it.
#[derive(Default)]
struct Slot {
    /// The slot in whose frame the page is, and 1; 0: in none.
    at: AtomicU32,
    /// The page was asked for since somebody looked for room.
    recent: AtomicBool,
    /// Of this slot's frame: a [`Tenancy`].
    tenancy: AtomicU64,
    frame: OnceLock<Frame>,
}

fn new_frame() -> Frame {
    let entries: Box<[CachedEntry]> = (0..FANOUT).map(|_| CachedEntry::default()).collect();
    entries.try_into().unwrap_or_else(|_| unreachable!("it has as many entries as a page"))
}

/// The group of a page's slot, and the slot's place in it.
#[inline(always)]
fn place(page: usize) -> (usize, usize) {
    let number = page + FIRST_GROUP;
    let group = (number / FIRST_GROUP).ilog2() as usize;
    (group, number - (FIRST_GROUP << group))
}

impl Slot {
    /// Notes that the page was asked for.
    #[inline(always)]
    fn ask(&self) {
        if !self.recent.load(Ordering::Relaxed) {
            self.recent.store(true, Ordering::Relaxed);
        }
    }

    /// The entry of `nid`, if `page`, where it is, has this slot's frame.
    #[inline(always)]
    fn sight(&self, page: usize, nid: u32) -> Option<Sight<'_>> {
        let tenancy = Tenancy(self.tenancy.load(Ordering::Acquire));
        if !tenancy.is_of(page) {
            return None;
        }
        Some(Sight { entry: &self.frame.get()?[nid as usize % FANOUT as usize], slot: self, tenancy })
    }
}

/// Who has a frame: from bit 36 how often that has changed, from bit 16 the page and 1 (0: none), below the pins.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tenancy(u64);

const TURN: u64 = 1 << 36;
const PAGE_SHIFT: u32 = 16;
const PINS: u64 = (1 << PAGE_SHIFT) - 1;

impl Tenancy {
    fn is_of(self, page: usize) -> bool {
        (self.0 % TURN) >> PAGE_SHIFT == page as u64 + 1
    }

    fn page(self) -> usize {
        ((self.0 % TURN) >> PAGE_SHIFT) as usize - 1
    }

    fn unpinned(self) -> u64 {
        self.0 & !PINS
    }
}

/// An entry that was looked at.
pub(crate) struct Sight<'a> {
    pub(crate) entry: &'a CachedEntry,
    slot: &'a Slot,
    tenancy: Tenancy,
}

impl Sight<'_> {
    /// Whether what was loaded from the entry was the entry's.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        fence(Ordering::Acquire);
        Tenancy(self.slot.tenancy.load(Ordering::Relaxed)).unpinned() == self.tenancy.unpinned()
    }
}

/// An entry that may be changed.
pub(super) struct Pinned<'a> {
    entry: &'a CachedEntry,
    slot: &'a Slot,
}

impl std::ops::Deref for Pinned<'_> {
    type Target = CachedEntry;

    fn deref(&self) -> &CachedEntry {
        self.entry
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.slot.tenancy.fetch_sub(1, Ordering::Release);
    }
}

/// What an entry had when its page made room.
struct Aside {
    pointer: NodePointer,
    version: u32,
    state: u32,
}

impl Aside {
    fn is_newer(&self, published: u32) -> bool {
        epoch_of(self.version) > published
    }

    /// Whether the medium, of which `published` is the newest checkpoint, does not have it.
    fn is_needed(&self, published: u32) -> bool {
        self.is_newer(published) || self.state & !VERIFIED != 0
    }
}

#[derive(Default)]
struct Room {
    /// Slots that have a frame.
    homes: Vec<u32>,
    /// Where among them the search for room goes on.
    hand: usize,
    aside: BTreeMap<u32, Aside>,
}

pub(super) struct Cache {
    /// Each twice as large as the one before, so that a small volume's tables are small, and there are few for a large one.
    groups: [OnceLock<Box<[Slot]>>; GROUPS],
    pages_max: u64,
    room: Mutex<Room>,
}

impl Cache {
    /// Keeps to `bytes`, or a page, and what is set aside.
    pub(super) fn new(bytes: u64) -> Cache {
        Cache { groups: Default::default(), pages_max: (bytes / PAGE).max(1), room: Mutex::default() }
    }

    #[inline(always)]
    fn slot(&self, page: usize) -> Option<&Slot> {
        let (group, at) = place(page);
        self.groups.get(group)?.get()?.get(at)
    }

    /// The slot in whose frame the page of `slot` is.
    #[inline]
    fn home(&self, slot: &Slot) -> Option<&Slot> {
        self.slot((slot.at.load(Ordering::Acquire) as usize).checked_sub(1)?)
    }

    /// The entry of `nid`, which has [`NID_BITS`], if it is here.
    #[inline(always)]
    pub(super) fn see(&self, nid: u32) -> Option<Sight<'_>> {
        let page = nid as usize / FANOUT as usize;
        let slot = self.slot(page)?;
        slot.ask();
        // Where no page made room for another, each is in its own frame: to look there first spares a load.
        slot.sight(page, nid).or_else(|| self.home(slot)?.sight(page, nid))
    }

    /// The same, to be changed.
    #[inline]
    pub(super) fn pin(&self, nid: u32) -> Option<Pinned<'_>> {
        let page = nid as usize / FANOUT as usize;
        let slot = self.slot(page)?;
        slot.ask();
        let home = self.home(slot)?;
        let entry = &home.frame.get()?[nid as usize % FANOUT as usize];
        let tenancy = Tenancy(home.tenancy.fetch_add(1, Ordering::Acquire));
        let pinned = Pinned { entry, slot: home };
        tenancy.is_of(page).then_some(pinned)
    }

    /// Makes room for `page`, unless somebody has done so. The newest checkpoint is `published`; `pointers` are those that
    /// it has, none if all are null. The caller keeps it from being followed by another.
    pub(super) fn load(&self, page: usize, published: u32, mut pointers: impl Iterator<Item = NodePointer>) {
        let (group, _) = place(page);
        self.groups[group].get_or_init(|| (0..FIRST_GROUP << group).map(|_| Slot::default()).collect());
        let slot = self.slot(page).expect("just made");
        let mut room = self.room.lock();
        if slot.at.load(Ordering::Acquire) != 0 {
            return;
        }
        let home = self.make_room(&mut room, page, published);
        let home_slot = self.slot(home).expect("it has a frame");
        let frame = home_slot.frame.get_or_init(new_frame);
        for entry in frame.iter() {
            // As if that checkpoint had copied all nodes: who compares versions sees that one was followed by another.
            entry.fill(pointers.next().unwrap_or_default(), published, 0);
        }
        let first = page as u32 * FANOUT as u32;
        let here: Vec<u32> = room.aside.range(first..first + FANOUT as u32).map(|(nid, _)| *nid).collect();
        for nid in here {
            let aside = room.aside.remove(&nid).expect("it is there");
            let entry = &frame[nid as usize % FANOUT as usize];
            if aside.is_newer(published) {
                entry.fill(aside.pointer, aside.version, aside.state);
            } else {
                entry.state.store(aside.state, Ordering::Relaxed);
            }
        }
        home_slot.tenancy.fetch_or((page as u64 + 1) << PAGE_SHIFT, Ordering::Release);
        slot.at.store(home as u32 + 1, Ordering::Release);
    }

    /// The number of a slot whose frame is nobody's, or not made yet.
    fn make_room(&self, room: &mut Room, page: usize, published: u32) -> usize {
        // While there may be more, no frame was given away: this page's own is not there.
        if (room.homes.len() as u64) < self.pages_max {
            room.homes.push(page as u32);
            return page;
        }
        let mut looked_at = 0;
        loop {
            let home = room.homes[room.hand] as usize;
            room.hand = (room.hand + 1) % room.homes.len();
            looked_at += 1;
            let slot = self.slot(home).expect("it has a frame");
            let tenancy = Tenancy(slot.tenancy.load(Ordering::Relaxed));
            let tenant = self.slot(tenancy.page()).expect("it is loaded");
            // After two rounds everything was asked for lately.
            let was_recent = tenant.recent.swap(false, Ordering::Relaxed);
            if was_recent && looked_at <= 2 * room.homes.len() {
                continue;
            }
            let vacated = (tenancy.0 / TURN).wrapping_add(1).wrapping_mul(TURN);
            let (before, after) = (Ordering::AcqRel, Ordering::Relaxed);
            if slot.tenancy.compare_exchange(tenancy.unpinned(), vacated, before, after).is_err() {
                continue; // pinned
            }
            // Who sees anything of what comes now sees that the tenant has gone.
            fence(Ordering::Release);
            tenant.at.store(0, Ordering::Relaxed);
            let frame = slot.frame.get().expect("it has a tenant");
            let first = tenancy.page() as u32 * FANOUT as u32;
            let aside = (first..).zip(frame.iter()).map(|(nid, entry)| (nid, entry.aside()));
            room.aside.extend(aside.filter(|(_, aside)| aside.is_needed(published)));
            return home;
        }
    }

    /// The newest checkpoint is `published` now: it has what was set aside for earlier ones.
    pub(super) fn publish(&self, published: u32) {
        self.room.lock().aside.retain(|_, aside| aside.is_needed(published));
    }

    /// Bytes of DRAM of pages and of what is set aside, and of the tables that lead there.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let slots: usize = self.groups.iter().filter_map(OnceLock::get).map(|group| group.len()).sum();
        let tables = slots * size_of::<Slot>() + size_of_val(&self.groups);
        let room = self.room.lock();
        (room.homes.len() as u64 * PAGE + room.aside.len() as u64 * ASIDE, tables as u64)
    }
}

impl CachedEntry {
    fn fill(&self, pointer: NodePointer, version: u32, state: u32) {
        self.pointer.store(pointer.0, Ordering::Relaxed);
        self.version.store(version, Ordering::Relaxed);
        self.state.store(state, Ordering::Relaxed);
    }

    fn aside(&self) -> Aside {
        Aside {
            pointer: NodePointer(self.pointer.load(Ordering::Relaxed)),
            version: self.version.load(Ordering::Relaxed),
            state: self.state.load(Ordering::Relaxed),
        }
    }
}
