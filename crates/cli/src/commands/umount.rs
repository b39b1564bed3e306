//! `amberfs umount`: unmounts, and waits until the server has closed the volume and let go of the zone.

use std::path::Path;
use std::time::Duration;

use crate::command_line::Umount;
use crate::control::{self, Client, Request};
use crate::exit;
use crate::failure::Failure;
use crate::{mount_namespace, mount_table, report};

/// How long a lazy unmount waits for a volume that nobody uses to close.
const LAZY_PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn run(arguments: &Umount) -> Result<u8, Failure> {
    let fail = |failure: Failure| failure.doing("unmounting").exit(exit::MOUNT_FAILED);
    if let Some(namespace) = &arguments.namespace {
        mount_namespace::enter(namespace).map_err(fail)?;
    }
    let dir = mount_table::resolve(&arguments.dir)
        .map_err(|error| fail(Failure::new(format!("{}: {error}", arguments.dir.display()))))?;
    let entry = mount_table::at(&dir).map_err(|error| fail(error.into()))?;
    match entry {
        Some(entry) if entry.kind == mount_table::TYPE => {}
        Some(entry) => {
            let what = format!("{} is a mount of type {}, not of Amberfs", dir.display(), entry.kind);
            return Err(fail(Failure::new(what).leaving("it stays mounted").remedy("use umount(8)")));
        }
        None => {
            let what = format!("{} is not a mount point", dir.display());
            return Err(fail(Failure::new(what).leaving("nothing was unmounted")));
        }
    }
    let mut server = control::server_of_mount(&dir);
    // Asked before, answered after: the server's answer is what we wait for.
    if let Some(client) = &mut server {
        let volume = client.volume_at(&dir).unwrap_or_default().to_string();
        client.send(&Request::Ended { volume }).map_err(fail)?;
    }
    fuse::unmount(&dir, arguments.lazy).map_err(|error| {
        let busy = matches!(error, fuse::Error::Busy(_));
        let failure = fail(Failure::new(error).leaving("it stays mounted and in service"));
        if busy {
            failure.remedy("'fuser -vm DIR' tells who uses it; 'amberfs umount --lazy' detaches it")
        } else {
            failure
        }
    })?;
    match server {
        Some(client) => wait(client, &dir, arguments.lazy),
        None => {
            report::print_text(&format!(
                "{}: unmounted; its server was not there, or is another user's: the next mount recovers what it left\n",
                dir.display()
            ))?;
            Ok(0)
        }
    }
}

fn wait(mut client: Client, dir: &Path, lazy: bool) -> Result<u8, Failure> {
    if lazy {
        client.limit_waiting(LAZY_PATIENCE);
    }
    match client.receive() {
        Ok(answer) => {
            // The last volume of a zone: the server lets go of the zone and ends.
            if answer.is_some_and(|answer| answer["last"] == true) {
                client.wait_for_end();
            }
            Ok(0)
        }
        Err(_) if lazy => {
            report::print_text(&format!(
                "{}: detached; it ends when the last file in use is closed\n",
                dir.display()
            ))?;
            Ok(0)
        }
        Err(failure) => Err(failure.leaving("it is unmounted").exit(exit::MOUNT_FAILED)),
    }
}
