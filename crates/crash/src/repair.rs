//! Repairs that are cut short.
//!
//! A volume is damaged in one bit of one word, in each that a check reads in turn. Where `fsck --repair` mends that, what it
//! stores is recorded, and cut at all its moments: whatever is left, a second repair leads to the same tree, a volume in which
//! nothing is wrong and that can be used.

use std::collections::HashSet;
use std::rc::Rc;

use nvm::RecordingOptions;
use vfs::{OpenFlags, Time};

use crate::judge::{Counts, Point, guarded};
use crate::lab::{Moment, Stage, WorkloadError, clock};
use crate::native_subject::Native;
use crate::operation::{Actor, Operation};
use crate::running::Running;
use crate::scene::Scene;
use crate::subject::{Promise, Subject};
use crate::tree::Tree;
use crate::violation::Violation;

/// Names the mark behind a repair.
const REPAIRED: &str = "repaired";

/// What became of the repairs of one scene.
#[derive(Clone, Debug, Default)]
pub struct RepairReport {
    /// Bits that were turned, one at a time.
    pub damaged: usize,
    /// Those of them that a repair mended.
    pub mended: usize,
    /// What the repairs said, each once.
    pub kinds: Vec<String>,
    /// States of repairs cut short.
    pub counts: Counts,
}

/// A repair that is not as it should be.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RepairFailure {
    /// The scene could not be set.
    #[error("{0}")]
    Scene(WorkloadError),
    /// What the repair calls mended is not.
    #[error("line {line}, word {word} damaged, and repaired: {what}")]
    NotMended {
        /// Of the volume.
        line: u32,
        /// Of the line.
        word: usize,
        /// What is wrong.
        what: String,
    },
    /// A repair that was cut short leaves something else.
    #[error("line {line}, word {word} damaged; repair cut at event {}: {}", .violation.event, .violation.deepest().what)]
    Cut {
        /// Of the volume.
        line: u32,
        /// Of the line.
        word: usize,
        /// The state.
        violation: Violation,
    },
}

/// Damages a volume with `scene`, which was closed, or whose power was cut while its log had something to replay; every
/// `share`th of the words that a check reads.
pub fn explore_repairs(scene: Scene, closed: bool, share: usize) -> Result<RepairReport, RepairFailure> {
    let subject = &Native::REPAIRED;
    let mut stage = Stage::set(subject, Promise::Operation, scene).map_err(RepairFailure::Scene)?;
    let arena = stage.judge.arena.clone();
    let volume = |what: String| RepairFailure::Scene(WorkloadError::Volume(what));
    if !closed {
        leave_a_log(&stage).map_err(volume)?;
    }
    let (sound, first) = (arena.mark(), (arena.region.entry().start / nvm::LINE) as u32);
    let entry = arena.region.entry();
    let volume_lines = entry.start / nvm::LINE..(entry.start + arena.region.len()) / nvm::LINE;
    arena.seek(std::iter::once(volume_lines));
    guarded(|| native::check(&arena.region, false).map_err(|error| error.to_string())).map_err(volume)?;
    let mut met = HashSet::new();
    let lines: Vec<u32> = arena
        .words_of(&arena.looks(), |_| true)
        .into_iter()
        .map(|read| read.line)
        .filter(|line| met.insert(*line))
        .collect();
    let mut report = RepairReport::default();
    for (line, word) in lines.iter().flat_map(|line| (0..8).map(move |word| (*line, word))).step_by(share) {
        report.damaged += 1;
        let mut bytes = arena.line(line);
        bytes[word * 8 + line as usize % 8] ^= 1 << (line / 8 % 8);
        arena.patch([(line, &bytes)]);
        let found = one(&mut stage, &mut report);
        arena.put_back(sound);
        let line = line - first;
        match found {
            Ok(None) => {}
            Ok(Some(what)) => return Err(RepairFailure::NotMended { line, word, what }),
            Err(violation) => return Err(RepairFailure::Cut { line, word, violation }),
        }
    }
    Ok(report)
}

/// Works on the scene until there is a file without a name, and a log to replay.
fn leave_a_log(stage: &Stage) -> Result<(), String> {
    let mounted = Running::open(&Native::ADAPTIVE, Promise::Operation, &stage.judge.arena)?;
    let mut actor = Actor::new(mounted);
    let path = |text: &str| text.to_owned();
    let operations = [
        Operation::Hold(1, path("/a/file")),
        Operation::Unlink(path("/a/file")),
        Operation::Sync,
        Operation::Create(path("/logged")),
        Operation::WriteWith(path("/logged"), 0, 9_000, OpenFlags::APPEND),
    ];
    for (number, operation) in (stage.first_number()..).zip(&operations) {
        Time::stop(Some(clock(number)));
        actor.perform(number, operation).map_err(|error| format!("{operation} gives {error}"))?;
    }
    actor.ground.abandon();
    Ok(())
}

/// Repairs the damaged volume, and crashes that if something was mended; what is wrong if it was not.
fn one(stage: &mut Stage, report: &mut RepairReport) -> Result<Option<String>, Violation> {
    let arena = stage.judge.arena.clone();
    let damaged = arena.mark();
    Time::stop(Some(clock(stage.first_number() + 10)));
    arena.zone.start_recording(RecordingOptions::default());
    let repaired = guarded(|| native::check(&arena.region, true).map_err(|error| error.to_string()));
    arena.zone.mark(REPAIRED);
    let recording = arena.zone.stop_recording().expect("it was started");
    let problems = match repaired {
        Ok(repaired) if repaired.is_clean() && !repaired.problems.is_empty() => repaired.problems,
        // There is nothing to be mended, or it can't be: the volume says so.
        Ok(_) => return Ok(None),
        Err(what) if what.starts_with("it panics") => return Ok(Some(what)),
        Err(_) => return Ok(None),
    };
    report.mended += 1;
    for problem in problems {
        let kind = problem.what.replace(|letter: char| letter.is_ascii_digit(), "");
        if !report.kinds.contains(&kind) {
            report.kinds.push(kind);
        }
    }
    let tree = guarded(|| {
        let mounted = Native::ADAPTIVE.open(&arena.region, Promise::Operation)?;
        let tree = Tree::of(&*mounted).map_err(|error| format!("its tree cannot be read: {error}"));
        mounted.abandon();
        tree
    });
    let tree = match tree {
        Ok(tree) => Rc::new(tree),
        Err(what) => return Ok(Some(what)),
    };
    arena.put_back(damaged);
    // What is known is known of another volume.
    stage.judge.forget();
    let allowed = |moment: Moment<'_>| match moment {
        Moment::Fence | Moment::Mark(REPAIRED) => Some(vec![tree.clone()].into()),
        Moment::Mark(_) => None,
    };
    let walked = stage.walk(&recording, allowed, |judge, machine, point| {
        judge.point(machine, &Point { depth: 1, ..point }).map(|()| true)
    });
    report.counts.add(stage.judge.counts);
    walked.map(|()| None)
}
