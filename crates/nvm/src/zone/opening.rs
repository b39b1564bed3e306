//! Making and opening zones: what is there, whether it may be taken, and whether its entrance is sound.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use zerocopy::FromBytes;

use super::{Inner, MEMORY, OpenOptions, Region, State, Zone};
use crate::backing::{Backing, Place};
use crate::entrance::{
    COPIES, Entrance, EntranceCopy, EntranceHealth, Fault, RawEntrance, Unverified, VERSION, ZONE_BYTES_MIN,
};
use crate::error::{Error, MediaError};
use crate::instruments::Instruments;
use crate::mapping::{MapError, Mapping, Source, Window};
use crate::persist::PersistMethod;
use crate::technology::Spinner;
use crate::volume::{Volume, VolumeEntry, VolumeKind};
use crate::wear::WearMap;
use crate::{BLOCK, SEGMENT, signature};

const COPY_BYTES: usize = size_of::<RawEntrance>();

fn raw_copy(window: &Window, copy: usize) -> RawEntrance {
    RawEntrance::read_from_bytes(window.bytes(COPIES[copy], COPY_BYTES))
        .unwrap_or_else(|_| unreachable!("the slice has the structure's size"))
}

/// Reads one copy of the entrance, and verifies it. Where the medium fails, or `failed`, there are zeros, which are none.
fn read_copy(window: &Window, copy: usize, failed: Option<u64>) -> Result<Entrance, Fault> {
    let verified = Unverified(&raw_copy(window, copy)).verify(copy);
    verified.map_err(|fault| match failed.or_else(|| window.poisoned_at()) {
        Some(address) if (COPIES[copy]..COPIES[copy] + COPY_BYTES as u64).contains(&address) => {
            Fault::Corrupt(MediaError { address }.to_string())
        }
        _ => fault,
    })
}

/// Both copies, as far as they can be read.
pub(super) fn copies(window: &Window, failed: Option<u64>) -> [EntranceCopy; 2] {
    [0, 1].map(|copy| {
        let read = read_copy(window, copy, failed);
        EntranceCopy::of(COPIES[copy], read, Unverified(&raw_copy(window, copy)).doubtful())
    })
}

impl Zone {
    /// Creates a zone at `path`: a new file, an existing file (extended to `bytes`, never cut), a DAX
    /// device or a block device. `bytes` is rounded up to whole segments; 0 takes all of what is there.
    /// Memory without a name (`memfd_create`) is at `/proc/self/fd/N`.
    ///
    /// Refuses what holds anything but zeros in its first 2 MiB, and names it, unless `force` is given.
    pub fn create(path: &Path, bytes: u64, force: bool, options: &OpenOptions) -> Result<Zone, Error> {
        if options.read_only {
            return Err(Error::ReadOnly { path: path.to_path_buf(), doing: "create a zone there" });
        }
        // Before anything is made or changed.
        Backing::Memory.persist(options.persist)?;
        let (mut place, made) = Place::open(path, true, true)?;
        match Self::create_in(&mut place, bytes, force, options) {
            Ok((mapping, entrance)) => {
                let mapping = Arc::new(mapping);
                let (path, health) = (path.to_path_buf(), EntranceHealth::Sound);
                let zone = Self::assemble(path, Some(place), mapping, entrance, health, 1, options)?;
                zone.format();
                zone.check()?;
                Ok(zone)
            }
            Err(error) => {
                // Whoever has locked it has made a zone of it.
                if made && !matches!(error, Error::Locked { .. } | Error::Busy { .. }) {
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
        place.lock(true)?;
        // Another process may have grown it between the look and the lock.
        place.look()?;
        let before = place.bytes;
        let unit = place.unit();
        let (given, bytes) = match bytes {
            0 => (place.bytes, place.bytes / unit * unit),
            bytes => (bytes, bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX)),
        };
        if bytes < ZONE_BYTES_MIN {
            return Err(Error::TooSmall { path, bytes: given, min: ZONE_BYTES_MIN.next_multiple_of(unit) });
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
        let peeked = place.peek(signature::LOOK_BYTES)?;
        if let Some(start) = &peeked {
            look(start)?;
        }
        if place.is_file() {
            place.extend(bytes)?;
        }
        let mapping = place.map(bytes, true, None).inspect_err(|_| place.cut(before))?;
        if peeked.is_none() {
            let mapping = Arc::new(mapping);
            let window = Window::new(mapping.clone(), 0, SEGMENT, PersistMethod::Clflush);
            let looked = look(window.bytes(0, signature::LOOK_BYTES));
            // What cannot be read shows zeros.
            if let Some(address) = window.poisoned_at() {
                return Err(MediaError { address }.into());
            }
            looked?;
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
        place.lock(writable)?;
        // Another process may have grown it between the look and the lock.
        place.look()?;
        let bytes = place.bytes / place.unit() * place.unit();
        if bytes < ZONE_BYTES_MIN {
            return Err(Self::refuse_small(&place));
        }
        if writable {
            place.fill_holes()?;
        }
        let mapping = place.map(bytes, writable, None)?;
        if options.prefault {
            mapping.prefault();
        }
        Self::open_in(place.path.clone(), Some(place), mapping, options)
    }

    /// The copies of the entrance of a zone that cannot be opened, since both are damaged.
    ///
    /// # Errors
    /// As [`Zone::open`] has them before it looks at the entrance.
    pub fn damaged_entrance(path: &Path) -> Result<[EntranceCopy; 2], Error> {
        let (mut place, _) = Place::open(path, false, false)?;
        place.lock(false)?;
        if place.bytes < ZONE_BYTES_MIN {
            return Err(Self::refuse_small(&place));
        }
        let mapping = place.map(place.unit(), false, None)?;
        Ok(copies(&Window::new(Arc::new(mapping), 0, SEGMENT, PersistMethod::Clflush), None))
    }

    /// What a file too small for a zone is: a zone that was cut short, or none.
    fn refuse_small(place: &Place) -> Error {
        let path = place.path.clone();
        let start = place.peek(size_of::<RawEntrance>()).ok().flatten().unwrap_or_default();
        let recorded = RawEntrance::read_from_prefix(&start)
            .ok()
            .and_then(|(raw, _)| Unverified(&raw).verify(0).ok())
            .map(|entrance| entrance.bytes);
        match recorded {
            Some(recorded) => Error::Truncated { path, recorded, actual: place.bytes },
            None => {
                let found = match signature::recognise(&start) {
                    None if place.bytes == 0 => "it is empty".to_string(),
                    Some(content) => format!("{} bytes: {content}", place.bytes),
                    None => format!("{} bytes, and a zone has at least {ZONE_BYTES_MIN}", place.bytes),
                };
                Error::NotAZone { path, found }
            }
        }
    }

    /// A new zone in this process's memory, gone with it. Pages are taken as they are touched.
    pub fn anonymous(bytes: u64, options: &OpenOptions) -> Result<Zone, Error> {
        let given = bytes;
        let bytes = bytes.checked_next_multiple_of(SEGMENT).unwrap_or(!(SEGMENT - 1));
        let path = || PathBuf::from(MEMORY);
        if options.read_only {
            return Err(Error::ReadOnly { path: path(), doing: "create a zone in memory" });
        }
        if bytes < ZONE_BYTES_MIN {
            return Err(Error::TooSmall { path: path(), bytes: given, min: ZONE_BYTES_MIN });
        }
        let mapping = Self::map_memory(bytes, true)?;
        if options.prefault {
            mapping.prefault();
        }
        let entrance = Entrance::new(bytes);
        let (mapping, health) = (Arc::new(mapping), EntranceHealth::Sound);
        let zone = Self::assemble(path(), None, mapping, entrance, health, 1, options)?;
        zone.format();
        Ok(zone)
    }

    /// A zone in memory that is a copy of `image`: for tests of corrupt images and of states that a power
    /// cut could leave. Everything that [`Zone::open`] checks is checked.
    pub fn from_bytes(image: &[u8], options: &OpenOptions) -> Result<Zone, Error> {
        if (image.len() as u64) < ZONE_BYTES_MIN {
            let actual = image.len() as u64;
            return Err(Error::TooSmall { path: MEMORY.into(), bytes: actual, min: ZONE_BYTES_MIN });
        }
        let bytes = image.len() as u64 / SEGMENT * SEGMENT;
        let mapping = Self::copied(bytes, [(0, &image[..bytes as usize])])?;
        Self::open_in(MEMORY.into(), None, mapping, options)
    }

    /// A volume as it is now, of which what is changed stays in this process and ends with it: to try something out. The pages that are
    /// stored to take memory; on a device or in a file of huge pages, which can't be mapped so, all of the volume does. It is in a zone of its
    /// own, of whose other volumes nothing is to be expected.
    ///
    /// The volume is not changed meanwhile.
    pub fn scratch(&self, volume: &str) -> Result<Region, Error> {
        let options = OpenOptions {
            persist: None,
            read_only: false,
            wear: false,
            prefault: false,
            ..self.inner.options.clone()
        };
        // Nobody writes the entrance meanwhile.
        let state = self.inner.state.lock();
        let place = self.inner.place.lock();
        let bytes = state.entrance.bytes;
        let mapping = match place.as_ref().and_then(|place| place.map_copy(bytes)) {
            Some(mapped) => mapped?,
            None => {
                let (_, VolumeEntry { start, bytes: length, .. }) = self.find(&state, volume)?;
                let window = Window::new(state.mapping.clone(), 0, bytes, self.inner.method);
                let parts = [(0, SEGMENT), (start, length)];
                let mapping =
                    Self::copied(bytes, parts.map(|(at, length)| (at, window.bytes(at, length as usize))))?;
                // What cannot be read shows zeros.
                self.check()?;
                mapping
            }
        };
        Self::open_in(self.inner.path.clone(), None, mapping, &options)?.volume(volume)
    }

    /// Memory for a zone of `bytes`, with copies of these parts, which begin at whole blocks.
    fn copied<'a>(bytes: u64, parts: impl IntoIterator<Item = (u64, &'a [u8])>) -> Result<Mapping, Error> {
        let mapping = Arc::new(Self::map_memory(bytes, true)?);
        let window = Window::new(mapping.clone(), 0, bytes, PersistMethod::best());
        // Zeros are there already: leave their pages untouched.
        for (start, part) in parts {
            for (block, at) in part.chunks(BLOCK as usize).zip((start..).step_by(BLOCK as usize)) {
                if !crate::is_zero(block) {
                    window.store(at, block);
                }
            }
        }
        drop(window);
        let Ok(mapping) = Arc::try_unwrap(mapping) else { unreachable!("the window is gone") };
        Ok(mapping)
    }

    fn map_memory(bytes: u64, writable: bool) -> Result<Mapping, Error> {
        Mapping::new(Source::Memory, bytes, SEGMENT, 4096, writable, None).map_err(|error| match error {
            MapError::System(errno) => {
                Error::Io { doing: "map it", path: MEMORY.into(), source: errno.into() }
            }
            MapError::Guard(error) => error,
        })
    }

    /// Verifies the entrance and repairs it where that is allowed. Of a zone that has lost a copy to its medium the volumes can be used, and
    /// the index is not changed.
    fn open_in(
        path: PathBuf,
        place: Option<Place>,
        mapping: Mapping,
        options: &OpenOptions,
    ) -> Result<Zone, Error> {
        let mapping = Arc::new(mapping);
        let window = Window::new(mapping.clone(), 0, SEGMENT, PersistMethod::Clflush);
        let (first, second) = (read_copy(&window, 0, None), read_copy(&window, 1, None));
        let writable = !options.read_only && window.poisoned_at().is_none();
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
                let found = found
                    .map_or_else(|| "its first 2 MiB are zero".to_string(), |content| content.to_string());
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
        let failed = mapping.forgive_in_first_segment();
        let zone = Self::assemble(path, place, mapping, entrance, health, older_copy, options)?;
        failed.map(|address| zone.inner.entrance_failed.set(address));
        if repair {
            let state = zone.inner.state.lock();
            zone.write_copy(&state, state.older_copy);
        }
        if writable {
            zone.remove_unfinished()?;
        }
        Ok(zone)
    }

    fn assemble(
        path: PathBuf,
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
            unfinished: false,
        });
        let inner = Inner {
            path,
            place: Mutex::new(place),
            backing,
            uuid: entrance.uuid,
            options: options.clone(),
            method,
            method_reason,
            health,
            entrance_failed: OnceLock::new(),
            removed_unfinished: OnceLock::new(),
            instruments: Arc::new(Instruments::new(wear, spinner, method == PersistMethod::Msync)),
            entrance_volume: Arc::new(entrance_volume),
            first_mapping: mapping.clone(),
            state: Mutex::new(State { entrance, older_copy, mapping, opened: HashMap::new() }),
        };
        Ok(Zone { inner: Arc::new(inner) })
    }
}
