//! The trait every volume implements and every front end calls.

use crate::{Attr, Caller, Ino, InodeFlags, Result, SetAttr, Statfs};

/// An open file or directory of one mounted volume, from `open`, `create` or `tmpfile` until `release`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// What creating a file gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// The file's attributes.
    pub attr: Attr,
    /// The file, opened.
    pub handle: Handle,
    /// False if the file was there before (an `open` with `O_CREAT` that found one).
    pub new: bool,
}

bitflags::bitflags! {
    /// How a file is opened (the flags of `open(2)` that a volume cares about, with values of its own).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// Reads are allowed.
        const READ = 1;
        /// Writes are allowed.
        const WRITE = 2;
        /// Every write goes to the end of the file (`O_APPEND`).
        const APPEND = 4;
        /// Truncate to length 0 (`O_TRUNC`).
        const TRUNCATE = 8;
        /// Fail if the file exists (`O_EXCL`, with create).
        const EXCLUSIVE = 16;
        /// Data and metadata are durable when a write returns (`O_SYNC`).
        const SYNC = 32;
        /// Data and the metadata needed to read it are durable when a write returns (`O_DSYNC`).
        const DSYNC = 64;
        /// The file may not be given a name later (`O_TMPFILE | O_EXCL`).
        const UNLINKABLE = 128;
        /// Only holds the inode, which may be of any kind (`O_PATH`); alone, and with `open` alone. No permission is asked for, and
        /// the handle is for nothing but `release`.
        const PATH = 256;
    }

    /// Flags of `renameat2(2)`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RenameFlags: u32 {
        /// Fail with `EEXIST` if the target exists.
        const NOREPLACE = 1;
        /// Exchange source and target atomically.
        const EXCHANGE = 2;
        /// Leave a whiteout at the source: the character device 0, without permissions, that hides a name of an overlay's
        /// lower layer.
        const WHITEOUT = 4;
    }

    /// Modes of `fallocate(2)`; the empty set allocates and extends. Values are Linux's.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FallocateMode: u32 {
        /// The file's length stays.
        const KEEP_SIZE = 1;
        /// Free the range: it reads as zeros (needs `KEEP_SIZE`).
        const PUNCH_HOLE = 2;
        /// Make the range read as zeros, keeping it allocated.
        const ZERO_RANGE = 16;
    }
}

/// Where `seek` looks from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFrom {
    /// The first byte at or after the offset that is data (`SEEK_DATA`).
    Data(u64),
    /// The first byte at or after the offset that is in a hole, the end counting as one (`SEEK_HOLE`).
    Hole(u64),
}

/// Whether `setxattr` creates, replaces, or does what fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Either,
    /// Create; `EEXIST` if it is there (`XATTR_CREATE`).
    Create,
    /// Replace; `ENODATA` if it is not there (`XATTR_REPLACE`).
    Replace,
}

/// One entry of a directory, as `readdir` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The entry's inode.
    pub ino: Ino,
    /// The inode's kind.
    pub kind: crate::FileKind,
    /// Pass this to `readdir` to go on after the entry. Stable while the entry exists, across other
    /// entries' creation and removal; and good to go on from when the entry is gone, as `rm -r` does.
    pub next: u64,
    /// The name, without `/` and NUL.
    pub name: &'a [u8],
}

/// A mounted volume.
///
/// Offsets and lengths are bytes. Ranges are half-open. Errors are those Linux gives for the same system call.
/// An inode number stays valid, and is no other inode's, while the file, of whatever kind, has a name or an open handle; a call on
/// one that is gone gives [`crate::Error::Stale`]. A handle that is not open, or not for what is asked, gives
/// [`crate::Error::BadHandle`]. In a removed directory that is still open nothing is found or made
/// ([`crate::Error::NotFound`]).
///
/// Permissions are those of [`crate::rules`], and so is the order in which faults are found. An operation that
/// fails changes nothing.
///
/// Times: a change of a file's bytes (also of none by `fallocate`, but not a write of zero bytes) sets its mtime and
/// ctime, a change of a directory's entries the directory's; a change of attributes, links, names or extended
/// attributes sets ctime. **Reads, also of directories and links, leave atime alone**: on NVM a read that writes
/// would cost more than the read. A front end that wants another atime sets it. Clocks tick in nanoseconds if the
/// medium can hold them.
///
/// A callback that a method takes must not call the file system: locks may be held.
pub trait FileSystem: Send + Sync {
    /// The attributes of the entry `name` of directory `dir`. `.` and `..` are entries, too; the root is its own
    /// parent.
    fn lookup(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<Attr>;

    /// An inode's attributes.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Whether inode `ino` may change by other means than calls of this trait: then a front end must not keep what it was
    /// told of the inode's attributes and, if it is a directory, of its entries.
    fn is_volatile(&self, _ino: Ino) -> bool {
        false
    }

    /// Times are multiples of so many nanoseconds, 1 to 10^9: what is finer is cut off. Who keeps times above has to do the same, or they are
    /// others when they are asked for again.
    fn time_step_ns(&self) -> u32 {
        1
    }

    /// A directory in `dir` that is found by its name, and that `readdir` leaves out. A listing that goes on from its cookie has all
    /// that `readdir` gives behind the dots.
    fn unlisted(&self, _dir: Ino) -> Option<DirEntry<'static>> {
        None
    }

    /// Changes attributes, all or none; returns the new ones. `handle`, if the caller has one open for
    /// writing, allows a change of size without write permission (`ftruncate(2)`; a handle not for writing is
    /// `EINVAL`). The rules are those of [`crate::rules::plan_setattr`].
    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr, handle: Option<Handle>) -> Result<Attr>;

    /// Makes an inode's flags `flags`, as chattr(1) does (`FS_IOC_SETFLAGS`), all or none; the rules are those of
    /// [`crate::rules::may_set_flags`]. `EOPNOTSUPP` if one of them would promise what the volume does not keep. Sets ctime,
    /// unless `caller` keeps the times.
    fn set_inode_flags(&self, caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()>;

    /// A symbolic link's target; `EINVAL` for other kinds.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;

    /// `ENOENT`-free permission check, as `access(2)`: `mask` has bits 4 (read), 2 (write), 1 (execute).
    fn access(&self, caller: &Caller, ino: Ino, mask: u32) -> Result<()>;

    /// Makes a regular file, device node, fifo or socket; `mode` has the kind and permissions, before the umask
    /// ([`crate::rules::may_mknod`]).
    fn mknod(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Attr>;

    /// Makes a directory; `mode` before the umask.
    fn mkdir(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr>;

    /// Makes a symbolic link to `target`: 1 to [`crate::SYMLINK_MAX`] bytes (`ENOENT`, `ENAMETOOLONG`).
    fn symlink(&self, caller: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr>;

    /// Gives inode `ino` another name. An `O_TMPFILE` inode gets its first one; any other inode without a name
    /// gets none (`ENOENT`).
    fn link(&self, caller: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr>;

    /// Removes a name that is not a directory's. The inode goes with its last name and last handle.
    fn unlink(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()>;

    /// Removes an empty directory.
    fn rmdir(&self, caller: &Caller, dir: Ino, name: &[u8]) -> Result<()>;

    /// Renames, atomically replacing the target if it exists (and flags allow). `EXCHANGE` takes any two kinds.
    /// The whiteout of `WHITEOUT` is made as by `mknod`, in the same atomic operation.
    /// Two names of one inode stay as they are. A directory does not move into itself (`EINVAL`). What moved
    /// has its ctime set.
    fn rename(
        &self,
        caller: &Caller,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()>;

    /// Opens a file (or, with `READ` alone, a directory; with `PATH` alone, anything); [`crate::rules::may_open`] says who may.
    /// `TRUNCATE` sets mtime and ctime also of an empty file.
    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<Handle>;

    /// Opens the regular file `name`, creating it if it does not exist; `mode` before the umask. What is created is
    /// opened whatever its mode. A symbolic link is not followed (`ELOOP`).
    fn create(&self, caller: &Caller, dir: Ino, name: &[u8], mode: u32, flags: OpenFlags) -> Result<Created>;

    /// Makes a regular file without a name (`O_TMPFILE`) in the volume of `dir`, from which it inherits and which
    /// must be writable; `flags` must have `WRITE` (`EINVAL`). With `UNLINKABLE` or `EXCLUSIVE` it never gets a name.
    fn tmpfile(&self, caller: &Caller, dir: Ino, mode: u32, flags: OpenFlags) -> Result<Created>;

    /// Closes a handle.
    fn release(&self, handle: Handle) -> Result<()>;

    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Hands the bytes of `offset..offset + len` that exist to `sink`, in order, in slices of the medium
    /// where the volume can (no copy). The slices are valid during the call only; returns their sum.
    fn read_slices(
        &self,
        handle: Handle,
        offset: u64,
        len: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize> {
        let mut buf = vec![0; len];
        let n = self.read(handle, offset, &mut buf)?;
        sink(&buf[..n]);
        Ok(n)
    }

    /// Writes `data` at `offset` (at the end, if opened with `APPEND`) and gives how much: all of it, or what of its beginning
    /// there is room for and the largest file has; a volume whose writes are atomic refuses that as well. Fails if it is nothing,
    /// with `EFBIG` if the volume has no files so long. Clears set-user-ID and set-group-ID as `write(2)` does for `caller`.
    /// Sets mtime and ctime, unless `caller` keeps the times ([`Caller::keeps_times`]).
    fn write(&self, caller: &Caller, handle: Handle, offset: u64, data: &[u8]) -> Result<usize>;

    /// Makes the file's data, and unless `data_only` all its metadata, durable.
    fn fsync(&self, handle: Handle, data_only: bool) -> Result<()>;

    /// Makes a directory's entries durable, or any inode's state: `fsync` without a handle.
    fn fsync_inode(&self, ino: Ino) -> Result<()>;

    /// Makes everything that returned before durable, and publishes a checkpoint.
    fn syncfs(&self) -> Result<()>;

    /// Lists directory `dir` from cookie `from` (0 is the start), `.` and `..` first, until `sink` returns
    /// false (that entry is not consumed) or the end.
    fn readdir(&self, dir: Ino, from: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;

    /// The volume's space.
    fn statfs(&self) -> Result<Statfs>;

    /// The space of what `ino` is in: the volume's, unless it shows other file systems too (its snapshots).
    fn statfs_of(&self, _ino: Ino) -> Result<Statfs> {
        self.statfs()
    }

    /// An extended attribute's value. `name` includes its namespace (`user.`, `trusted.`, `security.`, `system.`).
    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets an extended attribute. `system.posix_acl_access` and `system.posix_acl_default` are POSIX ACLs in
    /// Linux's binary form and change the mode as Linux has it ([`crate::rules::plan_acl`]).
    fn setxattr(&self, caller: &Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;

    /// The names of all extended attributes the caller may see, each followed by a NUL, in any order.
    fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>>;

    /// Removes an extended attribute.
    fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<()>;

    /// Allocates, punches or zeroes a range of at least one byte (`EINVAL`). `PUNCH_HOLE` without `KEEP_SIZE` or
    /// with `ZERO_RANGE` is `EOPNOTSUPP`. What reads as zeros because of it is data or a hole as the volume likes.
    /// Sets times as [`FileSystem::write`] does.
    fn fallocate(
        &self,
        caller: &Caller,
        handle: Handle,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()>;

    /// Finds data or a hole; `ENXIO` at or beyond the end, and for data where only a hole follows. Every byte that
    /// is not in data is zero; a volume that knows no holes calls everything data.
    fn seek(&self, handle: Handle, from: SeekFrom) -> Result<u64>;

    /// Copies a range of one file to another (or the same, ranges not overlapping), sharing blocks where the
    /// volume can. Returns the bytes copied: fewer than `len` only at the source's end. Overlapping ranges of one file
    /// are `EINVAL`; a sink opened with `APPEND` is `EBADF`.
    fn copy_file_range(
        &self,
        caller: &Caller,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> Result<u64>;
}
