//! `amberfs df`: how much space of a volume is used.

use std::path::Path;

use nvm::{VolumeKind, Zone};

use crate::command_line::Df;
use crate::control::Request;
use crate::failure::{Explain, Failure};
use crate::mount_table;
use crate::place::VolumePlace;
use crate::report::{self, Fields, Value};
use crate::zone_access::{Access, reach};

pub(crate) fn run(arguments: &Df) -> Result<(), Failure> {
    let place = &arguments.place;
    let rows = if place.volume.is_none() && place.zone.is_dir() {
        vec![of_directory(&place.zone)?]
    } else {
        of_zone(&place.zone, place.volume.as_deref())?
    };
    report::print(&Fields::new().with("volumes", Value::Rows(rows)), arguments.json)
}

fn row(volume: &str, bytes: u64, free: Option<u64>, files: Option<u64>, mounted: &str) -> Fields {
    let used = free.map(|free| bytes.saturating_sub(free));
    let percent = used.map(|used| (used as f64 / bytes.max(1) as f64 * 100.0).round() as u64);
    Fields::new()
        .with("volume", volume)
        .with("bytes", Value::Bytes(bytes))
        .with("used_bytes", used.map_or(Value::None, Value::Bytes))
        .with("free_bytes", free.map_or(Value::None, Value::Bytes))
        .with("used_percent", percent.map_or(Value::None, Value::Count))
        .with("files", files.map_or(Value::None, Value::Count))
        .with("mounted", mounted)
}

/// Asks the kernel, which asks the server: works for whoever may use the mount.
fn of_mount(source: &str, dir: &Path) -> Result<Fields, Failure> {
    let answer = rustix::fs::statvfs(dir).map_err(std::io::Error::from);
    let answer = answer.map_err(|error| Failure::new(format!("{}: {error}", dir.display())))?;
    let (bytes, free) = (answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize);
    let files = answer.f_files.saturating_sub(answer.f_ffree);
    Ok(row(source, bytes, Some(free), Some(files), &dir.display().to_string()))
}

fn of_directory(dir: &Path) -> Result<Fields, Failure> {
    let path = mount_table::resolve(dir)?;
    let mounts = mount_table::read()?;
    let mount = path.ancestors().find_map(|above| mounts.iter().rev().find(|mount| mount.dir == above));
    match mount {
        Some(mount) if mount.kind == mount_table::TYPE => of_mount(&mount.source, &mount.dir),
        _ => Err(Failure::new(format!("{} is not in a mounted volume", dir.display()))
            .remedy("name a zone, ZONE:VOLUME, or a directory in a mounted volume")),
    }
}

fn of_zone(path: &Path, only: Option<&str>) -> Result<Vec<Fields>, Failure> {
    let names = |all: Vec<String>| -> Result<Vec<String>, Failure> {
        match only {
            None => Ok(all),
            Some(name) if all.iter().any(|there| there == name) => Ok(vec![name.to_string()]),
            Some(name) => Err(nvm::Error::NoSuchVolume { name: name.to_string(), names: all }.into()),
        }
    };
    match reach(path, false)? {
        Access::Open(zone) => {
            let all = zone.volumes().into_iter().map(|entry| entry.name).collect();
            names(all)?.iter().map(|name| of_volume(&zone, path, name)).collect()
        }
        Access::Served(mut client) => {
            let zone = super::zone::unpack(client.ask(&Request::Zone)?).1;
            let volumes: Vec<_> = zone["volumes"].as_array().cloned().unwrap_or_default();
            let all = volumes.iter().filter_map(|volume| volume["name"].as_str().map(String::from)).collect();
            let mut rows = Vec::new();
            for name in names(all)? {
                let source =
                    VolumePlace { zone: client.hello.zone.clone(), volume: name.clone() }.to_string();
                if let Some((_, dir)) = client.hello.mounts.iter().find(|(volume, _)| *volume == name) {
                    rows.push(of_mount(&source, &dir.clone())?);
                } else {
                    let info = super::zone::unpack(client.ask(&Request::Info { volume: name })?).1;
                    let number = |key: &str| info[key].as_u64();
                    rows.push(row(
                        &source,
                        number("bytes").unwrap_or(0),
                        number("free_bytes"),
                        number("inodes"),
                        "",
                    ));
                }
            }
            Ok(rows)
        }
    }
}

fn of_volume(zone: &Zone, path: &Path, name: &str) -> Result<Fields, Failure> {
    let region = zone.volume(name).doing("opening the volume")?;
    let source = VolumePlace { zone: path.to_path_buf(), volume: name.to_string() }.to_string();
    if region.kind() != VolumeKind::Native || !native::recognise(&region) {
        return Ok(row(&source, region.len(), None, None, ""));
    }
    let info = native::info(&region).doing("reading the volume's newest checkpoint")?;
    Ok(row(&source, info.blocks * nvm::BLOCK, Some(info.blocks_free * nvm::BLOCK), Some(info.inodes), ""))
}
