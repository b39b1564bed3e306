//! `amberfs attach` and `amberfs detach`: an ext2, ext3 or ext4 disk gets its metadata in NVM, and becomes a plain disk again.

use nvm::{Region, VolumeKind, Zone};

use crate::attached::{attachment, open_disk, open_volume};
use crate::command_line::{Attach, Detach};
use crate::failure::{Explain, Failure};
use crate::zone_access::open_alone;
use crate::{report, size};

pub(crate) fn attach(arguments: &Attach) -> Result<(), Failure> {
    if let Some(name) = &arguments.force_from_disk {
        return force_from_disk(name);
    }
    let (Some(place), Some(name)) = (&arguments.place, &arguments.disk) else {
        return Err(Failure::new("a volume and a disk belong there: amberfs attach ZONE:VOLUME DISK"));
    };
    let disk = open_disk(name, false)?;
    let zone = open_alone(&place.zone, true)?;
    let (region, is_new) = volume(&zone, &place.volume, arguments.size)?;
    let attached = ext::attach(&region, &disk).doing("attaching the disk");
    if attached.is_err() && is_new {
        drop(region);
        let removed = zone.remove_volume(&place.volume);
        removed.doing("removing the volume made for it")?;
        return attached.map(drop);
    }
    let in_use = attached?;
    let told = attachment(&region)?;
    report::print_text(&format!(
        "{place}: {name} is attached: {} of NVM for its metadata, {} in all. Only 'amberfs mount {place}' may use the disk \
         now, until 'amberfs detach {place}'\n",
        size::human(told.frames * told.block_bytes),
        size::human(region.len()),
    ))?;
    if told.has_room_for_all() {
        return Ok(());
    }
    report::print_text(&format!(
        "{place}: the disk's superblock, descriptors, bitmaps and inodes are {} now, and {} with all inodes in use: what NVM has no room for \
         goes to the disk, and comes back when it is touched. {} of NVM have room for all of it\n",
        size::human(in_use),
        size::human(told.fixed_bytes),
        size::human(told.bytes_for_all),
    ))
}

/// The volume of this name, made if it is not there.
fn volume(zone: &Zone, name: &str, bytes: Option<u64>) -> Result<(Region, bool), Failure> {
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
    let disk = open_disk(name, false)?;
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
    let zone = open_alone(&place.zone, true)?;
    let region = zone.volume(&place.volume).doing("opening the volume").leaving("nothing was changed")?;
    if region.kind() != VolumeKind::Ext {
        return Err(Failure::new(format!("{place} is of kind {}, and has no disk", region.kind()))
            .leaving("nothing was changed"));
    }
    let volume = open_volume(&region, arguments.disk.as_deref(), &ext::Options::default())?;
    let name = volume.disk().name().to_string();
    volume
        .detach()
        .doing("writing to the disk what is in NVM")
        .leaving("it is attached still; nothing is lost")?;
    report::print_text(&format!(
        "{place}: {name} is a plain ext disk again; the volume is kept for the next one\n"
    ))
}
