//! What walking two trees says is different.

use std::collections::{BTreeMap, BTreeSet};

use native::{Aspect, Difference, DifferenceKind, Volume};
use vfs::{Attr, Caller, FileKind, FileSystem, Ino, ROOT_INO};

use crate::volumes::{names, read_inode};

/// An inode for as long as it lives: its number on the medium, and its generation.
type Id = (u32, u32);

/// One inode of a tree that was walked.
struct Walked {
    paths: BTreeSet<Vec<u8>>,
    attr: Attr,
    bytes: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// All that can be reached from a directory: inodes, and names with the directories that they are in.
#[derive(Default)]
pub(crate) struct Walk {
    inodes: BTreeMap<Id, Walked>,
    /// By path, because a directory's name is what its parent calls it: the parent, and whom it names.
    names: BTreeMap<Vec<u8>, (Id, Vec<u8>, Id)>,
}

pub(crate) fn walk(fs: &dyn FileSystem, top: Ino) -> Walk {
    let mut walk = Walk::default();
    let id = |attr: &Attr| (attr.ino as u32, attr.generation);
    let mut todo = vec![(Vec::new(), fs.getattr(top).unwrap())];
    while let Some((path, attr)) = todo.pop() {
        if attr.is_dir() {
            for (name, _, ino) in names(fs, attr.ino).unwrap() {
                let child = fs.getattr(ino).unwrap();
                let path = [&path[..], b"/", &name].concat();
                walk.names.insert(path.clone(), (id(&attr), name, id(&child)));
                todo.push((path, child));
            }
        }
        let path = if path.is_empty() { b"/".to_vec() } else { path };
        let inode = walk.inodes.entry(id(&attr)).or_insert_with(|| {
            let root = Caller::root();
            let bytes = match attr.kind() {
                FileKind::Regular => read_inode(fs, attr.ino).unwrap(),
                FileKind::Symlink => fs.readlink(attr.ino).unwrap(),
                _ => Vec::new(),
            };
            let listed = fs.listxattr(&root, attr.ino).unwrap();
            let listed = listed.split(|byte| *byte == 0).filter(|name| !name.is_empty());
            let value = |name: &[u8]| fs.getxattr(&root, attr.ino, name).unwrap();
            let xattrs = listed.map(|name| (name.to_vec(), value(name))).collect();
            Walked { paths: BTreeSet::new(), attr, bytes, xattrs }
        });
        inode.paths.insert(path);
    }
    walk
}

pub(crate) fn snapshot(volume: &Volume, name: &str) -> Walk {
    let root = Caller::root();
    let directory = volume.lookup(&root, ROOT_INO, b".snapshots").unwrap().ino;
    walk(volume, volume.lookup(&root, directory, name.as_bytes()).unwrap().ino)
}

/// The differences that the walks make out, but for modified inodes; those, by what they are.
fn expected(from: &Walk, to: &Walk) -> (Vec<Difference>, BTreeMap<Id, Vec<Aspect>>) {
    let of = |walk: &Walk| -> BTreeMap<(Id, Vec<u8>, Id), Vec<u8>> {
        walk.names.iter().map(|(path, name)| (name.clone(), path.clone())).collect()
    };
    let (before, after) = (of(from), of(to));
    let file = |walk: &Walk, id: &Id| walk.inodes[id].attr.kind();
    let mut all = Vec::new();
    let mut moved: BTreeMap<Id, [BTreeSet<Vec<u8>>; 2]> = BTreeMap::new();
    let mut changed_dirs = BTreeSet::new();
    let mut one_sided = |side: usize,
                         these: &BTreeMap<(Id, Vec<u8>, Id), Vec<u8>>,
                         walk: &Walk,
                         others: &BTreeMap<_, Vec<u8>>| {
        for (name, path) in these.iter().filter(|(name, _)| !others.contains_key(*name)) {
            changed_dirs.insert(name.0);
            if from.inodes.contains_key(&name.2) && to.inodes.contains_key(&name.2) {
                moved.entry(name.2).or_default()[side].insert(path.clone());
            } else {
                let kind = if side == 0 { DifferenceKind::Removed } else { DifferenceKind::Added };
                all.push(Difference { path: path.clone(), kind, file: file(walk, &name.2) });
            }
        }
    };
    one_sided(0, &before, from, &after);
    one_sided(1, &after, to, &before);
    for (id, [went, came]) in moved {
        let file = file(to, &id);
        let pairs = went.len().min(came.len());
        for (from, path) in went.iter().zip(&came) {
            let kind = DifferenceKind::Renamed { from: from.clone() };
            all.push(Difference { path: path.clone(), kind, file });
        }
        for path in went.iter().skip(pairs) {
            all.push(Difference { path: path.clone(), kind: DifferenceKind::Removed, file });
        }
        for path in came.iter().skip(pairs) {
            all.push(Difference { path: path.clone(), kind: DifferenceKind::Added, file });
        }
    }
    let mut modified = BTreeMap::new();
    for (id, one) in &from.inodes {
        let Some(other) = to.inodes.get(id) else { continue };
        let is_dir = one.attr.is_dir();
        let (a, b) = (&one.attr, &other.attr);
        let aspects: Vec<Aspect> = [
            (Aspect::Data, !is_dir && (a.size != b.size || one.bytes != other.bytes)),
            (Aspect::Entries, changed_dirs.contains(id)),
            (Aspect::Flags, a.flags != b.flags),
            (Aspect::Links, !is_dir && a.nlink != b.nlink),
            (Aspect::Mode, a.mode != b.mode),
            (Aspect::Owner, (a.uid, a.gid) != (b.uid, b.gid)),
            (Aspect::Times, (a.mtime, a.atime) != (b.mtime, b.atime)),
            (Aspect::Xattrs, one.xattrs != other.xattrs),
        ]
        .into_iter()
        .filter_map(|(aspect, differs)| differs.then_some(aspect))
        .collect();
        if !aspects.is_empty() {
            modified.insert(*id, aspects);
        }
    }
    (all, modified)
}

/// The differences told are those between the walks, each once, in order.
#[track_caller]
pub(crate) fn assert_told(found: &[Difference], from: &Walk, to: &Walk) {
    let order =
        |one: &Difference, other: &Difference| (&one.path, &one.kind).cmp(&(&other.path, &other.kind));
    assert!(found.is_sorted_by(|one, other| order(one, other).is_lt()), "not in order: {found:#?}");
    let (mut names, modified) = expected(from, to);
    names.sort_by(order);
    let mut told = BTreeMap::new();
    let mut told_names = Vec::new();
    for difference in found {
        match &difference.kind {
            DifferenceKind::Modified(aspects) => {
                let whose = to.inodes.iter().find(|(_, inode)| inode.paths.contains(&difference.path));
                let (id, inode) = whose.unwrap_or_else(|| panic!("no such path: {difference:?}"));
                assert_eq!(difference.file, inode.attr.kind());
                assert!(told.insert(*id, aspects.clone()).is_none(), "told twice: {difference:?}");
            }
            _ => told_names.push(difference.clone()),
        }
    }
    assert_eq!(told_names, names);
    assert_eq!(told, modified);
}
