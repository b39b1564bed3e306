//! `amberfs snapshot diff`: what differs between snapshots, a line each.

use rustix::fs::Access;
use serde_json::{Value as Json, json};

use crate::admin::differences::{Pair, tell};
use crate::command_line::SnapshotDiff;
use crate::control::Request;
use crate::failure::Failure;
use crate::report::{self, Parts};
use crate::zone_access::{Reached, reach_volume};

pub(crate) fn run(arguments: &SnapshotDiff) -> Result<(), Failure> {
    let named = &arguments.named;
    let pair = Pair { from: named.name.clone(), to: arguments.to.clone() };
    // What the volume is now may have to be recovered first.
    let changes = pair.to.is_none() && rustix::fs::access(&named.place.zone, Access::WRITE_OK).is_ok();
    let compare = |take: &mut Parts<'_>| match reach_volume(&named.place, changes)? {
        Reached::Served(mut client, volume) => {
            client.ask_for_parts(&Request::SnapshotDiff { volume, pair: pair.clone() }, take).map(drop)
        }
        Reached::Open(zone, volume) => tell(&pair.of_unmounted(&zone, &volume)?, take),
    };
    if !named.json {
        return compare(&mut |part| {
            report::print_text(&part.as_array().into_iter().flatten().map(line).collect::<String>())
        });
    }
    // As text, which takes a tenth of what values would.
    let mut rows = String::new();
    compare(&mut |part| {
        for row in part.as_array().into_iter().flatten() {
            rows.push_str(if rows.is_empty() { "" } else { "," });
            rows.push_str(&row.to_string());
        }
        Ok(())
    })?;
    let (from, to) = (json!(pair.from), json!(pair.to));
    report::print_text(&format!("{{\"from\":{from},\"to\":{to},\"differences\":[{rows}]}}\n"))
}

/// A difference as text; a directory's path has a slash at its end.
fn line(row: &Json) -> String {
    let path = |key: &str| {
        let path = row[key].as_str().unwrap_or_default();
        let slash = if row["type"] == "directory" && path != "/" { "/" } else { "" };
        format!("{path}{slash}")
    };
    match row["change"].as_str() {
        Some("removed") => format!("- {}\n", path("path")),
        Some("added") => format!("+ {}\n", path("path")),
        Some("renamed") => format!("R {} -> {}\n", path("from"), path("path")),
        _ => format!("M {}\n", path("path")),
    }
}
