//! How the cost of an operation follows the size of the volume: files in it, bytes in a file, data in all.
//!
//! ```text
//! cargo bench -p amberfs-native --bench scale                            all curves (about 20 GiB of memory)
//! cargo bench -p amberfs-native --bench scale -- --quick                 up to 10^5 files, 64 GiB of span, 1 GiB of data
//! cargo bench -p amberfs-native --bench scale -- files --files 10K,10M   only these
//! ```
//! Words choose among `files` (in one directory, and 1000 in each of many), `sparse` and `data`. `--files N,…`, `--span SIZE,…`
//! and `--data SIZE,…` set the sizes: the first is the small one, beside which each other stands. `--rounds N` sets the rounds, `--cache SIZE` bounds the caches of all volumes, `--dir PATH` puts the zones there. Where zones are otherwise: see
//! the benchmark `operations`.
//!
//! How it measures: volumes are called as a library, on one thread, with `durability=op`. A large volume and the small one
//! are there at the same time and take turns in every round; each figure is a median of CPU time, with that of the
//! checkpoint behind the operations, and its ratio is that to the small one's median of the same rounds. Files and blocks
//! are visited in random order, some thousand in a round. What is too large for the memory that is there is left out, and
//! the run says so. DRAM is that of another process, which mounts the volume, looks at everything in it, and ends.

mod blocks;
mod curve;
#[allow(dead_code, reason = "the other benchmark uses the rest")]
mod dram;
mod files;
#[path = "../operations/measure.rs"]
#[allow(dead_code, reason = "the other benchmarks use the rest")]
mod measure;
#[path = "../operations/place.rs"]
#[allow(dead_code, reason = "the other benchmarks use the rest")]
mod place;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use native::{FormatOptions, MountOptions, Volume, format};
use nvm::{OpenOptions, Purpose, VolumeKind, Zone};

use crate::blocks::Blocks;
use crate::curve::Curve;
use crate::files::{Files, Width};
use crate::place::Temporary;

/// Bytes of the log of each volume, so that none makes checkpoints more often than another.
const LOG: u64 = 64 << 20;

/// What the command line asks for.
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// Where the zones go.
    pub(crate) dir: PathBuf,
    /// Of the caches of each volume.
    pub(crate) cache_bytes: Option<u64>,
    files: Vec<u64>,
    spans: Vec<u64>,
    data: Vec<u64>,
    words: Vec<String>,
}

const WORDS: [&str; 3] = ["files", "sparse", "data"];

impl Plan {
    fn from_arguments() -> Result<Plan, String> {
        let mut plan = Plan {
            rounds: 0,
            dir: PathBuf::new(),
            cache_bytes: None,
            files: Vec::new(),
            spans: Vec::new(),
            data: Vec::new(),
            words: Vec::new(),
        };
        let (mut dir, mut has_own_mounts, mut quick) = (None, false, false);
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--bench" => {} // cargo's own
                "--quick" => quick = true,
                "--files" => plan.files = sizes(&value()?, 1000)?,
                "--span" => plan.spans = sizes(&value()?, 1024)?,
                "--data" => plan.data = sizes(&value()?, 1024)?,
                "--cache" => plan.cache_bytes = sizes(&value()?, 1024)?.pop(),
                "--rounds" => plan.rounds = value()?.parse().map_err(|_| "--rounds needs a number")?,
                "--dir" => dir = Some(value()?.into()),
                place::OWN_MOUNTS => has_own_mounts = true,
                word if WORDS.contains(&word) => plan.words.push(argument),
                other => return Err(format!("{other:?} is nothing this knows: {}", WORDS.join(", "))),
            }
        }
        let otherwise = |given: &mut Vec<u64>, quick_ones: &[u64], all: &[u64]| {
            if given.is_empty() {
                *given = if quick { quick_ones } else { all }.to_vec();
            }
        };
        otherwise(&mut plan.files, &[10_000, 100_000], &[10_000, 100_000, 1_000_000, 10_000_000]);
        otherwise(&mut plan.spans, &[1 << 30, 64 << 30], &[1 << 30, 32 << 30, 1 << 40]);
        otherwise(&mut plan.data, &[256 << 20, 1 << 30], &[256 << 20, 1 << 30, 4 << 30, 16 << 30]);
        if plan.rounds == 0 {
            plan.rounds = if quick { 3 } else { 9 };
        }
        plan.dir = dir.unwrap_or_else(|| place::memory(has_own_mounts));
        Ok(plan)
    }

    /// How volumes are mounted.
    pub(crate) fn options(&self) -> MountOptions {
        MountOptions { cache_bytes: self.cache_bytes, ..place::options() }
    }

    fn wants(&self, word: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|other| other == word)
    }
}

/// Sizes like 10K or 1G, `step` from each unit to the next, ascending.
fn sizes(text: &str, step: u64) -> Result<Vec<u64>, String> {
    let size = |text: &str| {
        let digits = text.trim_end_matches(char::is_alphabetic);
        let power = ["", "K", "M", "G", "T"].iter().position(|unit| *unit == &text[digits.len()..])?;
        digits.parse::<u64>().ok()?.checked_mul(step.pow(power as u32)).filter(|size| *size > 0)
    };
    let mut sizes: Vec<u64> = text
        .split(',')
        .map(|text| size(text).ok_or_else(|| format!("{text:?} is no size like 10K, 1M, 16G")))
        .collect::<Result<_, _>>()?;
    sizes.sort_unstable();
    Ok(sizes)
}

/// A new volume of `bytes` in a zone of its own, faulted in.
pub(crate) fn open(plan: &Plan, bytes: u64) -> (Temporary, Zone, Volume) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let place = Temporary::new(&plan.dir, &format!("scale-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    let zone = Zone::create(&place.path, bytes + nvm::SEGMENT, false, &OpenOptions::default());
    let zone = zone.unwrap_or_else(|error| panic!("{error}"));
    let region = zone.create_volume(dram::VOLUME, VolumeKind::Native, None).expect("the zone has room");
    region.fill_zero(Purpose::Data, 0, region.len());
    format(&region, &FormatOptions { log_bytes: Some(LOG), ..FormatOptions::default() }).expect("formatting");
    let volume = Volume::open(region, &plan.options()).expect("mounting");
    (place, zone, volume)
}

/// The volume in the zone at `path`.
pub(crate) fn reopen(path: &Path, options: &MountOptions) -> (Volume, Zone) {
    let zone = Zone::open(path, &OpenOptions::default()).expect("the zone");
    let region = zone.volume(dram::VOLUME).expect("the volume");
    (Volume::open(region, options).expect("mounting"), zone)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, zone, cache @ ..] = &arguments[..]
        && flag == dram::LOOK
    {
        dram::look(zone.as_ref(), cache.first().and_then(|bytes| bytes.parse().ok()));
    }
    let plan = Plan::from_arguments().unwrap_or_else(|error| {
        eprintln!("scale: {error}");
        std::process::exit(2);
    });
    println!("{}", place::describe(&plan.dir, plan.rounds));
    if plan.wants("files") {
        for width in [Width::One, Width::Many] {
            let title = format!("files, {}", width.name());
            Curve::new(&title, &files::OPERATIONS, curve::power).measure(
                &plan,
                &plan.files,
                Files::needs,
                |count| Files::new(&plan, count, width),
            );
        }
    }
    if plan.wants("sparse") {
        let title = format!("span of a sparse file with {} blocks in random places", blocks::SPARSE);
        Curve::new(&title, &blocks::SPARSE_OPERATIONS, curve::bytes).measure(
            &plan,
            &plan.spans,
            |_| Blocks::needs_sparse(),
            |span| Blocks::sparse(&plan, span),
        );
    }
    if plan.wants("data") {
        Curve::new("data in one file", &blocks::OPERATIONS, curve::bytes).measure(
            &plan,
            &plan.data,
            Blocks::needs,
            |size| Blocks::dense(&plan, size),
        );
    }
}
