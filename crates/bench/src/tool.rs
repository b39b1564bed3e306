//! Other people's generators, run in the same directories: nobody has to trust ours.

use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::campaign::{Figure, Plan, Progress, Report, Series};
use crate::clock;
use crate::directory::Directory;
use crate::error::{Error, Fault};
use crate::stage::{Account, Amount, Below};
use crate::statistics::{Sample, Tally};
use crate::target::Target;

mod jobs;

use jobs::{Job, jobs};

/// How often a tool that works is looked after.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a tool that is to end may put things away before it is killed.
const GRACE: Duration = Duration::from_secs(10);
/// What tools say that find no room: strerror(3)'s words, and those of fs_mark, which looks beforehand, and of SQLite.
const FULL: [(&str, Errno); 4] = [
    ("No space left on device", Errno::NOSPC),
    ("Disk quota exceeded", Errno::DQUOT),
    ("Insufficient free space", Errno::NOSPC),
    ("database or disk is full", Errno::NOSPC),
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
        Some(of(Fault::new(job.phase, errno)))
    };
    let home = tempfile::Builder::new().prefix("amberfs-bench-").tempdir_in(path);
    let home = home.map_err(|why| match Errno::from_io_error(&why) {
        Some(errno) => of(Fault::new("make a directory", errno)),
        None => error(why.to_string()),
    })?;
    let start = |arguments: &[String], stopped: Stopped<'_>| match execute(
        job,
        arguments,
        home.path(),
        plan,
        stopped,
    ) {
        Ok(text) => full(&text).map_or(Ok(text), Err),
        Err(Failed::Interrupted) => Err(Error::Interrupted),
        Err(Failed::Here(why)) => Err(error(why)),
        Err(Failed::Below(fault)) => Err(of(fault)),
        Err(Failed::There(text, status)) => {
            let last = last_line(&text).unwrap_or("it says nothing");
            Err(full(&text).unwrap_or_else(|| error(format!("{last} ({status})"))))
        }
    };
    if !job.before.is_empty() {
        start(&job.before, &mut |_| Ok(()))?;
    }
    let (mut meter, mut metered) = (Some(Meter::begin(target.below(), None)), None);
    let mut stops = 0;
    let text = start(&job.arguments, &mut |pid| {
        stops += 1;
        if stops == 1 {
            meter = Some(Meter::begin(target.below(), Some(pid)));
        } else if let Some(meter) = meter.take() {
            metered = Some(meter.end(directory)?);
        }
        Ok(())
    })?;
    if let Some(meter) = meter {
        metered = Some(meter.end(directory).map_err(of)?);
    }
    let metered = metered.unwrap_or_default();
    let last = last_line(&text).unwrap_or("nothing");
    let (told, tally) =
        (job.parse)(&text).ok_or_else(|| error(format!("what it says has no figure: {last}")))?;
    let wall_ns = if told.wall_ns == 0 { metered.wall_ns } else { told.wall_ns };
    let sample = Sample { operations: told.operations, bytes: told.bytes, wall_ns, ..metered };
    home.close().map_err(|why| error(format!("removing what it left: {why}")))?;
    Ok((sample, tally))
}

/// What a tool takes, from where what is measured begins to where it ends: its whole run, or what lies between the two stops
/// of a script that sets things up before and puts them away behind.
struct Meter<'a> {
    below: &'a Below,
    /// The script that is asked how long it and its children ran. Of a tool that is measured whole, what it took is known when
    /// it has ended.
    script: Option<u32>,
    server_ns: Option<u64>,
    cpu_ns: u64,
    began: Instant,
    account: Account<'a>,
}

impl<'a> Meter<'a> {
    fn begin(below: &'a Below, script: Option<u32>) -> Meter<'a> {
        let account = below.account();
        let (server_ns, cpu_ns) = (below.server.and_then(clock::server_ns), cpu_ns(script));
        Meter { below, script, server_ns, cpu_ns, began: Instant::now(), account }
    }

    fn end(self, directory: &Directory) -> Result<Sample, Fault> {
        let wall_ns = self.began.elapsed().as_nanos() as u64;
        let cpu_ns = cpu_ns(self.script).saturating_sub(self.cpu_ns);
        let server_ns = self.below.server.and_then(clock::server_ns);
        let server_ns = server_ns.zip(self.server_ns).map(|(after, before)| after.saturating_sub(before));
        let mut sample = Sample { wall_ns, cpu_ns, server_ns, ..Sample::default() };
        self.account.close(directory, &mut sample)?;
        Ok(sample)
    }
}

/// CPU time of a script and all below it, or of the children that have ended, nanoseconds: in ticks of 10 ms.
fn cpu_ns(script: Option<u32>) -> u64 {
    script.map_or_else(clock::children_ns, |script| {
        let ticks = ticks_below(script, &processes());
        ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second()
    })
}

/// Of a process: itself, its parent, and the ticks that it and those of its children took that have ended.
type Process = (u32, u32, u64);

fn processes() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let text = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The program's name, in brackets, may have blanks. Behind it: state, parent, and from the 12th on four times.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
        Some((pid, fields.get(1)?.parse().ok()?, ticks))
    };
    entries.filter_map(of).collect()
}

/// What a process and all that it made took.
fn ticks_below(root: u32, all: &[Process]) -> u64 {
    let (mut family, mut at) = (vec![root], 0);
    while let Some(parent) = family.get(at).copied() {
        family.extend(all.iter().filter(|process| process.1 == parent).map(|process| process.0));
        at += 1;
    }
    all.iter().filter(|process| family.contains(&process.0)).map(|process| process.2).sum()
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
    /// What it works on could not be looked at.
    Below(Fault),
    /// It failed: what it said, and how it ended.
    There(String, ExitStatus),
}

/// What is done while a tool has stopped itself; gets its number.
type Stopped<'a> = &'a mut dyn FnMut(u32) -> Result<(), Fault>;

/// Runs the tool to its end, and gives what it says.
fn execute(
    job: &Job,
    arguments: &[String],
    home: &Path,
    plan: &Plan,
    stopped: Stopped<'_>,
) -> Result<String, Failed> {
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
            end(&mut child);
            return Err(Failed::Interrupted);
        }
        if has_stopped(&child) {
            if let Err(fault) = stopped(child.id()) {
                end(&mut child);
                return Err(Failed::Below(fault));
            }
            let _ = rustix::process::kill_process(Pid::from_child(&child), Signal::CONT);
        }
        std::thread::sleep(PAUSE);
    };
    let mut text = String::new();
    let read = out.rewind().and_then(|()| out.read_to_string(&mut text));
    read.map_err(told)?;
    if status.success() { Ok(text) } else { Err(Failed::There(text, status)) }
}

/// Whether it has stopped itself since it was last asked.
fn has_stopped(child: &Child) -> bool {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
    matches!(rustix::process::waitid(WaitId::Pid(Pid::from_child(child)), options), Ok(Some(_)))
}

/// Ends a tool and its children: it is asked to, and what has not gone in time is killed.
fn end(child: &mut Child) {
    let group = Pid::from_child(child);
    let _ = rustix::process::kill_process_group(group, Signal::TERM);
    // One that has stopped hears of it when it goes on.
    let _ = rustix::process::kill_process_group(group, Signal::CONT);
    let began = Instant::now();
    while began.elapsed() < GRACE {
        // Its children may need a moment longer than itself.
        let has_ended = !matches!(child.try_wait(), Ok(None));
        if has_ended && rustix::process::test_kill_process_group(group).is_err() {
            return;
        }
        if !has_ended && has_stopped(child) {
            let _ = rustix::process::kill_process_group(group, Signal::CONT);
        }
        std::thread::sleep(PAUSE);
    }
    // What it left of its children, and itself if it is still there.
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_takes_is_what_its_family_takes() {
        let all = [(1, 0, 1000), (10, 1, 3), (11, 10, 20), (12, 11, 100), (20, 1, 7)];
        assert_eq!((ticks_below(10, &all), ticks_below(20, &all), ticks_below(99, &all)), (123, 7, 0));
        assert!(processes().iter().any(|process| process.0 == std::process::id()));
    }
}
