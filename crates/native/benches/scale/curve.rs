//! A curve: the same operations on volumes of growing size, beside the smallest.

use crate::Plan;
use crate::dram::Dram;
use crate::measure::spread;
use crate::place;

/// A volume of some size, with operations to measure.
pub(crate) trait Stage {
    /// Looks at everything, as if it had been used for long.
    fn warm(&mut self);

    /// Nanoseconds of CPU for each operation, once; but for those that [`Stage::reopened`] measures.
    fn round(&mut self) -> Vec<f64>;

    /// The same for what needs the volume mounted anew.
    fn reopened(&mut self) -> Vec<f64>;

    /// Ends the volume and looks at it from another process.
    fn dram(self) -> Dram;
}

/// Memory that stays free for everybody else.
const SPARED: u64 = 1 << 30;

type Figure = (&'static str, fn(&Dram) -> u64);
/// What is told of DRAM.
const FIGURES: [Figure; 3] = [
    ("DRAM of caches", |dram| dram.caches),
    ("DRAM of tables", |dram| dram.tables),
    ("all DRAM the process took", |dram| dram.process),
];

pub(crate) struct Curve<'a> {
    title: &'a str,
    operations: &'a [&'static str],
    /// How a size is written.
    label: fn(u64) -> String,
}

/// What one size gave.
struct Point {
    label: String,
    /// For each operation: ns, and times what the smallest took.
    costs: Vec<(f64, f64)>,
    dram: Dram,
}

/// What rounds gave: a row for each, a column for each operation.
#[derive(Default)]
struct Rounds {
    usual: Vec<Vec<f64>>,
    reopened: Vec<Vec<f64>>,
}

impl Rounds {
    fn medians(&self) -> Vec<f64> {
        let columns = |rounds: &[Vec<f64>]| -> Vec<f64> {
            (0..rounds[0].len()).map(|n| spread(rounds.iter().map(|round| round[n])).median).collect()
        };
        [columns(&self.usual), columns(&self.reopened)].concat()
    }
}

impl<'a> Curve<'a> {
    pub(crate) fn new(title: &'a str, operations: &'a [&'static str], label: fn(u64) -> String) -> Curve<'a> {
        Curve { title, operations, label }
    }

    /// Builds volumes of all `sizes` for which there is as much memory as `needs` says, and prints what they gave.
    pub(crate) fn measure<S: Stage>(
        &self,
        plan: &Plan,
        sizes: &[u64],
        needs: impl Fn(u64) -> u64,
        build: impl Fn(u64) -> S,
    ) {
        let (first, others) = sizes.split_first().expect("a size");
        let mut small = build(*first);
        let mut points = Vec::new();
        let mut alone = None;
        for size in others {
            let needed = needs(*size);
            if place::memory_available() < needed + SPARED {
                let label = (self.label)(*size);
                println!(
                    "{}: {label} left out, for which {} GiB must be available",
                    self.title,
                    (needed + SPARED) >> 30
                );
                continue;
            }
            let mut large = build(*size);
            small.warm();
            let (mut theirs, mut ours) = (Rounds::default(), Rounds::default());
            for round in 0..=plan.rounds {
                let (before, after) = (small.round(), large.round());
                if round > 0 {
                    theirs.usual.push(before); // the first warms up
                    ours.usual.push(after);
                }
            }
            for _ in 0..plan.rounds {
                theirs.reopened.push(small.reopened());
                ours.reopened.push(large.reopened());
            }
            let (before, after) = (theirs.medians(), ours.medians());
            let costs = after.iter().zip(&before).map(|(after, before)| (*after, after / before)).collect();
            alone.get_or_insert(before);
            points.push(Point { label: (self.label)(*size), costs, dram: large.dram() });
        }
        let costs = alone.unwrap_or_else(|| {
            let usual = (0..=plan.rounds).map(|_| small.round()).skip(1).collect();
            let reopened = (0..plan.rounds).map(|_| small.reopened()).collect();
            Rounds { usual, reopened }.medians()
        });
        let costs = costs.into_iter().map(|cost| (cost, 1.0)).collect();
        points.insert(0, Point { label: (self.label)(*first), costs, dram: small.dram() });
        self.print(&points);
    }

    fn print(&self, points: &[Point]) {
        println!("\n{}; CPU time, and times what the smallest takes", self.title);
        let row = |name: &str, cells: &mut dyn Iterator<Item = String>| {
            println!("{name:<38}{}", cells.map(|cell| format!("{cell:>20}")).collect::<String>());
        };
        row("", &mut points.iter().map(|point| point.label.clone()));
        for (n, name) in self.operations.iter().enumerate() {
            row(
                name,
                &mut points.iter().map(|point| {
                    let (cost, ratio) = point.costs[n];
                    format!("{} {ratio:>6.2} ×", time(cost))
                }),
            );
        }
        for (name, figure) in FIGURES {
            row(
                name,
                &mut points
                    .iter()
                    .map(|point| format!("{:.2} MiB", figure(&point.dram) as f64 / f64::from(1 << 20))),
            );
        }
    }
}

fn time(ns: f64) -> String {
    if ns < 1e5 { format!("{:.2} µs", ns / 1e3) } else { format!("{:.2} ms", ns / 1e6) }
}

/// A count that is written as a power of ten if it is one.
pub(crate) fn power(count: u64) -> String {
    let exponent = count.ilog10();
    if 10u64.pow(exponent) == count { format!("10^{exponent}") } else { count.to_string() }
}

/// Bytes in the largest unit that divides them.
pub(crate) fn bytes(size: u64) -> String {
    let unit = (size.trailing_zeros() / 10).min(4);
    format!("{} {}", size >> (10 * unit), ["B", "KiB", "MiB", "GiB", "TiB"][unit as usize])
}
