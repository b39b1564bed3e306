//! The views of snapshots that are open, and how inodes of all trees are numbered.
//!
//! An inode's number has in its upper half whose it is: 0 the volume's, else the version of the snapshot that has it, or
//! for `.snapshots` itself the largest number. So numbers stay what they are from mount to mount.
//!
//! Views are opened when somebody asks for something in them, and the longest unused are dropped. A call in a view holds
//! the list of views, of which there are as many as lanes, all alike: each thread its own, so that calls don't meet. Who
//! changes them holds all; so whoever takes a view away waits for the calls in it. Order of locks: the publisher, the
//! list of snapshots, the lists, what [`Handles`] has.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use vfs::{DirEntry, Error, FileKind, Ino, InoMap, InoSet, ROOT_INO, Result, Time};

use crate::directory::FIRST_KEY;
use crate::handles::Handles;
use crate::per_thread::PerThread;
use crate::read_only::ReadOnly;
use crate::view::SnapshotView;

/// The directory of snapshots.
pub(crate) const NAME: &[u8] = b".snapshots";
/// Its inode number.
pub(crate) const DIRECTORY: Ino = (u32::MAX as Ino) << 32 | ROOT_INO;
/// Its entry in the root directory, which does not list it.
pub(crate) const UNLISTED: DirEntry<'static> =
    DirEntry { ino: DIRECTORY, kind: FileKind::Directory, next: DOTS + 1, name: NAME };
const _: () = assert!(UNLISTED.next < FIRST_KEY, "all names follow");
/// Views kept at most while nothing is open in them.
const VIEWS_MAX: usize = 8;
/// The cookies of `.` and `..` are up to this.
pub(crate) const DOTS: u64 = 2;

pub(crate) type View = ReadOnly<SnapshotView>;

/// Whether `ino` is the volume's own, and no snapshot's.
#[inline]
pub(crate) fn is_own(ino: Ino) -> bool {
    ino >> 32 == 0
}

/// Whether these two are of one tree: the volume's, or the same snapshot's.
pub(crate) fn is_one_tree(one: Ino, other: Ino) -> bool {
    one >> 32 == other >> 32
}

/// Whether `name` in `dir` is the directory of snapshots.
#[inline]
pub(crate) fn is_directory(dir: Ino, name: &[u8]) -> bool {
    dir == ROOT_INO && name == NAME
}

/// The snapshot that has inode `ino`, by its version.
#[inline]
pub(crate) fn version_of(ino: Ino) -> u32 {
    (ino >> 32) as u32
}

/// Views by the versions of their snapshots, and in which order they are to be looked at when there are many.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) views: InoMap<u32, View>,
    order: VecDeque<u32>,
}

impl Known {
    /// Drops views that nobody used lately, until there is room for one: each gets a second chance, and those in which files are
    /// `open` stay.
    fn make_room(&mut self, open: &InoSet<u32>) {
        for _ in 0..2 * self.order.len() {
            if self.views.len() < VIEWS_MAX {
                return;
            }
            let Some(oldest) = self.order.pop_front() else { return };
            if open.contains(&oldest) || self.views.get(&oldest).is_some_and(|view| view.0.take_recent()) {
                self.order.push_back(oldest);
            } else {
                self.views.remove(&oldest);
            }
        }
    }
}

/// The views of a mounted volume.
pub(crate) struct Views {
    lists: PerThread<RwLock<Arc<Known>>>,
    /// Made when a file of a snapshot is opened first: most volumes never have one.
    handles: OnceLock<Arc<Handles>>,
    /// When a snapshot came or went.
    pub(crate) changed: Mutex<Time>,
}

impl Views {
    /// `changed` is when a snapshot was last taken.
    pub(crate) fn new(changed: Time) -> Views {
        let known = Arc::default();
        Views {
            lists: PerThread::new(|_| RwLock::new(Arc::clone(&known))),
            handles: OnceLock::new(),
            changed: Mutex::new(changed),
        }
    }

    /// The calling thread's list.
    #[inline]
    pub(crate) fn mine(&self) -> RwLockReadGuard<'_, Arc<Known>> {
        self.lists.mine().read()
    }

    /// Changes what all lists have, when no call is in any view. In place: what that costs does not grow with the views.
    fn change<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        let mut lists: Vec<_> = self.lists.all().map(RwLock::write).collect();
        let none = Arc::default();
        let mut known = Arc::clone(&none);
        for list in &mut lists {
            known = std::mem::replace(&mut **list, Arc::clone(&none));
        }
        let changed = change(Arc::get_mut(&mut known).expect("all lists that had it are held, and empty"));
        lists.iter_mut().for_each(|list| (**list).clone_from(&known));
        changed
    }

    pub(crate) fn handles(&self) -> &Arc<Handles> {
        self.handles.get_or_init(|| Arc::new(Handles::of_snapshots()))
    }

    /// Adds the view of a snapshot, unless somebody has done so already, and drops some if there are many.
    pub(crate) fn add(&self, version: u32, view: View) {
        self.change(|known| {
            if known.views.contains_key(&version) {
                return;
            }
            if known.views.len() >= VIEWS_MAX {
                let mut open = InoSet::default();
                self.handles().each_open(|number| _ = open.insert(version_of(number)));
                known.make_room(&open);
            }
            known.views.insert(version, view);
            known.order.push_back(version);
        });
    }

    /// Takes the view of a snapshot away: `EBUSY` if a file in it is open; else it waits for calls in it to end. The
    /// list of snapshots is held exclusively, and will say that there is no such snapshot.
    pub(crate) fn forget(&self, version: u32) -> Result<()> {
        self.change(|known| {
            let is_in_it = |number| version_of(number) == version;
            if self.handles.get().is_some_and(|handles| handles.any_open(is_in_it)) {
                return Err(Error::Busy);
            }
            known.views.remove(&version);
            known.order.retain(|other| *other != version);
            Ok(())
        })
    }

    /// Takes all views away, when no call is in any: blocks of snapshots have moved. Who has files open finds them in the
    /// views that are opened next.
    pub(crate) fn reopen(&self) {
        self.change(|known| *known = Known::default());
    }

    /// Notes that a snapshot has come or gone. No two times are the same: who sees one he knows need not look again.
    pub(crate) fn note_change(&self) {
        let mut changed = self.changed.lock();
        let next = match changed.nsec {
            999_999_999 => Time { sec: changed.sec + 1, nsec: 0 },
            nsec => Time { sec: changed.sec, nsec: nsec + 1 },
        };
        *changed = Time::now().max(next);
    }

    /// Views that there are, their bytes of DRAM that are bounded, and those of their tables.
    pub(crate) fn cached(&self) -> (u64, u64, u64) {
        let known = self.mine();
        let bytes = known.views.values().map(|view| view.0.cache_bytes());
        let (pages, tables) = bytes.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        (known.views.len() as u64, pages, tables)
    }

    /// Handles that are open on files of snapshots.
    pub(crate) fn open_handles(&self) -> u64 {
        self.handles.get().map_or(0, |handles| handles.count())
    }
}
