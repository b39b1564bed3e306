//! Looking at a snapshot, beside looking at the same files of the volume.

use std::hint::black_box;

use native::Volume;
use vfs::{Caller, FileSystem, Handle, Ino, OpenFlags, ROOT_INO};

use crate::Plan;
use crate::measure::{Sample, cost};
use crate::place::{self, Names, shuffled};
use crate::table::{Limit, Series, Table};

const FILES: usize = 10_000;
const BYTES: usize = 256 << 20;
const BLOCK: usize = 4096;
/// Reads at a time, each of a block of its own.
const READS: usize = 32_768;
/// A view may cost so much of what the volume itself does.
const LIMITS: [Limit; 1] = [Limit::Floor(1.25)];

const ROWS: [&str; 4] = [
    "in a snapshot: stat by number",
    "in a snapshot: stat by name",
    "in a snapshot: open and close",
    "in a snapshot: read 4 KiB, random, 256 MiB",
];

/// A tree of files: the volume's own, or that of its snapshot.
struct Side<'a> {
    volume: &'a Volume,
    root: Caller,
    top: Ino,
    files: Vec<Ino>,
    file: Handle,
    into: Vec<u8>,
}

pub(crate) fn run(plan: &Plan, table: &mut Table) {
    if !plan.wants(&ROWS) {
        return;
    }
    let (zone_file, zone) = place::zone(&plan.dir, "snapshots", 768 << 20);
    let volume = place::volume(place::region(&zone, "snapshots", 704 << 20));
    drop(zone_file); // the mapping lives on
    let root = Caller::root();
    let names = Names::new("", FILES);
    for number in 0..FILES {
        volume.mknod(&root, ROOT_INO, names.get(number), 0o100_644, 0).expect("mknod");
    }
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, flags).expect("create").handle;
    let piece = vec![0x5A; 1 << 20];
    for at in (0..BYTES).step_by(piece.len()) {
        volume.write(&root, file, at as u64, &piece).expect("write");
    }
    volume.take_snapshot("kept", "").expect("a snapshot");
    let lookup = |dir, name: &[u8]| volume.lookup(&root, dir, name).expect("look-up").ino;
    let order = shuffled(FILES, 17);
    let names = names.gather(&order);
    let mut sides = [lookup(lookup(ROOT_INO, b".snapshots"), b"kept"), ROOT_INO].map(|top| Side {
        volume: &volume,
        root: root.clone(),
        top,
        files: (0..FILES).map(|number| lookup(top, names.get(number))).collect(),
        file: volume.open(&root, lookup(top, b"file"), OpenFlags::READ).expect("open"),
        into: vec![0; BLOCK],
    });
    let blocks = shuffled(BYTES / BLOCK, 18);
    let mut series: [Series; 4] = Default::default();
    for round in 0..=plan.rounds {
        let visit = &blocks[round * READS % blocks.len()..][..READS];
        let [kept, own] = sides.each_mut().map(|side| side.measure(&names, visit));
        if round == 0 {
            continue; // warms up
        }
        for ((series, kept), own) in series.iter_mut().zip(kept).zip(own) {
            series.samples.push(kept);
            series.floors.push(own.own);
        }
    }
    for (name, series) in ROWS.iter().zip(&series) {
        table.operation(name, &LIMITS, series);
    }
}

impl Side<'_> {
    fn measure(&mut self, names: &Names, visit: &[u32]) -> [Sample; 4] {
        let Side { volume, root, top, files, file, into } = self;
        [
            cost(FILES, || {
                for ino in &*files {
                    black_box(volume.getattr(*ino).expect("stat"));
                }
            }),
            cost(FILES, || {
                for number in 0..FILES {
                    black_box(volume.lookup(root, *top, names.get(number)).expect("look-up"));
                }
            }),
            cost(FILES, || {
                for ino in &*files {
                    let handle = volume.open(root, *ino, OpenFlags::READ).expect("open");
                    volume.release(handle).expect("close");
                }
            }),
            cost(visit.len(), || {
                for block in visit {
                    let at = u64::from(*block) * BLOCK as u64;
                    black_box(volume.read(*file, at, into).expect("read"));
                }
            }),
        ]
        .map(Sample::from)
    }
}
