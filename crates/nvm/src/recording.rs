//! Recordings: every store, flush and fence of a zone, with the file operation it belongs to.
//!
//! One type serves the crash explorer, the study and the player. Events are in the order in which they
//! happened to memory: while a zone is recorded, a store and its event are one critical section.

use std::time::Instant;

use uuid::Uuid;

use crate::account::Purpose;
use crate::operation;
use crate::volume::VolumeEntry;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// A cached store: may reach the medium at any time, for certain only after flush and fence.
    Store = 1,
    /// An atomic 8-byte store, cached.
    Atomic = 2,
    /// A cached store of zeros. Carries no bytes.
    Zero = 3,
    /// A cached copy from elsewhere in the volume; its bytes are those copied.
    Copy = 4,
    /// A non-temporal store of whole lines: needs a fence, no flush.
    Stream = 5,
    /// A non-temporal store of zeros to whole lines. Carries no bytes.
    StreamZero = 6,
    /// A flush of the lines that the range touches.
    Flush = 7,
    /// A fence: the same thread's earlier flushes and non-temporal stores are durable.
    Fence = 8,
    /// A point in time that someone named, see [`crate::Zone::mark`]; its operation is the name.
    Mark = 9,
    /// A read of a disk; addresses are the disk's.
    DiskRead = 16,
    /// A write to a disk.
    DiskWrite = 17,
    /// A disk's cache flush: earlier writes are durable.
    DiskSync = 18,
    /// A read of a flash chip; addresses are the chip's.
    NandRead = 24,
    /// A page programmed.
    NandProgram = 25,
    /// A block erased.
    NandErase = 26,
}

impl EventKind {
    pub(crate) fn from_code(code: u8) -> Option<EventKind> {
        use EventKind::*;
        [
            Store,
            Atomic,
            Zero,
            Copy,
            Stream,
            StreamZero,
            Flush,
            Fence,
            Mark,
            DiskRead,
            DiskWrite,
            DiskSync,
            NandRead,
            NandProgram,
            NandErase,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == code)
    }

    /// Whether it changes the zone's bytes.
    pub fn is_store(self) -> bool {
        (self as u8) <= EventKind::StreamZero as u8
    }

    /// Whether a recording that keeps bytes keeps those of this event.
    pub fn has_bytes(self) -> bool {
        use EventKind::*;
        matches!(self, Store | Atomic | Copy | Stream | DiskWrite | NandProgram)
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// The thread, by a number from 1 that no other thread of the process has.
    pub thread: u32,
    /// Index in [`Recording::volumes`].
    pub volume: u16,
    /// Index in [`Recording::operations`]; 0 is "outside any".
    pub operation: u16,
    /// Counts the thread's operations, so that two of one name are told apart; 0 outside any.
    pub operation_number: u64,
    /// What happened.
    pub kind: EventKind,
    /// What for. Fences and marks, which have no purpose, carry [`Purpose::Metadata`].
    pub purpose: Purpose,
    /// Byte offset in the zone (not in the volume), or on the disk or chip.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Where its bytes begin in [`Recording::bytes`], if it has any.
    pub bytes_at: Option<u64>,
}

/// A volume that occurs in a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedVolume {
    /// Its name. The zone's entrance is recorded as a volume whose name is empty.
    pub name: String,
    /// Its UUID; the zone's for the entrance.
    pub uuid: Uuid,
    /// Byte offset in the zone.
    pub start: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// What to record.
#[derive(Clone, Copy, Debug)]
pub struct RecordingOptions {
    /// Keep the bytes of stores: needed to replay, costs memory.
    pub bytes: bool,
    /// Memory that a recording may take, in bytes. When it is full, recording ends and the recording says
    /// that it is not complete.
    pub memory_max: u64,
}

impl Default for RecordingOptions {
    fn default() -> Self {
        RecordingOptions { bytes: true, memory_max: 4 << 30 }
    }
}

/// What happened to a zone between [`crate::Zone::start_recording`] and [`crate::Zone::stop_recording`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The zone's UUID.
    pub zone_uuid: Uuid,
    /// The zone's bytes.
    pub zone_bytes: u64,
    /// Volumes that occur.
    pub volumes: Vec<RecordedVolume>,
    /// Names of operations that occur; the first is empty.
    pub operations: Vec<String>,
    /// What happened, in order.
    pub events: Vec<Event>,
    /// The bytes of all stores, one after another; empty if they were not kept.
    pub bytes: Vec<u8>,
    /// Whether the bytes of stores were kept.
    pub with_bytes: bool,
    /// False if memory ran out and events are missing at the end.
    pub complete: bool,
}

/// Why a recording cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// Bytes were not kept.
    #[error("the recording holds no bytes: record with bytes to replay")]
    NoBytes,
    /// An event lies outside the image, or its bytes outside the recording.
    #[error("event {index} stores {length} bytes at {address}, outside the image or without its bytes")]
    OutOfRange {
        /// Index of the event.
        index: usize,
        /// Its address.
        address: u64,
        /// Its length.
        length: u64,
    },
}

impl Recording {
    /// The bytes that an event stored, if they were kept.
    pub fn bytes_of(&self, event: &Event) -> Option<&[u8]> {
        let from = usize::try_from(event.bytes_at?).ok()?;
        self.bytes.get(from..from.checked_add(usize::try_from(event.length).ok()?)?)
    }

    /// The name of an event's operation; empty outside any.
    pub fn operation_of(&self, event: &Event) -> &str {
        self.operations.get(usize::from(event.operation)).map_or("", String::as_str)
    }

    /// The volume of an event.
    pub fn volume_of(&self, event: &Event) -> Option<&RecordedVolume> {
        self.volumes.get(usize::from(event.volume))
    }

    /// Applies the stores among the first `events` events to `image`, the zone's bytes when the recording
    /// began. The result is what memory (not the medium) held then.
    pub fn replay(&self, image: &mut [u8], events: usize) -> Result<(), ReplayError> {
        if !self.with_bytes {
            return Err(ReplayError::NoBytes);
        }
        for (index, event) in self.events.iter().enumerate().take(events) {
            self.apply(index, event, image)?;
        }
        Ok(())
    }

    /// Applies one event to `image`; events that store nothing to the zone change nothing.
    pub fn apply(&self, index: usize, event: &Event, image: &mut [u8]) -> Result<(), ReplayError> {
        if !event.kind.is_store() {
            return Ok(());
        }
        let refuse = || ReplayError::OutOfRange { index, address: event.address, length: event.length };
        let end = event.address.checked_add(event.length).ok_or_else(refuse)?;
        let target = image.get_mut(event.address as usize..end as usize).ok_or_else(refuse)?;
        if event.kind.has_bytes() {
            target.copy_from_slice(self.bytes_of(event).ok_or_else(refuse)?);
        } else {
            target.fill(0);
        }
        Ok(())
    }
}

/// A recording being made.
pub(crate) struct Recorder {
    began: Instant,
    memory_max: u64,
    recording: Recording,
}

impl Recorder {
    pub(crate) fn new(zone_uuid: Uuid, zone_bytes: u64, options: RecordingOptions) -> Recorder {
        let recording = Recording {
            zone_uuid,
            zone_bytes,
            volumes: Vec::new(),
            operations: vec![String::new()],
            events: Vec::new(),
            bytes: Vec::new(),
            with_bytes: options.bytes,
            complete: true,
        };
        Recorder { began: Instant::now(), memory_max: options.memory_max, recording }
    }

    pub(crate) fn finish(self) -> Recording {
        self.recording
    }

    /// `address` is the zone's, `bytes` what is there now (of store events that have bytes).
    pub(crate) fn push(
        &mut self,
        volume: &VolumeEntry,
        kind: EventKind,
        purpose: Purpose,
        address: u64,
        length: u64,
        bytes: &[u8],
    ) {
        let operation = operation::current();
        self.push_as(operation.name, operation.number, volume, kind, purpose, address, length, bytes);
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn push_as(
        &mut self,
        operation: &str,
        operation_number: u64,
        volume: &VolumeEntry,
        kind: EventKind,
        purpose: Purpose,
        address: u64,
        length: u64,
        bytes: &[u8],
    ) {
        let recording = &mut self.recording;
        if !recording.complete {
            return;
        }
        let keep = recording.with_bytes && kind.has_bytes();
        let taken = recording.events.len() as u64 * size_of::<Event>() as u64 + recording.bytes.len() as u64;
        let operation =
            index_or_push(&mut recording.operations, |name| name == operation, || operation.into());
        let volume = index_or_push(
            &mut recording.volumes,
            |known| known.uuid == volume.uuid && known.start == volume.start,
            || RecordedVolume {
                name: volume.name.clone(),
                uuid: volume.uuid,
                start: volume.start,
                bytes: volume.bytes,
            },
        );
        let (Some(volume), Some(operation)) = (volume, operation) else {
            recording.complete = false;
            return;
        };
        if taken + size_of::<Event>() as u64 + if keep { length } else { 0 } > self.memory_max {
            recording.complete = false;
            return;
        }
        let bytes_at = keep.then_some(recording.bytes.len() as u64);
        if keep {
            recording.bytes.extend_from_slice(bytes);
        }
        recording.events.push(Event {
            time_ns: self.began.elapsed().as_nanos() as u64,
            thread: operation::thread(),
            volume,
            operation,
            operation_number,
            kind,
            purpose,
            address,
            length,
            bytes_at,
        });
    }
}

/// The index of the last element that is it (recent ones are the likely ones), or of a new one.
fn index_or_push<T>(list: &mut Vec<T>, is: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> Option<u16> {
    if let Some(index) = list.iter().rposition(is) {
        return u16::try_from(index).ok();
    }
    let index = u16::try_from(list.len()).ok()?;
    list.push(new());
    Some(index)
}
