//! The entrance under damage and power cuts.

use nvm::{
    EntranceHealth, Error, EventKind, OpenOptions, Recording, RecordingOptions, SEGMENT, VolumeKind, Zone,
};

const BYTES: u64 = 4 * SEGMENT;
const SECOND: usize = 1 << 20;

fn options() -> OpenOptions {
    OpenOptions::default()
}

fn names(zone: &Zone) -> Vec<String> {
    zone.volumes().into_iter().map(|volume| volume.name).collect()
}

/// The image of a zone with two volumes.
fn image() -> Vec<u8> {
    let zone = Zone::anonymous(BYTES, &options()).unwrap();
    zone.create_volume("a", VolumeKind::Native, Some(SEGMENT)).unwrap();
    zone.create_volume("b", VolumeKind::Flash, Some(SEGMENT)).unwrap();
    zone.snapshot_image()
}

#[test]
fn either_copy_alone_is_enough_and_the_other_is_repaired() {
    for (copy, at) in [(0, 0), (1, SECOND)] {
        for byte in [0, 4, 8, 20, 32, 40, 60, 64, 4095] {
            let mut image = image();
            image[at + byte] ^= 0x40;
            let zone = Zone::from_bytes(&image, &options()).unwrap();
            assert_eq!(names(&zone), ["a", "b"]);
            let health = zone.info().entrance;
            assert!(
                matches!(health, EntranceHealth::Damaged { copy: found, repaired: true, .. } if found == copy),
                "byte {byte} of copy {copy}: {health:?}"
            );
            let repaired = Zone::from_bytes(&zone.snapshot_image(), &options()).unwrap();
            assert_eq!(repaired.info().entrance, EntranceHealth::Sound);
        }
    }
}

#[test]
fn a_read_only_zone_is_not_repaired() {
    let mut image = image();
    image[100] ^= 1;
    let zone = Zone::from_bytes(&image, &OpenOptions { read_only: true, ..options() }).unwrap();
    assert_eq!(names(&zone), ["a", "b"]);
    assert!(matches!(zone.info().entrance, EntranceHealth::Damaged { copy: 0, repaired: false, .. }));
    assert_eq!(zone.snapshot_image(), image);
}

#[test]
fn two_damaged_copies_are_told_from_no_zone() {
    let mut image = image();
    image[100] ^= 1;
    image[SECOND + 2000] ^= 1;
    let refused = Zone::from_bytes(&image, &options()).unwrap_err();
    assert!(matches!(refused, Error::EntranceCorrupt { .. }), "{refused}");
    assert!(refused.to_string().contains("both copies"), "{refused}");
    image[8..16].fill(0);
    let refused = Zone::from_bytes(&image, &options()).unwrap_err();
    assert!(matches!(refused, Error::EntranceCorrupt { .. }), "one magic is enough to know it: {refused}");
    image[SECOND + 8..SECOND + 16].fill(0);
    assert!(matches!(Zone::from_bytes(&image, &options()), Err(Error::NotAZone { .. })));
    assert!(matches!(Zone::from_bytes(&image[..100], &options()), Err(Error::TooSmall { .. })));
    assert!(matches!(Zone::from_bytes(&vec![0; BYTES as usize], &options()), Err(Error::NotAZone { .. })));
}

#[test]
fn another_version_is_refused_not_misread() {
    let mut image = image();
    for at in [0, SECOND] {
        image[at + 4] = 2;
        let crc = crc32c::crc32c(&image[at + 4..at + 4096]);
        image[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    let refused = Zone::from_bytes(&image, &options()).unwrap_err();
    assert!(matches!(refused, Error::UnknownVersion { found: 2, known: 1, .. }), "{refused}");
}

/// The next update would have begun anew, and lost to what was there before it.
#[test]
fn a_sequence_without_a_next_one_is_not_believed() {
    let mut image = image();
    let changed = |image: &mut [u8], at: usize| {
        image[at + 32..at + 40].fill(0xff);
        let crc = crc32c::crc32c(&image[at + 4..at + 4096]);
        image[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    };
    changed(&mut image, 0);
    let zone = Zone::from_bytes(&image, &options()).unwrap();
    assert!(matches!(zone.info().entrance, EntranceHealth::Damaged { copy: 0, repaired: true, .. }));
    zone.create_volume("c", VolumeKind::Native, None).unwrap();
    assert_eq!(names(&zone), ["a", "b", "c"]);
    changed(&mut image, SECOND);
    let refused = Zone::from_bytes(&image, &options()).unwrap_err();
    assert!(matches!(refused, Error::EntranceCorrupt { .. }), "{refused}");
}

#[test]
fn copies_of_two_zones_are_not_mixed() {
    let (mut image, other) = (image(), image());
    image[SECOND..SECOND + 4096].copy_from_slice(&other[SECOND..SECOND + 4096]);
    let refused = Zone::from_bytes(&image, &options()).unwrap_err();
    assert!(matches!(refused, Error::EntranceCorrupt { .. }), "{refused}");
}

#[test]
fn an_update_cut_off_between_the_copies_is_finished() {
    let zone = Zone::anonymous(BYTES, &options()).unwrap();
    zone.create_volume("a", VolumeKind::Native, Some(SEGMENT)).unwrap();
    let before = zone.snapshot_image();
    zone.create_volume("b", VolumeKind::Native, Some(SEGMENT)).unwrap();
    let after = zone.snapshot_image();
    for (stale, at) in [(0, 0), (1, SECOND)] {
        let mut image = after.clone();
        image[at..at + 4096].copy_from_slice(&before[at..at + 4096]);
        let zone = Zone::from_bytes(&image, &options()).unwrap();
        assert_eq!(names(&zone), ["a", "b"], "the newer copy counts");
        assert_eq!(zone.info().entrance, EntranceHealth::Behind { copy: stale, repaired: true });
        assert!(zone.snapshot_image() == after);
    }
}

#[test]
fn a_copy_in_the_other_ones_place_does_not_count() {
    let mut image = image();
    let (first, second) = image.split_at_mut(SECOND);
    second[..4096].copy_from_slice(&first[..4096]);
    let zone = Zone::from_bytes(&image, &options()).unwrap();
    assert!(matches!(zone.info().entrance, EntranceHealth::Damaged { copy: 1, .. }));
}

#[test]
fn a_cut_short_image_is_refused() {
    let image = image();
    let refused = Zone::from_bytes(&image[..2 * SEGMENT as usize], &options()).unwrap_err();
    assert!(matches!(refused, Error::Truncated { recorded: BYTES, .. }), "{refused}");
}

/// A volume that was being filled, when the power went, stayed for ever as one that holds nothing.
#[test]
fn an_unfinished_volume_goes_with_the_next_opening() {
    let zone = Zone::anonymous(BYTES, &options()).unwrap();
    zone.create_volume("a", VolumeKind::Native, Some(SEGMENT)).unwrap();
    drop(zone.begin_volume("b", VolumeKind::Native, Some(SEGMENT)).unwrap());
    assert!(matches!(zone.volume("b"), Err(Error::Unfinished { .. })), "nobody else gets it");
    assert!(matches!(zone.create_volume("b", VolumeKind::Native, None), Err(Error::VolumeExists { .. })));
    let image = zone.snapshot_image();

    let read = Zone::from_bytes(&image, &OpenOptions { read_only: true, ..options() }).unwrap();
    assert_eq!(read.volumes().iter().map(|volume| volume.unfinished).collect::<Vec<_>>(), [false, true]);
    assert!(read.info().removed_unfinished.is_empty() && read.snapshot_image() == image);

    let opened = Zone::from_bytes(&image, &options()).unwrap();
    assert_eq!((names(&opened), opened.info().removed_unfinished), (vec!["a".into()], vec!["b".into()]));
    let again = Zone::from_bytes(&opened.snapshot_image(), &options()).unwrap();
    assert_eq!((names(&again), again.info().removed_unfinished), (vec!["a".into()], Vec::new()));

    zone.finish_volume("b").unwrap();
    zone.volume("b").unwrap();
    let finished = Zone::from_bytes(&zone.snapshot_image(), &options()).unwrap();
    assert_eq!(
        (names(&finished), finished.info().removed_unfinished.len()),
        (vec!["a".into(), "b".into()], 0)
    );
}

/// What may be on the medium: what was fenced for certain, and of the rest any 8-byte words.
struct Medium {
    durable: Vec<u8>,
    /// Stores not known to be durable: address and bytes.
    pending: Vec<(usize, Vec<u8>)>,
}

impl Medium {
    fn advance(&mut self, recording: &Recording, index: usize) {
        let event = &recording.events[index];
        match event.kind {
            EventKind::Fence => {
                for (at, bytes) in self.pending.drain(..) {
                    self.durable[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
            EventKind::Stream => {
                self.pending.push((event.address as usize, recording.bytes_of(event).unwrap().to_vec()));
            }
            EventKind::StreamZero => {
                self.pending.push((event.address as usize, vec![0; event.length as usize]));
            }
            EventKind::Mark => {}
            kind => panic!("the entrance is written by streams only, not by {kind:?}"),
        }
    }

    /// One state that a power cut could leave: `keep` says for each pending word whether it arrived.
    fn cut(&self, mut keep: impl FnMut() -> bool) -> Vec<u8> {
        let mut image = self.durable.clone();
        for (at, bytes) in &self.pending {
            for (word, value) in bytes.chunks(8).enumerate() {
                if keep() {
                    image[at + word * 8..at + word * 8 + value.len()].copy_from_slice(value);
                }
            }
        }
        image
    }
}

/// Splitmix64: a small generator, so that a failure is replayed by its seed.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[test]
fn index_updates_are_atomic_at_every_store() {
    let zone = Zone::anonymous(BYTES, &options()).unwrap();
    let base = zone.snapshot_image();
    zone.start_recording(RecordingOptions::default());
    let mut states = vec![zone.volumes()];
    let mut step = |change: &dyn Fn(&Zone)| {
        change(&zone);
        zone.mark("returned");
        // What is unfinished is removed by who opens the zone next.
        states.push(zone.volumes().into_iter().filter(|volume| !volume.unfinished).collect());
    };
    step(&|zone| drop(zone.create_volume("a", VolumeKind::Native, Some(SEGMENT)).unwrap()));
    step(&|zone| drop(zone.create_volume("b", VolumeKind::Ext, Some(SEGMENT)).unwrap()));
    step(&|zone| zone.remove_volume("a").unwrap());
    step(&|zone| drop(zone.create_volume("c", VolumeKind::Flash, None).unwrap()));
    step(&|zone| zone.remove_volume("b").unwrap());
    step(&|zone| drop(zone.begin_volume("d", VolumeKind::Native, Some(SEGMENT)).unwrap()));
    step(&|zone| zone.finish_volume("d").unwrap());
    step(&|zone| zone.remove_volume("d").unwrap());
    step(&|zone| drop(zone.begin_volume("e", VolumeKind::Native, Some(SEGMENT)).unwrap()));
    let recording = zone.stop_recording().unwrap();

    let mut seed = std::env::var("SEED").map_or(17, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut medium = Medium { durable: base, pending: Vec::new() };
    let (mut returned, mut tried) = (0, 0);
    for index in 0..=recording.events.len() {
        let mut cuts = vec![medium.cut(|| true), medium.cut(|| false)];
        if !medium.pending.is_empty() {
            // Mostly arrived, mostly not, and even.
            for odds in [1, 2, 4, 6, 7] {
                cuts.push(medium.cut(|| random(&mut seed) % 8 < odds));
            }
            // All up to one word: every way to be cut off in order, thinned out.
            let words = medium.pending.iter().map(|(_, bytes)| bytes.len() / 8).sum::<usize>();
            for last in [1, 2, 7, 8, 9, 64, words - 1] {
                let mut word = 0;
                cuts.push(medium.cut(|| {
                    word += 1;
                    word <= last
                }));
            }
        }
        for image in cuts {
            tried += 1;
            let found = Zone::from_bytes(&image, &options())
                .unwrap_or_else(|error| panic!("cut {tried} before event {index}: {error}"));
            let found = found.volumes();
            let allowed = &states[returned..(returned + 2).min(states.len())];
            assert!(allowed.contains(&found), "cut {tried} before event {index}: {found:?} of {allowed:?}");
        }
        if index == recording.events.len() {
            break;
        }
        medium.advance(&recording, index);
        if recording.events[index].kind == EventKind::Mark {
            returned += 1;
            assert!(medium.pending.is_empty(), "what has returned is durable");
            assert_eq!(Zone::from_bytes(&medium.durable, &options()).unwrap().volumes(), states[returned]);
        }
    }
    assert_eq!(returned, 9);
    assert!(tried > 200, "{tried} cuts");
}
