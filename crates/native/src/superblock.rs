//! The superblock (kept twice) and the root slots that say where the newest checkpoint is (HMFS §2.2).
//!
//! The superblock never changes after formatting. What changes at each checkpoint and mount is in the two
//! root slots, written alternately: of the intact ones the larger `sequence` wins.

use nvm::{Durable, Flushed, Purpose, Region};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum;
use crate::error::Error;
use crate::fault::{self, Fault};
use crate::geometry::{BLOCK, Geometry, NUMBERS, ROOT_SLOTS, SUPERBLOCKS};

pub(crate) const MAGIC: [u8; 8] = *b"AMBERNAT";
pub(crate) const FORMAT_VERSION: u32 = 6;

/// What a volume is; two copies, written once.
#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct Superblock {
    /// CRC-32C of all that follows.
    pub(crate) crc: U32,
    /// Guards against a reader of another format.
    pub(crate) version: U32,
    pub(crate) magic: [u8; 8],
    pub(crate) uuid: [u8; 16],
    /// UTF-8, zero-filled.
    pub(crate) label: [u8; 64],
    /// Seconds since the epoch.
    pub(crate) created: U64,
    /// Key of the hash of directory names: the names' order on the medium is not for others to choose.
    pub(crate) hash_key: [U64; 2],
    blocks: U64,
    log_start: U64,
    log_half: U64,
    sit_start: U64,
    sit_journal_start: U64,
    bia_start: U64,
    main_start: U64,
    segments: U32,
    reserved: [u8; 4],
}
const _: () = assert!(size_of::<Superblock>() == 184);

impl Superblock {
    pub(crate) fn new(
        uuid: [u8; 16],
        label: [u8; 64],
        created: u64,
        hash_key: [u64; 2],
        g: &Geometry,
    ) -> Superblock {
        let mut superblock = Superblock {
            crc: 0.into(),
            version: FORMAT_VERSION.into(),
            magic: MAGIC,
            uuid,
            label,
            created: created.into(),
            hash_key: hash_key.map(U64::new),
            blocks: g.blocks.into(),
            log_start: g.log_start.into(),
            log_half: g.log_half.into(),
            sit_start: g.sit_start.into(),
            sit_journal_start: g.sit_journal_start.into(),
            bia_start: g.bia_start.into(),
            main_start: g.main_start.into(),
            segments: g.segments.into(),
            reserved: [0; 4],
        };
        superblock.crc = checksum::of(&superblock.as_bytes()[4..]).into();
        superblock
    }

    /// The key of all hashes that nobody is to foresee: of names, and of the log's salts.
    pub(crate) fn hash_key(&self) -> [u64; 2] {
        [self.hash_key[0].get(), self.hash_key[1].get()]
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks.get(),
            log_start: self.log_start.get(),
            log_half: self.log_half.get(),
            sit_start: self.sit_start.get(),
            sit_journal_start: self.sit_journal_start.get(),
            bia_start: self.bia_start.get(),
            main_start: self.main_start.get(),
            segments: self.segments.get(),
        }
    }

    pub(crate) fn write(&self, region: &Region) -> Durable {
        let [first, second] = SUPERBLOCKS.map(|at| self.stream_copy(region, at));
        region.fence(first.and(second))
    }

    /// Writes one copy anew, from this, which is the other.
    pub(crate) fn write_copy(&self, region: &Region, at: u64) -> Durable {
        region.fence(self.stream_copy(region, at))
    }

    fn stream_copy(&self, region: &Region, at: u64) -> Flushed {
        let mut block = vec![0; BLOCK as usize];
        block[..size_of::<Superblock>()].copy_from_slice(self.as_bytes());
        region.stream(Purpose::Metadata, at * BLOCK, &block)
    }

    /// Blocks of the copies that are not what this is, which is intact.
    pub(crate) fn damaged_copies(&self, region: &Region) -> Vec<u64> {
        let differs = |at: &u64| region.load::<Superblock>(at * BLOCK).as_bytes() != self.as_bytes();
        SUPERBLOCKS.into_iter().filter(differs).collect()
    }

    /// The first intact copy, verified against the region.
    pub(crate) fn read(region: &Region) -> Result<Superblock, Error> {
        if region.len() < crate::MIN_VOLUME_BYTES {
            return Err(Error::TooSmall { bytes: region.len(), minimum: crate::MIN_VOLUME_BYTES });
        }
        let mut magic = false;
        let mut reason = String::new();
        for at in SUPERBLOCKS {
            let found: Superblock = region.load(at * BLOCK);
            magic |= found.magic == MAGIC;
            match found.verify(region) {
                Ok(()) => return Ok(found),
                Err(error @ (Error::Version { .. } | Error::CutShort { .. } | Error::Foreign(_))) => {
                    return Err(error);
                }
                Err(error) => {
                    reason =
                        format!("{reason}{}block {at}: {error}", if reason.is_empty() { "" } else { "; " })
                }
            }
        }
        // What has roots had superblocks: it is not to be taken for a place where nothing is.
        if !magic && Root::read(region).is_ok() {
            return Err(Error::SuperblocksDamaged(
                "neither has its magic number, as after a `mkfs` that was cut off, and there are root slots"
                    .into(),
            ));
        }
        if magic { Err(Error::SuperblocksDamaged(reason)) } else { Err(Error::NotNative) }
    }

    fn verify(&self, region: &Region) -> Result<(), Error> {
        if self.magic != MAGIC {
            return Err(Error::NotNative);
        }
        if checksum::of(&self.as_bytes()[4..]) != self.crc.get() {
            return Err(Error::SuperblocksDamaged("wrong checksum".into()));
        }
        if self.version.get() != FORMAT_VERSION {
            return Err(Error::Version { found: self.version.get(), known: FORMAT_VERSION });
        }
        if self.uuid != *region.uuid().as_bytes() {
            return Err(Error::Foreign(uuid::Uuid::from_bytes(self.uuid).to_string()));
        }
        let geometry = self.geometry();
        if !geometry.is_sound() {
            return Err(Error::SuperblocksDamaged("contradictory geometry".into()));
        }
        if geometry.blocks * BLOCK > region.len() {
            return Err(Error::CutShort { recorded: geometry.blocks * BLOCK, found: region.len() });
        }
        Ok(())
    }
}

/// How a volume was left, as its root slots say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Left {
    /// In use, or by a crash: there may be something in the log.
    InUse = 0,
    /// By a clean unmount: the log holds nothing, nobody is without a name.
    Clean = 1,
    /// The same, but that inodes without a name found no room to be removed: the next mount tries again.
    CleanButUnnamed = 2,
}

/// Where the newest checkpoint is.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct Root {
    /// CRC-32C of all that follows: a torn slot is no slot.
    crc: U32,
    /// A [`Left`].
    clean: U32,
    /// Larger is newer.
    pub(crate) sequence: U64,
    /// Block of the newest checkpoint.
    pub(crate) checkpoint: U64,
    /// Times the volume was opened for writing; salts the log's checksums, so that no record of an earlier
    /// mount can pass for one of this.
    pub(crate) mounts: U64,
    reserved: [u8; 32],
}
const _: () = assert!(size_of::<Root>() == 64);

impl Root {
    /// That of a volume which was opened `mounts` times.
    pub(crate) fn new(checkpoint: u64, mounts: u64) -> Root {
        Root {
            crc: 0.into(),
            clean: (Left::Clean as u32).into(),
            sequence: 0.into(),
            checkpoint: checkpoint.into(),
            mounts: mounts.into(),
            reserved: [0; 32],
        }
    }

    /// How the volume was left.
    pub(crate) fn left(&self) -> Left {
        match self.clean.get() {
            1 => Left::Clean,
            2 => Left::CleanButUnnamed,
            _ => Left::InUse,
        }
    }

    /// Writes the next root over the older slot and then, when that is durable, over the other one: losing either
    /// slot loses nothing.
    pub(crate) fn write_next(&mut self, region: &Region, checkpoint: u64, left: Left) -> Durable {
        let first = self.write_slot(region, checkpoint, left);
        fault::fence(region, Fault::RootsTogether, first).ignore();
        let second = self.write_slot(region, checkpoint, left);
        region.fence(second)
    }

    fn write_slot(&mut self, region: &Region, checkpoint: u64, left: Left) -> Flushed {
        self.sequence = (self.sequence.get() + 1).into();
        self.checkpoint = checkpoint.into();
        self.clean = (left as u32).into();
        self.crc = checksum::of(&self.as_bytes()[4..]).into();
        let slot = ROOT_SLOTS[(self.sequence.get() % 2) as usize];
        fault::stream(region, Fault::RootNotSent, Purpose::Metadata, slot * BLOCK, self.as_bytes())
    }

    /// Writes over the slot at block `at`, which is damaged, what this says, which is the other slot.
    pub(crate) fn write_twin(&mut self, region: &Region, at: u64) -> Durable {
        // A slot has all numbers that are even, or that are odd.
        if ROOT_SLOTS[((self.sequence.get() + 1) % 2) as usize] != at {
            self.sequence = (self.sequence.get() + 1).into();
        }
        let (checkpoint, left) = (self.checkpoint.get(), self.left());
        region.fence(self.write_slot(region, checkpoint, left))
    }

    /// The block of the slot that is damaged, if the other is not.
    pub(crate) fn damaged_slot(region: &Region) -> Option<u64> {
        let [first, second] = ROOT_SLOTS.map(|at| region.load::<Root>(at * BLOCK));
        let (at, damaged, intact) = match (first.is_intact(), second.is_intact()) {
            (false, true) => (ROOT_SLOTS[0], first, second),
            (true, false) => (ROOT_SLOTS[1], second, first),
            _ => return None,
        };
        (!damaged.may_be_torn(&intact)).then_some(at)
    }

    /// Whether a power cut may have left this beside the slot `other`: each word is what was there, or was to come. That is no damage, and
    /// the next mount writes over it.
    fn may_be_torn(&self, other: &Root) -> bool {
        self.sequence.get().abs_diff(other.sequence.get()) == 1
            && self.mounts.get().abs_diff(other.mounts.get()) <= 1
            && self.clean.get() <= Left::CleanButUnnamed as u32
            && self.reserved == [0; 32]
    }

    fn is_intact(&self) -> bool {
        checksum::of(&self.as_bytes()[4..]) == self.crc.get()
            && self.sequence.get() < NUMBERS
            // A clone begins to count anywhere below that.
            && self.mounts.get() < 2 * NUMBERS
    }

    /// The newest intact slot.
    pub(crate) fn read(region: &Region) -> vfs::Result<Root> {
        ROOT_SLOTS
            .iter()
            .map(|slot| region.load::<Root>(slot * BLOCK))
            .filter(Root::is_intact)
            .max_by_key(|root| root.sequence.get())
            .ok_or_else(|| {
                crate::error::corrupt(
                    "root slot",
                    ROOT_SLOTS[0],
                    "checksum",
                    "wrong in both copies",
                    "one intact",
                )
            })
    }
}
