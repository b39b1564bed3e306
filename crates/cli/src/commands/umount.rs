//! `amberfs umount`: unmounts, and waits until the server has closed the volume and let go of the zone.

use std::path::Path;
use std::time::Duration;

use crate::command_line::{Detach, Umount};
use crate::commands::attach;
use crate::control::{Client, Request, unpack};
use crate::exit;
use crate::failure::{Explain, Failure};
use crate::place::VolumePlace;
use crate::runtime_directory::this_user;
use crate::{find_server, mount_namespace, mount_table, report};

/// How long a lazy unmount waits for a volume that nobody uses to close.
const LAZY_PATIENCE: Duration = Duration::from_secs(2);
/// How long another user's server may take to read that its mount is to end, and to close the volume then.
const READING_PATIENCE: Duration = Duration::from_secs(2);
const CLOSING_PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: &Umount) -> Result<u8, Failure> {
    let fail = |failure: Failure| failure.doing("unmounting").exit(exit::MOUNT_FAILED);
    if let Some(namespace) = &arguments.namespace {
        mount_namespace::enter(namespace).map_err(fail)?;
    }
    let dir = mount_table::resolve(&arguments.dir)
        .map_err(|error| fail(Failure::new(format!("{}: {error}", arguments.dir.display()))))?;
    // Before anybody is asked: what is unmounted behind an answer is what was meant before the question.
    let mounted = fuse::MountPoint::at(&dir).map_err(|error| fail(error.into()))?;
    let entry = mount_table::at(&dir).map_err(|error| fail(error.into()))?;
    match entry {
        Some(ref entry) if entry.kind == mount_table::TYPE => {}
        Some(ref entry) => {
            let what = format!("{} is a mount of type {}, not of Amberfs", dir.display(), entry.kind);
            return Err(fail(Failure::new(what).leaving("it stays mounted").remedy("use umount(8)")));
        }
        None => {
            let what = format!("{} is not a mount point", dir.display());
            return Err(fail(Failure::new(what).leaving("nothing was unmounted")));
        }
    }
    if let Some(user) = entry.as_ref().and_then(|entry| entry.user).filter(|user| *user != this_user())
        && arguments.detach
    {
        let what = format!("{} was mounted by user {user}, who says what volume it is of", dir.display());
        let remedy =
            "unmount it without --detach; 'amberfs detach ZONE:VOLUME' does that of a volume that you name";
        return Err(fail(Failure::new(what).leaving("it stays mounted").remedy(remedy)));
    }
    let mut server = find_server::of_mount(&dir);
    let place = match (&entry, arguments.detach) {
        (Some(entry), true) => Some(with_disk(&entry.source, server.as_mut()).map_err(fail)?),
        _ => None,
    };
    // Asked before, answered after: the server's answer is what we wait for. One that has read the request does not end without it.
    if let Some(client) = &mut server {
        let volume = client.volume_at(&dir).unwrap_or_default().to_string();
        if client.is_others() {
            client.limit_waiting(READING_PATIENCE);
        }
        match client.send(&Request::Ended { volume }).and_then(|()| client.receive()) {
            Ok(_) => {}
            // Another user's server does not keep root from unmounting.
            Err(_) if client.is_others() => server = None,
            Err(failure) => return Err(fail(failure)),
        }
    }
    mounted.unmount(arguments.lazy).map_err(|error| {
        let busy = matches!(error, fuse::Error::Busy(_));
        let failure = fail(Failure::new(error).leaving("it stays mounted and in service"));
        if busy {
            failure.remedy("'fuser -vm DIR' tells who uses it; 'amberfs umount --lazy' detaches it")
        } else {
            failure
        }
    })?;
    let disk = match server {
        Some(client) => wait(client, &dir, arguments.lazy)?,
        None => {
            report::print_text(&format!(
                "{}: unmounted; its server was not there, or is another user's: the next mount recovers what it left\n",
                dir.display()
            ))?;
            None
        }
    };
    if let Some(place) = place {
        let state = "it is unmounted, and its disk attached still";
        let detached = attach::detach(&Detach { place, disk }).leaving(state).exit(exit::MOUNT_FAILED);
        detached.map_err(|failure| Failure { again: false, ..failure })?; // half is done
    }
    Ok(0)
}

/// The volume that is mounted, which has a disk as far as its server can tell.
fn with_disk(source: &str, server: Option<&mut Client>) -> Result<VolumePlace, Failure> {
    let no_disk =
        |what: String| Failure::new(what).leaving("it stays mounted").remedy("unmount it without --detach");
    let place: VolumePlace = source.parse().map_err(no_disk)?;
    if let Some(server) = server {
        let told = unpack(server.ask(&Request::Info { volume: place.volume.clone() })?).1;
        if told["attached"] != true {
            return Err(no_disk(format!(
                "{place} is of kind {}, and has no disk",
                told["kind"].as_str().unwrap_or("?")
            )));
        }
    }
    Ok(place)
}

/// Waits until the volume is closed; says where its disk was, if that is not where it was attached.
fn wait(mut client: Client, dir: &Path, lazy: bool) -> Result<Option<String>, Failure> {
    if lazy {
        client.limit_waiting(LAZY_PATIENCE);
    } else if client.is_others() {
        client.limit_waiting(CLOSING_PATIENCE);
    }
    match client.receive() {
        // Killed in the middle of it, or ended by a second signal.
        Ok(None) if !lazy && !client.is_others() => {
            Err(Failure::new("the server ended before it said that the volume is closed")
                .leaving("it is unmounted; the next mount recovers what is in NVM")
                .exit(exit::MOUNT_FAILED))
        }
        Ok(answer) => {
            // The last volume of a zone: the server lets go of the zone and ends.
            let told = answer.unwrap_or_default();
            if told["last"] == true {
                client.wait_for_end();
            }
            Ok(told["disk"].as_str().map(String::from))
        }
        Err(_) if lazy => {
            report::print_text(&format!(
                "{}: detached; it ends when the last file in use is closed\n",
                dir.display()
            ))?;
            Ok(None)
        }
        Err(failure) if client.is_others() => {
            report::print_text(&format!("{}: unmounted; {}\n", dir.display(), failure.what))?;
            Ok(None)
        }
        Err(failure) => Err(failure.leaving("it is unmounted").exit(exit::MOUNT_FAILED)),
    }
}
