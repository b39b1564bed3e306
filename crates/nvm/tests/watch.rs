//! A watched zone tells which lines were read and stored to, and takes stores back.

use nvm::{Look, OpenOptions, Purpose, RecordingOptions, Region, VolumeKind, Zone};

const P: Purpose = Purpose::Data;

fn watched() -> (Zone, Region, u64) {
    let zone = Zone::anonymous(16 << 20, &OpenOptions::default()).unwrap();
    let region = zone.create_volume("v", VolumeKind::Native, None).unwrap();
    let first_line = region.entry().start / nvm::LINE;
    zone.watch();
    (zone, region, first_line)
}

#[test]
fn stores_of_every_kind_are_taken_back() {
    let (zone, region, _) = watched();
    region.store(P, 100, b"before");
    let image = zone.snapshot_image();
    let outer = zone.watched(|watch| watch.mark()).unwrap();
    region.store(P, 60, &[1; 10]);
    let inner = zone.watched(|watch| watch.mark()).unwrap();
    let between = zone.snapshot_image();
    region.store(P, 90, &[2; 100]);
    region.store_u64(P, 64, 3);
    region.fill_zero(P, 100, 3);
    region.copy_within(P, 60, 1000, 500);
    let flushed = region.stream(P, 4096, &[4; 8192]).and(region.stream(P, 20_001, &[5; 777]));
    region.fence(flushed.and(region.stream_zero(P, 4000, 200))).ignore();
    zone.watched(|watch| watch.set_line(7, &[6; 64])).unwrap();
    assert_ne!(zone.snapshot_image(), between);
    zone.watched(|watch| watch.put_back(inner)).unwrap();
    assert_eq!(zone.snapshot_image(), between);
    region.store(P, 61, &[9; 3]);
    zone.watched(|watch| watch.put_back(outer)).unwrap();
    assert_eq!(zone.snapshot_image(), image);
}

#[test]
fn what_is_read_is_told_in_order_and_only_if_it_mattered() {
    let (zone, region, first) = watched();
    zone.watched(|watch| {
        watch.seek([1..3, 5..6, 9..10, 30..30, 70..72].map(|run| first + run.start..first + run.end))
    })
    .unwrap();
    region.store(P, 9 * 64, &[1; 64]); // overwritten whole: what it held has no influence
    region.store(P, 2 * 64, &[1; 62]); // the last word in part: the rest of it stays
    region.store_u64(P, 71 * 64 + 16, 1);
    let _ = region.bytes(70 * 64 - 1, 2);
    region.load_u64(5 * 64 + 8);
    region.load_u64(5 * 64 + 8);
    let _ = region.bytes(0, 72 * 64);
    let read: Vec<_> =
        zone.watched(|watch| watch.read().iter().map(|look| words_of(*look, first)).collect()).unwrap();
    assert_eq!(read, [(2, 0x80), (70, 1), (5, 2), (1, 0xff), (5, 0xfd), (70, 0xfe), (71, 0xfb)]);
    let stored = |line| zone.watched(|watch| watch.stored_words(first + line)).unwrap();
    assert_eq!([9, 2, 71, 5].map(stored), [0xff, 0x7f, 4, 0]);
}

#[test]
fn of_many_lines_that_are_looked_at_those_that_matter_are_told() {
    let (zone, region, first) = watched();
    zone.watched(|watch| watch.seek([3..4, 200..201].map(|run| first + run.start..first + run.end))).unwrap();
    region.store_u64(P, 300 * 64 + 8, 7);
    assert_eq!(region.find_u64(8, 400 * 64, |word| word == 7), Some(300 * 64 + 8));
    let read: Vec<_> =
        zone.watched(|watch| watch.read().iter().map(|look| words_of(*look, first)).collect()).unwrap();
    assert_eq!(read, [(3, 2), (200, 2)]);
}

/// Line, counted from `first`, and words of a look at words.
fn words_of(look: Look, first: u64) -> (u64, u8) {
    match look {
        Look::Words(it) => (u64::from(it.line) - first, it.words),
        Look::Asked(number) => panic!("question {number} is no look at words"),
    }
}

/// Asks bytes whether the first is larger than this.
fn is_larger(bytes: &[u8], [than, _]: [u64; 2]) -> u64 {
    u64::from(u64::from(bytes[0]) > than)
}

#[test]
fn bytes_that_are_asked_are_known_by_their_answer() {
    let (zone, region, first) = watched();
    region.store(P, 3 * 64, &[5; 64]);
    zone.watched(|watch| {
        watch.mark();
        watch.seek(std::iter::once(first + 1..first + 9))
    })
    .unwrap();
    let ask = |line: u64, than| region.ask(line * 64 + 8, 64, is_larger, [than, 0]);
    assert_eq!([ask(3, 4), ask(3, 5), ask(3, 4), ask(20, 0)], [1, 0, 1, 0], "the last one is not sought");
    let looks = zone.watched(|watch| watch.read().to_vec()).unwrap();
    let [Look::Asked(four), Look::Asked(five)] = looks[..] else { panic!("{looks:?}") };
    let answer = |number| zone.watched(|watch| watch.answer(number)).unwrap();
    assert_eq!([answer(four), answer(five)], [1, 0]);
    let words = zone.watched(|watch| {
        watch.words(looks[0]).map(|it| (u64::from(it.line) - first, it.words)).collect::<Vec<_>>()
    });
    assert_eq!(words.unwrap(), [(3, 0xfe), (4, 1)]);
    // The answer of other contents, though nobody asks them.
    zone.watched(|watch| watch.set_line(first + 3, &[7; 64])).unwrap();
    assert_eq!([answer(four), answer(five)], [1, 1]);
    // It has been stored to: now the answer follows from that as well, and what was there counts as read.
    assert_eq!(ask(3, 6), 1);
    let looks = zone.watched(|watch| watch.read()[2..].to_vec()).unwrap();
    assert_eq!(looks.into_iter().map(|look| words_of(look, first)).collect::<Vec<_>>(), [(3, 0xfe), (4, 1)]);
}

#[test]
fn a_recording_of_a_watched_zone_is_that_of_any_zone() {
    let kinds = |watch: bool| {
        let (zone, region, _) = watched();
        if !watch {
            zone.unwatch();
        }
        zone.start_recording(RecordingOptions::default());
        let flushed = region.stream(P, 30, &[1; 300]);
        region.fence(flushed).ignore();
        region.persist_u64(P, 8, 7).ignore();
        let recording = zone.stop_recording().unwrap();
        recording.events.iter().map(|event| (event.kind, event.address, event.length)).collect::<Vec<_>>()
    };
    assert_eq!(kinds(true), kinds(false));
}
