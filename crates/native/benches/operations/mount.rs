//! Time to mount the volume of a million files: after a clean end, and after the process that had it mounted died.

use std::path::Path;
use std::time::Instant;

use native::Volume;
use nvm::{OpenOptions, Zone};
use vfs::{Caller, FileSystem, Ino, OpenFlags, ROOT_INO};

use crate::Plan;
use crate::measure::cost;
use crate::place::{self, Names, shuffled};
use crate::table::{Bound, Series, Table};

/// The argument with which this program starts itself to die with a volume mounted.
pub(crate) const CRASH: &str = "--die-mounted";
/// Names of the volume and of its directory.
pub(crate) const VOLUME: &str = "million";
pub(crate) const DIRECTORY: &[u8] = b"d";

const LIMIT_MS: f64 = 50.0;
const CREATE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE).union(OpenFlags::EXCLUSIVE);

fn mounted(path: &Path) -> Volume {
    let zone = Zone::open(path, &OpenOptions::default()).expect("the zone");
    Volume::open(zone.volume(VOLUME).expect("the volume"), &place::options()).expect("mounting")
}

fn directory(volume: &Volume) -> Ino {
    volume.lookup(&Caller::root(), ROOT_INO, DIRECTORY).expect("the directory").ino
}

/// Mounts the volume, makes `changes` files and dies: what the server's crash leaves.
pub(crate) fn crash(path: &Path, changes: usize) -> ! {
    let volume = mounted(path);
    let dir = directory(&volume);
    let names = Names::new(&format!("late-{}-", std::process::id()), changes);
    for number in 0..changes {
        let file = volume.create(&Caller::root(), dir, names.get(number), 0o644, CREATE).expect("create");
        volume.release(file.handle).expect("close");
    }
    std::process::exit(0); // runs no destructor
}

fn crashed(path: &Path, changes: usize) {
    let program = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(program);
    let status = command.arg(CRASH).arg(path).arg(changes.to_string()).status().expect("a process");
    assert!(status.success(), "the process that was to die mounted failed");
}

/// Milliseconds to open the zone and mount the volume, and the volume.
fn timed(path: &Path) -> (f64, Volume) {
    let began = Instant::now();
    let volume = mounted(path);
    (began.elapsed().as_secs_f64() * 1000.0, volume)
}

pub(crate) fn run(plan: &Plan, table: &mut Table, path: &Path, names: &Names) {
    if !plan.wants(&["mount, after clean unmount", "mount, after a crash", "stat, first since the mount"]) {
        return;
    }
    let mut clean = Vec::new();
    let mut first_looks = Series::default();
    let order = shuffled(1_000_000, 7);
    for round in 0..plan.rounds {
        let (ms, volume) = timed(path);
        assert!(volume.recovery().was_clean);
        clean.push(ms);
        let (root, dir, count) = (Caller::root(), directory(&volume), 20_000);
        let names = names.gather(&order[round * count % 1_000_000..][..count]);
        let look = |n: usize| {
            std::hint::black_box(volume.lookup(&root, dir, names.get(n)).expect("stat"));
        };
        first_looks.samples.push(cost(count, || (0..count).for_each(look)).into());
        volume.close().expect("closing");
    }
    table.operation("stat, first since the mount, 10^6", &[], &first_looks);
    table.figure(
        "mount, after clean unmount",
        "ms",
        &clean,
        Some(Bound::Most(LIMIT_MS)),
        format!("10^6 files, {} GiB", plan.volume_bytes >> 30),
    );
    for changes in [0, 10_000, 100_000] {
        let (mut times, mut replayed, mut log) = (Vec::new(), 0, 0);
        for _ in 0..plan.rounds.min(2) {
            crashed(path, changes);
            let (ms, volume) = timed(path);
            let recovery = volume.recovery();
            assert!(!recovery.was_clean);
            times.push(ms);
            (replayed, log) = (recovery.transactions_replayed, recovery.log_bytes_replayed);
            volume.close().expect("closing");
        }
        let base = crate::measure::spread(clean.iter().copied()).median;
        let each = (crate::measure::spread(times.iter().copied()).median - base) * 1000.0;
        let note = match replayed {
            0 => String::from("nothing to replay"),
            _ => format!(
                "{replayed} transactions replayed, {} KiB of log: {:.2} µs each",
                log >> 10,
                each / replayed as f64
            ),
        };
        let limit = (replayed == 0).then_some(Bound::Most(LIMIT_MS));
        table.figure(&format!("mount, after a crash, {changes} creates"), "ms", &times, limit, note);
    }
}
