//! Clocks, and what one batch of operations cost.

use std::time::Instant;

use native::Volume;
use nvm::Account;
use rustix::time::{ClockId, clock_gettime};

/// CPU time of all threads of this process, nanoseconds.
fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds that something took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) cpu: f64,
    pub(crate) wall: f64,
}

/// What `work` costs, per turn of its `turns`.
pub(crate) fn cost(turns: usize, work: impl FnOnce()) -> Cost {
    let (cpu, wall) = (cpu_ns(), Instant::now());
    work();
    let wall = wall.elapsed().as_nanos() as f64;
    let cpu = (cpu_ns() - cpu) as f64;
    Cost { cpu: cpu / turns as f64, wall: wall / turns as f64 }
}

/// One batch of operations on a volume, per operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// The operations themselves.
    pub(crate) own: Cost,
    /// CPU of the checkpoint after them.
    pub(crate) checkpoint_cpu: f64,
    /// Fences of the operations.
    pub(crate) fences: f64,
    /// Lines they flushed and streamed.
    pub(crate) lines: f64,
    /// Lines of the checkpoint.
    pub(crate) checkpoint_lines: f64,
}

impl Sample {
    pub(crate) fn cpu(&self) -> f64 {
        self.own.cpu + self.checkpoint_cpu
    }
}

impl From<Cost> for Sample {
    fn from(own: Cost) -> Sample {
        Sample { own, ..Sample::default() }
    }
}

/// Runs `operation` for 0 to `count`, then makes a checkpoint of what it did.
pub(crate) fn batch(volume: &Volume, count: usize, mut operation: impl FnMut(usize)) -> Sample {
    let account = || volume.region().account();
    let before = account();
    let own = cost(count, || (0..count).for_each(&mut operation));
    let between = account();
    let checkpoint = cost(count, || volume.checkpoint().expect("a checkpoint"));
    let lines = |account: Account| account.lines() as f64 / count as f64;
    Sample {
        own,
        checkpoint_cpu: checkpoint.cpu,
        fences: (between - before).fences as f64 / count as f64,
        lines: lines(between - before),
        checkpoint_lines: lines(account() - between),
    }
}

/// Lower quartile, median and upper quartile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

/// # Panics
/// If there are no values.
pub(crate) fn spread(values: impl Iterator<Item = f64>) -> Spread {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    Spread { low: values[last / 4], median: values[last / 2], high: values[last - last / 4] }
}
