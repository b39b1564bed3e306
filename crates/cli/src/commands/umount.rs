//! `amberfs umount`: unmounts, and waits until the server has closed the volume and let go of the zone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command_line::{Detach, Umount};
use crate::commands::attach;
use crate::control::{Client, Request, unpack};
use crate::exit;
use crate::failure::{self, Explain, Failure};
use crate::mount_table::MountEntry;
use crate::place::{Place, VolumePlace};
use crate::runtime_directory::this_user;
use crate::zone_access::refuse_mounted;
use crate::zone_file::ZoneFile;
use crate::{find_server, mount_namespace, mount_table, report};

/// How long a lazy unmount waits for a volume that nobody uses to close.
const LAZY_PATIENCE: Duration = Duration::from_secs(2);
/// How long a mount ends without a word of ours.
const QUIET_PATIENCE: Duration = Duration::from_secs(3);
/// How long a mount may take to end of which no place is left here: longer, and it has one in another mount namespace.
const ENDING_PATIENCE: Duration = Duration::from_secs(30);
/// How long another user's server may take to read that its mount is to end, and to close the volume then.
const READING_PATIENCE: Duration = Duration::from_secs(2);
const CLOSING_PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: &Umount) -> Result<u8, Failure> {
    let (entry, unmounted) =
        unmount(arguments).map_err(|failure| failure.doing("unmounting").exit(exit::MOUNT_FAILED))?;
    finish(&entry, unmounted, arguments).map_err(|failure| failure.exit(exit::MOUNT_SYSTEM))?;
    Ok(0)
}

/// What comes behind an unmount: a failure of that is none of the unmount.
fn finish(entry: &MountEntry, unmounted: Unmounted, arguments: &Umount) -> Result<(), Failure> {
    let dir = entry.dir.display();
    let disk = match (unmounted.server, unmounted.elsewhere) {
        (Some(client), _) => wait(client, &entry.dir, arguments)?,
        (None, Some(there)) => {
            let there = there.display();
            tell(arguments, &format!("{dir}: unmounted; it is mounted on {there} still, and in service\n"))?;
            None
        }
        (None, None) => {
            report::print_text(&format!(
                "{dir}: unmounted; its server was not there, did not answer, or is another user's: the next mount recovers what it left\n"
            ))?;
            None
        }
    };
    let Some(place) = unmounted.to_detach else { return Ok(()) };
    let detached =
        attach::detach(&Detach { place, disk }).leaving("it is unmounted, and its disk attached still");
    detached.map_err(|failure| Failure { again: false, ..failure }) // half is done
}

/// What is left to do behind an unmount.
struct Unmounted {
    /// It tells when the volume is closed.
    server: Option<Client>,
    /// Where the volume is mounted still.
    elsewhere: Option<PathBuf>,
    /// The volume whose disk is to be made plain.
    to_detach: Option<VolumePlace>,
}

/// Unmounts what is meant, and nothing else.
fn unmount(arguments: &Umount) -> Result<(MountEntry, Unmounted), Failure> {
    if let Some(namespace) = &arguments.namespace {
        mount_namespace::enter(namespace)?;
    }
    let (dir, source) = place_of(&arguments.dir)?;
    let dir = mount_table::resolve(&dir)
        .map_err(|error| Failure::new(format!("{}: {error}", arguments.dir.display())))?;
    // Before anybody is asked: what is unmounted behind an answer is what was meant before the question.
    let mounted = fuse::MountPoint::at(&dir)?;
    let entry = find(&dir)?;
    if let Some(source) = source.filter(|source| *source != entry.source) {
        let what = format!("{source} is mounted on {}, and {} over it", dir.display(), entry.source);
        let remedy = format!("'amberfs umount {}' unmounts what is over it", dir.display());
        return Err(Failure::new(what).leaving("nothing was unmounted").remedy(remedy));
    }
    let elsewhere = elsewhere(&entry)?;
    if arguments.detach {
        check_detachable(&entry, elsewhere.as_deref())?;
    }
    // Where else it is mounted, it stays in service.
    let found = if elsewhere.is_none() { find_server::of_mount(&entry) } else { None };
    let (mut server, volume) = found.unzip();
    let to_detach = match arguments.detach {
        true => Some(with_disk(&entry.source, server.as_mut())?),
        false => None,
    };
    // Asked before, answered after: the server's answer is what we wait for. One that has read the request does not end without it.
    if let (Some(client), Some(volume)) = (&mut server, volume) {
        if client.is_others() {
            client.limit_waiting(READING_PATIENCE);
        }
        match client.send(&Request::Ended { volume }).and_then(|()| client.receive()) {
            Ok(_) => {}
            // Another user's server does not keep root from unmounting.
            Err(_) if client.is_others() => server = None,
            Err(failure) => return Err(failure),
        }
    }
    let state = match server.is_some() || elsewhere.is_some() {
        true => "it stays mounted and in service",
        false => "it stays mounted; its server was not there, did not answer, or is another user's",
    };
    mounted.unmount(arguments.lazy).map_err(|error| not_unmounted(error, &entry).leaving(state))?;
    Ok((entry, Unmounted { server, elsewhere, to_detach }))
}

/// Whether the disk of what is mounted can be made plain when that is unmounted, as far as the mounts tell.
fn check_detachable(entry: &MountEntry, elsewhere: Option<&Path>) -> Result<(), Failure> {
    let dir = entry.dir.display();
    if let Some(user) = entry.user.filter(|user| *user != this_user()) {
        let what = format!("{dir} was mounted by user {user}, who says what volume it is of");
        let remedy =
            "unmount it without --detach; 'amberfs detach ZONE:VOLUME' does that of a volume that you name";
        return Err(Failure::new(what).leaving("it stays mounted").remedy(remedy));
    }
    let Some(there) = elsewhere else { return Ok(()) };
    let what = format!("{} is mounted on {}, too", entry.source, there.display());
    let remedy = format!("unmount that before: amberfs umount {}", there.display());
    Err(Failure::new(what).leaving("it stays mounted").remedy(remedy))
}

/// Why it was not unmounted.
fn not_unmounted(error: fuse::Error, entry: &MountEntry) -> Failure {
    let dir = entry.dir.display();
    match error {
        fuse::Error::Busy(_) => Failure::new(error).remedy(format!(
            "'fuser -vm {dir}' tells who uses it; 'amberfs umount --lazy {dir}' detaches it"
        )),
        fuse::Error::NotMounted(_) if find(&entry.dir).is_ok_and(|now| now == *entry) => {
            let who = match entry.user {
                Some(user) if user != 0 => format!("user {user}, who may unmount it, and root"),
                _ => "root, who alone may unmount it".to_string(),
            };
            Failure::new(format!("{dir} was mounted by {who}"))
        }
        fuse::Error::NotMounted(_) => {
            Failure::new(format!("{dir} is not what was mounted there a moment before"))
                .leaving("somebody else has unmounted that, or moved it; nothing was unmounted")
        }
        error => Failure::new(error),
    }
}

/// Where what is named is mounted, and as what, if that is a volume; else what is named. A volume that is mounted in several places does not say
/// which is meant.
fn place_of(named: &Path) -> Result<(PathBuf, Option<String>), Failure> {
    let source = || {
        let Place { zone, volume } = named.to_str()?.parse().ok()?;
        VolumePlace { zone, volume: volume? }.absolute().ok()
    };
    let Some(place) = source() else { return Ok((named.to_path_buf(), None)) };
    let source = place.to_string();
    let its = mount_table::read()?.into_iter().filter(|entry| entry.is_amberfs() && entry.source == source);
    let mut dirs: Vec<PathBuf> = its.map(|entry| entry.dir).collect();
    match dirs.len() {
        0 => {
            if let Some(client) = find_server::of_zone(&place.zone)
                && let Err(failure) = refuse_mounted(&client, &place.volume)
            {
                return Err(failure.leaving("nothing was unmounted"));
            }
            Ok((named.to_path_buf(), None))
        }
        1 => Ok((dirs.remove(0), Some(source))),
        _ => {
            let places: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
            let what = format!("{source} is mounted on {}", places.join(" and on "));
            Err(Failure::new(what).leaving("nothing was unmounted").remedy("name one of these directories"))
        }
    }
}

/// The mount of ours that is seen on `dir`.
fn find(dir: &Path) -> Result<MountEntry, Failure> {
    let Some(entry) = mount_table::at(dir)? else {
        let what = format!("{} is not a mount point", dir.display());
        return Err(Failure::new(what).leaving("nothing was unmounted"));
    };
    if entry.is_amberfs() {
        return Ok(entry);
    }
    let what = format!("{} is a mount of type {}, not of Amberfs", dir.display(), entry.kind);
    let covers = mount_table::read()?.into_iter().find(|below| below.dir == dir && below.is_amberfs());
    Err(match covers {
        Some(below) => Failure::new(format!("{what}; it covers {}", below.source)).remedy(format!(
            "umount {0}, which unmounts what covers it, then: amberfs umount {0}",
            dir.display()
        )),
        None => Failure::new(what).remedy("use umount(8)"),
    }
    .leaving("it stays mounted"))
}

/// Where else its file system is mounted here.
fn elsewhere(entry: &MountEntry) -> Result<Option<PathBuf>, Failure> {
    let same = |other: &MountEntry| other.device == entry.device && other != entry;
    Ok(mount_table::read()?.into_iter().find(same).map(|other| other.dir))
}

/// The volume that is mounted, which has a disk as far as its server can tell.
fn with_disk(source: &str, server: Option<&mut Client>) -> Result<VolumePlace, Failure> {
    let no_disk =
        |what: String| Failure::new(what).leaving("it stays mounted").remedy("unmount it without --detach");
    let place: VolumePlace = source.parse().map_err(no_disk)?;
    if let Some(server) = server {
        // The table of mounts names it by the path by which it was opened, where another zone may be by now.
        if server.hello.file != ZoneFile::at(&place.zone) {
            let zone = place.zone.display();
            let what = format!("the zone is not at {zone} any more, where it was when it was mounted");
            let remedy = "unmount it without --detach, then: amberfs detach ZONE:VOLUME";
            return Err(Failure::new(what).leaving("it stays mounted").remedy(remedy));
        }
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
fn wait(mut client: Client, dir: &Path, arguments: &Umount) -> Result<Option<String>, Failure> {
    let lazy = arguments.lazy;
    client.limit_waiting(match (lazy, client.is_others()) {
        (true, _) => LAZY_PATIENCE,
        (false, true) => CLOSING_PATIENCE,
        (false, false) => QUIET_PATIENCE,
    });
    let mut answer = client.receive();
    if !lazy && !client.is_others() && client.was_late() {
        let dir = dir.display();
        if !arguments.quiet {
            failure::tell(format_args!(
                "amberfs: {dir}: unmounted here; waiting for its server to see it end"
            ));
        }
        client.limit_waiting(ENDING_PATIENCE);
        answer = client.receive();
    }
    let is_ending = matches!(&answer, Ok(Some(told)) if told["ending"] == true);
    if is_ending {
        // That it closes takes as long as it takes, unless nobody is waited for so long.
        if !lazy && !client.is_others() {
            client.wait_without_limit();
        }
        answer = client.receive();
    }
    match answer {
        // Killed in the middle of it, or ended by a second signal.
        Ok(None) if !lazy && !client.is_others() => {
            Err(Failure::new("the server ended before it said that the volume is closed")
                .leaving("it is unmounted; the next mount recovers what is in NVM"))
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
            let dir = dir.display();
            tell(arguments, &format!("{dir}: detached; it ends when the last file in use is closed\n"))?;
            Ok(None)
        }
        Err(failure) if client.is_others() => {
            report::print_text(&format!("{}: unmounted; {}\n", dir.display(), failure.what))?;
            Ok(None)
        }
        Err(failure) if is_ending || !client.was_late() => Err(failure.leaving("it is unmounted")),
        Err(_) => {
            let text = format!(
                "{}: unmounted; its server has it in service still, as long as it is mounted in another mount namespace\n",
                dir.display()
            );
            tell(arguments, &text)?;
            Ok(None)
        }
    }
}

/// Says that it is unmounted, but not all of it is at its end: nothing is wrong with that.
fn tell(arguments: &Umount, text: &str) -> Result<(), Failure> {
    if arguments.quiet { Ok(()) } else { report::print_text(text) }
}
