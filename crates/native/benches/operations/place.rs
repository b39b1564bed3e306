//! Where the benchmark works: a zone in a file that is gone afterwards, prepared names, random orders.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use native::{FormatOptions, MountOptions, Volume, format};
use nvm::{OpenOptions, Purpose, Region, VolumeKind, Zone};

/// Where files are in memory.
const MEMORY: &str = "/dev/shm";

/// The argument with which this program starts itself in a mount namespace of its own.
pub(crate) const OWN_MOUNTS: &str = "--own-mounts";

/// A directory in memory. Root gets a tmpfs with pages of 2 MiB, as DAX has them: this program starts itself anew where
/// nobody else sees what is mounted, and it goes with the process.
pub(crate) fn memory(has_own_mounts: bool) -> PathBuf {
    use rustix::mount::{MountFlags, mount};
    let why_not = if has_own_mounts {
        let options = Some(c"huge=always,size=90%");
        match mount("amberfs-bench", MEMORY, "tmpfs", MountFlags::empty(), options) {
            Ok(()) => {
                println!("zones are in a tmpfs of huge pages that only this process sees");
                return PathBuf::from(MEMORY);
            }
            Err(error) => error.to_string(),
        }
    } else if rustix::process::geteuid().is_root() {
        let program = std::env::current_exe().expect("this program");
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--"]).arg(program);
        let error = command.args(std::env::args_os().skip(1)).arg(OWN_MOUNTS).exec();
        format!("unshare: {error}")
    } else {
        String::from("only root can mount one")
    };
    println!("zones are in {MEMORY} as it is, in no tmpfs of huge pages: {why_not}");
    PathBuf::from(MEMORY)
}

/// A path that is removed when this is dropped.
pub(crate) struct Temporary {
    pub(crate) path: PathBuf,
}

impl Temporary {
    pub(crate) fn new(dir: &Path, what: &str) -> Temporary {
        Temporary { path: dir.join(format!("amberfs-bench-{}-{what}", std::process::id())) }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = match self.path.is_dir() {
            true => std::fs::remove_dir_all(&self.path),
            false => std::fs::remove_file(&self.path),
        };
    }
}

/// A zone of room for volumes of `bytes` in all, and its file.
pub(crate) fn zone(dir: &Path, what: &str, bytes: u64) -> (Temporary, Zone) {
    let file = Temporary::new(dir, what);
    let zone = Zone::create(&file.path, bytes + nvm::SEGMENT, false, &OpenOptions::default())
        .unwrap_or_else(|error| panic!("{error}"));
    (file, zone)
}

/// A region that is faulted in, so that no operation pays for it.
pub(crate) fn region(zone: &Zone, name: &str, bytes: u64) -> Region {
    let region = zone.create_volume(name, VolumeKind::Native, Some(bytes)).expect("the zone has room");
    region.fill_zero(Purpose::Data, 0, region.len());
    region
}

/// How volumes are mounted here: checkpoints come when the log fills and when the benchmark makes one.
pub(crate) fn options() -> MountOptions {
    MountOptions { commit_interval: Duration::from_secs(24 * 3600), ..MountOptions::default() }
}

/// A new volume in `region`.
pub(crate) fn volume(region: Region) -> Volume {
    format(&region, &FormatOptions::default()).expect("formatting");
    Volume::open(region, &options()).expect("mounting")
}

/// Names of one length, in one piece of memory, each with a NUL behind it.
pub(crate) struct Names {
    bytes: Vec<u8>,
    each: usize,
}

impl Names {
    pub(crate) fn new(prefix: &str, count: usize) -> Names {
        Names::numbered(prefix, 0..count as u64)
    }

    /// Names with these numbers, below 10^7.
    pub(crate) fn numbered(prefix: &str, numbers: impl Iterator<Item = u64>) -> Names {
        let each = prefix.len() + 8;
        let mut bytes = Vec::with_capacity(numbers.size_hint().0 * each);
        for number in numbers {
            bytes.extend_from_slice(format!("{prefix}{number:07}\0").as_bytes());
        }
        Names { bytes, each }
    }

    /// The names of these numbers, in this order: a caller has its name at hand.
    pub(crate) fn gather(&self, numbers: &[u32]) -> Names {
        let places = numbers.iter().map(|number| *number as usize * self.each);
        let bytes = places.flat_map(|at| &self.bytes[at..at + self.each]).copied().collect();
        Names { bytes, each: self.each }
    }

    /// Name `number`, without its NUL.
    pub(crate) fn get(&self, number: usize) -> &[u8] {
        &self.bytes[number * self.each..(number + 1) * self.each - 1]
    }

    /// Name `number` for a system call.
    pub(crate) fn get_c(&self, number: usize) -> &std::ffi::CStr {
        let bytes = &self.bytes[number * self.each..(number + 1) * self.each];
        std::ffi::CStr::from_bytes_with_nul(bytes).expect("a NUL at the end, and nowhere else")
    }
}

/// The numbers below `count` in an order that `seed` chooses (SplitMix64, Fisher-Yates).
pub(crate) fn shuffled(count: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut random = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    };
    let mut numbers: Vec<u32> = (0..count as u32).collect();
    for last in (1..count).rev() {
        numbers.swap(last, (random() % (last as u64 + 1)) as usize);
    }
    numbers
}

/// Bytes of memory that programs can still take.
pub(crate) fn memory_available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

/// One line on the machine and the run.
pub(crate) fn describe(dir: &Path, rounds: usize) -> String {
    let (_file, zone) = zone(dir, "look", nvm::SEGMENT);
    let info = zone.info();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load.split(' ').take(3).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "zone in {} ({}, {}); {threads} processors, load {}; medians of {} rounds, quartiles in brackets",
        dir.display(),
        info.backing,
        info.persist,
        load.join(" "),
        rounds
    )
}
