//! A model of the volume's trickiest locking, run by `shuttle` under thousands of chosen schedules.
//!
//! It transcribes, compactly, and a change there must be made here too:
//! - of `locks.rs`: `read_two`, `glimpse`, `holds`, `write`, `write_beside`, `settle`, `give_way`, `try_write`, `write_all`,
//!   `read_both`, `Exclusive::drop` (without the looks at a lock before a thread sleeps);
//! - of `namespace.rs`: `with_victim` (its guess is what it found first), `unlink`, `open`; of `glimpse.rs`: `open_glimpse`;
//! - of `rename.rs`: an exchange between two directories, of which each entry and each `..` is stored by itself;
//! - of `lanes.rs`: `enter`, `all` (two lanes, and threads without one of their own); of `core.rs`: how an operation
//!   begins, commits and fails, and how an epoch ends;
//! - of `orphans.rs`: `commit_unnamed`, `release`, `reclaim`; of `handles.rs`: the table of how often an inode is open
//!   (a count per inode here; that two which close one handle don't both win is left out).
//!
//! It says nothing of two things. Shuttle's atomics are sequentially consistent whatever ordering they are given: the
//! fences of `locks.rs` are not tested, only the order of the steps. And its readers pass a waiting writer, where
//! those of `parking_lot` queue behind it, and so behind other readers; models that are `queued` therefore let readers
//! exclude each other, which closes every circle that a queue could.
//!
//! Each [`Fault`] plants a mistake that must be found: so the tests can fail.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use shuttle::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use shuttle::{Config, Runner, thread};
use vfs::torture::Torture;

/// Schedules of each kind for each model.
const SCHEDULES: usize = 1000;
/// Inodes 1 and 5 share one, 2 and 6, 3 and 7.
const STRIPES: u32 = 4;
const INODES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Unsorted,      // `write_all` takes stripes in the order of its arguments
    VictimWaits,   // `with_victim` waits for the victim's lock, whatever the order
    SecondWaits,   // `read_both` takes the second lock in the wrong order instead of trying again
    SecondStale,   // `read_both` trusts its guess and doesn't look again
    CountedLate,   // the count is raised only when the holder goes
    OddGlimpse,    // a glimpse begins although the count is odd
    OpenSeenEarly, // `unlink` looks whether the inode is open before it locks it
    OpenUnlocked,  // `open` neither locks the inode nor looks whether somebody changed it
    OpenLate,      // `open` looks whether somebody changed the inode before it counts its handle
    ReclaimBlind,  // `reclaim` doesn't look again whether the inode is open
    LaneMissed,    // the end of an epoch leaves out a lane
    LaneInside,    // some operation locks its inode before it has a lane
    FailedLate,    // an operation that failed says so only when it has left its lane
    FailureEarly,  // the end of an epoch looks for a failure before it has all lanes
    AppliedEarly,  // an operation gives its inode's lock back before its record is durable
    NotSettled,    // who depends on what others changed does not wait until it is durable
    SettledLate,   // who gives way holds what others wait for only when the lock is given back
    GlimpseEarly,  // a glimpse begins although what was changed is not durable
}

/// The lock, its count of changes, and the lock of those whose change is not durable.
type Stripe = (RwLock<()>, AtomicU64, RwLock<()>);

struct Locks {
    stripes: Vec<Stripe>,
    fault: Fault,
    queued: bool,
}

type Shared<'a> = (Option<RwLockReadGuard<'a, ()>>, Option<RwLockWriteGuard<'a, ()>>);

struct Exclusive<'a> {
    changes: &'a AtomicU64,
    settling: &'a RwLock<()>,
    fault: Fault,
    step: u64,
    _guard: RwLockWriteGuard<'a, ()>,
}

impl<'a> Exclusive<'a> {
    fn settle(&self) {
        if self.fault != Fault::NotSettled {
            drop(self.settling.write().unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn give_way(self) -> RwLockReadGuard<'a, ()> {
        let (settling, fault) = (self.settling, self.fault);
        let settle = || settling.read().unwrap_or_else(PoisonError::into_inner);
        let early = (fault != Fault::SettledLate).then(settle);
        drop(self);
        early.unwrap_or_else(settle)
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.changes.store(self.changes.load(SeqCst) + self.step, SeqCst);
    }
}

impl Locks {
    fn new(fault: Fault, queued: bool) -> Locks {
        Locks { stripes: (0..STRIPES).map(|_| Stripe::default()).collect(), fault, queued }
    }

    fn stripe(&self, ino: u32) -> &Stripe {
        &self.stripes[(ino % STRIPES) as usize]
    }

    fn read(&self, ino: u32) -> Shared<'_> {
        let (lock, _, settling) = self.stripe(ino);
        let alone = self.queued.then(|| lock.write().unwrap_or_else(PoisonError::into_inner));
        let shared = (!self.queued).then(|| lock.read().unwrap_or_else(PoisonError::into_inner));
        if self.fault != Fault::NotSettled {
            drop(settling.write().unwrap_or_else(PoisonError::into_inner));
        }
        (shared, alone)
    }

    fn read_two(&self, one: u32, other: u32) -> [Option<Shared<'_>>; 2] {
        let (low, high) = if one % STRIPES < other % STRIPES { (one, other) } else { (other, one) };
        let first = self.read(low);
        [Some(first), (low % STRIPES != high % STRIPES).then(|| self.read(high))]
    }

    fn changes(&self, ino: u32) -> u64 {
        self.stripe(ino).1.load(SeqCst)
    }

    fn glimpse(&self, ino: u32) -> Option<u64> {
        let seen = self.changes(ino);
        let settled = self.fault == Fault::GlimpseEarly || self.stripe(ino).2.try_write().is_ok();
        Some(seen).filter(|seen| seen.is_multiple_of(2) && settled || self.fault == Fault::OddGlimpse)
    }

    fn hold<'a>(&self, stripe: &'a Stripe, guard: RwLockWriteGuard<'a, ()>) -> Exclusive<'a> {
        let (_, changes, settling) = stripe;
        let early = u64::from(self.fault != Fault::CountedLate);
        changes.store(changes.load(SeqCst) + early, SeqCst);
        Exclusive { changes, settling, fault: self.fault, step: 2 - early, _guard: guard }
    }

    fn write(&self, ino: u32) -> Exclusive<'_> {
        let lock = self.write_beside(ino);
        lock.settle();
        lock
    }

    fn write_beside(&self, ino: u32) -> Exclusive<'_> {
        let stripe = self.stripe(ino);
        self.hold(stripe, stripe.0.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn try_write(&self, ino: u32, held: &[u32]) -> Option<Option<Exclusive<'_>>> {
        if held.iter().any(|held| held % STRIPES == ino % STRIPES) {
            return Some(None);
        }
        let stripe = self.stripe(ino);
        let waits = (self.fault == Fault::VictimWaits).then(|| self.write(ino));
        let held = waits.or_else(|| Some(self.hold(stripe, stripe.0.try_write().ok()?)))?;
        held.settle();
        Some(Some(held))
    }

    fn write_all(&self, inos: &[u32]) -> Vec<Exclusive<'_>> {
        let mut stripes: Vec<_> = inos.iter().map(|ino| ino % STRIPES).collect();
        if self.fault != Fault::Unsorted {
            stripes.sort_unstable();
        }
        let first = |(at, stripe)| (!stripes[..at].contains(stripe)).then(|| self.write(*stripe));
        stripes.iter().enumerate().filter_map(first).collect()
    }

    fn read_both(&self, first: u32, second: impl Fn() -> Option<u32>, then: impl FnOnce(u32)) -> Option<()> {
        let mut guess = first;
        loop {
            let _both = self.read_two(first, guess);
            let is_stale = self.fault == Fault::SecondStale && guess != first;
            let found = if is_stale { guess } else { second()? };
            let held = [first, guess].iter().any(|ino| ino % STRIPES == found % STRIPES);
            let above = [first, guess].iter().all(|ino| ino % STRIPES < found % STRIPES);
            let above = above || self.fault == Fault::SecondWaits;
            let _found = (above && !held).then(|| self.read(found));
            if held || above {
                then(found);
                return Some(());
            }
            guess = found;
        }
    }

    fn with_victim(&self, dir: u32, find: impl Fn() -> Option<u32>) -> Option<(u32, Vec<Exclusive<'_>>)> {
        let lock = self.write(dir);
        let mut guess = find()?;
        if let Some(victim_lock) = self.try_write(guess, &[dir]) {
            return Some((guess, victim_lock.into_iter().chain([lock]).collect()));
        }
        drop(lock);
        loop {
            let locks = self.write_all(&[dir, guess]);
            match find()? {
                victim if victim == guess => return Some((victim, locks)),
                victim => guess = victim,
            }
        }
    }
}

/// Directories of at most one entry, and of each inode the directory that names it.
struct Tree {
    locks: Locks,
    entries: [AtomicU32; INODES],
    parents: [AtomicU32; INODES],
}

impl Tree {
    fn entry(&self, dir: u32) -> Option<u32> {
        Some(self.entries[dir as usize].load(SeqCst)).filter(|ino| *ino != 0)
    }

    fn name(&self, dir: u32, ino: u32) {
        self.entries[dir as usize].store(ino, SeqCst);
        self.parents[ino as usize].store(dir, SeqCst);
    }

    fn lookup(&self, dir: u32) -> Option<()> {
        let whole = |ino| self.entry(dir) == Some(ino) && self.parents[ino as usize].load(SeqCst) == dir;
        self.locks.read_both(dir, || self.entry(dir), |ino| assert!(whole(ino), "a torn look-up"))
    }

    fn exchange(&self, one: u32, other: u32) -> Option<()> {
        loop {
            let (source, target) = {
                let _locks = self.locks.read_two(one, other);
                (self.entry(one)?, self.entry(other)?)
            };
            let _locks = self.locks.write_all(&[one, other, source, target]);
            if (self.entry(one), self.entry(other)) == (Some(source), Some(target)) {
                self.name(other, source);
                self.name(one, target);
                return Some(());
            }
        }
    }

    /// Unlinks what `dir` names, and links `ino` there if it has no name.
    fn renew(&self, dir: u32, ino: u32) {
        if let Some((victim, _locks)) = self.locks.with_victim(dir, || self.entry(dir)) {
            self.entries[dir as usize].store(0, SeqCst);
            self.parents[victim as usize].store(0, SeqCst);
        }
        let _locks = self.locks.write_all(&[ino, dir]);
        if self.entry(dir).is_none() && self.parents[ino as usize].load(SeqCst) == 0 {
            self.name(dir, ino);
        }
    }
}

fn moves(fault: Fault, queued: bool, [one, other, first, second]: [u32; 4]) {
    let locks = Locks::new(fault, queued);
    let tree = Tree { locks, entries: Default::default(), parents: Default::default() };
    tree.name(one, first);
    tree.name(other, second);
    thread::scope(|scope| {
        scope.spawn(|| [one, other].map(|dir| tree.lookup(dir)));
        scope.spawn(|| [other, one].map(|dir| tree.lookup(dir)));
        scope.spawn(|| tree.exchange(one, other));
        scope.spawn(|| tree.renew(one, first));
    });
}

fn glimpses(fault: Fault) {
    let (locks, left, right) = (Locks::new(fault, false), AtomicU32::new(0), AtomicU32::new(0));
    let change = || [&left, &right].map(|value| value.store(value.load(SeqCst) + 1, SeqCst));
    thread::scope(|scope| {
        scope.spawn(|| [locks.write(1)].map(|_lock| change()));
        scope.spawn(|| [locks.write_all(&[2, 5])].map(|_locks| change()));
        scope.spawn(|| locks.try_write(1, &[2]).map(|_lock| change()));
        for seen in (0..3).filter_map(|_| locks.glimpse(1)) {
            let (left, right) = (left.load(SeqCst), right.load(SeqCst));
            assert!(locks.changes(1) != seen || left == right, "a torn glimpse");
        }
    });
    assert_eq!(locks.changes(1) % 2, 0, "an odd count is left");
}

/// One inode number, and its names in directory 1.
struct File {
    locks: Locks,
    ino: u32,
    names: [AtomicBool; 2],
    exists: AtomicBool,
    nlink: AtomicU32,
    handles: AtomicU32,
    /// Handles that somebody got: `open` may count one and take it back.
    held: AtomicU32,
    /// Whether the hidden directory names it.
    orphan: Mutex<bool>,
}

impl File {
    fn is_open(&self) -> bool {
        self.handles.load(SeqCst) > 0
    }

    fn orphans(&self) -> MutexGuard<'_, bool> {
        self.orphan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self) {
        assert_eq!(self.held.load(SeqCst), 0, "life: removed while open");
        assert!(self.exists.swap(false, SeqCst), "life: removed twice");
    }

    fn open(&self) -> bool {
        let fault = self.locks.fault;
        let glimpse = self.locks.glimpse(self.ino).filter(|_| self.exists.load(SeqCst));
        if let Some(seen) = glimpse {
            let holds = || self.locks.changes(self.ino) == seen;
            let early = (fault == Fault::OpenLate).then(holds);
            self.handles.fetch_add(1, SeqCst);
            if fault == Fault::OpenUnlocked || early.unwrap_or_else(holds) {
                self.held.fetch_add(1, SeqCst);
                return true;
            }
            self.release();
        }
        let _lock = self.locks.read(self.ino);
        let exists = self.exists.load(SeqCst);
        self.handles.fetch_add(u32::from(exists), SeqCst);
        self.held.fetch_add(u32::from(exists), SeqCst);
        exists
    }

    fn unlink(&self, name: usize) {
        let early = (self.locks.fault == Fault::OpenSeenEarly).then(|| self.is_open());
        let find = || self.names[name].load(SeqCst).then_some(self.ino);
        let Some(_locks) = self.locks.with_victim(1, find) else { return };
        self.names[name].store(false, SeqCst);
        let left = self.nlink.load(SeqCst) - 1;
        if left > 0 {
            self.nlink.store(left, SeqCst);
        } else if !early.unwrap_or_else(|| self.is_open()) {
            self.remove();
        } else {
            let mut orphan = self.orphans();
            self.nlink.store(0, SeqCst);
            *orphan = true;
        }
    }

    fn use_and_release(&self) {
        assert!(self.exists.load(SeqCst), "life: gone while open");
        self.held.fetch_sub(1, SeqCst);
        self.release();
    }

    fn release(&self) {
        if self.handles.fetch_sub(1, SeqCst) > 1 {
            return;
        }
        let is_unnamed = || self.exists.load(SeqCst) && self.nlink.load(SeqCst) == 0;
        let glimpse = self.locks.glimpse(self.ino).map(|seen| (is_unnamed(), seen));
        let unnamed = match glimpse.filter(|(_, seen)| self.locks.changes(self.ino) == *seen) {
            Some((unnamed, _)) => unnamed,
            None => {
                let _lock = self.locks.read(self.ino);
                is_unnamed()
            }
        };
        if unnamed {
            self.reclaim();
        }
    }

    fn reclaim(&self) {
        let _lock = self.locks.write(self.ino);
        let is_open = || self.locks.fault != Fault::ReclaimBlind && self.is_open();
        if self.exists.load(SeqCst) && self.nlink.load(SeqCst) == 0 && !is_open() {
            assert!(std::mem::take(&mut *self.orphans()), "life: an orphan not listed");
            self.remove();
        }
    }
}

/// A file that is open and has `links` names.
fn lives(fault: Fault, ino: u32, links: u32) {
    let file = File {
        locks: Locks::new(fault, false),
        ino,
        names: [AtomicBool::new(links > 0), AtomicBool::new(links > 1)],
        exists: AtomicBool::new(true),
        nlink: AtomicU32::new(links),
        handles: AtomicU32::new(1),
        held: AtomicU32::new(1),
        orphan: Mutex::new(links == 0),
    };
    thread::scope(|scope| {
        scope.spawn(|| file.use_and_release());
        scope.spawn(|| file.open().then(|| file.use_and_release()));
        scope.spawn(|| [0, 1].map(|name| file.unlink(name)));
        scope.spawn(|| file.open().then(|| file.use_and_release()));
        scope.spawn(|| file.unlink(0));
    });
    let names = file.names.iter().filter(|name| name.load(SeqCst)).count() as u32;
    assert!(!file.is_open() && !*file.orphans(), "life: a handle or an orphan is left");
    assert_eq!(file.exists.load(SeqCst), names > 0, "life: lost, or named and gone");
}

/// Lanes, and what they keep apart: epochs, failures, and what is durable.
struct Epochs {
    locks: Locks,
    lanes: [Mutex<()>; 2],
    epoch: AtomicU32,
    failed: AtomicBool,
    /// Some operation was applied by halves.
    halved: AtomicBool,
    next: AtomicU64,
    /// The number of the newest transaction that inode 1 shows, and how far the log is durable, by number.
    seen: AtomicU64,
    durable: [AtomicBool; 8],
}

impl Epochs {
    fn enter(&self, mine: usize) -> MutexGuard<'_, ()> {
        if let Ok(lane) = self.lanes[mine].try_lock() {
            return lane;
        }
        if let Ok(lane) = self.lanes[1 - mine].try_lock() {
            return lane;
        }
        self.lanes[mine].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn operate(&self, mine: usize, fails: bool) {
        let early = (self.locks.fault == Fault::LaneInside && mine == 1).then(|| self.locks.write(1));
        let lane = self.enter(mine);
        if self.failed.load(SeqCst) {
            return;
        }
        let epoch = self.epoch.load(SeqCst);
        let mut lock = early.or_else(|| Some(self.locks.write(1)));
        let before = self.seen.load(SeqCst);
        let number = self.next.fetch_add(1, SeqCst);
        assert!(before < number, "lanes: who depends on a transaction has a smaller number");
        self.seen.store(number, SeqCst);
        if self.locks.fault == Fault::AppliedEarly {
            lock = None;
        }
        let based_on_durable = before == 0 || self.durable[before as usize].load(SeqCst);
        assert!(based_on_durable, "lanes: a transaction depends on one that is not durable");
        self.durable[number as usize].store(true, SeqCst);
        self.halved.fetch_or(fails, SeqCst);
        let say = || self.failed.fetch_or(fails, SeqCst);
        if self.locks.fault != Fault::FailedLate {
            say();
        }
        assert_eq!(self.epoch.load(SeqCst), epoch, "lanes: an epoch ended in the middle of an operation");
        drop((lane, lock));
        say();
    }

    fn end(&self) {
        let early = self.failed.load(SeqCst);
        let count = if self.locks.fault == Fault::LaneMissed { 1 } else { 2 };
        let _nobody: Vec<_> = self.lanes[..count]
            .iter()
            .map(|lane| lane.lock().unwrap_or_else(PoisonError::into_inner))
            .collect();
        let failed = if self.locks.fault == Fault::FailureEarly { early } else { self.failed.load(SeqCst) };
        if !failed {
            assert!(!self.halved.load(SeqCst), "lanes: half an operation is published");
            self.epoch.fetch_add(1, SeqCst);
        }
    }
}

fn epochs(fault: Fault) {
    let epochs = Epochs {
        locks: Locks::new(fault, false),
        lanes: Default::default(),
        epoch: AtomicU32::new(1),
        failed: AtomicBool::new(false),
        halved: AtomicBool::new(false),
        next: AtomicU64::new(1),
        seen: AtomicU64::new(0),
        durable: Default::default(),
    };
    thread::scope(|scope| {
        scope.spawn(|| epochs.operate(0, false));
        scope.spawn(|| epochs.operate(1, false));
        scope.spawn(|| epochs.operate(1, true));
        scope.spawn(|| epochs.operate(0, false));
        scope.spawn(|| [(); 2].map(|()| epochs.end()));
    });
}

/// Two names in directory 1 that are made beside each other, and who looks at the directory or depends on it.
struct Beside {
    locks: Locks,
    /// Which names are there, and of which the transaction is durable.
    there: [AtomicBool; 2],
    durable: [AtomicBool; 2],
}

impl Beside {
    fn make(&self, name: usize) {
        let lock = self.locks.write_beside(1);
        self.there[name].store(true, SeqCst);
        let settling = lock.give_way();
        self.durable[name].store(true, SeqCst);
        drop(settling);
    }

    /// The names that are seen.
    fn seen(&self) -> [bool; 2] {
        [0, 1].map(|name| self.there[name].load(SeqCst))
    }

    fn assert_durable(&self, seen: [bool; 2]) {
        let lost = |name: usize| seen[name] && !self.durable[name].load(SeqCst);
        assert!(!lost(0) && !lost(1), "beside: something is seen that may be lost");
    }
}

fn besides(fault: Fault) {
    let dir =
        Beside { locks: Locks::new(fault, false), there: Default::default(), durable: Default::default() };
    thread::scope(|scope| {
        scope.spawn(|| dir.make(0));
        scope.spawn(|| dir.make(1));
        scope.spawn(|| [dir.locks.read(1)].map(|_lock| dir.assert_durable(dir.seen())));
        scope.spawn(|| [dir.locks.write(5)].map(|_lock| dir.assert_durable(dir.seen())));
        scope.spawn(|| dir.locks.try_write(1, &[2]).map(|_lock| dir.assert_durable(dir.seen())));
        for begun in (0..3).filter_map(|_| dir.locks.glimpse(1)) {
            let seen = dir.seen();
            if dir.locks.changes(1) == begun {
                dir.assert_durable(seen);
            }
        }
    });
    assert_eq!(dir.seen(), [true; 2], "beside: something is lost");
}

fn run(model: impl Fn() + Copy + Send + Sync + 'static) {
    let seed = Torture::seed_from_environment();
    eprintln!("AMBERFS_SEED={seed}");
    let mut config = Config::new();
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new_from_seed(seed, SCHEDULES), config.clone()).run(model);
    Runner::new(PctScheduler::new_from_seed(seed, 3, SCHEDULES), config).run(model);
}

/// Directories and what they name: stripes below, above, between, and shared.
const PLACES: [[u32; 4]; 4] = [[1, 2, 4, 7], [2, 1, 3, 4], [1, 3, 2, 4], [1, 2, 5, 6]];

#[test]
fn moved_entries_are_seen_whole() {
    for place in PLACES {
        run(move || moves(Fault::None, false, place));
        run(move || moves(Fault::None, true, place));
    }
}

#[test]
fn glimpses_that_hold_are_whole() {
    run(|| glimpses(Fault::None));
}

#[test]
fn inodes_end_once_and_not_while_open() {
    for (ino, links) in [(2, 0), (2, 1), (2, 2), (4, 1), (5, 1)] {
        run(move || lives(Fault::None, ino, links));
    }
}

#[test]
fn epochs_end_between_operations() {
    run(|| epochs(Fault::None));
}

#[test]
fn what_is_seen_is_durable() {
    run(|| besides(Fault::None));
}

/// A test that `$fault`, planted in `$model`, is found.
macro_rules! finds {
    ($name:ident, $fault:ident, $model:ident($($argument:expr),*), $what:literal) => {
        #[test]
        #[should_panic(expected = $what)]
        fn $name() {
            run(|| $model(Fault::$fault $(, $argument)*));
        }
    };
}

finds!(unsorted_stripes_are_found, Unsorted, moves(false, PLACES[0]), "deadlock");
finds!(waiting_for_a_victim_is_found, VictimWaits, moves(false, PLACES[0]), "deadlock");
finds!(waiting_for_a_second_is_found, SecondWaits, moves(false, PLACES[0]), "deadlock");
finds!(a_stale_second_is_found, SecondStale, moves(false, PLACES[0]), "a torn look-up");
finds!(a_late_count_is_found, CountedLate, glimpses(), "a torn glimpse");
finds!(a_glimpse_of_an_odd_count_is_found, OddGlimpse, glimpses(), "a torn glimpse");
finds!(looking_early_whether_it_is_open_is_found, OpenSeenEarly, lives(2, 1), "life: ");
finds!(opening_without_a_look_is_found, OpenUnlocked, lives(2, 1), "life: ");
finds!(opening_after_the_look_is_found, OpenLate, lives(2, 1), "life: ");
finds!(a_blind_reclaim_is_found, ReclaimBlind, lives(2, 1), "life: ");
finds!(a_lane_left_out_is_found, LaneMissed, epochs(), "lanes: ");
finds!(a_lock_before_a_lane_is_found, LaneInside, epochs(), "deadlock");
finds!(a_late_failure_is_found, FailedLate, epochs(), "lanes: half an operation is published");
finds!(an_early_look_for_a_failure_is_found, FailureEarly, epochs(), "lanes: half an operation is published");
finds!(a_lock_given_back_early_is_found, AppliedEarly, epochs(), "lanes: a transaction depends on one");
finds!(not_settling_is_found, NotSettled, besides(), "beside: ");
finds!(settling_late_is_found, SettledLate, besides(), "beside: ");
finds!(an_early_glimpse_is_found, GlimpseEarly, besides(), "beside: ");
