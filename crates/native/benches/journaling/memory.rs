//! What the caches of a mounted volume hold in DRAM, beside the 32 B that PMFS keeps for each free block (HMFS §1).

use native::{FormatOptions, Volume};
use nvm::{OpenOptions, VolumeKind, Zone};
use vfs::{Caller, FallocateMode, FileSystem, OpenFlags, ROOT_INO};

use crate::Plan;
use crate::dram::{self, Dram};
use crate::place::{self, Temporary};

const BLOCK: u64 = 4096;
/// Of DRAM, for each free block of a PMFS.
const PMFS_FREE_BLOCK: f64 = 32.0;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// Files in a directory.
const CROWD: usize = 10_000;

/// What a volume is filled with.
struct Load {
    name: String,
    files: usize,
    bytes_each: u64,
    is_written: bool,
    /// How often that would be a million files, or 100 GiB.
    times: f64,
}

pub(crate) fn run(plan: &Plan) {
    let million = if plan.quick { 100_000 } else { 1_000_000 };
    // As much as a machine with 16 GiB has room for.
    let gib = if plan.quick { 1 } else { 8 };
    let written = if plan.quick { 1 } else { 4 };
    let few = million / 5;
    let load = |name: String, files: usize, bytes_each: u64, is_written, times: f64| Load {
        name,
        files,
        bytes_each,
        is_written,
        times,
    };
    let loads = [
        load(format!("{million} files of 100 B"), million, 100, true, 1e6 / million as f64),
        load(format!("{few} files of 4 KiB"), few, BLOCK, true, 1e6 / few as f64),
        load(format!("{gib} files of 1 GiB, preallocated"), gib, 1 << 30, false, 100.0 / gib as f64),
        load(format!("{written} files of 1 GiB, written"), written, 1 << 30, true, 100.0 / written as f64),
    ];
    println!(
        "\nDRAM of a mounted volume, MiB: caches when it is mounted anew, and when everything in it has been looked at;"
    );
    println!(
        "then extrapolated to a million files, or 100 GiB (what is there once is scaled, too: an upper bound);"
    );
    println!("and what PMFS would need for as many blocks while they are free");
    println!(
        "{:<34} {:>13} {:>10} {:>10} {:>12} {:>8} {:>12} {:>14}",
        "filled with", "mounted anew", "caches", "tables", "all it took", "", "both", "PMFS"
    );
    for load in &loads {
        measure(plan, load);
    }
}

/// Fills a volume here and opens it anew in another process, which has nothing else in memory.
fn measure(plan: &Plan, load: &Load) {
    let data = load.files as u64 * if load.bytes_each > 128 { load.bytes_each } else { 0 };
    let room = (data + data / 16 + load.files as u64 * 400 + (1 << 30)).next_multiple_of(nvm::SEGMENT);
    if place::memory_available() < room + (1 << 30) {
        println!("{:<34} left out: needs {} GiB of memory", load.name, room >> 30);
        return;
    }
    let file = Temporary::new(&plan.dir, "memory");
    let zone = Zone::create(&file.path, room + nvm::SEGMENT, false, &OpenOptions::default());
    let zone = zone.unwrap_or_else(|error| panic!("{error}"));
    let region =
        zone.create_volume(dram::VOLUME, VolumeKind::Native, None).unwrap_or_else(|error| panic!("{error}"));
    native::format(&region, &FormatOptions::default()).expect("formatting");
    let volume = Volume::open(region, &place::options()).expect("mounting");
    fill(&volume, load);
    volume.close().expect("unmounting");
    drop(volume);
    drop(zone);
    let Dram { mounted, caches, tables, process } = dram::of(&file.path, None);
    let [mounted, caches, tables, process] = [mounted, caches, tables, process].map(|bytes| bytes as f64);
    // A million files are compared with as many free blocks as they have; 100 GiB with 100 GiB.
    let blocks = load.files as f64 * load.times * load.bytes_each.div_ceil(BLOCK) as f64;
    let mib = |bytes: f64| format!("{:.2}", bytes / f64::from(1 << 20));
    println!(
        "{:<34} {:>13} {:>10} {:>10} {:>12} {:>8} {:>12} {:>14}",
        load.name,
        mib(mounted),
        mib(caches),
        mib(tables),
        mib(process),
        format!("× {}", load.times),
        mib((caches + tables) * load.times),
        mib(blocks * PMFS_FREE_BLOCK),
    );
}

fn name(number: usize) -> String {
    format!("{number:07}")
}

fn fill(volume: &Volume, load: &Load) {
    let root = Caller::root();
    let piece = vec![0x5A; load.bytes_each.min(1 << 20) as usize];
    let mut dir = ROOT_INO;
    for number in 0..load.files {
        if number % CROWD == 0 {
            dir = volume.mkdir(&root, ROOT_INO, format!("d{number}").as_bytes(), 0o755).expect("mkdir").ino;
        }
        let file = volume.create(&root, dir, name(number).as_bytes(), 0o644, RW).expect("create").handle;
        if load.is_written {
            for at in (0..load.bytes_each).step_by(piece.len()) {
                let written = volume.write(&root, file, at, &piece).expect("write");
                assert_eq!(written, piece.len(), "the volume is full");
            }
        } else {
            volume.fallocate(&root, file, FallocateMode::empty(), 0, load.bytes_each).expect("fallocate");
        }
        volume.release(file).expect("close");
    }
}
