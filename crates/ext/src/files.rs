//! What DRAM has of files: who has them open, how long they are, and pages.
//!
//! A [`File`] is in the table while somebody holds it, it is open, or it has something that the disk does not have. Its lock comes before the
//! volume's lock `tree`: who has `tree` takes no file's.
//!
//! - **The newest length is here, the disk's grows when the bytes are there.** A file that is written to beyond its end has its new
//!   length in [`State::size`] until an operation maps the blocks; that one sets it on the disk, too. So after a crash no length covers
//!   bytes that were not written, and no written block lies behind the end.
//! - A file is opened with `tree` held (shared is enough), and whether it is open is asked with `tree` held alone by who removes one without
//!   names: nobody opens it in between. Who closes it looks for names afterwards.
//! - Whether it is in the list of orphans because it is being cut changes at the end of operations, with `tree` held alone. Who takes its
//!   last name meanwhile, or gives it the first, leaves it there.
//! - The map of a regular file changes with its lock held alone.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use vfs::InoMap;

use crate::dropped::DroppedPages;
use crate::failure::{Failure, Whole};
use crate::pages::{Page, Pages, Site};
use crate::spare::Spare;

/// Shards, by inode number.
const SHARDS: usize = 64;

pub(crate) struct Files {
    shards: [Mutex<InoMap<u32, Arc<File>>>; SHARDS],
    /// Pages of all files that are nowhere but in DRAM.
    unsaved: AtomicU64,
    /// Pages of all files that the log has.
    synced: AtomicU64,
    /// Transactions, each with a file of which it logged pages, until that part of the log is retired.
    pub(crate) logged: Mutex<BTreeSet<(u64, u32)>>,
    pub(crate) dropped: Mutex<DroppedPages>,
    /// A block of zeros, which is the bytes of every page that has no others yet.
    zeros: Arc<[u8]>,
    pub(crate) spare: Spare,
    failure: Arc<Failure>,
}

pub(crate) struct File {
    pub(crate) number: u32,
    opens: AtomicU64,
    /// It is being cut, and in the list of orphans while that is so.
    cut: AtomicBool,
    /// Where the range ends that was read last.
    read_to: AtomicU64,
    state: RwLock<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// The length, where the disk's is another.
    pub(crate) size: Option<u64>,
    /// How often it has been cut: a length that was handed over to be written before counts no longer.
    pub(crate) cuts: u64,
    pub(crate) pages: Pages,
    /// Blocks that the map has as unwritten, and that are zeros on the disk: [`crate::unwritten`].
    pub(crate) zeroed: Vec<Range<u64>>,
}

impl State {
    /// Whether the disk has all of it, or the log.
    pub(crate) fn is_saved(&self) -> bool {
        self.size.is_none() && self.pages.changed(0).next().is_none()
    }
}

impl Files {
    /// Of blocks of `block` bytes. The memory of `spare` pages is kept for others.
    pub(crate) fn new(block: u64, spare: u64, failure: Arc<Failure>) -> Files {
        Files {
            shards: std::array::from_fn(|_| Mutex::default()),
            unsaved: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            logged: Mutex::default(),
            dropped: Mutex::default(),
            zeros: vec![0; block as usize].into(),
            spare: Spare::new(spare),
            failure,
        }
    }

    /// A page of zeros.
    pub(crate) fn page(&self, site: Site) -> Page {
        Page::new(self.zeros.clone(), site)
    }

    fn shard(&self, number: u32) -> &Mutex<InoMap<u32, Arc<File>>> {
        &self.shards[number as usize % SHARDS]
    }

    /// The file of inode `number`.
    pub(crate) fn get(&self, number: u32) -> Held<'_> {
        let mut shard = self.shard(number).lock();
        let file = shard.entry(number).or_insert_with(|| {
            let (opens, cut, read_to) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
            Arc::new(File { number, opens, cut, read_to, state: RwLock::default() })
        });
        Held { files: self, file: Some(file.clone()) }
    }

    /// The same, if DRAM has anything of it.
    pub(crate) fn find(&self, number: u32) -> Option<Held<'_>> {
        let file = self.shard(number).lock().get(&number).cloned()?;
        Some(Held { files: self, file: Some(file) })
    }

    /// All files that DRAM has something of.
    pub(crate) fn all(&self) -> Vec<Held<'_>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let files: Vec<Arc<File>> = shard.lock().values().cloned().collect();
            all.extend(files.into_iter().map(|file| Held { files: self, file: Some(file) }));
        }
        all
    }

    /// Keeps a file that a handle has from being let go of meanwhile.
    pub(crate) fn hold(&self, file: Arc<File>) -> Held<'_> {
        Held { files: self, file: Some(file) }
    }

    /// Pages that are nowhere but in DRAM.
    pub(crate) fn unsaved(&self) -> u64 {
        self.unsaved.load(Ordering::Relaxed)
    }

    /// Pages that the log has, and the disk not yet.
    pub(crate) fn synced(&self) -> u64 {
        self.synced.load(Ordering::Relaxed)
    }

    /// One more has it open. Called with `tree` held.
    pub(crate) fn opened(&self, number: u32) -> Arc<File> {
        let file = self.get(number).share();
        file.opens.fetch_add(1, Ordering::Relaxed);
        file
    }
}

/// A file that stays in the table. When it is let go of, it goes from the table if nothing keeps it there.
pub(crate) struct Held<'a> {
    files: &'a Files,
    file: Option<Arc<File>>,
}

impl Deref for Held<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        self.file.as_ref().expect("held until dropped")
    }
}

impl<'a> Held<'a> {
    /// For a handle.
    pub(crate) fn share(&self) -> Arc<File> {
        self.file.clone().expect("held until dropped")
    }

    /// For who reads it.
    pub(crate) fn shared(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// For who changes it.
    pub(crate) fn alone(&self) -> Alone<'_> {
        let state = self.state.write();
        let (unsaved, synced) = (state.pages.unsaved(), state.pages.logged());
        let _whole = self.files.failure.whole("what DRAM has of a file");
        Alone { files: self.files, unsaved, synced, _whole, state: Some(state) }
    }

    /// One fewer has it open; whether it was the last.
    pub(crate) fn closed(&self) -> bool {
        self.opens.fetch_sub(1, Ordering::Relaxed) == 1
    }

    pub(crate) fn is_open(&self) -> bool {
        self.opens.load(Ordering::Relaxed) > 0
    }

    /// Notes that a range is read; whether it follows the one that was read before.
    pub(crate) fn is_read_on(&self, range: &Range<u64>) -> bool {
        let read_to = self.read_to.swap(range.end, Ordering::Relaxed);
        range.start != 0 && read_to == range.start
    }

    pub(crate) fn is_being_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// The last that an operation does.
    pub(crate) fn set_being_cut(&self, is: bool) {
        self.cut.store(is, Ordering::Relaxed);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        let mut shard = self.files.shard(file.number).lock();
        // The table and this one: nobody gets another meanwhile.
        let is_last = Arc::strong_count(&file) == 2;
        let is_idle =
            || file.state.try_read().is_some_and(|state| state.size.is_none() && state.pages.is_empty());
        let is_used = file.opens.load(Ordering::Relaxed) > 0 || file.cut.load(Ordering::Relaxed);
        if is_last && !is_used && is_idle() {
            shard.remove(&file.number);
        }
    }
}

/// A file's state, for who changes it.
pub(crate) struct Alone<'a> {
    files: &'a Files,
    /// Pages that were only in DRAM when it was taken.
    unsaved: u64,
    /// Those that the log had.
    synced: u64,
    /// Pages and metadata follow each other: let go of before the state.
    _whole: Whole<'a>,
    state: Option<RwLockWriteGuard<'a, State>>,
}

impl<'a> Alone<'a> {
    /// For who has changed it, and reads it now.
    pub(crate) fn into_shared(mut self) -> RwLockReadGuard<'a, State> {
        self.count();
        RwLockWriteGuard::downgrade(self.state.take().expect("held until dropped"))
    }

    fn count(&mut self) {
        let Some(state) = &self.state else { return };
        let (unsaved, synced) = (state.pages.unsaved(), state.pages.logged());
        // Wraps where it grows less.
        self.files.unsaved.fetch_add(unsaved.wrapping_sub(self.unsaved), Ordering::Relaxed);
        self.files.synced.fetch_add(synced.wrapping_sub(self.synced), Ordering::Relaxed);
        (self.unsaved, self.synced) = (unsaved, synced);
    }
}

impl Deref for Alone<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("held until dropped")
    }
}

impl DerefMut for Alone<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("held until dropped")
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_while_something_keeps_them() {
        let files = Files::new(1024, 0, Arc::new(Failure::none("disk")));
        drop(files.get(12));
        assert!(files.find(12).is_none());
        let opened = files.opened(12);
        assert!(files.find(12).is_some_and(|file| file.is_open()));
        let held = files.hold(opened);
        held.alone().pages.insert(0, files.page(Site::Promised));
        assert_eq!(files.unsaved(), 1);
        assert!(held.closed());
        drop(held);
        let held = files.find(12).expect("it has a page");
        held.alone().pages.remove(0);
        assert_eq!(files.unsaved(), 0);
        drop(held);
        assert!(files.find(12).is_none());
    }
}
