//! `amberfs fsck`: checks a volume that is not mounted, and repairs it where asked. Exit codes are fsck(8)'s.
//!
//! A server that has the zone for others of its volumes does it in its process.

use nvm::{Region, VolumeKind, Zone};
use serde::{Deserialize, Serialize};

use crate::attached::open_volume;
use crate::command_line::Fsck;
use crate::control::{Parts, Request};
use crate::exit;
use crate::failure::{Explain, Failure};
use crate::place::VolumePlace;
use crate::report::{self, Fields, Value};
use crate::zone_access::{Access, reach};

/// Problems that a server tells at once.
const PART_MAX: usize = 1000;

/// What a check found.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Checked {
    /// Told in parts.
    #[serde(skip)]
    problems: Vec<Problem>,
    found: Found,
}

#[derive(Debug, Serialize, Deserialize)]
struct Problem {
    what: String,
    repaired: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum Found {
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

pub(crate) fn run(arguments: &Fsck) -> Result<u8, Failure> {
    check(arguments).exit(exit::FSCK_OPERATIONAL)
}

fn check(arguments: &Fsck) -> Result<u8, Failure> {
    let place = &arguments.place;
    let mut access = reach(&place.zone, arguments.repair)?;
    if let Access::Open(zone) = &access
        && zone.is_read_only()
        && is_ext(zone, &place.volume)
    {
        // Its log is replayed before it is looked at.
        drop(access);
        access = reach(&place.zone, true)?;
    }
    let checked = match access {
        Access::Open(zone) => check_in(&zone, &place.volume, arguments.repair)?,
        Access::Served(mut client) => {
            if let Some((_, dir)) = client.hello.mounts.iter().find(|(volume, _)| *volume == place.volume) {
                return Err(Failure::new(format!("{place} is mounted on {}", dir.display()))
                    .leaving("nothing was checked")
                    .remedy(format!("amberfs umount {}", dir.display())));
            }
            let request = Request::Check { volume: place.volume.clone(), repair: arguments.repair };
            let mut problems = Vec::new();
            let end = client.ask_for_parts(&request, &mut |part| {
                problems.append(&mut serde_json::from_value(part).map_err(Failure::new)?);
                Ok(())
            })?;
            Checked { problems, ..serde_json::from_value(end).map_err(Failure::new)? }
        }
    };
    match arguments.json {
        true => report::print_json(&checked.fields(place).json())?,
        false => report::print_text(&checked.text(place))?,
    }
    Ok(checked.code())
}

fn is_ext(zone: &Zone, volume: &str) -> bool {
    zone.volumes().iter().any(|entry| entry.name == volume && entry.kind == VolumeKind::Ext)
}

/// Checks a volume that nobody mounts meanwhile.
pub(crate) fn check_in(zone: &Zone, volume: &str, repair: bool) -> Result<Checked, Failure> {
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

impl Checked {
    /// Hands the problems on, some at a time.
    pub(crate) fn tell(&self, take: &mut Parts<'_>) -> Result<(), Failure> {
        for part in self.problems.chunks(PART_MAX) {
            take(serde_json::to_value(part).map_err(Failure::new)?)?;
        }
        Ok(())
    }

    /// Problems that were repaired, and those that are left.
    fn counts(&self) -> (u64, u64) {
        let repaired = self.problems.iter().filter(|problem| problem.repaired).count() as u64;
        match self.found {
            Found::Native { .. } => (repaired, self.problems.len() as u64 - repaired),
            Found::Ext { count, .. } => (0, count),
        }
    }

    fn code(&self) -> u8 {
        match self.counts() {
            (0, 0) => 0,
            (_, 0) => exit::FSCK_CORRECTED,
            (0, _) => exit::FSCK_UNCORRECTED,
            (_, _) => exit::FSCK_CORRECTED | exit::FSCK_UNCORRECTED,
        }
    }

    fn fields(&self, place: &VolumePlace) -> Fields {
        let row = |problem: &Problem| {
            Fields::new().with("problem", problem.what.as_str()).with("repaired", problem.repaired)
        };
        let problems = Value::Rows(self.problems.iter().map(row).collect());
        let fields = Fields::new().with("volume", place.to_string());
        match &self.found {
            Found::Native {
                files,
                directories,
                nodes,
                blocks_used,
                blocks_total,
                log_replayed,
                needs_recovery,
            } => fields
                .with("files", Value::Count(*files))
                .with("directories", Value::Count(*directories))
                .with("nodes", Value::Count(*nodes))
                .with("blocks_used", Value::Count(*blocks_used))
                .with("blocks_total", Value::Count(*blocks_total))
                .with("log_replayed", *log_replayed)
                .with("needs_recovery", *needs_recovery)
                .with("problems", problems),
            Found::Ext { inodes, blocks_used, log_replayed, not_checked, .. } => fields
                .with("inodes", Value::Count(*inodes))
                .with("blocks_used", Value::Count(*blocks_used))
                .with("log_replayed", *log_replayed)
                .with("problems", problems)
                .with("not_checked", not_checked.join("; ")),
        }
    }

    fn text(&self, place: &VolumePlace) -> String {
        let mut text = String::new();
        for problem in &self.problems {
            let done = if problem.repaired { "repaired" } else { "left" };
            text.push_str(&format!("{place}: {} ({done})\n", problem.what));
        }
        let verdict = match self.counts() {
            (0, 0) => "clean".to_string(),
            (repaired, 0) => format!("{repaired} problems, all repaired"),
            (0, left) => format!("{left} problems"),
            (repaired, left) => format!("{repaired} problems repaired, {left} left"),
        };
        match &self.found {
            Found::Native {
                files,
                directories,
                blocks_used,
                blocks_total,
                log_replayed,
                needs_recovery,
                ..
            } => {
                let replayed = match (log_replayed, needs_recovery) {
                    (true, _) => ", log replayed",
                    (false, true) => {
                        " as of its newest checkpoint; it was not unmounted cleanly, and mounting or --repair replays its log"
                    }
                    (false, false) => "",
                };
                text.push_str(&format!(
                    "{place}: {verdict}{replayed}: {files} files, {directories} directories, {blocks_used} of {blocks_total} blocks used\n"
                ));
            }
            Found::Ext { inodes, blocks_used, count, not_checked, .. } => {
                for what in not_checked {
                    text.push_str(&format!("{place}: {what}, was not checked\n"));
                }
                let advice = match count {
                    0 => String::new(),
                    _ => format!("; to repair: amberfs detach {place}, then e2fsck -f on the disk"),
                };
                text.push_str(&format!(
                    "{place}: {verdict}: {inodes} inodes, {blocks_used} blocks used{advice}\n"
                ));
            }
        }
        text
    }
}
