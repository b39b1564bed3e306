//! Inodes: attributes, and what leads to their contents.

mod raw;

use std::hash::{BuildHasher, Hasher, RandomState};

use vfs::{Attr, Caller, Error, FileKind, InodeFlags, Result, Time, rules};
use zerocopy::{FromBytes, IntoBytes};

use super::{Core, group};
use crate::checksum::crc32c;
use crate::error::corrupt;
use crate::features::{Incompat, RoCompat};
use crate::store::{Kind, Sight};
use crate::superblock::{INODE_BYTES_MIN, ROOT, Superblock};
use raw::{RawInode, decode, encode, seal, storable};
pub(crate) use raw::{Remains, has_wide_times};

bitflags::bitflags! {
    /// What matters here of an inode's flags.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u32 {
        /// Encrypted.
        const ENCRYPT = 0x800;
        /// A directory with a hash tree.
        const INDEX = 0x1000;
        /// `blocks` counts blocks of the file system.
        const HUGE_FILE = 0x4_0000;
        /// Mapped by extents.
        const EXTENTS = 0x8_0000;
        /// A value of a large extended attribute.
        const EA_INODE = 0x20_0000;
        /// Contents are in the inode.
        const INLINE_DATA = 0x1000_0000;
        const _ = !0;
    }
}

/// What lsattr(1) shows (Linux's `EXT4_FL_USER_VISIBLE`).
const SHOWN: InodeFlags = InodeFlags::from_bits_retain(0x725B_DFFF);
/// What chattr(1) changes, with the kernel (`EXT4_FL_USER_MODIFIABLE`).
const CHANGED_BY_KERNEL: InodeFlags = InodeFlags::from_bits_retain(0x624B_C0FF);
/// And here: `acdijstuADST`, which leave all else of a file as it is.
const CHANGED: InodeFlags = InodeFlags::from_bits_retain(0x3_C0FF);
/// Of these, what promises that each change is durable, or data in the journal, which is not so here: `S`, `D`, `j`. It can be taken away.
const NOT_KEPT: InodeFlags = InodeFlags::from_bits_retain(0x1_4008);
/// What only directories have, `T`.
const OF_DIRECTORIES: InodeFlags = InodeFlags::from_bits_retain(0x2_0000);

impl Flags {
    /// Of a directory's flags, those that what is made in it has, too: how it is to be written, dumped and compressed, of which most
    /// mean something to others only.
    pub(crate) fn inherited(self, kind: FileKind) -> Flags {
        let everywhere = Flags::from_bits_retain(InodeFlags::INHERITED.bits());
        let with_contents = Flags::from_bits_retain(0x200_C40F);
        let in_directories = Flags::from_bits_retain(0x2001_0000);
        self & match kind {
            FileKind::Directory => everywhere | with_contents | in_directories,
            FileKind::Regular => everywhere | with_contents,
            _ => everywhere,
        }
    }
}

/// Bytes of an inode that all versions have.
const SHORT: usize = INODE_BYTES_MIN;
/// Bytes of an inode that are pointers, an extent tree's root, a short link, or contents.
pub(crate) const BLOCK_BYTES: usize = 60;
/// What each node of an extent tree begins with.
pub(crate) const EXTENT_MAGIC: u16 = 0xF30A;
/// Bytes of such a node's header, and of each of its entries.
pub(crate) const EXTENT_ENTRY: usize = 12;
/// The root of an extent tree that leads nowhere.
const EMPTY_TREE: [u8; BLOCK_BYTES] = {
    let mut root = [0; BLOCK_BYTES];
    [root[0], root[1]] = EXTENT_MAGIC.to_le_bytes();
    root[4] = (BLOCK_BYTES / EXTENT_ENTRY - 1) as u8;
    root
};
/// A larger file needs a feature of the file system.
const SIZE_MAX_WITHOUT_FEATURE: u64 = 0x7FFF_FFFF;

/// An inode in use.
#[derive(Clone, Debug)]
pub(crate) struct Inode {
    pub(crate) number: u32,
    /// Where its bytes are: that never changes.
    pub(crate) place: Place,
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    /// In units of 512 bytes.
    pub(crate) blocks: u64,
    pub(crate) flags: Flags,
    pub(crate) generation: u32,
    pub(crate) block: [u8; BLOCK_BYTES],
    /// The block of extended attributes, or 0.
    pub(crate) attributes: u64,
    pub(crate) times: Times,
    /// Of an orphan, the next one.
    pub(crate) next_orphan: u32,
    /// What lies behind its fields: extended attributes. Nothing stands for zeros, which most have.
    pub(crate) tail: Box<[u8]>,
    /// Bytes that it has there.
    pub(crate) tail_bytes: usize,
}

/// Where the bytes of an inode are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    block: u64,
    /// Where in it they begin.
    start: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) access: Time,
    pub(crate) modify: Time,
    pub(crate) change: Time,
    pub(crate) birth: Time,
}

/// Inode `number`; [`Error::Stale`] if there is none, or it is not in use.
pub(crate) fn read(core: &Core, number: u32) -> Result<Inode> {
    let place = locate(core, number)?;
    look_at(core, place, |block, bytes| {
        decode(&core.superblock, number, place, bytes, |check| block.check(place.start, check))
    })
}

/// How many names inode `number` has; [`Error::Stale`] as [`read`].
pub(crate) fn links(core: &Core, number: u32) -> Result<u32> {
    look_at(core, locate(core, number)?, |_, bytes| {
        let raw = RawInode::read_from_bytes(&bytes[..SHORT]).expect("the size fits");
        if raw.is_in_use() { Ok(raw.links.get().into()) } else { Err(Error::Stale) }
    })
}

/// Part of an operation: writes an inode that is in use. Links of 0 are kept (an orphan); `next_orphan` stands where a removed one has its
/// time of removal. What of it is not known here stays. [`Error::FileTooLarge`] if it has more blocks than it can say.
pub(crate) fn write(core: &Core, inode: &Inode) -> Result<()> {
    let superblock = &core.superblock;
    change_at(core, inode.place, |bytes| encode(superblock, inode, bytes))??;
    let large = inode.kind() == FileKind::Regular && inode.size > SIZE_MAX_WITHOUT_FEATURE;
    if large && !superblock.features.ro_compat.contains(RoCompat::LARGE_FILE) {
        core.change_superblock(|raw| raw.ro_compat.set(raw.ro_compat.get() | RoCompat::LARGE_FILE.bits()))?;
    }
    Ok(())
}

/// A new inode in memory, for a number that [`crate::core::alloc::new_inode`] gave; the caller writes it. It has no link yet and no
/// contents: an empty extent tree where the file system has extents and the kind has a map. (A short symbolic link, which has none,
/// drops [`Flags::EXTENTS`].)
pub(crate) fn new(core: &Core, number: u32, mode: u32, uid: u32, gid: u32, now: Time) -> Result<Inode> {
    let superblock = &core.superblock;
    let wide = has_wide_times(superblock.inode_extra_bytes);
    let now = storable(now, wide);
    let mut inode = Inode {
        number,
        place: locate(core, number)?,
        mode,
        links: 0,
        uid,
        gid,
        size: 0,
        blocks: 0,
        flags: Flags::empty(),
        // What says that a number is no longer the same file.
        generation: RandomState::new().build_hasher().finish() as u32,
        block: [0; BLOCK_BYTES],
        attributes: 0,
        next_orphan: 0,
        times: Times {
            access: now,
            modify: now,
            change: now,
            birth: if wide { now } else { Time::default() },
        },
        tail: Box::default(),
        tail_bytes: superblock.inode_bytes - SHORT - superblock.inode_extra_bytes,
    };
    let has_map = matches!(inode.kind(), FileKind::Regular | FileKind::Directory | FileKind::Symlink);
    if has_map && superblock.features.incompat.contains(Incompat::EXTENTS) {
        inode.flags |= Flags::EXTENTS;
        inode.block = EMPTY_TREE;
    }
    Ok(inode)
}

/// Part of an operation: zeroes an inode that is given out. One that `was_used` is not that of a file.
pub(crate) fn clear(core: &Core, number: u32, was_used: bool) -> Result<()> {
    change(core, number, |bytes| {
        let raw = RawInode::read_from_bytes(&bytes[..SHORT]).expect("the size fits");
        if was_used && raw.links.get() != 0 {
            return Err(corrupt(
                "bitmap",
                format_args!("inode {number}"),
                "its bit",
                "clear",
                "set: it has names",
            ));
        }
        bytes.fill(0);
        Ok(())
    })?
}

/// Part of an operation: zeroes the block that begins with an inode, none of which was ever used. What lies there is not asked for.
pub(crate) fn begin_block(core: &Core, number: u32) -> Result<()> {
    core.store.make(Kind::Inodes, locate(core, number)?.block, |_| ());
    Ok(())
}

/// Part of an operation: an inode that is free leads nowhere, and has a time of removal.
pub(crate) fn retire(core: &Core, number: u32) -> Result<()> {
    let superblock = &core.superblock;
    change(core, number, |bytes| {
        let mut raw = RawInode::read_from_bytes(&bytes[..SHORT]).expect("the size fits");
        raw.mode.set(0);
        raw.links.set(0);
        raw.dtime.set(Time::now().sec.clamp(1, i64::from(u32::MAX)) as u32);
        bytes[..SHORT].copy_from_slice(raw.as_bytes());
        seal(superblock, number, bytes);
    })
}

/// What is told of inode `number` whether it is in use or not, and whatever else may be wrong with it.
pub(crate) fn remains(core: &Core, number: u32) -> Result<Remains> {
    look_at(core, locate(core, number)?, |_, bytes| Ok(raw::remains(&core.superblock, number, bytes)))
}

/// Lets `with` look at the bytes of an inode, and at the block that they are in.
fn look_at<R>(core: &Core, place: Place, with: impl FnOnce(&Sight<'_>, &[u8]) -> Result<R>) -> Result<R> {
    let range = place.start..place.start + core.superblock.inode_bytes;
    core.store.look(Kind::Inodes, place.block, |_| Ok(()), |block| with(block, &block[range]))
}

/// Where inode `number` is.
fn locate(core: &Core, number: u32) -> Result<Place> {
    let superblock = &core.superblock;
    if number == 0 || number > superblock.inodes {
        return Err(Error::Stale);
    }
    let (group, index) =
        ((number - 1) / superblock.inodes_per_group, (number - 1) % superblock.inodes_per_group);
    let table = group::inode_table(core, group)?.ok_or(Error::Stale)?;
    let at = u64::from(index) * superblock.inode_bytes as u64;
    Ok(Place {
        block: table + (at >> superblock.block.trailing_zeros()),
        start: (at & (superblock.block - 1)) as usize,
    })
}

/// Part of an operation: lets `with` change the bytes of an inode.
fn change<R>(core: &Core, number: u32, with: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
    change_at(core, locate(core, number)?, with)
}

fn change_at<R>(core: &Core, Place { block, start }: Place, with: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
    let end = start + core.superblock.inode_bytes;
    core.store.change(Kind::Inodes, block, |_| Ok(()), |block| with(block.at(start..end)))
}

/// What the checksums of all blocks of an inode start from.
pub(crate) fn seed(superblock: &Superblock, number: u32, generation: u32) -> u32 {
    let both = u64::from(number) | u64::from(generation) << 32;
    crc32c(superblock.checksum_seed, &both.to_le_bytes())
}

impl Inode {
    pub(crate) fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// What its map leads to is metadata, no contents of a file.
    pub(crate) fn has_metadata(&self) -> bool {
        matches!(self.kind(), FileKind::Directory | FileKind::Symlink)
    }

    pub(crate) fn is_inline(&self) -> bool {
        self.flags.contains(Flags::INLINE_DATA)
    }

    /// `caller` has changed the contents. Tells whether that changes the inode: often the clock has not moved on since the last time.
    pub(crate) fn rewritten(&mut self, caller: &Caller, now: Time) -> bool {
        let before = (self.mode, self.times.modify, self.times.change);
        self.mode = rules::mode_after_write(caller, self.mode, self.gid);
        if !caller.keeps_times {
            (self.times.modify, self.times.change) = (now, now);
        }
        (self.mode, self.times.modify, self.times.change) != before
    }

    /// What lsattr(1) shows.
    pub(crate) fn shown_flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.flags.bits()) & SHOWN
    }

    /// Makes the flags what chattr(1) of `caller` wants. Others than its own don't count, as with the kernel.
    pub(crate) fn set_shown_flags(&mut self, caller: &Caller, wanted: InodeFlags) -> Result<()> {
        let changed = (wanted ^ self.shown_flags()) & CHANGED_BY_KERNEL;
        rules::may_set_flags(caller, &self.attr(), self.shown_flags() ^ changed)?;
        let can_have = match self.kind() {
            FileKind::Directory => CHANGED - NOT_KEPT,
            FileKind::Regular => CHANGED - NOT_KEPT - OF_DIRECTORIES,
            _ => InodeFlags::INHERITED,
        };
        if !SHOWN.contains(wanted) || !CHANGED.contains(changed) || !can_have.contains(changed & wanted) {
            return Err(Error::NotSupported);
        }
        self.flags ^= Flags::from_bits_retain(changed.bits());
        Ok(())
    }

    /// What `stat(2)` shows.
    pub(crate) fn attr(&self) -> Attr {
        // A small file shows that it has contents.
        let shows = self.is_inline() && self.kind() == FileKind::Regular;
        let inline = if shows { self.size.div_ceil(512) } else { 0 };
        Attr {
            ino: to_vfs(self.number),
            generation: self.generation,
            mode: self.mode,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: self.device(),
            size: self.size,
            blocks: self.blocks + inline,
            atime: self.times.access,
            mtime: self.times.modify,
            ctime: self.times.change,
            btime: self.times.birth,
            flags: self.shown_flags(),
        }
    }

    /// The device of a device node, as Linux's `dev_t` in 32 bits: in the old form, or in the new one behind it.
    fn device(&self) -> u32 {
        if !matches!(self.kind(), FileKind::CharDevice | FileKind::BlockDevice) {
            return 0;
        }
        let word = |n: usize| u32::from_le_bytes(self.block[n * 4..][..4].try_into().expect("four bytes"));
        match word(0) {
            0 => word(1),
            // Below 2^16 both forms are the same.
            old => old & 0xFFFF,
        }
    }

    /// Of a device node that is new.
    pub(crate) fn set_device(&mut self, device: u32) {
        let at = if device <= 0xFFFF { 0 } else { 4 };
        self.block[at..at + 4].copy_from_slice(&device.to_le_bytes());
    }

    /// Gives a new symbolic link its target, if that is short.
    pub(crate) fn set_fast_target(&mut self, target: &[u8]) -> bool {
        if target.len() >= BLOCK_BYTES {
            return false;
        }
        self.flags.remove(Flags::EXTENTS);
        self.block.fill(0);
        self.block[..target.len()].copy_from_slice(target);
        self.size = target.len() as u64;
        true
    }

    /// A short target that stands where other inodes have pointers.
    pub(crate) fn fast_target(&self, superblock: &Superblock) -> Option<&[u8]> {
        let of_attributes =
            if self.attributes != 0 { superblock.cluster * superblock.block / 512 } else { 0 };
        let fast = !self.is_inline() && self.blocks.saturating_sub(of_attributes) == 0;
        if fast { self.block.get(..usize::try_from(self.size).ok()?) } else { None }
    }
}

/// The root directory is 1 in [`vfs`] and 2 on the disk, where 1 is the list of bad blocks: the two change places.
pub(crate) fn to_vfs(number: u32) -> vfs::Ino {
    match number {
        ROOT => vfs::ROOT_INO,
        1 => u64::from(ROOT),
        other => u64::from(other),
    }
}

/// The inode that a number of [`vfs`] means, if users may see it: the root directory, or one that is not reserved.
pub(crate) fn from_vfs(superblock: &Superblock, ino: vfs::Ino) -> Result<u32> {
    if ino == vfs::ROOT_INO {
        return Ok(ROOT);
    }
    u32::try_from(ino).ok().filter(|number| *number >= superblock.first_inode).ok_or(Error::Stale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_bad_blocks_change_places() {
        for number in [1, 2, 3, 11, u32::MAX] {
            let there = to_vfs(number);
            assert_eq!(there == vfs::ROOT_INO, number == ROOT);
        }
        assert_ne!(to_vfs(1), to_vfs(2));
    }
}
