//! The explorer finds what is planted: each flush and each fence that an operation or a checkpoint needs is left out
//! in turn, each order turned round, each last line forgotten.

use std::cell::Cell;
use std::rc::Rc;

use crash::{Lab, MediaFault, Native, Promise, Workload, catalogue};

/// Plants every fault in a workload. Gives those that were found with the states it took, and the others.
fn plant(name: &str) -> (Vec<(String, u64)>, Vec<String>) {
    let workload = Workload { from: 0, ..Workload::named(&Native::ADAPTIVE, name, 1, &catalogue()).unwrap() };
    let mut lab = Lab::new(&Native::ADAPTIVE, Promise::Operation, 1);
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
        let (found, missed) = plant(name);
        eprintln!("== {name}: {} found, {} not", found.len(), missed.len());
        all += found.len();
        if !name.contains("sync") {
            assert!(missed.is_empty(), "a transaction persists nothing in vain: {missed:?}");
        }
    }
    assert!(all >= 30, "only {all} of the planted faults were found");
}
