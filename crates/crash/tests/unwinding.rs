//! Operations that panic: the volume is as before or behind them, or fails, and is one of the two for who opens it next.

use crash::{Ext, Lab, Native, Promise, Subject, Workload, catalogue};

/// Has all operations of the catalogue panic wherever they can.
fn unwound(subject: &'static dyn Subject, promise: Promise) {
    let mut lab = Lab::new(subject, promise, 1);
    let (mut workloads, mut panics) = (0, 0);
    let mut failures = Vec::new();
    for entry in &catalogue() {
        let workload = Workload::of(&[entry], 1).expect("one scene");
        if !workload.suits(subject) {
            continue;
        }
        let unwound =
            lab.unwind(&workload).unwrap_or_else(|error| panic!("{}, {promise}: {error}", entry.name));
        workloads += 1;
        panics += unwound.panics;
        failures.extend(unwound.violation.map(|violation| format!("{}: {violation}\n", entry.name)));
    }
    eprintln!("{} {promise}: {panics} panics in {workloads} workloads", subject.name());
    assert!(failures.is_empty(), "{promise}:\n{}", failures.concat());
    assert!(panics > workloads && workloads > 100, "{panics} panics in {workloads} workloads");
}

#[test]
fn native() {
    for promise in Promise::ALL {
        unwound(&Native::ADAPTIVE, promise);
    }
}

#[test]
fn ext() {
    for subject in Ext::ALL {
        for promise in subject.promises() {
            unwound(subject, *promise);
        }
    }
}
