//! Of `orphans.rs` and `handles.rs`: an inode that is opened, loses its names and is reclaimed.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;

use shuttle::sync::atomic::{AtomicBool, AtomicU32};
use shuttle::sync::{Mutex, MutexGuard};
use shuttle::thread;

use crate::locks::*;

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
pub(crate) fn lives(fault: Fault, ino: u32, links: u32) {
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
