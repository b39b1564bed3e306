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

#[test]
fn states_of_pairs_are_judged_again_by_their_names() {
    let replay = |id: &str| replay_pair(&Native::ADAPTIVE, &id.parse::<Id>().unwrap());
    assert!(matches!(replay("native:two-0,3@2,4:op:0:0"), Ok(None)), "without a crash");
    // With nothing arrived, at each event that is a fence or a return.
    let states = (1..60).filter_map(|event| replay(&format!("native:two-0,3@2,4:op:0:{event}")).ok());
    let states: Vec<_> = states.collect();
    assert!(states.len() >= 4 && states.iter().all(Option::is_none), "{states:?}");
    for id in ["native:two-0,3@2,4:op:0:99999", "native:two-0,99@:op:0:0", "native:two-0,3@:op:0:4.1=1"] {
        assert!(replay(id).is_err(), "{id}");
    }
}
