//! Which inode and handle of the volume is which of the model.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Deref;

use super::random::Random;
use crate::model::Model;
use crate::{Attr, Caller, FileKind, FileSystem, Handle, Ino, OpenFlags, ROOT_INO};

/// The volume or the model.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Volume,
    Model,
}

/// Bytes that print short.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Name(Vec<u8>);

impl From<Vec<u8>> for Name {
    fn from(bytes: Vec<u8>) -> Name {
        Name(bytes)
    }
}

impl Deref for Name {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() <= 60 {
            write!(f, "\"{}\"", self.0.escape_ascii())
        } else {
            write!(f, "\"{}…\" ({} bytes)", self.0[..40].escape_ascii(), self.0.len())
        }
    }
}

/// The entries of a directory but for `.` and `..`.
pub(super) fn entries(fs: &dyn FileSystem, dir: Ino) -> crate::Result<Vec<(Vec<u8>, FileKind, Ino)>> {
    let mut all = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            all.push((entry.name.to_vec(), entry.kind, entry.ino));
        }
        true
    })?;
    Ok(all)
}

/// The live inodes and open handles of both sides, by the model's numbers, and names that were given.
pub(super) struct Known {
    inodes: BTreeMap<Ino, Ino>,
    by_volume: HashMap<Ino, Ino>,
    directories: Vec<Ino>,
    files: Vec<Ino>,
    others: Vec<Ino>,
    opened: BTreeMap<u64, Opened>,
    /// Entries, some of which are gone.
    pub(super) entries: Vec<(Ino, Name)>,
    /// What the volume has above the model's root, if that is not the volume's.
    pub(super) above: Option<Ino>,
}

/// An open handle.
#[derive(Clone, Copy)]
pub(super) struct Opened {
    volume: Handle,
    pub(super) handle: Handle,
    pub(super) ino: Ino,
    pub(super) flags: OpenFlags,
}

impl Known {
    pub(super) fn new() -> Known {
        Known {
            inodes: BTreeMap::from([(ROOT_INO, ROOT_INO)]),
            by_volume: HashMap::from([(ROOT_INO, ROOT_INO)]),
            directories: vec![ROOT_INO],
            files: Vec::new(),
            others: Vec::new(),
            opened: BTreeMap::new(),
            entries: Vec::new(),
            above: None,
        }
    }

    /// The inodes of a whole tree, which lies below `root` on the volume, and that below `above`, if it is not the root.
    pub(super) fn of_tree(
        model: &Model,
        volume: &dyn FileSystem,
        root: Ino,
        above: Option<Ino>,
    ) -> Result<Known, String> {
        let mut known = Known { above, ..Known::new() };
        known.inodes = BTreeMap::from([(ROOT_INO, root)]);
        known.by_volume = HashMap::from([(root, ROOT_INO)]);
        let mut todo = vec![ROOT_INO];
        while let Some(dir) = todo.pop() {
            for (name, kind, ino) in entries(model, dir).map_err(|error| error.to_string())? {
                let shown = name.escape_ascii().to_string();
                let ours = volume.lookup(&Caller::root(), known.volume_ino(dir), &name);
                let ours = ours.map_err(|error| format!("{shown}: {error}"))?;
                let theirs = model.getattr(ino).map_err(|error| format!("{shown}: {error}"))?;
                known.meet(&ours, &theirs).map_err(|difference| format!("{shown}: {difference}"))?;
                known.entries.push((dir, name.into()));
                if kind == FileKind::Directory {
                    todo.push(ino);
                }
            }
        }
        Ok(known)
    }

    pub(super) fn len(&self) -> usize {
        self.inodes.len()
    }

    pub(super) fn inodes(&self) -> impl Iterator<Item = Ino> {
        self.inodes.keys().copied()
    }

    pub(super) fn ino(&self, ino: Ino, side: Side) -> Ino {
        if side == Side::Model { ino } else { self.volume_ino(ino) }
    }

    /// The volume's number of the model's inode; 0, which none has, for one that is gone.
    pub(super) fn volume_ino(&self, ino: Ino) -> Ino {
        self.inodes.get(&ino).copied().unwrap_or(0)
    }

    /// Checks that both numbers mean one inode, new or met before.
    pub(super) fn meet(&mut self, ours: &Attr, theirs: &Attr) -> Result<(), String> {
        if let Some(difference) = self.mistaken(ours.ino, theirs.ino) {
            return Err(difference);
        }
        if self.inodes.insert(theirs.ino, ours.ino).is_none() {
            self.by_volume.insert(ours.ino, theirs.ino);
            self.list(theirs.kind()).push(theirs.ino);
        }
        Ok(())
    }

    /// What is wrong if `ours` on the volume is said to be `theirs` of the model, which may both be new.
    pub(super) fn mistaken(&self, ours: Ino, theirs: Ino) -> Option<String> {
        let known = (self.inodes.get(&theirs), self.by_volume.get(&ours));
        match known {
            (None, None) if ours != 0 => None,
            (Some(&volume), Some(&model)) if volume == ours && model == theirs => None,
            _ => Some(format!(
                "inode {theirs} of the model is {:?} on the volume, not {ours}, which is the model's {:?}",
                known.0, known.1
            )),
        }
    }

    fn list(&mut self, kind: FileKind) -> &mut Vec<Ino> {
        match kind {
            FileKind::Directory => &mut self.directories,
            FileKind::Regular => &mut self.files,
            _ => &mut self.others,
        }
    }

    pub(super) fn forget(&mut self, ino: Ino) {
        if let Some(volume) = self.inodes.remove(&ino) {
            self.by_volume.remove(&volume);
        }
        for list in [&mut self.directories, &mut self.files, &mut self.others] {
            list.retain(|&listed| listed != ino);
        }
    }

    pub(super) fn opened(&mut self, ours: Handle, theirs: Handle, ino: Ino, flags: OpenFlags) {
        self.opened.insert(theirs.0, Opened { volume: ours, handle: theirs, ino, flags });
    }

    pub(super) fn released(&mut self, handle: Handle) {
        self.opened.remove(&handle.0);
    }

    pub(super) fn handle(&self, handle: Handle, side: Side) -> Handle {
        match (side, self.opened.get(&handle.0)) {
            (Side::Volume, Some(opened)) => opened.volume,
            _ => handle,
        }
    }

    pub(super) fn handles(&self) -> Vec<Handle> {
        self.opened.keys().map(|&handle| Handle(handle)).collect()
    }

    pub(super) fn inode_of(&self, handle: Handle) -> Option<Ino> {
        self.opened.get(&handle.0).map(|opened| opened.ino)
    }

    /// Notes the name an operation gave.
    pub(super) fn named(&mut self, dir: Ino, name: &Name) {
        self.entries.push((dir, name.clone()));
    }

    /// Any directory, the newer ones more often, so that trees get deep.
    pub(super) fn some_directory(&self, random: &mut Random) -> Ino {
        let newest = &self.directories[self.directories.len().saturating_sub(6)..];
        if random.one_in(3) { random.of(newest) } else { random.of(&self.directories) }
    }

    pub(super) fn some_file(&self, random: &mut Random) -> Option<Ino> {
        (!self.files.is_empty()).then(|| random.of(&self.files))
    }

    pub(super) fn some_inode(&self, random: &mut Random) -> Ino {
        let list = random.weighted(&[(5, &self.files), (3, &self.directories), (2, &self.others)]);
        if list.is_empty() { ROOT_INO } else { random.of(list) }
    }

    /// An open handle that `suits`.
    pub(super) fn some_handle(&self, random: &mut Random, suits: impl Fn(&Opened) -> bool) -> Option<Opened> {
        let suitable: Vec<&Opened> = self.opened.values().filter(|opened| suits(opened)).collect();
        (!suitable.is_empty()).then(|| *random.of(&suitable))
    }

    /// An open handle of a file that `suits`.
    pub(super) fn some_file_handle(
        &self,
        random: &mut Random,
        suits: impl Fn(&Opened) -> bool,
    ) -> Option<Opened> {
        self.some_handle(random, |opened| suits(opened) && !self.directories.contains(&opened.ino))
    }
}
