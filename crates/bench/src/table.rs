//! What was measured, as text: a table of all targets side by side, and one line for each figure on each.

use crate::block_device::Traffic;
use crate::campaign::{Figure, Report, Series};
use crate::markdown;
use crate::statistics::{Sample, Spread};

const MIB: f64 = (1 << 20) as f64;
/// Stands behind what was measured with fewer files than were asked for.
const FEWER: &str = " †";
/// What that says.
pub(crate) const FEWER_MEANS: &str = "† with fewer files than were asked for: the time was up before all had had their turn, for which --seconds has to be longer. \
                                      In the round with the fewest";

/// What stands in a table for a figure on one of its targets, if there is something to say.
type Cell = Box<dyn Fn(&Figure, &Series) -> Option<String>>;

/// One thing that a table of all targets shows.
struct View {
    title: String,
    cell: Cell,
}

impl View {
    fn new(title: &str, cell: impl Fn(&Figure, &Series) -> Option<String> + 'static) -> View {
        View { title: title.to_string(), cell: Box::new(cell) }
    }

    /// How many times the rate of one of the targets the others have.
    fn against(report: &Report, name: &str) -> Option<View> {
        let at = report.targets.iter().position(|(target, _)| target == name)?;
        let times = move |figure: &Figure, series: &Series| {
            Some(format!("{} ×", short(ratio(series, figure.series.get(at)?)?)))
        };
        Some(View::new(&format!("times the rate of {name}"), times))
    }
}

/// Figures down, targets across, a table for each thing that counts; of Markdown, or of blanks. `against` names targets with which the others
/// are compared.
pub fn headline(report: &Report, against: &[String], markdown: bool) -> String {
    let mut views = vec![View::new("a second (median, and half the distance of the quartiles)", rate)];
    views.extend(against.iter().filter_map(|name| View::against(report, name)));
    views.extend([
        View::new("CPU µs of one, with the server's", |_, series| cpu(series).map(|us| micros(us.median))),
        View::new("99 of 100 operations took at most, µs", |_, series| percentile(series, 99.0)),
    ]);
    if report.counts_disks() {
        views.push(View::new("asked of the disk for 1000 (reads/writes/flushes)", |_, series| asked(series)));
        let bytes = |_: &Figure, series: &Series| {
            per_operation(series, |disk| disk.bytes).map(|bytes| few(bytes / 1024.0))
        };
        views.push(View::new("KiB to and from the disk for each", bytes));
    }
    let tables = views.iter().map(|view| side_by_side(report, view, markdown));
    tables.chain(notes(report, markdown)).collect::<Vec<_>>().join("\n")
}

/// What is said below tables of figures that are not of all files, if there are such.
fn notes(report: &Report, markdown: bool) -> Option<String> {
    let start = if markdown { "- " } else { "  " };
    let line = |note: String| format!("{start}{}\n", if markdown { markdown::text(&note) } else { note });
    let lines: String = report.figures.iter().flat_map(|figure| fewer(report, figure)).map(line).collect();
    (!lines.is_empty()).then(|| format!("{FEWER_MEANS}:\n{lines}"))
}

/// On which targets a figure is not of all files.
pub(crate) fn fewer(report: &Report, figure: &Figure) -> Vec<String> {
    let told = |(series, (target, _)): (&Series, &(String, String))| {
        series.fewer().map(|reach| format!("{} on {target}: {} of {}", figure.name(), reach.done, reach.of))
    };
    figure.series.iter().zip(&report.targets).filter_map(told).collect()
}

/// A mark for what is not of all files.
pub(crate) fn mark(series: &Series) -> &'static str {
    if series.fewer().is_some() { FEWER } else { "" }
}

/// The table of how many times the rate of one of the targets the others have, its headings first; nothing if it is not there.
pub(crate) fn compared(report: &Report, name: &str) -> Option<Vec<Vec<String>>> {
    View::against(report, name).map(|view| rows(report, &view))
}

fn side_by_side(report: &Report, view: &View, markdown: bool) -> String {
    let rows = rows(report, view);
    if markdown { markdown::table(&rows) } else { plain_table(&rows) }
}

fn rows(report: &Report, view: &View) -> Vec<Vec<String>> {
    let mut rows = vec![vec![view.title.clone()]];
    rows[0].extend(report.targets.iter().map(|(name, _)| name.clone()));
    for figure in &report.figures {
        let mut row = vec![figure.name()];
        row.extend(figure.series.iter().map(|series| {
            let cell = (view.cell)(figure, series);
            cell.map_or("-".to_string(), |cell| cell + mark(series))
        }));
        rows.push(row);
    }
    rows
}

/// One line for each figure on each target: everything.
pub fn details(report: &Report) -> String {
    let heads = [
        "",
        "",
        "a second",
        "[quartiles]",
        "MiB/s",
        "wall µs",
        "CPU µs",
        "server's",
        "machine's",
        "p50 µs",
        "p99",
        "p99.9",
        "longest",
        "syncfs ms",
        "reads/writes/flushes for 1000",
        "KiB",
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    for figure in &report.figures {
        for (number, (series, (target, _))) in figure.series.iter().zip(&report.targets).enumerate() {
            let name = if number == 0 { figure.name() } else { String::new() };
            rows.push([vec![name, target.clone()], detail(series)].concat());
        }
    }
    [Some(plain_table(&rows)), notes(report, false)].into_iter().flatten().collect::<Vec<_>>().join("\n")
}

fn detail(series: &Series) -> Vec<String> {
    let Some(rate) = series.spread(|sample| sample.rate()) else { return vec!["-".to_string(); 14] };
    let median = |of: fn(&Sample) -> f64| series.spread(of).map_or(0.0, |spread| spread.median);
    let server =
        |sample: &Sample| sample.server_ns.map(|ns| ns as f64 / 1e3 / sample.operations.max(1) as f64);
    let server = Spread::of(series.samples.iter().filter_map(server));
    let latencies = series.tally.latencies();
    let bytes = median(|sample| sample.byte_rate());
    let timed = latencies.count() > 0;
    let latency = |ns: u64| if timed { micros(ns as f64 / 1e3) } else { "-".to_string() };
    vec![
        short(rate.median) + mark(series),
        format!("[{}–{}]", short(rate.low), short(rate.high)),
        if bytes > 0.0 { format!("{:.1}", bytes / MIB) } else { "-".to_string() },
        micros(median(|sample| sample.wall_us())),
        micros(median(|sample| sample.cpu_us())),
        server.map_or("-".to_string(), |us| micros(us.median)),
        micros(median(|sample| sample.machine_us())),
        latency(latencies.percentile_ns(50.0)),
        latency(latencies.percentile_ns(99.0)),
        latency(latencies.percentile_ns(99.9)),
        latency(latencies.longest_ns()),
        format!("{:.2}", median(|sample| sample.settle_ns as f64 / 1e6)),
        asked(series).unwrap_or_else(|| "-".to_string()),
        per_operation(series, |disk| disk.bytes).map_or("-".to_string(), |bytes| few(bytes / 1024.0)),
    ]
}

/// How many times the rate of `other` this is, by their medians; nothing if one of them was not measured.
pub fn ratio(series: &Series, other: &Series) -> Option<f64> {
    let rate = |series: &Series| series.spread(Sample::rate).map(|rate| rate.median);
    let (own, its) = (rate(series)?, rate(other)?);
    (its > 0.0).then(|| own / its)
}

/// The median of what the disk was asked for, for one operation.
fn per_operation(series: &Series, what: impl Fn(Traffic) -> u64) -> Option<f64> {
    let samples = series.samples.iter().filter_map(|sample| sample.of_disk(&what));
    Spread::of(samples).map(|spread| spread.median)
}

fn asked(series: &Series) -> Option<String> {
    let of = |what: fn(Traffic) -> u64| per_operation(series, what).map(|requests| few(1000.0 * requests));
    Some([of(|disk| disk.reads)?, of(|disk| disk.writes)?, of(|disk| disk.flushes)?].join("/"))
}

/// What may be nothing at all: whole numbers above ten.
fn few(value: f64) -> String {
    match value {
        value if value < 0.005 => "0".to_string(),
        value if value >= 9.95 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

fn rate(figure: &Figure, series: &Series) -> Option<String> {
    let (spread, written): (Spread, fn(f64) -> String) = match figure.by_bytes {
        true => (series.spread(|sample| sample.byte_rate() / MIB)?, mebibytes),
        false => (series.spread(|sample| sample.rate())?, short),
    };
    let around = 50.0 * (spread.high - spread.low) / spread.median.max(f64::MIN_POSITIVE);
    Some(format!("{} ±{around:.0}%", written(spread.median)))
}

fn cpu(series: &Series) -> Option<Spread> {
    series.spread(|sample| sample.cpu_us())
}

fn percentile(series: &Series, percent: f64) -> Option<String> {
    let latencies = series.tally.latencies();
    (latencies.count() > 0).then(|| micros(latencies.percentile_ns(percent) as f64 / 1e3))
}

/// Three digits at least, without a unit of thousands before the one of 1024: what stands side by side has one unit.
fn mebibytes(value: f64) -> String {
    if value >= 999.5 { format!("{value:.0} MiB") } else { format!("{} MiB", short(value)) }
}

/// Three digits and a unit of thousands.
pub(crate) fn short(value: f64) -> String {
    let (scaled, unit) = match value {
        value if value >= 999.5e6 => (value / 1e9, "G"),
        value if value >= 999.5e3 => (value / 1e6, "M"),
        value if value >= 999.5 => (value / 1e3, "k"),
        value => (value, ""),
    };
    match scaled {
        scaled if scaled >= 99.95 => format!("{scaled:.0}{unit}"),
        scaled if scaled >= 9.995 => format!("{scaled:.1}{unit}"),
        scaled => format!("{scaled:.2}{unit}"),
    }
}

/// Microseconds, with as many digits as say something.
pub(crate) fn micros(us: f64) -> String {
    match us {
        us if us >= 99.95 => format!("{us:.0}"),
        us if us >= 9.995 => format!("{us:.1}"),
        us => format!("{us:.2}"),
    }
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    (0..columns).map(|column| width(column).unwrap_or(0)).collect()
}

/// Names to the left, numbers to the right.
fn plain_table(rows: &[Vec<String>]) -> String {
    let widths = widths(rows);
    // A column is one of names if its second row begins with a letter.
    let names = |column: usize| {
        let mut cells = rows.iter().skip(1).filter_map(|row| row.get(column));
        column == 0 || cells.any(|cell| cell.starts_with(|first: char| first.is_alphabetic()))
    };
    let left: Vec<bool> = (0..widths.len()).map(names).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let padding = " ".repeat(widths[column] - cell.chars().count());
            line += &if left[column] { format!("{cell}{padding}  ") } else { format!("{padding}{cell}  ") };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Unit;
    use crate::statistics::Reach;

    #[test]
    fn numbers_have_three_digits() {
        let texts = [0.0, 0.5, 9.99, 12.34, 123.4, 999.4, 1000.0, 12_345.0, 1.5e6, 2e9].map(short);
        assert_eq!(texts, ["0.00", "0.50", "9.99", "12.3", "123", "999", "1.00k", "12.3k", "1.50M", "2.00G"]);
        assert_eq!([3.456, 456.7, 3660.4].map(mebibytes), ["3.46 MiB", "457 MiB", "3660 MiB"]);
        assert_eq!([0.123, 12.3, 456.7].map(micros), ["0.12", "12.3", "457"]);
    }

    fn report() -> Report {
        let sample = |operations| Sample {
            operations,
            wall_ns: 1_000_000_000,
            cpu_ns: 1_000_000,
            ..Sample::default()
        };
        let series = Series { samples: [1000, 2000, 4000].map(sample).to_vec(), ..Series::default() };
        let figure = Figure {
            workload: "varmail".into(),
            phase: String::new(),
            unit: Unit::Operations,
            by_bytes: false,
            varies: None,
            series: vec![series, Series::default()],
        };
        Report {
            targets: vec![("a".into(), String::new()), ("b".into(), String::new())],
            figures: vec![figure],
            ended: None,
        }
    }

    #[test]
    fn tables_show_medians_and_what_is_missing() {
        let text = headline(&report(), &[], false);
        assert!(text.contains("2.00k ±38%"), "{text}");
        assert!(
            text.lines().nth(1).is_some_and(|line| line.starts_with("varmail") && line.ends_with('-')),
            "{text}"
        );
        let text = headline(&report(), &[], true);
        assert!(text.contains("| varmail | 2.00k ±38% | - |"), "{text}");
        assert!(details(&report()).contains("[1.50k–3.00k]"), "{}", details(&report()));
        assert!(!text.contains("the disk"), "nobody counted: {text}");
    }

    /// What a slow target had no time for was left out without a word.
    #[test]
    fn a_figure_of_fewer_files_than_were_asked_for_is_marked() {
        let mut report = report();
        let series = report.figures[0].series[0].clone();
        report.figures[0].series[1] = series;
        for (sample, done) in report.figures[0].series[1].samples.iter_mut().zip([70, 60, 100]) {
            sample.reach = Some(Reach { done, of: 100 });
        }
        report.figures[0].series[0].samples[0].reach = Some(Reach { done: 100, of: 100 });
        let text = headline(&report, &["a".to_string()], true);
        assert!(text.contains("| varmail | 2.00k ±38% | 2.00k ±38% † |"), "{text}");
        assert!(text.contains("| varmail | 1.00 × | 1.00 × † |"), "{text}");
        let note = |start: &str| format!("\n\n{FEWER_MEANS}:\n{start}varmail on b: 60 of 100\n");
        assert!(text.ends_with(&note("- ")), "{text}");
        assert!(headline(&report, &[], false).ends_with(&note("  ")));
        let text = details(&report);
        assert!(text.contains("2.00k †") && text.ends_with(&note("  ")), "{text}");
        assert_eq!(text.matches('†').count(), 2, "{text}");
    }

    #[test]
    fn targets_are_compared_with_those_that_are_named() {
        let mut report = report();
        let mut twice = report.figures[0].series[0].clone();
        twice.samples.iter_mut().for_each(|sample| sample.wall_ns /= 3);
        report.figures[0].series[1] = twice;
        let text = headline(&report, &["a".to_string(), "gone".to_string()], true);
        assert!(text.contains("| times the rate of a | a | b |"), "{text}");
        assert!(text.contains("| varmail | 1.00 × | 3.00 × |") && !text.contains("gone"), "{text}");
        report.figures[0].series[0].samples.clear();
        let text = headline(&report, &["a".to_string()], true);
        assert!(text.contains("| varmail | - | - |"), "nothing to compare with: {text}");
    }

    #[test]
    fn what_disks_were_asked_for_is_told_where_it_was_counted() {
        let mut report = report();
        let samples = &mut report.figures[0].series[0].samples;
        samples.iter_mut().for_each(|sample| {
            sample.disk =
                Some(Traffic { reads: 0, writes: 3 * sample.operations, flushes: 4, bytes: 5 << 20 });
        });
        let text = headline(&report, &[], true);
        assert!(text.contains("| varmail | 0/3000/2.0 | - |"), "{text}");
        assert!(text.contains("| varmail | 2.6 | - |"), "{text}");
        assert!(details(&report).contains("0/3000/2.0"), "{}", details(&report));
        assert_eq!([0.001, 0.2, 9.94, 9.96, 1234.5].map(few), ["0", "0.2", "9.9", "10", "1234"]);
    }
}
