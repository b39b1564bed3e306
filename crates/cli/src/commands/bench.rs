//! `amberfs bench`: what is measured, where, and how long.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ::bench::{Amount, Peer, Peers, Plan, Progress, Report, Server, Setup, Target, Terms};
use indicatif::{ProgressBar, ProgressStyle};
use nvm::VolumeKind;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::admin::attachment::open_volume;
use crate::command_line::Bench;
use crate::commands::bench_report;
use crate::control::Request;
use crate::failure::{Explain, Failure, tell};
use crate::options::Options;
use crate::place::Place;
use crate::zone_access;
use crate::{exit, find_server, mount_table, size};

/// What is measured with --quick, and without.
struct Extent {
    rounds: u32,
    seconds: f64,
    scale: f64,
    /// Of each peer.
    bytes: u64,
}

const QUICK: Extent = Extent { rounds: 3, seconds: 0.04, scale: 0.02, bytes: 512 << 20 };
const USUAL: Extent = Extent { rounds: 5, seconds: 0.3, scale: 0.1, bytes: 1 << 30 };

pub(crate) fn run(arguments: &Bench) -> Result<u8, Failure> {
    if arguments.list {
        return bench_report::list(arguments.json).map(|()| 0);
    }
    let usage = |what: String| Failure::new(what).leaving("nothing was measured").exit(exit::USAGE);
    let extent = if arguments.quick { QUICK } else { USUAL };
    let requests: Vec<&str> = match arguments.workload.as_slice() {
        [] => vec!["headline"],
        named => named.iter().map(String::as_str).collect(),
    };
    let scale = arguments.scale.unwrap_or(extent.scale);
    let mut workloads = Vec::new();
    for request in requests {
        workloads.extend(bench::workloads(request, scale).map_err(usage)?);
    }
    let peers = peers(arguments).map_err(usage)?;
    has_room(arguments, &extent, &peers).map_err(usage)?;
    if arguments.targets.is_empty() && peers.is_empty() {
        let remedy = "name a directory or ZONE:VOLUME, or give --peers, or both";
        return Err(usage("there is nothing to measure".to_string()).remedy(remedy));
    }
    let named = arguments.targets.iter().map(target_name);
    let named: Vec<String> = named.chain(peers.iter().map(|peer| peer.name.clone())).collect();
    if let Some(twice) = named.iter().enumerate().find(|(at, name)| named[..*at].contains(name)) {
        return Err(usage(format!("'{}' is named twice", twice.1)));
    }
    if let Some(other) = arguments.against.iter().find(|other| !named.contains(other)) {
        let what = format!("--against {other}: there is no such target: there are {}", named.join(", "));
        return Err(usage(what).remedy("name one of them, as it is named there"));
    }
    if let Some(place) =
        arguments.targets.iter().find(|place| place.volume.is_some() && !arguments.tool.is_empty())
    {
        let what = format!("other programs cannot reach {}: it is not mounted", target_name(place));
        return Err(usage(what).remedy("mount it, and name the directory"));
    }
    // Before minutes are spent on what cannot be measured, or told.
    for tool in &arguments.tool {
        tool.find().map_err(|why| Failure::new(why).leaving("nothing was measured"))?;
    }
    bench_report::check_page(arguments)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).doing("watching signals")?;
    }
    let seconds = Duration::from_secs_f64(arguments.seconds.unwrap_or(extent.seconds));
    let terms = Terms {
        amount: arguments.turns.map_or(Amount::Time(seconds), Amount::Turns),
        seed: arguments.seed,
        interrupted,
    };
    // Other programs take a second at least.
    let rounds = if arguments.quick && !arguments.tool.is_empty() { 1 } else { extent.rounds };
    let plan = Plan { workloads, rounds: arguments.rounds.unwrap_or(rounds) as usize, terms };
    let measured = measure(arguments, &extent, &peers, &plan)?;
    if measured.ended.is_none() || !measured.figures.is_empty() {
        bench_report::print(arguments, &plan, &measured)?;
    }
    measured.complete()?;
    Ok(0)
}

fn in_memory(peers: &[Peer]) -> usize {
    peers.iter().filter(|peer| peer.is_in_memory()).count()
}

/// Bytes of each peer.
fn bytes_of(arguments: &Bench, extent: &Extent, peers: &[Peer]) -> u64 {
    arguments.size.unwrap_or_else(|| ::bench::fitting_bytes(in_memory(peers)).min(extent.bytes))
}

/// Whether peers of that size can be. Memory stands for NVM and for disks, and all of it is touched before anything is
/// measured: too much would bring the machine down.
fn has_room(arguments: &Bench, extent: &Extent, peers: &[Peer]) -> Result<(), String> {
    if arguments.size == Some(0) {
        return Err("--size 0: a peer needs room for files".to_string());
    }
    let (bytes, count) = (bytes_of(arguments, extent, peers), in_memory(peers));
    let (needed, available) = (bytes.saturating_mul(count as u64), ::bench::available_bytes());
    match needed > available {
        true => Err(format!(
            "--size {}{}: the peers in memory, {count}, would take {}, and {} are available: name fewer (--peers=...)",
            size::human(bytes),
            if arguments.size.is_some() { "" } else { ", the least that all can have" },
            size::human(needed),
            size::human(available)
        )),
        false => Ok(()),
    }
}

/// The peers that are asked for, with their options.
fn peers(arguments: &Bench) -> Result<Vec<Peer>, String> {
    let Some(names) = &arguments.peers else { return Ok(Vec::new()) };
    let is_for_tools = !arguments.tool.is_empty();
    if names.is_empty() {
        return Ok(Peer::usual().into_iter().filter(|peer| !is_for_tools || !peer.is_in_process()).collect());
    }
    let mut peers: Vec<Peer> = Vec::new();
    for name in names {
        let peer = Peer::parse(name)?;
        if peers.contains(&peer) {
            return Err(format!("peer '{name}' is named twice"));
        }
        if is_for_tools && peer.is_in_process() {
            return Err(format!("other programs cannot reach the peer '{name}': it is in this process"));
        }
        if let Some(list) = peer.amberfs_options() {
            let options = Options::parse(&list, false).map_err(|wrong| format!("peer '{name}': {wrong}"))?;
            if options.read_only || options.remount {
                return Err(format!("peer '{name}': a benchmark mounts anew, and has to make files"));
            }
        }
        peers.push(peer);
    }
    Ok(peers)
}

/// Sets everything up, measures it, and takes down what was set up.
fn measure(arguments: &Bench, extent: &Extent, asked: &[Peer], plan: &Plan) -> Result<Report, Failure> {
    let bar = progress_bar();
    bar.set_message("setting up");
    // Before the targets, so that it goes after them, also if something panics.
    let mut peers = Peers::default();
    let mut targets = arguments.targets.iter().map(target).collect::<Result<Vec<_>, _>>()?;
    if !asked.is_empty() {
        let setup = Setup {
            program: std::env::current_exe().doing("looking for this program")?,
            bytes: bytes_of(arguments, extent, asked),
            disk: arguments.disk.clone(),
            server: |dir| server_of(dir),
            native_options: |list| {
                // What a volume in process has unless it is told otherwise.
                let list = [&["durability=op".to_string()], list].concat();
                Options::parse(&list, false).map(|options| options.native())
            },
            ext_options: |list| {
                let options = Options::parse(list, false)?;
                options.check_ext()?;
                Ok((options.ext(), options.commit_interval))
            },
            interrupted: Arc::clone(&plan.terms.interrupted),
        };
        peers = Peers::set_up(asked, &setup)?;
        for note in &peers.notes {
            bar.suspend(|| tell(format_args!("amberfs: {note}")));
        }
        // Otherwise the table of what it is compared with would be missing without a word.
        let is_there =
            |name: &String| targets.iter().chain(&peers.targets).any(|target| target.name == *name);
        for name in arguments.against.iter().filter(|name| !is_there(name)) {
            bar.suspend(|| {
                tell(format_args!(
                    "amberfs: --against {name}: it is left out, so nothing is compared with it"
                ))
            });
        }
    }
    targets.append(&mut peers.targets);
    let measured = measure_on(arguments, plan, &targets, &bar);
    bar.finish_and_clear();
    // What a volume says when it is closed is told, unless there is more to tell.
    let closed = targets.into_iter().map(Target::close).fold(Ok(()), Result::and);
    drop(peers);
    let mut measured = measured?;
    measured.ended = measured.ended.or(closed.err());
    Ok(measured)
}

fn measure_on(
    arguments: &Bench,
    plan: &Plan,
    targets: &[Target],
    bar: &ProgressBar,
) -> Result<Report, Failure> {
    if targets.is_empty() {
        return Err(Failure::new("none of the peers could be set up").leaving("nothing was measured"));
    }
    let notice = |progress: Progress<'_>| {
        bar.set_length(progress.of as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(format!("{} on {}", progress.workload, progress.target));
    };
    Ok(match arguments.tool.as_slice() {
        [] => ::bench::run(plan, targets, &notice),
        tools => ::bench::run_tools(tools, plan, targets, &notice),
    })
}

fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar:.cyan} {pos}/{len} {eta:>4}  {msg:40!}") {
        bar.set_style(style);
    }
    bar
}

/// What reports call a directory or volume.
fn target_name(Place { zone, volume }: &Place) -> String {
    volume.as_ref().map_or(zone.display().to_string(), |volume| format!("{}:{volume}", zone.display()))
}

/// A directory, or a volume that this process opens.
fn target(place: &Place) -> Result<Target, Failure> {
    let Place { zone, volume } = place;
    let Some(volume) = volume else {
        if !zone.is_dir() {
            let what = if zone.exists() { "is no directory" } else { "is not there" };
            return Err(Failure::new(format!("{} {what}", zone.display()))
                .leaving("nothing was measured")
                .remedy("name a directory, or ZONE:VOLUME"));
        }
        return Ok(Target::directory(&target_name(place), zone, server_of(zone))?);
    };
    let opened = zone_access::open_alone(zone, true)?;
    let region = opened.volume(volume).doing("opening the volume")?;
    let name = target_name(place);
    if region.kind() == VolumeKind::Ext {
        let options = Options::default();
        let volume = open_volume(&region, None, &options.ext())?;
        let about = format!("{} with its metadata in NVM, in process", volume.disk().name());
        let target = Target::ext_volume(&name, &about, volume, options.commit_interval);
        return Ok(target.doing("beginning to commit")?.kept_by(vec![Box::new(opened)]));
    }
    let volume =
        native::Volume::open(region, &native::MountOptions::default()).doing("opening the volume")?;
    Ok(Target::volume(&name, "a volume in process, durability=op", volume, opened))
}

/// Who serves the mount that a directory is in, if it is one of ours.
fn server_of(dir: &Path) -> Option<Server> {
    // The innermost mount is the one that counts, whatever it is.
    let mount = mount_table::around(&mount_table::resolve(dir).ok()?).ok()??;
    let pid = find_server::of_mount(&mount)?.0.hello.pid;
    let settle = move || {
        let (mut server, volume) = find_server::of_mount(&mount).ok_or("its server does not answer")?;
        server.ask(&Request::Settle { volume }).map(drop).map_err(|failure| failure.what)
    };
    Some(Server { pid, settle: Some(Box::new(settle)) })
}
