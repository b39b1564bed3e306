//! The floor under what is mounted through FUSE: a server that keeps names and sizes in memory, and nothing else.
//!
//! It is made with a library that others use, takes requests through `/dev/fuse`, and asks for what Amberfs asks for: the kernel's
//! caches, no message for opening or closing, writes kept back. What an operation costs here it costs before any file system
//! has done anything.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{io, thread};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};

const TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// What [`fuse::MountOptions`] takes unless told otherwise.
const THREADS_MAX: usize = 4;
const DATA_MAX: u32 = 1 << 20;

/// Mounts it. Dropping what this gives takes it down.
pub(crate) fn mount(dir: &Path) -> io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("floor".to_owned()), MountOption::DefaultPermissions];
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    (config.n_threads, config.clone_fd) = (Some(threads), threads > 1);
    fuser::spawn_mount(Floor::new(), dir, &config)
}

#[derive(Clone, Copy)]
struct Node {
    ino: INodeNo,
    directory: bool,
    size: u64,
}

impl Node {
    fn attr(&self) -> FileAttr {
        let (kind, perm) =
            if self.directory { (FileType::Directory, 0o777) } else { (FileType::RegularFile, 0o666) };
        FileAttr {
            ino: self.ino,
            size: self.size,
            blocks: self.size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

#[derive(Default)]
struct Tree {
    nodes: HashMap<INodeNo, Node>,
    directories: HashMap<INodeNo, HashMap<OsString, INodeNo>>,
    last: u64,
}

impl Tree {
    fn find(&self, dir: INodeNo, name: &OsStr) -> Option<Node> {
        self.nodes.get(self.directories.get(&dir)?.get(name)?).copied()
    }

    fn make(&mut self, dir: INodeNo, name: &OsStr, directory: bool) -> Node {
        self.last += 1;
        let node = Node { ino: INodeNo(self.last), directory, size: 0 };
        self.nodes.insert(node.ino, node);
        if directory {
            self.directories.insert(node.ino, HashMap::new());
        }
        self.directories.entry(dir).or_default().insert(name.to_owned(), node.ino);
        node
    }

    fn remove(&mut self, dir: INodeNo, name: &OsStr) -> bool {
        let Some(ino) = self.directories.entry(dir).or_default().remove(name) else { return false };
        // Somebody may have it open still, and would find it empty: who measures does not look.
        self.nodes.remove(&ino);
        self.directories.remove(&ino);
        true
    }
}

struct Floor(Mutex<Tree>);

impl Floor {
    fn new() -> Floor {
        let root = Node { ino: INodeNo::ROOT, directory: true, size: 0 };
        let nodes = HashMap::from([(root.ino, root)]);
        let directories = HashMap::from([(root.ino, HashMap::new())]);
        Floor(Mutex::new(Tree { nodes, directories, last: INodeNo::ROOT.0 }))
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn done(reply: ReplyEmpty, done: bool) {
    if done { reply.ok() } else { reply.error(Errno::ENOENT) }
}

impl Filesystem for Floor {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_WRITEBACK_CACHE
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_NO_OPEN_SUPPORT
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(DATA_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.tree().find(dir, name) {
            Some(node) => reply.entry(&TTL, &node.attr(), Generation(0)),
            None => {
                let nothing = Node { ino: INodeNo(0), directory: false, size: 0 };
                reply.entry(&TTL, &nothing.attr(), Generation(0));
            }
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree().nodes.get(&ino) {
            Some(node) => reply.attr(&TTL, &node.attr()),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut tree = self.tree();
        // Of one that was removed, the kernel still sets times.
        let gone = Node { ino, directory: false, size: 0 };
        let node = tree.nodes.get_mut(&ino).map_or(gone, |node| {
            node.size = size.unwrap_or(node.size);
            *node
        });
        reply.attr(&TTL, &node.attr());
    }

    fn mkdir(&self, _: &Request, dir: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let made = self.tree().make(dir, name, true);
        reply.entry(&TTL, &made.attr(), Generation(0));
    }

    fn create(&self, _: &Request, dir: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let made = self.tree().make(dir, name, false);
        let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
        reply.created(&TTL, &made.attr(), Generation(0), FileHandle(0), flags);
    }

    fn unlink(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.tree().remove(dir, name));
    }

    fn rmdir(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.tree().remove(dir, name));
    }

    fn rename(
        &self,
        _: &Request,
        dir: INodeNo,
        name: &OsStr,
        new_dir: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut tree = self.tree();
        let moved = tree.directories.entry(dir).or_default().remove(name);
        if let Some(ino) = moved {
            tree.remove(new_dir, new_name);
            tree.directories.entry(new_dir).or_default().insert(new_name.to_owned(), ino);
        }
        done(reply, moved.is_some());
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS); // "never ask again"
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        reply.error(Errno::ENODATA);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        static ZEROS: [u8; DATA_MAX as usize] = [0; DATA_MAX as usize];
        let there = self.tree().nodes.get(&ino).map_or(0, |node| node.size).saturating_sub(offset);
        reply.data(&ZEROS[..there.min(u64::from(size.min(DATA_MAX))) as usize]);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if let Some(node) = self.tree().nodes.get_mut(&ino) {
            node.size = node.size.max(offset + data.len() as u64);
        }
        reply.written(data.len() as u32);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let tree = self.tree();
        let listed = tree.directories.get(&ino).into_iter().flatten();
        for (at, (name, ino)) in listed.enumerate().skip(offset as usize) {
            let directory = tree.directories.contains_key(ino);
            let kind = if directory { FileType::Directory } else { FileType::RegularFile };
            if reply.add(*ino, at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 4096, 255, 4096);
    }
}
