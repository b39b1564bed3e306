//! Amberfs itself: volumes in this process and mounted.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use native::{FormatOptions, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};

use super::kernel::ext4_disk;
use super::scaffold::{Mount, make_dir, run_unless, touch};
use super::{Peer, Setup};
use crate::target::{Guard, Target};

/// Bytes of NVM for the metadata and synced writes of a disk.
const ATTACHED_NVM: u64 = 128 << 20;

pub(super) fn volume(peer: &Peer, memory: &Path, setup: &Setup) -> Result<Target, String> {
    let options = (setup.native_options)(&peer.mount_options())?;
    let path = memory.join(format!("{}-zone", peer.slug()));
    let zone = Zone::create(&path, setup.bytes + nvm::SEGMENT, false, &OpenOptions::default());
    let zone = zone.map_err(|error| error.to_string())?;
    let region = zone
        .create_volume("bench", VolumeKind::Native, Some(setup.bytes))
        .map_err(|error| error.to_string())?;
    native::format(&region, &FormatOptions::default()).map_err(|error| error.to_string())?;
    touch(&setup.interrupted, &path)?;
    let volume = Volume::open(region, &options).map_err(|error| error.to_string())?;
    Ok(Target::volume(&peer.name, "", volume, zone))
}

/// A disk, on a file in `parent`, with its metadata in NVM, used by this process.
pub(super) fn volume_ext(peer: &Peer, memory: &Path, parent: &Path, setup: &Setup) -> Result<Target, String> {
    let (options, interval) = (setup.ext_options)(&peer.mount_options())?;
    let disk = ext4_disk(peer, parent, parent == memory, setup)?;
    let path = memory.join(format!("{}-zone", peer.slug()));
    let zone = Zone::create(&path, ATTACHED_NVM + nvm::SEGMENT, false, &OpenOptions::default());
    let zone = zone.map_err(|error| error.to_string())?;
    let region = zone.create_volume("bench", VolumeKind::Ext, None).map_err(|error| error.to_string())?;
    let device = disk::Disk::open_path(&disk.path, &disk::OpenOptions::default());
    let device = Arc::new(device.map_err(|error| error.to_string())?);
    ext::attach(&region, &device).map_err(|error| error.to_string())?;
    touch(&setup.interrupted, &path)?;
    let volume = ext::Volume::mount(&region, device, &options).map_err(|error| error.to_string())?;
    let counters = disk.counters();
    let guards = vec![Box::new(disk) as Guard, Box::new(zone) as Guard];
    let target = Target::ext_volume(&peer.name, "", volume, interval).map_err(|error| error.to_string())?;
    Ok(target.over(Some(counters)).kept_by(guards))
}

pub(super) fn mounted(peer: &Peer, memory: &Path, setup: &Setup) -> Result<Target, String> {
    let zone = memory.join(format!("{}-zone", peer.slug()));
    let dir = make_dir(memory.join(peer.slug()))?;
    let program = &setup.program;
    let size = (setup.bytes + nvm::SEGMENT).to_string();
    run_unless(
        &setup.interrupted,
        Command::new(program).args(["zone", "create"]).arg(&zone).args(["--size", &size]),
    )?;
    let place = format!("{}:bench", zone.display());
    run_unless(&setup.interrupted, Command::new(program).args(["mkfs", &place]))?;
    touch(&setup.interrupted, &zone)?;
    let durability = if peer.kind.ends_with("-op") { "durability=op" } else { "durability=fsync" };
    let options = [vec![durability.to_string()], peer.mount_options()].concat().join(",");
    mount(&peer.name, &place, &dir, &options, setup)
}

/// A disk, on a file in `parent`, with its metadata in NVM.
pub(super) fn attached(peer: &Peer, memory: &Path, parent: &Path, setup: &Setup) -> Result<Target, String> {
    let disk = ext4_disk(peer, parent, parent == memory, setup)?;
    let zone = memory.join(format!("{}-zone", peer.slug()));
    let dir = make_dir(memory.join(peer.slug()))?;
    let program = &setup.program;
    let size = (ATTACHED_NVM + nvm::SEGMENT).to_string();
    run_unless(
        &setup.interrupted,
        Command::new(program).args(["zone", "create"]).arg(&zone).args(["--size", &size]),
    )?;
    let place = format!("{}:bench", zone.display());
    run_unless(&setup.interrupted, Command::new(program).args(["attach", &place]).arg(&disk.path))?;
    touch(&setup.interrupted, &zone)?;
    let target = mount(&peer.name, &place, &dir, &peer.mount_options().join(","), setup)?;
    let counters = disk.counters();
    Ok(target.over(Some(counters)).kept_by(vec![Box::new(disk) as Guard]))
}

fn mount(name: &str, place: &str, dir: &Path, options: &str, setup: &Setup) -> Result<Target, String> {
    run_unless(
        &setup.interrupted,
        Command::new(&setup.program).args(["mount", "-o", options, place]).arg(dir),
    )?;
    let mount = Mount { dir: dir.to_path_buf(), program: Some(setup.program.clone()) };
    let target = Target::directory(name, dir, (setup.server)(dir)).map_err(|error| error.to_string())?;
    Ok(target.kept_by(vec![Box::new(mount) as Guard]))
}
