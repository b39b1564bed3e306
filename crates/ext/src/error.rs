//! What can be wrong with an ext file system as a whole; single operations fail with [`vfs::Error`].

/// Why a disk could not be opened as ext2, ext3 or ext4.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] disk::Error),
    /// There is no superblock.
    #[error("{disk}: there is no ext2, ext3 or ext4 here{instead}; nothing was changed")]
    NotExt {
        /// The disk.
        disk: String,
        /// What there is, behind a comma; nothing if that is not known.
        instead: String,
    },
    /// The file system needs what is not supported.
    #[error("{disk}: it has features that are not supported: {}; nothing was changed", features.join(", "))]
    Unsupported {
        /// The disk.
        disk: String,
        /// By the names that mke2fs(8) gives them.
        features: Vec<String>,
    },
    /// The file system has what can be read only.
    #[error(
        "{disk}: it can be read here and not be written because of its features {}; nothing was changed; to read it, \
         `amberfs mount -o ro {disk} DIR`; to write it, {}",
        features.join(", "), advice(features)
    )]
    ReadOnlyFeatures {
        /// The disk.
        disk: String,
        /// By the names that mke2fs(8) gives them.
        features: Vec<String>,
    },
    /// The disk's metadata is in NVM.
    #[error(
        "{disk}: the newest metadata of this disk is in NVM, in volume {} of a zone; nothing was changed; mount that volume, or have it \
         detach the disk; if the NVM is lost, `amberfs attach --force-from-disk` gives up what was in it", uuid::Uuid::from_bytes(*volume)
    )]
    Attached {
        /// The disk.
        disk: String,
        /// The volume that has it.
        volume: [u8; 16],
    },
    /// The zone was opened read-only, and the volume would be written to.
    #[error(
        "volume '{volume}': the zone is open read-only, since its file cannot be written to: nothing in it can be changed"
    )]
    ReadOnlyZone {
        /// The volume.
        volume: String,
    },
    /// This process has the volume open already.
    #[error("volume '{volume}' is in use already, by this very process; nothing was changed")]
    Mounted {
        /// The volume.
        volume: String,
    },
    /// The volume has no disk.
    #[error("volume '{volume}' has no disk; attach one: `amberfs attach ZONE:{volume} DISK`")]
    NotAttached {
        /// The volume.
        volume: String,
    },
    /// The volume has a disk already.
    #[error(
        "volume '{volume}' has a disk: {disk}; nothing was changed; detach that first, or use another volume; if that disk is lost, or was made \
         usable without its NVM, `amberfs zone remove-volume ZONE {volume} --force` gives up what NVM has of it"
    )]
    HasDisk {
        /// The volume.
        volume: String,
        /// Its disk.
        disk: String,
    },
    /// The disk is not the one that the volume has.
    #[error(
        "{disk}: this is not the disk of volume '{volume}': {why}; nothing was changed; if the volume's own is lost, or was made usable without its \
         NVM, `amberfs zone remove-volume ZONE {volume} --force` gives up what NVM has of it"
    )]
    OtherDisk {
        /// The disk.
        disk: String,
        /// The volume.
        volume: String,
        /// By what it is told.
        why: String,
        /// It has the same UUID, and is attached to no volume or to another one: what this one has of it is of no use any more.
        given_up: bool,
    },
    /// The disk has been put back to what it was.
    #[error(
        "{disk}: this is an older copy of the disk of volume '{volume}', whose NVM has been used with a newer one; nothing was changed; use the \
         newest; if that is lost, `amberfs attach --force-from-disk {disk}` and then `e2fsck -f {disk}` leave what this copy has, without what is in \
         NVM, and `amberfs zone remove-volume ZONE {volume} --force` gives that up"
    )]
    OlderDisk {
        /// The disk.
        disk: String,
        /// The volume.
        volume: String,
    },
    /// The zone has been put back to what it was.
    #[error(
        "{disk}: the NVM of volume '{volume}' is an older copy, since the disk has been used with a newer one; nothing was changed; use the newest; \
         if that is lost, `amberfs attach --force-from-disk {disk}` and then `e2fsck -f {disk}` leave what the disk has, without what was in NVM, \
         and `amberfs zone remove-volume ZONE {volume} --force` gives up the copy"
    )]
    OlderNvm {
        /// The disk.
        disk: String,
        /// The volume.
        volume: String,
    },
    /// The area in the zone has no room for the disk's name.
    #[error(
        "{disk}: this name has {} bytes, and a volume keeps {max} at most; nothing was changed; name the disk by a shorter path, or by a link to it",
        disk.len()
    )]
    DiskNameTooLong {
        /// The disk.
        disk: String,
        /// Bytes of the longest.
        max: usize,
    },
    /// The area in the zone is too small.
    #[error(
        "volume '{volume}' has {} KiB of NVM, and it takes {} MiB at least; nothing was changed; {} MiB hold all of the disk's metadata whose \
         place is fixed", bytes >> 10, needed >> 20, all >> 20
    )]
    AreaTooSmall {
        /// The volume.
        volume: String,
        /// What it has.
        bytes: u64,
        /// What it takes.
        needed: u64,
        /// With how much nothing whose place is fixed has to go to the disk.
        all: u64,
    },
    /// The area in the zone cannot be read.
    #[error("volume '{volume}': its area in NVM is damaged: {what}; nothing was changed")]
    Area {
        /// The volume.
        volume: String,
        /// What is wrong.
        what: String,
    },
    /// The area in the zone has another format.
    #[error(
        "volume '{volume}': its area in NVM has the format's version {found}, and this program knows {known}; nothing was changed; detach the \
         disk with the program that attached it"
    )]
    AreaVersion {
        /// The volume.
        volume: String,
        /// Its version.
        found: u32,
        /// The one that is known.
        known: u32,
    },
    /// The superblock contradicts itself or the disk.
    #[error("{disk}: the superblock is damaged: {what}; nothing was changed; run `e2fsck` on it")]
    Superblock {
        /// The disk.
        disk: String,
        /// What is wrong.
        what: String,
    },
    /// The disk is shorter than the file system on it.
    #[error(
        "{disk}: the file system has {recorded} bytes but the disk only {found}: it was cut short, or its partition is too small; \
         nothing was changed"
    )]
    CutShort {
        /// The disk.
        disk: String,
        /// Bytes of the file system.
        recorded: u64,
        /// Bytes of the disk.
        found: u64,
    },
    /// The disk writes in larger units than the file system.
    #[error(
        "{disk}: its sectors of {sector} bytes are larger than the file system's blocks of {block} bytes"
    )]
    Sectors {
        /// The disk.
        disk: String,
        /// The disk's unit.
        sector: u32,
        /// The file system's.
        block: u64,
    },
    /// It was in use when its machine stopped, and has no journal that would tell.
    #[error("{disk}: the file system was not unmounted cleanly; nothing was changed; run `e2fsck` on it")]
    NotClean {
        /// The disk.
        disk: String,
    },
    /// Somebody has found errors in it.
    #[error(
        "{disk}: the file system or its journal is marked as having errors; nothing was changed; run `e2fsck -f {disk}`"
    )]
    HasErrors {
        /// The disk.
        disk: String,
    },
    /// Another machine has it mounted, or did when it crashed.
    #[error(
        "{disk}: multiple mount protection says that '{node}' has it mounted; nothing was changed; unmount it there, or, if \
         that has crashed, run `e2fsck` on it"
    )]
    InUse {
        /// The disk.
        disk: String,
        /// The machine.
        node: String,
    },
    /// The journal has to be replayed and cannot be.
    #[error("{disk}: the journal has to be replayed, and {why}; nothing was changed; run `e2fsck` on it")]
    Journal {
        /// The disk.
        disk: String,
        /// Why it cannot be.
        why: String,
    },
    /// The journal has to be replayed and has what only the kernel replays.
    #[error(
        "{disk}: the journal has to be replayed, and it may have fast commits (fast_commit), which are not replayed here; nothing was changed; \
         mount it once with the kernel, `mount {disk} DIR`, and unmount it: that replays them"
    )]
    FastCommits {
        /// The disk.
        disk: String,
    },
    /// Committed transactions are lost, and later ones are there.
    #[error(
        "volume '{volume}': its log in NVM is damaged, which no crash does: {what}; nothing was changed; if there are copies of the zone and of the disk \
         from one moment, use them; else `amberfs fsck --repair ZONE:{volume}` goes on with what is whole, which may leave files with bytes of others; \
         then the disk is to be detached and checked with `e2fsck -f`"
    )]
    LogDamaged {
        /// The volume.
        volume: String,
        /// What of it.
        what: String,
    },
    /// Something below failed: a damaged structure, an unreadable disk.
    #[error("{0}")]
    Volume(#[from] vfs::Error),
}

impl From<Error> for vfs::Error {
    fn from(error: Error) -> vfs::Error {
        match error {
            Error::Volume(inner) => inner,
            Error::Disk(inner) => io(&inner),
            Error::InUse { .. } | Error::Mounted { .. } => vfs::Error::Busy,
            other => vfs::Error::Corrupt(other.to_string()),
        }
    }
}

/// A failure of the disk, as an operation tells it.
pub(crate) fn io(error: &disk::Error) -> vfs::Error {
    vfs::Error::Io(error.to_string())
}

/// A damaged structure, in words: which, of what, which field, what it holds and what it should.
pub(crate) fn corrupt(
    structure: &str,
    of: impl std::fmt::Display,
    field: &str,
    found: impl std::fmt::Display,
    expected: impl std::fmt::Display,
) -> vfs::Error {
    vfs::Error::Corrupt(format!(
        "{structure} of {of} is damaged: {field} is {found}, expected {expected}; the disk is left as it is, run `e2fsck -f` on it"
    ))
}

/// Features that keep a file system from being written here, and that tune2fs(8) can take from it.
const REMOVABLE: [&str; 4] = ["mmp", "quota", "project", "read-only"];

/// What to do about features that keep a file system from being written.
fn advice(features: &[String]) -> String {
    let list = |removable: bool| {
        let names = features.iter().filter(|name| REMOVABLE.contains(&name.as_str()) == removable);
        names.map(|name| format!("^{name}")).collect::<Vec<_>>().join(",")
    };
    let mut ways = Vec::new();
    if !list(true).is_empty() {
        ways.push(format!("take away what can be taken away: `tune2fs -O {}`", list(true)));
    }
    if !list(false).is_empty() {
        ways.push(format!(
            "leave the disk to the kernel, or copy its files to one that was made without: `mke2fs -O {}`",
            list(false)
        ));
    }
    ways.join("; ")
}
