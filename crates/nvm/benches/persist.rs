//! What one store costs on its way to the medium, beside the bare instructions that it takes.
//!
//! `cargo bench -p amberfs-nvm` measures in memory; give it a path to measure a zone there:
//! `cargo bench -p amberfs-nvm -- /dev/shm/zone`. Each row takes turns with its floor, so that a busy
//! machine slows both; shown are the medians of the rounds and of their ratios.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use nvm::{OpenOptions, PersistMethod, Purpose, Region, VolumeKind, Zone};

/// Rounds, and turns of each. By `msync` a turn takes a thousand times as long.
const DIRECT: (usize, usize) = (101, 2000);
const MSYNC: (usize, usize) = (5, 100);
/// Addresses go round through this much, so that lines are cold as in a file system.
const SPAN: u64 = 32 << 20;

/// Mean nanoseconds of one turn.
fn time_ns(turns: usize, mut turn: impl FnMut(u64)) -> f64 {
    let clock = Instant::now();
    for number in 0..turns as u64 {
        turn(number);
    }
    clock.elapsed().as_nanos() as f64 / turns as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn row((rounds, turns): (usize, usize), name: &str, mut ours: impl FnMut(u64), mut floor: impl FnMut(u64)) {
    let (mut ours_ns, mut floor_ns, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    time_ns(turns, &mut ours);
    time_ns(turns, &mut floor);
    for round in 0..rounds {
        // Alternate who goes first: neither always finds the other's leftovers in the caches.
        let (a, b) = if round % 2 == 0 {
            let a = time_ns(turns, &mut ours);
            (a, time_ns(turns, &mut floor))
        } else {
            let b = time_ns(turns, &mut floor);
            (time_ns(turns, &mut ours), b)
        };
        ours_ns.push(a);
        floor_ns.push(b);
        ratios.push(a / b);
    }
    let (a, b, ratio) = (median(&mut ours_ns), median(&mut floor_ns), median(&mut ratios));
    println!("{name:<34} {a:>9.1} {b:>9.1} {:>+8.1} %", (ratio - 1.0) * 100.0);
}

/// The line-aligned part of a buffer.
fn lines(buffer: &mut [u8]) -> &mut [u8] {
    let head = buffer.as_ptr().align_offset(64);
    &mut buffer[head..head + SPAN as usize]
}

fn main() {
    // `cargo bench` passes flags of its own.
    let path = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let options = OpenOptions { prefault: true, ..OpenOptions::default() };
    let bytes = 2 * SPAN;
    let zone = match &path {
        Some(path) => Zone::create(Path::new(path), bytes, false, &options),
        None => Zone::anonymous(bytes, &options),
    };
    let zone = zone.unwrap_or_else(|error| panic!("{error}"));
    let info = zone.info();
    println!("{} ({}), {}: {}", info.path.display(), info.backing, info.persist, info.persist_reason);
    let region = zone.create_volume("bench", VolumeKind::Native, Some(SPAN)).expect("a fresh zone has room");
    // The floor works on the same kind of memory: another volume's would need unsafe, so on an anonymous
    // buffer, touched once.
    let mut buffer = vec![1u8; SPAN as usize + 64];
    let buffer = lines(&mut buffer);
    let mut words = vec![0u64; SPAN as usize / 8];
    let block = vec![0xA5u8; 4096];
    run(&region, buffer, &mut words, &block);
    drop(region);
    if let Some(path) = path {
        let _ = std::fs::remove_file(path);
    }
}

fn run(region: &Region, buffer: &mut [u8], words: &mut [u64], block: &[u8]) {
    println!("{:<34} {:>9} {:>9} {:>10}", "", "ns", "floor ns", "over");
    let size = if region.persist_method() == PersistMethod::Msync { MSYNC } else { DIRECT };
    let spot = |number: u64, step: u64| number.wrapping_mul(step) % SPAN;
    row(
        size,
        "store 8 B + flush + fence",
        |number| {
            let at = spot(number, 4160) & !63;
            region.store_u64(Purpose::Journal, at, number);
            let flushed = region.flush(Purpose::Journal, at, 8);
            region.fence(flushed).ignore();
        },
        |number| nvm::floor_store_u64(&mut words[(spot(number, 4160) & !63) as usize / 8], number),
    );
    for (name, len) in
        [("stream 64 B + fence", 64u64), ("stream 256 B + fence", 256), ("stream 4 KiB + fence", 4096)]
    {
        let step = len.max(4096) + if len < 4096 { 64 } else { 0 };
        let at = move |number| spot(number, step) & !(len - 1);
        let from = &block[..len as usize];
        row(
            size,
            name,
            |number| {
                let flushed = region.stream(Purpose::Data, at(number), black_box(from));
                region.fence(flushed).ignore();
            },
            |number| {
                let at = at(number) as usize;
                nvm::floor_stream(&mut buffer[at..at + len as usize], black_box(from));
            },
        );
    }
    row(
        size,
        "store 4 KiB (memcpy)",
        |number| region.store(Purpose::Data, spot(number, 4096), black_box(block)),
        |number| {
            let at = spot(number, 4096) as usize;
            buffer[at..at + 4096].copy_from_slice(black_box(block));
        },
    );
    let mut into = vec![0u8; 4096];
    let mut floor_into = vec![0u8; 4096];
    row(
        size,
        "read 4 KiB (memcpy)",
        |number| {
            region.read(spot(number, 4096), &mut into);
            black_box(&mut into);
        },
        |number| {
            let at = spot(number, 4096) as usize;
            floor_into.copy_from_slice(&buffer[at..at + 4096]);
            black_box(&mut floor_into);
        },
    );
    row(
        size,
        "load_u64, hot",
        |number| {
            black_box(region.load_u64(spot(number, 8) & 4095));
        },
        |number| {
            black_box(words[(spot(number, 8) & 4095) as usize / 8]);
        },
    );
    row(
        size,
        "store_u64, hot",
        |number| region.store_u64(Purpose::Metadata, spot(number, 8) & 4095, number),
        |number| {
            words[(spot(number, 8) & 4095) as usize / 8] = number;
            black_box(&mut words[0]);
        },
    );
    row(
        size,
        "operation guard",
        |number| {
            let _operation = nvm::operation("bench");
            black_box(number);
        },
        |number| {
            black_box(number);
        },
    );
}
