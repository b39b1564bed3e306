//! Two operations at the same time leave what one after the other leaves, whatever the schedule and the power cut.

use crash::{Id, Native, explore_pair, pairs, replay_pair};

#[test]
fn pairs_of_operations_are_as_if_one_came_first() {
    let mut schedules = 0;
    // Some of all pairs; and all in which neither operation waits until the other is durable, or one has to.
    let of_interest = |pair: &crash::Pair| {
        let [one, other] = pair.places();
        matches!(
            (one, other),
            (0, 17 | 19 | 20)
                | (9, 9 | 21 | 22 | 24)
                | (21, 21..=23)
                | (9, 28)
                | (29, 29 | 30)
                | (11, 21)
                | (1, 18)
                | (25, 27)
                | (27, 31 | 32)
        )
    };
    let all = pairs();
    let mut chosen: Vec<_> = all.iter().step_by(17).collect();
    chosen.extend(all.iter().filter(|pair| of_interest(pair)));
    let operations = chosen.iter().flat_map(|pair| pair.places()).max();
    assert_eq!(operations, all.iter().flat_map(|pair| pair.places()).max());
    for pair in chosen {
        match explore_pair(&Native::ADAPTIVE, pair, 6, 1) {
            Ok(report) => schedules += report.schedules,
            Err(failure) => panic!("{:?}: {failure}", pair.operations),
        }
    }
    assert!(schedules > 50, "only {schedules} schedules were run");
}

/// A file is opened, gets another name, or none, and is written to: no order of whole operations has that.
#[test]
fn what_was_found_before_the_other_one_came_is_changed_behind_it() {
    let replay = |id: &str| replay_pair(&Native::ADAPTIVE, &id.parse::<Id>().unwrap());
    for id in [
        "native:two-6,8@0,1:op:0:0",  // a rename, and a write
        "native:two-6,11@0,1:op:0:0", // and a truncation
        "native:two-6,24@0,1:op:0:0", // and a hole that is punched
        "native:two-2,20@1:op:0:0",   // a link, and another name for what it is made from
    ] {
        let found = replay(id).unwrap();
        assert!(found.is_none(), "{id}: {}", found.unwrap());
    }
}

#[test]
fn states_of_pairs_are_judged_again_by_their_names() {
    let replay = |id: &str| replay_pair(&Native::ADAPTIVE, &id.parse::<Id>().unwrap());
    assert!(matches!(replay("native:two-0,3@2,4:op:0:0"), Ok(None)), "without a crash");
    // With nothing arrived, at each event that is a fence or a return.
    let states = (1..60).filter_map(|event| replay(&format!("native:two-0,3@2,4:op:0:{event}")).ok());
    let states: Vec<_> = states.collect();
    assert!(states.len() >= 4 && states.iter().all(Option::is_none), "{states:?}");
    for id in [
        "native:two-0,3@2,4:op:0:99999",
        "native:two-0,99@:op:0:0",
        "native:two-0,3@:op:0:4.1=1",
        "native:two-0,3@2,4:fsync:0:0",
        "native-diff:two-0,3@2,4:op:0:0",
    ] {
        assert!(replay(id).is_err(), "{id}");
    }
}
