//! A volume's policy at work while it is mounted: a thread that takes what is due and lets go of what is superfluous.
//!
//! What is wrong is told once, until it is over: a full volume does not fill the log as well.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};

use crate::failure::Failure;
use crate::retention::{self, Policy, Scheduled};

/// Seconds between two looks at most: who sets the clock or lets a machine sleep tells nobody.
const LOOK_MAX: i64 = 30;

/// A volume whose snapshots are kept by a policy.
pub(crate) trait Keeps: Send + Sync + 'static {
    /// Its snapshots, in the order in which they were taken.
    fn snapshots(&self) -> Result<Vec<native::Snapshot>, Failure>;
    /// Whether nothing of it is to be changed just now.
    fn is_read_only(&self) -> bool;
    /// Whether anything has changed since this snapshot.
    fn has_changed_since(&self, name: &str) -> Result<bool, Failure>;
    fn take(&self, name: &str) -> Result<(), Failure>;
    fn remove(&self, name: &str) -> Result<(), Failure>;
}

/// A policy, and what is remembered between two looks.
pub(crate) struct Keeper {
    /// Of the volume, for the log.
    pub(crate) volume: String,
    pub(crate) policy: Policy,
    /// Snapshots are taken also when nothing has changed since the last one.
    pub(crate) unchanged_too: bool,
    /// When there was nothing to be taken: its periods have had their turn.
    passed: Option<i64>,
    /// What is wrong and was told.
    told: BTreeSet<String>,
}

impl Keeper {
    pub(crate) fn new(volume: &str, policy: Policy, unchanged_too: bool) -> Keeper {
        Keeper { volume: volume.to_string(), policy, unchanged_too, passed: None, told: BTreeSet::new() }
    }

    /// Takes what is due at `now`, seconds since 1970, and lets go of what is superfluous then; returns for how many
    /// seconds there is nothing to do.
    fn look(&mut self, now: i64, volume: &dyn Keeps) -> i64 {
        let mut wrong = BTreeSet::new();
        if volume.is_read_only() {
            wrong.insert("it is mounted read-only: no snapshots are taken, none removed".to_string());
        } else {
            self.keep(now, volume, &mut wrong);
        }
        for what in wrong.difference(&self.told) {
            tracing::warn!("volume '{}': {what}; not told again until that is over", self.volume);
        }
        self.told = wrong;
        (self.policy.next(now) - now).clamp(1, LOOK_MAX)
    }

    fn keep(&mut self, now: i64, volume: &dyn Keeps, wrong: &mut BTreeSet<String>) {
        if let Err(failure) = self.take(now, volume) {
            wrong.insert(format!("no snapshot is taken as its policy says: {}", one_line(&failure)));
        }
        match volume.snapshots() {
            Ok(snapshots) => self.prune(&Scheduled::among(&snapshots), volume, wrong),
            Err(failure) => {
                wrong.insert(one_line(&failure));
            }
        }
    }

    fn take(&mut self, now: i64, volume: &dyn Keeps) -> Result<(), Failure> {
        let scheduled = Scheduled::among(&volume.snapshots()?);
        let had_turns = scheduled.iter().map(|snapshot| snapshot.at).chain(self.passed);
        if !self.policy.is_due(had_turns, now) {
            return Ok(());
        }
        if let Some(last) = scheduled.last().filter(|_| !self.unchanged_too)
            && !volume.has_changed_since(&last.name)?
        {
            self.passed = Some(now);
            return Ok(());
        }
        let name = retention::name_at(now);
        volume.take(&name)?;
        tracing::info!("volume '{}': took snapshot {name:?}", self.volume);
        Ok(())
    }

    fn prune(&self, scheduled: &[Scheduled], volume: &dyn Keeps, wrong: &mut BTreeSet<String>) {
        for Scheduled { name, .. } in self.policy.superfluous(scheduled) {
            match volume.remove(name) {
                Ok(()) => tracing::info!("volume '{}': removed snapshot {name:?}", self.volume),
                Err(failure) => {
                    wrong.insert(format!("snapshot {name:?} should go: {}", one_line(&failure)));
                }
            }
        }
    }
}

fn one_line(failure: &Failure) -> String {
    let remedy = failure.remedy.iter().map(|remedy| format!(" ({remedy})"));
    remedy.fold(failure.what.clone(), |text, remedy| text + &remedy)
}

/// A thread that looks after a volume until it is stopped.
pub(crate) struct Schedule {
    ended: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

impl Schedule {
    pub(crate) fn start(mut keeper: Keeper, volume: Arc<dyn Keeps>) -> std::io::Result<Schedule> {
        let ended: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let (policy, end) = (keeper.policy.to_string(), ended.clone());
        tracing::info!("volume '{}': snapshots are kept as {policy}", keeper.volume);
        let run = move || {
            let (ended, changed) = &*end;
            let mut wait = 0;
            loop {
                let patience = Duration::from_secs(wait as u64);
                let mut ended = ended.lock();
                changed.wait_while_for(&mut ended, |ended| !*ended, patience);
                if *ended {
                    return;
                }
                drop(ended);
                wait = keeper.look(now(), &*volume);
            }
        };
        Ok(Schedule { ended, thread: std::thread::Builder::new().name("snapshots".into()).spawn(run)? })
    }

    /// Waits for what it is doing, after which it does nothing more.
    pub(crate) fn stop(self) {
        let (ended, changed) = &*self.ended;
        *ended.lock() = true;
        changed.notify_all();
        if self.thread.join().is_err() {
            tracing::error!("the thread that takes snapshots panicked");
        }
    }
}

/// Seconds since 1970, as the wall clock has it.
fn now() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume that remembers what was asked of it.
    #[derive(Default)]
    struct Volume(Mutex<Facts>);

    #[derive(Default)]
    struct Facts {
        snapshots: Vec<native::Snapshot>,
        changed: bool,
        is_full: bool,
        is_read_only: bool,
        in_use: Option<String>,
        attempts: u32,
    }

    impl Keeps for Volume {
        fn snapshots(&self) -> Result<Vec<native::Snapshot>, Failure> {
            Ok(self.0.lock().snapshots.clone())
        }

        fn is_read_only(&self) -> bool {
            self.0.lock().is_read_only
        }

        fn has_changed_since(&self, _: &str) -> Result<bool, Failure> {
            Ok(self.0.lock().changed)
        }

        fn take(&self, name: &str) -> Result<(), Failure> {
            let mut facts = self.0.lock();
            facts.attempts += 1;
            if facts.is_full {
                return Err(Failure::new("full"));
            }
            let version = facts.snapshots.len() as u32 + 1;
            facts.snapshots.push(native::Snapshot {
                name: name.into(),
                comment: retention::COMMENT.into(),
                version,
                taken: vfs::Time { sec: 0, nsec: 0 },
                holds: Vec::new(),
            });
            facts.changed = false;
            Ok(())
        }

        fn remove(&self, name: &str) -> Result<(), Failure> {
            let mut facts = self.0.lock();
            if facts.in_use.as_deref() == Some(name) {
                return Err(Failure::new("in use"));
            }
            facts.snapshots.retain(|snapshot| snapshot.name != name);
            Ok(())
        }
    }

    impl Volume {
        fn change(&self) {
            self.0.lock().changed = true;
        }

        fn names(&self) -> Vec<String> {
            self.0.lock().snapshots.iter().map(|it| it.name.clone()).collect()
        }
    }

    fn keeper(policy: &str) -> Keeper {
        Keeper::new("home", policy.parse().unwrap(), false)
    }

    #[test]
    fn what_changed_is_taken_once_a_period() {
        let (volume, mut keeper) = (Volume::default(), keeper("hourly=2"));
        assert_eq!(keeper.look(10, &volume), LOOK_MAX);
        assert_eq!(volume.names(), ["auto-19700101T000010Z"], "there was none");
        volume.change();
        assert_eq!(keeper.look(3590, &volume), 10, "until the next hour");
        assert_eq!(volume.names().len(), 1);
        keeper.look(3600, &volume);
        assert_eq!(volume.names().len(), 2);
        // Nothing changed in that hour; what changes in the next is for the one behind.
        keeper.look(7200, &volume);
        volume.change();
        keeper.look(7230, &volume);
        assert_eq!(volume.names().len(), 2);
        keeper.look(10800, &volume);
        assert_eq!(volume.names(), ["auto-19700101T010000Z", "auto-19700101T030000Z"]);
        keeper.unchanged_too = true;
        keeper.look(14400, &volume);
        assert_eq!(volume.names(), ["auto-19700101T030000Z", "auto-19700101T040000Z"]);
    }

    #[test]
    fn a_pause_is_made_up_for_with_one() {
        let volume = Volume::default();
        keeper("hourly=5,daily=5").look(0, &volume);
        volume.change();
        let mut restarted = keeper("hourly=5,daily=5");
        for second in 0..100 {
            restarted.look(1_000_000 + second, &volume);
            volume.change();
        }
        assert_eq!(volume.names(), ["auto-19700101T000000Z", "auto-19700112T134640Z"]);
    }

    #[test]
    fn what_is_wrong_is_told_once_and_tried_again() {
        let (volume, mut keeper) = (Volume::default(), keeper("hourly=1"));
        volume.0.lock().is_full = true;
        keeper.look(0, &volume);
        let told = keeper.told.clone();
        assert_eq!(told.len(), 1);
        for minute in 1..30 {
            keeper.look(minute * 60, &volume);
            assert_eq!(keeper.told, told, "nothing new to tell");
        }
        assert_eq!(volume.0.lock().attempts, 30);
        volume.0.lock().is_full = false;
        keeper.look(1800, &volume);
        assert!(keeper.told.is_empty());
        assert_eq!(volume.names(), ["auto-19700101T003000Z"]);
        // One in use stays until it is not, and keeps nothing else from going on.
        volume.0.lock().in_use = volume.names().pop();
        volume.change();
        keeper.look(3600, &volume);
        assert_eq!((volume.names().len(), keeper.told.len()), (2, 1));
        volume.0.lock().in_use = None;
        keeper.look(3630, &volume);
        assert_eq!(volume.names(), ["auto-19700101T010000Z"]);
        assert!(keeper.told.is_empty());
    }

    #[test]
    fn nothing_is_taken_or_removed_while_it_is_read_only() {
        let (volume, mut keeper) = (Volume::default(), keeper("hourly=1"));
        keeper.look(0, &volume);
        volume.change();
        volume.0.lock().is_read_only = true;
        keeper.look(3600, &volume);
        assert_eq!((volume.names().len(), keeper.told.len()), (1, 1));
        volume.0.lock().is_read_only = false;
        keeper.look(3601, &volume);
        assert_eq!(volume.names(), ["auto-19700101T010001Z"]);
        assert!(keeper.told.is_empty());
    }

    #[test]
    fn what_others_took_is_left_alone() {
        let volume = Volume::default();
        volume.0.lock().snapshots.push(native::Snapshot {
            name: "auto-19691231T000000Z".into(),
            comment: "mine".into(),
            version: 1,
            taken: vfs::Time { sec: 0, nsec: 0 },
            holds: Vec::new(),
        });
        let mut keeper = keeper("1s=1");
        for second in 0..10 {
            volume.change();
            keeper.look(second, &volume);
        }
        assert_eq!(volume.names(), ["auto-19691231T000000Z", "auto-19700101T000009Z"]);
    }

    #[test]
    fn a_thread_looks_until_it_is_stopped() {
        let volume = Arc::new(Volume::default());
        let mut keeper = keeper("1s=3");
        keeper.unchanged_too = true;
        let schedule = Schedule::start(keeper, volume.clone()).unwrap();
        let patience = std::time::Instant::now() + Duration::from_secs(60);
        while volume.0.lock().attempts < 3 {
            assert!(std::time::Instant::now() < patience, "no three snapshots in a minute");
            std::thread::sleep(Duration::from_millis(10));
        }
        schedule.stop();
        let attempts = volume.0.lock().attempts;
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(volume.0.lock().attempts, attempts);
    }
}
