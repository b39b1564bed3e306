//! A load whose every finished operation is on record, and the judge of what a crash left of it.
//!
//! ```text
//! acknowledged write  DIR LOG [--threads N] [--seconds S] [--operations N]
//! acknowledged verify DIR LOG
//! ```
//!
//! `write` works on files of DIR, a few names per thread. A name goes through **versions**: what operation makes
//! a version, and what the file holds then, follows from its name and number alone. When an operation and its
//! `fsync` have returned, `write` appends `NAME VERSION CHECKSUM` to LOG, in one `write(2)`. LOG lies where the
//! crash does not reach.
//!
//! `verify` wants to find each name as its newest version on record left it, or as the one operation after it
//! (which the crash may have cut short) may leave it on the way. The contents are units of 4 KiB, each with its
//! name, version and checksum: a unit of mixed or wrong bytes is told from an old one.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a unit; a file's last one may be shorter.
const UNIT: usize = 4096;
/// Bytes of a unit's head: name, version, index, length (8 each), checksum (8).
const HEAD: usize = 40;
/// Names that each thread works on in turn.
const NAMES_PER_THREAD: u64 = 24;
/// Versions after which a name begins anew: the last of them is its removal.
const CYCLE: u64 = 8;

/// How a version comes about, by its place in the cycle.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Create,
    OverwriteAll,
    OverwriteOne,
    Append,
    Halve,
    Replace,
    Remove,
}

fn step(version: u64) -> Step {
    [
        Step::Create,
        Step::OverwriteAll,
        Step::Append,
        Step::OverwriteOne,
        Step::Replace,
        Step::Halve,
        Step::OverwriteAll,
        Step::Remove,
    ][(version % CYCLE) as usize]
}

/// SplitMix64: a stream of numbers that follows from its start alone.
struct Numbers(u64);

impl Numbers {
    fn of(parts: &[u64]) -> Numbers {
        let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
        for part in parts {
            numbers.0 ^= *part;
            numbers.next();
        }
        numbers
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// FNV-1a, 64 bits.
fn checksum(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    bytes.fold(0xCBF2_9CE4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

/// One unit of a file, as the model knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unit {
    version: u64,
    bytes: usize,
}

/// What a file holds: its units, or nothing if it is not there.
type Contents = Option<Vec<Unit>>;

fn fresh(version: u64, bytes: usize) -> Vec<Unit> {
    let whole = bytes / UNIT;
    let mut units = vec![Unit { version, bytes: UNIT }; whole];
    // A rest too short for a head is left out.
    if bytes % UNIT > HEAD {
        units.push(Unit { version, bytes: bytes % UNIT });
    }
    units
}

/// What version `version` of `name` makes of what the one before it left.
fn apply(name: u64, version: u64, before: &Contents) -> Contents {
    let mut numbers = Numbers::of(&[name, version]);
    let bytes = if numbers.below(3) == 0 { 64 + numbers.below(3000) } else { 4096 + numbers.below(80_000) };
    let mut units = before.clone().unwrap_or_default();
    match step(version) {
        Step::Create | Step::Replace => Some(fresh(version, bytes as usize)),
        Step::Remove => None,
        Step::OverwriteAll => {
            units.iter_mut().for_each(|unit| unit.version = version);
            Some(units)
        }
        Step::OverwriteOne => {
            if !units.is_empty() {
                let index = numbers.below(units.len() as u64) as usize;
                units[index].version = version;
            }
            Some(units)
        }
        Step::Append => {
            // The short last unit grows to a whole one, then more follow.
            if let Some(last) = units.last_mut().filter(|last| last.bytes < UNIT) {
                *last = Unit { version, bytes: UNIT };
            }
            units.extend(fresh(version, UNIT * (1 + numbers.below(4) as usize) + 100));
            Some(units)
        }
        Step::Halve => {
            units.truncate(units.len().div_ceil(2));
            Some(units)
        }
    }
}

/// What `name` holds at `version`. The cycle begins with nothing, so no earlier one matters.
fn contents(name: u64, version: u64) -> Contents {
    let start = version - version % CYCLE;
    (start..=version).fold(None, |before, version| apply(name, version, &before))
}

fn fill(name: u64, index: usize, unit: Unit) -> Vec<u8> {
    let mut numbers = Numbers::of(&[name, unit.version, index as u64]);
    let mut body = Vec::with_capacity(unit.bytes + 8);
    while body.len() < unit.bytes - HEAD {
        body.extend(numbers.next().to_le_bytes());
    }
    body.truncate(unit.bytes - HEAD);
    let head: Vec<u8> = [name, unit.version, index as u64, unit.bytes as u64]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let sum = checksum(&[&head, &body]);
    [head, sum.to_le_bytes().to_vec(), body].concat()
}

/// Tells which version a unit's bytes are, or what is wrong with them.
fn recognise(name: u64, index: usize, bytes: &[u8]) -> Result<u64, String> {
    if bytes.len() <= HEAD {
        return Err(format!("{} bytes, too few for a unit", bytes.len()));
    }
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    if word(32) != checksum(&[&bytes[..32], &bytes[HEAD..]]) {
        return Err(format!("its checksum is wrong (it claims name {}, version {})", word(0), word(8)));
    }
    if (word(0), word(16), word(24)) != (name, index as u64, bytes.len() as u64) {
        return Err(format!("it belongs to unit {} of name {}, {} bytes", word(16), word(0), word(24)));
    }
    Ok(word(8))
}

fn path_of(dir: &Path, name: u64) -> PathBuf {
    dir.join(format!("file-{name}"))
}

fn write_units(file: &File, name: u64, before: &[Unit], after: &[Unit]) -> io::Result<()> {
    // One call for each run of units that changed.
    let mut index = 0;
    while index < after.len() {
        let first = index;
        let mut bytes = Vec::new();
        while index < after.len() && before.get(index) != Some(&after[index]) {
            bytes.extend(fill(name, index, after[index]));
            index += 1;
        }
        if bytes.is_empty() {
            index += 1;
        } else {
            file.write_all_at(&bytes, (first * UNIT) as u64)?;
        }
    }
    Ok(())
}

/// Takes `name` to `version`, durably.
fn perform(dir: &Path, name: u64, version: u64) -> io::Result<()> {
    let path = path_of(dir, name);
    let before = if version.is_multiple_of(CYCLE) { None } else { contents(name, version - 1) };
    let after = apply(name, version, &before);
    let sync_dir = || File::open(dir).and_then(|dir| dir.sync_all());
    let units = after.unwrap_or_default();
    match step(version) {
        Step::Create => {
            let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
            write_units(&file, name, &[], &units)?;
            file.sync_all()?;
            sync_dir()
        }
        Step::Replace => {
            let temporary = dir.join(format!("new-{name}"));
            let file = File::create(&temporary)?;
            write_units(&file, name, &[], &units)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            sync_dir()
        }
        Step::Remove => std::fs::remove_file(&path).and_then(|()| sync_dir()),
        Step::Halve => {
            let file = OpenOptions::new().write(true).open(&path)?;
            file.set_len(units.iter().map(|unit| unit.bytes as u64).sum())?;
            file.sync_all()
        }
        Step::OverwriteAll | Step::OverwriteOne | Step::Append => {
            let file = OpenOptions::new().write(true).open(&path)?;
            write_units(&file, name, &before.unwrap_or_default(), &units)?;
            file.sync_data()
        }
    }
}

/// The checksum of all that `name` holds at `version`.
fn sum_of(name: u64, version: u64) -> u64 {
    let units = contents(name, version).unwrap_or_default();
    let bytes: Vec<Vec<u8>> =
        units.iter().enumerate().map(|(index, unit)| fill(name, index, *unit)).collect();
    checksum(&bytes.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

struct Load {
    dir: PathBuf,
    threads: u64,
    duration: Duration,
    operations_max: u64,
}

fn write(load: &Load, log: &Path) -> io::Result<u64> {
    // Appending needs no position of its own: a port of an emulated machine has none.
    let log = OpenOptions::new().append(true).create(true).open(log)?;
    let done = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let end = Instant::now() + load.duration;
    let work = |thread: u64| -> io::Result<()> {
        let mut versions = vec![0u64; NAMES_PER_THREAD as usize];
        let mut numbers = Numbers::of(&[thread]);
        while Instant::now() < end
            && !stop.load(Ordering::Relaxed)
            && done.load(Ordering::Relaxed) < load.operations_max
        {
            let slot = numbers.below(NAMES_PER_THREAD);
            let (name, version) = (thread * NAMES_PER_THREAD + slot, versions[slot as usize]);
            perform(&load.dir, name, version)?;
            versions[slot as usize] += 1;
            (&log).write_all(format!("{name} {version} {:016x}\n", sum_of(name, version)).as_bytes())?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..load.threads)
            .map(|thread| {
                let (work, stop) = (&work, &stop);
                scope.spawn(move || {
                    let result = work(thread);
                    if result.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    result
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker panicked"))
    })?;
    Ok(done.into_inner())
}

/// The newest version of each name on record. A last line without its end was never acknowledged.
fn read_log(path: &Path) -> io::Result<(BTreeMap<u64, u64>, usize)> {
    let mut text = String::new();
    File::open(path)?.read_to_string(&mut text)?;
    let mut newest = BTreeMap::new();
    let mut lines = 0;
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let parsed = match fields[..] {
            [name, version, sum] => {
                name.parse().ok().zip(version.parse().ok()).zip(u64::from_str_radix(sum, 16).ok())
            }
            _ => None,
        };
        let Some(((name, version), sum)) = parsed else {
            return Err(io::Error::other(format!("{}: not a record: {line:?}", path.display())));
        };
        if sum != sum_of(name, version) {
            return Err(io::Error::other(format!(
                "the record of name {name}, version {version} has a wrong checksum"
            )));
        }
        newest.insert(name, version);
        lines += 1;
    }
    Ok((newest, lines))
}

/// Whether what is there may be what `before` or `after` is, or a step on the way from one to the other.
fn judge(dir: &Path, name: u64, before: &Contents, next: u64) -> Result<(), String> {
    let after = apply(name, next, before);
    let found = match std::fs::read(path_of(dir, name)) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(format!("cannot be read: {error}")),
    };
    let Some(found) = found else {
        return if before.is_none() || after.is_none() { Ok(()) } else { Err("is missing".into()) };
    };
    let mut versions = Vec::new();
    for (index, bytes) in found.chunks(UNIT).enumerate() {
        versions.push((recognise(name, index, bytes), bytes.len()));
    }
    let is = |contents: &Contents| {
        contents.as_ref().is_some_and(|units| {
            units.len() == versions.len()
                && units
                    .iter()
                    .zip(&versions)
                    .all(|(unit, (version, bytes))| *version == Ok(unit.version) && *bytes == unit.bytes)
        })
    };
    if is(before) || is(&after) {
        return Ok(());
    }
    // In place, units change one after another; a new file grows. What was acknowledged stays whole.
    let old = before.clone().unwrap_or_default();
    let new = after.unwrap_or_default();
    let in_place =
        matches!(step(next), Step::OverwriteAll | Step::OverwriteOne | Step::Append | Step::Create);
    for (index, (version, bytes)) in versions.iter().enumerate() {
        let fits = |unit: Option<&Unit>| {
            unit.is_some_and(|unit| *version == Ok(unit.version) && *bytes == unit.bytes)
        };
        // Only an operation that was under way may leave a unit half grown or not yet written (zeros).
        let growing = index >= old.len() || old[index].bytes < UNIT && step(next) == Step::Append;
        if fits(old.get(index)) || in_place && (fits(new.get(index)) || growing) {
            continue;
        }
        return Err(match version {
            Ok(version) => format!("unit {index} ({bytes} bytes) is of version {version}"),
            Err(fault) => format!("unit {index} ({bytes} bytes): {fault}"),
        });
    }
    let (least, most) = (old.len().min(new.len()), old.len().max(new.len()));
    if in_place && (least..=most).contains(&versions.len()) {
        return Ok(());
    }
    Err(format!("has {} units, not {} or {}", versions.len(), old.len(), new.len()))
}

fn verify(dir: &Path, log: &Path) -> io::Result<(usize, usize, Vec<String>)> {
    let (newest, lines) = read_log(log)?;
    let mut faults = Vec::new();
    for (&name, &version) in &newest {
        if let Err(fault) = judge(dir, name, &contents(name, version), version + 1) {
            faults.push(format!(
                "file-{name} {fault}; acknowledged: version {version} ({:?}), under way perhaps: {:?}",
                step(version),
                step(version + 1)
            ));
        }
    }
    Ok((newest.len(), lines, faults))
}

fn usage() -> ExitCode {
    eprintln!("usage: acknowledged write DIR LOG [--threads N] [--seconds S] [--operations N]");
    eprintln!("       acknowledged verify DIR LOG");
    ExitCode::from(2)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verb, dir, log, options @ ..] = &arguments[..] else { return usage() };
    let mut load =
        Load { dir: dir.into(), threads: 2, duration: Duration::from_secs(5), operations_max: u64::MAX };
    for pair in options.chunks(2) {
        let [name, value] = pair else { return usage() };
        let Ok(value) = value.parse::<u64>() else { return usage() };
        match name.as_str() {
            "--threads" => load.threads = value,
            "--seconds" => load.duration = Duration::from_secs(value),
            "--operations" => load.operations_max = value,
            _ => return usage(),
        }
    }
    match verb.as_str() {
        "write" => match write(&load, Path::new(log)) {
            Ok(done) => {
                println!("{done} operations acknowledged");
                ExitCode::SUCCESS
            }
            Err(error) => {
                // Under a crash test the file system goes away: the log says what had been acknowledged.
                eprintln!("acknowledged: the load ended: {error}");
                ExitCode::FAILURE
            }
        },
        "verify" => match verify(Path::new(dir), Path::new(log)) {
            Ok((files, operations, faults)) => {
                for fault in &faults {
                    println!("LOST: {fault}");
                }
                println!("{operations} acknowledged operations on {files} files: {} lost", faults.len());
                if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(error) => {
                eprintln!("acknowledged: cannot verify: {error}");
                ExitCode::FAILURE
            }
        },
        _ => usage(),
    }
}
