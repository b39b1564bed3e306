//! The native volume keeps its promises: a slice of what `amberfs crash` explores, for every run of the tests.

use crash::{Campaign, Native, Promise, Report, Subject, Workload, catalogue};

fn campaign(promise: Promise) -> Campaign {
    Campaign { subject: &Native::ADAPTIVE, promise, depth: 2, threads: 2, failures_max: 5, until: None }
}

fn assert_kept(report: &Report) {
    let failures: String = report.failures.iter().map(|failure| failure.text()).collect();
    assert!(failures.is_empty(), "\n{failures}");
    assert!(report.workloads > 0 && report.counts.checked > 0, "{report:?}");
    eprintln!("{} workloads, {:?}", report.workloads, report.counts);
}

/// Explores workloads by their names.
fn kept(promise: Promise, names: &[&str]) {
    let catalogue = catalogue();
    let report = campaign(promise).run(
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

/// Whichever way bytes are logged.
#[test]
fn with_each_way_to_log() {
    let catalogue = catalogue();
    let writes =
        |entry: &crash::Entry| entry.name.starts_with("write-") || entry.name == "snapshot-then-write";
    let chosen: Vec<String> = catalogue.iter().filter(|it| writes(it)).map(|it| it.name.clone()).collect();
    assert!(chosen.len() > 20, "{chosen:?}");
    for (name, promise) in [
        ("native-block", Promise::Operation),
        ("native-diff", Promise::Fsync),
        ("native-block-switch", Promise::Operation),
    ] {
        let shallow = Campaign { subject: Native::named(name).unwrap(), depth: 1, ..campaign(promise) };
        let workload =
            |index: usize| Some(Workload::named(&Native::ADAPTIVE, &chosen[index], 1, &catalogue).unwrap());
        assert_kept(&shallow.run(chosen.len(), &workload, &|_| {}));
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
