//! The features of ext by name: what is supported, what only when nothing is written, what not.

bitflags::bitflags! {
    /// Features that may be ignored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Compat: u32 {
        /// A journal.
        const HAS_JOURNAL = 0x4;
        /// Extended attributes.
        const EXT_ATTR = 0x8;
        /// Blocks kept for more descriptors.
        const RESIZE_INODE = 0x10;
        /// Directories have hash trees.
        const DIR_INDEX = 0x20;
        /// Two backups of the superblock, in groups that it names.
        const SPARSE_SUPER2 = 0x200;
        /// The journal has an area for small commits.
        const FAST_COMMIT = 0x400;
        /// A file lists orphans.
        const ORPHAN_FILE = 0x1000;
        const _ = !0;
    }

    /// Features without which nothing can be read.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Incompat: u32 {
        /// Directory entries tell what they name.
        const FILETYPE = 0x2;
        /// The journal must be replayed.
        const RECOVER = 0x4;
        /// It is no file system but a journal.
        const JOURNAL_DEV = 0x8;
        /// Descriptors are spread over the disk.
        const META_BG = 0x10;
        /// Files are mapped by extents.
        const EXTENTS = 0x40;
        /// More than 2^32 blocks.
        const SIXTY_FOUR_BIT = 0x80;
        /// Multiple mount protection.
        const MMP = 0x100;
        /// Bitmaps and inode tables may be anywhere.
        const FLEX_BG = 0x200;
        /// The seed of checksums is stored.
        const CSUM_SEED = 0x2000;
        /// Directories of more than 2 GiB, or with three levels.
        const LARGEDIR = 0x4000;
        /// Small files and directories are in their inodes.
        const INLINE_DATA = 0x8000;
        /// The newest metadata is in NVM ([`crate::Volume::attach`]): unknown to everybody else, so that nobody else uses the disk.
        const ATTACHED = 0x4000_0000;
        const _ = !0;
    }

    /// Features that may be ignored by who only reads.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RoCompat: u32 {
        /// Backups of the superblock in some groups only.
        const SPARSE_SUPER = 0x1;
        /// Files of more than 2 GiB.
        const LARGE_FILE = 0x2;
        /// Files of more than 2 TiB.
        const HUGE_FILE = 0x8;
        /// Group descriptors have checksums.
        const GDT_CSUM = 0x10;
        /// Directories with more than 65,000 directories.
        const DIR_NLINK = 0x20;
        /// Inodes have more fields.
        const EXTRA_ISIZE = 0x40;
        /// Files count what users have.
        const QUOTA = 0x100;
        /// Blocks are given out in clusters.
        const BIGALLOC = 0x200;
        /// All metadata has checksums.
        const METADATA_CSUM = 0x400;
        /// The orphan file is not empty.
        const ORPHAN_PRESENT = 0x10000;
        const _ = !0;
    }
}

/// What can be read.
const INCOMPAT: Incompat = Incompat::FILETYPE
    .union(Incompat::RECOVER)
    .union(Incompat::META_BG)
    .union(Incompat::EXTENTS)
    .union(Incompat::SIXTY_FOUR_BIT)
    .union(Incompat::MMP)
    .union(Incompat::FLEX_BG)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGEDIR)
    .union(Incompat::INLINE_DATA);

/// Of these, what cannot be written.
const READ_ONLY: Incompat = Incompat::INLINE_DATA.union(Incompat::MMP);

/// What can be written.
const RO_COMPAT: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::ORPHAN_PRESENT);

const COMPAT_NAMES: [(u32, &str); 13] = [
    (0x1, "dir_prealloc"),
    (0x2, "imagic_inodes"),
    (0x4, "has_journal"),
    (0x8, "ext_attr"),
    (0x10, "resize_inode"),
    (0x20, "dir_index"),
    (0x40, "lazy_bg"),
    (0x80, "exclude_inode"),
    (0x100, "snapshot_bitmap"),
    (0x200, "sparse_super2"),
    (0x400, "fast_commit"),
    (0x800, "stable_inodes"),
    (0x1000, "orphan_file"),
];

const INCOMPAT_NAMES: [(u32, &str); 17] = [
    (0x1, "compression"),
    (0x2, "filetype"),
    (0x4, "needs_recovery"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x10000, "encrypt"),
    (0x20000, "casefold"),
    (0x4000_0000, "amberfs_attached"),
];

const RO_COMPAT_NAMES: [(u32, &str); 17] = [
    (0x1, "sparse_super"),
    (0x2, "large_file"),
    (0x4, "btree_dir"),
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x80, "has_snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x800, "replica"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x10000, "orphan_present"),
];

/// The features of one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Those that may be ignored.
    pub compat: Compat,
    /// Those without which nothing can be read.
    pub incompat: Incompat,
    /// Those that only who writes must know.
    pub ro_compat: RoCompat,
}

impl Features {
    /// All names, as mke2fs(8) has them.
    pub fn names(&self) -> Vec<String> {
        let sets = [
            (self.compat.bits(), &COMPAT_NAMES[..], "compat"),
            (self.incompat.bits(), &INCOMPAT_NAMES[..], "incompat"),
            (self.ro_compat.bits(), &RO_COMPAT_NAMES[..], "ro_compat"),
        ];
        sets.into_iter().flat_map(|(bits, names, set)| named(bits, names, set)).collect()
    }

    /// The names of those that keep the file system from being read.
    pub fn unsupported(&self) -> Vec<String> {
        named((self.incompat - INCOMPAT).bits(), &INCOMPAT_NAMES, "incompat")
    }

    /// The names of those that keep the file system from being written, where it can be read.
    pub fn only_read(&self) -> Vec<String> {
        let mut names = named((self.ro_compat - RO_COMPAT).bits(), &RO_COMPAT_NAMES, "ro_compat");
        names.extend(named((self.incompat & READ_ONLY).bits(), &INCOMPAT_NAMES, "incompat"));
        names
    }

    /// Refuses what can be read and not be written.
    pub(crate) fn check_writable(&self, disk: &str) -> Result<(), crate::Error> {
        let names = self.only_read();
        if names.is_empty() {
            Ok(())
        } else {
            Err(crate::Error::ReadOnlyFeatures { disk: disk.into(), features: names })
        }
    }

    pub(crate) fn has_metadata_csum(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// The generation of ext that has all of these, as users call it.
    pub fn generation(&self) -> &'static str {
        let ext4 = Incompat::EXTENTS | Incompat::SIXTY_FOUR_BIT | Incompat::FLEX_BG | Incompat::INLINE_DATA;
        let later = RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE;
        if self.incompat.intersects(ext4) || !(self.ro_compat - later).is_empty() {
            "ext4"
        } else if self.compat.contains(Compat::HAS_JOURNAL) {
            "ext3"
        } else {
            "ext2"
        }
    }
}

fn named(bits: u32, names: &[(u32, &str)], set: &str) -> Vec<String> {
    let name = |bit: u32| match names.iter().find(|(known, _)| *known == bit) {
        Some((_, name)) => (*name).to_string(),
        None => format!("{set}:{bit:#x}"),
    };
    (0..32).map(|n| 1 << n).filter(|bit| bits & bit != 0).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(compat: u32, incompat: u32, ro_compat: u32) -> Features {
        Features {
            compat: Compat::from_bits_retain(compat),
            incompat: Incompat::from_bits_retain(incompat),
            ro_compat: RoCompat::from_bits_retain(ro_compat),
        }
    }

    #[test]
    fn features_have_names_and_those_unknown_numbers() {
        let some = features(0x4, 0x42, 0x80000001);
        assert_eq!(
            some.names(),
            ["has_journal", "filetype", "extent", "sparse_super", "ro_compat:0x80000000"]
        );
        assert_eq!(
            features(0, 0x2 | 0x400 | 0x10000 | 0x100000, 0).unsupported(),
            ["ea_inode", "encrypt", "incompat:0x100000"]
        );
    }

    #[test]
    fn generations_are_told_by_features() {
        assert_eq!(features(0x38, 0x2, 0x3).generation(), "ext2");
        assert_eq!(features(0x3c, 0x6, 0x3).generation(), "ext3");
        assert_eq!(features(0x38, 0x2, 0x400).generation(), "ext4");
    }
}
