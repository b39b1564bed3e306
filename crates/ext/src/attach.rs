//! Attaching a disk to a volume of a zone, mounting it again, and detaching it (FSMAC III.B, III.D).
//!
//! **From attaching to detaching, disk and NVM together are the file system.** The area says which disk it has ([`Area`]), the disk whose it is
//! ([`Mark`]); both say the same number, which grows with every attachment, and the same **moment**, which grows with every mount and unmount: so a
//! copy of either from before is told. What is at rest in between:
//!
//! | area | disk | what it is |
//! |---|---|---|
//! | detached | no mark | two strangers |
//! | attached | no mark | attaching was cut short: nothing of the area counts |
//! | attached | its mark | attached |
//! | attached | another's mark, or of another attachment or moment | refused: somebody has changed the disk, or put it or the NVM back |
//! | emptied | its mark | detaching was cut short: all is on the disk, and the frames still say the same |
//! | emptied | no mark | detaching was cut short at its very end |

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use disk::Disk;
use nvm::{Mounted, Region};
use vfs::Statfs;
use zerocopy::IntoBytes;

use crate::core::Core;
use crate::error::Error;
use crate::features::Incompat;
use crate::fetch;
use crate::home::{self, Area, FoundLog, Frames, Home, Room, State};
use crate::journal;
use crate::kind::Kind;
use crate::mark;
use crate::options::{Fetch, Options};
use crate::replay::{Replayed, replay};
use crate::store::Store;
use crate::superblock::{self, Mark, RawSuperblock, Superblock};
use crate::volume::{Fetched, Volume, open_superblock, recover};

/// What a volume of a zone says of its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Where the disk was when it was attached, or last mounted to be written.
    pub disk: String,
    /// The UUID of its file system.
    pub uuid: [u8; 16],
    /// Its size, bytes.
    pub disk_bytes: u64,
    /// Which attachment of the volume it is.
    pub number: u64,
    /// Bytes of a block, and blocks that the area has room for.
    pub block_bytes: u64,
    /// Blocks of metadata that the NVM has room for.
    pub frames: u64,
    /// Those that it held at the last checkpoint.
    pub frames_used: u64,
    /// Of these, those of which the disk has other bytes.
    pub frames_dirty: u64,
    /// Of these, blocks of files that the disk refuses.
    pub blocks_refused: u64,
    /// Bytes of the log, both halves.
    pub log_bytes: u64,
    /// Bytes of the disk's metadata whose place is fixed, with all inodes in use: superblock, descriptors, bitmaps, inode tables.
    pub fixed_bytes: u64,
    /// Bytes of NVM with which all of that has frames. With less, what is not asked for lately goes to the disk.
    pub bytes_for_all: u64,
}

impl Attachment {
    /// Whether all metadata whose place is fixed has room in NVM, beside what comes when it is touched.
    pub fn has_room_for_all(&self) -> bool {
        (self.frames - self.frames / home::LEFT_PART) * self.block_bytes >= self.fixed_bytes
    }
}

/// Which disk a volume has; nothing if none.
pub fn attachment(region: &Region) -> Result<Option<Attachment>, Error> {
    Ok(Area::read(region)?.filter(|area| area.state != State::Detached).map(|area| {
        let listed = Frames::listed(region, &area);
        let fixed_bytes = RawSuperblock::of_bytes(&area.superblock).fixed_bytes().unwrap_or(0);
        Attachment {
            fixed_bytes,
            bytes_for_all: home::bytes_for_all(area.block, fixed_bytes),
            disk: area.disk_name,
            uuid: area.disk_uuid,
            disk_bytes: area.disk_bytes,
            number: area.attachment,
            block_bytes: area.block,
            frames: area.frames,
            frames_used: listed.used,
            frames_dirty: listed.dirty,
            blocks_refused: listed.refused,
            log_bytes: 2 * area.half,
        }
    }))
}

/// What is damaged in the log of a volume that nobody has open, in words, so that it is not mounted ([`Error::LogDamaged`]). Nothing is changed.
///
/// # Errors
/// [`Error::Area`], [`Error::AreaVersion`]; NVM that cannot be read.
pub fn log_damage(region: &Region) -> Result<Option<String>, Error> {
    let area = Area::read(region)?.filter(|area| area.state != State::Detached);
    area.map_or(Ok(None), |area| Ok(find_log(region, &area)?.damage()))
}

fn find_log<'a>(region: &'a Region, area: &'a Area) -> Result<FoundLog<'a>, Error> {
    let log = FoundLog::of(region, area);
    // What cannot be read is neither empty nor damaged.
    region.check().map_err(|error| vfs::Error::Io(error.to_string()))?;
    Ok(log)
}

/// Nobody else in this process opens the volume until that is dropped: two would change one area each in their own way.
fn claim(region: &Region) -> Result<Mounted, Error> {
    region.claim().ok_or_else(|| Error::Mounted { volume: region.name().into() })
}

/// The same for who stores to it: a store to a region of a zone that is open read-only panics.
fn claim_to_write(region: &Region) -> Result<Mounted, Error> {
    if region.is_read_only() {
        return Err(Error::ReadOnlyZone { volume: region.name().into() });
    }
    claim(region)
}

/// What an attached disk has.
#[derive(Clone, Copy, Debug)]
pub struct AtRest {
    /// How much of it is used.
    pub space: Statfs,
    /// Errors were found in it.
    pub has_errors: bool,
}

/// What the disk of a volume has that nobody has open: as of its newest checkpoint, which unmounting makes. Nothing is changed.
///
/// # Errors
/// [`Error::Mounted`], [`Error::NotAttached`], [`Error::OtherDisk`]; what cannot be read.
pub fn at_rest(region: &Region, disk: &Arc<Disk>) -> Result<AtRest, Error> {
    let _mounted = claim(region)?;
    let area = Area::read(region)?.filter(|area| area.state != State::Detached);
    let Some(area) = area else { return Err(Error::NotAttached { volume: region.name().into() }) };
    check_disk(&area, region, disk)?;
    let frames = Arc::new(Frames::open(region.clone(), area.clone(), disk.clone())?);
    let superblock = superblock_of(&frames, &area, region, disk)?;
    let options = Options::default();
    let mut store = Store::new(disk.clone(), superblock.block, superblock.inode_bytes, options.cache_bytes);
    store.look_through(frames);
    let has_errors = superblock.has_errors;
    Ok(AtRest { space: Volume::to_read(superblock, store, &options).space()?, has_errors })
}

/// Whether a disk says that its newest metadata is in NVM.
///
/// # Errors
/// A disk that cannot be read, or has no ext.
pub fn is_marked(disk: &Disk) -> Result<bool, Error> {
    Ok(mark::read(disk)?.is_some())
}

/// Whether nothing of a mark is on a disk. A superblock of which one sector is newer than the other may have half of one.
///
/// # Errors
/// A disk that cannot be read, or has no ext.
pub fn is_plain(disk: &Disk) -> Result<bool, Error> {
    let raw = superblock::load(disk)?;
    Ok(raw.mark().is_none() && raw.is_intact())
}

/// Takes the mark from a disk whose NVM is lost. What was only there is lost with it: the metadata changed since the disk was attached, and
/// synced writes that had not been drained. Run e2fsck on it then.
pub fn force_from_disk(disk: &Disk) -> Result<bool, Error> {
    if !is_marked(disk)? {
        return Ok(false);
    }
    mark::remove(disk)?;
    Ok(true)
}

/// Attaches the file system on `disk` to the volume of `region`, which has none: its journal is replayed, the area made, the disk marked. Gives
/// the bytes of metadata whose place is fixed and that is in use.
///
/// # Errors
/// What keeps the file system from being written, a volume that is in use or has a disk, a disk that has a volume. The disk is unchanged then but for
/// its journal.
pub fn attach(region: &Region, disk: &Arc<Disk>) -> Result<u64, Error> {
    attach_within(region, disk, None)
}

/// Whether [`attach`] would take the disk for `volume`, which has to be made first, of so many bytes. Nothing is changed.
///
/// # Errors
/// What keeps the file system from being written, a disk that has a volume, too little NVM.
pub fn check_attachable(disk: &Arc<Disk>, volume: &str, bytes: u64) -> Result<(), Error> {
    if disk.is_read_only() {
        return Err(disk::Error::ReadOnly { disk: disk.name().into() }.into());
    }
    let mut found = open_superblock(disk)?;
    found.features.check_writable(disk.name())?;
    if found.features.incompat.contains(Incompat::RECOVER) {
        found = journal::read(disk, &found)?.1;
    }
    if found.has_errors {
        return Err(Error::HasErrors { disk: disk.name().into() });
    }
    if !found.clean {
        return Err(Error::NotClean { disk: disk.name().into() });
    }
    home::check_name(disk)?;
    home::check_bytes(volume, bytes, found.block, found.fixed_bytes())
}

/// The same with less room than there is, for who wants to see what happens when that is used up.
///
/// # Errors
/// As [`attach`].
pub fn attach_within(region: &Region, disk: &Arc<Disk>, room: Option<Room>) -> Result<u64, Error> {
    let _mounted = claim_to_write(region)?;
    let old = Area::read(region)?;
    if let Some(area) = &old
        && area.state != State::Detached
    {
        if !is_cut_short(area, region, disk)? {
            return Err(Error::HasDisk { volume: region.name().into(), disk: area.disk_name.clone() });
        }
        // Of the disk's superblock one sector may be there and the other not. One that is whole may be newer than ours.
        if !superblock::load(disk)?.is_intact() {
            mark::write_superblock(disk, &RawSuperblock::of_bytes(&area.superblock))?;
            disk.flush()?;
        }
    }
    if let Some(mark) = mark::read(disk)? {
        return Err(Error::Attached { disk: disk.name().into(), volume: mark.volume });
    }
    if disk.is_read_only() {
        return Err(disk::Error::ReadOnly { disk: disk.name().into() }.into());
    }
    let found = open_superblock(disk)?;
    found.features.check_writable(disk.name())?;
    home::check_name(disk)?;
    recover(disk)?;
    let found = open_superblock(disk)?;
    if !found.clean {
        return Err(Error::NotClean { disk: disk.name().into() });
    }
    let mut area = Area::lay_out(region, found.block, found.part(), found.fixed_bytes())?;
    if let Some(room) = room {
        area.confine(room);
    }
    area.attachment = 1;
    let mut retired = 0;
    if let Some(old) = &old {
        area.follow(old);
        // It may be damaged, and does not count any more.
        retired = old.retired(region);
    }
    area.disk_uuid = found.uuid;
    area.disk_bytes = found.blocks * found.block;
    area.disk_name = disk.name().into();
    let mut raw = superblock::load(disk)?;
    // Of one whose mark went only half.
    raw.set_owner(None);
    area.superblock.copy_from_slice(raw.as_bytes());
    for write in [Area::begin_moment, Area::end_moment] {
        write(&area, region, FIRST_MOMENT).ignore();
    }
    // An empty log and an empty table first: the state makes them count.
    let frames = Frames::empty(region.clone(), area.clone(), disk.clone());
    area.clear_log(region).ignore();
    area.retire(region, home::retired_behind(retired), frames.checkpoint()).ignore();
    area.state = State::Attached;
    area.write(region).ignore();
    let store = Store::new(disk.clone(), found.block, found.inode_bytes, Options::default().cache_bytes);
    let in_use = fetch::bytes_in_use(&Core::of(found, store));
    mark::write(disk, raw, mark_of(&area, region, FIRST_MOMENT))?;
    Ok(in_use)
}

const FIRST_MOMENT: u64 = 1;

fn mark_of(area: &Area, region: &Region, moment: u64) -> Mark {
    Mark { volume: *region.uuid().as_bytes(), attachment: area.attachment, moment }
}

/// The next moment begins, so far ahead of the last, on the disk (whose superblock is `raw`) and in NVM: a copy of one of them from before is told from now on.
/// **NVM knows what the disk has**: it says first which moment that is to get, and when that is durable that it has it. One that was cut short
/// in between goes on.
fn begin_moment(
    area: &Area,
    region: &Region,
    disk: &Disk,
    raw: RawSuperblock,
    ahead: u64,
) -> Result<(), Error> {
    let [has, mut gets] = area.moments(region);
    if has == gets {
        gets = has.saturating_add(ahead);
        area.begin_moment(region, gets).ignore();
    }
    mark::write(disk, raw, mark_of(area, region, gets))?;
    area.end_moment(region, gets).ignore();
    Ok(())
}

/// Whether an area's disk was never marked, or is no longer: nothing that counts is in it.
fn is_cut_short(area: &Area, region: &Region, disk: &Disk) -> Result<bool, Error> {
    let found = superblock::load(disk)?;
    Ok(match area.state {
        _ if found.uuid() != area.disk_uuid || found.mark().is_some() => false,
        State::Emptied => found.is_intact(),
        _ => is_untouched(area, region),
    })
}

fn is_untouched(area: &Area, region: &Region) -> bool {
    find_log(region, area).is_ok_and(|log| log.is_empty()) && Frames::listed(region, area).used == 0
}

impl Volume {
    /// Opens the file system whose metadata is in `region` and whose data is on `disk`: what was committed since the last checkpoint is
    /// applied again (in time that follows that alone), and removed files that were open are reclaimed.
    ///
    /// # Errors
    /// [`Error::Mounted`], [`Error::NotAttached`], [`Error::OtherDisk`]; what cannot be read.
    pub fn mount(region: &Region, disk: Arc<Disk>, options: &Options) -> Result<Volume, Error> {
        let started = Instant::now();
        let mounted = claim_to_write(region)?;
        let area = Area::read(region)?.filter(|area| area.state != State::Detached);
        let Some(mut area) = area else { return Err(Error::NotAttached { volume: region.name().into() }) };
        check_disk(&area, region, &disk)?;
        let laid_out = area.clone();
        let log = find_log(region, &laid_out)?;
        if let Some(what) = log.damage().filter(|_| !options.past_damage) {
            return Err(Error::LogDamaged { volume: region.name().into(), what });
        }
        if area.disk_name != disk.name() && !disk.is_read_only() && home::check_name(&disk).is_ok() {
            area.disk_name = disk.name().into();
            area.write(region).ignore();
        }
        let raw = superblock::load(&disk)?;
        if area.state == State::Emptied || !raw.is_intact() {
            // One of its sectors may be older than the other.
            begin_moment(&area, region, &disk, RawSuperblock::of_bytes(&area.superblock), 1)?;
            area.state = State::Attached;
            area.write(region).ignore();
        } else if !disk.is_read_only() {
            // A disk that refuses its superblock is used as it is: NVM knows both moments, and goes on with it the next time.
            drop(begin_moment(&area, region, &disk, raw, 1));
        }
        let frames = Arc::new(Frames::open(region.clone(), area.clone(), disk.clone())?);
        let mut replayed = replay(region, &area, &log, &frames, &disk)?;
        let superblock = superblock_of(&frames, &area, region, &disk)?;
        let next = log.next();
        let home = Home::begin(region.clone(), mounted, area.clone(), frames.clone(), next);
        let mut volume = Volume::with_home(disk, superblock, home, next, options)?;
        volume.unmark(&area, &frames)?;
        if let Some(what) = log.damage() {
            volume.core.met.note(&format!("the log has damage: {what}"));
        }
        if options.fetch == Fetch::Eager {
            volume.fetched = volume.fetch();
        }
        replayed.orphans = volume.reclaim_orphans()?;
        replayed.duration = started.elapsed();
        volume.replayed = replayed;
        Ok(volume)
    }

    /// What opening it found in the log.
    pub fn replayed(&self) -> Replayed {
        self.replayed
    }

    /// What opening it fetched to NVM.
    pub fn fetched(&self) -> Fetched {
        self.fetched
    }

    /// Ends its use: all is durable, the metadata in NVM, from where the next mount has it at once. The disk stays attached.
    ///
    /// # Errors
    /// What the disk says: then what it did not take is in the log, but for bytes that were never synced ([`crate::Stats::pages_unsaved`]), which
    /// end with the process. What could be made durable is.
    pub fn unmount(&self) -> Result<(), Error> {
        let Some(home) = &self.home else { return Ok(()) };
        let synced = self.sync_and_note_damage();
        // What keeps one file from being durable keeps nothing else in the log.
        if let Err(error) = home.checkpoint(self) {
            return synced.and(Err(error.into()));
        }
        // What was copied while it was in use is not what it is now.
        let disk = self.disk();
        if !disk.is_read_only() {
            let raw = superblock::load(disk)?;
            // As above. Copies of both that were used apart are at the same moment only if as many transactions were committed.
            drop(begin_moment(&home.area.lock(), home.region(), disk, raw, 1 + home.progress().0));
        }
        synced
    }

    /// Makes everything durable, and with it that damage was met, on the way there, too.
    fn sync_and_note_damage(&self) -> Result<(), Error> {
        let synced = self.syncfs_all();
        self.note_damage();
        let noted = self.commit_all();
        synced?;
        Ok(noted?)
    }

    /// The superblock's block, as it comes from the disk, has the mark, which is not for those who read it here. From now on it has a
    /// frame, which does not leave the NVM before the disk is detached.
    fn unmark(&self, area: &Area, frames: &Frames) -> Result<(), Error> {
        let number = superblock::AT / area.block;
        let is_framed = frames.holds(number);
        let block = self.core.store.read(Kind::Superblock, number, |_| Ok(()))?;
        if !is_framed || RawSuperblock::of_block(&block, area.block).mark().is_some() {
            let raw = || RawSuperblock::of_bytes(&area.superblock);
            self.with_log(|| self.change(|core| core.change_superblock(|there| *there = raw())))?;
            // Before a checkpoint finds the frame as it came from the disk.
            self.commit_all()?;
        }
        Ok(())
    }

    /// Gives the disk back: everything goes to it, then its mark goes. It is a plain ext file system again, unmounted cleanly.
    ///
    /// # Errors
    /// A file that is open ([`vfs::Error::Busy`]); what the disk says. Cut short anywhere, mounting or detaching goes on where it was.
    pub fn detach(&self) -> Result<(), Error> {
        let home = self.home.as_ref().ok_or(vfs::Error::ReadOnly)?;
        if self.has_handles() {
            return Err(vfs::Error::Busy.into());
        }
        if let Err(error) = self.finish_rest() {
            // A disk that is away takes nothing back. One of which a place cannot be read is given back, for e2fsck.
            if superblock::load(self.disk()).is_err() {
                return Err(error.into());
            }
            self.core.met.note(&format!("an inode could not be removed or cut: {error}"));
        }
        self.sync_and_note_damage()?;
        // A damaged descriptor keeps nothing else from going back: who mends it counts what is free.
        let free = self.reading(|| self.free());
        self.note_damage();
        let is_clean = |core: &Core| {
            core.change_superblock(|raw| {
                if let Ok((blocks, inodes)) = free {
                    raw.set_free(blocks, inodes);
                }
                raw.set_clean(SystemTime::now());
            })
        };
        self.with_log(|| self.change(is_clean))?;
        self.commit_all()?;
        home.checkpoint(self)?;
        self.offer_all_refused()?;
        home.frames.write_all_to_disk()?;
        let disk = self.disk();
        let mut area = home.area.lock();
        let mut block = vec![0; area.block as usize];
        home.frames.current(superblock::AT / area.block, &mut block)?;
        let raw = RawSuperblock::of_block(&block, area.block);
        area.superblock.copy_from_slice(raw.as_bytes());
        area.state = State::Emptied;
        area.write(home.region()).ignore();
        mark::write_superblock(disk, &raw)?;
        disk.flush()?;
        area.state = State::Detached;
        area.write(home.region()).ignore();
        Ok(())
    }
}

fn check_disk(area: &Area, region: &Region, disk: &Disk) -> Result<(), Error> {
    let other = |given_up: bool, why: String| {
        let (disk, volume) = (disk.name().into(), region.name().into());
        Error::OtherDisk { disk, volume, why, given_up }
    };
    let found = superblock::load(disk)?;
    let uuid = uuid::Uuid::from_bytes;
    if found.uuid() != area.disk_uuid {
        return Err(other(
            false,
            format!("its UUID is {}, not {}", uuid(found.uuid()), uuid(area.disk_uuid)),
        ));
    }
    if disk.bytes() < area.disk_bytes {
        return Err(other(false, format!("it has {} bytes, not {}", disk.bytes(), area.disk_bytes)));
    }
    match found.mark() {
        // The sector that says whose it is has been written, and not the one that has the feature; or the other way round.
        Some(mark) if area.state == State::Emptied && mark == Mark::NOBODY => Ok(()),
        None if area.state == State::Emptied && !is_cut_short(area, region, disk)? => Ok(()),
        Some(mark) if mark.volume != *region.uuid().as_bytes() => {
            Err(other(true, format!("it is attached to another volume, {}", uuid(mark.volume))))
        }
        Some(mark) => {
            let moments = area.moments(region);
            let (disk, volume) = (disk.name().into(), region.name().into());
            match mark.attachment.cmp(&area.attachment).then(mark.moment.cmp(&moments[0])) {
                _ if mark.attachment == area.attachment && moments.contains(&mark.moment) => Ok(()),
                Ordering::Less => Err(Error::OlderDisk { disk, volume }),
                _ => Err(Error::OlderNvm { disk, volume }),
            }
        }
        None if is_cut_short(area, region, disk)? => Err(Error::NotAttached { volume: region.name().into() }),
        None => Err(other(true, "somebody has taken its mark away, and may have changed it".into())),
    }?;
    // Before a block of the log goes anywhere. One of which a sector is older than the other is not sound, and says the same as the area's copy.
    for raw in [&found, &RawSuperblock::of_bytes(&area.superblock)] {
        if let Ok(superblock) = raw.verify_numbers(disk) {
            check_units(area, region, &superblock)?;
        }
    }
    Ok(())
}

/// The superblock as the newest metadata has it.
fn superblock_of(frames: &Frames, area: &Area, region: &Region, disk: &Disk) -> Result<Superblock, Error> {
    let number = superblock::AT / area.block;
    let mut block = vec![0; area.block as usize];
    let raw = match frames.holds(number) {
        true => {
            frames.current(number, &mut block)?;
            RawSuperblock::of_block(&block, area.block)
        }
        false => RawSuperblock::of_bytes(&area.superblock),
    };
    let superblock = raw.verify(disk)?;
    check_units(area, region, &superblock)?;
    Ok(superblock)
}

/// An area counts in its disk's blocks and sub-blocks.
fn check_units(area: &Area, region: &Region, superblock: &Superblock) -> Result<(), Error> {
    let (block, part) = (superblock.block, superblock.part());
    if (area.block, area.part) == (block, part) {
        return Ok(());
    }
    let what = format!(
        "it has blocks of {} bytes and sub-blocks of {}, and the disk's superblock says {block} and {part}",
        area.block, area.part
    );
    Err(Error::Area { volume: region.name().into(), what })
}

#[cfg(test)]
mod tests;
