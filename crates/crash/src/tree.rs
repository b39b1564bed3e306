//! All that a user sees of a file system, to be compared.

mod lay_out;

use std::collections::BTreeMap;
use std::rc::Rc;

use vfs::{Attr, Caller, Error, FileKind, FileSystem, Ino, OpenFlags, ROOT_INO, Result, SNAPSHOTS, SeekFrom};

use crate::hash::{mix, mix_bytes};

/// Bytes that a file is compared in.
const BLOCK: u64 = 4096;
/// Files up to this length are read whole; of longer ones, what the volume calls data.
const WHOLE_BYTES: u64 = 64 << 10;

/// An inode, by its first name.
#[derive(Clone, Debug, PartialEq)]
struct Node {
    mode: u32,
    nlink: u32,
    owner: (u32, u32),
    rdev: u32,
    /// Bytes; of directories 0, as their lengths are each volume's own affair.
    size: u64,
    /// Access, modification, change, birth.
    times: [vfs::Time; 4],
    /// Blocks that are not all zero, by index.
    blocks: Vec<(u64, Vec<u8>)>,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Every name, and what it leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    /// By path: the inode, or the path at which it was met first.
    names: BTreeMap<Vec<u8>, Name>,
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
        let directory = match fs.lookup(&Caller::root(), ROOT_INO, SNAPSHOTS) {
            Ok(attr) => attr.ino,
            Err(Error::NotFound) => return Ok(tree),
            Err(error) => return Err(error),
        };
        let mut snapshots = BTreeMap::new();
        for (name, ino) in entries(fs, directory)? {
            snapshots.insert(name, Rc::new(Tree::below(fs, ino)?));
        }
        Ok(tree.with_snapshots(snapshots))
    }

    /// The same tree, with these snapshots.
    pub(crate) fn with_snapshots(self, snapshots: BTreeMap<Vec<u8>, Rc<Tree>>) -> Tree {
        let one = |hash, (name, tree): (&Vec<u8>, &Rc<Tree>)| mix(mix_bytes(hash, name), tree.hash);
        let hash = snapshots.iter().fold(self.hash, one);
        Tree { snapshots, hash, ..self }
    }

    /// The same tree, with that of a volume beside it.
    pub(crate) fn with_beside(self, beside: Option<Rc<Tree>>) -> Tree {
        let hash = beside.as_ref().map_or(self.hash, |tree| mix(mix(self.hash, 2), tree.hash));
        Tree { beside, hash, ..self }
    }

    /// Reads everything that can be reached from directory `root`.
    fn below(fs: &dyn FileSystem, root: Ino) -> Result<Tree> {
        let mut names = BTreeMap::new();
        let mut met: BTreeMap<Ino, Vec<u8>> = BTreeMap::new();
        let mut todo = vec![(b"/".to_vec(), root)];
        while let Some((path, ino)) = todo.pop() {
            if let Some(first) = met.get(&ino) {
                names.insert(path, Name::Same(first.clone()));
                continue;
            }
            met.insert(ino, path.clone());
            let attr = fs.getattr(ino)?;
            if attr.is_dir() {
                for (name, ino) in entries(fs, ino)?.into_iter().rev() {
                    todo.push(([&path[..], &name, b"/"].concat(), ino));
                }
            }
            let node = node(fs, ino, &attr)?;
            names.insert(path, Name::First(node));
        }
        let hash = hash(&names);
        Ok(Tree { names, snapshots: BTreeMap::new(), beside: None, hash })
    }

    /// Equal trees have equal ones.
    pub fn hash(&self) -> u64 {
        self.hash
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
        if let Some(path) = expected.names.keys().find(|path| !self.names.contains_key(*path)) {
            return Some(format!("{} is missing", shown(path)));
        }
        let differs = self.names.iter().find_map(|(path, name)| match (name, expected.names.get(path)) {
            (_, None) => Some(format!("{} is too many", shown(path))),
            (found, Some(wanted)) if found == wanted => None,
            (Name::First(found), Some(Name::First(wanted))) => {
                Some(format!("{}: {}", shown(path), found.difference(wanted)))
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
fn entries(fs: &dyn FileSystem, dir: Ino) -> Result<BTreeMap<Vec<u8>, Ino>> {
    let mut entries = BTreeMap::new();
    fs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            entries.insert(entry.name.to_vec(), entry.ino);
        }
        true
    })?;
    Ok(entries)
}

/// A path, for people.
fn shown(path: &[u8]) -> String {
    let text = path.escape_ascii().to_string();
    if text.len() > 80 { format!("{}… ({} bytes)", &text[..60], path.len()) } else { text }
}

fn node(fs: &dyn FileSystem, ino: Ino, attr: &Attr) -> Result<Node> {
    let root = Caller::root();
    let mut xattrs = BTreeMap::new();
    for name in fs.listxattr(&root, ino)?.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        xattrs.insert(name.to_vec(), fs.getxattr(&root, ino, name)?);
    }
    let kind = attr.kind();
    Ok(Node {
        mode: attr.mode,
        nlink: attr.nlink,
        owner: (attr.uid, attr.gid),
        rdev: attr.rdev,
        size: if attr.is_dir() { 0 } else { attr.size },
        times: [attr.atime, attr.mtime, attr.ctime, attr.btime],
        blocks: if kind == FileKind::Regular { blocks(fs, ino, attr.size)? } else { Vec::new() },
        target: if kind == FileKind::Symlink { fs.readlink(ino)? } else { Vec::new() },
        xattrs,
    })
}

/// The blocks of a file that are not all zero.
fn blocks(fs: &dyn FileSystem, ino: Ino, size: u64) -> Result<Vec<(u64, Vec<u8>)>> {
    let mut blocks = Vec::new();
    if size == 0 {
        return Ok(blocks);
    }
    let handle = fs.open(&Caller::root(), ino, OpenFlags::READ)?;
    let mut read = |from: u64, to: u64| {
        let mut bytes = vec![0xee; (to - from) as usize];
        let count = fs.read(handle, from, &mut bytes)?;
        if count as u64 != to - from {
            return Err(vfs::Error::Corrupt(format!("a read of {} bytes gives {count}", to - from)));
        }
        for (n, block) in bytes.chunks(BLOCK as usize).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                blocks.push((from / BLOCK + n as u64, block.to_vec()));
            }
        }
        Ok(())
    };
    let done = if size <= WHOLE_BYTES {
        read(0, size)
    } else {
        let mut at = 0;
        loop {
            match fs.seek(handle, SeekFrom::Data(at)) {
                Err(vfs::Error::NoSuchOffset) => break Ok(()),
                Err(error) => break Err(error),
                Ok(data) => {
                    let from = data / BLOCK * BLOCK;
                    at = (from + BLOCK).min(size);
                    if let Err(error) = read(from, at) {
                        break Err(error);
                    }
                    if at == size {
                        break Ok(());
                    }
                }
            }
        }
    };
    fs.release(handle)?;
    done.map(|()| blocks)
}

impl Node {
    fn difference(&self, expected: &Node) -> String {
        fn differ<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, wanted: &T) -> Option<String> {
            (found != wanted).then(|| format!("{what} {found:?}, not {wanted:?}"))
        }
        let fields = differ("mode", &format!("{:o}", self.mode), &format!("{:o}", expected.mode))
            .or_else(|| differ("link count", &self.nlink, &expected.nlink))
            .or_else(|| differ("owner", &self.owner, &expected.owner))
            .or_else(|| differ("device", &self.rdev, &expected.rdev))
            .or_else(|| differ("length", &self.size, &expected.size))
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
        if let Some(fields) = fields {
            return fields;
        }
        if self.xattrs != expected.xattrs {
            return "an extended attribute has another value".to_owned();
        }
        if self.target != expected.target {
            return "another target".to_owned();
        }
        let blocks = |node: &Node| node.blocks.iter().map(|(index, _)| *index).collect::<Vec<_>>();
        match self.blocks.iter().zip(&expected.blocks).find(|(found, wanted)| found != wanted) {
            Some((found, wanted)) if found.0 == wanted.0 => {
                let at = found.1.iter().zip(&wanted.1).position(|(a, b)| a != b).unwrap_or(0);
                let (a, b) = (found.1.get(at), wanted.1.get(at));
                format!("byte {} is {a:?}, not {b:?}", found.0 * BLOCK + at as u64)
            }
            _ => format!("blocks {:?} are not zero, expected are {:?}", blocks(self), blocks(expected)),
        }
    }
}

fn keys(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<String> {
    xattrs.keys().map(|name| name.escape_ascii().to_string()).collect()
}

fn hash(names: &BTreeMap<Vec<u8>, Name>) -> u64 {
    let mut hash = 0;
    for (path, name) in names {
        hash = mix_bytes(hash, path);
        match name {
            Name::Same(first) => hash = mix_bytes(mix(hash, 1), first),
            Name::First(node) => {
                for word in [node.mode, node.nlink, node.owner.0, node.owner.1, node.rdev] {
                    hash = mix(hash, u64::from(word));
                }
                hash = mix(hash, node.size);
                for time in &node.times {
                    hash = mix(mix(hash, time.sec as u64), u64::from(time.nsec));
                }
                for (index, bytes) in &node.blocks {
                    hash = mix_bytes(mix(hash, *index), bytes);
                }
                hash = mix_bytes(hash, &node.target);
                for (name, value) in &node.xattrs {
                    hash = mix_bytes(mix_bytes(hash, name), value);
                }
            }
        }
    }
    hash
}
