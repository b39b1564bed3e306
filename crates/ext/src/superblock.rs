//! The superblock: what the file system is, range-checked before anything is believed.

mod groups;

use disk::{Disk, Purpose};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum::crc32c;
use crate::error::Error;
use crate::features::{Compat, Features, Incompat, RoCompat};
use crate::stranger;

pub(crate) const MAGIC: u16 = 0xEF53;
/// Where the superblock is, byte.
pub(crate) const AT: u64 = 1024;
pub(crate) const BYTES: usize = 1024;
/// The root directory's inode.
pub(crate) const ROOT: u32 = 2;
/// Of `state`: unmounted cleanly.
pub(crate) const STATE_CLEAN: u16 = 1;
/// Of `state`: errors were found.
const STATE_ERRORS: u16 = 2;
/// Of `flags`: names are hashed as unsigned bytes.
const FLAG_UNSIGNED_HASH: u32 = 2;
/// In `default_mount_options`.
const BSD_GROUPS: u32 = 2;
/// The system that made a file system: Linux.
const LINUX: u32 = 0;
/// The only kind of metadata checksum there is.
const CHECKSUM_CRC32C: u8 = 1;
/// Bytes of an inode that all versions have.
pub(crate) const INODE_BYTES_MIN: usize = 128;
/// Bytes of the fields behind these that are known.
pub(crate) const INODE_EXTRA_BYTES: usize = 32;
/// Largest blocks that are supported.
const BLOCK_MAX: u64 = 4096;

/// The superblock as it is on the disk. What is not used here is passed over.
#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct RawSuperblock {
    inodes: U32,
    blocks_low: U32,
    reserved_blocks_low: U32,
    free_blocks_low: U32,
    free_inodes: U32,
    first_data_block: U32,
    log_block_size: U32,
    log_cluster_size: U32,
    blocks_per_group: U32,
    clusters_per_group: U32,
    inodes_per_group: U32,
    mount_time: U32,
    write_time: U32,
    mount_count: U16,
    mount_count_max: U16,
    magic: U16,
    state: U16,
    errors: U16,
    minor_revision: U16,
    check_time: U32,
    check_interval: U32,
    creator_os: U32,
    revision: U32,
    reserved_uid: U16,
    reserved_gid: U16,
    first_inode: U32,
    inode_size: U16,
    group: U16,
    pub(crate) compat: U32,
    pub(crate) incompat: U32,
    pub(crate) ro_compat: U32,
    uuid: [u8; 16],
    label: [u8; 16],
    last_mounted: [u8; 64],
    algorithms: U32,
    prealloc: [u8; 2],
    reserved_descriptor_blocks: U16,
    journal_uuid: [u8; 16],
    journal_inode: U32,
    journal_device: U32,
    pub(crate) last_orphan: U32,
    hash_seed: [U32; 4],
    default_hash: u8,
    journal_backup: u8,
    descriptor_size: U16,
    default_mount_options: U32,
    first_meta_group: U32,
    created: U32,
    journal_blocks: [U32; 17],
    blocks_high: U32,
    reserved_blocks_high: U32,
    free_blocks_high: U32,
    extra_inode_size_min: U16,
    extra_inode_size_wanted: U16,
    flags: U32,
    raid_stride: U16,
    mmp_interval: U16,
    mmp_block: U64,
    raid_stripe_width: U32,
    log_groups_per_flex: u8,
    checksum_kind: u8,
    padding: U16,
    kilobytes_written: U64,
    snapshots: [u8; 20],
    error_count: U32,
    error_records: [u8; 0x68],
    mount_options: [u8; 64],
    quota_inodes: [U32; 2],
    overhead_clusters: U32,
    backup_groups: [U32; 2],
    encryption: [u8; 20],
    lost_found_inode: U32,
    project_quota_inode: U32,
    checksum_seed: U32,
    time_high: [u8; 8],
    encoding: [U16; 2],
    orphan_file_inode: U32,
    reserved_uid_high: U16,
    reserved_gid_high: U16,
    reserved: [U32; 85],
    /// Of an attached disk: which volume of which zone has its metadata. At the end of what is reserved, which is given out from its start.
    mark: [u8; 32],
    pub(crate) checksum: U32,
}
const _: () = assert!(size_of::<RawSuperblock>() == BYTES);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, journal_inode) == 0xE0);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, blocks_high) == 0x150);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, mount_options) == 0x200);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, checksum_seed) == 0x270);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, orphan_file_inode) == 0x280);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, mark) == 0x3DC);

/// Whose a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The volume in the zone.
    pub(crate) volume: [u8; 16],
    /// Which attachment of it.
    pub(crate) attachment: u64,
    /// Which of its moments: the next one comes with every mount and unmount, so that a copy from before is told.
    pub(crate) moment: u64,
}

impl Mark {
    /// Of a disk that was just being detached.
    pub(crate) const NOBODY: Mark = Mark { volume: [0; 16], attachment: 0, moment: 0 };
}

/// What of a superblock has been checked, in units that code wants. Blocks, groups and inodes are numbers; the rest bytes.
#[derive(Clone, Debug)]
pub(crate) struct Superblock {
    pub(crate) features: Features,
    /// It is of a revision that can have features.
    pub(crate) has_features: bool,
    /// Whether inodes have the checksums that they should: where another system made the file system, Linux neither sets nor looks at them.
    pub(crate) checks_inodes: bool,
    /// Bytes of a block: 1024, 2048 or 4096.
    pub(crate) block: u64,
    /// Blocks of the file system, less than 2^48.
    pub(crate) blocks: u64,
    /// The first block of group 0.
    pub(crate) first_block: u64,
    pub(crate) blocks_per_group: u64,
    /// Blocks of a cluster: 1 without bigalloc.
    pub(crate) cluster: u64,
    pub(crate) clusters_per_group: u64,
    pub(crate) groups: u32,
    /// Inode numbers are 1 to this.
    pub(crate) inodes: u32,
    pub(crate) inodes_per_group: u32,
    pub(crate) inode_bytes: usize,
    /// Bytes of the fields that a new inode has beyond the first 128.
    pub(crate) inode_extra_bytes: usize,
    /// The first inode that is not reserved.
    pub(crate) first_inode: u32,
    pub(crate) descriptor_bytes: usize,
    pub(crate) first_meta_group: u32,
    pub(crate) reserved_descriptor_blocks: u64,
    pub(crate) backup_groups: [u32; 2],
    pub(crate) reserved_blocks: u64,
    /// For whom these are: a user, and a group unless it is 0.
    pub(crate) reserved_for: (u32, u32),
    /// What is made has the group of its directory, whoever makes it: a default of the disk (`tune2fs -o bsdgroups`).
    pub(crate) bsd_groups: bool,
    /// Blocks that no file can have; 0 if that is not known.
    pub(crate) overhead_blocks: u64,
    pub(crate) uuid: [u8; 16],
    pub(crate) label: [u8; 16],
    pub(crate) created: u32,
    /// What all metadata checksums start from.
    pub(crate) checksum_seed: u32,
    pub(crate) hash_seed: [u32; 4],
    pub(crate) unsigned_hash: bool,
    /// How names of new directories are hashed.
    pub(crate) hash_version: u8,
    pub(crate) journal_inode: u32,
    pub(crate) last_orphan: u32,
    /// The file of orphans, or 0.
    pub(crate) orphan_file: u32,
    pub(crate) clean: bool,
    pub(crate) has_errors: bool,
    pub(crate) mmp_block: Option<u64>,
}

/// The superblock's bytes, if there is one.
pub(crate) fn load(disk: &Disk) -> Result<RawSuperblock, Error> {
    load_at(disk, AT)
}

/// The same, of a copy at byte `at`.
pub(crate) fn load_at(disk: &Disk, at: u64) -> Result<RawSuperblock, Error> {
    let instead = || if at == AT { stranger::instead(disk) } else { String::new() };
    let not_ext = || Error::NotExt { disk: disk.name().into(), instead: instead() };
    if disk.bytes() < at + BYTES as u64 {
        return Err(not_ext());
    }
    let mut bytes = [0; BYTES];
    disk.read(Purpose::Metadata, at, &mut bytes)?;
    let raw = RawSuperblock::read_from_bytes(&bytes).map_err(|_| not_ext())?;
    if raw.magic.get() == MAGIC { Ok(raw) } else { Err(not_ext()) }
}

impl RawSuperblock {
    /// That in the block which holds it, of `block` bytes.
    pub(crate) fn of_block(bytes: &[u8], block: u64) -> RawSuperblock {
        RawSuperblock::of_bytes(bytes[(AT % block) as usize..].first_chunk().expect("the size fits"))
    }

    pub(crate) fn of_bytes(bytes: &[u8; BYTES]) -> RawSuperblock {
        RawSuperblock::read_from_bytes(bytes).expect("the size fits")
    }

    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// What is free: blocks and inodes.
    pub(crate) fn set_free(&mut self, blocks: u64, inodes: u64) {
        self.free_blocks_low = (blocks as u32).into();
        if self.features().incompat.contains(Incompat::SIXTY_FOUR_BIT) {
            self.free_blocks_high = ((blocks >> 32) as u32).into();
        }
        self.free_inodes = (inodes as u32).into();
    }

    /// It is as good as after a clean unmount.
    pub(crate) fn set_clean(&mut self, now: std::time::SystemTime) {
        let seconds = now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.write_time = (seconds as u32).into();
        self.time_high[1] = (seconds >> 32) as u8;
        self.state = (self.state.get() | STATE_CLEAN).into();
    }

    /// Errors were found: whoever has the disk next has it checked.
    pub(crate) fn set_errors(&mut self) {
        self.state = (self.state.get() | STATE_ERRORS).into();
    }

    /// Whether they were.
    pub(crate) fn has_errors(&self) -> bool {
        self.state.get() & STATE_ERRORS != 0
    }

    pub(crate) fn features(&self) -> Features {
        Features {
            compat: Compat::from_bits_retain(self.compat.get()),
            incompat: Incompat::from_bits_retain(self.incompat.get()),
            ro_compat: RoCompat::from_bits_retain(self.ro_compat.get()),
        }
    }

    /// Whose the disk is, if its metadata is in NVM.
    pub(crate) fn mark(&self) -> Option<Mark> {
        let marked = self.is_attached();
        let (volume, numbers) = self.mark.split_at(16);
        let [attachment, moment] =
            [0, 8].map(|at| u64::from_le_bytes(numbers[at..at + 8].try_into().expect("8 bytes")));
        marked.then(|| Mark { volume: volume.try_into().expect("16 bytes"), attachment, moment })
    }

    /// Whether its metadata is in NVM.
    pub(crate) fn is_attached(&self) -> bool {
        self.features().incompat.contains(Incompat::ATTACHED)
    }

    /// In what a backup is none of this one: a field that says what is where.
    pub(crate) fn differs(&self, other: &RawSuperblock) -> Option<&'static str> {
        let fields = [
            (self.magic.get() == other.magic.get(), "its magic number"),
            (self.is_intact(), "its checksum"),
            (self.uuid == other.uuid, "its UUID"),
            (self.log_block_size == other.log_block_size, "the size of blocks"),
            ((self.blocks_low, self.blocks_high) == (other.blocks_low, other.blocks_high), "the blocks"),
            (self.blocks_per_group == other.blocks_per_group, "the blocks of a group"),
            (self.inodes == other.inodes, "the inodes"),
            (self.inodes_per_group == other.inodes_per_group, "the inodes of a group"),
            (self.inode_size == other.inode_size, "the size of inodes"),
            (self.descriptor_size == other.descriptor_size, "the size of descriptors"),
            (self.first_meta_group == other.first_meta_group, "where descriptors are"),
        ];
        fields.into_iter().find(|(is_same, _)| !is_same).map(|(_, field)| field)
    }

    /// Files of quotas: whose, and their inodes.
    pub(crate) fn quota_files(&self) -> Vec<(&'static str, u32)> {
        if !self.features().ro_compat.contains(RoCompat::QUOTA) {
            return Vec::new();
        }
        let [users, groups] = self.quota_inodes.map(U32::get);
        let files = [("users", users), ("groups", groups), ("projects", self.project_quota_inode.get())];
        files.into_iter().filter(|(_, inode)| *inode != 0).collect()
    }

    /// It has to be checked before it is used.
    pub(crate) fn set_unclean(&mut self) {
        self.state = (self.state.get() & !STATE_CLEAN).into();
        self.seal();
    }

    /// Says that the disk is attached, or is not.
    pub(crate) fn set_attached(&mut self, attached: bool) {
        let mut incompat = self.features().incompat;
        incompat.set(Incompat::ATTACHED, attached);
        self.incompat = incompat.bits().into();
        self.seal();
    }

    /// Says whose the disk is when it is attached.
    pub(crate) fn set_owner(&mut self, mark: Option<Mark>) {
        self.mark = [0; 32];
        if let Some(mark) = mark {
            self.mark[..16].copy_from_slice(&mark.volume);
            self.mark[16..24].copy_from_slice(&mark.attachment.to_le_bytes());
            self.mark[24..].copy_from_slice(&mark.moment.to_le_bytes());
        }
        self.seal();
    }

    /// Whether its checksum is right, if it has one.
    pub(crate) fn is_intact(&self) -> bool {
        !self.features().has_metadata_csum() || self.own_checksum() == self.checksum.get()
    }

    /// Sets the checksum right, if there is one.
    pub(crate) fn seal(&mut self) {
        if self.features().has_metadata_csum() {
            self.checksum = self.own_checksum().into();
        }
    }

    /// The checksum that it should have.
    pub(crate) fn own_checksum(&self) -> u32 {
        crc32c(!0, &self.as_bytes()[..BYTES - 4])
    }

    /// What it says, checked against itself and the disk.
    pub(crate) fn verify(&self, disk: &Disk) -> Result<Superblock, Error> {
        let features = self.features();
        let unreadable = features.unsupported();
        if !unreadable.is_empty() {
            return Err(Error::Unsupported { disk: disk.name().into(), features: unreadable });
        }
        self.verify_numbers(disk)
    }

    /// The same, whatever features it has: enough to tell of it, not to read it.
    pub(crate) fn verify_numbers(&self, disk: &Disk) -> Result<Superblock, Error> {
        let features = self.features();
        let is_whole = !features.has_metadata_csum() || self.own_checksum() == self.checksum.get();
        let superblock = self.checked(features).map_err(|what| match self.log_block_size.get() {
            // Which kernels with large pages have.
            size @ 3..=6 if is_whole => {
                let features = vec![format!("blocks of {} KiB (4 at most)", 1 << size)];
                Error::Unsupported { disk: disk.name().into(), features }
            }
            _ => Error::Superblock { disk: disk.name().into(), what },
        })?;
        let recorded = superblock.blocks * superblock.block;
        if recorded > disk.bytes() {
            return Err(Error::CutShort { disk: disk.name().into(), recorded, found: disk.bytes() });
        }
        if u64::from(disk.sector()) > superblock.block {
            let (sector, block) = (disk.sector(), superblock.block);
            return Err(Error::Sectors { disk: disk.name().into(), sector, block });
        }
        Ok(superblock)
    }

    /// Bytes of the metadata whose place is fixed, all inode tables included; of a disk that was found sound before.
    pub(crate) fn fixed_bytes(&self) -> Option<u64> {
        self.checked(self.features()).ok().map(|superblock| superblock.fixed_bytes())
    }

    /// An error if it is of a kind that is not known, or its checksum is wrong.
    fn check_kind(&self, features: Features) -> Result<(), String> {
        let has_checksums = features.has_metadata_csum();
        if has_checksums && self.own_checksum() != self.checksum.get() {
            return Err(format!(
                "its checksum is {:#x}, not {:#x}",
                self.checksum.get(),
                self.own_checksum()
            ));
        }
        if has_checksums && self.checksum_kind != CHECKSUM_CRC32C {
            return Err(format!("checksums of unknown kind {}", self.checksum_kind));
        }
        if self.revision.get() > 1 {
            return Err(format!("revision {}", self.revision.get()));
        }
        Ok(())
    }

    fn is_dynamic(&self) -> bool {
        self.revision.get() == 1
    }

    /// Bytes of an inode, and the number of the first that is not reserved, if there are `groups` groups.
    fn checked_inodes(&self, block: u64, groups: u64) -> Result<(usize, u32), String> {
        let (inodes_per_group, inodes) = (self.inodes_per_group.get(), self.inodes.get());
        if inodes_per_group == 0 || u64::from(inodes_per_group) > block * 8 {
            return Err(format!("{inodes_per_group} inodes in a group"));
        }
        if groups * u64::from(inodes_per_group) != u64::from(inodes) {
            return Err(format!("{inodes} inodes in {groups} groups of {inodes_per_group}"));
        }
        let bytes = if self.is_dynamic() { usize::from(self.inode_size.get()) } else { 128 };
        if !bytes.is_power_of_two() || !(128..=block as usize).contains(&bytes) {
            return Err(format!("inodes of {bytes} bytes"));
        }
        let first = if self.is_dynamic() { self.first_inode.get() } else { 11 };
        if !(11..=inodes).contains(&first) {
            return Err(format!("inode {first} as the first of {inodes}"));
        }
        Ok((bytes, first))
    }

    fn checked(&self, features: Features) -> Result<Superblock, String> {
        self.check_kind(features)?;
        let block = 1024u64.checked_shl(self.log_block_size.get()).filter(|block| *block <= BLOCK_MAX);
        let block =
            block.ok_or_else(|| format!("blocks of 2^{} KiB (at most 4)", self.log_block_size.get()))?;
        let wide = features.incompat.contains(Incompat::SIXTY_FOUR_BIT);
        let high =
            |low: U32, high: U32| u64::from(low.get()) | if wide { u64::from(high.get()) << 32 } else { 0 };
        let blocks = high(self.blocks_low, self.blocks_high);
        let cluster = self.checked_cluster(features, block)?;
        let (blocks_per_group, clusters_per_group) = self.checked_group(features, block, cluster)?;
        let first_block = u64::from(self.first_data_block.get());
        if first_block != u64::from(block == 1024 && cluster == 1) {
            return Err(format!("its first block is {first_block}"));
        }
        if blocks <= first_block || blocks >> 48 != 0 {
            return Err(format!("{blocks} blocks"));
        }
        let groups = (blocks - first_block).div_ceil(blocks_per_group);
        let (inode_bytes, first_inode) = self.checked_inodes(block, groups)?;
        let descriptor_bytes = if wide { usize::from(self.descriptor_size.get()) } else { 32 };
        if wide && (!descriptor_bytes.is_power_of_two() || !(64..=1024).contains(&descriptor_bytes)) {
            return Err(format!("group descriptors of {descriptor_bytes} bytes"));
        }
        let checksum_seed = match features.incompat.contains(Incompat::CSUM_SEED) {
            true => self.checksum_seed.get(),
            false => crc32c(!0, &self.uuid),
        };
        let whole = |low: U16, high: U16| u32::from(low.get()) | u32::from(high.get()) << 16;
        let mmp_block = features.incompat.contains(Incompat::MMP).then(|| self.mmp_block.get());
        if mmp_block.is_some_and(|at| at <= first_block || at >= blocks) {
            return Err("its block of multiple mount protection is not there".into());
        }
        Ok(Superblock {
            features,
            has_features: self.is_dynamic(),
            checks_inodes: features.has_metadata_csum() && self.creator_os.get() == LINUX,
            block,
            blocks,
            first_block,
            blocks_per_group,
            cluster,
            clusters_per_group,
            groups: groups as u32, // no more than inodes
            inodes: self.inodes.get(),
            inodes_per_group: self.inodes_per_group.get(),
            inode_bytes,
            inode_extra_bytes: self.extra_bytes(features, inode_bytes),
            first_inode,
            descriptor_bytes,
            first_meta_group: self.first_meta_group.get(),
            reserved_descriptor_blocks: u64::from(self.reserved_descriptor_blocks.get()),
            backup_groups: self.backup_groups.map(U32::get),
            reserved_blocks: high(self.reserved_blocks_low, self.reserved_blocks_high).min(blocks),
            reserved_for: (
                whole(self.reserved_uid, self.reserved_uid_high),
                whole(self.reserved_gid, self.reserved_gid_high),
            ),
            bsd_groups: self.default_mount_options.get() & BSD_GROUPS != 0,
            overhead_blocks: u64::from(self.overhead_clusters.get()) * cluster,
            uuid: self.uuid,
            label: self.label,
            created: self.created.get(),
            checksum_seed,
            hash_seed: self.hash_seed.map(U32::get),
            unsigned_hash: self.flags.get() & FLAG_UNSIGNED_HASH != 0,
            hash_version: self.default_hash,
            journal_inode: self.journal_inode.get(),
            last_orphan: self.last_orphan.get(),
            orphan_file: match features.compat.contains(Compat::ORPHAN_FILE) {
                true => self.orphan_file_inode.get(),
                false => 0,
            },
            clean: self.state.get() & STATE_CLEAN != 0,
            has_errors: self.has_errors(),
            mmp_block,
        })
    }

    /// Bytes of the fields of a new inode beyond the first 128: all that are known, and more if that is wanted and fits.
    fn extra_bytes(&self, features: Features, inode_bytes: usize) -> usize {
        let room = inode_bytes - INODE_BYTES_MIN;
        let wanted =
            [self.extra_inode_size_wanted, self.extra_inode_size_min].map(|bytes| usize::from(bytes.get()));
        let wanted =
            wanted.into_iter().filter(|bytes| *bytes <= room && bytes.is_multiple_of(4)).max().unwrap_or(0);
        let has_wish = features.ro_compat.contains(RoCompat::EXTRA_ISIZE);
        if has_wish { wanted.max(INODE_EXTRA_BYTES) } else { INODE_EXTRA_BYTES }.min(room)
    }

    /// Blocks of a cluster.
    fn checked_cluster(&self, features: Features, block: u64) -> Result<u64, String> {
        if !features.ro_compat.contains(RoCompat::BIGALLOC) {
            return Ok(1);
        }
        let bytes = 1024u64
            .checked_shl(self.log_cluster_size.get())
            .filter(|bytes| (block..=1 << 30).contains(bytes));
        bytes
            .map(|bytes| bytes / block)
            .ok_or_else(|| format!("clusters of 2^{} KiB", self.log_cluster_size.get()))
    }

    /// Blocks and clusters of a group: one block of bitmap has a bit for each.
    fn checked_group(&self, features: Features, block: u64, cluster: u64) -> Result<(u64, u64), String> {
        let blocks = u64::from(self.blocks_per_group.get());
        let clusters = match features.ro_compat.contains(RoCompat::BIGALLOC) {
            true => u64::from(self.clusters_per_group.get()),
            false => blocks,
        };
        if clusters == 0 || clusters > block * 8 || clusters * cluster != blocks {
            return Err(format!("{blocks} blocks and {clusters} clusters in a group"));
        }
        Ok((blocks, clusters))
    }
}

impl Superblock {
    /// The name as far as it goes.
    pub(crate) fn label_text(&self) -> String {
        let end = self.label.iter().position(|byte| *byte == 0).unwrap_or(self.label.len());
        String::from_utf8_lossy(&self.label[..end]).into_owned()
    }

    /// Whether blocks `first` to `first + count - 1` may belong to a file or directory: they are there, and behind the
    /// superblock.
    pub(crate) fn has_blocks(&self, first: u64, count: u64) -> bool {
        first > AT / self.block && first.checked_add(count).is_some_and(|end| end <= self.blocks)
    }
}
