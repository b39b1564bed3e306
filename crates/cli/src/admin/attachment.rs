//! Disks whose metadata is in NVM: giving a volume one, finding and opening it, making it a plain disk again.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use disk::{Disk, OpenOptions, Source};
use nvm::{Region, VolumeKind, Zone};
use serde::{Deserialize, Serialize};

use crate::failure::{Explain, Failure};
use crate::size;

/// What is told of a disk that was attached, bytes.
#[derive(Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) frame_bytes: u64,
    pub(crate) bytes: u64,
    pub(crate) lacks: Option<Lacks>,
}

/// Of one whose metadata NVM has no room for.
#[derive(Serialize, Deserialize)]
pub(crate) struct Lacks {
    pub(crate) in_use_bytes: u64,
    pub(crate) fixed_bytes: u64,
    pub(crate) bytes_for_all: u64,
}

/// Attaches a disk to a volume of an open zone.
pub(crate) fn attach(zone: &Zone, volume: &str, disk: &str, bytes: Option<u64>) -> Result<Told, Failure> {
    attach_disk(zone, volume, &open_disk(disk)?, bytes)
}

fn attach_disk(zone: &Zone, volume: &str, disk: &Arc<Disk>, bytes: Option<u64>) -> Result<Told, Failure> {
    if zone.volumes().iter().all(|entry| entry.name != volume) {
        check_new(zone, volume, disk, bytes)?;
    }
    let (region, is_new) = volume_for(zone, volume, bytes)?;
    let in_use_bytes = match ext::attach(&region, disk).doing("attaching the disk") {
        Err(failure) if is_new => return Err(take_back(zone, region, disk, failure)),
        attached => attached?,
    };
    let attachment = of(&region)?;
    let lacks = (!attachment.has_room_for_all()).then_some(Lacks {
        in_use_bytes,
        fixed_bytes: attachment.fixed_bytes,
        bytes_for_all: attachment.bytes_for_all,
    });
    Ok(Told { frame_bytes: attachment.frames * attachment.block_bytes, bytes: region.len(), lacks })
}

/// Removes the volume that was made for a disk which could not be attached. **Unless the disk has the mark, or may have it**: that goes there last, and
/// from a disk that has it only this volume takes it away without losing anything.
fn take_back(zone: &Zone, region: Region, disk: &Disk, failure: Failure) -> Failure {
    let (path, name) = (zone.info().path, region.name().to_string());
    let path = path.display();
    let has = match (ext::is_marked(disk), ext::is_plain(disk)) {
        (Ok(true), _) => "has",
        (Ok(false), Ok(false)) | (Err(ext::Error::Disk(_)), _) | (_, Err(ext::Error::Disk(_))) => "may have",
        // What is no ext has no mark.
        _ => {
            drop(region);
            return match zone.remove_volume(&name) {
                Ok(()) => failure,
                Err(error) => failure
                    .leaving(format!("volume '{name}', which was made for it, could not be removed: {error}"))
                    .remedy(format!("amberfs zone remove-volume {path} {name}")),
            };
        }
    };
    failure
        .leaving(format!("the disk {has} the mark of volume '{name}', which was made for it and stays"))
        .remedy(format!(
            "amberfs detach {path}:{name}, which makes it a plain disk again; if that says that there is no disk, attach it again"
        ))
}

/// A volume is not made for what cannot be attached.
fn check_new(zone: &Zone, volume: &str, disk: &Arc<Disk>, bytes: Option<u64>) -> Result<(), Failure> {
    let room = zone.check_volume(volume, VolumeKind::Ext, bytes);
    let room = room.doing("making the volume").leaving("nothing was changed");
    // For a disk that is not to be attached at all, who is told to make room would make it for nothing.
    let enough = room.as_ref().map_or(u64::MAX, |room| *room);
    let checked = match ext::check_attachable(disk, volume, enough) {
        Err(error @ ext::Error::AreaTooSmall { .. }) if bytes.is_none() => {
            let (room, free) = (size::human(enough), size::human(zone.info().free_bytes));
            Err(Failure::from(error).remedy(format!(
                "make room in the zone: a volume is of one piece, and its largest free piece has {room} of {free} that are free"
            )))
        }
        checked => checked.map_err(Failure::from),
    };
    checked.doing("attaching the disk")?;
    room.map(drop)
}

/// The volume of this name, made if it is not there.
fn volume_for(zone: &Zone, name: &str, bytes: Option<u64>) -> Result<(Region, bool), Failure> {
    let Some(entry) = zone.volumes().into_iter().find(|entry| entry.name == name) else {
        let made = zone.create_volume(name, VolumeKind::Ext, bytes);
        return Ok((made.doing("making the volume").leaving("nothing was changed")?, true));
    };
    if entry.kind != VolumeKind::Ext {
        return Err(Failure::new(format!(
            "volume '{name}' is of kind {}, and has its files in NVM",
            entry.kind
        ))
        .leaving("nothing was changed")
        .remedy("choose another name: a volume of that name is made"));
    }
    Ok((zone.volume(name).doing("opening the volume").leaving("nothing was changed")?, false))
}

/// What is told of a disk that was detached.
#[derive(Serialize, Deserialize)]
pub(crate) struct Detached {
    pub(crate) disk: String,
    pub(crate) has_errors: bool,
}

/// Detaches the disk of a volume of an open zone, which is where it was or where it is now.
pub(crate) fn detach(zone: &Zone, volume: &str, disk: Option<&str>) -> Result<Detached, Failure> {
    let region = zone.volume(volume).doing("opening the volume").leaving("nothing was changed")?;
    if region.kind() != VolumeKind::Ext {
        return Err(Failure::new(format!("volume '{volume}' is of kind {}, and has no disk", region.kind()))
            .leaving("nothing was changed"));
    }
    let volume = open_volume(&region, disk, &ext::Options::default())?;
    volume
        .detach()
        .map_err(|error| match error {
            ext::Error::Disk(_) | ext::Error::Volume(vfs::Error::Io(_)) => Failure::from(error)
                .remedy(format!("detach it again when the disk is back; {}", if_lost(&region))),
            other => Failure::from(other),
        })
        .doing("writing to the disk what is in NVM")
        .leaving("it is attached still; nothing is lost")?;
    Ok(Detached { disk: volume.disk().name().to_string(), has_errors: volume.has_errors()? })
}

/// What is left to do where a disk does not come back: without it there is nothing to detach.
pub(crate) fn if_lost(region: &Region) -> String {
    let (zone, volume) = (region.zone().info().path, region.name());
    let zone = zone.display();
    format!("if it is lost, 'amberfs zone remove-volume {zone} {volume} --force' gives up what NVM has of it")
}

/// Which disk the volume has.
pub(crate) fn of(region: &Region) -> Result<ext::Attachment, Failure> {
    let attachment = ext::attachment(region).doing("looking which disk the volume has")?;
    attachment.ok_or_else(|| {
        Failure::new(format!("volume '{}' has no disk", region.name()))
            .leaving("nothing was changed")
            .remedy(format!("amberfs attach {}:{} DISK", region.zone().info().path.display(), region.name()))
    })
}

/// Opens a disk that a user names. Its own name is one that holds from any directory: an area in NVM keeps it, and servers have another
/// working directory than who attaches.
pub(crate) fn open_disk(name: &str) -> Result<Arc<Disk>, Failure> {
    open_disk_with(name, OpenOptions::default())
}

/// The same to be looked at, by who does not wait for long.
pub(crate) fn look_at_disk(name: &str, patience: Duration) -> Result<Arc<Disk>, Failure> {
    open_disk_with(name, OpenOptions { read_only: true, patience, ..OpenOptions::default() })
}

fn open_disk_with(name: &str, options: OpenOptions) -> Result<Arc<Disk>, Failure> {
    Ok(Arc::new(open_disk_alone(name, options)?))
}

fn open_disk_alone(name: &str, options: OpenOptions) -> Result<Disk, Failure> {
    let source: Source = name.parse().map_err(Failure::new).doing("reading the disk's name")?;
    let here = std::env::current_dir().unwrap_or_default();
    let source = source.seen_from(&here).map_err(Failure::new).doing("finding the disk")?;
    let disk = Disk::open(&source, &options).map_err(|error| {
        let no_disk =
            matches!(&error, disk::Error::Open { source, .. } if source.kind() == ErrorKind::NotFound);
        Failure { no_disk, ..error.into() }
    });
    disk.doing("opening the disk").leaving("nothing was changed")
}

/// Opens the volume with its disk, where it was or where it is now. Nothing happens in the background.
pub(crate) fn open_volume(
    region: &Region,
    now_at: Option<&str>,
    how: &ext::Options,
) -> Result<ext::Volume, Failure> {
    open_volume_with(region, now_at, how, open_disk)
}

/// The same of a copy in memory of what NVM has: what is written to the disk stays in memory, too.
pub(crate) fn open_scratch(scratch: &Region) -> Result<ext::Volume, Failure> {
    open_volume_with(scratch, None, &ext::Options::default(), |name| {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        Ok(Arc::new(open_disk_alone(name, options)?.scratch()))
    })
}

fn open_volume_with(
    region: &Region,
    now_at: Option<&str>,
    how: &ext::Options,
    open_disk: impl Fn(&str) -> Result<Arc<Disk>, Failure>,
) -> Result<ext::Volume, Failure> {
    let attachment = of(region)?;
    let elsewhere = "if the disk is elsewhere now, say where: -o disk=DISK, or --disk DISK to detach it";
    let or_elsewhere = |failure: Failure| match now_at {
        Some(_) => failure,
        None => failure.remedy(format!("{elsewhere}; {}", if_lost(region))),
    };
    let disk = open_disk(now_at.unwrap_or(&attachment.disk)).map_err(or_elsewhere)?;
    let opened = ext::Volume::mount(region, disk, how).map_err(|error| match (&error, now_at) {
        (ext::Error::NotExt { .. }, _) => or_elsewhere(error.into()),
        // Which says itself what is left if it is lost.
        (ext::Error::OtherDisk { .. }, None) => Failure::from(error).remedy(elsewhere),
        _ => error.into(),
    });
    opened.doing("opening the volume with its disk")
}

#[cfg(test)]
mod tests;
