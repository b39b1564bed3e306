//! Names: look up, create, link, unlink, rename, list.

use vfs::rules;
use vfs::{
    Attr, Caller, Created, DirEntry, Error, FileKind, Handle, Ino, InodeFlags, OpenFlags, ROOT_INO, Result,
    SYMLINK_MAX, Time, acl,
};

use crate::allocator::Urgency;
use crate::core::{Core, Operation};
use crate::directory::{Probe, Spot};
use crate::fault::{Fault, planted};
use crate::handles::Opening;
use crate::inode::{Cold, Hot, Inode, PAYLOAD_BYTES};
use crate::node::number;
use crate::record::Item;
use crate::xattr;

/// Most links an inode can have.
pub(crate) const LINK_MAX: u32 = u32::MAX - 1;
/// Blocks an operation on names takes at most: copies of the inodes and directory pages it touches, and a chain of
/// bucket splits.
pub(crate) const NAMES_BLOCKS: u64 = 32;
/// Bytes its items take at most, without a symbolic link's target or inherited ACLs.
pub(crate) const NAMES_LOG: usize = 1024;
/// Bytes of an inherited ACL at most: it was stored as an extended attribute.
pub(crate) const ACL_LOG: usize = 2 * (xattr::TOTAL_MAX + 64);

/// What to make.
pub(crate) struct New<'a> {
    ino: u32,
    mode: u32,
    rdev: u32,
    /// A symbolic link's target.
    target: &'a [u8],
    /// The key of the entry that is to name it; 0 if none is.
    key: u64,
}

impl New<'_> {
    /// What a rename leaves behind that is to hide a name of an overlay's lower layer (`RENAME_WHITEOUT`).
    pub(crate) fn whiteout(ino: u32, key: u64) -> New<'static> {
        New { ino, mode: FileKind::CharDevice.mode_bits(), rdev: 0, target: b"", key }
    }
}

impl Core {
    pub(crate) fn lookup(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        let dir = number(dir)?;
        {
            let _lock = self.locks.read(dir);
            let ino = self.nodes.find(caller, self.inode(dir)?, name)?.ok_or(Error::NotFound)?;
            if let Some(attr) = self.attr_glimpse(ino) {
                return Ok(attr);
            }
        }
        self.locks.read_both(
            dir,
            || self.nodes.find(caller, self.inode(dir)?, name)?.ok_or(Error::NotFound),
            |ino| Ok(self.inode(ino)?.attr()),
        )
    }

    /// Checks that `caller` may add an entry to `dir`.
    fn check_addition(&self, caller: &Caller, dir: Inode<'_>) -> Result<()> {
        if dir.hot().nlink.get() == 0 {
            return Err(Error::NotFound);
        }
        rules::may_create(caller, &dir.attr(), self.nodes.access_acl(dir)?)
    }

    /// Checks that `caller` may make `name` in `dir` (locked), and that it is free. Returns where an entry with it would be.
    fn check_new(&self, caller: &Caller, dir: Inode<'_>, name: &[u8]) -> Result<Spot> {
        match self.nodes.probe(caller, dir, name)? {
            Some(Probe::Vacant(spot)) => self.check_addition(caller, dir).map(|()| spot),
            Some(Probe::Found(..)) | None => Err(Error::Exists),
        }
    }

    /// Logs a new inode in the manner of directory `dir`: its group, its default ACL, the umask.
    pub(crate) fn make(
        &self,
        operation: &mut Operation<'_>,
        caller: &Caller,
        dir: Inode<'_>,
        new: &New<'_>,
        nlink: u32,
        at: Time,
    ) -> Result<()> {
        let ino = new.ino;
        let (mode, gid) = rules::new_inode(caller, &dir.attr(), new.mode);
        let kind = FileKind::from_mode(mode).ok_or(Error::Invalid)?;
        let inherited = if kind == FileKind::Symlink {
            acl::Inherited { mode, access: None, default: None }
        } else {
            let default = xattr::get(&self.nodes, dir, acl::DEFAULT)?;
            acl::inherit(default, mode, caller.umask, kind == FileKind::Directory)?
        };
        let stored = |name: &[u8], value: &Option<Vec<u8>>| {
            value.as_ref().map_or(0, |value| xattr::stored_bytes(name, value))
        };
        if stored(acl::ACCESS, &inherited.access) + stored(acl::DEFAULT, &inherited.default)
            > xattr::TOTAL_MAX
        {
            return Err(Error::NoSpace);
        }
        let parent = if new.key == 0 { 0 } else { dir.ino };
        let generation = self.next_generation();
        let cold = Cold::new(inherited.mode, caller.uid, gid, new.rdev, generation, 0, at);
        let cold = cold.entered(parent, new.key);
        let hot = Hot::new(new.target.len() as u64, at, at, nlink)
            .with_flags(dir.hot().flags() & InodeFlags::INHERITED);
        if new.target.len() <= PAYLOAD_BYTES {
            operation.log(&Item::Create { ino, cold: &cold, hot: &hot });
            if !new.target.is_empty() {
                operation.log(&Item::Inline { ino, offset: 0, bytes: new.target });
            }
        } else {
            operation.log(&Item::Create { ino, cold: &cold, hot: &hot.sized(0) });
            operation.log(&Item::Spill { ino });
            self.log_new_block(operation, ino, 0, new.target)?;
            operation.log(&Item::Hot { ino, hot: &hot });
        }
        for (name, value) in [(acl::ACCESS, inherited.access), (acl::DEFAULT, inherited.default)] {
            if let Some(value) = value {
                operation.log(&Item::SetXattr { ino, name, value: &value });
            }
        }
        Ok(())
    }

    /// Makes an inode with a name; returns its attributes, and a handle if it is to be opened.
    fn make_named(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        target: &[u8],
        check: impl Fn(Inode<'_>) -> Result<(u32, u32)>,
        open: Option<OpenFlags>,
    ) -> Result<(Attr, Option<Handle>)> {
        let dir = number(dir)?;
        let log = NAMES_LOG + target.len() + ACL_LOG;
        let mut operation = self.begin(NAMES_BLOCKS, log, Urgency::Ordinary)?;
        // Nobody can know the number yet: it needs no lock of the directory, which others may wait for.
        let ino = operation.take_number()?;
        let opening = open.map(|flags| self.handles.open_new(ino, flags)).transpose()?;
        // Another new name is no affair of this one.
        let (lock, is_crowded) = self.locks.write_in_crowd(dir);
        let found = self.inode(dir).and_then(|parent| Ok((parent, self.check_new(caller, parent, name)?)));
        let (parent, spot) = found.inspect_err(|_| lock.settle())?;
        let key = spot.key;
        operation.seen.note(spot);
        let (mode, rdev) = check(parent)?;
        let kind = FileKind::from_mode(mode).ok_or(Error::Invalid)?;
        let is_dir = kind == FileKind::Directory;
        let at = Time::now();
        let new = New { ino, mode, rdev, target, key };
        self.make(&mut operation, caller, parent, &new, if is_dir { 2 } else { 1 }, at)?;
        let entry = Item::Enter { dir, key, ino, kind: kind as u8, name };
        let hot = parent.hot().modified(at).linked(i32::from(is_dir));
        // What others left there may not be durable yet.
        let is_there = hot == parent.hot() && (!is_crowded || planted(Fault::TimesLeftOut));
        let parent = (!is_there).then_some(Item::Hot { ino: dir, hot: &hot });
        // A new directory is one more link of its parent's: it counts those that others made.
        let is_beside = !is_dir || planted(Fault::AlwaysBeside);
        let committed = if is_beside && operation.may_be_beside(0) {
            let made = operation.logged();
            let applied = operation
                .begin_beside()
                .and_then(|()| operation.log_at_once(&entry))
                .and_then(|()| parent.iter().try_for_each(|item| operation.log_at_once(item)));
            match applied {
                Ok(()) => operation.commit_beside(lock, made, &[]).map(Ok),
                Err(error) => {
                    operation.give_up_beside(&[]);
                    drop(lock);
                    Err(error)
                }
            }
        } else {
            lock.settle();
            operation.log(&entry);
            parent.iter().for_each(|item| operation.log(item));
            operation.commit().map(|()| Err(lock))
        };
        let _nobody_else_yet = committed?;
        let made = operation.seen.inode(ino).map_or_else(|| self.inode(ino), |made| Ok(made.inode()))?;
        Ok((made.attr(), opening.map(Opening::keep)))
    }

    pub(crate) fn mknod(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        let check = |_: Inode<'_>| rules::may_mknod(caller, mode, rdev);
        Ok(self.make_named(caller, dir, name, b"", check, None)?.0)
    }

    pub(crate) fn mkdir(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let mode = FileKind::Directory.mode_bits() | (mode & 0o7777);
        let check = |parent: Inode<'_>| {
            if parent.hot().nlink.get() >= LINK_MAX { Err(Error::TooManyLinks) } else { Ok((mode, 0)) }
        };
        Ok(self.make_named(caller, dir, name, b"", check, None)?.0)
    }

    pub(crate) fn symlink(&self, caller: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > SYMLINK_MAX {
            return Err(Error::NameTooLong);
        }
        let mode = FileKind::Symlink.mode_bits() | 0o777;
        Ok(self.make_named(caller, dir, name, target, |_| Ok((mode, 0)), None)?.0)
    }

    pub(crate) fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let ino = number(ino)?;
        let _lock = self.locks.read(ino);
        self.nodes.target(ino)
    }

    pub(crate) fn create(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
    ) -> Result<Created> {
        let mode = FileKind::Regular.mode_bits() | (mode & 0o7777);
        loop {
            let check = |_: Inode<'_>| {
                let opens = flags.intersects(OpenFlags::READ | OpenFlags::WRITE);
                if opens { Ok((mode, 0)) } else { Err(Error::Invalid) }
            };
            match self.make_named(caller, dir, name, b"", check, Some(flags)) {
                Ok((attr, handle)) => {
                    return Ok(Created { attr, handle: handle.expect("asked for"), new: true });
                }
                Err(Error::Exists) if !flags.contains(OpenFlags::EXCLUSIVE) => {}
                Err(error @ (Error::NoSpace | Error::ReadOnly)) if !flags.contains(OpenFlags::EXCLUSIVE) => {
                    // What exists can be opened all the same.
                    if let Err(Error::NotFound) = self.lookup(caller, dir, name) {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
            let attr = match self.lookup(caller, dir, name) {
                Err(Error::NotFound) => continue, // removed in between
                found => found?,
            };
            if attr.is_dir() {
                return Err(Error::IsDirectory);
            }
            match self.open(caller, attr.ino, flags) {
                Err(Error::Stale) => continue,
                opened => {
                    let handle = opened?;
                    let attr = self.or_release(handle, self.getattr(attr.ino))?;
                    return Ok(Created { attr, handle, new: false });
                }
            }
        }
    }

    pub(crate) fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, flags: OpenFlags) -> Result<Created> {
        if !flags.contains(OpenFlags::WRITE) {
            return Err(Error::Invalid);
        }
        let dir = number(dir)?;
        let mut operation = self.begin(NAMES_BLOCKS, NAMES_LOG + ACL_LOG, Urgency::Ordinary)?;
        let lock = self.locks.write(dir);
        let parent = self.inode(dir)?;
        if parent.kind() != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        self.check_addition(caller, parent)?;
        let mode = FileKind::Regular.mode_bits() | (mode & 0o7777);
        let ino = operation.take_number()?;
        let new = New { ino, mode, rdev: 0, target: b"", key: 0 };
        self.make(&mut operation, caller, parent, &new, 0, Time::now())?;
        let handle = self.handles.open(ino, flags)?;
        let linkable = !flags.intersects(OpenFlags::EXCLUSIVE | OpenFlags::UNLINKABLE);
        self.handles.set_linkable(ino, linkable);
        let orphans = self.orphans.lock();
        let entered = match self.log_orphan(&mut operation, ino) {
            Ok(()) => operation.commit(),
            Err(error) => Err(error), // its number goes back behind its handle
        };
        if let Err(error) = entered {
            self.handles.close(handle)?;
            return Err(error);
        }
        let attr = self.inode(ino).map(|inode| inode.attr());
        drop((orphans, lock, operation));
        Ok(Created { attr: self.or_release(handle, attr)?, handle, new: true })
    }

    pub(crate) fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let ino = number(ino)?;
        if flags.contains(OpenFlags::TRUNCATE) {
            return self.open_truncating(caller, ino, flags);
        }
        let is_refused = flags.contains(OpenFlags::WRITE) && self.options.read_only;
        if !is_refused && let Some(opened) = self.open_glimpse(caller, ino, flags) {
            return opened;
        }
        let _lock = self.locks.read(ino);
        let inode = self.inode(ino)?;
        if is_refused {
            return Err(Error::ReadOnly);
        }
        self.nodes.may_open(caller, inode, flags)?;
        self.handles.open(ino, flags)
    }

    pub(crate) fn link(&self, caller: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let (ino, dir) = (number(ino)?, number(dir)?);
        let mut operation = self.begin(NAMES_BLOCKS, NAMES_LOG, Urgency::Ordinary)?;
        let _locks = self.locks.write_all(&[ino, dir]);
        let (source, parent) = (self.inode(ino)?, self.inode(dir)?);
        let spot = self.check_new(caller, parent, name)?;
        rules::may_link(caller, &source.attr())?;
        let nlink = source.hot().nlink.get();
        if nlink == 0 && !self.handles.is_linkable(ino) {
            return Err(Error::NotFound);
        }
        if nlink >= LINK_MAX {
            return Err(Error::TooManyLinks);
        }
        let at = Time::now();
        operation.seen.note(spot);
        operation.log(&Item::Enter { dir, key: spot.key, ino, kind: source.kind() as u8, name });
        operation.log_hot(parent, &parent.hot().modified(at));
        operation.log_hot(source, &source.hot().changed(at).linked(1));
        if nlink == 0 {
            let _orphans = self.orphans.lock();
            self.log_adopted(&mut operation, ino)?;
            operation.commit()?;
            self.handles.set_linkable(ino, false);
        } else {
            operation.commit()?;
        }
        Ok(self.inode(ino)?.attr())
    }

    /// Runs `then` on the locked pair of `dir` and what `name` is in it, whose entry is noted (none if it is `.` or `..`).
    fn with_victim(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        then: impl Fn(&mut Operation<'_>, Inode<'_>, u32, u64) -> Result<()>,
    ) -> Result<()> {
        let dir = number(dir)?;
        // What is removed is locked below: not the directory itself, nor its parent.
        let find = || -> Result<(Inode<'_>, u32, Option<Spot>)> {
            let parent = self.inode(dir)?;
            if matches!(name, b"." | b"..") {
                self.nodes.find(caller, parent, name)?.ok_or(Error::NotFound)?;
                return Ok((parent, dir, None));
            }
            let (victim, spot) = self.nodes.find_entry(caller, parent, name)?.ok_or(Error::NotFound)?;
            Ok((parent, victim, Some(spot)))
        };
        let note = |operation: &mut Operation<'_>, spot: Option<Spot>| {
            spot.into_iter().for_each(|spot| operation.seen.note(spot));
            spot.map_or(0, |spot| spot.key)
        };
        let mut operation = self.begin(NAMES_BLOCKS, NAMES_LOG, Urgency::Deletion)?;
        {
            let _lock = self.locks.write(dir);
            let (parent, victim, spot) = find()?;
            if let Some(_victim_lock) = self.locks.try_write(victim, &[dir]) {
                let key = note(&mut operation, spot);
                return then(&mut operation, parent, victim, key);
            }
        }
        drop(operation);
        // Somebody has the victim locked: take both locks in order, and see whether it is still the one.
        loop {
            let victim = {
                let _lock = self.locks.read(dir);
                find()?.1
            };
            let mut operation = self.begin(NAMES_BLOCKS, NAMES_LOG, Urgency::Deletion)?;
            let _locks = self.locks.write_all(&[dir, victim]);
            let (parent, again, spot) = find()?;
            if again == victim {
                let key = note(&mut operation, spot);
                return then(&mut operation, parent, victim, key);
            }
        }
    }

    pub(crate) fn unlink(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        self.with_victim(caller, dir, name, |operation, parent, victim, key| {
            rules::check_unlink_name(name)?;
            let inode = self.inode(victim)?;
            rules::may_delete(caller, &parent.attr(), self.nodes.access_acl(parent)?, &inode.attr())?;
            if inode.kind() == FileKind::Directory {
                return Err(Error::IsDirectory);
            }
            self.remove_name(operation, parent, key, inode)
        })
    }

    pub(crate) fn rmdir(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        self.with_victim(caller, dir, name, |operation, parent, victim, key| {
            rules::check_rmdir_name(name)?;
            let inode = self.inode(victim)?;
            rules::may_delete(caller, &parent.attr(), self.nodes.access_acl(parent)?, &inode.attr())?;
            if inode.kind() != FileKind::Directory {
                return Err(Error::NotDirectory);
            }
            if inode.derived().entries.get() != 0 {
                return Err(Error::NotEmpty);
            }
            self.remove_name(operation, parent, key, inode)
        })
    }

    /// Takes the entry with `key` out of `parent`; `victim` loses a link, or with it its life.
    fn remove_name(
        &self,
        operation: &mut Operation<'_>,
        parent: Inode<'_>,
        key: u64,
        victim: Inode<'_>,
    ) -> Result<()> {
        let at = Time::now();
        operation.log(&Item::Leave { dir: parent.ino, key });
        let is_dir = victim.kind() == FileKind::Directory;
        let hot = parent.hot().modified(at).linked(-i32::from(is_dir));
        operation.log_hot(parent, &hot);
        self.commit_unnamed(operation, victim, at)
    }

    pub(crate) fn readdir(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let ino = number(dir)?;
        let _lock = self.locks.read(ino);
        self.nodes.list(ino, from, (0, ROOT_INO), sink)
    }
}
