//! What it costs to have snapshots: taking and removing one, and overwriting, beside more and more that are kept.

use native::Volume;
use vfs::{Caller, FileSystem, Handle, OpenFlags, ROOT_INO};

use crate::Plan;
use crate::measure::cost;
use crate::place::{self, shuffled};
use crate::table::{Bound, Table};

/// How many are kept.
const KEPT: [usize; 6] = [0, 1, 10, 100, 1000, 10_000];
const BLOCK: u64 = 4096;
/// Blocks of the file that is overwritten.
const BLOCKS: usize = 4096;
/// Snapshots taken and removed for one round.
const TURNS: usize = 20;

const ROWS: [&str; 4] = [
    "take a snapshot, one block changed",
    "remove a snapshot, with its space",
    "overwrite 4 KiB, first since a snapshot",
    "overwrite 4 KiB, again since a snapshot",
];

pub(crate) fn run(plan: &Plan, table: &mut Table) {
    if !plan.wants(&ROWS) {
        return;
    }
    let (zone_file, zone) = place::zone(&plan.dir, "keeping", 1536 << 20);
    let volume = place::volume(place::region(&zone, "keeping", 1472 << 20));
    drop(zone_file); // the mapping lives on
    let (root, flags) = (Caller::root(), OpenFlags::READ | OpenFlags::WRITE);
    let file = volume.create(&root, ROOT_INO, b"file", 0o644, flags).expect("create").handle;
    let order = shuffled(BLOCKS, 23);
    overwrite(&volume, &root, file, &order);
    let mut taken = 0;
    for kept in KEPT {
        while taken < kept {
            overwrite(&volume, &root, file, &order[taken % BLOCKS..][..1]);
            volume.take_snapshot(&format!("kept {taken}"), "").expect("a snapshot");
            taken += 1;
        }
        let mut found: [Vec<f64>; 4] = Default::default();
        for _ in 0..plan.rounds {
            let [mut take, mut remove] = [0.0; 2];
            for turn in 0..TURNS {
                overwrite(&volume, &root, file, &order[turn..][..1]);
                take += cost(TURNS, || drop(volume.take_snapshot("another", "").expect("a snapshot"))).wall;
                overwrite(&volume, &root, file, &order[turn..][..1]);
                let work = || {
                    volume.remove_snapshot("another").expect("removing it");
                    volume.finish_removals().expect("its space");
                };
                remove += cost(TURNS, work).wall;
            }
            if kept > 0 {
                volume.take_snapshot("another", "").expect("a snapshot");
            }
            let pass = || cost(BLOCKS, || overwrite(&volume, &root, file, &order)).cpu;
            let passes = [pass(), pass()];
            if kept > 0 {
                volume.remove_snapshot("another").expect("removing it");
                volume.finish_removals().expect("its space");
            }
            for (figures, ns) in found.iter_mut().zip([take, remove, passes[0], passes[1]]) {
                figures.push(ns / 1000.0);
            }
        }
        for (name, figures) in ROWS.iter().zip(&found) {
            table.figure(&format!("{name}, {kept} kept"), "µs", figures, None::<Bound>, String::new());
        }
    }
}

fn overwrite(volume: &Volume, root: &Caller, file: Handle, blocks: &[u32]) {
    let bytes = [0xA5; BLOCK as usize];
    for block in blocks {
        volume.write(root, file, u64::from(*block) * BLOCK, &bytes).expect("write");
    }
}
