//! The rows that were measured, and whether they keep their limits.

use crate::measure::{Cost, Sample, Spread, spread};

/// What a row must not exceed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// Nothing was promised.
    None,
    /// Microseconds of CPU.
    Micros(f64),
    /// Times the CPU of the floor in the same round.
    Floor(f64),
}

/// What a figure must not leave.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    Most(f64),
    Least(f64),
}

impl Bound {
    fn limit(self) -> f64 {
        match self {
            Bound::Most(limit) | Bound::Least(limit) => limit,
        }
    }

    fn verdict(self, figure: f64) -> String {
        match self {
            Bound::Most(limit) => verdict(figure, limit),
            Bound::Least(limit) => verdict(limit, figure),
        }
    }
}

/// How a measured figure stands to its limit.
fn verdict(figure: f64, limit: f64) -> String {
    match figure / limit {
        part if part <= 0.9 => "keeps".to_string(),
        part if part <= 1.0 => "keeps, near".to_string(),
        part => format!("MISSES {part:.2}×"),
    }
}

/// The rounds of one operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    pub(crate) samples: Vec<Sample>,
    /// The floor, or the same operation elsewhere, in the same rounds.
    pub(crate) floors: Vec<Cost>,
    /// The same on tmpfs by system calls.
    pub(crate) peers: Vec<Cost>,
}

impl Series {
    pub(crate) fn cpu(&self) -> Spread {
        spread(self.samples.iter().map(Sample::cpu))
    }

    fn ratio(&self) -> Option<f64> {
        let ratios = self.samples.iter().zip(&self.floors).map(|(sample, floor)| sample.cpu() / floor.cpu);
        (!self.floors.is_empty()).then(|| spread(ratios).median)
    }
}

/// All that was measured.
pub(crate) struct Table {
    filter: String,
    operations: Vec<(String, Limit, Series)>,
    figures: Vec<Figure>,
}

/// Something that is no operation: time to mount, space per file.
struct Figure {
    name: String,
    unit: &'static str,
    spread: Spread,
    bound: Option<Bound>,
    note: String,
}

impl Table {
    pub(crate) fn new(filter: &str) -> Table {
        Table { filter: filter.to_string(), operations: Vec::new(), figures: Vec::new() }
    }

    /// Adds the rounds of an operation.
    pub(crate) fn operation(&mut self, name: &str, limit: Limit, series: &Series) {
        if name.contains(&self.filter) && !series.samples.is_empty() {
            self.operations.push((name.to_string(), limit, series.clone()));
        }
    }

    /// Adds the rounds of a figure in `unit`.
    pub(crate) fn figure(
        &mut self,
        name: &str,
        unit: &'static str,
        values: &[f64],
        bound: Option<Bound>,
        note: String,
    ) {
        if name.contains(&self.filter) && !values.is_empty() {
            let spread = spread(values.iter().copied());
            self.figures.push(Figure { name: name.to_string(), unit, spread, bound, note });
        }
    }

    pub(crate) fn print(&self) {
        if !self.operations.is_empty() {
            println!(
                "\n{:<34} {:>8} {:<15} {:>8} {:>8} {:>8} {:>6} {:>7} {:>6} {:>6} {:>6} {:>8}  verdict",
                "operation",
                "CPU µs",
                "",
                "ckpt µs",
                "wall µs",
                "floor µs",
                "ratio",
                "limit",
                "fences",
                "lines",
                "+ckpt",
                "tmpfs µs",
            );
        }
        for (name, limit, series) in &self.operations {
            print_operation(name, *limit, series);
        }
        if !self.figures.is_empty() {
            println!("\n{:<34} {:>8} {:<15} {:>8}  verdict", "figure", "", "", "limit");
        }
        for figure in &self.figures {
            let Spread { low, median, high } = figure.spread;
            let unit = figure.unit;
            println!(
                "{:<34} {median:>8.2} {:<15} {:>8}  {:<14} {}",
                figure.name,
                format!("{unit} [{low:.2}–{high:.2}]"),
                figure.bound.map_or(String::from("-"), |bound| format!("{} {unit}", bound.limit())),
                figure.bound.map_or(String::from("-"), |bound| bound.verdict(median)),
                figure.note,
            );
        }
    }
}

fn print_operation(name: &str, limit: Limit, series: &Series) {
    let median = |of: &dyn Fn(&Sample) -> f64| spread(series.samples.iter().map(of)).median;
    let micros = |ns: f64| ns / 1000.0;
    let costs = |costs: &[Cost]| match costs {
        [] => String::from("-"),
        costs => format!("{:.2}", micros(spread(costs.iter().map(|cost| cost.cpu)).median)),
    };
    let cpu = series.cpu();
    let ratio = series.ratio();
    let (limit, verdict) = match limit {
        Limit::None => (String::from("-"), String::from("-")),
        Limit::Micros(limit) => (format!("{limit} µs"), verdict(micros(cpu.median), limit)),
        Limit::Floor(limit) => (format!("{limit} ×"), verdict(ratio.unwrap_or(f64::NAN), limit)),
    };
    println!(
        "{name:<34} {:>8.2} {:<15} {:>8.2} {:>8.2} {:>8} {:>6} {limit:>7} {:>6.2} {:>6.1} {:>6.1} {:>8}  {verdict}",
        micros(cpu.median),
        format!("[{:.2}–{:.2}]", micros(cpu.low), micros(cpu.high)),
        micros(median(&|sample| sample.checkpoint_cpu)),
        micros(median(&|sample| sample.own.wall)),
        costs(&series.floors),
        ratio.map_or(String::from("-"), |ratio| format!("{ratio:.2}")),
        median(&|sample| sample.fences),
        median(&|sample| sample.lines),
        median(&|sample| sample.checkpoint_lines),
        costs(&series.peers),
    );
}
