//! The server of a zone: has it open, serves volumes of it, answers commands, and ends with its last mount. That of a disk by itself
//! has only that.

mod at_work;
mod mounts;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use disk::Disk;
use nvm::Zone;
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Serialize;
use serde_json::{Value as Json, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::at_work::Work;
use crate::admin::zone;
use crate::control::{Answering, Asker, Handler, Hello, Listener, Request, pack};
use crate::failure::{Explain, Failure, tell};
use crate::mount_request::MountRequest;
use crate::options::Options;
use crate::place::{MountSource, VolumePlace};
use crate::served::Served;
use crate::zone_file::ZoneFile;
use crate::{exit, read_disk, zone_access};

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

#[derive(Default)]
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
        state: Mutex::new(State { opened: Some(opened), ..State::default() }),
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
    server.end_mounts();
    signals.next();
    std::process::exit(server.end_at_once().into());
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

    /// The zone, as long as it is open.
    fn zone(&self) -> Result<Zone, Failure> {
        match self.lock().opened.clone() {
            Some(Opened::Zone(zone)) => Ok(zone),
            Some(Opened::Disk(_)) => {
                Err(Failure::new(format!("{} is a disk by itself, and no zone", self.path.display())))
            }
            None => Err(ending()),
        }
    }

    /// A volume, if it is served.
    fn served(&self, volume: &str) -> Option<Arc<Served>> {
        self.lock().served.get(volume).cloned()
    }

    /// A volume that has to be mounted for what is asked.
    fn mounted(&self, volume: &str) -> Result<Arc<Served>, Failure> {
        self.served(volume).ok_or_else(|| Failure::new(format!("volume '{volume}' is not mounted")))
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

    /// All that is served, by volume; nothing more is from now on.
    fn last_served(&self) -> BTreeMap<String, Arc<Served>> {
        let mut state = self.lock();
        state.is_ending = true;
        state.served.clone()
    }

    /// Unmounts all, lazily where files are open.
    fn end_mounts(&self) {
        for served in self.last_served().values() {
            if let Err(error) = served.unmount(false) {
                let lazily = served.unmount(true).is_ok();
                let now = match lazily {
                    true => "detached; it ends when the last file is closed",
                    false => "still mounted",
                };
                tell(format_args!("amberfs: {error}\n  now: {now}"));
            }
        }
    }

    /// Unmounts all and closes it, whatever files are open. The exit code: whether all could be closed, also what was before.
    fn end_at_once(&self) -> u8 {
        for (volume, served) in self.last_served() {
            let _it_may_be_unmounted = served.unmount(true);
            if let Err(failure) = served.close() {
                tell(format_args!("amberfs: volume '{volume}': {failure}"));
                self.lock().failures.insert(volume, failure);
            }
        }
        // Of those whose mount has ended, somebody is about to say what came of it.
        let mut state = self.lock();
        self.changed.wait_while(&mut state, |state| !state.ending.is_empty());
        if state.failures.is_empty() { 0 } else { exit::MOUNT_SYSTEM }
    }

    /// Answers a command.
    fn answer(self: &Arc<Server>, request: Request, asker: &mut Asker) -> Result<Json, Failure> {
        match request {
            Request::Hello => self.hello(),
            Request::Zone => Ok(pack(&zone::describe(&self.zone()?))),
            Request::Grow { bytes } => self.grow(bytes),

            Request::Mount { volume, dir, options, from, sloppy } => {
                let source = MountSource::Volume(VolumePlace { zone: self.path.clone(), volume });
                self.mount_another(&MountRequest { source, dir, option_lists: options, sloppy }, from)
            }
            Request::Remount { volume, options, from, sloppy } => {
                self.remount(&volume, &options, from, sloppy)
            }
            Request::Stats { volume } => Ok(pack(&self.mounted(&volume)?.stats())),
            Request::Settle { volume } => self.mounted(&volume)?.settle().map(|()| Json::Null),
            Request::Ended { volume } => self.ended(&volume, asker),

            Request::Info { volume } => self.info(&volume),
            Request::Snapshot { volume, ask } => self.snapshot(&volume, &ask, asker),
            Request::SnapshotDiff { volume, pair } => self.diff(&volume, &pair, asker),

            Request::Attach { volume, disk, bytes } => self.attach(&volume, &disk, bytes),
            Request::Detach { volume, disk } => self.detach(&volume, disk.as_deref()),
            Request::Format { volume, settings } => self.format(&volume, &settings),
            Request::Check { volume, repair, preen } => self.check(&volume, repair, preen, asker),
            Request::Dump { volume, structure, form } => {
                self.dump(volume.as_deref(), &structure, form, asker)
            }
            Request::RemoveVolume { volume, force } => self.remove_volume(&volume, force),
        }
    }

    /// Who the server is, and what it serves.
    fn hello(&self) -> Result<Json, Failure> {
        let state = self.lock();
        let mounts = state.served.iter().map(|(name, served)| served.mounted(name)).collect();
        drop(state);
        let (pid, zone, file) = (std::process::id(), self.path.clone(), self.file.clone());
        to_json(Hello { pid, zone, file, mounts })
    }

    /// Grows the zone.
    fn grow(&self, bytes: u64) -> Result<Json, Failure> {
        let (bytes, free_bytes) = zone::grow(&self.zone()?, bytes)?;
        Ok(json!({ "bytes": bytes, "free_bytes": free_bytes }))
    }
}

/// Why nothing more is done with the zone.
fn ending() -> Failure {
    Failure::ending("the zone's server")
}

/// An answer whose fields are a type's.
fn to_json(answer: impl Serialize) -> Result<Json, Failure> {
    serde_json::to_value(answer).map_err(Failure::new)
}
