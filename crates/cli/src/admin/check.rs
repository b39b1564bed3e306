//! Checking a volume that is not mounted, and repairing it.

use nvm::{Region, VolumeKind, Zone};
use serde::{Deserialize, Serialize};

use crate::admin::attachment::open_volume;
use crate::failure::{Explain, Failure};
use crate::report::Parts;

/// Problems that a server tells at once.
const PART_MAX: usize = 1000;

/// What a check found.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Checked {
    /// Told in parts.
    #[serde(skip)]
    pub(crate) problems: Vec<Problem>,
    pub(crate) found: Found,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Problem {
    pub(crate) what: String,
    pub(crate) repaired: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Found {
    Native {
        files: u64,
        directories: u64,
        nodes: u64,
        blocks_used: u64,
        blocks_total: u64,
        log_replayed: bool,
        needs_recovery: bool,
    },
    /// A disk with its metadata in NVM. `count` are all its problems, of which not each need be told.
    Ext { inodes: u64, blocks_used: u64, log_replayed: bool, count: u64, not_checked: Vec<String> },
}

impl Checked {
    /// Hands the problems on, some at a time.
    pub(crate) fn tell(&self, take: &mut Parts<'_>) -> Result<(), Failure> {
        for part in self.problems.chunks(PART_MAX) {
            take(serde_json::to_value(part).map_err(Failure::new)?)?;
        }
        Ok(())
    }
}

/// Checks a volume that nobody mounts meanwhile.
pub(crate) fn check(zone: &Zone, volume: &str, repair: bool) -> Result<Checked, Failure> {
    let region = zone.volume(volume).doing("opening the volume").leaving("nothing was checked")?;
    if zone.is_read_only() && (repair || region.kind() == VolumeKind::Ext) {
        return Err(Failure::new("the zone's server has it open for reading only")
            .leaving("nothing was checked")
            .remedy("unmount the zone's other volumes"));
    }
    match region.kind() {
        VolumeKind::Native => check_native(&region, volume, repair),
        VolumeKind::Ext => check_ext(&region),
        kind => Err(Failure::new(format!(
            "volume '{volume}' is of kind {kind}, which this version does not check"
        ))),
    }
}

fn check_native(region: &Region, volume: &str, repair: bool) -> Result<Checked, Failure> {
    if !native::recognise(region) {
        return Err(Failure::new(format!("volume '{volume}' holds no native file system"))
            .doing("looking for its superblock")
            .leaving("nothing was checked")
            .remedy("'amberfs mkfs' makes one; 'amberfs zone show' lists the zone's volumes"));
    }
    let checked = native::check(region, repair).doing("checking the volume")?;
    let told = |problem: native::Problem| Problem { what: problem.what, repaired: problem.repaired };
    let found = Found::Native {
        files: checked.files,
        directories: checked.directories,
        nodes: checked.nodes,
        blocks_used: checked.blocks_used,
        blocks_total: checked.blocks_total,
        log_replayed: checked.recovered,
        needs_recovery: checked.needs_recovery,
    };
    Ok(Checked { problems: checked.problems.into_iter().map(told).collect(), found })
}

/// Checks a disk with its metadata in NVM, as both together have it: the log is replayed before. Nothing is repaired.
fn check_ext(region: &Region) -> Result<Checked, Failure> {
    let volume = open_volume(region, None, &ext::Options::default())?;
    let checked = ext::check_volume(&volume).doing("checking the volume")?;
    volume.unmount().doing("closing the volume")?;
    let found = Found::Ext {
        inodes: checked.inodes,
        blocks_used: checked.blocks,
        log_replayed: volume.replayed().transactions > 0,
        count: checked.count,
        not_checked: checked.not_checked,
    };
    let told = |what| Problem { what, repaired: false };
    Ok(Checked { problems: checked.findings.into_iter().map(told).collect(), found })
}
