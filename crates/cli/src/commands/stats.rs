//! `amberfs stats`: what a mounted volume has done, from its server.

use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::command_line::Stats;
use crate::control::{Client, Request, unpack};
use crate::failure::Failure;
use crate::find_server;
use crate::report;
use crate::zone_access::{Access, reach};
use crate::{mount_table, size};

pub(crate) fn run(arguments: &Stats) -> Result<(), Failure> {
    let (mut client, volume) = find(arguments)?;
    let request = Request::Stats { volume };
    if arguments.watch {
        return watch(&mut client, &request, arguments.json);
    }
    let (text, json) = unpack(client.ask(&request)?);
    if arguments.json { report::print_json(&json) } else { report::print_text(&text) }
}

fn find(arguments: &Stats) -> Result<(Client, String), Failure> {
    let place = &arguments.place;
    let not_served = |what: String| {
        Failure::new(what).doing("looking for its server").remedy(
            "accounts are kept while a volume is mounted: name a mounted volume of yours, or where it is mounted",
        )
    };
    if place.volume.is_none() && mount_table::is_directory(&place.zone) {
        let dir = mount_table::resolve(&place.zone)?;
        return find_server::volume_of_mount(&dir);
    }
    let client = match reach(&place.zone, false)? {
        Access::Served(client) => client,
        Access::Open(_) => {
            return Err(not_served(format!("no volume of {} is mounted", place.zone.display())));
        }
    };
    let volume = match (&place.volume, &client.hello.mounts[..]) {
        (Some(volume), _) => volume.clone(),
        (None, [mounted]) => mounted.volume.clone(),
        (None, mounts) => {
            let names: Vec<&str> = mounts.iter().map(|mounted| mounted.volume.as_str()).collect();
            return Err(Failure::new(format!("the zone has several volumes mounted: {}", names.join(", ")))
                .remedy("name one as ZONE:VOLUME"));
        }
    };
    Ok((client, volume))
}

/// What was done in each second, a line each.
fn watch(client: &mut Client, request: &Request, json: bool) -> Result<(), Failure> {
    const PERIOD: Duration = Duration::from_secs(1);
    let mut before = unpack(client.ask(request)?).1;
    if !json {
        report::print_text(
            " user written     user read   changes     syncs  NVM written     lines    fences\n",
        )?;
    }
    let mut next = Instant::now() + PERIOD;
    loop {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        next += PERIOD;
        // A server that is gone served what it had to.
        let Ok(Some(answer)) = client.send(request).and_then(|()| client.receive()) else { return Ok(()) };
        let now = unpack(answer).1;
        let is_read = if json {
            report::print_while_read(&format!("{now}\n"))?
        } else {
            let since = |path: &str| number(&now, path).saturating_sub(number(&before, path));
            let to_nvm = |what: &str| total(&now, what).saturating_sub(total(&before, what));
            report::print_while_read(&format!(
                "{:>13} {:>13} {:>9} {:>9} {:>12} {:>9} {:>9}\n",
                size::human(since("/user/bytes_written")),
                size::human(since("/user/bytes_read")),
                since("/user/changes"),
                since("/user/syncs"),
                size::human(to_nvm("bytes")),
                to_nvm("lines_flushed") + to_nvm("lines_streamed"),
                since("/nvm/fences"),
            ))?
        };
        if !is_read {
            return Ok(());
        }
        before = now;
    }
}

/// Of all that was written to NVM, whatever for.
fn total(json: &Json, what: &str) -> u64 {
    let rows = json.pointer("/nvm/written").and_then(Json::as_array);
    let total = rows.and_then(|rows| rows.iter().find(|row| row["purpose"] == "total"));
    total.and_then(|row| row[what].as_u64()).unwrap_or(0)
}

fn number(json: &Json, path: &str) -> u64 {
    json.pointer(path).and_then(Json::as_u64).unwrap_or(0)
}
