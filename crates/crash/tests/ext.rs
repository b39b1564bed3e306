//! An ext disk attached to NVM keeps its promise: a slice of what `amberfs crash --volume ext` explores, on both media at once.

use std::ops::Range;
use std::sync::Arc;

use crash::{Campaign, Ext, Lab, Native, Promise, Report, Subject, Workload, catalogue};
use nvm::EventKind;

fn campaign(subject: &'static Ext, promise: Promise, depth: u32) -> Campaign {
    Campaign {
        subject,
        promise,
        depth,
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
fn kept(subject: &'static Ext, promise: Promise, depth: u32, names: &[&str]) -> Report {
    let catalogue = catalogue();
    let workload = |index: usize| Some(Workload::named(subject, names[index], 1, &catalogue).unwrap());
    let report = campaign(subject, promise, depth).run(names.len(), &workload, &|_| {});
    assert_eq!((report.workloads, report.left_out), (names.len(), 0));
    assert_kept(&report);
    report
}

/// Among them a file that is open when it loses its name, which the next mount removes and the check behind it does not look for; and a file
/// cut by opening it, which is an operation like others.
#[test]
fn an_ext4_with_every_operation_durable() {
    let report = kept(
        Ext::FOUR,
        Promise::Operation,
        2,
        &["create", "rename-over", "write-across", "unlink-open-close", "open-truncate", "checkpoint-write"],
    );
    assert!(report.counts.deep > 0, "no recovery was crashed: {report:?}");
}

#[test]
fn an_ext2_with_every_operation_durable() {
    kept(Ext::TWO, Promise::Operation, 1, &["mkdir", "write-in-hole", "setxattr-large", "checkpoint-reused"]);
}

/// As a disk is mounted by default: what files hold goes its own ways, by the log, by the disk, behind the user's back.
#[test]
fn an_ext4_with_durable_fsyncs() {
    let names = [
        "create-twice",
        "fdatasync",
        "rename-replace-by-new",
        "commit-append",
        "pages-overwrite",
        "pages-synced",
        "pages-cut-grown",
        "pages-reused",
        "empty-log-unlinked",
    ];
    let report = kept(Ext::FOUR, Promise::Fsync, 2, &names);
    assert!(report.counts.deep > 0, "no recovery was crashed: {report:?}");
}

#[test]
fn an_ext2_with_durable_fsyncs() {
    kept(Ext::TWO, Promise::Fsync, 1, &["fsync", "pages-in-hole", "pages-cut", "empty-log-changed"]);
}

#[test]
fn random_sequences() {
    for promise in [Promise::Operation, Promise::Fsync] {
        let random = Campaign { failures_max: 1, ..campaign(Ext::FOUR, promise, 1) };
        assert_kept(&random.random(2, 8, 1, &|_| {}));
    }
}

/// Events of one kind of a workload's recording that are in some bytes of a piece of the zone.
fn events_in(subject: &'static Ext, name: &str, kind: EventKind, volume: &str, within: Range<u64>) -> usize {
    let workload = Workload::named(subject, name, 1, &catalogue()).unwrap();
    let recording = Lab::new(subject, Promise::Fsync, 1).recording(&workload).unwrap();
    let piece = recording.volumes.iter().find(|piece| piece.name == volume).expect("it is used");
    let within = piece.start + within.start..piece.start + within.end;
    let is_it = |event: &&nvm::Event| event.kind == kind && within.contains(&event.address);
    recording.events.iter().filter(is_it).count()
}

/// The log's halves are retired and used again, with synced bytes in both; and frames are given up all the time, dirty ones when there are no
/// others.
#[test]
fn an_ext4_whose_log_and_frames_are_used_again_and_again() {
    // The word that says which half is retired.
    let retired = |name: &str| events_in(Ext::TIGHT, name, EventKind::Atomic, "v", 8192..8200);
    assert!(retired("log-reused") >= 5, "{}", retired("log-reused"));
    kept(Ext::TIGHT, Promise::Fsync, 1, &["mkdir+mkdir-in-dir+checkpoint-nothing", "pages-reused"]);
    let small = ["create", "rename-across", "bucket-splits", "checkpoint-reused"];
    kept(Ext::TIGHT, Promise::Operation, 1, &small);
}

/// A checkpoint is fences and syncs of the disk, and both are cut: what a recording has of both media is in one order.
#[test]
fn both_media_are_in_one_recording() {
    let workload = Workload::named(Ext::FOUR, "checkpoint-write", 1, &catalogue()).unwrap();
    let recording = Lab::new(Ext::FOUR, Promise::Operation, 1).recording(&workload).unwrap();
    let again = Lab::new(Ext::FOUR, Promise::Operation, 1).recording(&workload).unwrap();
    let disk = recording.volumes.iter().position(|volume| volume.name == "v.disk").expect("it is written");
    let of_disk = |kind| {
        let is_it = |event: &&nvm::Event| event.kind == kind && event.volume as usize == disk;
        recording.events.iter().filter(is_it).count()
    };
    assert!(of_disk(EventKind::Store) > 0 && of_disk(EventKind::DiskSync) > 0);
    let fences = recording.events.iter().filter(|event| event.kind == EventKind::Fence).count();
    assert!(fences > 4, "{fences}");
    // What names of states rest on.
    let shape = |recording: &nvm::Recording| {
        recording.events.iter().map(|event| (event.kind, event.address, event.length)).collect::<Vec<_>>()
    };
    assert_eq!(shape(&recording), shape(&again));
}

/// What it cannot do is left out, and told.
#[test]
fn what_takes_snapshots_is_left_out_and_counted() {
    let catalogue = catalogue();
    let some: Vec<_> = catalogue.into_iter().filter(|entry| entry.name.starts_with("clone-")).collect();
    let report = campaign(Ext::FOUR, Promise::Operation, 1).one(&some, 1, &|_| {});
    assert_eq!((report.workloads, report.left_out), (0, some.len()));
    assert!(Workload::named(Ext::FOUR, "snapshot", 1, &crash::catalogue()).is_err());
    assert!(Workload::named(Ext::TWO, "allocate", 1, &crash::catalogue()).is_err());
    let random = Workload::random(Ext::FOUR, 200, 3);
    assert_eq!(random.operations.len(), 200);
    assert!(random.suits(Ext::FOUR) && !random.suits(&Native::ADAPTIVE), "nobody tends a native volume");
    assert!(!Workload::random(&Native::ADAPTIVE, 200, 3).suits(Ext::FOUR));
    assert_eq!(Ext::FOUR.promises(), [Promise::Operation, Promise::Fsync]);
}
