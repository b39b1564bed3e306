//! How a volume shows its snapshots: `.snapshots/NAME/...` in its root directory, which does not list it.
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
use vfs::{
    Attr, Caller, DirEntry, Error, FileKind, Handle, Ino, InoMap, InoSet, OpenFlags, ROOT_INO, Result,
    SeekFrom, Statfs, Time, rules,
};

use crate::core::Core;
use crate::directory::FIRST_KEY;
use crate::handles::Handles;
use crate::kept::{Record, State};
use crate::lanes::{self, LANES};
use crate::read_only::{ReadOnly, Readable, Tree};
use crate::snapshots::named;
use crate::view::{Numbering, SnapshotView};

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
const DOTS: u64 = 2;

type View = ReadOnly<SnapshotView>;

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
fn version_of(ino: Ino) -> u32 {
    (ino >> 32) as u32
}

/// Views by the versions of their snapshots, and in which order they are to be looked at when there are many.
#[derive(Default)]
struct Known {
    views: InoMap<u32, View>,
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

#[repr(align(128))]
struct List(RwLock<Arc<Known>>);

/// The views of a mounted volume.
pub(crate) struct Views {
    lists: Box<[List]>,
    /// Made when a file of a snapshot is opened first: most volumes never have one.
    handles: OnceLock<Arc<Handles>>,
    /// When a snapshot came or went.
    changed: Mutex<Time>,
}

impl Views {
    /// `changed` is when a snapshot was last taken.
    pub(crate) fn new(changed: Time) -> Views {
        let known = Arc::default();
        Views {
            lists: (0..LANES).map(|_| List(RwLock::new(Arc::clone(&known)))).collect(),
            handles: OnceLock::new(),
            changed: Mutex::new(changed),
        }
    }

    /// The calling thread's list.
    #[inline]
    fn mine(&self) -> RwLockReadGuard<'_, Arc<Known>> {
        self.lists[lanes::thread_number()].0.read()
    }

    /// Changes what all lists have, when no call is in any view. In place: what that costs does not grow with the views.
    fn change<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        let mut lists: Vec<_> = self.lists.iter().map(|list| list.0.write()).collect();
        let none = Arc::default();
        let mut known = Arc::clone(&none);
        for list in &mut lists {
            known = std::mem::replace(&mut **list, Arc::clone(&none));
        }
        let changed = change(Arc::get_mut(&mut known).expect("all lists that had it are held, and empty"));
        lists.iter_mut().for_each(|list| (**list).clone_from(&known));
        changed
    }

    fn handles(&self) -> &Arc<Handles> {
        self.handles.get_or_init(|| Arc::new(Handles::of_snapshots()))
    }

    /// Adds the view of a snapshot, unless somebody has done so already, and drops some if there are many.
    fn add(&self, version: u32, view: View) {
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

impl Core {
    /// Runs `call` on the tree that has inode `ino`, which is not the volume's own. Not inlined, so that calls that
    /// are about the volume's own are as short as they can be.
    #[inline(never)]
    pub(crate) fn outside<T>(&self, ino: Ino, call: impl FnOnce(&dyn Tree) -> Result<T>) -> Result<T> {
        if is_one_tree(ino, DIRECTORY) {
            return call(&ReadOnly(Directory(self)));
        }
        loop {
            {
                let known = self.views.mine();
                if let Some(view) = known.views.get(&version_of(ino)) {
                    view.0.touch();
                    return call(view);
                }
            }
            self.open_view(version_of(ino))?;
        }
    }

    /// The same for what `handle` is open on.
    #[inline(never)]
    pub(crate) fn outside_opened<T>(
        &self,
        handle: Handle,
        call: impl FnOnce(&dyn Tree) -> Result<T>,
    ) -> Result<T> {
        self.outside(self.views.handles().get(handle)?.number, call)
    }

    /// Opens the view of a snapshot: `ESTALE` if it is not kept.
    fn open_view(&self, version: u32) -> Result<()> {
        // Of a snapshot that is just being taken, the checkpoint is published then.
        let _publisher = self.publisher();
        // Held until the view can be found: who removes the snapshot has to find it.
        let kept = self.snapshots.read();
        let record = kept.get(version).filter(|record| record.state == State::Kept).ok_or(Error::Stale)?;
        let numbering = Numbering { base: Ino::from(version) << 32, above: DIRECTORY };
        let (medium, key) = (self.medium.clone(), self.nodes.hash_key);
        let cache_bytes = self.shares.view;
        let handles = self.views.handles().clone();
        let view = SnapshotView::open(medium, key, record, numbering, handles, cache_bytes)?;
        self.views.add(version, ReadOnly(view));
        Ok(())
    }

    /// Looks the directory of snapshots up.
    #[inline(never)]
    pub(crate) fn lookup_directory(&self, caller: &Caller) -> Result<Attr> {
        self.access(caller, ROOT_INO, rules::EXECUTE)?;
        Ok(self.snapshots_attr())
    }

    /// Looks a name up in a tree that is not the volume's own.
    #[inline(never)]
    pub(crate) fn lookup_outside(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        let (ino, attr) = self.outside(dir, |tree| {
            let ino = tree.find(caller, dir, name)?;
            Ok((ino, is_one_tree(ino, dir).then(|| tree.getattr(ino))))
        })?;
        match attr {
            Some(attr) => attr,
            None if is_own(ino) => self.getattr(ino),
            None => self.outside(ino, |tree| tree.getattr(ino)),
        }
    }

    /// `EEXIST` if a name to be made is that of the directory of snapshots.
    #[inline]
    pub(crate) fn check_free(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        if !is_directory(dir, name) {
            return Ok(());
        }
        self.access(caller, dir, rules::EXECUTE)?;
        Err(Error::Exists)
    }

    /// `EBUSY`, as of a directory that something is mounted on, if a name to be removed, moved or replaced is that of the
    /// directory of snapshots.
    #[inline]
    pub(crate) fn check_movable(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        if !is_directory(dir, name) {
            return Ok(());
        }
        self.access(caller, dir, rules::WRITE | rules::EXECUTE)?;
        Err(Error::Busy)
    }

    /// The attributes of the directory of snapshots.
    pub(crate) fn snapshots_attr(&self) -> Attr {
        let changed = *self.views.changed.lock();
        Attr {
            ino: DIRECTORY,
            generation: 0,
            mode: FileKind::Directory.mode_bits() | 0o555,
            nlink: 2 + self.snapshots.read().count() as u32,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: changed,
            mtime: changed,
            ctime: changed,
            btime: changed,
        }
    }
}

/// `.snapshots`.
struct Directory<'a>(&'a Core);

impl Directory<'_> {
    fn check(&self, ino: Ino) -> Result<Attr> {
        if ino == DIRECTORY { Ok(self.0.snapshots_attr()) } else { Err(Error::Stale) }
    }
}

/// The root directory of a snapshot.
fn root_of(record: &Record) -> Ino {
    Ino::from(record.version) << 32 | ROOT_INO
}

impl Readable for Directory<'_> {
    fn find(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Ino> {
        rules::may_search(caller, &self.check(dir)?, None)?;
        rules::check_name(name)?;
        match name {
            b"." => Ok(DIRECTORY),
            b".." => Ok(ROOT_INO),
            _ => {
                let kept = self.0.snapshots.read();
                let name = std::str::from_utf8(name).map_err(|_| Error::NotFound)?;
                Ok(root_of(named(&kept, name)?))
            }
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.check(ino)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.check(ino)?;
        Err(Error::Invalid)
    }

    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()> {
        rules::may_access(caller, &self.check(ino)?, None, mask)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        rules::may_open(caller, &self.check(ino)?, None, flags)?;
        self.0.views.handles().open(ino, flags)
    }

    fn release(&self, handle: Handle) -> Result<()> {
        self.0.views.handles().close(handle).map(drop)
    }

    fn opened(&self, handle: Handle) -> Result<Ino> {
        Ok(self.0.views.handles().get(handle)?.number)
    }

    fn read(&self, _: Handle, _: u64, _: &mut [u8]) -> Result<usize> {
        Err(Error::IsDirectory)
    }

    fn read_slices(&self, _: Handle, _: u64, _: usize, _: &mut dyn FnMut(&[u8])) -> Result<usize> {
        Err(Error::IsDirectory)
    }

    /// A snapshot's cookie is its version, moved up behind those of the dots. A damaged list ends with an error, behind those that it tells
    /// of: it is not taken for one that is empty.
    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.check(dir)?;
        let kind = FileKind::Directory;
        for (next, name, ino) in [(1, b"." as &[u8], DIRECTORY), (2, b"..", ROOT_INO)] {
            if from < next && !sink(DirEntry { ino, kind, next, name }) {
                return Ok(());
            }
        }
        let (kept, mut is_end) = (self.0.snapshots.read(), from >= DOTS);
        let mut version = from.saturating_sub(DOTS).min(u32::MAX.into()) as u32;
        while let Some(record) = kept.after(version) {
            version = record.version;
            let (next, name) = (DOTS + u64::from(version), record.name.as_bytes());
            if record.state == State::Kept {
                is_end = false;
                if !sink(DirEntry { ino: root_of(record), kind, next, name }) {
                    return Ok(());
                }
            }
        }
        if is_end { Ok(self.0.check_list()?) } else { Ok(()) }
    }

    fn statfs(&self) -> Result<Statfs> {
        self.0.statfs()
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        rules::xattr_permission(caller, &self.check(ino)?, None, name, false)?;
        Err(Error::NoAttribute)
    }

    fn listxattr(&self, _: &Caller, ino: Ino) -> Result<Vec<u8>> {
        self.check(ino)?;
        Ok(Vec::new())
    }

    fn seek(&self, _: Handle, _: SeekFrom) -> Result<u64> {
        Err(Error::IsDirectory)
    }
}
