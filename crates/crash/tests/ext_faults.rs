//! The explorer finds faults in the logic of the ext volume: each is planted in turn.

use crash::{Ext, Id, Lab, Promise, Subject, Workload, WorkloadError, catalogue};
use ext::Fault::{self, *};

/// Which workloads show which faults, of which volume under which promise.
const TABLE: &[(&Ext, Promise, &str, &[Fault])] = &[
    (
        Ext::FOUR,
        Promise::Operation,
        "create",
        &[
            CommitFence,
            RecordNotSent,
            RecordChecksumIgnored,
            HalfHeaderNotSent,
            AppliedTooEarly,
            NamesNotCommitted,
        ],
    ),
    (
        Ext::FOUR,
        Promise::Operation,
        "write-block",
        &[ContentsNotCommitted, DataNotReplayed, ReplayDiskNotFlushed, ReplayRetiredFirst],
    ),
    (Ext::FOUR, Promise::Operation, "write-two-descriptors", &[ItemsBackwards]),
    (Ext::FOUR, Promise::Operation, "unlink-while-open", &[OrphanNotReclaimed]),
    (Ext::FOUR, Promise::Operation, "checkpoint-create", &[FramesNotFlushed]),
    // A block that was none before.
    (Ext::FOUR, Promise::Operation, "mkdir+checkpoint-nothing", &[EntriesNotFlushed]),
    (Ext::FOUR, Promise::Operation, "checkpoint-write", &[NotDrained, DrainNotFlushed, RetiredTooEarly]),
    // Data after metadata: what was written out is mapped, and committed, before it is on the disk.
    (Ext::FOUR, Promise::Fsync, "pages-new", &[MappedTooEarly]),
    (Ext::FOUR, Promise::Fsync, "fdatasync", &[ItemsLeftOut]),
    // The log is retired behind frames that were given up.
    (
        Ext::TIGHT,
        Promise::Operation,
        "mkdir+mkdir-in-dir+checkpoint-nothing",
        &[EvictedTooEarly, EvictedStillListed],
    ),
];

/// What breaks when a fault is planted, and the states it took to find that.
fn find(subject: &'static Ext, promise: Promise, fault: Option<Fault>, name: &str) -> Option<(String, u64)> {
    let workload = Workload { from: 0, ..Workload::named(subject, name, 1, &catalogue()).unwrap() };
    let mut lab = Lab::new(subject, promise, 2);
    // The scene is set without the fault.
    lab.recording(&workload).unwrap();
    // A volume that panics is a finding like any other.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    ext::plant(fault);
    let explored = lab.explore(&workload);
    ext::plant(None);
    std::panic::set_hook(hook);
    match explored {
        Ok(explored) => {
            let violation = explored.violation?;
            let id = Id {
                subject: subject.name().into(),
                workload: workload.name,
                promise,
                seed: workload.seed,
                event: violation.event,
                lines: violation.lines.clone(),
                depth: Id::DEPTH,
            };
            Some((format!("{id}: {}", violation.deepest().what), explored.counts.distinct))
        }
        Err(error @ (WorkloadError::Schedule(_) | WorkloadError::Bypass(_))) => panic!("{fault:?}: {error}"),
        Err(error) => Some((format!("{}:{name}: {error}", subject.name()), 0)),
    }
}

#[test]
fn faults_in_the_logic_are_found() {
    let mut missed = Vec::new();
    for (subject, promise, name, faults) in TABLE {
        assert_eq!(find(subject, *promise, None, name), None, "{name} without a fault");
        for fault in *faults {
            match find(subject, *promise, Some(*fault), name) {
                Some((what, states)) => {
                    let what: String = what.chars().take(300).collect();
                    eprintln!("{:22} {states:6} states  {what}", format!("{fault:?}"));
                }
                None => missed.push(format!("{fault:?} in {name}")),
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
    let is_planted = |fault: &&Fault| TABLE.iter().any(|(.., faults)| faults.contains(fault));
    let left_out: Vec<&Fault> = Fault::ALL.iter().filter(|fault| !is_planted(fault)).collect();
    assert!(left_out.is_empty(), "not planted: {left_out:?}");
}
