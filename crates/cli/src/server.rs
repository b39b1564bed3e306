//! The server of a zone: has it open, serves volumes of it, answers commands, and ends with its last mount. That of a disk by itself
//! has only that.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use disk::Disk;
use nvm::{Region, VolumeKind, Zone};
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde_json::{Value as Json, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::admin::snapshots::{self, Ask};
use crate::admin::{attachment, check, describe, differences, dump, format, zone};
use crate::control::{Answering, Asker, Handler, Hello, Listener, Request, pack};
use crate::failure::{Explain, Failure, tell};
use crate::mount_request::MountRequest;
use crate::mount_table::Whereabouts;
use crate::options::Options;
use crate::place::{MountSource, VolumePlace};
use crate::served::{Medium, Served};
use crate::zone_file::ZoneFile;
use crate::{exit, read_disk, report, zone_access};

/// How long a mount has that is to end before it is there.
const MOUNTING_PATIENCE: Duration = Duration::from_secs(1);
/// How long the last answers may take.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// What a server has open.
#[derive(Clone)]
enum Opened {
    Zone(Zone),
    /// To be read.
    Disk(Arc<Disk>),
}

/// What is being done with a volume that is not served, without the lock: its disk may be slow, or gone, and the other volumes have theirs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// It is changed as a whole. Who wants it is told so.
    Change,
    /// It is opened, to be mounted or looked at. Who wants it waits.
    Opening,
}

/// The zone and what is served of it.
struct Server {
    /// Where the zone, or the disk, was when it was opened.
    path: PathBuf,
    file: Option<ZoneFile>,
    /// The zone's file cannot be written to.
    read_only: bool,
    state: Mutex<State>,
    changed: Condvar,
    answering: Arc<Answering>,
}

struct State {
    /// None once the last volume is closed: nothing more is served then.
    opened: Option<Opened>,
    served: BTreeMap<String, Arc<Served>>,
    /// Of these, volumes whose mount has ended, and which are being closed.
    ending: BTreeSet<String>,
    /// A signal has ended all mounts: there are no more.
    is_ending: bool,
    /// Volumes that somebody is at work on: nobody else mounts or changes them meanwhile, and the zone stays open.
    at_work: BTreeMap<String, Work>,
    /// None while the socket could not be opened, and at the end.
    listener: Option<Listener>,
    /// What went wrong while volumes were closed.
    failures: BTreeMap<String, Failure>,
}

/// Opens the zone or the disk, mounts the volume, calls `ready` once it answers, and serves until the last mount is gone.
pub(crate) fn run(
    request: &MountRequest,
    options: &Options,
    ready: impl FnOnce(&Json),
) -> Result<(), Failure> {
    // Before any thread, so that none takes the signal instead.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::new(format!("cannot watch signals: {error}")))?;
    let (hand_over, mounted) = channel();
    std::thread::Builder::new()
        .spawn(move || obey(signals, &mounted))
        .doing("starting a thread for signals")?;
    let (opened, file, read_only, socket) = match &request.source {
        MountSource::Volume(place) => {
            let zone = zone_access::open_to_serve(place, options)?;
            let file = zone.file().as_ref().map(ZoneFile::of);
            let (read_only, uuid) = (zone.is_read_only(), zone.info().uuid.to_string());
            (Opened::Zone(zone), file, read_only, uuid)
        }
        // Several may read it.
        MountSource::Disk(disk) => {
            let opened = read_disk::open(disk, options)?;
            let file = ZoneFile::at(&request.source.opened());
            (Opened::Disk(opened), file, true, format!("disk-{}", uuid::Uuid::new_v4()))
        }
    };
    let server = Arc::new(Server {
        path: request.source.opened(),
        file,
        read_only,
        state: Mutex::new(State {
            opened: Some(opened),
            served: BTreeMap::new(),
            ending: BTreeSet::new(),
            is_ending: false,
            at_work: BTreeMap::new(),
            listener: None,
            failures: BTreeMap::new(),
        }),
        changed: Condvar::new(),
        answering: Arc::default(),
    });
    let handler: Handler = {
        let server = server.clone();
        Arc::new(move |request, asker| {
            server.answer(request, asker).map_err(|failure| {
                let opened = server.lock().opened.clone();
                match opened {
                    Some(Opened::Zone(zone)) => zone::with_cause(&zone, failure),
                    _ => failure,
                }
            })
        })
    };
    let answer = server.mount(request, options)?;
    let _ = hand_over.send(server.clone()); // it waits for that
    // A mount without its socket would do, but could not be asked anything.
    match Listener::start(&socket, handler, server.answering.clone()).doing("opening the control socket") {
        Ok(listener) => server.lock().listen(listener),
        Err(failure) => {
            tell(format_args!("amberfs: {failure}\n  now: the volume is served without accounts"))
        }
    }
    ready(&answer);
    // What it has to say goes to the log from here on.
    server.keep_snapshots(request.source.volume());
    server.wait()
}

/// A first signal unmounts; a second one doesn't wait for open files. One that comes before anything is mounted ends all: what was begun is as
/// behind a crash.
fn obey(mut signals: Signals, mounted: &Receiver<Arc<Server>>) {
    let mut signals = signals.forever();
    signals.next();
    let Ok(server) = mounted.recv_timeout(MOUNTING_PATIENCE) else {
        tell("amberfs: interrupted before anything was mounted");
        std::process::exit(exit::MOUNT_INTERRUPTED.into());
    };
    server.end_mounts(false);
    signals.next();
    server.end_mounts(true);
    std::process::exit(0);
}

/// A volume's region, if it can be mounted.
fn mountable(zone: &Zone, name: &str, options: &Options) -> Result<Region, Failure> {
    let region = zone.volume(name).doing("finding the volume")?;
    match region.kind() {
        VolumeKind::Native => {
            if let Some(option) = options.of_ext {
                let what = format!(
                    "volume '{name}' has its files in NVM, and no disk: mount option '{option}' means nothing"
                );
                return Err(Failure::new(what).remedy("mount it without that option"));
            }
            if !native::recognise(&region) {
                let path = zone.info().path;
                return Err(Failure::new(format!("volume '{name}' holds no file system"))
                    .doing("looking for its superblock")
                    .remedy(format!("amberfs mkfs {}:{name}", path.display())));
            }
            Ok(region)
        }
        VolumeKind::Ext => {
            if options.snapshot.is_some() || options.keep.is_some() {
                let what =
                    format!("volume '{name}' is an ext disk with its metadata in NVM: it has no snapshots");
                return Err(Failure::new(what).remedy("mount it without 'snapshot' and 'keep'"));
            }
            attachment::of(&region)?;
            Ok(region)
        }
        kind => {
            Err(Failure::new(format!("volume '{name}' is of kind {kind}, which this version cannot mount")))
        }
    }
}

impl State {
    /// The mount may have ended before the socket was there.
    fn listen(&mut self, listener: Listener) {
        self.listener = self.opened.is_some().then_some(listener);
    }
}

impl Server {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Mounts a volume and starts serving it; gives what recovery did.
    fn mount(self: &Arc<Server>, request: &MountRequest, options: &Options) -> Result<Json, Failure> {
        let name = request.source.volume();
        let mut state = self.when_not_opening(name);
        let Some(opened) = state.opened.clone() else {
            return Err(Failure::ending("the zone's server"));
        };
        if state.is_ending {
            return Err(Failure::ending("the zone's server"));
        }
        if let Some(served) = state.served.get(name) {
            let Whereabouts::Shown(there) = served.whereabouts() else {
                return Err(served.is_mounted());
            };
            let failure =
                Failure::new(format!("{} is mounted already, on {}", request.source, there.display()));
            return Err(if let (None, Some(name)) = (&served.options.snapshot, &options.snapshot) {
                failure.remedy(format!("the snapshot is {}", there.join(snapshots::path_of(name)).display()))
            } else if there == request.dir {
                failure
            } else {
                let (here, there) = (request.dir.display(), there.display());
                failure.remedy(format!("for a second place: mount --bind {there} {here}"))
            });
        }
        if self.read_only && !options.read_only {
            let path = self.path.display();
            return Err(Failure::new(format!("{path} cannot be written to, and the zone is open read-only"))
                .remedy(
                    "mount with -o ro; or unmount what is mounted of the zone, and have its file writable",
                ));
        }
        let _at_work = self.begin(&mut state, name, Work::Opening)?;
        drop(state);
        let medium = match opened {
            Opened::Zone(zone) => {
                Medium::Volume { region: mountable(&zone, name, options)?, account: zone.volume(name)? }
            }
            Opened::Disk(disk) if matches!(request.source, MountSource::Disk(_)) => Medium::Disk(disk),
            Opened::Disk(_) => {
                return Err(Failure::new(format!("{} is no zone, and has no volumes", self.path.display()))
                    .leaving("nothing was mounted"));
            }
        };
        // Before there is anything that it has to wait for.
        let (hand_over, mounted) = channel::<fuse::Mount>();
        let (server, volume) = (self.clone(), name.to_string());
        let wait = move || {
            if let Ok(mount) = mounted.recv() {
                let served = mount.wait().doing("serving the mount");
                server.finish(&volume, served);
            }
        };
        std::thread::Builder::new().spawn(wait).doing("starting a thread that waits for the mount's end")?;
        let (served, mount) = Served::mount(request, options, medium)?;
        let recovery = served.recovery();
        let mut state = self.lock();
        state.failures.remove(name);
        state.served.insert(name.to_string(), served.clone());
        let _ = hand_over.send(mount); // it waits for that
        if state.is_ending {
            // It was told to unmount all while this one was opened.
            drop(state);
            served.unmount(true)?;
            return Err(Failure::ending("the zone's server"));
        }
        Ok(json!({ "recovery": recovery }))
    }

    /// Begins to take snapshots of a volume, if they are to be taken and it is still served.
    fn keep_snapshots(&self, name: &str) {
        let served = self.lock().served.get(name).cloned();
        if let Some(served) = served {
            served.keep_snapshots(name);
        }
    }

    /// Closes a volume whose mount has ended. It stays listed until it is closed.
    fn finish(&self, name: &str, served: Result<(), Failure>) {
        let mut state = self.lock();
        state.ending.insert(name.to_string());
        let ending = state.served.get(name).cloned();
        drop(state);
        self.changed.notify_all();
        let closed = ending.map_or(Ok(()), |ending| ending.end());
        let mut state = self.lock();
        state.served.remove(name);
        state.ending.remove(name);
        if let Err(failure) = served.and(closed) {
            tell(format_args!("amberfs: volume '{name}': {failure}"));
            state.failures.insert(name.to_string(), failure);
        }
        self.end_if_idle(&mut state);
    }

    /// Nothing more is served when the last volume is closed, and none is being changed.
    fn end_if_idle(&self, state: &mut State) {
        if state.served.is_empty() && state.at_work.is_empty() {
            // In this order: as soon as the lock is free, another server may listen under the same name.
            state.listener = None;
            state.opened = None;
        }
        self.changed.notify_all();
    }

    /// Waits until nothing is served any more; then the zone is closed, and its lock free, and whoever asked about that has been told.
    fn wait(&self) -> Result<(), Failure> {
        let mut state = self.lock();
        self.changed.wait_while(&mut state, |state| state.opened.is_some());
        let failure = state.failures.values().next().cloned();
        drop(state);
        self.answering.wait(ANSWER_PATIENCE);
        match failure {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Unmounts all, lazily where files are open; or does not wait for those, and closes what is served.
    fn end_mounts(&self, at_once: bool) {
        let served: Vec<Arc<Served>> = {
            let mut state = self.lock();
            state.is_ending = true;
            state.served.values().cloned().collect()
        };
        for served in &served {
            if at_once {
                let _ = served.unmount(true);
                let _ = served.close();
            } else if let Err(error) = served.unmount(false) {
                let lazily = served.unmount(true).is_ok();
                let now = match lazily {
                    true => "detached; it ends when the last file is closed",
                    false => "still mounted",
                };
                tell(format_args!("amberfs: {error}\n  now: {now}"));
            }
        }
    }

    /// Answers a command.
    fn answer(self: &Arc<Server>, request: Request, asker: &mut Asker) -> Result<Json, Failure> {
        let zone = || match self.lock().opened.clone() {
            Some(Opened::Zone(zone)) => Ok(zone),
            Some(Opened::Disk(_)) => {
                Err(Failure::new(format!("{} is a disk by itself, and no zone", self.path.display())))
            }
            None => Err(Failure::ending("the zone's server")),
        };
        match request {
            Request::Hello => {
                let state = self.lock();
                let mounts = state.served.iter().map(|(name, served)| served.mounted(name)).collect();
                drop(state);
                let (pid, zone, file) = (std::process::id(), self.path.clone(), self.file.clone());
                serde_json::to_value(Hello { pid, zone, file, mounts }).map_err(Failure::new)
            }
            Request::Zone => Ok(pack(&zone::describe(&zone()?))),
            Request::Info { volume } => {
                let zone = zone()?;
                let mut state = self.when_not_opening(&volume);
                let Some(served) = state.served.get(&volume).cloned() else {
                    let at_work = self.begin(&mut state, &volume, Work::Opening);
                    drop(state);
                    // Who changes the volume has its disk, and may be about to remove it.
                    let fields = match at_work {
                        Ok(_at_work) => describe::at_rest(&zone, &volume)?,
                        Err(at_work) => describe::at_work(&zone, &volume, at_work)?,
                    };
                    return Ok(pack(&fields));
                };
                drop(state);
                let fields = describe::volume(&zone, &volume, served.list_snapshots())?;
                Ok(pack(&served.describe(fields)))
            }
            Request::Stats { volume } => {
                let served = self.lock().served.get(&volume).cloned();
                let served =
                    served.ok_or_else(|| Failure::new(format!("volume '{volume}' is not mounted")))?;
                Ok(pack(&served.stats()))
            }
            Request::Snapshot { volume, ask } => {
                let work = match ask {
                    Ask::Clone { .. } | Ask::RollBack { .. } => Work::Change,
                    _ => Work::Opening,
                };
                let (served, _at_work) = self.served_or_at_work(&volume, work)?;
                // The copy is nobody else's before it is whole, and the server does not end before that.
                let _copying = match &ask {
                    Ask::Clone { to, .. } if *to != volume => {
                        Some(self.begin(&mut self.when_not_opening(to), to, Work::Change)?)
                    }
                    _ => None,
                };
                let answer = match (served, &ask) {
                    (Some(served), Ask::Clone { name, to }) => {
                        served.clone_snapshot(&zone()?, name, to, asker)?
                    }
                    (Some(served), Ask::RollBack { name, discard_newer }) => {
                        served.roll_back(&volume, name, *discard_newer)?
                    }
                    (Some(served), _) => served.snapshot(&ask)?,
                    (None, _) => snapshots::of_unmounted(&zone()?, &volume, &ask, &mut asker.progress())?,
                };
                Ok(pack(&answer))
            }
            Request::SnapshotDiff { volume, pair } => {
                let differences = match self.served_or_at_work(&volume, Work::Opening)? {
                    (Some(served), _) => served.diff(&pair)?,
                    (None, _at_work) => pair.of_unmounted(&zone()?, &volume)?,
                };
                // Told when the volume is free again: whoever asked may take long to listen.
                differences::tell(&differences, &mut |part| asker.tell(part))?;
                Ok(Json::Null)
            }
            Request::Mount { volume, dir, options, from, sloppy } => {
                let parsed = Options::parse_from(from, &options, sloppy).map_err(Failure::new)?;
                let source = MountSource::Volume(VolumePlace { zone: self.path.clone(), volume });
                let request = MountRequest { source, dir, option_lists: options, sloppy };
                let answer = self.mount(&request, &parsed)?;
                self.keep_snapshots(request.source.volume());
                Ok(answer)
            }
            Request::Remount { volume, options, from, sloppy } => {
                let served = self.lock().served.get(&volume).cloned();
                let served =
                    served.ok_or_else(|| Failure::new(format!("volume '{volume}' is not mounted")))?;
                let wanted = served.options.remounted(from, &options, sloppy).map_err(|wrong| {
                    let remedy = format!("amberfs umount {}, then mount it so", served.place().display());
                    Failure::new(wrong).remedy(remedy)
                })?;
                if wanted.read_only {
                    if served.options.snapshot.is_none() {
                        served.make_durable()?;
                    }
                } else if served.options.read_only {
                    return Err(Failure::new("the volume was opened read-only").remedy(format!(
                        "amberfs umount {}, then mount it for writing",
                        served.place().display()
                    )));
                }
                Ok(Json::Null)
            }
            Request::Settle { volume } => {
                let served = self.lock().served.get(&volume).cloned();
                let served =
                    served.ok_or_else(|| Failure::new(format!("volume '{volume}' is not mounted")))?;
                served.settle().map(|()| Json::Null)
            }
            Request::Ended { volume } => {
                asker.tell(Json::Null)?;
                let served = self.lock().served.get(&volume).cloned();
                let disk = served.as_ref().and_then(|served| served.options.disk.clone());
                // Not for one that somebody mounts behind it; and not in its way.
                let this = served.as_ref().map(Arc::downgrade);
                drop(served);
                let is_it = |there: &Arc<Served>| {
                    this.as_ref().is_some_and(|this| std::ptr::eq(this.as_ptr(), Arc::as_ptr(there)))
                };
                let here = |state: &mut State| state.served.get(&volume).is_some_and(is_it);
                let in_use = |state: &mut State| here(state) && !state.ending.contains(&volume);
                let mut state = self.lock();
                self.changed.wait_while(&mut state, in_use);
                drop(state);
                asker.tell(json!({ "ending": true }))?;
                let mut state = self.lock();
                self.changed.wait_while(&mut state, here);
                match state.failures.get(&volume) {
                    Some(failure) => Err(failure.clone()),
                    None => Ok(json!({ "last": state.opened.is_none(), "disk": disk })),
                }
            }
            Request::Attach { volume, disk, bytes } => {
                let _at_work = self.reserve(&volume)?;
                let told = attachment::attach(&zone()?, &volume, &disk, bytes)?;
                serde_json::to_value(told).map_err(Failure::new)
            }
            Request::Detach { volume, disk } => {
                let _at_work = self.reserve(&volume)?;
                let detached = attachment::detach(&zone()?, &volume, disk.as_deref())?;
                serde_json::to_value(detached).map_err(Failure::new)
            }
            Request::Format { volume, settings } => {
                let _at_work = self.reserve(&volume)?;
                Ok(json!({ "bytes": format::format(&zone()?, &volume, &settings)? }))
            }
            Request::Check { volume, repair, preen } => {
                let repair = match (repair, preen) {
                    (true, _) => check::Repair::Everything,
                    (false, true) => check::Repair::Preen,
                    (false, false) => check::Repair::Nothing,
                };
                let checked = {
                    let _at_work = self.reserve(&volume)?;
                    check::check(&zone()?, &volume, repair)?
                };
                checked.tell(&mut |part| asker.tell(part))?;
                serde_json::to_value(checked).map_err(Failure::new)
            }
            Request::Dump { volume, structure, form } => {
                let (fields, dumped) = {
                    let _at_work = volume.as_deref().map(|volume| self.reserve(volume)).transpose()?;
                    dump::dump(&zone()?, volume.as_deref(), &structure)
                };
                if !fields.is_empty() {
                    report::tell(&fields, form, &mut |part| asker.tell(part))?;
                }
                dumped.map(|()| Json::Null)
            }
            Request::RemoveVolume { volume, force } => {
                let _at_work = self.reserve(&volume)?;
                zone::remove_volume(&zone()?, &volume, force).map(|()| Json::Null)
            }
            Request::Grow { bytes } => {
                let (bytes, free_bytes) = zone::grow(&zone()?, bytes)?;
                Ok(json!({ "bytes": bytes, "free_bytes": free_bytes }))
            }
        }
    }

    /// Keeps a volume that is not mounted from being mounted, and from being changed by anybody else, until what this returns is
    /// dropped.
    fn reserve(&self, volume: &str) -> Result<AtWork<'_>, Failure> {
        let mut state = self.when_not_opening(volume);
        if let Some(served) = state.served.get(volume) {
            return Err(served.is_mounted().leaving("nothing was changed"));
        }
        self.begin(&mut state, volume, Work::Change)
    }

    /// A volume that is served; or the work on one that is not, which nobody else mounts or changes meanwhile.
    fn served_or_at_work(
        &self,
        volume: &str,
        work: Work,
    ) -> Result<(Option<Arc<Served>>, Option<AtWork<'_>>), Failure> {
        let mut state = self.when_not_opening(volume);
        match state.served.get(volume).cloned() {
            Some(served) => Ok((Some(served), None)),
            None => Ok((None, Some(self.begin(&mut state, volume, work)?))),
        }
    }

    /// What there is when nobody opens `volume`.
    fn when_not_opening(&self, volume: &str) -> MutexGuard<'_, State> {
        let opening = |state: &mut State| state.at_work.get(volume) == Some(&Work::Opening);
        let mut state = self.lock();
        self.changed.wait_while(&mut state, opening);
        state
    }

    /// Begins to work on a volume that is not served.
    fn begin(&self, state: &mut State, volume: &str, work: Work) -> Result<AtWork<'_>, Failure> {
        if state.at_work.contains_key(volume) {
            return Err(Failure::new(format!("volume '{volume}' is being changed by another command"))
                .leaving("nothing was changed")
                .remedy("try again when that has ended"));
        }
        state.at_work.insert(volume.to_string(), work);
        Ok(AtWork { server: self, volume: volume.to_string() })
    }
}

/// A volume that somebody is at work on, until this is dropped; not while the server is locked.
struct AtWork<'a> {
    server: &'a Server,
    volume: String,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let mut state = self.server.lock();
        state.at_work.remove(&self.volume);
        self.server.end_if_idle(&mut state);
    }
}
