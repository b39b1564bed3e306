//! A volume that is being served: mounted, asked beside its mount, its snapshots taken, exchanged when it returns to one.

mod told;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use disk::Disk;
use native::Durability;
use nvm::{Account, Region, VolumeKind, Zone};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde_json::{Value as Json, json};
use vfs::{Caller, FileSystem, Ino, ROOT_INO};

use crate::admin::account;
use crate::admin::differences::Pair;
use crate::admin::snapshots::{self, Ask};
use crate::admin::zone;
use crate::alone;
use crate::attached::Attached;
use crate::control::{Asker, Mounted};
use crate::failure::{Explain, Failure};
use crate::metering::{Meter, Metered};
use crate::mount_request::{MountRequest, fuse_options};
use crate::mount_table::{self, MountEntry, Whereabouts};
use crate::options::Options;
use crate::pages;
use crate::read_disk;
use crate::report::{Fields, Value};
use crate::retention;
use crate::schedule::{Keeper, Keeps, Schedule};
use crate::zone_access::is_mounted;

/// How long who exchanges the volume waits for who uses it.
const ALONE_PATIENCE: Duration = Duration::from_secs(3);

/// A volume being served.
pub(crate) struct Served {
    /// Where it was mounted; where it is now, its device tells.
    dir: PathBuf,
    given_device: String,
    /// What `/proc/mounts` says is mounted.
    pub(crate) source: String,
    option_list: String,
    pub(crate) options: Options,
    /// What survives a crash, in force.
    promise: Promise,
    since: SystemTime,
    started: Instant,
    /// Shared by who uses it beside the mount, exclusively by who exchanges it. Requests of the kernel don't wait for it.
    shown: RwLock<Shown>,
    metered: Arc<Metered>,
    /// For its account, and what that was before; the volume has a region of its own. A disk by itself has none.
    account: Option<(Region, Account)>,
    meter: Arc<Meter>,
    requests: Mutex<Box<dyn Fn() -> fuse::RequestCounts + Send>>,
    over_io_uring: bool,
    unmounter: fuse::Unmounter,
    kernel_cache: fuse::KernelCache,
    keeping: Mutex<Keeping>,
}

/// What of what was done survives a crash; nothing is done to what is read-only.
#[derive(Clone, Copy, Debug, Default)]
struct Promise {
    durability: Option<Durability>,
    /// Operations on names, and with them those that change no bytes of files, are durable when they return.
    at_once: Option<bool>,
}

/// What is to be served.
pub(crate) enum Medium {
    /// A volume of a zone, and once more for its account.
    Volume { region: Region, account: Region },
    /// A disk by itself, to be read.
    Disk(Arc<Disk>),
}

/// Who takes snapshots.
enum Keeping {
    Nobody,
    A(Schedule),
    /// Nobody any more: the mount has ended.
    Ended,
}

/// What a mount shows.
enum Shown {
    Volume(Arc<native::Volume>),
    /// A disk with its metadata in NVM.
    Disk(Attached),
    /// A disk by itself, which is only read.
    Read(Arc<ext::Volume>),
    /// A snapshot of it: the volume is not open.
    Snapshot,
    /// Nothing: opening the volume again failed.
    Nothing,
    /// Nothing any more: the mount has ended, and the volume is closed.
    Ended,
}

impl Served {
    /// Opens the volume and mounts it.
    pub(crate) fn mount(
        request: &MountRequest,
        options: &Options,
        medium: Medium,
    ) -> Result<(Arc<Served>, fuse::Mount), Failure> {
        let (at_once, promise, account, (shown, tree)) = match medium {
            Medium::Volume { region, account } => {
                let at_once = options.is_durable_at_once(region.kind(), region.persist_method());
                let promise = if options.read_only {
                    Promise::default()
                } else {
                    let durability = Some(options.durability);
                    Promise { durability, at_once: Some(at_once || options.dirsync) }
                };
                let before = account.account();
                (at_once, promise, Some((account, before)), open(region, options)?)
            }
            Medium::Disk(disk) => {
                let how = options.mounted_ext().map_err(Failure::new).doing("reading the mount options")?;
                let volume = ext::Volume::open(disk, &how).doing("opening the disk's file system")?;
                let volume = Arc::new(volume);
                let shown = (Shown::Read(volume.clone()), volume as Arc<dyn FileSystem>);
                (true, Promise::default(), None, shown)
            }
        };
        let meter = Arc::new(Meter::default());
        let metered = Arc::new(Metered::new(tree, meter.clone()));
        let options_of_mount =
            fuse::MountOptions { durable_operations: at_once, ..fuse_options(&request.source, options) };
        let mount = fuse::mount(metered.clone(), &request.dir, &options_of_mount);
        let mount = mount.doing("mounting").inspect_err(|_| {
            let _ = shown.close();
        })?;
        let served = Served {
            dir: mount.dir().to_path_buf(),
            given_device: mount.device().to_string(),
            promise,
            source: request.source.to_string(),
            option_list: request.option_lists.join(","),
            options: options.clone(),
            since: SystemTime::now(),
            started: Instant::now(),
            shown: RwLock::new(shown),
            metered,
            account,
            meter,
            requests: Mutex::new(Box::new(mount.counts())),
            over_io_uring: mount.over_io_uring(),
            unmounter: mount.unmounter(),
            kernel_cache: mount.kernel_cache(),
            keeping: Mutex::new(Keeping::Nobody),
        };
        Ok((Arc::new(served), mount))
    }

    /// The mount's device, as the table of mounts has it; nothing when the mount has ended, for another one may have it then.
    fn device(&self) -> &str {
        if self.unmounter.has_ended() { "" } else { &self.given_device }
    }

    /// Where it is mounted now.
    pub(crate) fn whereabouts(&self) -> Whereabouts {
        mount_table::whereabouts(self.device(), &self.dir)
    }

    /// The same as a directory; if it is nowhere, where it was.
    pub(crate) fn place(&self) -> PathBuf {
        match self.whereabouts() {
            Whereabouts::Shown(dir) | Whereabouts::Covered(dir) => dir,
            Whereabouts::Nowhere => self.dir.clone(),
        }
    }

    /// Unmounts it, wherever it was bound or moved to.
    pub(crate) fn unmount(&self, lazy: bool) -> Result<(), Failure> {
        self.unmounter.unmount(lazy)?;
        let is_it = |entry: &MountEntry| entry.is_amberfs() && entry.source == self.source;
        for entry in mount_table::showing(self.device())?.into_iter().filter(is_it) {
            fuse::unmount(&entry.dir, lazy)?;
        }
        // No path leads to one that is covered, so nobody can unmount it.
        let covered =
            mount_table::read()?.into_iter().find(|entry| entry.device == self.device() && is_it(entry));
        match covered {
            Some(entry) => {
                let what =
                    format!("something else is mounted over {} on {}", self.source, entry.dir.display());
                Err(Failure::new(what).remedy("unmount what covers it, then this one"))
            }
            None => Ok(()),
        }
    }

    /// How it is mounted, as a hello tells it. JSON is made of characters.
    pub(crate) fn mounted(&self, volume: &str) -> Mounted {
        let dir = self.place().display().to_string().into();
        Mounted { volume: volume.to_string(), dir, device: self.device().to_string() }
    }

    /// Why nobody else can have the volume.
    pub(crate) fn is_mounted(&self) -> Failure {
        is_mounted(&self.source, &self.mounted(""), std::process::id())
    }

    /// Closes the volume when its mount has ended, and whoever used it beside that; and lets go of it, so that somebody else can open it.
    pub(crate) fn end(&self) -> Result<(), Failure> {
        self.keep_no_more();
        let mut shown = self.shown.write();
        let closed = shown.close();
        *shown = Shown::Ended;
        self.metered.exchange(None);
        closed.map_err(|failure| self.with_cause(failure))
    }

    /// Closes the volume without waiting for anybody.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        self.keep_no_more();
        self.shown().close().map_err(|failure| self.with_cause(failure))
    }

    fn with_cause(&self, failure: Failure) -> Failure {
        match &self.account {
            Some((region, _)) => zone::with_cause(region.zone(), failure),
            None => failure,
        }
    }

    fn keep_no_more(&self) {
        let keeping = std::mem::replace(&mut *self.keeping.lock(), Keeping::Ended);
        if let Keeping::A(schedule) = keeping {
            schedule.stop();
        }
    }

    /// Makes what was written durable.
    pub(crate) fn make_durable(&self) -> Result<(), Failure> {
        match &*self.shown() {
            Shown::Volume(volume) => volume.checkpoint().doing("making what was written durable"),
            Shown::Disk(disk) => {
                disk.volume.syncfs().map_err(Failure::new).doing("making what was written durable")
            }
            Shown::Read(_) | Shown::Snapshot | Shown::Nothing | Shown::Ended => Ok(()),
        }
    }

    /// Brings to its disk, if it has one, what waits in NVM for that.
    pub(crate) fn settle(&self) -> Result<(), Failure> {
        match &*self.shown() {
            Shown::Disk(disk) => {
                disk.volume.syncfs().map_err(Failure::new).doing("making what was written durable")?;
                disk.volume.checkpoint().map_err(Failure::new).doing("writing to the disk what is in NVM")
            }
            Shown::Volume(_) | Shown::Read(_) | Shown::Snapshot | Shown::Nothing | Shown::Ended => Ok(()),
        }
    }

    /// What opening the volume had to do.
    pub(crate) fn recovery(&self) -> Json {
        match &*self.shown() {
            Shown::Volume(volume) => account::recovery(&volume.recovery()).json(),
            Shown::Disk(disk) => disk.recovery().json(),
            Shown::Read(volume) => read_disk::recovery(volume).json(),
            Shown::Snapshot | Shown::Nothing | Shown::Ended => json!({ "was_clean": true }),
        }
    }

    fn shown(&self) -> RwLockReadGuard<'_, Shown> {
        self.shown.read()
    }

    /// Copies a snapshot to a new volume of the zone.
    pub(crate) fn clone_snapshot(
        &self,
        zone: &Zone,
        name: &str,
        to: &str,
        asker: &mut Asker,
    ) -> Result<Fields, Failure> {
        self.with_volume(|volume| {
            volume.snapshot(name).doing("copying the snapshot")?; // before a volume is made for it
            let copy = |to: &Region| volume.clone_snapshot(name, to, &mut asker.progress());
            snapshots::clone_to(zone, volume.region().len(), to, copy)
        })
    }

    /// Uses the volume, which is not exchanged meanwhile.
    pub(crate) fn with_volume<T>(
        &self,
        use_it: impl FnOnce(&native::Volume) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match &*self.shown() {
            Shown::Volume(volume) => use_it(volume),
            Shown::Disk(_) | Shown::Read(_) => {
                Err(Failure::new("what is mounted is an ext disk, which has no snapshots")
                    .leaving("nothing was changed"))
            }
            Shown::Snapshot => {
                Err(Failure::new("a snapshot of the volume is mounted, and the volume is not")
                    .remedy(format!("amberfs umount {}, and try again", self.place().display())))
            }
            Shown::Ended => Err(Failure::ending("the volume's mount")),
            Shown::Nothing => Err(Failure::new("the volume could not be opened again; nothing is served")
                .remedy(format!("amberfs umount {}, then fsck", self.place().display()))),
        }
    }

    /// Whether the mount is read-only now, as the kernel says it is: a remount tells it, and not always us.
    fn is_read_only(&self) -> bool {
        self.options.read_only || mount_table::is_read_only(self.device())
    }

    /// An error if nothing of the volume is to be changed, its snapshots included.
    fn check_writable(&self) -> Result<(), Failure> {
        // That a snapshot is mounted says more, and is said of a volume that is not open.
        if !self.is_read_only() || self.options.snapshot.is_some() {
            return Ok(());
        }
        let dir = self.place();
        let dir = dir.display();
        let failure = Failure::new(format!("{} is mounted read-only on {dir}", self.source));
        let failure = failure.leaving("nothing was changed");
        Err(match self.options.read_only {
            true => failure.remedy(format!("amberfs umount {dir}, then mount it for writing")),
            false => failure.remedy(format!("mount -o remount,rw {dir}, and try again")),
        })
    }

    /// What programs have written may be in the kernel's pages: brings it to the volume.
    fn write_back(&self) -> Result<(), Failure> {
        pages::write_back(self.device(), &self.dir)
            .doing("writing the kernel's pages back")
            .leaving("nothing was changed")
    }

    /// The volume's snapshots, if it is open.
    pub(crate) fn list_snapshots(&self) -> Option<Result<Value, Failure>> {
        match &*self.shown() {
            Shown::Volume(volume) => Some(snapshots::listed(volume)),
            _ => None,
        }
    }

    /// Compares a snapshot with another, or with what programs have written.
    pub(crate) fn diff(&self, pair: &Pair) -> Result<Vec<native::Difference>, Failure> {
        if pair.to.is_none() {
            self.write_back()?;
        }
        self.with_volume(|volume| pair.compare(volume))
    }

    /// Returns the volume to a snapshot while it is mounted: at a moment at which the kernel holds nothing of it, it is closed,
    /// returned as one that is not mounted, and opened anew; requests that come meanwhile wait.
    pub(crate) fn roll_back(&self, volume: &str, to: &str, discard_newer: bool) -> Result<Fields, Failure> {
        self.with_volume(|volume| {
            self.check_writable()?;
            volume.check_roll_back(to, discard_newer).map(drop).map_err(snapshots::not_rolled_back)
        })
        .leaving("nothing was changed")?;
        let mut shown = self.alone()?;
        if let Some(other) = mount_table::within(self.device())? {
            let other = other.dir.display();
            return Err(Failure::new(format!("something is mounted on {other}, in the volume"))
                .leaving("nothing was changed")
                .remedy(format!("unmount {other}, and try again")));
        }
        let exchanged = self
            .kernel_cache
            .exchange(&[".snapshots"], || self.open_again(&mut shown, volume, to, discard_newer));
        exchanged.unwrap_or_else(|| {
            let what = format!("files in {} are open, or somebody works in it", self.place().display());
            let remedy = format!("{}; end that, or unmount it, and try again", self.who_uses_it());
            Err(Failure::new(what).leaving("nothing was changed").remedy(remedy))
        })
    }

    /// Waits a moment for who uses the volume beside the mount. Who would wait longer is refused.
    fn alone(&self) -> Result<RwLockWriteGuard<'_, Shown>, Failure> {
        alone::within(&self.shown, ALONE_PATIENCE).ok_or_else(|| {
            Failure::new("another command uses the volume: a snapshot is being copied or compared")
                .leaving("nothing was changed")
                .remedy("try again when that has ended")
        })
    }

    /// Closes the volume, returns it to a snapshot, and opens it again, also if it could not be returned.
    fn open_again(
        &self,
        shown: &mut Shown,
        name: &str,
        to: &str,
        discard_newer: bool,
    ) -> Result<Fields, Failure> {
        let volume = match std::mem::replace(shown, Shown::Nothing) {
            Shown::Volume(volume) => volume,
            other => {
                *shown = other;
                return Err(Failure::new("the volume is not open"));
            }
        };
        self.metered.exchange(None);
        let region = volume.region().clone();
        let closed = volume.close();
        drop(volume);
        let returned = closed.and_then(|()| native::roll_back(&region, to, discard_newer));
        match open(region, &self.options) {
            Ok((open, tree)) => {
                self.metered.exchange(Some(tree));
                *shown = open;
            }
            Err(failure) => {
                tracing::error!(
                    "volume '{name}': every request fails until it is unmounted: {}",
                    failure.what
                );
                let dir = self.place();
                let dir = dir.display();
                let what = match returned {
                    Ok(_) => failure.what,
                    Err(returned) => format!("{returned}; and then: {}", failure.what),
                };
                return Err(Failure::new(what)
                    .doing("opening the volume again")
                    .leaving(format!("{dir} is mounted, and every request fails with an I/O error"))
                    .remedy(format!("amberfs umount {dir}, then fsck")));
            }
        }
        match returned {
            Ok(snapshot) => {
                tracing::info!("volume '{name}': returned to snapshot {to:?}");
                Ok(snapshots::described(&snapshot))
            }
            Err(error) => Err(Failure::new(error)
                .doing("returning to the snapshot")
                .leaving("the volume is mounted as it was, but for newer snapshots that may be gone")),
        }
    }

    /// Does what is asked of the volume's snapshots, so that it fits what the kernel holds of the mount.
    pub(crate) fn snapshot(&self, ask: &Ask) -> Result<Fields, Failure> {
        let changes = !ask.changes_nothing();
        self.with_volume(|volume| {
            if changes {
                self.check_writable()?;
            }
            match ask {
                Ask::Take { .. } => {
                    self.write_back()?;
                    let taken = snapshots::perform(volume, ask)?;
                    if let Ok(dir) = snapshots_directory(volume) {
                        self.kernel_cache.forget_listing(dir);
                    }
                    Ok(taken)
                }
                Ask::Remove { name, .. } => {
                    self.let_go(volume, name)?;
                    snapshots::perform(volume, ask)
                }
                Ask::Prune { keep, dry_run } => {
                    snapshots::prune(&volume.snapshots(), keep, *dry_run, |name| {
                        self.let_go(volume, name)?;
                        Ok(volume.remove_snapshot(name)?)
                    })
                }
                _ => snapshots::perform(volume, ask),
            }
        })
    }

    /// Before a snapshot is removed, the kernel has to let go of it.
    fn let_go(&self, volume: &native::Volume, name: &str) -> Result<(), Failure> {
        let snapshot = volume.snapshot(name)?;
        let dir = snapshots_directory(volume)?;
        let path = snapshots::path_of(name);
        if snapshot.holds.is_empty() && !self.kernel_cache.let_go(&path, dir, |ino| snapshot.has_inode(ino)) {
            let error = native::Error::SnapshotInUse(name.to_string());
            return Err(Failure::new(error).leaving("it is kept").remedy(self.who_uses_it()));
        }
        Ok(())
    }

    fn who_uses_it(&self) -> String {
        format!("'fuser -vm {}' tells who uses files of the mount", self.place().display())
    }

    /// Begins to take snapshots, if they are to be taken.
    pub(crate) fn keep_snapshots(self: &Arc<Served>, name: &str) {
        let Some(policy) = &self.options.keep else { return };
        if self.options.read_only {
            tracing::warn!("volume '{name}' is mounted read-only: no snapshots are taken, none removed");
            return;
        }
        let keeper = Keeper::new(name, policy.clone(), self.options.keep_unchanged);
        let mut keeping = self.keeping.lock();
        if let Keeping::Nobody = *keeping {
            match Schedule::start(keeper, self.clone()) {
                Ok(schedule) => *keeping = Keeping::A(schedule),
                Err(error) => tracing::error!("volume '{name}': no snapshots are taken: no thread: {error}"),
            }
        }
    }
}

fn snapshots_directory(volume: &native::Volume) -> Result<Ino, Failure> {
    Ok(volume.lookup(&Caller::root(), ROOT_INO, b".snapshots").map_err(Failure::new)?.ino)
}

impl Keeps for Served {
    fn snapshots(&self) -> Result<Vec<native::Snapshot>, Failure> {
        self.with_volume(|volume| Ok(volume.snapshots()))
    }

    fn is_read_only(&self) -> bool {
        Served::is_read_only(self)
    }

    fn has_changed_since(&self, name: &str) -> Result<bool, Failure> {
        self.write_back()?;
        self.with_volume(|volume| Ok(volume.has_changed_since(name)?))
    }

    fn take(&self, name: &str) -> Result<(), Failure> {
        self.snapshot(&Ask::Take { name: name.into(), comment: retention::COMMENT.into() }).map(drop)
    }

    fn remove(&self, name: &str) -> Result<(), Failure> {
        self.snapshot(&Ask::Remove { name: name.into(), wait: false }).map(drop)
    }
}

impl Shown {
    fn close(&self) -> Result<(), Failure> {
        match self {
            Shown::Volume(volume) => volume.close().doing("closing the volume"),
            Shown::Disk(disk) => disk.close(),
            Shown::Read(_) | Shown::Snapshot | Shown::Nothing | Shown::Ended => Ok(()),
        }
    }
}

/// Opens a volume as the options say: what is to be shown of it, and that as a file system.
fn open(region: Region, options: &Options) -> Result<(Shown, Arc<dyn FileSystem>), Failure> {
    if region.kind() == VolumeKind::Ext {
        let disk = Attached::open(&region, options)?;
        let tree = disk.volume.clone();
        return Ok((Shown::Disk(disk), tree));
    }
    if let Some(name) = &options.snapshot {
        let tree = native::open_snapshot(&region, name).doing("opening the snapshot")?;
        return Ok((Shown::Snapshot, tree));
    }
    let options = options.mounted(region.persist_method());
    let volume = Arc::new(native::Volume::open(region, &options).doing("opening the volume")?);
    Ok((Shown::Volume(volume.clone()), volume))
}
