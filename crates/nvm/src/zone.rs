//! A zone: one piece of NVM, its entrance, and the volumes in it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use crate::account::{Account, Purpose};
use crate::backing::{Backing, Place};
use crate::entrance::{
    COPIES, Entrance, EntranceHealth, Fault, RawEntrance, Unverified, VERSION, ZONE_BYTES_MIN,
};
use crate::error::{Error, MediaError};
use crate::info::ZoneInfo;
use crate::instruments::Instruments;
use crate::mapping::{MapError, Mapping, Source, Window};
use crate::persist::PersistMethod;
use crate::recording::{EventKind, Recorder, Recording, RecordingOptions};
use crate::region::Region;
use crate::technology::{Latency, Spinner, Technology};
use crate::volume::{Volume, VolumeEntry, VolumeKind};
use crate::watch::Watch;
use crate::wear::{Wear, WearMap};
use crate::{BLOCK, SEGMENT, info, lock, signature};

/// How to open a zone.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// How lines leave the caches; None is the best way for the backing and the processor.
    pub persist: Option<PersistMethod>,
    /// The memory technology to emulate.
    pub technology: Technology,
    /// Latencies to emulate instead of the technology's.
    pub latency: Option<Latency>,
    /// Open without the right to change anything; many may do so at once.
    pub read_only: bool,
    /// Count how often each granule is written, see [`Wear`].
    pub wear: bool,
    /// Bytes of a granule of wear: a power of two from [`crate::LINE`] to [`SEGMENT`].
    pub wear_granule: u64,
    /// Fault all pages in at once, so that no later access pays for it.
    pub prefault: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            persist: None,
            technology: Technology::Dram,
            latency: None,
            read_only: false,
            wear: false,
            wear_granule: BLOCK,
            prefault: false,
        }
    }
}

/// One piece of NVM. Cloning is cheap and gives the same zone; it closes when the last clone and the last
/// [`Region`] are gone.
#[derive(Clone)]
pub struct Zone {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    /// Keeps the lock. None for memory.
    place: Mutex<Option<Place>>,
    backing: Backing,
    uuid: Uuid,
    options: OpenOptions,
    method: PersistMethod,
    method_reason: &'static str,
    health: EntranceHealth,
    instruments: Arc<Instruments>,
    /// The entrance's own ledger.
    entrance_volume: Arc<Volume>,
    state: Mutex<State>,
    /// Keeps the poison of this mapping and of those that replace it when the zone grows.
    first_mapping: Arc<Mapping>,
}

/// What changes while a zone is open.
struct State {
    entrance: Entrance,
    /// Which copy is the older one, to be written first.
    older_copy: usize,
    mapping: Arc<Mapping>,
    /// Volumes that were opened, by UUID: their accounts last as long as the zone is open.
    opened: HashMap<Uuid, Arc<Volume>>,
}

const MEMORY: &str = "memory";

impl Zone {
    /// Creates a zone at `path`: a new file, an existing file (extended to `bytes`, never cut), a DAX
    /// device or a block device. `bytes` is rounded up to whole segments; 0 takes all of what is there.
    ///
    /// Refuses what holds anything but zeros in its first 2 MiB, and names it, unless `force` is given.
    pub fn create(path: &Path, bytes: u64, force: bool, options: &OpenOptions) -> Result<Zone, Error> {
        if options.read_only {
            return Err(Error::ReadOnly { path: path.to_path_buf(), doing: "create a zone there" });
        }
        // Before anything is made or changed.
        Backing::Memory.persist(options.persist)?;
        let (mut place, made) = Place::open(path, true, true)?;
        let zone = Self::create_in(&mut place, bytes, force, options).map(|parts| (parts, place));
        match zone {
            Ok(((mapping, entrance), place)) => {
                let mapping = Arc::new(mapping);
                let zone = Self::assemble(Some(place), mapping, entrance, EntranceHealth::Sound, 1, options)?;
                zone.format();
                Ok(zone)
            }
            Err(error) => {
                if made {
                    let _ = std::fs::remove_file(path);
                }
                Err(error)
            }
        }
    }

    fn create_in(
        place: &mut Place,
        bytes: u64,
        force: bool,
        options: &OpenOptions,
    ) -> Result<(Mapping, Entrance), Error> {
        let path = place.path.clone();
        lock::take(&place.file, &path, true)?;
        let unit = place.unit();
        let bytes = match bytes {
            0 => place.bytes / unit * unit,
            bytes => bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX),
        };
        if bytes < ZONE_BYTES_MIN {
            return Err(Error::TooSmall { path, bytes, min: ZONE_BYTES_MIN });
        }
        let max = match place.is_file() {
            true => u64::from(u32::MAX) * SEGMENT,
            false => (place.bytes / unit * unit).min(u64::from(u32::MAX) * SEGMENT),
        };
        if bytes > max {
            return Err(Error::TooLarge { path, bytes, max });
        }
        // Look before anything changes. What cannot be read without mapping is looked at below.
        let look = |start: &[u8]| match signature::recognise(start) {
            Some(content) if !force => Err(Error::Occupied { path: path.clone(), content }),
            _ => Ok(()),
        };
        let peeked = place.peek(signature::LOOK_BYTES);
        if let Some(start) = &peeked {
            look(start)?;
        }
        if place.is_file() {
            place.extend(bytes)?;
        }
        let mapping = place.map(bytes, true, None)?;
        if peeked.is_none() {
            let mapping = Arc::new(mapping);
            let window = Window::new(mapping.clone(), 0, SEGMENT, PersistMethod::Clflush);
            look(window.bytes(0, signature::LOOK_BYTES))?;
            drop(window);
            let Ok(mapping) = Arc::try_unwrap(mapping) else { unreachable!("the window is gone") };
            return Ok((mapping, Entrance::new(bytes)));
        }
        if options.prefault {
            mapping.prefault();
        }
        Ok((mapping, Entrance::new(bytes)))
    }

    /// Opens an existing zone.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Zone, Error> {
        let writable = !options.read_only;
        let (mut place, _) = Place::open(path, writable, false)?;
        lock::take(&place.file, path, writable)?;
        // Another process may have grown it between the look and the lock.
        place.look()?;
        let bytes = place.bytes / place.unit() * place.unit();
        if bytes < ZONE_BYTES_MIN {
            return Err(Self::refuse_small(&place));
        }
        let mapping = place.map(bytes, writable, None)?;
        if options.prefault {
            mapping.prefault();
        }
        Self::open_in(Some(place), mapping, options)
    }

    /// What a file too small for a zone is: a zone that was cut short, or none.
    fn refuse_small(place: &Place) -> Error {
        let path = place.path.clone();
        let start = place.peek(size_of::<RawEntrance>()).unwrap_or_default();
        let recorded = RawEntrance::read_from_prefix(&start)
            .ok()
            .and_then(|(raw, _)| Unverified(&raw).verify(0).ok())
            .map(|entrance| entrance.bytes);
        match recorded {
            Some(recorded) => Error::Truncated { path, recorded, actual: place.bytes },
            None => {
                let found = match signature::recognise(&start) {
                    Some(content) => format!("{} bytes: {content}", place.bytes),
                    None => format!("{} bytes, and a zone has at least {ZONE_BYTES_MIN}", place.bytes),
                };
                Error::NotAZone { path, found }
            }
        }
    }

    /// A new zone in this process's memory, gone with it. Pages are taken as they are touched.
    pub fn anonymous(bytes: u64, options: &OpenOptions) -> Result<Zone, Error> {
        let bytes = bytes.checked_next_multiple_of(SEGMENT).unwrap_or(!(SEGMENT - 1));
        let path = || PathBuf::from(MEMORY);
        if options.read_only {
            return Err(Error::ReadOnly { path: path(), doing: "create a zone in memory" });
        }
        if bytes < ZONE_BYTES_MIN {
            return Err(Error::TooSmall { path: path(), bytes, min: ZONE_BYTES_MIN });
        }
        let mapping = Self::map_memory(bytes, true)?;
        if options.prefault {
            mapping.prefault();
        }
        let entrance = Entrance::new(bytes);
        let zone = Self::assemble(None, Arc::new(mapping), entrance, EntranceHealth::Sound, 1, options)?;
        zone.format();
        Ok(zone)
    }

    /// A zone in memory that is a copy of `image`: for tests of corrupt images and of states that a power
    /// cut could leave. Everything that [`Zone::open`] checks is checked.
    pub fn from_bytes(image: &[u8], options: &OpenOptions) -> Result<Zone, Error> {
        let bytes = image.len() as u64 / SEGMENT * SEGMENT;
        if bytes < ZONE_BYTES_MIN {
            let actual = image.len() as u64;
            return Err(Error::TooSmall { path: MEMORY.into(), bytes: actual, min: ZONE_BYTES_MIN });
        }
        let mapping = Arc::new(Self::map_memory(bytes, true)?);
        let window = Window::new(mapping.clone(), 0, bytes, PersistMethod::best());
        // Zeros are there already: leave their pages untouched.
        for (index, block) in image[..bytes as usize].chunks(BLOCK as usize).enumerate() {
            if block.iter().any(|&byte| byte != 0) {
                window.store(index as u64 * BLOCK, block);
            }
        }
        drop(window);
        let Ok(mapping) = Arc::try_unwrap(mapping) else { unreachable!("the window is gone") };
        Self::open_in(None, mapping, options)
    }

    fn map_memory(bytes: u64, writable: bool) -> Result<Mapping, Error> {
        Mapping::new(Source::Memory, bytes, SEGMENT, 4096, writable, None).map_err(|error| match error {
            MapError::System(errno) => {
                Error::Io { doing: "map it", path: MEMORY.into(), source: errno.into() }
            }
            MapError::Guard(error) => error,
        })
    }

    /// Verifies the entrance and repairs it where that is allowed.
    fn open_in(place: Option<Place>, mapping: Mapping, options: &OpenOptions) -> Result<Zone, Error> {
        let path = place.as_ref().map_or_else(|| PathBuf::from(MEMORY), |place| place.path.clone());
        let mapping = Arc::new(mapping);
        let window = Window::new(mapping.clone(), 0, SEGMENT, PersistMethod::Clflush);
        let read = |copy: usize| {
            let at = COPIES[copy];
            let raw = RawEntrance::read_from_bytes(window.bytes(at, size_of::<RawEntrance>()))
                .unwrap_or_else(|_| unreachable!("the slice has the structure's size"));
            match window.poisoned_at() {
                Some(address) => Err(Fault::Corrupt(MediaError { address }.to_string())),
                None => Unverified(&raw).verify(copy),
            }
        };
        let writable = !options.read_only;
        let (first, second) = (read(0), read(1));
        let (entrance, health, older_copy) = match (first, second) {
            (Ok(first), Ok(second)) if first == second => (first, EntranceHealth::Sound, 1),
            // Two zones' entrances in one place, or equal sequences of different content: no update does that.
            (Ok(first), Ok(second)) if first.uuid != second.uuid || first.sequence == second.sequence => {
                return Err(Error::EntranceCorrupt {
                    path,
                    first: format!("valid, of zone {} at sequence {}", first.uuid, first.sequence),
                    second: format!("valid, of zone {} at sequence {}", second.uuid, second.sequence),
                });
            }
            (Ok(first), Ok(second)) => {
                let older = usize::from(first.sequence > second.sequence);
                let newest = if older == 1 { first } else { second };
                (newest, EntranceHealth::Behind { copy: older, repaired: writable }, older)
            }
            (Err(Fault::Version { version, features }), _)
            | (_, Err(Fault::Version { version, features })) => {
                return Err(Error::UnknownVersion { path, found: version, features, known: VERSION });
            }
            (Ok(sound), Err(fault)) => {
                let what = fault.to_string();
                (sound, EntranceHealth::Damaged { copy: 1, what, repaired: writable }, 1)
            }
            (Err(fault), Ok(sound)) => {
                let what = fault.to_string();
                (sound, EntranceHealth::Damaged { copy: 0, what, repaired: writable }, 0)
            }
            (Err(Fault::Magic), Err(Fault::Magic)) => {
                let found = signature::recognise(window.bytes(0, SEGMENT as usize));
                let found = found.unwrap_or_else(|| "its first 2 MiB are zero".to_string());
                return Err(Error::NotAZone { path, found });
            }
            (Err(first), Err(second)) => {
                let (first, second) = (first.to_string(), second.to_string());
                return Err(Error::EntranceCorrupt { path, first, second });
            }
        };
        if entrance.bytes > mapping.len() {
            let actual = place.as_ref().map_or(mapping.len(), |place| place.bytes);
            return Err(Error::Truncated { path, recorded: entrance.bytes, actual });
        }
        drop(window);
        let repair = writable && health != EntranceHealth::Sound;
        let zone = Self::assemble(place, mapping, entrance, health, older_copy, options)?;
        if repair {
            let state = zone.inner.state.lock();
            zone.write_copy(&state, state.older_copy);
        }
        Ok(zone)
    }

    fn assemble(
        place: Option<Place>,
        mapping: Arc<Mapping>,
        entrance: Entrance,
        health: EntranceHealth,
        older_copy: usize,
        options: &OpenOptions,
    ) -> Result<Zone, Error> {
        let backing = place.as_ref().map_or(Backing::Memory, |place| place.backing.clone());
        let (method, method_reason) = backing.persist(options.persist)?;
        let wear = options.wear.then(|| WearMap::new(entrance.bytes, options.wear_granule));
        let spinner = Spinner::new(options.latency.unwrap_or_else(|| options.technology.latency()));
        let entrance_volume = Volume::new(VolumeEntry {
            name: String::new(),
            kind: VolumeKind::Native,
            uuid: entrance.uuid,
            start: 0,
            bytes: SEGMENT,
        });
        let inner = Inner {
            path: place.as_ref().map_or_else(|| PathBuf::from(MEMORY), |place| place.path.clone()),
            place: Mutex::new(place),
            backing,
            uuid: entrance.uuid,
            options: options.clone(),
            method,
            method_reason,
            health,
            instruments: Arc::new(Instruments::new(wear, spinner, method == PersistMethod::Msync)),
            entrance_volume: Arc::new(entrance_volume),
            first_mapping: mapping.clone(),
            state: Mutex::new(State { entrance, older_copy, mapping, opened: HashMap::new() }),
        };
        Ok(Zone { inner: Arc::new(inner) })
    }

    /// Writes a new zone's entrance. Both copies are wiped first, so that no entrance of an earlier zone
    /// can win over the new one.
    fn format(&self) {
        let state = self.inner.state.lock();
        let region = self.entrance_region(&state);
        let wiped = region.stream_zero(Purpose::Metadata, 0, SEGMENT);
        region.fence(wiped).ignore();
        for copy in [1, 0] {
            self.write_copy(&state, copy);
        }
    }

    /// The entrance's segment, as a region.
    fn entrance_region(&self, state: &State) -> Region {
        let window = Window::new(state.mapping.clone(), 0, SEGMENT, self.inner.method);
        Region::new(window, self.inner.instruments.clone(), self.inner.entrance_volume.clone(), self.clone())
    }

    fn write_copy(&self, state: &State, copy: usize) {
        let region = self.entrance_region(state);
        let raw = state.entrance.encode(copy);
        let written = region.stream(Purpose::Metadata, COPIES[copy], raw.as_bytes());
        region.fence(written).ignore();
    }

    /// Publishes `entrance`: the older copy first, then the other one.
    fn publish(&self, state: &mut State, mut entrance: Entrance) -> Result<(), Error> {
        entrance.sequence = state.entrance.sequence + 1;
        state.entrance = entrance;
        let older = state.older_copy;
        self.write_copy(state, older);
        self.write_copy(state, 1 - older);
        self.check()?;
        Ok(())
    }

    fn refuse_read_only(&self, doing: &'static str) -> Result<(), Error> {
        match self.inner.options.read_only {
            true => Err(Error::ReadOnly { path: self.inner.path.clone(), doing }),
            false => Ok(()),
        }
    }

    /// The volumes, in the order of the zone.
    pub fn volumes(&self) -> Vec<VolumeEntry> {
        self.inner.state.lock().entrance.volumes()
    }

    /// Makes a volume of `bytes`, rounded up to whole segments, in the first gap that holds it; None takes
    /// the largest gap whole. Atomic: after a power cut the volume is there or it isn't.
    ///
    /// Its first segment reads as zeros. The rest holds whatever was there before: a volume that looks
    /// further should know its own structures by [`Region::uuid`].
    pub fn create_volume(&self, name: &str, kind: VolumeKind, bytes: Option<u64>) -> Result<Region, Error> {
        self.refuse_read_only("create a volume")?;
        let mut state = self.inner.state.lock();
        let mut entrance = state.entrance.clone();
        let slot = entrance.add(name, kind, bytes)?;
        let Some(entry) = entrance.slots[slot].clone() else { unreachable!("`add` filled the slot") };
        // Before the volume can be found, nothing of an earlier one may be found in its place.
        let window = Window::new(state.mapping.clone(), entry.start, entry.bytes, self.inner.method);
        let volume = Arc::new(Volume::new(entry));
        let region = Region::new(window, self.inner.instruments.clone(), volume.clone(), self.clone());
        let wiped = region.stream_zero(Purpose::Metadata, 0, SEGMENT);
        region.fence(wiped).ignore();
        self.publish(&mut state, entrance)?;
        state.opened.insert(volume.entry.uuid, volume);
        Ok(region)
    }

    /// Removes a volume; its space is free at once. Atomic. Its regions must be gone.
    pub fn remove_volume(&self, name: &str) -> Result<(), Error> {
        self.refuse_read_only("remove a volume")?;
        let mut state = self.inner.state.lock();
        let (slot, entry) = self.find(&state, name)?;
        // One reference is the zone's own; regions are only made under the lock held here.
        if state.opened.get(&entry.uuid).is_some_and(|volume| Arc::strong_count(volume) > 1) {
            return Err(Error::VolumeInUse { name: name.to_string() });
        }
        let mut entrance = state.entrance.clone();
        entrance.slots[slot] = None;
        self.publish(&mut state, entrance)?;
        state.opened.remove(&entry.uuid);
        Ok(())
    }

    /// A volume's piece of the zone.
    pub fn volume(&self, name: &str) -> Result<Region, Error> {
        let mut state = self.inner.state.lock();
        let (_, entry) = self.find(&state, name)?;
        let window = Window::new(state.mapping.clone(), entry.start, entry.bytes, self.inner.method);
        let volume = state.opened.entry(entry.uuid).or_insert_with(|| Arc::new(Volume::new(entry))).clone();
        Ok(Region::new(window, self.inner.instruments.clone(), volume, self.clone()))
    }

    fn find(&self, state: &State, name: &str) -> Result<(usize, VolumeEntry), Error> {
        match state.entrance.find(name) {
            Some((slot, entry)) => Ok((slot, entry.clone())),
            None => {
                let names = state.entrance.volumes().into_iter().map(|volume| volume.name).collect();
                Err(Error::NoSuchVolume { name: name.to_string(), names })
            }
        }
    }

    /// Grows the zone to `bytes`, rounded up to whole segments: a file is extended, a device must have
    /// them; 0 takes all of what is there. The new space is free for volumes. Open regions stay valid.
    pub fn grow(&self, bytes: u64) -> Result<(), Error> {
        self.refuse_read_only("grow it")?;
        let path = self.inner.path.clone();
        let refuse = |bytes, why| Error::CannotGrow { path: path.clone(), bytes, why };
        let mut state = self.inner.state.lock();
        let mut place = self.inner.place.lock();
        let place = place.as_mut().ok_or_else(|| refuse(bytes, "a zone in memory keeps its size"))?;
        place.look()?;
        let unit = place.unit();
        let bytes = match bytes {
            0 => place.bytes / unit * unit,
            bytes => bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX),
        };
        if bytes < state.entrance.bytes {
            return Err(refuse(bytes, "it is larger already, and zones don't shrink"));
        }
        if bytes > u64::from(u32::MAX) * SEGMENT {
            return Err(refuse(bytes, "that is beyond what the system index can address"));
        }
        if place.is_file() {
            place.extend(bytes)?;
        } else if bytes > place.bytes {
            return Err(refuse(bytes, "the device is not that large"));
        }
        if bytes > state.mapping.len() {
            // Open regions keep the old mapping, which shows the same memory.
            let mapping = place.map(bytes, true, Some(&state.mapping))?;
            state.mapping = Arc::new(mapping);
        }
        let mut entrance = state.entrance.clone();
        entrance.bytes = bytes;
        self.publish(&mut state, entrance)
    }

    /// What this zone really is: on DAX or not, persisted how and why, in huge pages or not.
    pub fn info(&self) -> ZoneInfo {
        let state = self.inner.state.lock();
        ZoneInfo {
            path: self.inner.path.clone(),
            bytes: state.entrance.bytes,
            free_bytes: state.entrance.gaps().iter().map(|gap| gap.1).sum(),
            uuid: self.inner.uuid,
            created_s: state.entrance.created_s,
            version: VERSION,
            backing: self.inner.backing.clone(),
            persist: self.inner.method,
            persist_reason: self.inner.method_reason,
            huge_bytes: info::huge_bytes(state.mapping.start(), &self.inner.backing),
            technology: self.inner.options.technology,
            read_only: self.inner.options.read_only,
            entrance: self.inner.health.clone(),
        }
    }

    /// Whether the zone was opened read-only.
    pub fn is_read_only(&self) -> bool {
        self.inner.options.read_only
    }

    /// Whether the medium is sound; see [`Region::check`].
    pub fn check(&self) -> Result<(), MediaError> {
        self.inner.first_mapping.poisoned_at().map_or(Ok(()), |address| Err(MediaError { address }))
    }

    /// What was stored to the entrance itself since the zone was opened.
    pub fn entrance_account(&self) -> Account {
        self.inner.entrance_volume.ledger.account()
    }

    /// A copy of the zone's bytes as memory has them now.
    pub fn snapshot_image(&self) -> Vec<u8> {
        let state = self.inner.state.lock();
        let bytes = state.entrance.bytes;
        Window::new(state.mapping.clone(), 0, bytes, self.inner.method).bytes(0, bytes as usize).to_vec()
    }

    /// How often each granule was written, if [`OpenOptions::wear`] asked for it.
    pub fn wear(&self) -> Option<Wear> {
        self.inner.instruments.wear.as_ref().map(WearMap::snapshot)
    }

    /// Starts recording. What other threads are storing at this moment may or may not be in. A recording
    /// that was running is dropped.
    pub fn start_recording(&self, options: RecordingOptions) {
        let bytes = self.inner.state.lock().entrance.bytes;
        self.inner.instruments.start(Recorder::new(self.inner.uuid, bytes, options));
    }

    /// Ends recording and gives what was recorded; None if nothing was.
    pub fn stop_recording(&self) -> Option<Recording> {
        self.inner.instruments.stop().map(Recorder::finish)
    }

    /// Watches the zone from now on, until [`Zone::unwatch`]: notes which lines are read and stored to, so that stores
    /// can be taken back. Nothing is persisted meanwhile: flushes are only counted and recorded. Costs about 50 ns an
    /// access.
    pub fn watch(&self) {
        let state = self.inner.state.lock();
        let window = Window::new(state.mapping.clone(), 0, state.entrance.bytes, self.inner.method);
        self.inner.instruments.start_watch(Watch::new(window));
    }

    /// Ends a watch. What was stored meanwhile stays.
    pub fn unwatch(&self) {
        self.inner.instruments.stop_watch();
    }

    /// Gives the watch to `with`; None if the zone is not watched. `with` must not access the zone otherwise: it holds
    /// a lock that accesses take.
    pub fn watched<R>(&self, with: impl FnOnce(&mut Watch) -> R) -> Option<R> {
        self.inner.instruments.watched(with)
    }

    /// Has `gate` called before each event that a recording gets, by the thread that is about to make it: so that who
    /// explores several threads decides whose turn it is.
    pub fn set_gate(&self, gate: Option<fn()>) {
        self.inner.instruments.set_gate(gate);
    }

    /// Puts a named point into the recording, if there is one: "the file operation has returned".
    pub fn mark(&self, name: &str) {
        if self.inner.instruments.on(crate::instruments::RECORD)
            && let Some(recorder) = self.inner.instruments.recorder.lock().as_mut()
        {
            let entry = &self.inner.entrance_volume.entry;
            let number = crate::operation::current().number;
            recorder.push_as(name, number, entry, EventKind::Mark, Purpose::Metadata, 0, 0, &[]);
        }
    }
}

impl std::fmt::Debug for Zone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zone")
            .field("path", &self.inner.path)
            .field("uuid", &self.inner.uuid)
            .finish_non_exhaustive()
    }
}
