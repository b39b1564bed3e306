//! A workload like PostMark's (Katcher, 1997) with the paper's two filesets: files are made, transactions read or lengthen
//! one and make or remove another, and what is left is removed.

use std::time::Instant;

use native::Journaling;
use nvm::{OpenOptions, Region, Technology, Zone};

use crate::files::{Called, Files};
use crate::measure::{cost, spread};
use crate::place::{self, Temporary};
use crate::report::{Cell, Row, Table};
use crate::{Plan, in_turn, writes};

/// PostMark's parameters, as the paper has them. Sizes are drawn evenly, up to the largest.
pub(crate) struct Fileset {
    pub(crate) number: usize,
    files: usize,
    largest: usize,
    transactions: usize,
}

pub(crate) const FILESETS: [Fileset; 2] = [
    Fileset { number: 1, files: 1000, largest: 1_000_000, transactions: 1000 },
    Fileset { number: 2, files: 10, largest: 50_000_000, transactions: 10 },
];

/// Bytes of a read or write: the ends and the middle of what the paper has.
const SIZES: [usize; 3] = [1 << 10, 2 << 10, 4 << 10];
pub(crate) const VOLUME: u64 = 2 << 30;
/// What `mkfs` gives a volume of this size.
const LOG: u64 = VOLUME / 32;

/// What a run wrote, and how long its transactions took.
struct Run {
    bytes: u64,
    seconds: f64,
}

/// SplitMix64: the same files and transactions in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((word ^ (word >> 31)) % bound as u64) as usize
    }
}

struct Bench<'a, F: Files> {
    files: &'a F,
    fileset: &'a Fileset,
    random: Random,
    /// Names and lengths of the files that are there.
    there: Vec<(String, usize)>,
    made: usize,
    piece: Vec<u8>,
    bytes: u64,
}

impl<'a, F: Files> Bench<'a, F> {
    fn new(files: &'a F, fileset: &'a Fileset, size: usize) -> Bench<'a, F> {
        let piece = vec![0xA5; size];
        Bench { files, fileset, random: Random(1997), there: Vec::new(), made: 0, piece, bytes: 0 }
    }

    fn run(&mut self) -> Run {
        (0..self.fileset.files).for_each(|_| self.create());
        let begun = Instant::now();
        for _ in 0..self.fileset.transactions {
            self.transaction();
        }
        let seconds = begun.elapsed().as_secs_f64();
        for (name, _) in std::mem::take(&mut self.there) {
            self.files.remove(&name);
        }
        self.files.finish();
        Run { bytes: self.bytes, seconds }
    }

    fn transaction(&mut self) {
        let chosen = self.random.below(self.there.len());
        if self.random.below(2) == 0 {
            self.read(chosen);
        } else {
            self.lengthen(chosen);
        }
        if self.random.below(2) == 0 || self.there.len() == 1 {
            self.create();
        } else {
            let gone = self.random.below(self.there.len());
            self.files.remove(&self.there.swap_remove(gone).0);
        }
    }

    fn create(&mut self) {
        let name = format!("{:06}", self.made);
        self.made += 1;
        let length = 1 + self.random.below(self.fileset.largest);
        let file = self.files.create(&name);
        self.write(&file, 0..length);
        self.files.close(file);
        self.there.push((name, length));
    }

    fn write(&mut self, file: &F::File, range: std::ops::Range<usize>) {
        for at in range.clone().step_by(self.piece.len()) {
            let length = self.piece.len().min(range.end - at);
            self.files.write(file, at as u64, &self.piece[..length]);
        }
        self.bytes += range.len() as u64;
    }

    fn read(&mut self, number: usize) {
        let (name, length) = &self.there[number];
        let file = self.files.open(name);
        for at in (0..*length).step_by(self.piece.len()) {
            self.files.read(&file, at as u64, &mut self.piece);
        }
        self.files.close(file);
    }

    /// By at most what makes it as long as the largest; opened and closed, as for each change.
    fn lengthen(&mut self, number: usize) {
        let (name, length) = self.there[number].clone();
        let room = self.fileset.largest - length;
        if room > 0 {
            let new = length + 1 + self.random.below(room);
            let file = self.files.open(&name);
            self.write(&file, length..new);
            self.files.close(file);
            self.there[number].1 = new;
        }
    }
}

impl Fileset {
    /// The same with an eighth of the bytes: fewer files, or smaller ones where they are few.
    fn part(&self) -> Fileset {
        let (files, largest) = (self.files, self.largest);
        let (files, largest) = if files > 100 { (files / 8, largest) } else { (files, largest / 8) };
        Fileset { files, largest, transactions: self.transactions.min(files), ..*self }
    }
}

impl std::fmt::Display for Fileset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Fileset { number, files, largest, transactions } = self;
        write!(
            f,
            "fileset {number}: {transactions} transactions on {files} files of up to {:.2} MB",
            *largest as f64 / 1e6
        )
    }
}

/// Runs an eighth of a fileset; the bytes that it wrote, and its seconds.
pub(crate) fn run_once(files: &impl Files, fileset: &Fileset, size: usize) -> (u64, f64) {
    let begun = Instant::now();
    let run = Bench::new(files, &fileset.part(), size).run();
    (run.bytes, begun.elapsed().as_secs_f64())
}

pub(crate) fn run(plan: &Plan, technology: Technology) {
    let file = Temporary::new(&plan.dir, "postmark");
    let options = OpenOptions { technology, ..OpenOptions::default() };
    let zone = Zone::create(&file.path, VOLUME + 2 * nvm::SEGMENT, false, &options);
    let zone = zone.unwrap_or_else(|error| panic!("{error}"));
    let region = place::region(&zone, "postmark", VOLUME);
    for fileset in &FILESETS {
        let part = fileset.part();
        let fileset = if plan.full { fileset } else { &part };
        let mut table = Table::new(&format!("{technology}, {fileset}"));
        let mut transactions = Vec::new();
        for size in SIZES {
            let mut row: Option<Row> = None;
            let mut seconds: [Vec<f64>; Journaling::ALL.len()] = Default::default();
            for round in 0..plan.rounds.div_ceil(3) {
                for scheme in in_turn(round) {
                    let (run, cell) = measure(&region, scheme, fileset, size);
                    seconds[scheme].push(run.seconds);
                    let new = || Row::new(format!("{} KiB", size >> 10), run.bytes);
                    row.get_or_insert_with(new).add(scheme, cell);
                }
            }
            row.into_iter().for_each(|row| table.add(row));
            let rates = seconds.map(|each| fileset.transactions as f64 / spread(each.into_iter()).median);
            transactions.push(rates.map(|rate| format!("{rate:.0}")).join(", "));
        }
        table.print();
        println!("transactions a second, of each scheme, by write size: {}", transactions.join("; "));
    }
}

/// One run on a new volume.
fn measure(region: &Region, scheme: usize, fileset: &Fileset, size: usize) -> (Run, Cell) {
    let volume = writes::open(region.clone(), Journaling::ALL[scheme], LOG);
    let before = region.account();
    let files = Called::new(&volume);
    let mut run = Run { bytes: 0, seconds: 0.0 };
    let cost = cost(1, || run = Bench::new(&files, fileset, size).run());
    let cell = Cell { cost, written: region.account() - before };
    volume.close().expect("unmounting");
    (run, cell)
}
