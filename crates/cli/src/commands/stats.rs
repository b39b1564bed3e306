//! `amberfs stats`: what a mounted volume has done, from its server.

use std::time::{Duration, Instant};

use nvm::{Account, Purpose, Written};
use serde_json::Value as Json;

use crate::command_line::Stats;
use crate::control::{Client, Request};
use crate::failure::Failure;
use crate::find_server;
use crate::report::{self, Fields, Value};
use crate::{mount_table, size};

pub(crate) fn run(arguments: &Stats) -> Result<(), Failure> {
    let (mut client, volume) = find(arguments)?;
    let request = Request::Stats { volume };
    if arguments.watch {
        return watch(&mut client, &request, arguments.json);
    }
    let (text, json) = super::zone::unpack(client.ask(&request)?);
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
    let client = find_server::of_zone(&place.zone);
    let client =
        client.ok_or_else(|| not_served(format!("no volume of {} is mounted", place.zone.display())))?;
    let volume = match (&place.volume, &client.hello.mounts[..]) {
        (Some(volume), _) => volume.clone(),
        (None, [(volume, _)]) => volume.clone(),
        (None, mounts) => {
            let names: Vec<&str> = mounts.iter().map(|(volume, _)| volume.as_str()).collect();
            return Err(Failure::new(format!("the zone has several volumes mounted: {}", names.join(", ")))
                .remedy("name one as ZONE:VOLUME"));
        }
    };
    Ok((client, volume))
}

/// What a native volume says of itself.
pub(crate) fn native(stats: &native::Stats) -> Fields {
    let fields = Fields::new()
        .with("transactions", Value::Count(stats.transactions))
        .with("checkpoints", Value::Count(stats.checkpoints))
        .with("log_bytes", Value::Bytes(stats.log_bytes))
        .with("log_used_bytes", Value::Bytes(stats.log_used_bytes));
    caches(fields, stats)
        .with("nat_cache_bytes", Value::Bytes(stats.nat_cache_bytes))
        .with("segment_cache_bytes", Value::Bytes(stats.segment_cache_bytes))
        .with("hint_cache_bytes", Value::Bytes(stats.hint_cache_bytes))
        .with("snapshot_views", Value::Count(stats.snapshot_views))
        .with("snapshot_cache_bytes", Value::Bytes(stats.snapshot_cache_bytes))
        .with("epoch_nodes", Value::Count(stats.epoch_nodes))
        .with("open_handles", Value::Count(stats.open_handles))
        .with("blocks_free", Value::Count(stats.blocks_free))
        .with("blocks_total", Value::Count(stats.blocks_total))
        .with("segments_empty", Value::Count(stats.segments_empty))
        .with("segments_emptied", Value::Count(stats.segments_emptied))
}

/// DRAM: what caches may take, what they take, and what is there once.
pub(crate) fn caches(fields: Fields, stats: &native::Stats) -> Fields {
    fields
        .with("cache_limit_bytes", stats.cache_limit_bytes.map_or(Value::None, Value::Bytes))
        .with("cache_bytes", Value::Bytes(stats.cache_bytes))
        .with("table_bytes", Value::Bytes(stats.table_bytes))
}

/// What opening a volume had to do.
pub(crate) fn recovery(recovery: &native::Recovery) -> Fields {
    Fields::new()
        .with("was_clean", recovery.was_clean)
        .with("transactions_replayed", Value::Count(recovery.transactions_replayed))
        .with("log_bytes_replayed", Value::Bytes(recovery.log_bytes_replayed))
        .with("orphans_reclaimed", Value::Count(recovery.orphans_reclaimed))
        .with("seconds", Value::Seconds(recovery.duration.as_secs_f64()))
}

/// Stores by purpose, with their sum.
pub(crate) fn account(account: &Account) -> Fields {
    let row = |name: String, written: Written| {
        Fields::new()
            .with("purpose", name)
            .with("bytes", Value::Bytes(written.bytes))
            .with("lines_flushed", Value::Count(written.lines_flushed))
            .with("lines_streamed", Value::Count(written.lines_streamed))
    };
    let mut rows: Vec<Fields> =
        Purpose::ALL.iter().map(|purpose| row(purpose.to_string(), account.of(*purpose))).collect();
    rows.push(row("total".to_string(), account.total()));
    Fields::new().with("written", Value::Rows(rows)).with("fences", Value::Count(account.fences))
}

/// What was done in each second, a line each.
fn watch(client: &mut Client, request: &Request, json: bool) -> Result<(), Failure> {
    const PERIOD: Duration = Duration::from_secs(1);
    let mut before = super::zone::unpack(client.ask(request)?).1;
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
        let now = super::zone::unpack(answer).1;
        if json {
            report::print_text(&format!("{now}\n"))?;
        } else {
            let since = |path: &str| number(&now, path).saturating_sub(number(&before, path));
            let lines = since("/nvm/written/4/lines_flushed") + since("/nvm/written/4/lines_streamed");
            report::print_text(&format!(
                "{:>13} {:>13} {:>9} {:>9} {:>12} {:>9} {:>9}\n",
                size::human(since("/user/bytes_written")),
                size::human(since("/user/bytes_read")),
                since("/user/changes"),
                since("/user/syncs"),
                size::human(since("/nvm/written/4/bytes")),
                lines,
                since("/nvm/fences"),
            ))?;
        }
        before = now;
    }
}

fn number(json: &Json, path: &str) -> u64 {
    json.pointer(path).and_then(Json::as_u64).unwrap_or(0)
}
