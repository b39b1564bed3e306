//! Names: look up, make, link, unlink, list.
//!
//! Each is one operation. What is looked at before it is decided is looked at in the same operation, so nothing is between.

#[cfg(test)]
mod tests;

use vfs::rules;
use vfs::{
    Attr, Caller, Created, DirEntry, Error, FileKind, Handle, Ino, OpenFlags, Result, SYMLINK_MAX, Time, acl,
};

use crate::core::inode::{self, Inode};
use crate::core::{Core, alloc};
use crate::directory::{Gap, Look};
use crate::error::corrupt;
use crate::features::RoCompat;
use crate::store::Kind;
use crate::volume::Volume;
use crate::{data, directory, map, orphans, xattr};

/// Most names of an inode. A directory with a tree may have more directories, which are not counted then, if the file system says so.
const LINKS_MAX: u32 = 65_000;

/// An inode that users may see.
pub(crate) fn visible(core: &Core, ino: Ino) -> Result<Inode> {
    inode::read(core, inode::from_vfs(&core.superblock, ino)?)
}

/// The list that permissions depend on. For a caller whom nobody denies anything it is not looked up.
pub(crate) fn access_acl(core: &Core, caller: &Caller, inode: &Inode) -> Result<Option<Vec<u8>>> {
    if caller.is_privileged() { Ok(None) } else { stored_acl(core, inode, acl::ACCESS) }
}

/// A list that an inode has.
pub(crate) fn stored_acl(core: &Core, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
    match xattr::get(core, inode, name) {
        Ok(list) => Ok(Some(list)),
        Err(Error::NoAttribute) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The inode that `name` is of in `dir`, if there is one.
pub(crate) fn find(core: &Core, caller: &Caller, dir: &Inode, name: &[u8]) -> Result<Option<Inode>> {
    match look(core, caller, dir, name)? {
        Look::There(inode) => Ok(Some(inode)),
        Look::Not(_) => Ok(None),
    }
}

/// The same, for who may want to give the name to another inode if there is none.
fn look(core: &Core, caller: &Caller, dir: &Inode, name: &[u8]) -> Result<Look<Inode, Gap>> {
    let list = if dir.is_dir() { access_acl(core, caller, dir)? } else { None };
    rules::may_search(caller, &dir.attr(), list.as_deref())?;
    rules::check_name(name)?;
    let number = match directory::look(core, dir, name)? {
        Look::Not(gap) => return Ok(Look::Not(gap)),
        Look::There(number) => number,
    };
    let found = visible(core, inode::to_vfs(number));
    found.map(Look::There).map_err(|error| dangling(dir, name, number, error))
}

/// The same; [`Error::NotFound`] if there is none.
pub(crate) fn existing(core: &Core, caller: &Caller, dir: &Inode, name: &[u8]) -> Result<Inode> {
    find(core, caller, dir, name)?.ok_or(Error::NotFound)
}

/// An entry that leads to an inode which is not in use, or not for users, is damage of the directory.
fn dangling(dir: &Inode, name: &[u8], number: u32, error: Error) -> Error {
    if error != Error::Stale {
        return error;
    }
    let name = String::from_utf8_lossy(name).escape_debug().to_string();
    let found = format_args!("{number}, which is not in use");
    corrupt(
        "directory",
        format_args!("inode {}", dir.number),
        &format!("the inode of '{name}'"),
        found,
        "a file's",
    )
}

/// Checks that `caller` may add an entry to `dir`.
fn check_addition(core: &Core, caller: &Caller, dir: &Inode) -> Result<()> {
    if dir.is_dir() && dir.links == 0 {
        return Err(Error::NotFound);
    }
    rules::may_create(caller, &dir.attr(), access_acl(core, caller, dir)?.as_deref())
}

/// Adds an entry to a directory.
pub(crate) fn enter(core: &Core, dir: u32, name: &[u8], inode: &Inode, at: Time) -> Result<()> {
    let mut dir = inode::read(core, dir)?;
    directory::insert(core, &mut dir, name, inode.number, inode.kind())?;
    modified(core, dir, at)
}

/// The same, where the entry has room, if that is known: in an operation that has looked for the name in `dir`, and changed no entry since.
fn enter_at(
    core: &Core,
    mut dir: Inode,
    gap: Option<Gap>,
    name: &[u8],
    inode: &Inode,
    at: Time,
) -> Result<()> {
    match gap {
        Some(gap) => directory::insert_at(core, &dir, &gap, name, inode.number, inode.kind())?,
        None => directory::insert(core, &mut dir, name, inode.number, inode.kind())?,
    }
    modified(core, dir, at)
}

/// Takes an entry out of a directory.
pub(crate) fn leave(core: &Core, dir: u32, name: &[u8], at: Time) -> Result<()> {
    let dir = inode::read(core, dir)?;
    directory::remove(core, &dir, name)?;
    modified(core, dir, at)
}

/// Lets an entry of a directory lead to another inode.
pub(crate) fn relink(core: &Core, dir: u32, name: &[u8], inode: &Inode, at: Time) -> Result<()> {
    let dir = inode::read(core, dir)?;
    directory::replace(core, &dir, name, inode.number, inode.kind())?;
    modified(core, dir, at)
}

fn modified(core: &Core, mut dir: Inode, at: Time) -> Result<()> {
    (dir.times.modify, dir.times.change) = (at, at);
    inode::write(core, &dir)
}

/// A directory is in this one.
pub(crate) fn gain_directory(core: &Core, dir: u32) -> Result<()> {
    let mut dir = inode::read(core, dir)?;
    count_directory(core, &mut dir)?;
    inode::write(core, &dir)
}

/// The `..` of a directory in this one is one more link. [`Error::TooManyLinks`] if they cannot be counted and must be.
fn count_directory(core: &Core, dir: &mut Inode) -> Result<()> {
    let need_not = core.superblock.features.ro_compat.contains(RoCompat::DIR_NLINK);
    match dir.links {
        // They are not counted any more.
        1 => {}
        links if links < LINKS_MAX => dir.links += 1,
        _ if need_not && directory::is_indexed(core, dir) => dir.links = 1,
        _ => return Err(Error::TooManyLinks),
    }
    Ok(())
}

/// A directory is no longer in this one.
pub(crate) fn lose_directory(core: &Core, dir: u32) -> Result<()> {
    let mut dir = inode::read(core, dir)?;
    if dir.links > 2 {
        dir.links -= 1;
        inode::write(core, &dir)?;
    }
    Ok(())
}

/// What to make.
pub(crate) struct New<'a> {
    mode: u32,
    rdev: u32,
    /// A symbolic link's target.
    target: &'a [u8],
}

impl New<'_> {
    /// What a rename leaves behind that is to hide a name of an overlay's lower layer (`RENAME_WHITEOUT`).
    pub(crate) fn whiteout() -> New<'static> {
        New { mode: FileKind::CharDevice.mode_bits(), rdev: 0, target: b"" }
    }
}

/// Makes an inode in the manner of directory `dir`: its group, its default ACL, the umask.
pub(crate) fn make(
    core: &Core,
    caller: &Caller,
    dir: &Inode,
    new: &New<'_>,
    links: u32,
    at: Time,
) -> Result<Inode> {
    let (mode, gid) = match core.superblock.bsd_groups {
        true => (new.mode, dir.gid),
        false => rules::new_inode(caller, &dir.attr(), new.mode),
    };
    let kind = FileKind::from_mode(mode).ok_or(Error::Invalid)?;
    let inherited = if kind == FileKind::Symlink {
        acl::Inherited { mode, access: None, default: None }
    } else {
        let default = stored_acl(core, dir, acl::DEFAULT)?;
        acl::inherit(default.as_deref(), mode, caller.umask, kind == FileKind::Directory)?
    };
    let number = alloc::new_inode(core, dir.number, kind == FileKind::Directory)?;
    let mut inode = inode::new(core, number, inherited.mode, caller.uid, gid, at)?;
    inode.links = links;
    inode.flags |= dir.flags.inherited(kind);
    for (name, value) in [(acl::ACCESS, inherited.access), (acl::DEFAULT, inherited.default)] {
        if let Some(value) = value {
            xattr::set(core, &mut inode, name, Some(&value))?;
        }
    }
    match kind {
        FileKind::Directory => directory::make(core, &mut inode, dir.number)?,
        FileKind::Symlink => set_target(core, &mut inode, new.target)?,
        FileKind::CharDevice | FileKind::BlockDevice => inode.set_device(new.rdev),
        FileKind::Regular | FileKind::Fifo | FileKind::Socket => {}
    }
    inode::write(core, &inode)?;
    Ok(inode)
}

/// Gives a new symbolic link its target, which fits into a block.
fn set_target(core: &Core, inode: &mut Inode, target: &[u8]) -> Result<()> {
    if inode.set_fast_target(target) {
        return Ok(());
    }
    let at = alloc::metadata(core, core.superblock.group_of_inode_start(inode.number))?;
    map::insert(core, inode, 0, at, 1, true)?;
    core.store.make(Kind::Symlink(inode.number), at, |bytes| bytes[..target.len()].copy_from_slice(target));
    inode.size = target.len() as u64;
    Ok(())
}

/// Takes a name from an inode, whose entry is gone. Gives it if it is to be removed behind the operation.
pub(crate) fn unlink(volume: &Volume, core: &Core, number: u32, at: Time) -> Result<Option<u32>> {
    let mut inode = inode::read(core, number)?;
    inode.times.change = at;
    inode.links = if inode.is_dir() { 0 } else { inode.links.saturating_sub(1) };
    if inode.links > 0 {
        return inode::write(core, &inode).map(|()| None);
    }
    Ok(orphans::unlinked(volume, core, inode)?.then_some(number))
}

impl Volume {
    /// Makes an inode with a name: `what`, its mode and device, is asked when names and permissions allow one; `then` is the end of the
    /// operation.
    fn make_named<R>(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        what: impl Fn() -> Result<(u32, u32)>,
        target: &[u8],
        then: impl Fn(&Inode) -> R,
    ) -> Result<R> {
        self.operate(|core| {
            let mut parent = visible(core, dir)?;
            let Look::Not(gap) = look(core, caller, &parent, name)? else { return Err(Error::Exists) };
            self.check_writable()?;
            check_addition(core, caller, &parent)?;
            let _spared = core.space.spare(core, caller);
            let (mode, rdev) = what()?;
            let new = New { mode, rdev, target };
            let at = Time::now();
            let is_dir = FileKind::from_mode(new.mode) == Some(FileKind::Directory);
            if is_dir {
                count_directory(core, &mut parent)?;
            }
            let inode = make(core, caller, &parent, &new, if is_dir { 2 } else { 1 }, at)?;
            enter_at(core, parent, gap, name, &inode, at)?;
            Ok(then(&inode))
        })
    }

    pub(crate) fn lookup_name(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        loop {
            let number = self.reading(|| {
                let dir = visible(&self.core, dir)?;
                Ok(existing(&self.core, caller, &dir, name)?.number)
            })?;
            match self.attr(number) {
                Err(Error::Stale) => {} // removed in between: then so is the name
                found => return found,
            }
        }
    }

    pub(crate) fn make_node(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let what = || rules::may_mknod(caller, mode, rdev);
        self.make_named(caller, dir, name, what, b"", Inode::attr)
    }

    pub(crate) fn make_directory(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let mode = FileKind::Directory.mode_bits() | (mode & 0o7777);
        self.make_named(caller, dir, name, || Ok((mode, 0)), b"", Inode::attr)
    }

    pub(crate) fn make_link(&self, caller: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > SYMLINK_MAX {
            return Err(Error::NameTooLong);
        }
        let what = || match target.len() as u64 {
            // With a NUL behind it, which is not written, it has to fit into a block.
            length if length >= self.core.superblock.block => Err(Error::NameTooLong),
            _ => Ok((FileKind::Symlink.mode_bits() | 0o777, 0)),
        };
        self.make_named(caller, dir, name, what, target, Inode::attr)
    }

    pub(crate) fn read_target(&self, ino: Ino) -> Result<Vec<u8>> {
        self.reading(|| data::target(&self.core, &visible(&self.core, ino)?))
    }

    /// Makes and opens a file; nothing if there is one of the name, which may be opened.
    fn create_new(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
    ) -> Result<Option<Created>> {
        let mode = FileKind::Regular.mode_bits() | (mode & 0o7777);
        let what = || {
            let opens = flags.intersects(OpenFlags::READ | OpenFlags::WRITE);
            if opens { Ok((mode, 0)) } else { Err(Error::Invalid) }
        };
        let open = |inode: &Inode| (inode.attr(), self.open_locked(inode.number, flags));
        match self.make_named(caller, dir, name, what, b"", open) {
            Ok((attr, handle)) => Ok(Some(Created { attr, handle, new: true })),
            Err(Error::Exists) if !flags.contains(OpenFlags::EXCLUSIVE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn create_file(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
        open: impl Fn(Ino) -> Result<Handle>,
    ) -> Result<Created> {
        loop {
            if let Some(created) = self.create_new(caller, dir, name, mode, flags)? {
                return Ok(created);
            }
            // Removed in between, it is made after all.
            let attr = match self.lookup_name(caller, dir, name) {
                Err(Error::NotFound) => continue,
                found => found?,
            };
            if attr.is_dir() {
                return Err(Error::IsDirectory);
            }
            match open(attr.ino) {
                Err(Error::Stale) => continue,
                opened => {
                    let handle = opened?;
                    let attr = self.or_close(handle, self.attributes(attr.ino))?;
                    return Ok(Created { attr, handle, new: false });
                }
            }
        }
    }

    pub(crate) fn make_unnamed(
        &self,
        caller: &Caller,
        dir: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<Created> {
        if !flags.contains(OpenFlags::WRITE) {
            return Err(Error::Invalid);
        }
        let mode = FileKind::Regular.mode_bits() | (mode & 0o7777);
        self.operate(|core| {
            let parent = visible(core, dir)?;
            if !parent.is_dir() {
                return Err(Error::NotDirectory);
            }
            self.check_writable()?;
            check_addition(core, caller, &parent)?;
            let _spared = core.space.spare(core, caller);
            let new = New { mode, rdev: 0, target: b"" };
            let mut inode = make(core, caller, &parent, &new, 0, Time::now())?;
            orphans::insert(core, &mut inode)?;
            inode::write(core, &inode)?;
            if !flags.intersects(OpenFlags::EXCLUSIVE | OpenFlags::UNLINKABLE) {
                self.linkable.lock().insert(inode.number);
            }
            Ok(Created { attr: inode.attr(), handle: self.open_locked(inode.number, flags), new: true })
        })
    }

    pub(crate) fn add_name(&self, caller: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let number = self.operate(|core| {
            let mut source = visible(core, ino)?;
            let parent = visible(core, dir)?;
            let Look::Not(gap) = look(core, caller, &parent, name)? else { return Err(Error::Exists) };
            self.check_writable()?;
            check_addition(core, caller, &parent)?;
            rules::may_link(caller, &source.attr())?;
            let _spared = core.space.spare(core, caller);
            if source.links == 0 && !self.linkable.lock().contains(&source.number) {
                return Err(Error::NotFound);
            }
            if source.links >= LINKS_MAX {
                return Err(Error::TooManyLinks);
            }
            let at = Time::now();
            enter_at(core, parent, gap, name, &source, at)?;
            if source.links == 0 && !self.is_being_cut(source.number) {
                orphans::remove(core, &mut source)?;
            }
            source.links += 1;
            source.times.change = at;
            inode::write(core, &source)?;
            self.linkable.lock().remove(&source.number);
            Ok(source.number)
        })?;
        self.attr(number)
    }

    pub(crate) fn remove_name(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        self.remove_entry(caller, dir, name, rules::check_unlink_name, |_, inode| {
            if inode.is_dir() { Err(Error::IsDirectory) } else { Ok(()) }
        })
    }

    pub(crate) fn remove_directory(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        self.remove_entry(caller, dir, name, rules::check_rmdir_name, |core, inode| {
            if !inode.is_dir() {
                return Err(Error::NotDirectory);
            }
            if directory::is_empty(core, inode)? { Ok(()) } else { Err(Error::NotEmpty) }
        })
    }

    /// Removes a name, if `check_name` finds nothing against it, nor `check` behind what permissions say.
    fn remove_entry(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        check_name: impl Fn(&[u8]) -> Result<()>,
        check: impl Fn(&Core, &Inode) -> Result<()>,
    ) -> Result<()> {
        let left = self.operate(|core| {
            let parent = visible(core, dir)?;
            self.check_writable()?;
            let victim = existing(core, caller, &parent, name)?;
            check_name(name)?;
            let list = access_acl(core, caller, &parent)?;
            rules::may_delete(caller, &parent.attr(), list.as_deref(), &victim.attr())?;
            check(core, &victim)?;
            let at = Time::now();
            leave(core, parent.number, name, at)?;
            if victim.is_dir() {
                lose_directory(core, parent.number)?;
            }
            unlink(self, core, victim.number, at)
        })?;
        left.into_iter().for_each(|number| self.finish(number));
        Ok(())
    }

    pub(crate) fn list(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.reading(|| list(&self.core, dir, from, sink))
    }
}

fn list(core: &Core, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
    let dir = visible(core, dir)?;
    if !dir.is_dir() {
        return Err(Error::NotDirectory);
    }
    if dir.links == 0 {
        return Err(Error::NotFound);
    }
    let mut failure = None;
    directory::list(core, &dir, from, &mut |entry| {
        // Entries of old file systems don't say what they lead to.
        let kind = match entry.kind {
            Some(kind) => Ok(kind),
            None => inode::read(core, entry.inode).map(|inode| inode.kind()),
        };
        match kind {
            Ok(kind) => {
                let ino = inode::to_vfs(entry.inode);
                sink(DirEntry { ino, kind, next: entry.next, name: entry.name })
            }
            Err(error) => {
                failure = Some(dangling(&dir, entry.name, entry.inode, error));
                false
            }
        }
    })?;
    failure.map_or(Ok(()), Err)
}
