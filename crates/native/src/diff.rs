//! What is different between two snapshots, or between one and what the volume is now, in time that follows how much it
//! is.
//!
//! Two trees are compared from the top ([`twin`]): that gives the nodes that differ. Blocks of inodes and the owners of
//! other nodes tell which inodes to look at, buckets which names. What is no different then (a neighbour in a
//! block of inodes, an entry that went to another bucket) drops out. An inode is the same in both if its number and its
//! generation are. So a name that left an inode, and another that came to it, are a rename.

use std::collections::{BTreeMap, HashSet};

use nvm::Region;
use vfs::{FileKind, InoSet};

use crate::Error;
use crate::bia::BlockKind;
use crate::core::Core;
use crate::geometry::BLOCK;
use crate::index::differ;
use crate::inode::{Inode, Layout, number_of, slots_in};
use crate::inspect::AtRest;
use crate::kept::Record;
use crate::node::{ORPHANS, View};
use crate::page::Page;
use crate::paths::{Paths, join};
use crate::pointer::DataPointer;
use crate::reader::Reader;
use crate::twin;
use crate::xattr;

/// One difference: of a name, or of what an inode is that both have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// From the root directory on, `/` first: where it is in the later of the two, or where a removed name was.
    pub path: Vec<u8>,
    /// What is different.
    pub kind: DifferenceKind,
    /// What the path names.
    pub file: FileKind,
}

/// How something is different.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DifferenceKind {
    /// The name is gone.
    Removed,
    /// The name is new.
    Added,
    /// The same inode had another name, which is gone.
    Renamed {
        /// That name's path, in the earlier of the two.
        from: Vec<u8>,
    },
    /// The inode is in both, and not the same.
    Modified(Vec<Aspect>),
}

/// What can be different of an inode. Its change time goes with all of it, and is not told alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// Bytes of a file, or its length.
    Data,
    /// A directory's entries.
    Entries,
    /// What chattr(1) sets.
    Flags,
    /// The number of a file's names.
    Links,
    /// Permissions.
    Mode,
    /// User or group.
    Owner,
    /// When it was modified, or read.
    Times,
    /// Extended attributes, ACLs among them.
    Xattrs,
}

/// Compares two snapshots of the volume in `region`, which nobody has mounted, and which is left as it is. Ordered by path.
pub fn diff(region: &Region, from: &str, to: &str) -> Result<Vec<Difference>, Error> {
    check_names(from, Some(to))?;
    let _mounted = region.claim().ok_or(Error::Mounted)?;
    let at_rest = AtRest::read(region)?;
    let (from, to) = (at_rest.snapshot(from)?, at_rest.snapshot(to)?);
    let reader = |record: &Record| record.reader(&at_rest.medium, at_rest.superblock.hash_key());
    Ok(compare([&reader(&from)?, &reader(&to)?])?)
}

impl Core {
    /// Compares a snapshot with another, or with what the volume is now. Neither is removed meanwhile.
    pub(crate) fn diff(&self, from: &str, to: Option<&str>) -> Result<Vec<Difference>, Error> {
        check_names(from, to)?;
        let from = self.use_snapshot(from)?;
        let to = match to {
            Some(name) => self.use_snapshot(name)?,
            None => self.use_now().map_err(|error| match error {
                Error::NoSpaceForSnapshot | Error::TooManySnapshots => Error::NoRoomToCompare,
                other => other,
            })?,
        };
        let reader = |record: &Record| record.reader(&self.medium, self.nodes.hash_key);
        Ok(compare([&reader(&from.record)?, &reader(&to.record)?])?)
    }
}

fn check_names(from: &str, to: Option<&str>) -> Result<(), Error> {
    if to == Some(from) { Err(Error::SameSnapshot(from.into())) } else { Ok(()) }
}

/// A name that one of the trees has.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Name<'a> {
    dir: u32,
    name: &'a [u8],
    ino: u32,
    kind: FileKind,
}

/// The names of an inode that both trees have: the paths of those that went, and of those that came.
#[derive(Default)]
struct Moved {
    paths: [Vec<Vec<u8>>; 2],
}

impl Moved {
    /// What to tell of them: as many renames as can be, in the order of their paths.
    fn told(self, file: FileKind) -> impl Iterator<Item = Difference> {
        let [mut went, mut came] = self.paths;
        went.sort_unstable();
        came.sort_unstable();
        let pairs = went.len().min(came.len());
        let removed = went.split_off(pairs).into_iter().map(|path| (path, DifferenceKind::Removed));
        let added = came.split_off(pairs).into_iter().map(|path| (path, DifferenceKind::Added));
        let renamed = came.into_iter().zip(went).map(|(path, from)| (path, DifferenceKind::Renamed { from }));
        let all = removed.chain(added).chain(renamed);
        all.map(move |(path, kind)| Difference { path, kind, file })
    }
}

fn compare(trees: [&Reader; 2]) -> vfs::Result<Vec<Difference>> {
    let mut comparison = Comparison::new(trees)?;
    let (names, changed_dirs) = comparison.names()?;
    let mut paths = trees.map(Paths::new);
    let mut all = Vec::new();
    let mut moved: BTreeMap<u32, Moved> = BTreeMap::new();
    for (side, names) in names.iter().enumerate() {
        for name in names {
            let path = join(&paths[side].directory(name.dir)?, name.name);
            if comparison.is_one(name.ino) {
                moved.entry(name.ino).or_default().paths[side].push(path);
            } else {
                let kind = [DifferenceKind::Removed, DifferenceKind::Added][side].clone();
                all.push(Difference { path, kind, file: name.kind });
            }
        }
    }
    let mut nameless = Vec::new();
    for (ino, aspects) in comparison.modified(&changed_dirs)? {
        let file = trees[1].inode(ino)?.kind();
        let came = || moved.get(&ino).and_then(|moved| moved.paths[1].iter().min().cloned());
        let kind = DifferenceKind::Modified(aspects);
        match paths[1].of(ino)?.or_else(came) {
            Some(path) => all.push(Difference { path, kind, file }),
            None => nameless.push((ino, kind, file)),
        }
    }
    let mut found = paths[1].search(nameless.iter().map(|(ino, ..)| *ino).collect())?;
    for (ino, kind, file) in nameless {
        all.extend(found.remove(&ino).map(|path| Difference { path, kind, file }));
    }
    for (ino, moved) in moved {
        all.extend(moved.told(trees[1].inode(ino)?.kind()));
    }
    all.sort_unstable_by(|one, other| (&one.path, &one.kind).cmp(&(&other.path, &other.kind)));
    trees[0].medium.check_media()?;
    Ok(all)
}

/// What is to be looked at in two trees.
struct Comparison<'a> {
    trees: [&'a Reader; 2],
    /// Nodes that are not the same, and those of them that are buckets.
    nodes: InoSet<u32>,
    buckets: Vec<u32>,
    /// Inodes of which something may not be the same, ascending, each once.
    touched: Vec<u32>,
    /// Those of them that are not in both, or not with a name, or by the same number only.
    apart: InoSet<u32>,
}

impl<'a> Comparison<'a> {
    fn new(trees: [&'a Reader; 2]) -> vfs::Result<Comparison<'a>> {
        let mut it = Comparison {
            trees,
            nodes: InoSet::default(),
            buckets: Vec::new(),
            touched: Vec::new(),
            apart: InoSet::default(),
        };
        twin::differences(&trees[0].medium, trees.map(|tree| tree.nat.tree()), &mut |nid| it.node(nid))?;
        it.touched.sort_unstable();
        it.touched.dedup();
        it.touched.retain(|ino| *ino != ORPHANS);
        for ino in &it.touched {
            let lives = [life(trees[0], *ino)?, life(trees[1], *ino)?];
            if lives[0] != lives[1] || lives[0].is_none() {
                it.apart.insert(*ino);
            }
        }
        Ok(it)
    }

    /// Whether an inode of this number, which one of the trees has, is in both, with names.
    fn is_one(&self, ino: u32) -> bool {
        !self.apart.contains(&ino)
    }

    /// Looks at a node that is not the same in both.
    fn node(&mut self, nid: u32) -> vfs::Result<()> {
        let views = [there(self.trees[0].any(nid))?, there(self.trees[1].any(nid))?];
        self.nodes.insert(nid);
        let is = |view: &View<'_>, kind: BlockKind| view.header().kind == kind as u8;
        if views.iter().flatten().any(|view| is(view, BlockKind::Bucket)) {
            self.buckets.push(nid);
        }
        let others = views.iter().flatten().filter(|view| !is(view, BlockKind::Inode));
        self.touched.extend(others.map(|view| view.header().owner.get()));
        let blocks = views.map(|view| view.filter(|view| is(view, BlockKind::Inode)));
        let slots = blocks.map(|view| view.map_or(0, |view| view.header().slots.get()));
        for slot in slots_in(slots[0] | slots[1]) {
            let ino = number_of(nid, slot as u32);
            let bytes = [0, 1].map(|side| {
                let view = blocks[side].filter(|_| slots[side] >> slot & 1 == 1)?;
                let inode = Inode::on_medium(&self.trees[side].medium, view.block, ino);
                Some(&inode.bytes[..inode.used()])
            });
            if bytes[0] != bytes[1] {
                self.touched.push(ino);
            }
        }
        Ok(())
    }

    /// The names that only the one or the other tree has, or that lead to another inode there; and the directories that
    /// both have in which some are.
    fn names(&mut self) -> vfs::Result<([Vec<Name<'a>>; 2], InoSet<u32>)> {
        let mut all = [Vec::new(), Vec::new()];
        for nid in std::mem::take(&mut self.buckets) {
            // Most are where they were; what a split took elsewhere is found when all are there.
            let mut names = [entries(self.trees[0], nid)?, entries(self.trees[1], nid)?];
            self.strike_common(&mut names);
            all.iter_mut().zip(names).for_each(|(all, names)| all.extend(names));
        }
        self.strike_common(&mut all);
        let dirs = all.iter().flatten().map(|name| name.dir).filter(|dir| self.is_one(*dir)).collect();
        Ok((all, dirs))
    }

    /// Takes out what both sides have.
    fn strike_common(&self, names: &mut [Vec<Name<'a>>; 2]) {
        let others: HashSet<Name<'_>> = names[1].iter().copied().collect();
        let is_common =
            |name: &Name<'_>| others.contains(name) && self.is_one(name.dir) && self.is_one(name.ino);
        let common: HashSet<Name<'_>> = names[0].iter().filter(|name| is_common(name)).copied().collect();
        names.iter_mut().for_each(|names| names.retain(|name| !common.contains(name)));
    }

    /// The inodes that both trees have and of which something differs, and what.
    fn modified(&self, changed_dirs: &InoSet<u32>) -> vfs::Result<Vec<(u32, Vec<Aspect>)>> {
        let mut modified = Vec::new();
        for ino in self.touched.iter().copied().filter(|ino| self.is_one(*ino)) {
            let aspects = self.aspects(ino, changed_dirs.contains(&ino))?;
            if !aspects.is_empty() {
                modified.push((ino, aspects));
            }
        }
        Ok(modified)
    }

    fn aspects(&self, ino: u32, entries_differ: bool) -> vfs::Result<Vec<Aspect>> {
        let inodes = [self.trees[0].inode(ino)?, self.trees[1].inode(ino)?];
        let [one, other] = inodes.map(|inode| inode.attr());
        let is_file = inodes[1].layout() != Layout::Directory;
        let aspects = [
            (Aspect::Data, is_file && !self.have_same_bytes(inodes)?),
            (Aspect::Entries, entries_differ),
            (Aspect::Flags, one.flags != other.flags),
            (Aspect::Links, is_file && one.nlink != other.nlink),
            (Aspect::Mode, one.mode != other.mode),
            (Aspect::Owner, (one.uid, one.gid) != (other.uid, other.gid)),
            (Aspect::Times, (one.mtime, one.atime) != (other.mtime, other.atime)),
            (Aspect::Xattrs, !self.have_same_xattrs(inodes)?),
        ];
        Ok(aspects.into_iter().filter(|(_, differs)| *differs).map(|(aspect, _)| aspect).collect())
    }

    fn have_same_bytes(&self, inodes: [Inode<'_>; 2]) -> vfs::Result<bool> {
        let size = inodes[0].size();
        if size != inodes[1].size() {
            return Ok(false);
        }
        if inodes.iter().any(|inode| inode.layout() == Layout::Inline) {
            let mut bytes = [[0; BLOCK as usize]; 2];
            for ((tree, inode), bytes) in self.trees.iter().zip(inodes).zip(&mut bytes) {
                tree.read_into(inode, 0, bytes)?;
            }
            return Ok(bytes[0] == bytes[1]);
        }
        let medium = &self.trees[0].medium;
        let bytes = |pointer: DataPointer| -> vfs::Result<&[u8]> {
            static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
            if !pointer.has_data() {
                return Ok(&ZEROS);
            }
            let at = inodes[0].block;
            medium.check_main("file index", at, format_args!("pointer"), pointer.block())?;
            Ok(medium.block(pointer.block()))
        };
        let differ = &mut |pointers: [DataPointer; 2]| Ok(bytes(pointers[0])? != bytes(pointers[1])?);
        let is_changed = |nid| self.nodes.contains(&nid);
        Ok(!differ::differ(self.trees, inodes, size.div_ceil(BLOCK), &is_changed, differ)?)
    }

    fn have_same_xattrs(&self, inodes: [Inode<'_>; 2]) -> vfs::Result<bool> {
        let mut all = [BTreeMap::new(), BTreeMap::new()];
        for ((tree, inode), all) in self.trees.iter().zip(inodes).zip(&mut all) {
            xattr::each(tree, inode, |attribute| {
                all.insert(attribute.name.to_vec(), attribute.value.to_vec());
            })?;
        }
        Ok(all[0] == all[1])
    }
}

/// `None` if it is not there.
fn there<T>(found: vfs::Result<T>) -> vfs::Result<Option<T>> {
    match found {
        Err(vfs::Error::Stale) => Ok(None),
        found => found.map(Some),
    }
}

/// Which of the inodes with this number the tree has; `None` if it has none, or one without a name.
fn life(tree: &Reader, ino: u32) -> vfs::Result<Option<u32>> {
    let inode = there(tree.inode(ino))?.filter(|inode| inode.hot().nlink.get() != 0);
    Ok(inode.map(|inode| inode.cold().generation.get()))
}

/// The names in a bucket, if the tree has it.
fn entries<'a>(tree: &'a Reader, nid: u32) -> vfs::Result<Vec<Name<'a>>> {
    let bucket = there(tree.any(nid))?.filter(|view| view.header().kind == BlockKind::Bucket as u8);
    let Some(bucket) = bucket.filter(|view| view.header().owner.get() != ORPHANS) else {
        return Ok(Vec::new());
    };
    let dir = bucket.header().owner.get();
    let names = Page::new(bucket).entries().map(|entry| {
        entry.map(|entry| Name { dir, name: entry.name, ino: entry.ino, kind: entry.file_kind() })
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use nvm::{OpenOptions, VolumeKind, Zone};
    use vfs::{Caller, Ino, OpenFlags, ROOT_INO};

    use super::*;
    use crate::allocator::Urgency;
    use crate::core::NextLog;
    use crate::superblock::Superblock;
    use crate::{FormatOptions, MountOptions, check, format, recovery};

    fn open(region: &Region) -> Core {
        let superblock = Superblock::read(region).unwrap();
        recovery::open(region.clone(), &superblock, &MountOptions::default(), recovery::Rest::Keep).unwrap().0
    }

    fn with_core(test: impl FnOnce(&Zone, &Region, Core)) {
        let zone = Zone::anonymous(18 << 20, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
        format(&region, &FormatOptions::default()).unwrap();
        let core = open(&region);
        test(&zone, &region, core);
    }

    fn file(core: &Core, dir: Ino, name: &str, length: usize) -> Ino {
        let root = Caller::root();
        let rw = OpenFlags::READ | OpenFlags::WRITE;
        let made = core.create(&root, dir, name.as_bytes(), 0o644, rw).unwrap();
        core.write(&root, made.handle, 0, &vec![1; length]).unwrap();
        core.release(made.handle).unwrap();
        made.attr.ino
    }

    fn paths(found: &[Difference]) -> Vec<&str> {
        found.iter().map(|difference| std::str::from_utf8(&difference.path).unwrap()).collect()
    }

    /// What the volume is now stays as it is while it is read; nobody sees it, and nothing of it is left, whether the
    /// reader ends or the process does.
    #[test]
    fn now_is_one_moment() {
        with_core(|zone, _, core| {
            let root = Caller::root();
            for n in 0..50 {
                file(&core, ROOT_INO, &format!("f{n}"), 9000);
            }
            core.take_snapshot("kept", "").unwrap();
            core.unlink(&root, ROOT_INO, b"f0").unwrap();
            let (kept, now) = (core.use_snapshot("kept").unwrap(), core.use_now().unwrap());
            for n in 1..50 {
                core.unlink(&root, ROOT_INO, format!("f{n}").as_bytes()).unwrap();
                file(&core, ROOT_INO, &format!("g{n}"), 20_000);
                core.checkpoint(NextLog::WithEpoch).unwrap();
            }
            assert_eq!(core.list_snapshots().len(), 1);
            assert!(!core.snapshots.read().has_changes(), "checkpoints have nothing to do for it");
            let held = core.remove_snapshot("kept");
            assert!(matches!(&held, Err(Error::SnapshotHeld { .. })), "{held:?}");
            let reader = |record: &Record| record.reader(&core.medium, core.nodes.hash_key).unwrap();
            let found = compare([&reader(&kept.record), &reader(&now.record)]).unwrap();
            assert_eq!(paths(&found), ["/", "/f0"]);

            let image = zone.snapshot_image();
            let crashed = Zone::from_bytes(&image, &OpenOptions::default()).unwrap();
            let region = crashed.volume("v").unwrap();
            let after = open(&region);
            after.finish_removals().unwrap();
            assert_eq!(after.snapshots.read().all().count(), 1);
            after.finish().unwrap();
            drop(after);
            assert!(check(&region, false).unwrap().problems.is_empty());

            drop((kept, now));
            core.finish_removals().unwrap();
            assert_eq!(core.snapshots.read().all().count(), 1);
            core.remove_snapshot("kept").unwrap();
            core.finish_removals().unwrap();
        });
    }

    /// A directory that does not know its entry is found by its parent, and the check tells.
    #[test]
    fn a_wrong_entry_is_told_and_does_without() {
        with_core(|_, region, core| {
            let root = Caller::root();
            let dir = core.mkdir(&root, ROOT_INO, b"dir", 0o755).unwrap().ino;
            let below = core.mkdir(&root, dir, b"below", 0o755).unwrap().ino;
            let changed = file(&core, below, "file", 10);
            core.take_snapshot("before", "").unwrap();
            let set = |ino: Ino, dir: Ino, key: u64| {
                let operation = core.begin(8, 1024, Urgency::Ordinary).unwrap();
                core.nodes.edit_inode(&operation.budget, ino as u32).unwrap().set_entry(dir as u32, key);
            };
            // Any will do for a file: others may have been its name.
            let entry = core.nodes.inode(dir as u32).unwrap().cold().key.get();
            set(changed, ROOT_INO, entry);
            set(below, dir, 77 << 8);
            file(&core, below, "other", 10);
            let handle = core.open(&root, changed, OpenFlags::WRITE).unwrap();
            core.write(&root, handle, 0, b"new").unwrap();
            core.release(handle).unwrap();
            let found = core.diff("before", None).unwrap();
            assert_eq!(paths(&found), ["/dir/below", "/dir/below/file", "/dir/below/other"]);
            core.finish_removals().unwrap();
            core.finish().unwrap();
            drop(core);
            let problems = check(region, false).unwrap().problems;
            let told: Vec<_> = problems.iter().map(|problem| problem.what.as_str()).collect();
            let expected = format!("directory {below} does not know its entry \"below\" in {dir}");
            assert_eq!(told, [expected]);
        });
    }

    /// Damage in what is compared is an error that says where, and never another answer.
    #[test]
    fn damage_is_no_difference() {
        with_core(|zone, region, core| {
            let root = Caller::root();
            let dir = core.mkdir(&root, ROOT_INO, b"dir", 0o755).unwrap().ino;
            for n in 0..300 {
                file(&core, dir, &format!("a name {n}"), n * 10);
            }
            let large = file(&core, ROOT_INO, "large", 900_000);
            core.take_snapshot("before", "").unwrap();
            for n in 0..20 {
                core.unlink(&root, dir, format!("a name {n}").as_bytes()).unwrap();
                file(&core, dir, &format!("new {n}"), 100);
            }
            let handle = core.open(&root, large, OpenFlags::WRITE).unwrap();
            core.write(&root, handle, 800_000, &[2; 5000]).unwrap();
            core.release(handle).unwrap();
            core.take_snapshot("after", "").unwrap();
            core.finish().unwrap();
            drop(core);
            let sound = diff(region, "before", "after").unwrap();
            let AtRest { medium, .. } = AtRest::read(region).unwrap();
            let geometry = medium.geometry;
            let image = zone.snapshot_image();
            let start = region.entry().start;
            let mut told = 0;
            let first = geometry.main_start;
            for block in first..first + geometry.main_blocks() {
                let kind = crate::bia::Entry::read(&medium, block).kind;
                if kind == 0 || kind == BlockKind::Data as u8 {
                    continue;
                }
                for at in [1, 300, 3000] {
                    let mut image = image.clone();
                    image[(start + block * BLOCK + at) as usize] ^= 0x10;
                    let zone = Zone::from_bytes(&image, &OpenOptions::default()).unwrap();
                    match diff(&zone.volume("v").unwrap(), "before", "after") {
                        Ok(found) => assert_eq!(found, sound, "block {block}, byte {at}"),
                        Err(error) => {
                            let text = error.to_string();
                            assert!(text.contains("damaged") && text.contains("block"), "{text}");
                            told += 1;
                        }
                    }
                }
            }
            assert!(told > 40, "{told}");
        });
    }
}
