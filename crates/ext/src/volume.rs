//! An open file system.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::{Disk, Queue};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};
use vfs::{InoSet, Result, Statfs};

use crate::core::{Core, group, inode};
use crate::error::Error;
use crate::failure::Failure;
use crate::features::{Compat, Features, Incompat, RoCompat};
use crate::files::Files;
use crate::handles::Handles;
use crate::home::Home;
use crate::journal::{self, Recovery};
use crate::mmp;
use crate::options::{Options, Sync};
use crate::replay::Replayed;
use crate::store::{LOG_FULL, Most, Store};
use crate::superblock::{self, Superblock};
use crate::work::Work;

/// What came to NVM when the disk was mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Blocks of metadata.
    pub blocks: u64,
    /// Requests that they took.
    pub requests: u64,
    /// Blocks for which there was no frame, or which the disk did not give.
    pub left_out: u64,
    /// How long it took.
    pub duration: Duration,
}

/// What is known of what the disk refuses.
#[derive(Default)]
pub(crate) struct Refusals {
    /// Which block is offered next, or the first behind it.
    pub(crate) next: u64,
    pub(crate) why: Option<vfs::Error>,
    /// There is no room in pages for what it has refused: so long whoever wants some is told that, and it is not offered again.
    pub(crate) rest: Option<(Instant, vfs::Error)>,
}

/// What a file system is, by its superblock alone.
#[derive(Clone, Debug)]
pub struct Info {
    /// `ext2`, `ext3` or `ext4`, by its features.
    pub generation: &'static str,
    /// By which it is told from others.
    pub uuid: [u8; 16],
    /// Its name.
    pub label: String,
    /// When it was made, seconds since 1970.
    pub created: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Inodes in all.
    pub inodes: u32,
    /// Bytes of an inode.
    pub inode_bytes: usize,
    /// What it can do.
    pub features: Features,
    /// Unmounted cleanly, and no journal to replay.
    pub clean: bool,
    /// Errors were found in it.
    pub has_errors: bool,
}

/// A file system on a disk, open for reading. Everything that would change it is [`vfs::Error::ReadOnly`].
///
/// Nothing is written to the disk: a journal that has to be replayed is replayed in memory.
pub struct Volume {
    pub(crate) core: Core,
    pub(crate) handles: Handles,
    /// Held by who reads metadata; alone by who changes it. The last lock that is taken but for those inside `core`.
    pub(crate) tree: RwLock<()>,
    /// The area in NVM, if the disk is attached; else it is only read.
    pub(crate) home: Option<Home>,
    pub(crate) files: Files,
    /// As many pages may be nowhere but in DRAM.
    pub(crate) pages_max: u64,
    /// As many may be in DRAM because the log has something of them.
    pub(crate) synced_max: u64,
    pub(crate) work: Work,
    pub(crate) sync: Sync,
    pub(crate) sync_in_nvm: bool,
    /// For bytes of files, if it is written. Whoever has it takes files' locks, not the other way round.
    queue: Option<Mutex<Queue>>,
    /// Had by who writes out all files, from the copies on until they are mapped: who came next would find them changed still, and send them again.
    pub(crate) writing_out: Mutex<()>,
    /// Files made by `O_TMPFILE` that may get a name and have none yet.
    pub(crate) linkable: Mutex<InoSet<u32>>,
    /// Inodes that are to be removed or cut, and what keeps them from that.
    pub(crate) unfinished: Mutex<BTreeMap<u32, vfs::Error>>,
    pub(crate) refused: Mutex<Refusals>,
    recovery: Recovery,
    pub(crate) replayed: Replayed,
    pub(crate) fetched: Fetched,
}

/// Of the pages that the log may have in DRAM, the part whose memory is kept for others when they go.
const SPARE_PART: u64 = 4;

/// Requests for bytes of files in flight: with those of 1 MiB, no disk wants more.
const QUEUE_DEPTH: usize = 8;

/// What is on `disk`, by its superblock and its journal's.
pub fn info(disk: &Arc<Disk>) -> std::result::Result<Info, Error> {
    let raw = superblock::load(disk)?;
    let (found, has_errors) = match raw.verify(disk) {
        // That it cannot be read does not keep it from being told of, if its numbers mean what they do elsewhere.
        Err(error @ Error::Unsupported { .. }) => (raw.verify_numbers(disk).map_err(|_| error)?, false),
        found => {
            let found = found?;
            let has_errors = journal::has_errors(disk, &found);
            (found, has_errors)
        }
    };
    let features = raw.features();
    Ok(Info {
        generation: features.generation(),
        uuid: found.uuid,
        label: found.label_text(),
        created: u64::from(found.created),
        block_bytes: found.block,
        blocks: found.blocks,
        inodes: found.inodes,
        inode_bytes: found.inode_bytes,
        features,
        clean: found.clean && !features.incompat.contains(Incompat::RECOVER),
        has_errors: found.has_errors || has_errors,
    })
}

/// Replays the journal of the file system on `disk` onto it, if that is needed, as the kernel does when it mounts. The disk is
/// then as good as unmounted cleanly, but for orphans, which the next to mount it for writing removes.
///
/// Cut short, it can be done again: nothing of the journal is given up before all of it is durable where it belongs.
pub fn recover(disk: &Arc<Disk>) -> std::result::Result<Recovery, Error> {
    let found = open_superblock(disk)?;
    if !found.features.incompat.contains(Incompat::RECOVER) {
        return Ok(Recovery::default());
    }
    if disk.is_read_only() {
        return Err(disk::Error::ReadOnly { disk: disk.name().into() }.into());
    }
    journal::replay_onto(disk, &found)
}

/// The superblock of a file system that may be used.
pub(crate) fn open_superblock(disk: &Arc<Disk>) -> std::result::Result<Superblock, Error> {
    let raw = superblock::load(disk)?;
    if let Some(mark) = raw.mark() {
        return Err(Error::Attached { disk: disk.name().into(), volume: mark.volume });
    }
    let found = raw.verify(disk)?;
    mmp::check(disk, &found)?;
    if found.has_errors || journal::has_errors(disk, &found) {
        return Err(Error::HasErrors { disk: disk.name().into() });
    }
    Ok(found)
}

impl Volume {
    /// Opens the file system on `disk`.
    pub fn open(disk: Arc<Disk>, options: &Options) -> std::result::Result<Volume, Error> {
        let mut superblock = open_superblock(&disk)?;
        let mut store =
            Store::new(disk.clone(), superblock.block, superblock.inode_bytes, options.cache_bytes);
        store.keep_clean(options.clean_bytes);
        let mut recovery = Recovery::default();
        if superblock.features.incompat.contains(Incompat::RECOVER) {
            let (log, after) = journal::read(&disk, &superblock)?;
            recovery = log.recovery();
            superblock = after;
            if superblock.has_errors {
                return Err(Error::HasErrors { disk: disk.name().into() });
            }
            store.overlay(log.into_blocks());
        }
        let volume = Volume { recovery, ..Volume::to_read(superblock, store, options) };
        let root = inode::read(&volume.core, superblock::ROOT)?;
        if !root.is_dir() {
            return Err(Error::Volume(crate::error::corrupt(
                "inode",
                superblock::ROOT,
                "its kind",
                "no directory",
                "the root directory",
            )));
        }
        Ok(volume)
    }

    /// One that is only read.
    pub(crate) fn to_read(superblock: Superblock, store: Store, options: &Options) -> Volume {
        let pages_max = options.page_bytes / superblock.block;
        Volume {
            files: Files::new(superblock.block, 0, store.failure.clone()),
            core: Core::of(superblock, store),
            handles: Handles::new(),
            tree: RwLock::new(()),
            home: None,
            pages_max,
            synced_max: 0,
            work: Work::default(),
            sync: Sync::Nosync,
            sync_in_nvm: true,
            queue: None,
            writing_out: Mutex::default(),
            linkable: Mutex::default(),
            unfinished: Mutex::default(),
            refused: Mutex::default(),
            recovery: Recovery::default(),
            replayed: Replayed::default(),
            fetched: Fetched::default(),
        }
    }

    /// One whose metadata is in NVM.
    pub(crate) fn with_home(
        disk: Arc<Disk>,
        superblock: Superblock,
        mut home: Home,
        next: u64,
        options: &Options,
    ) -> std::result::Result<Volume, Error> {
        let mut store =
            Store::new(disk.clone(), superblock.block, superblock.inode_bytes, options.cache_bytes);
        store.attach(home.frames.clone(), next);
        store.limit(Most { bytes: home.record_bytes_max(), blocks: home.record_blocks_max() });
        if !options.versions {
            store.without_versions();
            home.without_versions();
        }
        store.keep_clean(options.clean_bytes);
        let pages_max = options.page_bytes / superblock.block;
        let synced_max = (options.synced_bytes / superblock.block).max(1);
        Ok(Volume {
            files: Files::new(superblock.block, synced_max / SPARE_PART, store.failure.clone()),
            core: Core::of(superblock, store),
            handles: Handles::new(),
            tree: RwLock::new(()),
            home: Some(home),
            pages_max,
            synced_max,
            work: Work::default(),
            sync: options.sync,
            sync_in_nvm: options.sync_in_nvm,
            queue: Some(Mutex::new(Queue::new(disk, QUEUE_DEPTH))),
            writing_out: Mutex::default(),
            linkable: Mutex::default(),
            unfinished: Mutex::default(),
            refused: Mutex::default(),
            recovery: Recovery::default(),
            replayed: Replayed::default(),
            fetched: Fetched::default(),
        })
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.home.is_none()
    }

    /// For writing bytes of files.
    pub(crate) fn queue(&self) -> Result<MutexGuard<'_, Queue>> {
        let queue = self.queue.as_ref().map(Mutex::lock).ok_or(vfs::Error::ReadOnly)?;
        self.failure().check()?;
        Ok(queue)
    }

    /// Tries again what found no room, when all pages have their places, which then need no more room for the worst case, and what was freed
    /// can be used again; more than once if others have come meanwhile. Called without locks.
    pub(crate) fn with_room<R>(&self, attempt: impl Fn() -> Result<R>) -> Result<R> {
        const ATTEMPTS: u32 = 16;
        let attempt = || self.with_log(&attempt);
        for _ in 1..ATTEMPTS {
            match attempt() {
                Err(vfs::Error::NoSpace) => {}
                result => return result,
            }
            let written = self.write_out_all();
            self.make_free_usable()?;
            // What cannot be written of one file keeps nobody else from what there is.
            if written.is_err() || self.core.space.promised() == 0 {
                break;
            }
        }
        attempt()
    }

    /// Tries again behind a commit what found no room. Called without locks.
    pub(crate) fn with_commit<R>(&self, attempt: impl Fn() -> Result<R>) -> Result<R> {
        match self.with_log(&attempt) {
            Err(vfs::Error::NoSpace) => {
                self.make_free_usable()?;
                self.with_log(&attempt)
            }
            result => result,
        }
    }

    /// Tries again behind commits what the log had no room for. Called without locks.
    pub(crate) fn with_log<R>(&self, attempt: impl Fn() -> Result<R>) -> Result<R> {
        loop {
            match attempt() {
                Err(LOG_FULL) => self.commit_all()?,
                result => return result,
            }
        }
    }

    /// What was freed before can be given out: that is durable, and nothing is being written there.
    fn make_free_usable(&self) -> Result<()> {
        self.commit_all()?;
        self.queue().map(drop)
    }

    /// What replaying the journal found when it was opened.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Whether some inodes have no name, and wait to be removed by who mounts it for writing.
    pub fn has_orphans(&self) -> bool {
        let superblock = &self.core.superblock;
        superblock.last_orphan != 0 || superblock.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT)
    }

    /// Runs an operation that changes metadata, alone: all of it happens, or nothing, if a panic ends it, too ([`crate::failure`]); [`LOG_FULL`] if the log has no room for it before what is
    /// in it has been drained, for which the caller has to let go of his locks ([`Volume::with_log`]).
    pub(crate) fn change<R>(&self, operation: impl FnOnce(&Core) -> Result<R>) -> Result<R> {
        let _alone = self.begin()?;
        let ended = catch_unwind(AssertUnwindSafe(|| operation(&self.core)));
        {
            // What runs has a part of the operation then, which is not to be committed.
            let _whole = self.failure().whole("an operation's end");
            match &ended {
                Ok(Ok(_)) => self.core.finish(),
                Ok(Err(_)) => self.core.undo(),
                Err(_) => {
                    // Where nothing is kept of what was, there is nothing to undo it by.
                    if !self.core.store.has_versions() {
                        self.failure().fail("an operation");
                    }
                    self.core.undo();
                }
            }
        }
        self.noting(ended.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Whether a panic left something half done.
    pub(crate) fn failure(&self) -> &Failure {
        &self.core.store.failure
    }

    /// Begins an operation. **Here, with `tree` held, it is seen to that its record has room in half of the log**: whoever else has passed before.
    fn begin(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        let alone = self.tree.write();
        self.failure().check()?;
        if self.core.store.begin_within(1) {
            return Ok(alone);
        }
        drop(alone);
        if let Some(home) = &self.home {
            home.commit_what_fits(self)?;
        }
        let alone = self.tree.write();
        self.failure().check()?;
        // If another one waits for a drain, what runs may come to more; three times what an operation may add still fits.
        if self.core.store.begin_within(2) { Ok(alone) } else { Err(LOG_FULL) }
    }

    /// The same, again behind a commit if there was no room, for who holds no lock; what must be committed before is.
    pub(crate) fn operate<R>(&self, operation: impl Fn(&Core) -> Result<R>) -> Result<R> {
        self.commit_if_large()?;
        self.with_room(|| self.change(&operation))
    }

    /// Only what is attached is written, and has not failed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.home.is_some() { self.failure().check() } else { Err(vfs::Error::ReadOnly) }
    }

    /// The disk below.
    pub fn disk(&self) -> &Arc<Disk> {
        self.core.store.disk()
    }

    /// Free blocks and inodes, as the group descriptors have them: the superblock's numbers are seldom up to date. In a group whose descriptor is
    /// damaged nothing is free.
    pub(crate) fn free(&self) -> Result<(u64, u64)> {
        let core = &self.core;
        let superblock = &core.superblock;
        let (mut free_clusters, mut free_inodes, mut damage, mut sound) = (0, 0, None, 0);
        for number in 0..superblock.groups {
            let group = match group::read(core, number) {
                Err(vfs::Error::Corrupt(what)) => {
                    core.met.pass_over(number, &what);
                    damage = Some(what);
                    continue;
                }
                group => group?,
            };
            sound += 1;
            free_clusters += group.free_clusters;
            free_inodes += u64::from(group.free_inodes);
        }
        if let Some(what) = damage.filter(|_| sound == 0) {
            return Err(vfs::Error::Corrupt(what));
        }
        Ok((free_clusters * superblock.cluster, free_inodes))
    }

    /// Space, as statfs(2) has it: without what no file can have, and what is promised to data that has no place yet. Of a file system with extents the
    /// kernel keeps a fiftieth back, 4096 clusters at most, which is available here: files can have it.
    pub(crate) fn space(&self) -> Result<Statfs> {
        let superblock = &self.core.superblock;
        let (free, files_free) = self.free()?;
        let blocks = superblock.blocks.saturating_sub(self.overhead()?);
        let blocks_free = free.saturating_sub(self.core.space.promised()).min(blocks);
        Ok(Statfs {
            block_size: superblock.block as u32,
            blocks,
            blocks_free,
            blocks_available: blocks_free.saturating_sub(superblock.reserved_blocks),
            files: u64::from(superblock.inodes),
            files_free,
        })
    }

    /// Blocks that no file can have. They are counted, as the kernel does it: what the superblock says of them stays as it was behind tools that
    /// change features. With bigalloc, where they share clusters, it is believed.
    fn overhead(&self) -> Result<u64> {
        let superblock = &self.core.superblock;
        let is_said = superblock.overhead_blocks != 0 && superblock.overhead_blocks < superblock.blocks;
        if is_said && superblock.features.ro_compat.contains(RoCompat::BIGALLOC) {
            return Ok(superblock.overhead_blocks);
        }
        let table = superblock.inode_table_blocks();
        let mut overhead = superblock.first_block + u64::from(superblock.groups) * (table + 2);
        for number in 0..superblock.groups {
            overhead += superblock.group_reserve(number);
        }
        if superblock.features.compat.contains(Compat::HAS_JOURNAL) && superblock.journal_inode != 0 {
            overhead += inode::read(&self.core, superblock.journal_inode)?.size / superblock.block;
        }
        Ok(overhead)
    }
}
