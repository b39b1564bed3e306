//! The rows that were measured, and whether they keep their limits.

use crate::measure::{Cost, Sample, Spread, spread};

/// What a row must not exceed, each in CPU time of the same round; a row can have several limits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// Microseconds.
    Micros(f64),
    /// Times the floor.
    Floor(f64),
    /// Times the same by tmpfs's system calls.
    Peer(f64),
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Limit::Micros(limit) => write!(f, "{limit} µs"),
            Limit::Floor(limit) => write!(f, "{limit} × floor"),
            Limit::Peer(limit) => write!(f, "{limit} × tmpfs"),
        }
    }
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

    /// How many times what the others cost in the same rounds, if they were measured.
    fn times(&self, others: &[Cost]) -> Option<f64> {
        let ratios = self.samples.iter().zip(others).map(|(sample, other)| sample.cpu() / other.cpu);
        (!others.is_empty()).then(|| spread(ratios).median)
    }

    /// Whether the row keeps its limits, and which it misses by how much. A limit against what was not measured is missed.
    fn verdict(&self, limits: &[Limit]) -> String {
        let stands = |limit: &Limit| match *limit {
            Limit::Micros(limit) => (self.cpu().median / 1000.0, limit),
            Limit::Floor(limit) => (self.times(&self.floors).unwrap_or(f64::INFINITY), limit),
            Limit::Peer(limit) => (self.times(&self.peers).unwrap_or(f64::INFINITY), limit),
        };
        let one = |limit: &Limit| {
            let (figure, most) = stands(limit);
            format!("{} ({limit})", verdict(figure, most))
        };
        limits.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// All that was measured.
pub(crate) struct Table {
    filter: String,
    operations: Vec<(String, Vec<Limit>, Series)>,
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
    pub(crate) fn operation(&mut self, name: &str, limits: &[Limit], series: &Series) {
        if name.contains(&self.filter) && !series.samples.is_empty() {
            self.operations.push((name.to_string(), limits.to_vec(), series.clone()));
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
                "\n{:<37} {:>8} {:<15} {:>7} {:>7} {:>8} {:>7} {:>8} {:>7} {:>6} {:>7} {:>6}  limits",
                "operation",
                "CPU µs",
                "",
                "ckpt µs",
                "wall µs",
                "floor µs",
                "× floor",
                "tmpfs µs",
                "× tmpfs",
                "fences",
                "lines",
                "+ckpt",
            );
        }
        for (name, limits, series) in &self.operations {
            print_operation(name, limits, series);
        }
        if !self.figures.is_empty() {
            println!("\n{:<50} {:>8} {:<18} {:>8}  verdict", "figure", "", "", "limit");
        }
        for figure in &self.figures {
            let Spread { low, median, high } = figure.spread;
            let unit = figure.unit;
            println!(
                "{:<50} {median:>8.2} {:<18} {:>8}  {:<14} {}",
                figure.name,
                format!("{unit} [{low:.2}–{high:.2}]"),
                figure.bound.map_or(String::from("-"), |bound| format!("{} {unit}", bound.limit())),
                figure.bound.map_or(String::from("-"), |bound| bound.verdict(median)),
                figure.note,
            );
        }
    }
}

fn print_operation(name: &str, limits: &[Limit], series: &Series) {
    let median = |of: &dyn Fn(&Sample) -> f64| spread(series.samples.iter().map(of)).median;
    let micros = |ns: f64| ns / 1000.0;
    let costs = |costs: &[Cost]| match costs {
        [] => String::from("-"),
        costs => format!("{:.2}", micros(spread(costs.iter().map(|cost| cost.cpu)).median)),
    };
    let times = |others| series.times(others).map_or(String::from("-"), |times| format!("{times:.2}"));
    let cpu = series.cpu();
    println!(
        "{name:<37} {:>8.2} {:<15} {:>7.2} {:>7.2} {:>8} {:>7} {:>8} {:>7} {:>6.2} {:>7.1} {:>6.1}  {}",
        micros(cpu.median),
        format!("[{:.2}–{:.2}]", micros(cpu.low), micros(cpu.high)),
        micros(median(&|sample| sample.checkpoint_cpu)),
        micros(median(&|sample| sample.own.wall)),
        costs(&series.floors),
        times(&series.floors),
        costs(&series.peers),
        times(&series.peers),
        median(&|sample| sample.fences),
        median(&|sample| sample.lines),
        median(&|sample| sample.checkpoint_lines),
        series.verdict(limits),
    );
}
