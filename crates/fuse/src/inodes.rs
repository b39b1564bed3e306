//! The inodes that the kernel holds, and the volume's handles on them.
//!
//! The mount answers the kernel's first `open` with "never ask again" (`FUSE_NO_OPEN_SUPPORT`), and the first `create`, so opening and
//! closing a file costs no message, nor does closing one that was just made. In exchange nobody tells the server which files are open. What it is told
//! is which *inodes* the kernel holds: each answer that names an inode adds one to a count, and a `forget`
//! takes the count back when the kernel drops the inode, which it never does while the file is open, mapped or
//! someone's working directory. So:
//!
//! - the first read or write of an inode opens it in the volume, for all who will ever ask, and a bounded number
//!   of those handles is kept;
//! - before an inode of whatever kind may lose its last name, the server opens it; if the name was the last one, that handle
//!   stays until the kernel forgets the inode. Open-but-unlinked files live as long as POSIX says, and so do
//!   removed directories that someone works in. **No number that the kernel holds becomes another inode's.**

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vfs::{Caller, Error, FileSystem, Handle, Ino, InoMap, InodeFlags, OpenFlags, ROOT_INO, Result};

use crate::nameless::Nameless;
use crate::refused::Refused;

/// Independent parts of the table, so that threads seldom meet.
const SHARDS: usize = 32;
/// Handles kept open in one shard for inodes that have a name, but for those of before they were protected: 2,048 in all.
const OPEN_MAX: usize = 64;

/// A handle that closes itself.
pub(crate) struct OpenFile {
    volume: Arc<dyn FileSystem>,
    handle: Handle,
    /// Why its contents cannot be changed, if they cannot.
    protection: Option<Error>,
}

impl OpenFile {
    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Err(error) = self.volume.release(self.handle) {
            tracing::error!("closing a file failed: {error}");
        }
    }
}

#[derive(Default)]
struct Node {
    /// How often the kernel was told of this inode, less what it has forgotten.
    lookups: u64,
    file: Option<Arc<OpenFile>>,
    /// Used since the last look at it by `Shard::trim`.
    recent: bool,
    /// The inode has no name left: this handle is all there is of it.
    last: Option<Arc<OpenFile>>,
    /// Opened before it was protected: what was written to its pages until then is still on its way.
    unprotected: Option<Arc<OpenFile>>,
    /// What of it was refused when it was written back, until a writer is told.
    refusal: Option<Box<Refused>>,
}

#[derive(Default)]
struct Shard {
    nodes: InoMap<Ino, Node>,
    /// Inodes in the order they were opened, for `trim`; may name some that are closed or forgotten.
    opened: VecDeque<Ino>,
}

impl Shard {
    /// Takes handles out until few enough are open, longest unused first (second chance).
    fn trim(&mut self, closing: &mut Vec<Arc<OpenFile>>) {
        let mut patience = 2 * self.opened.len();
        while self.opened.len() > OPEN_MAX && patience > 0 {
            patience -= 1;
            let Some(ino) = self.opened.pop_front() else { return };
            let Some(node) = self.nodes.get_mut(&ino) else { continue };
            if node.file.is_none() {
                continue;
            }
            if std::mem::take(&mut node.recent) {
                self.opened.push_back(ino);
            } else {
                closing.extend(node.file.take());
            }
        }
    }

    /// Keeps `file` as the handle of `ino`.
    fn keep(&mut self, ino: Ino, file: Arc<OpenFile>, closing: &mut Vec<Arc<OpenFile>>) {
        let node = self.nodes.entry(ino).or_default();
        node.recent = true;
        closing.extend(node.file.replace(file));
        self.opened.push_back(ino);
        self.trim(closing);
    }
}

/// The table of inodes that the kernel holds.
pub(crate) struct Inodes {
    volume: Arc<dyn FileSystem>,
    read_only: bool,
    shards: Box<[Mutex<Shard>]>,
    /// Something was refused, ever: as long as nothing was, nobody looks for it.
    any_refused: AtomicBool,
    pub(crate) nameless: Nameless,
}

impl Inodes {
    pub(crate) fn new(volume: Arc<dyn FileSystem>, read_only: bool) -> Inodes {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Inodes {
            volume,
            read_only,
            shards,
            any_refused: AtomicBool::new(false),
            nameless: Nameless::default(),
        }
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard> {
        // A thread that panicked in here left the shard whole: it changes one field at a time.
        self.shards[ino as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel is about to be told of `ino`.
    pub(crate) fn remember(&self, ino: Ino) {
        if ino != ROOT_INO {
            self.shard(ino).nodes.entry(ino).or_default().lookups += 1;
        }
    }

    /// As `remember`, for an inode that the volume has just created and opened without a name: its handle is all there is of it,
    /// and stays.
    pub(crate) fn remember_nameless(&self, ino: Ino, handle: Handle) {
        let file = Arc::new(OpenFile { volume: self.volume.clone(), handle, protection: None });
        let mut closing = Vec::new();
        let mut shard = self.shard(ino);
        let node = shard.nodes.entry(ino).or_default();
        node.lookups += 1;
        let before = node.last.replace(file.clone());
        if before.is_none() {
            self.nameless.hold();
        }
        closing.extend(before);
        shard.keep(ino, file, &mut closing);
        drop(shard);
    }

    /// `ino` has been given a name.
    pub(crate) fn named(&self, ino: Ino) {
        let last = self.shard(ino).nodes.get_mut(&ino).and_then(|node| node.last.take());
        if last.is_some() {
            self.nameless.named();
        }
        drop(last);
    }

    /// The kernel gives back `count` of the times it was told of `ino`.
    pub(crate) fn forget(&self, ino: Ino, count: u64) {
        let mut shard = self.shard(ino);
        let Some(node) = shard.nodes.get_mut(&ino) else { return };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups > 0 {
            return;
        }
        let is_nameless = node.last.is_some();
        let go = || {
            let node = shard.nodes.remove(&ino);
            drop(shard);
            drop(node); // With its handle, an orphan goes in the volume.
        };
        if is_nameless { self.nameless.let_go(go) } else { go() }
    }

    /// Whether the kernel holds any inode whose number is such.
    pub(crate) fn holds_any(&self, is_such: &dyn Fn(Ino) -> bool) -> bool {
        (0..SHARDS as Ino).any(|shard| self.shard(shard).nodes.keys().any(|ino| is_such(*ino)))
    }

    /// The names in the root directory that it lists, each with its inode.
    pub(crate) fn in_root(&self) -> Result<Vec<(Ino, Vec<u8>)>> {
        let mut names = Vec::new();
        self.volume.readdir(ROOT_INO, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push((entry.ino, entry.name.to_vec()));
            }
            true
        })?;
        Ok(names)
    }

    /// Whether the kernel holds `ino`.
    pub(crate) fn holds(&self, ino: Ino) -> bool {
        self.shard(ino).nodes.contains_key(&ino)
    }

    /// The handle on `ino`, opened now if it was not.
    pub(crate) fn file(&self, ino: Ino) -> Result<Arc<OpenFile>> {
        let mut closing = Vec::new();
        let mut shard = self.shard(ino);
        if let Some(node) = shard.nodes.get_mut(&ino)
            && let Some(file) = &node.file
        {
            node.recent = true;
            return Ok(file.clone());
        }
        let wanted = if self.read_only { OpenFlags::READ } else { OpenFlags::READ | OpenFlags::WRITE };
        let file = Arc::new(self.open(ino, wanted)?);
        if shard.nodes.contains_key(&ino) {
            shard.keep(ino, file.clone(), &mut closing);
        }
        drop(shard);
        Ok(file)
    }

    /// The same, for who changes its contents.
    pub(crate) fn file_to_change(&self, ino: Ino) -> Result<Arc<OpenFile>> {
        let file = self.file(ino)?;
        match &file.protection {
            Some(why) => Err(why.clone()),
            None => Ok(file),
        }
    }

    /// The same, for the kernel, which writes back what programs wrote to its pages: some of them before the file was protected.
    pub(crate) fn file_of_pages(&self, ino: Ino) -> Result<Arc<OpenFile>> {
        let unprotected = self.shard(ino).nodes.get(&ino).and_then(|node| node.unprotected.clone());
        unprotected.map_or_else(|| self.file_to_change(ino), Ok)
    }

    /// Runs `change`, after which it may be otherwise whether contents of `ino` can be changed: it is opened anew.
    pub(crate) fn reopened<T>(&self, ino: Ino, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = self.file_to_change(ino).ok();
        let changed = change()?;
        let is_protected = self.volume.getattr(ino)?.flags.contains(InodeFlags::IMMUTABLE);
        let closed = self.shard(ino).nodes.get_mut(&ino).map(|node| {
            let before = node.unprotected.take().or(before);
            let (kept, closed) = if is_protected { (before, None) } else { (None, before) };
            node.unprotected = kept;
            (node.file.take(), closed)
        });
        drop(closed);
        Ok(changed)
    }

    /// Whether something may be on its way that was written to `ino` before it was protected.
    pub(crate) fn has_older_pages(&self, ino: Ino) -> bool {
        self.shard(ino).nodes.get(&ino).is_some_and(|node| node.unprotected.is_some())
    }

    /// Whether the kernel may have pages of `ino` that programs have stored to, by a mapping at least, and that are not here yet. `file` is
    /// its handle.
    pub(crate) fn may_have_dirty_pages(&self, ino: Ino, file: &OpenFile) -> bool {
        !self.read_only && (file.protection.is_none() || self.has_older_pages(ino))
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> Result<OpenFile> {
        let server = Caller::checked_by_kernel(0, 0, 0);
        let (handle, protection) = match self.volume.open(&server, ino, flags) {
            // Of a volume that has turned read-only, files can still be read, and so can those that nobody may change.
            Err(why @ (Error::ReadOnly | Error::NotPermitted)) => {
                (self.volume.open(&server, ino, OpenFlags::READ)?, Some(why))
            }
            opened => (opened?, None),
        };
        Ok(OpenFile { volume: self.volume.clone(), handle, protection })
    }

    /// `ino` is about to lose a name: returns a handle, to be held until `after_unlink`, that keeps it alive for the kernel, which
    /// may go on using it; none if the kernel does not hold it.
    pub(crate) fn before_unlink(&self, ino: Ino) -> Result<Option<Arc<OpenFile>>> {
        match self.shard(ino).nodes.get(&ino) {
            None => return Ok(None),
            Some(Node { file: Some(file), .. }) => return Ok(Some(file.clone())),
            Some(_) => {}
        }
        self.open(ino, OpenFlags::PATH).map(|file| Some(Arc::new(file)))
    }

    /// `ino` has lost a name. If it was the last one, keeps `pin` until the kernel forgets the inode.
    pub(crate) fn after_unlink(&self, ino: Ino, pin: Arc<OpenFile>) {
        if self.volume.getattr(ino).is_ok_and(|attr| attr.nlink > 0) {
            return;
        }
        if let Some(node) = self.shard(ino).nodes.get_mut(&ino)
            && node.last.is_none()
        {
            node.last = Some(pin);
            self.nameless.hold_new();
        }
    }

    /// Remembers that `bytes` were refused, as long as the kernel holds `ino`.
    pub(crate) fn refused(&self, ino: Ino, why: Error, bytes: Range<u64>) {
        self.any_refused.store(true, Ordering::Relaxed);
        if let Some(node) = self.shard(ino).nodes.get_mut(&ino) {
            match &mut node.refusal {
                Some(refused) => refused.add(why, bytes),
                none => *none = Some(Box::new(Refused::new(why, bytes))),
            }
        }
    }

    /// `bytes` have been written, and may be what was refused before.
    pub(crate) fn written(&self, ino: Ino, bytes: &Range<u64>) {
        if self.any_refused.load(Ordering::Relaxed)
            && let Some(node) = self.shard(ino).nodes.get_mut(&ino)
        {
            node.refusal.take_if(|refused| refused.written(bytes));
        }
    }

    /// What was refused of `ino` that a writer may have to be told.
    pub(crate) fn refusal(&self, ino: Ino) -> Option<Error> {
        if !self.any_refused.load(Ordering::Relaxed) {
            return None;
        }
        self.shard(ino).nodes.get(&ino)?.refusal.as_ref().map(|refused| refused.why.clone())
    }

    /// `ino` was cut, and what was refused with it.
    pub(crate) fn forget_refusal(&self, ino: Ino) {
        if let Some(node) = self.shard(ino).nodes.get_mut(&ino) {
            node.refusal = None;
        }
    }

    /// The error that a writer of `ino` is to be told, once.
    pub(crate) fn take_refusal(&self, ino: Ino) -> Option<Error> {
        self.shard(ino).nodes.get_mut(&ino)?.refusal.take().map(|refused| refused.why)
    }

    /// Closes everything; the session is over.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            // The volume closes handles after the lock is free.
            let shard = std::mem::take(&mut *shard.lock().unwrap_or_else(PoisonError::into_inner));
            drop(shard);
        }
    }
}
