//! The zone's fixed entrance: what it is, how large, and the system index of its volumes (FSMAC III.B).
//!
//! Two copies, of which the newest valid one counts. An update writes the older copy, persists it, then
//! brings the other one up, so that at every moment one copy is whole. `docs/format-zone.md` has the layout.

use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Error;
use crate::signature::ZONE;
use crate::volume::{VolumeEntry, VolumeKind};
use crate::{BLOCK, SEGMENT};

/// Volumes that one zone can hold.
pub const VOLUMES_MAX: usize = 63;
/// Bytes of the smallest zone: the entrance's segment and one for volumes.
pub const ZONE_BYTES_MIN: u64 = 2 * SEGMENT;
/// Bytes of the longest name of a volume.
pub(crate) const NAME_MAX: usize = 31;
/// Where the copies are.
pub(crate) const COPIES: [u64; 2] = [0, 1 << 20];
/// The format's version.
pub(crate) const VERSION: u32 = 1;
/// An incompatible feature, of entrances in whose index a volume is unfinished.
const UNFINISHED: u32 = 1;
/// Those that this program knows.
const FEATURES: u32 = UNFINISHED;

const STATE_FREE: u8 = 0;
const STATE_LIVE: u8 = 1;
const STATE_UNFINISHED: u8 = 2;

/// One copy of the entrance, as it is on the medium.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct RawEntrance {
    crc: U32,     // of all that follows: a torn copy is no copy
    version: U32, // a zone of another layout is refused, not misread
    magic: [u8; 8],
    uuid: [u8; 16],
    sequence: U64,     // of two valid copies the larger one counts
    bytes: U64,        // a file that was cut short is noticed before its volumes are
    created_s: U64,    // seconds since 1970
    features: U32,     // unknown bits are refused
    copy: u8,          // 0 or 1: guards against a copy written to the other one's place
    reserved: [u8; 3], // zero
    index: [RawEntry; VOLUMES_MAX],
}
const _: () = assert!(size_of::<RawEntrance>() == BLOCK as usize);

/// One volume in the system index, as it is on the medium.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
pub(crate) struct RawEntry {
    name: [u8; 32], // UTF-8, the rest zero, so at most 31 bytes
    uuid: [u8; 16],
    start_segment: U32,
    segments: U32,
    kind: u8,
    state: u8,
    reserved: [u8; 6], // zero
}
const _: () = assert!(size_of::<RawEntry>() == 64);

/// A verified entrance, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entrance {
    pub(crate) uuid: Uuid,
    pub(crate) sequence: u64,
    pub(crate) bytes: u64,
    pub(crate) created_s: u64,
    /// By slot, since a volume keeps its slot while it lives.
    pub(crate) slots: Vec<Option<VolumeEntry>>,
}

/// The state in which a zone's entrance was found when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntranceHealth {
    /// Both copies valid and equal.
    Sound,
    /// One copy was older than the other: an update was cut off between the two. Nothing is lost.
    Behind {
        /// Which copy, 0 or 1.
        copy: usize,
        /// Whether it was brought up (not in a zone opened read-only).
        repaired: bool,
    },
    /// One copy was damaged; the other one served.
    Damaged {
        /// Which copy, 0 or 1.
        copy: usize,
        /// What was wrong with it.
        what: String,
        /// Whether it was rewritten (not in a zone opened read-only).
        repaired: bool,
    },
}

/// One of the two copies of a zone's entrance, as it is on the medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntranceCopy {
    /// Where it is, in bytes.
    pub at: u64,
    /// What it says; or why it does not count.
    pub content: Result<EntranceContent, String>,
    /// Of one that does not count: what it says all the same, of which something is untrue.
    pub doubtful: Option<EntranceContent>,
}

/// What an entrance says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntranceContent {
    /// The format's version.
    pub version: u32,
    /// The zone's UUID.
    pub uuid: Uuid,
    /// How often the entrance has been changed, and 1.
    pub sequence: u64,
    /// Bytes of the zone.
    pub bytes: u64,
    /// When it was created, in seconds since 1970.
    pub created_s: u64,
    /// The system index: the volumes, and in which of its slots they are.
    pub index: Vec<(usize, VolumeEntry)>,
}

impl EntranceCopy {
    pub(crate) fn of(at: u64, entrance: Result<Entrance, Fault>, doubtful: Option<Entrance>) -> EntranceCopy {
        let content = |entrance: Entrance| EntranceContent {
            version: VERSION,
            uuid: entrance.uuid,
            sequence: entrance.sequence,
            bytes: entrance.bytes,
            created_s: entrance.created_s,
            index: entrance
                .slots
                .into_iter()
                .enumerate()
                .filter_map(|(slot, entry)| Some((slot, entry?)))
                .collect(),
        };
        let doubtful = doubtful.filter(|_| entrance.is_err()).map(content);
        EntranceCopy { at, content: entrance.map(content).map_err(|fault| fault.to_string()), doubtful }
    }
}

/// Why one copy does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Not a zone's magic.
    Magic,
    /// A valid copy of another version or with unknown features.
    Version { version: u32, features: u32 },
    /// Anything else, in words.
    Corrupt(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Magic => f.write_str("its magic is gone"),
            Fault::Version { version, .. } => write!(f, "it has version {version}"),
            Fault::Corrupt(what) => f.write_str(what),
        }
    }
}

/// A copy as read, not trusted yet.
pub(crate) struct Unverified<'a>(pub(crate) &'a RawEntrance);

impl Unverified<'_> {
    /// Checks magic, checksum, version, and that the index makes sense.
    pub(crate) fn verify(&self, copy: usize) -> Result<Entrance, Fault> {
        let raw = self.0;
        if raw.magic != ZONE {
            return Err(Fault::Magic);
        }
        let crc = crc32c::crc32c(&raw.as_bytes()[4..]);
        if raw.crc.get() != crc {
            return Err(Fault::Corrupt(format!("checksum {:#010x}, expected {crc:#010x}", raw.crc.get())));
        }
        let (version, features) = (raw.version.get(), raw.features.get());
        if version != VERSION || features & !FEATURES != 0 {
            return Err(Fault::Version { version, features });
        }
        if usize::from(raw.copy) != copy {
            return Err(Fault::Corrupt(format!("it says that it is copy {}", raw.copy)));
        }
        let bytes = raw.bytes.get();
        if bytes < ZONE_BYTES_MIN || !bytes.is_multiple_of(SEGMENT) || bytes / SEGMENT > u64::from(u32::MAX) {
            return Err(Fault::Corrupt(format!("it records a zone of {bytes} bytes")));
        }
        if raw.sequence.get() == u64::MAX {
            return Err(Fault::Corrupt("its sequence has no next one, which no updates reach".into()));
        }
        let mut slots = Vec::with_capacity(VOLUMES_MAX);
        for (slot, entry) in raw.index.iter().enumerate() {
            let entry = entry.verify(bytes / SEGMENT);
            slots.push(entry.map_err(|what| Fault::Corrupt(format!("volume slot {slot}: {what}")))?);
        }
        let entrance = Entrance {
            uuid: Uuid::from_bytes(raw.uuid),
            sequence: raw.sequence.get(),
            bytes,
            created_s: raw.created_s.get(),
            slots,
        };
        if entrance.has_unfinished() != (features & UNFINISHED != 0) {
            return Err(Fault::Corrupt(format!(
                "features {features:#x} are not what unfinished volumes say"
            )));
        }
        entrance.verify_apart()?;
        Ok(entrance)
    }

    /// What it says unverified, and of its volumes those whose entries could be true.
    pub(crate) fn doubtful(&self) -> Option<Entrance> {
        let raw = self.0;
        (raw.magic == ZONE).then(|| Entrance {
            uuid: Uuid::from_bytes(raw.uuid),
            sequence: raw.sequence.get(),
            bytes: raw.bytes.get(),
            created_s: raw.created_s.get(),
            slots: raw.index.iter().map(|entry| entry.verify(u64::from(u32::MAX)).ok().flatten()).collect(),
        })
    }
}

impl RawEntry {
    fn verify(&self, zone_segments: u64) -> Result<Option<VolumeEntry>, String> {
        let unfinished = match self.state {
            STATE_FREE => return Ok(None),
            STATE_LIVE => false,
            STATE_UNFINISHED => true,
            state => return Err(format!("unknown state {state}")),
        };
        let len = self.name.iter().position(|&byte| byte == 0).ok_or("its name has no end")?;
        let name = std::str::from_utf8(&self.name[..len]).map_err(|_| "its name is not UTF-8")?;
        if !is_name(name) {
            return Err(format!("its name is {name:?}"));
        }
        let kind = VolumeKind::from_code(self.kind).ok_or_else(|| format!("unknown kind {}", self.kind))?;
        let (start, segments) = (u64::from(self.start_segment.get()), u64::from(self.segments.get()));
        if start == 0 || segments == 0 || start + segments > zone_segments {
            return Err(format!("segments {start}+{segments} are outside the zone's {zone_segments}"));
        }
        Ok(Some(VolumeEntry {
            name: name.to_string(),
            kind,
            uuid: Uuid::from_bytes(self.uuid),
            start: start * SEGMENT,
            bytes: segments * SEGMENT,
            unfinished,
        }))
    }

    fn new(entry: &VolumeEntry) -> RawEntry {
        let mut name = [0; 32];
        name[..entry.name.len()].copy_from_slice(entry.name.as_bytes());
        RawEntry {
            name,
            uuid: entry.uuid.into_bytes(),
            // A zone has at most 2^32 - 1 segments, which `verify` and `Zone::create` see to.
            start_segment: U32::new((entry.start / SEGMENT) as u32),
            segments: U32::new((entry.bytes / SEGMENT) as u32),
            kind: entry.kind as u8,
            state: if entry.unfinished { STATE_UNFINISHED } else { STATE_LIVE },
            reserved: [0; 6],
        }
    }
}

/// Whether a volume can have that name.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.contains('/') && !name.chars().any(char::is_control)
}

impl Entrance {
    /// The entrance of a new zone.
    pub(crate) fn new(bytes: u64) -> Entrance {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Entrance {
            uuid: Uuid::new_v4(),
            sequence: 1,
            bytes,
            created_s: now.map_or(0, |since| since.as_secs()),
            slots: vec![None; VOLUMES_MAX],
        }
    }

    /// The bytes of one copy.
    pub(crate) fn encode(&self, copy: usize) -> RawEntrance {
        let free = RawEntry::read_from_bytes(&[0; 64]).unwrap_or_else(|_| unreachable!("64 bytes"));
        let mut index = [free; VOLUMES_MAX];
        for (raw, entry) in index.iter_mut().zip(&self.slots) {
            if let Some(entry) = entry {
                *raw = RawEntry::new(entry);
            }
        }
        let mut raw = RawEntrance {
            crc: U32::ZERO,
            version: U32::new(VERSION),
            magic: ZONE,
            uuid: self.uuid.into_bytes(),
            sequence: U64::new(self.sequence),
            bytes: U64::new(self.bytes),
            created_s: U64::new(self.created_s),
            features: U32::new(if self.has_unfinished() { UNFINISHED } else { 0 }),
            copy: copy as u8,
            reserved: [0; 3],
            index,
        };
        raw.crc = U32::new(crc32c::crc32c(&raw.as_bytes()[4..]));
        raw
    }

    /// Volumes in the order of the zone.
    pub(crate) fn volumes(&self) -> Vec<VolumeEntry> {
        let mut volumes: Vec<VolumeEntry> = self.slots.iter().flatten().cloned().collect();
        volumes.sort_by_key(|volume| volume.start);
        volumes
    }

    fn has_unfinished(&self) -> bool {
        self.slots.iter().flatten().any(|entry| entry.unfinished)
    }

    /// Takes out what was not finished; gives the names.
    pub(crate) fn remove_unfinished(&mut self) -> Vec<String> {
        let unfinished = |slot: &mut Option<VolumeEntry>| slot.take_if(|entry| entry.unfinished);
        self.slots.iter_mut().filter_map(unfinished).map(|entry| entry.name).collect()
    }

    pub(crate) fn find(&self, name: &str) -> Option<(usize, &VolumeEntry)> {
        let named = |entry: &&VolumeEntry| entry.name == name;
        self.slots.iter().enumerate().find_map(|(slot, entry)| Some((slot, entry.as_ref().filter(named)?)))
    }

    /// Gaps between volumes, as (start, bytes), in the order of the zone.
    pub(crate) fn gaps(&self) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut free_from = SEGMENT;
        for volume in self.volumes() {
            if volume.start > free_from {
                gaps.push((free_from, volume.start - free_from));
            }
            free_from = volume.start + volume.bytes;
        }
        if free_from < self.bytes {
            gaps.push((free_from, self.bytes - free_from));
        }
        gaps
    }

    /// A new volume's place: the first gap that holds it, or the largest gap whole. Returns its slot.
    pub(crate) fn add(&mut self, name: &str, kind: VolumeKind, bytes: Option<u64>) -> Result<usize, Error> {
        if !is_name(name) {
            return Err(Error::BadName { name: name.to_string() });
        }
        if self.find(name).is_some() {
            return Err(Error::VolumeExists { name: name.to_string() });
        }
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.ok_or(Error::IndexFull { limit: VOLUMES_MAX })?;
        let gaps = self.gaps();
        let largest = gaps.iter().map(|gap| gap.1).max().unwrap_or(0);
        let refuse = |wanted| Error::NoSpace { wanted, largest };
        let wanted = match bytes {
            Some(bytes) => bytes.max(1).checked_next_multiple_of(SEGMENT).ok_or_else(|| refuse(bytes))?,
            None => largest.max(SEGMENT),
        };
        let gap = gaps.iter().find(|gap| gap.1 >= wanted).ok_or_else(|| refuse(wanted))?;
        self.slots[slot] = Some(VolumeEntry {
            name: name.to_string(),
            kind,
            uuid: Uuid::new_v4(),
            start: gap.0,
            bytes: wanted,
            unfinished: false,
        });
        Ok(slot)
    }

    /// No two volumes share a segment or a name.
    fn verify_apart(&self) -> Result<(), Fault> {
        let volumes = self.volumes();
        for pair in volumes.windows(2) {
            if pair[0].start + pair[0].bytes > pair[1].start {
                let (a, b) = (&pair[0].name, &pair[1].name);
                return Err(Fault::Corrupt(format!("volumes {a:?} and {b:?} overlap")));
            }
        }
        let mut names: Vec<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Fault::Corrupt(format!("two volumes are named {:?}", pair[0]))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entrance() -> Entrance {
        let mut entrance = Entrance::new(64 * SEGMENT);
        entrance.add("first", VolumeKind::Native, Some(3 * SEGMENT)).unwrap();
        entrance.add("second", VolumeKind::Ext, Some(1)).unwrap();
        entrance.add("third", VolumeKind::Flash, None).unwrap();
        entrance
    }

    #[test]
    fn what_is_encoded_is_verified() {
        for copy in 0..2 {
            assert_eq!(
                Unverified(&entrance().encode(copy)).verify(copy).unwrap().slots[2].as_ref().unwrap().start,
                5 * SEGMENT
            );
            let entrance = entrance();
            assert_eq!(Unverified(&entrance.encode(copy)).verify(copy), Ok(entrance));
        }
    }

    #[test]
    fn no_flipped_bit_passes() {
        let raw = entrance().encode(0);
        for bit in 0..raw.as_bytes().len() * 8 {
            let mut raw = raw;
            raw.as_mut_bytes()[bit / 8] ^= 1 << (bit % 8);
            assert!(Unverified(&raw).verify(0).is_err(), "bit {bit}");
        }
    }

    /// Faults that a valid checksum covers: what a broken writer could leave.
    #[test]
    fn a_valid_checksum_is_not_trusted_alone() {
        let refused = |change: &dyn Fn(&mut RawEntrance)| {
            let mut raw = entrance().encode(0);
            change(&mut raw);
            raw.crc = U32::new(crc32c::crc32c(&raw.as_bytes()[4..]));
            Unverified(&raw).verify(0).unwrap_err()
        };
        assert_eq!(refused(&|raw| raw.version = U32::new(2)), Fault::Version { version: 2, features: 0 });
        assert_eq!(refused(&|raw| raw.features = U32::new(4)), Fault::Version { version: 1, features: 4 });
        let corrupt = |what: &str, change: &dyn Fn(&mut RawEntrance)| match refused(change) {
            Fault::Corrupt(text) => assert!(text.contains(what), "{text}"),
            other => panic!("{other:?}"),
        };
        corrupt("copy 1", &|raw| raw.copy = 1);
        corrupt("bytes", &|raw| raw.bytes = U64::new(SEGMENT));
        corrupt("bytes", &|raw| raw.bytes = U64::new(64 * SEGMENT + 1));
        corrupt("bytes", &|raw| raw.bytes = U64::new(!(SEGMENT - 1)));
        corrupt("outside", &|raw| raw.index[0].start_segment = U32::ZERO);
        corrupt("outside", &|raw| raw.index[2].segments = U32::new(u32::MAX));
        corrupt("overlap", &|raw| raw.index[0].segments = U32::new(4));
        corrupt("two volumes", &|raw| raw.index[0].name = raw.index[1].name);
        corrupt("no end", &|raw| raw.index[0].name = [b'x'; 32]);
        corrupt("UTF-8", &|raw| raw.index[0].name[0] = 0xFF);
        corrupt("its name is", &|raw| raw.index[0].name[0] = 0);
        corrupt("kind", &|raw| raw.index[0].kind = 9);
        corrupt("state", &|raw| raw.index[0].state = 3);
        corrupt("unfinished", &|raw| raw.index[0].state = 2);
        corrupt("unfinished", &|raw| raw.features = U32::new(UNFINISHED));
    }

    #[test]
    fn volumes_take_the_first_gap_that_holds_them() {
        let mut entrance = entrance();
        let (slot, _) = entrance.find("first").unwrap();
        entrance.slots[slot] = None;
        let slot = entrance.add("four", VolumeKind::Native, Some(2 * SEGMENT)).unwrap();
        assert_eq!(entrance.slots[slot].as_ref().unwrap().start, SEGMENT);
        assert_eq!(entrance.gaps(), [(3 * SEGMENT, SEGMENT)]);
        let refused = entrance.add("five", VolumeKind::Native, Some(2 * SEGMENT));
        assert!(matches!(refused, Err(Error::NoSpace { largest: SEGMENT, .. })), "{refused:?}");
        assert!(matches!(entrance.add("four", VolumeKind::Ext, None), Err(Error::VolumeExists { .. })));
        entrance.add("five", VolumeKind::Native, None).unwrap();
        assert!(matches!(entrance.add("six", VolumeKind::Ext, None), Err(Error::NoSpace { largest: 0, .. })));
        assert!(matches!(entrance.add("six", VolumeKind::Ext, Some(u64::MAX)), Err(Error::NoSpace { .. })));
    }

    #[test]
    fn the_index_holds_63_volumes() {
        let mut entrance = Entrance::new(100 * SEGMENT);
        for number in 0..VOLUMES_MAX {
            entrance.add(&format!("volume {number}"), VolumeKind::Native, Some(SEGMENT)).unwrap();
        }
        let refused = entrance.add("one more", VolumeKind::Native, Some(SEGMENT));
        assert!(matches!(refused, Err(Error::IndexFull { limit: 63 })));
        assert_eq!(Unverified(&entrance.encode(1)).verify(1), Ok(entrance));
    }

    #[test]
    fn names_are_bounded() {
        assert!(is_name(&"x".repeat(31)) && is_name("zone of ö") && !is_name(&"x".repeat(32)));
        assert!(!is_name("") && !is_name("a/b") && !is_name("a\nb") && !is_name("a\0"));
    }
}
