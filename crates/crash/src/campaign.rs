//! Many workloads, on several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::catalogue::Entry;
use crate::judge::Counts;
use crate::lab::{Lab, WorkloadError};
use crate::random::Random;
use crate::subject::{Promise, Subject};
use crate::violation::Violation;
use crate::workload::{Id, Workload};

/// A list of workloads, explored under one promise.
pub struct Campaign {
    /// What is explored.
    pub subject: &'static dyn Subject,
    /// What is promised.
    pub promise: Promise,
    /// How deep recoveries are crashed: 1 not at all, 2 once.
    pub depth: u32,
    /// Whether that is done as [`Lab::exact`] has it.
    pub exact: bool,
    /// Threads at work.
    pub threads: usize,
    /// Workloads that may fail before the rest is left.
    pub failures_max: usize,
    /// No workload is begun after this.
    pub until: Option<Instant>,
    /// Nor when somebody has set this.
    pub interrupted: Arc<AtomicBool>,
}

/// Where a campaign stands.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Workloads done.
    pub done: usize,
    /// Of so many.
    pub of: usize,
    /// States so far.
    pub counts: Counts,
    /// Workloads that failed.
    pub failures: usize,
}

/// A workload that broke a promise, or went wrong by itself.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What was done.
    pub workload: Workload,
    /// The name by which it is found again.
    pub id: Id,
    /// What is wrong: with a state, or without any crash.
    pub found: Result<Violation, WorkloadError>,
}

impl Failure {
    /// In lines: the state's name, the operations, the lines lost or torn, and what is wrong.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.id);
        let (scene, prelude) = (self.workload.scene, self.workload.prelude.len());
        text.push_str(&format!("  from     the scene {scene:?}, after {prelude} operations that prepare\n"));
        for (number, operation) in self.workload.operations.iter().enumerate() {
            text.push_str(&format!("  {number:7}  {operation}\n"));
        }
        match &self.found {
            Ok(violation) => text.push_str(&crash(violation)),
            Err(error) => text.push_str(&format!("  workload {error}\n")),
        }
        text
    }

    /// What is wrong, in one line.
    pub fn what(&self) -> String {
        match &self.found {
            Ok(violation) => violation.what.clone(),
            Err(error) => error.to_string(),
        }
    }
}

/// Lines or sectors, and which of its contents each has.
fn arrived(all: &[(u32, usize)]) -> String {
    let runs = all.chunk_by(|one, next| one.0 + 1 == next.0 && one.1 == next.1);
    let shown = |run: &[(u32, usize)]| match run {
        [(line, choice)] => format!("{line} in version {choice}"),
        [(first, choice), .., (last, _)] => format!("{first} to {last} in version {choice}"),
        [] => String::new(),
    };
    let runs: Vec<String> = runs.map(shown).collect();
    if runs.is_empty() { "nothing".to_owned() } else { runs.join(", ") }
}

fn crash(violation: &Violation) -> String {
    let disk = violation.disk.unwrap_or(u32::MAX);
    let of_disk = violation.lines.partition_point(|(line, _)| *line < disk);
    let (lines, sectors) = violation.lines.split_at(of_disk);
    let sectors: Vec<_> = sectors.iter().map(|(line, choice)| ((line - disk) / 8, *choice)).collect();
    let mut text = format!(
        "  cut      before event {}; beyond what was durable, there arrived of its lines: {}",
        violation.event,
        arrived(lines)
    );
    if violation.disk.is_some() {
        text.push_str(&format!("; of its disk's sectors: {}", arrived(&sectors)));
    }
    text.push('\n');
    match &violation.deeper {
        Some(deeper) => text.push_str(&format!("  recovery {}", crash(deeper).trim_start())),
        None => text.push_str(&format!("  found    {}\n", violation.what)),
    }
    text
}

/// What a campaign found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Workloads explored.
    pub workloads: usize,
    /// Those that were left out, as they take operations that the subject does not have.
    pub left_out: usize,
    /// How many states there were.
    pub counts: Counts,
    /// What failed, in the order of the list.
    pub failures: Vec<Failure>,
    /// How long it took.
    pub duration: Duration,
}

impl Campaign {
    /// Explores `count` workloads, which `workload` makes; `None` from it is skipped. Tells `progress` now and then.
    pub fn run(
        &self,
        count: usize,
        workload: &(dyn Fn(usize) -> Option<Workload> + Sync),
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Report {
        let began = Instant::now();
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let report = Mutex::new((Report::default(), Vec::new(), began));
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    let mut lab = self.lab();
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let late = self.until.is_some_and(|until| Instant::now() >= until);
                        let ends =
                            [&stop, &*self.interrupted].iter().any(|flag| flag.load(Ordering::Relaxed));
                        if index >= count || late || ends {
                            return;
                        }
                        let Some(workload) = workload(index) else { continue };
                        let explored = workload.suits(self.subject).then(|| lab.explore(&workload));
                        let mut guard = report.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                        let Some(explored) = explored else {
                            guard.0.left_out += 1;
                            continue;
                        };
                        let (report, failures, told) = &mut *guard;
                        report.workloads += 1;
                        let found = match explored {
                            Ok(explored) => {
                                report.counts.add(explored.counts);
                                explored.violation.map(Ok)
                            }
                            Err(error) => Some(Err(error)),
                        };
                        if let Some(found) = found {
                            let id = self.id(&workload, found.as_ref().ok());
                            failures.push((index, Failure { workload, id, found }));
                            stop.fetch_or(failures.len() >= self.failures_max, Ordering::Relaxed);
                        }
                        if told.elapsed() >= Duration::from_secs(1) {
                            *told = Instant::now();
                            let (done, failures) = (report.workloads, failures.len());
                            progress(Progress { done, of: count, counts: report.counts, failures });
                        }
                    }
                });
            }
        });
        let (mut report, mut failures, _) =
            report.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        failures.sort_by_key(|(index, _)| *index);
        report.failures = failures.into_iter().map(|(_, failure)| failure).collect();
        report.duration = began.elapsed();
        report
    }

    fn lab(&self) -> Lab {
        let mut lab = Lab::new(self.subject, self.promise, self.depth);
        if self.exact {
            lab.exact();
        }
        lab
    }

    /// All sequences of one entry, from the last one on: the longest are there, and the threads end together if these come first. `seed`
    /// chooses the states that are random.
    pub fn one(&self, catalogue: &[Entry], seed: u64, progress: &(dyn Fn(Progress) + Sync)) -> Report {
        let from_last = |index: usize| Workload::of(&[&catalogue[catalogue.len() - 1 - index]], seed);
        let mut report = self.run(catalogue.len(), &from_last, progress);
        report.failures.reverse();
        report
    }

    /// `limit` of the sequences of two entries, or all; those of a limited number are spread over all. `seed` chooses the states that are
    /// random.
    pub fn two(
        &self,
        catalogue: &[Entry],
        limit: Option<usize>,
        seed: u64,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Report {
        let all = catalogue.len() * catalogue.len();
        let count = limit.unwrap_or(all).min(all);
        let pair = |index: usize| {
            // With a limit, a stride that meets all residues.
            let index =
                if count < all { (index as u64 * 2_654_435_761 % all as u64) as usize } else { index };
            let (first, second) = (&catalogue[index / catalogue.len()], &catalogue[index % catalogue.len()]);
            Workload::of(&[first, second], seed)
        };
        self.run(count, &pair, progress)
    }

    /// `count` sequences of three entries, which `seed` chooses, and the states that are random.
    pub fn three(
        &self,
        catalogue: &[Entry],
        count: usize,
        seed: u64,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Report {
        let triple = |index: usize| {
            let mut random = Random::new(seed.wrapping_add(index as u64));
            let mut entry = || &catalogue[random.below(catalogue.len() as u64) as usize];
            Workload::of(&[entry(), entry(), entry()], seed)
        };
        self.run(count, &triple, progress)
    }

    /// `count` random workloads of `length` operations, from `seed` on.
    pub fn random(
        &self,
        count: usize,
        length: usize,
        seed: u64,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Report {
        self.run(
            count,
            &|index| Some(Workload::random(self.subject, length, seed.wrapping_add(index as u64))),
            progress,
        )
    }

    /// The name of a state of a workload, or of what is wrong with it without a crash.
    pub fn id(&self, workload: &Workload, violation: Option<&Violation>) -> Id {
        Id {
            subject: self.subject.name().to_owned(),
            workload: workload.name.clone(),
            promise: self.promise,
            seed: workload.seed,
            event: violation.map_or(0, |violation| violation.event),
            lines: violation.map_or_else(Vec::new, |violation| violation.lines.clone()),
            depth: self.depth,
        }
    }
}
