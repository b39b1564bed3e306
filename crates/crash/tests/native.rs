//! The native volume keeps its promises: a slice of what `amberfs crash` explores, for every run of the tests.

use std::sync::Arc;

use crash::{Campaign, Lab, MediaFault, Native, Promise, Report, Subject, Workload, catalogue};

fn campaign(promise: Promise) -> Campaign {
    Campaign {
        subject: &Native::ADAPTIVE,
        promise,
        depth: 2,
        exact: false,
        threads: 2,
        failures_max: 5,
        until: None,
        interrupted: Arc::default(),
    }
}

fn assert_kept(report: &Report) {
    let failures: String = report.failures.iter().map(|failure| failure.text()).collect();
    assert!(failures.is_empty(), "\n{failures}");
    assert!(report.workloads > 0 && report.counts.checked > 0, "{report:?}");
    eprintln!("{} workloads, {:?}", report.workloads, report.counts);
}

/// Explores workloads by their names.
fn kept(promise: Promise, names: &[&str]) {
    kept_in(&campaign(promise), names);
}

fn kept_in(campaign: &Campaign, names: &[&str]) {
    let catalogue = catalogue();
    let report = campaign.run(
        names.len(),
        &|index| Some(Workload::named(&Native::ADAPTIVE, names[index], 1, &catalogue).unwrap()),
        &|_| {},
    );
    assert_eq!(report.workloads, names.len());
    assert_kept(&report);
}

#[test]
fn with_every_operation_durable() {
    let names = [
        "create",
        "rename-over",
        "write-across",
        "unlink-open-close",
        "truncate-down-up",
        "directory-grows",
        "create+sync-nothing",
    ];
    kept(Promise::Operation, &names);
}

#[test]
fn with_durable_fsyncs() {
    kept(Promise::Fsync, &["create-twice", "fdatasync", "unlink-create"]);
}

#[test]
fn with_durable_checkpoints() {
    kept(Promise::Snapshot, &["create-twice", "write-sync-write"]);
}

/// Recoveries are crashed for each difference that one which is cut short could see.
#[test]
fn with_recoveries_crashed_exactly() {
    for promise in [Promise::Operation, Promise::Fsync, Promise::Snapshot] {
        let exact = Campaign { exact: true, ..campaign(promise) };
        kept_in(&exact, &["sync-create", "write-across", "roll-back-write", "clone-mounted", "log-reused"]);
    }
}

/// Whichever way bytes are logged, and whatever is promised: written, and moved, with snapshots, rollbacks and clones. Each workload with one of
/// the nine; `scripts/crash-slice.sh` has each with every way and under every promise, and crashes the recoveries, too.
#[test]
fn with_each_way_to_log() {
    let catalogue = catalogue();
    let names = catalogue.iter().map(|entry| &*entry.name);
    let chosen: Vec<&str> = names.filter(|name| is_of_bytes(name)).collect();
    assert!(chosen.len() > 90, "{chosen:?}");
    let ways = ["native-block", "native-diff", "native-block-switch"];
    for (turn, (name, promise)) in
        ways.iter().flat_map(|name| Promise::ALL.map(|promise| (name, promise))).enumerate()
    {
        let some: Vec<&str> = chosen.iter().copied().skip(turn).step_by(9).collect();
        let subject = Native::named(name).unwrap();
        let shallow = Campaign { subject, depth: 1, ..campaign(promise) };
        let workload = |index: usize| Some(Workload::named(subject, some[index], 1, &catalogue).unwrap());
        let report = shallow.run(some.len(), &workload, &|_| {});
        assert_eq!(report.workloads, some.len());
        assert_kept(&report);
    }
}

fn is_of_bytes(name: &str) -> bool {
    let is_of = |beginning: &&str| name.starts_with(beginning);
    ["write-", "snapshot"].iter().any(is_of) || is_return_or_clone(name) || is_of_garbage(name)
}

fn is_of_garbage(name: &str) -> bool {
    // Logs are emptied, too: an ext disk's.
    let is_log = name.starts_with("empty-log");
    !is_log && ["empty-", "reserved-", "moved-"].iter().any(|beginning| name.starts_with(beginning))
}

/// Garbage collected, whatever is promised, recoveries crashed: a few; all of it is a part of `scripts/crash-slice.sh`.
#[test]
fn with_garbage_collected() {
    let catalogue = catalogue();
    let names = catalogue.iter().map(|entry| &*entry.name);
    let names: Vec<&str> = names.filter(|name| is_of_garbage(name)).collect();
    assert!(names.len() > 30, "{names:?}");
    for (turn, promise) in [Promise::Fsync, Promise::Snapshot].into_iter().enumerate() {
        let some: Vec<&str> = names.iter().copied().skip(turn).step_by(4).collect();
        kept(promise, &some);
    }
}

/// Snapshots taken, changed under and removed, in several steps; each operation behind one.
#[test]
fn with_snapshots() {
    let catalogue = catalogue();
    let about = |name: &str| name.starts_with("snapshot") || is_return_or_clone(name);
    let names = catalogue.iter().map(|entry| &*entry.name).filter(|name| name.starts_with("snapshot"));
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 10);
    Promise::ALL.iter().for_each(|promise| kept(*promise, &names));
    let suits = |entry: &crash::Entry| entry.operations.iter().all(|it| Native::ADAPTIVE.can(it));
    let behind = |entry: &crash::Entry| {
        (!about(&entry.name) && suits(entry)).then(|| format!("snapshot+{}", entry.name))
    };
    let behind: Vec<String> = catalogue.iter().filter_map(behind).collect();
    let workload =
        |index: usize| Some(Workload::named(&Native::ADAPTIVE, &behind[index], 1, &catalogue).unwrap());
    let shallow = Campaign { depth: 1, ..campaign(Promise::Operation) };
    assert_kept(&shallow.run(behind.len(), &workload, &|_| {}));
}

fn is_return_or_clone(name: &str) -> bool {
    name.starts_with("roll-back") || name.starts_with("clone-")
}

/// Returned to snapshots, and cloned. With every operation durable that is a part of `scripts/crash-slice.sh`.
#[test]
fn with_rollbacks_and_clones() {
    let catalogue = catalogue();
    let names = catalogue.iter().map(|entry| &*entry.name).filter(|name| is_return_or_clone(name));
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 15, "{names:?}");
    for promise in [Promise::Fsync, Promise::Snapshot] {
        let workload =
            |index: usize| Some(Workload::named(&Native::ADAPTIVE, names[index], 1, &catalogue).unwrap());
        let report = Campaign { depth: 1, ..campaign(promise) }.run(names.len(), &workload, &|_| {});
        assert_eq!(report.workloads, names.len());
        assert_kept(&report);
    }
}

/// Random sequences, in which snapshots come and go.
#[test]
fn with_random_sequences() {
    let random = |promise, seed| {
        let shallow = Campaign { depth: 1, ..campaign(promise) };
        assert_kept(&shallow.random(2, 12, seed, &|_| {}));
    };
    (1..).zip(Promise::ALL).for_each(|(seed, promise)| random(promise, seed));
}

/// The same workloads have the same crash points and states, in every run.
#[test]
fn a_campaign_repeats_exactly() {
    let names = ["rename-over", "chmod"];
    let catalogue = catalogue();
    let counts = || {
        // Each thread remembers what it knows, so which one meets a workload first matters to the counts.
        let campaign = Campaign { threads: 1, ..campaign(Promise::Operation) };
        let workload =
            |index: usize| Some(Workload::named(&Native::ADAPTIVE, names[index], 1, &catalogue).unwrap());
        campaign.run(names.len(), &workload, &|_| {}).counts
    };
    assert_eq!(counts(), counts());
}

/// Every name is given once, and every entry has something to crash.
#[test]
fn the_catalogue_is_sound() {
    let catalogue = catalogue();
    assert!(catalogue.len() >= 150, "{}", catalogue.len());
    for entry in &catalogue {
        assert!(!entry.operations.is_empty(), "{}", entry.name);
        assert_eq!(catalogue.iter().filter(|other| other.name == entry.name).count(), 1, "{}", entry.name);
        assert!(!entry.name.contains(['+', ':', '#', '.', '=']), "{}", entry.name);
    }
}

/// What is known of a state from an equal one is what comes out when it is judged: each such state is judged here, and does the same
/// again, reading the same words in the same order. So the same states are met with and without, and the same faults found. Where recoveries
/// are to be crashed exactly, also those that are known are crashed again.
#[test]
fn what_is_known_of_a_state_is_so() {
    let catalogue = catalogue();
    let mut faults_found = 0;
    for (promise, name, exact) in [
        (Promise::Operation, "create", false),
        (Promise::Operation, "chmod", true),
        (Promise::Operation, "sync-create", false),
        (Promise::Operation, "write-sub-block", false),
        (Promise::Fsync, "create-twice", false),
        (Promise::Snapshot, "create-twice", false),
        (Promise::Snapshot, "create-twice", true),
    ] {
        let workload = Workload::named(&Native::ADAPTIVE, name, 1, &catalogue).unwrap();
        let explored = |doubts: bool, fault: Option<MediaFault>| {
            let mut lab = Lab::new(&Native::ADAPTIVE, promise, 2);
            if doubts {
                lab.doubt();
            }
            if exact {
                lab.exact();
            }
            lab.tamper(move |recording| fault.into_iter().for_each(|fault| fault.plant(recording)));
            lab.explore(&workload).unwrap()
        };
        let (known, doubted) = (explored(false, None), explored(true, None));
        assert_eq!(doubted.violation.map(|violation| violation.what), None, "{name}, {promise}");
        let states = |counts: crash::Counts| (counts.points, counts.distinct, counts.deep);
        assert_eq!(states(known.counts), states(doubted.counts), "{name}, {promise}");
        // Some are met twice before it is known what they read.
        assert!(doubted.counts.checked >= doubted.counts.distinct);
        assert!(known.counts.checked < known.counts.distinct, "{name}, {promise}: {:?}", known.counts);
        let recording = Lab::new(&Native::ADAPTIVE, promise, 2).recording(&workload).unwrap();
        for fault in MediaFault::all(&recording).into_iter().step_by(5) {
            let found = |doubts: bool| {
                let violation = explored(doubts, Some(fault)).violation?;
                Some((violation.event, violation.lines.clone(), violation.deepest().what.clone()))
            };
            let found_knowing = found(false);
            faults_found += usize::from(found_knowing.is_some());
            assert_eq!(found_knowing, found(true), "{name}, {promise}: {fault}");
        }
    }
    assert!(faults_found >= 8, "{faults_found} faults of the medium show");
}
