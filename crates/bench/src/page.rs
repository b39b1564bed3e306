//! A page with plots of all that was measured. It needs nothing but itself: no network, no scripts.

use crate::block_device::Traffic;
use crate::campaign::{Figure, Report};
use crate::plot::{bars, colour, escape, lines};
use crate::statistics::{Sample, Spread};
use crate::table::{FEWER_MEANS, compared, fewer, mark, micros, short};

const MIB: f64 = (1 << 20) as f64;
const STYLE: &str = "\
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --faint: #ccc }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --paper: #181818; --faint: #444 } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1120px; margin: 2em auto; padding: 0 1em }
h2 { margin: 1.6em 0 .3em; font-size: 1.1em }
.pair { display: flex; flex-wrap: wrap; gap: 1em } .pair svg { flex: 1 1 480px; max-width: 560px }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink) } svg .title { font-weight: 600 }
svg .end { text-anchor: end } svg .middle { text-anchor: middle }
.grid { stroke: var(--faint) } .whisker { stroke: var(--ink); stroke-width: 1.5 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px }
td, th { padding: 1px 9px; text-align: right; border-bottom: 1px solid var(--faint) } td:first-child, th:first-child { text-align: left }
.names { font-size: 12px; word-spacing: .5em; margin-bottom: .3em }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .4em }";

/// The whole page. `head` are lines on how it was measured; `against` names targets with which the others are compared.
pub fn page(report: &Report, against: &[String], head: &[String]) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>amberfs bench</title><style>\n{STYLE}\n</style></head><body>\n<h1>amberfs bench</h1>\n"
    );
    page += &head.iter().map(|line| format!("<div>{}</div>\n", escape(line))).collect::<String>();
    page += "<p>\n";
    for (number, (name, about)) in report.targets.iter().enumerate() {
        page += &format!("{}<b>{}</b>: {}<br>\n", key(name, number), escape(name), escape(about));
    }
    page += "</p>\n<p>Bars are medians, the lines on them reach from quartile to quartile.</p>\n";
    for rows in against.iter().filter_map(|name| compared(report, name)) {
        page += &table(&rows);
    }
    let mut shown: Vec<String> = Vec::new();
    for figure in &report.figures {
        if figure.varies.is_none() {
            page += &of_figure(report, figure);
            continue;
        }
        let name = series_of(figure);
        if !shown.contains(&name) {
            let alike =
                report.figures.iter().filter(|other| other.varies.is_some() && series_of(other) == name);
            page += &of_series(report, &alike.collect::<Vec<_>>());
            shown.push(name);
        }
    }
    page + "</body></html>\n"
}

/// Rows of cells, the first of which are headings.
fn table(rows: &[Vec<String>]) -> String {
    let mut text = "<table>\n".to_string();
    for (number, row) in rows.iter().enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        text += &format!("<tr>{cells}</tr>\n");
    }
    text + "</table>\n"
}

/// Which of these figures are not of all files, and on which targets.
fn note(report: &Report, figures: &[&Figure]) -> String {
    let told: Vec<String> = figures.iter().flat_map(|figure| fewer(report, figure)).collect();
    if told.is_empty() {
        return String::new();
    }
    format!("<p>{FEWER_MEANS}: {}.</p>\n", escape(&told.join("; ")))
}

/// A spot in the colour of a target.
fn key(name: &str, number: usize) -> String {
    format!("<span class=\"key\" style=\"background:{}\"></span>", colour(name, number))
}

/// What figures of one series have in common: all but the parameter that differs.
fn series_of(figure: &Figure) -> String {
    let key = figure.varies.as_ref().map_or("", |(key, _)| key.as_str());
    let (name, parameters) = figure.workload.split_once(':').unwrap_or((&figure.workload, ""));
    let others = parameters.split(',').filter(|part| part.split('=').next() != Some(key));
    let others: Vec<&str> = others.filter(|part| !part.is_empty()).collect();
    [name, &others.join(","), &figure.phase]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(": ")
}

fn rate(figure: &Figure) -> (&'static str, fn(&Sample) -> f64) {
    match figure.by_bytes {
        true => ("MiB a second", |sample| sample.byte_rate() / MIB),
        false => ("a second", Sample::rate),
    }
}

fn of_figure(report: &Report, figure: &Figure) -> String {
    let (title, rate) = rate(figure);
    let title = if figure.by_bytes { title.to_string() } else { format!("{} {title}", figure.unit.name()) };
    let rows = |of: fn(&Sample) -> f64| {
        let pairs = report.targets.iter().zip(&figure.series);
        pairs.map(|((name, _), series)| (name.as_str(), series.spread(of))).collect::<Vec<_>>()
    };
    let mut text =
        format!("<h2>{}</h2>\n{}<div class=\"pair\">\n", escape(&figure.name()), note(report, &[figure]));
    text += &bars(&title, &rows(rate));
    text += &bars("CPU µs of one", &rows(Sample::cpu_us));
    if figure.series.iter().any(|series| series.samples.iter().any(|sample| sample.disk.is_some())) {
        let of_disk = |what: fn(Traffic) -> u64, scale: f64| {
            let pairs = report.targets.iter().zip(&figure.series);
            pairs
                .map(|((name, _), series)| {
                    let samples = series.samples.iter().filter_map(|sample| sample.of_disk(what));
                    (name.as_str(), Spread::of(samples.map(|value| value * scale)))
                })
                .collect::<Vec<_>>()
        };
        text += &bars("asked of the disk for 1000: reads, writes, flushes", &of_disk(Traffic::requests, 1e3));
        text += &bars("KiB to and from the disk for each", &of_disk(|disk| disk.bytes, 1.0 / 1024.0));
    }
    text + "</div>\n" + &latencies(report, figure)
}

/// The figures of a series.
fn of_series(report: &Report, figures: &[&Figure]) -> String {
    let Some(first) = figures.first() else { return String::new() };
    let (title, rate) = rate(first);
    let across = first.varies.as_ref().map_or("", |(key, _)| key.as_str());
    let points = |at: usize, of: &dyn Fn(&Figure) -> Option<f64>| -> Vec<(f64, f64)> {
        let point = |figure: &Figure| {
            Some((figure.varies.as_ref()?.1, of(figure).filter(|_| !figure.series[at].samples.is_empty())?))
        };
        figures.iter().copied().filter_map(point).collect()
    };
    let rates = |at: usize| points(at, &|figure| figure.series[at].spread(rate).map(|spread| spread.median));
    let late = |at: usize| {
        points(at, &|figure| Some(figure.series[at].tally.latencies().percentile_ns(99.0) as f64 / 1e3))
    };
    let all = |of: &dyn Fn(usize) -> Vec<(f64, f64)>| {
        report.targets.iter().enumerate().map(|(at, (name, _))| (name.as_str(), of(at))).collect::<Vec<_>>()
    };
    let names = report.targets.iter().enumerate();
    let names = names.map(|(number, (name, _))| format!("{}{} ", key(name, number), escape(name)));
    let names: String = names.collect();
    let heading = escape(&series_of(first));
    let note = note(report, figures);
    let mut text =
        format!("<h2>{heading}</h2>\n<div class=\"names\">{names}</div>\n{note}<div class=\"pair\">\n");
    text += &lines(title, across, &all(&rates));
    text += &lines("99 of 100 took at most, µs", across, &all(&late));
    let requests = |at: usize| {
        points(at, &|figure| {
            let samples =
                figure.series[at].samples.iter().filter_map(|sample| sample.of_disk(Traffic::requests));
            Spread::of(samples).map(|spread| 1e3 * spread.median)
        })
    };
    if figures.iter().any(|figure| (0..figure.series.len()).any(|at| !requests(at).is_empty())) {
        text += &lines("asked of the disk for 1000: reads, writes, flushes", across, &all(&requests));
    }
    text + "</div>\n"
}

fn latencies(report: &Report, figure: &Figure) -> String {
    let mut text = "<details><summary>latencies</summary>\n<table><tr><th></th><th>a second</th><th>p50 µs</th><th>p99</th>\
                    <th>p99.9</th><th>longest</th></tr>\n"
        .to_string();
    for ((name, _), series) in report.targets.iter().zip(&figure.series) {
        let Some(rate) = series.spread(Sample::rate) else { continue };
        let mut row = |name: &str, rate: String, latencies: &crate::statistics::Latencies| {
            let timed = latencies.count() > 0;
            let at = |ns: u64| if timed { micros(ns as f64 / 1e3) } else { "-".to_string() };
            text += &format!(
                "<tr><td>{}</td><td>{rate}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                escape(name),
                at(latencies.percentile_ns(50.0)),
                at(latencies.percentile_ns(99.0)),
                at(latencies.percentile_ns(99.9)),
                at(latencies.longest_ns())
            );
        };
        row(name, short(rate.median) + mark(series), &series.tally.latencies());
        if series.tally.kinds.len() > 1 {
            for (kind, latencies) in &series.tally.kinds {
                row(&format!("  {name}: {}", kind.name()), String::new(), latencies);
            }
        }
    }
    text + "</table></details>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::Series;
    use crate::flow::Unit;
    use crate::statistics::Reach;

    fn figure(workload: &str, phase: &str, varies: Option<f64>) -> Figure {
        let sample = Sample { operations: 1000, wall_ns: 1_000_000, cpu_ns: 500_000, ..Sample::default() };
        Figure {
            workload: workload.to_string(),
            phase: phase.to_string(),
            unit: Unit::Operations,
            by_bytes: false,
            varies: varies.map(|value| ("threads".to_string(), value)),
            series: vec![Series { samples: vec![sample], ..Series::default() }],
        }
    }

    #[test]
    fn figures_of_a_series_are_one_plot_for_each_phase() {
        let mut figures = vec![figure("varmail", "", None)];
        for (request, threads) in [("metadata:threads=1,width=9", 1.0), ("metadata:threads=2,width=9", 2.0)] {
            figures
                .extend([figure(request, "stat", Some(threads)), figure(request, "rename", Some(threads))]);
        }
        let report = Report { targets: vec![("a&b".to_string(), String::new())], figures, ended: None };
        let page = page(&report, &["a&b".to_string()], &[]);
        let titles: Vec<&str> =
            page.split("<h2>").skip(1).filter_map(|rest| rest.split("</h2>").next()).collect();
        assert_eq!(titles, ["varmail", "metadata: width=9: stat", "metadata: width=9: rename"]);
        assert_eq!(page.matches("<polyline").count(), 2, "rates; there are no latencies");
        assert!(page.contains("<th>times the rate of a&amp;b</th>") && page.contains("<td>1.00 ×</td>"));
        assert!(page.contains("a&amp;b") && !page.contains("a&b"));
        assert!(!page.contains('†'));
    }

    #[test]
    fn a_figure_of_fewer_files_than_were_asked_for_is_marked() {
        let mut figures = vec![figure("metadata", "stat", None), figure("read:threads=2", "", Some(2.0))];
        for figure in &mut figures {
            figure.series[0].samples[0].reach = Some(Reach { done: 60, of: 100 });
        }
        let report = Report { targets: vec![("a&b".to_string(), String::new())], figures, ended: None };
        let page = page(&report, &[], &[]);
        assert!(page.contains(&format!("<p>{FEWER_MEANS}: metadata: stat on a&amp;b: 60 of 100.</p>")));
        assert!(page.contains("read:threads=2 on a&amp;b: 60 of 100.</p>"));
        assert!(page.contains("<td>1.00M †</td>"), "{page}");
    }
}
