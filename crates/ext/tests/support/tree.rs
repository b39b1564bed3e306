//! Everything that can be told of a tree: by the kernel of a mounted directory, by us of a volume.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ext::Volume;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use vfs::{Caller, FileKind, FileSystem, Ino, OpenFlags, ROOT_INO, SeekFrom};

/// What one name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    ino: u64,
    mode: u32,
    links: u32,
    owner: (u32, u32),
    device: u32,
    size: u64,
    blocks: u64,
    /// atime, mtime, ctime, and btime where the inode has room for it.
    times: [(i64, u32); 4],
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    target: Option<Vec<u8>>,
    /// Where data is, and a hash of it.
    data: Vec<(u64, u64, u64)>,
}

pub(crate) type Tree = BTreeMap<Vec<u8>, Node>;

fn hash(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Reads in pieces, so that their borders are crossed.
const PIECE: u64 = 100_003;

pub(crate) fn of_kernel(root: &Path, with_birth: bool) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![Vec::new()];
    while let Some(path) = todo.pop() {
        let here = root.join(OsStr::from_bytes(&path));
        let stat = rustix::fs::statx(CWD, &here, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::ALL).unwrap();
        let kind = FileKind::from_mode(stat.stx_mode.into()).unwrap();
        if kind == FileKind::Directory {
            for entry in std::fs::read_dir(&here).unwrap() {
                let name = entry.unwrap().file_name().into_vec();
                todo.push([&path[..], if path.is_empty() { b"" } else { b"/" }, &name].concat());
            }
        }
        let time = |at: rustix::fs::StatxTimestamp| (at.tv_sec, at.tv_nsec);
        let birth = if with_birth { time(stat.stx_btime) } else { (0, 0) };
        let ino = if stat.stx_ino == 2 { ROOT_INO } else { stat.stx_ino };
        let node = Node {
            ino,
            mode: stat.stx_mode.into(),
            links: stat.stx_nlink,
            owner: (stat.stx_uid, stat.stx_gid),
            device: stat.stx_rdev_minor & 0xFF
                | stat.stx_rdev_major << 8
                | (stat.stx_rdev_minor & !0xFF) << 12,
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            times: [time(stat.stx_atime), time(stat.stx_mtime), time(stat.stx_ctime), birth],
            xattrs: kernel_xattrs(&here),
            target: (kind == FileKind::Symlink)
                .then(|| std::fs::read_link(&here).unwrap().into_os_string().into_vec()),
            data: if kind == FileKind::Regular { kernel_data(&here) } else { Vec::new() },
        };
        tree.insert(path, node);
    }
    tree
}

fn kernel_xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut list = vec![0u8; 1 << 16];
    let length = rustix::fs::llistxattr(path, &mut list[..]).unwrap();
    let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let read = |name: &[u8]| {
        let mut value = vec![0u8; 1 << 16];
        let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap();
        value.truncate(length);
        (name.to_vec(), value)
    };
    names.map(read).collect()
}

fn kernel_data(path: &Path) -> Vec<(u64, u64, u64)> {
    let file = File::open(path).unwrap();
    let mut data = Vec::new();
    let mut at = 0;
    // Before anything is read: what the page cache holds of preallocated blocks counts as data.
    while let Ok(start) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(start)).unwrap();
        data.push((start, at, 0));
    }
    let mut bytes = vec![0; PIECE as usize];
    for (start, end, sum) in &mut data {
        for from in (*start..*end).step_by(PIECE as usize) {
            let bytes = &mut bytes[..PIECE.min(*end - from) as usize];
            file.read_exact_at(bytes, from).unwrap();
            *sum = hash(*sum, bytes);
        }
    }
    data
}

/// The tree of a volume. Every name that is listed is looked up, too.
pub(crate) fn of_volume(volume: &Volume) -> vfs::Result<Tree> {
    let root = &Caller::root();
    let mut tree = Tree::new();
    let mut todo: Vec<(Vec<u8>, Ino)> = vec![(Vec::new(), ROOT_INO)];
    while let Some((path, ino)) = todo.pop() {
        let attr = volume.getattr(ino)?;
        if attr.is_dir() {
            for (name, child, kind) in listed(volume, ino)? {
                let found = volume.lookup(root, ino, &name)?;
                assert_eq!((found.ino, found.kind()), (child, kind), "{}", String::from_utf8_lossy(&name));
                if name != b"." && name != b".." {
                    todo.push(([&path[..], if path.is_empty() { b"" } else { b"/" }, &name].concat(), child));
                }
            }
        }
        let times = [attr.atime, attr.mtime, attr.ctime, attr.btime].map(|at| (at.sec, at.nsec));
        let names = volume.listxattr(root, ino)?;
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let xattrs = names.map(|name| Ok((name.to_vec(), volume.getxattr(root, ino, name)?)));
        let node = Node {
            ino,
            mode: attr.mode,
            links: attr.nlink,
            owner: (attr.uid, attr.gid),
            device: attr.rdev,
            size: attr.size,
            blocks: attr.blocks,
            times,
            xattrs: xattrs.collect::<vfs::Result<_>>()?,
            target: if attr.kind() == FileKind::Symlink { Some(volume.readlink(ino)?) } else { None },
            data: if attr.kind() == FileKind::Regular {
                volume_data(volume, ino, attr.size)?
            } else {
                Vec::new()
            },
        };
        assert!(tree.insert(path, node).is_none(), "a name is listed twice");
    }
    Ok(tree)
}

/// Lists in several goes, each of which ends at an entry that is then given again.
fn listed(volume: &Volume, dir: Ino) -> vfs::Result<Vec<(Vec<u8>, Ino, FileKind)>> {
    let mut entries = Vec::new();
    let mut from = 0;
    loop {
        let mut room = 700;
        let before = entries.len();
        volume.readdir(dir, from, &mut |entry| {
            if room == 0 {
                return false;
            }
            room -= 1;
            assert!(entry.next > from, "cookies ascend");
            from = entry.next;
            entries.push((entry.name.to_vec(), entry.ino, entry.kind));
            true
        })?;
        if entries.len() == before {
            return Ok(entries);
        }
    }
}

fn volume_data(volume: &Volume, ino: Ino, size: u64) -> vfs::Result<Vec<(u64, u64, u64)>> {
    let handle = volume.open(&Caller::root(), ino, OpenFlags::READ)?;
    let mut data = Vec::new();
    let mut at = 0;
    let mut bytes = vec![0; PIECE as usize];
    while let Ok(start) = volume.seek(handle, SeekFrom::Data(at)) {
        at = volume.seek(handle, SeekFrom::Hole(start))?;
        let mut sum = 0;
        for from in (start..at).step_by(PIECE as usize) {
            let bytes = &mut bytes[..PIECE.min(at - from) as usize];
            assert_eq!(volume.read(handle, from, bytes)?, bytes.len());
            sum = hash(sum, bytes);
        }
        data.push((start, at, sum));
    }
    // Holes read as zeros, and nothing is behind the end.
    if size <= 1 << 22 {
        let mut whole = vec![1; size as usize + 10];
        assert_eq!(volume.read(handle, 0, &mut whole)?, size as usize);
        let mut lent = Vec::new();
        volume.read_slices(handle, 0, whole.len(), &mut |slice| lent.extend_from_slice(slice))?;
        assert!(lent == whole[..size as usize]);
        let mut before = 0;
        for &(start, end, _) in &data {
            assert!(whole[before as usize..start as usize].iter().all(|byte| *byte == 0));
            before = end;
        }
        assert!(whole[before as usize..size as usize].iter().all(|byte| *byte == 0));
    }
    volume.release(handle)?;
    Ok(data)
}

/// Fails with the first few names that differ.
pub(crate) fn compare(ours: &Tree, kernel: &Tree) {
    let names: std::collections::BTreeSet<_> = ours.keys().chain(kernel.keys()).collect();
    let differ: Vec<_> = names.into_iter().filter(|name| ours.get(*name) != kernel.get(*name)).collect();
    for name in differ.iter().take(5) {
        eprintln!(
            "{}:\n  ours   {:?}\n  kernel {:?}",
            String::from_utf8_lossy(name),
            ours.get(*name),
            kernel.get(*name)
        );
    }
    assert!(differ.is_empty(), "{} of {} names differ", differ.len(), kernel.len());
}
