//! `amberfs fsck`: checks a volume that is not mounted, and repairs it where asked. Exit codes are fsck(8)'s.

use nvm::VolumeKind;

use crate::attached::open_volume;
use crate::command_line::Fsck;
use crate::exit;
use crate::failure::{Explain, Failure};
use crate::report::{self, Fields, Value};
use crate::zone_access::open_alone;

pub(crate) fn run(arguments: &Fsck) -> Result<u8, Failure> {
    check(arguments).exit(exit::FSCK_OPERATIONAL)
}

fn check(arguments: &Fsck) -> Result<u8, Failure> {
    let place = &arguments.place;
    let zone = open_alone(&place.zone, arguments.repair)?;
    let region = zone.volume(&place.volume).doing("opening the volume").leaving("nothing was checked")?;
    if region.kind() == VolumeKind::Ext {
        drop((region, zone));
        return check_ext(arguments);
    }
    if region.kind() != VolumeKind::Native {
        return Err(Failure::new(format!(
            "{place} is of kind {}, which this version does not check",
            region.kind()
        )));
    }
    if !native::recognise(&region) {
        return Err(Failure::new(format!("{place} holds no native file system"))
            .doing("looking for its superblock")
            .leaving("nothing was checked")
            .remedy("'amberfs mkfs' makes one; 'amberfs zone show' lists the zone's volumes"));
    }
    let checked = native::check(&region, arguments.repair).doing("checking the volume")?;
    let repaired = checked.problems.iter().filter(|problem| problem.repaired).count() as u64;
    let left = checked.problems.len() as u64 - repaired;
    let problems = checked.problems.iter().map(|problem| {
        Fields::new().with("problem", problem.what.as_str()).with("repaired", problem.repaired)
    });
    let fields = Fields::new()
        .with("volume", place.to_string())
        .with("files", Value::Count(checked.files))
        .with("directories", Value::Count(checked.directories))
        .with("nodes", Value::Count(checked.nodes))
        .with("blocks_used", Value::Count(checked.blocks_used))
        .with("blocks_total", Value::Count(checked.blocks_total))
        .with("log_replayed", checked.recovered)
        .with("needs_recovery", checked.needs_recovery)
        .with("problems", Value::Rows(problems.collect()));
    if arguments.json {
        report::print_json(&fields.json())?;
    } else {
        for problem in &checked.problems {
            let done = if problem.repaired { "repaired" } else { "left" };
            report::print_text(&format!("{place}: {} ({done})\n", problem.what))?;
        }
        let verdict = match (repaired, left) {
            (0, 0) => "clean".to_string(),
            (repaired, 0) => format!("{repaired} problems, all repaired"),
            (0, left) => format!("{left} problems"),
            (repaired, left) => format!("{repaired} problems repaired, {left} left"),
        };
        let replayed = match (checked.recovered, checked.needs_recovery) {
            (true, _) => ", log replayed",
            (false, true) => {
                " as of its newest checkpoint; it was not unmounted cleanly, and mounting or --repair replays its log"
            }
            (false, false) => "",
        };
        report::print_text(&format!(
            "{place}: {verdict}{replayed}: {} files, {} directories, {} of {} blocks used\n",
            checked.files, checked.directories, checked.blocks_used, checked.blocks_total
        ))?;
    }
    Ok(match (repaired, left) {
        (0, 0) => 0,
        (_, 0) => exit::FSCK_CORRECTED,
        (0, _) => exit::FSCK_UNCORRECTED,
        (_, _) => exit::FSCK_CORRECTED | exit::FSCK_UNCORRECTED,
    })
}

/// Checks a disk with its metadata in NVM, as both together have it: the log is replayed before. Nothing is repaired.
fn check_ext(arguments: &Fsck) -> Result<u8, Failure> {
    let place = &arguments.place;
    let zone = open_alone(&place.zone, true)?;
    let region = zone.volume(&place.volume).doing("opening the volume").leaving("nothing was checked")?;
    let volume = open_volume(&region, None, &ext::Options::default())?;
    let checked = ext::check_volume(&volume).doing("checking the volume")?;
    volume.unmount().doing("closing the volume")?;
    let problems = checked
        .findings
        .iter()
        .map(|what| Fields::new().with("problem", what.as_str()).with("repaired", false));
    let fields = Fields::new()
        .with("volume", place.to_string())
        .with("inodes", Value::Count(checked.inodes))
        .with("blocks_used", Value::Count(checked.blocks))
        .with("log_replayed", volume.replayed().transactions > 0)
        .with("problems", Value::Rows(problems.collect()))
        .with("not_checked", checked.not_checked.join("; "));
    if arguments.json {
        report::print_json(&fields.json())?;
    } else {
        for what in &checked.findings {
            report::print_text(&format!("{place}: {what} (left)\n"))?;
        }
        for what in &checked.not_checked {
            report::print_text(&format!("{place}: {what}, was not checked\n"))?;
        }
        let (verdict, advice) = match checked.count {
            0 => ("clean".to_string(), String::new()),
            count => (
                format!("{count} problems"),
                format!("; to repair: amberfs detach {place}, then e2fsck -f on the disk"),
            ),
        };
        report::print_text(&format!(
            "{place}: {verdict}: {} inodes, {} blocks used{advice}\n",
            checked.inodes, checked.blocks
        ))?;
    }
    Ok(if checked.is_clean() { 0 } else { exit::FSCK_UNCORRECTED })
}
