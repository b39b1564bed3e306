//! A zone: one piece of NVM, its entrance, and the volumes in it.

mod opening;
mod region;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::account::{Account, Purpose};
use crate::backing::{Backing, Place};
use crate::entrance::{COPIES, Entrance, EntranceCopy, EntranceHealth, VERSION};
use crate::error::{Error, MediaError};
use crate::info::ZoneInfo;
use crate::instruments::Instruments;
use crate::mapping::{Mapping, Window};
use crate::persist::PersistMethod;
use crate::recording::{EventKind, Recorder, Recording, RecordingOptions};
use crate::technology::{Latency, Technology};
use crate::volume::{Volume, VolumeEntry, VolumeKind};
use crate::watch::Watch;
use crate::wear::{Wear, WearMap};
use crate::{BLOCK, SEGMENT, info};

pub use region::Region;

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
    /// Where the medium failed in a copy of the entrance when the zone was opened.
    entrance_failed: OnceLock<u64>,
    /// Names of volumes whose making had been cut off when the zone was opened.
    removed_unfinished: OnceLock<Vec<String>>,
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

    /// Publishes `entrance`: the older copy first, then the other one. On a medium that has failed before, nothing is changed.
    fn publish(&self, state: &mut State, mut entrance: Entrance) -> Result<(), Error> {
        self.check_with_entrance()?;
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
        self.add_volume(name, kind, bytes, false)
    }

    /// How many bytes [`Zone::create_volume`] would give such a volume, or why it would not make it. Nothing is changed.
    pub fn check_volume(&self, name: &str, kind: VolumeKind, bytes: Option<u64>) -> Result<u64, Error> {
        self.refuse_read_only("create a volume")?;
        let mut entrance = self.inner.state.lock().entrance.clone();
        let slot = entrance.add(name, kind, bytes)?;
        let Some(entry) = &entrance.slots[slot] else { unreachable!("`add` filled the slot") };
        Ok(entry.bytes)
    }

    /// The same of a volume that is nothing before it is filled: it is *unfinished*, and nobody else gets its region, until
    /// [`Zone::finish_volume`]. If that is cut off, whoever opens the zone for writing next removes it.
    pub fn begin_volume(&self, name: &str, kind: VolumeKind, bytes: Option<u64>) -> Result<Region, Error> {
        self.add_volume(name, kind, bytes, true)
    }

    fn add_volume(
        &self,
        name: &str,
        kind: VolumeKind,
        bytes: Option<u64>,
        unfinished: bool,
    ) -> Result<Region, Error> {
        self.refuse_read_only("create a volume")?;
        let mut state = self.inner.state.lock();
        let mut entrance = state.entrance.clone();
        let slot = entrance.add(name, kind, bytes)?;
        let Some(entry) = &mut entrance.slots[slot] else { unreachable!("`add` filled the slot") };
        entry.unfinished = unfinished;
        let entry = entry.clone();
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

    /// What [`Zone::begin_volume`] began is whole, and all of it durable. Atomic.
    pub fn finish_volume(&self, name: &str) -> Result<(), Error> {
        let mut state = self.inner.state.lock();
        let (slot, _) = self.find(&state, name)?;
        let mut entrance = state.entrance.clone();
        entrance.slots[slot].iter_mut().for_each(|entry| entry.unfinished = false);
        self.publish(&mut state, entrance)
    }

    /// Removes the volumes whose making was cut off.
    fn remove_unfinished(&self) -> Result<(), Error> {
        let mut state = self.inner.state.lock();
        let mut entrance = state.entrance.clone();
        let removed = entrance.remove_unfinished();
        if !removed.is_empty() {
            self.publish(&mut state, entrance)?;
        }
        let _ = self.inner.removed_unfinished.set(removed);
        Ok(())
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
        if entry.unfinished {
            return Err(Error::Unfinished { name: name.to_string() });
        }
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
        self.check_with_entrance()?;
        let before = place.bytes;
        if place.is_file() {
            place.extend(bytes)?;
        } else if bytes > place.bytes {
            return Err(refuse(bytes, "the device is not that large"));
        }
        if bytes > state.mapping.len() {
            // Open regions keep the old mapping, which shows the same memory.
            let mapping = place.map(bytes, true, Some(&state.mapping)).inspect_err(|_| place.cut(before))?;
            // Its lines are flushed as on DAX, which is no promise without MAP_SYNC.
            if self.inner.backing == Backing::DaxFile && place.backing != Backing::DaxFile {
                place.cut(before);
                return Err(refuse(bytes, "the system does not map it as on DAX again; try again later"));
            }
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
            removed_unfinished: self.inner.removed_unfinished.get().cloned().unwrap_or_default(),
        }
    }

    /// What the system says of the zone's file or device, which its path may not lead to any more; None of a zone in memory.
    pub fn file(&self) -> Option<std::fs::Metadata> {
        self.inner.place.lock().as_ref().and_then(|place| place.file.metadata().ok())
    }

    /// Whether the zone was opened read-only.
    pub fn is_read_only(&self) -> bool {
        self.inner.options.read_only
    }

    /// Whether the medium is sound; see [`Region::check`].
    pub fn check(&self) -> Result<(), MediaError> {
        self.inner.first_mapping.poisoned_at().map_or(Ok(()), |address| Err(MediaError { address }))
    }

    /// The same, and no copy of the entrance was out of reach: then one change of it, cut off, would leave none.
    fn check_with_entrance(&self) -> Result<(), MediaError> {
        self.check()?;
        self.inner.entrance_failed.get().map_or(Ok(()), |&address| Err(MediaError { address }))
    }

    /// Both copies of the entrance, as they are on the medium now.
    pub fn entrance_copies(&self) -> [EntranceCopy; 2] {
        let state = self.inner.state.lock();
        let window = Window::new(state.mapping.clone(), 0, SEGMENT, self.inner.method);
        opening::copies(&window, self.inner.entrance_failed.get().copied())
    }

    /// Writes a copy of the entrance anew that is damaged, from what the zone has. The other one stays as it is meanwhile.
    pub fn mend_entrance(&self) -> Result<(), Error> {
        self.refuse_read_only("write its entrance anew")?;
        self.check_with_entrance()?;
        let copies = self.entrance_copies();
        let state = self.inner.state.lock();
        if let [first, second] = copies.map(|copy| copy.content.is_err())
            && first != second
        {
            self.write_copy(&state, usize::from(second));
        }
        Ok(self.check()?)
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

    /// Watches the zone from now on, until [`Zone::unwatch`]: notes which words are read and stored to, so that stores
    /// can be taken back. Nothing is persisted meanwhile: flushes are only counted and recorded. Costs about 50 ns an
    /// access.
    pub fn watch(&self) {
        let state = self.inner.state.lock();
        let window = Window::new(state.mapping.clone(), 0, state.entrance.bytes, self.inner.method);
        self.inner.instruments.start_watch(window);
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

    /// Has `gate` called before each read, too, by the thread that is about to read, while the zone is watched.
    pub fn set_read_gate(&self, gate: Option<fn()>) {
        self.inner.instruments.set_read_gate(gate);
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
