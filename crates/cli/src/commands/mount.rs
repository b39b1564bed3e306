//! `amberfs mount`: in the background, in this process, or by a server that has the zone open already.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::command_line::Mount;
use crate::control::Request;
use crate::exit;
use crate::failure::{Explain, Failure};
use crate::launch::{self, Launch};
use crate::mount_request::{MountRequest, fuse_options};
use crate::options::Options;
use crate::place::{MountSource, utf8};
use crate::server;
use crate::zone_access::{Access, reach};
use crate::zone_file::ZoneFile;
use crate::{find_server, log, mount_namespace, mount_table, read_disk, report, size};

/// What a remount leaves that fails.
const AS_IT_WAS: &str = "it stays mounted as it was";

pub(crate) fn run(arguments: &Mount) -> Result<u8, Failure> {
    match perform(arguments) {
        // What it stands on may have gone since the process that waits has looked at it: that one tells it.
        Err(failure) if arguments.report => Ok(launch::report_failure(failure)),
        done => done,
    }
}

fn perform(arguments: &Mount) -> Result<u8, Failure> {
    let options = Options::parse(&arguments.options, arguments.sloppy).map_err(|wrong| {
        let remounts = arguments.options.iter().any(|list| list.split(',').any(|text| text == "remount"));
        let state = if remounts { AS_IT_WAS } else { "nothing was mounted" };
        Failure::new(wrong).leaving(state).exit(exit::MOUNT_USAGE)
    })?;
    if let Some(namespace) = &arguments.namespace {
        mount_namespace::enter(namespace).leaving("nothing was mounted").exit(exit::MOUNT_FAILED)?;
    }
    let source =
        arguments.source.absolute().doing("finding what is to be mounted").exit(exit::MOUNT_FAILED)?;
    let is_forgiven = || {
        if arguments.verbose {
            report::print_text(&format!(
                "{source}: not there, and nothing was mounted: 'nofail' asks for no more\n"
            ))?;
        }
        Ok(0)
    };
    if options.nofail && !options.remount && source.is_missing() {
        return is_forgiven();
    }
    let dir = mount_point(&arguments.dir).map_err(|failure| failure.exit(exit::MOUNT_FAILED))?;
    if arguments.fake {
        look_at(&source, &options)
            .leaving("nothing was mounted")
            .map_err(|failure| failure.exit(exit::MOUNT_FAILED))?;
        return Ok(0);
    }
    if options.remount {
        remount(&dir, &source, &options, arguments)
            .doing("remounting")
            .leaving(AS_IT_WAS)
            .map_err(|failure| failure.exit(exit::MOUNT_FAILED))?;
        return Ok(0);
    }
    let request = MountRequest {
        source: source.clone(),
        dir,
        option_lists: arguments.options.clone(),
        sloppy: arguments.sloppy,
    };
    if arguments.report {
        return Ok(launch::serve_in_background(request, &options));
    }
    let answer = mount(&request, &options, arguments.foreground);
    if options.nofail && answer.as_ref().is_err_and(|failure| failure.no_disk) {
        return is_forgiven();
    }
    let answer = answer
        .leaving("nothing was mounted")
        .map_err(|failure| if failure.exit == 1 { failure.exit(exit::MOUNT_FAILED) } else { failure })?;
    match answer {
        Some(answer) => {
            // It is mounted, whoever reads that.
            let _ = tell(&answer, &request, arguments.verbose);
            Ok(0)
        }
        None => Ok(0),
    }
}

/// Whether there is such a volume or disk.
fn look_at(source: &MountSource, options: &Options) -> Result<(), Failure> {
    match source {
        MountSource::Volume(place) => match reach(&place.zone, false)? {
            Access::Open(zone) => drop(zone.volume(&place.volume)?),
            Access::Served(mut client) => {
                client.ask(&Request::Info { volume: place.volume.clone() })?;
            }
        },
        MountSource::Disk(disk) => drop(read_disk::open(disk, options)?),
    }
    Ok(())
}

/// Mounts; gives what recovery did, or nothing if this process served and the mount has ended.
fn mount(request: &MountRequest, options: &Options, foreground: bool) -> Result<Option<Json>, Failure> {
    match by_server(request, options) {
        // Its last volume was unmounted just now. Who opens the zone next waits until it has let go of that.
        Some(Err(_)) if !is_served(request) => {}
        Some(answer) => return answer.map(Some),
        None => {}
    }
    if foreground {
        log::start(None);
        server::run(request, options, |answer| {
            let _ = tell(answer, request, true);
        })?;
        return Ok(None);
    }
    match Launch::of(request)?.wait() {
        Ok(answer) => Ok(Some(answer)),
        // Another mount of the same zone may have been a moment faster (at boot, they run side by side).
        Err(failure) => by_server(request, options).unwrap_or(Err(failure)).map(Some),
    }
}

/// Whether some server has the zone open, and does not just end.
fn is_served(request: &MountRequest) -> bool {
    match &request.source {
        MountSource::Volume(place) => find_server::of_zone(&place.zone).is_some(),
        MountSource::Disk(_) => false,
    }
}

/// The server says beforehand whether all of it can be had on a running mount, and changes made; when there are to be no more of
/// these, those made are made durable.
fn remount(dir: &Path, source: &MountSource, options: &Options, arguments: &Mount) -> Result<(), Failure> {
    let (mut server, volume) = find_server::volume_of_mount(dir)?;
    let is = mount_table::at(dir)?.map(|entry| entry.source).unwrap_or_default();
    let is_other = || source.volume() != volume || ZoneFile::at(&source.opened()) != server.hello.file;
    if is != source.to_string() && is_other() {
        let what = format!("{} is a mount of {is}, not of {source}", dir.display());
        return Err(Failure::new(what).remedy(format!("amberfs mount {is} {} -o remount,...", dir.display())));
    }
    let ask = Request::Remount {
        volume,
        options: arguments.options.clone(),
        from: options.directory.clone(),
        sloppy: arguments.sloppy,
    };
    server.ask(&ask)?;
    fuse::remount(dir, &fuse_options(source, options))?;
    if options.read_only {
        server.ask(&ask)?;
    }
    Ok(())
}

/// One process has a zone open. If a server has, it serves this volume, too.
fn by_server(request: &MountRequest, options: &Options) -> Option<Result<Json, Failure>> {
    let MountSource::Volume(place) = &request.source else { return None };
    let ask = Request::Mount {
        volume: place.volume.clone(),
        dir: request.dir.clone(),
        options: request.option_lists.clone(),
        from: options.directory.clone(),
        sloppy: request.sloppy,
    };
    find_server::of_zone(&place.zone).map(|mut client| {
        let pid = client.hello.pid;
        if mount_namespace::is_other(pid) {
            let what = format!("process {pid} serves the zone, in another mount namespace");
            let remedy = format!("unmount there what it serves (-N {pid}), or mount this there, too");
            return Err(Failure::new(what).leaving("nothing was mounted").remedy(remedy));
        }
        client.ask(&ask)
    })
}

/// The directory, without symbolic links; a dead mount on it is told apart from a wrong path.
fn mount_point(dir: &Path) -> Result<PathBuf, Failure> {
    let wrong =
        |what: String| Failure::new(what).doing("looking at the mount point").leaving("nothing was mounted");
    let dead = || {
        let entry = mount_table::resolve(dir).ok().and_then(|dir| mount_table::at(&dir).ok()?);
        let source = entry.map(|entry| format!(" of {}", entry.source)).unwrap_or_default();
        Err(wrong(format!("{} is a mount{source} whose server is gone", dir.display())).remedy(format!(
            "amberfs umount {} (with --lazy if it is in use still), then mount again: it recovers",
            dir.display()
        )))
    };
    // The kernel may still know a dead mount's directory; how full it is only the server knows.
    match std::fs::metadata(dir).and_then(|metadata| Ok((metadata, rustix::fs::statvfs(dir)?))) {
        Ok((metadata, _)) if metadata.is_dir() => {
            let dir =
                std::fs::canonicalize(dir).map_err(|error| wrong(format!("{}: {error}", dir.display())))?;
            utf8(&dir).map_err(|error| wrong(error.to_string()))?;
            Ok(dir)
        }
        Ok(_) => Err(wrong(format!("{} is not a directory", dir.display()))),
        Err(error) if mount_table::is_dead(&error) => dead(),
        Err(error) => Err(wrong(format!("{}: {error}", dir.display()))),
    }
}

/// Tells what recovery did, if it had something to do.
fn tell(answer: &Json, request: &MountRequest, verbose: bool) -> Result<(), Failure> {
    let recovery = &answer["recovery"];
    let number = |key: &str| recovery[key].as_u64().unwrap_or(0);
    let (source, dir) = (&request.source, request.dir.display());
    if recovery["was_clean"] == true {
        if verbose {
            report::print_text(&format!("{source}: mounted on {dir}\n"))?;
        }
        return Ok(());
    }
    if let MountSource::Disk(_) = source {
        return report::print_text(&format!(
            "{source}: mounted on {dir}; was not unmounted cleanly: what is in {} transactions of its journal is read from there, \
             and the disk stays as it is\n",
            number("journal_transactions_read"),
        ));
    }
    report::print_text(&format!(
        "{source}: mounted on {dir}; was not unmounted cleanly: replayed {} transactions ({} of log), reclaimed {} \
         orphans, in {:.1} ms\n",
        number("transactions_replayed"),
        size::human(number("log_bytes_replayed")),
        number("orphans_reclaimed"),
        recovery["seconds"].as_f64().unwrap_or(0.0) * 1e3,
    ))
}
