//! Other people's generators, run in the same directories: nobody has to trust ours.

use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value as Json;

use crate::campaign::{Figure, Plan, Progress, Report, Series};
use crate::clock;
use crate::error::Error;
use crate::flow::Unit;
use crate::stage::Amount;
use crate::statistics::{Kind, Latencies, Sample, Tally};
use crate::target::Target;

/// How often a tool that works is looked after.
const PAUSE: Duration = Duration::from_millis(5);
/// Bytes of the file that fio works on.
const FIO_BYTES: &str = "64m";
/// Files and transactions of PostMark, files of fs_mark: a second or so where it is fast.
const POSTMARK_FILES: u64 = 500;
const POSTMARK_TRANSACTIONS: u64 = 20_000;
const FS_MARK_FILES: u64 = 1000;
/// What each file of fs_mark holds, unless it is told otherwise.
const FS_MARK_BYTES: u64 = 51_200;
/// In less dbench tells no figure.
const DBENCH_SECONDS: u64 = 3;

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
}

impl Tool {
    const ALL: [Tool; 4] = [Tool::Fio, Tool::PostMark, Tool::FsMark, Tool::Dbench];

    fn program(self) -> &'static str {
        match self {
            Tool::Fio => "fio",
            Tool::PostMark => "postmark",
            Tool::FsMark => "fs_mark",
            Tool::Dbench => "dbench",
        }
    }

    fn package(self) -> &'static str {
        if self == Tool::FsMark { "fsmark" } else { self.program() }
    }
}

impl FromStr for Tool {
    type Err = String;

    fn from_str(text: &str) -> Result<Tool, String> {
        let names = Tool::ALL.map(Tool::program).join(", ");
        let found = Tool::ALL.into_iter().find(|tool| tool.program() == text);
        found.ok_or_else(|| format!("there is no tool '{text}': there are {names}"))
    }
}

/// One run of a tool.
struct Job {
    tool: Tool,
    phase: &'static str,
    unit: Unit,
    by_bytes: bool,
    /// Arguments to prepare what is worked on; none if nothing is to be.
    before: Vec<String>,
    arguments: Vec<String>,
    input: String,
    parse: fn(&str) -> Option<(Sample, Tally)>,
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
                notice(Progress { done, of: turns, workload: job.tool.program(), target: &targets[at].name });
                done += 1;
                if let Some(path) = targets[at].path() {
                    let (sample, tally) = run(job, path, &targets[at], plan)?;
                    series[at].samples.push(sample);
                    series[at].tally.add(&tally);
                }
            }
        }
        report.figures.push(Figure {
            workload: job.tool.program().to_string(),
            phase: job.phase.to_string(),
            unit: job.unit,
            by_bytes: job.by_bytes,
            varies: None,
            series,
        });
    }
    Ok(report)
}

fn jobs(tool: Tool, seconds: u64) -> Vec<Job> {
    let strings = |words: &[&str]| words.iter().map(|word| (*word).to_string()).collect::<Vec<_>>();
    let seconds = if tool == Tool::Dbench { seconds.max(DBENCH_SECONDS) } else { seconds }.to_string();
    let other = |phase, unit, arguments: &[&str], input: String, parse| Job {
        tool,
        phase,
        unit,
        by_bytes: false,
        before: Vec::new(),
        arguments: strings(arguments),
        input,
        parse,
    };
    match tool {
        Tool::Fio => [
            ("read 4 KiB, random", "randread", "4k", ""),
            ("write 4 KiB, random", "randwrite", "4k", ""),
            ("write 4 KiB, random, fdatasync", "randwrite", "4k", "--fdatasync=1"),
            ("read 1 MiB, sequential", "read", "1m", ""),
            ("write 1 MiB, sequential", "write", "1m", ""),
        ]
        .into_iter()
        .map(|(phase, rw, bs, sync)| {
            let size = format!("--size={FIO_BYTES}");
            let (rw, bs) = (format!("--rw={rw}"), format!("--bs={bs}"));
            let common = ["--name=amberfs", "--directory=.", "--ioengine=psync", "--thread", &size, &bs, &rw];
            let runtime = format!("--runtime={seconds}");
            let mut arguments = strings(&common);
            arguments.extend(strings(&["--time_based", &runtime, "--output-format=json+"]));
            arguments.extend((!sync.is_empty()).then(|| sync.to_string()));
            let mut before = strings(&[
                "--name=amberfs",
                "--directory=.",
                "--rw=write",
                "--bs=1m",
                "--output-format=terse",
                "--thread",
            ]);
            before.push(size);
            Job {
                tool,
                phase,
                unit: Unit::Operations,
                by_bytes: true,
                before,
                arguments,
                input: String::new(),
                parse: parse_fio,
            }
        })
        .collect(),
        Tool::PostMark => {
            let input = format!(
                "set location .\nset number {POSTMARK_FILES}\nset transactions {POSTMARK_TRANSACTIONS}\nrun\nquit\n"
            );
            vec![other("whole run", Unit::Turns("transactions"), &[], input, parse_postmark)]
        }
        Tool::FsMark => {
            let (files, bytes) = (FS_MARK_FILES.to_string(), FS_MARK_BYTES.to_string());
            let arguments =
                ["-d", ".", "-n", &files, "-s", &bytes, "-S", "1", "-t", "1", "-L", "1", "-l", "log"];
            vec![other("fsync before close", Unit::Turns("files"), &arguments, String::new(), parse_fs_mark)]
        }
        Tool::Dbench => {
            let mut job = other(
                "4 clients",
                Unit::Operations,
                &["-t", &seconds, "-D", ".", "4"],
                String::new(),
                parse_dbench,
            );
            job.by_bytes = true;
            vec![job]
        }
    }
}

fn run(job: &Job, path: &Path, target: &Target, plan: &Plan) -> Result<(Sample, Tally), Error> {
    let tool = job.tool.program();
    let error = |why: String| Error::Tool { tool, target: target.name.clone(), why };
    let home = tempfile::Builder::new().prefix("amberfs-bench-").tempdir_in(path);
    let home = home.map_err(|why| error(why.to_string()))?;
    let start = |arguments: &[String]| {
        execute(job, arguments, home.path(), plan).map_err(|why| why.map_or(Error::Interrupted, &error))
    };
    if !job.before.is_empty() {
        start(&job.before)?;
    }
    let before = (target.server().and_then(clock::server_ns), clock::children_ns(), Instant::now());
    let text = start(&job.arguments)?;
    let wall_ns = before.2.elapsed().as_nanos() as u64;
    let cpu_ns = clock::children_ns() - before.1;
    let server_ns = target
        .server()
        .and_then(clock::server_ns)
        .zip(before.0)
        .map(|(after, before)| after.saturating_sub(before));
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("nothing").to_string();
    let (mut sample, tally) =
        (job.parse)(&text).ok_or_else(|| error(format!("what it says has no figure: {last}")))?;
    (sample.cpu_ns, sample.server_ns) = (cpu_ns, server_ns);
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
    let mut command = Command::new(job.tool.program());
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

fn sample(operations: u64, bytes: u64, seconds: f64) -> Sample {
    Sample { operations, bytes, wall_ns: (seconds * 1e9) as u64, ..Sample::default() }
}

fn parse_fio(text: &str) -> Option<(Sample, Tally)> {
    // Notes may stand before the object.
    let json: Json = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = json["jobs"].get(0)?;
    let (mut operations, mut bytes, mut seconds) = (0, 0, 0.0f64);
    let mut tally = Tally::default();
    for (side, kind) in [("read", Kind::Read), ("write", Kind::Write)] {
        let part = &job[side];
        operations += part["total_ios"].as_u64()?;
        bytes += part["io_bytes"].as_u64()?;
        seconds = seconds.max(part["runtime"].as_f64()? / 1e3);
        let bins = part["clat_ns"]["bins"].as_object().into_iter().flatten();
        for (ns, count) in bins {
            let latencies: &mut Latencies = tally.kinds.entry(kind).or_default();
            latencies.note_many(ns.parse().ok()?, count.as_u64()?);
        }
    }
    (operations > 0 && seconds > 0.0).then(|| (sample(operations, bytes, seconds), tally))
}

/// PostMark counts whole seconds, so its run is timed from outside: making and removing its files included.
fn parse_postmark(text: &str) -> Option<(Sample, Tally)> {
    text.contains("seconds of transactions")
        .then(|| (sample(POSTMARK_TRANSACTIONS, 0, 0.0), Tally::default()))
}

/// The last line has: FSUse%, Count, Size, Files/sec, App Overhead.
fn parse_fs_mark(text: &str) -> Option<(Sample, Tally)> {
    let fields = |line: &str| {
        line.split_whitespace().map(|field| field.parse::<f64>().ok()).collect::<Option<Vec<_>>>()
    };
    let row = text.lines().rev().find_map(|line| fields(line).filter(|fields| fields.len() == 5))?;
    let (count, rate) = (row[1], row[3]);
    let found = sample(count as u64, count as u64 * FS_MARK_BYTES, count / rate);
    (count > 0.0 && rate > 0.0).then(|| (found, Tally::default()))
}

/// `Throughput 123.4 MB/sec  4 clients ...`, in millions of bytes; and a table of operations and how many there were.
fn parse_dbench(text: &str) -> Option<(Sample, Tally)> {
    let line = text.lines().rev().find(|line| line.starts_with("Throughput"))?;
    let rate: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    let table = text.lines().skip_while(|line| !line.contains("AvgLat")).skip(1);
    let counts = table.map_while(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // A rule may stand between the head and the table.
        if fields.len() == 1 && fields[0].starts_with('-') {
            Some(0)
        } else {
            fields.get(1)?.parse::<u64>().ok()
        }
    });
    let operations: u64 = counts.sum();
    let running = text.lines().find_map(|line| line.strip_prefix("Running for "))?;
    let seconds: f64 = running.split_whitespace().next()?.parse().ok()?;
    (rate > 0.0).then(|| (sample(operations, (rate * 1e6 * seconds) as u64, seconds), Tally::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_what_tools_say() {
        let fio = r#"note: both iodepth >= 1 and synchronous I/O engine are selected
{ "jobs": [ { "read": { "total_ios": 0, "io_bytes": 0, "runtime": 0, "clat_ns": { "bins": {} } },
  "write": { "total_ios": 300, "io_bytes": 1228800, "runtime": 1500, "clat_ns": { "bins": { "1000": 200, "9000": 100 } } } } ] }"#;
        let (sample, tally) = parse_fio(fio).unwrap();
        assert_eq!((sample.operations, sample.bytes, sample.wall_ns), (300, 1_228_800, 1_500_000_000));
        let latencies = &tally.kinds[&Kind::Write];
        assert_eq!(latencies.count(), 300);
        assert!(latencies.percentile_ns(50.0) < 1100 && latencies.percentile_ns(99.0) > 8900);

        let fs_mark = "#  fs_mark  -d  .  -n  100\nFSUse%        Count         Size    Files/sec     App Overhead\n\
                       \x20   75          100        51200        200.0             1375\n";
        let (sample, _) = parse_fs_mark(fs_mark).unwrap();
        assert_eq!((sample.operations, sample.wall_ns), (100, 500_000_000));

        let dbench = "Running for 3 seconds with load 'client.txt'\n\n Operation      Count    AvgLat    MaxLat\n \
                      ----------------------------------------\n NTCreateX       3080     0.067    16.159\n Close   \
                      2357     0.001     0.036\n\nThroughput 100.5 MB/sec  2 clients  2 procs  max_latency=3.0 ms\n";
        let (sample, _) = parse_dbench(dbench).unwrap();
        assert_eq!((sample.operations, sample.bytes, sample.wall_ns), (5437, 301_500_000, 3_000_000_000));

        assert!(
            parse_postmark("Time:\n\t1 seconds total\n\t1 seconds of transactions (1000 per second)\n")
                .is_some()
        );
    }

    #[test]
    fn what_has_no_figure_is_no_figure() {
        for text in
            ["", "error: no space", "{}", "{\"jobs\": []}", "Throughput 0 MB/sec", "75 0 51200 0 1375"]
        {
            for parse in [parse_fio, parse_postmark, parse_fs_mark, parse_dbench] {
                assert!(parse(text).is_none(), "{text}");
            }
        }
    }
}
