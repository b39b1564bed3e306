//! The namespace: entries are found, made, removed and renamed.

use super::contents::Contents;
use super::inode::{Body, Directory, Inode};
use super::state::State;
use crate::rules::{self, Side};
use crate::{
    Attr, Caller, Created, DirEntry, Error, FileKind, Handle, Ino, OpenFlags, ROOT_INO, RenameFlags, Result,
    SYMLINK_MAX, SetAttr, Time,
};

impl State {
    /// The entry `name` of `dir` if there is one, after permission to search.
    fn find(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        let inode = self.inode(dir)?;
        rules::may_search(caller, &inode.attr, inode.acl())?;
        rules::check_name(name)?;
        let directory = inode.directory()?;
        Ok(match name {
            b"." => Some(dir),
            b".." if inode.is_dead_directory() => None,
            b".." => Some(directory.parent),
            _ => directory.get(name),
        })
    }

    pub(super) fn lookup(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr> {
        let ino = self.find(caller, dir, name)?.ok_or(Error::NotFound)?;
        Ok(self.inode(ino)?.attr)
    }

    /// Checks that `caller` may add an entry to `dir`.
    fn check_addition(&self, caller: &Caller, dir: Ino) -> Result<()> {
        let inode = self.inode(dir)?;
        if inode.is_dead_directory() {
            return Err(Error::NotFound);
        }
        rules::may_create(caller, &inode.attr, inode.acl())
    }

    /// Checks that `caller` may make `name`, which must be free, in `dir`.
    fn check_new(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        if self.find(caller, dir, name)?.is_some() {
            return Err(Error::Exists);
        }
        self.check_addition(caller, dir)
    }

    /// Adds an entry for `ino` to `dir`.
    fn enter(&mut self, dir: Ino, name: &[u8], ino: Ino, now: Time) -> Attr {
        let inode = self.at(ino);
        inode.attr.nlink += 1;
        let attr = inode.attr;
        let parent = self.at(dir);
        if let Ok(directory) = parent.directory_mut() {
            directory.insert(name, ino, attr.kind());
        }
        parent.modified(now);
        attr
    }

    pub(super) fn mknod(
        &mut self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        self.check_new(caller, dir, name)?;
        let (mode, rdev) = rules::may_mknod(caller, mode, rdev)?;
        let regular = FileKind::from_mode(mode) == Some(FileKind::Regular);
        let body = if regular { Body::File(Contents::default()) } else { Body::Special };
        let now = self.now();
        let ino = self.make(caller, dir, mode, rdev, body, now)?;
        Ok(self.enter(dir, name, ino, now))
    }

    pub(super) fn mkdir(&mut self, caller: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        self.check_new(caller, dir, name)?;
        if self.inode(dir)?.attr.nlink >= self.max_links {
            return Err(Error::TooManyLinks);
        }
        let mode = FileKind::Directory.mode_bits() | (mode & 0o7777);
        let now = self.now();
        let ino = self.make(caller, dir, mode, 0, Body::Directory(Directory::new(dir)), now)?;
        self.at(ino).attr.nlink = 1;
        self.at(dir).attr.nlink += 1;
        Ok(self.enter(dir, name, ino, now))
    }

    pub(super) fn symlink(&mut self, caller: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > SYMLINK_MAX {
            return Err(Error::NameTooLong);
        }
        self.check_new(caller, dir, name)?;
        let mode = FileKind::Symlink.mode_bits() | 0o777;
        let now = self.now();
        let ino = self.make(caller, dir, mode, 0, Body::Symlink(target.to_vec()), now)?;
        Ok(self.enter(dir, name, ino, now))
    }

    pub(super) fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        if let Body::Symlink(target) = &self.inode(ino)?.body {
            Ok(target.clone())
        } else {
            Err(Error::Invalid)
        }
    }

    pub(super) fn link(&mut self, caller: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.inode(ino)?;
        self.check_new(caller, dir, name)?;
        let source = self.inode(ino)?;
        rules::may_link(caller, &source.attr)?;
        if source.attr.nlink == 0 && !source.linkable {
            return Err(Error::NotFound);
        }
        if source.attr.nlink >= self.max_links {
            return Err(Error::TooManyLinks);
        }
        let now = self.now();
        let source = self.at(ino);
        source.linkable = false;
        source.attr.ctime = now;
        Ok(self.enter(dir, name, ino, now))
    }

    pub(super) fn unlink(&mut self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        let victim = self.find(caller, dir, name)?.ok_or(Error::NotFound)?;
        rules::check_unlink_name(name)?;
        self.check_removal(caller, dir, victim)?;
        if self.inode(victim)?.attr.is_dir() {
            return Err(Error::IsDirectory);
        }
        let now = self.now();
        self.remove_entry(dir, name, now)?;
        self.drop_name(victim, dir, now);
        Ok(())
    }

    pub(super) fn rmdir(&mut self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        let victim = self.find(caller, dir, name)?.ok_or(Error::NotFound)?;
        rules::check_rmdir_name(name)?;
        self.check_removal(caller, dir, victim)?;
        if !self.inode(victim)?.directory()?.is_empty() {
            return Err(Error::NotEmpty);
        }
        let now = self.now();
        self.remove_entry(dir, name, now)?;
        self.drop_name(victim, dir, now);
        Ok(())
    }

    fn check_removal(&self, caller: &Caller, dir: Ino, victim: Ino) -> Result<()> {
        let (dir, victim) = (self.inode(dir)?, self.inode(victim)?);
        rules::may_delete(caller, &dir.attr, dir.acl(), &victim.attr)
    }

    fn remove_entry(&mut self, dir: Ino, name: &[u8], now: Time) -> Result<()> {
        let parent = self.at(dir);
        parent.directory_mut()?.remove(name);
        parent.modified(now);
        Ok(())
    }

    /// An entry of `dir` no longer names `victim`. A directory loses all its links with its one name, and `dir` the
    /// one of its `..`.
    fn drop_name(&mut self, victim: Ino, dir: Ino, now: Time) {
        let inode = self.at(victim);
        inode.attr.ctime = now;
        if inode.attr.is_dir() {
            inode.attr.nlink = 0;
            self.at(dir).attr.nlink -= 1;
        } else {
            inode.attr.nlink -= 1;
        }
        self.reap(victim);
    }

    pub(super) fn rename(
        &mut self,
        caller: &Caller,
        (dir, name): (Ino, &[u8]),
        (new_dir, new_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        rules::check_rename_names(name, new_name, flags)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        self.inode(new_dir)?;
        let found = self.find(caller, dir, name)?;
        let target = self.find(caller, new_dir, new_name)?;
        let source = found.ok_or(Error::NotFound)?;
        if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
            return Err(Error::Exists);
        }
        if exchange && target.is_none() {
            return Err(Error::NotFound);
        }
        if self.inode(new_dir)?.is_dead_directory() {
            return Err(Error::NotFound);
        }
        if self.is_in(new_dir, source)? {
            return Err(Error::Invalid);
        }
        if let Some(target) = target
            && self.is_in(dir, target)?
        {
            return Err(if exchange { Error::Invalid } else { Error::NotEmpty });
        }
        if target == Some(source) {
            return Ok(());
        }
        self.check_rename(caller, dir, source, new_dir, target, flags)?;

        let now = self.now();
        let whiteout = match flags.contains(RenameFlags::WHITEOUT) {
            true => {
                let mode = FileKind::CharDevice.mode_bits();
                let ino = self.make(caller, dir, mode, 0, Body::Special, now)?;
                self.at(ino).attr.nlink = 1;
                Some(ino)
            }
            false => None,
        };
        match target {
            Some(target) if exchange => {
                self.point(dir, name, target)?;
                self.point(new_dir, new_name, source)?;
                self.moved(target, new_dir, dir, now);
            }
            Some(target) => {
                self.point(new_dir, new_name, source)?;
                self.leave(dir, name, whiteout, now)?;
                self.drop_name(target, new_dir, now);
            }
            None => {
                self.leave(dir, name, whiteout, now)?;
                let kind = self.at(source).attr.kind();
                self.at(new_dir).directory_mut()?.insert(new_name, source, kind);
            }
        }
        self.moved(source, dir, new_dir, now);
        self.at(dir).modified(now);
        self.at(new_dir).modified(now);
        Ok(())
    }

    /// Whether directory `dir` is `ancestor` or somewhere below it.
    fn is_in(&self, dir: Ino, ancestor: Ino) -> Result<bool> {
        let mut at = dir;
        while at != ancestor && at != ROOT_INO {
            at = self.inode(at)?.directory()?.parent;
        }
        Ok(at == ancestor)
    }

    fn check_rename(
        &self,
        caller: &Caller,
        dir: Ino,
        source: Ino,
        new_dir: Ino,
        target: Option<Ino>,
        flags: RenameFlags,
    ) -> Result<()> {
        let target = target.map(|ino| self.inode(ino)).transpose()?;
        let (from, source, to) = (self.inode(dir)?, self.inode(source)?, self.inode(new_dir)?);
        rules::may_rename(caller, side(from), side(source), side(to), target.map(side), flags)?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let brings = u32::from(source.attr.is_dir());
        let takes = target.map_or(0, |target| u32::from(target.attr.is_dir()));
        if dir != new_dir {
            let too_many_there = brings > takes && to.attr.nlink >= self.max_links;
            let too_many_here = exchange && takes > brings && from.attr.nlink >= self.max_links;
            if too_many_there || too_many_here {
                return Err(Error::TooManyLinks);
            }
        }
        if let Some(Body::Directory(replaced)) = target.map(|target| &target.body)
            && !exchange
            && !replaced.is_empty()
        {
            return Err(Error::NotEmpty);
        }
        Ok(())
    }

    /// The old name of what was renamed leads to a whiteout, or is gone.
    fn leave(&mut self, dir: Ino, name: &[u8], whiteout: Option<Ino>, now: Time) -> Result<()> {
        match whiteout {
            Some(ino) => self.point(dir, name, ino),
            None => self.remove_entry(dir, name, now),
        }
    }

    fn point(&mut self, dir: Ino, name: &[u8], ino: Ino) -> Result<()> {
        let kind = self.at(ino).attr.kind();
        self.at(dir).directory_mut()?.replace(name, ino, kind);
        Ok(())
    }

    /// `ino`'s entry moved between directories: its change time, its `..` and what that links.
    fn moved(&mut self, ino: Ino, from: Ino, to: Ino, now: Time) {
        let inode = self.at(ino);
        inode.attr.ctime = now;
        if let Body::Directory(directory) = &mut inode.body {
            directory.parent = to;
            self.at(from).attr.nlink -= 1;
            self.at(to).attr.nlink += 1;
        }
    }

    pub(super) fn open(&mut self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let inode = self.inode(ino)?;
        rules::may_open(caller, &inode.attr, inode.acl(), flags)?;
        if flags.contains(OpenFlags::TRUNCATE) {
            let empty = SetAttr { size: Some(0), ..SetAttr::default() };
            self.change(caller, ino, &empty, true)?;
        }
        Ok(self.attach(ino, flags))
    }

    pub(super) fn create(
        &mut self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
    ) -> Result<Created> {
        if let Some(ino) = self.find(caller, dir, name)? {
            if flags.contains(OpenFlags::EXCLUSIVE) {
                return Err(Error::Exists);
            }
            if self.inode(ino)?.attr.is_dir() {
                return Err(Error::IsDirectory);
            }
            let handle = self.open(caller, ino, flags)?;
            return Ok(Created { attr: self.inode(ino)?.attr, handle, new: false });
        }
        self.check_addition(caller, dir)?;
        let now = self.now();
        let ino = self.make_file(caller, dir, mode, flags, now)?;
        let attr = self.enter(dir, name, ino, now);
        Ok(Created { attr, handle: self.attach(ino, flags), new: true })
    }

    pub(super) fn tmpfile(
        &mut self,
        caller: &Caller,
        dir: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<Created> {
        if !flags.contains(OpenFlags::WRITE) {
            return Err(Error::Invalid);
        }
        self.inode(dir)?.directory()?;
        self.check_addition(caller, dir)?;
        let now = self.now();
        let ino = self.make_file(caller, dir, mode, flags, now)?;
        let inode = self.at(ino);
        inode.linkable = !flags.intersects(OpenFlags::EXCLUSIVE | OpenFlags::UNLINKABLE);
        let attr = inode.attr;
        Ok(Created { attr, handle: self.attach(ino, flags), new: true })
    }

    fn make_file(
        &mut self,
        caller: &Caller,
        dir: Ino,
        mode: u32,
        flags: OpenFlags,
        now: Time,
    ) -> Result<Ino> {
        if !flags.intersects(OpenFlags::READ | OpenFlags::WRITE) {
            return Err(Error::Invalid);
        }
        let mode = FileKind::Regular.mode_bits() | (mode & 0o7777);
        self.make(caller, dir, mode, 0, Body::File(Contents::default()), now)
    }

    pub(super) fn readdir(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let inode = self.inode(dir)?;
        let directory = inode.directory()?;
        if inode.is_dead_directory() {
            return Err(Error::NotFound);
        }
        directory.list(dir, from, sink);
        Ok(())
    }
}

fn side(inode: &Inode) -> Side<'_> {
    Side { attr: &inode.attr, acl: inode.acl() }
}
