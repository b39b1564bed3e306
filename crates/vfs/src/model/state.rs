//! All that a model holds: inodes and open handles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::BLOCK_BYTES;
use super::contents::Contents;
use super::inode::{Body, Directory, Inode};
use crate::{
    Attr, Caller, Error, FileKind, Handle, Ino, InodeFlags, OpenFlags, ROOT_INO, Result, Statfs, Time, acl,
    rules,
};

/// Where the time comes from.
type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// The state behind a model's lock.
pub(super) struct State {
    /// Shared with copies of the state.
    inodes: BTreeMap<Ino, Arc<Inode>>,
    next_ino: Ino,
    handles: BTreeMap<u64, Opened>,
    next_handle: u64,
    clock: Clock,
    pub(super) capacity_blocks: u64,
    pub(super) max_links: u32,
    /// Copies, by name.
    pub(super) kept: BTreeMap<String, Kept>,
    /// How many copies were ever taken.
    pub(super) taken: u64,
}

/// An open handle.
#[derive(Clone, Copy)]
pub(super) struct Opened {
    pub(super) ino: Ino,
    pub(super) flags: OpenFlags,
}

/// A copy that is kept, under a name.
pub(super) struct Kept {
    /// How many were taken before it.
    pub(super) number: u64,
    pub(super) state: State,
    pub(super) holds: BTreeSet<String>,
}

impl Kept {
    pub(super) fn is_held(&self) -> bool {
        !self.holds.is_empty()
    }
}

impl State {
    pub(super) fn new() -> State {
        let mut state = State {
            inodes: BTreeMap::new(),
            next_ino: ROOT_INO,
            handles: BTreeMap::new(),
            next_handle: 1,
            clock: Arc::new(Time::now),
            capacity_blocks: 1 << 32,
            max_links: 4_000_000_000,
            kept: BTreeMap::new(),
            taken: 0,
        };
        let (now, mode) = (state.now(), FileKind::Directory.mode_bits() | 0o755);
        let root = state.insert(mode, (0, 0), 0, Body::Directory(Directory::new(ROOT_INO)), now);
        state.at(root).attr.nlink = 2;
        state
    }

    /// All that has a name: no handles, no snapshots.
    pub(super) fn copy(&self) -> State {
        let mut inodes = self.inodes.clone();
        inodes.retain(|_, inode| inode.attr.nlink > 0);
        for inode in inodes.values_mut().filter(|inode| inode.handles > 0) {
            Arc::make_mut(inode).handles = 0;
        }
        State {
            inodes,
            next_ino: self.next_ino,
            handles: BTreeMap::new(),
            next_handle: self.next_handle,
            clock: self.clock.clone(),
            capacity_blocks: self.capacity_blocks,
            max_links: self.max_links,
            kept: BTreeMap::new(),
            taken: 0,
        }
    }

    /// Has the inodes of a copy from now on. Numbers are not used again.
    pub(super) fn become_copy(&mut self, copy: State) {
        self.inodes = copy.inodes;
        self.handles.clear();
    }

    /// Sets the clock, and the root's times with it.
    pub(super) fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
        let now = self.now();
        let root = &mut self.at(ROOT_INO).attr;
        (root.atime, root.mtime, root.ctime, root.btime) = (now, now, now, now);
    }

    pub(super) fn open_handles(&self) -> usize {
        self.handles.len()
    }

    pub(super) fn now(&self) -> Time {
        (self.clock)()
    }

    pub(super) fn inode(&self, ino: Ino) -> Result<&Inode> {
        self.inodes.get(&ino).map(|inode| &**inode).ok_or(Error::Stale)
    }

    pub(super) fn inode_mut(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).map(Arc::make_mut).ok_or(Error::Stale)
    }

    /// An inode known to be there.
    pub(super) fn at(&mut self, ino: Ino) -> &mut Inode {
        Arc::make_mut(self.inodes.get_mut(&ino).expect("an entry or a handle keeps its inode"))
    }

    /// What a handle stands for, unless it only holds the inode.
    pub(super) fn opened(&self, handle: Handle) -> Result<Opened> {
        let opened = self.handles.get(&handle.0).copied();
        opened.filter(|opened| !opened.flags.contains(OpenFlags::PATH)).ok_or(Error::BadHandle)
    }

    /// The inode of a handle that was opened with `needed`.
    pub(super) fn opened_for(&self, handle: Handle, needed: OpenFlags) -> Result<Opened> {
        self.opened(handle)
            .and_then(|opened| if opened.flags.contains(needed) { Ok(opened) } else { Err(Error::BadHandle) })
    }

    /// Blocks in use: one for each inode and those of files.
    fn used_blocks(&self) -> u64 {
        let of_files = |inode: &Arc<Inode>| inode.contents().map_or(0, Contents::block_count);
        self.inodes.values().map(|inode| 1 + of_files(inode)).sum()
    }

    /// Fails unless `blocks` more fit.
    pub(super) fn check_space(&self, blocks: u64) -> Result<()> {
        // Counting is slow, and without a limit to speak of it is pointless.
        if blocks == 0 || (self.capacity_blocks >= 1 << 32 && blocks < 1 << 31) {
            return Ok(());
        }
        if self.used_blocks().saturating_add(blocks) > self.capacity_blocks {
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    pub(super) fn statfs(&self) -> Statfs {
        let free = self.capacity_blocks.saturating_sub(self.used_blocks());
        Statfs {
            block_size: BLOCK_BYTES as u32,
            blocks: self.capacity_blocks,
            blocks_free: free,
            blocks_available: free,
            files: self.inodes.len() as u64 + free,
            files_free: free,
        }
    }

    /// Puts an inode without name into the table.
    fn insert(&mut self, mode: u32, owner: (u32, u32), rdev: u32, body: Body, now: Time) -> Ino {
        let ino = self.next_ino;
        self.next_ino += 1;
        let size = match &body {
            Body::Directory(_) => BLOCK_BYTES,
            Body::Symlink(target) => target.len() as u64,
            Body::File(_) | Body::Special => 0,
        };
        let attr = Attr {
            ino,
            generation: 1,
            mode,
            nlink: 0,
            uid: owner.0,
            gid: owner.1,
            rdev,
            size,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            flags: InodeFlags::empty(),
        };
        let inode = Inode { attr, body, xattrs: BTreeMap::new(), handles: 0, linkable: false };
        self.inodes.insert(ino, Arc::new(inode));
        ino
    }

    /// Makes an inode without name in the manner of directory `dir`: its group, its default ACL, some of its flags, the umask.
    pub(super) fn make(
        &mut self,
        caller: &Caller,
        dir: Ino,
        mode: u32,
        rdev: u32,
        body: Body,
        now: Time,
    ) -> Result<Ino> {
        self.check_space(1)?;
        let directory = self.inode(dir)?;
        let (mode, gid) = rules::new_inode(caller, &directory.attr, mode);
        let inherited = if matches!(body, Body::Symlink(_)) {
            acl::Inherited { mode, access: None, default: None }
        } else {
            let is_dir = matches!(body, Body::Directory(_));
            acl::inherit(directory.default_acl(), mode, caller.umask, is_dir)?
        };
        let flags = directory.attr.flags & InodeFlags::INHERITED;
        let ino = self.insert(inherited.mode, (caller.uid, gid), rdev, body, now);
        let made = self.at(ino);
        made.attr.flags = flags;
        let xattrs = &mut made.xattrs;
        xattrs.extend(inherited.access.map(|raw| (acl::ACCESS.to_vec(), raw)));
        xattrs.extend(inherited.default.map(|raw| (acl::DEFAULT.to_vec(), raw)));
        Ok(ino)
    }

    /// Opens an inode whose permissions were checked.
    pub(super) fn attach(&mut self, ino: Ino, flags: OpenFlags) -> Handle {
        self.at(ino).handles += 1;
        let handle = Handle(self.next_handle);
        self.next_handle += 1;
        self.handles.insert(handle.0, Opened { ino, flags });
        handle
    }

    pub(super) fn release(&mut self, handle: Handle) -> Result<()> {
        let opened = self.handles.remove(&handle.0).ok_or(Error::BadHandle)?;
        self.at(opened.ino).handles -= 1;
        self.reap(opened.ino);
        Ok(())
    }

    /// Forgets an inode whose last name and last handle are gone.
    pub(super) fn reap(&mut self, ino: Ino) {
        let inode = self.at(ino);
        if inode.attr.nlink == 0 && inode.handles == 0 {
            self.inodes.remove(&ino);
        }
    }
}
