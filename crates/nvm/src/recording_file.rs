//! A recording as a file: a fixed header, volumes, operation names, events of 64 bytes each, and the bytes.
//!
//! Little-endian throughout; `docs/format-zone.md` has the layout. What is read is not trusted: lengths
//! and checksums first, then every index and range.

use std::io::{self, Read, Write};

use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::account::Purpose;
use crate::recording::{Event, EventKind, RecordedVolume, Recording};

const MAGIC: [u8; 8] = *b"AMBRRECD";
const VERSION: u32 = 2;
const FLAG_BYTES: u32 = 1;
const FLAG_INCOMPLETE: u32 = 2;
/// `bytes_at` of an event without bytes.
const NO_BYTES: u64 = u64::MAX;
/// Bytes of the longest name of a volume or an operation.
const NAME_MAX: usize = u16::MAX as usize;

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
struct Header {
    crc: U32, // of the header's bytes that follow
    version: U32,
    magic: [u8; 8],
    body_crc: U32, // of all that follows the header
    flags: U32,
    body_bytes: U64, // a file cut short is noticed before anything is believed
    zone_uuid: [u8; 16],
    zone_bytes: U64,
    events: U64,
    bytes: U64,
    volumes: U32,
    operations: U32,
    reserved: [u8; 16], // zero
}
const _: () = assert!(size_of::<Header>() == 96);

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawVolume {
    uuid: [u8; 16],
    start: U64,
    bytes: U64,
    name_bytes: U16, // followed by the name
    reserved: [u8; 6],
}
const _: () = assert!(size_of::<RawVolume>() == 40);

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
struct RawEvent {
    time_ns: U64,
    operation_number: U64,
    address: U64,
    length: U64,
    bytes_at: U64,
    thread: U32,
    volume: U16,
    operation: U16,
    kind: u8,
    purpose: u8,
    reserved: [u8; 14],
}
const _: () = assert!(size_of::<RawEvent>() == 64);

/// Why a file cannot be read as a recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingFileError {
    /// The system refused to read or write.
    #[error("cannot read or write the recording: {0}")]
    Io(#[from] io::Error),
    /// Not a recording at all.
    #[error("this is no Amberfs recording: its first bytes are not one's")]
    NotARecording,
    /// A recording of a version that this program doesn't know.
    #[error(
        "the recording has version {found}, this program knows {known}: use the Amberfs that made it, or record again"
    )]
    UnknownVersion {
        /// Its version.
        found: u32,
        /// The version that this program knows.
        known: u32,
    },
    /// The file ends before the recording does.
    #[error(
        "the recording was cut short: {found} bytes are there, {expected} belong to it; record again or copy it whole"
    )]
    CutShort {
        /// Bytes that the file should have.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// The file has its length but not its contents.
    #[error("the recording is damaged: {0}")]
    Corrupt(String),
}

fn corrupt(what: impl Into<String>) -> RecordingFileError {
    RecordingFileError::Corrupt(what.into())
}

impl Recording {
    /// Writes the recording.
    pub fn write_to(&self, mut to: impl Write) -> io::Result<()> {
        let mut tables = Vec::new();
        for volume in &self.volumes {
            let name = name_bytes(&volume.name);
            let raw = RawVolume {
                uuid: volume.uuid.into_bytes(),
                start: U64::new(volume.start),
                bytes: U64::new(volume.bytes),
                name_bytes: U16::new(name.len() as u16),
                reserved: [0; 6],
            };
            tables.extend_from_slice(raw.as_bytes());
            tables.extend_from_slice(name);
        }
        for operation in &self.operations {
            let name = name_bytes(operation);
            tables.extend_from_slice(&(name.len() as u16).to_le_bytes());
            tables.extend_from_slice(name);
        }
        let events = || self.events.iter().map(RawEvent::new);
        let body_crc =
            events().fold(crc32c::crc32c(&tables), |crc, event| crc32c::crc32c_append(crc, event.as_bytes()));
        let body_crc = crc32c::crc32c_append(body_crc, &self.bytes);
        let body_bytes = tables.len() + self.events.len() * size_of::<RawEvent>() + self.bytes.len();
        let flags =
            if self.with_bytes { FLAG_BYTES } else { 0 } | if self.complete { 0 } else { FLAG_INCOMPLETE };
        let mut header = Header {
            crc: U32::ZERO,
            version: U32::new(VERSION),
            magic: MAGIC,
            body_crc: U32::new(body_crc),
            flags: U32::new(flags),
            body_bytes: U64::new(body_bytes as u64),
            zone_uuid: self.zone_uuid.into_bytes(),
            zone_bytes: U64::new(self.zone_bytes),
            events: U64::new(self.events.len() as u64),
            bytes: U64::new(self.bytes.len() as u64),
            volumes: U32::new(self.volumes.len() as u32),
            operations: U32::new(self.operations.len() as u32),
            reserved: [0; 16],
        };
        header.crc = U32::new(crc32c::crc32c(&header.as_bytes()[4..]));
        to.write_all(header.as_bytes())?;
        to.write_all(&tables)?;
        let mut chunk = Vec::with_capacity(1 << 16);
        for event in events() {
            chunk.extend_from_slice(event.as_bytes());
            if chunk.len() == 1 << 16 {
                to.write_all(&chunk)?;
                chunk.clear();
            }
        }
        to.write_all(&chunk)?;
        to.write_all(&self.bytes)?;
        to.flush()
    }

    /// Reads a recording and verifies it: a file that is cut short, damaged, or inconsistent is refused.
    pub fn read_from(mut from: impl Read) -> Result<Recording, RecordingFileError> {
        let mut file = Vec::new();
        from.read_to_end(&mut file)?;
        Self::from_file_bytes(&file)
    }

    fn from_file_bytes(file: &[u8]) -> Result<Recording, RecordingFileError> {
        let Ok((header, body)) = Header::ref_from_prefix(file) else {
            return Err(match file.get(8..16) {
                Some(magic) if magic != MAGIC => RecordingFileError::NotARecording,
                _ => RecordingFileError::CutShort {
                    expected: size_of::<Header>() as u64,
                    found: file.len() as u64,
                },
            });
        };
        if header.magic != MAGIC {
            return Err(RecordingFileError::NotARecording);
        }
        if header.crc.get() != crc32c::crc32c(&header.as_bytes()[4..]) {
            return Err(corrupt("its header's checksum does not match"));
        }
        if header.version.get() != VERSION {
            return Err(RecordingFileError::UnknownVersion { found: header.version.get(), known: VERSION });
        }
        let expected = header.body_bytes.get();
        if (body.len() as u64) < expected {
            let header_bytes = size_of::<Header>() as u64;
            return Err(RecordingFileError::CutShort {
                expected: expected.saturating_add(header_bytes),
                found: file.len() as u64,
            });
        }
        if body.len() as u64 > expected {
            return Err(corrupt(format!("{} bytes follow it", body.len() as u64 - expected)));
        }
        if crc32c::crc32c(body) != header.body_crc.get() {
            return Err(corrupt("its checksum does not match"));
        }
        let (volumes, rest) = read_volumes(body, header.volumes.get())?;
        let (operations, rest) = read_operations(rest, header.operations.get())?;
        let events_bytes = header.events.get().checked_mul(size_of::<RawEvent>() as u64);
        let split = events_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let Some((raw_events, bytes)) = split.and_then(|bytes| rest.split_at_checked(bytes)) else {
            return Err(corrupt("it has fewer events than it says"));
        };
        if bytes.len() as u64 != header.bytes.get() {
            return Err(corrupt("it has another number of bytes than it says"));
        }
        let with_bytes = header.flags.get() & FLAG_BYTES != 0;
        let mut events = Vec::with_capacity(raw_events.len() / size_of::<RawEvent>());
        for (index, raw) in raw_events.chunks_exact(size_of::<RawEvent>()).enumerate() {
            let event = RawEvent::ref_from_bytes(raw)
                .map_err(|_| "it has a wrong size".to_string())
                .and_then(|raw| raw.verify(volumes.len(), operations.len(), bytes.len() as u64, with_bytes))
                .map_err(|what| corrupt(format!("event {index}: {what}")))?;
            events.push(event);
        }
        Ok(Recording {
            zone_uuid: Uuid::from_bytes(header.zone_uuid),
            zone_bytes: header.zone_bytes.get(),
            volumes,
            operations,
            events,
            bytes: bytes.to_vec(),
            with_bytes,
            complete: header.flags.get() & FLAG_INCOMPLETE == 0,
        })
    }
}

/// A name's bytes, cut at a character if it is longer than the format holds.
fn name_bytes(name: &str) -> &[u8] {
    &name.as_bytes()[..name.floor_char_boundary(NAME_MAX)]
}

fn read_volumes(mut rest: &[u8], count: u32) -> Result<(Vec<RecordedVolume>, &[u8]), RecordingFileError> {
    let short = || corrupt("its table of volumes is too short");
    let mut volumes = Vec::new();
    for _ in 0..count {
        let (raw, after) = RawVolume::ref_from_prefix(rest).map_err(|_| short())?;
        let (name, after) = after.split_at_checked(raw.name_bytes.get().into()).ok_or_else(short)?;
        let name = std::str::from_utf8(name).map_err(|_| corrupt("a volume's name is not UTF-8"))?;
        volumes.push(RecordedVolume {
            name: name.to_string(),
            uuid: Uuid::from_bytes(raw.uuid),
            start: raw.start.get(),
            bytes: raw.bytes.get(),
        });
        rest = after;
    }
    Ok((volumes, rest))
}

fn read_operations(mut rest: &[u8], count: u32) -> Result<(Vec<String>, &[u8]), RecordingFileError> {
    let short = || corrupt("its table of operations is too short");
    let mut operations = Vec::new();
    for _ in 0..count {
        let (len, after) = U16::ref_from_prefix(rest).map_err(|_| short())?;
        let (name, after) = after.split_at_checked(len.get().into()).ok_or_else(short)?;
        let name = std::str::from_utf8(name).map_err(|_| corrupt("an operation's name is not UTF-8"))?;
        operations.push(name.to_string());
        rest = after;
    }
    Ok((operations, rest))
}

impl RawEvent {
    fn new(event: &Event) -> RawEvent {
        RawEvent {
            time_ns: U64::new(event.time_ns),
            operation_number: U64::new(event.operation_number),
            address: U64::new(event.address),
            length: U64::new(event.length),
            bytes_at: U64::new(event.bytes_at.unwrap_or(NO_BYTES)),
            thread: U32::new(event.thread),
            volume: U16::new(event.volume),
            operation: U16::new(event.operation),
            kind: event.kind as u8,
            purpose: event.purpose as u8,
            reserved: [0; 14],
        }
    }

    fn verify(
        &self,
        volumes: usize,
        operations: usize,
        bytes: u64,
        with_bytes: bool,
    ) -> Result<Event, String> {
        let kind = EventKind::from_code(self.kind).ok_or_else(|| format!("unknown kind {}", self.kind))?;
        let purpose = Purpose::ALL.get(usize::from(self.purpose)).copied();
        let purpose = purpose.ok_or_else(|| format!("unknown purpose {}", self.purpose))?;
        if usize::from(self.volume.get()) >= volumes || usize::from(self.operation.get()) >= operations {
            return Err("its volume or operation is not in the tables".to_string());
        }
        let length = self.length.get();
        let bytes_at = Some(self.bytes_at.get()).filter(|&at| at != NO_BYTES);
        if bytes_at.is_some() != (kind.has_bytes() && with_bytes) {
            return Err("it has bytes where it should have none, or none where it should".to_string());
        }
        if bytes_at.is_some_and(|at| at.checked_add(length).is_none_or(|end| end > bytes)) {
            return Err("its bytes are outside the recording's".to_string());
        }
        if self.address.get().checked_add(length).is_none() {
            return Err("its range is beyond all addresses".to_string());
        }
        Ok(Event {
            time_ns: self.time_ns.get(),
            thread: self.thread.get(),
            volume: self.volume.get(),
            operation: self.operation.get(),
            operation_number: self.operation_number.get(),
            kind,
            purpose,
            address: self.address.get(),
            length,
            bytes_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(with_bytes: bool) -> Recording {
        let event = |kind: EventKind, bytes_at: Option<u64>| Event {
            time_ns: 17,
            thread: 2,
            volume: 1,
            operation: 1,
            operation_number: 9,
            kind,
            purpose: Purpose::Journal,
            address: 4096,
            length: 3,
            bytes_at: bytes_at.filter(|_| with_bytes),
        };
        let volume =
            |name: &str| RecordedVolume { name: name.into(), uuid: Uuid::new_v4(), start: 7, bytes: 8 };
        Recording {
            zone_uuid: Uuid::new_v4(),
            zone_bytes: 1 << 24,
            volumes: vec![volume(""), volume("home ö")],
            operations: vec![String::new(), "rename".into()],
            events: vec![
                event(EventKind::Store, Some(0)),
                event(EventKind::Flush, None),
                event(EventKind::Stream, Some(3)),
                event(EventKind::Fence, None),
                event(EventKind::NandErase, None),
            ],
            bytes: if with_bytes { b"abcdef".to_vec() } else { Vec::new() },
            with_bytes,
            complete: !with_bytes,
        }
    }

    fn file(recording: &Recording) -> Vec<u8> {
        let mut file = Vec::new();
        recording.write_to(&mut file).unwrap();
        file
    }

    #[test]
    fn what_is_written_is_read() {
        for with_bytes in [true, false] {
            let recording = recording(with_bytes);
            assert_eq!(Recording::read_from(&file(&recording)[..]).unwrap(), recording);
        }
    }

    #[test]
    fn a_file_cut_short_anywhere_says_so() {
        let file = file(&recording(true));
        for len in 0..file.len() {
            match Recording::read_from(&file[..len]) {
                Err(RecordingFileError::CutShort { found, .. }) => assert_eq!(found, len as u64),
                other => panic!("{len}: {other:?}"),
            }
        }
    }

    #[test]
    fn no_flipped_bit_passes() {
        let whole = file(&recording(true));
        for bit in 0..whole.len() * 8 {
            let mut file = whole.clone();
            file[bit / 8] ^= 1 << (bit % 8);
            assert!(Recording::read_from(&file[..]).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn strangers_and_the_future_are_told_apart() {
        let refused = Recording::read_from(&[0u8; 4096][..]);
        assert!(matches!(refused, Err(RecordingFileError::NotARecording)));
        let mut future = file(&recording(true));
        future[4] = 9;
        let crc = crc32c::crc32c(&future[4..96]);
        future[..4].copy_from_slice(&crc.to_le_bytes());
        let refused = Recording::read_from(&future[..]);
        assert!(matches!(refused, Err(RecordingFileError::UnknownVersion { found: 9, known: VERSION })));
    }

    #[test]
    fn indices_and_ranges_are_checked_behind_the_checksum() {
        let refused = |what: &str, change: &dyn Fn(&mut Recording)| {
            let mut recording = recording(true);
            change(&mut recording);
            match Recording::read_from(&file(&recording)[..]) {
                Err(RecordingFileError::Corrupt(text)) => assert!(text.contains(what), "{text}"),
                other => panic!("{what}: {other:?}"),
            }
        };
        refused("tables", &|recording| recording.events[1].volume = 2);
        refused("tables", &|recording| recording.events[1].operation = 2);
        refused("outside", &|recording| recording.events[2].bytes_at = Some(4));
        refused("outside", &|recording| recording.events[2].bytes_at = Some(u64::MAX - 1));
        refused("should", &|recording| recording.events[0].bytes_at = None);
        refused("should", &|recording| recording.events[1].bytes_at = Some(0));
        refused("addresses", &|recording| recording.events[1].address = u64::MAX);
    }
}
