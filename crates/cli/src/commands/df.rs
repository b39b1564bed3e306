//! `amberfs df`: how much space of a volume is used, and what its snapshots have of it.

use std::path::{Path, PathBuf};

use nvm::{VolumeKind, Zone};
use serde_json::Value as Json;

use crate::admin::describe;
use crate::command_line::Df;
use crate::control::{Client, Request, unpack};
use crate::failure::{Explain, Failure, tell};
use crate::mount_table::MountEntry;
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

/// Bytes of a volume, as df(1) counts them.
struct Space {
    bytes: u64,
    used: Option<u64>,
    /// That an ordinary user may take.
    free: Option<u64>,
    files: Option<u64>,
}

impl Space {
    /// Of what there may be used, rounded up, as df(1) has it.
    fn percent(&self) -> Option<u64> {
        let (used, free) = (self.used?, self.free?);
        Some((used * 100).div_ceil((used + free).max(1)))
    }
}

impl Answer {
    fn add(&mut self, volume: &str, space: &Space, mounted: &str) {
        let bytes = |bytes: Option<u64>| bytes.map_or(Value::None, Value::Bytes);
        self.volumes.push(
            Fields::new()
                .with("volume", volume)
                .with("bytes", Value::Bytes(space.bytes))
                .with("used_bytes", bytes(space.used))
                .with("free_bytes", bytes(space.free))
                .with("used_percent", space.percent().map_or(Value::None, Value::Count))
                .with("files", space.files.map_or(Value::None, Value::Count))
                .with("mounted", mounted),
        );
    }

    /// Asks the kernel, which asks the server: works for whoever may use the mount. Whether it did: others, root too, are told of nothing but zeros.
    fn add_mounted(&mut self, volume: &str, dir: &Path) -> Result<bool, Failure> {
        let answer = rustix::fs::statvfs(dir).map_err(std::io::Error::from);
        let answer = answer.map_err(|error| Failure::new(format!("{}: {error}", dir.display())))?;
        if answer.f_bsize == 0 {
            return Ok(false);
        }
        let bytes = |blocks: u64| blocks * answer.f_frsize;
        let space = Space {
            bytes: bytes(answer.f_blocks),
            used: Some(bytes(answer.f_blocks.saturating_sub(answer.f_bfree))),
            free: Some(bytes(answer.f_bavail)),
            files: Some(answer.f_files.saturating_sub(answer.f_ffree)),
        };
        self.add(volume, &space, &dir.display().to_string());
        Ok(true)
    }

    /// Adds what `amberfs info` tells of a volume: of one that is mounted what the kernel would say, wherever that is; of a disk that cannot be
    /// asked, its size.
    fn add_told(&mut self, volume: &str, told: &Json) {
        let number = |key: &str| told[key].as_u64();
        let main_area = number("blocks").map(|blocks| blocks * nvm::BLOCK);
        let bytes = number("space_bytes").or(main_area).or(number("disk_bytes")).or(number("bytes"));
        if let Some(why) = told["use_not_known"].as_str() {
            tell(format_args!("amberfs: {volume}: how much of it is used is not known: {why}"));
        }
        let (bytes, free) = (bytes.unwrap_or(0), number("free_bytes"));
        let used = number("used_bytes").or(free.map(|free| bytes.saturating_sub(free)));
        let space = Space { bytes, used, free, files: number("inodes") };
        self.add(volume, &space, told["mounted"].as_str().unwrap_or_default());
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
        let Some(mount) = mount_table::around(&path)?.filter(MountEntry::is_amberfs) else {
            return Err(Failure::new(format!("{} is not in a mounted volume", dir.display()))
                .remedy("name a zone, ZONE:VOLUME, or a directory in a mounted volume"));
        };
        let snapshot = snapshot_above(&path, &mount);
        let is_added = match &snapshot {
            Some((name, root)) => self.add_mounted(&format!("{}@{name}", mount.source), root)?,
            None => self.add_mounted(&mount.source, &mount.dir)?,
        };
        // Only who mounted it, and root, may ask its server.
        let server = find_server::of_mount(&mount);
        self.snapshots_unknown = server.is_none();
        if let Some((mut server, volume)) = server.filter(|(_, volume)| !volume.is_empty()) {
            match server.ask(&Request::Info { volume }) {
                Ok(told) if !is_added => {
                    self.add_told(&mount.source, &unpack(told).1);
                    return Ok(());
                }
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
        if !is_added {
            let user = mount.user.map_or("another user".to_string(), |user| format!("user {user}"));
            let what =
                format!("{} is mounted for {user} alone, and its server does not answer", mount.source);
            return Err(
                Failure::new(what).remedy(format!("have {user} ask; with -o allow_other everybody may"))
            );
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
                    let told = match client.ask(&Request::Info { volume: name.clone() }) {
                        // Removed since the zone was asked what it holds.
                        Err(_) if only.is_none() && !listed(&mut client, only)?.contains(&name) => continue,
                        told => unpack(told?).1,
                    };
                    self.add_told(&source, &told);
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
            self.add(&source, &Space { bytes: region.len(), used: None, free: None, files: None }, "");
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

/// The snapshot in which a path in a mounted volume is, and a directory by which to ask for its space: its root, unless a directory in it
/// was bound.
fn snapshot_above(path: &Path, mount: &MountEntry) -> Option<(String, PathBuf)> {
    let within = path.strip_prefix(&mount.dir).ok()?;
    let in_volume = mount.root.join(within);
    let mut names = in_volume.strip_prefix("/").ok()?.components();
    if names.next()?.as_os_str() != ".snapshots" {
        return None;
    }
    let name = names.next()?.as_os_str();
    // As many names of the path as lead there from what the mount shows.
    let above = names.count();
    let root = path.ancestors().nth(above).filter(|root| root.starts_with(&mount.dir));
    Some((name.to_str()?.to_string(), root.unwrap_or(&mount.dir).to_path_buf()))
}
