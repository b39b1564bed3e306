//! Zones: what one is, its size, the volumes in it.

use nvm::{EntranceHealth, Region, VolumeKind, Zone};

use crate::failure::{Explain, Failure};
use crate::report::{Fields, Value};
use crate::size;

/// What a zone really is.
pub(crate) fn describe(zone: &Zone) -> Fields {
    let info = zone.info();
    let entrance = match &info.entrance {
        EntranceHealth::Sound => "sound".to_string(),
        EntranceHealth::Behind { copy, repaired } => format!(
            "copy {copy} was older than the other one, as an interrupted update leaves it{}",
            if *repaired { "; brought up" } else { "" }
        ),
        EntranceHealth::Damaged { copy, what, repaired } => format!(
            "copy {copy} was damaged ({what}); the other one served{}",
            if *repaired { "; rewritten" } else { "" }
        ),
    };
    Fields::new()
        .with("path", info.path.display().to_string())
        .with("uuid", info.uuid.to_string())
        .with("bytes", Value::Bytes(info.bytes))
        .with("free_bytes", Value::Bytes(info.free_bytes))
        .with("created", Value::Time(info.created_s))
        .with("format_version", Value::Count(info.version.into()))
        .with("backing", info.backing.to_string())
        .with("persist", info.persist.to_string())
        .with("persist_reason", info.persist_reason)
        .with("huge_page_bytes", info.huge_bytes.map_or(Value::None, Value::Bytes))
        .with("technology", info.technology.to_string())
        .with("entrance", entrance)
        .with("volumes", volumes(zone))
}

/// A failure of a zone that is open, with its cause if somebody has cut its file short: what is gone reads as zeros, which look like a medium that
/// failed, or like damage.
pub(crate) fn with_cause(zone: &Zone, failure: Failure) -> Failure {
    let (bytes, path) = (zone.info().bytes, zone.info().path);
    let left = match zone.file() {
        Some(file) if file.is_file() && file.len() < bytes => file.len(),
        _ => return failure,
    };
    let (path, all, left_of) = (path.display(), size::human(bytes), size::human(left));
    let what = match left {
        0 => {
            format!("{path} is empty: somebody cut it while it was in use, and all that the zone had is gone")
        }
        _ => format!(
            "{path} was cut short while it was in use, and has {left_of} of the zone's {all} ({})",
            failure.what
        ),
    };
    Failure { what, ..failure }
}

fn volumes(zone: &Zone) -> Value {
    let row = |entry: nvm::VolumeEntry| {
        Fields::new()
            .with("name", entry.name)
            .with("kind", entry.kind.to_string())
            .with("bytes", Value::Bytes(entry.bytes))
            .with("start", Value::Bytes(entry.start))
            .with("uuid", entry.uuid.to_string())
            .with("unfinished", entry.unfinished)
    };
    Value::Rows(zone.volumes().into_iter().map(row).collect())
}

/// Grows a zone; gives its bytes and its free bytes.
pub(crate) fn grow(zone: &Zone, bytes: u64) -> Result<(u64, u64), Failure> {
    zone.grow(bytes).doing("growing the zone").leaving("the zone and its volumes are as they were")?;
    let info = zone.info();
    Ok((info.bytes, info.free_bytes))
}

/// Makes a native volume in the zone and has `fill` make a file system of it. If that fails there is none, and if it is cut
/// off, the zone's next opening removes it.
pub(crate) fn make_volume<T>(
    zone: &Zone,
    name: &str,
    bytes: Option<u64>,
    fill: impl FnOnce(&Region) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let made = zone.begin_volume(name, VolumeKind::Native, bytes);
    let region = made.doing("making the volume").leaving("nothing was changed")?;
    let filled = fill(&region);
    drop(region);
    let finish = |filled| zone.finish_volume(name).doing("making the volume").map(|()| filled);
    filled.and_then(finish).map_err(|failure| match zone.remove_volume(name) {
        Ok(()) => failure.leaving("the volume made for it was removed again"),
        Err(_) => {
            failure.leaving("the volume made for it is there, unfinished; the zone's next opening removes it")
        }
    })
}

/// Removes a volume, unless it holds a file system and `force` is not given.
pub(crate) fn remove_volume(zone: &Zone, name: &str, force: bool) -> Result<(), Failure> {
    let holds_files = match zone.volume(name) {
        Err(nvm::Error::Unfinished { .. }) => false,
        region => {
            let region = region.doing("looking at the volume").leaving("nothing was removed")?;
            match region.kind() {
                VolumeKind::Native => native::recognise(&region),
                // What was detached is kept for the next disk, and has nothing.
                VolumeKind::Ext => ext::attachment(&region).map_or(true, |attachment| attachment.is_some()),
                VolumeKind::Flash => true,
            }
        }
    };
    if holds_files && !force {
        return Err(Failure::new(format!("volume '{name}' holds a file system"))
            .leaving("nothing was removed")
            .remedy("add --force if everything in it may be lost"));
    }
    zone.remove_volume(name).doing("removing the volume").leaving("nothing was removed")
}
