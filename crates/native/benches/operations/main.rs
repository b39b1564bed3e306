//! What an operation of the native volume costs, in this process and on one thread, beside its floor on the same
//! memory and beside the system calls of tmpfs.
//!
//! ```text
//! cargo bench -p amberfs-native                  all but the directory of a million files
//! cargo bench -p amberfs-native -- --million     all (needs 11 GiB of memory)
//! cargo bench -p amberfs-native -- --quick read  fewer rounds, rows whose names contain "read"
//! ```
//! `--rounds N` sets the rounds, `--dir PATH` puts the zones there, and `--volume GIB` sets the size of the volume with a
//! million files (8, in memory). Without `--dir`, root's zones are in a tmpfs of huge pages that nobody else sees and that
//! goes with the benchmark; others' are in `/dev/shm`.
//!
//! How it measures: the zone is a file that is mapped and faulted in beforehand; the volume is mounted with
//! `durability=op`, and flushes and fences are real. Each row repeats in rounds, in turn with its floor, and shows
//! medians. CPU time is the whole process's, and after each batch of operations a checkpoint is made whose CPU counts
//! as theirs ("of it checkpoint"): nothing that they leave to the background is hidden. Wall time is that of the
//! operations alone. Names, orders and buffers are made beforehand, from fixed seeds. Reads and writes go to blocks in
//! random order, once each round, so that a file larger than the caches is cold; look-ups find what was made moments
//! ago.

mod chase;
mod collecting;
mod data;
mod keeping;
mod measure;
mod mount;
mod names;
mod place;
mod snapshots;
mod table;
mod threads;

use std::path::PathBuf;

use crate::table::Table;

/// What the command line asks for.
pub(crate) struct Plan {
    pub(crate) quick: bool,
    pub(crate) million: bool,
    pub(crate) rounds: usize,
    /// Of the volume with a million files.
    pub(crate) volume_bytes: u64,
    pub(crate) filter: String,
    /// Where the zones go.
    pub(crate) dir: PathBuf,
}

impl Plan {
    fn from_arguments() -> Result<Plan, String> {
        let mut plan = Plan {
            quick: false,
            million: false,
            rounds: 0,
            volume_bytes: 8 << 30,
            filter: String::new(),
            dir: PathBuf::new(),
        };
        let (mut dir, mut has_own_mounts) = (None, false);
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--bench" => {} // cargo's own
                "--quick" => plan.quick = true,
                "--million" => plan.million = true,
                "--rounds" => plan.rounds = value()?.parse().map_err(|_| "--rounds needs a number")?,
                "--volume" => {
                    let gib = value()?.parse::<u64>().map_err(|_| "--volume needs a number of GiB")?;
                    plan.volume_bytes = gib << 30;
                }
                place::OWN_MOUNTS => has_own_mounts = true,
                "--dir" => dir = Some(value()?.into()),
                flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
                word => plan.filter = word.to_string(),
            }
        }
        if plan.rounds == 0 {
            plan.rounds = if plan.quick { 3 } else { 9 };
        }
        plan.dir = dir.unwrap_or_else(|| place::memory(has_own_mounts));
        Ok(plan)
    }

    /// Whether any of these rows is wanted.
    pub(crate) fn wants(&self, rows: &[&str]) -> bool {
        rows.iter().any(|row| row.contains(&self.filter))
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, flag, path, changes] = &arguments[..]
        && flag == mount::CRASH
    {
        mount::crash(path.as_ref(), changes.parse().expect("a number of changes"));
    }
    let plan = Plan::from_arguments().unwrap_or_else(|error| {
        eprintln!("operations: {error}");
        std::process::exit(2);
    });
    println!("{}", place::describe(&plan.dir, plan.rounds));
    let mut table = Table::new(&plan.filter);
    names::run(&plan, &mut table);
    data::run(&plan, &mut table, 256 << 20);
    if !plan.quick && place::memory_available() > 6 << 30 {
        data::run(&plan, &mut table, 1 << 30);
    }
    snapshots::run(&plan, &mut table);
    keeping::run(&plan, &mut table);
    collecting::run(&plan, &mut table);
    chase::run(&plan, &mut table);
    threads::run(&plan, &mut table);
    table.print();
}
