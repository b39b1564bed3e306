//! `amberfs snapshot`: the snapshots of a volume, by its server if it is mounted, else by opening it.

use std::io::IsTerminal;

use crate::admin::snapshots::{self, Ask};
use crate::command_line::{SnapshotCommand, SnapshotNamed};
use crate::commands::snapshot_diff;
use crate::control::{Copied, Request, unpack};
use crate::failure::{Failure, tell_at_once};
use crate::place::Place;
use crate::report;
use crate::size;
use crate::zone_access::{Reached, reach_volume};

pub(crate) fn run(command: &SnapshotCommand) -> Result<(), Failure> {
    let about = |named: &SnapshotNamed| (named.name.clone(), named.place.clone(), named.json);
    let (ask, place, json) = match command {
        SnapshotCommand::List(query) => (Ask::List, query.place.clone(), query.json),
        SnapshotCommand::Show(named) => {
            let (name, place, json) = about(named);
            (Ask::Show { name }, place, json)
        }
        SnapshotCommand::Diff(arguments) => return snapshot_diff::run(arguments),
        SnapshotCommand::Take(arguments) => {
            let (name, place, json) = about(&arguments.named);
            (Ask::Take { name, comment: arguments.comment.clone() }, place, json)
        }
        SnapshotCommand::Remove(arguments) => {
            let (name, place, json) = about(&arguments.named);
            (Ask::Remove { name, wait: arguments.wait }, place, json)
        }
        SnapshotCommand::Prune(arguments) => {
            let keep = arguments.keep.to_string();
            (Ask::Prune { keep, dry_run: arguments.dry_run }, arguments.place.clone(), arguments.json)
        }
        SnapshotCommand::Hold(arguments) => {
            let (name, place, json) = about(&arguments.named);
            (Ask::Hold { name, tag: arguments.tag.clone() }, place, json)
        }
        SnapshotCommand::Release(arguments) => {
            let (name, place, json) = about(&arguments.named);
            (Ask::Release { name, tag: arguments.tag.clone() }, place, json)
        }
        SnapshotCommand::Rollback(arguments) => {
            let (name, place, json) = about(&arguments.named);
            (Ask::RollBack { name, discard_newer: arguments.discard_newer }, place, json)
        }
        SnapshotCommand::Clone(arguments) => {
            let (name, place, json) = about(&arguments.named);
            (Ask::Clone { name, to: arguments.to.clone() }, place, json)
        }
    };
    let (text, answer) = ask_volume(&place, &ask)?;
    match (json, &ask) {
        (true, _) => report::print_json(&answer),
        (false, Ask::List | Ask::Show { .. } | Ask::Prune { .. }) => report::print_text(&text),
        (false, _) => Ok(()), // it has happened
    }
}

fn ask_volume(place: &Place, ask: &Ask) -> Result<(String, serde_json::Value), Failure> {
    match reach_volume(place, !ask.changes_nothing())? {
        Reached::Served(mut client, volume) => {
            let mut show = progress();
            let request = Request::Snapshot { volume, ask: ask.clone() };
            let answer = client.ask_for_parts(&request, &mut |part| {
                let Copied { done, all } = serde_json::from_value(part).map_err(Failure::new)?;
                show(done, all);
                Ok(())
            })?;
            Ok(unpack(answer))
        }
        Reached::Open(zone, volume) => {
            let fields = snapshots::of_unmounted(&zone, &volume, ask, &mut progress())?;
            Ok((fields.text(), fields.json()))
        }
    }
}

/// Shows on a terminal how far copying has come.
fn progress() -> impl FnMut(u64, u64) {
    let shown = std::io::stderr().is_terminal();
    move |done, all| {
        if shown {
            let end = if done == all { "\n" } else { "" };
            tell_at_once(format_args!("\r{} of {} copied{end}", size::human(done), size::human(all)));
        }
    }
}
