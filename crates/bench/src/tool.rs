//! Other people's generators, run in the same directories: nobody has to trust ours.

use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::campaign::{Figure, Plan, Progress, Report, Series};
use crate::clock;
use crate::directory::Directory;
use crate::error::{Error, Fault};
use crate::stage::Amount;
use crate::statistics::{Sample, Tally};
use crate::target::Target;

mod jobs;

use jobs::{Job, jobs};

/// How often a tool that works is looked after.
const PAUSE: Duration = Duration::from_millis(5);
/// What tools say that find no room: strerror(3)'s words, and those of fs_mark, which looks beforehand.
const FULL: [(&str, Errno); 3] = [
    ("No space left on device", Errno::NOSPC),
    ("Disk quota exceeded", Errno::DQUOT),
    ("Insufficient free space", Errno::NOSPC),
];

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

    /// The program that is run.
    fn program(self) -> &'static str {
        match self {
            Tool::Sqlite => "sqlite3",
            // Of all that PostgreSQL has, what is in nobody's PATH on Debian is looked for by its script.
            Tool::Pgbench => "pgbench",
            other => other.name(),
        }
    }

    /// Asks whether it is installed, as far as PATH tells: before anything is measured in vain.
    ///
    /// # Errors
    /// It is not; with the package that has it.
    pub fn find(self) -> Result<(), String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there = std::env::split_paths(&path).any(|dir| dir.join(self.program()).is_file());
        if is_there { Ok(()) } else { Err(format!("{}: {}", self.name(), self.is_missing())) }
    }

    fn is_missing(self) -> String {
        format!("it is not installed (Debian: apt-get install {})", self.package())
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

/// Runs tools on all targets that have a directory, to the end or the first error; a volume in this process gets no samples.
pub fn run_tools(tools: &[Tool], plan: &Plan, targets: &[Target], notice: &dyn Fn(Progress<'_>)) -> Report {
    let mut report = Report::of(targets);
    let seconds = match plan.terms.amount {
        Amount::Time(time) => time.as_secs_f64().ceil() as u64,
        Amount::Turns(_) => 1,
    };
    let jobs: Vec<Job> = tools.iter().flat_map(|tool| jobs(*tool, seconds.max(1))).collect();
    let turns = jobs.len() * plan.rounds * targets.len();
    for (number, job) in jobs.iter().enumerate() {
        let tell = |done: usize, target: usize| {
            let (done, target) = (number * plan.rounds * targets.len() + done, &targets[target].name);
            notice(Progress { done, of: turns, workload: job.tool.name(), target });
        };
        if !report.take(measure(job, plan, targets, &tell).map(|figure| vec![figure])) {
            break;
        }
    }
    report
}

/// One run after the other on all targets, in turns.
fn measure(job: &Job, plan: &Plan, targets: &[Target], tell: &dyn Fn(usize, usize)) -> Result<Figure, Error> {
    let mut series = vec![Series::default(); targets.len()];
    for round in 0..plan.rounds {
        for turn in 0..targets.len() {
            let at = (round + turn) % targets.len();
            tell(round * targets.len() + turn, at);
            if let Some(mounted) = targets[at].mounted() {
                let (sample, tally) = run(job, mounted, &targets[at], plan)?;
                series[at].samples.push(sample);
                series[at].tally.add(&tally);
            }
        }
    }
    Ok(Figure {
        workload: job.tool.name().to_string(),
        phase: job.phase.to_string(),
        unit: job.unit,
        by_bytes: job.by_bytes,
        varies: None,
        series,
    })
}

fn run(
    job: &Job,
    (directory, path): (&Directory, &Path),
    target: &Target,
    plan: &Plan,
) -> Result<(Sample, Tally), Error> {
    let tool = job.tool.name();
    let error = |why: String| Error::Tool { tool, target: target.name.clone(), why };
    let of = |fault: Fault| Error::of(fault, &target.name, tool);
    // A tool that finds no room says so, and may go on.
    let full = |text: &str| {
        let (_, errno) = FULL.into_iter().find(|(words, _)| text.contains(words))?;
        Some(of(Fault { doing: job.phase, errno }))
    };
    let home = tempfile::Builder::new().prefix("amberfs-bench-").tempdir_in(path);
    let home = home.map_err(|why| match Errno::from_io_error(&why) {
        Some(errno) => of(Fault { doing: "make a directory", errno }),
        None => error(why.to_string()),
    })?;
    let start = |arguments: &[String]| match execute(job, arguments, home.path(), plan) {
        Ok(text) => full(&text).map_or(Ok(text), Err),
        Err(Failed::Interrupted) => Err(Error::Interrupted),
        Err(Failed::Here(why)) => Err(error(why)),
        Err(Failed::There(text, status)) => {
            let last = last_line(&text).unwrap_or("it says nothing");
            Err(full(&text).unwrap_or_else(|| error(format!("{last} ({status})"))))
        }
    };
    if !job.before.is_empty() {
        start(&job.before)?;
    }
    let server = target.below().server;
    let account = target.below().account();
    let before = (server.and_then(clock::server_ns), clock::children_ns(), Instant::now());
    let text = start(&job.arguments)?;
    let wall_ns = before.2.elapsed().as_nanos() as u64;
    let cpu_ns = clock::children_ns() - before.1;
    let server_ns =
        server.and_then(clock::server_ns).zip(before.0).map(|(after, before)| after.saturating_sub(before));
    let last = last_line(&text).unwrap_or("nothing");
    let (mut sample, tally) =
        (job.parse)(&text).ok_or_else(|| error(format!("what it says has no figure: {last}")))?;
    (sample.cpu_ns, sample.server_ns) = (cpu_ns, server_ns);
    account.close(directory, &mut sample).map_err(of)?;
    if sample.wall_ns == 0 {
        sample.wall_ns = wall_ns;
    }
    home.close().map_err(|why| error(format!("removing what it left: {why}")))?;
    Ok((sample, tally))
}

/// The last line that says something.
fn last_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).rfind(|line| !line.is_empty())
}

/// Why a tool did not come to its end.
enum Failed {
    /// The benchmark was interrupted.
    Interrupted,
    /// It could not be run, or heard.
    Here(String),
    /// It failed: what it said, and how it ended.
    There(String, ExitStatus),
}

/// Runs the tool to its end, and gives what it says.
fn execute(job: &Job, arguments: &[String], home: &Path, plan: &Plan) -> Result<String, Failed> {
    let told = |error: std::io::Error| Failed::Here(error.to_string());
    let (mut out, mut input) = (tempfile::tempfile().map_err(told)?, tempfile::tempfile().map_err(told)?);
    input.write_all(job.input.as_bytes()).and_then(|()| input.rewind()).map_err(told)?;
    let output = out.try_clone().map_err(told)?;
    let errors = out.try_clone().map_err(told)?;
    let mut command = Command::new(job.program);
    command
        .args(arguments)
        .env("LC_ALL", "C")
        .current_dir(home)
        .stdin(input)
        .stdout(Stdio::from(output))
        .stderr(Stdio::from(errors));
    // A process group of its own: Ctrl-C is ours, and ending the group ends its children.
    let mut child = command.process_group(0).spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failed::Here(job.tool.is_missing()),
        _ => told(error),
    })?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(told)? {
            break status;
        }
        if plan.terms.interrupted.load(Ordering::Relaxed) {
            let _ = rustix::process::kill_process_group(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
            return Err(Failed::Interrupted);
        }
        std::thread::sleep(PAUSE);
    };
    let mut text = String::new();
    let read = out.rewind().and_then(|()| out.read_to_string(&mut text));
    read.map_err(told)?;
    if status.success() { Ok(text) } else { Err(Failed::There(text, status)) }
}
