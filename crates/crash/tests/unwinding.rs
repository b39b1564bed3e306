//! Operations that panic: the volume is as before or behind them, or fails, and is one of the two for who opens it next.

use crash::{Ext, Lab, Native, Promise, Subject, Workload, catalogue};

/// Has all operations of the catalogue panic wherever they can, which is `least` places at least.
fn unwound(subject: &'static dyn Subject, promise: Promise, crowded: bool, least: usize) {
    let mut lab = Lab::new(subject, promise, 1);
    let (mut workloads, mut panics) = (0, 0);
    let mut failures = Vec::new();
    for entry in &catalogue() {
        let workload = Workload::of(&[entry], 1).expect("one scene");
        if !workload.suits(subject) {
            continue;
        }
        let unwound = lab
            .unwind(&workload, crowded)
            .unwrap_or_else(|error| panic!("{}, {promise}: {error}", entry.name));
        workloads += 1;
        panics += unwound.panics;
        failures.extend(unwound.violation.map(|violation| format!("{}: {violation}\n", entry.name)));
    }
    eprintln!("{} {promise}: {panics} panics in {workloads} workloads", subject.name());
    assert!(failures.is_empty(), "{promise}:\n{}", failures.concat());
    assert!(panics >= least && workloads > 100, "{panics} panics in {workloads} workloads");
}

#[test]
fn native() {
    for promise in Promise::ALL {
        unwound(&Native::ADAPTIVE, promise, false, 50_000);
    }
}

/// Changes that are seen by others before they are durable.
#[test]
fn native_beside_others() {
    unwound(&Native::ADAPTIVE, Promise::Operation, true, 50_000);
}

#[test]
fn ext() {
    for subject in Ext::ALL {
        for promise in subject.promises() {
            unwound(subject, *promise, false, 1_200);
        }
    }
}
