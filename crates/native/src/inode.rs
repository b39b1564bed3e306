//! Inode blocks: attributes, and what is small enough to live beside them.

use vfs::{Attr, FileKind, Time};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::geometry::BLOCK;
use crate::node::{Edit, HEADER, View};

/// The attributes that most operations change: one object of the log.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct Hot {
    pub(crate) size: U64,
    mtime_sec: I64,
    ctime_sec: I64,
    mtime_nsec: U32,
    ctime_nsec: U32,
    pub(crate) nlink: U32,
    reserved: [u8; 4],
}

/// The attributes that change rarely: one object of the log.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct Cold {
    pub(crate) mode: U32,
    pub(crate) uid: U32,
    pub(crate) gid: U32,
    pub(crate) rdev: U32,
    pub(crate) generation: U32,
    /// A directory's parent.
    pub(crate) parent: U32,
    atime_sec: I64,
    btime_sec: I64,
    atime_nsec: U32,
    btime_nsec: U32,
    reserved: [u8; 8],
}

/// What follows from the changes to an inode's contents, and so is never logged.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct Derived {
    /// Data blocks and index nodes that belong to the inode.
    pub(crate) blocks: U64,
    /// Entries of a directory, without `.` and `..`.
    pub(crate) entries: U64,
    /// Node with the extended attributes, if they don't fit the inode; else 0.
    pub(crate) xattr_nid: U32,
    /// Bytes of extended attributes at the end of the inode block.
    pub(crate) xattr_len: U16,
    /// A [`Layout`].
    pub(crate) layout: u8,
    reserved: [u8; 9],
}

const HOT: usize = HEADER;
const COLD: usize = HOT + size_of::<Hot>();
const DERIVED: usize = COLD + size_of::<Cold>();
/// Where the payload begins.
pub(crate) const PAYLOAD: usize = 144;
/// All that `stat` shows lies in the first two lines, which the processor fetches as one.
const _: () = assert!(DERIVED + 16 <= 128);
const _: () = assert!(DERIVED + size_of::<Derived>() == PAYLOAD);
const XATTR_LEN: usize = DERIVED + 20;
const LAYOUT: usize = DERIVED + 22;
/// Where a reader without a lock finds the length, the mode (low half of a word) and the layout.
pub(crate) const SIZE: usize = HOT;
pub(crate) const MODE: usize = COLD;
pub(crate) const LAYOUT_WORD: usize = LAYOUT & !7;
pub(crate) const LAYOUT_SHIFT: usize = (LAYOUT & 7) * 8;
const _: () = assert!(SIZE.is_multiple_of(8) && MODE.is_multiple_of(8) && PAYLOAD.is_multiple_of(8));

/// Most bytes of extended attributes in an inode block.
pub(crate) const INLINE_XATTRS: usize = 832;
/// Bytes of payload that are there whatever the extended attributes take.
pub(crate) const PAYLOAD_MIN: usize = BLOCK as usize - PAYLOAD - INLINE_XATTRS;

/// What the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Layout {
    /// The bytes of a small file or a symbolic link.
    Inline = 0,
    /// Pointers to blocks: see [`crate::index`].
    Mapped = 1,
    /// The entries of a small directory: see [`crate::directory`].
    Page = 2,
    /// The root of a large directory's trie.
    Trie = 3,
}

/// Bytes of extended attributes in an inode block.
pub(crate) fn xattr_len(bytes: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([bytes[XATTR_LEN], bytes[XATTR_LEN + 1]]))
}

impl Hot {
    pub(crate) fn new(size: u64, mtime: Time, ctime: Time, nlink: u32) -> Hot {
        Hot {
            size: size.into(),
            mtime_sec: mtime.sec.into(),
            ctime_sec: ctime.sec.into(),
            mtime_nsec: mtime.nsec.into(),
            ctime_nsec: ctime.nsec.into(),
            nlink: nlink.into(),
            reserved: [0; 4],
        }
    }

    pub(crate) fn mtime(&self) -> Time {
        Time { sec: self.mtime_sec.get(), nsec: self.mtime_nsec.get() }
    }

    pub(crate) fn ctime(&self) -> Time {
        Time { sec: self.ctime_sec.get(), nsec: self.ctime_nsec.get() }
    }

    /// The same, changed at `now` (attributes only).
    pub(crate) fn changed(self, now: Time) -> Hot {
        Hot { ctime_sec: now.sec.into(), ctime_nsec: now.nsec.into(), ..self }
    }

    /// The same, contents modified at `now`.
    pub(crate) fn modified(self, now: Time) -> Hot {
        Hot { mtime_sec: now.sec.into(), mtime_nsec: now.nsec.into(), ..self.changed(now) }
    }

    /// The same with `delta` more links.
    pub(crate) fn linked(self, delta: i32) -> Hot {
        self.with_links(self.nlink.get().wrapping_add_signed(delta))
    }

    pub(crate) fn with_links(self, nlink: u32) -> Hot {
        Hot { nlink: nlink.into(), ..self }
    }

    pub(crate) fn sized(self, size: u64) -> Hot {
        Hot { size: size.into(), ..self }
    }
}

impl Cold {
    pub(crate) fn new(
        mode: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        generation: u32,
        parent: u32,
        born: Time,
    ) -> Cold {
        Cold {
            mode: mode.into(),
            uid: uid.into(),
            gid: gid.into(),
            rdev: rdev.into(),
            generation: generation.into(),
            parent: parent.into(),
            atime_sec: born.sec.into(),
            btime_sec: born.sec.into(),
            atime_nsec: born.nsec.into(),
            btime_nsec: born.nsec.into(),
            reserved: [0; 8],
        }
    }

    pub(crate) fn with_mode(self, mode: u32) -> Cold {
        Cold { mode: mode.into(), ..self }
    }

    pub(crate) fn with_owner(self, uid: u32, gid: u32) -> Cold {
        Cold { uid: uid.into(), gid: gid.into(), ..self }
    }

    pub(crate) fn with_atime(self, atime: Time) -> Cold {
        Cold { atime_sec: atime.sec.into(), atime_nsec: atime.nsec.into(), ..self }
    }

    pub(crate) fn with_parent(self, parent: u32) -> Cold {
        Cold { parent: parent.into(), ..self }
    }

    pub(crate) fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode.get()).unwrap_or(FileKind::Regular)
    }
}

/// An inode's block, read.
#[derive(Clone, Copy)]
pub(crate) struct Inode<'a> {
    pub(crate) view: View<'a>,
}

impl<'a> Inode<'a> {
    pub(crate) fn nid(&self) -> u32 {
        self.view.header().nid.get()
    }

    pub(crate) fn hot(&self) -> Hot {
        *Hot::ref_from_bytes(&self.view.bytes[HOT..COLD]).expect("its size")
    }

    pub(crate) fn cold(&self) -> Cold {
        *Cold::ref_from_bytes(&self.view.bytes[COLD..DERIVED]).expect("its size")
    }

    pub(crate) fn derived(&self) -> &'a Derived {
        Derived::ref_from_bytes(&self.view.bytes[DERIVED..PAYLOAD]).expect("its size")
    }

    pub(crate) fn size(&self) -> u64 {
        self.hot().size.get()
    }

    pub(crate) fn layout(&self) -> Layout {
        match self.view.bytes[LAYOUT] {
            1 => Layout::Mapped,
            2 => Layout::Page,
            3 => Layout::Trie,
            _ => Layout::Inline,
        }
    }

    /// Whether length, layout and kind are such as this version writes.
    pub(crate) fn is_possible(&self) -> bool {
        let directory = matches!(self.layout(), Layout::Page | Layout::Trie);
        self.size() <= crate::index::FILE_MAX
            && self.view.bytes[LAYOUT] <= Layout::Trie as u8
            && FileKind::from_mode(self.cold().mode.get())
                .is_some_and(|kind| (kind == FileKind::Directory) == directory)
            && (self.layout() != Layout::Inline || self.size() == self.inline_bytes().len() as u64)
            && (!directory || self.view.used() >= crate::directory::LEAST_USED)
    }

    pub(crate) fn kind(&self) -> FileKind {
        self.cold().kind()
    }

    /// Bytes of a file that would fit beside the attributes.
    pub(crate) fn inline_capacity(&self) -> usize {
        BLOCK as usize - PAYLOAD - xattr_len(self.view.bytes)
    }

    /// The bytes of an inline file.
    pub(crate) fn inline_bytes(&self) -> &'a [u8] {
        &self.view.bytes[PAYLOAD..self.view.used()]
    }

    /// The extended attributes in the block.
    pub(crate) fn xattr_bytes(&self) -> &'a [u8] {
        &self.view.bytes[BLOCK as usize - xattr_len(self.view.bytes)..]
    }

    pub(crate) fn attr(&self) -> Attr {
        let (hot, cold, derived) = (self.hot(), self.cold(), self.derived());
        let is_dir = cold.kind() == FileKind::Directory;
        Attr {
            ino: u64::from(self.nid()),
            generation: cold.generation.get(),
            mode: cold.mode.get(),
            nlink: hot.nlink.get(),
            uid: cold.uid.get(),
            gid: cold.gid.get(),
            rdev: cold.rdev.get(),
            size: if is_dir { (derived.blocks.get() + 1) * BLOCK } else { hot.size.get() },
            blocks: derived.blocks.get() * (BLOCK / 512),
            atime: Time { sec: cold.atime_sec.get(), nsec: cold.atime_nsec.get() },
            mtime: hot.mtime(),
            ctime: hot.ctime(),
            btime: Time { sec: cold.btime_sec.get(), nsec: cold.btime_nsec.get() },
        }
    }
}

/// Changes to an inode's block.
pub(crate) trait InodeEdit {
    fn set_hot(&self, hot: &Hot);
    fn set_cold(&self, cold: &Cold);
    fn set_layout(&self, layout: Layout);
    /// Adds `delta` to the count of blocks.
    fn add_blocks(&self, delta: i64);
    /// Adds `delta` to the count of a directory's entries.
    fn add_entries(&self, delta: i64);
    fn set_xattr_nid(&self, nid: u32);
    /// Replaces the extended attributes at the block's end.
    fn set_inline_xattrs(&self, bytes: &[u8]);
}

impl InodeEdit for Edit<'_> {
    fn set_hot(&self, hot: &Hot) {
        self.store(HOT, hot.as_bytes());
    }

    fn set_cold(&self, cold: &Cold) {
        self.store(COLD, cold.as_bytes());
    }

    fn set_layout(&self, layout: Layout) {
        self.store(LAYOUT, &[layout as u8]);
    }

    fn add_blocks(&self, delta: i64) {
        let blocks = Inode { view: self.view() }.derived().blocks.get();
        self.store(DERIVED, &blocks.wrapping_add_signed(delta).to_le_bytes());
    }

    fn add_entries(&self, delta: i64) {
        let entries = Inode { view: self.view() }.derived().entries.get();
        self.store(DERIVED + 8, &entries.wrapping_add_signed(delta).to_le_bytes());
    }

    fn set_xattr_nid(&self, nid: u32) {
        self.store(DERIVED + 16, &nid.to_le_bytes());
    }

    fn set_inline_xattrs(&self, bytes: &[u8]) {
        self.store(XATTR_LEN, &(bytes.len() as u16).to_le_bytes());
        self.store(BLOCK as usize - bytes.len(), bytes);
    }
}
