//! Inodes: attributes, and what is small enough to live beside them.
//!
//! An inode fills a slot of 256 bytes; 15 of them share a block with one NID. An inode's number is that NID, shifted left
//! by 4, and its slot, 1 to 15: the block's own header has the place of slot 0.

use vfs::{Attr, Caller, FileKind, InodeFlags, Time};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use nvm::Purpose;

use crate::geometry::{BLOCK, FILE_MAX, Medium};

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
    /// [`InodeFlags`], of those that all volumes keep.
    flags: U32,
}

/// The attributes that change rarely: one object of the log.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct Cold {
    /// The key of the entry that was made last: of anything but a directory it may be gone, while others lead here. In one
    /// line with what is hot, as the directory is, too: a rename changes both.
    pub(crate) key: U64,
    pub(crate) mode: U32,
    /// The directory in which that entry is: of a directory its parent, of anything else a hint.
    pub(crate) parent: U32,
    pub(crate) uid: U32,
    pub(crate) gid: U32,
    pub(crate) rdev: U32,
    pub(crate) generation: U32,
    atime_sec: I64,
    btime_sec: I64,
    atime_nsec: U32,
    btime_nsec: U32,
}

/// What follows from the changes to an inode's contents, and so is never logged.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub(crate) struct Derived {
    /// Data blocks and nodes that belong to the inode.
    pub(crate) blocks: U64,
    /// Entries of a directory, without `.` and `..`.
    pub(crate) entries: U64,
    /// Mapped: NID of the map of what lies beyond the first blocks. Directory: its root, as a trie's slot. Else 0.
    pub(crate) body: U32,
    /// Node with the extended attributes, if they don't fit the slot; else 0.
    pub(crate) xattr_nid: U32,
    /// Bytes of extended attributes at the end of the slot.
    pub(crate) xattr_len: u8,
    /// A [`Layout`].
    pub(crate) layout: u8,
    reserved: [u8; 6],
}

/// Bytes of an inode.
pub(crate) const SLOT: usize = 256;
/// The slots of a block that hold inodes: all but the one where its header is.
pub(crate) const ALL_SLOTS: u16 = 0xfffe;
const SLOT_BITS: u32 = 4;
const _: () = assert!(SLOT << SLOT_BITS == BLOCK as usize);

/// The NID of the block that holds inode `ino`.
#[inline]
pub(crate) fn nid_of(ino: u32) -> u32 {
    ino >> SLOT_BITS
}

/// The place of inode `ino` in its block.
#[inline]
pub(crate) fn slot_of(ino: u32) -> usize {
    ino as usize & ((1 << SLOT_BITS) - 1)
}

/// The number of the inode in `slot` of block `nid`.
#[inline]
pub(crate) fn number_of(nid: u32, slot: u32) -> u32 {
    nid << SLOT_BITS | slot
}

/// The slots whose bit is set in a block's map, ascending.
pub(crate) fn slots_in(map: u16) -> impl Iterator<Item = usize> {
    (1..16).filter(move |slot| map >> slot & 1 == 1)
}

const HOT: usize = 0;
const COLD: usize = HOT + size_of::<Hot>();
const DERIVED: usize = COLD + size_of::<Cold>();
/// Where the payload begins: all that `stat` shows lies in the two lines before, which the processor fetches as one.
pub(crate) const PAYLOAD: usize = 128;
/// Bytes of payload, extended attributes included.
pub(crate) const PAYLOAD_BYTES: usize = SLOT - PAYLOAD;
const _: () = assert!(DERIVED + size_of::<Derived>() == PAYLOAD);
const BODY: usize = DERIVED + 16;
/// The directory of the entry that names the inode, and its key.
const PARENT: usize = COLD + std::mem::offset_of!(Cold, parent);
const KEY: usize = COLD + std::mem::offset_of!(Cold, key);
const _: () = assert!(KEY < PARENT && PARENT + 4 <= nvm::LINE as usize);
const XATTR_NID: usize = DERIVED + 20;
const XATTR_LEN: usize = DERIVED + 24;
const LAYOUT: usize = DERIVED + 25;
/// Where a reader without a lock finds the length, the mode (low half of a word), the body (low half) and the layout.
pub(crate) const SIZE: usize = HOT;
/// The word with links, and above them flags.
pub(crate) const LINKS_WORD: usize = HOT + std::mem::offset_of!(Hot, nlink);
const _: () = assert!(LINKS_WORD.is_multiple_of(8) && std::mem::offset_of!(Hot, flags) == LINKS_WORD + 4);
pub(crate) const MODE: usize = COLD + std::mem::offset_of!(Cold, mode);
pub(crate) const BODY_WORD: usize = BODY;
pub(crate) const LAYOUT_WORD: usize = LAYOUT & !7;
pub(crate) const LAYOUT_SHIFT: usize = (LAYOUT & 7) * 8;
const _: () = assert!(SIZE.is_multiple_of(8) && MODE.is_multiple_of(8) && BODY.is_multiple_of(8));

/// What the payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Layout {
    /// The bytes of a small file or a symbolic link.
    Inline = 0,
    /// Pointers to the first blocks of a file: see [`crate::index`].
    Mapped = 1,
    /// Nothing: a directory's entries are in its body. See [`crate::directory`].
    Directory = 2,
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
            flags: 0.into(),
        }
    }

    pub(crate) fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.flags.get())
    }

    pub(crate) fn with_flags(self, flags: InodeFlags) -> Hot {
        Hot { flags: flags.bits().into(), ..self }
    }

    /// Whether length and flags are such as this version writes.
    pub(crate) fn is_possible(&self) -> bool {
        self.size.get() <= FILE_MAX && InodeFlags::COMMON.contains(self.flags())
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

    /// The same, modified and changed when it was said.
    pub(crate) fn at_times(self, mtime: Time, ctime: Time) -> Hot {
        self.modified(mtime).changed(ctime)
    }

    /// The same, contents changed now by `caller`.
    pub(crate) fn rewritten(self, caller: &Caller) -> Hot {
        if caller.keeps_times { self } else { self.modified(Time::now()) }
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
            key: 0.into(),
            atime_sec: born.sec.into(),
            btime_sec: born.sec.into(),
            atime_nsec: born.nsec.into(),
            btime_nsec: born.nsec.into(),
        }
    }

    /// The same, entered in `dir`.
    pub(crate) fn entered(self, dir: u32, key: u64) -> Cold {
        Cold { parent: dir.into(), key: key.into(), ..self }
    }

    /// Whether it was last entered so.
    pub(crate) fn is_entered(&self, dir: u32, key: u64) -> bool {
        (self.parent.get(), self.key.get()) == (dir, key)
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

    pub(crate) fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode.get()).unwrap_or(FileKind::Regular)
    }
}

/// An inode, read.
#[derive(Clone, Copy)]
pub(crate) struct Inode<'a> {
    pub(crate) ino: u32,
    /// The block it lies in.
    pub(crate) block: u64,
    /// Its slot, or as much of that as it uses.
    pub(crate) bytes: &'a [u8],
}

impl<'a> Inode<'a> {
    /// The inode in `slot` of a node block.
    pub(crate) fn in_block(bytes: &'a [u8], block: u64, ino: u32) -> Inode<'a> {
        let at = slot_of(ino) * SLOT;
        Inode { ino, block, bytes: &bytes[at..at + SLOT] }
    }

    /// An inode in block `block`, of which no other is looked at.
    #[inline]
    pub(crate) fn on_medium(medium: &'a Medium, block: u64, ino: u32) -> Inode<'a> {
        if medium.region.is_watched() {
            return Inode::watched(medium, block, ino);
        }
        let at = block * BLOCK + (slot_of(ino) * SLOT) as u64;
        Inode { ino, block, bytes: medium.region.bytes_of_which(2, at, SLOT) }
    }

    #[cold]
    fn watched(medium: &'a Medium, block: u64, ino: u32) -> Inode<'a> {
        let at = block * BLOCK + (slot_of(ino) * SLOT) as u64;
        let inode = Inode { ino, block, bytes: medium.region.bytes_of_which(2, at, PAYLOAD) };
        Inode { bytes: medium.region.bytes_of_which(0, at, inode.used()), ..inode }
    }

    pub(crate) fn hot(&self) -> Hot {
        *Hot::ref_from_bytes(&self.bytes[HOT..COLD]).expect("its size")
    }

    pub(crate) fn cold(&self) -> Cold {
        *Cold::ref_from_bytes(&self.bytes[COLD..DERIVED]).expect("its size")
    }

    pub(crate) fn derived(&self) -> &'a Derived {
        Derived::ref_from_bytes(&self.bytes[DERIVED..PAYLOAD]).expect("its size")
    }

    pub(crate) fn size(&self) -> u64 {
        self.hot().size.get()
    }

    pub(crate) fn layout(&self) -> Layout {
        match self.bytes[LAYOUT] {
            1 => Layout::Mapped,
            2 => Layout::Directory,
            _ => Layout::Inline,
        }
    }

    /// Whether length, flags, layout and kind are such as this version writes.
    pub(crate) fn is_possible(&self) -> bool {
        let directory = self.layout() == Layout::Directory;
        let room = match self.layout() {
            Layout::Inline => self.inline_capacity() as u64,
            Layout::Mapped if self.xattr_len() > 0 => return false,
            Layout::Mapped | Layout::Directory => FILE_MAX,
        };
        self.hot().is_possible()
            && self.size() <= room
            && self.xattr_len() <= PAYLOAD_BYTES
            && self.bytes[LAYOUT] <= Layout::Directory as u8
            && FileKind::from_mode(self.cold().mode.get())
                .is_some_and(|kind| (kind == FileKind::Directory) == directory)
    }

    pub(crate) fn kind(&self) -> FileKind {
        self.cold().kind()
    }

    /// An error if it holds no bytes.
    #[inline]
    pub(crate) fn check_regular(&self) -> vfs::Result<()> {
        match self.kind() {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(vfs::Error::IsDirectory),
            _ => Err(vfs::Error::Invalid),
        }
    }

    /// Bytes of extended attributes in the slot.
    fn xattr_len(&self) -> usize {
        usize::from(self.bytes[XATTR_LEN])
    }

    /// Bytes of a file that would fit beside the attributes.
    pub(crate) fn inline_capacity(&self) -> usize {
        PAYLOAD_BYTES.saturating_sub(self.xattr_len())
    }

    /// Bytes of extended attributes that would fit beside what the payload is.
    pub(crate) fn xattr_capacity(&self) -> usize {
        match self.layout() {
            Layout::Inline => PAYLOAD_BYTES.saturating_sub(self.size() as usize),
            Layout::Mapped => 0,
            Layout::Directory => PAYLOAD_BYTES,
        }
    }

    /// The bytes of an inline file.
    pub(crate) fn inline_bytes(&self) -> &'a [u8] {
        &self.bytes[PAYLOAD..PAYLOAD + self.inline_capacity().min(self.size() as usize)]
    }

    /// The payload.
    pub(crate) fn payload(&self) -> &'a [u8] {
        &self.bytes[PAYLOAD..]
    }

    /// The extended attributes in the slot.
    pub(crate) fn xattr_bytes(&self) -> &'a [u8] {
        match self.xattr_len().min(PAYLOAD_BYTES) {
            0 => &[],
            length => &self.bytes[SLOT - length..],
        }
    }

    /// Bytes from the slot's start that mean something: what is copied, flushed and covered by the checksum.
    pub(crate) fn used(&self) -> usize {
        match self.layout() {
            _ if self.xattr_len() > 0 => SLOT,
            Layout::Inline => PAYLOAD + self.size().min(PAYLOAD_BYTES as u64) as usize,
            Layout::Mapped => SLOT,
            Layout::Directory => PAYLOAD,
        }
    }

    pub(crate) fn attr(&self) -> Attr {
        attr(self.ino, &self.bytes[..PAYLOAD])
    }
}

/// What `stat` shows of inode `ino`, from the bytes of its slot before the payload.
#[inline]
pub(crate) fn attr(ino: u32, bytes: &[u8]) -> Attr {
    let hot = Hot::ref_from_bytes(&bytes[HOT..COLD]).expect("its size");
    let cold = Cold::ref_from_bytes(&bytes[COLD..DERIVED]).expect("its size");
    let derived = Derived::ref_from_bytes(&bytes[DERIVED..PAYLOAD]).expect("its size");
    let is_dir = derived.layout == Layout::Directory as u8;
    Attr {
        ino: u64::from(ino),
        generation: cold.generation.get(),
        mode: cold.mode.get(),
        nlink: hot.nlink.get(),
        uid: cold.uid.get(),
        gid: cold.gid.get(),
        rdev: cold.rdev.get(),
        size: if is_dir { derived.blocks.get().max(1).wrapping_mul(BLOCK) } else { hot.size.get() },
        blocks: derived.blocks.get().wrapping_mul(BLOCK / 512),
        atime: Time { sec: cold.atime_sec.get(), nsec: cold.atime_nsec.get() },
        mtime: hot.mtime(),
        ctime: hot.ctime(),
        btime: Time { sec: cold.btime_sec.get(), nsec: cold.btime_nsec.get() },
        flags: hot.flags(),
    }
}

/// Whether an inode has extended attributes, from the bytes of its slot before the payload.
#[inline]
pub(crate) fn has_xattrs(bytes: &[u8]) -> bool {
    bytes[XATTR_LEN] != 0 || bytes[XATTR_NID..XATTR_NID + 4] != [0; 4]
}

/// An inode in its block's copy of the running epoch, open for change. The inode's lock is held.
#[derive(Clone, Copy)]
pub(crate) struct InodeEdit<'a> {
    medium: &'a Medium,
    pub(crate) ino: u32,
    pub(crate) block: u64,
}

impl<'a> InodeEdit<'a> {
    pub(crate) fn new(medium: &'a Medium, block: u64, ino: u32) -> InodeEdit<'a> {
        InodeEdit { medium, ino, block }
    }

    pub(crate) fn inode(&self) -> Inode<'a> {
        Inode::on_medium(self.medium, self.block, self.ino)
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= SLOT, "a store beyond the inode's slot");
        let slot = self.block * BLOCK + (slot_of(self.ino) * SLOT) as u64;
        self.medium.region.store(Purpose::Metadata, slot + at as u64, bytes);
    }

    /// Makes an inode of what the slot is: all its attributes, and as much payload as an inline file has, zero.
    pub(crate) fn begin(&self, cold: &Cold, hot: &Hot) {
        let directory = cold.kind() == FileKind::Directory;
        let mut bytes = [0; SLOT];
        bytes[HOT..COLD].copy_from_slice(hot.as_bytes());
        bytes[COLD..DERIVED].copy_from_slice(cold.as_bytes());
        bytes[LAYOUT] = if directory { Layout::Directory } else { Layout::Inline } as u8;
        let inline = if directory { 0 } else { hot.size.get().min(PAYLOAD_BYTES as u64) as usize };
        self.store(0, &bytes[..PAYLOAD + inline]);
    }

    pub(crate) fn set_hot(&self, hot: &Hot) {
        // The clock is coarse: who stores what is there would take the line from others for nothing.
        if self.inode().hot() != *hot {
            self.store(HOT, hot.as_bytes());
        }
    }

    pub(crate) fn set_cold(&self, cold: &Cold) {
        self.store(COLD, cold.as_bytes());
    }

    /// Notes the entry that names it.
    pub(crate) fn set_entry(&self, dir: u32, key: u64) {
        self.store(PARENT, &dir.to_le_bytes());
        self.store(KEY, &key.to_le_bytes());
    }

    pub(crate) fn set_layout(&self, layout: Layout) {
        self.store(LAYOUT, &[layout as u8]);
    }

    /// Adds `delta` to the count of blocks.
    pub(crate) fn add_blocks(&self, delta: i64) {
        if delta != 0 {
            let blocks = self.inode().derived().blocks.get();
            self.store(DERIVED, &blocks.wrapping_add_signed(delta).to_le_bytes());
        }
    }

    /// Adds `delta` to the count of a directory's entries.
    pub(crate) fn add_entries(&self, delta: i64) {
        let entries = self.inode().derived().entries.get();
        self.store(DERIVED + 8, &entries.wrapping_add_signed(delta).to_le_bytes());
    }

    pub(crate) fn set_body(&self, body: u32) {
        self.store(BODY, &body.to_le_bytes());
    }

    pub(crate) fn set_xattr_nid(&self, nid: u32) {
        self.store(XATTR_NID, &nid.to_le_bytes());
    }

    /// Replaces the extended attributes at the slot's end.
    pub(crate) fn set_inline_xattrs(&self, bytes: &[u8]) {
        self.store(XATTR_LEN, &[bytes.len() as u8]);
        self.store(SLOT - bytes.len(), bytes);
    }

    /// Stores an aligned word of the payload, which those who look without a lock see as a whole.
    #[inline]
    pub(crate) fn put_u64(&self, at: usize, word: u64) {
        assert!(at + 8 <= PAYLOAD_BYTES, "a store beyond the inode's slot");
        let slot = self.block * BLOCK + (slot_of(self.ino) * SLOT) as u64;
        self.medium.region.store_u64(Purpose::Metadata, slot + (PAYLOAD + at) as u64, word);
    }

    /// Stores bytes of the payload.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        self.store(PAYLOAD + at, bytes);
    }

    /// Makes bytes of the payload zero.
    pub(crate) fn zero(&self, range: std::ops::Range<usize>) {
        static ZEROS: [u8; PAYLOAD_BYTES] = [0; PAYLOAD_BYTES];
        self.put(range.start, &ZEROS[..range.len()]);
    }
}
