//! A volume of many empty files: operations on names, and mounting.

use std::hint::black_box;

use native::{MountOptions, Volume};
use nvm::Zone;
use vfs::{Caller, FileSystem, Ino, OpenFlags, ROOT_INO, RenameFlags, SetAttr};

use crate::Plan;
use crate::curve::Stage;
use crate::dram::{self, Dram};
use crate::measure::{batch, cost};
use crate::place::{Names, Temporary};
use crate::{open, reopen};

/// What is measured.
pub(crate) const OPERATIONS: [&str; 10] = [
    "create+close",
    "stat",
    "open+close",
    "rename",
    "unlink",
    "mount, clean",
    "first stat after that",
    "mount, 10^4 changes to replay",
    "take a snapshot, 1000 files changed",
    "remove it, and have its space back",
];
/// Files visited for each operation in a round, at most.
const CHUNK: u64 = 50_000;
/// Creates and removals before the server dies.
const CHANGES: u64 = 10_000;
/// Files that are changed before a snapshot is taken: so many of any number.
const CHANGED: usize = 1000;
/// Files in a directory, if there are many.
const CROWD: u64 = 1000;
const CREATE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE).union(OpenFlags::EXCLUSIVE);

/// How many directories the files are in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    One,
    Many,
}

impl Width {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Width::One => "all in one directory",
            Width::Many => "1000 in each directory",
        }
    }
}

pub(crate) struct Files {
    place: Temporary,
    options: MountOptions,
    /// None while it is opened anew.
    opened: Option<(Volume, Zone)>,
    dirs: Vec<Ino>,
    count: u64,
    /// Numbers drawn so far.
    drawn: u64,
}

/// Files of one turn: their directories and names, at hand.
struct Visit {
    dirs: Vec<Ino>,
    names: Names,
}

impl Visit {
    fn get(&self, n: usize) -> (Ino, &[u8]) {
        (self.dirs[n], self.names.get(n))
    }
}

impl Files {
    /// Bytes of memory for a volume of `count` files.
    pub(crate) fn needs(count: u64) -> u64 {
        (count * 600 + (512 << 20)).next_multiple_of(nvm::SEGMENT)
    }

    pub(crate) fn new(plan: &Plan, count: u64, width: Width) -> Files {
        let (place, zone, volume) = open(plan, Files::needs(count));
        let root = Caller::root();
        let dirs = if width == Width::One { 1 } else { count.div_ceil(CROWD) };
        let dir = |n| volume.mkdir(&root, ROOT_INO, format!("d{n}").as_bytes(), 0o755).expect("mkdir").ino;
        let dirs = (0..dirs).map(dir).collect();
        let files = Files { place, options: plan.options(), opened: None, dirs, count, drawn: 0 };
        for first in (0..count).step_by(CHUNK as usize) {
            let numbers: Vec<u64> = (first..count.min(first + CHUNK)).collect();
            let visit = files.names("file-", &numbers);
            (0..numbers.len()).for_each(|n| create(&volume, visit.get(n)));
        }
        volume.checkpoint().expect("a checkpoint");
        Files { opened: Some((volume, zone)), ..files }
    }

    fn names(&self, prefix: &str, numbers: &[u64]) -> Visit {
        let dir = |number: &u64| self.dirs[(number / CROWD) as usize % self.dirs.len()];
        Visit {
            dirs: numbers.iter().map(dir).collect(),
            names: Names::numbered(prefix, numbers.iter().copied()),
        }
    }

    /// Numbers of `count` files, no two the same, in no order: neighbours are as far apart as the golden ratio has it.
    fn draw(&mut self, count: u64) -> Vec<u64> {
        let step = (1..).map(|more| (self.count as f64 * 0.618) as u64 + more);
        let step = step.into_iter().find(|step| gcd(*step, self.count) == 1).expect("1 is one");
        let first = self.drawn;
        self.drawn += count;
        (first..self.drawn)
            .map(|n| (u128::from(n) * u128::from(step) % u128::from(self.count)) as u64)
            .collect()
    }

    fn volume(&self) -> &Volume {
        &self.opened.as_ref().expect("it is open").0
    }

    /// Mounts the volume anew: CPU nanoseconds of opening zone and volume.
    fn mount(&mut self) -> f64 {
        let (place, options) = (&self.place, &self.options);
        let mut opened = None;
        let took = cost(1, || opened = Some(reopen(&place.path, options)));
        self.opened = opened;
        took.cpu
    }
}

fn create(volume: &Volume, (dir, name): (Ino, &[u8])) {
    let file = volume.create(&Caller::root(), dir, name, 0o644, CREATE).expect("create");
    volume.release(file.handle).expect("close");
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Looks at file `n` of a turn.
fn stat(volume: &Volume, visit: &Visit, n: usize) {
    let (dir, name) = visit.get(n);
    black_box(volume.lookup(&Caller::root(), dir, name).expect("stat"));
}

/// Takes a snapshot behind changes of these files, and removes it behind another of each: CPU nanoseconds.
fn snapshot(volume: &Volume, changed: &Visit) -> (f64, f64) {
    let root = Caller::root();
    let change = |mode| {
        let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
        for n in 0..changed.dirs.len() {
            let (dir, name) = changed.get(n);
            let ino = volume.lookup(&root, dir, name).expect("lookup").ino;
            volume.setattr(&root, ino, &change, None).expect("setattr");
        }
    };
    change(0o600);
    let take = cost(1, || drop(volume.take_snapshot("one", "").expect("a snapshot"))).cpu;
    change(0o640);
    let remove = cost(1, || {
        volume.remove_snapshot("one").expect("removing it");
        volume.finish_removals().expect("its space");
    });
    change(0o644);
    (take, remove.cpu)
}

impl Stage for Files {
    fn warm(&mut self) {
        for first in (0..self.count).step_by(CHUNK as usize) {
            let numbers: Vec<u64> = (first..self.count.min(first + CHUNK)).collect();
            let visit = self.names("file-", &numbers);
            (0..numbers.len()).for_each(|n| stat(self.volume(), &visit, n));
        }
    }

    fn round(&mut self) -> Vec<f64> {
        let root = Caller::root();
        let chunk = CHUNK.min(self.count / 2);
        let numbers = self.draw(chunk);
        let looked_at = self.names("file-", &numbers);
        let numbers = self.draw(chunk);
        let (changed, renamed) = (self.names("file-", &numbers), self.names("else-", &numbers));
        let volume = self.volume();
        let count = chunk as usize;
        let stats = batch(volume, count, |n| stat(volume, &looked_at, n));
        let opens = batch(volume, count, |n| {
            let (dir, name) = looked_at.get(n);
            let found = volume.lookup(&root, dir, name).expect("lookup");
            volume.release(volume.open(&root, found.ino, OpenFlags::READ).expect("open")).expect("close");
        });
        let renames = batch(volume, count, |n| {
            let ((dir, from), (_, to)) = (changed.get(n), renamed.get(n));
            volume.rename(&root, dir, from, dir, to, RenameFlags::empty()).expect("rename");
        });
        let unlinks = batch(volume, count, |n| {
            let (dir, name) = renamed.get(n);
            volume.unlink(&root, dir, name).expect("unlink");
        });
        let creates = batch(volume, count, |n| create(volume, changed.get(n)));
        [creates, stats, opens, renames, unlinks].map(|sample| sample.cpu()).to_vec()
    }

    fn reopened(&mut self) -> Vec<f64> {
        let root = Caller::root();
        let chunk = CHUNK.min(self.count / 2);
        let numbers = self.draw(chunk);
        let unseen = self.names("file-", &numbers);
        let (volume, zone) = self.opened.take().expect("it is open");
        volume.close().expect("closing");
        drop((volume, zone));
        let clean = self.mount();
        assert!(self.volume().recovery().was_clean);
        let volume = self.volume();
        let firsts = cost(chunk as usize, || (0..chunk as usize).for_each(|n| stat(volume, &unseen, n)));

        let late: Vec<u64> = (0..CHANGES / 2).collect();
        let late = self.names("late-", &late);
        let (volume, zone) = self.opened.take().expect("it is open");
        for n in 0..(CHANGES / 2) as usize {
            create(&volume, late.get(n));
            let (dir, name) = late.get(n);
            volume.unlink(&root, dir, name).expect("unlink");
        }
        volume.abandon();
        drop(zone);
        let crashed = self.mount();
        // With a bound on caches a checkpoint may come before.
        let replayed = self.volume().recovery().transactions_replayed;
        assert!(
            replayed == CHANGES || self.options.cache_bytes.is_some(),
            "{replayed} transactions replayed"
        );
        let numbers = self.draw(CHANGED as u64);
        let changed = self.names("file-", &numbers);
        let (take, remove) = snapshot(self.volume(), &changed);
        vec![clean, firsts.cpu, crashed, take, remove]
    }

    fn dram(mut self) -> Dram {
        let (volume, zone) = self.opened.take().expect("it is open");
        volume.close().expect("closing");
        drop((volume, zone));
        dram::of(&self.place.path, self.options.cache_bytes)
    }
}
