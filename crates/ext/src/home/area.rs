//! What is where in the area, and which disk it belongs to.
//!
//! ```text
//! 0        superblock, first copy
//! 4096     superblock, second copy
//! 8192     the newest epoch of the log that is retired: 8 bytes
//! 8256     the moment that the disk has, and the one that it gets: 8 bytes each
//! 12288    frame table: 16 bytes a frame
//! …        frames: a block of the disk each
//! …        log: two halves
//! ```
//!
//! A superblock is written to the copy that is not the newest, so that one is always whole.

use nvm::{Durable, Purpose, Region};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::checksum::crc32c;
use disk::Disk;

use crate::error::Error;
use crate::superblock;

const MAGIC: [u8; 8] = *b"AMBEREXT";
const VERSION: u32 = 2;
const COPY: u64 = 4096;
/// Where the number of the newest retired epoch is.
const RETIRED: u64 = 2 * COPY;
/// Where the moments are.
const MOMENTS: u64 = RETIRED + nvm::LINE;
const TABLE: u64 = 3 * COPY;
/// Bytes of a frame's entry.
pub(super) const ENTRY: u64 = 16;
/// Longest name of a disk, bytes.
const NAME_MAX: usize = 1024;
/// Smallest area, whatever the disk: the log's halves, and frames for what a few operations change. Frames are given up when they run out.
pub(crate) const BYTES_MIN: u64 = 8 << 20;
/// The part of the frames that is left to metadata without a fixed place, which comes when it is touched.
pub(crate) const LEFT_PART: u64 = 8;
const HALF_MIN: u64 = 1 << 20;
const HALF_MAX: u64 = 256 << 20;

/// How much of an area is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Blocks of metadata.
    pub frames: u64,
    /// Bytes of each half of the log.
    pub half_bytes: u64,
}

/// How far attaching and detaching have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No disk: nothing here means anything.
    Detached,
    /// The disk's newest metadata is here.
    Attached,
    /// All of it is on the disk, durably, whose mark goes next.
    Emptied,
}

#[repr(C)]
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    /// CRC-32C of all that follows, with the volume's UUID before it.
    crc: U32,
    turn: U64,
    disk_uuid: [u8; 16],
    disk_bytes: U64,
    attachment: U64,
    state: U32,
    block: U32,
    part: U32,
    name_length: U32,
    frames: U64,
    frames_at: U64,
    log_at: U64,
    half: U64,
    name: [u8; NAME_MAX],
    superblock: [u8; superblock::BYTES],
}
const _: () = assert!(size_of::<Raw>() <= COPY as usize);

/// A superblock of the area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    turn: u64,
    pub(crate) disk_uuid: [u8; 16],
    pub(crate) disk_bytes: u64,
    /// Grows with every attachment; the disk carries it in its mark.
    pub(crate) attachment: u64,
    pub(crate) state: State,
    /// Bytes of a block of the disk, and of a sub-block.
    pub(crate) block: u64,
    pub(crate) part: u64,
    /// Frames that there are.
    pub(crate) frames: u64,
    pub(super) frames_at: u64,
    pub(super) log_at: u64,
    /// Bytes of each half of the log.
    pub(crate) half: u64,
    /// Where the user said that the disk is.
    pub(crate) disk_name: String,
    /// The disk's superblock, as it was when it was attached or, if it is emptied, as it will be. Writing the disk's own takes two sectors
    /// of which one may be there and the other not.
    pub(crate) superblock: Box<[u8; superblock::BYTES]>,
}

/// How an area is shared out.
struct Shares {
    half: u64,
    log_at: u64,
    frames: u64,
}

impl Shares {
    fn of(bytes: u64, block: u64, fixed: u64) -> Shares {
        let half = (bytes.saturating_sub(2 * fixed) / 2).clamp(bytes / 16, bytes / 4);
        let half = (half / COPY * COPY).clamp(HALF_MIN, HALF_MAX);
        let log_at = (bytes - 2 * half) / COPY * COPY;
        Shares { half, log_at, frames: (log_at - TABLE - COPY) / (block + ENTRY) }
    }
}

/// Bytes of NVM with which an area has frames for `fixed` bytes of metadata, beside the part of them that is left to what has no fixed place. With
/// less all works, but some of it goes to the disk and comes back: [`BYTES_MIN`] does.
pub(crate) fn bytes_for_all(block: u64, fixed: u64) -> u64 {
    const SEGMENT: u64 = 2 << 20;
    let frames = (fixed.div_ceil(block) * LEFT_PART).div_ceil(LEFT_PART - 1) + 1;
    let beside_log = TABLE + 3 * COPY + frames * (block + ENTRY);
    // The log has an eighth at least, within its limits.
    let log = (beside_log / 7).clamp(2 * HALF_MIN, 2 * HALF_MAX);
    (beside_log + log).max(BYTES_MIN).next_multiple_of(SEGMENT)
}

/// An error if an area has no room for the name of `disk`, by which the disk is found again.
pub(crate) fn check_name(disk: &Disk) -> Result<(), Error> {
    if disk.name().len() > NAME_MAX {
        return Err(Error::DiskNameTooLong { disk: disk.name().into(), max: NAME_MAX });
    }
    Ok(())
}

/// An error if a volume of `bytes` is too small for any disk.
pub(crate) fn check_bytes(volume: &str, bytes: u64, block: u64, fixed: u64) -> Result<(), Error> {
    if bytes < BYTES_MIN {
        let (volume, all) = (volume.into(), bytes_for_all(block, fixed));
        return Err(Error::AreaTooSmall { volume, bytes, needed: BYTES_MIN, all });
    }
    Ok(())
}

impl Area {
    /// The area of a region for a disk with blocks of `block` bytes, and `fixed` bytes of metadata that is there from the start. What NVM
    /// there is beyond that and as much again for directories and maps is for the log, of half of all at most: a burst of synced writes is as
    /// fast as NVM until it is full.
    ///
    /// # Errors
    /// [`Error::AreaTooSmall`] says how much it takes.
    pub(crate) fn lay_out(region: &Region, block: u64, part: u64, fixed: u64) -> Result<Area, Error> {
        let bytes = region.len();
        check_bytes(region.name(), bytes, block, fixed)?;
        let Shares { half, log_at, frames } = Shares::of(bytes, block, fixed);
        let frames_at = (TABLE + frames * ENTRY).next_multiple_of(COPY);
        Ok(Area {
            turn: 0,
            disk_uuid: [0; 16],
            disk_bytes: 0,
            attachment: 0,
            state: State::Detached,
            block,
            part,
            frames,
            frames_at,
            log_at,
            half,
            disk_name: String::new(),
            superblock: Box::new([0; superblock::BYTES]),
        })
    }

    /// Blocks of the disk.
    pub(crate) fn blocks(&self) -> u64 {
        self.disk_bytes / self.block
    }

    /// Leaves some of the room unused.
    pub(crate) fn confine(&mut self, room: Room) {
        let end = self.log_at + 2 * self.half;
        self.frames = self.frames.min(room.frames);
        self.half = (room.half_bytes / COPY * COPY).clamp(COPY, self.half);
        self.log_at = end - 2 * self.half;
    }

    /// Reads the newer of the copies that are whole; nothing if the region never was an area.
    ///
    /// # Errors
    /// [`Error::Area`] for one that was and cannot be read, [`Error::AreaVersion`] for one of another format.
    pub(crate) fn read(region: &Region) -> Result<Option<Area>, Error> {
        let damaged = |what: String| Error::Area { volume: region.name().into(), what };
        if region.len() < BYTES_MIN {
            return Ok(None);
        }
        let raws: [Raw; 2] = [region.load(0), region.load(COPY)];
        let is_whole = |raw: &&Raw| {
            raw.magic == MAGIC && raw.version.get() == VERSION && raw.checksum(region) == raw.crc.get()
        };
        let Some(raw) = raws.iter().filter(is_whole).max_by_key(|raw| raw.turn.get()) else {
            let begun: Vec<&Raw> = raws.iter().filter(|raw| raw.magic == MAGIC).collect();
            return match begun
                .iter()
                .map(|raw| raw.version.get())
                .find(|version| ![0, VERSION].contains(version))
            {
                Some(version) => {
                    Err(Error::AreaVersion { volume: region.name().into(), found: version, known: VERSION })
                }
                None if begun.len() == 2 => {
                    Err(damaged("neither copy of its superblock has the right checksum".into()))
                }
                // None at all, or the very first, cut short: nothing was said to be attached.
                None => Ok(None),
            };
        };
        let area = raw.decode().ok_or_else(|| damaged("its superblock contradicts itself".into()))?;
        if !area.fits(region.len()) {
            return Err(damaged("its superblock is of an area of another size".into()));
        }
        Ok(Some(area))
    }

    /// Whether everything has its place in an area of so many bytes.
    fn fits(&self, bytes: u64) -> bool {
        let end =
            |at: u64, count: u64, of: u64| count.checked_mul(of).and_then(|length| at.checked_add(length));
        let is_behind = |end: Option<u64>, next: u64| end.is_some_and(|end| end <= next);
        self.frames <= u64::from(u32::MAX)
            && is_behind(end(TABLE, self.frames, ENTRY), self.frames_at)
            && is_behind(end(self.frames_at, self.frames, self.block), self.log_at)
            && end(self.log_at, 2, self.half) == Some(bytes / COPY * COPY)
            && self.half >= COPY
            && self.log_at.is_multiple_of(COPY)
            && self.half.is_multiple_of(COPY)
    }

    /// Is the next version of `old`, for another disk.
    pub(crate) fn follow(&mut self, old: &Area) {
        self.turn = old.turn;
        self.attachment = old.attachment + 1;
    }

    /// Writes the next version.
    pub(crate) fn write(&mut self, region: &Region) -> Durable {
        self.turn += 1;
        let mut raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            crc: 0.into(),
            turn: self.turn.into(),
            disk_uuid: self.disk_uuid,
            disk_bytes: self.disk_bytes.into(),
            attachment: self.attachment.into(),
            state: match self.state {
                State::Detached => 0,
                State::Attached => 1,
                State::Emptied => 2,
            }
            .into(),
            block: (self.block as u32).into(),
            part: (self.part as u32).into(),
            name_length: (self.disk_name.len().min(NAME_MAX) as u32).into(),
            frames: self.frames.into(),
            frames_at: self.frames_at.into(),
            log_at: self.log_at.into(),
            half: self.half.into(),
            name: [0; NAME_MAX],
            superblock: *self.superblock,
        };
        let name = &self.disk_name.as_bytes()[..self.disk_name.len().min(NAME_MAX)];
        raw.name[..name.len()].copy_from_slice(name);
        raw.crc = raw.checksum(region).into();
        let flushed = region.stream(Purpose::Metadata, self.turn % 2 * COPY, raw.as_bytes());
        region.fence(flushed)
    }

    /// The newest epoch of the log whose transactions are in the frames, durably.
    pub(crate) fn retired(&self, region: &Region) -> u64 {
        region.load_u64(RETIRED)
    }

    /// An epoch is: its half of the log may be written over.
    pub(crate) fn retire(&self, region: &Region, epoch: u64, _in_frames: Durable) -> Durable {
        region.persist_u64(Purpose::Journal, RETIRED, epoch)
    }

    /// The moment that the disk is known to have, and the one that it may have already. They are the same but while it gets one.
    pub(crate) fn moments(&self, region: &Region) -> [u64; 2] {
        [MOMENTS, MOMENTS + 8].map(|at| region.load_u64(at))
    }

    /// From now on the disk may have another moment.
    pub(crate) fn begin_moment(&self, region: &Region, moment: u64) -> Durable {
        region.persist_u64(Purpose::Metadata, MOMENTS + 8, moment)
    }

    /// It has that one.
    pub(crate) fn end_moment(&self, region: &Region, moment: u64) -> Durable {
        region.persist_u64(Purpose::Metadata, MOMENTS, moment)
    }

    /// Where the entry of a frame is.
    pub(super) fn entry_at(&self, frame: u32) -> u64 {
        TABLE + u64::from(frame) * ENTRY
    }

    /// Where a frame is.
    pub(super) fn frame_at(&self, frame: u32) -> u64 {
        self.frames_at + u64::from(frame) * self.block
    }

    /// Takes the headers of both halves away: what is there may be of another disk, or of files.
    pub(crate) fn clear_log(&self, region: &Region) -> Durable {
        let clear = |half| region.stream_zero(Purpose::Journal, self.half_at(half), nvm::LINE);
        region.fence(clear(0).and(clear(1)))
    }

    /// Where a half of the log is.
    pub(super) fn half_at(&self, half: u64) -> u64 {
        self.log_at + half * self.half
    }
}

impl Raw {
    fn checksum(&self, region: &Region) -> u32 {
        crc32c(crc32c(!0, region.uuid().as_bytes()), &self.as_bytes()[16..])
    }

    fn decode(&self) -> Option<Area> {
        let name = self.name.get(..self.name_length.get() as usize)?;
        let (block, part) = (u64::from(self.block.get()), u64::from(self.part.get()));
        let sound =
            [1024, 2048, 4096].contains(&block) && part.is_power_of_two() && (64..=block).contains(&part);
        if !sound {
            return None;
        }
        Some(Area {
            turn: self.turn.get(),
            disk_uuid: self.disk_uuid,
            disk_bytes: self.disk_bytes.get(),
            attachment: self.attachment.get(),
            state: match self.state.get() {
                0 => State::Detached,
                1 => State::Attached,
                2 => State::Emptied,
                _ => return None,
            },
            block,
            part,
            frames: self.frames.get(),
            frames_at: self.frames_at.get(),
            log_at: self.log_at.get(),
            half: self.half.get(),
            disk_name: String::from_utf8(name.to_vec()).ok()?,
            superblock: Box::new(self.superblock),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvm::{OpenOptions, VolumeKind, Zone};

    fn region(bytes: u64) -> Region {
        let zone = Zone::anonymous(64 << 20, &OpenOptions::default()).unwrap();
        zone.create_volume("disk", VolumeKind::Ext, Some(bytes)).unwrap()
    }

    #[test]
    fn the_newer_copy_counts_and_a_torn_one_does_not() {
        let region = region(16 << 20);
        assert_eq!(Area::read(&region).unwrap(), None);
        let mut area = Area::lay_out(&region, 4096, 256, 0).unwrap();
        area.write(&region).ignore();
        area.state = State::Attached;
        area.disk_name = "/dev/some disk".into();
        area.write(&region).ignore();
        assert_eq!(Area::read(&region).unwrap().as_ref(), Some(&area));
        let mut next = area.clone();
        next.state = State::Emptied;
        next.write(&region).ignore();
        region.store(Purpose::Metadata, next.turn % 2 * COPY + 40, &[0xFF; 8]);
        assert_eq!(Area::read(&region).unwrap(), Some(area));
    }

    #[test]
    fn the_first_copy_cut_short_is_none_and_a_later_format_is_told() {
        let region = region(16 << 20);
        region.store(Purpose::Metadata, COPY, &MAGIC);
        assert_eq!(Area::read(&region).unwrap(), None);
        let mut area = Area::lay_out(&region, 4096, 256, 0).unwrap();
        area.write(&region).ignore();
        region.store(Purpose::Metadata, 0, &MAGIC);
        assert_eq!(Area::read(&region).unwrap(), Some(area));
        for copy in [0, COPY] {
            region.store(Purpose::Metadata, copy + 8, &7u32.to_le_bytes());
        }
        let error = Area::read(&region).unwrap_err();
        assert!(error.to_string().contains("version 7"), "{error}");
    }

    #[test]
    fn everything_has_its_place() {
        for (bytes, block) in [(8 << 20, 1024), (8 << 20, 4096), (32 << 20, 2048), (62 << 20, 4096)] {
            let region = region(bytes);
            for (fixed, percent) in [(bytes, 70), (bytes / 3, 60), (0, 45)] {
                let area = Area::lay_out(&region, block, 256, fixed).unwrap();
                assert!(area.fits(region.len()), "{area:?}");
                assert!(area.entry_at(area.frames as u32) <= area.frames_at);
                assert!(area.frame_at(area.frames as u32) <= area.log_at);
                assert!(area.half_at(2) <= region.len());
                assert!(area.frames * block > region.len() * percent / 100, "{} frames", area.frames);
                assert!(!area.fits(region.len() * 2) && !area.fits(region.len() / 2));
            }
        }
        let small = region(4 << 20);
        let error = Area::lay_out(&small, 4096, 256, 130 << 20).unwrap_err().to_string();
        assert!(error.contains("8 MiB at least") && error.contains("172 MiB hold all"), "{error}");
    }

    #[test]
    fn what_is_said_to_hold_all_does_and_is_not_much_more() {
        for block in [1024, 2048, 4096] {
            for fixed in (10..40).flat_map(|power| [1 << power, (1 << power) + 12345, 7 << (power - 2)]) {
                let bytes = bytes_for_all(block, fixed);
                let all = fixed.div_ceil(block);
                let room = |bytes: u64| {
                    let frames = Shares::of(bytes, block, fixed).frames;
                    frames - frames / LEFT_PART
                };
                assert!(room(bytes) >= all, "{bytes} for {fixed}");
                let less = bytes - bytes / 25 - (4 << 20).min(bytes);
                assert!(less < BYTES_MIN || room(less) < all, "{bytes} for {fixed}: {less} would do");
            }
        }
    }
}
