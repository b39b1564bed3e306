//! Mounts of a server: how they begin, are told to be something else, and end.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use nvm::{Region, VolumeKind, Zone};
use serde_json::{Value as Json, json};

use super::at_work::Work;
use super::{Opened, Server, State, ending};
use crate::admin::{attachment, snapshots};
use crate::control::Asker;
use crate::failure::{Explain, Failure, guarded, tell};
use crate::mount_request::MountRequest;
use crate::mount_table::Whereabouts;
use crate::options::Options;
use crate::place::MountSource;
use crate::served::{Medium, Served};

impl Server {
    /// Mounts a volume and starts serving it; gives what recovery did.
    pub(super) fn mount(
        self: &Arc<Server>,
        request: &MountRequest,
        options: &Options,
    ) -> Result<Json, Failure> {
        let name = request.source.volume();
        let mut state = self.when_not_opening(name);
        let Some(opened) = state.opened.clone().filter(|_| !state.is_ending) else {
            return Err(ending());
        };
        if let Some(served) = state.served.get(name) {
            return Err(is_mounted_already(served, request, options));
        }
        if matches!(opened, Opened::Disk(_)) && !matches!(request.source, MountSource::Disk(_)) {
            let what = format!("{} is no zone, and has no volumes", self.path.display());
            return Err(Failure::new(what).leaving("nothing was mounted"));
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
        let medium = Server::medium(opened, request, options)?;
        // Before there is anything that it has to wait for.
        let hand_over = self.clone().finish_when_ended(name.to_string())?;
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
            return Err(ending());
        }
        Ok(json!({ "recovery": recovery }))
    }

    /// What is to be mounted, if it can be.
    fn medium(opened: Opened, request: &MountRequest, options: &Options) -> Result<Medium, Failure> {
        let name = request.source.volume();
        match opened {
            Opened::Zone(zone) => {
                let region = mountable(&zone, name, options)?;
                Ok(Medium::Volume { region, account: zone.volume(name)? })
            }
            Opened::Disk(disk) => Ok(Medium::Disk(disk)),
        }
    }

    /// A thread that waits for the end of the mount that it is handed.
    fn finish_when_ended(self: Arc<Server>, name: String) -> Result<Sender<fuse::Mount>, Failure> {
        let (hand_over, mounted) = channel::<fuse::Mount>();
        let wait = move || {
            if let Ok(mount) = mounted.recv() {
                let served = mount.wait().doing("serving the mount");
                self.finish(&name, served);
            }
        };
        std::thread::Builder::new().spawn(wait).doing("starting a thread that waits for the mount's end")?;
        Ok(hand_over)
    }

    /// Closes a volume whose mount has ended. It stays listed until it is closed.
    fn finish(&self, name: &str, served: Result<(), Failure>) {
        let mut state = self.lock();
        state.ending.insert(name.to_string());
        let ending = state.served.get(name).cloned();
        drop(state);
        self.changed.notify_all();
        // Whatever happens there, nobody waits for it for ever.
        let closed = ending.map_or(Ok(()), |ending| guarded("it is unmounted", || ending.end()));
        let mut state = self.lock();
        state.served.remove(name);
        state.ending.remove(name);
        if let Err(failure) = served.and(closed) {
            tell(format_args!("amberfs: volume '{name}': {failure}"));
            state.failures.insert(name.to_string(), failure);
        }
        self.end_if_idle(&mut state);
    }

    /// Begins to take snapshots of a volume, if they are to be taken and it is still served.
    pub(super) fn keep_snapshots(&self, name: &str) {
        if let Some(served) = self.served(name) {
            served.keep_snapshots(name);
        }
    }

    /// Mounts another volume of the zone. Paths in its options are meant from `from`.
    pub(super) fn mount_another(
        self: &Arc<Server>,
        request: &MountRequest,
        from: PathBuf,
    ) -> Result<Json, Failure> {
        let options =
            Options::parse_from(from, &request.option_lists, request.sloppy).map_err(Failure::new)?;
        let answer = self.mount(request, &options)?;
        self.keep_snapshots(request.source.volume());
        Ok(answer)
    }

    /// Refuses options that the mount cannot change to; makes all durable before it becomes read-only.
    pub(super) fn remount(
        &self,
        volume: &str,
        options: &[String],
        from: PathBuf,
        sloppy: bool,
    ) -> Result<Json, Failure> {
        let served = self.mounted(volume)?;
        let wanted = served.options.remounted(from, options, sloppy).map_err(|wrong| {
            let remedy = format!("amberfs umount {}, then mount it so", served.place().display());
            Failure::new(wrong).remedy(remedy)
        })?;
        if wanted.read_only {
            if served.options.snapshot.is_none() {
                served.make_durable()?;
            }
        } else if served.options.read_only {
            return Err(Failure::new("the volume was opened read-only")
                .remedy(format!("amberfs umount {}, then mount it for writing", served.place().display())));
        }
        Ok(Json::Null)
    }

    /// Waits until a volume is no longer served and has been closed. Tells that it waits, and when the mount has ended.
    pub(super) fn ended(&self, volume: &str, asker: &mut Asker) -> Result<Json, Failure> {
        asker.tell(Json::Null)?;
        let served = self.served(volume);
        let disk = served.as_ref().and_then(|served| served.options.disk.clone());
        // Not for one that somebody mounts behind it; and not in its way.
        let this = served.as_ref().map(Arc::downgrade);
        drop(served);
        let is_it = |there: &Arc<Served>| {
            this.as_ref().is_some_and(|this| std::ptr::eq(this.as_ptr(), Arc::as_ptr(there)))
        };
        let here = |state: &mut State| state.served.get(volume).is_some_and(is_it);
        let in_use = |state: &mut State| here(state) && !state.ending.contains(volume);
        let mut state = self.lock();
        self.changed.wait_while(&mut state, in_use);
        drop(state);
        asker.tell(json!({ "ending": true }))?;
        let mut state = self.lock();
        self.changed.wait_while(&mut state, here);
        match state.failures.get(volume) {
            Some(failure) => Err(failure.clone()),
            None => Ok(json!({ "last": state.opened.is_none(), "disk": disk })),
        }
    }
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

/// Why a volume that is served is not mounted once more.
fn is_mounted_already(served: &Served, request: &MountRequest, options: &Options) -> Failure {
    let Whereabouts::Shown(there) = served.whereabouts() else {
        return served.is_mounted();
    };
    let failure = Failure::new(format!("{} is mounted already, on {}", request.source, there.display()));
    if let (None, Some(name)) = (&served.options.snapshot, &options.snapshot) {
        failure.remedy(format!("the snapshot is {}", there.join(snapshots::path_of(name)).display()))
    } else if there == request.dir {
        failure
    } else {
        let (here, there) = (request.dir.display(), there.display());
        failure.remedy(format!("for a second place: mount --bind {there} {here}"))
    }
}
