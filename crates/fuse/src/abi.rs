//! The messages of FUSE as the kernel lays them out: protocol 7.45, from the kernel's `include/uapi/linux/fuse.h`.
//!
//! Numbers are the processor's own, as both ends are on one machine. An older kernel sends shorter arguments of some
//! messages; [`Opcode::arguments`] has those that 7.36 (Linux 5.17) and later send.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol's version.
pub(crate) const MAJOR: u32 = 7;
/// What this crate knows of it. The kernel may know less or more.
pub(crate) const MINOR: u32 = 45;
/// The oldest that all that is asked for is in: Linux 5.17.
pub(crate) const MINOR_MIN: u32 = 36;

macro_rules! opcodes {
    ($($name:ident = $number:literal, $arguments:expr;)*) => {
        /// What a message asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Opcode { $($name = $number,)* }

        impl Opcode {
            /// Those that this crate has a word for.
            pub(crate) fn of(number: u32) -> Option<Opcode> {
                match number { $($number => Some(Opcode::$name),)* _ => None }
            }

            /// Bytes of the arguments that come before names and data.
            pub(crate) fn arguments(self) -> usize {
                match self { $(Opcode::$name => $arguments,)* }
            }
        }
    };
}

opcodes! {
    Lookup = 1, 0;
    Forget = 2, size_of::<ForgetIn>();
    Getattr = 3, size_of::<GetattrIn>();
    Setattr = 4, size_of::<SetattrIn>();
    Readlink = 5, 0;
    Symlink = 6, 0;
    Mknod = 8, size_of::<MknodIn>();
    Mkdir = 9, size_of::<MkdirIn>();
    Unlink = 10, 0;
    Rmdir = 11, 0;
    Rename = 12, size_of::<RenameIn>();
    Link = 13, size_of::<LinkIn>();
    Open = 14, 8;
    Read = 15, size_of::<ReadIn>();
    Write = 16, size_of::<WriteIn>();
    Statfs = 17, 0;
    Release = 18, 24;
    Fsync = 20, size_of::<FsyncIn>();
    Setxattr = 21, size_of::<SetxattrIn>();
    Getxattr = 22, size_of::<GetxattrIn>();
    Listxattr = 23, size_of::<GetxattrIn>();
    Removexattr = 24, 0;
    Flush = 25, 24;
    Init = 26, 0;
    Opendir = 27, 8;
    Readdir = 28, size_of::<ReadIn>();
    Releasedir = 29, 24;
    Fsyncdir = 30, size_of::<FsyncIn>();
    Access = 34, 8;
    Create = 35, size_of::<CreateIn>();
    Interrupt = 36, 8;
    Destroy = 38, 0;
    Ioctl = 39, size_of::<IoctlIn>();
    BatchForget = 42, size_of::<BatchForgetIn>();
    Fallocate = 43, size_of::<FallocateIn>();
    Readdirplus = 44, size_of::<ReadIn>();
    Rename2 = 45, size_of::<Rename2In>();
    Lseek = 46, size_of::<LseekIn>();
    CopyFileRange = 47, size_of::<CopyFileRangeIn>();
    Tmpfile = 51, size_of::<CreateIn>();
    Statx = 52, size_of::<StatxIn>();
    CopyFileRange64 = 53, size_of::<CopyFileRangeIn>();
}

/// Codes of what the server says without having been asked, in place of an error.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;

bitflags::bitflags! {
    /// What kernel and server can do, exchanged at the beginning.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Features: u64 {
        const ASYNC_READ = 1 << 0;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        const NO_OPEN_SUPPORT = 1 << 17;
        const PARALLEL_DIROPS = 1 << 18;
        const POSIX_ACL = 1 << 20;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        /// The upper 32 of these are there at all.
        const INIT_EXT = 1 << 30;
        const NO_EXPORT_SUPPORT = 1 << 38;
        const OVER_IO_URING = 1 << 41;
    }
}

bitflags::bitflags! {
    /// Which fields of [`SetattrIn`] count.
    #[derive(Clone, Copy)]
    pub(crate) struct Valid: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const CTIME = 1 << 10;
        /// Who asks has no CAP_FSETID, or changes the owner.
        const KILL_PRIVILEGES = 1 << 11;
    }
}

/// `FUSE_GETATTR_FH`: the question is about an open file.
pub(crate) const GETATTR_OF_FILE: u32 = 1 << 0;
/// `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS` of `linux/fs.h`: what lsattr(1) and chattr(1) ask for. The flags are 4 bytes, whatever the numbers say.
pub(crate) const IOCTL_GET_FLAGS: u32 = 0x8008_6601;
pub(crate) const IOCTL_SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`: the same by other numbers, which the kernel asks for itself before it lets flags be set.
pub(crate) const IOCTL_GET_EXTENDED_FLAGS: u32 = 0x801C_581F;
pub(crate) const IOCTL_SET_EXTENDED_FLAGS: u32 = 0x401C_5820;
/// `FUSE_WRITE_CACHE`: a page that the kernel writes back.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// `FUSE_WRITE_KILL_SUIDGID`.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `FUSE_FSYNC_FDATASYNC`.
pub(crate) const FSYNC_DATA: u32 = 1 << 0;
/// `FUSE_SETXATTR_ACL_KILL_SGID`: with this access ACL, set-group-ID goes.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `FOPEN_KEEP_CACHE`.
pub(crate) const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// `FOPEN_NOFLUSH`.
pub(crate) const OPEN_NOFLUSH: u32 = 1 << 5;

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
            pub(crate) struct $name { $(pub(crate) $field: $type,)* }
        )*
    };
}

messages! {
    /// Before every message from the kernel.
    InHeader {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        extensions: u16, // of 8 bytes each, behind everything
        padding: u16,
    }
    /// Before every answer.
    OutHeader { len: u32, error: i32, unique: u64, }
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11], }
    InitOut {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
    Attr {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }
    EntryOut {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, padding: u32, attr: Attr, }
    StatxTime { sec: i64, nsec: u32, padding: i32, }
    Statx {
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        padding: u16,
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: StatxTime,
        btime: StatxTime,
        ctime: StatxTime,
        mtime: StatxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare: [u64; 14],
    }
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, flags: u32, mask: u32, }
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx, }
    OpenOut { fh: u64, open_flags: u32, backing_id: i32, }
    ForgetIn { nlookup: u64, }
    ForgetOne { nodeid: u64, nlookup: u64, }
    BatchForgetIn { count: u32, padding: u32, }
    GetattrIn { flags: u32, padding: u32, fh: u64, }
    SetattrIn {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn { mode: u32, umask: u32, }
    RenameIn { newdir: u64, }
    Rename2In { newdir: u64, flags: u32, padding: u32, }
    LinkIn { oldnodeid: u64, }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// Of `readdir` and `readdirplus`, too.
    ReadIn {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    WriteIn {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    WriteOut { size: u32, padding: u32, }
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    /// Of `listxattr`, too.
    GetxattrIn { size: u32, padding: u32, }
    GetxattrOut { size: u32, padding: u32, }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    LseekOut { offset: u64, }
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    /// `fsxattr`.
    ExtendedFlags { flags: u32, extent_size: u32, extents: u32, project: u32, copy_extent_size: u32, padding: [u32; 2], }
    CopyFileRangeIn {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }
    CopyFileRangeOut { copied: u64, }
    StatfsOut {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }
    /// One name of a listing, followed by the name, up to a multiple of 8 bytes.
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    NotifyInvalInode { ino: u64, off: i64, len: i64, }
    NotifyInvalEntry { parent: u64, namelen: u32, flags: u32, }
    /// What is shared with the kernel for one request over io_uring, beside its data.
    RingHeader { in_out: [u64; 16], arguments: [u64; 16], entry: RingEntry, }
    RingEntry { flags: u64, commit_id: u64, payload: u32, padding: u32, reserved: u64, }
    /// What a submission to a FUSE ring has in its command's 80 bytes.
    RingCommand { flags: u64, commit_id: u64, queue: u16, padding: [u8; 6], }
}

/// `FUSE_IO_URING_CMD_REGISTER`: here is an entry's memory; fill in a request.
pub(crate) const RING_REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: this entry's answer is in place; fill in the next request.
pub(crate) const RING_COMMIT_AND_FETCH: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the sizes that the kernel's header states or implies.
    #[test]
    fn sizes_are_the_kernels() {
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<OutHeader>(), 16);
        assert_eq!(size_of::<InitIn>(), 64);
        assert_eq!(size_of::<InitOut>(), 64);
        assert_eq!(size_of::<Attr>(), 88);
        assert_eq!(size_of::<EntryOut>(), 128);
        assert_eq!(size_of::<AttrOut>(), 104);
        assert_eq!(size_of::<Statx>(), 256);
        assert_eq!(size_of::<StatxOut>(), 288);
        assert_eq!(size_of::<SetattrIn>(), 88);
        assert_eq!(size_of::<ReadIn>(), 40);
        assert_eq!(size_of::<WriteIn>(), 40);
        assert_eq!(size_of::<CopyFileRangeIn>(), 56);
        assert_eq!(size_of::<StatfsOut>(), 80);
        assert_eq!(size_of::<RingHeader>(), 288);
        assert_eq!(size_of::<RingCommand>(), 24);
    }
}
