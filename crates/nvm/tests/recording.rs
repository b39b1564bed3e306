//! Recordings hold everything that happened to a zone, in the order in which it did.

use nvm::{
    Event, EventKind, OpenOptions, Purpose, Recording, RecordingOptions, Region, ReplayError, SEGMENT,
    VolumeKind, Zone,
};

const BYTES: u64 = 4 * SEGMENT;

fn zone() -> (Zone, Region) {
    let zone = Zone::anonymous(BYTES, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("home", VolumeKind::Native, Some(2 * SEGMENT)).unwrap();
    (zone, region)
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A random store of any kind.
fn store(region: &Region, state: &mut u64) {
    let purpose = Purpose::ALL[(random(state) % 5) as usize];
    let len = random(state) % 3000;
    let at = random(state) % (region.len() - len - 4096);
    let bytes: Vec<u8> = (0..len).map(|i| (i ^ at) as u8).collect();
    match random(state) % 8 {
        0 => region.store(purpose, at, &bytes),
        1 => region.store_u64(purpose, at & !7, at),
        2 => region.fill_zero(purpose, at, len),
        3 => region.copy_within(purpose, at, random(state) % (region.len() - len), len),
        4 => drop(region.stream(purpose, at, &bytes)),
        5 => drop(region.stream(purpose, at & !4095, &[at as u8; 4096])),
        6 => drop(region.stream_zero(purpose, at, len)),
        _ => {
            let flushed = region.flush(purpose, at, len);
            region.fence(flushed).ignore();
        }
    }
}

#[test]
fn a_replayed_recording_is_the_zone() {
    let (zone, region) = zone();
    let mut state = 4711;
    (0..500).for_each(|_| store(&region, &mut state));
    let base = zone.snapshot_image();
    zone.start_recording(RecordingOptions::default());
    (0..2000).for_each(|_| store(&region, &mut state));
    zone.create_volume("more", VolumeKind::Ext, None).unwrap();
    zone.remove_volume("more").unwrap();
    let middle = zone.snapshot_image();
    let recording = zone.stop_recording().unwrap();
    assert!(recording.complete && recording.with_bytes);
    // What comes after is not in it.
    (0..50).for_each(|_| store(&region, &mut state));
    let mut image = base.clone();
    recording.replay(&mut image, usize::MAX).unwrap();
    assert!(image == middle);
    let mut file = Vec::new();
    recording.write_to(&mut file).unwrap();
    let read = Recording::read_from(&file[..]).unwrap();
    assert!(read == recording);
    let mut half = base;
    recording.replay(&mut half, recording.events.len() / 2).unwrap();
    assert!(half != middle);
    assert!(zone.stop_recording().is_none());
}

/// Threads that store to the same words without a lock, as a volume's atomic words may be: the order of
/// events must be the order of memory, or the replay differs.
#[test]
fn a_replay_is_exact_with_racing_threads() {
    let (zone, region) = zone();
    let mut image = zone.snapshot_image();
    zone.start_recording(RecordingOptions::default());
    let together = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (region, together) = (region.clone(), &together);
            scope.spawn(move || {
                together.wait();
                for number in 0..30_000u64 {
                    region.store_u64(Purpose::Metadata, number % 2 * 8, number * 4 + thread);
                }
            });
        }
    });
    let recording = zone.stop_recording().unwrap();
    assert_eq!(recording.events.len(), 120_000);
    recording.replay(&mut image, usize::MAX).unwrap();
    assert!(image == zone.snapshot_image());
    // Each event carries what its own thread stored.
    let word = |event: &Event| u64::from_le_bytes(recording.bytes_of(event).unwrap().try_into().unwrap());
    let mut values: Vec<u64> = recording.events.iter().map(word).collect();
    values.sort_unstable();
    assert!(values.into_iter().eq(0..120_000));
    let mut threads: Vec<u32> = recording.events.iter().map(|event| event.thread).collect();
    threads.sort_unstable();
    threads.dedup();
    assert_eq!(threads.len(), 4);
    assert!(recording.events.is_sorted_by_key(|event| event.time_ns));
}

#[test]
fn events_say_what_where_and_in_which_operation() {
    let (zone, region) = zone();
    zone.start_recording(RecordingOptions::default());
    {
        let _operation = nvm::operation("write");
        let flushed = region.stream(Purpose::Data, 60, &[5; 72]);
        region.fence(flushed).ignore();
    }
    {
        let _operation = nvm::operation("write");
        region.persist_u64(Purpose::Journal, 4096, 1).ignore();
        let _inner = nvm::operation("checkpoint");
        region.fill_zero(Purpose::Allocation, 128, 10);
    }
    zone.mark("done");
    region.note(EventKind::DiskWrite, Purpose::Data, 1 << 40, 512, &[7; 512]);
    region.copy_within(Purpose::Metadata, 60, 200, 4);
    let recording = zone.stop_recording().unwrap();
    let seen: Vec<_> = recording
        .events
        .iter()
        .map(|event| {
            let at = event.address.wrapping_sub(region.entry().start);
            (recording.operation_of(event), event.kind, event.purpose, at, event.length)
        })
        .collect();
    let mark = 0u64.wrapping_sub(region.entry().start);
    assert_eq!(
        seen,
        [
            ("write", EventKind::Store, Purpose::Data, 60, 4),
            ("write", EventKind::Flush, Purpose::Data, 60, 4),
            ("write", EventKind::Stream, Purpose::Data, 64, 64),
            ("write", EventKind::Store, Purpose::Data, 128, 4),
            ("write", EventKind::Flush, Purpose::Data, 128, 4),
            ("write", EventKind::Fence, Purpose::Metadata, 0, 0),
            ("write", EventKind::Atomic, Purpose::Journal, 4096, 8),
            ("write", EventKind::Flush, Purpose::Journal, 4096, 8),
            ("write", EventKind::Fence, Purpose::Metadata, 0, 0),
            ("checkpoint", EventKind::Zero, Purpose::Allocation, 128, 10),
            ("done", EventKind::Mark, Purpose::Metadata, mark, 0),
            ("", EventKind::DiskWrite, Purpose::Data, mark.wrapping_add(1 << 40), 512),
            ("", EventKind::Copy, Purpose::Metadata, 200, 4),
        ]
    );
    let number = |index: usize| recording.events[index].operation_number;
    assert!(number(0) == number(5) && number(5) < number(6) && number(6) < number(9) && number(12) == 0);
    let volume = recording.volume_of(&recording.events[0]).unwrap();
    assert_eq!((volume.name.as_str(), volume.uuid, volume.bytes), ("home", region.uuid(), region.len()));
    assert_eq!(recording.bytes_of(&recording.events[11]).unwrap(), [7; 512]);
    assert_eq!(recording.bytes_of(&recording.events[12]).unwrap(), [5; 4]);
}

#[test]
fn a_recording_without_bytes_cannot_be_replayed_but_read() {
    let (zone, region) = zone();
    zone.start_recording(RecordingOptions { bytes: false, ..RecordingOptions::default() });
    region.store(Purpose::Data, 0, &[1; 100]);
    let recording = zone.stop_recording().unwrap();
    assert_eq!(recording.replay(&mut zone.snapshot_image(), 1), Err(ReplayError::NoBytes));
    let mut file = Vec::new();
    recording.write_to(&mut file).unwrap();
    assert_eq!(Recording::read_from(&file[..]).unwrap(), recording);
}

#[test]
fn a_recording_that_is_full_says_so_and_ends() {
    let (zone, region) = zone();
    zone.start_recording(RecordingOptions { memory_max: 10_000, ..RecordingOptions::default() });
    (0..1000).for_each(|_| region.store(Purpose::Data, 0, &[1; 1000]));
    let recording = zone.stop_recording().unwrap();
    assert!(!recording.complete);
    let taken = recording.events.len() * size_of::<Event>() + recording.bytes.len();
    assert!(taken <= 10_000 && recording.events.len() > 5, "{taken}");
}

#[test]
fn a_replay_outside_the_image_is_refused() {
    let (zone, region) = zone();
    zone.start_recording(RecordingOptions::default());
    region.store(Purpose::Data, 100, &[1; 100]);
    let mut recording = zone.stop_recording().unwrap();
    let short = &mut vec![0; SEGMENT as usize + 150];
    assert!(matches!(recording.replay(short, 1), Err(ReplayError::OutOfRange { index: 0, .. })));
    recording.events[0].address = u64::MAX - 50;
    let refused = recording.replay(&mut zone.snapshot_image(), 1);
    assert!(matches!(refused, Err(ReplayError::OutOfRange { .. })));
}
