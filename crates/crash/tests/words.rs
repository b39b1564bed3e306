//! Names of states and workloads: what is printed is read again, and what is not one is refused.

use crash::{Id, Native, Promise, Workload, catalogue};

#[test]
fn a_name_of_a_state_is_read_as_it_was_printed() {
    for text in ["native:rename-over:op:0:37.12=1.13=2", "native:random-30#3,7:snapshot:99:0"] {
        let id: Id = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
    }
    for text in ["", "native:rename-over:op:0", "native:x:never:0:1", "native:x:op:0:1.2", "native:x:op:y:1"]
    {
        assert!(text.parse::<Id>().is_err(), "{text:?}");
    }
}

#[test]
fn workloads_have_names() {
    let catalogue = catalogue();
    let named = |name| Workload::named(&Native::ADAPTIVE, name, 7, &catalogue);
    let two = named("create+unlink-file").unwrap();
    assert_eq!((two.operations.len(), two.from), (2, 1));
    let some = named("random-20#3,7").unwrap();
    assert_eq!(some.operations, [3, 7].map(|n| named("random-20").unwrap().operations[n].clone()));
    for name in ["nothing", "create+", "random-x", "create#1", "create#x", "full-create+bucket-adds"] {
        assert!(named(name).is_err(), "{name}");
    }
}

#[test]
fn a_state_that_is_none_is_refused() {
    let catalogue = catalogue();
    let mut lab = crash::Lab::new(&Native::ADAPTIVE, Promise::Operation, 1);
    for (id, what) in [("native:create:op:0:99999", "no crash point"), ("native:create:op:0:10.3=9", "no")] {
        let id: Id = id.parse().unwrap();
        let workload = Workload::named(&Native::ADAPTIVE, &id.workload, id.seed, &catalogue).unwrap();
        let error = lab.replay(&workload, &id).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}
