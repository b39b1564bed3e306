//! Regions: every way to store, on every way to persist, counted exactly.

mod scratch;

use std::path::Path;

use nvm::{Account, Flushed, LINE, OpenOptions, PersistMethod, Purpose, Region, SEGMENT, VolumeKind, Zone};
use scratch::directory;

const BYTES: u64 = 4 * SEGMENT;
const METHODS: [PersistMethod; 4] =
    [PersistMethod::Clwb, PersistMethod::Clflushopt, PersistMethod::Clflush, PersistMethod::Msync];

fn region(options: &OpenOptions) -> Region {
    Zone::anonymous(BYTES, options).unwrap().create_volume("test", VolumeKind::Native, None).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// One of everything; returns what the region must read as from 0.
fn exercise(region: &Region) -> Vec<u8> {
    let mut expected = vec![0u8; 64 << 10];
    let from = pattern(20_000);
    region.store(Purpose::Metadata, 5, &from[..1000]);
    expected[5..1005].copy_from_slice(&from[..1000]);
    region.store_u64(Purpose::Journal, 2048, 0xFEDC_BA98_7654_3210);
    expected[2048..2056].copy_from_slice(&0xFEDC_BA98_7654_3210u64.to_le_bytes());
    let mut flushed = region.flush(Purpose::Metadata, 0, 2056);
    for (at, len) in [(4096, 4096), (9000, 1), (9021, 700), (10_240, 64), (11_001, 63), (12_288, 17_111)] {
        flushed = flushed.and(region.stream(Purpose::Data, at, &from[..len]));
        expected[at as usize..at as usize + len].copy_from_slice(&from[..len]);
    }
    region.copy_within(Purpose::Data, 4096, 40_001, 999);
    expected.copy_within(4096..5095, 40_001);
    region.copy_within(Purpose::Data, 40_001, 40_100, 999);
    expected.copy_within(40_001..41_000, 40_100);
    flushed = flushed.and(region.flush(Purpose::Data, 40_001, 1100));
    region.fill_zero(Purpose::Allocation, 5000, 13);
    expected[5000..5013].fill(0);
    flushed = flushed.and(region.flush(Purpose::Allocation, 5000, 13));
    for (at, len) in [(12_300u64, 500u64), (16_384, 4096), (21_000, 3)] {
        flushed = flushed.and(region.stream_zero(Purpose::Data, at, len));
        expected[at as usize..(at + len) as usize].fill(0);
    }
    region.fence(flushed).ignore();
    expected
}

#[test]
fn every_store_stores_what_it_says_by_every_method() {
    for method in METHODS.into_iter().filter(|method| method.supported()) {
        let region = region(&OpenOptions { persist: Some(method), ..OpenOptions::default() });
        assert_eq!(region.persist_method(), method);
        let expected = exercise(&region);
        assert!(region.bytes(0, expected.len()) == expected, "{method}");
        let mut read = vec![0; expected.len()];
        region.read(0, &mut read);
        assert!(read == expected, "{method}");
        assert_eq!(region.load_u64(2048), 0xFEDC_BA98_7654_3210);
        assert_eq!(region.load::<[u8; 3]>(4096), expected[4096..4099]);
        region.check().unwrap();
    }
}

#[test]
fn what_watches_stores_does_not_change_them() {
    let options = OpenOptions { wear: true, technology: nvm::Technology::Pcm, ..OpenOptions::default() };
    let region = region(&options);
    region.zone().start_recording(nvm::RecordingOptions::default());
    let expected = exercise(&region);
    assert!(region.bytes(0, expected.len()) == expected);
}

#[test]
fn the_first_word_that_is_sought_is_found_in_its_bounds() {
    let spinning = OpenOptions { technology: nvm::Technology::Pcm, ..OpenOptions::default() };
    for options in [OpenOptions::default(), spinning] {
        let region = region(&options);
        let words = [(0x2000, 1), (0x2040, 7), (0x3008, 7), (0x5fc0, 7)];
        words.into_iter().for_each(|(at, word)| region.store_u64(Purpose::Data, at, word));
        let find = |at, end| region.find_u64(at, end, |word| word == 7);
        assert_eq!(find(0x2000, 0x6000), Some(0x2040));
        assert_eq!(find(0x2040, 0x2041), Some(0x2040));
        // What lies between the lines' words is not looked at.
        assert_eq!(find(0x2080, 0x6000), Some(0x5fc0));
        assert_eq!(find(0x2088, 0x6000), Some(0x3008));
        assert_eq!(find(0x2080, 0x5fc0), None);
        assert_eq!(find(0x2040, 0x2040), None);
    }
}

#[test]
fn a_file_has_the_bytes_that_were_fenced() {
    // The temporary directory is mostly a plain file system, the other one memory: msync and flushes.
    for directory in [tempfile::tempdir().unwrap(), directory()] {
        let path = directory.path().join("zone");
        let zone = Zone::create(&path, BYTES, false, &OpenOptions::default()).unwrap();
        let region = zone.create_volume("test", VolumeKind::Native, None).unwrap();
        let expected = exercise(&region);
        region.check().unwrap();
        let file = std::fs::read(&path).unwrap();
        assert!(file[SEGMENT as usize..][..expected.len()] == expected, "{}", directory.path().display());
        assert!(file == zone.snapshot_image());
    }
}

#[test]
fn a_flush_on_a_plain_file_reaches_it_from_any_thread() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("zone");
    let options = OpenOptions { persist: Some(PersistMethod::Msync), ..OpenOptions::default() };
    let zone = Zone::create(&path, BYTES, false, &options).unwrap();
    let region = zone.create_volume("test", VolumeKind::Native, None).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let region = &region;
            scope.spawn(move || {
                for number in 0..50 {
                    let at = number * 16_384 + thread * 4096;
                    region.store_u64(Purpose::Data, at, at | 1);
                    let flushed = region.flush(Purpose::Data, at, 8);
                    region.fence(flushed).ignore();
                }
            });
        }
    });
    region.check().unwrap();
    let file = std::fs::read(Path::new(&path)).unwrap();
    for word in 0..200 {
        let at = (SEGMENT + word * 4096) as usize;
        assert_eq!(u64::from_le_bytes(file[at..at + 8].try_into().unwrap()), (word * 4096) | 1);
    }
}

/// Kilobytes of a file's mappings that the system has yet to write.
fn dirty_kb(path: &Path) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut ours = false;
    let mut dirty = 0;
    for line in smaps.lines() {
        let (field, value) = line.split_once(':').unwrap();
        if field.contains('-') {
            ours = line.ends_with(path.to_str().unwrap());
        } else if ours && matches!(field, "Shared_Dirty" | "Private_Dirty") {
            dirty += value.trim_end_matches(" kB").trim().parse::<u64>().unwrap();
        }
    }
    dirty
}

/// A file's readers see what was stored whether or not it was written back, so this asks the system.
#[test]
fn a_fence_writes_back_every_page_that_was_flushed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("zone");
    let zone = Zone::create(&path, BYTES, false, &OpenOptions::default()).unwrap();
    if !matches!(zone.info().backing, nvm::Backing::PlainFile { .. }) {
        return;
    }
    let region = zone.create_volume("test", VolumeKind::Native, None).unwrap();
    // The system may write a page back at any time, but not every page at once.
    let mut held_back = false;
    for (at, len) in [(0, 8), (4096, 4096), (20_000, 1), (28_600, 200), (16_384, 64), (1 << 20, 9000)] {
        region.store(Purpose::Data, at, &vec![1; len]);
        let flushed = region.flush(Purpose::Data, at, len as u64);
        held_back |= dirty_kb(&path) > 0;
        let also = region.stream(Purpose::Journal, at + 500_000, &vec![2; len]);
        region.fence(flushed.and(also)).ignore();
        assert_eq!(dirty_kb(&path), 0, "after the fence of {len} bytes at {at}");
    }
    assert!(held_back, "a flush alone writes nothing back");
    // One fence for many flushes: apart, overlapping, out of order.
    let mut flushed = Flushed::none();
    for at in [40_960u64, 300_000, 0, 45_056, 100, 296_000, 43_000, 8192, 36_864] {
        region.store(Purpose::Data, at, &[3; 5000]);
        flushed = flushed.and(region.flush(Purpose::Data, at, 5000));
    }
    region.fence(flushed).ignore();
    assert_eq!(dirty_kb(&path), 0, "after one fence of many flushes");
    let left = (0..100).any(|_| {
        region.store(Purpose::Data, 0, b"not flushed");
        region.fence(Flushed::none()).ignore();
        dirty_kb(&path) > 0
    });
    assert!(left, "a fence writes back what was flushed, not everything");
}

#[test]
fn an_unsupported_method_is_refused() {
    for method in METHODS.into_iter().filter(|method| !method.supported()) {
        let options = OpenOptions { persist: Some(method), ..OpenOptions::default() };
        assert!(matches!(Zone::anonymous(BYTES, &options), Err(nvm::Error::PersistUnsupported { .. })));
    }
}

fn cost(region: &Region, operation: impl FnOnce()) -> Account {
    let before = region.account();
    operation();
    region.account() - before
}

#[test]
fn accounts_are_exact() {
    for method in [PersistMethod::best(), PersistMethod::Msync] {
        let region = region(&OpenOptions { persist: Some(method), ..OpenOptions::default() });
        let data = |account: Account| {
            let written = account.of(Purpose::Data);
            (written.bytes, written.lines_flushed, written.lines_streamed)
        };
        assert_eq!(data(cost(&region, || region.store(Purpose::Data, 7, &[1; 100]))), (100, 0, 0));
        assert_eq!(data(cost(&region, || region.store_u64(Purpose::Data, 8, 1))), (8, 0, 0));
        assert_eq!(data(cost(&region, || region.fill_zero(Purpose::Data, 1, 70))), (70, 0, 0));
        assert_eq!(data(cost(&region, || region.copy_within(Purpose::Data, 1, 5, 70))), (70, 0, 0));
        let flush = |at, len| data(cost(&region, || drop(region.flush(Purpose::Data, at, len))));
        assert_eq!(flush(0, 0), (0, 0, 0));
        assert_eq!(flush(63, 1), (0, 1, 0));
        assert_eq!(flush(63, 2), (0, 2, 0));
        assert_eq!(flush(0, 4096), (0, 64, 0));
        assert_eq!(flush(1, 4096), (0, 65, 0));
        let stream = |at, len| data(cost(&region, || drop(region.stream(Purpose::Data, at, &vec![9; len]))));
        assert_eq!(stream(0, 0), (0, 0, 0));
        assert_eq!(stream(0, 4096), (4096, 0, 64));
        assert_eq!(stream(60, 200), (200, 2, 3), "4 bytes of head, 3 lines, 4 bytes of tail");
        assert_eq!(stream(70, 20), (20, 1, 0), "inside one line");
        assert_eq!(stream(70, 100), (100, 2, 0), "two lines, neither whole");
        let zero = |at, len| data(cost(&region, || drop(region.stream_zero(Purpose::Data, at, len))));
        assert_eq!(zero(64, 128), (128, 0, 2));
        assert_eq!(zero(65, 128), (128, 2, 1));
        let fenced = cost(&region, || region.fence(Flushed::none()).ignore());
        assert_eq!((fenced.fences, fenced.bytes(), fenced.lines()), (1, 0, 0));
        let word = cost(&region, || region.persist_u64(Purpose::Journal, 8, 5).ignore());
        let journal = word.of(Purpose::Journal);
        assert_eq!((journal.bytes, journal.lines_flushed, word.fences), (8, 1, 1));
        assert_eq!(word.of(Purpose::Data), nvm::Written::default());
    }
}

#[test]
fn volumes_are_counted_apart_and_for_as_long_as_the_zone_is_open() {
    let zone = Zone::anonymous(BYTES, &OpenOptions::default()).unwrap();
    let a = zone.create_volume("a", VolumeKind::Native, Some(SEGMENT)).unwrap();
    let b = zone.create_volume("b", VolumeKind::Native, Some(SEGMENT)).unwrap();
    let before = (a.account(), b.account());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..1000).for_each(|_| a.store(Purpose::Journal, 0, &[0; 10])));
        }
    });
    assert_eq!((a.account() - before.0).of(Purpose::Journal).bytes, 80_000);
    assert_eq!(b.account(), before.1);
    let total = a.account();
    drop(a);
    assert_eq!(zone.volume("a").unwrap().account(), total);
}

#[test]
fn wear_counts_what_is_sent_to_the_medium() {
    let options = OpenOptions { wear: true, wear_granule: 256, ..OpenOptions::default() };
    let region = region(&options);
    let zone = region.zone();
    let before = zone.wear().unwrap();
    region.store(Purpose::Data, 0, &[1; 1000]);
    assert_eq!(zone.wear().unwrap(), before, "a cached store is not sent");
    drop(region.flush(Purpose::Data, 200, 100));
    drop(region.stream(Purpose::Data, 1024, &[2; 512]));
    drop(region.stream(Purpose::Data, 1024, &[2; 64]));
    let (start, after) = ((region.entry().start / 256) as usize, zone.wear().unwrap());
    let worn: Vec<u32> = (0..8).map(|i| after.writes[start + i] - before.writes[start + i]).collect();
    assert_eq!(worn, [1, 1, 0, 0, 2, 1, 0, 0]);
    assert_eq!(after.total() - before.total(), 5);
    assert!(Zone::anonymous(BYTES, &OpenOptions::default()).unwrap().wear().is_none());
}

#[test]
fn an_emulated_technology_takes_its_time() {
    let latency = nvm::Latency {
        read_first_ns: 20_000,
        read_next_ns: 10_000,
        write_first_ns: 30_000,
        write_next_ns: 5_000,
    };
    let region = region(&OpenOptions { latency: Some(latency), ..OpenOptions::default() });
    let at_least_us = |us: u128, operation: &dyn Fn()| {
        let clock = std::time::Instant::now();
        operation();
        let took_us = clock.elapsed().as_micros();
        // Upper bounds would fail on a busy machine.
        assert!(took_us * 100 >= us * 95, "{took_us} µs, expected {us}");
    };
    at_least_us(20, &|| _ = region.load_u64(0));
    at_least_us(20 + 63 * 10, &|| _ = region.bytes(0, 4096));
    at_least_us(20 + 10, &|| _ = region.bytes_of_which(2, 0, 4096));
    let looks = (0..100).map(|_| {
        let clock = std::time::Instant::now();
        let _ = region.bytes_of_which(2, 0, 4096);
        clock.elapsed().as_micros()
    });
    assert!(looks.min() < Some(20 + 63 * 10), "two lines of a block are not all of it");
    at_least_us(30, &|| drop(region.flush(Purpose::Data, 0, LINE)));
    at_least_us(30 + 63 * 5, &|| drop(region.stream(Purpose::Data, 0, &[1; 4096])));
    // A busy machine may take its time for any of these, not for all.
    let fastest = (0..100).map(|_| {
        let clock = std::time::Instant::now();
        (0..100).for_each(|_| region.store_u64(Purpose::Data, 0, 1));
        clock.elapsed().as_micros()
    });
    assert!(fastest.min() < Some(100 * 30), "stores are cached: they wait for nothing");
}
