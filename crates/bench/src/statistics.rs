//! Medians, quartiles and latencies.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::block_device::Traffic;

/// Latencies above this are counted as this: ten minutes, in nanoseconds.
const LONGEST_NS: u64 = 600_000_000_000;
/// Two digits: a latency is right to one in a hundred.
const DIGITS: u8 = 2;

/// Lower quartile, median and upper quartile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// A quarter of the values is below.
    pub low: f64,
    /// Half of them.
    pub median: f64,
    /// Three quarters.
    pub high: f64,
}

impl Spread {
    /// Of these values, between two of them by linear interpolation; `None` of none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let at = |part: f64| {
            let place = part * last as f64;
            let (below, rest) = (place.floor() as usize, place.fract());
            values[below] + (values[(below + 1).min(last)] - values[below]) * rest
        };
        Some(Spread { low: at(0.25), median: at(0.5), high: at(0.75) })
    }
}

/// What is timed. The order is that of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is the operation of that name")]
pub enum Kind {
    Create,
    Open,
    Close,
    Read,
    Write,
    Append,
    Truncate,
    Sync,
    SyncAll,
    Stat,
    List,
    Rename,
    Unlink,
    MakeDir,
    RemoveDir,
}

impl Kind {
    /// As system calls are called, where one does it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Create => "create",
            Kind::Open => "open",
            Kind::Close => "close",
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Append => "append",
            Kind::Truncate => "truncate",
            Kind::Sync => "fsync",
            Kind::SyncAll => "syncfs",
            Kind::Stat => "stat",
            Kind::List => "readdir",
            Kind::Rename => "rename",
            Kind::Unlink => "unlink",
            Kind::MakeDir => "mkdir",
            Kind::RemoveDir => "rmdir",
        }
    }
}

/// Latencies, nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(
            Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("bounds that a histogram can have"),
        )
    }
}

impl Latencies {
    /// Counts one.
    pub fn note(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    /// Counts several of one length.
    pub fn note_many(&mut self, ns: u64, count: u64) {
        self.0.saturating_record_n(ns.max(1), count);
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// What so many per cent do not exceed.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        self.0.value_at_percentile(percent)
    }

    /// The longest.
    pub fn longest_ns(&self) -> u64 {
        self.0.max()
    }
}

/// What threads did: counts, bytes, latencies.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// By kind of operation.
    pub kinds: BTreeMap<Kind, Latencies>,
    /// Flows that were done.
    pub turns: u64,
    /// Read and written.
    pub bytes: u64,
    /// Steps left out because no file fitted.
    pub skipped: u64,
}

impl Tally {
    /// Adds another's.
    pub fn add(&mut self, other: &Tally) {
        for (kind, latencies) in &other.kinds {
            self.kinds.entry(*kind).or_default().add(latencies);
        }
        self.turns += other.turns;
        self.bytes += other.bytes;
        self.skipped += other.skipped;
    }

    /// Operations in all.
    pub fn operations(&self) -> u64 {
        self.kinds.values().map(Latencies::count).sum()
    }

    /// Operations of one kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.kinds.get(&kind).map_or(0, Latencies::count)
    }

    /// The latencies of all kinds together.
    pub fn latencies(&self) -> Latencies {
        let mut all = Latencies::default();
        self.kinds.values().for_each(|latencies| all.add(latencies));
        all
    }
}

/// Of the files, or directories, that a phase was to have: with how many it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// With so many.
    pub done: u64,
    /// As many as were asked for.
    pub of: u64,
}

impl Reach {
    /// The one with the smaller part.
    pub(crate) fn least(self, other: Reach) -> Reach {
        let [own, its] = [(self.done, other.of), (other.done, self.of)]
            .map(|(done, of)| u128::from(done) * u128::from(of));
        if its < own { other } else { self }
    }
}

/// One round of one figure on one target.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// What was done.
    pub operations: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Time by the wall clock, nanoseconds.
    pub wall_ns: u64,
    /// CPU time of this process (with a tool, of the tool), nanoseconds.
    pub cpu_ns: u64,
    /// CPU time of the process that serves the mount, nanoseconds.
    pub server_ns: Option<u64>,
    /// How long a `syncfs` took afterwards, nanoseconds.
    pub settle_ns: u64,
    /// CPU time of all that the machine did from the beginning to the end of that `syncfs`, nanoseconds.
    pub machine_ns: u64,
    /// Of all files with how many it was done, where that is known: who makes them, or passes over all, may not come to the end.
    pub reach: Option<Reach>,
    /// What its disk was asked for, from the beginning to the end of that `syncfs`, if that is counted.
    pub disk: Option<Traffic>,
}

impl Sample {
    /// Operations a second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 * 1e9 / self.wall_ns.max(1) as f64
    }

    /// Bytes a second.
    pub fn byte_rate(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.wall_ns.max(1) as f64
    }

    /// CPU time of one operation, the server's included, microseconds.
    pub fn cpu_us(&self) -> f64 {
        (self.cpu_ns + self.server_ns.unwrap_or(0)) as f64 / 1e3 / self.operations.max(1) as f64
    }

    /// CPU time of one operation if all that the machine did was for its sake, microseconds: with kernel threads, the
    /// `syncfs` that followed, and whatever else went on.
    pub fn machine_us(&self) -> f64 {
        self.machine_ns as f64 / 1e3 / self.operations.max(1) as f64
    }

    /// Something that its disk was asked for, for one operation.
    pub fn of_disk(&self, what: impl Fn(Traffic) -> u64) -> Option<f64> {
        self.disk.map(|disk| what(disk) as f64 / self.operations.max(1) as f64)
    }

    /// Wall time of one operation, microseconds: threads side by side make it shorter.
    pub fn wall_us(&self) -> f64 {
        self.wall_ns as f64 / 1e3 / self.operations.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles_are_those_of_the_textbook() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([7.0]), Some(Spread { low: 7.0, median: 7.0, high: 7.0 }));
        assert_eq!(Spread::of([4.0, 1.0]), Some(Spread { low: 1.75, median: 2.5, high: 3.25 }));
        assert_eq!(Spread::of([5.0, 1.0, 4.0, 2.0, 3.0]), Some(Spread { low: 2.0, median: 3.0, high: 4.0 }));
    }

    #[test]
    fn percentiles_are_right_to_one_in_a_hundred() {
        let (mut even, mut odd) = (Latencies::default(), Latencies::default());
        for ns in 1..=100_000 {
            if ns % 2 == 0 { even.note(ns) } else { odd.note(ns) }
        }
        even.add(&odd);
        assert_eq!(even.count(), 100_000);
        for (percent, ns) in [(50.0, 50_000.0), (99.0, 99_000.0), (99.9, 99_900.0)] {
            let found = even.percentile_ns(percent) as f64;
            assert!((found / ns - 1.0).abs() < 0.01, "{percent} %: {found}, not {ns}");
        }
        even.note(u64::MAX);
        assert!(even.longest_ns() >= LONGEST_NS);
    }

    #[test]
    fn the_least_reach_is_that_of_the_smaller_part() {
        let reach = |done, of| Reach { done, of };
        assert_eq!(reach(9, 10).least(reach(50, 100)), reach(50, 100));
        assert_eq!(reach(3, 10).least(reach(50, 100)), reach(3, 10));
        assert_eq!(reach(0, 0).least(reach(1, 2)), reach(0, 0));
    }

    #[test]
    fn rates_and_costs_are_per_operation() {
        let sample = Sample {
            operations: 1000,
            bytes: 4_096_000,
            wall_ns: 2_000_000,
            cpu_ns: 1_000_000,
            server_ns: Some(500_000),
            settle_ns: 0,
            machine_ns: 0,
            reach: None,
            disk: Some(Traffic { reads: 1, writes: 20, flushes: 4, bytes: 4_096_000 }),
        };
        assert!((sample.rate() - 500_000.0).abs() < 1e-6);
        assert!((sample.byte_rate() - 2.048e9).abs() < 1.0);
        assert!((sample.cpu_us() - 1.5).abs() < 1e-9);
        assert!((sample.wall_us() - 2.0).abs() < 1e-9);
        assert_eq!(sample.of_disk(Traffic::requests), Some(0.025));
        assert_eq!(sample.of_disk(|disk| disk.bytes), Some(4096.0));
        assert_eq!((Sample::default().rate(), Sample::default().of_disk(Traffic::requests)), (0.0, None));
    }
}
