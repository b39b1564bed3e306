//! How a volume is made and mounted, and what it says of itself.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::hints;

/// How to format.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// A name for people, at most 64 bytes of UTF-8.
    pub label: String,
    /// Bytes of the redo log; default 1/32 of the volume, between 2 and 256 MiB.
    pub log_bytes: Option<u64>,
    /// User and group whose the root directory is.
    pub owner: (u32, u32),
    /// The key of the hash of directory names; default a random one. For runs that are to be repeated exactly.
    pub hash_key: Option<[u64; 2]>,
}

/// What a volume promises to survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// Every operation, when it returns.
    #[default]
    Operation,
    /// Every operation that returned before an `fsync` of anything in the volume returned, or before the last
    /// commit interval. Operations are atomic and in order.
    Fsync,
    /// Every operation that returned before the newest checkpoint (HMFS as published: no log).
    Snapshot,
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Durability, String> {
        match text {
            "op" => Ok(Durability::Operation),
            "fsync" => Ok(Durability::Fsync),
            "snapshot" => Ok(Durability::Snapshot),
            other => Err(format!("durability is op, fsync or snapshot, not {other:?}")),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Operation => "op",
            Durability::Fsync => "fsync",
            Durability::Snapshot => "snapshot",
        })
    }
}

/// How bytes that change are logged, and what becomes of them when a checkpoint is made (Shortcut-JFS, Table I). Inodes
/// and names are objects of the log in each. Without a log, with `durability=snapshot`, there is nothing to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Journaling {
    /// ADP-S: a change of up to half a block (less, where the file becomes longer) as a difference, which is rewritten where it belongs; a larger one as a block,
    /// to which a pointer switches.
    #[default]
    Adaptive,
    /// BLK: blocks, which are rewritten where they belong. As in ext3 with `data=journal`.
    Block,
    /// DIFF: differences, which are rewritten where they belong.
    Difference,
    /// BLK-S: blocks, to which a pointer switches.
    BlockSwitch,
}

impl Journaling {
    /// All of them, in the order of Table I.
    pub const ALL: [Journaling; 4] =
        [Journaling::Block, Journaling::Difference, Journaling::BlockSwitch, Journaling::Adaptive];

    /// Whether what is logged is written a second time, to where it belongs.
    pub(crate) fn rewrites(self) -> bool {
        matches!(self, Journaling::Block | Journaling::Difference)
    }
}

impl FromStr for Journaling {
    type Err = String;

    fn from_str(text: &str) -> Result<Journaling, String> {
        let found = Journaling::ALL.into_iter().find(|journaling| journaling.to_string() == text);
        found.ok_or_else(|| format!("journal is adaptive, block, diff or block-switch, not {text:?}"))
    }
}

impl fmt::Display for Journaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Journaling::Adaptive => "adaptive",
            Journaling::Block => "block",
            Journaling::Difference => "diff",
            Journaling::BlockSwitch => "block-switch",
        })
    }
}

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The promise.
    pub durability: Durability,
    /// How bytes are logged.
    pub journaling: Journaling,
    /// Longest time between checkpoints while there are changes.
    pub commit_interval: Duration,
    /// Nothing is changed once the volume is open. If it was not closed, it is recovered before, which needs a zone that can be written to.
    pub read_only: bool,
    /// Pointers to be looked at, at most, for one checkpoint, to give back what a removed snapshot had: that keeps it
    /// from holding up what waits for the checkpoint by more than some ms.
    pub removal_steps: u64,
    /// DRAM that caches may take, bytes; less than [`MountOptions::CACHE_MIN`] is of use in tests. None: as much as they
    /// like, up to 16 B for each node and 200 for each segment, 32 MiB for hints on names and blocks, and 1 MiB for those on a snapshot's.
    pub cache_bytes: Option<u64>,
    /// A thread of its own makes checkpoints, as time goes by and the log fills. Without it they are made by `sync` and
    /// by operations that find the log full, and a run can be repeated exactly.
    pub background: bool,
    /// Operations go about as if others always wanted the same inode: the crash explorer's two operations have no time to
    /// find out that they do.
    pub crowded: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            durability: Durability::default(),
            journaling: Journaling::default(),
            commit_interval: Duration::from_secs(5),
            read_only: false,
            removal_steps: 1 << 14,
            cache_bytes: None,
            background: true,
            crowded: false,
        }
    }
}

impl MountOptions {
    /// With less than this, threads would wait for each other's pages, and checkpoints follow one another.
    pub const CACHE_MIN: u64 = 1 << 20;

    /// What each cache may take.
    pub(crate) fn shares(&self) -> Shares {
        let Some(bytes) = self.cache_bytes else {
            return Shares {
                nat: u64::MAX,
                changes: u64::MAX,
                maps: u64::MAX,
                view: u64::MAX,
                roomy: ROOMY_MAX,
                hints: hints::BYTES_MAX,
            };
        };
        Shares {
            nat: bytes / 2,
            changes: (bytes / 4 / CHANGE).max(CHANGES_MIN),
            maps: (bytes / 8 / SEGMENT_MAP).max(1),
            view: bytes / 128,
            roomy: ((bytes / 32 / ROOMY) as usize).min(ROOMY_MAX),
            hints: (bytes / 32).min(hints::BYTES_MAX),
        }
    }
}

/// How the DRAM for caches is divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// Bytes of pages of the NAT: half of it.
    pub(crate) nat: u64,
    /// Nodes that an epoch may change before a checkpoint ends it: a quarter.
    pub(crate) changes: u64,
    /// Maps of segments: an eighth.
    pub(crate) maps: u64,
    /// Bytes of pages and hints for a view of a snapshot: a sixteenth for eight of them. Those in which files are open come on top.
    pub(crate) view: u64,
    /// Blocks of inodes that are remembered because they have room: one part in 32.
    pub(crate) roomy: usize,
    /// Bytes of hints on where names and blocks are: one part in 32.
    pub(crate) hints: u64,
}

/// About what an epoch's changes take for each: in their list, and until it is sealed or then.
pub(crate) const LISTED_CHANGE: u64 = 56;
/// About what a changed node takes in all: in that list, set aside by the NAT for this epoch and the one before, and while
/// a checkpoint is made.
const CHANGE: u64 = 200;
/// One operation may change as many.
const CHANGES_MIN: u64 = 64;
/// Bytes of a segment's map.
const SEGMENT_MAP: u64 = 200;
/// In its list and set aside by the NAT.
const ROOMY: u64 = 52;
/// So many at most.
const ROOMY_MAX: usize = 1 << 16;

/// What opening a volume had to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recovery {
    /// The volume had been closed.
    pub was_clean: bool,
    /// Transactions of the log that were not in the newest checkpoint.
    pub transactions_replayed: u64,
    /// Their bytes.
    pub log_bytes_replayed: u64,
    /// Transactions that the log has, or should have, and that were not replayed because one is missing or could not
    /// be applied: the volume is read-only with what came before. Transactions that a power cut caught in flight don't
    /// count.
    pub transactions_left_out: u64,
    /// Inodes without a name that were removed.
    pub orphans_reclaimed: u64,
    /// How long opening took.
    pub duration: Duration,
}

/// A mounted volume's counters and sizes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Checkpoints published since the mount.
    pub checkpoints: u64,
    /// Bytes of records that one half of the log holds.
    pub log_bytes: u64,
    /// Bytes of the running half that lanes have taken for records.
    pub log_used_bytes: u64,
    /// Transactions committed since the mount.
    pub transactions: u64,
    /// DRAM that caches may take, bytes; None: no bound.
    pub cache_limit_bytes: Option<u64>,
    /// DRAM that they take: the following, and what the running epoch changed.
    pub cache_bytes: u64,
    /// DRAM of what is there once, and does not count against the bound: tables of the NAT and of segments, locks.
    pub table_bytes: u64,
    /// DRAM of the NAT cache, bytes.
    pub nat_cache_bytes: u64,
    /// Nodes changed in the running epoch.
    pub epoch_nodes: u64,
    /// DRAM of the allocator, bytes.
    pub segment_cache_bytes: u64,
    /// DRAM of hints on where names and blocks are, bytes.
    pub hint_cache_bytes: u64,
    /// Open handles, those on files of snapshots included.
    pub open_handles: u64,
    /// Snapshots whose files somebody looked at lately.
    pub snapshot_views: u64,
    /// DRAM of what is cached of these, bytes.
    pub snapshot_cache_bytes: u64,
    /// Blocks free once the next checkpoint is published.
    pub blocks_free: u64,
    /// Blocks of the Main Area.
    pub blocks_total: u64,
    /// Segments of which no block is in use.
    pub segments_empty: u64,
    /// Segments that garbage collection emptied since the mount.
    pub segments_emptied: u64,
}
