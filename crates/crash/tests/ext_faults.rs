//! The explorer finds faults in the logic of the ext volume: each is planted in turn.

use crash::{Ext, Id, Lab, Promise, Workload, WorkloadError, catalogue};
use ext::Fault::{self, *};

/// Which workloads show which faults.
const TABLE: &[(&str, &[Fault])] = &[
    (
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
    ("write-block", &[ContentsNotCommitted, DataNotReplayed, ReplayDiskNotFlushed, ReplayRetiredFirst]),
    ("write-two-descriptors", &[ItemsBackwards]),
    ("unlink-while-open", &[OrphanNotReclaimed]),
    ("checkpoint-create", &[FramesNotFlushed]),
    // A block that was none before.
    ("mkdir+checkpoint-nothing", &[EntriesNotFlushed]),
    ("checkpoint-write", &[NotDrained, DrainNotFlushed, RetiredTooEarly]),
];

/// What breaks when a fault is planted, and the states it took to find that.
fn find(fault: Option<Fault>, name: &str) -> Option<(String, u64)> {
    let workload = Workload { from: 0, ..Workload::named(Ext::FOUR, name, 1, &catalogue()).unwrap() };
    let mut lab = Lab::new(Ext::FOUR, Promise::Operation, 2);
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
                subject: "ext".into(),
                workload: workload.name,
                promise: Promise::Operation,
                seed: workload.seed,
                event: violation.event,
                lines: violation.lines.clone(),
            };
            Some((format!("{id}: {}", violation.deepest().what), explored.counts.distinct))
        }
        Err(error @ (WorkloadError::Schedule(_) | WorkloadError::Bypass(_))) => panic!("{fault:?}: {error}"),
        Err(error) => Some((format!("ext:{name}: {error}"), 0)),
    }
}

#[test]
fn faults_in_the_logic_are_found() {
    let mut missed = Vec::new();
    for (name, faults) in TABLE {
        assert_eq!(find(None, name), None, "{name} without a fault");
        for fault in *faults {
            match find(Some(*fault), name) {
                Some((what, states)) => {
                    let what: String = what.chars().take(300).collect();
                    eprintln!("{:22} {states:6} states  {what}", format!("{fault:?}"));
                }
                None => missed.push(format!("{fault:?} in {name}")),
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
    let is_planted = |fault: &&Fault| TABLE.iter().any(|(_, faults)| faults.contains(fault));
    let left_out: Vec<&Fault> = Fault::ALL.iter().filter(|fault| !is_planted(fault)).collect();
    assert!(left_out.is_empty(), "not planted: {left_out:?}");
}
