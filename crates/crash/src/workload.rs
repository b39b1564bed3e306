//! A sequence of operations to be crashed, and the name by which it is found again.

use std::fmt;
use std::str::FromStr;

use crate::catalogue::Entry;
use crate::ext_subject::Ext;
use crate::native_subject::Native;
use crate::operation::Operation;
use crate::random;
use crate::scene::Scene;
use crate::subject::{Promise, Subject};

/// Random operations of one workload, at most: all of them are in memory.
const COUNT_MAX: usize = 1_000_000;

/// What is recorded and crashed.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The names of its entries joined by `+`, or `random-COUNT`; then, if only some of its operations are done, `#` and
    /// their numbers.
    pub name: String,
    /// What it starts from.
    pub scene: Scene,
    /// Done before, and not crashed.
    pub prelude: Vec<Operation>,
    /// What is crashed.
    pub operations: Vec<Operation>,
    /// The first operation that is crashed: those before it are, in the workload that ends with them.
    pub from: usize,
    /// Chooses random states, and the operations of random workloads.
    pub seed: u64,
}

impl Workload {
    /// Entries one after another; `None` if they need different scenes. The last one is crashed.
    pub fn of(entries: &[&Entry], seed: u64) -> Option<Workload> {
        let mut scenes: Vec<Scene> =
            entries.iter().map(|entry| entry.scene).filter(|scene| *scene != Scene::Common).collect();
        scenes.dedup();
        let scene = match scenes[..] {
            [] => Scene::Common,
            [one] => one,
            _ => return None,
        };
        let before = &entries[..entries.len().checked_sub(1)?];
        Some(Workload {
            name: entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join("+"),
            scene,
            prelude: entries.iter().flat_map(|entry| entry.prelude.clone()).collect(),
            operations: entries.iter().flat_map(|entry| entry.operations.clone()).collect(),
            from: before.iter().map(|entry| entry.operations.len()).sum(),
            seed,
        })
    }

    /// `count` operations of those that `subject` has, which `seed` chooses.
    pub fn random(subject: &dyn Subject, count: usize, seed: u64) -> Workload {
        Workload {
            name: format!("random-{count}"),
            scene: Scene::Common,
            prelude: Vec::new(),
            operations: random::operations(subject, count, seed),
            from: 0,
            seed,
        }
    }

    /// Whether `subject` has all operations that it takes.
    pub fn suits(&self, subject: &dyn Subject) -> bool {
        let essence = self.scene.essence();
        essence.iter().chain(&self.prelude).chain(&self.operations).all(|operation| subject.can(operation))
    }

    /// Finds a workload of `subject` by its name.
    pub fn named(
        subject: &dyn Subject,
        name: &str,
        seed: u64,
        catalogue: &[Entry],
    ) -> Result<Workload, String> {
        let (names, kept) = match name.split_once('#') {
            Some((names, kept)) => (names, Some(kept)),
            None => (name, None),
        };
        let mut workload = match names.strip_prefix("random-") {
            Some(count) => {
                let count = count.parse().ok().filter(|count| (1..=COUNT_MAX).contains(count));
                let count = count.ok_or_else(|| {
                    format!("{names:?}: random-COUNT is meant, of at most {COUNT_MAX} operations")
                })?;
                Workload::random(subject, count, seed)
            }
            None => {
                let find = |name| {
                    let found = catalogue.iter().find(|entry| entry.name == name);
                    found.ok_or_else(|| format!("no operation is called {name:?}; --list shows all"))
                };
                let entries = names.split('+').map(find).collect::<Result<Vec<_>, _>>()?;
                let workload = Workload::of(&entries, seed);
                workload.ok_or_else(|| format!("the operations of {names:?} start from different scenes"))?
            }
        };
        if let Some(kept) = kept {
            let numbers: Result<Vec<usize>, _> = kept.split(',').map(str::parse).collect();
            let numbers = numbers.map_err(|_| format!("{kept:?}: numbers with commas are meant"))?;
            workload = workload.keep(&numbers).ok_or_else(|| format!("{names:?} has no such operations"))?;
        }
        match workload.suits(subject) {
            true => Ok(workload),
            false => Err(format!("{names:?} takes operations that {} does not have", subject.name())),
        }
    }

    /// Only these of its operations, all of them crashed.
    pub fn keep(&self, numbers: &[usize]) -> Option<Workload> {
        let kept: Option<Vec<Operation>> =
            numbers.iter().map(|number| self.operations.get(*number).cloned()).collect();
        // Of what was kept of others before, they are other numbers.
        let (whole, before) = match self.name.split_once('#') {
            Some((whole, before)) => (whole, Some(before.split(',').collect::<Vec<_>>())),
            None => (self.name.as_str(), None),
        };
        let shown = |number: &usize| match &before {
            Some(before) => before.get(*number).map(|number| number.to_string()),
            None => Some(number.to_string()),
        };
        let shown: Option<Vec<String>> = numbers.iter().map(shown).collect();
        let name = format!("{whole}#{}", shown?.join(","));
        Some(Workload { name, operations: kept?, from: 0, ..self.clone() })
    }
}

/// Names one state of one workload: `native:rename-over:op:0:37.12=1.13=2`.
///
/// Subject, workload, promise, seed; then the event before which the power goes, and for each line (or first line of a
/// group) that is not as it was durable, counted from the volume's start, which of its contents it has. A colon and the depth
/// follow where it is another than [`Id::DEPTH`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id {
    /// The subject's name.
    pub subject: String,
    /// The workload's name.
    pub workload: String,
    /// What was promised.
    pub promise: Promise,
    /// The workload's seed.
    pub seed: u64,
    /// The event before which the power goes; 0 if it does not.
    pub event: usize,
    /// Lines and choices.
    pub lines: Vec<(u32, usize)>,
    /// How deep its recovery is crashed: 1 not at all, 2 once. That of a pair is not, whatever this says.
    pub depth: u32,
}

impl Id {
    /// The depth of which names say nothing.
    pub const DEPTH: u32 = 2;
    /// The largest one.
    pub const DEPTH_MAX: u32 = 3;
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}:{}", self.subject, self.workload, self.promise, self.seed, self.event)?;
        self.lines.iter().try_for_each(|(line, choice)| write!(f, ".{line}={choice}"))?;
        if self.depth == Id::DEPTH { Ok(()) } else { write!(f, ":{}", self.depth) }
    }
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Id, String> {
        let refuse =
            || format!("{text:?} is no name of a state: subject:workload:promise:seed:schedule is meant");
        let parts: Vec<&str> = text.split(':').collect();
        let (parts, depth) = match parts[..] {
            [.., depth] if parts.len() == 6 => (&parts[..5], depth.parse().ok()),
            _ => (&parts[..], Some(Id::DEPTH)),
        };
        let depth = depth.filter(|depth| (1..=Id::DEPTH_MAX).contains(depth)).ok_or_else(refuse)?;
        let [subject, workload, promise, seed, schedule] = parts[..] else { return Err(refuse()) };
        let mut schedule = schedule.split('.');
        let event = schedule.next().and_then(|event| event.parse().ok()).ok_or_else(refuse)?;
        let line = |text: &str| {
            let (line, choice) = text.split_once('=')?;
            Some((line.parse().ok()?, choice.parse().ok()?))
        };
        let lines = schedule.map(line).collect::<Option<Vec<_>>>().ok_or_else(refuse)?;
        let (subject, workload) = (subject.to_owned(), workload.to_owned());
        let (promise, seed) = (promise.parse()?, seed.parse().map_err(|_| refuse())?);
        Ok(Id { subject, workload, promise, seed, event, lines, depth })
    }
}

/// The kind of volume of this name, as names of states begin with.
pub fn subject(name: &str) -> Result<&'static dyn Subject, String> {
    let native = Native::named(name).map(|native| native as &dyn Subject);
    let found = native.or_else(|| Ext::named(name).map(|ext| ext as &dyn Subject));
    found.ok_or_else(|| format!("there is no volume kind {name:?} to crash"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Depths of recoveries that are crashed are a part of a name, where they are not as usual.
    #[test]
    fn names_say_how_deep_recoveries_are_crashed() {
        for (name, depth) in
            [("native:create:op:0:33.5=1", 2), ("native:create:op:0:33:1", 1), ("ext:a:op:0:3.7=2:3", 3)]
        {
            let id: Id = name.parse().unwrap();
            assert_eq!((id.depth, id.to_string().as_str()), (depth, name));
        }
        for name in [
            "native:create:op:0:33:0",
            "native:create:op:0:33:4",
            "native:create:op:0:33:",
            "native:create:op:0:33:2:1",
        ] {
            assert!(name.parse::<Id>().is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_kept_of_what_was_kept_has_a_name_that_is_read() {
        let named = |name: &str| Workload::named(&Native::ADAPTIVE, name, 7, &[]).unwrap();
        let kept = named("random-30#3,5,8").keep(&[0, 2]).unwrap();
        assert_eq!(kept.name, "random-30#3,8");
        assert_eq!(format!("{:?}", named(&kept.name).operations), format!("{:?}", kept.operations));
        assert!(named("random-30#3,5").keep(&[2]).is_none());
        assert!(Workload::named(&Native::ADAPTIVE, "random-99999999999", 7, &[]).is_err());
    }
}
