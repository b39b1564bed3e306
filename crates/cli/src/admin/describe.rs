//! What a volume is, at rest and in use.

use std::time::Duration;

use nvm::{Region, VolumeKind, Zone};

use crate::admin::attachment::look_at_disk;
use crate::admin::snapshots;
use crate::failure::{Explain, Failure};
use crate::report::{self, Fields, Value};

/// How long the server of an unmounted disk may take for an answer: of that disk all but its use is known without it.
const LOOK_PATIENCE: Duration = Duration::from_secs(3);

/// What a volume is that nobody has open: of a disk also how much is used, or why that is not known.
pub(crate) fn at_rest(zone: &Zone, name: &str) -> Result<Fields, Failure> {
    let fields = volume(zone, name, None)?;
    let region = zone.volume(name)?;
    if region.kind() != VolumeKind::Ext {
        return Ok(fields);
    }
    let Some(attachment) = ext::attachment(&region)? else { return Ok(fields) };
    let disk = match look_at_disk(&attachment.disk, LOOK_PATIENCE) {
        Ok(disk) => disk,
        Err(failure) => return Ok(fields.with("use_not_known", failure.what)),
    };
    let ext::AtRest { space, has_errors } = match ext::at_rest(&region, &disk) {
        Ok(found) => found,
        Err(error) => {
            // What NVM says of the disk is not what the disk says: it can be mounted and detached no more.
            let is_given_up = matches!(
                error,
                ext::Error::NotAttached { .. } | ext::Error::OtherDisk { given_up: true, .. }
            );
            let fields = if is_given_up { fields.with_now("attached", false) } else { fields };
            return Ok(fields.with("use_not_known", error.to_string()));
        }
    };
    let bytes = |blocks: u64| Value::Bytes(blocks * u64::from(space.block_size));
    Ok(fields
        .with("has_errors", has_errors)
        .with("space_bytes", bytes(space.blocks))
        .with("used_bytes", bytes(space.blocks.saturating_sub(space.blocks_free)))
        .with("free_bytes", bytes(space.blocks_available))
        .with("inodes", Value::Count(space.files - space.files_free)))
}

/// What the zone's index says of a volume that somebody changes.
pub(crate) fn at_work(zone: &Zone, name: &str, at_work: Failure) -> Result<Fields, Failure> {
    let entry = zone.volumes().into_iter().find(|entry| entry.name == name).ok_or(at_work.clone())?;
    Ok(Fields::new()
        .with("zone", zone.info().path.display().to_string())
        .with("volume", name)
        .with("kind", entry.kind.to_string())
        .with("bytes", Value::Bytes(entry.bytes))
        .with("use_not_known", at_work.what))
}

/// What a volume is. Who has it open knows its `snapshots`.
pub(crate) fn volume(
    zone: &Zone,
    name: &str,
    snapshots: Option<Result<Value, Failure>>,
) -> Result<Fields, Failure> {
    let region = zone.volume(name).doing("opening the volume")?;
    let about_zone = zone.info();
    let fields = Fields::new()
        .with("zone", about_zone.path.display().to_string())
        .with("volume", name)
        .with("kind", region.kind().to_string())
        .with("backing", about_zone.backing.to_string())
        .with("persist", about_zone.persist.to_string());
    match region.kind() {
        VolumeKind::Native => native(&region, fields, snapshots),
        VolumeKind::Ext => ext(&region, fields),
        kind => {
            Err(Failure::new(format!("volume '{name}' is of kind {kind}, which this version does not read")))
        }
    }
}

fn native(
    region: &Region,
    fields: Fields,
    snapshots: Option<Result<Value, Failure>>,
) -> Result<Fields, Failure> {
    if !native::recognise(region) {
        return Ok(fields.with("bytes", Value::Bytes(region.len())).with("formatted", false));
    }
    let info = native::info(region).doing("reading the superblock and the newest checkpoint")?;
    // That they cannot be told keeps nothing else from being told.
    let snapshots = snapshots.unwrap_or_else(|| snapshots::listed_at_rest(region));
    let fields = match &snapshots {
        Ok(_) => fields,
        Err(failure) => fields.with("snapshots_not_known", failure.what.as_str()),
    };
    Ok(fields
        .with("uuid", report::hyphenated(info.uuid))
        .with("label", info.label)
        .with("created", Value::Time(u64::try_from(info.created.sec).unwrap_or(0)))
        .with("formatted", true)
        .with("clean", info.clean)
        .with("bytes", Value::Bytes(info.bytes))
        .with("blocks", Value::Count(info.blocks))
        .with("blocks_free", Value::Count(info.blocks_free))
        .with("free_bytes", Value::Bytes(info.blocks_free * nvm::BLOCK))
        .with("inodes", Value::Count(info.inodes))
        .with("log_bytes", Value::Bytes(info.log_bytes))
        .with("checkpoint_version", Value::Count(info.checkpoint_version.into()))
        .with("snapshots", snapshots.unwrap_or(Value::None)))
}

fn ext(region: &Region, fields: Fields) -> Result<Fields, Failure> {
    let fields = fields.with("bytes", Value::Bytes(region.len()));
    let Some(attachment) = ext::attachment(region).doing("looking which disk the volume has")? else {
        return Ok(fields.with("attached", false));
    };
    Ok(fields
        .with("attached", true)
        .with("disk", attachment.disk.as_str())
        .with("uuid", report::hyphenated(attachment.uuid))
        .with("disk_bytes", Value::Bytes(attachment.disk_bytes))
        .with("attachment", Value::Count(attachment.number))
        .with("block_bytes", Value::Count(attachment.block_bytes))
        .with("frames", Value::Count(attachment.frames))
        .with("frames_used", Value::Count(attachment.frames_used))
        .with("frames_dirty", Value::Count(attachment.frames_dirty))
        .with("blocks_refused", Value::Count(attachment.blocks_refused))
        .with("log_bytes", Value::Bytes(attachment.log_bytes))
        .with("fixed_metadata_bytes", Value::Bytes(attachment.fixed_bytes))
        .with("has_room_for_all_of_it", attachment.has_room_for_all())
        .with("bytes_for_all_of_it", Value::Bytes(attachment.bytes_for_all)))
}
