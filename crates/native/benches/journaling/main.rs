//! Shortcut-JFS §IV for the native volume: what its four ways to log bytes cost, how fast they are and how much of the
//! medium they write, on DRAM and on emulated phase-change memory.
//!
//! ```text
//! cargo bench -p amberfs-native --bench journaling                  all tables
//! cargo bench -p amberfs-native --bench journaling -- --quick       fewer rounds, less data
//! cargo bench -p amberfs-native --bench journaling -- --full        filesets as large as the paper's, not an eighth
//! cargo bench -p amberfs-native --bench journaling -- writes pcm    only these
//! ```
//! Words choose among `writes`, `postmark`, `memory`, and among `dram`, `pcm`. `--rounds N` sets the rounds, `--dir PATH`
//! puts the zones there. Where zones are otherwise: see the benchmark `operations`.
//!
//! How it measures: volumes are called as a library, on one thread, mounted with `durability=op`: each write is durable
//! when it returns. They make no checkpoints but when the log is full and after each batch, and that is part of the
//! batch: of its time and of what it writes. What reached NVM is counted by the volume's account in lines of 64 B that
//! were flushed or streamed; a line that was sent twice counts twice. Rounds go from scheme to scheme, and schemes
//! take turns in being first.
//!
//! `--in DIR (--pattern NAME | --fileset N) --size BYTES (--sync each|end|none | --called)` is one batch, for
//! `tests/bench/journaling.py`: by system calls on files in that directory, or on a new volume in a zone there. It prints
//! its seconds and bytes.

#[path = "../scale/dram.rs"]
mod dram;
mod files;
#[path = "../operations/measure.rs"]
#[allow(dead_code, reason = "the other benchmark uses the rest")]
mod measure;
mod memory;
#[path = "../operations/place.rs"]
#[allow(dead_code, reason = "the other benchmark uses the rest")]
mod place;
mod postmark;
mod report;
mod writes;

use std::path::PathBuf;

use native::Journaling;
use nvm::Technology;

use crate::files::{Called, Directory, Files, Sync};

/// Sizes of a write, bytes. The paper has 1 to 4 KiB, in steps of one.
const SIZES: [usize; 8] = [256, 512, 1 << 10, 2 << 10, 3 << 10, 4 << 10, 8 << 10, 16 << 10];

const USAGE: &str = "choose from writes, postmark, memory, dram, pcm";

/// What the command line asks for.
pub(crate) struct Plan {
    pub(crate) quick: bool,
    /// PostMark's filesets as large as the paper's.
    pub(crate) full: bool,
    pub(crate) rounds: usize,
    /// Where the zones go.
    pub(crate) dir: PathBuf,
    words: Vec<String>,
}

impl Plan {
    /// Whether `word` is asked for, be it that none of its kind is.
    fn wants(&self, word: &str, kind: &[&str]) -> bool {
        let chosen = |word: &str| self.words.iter().any(|other| other == word);
        chosen(word) || !kind.iter().any(|other| chosen(other))
    }

    fn technologies(&self) -> impl Iterator<Item = Technology> {
        let chosen = |technology: &Technology| self.wants(&technology.to_string(), &["dram", "pcm"]);
        [Technology::Dram, Technology::Pcm].into_iter().filter(chosen)
    }
}

/// One batch in a directory.
struct Batch {
    dir: PathBuf,
    pattern: Option<String>,
    fileset: usize,
    size: usize,
    sync: Sync,
    /// On a new volume in a zone in the directory, without system calls.
    is_called: bool,
}

enum Asked {
    Tables(Plan),
    Batch(Batch),
}

fn arguments() -> Result<Asked, String> {
    let mut plan = Plan { quick: false, full: false, rounds: 0, dir: PathBuf::new(), words: Vec::new() };
    let mut batch = Batch {
        dir: PathBuf::new(),
        pattern: None,
        fileset: 0,
        size: 4096,
        sync: Sync::End,
        is_called: false,
    };
    let (mut dir, mut has_own_mounts) = (None, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number = |text: String| text.parse::<usize>().map_err(|_| format!("{argument} needs a number"));
        match argument.as_str() {
            "--bench" => {} // cargo's own
            "--quick" => plan.quick = true,
            "--full" => plan.full = true,
            "--rounds" => plan.rounds = number(value()?)?,
            place::OWN_MOUNTS => has_own_mounts = true,
            "--dir" => dir = Some(value()?.into()),
            "--in" => batch.dir = value()?.into(),
            "--pattern" => batch.pattern = Some(value()?),
            "--fileset" => batch.fileset = number(value()?)?,
            "--size" => batch.size = number(value()?)?.max(1),
            "--called" => batch.is_called = true,
            "--sync" => batch.sync = value()?.parse()?,
            "writes" | "postmark" | "memory" | "dram" | "pcm" => plan.words.push(argument),
            other => return Err(format!("{other:?} is nothing this knows: {USAGE}")),
        }
    }
    if !batch.dir.as_os_str().is_empty() {
        return Ok(Asked::Batch(batch));
    }
    if plan.rounds == 0 {
        plan.rounds = if plan.quick { 3 } else { 9 };
    }
    plan.dir = dir.unwrap_or_else(|| place::memory(has_own_mounts));
    Ok(Asked::Tables(plan))
}

fn main() {
    let given: Vec<String> = std::env::args().collect();
    if let [_, flag, zone] = &given[..]
        && flag == dram::LOOK
    {
        dram::look(zone.as_ref(), None);
    }
    let asked = arguments().unwrap_or_else(|error| {
        eprintln!("journaling: {error}");
        std::process::exit(2);
    });
    match asked {
        Asked::Batch(batch) => run_batch(&batch),
        Asked::Tables(plan) => run_tables(&plan),
    }
}

fn run_tables(plan: &Plan) {
    println!("{}", place::describe(&plan.dir, plan.rounds));
    let parts = ["writes", "postmark", "memory"];
    for technology in plan.technologies() {
        if plan.wants("writes", &parts) {
            writes::run(plan, technology);
        }
        if plan.wants("postmark", &parts) {
            postmark::run(plan, technology);
        }
    }
    if plan.wants("memory", &parts) {
        memory::run(plan);
    }
}

fn run_batch(batch: &Batch) {
    if !batch.is_called {
        let (bytes, seconds) = run_in(&Directory::new(&batch.dir, batch.sync), batch);
        println!("{{\"bytes\": {bytes}, \"seconds\": {seconds}}}");
        return;
    }
    let bytes = if batch.pattern.is_some() { writes::VOLUME } else { postmark::VOLUME };
    let (_file, zone) = place::zone(&batch.dir, "called", bytes + nvm::SEGMENT);
    let volume = writes::open(place::region(&zone, "called", bytes), Journaling::Adaptive, bytes / 32);
    let files = Called::new(&volume);
    if batch.pattern.is_some() {
        writes::fill(&files);
    }
    let before = volume.region().account();
    let (bytes, seconds) = run_in(&files, batch);
    let sent = (volume.region().account() - before).lines() * nvm::LINE;
    println!("{{\"bytes\": {bytes}, \"seconds\": {seconds}, \"sent\": {sent}}}");
}

/// The bytes that the batch wrote, and its seconds.
fn run_in(files: &impl Files, batch: &Batch) -> (u64, f64) {
    let pattern = batch.pattern.as_ref();
    let pattern = pattern.map(|name| writes::Pattern::ALL.into_iter().find(|pattern| pattern.name() == name));
    let fileset = postmark::FILESETS.iter().find(|fileset| fileset.number == batch.fileset);
    match (pattern, fileset) {
        (Some(Some(pattern)), _) => writes::run_once(files, pattern, batch.size),
        (None, Some(fileset)) => postmark::run_once(files, fileset, batch.size),
        _ => {
            eprintln!("journaling: --in needs a --pattern that there is, or a --fileset, 1 or 2");
            std::process::exit(2);
        }
    }
}

/// The order in which schemes are measured in this round.
pub(crate) fn in_turn(round: usize) -> impl Iterator<Item = usize> {
    (0..Journaling::ALL.len()).map(move |n| (n + round) % Journaling::ALL.len())
}
