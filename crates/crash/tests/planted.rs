//! The explorer finds what is planted: each flush and each fence that an operation or a checkpoint needs is left out
//! in turn, each order turned round, each last line forgotten.

use std::cell::Cell;
use std::rc::Rc;

use crash::{Ext, Lab, MediaFault, Native, Promise, Subject, Workload, catalogue};

/// Plants every fault in a workload. Gives those that were found with the states it took, and the others.
fn plant(subject: &'static dyn Subject, name: &str) -> (Vec<(String, u64)>, Vec<String>) {
    let workload = Workload { from: 0, ..Workload::named(subject, name, 1, &catalogue()).unwrap() };
    let mut lab = Lab::new(subject, Promise::Operation, 1);
    let recording = lab.recording(&workload).unwrap();
    assert_eq!(lab.explore(&workload).unwrap().violation.map(|violation| violation.what), None);
    let planted: Rc<Cell<Option<MediaFault>>> = Rc::default();
    let fault = planted.clone();
    lab.tamper(move |recording| fault.get().into_iter().for_each(|fault| fault.plant(recording)));
    let (mut found, mut missed) = (Vec::new(), Vec::new());
    for fault in MediaFault::all(&recording) {
        planted.set(Some(fault));
        let event = &recording.events[fault.event()];
        let words = format!(
            "{name}: {fault}: {:?} {:?} at {}+{}",
            event.kind, event.purpose, event.address, event.length
        );
        let explored = lab.explore(&workload).unwrap();
        match explored.violation {
            Some(violation) => {
                eprintln!("{words}: found after {} states: {}", explored.counts.distinct, violation.what);
                found.push((words, explored.counts.distinct));
            }
            None => {
                eprintln!("{words}: NOT FOUND in {} states", explored.counts.distinct);
                missed.push(words);
            }
        }
    }
    (found, missed)
}

/// What is not found has nothing to break: a line whose last bytes were zero before, too; a line that another flush of
/// the same epoch sends as well; the second of two root slots, where either suffices; a fence whose work the same
/// thread's next one does before anything depends on it.
#[test]
fn faults_of_persistence_are_found() {
    let mut all = 0;
    for name in ["create", "write-block", "rename-over", "sync-write+create"] {
        let (found, missed) = plant(&Native::ADAPTIVE, name);
        eprintln!("== {name}: {} found, {} not", found.len(), missed.len());
        all += found.len();
        if !name.contains("sync") {
            assert!(missed.is_empty(), "a transaction persists nothing in vain: {missed:?}");
        }
    }
    assert!(all >= 30, "only {all} of the planted faults were found");
}

/// The same of an ext disk: what a commit leaves out is found, and the sync of the disk before a checkpoint retires what the log has for it. What
/// is not found has nothing to break, as above: also what says that a half is retired, or begins the next, on which nothing relies yet.
#[test]
fn faults_of_persistence_on_two_media_are_found() {
    let (commit, missed) = plant(Ext::FOUR, "create");
    eprintln!("== create: {} found, {} not", commit.len(), missed.len());
    // Where a record ends there may be zeros, which were there before.
    let in_vain = missed.iter().filter(|words| !words.contains("last line not sent")).count();
    assert!(commit.len() >= 2 && in_vain == 0, "a commit persists nothing in vain: {missed:?}");
    let (found, missed) = plant(Ext::FOUR, "checkpoint-write");
    eprintln!("== checkpoint-write: {} found, {} not", found.len(), missed.len());
    assert!(found.iter().any(|(words, _)| words.contains("no sync of the disk")), "{missed:?}");
    assert!(found.len() >= 10, "{found:?}, and not {missed:?}");
}
