//! Reaching a zone: opening it, or asking the server that has it open.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use nvm::{OpenOptions, Zone};

use crate::control::{Client, Mounted};
use crate::failure::{Explain, Failure, tell};
use crate::mount_table::Whereabouts;
use crate::options::Options;
use crate::place::{Place, VolumePlace};
use crate::{find_server, mount_namespace, mount_table};

/// How long a server that no longer answers may take to let go of its zone: umount(8) does not wait for it.
pub(crate) const ENDING_PATIENCE: Duration = Duration::from_secs(3);
pub(crate) const ENDING_PAUSE: Duration = Duration::from_millis(10);

/// The same for who is to serve it.
const SERVER_PATIENCE: Duration = Duration::from_secs(5);

/// A zone within reach.
pub(crate) enum Access {
    /// Open in this process.
    Open(Zone),
    /// Open in a server, which answers for it.
    Served(Client),
}

/// Opens a zone, to change it or only to look, or finds its server.
pub(crate) fn reach(path: &Path, change: bool) -> Result<Access, Failure> {
    let options = OpenOptions { read_only: !change, ..OpenOptions::default() };
    let patience = Instant::now() + ENDING_PATIENCE;
    // A zone that cannot be written to its server has open to be read, and then that keeps nobody away.
    if !change
        && rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_err()
        && let Some(client) = find_server::of_zone(path)
    {
        return Ok(Access::Served(client));
    }
    loop {
        match Zone::open(path, &options) {
            Ok(zone) => {
                tell_of_unfinished(&zone);
                return Ok(Access::Open(zone));
            }
            Err(error @ nvm::Error::Locked { .. }) => match find_server::of_zone(path) {
                Some(client) => return Ok(Access::Served(client)),
                None if Instant::now() < patience => std::thread::sleep(ENDING_PAUSE),
                None => return Err(Failure::new(error).doing("opening the zone")),
            },
            Err(error) => return Err(Failure::new(error).doing("opening the zone")),
        }
    }
}

/// Who has the zone of a volume open, and the volume's name.
pub(crate) enum Reached {
    Served(Client, String),
    Open(Zone, String),
}

/// Reaches a volume, which may be named by where it is mounted.
pub(crate) fn reach_volume(place: &Place, changes: bool) -> Result<Reached, Failure> {
    match &place.volume {
        None => {
            let dir = mount_table::resolve(&place.zone)?;
            let (client, volume) = find_server::volume_of_mount(&dir)?;
            Ok(Reached::Served(client, volume))
        }
        Some(volume) => Ok(match reach(&place.zone, changes)? {
            Access::Served(client) => Reached::Served(client, volume.clone()),
            Access::Open(zone) => Reached::Open(zone, volume.clone()),
        }),
    }
}

/// Why a volume that the server `pid` has mounted cannot be had: it is there, or it was detached and is in use still.
pub(crate) fn is_mounted(source: &str, mounted: &Mounted, pid: u32) -> Failure {
    let now = mount_table::whereabouts(&mounted.device, &mounted.dir);
    match now {
        Whereabouts::Nowhere if mount_namespace::is_other(pid) => is_shown(source, &mounted.dir)
            .remedy(format!("amberfs umount -N {pid} {}", mounted.dir.display())),
        Whereabouts::Shown(dir) => is_shown(source, &dir).remedy(format!("amberfs umount {}", dir.display())),
        Whereabouts::Covered(dir) => {
            let dir = dir.display();
            Failure::new(format!("{source} is mounted on {dir}, and something else over it"))
                .remedy(format!("unmount what covers {dir}, then: amberfs umount {dir}"))
        }
        // Nobody may use it, and its server be a moment from closing it: umount(8) does not wait.
        Whereabouts::Nowhere => {
            let dir = mounted.dir.display();
            let remedy = format!(
                "close what is open of it, leave its directories, and end what has it mounted in another mount namespace; or 'kill {pid}', \
                 and once more: that ends its server, and whoever uses it gets errors"
            );
            let what = format!("{source} was detached from {dir}, and is in use still");
            Failure { again: true, ..Failure::new(what).remedy(remedy) }
        }
    }
}

fn is_shown(source: &str, dir: &Path) -> Failure {
    Failure::new(format!("{source} is mounted on {}", dir.display()))
}

/// The same before a command changes, or checks, a volume of a served zone.
pub(crate) fn refuse_mounted(client: &Client, volume: &str) -> Result<(), Failure> {
    match client.mount_of(volume) {
        Some(mounted) => Err(is_mounted(&client.source_of(volume), mounted, client.hello.pid)),
        None => Ok(()),
    }
}

/// Says what opening the zone has removed.
pub(crate) fn tell_of_unfinished(zone: &Zone) {
    let info = zone.info();
    for volume in info.removed_unfinished {
        let zone = info.path.display();
        tell(format_args!(
            "amberfs: {zone}: making volume '{volume}' had been cut off; what there was of it is removed"
        ));
    }
}

/// Opens a zone that no server may have: what is wanted cannot be done beside one.
pub(crate) fn open_alone(path: &Path, change: bool) -> Result<Zone, Failure> {
    match reach(path, change)? {
        Access::Open(zone) => Ok(zone),
        Access::Served(client) => {
            let mounts = client.hello.mounts.iter();
            let dirs: Vec<String> =
                mounts.clone().map(|mount| format!("amberfs umount {}", mount.dir.display())).collect();
            let mounts: Vec<String> =
                mounts.map(|mount| format!("{} on {}", mount.volume, mount.dir.display())).collect();
            Err(Failure::new(format!(
                "{} is in use: process {} serves {}",
                path.display(),
                client.hello.pid,
                mounts.join(", ")
            ))
            .doing("opening the zone")
            .leaving("nothing was changed")
            .remedy(dirs.join("; ")))
        }
    }
}

/// Opens it for a server: for writing, wherever its file can be written to, whatever the first mount asks for: other volumes of the zone are to be
/// mounted and changed beside it, and a mount that is read-only is so by its own options. One that another server has meanwhile is in use.
pub(crate) fn open_to_serve(place: &VolumePlace, options: &Options) -> Result<Zone, Failure> {
    let open = |read_only| {
        let how = OpenOptions {
            persist: options.persist,
            technology: options.technology,
            read_only,
            ..OpenOptions::default()
        };
        let patience = Instant::now() + SERVER_PATIENCE;
        loop {
            match Zone::open(&place.zone, &how) {
                // Who has it may be a command, a server that ends, or one that is just begun, which is to be asked then.
                Err(nvm::Error::Locked { .. }) if Instant::now() < patience && !has_mounts(&place.zone) => {
                    std::thread::sleep(ENDING_PAUSE)
                }
                opened => return opened,
            }
        }
    };
    let opened = match open(false) {
        Err(nvm::Error::Io { source, .. }) if options.read_only && is_refused(&source) => open(true),
        opened => opened,
    };
    let zone = opened.doing("opening the zone")?;
    tell_of_unfinished(&zone);
    Ok(zone)
}

/// Whether a server has something of the zone mounted.
fn has_mounts(zone: &Path) -> bool {
    find_server::of_zone(zone).is_some_and(|client| !client.hello.mounts.is_empty())
}

/// Whether that is what the system says of a file that may be read and not written.
fn is_refused(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied)
}
