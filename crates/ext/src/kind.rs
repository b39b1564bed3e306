//! What blocks of metadata are.

/// What a metadata block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// The block with the superblock.
    Superblock,
    /// Group descriptors.
    Descriptors,
    /// A bitmap of blocks or inodes.
    Bitmap,
    /// A part of an inode table.
    Inodes,
    /// A block of an inode's extent tree.
    Extents(u32),
    /// A block of an inode's indirect map.
    Indirect(u32),
    /// A block of a directory.
    Directory(u32),
    /// A long symbolic link.
    Symlink(u32),
    /// Extended attributes, perhaps of several inodes.
    Attributes,
    /// A block of the file of orphans.
    Orphans,
    /// No metadata: a block of a file that the disk did not take.
    Refused,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kind::Superblock => write!(f, "superblock"),
            Kind::Descriptors => write!(f, "group descriptors"),
            Kind::Bitmap => write!(f, "bitmap"),
            Kind::Inodes => write!(f, "inodes"),
            Kind::Extents(ino) => write!(f, "extents of inode {ino}"),
            Kind::Indirect(ino) => write!(f, "block pointers of inode {ino}"),
            Kind::Directory(ino) => write!(f, "entries of directory {ino}"),
            Kind::Symlink(ino) => write!(f, "symbolic link {ino}"),
            Kind::Attributes => write!(f, "extended attributes"),
            Kind::Orphans => write!(f, "file of orphans"),
            Kind::Refused => write!(f, "bytes of a file"),
        }
    }
}

impl Kind {
    /// Two words that tell it on the medium: which, and whose.
    pub(crate) fn to_words(self) -> (u32, u32) {
        match self {
            Kind::Superblock => (1, 0),
            Kind::Descriptors => (2, 0),
            Kind::Bitmap => (3, 0),
            Kind::Inodes => (4, 0),
            Kind::Extents(ino) => (5, ino),
            Kind::Indirect(ino) => (6, ino),
            Kind::Directory(ino) => (7, ino),
            Kind::Symlink(ino) => (8, ino),
            Kind::Attributes => (9, 0),
            Kind::Orphans => (10, 0),
            Kind::Refused => (11, 0),
        }
    }

    /// What two words tell, if they tell something.
    pub(crate) fn from_words(which: u32, ino: u32) -> Option<Kind> {
        Some(match which {
            1 => Kind::Superblock,
            2 => Kind::Descriptors,
            3 => Kind::Bitmap,
            4 => Kind::Inodes,
            5 => Kind::Extents(ino),
            6 => Kind::Indirect(ino),
            7 => Kind::Directory(ino),
            8 => Kind::Symlink(ino),
            9 => Kind::Attributes,
            10 => Kind::Orphans,
            11 => Kind::Refused,
            _ => return None,
        })
    }
}
