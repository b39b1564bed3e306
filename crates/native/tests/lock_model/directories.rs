//! Of `namespace.rs`, `rename.rs` and `glimpse.rs`: what is seen of directories while entries are made, moved and removed.

use std::sync::atomic::Ordering::SeqCst;

use shuttle::sync::atomic::{AtomicBool, AtomicU32};
use shuttle::thread;

use crate::locks::*;

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

pub(crate) fn moves(fault: Fault, queued: bool, [one, other, first, second]: [u32; 4]) {
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

pub(crate) fn glimpses(fault: Fault) {
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

/// Two names in directory 1 that are made beside each other, and who looks at the directory or depends on it.
struct Beside {
    locks: Locks,
    /// Which names are there, and of which the transaction is durable.
    there: [AtomicBool; 2],
    durable: [AtomicBool; 2],
    /// The time that both give the directory, and whether a transaction that has it is durable.
    time: AtomicBool,
    durable_time: AtomicBool,
}

impl Beside {
    fn make(&self, name: usize) {
        let (lock, is_crowded) = self.locks.write_in_crowd(1);
        self.there[name].store(true, SeqCst);
        let had_time = self.time.swap(true, SeqCst);
        let logs_time = is_crowded || !had_time;
        let settling = lock.give_way();
        self.durable[name].store(true, SeqCst);
        let may_be_lost = !self.durable_time.fetch_or(logs_time, SeqCst) && !logs_time;
        assert!(!may_be_lost, "beside: a time that may be lost is not logged");
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

pub(crate) fn besides(fault: Fault) {
    let (there, durable, [time, durable_time]) = Default::default();
    let dir = Beside { locks: Locks::new(fault, false), there, durable, time, durable_time };
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
