//! `amberfs fsck`: checks a volume that is not mounted, and repairs it where asked. Exit codes are fsck(8)'s.
//!
//! A server that has the zone for others of its volumes does it in its process.

use crate::admin::check::{self, Checked, Found, Problem, Repair};
use crate::command_line::Fsck;
use crate::control::Request;
use crate::exit;
use crate::failure::{Explain, Failure};
use crate::place::VolumePlace;
use crate::report::{self, Fields, Value};
use crate::zone_access::{Access, reach, refuse_mounted};

pub(crate) fn run(arguments: &Fsck) -> Result<u8, Failure> {
    check(arguments).exit(exit::FSCK_OPERATIONAL)
}

fn check(arguments: &Fsck) -> Result<u8, Failure> {
    let place = &arguments.place;
    let repair = match (arguments.repair, arguments.preen) {
        (true, _) => Repair::Everything,
        (false, true) => Repair::Preen,
        (false, false) => Repair::Nothing,
    };
    let checked = match reach(&place.zone, repair != Repair::Nothing)? {
        Access::Open(zone) => {
            let mut checked = check::check(&zone, &place.volume, repair)?;
            checked.problems.splice(0..0, check::repaired_by_opening(&zone));
            checked
        }
        Access::Served(mut client) => {
            refuse_mounted(&client, &place.volume).leaving("nothing was checked")?;
            let request = Request::Check {
                volume: place.volume.clone(),
                repair: arguments.repair,
                preen: arguments.preen,
            };
            let mut problems = Vec::new();
            let end = client.ask_for_parts(&request, &mut |part| {
                problems.append(&mut serde_json::from_value(part).map_err(Failure::new)?);
                Ok(())
            })?;
            Checked { problems, ..serde_json::from_value(end).map_err(Failure::new)? }
        }
    };
    match arguments.json {
        true => report::print(&fields(&checked, place), true)?,
        false => report::print_text(&text(&checked, place))?,
    }
    Ok(code(&checked))
}

/// Problems that were repaired, and those that are left.
fn counts(checked: &Checked) -> (u64, u64) {
    let repaired = checked.problems.iter().filter(|problem| problem.repaired).count() as u64;
    let told = checked.problems.len() as u64;
    match checked.found {
        Found::Native { .. } => (repaired, told - repaired),
        // Of all its problems the first are told; one more may be of the zone.
        Found::Ext { count, .. } => (repaired, count.max(told - repaired)),
    }
}

fn code(checked: &Checked) -> u8 {
    match counts(checked) {
        (0, 0) => 0,
        (_, 0) => exit::FSCK_CORRECTED,
        (0, _) => exit::FSCK_UNCORRECTED,
        (_, _) => exit::FSCK_CORRECTED | exit::FSCK_UNCORRECTED,
    }
}

fn fields(checked: &Checked, place: &VolumePlace) -> Fields {
    let row = |problem: &Problem| {
        Fields::new()
            .with("problem", problem.what.as_str())
            .with("repaired", problem.repaired)
            .with("with_loss", problem.with_loss)
    };
    let problems = Value::Rows(checked.problems.iter().map(row).collect());
    let fields = Fields::new().with("volume", place.to_string());
    match &checked.found {
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
        Found::Ext {
            inodes, blocks_used, log_replayed, needs_recovery, log_damaged, not_checked, ..
        } => fields
            .with("inodes", Value::Count(*inodes))
            .with("blocks_used", Value::Count(*blocks_used))
            .with("log_replayed", *log_replayed)
            .with("needs_recovery", *needs_recovery)
            .with("log_damaged", *log_damaged)
            .with("problems", problems)
            .with("not_checked", not_checked.join("; ")),
    }
}

fn text(checked: &Checked, place: &VolumePlace) -> String {
    let mut text = String::new();
    for problem in &checked.problems {
        let done = match (problem.repaired, problem.with_loss) {
            (true, false) => "repaired",
            (true, true) => "repaired with loss",
            (false, _) => "left",
        };
        text.push_str(&format!("{place}: {} ({done})\n", problem.what));
    }
    let verdict = match counts(checked) {
        (0, 0) => "clean".to_string(),
        (1, 0) => "1 problem, repaired".to_string(),
        (repaired, 0) => format!("{repaired} problems, all repaired"),
        (0, left) => of_them(left, "problem"),
        (repaired, left) => format!("{} repaired, {left} left", of_them(repaired, "problem")),
    };
    match &checked.found {
        Found::Native {
            files, directories, blocks_used, blocks_total, log_replayed, needs_recovery, ..
        } => {
            let replayed = match (log_replayed, needs_recovery) {
                (true, _) => ", log replayed",
                (false, true) => {
                    " as of its newest checkpoint; it was not unmounted cleanly, and mounting, -p or -y replays its log"
                }
                (false, false) => "",
            };
            text.push_str(&format!(
                "{place}: {verdict}{replayed}: {}, {}, {blocks_used} of {blocks_total} blocks used\n",
                of_them(*files, "file"),
                match directories {
                    1 => "1 directory".to_string(),
                    n => format!("{n} directories"),
                },
            ));
        }
        Found::Ext { inodes, blocks_used, log_replayed, needs_recovery, log_damaged, count, not_checked } => {
            for what in not_checked {
                text.push_str(&format!("{place}: {what}, was not checked\n"));
            }
            let on_the_disk = format!("amberfs detach {place}, then e2fsck -f on the disk");
            let advice = match (log_damaged, counts(checked).0) {
                (true, 0) => {
                    format!(
                        "; to go on without what is damaged: amberfs fsck --repair {place}, {on_the_disk}"
                    )
                }
                (false, _) if *count == 0 => String::new(),
                (_, _) => format!("; to repair: {on_the_disk}"),
            };
            let replayed = match (log_replayed, needs_recovery) {
                (true, _) => ", log replayed",
                (false, true) if !log_damaged => {
                    " with its log replayed in memory; it was not unmounted cleanly, and mounting, -p or -y replays it"
                }
                _ => "",
            };
            text.push_str(&format!(
                "{place}: {verdict}{replayed}: {}, {} used{advice}\n",
                of_them(*inodes, "inode"),
                of_them(*blocks_used, "block"),
            ));
        }
    }
    text
}

/// So many, in words: the plural of what only takes an s.
fn of_them(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
