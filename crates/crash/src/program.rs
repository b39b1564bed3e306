//! Programs on a recorded volume: what they are promised, looked for by themselves in what power cuts leave.
//!
//! A program works on a mount of a recorded zone and says when something that it was promised is durable. Then its life is
//! played again, and at its fences and between them the power is cut: a state of the medium is built, the volume recovers
//! and is checked, its tree is laid out as a directory, and the program itself judges that.

mod life;
mod process;

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use nvm::{EventKind, Line, OpenOptions, Zone};

pub use life::{Life, LifeError};
pub use process::{Judge, Program, ProgramError, Verdict};

use crate::cut;
use crate::judge::guarded;
use crate::machine::Machine;
use crate::random::Random;
use crate::subject::{Promise, Subject};
use crate::tree::Tree;
use crate::unit::Units;

/// The marks of a recording after which so many steps are acknowledged: `done N`.
const DONE: &str = "done ";

/// The name of a mark that says that step `n` was acknowledged.
pub fn done_mark(n: u64) -> String {
    format!("{DONE}{n}")
}

/// What to explore of a life.
#[derive(Clone, Debug)]
pub struct ProgramOptions {
    /// States to build at least.
    pub states: u64,
    /// Chooses them.
    pub seed: u64,
    /// A directory, best in memory, under which trees are laid out.
    pub scratch: PathBuf,
}

/// How far an exploration came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramReport {
    /// Moments at which the power was cut.
    pub points: u64,
    /// States that were built, recovered, checked and compared.
    pub states: u64,
    /// Different trees among them, which the program judged.
    pub judged: u64,
}

/// Why an exploration ended early.
#[derive(Debug, thiserror::Error)]
pub enum ProgramFailure {
    /// A promise was broken.
    #[error(
        "a power cut at event {event} of {events} (seed {seed}, state {state}) breaks a promise: {what}\n  \
         {low} steps were acknowledged{}",
        .kept.as_ref().map_or_else(String::new, |kept| format!("; the tree is kept in {}", kept.display()))
    )]
    Broken {
        /// Index of the event before which the power went.
        event: usize,
        /// Events of the life.
        events: usize,
        /// The seed of the exploration.
        seed: u64,
        /// Which state of the exploration it was.
        state: u64,
        /// What the volume, its check, or the program says.
        what: String,
        /// The last step acknowledged, −1 if none was.
        low: i64,
        /// What the program was given to judge, if it came so far.
        kept: Option<PathBuf>,
    },
    /// The program itself failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A tree could not be laid out.
    #[error("cannot lay out a tree in {}: {source}", .dir.display())]
    LayOut {
        /// Where.
        dir: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The life cannot be played.
    #[error("the life cannot be played: {0}")]
    Life(String),
}

/// A life being played.
struct Player<'a> {
    subject: &'a dyn Subject,
    promise: Promise,
    life: &'a Life,
    options: &'a ProgramOptions,
    zone: Zone,
    judge: Judge,
    /// By contents: the steps that they hold.
    known: HashMap<u64, i64>,
    report: ProgramReport,
    low: i64,
}

/// Cuts the power in `life` until [`ProgramOptions::states`] states are judged. `progress` hears of every point.
pub fn explore(
    subject: &dyn Subject,
    program: &Program,
    life: &Life,
    options: &ProgramOptions,
    progress: &mut dyn FnMut(ProgramReport),
) -> Result<ProgramReport, ProgramFailure> {
    if !life.recording.complete {
        return Err(ProgramFailure::Life("its recording ran out of memory; make fewer steps".into()));
    }
    let zone = Zone::from_bytes(&life.image, &OpenOptions::default())
        .map_err(|error| ProgramFailure::Life(error.to_string()))?;
    zone.watch();
    let mut player = Player {
        subject,
        promise: life.promise,
        life,
        options,
        zone,
        judge: program.judge()?,
        known: HashMap::new(),
        report: ProgramReport::default(),
        low: -1,
    };
    player.play(progress)?;
    Ok(player.report)
}

impl Player<'_> {
    fn play(&mut self, progress: &mut dyn FnMut(ProgramReport)) -> Result<(), ProgramFailure> {
        let recording = &self.life.recording;
        let events = recording.events.len();
        let fences = recording.events.iter().filter(|event| event.kind == EventKind::Fence).count();
        // As many points at stores as at fences, spread evenly; as many states at each as it takes.
        let share = (events / fences.max(1)).max(1) as u64;
        // Fewer than there will be, so that the last ones need not make up for what those without states left.
        let stores = recording.events.iter().filter(|event| event.kind.is_store()).count();
        let points = (fences as u64 + stores as u64 / share) * 4 / 5;
        let mut random = Random::new(self.options.seed);
        let mut machine = Machine::new(0..0);
        for index in 0..events {
            let event = &recording.events[index];
            let fence = event.kind == EventKind::Fence;
            if fence || event.kind.is_store() && random.below(share) == 0 {
                let units = cut::units(&machine);
                let left = self.options.states.saturating_sub(self.report.states);
                let states = left.div_ceil(points.saturating_sub(self.report.points).max(1)).max(2);
                self.cut(index, &units, states, &mut random)?;
                progress(self.report);
            }
            if event.kind == EventKind::Mark
                && let Some(done) = recording.operation_of(event).strip_prefix(DONE)
            {
                self.low = done.parse().unwrap_or(self.low);
            }
            let image = &self.life.image;
            machine.step(recording, index, |line| line_of(image, line));
            let fresh = machine.take_fresh();
            self.patch(fresh.iter().map(|(line, bytes)| (*line, bytes)));
        }
        Ok(())
    }

    fn patch<'l>(&self, lines: impl IntoIterator<Item = (u32, &'l Line)>) {
        let _ = self.zone.watched(|watch| {
            lines.into_iter().for_each(|(line, bytes)| watch.set_line(u64::from(line), bytes));
        });
    }

    /// Judges `states` states of one point: nothing arrived, everything, and random choices.
    fn cut(
        &mut self,
        event: usize,
        units: &Units,
        states: u64,
        random: &mut Random,
    ) -> Result<(), ProgramFailure> {
        self.report.points += 1;
        let states = if units.all.is_empty() { 1 } else { states };
        for n in 0..states {
            let share = 1 + random.below(8);
            let chosen: Vec<usize> = units
                .all
                .iter()
                .map(|unit| match n {
                    0 => 0,
                    1 => unit.versions.len() - 1,
                    _ if random.below(8) < share => random.below(unit.choices() as u64) as usize,
                    _ => 0,
                })
                .collect();
            let mark = self.zone.watched(|watch| watch.mark()).expect("the zone is watched");
            for (unit, choice) in units.all.iter().zip(chosen) {
                self.patch((unit.first..).zip(unit.contents(choice)));
            }
            let judged = self.recover(event);
            self.zone.watched(|watch| watch.put_back(mark));
            judged?;
            self.report.states += 1;
        }
        Ok(())
    }

    fn broken(&self, event: usize, kept: Option<PathBuf>, what: String) -> ProgramFailure {
        ProgramFailure::Broken {
            event,
            events: self.life.recording.events.len(),
            seed: self.options.seed,
            state: self.report.states,
            what,
            low: self.low,
            kept,
        }
    }

    /// Recovers the volume from what is in memory now, and has its tree judged.
    fn recover(&mut self, event: usize) -> Result<(), ProgramFailure> {
        let region =
            self.zone.volume(&self.life.volume).map_err(|error| ProgramFailure::Life(error.to_string()))?;
        let recovered = || {
            let subject = self.subject;
            let mounted = guarded(|| subject.open(&region, self.promise))
                .map_err(|what| format!("the volume does not open: {what}"))?;
            // One that fails is left as it is: who knows what it would do when it is closed.
            let mounted = ManuallyDrop::new(mounted);
            let read = || Tree::of(&**mounted).map_err(|error| error.to_string());
            let tree = guarded(read).map_err(|what| format!("its tree cannot be read: {what}"))?;
            guarded(|| ManuallyDrop::into_inner(mounted).close())
                .map_err(|what| format!("it does not close: {what}"))?;
            guarded(|| subject.check(&region)).map_err(|what| format!("its check finds: {what}"))?;
            Ok(tree)
        };
        let tree = recovered().map_err(|what| self.broken(event, None, what))?;
        let contents = tree.contents_hash();
        let (low, high) = (self.low, self.low + 1);
        if self.known.get(&contents).is_some_and(|steps| (low..=high).contains(steps)) {
            return Ok(());
        }
        let dir = self.options.scratch.join("tree");
        lay_out(&tree, &dir).map_err(|source| ProgramFailure::LayOut { dir: dir.clone(), source })?;
        self.report.judged += 1;
        match self.judge.ask(&dir, low, high)? {
            Verdict::Sound(steps) => {
                self.known.insert(contents, steps);
                Ok(())
            }
            Verdict::Broken(what) => {
                // As the program found it, not as it left it.
                lay_out(&tree, &dir).map_err(|source| ProgramFailure::LayOut { dir: dir.clone(), source })?;
                Err(self.broken(event, Some(dir), format!("the program says: {what}")))
            }
        }
    }
}

fn lay_out(tree: &Tree, dir: &Path) -> std::io::Result<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir)?;
    }
    tree.lay_out(dir)
}

fn line_of(image: &[u8], line: u32) -> Line {
    let at = line as usize * size_of::<Line>();
    image[at..at + size_of::<Line>()].try_into().expect("a line's length")
}
