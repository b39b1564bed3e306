//! Targets × workloads × rounds, in turns: what the machine does meanwhile, it does to all of them.

use crate::error::Error;
use crate::flow::{Unit, Workload};
use crate::stage::{Stage, Terms};
use crate::statistics::{Reach, Sample, Spread, Tally};
use crate::target::Target;

/// Part of a round's time that is spent before the first one, and not counted.
const WARM_UP: f64 = 0.25;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// One after the other.
    pub workloads: Vec<Workload>,
    /// Rounds of each; in each round every target has its turn, a different one first.
    pub rounds: usize,
    /// How long, by which seed.
    pub terms: Terms,
}

/// Where a campaign is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Turns that are over.
    pub done: usize,
    /// All of them.
    pub of: usize,
    /// The workload.
    pub workload: &'a str,
    /// The target.
    pub target: &'a str,
}

/// One figure on one target.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// One for each round.
    pub samples: Vec<Sample>,
    /// What all rounds did.
    pub tally: Tally,
}

/// One figure on all targets.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The workload, with its parameters.
    pub workload: String,
    /// Which of its phases.
    pub phase: String,
    /// What is counted.
    pub unit: Unit,
    /// Whether bytes per second say more.
    pub by_bytes: bool,
    /// If it is one of a series: the parameter that differs, and its value.
    pub varies: Option<(String, f64)>,
    /// In the order of the targets; one that could not be measured has no samples.
    pub series: Vec<Series>,
}

/// All that was measured.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Name and description of each target.
    pub targets: Vec<(String, String)>,
    /// The figures, in the order in which they were asked for.
    pub figures: Vec<Figure>,
    /// Why it ended before it had measured all that was asked for; the figures are those that were complete by then.
    pub ended: Option<Error>,
}

impl Report {
    /// Of these targets, without a figure yet.
    pub(crate) fn of(targets: &[Target]) -> Report {
        let described = targets.iter().map(|target| (target.name.clone(), target.about.clone()));
        Report { targets: described.collect(), ..Report::default() }
    }

    /// Takes what was measured, or why nothing more will be; false then.
    pub(crate) fn take(&mut self, measured: Result<Vec<Figure>, Error>) -> bool {
        match measured {
            Ok(figures) => self.figures.extend(figures),
            Err(error) => self.ended = Some(error),
        }
        self.ended.is_none()
    }

    /// With all that was asked for, or why not.
    pub fn complete(self) -> Result<Report, Error> {
        self.ended.clone().map_or(Ok(self), Err)
    }

    /// Whether what is asked of some target's disk was counted.
    pub fn counts_disks(&self) -> bool {
        let mut series = self.figures.iter().flat_map(|figure| &figure.series);
        series.any(|series| series.samples.iter().any(|sample| sample.disk.is_some()))
    }
}

impl Figure {
    /// Its name in reports.
    pub fn name(&self) -> String {
        match self.phase.as_str() {
            "" => self.workload.clone(),
            phase => format!("{}: {phase}", self.workload),
        }
    }
}

impl Series {
    /// Median and quartiles of something of its samples.
    pub fn spread(&self, of: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(of))
    }

    /// If some round was done with fewer files than were asked for: with how many, in the one with the fewest.
    pub fn fewer(&self) -> Option<Reach> {
        let least = self.samples.iter().filter_map(|sample| sample.reach).reduce(Reach::least);
        least.filter(|reach| reach.done < reach.of)
    }
}

/// Runs it, to its end or the first error. `notice` is told before each turn.
pub fn run(plan: &Plan, targets: &[Target], notice: &dyn Fn(Progress<'_>)) -> Report {
    allow_many_open();
    let mut report = Report::of(targets);
    let turns = targets.len() * (plan.rounds + 1);
    for (number, workload) in plan.workloads.iter().enumerate() {
        let tell = |done: usize, target: usize| {
            let target = &targets[target].name;
            notice(Progress {
                done: number * turns + done,
                of: plan.workloads.len() * turns,
                workload: &workload.name,
                target,
            });
        };
        if !report.take(measure(plan, workload, targets, &tell)) {
            break;
        }
    }
    report
}

/// Directories of a file set stay open. Programs get room for 1024 open files unless they ask for more.
fn allow_many_open() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// One workload on all targets, whose files stay from round to round.
fn measure(
    plan: &Plan,
    workload: &Workload,
    targets: &[Target],
    tell: &dyn Fn(usize, usize),
) -> Result<Vec<Figure>, Error> {
    let error = |at: usize| move |fault| Error::of(fault, &targets[at].name, &workload.name);
    let measured = workload.phases.iter().filter(|phase| phase.measured);
    let mut figures: Vec<Figure> = measured
        .map(|phase| Figure {
            workload: workload.name.clone(),
            phase: phase.name.to_string(),
            unit: phase.unit,
            by_bytes: workload.by_bytes,
            varies: workload.varies.clone(),
            series: vec![Series::default(); targets.len()],
        })
        .collect();
    let mut stages: Vec<Box<dyn Stage + '_>> = Vec::new();
    for (at, target) in targets.iter().enumerate() {
        tell(at, at);
        let mut stage = target.prepare(workload, &plan.terms)?;
        stage.round(&plan.terms, WARM_UP).map_err(error(at))?;
        stages.push(stage);
    }
    for round in 0..plan.rounds {
        for turn in 0..targets.len() {
            let at = (round + turn) % targets.len();
            tell((round + 1) * targets.len() + turn, at);
            for (figure, measured) in
                figures.iter_mut().zip(stages[at].round(&plan.terms, 1.0).map_err(error(at))?)
            {
                figure.series[at].samples.push(measured.sample);
                figure.series[at].tally.add(&measured.tally);
            }
        }
    }
    for (at, stage) in stages.into_iter().enumerate() {
        stage.remove().map_err(error(at))?;
    }
    Ok(figures)
}
