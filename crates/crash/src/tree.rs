//! All that a user sees of a file system, to be compared.

mod lay_out;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;

use vfs::{
    Attr, Caller, Error, FileKind, FileSystem, Handle, Ino, InodeFlags, OpenFlags, ROOT_INO, Result,
    SNAPSHOTS, SeekFrom,
};

use crate::hash::{mix, mix_bytes};

/// Bytes that a file is compared in.
pub(crate) const BLOCK: u64 = 4096;
/// Files up to this length are read whole; of longer ones, what the volume calls data.
const WHOLE_BYTES: u64 = 64 << 10;

/// An inode, by its first name.
#[derive(Clone, Debug, PartialEq)]
struct Node {
    mode: u32,
    nlink: u32,
    owner: (u32, u32),
    rdev: u32,
    /// Of those that all volumes keep.
    flags: InodeFlags,
    /// Access, modification, change, birth.
    times: [vfs::Time; 4],
    contents: Rc<Contents>,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// How long a file is, and its bytes.
#[derive(Debug, PartialEq)]
pub(crate) struct Contents {
    /// Bytes; of directories 0, as their lengths are each volume's own affair.
    pub(crate) size: u64,
    /// Blocks that are not all zero, by index.
    pub(crate) blocks: Vec<(u64, Vec<u8>)>,
}

/// Every name, and what it leads to.
#[derive(Clone, Debug)]
pub struct Tree {
    /// By path: the inode, or the path at which it was met first.
    names: BTreeMap<Vec<u8>, Name>,
    /// By path: the number of what was met there first. Each volume has its own.
    numbers: BTreeMap<Vec<u8>, Ino>,
    /// By name: what was there when they were taken.
    snapshots: BTreeMap<Vec<u8>, Rc<Tree>>,
    /// Of the volume beside it, if there is one.
    beside: Option<Rc<Tree>>,
    hash: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Name {
    First(Node),
    Same(Vec<u8>),
}

impl Tree {
    /// Reads everything that can be reached from the root, and the snapshots that it shows.
    pub fn of(fs: &dyn FileSystem) -> Result<Tree> {
        let tree = Tree::below(fs, ROOT_INO)?;
        let mut kept = BTreeMap::new();
        for (name, ino) in snapshots(fs)? {
            kept.insert(name, Rc::new(Tree::below(fs, ino)?));
        }
        Ok(tree.with_snapshots(kept))
    }

    /// The same tree, with these snapshots.
    pub(crate) fn with_snapshots(self, snapshots: BTreeMap<Vec<u8>, Rc<Tree>>) -> Tree {
        let one = |hash, (name, tree): (&Vec<u8>, &Rc<Tree>)| with_snapshot(hash, name, tree.hash);
        let hash = snapshots.iter().fold(self.hash, one);
        Tree { snapshots, hash, ..self }
    }

    /// The same tree, with that of a volume beside it.
    pub(crate) fn with_beside(self, beside: Option<Rc<Tree>>) -> Tree {
        let hash = beside.as_ref().map_or(self.hash, |tree| mix(mix(self.hash, 2), tree.hash));
        Tree { beside, hash, ..self }
    }

    /// The hash of [`Tree::of`], for which nothing has to be kept.
    pub(crate) fn hash_of(fs: &dyn FileSystem) -> Result<u64> {
        let mut hash = Reading::of(fs, ROOT_INO, None)?.hash;
        for (name, ino) in snapshots(fs)? {
            hash = with_snapshot(hash, &name, Reading::of(fs, ino, None)?.hash);
        }
        Ok(hash)
    }

    /// Reads everything that can be reached from directory `root`.
    fn below(fs: &dyn FileSystem, root: Ino) -> Result<Tree> {
        let Reading { names, numbers, hash, .. } = Reading::of(fs, root, Some(BTreeMap::new()))?;
        let names = names.unwrap_or_default();
        Ok(Tree { names, numbers, snapshots: BTreeMap::new(), beside: None, hash })
    }

    /// The regular files: the first path of each, its number, what it holds.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&[u8], Ino, &Rc<Contents>)> {
        self.numbers.iter().filter_map(|(path, ino)| match self.names.get(path) {
            Some(Name::First(node)) if node.is_file() => Some((&path[..], *ino, &node.contents)),
            _ => None,
        })
    }

    /// What the regular file at a path holds; nothing if there is none that was met there first.
    pub(crate) fn contents(&self, path: &[u8]) -> Option<&Contents> {
        match self.names.get(path) {
            Some(Name::First(node)) if node.is_file() => Some(&node.contents),
            _ => None,
        }
    }

    /// Equal trees have equal ones.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// About how much memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        let name = |(path, name): (&Vec<u8>, &Name)| {
            let held = match name {
                Name::First(node) => node.contents.blocks.iter().map(|(_, bytes)| bytes.len()).sum(),
                Name::Same(path) => path.len(),
            };
            size_of::<Name>() + 2 * path.len() + held
        };
        let below = self.snapshots.values().chain(&self.beside).map(|tree| tree.bytes()).sum::<usize>();
        self.names.iter().map(name).sum::<usize>() + below
    }

    /// How many names there are, the root included.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is nothing but the root.
    pub fn is_empty(&self) -> bool {
        self.names.len() <= 1
    }

    /// The first difference in words, if there is any.
    pub fn difference(&self, expected: &Tree) -> Option<String> {
        self.difference_of(expected, Node::difference)
    }

    /// The same, whatever regular files hold.
    pub(crate) fn difference_but_contents(&self, expected: &Tree) -> Option<String> {
        self.difference_of(expected, |found, wanted| match found.is_file() && wanted.is_file() {
            true => found.fields_difference(wanted),
            false => found.difference(wanted),
        })
    }

    /// The first difference, inodes being compared by `of_nodes`.
    fn difference_of(
        &self,
        expected: &Tree,
        of_nodes: impl Fn(&Node, &Node) -> Option<String>,
    ) -> Option<String> {
        if let Some(path) = expected.names.keys().find(|path| !self.names.contains_key(*path)) {
            return Some(format!("{} is missing", shown(path)));
        }
        let differs = self.names.iter().find_map(|(path, name)| match (name, expected.names.get(path)) {
            (_, None) => Some(format!("{} is too many", shown(path))),
            (found, Some(wanted)) if found == wanted => None,
            (Name::First(found), Some(Name::First(wanted))) => {
                of_nodes(found, wanted).map(|what| format!("{}: {what}", shown(path)))
            }
            _ => Some(format!("{} is another inode's name", shown(path))),
        });
        let differs = differs.or_else(|| self.snapshots_difference(expected));
        differs.or_else(|| match (&self.beside, &expected.beside) {
            (Some(found), Some(wanted)) => {
                found.difference(wanted).map(|what| format!("in the volume beside: {what}"))
            }
            (None, None) => None,
            (found, _) => {
                Some(format!("there is {} volume beside", if found.is_some() { "a" } else { "no" }))
            }
        })
    }

    fn snapshots_difference(&self, expected: &Tree) -> Option<String> {
        let names = |tree: &Tree| tree.snapshots.keys().map(|name| shown(name)).collect::<Vec<_>>();
        if !self.snapshots.keys().eq(expected.snapshots.keys()) {
            return Some(format!("the snapshots are {:?}, not {:?}", names(self), names(expected)));
        }
        self.snapshots.iter().zip(expected.snapshots.values()).find_map(|((name, found), wanted)| {
            found.difference(wanted).map(|what| format!("in snapshot {}: {what}", shown(name)))
        })
    }
}

/// The entries of a directory but for the dots, by name: each volume lists in an order of its own.
fn entries(fs: &dyn FileSystem, dir: Ino) -> Result<Vec<(Vec<u8>, Ino)>> {
    let mut entries = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            entries.push((entry.name.to_vec(), entry.ino));
        }
        true
    })?;
    entries.sort_unstable();
    match entries.windows(2).find(|two| two[0].0 == two[1].0) {
        Some(two) => Err(Error::Corrupt(format!("a directory lists {} twice", shown(&two[0].0)))),
        None => Ok(entries),
    }
}

/// A path, for people.
fn shown(path: &[u8]) -> String {
    let text = path.escape_ascii().to_string();
    if text.len() > 80 { format!("{}… ({} bytes)", &text[..60], path.len()) } else { text }
}

/// The hash of a tree with one more snapshot.
fn with_snapshot(hash: u64, name: &[u8], snapshot: u64) -> u64 {
    mix(mix_bytes(hash, name), snapshot)
}

/// The directories of the snapshots that `fs` shows.
fn snapshots(fs: &dyn FileSystem) -> Result<Vec<(Vec<u8>, Ino)>> {
    match fs.lookup(&Caller::root(), ROOT_INO, SNAPSHOTS) {
        Ok(attr) => entries(fs, attr.ino),
        Err(Error::NotFound) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// A tree that is being read: the hash of what came so far, and all of that, if it is to be kept.
struct Reading<'a> {
    fs: &'a dyn FileSystem,
    caller: Caller,
    names: Option<BTreeMap<Vec<u8>, Name>>,
    /// Of those.
    numbers: BTreeMap<Vec<u8>, Ino>,
    hash: u64,
    bytes: Vec<u8>,
}

impl<'a> Reading<'a> {
    fn new(fs: &'a dyn FileSystem, names: Option<BTreeMap<Vec<u8>, Name>>) -> Reading<'a> {
        let numbers = BTreeMap::new();
        Reading { fs, caller: Caller::root(), names, numbers, hash: 0, bytes: Vec::new() }
    }

    /// Reads what is below `root`: each directory's names in order, each followed by what is below it.
    fn of(fs: &'a dyn FileSystem, root: Ino, names: Option<BTreeMap<Vec<u8>, Name>>) -> Result<Reading<'a>> {
        let mut reading = Reading::new(fs, names);
        let mut met: HashMap<Ino, Rc<[u8]>> = HashMap::new();
        let mut todo = vec![(Rc::<[u8]>::from(&b"/"[..]), root)];
        while let Some((path, ino)) = todo.pop() {
            reading.mix_bytes(&path);
            if let Some(first) = met.get(&ino) {
                reading.mix(1);
                reading.mix_bytes(first);
                if let Some(names) = &mut reading.names {
                    names.insert(path.to_vec(), Name::Same(first.to_vec()));
                }
                continue;
            }
            let mut attr = fs.getattr(ino)?;
            if ino == root {
                // When the root directory was made is the affair of who formats; in a snapshot, too, where it may have another number.
                attr.btime = vfs::Time::default();
            }
            if attr.is_dir() {
                let below = |(name, ino): (Vec<u8>, Ino)| ([&path[..], &name, b"/"].concat().into(), ino);
                todo.extend(entries(fs, ino)?.into_iter().rev().map(below));
            }
            let node = reading.node(ino, &attr)?;
            if let Some(names) = &mut reading.names {
                names.insert(path.to_vec(), Name::First(node));
                reading.numbers.insert(path.to_vec(), ino);
            }
            met.insert(ino, path);
        }
        Ok(reading)
    }

    fn mix(&mut self, word: u64) {
        self.hash = mix(self.hash, word);
    }

    fn mix_bytes(&mut self, bytes: &[u8]) {
        self.hash = mix_bytes(self.hash, bytes);
    }

    /// Reads an inode; of one that is not kept, what takes room is left out.
    fn node(&mut self, ino: Ino, attr: &Attr) -> Result<Node> {
        let (fs, kind) = (self.fs, attr.kind());
        let size = if attr.is_dir() { 0 } else { attr.size };
        let flags = attr.flags & InodeFlags::COMMON;
        for word in [attr.mode, attr.nlink, attr.uid, attr.gid, attr.rdev, flags.bits()] {
            self.mix(u64::from(word));
        }
        self.mix(size);
        let times = [attr.atime, attr.mtime, attr.ctime, attr.btime];
        for time in &times {
            self.mix(time.sec as u64);
            self.mix(u64::from(time.nsec));
        }
        let blocks = if kind == FileKind::Regular { self.blocks(ino, attr.size)? } else { Vec::new() };
        let target = if kind == FileKind::Symlink { fs.readlink(ino)? } else { Vec::new() };
        self.mix_bytes(&target);
        let listed = fs.listxattr(&self.caller, ino)?;
        let mut names: Vec<&[u8]> = listed.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
        names.sort_unstable();
        let mut xattrs = BTreeMap::new();
        for name in names {
            let value = fs.getxattr(&self.caller, ino, name)?;
            self.mix_bytes(name);
            self.mix_bytes(&value);
            if self.names.is_some() {
                xattrs.insert(name.to_vec(), value);
            }
        }
        Ok(Node {
            mode: attr.mode,
            nlink: attr.nlink,
            owner: (attr.uid, attr.gid),
            rdev: attr.rdev,
            flags,
            times,
            contents: Rc::new(Contents { size, blocks }),
            target,
            xattrs,
        })
    }

    /// The blocks of a file that are not all zero.
    fn blocks(&mut self, ino: Ino, size: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        if size == 0 {
            return Ok(Vec::new());
        }
        let handle = self.fs.open(&self.caller, ino, OpenFlags::READ)?;
        let blocks = self.blocks_through(handle, size);
        self.fs.release(handle)?;
        blocks
    }

    /// The same, of a file that is open.
    fn blocks_through(&mut self, handle: Handle, size: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let (fs, mut blocks) = (self.fs, Vec::new());
        let done = if size <= WHOLE_BYTES {
            self.read(handle, 0, size, &mut blocks)
        } else {
            let mut at = 0;
            loop {
                match fs.seek(handle, SeekFrom::Data(at)) {
                    Err(Error::NoSuchOffset) => break Ok(()),
                    Err(error) => break Err(error),
                    Ok(data) => {
                        let from = data / BLOCK * BLOCK;
                        at = (from + BLOCK).min(size);
                        if let Err(error) = self.read(handle, from, at, &mut blocks) {
                            break Err(error);
                        }
                        if at == size {
                            break Ok(());
                        }
                    }
                }
            }
        };
        done.map(|()| blocks)
    }

    /// Reads `[from, to)` of a file, `from` being a block's beginning.
    fn read(&mut self, handle: Handle, from: u64, to: u64, blocks: &mut Vec<(u64, Vec<u8>)>) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.bytes);
        // Of what was read before nothing is left where the volume leaves something out.
        bytes.clear();
        bytes.resize((to - from) as usize, 0xee);
        let count = self.fs.read(handle, from, &mut bytes)?;
        if count as u64 != to - from {
            return Err(Error::Corrupt(format!("a read of {} bytes gives {count}", to - from)));
        }
        for (index, block) in (from / BLOCK..).zip(bytes.chunks(BLOCK as usize)) {
            if nvm::is_zero(block) {
                continue;
            }
            self.mix(index);
            self.mix_bytes(block);
            if self.names.is_some() {
                blocks.push((index, block.to_vec()));
            }
        }
        self.bytes = bytes;
        Ok(())
    }
}

/// What a file holds that is open, whether it has a name or not.
pub(crate) fn contents_of(fs: &dyn FileSystem, ino: Ino, handle: Handle) -> Result<Contents> {
    let size = fs.getattr(ino)?.size;
    let blocks = Reading::new(fs, Some(BTreeMap::new())).blocks_through(handle, size)?;
    Ok(Contents { size, blocks })
}

impl Node {
    fn is_file(&self) -> bool {
        FileKind::from_mode(self.mode) == Some(FileKind::Regular)
    }

    fn difference(&self, expected: &Node) -> Option<String> {
        self.fields_difference(expected).or_else(|| self.contents.difference(&expected.contents))
    }

    /// The first difference in what is not a file's contents.
    fn fields_difference(&self, expected: &Node) -> Option<String> {
        fn differ<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, wanted: &T) -> Option<String> {
            (found != wanted).then(|| format!("{what} {found:?}, not {wanted:?}"))
        }
        let fields = differ("mode", &format!("{:o}", self.mode), &format!("{:o}", expected.mode))
            .or_else(|| differ("flags", &self.flags, &expected.flags))
            .or_else(|| differ("link count", &self.nlink, &expected.nlink))
            .or_else(|| differ("owner", &self.owner, &expected.owner))
            .or_else(|| differ("device", &self.rdev, &expected.rdev))
            .or_else(|| {
                let length = |node: &Node| if node.is_file() { 0 } else { node.contents.size };
                differ("length", &length(self), &length(expected))
            })
            .or_else(|| {
                let names = ["atime", "mtime", "ctime", "btime"];
                names.iter().zip(self.times.iter().zip(&expected.times)).find_map(
                    |(name, (found, wanted))| {
                        differ(
                            name,
                            &format!("{}.{:09}", found.sec, found.nsec),
                            &format!("{}.{:09}", wanted.sec, wanted.nsec),
                        )
                    },
                )
            })
            .or_else(|| differ("extended attributes", &keys(&self.xattrs), &keys(&expected.xattrs)));
        fields
            .or_else(|| {
                (self.xattrs != expected.xattrs).then(|| "an extended attribute has another value".to_owned())
            })
            .or_else(|| (self.target != expected.target).then(|| "another target".to_owned()))
    }
}

impl Contents {
    /// Bytes `range`, all in one block, without zeros that may follow.
    fn piece(&self, range: &Range<u64>) -> &[u8] {
        let found = self.blocks.binary_search_by_key(&(range.start / BLOCK), |(index, _)| *index);
        let block = found.map_or(&[][..], |found| &self.blocks[found].1);
        let start = (range.start % BLOCK) as usize;
        let bytes = &block[start.min(block.len())..];
        let bytes = &bytes[..bytes.len().min((range.end - range.start) as usize)];
        let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count();
        &bytes[..bytes.len() - zeros]
    }

    /// Whether bytes `range`, all in one block, are the same; behind the end there are zeros.
    pub(crate) fn agrees(&self, other: &Contents, range: &Range<u64>) -> bool {
        self.piece(range) == other.piece(range)
    }

    fn difference(&self, expected: &Contents) -> Option<String> {
        if self == expected {
            return None;
        }
        if self.size != expected.size {
            return Some(format!("length {}, not {}", self.size, expected.size));
        }
        let blocks = |node: &Contents| node.blocks.iter().map(|(index, _)| *index).collect::<Vec<_>>();
        Some(match self.blocks.iter().zip(&expected.blocks).find(|(found, wanted)| found != wanted) {
            Some((found, wanted)) if found.0 == wanted.0 => {
                let at = found.1.iter().zip(&wanted.1).position(|(a, b)| a != b).unwrap_or(0);
                let (a, b) = (found.1.get(at), wanted.1.get(at));
                format!("byte {} is {a:?}, not {b:?}", found.0 * BLOCK + at as u64)
            }
            _ => format!("blocks {:?} are not zero, expected are {:?}", blocks(self), blocks(expected)),
        })
    }
}

fn keys(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<String> {
    xattrs.keys().map(|name| name.escape_ascii().to_string()).collect()
}
