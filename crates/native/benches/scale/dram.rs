//! DRAM of a mounted volume of which everything has been looked at, in a process that has nothing else in memory.

use std::path::Path;

use native::{MountOptions, Volume};
use nvm::{OpenOptions, Zone};
use vfs::{Caller, FileKind, FileSystem, Ino, OpenFlags, ROOT_INO};

use crate::place;

/// The name of the volume in each zone.
pub(crate) const VOLUME: &str = "volume";
/// The argument with which this program starts itself to look at a volume.
pub(crate) const LOOK: &str = "--look";
/// Entries of a directory that are listed at a time.
const LISTED: usize = 1000;

/// Bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Dram {
    /// Caches when it was mounted anew.
    pub(crate) mounted: u64,
    /// Caches when everything had been looked at, and tables.
    pub(crate) caches: u64,
    pub(crate) tables: u64,
    /// All that the process took of its own meanwhile, mapped files not counted.
    pub(crate) process: u64,
}

/// That of the volume in the zone at `path`, which nobody has open, with its caches bounded or not.
pub(crate) fn of(path: &Path, cache_bytes: Option<u64>) -> Dram {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this program"));
    let output = command
        .arg(LOOK)
        .arg(path)
        .args(cache_bytes.map(|bytes| bytes.to_string()))
        .output()
        .expect("starting this program again");
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [mounted, caches, tables, process] = figures[..] else {
        panic!("looking at the volume failed: {}", String::from_utf8_lossy(&output.stderr));
    };
    Dram { mounted, caches, tables, process }
}

/// What this program does when it is started to look at the volume in `zone`: it looks each file up and reads a byte of
/// every MiB, so that every node has been used, and says what that took.
pub(crate) fn look(zone: &Path, cache_bytes: Option<u64>) -> ! {
    let zone = Zone::open(zone, &OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let before = own_bytes();
    let options = MountOptions { cache_bytes, ..place::options() };
    let volume = Volume::open(zone.volume(VOLUME).expect("the volume"), &options).expect("mounting");
    let mounted = volume.stats();
    look_at(&volume, ROOT_INO);
    let stats = volume.stats();
    println!(
        "{} {} {} {}",
        mounted.cache_bytes,
        stats.cache_bytes,
        stats.table_bytes,
        own_bytes().saturating_sub(before)
    );
    std::process::exit(0);
}

/// Lists a directory piece by piece, and looks at what is in it.
fn look_at(volume: &Volume, dir: Ino) {
    let mut from = 0;
    let mut found = Vec::with_capacity(LISTED);
    loop {
        found.clear();
        let mut next = from;
        let mut sink = |entry: vfs::DirEntry<'_>| {
            if found.len() == LISTED {
                return false;
            }
            next = entry.next;
            found.push((entry.ino, entry.kind, entry.name == b"." || entry.name == b".."));
            true
        };
        volume.readdir(dir, from, &mut sink).expect("readdir");
        if found.is_empty() {
            return;
        }
        from = next;
        for (ino, kind, is_itself) in &found {
            match kind {
                FileKind::Directory if !is_itself => look_at(volume, *ino),
                FileKind::Regular => look_into(volume, *ino),
                _ => {}
            }
        }
    }
}

fn look_into(volume: &Volume, ino: Ino) {
    let size = volume.getattr(ino).expect("getattr").size;
    let file = volume.open(&Caller::root(), ino, OpenFlags::READ).expect("open");
    for at in (0..size).step_by(1 << 20) {
        volume.read(file, at, &mut [0]).expect("read");
    }
    volume.release(file).expect("close");
}

/// Bytes of memory that this process has of its own, mapped files not counted.
fn own_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(0, |kib| kib << 10)
}
