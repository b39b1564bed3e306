//! `amberfs df`: how much space of a volume is used, and what its snapshots have of it.

use std::path::{Path, PathBuf};

use nvm::{VolumeKind, Zone};
use serde_json::Value as Json;

use crate::admin::describe;
use crate::command_line::Df;
use crate::control::{Client, Request, unpack};
use crate::failure::{Explain, Failure, tell};
use crate::place::VolumePlace;
use crate::report::{self, Fields, Value};
use crate::zone_access::{Access, reach};
use crate::{find_server, mount_table};

/// Volumes, and their snapshots.
#[derive(Default)]
struct Answer {
    volumes: Vec<Fields>,
    snapshots: Vec<Fields>,
    /// There may be some, and who knows may not be asked, or cannot tell.
    snapshots_unknown: bool,
}

pub(crate) fn run(arguments: &Df) -> Result<(), Failure> {
    let place = &arguments.place;
    let mut answer = Answer::default();
    if place.volume.is_none() && mount_table::is_directory(&place.zone) {
        answer.add_directory(&place.zone)?;
    } else {
        answer.add_zone(&place.zone, place.volume.as_deref())?;
    }
    let unknown = answer.snapshots_unknown && answer.snapshots.is_empty();
    let snapshots = if unknown { Value::None } else { Value::Rows(answer.snapshots) };
    let fields = Fields::new().with("volumes", Value::Rows(answer.volumes)).with("snapshots", snapshots);
    report::print(&fields, arguments.json)
}

impl Answer {
    fn add(
        &mut self,
        volume: &str,
        bytes: u64,
        free: Option<u64>,
        files: Option<u64>,
        mounted: Option<&Path>,
    ) {
        let used = free.map(|free| bytes.saturating_sub(free));
        let percent = used.map(|used| (used as f64 / bytes.max(1) as f64 * 100.0).round() as u64);
        self.volumes.push(
            Fields::new()
                .with("volume", volume)
                .with("bytes", Value::Bytes(bytes))
                .with("used_bytes", used.map_or(Value::None, Value::Bytes))
                .with("free_bytes", free.map_or(Value::None, Value::Bytes))
                .with("used_percent", percent.map_or(Value::None, Value::Count))
                .with("files", files.map_or(Value::None, Value::Count))
                .with("mounted", mounted.map(|dir| dir.display().to_string()).unwrap_or_default()),
        );
    }

    /// Asks the kernel, which asks the server: works for whoever may use the mount.
    fn add_mounted(&mut self, volume: &str, dir: &Path) -> Result<(), Failure> {
        let answer = rustix::fs::statvfs(dir).map_err(std::io::Error::from);
        let answer = answer.map_err(|error| Failure::new(format!("{}: {error}", dir.display())))?;
        let (bytes, free) = (answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize);
        let files = answer.f_files.saturating_sub(answer.f_ffree);
        self.add(volume, bytes, Some(free), Some(files), Some(dir));
        Ok(())
    }

    /// Adds what `amberfs info` tells of a volume that is not mounted: of a disk that cannot be asked, its size.
    fn add_told(&mut self, volume: &str, told: &Json) {
        let number = |key: &str| told[key].as_u64();
        let main_area = number("blocks").map(|blocks| blocks * nvm::BLOCK);
        let bytes = number("space_bytes").or(main_area).or(number("disk_bytes")).or(number("bytes"));
        if let Some(why) = told["use_not_known"].as_str() {
            tell(format_args!("amberfs: {volume}: how much of it is used is not known: {why}"));
        }
        self.add(volume, bytes.unwrap_or(0), number("free_bytes"), number("inodes"), None);
        self.add_snapshots(volume, told, None);
    }

    /// Adds what it tells of the volume's snapshots, or of one of them.
    fn add_snapshots(&mut self, volume: &str, told: &Json, only: Option<&str>) {
        if let Some(why) = told["snapshots_not_known"].as_str() {
            tell(format_args!("amberfs: {volume}: what snapshots it has is not known: {why}"));
            self.snapshots_unknown = true;
        }
        for snapshot in told["snapshots"].as_array().into_iter().flatten() {
            let name = snapshot["name"].as_str().unwrap_or_default();
            if only.is_some_and(|only| only != name) {
                continue;
            }
            let bytes = |key: &str| snapshot[key].as_u64().map_or(Value::None, Value::Bytes);
            self.snapshots.push(
                Fields::new()
                    .with("volume", volume)
                    .with("snapshot", name)
                    .with("own_bytes", bytes("own_bytes"))
                    .with("shared_bytes", bytes("shared_bytes")),
            );
        }
    }

    fn add_directory(&mut self, dir: &Path) -> Result<(), Failure> {
        let path = mount_table::resolve(dir)?;
        let mounts = mount_table::read()?;
        let mount = path.ancestors().find_map(|above| mounts.iter().rev().find(|mount| mount.dir == above));
        let Some(mount) = mount.filter(|mount| mount.kind == mount_table::TYPE) else {
            return Err(Failure::new(format!("{} is not in a mounted volume", dir.display()))
                .remedy("name a zone, ZONE:VOLUME, or a directory in a mounted volume"));
        };
        let snapshot = snapshot_above(&path, &mount.dir);
        match &snapshot {
            Some((name, root)) => self.add_mounted(&format!("{}@{name}", mount.source), root)?,
            None => self.add_mounted(&mount.source, &mount.dir)?,
        }
        // Only who mounted it, and root, may ask its server.
        let server = find_server::of_mount(&mount.dir);
        self.snapshots_unknown = server.is_none();
        if let Some(mut server) = server {
            let volume = server.volume_at(&mount.dir).unwrap_or_default().to_string();
            if !volume.is_empty() {
                match server.ask(&Request::Info { volume }) {
                    Ok(told) => {
                        let only = snapshot.as_ref().map(|(name, _)| name.as_str());
                        self.add_snapshots(&mount.source, &unpack(told).1, only);
                    }
                    // What is free is known all the same.
                    Err(failure) => {
                        tell(format_args!("amberfs: {failure}"));
                        self.snapshots_unknown = true;
                    }
                }
            }
        }
        Ok(())
    }

    fn add_zone(&mut self, path: &Path, only: Option<&str>) -> Result<(), Failure> {
        let names = |all: Vec<String>| -> Result<Vec<String>, Failure> {
            match only {
                None => Ok(all),
                Some(name) if all.iter().any(|there| there == name) => Ok(vec![name.to_string()]),
                Some(name) => Err(nvm::Error::NoSuchVolume { name: name.to_string(), names: all }.into()),
            }
        };
        match reach(path, false)? {
            Access::Open(zone) => {
                let all =
                    zone.volumes().into_iter().filter(|entry| !entry.unfinished || only == Some(&entry.name));
                let all = all.map(|entry| entry.name).collect();
                for name in names(all)? {
                    self.add_at_rest(&zone, path, &name)?;
                }
            }
            Access::Served(mut client) => {
                for name in names(listed(&mut client, only)?)? {
                    let source = client.source_of(&name);
                    let mount = client.hello.mounts.iter().find(|(volume, _)| *volume == name).cloned();
                    let told = match client.ask(&Request::Info { volume: name.clone() }) {
                        // Removed since the zone was asked what it holds.
                        Err(_) if only.is_none() && !listed(&mut client, only)?.contains(&name) => continue,
                        told => unpack(told?).1,
                    };
                    match mount {
                        Some((_, dir)) if mount_table::place_of(&source, &dir).as_ref() == Some(&dir) => {
                            self.add_mounted(&source, &dir)?;
                            self.add_snapshots(&source, &told, None);
                        }
                        // Or it was detached from there, or is mounted in another namespace.
                        _ => self.add_told(&source, &told),
                    }
                }
            }
        }
        Ok(())
    }

    fn add_at_rest(&mut self, zone: &Zone, path: &Path, name: &str) -> Result<(), Failure> {
        let source = VolumePlace { zone: path.to_path_buf(), volume: name.to_string() }.to_string();
        let region = zone.volume(name).doing("opening the volume")?;
        if matches!(region.kind(), VolumeKind::Native | VolumeKind::Ext) {
            self.add_told(&source, &describe::at_rest(zone, name)?.json());
        } else {
            self.add(&source, region.len(), None, None, None);
        }
        Ok(())
    }
}

/// The volumes that a served zone holds, without those that are being made; `only` even then.
fn listed(client: &mut Client, only: Option<&str>) -> Result<Vec<String>, Failure> {
    let zone = unpack(client.ask(&Request::Zone)?).1;
    let volumes = zone["volumes"].as_array().into_iter().flatten();
    let names = volumes.filter_map(|volume| {
        let name = volume["name"].as_str();
        name.filter(|name| volume["unfinished"] != true || only == Some(*name)).map(String::from)
    });
    Ok(names.collect())
}

/// The snapshot that a path in a mounted volume leads to, and its root directory.
fn snapshot_above(path: &Path, mounted: &Path) -> Option<(String, PathBuf)> {
    let mut names = path.strip_prefix(mounted).ok()?.components();
    if names.next()?.as_os_str() != ".snapshots" {
        return None;
    }
    let name = names.next()?.as_os_str();
    Some((name.to_str()?.to_string(), mounted.join(".snapshots").join(name)))
}
