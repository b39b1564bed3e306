//! Random operations on a volume and on the model at once, which must not be told apart.
//!
//! A [`Torture`] holds a [`Model`] and knows which inode and handle of the volume is which of the model. Each step
//! does one random operation on both and compares the answers; [`Torture::compare`] compares the whole trees: names,
//! kinds, modes, owners, link counts, lengths, bytes, extended attributes and link targets. Times that were set are
//! compared as they are; the others by their order: whatever the model changed later must not be older on the volume.
//!
//! ```
//! # use vfs::{model::Model, torture::Torture};
//! let volume = Model::new();
//! let mut torture = Torture::new(4711);
//! for _ in 0..3 {
//!     torture.run(&volume, 1_000);
//!     torture.close(&volume); // ...and here a test may check the volume and mount it again
//! }
//! ```
//!
//! A volume that keeps [`Snapshots`](crate::Snapshots) has them taken, held and removed in between
//! ([`Torture::run_with_snapshots`]), and the whole tree of each compared, again and again, with the model's copy.
//!
//! A difference panics and says the seed, the step, the operation, both answers and what went before. The same seed
//! and the same calls give the same operations.

mod answer;
mod arguments;
mod choice;
mod compare;
mod known;
mod operation;
mod random;
mod snapshots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::model::Model;
use crate::{Attr, Caller, Error, FileSystem, Ino, InodeFlags, ROOT_INO, RenameFlags, Result, SetAttr, Time};
use answer::Answer;
use known::{Known, Side};
use operation::Operation;
use random::Random;

/// Operations that a failure's report shows.
const REMEMBERED: usize = 24;

/// Seconds of the model's first clock tick; times that are set are earlier.
const FIRST_TICK: i64 = 1 << 50;

/// What was done, for a report.
type Note = Arc<dyn Debug + Send + Sync>;

/// A volume's ordeal. See the [module's](self) documentation.
pub struct Torture {
    seed: u64,
    step: u64,
    random: Random,
    callers: Vec<Caller>,
    model: Model,
    known: Known,
    /// Inodes that were given extended attributes.
    attributed: Vec<Ino>,
    /// Inodes that were given flags.
    flagged: Vec<Ino>,
    past: VecDeque<(u64, usize, Note)>,
    tally: BTreeMap<(&'static str, i32), u64>,
    started: bool,
    tolerated: Vec<Error>,
    tolerated_count: u64,
    limits: Limits,
}

/// How far a [`Torture`] goes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Inodes in the tree, about: with more, removals prevail.
    pub inodes: usize,
    /// No file gets longer, bytes; most stay short.
    pub file_bytes: u64,
    /// Longest value of an extended attribute, bytes.
    pub xattr_bytes: usize,
    /// Most handles open at once.
    pub handles: usize,
    /// The granularity of the volume's times, nanoseconds: times that are set may lose what is finer.
    pub time_ns: u32,
    /// Whether the volume keeps creation times.
    pub birth_times: bool,
    /// Operations between two that are about snapshots, about.
    pub between_snapshots: u64,
    /// All snapshots are compared after every operation, not only after those that are about snapshots.
    pub watches_snapshots: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            inodes: 600,
            file_bytes: 1 << 30,
            xattr_bytes: 3000,
            handles: 24,
            time_ns: 1,
            birth_times: true,
            between_snapshots: 200,
            watches_snapshots: false,
        }
    }
}

impl Torture {
    /// An ordeal for a volume that is empty, by `seed`, which it prints.
    pub fn new(seed: u64) -> Torture {
        eprintln!("torture: seed {seed}");
        let ticks = Arc::new(AtomicI64::new(FIRST_TICK));
        let clock = move || Time { sec: ticks.fetch_add(1, Ordering::Relaxed), nsec: 0 };
        Torture {
            seed,
            step: 0,
            random: Random::new(seed),
            callers: callers(),
            model: Model::new().with_clock(clock),
            known: Known::new(),
            attributed: Vec::new(),
            flagged: Vec::new(),
            past: VecDeque::new(),
            tally: BTreeMap::new(),
            started: false,
            tolerated: Vec::new(),
            tolerated_count: 0,
            limits: Limits::default(),
        }
    }

    /// The seed in the environment variable `AMBERFS_SEED`, or one of the clock's: for tests that shall differ from
    /// run to run.
    pub fn seed_from_environment() -> u64 {
        match std::env::var("AMBERFS_SEED").ok().and_then(|seed| seed.parse().ok()) {
            Some(seed) => seed,
            None => u64::from(Time::now().nsec) ^ (Time::now().sec as u64) << 30,
        }
    }

    /// Sets other limits.
    pub fn with_limits(mut self, limits: Limits) -> Torture {
        self.limits = limits;
        self
    }

    /// Lets the volume fail with these errors, such as [`Error::NoSpace`], where the model would not, if it then
    /// changes nothing.
    pub fn tolerating(mut self, errors: &[Error]) -> Torture {
        self.tolerated = errors.to_vec();
        self
    }

    /// How often the volume failed with a tolerated error.
    pub fn tolerated_count(&self) -> u64 {
        self.tolerated_count
    }

    /// How often which operation had which outcome so far, by its name and errno (0 for success): what was tried.
    pub fn tally(&self) -> &BTreeMap<(&'static str, i32), u64> {
        &self.tally
    }

    /// The model, as it is now.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Does `steps` random operations, then compares the trees.
    pub fn run(&mut self, volume: &dyn FileSystem, steps: u64) {
        self.start(volume);
        for _ in 0..steps {
            let (caller, operation) = self.choose();
            self.apply(volume, caller, operation);
        }
        self.compare(volume);
    }

    /// Does `steps` random operations; after each `every` it compares the trees, closes all handles, calls `hook` and
    /// compares again.
    pub fn run_with(
        &mut self,
        volume: &dyn FileSystem,
        steps: u64,
        every: u64,
        hook: &mut dyn FnMut(&dyn FileSystem),
    ) {
        let mut left = steps;
        while left > 0 {
            let steps = left.min(every.max(1));
            self.run(volume, steps);
            self.close(volume);
            hook(volume);
            self.compare(volume);
            left -= steps;
        }
    }

    /// Compares the whole trees, and the files that are open without a name.
    pub fn compare(&mut self, volume: &dyn FileSystem) {
        if let Err(difference) = compare::trees(&self.model, volume, &self.known, &self.limits) {
            self.fail(&format!("the trees differ: {difference}"));
        }
    }

    /// Closes all handles, as before an unmount; files without a name go.
    pub fn close(&mut self, volume: &dyn FileSystem) {
        for handle in self.known.handles() {
            self.apply(volume, 0, Operation::Release { handle });
        }
    }

    /// Closes all handles and removes all files, so that a test can see whether all space comes back.
    pub fn clear(&mut self, volume: &dyn FileSystem) {
        self.start(volume);
        self.close(volume);
        self.prune(volume, ROOT_INO);
        self.compare(volume);
    }

    /// Lets everybody write to the root directory, or nothing much would happen.
    fn start(&mut self, volume: &dyn FileSystem) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let mode = if self.random.one_in(2) { 0o777 } else { 0o1777 };
        let now = Some(crate::SetTime::Now);
        let set = SetAttr { mode: Some(mode), atime: now, mtime: now, ..SetAttr::default() };
        self.apply(volume, 0, Operation::Setattr { ino: ROOT_INO, set, handle: None });
    }

    /// Removes what is in directory `dir`, one entry after the other.
    fn prune(&mut self, volume: &dyn FileSystem, dir: Ino) {
        self.unprotect(volume, dir);
        for (name, kind, ino) in known::entries(&self.model, dir).unwrap_or_default() {
            self.unprotect(volume, ino);
            let operation = if kind == crate::FileKind::Directory {
                self.prune(volume, ino);
                Operation::Rmdir { dir, name: name.into() }
            } else {
                Operation::Unlink { dir, name: name.into() }
            };
            self.apply(volume, 0, operation);
        }
    }

    fn unprotect(&mut self, volume: &dyn FileSystem, ino: Ino) {
        if self.model.getattr(ino).is_ok_and(|attr| attr.flags.intersects(InodeFlags::PROTECTION)) {
            self.apply(volume, 0, Operation::SetFlags { ino, flags: InodeFlags::empty() });
        }
    }

    /// Does one operation on both sides and compares the answers.
    fn apply(&mut self, volume: &dyn FileSystem, caller: usize, operation: Operation) {
        let operation = Arc::new(operation);
        self.note(caller, operation.clone());
        let doomed = self.doomed(&operation);

        let caller = &self.callers[caller];
        let ours = operation.perform(volume, caller, &self.known, Side::Volume);
        if let Err(error) = &ours
            && self.tolerated.contains(error)
        {
            self.tolerated_count += 1;
            return;
        }
        let theirs = operation.perform(&self.model, caller, &self.known, Side::Model);
        if let Some(difference) = self.difference(&operation, &ours, &theirs) {
            self.fail(&difference);
        }
        let errno = theirs.as_ref().map_or_else(Error::errno, |_| 0);
        *self.tally.entry((operation.name(), errno)).or_default() += 1;
        if let (Ok(ours), Ok(theirs)) = (&ours, &theirs) {
            self.learn(&operation, ours, theirs);
            self.forget(volume, &doomed);
            self.find_whiteout(volume, &operation);
        }
        if self.step.is_multiple_of(4) {
            self.compare_touched(volume, &operation);
        }
    }

    /// Begins a step.
    fn note(&mut self, caller: usize, what: Note) {
        self.step += 1;
        if self.past.len() == REMEMBERED {
            self.past.pop_front();
        }
        self.past.push_back((self.step, caller, what));
    }

    /// What distinguishes the answers, if anything does that should not.
    fn difference(
        &self,
        operation: &Operation,
        ours: &Result<Answer>,
        theirs: &Result<Answer>,
    ) -> Option<String> {
        let difference = match (ours, theirs) {
            _ if operation.is_seek() => compare::seek(&self.model, &self.known, operation, ours, theirs),
            (Ok(ours), Ok(theirs)) => ours.difference(theirs, &self.known),
            (Err(ours), Err(theirs)) if ours.errno() == theirs.errno() => None,
            _ => Some("one fails, or they fail in different ways".to_owned()),
        }?;
        Some(format!("{difference}\n  volume: {ours:?}\n  model:  {theirs:?}"))
    }

    /// Notes the inodes and handles that an operation brought.
    fn learn(&mut self, operation: &Operation, ours: &Answer, theirs: &Answer) {
        match (ours, theirs) {
            (Answer::Attr(ours), Answer::Attr(theirs)) => self.meet(ours, theirs),
            (Answer::Created(ours), Answer::Created(theirs)) => {
                self.meet(&ours.attr, &theirs.attr);
                self.known.opened(ours.handle, theirs.handle, theirs.attr.ino, operation.flags());
            }
            (Answer::Handle(ours), Answer::Handle(theirs)) => {
                self.known.opened(*ours, *theirs, operation.inode(), operation.flags());
            }
            _ => {}
        }
        if let Operation::Release { handle } = operation {
            self.known.released(*handle);
        }
        if let Operation::Setxattr { ino, .. } = operation {
            self.attributed.push(*ino);
        }
        if let Operation::SetFlags { ino, .. } = operation {
            self.flagged.push(*ino);
        }
        if let Some((dir, name)) = operation.gives_name() {
            self.known.named(dir, name);
        }
    }

    /// What a rename leaves behind is new, and in no answer.
    fn find_whiteout(&mut self, volume: &dyn FileSystem, operation: &Operation) {
        let Operation::Rename { dir, name, flags, .. } = operation else { return };
        if !flags.contains(RenameFlags::WHITEOUT) {
            return;
        }
        let lookup = Operation::Lookup { dir: *dir, name: name.clone() };
        let root = &self.callers[0];
        let ours = lookup.perform(volume, root, &self.known, Side::Volume);
        let theirs = lookup.perform(&self.model, root, &self.known, Side::Model);
        if let (Ok(Answer::Attr(ours)), Ok(Answer::Attr(theirs))) = (&ours, &theirs) {
            self.meet(ours, theirs);
        }
        if let Some(difference) = self.difference(&lookup, &ours, &theirs) {
            self.fail(&format!("what a rename left behind: {difference}"));
        }
    }

    fn meet(&mut self, ours: &Attr, theirs: &Attr) {
        if let Err(difference) = self.known.meet(ours, theirs) {
            self.fail(&difference);
        }
    }

    /// Inodes that the operation may remove.
    fn doomed(&self, operation: &Operation) -> Vec<Ino> {
        let find =
            |dir, name: &[u8]| self.model.lookup(&self.callers[0], dir, name).map(|attr| attr.ino).ok();
        match operation {
            Operation::Unlink { dir, name } | Operation::Rmdir { dir, name } => {
                find(*dir, name).into_iter().collect()
            }
            Operation::Rename { new_dir, new_name, .. } => find(*new_dir, new_name).into_iter().collect(),
            Operation::Release { handle } => self.known.inode_of(*handle).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// What is gone from the model must be gone from the volume.
    fn forget(&mut self, volume: &dyn FileSystem, doomed: &[Ino]) {
        for &ino in doomed {
            if self.model.getattr(ino) != Err(Error::Stale) {
                continue;
            }
            let answer = volume.getattr(self.known.volume_ino(ino));
            if answer != Err(Error::Stale) {
                self.fail(&format!("inode {ino} is gone, but the volume has {answer:?}"));
            }
            self.known.forget(ino);
        }
    }

    /// Compares the attributes of the inodes that an operation was about.
    fn compare_touched(&self, volume: &dyn FileSystem, operation: &Operation) {
        for ino in operation.inodes(&self.known) {
            let ours = volume.getattr(self.known.volume_ino(ino));
            let theirs = self.model.getattr(ino);
            let difference = match (&ours, &theirs) {
                (Ok(ours), Ok(theirs)) => compare::attributes(ours, theirs, &self.limits),
                (Err(ours), Err(theirs)) if ours == theirs => None,
                _ => Some("one has it, the other has not".to_owned()),
            };
            if let Some(difference) = difference {
                self.fail(&format!(
                    "inode {ino} differs afterwards: {difference}\n  volume: {ours:?}\n  model:  {theirs:?}"
                ));
            }
        }
    }

    fn fail(&self, difference: &str) -> ! {
        let line = |(step, caller, operation): &(u64, usize, Note)| {
            format!("{step:>8}  caller {caller}: {operation:?}")
        };
        let past: Vec<String> = self.past.iter().map(line).collect();
        panic!(
            "torture with seed {} failed at step {}: {difference}\n\
             the last operations (the model's inode numbers):\n{}",
            self.seed,
            self.step,
            past.join("\n")
        );
    }
}

/// Who acts: two superusers, users who share groups, one whom the kernel has checked.
fn callers() -> Vec<Caller> {
    let user =
        |uid, gid, groups: &[u32], umask| Caller { groups: groups.into(), umask, ..Caller::user(uid, gid) };
    vec![
        Caller::root(),
        user(0, 0, &[], 0o022),
        user(1, 1, &[10], 0),
        user(2, 2, &[10, 11], 0o022),
        user(3, 10, &[], 0o077),
        user(1, 11, &[], 0o002),
        Caller::checked_by_kernel(2, 2, 0o022),
    ]
}
