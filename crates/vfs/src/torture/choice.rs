//! Which operation comes next.

use super::known::{Name, Opened};
use super::operation::Operation;
use super::{Torture, known, random};
use crate::{
    FallocateMode, FileSystem, Ino, InodeFlags, OpenFlags, ROOT_INO, RenameFlags, SeekFrom, SetAttr, SetTime,
    Time, XattrMode, acl,
};

/// What kind of operation, weighed below.
#[derive(Clone, Copy)]
enum Kind {
    Look,
    Make,
    Create,
    Tmpfile,
    Link,
    Remove,
    Rename,
    Attributes,
    Flags,
    Xattrs,
    Open,
    Release,
    Read,
    Write,
    Allocate,
    Seek,
    Copy,
    Sync,
    Fault,
}

const WEIGHTS: [(u64, Kind); 19] = [
    (120, Kind::Look),
    (70, Kind::Make),
    (60, Kind::Create),
    (10, Kind::Tmpfile),
    (30, Kind::Link),
    (80, Kind::Remove),
    (70, Kind::Rename),
    (90, Kind::Attributes),
    (30, Kind::Flags),
    (70, Kind::Xattrs),
    (60, Kind::Open),
    (80, Kind::Release),
    (90, Kind::Read),
    (150, Kind::Write),
    (40, Kind::Allocate),
    (20, Kind::Seek),
    (25, Kind::Copy),
    (20, Kind::Sync),
    (15, Kind::Fault),
];

/// Inodes with flags, about.
const FLAGGED_MAX: usize = 6;
/// `S`, which no volume promises to keep.
const SYNC: u32 = 0x8;

const XATTRS: [&[u8]; 9] = [
    b"user.a",
    b"user.b",
    b"user.with a longer name, as some programs like them",
    b"trusted.t",
    b"security.s",
    acl::ACCESS,
    acl::DEFAULT,
    b"user.",
    b"unknown.u",
];

impl Torture {
    /// Who does what next.
    pub(super) fn choose(&mut self) -> (usize, Operation) {
        let crowded = self.known.len() > self.limits.inodes;
        let kind = match self.random.weighted(&WEIGHTS) {
            Kind::Make | Kind::Create if crowded => Kind::Remove,
            kind => kind,
        };
        let caller = self.random.weighted(&[(8, 0), (2, 1), (3, 2), (3, 3), (2, 4), (1, 5), (2, 6)]);
        match kind {
            Kind::Fault => (0, self.fault()),
            Kind::Remove if crowded => (0, self.removal()),
            kind => (caller, self.of_kind(kind)),
        }
    }

    fn of_kind(&mut self, kind: Kind) -> Operation {
        let chosen = match kind {
            Kind::Look | Kind::Fault => None,
            Kind::Make => Some(self.making()),
            Kind::Create => Some(self.creation()),
            Kind::Tmpfile => {
                let (dir, mode) = (self.directory(), self.mode());
                Some(Operation::Tmpfile { dir, mode, flags: self.open_flags() })
            }
            Kind::Link => self.linking(),
            Kind::Remove => Some(self.removal()),
            Kind::Rename => Some(self.renaming()),
            Kind::Attributes => Some(self.attribute_change()),
            Kind::Flags => Some(self.flag_change()),
            Kind::Xattrs => Some(self.xattr_operation()),
            Kind::Open => self.opening(),
            Kind::Release => self.releasing(),
            Kind::Read => self.reading(),
            Kind::Write => self.writing(),
            Kind::Allocate => self.allocation(),
            Kind::Seek => self.seeking(),
            Kind::Copy => self.copying(),
            Kind::Sync => Some(self.syncing()),
        };
        chosen.unwrap_or_else(|| self.looking())
    }

    fn looking(&mut self) -> Operation {
        let ino = self.inode();
        match self.random.within(0..12) {
            0..=3 => {
                let (dir, name) = self.name();
                Operation::Lookup { dir, name }
            }
            4 => {
                let dir = self.live_directory();
                Operation::Lookup { dir, name: self.random.of(&[b".".as_slice(), b".."]).to_vec().into() }
            }
            5..=6 => Operation::Getattr { ino },
            7 => Operation::Readlink { ino },
            8..=9 => Operation::Access { ino, mask: self.random.within(0..8) as u32 },
            10 => Operation::Readdir { dir: self.directory(), chunk: self.random.of(&[1, 7, 100, 5000]) },
            _ => Operation::Statfs,
        }
    }

    fn making(&mut self) -> Operation {
        let (dir, name) = self.name();
        let mode = self.mode();
        match self.random.within(0..10) {
            0..=4 => Operation::Mkdir { dir, name, mode },
            5..=6 => Operation::Symlink { dir, name, target: self.target() },
            _ => {
                let kind =
                    self.random.of(&[0, 0o100_000, 0o100_000, 0o010_000, 0o140_000, 0o020_000, 0o060_000]);
                let rdev = self.random.of(&[0, 0x103, 0xfff0_00ff]);
                Operation::Mknod { dir, name, mode: kind | mode, rdev }
            }
        }
    }

    fn target(&mut self) -> Name {
        let len = self
            .random
            .weighted(&[(8, 1..60), (3, 60..300), (1, 300..4096)].map(|(w, r)| (w, (r.start, r.end))));
        let len = self.random.within(len.0..len.1) as usize;
        let fill = self.random.next();
        random::bytes(fill, len).into_iter().map(|b| b'a' + b % 26).collect::<Vec<u8>>().into()
    }

    fn creation(&mut self) -> Operation {
        let (dir, name) = self.name();
        let mode = self.mode();
        let mut flags = self.open_flags();
        if self.random.one_in(4) {
            flags |= OpenFlags::EXCLUSIVE;
        }
        if self.random.one_in(5) {
            flags |= OpenFlags::TRUNCATE;
        }
        if self.full_of_handles() {
            Operation::Mknod { dir, name, mode, rdev: 0 }
        } else {
            Operation::Create { dir, name, mode, flags }
        }
    }

    fn linking(&mut self) -> Option<Operation> {
        let (dir, name) = self.name();
        let ino = match self.random.within(0..8) {
            0 => self.inode(),
            // A file without a name, most likely.
            1..=2 => self.known.some_handle(&mut self.random, |_| true)?.ino,
            _ => self.known.some_file(&mut self.random)?,
        };
        Some(Operation::Link { ino, dir, name })
    }

    fn removal(&mut self) -> Operation {
        let (dir, name) = if self.random.one_in(8) { self.name() } else { self.entry() };
        // Most directories are not empty, which gets boring.
        let (dir, name) =
            if self.random.one_in(3) { (dir, name) } else { self.removable().unwrap_or((dir, name)) };
        let is_dir = self.model.lookup(&self.callers[0], dir, &name).is_ok_and(|attr| attr.is_dir());
        // Now and then the wrong one.
        if is_dir != self.random.one_in(12) {
            Operation::Rmdir { dir, name }
        } else {
            Operation::Unlink { dir, name }
        }
    }

    /// An entry that is no directory with entries, if one is found soon.
    fn removable(&mut self) -> Option<(Ino, Name)> {
        for _ in 0..4 {
            let (dir, name) = self.entry();
            let Ok(attr) = self.model.lookup(&self.callers[0], dir, &name) else { continue };
            if !attr.is_dir() || known::entries(&self.model, attr.ino).is_ok_and(|all| all.is_empty()) {
                return Some((dir, name));
            }
        }
        None
    }

    fn renaming(&mut self) -> Operation {
        let (dir, name) = if self.random.one_in(10) { self.name() } else { self.entry() };
        let (mut new_dir, mut new_name) = if self.random.one_in(2) { self.entry() } else { self.name() };
        if self.random.one_in(4) {
            new_dir = dir;
        }
        if self.random.one_in(20) {
            // Into what is moved, most likely.
            new_dir = self.model.lookup(&self.callers[0], dir, &name).map_or(dir, |attr| attr.ino);
        }
        if self.random.one_in(40) {
            (new_dir, new_name) = (dir, name.clone());
        }
        let flags = self.random.weighted(&[
            (6, RenameFlags::empty()),
            (1, RenameFlags::NOREPLACE),
            (2, RenameFlags::EXCHANGE),
            (1, RenameFlags::WHITEOUT),
        ]);
        Operation::Rename { dir, name, new_dir, new_name, flags }
    }

    fn attribute_change(&mut self) -> Operation {
        let ino = self.inode();
        let mut set = SetAttr::default();
        let mut handle = None;
        match self.random.within(0..10) {
            0..=2 => set.mode = Some(self.mode()),
            3..=4 => {
                set.uid = self.random.of(&[None, Some(0), Some(1), Some(2), Some(3)]);
                set.gid =
                    self.random.of(&[None, Some(0), Some(1), Some(2), Some(10), Some(11), Some(70_000)]);
            }
            5..=6 => {
                set.atime = self.time();
                set.mtime = self.time();
                if self.random.one_in(3) {
                    (set.atime, set.mtime) = (Some(SetTime::Now), Some(SetTime::Now));
                }
            }
            7 => {
                // All at once, as a front end may.
                set.mode = Some(self.mode());
                set.uid = self.random.of(&[None, Some(1)]);
                set.mtime = self.time();
                set.size = self.random.of(&[None, Some(0), Some(40), Some(100), Some(129), Some(5000)]);
                if let Some(SetTime::At(at)) = self.time() {
                    set.ctime = Some(at);
                }
            }
            _ => return self.truncation(),
        }
        if self.random.one_in(10)
            && let Some(opened) = self.known.some_handle(&mut self.random, |_| true)
        {
            handle = Some(opened.handle);
        }
        let ino = handle.and_then(|handle| self.known.inode_of(handle)).unwrap_or(ino);
        Operation::Setattr { ino, set, handle }
    }

    /// Few inodes are protected at a time, or nothing much would happen, and the root never.
    fn flag_change(&mut self) -> Operation {
        let is_flagged = |ino: &Ino| self.model.getattr(*ino).is_ok_and(|attr| !attr.flags.is_empty());
        let flagged: Vec<Ino> = self.flagged.iter().copied().filter(is_flagged).collect();
        self.flagged = flagged;
        let is_crowded = self.flagged.len() > FLAGGED_MAX || self.random.one_in(3);
        if is_crowded && !self.flagged.is_empty() {
            let ino = self.random.of(&self.flagged);
            return Operation::SetFlags { ino, flags: InodeFlags::empty() };
        }
        let ino = match self.random.within(0..3) {
            0 => self.known.some_handle(&mut self.random, |_| true).map_or(ROOT_INO, |opened| opened.ino),
            _ => self.inode(),
        };
        let unknown = InodeFlags::from_bits_retain(SYNC);
        let flags = self.random.weighted(&[
            (4, InodeFlags::IMMUTABLE),
            (6, InodeFlags::APPEND),
            (3, InodeFlags::NODUMP),
            (2, InodeFlags::NOATIME | InodeFlags::NODUMP),
            (1, InodeFlags::APPEND | InodeFlags::NODUMP),
            (1, unknown),
        ]);
        let flags = if ino == ROOT_INO { flags - InodeFlags::PROTECTION } else { flags };
        Operation::SetFlags { ino, flags }
    }

    fn truncation(&mut self) -> Operation {
        let mut handle = None;
        let mut ino = self.inode();
        if self.random.one_in(2)
            && let Some(opened) = self.known.some_file_handle(&mut self.random, writable)
        {
            (ino, handle) = (opened.ino, Some(opened.handle));
        } else if let Some(file) = self.known.some_file(&mut self.random) {
            ino = file;
        }
        let size = self.offset(ino);
        Operation::Setattr { ino, set: SetAttr { size: Some(size), ..SetAttr::default() }, handle }
    }

    fn time(&mut self) -> Option<SetTime> {
        let nsec = self.random.within(0..1_000_000_000) as u32;
        match self.random.within(0..5) {
            0..=1 => None,
            2 => Some(SetTime::Now),
            // What 32 bits hold, so that every volume can keep it.
            _ => {
                let sec = self.random.within(0..1 << 32) as i64 - (1 << 31);
                Some(SetTime::At(Time { sec, nsec }))
            }
        }
    }

    fn xattr_operation(&mut self) -> Operation {
        let ino = self.attributed_inode();
        let choice = self.random.weighted(&[(12, 0), (1, 7), (1, 8), (2, 3), (1, 4), (3, 5), (2, 6)]);
        if XATTRS[choice] == acl::DEFAULT && (ino == ROOT_INO || !self.random.one_in(3)) {
            // What inherits one no longer minds the umask, and nearly all would inherit one.
            return self.acl_removal(ino, acl::DEFAULT);
        }
        let name = XATTRS[if choice == 0 { self.random.within(0..3) as usize } else { choice }];
        match self.random.within(0..10) {
            0..=3 => {
                let value = if acl::is_acl(name) { self.acl() } else { self.value() };
                let mode = self.random.weighted(&[
                    (6, XattrMode::Either),
                    (2, XattrMode::Create),
                    (2, XattrMode::Replace),
                ]);
                Operation::Setxattr { ino, name: name.to_vec().into(), value, mode }
            }
            4..=6 => Operation::Getxattr { ino, name: name.to_vec().into() },
            7 => Operation::Listxattr { ino },
            _ if acl::is_acl(name) => self.acl_removal(ino, name),
            _ => Operation::Removexattr { ino, name: name.to_vec().into() },
        }
    }

    /// Removes an ACL of `ino` or of another inode that has one. (Whether removing one that is not there sets ctime is
    /// the volume's to choose.)
    fn acl_removal(&mut self, mut ino: Ino, name: &[u8]) -> Operation {
        for _ in 0..10 {
            if self.model.getxattr(&self.callers[0], ino, name).is_ok() {
                return Operation::Removexattr { ino, name: name.to_vec().into() };
            }
            ino = self.known.some_directory(&mut self.random);
        }
        Operation::Listxattr { ino }
    }

    /// An inode, likely one that has extended attributes.
    fn attributed_inode(&mut self) -> Ino {
        while !self.attributed.is_empty() && !self.random.one_in(3) {
            let at = self.random.within(0..self.attributed.len() as u64) as usize;
            let listed = self.model.listxattr(&self.callers[0], self.attributed[at]);
            if listed.is_ok_and(|names| !names.is_empty()) {
                return self.attributed[at];
            }
            self.attributed.swap_remove(at);
        }
        self.inode()
    }

    fn value(&mut self) -> Name {
        let most = self.limits.xattr_bytes as u64 + 1;
        let most = self.random.weighted(&[(1, 1), (10, most.min(40)), (3, most.min(400)), (1, most)]);
        let len = self.random.within(0..most) as usize;
        random::bytes(self.random.next(), len).into()
    }

    /// An ACL, now and then one that is malformed or says no more than a mode.
    fn acl(&mut self) -> Name {
        let mut raw = vec![2, 0, 0, 0];
        let mut add = |tag: u16, perm: u64, id: u32| {
            raw.extend(tag.to_le_bytes());
            raw.extend((perm as u16).to_le_bytes());
            raw.extend(id.to_le_bytes());
        };
        let (users, groups) = (self.random.within(0..3), self.random.within(0..3));
        let mut perm = || if self.random.one_in(40) { 9 } else { self.random.within(0..8) };
        add(0x01, perm(), u32::MAX);
        (0..users).for_each(|user| add(0x02, perm(), 1 + user as u32));
        add(0x04, perm(), u32::MAX);
        (0..groups).for_each(|group| add(0x08, perm(), 10 + group as u32));
        if users + groups > 0 || perm() == 0 {
            add(0x10, perm(), u32::MAX);
        }
        add(0x20, perm(), u32::MAX);
        raw.into()
    }

    fn opening(&mut self) -> Option<Operation> {
        if self.full_of_handles() {
            return self.releasing();
        }
        if self.random.one_in(10) {
            return Some(Operation::Open { ino: self.inode(), flags: OpenFlags::PATH });
        }
        let mut flags = self.open_flags();
        let ino = match self.random.within(0..10) {
            0 => self.inode(),
            1 => {
                flags = OpenFlags::READ;
                self.directory()
            }
            // Once more what is open already.
            2..=3 => self.known.some_handle(&mut self.random, |_| true)?.ino,
            _ => self.known.some_file(&mut self.random)?,
        };
        if self.random.one_in(8) {
            flags |= OpenFlags::TRUNCATE;
        }
        Some(Operation::Open { ino, flags })
    }

    fn full_of_handles(&self) -> bool {
        self.known.handles().len() >= self.limits.handles
    }

    fn releasing(&mut self) -> Option<Operation> {
        let opened = self.known.some_handle(&mut self.random, |_| true)?;
        Some(Operation::Release { handle: opened.handle })
    }

    fn reading(&mut self) -> Option<Operation> {
        let opened = if self.random.one_in(20) {
            self.known.some_handle(&mut self.random, |_| true)?
        } else {
            self.known.some_file_handle(&mut self.random, |opened| opened.flags.contains(OpenFlags::READ))?
        };
        let (handle, offset, len) = (opened.handle, self.offset(opened.ino), self.len());
        Some(if self.random.one_in(3) {
            Operation::ReadSlices { handle, offset, len }
        } else {
            Operation::Read { handle, offset, len }
        })
    }

    fn writing(&mut self) -> Option<Operation> {
        let opened = if self.random.one_in(20) {
            self.known.some_handle(&mut self.random, |_| true)?
        } else {
            self.known.some_file_handle(&mut self.random, writable)?
        };
        let offset = self.offset(opened.ino);
        let len = if self.random.one_in(100) { 0 } else { self.len() };
        let fill = if self.random.one_in(10) { 0 } else { self.random.next() };
        Some(Operation::Write { handle: opened.handle, offset, len, fill })
    }

    fn allocation(&mut self) -> Option<Operation> {
        let opened = self.known.some_file_handle(&mut self.random, writable)?;
        let mode = self.random.of(&[
            FallocateMode::empty(),
            FallocateMode::KEEP_SIZE,
            FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE,
            FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE,
            FallocateMode::ZERO_RANGE,
            FallocateMode::ZERO_RANGE | FallocateMode::KEEP_SIZE,
        ]);
        let (offset, len) = (self.offset(opened.ino), self.len() as u64);
        Some(Operation::Fallocate { handle: opened.handle, mode, offset, len })
    }

    fn seeking(&mut self) -> Option<Operation> {
        let opened = self.known.some_file_handle(&mut self.random, |_| true)?;
        let offset = self.offset(opened.ino);
        let from = if self.random.one_in(2) { SeekFrom::Data(offset) } else { SeekFrom::Hole(offset) };
        Some(Operation::Seek { handle: opened.handle, from })
    }

    fn copying(&mut self) -> Option<Operation> {
        let readable = |opened: &Opened| opened.flags.contains(OpenFlags::READ);
        let from = self.known.some_file_handle(&mut self.random, readable)?;
        let to = if self.random.one_in(5) {
            from
        } else {
            self.known.some_file_handle(&mut self.random, writable)?
        };
        let mut from_offset = self.offset(from.ino);
        let mut to_offset = self.offset(to.ino);
        let mut len = self.len() as u64;
        if self.random.one_in(2) {
            // Where a volume may share blocks.
            (from_offset, to_offset, len) =
                (from_offset & !4095, to_offset & !4095, len.next_multiple_of(4096));
        }
        Some(Operation::CopyFileRange { from: from.handle, from_offset, to: to.handle, to_offset, len })
    }

    fn syncing(&mut self) -> Operation {
        match (self.random.within(0..8), self.known.some_handle(&mut self.random, |_| true)) {
            (0, _) => Operation::Syncfs,
            (1..=2, _) | (_, None) => Operation::FsyncInode { ino: self.inode() },
            (_, Some(opened)) => Operation::Fsync { handle: opened.handle, data_only: self.random.one_in(2) },
        }
    }

    /// An argument that no file system takes, asked by the superuser of the root, so that nothing else is wrong.
    fn fault(&mut self) -> Operation {
        let dir = ROOT_INO;
        let bad: [&[u8]; 5] = [b"", b"a/b", b"nul\0", &[b'x'; 256], &[b'y'; 4000]];
        let name: Name = self.random.of(&bad).to_vec().into();
        let dots: Name = self.random.of(&[b".".as_slice(), b".."]).to_vec().into();
        let (mode, flags) = (0o644, OpenFlags::READ);
        match self.random.within(0..13) {
            0 => Operation::Lookup { dir, name },
            1 => Operation::Mknod { dir, name, mode, rdev: 0 },
            2 => Operation::Mkdir { dir, name, mode },
            3 => Operation::Unlink { dir, name },
            4 => Operation::Rmdir { dir, name },
            5 => Operation::Mkdir { dir, name: dots, mode },
            6 => Operation::Unlink { dir, name: dots },
            7 => Operation::Rmdir { dir, name: dots },
            8 => Operation::Create { dir, name: dots, mode, flags },
            9 => {
                let (_, new_name) = self.entry();
                Operation::Rename { dir, name: dots, new_dir: dir, new_name, flags: RenameFlags::empty() }
            }
            10 => {
                let (dir, name) = self.entry();
                Operation::Rename {
                    dir,
                    name: name.clone(),
                    new_dir: dir,
                    new_name: name,
                    flags: RenameFlags::all(),
                }
            }
            11 => Operation::Tmpfile { dir, mode, flags },
            _ => match self.known.some_file_handle(&mut self.random, writable) {
                Some(opened) => self.bad_range(opened),
                None => Operation::Mkdir { dir, name: dots, mode },
            },
        }
    }

    fn bad_range(&mut self, opened: Opened) -> Operation {
        let handle = opened.handle;
        let keep = FallocateMode::KEEP_SIZE;
        match self.random.within(0..4) {
            0 => Operation::Fallocate { handle, mode: keep, offset: 0, len: 0 },
            1 => Operation::Fallocate { handle, mode: FallocateMode::PUNCH_HOLE, offset: 0, len: 10 },
            2 => Operation::Fallocate { handle, mode: keep, offset: u64::MAX - 5, len: 10 },
            _ => {
                let set = SetAttr { size: Some(1 << 62), ..SetAttr::default() };
                Operation::Setattr { ino: opened.ino, set, handle: Some(handle) }
            }
        }
    }
}

fn writable(opened: &Opened) -> bool {
    opened.flags.contains(OpenFlags::WRITE)
}
