//! Reading and writing a file, beside bare copies in the same memory and beside tmpfs.

use std::hint::black_box;

use native::Volume;
use nvm::{Purpose, Region};
use rustix::fs::{Mode, OFlags};
use rustix::io::{pread, pwrite};
use vfs::{Caller, FileSystem, Handle, OpenFlags, ROOT_INO};

use crate::Plan;
use crate::measure::{Cost, Sample, batch, cost};
use crate::place::{self, Temporary, shuffled};
use crate::table::{Limit, Series, Table};

const BLOCK: usize = 4096;
/// Operations at a time, each on a block of its own.
const CHUNK: usize = 32_768;
/// Bytes of a long read or write, and how many are made at a time.
const LONG: usize = 1 << 20;
const LONG_TURNS: usize = 64;
/// Blocks that are appended at a time.
const APPENDED: usize = 16_384;
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// The file, the floor's region and the peer, all of one size, and their blocks in random order.
struct Bench {
    volume: Volume,
    file: Handle,
    /// As it was written, one run after the other: nothing else changes it.
    long_file: Handle,
    floor: Region,
    peer: std::os::fd::OwnedFd,
    peer_place: Temporary,
    order: Vec<u32>,
    block: Vec<u8>,
    into: Vec<u8>,
    long: Vec<u8>,
    root: Caller,
}

pub(crate) fn run(plan: &Plan, table: &mut Table, bytes: u64) {
    let size = if bytes < 1 << 30 { format!("{} MiB", bytes >> 20) } else { format!("{} GiB", bytes >> 30) };
    let read = format!("read 4 KiB, random, {size}");
    let slices = format!("borrow 4 KiB, random, {size}");
    let write = format!("overwrite 4 KiB, random, {size}");
    let append = format!("append 4 KiB, beside {size}");
    let small = format!("overwrite 64 B, random, {size}");
    let alone = format!("copy 4 KiB, none overlaps, {size}");
    let long_read = format!("read 1 MiB, sequential, {size}");
    let long_write = format!("overwrite 1 MiB, sequential, {size}");
    let rows: [(String, &[Limit]); 8] = [
        (read, &[Limit::Floor(1.2), Limit::Peer(0.7)]),
        (alone, &[]),
        (slices, &[Limit::Micros(0.15)]),
        (write, &[Limit::Floor(1.4), Limit::Peer(0.7)]),
        (append, &[Limit::Floor(1.6)]),
        (small, &[Limit::Micros(0.4)]),
        (long_read, &[Limit::Floor(1.18)]),
        (long_write, &[Limit::Floor(1.18)]),
    ];
    if !plan.wants(&rows.each_ref().map(|(name, _)| name.as_str())) {
        return;
    }
    let mut bench = Bench::new(plan, bytes);
    let mut series: [Series; 8] = Default::default();
    for round in 0..=plan.rounds {
        let start = round * CHUNK % bench.order.len();
        let visit: Vec<usize> =
            bench.order[start..][..CHUNK].iter().map(|block| *block as usize * BLOCK).collect();
        let measured = [
            bench.read(&visit),
            bench.copy_alone(&visit),
            bench.borrow(&visit),
            bench.overwrite(&visit),
            bench.append(&visit),
            bench.overwrite_little(&visit),
            bench.read_long(),
            bench.overwrite_long(),
        ];
        if round == 0 {
            continue; // warms up
        }
        for (series, (sample, floor, peer)) in series.iter_mut().zip(measured) {
            series.samples.push(sample);
            series.floors.extend(floor);
            series.peers.extend(peer);
        }
    }
    for ((name, limits), series) in rows.iter().zip(&series) {
        table.operation(name, limits, series);
    }
}

/// Ours, its floor if it has one, and tmpfs.
type Measured = (Sample, Option<Cost>, Option<Cost>);

impl Bench {
    fn new(plan: &Plan, bytes: u64) -> Bench {
        let room = bytes + (768 << 20);
        let (zone_file, zone) = place::zone(&plan.dir, "data", room + bytes);
        let volume = place::volume(place::region(&zone, "data", room));
        let floor = place::region(&zone, "floor", bytes);
        drop(zone_file); // the mapping lives on
        let root = Caller::root();
        let file = volume.create(&root, ROOT_INO, b"file", 0o644, RW).expect("create").handle;
        let peer_place = Temporary::new(&plan.dir, "peer");
        let made = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let peer = rustix::fs::open(&peer_place.path, made, Mode::RUSR | Mode::WUSR).expect("create");
        let piece = vec![0x5A; 1 << 20];
        for at in (0..bytes).step_by(piece.len()) {
            volume.write(&root, file, at, &piece).expect("write");
            // By the same stores as the file: neither is in the caches when the other is not.
            let flushed = floor.stream(Purpose::Data, at, &piece);
            floor.fence(flushed).ignore();
            pwrite(&peer, &piece, at).expect("pwrite");
        }
        let long_file = volume.create(&root, ROOT_INO, b"long", 0o644, RW).expect("create").handle;
        for n in 0..LONG_TURNS {
            volume.write(&root, long_file, (n * LONG) as u64, &piece).expect("write");
        }
        volume.checkpoint().expect("a checkpoint");
        let order = shuffled(bytes as usize / BLOCK, 4711);
        let (block, into) = (vec![0xA5; BLOCK], vec![0; BLOCK]);
        Bench { volume, file, long_file, floor, peer, peer_place, order, block, into, long: piece, root }
    }

    /// Copies blocks out, against memcpy out of the same mapping.
    fn read(&mut self, visit: &[usize]) -> Measured {
        let (volume, file, into) = (&self.volume, self.file, &mut self.into[..]);
        let ours = batch(volume, visit.len(), |n| {
            volume.read(file, visit[n] as u64, into).expect("read");
            black_box(&mut *into);
        });
        let floor = cost(visit.len(), || {
            for at in visit {
                into.copy_from_slice(self.floor.bytes(*at as u64, BLOCK));
                black_box(&mut *into);
            }
        });
        let peer = cost(visit.len(), || {
            for at in visit {
                pread(&self.peer, &mut *into, *at as u64).expect("pread");
                black_box(&mut *into);
            }
        });
        (ours, Some(floor), Some(peer))
    }

    /// The same copy, but each begins when the one before has ended: its address depends on a byte that was copied, as
    /// that of a read does on a pointer in a direct node.
    fn copy_alone(&mut self, visit: &[usize]) -> Measured {
        let into = &mut self.into[..];
        let mut last = 0u8;
        let alone = cost(visit.len(), || {
            for at in visit {
                // 0 more, which the processor does not know before the byte has come.
                let at = *at + black_box(usize::from(last)) / 256;
                into.copy_from_slice(self.floor.bytes(at as u64, BLOCK));
                last = black_box(&mut *into)[BLOCK - 1];
            }
        });
        (alone.into(), None, None)
    }

    /// Borrows blocks, touching nothing in them.
    fn borrow(&mut self, visit: &[usize]) -> Measured {
        let (volume, file) = (&self.volume, self.file);
        let ours = batch(volume, visit.len(), |n| {
            let mut sink = |bytes: &[u8]| {
                black_box(bytes.as_ptr());
            };
            volume.read_slices(file, visit[n] as u64, BLOCK, &mut sink).expect("read");
        });
        (ours, None, None)
    }

    /// A non-temporal copy to random blocks, and a fence.
    fn bare_copy(&self, visit: &[usize]) -> Cost {
        cost(visit.len(), || {
            for at in visit {
                let flushed = self.floor.stream(Purpose::Data, *at as u64, black_box(&self.block));
                self.floor.fence(flushed).ignore();
            }
        })
    }

    fn overwrite(&mut self, visit: &[usize]) -> Measured {
        let floor = self.bare_copy(visit);
        let ours = batch(&self.volume, visit.len(), |n| {
            self.volume.write(&self.root, self.file, visit[n] as u64, &self.block).expect("write");
        });
        let peer = cost(visit.len(), || {
            for at in visit {
                pwrite(&self.peer, black_box(&self.block), *at as u64).expect("pwrite");
            }
        });
        (ours, Some(floor), Some(peer))
    }

    /// Makes a new file longer, block by block.
    fn append(&mut self, visit: &[usize]) -> Measured {
        let floor = self.bare_copy(&visit[..APPENDED]);
        let (volume, root) = (&self.volume, &self.root);
        let new = volume.create(root, ROOT_INO, b"new", 0o644, RW | OpenFlags::APPEND).expect("create");
        let ours = batch(volume, APPENDED, |_| {
            volume.write(root, new.handle, 0, &self.block).expect("write");
        });
        volume.release(new.handle).expect("close");
        volume.unlink(root, ROOT_INO, b"new").expect("unlink");
        volume.checkpoint().expect("a checkpoint");
        let path = self.peer_place.path.with_extension("new");
        let made = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::APPEND;
        let new = rustix::fs::open(&path, made, Mode::RUSR).expect("create");
        rustix::fs::unlink(&path).expect("unlink");
        let peer = cost(APPENDED, || {
            for _ in 0..APPENDED {
                rustix::io::write(&new, black_box(&self.block)).expect("write");
            }
        });
        (ours, Some(floor), Some(peer))
    }

    /// Reads a file from its beginning on, a MiB at a time, against memcpy.
    fn read_long(&mut self) -> Measured {
        let (volume, file, into) = (&self.volume, self.long_file, &mut self.long[..]);
        let ours = batch(volume, LONG_TURNS, |n| {
            volume.read(file, (n * LONG) as u64, into).expect("read");
            black_box(&mut *into);
        });
        let floor = cost(LONG_TURNS, || {
            for n in 0..LONG_TURNS {
                into.copy_from_slice(self.floor.bytes((n * LONG) as u64, LONG));
                black_box(&mut *into);
            }
        });
        (ours, Some(floor), None)
    }

    /// Writes over it, a MiB at a time, against a non-temporal copy and a fence.
    fn overwrite_long(&mut self) -> Measured {
        let (volume, file, from) = (&self.volume, self.long_file, &self.long[..]);
        let ours = batch(volume, LONG_TURNS, |n| {
            volume.write(&self.root, file, (n * LONG) as u64, from).expect("write");
        });
        let floor = cost(LONG_TURNS, || {
            for n in 0..LONG_TURNS {
                let flushed = self.floor.stream(Purpose::Data, (n * LONG) as u64, black_box(from));
                self.floor.fence(flushed).ignore();
            }
        });
        (ours, Some(floor), None)
    }

    /// Overwrites a line somewhere in each block.
    fn overwrite_little(&mut self, visit: &[usize]) -> Measured {
        let line = |n: usize| (visit[n] + n * 64 % BLOCK) as u64;
        let bytes = &self.block[..64];
        let ours = batch(&self.volume, visit.len(), |n| {
            self.volume.write(&self.root, self.file, line(n), bytes).expect("write");
        });
        let floor = cost(visit.len(), || {
            for n in 0..visit.len() {
                let flushed = self.floor.stream(Purpose::Data, line(n), black_box(bytes));
                self.floor.fence(flushed).ignore();
            }
        });
        let peer = cost(visit.len(), || {
            for n in 0..visit.len() {
                pwrite(&self.peer, black_box(bytes), line(n)).expect("pwrite");
            }
        });
        (ours, Some(floor), Some(peer))
    }
}
