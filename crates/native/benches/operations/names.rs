//! Operations on names: in a directory of 20,000 files, in one of a million, and in one of tmpfs.

use std::ffi::CStr;
use std::hint::black_box;
use std::os::fd::OwnedFd;

use native::Volume;
use rustix::fs::{AtFlags, Mode, OFlags};
use vfs::{Caller, FileSystem, Ino, OpenFlags, ROOT_INO, RenameFlags};

use crate::Plan;
use crate::measure::{Cost, Sample, batch, cost};
use crate::place::{self, Names, Temporary, shuffled};
use crate::table::{Bound, Limit, Series, Table};

/// Files in the small directory, and operations in each batch.
const FEW: usize = 20_000;
const MANY: usize = 1_000_000;
/// Operations in each batch in the large directory, between two checkpoints: at full speed there would be more.
const CHUNK: usize = 50_000;

const CREATE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE).union(OpenFlags::EXCLUSIVE);

/// A phase, its limit in microseconds at 20,000 files.
const PHASES: [(&str, f64); 5] =
    [("create+close", 2.5), ("stat", 0.5), ("open+close", 0.5), ("rename", 2.5), ("unlink", 2.0)];
const CREATE_CLOSE: usize = 0;
const STAT: usize = 1;
const OPEN_CLOSE: usize = 2;
const RENAME: usize = 3;
const UNLINK: usize = 4;
/// The large directory may take this much longer.
const GROWTH_MAX: f64 = 2.0;

pub(crate) fn run(plan: &Plan, table: &mut Table) {
    let few = |phase: &str| format!("{phase}, 20,000 files");
    let many = |phase: &str| format!("{phase}, 10^6 files");
    let rows: Vec<String> = PHASES
        .iter()
        .flat_map(|(phase, _)| [few(phase), many(phase)])
        .chain(["NVM per file", "mount"].map(String::from))
        .collect();
    if !plan.wants(&rows.iter().map(String::as_str).collect::<Vec<_>>()) {
        return;
    }
    let (file, zone) = place::zone(&plan.dir, "names", 1 << 30);
    let volume = place::volume(place::region(&zone, "names", 1 << 30));
    drop(file); // the mapping lives on
    let mut small = Directory::new(FEW, FEW);
    let needed = plan.volume_bytes + (3 << 30);
    let room = place::memory_available() > needed;
    if plan.million && !room {
        println!("no directory of 10^6 files: {} GiB of memory must be available", needed >> 30);
    }
    let mut large = (plan.million && room).then(|| Million::new(plan));
    let mut series: [(Series, Series); 5] = Default::default();
    for round in 0..=plan.rounds {
        let dir = volume.mkdir(&Caller::root(), ROOT_INO, b"d", 0o755).expect("a directory").ino;
        let theirs = Peer::new(plan, "peer").round(&small, Order::CreateFirst);
        let ours = small.round(&volume, dir, Order::CreateFirst);
        volume.rmdir(&Caller::root(), ROOT_INO, b"d").expect("it is empty");
        let million = large.as_mut().map(Million::round);
        if round == 0 {
            continue; // warms up
        }
        for (phase, (few, many)) in series.iter_mut().enumerate() {
            few.samples.push(ours[phase]);
            few.peers.push(theirs[phase]);
            if let Some((million, theirs)) = &million {
                many.samples.push(million[phase]);
                many.peers.push(theirs[phase]);
                many.floors.push(Cost { cpu: ours[phase].cpu(), wall: ours[phase].own.wall });
            }
        }
    }
    for ((phase, limit), (series, _)) in PHASES.iter().zip(&series) {
        // A rename is not asked to be half of tmpfs's.
        let of_tmpfs = (*phase != PHASES[RENAME].0).then_some(Limit::Peer(0.5));
        let limits: Vec<Limit> = std::iter::once(Limit::Micros(*limit)).chain(of_tmpfs).collect();
        table.operation(&few(phase), &limits, series);
    }
    for ((phase, _), (_, series)) in PHASES.iter().zip(&series) {
        table.operation(&many(phase), &[Limit::Floor(GROWTH_MAX)], series);
    }
    space(&volume, &small, table);
    if let Some(large) = large {
        large.finish(plan, table);
    }
}

/// Whether a round makes its files first, or finds them there and puts back what it removes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    CreateFirst,
    CreateLast,
}

/// Names in a directory, and random orders in which to visit `chunk` of them.
struct Directory {
    names: Names,
    others: Names,
    count: usize,
    chunk: usize,
    order: Vec<u32>,
    round: usize,
}

impl Directory {
    fn new(count: usize, chunk: usize) -> Directory {
        Directory {
            names: Names::new("a-file-", count),
            others: Names::new("renamed-", count),
            count,
            chunk,
            order: shuffled(count, 42),
            round: 0,
        }
    }

    /// `chunk` numbers of files for a phase. In a directory of many chunks, those that are renamed or removed are the
    /// same in all rounds, and never looked for.
    fn visit(&self, phase: usize) -> &[u32] {
        let looked_for = self.count - 2 * self.chunk.min(self.count / 2);
        let start = match phase {
            _ if self.chunk == self.count => 0,
            RENAME => 0,
            UNLINK => self.chunk,
            look => 2 * self.chunk + (self.round * 2 + look) * self.chunk % looked_for,
        };
        &self.order[start..start + self.chunk]
    }

    /// The names before and after this round's renames: those of many chunks go to and fro.
    fn renaming(&self, order: Order) -> (Names, Names) {
        let visit = self.visit(RENAME);
        let (names, others) = (self.names.gather(visit), self.others.gather(visit));
        if order == Order::CreateLast && self.round % 2 == 1 { (others, names) } else { (names, others) }
    }

    /// The names that this round removes.
    fn doomed(&self, order: Order) -> Names {
        let names = if order == Order::CreateFirst { &self.others } else { &self.names };
        names.gather(self.visit(UNLINK))
    }

    /// All phases once.
    fn round(&mut self, volume: &Volume, dir: Ino, order: Order) -> [Sample; 5] {
        let root = Caller::root();
        let mut samples = [Sample::default(); 5];
        let create = |name: &[u8]| {
            let file = volume.create(&root, dir, name, 0o644, CREATE).expect("create");
            volume.release(file.handle).expect("close");
        };
        if order == Order::CreateFirst {
            samples[CREATE_CLOSE] = batch(volume, self.chunk, |n| create(self.names.get(n)));
        }
        let names = self.names.gather(self.visit(STAT));
        samples[STAT] = batch(volume, self.chunk, |n| {
            black_box(volume.lookup(&root, dir, names.get(n)).expect("stat"));
        });
        let names = self.names.gather(self.visit(OPEN_CLOSE));
        samples[OPEN_CLOSE] = batch(volume, self.chunk, |n| {
            let found = volume.lookup(&root, dir, names.get(n)).expect("lookup");
            let handle = volume.open(&root, found.ino, OpenFlags::READ).expect("open");
            volume.release(black_box(handle)).expect("close");
        });
        let (from, to) = self.renaming(order);
        samples[RENAME] = batch(volume, self.chunk, |n| {
            volume.rename(&root, dir, from.get(n), dir, to.get(n), RenameFlags::empty()).expect("rename");
        });
        let doomed = self.doomed(order);
        samples[UNLINK] = batch(volume, self.chunk, |n| {
            volume.unlink(&root, dir, doomed.get(n)).expect("unlink");
        });
        if order == Order::CreateLast {
            samples[CREATE_CLOSE] = batch(volume, self.chunk, |n| create(doomed.get(n)));
        }
        self.round += 1;
        samples
    }
}

/// A directory of tmpfs, and system calls on it.
struct Peer {
    place: Temporary,
    dir: OwnedFd,
}

impl Peer {
    fn new(plan: &Plan, what: &str) -> Peer {
        let place = Temporary::new(&plan.dir, what);
        rustix::fs::mkdir(&place.path, Mode::RWXU).expect("a directory");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = rustix::fs::open(&place.path, flags, Mode::empty()).expect("open");
        Peer { place, dir }
    }

    fn create(&self, name: &CStr) {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        drop(rustix::fs::openat(&self.dir, name, flags, Mode::RUSR).expect("create"));
    }

    /// The phases of [`Directory::round`], before that has counted its round.
    fn round(&self, like: &Directory, order: Order) -> [Cost; 5] {
        let mut costs = [Cost::default(); 5];
        let each = |operation: &dyn Fn(usize)| cost(like.chunk, || (0..like.chunk).for_each(operation));
        if order == Order::CreateFirst {
            costs[CREATE_CLOSE] = each(&|n| self.create(like.names.get_c(n)));
        }
        let names = like.names.gather(like.visit(STAT));
        costs[STAT] = each(&|n| {
            black_box(rustix::fs::statat(&self.dir, names.get_c(n), AtFlags::empty()).expect("stat"));
        });
        let names = like.names.gather(like.visit(OPEN_CLOSE));
        costs[OPEN_CLOSE] = each(&|n| {
            let flags = OFlags::RDONLY;
            drop(rustix::fs::openat(&self.dir, names.get_c(n), flags, Mode::empty()).expect("open"));
        });
        let (from, to) = like.renaming(order);
        costs[RENAME] = each(&|n| {
            rustix::fs::renameat(&self.dir, from.get_c(n), &self.dir, to.get_c(n)).expect("rename");
        });
        let doomed = like.doomed(order);
        costs[UNLINK] = each(&|n| {
            rustix::fs::unlinkat(&self.dir, doomed.get_c(n), AtFlags::empty()).expect("unlink");
        });
        if order == Order::CreateLast {
            costs[CREATE_CLOSE] = each(&|n| self.create(doomed.get_c(n)));
        }
        costs
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.place.path);
    }
}

/// KiB of NVM that each of `count` files takes which `make` makes.
fn kib_each(volume: &Volume, count: usize, make: impl Fn(usize)) -> f64 {
    let free = || {
        volume.checkpoint().expect("a checkpoint");
        volume.statfs().expect("statfs").blocks_free
    };
    let before = free();
    (0..count).for_each(make);
    (before - free()) as f64 * 4.0 / count as f64
}

/// NVM per file, its share of the directory and of the NAT included.
fn space(volume: &Volume, names: &Directory, table: &mut Table) {
    let root = Caller::root();
    for bytes in [0, 100] {
        let dir = volume.mkdir(&root, ROOT_INO, format!("of-{bytes}").as_bytes(), 0o755).expect("mkdir");
        let kib = kib_each(volume, FEW, |number| {
            let name = names.names.get(number);
            let file = volume.create(&root, dir.ino, name, 0o644, CREATE).expect("create");
            if bytes > 0 {
                volume.write(&root, file.handle, 0, &[7; 100]).expect("write");
            }
            volume.release(file.handle).expect("close");
        });
        let name = format!("NVM per file of {bytes} bytes, 20,000");
        table.figure(&name, "KiB", &[kib], Some(Bound::Most(0.5)), String::new());
    }
}

/// A directory of a million files in a volume of its own.
struct Million {
    file: Temporary,
    volume: Volume,
    dir: Ino,
    peer: Peer,
    names: Directory,
    filling: (Sample, Cost),
    kib: f64,
}

impl Million {
    fn new(plan: &Plan) -> Million {
        let (file, zone) = place::zone(&plan.dir, "million", plan.volume_bytes);
        let volume = place::volume(place::region(&zone, crate::mount::VOLUME, plan.volume_bytes));
        let names = Directory::new(MANY, CHUNK);
        let root = Caller::root();
        let dir = volume.mkdir(&root, ROOT_INO, crate::mount::DIRECTORY, 0o755).expect("mkdir").ino;
        let free = |volume: &Volume| volume.statfs().expect("statfs").blocks_free;
        volume.checkpoint().expect("a checkpoint");
        let before = free(&volume);
        let filling = batch(&volume, MANY, |number| {
            let file = volume.create(&root, dir, names.names.get(number), 0o644, CREATE).expect("create");
            volume.release(file.handle).expect("close");
        });
        let kib = (before - free(&volume)) as f64 * 4.0 / MANY as f64;
        let peer = Peer::new(plan, "peer-million");
        let theirs = cost(MANY, || (0..MANY).for_each(|number| peer.create(names.names.get_c(number))));
        Million { file, volume, dir, peer, names, filling: (filling, theirs), kib }
    }

    fn round(&mut self) -> ([Sample; 5], [Cost; 5]) {
        let theirs = self.peer.round(&self.names, Order::CreateLast);
        (self.names.round(&self.volume, self.dir, Order::CreateLast), theirs)
    }

    /// Closes the volume and measures what needs it closed.
    fn finish(self, plan: &Plan, table: &mut Table) {
        let (ours, theirs) = self.filling;
        let filling = Series { samples: vec![ours], peers: vec![theirs], ..Series::default() };
        table.operation("create+close, filling to 10^6", &[], &filling);
        table.figure(
            "NVM per file of 0 bytes, 10^6",
            "KiB",
            &[self.kib],
            Some(Bound::Most(0.5)),
            String::new(),
        );
        self.volume.close().expect("closing");
        drop(self.volume);
        crate::mount::run(plan, table, &self.file.path, &self.names.names);
    }
}
