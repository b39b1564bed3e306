//! One file of any kind, and a directory's entries.

use std::collections::BTreeMap;

use super::contents::Contents;
use crate::{Attr, DirEntry, Error, FileKind, Ino, Result, Time, acl};

/// An inode, by number in the state's table, from creation until its last name and last handle are gone.
#[derive(Clone)]
pub(super) struct Inode {
    pub(super) attr: Attr,
    pub(super) body: Body,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Open handles.
    pub(super) handles: u32,
    /// Without a name, it may get one: an `O_TMPFILE` inode that was never linked.
    pub(super) linkable: bool,
}

/// What an inode holds, by kind.
#[derive(Clone)]
pub(super) enum Body {
    File(Contents),
    Directory(Directory),
    Symlink(Vec<u8>),
    /// Device node, fifo or socket.
    Special,
}

impl Inode {
    /// The access ACL's value.
    pub(super) fn acl(&self) -> Option<&[u8]> {
        self.xattrs.get(acl::ACCESS).map(Vec::as_slice)
    }

    /// The default ACL's value.
    pub(super) fn default_acl(&self) -> Option<&[u8]> {
        self.xattrs.get(acl::DEFAULT).map(Vec::as_slice)
    }

    pub(super) fn directory(&self) -> Result<&Directory> {
        if let Body::Directory(directory) = &self.body { Ok(directory) } else { Err(Error::NotDirectory) }
    }

    pub(super) fn directory_mut(&mut self) -> Result<&mut Directory> {
        if let Body::Directory(directory) = &mut self.body { Ok(directory) } else { Err(Error::NotDirectory) }
    }

    pub(super) fn contents(&self) -> Result<&Contents> {
        match &self.body {
            Body::File(contents) => Ok(contents),
            Body::Directory(_) => Err(Error::IsDirectory),
            _ => Err(Error::Invalid),
        }
    }

    pub(super) fn contents_mut(&mut self) -> Result<&mut Contents> {
        match &mut self.body {
            Body::File(contents) => Ok(contents),
            Body::Directory(_) => Err(Error::IsDirectory),
            _ => Err(Error::Invalid),
        }
    }

    /// A directory that was removed and is still open: nothing is found or made in it.
    pub(super) fn is_dead_directory(&self) -> bool {
        self.attr.is_dir() && self.attr.nlink == 0
    }

    /// The contents changed (a file's bytes, a directory's entries).
    pub(super) fn modified(&mut self, now: Time) {
        self.attr.mtime = now;
        self.attr.ctime = now;
    }
}

/// A directory's entries, by name and by cookie. Cookies count up from [`Directory::FIRST_COOKIE`] and are never
/// used again.
#[derive(Clone)]
pub(super) struct Directory {
    pub(super) parent: Ino,
    by_name: BTreeMap<Vec<u8>, u64>,
    by_cookie: BTreeMap<u64, (Vec<u8>, Ino, FileKind)>,
    next_cookie: u64,
}

impl Directory {
    /// 1 and 2 are the cookies of `.` and `..`.
    const FIRST_COOKIE: u64 = 3;

    pub(super) fn new(parent: Ino) -> Directory {
        Directory {
            parent,
            by_name: BTreeMap::new(),
            by_cookie: BTreeMap::new(),
            next_cookie: Directory::FIRST_COOKIE,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<Ino> {
        let cookie = self.by_name.get(name)?;
        Some(self.by_cookie[cookie].1)
    }

    /// Adds an entry whose name is free.
    pub(super) fn insert(&mut self, name: &[u8], ino: Ino, kind: FileKind) {
        let free = self.by_name.insert(name.to_vec(), self.next_cookie).is_none();
        assert!(free, "entries are added under free names only");
        self.by_cookie.insert(self.next_cookie, (name.to_vec(), ino, kind));
        self.next_cookie += 1;
    }

    /// Lets an entry that is there name another inode.
    pub(super) fn replace(&mut self, name: &[u8], ino: Ino, kind: FileKind) {
        let cookie = self.by_name[name];
        self.by_cookie.insert(cookie, (name.to_vec(), ino, kind));
    }

    /// Removes an entry that is there.
    pub(super) fn remove(&mut self, name: &[u8]) {
        let cookie = self.by_name.remove(name).expect("entries are removed after they were found");
        self.by_cookie.remove(&cookie);
    }

    /// Shows `.`, `..` and the entries, those with cookies after `from`, until `sink` returns false.
    pub(super) fn list(&self, this: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) {
        let dots: [(&[u8], Ino); 2] = [(b".", this), (b"..", self.parent)];
        let dots = (1..).zip(dots).map(|(next, (name, ino))| (next, name, ino, FileKind::Directory));
        let rest =
            self.by_cookie.iter().map(|(&next, (name, ino, kind))| (next, name.as_slice(), *ino, *kind));
        for (next, name, ino, kind) in dots.chain(rest).filter(|entry| entry.0 > from) {
            if !sink(DirEntry { ino, kind, next, name }) {
                break;
            }
        }
    }
}
