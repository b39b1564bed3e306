//! Making a native file system on a volume, which is made if it is not there.

use nvm::{Region, VolumeKind, Zone};
use serde::{Deserialize, Serialize};

use crate::admin::zone::make_volume;
use crate::failure::{Explain, Failure};
use crate::size;

/// What is asked for, also through the control socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) bytes: Option<u64>,
    pub(crate) label: String,
    pub(crate) force: bool,
}

/// Makes a native volume; gives its bytes.
pub(crate) fn format(zone: &Zone, name: &str, settings: &Settings) -> Result<u64, Failure> {
    let there = zone.volumes().into_iter().find(|entry| entry.name == name);
    match there {
        Some(entry) => {
            refuse_to_lose(zone, &entry, settings)?;
            let region = zone.volume(name).doing("opening the volume").leaving("nothing was changed")?;
            fill(&region, settings).leaving("the volume's former contents may be lost")
        }
        None => {
            if let Some(bytes) = settings.bytes.filter(|bytes| *bytes < native::MIN_VOLUME_BYTES) {
                return Err(too_small(bytes));
            }
            make_volume(zone, name, settings.bytes, |region| fill(region, settings))
        }
    }
}

/// Makes the file system; gives the volume's bytes.
fn fill(region: &Region, settings: &Settings) -> Result<u64, Failure> {
    let bytes = region.len();
    if bytes < native::MIN_VOLUME_BYTES {
        return Err(too_small(bytes));
    }
    // Who makes a volume is to be able to use it.
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let options = native::FormatOptions { label: settings.label.clone(), owner, ..Default::default() };
    native::format(region, &options).doing("making the file system")?;
    Ok(bytes)
}

fn too_small(bytes: u64) -> Failure {
    let (bytes, least) = (size::human(bytes), size::human(native::MIN_VOLUME_BYTES));
    Failure::new(format!("{bytes} are too few for a native volume, which needs {least}"))
        .doing("making the file system")
        .remedy("make it larger with --size, or the zone with 'amberfs zone grow'")
}

/// An existing volume is formatted only with force, and neither moved nor resized.
fn refuse_to_lose(zone: &Zone, entry: &nvm::VolumeEntry, settings: &Settings) -> Result<(), Failure> {
    let refuse = |what: String, remedy: String| {
        Err(Failure::new(what).doing("making the file system").leaving("nothing was changed").remedy(remedy))
    };
    let (name, path) = (&entry.name, zone.info().path);
    let remove = format!("amberfs zone remove-volume {}:{name} --force, if it may be lost", path.display());
    if entry.kind != VolumeKind::Native {
        return refuse(format!("volume '{name}' is of kind {}", entry.kind), remove);
    }
    if settings.bytes.is_some_and(|bytes| bytes.checked_next_multiple_of(nvm::SEGMENT) != Some(entry.bytes)) {
        let now = size::human(entry.bytes);
        return refuse(
            format!("volume '{name}' is there already, with {now}"),
            format!("leave --size away, or: {remove}"),
        );
    }
    let region = zone.volume(name).doing("opening the volume").leaving("nothing was changed")?;
    if native::recognise(&region) && !settings.force {
        let label = native::info(&region).map(|info| info.label).unwrap_or_default();
        let label = if label.is_empty() { String::new() } else { format!(" labelled '{label}'") };
        return refuse(
            format!("volume '{name}' holds a native file system{label}"),
            "add --force if everything in it may be lost".to_string(),
        );
    }
    Ok(())
}
