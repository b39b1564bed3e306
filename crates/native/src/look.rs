//! What operations that change nothing do with an inode that holds still: one that is locked, or a snapshot's.
//!
//! Permissions are asked for here, as an operation needs them; whoever calls has the inode from a user.

use std::ops::Range;

use vfs::{Caller, DirEntry, Error, FileKind, Ino, OpenFlags, Result, SYMLINK_MAX, SeekFrom, acl, rules};

use crate::directory::{self, FIRST_KEY, Probe, Spot};
use crate::error::corrupt;
use crate::geometry::BLOCK;
use crate::index;
use crate::inode::{Inode, Layout, nid_of};
use crate::page::Entry;
use crate::reader::Reader;
use crate::xattr;

impl Reader {
    /// The inode's access ACL, if it has one.
    pub(crate) fn access_acl<'a>(&'a self, inode: Inode<'a>) -> Result<Option<&'a [u8]>> {
        xattr::get(self, inode, acl::ACCESS)
    }

    /// Whether `caller` may do all of `mask` with an inode.
    pub(crate) fn may_access(&self, caller: &Caller, inode: Inode<'_>, mask: u32) -> Result<()> {
        rules::may_access(caller, &inode.attr(), self.access_acl(inode)?, mask)
    }

    /// Whether `caller` may open an inode so.
    pub(crate) fn may_open(&self, caller: &Caller, inode: Inode<'_>, flags: OpenFlags) -> Result<()> {
        rules::may_open(caller, &inode.attr(), self.access_acl(inode)?, flags)
    }

    /// The inode `name` of `dir` if there is one, after permission to search it.
    pub(crate) fn find(&self, caller: &Caller, dir: Inode<'_>, name: &[u8]) -> Result<Option<u32>> {
        Ok(match name {
            b"." | b".." => {
                rules::may_search(caller, &dir.attr(), self.access_acl(dir)?)?;
                let is_dead = dir.hot().nlink.get() == 0;
                match name {
                    b"." => Some(dir.ino),
                    _ => Some(dir.cold().parent.get()).filter(|_| !is_dead),
                }
            }
            _ => self.find_entry(caller, dir, name)?.map(|(ino, _)| ino),
        })
    }

    /// What the entry `name` of `dir` names and where it is, after permission to search it.
    pub(crate) fn find_entry(
        &self,
        caller: &Caller,
        dir: Inode<'_>,
        name: &[u8],
    ) -> Result<Option<(u32, Spot)>> {
        self.may_look_for(caller, dir, name)?;
        match directory::probe(self, dir, name)? {
            Probe::Found(entry, spot) => Ok(Some((entry.ino, spot))),
            Probe::Vacant(_) => Ok(None),
        }
    }

    /// What is in the place of an entry `name` of `dir`, after permission to search it; `None` if that name is always taken.
    pub(crate) fn probe<'a>(
        &'a self,
        caller: &Caller,
        dir: Inode<'a>,
        name: &[u8],
    ) -> Result<Option<Probe<'a>>> {
        if matches!(name, b"." | b"..") {
            return self.find(caller, dir, name)?.map(|_| None).ok_or(Error::NotFound);
        }
        self.may_look_for(caller, dir, name)?;
        directory::probe(self, dir, name).map(Some)
    }

    /// Whether `caller` may look for `name` in `dir`.
    fn may_look_for(&self, caller: &Caller, dir: Inode<'_>, name: &[u8]) -> Result<()> {
        if !caller.is_privileged() || dir.kind() != FileKind::Directory {
            rules::may_search(caller, &dir.attr(), self.access_acl(dir)?)?;
        }
        rules::check_name(name)
    }

    /// Lists directory `ino` from cookie `from` on. The numbers that `sink` gets have `base` in their upper half; `..` of
    /// the root directory is `above`.
    pub(crate) fn list(
        &self,
        ino: u32,
        from: u64,
        (base, above): (Ino, Ino),
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let inode = self.inode(ino)?;
        if inode.kind() != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        if inode.hot().nlink.get() == 0 {
            return Err(Error::NotFound);
        }
        let (this, parent) = (base | Ino::from(ino), base | Ino::from(inode.cold().parent.get()));
        let parent = if Ino::from(ino) == vfs::ROOT_INO { above } else { parent };
        for (next, name, ino) in [(1, b"." as &[u8], this), (2, b"..", parent)] {
            if from < next && !sink(DirEntry { ino, kind: FileKind::Directory, next, name }) {
                return Ok(());
            }
        }
        let first = if from < FIRST_KEY { 0 } else { from.saturating_add(1) };
        directory::list(self, inode, first, &mut |entry: &Entry<'_>| {
            sink(DirEntry {
                ino: base | Ino::from(entry.ino),
                kind: entry.file_kind(),
                next: entry.key,
                name: entry.name,
            })
        })
    }

    /// A symbolic link's target. One that is in a block of its own has no checksum: of that is known that it has some bytes, and no NUL.
    pub(crate) fn target(&self, ino: u32) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        if inode.kind() != FileKind::Symlink {
            return Err(Error::Invalid);
        }
        let mut target = vec![0; inode.size().min(SYMLINK_MAX as u64) as usize];
        self.read_into(inode, 0, &mut target)?;
        if target.is_empty() || target.len() as u64 != inode.size() || target.contains(&0) {
            let found = format_args!(
                "{} bytes, with a NUL at {:?}",
                inode.size(),
                target.iter().position(|byte| *byte == 0)
            );
            let (what, block) = (format!("symbolic link {ino}"), self.block_of(nid_of(ino))?);
            return Err(corrupt(
                &what,
                block,
                "target",
                found,
                format_args!("1 to {SYMLINK_MAX} without one"),
            ));
        }
        Ok(target)
    }

    /// The value of extended attribute `name`.
    pub(crate) fn attribute(&self, caller: &Caller, ino: u32, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        rules::xattr_permission(caller, &inode.attr(), self.access_acl(inode)?, name, false)?;
        Ok(xattr::get(self, inode, name)?.ok_or(Error::NoAttribute)?.to_vec())
    }

    /// The names of the extended attributes that `caller` may see, each with a NUL behind it.
    pub(crate) fn attribute_names(&self, caller: &Caller, ino: u32) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        xattr::each(self, self.inode(ino)?, |attribute| {
            if rules::is_listed(caller, attribute.name) {
                names.extend_from_slice(attribute.name);
                names.push(0);
            }
        })?;
        Ok(names)
    }

    /// Inode `ino`, which must hold bytes.
    pub(crate) fn regular(&self, ino: u32) -> Result<Inode<'_>> {
        let inode = self.inode(ino)?;
        inode.check_regular()?;
        Ok(inode)
    }

    /// Calls `sink` with the bytes of `range` of a file, which exist, in order.
    fn slices(&self, inode: Inode<'_>, range: Range<u64>, sink: &mut dyn FnMut(&[u8])) -> Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        if inode.layout() == Layout::Inline {
            sink(inode.inline_bytes().get(range.start as usize..range.end as usize).ok_or(Error::Invalid)?);
            return Ok(());
        }
        let mut at = range.start;
        while at < range.end {
            let (index, skip) = (at / BLOCK, at % BLOCK);
            let (pointer, length) = index::run(self, inode, index, (range.end - at + skip).div_ceil(BLOCK))?;
            let mut bytes = (length * BLOCK - skip).min(range.end - at);
            if pointer.has_data() {
                sink(self.medium.region.bytes(pointer.block() * BLOCK + skip, bytes as usize));
                at += bytes;
                continue;
            }
            while bytes > 0 {
                let n = bytes.min(ZEROS.len() as u64);
                sink(&ZEROS[..n as usize]);
                (at, bytes) = (at + n, bytes - n);
            }
        }
        Ok(())
    }

    /// Hands the bytes of a file from `offset` on to `sink`, at most `len` of them; returns how many there are.
    pub(crate) fn lend(
        &self,
        inode: Inode<'_>,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        let end = inode.size().min(offset.saturating_add(len as u64));
        if offset >= end {
            return Ok(0);
        }
        self.slices(inode, offset..end, sink)?;
        self.medium.check_media()?;
        Ok((end - offset) as usize)
    }

    /// Reads bytes of a file; returns how many there are.
    pub(crate) fn read_into(&self, inode: Inode<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        self.lend(inode, offset, buf.len(), &mut |bytes| {
            buf[done..done + bytes.len()].copy_from_slice(bytes);
            done += bytes.len();
        })
    }

    /// Finds data or a hole in file `ino`.
    pub(crate) fn seek(&self, ino: u32, from: SeekFrom) -> Result<u64> {
        let inode = self.regular(ino)?;
        let size = inode.size();
        let (SeekFrom::Data(offset) | SeekFrom::Hole(offset)) = from;
        if offset >= size {
            return Err(Error::NoSuchOffset);
        }
        let wants_data = matches!(from, SeekFrom::Data(_));
        if inode.layout() == Layout::Inline {
            return Ok(if wants_data { offset } else { size });
        }
        let end = size.div_ceil(BLOCK);
        let mut index = offset / BLOCK;
        while index < end {
            let (pointer, length) = index::run(self, inode, index, end - index)?;
            if pointer.has_data() == wants_data {
                return Ok(offset.max(index * BLOCK));
            }
            index += length;
        }
        if wants_data { Err(Error::NoSuchOffset) } else { Ok(size) }
    }
}
