//! Loads that wait for each other: what no look-up among a million files can do without.

use nvm::{LINE, Purpose, Region};

use crate::Plan;
use crate::measure::cost;
use crate::place::{self, shuffled};
use crate::table::{Bound, Table};

/// Bytes over which the lines are spread: what the nodes of a million files take.
const BYTES: u64 = 320 << 20;
/// Lines of a look-up each of whose addresses is in the one before, and which no near cache holds: the slot of the trie, a
/// bucket's tags, the entry, the inode.
const STEPS: usize = 4;
const LOOK_UPS: usize = 50_000;

/// The time of as many dependent misses as a look-up by name has among 10^6 files.
pub(crate) fn run(plan: &Plan, table: &mut Table) {
    let name = format!("{STEPS} dependent misses, {} MiB", BYTES >> 20);
    if !plan.wants(&[&name]) {
        return;
    }
    let (file, zone) = place::zone(&plan.dir, "chase", BYTES);
    let region = place::region(&zone, "chase", BYTES);
    drop(file); // the mapping lives on
    let mut line = tie(&region);
    let mut times = Vec::new();
    for _ in 0..=plan.rounds {
        let cost = cost(LOOK_UPS, || {
            for _ in 0..LOOK_UPS * STEPS {
                line = region.load_u64(line * LINE);
            }
        });
        times.push(cost.cpu / 1000.0);
    }
    std::hint::black_box(line);
    table.figure(&name, "µs", &times[1..], None::<Bound>, String::from("a floor of stat, 10^6 files"));
}

/// Ties all lines of the region to one ring, in random order; returns one of them.
fn tie(region: &Region) -> u64 {
    let order = shuffled((region.len() / LINE) as usize, 99);
    for pair in order.windows(2) {
        region.store_u64(Purpose::Data, u64::from(pair[0]) * LINE, pair[1].into());
    }
    let (first, last) = (order[0], order[order.len() - 1]);
    region.store_u64(Purpose::Data, u64::from(last) * LINE, first.into());
    first.into()
}
