//! `amberfs attach` and `amberfs detach`: an ext2, ext3 or ext4 disk gets its metadata in NVM, and becomes a plain disk again.

use disk::Source;
use nvm::{Region, VolumeKind, Zone};
use serde::{Deserialize, Serialize};

use crate::attached::{attachment, open_disk, open_volume};
use crate::command_line::{Attach, Detach};
use crate::control::{Client, Request};
use crate::failure::{Explain, Failure};
use crate::place::VolumePlace;
use crate::zone_access::{Access, reach};
use crate::{report, size};

pub(crate) fn attach(arguments: &Attach) -> Result<(), Failure> {
    if let Some(name) = &arguments.force_from_disk {
        return force_from_disk(name);
    }
    let (Some(place), Some(name)) = (&arguments.place, &arguments.disk) else {
        return Err(Failure::new("a volume and a disk belong there: amberfs attach ZONE:VOLUME DISK"));
    };
    let told = match reach(&place.zone, true)? {
        Access::Open(zone) => attach_to(&zone, &place.volume, name, arguments.size)?,
        Access::Served(mut client) => {
            refuse_mounted(&client, place)?;
            // The server has another working directory.
            let source: Source = name.parse().map_err(Failure::new).doing("reading the disk's name")?;
            let disk = source.seen_from(&std::env::current_dir().unwrap_or_default())?.to_string();
            let request = Request::Attach { volume: place.volume.clone(), disk, bytes: arguments.size };
            serde_json::from_value(client.ask(&request)?).map_err(Failure::new)?
        }
    };
    report::print_text(&format!(
        "{place}: {name} is attached: {} of NVM for its metadata, {} in all. Only 'amberfs mount {place}' may use the disk \
         now, until 'amberfs detach {place}'\n",
        size::human(told.frame_bytes),
        size::human(told.bytes),
    ))?;
    let Some(lacks) = told.lacks else { return Ok(()) };
    report::print_text(&format!(
        "{place}: the disk's superblock, descriptors, bitmaps and inodes are {} now, and {} with all inodes in use: what NVM has no room for \
         goes to the disk, and comes back when it is touched. {} of NVM have room for all of it\n",
        size::human(lacks.in_use_bytes),
        size::human(lacks.fixed_bytes),
        size::human(lacks.bytes_for_all),
    ))
}

/// What is told of a disk that was attached, bytes.
#[derive(Serialize, Deserialize)]
pub(crate) struct Told {
    frame_bytes: u64,
    bytes: u64,
    lacks: Option<Lacks>,
}

/// Of one whose metadata NVM has no room for.
#[derive(Serialize, Deserialize)]
struct Lacks {
    in_use_bytes: u64,
    fixed_bytes: u64,
    bytes_for_all: u64,
}

/// Attaches a disk to a volume of an open zone.
pub(crate) fn attach_to(zone: &Zone, volume: &str, disk: &str, bytes: Option<u64>) -> Result<Told, Failure> {
    let disk = open_disk(disk)?;
    // A volume is not made for what cannot be attached.
    if zone.volumes().iter().all(|entry| entry.name != volume) {
        let bytes = bytes.unwrap_or(zone.info().free_bytes);
        ext::check_attachable(&disk, volume, bytes).doing("attaching the disk")?;
    }
    let (region, is_new) = volume_for(zone, volume, bytes)?;
    let attached = ext::attach(&region, &disk).doing("attaching the disk");
    if attached.is_err() && is_new {
        drop(region);
        zone.remove_volume(volume).doing("removing the volume made for it")?;
        return Err(attached.map(drop).unwrap_err());
    }
    let in_use_bytes = attached?;
    let attachment = attachment(&region)?;
    let lacks = (!attachment.has_room_for_all()).then_some(Lacks {
        in_use_bytes,
        fixed_bytes: attachment.fixed_bytes,
        bytes_for_all: attachment.bytes_for_all,
    });
    Ok(Told { frame_bytes: attachment.frames * attachment.block_bytes, bytes: region.len(), lacks })
}

fn refuse_mounted(client: &Client, place: &VolumePlace) -> Result<(), Failure> {
    match client.hello.mounts.iter().find(|(volume, _)| *volume == place.volume) {
        None => Ok(()),
        Some((_, dir)) => {
            let (pid, dir) = (client.hello.pid, dir.display());
            Err(Failure::new(format!("{place} is in use: process {pid} serves it on {dir}"))
                .leaving("nothing was changed")
                .remedy(format!("amberfs umount {dir}")))
        }
    }
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

fn force_from_disk(name: &str) -> Result<(), Failure> {
    let disk = open_disk(name)?;
    let forced = ext::force_from_disk(&disk).doing("taking the disk's mark away")?;
    report::print_text(&match forced {
        true => format!(
            "{name}: the mark is gone. What was in NVM only is lost: metadata changed since it was attached, and synced \
             writes that were not on the disk yet. Before anything else: e2fsck -f {name}\n"
        ),
        false => format!("{name}: it has no mark; nothing was changed\n"),
    })
}

pub(crate) fn detach(arguments: &Detach) -> Result<(), Failure> {
    let place = &arguments.place;
    let name = match reach(&place.zone, true)? {
        Access::Open(zone) => detach_from(&zone, &place.volume, arguments.disk.as_deref())?,
        Access::Served(mut client) => {
            refuse_mounted(&client, place)?;
            let disk = arguments.disk.as_ref().map(|disk| {
                let source: Source = disk.parse().map_err(Failure::new).doing("reading the disk's name")?;
                let source = source.seen_from(&std::env::current_dir().unwrap_or_default());
                source.map(|source| source.to_string()).map_err(Failure::from)
            });
            let request = Request::Detach { volume: place.volume.clone(), disk: disk.transpose()? };
            serde_json::from_value(client.ask(&request)?).map_err(Failure::new)?
        }
    };
    report::print_text(&format!(
        "{place}: {name} is a plain ext disk again; the volume is kept for the next one\n"
    ))
}

/// Detaches the disk of a volume of an open zone, which is where it was or where it is now; gives its name.
pub(crate) fn detach_from(zone: &Zone, volume: &str, disk: Option<&str>) -> Result<String, Failure> {
    let region = zone.volume(volume).doing("opening the volume").leaving("nothing was changed")?;
    if region.kind() != VolumeKind::Ext {
        return Err(Failure::new(format!("volume '{volume}' is of kind {}, and has no disk", region.kind()))
            .leaving("nothing was changed"));
    }
    let volume = open_volume(&region, disk, &ext::Options::default())?;
    volume
        .detach()
        .doing("writing to the disk what is in NVM")
        .leaving("it is attached still; nothing is lost")?;
    Ok(volume.disk().name().to_string())
}
