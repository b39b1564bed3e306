//! What garbage collection costs who works beside it: how fast segments are emptied, and how long an overwrite takes
//! meanwhile at the worst, where files alone have the blocks and where snapshots have them, too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use native::Volume;
use vfs::{Caller, FileSystem, Ino, OpenFlags, ROOT_INO};

use crate::Plan;
use crate::place::{self, shuffled};
use crate::table::{Bound, Table};

const BLOCK: usize = 4096;
/// Files, of which two thirds go, and the bytes of each.
const FILES: u32 = 12_000;
const BYTES: usize = 60 << 10;
/// Snapshots that have what is left.
const KEPT: [usize; 3] = [0, 1, 10];
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

pub(crate) fn run(plan: &Plan, table: &mut Table) {
    let rows = ["empty segments", "overwrite 4 KiB beside it: p99", "overwrite 4 KiB beside it: the longest"];
    if !plan.wants(&rows) {
        return;
    }
    for kept in KEPT {
        let mut found: [Vec<f64>; 4] = Default::default();
        for _ in 0..plan.rounds.min(5) {
            let measured = round(plan, kept);
            found.iter_mut().zip(measured).for_each(|(figures, figure)| figures.push(figure));
        }
        let [speed, p99, longest, alone] = found;
        let row = |name: &str| format!("{name}, {kept} snapshots");
        table.figure(&row(rows[0]), "MiB/s", &speed, None::<Bound>, String::new());
        table.figure(&row(rows[1]), "µs", &p99, None::<Bound>, String::new());
        table.figure(&row(rows[2]), "µs", &longest, None::<Bound>, String::new());
        table.figure(
            &row("overwrite 4 KiB, nothing beside it: p99"),
            "µs",
            &alone,
            None::<Bound>,
            String::new(),
        );
    }
}

/// MiB emptied per second; p99 and the longest of overwrites beside it, p99 without, µs.
fn round(plan: &Plan, kept: usize) -> [f64; 4] {
    let (zone_file, zone) = place::zone(&plan.dir, "collecting", 1536 << 20);
    let volume = place::volume(place::region(&zone, "collecting", 1472 << 20));
    drop(zone_file); // the mapping lives on
    let root = Caller::root();
    let bytes = vec![0x5A; BYTES];
    let make = |n: u32| -> Ino {
        let file = volume.create(&root, ROOT_INO, &name(n), 0o644, RW).expect("create");
        volume.write(&root, file.handle, 0, &bytes).expect("write");
        volume.release(file.handle).expect("release");
        file.attr.ino
    };
    let files: Vec<Ino> = (0..FILES).map(make).collect();
    for n in (0..FILES).filter(|n| n % 3 != 0) {
        volume.unlink(&root, ROOT_INO, &name(n)).expect("unlink");
    }
    for n in 0..kept {
        volume.take_snapshot(&format!("kept {n}"), "").expect("a snapshot");
    }
    volume.checkpoint().expect("checkpoint");
    let left: Vec<Ino> = files.into_iter().step_by(3).collect();
    let mut alone = latencies(&volume, &left, &mut (0..20_000).map(|_| true));
    let done = AtomicBool::new(false);
    let (mut beside, speed) = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            latencies(&volume, &left, &mut std::iter::from_fn(|| Some(!done.load(Ordering::Relaxed))))
        });
        let begun = Instant::now();
        let emptied = volume.collect_garbage().expect("garbage collection");
        let seconds = begun.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
        (worker.join().expect("the worker"), emptied as f64 * 2.0 / seconds)
    });
    let longest = beside.iter().copied().fold(0.0, f64::max);
    [speed, p99(&mut beside), longest, p99(&mut alone)]
}

fn name(n: u32) -> Vec<u8> {
    format!("file {n}").into_bytes()
}

/// How long each random overwrite took, µs, while `goes_on`.
fn latencies(volume: &Volume, files: &[Ino], goes_on: &mut dyn Iterator<Item = bool>) -> Vec<f64> {
    let root = Caller::root();
    let bytes = [0xA5; BLOCK];
    let order = shuffled(files.len(), 3);
    let mut all = Vec::new();
    for (file, n) in order.iter().cycle().zip(0u64..).take_while(|_| goes_on.next() == Some(true)) {
        let handle = volume.open(&root, files[*file as usize], RW).expect("open");
        let begun = Instant::now();
        volume.write(&root, handle, n % 15 * BLOCK as u64, &bytes).expect("write");
        all.push(begun.elapsed().as_secs_f64() * 1e6);
        volume.release(handle).expect("release");
    }
    all
}

fn p99(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() * 99 / 100).copied().unwrap_or(0.0)
}
