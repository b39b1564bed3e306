//! Checking a volume that is not mounted, and repairing it; with the entrance of the zone that it is in.

use nvm::{EntranceHealth, Region, VolumeKind, Zone};
use serde::{Deserialize, Serialize};

use crate::admin::attachment::{open_scratch, open_volume};
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
    /// Something was lost with it, or would be.
    pub(crate) with_loss: bool,
}

/// What is to be done about problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repair {
    Nothing,
    /// What can be repaired without losing anything, if nothing else is wrong.
    Preen,
    Everything,
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
    /// A disk with its metadata in NVM. `count` are all its problems that are left, of which not each need be told.
    Ext {
        inodes: u64,
        blocks_used: u64,
        log_replayed: bool,
        needs_recovery: bool,
        log_damaged: bool,
        count: u64,
        not_checked: Vec<String>,
    },
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
pub(crate) fn check(zone: &Zone, volume: &str, repair: Repair) -> Result<Checked, Failure> {
    let region = zone.volume(volume).doing("opening the volume").leaving("nothing was checked")?;
    if zone.is_read_only() && repair != Repair::Nothing {
        return Err(Failure::new("the zone's server has it open for reading only")
            .leaving("nothing was checked")
            .remedy("unmount the zone's other volumes"));
    }
    let mut checked = match region.kind() {
        VolumeKind::Native => check_native(&region, volume, repair)?,
        VolumeKind::Ext => check_ext(&region, repair)?,
        kind => {
            return Err(Failure::new(format!(
                "volume '{volume}' is of kind {kind}, which this version does not check"
            )));
        }
    };
    checked.problems.splice(0..0, check_entrance(zone, repair)?);
    Ok(checked)
}

/// A copy of the zone's entrance that does not count, and is written anew from the other.
fn check_entrance(zone: &Zone, repair: Repair) -> Result<Option<Problem>, Failure> {
    let mut copies = zone.entrance_copies().into_iter().enumerate();
    let Some((copy, what)) = copies.find_map(|(copy, there)| Some((copy, there.content.err()?))) else {
        return Ok(None);
    };
    let repaired = repair != Repair::Nothing
        && match zone.mend_entrance() {
            Err(nvm::Error::Media(_)) => false,
            mended => mended.map(|()| true).doing("writing the zone's entrance anew")?,
        };
    Ok(Some(damaged_entrance(copy, &what, repaired)))
}

/// What opening the zone for writing has repaired.
pub(crate) fn repaired_by_opening(zone: &Zone) -> Option<Problem> {
    match zone.info().entrance {
        EntranceHealth::Damaged { copy, what, repaired: true } => Some(damaged_entrance(copy, &what, true)),
        _ => None,
    }
}

fn damaged_entrance(copy: usize, what: &str, repaired: bool) -> Problem {
    let what = format!("copy {copy} of the zone's entrance: {what}; the other copy serves");
    Problem { what, repaired, with_loss: false }
}

fn check_native(region: &Region, volume: &str, repair: Repair) -> Result<Checked, Failure> {
    if !native::recognise(region) {
        return Err(Failure::new(format!("volume '{volume}' holds no native file system"))
            .doing("looking for its superblock")
            .leaving("nothing was checked")
            .remedy("'amberfs mkfs' makes one; 'amberfs zone show' lists the zone's volumes"));
    }
    let checked = match repair {
        Repair::Nothing => native::check(region, false),
        Repair::Preen => native::preen(region),
        Repair::Everything => native::check(region, true),
    };
    let checked = checked.doing("checking the volume")?;
    let told = |problem: native::Problem| Problem {
        what: problem.what,
        repaired: problem.repaired,
        with_loss: problem.with_loss,
    };
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

/// Checks a disk with its metadata in NVM, as both together have it behind the log, of which only what is damaged can be repaired, by giving it
/// up. If nothing is to be changed the log is replayed in memory.
fn check_ext(region: &Region, repair: Repair) -> Result<Checked, Failure> {
    let past_damage = repair == Repair::Everything;
    let damage = ext::log_damage(region).doing("looking through the log")?;
    let told = |what, repaired| Problem { what, repaired, with_loss: true };
    let lost = |what| told(format!("its log in NVM is damaged, which no crash does: {what}"), past_damage);
    let mut problems: Vec<Problem> = damage.map(lost).into_iter().collect();
    let log_damaged = !problems.is_empty();
    if log_damaged && !past_damage {
        let not_checked = vec!["all else".to_string()];
        let found = Found::Ext {
            inodes: 0,
            blocks_used: 0,
            log_replayed: false,
            needs_recovery: true,
            log_damaged,
            count: 1,
            not_checked,
        };
        return Ok(Checked { problems, found });
    }
    let changes = repair != Repair::Nothing;
    let volume = if changes {
        open_volume(region, None, &ext::Options { past_damage, ..ext::Options::default() })?
    } else {
        open_scratch(&region.zone().scratch(region.name()).doing("copying what NVM has")?)?
    };
    let checked = ext::check_volume(&volume).doing("checking the volume")?;
    if changes {
        volume.unmount().doing("closing the volume")?;
    }
    let was_left = volume.replayed().transactions > 0;
    let found = Found::Ext {
        inodes: checked.inodes,
        blocks_used: checked.blocks,
        log_replayed: was_left && changes,
        needs_recovery: was_left && !changes,
        log_damaged,
        count: checked.count,
        not_checked: checked.not_checked,
    };
    problems.extend(checked.findings.into_iter().map(|what| told(what, false)));
    Ok(Checked { problems, found })
}
