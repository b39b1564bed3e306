//! What `amberfs bench` answers: tables, Markdown, JSON, a page.

use std::path::Path;

use ::bench::{Amount, Figure, Latencies, Plan, Report, Series, Spread, markdown};

use crate::command_line::Bench;
use crate::failure::Failure;
use crate::report::{self, Fields, Value};

/// Whose CPU time is whose.
const CPU_TIME: &str = "CPU time is that of whoever asks and, for Amberfs mounted, of its server; the machine's (--details) is that of all \
                        that went on until a syncfs had ended, kernel threads (journals, writeback, loop devices) and strangers \
                        included, in ticks of 10 ms";

/// Whether the page can be written, if one is wanted; leaves things as they were.
pub(crate) fn check_page(arguments: &Bench) -> Result<(), Failure> {
    let Some(path) = &arguments.html else { return Ok(()) };
    let is_new = !path.exists();
    let opened = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let tried = opened.and_then(|_| if is_new { std::fs::remove_file(path) } else { Ok(()) });
    tried.map_err(|error| cannot_write(path, &error).leaving("nothing was measured"))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot write {}: {error}", path.display()))
}

/// Prints what was measured, and writes the page if one is wanted.
pub(crate) fn print(arguments: &Bench, plan: &Plan, measured: &Report) -> Result<(), Failure> {
    let head = describe(arguments, plan);
    print_answer(arguments, measured, &head)?;
    let Some(path) = &arguments.html else { return Ok(()) };
    std::fs::write(path, ::bench::page(measured, &arguments.against, &head))
        .map_err(|error| cannot_write(path, &error).leaving("what was measured stands above"))
}

fn print_answer(arguments: &Bench, measured: &Report, head: &[String]) -> Result<(), Failure> {
    if arguments.json {
        return report::print(&json(measured, arguments, head), true);
    }
    let mut text = String::new();
    if arguments.markdown {
        let rest = head.iter().skip(1).map(|line| markdown::text(line)).collect::<Vec<_>>();
        text += &format!("{}: {}.\n\n", markdown::code(&head[0]), rest.join("; "));
        text += &measured
            .targets
            .iter()
            .map(|(name, about)| format!("- **{}**: {}\n", markdown::text(name), markdown::text(about)))
            .collect::<String>();
    } else {
        text += &head.iter().map(|line| format!("{line}\n")).collect::<String>();
        text +=
            &measured.targets.iter().map(|(name, about)| format!("  {name}: {about}\n")).collect::<String>();
    }
    text.push('\n');
    // One target alone has nothing beside it: its details are the headline.
    if arguments.details || (measured.targets.len() == 1 && !arguments.markdown) {
        text += &::bench::details(measured);
    } else {
        text += &::bench::headline(measured, &arguments.against, arguments.markdown);
    }
    report::print_text(&text)
}

fn json(measured: &Report, arguments: &Bench, head: &[String]) -> Fields {
    let targets = measured
        .targets
        .iter()
        .map(|(name, about)| Fields::new().with("name", name.as_str()).with("about", about.as_str()));
    let targets = targets.collect();
    let lines = |at: usize| head.get(at).map_or("", String::as_str);
    Fields::new()
        .with("command", lines(0))
        .with("version", lines(1))
        .with("machine", lines(2))
        .with("method", lines(3))
        .with("complete", Value::Flag(measured.ended.is_none()))
        .with("targets", Value::Rows(targets))
        .with(
            "figures",
            Value::Rows(
                measured.figures.iter().map(|figure| of_figure(figure, arguments, measured)).collect(),
            ),
        )
}

fn of_figure(figure: &Figure, arguments: &Bench, measured: &Report) -> Fields {
    let times = |series: &Series| {
        let ratios = arguments.against.iter().filter_map(|name| {
            let at = measured.targets.iter().position(|(target, _)| target == name)?;
            let ratio = ::bench::ratio(series, figure.series.get(at)?)?;
            Some(Fields::new().with("target", name.as_str()).with("ratio", Value::Number(ratio)))
        });
        Value::Rows(ratios.collect())
    };
    let series = figure.series.iter().zip(&measured.targets);
    let series = series.map(|(series, (target, _))| {
        of_series(series).with("times", times(series)).with_first("target", target)
    });
    let series = series.collect();
    let (parameter, value) = match &figure.varies {
        Some((parameter, value)) => (Value::from(parameter.as_str()), Value::Number(*value)),
        None => (Value::None, Value::None),
    };
    Fields::new()
        .with("workload", figure.workload.as_str())
        .with("phase", figure.phase.as_str())
        .with("counts", figure.unit.name())
        .with("varies", parameter)
        .with("value", value)
        .with("series", Value::Rows(series))
}

fn of_series(series: &Series) -> Fields {
    let spread = |of: fn(&::bench::Sample) -> f64| of_spread(series.spread(of));
    let kinds = series
        .tally
        .kinds
        .iter()
        .map(|(kind, latencies)| of_latencies(latencies).with_first("operation", kind.name()));
    let samples = series.samples.iter().map(|sample| {
        Fields::new()
            .with("operations", Value::Count(sample.operations))
            .with("bytes", Value::Bytes(sample.bytes))
            .with("wall_ns", Value::Count(sample.wall_ns))
            .with("cpu_ns", Value::Count(sample.cpu_ns))
            .with("server_cpu_ns", sample.server_ns.map_or(Value::None, Value::Count))
            .with("machine_cpu_ns", Value::Count(sample.machine_ns))
            .with("syncfs_ns", Value::Count(sample.settle_ns))
            .with("disk", sample.disk.map_or(Value::None, |disk| Value::Fields(of_disk(disk))))
    });
    Fields::new()
        .with("per_second", spread(::bench::Sample::rate))
        .with("bytes_per_second", spread(::bench::Sample::byte_rate))
        .with("wall_us", spread(::bench::Sample::wall_us))
        .with("cpu_us", spread(::bench::Sample::cpu_us))
        .with("steps_left_out", Value::Count(series.tally.skipped))
        .with("fewer_files", series.fewer().map_or(Value::None, |reach| Value::Fields(of_reach(reach))))
        .with("latency", Value::Fields(of_latencies(&series.tally.latencies())))
        .with("operations", Value::Rows(kinds.collect()))
        .with("rounds", Value::Rows(samples.collect()))
}

fn of_reach(reach: ::bench::Reach) -> Fields {
    Fields::new().with("done", Value::Count(reach.done)).with("of", Value::Count(reach.of))
}

fn of_disk(disk: ::bench::Traffic) -> Fields {
    Fields::new()
        .with("reads", Value::Count(disk.reads))
        .with("writes", Value::Count(disk.writes))
        .with("flushes", Value::Count(disk.flushes))
        .with("bytes", Value::Bytes(disk.bytes))
}

fn of_spread(spread: Option<Spread>) -> Value {
    spread.map_or(Value::None, |spread| {
        Value::Fields(
            Fields::new()
                .with("low", Value::Number(spread.low))
                .with("median", Value::Number(spread.median))
                .with("high", Value::Number(spread.high)),
        )
    })
}

fn of_latencies(latencies: &Latencies) -> Fields {
    // Of what was not timed one by one, as by a tool, there are none.
    let is_timed = latencies.count() > 0;
    let value = |ns: u64| if is_timed { Value::Count(ns) } else { Value::None };
    let at = |percent| value(latencies.percentile_ns(percent));
    Fields::new()
        .with("count", Value::Count(latencies.count()))
        .with("p50_ns", at(50.0))
        .with("p99_ns", at(99.0))
        .with("p999_ns", at(99.9))
        .with("longest_ns", value(latencies.longest_ns()))
}

/// Workloads, their parameters and groups.
pub(crate) fn list(json: bool) -> Result<(), Failure> {
    let parameters = |entry: &::bench::Entry| {
        entry.parameters.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
    };
    let entries = ::bench::catalogue().iter().map(|entry| {
        Fields::new()
            .with("name", entry.name)
            .with("parameters", parameters(entry))
            .with("about", entry.about)
    });
    let groups = ::bench::groups().iter().map(|(name, about, members)| {
        Fields::new().with("name", *name).with("about", *about).with("workloads", members.join(" "))
    });
    let fields = Fields::new()
        .with("workloads", Value::Rows(entries.collect()))
        .with("groups", Value::Rows(groups.collect()));
    report::print(&fields, json)
}

/// Tells how something was measured, for the head of a report.
fn describe(arguments: &Bench, plan: &Plan) -> Vec<String> {
    let quoted = |word: String| if word.contains(' ') { format!("'{word}'") } else { word };
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let command: Vec<String> = words.map(quoted).collect();
    let seconds =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let note = if arguments.note.is_empty() { String::new() } else { format!(", {}", arguments.note) };
    let amount = match plan.terms.amount {
        Amount::Time(time) if arguments.tool.is_empty() => format!("{} s each", time.as_secs_f64()),
        Amount::Time(_) => "as long as each program takes at least".to_string(),
        Amount::Turns(turns) => format!("{turns} turns of each thread"),
    };
    vec![
        format!("amberfs {}", command.join(" ")),
        format!("version {}{note}, {} UTC", env!("CARGO_PKG_VERSION"), report::date(seconds)),
        ::bench::machine(),
        format!("medians of {} rounds in turns, {amount}, seed {}", plan.rounds, plan.terms.seed),
        CPU_TIME.to_string(),
    ]
}
