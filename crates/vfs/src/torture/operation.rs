//! One operation, as data that can be done to either side.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::Answer;
use super::known::{Known, Name, Side};
use super::random;
use crate::{
    Caller, Error, FallocateMode, FileSystem, Handle, Ino, InodeFlags, OpenFlags, RenameFlags, Result,
    SeekFrom, SetAttr, XattrMode,
};

/// A method of [`FileSystem`] with its arguments; inodes and handles by the model's numbers.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Lookup {
        dir: Ino,
        name: Name,
    },
    Getattr {
        ino: Ino,
    },
    Setattr {
        ino: Ino,
        set: SetAttr,
        handle: Option<Handle>,
    },
    /// Sets the flags that all volumes keep; others stay.
    SetFlags {
        ino: Ino,
        flags: InodeFlags,
    },
    Readlink {
        ino: Ino,
    },
    Access {
        ino: Ino,
        mask: u32,
    },
    Mknod {
        dir: Ino,
        name: Name,
        mode: u32,
        rdev: u32,
    },
    Mkdir {
        dir: Ino,
        name: Name,
        mode: u32,
    },
    Symlink {
        dir: Ino,
        name: Name,
        target: Name,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: Name,
    },
    Unlink {
        dir: Ino,
        name: Name,
    },
    Rmdir {
        dir: Ino,
        name: Name,
    },
    Rename {
        dir: Ino,
        name: Name,
        new_dir: Ino,
        new_name: Name,
        flags: RenameFlags,
    },
    Open {
        ino: Ino,
        flags: OpenFlags,
    },
    Create {
        dir: Ino,
        name: Name,
        mode: u32,
        flags: OpenFlags,
    },
    Tmpfile {
        dir: Ino,
        mode: u32,
        flags: OpenFlags,
    },
    Release {
        handle: Handle,
    },
    Read {
        handle: Handle,
        offset: u64,
        len: usize,
    },
    ReadSlices {
        handle: Handle,
        offset: u64,
        len: usize,
    },
    Write {
        handle: Handle,
        offset: u64,
        len: usize,
        fill: u64,
    },
    Fsync {
        handle: Handle,
        data_only: bool,
    },
    FsyncInode {
        ino: Ino,
    },
    Syncfs,
    Readdir {
        dir: Ino,
        chunk: usize,
    },
    Statfs,
    Getxattr {
        ino: Ino,
        name: Name,
    },
    Setxattr {
        ino: Ino,
        name: Name,
        value: Name,
        mode: XattrMode,
    },
    Listxattr {
        ino: Ino,
    },
    Removexattr {
        ino: Ino,
        name: Name,
    },
    Fallocate {
        handle: Handle,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    },
    Seek {
        handle: Handle,
        from: SeekFrom,
    },
    CopyFileRange {
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    },
}

impl Operation {
    /// Does the operation to one side.
    pub(super) fn perform(
        &self,
        fs: &dyn FileSystem,
        caller: &Caller,
        known: &Known,
        side: Side,
    ) -> Result<Answer> {
        let at = |ino: Ino| known.ino(ino, side);
        let open = |handle: Handle| known.handle(handle, side);
        let done = |()| Answer::Done;
        match self {
            Operation::Lookup { dir, name } => fs.lookup(caller, at(*dir), name).map(Answer::Attr),
            Operation::Getattr { ino } => fs.getattr(at(*ino)).map(Answer::Attr),
            Operation::Setattr { ino, set, handle } => {
                fs.setattr(caller, at(*ino), set, handle.map(open)).map(Answer::Attr)
            }
            Operation::SetFlags { ino, flags } => {
                let others = fs.getattr(at(*ino))?.flags - InodeFlags::COMMON;
                fs.set_inode_flags(caller, at(*ino), others | *flags).map(done)
            }
            Operation::Readlink { ino } => fs.readlink(at(*ino)).map(Answer::Bytes),
            Operation::Access { ino, mask } => fs.access(caller, at(*ino), *mask).map(done),
            Operation::Mknod { dir, name, mode, rdev } => {
                fs.mknod(caller, at(*dir), name, *mode, *rdev).map(Answer::Attr)
            }
            Operation::Mkdir { dir, name, mode } => fs.mkdir(caller, at(*dir), name, *mode).map(Answer::Attr),
            Operation::Symlink { dir, name, target } => {
                fs.symlink(caller, at(*dir), name, target).map(Answer::Attr)
            }
            Operation::Link { ino, dir, name } => fs.link(caller, at(*ino), at(*dir), name).map(Answer::Attr),
            Operation::Unlink { dir, name } => fs.unlink(caller, at(*dir), name).map(done),
            Operation::Rmdir { dir, name } => fs.rmdir(caller, at(*dir), name).map(done),
            Operation::Rename { dir, name, new_dir, new_name, flags } => {
                fs.rename(caller, at(*dir), name, at(*new_dir), new_name, *flags).map(done)
            }
            Operation::Open { ino, flags } => fs.open(caller, at(*ino), *flags).map(Answer::Handle),
            Operation::Create { dir, name, mode, flags } => {
                fs.create(caller, at(*dir), name, *mode, *flags).map(Answer::Created)
            }
            Operation::Tmpfile { dir, mode, flags } => {
                fs.tmpfile(caller, at(*dir), *mode, *flags).map(Answer::Created)
            }
            Operation::Release { handle } => fs.release(open(*handle)).map(done),
            Operation::Read { handle, offset, len } => {
                let mut buf = vec![0xa5; *len];
                let n = fs.read(open(*handle), *offset, &mut buf)?;
                buf.truncate(n);
                Ok(Answer::Bytes(buf))
            }
            Operation::ReadSlices { handle, offset, len } => {
                let mut all = Vec::new();
                let n = fs.read_slices(open(*handle), *offset, *len, &mut |slice| all.extend(slice))?;
                assert_eq!(n, all.len(), "read_slices returns the bytes that it handed out");
                Ok(Answer::Bytes(all))
            }
            Operation::Write { handle, offset, len, fill } => {
                let data = random::bytes(*fill, *len);
                fs.write(caller, open(*handle), *offset, &data).map(|n| Answer::Count(n as u64))
            }
            Operation::Fsync { handle, data_only } => fs.fsync(open(*handle), *data_only).map(done),
            Operation::FsyncInode { ino } => fs.fsync_inode(at(*ino)).map(done),
            Operation::Syncfs => fs.syncfs().map(done),
            Operation::Readdir { dir, chunk } => readdir(fs, at(*dir), *chunk),
            Operation::Statfs => statfs(fs),
            Operation::Getxattr { ino, name } => fs.getxattr(caller, at(*ino), name).map(Answer::Bytes),
            Operation::Setxattr { ino, name, value, mode } => {
                fs.setxattr(caller, at(*ino), name, value, *mode).map(done)
            }
            Operation::Listxattr { ino } => {
                fs.listxattr(caller, at(*ino)).map(|raw| Answer::Names(names(&raw)))
            }
            Operation::Removexattr { ino, name } => fs.removexattr(caller, at(*ino), name).map(done),
            Operation::Fallocate { handle, mode, offset, len } => {
                fs.fallocate(caller, open(*handle), *mode, *offset, *len).map(done)
            }
            Operation::Seek { handle, from } => fs.seek(open(*handle), *from).map(Answer::Count),
            Operation::CopyFileRange { from, from_offset, to, to_offset, len } => fs
                .copy_file_range(caller, open(*from), *from_offset, open(*to), *to_offset, *len)
                .map(Answer::Count),
        }
    }

    /// The method's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Operation::Lookup { .. } => "lookup",
            Operation::Getattr { .. } => "getattr",
            Operation::Setattr { .. } => "setattr",
            Operation::SetFlags { .. } => "set_inode_flags",
            Operation::Readlink { .. } => "readlink",
            Operation::Access { .. } => "access",
            Operation::Mknod { .. } => "mknod",
            Operation::Mkdir { .. } => "mkdir",
            Operation::Symlink { .. } => "symlink",
            Operation::Link { .. } => "link",
            Operation::Unlink { .. } => "unlink",
            Operation::Rmdir { .. } => "rmdir",
            Operation::Rename { .. } => "rename",
            Operation::Open { .. } => "open",
            Operation::Create { .. } => "create",
            Operation::Tmpfile { .. } => "tmpfile",
            Operation::Release { .. } => "release",
            Operation::Read { .. } => "read",
            Operation::ReadSlices { .. } => "read_slices",
            Operation::Write { .. } => "write",
            Operation::Fsync { .. } => "fsync",
            Operation::FsyncInode { .. } => "fsync_inode",
            Operation::Syncfs => "syncfs",
            Operation::Readdir { .. } => "readdir",
            Operation::Statfs => "statfs",
            Operation::Getxattr { .. } => "getxattr",
            Operation::Setxattr { .. } => "setxattr",
            Operation::Listxattr { .. } => "listxattr",
            Operation::Removexattr { .. } => "removexattr",
            Operation::Fallocate { .. } => "fallocate",
            Operation::Seek { .. } => "seek",
            Operation::CopyFileRange { .. } => "copy_file_range",
        }
    }

    pub(super) fn is_seek(&self) -> bool {
        matches!(self, Operation::Seek { .. })
    }

    /// The flags of an operation that opens.
    pub(super) fn flags(&self) -> OpenFlags {
        match self {
            Operation::Open { flags, .. }
            | Operation::Create { flags, .. }
            | Operation::Tmpfile { flags, .. } => *flags,
            _ => OpenFlags::empty(),
        }
    }

    /// The inode that is opened.
    pub(super) fn inode(&self) -> Ino {
        if let Operation::Open { ino, .. } = self { *ino } else { 0 }
    }

    /// The entry that exists after the operation succeeded.
    pub(super) fn gives_name(&self) -> Option<(Ino, &Name)> {
        match self {
            Operation::Mknod { dir, name, .. }
            | Operation::Mkdir { dir, name, .. }
            | Operation::Symlink { dir, name, .. }
            | Operation::Link { dir, name, .. }
            | Operation::Create { dir, name, .. } => Some((*dir, name)),
            Operation::Rename { new_dir, new_name, .. } => Some((*new_dir, new_name)),
            _ => None,
        }
    }

    /// The inodes that the operation names, those of handles included.
    pub(super) fn inodes(&self, known: &Known) -> Vec<Ino> {
        let of = |handle: &Handle| known.inode_of(*handle);
        let all = match self {
            Operation::Getattr { ino }
            | Operation::Setattr { ino, .. }
            | Operation::SetFlags { ino, .. }
            | Operation::Readlink { ino }
            | Operation::Access { ino, .. }
            | Operation::Open { ino, .. }
            | Operation::FsyncInode { ino }
            | Operation::Getxattr { ino, .. }
            | Operation::Setxattr { ino, .. }
            | Operation::Listxattr { ino }
            | Operation::Removexattr { ino, .. } => [Some(*ino), None],
            Operation::Lookup { dir, .. }
            | Operation::Mknod { dir, .. }
            | Operation::Mkdir { dir, .. }
            | Operation::Symlink { dir, .. }
            | Operation::Unlink { dir, .. }
            | Operation::Rmdir { dir, .. }
            | Operation::Create { dir, .. }
            | Operation::Tmpfile { dir, .. }
            | Operation::Readdir { dir, .. } => [Some(*dir), None],
            Operation::Link { ino, dir, .. } => [Some(*ino), Some(*dir)],
            Operation::Rename { dir, new_dir, .. } => [Some(*dir), Some(*new_dir)],
            Operation::Read { handle, .. }
            | Operation::ReadSlices { handle, .. }
            | Operation::Write { handle, .. }
            | Operation::Fsync { handle, .. }
            | Operation::Fallocate { handle, .. }
            | Operation::Seek { handle, .. } => [of(handle), None],
            Operation::CopyFileRange { from, to, .. } => [of(from), of(to)],
            Operation::Release { .. } | Operation::Syncfs | Operation::Statfs => [None, None],
        };
        all.into_iter().flatten().filter(|&ino| known.volume_ino(ino) != 0).collect()
    }
}

/// The names in a `listxattr` answer.
pub(super) fn names(raw: &[u8]) -> BTreeSet<Vec<u8>> {
    raw.split_inclusive(|&b| b == 0).map(<[u8]>::to_vec).collect()
}

/// Lists a directory in pieces of `chunk` entries.
fn readdir(fs: &dyn FileSystem, dir: Ino, chunk: usize) -> Result<Answer> {
    let mut all = BTreeMap::new();
    let mut from = 0;
    let mut count = 0;
    loop {
        let before = count;
        fs.readdir(dir, from, &mut |entry| {
            if count == before + chunk {
                return false;
            }
            assert!(count > 0 || entry.name == b".", "the first entry is .");
            assert!(count != 1 || entry.name == b"..", "the second entry is ..");
            count += 1;
            from = entry.next;
            let twice = all.insert(entry.name.to_vec(), (entry.ino, entry.kind)).is_some();
            assert!(!twice, "readdir shows {} twice", entry.name.escape_ascii());
            true
        })?;
        if count == before {
            return Ok(Answer::Entries(all));
        }
    }
}

fn statfs(fs: &dyn FileSystem) -> Result<Answer> {
    let space = fs.statfs()?;
    let sound = space.block_size.is_power_of_two()
        && space.blocks_free <= space.blocks
        && space.blocks_available <= space.blocks_free
        && space.files_free <= space.files;
    if sound {
        Ok(Answer::Done)
    } else {
        Err(Error::Corrupt(format!("more is free than there is: {space:?}")))
    }
}
