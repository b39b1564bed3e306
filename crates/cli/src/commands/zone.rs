//! `amberfs zone`: make, list, show and change zones.

use std::path::{Path, PathBuf};

use nvm::{OpenOptions, Zone};
use serde_json::Value as Json;

use crate::admin::zone::{self, describe};
use crate::command_line::{RemoveVolume, ZoneCreate, ZoneGrow, ZoneList, ZoneShow};
use crate::control::{Client, Mounted, Request, unpack};
use crate::failure::{Explain, Failure, tell};
use crate::mount_table::{self, Whereabouts};
use crate::place::{Place, utf8};
use crate::report::{self, Fields, Value};
use crate::zone_access::{Access, reach, refuse_mounted};
use crate::{exit, find_server, mount_namespace, size};

pub(crate) fn create(arguments: &ZoneCreate) -> Result<(), Failure> {
    let path = &arguments.path;
    utf8(path).leaving("nothing was made")?;
    let there = path.exists();
    if !there && arguments.size.is_none() {
        return Err(Failure::new(format!("{} is not there", path.display()))
            .doing("making a zone")
            .leaving("nothing was made")
            .remedy(format!(
                "say how large a file to make: amberfs zone create {} --size 1G",
                path.display()
            )));
    }
    let bytes = arguments.size.unwrap_or(0);
    let zone = Zone::create(path, bytes, arguments.force, &OpenOptions::default())
        .doing("making a zone")
        .leaving(if there { "what was there is unchanged" } else { "nothing was made" })?;
    let info = zone.info();
    if arguments.json {
        return report::print(&describe(&zone), true);
    }
    report::print_text(&format!(
        "{}: a zone of {}, {}, persisted by {}\n",
        path.display(),
        size::human(info.bytes),
        info.backing,
        info.persist
    ))
}

pub(crate) fn show(arguments: &ZoneShow) -> Result<(), Failure> {
    let (text, json) = match reach(&arguments.path, false)? {
        Access::Open(zone) => (describe(&zone).text(), describe(&zone).json()),
        Access::Served(mut client) => unpack(client.ask(&Request::Zone)?),
    };
    if arguments.json { report::print_json(&json) } else { report::print_text(&text) }
}

pub(crate) fn list(arguments: &ZoneList) -> Result<(), Failure> {
    let mut rows = if arguments.paths.is_empty() { served() } else { Vec::new() };
    let mut failures = 0;
    for (path, named) in candidates(&arguments.paths) {
        if rows.iter().any(|(there, _)| *there == path) {
            continue;
        }
        match row(&path) {
            Ok(row) => rows.push((path, row)),
            Err(failure) if named => {
                tell(format_args!("amberfs: {}", failure.what));
                failures += 1;
            }
            Err(_) => {}
        }
    }
    if arguments.paths.is_empty() {
        rows.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    let rows = rows.into_iter().map(|(_, row)| row).collect();
    report::print(&Fields::new().with("zones", Value::Rows(rows)), arguments.json)?;
    match failures {
        0 => Ok(()),
        1 => Err(Failure::new("one of the paths is no zone that can be read")),
        more => Err(Failure::new(format!("{more} of the paths are no zones that can be read"))),
    }
}

/// Where to look, and whether the user named just that (and so wants to hear what is wrong with it).
fn candidates(paths: &[PathBuf]) -> Vec<(PathBuf, bool)> {
    let files = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(|path| !path.is_dir()).collect();
        files.sort();
        files
    };
    if !paths.is_empty() {
        let look = |path: &PathBuf| match path.is_dir() {
            true => files(path).into_iter().map(|file| (file, false)).collect(),
            false => vec![(path.clone(), true)],
        };
        return paths.iter().flat_map(look).collect();
    }
    let is_dax = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("dax") || name.starts_with("pmem")
    };
    files(Path::new("/dev")).into_iter().filter(is_dax).map(|path| (path, false)).collect()
}

/// Zones that are being served, as their servers tell of them: what another user's server calls its zone is not opened.
fn served() -> Vec<(PathBuf, Fields)> {
    let told = |client: Client| {
        let path = client.hello.zone.clone();
        Some((path.clone(), served_row(&path, client).ok()?))
    };
    find_server::of_all_zones(told)
}

fn row(path: &Path) -> Result<Fields, Failure> {
    match reach(path, false)? {
        Access::Open(zone) => Ok(listed(path, &describe(&zone).json(), None, &[])),
        Access::Served(client) => served_row(path, client),
    }
}

fn served_row(path: &Path, mut client: Client) -> Result<Fields, Failure> {
    let told = unpack(client.ask(&Request::Zone)?).1;
    Ok(listed(path, &told, Some(client.hello.pid), &client.hello.mounts))
}

/// A zone, its volumes, and those that `server` has mounted.
fn listed(path: &Path, json: &Json, server: Option<u32>, mounted: &[Mounted]) -> Fields {
    let volume = |volume: &Json| {
        let (name, unfinished) = (volume["name"].as_str()?, volume["unfinished"] == true);
        let words = if unfinished { format!("{name} (unfinished)") } else { name.to_string() };
        Some((words, Fields::new().with("name", name).with("unfinished", unfinished)))
    };
    let place = |mount: &Mounted| {
        let (name, dir) = (mount.volume.as_str(), mount.dir.display().to_string());
        let whereabouts = mount_table::whereabouts(&mount.device, &mount.dir);
        let detached = whereabouts == Whereabouts::Nowhere && !server.is_some_and(mount_namespace::is_other);
        let words = format!("{name} {} {dir}", if detached { "detached from" } else { "on" });
        (words, Fields::new().with("volume", name).with("dir", dir).with("detached", detached))
    };
    let volumes = json["volumes"].as_array().into_iter().flatten().filter_map(volume);
    Fields::new()
        .with("path", path.display().to_string())
        .with("bytes", Value::Bytes(json["bytes"].as_u64().unwrap_or(0)))
        .with("free_bytes", Value::Bytes(json["free_bytes"].as_u64().unwrap_or(0)))
        .with("backing", json["backing"].as_str().unwrap_or_default())
        .with("volumes", Value::in_words(volumes))
        .with("mounted", Value::in_words(mounted.iter().map(place)))
}

pub(crate) fn grow(arguments: &ZoneGrow) -> Result<(), Failure> {
    let bytes = arguments.size.unwrap_or(0);
    let (now, free) = match reach(&arguments.path, true)? {
        Access::Open(zone) => zone::grow(&zone, bytes)?,
        Access::Served(mut client) => {
            let answer = client.ask(&Request::Grow { bytes })?;
            (answer["bytes"].as_u64().unwrap_or(0), answer["free_bytes"].as_u64().unwrap_or(0))
        }
    };
    let path = arguments.path.display();
    report::print_text(&format!(
        "{path}: now {}, {} of it free for volumes\n",
        size::human(now),
        size::human(free)
    ))
}

pub(crate) fn remove_volume(arguments: &RemoveVolume) -> Result<(), Failure> {
    let Place { zone: path, volume } = &arguments.place;
    let (path, name) = match (volume, &arguments.name) {
        (Some(volume), None) => (path.clone(), volume.clone()),
        (None, Some(name)) => (path.clone(), name.clone()),
        // The path has colons, and nothing is there.
        (Some(volume), Some(name)) => (PathBuf::from(format!("{}:{volume}", path.display())), name.clone()),
        (None, None) => {
            let what =
                format!("'{0}' names no volume: write ZONE:VOLUME, for example {0}:home", path.display());
            return Err(Failure::new(what).leaving("nothing was removed").exit(exit::USAGE));
        }
    };
    match reach(&path, true)? {
        Access::Open(zone) => zone::remove_volume(&zone, &name, arguments.force)?,
        Access::Served(mut client) => {
            refuse_mounted(&client, &name).leaving("nothing was removed")?;
            client.ask(&Request::RemoveVolume { volume: name.clone(), force: arguments.force })?;
        }
    }
    report::print_text(&format!("{}: removed volume '{name}'\n", path.display()))
}
