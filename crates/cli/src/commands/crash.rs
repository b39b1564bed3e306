//! `amberfs crash`: cuts the power at every moment of workloads, in memory. Touches no zone of the user's.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crash::{
    Campaign, Failure as Found, Id, Lab, Native, Progress, Promise, RepairFailure, RepairReport, Report,
    Scene, Subject, Workload, WorkloadError, catalogue,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::command_line::Crash;
use crate::commands::crash_program;
use crate::exit;
use crate::failure::{EXIT_FAILURE, Explain, Failure, tell, tell_at_once};
use crate::report::{self, Fields, Value};

/// Operations of a random sequence.
const RANDOM_LENGTH: usize = 30;
/// Failures after which the rest of a campaign is left.
const FAILURES_MAX: usize = 10;

pub(crate) fn run(arguments: &Crash) -> Result<u8, Failure> {
    if let Some(command) = &arguments.program {
        return programs(arguments, command);
    }
    // A volume that panics in a crash state is a finding, told as such.
    std::panic::set_hook(Box::new(|_| {}));
    if arguments.list {
        return list(arguments).map(|()| 0);
    }
    if let Some(id) = &arguments.replay {
        return replay(arguments, id);
    }
    if let Some(schedules) = arguments.concurrent {
        return concurrent(arguments, schedules);
    }
    if let Some(share) = arguments.repairs {
        return repairs(share as usize, arguments.json);
    }
    let subject = subject(arguments)?;
    let promises = match arguments.durability {
        None => subject.promises().to_vec(),
        Some(promise) => vec![promised(subject, promise)?],
    };
    let interrupted = interrupted()?;
    let mut rows = Vec::new();
    let mut failed = false;
    let share = arguments.random.map(|seconds| Duration::from_secs(seconds) / promises.len().max(1) as u32);
    for promise in promises {
        // One that no clock reaches is none.
        let end = share.map(|share| Instant::now().checked_add(share).unwrap_or_else(far));
        let report = explore(arguments, subject, promise, end, &interrupted)?;
        failed |= !report.failures.is_empty();
        if !arguments.json {
            report::print_text(&closing(subject, promise, &report))?;
        }
        rows.push(row(subject, promise, &report));
        if interrupted.load(Relaxed) {
            break;
        }
    }
    if arguments.json {
        report::print(&Fields::new().with("campaigns", Value::Rows(rows)), true)?;
    }
    ended(failed, &interrupted)
}

/// Set by who interrupts: what is under way is finished then. The second time that ends it at once.
fn interrupted() -> Result<Arc<AtomicBool>, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let set = interrupted.clone();
    let mut signals = Signals::new([SIGINT, SIGTERM]).doing("watching signals")?;
    let watch = move || {
        for signal in signals.forever() {
            if set.swap(true, Relaxed) {
                let _ = emulate_default_handler(signal);
            }
            tell(
                "amberfs: interrupted: it ends with the sequences under way, or at once if interrupted again",
            );
        }
    };
    std::thread::Builder::new().spawn(watch).doing("watching signals")?;
    Ok(interrupted)
}

/// The exit code, when what was found is told.
fn ended(failed: bool, interrupted: &AtomicBool) -> Result<u8, Failure> {
    match (failed, interrupted.load(Relaxed)) {
        (true, false) => Ok(EXIT_FAILURE),
        (false, false) => Ok(0),
        (_, true) => Err(Failure::new("interrupted")
            .leaving("what was found until then is told, and no more was tried")
            .exit(if failed { EXIT_FAILURE } else { exit::INTERRUPTED })),
    }
}

/// What was asked for, if the volume promises it.
fn promised(subject: &dyn Subject, promise: Promise) -> Result<Promise, Failure> {
    if subject.promises().contains(&promise) {
        return Ok(promise);
    }
    let all: Vec<String> = subject.promises().iter().map(Promise::to_string).collect();
    Err(usage(format!("the volume {} does not promise {promise}, but {}", subject.name(), all.join(", "))))
}

/// In hundred years.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(100 * 365 * 24 * 3600)
}

/// A life that a file has, or one with each promise that a mount can be made with, or with the one that was asked for.
fn programs(arguments: &Crash, command: &str) -> Result<u8, Failure> {
    let lives = match (&arguments.recording, arguments.durability) {
        (Some(file), _) => vec![crash_program::From::File(file)],
        (None, Some(promise)) => vec![crash_program::From::Run(promise)],
        (None, None) => [Promise::Operation, Promise::Fsync].map(crash_program::From::Run).to_vec(),
    };
    for from in lives {
        crash_program::run(&crash_program::Arguments {
            command,
            from,
            record: arguments.record.as_deref(),
            steps: arguments.steps,
            states: arguments.states,
            seed: arguments.seed,
            json: arguments.json,
        })?;
    }
    Ok(0)
}

/// Pairs of operations at the same time, with `durability=op`.
fn concurrent(arguments: &Crash, schedules: usize) -> Result<u8, Failure> {
    let began = Instant::now();
    let interrupted = interrupted()?;
    let pairs = crash::pairs();
    let mut done = 0;
    let (mut runs, mut counts, mut failures) = (0, crash::Counts::default(), Vec::new());
    for pair in &pairs {
        match crash::explore_pair(&Native::ADAPTIVE, pair, schedules, arguments.seed) {
            Ok(report) => {
                runs += report.schedules;
                counts.add(report.counts);
            }
            Err(failure) => {
                let [first, second] = &pair.operations;
                let id = failure.id(&Native::ADAPTIVE, pair);
                failures.push((id, format!("{first} beside {second}: {failure}")));
            }
        }
        done += 1;
        if failures.len() >= FAILURES_MAX || interrupted.load(Relaxed) {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    if arguments.json {
        let rows = failures.iter().map(|(id, what)| state_row(id, what));
        let fields = Fields::new()
            .with("pairs", Value::Count(done))
            .with("schedules", Value::Count(runs as u64))
            .with("states_distinct", Value::Count(counts.distinct))
            .with("seconds", Value::Seconds(seconds))
            .with("violations", Value::Rows(rows.collect()));
        report::print(&fields, true)?;
    } else {
        failures.iter().try_for_each(|(id, what)| report::print_text(&format!("{id}\n  {what}\n")))?;
        report::print_text(&format!(
            "two at a time, durability=op: {done} pairs, {runs} schedules, {} crash points, {} distinct states; \
             {} violations; {seconds:.1} s\n",
            counts.points,
            counts.distinct,
            failures.len(),
        ))?;
    }
    ended(!failures.is_empty(), &interrupted)
}

/// Repairs that are cut short, of a volume that was closed, and of one that has a log to replay.
fn repairs(share: usize, json: bool) -> Result<u8, Failure> {
    let (mut rows, mut failed) = (Vec::new(), false);
    for (closed, what) in [(true, "closed"), (false, "crashed")] {
        let began = Instant::now();
        let (report, failure) = match crash::explore_repairs(Scene::Kept, closed, share) {
            Ok(report) => (report, None),
            Err(RepairFailure::Scene(error)) => return Err(Failure::new(error)),
            Err(failure) => (RepairReport::default(), Some(failure.to_string())),
        };
        failed |= failure.is_some();
        let seconds = began.elapsed().as_secs_f64();
        if json {
            rows.push(
                Fields::new()
                    .with("volume", what)
                    .with("damaged", Value::Count(report.damaged as u64))
                    .with("mended", Value::Count(report.mended as u64))
                    .with("findings", Value::Count(report.kinds.len() as u64))
                    .with("crash_points", Value::Count(report.counts.points))
                    .with("states_distinct", Value::Count(report.counts.distinct))
                    .with("seconds", Value::Seconds(seconds))
                    .with("violation", failure.map_or(Value::None, Value::from)),
            );
            continue;
        }
        report::print_text(&match failure {
            Some(failure) => format!("repairs of a volume that was {what}: {failure}\n"),
            None => format!(
                "repairs of a volume that was {what}: {} bits turned, {} mended, of {} kinds; {} crash points, {} distinct \
                 states; 0 violations; {seconds:.1} s\n",
                report.damaged,
                report.mended,
                report.kinds.len(),
                report.counts.points,
                report.counts.distinct,
            ),
        })?;
    }
    if json {
        report::print(&Fields::new().with("repairs", Value::Rows(rows)), true)?;
    }
    Ok(if failed { EXIT_FAILURE } else { 0 })
}

/// The kind of volume that was asked for.
fn subject(arguments: &Crash) -> Result<&'static dyn Subject, Failure> {
    match (arguments.volume.as_str(), arguments.journal) {
        ("native", journaling) => Ok(journaling.and_then(Native::journaling).unwrap_or(&Native::ADAPTIVE)),
        (name, None) => crash::subject(name).map_err(usage),
        (name, Some(_)) => {
            Err(usage(format!("--journal is for native volumes: {name} has one way to log bytes")))
        }
    }
}

/// Explores what was asked for; no workload is begun after `until`.
fn explore(
    arguments: &Crash,
    subject: &'static dyn Subject,
    promise: Promise,
    until: Option<Instant>,
    interrupted: &Arc<AtomicBool>,
) -> Result<Report, Failure> {
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    let campaign = Campaign {
        subject,
        promise,
        depth: arguments.depth,
        exact: arguments.exact,
        threads: arguments.threads.unwrap_or_else(processors),
        failures_max: FAILURES_MAX,
        until,
        interrupted: interrupted.clone(),
    };
    let (catalogue, seed) = (catalogue(), arguments.seed);
    let shown = std::io::stderr().is_terminal();
    let progress = |progress: Progress| {
        if shown {
            let Progress { done, of, counts, failures } = progress;
            tell_at_once(format_args!(
                "\r{promise}: {done} of {of} workloads, {} states, {failures} failures ",
                counts.distinct
            ));
        }
    };
    let report = if !arguments.names.is_empty() {
        let named = |name: &String| {
            Workload::named(subject, name, seed, &catalogue).map(|mut workload| {
                workload.from = 0;
                workload
            })
        };
        let workloads: Vec<Workload> =
            arguments.names.iter().map(named).collect::<Result<_, _>>().map_err(usage)?;
        campaign.run(workloads.len(), &|index| workloads.get(index).cloned(), &progress)
    } else if let Some(limit) = arguments.two {
        campaign.two(&catalogue, limit, seed, &progress)
    } else if let Some(count) = arguments.three {
        campaign.three(&catalogue, count, seed, &progress)
    } else if arguments.random.is_some() {
        campaign.random(usize::MAX, RANDOM_LENGTH, seed, &progress)
    } else {
        campaign.one(&catalogue, seed, &progress)
    };
    if shown {
        tell("");
    }
    Ok(report)
}

fn usage(what: String) -> Failure {
    Failure::new(what).exit(exit::USAGE)
}

fn closing(subject: &dyn Subject, promise: Promise, report: &Report) -> String {
    let counts = report.counts;
    let seconds = report.duration.as_secs_f64();
    let mut text: String = report.failures.iter().map(Found::text).collect();
    let left_out = match report.left_out {
        0 => String::new(),
        count => format!(" ({count} left out, as it has no such operations)"),
    };
    text.push_str(&format!(
        "{}, durability={promise}: {} workloads{left_out}, {} operations without room, {} crash points; states: {} built, {} distinct ({} of \
         crashed recoveries), {} checked in full; {} violations; {:.1} s, {:.0} states/s\n",
        subject.name(),
        report.workloads,
        counts.without_room,
        counts.points,
        built(counts.built),
        counts.distinct,
        counts.deep,
        counts.checked,
        report.failures.len(),
        seconds,
        counts.distinct as f64 / seconds.max(0.001),
    ));
    text
}

fn built(count: u64) -> String {
    if count == u64::MAX { "more than 2^64".to_owned() } else { count.to_string() }
}

fn row(subject: &dyn Subject, promise: Promise, report: &Report) -> Fields {
    let failures = report.failures.iter().map(violation_row);
    Fields::new()
        .with("volume", subject.name())
        .with("durability", promise.to_string())
        .with("workloads", Value::Count(report.workloads as u64))
        .with("workloads_left_out", Value::Count(report.left_out as u64))
        .with("operations_without_room", Value::Count(report.counts.without_room))
        .with("crash_points", Value::Count(report.counts.points))
        .with("states_built", Value::Count(report.counts.built))
        .with("states_distinct", Value::Count(report.counts.distinct))
        .with("states_of_recoveries", Value::Count(report.counts.deep))
        .with("states_checked", Value::Count(report.counts.checked))
        .with("seconds", Value::Seconds(report.duration.as_secs_f64()))
        .with("violations", Value::Rows(failures.collect()))
}

/// A workload that broke a promise, in JSON.
fn violation_row(failure: &Found) -> Fields {
    Fields::new()
        .with("workload", failure.workload.name.as_str())
        .with("state", failure.id.to_string())
        .with("what", failure.what())
}

/// A state of two operations at the same time that broke it.
fn state_row(id: &Id, what: &str) -> Fields {
    Fields::new().with("state", id.to_string()).with("what", what)
}

fn replay(arguments: &Crash, id: &Id) -> Result<u8, Failure> {
    let subject = crash::subject(&id.subject).map_err(usage)?;
    promised(subject, id.promise)?;
    if id.workload.starts_with("two-") {
        return replay_two(arguments, id);
    }
    let workload = Workload::named(subject, &id.workload, id.seed, &catalogue()).map_err(usage)?;
    let mut lab = Lab::new(subject, id.promise, id.depth);
    // Of one state that takes no time, and it is found again whichever way it was found.
    if arguments.exact || !arguments.shrink {
        lab.exact();
    }
    let (kept, found) = if arguments.shrink {
        let smallest = crash::shrink(&mut lab, &workload).map(|(smaller, found)| {
            let (event, lines) = found
                .as_ref()
                .map_or((0, Vec::new()), |violation| (violation.event, violation.lines.clone()));
            let id = Id { workload: smaller.name.clone(), event, lines, ..id.clone() };
            Found { workload: smaller, id, found }
        });
        ("no state of it breaks the promise", smallest)
    } else {
        let failure = match lab.replay(&workload, id) {
            Ok(violation) => violation.map(Ok),
            Err(error @ WorkloadError::Schedule(_)) => return Err(usage(error.to_string())),
            Err(error) => Some(Err(error)),
        };
        ("the promise is kept", failure.map(|found| Found { workload, id: id.clone(), found }))
    };
    judged(arguments, id, kept, found.map(|found| (violation_row(&found), found.text())))
}

/// A state of two operations at the same time.
fn replay_two(arguments: &Crash, id: &Id) -> Result<u8, Failure> {
    if arguments.shrink {
        return Err(usage(format!("{id}: there is nothing to leave out of two operations")));
    }
    let failure = crash::replay_pair(&Native::ADAPTIVE, id).map_err(usage)?;
    let shown = failure.map(|failure| failure.to_string());
    let found = shown.map(|what| (state_row(id, &what), format!("{id}\n  {what}\n")));
    judged(arguments, id, "the promise is kept", found)
}

/// Tells what came of a state that was asked for by its name: that it is `kept`, or what was found, in JSON and as text.
fn judged(arguments: &Crash, id: &Id, kept: &str, found: Option<(Fields, String)>) -> Result<u8, Failure> {
    let exit = if found.is_some() { EXIT_FAILURE } else { 0 };
    let (rows, text): (Vec<Fields>, Vec<String>) = found.into_iter().unzip();
    if arguments.json {
        let fields = Fields::new().with("state", id.to_string()).with("violations", Value::Rows(rows));
        report::print(&fields, true)?;
    } else if text.is_empty() {
        report::print_text(&format!("{id}: {kept}\n"))?;
    } else {
        report::print_text(&text.concat())?;
    }
    Ok(exit)
}

/// The operations that the volume has.
fn list(arguments: &Crash) -> Result<(), Failure> {
    let subject = subject(arguments)?;
    let is_had = |entry: &crash::Entry| {
        Workload::of(&[entry], arguments.seed).is_some_and(|workload| workload.suits(subject))
    };
    let entries: Vec<crash::Entry> = catalogue().into_iter().filter(is_had).collect();
    if arguments.json {
        let row = |entry: &crash::Entry| {
            let operations: Vec<String> = entry.operations.iter().map(ToString::to_string).collect();
            Fields::new()
                .with("name", entry.name.as_str())
                .with("scene", format!("{:?}", entry.scene))
                .with("operations", operations.join("; "))
        };
        return report::print(
            &Fields::new().with("operations", Value::Rows(entries.iter().map(row).collect())),
            true,
        );
    }
    for entry in &entries {
        let operations: Vec<String> = entry.operations.iter().map(ToString::to_string).collect();
        report::print_text(&format!("{:26} {}\n", entry.name, operations.join("; ")))?;
    }
    report::print_text(&format!("{} operations\n", entries.len()))
}
