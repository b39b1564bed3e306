//! Writes of every size in the patterns of iozone that the paper has, with each scheme.

use native::{FormatOptions, Journaling, MountOptions, Volume};
use nvm::{Account, OpenOptions, Technology, Zone};

use crate::files::{Called, Files};
use crate::measure::{Cost, cost};
use crate::place::{self, Temporary, shuffled};
use crate::report::{Cell, Row, Table};
use crate::{Plan, SIZES, in_turn};

/// Bytes of the file that is overwritten: more than the caches hold.
const FILE: usize = 64 << 20;
/// A batch has at most so many bytes and writes.
const BATCH_BYTES: usize = 16 << 20;
const BATCH_WRITES: usize = 8192;
/// Of a volume, and of its log, which a batch does not fill.
pub(crate) const VOLUME: u64 = 512 << 20;
const LOG: u64 = 128 << 20;

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// A new file, from its beginning on.
    Initial,
    /// A file that is there, piece behind piece.
    Rewrite,
    /// A file that is there, pieces of all of it in random order.
    Random,
    /// A new file, by position, in random order: each block begins as a hole.
    Pwrite,
}

impl Pattern {
    pub(crate) const ALL: [Pattern; 4] =
        [Pattern::Initial, Pattern::Rewrite, Pattern::Random, Pattern::Pwrite];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Pattern::Initial => "initial write",
            Pattern::Rewrite => "sequential rewrite",
            Pattern::Random => "random write",
            Pattern::Pwrite => "random pwrite",
        }
    }

    /// Whether it makes the file.
    fn is_new(self) -> bool {
        matches!(self, Pattern::Initial | Pattern::Pwrite)
    }

    /// Where in the file to write, in this round.
    fn offsets(self, size: usize, writes: usize, round: usize) -> Vec<u64> {
        let pieces = FILE / size;
        let numbers: Vec<usize> = match self {
            Pattern::Initial => (0..writes).collect(),
            Pattern::Rewrite => (0..writes).map(|n| (round * writes + n) % pieces).collect(),
            Pattern::Random => shuffled(pieces, round as u64)[..writes].iter().map(|n| *n as usize).collect(),
            Pattern::Pwrite => shuffled(writes, round as u64).iter().map(|n| *n as usize).collect(),
        };
        numbers.into_iter().map(|n| (n * size) as u64).collect()
    }
}

/// Writes of this size in a batch.
fn writes_of(size: usize) -> usize {
    (BATCH_BYTES / size).min(BATCH_WRITES)
}

/// The file that is there.
pub(crate) fn fill(files: &impl Files) {
    let file = files.create("data");
    let piece = vec![0x5A; 1 << 20];
    for at in (0..FILE).step_by(piece.len()) {
        files.write(&file, at as u64, &piece);
    }
    files.close(file);
    files.finish();
}

/// Runs one batch; what it took includes making it durable where it belongs.
fn batch(files: &impl Files, pattern: Pattern, size: usize, offsets: &[u64]) -> Cost {
    let name = if pattern.is_new() { "new" } else { "data" };
    let file = if pattern.is_new() { files.create(name) } else { files.open(name) };
    let bytes = vec![0xA5; size];
    let cost = cost(1, || {
        offsets.iter().for_each(|offset| files.write(&file, *offset, &bytes));
        files.finish();
    });
    files.close(file);
    cost
}

/// Writes a batch, less of it; its bytes and seconds.
pub(crate) fn run_once(files: &impl Files, pattern: Pattern, size: usize) -> (u64, f64) {
    // The round only chooses an order.
    let round = std::process::id() as usize;
    let writes = writes_of(size) / 4;
    let cost = batch(files, pattern, size, &pattern.offsets(size, writes, round));
    ((writes * size) as u64, cost.wall / 1e9)
}

pub(crate) fn run(plan: &Plan, technology: Technology) {
    let file = Temporary::new(&plan.dir, "journaling");
    let options = OpenOptions { technology, ..OpenOptions::default() };
    let zone = Zone::create(&file.path, 4 * VOLUME + 2 * nvm::SEGMENT, false, &options);
    let zone = zone.unwrap_or_else(|error| panic!("{error}"));
    let volumes = Journaling::ALL
        .map(|journaling| open(place::region(&zone, &journaling.to_string(), VOLUME), journaling, LOG));
    volumes.iter().for_each(|volume| fill(&Called::new(volume)));
    for pattern in Pattern::ALL {
        let mut table = Table::new(&format!("{technology}, {}", pattern.name()));
        for size in SIZES {
            let writes = if plan.quick { writes_of(size) / 4 } else { writes_of(size) };
            let mut row = Row::new(report_size(size), (writes * size) as u64);
            for round in 0..=plan.rounds {
                let offsets = pattern.offsets(size, writes, round);
                for scheme in in_turn(round) {
                    let cell = measure(&volumes[scheme], pattern, size, &offsets);
                    if round > 0 {
                        row.add(scheme, cell); // the first warms up
                    }
                }
            }
            table.add(row);
        }
        table.print();
    }
}

fn measure(volume: &Volume, pattern: Pattern, size: usize, offsets: &[u64]) -> Cell {
    let files = Called::new(volume);
    let account = || -> Account { volume.region().account() };
    let before = account();
    let cost = batch(&files, pattern, size, offsets);
    let cell = Cell { cost, written: account() - before };
    if pattern.is_new() {
        files.remove("new");
        files.finish();
    }
    cell
}

/// Formats `region` and mounts a volume there that makes checkpoints only when it is told to, or the log is full.
pub(crate) fn open(region: nvm::Region, journaling: Journaling, log_bytes: u64) -> Volume {
    let format = FormatOptions { log_bytes: Some(log_bytes), ..FormatOptions::default() };
    native::format(&region, &format).expect("formatting");
    let options = MountOptions { journaling, background: false, ..MountOptions::default() };
    Volume::open(region, &options).expect("mounting")
}

fn report_size(size: usize) -> String {
    if size < 1 << 10 { format!("{size} B") } else { format!("{} KiB", size >> 10) }
}
