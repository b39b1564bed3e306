//! Two threads at once: how much more they do than one alone.

use std::sync::Barrier;
use std::time::Instant;

use native::Volume;
use nvm::{Purpose, Region};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use vfs::{Caller, FileSystem, Handle, Ino, OpenFlags, ROOT_INO};

use crate::Plan;
use crate::place::{self, Names, shuffled};
use crate::table::{Bound, Table};

const BLOCK: usize = 4096;
/// Bytes of each file.
const FILE: usize = 128 << 20;
/// Operations of a thread.
const TURNS: usize = 20_000;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// What is done, and how many times what one thread does two should do at least. Bare copies and streams, each thread's in
/// memory of its own, tell what this machine's processors give: two may share one core, and they share its memory.
const ROWS: [(&str, Option<f64>); 7] = [
    ("two threads: bare copies of 4 KiB", None),
    ("two threads: read, a file each", Some(1.8)),
    ("two threads: read, one file", Some(1.5)),
    ("two threads: bare streams of 4 KiB", None),
    ("two threads: overwrite, a file each", Some(1.8)),
    ("two threads: overwrite, one file", Some(1.3)),
    ("two threads: create, one directory", Some(1.3)),
];

struct Bench {
    volume: Volume,
    files: [Handle; 2],
    /// A piece for each thread.
    floor: Region,
    /// Halves of a file's blocks, in random order: two threads never meet in one block.
    visit: [Vec<u64>; 2],
    names: [Names; 2],
    root: Caller,
}

pub(crate) fn run(plan: &Plan, table: &mut Table) {
    if !plan.wants(&ROWS.map(|(name, _)| name)) {
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("no rows of two threads: there is one processor");
        return;
    }
    let bench = Bench::new(plan);
    let mut speedups: [Vec<f64>; ROWS.len()] = Default::default();
    for round in 0..=plan.rounds {
        let measured = [
            bench.speedup(|thread, n| bench.copy(thread, n)),
            bench.speedup(|thread, n| bench.read(bench.files[thread], thread, n)),
            bench.speedup(|thread, n| bench.read(bench.files[0], thread, n)),
            bench.speedup(|thread, n| bench.stream(thread, n)),
            bench.speedup(|thread, n| bench.overwrite(bench.files[thread], thread, n)),
            bench.speedup(|thread, n| bench.overwrite(bench.files[0], thread, n)),
            bench.create(round),
        ];
        if round == 0 {
            continue; // warms up
        }
        speedups.iter_mut().zip(measured).for_each(|(speedups, speedup)| speedups.push(speedup));
    }
    for ((name, least), speedups) in ROWS.iter().zip(&speedups) {
        table.figure(name, "×", speedups, least.map(Bound::Least), String::new());
    }
}

/// Keeps the calling thread on one of the processors that this process may use. Left to itself the kernel has two threads that
/// one has just woken on that one's processor for most of the time that a measurement takes.
fn keep_to(processor: usize) {
    let may = sched_getaffinity(None).expect("the processors of a process");
    let nth = (0..CpuSet::MAX_CPU).filter(|cpu| may.is_set(*cpu)).nth(processor);
    let mut one = CpuSet::new();
    one.set(nth.expect("as many processors as threads"));
    sched_setaffinity(None, &one).expect("one of them");
}

/// Nanoseconds from when the first of `threads` begins until the last has ended, each on a processor of its own.
fn wall(threads: usize, work: impl Fn(usize, usize) + Sync) -> f64 {
    let ready = Barrier::new(threads);
    std::thread::scope(|scope| {
        let (ready, work) = (&ready, &work);
        let run = move |thread: usize| {
            keep_to(thread);
            ready.wait();
            let begun = Instant::now();
            (0..TURNS).for_each(|n| work(thread, n));
            (begun, Instant::now())
        };
        let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let ran = workers.into_iter().map(|worker| worker.join().expect("a worker that ends"));
        let (begun, ended): (Vec<_>, Vec<_>) = ran.unzip();
        let (first, last) = (begun.into_iter().min().expect("one"), ended.into_iter().max().expect("one"));
        (last - first).as_nanos() as f64
    })
}

impl Bench {
    fn new(plan: &Plan) -> Bench {
        let (bytes, floor_bytes) = (1 << 30, 2 * FILE as u64);
        let (zone_file, zone) = place::zone(&plan.dir, "threads", bytes + floor_bytes);
        let volume = place::volume(place::region(&zone, "threads", bytes));
        let floor = place::region(&zone, "floor", floor_bytes);
        drop(zone_file); // the mapping lives on
        let root = Caller::root();
        let piece = vec![0x5A; 1 << 20];
        let files = ["one", "other"].map(|name| {
            let file = volume.create(&root, ROOT_INO, name.as_bytes(), 0o644, RW).expect("create").handle;
            for at in (0..FILE).step_by(piece.len()) {
                volume.write(&root, file, at as u64, &piece).expect("write");
            }
            file
        });
        volume.checkpoint().expect("a checkpoint");
        let order = shuffled(FILE / BLOCK, 4711);
        let half = |parity: u32| {
            let mine = order.iter().filter(|block| *block % 2 == parity);
            mine.map(|block| u64::from(*block) * BLOCK as u64).collect()
        };
        let names = ["one-", "other-"].map(|prefix| Names::new(prefix, TURNS));
        Bench { volume, files, floor, visit: [half(0), half(1)], names, root }
    }

    /// How much more two threads do than one.
    fn speedup(&self, work: impl Fn(usize, usize) + Sync) -> f64 {
        let one = wall(1, &work);
        self.volume.checkpoint().expect("a checkpoint");
        let two = wall(2, &work);
        self.volume.checkpoint().expect("a checkpoint");
        2.0 * one / two
    }

    fn at(&self, thread: usize, n: usize) -> u64 {
        self.visit[thread][n % self.visit[thread].len()]
    }

    /// Where a thread's block is in its own piece of the floor.
    fn at_in_floor(&self, thread: usize, n: usize) -> u64 {
        (thread * FILE) as u64 + self.at(thread, n)
    }

    fn copy(&self, thread: usize, n: usize) {
        let mut into = [0; BLOCK];
        self.floor.read(self.at_in_floor(thread, n), &mut into);
        std::hint::black_box(&into);
    }

    fn stream(&self, thread: usize, n: usize) {
        let flushed = self.floor.stream(Purpose::Data, self.at_in_floor(thread, n), &[0xA5; BLOCK]);
        self.floor.fence(flushed).ignore();
    }

    fn read(&self, file: Handle, thread: usize, n: usize) {
        let mut into = [0; BLOCK];
        self.volume.read(file, self.at(thread, n), &mut into).expect("read");
        std::hint::black_box(&into);
    }

    fn overwrite(&self, file: Handle, thread: usize, n: usize) {
        self.volume.write(&self.root, file, self.at(thread, n), &[0xA5; BLOCK]).expect("write");
    }

    /// In a directory for one thread, and in another for two: with as many names in the end, since a larger one takes longer.
    fn create(&self, round: usize) -> f64 {
        let make = |threads: usize| {
            let name = format!("of-{threads}-{round}");
            let dir = self.volume.mkdir(&self.root, ROOT_INO, name.as_bytes(), 0o755).expect("mkdir").ino;
            let took = wall(threads, |thread, n| {
                let mine = self.names.iter().skip(thread).step_by(threads);
                mine.for_each(|names| self.create_in(dir, names.get(n)));
            });
            for names in &self.names {
                (0..TURNS).for_each(|n| self.volume.unlink(&self.root, dir, names.get(n)).expect("unlink"));
            }
            self.volume.rmdir(&self.root, ROOT_INO, name.as_bytes()).expect("rmdir");
            self.volume.checkpoint().expect("a checkpoint");
            took
        };
        let (one, two) = (make(1), make(2));
        one / two
    }

    fn create_in(&self, dir: Ino, name: &[u8]) {
        let flags = RW | OpenFlags::EXCLUSIVE;
        let file = self.volume.create(&self.root, dir, name, 0o644, flags).expect("create");
        self.volume.release(file.handle).expect("close");
    }
}
