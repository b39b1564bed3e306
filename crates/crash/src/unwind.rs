//! Operations that panic: whoever serves a volume answers with an error and goes on, and nothing may be done by halves.
//!
//! An operation that unwinds, wherever, leaves the volume as it was or as the operation leaves it; or the volume takes no changes any
//! more, and whoever opens it next finds one of the two. It can be read, synced and closed, and none of that panics.
//!
//! Each operation of scenes with one volume is done as often as it has reads, stores, flushes and fences, and panics right before each of them
//! once.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use nvm::RecordingOptions;
use vfs::Time;

use crate::ground::Ground;
use crate::judge::guarded;
use crate::lab::{Lab, Life, Stage, WorkloadError, clock};
use crate::lag::Allowed;
use crate::operation::{Actor, Operation};
use crate::running::Running;
use crate::tree::Tree;
use crate::workload::Workload;

/// What became of a workload whose operations panicked.
#[derive(Clone, Debug, Default)]
pub struct Unwound {
    /// Panics, one in each run.
    pub panics: usize,
    /// The first after which something was not as it should be.
    pub violation: Option<UnwindViolation>,
}

/// A panic after which something is not as it should be.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{operation} panics before event {event}: {what}")]
pub struct UnwindViolation {
    /// Which operation panicked.
    pub operation: String,
    /// Before which of its events, the first being 1.
    pub event: usize,
    /// What is wrong.
    pub what: String,
}

thread_local! {
    /// Events until one panics, that one included; 0: none does.
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

/// Panics without a word if it is time. Only once: a second one while the first unwinds would end the process.
fn count_down() {
    let left = LEFT.get();
    LEFT.set(left.saturating_sub(1));
    if left == 1 {
        resume_unwind(Box::new("an event that panics"));
    }
}

impl Lab {
    /// Has each operation of a workload that is explored panic before each of its events; if `crowded`, of a volume that goes about everything as if
    /// somebody else were there.
    pub fn unwind(&mut self, workload: &Workload, crowded: bool) -> Result<Unwound, WorkloadError> {
        if workload.scene.beside().is_some() {
            return Ok(Unwound::default());
        }
        let (life, stage) = self.record(workload)?;
        let operations: Vec<&Operation> = workload.prelude.iter().chain(&workload.operations).collect();
        let mut unwound = Unwound::default();
        for index in workload.prelude.len() + workload.from..operations.len() {
            // What closes the volume is not done by who serves it.
            if matches!(operations[index], Operation::RollBack(_) | Operation::CloneClosed(_)) {
                continue;
            }
            for event in 1.. {
                let found = stage.panic_at(&life, &operations[..=index], event, crowded);
                Time::stop(None);
                stage.judge.arena.put_back(stage.base);
                let what = match found.map_err(WorkloadError::Volume)? {
                    None => break,
                    Some(judged) => judged.err(),
                };
                unwound.panics += 1;
                if let Some(what) = what {
                    let operation = operations[index].to_string();
                    unwound.violation = Some(UnwindViolation { operation, event, what });
                    return Ok(unwound);
                }
            }
        }
        Ok(unwound)
    }
}

impl Stage {
    /// Does all of `operations`, the last of which panics before one of its events; `None` if it has not so many. What is then wrong.
    fn panic_at(
        &mut self,
        life: &Life,
        operations: &[&Operation],
        event: usize,
        crowded: bool,
    ) -> Result<Option<Result<(), String>>, String> {
        let (subject, promise, first) = (self.judge.subject, self.judge.promise, self.first_number());
        let arena = self.judge.arena.clone();
        Time::stop(Some(clock(first)));
        let open = if crowded { Running::open_crowded } else { Running::open };
        let mut actor = Actor::new(open(subject, promise, &arena)?);
        let (last, before) = operations.split_last().expect("one that panics");
        for (index, operation) in before.iter().enumerate() {
            Time::stop(Some(clock(first + index)));
            let _answer = actor.perform(first + index, operation);
        }
        let number = first + before.len();
        Time::stop(Some(clock(number)));
        arena.zone.start_recording(RecordingOptions::default());
        arena.zone.set_gate(Some(count_down));
        arena.zone.set_read_gate(Some(count_down));
        LEFT.set(event);
        // Somebody on the way may have made an error of the panic.
        let _unwound = catch_unwind(AssertUnwindSafe(|| drop(actor.perform(number, last))));
        let has_panicked = LEFT.replace(0) == 0;
        arena.zone.set_gate(None);
        arena.zone.set_read_gate(None);
        arena.zone.stop_recording();
        if !has_panicked {
            actor.ground.abandon();
            return Ok(None);
        }
        // It may refuse to do any of this, but not panic.
        let _tree = guarded(|| Ok(Tree::of(actor.ground.file_system())))?;
        let _synced = guarded(|| Ok(actor.ground.checkpoint()))?;
        let closed = guarded(|| Ok(actor.ground.close()))?;
        Ok(Some(self.look_again(&life.allowed_within(before.len(), closed.is_ok()))))
    }

    /// Opens what was left, and looks what it is.
    fn look_again(&self, allowed: &Allowed) -> Result<(), String> {
        let (subject, promise, arena) = (self.judge.subject, self.judge.promise, &self.judge.arena);
        guarded(|| {
            let running = Running::open(subject, promise, arena)?;
            let tree = Tree::of(running.file_system()).map_err(|error| error.to_string())?;
            allowed.admits(&tree)?;
            running.close()?;
            subject.check(&arena.region)
        })
    }
}
