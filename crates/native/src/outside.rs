//! How a volume shows its snapshots: `.snapshots/NAME/...` in its root directory, which does not list it.

use vfs::{
    Attr, Caller, DirEntry, Error, FileKind, Handle, Ino, InodeFlags, OpenFlags, ROOT_INO, Result, SeekFrom,
    Statfs, rules,
};

use crate::core::Core;
use crate::kept::{Record, State};
use crate::read_only::{ReadOnly, Readable, Tree};
use crate::snapshots::named;
use crate::view::{Numbering, SnapshotView};
use crate::views::{DIRECTORY, DOTS, is_directory, is_one_tree, is_own, version_of};

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
        self.outside(self.views.handles().held(handle)?.number, call)
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
            flags: InodeFlags::empty(),
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
