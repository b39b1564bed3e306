//! Snapshots of a volume: taking, listing, holding, removing, returning to one, copying one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use native::SnapshotUsage;
use nvm::{Region, VolumeKind, Zone};
use serde::{Deserialize, Serialize};

use crate::admin::zone::make_volume;
use crate::failure::{Explain, Failure};
use crate::report::{Fields, Value};
use crate::retention::{Policy, Scheduled};

/// What is asked of a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ask {
    Take { name: String, comment: String },
    List,
    Show { name: String },
    Remove { name: String, wait: bool },
    Prune { keep: String, dry_run: bool },
    Hold { name: String, tag: String },
    Release { name: String, tag: String },
    RollBack { name: String, discard_newer: bool },
    Clone { name: String, to: String },
}

impl Ask {
    pub(crate) fn changes_nothing(&self) -> bool {
        matches!(self, Ask::List | Ask::Show { .. } | Ask::Prune { dry_run: true, .. })
    }
}

/// Opens a volume that is not mounted. To list its snapshots, or to show one, nothing of it is changed.
pub(crate) fn of_unmounted(
    zone: &Zone,
    volume: &str,
    ask: &Ask,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Fields, Failure> {
    let region = zone.volume(volume).doing("opening the volume")?;
    if region.kind() != VolumeKind::Native {
        let what = format!("volume '{volume}' is of kind {}, which has no snapshots", region.kind());
        return Err(Failure::new(what));
    }
    match ask {
        Ask::List => return Ok(Fields::new().with("snapshots", listed_at_rest(&region)?)),
        Ask::Show { name } => {
            let all = native::snapshot_usages(&region).doing("reading the list of snapshots")?;
            let found = all.into_iter().find(|(snapshot, _)| snapshot.name == *name);
            let (snapshot, usage) = found.ok_or_else(|| native::Error::NoSnapshot(name.clone()))?;
            let usage = usage.ok_or_else(|| {
                Failure::new(format!("snapshot {name:?} is damaged"))
                    .remedy("'amberfs fsck' tells what of it")
            })?;
            return Ok(measured(described(&snapshot), Some(usage)));
        }
        Ask::Prune { keep, dry_run: true } => {
            let snapshots = native::snapshots(&region).doing("reading the list of snapshots")?;
            return prune(&snapshots, keep, true, |_| Ok(()));
        }
        Ask::RollBack { name, discard_newer } => {
            let returned = native::roll_back(&region, name, *discard_newer).map_err(not_rolled_back);
            return Ok(described(&returned?));
        }
        Ask::Clone { name, to } => {
            // Before a volume is made for it. What a damaged list has is found, or not, when it is copied.
            if native::snapshots(&region).is_ok_and(|all| all.iter().all(|snapshot| snapshot.name != *name)) {
                return Err(native::Error::NoSnapshot(name.clone())).doing("copying the snapshot");
            }
            let copy = |to: &Region| native::clone_snapshot(&region, name, to, progress);
            return clone_to(zone, region.len(), to, copy);
        }
        _ => {}
    }
    let options = native::MountOptions { background: false, ..native::MountOptions::default() };
    let volume = native::Volume::open(region, &options).doing("opening the volume")?;
    let answer = perform(&volume, ask)?;
    volume.close().doing("closing the volume")?;
    Ok(answer)
}

/// Why a volume was not returned to a snapshot.
pub(crate) fn not_rolled_back(error: native::Error) -> Failure {
    use native::Error::{NewerSnapshots, NoSnapshot, SnapshotHeld};
    let has_newer = matches!(error, NewerSnapshots { .. });
    let is_refused = has_newer || matches!(error, NoSnapshot(_) | SnapshotHeld { .. });
    let mut failure = Failure::new(error);
    if has_newer {
        failure = failure.remedy("remove them first, or add --discard-newer");
    }
    if is_refused { failure.leaving("nothing was changed") } else { failure }
}

/// Does what is asked; gives what is left of the snapshot.
pub(crate) fn perform(volume: &native::Volume, ask: &Ask) -> Result<Fields, Failure> {
    let name = match ask {
        Ask::List => return Ok(Fields::new().with("snapshots", listed(volume)?)),
        Ask::Show { name } => {
            let usage = volume.snapshot_usage(name)?;
            return Ok(measured(described(&volume.snapshot(name)?), Some(usage)));
        }
        Ask::Remove { name, wait } => {
            let snapshot = volume.snapshot(name)?;
            volume.remove_snapshot(name)?;
            if *wait {
                volume.finish_removals()?;
            }
            return Ok(described(&snapshot));
        }
        Ask::Prune { keep, dry_run } => {
            return prune(&volume.snapshots(), keep, *dry_run, |name| Ok(volume.remove_snapshot(name)?));
        }
        Ask::Take { name, comment } => {
            if name.contains(',') {
                return Err(Failure::new(format!("{name:?} has a comma, by which mount options end"))
                    .leaving("nothing was changed")
                    .remedy("choose another name: 'mount -o snapshot=NAME' could not name this one"));
            }
            volume.take_snapshot(name, comment)?;
            name
        }
        Ask::Hold { name, tag } => {
            volume.hold_snapshot(name, tag)?;
            name
        }
        Ask::Release { name, tag } => {
            volume.release_snapshot(name, tag)?;
            name
        }
        Ask::RollBack { .. } | Ask::Clone { .. } => {
            return Err(Failure::new("that is not done to a volume by itself"));
        }
    };
    Ok(described(&volume.snapshot(name)?))
}

/// Removes, oldest first, what a policy had taken and this one does not keep; or only says so. What cannot go does not
/// keep others from going.
pub(crate) fn prune(
    snapshots: &[native::Snapshot],
    keep: &str,
    dry_run: bool,
    mut remove: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Fields, Failure> {
    let policy: Policy = keep.parse().map_err(Failure::new)?;
    let scheduled = Scheduled::among(snapshots);
    let by_name: HashMap<&str, &native::Snapshot> =
        snapshots.iter().map(|snapshot| (&*snapshot.name, snapshot)).collect();
    let (mut removed, mut failures) = (Vec::new(), Vec::new());
    for Scheduled { name, .. } in policy.superfluous(&scheduled) {
        match if dry_run { Ok(()) } else { remove(name) } {
            Ok(()) => removed.extend(by_name.get(&**name).map(|snapshot| described(snapshot))),
            Err(failure) => failures.push(failure),
        }
    }
    let (gone, left) = (removed.len(), failures.len());
    match failures.into_iter().next() {
        None => {
            let key = if dry_run { "would_remove" } else { "removed" };
            Ok(Fields::new().with(key, Value::Rows(removed)))
        }
        Some(first) if left == 1 => {
            let state = Some(format!("it is kept; {gone} others were removed"));
            Err(Failure { state, ..first })
        }
        Some(first) => {
            let what = format!("{left} snapshots could not be removed; the first: {}", first.what);
            let state = Some(format!("they are kept; {gone} others were removed"));
            Err(Failure { what, state, ..first })
        }
    }
}

/// Makes a volume of `bytes` in the zone and lets `copy` fill it; if that fails, there is none.
pub(crate) fn clone_to(
    zone: &Zone,
    bytes: u64,
    name: &str,
    copy: impl FnOnce(&Region) -> Result<(), native::Error>,
) -> Result<Fields, Failure> {
    make_volume(zone, name, Some(bytes), |region| copy(region).doing("copying the snapshot"))?;
    Ok(Fields::new().with("volume", name).with("bytes", Value::Bytes(bytes)))
}

pub(crate) fn described(snapshot: &native::Snapshot) -> Fields {
    Fields::new()
        .with("name", snapshot.name.as_str())
        .with("taken", Value::Time(u64::try_from(snapshot.taken.sec).unwrap_or(0)))
        .with("version", Value::Count(snapshot.version.into()))
        .with("holds", Value::List(snapshot.holds.clone()))
        .with("comment", snapshot.comment.as_str())
}

/// What a snapshot takes; not known of one that is damaged, as `amberfs snapshot show` tells.
fn measured(fields: Fields, usage: Option<SnapshotUsage>) -> Fields {
    let bytes = |blocks: Option<u64>| blocks.map_or(Value::None, |blocks| Value::Bytes(blocks * nvm::BLOCK));
    fields
        .with("own_bytes", bytes(usage.map(|usage| usage.own_blocks)))
        .with("shared_bytes", bytes(usage.map(|usage| usage.shared_blocks)))
}

fn rows(snapshots: impl Iterator<Item = (native::Snapshot, Option<SnapshotUsage>)>) -> Value {
    Value::Rows(snapshots.map(|(snapshot, usage)| measured(described(&snapshot), usage)).collect())
}

/// The snapshots of a volume, and what each takes. A damaged list is an error: it looks like one that is shorter, or empty.
pub(crate) fn listed(volume: &native::Volume) -> Result<Value, Failure> {
    volume.check_snapshots().doing("reading the list of snapshots")?;
    Ok(rows(volume.snapshots().into_iter().map(|snapshot| {
        let usage = volume.snapshot_usage(&snapshot.name).ok();
        (snapshot, usage)
    })))
}

/// The same of one that is not mounted.
pub(crate) fn listed_at_rest(region: &Region) -> Result<Value, Failure> {
    let snapshots = native::snapshot_usages(region).doing("reading the list of snapshots")?;
    Ok(rows(snapshots.into_iter()))
}

/// Where a mounted volume shows a snapshot, below its mount point.
pub(crate) fn path_of(name: &str) -> PathBuf {
    Path::new(".snapshots").join(name)
}
