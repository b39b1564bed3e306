//! One file operation, by paths: it means the same to a volume and to the model.

use std::collections::BTreeMap;
use std::fmt;

use vfs::{
    Caller, Error, FallocateMode, FileKind, FileSystem, Handle, Ino, InodeFlags, OpenFlags, ROOT_INO,
    RenameFlags, Result, SeekFrom, SetAttr, SetTime, Snapshots, Time, XattrMode,
};

use crate::ground::{Chore, Ground};
use crate::schedule::step_here;
use crate::tree::{self, Contents};

const BLOCK: u64 = 4096;
/// Bytes that a volume writes beside others at most.
const BESIDE_MAX: usize = 8 << 10;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// An operation. Offsets and lengths are bytes; what is written follows from the operation's number.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// A new file, `O_EXCL`.
    Create(String),
    /// `mknod` of this mode.
    Mknod(String, u32),
    /// A directory.
    Mkdir(String),
    /// A symbolic link with a target of so many bytes.
    Symlink(String, usize),
    /// The first gets the second name.
    Link(String, String),
    /// Removes a name.
    Unlink(String),
    /// Removes an empty directory.
    Rmdir(String),
    /// Renames.
    Rename(String, String, RenameFlags),
    /// Writes at an offset so many bytes.
    Write(String, u64, usize),
    /// As `Write`, through a descriptor with these flags too.
    WriteWith(String, u64, usize, OpenFlags),
    /// Opens with `O_TRUNC`.
    OpenTruncate(String),
    /// Sets the length.
    Truncate(String, u64),
    /// `fallocate`.
    Allocate(String, FallocateMode, u64, u64),
    /// `copy_file_range`: from, its offset, to, its offset, length.
    Copy(String, u64, String, u64, u64),
    /// Sets an extended attribute of so many bytes.
    Setxattr(String, String, usize, XattrMode),
    /// Removes one.
    Removexattr(String, String),
    /// Sets the permissions.
    Chmod(String, u32),
    /// Makes the flags that all volumes keep these.
    Chattr(String, InodeFlags),
    /// Sets the owner.
    Chown(String, u32, u32),
    /// Sets access and modification times to these seconds.
    Utimens(String, i64, i64),
    /// Opens a file and keeps it open, as number so-and-so.
    Hold(u8, String),
    /// Makes a file without a name in a directory and keeps it open.
    Tmpfile(u8, String),
    /// Gives a name to what is held.
    LinkHeld(u8, String),
    /// Writes to what is held.
    WriteHeld(u8, u64, usize),
    /// Sets the length of what is held.
    TruncateHeld(u8, u64),
    /// Closes what is held.
    Release(u8),
    /// `fsync`, or `fdatasync`, of a file.
    Fsync(String, bool),
    /// `fsync` of what is held.
    FsyncHeld(u8),
    /// `fsync` of a directory.
    FsyncDir(String),
    /// `syncfs`.
    Sync,
    /// Has all that is in the log made durable elsewhere, and the log retired.
    Checkpoint,
    /// Takes a snapshot of this name.
    TakeSnapshot(String),
    /// Removes it.
    RemoveSnapshot(String),
    /// Closes the volume, returns it to a snapshot, newer ones going, and opens it.
    RollBack(String),
    /// Clones a snapshot over the volume beside, while this one is mounted.
    CloneMounted(String),
    /// The same, after closing this one; it is opened again.
    CloneClosed(String),
    /// Moves everything out of this segment of the volume.
    EmptySegment(u32),
    /// Reads at an offset so many bytes.
    Read(String, u64, usize),
    /// What a volume does behind its users' backs, now.
    Tend(Chore),
}

/// What an operation makes durable of a volume that keeps apart what files hold from all else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synced {
    Nothing,
    /// All that returned before, but for what files hold.
    Rest,
    /// The same, and what this file holds.
    File(Ino),
    All,
}

/// What an operation says: of what it read, if it is one that reads, a hash.
pub(crate) type Answer = Result<Option<u64>>;

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{self:?}").replace('"', "");
        if text.len() <= 120 {
            return f.write_str(&text);
        }
        let cut = |at: usize| (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        write!(f, "{}…{}", &text[..cut(60)], &text[cut(text.len() - 50)..])
    }
}

impl Operation {
    /// Whether all that returned before it is durable when it has returned, whatever the promise.
    pub fn syncs(&self) -> bool {
        match self {
            Operation::Fsync(..) | Operation::FsyncHeld(_) | Operation::FsyncDir(_) | Operation::Sync => true,
            Operation::Checkpoint | Operation::TakeSnapshot(_) | Operation::RemoveSnapshot(_) => true,
            Operation::RollBack(_) | Operation::CloneClosed(_) => true,
            Operation::WriteWith(.., flags) => flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC),
            _ => false,
        }
    }

    /// What it does of what is otherwise done in the background.
    pub(crate) fn chore(&self) -> Option<Chore> {
        if let Operation::Tend(chore) = self { Some(*chore) } else { None }
    }

    /// Whether only a volume that keeps snapshots has it.
    pub(crate) fn needs_snapshots(&self) -> bool {
        use Operation::{CloneClosed, CloneMounted, EmptySegment, RemoveSnapshot, RollBack, TakeSnapshot};
        matches!(
            self,
            TakeSnapshot(_)
                | RemoveSnapshot(_)
                | RollBack(_)
                | CloneMounted(_)
                | CloneClosed(_)
                | EmptySegment(_)
        )
    }

    /// If it found no room, or wrote less than it was to: the bytes that it did not find room for, without what a volume needs
    /// itself to find them again.
    pub(crate) fn bytes_without_room(&self, answer: &Answer) -> Option<u64> {
        let bytes = match self {
            Operation::Write(_, _, length)
            | Operation::WriteWith(_, _, length, _)
            | Operation::WriteHeld(_, _, length) => match answer {
                Ok(Some(done)) => return (*length as u64).checked_sub(*done).filter(|left| *left > 0),
                _ => *length as u64,
            },
            Operation::Symlink(_, length) | Operation::Setxattr(_, _, length, _) => *length as u64,
            Operation::Copy(.., length) | Operation::Allocate(.., length) => *length,
            // What is not moved stays where it is: that takes nothing from anybody.
            Operation::EmptySegment(_) => return None,
            _ => 0,
        };
        (*answer == Err(Error::NoSpace)).then_some(bytes)
    }

    /// What it comes to where only `done` bytes found room.
    pub(crate) fn shortened(&self, done: u64) -> Operation {
        let mut shorter = self.clone();
        match &mut shorter {
            Operation::Write(_, _, length)
            | Operation::WriteWith(_, _, length, _)
            | Operation::WriteHeld(_, _, length) => *length = done as usize,
            Operation::Copy(.., length) => *length = done,
            _ => {}
        }
        shorter
    }

    /// Whether it is about snapshots: the running tree stays as it is.
    pub(crate) fn is_of_snapshots(&self) -> bool {
        matches!(self, Operation::TakeSnapshot(_) | Operation::RemoveSnapshot(_) | Operation::CloneMounted(_))
    }
}

/// Bytes that no other operation writes.
pub(crate) fn bytes(number: usize, length: usize) -> Vec<u8> {
    let seed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::with_capacity(length + 8);
    let mut at = 0u64;
    while bytes.len() < length {
        // A word tells where it belongs: stale, foreign and misplaced bytes all differ from it.
        bytes.extend_from_slice(&crate::hash::mix(seed, at).to_le_bytes().map(|byte| byte | 1));
        at += 1;
    }
    bytes.truncate(length);
    bytes
}

/// A file system and the files that are held open on it.
pub(crate) struct Actor<G> {
    pub(crate) ground: G,
    held: BTreeMap<u8, (Ino, Handle)>,
}

impl<G: Ground> Actor<G> {
    pub(crate) fn new(ground: G) -> Actor<G> {
        Actor { ground, held: BTreeMap::new() }
    }

    fn fs(&self) -> &dyn FileSystem {
        self.ground.file_system()
    }

    fn snapshots(&self) -> Result<&dyn Snapshots> {
        self.ground.snapshots().ok_or(Error::NotSupported)
    }

    fn find(&self, path: &str) -> Result<Ino> {
        let mut at = ROOT_INO;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.fs().lookup(&Caller::root(), at, name.as_bytes())?.ino;
        }
        Ok(at)
    }

    fn split<'p>(&self, path: &'p str) -> Result<(Ino, &'p [u8])> {
        let (dir, name) = path.rsplit_once('/').ok_or(Error::Busy)?;
        Ok((self.find(dir)?, name.as_bytes()))
    }

    /// What is durable when an operation has returned, whatever the promise.
    pub(crate) fn synced(&self, operation: &Operation) -> Synced {
        let file = |path: &str| self.find(path).map_or(Synced::Nothing, Synced::File);
        match operation {
            Operation::Sync | Operation::Checkpoint => Synced::All,
            Operation::FsyncHeld(held) => {
                self.held(*held).map_or(Synced::Nothing, |(ino, _)| Synced::File(ino))
            }
            Operation::Fsync(path, _) | Operation::FsyncDir(path) => file(path),
            Operation::WriteWith(path, .., flags) if flags.intersects(OpenFlags::SYNC | OpenFlags::DSYNC) => {
                file(path)
            }
            Operation::Tend(Chore::Commit) => Synced::Rest,
            _ => Synced::Nothing,
        }
    }

    /// What the files hold that are held.
    pub(crate) fn held_contents(&self) -> Result<Vec<(Ino, Contents)>> {
        let of = |(ino, handle): &(Ino, Handle)| Ok((*ino, tree::contents_of(self.fs(), *ino, *handle)?));
        self.held.values().map(of).collect()
    }

    fn held(&self, number: u8) -> Result<(Ino, Handle)> {
        self.held.get(&number).copied().ok_or(Error::BadHandle)
    }

    fn with<T>(&self, path: &str, flags: OpenFlags, then: impl FnOnce(Handle) -> Result<T>) -> Result<T> {
        let handle = self.fs().open(&Caller::root(), self.find(path)?, flags)?;
        let result = then(handle);
        self.fs().release(handle)?;
        result
    }

    fn set(&self, path: &str, set: SetAttr) -> Result<()> {
        self.fs().setattr(&Caller::root(), self.find(path)?, &set, None).map(drop)
    }

    fn hold(&mut self, number: u8, ino: Ino, handle: Handle) -> Result<()> {
        match self.held.insert(number, (ino, handle)) {
            Some((_, before)) => self.fs().release(before),
            None => Ok(()),
        }
    }

    /// Does an operation, the `number`th of its run. It can be interrupted where [`Actor::perform_with`] says so.
    pub(crate) fn perform(&mut self, number: usize, operation: &Operation) -> Answer {
        self.perform_with(number, operation, &step_here)
    }

    /// The same. Calls `begun` when it has found, or opened, what it is about to change: what another one does there comes
    /// before it, but cannot take away any more what was found.
    pub(crate) fn perform_with(&mut self, number: usize, operation: &Operation, begun: &dyn Fn()) -> Answer {
        use Operation::{Copy, Read, Write, WriteHeld, WriteWith};
        match operation {
            Read(path, at, length) => self.read(path, *at, *length).map(Some),
            Write(..) | WriteWith(..) | WriteHeld(..) | Copy(..) => {
                self.transfer(number, operation, begun).map(Some)
            }
            _ => self.change(number, operation, begun).map(|()| None),
        }
    }

    /// Writes or copies; how many bytes.
    fn transfer(&self, number: usize, operation: &Operation, begun: &dyn Fn()) -> Result<u64> {
        let (root, fs) = (&Caller::root(), self.fs());
        let write = |handle, at, length| {
            begun();
            fs.write(root, handle, at, &bytes(number, length)).map(|count| count as u64)
        };
        match operation {
            Operation::Write(path, at, length) => self.with(path, RW, |file| write(file, *at, *length)),
            Operation::WriteWith(path, at, length, flags) => {
                self.with(path, RW | *flags, |file| write(file, *at, *length))
            }
            Operation::WriteHeld(held, at, length) => write(self.held(*held)?.1, *at, *length),
            Operation::Copy(from, from_at, to, to_at, length) => {
                let source = self.find(from)?;
                self.with(to, RW, |to| {
                    let from = fs.open(root, source, OpenFlags::READ)?;
                    let copied = fs.copy_file_range(root, from, *from_at, to, *to_at, *length);
                    fs.release(from)?;
                    copied
                })
            }
            other => unreachable!("{other} moves no bytes"),
        }
    }

    /// Whether neither of two operations sees what the other one does, times of the inode that both change apart: new names in
    /// a directory, whole blocks written over such as a file has.
    pub(crate) fn go_beside(&self, one: &Operation, other: &Operation) -> bool {
        let is_new = |path: &str| self.find(path) == Err(Error::NotFound);
        match (one, other) {
            (Operation::Create(one), Operation::Create(other)) => {
                one != other && is_new(one) && is_new(other)
            }
            (Operation::Write(one, at, length), Operation::Write(other, from, count)) => {
                one == other && self.has_blocks(one, *at, *length) && self.has_blocks(other, *from, *count)
            }
            _ => false,
        }
    }

    /// Whether these bytes are whole blocks that the file has, as many as the volume lets go beside others.
    fn has_blocks(&self, path: &str, at: u64, length: usize) -> bool {
        let end = at + length as u64;
        let mut have_data = false;
        let looked = self.with(path, OpenFlags::READ, |handle| {
            have_data = self.fs().seek(handle, SeekFrom::Hole(at))? >= end;
            Ok(())
        });
        (at | end).is_multiple_of(BLOCK) && length <= BESIDE_MAX && looked.is_ok() && have_data
    }

    /// What it reads, as a hash.
    fn read(&self, path: &str, at: u64, length: usize) -> Result<u64> {
        let mut bytes = vec![0; length];
        let done = self.with(path, OpenFlags::READ, |handle| {
            let count = self.fs().read(handle, at, &mut bytes)?;
            bytes.truncate(count);
            Ok(())
        });
        match done {
            Ok(()) => Ok(crate::hash::mix_bytes(0, &bytes)),
            // The name was there when it was looked up, and the file had gone when it was to be opened.
            Err(Error::Stale) => Err(Error::NotFound),
            Err(error) => Err(error),
        }
    }

    fn change(&mut self, number: usize, operation: &Operation, begun: &dyn Fn()) -> Result<()> {
        // What closes the volume ends all files that were open.
        if let Operation::RollBack(name) = operation {
            self.held.clear();
            return self.ground.roll_back(name);
        }
        if let Operation::CloneMounted(name) | Operation::CloneClosed(name) = operation {
            let mounted = matches!(operation, Operation::CloneMounted(_));
            if !mounted {
                self.held.clear();
            }
            return self.ground.clone_snapshot(name, mounted);
        }
        self.perform_open(number, operation, begun)
    }

    /// What has to look at an inode before it changes it can be interrupted in between: behind the change of another, which
    /// is not durable yet, the look would wait, and the two changes would not meet.
    fn perform_open(&mut self, number: usize, operation: &Operation, begun: &dyn Fn()) -> Result<()> {
        let (fs, root) = (self.ground.file_system(), &Caller::root());
        match operation {
            Operation::Create(path) => {
                let (dir, name) = self.split(path)?;
                begun();
                let created = fs.create(root, dir, name, 0o644, RW | OpenFlags::EXCLUSIVE)?;
                fs.release(created.handle)
            }
            Operation::Mknod(path, mode) => {
                let (dir, name) = self.split(path)?;
                let device =
                    matches!(FileKind::from_mode(*mode), Some(FileKind::CharDevice | FileKind::BlockDevice));
                fs.mknod(root, dir, name, *mode, if device { 0x0103 } else { 0 }).map(drop)
            }
            Operation::Mkdir(path) => {
                let (dir, name) = self.split(path)?;
                begun();
                fs.mkdir(root, dir, name, 0o755).map(drop)
            }
            Operation::Symlink(path, length) => {
                let (dir, name) = self.split(path)?;
                fs.symlink(root, dir, name, &bytes(number, *length)).map(drop)
            }
            Operation::Link(path, new) => {
                let ino = self.find(path)?;
                let (dir, name) = self.split(new)?;
                begun();
                fs.link(root, ino, dir, name).map(drop)
            }
            Operation::Unlink(path) => {
                let (dir, name) = self.split(path)?;
                fs.unlink(root, dir, name)
            }
            Operation::Rmdir(path) => {
                let (dir, name) = self.split(path)?;
                fs.rmdir(root, dir, name)
            }
            Operation::Rename(from, to, flags) => {
                let ((dir, name), (new_dir, new_name)) = (self.split(from)?, self.split(to)?);
                fs.rename(root, dir, name, new_dir, new_name, *flags)
            }
            Operation::OpenTruncate(path) => self.with(path, RW | OpenFlags::TRUNCATE, |_| Ok(())),
            Operation::Truncate(path, size) => {
                let (ino, set) = (self.find(path)?, SetAttr { size: Some(*size), ..SetAttr::default() });
                begun();
                fs.setattr(root, ino, &set, None).map(drop)
            }
            Operation::Allocate(path, mode, at, length) => self.with(path, RW, |handle| {
                begun();
                fs.fallocate(root, handle, *mode, *at, *length)
            }),
            Operation::Setxattr(path, name, length, mode) => {
                let ino = self.find(path)?;
                fs.setxattr(root, ino, name.as_bytes(), &bytes(number, *length), *mode)
            }
            Operation::Removexattr(path, name) => fs.removexattr(root, self.find(path)?, name.as_bytes()),
            Operation::Chmod(path, mode) => {
                self.set(path, SetAttr { mode: Some(*mode), ..SetAttr::default() })
            }
            Operation::Chattr(path, flags) => {
                let ino = self.find(path)?;
                let others = fs.getattr(ino)?.flags - InodeFlags::COMMON;
                fs.set_inode_flags(root, ino, others | *flags)
            }
            Operation::Chown(path, uid, gid) => {
                self.set(path, SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() })
            }
            Operation::Utimens(path, atime, mtime) => {
                let at = |sec: i64| Some(SetTime::At(Time { sec, nsec: 123_456_789 }));
                self.set(path, SetAttr { atime: at(*atime), mtime: at(*mtime), ..SetAttr::default() })
            }
            Operation::Hold(held, path) => {
                let ino = self.find(path)?;
                let handle = fs.open(root, ino, RW)?;
                self.hold(*held, ino, handle)
            }
            Operation::Tmpfile(held, dir) => {
                let created = fs.tmpfile(root, self.find(dir)?, 0o600, RW)?;
                self.hold(*held, created.attr.ino, created.handle)
            }
            Operation::LinkHeld(held, new) => {
                let (dir, name) = self.split(new)?;
                fs.link(root, self.held(*held)?.0, dir, name).map(drop)
            }
            Operation::TruncateHeld(held, size) => {
                let (ino, handle) = self.held(*held)?;
                let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                fs.setattr(root, ino, &set, Some(handle)).map(drop)
            }
            Operation::Release(held) => {
                let (_, handle) = self.held(*held)?;
                self.held.remove(held);
                fs.release(handle)
            }
            Operation::Fsync(path, data_only) => self.with(path, RW, |handle| fs.fsync(handle, *data_only)),
            Operation::FsyncHeld(held) => fs.fsync(self.held(*held)?.1, false),
            Operation::FsyncDir(path) => fs.fsync_inode(self.find(path)?),
            Operation::Sync => fs.syncfs(),
            Operation::TakeSnapshot(name) => self.snapshots()?.take_snapshot(name),
            Operation::RemoveSnapshot(name) => self.snapshots()?.remove_snapshot(name),
            Operation::Checkpoint => self.ground.checkpoint(),
            Operation::Tend(chore) => self.ground.tend(*chore),
            Operation::EmptySegment(segment) => self.ground.empty_segment(*segment),
            Operation::RollBack(_) | Operation::CloneMounted(_) | Operation::CloneClosed(_) => {
                unreachable!("done by the ground")
            }
            Operation::Read(..)
            | Operation::Write(..)
            | Operation::WriteWith(..)
            | Operation::WriteHeld(..)
            | Operation::Copy(..) => unreachable!("it says how many bytes, or which"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_found_no_room_is_told_from_what_did() {
        let write = Operation::Write("/a".into(), 0, 9_000);
        for (answer, left) in [
            (Ok(Some(9_000)), None),
            (Ok(Some(4_096)), Some(4_904)),
            (Err(Error::NoSpace), Some(9_000)),
            (Err(Error::NotFound), None),
        ] {
            assert_eq!(write.bytes_without_room(&answer), left, "{answer:?}");
        }
        // What is copied may end before that.
        let copy = Operation::Copy("/a".into(), 0, "/b".into(), 0, 9_000);
        assert_eq!(copy.bytes_without_room(&Ok(Some(4_096))), None);
        assert_eq!(Operation::Create("/a".into()).bytes_without_room(&Err(Error::NoSpace)), Some(0));
    }
}
