//! What each tool is told to do, and what it says then.

use serde_json::Value as Json;

use super::Tool;
use crate::flow::Unit;
use crate::statistics::{Kind, Latencies, Sample, Tally};

/// Bytes of the file that fio works on.
const FIO_BYTES: &str = "64m";
/// Files and transactions of PostMark, files of fs_mark: a second or so where it is fast.
const POSTMARK_FILES: u64 = 500;
const POSTMARK_TRANSACTIONS: u64 = 20_000;
const FS_MARK_FILES: u64 = 1000;
/// What each file of fs_mark holds, unless it is told otherwise.
const FS_MARK_BYTES: u64 = 51_200;
/// In less dbench tells no figure, and pgbench one of little worth.
const DBENCH_SECONDS: u64 = 3;
/// Transactions of SQLite: seconds where each waits for a disk several times.
const SQLITE_TRANSACTIONS: u64 = 1000;
/// pgbench's own, on a cluster of its own.
const PGBENCH: &str = include_str!("pgbench.sh");

/// One run of a tool.
pub(super) struct Job {
    pub(super) tool: Tool,
    /// What is run.
    pub(super) program: &'static str,
    pub(super) phase: &'static str,
    pub(super) unit: Unit,
    pub(super) by_bytes: bool,
    /// Arguments to prepare what is worked on; none if nothing is to be.
    pub(super) before: Vec<String>,
    pub(super) arguments: Vec<String>,
    pub(super) input: String,
    pub(super) parse: fn(&str) -> Option<(Sample, Tally)>,
}

pub(super) fn jobs(tool: Tool, seconds: u64) -> Vec<Job> {
    let strings = |words: &[&str]| words.iter().map(|word| (*word).to_string()).collect::<Vec<_>>();
    let least = if matches!(tool, Tool::Dbench | Tool::Pgbench) { DBENCH_SECONDS } else { 0 };
    let seconds = seconds.max(least).to_string();
    let program = tool.program();
    let other = |phase, unit, arguments: &[&str], input: String, parse| Job {
        tool,
        program,
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
                program,
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
        Tool::Sqlite => [("write-ahead log", "WAL", "FULL"), ("rollback journal", "DELETE", "EXTRA")]
            .into_iter()
            .map(|(phase, mode, synchronous)| {
                let begin = format!(
                    "PRAGMA journal_mode={mode};\nPRAGMA synchronous={synchronous};\n\
                     CREATE TABLE bench(key INTEGER PRIMARY KEY, value BLOB);\n"
                );
                let insert = "INSERT INTO bench(value) VALUES(randomblob(100));\n"
                    .repeat(SQLITE_TRANSACTIONS as usize);
                let input = format!("{begin}{insert}SELECT 'rows', count(*) FROM bench;\n");
                other(
                    phase,
                    Unit::Turns("transactions"),
                    &["-batch", "-bail", "database"],
                    input,
                    parse_sqlite,
                )
            })
            .collect(),
        Tool::Pgbench => {
            let shell = ["-c", PGBENCH, "sh", &seconds];
            let mut job =
                other("4 clients", Unit::Turns("transactions"), &shell, String::new(), parse_pgbench);
            job.program = "sh";
            if rustix::process::geteuid().is_root() {
                job.program = "unshare";
                job.arguments.splice(0..0, strings(&["--mount", "sh"]));
            }
            vec![job]
        }
    }
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
    // What a write takes with the sync behind it is not told.
    if job["sync"]["lat_ns"]["N"].as_u64().is_some_and(|syncs| syncs > 0) {
        tally = Tally::default();
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

/// Timed from outside: SQLite's shell tells no times. All rows have to be there.
fn parse_sqlite(text: &str) -> Option<(Sample, Tally)> {
    let rows: u64 = text.lines().last()?.strip_prefix("rows|")?.parse().ok()?;
    (rows == SQLITE_TRANSACTIONS).then(|| (sample(rows, 0, 0.0), Tally::default()))
}

/// `number of transactions actually processed: 3702` and `tps = 1234.5 (without initial connection time)`.
fn parse_pgbench(text: &str) -> Option<(Sample, Tally)> {
    let after = |start: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(start))?;
        rest.split(['/', ' ']).find_map(|word| word.parse::<f64>().ok())
    };
    let (count, rate) = (after("number of transactions actually processed:")?, after("tps =")?);
    (count > 0.0 && rate > 0.0).then(|| (sample(count as u64, 0, count / rate), Tally::default()))
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

        let pgbench = "number of threads: 2\nnumber of transactions actually processed: 3000\nlatency average = 4.0 ms\n\
                       tps = 1000.0 (without initial connection time)\n";
        let (sample, _) = parse_pgbench(pgbench).unwrap();
        assert_eq!((sample.operations, sample.wall_ns), (3000, 3_000_000_000));

        assert_eq!(parse_sqlite("wal\nrows|1000\n").unwrap().0.operations, 1000);
        assert!(parse_sqlite("wal\nrows|999\n").is_none());

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
            for parse in [parse_fio, parse_postmark, parse_fs_mark, parse_dbench, parse_sqlite, parse_pgbench]
            {
                assert!(parse(text).is_none(), "{text}");
            }
        }
    }
}
