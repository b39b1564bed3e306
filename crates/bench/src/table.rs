//! What was measured, as text: a table of all targets side by side, and one line for each figure on each.

use crate::campaign::{Figure, Report, Series};
use crate::statistics::Spread;

const MIB: f64 = (1 << 20) as f64;

/// One thing that a table of all targets shows.
struct View {
    title: &'static str,
    cell: fn(&Figure, &Series) -> Option<String>,
}

const VIEWS: [View; 3] = [
    View { title: "a second (median, and half the distance of the quartiles)", cell: rate },
    View {
        title: "CPU µs of one, with the server's",
        cell: |_, series| cpu(series).map(|us| micros(us.median)),
    },
    View { title: "99 of 100 operations took at most, µs", cell: |_, series| percentile(series, 99.0) },
];

/// Figures down, targets across; as a table of Markdown, or of blanks.
pub fn headline(report: &Report, markdown: bool) -> String {
    VIEWS.iter().map(|view| side_by_side(report, view, markdown)).collect::<Vec<_>>().join("\n")
}

fn side_by_side(report: &Report, view: &View, markdown: bool) -> String {
    let mut rows = vec![vec![view.title.to_string()]];
    rows[0].extend(report.targets.iter().map(|(name, _)| name.clone()));
    for figure in &report.figures {
        let mut row = vec![figure.name()];
        row.extend(
            figure.series.iter().map(|series| (view.cell)(figure, series).unwrap_or_else(|| "-".to_string())),
        );
        rows.push(row);
    }
    if markdown { markdown_table(&rows) } else { plain_table(&rows) }
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
    ];
    let mut rows = vec![heads.map(String::from).to_vec()];
    for figure in &report.figures {
        for (number, (series, (target, _))) in figure.series.iter().zip(&report.targets).enumerate() {
            let name = if number == 0 { figure.name() } else { String::new() };
            rows.push([vec![name, target.clone()], detail(series)].concat());
        }
    }
    plain_table(&rows)
}

fn detail(series: &Series) -> Vec<String> {
    let Some(rate) = series.spread(|sample| sample.rate()) else { return vec!["-".to_string(); 12] };
    let median =
        |of: fn(&crate::statistics::Sample) -> f64| series.spread(of).map_or(0.0, |spread| spread.median);
    let server = |sample: &crate::statistics::Sample| {
        sample.server_ns.map(|ns| ns as f64 / 1e3 / sample.operations.max(1) as f64)
    };
    let server = Spread::of(series.samples.iter().filter_map(server));
    let latencies = series.tally.latencies();
    let bytes = median(|sample| sample.byte_rate());
    let timed = latencies.count() > 0;
    let latency = |ns: u64| if timed { micros(ns as f64 / 1e3) } else { "-".to_string() };
    vec![
        short(rate.median),
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
    ]
}

fn rate(figure: &Figure, series: &Series) -> Option<String> {
    let (spread, unit) = match figure.by_bytes {
        true => (series.spread(|sample| sample.byte_rate() / MIB)?, " MiB"),
        false => (series.spread(|sample| sample.rate())?, ""),
    };
    let around = 50.0 * (spread.high - spread.low) / spread.median.max(f64::MIN_POSITIVE);
    Some(format!("{}{unit} ±{around:.0}%", short(spread.median)))
}

fn cpu(series: &Series) -> Option<Spread> {
    series.spread(|sample| sample.cpu_us())
}

fn percentile(series: &Series, percent: f64) -> Option<String> {
    let latencies = series.tally.latencies();
    (latencies.count() > 0).then(|| micros(latencies.percentile_ns(percent) as f64 / 1e3))
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

fn markdown_table(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        text += &format!("| {} |\n", row.join(" | "));
        if number == 0 {
            text += &format!("|---|{}\n", "---:|".repeat(row.len() - 1));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Unit;
    use crate::statistics::Sample;

    #[test]
    fn numbers_have_three_digits() {
        let texts = [0.0, 0.5, 9.99, 12.34, 123.4, 999.4, 1000.0, 12_345.0, 1.5e6, 2e9].map(short);
        assert_eq!(texts, ["0.00", "0.50", "9.99", "12.3", "123", "999", "1.00k", "12.3k", "1.50M", "2.00G"]);
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
        }
    }

    #[test]
    fn tables_show_medians_and_what_is_missing() {
        let text = headline(&report(), false);
        assert!(text.contains("2.00k ±38%"), "{text}");
        assert!(
            text.lines().nth(1).is_some_and(|line| line.starts_with("varmail") && line.ends_with('-')),
            "{text}"
        );
        let text = headline(&report(), true);
        assert!(text.contains("| varmail | 2.00k ±38% | - |"), "{text}");
        assert!(details(&report()).contains("[1.50k–3.00k]"), "{}", details(&report()));
    }
}
