//! How a file system is opened.

/// How to open a file system.
#[derive(Clone, Debug)]
pub struct Options {
    /// DRAM for metadata, bytes.
    pub cache_bytes: u64,
    /// DRAM for bytes of files that are nowhere else, bytes. Who writes more waits for the disk.
    pub page_bytes: u64,
    /// DRAM for bytes of files that the log has and the disk not yet, bytes. Who syncs more waits for the disk. No more than the log has.
    pub synced_bytes: u64,
    /// DRAM for bytes of files as the disk has them, for who uses it where no page cache of the kernel's is above; bytes. 0: nothing is kept.
    pub clean_bytes: u64,
    /// What is durable when it returns.
    pub sync: Sync,
    /// Bytes of files that are synced go to NVM first, and to the disk behind the caller's back. Otherwise to the disk, as FSMAC has it.
    pub sync_in_nvm: bool,
    /// When metadata whose place is fixed comes to NVM.
    pub fetch: Fetch,
    /// Metadata has versions, and its changes are committed (FSMAC III.C). Without, only to measure what that takes (FSMAC V.G): a crash leaves
    /// anything, and so does an operation that fails half-way.
    pub versions: bool,
    /// Goes on without what of the log is damaged. What the file system has then is to be checked: its superblock says that there are errors.
    pub past_damage: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cache_bytes: 64 << 20,
            page_bytes: 64 << 20,
            clean_bytes: 256 << 20,
            sync: Sync::Nosync,
            sync_in_nvm: true,
            fetch: Fetch::Touch,
            versions: true,
            past_damage: false,
            synced_bytes: 64 << 20,
        }
    }
}

/// Which operations are durable when they return, without an `fsync` (FSMAC V.D).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// None.
    #[default]
    Nosync,
    /// Those on names.
    Dirsync,
    /// All.
    Sync,
}

/// When metadata whose place is fixed comes to NVM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fetch {
    /// When it is touched.
    #[default]
    Touch,
    /// When the disk is mounted, as far as there are frames.
    Eager,
}
