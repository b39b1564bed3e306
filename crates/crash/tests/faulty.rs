//! A volume that panics, or answers what is not so, is a finding: it is told by a name, and found again.

use std::path::PathBuf;
use std::sync::Arc;

use crash::{
    Campaign, Lab, Life, Mounted, Native, Operation, PairFailure, Program, ProgramFailure, ProgramOptions,
    Promise, Subject, Workload, WorkloadError, catalogue, done_mark, explore_pair, explore_program, pairs,
    replay_pair, shrink,
};
use nvm::{OpenOptions, RecordingOptions, Region, Zone};
use vfs::{Caller, Error, ROOT_INO};

const SOUND: &Native = &Native::ADAPTIVE;

/// A native volume with one fault.
#[derive(Debug, PartialEq)]
enum Faulty {
    /// The second of two threads panics.
    SecondThread,
    Check,
    /// No volume can be made.
    Format,
    /// Returning to a snapshot fails, without saying that anything is wrong with the volume.
    RollBack(Error),
}

impl Subject for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn promises(&self) -> &'static [Promise] {
        SOUND.promises()
    }

    fn can(&self, operation: &Operation) -> bool {
        SOUND.can(operation)
    }

    fn volume_bytes(&self) -> u64 {
        SOUND.volume_bytes()
    }

    fn format(&self, zone: &Zone, name: &str) -> Result<Region, String> {
        assert!(*self != Faulty::Format, "it cannot be made");
        SOUND.format(zone, name)
    }

    fn number_this_thread(&self, number: usize) {
        assert!(*self != Faulty::SecondThread || number == 0, "there is no second thread");
        SOUND.number_this_thread(number);
    }

    fn open(&self, region: &Region, promise: Promise) -> Result<Box<dyn Mounted>, String> {
        SOUND.open(region, promise)
    }

    fn check(&self, region: &Region) -> Result<(), String> {
        assert!(*self != Faulty::Check, "it cannot be checked");
        SOUND.check(region)
    }

    fn roll_back(&self, region: &Region, name: &str) -> vfs::Result<()> {
        match self {
            Faulty::RollBack(error) => Err(error.clone()),
            _ => SOUND.roll_back(region, name),
        }
    }
}

fn named(name: &str) -> Workload {
    Workload::named(SOUND, name, 1, &catalogue()).unwrap()
}

#[test]
fn a_panic_of_one_of_two_threads_is_found_again_by_its_name() {
    let pair = &pairs()[0];
    let failure = explore_pair(&Faulty::SecondThread, pair, 1, 1).unwrap_err();
    assert!(matches!(failure, PairFailure::Workload { .. }), "{failure}");
    assert!(failure.to_string().contains("it panics: there is no second thread"), "{failure}");
    let id = failure.id(&Faulty::SecondThread, pair);
    assert_eq!(id.to_string(), "faulty:two-0,0@:op:0:0");
    let again = replay_pair(&Faulty::SecondThread, &id).unwrap().unwrap();
    assert_eq!(again.to_string(), failure.to_string());
}

#[test]
fn a_panic_before_anything_is_crashed_is_told() {
    let pair = &pairs()[0];
    let failure = explore_pair(&Faulty::Format, pair, 1, 1).unwrap_err();
    let again = replay_pair(&Faulty::Format, &failure.id(&Faulty::Format, pair)).unwrap().unwrap();
    assert!(again.to_string().contains("it panics: it cannot be made"), "{again}");
    let error = Lab::new(&Faulty::Format, Promise::Operation, 1).explore(&named("create")).unwrap_err();
    assert_eq!(error, WorkloadError::Volume("it panics: it cannot be made".into()));
}

/// Its name has the seed and the depth of the campaign, and that is enough.
#[test]
fn a_state_of_a_campaign_is_found_again_by_its_name_alone() {
    let campaign = Campaign {
        subject: &Faulty::Check,
        promise: Promise::Operation,
        depth: 3,
        exact: false,
        threads: 1,
        failures_max: 1,
        until: None,
        interrupted: Arc::default(),
    };
    let (all, told) = (catalogue(), |_| ());
    let reports = [
        campaign.one(&all[..1], 7, &told),
        campaign.two(&all[..1], None, 7, &told),
        campaign.three(&all[..1], 1, 7, &told),
    ];
    for report in reports {
        let failure = &report.failures[0];
        let Ok(violation) = &failure.found else { panic!("{}", failure.text()) };
        let id = &failure.id;
        assert!(id.to_string().starts_with(&format!("faulty:{}:op:7:", failure.workload.name)), "{id}");
        assert!(id.to_string().ends_with(":3"), "{id}");
        let workload = Workload::named(&Faulty::Check, &id.workload, id.seed, &all).unwrap();
        let again = Lab::new(&Faulty::Check, id.promise, 1).replay(&workload, id).unwrap();
        assert_eq!(again.map(|again| again.what), Some(violation.what.clone()));
    }
}

/// The life of a program that made one directory.
fn life() -> Life {
    let zone = Zone::anonymous(nvm::SEGMENT + SOUND.volume_bytes(), &OpenOptions::default()).unwrap();
    let region = SOUND.format(&zone, "lived-in").unwrap();
    let image = zone.snapshot_image();
    zone.start_recording(RecordingOptions::default());
    let mounted = SOUND.open(&region, Promise::Operation).unwrap();
    zone.mark(&done_mark(0));
    mounted.mkdir(&Caller::root(), ROOT_INO, b"made", 0o755).unwrap();
    zone.mark(&done_mark(1));
    mounted.close().unwrap();
    let recording = zone.stop_recording().unwrap();
    Life { promise: Promise::Operation, image, recording, volume: "lived-in".into() }
}

#[test]
fn a_panic_behind_a_program_is_a_broken_promise() {
    let program = Program::new("sh -c 'while read -r line; do echo ok 0; done'");
    let scratch = PathBuf::from("/nowhere");
    let options = ProgramOptions { states: 10, seed: 1, scratch };
    let failure = explore_program(&Faulty::Check, &program, &life(), &options, &mut |_| ()).unwrap_err();
    let ProgramFailure::Broken { what, kept, .. } = &failure else { panic!("{failure}") };
    assert_eq!((what.as_str(), kept), ("its check finds: it panics: it cannot be checked", &None));
    assert!(!failure.to_string().contains("the tree is kept"), "{failure}");
}

#[test]
fn a_failure_without_a_crash_has_a_name() {
    let (all, told) = (catalogue(), |_| ());
    let campaign = Campaign {
        subject: &Faulty::Format,
        promise: Promise::Operation,
        depth: 2,
        exact: false,
        threads: 1,
        failures_max: 1,
        until: None,
        interrupted: Arc::default(),
    };
    let failure = campaign.one(&all[..1], 7, &told).failures.remove(0);
    let id = &failure.id;
    assert_eq!(id.to_string(), format!("faulty:{}:op:7:0", all[0].name));
    assert!(failure.text().starts_with(&id.to_string()), "{}", failure.text());
    let replayed =
        |subject: &'static dyn Subject| Lab::new(subject, id.promise, 2).replay(&failure.workload, id);
    assert_eq!(replayed(&Faulty::Format).unwrap_err(), *failure.found.as_ref().unwrap_err());
    assert!(replayed(SOUND).unwrap().is_none());
}

#[test]
fn a_failure_without_a_crash_shrinks() {
    let whole = named("chmod+setxattr-dir+roll-back+mkdir");
    let mut lab = Lab::new(&Faulty::RollBack(Error::Busy), Promise::Operation, 1);
    let (smaller, failure) = shrink(&mut lab, &whole).expect("it fails");
    assert!(matches!(failure, Err(WorkloadError::Result { .. })), "{failure:?}");
    assert!(matches!(smaller.operations[..], [Operation::RollBack(_)]), "{:?}", smaller.operations);
    let mut sound = Lab::new(SOUND, Promise::Operation, 1);
    assert!(shrink(&mut sound, &whole).is_none(), "a sound volume keeps its promise");
}

/// A volume that is nearly empty has room; a full one need not, and how often that was so is counted.
#[test]
fn no_room_is_right_only_where_there_is_none() {
    let explored = |subject, name| Lab::new(subject, Promise::Operation, 1).explore(&named(name));
    let lying: &'static Faulty = &Faulty::RollBack(Error::NoSpace);
    assert!(matches!(explored(lying, "roll-back"), Err(WorkloadError::Room { .. })));
    assert_eq!(explored(SOUND, "roll-back").unwrap().counts.without_room, 0);
    assert_eq!(explored(SOUND, "full-create").unwrap().counts.without_room, 1);
}
