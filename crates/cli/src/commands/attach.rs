//! `amberfs attach` and `amberfs detach`: an ext2, ext3 or ext4 disk gets its metadata in NVM, and becomes a plain disk again.

use disk::Source;

use crate::admin::attachment::{self, Detached};
use crate::command_line::{Attach, Detach};
use crate::control::Request;
use crate::failure::{Explain, Failure};
use crate::zone_access::{Access, reach, refuse_mounted};
use crate::{report, size};

pub(crate) fn attach(arguments: &Attach) -> Result<(), Failure> {
    if let Some(name) = &arguments.force_from_disk {
        return force_from_disk(name);
    }
    let (Some(place), Some(name)) = (&arguments.place, &arguments.disk) else {
        return Err(Failure::new("a volume and a disk belong there: amberfs attach ZONE:VOLUME DISK"));
    };
    let told = match reach(&place.zone, true)? {
        Access::Open(zone) => attachment::attach(&zone, &place.volume, name, arguments.size)?,
        Access::Served(mut client) => {
            refuse_mounted(&client, &place.volume).leaving("nothing was changed")?;
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
        "{place}: the disk's superblock, descriptors, bitmaps and inodes are {} now, and {} with all inodes in use. An eighth of the NVM \
         is kept for directories and maps; what the rest has no room for goes to the disk, and comes back when it is touched. {} of NVM have room for all of it\n",
        size::human(lacks.in_use_bytes),
        size::human(lacks.fixed_bytes),
        size::human(lacks.bytes_for_all),
    ))
}

fn force_from_disk(name: &str) -> Result<(), Failure> {
    let disk = attachment::open_disk(name)?;
    let forced = ext::force_from_disk(&disk).doing("taking the disk's mark away")?;
    report::print_text(&match forced {
        true => format!(
            "{name}: the mark is gone. What was in NVM only is lost: metadata changed since it was attached, and synced \
             writes that were not on the disk yet. Before anything else: e2fsck -f {name}\n\
             A volume that had it, if there is one still, can be removed, and not detached: amberfs zone remove-volume ZONE VOLUME --force\n"
        ),
        false => format!("{name}: it has no mark; nothing was changed\n"),
    })
}

pub(crate) fn detach(arguments: &Detach) -> Result<(), Failure> {
    let place = &arguments.place;
    let Detached { disk, has_errors } = match reach(&place.zone, true)? {
        Access::Open(zone) => attachment::detach(&zone, &place.volume, arguments.disk.as_deref())?,
        Access::Served(mut client) => {
            refuse_mounted(&client, &place.volume).leaving("nothing was changed")?;
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
        "{place}: {disk} is a plain ext disk again; the volume is kept for the next one\n"
    ))?;
    match has_errors {
        true => report::print_text(&format!(
            "{place}: damage was found in it: before anything else, e2fsck -f {disk}\n"
        )),
        false => Ok(()),
    }
}
