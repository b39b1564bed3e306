//! Other people's generators, run in the same directories: nobody has to trust ours.

use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::campaign::{Figure, Plan, Progress, Report, Series};
use crate::clock;
use crate::error::Error;
use crate::stage::Amount;
use crate::statistics::{Sample, Tally};
use crate::target::Target;

mod jobs;

use jobs::{Job, jobs};

/// How often a tool that works is looked after.
const PAUSE: Duration = Duration::from_millis(5);
/// A program that measures file systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// fio: reads and writes.
    Fio,
    /// PostMark: small files.
    PostMark,
    /// fs_mark: small files, synced.
    FsMark,
    /// dbench: a file server's load.
    Dbench,
    /// SQLite: transactions, each synced.
    Sqlite,
    /// pgbench: transactions of PostgreSQL.
    Pgbench,
}

impl Tool {
    const ALL: [Tool; 6] =
        [Tool::Fio, Tool::PostMark, Tool::FsMark, Tool::Dbench, Tool::Sqlite, Tool::Pgbench];

    fn name(self) -> &'static str {
        match self {
            Tool::Fio => "fio",
            Tool::PostMark => "postmark",
            Tool::FsMark => "fs_mark",
            Tool::Dbench => "dbench",
            Tool::Sqlite => "sqlite",
            Tool::Pgbench => "pgbench",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Tool::FsMark => "fsmark",
            Tool::Sqlite => "sqlite3",
            Tool::Pgbench => "postgresql, util-linux",
            other => other.name(),
        }
    }
}

impl FromStr for Tool {
    type Err = String;

    fn from_str(text: &str) -> Result<Tool, String> {
        let names = Tool::ALL.map(Tool::name).join(", ");
        let found = Tool::ALL.into_iter().find(|tool| tool.name() == text);
        found.ok_or_else(|| format!("there is no tool '{text}': there are {names}"))
    }
}

/// Runs tools on all targets that have a directory; a volume in this process gets no samples.
pub fn run_tools(
    tools: &[Tool],
    plan: &Plan,
    targets: &[Target],
    notice: &dyn Fn(Progress<'_>),
) -> Result<Report, Error> {
    let described = targets.iter().map(|target| (target.name.clone(), target.about.clone())).collect();
    let mut report = Report { targets: described, figures: Vec::new() };
    let seconds = match plan.terms.amount {
        Amount::Time(time) => time.as_secs_f64().ceil() as u64,
        Amount::Turns(_) => 1,
    };
    let jobs: Vec<Job> = tools.iter().flat_map(|tool| jobs(*tool, seconds.max(1))).collect();
    let turns = jobs.len() * plan.rounds * targets.len();
    let mut done = 0;
    for job in &jobs {
        let mut series = vec![Series::default(); targets.len()];
        for round in 0..plan.rounds {
            for turn in 0..targets.len() {
                let at = (round + turn) % targets.len();
                notice(Progress { done, of: turns, workload: job.tool.name(), target: &targets[at].name });
                done += 1;
                if let Some(path) = targets[at].path() {
                    let (sample, tally) = run(job, path, &targets[at], plan)?;
                    series[at].samples.push(sample);
                    series[at].tally.add(&tally);
                }
            }
        }
        report.figures.push(Figure {
            workload: job.tool.name().to_string(),
            phase: job.phase.to_string(),
            unit: job.unit,
            by_bytes: job.by_bytes,
            varies: None,
            series,
        });
    }
    Ok(report)
}

fn run(job: &Job, path: &Path, target: &Target, plan: &Plan) -> Result<(Sample, Tally), Error> {
    let tool = job.tool.name();
    let error = |why: String| Error::Tool { tool, target: target.name.clone(), why };
    let home = tempfile::Builder::new().prefix("amberfs-bench-").tempdir_in(path);
    let home = home.map_err(|why| error(why.to_string()))?;
    let start = |arguments: &[String]| {
        execute(job, arguments, home.path(), plan).map_err(|why| why.map_or(Error::Interrupted, &error))
    };
    if !job.before.is_empty() {
        start(&job.before)?;
    }
    let server = target.below().server;
    let busy_before = clock::machine_ns();
    let before = (server.and_then(clock::server_ns), clock::children_ns(), Instant::now());
    let text = start(&job.arguments)?;
    let wall_ns = before.2.elapsed().as_nanos() as u64;
    let cpu_ns = clock::children_ns() - before.1;
    let server_ns =
        server.and_then(clock::server_ns).zip(before.0).map(|(after, before)| after.saturating_sub(before));
    let machine_ns = clock::machine_ns().saturating_sub(busy_before);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("nothing").to_string();
    let (mut sample, tally) =
        (job.parse)(&text).ok_or_else(|| error(format!("what it says has no figure: {last}")))?;
    (sample.cpu_ns, sample.server_ns) = (cpu_ns, server_ns);
    sample.machine_ns = machine_ns;
    if sample.wall_ns == 0 {
        sample.wall_ns = wall_ns;
    }
    home.close().map_err(|why| error(format!("removing what it left: {why}")))?;
    Ok((sample, tally))
}

/// Runs the tool to its end, and gives what it says; or why it failed, `None` if the benchmark was interrupted.
fn execute(job: &Job, arguments: &[String], home: &Path, plan: &Plan) -> Result<String, Option<String>> {
    let told = |error: std::io::Error| Some(error.to_string());
    let (mut out, mut input) = (tempfile::tempfile().map_err(told)?, tempfile::tempfile().map_err(told)?);
    input.write_all(job.input.as_bytes()).and_then(|()| input.rewind()).map_err(told)?;
    let output = out.try_clone().map_err(told)?;
    let errors = out.try_clone().map_err(told)?;
    let mut command = Command::new(job.program);
    command
        .args(arguments)
        .current_dir(home)
        .stdin(input)
        .stdout(Stdio::from(output))
        .stderr(Stdio::from(errors));
    // A process group of its own: Ctrl-C is ours, and ending the group ends its children.
    let mut child = command.process_group(0).spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Some(format!("it is not installed (Debian: apt-get install {})", job.tool.package()))
        }
        _ => told(error),
    })?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(told)? {
            break status;
        }
        if plan.terms.interrupted.load(Ordering::Relaxed) {
            let _ = rustix::process::kill_process_group(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
            return Err(None);
        }
        std::thread::sleep(PAUSE);
    };
    let mut text = String::new();
    let read = out.rewind().and_then(|()| out.read_to_string(&mut text));
    read.map_err(told)?;
    if status.success() {
        return Ok(text);
    }
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it says nothing");
    Err(Some(format!("{last} ({status})")))
}
