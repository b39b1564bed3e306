//! Paths of inodes in a tree that does not change.
//!
//! An inode knows the entry by which it was last entered: directory and key. A directory has no other. A file may have
//! more, and the one that it knows may have gone; then nobody knows the others, and the tree has to be searched.

use std::rc::Rc;

use vfs::{InoMap, InoSet, ROOT_INO};

use crate::directory;
use crate::error::corrupt;
use crate::inode::Layout;
use crate::node::ORPHANS;
use crate::reader::Reader;

const ROOT: u32 = ROOT_INO as u32;

/// The path of `name` in a directory.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    [dir, b"/", name].concat()
}

/// Finds paths, and remembers those of directories.
pub(crate) struct Paths<'a> {
    tree: &'a Reader,
    /// Without a slash at the end: the root's is empty.
    directories: InoMap<u32, Rc<[u8]>>,
}

impl<'a> Paths<'a> {
    pub(crate) fn new(tree: &'a Reader) -> Paths<'a> {
        Paths { tree, directories: InoMap::from_iter([(ROOT, Rc::default())]) }
    }

    /// The entry that inode `ino` knows, if it is there.
    fn entry(&self, ino: u32) -> vfs::Result<Option<(u32, &'a [u8])>> {
        let cold = self.tree.inode(ino)?.cold();
        let dir = cold.parent.get();
        let parent = match self.tree.inode(dir) {
            Ok(parent) if parent.layout() == Layout::Directory && dir != ORPHANS => parent,
            Ok(_) | Err(vfs::Error::Stale) => return Ok(None),
            Err(error) => return Err(error),
        };
        let entry = directory::at_key(self.tree, parent, cold.key.get())?;
        Ok(entry.filter(|entry| entry.ino == ino).map(|entry| (dir, entry.name)))
    }

    /// Parent and name of directory `dir`.
    fn step(&self, dir: u32) -> vfs::Result<(u32, Vec<u8>)> {
        if let Some((parent, name)) = self.entry(dir)? {
            return Ok((parent, name.to_vec()));
        }
        // It does not know its entry, which is damage; its parent it may know all the same.
        let inode = self.tree.inode(dir)?;
        let parent = inode.cold().parent.get();
        let mut name = None;
        directory::list(self.tree, self.tree.inode(parent)?, 0, &mut |entry| {
            name = (entry.ino == dir).then(|| entry.name.to_vec());
            name.is_none()
        })?;
        let lost = || corrupt(&format!("directory {dir}"), inode.block, "parent", parent, "where it is");
        name.map(|name| (parent, name)).ok_or_else(lost)
    }

    /// The path of directory `dir`.
    pub(crate) fn directory(&mut self, dir: u32) -> vfs::Result<Rc<[u8]>> {
        let (mut at, mut below) = (dir, Vec::new());
        let mut met = InoSet::default();
        let mut path = loop {
            if let Some(path) = self.directories.get(&at) {
                break path.clone();
            }
            if !met.insert(at) {
                return Err(corrupt("directory", 0, "parent", at, "one on the way to the root"));
            }
            let (parent, name) = self.step(at)?;
            below.push((at, name));
            at = parent;
        };
        for (ino, name) in below.into_iter().rev() {
            path = join(&path, &name).into();
            self.directories.insert(ino, path.clone());
        }
        Ok(path)
    }

    /// A path of inode `ino`; `None` if the entry that it knows is gone.
    pub(crate) fn of(&mut self, ino: u32) -> vfs::Result<Option<Vec<u8>>> {
        if ino == ROOT {
            return Ok(Some(b"/".to_vec()));
        }
        if self.tree.inode(ino)?.layout() == Layout::Directory {
            return self.directory(ino).map(|path| Some(path.to_vec()));
        }
        let Some((dir, name)) = self.entry(ino)? else { return Ok(None) };
        Ok(Some(join(&self.directory(dir)?, name)))
    }

    /// A path of each of `wanted`, by searching the whole tree until they are found.
    pub(crate) fn search(&mut self, mut wanted: InoSet<u32>) -> vfs::Result<InoMap<u32, Vec<u8>>> {
        let mut found = InoMap::default();
        let mut todo = vec![ROOT];
        let mut met = InoSet::from_iter([ROOT]);
        while let Some(dir) = todo.pop().filter(|_| !wanted.is_empty()) {
            let mut here = Vec::new();
            directory::list(self.tree, self.tree.inode(dir)?, 0, &mut |entry| {
                if wanted.remove(&entry.ino) {
                    here.push((entry.ino, entry.name.to_vec()));
                }
                if entry.file_kind() == vfs::FileKind::Directory && met.insert(entry.ino) {
                    todo.push(entry.ino);
                }
                !wanted.is_empty()
            })?;
            for (ino, name) in here {
                found.insert(ino, join(&self.directory(dir)?, &name));
            }
        }
        match wanted.iter().min() {
            None => Ok(found),
            Some(ino) => Err(corrupt(&format!("inode {ino}"), 0, "name", "nowhere", "in a directory")),
        }
    }
}
